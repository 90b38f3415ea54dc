//! namespace-controller: empties a namespace that is being deleted, pods first, and lets it go.

use crate::context::{Context, Fault, Outcome};
use base::backoff::Policy;
use client::discovery::{Discoverer, Discovery, Served};
use client::{Key, Queue, retry};
use k8s_openapi::api::core::v1::{Namespace, NamespaceCondition, Pod};
use kube::Api;
use kube::api::{DeleteParams, DynamicObject, ListParams, PartialObjectMeta, PostParams};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// The finalizer that this controller serves.
const FINALIZER: &str = "kubernetes";
/// A namespace goes no earlier than this after its deletion, so that all API servers have heard of it.
const SETTLE: Duration = Duration::from_secs(1);
/// Seconds to wait for those who serve finalizers.
const FINALIZER_ESTIMATE: i64 = 15;

pub(crate) async fn run(context: Context) {
    let namespaces = context.informer::<Namespace>();
    let queue = Queue::new(Policy { cap: Duration::from_secs(60), ..client::queue::RETRIES });
    let wake = queue.clone();
    namespaces.on_change(move |change| {
        if is_deleted(change.object()) {
            wake.add(Key::of(&change.object().metadata));
        }
    });
    namespaces.synced().await;
    let period = context.options.flags.duration("namespace-sync-period");
    if !period.is_zero() {
        context.add_each(period, &namespaces, &queue, is_deleted);
    }
    let workers = context.options.workers("concurrent-namespace-syncs");
    let deleter = Deleter { discoverer: Discoverer::new(context.client.clone()), context: context.clone() };
    context.serve(&queue, workers, |key: Key| deleter.reconcile(key)).await;
}

fn is_deleted(namespace: &Namespace) -> bool {
    namespace.metadata.deletion_timestamp.is_some()
}

struct Deleter {
    context: Context,
    discoverer: Discoverer,
}

impl Deleter {
    async fn reconcile(&self, key: Key) -> Outcome {
        let api = self.context.all::<Namespace>();
        let Some(namespace) = api.get_opt(&key.name).await? else { return Ok(None) };
        let Some(deleted) = namespace.metadata.deletion_timestamp.clone() else { return Ok(None) };
        let namespace = self.mark_terminating(namespace).await?;
        if !finalizers(&namespace).any(|finalizer| finalizer == FINALIZER) {
            return Ok(None);
        }
        let remains = self.empty(&namespace).await?;
        if let Some(estimate) = remains {
            return Ok(Some(Duration::from_secs(u64::try_from(estimate / 2 + 1).unwrap_or(1))));
        }
        let age = Duration::try_from(jiff::Timestamp::now().duration_since(deleted.0)).unwrap_or_default();
        if age < SETTLE {
            return Ok(Some(SETTLE - age));
        }
        self.finalize(&key.name).await?;
        Ok(None)
    }

    async fn mark_terminating(&self, mut namespace: Namespace) -> Result<Namespace, Fault> {
        let status = namespace.status.get_or_insert_default();
        if status.phase.as_deref() == Some("Terminating") {
            return Ok(namespace);
        }
        status.phase = Some("Terminating".into());
        let name = namespace.metadata.name.clone().unwrap_or_default();
        Ok(self.context.all::<Namespace>().replace_status(&name, &PostParams::default(), &namespace).await?)
    }

    /// Deletes all that can be deleted. Returns the seconds after which more may be done, or `None` when it is empty.
    async fn empty(&self, namespace: &Namespace) -> Result<Option<i64>, Fault> {
        let name = namespace.metadata.name.as_deref().unwrap_or_default();
        let mut found = Findings::default();
        let discovery = match self.discoverer.get().await {
            Ok(discovery) => discovery,
            Err(error) => {
                found.discovery = Some(retry::message(&error));
                Arc::default()
            }
        };
        if !discovery.stale.is_empty() {
            found.discovery = Some(stale_message(&discovery));
        }
        let mut estimate = 0;
        let (pods, others): (Vec<&Served>, Vec<&Served>) = discovery
            .resources
            .iter()
            .filter(|served| served.namespaced && served.can(&["delete"]))
            .partition(|served| served.resource.group.is_empty() && served.resource.plural == "pods");
        for served in pods {
            estimate = estimate.max(self.remove_all(namespace, served, &mut found).await);
        }
        let pods_remain = !found.remaining.is_empty();
        if !pods_remain {
            let removals = others.iter().map(|served| async {
                let mut own = Findings::default();
                let estimate = self.remove_all(namespace, served, &mut own).await;
                (estimate, own)
            });
            for (seconds, own) in futures::future::join_all(removals).await {
                estimate = estimate.max(seconds);
                found.merge(own);
            }
        }
        self.report(namespace, &found, pods_remain).await;
        let failed = found.discovery.is_some() || !found.failures.is_empty();
        match (failed, found.remaining.is_empty()) {
            (true, _) if estimate == 0 => Err(Fault::Unusable(format!("namespace {name}: {}", found.summary()))),
            (false, true) => Ok(None),
            _ => Ok(Some(estimate)),
        }
    }

    /// Deletes the objects of one resource and counts those that remain. Returns the seconds they may take.
    async fn remove_all(&self, namespace: &Namespace, served: &Served, found: &mut Findings) -> i64 {
        let name = namespace.metadata.name.as_deref().unwrap_or_default();
        match self.try_remove_all(namespace, name, served).await {
            Ok(rest) => found.count(served, rest),
            Err(error) => {
                found.failures.push(retry::message(&error));
                0
            }
        }
    }

    async fn try_remove_all(&self, namespace: &Namespace, name: &str, served: &Served) -> kube::Result<Rest> {
        let grace = if served.resource.plural == "pods" { self.pods_grace(namespace, name).await? } else { 0 };
        let api: Api<PartialObjectMeta<DynamicObject>> =
            Api::namespaced_with(self.context.client.clone(), name, &served.resource);
        let background = DeleteParams::background();
        if served.can(&["deletecollection"]) {
            let objects: Api<DynamicObject> = Api::namespaced_with(self.context.client.clone(), name, &served.resource);
            match objects.delete_collection(&background, &ListParams::default()).await {
                Err(error) if unsupported(&error) => {}
                other => drop(other?),
            }
        } else if served.can(&["list"]) {
            for object in listed(&api).await? {
                let object_name = object.metadata.name.unwrap_or_default();
                retry::ignore_not_found(api.delete(&object_name, &background).await)?;
            }
        }
        if !served.can(&["list"]) {
            return Ok(Rest::default());
        }
        let mut rest = Rest { grace, ..Rest::default() };
        for object in listed(&api).await? {
            rest.count += 1;
            for finalizer in object.metadata.finalizers.into_iter().flatten() {
                *rest.finalizers.entry(finalizer).or_default() += 1;
            }
        }
        Ok(rest)
    }

    /// The longest grace period of the namespace's running pods, while it is not over yet.
    async fn pods_grace(&self, namespace: &Namespace, name: &str) -> kube::Result<i64> {
        let pods = self.context.within::<Pod>(name).list(&ListParams::default()).await?;
        let running = pods.items.iter().filter(|pod| !crate::common::pods::is_terminal(pod));
        let grace = running.filter_map(|pod| pod.spec.as_ref()?.termination_grace_period_seconds).max().unwrap_or(0);
        let deleted = namespace.metadata.deletion_timestamp.as_ref().map(|time| time.0);
        let since = deleted.map_or(0, |time| jiff::Timestamp::now().duration_since(time).as_secs());
        Ok(if since >= grace { 0 } else { grace })
    }

    /// Writes the conditions. Counts are only told when all resources were looked at.
    async fn report(&self, namespace: &Namespace, found: &Findings, partial: bool) {
        let mut namespace = namespace.clone();
        let name = namespace.metadata.name.clone().unwrap_or_default();
        let conditions = namespace.status.get_or_insert_default().conditions.get_or_insert_default();
        if !merge_conditions(conditions, found.conditions(partial)) {
            return;
        }
        let written = self.context.all::<Namespace>().replace_status(&name, &PostParams::default(), &namespace).await;
        if let Err(error) = written {
            tracing::warn!(namespace = name, %error, "couldn't update the conditions of a namespace");
        }
    }

    async fn finalize(&self, name: &str) -> Result<(), Fault> {
        let api = self.context.all::<Namespace>();
        let done = retry::on_conflict(async || {
            let mut namespace = api.get(name).await?;
            let spec = namespace.spec.get_or_insert_default();
            spec.finalizers.get_or_insert_default().retain(|finalizer| finalizer != FINALIZER);
            api.replace_subresource("finalize", name, &PostParams::default(), &namespace).await
        })
        .await;
        retry::ignore_not_found(done)?;
        Ok(())
    }
}

async fn listed(api: &Api<PartialObjectMeta<DynamicObject>>) -> kube::Result<Vec<PartialObjectMeta<DynamicObject>>> {
    match api.list(&ListParams::default()).await {
        Err(error) if unsupported(&error) => Ok(Vec::new()),
        other => Ok(other?.items),
    }
}

/// The resource is gone, or has no such verb after all.
fn unsupported(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 405 || status.code == 404)
}

fn finalizers(namespace: &Namespace) -> impl Iterator<Item = &str> {
    namespace.spec.iter().flat_map(|spec| spec.finalizers.iter().flatten()).map(String::as_str)
}

fn stale_message(discovery: &Discovery) -> String {
    let failures: Vec<_> =
        discovery.stale.iter().map(|group| format!("{group}: stale GroupVersion discovery: {group}")).collect();
    format!(
        "Discovery failed for some groups, {} failing: unable to retrieve the complete list of server APIs: {}",
        failures.len(),
        failures.join(", ")
    )
}

/// What is left of one resource.
#[derive(Debug, Default)]
struct Rest {
    count: usize,
    finalizers: BTreeMap<String, usize>,
    /// Seconds that the objects may take to go.
    grace: i64,
}

/// What one pass over a namespace found.
#[derive(Debug, Default)]
struct Findings {
    discovery: Option<String>,
    failures: Vec<String>,
    /// By `resource.group`.
    remaining: BTreeMap<String, usize>,
    finalizers: BTreeMap<String, usize>,
}

impl Findings {
    /// Adds what is left of a resource; returns the seconds to wait for it.
    fn count(&mut self, served: &Served, rest: Rest) -> i64 {
        let Rest { count, finalizers, grace } = rest;
        if count == 0 {
            return 0;
        }
        let resource = &served.resource;
        *self.remaining.entry(format!("{}.{}", resource.plural, resource.group)).or_default() += count;
        let held = !finalizers.is_empty();
        for (finalizer, count) in finalizers {
            *self.finalizers.entry(finalizer).or_default() += count;
        }
        match (grace, held) {
            (0, true) => FINALIZER_ESTIMATE,
            (0, false) => {
                // Nothing holds them, so they should be gone; they may be next time.
                self.failures.push(format!(
                    "unexpected items still remain in namespace for gvr: {}/{}, Resource={}",
                    resource.group, resource.version, resource.plural
                ));
                0
            }
            (grace, _) => grace,
        }
    }

    fn merge(&mut self, other: Findings) {
        let Findings { discovery, failures, remaining, finalizers } = other;
        self.discovery = self.discovery.take().or(discovery);
        self.failures.extend(failures);
        for (mine, theirs) in [(&mut self.remaining, remaining), (&mut self.finalizers, finalizers)] {
            for (key, count) in theirs {
                *mine.entry(key).or_default() += count;
            }
        }
    }

    fn summary(&self) -> String {
        self.discovery.iter().chain(&self.failures).cloned().collect::<Vec<_>>().join(", ")
    }

    /// The five conditions, in upstream's order and words.
    fn conditions(&self, partial: bool) -> [NamespaceCondition; 5] {
        let condition = |kind: &str, bad: Option<(&str, String)>, good: (&str, &str)| {
            let status = if bad.is_some() { "True" } else { "False" };
            let (reason, message) = bad.unwrap_or((good.0, good.1.to_owned()));
            NamespaceCondition {
                type_: kind.into(),
                status: status.into(),
                reason: Some(reason.into()),
                message: Some(message),
                last_transition_time: Some(client::now()),
            }
        };
        let mut failures = self.failures.clone();
        failures.sort();
        let failed = (!failures.is_empty()).then(|| {
            let all = failures.join(", ");
            (
                "ContentDeletionFailed",
                format!("Failed to delete all resource types, {} remaining: {all}", failures.len()),
            )
        });
        let listed = |counts: &BTreeMap<String, usize>, verb: &str| {
            let lines: Vec<_> =
                counts.iter().map(|(what, count)| format!("{what} {verb} {count} resource instances")).collect();
            (!partial && !lines.is_empty()).then(|| lines.join(", "))
        };
        let content = listed(&self.remaining, "has")
            .map(|list| ("SomeResourcesRemain", format!("Some resources are remaining: {list}")));
        let held = listed(&self.finalizers, "in").map(|list| {
            ("SomeFinalizersRemain", format!("Some content in the namespace has finalizers remaining: {list}"))
        });
        let undiscovered = self.discovery.clone().map(|why| ("DiscoveryFailed", why));
        [
            condition(
                "NamespaceDeletionDiscoveryFailure",
                undiscovered,
                ("ResourcesDiscovered", "All resources successfully discovered"),
            ),
            condition(
                "NamespaceDeletionGroupVersionParsingFailure",
                None,
                ("ParsedGroupVersions", "All legacy kube types successfully parsed"),
            ),
            condition(
                "NamespaceDeletionContentFailure",
                failed,
                ("ContentDeleted", "All content successfully deleted, may be waiting on finalization"),
            ),
            condition("NamespaceContentRemaining", content, ("ContentRemoved", "All content successfully removed")),
            condition(
                "NamespaceFinalizersRemaining",
                held,
                ("ContentHasNoFinalizers", "All content-preserving finalizers finished"),
            ),
        ]
    }
}

/// Puts new conditions over old ones; whether anything has changed.
fn merge_conditions(old: &mut Vec<NamespaceCondition>, new: impl IntoIterator<Item = NamespaceCondition>) -> bool {
    let mut changed = false;
    for mut condition in new {
        match old.iter_mut().find(|known| known.type_ == condition.type_) {
            None => old.push(condition),
            Some(known) => {
                if known.status == condition.status {
                    condition.last_transition_time = known.last_transition_time.clone();
                }
                if *known == condition {
                    continue;
                }
                *known = condition;
            }
        }
        changed = true;
    }
    changed
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::api::ApiResource;

    fn served(group: &str, plural: &str) -> Served {
        let resource = ApiResource {
            group: group.into(),
            version: "v1".into(),
            api_version: String::new(),
            kind: String::new(),
            plural: plural.into(),
        };
        Served { resource, namespaced: true, verbs: Vec::new(), subresources: Vec::new() }
    }

    #[test]
    fn what_remains_is_told_in_upstreams_words() {
        let mut found = Findings::default();
        let rest = Rest { count: 1, finalizers: [("example.com/keep".to_owned(), 1)].into(), grace: 0 };
        assert_eq!(found.count(&served("", "configmaps"), rest), FINALIZER_ESTIMATE);
        let messages: Vec<_> = found
            .conditions(false)
            .into_iter()
            .map(|c| format!("{}={} {} {}", c.type_, c.status, c.reason.unwrap(), c.message.unwrap()))
            .collect();
        assert_eq!(
            messages,
            [
                "NamespaceDeletionDiscoveryFailure=False ResourcesDiscovered All resources successfully discovered",
                "NamespaceDeletionGroupVersionParsingFailure=False ParsedGroupVersions All legacy kube types successfully parsed",
                "NamespaceDeletionContentFailure=False ContentDeleted All content successfully deleted, may be waiting on finalization",
                "NamespaceContentRemaining=True SomeResourcesRemain Some resources are remaining: configmaps. has 1 resource instances",
                "NamespaceFinalizersRemaining=True SomeFinalizersRemain Some content in the namespace has finalizers remaining: example.com/keep in 1 resource instances",
            ]
        );
    }

    #[test]
    fn unchanged_conditions_are_not_written() {
        let mut conditions = Vec::new();
        let found = Findings::default();
        assert!(merge_conditions(&mut conditions, found.conditions(false)));
        assert!(!merge_conditions(&mut conditions, found.conditions(false)));
        let failing = Findings { failures: vec!["no".into()], ..Findings::default() };
        assert!(merge_conditions(&mut conditions, failing.conditions(false)));
        assert_eq!(conditions.len(), 5);
    }
}

//! Reading pods, and making them from templates.

use crate::context::{Context, Fault};
use api::selector::LabelSelector;
use client::{Recorder, retry};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Pod, PodCondition, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::{DeleteParams, PostParams, Preconditions};
use std::time::Duration;

/// The pod's phase; empty before it has one.
pub fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

/// Whether the pod has ended: Succeeded or Failed.
pub fn is_terminal(pod: &Pod) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}

/// Whether the pod is being deleted.
pub fn is_terminating(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

/// Whether the pod counts as a replica: neither ended nor being deleted.
pub fn is_active(pod: &Pod) -> bool {
    !is_terminal(pod) && !is_terminating(pod)
}

/// A condition of the pod.
pub fn condition<'a>(pod: &'a Pod, kind: &str) -> Option<&'a PodCondition> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|condition| condition.type_ == kind)
}

/// Whether the pod is ready.
pub fn is_ready(pod: &Pod) -> bool {
    condition(pod, "Ready").is_some_and(|condition| condition.status == "True")
}

/// Since when the pod is ready.
pub fn ready_since(pod: &Pod) -> Option<Timestamp> {
    let ready = condition(pod, "Ready").filter(|condition| condition.status == "True")?;
    ready.last_transition_time.as_ref().map(|time| time.0)
}

/// Whether the pod has been ready for `min_ready` seconds.
pub fn is_available(pod: &Pod, min_ready: i32, now: Timestamp) -> bool {
    if !is_ready(pod) {
        return false;
    }
    let needed = SignedDuration::from_secs(i64::from(min_ready));
    min_ready == 0 || ready_since(pod).is_some_and(|since| now.duration_since(since) >= needed)
}

/// How long until a ready pod becomes available; `None` when it is, or is not ready.
pub fn available_in(pod: &Pod, min_ready: i32, now: Timestamp) -> Option<Duration> {
    let since = ready_since(pod)?;
    let left = SignedDuration::from_secs(i64::from(min_ready)) - now.duration_since(since);
    Duration::try_from(left).ok().filter(|left| !left.is_zero())
}

/// The node the pod is bound to; empty when it is not.
pub fn node(pod: &Pod) -> &str {
    pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or_default()
}

/// Whether a selector takes an object's labels.
pub fn selects(selector: &LabelSelector, meta: &ObjectMeta) -> bool {
    static NONE: std::collections::BTreeMap<String, String> = std::collections::BTreeMap::new();
    selector.matches(meta.labels.as_ref().unwrap_or(&NONE))
}

/// The prefix of generated names: the owner's and a dash, or no dash where that makes no name.
pub fn name_prefix(owner: &str) -> String {
    let prefix = format!("{owner}-");
    if api::meta::dns_subdomain(&prefix, true).is_empty() { prefix } else { owner.to_owned() }
}

/// A pod as the template says, controlled by `owner`.
pub fn from_template(template: &PodTemplateSpec, owner: &OwnerReference) -> Pod {
    let meta = template.metadata.clone().unwrap_or_default();
    Pod {
        metadata: ObjectMeta {
            generate_name: Some(name_prefix(&owner.name)),
            labels: meta.labels,
            annotations: meta.annotations,
            finalizers: meta.finalizers,
            owner_references: Some(vec![owner.clone()]),
            ..Default::default()
        },
        spec: template.spec.clone(),
        status: None,
    }
}

/// Makes and removes pods on behalf of an owner, and tells about it in events.
#[derive(Clone)]
pub struct PodControl {
    context: Context,
    recorder: Recorder,
}

impl PodControl {
    /// Acts and records as this controller.
    pub fn new(context: &Context, recorder: &Recorder) -> Self {
        Self { context: context.clone(), recorder: recorder.clone() }
    }

    /// Creates a pod of `owner`.
    ///
    /// # Errors
    /// The server's refusal, which is also an event unless the namespace is being deleted.
    pub async fn create<K: kube::Resource<DynamicType = ()>>(
        &self, namespace: &str, pod: &Pod, owner: &K,
    ) -> Result<Pod, Fault> {
        if pod.metadata.labels.as_ref().is_none_or(|labels| labels.is_empty()) {
            return Err(Fault::Unusable("unable to create pods, no labels".into()));
        }
        match self.context.within::<Pod>(namespace).create(&PostParams::default(), pod).await {
            Ok(pod) => {
                let name = pod.metadata.name.clone().unwrap_or_default();
                self.recorder.normal(owner, "SuccessfulCreate", format!("Created pod: {name}"));
                Ok(pod)
            }
            Err(error) => {
                if !retry::has_cause(&error, "NamespaceTerminating") {
                    let why = retry::message(&error);
                    self.recorder.warning(owner, "FailedCreate", format!("Error creating: {why}"));
                }
                Err(error.into())
            }
        }
    }

    /// Deletes a pod of `owner`; one that is gone is fine.
    ///
    /// # Errors
    /// The server's refusal, which is also an event.
    pub async fn delete<K: kube::Resource<DynamicType = ()>>(&self, pod: &Pod, owner: &K) -> Result<(), Fault> {
        let (namespace, name) = names(&pod.metadata);
        let preconditions = Preconditions { uid: pod.metadata.uid.clone(), resource_version: None };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        match self.context.within::<Pod>(namespace).delete(name, &params).await {
            Ok(_) => {
                self.recorder.normal(owner, "SuccessfulDelete", format!("Deleted pod: {name}"));
                Ok(())
            }
            // Gone, or another one has taken its name.
            Err(error) if retry::is_not_found(&error) || retry::is_conflict(&error) => Ok(()),
            Err(error) => {
                let why = retry::message(&error);
                self.recorder.warning(owner, "FailedDelete", format!("Error deleting: {why}"));
                Err(error.into())
            }
        }
    }
}

/// Namespace and name of an object.
pub fn names(meta: &ObjectMeta) -> (&str, &str) {
    (meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default())
}

/// Runs `count` attempts at once, in batches of 1, 2, 4…; a batch with a failure is the last. Returns what succeeded and
/// the failures.
pub async fn slow_start<T, Fut>(count: usize, attempt: impl Fn(usize) -> Fut) -> (Vec<T>, Vec<Fault>)
where
    Fut: Future<Output = Result<T, Fault>>,
{
    let (mut done, mut faults) = (Vec::new(), Vec::new());
    let (mut next, mut batch) = (0, 1);
    while next < count && faults.is_empty() {
        let end = count.min(next + batch);
        for result in futures::future::join_all((next..end).map(&attempt)).await {
            match result {
                Ok(made) => done.push(made),
                Err(fault) => faults.push(fault),
            }
        }
        (next, batch) = (end, batch * 2);
    }
    (done, faults)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn creation_starts_slowly_and_stops_at_the_first_bad_batch() {
        let (done, faults) = slow_start(100, async |n| match n {
            0..4 => Ok(n),
            _ => Err(Fault::Unusable("no".into())),
        })
        .await;
        assert_eq!(done, [0, 1, 2, 3]);
        assert_eq!(faults.len(), 3, "the batch of four that began with the fourth");
    }

    #[test]
    fn generated_names_keep_their_dash_where_it_is_legal() {
        assert_eq!(name_prefix("web"), "web-");
        assert_eq!(name_prefix("Web"), "Web");
    }
}

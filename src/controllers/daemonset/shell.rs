//! The shell of daemonset-controller.

use super::failures::Failures;
use super::plan::{self, Plan};
use crate::common::claim;
use crate::common::expect::Expectations;
use crate::common::history;
use crate::common::pods::{self, PodControl, names, slow_start};
use crate::common::wake;
use crate::context::{Context, Fault, Outcome};
use api::selector::LabelSelector;
use client::{Informer, Key, Queue, Recorder, owner, retry};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{ControllerRevision, DaemonSet, DaemonSetStatus};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, PostParams};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Pods made or deleted in one run at most.
const BURST: usize = 250;

pub(crate) async fn run(context: Context) {
    let recorder = context.recorder("daemonset-controller");
    let shell = Shell {
        sets: context.informer(),
        pods: context.informer(),
        nodes: context.informer(),
        revisions: context.informer(),
        control: PodControl::new(&context, &recorder),
        recorder,
        expect: Expectations::default(),
        failures: Failures::default(),
        context: context.clone(),
    };
    let queue = Queue::<Key>::default();
    shell.wake(&queue);
    shell.sets.synced().await;
    shell.pods.synced().await;
    shell.nodes.synced().await;
    shell.revisions.synced().await;
    context.resync_keys(&shell.sets, &queue);
    let workers = context.options.workers("concurrent-daemonset-syncs");
    context.serve(&queue, workers, |key| shell.reconcile(key)).await;
}

struct Shell {
    context: Context,
    sets: Informer<DaemonSet>,
    pods: Informer<Pod>,
    nodes: Informer<Node>,
    revisions: Informer<ControllerRevision>,
    control: PodControl,
    recorder: Recorder,
    expect: Expectations,
    failures: Failures,
}

impl Shell {
    fn wake(&self, queue: &Queue<Key>) {
        let wake = queue.clone();
        self.sets.on_change(move |change| wake.add(Key::of(&change.object().metadata)));
        let (wake, sets) = (queue.clone(), self.sets.clone());
        self.nodes.on_change(move |change| {
            let view = |node: &Node| {
                let spec = node.spec.as_ref();
                (node.metadata.labels.clone(), spec.and_then(|spec| spec.taints.clone()))
            };
            let same = matches!(change, client::Change::Updated(old, new) if view(old) == view(new));
            if !same {
                sets.keys().into_iter().for_each(|key| wake.add(key));
            }
        });
        wake::by_dependents(queue, &self.sets, &self.pods, selector);
        let wake = queue.clone();
        self.revisions.on_change(move |change| {
            if let client::Change::Removed(revision) = change
                && let Some(owner) = owner::controller_of(&revision.metadata).filter(|owner| owner.kind == "DaemonSet")
            {
                wake.add(Key::new(revision.metadata.namespace.clone().unwrap_or_default(), owner.name.clone()));
            }
        });
    }

    async fn reconcile(&self, key: Key) -> Outcome {
        let Some(set) = self.sets.get(&key) else {
            self.expect.forget(&key);
            return Ok(None);
        };
        let selector = selector(&set)?;
        if selector.is_empty() {
            let message = "This daemon set is selecting all pods. A non-empty selector is required.";
            self.recorder.warning(set.as_ref(), "SelectingAll", message);
            return Ok(None);
        }
        if set.metadata.deletion_timestamp.is_some() {
            return Ok(None);
        }
        let claim = claim::sort(self.revisions.in_namespace(&key.namespace), &set.metadata, &selector);
        let revisions = claim::carry_out(&self.context, claim, set.as_ref(), &[]).await?;
        let hash = self.current_revision(&set, &revisions).await?;
        let unsettled = self.expect.unseen(&key, &self.pods);
        let claim = claim::sort(self.pods.in_namespace(&key.namespace), &set.metadata, &selector);
        let mine = claim::carry_out(&self.context, claim, set.as_ref(), &[]).await?;
        let (nodes, now) = (self.nodes.list(), Timestamp::now());
        let (mut done, mut again) = (Ok(()), None);
        if unsettled.is_none() {
            let clock = Instant::now();
            let plan = plan::plan(&set, &hash, &nodes, &mine, &|node| self.failures.left(&set, node, clock), now);
            again = plan.again;
            done = self.carry_out(&key, &set, &hash, plan).await;
            if done.is_ok() {
                done = self.clean_up(&set, &revisions, &hash, &mine).await;
            }
        }
        let status = plan::status(&set, &hash, &nodes, &mine, unsettled.is_none(), now);
        self.write_status(&set, status).await?;
        done?;
        let min_ready = plan::spec(&set).min_ready_seconds.unwrap_or(0);
        let next: Option<Duration> = mine.iter().filter_map(|pod| pods::available_in(pod, min_ready, now)).min();
        Ok(next.into_iter().chain(unsettled).chain(again).min())
    }

    /// The hash of the revision of the current template, which is made if it is missing and is the newest.
    async fn current_revision(&self, set: &DaemonSet, known: &[Arc<ControllerRevision>]) -> Result<String, Fault> {
        let data = history::data(&plan::spec(set).template);
        let api = self.context.within::<ControllerRevision>(set.metadata.namespace.as_deref().unwrap_or_default());
        let next = history::next(known);
        if let Some(found) = history::find(known, &data) {
            if found.revision != next - 1 {
                let mut newest = ControllerRevision::clone(&found);
                newest.revision = next;
                let name = newest.metadata.name.clone().unwrap_or_default();
                api.replace(&name, &PostParams::default(), &newest).await?;
            }
            return Ok(history::hash_of(&found).to_owned());
        }
        let collisions = set.status.as_ref().and_then(|status| status.collision_count);
        let labels = plan::spec(set).template.metadata.and_then(|meta| meta.labels).unwrap_or_default();
        let revision = history::make(set, data.clone(), labels, next, collisions);
        match api.create(&PostParams::default(), &revision).await {
            Ok(made) => Ok(history::hash_of(&made).to_owned()),
            Err(error) if retry::is_already_exists(&error) => {
                let found = api.get(revision.metadata.name.as_deref().unwrap_or_default()).await?;
                if found.data.as_ref().is_some_and(|known| known.0 == data) {
                    return Ok(history::hash_of(&found).to_owned());
                }
                let mut status = set.status.clone().unwrap_or_default();
                status.collision_count = Some(collisions.unwrap_or(0) + 1);
                self.write_status(set, status).await?;
                Err(error.into())
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn carry_out(&self, key: &Key, set: &DaemonSet, hash: &str, plan: Plan) -> Result<(), Fault> {
        let Plan { create, mut delete, ended, again: _ } = plan;
        ended.iter().for_each(|pod| self.tell_of_the_end(set, pod));
        delete.extend(ended);
        let template = plan::template(set, hash);
        let reference = owner::controller_ref(set);
        let (made, mut faults) = slow_start(create.len().min(BURST), |at| {
            let mut pod = pods::from_template(&template, &reference);
            plan::pin(pod.spec.get_or_insert_default(), &create[at]);
            async move { self.control.create(&key.namespace, &pod, set).await }
        })
        .await;
        made.iter().for_each(|pod| self.expect.made(key, &pod.metadata));
        let going =
            |fault: &Fault| matches!(fault, Fault::Api(error) if retry::has_cause(error, "NamespaceTerminating"));
        faults.retain(|fault| !going(fault));
        let deletions = delete.iter().take(BURST).map(|pod| async {
            self.control.delete(pod, set).await?;
            self.expect.deleted(key, &pod.metadata);
            Ok(())
        });
        faults.extend(futures::future::join_all(deletions).await.into_iter().filter_map(Result::err));
        Fault::all(faults)
    }

    fn tell_of_the_end(&self, set: &DaemonSet, pod: &Pod) {
        let (name, node) = (Key::of(&pod.metadata), plan::target(pod).unwrap_or_default());
        if pods::phase(pod) == "Failed" {
            self.failures.note(set, &node, Instant::now());
            let message = format!("Found failed daemon pod {name} on node {node}, will try to kill it");
            self.recorder.warning(set, "FailedDaemonPod", message);
        } else {
            let message = format!("Found succeeded daemon pod {name} on node {node}, will try to delete it");
            self.recorder.normal(set, "SucceededDaemonPod", message);
        }
    }

    async fn clean_up(
        &self, set: &DaemonSet, known: &[Arc<ControllerRevision>], hash: &str, pods: &[Arc<Pod>],
    ) -> Result<(), Fault> {
        let limit = usize::try_from(plan::spec(set).revision_history_limit.unwrap_or(10)).unwrap_or(0);
        let in_use = |hash: &str| pods.iter().any(|pod| plan::is_of(pod, hash));
        for revision in history::surplus(known, hash, in_use, limit) {
            let (namespace, name) = names(&revision.metadata);
            let api = self.context.within::<ControllerRevision>(namespace);
            retry::ignore_not_found(api.delete(name, &DeleteParams::default()).await)?;
        }
        Ok(())
    }

    async fn write_status(&self, set: &DaemonSet, status: DaemonSetStatus) -> Result<(), Fault> {
        if set.status.as_ref() == Some(&status) {
            return Ok(());
        }
        let (namespace, name) = names(&set.metadata);
        let api = self.context.within::<DaemonSet>(namespace);
        let updated = DaemonSet { status: Some(status.clone()), ..set.clone() };
        let written = match api.replace_status(name, &PostParams::default(), &updated).await {
            Err(error) if retry::is_conflict(&error) => {
                let fresh = api.get(name).await?;
                let updated = DaemonSet { status: Some(status), ..fresh };
                api.replace_status(name, &PostParams::default(), &updated).await
            }
            other => other,
        };
        retry::ignore_not_found(written)?;
        Ok(())
    }
}

fn selector(set: &DaemonSet) -> Result<LabelSelector, Fault> {
    Ok(LabelSelector::from_typed(set.spec.as_ref().map(|spec| &spec.selector))?)
}

//! The shell of both kinds: gathers a set and its pods, and carries the plan out.

use super::plan::{self, Command, Condition, Set, Status};
use crate::common::claim;
use crate::common::expect::Expectations;
use crate::common::pods::{self, PodControl, names, slow_start};
use crate::common::wake;
use crate::context::{Context, Fault, Outcome};
use api::selector::LabelSelector;
use client::informer::Object;
use client::{Informer, Key, Queue, owner, retry};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{ReplicaSet, ReplicaSetCondition, ReplicaSetStatus};
use k8s_openapi::api::core::v1::{
    Pod, ReplicationController, ReplicationControllerCondition, ReplicationControllerStatus,
};
use kube::api::PostParams;
use kube::core::NamespaceScope;
use std::sync::Arc;

/// A kind that keeps a number of pods.
pub(super) trait Kind:
    Object + kube::Resource<DynamicType = (), Scope: NamespaceScope> + serde::Serialize
{
    /// The name under which it records events.
    const COMPONENT: &'static str;
    /// The flag with the number of its workers.
    const WORKERS: &'static str;
    /// The common view.
    fn set(&self) -> Result<Set, Fault>;
    /// A copy with another status.
    fn with_status(&self, status: Status) -> Self;
}

impl Kind for ReplicaSet {
    const COMPONENT: &'static str = "replicaset-controller";
    const WORKERS: &'static str = "concurrent-replicaset-syncs";

    fn set(&self) -> Result<Set, Fault> {
        let spec = self.spec.clone().unwrap_or_default();
        let status = self.status.clone().unwrap_or_default();
        let conditions = status.conditions.into_iter().flatten().map(|c| Condition {
            kind: c.type_,
            status: c.status,
            reason: c.reason,
            message: c.message,
            since: c.last_transition_time,
        });
        Ok(Set {
            meta: self.metadata.clone(),
            replicas: spec.replicas.unwrap_or(1),
            selector: LabelSelector::from_typed(Some(&spec.selector))?,
            template: spec.template.unwrap_or_default(),
            min_ready: spec.min_ready_seconds.unwrap_or(0),
            status: Status {
                replicas: status.replicas,
                fully_labeled: status.fully_labeled_replicas.unwrap_or(0),
                ready: status.ready_replicas.unwrap_or(0),
                available: status.available_replicas.unwrap_or(0),
                terminating: Some(status.terminating_replicas.unwrap_or(-1)),
                observed_generation: status.observed_generation,
                conditions: conditions.collect(),
            },
        })
    }

    fn with_status(&self, status: Status) -> Self {
        let conditions = status.conditions.into_iter().map(|c| ReplicaSetCondition {
            type_: c.kind,
            status: c.status,
            reason: c.reason,
            message: c.message,
            last_transition_time: c.since,
        });
        let status = ReplicaSetStatus {
            replicas: status.replicas,
            fully_labeled_replicas: Some(status.fully_labeled),
            ready_replicas: Some(status.ready),
            available_replicas: Some(status.available),
            terminating_replicas: status.terminating,
            observed_generation: status.observed_generation,
            conditions: Some(conditions.collect()),
        };
        Self { status: Some(status), ..self.clone() }
    }
}

impl Kind for ReplicationController {
    const COMPONENT: &'static str = "replication-controller";
    const WORKERS: &'static str = "concurrent-rc-syncs";

    fn set(&self) -> Result<Set, Fault> {
        let spec = self.spec.clone().unwrap_or_default();
        let status = self.status.clone().unwrap_or_default();
        let template = spec.template.unwrap_or_default();
        let labels = template.metadata.as_ref().and_then(|meta| meta.labels.clone()).unwrap_or_default();
        let selector = spec.selector.filter(|selector| !selector.is_empty()).unwrap_or(labels);
        let conditions = status.conditions.into_iter().flatten().map(|c| Condition {
            kind: c.type_,
            status: c.status,
            reason: c.reason,
            message: c.message,
            since: c.last_transition_time,
        });
        Ok(Set {
            meta: self.metadata.clone(),
            replicas: spec.replicas.unwrap_or(1),
            selector: LabelSelector::from_pairs(selector.iter().map(|(k, v)| (k.as_str(), v.as_str()))),
            template,
            min_ready: spec.min_ready_seconds.unwrap_or(0),
            status: Status {
                replicas: status.replicas,
                fully_labeled: status.fully_labeled_replicas.unwrap_or(0),
                ready: status.ready_replicas.unwrap_or(0),
                available: status.available_replicas.unwrap_or(0),
                terminating: None,
                observed_generation: status.observed_generation,
                conditions: conditions.collect(),
            },
        })
    }

    fn with_status(&self, status: Status) -> Self {
        let conditions = status.conditions.into_iter().map(|c| ReplicationControllerCondition {
            type_: c.kind,
            status: c.status,
            reason: c.reason,
            message: c.message,
            last_transition_time: c.since,
        });
        let status = ReplicationControllerStatus {
            replicas: status.replicas,
            fully_labeled_replicas: Some(status.fully_labeled),
            ready_replicas: Some(status.ready),
            available_replicas: Some(status.available),
            observed_generation: status.observed_generation,
            conditions: Some(conditions.collect()),
        };
        Self { status: Some(status), ..self.clone() }
    }
}

pub(crate) async fn run(context: Context) {
    drive::<ReplicaSet>(context).await;
}

pub(crate) async fn run_replication_controllers(context: Context) {
    drive::<ReplicationController>(context).await;
}

async fn drive<K: Kind>(context: Context) {
    let sets = context.informer::<K>();
    let pods = context.informer::<Pod>();
    sets.index_controllers();
    pods.index_controllers();
    let queue = Queue::<Key>::default();
    let wake = queue.clone();
    sets.on_change(move |change| wake.add(Key::of(change.object().meta())));
    wake::by_dependents(&queue, &sets, &pods, |set: &K| Ok(set.set()?.selector));
    sets.synced().await;
    pods.synced().await;
    context.resync_keys(&sets, &queue);
    let recorder = context.recorder(K::COMPONENT);
    let shell = Shell {
        control: PodControl::new(&context, &recorder),
        context: context.clone(),
        sets,
        pods,
        expect: Arc::default(),
    };
    context.serve(&queue, context.options.workers(K::WORKERS), |key| shell.reconcile(key)).await;
}

struct Shell<K> {
    context: Context,
    control: PodControl,
    sets: Informer<K>,
    pods: Informer<Pod>,
    expect: Arc<Expectations>,
}

impl<K: Kind> Shell<K> {
    async fn reconcile(&self, key: Key) -> Outcome {
        let Some(object) = self.sets.get(&key) else {
            self.expect.forget(&key);
            return Ok(None);
        };
        let set = object.set()?;
        let unsettled = self.expect.unseen(&key, &self.pods);
        let claim = claim::sort(self.pods.in_namespace(&key.namespace), &set.meta, &set.selector);
        let mine = claim::carry_out(&self.context, claim, object.as_ref(), &[]).await?;
        let now = Timestamp::now();
        let mut faults = Vec::new();
        if unsettled.is_none() && set.meta.deletion_timestamp.is_none() {
            let active: Vec<_> = mine.iter().filter(|pod| pods::is_active(pod)).cloned().collect();
            let related = self.related(&object, &mine);
            faults = match plan::scale(&set, &active, &related, now) {
                None => Vec::new(),
                Some(Command::Create(count)) => self.create(&key, &set, &object, count).await,
                Some(Command::Delete(victims)) => self.delete(&key, &object, victims).await,
            };
        }
        let failure = faults.first().map(ToString::to_string);
        let status = plan::status(&set, &mine, failure.as_deref(), now);
        self.write_status(&object, &set, status).await?;
        Fault::all(faults)?;
        Ok(plan::next_available(&set, &mine, now).into_iter().chain(unsettled).min())
    }

    async fn create(&self, key: &Key, set: &Set, object: &K, count: usize) -> Vec<Fault> {
        let pod = pods::from_template(&set.template, &owner::controller_ref(object));
        let (made, faults) = slow_start(count, |_| self.control.create(&key.namespace, &pod, object)).await;
        made.iter().for_each(|pod| self.expect.made(key, &pod.metadata));
        // In a namespace that is going nothing can be made; trying again is of no use.
        let going =
            |fault: &Fault| matches!(fault, Fault::Api(error) if retry::has_cause(error, "NamespaceTerminating"));
        if faults.iter().any(going) { Vec::new() } else { faults }
    }

    async fn delete(&self, key: &Key, object: &K, victims: Vec<Arc<Pod>>) -> Vec<Fault> {
        let deletions = victims.iter().map(|pod| async {
            self.control.delete(pod, object).await?;
            self.expect.deleted(key, &pod.metadata);
            Ok(())
        });
        futures::future::join_all(deletions).await.into_iter().filter_map(Result::err).collect()
    }

    /// The pods of all sets that share this one's controller, as a Deployment's sets do.
    fn related(&self, object: &K, mine: &[Arc<Pod>]) -> Vec<Arc<Pod>> {
        let Some(owner) = owner::controller_of(object.meta()) else { return mine.to_vec() };
        let siblings = self.sets.controlled_by(&owner.uid);
        siblings.iter().flat_map(|set| self.pods.controlled_by(set.meta().uid.as_deref().unwrap_or_default())).collect()
    }

    async fn write_status(&self, object: &K, set: &Set, status: Status) -> Result<(), Fault> {
        if status == set.status {
            return Ok(());
        }
        let (namespace, name) = names(object.meta());
        let api = self.context.within::<K>(namespace);
        let updated = object.with_status(status.clone());
        let written = match api.replace_status(name, &PostParams::default(), &updated).await {
            Err(error) if retry::is_conflict(&error) => {
                let fresh = api.get(name).await?;
                api.replace_status(name, &PostParams::default(), &fresh.with_status(status)).await
            }
            other => other,
        };
        retry::ignore_not_found(written)?;
        Ok(())
    }
}

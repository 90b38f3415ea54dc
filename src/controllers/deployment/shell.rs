//! The shell: gathers a Deployment and its sets, and carries the plan out.

use super::plan::{self, Command};
use super::sets::{is_new, name, replicas};
use crate::common::claim;
use crate::common::pods::{self, names};
use crate::common::wake;
use crate::context::{Context, Fault, Outcome};
use api::selector::LabelSelector;
use client::{Informer, Key, Queue, Recorder, owner, retry};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, PostParams};
use std::sync::Arc;

pub(crate) async fn run(context: Context) {
    let shell = Arc::new(Shell {
        deployments: context.informer(),
        sets: context.informer(),
        pods: context.informer(),
        recorder: context.recorder("deployment-controller"),
        context: context.clone(),
    });
    shell.sets.index_controllers();
    shell.pods.index_controllers();
    let queue = Queue::<Key>::default();
    let wake = queue.clone();
    shell.deployments.on_change(move |change| wake.add(Key::of(&change.object().metadata)));
    wake::by_dependents(&queue, &shell.deployments, &shell.sets, selector);
    wake_by_pods(&queue, &shell);
    shell.deployments.synced().await;
    shell.sets.synced().await;
    shell.pods.synced().await;
    context.resync_keys(&shell.deployments, &queue);
    let workers = context.options.workers("concurrent-deployment-syncs");
    context.serve(&queue, workers, |key| shell.reconcile(key)).await;
}

/// The last old pod's end lets a recreation go on.
fn wake_by_pods(queue: &Queue<Key>, shell: &Shell) {
    let (queue, sets) = (queue.clone(), shell.sets.clone());
    shell.pods.on_change(move |change| {
        let client::Change::Removed(pod) = change else { return };
        let namespace = pod.metadata.namespace.clone().unwrap_or_default();
        let set = owner::controller_of(&pod.metadata).and_then(|owner| sets.find(&namespace, &owner.name));
        let deployment = set.and_then(|set| owner::controller_of(&set.metadata).cloned());
        if let Some(owner) = deployment.filter(|owner| owner.kind == "Deployment") {
            queue.add(Key::new(namespace, owner.name));
        }
    });
}

fn selector(deployment: &Deployment) -> Result<LabelSelector, Fault> {
    Ok(LabelSelector::from_typed(deployment.spec.as_ref().map(|spec| &spec.selector))?)
}

struct Shell {
    context: Context,
    recorder: Recorder,
    deployments: Informer<Deployment>,
    sets: Informer<ReplicaSet>,
    pods: Informer<Pod>,
}

impl Shell {
    async fn reconcile(&self, key: Key) -> Outcome {
        let Some(deployment) = self.deployments.get(&key) else { return Ok(None) };
        let selector = selector(&deployment)?;
        if selector.is_empty() {
            let message = "This deployment is selecting all pods. A non-empty selector is required.";
            self.recorder.warning(deployment.as_ref(), "SelectingAll", message);
            return Ok(None);
        }
        let claim = claim::sort(self.sets.in_namespace(&key.namespace), &deployment.metadata, &selector);
        let sets = claim::carry_out(&self.context, claim, deployment.as_ref(), &[]).await?;
        let pods_left = self.pods_left(&deployment, &sets);
        let now = Timestamp::now();
        let plan = plan::plan(&deployment, &sets, pods_left, now);
        for command in &plan.commands {
            match command {
                Command::Create(set) => {
                    if !self.create(&deployment, &plan.deployment, set, now).await? {
                        return Ok(None);
                    }
                }
                Command::Replace(set, scaled) => self.replace(&deployment, set, *scaled).await?,
                Command::Delete(set) => {
                    let (namespace, name) = names(&set.metadata);
                    let api = self.context.within::<ReplicaSet>(namespace);
                    retry::ignore_not_found(api.delete(name, &DeleteParams::default()).await)?;
                }
            }
        }
        self.write(&deployment, &plan.deployment).await?;
        Ok(plan.again)
    }

    /// Whether pods of other sets than the new one still run.
    fn pods_left(&self, deployment: &Deployment, sets: &[Arc<ReplicaSet>]) -> bool {
        let old = sets.iter().filter(|set| !is_new(deployment, set));
        let mut pods = old.flat_map(|set| self.pods.controlled_by(set.metadata.uid.as_deref().unwrap_or_default()));
        pods.any(|pod| !pods::is_terminal(&pod))
    }

    /// Makes the new set. Whether the step may go on.
    async fn create(
        &self, deployment: &Deployment, planned: &Deployment, set: &ReplicaSet, now: Timestamp,
    ) -> Result<bool, Fault> {
        let (namespace, name) = names(&set.metadata);
        let api = self.context.within::<ReplicaSet>(namespace);
        match api.create(&PostParams::default(), set).await {
            Ok(_) => {
                if replicas(set) > 0 {
                    let message = format!("Scaled up replica set {name} from 0 to {}", replicas(set));
                    self.recorder.normal(deployment, "ScalingReplicaSet", message);
                }
                Ok(true)
            }
            Err(error) if retry::is_already_exists(&error) => {
                let found = api.get(name).await?;
                let uid = deployment.metadata.uid.as_deref().unwrap_or_default();
                if owner::is_controlled_by(&found.metadata, uid) && is_new(deployment, &found) {
                    return Ok(true);
                }
                let mut colliding = deployment.clone();
                let count = &mut colliding.status.get_or_insert_default().collision_count;
                *count = Some(count.unwrap_or(0) + 1);
                self.write(deployment, &colliding).await?;
                Err(error.into())
            }
            Err(error) if retry::has_cause(&error, "NamespaceTerminating") => Ok(false),
            Err(error) => {
                let why = retry::message(&error);
                let mut failed = planned.clone();
                failed.status.clone_from(&deployment.status);
                let (failed, message) = plan::creation_failed(&failed, set, &why, now);
                self.recorder.warning(deployment, "FailedCreateReplicaSet", message);
                self.write(deployment, &failed).await?;
                Err(error.into())
            }
        }
    }

    async fn replace(
        &self, deployment: &Deployment, set: &ReplicaSet, scaled: Option<(i32, i32)>,
    ) -> Result<(), Fault> {
        let (namespace, own) = names(&set.metadata);
        self.context.within::<ReplicaSet>(namespace).replace(own, &PostParams::default(), set).await?;
        if let Some((from, to)) = scaled {
            let direction = if to > from { "up" } else { "down" };
            let message = format!("Scaled {direction} replica set {} from {from} to {to}", name(&set.metadata));
            self.recorder.normal(deployment, "ScalingReplicaSet", message);
        }
        Ok(())
    }

    /// Writes status and revision: the status subresource takes annotations along.
    async fn write(&self, old: &Deployment, new: &Deployment) -> Result<(), Fault> {
        if old == new {
            return Ok(());
        }
        let (namespace, name) = names(&new.metadata);
        let written =
            self.context.within::<Deployment>(namespace).replace_status(name, &PostParams::default(), new).await;
        retry::ignore_not_found(written)?;
        Ok(())
    }
}

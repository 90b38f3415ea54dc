//! The shell of node-lifecycle-controller.

use super::monitor::{Command, Monitor, Settings};
use super::taints::{self, Swap, condition};
use crate::common::pods;
use crate::context::{Context, Fault, Outcome};
use client::events::EventKind;
use client::{Informer, Key, Queue, Recorder, Selection, retry};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, ObjectReference, Pod};
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

pub(crate) async fn run(context: Context) {
    let flags = &context.options.flags;
    let settings = Settings {
        grace: flags.duration("node-monitor-grace-period"),
        startup_grace: flags.duration("node-startup-grace-period"),
        rate: flags.float("node-eviction-rate"),
        secondary_rate: flags.float("secondary-node-eviction-rate"),
        large_cluster: usize::try_from(flags.int("large-cluster-size-threshold")).unwrap_or(0),
        unhealthy_zone: flags.float("unhealthy-zone-threshold"),
    };
    let period = flags.duration("node-monitor-period").max(Duration::from_millis(100));
    let shell = Shell {
        nodes: context.informer(),
        pods: context.informer(),
        leases: context.informers.select_in("kube-node-lease", &Selection::default()),
        recorder: context.recorder("node-controller"),
        changed: Arc::new(Notify::new()),
        context: context.clone(),
    };
    shell.pods.index_nodes();
    let nodes = Queue::<Key>::default();
    let pods = Queue::<Key>::default();
    shell.wake(&nodes, &pods);
    shell.nodes.synced().await;
    shell.pods.synced().await;
    shell.leases.synced().await;
    futures::join!(
        context.serve(&nodes, 8, |key| shell.label_and_taint(key)),
        context.serve(&pods, 8, |key| shell.look_at_pod(key)),
        shell.monitor(Monitor::new(settings), period),
    );
}

struct Shell {
    context: Context,
    nodes: Informer<Node>,
    pods: Informer<Pod>,
    leases: Informer<Lease>,
    recorder: Recorder,
    /// A node's readiness has changed.
    changed: Arc<Notify>,
}

impl Shell {
    fn wake(&self, nodes: &Queue<Key>, pods: &Queue<Key>) {
        let (wake, changed) = (nodes.clone(), self.changed.clone());
        self.nodes.on_change(move |change| {
            wake.add(Key::of(&change.object().metadata));
            let readiness = |node: &Node| condition(node, "Ready").map(|ready| ready.status.clone());
            let same = matches!(change, client::Change::Updated(old, new) if readiness(old) == readiness(new));
            if !same {
                changed.notify_one();
            }
        });
        let wake = pods.clone();
        self.pods.on_change(move |change| {
            let bound = match change {
                client::Change::Added(new) => !pods::node(new).is_empty(),
                client::Change::Updated(old, new) => pods::node(old) != pods::node(new),
                client::Change::Removed(_) => false,
            };
            if bound {
                wake.add(Key::of(&change.object().metadata));
            }
        });
    }

    /// Looks at all nodes each period, when a readiness changes, and when an eviction is due.
    async fn monitor(&self, mut monitor: Monitor, period: Duration) {
        let stop = &self.context.stop;
        loop {
            let now = Instant::now();
            let leases = |name: &str| self.leases.find("kube-node-lease", name);
            let commands = monitor.look(&self.nodes.list(), leases, now, client::now());
            self.carry_out_all(&mut monitor, commands).await;
            let pause = monitor.next_eviction(Instant::now()).map_or(period, |next| next.min(period));
            let pause = pause.max(Duration::from_millis(100));
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
                () = self.changed.notified() => {}
            }
        }
    }

    /// Where a node's state could not be written, nothing more is done about it: the next look starts from what is there.
    async fn carry_out_all(&self, monitor: &mut Monitor, commands: Vec<Command>) {
        let mut failed = HashSet::new();
        for command in commands {
            let node = command.node().to_owned();
            if failed.contains(&node) {
                continue;
            }
            let marks = matches!(command, Command::PodsNotReady(..));
            if let Err(fault) = self.carry_out(command).await {
                tracing::warn!(node, %fault, "couldn't bring a node up to its state, will try again");
                if marks {
                    monitor.mark_again(&node);
                }
                failed.insert(node);
            }
        }
    }

    async fn carry_out(&self, command: Command) -> Result<(), Fault> {
        match command {
            Command::Tell(name, uid, reason, message) => {
                self.recorder.record(&reference(&name, uid), EventKind::Normal, reason, message);
                Ok(())
            }
            Command::Status(node) => {
                let name = node.metadata.name.as_deref().unwrap_or_default();
                let written = self.context.all::<Node>().replace_status(name, &PostParams::default(), &node).await;
                retry::ignore_not_found(written)?;
                Ok(())
            }
            Command::Taint(node, swap) => taints::write(&self.context, &node, &swap).await,
            Command::PodsNotReady(name, news) => {
                if let Some(node) = self.nodes.find("", &name).filter(|_| news) {
                    let message = format!("Node {name} status is now: NodeNotReady");
                    let about = reference(&name, node.metadata.uid.clone());
                    self.recorder.record(&about, EventKind::Normal, "NodeNotReady", message);
                }
                let pods = self.pods.on_node(&name);
                let marks = pods.iter().map(|pod| self.mark_not_ready(pod));
                let faults = futures::future::join_all(marks).await.into_iter().filter_map(Result::err).collect();
                Fault::all(faults)
            }
        }
    }

    async fn mark_not_ready(&self, pod: &Pod) -> Result<(), Fault> {
        if !pods::is_ready(pod) {
            return Ok(());
        }
        let (namespace, name) = pods::names(&pod.metadata);
        let condition = json!({"type": "Ready", "status": "False", "lastTransitionTime": client::now()});
        let patch = json!({"metadata": {"uid": pod.metadata.uid}, "status": {"conditions": [condition]}});
        let api = self.context.within::<Pod>(namespace);
        let done = api.patch_status(name, &PatchParams::default(), &Patch::Strategic(patch)).await;
        match done {
            Ok(_) => self.recorder.warning(pod, "NodeNotReady", "Node is not ready"),
            Err(error) if retry::is_not_found(&error) || retry::is_conflict(&error) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    async fn label_and_taint(&self, key: Key) -> Outcome {
        let Some(node) = self.nodes.get(&key) else { return Ok(None) };
        taints::write(&self.context, &node, &Swap::of_conditions(&node)).await?;
        let labels = missing_labels(&node);
        if !labels.is_empty() {
            let labels: serde_json::Map<_, _> =
                labels.into_iter().map(|(name, value)| (name.to_owned(), json!(value))).collect();
            let patch = json!({"metadata": {"labels": labels}});
            let api = self.context.all::<Node>();
            retry::ignore_not_found(api.patch(&key.name, &PatchParams::default(), &Patch::Merge(patch)).await)?;
        }
        Ok(None)
    }

    /// A pod that is bound to a node which is not ready is not ready either.
    async fn look_at_pod(&self, key: Key) -> Outcome {
        let Some(pod) = self.pods.get(&key) else { return Ok(None) };
        let Some(node) = self.nodes.find("", pods::node(&pod)) else { return Ok(None) };
        let ready = condition(&node, "Ready");
        if ready.is_some_and(|ready| ready.status != "True") {
            self.mark_not_ready(&pod).await?;
        }
        Ok(None)
    }
}

/// The beta labels that must follow the stable ones.
fn missing_labels(node: &Node) -> Vec<(&'static str, String)> {
    const PAIRS: [(&str, &str); 2] =
        [("kubernetes.io/os", "beta.kubernetes.io/os"), ("kubernetes.io/arch", "beta.kubernetes.io/arch")];
    let labels = node.metadata.labels.as_ref();
    let get = |key: &str| labels.and_then(|labels| labels.get(key));
    let lacking = PAIRS.into_iter().filter(|(stable, beta)| get(stable).is_some() && get(stable) != get(beta));
    lacking.filter_map(|(stable, beta)| Some((beta, get(stable)?.clone()))).collect()
}

fn reference(name: &str, uid: Option<String>) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".into()),
        kind: Some("Node".into()),
        name: Some(name.to_owned()),
        uid,
        ..Default::default()
    }
}

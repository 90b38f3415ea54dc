//! taint-eviction-controller: deletes pods from nodes whose NoExecute taints they don't tolerate, or no longer.

use super::taints::{self, NO_EXECUTE, tolerates};
use crate::common::pods;
use crate::context::{Context, Fault, Outcome};
use client::{Informer, Key, Queue, Recorder, retry};
use k8s_openapi::api::core::v1::{Node, Pod, Taint, Toleration};
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use parking_lot::Mutex;
use serde_json::json;
use std::collections::HashMap;
use std::time::Duration;
use tokio::time::Instant;

pub(crate) async fn run(context: Context) {
    let shell = Shell {
        nodes: context.informer(),
        pods: context.informer(),
        recorder: context.recorder("taint-eviction-controller"),
        scheduled: Mutex::default(),
        context: context.clone(),
    };
    shell.pods.index_nodes();
    let queue = Queue::<Key>::default();
    let (wake, pods) = (queue.clone(), shell.pods.clone());
    shell.nodes.on_change(move |change| {
        let same = matches!(change, client::Change::Updated(old, new) if evicting(old) == evicting(new));
        if !same {
            let on_node = pods.on_node(change.object().metadata.name.as_deref().unwrap_or_default());
            on_node.iter().for_each(|pod| wake.add(Key::of(&pod.metadata)));
        }
    });
    let wake = queue.clone();
    shell.pods.on_change(move |change| {
        let view = |pod: &Pod| pod.spec.as_ref().map(|spec| (spec.node_name.clone(), spec.tolerations.clone()));
        let same = matches!(change, client::Change::Updated(old, new) if view(old) == view(new));
        if !same {
            wake.add(Key::of(&change.object().metadata));
        }
    });
    shell.nodes.synced().await;
    shell.pods.synced().await;
    context.serve(&queue, 8, |key| shell.reconcile(key)).await;
}

fn evicting(node: &Node) -> Vec<&Taint> {
    taints::list(node).iter().filter(|taint| taint.effect == NO_EXECUTE).collect()
}

/// What a node's taints mean for a pod.
#[derive(Debug, PartialEq)]
enum Verdict {
    Stay,
    /// It must go after so long.
    Evict(Duration),
}

fn judge(taints: &[&Taint], tolerations: &[Toleration]) -> Verdict {
    let mut shortest: Option<Duration> = None;
    for taint in taints {
        let mut matching = tolerations.iter().filter(|toleration| tolerates(toleration, taint)).peekable();
        if matching.peek().is_none() {
            return Verdict::Evict(Duration::ZERO);
        }
        for seconds in matching.filter_map(|toleration| toleration.toleration_seconds) {
            let time = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
            shortest = Some(shortest.map_or(time, |shortest| shortest.min(time)));
        }
    }
    shortest.map_or(Verdict::Stay, Verdict::Evict)
}

struct Shell {
    context: Context,
    nodes: Informer<Node>,
    pods: Informer<Pod>,
    recorder: Recorder,
    /// Since when pods are to go: UID and time.
    scheduled: Mutex<HashMap<Key, (Option<String>, Instant)>>,
}

impl Shell {
    async fn reconcile(&self, key: Key) -> Outcome {
        let pod = self.pods.get(&key).filter(|pod| !pods::is_terminating(pod));
        let node = pod.as_ref().and_then(|pod| self.nodes.find("", pods::node(pod)));
        let (Some(pod), Some(node)) = (pod, node) else {
            self.scheduled.lock().remove(&key);
            return Ok(None);
        };
        let tolerations = pod.spec.as_ref().and_then(|spec| spec.tolerations.as_deref()).unwrap_or_default();
        let Verdict::Evict(after) = judge(&evicting(&node), tolerations) else {
            if self.scheduled.lock().remove(&key).is_some() {
                let message = format!("Cancelling deletion of Pod {key}");
                self.recorder.normal(pod.as_ref(), "TaintManagerEviction", message);
            }
            return Ok(None);
        };
        let now = Instant::now();
        let since = {
            let mut scheduled = self.scheduled.lock();
            let entry = scheduled.entry(key.clone()).or_insert_with(|| (pod.metadata.uid.clone(), now));
            if entry.0 != pod.metadata.uid {
                *entry = (pod.metadata.uid.clone(), now);
            }
            entry.1
        };
        let due = since + after;
        if due > now {
            return Ok(Some(due - now));
        }
        self.recorder.normal(pod.as_ref(), "TaintManagerEviction", format!("Marking for deletion Pod {key}"));
        self.evict(&pod).await?;
        self.scheduled.lock().remove(&key);
        Ok(None)
    }

    async fn evict(&self, pod: &Pod) -> Result<(), Fault> {
        let condition = ("DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint");
        delete_disrupted(&self.context, pod, condition, false, None).await
    }
}

/// Notes on a pod why it is disrupted, as failed if so asked, and deletes it.
pub(crate) async fn delete_disrupted(
    context: &Context, pod: &Pod, (reason, message): (&str, &str), failed: bool, grace: Option<u32>,
) -> Result<(), Fault> {
    let (namespace, name) = pods::names(&pod.metadata);
    let api = context.within::<Pod>(namespace);
    if !reason.is_empty() || failed {
        let mut status = json!({});
        if !reason.is_empty() {
            status["conditions"] = json!([{
                "type": "DisruptionTarget",
                "status": "True",
                "reason": reason,
                "message": message,
                "lastTransitionTime": client::now(),
                "observedGeneration": pod.metadata.generation,
            }]);
        }
        if failed {
            status["phase"] = json!("Failed");
            status["observedGeneration"] = json!(pod.metadata.generation);
        }
        let patch = json!({"metadata": {"uid": pod.metadata.uid}, "status": status});
        let done = api.patch_status(name, &PatchParams::default(), &Patch::Strategic(patch)).await;
        match done {
            Err(error) if retry::is_not_found(&error) || retry::is_conflict(&error) => return Ok(()),
            other => drop(other?),
        }
    }
    let preconditions = Preconditions { uid: pod.metadata.uid.clone(), resource_version: None };
    let params =
        DeleteParams { grace_period_seconds: grace, preconditions: Some(preconditions), ..DeleteParams::default() };
    match api.delete(name, &params).await {
        Err(error) if !retry::is_not_found(&error) && !retry::is_conflict(&error) => Err(error.into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn verdict(taints: Value, tolerations: Value) -> Verdict {
        let taints: Vec<Taint> = serde_json::from_value(taints).unwrap();
        let tolerations: Vec<Toleration> = serde_json::from_value(tolerations).unwrap();
        judge(&taints.iter().collect::<Vec<_>>(), &tolerations)
    }

    #[test]
    fn pods_go_at_once_later_or_never() {
        let taint = json!([{"key": "k", "effect": "NoExecute"}]);
        assert_eq!(verdict(taint.clone(), json!([])), Verdict::Evict(Duration::ZERO));
        assert_eq!(verdict(json!([]), json!([])), Verdict::Stay);
        assert_eq!(verdict(taint.clone(), json!([{"operator": "Exists"}])), Verdict::Stay);
        let five = json!([{"key": "k", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}]);
        assert_eq!(verdict(taint.clone(), five), Verdict::Evict(Duration::from_secs(5)));
        let negative = json!([{"key": "k", "operator": "Exists", "tolerationSeconds": -1}]);
        assert_eq!(verdict(taint, negative), Verdict::Evict(Duration::ZERO));
    }

    #[test]
    fn the_shortest_toleration_of_all_taints_counts() {
        let taints = json!([{"key": "a", "effect": "NoExecute"}, {"key": "b", "value": "x", "effect": "NoExecute"}]);
        let tolerations = json!([{"key": "a", "operator": "Exists", "tolerationSeconds": 30},
            {"key": "b", "value": "x", "tolerationSeconds": 10}]);
        assert_eq!(verdict(taints.clone(), tolerations), Verdict::Evict(Duration::from_secs(10)));
        let wrong = json!([{"key": "a", "operator": "Exists"}, {"key": "b", "value": "y"}]);
        assert_eq!(verdict(taints, wrong), Verdict::Evict(Duration::ZERO));
    }
}

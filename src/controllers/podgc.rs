//! pod-garbage-collector-controller: deletes pods that nobody else will: those of nodes that are gone, those that were
//! deleted before they had a node, those of nodes taken out of service, and old ended ones beyond a threshold.

use crate::common::pods;
use crate::context::Context;
use crate::nodes::delete_disrupted;
use client::Informer;
use k8s_openapi::api::core::v1::{Node, Pod};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

const PERIOD: Duration = Duration::from_secs(20);
/// A node must be missing for so long before its pods go.
const QUARANTINE: Duration = Duration::from_secs(40);
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

pub(crate) async fn run(context: Context) {
    let (pods, nodes) = (context.informer::<Pod>(), context.informer::<Node>());
    pods.synced().await;
    nodes.synced().await;
    let threshold = usize::try_from(context.options.flags.int("terminated-pod-gc-threshold")).unwrap_or(0);
    let mut missing = HashMap::new();
    let mut ticks = Context::ticks(PERIOD);
    while context.next(&mut ticks).await {
        pass(&context, &pods, &nodes, threshold, &mut missing).await;
    }
}

/// Why a pod is collected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    OutOfService,
    Ended,
    Orphaned,
    NeverBound,
}

/// What to collect, when these nodes are gone for good.
fn plan(pods: &[Arc<Pod>], nodes: &[Arc<Node>], threshold: usize, gone: &BTreeSet<String>) -> Vec<(Arc<Pod>, Why)> {
    let by_name: HashMap<&str, &Node> =
        nodes.iter().map(|node| (node.metadata.name.as_deref().unwrap_or_default(), node.as_ref())).collect();
    let mut plan = Vec::new();
    for pod in pods {
        let node = pods::node(pod);
        let why = if pods::is_terminating(pod) && by_name.get(node).is_some_and(|node| is_out_of_service(node)) {
            Why::OutOfService
        } else if gone.contains(node) {
            Why::Orphaned
        } else if pods::is_terminating(pod) && node.is_empty() {
            Why::NeverBound
        } else {
            continue;
        };
        plan.push((pod.clone(), why));
    }
    let mut ended: Vec<_> = pods
        .iter()
        .filter(|pod| pods::is_terminal(pod) && !plan.iter().any(|(other, _)| Arc::ptr_eq(other, pod)))
        .collect();
    if threshold > 0 && ended.len() > threshold {
        // Evicted ones first, then by age.
        let evicted = |pod: &Pod| pod.status.as_ref().and_then(|status| status.reason.as_deref()) == Some("Evicted");
        ended.sort_by_key(|pod| (!evicted(pod), pod.metadata.creation_timestamp.clone(), pod.metadata.name.clone()));
        let surplus = ended.len() - threshold;
        plan.extend(ended.into_iter().take(surplus).map(|pod| (pod.clone(), Why::Ended)));
    }
    plan
}

fn is_out_of_service(node: &Node) -> bool {
    let ready = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let ready = ready.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True");
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    !ready && taints.into_iter().any(|taint| taint.key == OUT_OF_SERVICE)
}

async fn pass(
    context: &Context, pods: &Informer<Pod>, nodes: &Informer<Node>, threshold: usize,
    missing: &mut HashMap<String, Instant>,
) {
    let (all_pods, all_nodes) = (pods.list(), nodes.list());
    let gone = gone_nodes(context, &all_pods, nodes, missing).await;
    let plan = plan(&all_pods, &all_nodes, threshold, &gone);
    let deletions = plan.iter().map(|(pod, why)| async move {
        let condition = match why {
            Why::Orphaned => ("DeletionByPodGC", "PodGC: node no longer exists"),
            _ => ("", ""),
        };
        let failed = !pods::is_terminal(pod);
        if let Err(fault) = delete_disrupted(context, pod, condition, failed, Some(0)).await {
            let (namespace, name) = pods::names(&pod.metadata);
            tracing::warn!(namespace, name, ?why, %fault, "couldn't collect a pod");
        }
    });
    futures::future::join_all(deletions).await;
}

/// The nodes of pods that were missing through the quarantine and are not there when asked for live.
async fn gone_nodes(
    context: &Context, pods: &[Arc<Pod>], nodes: &Informer<Node>, missing: &mut HashMap<String, Instant>,
) -> BTreeSet<String> {
    let absent: BTreeSet<&str> = pods
        .iter()
        .map(|pod| pods::node(pod))
        .filter(|node| !node.is_empty() && nodes.find("", node).is_none())
        .collect();
    missing.retain(|node, _| absent.contains(node.as_str()));
    let mut gone = BTreeSet::new();
    for node in absent {
        let since = *missing.entry(node.to_owned()).or_insert_with(Instant::now);
        if since.elapsed() < QUARANTINE {
            continue;
        }
        match context.all::<Node>().get_opt(node).await {
            Ok(None) => drop(gone.insert(node.to_owned())),
            Ok(Some(_)) => {}
            Err(error) => tracing::warn!(node, %error, "couldn't ask for a node"),
        }
    }
    gone
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::Timestamp;
    use serde_json::{Value, json};

    fn pod(name: &str, node: &str, phase: &str, deleted: bool, created: i64) -> Arc<Pod> {
        let mut pod = json!({
            "metadata": {"name": name, "creationTimestamp": Timestamp::from_second(created).unwrap().to_string()},
            "spec": {"nodeName": node, "containers": []},
            "status": {"phase": phase},
        });
        if deleted {
            pod["metadata"]["deletionTimestamp"] = json!("2020-01-01T00:00:00Z");
        }
        Arc::new(serde_json::from_value(pod).unwrap())
    }

    fn node(name: &str, taints: Value) -> Arc<Node> {
        Arc::new(serde_json::from_value(json!({"metadata": {"name": name}, "spec": {"taints": taints}})).unwrap())
    }

    fn told(plan: &[(Arc<Pod>, Why)]) -> Vec<(&str, Why)> {
        plan.iter().map(|(pod, why)| (pod.metadata.name.as_deref().unwrap(), *why)).collect()
    }

    #[test]
    fn pods_that_nobody_else_deletes_are_found() {
        let pods = [
            pod("well", "n", "Running", false, 0),
            pod("lost", "gone", "Running", false, 0),
            pod("early", "", "Pending", true, 0),
            pod("waiting", "", "Pending", false, 0),
            pod("stuck", "broken", "Running", true, 0),
        ];
        let nodes = [node("n", json!([])), node("broken", json!([{"key": OUT_OF_SERVICE, "effect": "NoExecute"}]))];
        let plan = plan(&pods, &nodes, 0, &["gone".to_owned()].into());
        let expected = [("lost", Why::Orphaned), ("early", Why::NeverBound), ("stuck", Why::OutOfService)];
        assert_eq!(told(&plan), expected);
    }

    #[test]
    fn the_oldest_ended_pods_beyond_the_threshold_go() {
        let pods = [
            pod("new", "n", "Succeeded", false, 30),
            pod("old", "n", "Failed", false, 10),
            pod("mid", "n", "Failed", false, 20),
        ];
        let nodes = [node("n", json!([]))];
        assert_eq!(told(&plan(&pods, &nodes, 2, &BTreeSet::new())), [("old", Why::Ended)]);
        assert!(plan(&pods, &nodes, 0, &BTreeSet::new()).is_empty());
    }
}

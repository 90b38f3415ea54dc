//! Which of a set's pods go first when there are too many.

use super::pods;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use std::cmp::{Ordering, Reverse};
use std::sync::Arc;

/// Sorts pods, those that go first first: not bound, not running, not ready, cheap to delete, many on one node, ready for
/// a shorter time, often restarted, young. `rank` tells how many related pods share a pod's node. Ages are compared by
/// their order of magnitude, so that not always the youngest goes.
pub fn sort(pods: &mut [Arc<Pod>], rank: impl Fn(&Pod) -> usize, now: Timestamp) {
    pods.sort_by(|a, b| compare(a, b, &rank, now));
}

fn compare(a: &Pod, b: &Pod, rank: &impl Fn(&Pod) -> usize, now: Timestamp) -> Ordering {
    let plain = |pod: &Pod| {
        (!pods::node(pod).is_empty(), liveliness(pod), pods::is_ready(pod), deletion_cost(pod), Reverse(rank(pod)))
    };
    plain(a)
        .cmp(&plain(b))
        .then_with(|| by_age(pods::ready_since(a), pods::ready_since(b), a, b, now))
        .then_with(|| restarts(b).cmp(&restarts(a)))
        .then_with(|| by_age(created(a), created(b), a, b, now))
}

fn liveliness(pod: &Pod) -> u8 {
    match pods::phase(pod) {
        "Running" => 2,
        "Unknown" => 1,
        _ => 0,
    }
}

fn deletion_cost(pod: &Pod) -> i32 {
    let annotations = pod.metadata.annotations.as_ref();
    let cost = annotations.and_then(|annotations| annotations.get("controller.kubernetes.io/pod-deletion-cost"));
    cost.and_then(|cost| cost.parse().ok()).unwrap_or(0)
}

fn created(pod: &Pod) -> Option<Timestamp> {
    pod.metadata.creation_timestamp.as_ref().map(|time| time.0)
}

/// Younger first, by the logarithm of the age; within one order of magnitude by UID, which is as good as chance.
fn by_age(a: Option<Timestamp>, b: Option<Timestamp>, pod_a: &Pod, pod_b: &Pod, now: Timestamp) -> Ordering {
    match (a, b) {
        (Some(a), Some(b)) if a == b => Ordering::Equal,
        (Some(a), Some(b)) => {
            magnitude(a, now).cmp(&magnitude(b, now)).then_with(|| pod_a.metadata.uid.cmp(&pod_b.metadata.uid))
        }
        (a, b) => a.is_some().cmp(&b.is_some()),
    }
}

fn magnitude(since: Timestamp, now: Timestamp) -> i64 {
    let age = now.duration_since(since).as_nanos();
    if age > 0 { i64::from(age.ilog2()) } else { -1 }
}

/// The most restarts of a container, then of an init container.
fn restarts(pod: &Pod) -> (i32, i32) {
    let most = |statuses: Option<&Vec<ContainerStatus>>| {
        statuses.into_iter().flatten().map(|status| status.restart_count).max().unwrap_or(0)
    };
    let status = pod.status.as_ref();
    (
        most(status.and_then(|status| status.container_statuses.as_ref())),
        most(status.and_then(|status| status.init_container_statuses.as_ref())),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(name: &str, mut extra: Value) -> Arc<Pod> {
        extra["metadata"]["name"] = json!(name);
        extra["metadata"]["uid"] = json!(name);
        if extra["spec"].is_null() {
            extra["spec"] = json!({"nodeName": "n", "containers": []});
        }
        if extra["status"].is_null() {
            extra["status"] = ready("1970-01-01T00:00:00Z");
        }
        Arc::new(serde_json::from_value(extra).unwrap())
    }

    fn ready(since: &str) -> Value {
        json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": since}]})
    }

    fn order(pods: Vec<Arc<Pod>>) -> Vec<String> {
        let mut pods = pods;
        sort(&mut pods, |_| 0, Timestamp::from_second(100_000).unwrap());
        pods.iter().map(|pod| pod.metadata.name.clone().unwrap()).collect()
    }

    #[test]
    fn the_least_useful_goes_first() {
        let pods = vec![
            pod("steady", json!({})),
            pod("fresh", json!({"status": ready("1970-01-02T03:40:00Z")})),
            pod("cheap", json!({"metadata": {"annotations": {"controller.kubernetes.io/pod-deletion-cost": "-5"}}})),
            pod("unready", json!({"status": {"phase": "Running"}})),
            pod("pending", json!({"status": {"phase": "Pending"}})),
            pod("unbound", json!({"spec": {"containers": []}, "status": {"phase": "Pending"}})),
        ];
        assert_eq!(order(pods), ["unbound", "pending", "unready", "cheap", "fresh", "steady"]);
    }

    #[test]
    fn many_on_one_node_go_before_few() {
        let mut pods = vec![pod("few", json!({})), pod("many", json!({}))];
        let rank = |pod: &Pod| if pod.metadata.name.as_deref() == Some("many") { 3 } else { 1 };
        sort(&mut pods, rank, Timestamp::from_second(1000).unwrap());
        assert_eq!(pods[0].metadata.name.as_deref(), Some("many"));
    }

    #[test]
    fn often_restarted_pods_go_before_quiet_ones() {
        let status = |restarts: i32| {
            let mut status = ready("1970-01-01T00:00:00Z");
            status["containerStatuses"] =
                json!([{"name": "c", "image": "", "imageID": "", "ready": true, "restartCount": restarts}]);
            status
        };
        let pods = vec![pod("quiet", json!({"status": status(0)})), pod("shaky", json!({"status": status(4)}))];
        assert_eq!(order(pods), ["shaky", "quiet"]);
    }
}

//! How long a Job waits before it replaces failed pods.

use base::backoff::Policy;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use std::collections::BTreeSet;
use std::time::Duration;

const POLICY: Policy = Policy::doubling(Duration::from_secs(10), Duration::from_secs(600));

/// The failures of a Job since its last success. They are remembered only as long as the process lives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Failures {
    count: u32,
    last: Option<Timestamp>,
}

impl Failures {
    /// As they are once these pods have ended, too.
    pub(super) fn after(&self, mut succeeded: Vec<Timestamp>, mut failed: Vec<Timestamp>) -> Self {
        succeeded.sort_unstable();
        failed.sort_unstable();
        let (before, last) = match succeeded.last() {
            None => (self.count, self.last),
            Some(success) => {
                failed.retain(|failure| failure > success);
                (0, None)
            }
        };
        let more = u32::try_from(failed.len()).unwrap_or(u32::MAX);
        Self { count: before.saturating_add(more), last: failed.last().copied().or(last) }
    }

    /// How long to wait until pods may be made again.
    pub(super) fn left(&self, now: Timestamp) -> Option<Duration> {
        left(self.count, self.last?, now)
    }
}

/// What is left of the wait after so many failures in a row: ten seconds, twice as long for each more, ten minutes at most.
pub(super) fn left(failures: u32, last: Timestamp, now: Timestamp) -> Option<Duration> {
    if failures == 0 {
        return None;
    }
    let wait = SignedDuration::try_from(POLICY.wait(failures)).unwrap_or(SignedDuration::MAX);
    Duration::try_from(wait - now.duration_since(last)).ok().filter(|left| !left.is_zero())
}

/// When a pod ended: with its last container, or when it ceased to be ready, or was deleted.
pub(super) fn ended_at(pod: &Pod) -> Timestamp {
    let not_ready = crate::common::pods::condition(pod, "Ready").filter(|condition| condition.status == "False");
    let unready = || not_ready.and_then(|condition| condition.last_transition_time.as_ref()).map(|time| time.0);
    let deleted = || {
        let grace = SignedDuration::from_secs(pod.metadata.deletion_grace_period_seconds.unwrap_or(0));
        pod.metadata.deletion_timestamp.as_ref().and_then(|time| time.0.checked_sub(grace).ok())
    };
    let made = || pod.metadata.creation_timestamp.as_ref().map(|time| time.0);
    last_container(pod).or_else(unready).or_else(deleted).or_else(made).unwrap_or_default()
}

/// The end of the last container, sidecars among them, if all have one.
fn last_container(pod: &Pod) -> Option<Timestamp> {
    let inits = pod.spec.iter().flat_map(|spec| spec.init_containers.iter().flatten());
    let sidecars: BTreeSet<&str> = inits
        .filter(|container| container.restart_policy.as_deref() == Some("Always"))
        .map(|container| container.name.as_str())
        .collect();
    let status = pod.status.as_ref()?;
    let beside = status.init_container_statuses.iter().flatten().filter(|status| sidecars.contains(&*status.name));
    let end = |status: &ContainerStatus| Some(status.state.as_ref()?.terminated.as_ref()?.finished_at.as_ref()?.0);
    let ends: Option<Vec<_>> = status.container_statuses.iter().flatten().chain(beside).map(end).collect();
    ends?.into_iter().max()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn each_failure_doubles_the_wait_until_a_success() {
        let wait = |failures: &Failures| failures.left(at(100)).map(|left| left.as_secs());
        let failures = Failures::default().after(vec![], vec![at(98), at(95)]);
        assert_eq!(wait(&failures), Some(18));
        let failures = failures.after(vec![], vec![at(99)]);
        assert_eq!(wait(&failures), Some(39));
        assert_eq!(wait(&failures.after(vec![], vec![])), Some(39));
        assert_eq!(wait(&failures.after(vec![at(99)], vec![at(97), at(100)])), Some(10), "one came after the success");
        assert_eq!(wait(&failures.after(vec![at(99)], vec![])), None);
        assert_eq!(left(1000, at(100), at(100)), Some(Duration::from_secs(600)));
    }

    #[test]
    fn a_pod_ends_with_its_last_container_or_when_it_ceased_to_be_ready() {
        let ended = |status: serde_json::Value| {
            let pod = json!({"metadata": {"creationTimestamp": "1970-01-01T00:00:01Z",
                "deletionTimestamp": "1970-01-01T00:01:00Z", "deletionGracePeriodSeconds": 30},
                "spec": {"containers": [], "initContainers": [{"name": "s", "restartPolicy": "Always"}, {"name": "i"}]},
                "status": status});
            ended_at(&serde_json::from_value(pod).unwrap()).as_second()
        };
        let container = |name: &str, end: &str| {
            json!({"name": name, "image": "", "imageID": "", "ready": false, "restartCount": 0,
                "state": {"terminated": {"exitCode": 1, "finishedAt": end}}})
        };
        let c = container("c", "1970-01-01T00:00:09Z");
        let inits = json!([container("s", "1970-01-01T00:00:11Z"), container("i", "1970-01-01T00:00:59Z")]);
        assert_eq!(ended(json!({"containerStatuses": [c], "initContainerStatuses": inits})), 11);
        let running = json!({"name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0});
        let ready = json!([{"type": "Ready", "status": "False", "lastTransitionTime": "1970-01-01T00:00:20Z"}]);
        assert_eq!(ended(json!({"containerStatuses": [running], "conditions": ready})), 20);
        assert_eq!(ended(json!({})), 30, "when it was asked to go");
    }
}

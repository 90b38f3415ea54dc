//! The pure part: from a set and its pods to the pods to make, the pods to delete, and the status.

use crate::common::{pods, ranks};
use api::selector::LabelSelector;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// Pods made or deleted in one run at most.
pub(super) const BURST: usize = 500;

/// A ReplicaSet or ReplicationController, without what tells them apart.
#[derive(Clone, Debug)]
pub(super) struct Set {
    pub(super) meta: ObjectMeta,
    pub(super) replicas: i32,
    pub(super) selector: LabelSelector,
    pub(super) template: PodTemplateSpec,
    pub(super) min_ready: i32,
    pub(super) status: Status,
}

/// The common status.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Status {
    pub(super) replicas: i32,
    pub(super) fully_labeled: i32,
    pub(super) ready: i32,
    pub(super) available: i32,
    /// Only of kinds that tell it.
    pub(super) terminating: Option<i32>,
    pub(super) observed_generation: Option<i64>,
    pub(super) conditions: Vec<Condition>,
}

/// A condition of either kind.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Condition {
    pub(super) kind: String,
    pub(super) status: String,
    pub(super) reason: Option<String>,
    pub(super) message: Option<String>,
    pub(super) since: Option<Time>,
}

/// What to do about the number of pods.
#[derive(Debug, PartialEq)]
pub(super) enum Command {
    /// Make so many.
    Create(usize),
    /// Delete these.
    Delete(Vec<Arc<Pod>>),
}

/// Compares the wanted number with the active pods. `related` are the pods of all sets under the same owner; a node
/// that has many of them loses first.
pub(super) fn scale(set: &Set, active: &[Arc<Pod>], related: &[Arc<Pod>], now: Timestamp) -> Option<Command> {
    let wanted = usize::try_from(set.replicas).unwrap_or(0);
    if active.len() < wanted {
        return Some(Command::Create((wanted - active.len()).min(BURST)));
    }
    if active.len() == wanted {
        return None;
    }
    let surplus = (active.len() - wanted).min(BURST);
    let mut victims = active.to_vec();
    if surplus < victims.len() {
        let mut on_node: HashMap<&str, usize> = HashMap::new();
        for pod in related.iter().filter(|pod| pods::is_active(pod)) {
            *on_node.entry(pods::node(pod)).or_default() += 1;
        }
        ranks::sort(&mut victims, |pod| on_node.get(pods::node(pod)).copied().unwrap_or(0), now);
    }
    victims.truncate(surplus);
    Some(Command::Delete(victims))
}

/// The status of a set with these pods; `failure` is why pods could not be made or deleted.
pub(super) fn status(set: &Set, mine: &[Arc<Pod>], failure: Option<&str>, now: Timestamp) -> Status {
    let active: Vec<_> = mine.iter().filter(|pod| pods::is_active(pod)).collect();
    let labels = set.template.metadata.as_ref().and_then(|meta| meta.labels.clone()).unwrap_or_default();
    let template = LabelSelector::from_pairs(labels.iter().map(|(key, value)| (key.as_str(), value.as_str())));
    let count = |test: &dyn Fn(&Pod) -> bool| count(active.iter().filter(|pod| test(pod)).count());
    let terminating = mine.iter().filter(|pod| pods::is_terminating(pod) && !pods::is_terminal(pod)).count();
    Status {
        replicas: count(&|_| true),
        fully_labeled: count(&|pod| pods::selects(&template, &pod.metadata)),
        ready: count(&pods::is_ready),
        available: count(&|pod| pods::is_available(pod, set.min_ready, now)),
        terminating: set.status.terminating.map(|_| self::count(terminating)),
        observed_generation: set.meta.generation,
        conditions: conditions(set, active.len(), failure, now),
    }
}

fn count(n: usize) -> i32 {
    i32::try_from(n).unwrap_or(i32::MAX)
}

fn conditions(set: &Set, active: usize, failure: Option<&str>, now: Timestamp) -> Vec<Condition> {
    const KIND: &str = "ReplicaFailure";
    let mut conditions = set.status.conditions.clone();
    let failing = conditions.iter().any(|condition| condition.kind == KIND);
    match failure {
        None => conditions.retain(|condition| condition.kind != KIND),
        Some(message) if !failing => {
            let wanted = usize::try_from(set.replicas).unwrap_or(0);
            conditions.push(Condition {
                kind: KIND.into(),
                status: "True".into(),
                reason: Some(if active < wanted { "FailedCreate" } else { "FailedDelete" }.into()),
                message: Some(message.into()),
                since: Timestamp::from_second(now.as_second()).ok().map(Time),
            });
        }
        Some(_) => {}
    }
    conditions
}

/// When the next ready pod becomes available.
pub(super) fn next_available(set: &Set, mine: &[Arc<Pod>], now: Timestamp) -> Option<Duration> {
    let active = mine.iter().filter(|pod| pods::is_active(pod));
    active.filter_map(|pod| pods::available_in(pod, set.min_ready, now)).min()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn now() -> Timestamp {
        Timestamp::from_second(1000).unwrap()
    }

    fn set(replicas: i32, min_ready: i32) -> Set {
        let template = serde_json::from_value(json!({"metadata": {"labels": {"app": "web", "v": "1"}}})).unwrap();
        Set {
            meta: ObjectMeta { generation: Some(3), ..Default::default() },
            replicas,
            selector: LabelSelector::from_pairs([("app", "web")]),
            template,
            min_ready,
            status: Status { terminating: Some(0), ..Status::default() },
        }
    }

    fn pod(name: &str, node: &str, status: Value) -> Arc<Pod> {
        let pod = json!({
            "metadata": {"name": name, "uid": name, "labels": {"app": "web"}},
            "spec": {"nodeName": node, "containers": []},
            "status": status,
        });
        Arc::new(serde_json::from_value(pod).unwrap())
    }

    fn ready(since: &str) -> Value {
        json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": since}]})
    }

    const EARLY: &str = "1970-01-01T00:00:00Z";

    #[test]
    fn too_few_pods_are_made_in_bursts() {
        assert_eq!(scale(&set(3, 0), &[], &[], now()), Some(Command::Create(3)));
        assert_eq!(scale(&set(9000, 0), &[], &[], now()), Some(Command::Create(BURST)));
        assert_eq!(scale(&set(1, 0), &[pod("a", "n", ready(EARLY))], &[], now()), None);
    }

    #[test]
    fn of_too_many_the_crowded_node_loses_first() {
        let mine = [pod("a", "n1", ready(EARLY)), pod("b", "n2", ready(EARLY))];
        let related = [mine[0].clone(), mine[1].clone(), pod("c", "n2", ready(EARLY))];
        assert_eq!(scale(&set(1, 0), &mine, &related, now()), Some(Command::Delete(vec![mine[1].clone()])));
    }

    #[test]
    fn the_status_counts_what_is_there() {
        let mut gone = Pod::clone(&pod("d", "n", ready(EARLY)));
        gone.metadata.deletion_timestamp = Some(Time(now()));
        let mine = [
            pod("a", "n", ready(EARLY)),
            pod("b", "n", ready("1970-01-01T00:16:00Z")),
            pod("c", "n", json!({"phase": "Pending"})),
            pod("f", "n", json!({"phase": "Failed"})),
            Arc::new(gone),
        ];
        let status = status(&set(3, 60), &mine, None, now());
        assert_eq!((status.replicas, status.ready, status.available), (3, 2, 1));
        assert_eq!((status.fully_labeled, status.terminating, status.observed_generation), (0, Some(1), Some(3)));
        assert_eq!(next_available(&set(3, 60), &mine, now()), Some(Duration::from_secs(20)));
    }

    #[test]
    fn a_failure_is_a_condition_until_it_is_over() {
        let mut set = set(3, 0);
        set.status.conditions = status(&set, &[], Some("exceeded quota"), now()).conditions;
        let failure = &set.status.conditions[0];
        assert_eq!((failure.kind.as_str(), failure.reason.as_deref()), ("ReplicaFailure", Some("FailedCreate")));
        assert_eq!(failure.message.as_deref(), Some("exceeded quota"));
        assert_eq!(status(&set, &[], Some("another"), now()).conditions, set.status.conditions);
        assert!(status(&set, &[], None, now()).conditions.is_empty());
    }
}

//! The kubelet's own conditions of a pod, with upstream's reasons and messages.

use crate::pods::{self, is_sidecar};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodCondition};

/// Conditions that the kubelet owns; all others belong to someone else and are left alone.
pub const OWNED: [&str; 8] = [
    "PodScheduled",
    "Ready",
    "Initialized",
    "ContainersReady",
    "PodResizeInProgress",
    "PodResizePending",
    "PodReadyToStartContainers",
    "AllContainersRestarting",
];

/// A condition without its times.
pub fn condition(pod: &Pod, kind: &str, status: bool, reason: &str, message: &str) -> PodCondition {
    let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    PodCondition {
        type_: kind.into(),
        status: if status { "True" } else { "False" }.into(),
        reason: text(reason),
        message: text(message),
        observed_generation: pod.metadata.generation.filter(|generation| *generation != 0),
        ..Default::default()
    }
}

/// `[a b]`, as Go prints a list.
fn list(names: &[&str]) -> String {
    format!("[{}]", names.join(" "))
}

fn message(unknown: &[&str], other: &[&str], word: &str) -> String {
    let mut parts = Vec::new();
    if !unknown.is_empty() {
        parts.push(format!("containers with unknown status: {}", list(unknown)));
    }
    if !other.is_empty() {
        parts.push(format!("containers with {word} status: {}", list(other)));
    }
    parts.join(", ")
}

fn find<'a>(statuses: &[&'a ContainerStatus], name: &str) -> Option<&'a ContainerStatus> {
    statuses.iter().find(|status| status.name == name).copied()
}

/// `ContainersReady`: every app container and sidecar is ready. `statuses`: init and app containers.
pub fn containers_ready(pod: &Pod, statuses: &[&ContainerStatus], phase: &str) -> PodCondition {
    let kind = "ContainersReady";
    let (mut unknown, mut unready) = (Vec::new(), Vec::new());
    for container in pods::inits(pod).iter().filter(|c| is_sidecar(c)).chain(pods::apps(pod)) {
        match find(statuses, &container.name) {
            None => unknown.push(container.name.as_str()),
            Some(status) if !status.ready => unready.push(container.name.as_str()),
            Some(_) => {}
        }
    }
    if phase == "Succeeded" && unknown.is_empty() {
        return condition(pod, kind, false, "PodCompleted", "");
    }
    if phase == "Failed" {
        return condition(pod, kind, false, "PodFailed", "");
    }
    let text = message(&unknown, &unready, "unready");
    match text.is_empty() {
        true => condition(pod, kind, true, "", ""),
        false => condition(pod, kind, false, "ContainersNotReady", &text),
    }
}

/// `Ready`: the containers are ready and every readiness gate is open. `others`: the conditions known so far.
pub fn ready(pod: &Pod, statuses: &[&ContainerStatus], phase: &str, others: &[PodCondition]) -> PodCondition {
    let containers = containers_ready(pod, statuses, phase);
    if containers.status != "True" {
        return PodCondition { type_: "Ready".into(), ..containers };
    }
    let mut closed = Vec::new();
    for gate in pods::spec(pod).readiness_gates.as_deref().unwrap_or_default() {
        let kind = &gate.condition_type;
        match others.iter().find(|condition| condition.type_ == *kind) {
            None => closed.push(format!("corresponding condition of pod readiness gate {kind:?} does not exist.")),
            Some(other) if other.status != "True" => {
                closed.push(format!("the status of pod readiness gate {kind:?} is not \"True\", but {}", other.status));
            }
            Some(_) => {}
        }
    }
    match closed.is_empty() {
        true => condition(pod, "Ready", true, "", ""),
        false => condition(pod, "Ready", false, "ReadinessGatesNotReady", &closed.join(", ")),
    }
}

/// `Initialized`: the init containers are through. `was`: the condition held before.
pub fn initialized(pod: &Pod, statuses: &[&ContainerStatus], phase: &str, was: bool) -> PodCondition {
    let kind = "Initialized";
    let (mut unknown, mut incomplete) = (Vec::new(), Vec::new());
    for container in pods::inits(pod) {
        match find(statuses, &container.name) {
            None => unknown.push(container.name.as_str()),
            Some(status) => {
                let done = if is_sidecar(container) { status.started == Some(true) } else { status.ready };
                if !done {
                    incomplete.push(container.name.as_str());
                }
            }
        }
    }
    if phase == "Succeeded" && unknown.is_empty() {
        return condition(pod, kind, true, "PodCompleted", "");
    }
    let ran = |status: &ContainerStatus| {
        status.state.as_ref().is_some_and(|state| state.running.is_some() || state.terminated.is_some())
    };
    let any_app_ran = pods::apps(pod).iter().filter_map(|c| find(statuses, &c.name)).any(ran);
    let text = message(&unknown, &incomplete, "incomplete");
    match text.is_empty() || any_app_ran || was {
        true => condition(pod, kind, true, "", ""),
        false => condition(pod, kind, false, "ContainersNotInitialized", &text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod() -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "p", "generation": 3}, "spec": {
            "initContainers": [{"name": "i"}, {"name": "s", "restartPolicy": "Always"}],
            "containers": [{"name": "a"}, {"name": "b"}], "readinessGates": [{"conditionType": "x/y"}]}}))
        .unwrap()
    }

    fn status(name: &str, ready: bool) -> ContainerStatus {
        ContainerStatus { name: name.into(), ready, ..Default::default() }
    }

    fn words(c: PodCondition) -> (String, String, String) {
        (c.status, c.reason.unwrap_or_default(), c.message.unwrap_or_default())
    }

    fn expect(status: &str, reason: &str, message: &str) -> (String, String, String) {
        (status.into(), reason.into(), message.into())
    }

    #[test]
    fn messages_name_the_containers_as_upstream_does() {
        let (i, s, a) = (status("i", false), status("s", false), status("a", true));
        let all = [&i, &s, &a];
        let text = "containers with unknown status: [b], containers with unready status: [s]";
        assert_eq!(words(containers_ready(&pod(), &all, "Pending")), expect("False", "ContainersNotReady", text));
        let text = "containers with incomplete status: [i s]";
        assert_eq!(
            words(initialized(&pod(), &all, "Pending", false)),
            expect("False", "ContainersNotInitialized", text)
        );
        assert_eq!(words(initialized(&pod(), &all, "Succeeded", false)), expect("True", "PodCompleted", ""));
        assert_eq!(words(containers_ready(&pod(), &all, "Failed")), expect("False", "PodFailed", ""));
    }

    #[test]
    fn readiness_gates_hold_the_pod_unready() {
        let (s, a, b) = (status("s", true), status("a", true), status("b", true));
        let all = [&s, &a, &b];
        let text = "corresponding condition of pod readiness gate \"x/y\" does not exist.";
        assert_eq!(words(ready(&pod(), &all, "Running", &[])), expect("False", "ReadinessGatesNotReady", text));
        let open = condition(&pod(), "x/y", true, "", "");
        assert_eq!(words(ready(&pod(), &all, "Running", &[open])), expect("True", "", ""));
    }
}

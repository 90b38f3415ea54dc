//! The phase of a pod, from its containers' statuses.
//!
//! Source: the pod life cycle as documented; sidecars count only while the pod starts.

use crate::pods::{self, is_sidecar, is_static, should_restart};
use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod};

/// What a container's status says, for the purposes of the phase.
enum Seen<'a> {
    Running(&'a ContainerStatus),
    /// Ended, with its exit code; it may be waiting to run again.
    Stopped(i32),
    Waiting,
    Unknown,
}

fn look<'a>(statuses: &'a [&'a ContainerStatus], name: &str) -> Seen<'a> {
    let Some(status) = statuses.iter().find(|status| status.name == name) else { return Seen::Unknown };
    let Some(state) = &status.state else { return Seen::Unknown };
    if state.running.is_some() {
        Seen::Running(status)
    } else if let Some(terminated) = &state.terminated {
        Seen::Stopped(terminated.exit_code)
    } else if state.waiting.is_some() {
        match status.last_state.as_ref().and_then(|last| last.terminated.as_ref()) {
            Some(terminated) => Seen::Stopped(terminated.exit_code),
            None => Seen::Waiting,
        }
    } else {
        Seen::Unknown
    }
}

/// Counts of app containers and sidecars.
#[derive(Default)]
struct Counts {
    unknown: usize,
    running: usize,
    waiting: usize,
    stopped: usize,
    never_again: usize,
    succeeded: usize,
}

/// The phase. `terminal`: the kubelet has ended the pod for good. `initialized`: an app container has run in the
/// present sandbox.
pub fn phase(
    pod: &Pod, apps: &[ContainerStatus], inits: &[ContainerStatus], terminal: bool, initialized: bool,
) -> &'static str {
    let statuses: Vec<&ContainerStatus> = apps.iter().chain(inits).collect();
    let mut pending_inits = false;
    for container in pods::inits(pod).iter().filter(|c| !is_sidecar(c)) {
        match look(&statuses, &container.name) {
            Seen::Stopped(0) => {}
            Seen::Stopped(code) if !should_restart(pod, container, code) => return "Failed",
            Seen::Stopped(_) => {}
            _ => pending_inits = true,
        }
    }
    let mut counts = Counts::default();
    let mut pending_sidecars = false;
    for container in pods::inits(pod).iter().filter(|c| is_sidecar(c)) {
        match look(&statuses, &container.name) {
            Seen::Running(status) => {
                pending_sidecars |= status.started != Some(true);
                counts.running += 1;
            }
            Seen::Stopped(_) => {}
            Seen::Waiting => {
                pending_sidecars = true;
                counts.waiting += 1;
            }
            Seen::Unknown => {
                pending_sidecars |= inits.iter().any(|status| status.name == container.name);
                counts.unknown += 1;
            }
        }
    }
    for container in pods::apps(pod) {
        count_app(pod, container, &statuses, &mut counts);
    }
    if pending_inits || (pending_sidecars && !initialized) || counts.waiting > 0 {
        return "Pending";
    }
    by_counts(pod, &counts, terminal)
}

fn count_app(pod: &Pod, container: &Container, statuses: &[&ContainerStatus], counts: &mut Counts) {
    match look(statuses, &container.name) {
        Seen::Running(_) => counts.running += 1,
        Seen::Stopped(code) => {
            counts.stopped += 1;
            counts.never_again += usize::from(!should_restart(pod, container, code));
            // One that waits to run again is no success, whatever its last exit code.
            let waits = statuses
                .iter()
                .find(|s| s.name == container.name)
                .is_some_and(|s| s.state.as_ref().is_some_and(|state| state.terminated.is_none()));
            counts.succeeded += usize::from(code == 0 && !waits);
        }
        Seen::Waiting => counts.waiting += 1,
        Seen::Unknown => counts.unknown += 1,
    }
}

fn by_counts(pod: &Pod, counts: &Counts, terminal: bool) -> &'static str {
    let ended = || if counts.stopped == counts.succeeded { "Succeeded" } else { "Failed" };
    if counts.unknown > 0 {
        "Pending"
    } else if counts.running > 0 {
        "Running"
    } else if counts.stopped > 0 {
        if terminal && !is_static(pod) {
            ended()
        } else if counts.stopped != counts.never_again {
            "Running"
        } else {
            ended()
        }
    } else {
        "Pending"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn run(spec: serde_json::Value, apps: serde_json::Value, inits: serde_json::Value, terminal: bool) -> &'static str {
        let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": spec})).unwrap();
        let list = |value: serde_json::Value| -> Vec<ContainerStatus> {
            let full = value.as_object().unwrap().iter().map(|(name, state)| {
                let mut status = json!({"name": name, "image": "", "imageID": "", "ready": false, "restartCount": 0});
                for (key, value) in state.as_object().unwrap() {
                    status[key] = value.clone();
                }
                status
            });
            serde_json::from_value(full.collect::<Vec<_>>().into()).unwrap()
        };
        phase(&pod, &list(apps), &list(inits), terminal, false)
    }

    fn ended(code: i32) -> serde_json::Value {
        json!({"state": {"terminated": {"exitCode": code}}})
    }

    fn running() -> serde_json::Value {
        json!({"state": {"running": {}}, "started": true})
    }

    #[test]
    fn phases_follow_containers_and_policies() {
        let spec = |policy: &str| json!({"restartPolicy": policy, "containers": [{"name": "a"}, {"name": "b"}]});
        let waiting = json!({"state": {"waiting": {}}});
        let both = |a: serde_json::Value, b: serde_json::Value| json!({"a": a, "b": b});
        for (policy, apps, terminal, expected) in [
            ("Always", both(running(), running()), false, "Running"),
            ("Always", both(running(), waiting), false, "Pending"),
            ("Always", both(ended(0), ended(0)), false, "Running"),
            ("Always", both(ended(0), ended(0)), true, "Succeeded"),
            ("Never", both(ended(0), ended(0)), false, "Succeeded"),
            ("Never", both(ended(0), ended(1)), false, "Failed"),
            ("OnFailure", both(ended(0), ended(1)), false, "Running"),
            ("OnFailure", both(ended(0), ended(0)), false, "Succeeded"),
            ("Never", json!({"a": running()}), false, "Pending"),
        ] {
            assert_eq!(run(spec(policy), apps.clone(), json!({}), terminal), expected, "{policy} {apps}");
        }
    }

    #[test]
    fn init_containers_hold_the_pod_pending_or_fail_it() {
        let spec = |policy: &str| json!({"restartPolicy": policy, "initContainers": [{"name": "i"}], "containers": [{"name": "a"}]});
        let waiting = json!({"a": {"state": {"waiting": {}}}});
        assert_eq!(run(spec("Always"), waiting.clone(), json!({"i": running()}), false), "Pending");
        assert_eq!(run(spec("Never"), waiting.clone(), json!({"i": ended(1)}), false), "Failed");
        assert_eq!(run(spec("Always"), waiting, json!({"i": ended(1)}), false), "Pending");
        assert_eq!(run(spec("Always"), json!({"a": running()}), json!({"i": ended(0)}), false), "Running");
    }

    #[test]
    fn a_sidecar_does_not_decide_the_end() {
        let spec = json!({"restartPolicy": "Never", "initContainers": [{"name": "s", "restartPolicy": "Always"}],
            "containers": [{"name": "a"}]});
        assert_eq!(run(spec.clone(), json!({"a": ended(0)}), json!({"s": ended(137)}), false), "Succeeded");
        assert_eq!(run(spec, json!({"a": ended(0)}), json!({"s": running()}), false), "Running");
    }
}

//! Statuses made from runtime states.

use super::*;
use crate::runtime::state::{Container as Run, Sandbox};
use serde_json::json;

struct Case {
    pod: Pod,
    state: PodState,
    old: PodStatus,
    reasons: Reasons,
    probes: ProbeResults,
    terminal: bool,
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).unwrap()
}

impl Case {
    fn new(spec: serde_json::Value) -> Self {
        let pod = serde_json::from_value(
            json!({"metadata": {"name": "p", "namespace": "n", "uid": "u", "generation": 1}, "spec": spec}),
        );
        let sandbox = Sandbox { id: "s".into(), ready: true, ips: vec!["10.0.0.9".into()], ..Default::default() };
        Self {
            pod: pod.unwrap(),
            state: PodState { sandboxes: vec![sandbox], containers: vec![] },
            old: PodStatus::default(),
            reasons: Reasons::new(),
            probes: ProbeResults::default(),
            terminal: false,
        }
    }

    /// Adds a run; the newest must be added first.
    fn run(mut self, name: &str, id: &str, state: State, restart_count: i32, exit_code: i32) -> Self {
        self.state.containers.push(Run {
            id: id.into(),
            name: name.into(),
            sandbox: "s".into(),
            state,
            restart_count,
            exit_code,
            started: Some(at(0)),
            finished: (state == State::Exited).then(|| at(1)),
            reason: if state == State::Exited { "Error".into() } else { String::new() },
            ..Default::default()
        });
        self
    }

    fn status(&self) -> PodStatus {
        generate(&View {
            pod: &self.pod,
            state: &self.state,
            old: &self.old,
            reasons: &self.reasons,
            probes: &self.probes,
            runtime: "containerd",
            host_ips: &["192.168.0.1".into()],
            kubelet_started: at(-1),
            terminal: self.terminal,
            eviction: None,
            resize: &[],
        })
    }
}

fn app(status: &PodStatus, index: usize) -> ContainerStatus {
    status.container_statuses.as_ref().unwrap()[index].clone()
}

fn one() -> serde_json::Value {
    json!({"containers": [{"name": "a", "image": "i"}]})
}

#[test]
fn a_running_pod_is_ready_with_addresses_and_class() {
    let status = Case::new(one()).run("a", "1", State::Running, 0, 0).status();
    assert_eq!(status.phase.as_deref(), Some("Running"));
    assert_eq!((status.pod_ip.as_deref(), status.host_ip.as_deref()), (Some("10.0.0.9"), Some("192.168.0.1")));
    assert_eq!(status.qos_class.as_deref(), Some("BestEffort"));
    let container = app(&status, 0);
    assert_eq!((container.ready, container.started), (true, Some(true)));
    assert_eq!(container.container_id.as_deref(), Some("containerd://1"));
    let kinds: Vec<_> = status.conditions.iter().flatten().map(|c| (c.type_.as_str(), c.status.as_str())).collect();
    let expected = ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"];
    assert_eq!(kinds, expected.map(|kind| (kind, "True")));
    assert!(status.conditions.iter().flatten().all(|c| c.observed_generation == Some(1)));
}

#[test]
fn a_crash_loop_waits_with_its_reason_and_shows_how_it_last_ended() {
    let mut case = Case::new(one()).run("a", "2", State::Exited, 1, 3).run("a", "1", State::Exited, 0, 1);
    let text = "back-off 10s restarting failed container=a pod=p_n(u)";
    case.reasons.insert("a".into(), ("CrashLoopBackOff".into(), text.into()));
    let status = case.status();
    let container = app(&status, 0);
    let waiting = container.state.unwrap().waiting.unwrap();
    assert_eq!((waiting.reason.as_deref(), waiting.message.as_deref()), (Some("CrashLoopBackOff"), Some(text)));
    assert_eq!(container.last_state.unwrap().terminated.unwrap().exit_code, 3);
    assert_eq!(container.restart_count, 1);
    assert_eq!(status.phase.as_deref(), Some("Running"));
}

#[test]
fn a_new_pod_waits_and_says_what_for() {
    let mut case = Case::new(one());
    case.state = PodState::default();
    let reason = |status: &PodStatus| app(status, 0).state.unwrap().waiting.unwrap().reason;
    assert_eq!(reason(&case.status()).as_deref(), Some("ContainerCreating"));
    assert_eq!(case.status().phase.as_deref(), Some("Pending"));
    case.reasons.insert("a".into(), ("ErrImagePull".into(), "no such image".into()));
    assert_eq!(reason(&case.status()).as_deref(), Some("ErrImagePull"));
    let with_init = json!({"initContainers": [{"name": "i"}], "containers": [{"name": "a"}]});
    let status = Case::new(with_init).run("i", "1", State::Running, 0, 0).status();
    assert_eq!(reason(&status).as_deref(), Some("PodInitializing"));
    let condition = find(status.conditions.as_ref(), "Initialized").unwrap();
    assert_eq!(condition.message.as_deref(), Some("containers with incomplete status: [i]"));
}

#[test]
fn restart_count_never_falls() {
    let mut case = Case::new(one()).run("a", "3", State::Running, 0, 0);
    let old = json!({"containerStatuses": [{"name": "a", "image": "i", "imageID": "", "ready": true, "restartCount": 7,
        "containerID": "containerd://3", "state": {"running": {}}}]});
    case.old = serde_json::from_value(old).unwrap();
    assert_eq!(app(&case.status(), 0).restart_count, 7);
}

#[test]
fn a_container_that_vanished_is_not_taken_for_one_that_never_ran() {
    let mut case = Case::new(one());
    let old = json!({"phase": "Running", "containerStatuses": [{"name": "a", "image": "i", "imageID": "", "ready": true,
        "restartCount": 1, "containerID": "containerd://3", "state": {"running": {}}}]});
    case.old = serde_json::from_value(old).unwrap();
    let status = case.status();
    let container = app(&status, 0);
    assert_eq!(container.restart_count, 2);
    assert_eq!(container.last_state.unwrap().terminated.unwrap().reason.as_deref(), Some("ContainerStatusUnknown"));
    assert_eq!(status.phase.as_deref(), Some("Running"));
}

#[test]
fn a_restart_of_the_kubelet_makes_no_ready_pod_unready() {
    let spec = json!({"containers": [{"name": "a", "image": "i", "readinessProbe": {"tcpSocket": {"port": 1}}}]});
    let mut case = Case::new(spec).run("a", "1", State::Running, 0, 0);
    case.state.containers[0].started = Some(at(-100));
    assert!(!app(&case.status(), 0).ready);
    case.pod.status = serde_json::from_value(json!({"conditions": [{"type": "Ready", "status": "True"}]})).unwrap();
    assert!(app(&case.status(), 0).ready);
    case.probes.readiness.insert("1".into(), false);
    assert!(!app(&case.status(), 0).ready);
}

#[test]
fn a_terminal_phase_is_never_left_and_foreign_conditions_stay() {
    let mut case = Case::new(one()).run("a", "1", State::Running, 0, 0);
    let api = json!({"phase": "Failed", "reason": "Evicted", "message": "m", "conditions": [
        {"type": "DisruptionTarget", "status": "True"}, {"type": "x/y", "status": "True"}]});
    case.pod.status = serde_json::from_value(api).unwrap();
    case.old = case.pod.status.clone().unwrap();
    let status = case.status();
    assert_eq!((status.phase.as_deref(), status.reason.as_deref()), (Some("Failed"), Some("Evicted")));
    assert!(find(status.conditions.as_ref(), "DisruptionTarget").is_some());
    assert!(find(status.conditions.as_ref(), "x/y").is_some());
    assert_eq!(find(status.conditions.as_ref(), "Ready").unwrap().reason.as_deref(), Some("PodFailed"));
}

#[test]
fn an_ended_pod_shows_completed_conditions() {
    let mut spec = one();
    spec["restartPolicy"] = json!("Never");
    let status = Case::new(spec).run("a", "1", State::Exited, 0, 0).status();
    assert_eq!(status.phase.as_deref(), Some("Succeeded"));
    assert_eq!(find(status.conditions.as_ref(), "Initialized").unwrap().reason.as_deref(), Some("PodCompleted"));
    assert_eq!(find(status.conditions.as_ref(), "Ready").unwrap().reason.as_deref(), Some("PodCompleted"));
}

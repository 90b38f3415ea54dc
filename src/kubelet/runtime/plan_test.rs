//! Plans compared as lists.

use super::*;
use serde_json::json;

fn pod(spec: serde_json::Value) -> Pod {
    serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": spec})).unwrap()
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).unwrap()
}

fn sandbox() -> Sandbox {
    Sandbox { id: "s".into(), ready: true, ips: vec!["10.0.0.1".into()], ..Default::default() }
}

/// A run of `container`, made from the spec as it is.
fn run(pod: &Pod, name: &str, state: State, exit_code: i32) -> Run {
    let place = pods::place_of(pod, name).unwrap();
    let finished = (state == State::Exited).then(|| at(0));
    Run {
        id: format!("id-{name}"),
        name: name.into(),
        sandbox: "s".into(),
        state,
        hash: hash(&pods::container_at(pod, place).unwrap()),
        exit_code,
        finished,
        ..Default::default()
    }
}

struct Case {
    pod: Pod,
    state: PodState,
    probes: ProbeResults,
    backoff: Backoff,
    actuated: HashMap<String, ResourceRequirements>,
    now: Timestamp,
}

impl Case {
    fn new(spec: serde_json::Value, runs: &[(&str, State, i32)]) -> Self {
        let pod = pod(spec);
        let containers = runs.iter().map(|(name, state, code)| run(&pod, name, *state, *code)).collect();
        Self {
            state: PodState { sandboxes: vec![sandbox()], containers },
            pod,
            probes: ProbeResults::default(),
            backoff: Backoff::crash_loop(SignedDuration::from_secs(300)),
            actuated: HashMap::new(),
            now: at(1),
        }
    }

    fn plan(&self) -> Vec<Action> {
        plan(&View {
            pod: &self.pod,
            state: &self.state,
            probes: &self.probes,
            backoff: &self.backoff,
            actuated: &self.actuated,
            restart_all: false,
            now: self.now,
        })
    }
}

fn app(index: usize) -> Action {
    Action::Start(Place { kind: Kind::App, index })
}

fn init(index: usize) -> Action {
    Action::Start(Place { kind: Kind::Init, index })
}

fn killed(name: &str, message: &str, why: Why) -> Action {
    Action::Kill { id: format!("id-{name}"), name: name.into(), message: message.into(), why }
}

fn two() -> serde_json::Value {
    json!({"containers": [{"name": "a", "image": "i"}, {"name": "b", "image": "i"}]})
}

use State::{Exited, Running, Unknown};

#[test]
fn a_new_pod_gets_a_sandbox_and_its_containers() {
    let mut case = Case::new(two(), &[]);
    case.state = PodState::default();
    assert_eq!(case.plan(), [Action::CreateSandbox { attempt: 0 }, app(0), app(1)]);
}

#[test]
fn a_running_pod_is_left_alone() {
    assert_eq!(Case::new(two(), &[("a", Running, 0), ("b", Running, 0)]).plan(), []);
}

#[test]
fn a_dead_sandbox_is_replaced_and_everything_starts_over() {
    let mut case = Case::new(
        json!({"initContainers": [{"name": "i"}], "containers": [{"name": "a"}]}),
        &[("a", Exited, 1), ("i", Exited, 0)],
    );
    case.state.sandboxes[0].ready = false;
    assert_eq!(case.plan(), [Action::KillPod, Action::PurgeInits, Action::CreateSandbox { attempt: 1 }, init(0)]);
}

#[test]
fn a_pod_that_never_restarts_is_over_when_its_sandbox_dies() {
    let mut case = Case::new(json!({"restartPolicy": "Never", "containers": [{"name": "a"}]}), &[("a", Exited, 1)]);
    case.state.sandboxes[0].ready = false;
    assert_eq!(case.plan(), [Action::KillPod]);
}

#[test]
fn a_restart_obeys_on_failure_after_the_sandbox_died() {
    let spec = json!({"restartPolicy": "OnFailure", "containers": [{"name": "a"}, {"name": "b"}]});
    let mut case = Case::new(spec, &[("a", Exited, 0), ("b", Exited, 2)]);
    case.state.sandboxes[0].ready = false;
    assert_eq!(case.plan(), [Action::KillPod, Action::CreateSandbox { attempt: 1 }, app(1)]);
}

#[test]
fn restart_policies_decide_who_runs_again() {
    for (policy, code, expected) in
        [("Always", 0, vec![app(0)]), ("OnFailure", 0, vec![]), ("OnFailure", 1, vec![app(0)]), ("Never", 1, vec![])]
    {
        let spec = json!({"restartPolicy": policy, "containers": [{"name": "a"}, {"name": "b"}]});
        assert_eq!(Case::new(spec, &[("a", Exited, code), ("b", Running, 0)]).plan(), expected, "{policy} {code}");
    }
}

#[test]
fn a_pod_with_nothing_left_to_run_is_killed() {
    let spec = json!({"restartPolicy": "Never", "containers": [{"name": "a"}]});
    assert_eq!(Case::new(spec, &[("a", Exited, 0)]).plan(), [Action::KillPod]);
}

#[test]
fn container_restart_rules_come_before_policies() {
    let spec = json!({"restartPolicy": "Never", "containers": [{"name": "a", "restartPolicy": "Never",
        "restartPolicyRules": [{"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}]}, {"name": "b"}]});
    assert_eq!(Case::new(spec.clone(), &[("a", Exited, 42), ("b", Running, 0)]).plan(), [app(0)]);
    assert_eq!(Case::new(spec, &[("a", Exited, 1), ("b", Running, 0)]).plan(), []);
}

#[test]
fn a_crashing_container_waits_and_holds_up_no_other() {
    let mut case = Case::new(two(), &[("a", Exited, 1)]);
    let key = backoff_key(&case.pod, &pods::apps(&case.pod)[0]);
    case.backoff.step(&key, at(0), at(0));
    let wait = Action::BackOff {
        place: Place { kind: Kind::App, index: 0 },
        until: at(10),
        delay: SignedDuration::from_secs(10),
    };
    assert_eq!(case.plan(), [wait, app(1)]);
    case.now = at(10);
    assert_eq!(case.plan(), [app(0), app(1)]);
}

#[test]
fn init_containers_run_one_after_the_other() {
    let spec = json!({"initContainers": [{"name": "i"}, {"name": "j"}], "containers": [{"name": "a"}]});
    assert_eq!(Case::new(spec.clone(), &[]).plan(), [init(0)]);
    assert_eq!(Case::new(spec.clone(), &[("i", Running, 0)]).plan(), []);
    assert_eq!(Case::new(spec.clone(), &[("i", Exited, 0)]).plan(), [init(1)]);
    assert_eq!(Case::new(spec.clone(), &[("i", Exited, 1)]).plan(), [init(0)]);
    assert_eq!(Case::new(spec.clone(), &[("j", Exited, 0)]).plan(), [app(0)]);
    assert_eq!(Case::new(spec, &[("a", Running, 0)]).plan(), [], "init containers are not run again");
}

#[test]
fn a_failed_init_container_ends_a_pod_that_never_restarts() {
    let spec = json!({"restartPolicy": "Never", "initContainers": [{"name": "i"}], "containers": [{"name": "a"}]});
    assert_eq!(Case::new(spec, &[("i", Exited, 3)]).plan(), [Action::KillPod]);
}

fn with_sidecar() -> serde_json::Value {
    json!({"initContainers": [{"name": "s", "restartPolicy": "Always"}, {"name": "i"}], "containers": [{"name": "a"}]})
}

#[test]
fn sidecars_start_before_and_stay_beside_the_app() {
    assert_eq!(Case::new(with_sidecar(), &[]).plan(), [init(0)]);
    assert_eq!(Case::new(with_sidecar(), &[("s", Running, 0)]).plan(), [init(1)]);
    assert_eq!(Case::new(with_sidecar(), &[("s", Running, 0), ("i", Exited, 0)]).plan(), [app(0)]);
    let died = Case::new(with_sidecar(), &[("s", Exited, 1), ("i", Exited, 0), ("a", Running, 0)]);
    assert_eq!(died.plan(), [init(0)]);
}

#[test]
fn sidecars_do_not_keep_a_finished_pod_alive() {
    let mut spec = with_sidecar();
    spec["restartPolicy"] = json!("Never");
    let case = Case::new(spec, &[("s", Running, 0), ("i", Exited, 0), ("a", Exited, 0)]);
    assert_eq!(case.plan(), [Action::KillPod]);
}

#[test]
fn a_sidecar_with_a_startup_probe_holds_the_next_until_it_passed() {
    let mut spec = with_sidecar();
    spec["initContainers"][0]["startupProbe"] = json!({"exec": {"command": ["true"]}});
    let mut case = Case::new(spec, &[("s", Running, 0)]);
    assert_eq!(case.plan(), []);
    case.probes.startup.insert("id-s".into(), false);
    assert_eq!(case.plan(), [killed("s", "Init container s failed startup probe", Why::Startup), init(0)]);
    // kk#132826: once the restarted sidecar passes, the pod goes on.
    case.probes.startup.insert("id-s".into(), true);
    assert_eq!(case.plan(), [init(1)]);
}

#[test]
fn failed_probes_and_changed_specs_kill_with_upstreams_words() {
    let mut case = Case::new(two(), &[("a", Running, 0), ("b", Running, 0)]);
    case.probes.liveness.insert("id-a".into(), false);
    let text = "Container a failed liveness probe, will be restarted";
    assert_eq!(case.plan(), [killed("a", text, Why::Liveness), app(0)]);
    case.probes = ProbeResults::default();
    case.state.containers[1].hash = 1;
    assert_eq!(case.plan(), [killed("b", "Container b definition changed, will be restarted", Why::Other), app(1)]);
}

#[test]
fn a_container_in_unknown_state_is_killed_before_it_is_started_again() {
    let case = Case::new(json!({"containers": [{"name": "a"}]}), &[("a", Unknown, 0)]);
    let text = "Container is in \"unknown\" state, try killing it before restart";
    assert_eq!(case.plan(), [killed("a", text, Why::Other), app(0)]);
}

#[test]
fn ephemeral_containers_start_once_even_before_the_init_containers_are_done() {
    let spec = json!({"initContainers": [{"name": "i"}], "containers": [{"name": "a"}],
        "ephemeralContainers": [{"name": "d"}, {"name": "e"}]});
    let case = Case::new(spec, &[("i", Running, 0), ("d", Exited, 0)]);
    assert_eq!(case.plan(), [Action::Start(Place { kind: Kind::Ephemeral, index: 1 })]);
}

#[test]
fn a_resize_is_done_in_place_or_by_restart_as_the_policy_says() {
    let spec = json!({"containers": [{"name": "a", "resources": {"requests": {"cpu": "200m"}},
        "resizePolicy": [{"resourceName": "memory", "restartPolicy": "RestartContainer"}]}]});
    let mut case = Case::new(spec, &[("a", Running, 0)]);
    let given = |value| serde_json::from_value::<ResourceRequirements>(value).unwrap();
    case.actuated.insert("a".into(), given(json!({"requests": {"cpu": "0.1"}})));
    let place = Place { kind: Kind::App, index: 0 };
    assert_eq!(case.plan(), [Action::Resize { place, id: "id-a".into() }]);
    case.actuated.insert("a".into(), given(json!({"requests": {"cpu": "0.2"}})));
    assert_eq!(case.plan(), []);
    case.actuated.insert("a".into(), given(json!({"requests": {"cpu": "0.2"}, "limits": {"memory": "1Gi"}})));
    assert_eq!(case.plan(), [killed("a", "Container a resize requires restart", Why::Other), app(0)]);
}

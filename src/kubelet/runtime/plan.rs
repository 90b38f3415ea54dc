//! The plan: a pod, what the runtime holds of it, what its probes say and how long it must wait, turned into a list
//! of actions. Pure; the shell in `sync` runs the list in order.
//!
//! Source of the rules: the pod life cycle as documented (restart policies, init containers, sidecars, probes).

use super::labels::hash;
use super::state::{Container as Run, PodState, Sandbox, State};
use crate::backoff::Backoff;
use crate::pods::{self, Kind, Place, is_sidecar, restart_policy, restarts_when_killed, should_restart};
use crate::units::{milli_of, value_of};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Container, Pod, ResourceRequirements};
use std::collections::HashMap;

/// Why a container is killed; it decides on the grace period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Its liveness probe failed.
    Liveness,
    /// Its startup probe failed.
    Startup,
    /// Its postStart hook failed.
    PostStart,
    /// Anything else.
    Other,
}

/// One step of the plan.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Stop every container and every sandbox of the pod.
    KillPod,
    /// Remove what is left of init containers: the next sandbox starts from the beginning.
    PurgeInits,
    /// Make a sandbox.
    CreateSandbox {
        /// Which try it is.
        attempt: u32,
    },
    /// Stop one container.
    Kill {
        /// The runtime's id.
        id: String,
        /// Its name.
        name: String,
        /// What the event says.
        message: String,
        /// Why.
        why: Why,
    },
    /// Remove a container's remains (after stopping it when it runs), because all containers start over.
    Reset {
        /// The runtime's id.
        id: String,
        /// Its name.
        name: String,
        /// Does it still run?
        running: bool,
    },
    /// Start a container.
    Start(Place),
    /// Leave a crashing container alone for now.
    BackOff {
        /// Which container.
        place: Place,
        /// Until when.
        until: Timestamp,
        /// The delay in force, for the message.
        delay: SignedDuration,
    },
    /// Bring a running container to other resources.
    Resize {
        /// Which container.
        place: Place,
        /// The runtime's id.
        id: String,
    },
}

/// Results of probes by container id: true is success.
#[derive(Clone, Debug, Default)]
pub struct ProbeResults {
    /// Liveness.
    pub liveness: HashMap<String, bool>,
    /// Startup.
    pub startup: HashMap<String, bool>,
    /// Readiness.
    pub readiness: HashMap<String, bool>,
}

/// Everything that the plan looks at.
pub struct View<'a> {
    /// The pod as it shall be, with the resources that this node has granted it.
    pub pod: &'a Pod,
    /// What the runtime holds of it.
    pub state: &'a PodState,
    /// What its probes say.
    pub probes: &'a ProbeResults,
    /// Delays of crashing containers.
    pub backoff: &'a Backoff,
    /// Resources that running containers were last given, by name; a container that is missing here is left alone.
    pub actuated: &'a HashMap<String, ResourceRequirements>,
    /// Has a container asked for all containers to start over?
    pub restart_all: bool,
    /// Now.
    pub now: Timestamp,
}

/// The key under which a container's crashes are counted: a change of image or resources starts a new count.
pub fn backoff_key(pod: &Pod, container: &Container) -> String {
    let resources = container.resources.as_ref().and_then(|r| serde_json::to_string(r).ok()).unwrap_or_default();
    let image = container.image.as_deref().unwrap_or_default();
    format!("{}/{}/{image}/{resources}", pods::uid(pod), container.name)
}

/// Must there be another sandbox, and which try would it be?
pub fn sandbox_outdated(pod: &Pod, state: &PodState) -> (bool, u32) {
    let Some(newest) = state.sandboxes.first() else { return (true, 0) };
    let several = state.sandboxes.iter().filter(|sandbox| sandbox.ready).count() > 1;
    let host_network = pods::host_network(pod);
    let no_address = |sandbox: &Sandbox| !host_network && sandbox.ips.is_empty();
    if several || !newest.ready || newest.host_network != host_network || no_address(newest) {
        return (true, newest.attempt + 1);
    }
    (false, newest.attempt)
}

/// The actions that bring the pod nearer to its spec; empty when there is nothing to do.
pub fn plan(view: &View<'_>) -> Vec<Action> {
    if view.restart_all {
        return reset_all(view);
    }
    let (outdated, attempt) = sandbox_outdated(view.pod, view.state);
    if outdated { with_new_sandbox(view, attempt) } else { in_sandbox(view) }
}

/// The pod needs a sandbox: everything old is stopped, and it starts from the beginning, unless it is done.
fn with_new_sandbox(view: &View<'_>, attempt: u32) -> Vec<Action> {
    let mut actions = vec![Action::KillPod];
    if attempt == 0 && view.state.containers.is_empty() {
        actions.clear();
    }
    // A pod that never restarts is not run again after its sandbox died with containers in it.
    if restart_policy(view.pod) == "Never" && attempt != 0 && !view.state.containers.is_empty() {
        return vec![Action::KillPod];
    }
    let runs_once = |c: &Container| c.restart_policy.as_deref().unwrap_or(restart_policy(view.pod)) == "OnFailure";
    let done = |c: &Container| runs_once(c) && view.state.latest(&c.name).is_some_and(Run::succeeded);
    let to_start: Vec<usize> = apps_where(view.pod, |c| !done(c));
    if to_start.is_empty() && any_app_created(view) {
        return vec![Action::KillPod];
    }
    if !actions.is_empty() && !pods::inits(view.pod).is_empty() {
        actions.push(Action::PurgeInits);
    }
    actions.push(Action::CreateSandbox { attempt });
    if !pods::inits(view.pod).is_empty() {
        actions.push(start_or_wait(view, Place { kind: Kind::Init, index: 0 }));
    } else {
        actions.extend(to_start.into_iter().map(|index| start_or_wait(view, Place { kind: Kind::App, index })));
    }
    actions
}

fn apps_where(pod: &Pod, keep: impl Fn(&Container) -> bool) -> Vec<usize> {
    pods::apps(pod).iter().enumerate().filter(|(_, c)| keep(c)).map(|(index, _)| index).collect()
}

fn any_app_created(view: &View<'_>) -> bool {
    any_app_in(view.pod, view.state, &[State::Created, State::Running, State::Exited])
}

/// Is there an app container in one of the states? It shows that the pod got past its init containers.
pub fn any_app_in(pod: &Pod, state: &PodState, states: &[State]) -> bool {
    pods::apps(pod).iter().filter_map(|c| state.latest(&c.name)).any(|run| states.contains(&run.state))
}

/// What shall happen to the containers of a good sandbox.
#[derive(Default)]
struct Steps {
    kill_pod: bool,
    kills: Vec<Action>,
    ephemerals: Vec<usize>,
    inits: Vec<usize>,
    resizes: Vec<Action>,
    apps: Vec<usize>,
}

fn in_sandbox(view: &View<'_>) -> Vec<Action> {
    let mut steps = Steps::default();
    for (index, container) in pods::ephemerals(view.pod).iter().enumerate() {
        // Ephemeral containers are never started twice.
        if view.state.latest(&container.name).is_none() {
            steps.ephemerals.push(index);
        }
    }
    let initialized = inits(view, &mut steps);
    if !steps.kill_pod && initialized {
        apps(view, &mut steps);
    }
    let Steps { kill_pod, kills, ephemerals, inits, resizes, apps } = steps;
    if kill_pod {
        return vec![Action::KillPod];
    }
    let place = |kind| move |index| start_or_wait(view, Place { kind, index });
    let mut actions = kills;
    actions.extend(ephemerals.into_iter().map(|index| Action::Start(Place { kind: Kind::Ephemeral, index })));
    actions.extend(inits.into_iter().map(place(Kind::Init)));
    actions.extend(resizes);
    actions.extend(apps.into_iter().map(place(Kind::App)));
    actions
}

/// A start, or the wait that a crash loop imposes.
fn start_or_wait(view: &View<'_>, place: Place) -> Action {
    let Some(container) = pods::container_at(view.pod, place) else { return Action::Start(place) };
    let exited = view.state.containers.iter().find(|run| run.name == container.name && run.state == State::Exited);
    let key = backoff_key(view.pod, &container);
    match exited.and_then(|run| view.backoff.waits_since(&key, run.finished.unwrap_or(run.created), view.now)) {
        Some(until) => Action::BackOff { place, until, delay: view.backoff.delay(&key) },
        None => Action::Start(place),
    }
}

fn kill(run: &Run, message: String, why: Why) -> Action {
    Action::Kill { id: run.id.clone(), name: run.name.clone(), message, why }
}

/// Decides on the init containers, from the last one back to the first that has run; true when the pod is past them.
///
/// Going backwards matters: completed ones may have been removed from the runtime, so the last one found tells how
/// far the pod got.
fn inits(view: &View<'_>, steps: &mut Steps) -> bool {
    let list = pods::inits(view.pod);
    if list.is_empty() {
        return true;
    }
    let mut initialized = any_app_in(view.pod, view.state, &[State::Created, State::Running]);
    let mut seen = initialized;
    let last = list.len() - 1;
    for (index, container) in list.iter().enumerate().rev() {
        let sidecar = is_sidecar(container);
        let Some(run) = view.state.latest(&container.name) else {
            if seen && sidecar {
                steps.inits.push(index);
            }
            continue;
        };
        if seen && !sidecar {
            continue;
        }
        // This one is done: the next follows, or the pod is past its init containers.
        let done = |steps: &mut Steps, initialized: &mut bool| match index == last {
            true => *initialized = true,
            false if !seen => steps.inits.push(index + 1),
            false => {}
        };
        match (run.state, sidecar) {
            (State::Created, _) | (State::Exited, true) => steps.inits.push(index),
            (State::Running, false) => resize(view, Place { kind: Kind::Init, index }, container, run, steps),
            (State::Running, true) => match sidecar_state(view, container, run) {
                SidecarState::NotStarted => {}
                SidecarState::StartupFailed => {
                    let text = format!("Init container {} failed startup probe", container.name);
                    steps.kills.push(kill(run, text, Why::Startup));
                    steps.inits.push(index);
                }
                SidecarState::Started => {
                    done(steps, &mut initialized);
                    running_sidecar(view, index, container, run, steps);
                }
            },
            (State::Exited, false) if !run.init_failed() => done(steps, &mut initialized),
            (State::Exited, false) => {
                if !should_restart(view.pod, container, if run.exit_code == 0 { 1 } else { run.exit_code }) {
                    steps.kill_pod = true;
                    steps.inits.clear();
                    return false;
                }
                steps.inits.push(index);
            }
            (State::Unknown, _) => {
                if !sidecar && !restarts_when_killed(view.pod, container) {
                    steps.kill_pod = true;
                    steps.inits.clear();
                    return false;
                }
                let text = format!("Init container is in {:?} state, try killing it before restart", run.state.word());
                steps.kills.push(kill(run, text, Why::Other));
                steps.inits.push(index);
            }
        }
        seen = true;
    }
    if !seen {
        steps.inits.push(0);
    }
    steps.inits.reverse();
    initialized
}

enum SidecarState {
    NotStarted,
    StartupFailed,
    Started,
}

fn sidecar_state(view: &View<'_>, container: &Container, run: &Run) -> SidecarState {
    if container.startup_probe.is_none() {
        return SidecarState::Started;
    }
    match view.probes.startup.get(&run.id) {
        Some(true) => SidecarState::Started,
        Some(false) => SidecarState::StartupFailed,
        None => SidecarState::NotStarted,
    }
}

fn running_sidecar(view: &View<'_>, index: usize, container: &Container, run: &Run, steps: &mut Steps) {
    let reason = if hash(container) != run.hash {
        Some((format!("Init container {} definition changed", container.name), Why::Other))
    } else if container.liveness_probe.is_some() && view.probes.liveness.get(&run.id) == Some(&false) {
        Some((format!("Init container {} failed liveness probe", container.name), Why::Liveness))
    } else {
        None
    };
    match reason {
        Some((text, why)) => {
            steps.kills.push(kill(run, text, why));
            steps.inits.push(index);
        }
        None => resize(view, Place { kind: Kind::Init, index }, container, run, steps),
    }
}

/// Decides on the app containers; without one to keep or to start, the pod is over.
fn apps(view: &View<'_>, steps: &mut Steps) {
    let mut kept = 0;
    for (index, container) in pods::apps(view.pod).iter().enumerate() {
        let run = view.state.latest(&container.name);
        match run {
            Some(run) if run.state == State::Running => {
                kept += usize::from(running_app(view, index, container, run, steps))
            }
            _ => stopped_app(view, index, container, run, steps),
        }
    }
    if kept == 0 && steps.apps.is_empty() {
        steps.kill_pod = true;
        steps.inits.clear();
    }
}

fn stopped_app(view: &View<'_>, index: usize, container: &Container, run: Option<&Run>, steps: &mut Steps) {
    let starts = match run {
        None => true,
        Some(run) => match run.state {
            State::Created | State::Unknown => true,
            _ => should_restart(view.pod, container, run.exit_code),
        },
    };
    if !starts {
        return;
    }
    steps.apps.push(index);
    if let Some(run) = run.filter(|run| run.state == State::Unknown) {
        // It may still run: two of the same must never run beside each other.
        let text = format!("Container is in {:?} state, try killing it before restart", run.state.word());
        steps.kills.push(kill(run, text, Why::Other));
    }
}

/// True when the running container is kept.
fn running_app(view: &View<'_>, index: usize, container: &Container, run: &Run, steps: &mut Steps) -> bool {
    let name = &container.name;
    let mut restart = restarts_when_killed(view.pod, container);
    let (text, why) = if hash(container) != run.hash {
        restart = true;
        (format!("Container {name} definition changed"), Why::Other)
    } else if view.probes.liveness.get(&run.id) == Some(&false) {
        (format!("Container {name} failed liveness probe"), Why::Liveness)
    } else if view.probes.startup.get(&run.id) == Some(&false) {
        (format!("Container {name} failed startup probe"), Why::Startup)
    } else {
        let before = steps.kills.len();
        resize(view, Place { kind: Kind::App, index }, container, run, steps);
        return steps.kills.len() == before;
    };
    let text = if restart { format!("{text}, will be restarted") } else { text };
    if restart {
        steps.apps.push(index);
    }
    steps.kills.push(kill(run, text, why));
    false
}

/// The four numbers that a resize can change.
fn resizable(resources: Option<&ResourceRequirements>) -> [(&'static str, i64); 4] {
    let requests = resources.and_then(|r| r.requests.as_ref());
    let limits = resources.and_then(|r| r.limits.as_ref());
    [
        ("cpu", milli_of(requests, "cpu").unwrap_or(0)),
        ("cpu", milli_of(limits, "cpu").unwrap_or(0)),
        ("memory", value_of(requests, "memory").unwrap_or(0)),
        ("memory", value_of(limits, "memory").unwrap_or(0)),
    ]
}

/// Does the running container have other resources than its spec wants?
pub fn resize_wanted(container: &Container, actuated: &ResourceRequirements) -> bool {
    resizable(container.resources.as_ref()) != resizable(Some(actuated))
}

/// A resize in place, or a restart where the container's policy wants one.
fn resize(view: &View<'_>, place: Place, container: &Container, run: &Run, steps: &mut Steps) {
    let Some(actuated) = view.actuated.get(&container.name) else { return };
    let (wanted, current) = (resizable(container.resources.as_ref()), resizable(Some(actuated)));
    if wanted == current {
        return;
    }
    let policies = container.resize_policy.as_deref().unwrap_or_default();
    let needs_restart = wanted.iter().zip(&current).filter(|(a, b)| a != b).any(|((resource, _), _)| {
        policies.iter().any(|policy| policy.resource_name == *resource && policy.restart_policy == "RestartContainer")
    });
    if !needs_restart {
        steps.resizes.push(Action::Resize { place, id: run.id.clone() });
        return;
    }
    steps.kills.push(kill(run, format!("Container {} resize requires restart", container.name), Why::Other));
    match place.kind {
        Kind::Init => steps.inits.push(place.index),
        _ => steps.apps.push(place.index),
    }
}

/// Everything is removed, those that asked for it last.
fn reset_all(view: &View<'_>) -> Vec<Action> {
    let (mut others, mut sources) = (Vec::new(), Vec::new());
    for container in pods::apps(view.pod).iter().chain(pods::inits(view.pod)) {
        for run in view.state.containers.iter().filter(|run| run.name == container.name) {
            let asked = run.state == State::Exited && asks_for_reset(container, run.exit_code);
            let running = run.state != State::Exited;
            let action = Action::Reset { id: run.id.clone(), name: run.name.clone(), running };
            if asked { sources.push(action) } else { others.push(action) }
        }
    }
    others.append(&mut sources);
    others
}

/// Does the exit of the container start all containers over?
pub fn asks_for_reset(container: &Container, exit_code: i32) -> bool {
    pods::restart_rule(container, exit_code).is_some_and(|rule| rule.action == "RestartAllContainers")
}

#[cfg(test)]
#[path = "plan_test.rs"]
mod tests;

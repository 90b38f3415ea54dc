//! Container statuses, from the runtime's containers and the statuses before.

use crate::pods::{self, Kind, Place, is_sidecar, should_restart, status_of};
use crate::runtime::plan::any_app_in;
use crate::runtime::state::{Container as Run, PodState, State};
use crate::units::{from_bytes, from_milli, milli, value};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting, ContainerStatus,
    ContainerUser, LinuxContainerUser, Pod, ResourceRequirements, VolumeMountStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use std::collections::HashMap;

/// The least cpu limit that the kernel enforces, in thousandths.
const MIN_MILLI_LIMIT: i64 = 10;

/// Why a container was not started: reason and message, by container name.
pub type Reasons = HashMap<String, (String, String)>;

/// What the statuses of one list are made from.
pub struct Input<'a> {
    /// The pod.
    pub pod: &'a Pod,
    /// Which list.
    pub kind: Kind,
    /// What the runtime holds.
    pub state: &'a PodState,
    /// The statuses before.
    pub old: Option<&'a Vec<ContainerStatus>>,
    /// Failures of the last attempts to start.
    pub reasons: &'a Reasons,
    /// The runtime's name, the scheme of container ids.
    pub runtime: &'a str,
    /// Do all containers start over?
    pub restarting_all: bool,
}

/// The statuses of one list of containers: app and ephemeral ones by name, init containers in order of the spec.
pub fn statuses(input: &Input<'_>) -> Vec<ContainerStatus> {
    let mut list: Vec<ContainerStatus> = specs(input).iter().map(|container| one(input, container)).collect();
    if input.kind != Kind::Init {
        list.sort_by(|a, b| a.name.cmp(&b.name));
    }
    list
}

fn specs(input: &Input<'_>) -> Vec<Container> {
    pods::places(input.pod)
        .filter(|(place, _)| place.kind == input.kind)
        .filter_map(|(place, _): (Place, _)| pods::container_at(input.pod, place))
        .collect()
}

fn one(input: &Input<'_>, container: &Container) -> ContainerStatus {
    let old = status_of(input.old, &container.name);
    let runs: Vec<&Run> = input.state.containers.iter().filter(|run| run.name == container.name).take(2).collect();
    let mut status = match runs.first() {
        Some(run) => from_run(input, container, run, old),
        None => without_run(input, container, old),
    };
    if let Some(before) = runs.get(1) {
        status.last_state = Some(state_of(input, before, None).0);
    }
    waiting_to_start(input, container, &mut status);
    status
}

fn waiting(reason: &str, message: &str) -> ContainerState {
    let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let waiting = ContainerStateWaiting { reason: text(reason), message: text(message) };
    ContainerState { waiting: Some(waiting), ..Default::default() }
}

fn terminated(reason: &str, message: &str, exit_code: i32) -> ContainerState {
    let terminated = ContainerStateTerminated {
        reason: Some(reason.into()),
        message: Some(message.into()),
        exit_code,
        ..Default::default()
    };
    ContainerState { terminated: Some(terminated), ..Default::default() }
}

fn default_reason(pod: &Pod) -> &'static str {
    if pods::inits(pod).is_empty() { "ContainerCreating" } else { "PodInitializing" }
}

fn was_running(old: &ContainerStatus) -> bool {
    old.state.as_ref().is_some_and(|state| state.running.is_some())
}

fn was_terminated(old: &ContainerStatus) -> bool {
    old.state.as_ref().is_some_and(|state| state.terminated.is_some())
}

fn last_terminated(status: &ContainerStatus) -> bool {
    status.last_state.as_ref().is_some_and(|state| state.terminated.is_some())
}

/// The runtime knows nothing of the container: it never ran, or its remains are gone.
fn without_run(input: &Input<'_>, container: &Container, old: Option<&ContainerStatus>) -> ContainerStatus {
    let mut status = ContainerStatus {
        name: container.name.clone(),
        image: container.image.clone().unwrap_or_default(),
        state: Some(waiting(default_reason(input.pod), "")),
        last_state: Some(ContainerState::default()),
        volume_mounts: mounts(container),
        ..Default::default()
    };
    let Some(old) = old else { return status };
    if was_terminated(old) && !input.restarting_all {
        return old.clone();
    }
    status.restart_count = old.restart_count;
    status.last_state = old.last_state.clone();
    let running_before = was_running(old);
    if input.restarting_all && (running_before || was_terminated(old)) {
        let text = "The container is removed because RestartAllContainers in place";
        status.state = Some(waiting("RestartingAllContainers", text));
        status.last_state = Some(terminated("RestartingAllContainers", text, 137));
        status.restart_count += 1;
    } else if running_before && !last_terminated(&status) {
        // It ran and is gone: it must not look as if it had never run.
        let text = "The container could not be located when the pod was deleted.  The container used to be Running";
        status.last_state = Some(terminated("ContainerStatusUnknown", text, 137));
        status.restart_count += i32::from(!pods::is_deleting(input.pod));
    }
    status
}

fn from_run(input: &Input<'_>, container: &Container, run: &Run, old: Option<&ContainerStatus>) -> ContainerStatus {
    let (state, lost) = state_of(input, run, old);
    let mut status = ContainerStatus {
        name: run.name.clone(),
        restart_count: run.restart_count,
        image: run.image.clone(),
        image_id: run.image_ref.clone(),
        container_id: Some(id_of(input, run)),
        state: Some(state),
        last_state: Some(ContainerState::default()),
        volume_mounts: old.and_then(|old| old.volume_mounts.clone()).or_else(|| mounts(container)),
        ..Default::default()
    };
    if let Some(old) = old {
        status.restart_count = status.restart_count.max(old.restart_count + i32::from(lost));
        let replaced = old.container_id != status.container_id && was_terminated(old);
        if replaced {
            status.last_state = old.state.clone();
        } else if last_terminated(old) {
            status.last_state = old.last_state.clone();
        }
        if run.state == State::Running {
            // A container that took the place of a terminated one has restarted, whatever the runtime remembers.
            if replaced && old.restart_count >= run.restart_count {
                status.restart_count = old.restart_count + 1;
            }
            status.started = old.started.filter(|_| old.container_id == status.container_id);
        }
    }
    status.resources = Some(resources_of(container, run));
    status.allocated_resources = container.resources.as_ref().and_then(|r| r.requests.clone());
    status.user = run.user.as_ref().map(|user| ContainerUser {
        linux: Some(LinuxContainerUser {
            uid: user.uid,
            gid: user.gid,
            supplemental_groups: Some(user.groups.clone()).filter(|groups| !groups.is_empty()),
        }),
    });
    status
}

fn id_of(input: &Input<'_>, run: &Run) -> String {
    format!("{}://{}", input.runtime, run.id)
}

fn stamp(time: Option<Timestamp>) -> Option<Time> {
    time.map(Time)
}

/// The state, and whether the runtime lost a container that was running.
fn state_of(input: &Input<'_>, run: &Run, old: Option<&ContainerStatus>) -> (ContainerState, bool) {
    let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    match run.state {
        State::Running => {
            let running = ContainerStateRunning { started_at: stamp(run.started) };
            (ContainerState { running: Some(running), ..Default::default() }, false)
        }
        State::Exited => {
            let terminated = ContainerStateTerminated {
                exit_code: run.exit_code,
                reason: text(&run.reason),
                message: text(&run.message),
                started_at: stamp(run.started.or(Some(Timestamp::UNIX_EPOCH))),
                finished_at: stamp(run.finished),
                container_id: Some(id_of(input, run)),
                ..Default::default()
            };
            (ContainerState { terminated: Some(terminated), ..Default::default() }, false)
        }
        State::Unknown if old.is_some_and(was_running) => {
            let reason = if input.restarting_all { "RestartingAllContainers" } else { "ContainerStatusUnknown" };
            (terminated(reason, "The container could not be located when the pod was terminated", 137), true)
        }
        State::Created | State::Unknown => (waiting("", ""), false),
    }
}

/// Resources in force: what was granted, corrected by what the runtime reports of a running container.
fn resources_of(container: &Container, run: &Run) -> ResourceRequirements {
    let mut resources = container.resources.clone().unwrap_or_default();
    resources.claims = None;
    let Some(actual) = run.resources.filter(|_| run.state == State::Running) else { return resources };
    // Values at or below the kernel's least are kept as written.
    if let Some(limits) = &mut resources.limits {
        if let Some(cpu) = actual.cpu_limit
            && let Some(own) = limits.get("cpu").map(milli)
            && own != cpu
            && (cpu > MIN_MILLI_LIMIT || own > MIN_MILLI_LIMIT)
        {
            limits.insert("cpu".into(), from_milli(cpu));
        }
        if let Some(memory) = actual.memory_limit
            && limits.get("memory").is_some_and(|quantity| value(quantity) != memory)
        {
            limits.insert("memory".into(), from_bytes(memory));
        }
    }
    if let Some(requests) = &mut resources.requests
        && let Some(cpu) = actual.cpu_request
        && let Some(own) = requests.get("cpu").map(milli)
        && (cpu > 2 || own > 2)
        && crate::runtime::resources::milli_to_shares(own) != crate::runtime::resources::milli_to_shares(cpu)
    {
        requests.insert("cpu".into(), from_milli(cpu));
    }
    resources
}

fn mounts(container: &Container) -> Option<Vec<VolumeMountStatus>> {
    let list = container.volume_mounts.as_ref().filter(|list| !list.is_empty())?;
    Some(
        list.iter()
            .map(|mount| VolumeMountStatus {
                name: mount.name.clone(),
                mount_path: mount.mount_path.clone(),
                read_only: mount.read_only,
                // Runtimes that mount recursively read-only are newer than those this kubelet has met.
                recursive_read_only: (mount.read_only == Some(true)).then(|| "Disabled".into()),
                ..Default::default()
            })
            .collect(),
    )
}

/// A container that shall start and could not shows why.
fn waiting_to_start(input: &Input<'_>, container: &Container, status: &mut ContainerStatus) {
    let run = input.state.latest(&container.name);
    if input.kind == Kind::Init {
        if run.is_some_and(Run::succeeded) {
            return;
        }
        let past_inits = any_app_in(input.pod, input.state, &[State::Created, State::Running, State::Exited]);
        let is_waiting = status.state.as_ref().is_some_and(|state| state.waiting.is_some());
        if run.is_none() && past_inits && !is_sidecar(container) && is_waiting {
            let text = "Unable to get init container status from container runtime and pod has been initialized, treat it as exited normally";
            status.state = Some(terminated("Completed", text, 0));
            return;
        }
    }
    let starts = !pods::is_deleting(input.pod)
        && match run {
            None => true,
            Some(run) if run.state == State::Running => false,
            Some(run) if run.state == State::Exited => should_restart(input.pod, container, run.exit_code),
            Some(_) => true,
        };
    let Some((reason, message)) = input.reasons.get(&container.name).filter(|_| starts) else { return };
    if status.state.as_ref().is_some_and(|state| state.terminated.is_some()) {
        status.last_state = status.state.take();
    }
    status.state = Some(waiting(reason, message));
}

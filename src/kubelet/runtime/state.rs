//! What the runtime holds of a pod, in the kubelet's own terms.

use super::exits::Kind;
use super::labels;
use jiff::Timestamp;
use k8s_cri::v1;
use std::collections::HashMap;

/// State of a container in the runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Made, never started.
    Created,
    /// Running.
    Running,
    /// Ended.
    Exited,
    /// The runtime lost track of it.
    Unknown,
}

impl State {
    /// From the number on the wire.
    pub fn from_cri(state: i32) -> Self {
        match v1::ContainerState::try_from(state) {
            Ok(v1::ContainerState::ContainerCreated) => State::Created,
            Ok(v1::ContainerState::ContainerRunning) => State::Running,
            Ok(v1::ContainerState::ContainerExited) => State::Exited,
            _ => State::Unknown,
        }
    }

    /// The word that messages use.
    pub fn word(self) -> &'static str {
        match self {
            State::Created => "created",
            State::Running => "running",
            State::Exited => "exited",
            State::Unknown => "unknown",
        }
    }
}

/// Resources in force, as the runtime reports them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InForce {
    /// Requested cpu in thousandths, from the shares.
    pub cpu_request: Option<i64>,
    /// Limit of cpu in thousandths, from quota and period.
    pub cpu_limit: Option<i64>,
    /// Limit of memory in bytes.
    pub memory_limit: Option<i64>,
}

/// User of the first process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    /// User id.
    pub uid: i64,
    /// Group id.
    pub gid: i64,
    /// Further groups.
    pub groups: Vec<i64>,
}

/// One container of a pod: one run of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Container {
    /// The runtime's id.
    pub id: String,
    /// The name in the pod's spec.
    pub name: String,
    /// The sandbox it lives in.
    pub sandbox: String,
    /// Its state.
    pub state: State,
    /// The image as it is shown.
    pub image: String,
    /// The image by digest.
    pub image_ref: String,
    /// Hash of the spec it was made from.
    pub hash: u64,
    /// How often the name ran before.
    pub restart_count: i32,
    /// When it was made.
    pub created: Timestamp,
    /// When it was started.
    pub started: Option<Timestamp>,
    /// When it ended.
    pub finished: Option<Timestamp>,
    /// Exit code; meaningful when it ended.
    pub exit_code: i32,
    /// Why it ended, in one word.
    pub reason: String,
    /// Why it ended.
    pub message: String,
    /// Resources in force.
    pub resources: Option<InForce>,
    /// User of the first process.
    pub user: Option<User>,
    /// Its log file.
    pub log_path: String,
    /// How often it was tried in this sandbox.
    pub attempt: u32,
}

impl Default for Container {
    fn default() -> Self {
        Self {
            id: String::new(),
            name: String::new(),
            sandbox: String::new(),
            state: State::Unknown,
            image: String::new(),
            image_ref: String::new(),
            hash: 0,
            restart_count: 0,
            created: Timestamp::UNIX_EPOCH,
            started: None,
            finished: None,
            exit_code: 0,
            reason: String::new(),
            message: String::new(),
            resources: None,
            user: None,
            log_path: String::new(),
            attempt: 0,
        }
    }
}

impl Container {
    /// Did it end well?
    pub fn succeeded(&self) -> bool {
        self.state == State::Exited && self.exit_code == 0
    }

    /// Did it, as an init container, fail? Being out of memory counts whatever the exit code says.
    pub fn init_failed(&self) -> bool {
        self.reason == "OOMKilled" || self.state == State::Unknown || self.state == State::Exited && self.exit_code != 0
    }

    /// From the runtime's answer; `sandbox` is not part of it. The termination message is added by the caller.
    pub fn from_cri(status: v1::ContainerStatus, sandbox: String) -> Self {
        let state = State::from_cri(status.state);
        let notes = labels::Notes::read(&status.annotations);
        let exited = state == State::Exited;
        let user = status.user.and_then(|user| user.linux).map(|user| User {
            uid: user.uid,
            gid: user.gid,
            groups: user.supplemental_groups,
        });
        Self {
            name: status.labels.get(labels::CONTAINER_NAME).cloned().unwrap_or_default(),
            sandbox,
            state,
            image: status.image.map(|image| image.image).unwrap_or_default(),
            image_ref: status.image_ref,
            hash: notes.hash,
            restart_count: notes.restart_count,
            created: time(status.created_at).unwrap_or(Timestamp::UNIX_EPOCH),
            started: (state != State::Created).then(|| time(status.started_at)).flatten(),
            finished: exited.then(|| time(status.finished_at)).flatten(),
            exit_code: if exited { status.exit_code } else { 0 },
            reason: if exited { status.reason } else { String::new() },
            message: if exited { status.message } else { String::new() },
            resources: status.resources.and_then(|r| r.linux).map(in_force),
            user,
            log_path: status.log_path,
            attempt: status.metadata.map(|m| m.attempt).unwrap_or(0),
            id: status.id,
        }
    }
}

/// Nanoseconds since 1970 as a time; 0 is none.
pub fn time(nanoseconds: i64) -> Option<Timestamp> {
    (nanoseconds > 0).then(|| Timestamp::from_nanosecond(nanoseconds.into()).ok()).flatten()
}

fn in_force(linux: v1::LinuxContainerResources) -> InForce {
    let positive = |value: i64| (value > 0).then_some(value);
    let cpu_limit =
        positive(linux.cpu_quota).zip(positive(linux.cpu_period)).map(|(quota, period)| quota * 1000 / period);
    InForce {
        cpu_request: positive(linux.cpu_shares).map(super::resources::shares_to_milli),
        cpu_limit,
        memory_limit: positive(linux.memory_limit_in_bytes),
    }
}

/// The pod's sandbox: the thing that holds its network and cgroup.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sandbox {
    /// The runtime's id.
    pub id: String,
    /// Is it up?
    pub ready: bool,
    /// Which try it is.
    pub attempt: u32,
    /// Does it use the node's network?
    pub host_network: bool,
    /// Its addresses, the first one first.
    pub ips: Vec<String>,
    /// When it was made, in nanoseconds since 1970.
    pub created: i64,
}

impl Sandbox {
    /// From the runtime's answer.
    pub fn from_cri(status: v1::PodSandboxStatus) -> Self {
        let network = status.linux.and_then(|l| l.namespaces).and_then(|n| n.options).map(|o| o.network);
        let mut ips = Vec::new();
        if let Some(network) = status.network {
            ips.extend(Some(network.ip).filter(|ip| !ip.is_empty()));
            ips.extend(network.additional_ips.into_iter().map(|ip| ip.ip));
        }
        Self {
            id: status.id,
            ready: status.state == v1::PodSandboxState::SandboxReady as i32,
            attempt: status.metadata.map(|m| m.attempt).unwrap_or(0),
            host_network: network == Some(v1::NamespaceMode::Node as i32),
            ips,
            created: status.created_at,
        }
    }
}

/// All that the runtime holds of one pod. Both lists have the newest first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodState {
    /// Sandboxes.
    pub sandboxes: Vec<Sandbox>,
    /// Containers, old runs included.
    pub containers: Vec<Container>,
}

impl PodState {
    /// The newest run of the container called `name`.
    pub fn latest(&self, name: &str) -> Option<&Container> {
        self.containers.iter().find(|container| container.name == name)
    }

    /// Is anything of the pod running, or perhaps running?
    pub fn any_running(&self) -> bool {
        self.containers.iter().any(|c| matches!(c.state, State::Running | State::Unknown))
    }

    /// The pod's addresses: those of the newest sandbox while it is up.
    pub fn ips(&self) -> &[String] {
        match self.sandboxes.first() {
            Some(sandbox) if sandbox.ready => &sandbox.ips,
            _ => &[],
        }
    }

    /// Containers in the sandbox that is up.
    pub fn in_active_sandbox(&self) -> impl Iterator<Item = &Container> {
        let active = self.sandboxes.first().filter(|sandbox| sandbox.ready).map(|sandbox| sandbox.id.clone());
        self.containers.iter().filter(move |c| Some(&c.sandbox) == active.as_ref())
    }
}

/// What one listing of the runtime says about a pod: enough to see that something changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Glance {
    /// Name and namespace, from the labels.
    pub name: String,
    /// Namespace.
    pub namespace: String,
    /// Does it come from a manifest of the node?
    pub from_file: bool,
    /// Sandboxes by id: is it up?
    pub sandboxes: HashMap<String, bool>,
    /// Containers by id: state number.
    pub containers: HashMap<String, i32>,
}

impl Glance {
    /// What of it is up, by id.
    pub fn up(&self) -> impl Iterator<Item = (&str, Kind)> {
        let running = v1::ContainerState::ContainerRunning as i32;
        let containers = self.containers.iter().filter(move |(_, state)| **state == running);
        let sandboxes = self.sandboxes.iter().filter(|(_, ready)| **ready);
        let containers = containers.map(|(id, _)| (&**id, Kind::Container));
        containers.chain(sandboxes.map(|(id, _)| (&**id, Kind::Sandbox)))
    }

    /// Is anything of it up?
    pub fn alive(&self) -> bool {
        self.up().next().is_some()
    }
}

/// Sorts one listing of sandboxes and containers by pod UID.
pub fn glance(sandboxes: Vec<v1::PodSandbox>, containers: Vec<v1::Container>) -> HashMap<String, Glance> {
    let mut pods: HashMap<String, Glance> = HashMap::new();
    let at = |labels: &HashMap<String, String>| -> Option<(String, String, String)> {
        let get = |key: &str| labels.get(key).cloned().unwrap_or_default();
        let uid = labels.get(labels::POD_UID)?.clone();
        Some((uid, get(labels::POD_NAME), get(labels::POD_NAMESPACE)))
    };
    for sandbox in sandboxes {
        let Some((uid, name, namespace)) = at(&sandbox.labels) else { continue };
        let pod = pods.entry(uid).or_insert_with(|| Glance { name, namespace, ..Default::default() });
        pod.from_file |= sandbox.annotations.get(crate::pods::CONFIG_SOURCE).is_some_and(|source| source == "file");
        pod.sandboxes.insert(sandbox.id, sandbox.state == v1::PodSandboxState::SandboxReady as i32);
    }
    for container in containers {
        let Some((uid, name, namespace)) = at(&container.labels) else { continue };
        let pod = pods.entry(uid).or_insert_with(|| Glance { name, namespace, ..Default::default() });
        pod.containers.insert(container.id, container.state);
    }
    pods
}

/// Pods whose listing differs between two glances.
pub fn changed(before: &HashMap<String, Glance>, after: &HashMap<String, Glance>) -> Vec<String> {
    let differs = |uid: &&String| before.get(*uid) != after.get(*uid);
    let gone = before.keys().filter(|uid| !after.contains_key(*uid));
    after.keys().filter(differs).chain(gone).cloned().collect()
}

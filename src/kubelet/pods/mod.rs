//! What can be read off a pod: pure questions about its spec, answered once.

pub mod admit;
pub mod downward;
pub mod env;
pub mod expand;
pub mod files;
pub mod preempt;
pub mod qos;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::core::v1::{Container, ContainerRestartRule, ContainerStatus, EphemeralContainer, Pod, PodSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

/// Where a pod came from: `file`, `http` or `api`.
pub const CONFIG_SOURCE: &str = "kubernetes.io/config.source";
/// The hash of a static pod's manifest; also its UID.
pub const CONFIG_HASH: &str = "kubernetes.io/config.hash";
/// On the API's copy of a static pod: the hash it mirrors.
pub const CONFIG_MIRROR: &str = "kubernetes.io/config.mirror";
/// When the kubelet first saw the pod.
pub const CONFIG_SEEN: &str = "kubernetes.io/config.seen";

/// Which list of the spec a container stands in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// `spec.initContainers`
    Init,
    /// `spec.containers`
    App,
    /// `spec.ephemeralContainers`
    Ephemeral,
}

impl Kind {
    /// The field of the spec, as events name it.
    pub fn field(self) -> &'static str {
        match self {
            Kind::Init => "spec.initContainers",
            Kind::App => "spec.containers",
            Kind::Ephemeral => "spec.ephemeralContainers",
        }
    }
}

/// A container's place in its pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// Which list.
    pub kind: Kind,
    /// Index in that list.
    pub index: usize,
}

/// The pod's spec; a pod without one reads as empty.
pub fn spec(pod: &Pod) -> &PodSpec {
    static EMPTY: std::sync::LazyLock<PodSpec> = std::sync::LazyLock::new(PodSpec::default);
    pod.spec.as_ref().unwrap_or(&EMPTY)
}

/// Init containers.
pub fn inits(pod: &Pod) -> &[Container] {
    spec(pod).init_containers.as_deref().unwrap_or_default()
}

/// App containers.
pub fn apps(pod: &Pod) -> &[Container] {
    &spec(pod).containers
}

/// Ephemeral containers.
pub fn ephemerals(pod: &Pod) -> &[EphemeralContainer] {
    spec(pod).ephemeral_containers.as_deref().unwrap_or_default()
}

/// The container at a place; an ephemeral one in the form of an ordinary one.
pub fn container_at(pod: &Pod, place: Place) -> Option<Container> {
    match place.kind {
        Kind::Init => inits(pod).get(place.index).cloned(),
        Kind::App => apps(pod).get(place.index).cloned(),
        Kind::Ephemeral => ephemerals(pod).get(place.index).map(as_container),
    }
}

/// Every container with its place: init, app, ephemeral.
pub fn places(pod: &Pod) -> impl Iterator<Item = (Place, &str)> {
    let init = inits(pod).iter().enumerate().map(|(index, c)| (Place { kind: Kind::Init, index }, c.name.as_str()));
    let app = apps(pod).iter().enumerate().map(|(index, c)| (Place { kind: Kind::App, index }, c.name.as_str()));
    let ephemeral =
        ephemerals(pod).iter().enumerate().map(|(index, c)| (Place { kind: Kind::Ephemeral, index }, c.name.as_str()));
    init.chain(app).chain(ephemeral)
}

/// Where the container called `name` stands.
pub fn place_of(pod: &Pod, name: &str) -> Option<Place> {
    places(pod).find(|(_, n)| *n == name).map(|(place, _)| place)
}

/// An ephemeral container in the form of an ordinary one.
pub fn as_container(e: &EphemeralContainer) -> Container {
    Container {
        args: e.args.clone(),
        command: e.command.clone(),
        env: e.env.clone(),
        env_from: e.env_from.clone(),
        image: e.image.clone(),
        image_pull_policy: e.image_pull_policy.clone(),
        lifecycle: e.lifecycle.clone(),
        liveness_probe: e.liveness_probe.clone(),
        name: e.name.clone(),
        ports: e.ports.clone(),
        readiness_probe: e.readiness_probe.clone(),
        resize_policy: e.resize_policy.clone(),
        resources: e.resources.clone(),
        restart_policy: e.restart_policy.clone(),
        restart_policy_rules: e.restart_policy_rules.clone(),
        security_context: e.security_context.clone(),
        startup_probe: e.startup_probe.clone(),
        stdin: e.stdin,
        stdin_once: e.stdin_once,
        termination_message_path: e.termination_message_path.clone(),
        termination_message_policy: e.termination_message_policy.clone(),
        tty: e.tty,
        volume_devices: e.volume_devices.clone(),
        volume_mounts: e.volume_mounts.clone(),
        working_dir: e.working_dir.clone(),
    }
}

/// Name, namespace, UID of a pod; empty where missing.
pub fn name(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or_default()
}

/// Namespace of a pod.
pub fn namespace(pod: &Pod) -> &str {
    pod.metadata.namespace.as_deref().unwrap_or_default()
}

/// UID of a pod.
pub fn uid(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap_or_default()
}

/// `name_namespace`, the key under which a static pod and its mirror meet.
pub fn full_name(pod: &Pod) -> String {
    format!("{}_{}", name(pod), namespace(pod))
}

/// `name_namespace(uid)`, the form of messages.
pub fn describe(pod: &Pod) -> String {
    format!("{}_{}({})", name(pod), namespace(pod), uid(pod))
}

/// An annotation's value.
pub fn annotation<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    pod.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

/// Does the pod come from a manifest on this node?
pub fn is_static(pod: &Pod) -> bool {
    annotation(pod, CONFIG_SOURCE).is_some_and(|source| source != "api") && !is_mirror(pod)
}

/// Is the pod the API's copy of a static pod?
pub fn is_mirror(pod: &Pod) -> bool {
    annotation(pod, CONFIG_MIRROR).is_some()
}

/// Has the API asked for the pod's end?
pub fn is_deleting(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

/// The phase that the API shows.
pub fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

/// Is `phase` one that a pod never leaves?
pub fn is_terminal(phase: &str) -> bool {
    matches!(phase, "Succeeded" | "Failed")
}

/// Static pods and pods of system-critical priority.
pub fn is_critical(pod: &Pod) -> bool {
    const SYSTEM_CRITICAL: i32 = 2_000_000_000;
    is_static(pod) || is_mirror(pod) || spec(pod).priority.is_some_and(|priority| priority >= SYSTEM_CRITICAL)
}

/// Does the pod share the node's network?
pub fn host_network(pod: &Pod) -> bool {
    spec(pod).host_network.unwrap_or(false)
}

/// The pod's restart policy.
pub fn restart_policy(pod: &Pod) -> &str {
    spec(pod).restart_policy.as_deref().unwrap_or("Always")
}

/// Is the init container a sidecar, that is: does it run beside the app containers?
pub fn is_sidecar(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

/// Does the pod have a sidecar?
pub fn has_sidecar(pod: &Pod) -> bool {
    inits(pod).iter().any(is_sidecar)
}

/// The first restart rule that speaks about `exit_code`.
pub fn restart_rule(container: &Container, exit_code: i32) -> Option<&ContainerRestartRule> {
    container.restart_policy_rules.as_deref().unwrap_or_default().iter().find(|rule| {
        rule.exit_codes.as_ref().is_some_and(|codes| {
            let listed = codes.values.as_deref().unwrap_or_default().contains(&exit_code);
            match codes.operator.as_str() {
                "In" => listed,
                "NotIn" => !listed,
                _ => false,
            }
        })
    })
}

/// Shall the container run again after it exited with `exit_code`?
pub fn should_restart(pod: &Pod, container: &Container, exit_code: i32) -> bool {
    let by_policy = |policy: &str| match policy {
        "Never" => false,
        "OnFailure" => exit_code != 0,
        _ => true,
    };
    match container.restart_policy.as_deref() {
        Some(policy) => restart_rule(container, exit_code).is_some() || by_policy(policy),
        None => by_policy(restart_policy(pod)),
    }
}

/// Shall a container that is killed while it runs be started again? Only policies count: there is no exit code.
pub fn restarts_when_killed(pod: &Pod, container: &Container) -> bool {
    container.restart_policy.as_deref().unwrap_or(restart_policy(pod)) != "Never"
}

/// The grace period of the pod: what the deletion asked for, else the spec's.
pub fn grace_seconds(pod: &Pod) -> i64 {
    pod.metadata.deletion_grace_period_seconds.or(spec(pod).termination_grace_period_seconds).unwrap_or(30)
}

/// The status of the container called `name` in `list`.
pub fn status_of<'a>(list: Option<&'a Vec<ContainerStatus>>, name: &str) -> Option<&'a ContainerStatus> {
    list?.iter().find(|status| status.name == name)
}

/// A port given by number or by the name of one of the container's ports.
pub fn resolve_port(port: &IntOrString, container: &Container) -> Result<u16, String> {
    let number = match port {
        IntOrString::Int(number) => *number,
        IntOrString::String(name) => match name.parse::<i32>() {
            Ok(number) => number,
            Err(_) => container
                .ports
                .as_deref()
                .unwrap_or_default()
                .iter()
                .find(|port| port.name.as_deref() == Some(name))
                .map(|port| port.container_port)
                .ok_or_else(|| format!("couldn't find port: {name} in container {}", container.name))?,
        },
    };
    match number {
        1..=65535 => Ok(number as u16),
        _ => Err(format!("invalid port number: {number}")),
    }
}

/// A reference to the pod, as events carry it.
pub fn reference(pod: &Pod) -> ObjectReference {
    // A static pod's events go to its mirror in the API, which is known there by the manifest's hash.
    ObjectReference {
        api_version: Some("v1".into()),
        kind: Some("Pod".into()),
        name: pod.metadata.name.clone(),
        namespace: pod.metadata.namespace.clone(),
        uid: pod.metadata.uid.clone(),
        resource_version: pod.metadata.resource_version.clone(),
        ..Default::default()
    }
}

/// A reference to a container of the pod, with the field path that events carry.
pub fn container_reference(pod: &Pod, name: &str) -> ObjectReference {
    let field_path = place_of(pod, name).map(|place| format!("{}{{{name}}}", place.kind.field()));
    ObjectReference { field_path, ..reference(pod) }
}

//! The whole status of a pod. Pure: what the runtime holds, the status before, the probes' results and the node's
//! addresses in; the status out.

use super::conditions::{self, condition};
use super::containers::{Input, Reasons, statuses};
use super::phase::phase;
use crate::pods::qos::{self, Side};
use crate::pods::{self, Kind, apps, inits, is_terminal};
use crate::runtime::plan::{ProbeResults, asks_for_reset, sandbox_outdated};
use crate::runtime::state::{PodState, State};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, ContainerStatus, HostIP, Pod, PodCondition, PodIP, PodStatus, Probe};

/// What a pod's status is made from.
pub struct View<'a> {
    /// The pod, with the resources that this node has granted it.
    pub pod: &'a Pod,
    /// What the runtime holds.
    pub state: &'a PodState,
    /// The status before; the API's when the kubelet has none.
    pub old: &'a PodStatus,
    /// Failures of the last attempts to start.
    pub reasons: &'a Reasons,
    /// What the probes say.
    pub probes: &'a ProbeResults,
    /// The runtime's name.
    pub runtime: &'a str,
    /// The node's addresses; empty without an API server.
    pub host_ips: &'a [String],
    /// When the kubelet started: containers that are older keep their readiness until they are probed.
    pub kubelet_started: Timestamp,
    /// Has the kubelet ended the pod for good?
    pub terminal: bool,
    /// Why the pod is forced to fail: reason and message.
    pub eviction: Option<(&'a str, &'a str)>,
    /// Conditions about a resize.
    pub resize: &'a [PodCondition],
}

/// The status, without the times of its conditions and without its start time: the keeper of statuses adds them.
pub fn generate(view: &View<'_>) -> PodStatus {
    let restarting_all = restarts_all(view.pod, view.state, view.old);
    let list = |kind: Kind, old: Option<&Vec<ContainerStatus>>| {
        statuses(&Input {
            pod: view.pod,
            kind,
            state: view.state,
            old,
            reasons: view.reasons,
            runtime: view.runtime,
            restarting_all,
        })
    };
    let mut app_statuses = list(Kind::App, view.old.container_statuses.as_ref());
    let mut init_statuses = list(Kind::Init, view.old.init_container_statuses.as_ref());
    let ephemeral_statuses = list(Kind::Ephemeral, view.old.ephemeral_container_statuses.as_ref());

    // A sidecar that has not started holds the phase, so that its startup result must be known first.
    set_probe_fields(view, &mut app_statuses, apps(view.pod), false);
    set_probe_fields(view, &mut init_statuses, inits(view.pod), true);

    let initialized = view.state.in_active_sandbox().any(|run| apps(view.pod).iter().any(|c| c.name == run.name));
    let computed = phase(view.pod, &app_statuses, &init_statuses, view.terminal, initialized);
    let mut status = PodStatus { phase: Some(settled_phase(view, computed)), ..Default::default() };
    keep_reason(view, &mut status);
    if let Some((reason, message)) = view.eviction {
        status.phase = Some("Failed".into());
        status.reason = Some(reason.into());
        status.message = Some(message.into());
    }
    status.conditions = Some(all_conditions(view, &status, &init_statuses, &app_statuses, restarting_all));
    status.qos_class = Some(qos::class(view.pod).name().into());
    let resources = pods::spec(view.pod).resources.clone();
    status.allocated_resources = Some(qos::totals_list(view.pod, Side::Requests)).filter(|list| !list.is_empty());
    status.resources = resources.or_else(|| pod_resources(view.pod));
    status.observed_generation = view.pod.metadata.generation.filter(|generation| *generation != 0);
    status.container_statuses = Some(app_statuses).filter(|list| !list.is_empty());
    status.init_container_statuses = Some(init_statuses).filter(|list| !list.is_empty());
    status.ephemeral_container_statuses = Some(ephemeral_statuses).filter(|list| !list.is_empty());
    addresses(view, &mut status);
    keep_foreign(view.old, &mut status);
    status
}

/// Fields that the kubelet does not own.
fn keep_foreign(old: &PodStatus, status: &mut PodStatus) {
    status.nominated_node_name = old.nominated_node_name.clone();
    status.resource_claim_statuses = old.resource_claim_statuses.clone();
    status.extended_resource_claim_status = old.extended_resource_claim_status.clone();
    status.node_allocatable_resource_claim_statuses = old.node_allocatable_resource_claim_statuses.clone();
    status.start_time = old.start_time.clone();
}

fn pod_resources(pod: &Pod) -> Option<k8s_openapi::api::core::v1::ResourceRequirements> {
    let some = |side| Some(qos::totals_list(pod, side)).filter(|list| !list.is_empty());
    let (requests, limits) = (some(Side::Requests), some(Side::Limits));
    (requests.is_some() || limits.is_some()).then(|| k8s_openapi::api::core::v1::ResourceRequirements {
        requests,
        limits,
        claims: None,
    })
}

/// Has a container ended in a way that starts all containers over, and is that not done yet?
pub fn restarts_all(pod: &Pod, state: &PodState, old: &PodStatus) -> bool {
    let was = find(old.conditions.as_ref(), "AllContainersRestarting").is_some_and(|c| c.status == "True");
    let asked = |container: &Container| {
        let run = state.latest(&container.name).filter(|run| run.state == State::Exited);
        run.is_some_and(|run| asks_for_reset(container, run.exit_code))
    };
    was || inits(pod).iter().chain(apps(pod)).any(asked)
}

fn may_restart_all(pod: &Pod) -> bool {
    let rules =
        |c: &Container| c.restart_policy_rules.iter().flatten().any(|rule| rule.action == "RestartAllContainers");
    inits(pod).iter().chain(apps(pod)).any(rules)
}

/// A condition by type.
pub fn find<'a>(conditions: Option<&'a Vec<PodCondition>>, kind: &str) -> Option<&'a PodCondition> {
    conditions?.iter().find(|condition| condition.type_ == kind)
}

/// A pod never leaves a terminal phase, be it ours or the API's.
fn settled_phase(view: &View<'_>, computed: &str) -> String {
    let api = pods::phase(view.pod);
    if is_terminal(api) {
        return api.into();
    }
    let old = view.old.phase.as_deref().unwrap_or_default();
    if is_terminal(old) { old.into() } else { computed.into() }
}

/// Reason and message stay while the phase does.
fn keep_reason(view: &View<'_>, status: &mut PodStatus) {
    if status.phase != view.old.phase {
        return;
    }
    let api = view.pod.status.as_ref();
    let some = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    status.reason = some(&view.old.reason).or_else(|| api.and_then(|s| some(&s.reason)));
    status.message = some(&view.old.message).or_else(|| api.and_then(|s| some(&s.message)));
}

fn set_probe_fields(view: &View<'_>, statuses: &mut [ContainerStatus], specs: &[Container], init: bool) {
    for status in statuses {
        let Some(container) = specs.iter().find(|c| c.name == status.name) else { continue };
        let started = is_started(view, status, container.startup_probe.as_ref());
        status.started = Some(started);
        if init && !pods::is_sidecar(container) {
            let ended_well = |state: &k8s_openapi::api::core::v1::ContainerState| {
                state.terminated.as_ref().is_some_and(|terminated| terminated.exit_code == 0)
            };
            status.ready = status.state.as_ref().is_some_and(ended_well);
            continue;
        }
        status.ready = started && is_ready(view, status, container.readiness_probe.as_ref());
    }
}

fn runtime_id(status: &ContainerStatus) -> &str {
    status.container_id.as_deref().and_then(|id| id.split_once("://")).map_or("", |(_, id)| id)
}

fn running_since(status: &ContainerStatus) -> Option<Timestamp> {
    let running = status.state.as_ref()?.running.as_ref()?;
    Some(running.started_at.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0))
}

fn is_started(view: &View<'_>, status: &ContainerStatus, probe: Option<&Probe>) -> bool {
    if running_since(status).is_none() {
        return false;
    }
    match view.probes.startup.get(runtime_id(status)) {
        Some(result) => *result,
        None => status.started == Some(true) || probe.is_none(),
    }
}

fn is_ready(view: &View<'_>, status: &ContainerStatus, probe: Option<&Probe>) -> bool {
    let Some(since) = running_since(status) else { return false };
    if probe.is_none() {
        return true;
    }
    match view.probes.readiness.get(runtime_id(status)) {
        Some(result) => *result,
        // A restart of the kubelet makes no ready pod unready.
        None if since < view.kubelet_started => {
            let api = view.pod.status.as_ref().and_then(|status| status.conditions.as_ref());
            find(api, "Ready").is_some_and(|condition| condition.status == "True")
        }
        None => false,
    }
}

fn all_conditions(
    view: &View<'_>, status: &PodStatus, init_statuses: &[ContainerStatus], app_statuses: &[ContainerStatus],
    restarting_all: bool,
) -> Vec<PodCondition> {
    let pod = view.pod;
    let phase = status.phase.as_deref().unwrap_or_default();
    let all: Vec<&ContainerStatus> = init_statuses.iter().chain(app_statuses).collect();
    let api = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    let foreign = api.into_iter().flatten().filter(|c| !conditions::OWNED.contains(&c.type_.as_str())).cloned();
    let mut list: Vec<PodCondition> = foreign.collect();
    list.extend(view.resize.iter().cloned());
    // A disruption that this kubelet has noted stays until the API has it.
    if let Some(disruption) = find(view.old.conditions.as_ref(), "DisruptionTarget") {
        list.retain(|condition| condition.type_ != "DisruptionTarget");
        list.push(disruption.clone());
    }
    let (outdated, _) = sandbox_outdated(pod, view.state);
    list.push(condition(pod, "PodReadyToStartContainers", !outdated, "", ""));
    let was_initialized = find(view.old.conditions.as_ref(), "Initialized").is_some_and(|c| c.status == "True");
    list.push(conditions::initialized(pod, &all, phase, was_initialized && may_restart_all(pod)));
    list.push(conditions::ready(pod, &all, phase, &list));
    list.push(conditions::containers_ready(pod, &all, phase));
    list.push(condition(pod, "PodScheduled", true, "", ""));
    if may_restart_all(pod) {
        list.push(restarting_condition(view, phase, restarting_all));
    }
    list
}

fn restarting_condition(view: &View<'_>, phase: &str, restarting_all: bool) -> PodCondition {
    let kind = "AllContainersRestarting";
    let cleaned = inits(view.pod).iter().chain(apps(view.pod)).all(|c| view.state.latest(&c.name).is_none());
    match phase {
        "Succeeded" => condition(view.pod, kind, false, "PodCompleted", ""),
        "Failed" => condition(view.pod, kind, false, "PodFailed", ""),
        _ if restarting_all && !cleaned => {
            let text = "container exited with restart policy rule";
            condition(view.pod, kind, true, "RestartAllContainersStarted", text)
        }
        _ => condition(view.pod, kind, false, "", ""),
    }
}

fn addresses(view: &View<'_>, status: &mut PodStatus) {
    let mut ips: Vec<String> = view.state.ips().to_vec();
    if let Some(host) = view.host_ips.first() {
        status.host_ip = Some(host.clone());
        status.host_ips = Some(view.host_ips.iter().map(|ip| HostIP { ip: ip.clone() }).collect());
        if pods::host_network(view.pod) && ips.is_empty() {
            ips = view.host_ips.to_vec();
        }
    }
    // A pod that has ended keeps showing the addresses it had.
    if ips.is_empty() && (view.terminal || is_terminal(status.phase.as_deref().unwrap_or_default())) {
        ips = view.old.pod_ips.iter().flatten().map(|ip| ip.ip.clone()).collect();
    }
    // Addresses of the node's own family come first.
    if let Some(host) = view.host_ips.first() {
        ips.sort_by_key(|ip| ip.contains(':') != host.contains(':'));
    }
    status.pod_ip = ips.first().cloned();
    status.pod_ips = Some(ips.into_iter().map(|ip| PodIP { ip }).collect()).filter(|list: &Vec<_>| !list.is_empty());
}

#[cfg(test)]
#[path = "generate_test.rs"]
mod tests;

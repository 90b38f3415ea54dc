//! Pods and nodes.

use k8s_openapi::api::core::v1::{NodeStatus, NodeSystemInfo, PodSpec, PodStatus};

use super::columns::{self, field, text};
use super::read::{age, at, condition, containers, filled, has, is, labels, list, name, number, truth};
use super::{Cell, Column, read, seconds};
use crate::Value;

pub(super) fn pod_columns() -> Vec<Column> {
    vec![
        columns::name(),
        text("Ready", "The aggregate readiness state of this pod for accepting traffic."),
        text("Status", "The aggregate status of the containers in this pod."),
        text(
            "Restarts",
            "The number of times the containers in this pod have been restarted and when the last container in this pod \
             has restarted.",
        ),
        columns::age(),
        field::<PodStatus>("IP", "podIP").wide(),
        field::<PodSpec>("Node", "nodeName").wide(),
        field::<PodStatus>("Nominated Node", "nominatedNodeName").wide(),
        field::<PodSpec>("Readiness Gates", "readinessGates").wide(),
    ]
}

pub(super) fn pod(pod: &Value) -> Vec<Cell> {
    let mut summary = Summary::new(pod);
    let initializing = summary.init_containers(pod);
    if !initializing || condition(pod, "Initialized") == Some("True") {
        summary.containers(pod);
    }
    vec![
        name(pod),
        is(format!("{}/{}", summary.ready, summary.total)),
        is(summary.status(pod)),
        summary.restart_cell(),
        age(pod),
        is(filled(pod, "/status/podIPs/0/ip", "<none>")),
        is(filled(pod, "/spec/nodeName", "<none>")),
        is(filled(pod, "/status/nominatedNodeName", "<none>")),
        is(gates(pod)),
    ]
}

/// What a pod's row says of its containers.
struct Summary {
    total: usize,
    ready: usize,
    reason: String,
    restarts: Restarts,
    /// Of init containers that run on.
    sidecars: Restarts,
}

#[derive(Clone, Copy, Default)]
struct Restarts {
    count: i64,
    last: Option<i64>,
}

impl Restarts {
    fn add(&mut self, status: &Value) {
        self.count += number(status, "/restartCount");
        let finished = read::text(status, "/lastState/terminated/finishedAt");
        self.last = self.last.max(seconds(finished));
    }
}

/// An init container that is restarted runs beside the pod's containers.
fn is_sidecar(pod: &Value, name: &str) -> bool {
    let container = list(pod, "/spec/initContainers").iter().find(|c| c["name"] == name);
    container.is_some_and(|c| c["restartPolicy"] == "Always")
}

impl Summary {
    fn new(pod: &Value) -> Self {
        let sidecars = list(pod, "/spec/initContainers").iter().filter(|c| c["restartPolicy"] == "Always").count();
        let gated = list(pod, "/status/conditions")
            .iter()
            .any(|c| c["type"] == "PodScheduled" && c["reason"] == "SchedulingGated");
        let phase = read::text(pod, "/status/phase");
        let reason = if gated { "SchedulingGated" } else { filled(pod, "/status/reason", phase) };
        Self {
            total: list(pod, "/spec/containers").len() + sidecars,
            ready: 0,
            reason: reason.into(),
            restarts: Restarts::default(),
            sidecars: Restarts::default(),
        }
    }

    /// Returns whether the pod is still at its init containers.
    fn init_containers(&mut self, pod: &Value) -> bool {
        let count = list(pod, "/spec/initContainers").len();
        for (i, status) in list(pod, "/status/initContainerStatuses").iter().enumerate() {
            let sidecar = is_sidecar(pod, read::text(status, "/name"));
            self.restarts.add(status);
            if sidecar {
                self.sidecars.add(status);
            }
            let terminated = has(status, "/state/terminated");
            if terminated && number(status, "/state/terminated/exitCode") == 0 {
                continue;
            }
            if sidecar && truth(status, "/started") {
                self.ready += usize::from(truth(status, "/ready"));
                continue;
            }
            let waiting = read::text(status, "/state/waiting/reason");
            self.reason = match terminated {
                true => format!("Init:{}", end_of(status)),
                false if !waiting.is_empty() && waiting != "PodInitializing" => format!("Init:{waiting}"),
                false => format!("Init:{i}/{count}"),
            };
            return true;
        }
        false
    }

    fn containers(&mut self, pod: &Value) {
        self.restarts = self.sidecars;
        let (mut running, mut failure) = (false, String::new());
        for status in list(pod, "/status/containerStatuses").iter().rev() {
            self.restarts.add(status);
            let waiting = read::text(status, "/state/waiting/reason");
            if !waiting.is_empty() {
                self.reason = waiting.into();
            } else if has(status, "/state/terminated") {
                self.reason = end_of(status);
                if number(status, "/state/terminated/exitCode") != 0 {
                    failure.clone_from(&self.reason);
                }
            } else if truth(status, "/ready") && has(status, "/state/running") {
                running = true;
                self.ready += 1;
            }
        }
        if self.reason == "Completed" {
            if running && condition(pod, "Ready") == Some("True") {
                self.reason = "Running".into();
            } else if !failure.is_empty() {
                self.reason = failure;
            } else if running {
                self.reason = "NotReady".into();
            }
        }
    }

    fn status(&self, pod: &Value) -> String {
        let over = matches!(read::text(pod, "/status/phase"), "Succeeded" | "Failed");
        match has(pod, "/metadata/deletionTimestamp") {
            true if read::text(pod, "/status/reason") == "NodeLost" => "Unknown".into(),
            true if !over => "Terminating".into(),
            _ => self.reason.clone(),
        }
    }

    fn restart_cell(&self) -> Cell {
        match self.restarts {
            Restarts { count, last: Some(last) } if count != 0 => {
                Cell::Since(format!("{count} (").into(), last, " ago)".into())
            }
            Restarts { count, .. } => is(count.to_string()),
        }
    }
}

/// How a container ended.
fn end_of(status: &Value) -> String {
    let reason = read::text(status, "/state/terminated/reason");
    match number(status, "/state/terminated/signal") {
        _ if !reason.is_empty() => reason.into(),
        0 => format!("ExitCode:{}", number(status, "/state/terminated/exitCode")),
        signal => format!("Signal:{signal}"),
    }
}

fn gates(pod: &Value) -> String {
    let gates = list(pod, "/spec/readinessGates");
    if gates.is_empty() {
        return "<none>".into();
    }
    let open = gates.iter().filter(|g| condition(pod, read::text(g, "/conditionType")) == Some("True")).count();
    format!("{open}/{}", gates.len())
}

/// What the row of a finished pod says beside its cells (`conditions` of the row); `phase` is `status.phase`.
pub fn row_conditions(phase: &str) -> Option<Value> {
    let (reason, message) = match phase {
        "Succeeded" => ("Succeeded", "The pod has completed successfully."),
        "Failed" => ("Failed", "The pod failed."),
        _ => return None,
    };
    Some(serde_json::json!([{"type": "Completed", "status": "True", "reason": reason, "message": message}]))
}

pub(super) fn template_columns() -> Vec<Column> {
    let [names, images] = columns::containers();
    vec![columns::name(), names, images, text("Pod Labels", "The labels for the pod template.")]
}

pub(super) fn template(object: &Value) -> Vec<Cell> {
    let [names, images] = containers(object, "/template/spec");
    vec![name(object), names, images, is(labels(object, "/template/metadata/labels"))]
}

pub(super) fn node_columns() -> Vec<Column> {
    let info = |name: &'static str, of: &str| field::<NodeSystemInfo>(name, of);
    vec![
        columns::name(),
        text("Status", "The status of the node"),
        text("Roles", "The roles of the node"),
        columns::age(),
        info("Version", "kubeletVersion"),
        field::<NodeStatus>("Internal-IP", "addresses").wide(),
        field::<NodeStatus>("External-IP", "addresses").wide(),
        info("OS-Image", "osImage").wide(),
        info("Kernel-Version", "kernelVersion").wide(),
        info("Container-Runtime", "containerRuntimeVersion").wide(),
    ]
}

pub(super) fn node(node: &Value) -> Vec<Cell> {
    let mut status = match condition(node, "Ready") {
        Some("True") => "Ready".to_string(),
        Some(_) => "NotReady".into(),
        None => "Unknown".into(),
    };
    if truth(node, "/spec/unschedulable") {
        status.push_str(",SchedulingDisabled");
    }
    let address = |kind: &str| {
        let found = list(node, "/status/addresses").iter().find(|a| a["type"] == kind);
        found.map_or("<none>", |a| a["address"].as_str().unwrap_or_default()).to_string()
    };
    let mut kernel = filled(node, "/status/nodeInfo/kernelVersion", "<unknown>").to_string();
    let architecture = read::text(node, "/status/nodeInfo/architecture");
    if !architecture.is_empty() {
        kernel.push_str(&format!(" ({architecture})"));
    }
    vec![
        name(node),
        is(status),
        is(roles(node)),
        age(node),
        is(read::text(node, "/status/nodeInfo/kubeletVersion")),
        is(address("InternalIP")),
        is(address("ExternalIP")),
        is(filled(node, "/status/nodeInfo/osImage", "<unknown>")),
        is(kernel),
        is(filled(node, "/status/nodeInfo/containerRuntimeVersion", "<unknown>")),
    ]
}

fn roles(node: &Value) -> String {
    let labels = at(node, "/metadata/labels").as_object().into_iter().flatten();
    let roles = labels.filter_map(|(key, value)| match key.strip_prefix("node-role.kubernetes.io/") {
        Some(role) => Some(role),
        None if key == "kubernetes.io/role" => value.as_str(),
        None => None,
    });
    let roles: std::collections::BTreeSet<&str> = roles.filter(|role| !role.is_empty()).collect();
    if roles.is_empty() { "<none>".into() } else { roles.into_iter().collect::<Vec<_>>().join(",") }
}

//! The node's object and status, made from facts. Pure: machine, runtime, pressure and settings in, object out.

use super::machine::{Disk, Machine};
use crate::units::{ResourceList, from_bytes, from_milli, milli, value};
use base::version::{GIT_VERSION, architecture};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{
    ContainerImage, DaemonEndpoint, Node, NodeAddress, NodeCondition, NodeDaemonEndpoints, NodeSpec, NodeStatus,
    NodeSwapStatus, NodeSystemInfo, Taint,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use std::collections::BTreeMap;

/// What the node presses for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pressure {
    /// Memory is short.
    pub memory: bool,
    /// Disk is short.
    pub disk: bool,
    /// Processes are short.
    pub pid: bool,
}

/// Settings of the node that go into its object.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// The node's name.
    pub name: String,
    /// Labels to register with.
    pub labels: BTreeMap<String, String>,
    /// Taints to register with.
    pub taints: Vec<Taint>,
    /// The cloud's name of the machine.
    pub provider_id: String,
    /// Does a cloud set the addresses?
    pub external_cloud: bool,
    /// Does a controller attach volumes?
    pub attach_by_controller: bool,
    /// Port of the kubelet.
    pub port: u16,
    /// Pods at most.
    pub max_pods: i64,
    /// Pods for each processor at most; 0 is no limit.
    pub pods_per_core: i64,
    /// What is kept from pods.
    pub reserved: ResourceList,
    /// Images to show at most; `None` is all.
    pub max_images: Option<usize>,
}

/// What the status is made from.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// The machine.
    pub machine: Machine,
    /// The disk that pods use.
    pub disk: Disk,
    /// The node's addresses.
    pub addresses: Vec<String>,
    /// Name and version of the runtime, `containerd://1.6.20`.
    pub runtime: String,
    /// Images: names and size.
    pub images: Vec<(Vec<String>, i64)>,
    /// Why the node is not ready.
    pub troubles: Vec<String>,
    /// What it presses for.
    pub pressure: Pressure,
    /// What the runtime's handlers can do: name, recursive read-only mounts, user namespaces.
    pub handlers: Vec<(String, bool, bool)>,
    /// Does the runtime know policies of supplemental groups?
    pub groups_policy: Option<bool>,
}

/// What the machine has.
pub fn capacity(settings: &Settings, facts: &Facts) -> ResourceList {
    let pods = match settings.pods_per_core {
        0 => settings.max_pods,
        per_core => settings.max_pods.min(per_core * facts.machine.cpus),
    };
    let mut list = ResourceList::from([
        ("cpu".to_owned(), from_milli(facts.machine.cpus * 1000)),
        ("memory".to_owned(), from_bytes(facts.machine.memory)),
        ("ephemeral-storage".to_owned(), from_bytes(facts.disk.capacity as i64)),
        ("pods".to_owned(), from_milli(pods * 1000)),
    ]);
    for (size, count) in &facts.machine.huge_pages {
        let name = format!("hugepages-{}", from_bytes(*size).0);
        list.insert(name, from_bytes(size * count));
    }
    list
}

/// What pods may use of it: the capacity without what is kept, and without memory that is set aside as huge pages.
pub fn allocatable(capacity: &ResourceList, reserved: &ResourceList) -> ResourceList {
    let huge: i64 = capacity.iter().filter(|(name, _)| name.starts_with("hugepages-")).map(|(_, q)| value(q)).sum();
    let left = |name: &String, quantity: &Quantity| {
        let kept = reserved.get(name);
        match name.as_str() {
            "cpu" => from_milli((milli(quantity) - kept.map_or(0, milli)).max(0)),
            "memory" => from_bytes((value(quantity) - kept.map_or(0, value) - huge).max(0)),
            _ => match kept {
                Some(kept) => from_bytes((value(quantity) - value(kept)).max(0)),
                None => quantity.clone(),
            },
        }
    };
    capacity.iter().map(|(name, quantity)| (name.clone(), left(name, quantity))).collect()
}

/// The object to register with, without its status.
pub fn object(settings: &Settings) -> Node {
    let own = [
        ("beta.kubernetes.io/arch", architecture()),
        ("beta.kubernetes.io/os", "linux"),
        ("kubernetes.io/arch", architecture()),
        ("kubernetes.io/hostname", &settings.name),
        ("kubernetes.io/os", "linux"),
    ];
    let mut labels: BTreeMap<String, String> = own.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    labels.extend(settings.labels.clone());
    let mut taints = settings.taints.clone();
    if settings.external_cloud {
        taints.push(Taint {
            key: "node.cloudprovider.kubernetes.io/uninitialized".into(),
            value: Some("true".into()),
            effect: "NoSchedule".into(),
            time_added: None,
        });
    }
    let annotation = ("volumes.kubernetes.io/controller-managed-attach-detach".to_owned(), "true".to_owned());
    Node {
        metadata: ObjectMeta {
            name: Some(settings.name.clone()),
            labels: Some(labels),
            annotations: settings.attach_by_controller.then(|| BTreeMap::from([annotation])),
            ..Default::default()
        },
        spec: Some(NodeSpec {
            taints: Some(taints).filter(|taints| !taints.is_empty()),
            provider_id: Some(settings.provider_id.clone()).filter(|id| !id.is_empty()),
            ..Default::default()
        }),
        status: None,
    }
}

/// A condition: its type, what it says when it holds and when it does not.
struct Row {
    kind: &'static str,
    holds: bool,
    yes: (&'static str, &'static str),
    no: (&'static str, &'static str),
}

fn rows(pressure: Pressure) -> [Row; 3] {
    [
        Row {
            kind: "MemoryPressure",
            holds: pressure.memory,
            yes: ("KubeletHasInsufficientMemory", "kubelet has insufficient memory available"),
            no: ("KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
        },
        Row {
            kind: "DiskPressure",
            holds: pressure.disk,
            yes: ("KubeletHasDiskPressure", "kubelet has disk pressure"),
            no: ("KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
        },
        Row {
            kind: "PIDPressure",
            holds: pressure.pid,
            yes: ("KubeletHasInsufficientPID", "kubelet has insufficient PID available"),
            no: ("KubeletHasSufficientPID", "kubelet has sufficient PID available"),
        },
    ]
}

/// The kubelet's conditions over those that the node has; others stay. Ready comes last.
fn conditions(old: &[NodeCondition], facts: &Facts, now: Timestamp) -> Vec<NodeCondition> {
    let ready = facts.troubles.is_empty();
    let trouble = match facts.troubles.as_slice() {
        [one] => one.clone(),
        many => format!("[{}]", many.join(", ")),
    };
    let rows = rows(facts.pressure).map(|row| {
        let (reason, message) = if row.holds { row.yes } else { row.no };
        (row.kind, row.holds, reason, message.to_owned())
    });
    let ready = match ready {
        true => ("Ready", true, "KubeletReady", "kubelet is posting ready status".to_owned()),
        false => ("Ready", false, "KubeletNotReady", trouble),
    };
    let mut list: Vec<NodeCondition> = old.to_vec();
    for (kind, holds, reason, message) in rows.into_iter().chain([ready]) {
        let status = if holds { "True" } else { "False" };
        let before = list.iter().find(|condition| condition.type_ == kind && condition.status == status);
        let since = before.and_then(|condition| condition.last_transition_time.clone()).unwrap_or(Time(now));
        let condition = NodeCondition {
            type_: kind.into(),
            status: status.into(),
            reason: Some(reason.into()),
            message: Some(message),
            last_heartbeat_time: Some(Time(now)),
            last_transition_time: Some(since),
        };
        match list.iter_mut().find(|condition| condition.type_ == kind) {
            Some(place) => *place = condition,
            None => list.push(condition),
        }
    }
    list
}

fn addresses(settings: &Settings, facts: &Facts, old: Option<&Vec<NodeAddress>>) -> Vec<NodeAddress> {
    let address = |kind: &str, address: &str| NodeAddress { type_: kind.into(), address: address.into() };
    if settings.external_cloud
        && let Some(old) = old.filter(|old| !old.is_empty())
    {
        return old.clone();
    }
    let ips = facts.addresses.iter().map(|ip| address("InternalIP", ip));
    ips.chain([address("Hostname", &settings.name)]).collect()
}

/// The node's status; `old` is the one that the API has.
pub fn status(settings: &Settings, facts: &Facts, old: &NodeStatus, now: Timestamp) -> NodeStatus {
    let mut list = old.capacity.clone().unwrap_or_default();
    list.extend(capacity(settings, facts));
    let machine = &facts.machine;
    let mut images: Vec<ContainerImage> = facts
        .images
        .iter()
        .map(|(names, size)| ContainerImage {
            names: Some(names.iter().take(5).cloned().collect()),
            size_bytes: Some(*size),
        })
        .collect();
    images.sort_by_key(|image| std::cmp::Reverse(image.size_bytes));
    images.truncate(settings.max_images.unwrap_or(usize::MAX));
    NodeStatus {
        addresses: Some(addresses(settings, facts, old.addresses.as_ref())),
        allocatable: Some(allocatable(&list, &settings.reserved)),
        capacity: Some(list),
        conditions: Some(conditions(old.conditions.as_deref().unwrap_or_default(), facts, now)),
        daemon_endpoints: Some(NodeDaemonEndpoints {
            kubelet_endpoint: Some(DaemonEndpoint { port: settings.port.into() }),
        }),
        images: Some(images),
        node_info: Some(NodeSystemInfo {
            architecture: architecture().into(),
            boot_id: machine.boot_id.clone(),
            container_runtime_version: facts.runtime.clone(),
            kernel_version: machine.kernel.clone(),
            kube_proxy_version: String::new(),
            kubelet_version: GIT_VERSION.into(),
            machine_id: machine.machine_id.clone(),
            operating_system: "linux".into(),
            os_image: machine.os_image.clone(),
            swap: (machine.swap > 0).then(|| NodeSwapStatus { capacity: Some(machine.swap) }),
            system_uuid: machine.system_uuid.clone(),
        }),
        features: facts
            .groups_policy
            .map(|policy| k8s_openapi::api::core::v1::NodeFeatures { supplemental_groups_policy: Some(policy) }),
        runtime_handlers: Some(handlers(facts)).filter(|list: &Vec<_>| !list.is_empty()),
        ..old.clone()
    }
}

fn handlers(facts: &Facts) -> Vec<k8s_openapi::api::core::v1::NodeRuntimeHandler> {
    use k8s_openapi::api::core::v1::{NodeRuntimeHandler, NodeRuntimeHandlerFeatures};
    let one = |(name, read_only, users): &(String, bool, bool)| NodeRuntimeHandler {
        name: Some(name.clone()).filter(|name| !name.is_empty()),
        features: Some(NodeRuntimeHandlerFeatures {
            recursive_read_only_mounts: Some(*read_only),
            user_namespaces: Some(*users),
        }),
    };
    facts.handlers.iter().map(one).collect()
}

/// Conditions whose status is another than before: the event's reason for each.
pub fn changes(old: &NodeStatus, new: &NodeStatus) -> Vec<String> {
    let status_of = |status: &NodeStatus, kind: &str| {
        let list = status.conditions.as_deref().unwrap_or_default();
        list.iter().find(|condition| condition.type_ == kind).map(|condition| condition.status.clone())
    };
    let mut events = Vec::new();
    for condition in new.conditions.iter().flatten() {
        let before = status_of(old, &condition.type_);
        if before.as_deref() == Some(&condition.status) {
            continue;
        }
        let holds = condition.status == "True";
        let event = match (condition.type_.as_str(), holds) {
            ("MemoryPressure", true) => "NodeHasInsufficientMemory",
            ("MemoryPressure", false) => "NodeHasSufficientMemory",
            ("DiskPressure", true) => "NodeHasDiskPressure",
            ("DiskPressure", false) => "NodeHasNoDiskPressure",
            ("PIDPressure", true) => "NodeHasInsufficientPID",
            ("PIDPressure", false) => "NodeHasSufficientPID",
            // A node that registers tells of its readiness only when that changes later.
            ("Ready", true) if before.is_some() => "NodeReady",
            ("Ready", false) if before.is_some() => "NodeNotReady",
            _ => continue,
        };
        events.push(event.to_owned());
    }
    events
}

/// Does the new status say anything new, heartbeats aside?
pub fn differs(old: &NodeStatus, new: &NodeStatus) -> bool {
    let still = |status: &NodeStatus| {
        let mut status = status.clone();
        for condition in status.conditions.iter_mut().flatten() {
            condition.last_heartbeat_time = None;
        }
        status
    };
    still(old) != still(new)
}

/// A pressure stays shown for a while after it ended, so that it does not flap.
#[derive(Clone, Copy, Debug, Default)]
pub struct Damper {
    memory: Option<Timestamp>,
    disk: Option<Timestamp>,
    pid: Option<Timestamp>,
}

impl Damper {
    /// The pressure to show.
    pub fn damp(&mut self, seen: Pressure, hold: SignedDuration, now: Timestamp) -> Pressure {
        let one = |last: &mut Option<Timestamp>, seen: bool| {
            if seen {
                *last = Some(now);
            }
            last.is_some_and(|last| now.duration_since(last) < hold)
        };
        Pressure {
            memory: one(&mut self.memory, seen.memory),
            disk: one(&mut self.disk, seen.disk),
            pid: one(&mut self.pid, seen.pid),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> Facts {
        Facts {
            machine: Machine { cpus: 2, memory: 4 << 30, huge_pages: vec![(2 << 20, 0)], ..Default::default() },
            disk: Disk { capacity: 10 << 30, ..Default::default() },
            addresses: vec!["10.0.0.1".into()],
            ..Default::default()
        }
    }

    fn settings() -> Settings {
        let reserved = [("cpu", "500m"), ("memory", "100Mi"), ("ephemeral-storage", "1073741824")];
        Settings {
            name: "n".into(),
            max_pods: 110,
            reserved: reserved.map(|(k, v)| (k.to_owned(), Quantity(v.into()))).into(),
            ..Default::default()
        }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + second).unwrap()
    }

    #[test]
    fn labels_os_arch_and_hostname_are_there_at_registration() {
        let labels = object(&settings()).metadata.labels.unwrap();
        assert_eq!(labels["kubernetes.io/os"], "linux");
        assert_eq!(labels["kubernetes.io/arch"], architecture());
        assert_eq!(labels["kubernetes.io/hostname"], "n");
    }

    #[test]
    fn allocatable_is_capacity_without_what_is_kept() {
        let status = status(&settings(), &facts(), &NodeStatus::default(), at(0));
        let (capacity, allocatable) = (status.capacity.unwrap(), status.allocatable.unwrap());
        assert_eq!((capacity["cpu"].0.as_str(), allocatable["cpu"].0.as_str()), ("2", "1500m"));
        assert_eq!((capacity["memory"].0.as_str(), allocatable["memory"].0.as_str()), ("4Gi", "3996Mi"));
        assert_eq!(allocatable["ephemeral-storage"].0, "9Gi");
        assert_eq!((capacity["pods"].0.as_str(), capacity["hugepages-2Mi"].0.as_str()), ("110", "0"));
    }

    #[test]
    fn conditions_change_their_time_only_with_their_status() {
        let first = status(&settings(), &facts(), &NodeStatus::default(), at(0));
        assert_eq!(
            changes(&NodeStatus::default(), &first),
            ["NodeHasSufficientMemory", "NodeHasNoDiskPressure", "NodeHasSufficientPID"]
        );
        let again = status(&settings(), &facts(), &first, at(10));
        assert!(!differs(&first, &again));
        let mut troubled = facts();
        troubled.troubles = vec!["container runtime is down".into()];
        let third = status(&settings(), &troubled, &again, at(20));
        let ready = third.conditions.as_ref().unwrap().last().unwrap().clone();
        assert_eq!((ready.status.as_str(), ready.reason.as_deref()), ("False", Some("KubeletNotReady")));
        assert_eq!(ready.last_transition_time, Some(Time(at(20))));
        assert_eq!(third.conditions.as_ref().unwrap()[0].last_transition_time, Some(Time(at(0))));
        assert_eq!(changes(&again, &third), ["NodeNotReady"]);
    }

    #[test]
    fn pressure_stays_shown_for_a_while() {
        let mut damper = Damper::default();
        let hold = SignedDuration::from_secs(300);
        let pressed = Pressure { memory: true, ..Default::default() };
        assert!(damper.damp(pressed, hold, at(0)).memory);
        assert!(damper.damp(Pressure::default(), hold, at(299)).memory);
        assert!(!damper.damp(Pressure::default(), hold, at(300)).memory);
    }
}

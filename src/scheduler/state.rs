//! What the scheduler knows: pods, nodes with the pods on them, and snapshots of all that.
//!
//! A snapshot is a pointer into a persistent map, so taking one costs nothing and a cycle sees one state throughout. Only
//! the nodes that change are copied.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use api::selector::LabelSelector;
use client::Key;
use k8s_openapi::api::core::v1::{Node, Pod, PodAffinityTerm, PodSpec, Taint, Toleration};

use crate::resources::{self, Resources};

/// A port of the node that a pod wants.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostPort {
    /// Address, `0.0.0.0` for all.
    pub ip: String,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    /// Number.
    pub port: i32,
}

impl HostPort {
    /// Both can't be had on one node: the same port and protocol on addresses that overlap.
    pub fn clashes(&self, other: &Self) -> bool {
        let any = "0.0.0.0";
        self.port == other.port
            && self.protocol == other.protocol
            && (self.ip == other.ip || self.ip == any || other.ip == any)
    }
}

/// A term of pod affinity or anti-affinity, ready to match.
#[derive(Debug, Clone)]
pub struct Term {
    /// Which pods.
    pub selector: LabelSelector,
    /// In these namespaces.
    pub namespaces: BTreeSet<String>,
    /// And in namespaces with these labels.
    pub namespace_selector: LabelSelector,
    /// How far "near" is.
    pub topology_key: String,
    /// Weight of a preference, 0 for a demand.
    pub weight: i32,
}

impl Term {
    fn new(term: &PodAffinityTerm, pod: &Pod, weight: i32) -> Option<Self> {
        let mut selector = LabelSelector::from_typed(term.label_selector.as_ref()).ok()?;
        let labels = pod.metadata.labels.clone().unwrap_or_default();
        let keys = |names: &Option<Vec<String>>, operator: api::selector::Operator| {
            let wanted = names.iter().flatten().filter_map(|k| Some((k.clone(), labels.get(k)?.clone())));
            wanted.filter_map(|(k, v)| api::selector::Requirement::new(&k, operator, vec![v]).ok()).collect::<Vec<_>>()
        };
        // matchLabelKeys narrow the selector by the pod's own labels (KEP-3633).
        let mut more = keys(&term.match_label_keys, api::selector::Operator::In);
        more.extend(keys(&term.mismatch_label_keys, api::selector::Operator::NotIn));
        if !more.is_empty() {
            more.extend(selector.requirements().iter().cloned());
            selector = LabelSelector::new(more);
        }
        let mut namespaces: BTreeSet<String> = term.namespaces.iter().flatten().cloned().collect();
        if namespaces.is_empty() && term.namespace_selector.is_none() {
            namespaces.insert(pod.metadata.namespace.clone().unwrap_or_default());
        }
        Some(Self {
            selector,
            namespaces,
            namespace_selector: LabelSelector::from_typed(term.namespace_selector.as_ref()).ok()?,
            topology_key: term.topology_key.clone(),
            weight,
        })
    }

    /// Does a pod, in a namespace with these labels, match?
    pub fn matches(&self, pod: &PodInfo, namespace_labels: Option<&BTreeMap<String, String>>) -> bool {
        let empty = BTreeMap::new();
        let in_namespace = self.namespaces.contains(&pod.key.namespace)
            || self.namespace_selector.matches(namespace_labels.unwrap_or(&empty));
        in_namespace && self.selector.matches(pod.labels())
    }
}

/// Pod affinity and anti-affinity of a pod.
#[derive(Debug, Clone, Default)]
pub struct Affinities {
    /// Must be near.
    pub required: Vec<Term>,
    /// Must be away from.
    pub anti: Vec<Term>,
    /// Better near.
    pub preferred: Vec<Term>,
    /// Better away from.
    pub anti_preferred: Vec<Term>,
}

impl Affinities {
    fn of(pod: &Pod) -> Self {
        let affinity = pod.spec.as_ref().and_then(|s| s.affinity.as_ref());
        let near = affinity.and_then(|a| a.pod_affinity.as_ref());
        let away = affinity.and_then(|a| a.pod_anti_affinity.as_ref());
        let hard = |terms: Option<&Vec<PodAffinityTerm>>| {
            terms.into_iter().flatten().filter_map(|t| Term::new(t, pod, 0)).collect()
        };
        let soft = |terms: Option<&Vec<k8s_openapi::api::core::v1::WeightedPodAffinityTerm>>| {
            let terms = terms.into_iter().flatten();
            terms.filter_map(|t| Term::new(&t.pod_affinity_term, pod, t.weight)).collect()
        };
        Self {
            required: hard(near.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref())),
            anti: hard(away.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref())),
            preferred: soft(near.and_then(|a| a.preferred_during_scheduling_ignored_during_execution.as_ref())),
            anti_preferred: soft(away.and_then(|a| a.preferred_during_scheduling_ignored_during_execution.as_ref())),
        }
    }

    /// The pod says nothing of the kind.
    pub fn is_empty(&self) -> bool {
        let Self { required, anti, preferred, anti_preferred } = self;
        required.is_empty() && anti.is_empty() && preferred.is_empty() && anti_preferred.is_empty()
    }
}

/// A pod with all that the scheduler asks of it, computed once.
#[derive(Debug, Clone)]
pub struct PodInfo {
    /// Namespace and name.
    pub key: Key,
    /// UID.
    pub uid: String,
    /// The pod.
    pub pod: Arc<Pod>,
    /// Priority.
    pub priority: i32,
    /// What it asks for.
    pub requests: Resources,
    /// What it is taken to use when nodes are compared.
    pub nonzero: Resources,
    /// Ports of the node it wants.
    pub ports: Vec<HostPort>,
    /// Nearness to other pods.
    pub affinities: Affinities,
}

impl PodInfo {
    /// Reads a pod.
    pub fn new(pod: Arc<Pod>) -> Self {
        Self {
            key: Key::of(&pod.metadata),
            uid: pod.metadata.uid.clone().unwrap_or_default(),
            priority: pod.spec.as_ref().and_then(|s| s.priority).unwrap_or(0),
            requests: resources::requests(&pod),
            nonzero: resources::nonzero_requests(&pod),
            ports: host_ports(&pod),
            affinities: Affinities::of(&pod),
            pod,
        }
    }

    /// Its spec; pods without one do not pass the API server.
    pub fn spec(&self) -> Option<&PodSpec> {
        self.pod.spec.as_ref()
    }

    /// Its labels.
    pub fn labels(&self) -> &BTreeMap<String, String> {
        static NONE: BTreeMap<String, String> = BTreeMap::new();
        self.pod.metadata.labels.as_ref().unwrap_or(&NONE)
    }

    /// Its tolerations.
    pub fn tolerations(&self) -> &[Toleration] {
        self.spec().and_then(|s| s.tolerations.as_deref()).unwrap_or_default()
    }

    /// The node it is on.
    pub fn node(&self) -> Option<&str> {
        self.spec()?.node_name.as_deref().filter(|n| !n.is_empty())
    }

    /// It is being deleted.
    pub fn is_terminating(&self) -> bool {
        self.pod.metadata.deletion_timestamp.is_some()
    }

    /// The node that preemption made room on for it.
    pub fn nominated(&self) -> Option<&str> {
        self.pod.status.as_ref()?.nominated_node_name.as_deref().filter(|n| !n.is_empty())
    }
}

fn host_ports(pod: &Pod) -> Vec<HostPort> {
    let Some(spec) = &pod.spec else { return Vec::new() };
    let sidecars = spec.init_containers.iter().flatten().filter(|c| c.restart_policy.as_deref() == Some("Always"));
    let containers = spec.containers.iter().chain(sidecars);
    let ports = containers.flat_map(|c| c.ports.iter().flatten());
    let wanted = ports.filter_map(|p| {
        let port = p.host_port.filter(|n| *n > 0)?;
        let ip = p.host_ip.clone().filter(|ip| !ip.is_empty()).unwrap_or_else(|| "0.0.0.0".into());
        Some(HostPort { ip, protocol: p.protocol.clone().unwrap_or_else(|| "TCP".into()), port })
    });
    wanted.collect()
}

/// A node with the pods on it.
#[derive(Debug, Clone)]
pub struct NodeInfo {
    /// Name.
    pub name: String,
    /// The node; none while pods are known to be on it but it itself is not (yet, or any more).
    pub node: Option<Arc<Node>>,
    /// Pods on it, also those that are only meant to be, by UID.
    pub pods: BTreeMap<String, Arc<PodInfo>>,
    /// What it has for pods.
    pub allocatable: Resources,
    /// What its pods ask for.
    pub requested: Resources,
    /// What its pods are taken to use.
    pub nonzero: Resources,
    /// Sizes of the images it has, by name.
    pub images: Arc<BTreeMap<String, i64>>,
}

impl NodeInfo {
    fn new(name: &str) -> Self {
        Self {
            name: name.to_string(),
            node: None,
            pods: BTreeMap::new(),
            allocatable: Resources::default(),
            requested: Resources::default(),
            nonzero: Resources::default(),
            images: Arc::default(),
        }
    }

    fn set_node(&mut self, node: Arc<Node>) {
        let status = node.status.clone().unwrap_or_default();
        self.allocatable = status.allocatable.as_ref().map(Resources::from_map).unwrap_or_default();
        let images = status.images.unwrap_or_default().into_iter();
        let named = images.flat_map(|i| {
            let size = i.size_bytes.unwrap_or(0);
            i.names.unwrap_or_default().into_iter().map(move |name| (name, size))
        });
        self.images = Arc::new(named.collect());
        self.node = Some(node);
    }

    /// Puts a pod on it.
    pub fn add(&mut self, pod: Arc<PodInfo>) {
        self.requested.add(&pod.requests);
        self.nonzero.add(&pod.nonzero);
        if let Some(old) = self.pods.insert(pod.uid.clone(), pod) {
            self.requested.subtract(&old.requests);
            self.nonzero.subtract(&old.nonzero);
        }
    }

    /// Takes a pod off it.
    pub fn remove(&mut self, uid: &str) {
        if let Some(pod) = self.pods.remove(uid) {
            self.requested.subtract(&pod.requests);
            self.nonzero.subtract(&pod.nonzero);
        }
    }

    /// Its labels.
    pub fn labels(&self) -> &BTreeMap<String, String> {
        static NONE: BTreeMap<String, String> = BTreeMap::new();
        self.node.as_ref().and_then(|n| n.metadata.labels.as_ref()).unwrap_or(&NONE)
    }

    /// Its taints.
    pub fn taints(&self) -> &[Taint] {
        self.node.as_ref().and_then(|n| n.spec.as_ref()?.taints.as_deref()).unwrap_or_default()
    }

    /// No new pods are wanted.
    pub fn is_unschedulable(&self) -> bool {
        self.node.as_ref().and_then(|n| n.spec.as_ref()?.unschedulable).unwrap_or(false)
    }
}

/// A state of the world.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    nodes: imbl::OrdMap<String, Arc<NodeInfo>>,
    namespaces: imbl::HashMap<String, Arc<BTreeMap<String, String>>>,
}

impl Snapshot {
    /// Nodes that are known, by name.
    pub fn nodes(&self) -> impl Iterator<Item = &Arc<NodeInfo>> {
        self.nodes.values().filter(|n| n.node.is_some())
    }

    /// The node of that name.
    pub fn node(&self, name: &str) -> Option<&Arc<NodeInfo>> {
        self.nodes.get(name).filter(|n| n.node.is_some())
    }

    /// The same world with another state of one node, for thought experiments.
    pub fn with(&self, node: NodeInfo) -> Self {
        let mut other = self.clone();
        other.nodes.insert(node.name.clone(), Arc::new(node));
        other
    }

    /// Labels of a namespace.
    pub fn namespace(&self, name: &str) -> Option<&BTreeMap<String, String>> {
        self.namespaces.get(name).map(Arc::as_ref)
    }

    fn change(&mut self, name: &str, change: impl FnOnce(&mut NodeInfo)) {
        let old = self.nodes.get(name).map(|n| NodeInfo::clone(n));
        let mut node = old.unwrap_or_else(|| NodeInfo::new(name));
        change(&mut node);
        if node.node.is_none() && node.pods.is_empty() {
            self.nodes.remove(name);
        } else {
            self.nodes.insert(name.to_string(), Arc::new(node));
        }
    }

    /// Learns of a node, or of its change.
    pub fn set_node(&mut self, node: Arc<Node>) {
        let name = node.metadata.name.clone().unwrap_or_default();
        self.change(&name, |info| info.set_node(node));
    }

    /// Forgets a node; its pods are remembered until they go.
    pub fn remove_node(&mut self, name: &str) {
        self.change(name, |info| info.node = None);
    }

    /// Puts a pod on a node.
    pub fn add_pod(&mut self, node: &str, pod: Arc<PodInfo>) {
        self.change(node, |info| info.add(pod));
    }

    /// Takes a pod off a node.
    pub fn remove_pod(&mut self, node: &str, uid: &str) {
        self.change(node, |info| info.remove(uid));
    }

    /// Learns of a namespace's labels.
    pub fn set_namespace(&mut self, name: &str, labels: BTreeMap<String, String>) {
        self.namespaces.insert(name.to_string(), Arc::new(labels));
    }

    /// Forgets a namespace.
    pub fn remove_namespace(&mut self, name: &str) {
        self.namespaces.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(ip: &str, protocol: &str) -> HostPort {
        HostPort { ip: ip.into(), protocol: protocol.into(), port: 80 }
    }

    #[test]
    fn host_ports_clash_only_where_address_and_protocol_overlap() {
        assert!(port("0.0.0.0", "TCP").clashes(&port("10.0.0.1", "TCP")));
        assert!(!port("10.0.0.2", "TCP").clashes(&port("10.0.0.1", "TCP")));
        assert!(!port("0.0.0.0", "TCP").clashes(&port("0.0.0.0", "UDP")));
    }

    #[test]
    fn a_snapshot_does_not_see_later_changes() {
        let pod = |uid: &str| {
            let pod = serde_json::json!({"metadata": {"uid": uid, "name": uid}, "spec": {"containers": [
                {"name": "c", "resources": {"requests": {"cpu": "1"}}}]}});
            Arc::new(PodInfo::new(Arc::new(serde_json::from_value(pod).unwrap())))
        };
        let mut world = Snapshot::default();
        world.set_node(Arc::new(serde_json::from_value(serde_json::json!({"metadata": {"name": "n"}})).unwrap()));
        world.add_pod("n", pod("a"));
        let before = world.clone();
        world.add_pod("n", pod("b"));
        world.add_pod("n", pod("a"));
        assert_eq!(before.node("n").unwrap().requested.milli_cpu, 1000);
        assert_eq!(world.node("n").unwrap().requested.milli_cpu, 2000);
        world.remove_pod("n", "a");
        world.remove_pod("n", "b");
        world.remove_node("n");
        assert!(world.node("n").is_none());
    }
}

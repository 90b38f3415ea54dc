//! May a pod run on this node? The scheduler has asked the same questions; the kubelet asks them again, for pods that
//! came by another way and for nodes that changed meanwhile.

use super::qos::{Class, Side, class, totals};
use super::{host_network, is_critical, is_static, preempt, spec};
use crate::units::{ResourceList, milli};
use k8s_openapi::api::core::v1::{Node, NodeSelectorTerm, Pod, Taint, Toleration};
use std::collections::BTreeMap;

/// Why not: the reason and the message of the pod's status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// One word.
    pub reason: String,
    /// More words.
    pub message: String,
}

impl Refusal {
    fn new(reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self { reason: reason.into(), message: message.into() }
    }

    fn predicate(name: &str, why: &str) -> Self {
        Self::new(name, format!("Predicate {name} failed: {why}"))
    }
}

/// The question: pod, the other pods that are alive here, the node, and kernel settings that are allowed beyond the safe
/// ones.
pub struct Question<'a> {
    /// The pod.
    pub pod: &'a Pod,
    /// Other pods on the node that have not ended.
    pub others: &'a [&'a Pod],
    /// The node as the API (or the kubelet itself) has it.
    pub node: &'a Node,
    /// Kernel settings that are allowed although unsafe; `x.*` allows all below.
    pub unsafe_sysctls: &'a [String],
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It may run.
    Admit,
    /// It is critical, and these must go first: indexes among the others.
    Preempt(Vec<usize>),
    /// It may not.
    Refuse(Refusal),
}

/// Lets the pod in, or says why not.
pub fn admit(question: &Question<'_>) -> Verdict {
    let answer = pressure(question.pod, question.node).and_then(|()| refusals(question)).and_then(|()| room(question));
    match answer {
        Ok(victims) if victims.is_empty() => Verdict::Admit,
        Ok(victims) => Verdict::Preempt(victims),
        Err(refusal) => Verdict::Refuse(refusal),
    }
}

/// A node under pressure takes critical pods; when only memory is short, also those that ask for resources or tolerate it.
fn pressure(pod: &Pod, node: &Node) -> Result<(), Refusal> {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let pressures: Vec<&str> = conditions
        .filter(|c| c.status == "True" && ["MemoryPressure", "DiskPressure", "PIDPressure"].contains(&c.type_.as_str()))
        .map(|c| c.type_.as_str())
        .collect();
    if pressures.is_empty() || is_critical(pod) {
        return Ok(());
    }
    let taint =
        Taint { key: "node.kubernetes.io/memory-pressure".into(), effect: "NoSchedule".into(), ..Default::default() };
    let tolerated = || spec(pod).tolerations.iter().flatten().any(|toleration| tolerates(toleration, &taint));
    if pressures == ["MemoryPressure"] && (class(pod) != Class::BestEffort || tolerated()) {
        return Ok(());
    }
    Err(Refusal::new("Evicted", format!("The node had condition: [{}]. ", pressures.join(" "))))
}

/// What no other pod's end could change.
fn refusals(question: &Question<'_>) -> Result<(), Refusal> {
    let Question { pod, node, .. } = question;
    if spec(pod).os.as_ref().is_some_and(|os| os.name != "linux") {
        let text = "Failed to admit pod as the OS field doesn't match node OS";
        return Err(Refusal::new("PodOSNotSupported", text));
    }
    sysctls(pod, question.unsafe_sysctls)?;
    if !is_critical(pod) {
        resources(question)?;
    }
    if !matches_affinity(pod, node) {
        return Err(Refusal::predicate("NodeAffinity", "node(s) didn't match Pod's node affinity/selector"));
    }
    let name = node.metadata.name.as_deref().unwrap_or_default();
    if spec(pod).node_name.as_deref().is_some_and(|wanted| !wanted.is_empty() && wanted != name) {
        return Err(Refusal::predicate("NodeName", "node(s) didn't match the requested node name"));
    }
    if question.others.iter().any(|other| ports_clash(pod, other)) {
        let text = "node(s) didn't have free ports for the requested pod ports";
        return Err(Refusal::predicate("NodePorts", text));
    }
    if !is_static(pod) && untolerated(pod, node).is_some() {
        return Err(Refusal::predicate("TaintToleration", "node(s) had taints that the pod didn't tolerate"));
    }
    Ok(())
}

const SAFE_SYSCTLS: [&str; 12] = [
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
];

fn sysctls(pod: &Pod, allowed: &[String]) -> Result<(), Refusal> {
    let list = spec(pod).security_context.as_ref().and_then(|context| context.sysctls.as_ref());
    for sysctl in list.into_iter().flatten() {
        let name = sysctl.name.replace('/', ".");
        let listed = |pattern: &String| match pattern.strip_suffix('*') {
            Some(prefix) => name.starts_with(prefix),
            None => *pattern == name,
        };
        if !SAFE_SYSCTLS.contains(&name.as_str()) && !allowed.iter().any(listed) {
            return Err(Refusal::new("SysctlForbidden", format!("forbidden sysctl: {name:?} not allowlisted")));
        }
        if host_network(pod) && name.starts_with("net.") {
            let text = format!("forbidden sysctl: {name:?} not allowed with host net enabled");
            return Err(Refusal::new("SysctlForbidden", text));
        }
        if spec(pod).host_ipc == Some(true) && (name.starts_with("kernel.") || name.starts_with("fs.mqueue.")) {
            let text = format!("forbidden sysctl: {name:?} not allowed with host ipc enabled");
            return Err(Refusal::new("SysctlForbidden", text));
        }
    }
    Ok(())
}

fn allocatable<'a>(question: &Question<'a>) -> &'a ResourceList {
    static NOTHING: ResourceList = ResourceList::new();
    question.node.status.as_ref().and_then(|status| status.allocatable.as_ref()).unwrap_or(&NOTHING)
}

/// Do the pod's requests fit beside those of the others?
fn resources(question: &Question<'_>) -> Result<(), Refusal> {
    let wanted = totals(question.pod, Side::Requests, true);
    match first_shortage(&wanted, question.others, allocatable(question)) {
        Some(short) => Err(short.refusal()),
        None => Ok(()),
    }
}

/// Which of the others must go so that a critical pod has room; indexes among them.
fn room(question: &Question<'_>) -> Result<Vec<usize>, Refusal> {
    if !is_critical(question.pod) {
        return Ok(Vec::new());
    }
    let wanted = totals(question.pod, Side::Requests, true);
    let short = shortages(&wanted, question.others, allocatable(question));
    preempt::victims(question.pod, question.others, &short).map_err(|why| Refusal::new("UnexpectedAdmissionError", why))
}

/// A resource of which there is not enough.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// Its name.
    pub resource: String,
    /// What the pod asks for; cpu in thousandths, all else in units.
    pub requested: i64,
    /// What the others ask for.
    pub used: i64,
    /// What there is.
    pub capacity: i64,
}

impl Shortage {
    /// In the words of upstream's events.
    pub fn message(&self) -> String {
        format!(
            "Node didn't have enough resource: {}, requested: {}, used: {}, capacity: {}",
            self.resource, self.requested, self.used, self.capacity
        )
    }

    fn refusal(&self) -> Refusal {
        Refusal::new(format!("OutOf{}", self.resource), self.message())
    }
}

/// The first resource that the requests exceed, the number of pods first.
pub fn first_shortage(wanted: &BTreeMap<String, i64>, others: &[&Pod], allocatable: &ResourceList) -> Option<Shortage> {
    shortages(wanted, others, allocatable).into_iter().next()
}

/// The resources that the requests exceed, the number of pods first.
fn shortages(wanted: &BTreeMap<String, i64>, others: &[&Pod], allocatable: &ResourceList) -> Vec<Shortage> {
    let capacity = |name: &str| allocatable.get(name).map(milli);
    let pods = capacity("pods").unwrap_or(0) / 1000;
    let count = others.len() as i64;
    let mut short = Vec::new();
    if count + 1 > pods {
        short.push(Shortage { resource: "pods".into(), requested: 1, used: count, capacity: pods });
    }
    let mut used: BTreeMap<String, i64> = BTreeMap::new();
    for other in others {
        for (name, amount) in totals(other, Side::Requests, true) {
            *used.entry(name).or_default() += amount;
        }
    }
    let order = |name: &str| match name {
        "cpu" => 0,
        "memory" => 1,
        "ephemeral-storage" => 2,
        _ => 3,
    };
    let mut names: Vec<&String> = wanted.iter().filter(|(_, amount)| **amount > 0).map(|(name, _)| name).collect();
    names.sort_by_key(|name| order(name));
    for name in names {
        // Extended resources that the node does not have are granted elsewhere in the cluster.
        let Some(capacity) = capacity(name).or((order(name) < 3).then_some(0)) else { continue };
        let (requested, used) = (wanted[name], used.get(name).copied().unwrap_or(0));
        if requested > capacity - used {
            let unit = if name == "cpu" { 1 } else { 1000 };
            let (requested, used, capacity) = (requested / unit, used / unit, capacity / unit);
            short.push(Shortage { resource: name.clone(), requested, used, capacity });
        }
    }
    short
}

fn host_ports(pod: &Pod) -> impl Iterator<Item = (&str, &str, i32)> {
    let sidecars = super::inits(pod).iter().filter(|c| super::is_sidecar(c));
    super::apps(pod).iter().chain(sidecars).flat_map(|c| c.ports.iter().flatten()).filter_map(|port| {
        let number = port.host_port.filter(|number| *number > 0)?;
        let ip = port.host_ip.as_deref().filter(|ip| !ip.is_empty()).unwrap_or("0.0.0.0");
        Some((ip, port.protocol.as_deref().unwrap_or("TCP"), number))
    })
}

/// Host ports clash only where address and protocol overlap.
fn ports_clash(a: &Pod, b: &Pod) -> bool {
    let any = |ip: &str| ip == "0.0.0.0";
    host_ports(a).any(|(ip, protocol, number)| {
        host_ports(b).any(|(other, p, n)| n == number && p == protocol && (other == ip || any(ip) || any(other)))
    })
}

fn labels(node: &Node) -> BTreeMap<String, String> {
    node.metadata.labels.clone().unwrap_or_default()
}

fn matches_affinity(pod: &Pod, node: &Node) -> bool {
    let labels = labels(node);
    let selector = spec(pod).node_selector.iter().flatten();
    if !selector.into_iter().all(|(key, value)| labels.get(key) == Some(value)) {
        return false;
    }
    let affinity = spec(pod).affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
    let required = affinity.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref());
    required.is_none_or(|required| required.node_selector_terms.iter().any(|term| term_matches(term, node, &labels)))
}

fn term_matches(term: &NodeSelectorTerm, node: &Node, labels: &BTreeMap<String, String>) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    if expressions.is_empty() && fields.is_empty() {
        return false;
    }
    let name = node.metadata.name.clone().unwrap_or_default();
    let field_values = BTreeMap::from([("metadata.name".to_owned(), name)]);
    let holds = |key: &str, operator: &str, values: &Option<Vec<String>>, of: &BTreeMap<String, String>| {
        requirement(key, operator, values.clone().unwrap_or_default(), of)
    };
    expressions.iter().all(|e| holds(&e.key, &e.operator, &e.values, labels))
        && fields.iter().all(|e| holds(&e.key, &e.operator, &e.values, &field_values))
}

fn requirement(key: &str, operator: &str, values: Vec<String>, of: &BTreeMap<String, String>) -> bool {
    let value = of.get(key);
    match operator {
        "In" => value.is_some_and(|value| values.contains(value)),
        "NotIn" => value.is_none_or(|value| !values.contains(value)),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" | "Lt" => {
            let number = |text: Option<&String>| text.and_then(|text| text.parse::<i64>().ok());
            match (number(value), number(values.first())) {
                (Some(a), Some(b)) => {
                    if operator == "Gt" {
                        a > b
                    } else {
                        a < b
                    }
                }
                _ => false,
            }
        }
        _ => false,
    }
}

/// The first NoExecute taint of the node that the pod does not tolerate.
fn untolerated<'a>(pod: &Pod, node: &'a Node) -> Option<&'a Taint> {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
    let tolerations = spec(pod).tolerations.as_deref().unwrap_or_default();
    taints
        .iter()
        .filter(|taint| taint.effect == "NoExecute")
        .find(|taint| !tolerations.iter().any(|toleration| tolerates(toleration, taint)))
}

fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let effect = text(&toleration.effect);
    let key = text(&toleration.key);
    if (!effect.is_empty() && effect != taint.effect) || (!key.is_empty() && key != taint.key) {
        return false;
    }
    match toleration.operator.as_deref().unwrap_or_default() {
        "Exists" => true,
        _ => !key.is_empty() && text(&toleration.value) == text(&taint.value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(name: &str, spec: serde_json::Value) -> Pod {
        let mut spec = spec;
        if spec.get("containers").is_none() {
            spec["containers"] = json!([{"name": "c"}]);
        }
        serde_json::from_value(json!({"metadata": {"name": name, "namespace": "n"}, "spec": spec})).unwrap()
    }

    fn node() -> Node {
        serde_json::from_value(json!({"metadata": {"name": "node", "labels": {"zone": "a", "size": "3"}},
            "spec": {"taints": [{"key": "k", "value": "v", "effect": "NoExecute"}]},
            "status": {"allocatable": {"cpu": "2", "memory": "1Gi", "pods": "3"}}}))
        .unwrap()
    }

    fn ask(pod: &Pod, others: &[&Pod]) -> Result<(), Refusal> {
        ask_of(&node(), pod, others)
    }

    fn ask_of(node: &Node, pod: &Pod, others: &[&Pod]) -> Result<(), Refusal> {
        match admit(&Question { pod, others, node, unsafe_sysctls: &[] }) {
            Verdict::Admit => Ok(()),
            Verdict::Refuse(refusal) => Err(refusal),
            Verdict::Preempt(victims) => panic!("{victims:?} should go"),
        }
    }

    #[test]
    fn a_node_under_pressure_takes_only_those_that_may() {
        let mut node = node();
        let pressed = |node: &mut Node, kinds: &[&str]| {
            let conditions: Vec<_> = kinds.iter().map(|kind| json!({"type": kind, "status": "True"})).collect();
            node.status.as_mut().unwrap().conditions = serde_json::from_value(json!(conditions)).unwrap();
        };
        let tolerates_node = json!([{"key": "k", "operator": "Exists"}]);
        let modest = pod("p", json!({"tolerations": tolerates_node}));
        let asking = pod(
            "p",
            json!({"tolerations": tolerates_node,
            "containers": [{"name": "c", "resources": {"requests": {"cpu": "1m"}}}]}),
        );
        pressed(&mut node, &["MemoryPressure"]);
        let refusal = ask_of(&node, &modest, &[]).unwrap_err();
        assert_eq!(
            (refusal.reason.as_str(), refusal.message.as_str()),
            ("Evicted", "The node had condition: [MemoryPressure]. ")
        );
        assert_eq!(ask_of(&node, &asking, &[]), Ok(()));
        assert_eq!(ask_of(&node, &pod("p", tolerant(json!({}))), &[]), Ok(()));
        pressed(&mut node, &["MemoryPressure", "DiskPressure"]);
        assert!(ask_of(&node, &asking, &[]).is_err());
        let critical = pod("p", json!({"tolerations": tolerates_node, "priority": 2_000_000_000}));
        assert_eq!(ask_of(&node, &critical, &[]), Ok(()));
    }

    #[test]
    fn a_critical_pod_takes_the_place_of_others() {
        let sized = |name: &str, cpu: &str, priority: i32| {
            pod(
                name,
                tolerant(json!({"priority": priority,
                "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]})),
            )
        };
        let (small, large) = (sized("small", "500m", 0), sized("large", "1200m", 0));
        let critical = sized("critical", "1", 2_000_000_000);
        let others = [&small, &large];
        let node = node();
        let question = Question { pod: &critical, others: &others, node: &node, unsafe_sysctls: &[] };
        assert_eq!(admit(&question), Verdict::Preempt(vec![1]));
        let equal = sized("equal", "1500m", 2_000_000_000);
        let question = Question { others: &[&equal], ..question };
        let Verdict::Refuse(refusal) = admit(&question) else { panic!("nobody can go") };
        assert!(refusal.message.contains("no set of running pods found to reclaim resources"), "{refusal:?}");
    }

    fn tolerant(mut spec: serde_json::Value) -> serde_json::Value {
        spec["tolerations"] = json!([{"operator": "Exists"}]);
        spec
    }

    #[test]
    fn resources_that_are_short_refuse_with_numbers() {
        let cpu =
            |amount: &str| tolerant(json!({"containers": [{"name": "c", "resources": {"requests": {"cpu": amount}}}]}));
        let other = pod("o", cpu("1500m"));
        let refusal = ask(&pod("p", cpu("1")), &[&other]).unwrap_err();
        assert_eq!(refusal.reason, "OutOfcpu");
        let text = "Node didn't have enough resource: cpu, requested: 1000, used: 1500, capacity: 2000";
        assert_eq!(refusal.message, text);
        assert_eq!(ask(&pod("p", cpu("500m")), &[&other]), Ok(()));
        let refusal = ask(&pod("p", tolerant(json!({}))), &[&other, &other, &other]).unwrap_err();
        assert_eq!(refusal.reason, "OutOfpods");
    }

    #[test]
    fn selectors_ports_taints_and_sysctls_refuse_by_name() {
        let reason = |spec: serde_json::Value, others: &[&Pod]| ask(&pod("p", spec), others).unwrap_err().reason;
        assert_eq!(reason(tolerant(json!({"nodeSelector": {"zone": "b"}})), &[]), "NodeAffinity");
        assert_eq!(reason(json!({}), &[]), "TaintToleration");
        let ports = |ip: &str| {
            tolerant(
                json!({"containers": [{"name": "c", "ports": [{"containerPort": 1, "hostPort": 80, "hostIP": ip}]}]}),
            )
        };
        let taken = pod("o", ports(""));
        assert_eq!(reason(ports("10.0.0.1"), &[&taken]), "NodePorts");
        assert_eq!(ask(&pod("p", ports("10.0.0.2")), &[&pod("o", ports("10.0.0.1"))]), Ok(()));
        let sysctl = tolerant(json!({"securityContext": {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}}));
        assert_eq!(reason(sysctl, &[]), "SysctlForbidden");
    }

    #[test]
    fn node_affinity_follows_the_operators() {
        let affine = |expression: serde_json::Value| {
            let spec = tolerant(json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
                {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}}}));
            ask(&pod("p", spec), &[]).is_ok()
        };
        assert!(affine(json!({"key": "zone", "operator": "In", "values": ["a"]})));
        assert!(!affine(json!({"key": "zone", "operator": "NotIn", "values": ["a"]})));
        assert!(affine(json!({"key": "size", "operator": "Gt", "values": ["2"]})));
        assert!(!affine(json!({"key": "none", "operator": "Exists"})));
    }
}

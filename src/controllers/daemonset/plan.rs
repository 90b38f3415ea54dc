//! The pure part: where pods must be made and which must go.

use crate::common::history::HASH;
use crate::common::pods;
use crate::deployment::scaled;
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{DaemonSet, DaemonSetSpec, DaemonSetStatus};
use k8s_openapi::api::core::v1::{
    Affinity, Node, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod, PodSpec,
    PodTemplateSpec, Taint, Toleration,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Taints that daemon pods always tolerate: key and effect.
const TOLERATED: &[(&str, &str)] = &[
    ("node.kubernetes.io/not-ready", "NoExecute"),
    ("node.kubernetes.io/unreachable", "NoExecute"),
    ("node.kubernetes.io/disk-pressure", "NoSchedule"),
    ("node.kubernetes.io/memory-pressure", "NoSchedule"),
    ("node.kubernetes.io/pid-pressure", "NoSchedule"),
    ("node.kubernetes.io/unschedulable", "NoSchedule"),
];
/// And those on the host's network.
const TOLERATED_BY_HOST: (&str, &str) = ("node.kubernetes.io/network-unavailable", "NoSchedule");

/// What to do.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Plan {
    /// Nodes that need a pod.
    pub(super) create: Vec<String>,
    /// Pods that must go.
    pub(super) delete: Vec<Arc<Pod>>,
    /// Pods that ended and are replaced: told about, then deleted.
    pub(super) ended: Vec<Arc<Pod>>,
}

pub(super) fn spec(set: &DaemonSet) -> DaemonSetSpec {
    set.spec.clone().unwrap_or_default()
}

/// The template with what every daemon pod has.
pub(super) fn template(set: &DaemonSet, hash: &str) -> PodTemplateSpec {
    let mut template = spec(set).template;
    let labels = template.metadata.get_or_insert_default().labels.get_or_insert_default();
    labels.insert(HASH.into(), hash.to_owned());
    let generation = set.metadata.annotations.as_ref();
    if let Some(generation) = generation.and_then(|all| all.get("deprecated.daemonset.template.generation")) {
        labels.insert("pod-template-generation".into(), generation.clone());
    }
    let pod = template.spec.get_or_insert_default();
    let host = pod.host_network == Some(true);
    let tolerations = pod.tolerations.get_or_insert_default();
    for (key, effect) in TOLERATED.iter().chain(host.then_some(&TOLERATED_BY_HOST)) {
        let toleration = Toleration {
            key: Some((*key).into()),
            operator: Some("Exists".into()),
            effect: Some((*effect).into()),
            ..Default::default()
        };
        if !tolerations.contains(&toleration) {
            tolerations.push(toleration);
        }
    }
    template
}

/// Binds a pod to a node through its affinity, so that the scheduler still has the last word.
pub(super) fn pin(pod: &mut PodSpec, node: &str) {
    let field = NodeSelectorRequirement {
        key: "metadata.name".into(),
        operator: "In".into(),
        values: Some(vec![node.to_owned()]),
    };
    let affinity: &mut Affinity = pod.affinity.get_or_insert_default();
    let affinity: &mut NodeAffinity = affinity.node_affinity.get_or_insert_default();
    let required = affinity
        .required_during_scheduling_ignored_during_execution
        .get_or_insert_with(|| NodeSelector { node_selector_terms: Vec::new() });
    if required.node_selector_terms.is_empty() {
        required.node_selector_terms.push(NodeSelectorTerm::default());
    }
    for term in &mut required.node_selector_terms {
        term.match_fields = Some(vec![field.clone()]);
    }
}

/// The node a pod runs on, or is pinned to.
pub(super) fn target(pod: &Pod) -> Option<String> {
    let spec = pod.spec.as_ref()?;
    if let Some(node) = spec.node_name.clone().filter(|node| !node.is_empty()) {
        return Some(node);
    }
    let required =
        spec.affinity.as_ref()?.node_affinity.as_ref()?.required_during_scheduling_ignored_during_execution.as_ref()?;
    let fields = required.node_selector_terms.iter().flat_map(|term| term.match_fields.iter().flatten());
    let mut names = fields.filter(|field| field.key == "metadata.name" && field.operator == "In");
    names.find_map(|field| field.values.as_ref()?.first().cloned())
}

/// Whether a pod of this template should be started on a node, and whether one that runs there may stay.
pub(super) fn fits(template: &PodTemplateSpec, node: &Node) -> (bool, bool) {
    let pod = template.spec.clone().unwrap_or_default();
    let name = node.metadata.name.as_deref().unwrap_or_default();
    let named = pod.node_name.as_deref().is_none_or(|wanted| wanted.is_empty() || wanted == name);
    if !named || !selects(&pod, node) {
        return (false, false);
    }
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default();
    let tolerations = pod.tolerations.unwrap_or_default();
    let tolerated = |effects: &[&str]| {
        let mut repelling = taints.iter().filter(|taint| effects.contains(&taint.effect.as_str()));
        repelling.all(|taint| tolerations.iter().any(|toleration| tolerates(toleration, taint)))
    };
    (tolerated(&["NoSchedule", "NoExecute"]), tolerated(&["NoExecute"]))
}

fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let is = |own: &Option<String>, other: &str| own.as_deref().unwrap_or_default() == other;
    let any = |own: &Option<String>| own.as_deref().unwrap_or_default().is_empty();
    (any(&toleration.effect) || is(&toleration.effect, &taint.effect))
        && (any(&toleration.key) || is(&toleration.key, &taint.key))
        && match toleration.operator.as_deref().unwrap_or("Equal") {
            "Exists" => true,
            "Equal" | "" => is(&toleration.value, taint.value.as_deref().unwrap_or_default()),
            _ => false,
        }
}

fn selects(pod: &PodSpec, node: &Node) -> bool {
    let labels = node.metadata.labels.clone().unwrap_or_default();
    let selected = pod.node_selector.iter().flatten().all(|(key, value)| labels.get(key) == Some(value));
    let required = pod.affinity.as_ref().and_then(|affinity| {
        affinity.node_affinity.as_ref()?.required_during_scheduling_ignored_during_execution.as_ref()
    });
    let name = node.metadata.name.as_deref().unwrap_or_default();
    let fields = BTreeMap::from([("metadata.name".to_owned(), name.to_owned())]);
    let term = |term: &NodeSelectorTerm| {
        let expressions = term.match_expressions.as_deref().unwrap_or_default();
        let on_fields = term.match_fields.as_deref().unwrap_or_default();
        !(expressions.is_empty() && on_fields.is_empty())
            && expressions.iter().all(|requirement| holds(requirement, &labels))
            && on_fields.iter().all(|requirement| holds(requirement, &fields))
    };
    selected && required.is_none_or(|required| required.node_selector_terms.iter().any(term))
}

fn holds(requirement: &NodeSelectorRequirement, labels: &BTreeMap<String, String>) -> bool {
    let value = labels.get(&requirement.key);
    let values = requirement.values.as_deref().unwrap_or_default();
    let number = |text: Option<&String>| text.and_then(|text| text.parse::<i64>().ok());
    match requirement.operator.as_str() {
        "In" => value.is_some_and(|value| values.contains(value)),
        "NotIn" => value.is_none_or(|value| !values.contains(value)),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => number(value).zip(number(values.first())).is_some_and(|(value, bound)| value > bound),
        "Lt" => number(value).zip(number(values.first())).is_some_and(|(value, bound)| value < bound),
        _ => false,
    }
}

/// The pods of a set by node.
pub(super) fn by_node(pods: &[Arc<Pod>]) -> BTreeMap<String, Vec<Arc<Pod>>> {
    let mut by_node: BTreeMap<String, Vec<Arc<Pod>>> = BTreeMap::new();
    for pod in pods {
        if let Some(node) = target(pod) {
            by_node.entry(node).or_default().push(pod.clone());
        }
    }
    by_node
}

/// Makes pods where they are missing, removes those that have no business, and replaces old ones within the budget.
pub(super) fn plan(set: &DaemonSet, hash: &str, nodes: &[Arc<Node>], pods: &[Arc<Pod>], now: Timestamp) -> Plan {
    let template = template(set, hash);
    let mut plan = Plan::default();
    let by_node = by_node(pods);
    let names: Vec<&str> = nodes.iter().filter_map(|node| node.metadata.name.as_deref()).collect();
    for node in nodes {
        let name = node.metadata.name.as_deref().unwrap_or_default();
        let here = by_node.get(name).map(Vec::as_slice).unwrap_or_default();
        place(&mut plan, name, fits(&template, node), here);
    }
    // Pods of nodes that are gone belong to the pod collector, unless they never ran.
    let stray = by_node.iter().filter(|(node, _)| !names.contains(&node.as_str())).flat_map(|(_, pods)| pods);
    plan.delete.extend(stray.filter(|pod| pods::node(pod).is_empty() && !pods::is_terminating(pod)).cloned());
    roll(set, hash, &template, nodes, &by_node, &mut plan, now);
    plan
}

fn place(plan: &mut Plan, node: &str, (start, stay): (bool, bool), here: &[Arc<Pod>]) {
    if !stay {
        plan.delete.extend(here.iter().filter(|pod| !pods::is_terminating(pod)).cloned());
        return;
    }
    if here.is_empty() {
        if start {
            plan.create.push(node.to_owned());
        }
        return;
    }
    let living: Vec<_> = here.iter().filter(|pod| !pods::is_terminating(pod)).collect();
    plan.ended.extend(living.iter().filter(|pod| pods::is_terminal(pod)).map(|pod| (*pod).clone()));
    let mut running: Vec<_> = living.into_iter().filter(|pod| !pods::is_terminal(pod)).collect();
    // Of several the one that is bound and oldest stays.
    running.sort_by_key(|pod| (pods::node(pod).is_empty(), pod.metadata.creation_timestamp.clone()));
    plan.delete.extend(running.into_iter().skip(1).cloned());
}

/// Deletes old pods, those that are unavailable first, as long as no more nodes than allowed are without one.
fn roll(
    set: &DaemonSet, hash: &str, template: &PodTemplateSpec, nodes: &[Arc<Node>],
    by_node: &BTreeMap<String, Vec<Arc<Pod>>>, plan: &mut Plan, now: Timestamp,
) {
    let spec = spec(set);
    let strategy = spec.update_strategy.unwrap_or_default();
    if strategy.type_.as_deref() == Some("OnDelete") {
        return;
    }
    let fitting: Vec<&str> =
        nodes.iter().filter(|node| fits(template, node).0).filter_map(|node| node.metadata.name.as_deref()).collect();
    let total = i32::try_from(fitting.len()).unwrap_or(i32::MAX);
    let allowed = strategy.rolling_update.as_ref().and_then(|rolling| rolling.max_unavailable.as_ref());
    let allowed = allowed.map_or(1, |allowed| scaled(Some(allowed), total, true));
    let min_ready = spec.min_ready_seconds.unwrap_or(0);
    let (mut unavailable, mut candidates) = (0, Vec::new());
    for node in fitting {
        let here = by_node.get(node).map(Vec::as_slice).unwrap_or_default();
        let living = here.iter().find(|pod| pods::is_active(pod) && !plan.delete.contains(pod));
        let available = living.is_some_and(|pod| pods::is_available(pod, min_ready, now));
        unavailable += i32::from(!available);
        let Some(old) = living.filter(|pod| revision(pod) != hash) else { continue };
        if available {
            candidates.push(old.clone());
        } else {
            plan.delete.push(old.clone());
        }
    }
    let budget = usize::try_from(allowed - unavailable).unwrap_or(0);
    plan.delete.extend(candidates.into_iter().take(budget));
}

fn revision(pod: &Pod) -> &str {
    pod.metadata.labels.as_ref().and_then(|labels| labels.get(HASH)).map(String::as_str).unwrap_or_default()
}

/// Whether a pod has this revision.
pub(super) fn is_of(pod: &Pod, hash: &str) -> bool {
    revision(pod) == hash
}

/// Counts what is there.
pub(super) fn status(
    set: &DaemonSet, hash: &str, nodes: &[Arc<Node>], pods: &[Arc<Pod>], now: Timestamp,
) -> DaemonSetStatus {
    let template = template(set, hash);
    let min_ready = spec(set).min_ready_seconds.unwrap_or(0);
    let by_node = by_node(pods);
    let mut status = DaemonSetStatus {
        observed_generation: set.metadata.generation,
        updated_number_scheduled: Some(0),
        number_available: Some(0),
        number_unavailable: Some(0),
        ..set.status.clone().unwrap_or_default()
    };
    let (mut desired, mut current, mut ready, mut astray, mut updated, mut available) = (0, 0, 0, 0, 0, 0);
    for node in nodes {
        let here = by_node.get(node.metadata.name.as_deref().unwrap_or_default());
        let oldest = here.and_then(|here| here.iter().min_by_key(|pod| pod.metadata.creation_timestamp.clone()));
        if !fits(&template, node).0 {
            astray += i32::from(oldest.is_some());
            continue;
        }
        desired += 1;
        let Some(pod) = oldest else { continue };
        current += 1;
        if pods::is_ready(pod) {
            ready += 1;
            available += i32::from(pods::is_available(pod, min_ready, now));
        }
        updated += i32::from(is_of(pod, hash));
    }
    status.desired_number_scheduled = desired;
    status.current_number_scheduled = current;
    status.number_ready = ready;
    status.number_misscheduled = astray;
    status.updated_number_scheduled = Some(updated);
    status.number_available = Some(available);
    status.number_unavailable = Some(desired - available);
    status
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn set(extra: Value) -> DaemonSet {
        let mut spec = json!({"selector": {"matchLabels": {"app": "agent"}},
            "template": {"metadata": {"labels": {"app": "agent"}}, "spec": {"containers": [{"name": "c"}]}}});
        for (key, value) in extra.as_object().unwrap() {
            spec[key] = value.clone();
        }
        serde_json::from_value(json!({"metadata": {"name": "agent", "generation": 1}, "spec": spec})).unwrap()
    }

    fn node(name: &str, taints: Value) -> Arc<Node> {
        Arc::new(serde_json::from_value(json!({"metadata": {"name": name}, "spec": {"taints": taints}})).unwrap())
    }

    fn pod(name: &str, node: &str, hash: &str, phase: &str, ready: bool) -> Arc<Pod> {
        let status = if ready { "True" } else { "False" };
        Arc::new(
            serde_json::from_value(json!({
                "metadata": {"name": name, "labels": {HASH: hash}},
                "spec": {"nodeName": node, "containers": []},
                "status": {"phase": phase, "conditions": [{"type": "Ready", "status": status}]},
            }))
            .unwrap(),
        )
    }

    fn names(pods: &[Arc<Pod>]) -> Vec<&str> {
        pods.iter().map(|pod| pod.metadata.name.as_deref().unwrap()).collect()
    }

    #[test]
    fn every_node_that_takes_the_pod_gets_one() {
        let nodes = [
            node("a", json!([])),
            node("b", json!([{"key": "mine", "effect": "NoSchedule"}])),
            node("c", json!([{"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"}])),
        ];
        let plan = plan(&set(json!({})), "h", &nodes, &[], Timestamp::UNIX_EPOCH);
        assert_eq!(plan.create, ["a", "c"]);
    }

    #[test]
    fn a_taint_that_only_keeps_new_pods_away_leaves_old_ones() {
        let nodes = [
            node("a", json!([{"key": "x", "effect": "NoSchedule"}])),
            node("b", json!([{"key": "x", "effect": "NoExecute"}])),
        ];
        let pods = [pod("p", "a", "h", "Running", true), pod("q", "b", "h", "Running", true)];
        let plan = plan(&set(json!({})), "h", &nodes, &pods, Timestamp::UNIX_EPOCH);
        assert_eq!(names(&plan.delete), ["q"]);
    }

    #[test]
    fn ended_pods_are_replaced() {
        let plan = plan(
            &set(json!({})),
            "h",
            &[node("a", json!([]))],
            &[pod("p", "a", "h", "Failed", false)],
            Timestamp::UNIX_EPOCH,
        );
        assert_eq!(names(&plan.ended), ["p"]);
        assert!(plan.create.is_empty());
    }

    #[test]
    fn a_new_template_replaces_pods_within_the_budget() {
        let nodes = [node("a", json!([])), node("b", json!([])), node("c", json!([]))];
        let pods = [
            pod("p", "a", "old", "Running", true),
            pod("q", "b", "old", "Running", true),
            pod("r", "c", "old", "Running", true),
        ];
        let delete = |set: &DaemonSet, pods: &[Arc<Pod>]| {
            names(&plan(set, "new", &nodes, pods, Timestamp::UNIX_EPOCH).delete).len()
        };
        assert_eq!(delete(&set(json!({})), &pods), 1);
        let two = set(json!({"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 2}}}));
        assert_eq!(delete(&two, &pods), 2);
        assert_eq!(delete(&set(json!({"updateStrategy": {"type": "OnDelete"}})), &pods), 0);
        let waiting = [pod("p", "a", "new", "Pending", false), pods[1].clone(), pods[2].clone()];
        assert_eq!(delete(&set(json!({})), &waiting), 0);
    }

    #[test]
    fn pods_are_pinned_to_their_node() {
        let mut spec = PodSpec::default();
        pin(&mut spec, "a");
        let pod = Pod { spec: Some(spec), ..Default::default() };
        assert_eq!(target(&pod).as_deref(), Some("a"));
    }

    #[test]
    fn the_status_counts_nodes() {
        let nodes = [node("a", json!([])), node("b", json!([]))];
        let status =
            status(&set(json!({})), "h", &nodes, &[pod("p", "a", "h", "Running", true)], Timestamp::UNIX_EPOCH);
        assert_eq!((status.desired_number_scheduled, status.current_number_scheduled, status.number_ready), (2, 1, 1));
        assert_eq!((status.updated_number_scheduled, status.number_unavailable), (Some(1), Some(1)));
    }
}

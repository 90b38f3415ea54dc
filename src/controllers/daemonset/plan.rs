//! The pure part: where pods must be made and which must go.

use crate::common::history::HASH;
use crate::common::pods;
use crate::deployment::scaled;
use crate::nodes::tolerates;
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{DaemonSet, DaemonSetSpec, DaemonSetStatus};
use k8s_openapi::api::core::v1::{
    Affinity, Node, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod, PodSpec,
    PodTemplateSpec, Toleration,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

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

const GENERATION: &str = "deprecated.daemonset.template.generation";
const GENERATION_LABEL: &str = "pod-template-generation";

/// What to do.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Plan {
    /// Nodes that need a pod.
    pub(super) create: Vec<String>,
    /// Pods that must go.
    pub(super) delete: Vec<Arc<Pod>>,
    /// Pods that ended and are replaced: told about, then deleted.
    pub(super) ended: Vec<Arc<Pod>>,
    /// When a failed pod may be replaced that may not yet.
    pub(super) again: Option<Duration>,
}

impl Plan {
    fn changes_nothing(&self) -> bool {
        self.create.is_empty() && self.delete.is_empty() && self.ended.is_empty()
    }
}

pub(super) fn spec(set: &DaemonSet) -> DaemonSetSpec {
    set.spec.clone().unwrap_or_default()
}

/// The template with what every daemon pod has.
pub(super) fn template(set: &DaemonSet, hash: &str) -> PodTemplateSpec {
    let mut template = spec(set).template;
    let labels = template.metadata.get_or_insert_default().labels.get_or_insert_default();
    labels.insert(HASH.into(), hash.to_owned());
    if let Some(generation) = generation(set) {
        labels.insert(GENERATION_LABEL.into(), generation.to_owned());
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

/// Binds a pod to a node through its affinity, so that the scheduler still has the last word. What the template requires of
/// nodes has been looked at, and is replaced.
pub(super) fn pin(pod: &mut PodSpec, node: &str) {
    let field = NodeSelectorRequirement {
        key: "metadata.name".into(),
        operator: "In".into(),
        values: Some(vec![node.to_owned()]),
    };
    let affinity: &mut Affinity = pod.affinity.get_or_insert_default();
    let affinity: &mut NodeAffinity = affinity.node_affinity.get_or_insert_default();
    let term = NodeSelectorTerm { match_fields: Some(vec![field]), match_expressions: None };
    affinity.required_during_scheduling_ignored_during_execution =
        Some(NodeSelector { node_selector_terms: vec![term] });
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

/// The pods of a set by node. Those that have ended and are being deleted are somebody else's business.
pub(super) fn by_node(pods: &[Arc<Pod>]) -> BTreeMap<String, Vec<Arc<Pod>>> {
    let mut by_node: BTreeMap<String, Vec<Arc<Pod>>> = BTreeMap::new();
    for pod in pods.iter().filter(|pod| !(pods::is_terminal(pod) && pods::is_terminating(pod))) {
        if let Some(node) = target(pod) {
            by_node.entry(node).or_default().push(pod.clone());
        }
    }
    by_node
}

/// Makes pods where they are missing, removes those that have no business, and once that is done, replaces old ones within
/// the budget. `held` says how long a failed pod on a node must stay yet.
pub(super) fn plan(
    set: &DaemonSet, hash: &str, nodes: &[Arc<Node>], pods: &[Arc<Pod>], held: &dyn Fn(&str) -> Option<Duration>,
    now: Timestamp,
) -> Plan {
    let template = template(set, hash);
    let names = |node: &Arc<Node>| (node.metadata.name.clone().unwrap_or_default(), fits(&template, node));
    let view = View { set, hash, now, nodes: nodes.iter().map(names).collect(), pods: by_node(pods) };
    let mut plan = Plan::default();
    for (node, fits) in &view.nodes {
        view.place(&mut plan, node, *fits, held);
    }
    // Pods of nodes that are gone belong to the pod collector, unless they never ran.
    let stray = view.pods.iter().filter(|(node, _)| !view.nodes.contains_key(*node)).flat_map(|(_, pods)| pods);
    plan.delete.extend(stray.filter(|pod| pods::node(pod).is_empty() && !pods::is_terminating(pod)).cloned());
    if plan.changes_nothing() {
        view.roll(&mut plan);
    }
    plan
}

/// What a plan is made from.
struct View<'a> {
    set: &'a DaemonSet,
    hash: &'a str,
    now: Timestamp,
    /// Of each node, whether a pod should be started there, and whether one that runs there may stay.
    nodes: BTreeMap<String, (bool, bool)>,
    pods: BTreeMap<String, Vec<Arc<Pod>>>,
}

impl View<'_> {
    fn is_available(&self, pod: &Pod) -> bool {
        pods::is_available(pod, spec(self.set).min_ready_seconds.unwrap_or(0), self.now)
    }

    /// How many nodes may be without a pod during an update, and on how many there may be two, if so many want one; nothing
    /// when pods are only replaced by hand.
    fn budget(&self, desired: i32) -> Option<(usize, usize)> {
        let strategy = spec(self.set).update_strategy.unwrap_or_default();
        if strategy.type_.as_deref() == Some("OnDelete") {
            return None;
        }
        let rolling = strategy.rolling_update.unwrap_or_default();
        let count = |value| usize::try_from(scaled(value, desired, true)).unwrap_or(0);
        match (count(rolling.max_unavailable.as_ref()), count(rolling.max_surge.as_ref())) {
            (0, 0) => Some((1, 0)),
            budget => Some(budget),
        }
    }

    fn surges(&self) -> bool {
        self.budget(1).is_some_and(|(_, surge)| surge > 0)
    }

    fn place(&self, plan: &mut Plan, node: &str, (start, stay): (bool, bool), held: &dyn Fn(&str) -> Option<Duration>) {
        let here = self.pods.get(node).map(Vec::as_slice).unwrap_or_default();
        let living = here.iter().filter(|pod| !pods::is_terminating(pod));
        if !stay {
            plan.delete.extend(living.cloned());
            return;
        }
        if here.is_empty() {
            plan.create.extend(start.then(|| node.to_owned()));
            return;
        }
        let (ended, mut running): (Vec<_>, Vec<_>) = living.cloned().partition(|pod| pods::is_terminal(pod));
        for pod in ended {
            match held(node).filter(|_| pods::phase(&pod) == "Failed") {
                Some(wait) => plan.again = Some(plan.again.map_or(wait, |again| again.min(wait))),
                None => plan.ended.push(pod),
            }
        }
        running.sort_by(|a, b| seniority(a).cmp(&seniority(b)));
        if !self.surges() {
            plan.delete.extend(running.into_iter().skip(1));
        } else if running.is_empty() && start {
            plan.create.push(node.to_owned());
        } else {
            self.surplus_of_two(plan, running);
        }
    }

    /// With a surge there may be two: an old one that is ready, and a new one that is not available yet.
    fn surplus_of_two(&self, plan: &mut Plan, running: Vec<Arc<Pod>>) {
        let (mut new, mut old): (Vec<_>, Vec<_>) = running.into_iter().partition(|pod| revision(pod) == self.hash);
        plan.delete.extend(new.drain(1.min(new.len())..));
        plan.delete.extend(old.drain(1.min(old.len())..));
        if let (Some(new), Some(old)) = (new.pop(), old.pop())
            && (!pods::is_ready(&old) || self.is_available(&new))
        {
            plan.delete.push(old);
        }
    }

    /// The new and the old pod of each node that wants one or has one; nothing where there are several of a sort.
    fn pairs(&self) -> BTreeMap<&str, Option<(Option<&Arc<Pod>>, Option<&Arc<Pod>>)>> {
        let wanting = self.nodes.iter().filter(|(_, (start, _))| *start).map(|(node, _)| node);
        let nodes: BTreeSet<&str> = wanting.chain(self.pods.keys()).map(String::as_str).collect();
        let pair = |node: &str| {
            let here = self.pods.get(node).map(Vec::as_slice).unwrap_or_default();
            let living = here.iter().filter(|pod| !pods::is_terminating(pod));
            let (new, old): (Vec<_>, Vec<_>) = living.partition(|pod| is_updated(pod, self.set, self.hash));
            (new.len() <= 1 && old.len() <= 1).then(|| (new.first().copied(), old.first().copied()))
        };
        nodes.into_iter().map(|node| (node, pair(node))).collect()
    }

    fn roll(&self, plan: &mut Plan) {
        let desired = self.nodes.values().filter(|(start, _)| *start).count();
        match self.budget(i32::try_from(desired).unwrap_or(i32::MAX)) {
            None => {}
            Some((most, 0)) => self.replace_in_place(plan, most),
            Some((_, surge)) => self.replace_side_by_side(plan, surge, desired),
        }
    }

    /// Deletes old pods, those that are unavailable first, as long as no more nodes than allowed are without one.
    fn replace_in_place(&self, plan: &mut Plan, most: usize) {
        let (mut unavailable, mut candidates) = (0, Vec::new());
        for pair in self.pairs().into_values() {
            match pair {
                Some((Some(new), None)) => unavailable += usize::from(!self.is_available(new)),
                Some((None, Some(old))) if self.is_available(old) => candidates.push(old.clone()),
                Some((None, Some(old))) => {
                    plan.delete.push(old.clone());
                    unavailable += 1;
                }
                _ => unavailable += 1,
            }
        }
        plan.delete.extend(candidates.into_iter().take(most.saturating_sub(unavailable)));
    }

    /// Makes a new pod beside each old one, at once where the old one is unavailable, otherwise on so many nodes; an old one
    /// goes when the new one is available. On a node that the pods must leave it goes only when enough others are.
    fn replace_side_by_side(&self, plan: &mut Plan, surge: usize, desired: usize) {
        let (mut surging, mut available) = (0, 0);
        let (mut candidates, mut leaving) = (Vec::new(), Vec::new());
        for (node, pair) in self.pairs() {
            let Some((new, old)) = pair else {
                surging += 1;
                continue;
            };
            available += usize::from(old.or(new).is_some_and(|pod| self.is_available(pod)));
            let Some(old) = old else { continue };
            let wanted = self.nodes.get(node).is_some_and(|(start, _)| *start);
            match (new, self.is_available(old)) {
                (Some(new), _) if self.is_available(new) => plan.delete.push(old.clone()),
                (Some(_), _) => surging += 1,
                (None, true) if wanted => candidates.push(node.to_owned()),
                (None, true) => leaving.push(old.clone()),
                (None, false) if wanted => plan.create.push(node.to_owned()),
                (None, false) => plan.delete.push(old.clone()),
            }
        }
        plan.create.extend(candidates.into_iter().take(surge.saturating_sub(surging)));
        plan.delete.extend(leaving.into_iter().take(available.saturating_sub(desired)));
    }
}

/// The order in which pods on one node stay: bound ones first, then the oldest.
fn seniority(pod: &Pod) -> (bool, Option<Timestamp>, Option<&str>) {
    let made = pod.metadata.creation_timestamp.as_ref().map(|time| time.0);
    (pods::node(pod).is_empty(), made, pod.metadata.name.as_deref())
}

fn revision(pod: &Pod) -> &str {
    label(pod, HASH).unwrap_or_default()
}

fn label<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    pod.metadata.labels.as_ref()?.get(key).map(String::as_str)
}

/// Whether a pod has this revision.
pub(super) fn is_of(pod: &Pod, hash: &str) -> bool {
    revision(pod) == hash
}

/// Whether a pod is of the current template, by its revision or, as older pods have it, by the template's generation.
fn is_updated(pod: &Pod, set: &DaemonSet, hash: &str) -> bool {
    is_of(pod, hash) || generation(set).is_some_and(|generation| label(pod, GENERATION_LABEL) == Some(generation))
}

fn generation(set: &DaemonSet) -> Option<&str> {
    set.metadata.annotations.as_ref()?.get(GENERATION).map(String::as_str)
}

/// Counts what is there. `settled` says that the set has been dealt with as it is now.
pub(super) fn status(
    set: &DaemonSet, hash: &str, nodes: &[Arc<Node>], pods: &[Arc<Pod>], settled: bool, now: Timestamp,
) -> DaemonSetStatus {
    let template = template(set, hash);
    let min_ready = spec(set).min_ready_seconds.unwrap_or(0);
    let by_node = by_node(pods);
    let mut status = DaemonSetStatus {
        updated_number_scheduled: Some(0),
        number_available: Some(0),
        number_unavailable: Some(0),
        ..set.status.clone().unwrap_or_default()
    };
    let (mut desired, mut current, mut ready, mut astray, mut updated, mut available) = (0, 0, 0, 0, 0, 0);
    for node in nodes {
        let here = by_node.get(node.metadata.name.as_deref().unwrap_or_default());
        let oldest = here.and_then(|here| here.iter().min_by(|a, b| seniority(a).cmp(&seniority(b))));
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
        updated += i32::from(is_updated(pod, set, hash));
    }
    if settled {
        status.observed_generation = set.metadata.generation;
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

    fn plan(set: &DaemonSet, hash: &str, nodes: &[Arc<Node>], pods: &[Arc<Pod>]) -> Plan {
        super::plan(set, hash, nodes, pods, &|_| None, Timestamp::UNIX_EPOCH)
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
        let plan = plan(&set(json!({})), "h", &nodes, &[]);
        assert_eq!(plan.create, ["a", "c"]);
    }

    #[test]
    fn a_taint_that_only_keeps_new_pods_away_leaves_old_ones() {
        let nodes = [
            node("a", json!([{"key": "x", "effect": "NoSchedule"}])),
            node("b", json!([{"key": "x", "effect": "NoExecute"}])),
        ];
        let pods = [pod("p", "a", "h", "Running", true), pod("q", "b", "h", "Running", true)];
        let plan = plan(&set(json!({})), "h", &nodes, &pods);
        assert_eq!(names(&plan.delete), ["q"]);
    }

    #[test]
    fn ended_pods_are_replaced() {
        let plan = plan(&set(json!({})), "h", &[node("a", json!([]))], &[pod("p", "a", "h", "Failed", false)]);
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
        let delete = |set: &DaemonSet, pods: &[Arc<Pod>]| names(&plan(set, "new", &nodes, pods).delete).len();
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
            status(&set(json!({})), "h", &nodes, &[pod("p", "a", "h", "Running", true)], true, Timestamp::UNIX_EPOCH);
        assert_eq!((status.desired_number_scheduled, status.current_number_scheduled, status.number_ready), (2, 1, 1));
        assert_eq!((status.updated_number_scheduled, status.number_unavailable), (Some(1), Some(1)));
    }

    #[test]
    fn a_failed_pod_stays_while_its_node_is_held_and_the_set_comes_back() {
        let wait = Duration::from_secs(4);
        let pods = [pod("p", "a", "h", "Failed", false), pod("q", "b", "h", "Succeeded", false)];
        let nodes = [node("a", json!([])), node("b", json!([]))];
        let held = super::plan(&set(json!({})), "h", &nodes, &pods, &|_| Some(wait), Timestamp::UNIX_EPOCH);
        assert_eq!((names(&held.ended), held.again), (vec!["q"], Some(wait)), "success needs no pause");
    }

    fn surging(surge: Value) -> DaemonSet {
        set(
            json!({"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge, "maxUnavailable": 0}}}),
        )
    }

    #[test]
    fn a_surge_makes_the_new_pod_before_the_old_one_goes() {
        let nodes = [node("a", json!([])), node("b", json!([])), node("c", json!([]))];
        let old = |name: &str, node: &str, ready: bool| pod(name, node, "old", "Running", ready);
        let pods = [old("p", "a", true), old("q", "b", true), old("r", "c", true)];
        let first = plan(&surging(json!(1)), "new", &nodes, &pods);
        assert_eq!((first.create, first.delete.len()), (vec!["a".to_owned()], 0));
        assert_eq!(plan(&surging(json!("50%")), "new", &nodes, &pods).create, ["a", "b"]);
        let starting = [pods.to_vec(), vec![pod("n", "a", "new", "Pending", false)]].concat();
        assert_eq!(plan(&surging(json!(1)), "new", &nodes, &starting), Plan::default(), "one at a time");
        let started = [pods.to_vec(), vec![pod("n", "a", "new", "Running", true)]].concat();
        let next = plan(&surging(json!(1)), "new", &nodes, &started);
        assert_eq!((names(&next.delete), next.create.len()), (vec!["p"], 0));
        let broken = [old("p", "a", true), old("q", "b", false), old("r", "c", false)];
        assert_eq!(plan(&surging(json!(1)), "new", &nodes, &broken).create, ["b", "c", "a"], "nothing is lost there");
    }

    #[test]
    fn with_a_surge_a_pod_leaves_a_node_that_no_longer_fits_only_when_others_are_available() {
        let shunned = json!([{"key": "x", "effect": "NoSchedule"}]);
        let nodes = [node("a", shunned), node("b", json!([]))];
        let leaving = pod("p", "a", "old", "Running", true);
        let starting = [leaving.clone(), pod("q", "b", "new", "Running", false)];
        assert_eq!(plan(&surging(json!(1)), "new", &nodes, &starting), Plan::default());
        let started = [leaving, pod("q", "b", "new", "Running", true)];
        assert_eq!(names(&plan(&surging(json!(1)), "new", &nodes, &started).delete), ["p"]);
    }

    #[test]
    fn without_any_budget_one_node_at_a_time_is_updated() {
        let none = set(json!({"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0}}}));
        let pods = [pod("p", "a", "old", "Running", true), pod("q", "b", "old", "Running", true)];
        assert_eq!(plan(&none, "new", &[node("a", json!([])), node("b", json!([]))], &pods).delete.len(), 1);
    }

    #[test]
    fn old_pods_are_replaced_only_once_all_nodes_have_theirs() {
        let nodes = [node("a", json!([])), node("b", json!([]))];
        let step = plan(&set(json!({})), "new", &nodes, &[pod("p", "a", "old", "Running", true)]);
        assert_eq!((step.create.len(), step.delete.len()), (1, 0));
    }
}

//! PodTopologySpread: pods of a kind spread evenly over zones, hosts or whatever labels name (KEP-895).

use std::collections::HashMap;
use std::sync::Arc;

use api::selector::{LabelSelector, Operator, Requirement};
use k8s_openapi::api::core::v1::TopologySpreadConstraint;

use crate::framework::{Cycle, Event, MAX_SCORE, Plugin, Refusal};
use crate::plugins::{matches_node, tolerates};
use crate::state::{NodeInfo, PodInfo, Snapshot};

/// The plugin.
pub struct Spread;

/// A constraint, ready to count.
struct Constraint {
    key: String,
    max_skew: i64,
    min_domains: i64,
    selector: LabelSelector,
    hard: bool,
    honor_affinity: bool,
    honor_taints: bool,
    /// Matching pods by value of the key, over eligible nodes.
    counts: HashMap<String, i64>,
    matches_itself: bool,
}

impl Constraint {
    fn new(constraint: &TopologySpreadConstraint, pod: &PodInfo) -> Option<Self> {
        let mut selector = LabelSelector::from_typed(constraint.label_selector.as_ref()).ok()?;
        // matchLabelKeys narrow the selector by the pod's own labels (KEP-3243).
        let keys = constraint.match_label_keys.iter().flatten();
        let own = keys.filter_map(|k| Requirement::new(k, Operator::In, vec![pod.labels().get(k)?.clone()]).ok());
        let own: Vec<Requirement> = own.collect();
        if !own.is_empty() {
            selector = LabelSelector::new(selector.requirements().iter().cloned().chain(own).collect());
        }
        Some(Self {
            key: constraint.topology_key.clone(),
            max_skew: i64::from(constraint.max_skew),
            min_domains: i64::from(constraint.min_domains.unwrap_or(1)),
            matches_itself: selector.matches(pod.labels()),
            selector,
            hard: constraint.when_unsatisfiable == "DoNotSchedule",
            honor_affinity: constraint.node_affinity_policy.as_deref() != Some("Ignore"),
            honor_taints: constraint.node_taints_policy.as_deref() == Some("Honor"),
            counts: HashMap::new(),
        })
    }

    /// Nodes that the pod could not be on do not count.
    fn counts_node(&self, pod: &PodInfo, node: &NodeInfo) -> bool {
        let tolerated = || {
            let repels = node.taints().iter().filter(|t| t.effect != "PreferNoSchedule");
            repels.into_iter().all(|taint| pod.tolerations().iter().any(|t| tolerates(t, taint)))
        };
        (!self.honor_affinity || matches_node(pod, node)) && (!self.honor_taints || tolerated())
    }

    fn matching(&self, pod: &PodInfo, node: &NodeInfo) -> i64 {
        let same = node.pods.values().filter(|o| o.key.namespace == pod.key.namespace && !o.is_terminating());
        same.filter(|o| self.selector.matches(o.labels())).count() as i64
    }

    /// The fewest pods that any domain has; none while there are fewer domains than there should be.
    fn least(&self) -> i64 {
        if (self.counts.len() as i64) < self.min_domains {
            return 0;
        }
        self.counts.values().copied().min().unwrap_or(0)
    }
}

struct SpreadCycle {
    hard: Vec<Constraint>,
    soft: Vec<Constraint>,
}

/// Counts over those nodes that have all keys of the group.
fn count(group: &mut [Constraint], pod: &PodInfo, world: &Snapshot) {
    let keys: Vec<String> = group.iter().map(|c| c.key.clone()).collect();
    let has_all = |node: &NodeInfo| keys.iter().all(|k| node.labels().contains_key(k));
    for node in world.nodes().filter(|n| has_all(n)) {
        for constraint in group.iter_mut().filter(|c| c.counts_node(pod, node)) {
            let matching = constraint.matching(pod, node);
            let value = node.labels()[&constraint.key].clone();
            *constraint.counts.entry(value).or_default() += matching;
        }
    }
}

impl Cycle for SpreadCycle {
    fn filter(&self, node: &NodeInfo) -> Result<(), Refusal> {
        for constraint in &self.hard {
            let Some(value) = node.labels().get(&constraint.key) else {
                let reason = "node(s) didn't match pod topology spread constraints (missing required label)";
                return Err(Refusal::unresolvable(reason));
            };
            let here = constraint.counts.get(value).copied().unwrap_or(0);
            let skew = here + i64::from(constraint.matches_itself) - constraint.least();
            if skew > constraint.max_skew {
                return Err(Refusal::new("node(s) didn't match pod topology spread constraints"));
            }
        }
        Ok(())
    }

    /// The more matching pods around, the higher; rarer domains weigh less. Turned round by `normalize`.
    fn score(&self, node: &NodeInfo) -> i64 {
        let mut score = 0.0;
        for constraint in &self.soft {
            let Some(value) = node.labels().get(&constraint.key) else { return i64::MIN };
            let here = constraint.counts.get(value).copied().unwrap_or(0) as f64;
            let weight = (constraint.counts.len() as f64 + 2.0).ln();
            score += here * weight + (constraint.max_skew - 1) as f64;
        }
        score.round() as i64
    }

    fn normalize(&self, _nodes: &[Arc<NodeInfo>], scores: &mut [i64]) {
        let known = || scores.iter().copied().filter(|s| *s != i64::MIN);
        let (min, max) = (known().min().unwrap_or(0), known().max().unwrap_or(0));
        for score in scores.iter_mut() {
            *score = match *score {
                // A node without the label is no place to spread to.
                i64::MIN => 0,
                _ if max == 0 => MAX_SCORE,
                own => MAX_SCORE * (max + min - own) / max,
            };
        }
    }
}

impl Plugin for Spread {
    fn name(&self) -> &'static str {
        "PodTopologySpread"
    }

    fn cycle<'a>(&'a self, pod: &'a PodInfo, world: &'a Snapshot) -> Result<Option<Box<dyn Cycle + 'a>>, Refusal> {
        let constraints = pod.spec().and_then(|s| s.topology_spread_constraints.as_deref()).unwrap_or_default();
        let parsed = constraints.iter().filter_map(|c| Constraint::new(c, pod));
        let (mut hard, mut soft): (Vec<_>, Vec<_>) = parsed.partition(|c| c.hard);
        if hard.is_empty() && soft.is_empty() {
            return Ok(None);
        }
        count(&mut hard, pod, world);
        count(&mut soft, pod, world);
        Ok(Some(Box::new(SpreadCycle { hard, soft })))
    }

    fn may_help(&self, pod: &PodInfo, event: &Event) -> bool {
        match event {
            Event::AssignedPod(other) | Event::FreedPod(other) => other.key.namespace == pod.key.namespace,
            Event::Node(..) | Event::Itself => true,
            Event::Namespace | Event::Storage => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugins::fixtures::*;
    use serde_json::{Value, json};

    fn spreading(policy: Value) -> Arc<PodInfo> {
        let mut constraint = json!({"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": {"app": "web"}}});
        for (key, value) in policy.as_object().unwrap() {
            constraint[key] = value.clone();
        }
        labelled("p", json!({"app": "web"}), json!({"topologySpreadConstraints": [constraint]}))
    }

    fn zones(second: Value) -> Snapshot {
        let mut world = world(&[node("n", json!({"zone": "a"})), second, node("bare", json!({}))]);
        world.add_pod("n", labelled("w", json!({"app": "web"}), json!({})));
        world
    }

    #[test]
    fn skew_is_bounded_and_nodes_without_the_label_are_out() {
        let world = zones(node("o", json!({"zone": "b"})));
        let pod = spreading(json!({}));
        assert!(filter(&Spread, &pod, &world, "n").is_err());
        assert!(filter(&Spread, &pod, &world, "o").is_ok());
        let refusal = filter(&Spread, &pod, &world, "bare").unwrap_err();
        assert_eq!(refusal.reasons, ["node(s) didn't match pod topology spread constraints (missing required label)"]);
    }

    #[test]
    fn tainted_nodes_count_unless_the_policy_honors_taints() {
        let tainted = json!({"metadata": {"name": "o", "labels": {"zone": "b"}},
            "spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}});
        let world = zones(tainted);
        assert!(filter(&Spread, &spreading(json!({})), &world, "n").is_err());
        assert!(filter(&Spread, &spreading(json!({"nodeTaintsPolicy": "Honor"})), &world, "n").is_ok());
    }

    #[test]
    fn preferences_favor_the_emptier_zone() {
        let world = zones(node("o", json!({"zone": "b"})));
        let scores = scores(&Spread, &spreading(json!({"whenUnsatisfiable": "ScheduleAnyway"})), &world);
        assert_eq!(scores[0], 0, "{scores:?}");
        assert!(scores[2] > scores[1], "{scores:?}");
    }
}

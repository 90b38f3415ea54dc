//! NodeAffinity: nodeSelector, required and preferred node affinity.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{NodeSelector, NodeSelectorRequirement, NodeSelectorTerm};

use crate::framework::{Cycle, Event, Plugin, Refusal, normalize_by_max};
use crate::state::{NodeInfo, PodInfo, Snapshot};

fn requirement_holds(requirement: &NodeSelectorRequirement, actual: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let among = |v: &str| values.iter().any(|x| x == v);
    let numbers = || Some((actual?.parse::<i64>().ok()?, values.first()?.parse::<i64>().ok()?));
    match requirement.operator.as_str() {
        "In" => actual.is_some_and(among),
        "NotIn" => !actual.is_some_and(among),
        "Exists" => actual.is_some(),
        "DoesNotExist" => actual.is_none(),
        "Gt" => numbers().is_some_and(|(a, b)| a > b),
        "Lt" => numbers().is_some_and(|(a, b)| a < b),
        _ => false,
    }
}

/// An empty term matches nothing.
fn term_matches(term: &NodeSelectorTerm, node: &NodeInfo) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    if expressions.is_empty() && fields.is_empty() {
        return false;
    }
    let label = |key: &str| node.labels().get(key).map(String::as_str);
    let field = |key: &str| (key == "metadata.name").then_some(node.name.as_str());
    expressions.iter().all(|r| requirement_holds(r, label(&r.key)))
        && fields.iter().all(|r| requirement_holds(r, field(&r.key)))
}

/// Does any term of a selector match?
pub fn node_selector_matches(selector: &NodeSelector, node: &NodeInfo) -> bool {
    selector.node_selector_terms.iter().any(|t| term_matches(t, node))
}

/// May a pod be on a node, by its nodeSelector and its required affinity?
pub fn matches_node(pod: &PodInfo, node: &NodeInfo) -> bool {
    let Some(spec) = pod.spec() else { return true };
    let by_label = spec.node_selector.iter().flatten().all(|(k, v)| node.labels().get(k) == Some(v));
    let affinity = spec.affinity.as_ref().and_then(|a| a.node_affinity.as_ref());
    let required = affinity.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref());
    by_label && required.is_none_or(|selector| node_selector_matches(selector, node))
}

/// The plugin.
pub struct Affinity;

struct AffinityCycle<'a>(&'a PodInfo);

impl Cycle for AffinityCycle<'_> {
    fn filter(&self, node: &NodeInfo) -> Result<(), Refusal> {
        match matches_node(self.0, node) {
            true => Ok(()),
            false => Err(Refusal::unresolvable("node(s) didn't match Pod's node affinity/selector")),
        }
    }

    fn score(&self, node: &NodeInfo) -> i64 {
        let affinity = self.0.spec().and_then(|s| s.affinity.as_ref()?.node_affinity.as_ref());
        let terms = affinity.and_then(|a| a.preferred_during_scheduling_ignored_during_execution.as_ref());
        let hits = terms.into_iter().flatten().filter(|t| term_matches(&t.preference, node));
        hits.map(|t| i64::from(t.weight)).sum()
    }

    fn normalize(&self, _nodes: &[Arc<NodeInfo>], scores: &mut [i64]) {
        normalize_by_max(scores, false);
    }
}

impl Plugin for Affinity {
    fn name(&self) -> &'static str {
        "NodeAffinity"
    }

    fn cycle<'a>(&'a self, pod: &'a PodInfo, _world: &'a Snapshot) -> Result<Option<Box<dyn Cycle + 'a>>, Refusal> {
        let spec = pod.spec();
        let says = spec.is_some_and(|s| {
            s.node_selector.as_ref().is_some_and(|m| !m.is_empty())
                || s.affinity.as_ref().is_some_and(|a| a.node_affinity.is_some())
        });
        Ok(says.then(|| Box::new(AffinityCycle(pod)) as Box<dyn Cycle>))
    }

    fn may_help(&self, pod: &PodInfo, event: &Event) -> bool {
        let Event::Node(old, new) = event else { return matches!(event, Event::Itself) };
        let matches = |node: &Arc<k8s_openapi::api::core::v1::Node>| {
            let mut world = Snapshot::default();
            world.set_node(node.clone());
            world.nodes().any(|n| matches_node(pod, n))
        };
        matches(new) && !old.as_ref().is_some_and(matches)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugins::fixtures::*;
    use serde_json::{Value, json};

    fn wanting(expressions: Value) -> Arc<PodInfo> {
        let terms = json!([{"matchExpressions": expressions}]);
        let required = json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}});
        pod("p", json!({"affinity": {"nodeAffinity": required}}))
    }

    #[test]
    fn every_operator_is_understood() {
        let world = world(&[node("n", json!({"zone": "a", "cores": "8"}))]);
        let fits = |expression: Value| filter(&Affinity, &wanting(json!([expression])), &world, "n").is_ok();
        assert!(fits(json!({"key": "zone", "operator": "In", "values": ["a", "b"]})));
        assert!(!fits(json!({"key": "zone", "operator": "NotIn", "values": ["a"]})));
        assert!(fits(json!({"key": "none", "operator": "NotIn", "values": ["a"]})));
        assert!(fits(json!({"key": "zone", "operator": "Exists"})));
        assert!(!fits(json!({"key": "zone", "operator": "DoesNotExist"})));
        assert!(fits(json!({"key": "cores", "operator": "Gt", "values": ["4"]})));
        assert!(!fits(json!({"key": "cores", "operator": "Lt", "values": ["8"]})));
        assert!(filter(&Affinity, &wanting(json!([])), &world, "n").is_err());
    }

    #[test]
    fn a_label_that_makes_a_node_match_helps_and_other_changes_do_not() {
        let waiting = pod("p", json!({"nodeSelector": {"disk": "ssd"}}));
        let of = |labels: Value| Arc::new(serde_json::from_value(node("n", labels)).unwrap());
        assert!(Affinity.may_help(&waiting, &Event::Node(Some(of(json!({}))), of(json!({"disk": "ssd"})))));
        assert!(!Affinity.may_help(&waiting, &Event::Node(Some(of(json!({}))), of(json!({"a": "b"})))));
    }

    #[test]
    fn preferences_add_up() {
        let preference = |weight: i32, value: &str| json!({"weight": weight, "preference": {"matchExpressions": [{"key": "zone", "operator": "In", "values": [value]}]}});
        let preferred =
            json!({"preferredDuringSchedulingIgnoredDuringExecution": [preference(10, "a"), preference(5, "b")]});
        let pod = pod("p", json!({"affinity": {"nodeAffinity": preferred}}));
        let world = world(&[node("n", json!({"zone": "a"})), node("o", json!({"zone": "b"}))]);
        assert_eq!(scores(&Affinity, &pod, &world), [100, 50]);
    }
}

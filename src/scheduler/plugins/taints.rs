//! TaintToleration: nodes repel pods that do not tolerate their taints.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Taint, Toleration};

use crate::framework::{Cycle, Event, Plugin, Refusal, normalize_by_max};
use crate::state::{NodeInfo, PodInfo, Snapshot};

/// Does a toleration cover a taint? An empty key with Exists covers every key, an empty effect every effect; Lt and Gt
/// compare numbers (KEP-5471).
pub fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let same = |own: &Option<String>, other: &str| own.as_deref().is_none_or(|o| o.is_empty() || o == other);
    if !same(&toleration.effect, &taint.effect) || !same(&toleration.key, &taint.key) {
        return false;
    }
    let keyed = toleration.key.as_deref().is_some_and(|k| !k.is_empty());
    let (own, other) = (toleration.value.as_deref().unwrap_or_default(), taint.value.as_deref().unwrap_or_default());
    let numbers = || Some((other.parse::<i64>().ok()?, own.parse::<i64>().ok()?));
    match toleration.operator.as_deref().unwrap_or("Equal") {
        "" | "Equal" => keyed && own == other,
        "Exists" => true,
        "Lt" => numbers().is_some_and(|(taint, own)| taint < own),
        "Gt" => numbers().is_some_and(|(taint, own)| taint > own),
        _ => false,
    }
}

fn tolerated(tolerations: &[Toleration], taint: &Taint) -> bool {
    tolerations.iter().any(|t| tolerates(t, taint))
}

/// The plugin.
pub struct Taints;

struct TaintsCycle<'a>(&'a PodInfo);

impl Cycle for TaintsCycle<'_> {
    fn filter(&self, node: &NodeInfo) -> Result<(), Refusal> {
        let repels = |t: &&Taint| matches!(t.effect.as_str(), "NoSchedule" | "NoExecute");
        match node.taints().iter().filter(repels).any(|t| !tolerated(self.0.tolerations(), t)) {
            true => Err(Refusal::unresolvable("node(s) had untolerated taint(s)")),
            false => Ok(()),
        }
    }

    /// The number of taints that would rather not have it.
    fn score(&self, node: &NodeInfo) -> i64 {
        let prefers = node.taints().iter().filter(|t| t.effect == "PreferNoSchedule");
        prefers.filter(|t| !tolerated(self.0.tolerations(), t)).count() as i64
    }

    fn normalize(&self, _nodes: &[Arc<NodeInfo>], scores: &mut [i64]) {
        normalize_by_max(scores, true);
    }
}

impl Plugin for Taints {
    fn name(&self) -> &'static str {
        "TaintToleration"
    }

    fn cycle<'a>(&'a self, pod: &'a PodInfo, _world: &'a Snapshot) -> Result<Option<Box<dyn Cycle + 'a>>, Refusal> {
        Ok(Some(Box::new(TaintsCycle(pod))))
    }

    fn may_help(&self, pod: &PodInfo, event: &Event) -> bool {
        let Event::Node(_, new) = event else { return matches!(event, Event::Itself) };
        let taints = new.spec.as_ref().and_then(|s| s.taints.as_deref()).unwrap_or_default();
        taints.iter().filter(|t| t.effect != "PreferNoSchedule").all(|t| tolerated(pod.tolerations(), t))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugins::fixtures::*;
    use serde_json::json;

    fn tainted(effect: &str) -> serde_json::Value {
        json!({"metadata": {"name": "n"}, "spec": {"taints": [{"key": "k", "value": "v", "effect": effect}]}})
    }

    #[test]
    fn untolerated_taints_refuse_and_preferences_only_count() {
        let world = world(&[tainted("NoSchedule")]);
        let refusal = filter(&Taints, &pod("p", json!({})), &world, "n").unwrap_err();
        assert_eq!(refusal.reasons, ["node(s) had untolerated taint(s)"]);
        for toleration in [
            json!({"key": "k", "operator": "Exists"}),
            json!({"operator": "Exists"}),
            json!({"key": "k", "value": "v", "effect": "NoSchedule"}),
        ] {
            let tolerant = pod("p", json!({"tolerations": [toleration]}));
            assert!(filter(&Taints, &tolerant, &world, "n").is_ok());
        }
        let other = pod("p", json!({"tolerations": [{"key": "k", "value": "w"}]}));
        assert!(filter(&Taints, &other, &world, "n").is_err());
    }

    #[test]
    fn preferences_lower_the_score() {
        let world = world(&[tainted("PreferNoSchedule"), node("o", json!({}))]);
        assert_eq!(scores(&Taints, &pod("p", json!({})), &world), [0, 100]);
    }
}

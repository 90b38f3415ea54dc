//! Taints that follow from a node's conditions.

use crate::context::{Context, Fault};
use client::retry;
use k8s_openapi::api::core::v1::{Node, NodeCondition, Taint, Toleration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Patch, PatchParams};
use serde_json::json;

pub(super) const NOT_READY: &str = "node.kubernetes.io/not-ready";
pub(super) const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";
const NO_SCHEDULE: &str = "NoSchedule";
pub(super) const NO_EXECUTE: &str = "NoExecute";

/// Condition, its status, and the taint that keeps pods away meanwhile.
const BY_CONDITION: &[(&str, &str, &str)] = &[
    ("Ready", "False", NOT_READY),
    ("Ready", "Unknown", UNREACHABLE),
    ("MemoryPressure", "True", "node.kubernetes.io/memory-pressure"),
    ("DiskPressure", "True", "node.kubernetes.io/disk-pressure"),
    ("PIDPressure", "True", "node.kubernetes.io/pid-pressure"),
    ("NetworkUnavailable", "True", "node.kubernetes.io/network-unavailable"),
];

/// A condition of the node.
pub(super) fn condition<'a>(node: &'a Node, kind: &str) -> Option<&'a NodeCondition> {
    node.status.as_ref()?.conditions.as_ref()?.iter().find(|condition| condition.type_ == kind)
}

pub(super) fn list(node: &Node) -> &[Taint] {
    node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default()
}

pub(super) fn has(node: &Node, key: &str, effect: &str) -> bool {
    list(node).iter().any(|taint| taint.key == key && taint.effect == effect)
}

/// Whether a pod with this toleration puts up with a taint.
pub(crate) fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    let (effect, key) = (text(&toleration.effect), text(&toleration.key));
    if !effect.is_empty() && effect != taint.effect || !key.is_empty() && key != taint.key {
        return false;
    }
    match toleration.operator.as_deref().unwrap_or_default() {
        "Exists" => true,
        "" | "Equal" => text(&toleration.value) == text(&taint.value) && !key.is_empty(),
        _ => false,
    }
}

fn taint(key: &str, effect: &str) -> Taint {
    Taint { key: key.into(), effect: effect.into(), time_added: None, value: None }
}

/// A change of taints, by key and effect.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Swap {
    pub(super) add: Vec<Taint>,
    pub(super) remove: Vec<Taint>,
}

impl Swap {
    /// Which NoSchedule taints a node lacks by its conditions, and which it has too many.
    pub(super) fn of_conditions(node: &Node) -> Self {
        let mut wanted: Vec<&str> = BY_CONDITION
            .iter()
            .filter(|(kind, status, _)| condition(node, kind).is_some_and(|found| found.status == *status))
            .map(|(_, _, key)| *key)
            .collect();
        if node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true) {
            wanted.push(UNSCHEDULABLE);
        }
        let ours = |key: &str| key == UNSCHEDULABLE || BY_CONDITION.iter().any(|(_, _, known)| *known == key);
        let surplus = list(node).iter().filter(|taint| taint.effect == NO_SCHEDULE && ours(&taint.key));
        Self {
            add: wanted.iter().filter(|key| !has(node, key, NO_SCHEDULE)).map(|key| taint(key, NO_SCHEDULE)).collect(),
            remove: surplus.filter(|taint| !wanted.contains(&taint.key.as_str())).cloned().collect(),
        }
    }

    /// Evicts pods because the node is not ready, or not reachable; the other of the two goes.
    pub(super) fn evicting(node: &Node, add: &str, remove: &str) -> Self {
        Self {
            add: Some(taint(add, NO_EXECUTE)).filter(|_| !has(node, add, NO_EXECUTE)).into_iter().collect(),
            remove: list(node)
                .iter()
                .filter(|taint| taint.effect == NO_EXECUTE && taint.key == remove)
                .cloned()
                .collect(),
        }
    }

    /// Evicts no more.
    pub(super) fn reachable(node: &Node) -> Self {
        let evicting =
            |taint: &&Taint| taint.effect == NO_EXECUTE && (taint.key == NOT_READY || taint.key == UNREACHABLE);
        Self { add: Vec::new(), remove: list(node).iter().filter(evicting).cloned().collect() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.add.is_empty() && self.remove.is_empty()
    }

    /// The node's taints after the change.
    fn apply(&self, node: &Node, now: &Time) -> Vec<Taint> {
        let same = |a: &Taint, b: &Taint| a.key == b.key && a.effect == b.effect;
        let mut taints: Vec<Taint> = list(node)
            .iter()
            .filter(|taint| !self.remove.iter().chain(&self.add).any(|other| same(taint, other)))
            .cloned()
            .collect();
        taints.extend(self.add.iter().map(|taint| Taint { time_added: Some(now.clone()), ..taint.clone() }));
        taints
    }
}

/// Writes a change of taints, on the node as it is now if it has changed meanwhile.
pub(super) async fn write(context: &Context, node: &Node, swap: &Swap) -> Result<(), Fault> {
    if swap.is_empty() {
        return Ok(());
    }
    let api = context.all::<Node>();
    let name = &node.metadata.name.clone().unwrap_or_default();
    const ATTEMPTS: usize = 5;
    let mut node = node.clone();
    for attempt in 1..=ATTEMPTS {
        let taints = swap.apply(&node, &client::now());
        let patch = json!({
            "metadata": {"resourceVersion": node.metadata.resource_version},
            "spec": {"taints": if taints.is_empty() { None } else { Some(taints) }},
        });
        match api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await {
            Err(error) if retry::is_conflict(&error) && attempt < ATTEMPTS => {
                let Some(fresh) = api.get_opt(name).await? else { return Ok(()) };
                node = fresh;
            }
            done => {
                retry::ignore_not_found(done)?;
                return Ok(());
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn node(taints: Value, conditions: Value, unschedulable: bool) -> Node {
        serde_json::from_value(json!({
            "metadata": {"name": "n"},
            "spec": {"taints": taints, "unschedulable": unschedulable},
            "status": {"conditions": conditions},
        }))
        .unwrap()
    }

    fn keys(taints: &[Taint]) -> Vec<&str> {
        taints.iter().map(|taint| taint.key.as_str()).collect()
    }

    #[test]
    fn conditions_become_taints_and_strangers_stay() {
        let taints = json!([{"key": NOT_READY, "effect": "NoSchedule"}, {"key": "mine", "effect": "NoSchedule"}]);
        let conditions = json!([{"type": "Ready", "status": "True"}, {"type": "DiskPressure", "status": "True"}]);
        let node = node(taints, conditions, true);
        let swap = Swap::of_conditions(&node);
        assert_eq!(keys(&swap.add), ["node.kubernetes.io/disk-pressure", UNSCHEDULABLE]);
        assert_eq!(keys(&swap.remove), [NOT_READY]);
        let after = swap.apply(&node, &client::now());
        assert_eq!(keys(&after), ["mine", "node.kubernetes.io/disk-pressure", UNSCHEDULABLE]);
        assert!(after[1].time_added.is_some());
    }

    #[test]
    fn an_unreachable_node_that_answers_again_but_is_not_ready_swaps_its_taint() {
        let node = node(json!([{"key": UNREACHABLE, "effect": "NoExecute"}]), json!([]), false);
        let swap = Swap::evicting(&node, NOT_READY, UNREACHABLE);
        assert_eq!((keys(&swap.add), keys(&swap.remove)), (vec![NOT_READY], vec![UNREACHABLE]));
        assert_eq!(keys(&Swap::reachable(&node).remove), [UNREACHABLE]);
    }
}

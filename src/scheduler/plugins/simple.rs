//! Plugins of one question each.

use crate::framework::{Cycle, Event, Plugin, Refusal};
use crate::plugins::tolerates;
use crate::state::{NodeInfo, PodInfo, Snapshot};

/// Pods with gates wait until somebody takes the gates away.
pub struct Gates;

impl Plugin for Gates {
    fn name(&self) -> &'static str {
        "SchedulingGates"
    }

    fn pre_enqueue(&self, pod: &PodInfo) -> Option<String> {
        let gates: Vec<&str> = pod.spec()?.scheduling_gates.iter().flatten().map(|g| g.name.as_str()).collect();
        let text = format!("waiting for scheduling gates: [{}]", gates.join(" "));
        (!gates.is_empty()).then_some(text)
    }

    fn cycle<'a>(&'a self, _pod: &'a PodInfo, _world: &'a Snapshot) -> Result<Option<Box<dyn Cycle + 'a>>, Refusal> {
        Ok(None)
    }

    fn may_help(&self, _pod: &PodInfo, event: &Event) -> bool {
        matches!(event, Event::Itself)
    }
}

/// A cordoned node takes only pods that tolerate it.
pub struct Unschedulable;

/// The taint that a cordoned node carries.
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";

fn tolerates_cordon(pod: &PodInfo) -> bool {
    let taint = k8s_openapi::api::core::v1::Taint {
        key: UNSCHEDULABLE.into(),
        effect: "NoSchedule".into(),
        ..Default::default()
    };
    pod.tolerations().iter().any(|t| tolerates(t, &taint))
}

struct UnschedulableCycle(bool);

impl Cycle for UnschedulableCycle {
    fn filter(&self, node: &NodeInfo) -> Result<(), Refusal> {
        match node.is_unschedulable() && !self.0 {
            true => Err(Refusal::unresolvable("node(s) were unschedulable")),
            false => Ok(()),
        }
    }
}

impl Plugin for Unschedulable {
    fn name(&self) -> &'static str {
        "NodeUnschedulable"
    }

    fn cycle<'a>(&'a self, pod: &'a PodInfo, _world: &'a Snapshot) -> Result<Option<Box<dyn Cycle + 'a>>, Refusal> {
        Ok(Some(Box::new(UnschedulableCycle(tolerates_cordon(pod)))))
    }

    fn may_help(&self, _pod: &PodInfo, event: &Event) -> bool {
        let open =
            |n: &k8s_openapi::api::core::v1::Node| !n.spec.as_ref().and_then(|s| s.unschedulable).unwrap_or(false);
        match event {
            Event::Node(_, new) => open(new),
            Event::Itself => true,
            _ => false,
        }
    }
}

/// A pod that names its node runs there or nowhere.
pub struct Name;

struct NameCycle<'a>(&'a str);

impl Cycle for NameCycle<'_> {
    fn filter(&self, node: &NodeInfo) -> Result<(), Refusal> {
        match node.name == self.0 {
            true => Ok(()),
            false => Err(Refusal::unresolvable("node(s) didn't match the requested node name")),
        }
    }
}

impl Plugin for Name {
    fn name(&self) -> &'static str {
        "NodeName"
    }

    fn cycle<'a>(&'a self, pod: &'a PodInfo, _world: &'a Snapshot) -> Result<Option<Box<dyn Cycle + 'a>>, Refusal> {
        Ok(pod.node().map(|name| Box::new(NameCycle(name)) as Box<dyn Cycle>))
    }

    fn may_help(&self, _pod: &PodInfo, event: &Event) -> bool {
        matches!(event, Event::Node(None, _))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugins::fixtures::*;
    use serde_json::json;

    #[test]
    fn gated_pods_wait_and_say_for_what() {
        let gated = pod("p", json!({"schedulingGates": [{"name": "a"}, {"name": "b"}]}));
        assert_eq!(Gates.pre_enqueue(&gated).as_deref(), Some("waiting for scheduling gates: [a b]"));
        assert_eq!(Gates.pre_enqueue(&pod("q", json!({}))), None);
    }

    #[test]
    fn cordoned_nodes_take_only_those_that_tolerate_it() {
        let world = world(&[json!({"metadata": {"name": "n"}, "spec": {"unschedulable": true}})]);
        let refusal = filter(&Unschedulable, &pod("p", json!({})), &world, "n").unwrap_err();
        assert_eq!(refusal, Refusal::unresolvable("node(s) were unschedulable"));
        let tolerant = pod("p", json!({"tolerations": [{"key": UNSCHEDULABLE, "operator": "Exists"}]}));
        assert!(filter(&Unschedulable, &tolerant, &world, "n").is_ok());
    }
}

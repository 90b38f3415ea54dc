//! The table of plugins: upstream's names, in upstream's order, with upstream's weights.

mod balanced;
mod fit;
mod images;
mod inter_pod;
mod node_affinity;
mod ports;
mod simple;
mod spread;
mod taints;

pub use node_affinity::{matches_node, node_selector_matches};
pub use taints::tolerates;

use crate::framework::Plugin;

/// Which plugins run, and how much their scores count.
pub struct Row {
    /// Upstream's name.
    pub name: &'static str,
    /// Weight of its score; 0 for those that do not score.
    pub weight: i64,
    /// Makes it.
    pub make: fn() -> Box<dyn Plugin>,
}

/// All plugins that look at nodes. Queue order (PrioritySort), preemption (DefaultPreemption) and binding (DefaultBinder)
/// are the scheduler's own.
pub const TABLE: &[Row] = &[
    Row { name: "SchedulingGates", weight: 0, make: || Box::new(simple::Gates) },
    Row { name: "NodeUnschedulable", weight: 0, make: || Box::new(simple::Unschedulable) },
    Row { name: "NodeName", weight: 0, make: || Box::new(simple::Name) },
    Row { name: "TaintToleration", weight: 3, make: || Box::new(taints::Taints) },
    Row { name: "NodeAffinity", weight: 2, make: || Box::new(node_affinity::Affinity) },
    Row { name: "NodePorts", weight: 0, make: || Box::new(ports::Ports) },
    Row { name: "NodeResourcesFit", weight: 1, make: || Box::new(fit::Fit) },
    Row { name: "PodTopologySpread", weight: 2, make: || Box::new(spread::Spread) },
    Row { name: "InterPodAffinity", weight: 2, make: || Box::new(inter_pod::InterPod) },
    Row { name: "NodeResourcesBalancedAllocation", weight: 1, make: || Box::new(balanced::Balanced) },
    Row { name: "ImageLocality", weight: 1, make: || Box::new(images::Images) },
];

#[cfg(test)]
pub(crate) mod fixtures {
    //! Pods and nodes for the plugins' tests.

    use std::sync::Arc;

    use serde_json::{Value, json};

    use crate::framework::{Plugin, Refusal};
    use crate::state::{PodInfo, Snapshot};

    pub fn pod(name: &str, spec: Value) -> Arc<PodInfo> {
        labelled(name, json!({}), spec)
    }

    pub fn labelled(name: &str, labels: Value, mut spec: Value) -> Arc<PodInfo> {
        if spec["containers"].is_null() {
            spec["containers"] = json!([{"name": "c"}]);
        }
        let metadata = json!({"name": name, "namespace": "ns", "uid": name, "labels": labels});
        Arc::new(PodInfo::new(Arc::new(serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap())))
    }

    pub fn asking(name: &str, cpu: &str) -> Arc<PodInfo> {
        pod(name, json!({"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]}))
    }

    pub fn world(nodes: &[Value]) -> Snapshot {
        let mut world = Snapshot::default();
        world.set_namespace("ns", Default::default());
        for node in nodes {
            let mut node = node.clone();
            if node["status"].is_null() {
                node["status"] = json!({"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110"}});
            }
            world.set_node(Arc::new(serde_json::from_value(node).unwrap()));
        }
        world
    }

    pub fn node(name: &str, labels: Value) -> Value {
        json!({"metadata": {"name": name, "labels": labels}})
    }

    /// The plugin's verdict on a node.
    pub fn filter(plugin: &dyn Plugin, pod: &PodInfo, world: &Snapshot, node: &str) -> Result<(), Refusal> {
        match plugin.cycle(pod, world)? {
            Some(cycle) => cycle.filter(world.node(node).unwrap()),
            None => Ok(()),
        }
    }

    /// The plugin's scores, normalized, in the nodes' order.
    pub fn scores(plugin: &dyn Plugin, pod: &PodInfo, world: &Snapshot) -> Vec<i64> {
        let nodes: Vec<_> = world.nodes().cloned().collect();
        let Some(cycle) = plugin.cycle(pod, world).unwrap() else { return vec![0; nodes.len()] };
        let mut scores: Vec<i64> = nodes.iter().map(|n| cycle.score(n)).collect();
        cycle.normalize(&nodes, &mut scores);
        scores
    }
}

//! NodeResourcesFit: a node must have what a pod asks for; those with more left are better (LeastAllocated).

use crate::framework::{Cycle, Event, MAX_SCORE, Plugin, Refusal};
use crate::state::{NodeInfo, PodInfo, Snapshot};

/// The plugin.
pub struct Fit;

struct FitCycle<'a>(&'a PodInfo);

/// A resource that is short: its name, whether the node could ever have enough.
struct Short {
    name: String,
    ever: bool,
}

fn shortages(pod: &PodInfo, node: &NodeInfo) -> Vec<Short> {
    let mut short = Vec::new();
    if node.pods.len() as i64 + 1 > node.allocatable.pods {
        short.push(Short { name: "Too many pods".into(), ever: true });
    }
    let requests = &pod.requests;
    let named =
        [("cpu", requests.milli_cpu), ("memory", requests.memory), ("ephemeral-storage", requests.ephemeral_storage)];
    let other = requests.other.iter().map(|(name, wanted)| (name.as_str(), *wanted));
    for (name, wanted) in named.into_iter().chain(other).filter(|(_, wanted)| *wanted > 0) {
        let (has, used) = (node.allocatable.get(name), node.requested.get(name));
        if wanted > has - used {
            short.push(Short { name: format!("Insufficient {name}"), ever: wanted <= has });
        }
    }
    short
}

fn least_allocated(requested: i64, capacity: i64) -> Option<i64> {
    match capacity {
        0 => None,
        _ if requested > capacity => Some(0),
        _ => Some((capacity - requested) * MAX_SCORE / capacity),
    }
}

impl Cycle for FitCycle<'_> {
    fn filter(&self, node: &NodeInfo) -> Result<(), Refusal> {
        let short = shortages(self.0, node);
        if short.is_empty() {
            return Ok(());
        }
        let unresolvable = short.iter().any(|s| !s.ever);
        Err(Refusal { reasons: short.into_iter().map(|s| s.name).collect(), unresolvable })
    }

    fn score(&self, node: &NodeInfo) -> i64 {
        let cpu = least_allocated(node.nonzero.milli_cpu + self.0.nonzero.milli_cpu, node.allocatable.milli_cpu);
        let memory = least_allocated(node.nonzero.memory + self.0.nonzero.memory, node.allocatable.memory);
        let parts: Vec<i64> = [cpu, memory].into_iter().flatten().collect();
        if parts.is_empty() { 0 } else { parts.iter().sum::<i64>() / parts.len() as i64 }
    }
}

impl Plugin for Fit {
    fn name(&self) -> &'static str {
        "NodeResourcesFit"
    }

    fn cycle<'a>(&'a self, pod: &'a PodInfo, _world: &'a Snapshot) -> Result<Option<Box<dyn Cycle + 'a>>, Refusal> {
        Ok(Some(Box::new(FitCycle(pod))))
    }

    fn may_help(&self, pod: &PodInfo, event: &Event) -> bool {
        match event {
            Event::FreedPod(_) | Event::Itself => true,
            Event::Node(_, new) => {
                let mut world = Snapshot::default();
                world.set_node(new.clone());
                // Whether there is room beside the node's pods, the next attempt finds out.
                world.nodes().any(|n| shortages(pod, n).iter().all(|s| s.ever))
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugins::fixtures::*;
    use serde_json::json;

    #[test]
    fn what_is_short_is_named_and_what_can_never_be_is_unresolvable() {
        let mut world = world(&[node("n", json!({}))]);
        world.add_pod("n", asking("a", "3"));
        let refusal = filter(&Fit, &asking("p", "2"), &world, "n").unwrap_err();
        assert_eq!(refusal, Refusal::new("Insufficient cpu"));
        assert_eq!(
            filter(&Fit, &asking("p", "5"), &world, "n").unwrap_err(),
            Refusal::unresolvable("Insufficient cpu")
        );
        assert!(filter(&Fit, &asking("p", "1"), &world, "n").is_ok());
        let gpu = pod("p", json!({"containers": [{"name": "c", "resources": {"requests": {"example.com/gpu": "1"}}}]}));
        assert_eq!(filter(&Fit, &gpu, &world, "n").unwrap_err().reasons, ["Insufficient example.com/gpu"]);
    }

    #[test]
    fn the_emptier_node_is_better() {
        let mut world = world(&[node("n", json!({})), node("o", json!({}))]);
        world.add_pod("n", asking("a", "2"));
        let scores = scores(&Fit, &asking("p", "1"), &world);
        assert!(scores[1] > scores[0], "{scores:?}");
    }
}

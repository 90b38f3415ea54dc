//! NodeResourcesBalancedAllocation: better where cpu and memory are used to the same degree.

use crate::framework::{Cycle, MAX_SCORE, Plugin, Refusal};
use crate::state::{NodeInfo, PodInfo, Snapshot};

/// The plugin.
pub struct Balanced;

struct BalancedCycle<'a>(&'a PodInfo);

/// The standard deviation of the used fractions, turned round: 1 when all are the same.
fn balance(fractions: &[f64]) -> f64 {
    let deviation = match fractions {
        [] | [_] => 0.0,
        [a, b] => ((a - b) / 2.0).abs(),
        all => {
            let mean = all.iter().sum::<f64>() / all.len() as f64;
            (all.iter().map(|f| (f - mean).powi(2)).sum::<f64>() / all.len() as f64).sqrt()
        }
    };
    1.0 - deviation
}

fn fraction(used: i64, capacity: i64) -> Option<f64> {
    (capacity > 0).then(|| (used as f64 / capacity as f64).min(1.0))
}

fn balance_with(node: &NodeInfo, milli_cpu: i64, memory: i64) -> f64 {
    let fractions = [
        fraction(node.requested.milli_cpu + milli_cpu, node.allocatable.milli_cpu),
        fraction(node.requested.memory + memory, node.allocatable.memory),
    ];
    balance(&fractions.into_iter().flatten().collect::<Vec<_>>())
}

impl Cycle for BalancedCycle<'_> {
    /// Half for being balanced with the pod, half for how much the pod betters the balance.
    fn score(&self, node: &NodeInfo) -> i64 {
        let with = balance_with(node, self.0.requests.milli_cpu, self.0.requests.memory);
        let without = balance_with(node, 0, 0);
        let half = MAX_SCORE as f64 / 2.0;
        (half + (with - without) * half) as i64
    }
}

impl Plugin for Balanced {
    fn name(&self) -> &'static str {
        "NodeResourcesBalancedAllocation"
    }

    fn cycle<'a>(&'a self, pod: &'a PodInfo, _world: &'a Snapshot) -> Result<Option<Box<dyn Cycle + 'a>>, Refusal> {
        // A pod that asks for nothing changes no balance.
        let asks = pod.requests.milli_cpu > 0 || pod.requests.memory > 0;
        Ok(asks.then(|| Box::new(BalancedCycle(pod)) as Box<dyn Cycle>))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugins::fixtures::*;
    use serde_json::json;

    #[test]
    fn a_pod_goes_where_it_betters_the_balance() {
        let mut world = world(&[node("n", json!({})), node("o", json!({}))]);
        let memory = json!({"containers": [{"name": "c", "resources": {"requests": {"memory": "4Gi"}}}]});
        world.add_pod("n", pod("a", memory));
        world.add_pod("o", asking("b", "2"));
        let scores = scores(&Balanced, &asking("p", "1"), &world);
        assert!(scores[0] > scores[1], "{scores:?}");
    }
}

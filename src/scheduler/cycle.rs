//! One scheduling cycle, pure: a pod, a world, a profile in; a node or a reason out.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::framework::{Cycle, Plugin, Refusal};
use crate::state::{NodeInfo, PodInfo, Snapshot};

/// A plugin with its weight.
pub struct Weighted {
    /// The plugin.
    pub plugin: Box<dyn Plugin>,
    /// How much its score counts; 0 for not at all.
    pub weight: i64,
    /// Its filter is on.
    pub filters: bool,
}

/// Why a pod fits nowhere.
#[derive(Debug, Clone, Default)]
pub struct Unfit {
    /// Nodes in the cluster.
    pub nodes: usize,
    /// Each node's refusal, with the plugin that refused.
    pub refusals: BTreeMap<String, (&'static str, Refusal)>,
    /// A plugin refused before any node was looked at.
    pub everywhere: Option<(&'static str, Refusal)>,
    /// What preemption said.
    pub preemption: String,
}

impl Unfit {
    /// Plugins that refused, for waking the pod again.
    pub fn plugins(&self) -> Vec<&'static str> {
        let mut names: Vec<&'static str> = self.refusals.values().map(|(name, _)| *name).collect();
        names.extend(self.everywhere.iter().map(|(name, _)| *name));
        names.sort_unstable();
        names.dedup();
        names
    }

    /// Counts of reasons as upstream words them: `0/2 nodes are available: 1 Insufficient cpu, 1 ….`
    pub fn message(&self) -> String {
        if self.nodes == 0 {
            return "no nodes available to schedule pods".into();
        }
        let mut text = format!("0/{} nodes are available:", self.nodes);
        match &self.everywhere {
            Some((_, refusal)) => text.push_str(&format!(" {}.", refusal.reasons.join(", "))),
            None => text.push_str(&histogram(self.refusals.values().map(|(_, r)| r))),
        }
        if !self.preemption.is_empty() {
            text.push_str(&format!(" {}", self.preemption));
        }
        text
    }
}

/// ` 1 Insufficient cpu, 2 node(s) were unschedulable.`, sorted as text.
pub fn histogram<'a>(refusals: impl Iterator<Item = &'a Refusal>) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for reason in refusals.flat_map(|r| &r.reasons) {
        *counts.entry(reason).or_default() += 1;
    }
    let mut texts: Vec<String> = counts.into_iter().map(|(reason, count)| format!("{count} {reason}")).collect();
    texts.sort();
    if texts.is_empty() { String::new() } else { format!(" {}.", texts.join(", ")) }
}

/// A plugin's part in one cycle.
struct Part<'a> {
    name: &'static str,
    weight: i64,
    filters: bool,
    cycle: Box<dyn Cycle + 'a>,
}

/// All plugins that have an opinion of the pod.
pub struct Run<'a> {
    parts: Vec<Part<'a>>,
}

impl<'a> Run<'a> {
    /// Lets the plugins look at the pod.
    ///
    /// # Errors
    /// The plugin that refuses it everywhere, and why.
    pub fn new(
        plugins: &'a [Weighted], pod: &'a PodInfo, world: &'a Snapshot,
    ) -> Result<Self, (&'static str, Refusal)> {
        let mut parts = Vec::with_capacity(plugins.len());
        for Weighted { plugin, weight, filters } in plugins {
            match plugin.cycle(pod, world) {
                Ok(None) => {}
                Ok(Some(cycle)) => parts.push(Part { name: plugin.name(), weight: *weight, filters: *filters, cycle }),
                Err(refusal) => return Err((plugin.name(), refusal)),
            }
        }
        Ok(Self { parts })
    }

    /// Does the pod fit on the node? The first plugin that says no has the word.
    ///
    /// # Errors
    /// That plugin, and why.
    pub fn filter(&self, node: &NodeInfo) -> Result<(), (&'static str, Refusal)> {
        let filters = self.parts.iter().filter(|p| p.filters);
        filters.into_iter().try_for_each(|p| p.cycle.filter(node).map_err(|refusal| (p.name, refusal)))
    }

    /// Total scores of feasible nodes.
    pub fn scores(&self, nodes: &[Arc<NodeInfo>]) -> Vec<i64> {
        let mut totals = vec![0; nodes.len()];
        for part in self.parts.iter().filter(|p| p.weight > 0) {
            let mut scores: Vec<i64> = nodes.iter().map(|n| part.cycle.score(n)).collect();
            part.cycle.normalize(nodes, &mut scores);
            for (total, score) in totals.iter_mut().zip(scores) {
                *total += score * part.weight;
            }
        }
        totals
    }
}

/// How many feasible nodes are enough: all of up to 100, a shrinking share of more.
pub fn enough(nodes: usize, percentage: u32) -> usize {
    const AT_LEAST: usize = 100;
    if nodes <= AT_LEAST || percentage >= 100 {
        return nodes;
    }
    let share = if percentage > 0 { percentage as usize } else { 50usize.saturating_sub(nodes / 125).max(5) };
    (nodes * share / 100).max(AT_LEAST)
}

/// Finds a node for a pod. `start` is where the search among the nodes begins, so that all get their turn; `pick` chooses
/// among so many equally good ones.
///
/// # Errors
/// Why there is none.
pub fn schedule(
    plugins: &[Weighted], pod: &PodInfo, world: &Snapshot, percentage: u32, start: usize, pick: impl Fn(usize) -> usize,
) -> Result<String, Unfit> {
    let nodes: Vec<&Arc<NodeInfo>> = world.nodes().collect();
    let mut unfit = Unfit { nodes: nodes.len(), ..Unfit::default() };
    let run = match Run::new(plugins, pod, world) {
        Ok(run) => run,
        Err(refusal) => return Err(Unfit { everywhere: Some(refusal), ..unfit }),
    };
    let wanted = enough(nodes.len(), percentage);
    let mut feasible: Vec<Arc<NodeInfo>> = Vec::new();
    // A node that preemption made room on is looked at first: it was chosen for this pod.
    let nominated = pod.nominated().and_then(|name| world.node(name)).filter(|n| run.filter(n).is_ok());
    if let Some(node) = nominated {
        feasible.push(node.clone());
    } else {
        for node in (0..nodes.len()).map(|i| nodes[(start + i) % nodes.len()]) {
            match run.filter(node) {
                Ok(()) => feasible.push(node.clone()),
                Err(refusal) => {
                    unfit.refusals.insert(node.name.clone(), refusal);
                }
            }
            if feasible.len() >= wanted {
                break;
            }
        }
    }
    match feasible.len() {
        0 => Err(unfit),
        1 => Ok(feasible.remove(0).name.clone()),
        _ => Ok(best(&run, &feasible, pick)),
    }
}

fn best(run: &Run<'_>, feasible: &[Arc<NodeInfo>], pick: impl Fn(usize) -> usize) -> String {
    let scores = run.scores(feasible);
    let top = scores.iter().copied().max().unwrap_or(0);
    let best: Vec<&Arc<NodeInfo>> = feasible.iter().zip(&scores).filter(|(_, s)| **s == top).map(|(n, _)| n).collect();
    best[pick(best.len()) % best.len()].name.clone()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugins::fixtures::*;
    use serde_json::json;

    pub fn all() -> Vec<Weighted> {
        let row = |r: &crate::plugins::Row| Weighted { plugin: (r.make)(), weight: r.weight, filters: true };
        crate::plugins::TABLE.iter().map(row).collect()
    }

    fn place(pod: &PodInfo, world: &Snapshot) -> Result<String, Unfit> {
        schedule(&all(), pod, world, 0, 0, |_| 0)
    }

    #[test]
    fn reasons_are_counted_and_worded_as_upstream_does() {
        let tainted = json!({"metadata": {"name": "t"}, "spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}});
        let world = world(&[node("n", json!({})), tainted]);
        let unfit = place(&asking("p", "100"), &world).unwrap_err();
        assert_eq!(unfit.message(), "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) had untolerated taint(s).");
        assert_eq!(unfit.plugins(), ["NodeResourcesFit", "TaintToleration"]);
        assert_eq!(
            place(&asking("p", "1"), &Snapshot::default()).unwrap_err().message(),
            "no nodes available to schedule pods"
        );
    }

    #[test]
    fn the_emptiest_node_wins() {
        let mut world = world(&[node("n", json!({})), node("o", json!({}))]);
        world.add_pod("n", asking("a", "2"));
        assert_eq!(place(&asking("p", "1"), &world).unwrap(), "o");
    }

    #[test]
    fn large_clusters_are_searched_in_part() {
        assert_eq!([enough(50, 0), enough(1000, 0), enough(6000, 0), enough(6000, 100)], [50, 420, 300, 6000]);
    }
}

//! The framework: what a plugin may say, and when. Upstream's extension points, as two traits.
//!
//! A [`Plugin`] lives as long as the scheduler. For each pod it makes a [`Cycle`] (PreFilter and PreScore in one), which
//! answers for node after node (Filter, Score) out of one snapshot, and never writes.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;

use crate::state::{NodeInfo, PodInfo, Snapshot};

/// The most a node can score with a plugin.
pub const MAX_SCORE: i64 = 100;

/// Why a pod does not fit on a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// In upstream's words.
    pub reasons: Vec<String>,
    /// Taking other pods away would not help.
    pub unresolvable: bool,
}

impl Refusal {
    /// Taking other pods away might help.
    pub fn new(reason: impl Into<String>) -> Self {
        Self { reasons: vec![reason.into()], unresolvable: false }
    }

    /// Nothing that is done to pods helps.
    pub fn unresolvable(reason: impl Into<String>) -> Self {
        Self { unresolvable: true, ..Self::new(reason) }
    }
}

/// What a plugin has to say about one pod.
pub trait Cycle: Send + Sync {
    /// Does the pod fit on the node?
    ///
    /// # Errors
    /// Why not.
    fn filter(&self, _node: &NodeInfo) -> Result<(), Refusal> {
        Ok(())
    }

    /// How good the node is; any number, which `normalize` brings into 0 to [`MAX_SCORE`].
    fn score(&self, _node: &NodeInfo) -> i64 {
        0
    }

    /// Brings scores of all feasible nodes into 0 to [`MAX_SCORE`].
    fn normalize(&self, _nodes: &[Arc<NodeInfo>], _scores: &mut [i64]) {}
}

/// Something that happened in the cluster and may make room for pods that wait.
#[derive(Debug, Clone)]
pub enum Event {
    /// A node came, or changed from the first to the second.
    Node(Option<Arc<Node>>, Arc<Node>),
    /// A pod that is on a node came, or changed.
    AssignedPod(Arc<PodInfo>),
    /// A pod that was on a node went, or asks for less.
    FreedPod(Arc<PodInfo>),
    /// The waiting pod itself changed.
    Itself,
    /// A namespace's labels changed.
    Namespace,
    /// Something of storage changed: a claim, a volume, a class, a node's drivers.
    Storage,
}

/// A plugin.
pub trait Plugin: Send + Sync {
    /// Upstream's name.
    fn name(&self) -> &'static str;

    /// Keeps a pod out of the queue altogether; the reason is in upstream's words.
    fn pre_enqueue(&self, _pod: &PodInfo) -> Option<String> {
        None
    }

    /// Looks at a pod. `None` says that this plugin has no opinion of it.
    ///
    /// # Errors
    /// Why the pod fits nowhere.
    fn cycle<'a>(&'a self, pod: &'a PodInfo, world: &'a Snapshot) -> Result<Option<Box<dyn Cycle + 'a>>, Refusal>;

    /// May what happened make a pod fit that this plugin refused? (KEP-4247)
    fn may_help(&self, _pod: &PodInfo, _event: &Event) -> bool {
        true
    }
}

/// Brings scores into 0 to [`MAX_SCORE`] by the largest; `reverse` makes the largest the worst.
pub fn normalize_by_max(scores: &mut [i64], reverse: bool) {
    let max = scores.iter().copied().max().unwrap_or(0);
    for score in scores.iter_mut() {
        let scaled = if max == 0 { 0 } else { *score * MAX_SCORE / max };
        *score = if reverse { MAX_SCORE - scaled } else { scaled };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_are_scaled_by_the_largest() {
        let mut scores = [0, 5, 10];
        normalize_by_max(&mut scores, false);
        assert_eq!(scores, [0, 50, 100]);
        normalize_by_max(&mut scores, true);
        assert_eq!(scores, [100, 50, 0]);
        let mut none = [0, 0];
        normalize_by_max(&mut none, true);
        assert_eq!(none, [100, 100]);
    }
}

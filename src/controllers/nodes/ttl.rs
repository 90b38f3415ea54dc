//! ttl-controller: tells kubelets, by an annotation, how long they may keep objects without asking again; longer in bigger
//! clusters.

use crate::context::{Context, Outcome};
use client::{Informer, Key, Queue, retry};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams};
use parking_lot::Mutex;
use serde_json::json;
use std::sync::Arc;

const ANNOTATION: &str = "node.alpha.kubernetes.io/ttl";
/// Fewest and most nodes of a step, and its seconds. The steps overlap, so that none is left and entered by turns.
const STEPS: &[(usize, usize, u32)] =
    &[(0, 100, 0), (90, 500, 15), (450, 1000, 30), (900, 2000, 60), (1800, usize::MAX, 300)];

pub(crate) async fn run(context: Context) {
    let nodes = context.informer::<Node>();
    let queue = Queue::<Key>::default();
    let step = Arc::new(Mutex::new(0));
    let (wake, all, current) = (queue.clone(), nodes.clone(), step.clone());
    nodes.on_change(move |change| {
        let mut current = current.lock();
        let next = next_step(*current, all.len());
        if next == *current {
            wake.add(Key::of(&change.object().metadata));
        } else {
            *current = next;
            all.keys().into_iter().for_each(|key| wake.add(key));
        }
    });
    nodes.synced().await;
    context.serve(&queue, 5, |key| reconcile(&context, &nodes, &step, key)).await;
}

/// The step for so many nodes, near the current one.
fn next_step(mut step: usize, nodes: usize) -> usize {
    while step + 1 < STEPS.len() && nodes > STEPS[step].1 {
        step += 1;
    }
    while step > 0 && nodes < STEPS[step].0 {
        step -= 1;
    }
    step
}

async fn reconcile(context: &Context, nodes: &Informer<Node>, step: &Mutex<usize>, key: Key) -> Outcome {
    let Some(node) = nodes.get(&key) else { return Ok(None) };
    let wanted = STEPS[*step.lock()].2.to_string();
    let current = node.metadata.annotations.as_ref().and_then(|annotations| annotations.get(ANNOTATION));
    if current == Some(&wanted) {
        return Ok(None);
    }
    let patch = json!({"metadata": {"annotations": {ANNOTATION: wanted}}});
    let api = context.all::<Node>();
    retry::ignore_not_found(api.patch(&key.name, &PatchParams::default(), &Patch::Merge(patch)).await)?;
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_overlap() {
        assert_eq!(next_step(0, 100), 0);
        assert_eq!(next_step(0, 101), 1);
        assert_eq!(next_step(1, 95), 1);
        assert_eq!(next_step(1, 89), 0);
        assert_eq!(next_step(0, 5000), 4);
    }
}

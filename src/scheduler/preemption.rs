//! DefaultPreemption: which pods must go so that a more important one fits. Pure: the answer is a node and its victims.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::selector::LabelSelector;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;

use crate::cycle::{Run, Unfit, Weighted, histogram};
use crate::framework::Refusal;
use crate::state::{NodeInfo, PodInfo, Snapshot};

/// A node, and who must leave it.
#[derive(Debug, Clone)]
pub struct Candidate {
    /// Node.
    pub node: String,
    /// Pods that go, the most important first.
    pub victims: Vec<Arc<PodInfo>>,
    /// How many of them their budgets would rather keep.
    pub violations: usize,
}

fn importance(a: &PodInfo, b: &PodInfo) -> std::cmp::Ordering {
    let started = |p: &PodInfo| p.pod.status.as_ref().and_then(|s| s.start_time.clone());
    // Higher priority first; among equals those that have run longer.
    b.priority.cmp(&a.priority).then_with(|| started(a).cmp(&started(b)))
}

/// May a pod preempt at all, in upstream's words if not.
///
/// # Errors
/// Why not.
pub fn eligible(pod: &PodInfo, world: &Snapshot) -> Result<(), &'static str> {
    if pod.spec().and_then(|s| s.preemption_policy.as_deref()) == Some("Never") {
        return Err("not eligible due to preemptionPolicy=Never.");
    }
    let leaving = |node: &Arc<NodeInfo>| {
        node.pods.values().any(|other| other.priority < pod.priority && other.is_terminating() && was_preempted(other))
    };
    match pod.nominated().and_then(|name| world.node(name)).is_some_and(leaving) {
        true => Err("not eligible due to a terminating pod on the nominated node."),
        false => Ok(()),
    }
}

fn was_preempted(pod: &PodInfo) -> bool {
    let conditions = pod.pod.status.as_ref().and_then(|s| s.conditions.as_deref()).unwrap_or_default();
    conditions.iter().any(|c| {
        c.type_ == "DisruptionTarget" && c.status == "True" && c.reason.as_deref() == Some("PreemptionByScheduler")
    })
}

/// Splits potential victims: those whose going breaks a budget come first, so that they are spared first.
fn by_budget(pods: Vec<Arc<PodInfo>>, budgets: &[Arc<PodDisruptionBudget>]) -> (Vec<Arc<PodInfo>>, Vec<Arc<PodInfo>>) {
    let mut left: Vec<i32> =
        budgets.iter().map(|b| b.status.as_ref().and_then(|s| s.disruptions_allowed).unwrap_or(0)).collect();
    pods.into_iter().partition(|pod| {
        let mut breaks = false;
        for (budget, left) in budgets.iter().zip(&mut left).filter(|(b, _)| covers(b, pod)) {
            let known = budget.status.as_ref().and_then(|s| s.disrupted_pods.as_ref());
            if known.is_some_and(|d| d.contains_key(&pod.key.name)) {
                continue;
            }
            *left -= 1;
            breaks |= *left < 0;
        }
        breaks
    })
}

fn covers(budget: &PodDisruptionBudget, pod: &PodInfo) -> bool {
    let selector = budget.spec.as_ref().and_then(|s| s.selector.as_ref());
    budget.metadata.namespace.as_deref() == Some(pod.key.namespace.as_str())
        && LabelSelector::from_typed(selector).is_ok_and(|s| s.matches(pod.labels()))
}

/// The fewest pods that must leave a node.
///
/// # Errors
/// Why it does not help.
fn victims_on(
    plugins: &[Weighted], pod: &PodInfo, world: &Snapshot, node: &NodeInfo, budgets: &[Arc<PodDisruptionBudget>],
) -> Result<Candidate, Refusal> {
    let lower: Vec<Arc<PodInfo>> = node.pods.values().filter(|p| p.priority < pod.priority).cloned().collect();
    if lower.is_empty() {
        return Err(Refusal::new("No preemption victims found for incoming pod"));
    }
    let mut emptied = NodeInfo::clone(node);
    lower.iter().for_each(|p| emptied.remove(&p.uid));
    let fits = |node: &NodeInfo| -> Result<(), Refusal> {
        let world = world.with(node.clone());
        let run = Run::new(plugins, pod, &world).map_err(|(_, refusal)| refusal)?;
        run.filter(node).map_err(|(_, refusal)| refusal)
    };
    fits(&emptied)?;
    let mut sorted = lower;
    sorted.sort_by(|a, b| importance(a, b));
    let (precious, plain) = by_budget(sorted, budgets);
    // Reprieve, the most important first: who can stay, stays.
    let mut victims = Vec::new();
    let mut violations = 0;
    for (other, counts) in precious.into_iter().map(|p| (p, 1)).chain(plain.into_iter().map(|p| (p, 0))) {
        let mut with = emptied.clone();
        with.add(other.clone());
        if fits(&with).is_ok() {
            emptied = with;
        } else {
            victims.push(other);
            violations += counts;
        }
    }
    victims.sort_by(|a, b| importance(a, b));
    Ok(Candidate { node: node.name.clone(), victims, violations })
}

/// The best of several: fewest broken budgets, least important victims, smallest sum of priorities, fewest victims,
/// youngest of the most important ones.
fn choose(mut candidates: Vec<Candidate>) -> Option<Candidate> {
    let highest = |c: &Candidate| c.victims.first().map_or(i32::MIN, |v| v.priority);
    let sum = |c: &Candidate| c.victims.iter().map(|v| i64::from(v.priority) + i64::from(i32::MAX) + 1).sum::<i64>();
    let earliest = |c: &Candidate| {
        let top = highest(c);
        let starts = c.victims.iter().filter(|v| v.priority == top);
        starts.filter_map(|v| v.pod.status.as_ref()?.start_time.clone()).min()
    };
    candidates.sort_by(|a, b| {
        let order = (a.violations, highest(a), sum(a), a.victims.len()).cmp(&(
            b.violations,
            highest(b),
            sum(b),
            b.victims.len(),
        ));
        order.then_with(|| earliest(b).cmp(&earliest(a))).then_with(|| a.node.cmp(&b.node))
    });
    candidates.into_iter().next()
}

/// What preemption found: a candidate, or the text that the pod's condition carries.
///
/// # Errors
/// The text, in upstream's words.
pub fn preempt(
    plugins: &[Weighted], pod: &PodInfo, world: &Snapshot, unfit: &Unfit, budgets: &[Arc<PodDisruptionBudget>],
) -> Result<Candidate, String> {
    eligible(pod, world).map_err(str::to_string)?;
    let mut refusals: BTreeMap<String, Refusal> = BTreeMap::new();
    let mut candidates = Vec::new();
    for node in world.nodes() {
        let helpless = unfit.everywhere.is_some()
            || unfit.refusals.get(&node.name).is_some_and(|(_, refusal)| refusal.unresolvable);
        let outcome = match helpless {
            true => Err(Refusal::new("Preemption is not helpful for scheduling")),
            false => victims_on(plugins, pod, world, node, budgets),
        };
        match outcome {
            Ok(candidate) => candidates.push(candidate),
            Err(refusal) => {
                refusals.insert(node.name.clone(), refusal);
            }
        }
    }
    choose(candidates).ok_or_else(|| match world.nodes().count() {
        0 => "no nodes available to schedule pods".to_string(),
        count => format!("0/{count} nodes are available:{}", histogram(refusals.values())),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cycle::schedule;
    use crate::plugins::fixtures::*;
    use serde_json::json;

    fn all() -> Vec<Weighted> {
        let row = |r: &crate::plugins::Row| Weighted { plugin: (r.make)(), weight: r.weight, filters: true };
        crate::plugins::TABLE.iter().map(row).collect()
    }

    fn ranked(name: &str, cpu: &str, priority: i32) -> Arc<PodInfo> {
        let requests = json!({"requests": {"cpu": cpu}});
        pod(name, json!({"priority": priority, "containers": [{"name": "c", "resources": requests}]}))
    }

    fn run(pod: &PodInfo, world: &Snapshot, budgets: &[Arc<PodDisruptionBudget>]) -> Result<Candidate, String> {
        let plugins = all();
        let unfit = schedule(&plugins, pod, world, 0, 0, |_| 0).unwrap_err();
        preempt(&plugins, pod, world, &unfit, budgets)
    }

    #[test]
    fn only_as_many_leave_as_must_and_the_important_stay() {
        let mut world = world(&[node("n", json!({}))]);
        for (name, cpu, priority) in [("low", "1", 1), ("mid", "1", 5), ("high", "2", 9)] {
            world.add_pod("n", ranked(name, cpu, priority));
        }
        let candidate = run(&ranked("p", "1", 10), &world, &[]).unwrap();
        assert_eq!(candidate.victims.iter().map(|v| v.key.name.as_str()).collect::<Vec<_>>(), ["low"]);
    }

    #[test]
    fn the_node_whose_highest_victim_is_lowest_is_chosen() {
        let mut world = world(&[node("n", json!({})), node("o", json!({}))]);
        world.add_pod("n", ranked("a", "4", 5));
        for i in 0..4 {
            world.add_pod("o", ranked(&format!("b{i}"), "1", 3));
        }
        assert_eq!(run(&ranked("p", "4", 10), &world, &[]).unwrap().node, "o");
    }

    #[test]
    fn reasons_are_worded_as_upstream_does() {
        let tainted = json!({"metadata": {"name": "t"}, "spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}});
        let mut world = world(&[node("n", json!({})), tainted]);
        world.add_pod("n", ranked("a", "4", 20));
        let text = run(&ranked("p", "1", 10), &world, &[]).unwrap_err();
        let want = "0/2 nodes are available: 1 No preemption victims found for incoming pod, \
                    1 Preemption is not helpful for scheduling.";
        assert_eq!(text, want);
        let never = pod(
            "p",
            json!({"priority": 30, "preemptionPolicy": "Never",
            "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}),
        );
        assert_eq!(run(&never, &world, &[]).unwrap_err(), "not eligible due to preemptionPolicy=Never.");
    }

    #[test]
    fn budgets_are_spared_where_possible() {
        let mut world = world(&[node("n", json!({}))]);
        let labelled = |name: &str, app: &str| {
            let spec = json!({"priority": 1, "containers": [{"name": "c", "resources": {"requests": {"cpu": "2"}}}]});
            super::super::plugins::fixtures::labelled(name, json!({"app": app}), spec)
        };
        world.add_pod("n", labelled("kept", "db"));
        world.add_pod("n", labelled("gone", "web"));
        let budget: PodDisruptionBudget = serde_json::from_value(json!({
            "metadata": {"name": "db", "namespace": "ns"}, "spec": {"selector": {"matchLabels": {"app": "db"}}},
            "status": {"disruptionsAllowed": 0, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1},
        }))
        .unwrap();
        let candidate = run(&ranked("p", "2", 10), &world, &[Arc::new(budget)]).unwrap();
        assert_eq!(candidate.victims[0].key.name, "gone");
        assert_eq!(candidate.violations, 0);
    }
}

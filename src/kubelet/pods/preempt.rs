//! Who must go so that a critical pod has room on a node that is full: of the classes the least assured first, and of a
//! class those whose requests come nearest to what is missing.

use super::admit::Shortage;
use super::qos::{Class, Side, class, totals};
use super::{is_critical, spec};
use k8s_openapi::api::core::v1::Pod;

/// What is missing: resource and amount, cpu in thousandths, all else in units.
type Missing = Vec<(String, i64)>;

/// May the one take the place of the other?
fn outranks(pod: &Pod, other: &Pod) -> bool {
    let priority = |pod: &Pod| spec(pod).priority;
    let higher = || priority(pod).zip(priority(other)).is_some_and(|(one, other)| one > other);
    (is_critical(pod) && !is_critical(other)) || higher()
}

fn request(pod: &Pod, resource: &str) -> i64 {
    if resource == "pods" {
        return 1;
    }
    let milli = totals(pod, Side::Requests, true).get(resource).copied().unwrap_or(0);
    if resource == "cpu" { milli } else { milli / 1000 }
}

fn without<'a>(missing: &Missing, pods: impl Iterator<Item = &'a Pod> + Clone) -> Missing {
    let left = |(name, amount): &(String, i64)| {
        let left = amount - pods.clone().map(|pod| request(pod, name)).sum::<i64>();
        (left > 0).then(|| (name.clone(), left))
    };
    missing.iter().filter_map(left).collect()
}

/// How far a pod's end would leave what is missing: 0 when it gives all, 1 for each resource of which it gives nothing.
fn distance(missing: &Missing, pod: &Pod) -> f64 {
    let part = |(name, amount): &(String, i64)| {
        let left = (amount - request(pod, name)).max(0);
        (left as f64 / *amount as f64).powi(2)
    };
    missing.iter().map(part).sum()
}

/// Indexes of the pods that must go so that nothing is missing.
///
/// # Errors
/// When even the end of all that may go would not do, in upstream's words.
pub fn victims(pod: &Pod, others: &[&Pod], short: &[Shortage]) -> Result<Vec<usize>, String> {
    let missing: Missing = short.iter().map(|s| (s.resource.clone(), s.requested - (s.capacity - s.used))).collect();
    let of = |wanted: Class| -> Vec<usize> {
        let may_go = |at: &usize| outranks(pod, others[*at]) && class(others[*at]) == wanted;
        (0..others.len()).filter(may_go).collect()
    };
    let (best_effort, burstable, guaranteed) = (of(Class::BestEffort), of(Class::Burstable), of(Class::Guaranteed));
    let given = |missing: &Missing, groups: &[&[usize]]| {
        without(missing, groups.iter().copied().flatten().map(|at| others[*at]))
    };
    let left = given(&missing, &[&best_effort, &burstable, &guaranteed]);
    if !left.is_empty() {
        let words: Vec<String> = left.iter().map(|(name, amount)| format!("(res: {name}, q: {amount}), ")).collect();
        let why =
            "preemption: error finding a set of pods to preempt: no set of running pods found to reclaim resources";
        return Err(format!("{why}: [{}]", words.concat()));
    }
    // Each class gives what the others together could not.
    let assured = nearest(others, guaranteed, given(&missing, &[&best_effort, &burstable]));
    let middle = nearest(others, burstable, given(&missing, &[&best_effort, &assured]));
    let least = nearest(others, best_effort, given(&missing, &[&middle, &assured]));
    Ok([least, middle, assured].concat())
}

/// Of these, those that come nearest to what is missing, one after the other until nothing is.
fn nearest(others: &[&Pod], mut from: Vec<usize>, mut missing: Missing) -> Vec<usize> {
    let mut chosen = Vec::new();
    while !missing.is_empty() && !from.is_empty() {
        let key = |at: &usize| {
            let pod = others[*at];
            (distance(&missing, pod), request(pod, "memory"), request(pod, "cpu"))
        };
        let best = (0..from.len()).min_by(|a, b| {
            let (a, b) = (key(&from[*a]), key(&from[*b]));
            a.0.total_cmp(&b.0).then((a.1, a.2).cmp(&(b.1, b.2)))
        });
        let Some(best) = best else { break };
        let at = from.swap_remove(best);
        missing = without(&missing, std::iter::once(others[at]));
        chosen.push(at);
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(requests: serde_json::Value, limits: serde_json::Value) -> Pod {
        let container = json!({"name": "c", "resources": {"requests": requests, "limits": limits}});
        serde_json::from_value(json!({"spec": {"priority": 0, "containers": [container]}})).unwrap()
    }

    fn short(resource: &str, missing: i64) -> Shortage {
        Shortage { resource: resource.into(), requested: missing, used: 10, capacity: 10 }
    }

    #[test]
    fn the_least_assured_go_first_and_no_more_than_need_be() {
        let critical = Pod {
            spec: Some(serde_json::from_value(json!({"priority": 2_000_000_000, "containers": []})).unwrap()),
            ..Default::default()
        };
        let (none, cpu, memory) =
            (json!({}), json!({"cpu": "1", "memory": "1Gi"}), json!({"cpu": "500m", "memory": "1Gi"}));
        let best_effort = pod(none.clone(), none.clone());
        let burstable = pod(memory, none);
        let guaranteed = pod(cpu.clone(), cpu);
        let others = [&guaranteed, &burstable, &best_effort];
        let gone = |short: &[Shortage]| victims(&critical, &others, short).unwrap();
        assert_eq!(gone(&[]), [0usize; 0]);
        assert_eq!(gone(&[short("pods", 1)]), [2]);
        assert_eq!(gone(&[short("cpu", 400)]), [1]);
        assert_eq!(gone(&[short("cpu", 900)]), [0]);
        assert_eq!(gone(&[short("cpu", 1200)]), [1, 0]);
        assert!(victims(&critical, &others, &[short("cpu", 1600)]).unwrap_err().ends_with("[(res: cpu, q: 100), ]"));
    }
}

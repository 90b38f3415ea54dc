//! Quality of service: the pod's class, what it asks for in total, its out-of-memory score.

use super::{apps, has_sidecar, inits, is_critical, is_sidecar, spec};
use crate::units::{ResourceList, from_bytes, from_milli, milli, milli_of, value_of};
use k8s_openapi::api::core::v1::{Container, Pod};
use std::collections::BTreeMap;

/// The three classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// Requests equal limits for cpu and memory in every container.
    Guaranteed,
    /// Something is requested or limited.
    Burstable,
    /// Nothing is.
    BestEffort,
}

impl Class {
    /// The API's name.
    pub fn name(self) -> &'static str {
        match self {
            Class::Guaranteed => "Guaranteed",
            Class::Burstable => "Burstable",
            Class::BestEffort => "BestEffort",
        }
    }
}

/// The pod's class. A class that the API has already recorded holds: it never changes in a pod's life.
pub fn class(pod: &Pod) -> Class {
    match pod.status.as_ref().and_then(|status| status.qos_class.as_deref()) {
        Some("Guaranteed") => Class::Guaranteed,
        Some("Burstable") => Class::Burstable,
        Some("BestEffort") => Class::BestEffort,
        _ => compute(pod),
    }
}

fn compute(pod: &Pod) -> Class {
    let mut any = false;
    let mut guaranteed = true;
    let mut look = |requests: Option<&ResourceList>, limits: Option<&ResourceList>| {
        for resource in ["cpu", "memory"] {
            let request = milli_of(requests, resource).unwrap_or(0);
            let limit = milli_of(limits, resource).unwrap_or(0);
            any |= request > 0 || limit > 0;
            // A request that is left out takes the limit's value.
            guaranteed &= limit > 0 && (request == limit || request == 0);
        }
    };
    let pod_level = spec(pod).resources.as_ref().filter(|r| r.requests.is_some() || r.limits.is_some());
    match pod_level {
        Some(resources) => look(resources.requests.as_ref(), resources.limits.as_ref()),
        None => {
            for container in inits(pod).iter().chain(apps(pod)) {
                let resources = container.resources.as_ref();
                look(resources.and_then(|r| r.requests.as_ref()), resources.and_then(|r| r.limits.as_ref()));
            }
        }
    }
    match (any, guaranteed) {
        (false, _) => Class::BestEffort,
        (true, true) => Class::Guaranteed,
        (true, false) => Class::Burstable,
    }
}

/// Which of the two lists of a container's resources.
#[derive(Clone, Copy, Debug)]
pub enum Side {
    /// `requests`
    Requests,
    /// `limits`
    Limits,
}

fn side_of(container: &Container, side: Side) -> Option<&ResourceList> {
    let resources = container.resources.as_ref()?;
    match side {
        Side::Requests => resources.requests.as_ref(),
        Side::Limits => resources.limits.as_ref(),
    }
}

/// Totals in thousandths per resource: the larger of all app containers with sidecars, and of each init step with
/// the sidecars started before it; pod-level values win; overhead is added when asked for.
pub fn totals(pod: &Pod, side: Side, overhead: bool) -> BTreeMap<String, i64> {
    let mut sum: BTreeMap<String, i64> = BTreeMap::new();
    let add = |into: &mut BTreeMap<String, i64>, list: Option<&ResourceList>| {
        for (name, quantity) in list.into_iter().flatten() {
            *into.entry(name.clone()).or_default() += milli(quantity);
        }
    };
    for container in apps(pod) {
        add(&mut sum, side_of(container, side));
    }
    let mut sidecars: BTreeMap<String, i64> = BTreeMap::new();
    let mut peak: BTreeMap<String, i64> = BTreeMap::new();
    for container in inits(pod) {
        let mut step = sidecars.clone();
        add(&mut step, side_of(container, side));
        if is_sidecar(container) {
            sidecars = step.clone();
        }
        for (name, amount) in step {
            let most = peak.entry(name).or_default();
            *most = (*most).max(amount);
        }
    }
    for (name, amount) in sidecars {
        *sum.entry(name).or_default() += amount;
    }
    for (name, amount) in peak {
        let most = sum.entry(name).or_default();
        *most = (*most).max(amount);
    }
    if let Some(resources) = &spec(pod).resources {
        let level = match side {
            Side::Requests => resources.requests.as_ref(),
            Side::Limits => resources.limits.as_ref(),
        };
        for (name, quantity) in level.into_iter().flatten() {
            sum.insert(name.clone(), milli(quantity));
        }
    }
    if overhead && let Some(extra) = &spec(pod).overhead {
        for (name, quantity) in extra {
            // A limit that is absent stays absent: overhead limits nothing by itself.
            if matches!(side, Side::Requests) || sum.contains_key(name) {
                *sum.entry(name.clone()).or_default() += milli(quantity);
            }
        }
    }
    sum
}

/// The totals as quantities, for `status.allocatedResources`.
pub fn totals_list(pod: &Pod, side: Side) -> ResourceList {
    totals(pod, side, true)
        .into_iter()
        .map(|(name, amount)| {
            let quantity = match name.as_str() {
                "memory" | "ephemeral-storage" => from_bytes(amount / 1000),
                _ => from_milli(amount),
            };
            (name, quantity)
        })
        .collect()
}

/// The score that the kernel's out-of-memory killer gets for a container; `memory_capacity` in bytes.
pub fn oom_score(pod: &Pod, container: &Container, memory_capacity: i64) -> i64 {
    if is_critical(pod) {
        return -997;
    }
    match class(pod) {
        Class::Guaranteed => -997,
        Class::BestEffort => 1000,
        Class::Burstable => burstable_score(pod, container, memory_capacity),
    }
}

fn burstable_score(pod: &Pod, container: &Container, memory_capacity: i64) -> i64 {
    let request =
        |c: &Container| value_of(c.resources.as_ref().and_then(|r| r.requests.as_ref()), "memory").unwrap_or(0);
    let own = request(container);
    if memory_capacity <= 0 {
        return 999;
    }
    let score = (1000 - (1000 * own as i128 / memory_capacity as i128) as i64).clamp(3, 999);
    // A sidecar must not be killed before the containers it serves.
    if has_sidecar(pod) && inits(pod).iter().any(|c| c.name == container.name && is_sidecar(c)) {
        let least = apps(pod).iter().map(request).min().unwrap_or(0);
        let of_apps = (1000 - (1000 * least as i128 / memory_capacity as i128) as i64).clamp(3, 999);
        return score.min(of_apps);
    }
    score
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(containers: serde_json::Value, inits: serde_json::Value) -> Pod {
        serde_json::from_value(json!({"metadata": {}, "spec": {"containers": containers, "initContainers": inits}}))
            .unwrap()
    }

    #[test]
    fn classes_follow_requests_and_limits() {
        let none = pod(json!([{"name": "a"}]), json!([]));
        assert_eq!(class(&none), Class::BestEffort);
        let some = pod(json!([{"name": "a", "resources": {"requests": {"cpu": "1"}}}]), json!([]));
        assert_eq!(class(&some), Class::Burstable);
        let all = pod(
            json!([{"name": "a", "resources": {"limits": {"cpu": "1", "memory": "1Gi"},
                    "requests": {"cpu": "1000m", "memory": "1024Mi"}}}]),
            json!([]),
        );
        assert_eq!(class(&all), Class::Guaranteed);
    }

    #[test]
    fn totals_take_the_largest_init_step_with_the_sidecars_before_it() {
        let pod = pod(
            json!([{"name": "a", "resources": {"requests": {"cpu": "100m"}}}]),
            json!([
                {"name": "s", "restartPolicy": "Always", "resources": {"requests": {"cpu": "50m"}}},
                {"name": "i", "resources": {"requests": {"cpu": "300m"}}}
            ]),
        );
        assert_eq!(totals(&pod, Side::Requests, true)["cpu"], 350);
    }

    #[test]
    fn out_of_memory_scores_follow_the_request() {
        let burst = pod(json!([{"name": "a", "resources": {"requests": {"memory": "1Gi"}}}]), json!([]));
        assert_eq!(oom_score(&burst, &apps(&burst)[0], 4 << 30), 750);
        let tiny = pod(json!([{"name": "a", "resources": {"requests": {"memory": "1"}}}]), json!([]));
        assert_eq!(oom_score(&tiny, &apps(&tiny)[0], 4 << 30), 999);
    }
}

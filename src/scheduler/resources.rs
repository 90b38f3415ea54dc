//! What pods ask for and nodes have, as numbers: millicores of cpu, bytes, and counts.

use std::collections::BTreeMap;

use api::quantity::Quantity as Amount;
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// What the least demanding container is taken to use when it says nothing, so that pods without requests spread, too.
const DEFAULT_MILLI_CPU: i64 = 100;
/// The same in bytes.
const DEFAULT_MEMORY: i64 = 200 * 1024 * 1024;

/// Amounts of resources.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Resources {
    /// Millicores.
    pub milli_cpu: i64,
    /// Bytes.
    pub memory: i64,
    /// Bytes.
    pub ephemeral_storage: i64,
    /// Pods that a node takes; unused for requests.
    pub pods: i64,
    /// Everything else, by name.
    pub other: BTreeMap<String, i64>,
}

/// The maps of the API.
type Quantities = BTreeMap<String, Quantity>;

fn amount(quantity: &Quantity) -> Amount {
    Amount::parse(&quantity.0).unwrap_or_else(|_| Amount::from_milli(0))
}

impl Resources {
    /// From a map of quantities.
    pub fn from_map(map: &Quantities) -> Self {
        let mut resources = Self::default();
        for (name, quantity) in map {
            let amount = amount(quantity);
            match name.as_str() {
                "cpu" => resources.milli_cpu = amount.milli_value(),
                "memory" => resources.memory = amount.value(),
                "ephemeral-storage" => resources.ephemeral_storage = amount.value(),
                "pods" => resources.pods = amount.value(),
                _ => {
                    resources.other.insert(name.clone(), amount.value());
                }
            }
        }
        resources
    }

    fn combine(&mut self, other: &Self, with: fn(i64, i64) -> i64) {
        self.milli_cpu = with(self.milli_cpu, other.milli_cpu);
        self.memory = with(self.memory, other.memory);
        self.ephemeral_storage = with(self.ephemeral_storage, other.ephemeral_storage);
        for (name, value) in &other.other {
            let own = self.other.entry(name.clone()).or_default();
            *own = with(*own, *value);
        }
    }

    /// Adds another's amounts.
    pub fn add(&mut self, other: &Self) {
        self.combine(other, i64::saturating_add);
    }

    /// Takes another's amounts away.
    pub fn subtract(&mut self, other: &Self) {
        self.combine(other, i64::saturating_sub);
    }

    /// The larger of both, each by itself.
    pub fn raise(&mut self, other: &Self) {
        self.combine(other, i64::max);
    }

    /// The amount of a resource by its name.
    pub fn get(&self, name: &str) -> i64 {
        match name {
            "cpu" => self.milli_cpu,
            "memory" => self.memory,
            "ephemeral-storage" => self.ephemeral_storage,
            "pods" => self.pods,
            _ => self.other.get(name).copied().unwrap_or(0),
        }
    }
}

fn is_sidecar(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

/// What a container asks for; a limit without a request asks for the limit.
fn of_container(requirements: Option<&ResourceRequirements>) -> Resources {
    let Some(requirements) = requirements else { return Resources::default() };
    requirements.requests.as_ref().map(Resources::from_map).unwrap_or_default()
}

/// Sums over containers, with what `each` says of one: all main containers and sidecars at once, or the hungriest
/// moment of the initialization, whichever is more (KEP-753).
fn effective(spec: &PodSpec, each: impl Fn(&Container) -> Resources) -> Resources {
    let mut total = Resources::default();
    for container in &spec.containers {
        total.add(&each(container));
    }
    let mut sidecars = Resources::default();
    let mut peak = Resources::default();
    for container in spec.init_containers.iter().flatten() {
        let mut moment = each(container);
        if is_sidecar(container) {
            total.add(&moment);
            sidecars.add(&moment);
            moment = sidecars.clone();
        } else {
            moment.add(&sidecars);
        }
        peak.raise(&moment);
    }
    total.raise(&peak);
    total
}

fn with_pod_level(spec: &PodSpec, mut total: Resources) -> Resources {
    // Requests of the pod as a whole stand instead of the sum of its containers (KEP-2837).
    let whole = of_container(spec.resources.as_ref());
    for (own, value) in [
        (&mut total.milli_cpu, whole.milli_cpu),
        (&mut total.memory, whole.memory),
        (&mut total.ephemeral_storage, whole.ephemeral_storage),
    ] {
        if value > 0 {
            *own = value;
        }
    }
    if let Some(overhead) = &spec.overhead {
        total.add(&Resources::from_map(overhead));
    }
    total
}

/// What a pod asks of its node.
pub fn requests(pod: &Pod) -> Resources {
    let Some(spec) = &pod.spec else { return Resources::default() };
    with_pod_level(spec, effective(spec, |c| of_container(c.resources.as_ref())))
}

/// The same for scoring: containers that say nothing count as if they used a little.
pub fn nonzero_requests(pod: &Pod) -> Resources {
    let Some(spec) = &pod.spec else { return Resources::default() };
    let each = |container: &Container| {
        let requests = container.resources.as_ref().and_then(|r| r.requests.as_ref());
        let says = |name: &str| requests.is_some_and(|r| r.contains_key(name));
        let mut resources = of_container(container.resources.as_ref());
        if !says("cpu") {
            resources.milli_cpu = DEFAULT_MILLI_CPU;
        }
        if !says("memory") {
            resources.memory = DEFAULT_MEMORY;
        }
        resources
    };
    with_pod_level(spec, effective(spec, each))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(spec: serde_json::Value) -> Pod {
        serde_json::from_value(json!({"spec": spec})).unwrap()
    }

    fn cpu(amount: &str, restart: Option<&str>) -> serde_json::Value {
        json!({"name": "c", "restartPolicy": restart, "resources": {"requests": {"cpu": amount}}})
    }

    #[test]
    fn initialization_and_work_do_not_add_up_but_sidecars_do() {
        let requests = requests(&pod(json!({
            "initContainers": [cpu("1", Some("Always")), cpu("3", None)],
            "containers": [cpu("500m", None), cpu("1", None)],
        })));
        assert_eq!(requests.milli_cpu, 4000);
        let light = super::requests(&pod(json!({
            "initContainers": [cpu("1", Some("Always")), cpu("1", None)],
            "containers": [cpu("2", None)], "overhead": {"cpu": "250m"},
        })));
        assert_eq!(light.milli_cpu, 3250);
    }

    #[test]
    fn silent_containers_count_a_little_for_scoring_only() {
        let silent = pod(json!({"containers": [{"name": "a"}, {"name": "b"}]}));
        assert_eq!(requests(&silent), Resources::default());
        assert_eq!(nonzero_requests(&silent).milli_cpu, 200);
        assert_eq!(nonzero_requests(&silent).memory, 400 * 1024 * 1024);
    }
}

//! Amounts of resources that pods ask for, as limit ranges and quotas count them.

use std::collections::BTreeMap;

use crate::Value;
use crate::quantity::Quantity;

use super::{at, list, text};

/// Amounts by resource.
pub type Amounts = BTreeMap<String, Quantity>;

/// Reads a list of amounts. What is no quantity was refused before.
pub fn amounts(list: Option<&Value>) -> Amounts {
    let fields = list.and_then(Value::as_object).into_iter().flatten();
    fields.filter_map(|(name, value)| Some((name.clone(), Quantity::from_value(value).ok()?))).collect()
}

/// Adds amounts.
pub fn add(sum: &mut Amounts, more: &Amounts) {
    for (name, amount) in more {
        let total = sum.get(name).copied().map_or(*amount, |had| had + *amount);
        sum.insert(name.clone(), total);
    }
}

/// Takes the larger amount of each resource.
pub fn raise(most: &mut Amounts, other: &Amounts) {
    for (name, amount) in other {
        if most.get(name).is_none_or(|had| had < amount) {
            most.insert(name.clone(), *amount);
        }
    }
}

/// `requests` or `limits`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// What is guaranteed.
    Requests,
    /// What is allowed.
    Limits,
}

impl Side {
    /// The name of the field.
    pub fn field(self) -> &'static str {
        match self {
            Side::Requests => "requests",
            Side::Limits => "limits",
        }
    }
}

/// What a container asks for.
pub fn of_container(container: &Value, side: Side) -> Amounts {
    amounts(at(container, &["resources", side.field()]))
}

fn restarts_always(container: &Value) -> bool {
    text(container, &["restartPolicy"]) == "Always"
}

/// What a pod asks for: its containers together with the sidecars, or what one of the init containers asks for beside
/// the sidecars before it, whichever is more; then what is said of the pod as a whole. Overhead is not counted.
pub fn of_pod(pod: &Value, side: Side) -> Amounts {
    let mut sum = Amounts::new();
    for container in list(pod, &["spec", "containers"]) {
        add(&mut sum, &of_container(container, side));
    }
    let (mut sidecars, mut init) = (Amounts::new(), Amounts::new());
    for container in list(pod, &["spec", "initContainers"]) {
        let mut own = of_container(container, side);
        if restarts_always(container) {
            add(&mut sum, &own);
            add(&mut sidecars, &own);
            raise(&mut init, &sidecars);
        } else {
            add(&mut own, &sidecars);
            raise(&mut init, &own);
        }
    }
    raise(&mut sum, &init);
    for (name, amount) in amounts(at(pod, &["spec", "resources", side.field()])) {
        if matches!(name.as_str(), "cpu" | "memory") || name.starts_with("hugepages-") {
            sum.insert(name, amount);
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn container(cpu: &str) -> Value {
        json!({"resources": {"requests": {"cpu": cpu}}})
    }

    #[test]
    fn init_containers_count_only_where_they_need_more() {
        let pod =
            json!({"spec": {"containers": [container("1"), container("500m")], "initContainers": [container("2")]}});
        assert_eq!(of_pod(&pod, Side::Requests)["cpu"].to_string(), "2");
    }

    #[test]
    fn sidecars_count_with_the_containers() {
        let mut sidecar = container("1");
        sidecar["restartPolicy"] = "Always".into();
        let pod = json!({"spec": {"containers": [container("1")], "initContainers": [sidecar, container("1500m")]}});
        assert_eq!(of_pod(&pod, Side::Requests)["cpu"].to_string(), "2500m");
    }

    #[test]
    fn what_is_said_of_the_pod_overrides() {
        let mut pod = json!({"spec": {"containers": [container("1")]}});
        pod["spec"]["resources"] = json!({"requests": {"cpu": "3"}});
        assert_eq!(of_pod(&pod, Side::Requests)["cpu"].to_string(), "3");
    }
}

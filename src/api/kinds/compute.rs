//! Resource names (`cpu`, `hugepages-2Mi`, `example.com/gpu`) and lists of resources: which names stand where, which
//! quantities they take (`pkg/apis/core/helper`), and what the containers of a pod need together.

use std::collections::BTreeMap;

use super::rules::quantity;
use super::view::View;
use crate::Value;
use crate::field::{Error, Errors, Path};
use crate::meta::check::push_all;
use crate::meta::names;
use crate::quantity::Quantity;

const HUGE: &str = "hugepages-";
const STANDARD: &[&str] = &[
    "configmaps",
    "cpu",
    "ephemeral-storage",
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "memory",
    "persistentvolumeclaims",
    "pods",
    "replicationcontrollers",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
    "requests.storage",
    "resourcequotas",
    "secrets",
    "services",
    "services.loadbalancers",
    "services.nodeports",
    "storage",
];
const COUNTED: &[&str] = &[
    "configmaps",
    "persistentvolumeclaims",
    "pods",
    "replicationcontrollers",
    "resourcequotas",
    "secrets",
    "services",
    "services.loadbalancers",
    "services.nodeports",
];

/// `hugepages-2Mi`.
pub fn is_huge_page(name: &str) -> bool {
    name.starts_with(HUGE)
}

/// A name of Kubernetes' own: without a domain, or of `kubernetes.io`.
pub fn is_native(name: &str) -> bool {
    !name.contains('/') || name.contains("kubernetes.io/")
}

/// A name of somebody else's that a node can offer and a container ask for: `example.com/gpu`.
pub fn is_extended(name: &str) -> bool {
    !is_native(name) && !name.starts_with("requests.") && names::label_key(&format!("requests.{name}")).is_empty()
}

/// A request may be less than the limit.
pub fn may_overcommit(name: &str) -> bool {
    is_native(name) && !is_huge_page(name)
}

/// Quantities are whole numbers.
pub fn is_integer(name: &str) -> bool {
    COUNTED.contains(&name) || is_extended(name)
}

/// A name without a domain that some resource list knows.
pub fn is_standard(name: &str) -> bool {
    STANDARD.contains(&name) || is_huge_page(name) || name.starts_with("requests.hugepages-")
}

/// A resource that a pod as a whole may ask for.
pub fn is_pod_level(name: &str) -> bool {
    name == "cpu" || name == "memory" || is_huge_page(name)
}

/// A name that any resource list may hold.
pub fn resource_name(out: &mut Errors, name: &str, path: &Path) -> bool {
    let wrong = names::label_key(name);
    if !wrong.is_empty() {
        push_all(out, path, name, wrong);
        return false;
    }
    if !name.contains('/') && !is_standard(name) {
        out.push(Error::invalid(path, name, "must be a standard resource type or fully qualified"));
        return false;
    }
    true
}

/// A name that a container's resource lists may hold.
pub fn container_resource_name(out: &mut Errors, name: &str, path: &Path) {
    resource_name(out, name, path);
    if !name.contains('/') {
        if !["cpu", "memory", "ephemeral-storage"].contains(&name) && !is_huge_page(name) {
            out.push(Error::invalid(path, name, "must be a standard resource for containers"));
        }
    } else if !is_native(name) && !is_extended(name) {
        out.push(Error::invalid(path, name, "doesn't follow extended resource name standard"));
    }
}

/// A name that a pod's own resource lists may hold.
pub fn pod_resource_name(out: &mut Errors, name: &str, path: &Path) {
    if resource_name(out, name, path) && !is_pod_level(name) {
        out.push(Error::not_supported(path, name, &["cpu", HUGE, "memory"]));
    }
}

/// The quantity of a resource: not negative, and whole where the resource is counted.
pub fn resource_quantity(out: &mut Errors, name: &str, value: &Value, path: &Path) {
    super::rules::not_negative_quantity(out, value, path);
    if is_integer(name) && quantity(value).milli_value() % 1000 != 0 {
        out.push(Error::invalid(path, quantity(value).to_string(), "must be an integer"));
    }
}

/// A quantity that is not negative, as volumes have it; false when it is.
pub fn basic_quantity(out: &mut Errors, value: &Value, path: &Path) -> bool {
    let amount = quantity(value).value();
    if amount < 0 {
        out.push(Error::invalid(path, amount, "must be a valid resource quantity"));
    }
    amount >= 0
}

/// A quantity above 0; false when it is not.
pub fn positive_quantity(out: &mut Errors, value: &Value, path: &Path) -> bool {
    let amount = quantity(value);
    let ok = amount.sign() > 0;
    if !ok {
        out.push(Error::invalid(path, amount.to_string(), "must be greater than zero"));
    }
    ok
}

/// True when a quantity of huge pages is a multiple of their size.
pub fn fits_huge_page(name: &str, value: &Value) -> bool {
    let Some(size) = name.strip_prefix(HUGE).and_then(|s| Quantity::parse(s).ok()).map(|q| q.value()) else {
        return false;
    };
    size != 0 && quantity(value).value() % size == 0
}

/// Resources by name.
pub type Amounts = BTreeMap<String, Quantity>;

/// A resource list as amounts.
pub fn amounts(list: &Value) -> Amounts {
    list.as_object().into_iter().flatten().map(|(name, value)| (name.clone(), quantity(value))).collect()
}

fn add(to: &mut Amounts, more: &Amounts) {
    for (name, quantity) in more {
        to.entry(name.clone()).and_modify(|q| *q = *q + *quantity).or_insert(*quantity);
    }
}

fn at_least(to: &mut Amounts, other: &Amounts) {
    for (name, quantity) in other {
        to.entry(name.clone()).and_modify(|q| *q = (*q).max(*quantity)).or_insert(*quantity);
    }
}

/// True for an init container that keeps running beside the others.
pub fn is_sidecar(container: &Value) -> bool {
    container.text("restartPolicy") == "Always"
}

/// What all containers of a pod need at the moment when they need most: `list` is `requests` or `limits`.
pub fn of_containers(spec: &Value, list: &str) -> Amounts {
    let mut total = Amounts::new();
    for container in spec.items("containers") {
        add(&mut total, &amounts(container.at("resources").at(list)));
    }
    let mut sidecars = Amounts::new();
    let mut starting = Amounts::new();
    for container in spec.items("initContainers") {
        let own = amounts(container.at("resources").at(list));
        if is_sidecar(container) {
            add(&mut total, &own);
            add(&mut sidecars, &own);
            at_least(&mut starting, &sidecars);
        } else {
            let mut now = sidecars.clone();
            add(&mut now, &own);
            at_least(&mut starting, &now);
        }
    }
    at_least(&mut total, &starting);
    total
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_of_resources() {
        assert!(is_extended("example.com/gpu") && is_integer("example.com/gpu"));
        assert!(!is_extended("kubernetes.io/x") && !is_extended("cpu") && !is_extended("requests.example.com/x"));
        assert!(may_overcommit("cpu") && !may_overcommit("hugepages-2Mi") && !may_overcommit("example.com/gpu"));
        assert!(fits_huge_page("hugepages-2Mi", &json!("4Mi")) && !fits_huge_page("hugepages-2Mi", &json!("3Mi")));
    }

    #[test]
    fn sidecars_run_beside_later_containers() {
        let with =
            |cpu: &str, policy: Option<&str>| json!({"restartPolicy": policy, "resources": {"requests": {"cpu": cpu}}});
        let spec = json!({
            "containers": [with("1", None)],
            "initContainers": [with("500m", Some("Always")), with("2", None)],
        });
        assert_eq!(of_containers(&spec, "requests")["cpu"].to_string(), "2500m");
    }
}

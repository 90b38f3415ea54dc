//! What objects count for in ResourceQuotas: how much of what, under which scopes. Used by admission, which charges
//! quotas, and by the quota controller, which counts again.

pub mod amounts;

use std::collections::{BTreeMap, BTreeSet};

use crate::Value;
use crate::quantity::{Format, Quantity};
use amounts::{Amounts, Side, of_container, of_pod};

fn at<'a>(object: &'a Value, path: &[&str]) -> Option<&'a Value> {
    path.iter().try_fold(object, |at, name| at.get(*name)).filter(|v| !v.is_null())
}

fn text<'a>(object: &'a Value, path: &[&str]) -> &'a str {
    at(object, path).and_then(Value::as_str).unwrap_or_default()
}

fn list<'a>(object: &'a Value, path: &[&str]) -> &'a [Value] {
    at(object, path).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

fn count(n: i64) -> Quantity {
    Quantity::new(n, Format::DecimalSi)
}

/// A resource, as quotas count its objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted<'a> {
    /// API group, empty for core.
    pub group: &'a str,
    /// Plural.
    pub plural: &'a str,
}

/// Suffix of amounts that are counted by storage class.
const BY_CLASS: &str = ".storageclass.storage.k8s.io/";

impl Counted<'_> {
    fn is(&self, plural: &str) -> bool {
        self.group.is_empty() && self.plural == plural
    }

    /// `count/deployments.apps`.
    pub fn count_name(&self) -> String {
        match self.group {
            "" => format!("count/{}", self.plural),
            group => format!("count/{}.{group}", self.plural),
        }
    }

    /// True for the kinds that had a name of their own in quotas before all could be counted.
    fn has_old_name(&self) -> bool {
        self.group.is_empty()
            && matches!(self.plural, "configmaps" | "resourcequotas" | "replicationcontrollers" | "secrets")
    }

    /// True when a write of an object may change what is used. `old` is `None` on create.
    pub fn changes(&self, subresource: &str, old: Option<&Value>, new: &Value) -> bool {
        match (subresource, old) {
            ("", None) => true,
            ("", Some(old)) if self.is("pods") => has_deadline(old) != has_deadline(new),
            ("resize", Some(_)) => self.is("pods"),
            ("", Some(_)) => self.is("services") || self.is("persistentvolumeclaims"),
            ("status", Some(old)) if self.is("persistentvolumeclaims") => {
                let allocated = |claim: &Value| at(claim, &["status", "allocatedResources", "storage"]).cloned();
                allocated(old) != allocated(new) || attribute_classes(old) != attribute_classes(new)
            }
            _ => false,
        }
    }

    /// What an object counts for at a time (seconds since 1970).
    pub fn usage(&self, object: &Value, now: i64) -> Amounts {
        if self.is("pods") {
            return pod_usage(object, now);
        }
        if self.is("services") {
            return service_usage(object);
        }
        if self.is("persistentvolumeclaims") {
            return claim_usage(object);
        }
        let mut usage = Amounts::from([(self.count_name(), count(1))]);
        if self.has_old_name() {
            usage.insert(self.plural.to_string(), count(1));
        }
        usage
    }

    /// True when objects of this resource can count for that amount.
    pub fn counts(&self, amount: &str) -> bool {
        if amount == self.count_name() {
            return true;
        }
        if self.is("pods") {
            let plain = ["cpu", "memory", "ephemeral-storage"];
            let of = |prefix: &str| amount.strip_prefix(prefix).is_some_and(|rest| plain.contains(&rest));
            return amount == "pods"
                || plain.contains(&amount)
                || of("requests.")
                || of("limits.")
                || amount.starts_with("hugepages-")
                || amount.starts_with("requests.hugepages-")
                || amount.strip_prefix("requests.").is_some_and(extended);
        }
        if self.is("services") {
            return matches!(amount, "services" | "services.nodeports" | "services.loadbalancers");
        }
        if self.is("persistentvolumeclaims") {
            let names = ["persistentvolumeclaims", "requests.storage"];
            return names.contains(&amount) || names.iter().any(|n| amount.ends_with(&format!("{BY_CLASS}{n}")));
        }
        self.has_old_name() && amount == self.plural
    }

    /// True when a quota is about an object: all its scopes hold, and it bounds something the object counts for.
    pub fn matches(&self, quota: &Value, object: &Value) -> bool {
        let selectors = scopes(quota);
        let hard = at(quota, &["status", "hard"]).and_then(Value::as_object).into_iter().flatten();
        selectors.iter().all(|selector| self.in_scope(selector, object))
            && hard.map(|(name, _)| name).any(|name| self.counts(name))
    }

    /// True when a scope holds for an object.
    pub fn in_scope(&self, selector: &Scope, object: &Value) -> bool {
        if self.is("pods") {
            return pod_in_scope(selector, object);
        }
        if self.is("persistentvolumeclaims") && selector.name == "VolumeAttributesClass" {
            let classes = attribute_classes(object);
            if selector.operator == "Exists" {
                return !classes.is_empty();
            }
            return if classes.is_empty() {
                selector.selects(None)
            } else {
                classes.iter().any(|class| selector.selects(Some(class)))
            };
        }
        false
    }

    /// Why an object may not be made under a quota that bounds these amounts: every container must say how much of
    /// them it takes.
    pub fn unsaid(&self, bounded: &BTreeSet<String>, object: &Value) -> Option<String> {
        if !self.is("pods") || at(object, &["spec", "resources"]).is_some_and(says_something) {
            return None;
        }
        let checked = ["cpu", "memory", "requests.cpu", "requests.memory", "limits.cpu", "limits.memory"];
        let mut missing: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for container in ["containers", "initContainers"].iter().flat_map(|field| list(object, &["spec", field])) {
            let said = compute(&of_container(container, Side::Requests), &of_container(container, Side::Limits));
            for name in checked.iter().filter(|name| bounded.contains(**name) && !said.contains_key(**name)) {
                missing.entry(name).or_default().insert(text(container, &["name"]));
            }
        }
        if missing.is_empty() {
            return None;
        }
        let parts: Vec<String> = missing
            .iter()
            .map(|(name, containers)| {
                let containers: Vec<&str> = containers.iter().copied().collect();
                format!("{name} for: {}", containers.join(","))
            })
            .collect();
        Some(format!("must specify {}", parts.join("; ")))
    }
}

fn says_something(resources: &Value) -> bool {
    ["requests", "limits"].iter().any(|f| at(resources, &[f]).and_then(Value::as_object).is_some_and(|m| !m.is_empty()))
}

/// A scope of a quota.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scope {
    /// `Terminating`, `PriorityClass` …
    pub name: String,
    /// `Exists`, `In`, `NotIn`, `DoesNotExist`.
    pub operator: String,
    /// Values.
    pub values: Vec<String>,
}

impl Scope {
    /// True when the selector takes a value (`None`: there is none).
    fn selects(&self, value: Option<&str>) -> bool {
        let listed = value.is_some_and(|value| self.values.iter().any(|v| v == value));
        match self.operator.as_str() {
            "Exists" => value.is_some(),
            "DoesNotExist" => value.is_none(),
            "In" => listed,
            "NotIn" => !listed,
            _ => false,
        }
    }
}

/// The scopes of a quota.
pub fn scopes(quota: &Value) -> Vec<Scope> {
    let plain = list(quota, &["spec", "scopes"]).iter().filter_map(Value::as_str);
    let plain = plain.map(|name| Scope { name: name.into(), operator: "Exists".into(), values: Vec::new() });
    let selected = list(quota, &["spec", "scopeSelector", "matchExpressions"]).iter().map(|e| Scope {
        name: text(e, &["scopeName"]).into(),
        operator: text(e, &["operator"]).into(),
        values: list(e, &["values"]).iter().filter_map(|v| v.as_str().map(str::to_string)).collect(),
    });
    plain.chain(selected).collect()
}

/// The pod has a deadline: quotas call it terminating.
fn has_deadline(pod: &Value) -> bool {
    at(pod, &["spec", "activeDeadlineSeconds"]).and_then(Value::as_i64).is_some_and(|seconds| seconds >= 0)
}

fn pod_in_scope(selector: &Scope, pod: &Value) -> bool {
    match selector.name.as_str() {
        "Terminating" => has_deadline(pod),
        "NotTerminating" => !has_deadline(pod),
        "BestEffort" => best_effort(pod),
        "NotBestEffort" => !best_effort(pod),
        "PriorityClass" => selector.selects(Some(text(pod, &["spec", "priorityClassName"])).filter(|s| !s.is_empty())),
        "CrossNamespacePodAffinity" => crosses_namespaces(pod),
        _ => false,
    }
}

fn best_effort(pod: &Value) -> bool {
    let containers = ["containers", "initContainers"];
    let some = |container: &Value| {
        [Side::Requests, Side::Limits].iter().any(|side| {
            of_container(container, *side).iter().any(|(n, q)| matches!(n.as_str(), "cpu" | "memory") && q.sign() > 0)
        })
    };
    !containers.iter().flat_map(|field| list(pod, &["spec", field])).any(some)
}

fn crosses_namespaces(pod: &Value) -> bool {
    let crosses = |term: &Value| !list(term, &["namespaces"]).is_empty() || at(term, &["namespaceSelector"]).is_some();
    ["podAffinity", "podAntiAffinity"].iter().any(|kind| {
        let terms = |field: &str| list(pod, &["spec", "affinity", kind, field]);
        terms("requiredDuringSchedulingIgnoredDuringExecution").iter().any(crosses)
            || terms("preferredDuringSchedulingIgnoredDuringExecution")
                .iter()
                .filter_map(|weighted| weighted.get("podAffinityTerm"))
                .any(crosses)
    })
}

/// A resource of some vendor, not of Kubernetes itself.
fn extended(name: &str) -> bool {
    name.contains('/') && (!name.contains("kubernetes.io/") || name.starts_with("deviceclass.resource.kubernetes.io/"))
}

/// The names under which requests and limits are counted.
fn compute(requests: &Amounts, limits: &Amounts) -> Amounts {
    let mut usage = Amounts::from([("pods".to_string(), count(1))]);
    for (name, amount) in requests {
        let plain = matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage");
        if plain || name.starts_with("hugepages-") {
            usage.insert(name.clone(), *amount);
        }
        if plain || name.starts_with("hugepages-") || extended(name) {
            usage.insert(format!("requests.{name}"), *amount);
        }
    }
    for (name, amount) in limits.iter().filter(|(n, _)| matches!(n.as_str(), "cpu" | "memory" | "ephemeral-storage")) {
        usage.insert(format!("limits.{name}"), *amount);
    }
    usage
}

fn pod_usage(pod: &Value, now: i64) -> Amounts {
    let mut usage = Amounts::from([("count/pods".to_string(), count(1))]);
    if is_over(pod, now) {
        return usage;
    }
    let (mut requests, mut limits) = (of_pod(pod, Side::Requests), of_pod(pod, Side::Limits));
    let overhead = amounts::amounts(at(pod, &["spec", "overhead"]));
    amounts::add(&mut requests, &overhead);
    for (name, amount) in overhead {
        if let Some(limit) = limits.get_mut(&name).filter(|limit| !limit.is_zero()) {
            *limit += amount;
        }
    }
    usage.extend(compute(&requests, &limits));
    usage
}

/// A pod that has ended, or whose grace has long run out, takes nothing any more.
fn is_over(pod: &Value, now: i64) -> bool {
    if matches!(text(pod, &["status", "phase"]), "Succeeded" | "Failed") {
        return true;
    }
    let deletion = text(pod, &["metadata", "deletionTimestamp"]).parse::<jiff::Timestamp>().ok();
    let grace = at(pod, &["metadata", "deletionGracePeriodSeconds"]).and_then(Value::as_i64);
    matches!((deletion, grace), (Some(time), Some(grace)) if now > time.as_second() + grace)
}

fn service_usage(service: &Value) -> Amounts {
    let ports = list(service, &["spec", "ports"]);
    let named = ports.iter().filter(|p| at(p, &["nodePort"]).and_then(Value::as_i64).unwrap_or(0) != 0).count();
    let allocates = at(service, &["spec", "allocateLoadBalancerNodePorts"]) != Some(&Value::Bool(false));
    let (node_ports, balancers) = match text(service, &["spec", "type"]) {
        "NodePort" => (ports.len(), 0),
        "LoadBalancer" if allocates => (ports.len(), 1),
        "LoadBalancer" => (named, 1),
        _ => (0, 0),
    };
    Amounts::from([
        ("count/services".to_string(), count(1)),
        ("services".to_string(), count(1)),
        ("services.nodeports".to_string(), count(node_ports as i64)),
        ("services.loadbalancers".to_string(), count(balancers)),
    ])
}

fn claim_usage(claim: &Value) -> Amounts {
    let class = at(claim, &["metadata", "annotations", "volume.beta.kubernetes.io/storage-class"])
        .and_then(Value::as_str)
        .unwrap_or_else(|| text(claim, &["spec", "storageClassName"]));
    let mut usage = Amounts::from([
        ("persistentvolumeclaims".to_string(), count(1)),
        ("count/persistentvolumeclaims".to_string(), count(1)),
    ]);
    if !class.is_empty() {
        usage.insert(format!("{class}{BY_CLASS}persistentvolumeclaims"), count(1));
    }
    let of = |path: &[&str]| at(claim, path).and_then(|v| Quantity::from_value(v).ok()).map(|q| q.round_up(0).0);
    let asked = of(&["spec", "resources", "requests", "storage"]);
    let allocated = of(&["status", "allocatedResources", "storage"]);
    if let Some(storage) = asked.map(|asked| allocated.filter(|a| *a > asked).unwrap_or(asked)) {
        usage.insert("requests.storage".to_string(), storage);
        if !class.is_empty() {
            usage.insert(format!("{class}{BY_CLASS}requests.storage"), storage);
        }
    }
    usage
}

/// The attribute classes that a claim names, has, or is on the way to.
fn attribute_classes(claim: &Value) -> BTreeSet<String> {
    let paths: [&[&str]; 3] = [
        &["spec", "volumeAttributesClassName"],
        &["status", "currentVolumeAttributesClassName"],
        &["status", "modifyVolumeStatus", "targetVolumeAttributesClassName"],
    ];
    paths.iter().map(|path| text(claim, path).to_string()).filter(|name| !name.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const PODS: Counted<'_> = Counted { group: "", plural: "pods" };

    fn show(amounts: &Amounts) -> String {
        amounts.iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>().join(",")
    }

    #[test]
    fn a_pod_counts_under_old_and_new_names() {
        let resources = json!({"requests": {"cpu": "100m", "example.com/gpu": "2"}, "limits": {"memory": "1Gi"}});
        let pod = json!({"spec": {"containers": [{"name": "c", "resources": resources}]}});
        let want = "count/pods=1,cpu=100m,limits.memory=1Gi,pods=1,requests.cpu=100m,requests.example.com/gpu=2";
        assert_eq!(show(&PODS.usage(&pod, 0)), want);
    }

    #[test]
    fn a_pod_that_is_over_counts_as_an_object_only() {
        let pod = json!({"spec": {"containers": []}, "status": {"phase": "Succeeded"}});
        assert_eq!(show(&PODS.usage(&pod, 0)), "count/pods=1");
    }

    #[test]
    fn every_container_must_say_what_a_quota_bounds() {
        let bounded = BTreeSet::from(["limits.cpu".to_string(), "requests.memory".to_string(), "pods".to_string()]);
        let pod = json!({"spec": {"containers": [
            {"name": "a", "resources": {"limits": {"cpu": "1"}}}, {"name": "b"},
        ]}});
        let want = "must specify limits.cpu for: b; requests.memory for: a,b";
        assert_eq!(PODS.unsaid(&bounded, &pod).as_deref(), Some(want));
    }

    #[test]
    fn claims_count_by_class() {
        let claims = Counted { group: "", plural: "persistentvolumeclaims" };
        let claim = json!({"spec": {"storageClassName": "fast", "resources": {"requests": {"storage": "1Gi"}}}});
        let usage = claims.usage(&claim, 0);
        assert_eq!(usage["fast.storageclass.storage.k8s.io/requests.storage"].to_string(), "1Gi");
        assert!(claims.counts("fast.storageclass.storage.k8s.io/persistentvolumeclaims"));
    }

    #[test]
    fn scopes_select_by_priority_class() {
        let quota = json!({"spec": {"scopeSelector": {"matchExpressions": [
            {"scopeName": "PriorityClass", "operator": "In", "values": ["high"]},
        ]}}, "status": {"hard": {"pods": "1"}}});
        let pod = |class: &str| json!({"spec": {"priorityClassName": class, "containers": []}});
        assert!(PODS.matches(&quota, &pod("high")));
        assert!(!PODS.matches(&quota, &pod("low")));
        assert!(!PODS.matches(&quota, &pod("")));
    }
}

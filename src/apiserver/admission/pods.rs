//! Plugins that complete pods: Priority, DefaultTolerationSeconds, RuntimeClass, PodTopologyLabels.

use std::sync::Arc;

use api::quantity::Quantity;
use api::status::Status;
use api::{Map, Value};
use serde_json::json;

use super::{Operation, Plugin, Review, items};
use crate::registry::object;
use api::quota::amounts::amounts;

/// Turns a pod's priority class into its priority; there is one default class at most.
pub struct Priority;

#[async_trait::async_trait]
impl Plugin for Priority {
    fn name(&self) -> &'static str {
        "Priority"
    }

    fn handles(&self, review: &Review<'_>) -> bool {
        let classes = review.is("scheduling.k8s.io", "priorityclasses");
        review.writes() && (classes || review.is("", "pods"))
    }

    async fn mutate(&self, review: &Review<'_>, pod: &mut Value) -> Result<(), Status> {
        if review.row.plural != "pods" {
            return Ok(());
        }
        match review.old {
            None => set_priority(review, pod).await,
            Some(old) => {
                for field in ["priority", "preemptionPolicy"] {
                    let was = object::at(old, &["spec", field]);
                    if let (None, Some(value)) = (object::at(pod, &["spec", field]), was) {
                        object::fields(pod, &["spec"]).insert(field.into(), value.clone());
                    }
                }
                Ok(())
            }
        }
    }

    async fn validate(&self, review: &Review<'_>, class: &Value) -> Result<(), Status> {
        if review.row.plural != "priorityclasses" || class["globalDefault"] != true {
            return Ok(());
        }
        review.api.admission.settle(review.api).await;
        let Some(default) = default_priority_class(review)? else { return Ok(()) };
        let name = object::name(&default);
        if review.operation == Operation::Create || name != object::name(class) {
            let why = format!("PriorityClass {name} is already marked as default. Only one default can exist");
            return Err(review.forbidden(class, why));
        }
        Ok(())
    }
}

fn value_of(class: &Value) -> i64 {
    class["value"].as_i64().unwrap_or_default()
}

/// Of the classes that are the default, the one of the lowest value.
fn default_priority_class(review: &Review<'_>) -> Result<Option<Arc<Value>>, Status> {
    let mut found: Option<Arc<Value>> = None;
    for cached in review.list("scheduling.k8s.io", "priorityclasses", "") {
        let class = cached.entry.value()?;
        if class["globalDefault"] == true && found.as_ref().is_none_or(|f| value_of(f) > value_of(&class)) {
            found = Some(class);
        }
    }
    Ok(found)
}

async fn set_priority(review: &Review<'_>, pod: &mut Value) -> Result<(), Status> {
    let name = object::text(pod, &["spec", "priorityClassName"]).to_string();
    let class = if name.is_empty() {
        default_priority_class(review)?
    } else {
        match review.find_settled("scheduling.k8s.io", "priorityclasses", "", &name).await {
            Some(cached) => Some(cached.entry.value()?),
            None => return Err(review.forbidden(pod, format!("no PriorityClass with name {name} was found"))),
        }
    };
    let priority = class.as_deref().map_or(0, value_of);
    let policy = match &class {
        Some(class) => object::text(class, &["preemptionPolicy"]).to_string(),
        None => "PreemptLowerPriority".to_string(),
    };
    if let Some(asked) = object::at(pod, &["spec", "priority"]).and_then(Value::as_i64).filter(|p| *p != priority) {
        let why = format!(
            "the integer value of priority ({asked}) must not be provided in pod spec; priority admission controller \
             computed {priority} from the given PriorityClass name"
        );
        return Err(review.forbidden(pod, why));
    }
    let asked = object::text(pod, &["spec", "preemptionPolicy"]);
    if !policy.is_empty() && !asked.is_empty() && asked != policy {
        let why = format!(
            "the string value of PreemptionPolicy ({asked}) must not be provided in pod spec; priority admission \
             controller computed {policy} from the given PriorityClass name"
        );
        return Err(review.forbidden(pod, why));
    }
    let spec = object::fields(pod, &["spec"]);
    if let Some(class) = &class {
        spec.insert("priorityClassName".into(), object::name(class).into());
    }
    spec.insert("priority".into(), priority.into());
    if !policy.is_empty() {
        spec.insert("preemptionPolicy".into(), policy.into());
    }
    Ok(())
}

/// Pods stay for five minutes on a node that is not ready or can't be reached, unless they say otherwise.
pub struct DefaultTolerationSeconds;

#[async_trait::async_trait]
impl Plugin for DefaultTolerationSeconds {
    fn name(&self) -> &'static str {
        "DefaultTolerationSeconds"
    }

    fn handles(&self, review: &Review<'_>) -> bool {
        review.is("", "pods") && review.writes()
    }

    async fn mutate(&self, _review: &Review<'_>, pod: &mut Value) -> Result<(), Status> {
        tolerate(pod, 300);
        Ok(())
    }
}

fn tolerate(pod: &mut Value, seconds: i64) {
    for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
        let matches = |t: &Value| {
            let (own, effect) = (object::text(t, &["key"]), object::text(t, &["effect"]));
            (own == key || own.is_empty()) && matches!(effect, "NoExecute" | "")
        };
        let tolerations = items(pod, &["spec"], "tolerations");
        if !tolerations.iter().any(matches) {
            tolerations.push(json!({
                "key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds,
            }));
        }
    }
}

/// Takes over what a RuntimeClass says of overhead and scheduling.
pub struct RuntimeClass;

#[async_trait::async_trait]
impl Plugin for RuntimeClass {
    fn name(&self) -> &'static str {
        "RuntimeClass"
    }

    fn handles(&self, review: &Review<'_>) -> bool {
        review.is("", "pods") && review.operation == Operation::Create
    }

    async fn mutate(&self, review: &Review<'_>, pod: &mut Value) -> Result<(), Status> {
        let Some(class) = runtime_class(review, pod).await? else { return Ok(()) };
        if let Some(fixed) = overhead(&class) {
            if !same_amounts(object::at(pod, &["spec", "overhead"]), fixed, true) {
                return Err(review.forbidden(pod, MISMATCH));
            }
            object::fields(pod, &["spec"]).insert("overhead".into(), fixed.clone());
        }
        match object::at(&class, &["scheduling"]) {
            Some(scheduling) => merge_scheduling(pod, scheduling).map_err(|why| review.forbidden(pod, why)),
            None => Ok(()),
        }
    }

    async fn validate(&self, review: &Review<'_>, pod: &Value) -> Result<(), Status> {
        let class = runtime_class(review, pod).await?;
        let own = object::at(pod, &["spec", "overhead"]);
        match class.as_deref().and_then(overhead) {
            Some(fixed) if !same_amounts(own, fixed, false) => Err(review.forbidden(pod, MISMATCH)),
            None if own.is_some() => {
                let why = "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead";
                Err(review.forbidden(pod, why))
            }
            _ => Ok(()),
        }
    }
}

const MISMATCH: &str = "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead";

async fn runtime_class(review: &Review<'_>, pod: &Value) -> Result<Option<Arc<Value>>, Status> {
    let Some(name) = object::at(pod, &["spec", "runtimeClassName"]).and_then(Value::as_str) else { return Ok(None) };
    match review.find_settled("node.k8s.io", "runtimeclasses", "", name).await {
        Some(cached) => cached.entry.value().map(Some),
        None => Err(review.forbidden(pod, format!("pod rejected: RuntimeClass \"{name}\" not found"))),
    }
}

fn overhead(class: &Value) -> Option<&Value> {
    object::at(class, &["overhead"]).map(|o| o.get("podFixed").unwrap_or(&Value::Null))
}

fn same_amounts(own: Option<&Value>, fixed: &Value, may_be_empty: bool) -> bool {
    let (own, fixed) = (amounts(own), amounts(Some(fixed)));
    (may_be_empty && own.is_empty())
        || (own.len() == fixed.len() && own.iter().all(|(k, v): (_, &Quantity)| fixed.get(k) == Some(v)))
}

fn merge_scheduling(pod: &mut Value, scheduling: &Value) -> Result<(), String> {
    let wanted = object::at(scheduling, &["nodeSelector"]).and_then(Value::as_object).cloned().unwrap_or_default();
    for (key, value) in &wanted {
        let own = object::at(pod, &["spec", "nodeSelector", key]).filter(|own| *own != value);
        if let Some(own) = own.and_then(Value::as_str) {
            let value = value.as_str().unwrap_or_default();
            return Err(format!(
                "conflict: runtimeClass.scheduling.nodeSelector[{key}] = {value}; pod.spec.nodeSelector[{key}] = {own}"
            ));
        }
    }
    if !wanted.is_empty() {
        object::fields(pod, &["spec", "nodeSelector"]).extend(wanted);
    }
    let more = object::list(scheduling, &["tolerations"]);
    let own = object::list(pod, &["spec", "tolerations"]);
    let mut all: Vec<Value> = Vec::new();
    // The last one of equal scope stands; one that another covers goes.
    for toleration in own.iter().chain(more) {
        if all.iter().any(|t| covers(t, toleration)) {
            continue;
        }
        all.retain(|t| !covers(toleration, t));
        all.push(toleration.clone());
    }
    if !all.is_empty() {
        object::fields(pod, &["spec"]).insert("tolerations".into(), all.into());
    }
    Ok(())
}

/// True when a toleration tolerates everything that another one does.
fn covers(wide: &Value, narrow: &Value) -> bool {
    let text = |t: &'_ Value, field: &str| object::text(t, &[field]).to_string();
    if wide == narrow {
        return true;
    }
    let (key, effect) = (text(wide, "key"), text(wide, "effect"));
    if !key.is_empty() && key != text(narrow, "key") || !effect.is_empty() && effect != text(narrow, "effect") {
        return false;
    }
    if effect == "NoExecute" || effect.is_empty() {
        let seconds = |t: &Value| t.get("tolerationSeconds").and_then(Value::as_i64);
        match (seconds(wide), seconds(narrow)) {
            (Some(_), None) => return false,
            (Some(wide), Some(narrow)) if wide < narrow => return false,
            _ => {}
        }
    }
    match text(wide, "operator").as_str() {
        "Equal" | "" => text(narrow, "operator") != "Exists" && wide.get("value") == narrow.get("value"),
        _ => true,
    }
}

/// Copies a node's zone and region to the pods that are bound to it.
pub struct PodTopologyLabels;

const TOPOLOGY: [&str; 2] = ["topology.kubernetes.io/region", "topology.kubernetes.io/zone"];

#[async_trait::async_trait]
impl Plugin for PodTopologyLabels {
    fn name(&self) -> &'static str {
        "PodTopologyLabels"
    }

    fn handles(&self, review: &Review<'_>) -> bool {
        review.operation == Operation::Create && (review.is("", "pods") || review.is_sub("", "pods", "binding"))
    }

    async fn mutate(&self, review: &Review<'_>, object: &mut Value) -> Result<(), Status> {
        let node = if review.subresource == "binding" {
            let is_node = object::text(object, &["target", "kind"]) == "Node";
            if is_node { object::text(object, &["target", "name"]) } else { "" }
        } else {
            object::text(object, &["spec", "nodeName"])
        };
        if node.is_empty() {
            return Ok(());
        }
        let Some(cached) = review.find("", "nodes", "", node) else { return Ok(()) };
        let labels: Map =
            TOPOLOGY.iter().filter_map(|key| Some((key.to_string(), cached.entry.label(key)?.into()))).collect();
        if !labels.is_empty() {
            object::fields(object, &["metadata", "labels"]).extend(labels);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tolerations_are_added_unless_the_pod_has_its_own() {
        let mut pod = json!({"spec": {"tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists"}]}});
        tolerate(&mut pod, 300);
        let keys: Vec<&str> =
            pod["spec"]["tolerations"].as_array().unwrap().iter().map(|t| t["key"].as_str().unwrap()).collect();
        assert_eq!(keys, ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"]);
        let again = pod.clone();
        tolerate(&mut pod, 300);
        assert_eq!(pod, again);
    }

    #[test]
    fn a_runtime_class_may_not_contradict_a_pods_selector() {
        let mut pod = json!({"spec": {"nodeSelector": {"a": "1"}}});
        let scheduling = json!({"nodeSelector": {"a": "2"}});
        let want = "conflict: runtimeClass.scheduling.nodeSelector[a] = 2; pod.spec.nodeSelector[a] = 1";
        assert_eq!(merge_scheduling(&mut pod, &scheduling).unwrap_err(), want);
    }

    #[test]
    fn a_toleration_of_everything_covers_all() {
        let all = json!({"operator": "Exists"});
        let one = json!({"key": "a", "operator": "Equal", "value": "b", "effect": "NoSchedule"});
        assert!(covers(&all, &one));
        assert!(!covers(&one, &all));
    }
}

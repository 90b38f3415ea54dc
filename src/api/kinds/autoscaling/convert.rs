//! Between v1 and v2: what v1 has no field for stands in annotations.

use serde_json::{Map, json};

use crate::Value;
use crate::kinds::view::{View, set, structure, unset};

/// The utilization that an autoscaler without metrics aims at, in percent.
pub(super) const DEFAULT_UTILIZATION: i64 = 80;

const METRICS: &str = "autoscaling.alpha.kubernetes.io/metrics";
const BEHAVIOR: &str = "autoscaling.alpha.kubernetes.io/behavior";
const CURRENT: &str = "autoscaling.alpha.kubernetes.io/current-metrics";
const CONDITIONS: &str = "autoscaling.alpha.kubernetes.io/conditions";
const ALL: [&str; 6] = [
    METRICS,
    BEHAVIOR,
    CURRENT,
    CONDITIONS,
    "autoscaling.alpha.kubernetes.io/scale-down-tolerance",
    "autoscaling.alpha.kubernetes.io/scale-up-tolerance",
];

/// The order of fields in v1's metrics and conditions, which is the same in all structures.
const ORDER: [&str; 29] = [
    "type",
    "object",
    "pods",
    "resource",
    "containerResource",
    "external",
    "target",
    "kind",
    "name",
    "apiVersion",
    "metricName",
    "metricSelector",
    "targetValue",
    "currentValue",
    "targetAverageUtilization",
    "currentAverageUtilization",
    "targetAverageValue",
    "currentAverageValue",
    "selector",
    "averageValue",
    "container",
    "status",
    "lastTransitionTime",
    "reason",
    "message",
    "matchLabels",
    "matchExpressions",
    "key",
    "operator",
];

/// A metric of the use of CPU, in percent.
pub(super) fn cpu_metric(percent: i64) -> Value {
    let target = json!({"type": "Utilization", "averageUtilization": percent});
    json!({"type": "Resource", "resource": {"name": "cpu", "target": target}})
}

/// Removes the annotations that are v1's way to hold fields of v2, but where they were just made.
pub(super) fn drop_annotations(object: &mut Value, to: &str) {
    if to == "v1" {
        return;
    }
    let Some(metadata) = object.get_mut("metadata") else { return };
    let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) else { return };
    annotations.retain(|name, _| !ALL.contains(&name.as_str()));
    if annotations.is_empty() {
        unset(metadata, "annotations");
    }
}

/// From v2.
pub(super) fn to_v1(object: &mut Value) {
    let mut notes: Vec<(&str, String)> = Vec::new();
    let spec = structure(object, "spec");
    let metrics = unset(spec, "metrics");
    let metrics = metrics.as_ref().and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    if let Some(percent) = metrics.iter().find_map(|metric| utilization(metric, "target")) {
        set(spec, "targetCPUUtilizationPercentage", percent);
    }
    let others: Vec<Value> =
        metrics.iter().filter(|m| utilization(m, "target").is_none()).map(|m| old_metric(m, "target")).collect();
    if !others.is_empty() {
        notes.push((METRICS, ordered(&others.into())));
    }
    if let Some(behavior) = unset(spec, "behavior").filter(|b| !b.is_null()) {
        notes.push((BEHAVIOR, crate::kinds::internal::show("HorizontalPodAutoscalerBehavior", &behavior)));
    }
    let status = structure(object, "status");
    let current = unset(status, "currentMetrics");
    let current = current.as_ref().and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    if let Some(percent) = current.iter().rev().find_map(|metric| utilization(metric, "current")) {
        set(status, "currentCPUUtilizationPercentage", percent);
    }
    if !current.is_empty() {
        let current: Vec<Value> = current.iter().map(|metric| old_metric(metric, "current")).collect();
        notes.push((CURRENT, ordered(&current.into())));
    }
    if !status.has("currentReplicas") {
        set(status, "currentReplicas", 0);
    }
    let conditions = unset(status, "conditions").filter(|c| c.as_array().is_some_and(|list| !list.is_empty()));
    if let Some(conditions) = conditions {
        notes.push((CONDITIONS, ordered(&conditions)));
    }
    let metadata = structure(object, "metadata");
    if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
        annotations.retain(|name, _| !ALL.contains(&name.as_str()));
    }
    for (name, text) in notes {
        set(structure(metadata, "annotations"), name, text);
    }
}

/// To v2.
pub(super) fn from_v1(object: &mut Value) {
    let note = |name: &str| {
        let text = object.at("metadata").at("annotations").text(name);
        serde_json::from_str::<Value>(text).ok()
    };
    let list = |name: &str| note(name).and_then(|v| v.as_array().cloned());
    let (metrics, behavior, current, conditions) = (list(METRICS), note(BEHAVIOR), list(CURRENT), list(CONDITIONS));
    let spec = structure(object, "spec");
    let percent = unset(spec, "targetCPUUtilizationPercentage").and_then(|v| v.as_i64());
    let mut all: Vec<Value> = metrics.unwrap_or_default().iter().map(|m| new_metric(m, "target")).collect();
    all.extend(percent.map(cpu_metric));
    if all.is_empty() {
        all.push(cpu_metric(DEFAULT_UTILIZATION));
    }
    set(spec, "metrics", all);
    if let Some(behavior) = behavior.map(|b| lower(&b)).filter(|b| b.has("scaleUp") || b.has("scaleDown")) {
        set(spec, "behavior", behavior);
    }
    let status = structure(object, "status");
    let percent = unset(status, "currentCPUUtilizationPercentage").and_then(|v| v.as_i64());
    if let Some(current) = current {
        set(status, "currentMetrics", current.iter().map(|m| new_metric(m, "current")).collect::<Vec<_>>());
    } else if let Some(percent) = percent {
        let resource = json!({"name": "cpu", "current": {"averageUtilization": percent}});
        set(status, "currentMetrics", json!([{"type": "Resource", "resource": resource}]));
    }
    if let Some(conditions) = conditions {
        set(status, "conditions", conditions);
    }
}

/// The percentage of a metric of the use of CPU, as wanted (`target`) or as it is (`current`).
fn utilization(metric: &Value, side: &str) -> Option<i64> {
    let resource = metric.at("resource");
    let is_cpu = metric.text("type") == "Resource" && resource.text("name") == "cpu";
    resource.at(side).int("averageUtilization").filter(|_| is_cpu)
}

/// `targetAverageValue`, `currentValue` …
fn named(side: &str, field: &str) -> String {
    let mut chars = field.chars();
    let first = chars.next().into_iter().flat_map(char::to_uppercase);
    side.chars().chain(first).chain(chars).collect()
}

/// A metric as v1 has it.
fn old_metric(metric: &Value, side: &str) -> Value {
    let mut out = json!({"type": metric.text("type")});
    for (kind, source) in fields(metric).filter(|(kind, v)| *kind != "type" && v.is_object()) {
        set(&mut out, kind, old_source(kind, source, side));
    }
    out
}

fn fields(value: &Value) -> impl Iterator<Item = (&str, &Value)> + Clone {
    value.as_object().into_iter().flatten().map(|(k, v)| (k.as_str(), v))
}

fn old_source(kind: &str, source: &Value, side: &str) -> Value {
    let (mut out, aim) = (Value::Object(Map::new()), source.at(side));
    let mut put = |field: &str, value: Option<&Value>| {
        if let Some(value) = value {
            set(&mut out, field, value.clone());
        }
    };
    put("name", source.some("name"));
    put("container", source.some("container"));
    put("target", source.some("describedObject"));
    let metric = source.at("metric");
    put("metricName", metric.some("name"));
    put(if kind == "external" { "metricSelector" } else { "selector" }, metric.some("selector"));
    let average = if kind == "object" { "averageValue".to_string() } else { named(side, "averageValue") };
    put(&average, aim.some("averageValue"));
    put(&named(side, "value"), aim.some("value"));
    put(&named(side, "averageUtilization"), aim.some("averageUtilization"));
    // Amounts that are no pointers in v1 are zero where v2 has none.
    let zero = match (kind, side) {
        ("object", _) | ("external", "current") => named(side, "value"),
        ("pods", _) | (_, "current") => named(side, "averageValue"),
        _ => return out,
    };
    if !out.has(&zero) {
        set(&mut out, &zero, "0");
    }
    out
}

/// A metric as v2 has it.
fn new_metric(metric: &Value, side: &str) -> Value {
    let mut out = json!({"type": metric.text("type")});
    for (kind, source) in fields(metric).filter(|(kind, v)| *kind != "type" && v.is_object()) {
        set(&mut out, kind, new_source(kind, source, side));
    }
    out
}

fn new_source(kind: &str, source: &Value, side: &str) -> Value {
    let (mut out, mut aim) = (Value::Object(Map::new()), Value::Object(Map::new()));
    for field in ["name", "container"] {
        if let Some(value) = source.some(field) {
            set(&mut out, field, value.clone());
        }
    }
    if let Some(object) = source.some("target") {
        set(&mut out, "describedObject", object.clone());
    }
    if let Some(name) = source.some("metricName") {
        let mut metric = json!({ "name": name });
        if let Some(selector) = source.some("selector").or(source.some("metricSelector")) {
            set(&mut metric, "selector", selector.clone());
        }
        set(&mut out, "metric", metric);
    }
    let average = if kind == "object" { "averageValue".to_string() } else { named(side, "averageValue") };
    let (average, value) = (source.some(&average), source.some(&named(side, "value")));
    let percent = source.some(&named(side, "averageUtilization"));
    // An object's value is zero where only its average is wanted.
    let value = value.filter(|value| kind != "object" || average.is_none() || **value != "0");
    for (field, value) in [("value", value), ("averageValue", average), ("averageUtilization", percent)] {
        if let Some(value) = value {
            set(&mut aim, field, value.clone());
        }
    }
    if side == "target" {
        let uses = ["resource", "containerResource"].contains(&kind);
        let is = match (uses, percent, average, value) {
            (true, Some(_), ..) => "Utilization",
            (false, _, None, _) if kind == "object" => "Value",
            (false, _, _, Some(_)) if kind == "external" => "Value",
            _ => "AverageValue",
        };
        set(&mut aim, "type", is);
    }
    set(&mut out, side, aim);
    out
}

/// JSON with fields in v1's order.
fn ordered(value: &Value) -> String {
    match value {
        Value::Array(list) => format!("[{}]", list.iter().map(ordered).collect::<Vec<_>>().join(",")),
        Value::Object(map) => {
            let rank = |name: &str| ORDER.iter().position(|known| *known == name).unwrap_or(ORDER.len());
            let mut fields: Vec<(&String, &Value)> = map.iter().filter(|(_, value)| !value.is_null()).collect();
            fields.sort_by_key(|(name, _)| rank(name));
            let member = |(name, value): &(&String, &Value)| {
                // Labels are not fields.
                let value = if *name == "matchLabels" { value.to_string() } else { ordered(value) };
                format!("{}:{value}", Value::from(name.as_str()))
            };
            format!("{{{}}}", fields.iter().map(member).collect::<Vec<_>>().join(","))
        }
        other => other.to_string(),
    }
}

/// Fields by the names that they have in v2: the annotation has those of upstream's internal form.
fn lower(value: &Value) -> Value {
    match value {
        Value::Array(list) => list.iter().map(lower).collect(),
        Value::Object(map) => {
            let small = |name: &String| {
                let mut chars = name.chars();
                chars.next().into_iter().flat_map(char::to_lowercase).chain(chars).collect::<String>()
            };
            map.iter().filter(|(_, v)| !v.is_null()).map(|(name, value)| (small(name), lower(value))).collect()
        }
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_v1_has_no_field_for_stands_in_annotations_and_comes_back() {
        let pods = json!({"type": "Pods", "pods": {"metric": {"name": "rps", "selector": {"matchLabels": {"type": "x", "a": "b"}}},
            "target": {"type": "AverageValue", "averageValue": "5"}}});
        let policies = json!([{"type": "Pods", "value": 4, "periodSeconds": 15}]);
        let v2 = json!({"apiVersion": "autoscaling/v2", "metadata": {"name": "a"},
            "spec": {"metrics": [pods, cpu_metric(70)], "behavior": {"scaleUp": {"policies": policies}}},
            "status": {"currentReplicas": 1}});
        let mut object = v2.clone();
        to_v1(&mut object);
        let notes = &object["metadata"]["annotations"];
        let want = r#"[{"type":"Pods","pods":{"metricName":"rps","targetAverageValue":"5","selector":{"matchLabels":{"a":"b","type":"x"}}}}]"#;
        assert_eq!(notes[METRICS], want);
        assert_eq!(object["spec"], json!({"targetCPUUtilizationPercentage": 70}));
        from_v1(&mut object);
        drop_annotations(&mut object, "v2");
        assert_eq!(object, v2);
    }
}

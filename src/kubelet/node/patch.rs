//! The difference between two statuses of a node as a strategic merge patch.

use k8s_openapi::api::core::v1::NodeStatus;
use serde_json::{Map, Value, json};

/// The patch, or `None` when nothing differs.
pub fn patch(old: &NodeStatus, new: &NodeStatus) -> Option<Value> {
    let object = |status: &NodeStatus| match serde_json::to_value(status) {
        Ok(Value::Object(map)) => map,
        _ => Map::new(),
    };
    let (old, new) = (object(old), object(new));
    let mut changes = Map::new();
    for (key, value) in &new {
        let before = old.get(key);
        if before == Some(value) {
            continue;
        }
        match (key.as_str(), before, value) {
            ("conditions", _, Value::Array(items)) => conditions(before, items, &mut changes),
            // Addresses merge by type, of which there may be several: only replacing them all is safe.
            ("addresses", _, Value::Array(items)) => {
                let replace = std::iter::once(json!({"$patch": "replace"}));
                changes.insert(key.clone(), replace.chain(items.iter().cloned()).collect());
            }
            (_, Some(Value::Object(before)), Value::Object(after)) => {
                changes.insert(key.clone(), map(before, after).into());
            }
            _ => drop(changes.insert(key.clone(), value.clone())),
        }
    }
    for key in old.keys().filter(|key| !new.contains_key(*key)) {
        changes.insert(key.clone(), Value::Null);
    }
    (!changes.is_empty()).then(|| json!({"status": changes}))
}

fn map(old: &Map<String, Value>, new: &Map<String, Value>) -> Map<String, Value> {
    let mut changes: Map<String, Value> =
        new.iter().filter(|(key, value)| old.get(*key) != Some(value)).map(|(k, v)| (k.clone(), v.clone())).collect();
    for key in old.keys().filter(|key| !new.contains_key(*key)) {
        changes.insert(key.clone(), Value::Null);
    }
    changes
}

fn conditions(before: Option<&Value>, items: &[Value], changes: &mut Map<String, Value>) {
    let before = before.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let changed: Vec<Value> = items.iter().filter(|item| !before.contains(item)).cloned().collect();
    let order = |list: &[Value]| -> Vec<Value> { list.iter().map(|item| json!({"type": item["type"]})).collect() };
    changes.insert("$setElementOrder/conditions".into(), order(items).into());
    if !changed.is_empty() {
        changes.insert("conditions".into(), changed.into());
    }
}

//! The difference between two statuses of a pod, as the strategic merge patch that turns one into the other.

use k8s_openapi::api::core::v1::PodStatus;
use serde_json::{Map, Value, json};

/// Lists that are merged by a key; all other lists are replaced.
const KEYED: [(&str, &str); 4] =
    [("conditions", "type"), ("podIPs", "ip"), ("hostIPs", "ip"), ("resourceClaimStatuses", "name")];

/// The patch, or `None` when there is nothing to change. The UID keeps it from hitting a namesake.
pub fn patch(uid: &str, old: &PodStatus, new: &PodStatus) -> Option<Value> {
    let object = |status: &PodStatus| match serde_json::to_value(status) {
        Ok(Value::Object(map)) => map,
        _ => Map::new(),
    };
    let changes = difference(&object(old), &object(new));
    (!changes.is_empty()).then(|| json!({"metadata": {"uid": uid}, "status": changes}))
}

fn difference(old: &Map<String, Value>, new: &Map<String, Value>) -> Map<String, Value> {
    let mut changes = Map::new();
    for (key, value) in new {
        let before = old.get(key);
        if before == Some(value) {
            continue;
        }
        let merge_key = KEYED.iter().find(|(list, _)| list == key).map(|(_, key)| *key);
        match (before, value, merge_key) {
            (_, Value::Array(items), Some(merge_key)) => {
                let before = before.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
                keyed_list(key, merge_key, before, items, &mut changes);
            }
            (Some(Value::Object(before)), Value::Object(after), _) => {
                changes.insert(key.clone(), difference(before, after).into());
            }
            _ => {
                changes.insert(key.clone(), value.clone());
            }
        }
    }
    for key in old.keys().filter(|key| !new.contains_key(*key)) {
        changes.insert(key.clone(), Value::Null);
    }
    changes
}

fn keyed_list(list: &str, key: &str, old: &[Value], new: &[Value], changes: &mut Map<String, Value>) {
    let find = |items: &[Value], id: &Value| items.iter().find(|item| item.get(key) == Some(id)).cloned();
    let id = |item: &Value| item.get(key).cloned().unwrap_or_default();
    let mut items = Vec::new();
    for item in new {
        match find(old, &id(item)) {
            Some(before) if before == *item => {}
            Some(Value::Object(before)) => {
                let empty = Map::new();
                let mut change = difference(&before, item.as_object().unwrap_or(&empty));
                change.insert(key.into(), id(item));
                items.push(change.into());
            }
            _ => items.push(item.clone()),
        }
    }
    for item in old.iter().filter(|item| find(new, &id(item)).is_none()) {
        items.push(json!({"$patch": "delete", key: id(item)}));
    }
    let order = |items: &[Value]| -> Vec<Value> { items.iter().map(|item| json!({key: id(item)})).collect() };
    if !items.is_empty() || order(old) != order(new) {
        changes.insert(format!("$setElementOrder/{list}"), order(new).into());
        if !items.is_empty() {
            changes.insert(list.into(), items.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(old: Value, new: Value) -> Option<Value> {
        let status = |value| serde_json::from_value::<PodStatus>(value).unwrap();
        patch("u", &status(old), &status(new)).map(|patch| patch["status"].clone())
    }

    #[test]
    fn only_what_changed_is_sent() {
        let same = json!({"phase": "Running", "podIPs": [{"ip": "1"}]});
        assert_eq!(run(same.clone(), same), None);
        let old = json!({"phase": "Pending", "message": "m", "podIPs": [{"ip": "1"}], "conditions": [
            {"type": "A", "status": "False", "reason": "r"}, {"type": "B", "status": "True"}]});
        let new = json!({"phase": "Running", "podIPs": [{"ip": "2"}], "conditions": [
            {"type": "A", "status": "True"}, {"type": "B", "status": "True"}]});
        assert_eq!(
            run(old, new).unwrap(),
            json!({"phase": "Running", "message": null,
                "$setElementOrder/podIPs": [{"ip": "2"}], "podIPs": [{"ip": "2"}, {"$patch": "delete", "ip": "1"}],
                "$setElementOrder/conditions": [{"type": "A"}, {"type": "B"}],
                "conditions": [{"type": "A", "status": "True", "reason": null}]})
        );
    }
}

//! Reading objects for cells: absent fields count as Go's zero values.

use super::Cell;
use crate::Value;
use crate::quantity::canonical;
use crate::selector::LabelSelector;

/// What is at a JSON pointer.
pub(super) fn at<'v>(object: &'v Value, pointer: &str) -> &'v Value {
    object.pointer(pointer).unwrap_or(&Value::Null)
}

/// A text, empty when absent.
pub(super) fn text<'v>(object: &'v Value, pointer: &str) -> &'v str {
    at(object, pointer).as_str().unwrap_or_default()
}

/// A text, or another when it is absent.
pub(super) fn text_or<'v>(object: &'v Value, pointer: &str, or: &'v str) -> &'v str {
    at(object, pointer).as_str().unwrap_or(or)
}

/// A text, or another when it is absent or empty.
pub(super) fn filled<'v>(object: &'v Value, pointer: &str, or: &'v str) -> &'v str {
    Some(text(object, pointer)).filter(|s| !s.is_empty()).unwrap_or(or)
}

/// A whole number, 0 when absent.
pub(super) fn number(object: &Value, pointer: &str) -> i64 {
    at(object, pointer).as_i64().unwrap_or_default()
}

/// A truth, false when absent.
pub(super) fn truth(object: &Value, pointer: &str) -> bool {
    at(object, pointer).as_bool().unwrap_or_default()
}

/// Items of a list.
pub(super) fn list<'v>(object: &'v Value, pointer: &str) -> &'v [Value] {
    at(object, pointer).as_array().map(Vec::as_slice).unwrap_or_default()
}

/// How many entries a map or list has.
pub(super) fn count(object: &Value, pointer: &str) -> i64 {
    match at(object, pointer) {
        Value::Array(items) => items.len() as i64,
        Value::Object(map) => map.len() as i64,
        _ => 0,
    }
}

/// True when something is there.
pub(super) fn has(object: &Value, pointer: &str) -> bool {
    !at(object, pointer).is_null()
}

/// A cell that does not change.
pub(super) fn is(value: impl Into<Value>) -> Cell {
    Cell::Is(value.into())
}

/// The cell of the object's name.
pub(super) fn name(object: &Value) -> Cell {
    is(text(object, "/metadata/name"))
}

/// The cell of the object's age.
pub(super) fn age(object: &Value) -> Cell {
    Cell::age(at(object, "/metadata/creationTimestamp"))
}

/// Texts of a list, joined by commas.
pub(super) fn joined(object: &Value, pointer: &str) -> String {
    list(object, pointer).iter().filter_map(Value::as_str).collect::<Vec<_>>().join(",")
}

/// Names and images of the containers of a pod specification.
pub(super) fn containers(object: &Value, spec: &str) -> [Cell; 2] {
    let containers = list(object, &format!("{spec}/containers"));
    let all =
        |field: &str| containers.iter().map(|c| c[field].as_str().unwrap_or_default()).collect::<Vec<_>>().join(",");
    [is(all("name")), is(all("image"))]
}

/// A map of labels as text.
pub(super) fn labels(object: &Value, pointer: &str) -> String {
    let pairs = at(object, pointer).as_object().into_iter().flatten();
    let pairs: Vec<String> = pairs.map(|(k, v)| format!("{k}={}", v.as_str().unwrap_or_default())).collect();
    if pairs.is_empty() { "<none>".into() } else { pairs.join(",") }
}

/// A label selector as text.
pub(super) fn selector(object: &Value, pointer: &str) -> String {
    match LabelSelector::from_object(at(object, pointer)) {
        Ok(selector) => Some(selector.to_string()).filter(|s| !s.is_empty()).unwrap_or_else(|| "<none>".into()),
        Err(_) => "<error>".into(),
    }
}

/// A quantity as text, `0` when absent.
pub(super) fn quantity(value: &Value) -> String {
    match value {
        Value::String(s) => canonical(s).map(Into::into).unwrap_or_else(|_| s.clone()),
        Value::Null => "0".into(),
        other => other.to_string(),
    }
}

/// An integer or a text.
pub(super) fn int_or_text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_string)
}

/// The status of a condition, if the object has it.
pub(super) fn condition<'v>(object: &'v Value, kind: &str) -> Option<&'v str> {
    let found = list(object, "/status/conditions").iter().find(|c| c["type"] == kind);
    found.map(|c| c["status"].as_str().unwrap_or_default())
}

/// The first few of a list and how many there are more.
pub(super) fn first_few(items: &[String], max: usize, empty: &str) -> String {
    let shown = items[..items.len().min(max)].join(",");
    match items.len() {
        0 => empty.into(),
        n if n > max => format!("{shown} + {} more...", n - max),
        _ if shown.is_empty() => empty.into(),
        _ => shown,
    }
}

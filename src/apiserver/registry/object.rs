//! Metadata of an object as a tree: reading and setting what the engine owns.

use api::{Map, Value};

/// Follows names into an object.
pub fn at<'a>(object: &'a Value, path: &[&str]) -> Option<&'a Value> {
    path.iter().try_fold(object, |at, name| at.get(*name)).filter(|v| !v.is_null())
}

/// Text at a path; empty when it is not there.
pub fn text<'a>(object: &'a Value, path: &[&str]) -> &'a str {
    at(object, path).and_then(Value::as_str).unwrap_or_default()
}

/// A list at a path; empty when it is not there.
pub fn list<'a>(object: &'a Value, path: &[&str]) -> &'a [Value] {
    at(object, path).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// A field of `metadata`.
pub fn meta<'a>(object: &'a Value, field: &str) -> Option<&'a Value> {
    at(object, &["metadata", field])
}

/// A text field of `metadata`; empty when it is not there.
pub fn meta_text<'a>(object: &'a Value, field: &str) -> &'a str {
    text(object, &["metadata", field])
}

/// `metadata.name`.
pub fn name(object: &Value) -> &str {
    meta_text(object, "name")
}

/// `metadata.namespace`.
pub fn namespace(object: &Value) -> &str {
    meta_text(object, "namespace")
}

/// `metadata.uid`.
pub fn uid(object: &Value) -> &str {
    meta_text(object, "uid")
}

/// `metadata.finalizers`.
pub fn finalizers(object: &Value) -> Vec<String> {
    list(object, &["metadata", "finalizers"]).iter().filter_map(|f| f.as_str().map(str::to_string)).collect()
}

/// `metadata.deletionTimestamp` is set.
pub fn deleting(object: &Value) -> bool {
    meta(object, "deletionTimestamp").is_some()
}

/// `metadata.deletionGracePeriodSeconds`.
pub fn grace(object: &Value) -> Option<i64> {
    meta(object, "deletionGracePeriodSeconds").and_then(Value::as_i64)
}

/// `metadata.generation`; 0 when it is not kept.
pub fn generation(object: &Value) -> i64 {
    meta(object, "generation").and_then(Value::as_i64).unwrap_or_default()
}

/// An annotation; `None` when it is not there.
pub fn annotation<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    at(object, &["metadata", "annotations", key]).and_then(Value::as_str)
}

/// A label; `None` when it is not there.
pub fn label<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    at(object, &["metadata", "labels", key]).and_then(Value::as_str)
}

/// The fields of an object below a path, made where they are missing or null.
pub fn fields<'a>(object: &'a mut Value, path: &[&str]) -> &'a mut Map {
    let mut at = object;
    for name in path {
        at = child(at, name);
    }
    if !at.is_object() {
        *at = Value::Object(Map::new());
    }
    match at {
        Value::Object(map) => map,
        _ => unreachable!("made an object above"),
    }
}

fn child<'a>(object: &'a mut Value, name: &str) -> &'a mut Value {
    if !object.is_object() {
        *object = Value::Object(Map::new());
    }
    match object {
        Value::Object(map) => map.entry(name).or_insert(Value::Null),
        _ => unreachable!("made an object above"),
    }
}

/// Sets a field of `metadata`.
pub fn set_meta(object: &mut Value, field: &str, value: impl Into<Value>) {
    fields(object, &["metadata"]).insert(field.to_string(), value.into());
}

/// Removes a field of `metadata`.
pub fn unset_meta(object: &mut Value, field: &str) {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove(field);
    }
}

/// Gives a field of `metadata` the value it has in another object, or removes it.
pub fn copy_meta(to: &mut Value, from: &Value, field: &str) {
    match meta(from, field) {
        Some(value) => set_meta(to, field, value.clone()),
        None => unset_meta(to, field),
    }
}

/// Sets or removes a list of texts in `metadata`.
pub fn set_finalizers(object: &mut Value, finalizers: Vec<String>) {
    if finalizers.is_empty() {
        unset_meta(object, "finalizers");
    } else {
        set_meta(object, "finalizers", finalizers);
    }
}

/// Seconds since 1970 as RFC 3339 (`2026-01-02T03:04:05Z`).
pub fn time(seconds: i64) -> String {
    jiff::Timestamp::from_second(seconds).unwrap_or_default().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// RFC 3339 as seconds since 1970; `None` when it is no time.
pub fn seconds(time: &str) -> Option<i64> {
    time.parse::<jiff::Timestamp>().ok().map(|t| t.as_second())
}

/// Now, in seconds since 1970.
pub fn now() -> i64 {
    jiff::Timestamp::now().as_second()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn reads_of_missing_and_null_fields_are_empty() {
        let object = json!({"metadata": {"name": "a", "finalizers": null}});
        assert_eq!(name(&object), "a");
        assert_eq!(namespace(&object), "");
        assert!(finalizers(&object).is_empty());
        assert!(!deleting(&object));
    }

    #[test]
    fn metadata_is_made_where_it_is_missing() {
        let mut object = json!({"metadata": null});
        set_meta(&mut object, "name", "a");
        assert_eq!(object, json!({"metadata": {"name": "a"}}));
        unset_meta(&mut object, "name");
        assert_eq!(object, json!({"metadata": {}}));
    }

    #[test]
    fn times_are_whole_seconds_in_utc() {
        assert_eq!(time(0), "1970-01-01T00:00:00Z");
        assert_eq!(seconds("2026-01-02T03:04:05Z"), Some(1_767_323_045));
        assert_eq!(time(1_767_323_045), "2026-01-02T03:04:05Z");
    }
}

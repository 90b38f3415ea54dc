//! Object metadata: names, labels, annotations, owner references, finalizers, and the fields that the system fills in.
//!
//! - [`names`]: the rules for names and other short texts, in upstream's words
//! - [`check`]: what is wrong with an object's metadata (apimachinery `api/validation`)
//! - this file: what the system fills in on create and update (apiserver `registry/rest`)

pub mod check;
pub mod names;
#[cfg(test)]
mod tests;

pub use check::{field_manager, validate, validate_update};
pub use names::{dns_subdomain, label_key, label_value};

use crate::status::Status;
use crate::{Map, Value};

/// True when two objects differ in any field but those named.
pub fn differs_outside(new: &Value, old: &Value, but: &[&str]) -> bool {
    let (Some(new), Some(old)) = (new.as_object(), old.as_object()) else { return new != old };
    let differs = |a: &Map, b: &Map| a.iter().any(|(k, v)| !but.contains(&k.as_str()) && b.get(k) != Some(v));
    differs(new, old) || differs(old, new)
}

/// The object's `metadata`, made if it is absent.
///
/// # Panics
/// When the object is no JSON object: decoding never lets such a thing through.
pub fn of(object: &mut Value) -> &mut Map {
    let meta = object
        .as_object_mut()
        .expect("a decoded object")
        .entry("metadata")
        .or_insert_with(|| Value::Object(Map::new()));
    if !meta.is_object() {
        *meta = Value::Object(Map::new());
    }
    meta.as_object_mut().expect("just made")
}

/// A text field of `metadata`; empty when it is absent.
pub fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    object["metadata"][field].as_str().unwrap_or_default()
}

/// Characters of generated suffixes: no vowels and none that are easily confused.
const SUFFIX: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";

/// Five characters out of a random number.
pub fn suffix(mut random: u64) -> String {
    let mut out = String::with_capacity(5);
    for _ in 0..5 {
        out.push(char::from(SUFFIX[(random % 27) as usize]));
        random /= 27;
    }
    out
}

/// A name out of a `generateName` and a random number; the prefix is cut so that the name stays within 63 bytes.
pub fn generate_name(prefix: &str, random: u64) -> String {
    let mut end = prefix.len().min(58);
    while !prefix.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}{}", &prefix[..end], suffix(random))
}

/// Seconds since 1970 as a timestamp of the API (RFC 3339, UTC).
pub fn timestamp(seconds: i64) -> String {
    jiff::Timestamp::from_second(seconds).unwrap_or_default().to_string()
}

/// Drops what a creator may not choose and fills in what the system does: creation time (RFC 3339) and UID.
pub fn fill_system_fields(object: &mut Value, now: &str, uid: &str) {
    let meta = of(object);
    for field in ["deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"] {
        meta.remove(field);
    }
    meta.insert("creationTimestamp".into(), now.into());
    meta.insert("uid".into(), uid.into());
}

/// Makes the object's namespace that of the request (empty for cluster-scoped resources).
///
/// # Errors
/// 400 when both are set and differ.
pub fn match_namespace(object: &mut Value, namespace: &str) -> Result<(), Status> {
    let meta = of(object);
    let own = meta.get("namespace").and_then(Value::as_str).unwrap_or_default();
    if own == namespace {
        return Ok(());
    }
    if namespace.is_empty() {
        meta.remove("namespace");
        return Ok(());
    }
    if !own.is_empty() {
        let text = "the namespace of the provided object does not match the namespace sent on the request";
        return Err(Status::bad_request(text));
    }
    meta.insert("namespace".into(), namespace.into());
    Ok(())
}

/// Sets what no update may change to what it was: generation, creation time, and the marks of a deletion. Comes before
/// the strategy's `prepare_update`, except that an absent UID is filled in as well, for which the order is of no
/// matter.
pub fn keep_system_fields(new: &mut Value, old: &Value) {
    let was = |field: &str| old["metadata"].get(field).filter(|v| !v.is_null()).cloned();
    let meta = of(new);
    let mut set = |field: &str, value: Option<Value>| match value {
        Some(value) => drop(meta.insert(field.into(), value)),
        None => drop(meta.remove(field)),
    };
    set("generation", was("generation"));
    set("selfLink", None);
    for field in ["creationTimestamp", "deletionTimestamp"] {
        if let Some(value) = was(field) {
            set(field, Some(value));
        }
    }
    for field in ["uid", "deletionGracePeriodSeconds"] {
        let absent = match meta.get(field) {
            None | Some(Value::Null) => true,
            Some(Value::String(text)) => text.is_empty(),
            Some(_) => false,
        };
        if let (true, Some(value)) = (absent, was(field)) {
            meta.insert(field.into(), value);
        }
    }
}

/// Makes all metadata but managed fields what it was, as most updates of a status do.
pub fn keep_all(new: &mut Value, old: &Value) {
    const FIELDS: [&str; 7] =
        ["deletionTimestamp", "generation", "selfLink", "labels", "annotations", "finalizers", "ownerReferences"];
    let meta = of(new);
    for field in FIELDS {
        match old["metadata"].get(field).filter(|v| !v.is_null()) {
            Some(value) => drop(meta.insert(field.into(), value.clone())),
            None => drop(meta.remove(field)),
        }
    }
}

/// `metadata.generation` of a new object: 1 where it is kept, else what the client sent stays.
pub fn first_generation(object: &mut Value) {
    of(object).insert("generation".into(), 1.into());
}

/// One more than the old object's generation.
pub fn next_generation(new: &mut Value, old: &Value) {
    let generation = old["metadata"]["generation"].as_i64().unwrap_or(0) + 1;
    of(new).insert("generation".into(), generation.into());
}

//! The way from kubectl's client-side apply to server-side apply: fields that the last client-side apply set may be
//! taken over without force, and the annotation follows.

use super::set::{self, Set};
use super::{Tracker, check, compare};
use crate::{Map, Value};

/// The manager for whom this is done.
pub(super) const KUBECTL: &str = "kubectl";

const ANNOTATION: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Bytes that all annotations of an object may have, keys included.
const MAX_ANNOTATIONS: usize = 256 * 1024;

fn annotation(object: &Value) -> Option<&str> {
    object["metadata"]["annotations"].get(ANNOTATION)?.as_str().filter(|text| !text.is_empty())
}

/// The fields of the last client-side apply that the live object still has as they were; `None` when there was no such
/// apply or it can't be understood.
pub(super) fn unchanged_fields(tracker: &Tracker<'_>, live: &Value) -> Option<Set> {
    let last: Value = serde_json::from_str(annotation(live)?).ok()?;
    if last["apiVersion"] != tracker.writer.api_version {
        return None;
    }
    let (facts, kind) = (tracker.facts, tracker.root());
    let fits = |object: &Value| check::validate(facts, kind, object, false).is_empty();
    if !fits(&last) || !fits(live) {
        return None;
    }
    let diff = compare::compare(facts, kind, &last, live).ok()?;
    let mut fields = compare::field_set(facts, kind, &last);
    set::subtract(&mut fields, &diff.touched);
    set::subtract(&mut fields, &diff.removed);
    Some(fields)
}

/// Keeps the annotation in step with what is applied, so that one can go back to client-side apply.
pub(super) fn refresh(object: &mut Value, config: &Value) {
    if annotation(object).is_none() {
        return;
    }
    let Some(annotations) = object["metadata"]["annotations"].as_object_mut() else { return };
    annotations.insert(ANNOTATION.into(), written(config).into());
    let size: usize = annotations.iter().map(|(k, v)| k.len() + v.as_str().map_or(0, str::len)).sum();
    if size > MAX_ANNOTATIONS {
        annotations.remove(ANNOTATION);
    }
}

/// The configuration without the annotation itself, as Go's encoder writes it.
fn written(config: &Value) -> String {
    let mut config = config.clone();
    if let Some(metadata) = config.get_mut("metadata").and_then(Value::as_object_mut) {
        let annotations = metadata.get_mut("annotations").and_then(Value::as_object_mut);
        if annotations.is_some_and(without_annotation) {
            metadata.remove("annotations");
        }
    }
    let text = config.to_string();
    let mut out = String::with_capacity(text.len() + 1);
    for c in text.chars() {
        match c {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => out.push_str(&format!("\\u{:04x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push('\n');
    out
}

/// Returns whether no annotations are left.
fn without_annotation(annotations: &mut Map) -> bool {
    annotations.remove(ANNOTATION);
    annotations.is_empty()
}

//! What is wrong with an object's metadata, in upstream's order and words (apimachinery `api/validation` and
//! `apis/meta/v1/validation`).

use super::names::{self, Wrong};
use crate::Value;
use crate::field::{Error, Errors, Path, quote};

/// The text of every refusal to change a field.
pub const IMMUTABLE: &str = "field is immutable";
/// The text of every refusal of a negative number.
pub const NEGATIVE: &str = "must be greater than or equal to 0";

/// Most bytes that all keys and values of annotations may have together.
const ANNOTATIONS_MAX: usize = 256 * 1024;

/// How the names of a kind are checked; the flag says that the name is a `generateName`.
pub type NameRule<'a> = &'a dyn Fn(&str, bool) -> Wrong;

/// Adds an `Invalid value` for each text.
pub fn push_all(out: &mut Errors, path: &Path, value: impl Into<Value>, wrong: Wrong) {
    if wrong.is_empty() {
        return;
    }
    let value = value.into();
    for text in wrong {
        out.push(Error::invalid(path, value.clone(), text));
    }
}

fn map<'a>(meta: &'a Value, field: &str) -> impl Iterator<Item = (&'a str, &'a str)> {
    let map = meta.get(field).and_then(Value::as_object).into_iter().flatten();
    map.map(|(k, v)| (k.as_str(), v.as_str().unwrap_or_default()))
}

fn list<'a>(meta: &'a Value, field: &str) -> &'a [Value] {
    meta.get(field).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value.get(field).and_then(Value::as_str).unwrap_or_default()
}

/// The metadata of a complete object: the name by the kind's rule, then all the rest.
pub fn validate(object: &Value, namespaced: bool, name_rule: NameRule<'_>) -> Errors {
    let meta = &object["metadata"];
    let path = Path::new("metadata");
    let mut out = Errors::new();
    let generate = text(meta, "generateName");
    if !generate.is_empty() {
        push_all(&mut out, &path.child("generateName"), generate, name_rule(generate, true));
    }
    match text(meta, "name") {
        "" => out.push(Error::required(&path.child("name"), "name or generateName is required")),
        name => push_all(&mut out, &path.child("name"), name, name_rule(name, false)),
    }
    namespace(&mut out, meta, namespaced, &path.child("namespace"));
    let generation = meta.get("generation").and_then(Value::as_i64).unwrap_or(0);
    if generation < 0 {
        out.push(Error::invalid(&path.child("generation"), generation, NEGATIVE));
    }
    labels(&mut out, map(meta, "labels"), &path.child("labels"));
    annotations(&mut out, map(meta, "annotations"), &path.child("annotations"));
    owners(&mut out, list(meta, "ownerReferences"), &path.child("ownerReferences"));
    finalizers(&mut out, list(meta, "finalizers"), &path.child("finalizers"));
    managed_fields(&mut out, list(meta, "managedFields"), &path.child("managedFields"));
    out
}

/// Finalizers without a domain are those that Kubernetes itself knows; asked by the kinds that are compiled in.
pub fn kube_finalizers(out: &mut Errors, object: &Value) {
    let path = Path::new("metadata").child("finalizers");
    let all = list(&object["metadata"], "finalizers").iter().map(|f| f.as_str().unwrap_or_default());
    for (i, name) in all.enumerate() {
        if !name.contains('/') && !["kubernetes", "orphan", "foregroundDeletion"].contains(&name) {
            let detail = "name is neither a standard finalizer name nor is it fully qualified";
            out.push(Error::invalid(&path.index(i), name, detail));
        }
    }
}

fn namespace(out: &mut Errors, meta: &Value, namespaced: bool, path: &Path) {
    match (namespaced, text(meta, "namespace")) {
        (true, "") => out.push(Error::required(path, "")),
        (true, name) => push_all(out, path, name, names::label(name)),
        (false, "") => {}
        (false, _) => out.push(Error::forbidden(path, "not allowed on this type")),
    }
}

/// How metadata may change.
pub fn validate_update(new: &Value, old: &Value) -> Errors {
    let (new, old) = (&new["metadata"], &old["metadata"]);
    let path = Path::new("metadata");
    let mut out = Errors::new();
    if old.get("deletionTimestamp").is_some_and(|v| !v.is_null()) {
        no_new_finalizers(&mut out, new, old, &path.child("finalizers"));
    }
    if text(new, "resourceVersion").is_empty() {
        out.push(Error::invalid(&path.child("resourceVersion"), "", "must be specified for an update"));
    }
    let generation = |meta: &Value| meta.get("generation").and_then(Value::as_i64).unwrap_or(0);
    if generation(new) < generation(old) {
        out.push(Error::invalid(&path.child("generation"), generation(new), "must not be decremented"));
    }
    for field in ["name", "namespace", "uid"] {
        if text(new, field) != text(old, field) {
            out.push(Error::invalid(&path.child(field), text(new, field), IMMUTABLE));
        }
    }
    for field in ["creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"] {
        immutable(&mut out, &new[field], &old[field], &path.child(field));
    }
    labels(&mut out, map(new, "labels"), &path.child("labels"));
    annotations(&mut out, map(new, "annotations"), &path.child("annotations"));
    owners(&mut out, list(new, "ownerReferences"), &path.child("ownerReferences"));
    managed_fields(&mut out, list(new, "managedFields"), &path.child("managedFields"));
    out
}

/// A value that may not change.
pub fn immutable(out: &mut Errors, new: &Value, old: &Value, path: &Path) {
    if new != old {
        out.push(Error::invalid(path, new.clone(), IMMUTABLE));
    }
}

/// Go's `%#v` of a list of strings.
fn go_strings(list: &[&str]) -> String {
    let quoted: Vec<String> = list.iter().map(|s| quote(s)).collect();
    format!("[]string{{{}}}", quoted.join(", "))
}

fn no_new_finalizers(out: &mut Errors, new: &Value, old: &Value, path: &Path) {
    let before = list(old, "finalizers");
    let mut extra: Vec<&str> =
        list(new, "finalizers").iter().filter(|f| !before.contains(f)).filter_map(Value::as_str).collect();
    if !extra.is_empty() {
        extra.sort_unstable();
        extra.dedup();
        let text = "no new finalizers can be added if the object is being deleted, found new finalizers";
        out.push(Error::forbidden(path, format!("{text} {}", go_strings(&extra))));
    }
}

/// Keys and values of labels.
pub fn labels<'a>(out: &mut Errors, labels: impl IntoIterator<Item = (&'a str, &'a str)>, path: &Path) {
    for (key, value) in labels {
        push_all(out, path, key, names::label_key(key));
        push_all(out, path, value, names::label_value(value));
    }
}

/// A label's key.
pub fn label_key(out: &mut Errors, key: &str, path: &Path) {
    push_all(out, path, key, names::label_key(key));
}

/// Keys of annotations, and the size of all.
pub fn annotations<'a>(out: &mut Errors, annotations: impl IntoIterator<Item = (&'a str, &'a str)>, path: &Path) {
    let mut size = 0;
    for (key, value) in annotations {
        push_all(out, path, key, names::label_key(&key.to_lowercase()));
        size += key.len() + value.len();
    }
    if size > ANNOTATIONS_MAX {
        out.push(Error::too_long(path, ANNOTATIONS_MAX));
    }
}

/// Group, version and kind out of `apiVersion` and `kind`, as Go's `FromAPIVersionAndKind` reads them: nothing at all
/// of a version with two slashes.
fn gvk<'a>(api_version: &'a str, kind: &'a str) -> (&'a str, &'a str, &'a str) {
    match api_version.split_once('/') {
        None => ("", api_version, kind),
        Some((_, rest)) if rest.contains('/') => ("", "", kind),
        Some((group, version)) => (group, version, kind),
    }
}

/// Owner references.
pub fn owners(out: &mut Errors, owners: &[Value], path: &Path) {
    let mut controller: Option<String> = None;
    for owner in owners {
        owner_reference(out, owner, path);
        if owner.get("controller").and_then(Value::as_bool) != Some(true) {
            continue;
        }
        let this = format!("{}/{}", text(owner, "kind"), text(owner, "name"));
        match &controller {
            None => controller = Some(this),
            Some(first) => {
                let shown: Vec<String> = owners.iter().map(show_owner).collect();
                let detail = format!(
                    "Only one reference can have Controller set to true. Found \"true\" in references for {first} and \
                     {this}"
                );
                out.push(Error::invalid_shown(path, format!("[{}]", shown.join(",")), detail));
            }
        }
    }
}

fn owner_reference(out: &mut Errors, owner: &Value, path: &Path) {
    let (group, version, kind) = gvk(text(owner, "apiVersion"), text(owner, "kind"));
    if version.is_empty() {
        out.push(Error::invalid(&path.child("apiVersion"), text(owner, "apiVersion"), "version must not be empty"));
    }
    for field in ["kind", "name", "uid"] {
        if text(owner, field).is_empty() {
            out.push(Error::invalid(&path.child(field), "", "must not be empty"));
        }
    }
    if (group, version, kind) == ("", "v1", "Event") {
        let detail = "/v1, Kind=Event is disallowed from being an owner";
        out.push(Error::invalid_shown(path, show_owner(owner), detail));
    }
}

/// An owner reference as Go's JSON has it.
fn show_owner(owner: &Value) -> String {
    let mut fields: Vec<String> = Vec::new();
    for field in ["apiVersion", "kind", "name", "uid"] {
        fields.push(format!("\"{field}\":{}", Value::from(text(owner, field))));
    }
    for field in ["controller", "blockOwnerDeletion"] {
        if let Some(value) = owner.get(field).filter(|v| !v.is_null()) {
            fields.push(format!("\"{field}\":{value}"));
        }
    }
    format!("{{{}}}", fields.join(","))
}

/// Finalizers.
pub fn finalizers(out: &mut Errors, finalizers: &[Value], path: &Path) {
    for finalizer in finalizers.iter().filter_map(Value::as_str) {
        push_all(out, path, finalizer, names::label_key(finalizer));
    }
    let has = |name: &str| finalizers.iter().any(|f| f == name);
    if has("orphan") && has("foregroundDeletion") {
        let detail = "finalizer orphan and foregroundDeletion cannot be both set";
        out.push(Error::invalid(path, finalizers.to_vec(), detail));
    }
}

/// The name of a field manager: at most 128 bytes, all printable.
pub fn field_manager(out: &mut Errors, manager: &str, path: &Path) {
    if manager.len() > 128 {
        out.push(Error::too_long(path, 128));
    }
    for (at, c) in manager.char_indices().filter(|(_, c)| c.is_control() || (c.is_whitespace() && *c != ' ')) {
        // Go's %#U: the code point, and the character itself if it can be printed, which this one can't.
        let detail = format!("invalid character U+{:04X} (at position {at})", u32::from(c));
        out.push(Error::invalid(path, manager, detail));
    }
}

fn managed_fields(out: &mut Errors, entries: &[Value], path: &Path) {
    for (i, entry) in entries.iter().enumerate() {
        let path = path.index(i);
        let operation = text(entry, "operation");
        if operation != "Apply" && operation != "Update" {
            out.push(Error::invalid(&path.child("operation"), operation, "must be `Apply` or `Update`"));
        }
        let kind = text(entry, "fieldsType");
        if !kind.is_empty() && kind != "FieldsV1" {
            out.push(Error::invalid(&path.child("fieldsType"), kind, "must be `FieldsV1`"));
        }
        field_manager(out, text(entry, "manager"), &path.child("manager"));
        if text(entry, "subresource").len() > 256 {
            out.push(Error::too_long(&path.child("subresource"), 256));
        }
    }
}

/// Tolerances of [`selector`].
#[derive(Clone, Copy, Debug, Default)]
pub struct SelectorOptions {
    /// Values that are no label values are let pass, as they were stored so.
    pub any_value: bool,
}

/// A label selector; null is none.
pub fn selector(out: &mut Errors, selector: &Value, options: SelectorOptions, path: &Path) {
    labels(out, map(selector, "matchLabels"), &path.child("matchLabels"));
    for (i, term) in list(selector, "matchExpressions").iter().enumerate() {
        let path = path.child("matchExpressions").index(i);
        let values = list(term, "values");
        match text(term, "operator") {
            "In" | "NotIn" if values.is_empty() => {
                let detail = "must be specified when `operator` is 'In' or 'NotIn'";
                out.push(Error::required(&path.child("values"), detail));
            }
            "Exists" | "DoesNotExist" if !values.is_empty() => {
                let detail = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
                out.push(Error::forbidden(&path.child("values"), detail));
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            other => out.push(Error::invalid(&path.child("operator"), other, "not a valid selector operator")),
        }
        label_key(out, text(term, "key"), &path.child("key"));
        if !options.any_value {
            for (i, value) in values.iter().enumerate() {
                let value = value.as_str().unwrap_or_default();
                push_all(out, &path.child("values").index(i), value, names::label_value(value));
            }
        }
    }
}

/// True when a selector has a value that is no label value: what was stored so may stay so.
pub fn selector_has_bad_value(selector: &Value) -> bool {
    let terms = list(selector, "matchExpressions").iter();
    terms.flat_map(|term| list(term, "values")).any(|v| !names::label_value(v.as_str().unwrap_or_default()).is_empty())
}

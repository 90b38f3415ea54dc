//! PersistentVolumeClaims.

use serde_json::json;

use super::volume::CLASS;
use crate::Value;
use crate::field::{Error, Errors, Path};
use crate::kinds::claim::{self, Options};
use crate::kinds::pod::{defaults, warnings};
use crate::kinds::view::{View, copy, fill, set, some_mut, structure, unset};
use crate::kinds::{compute, diff, halves, internal, rules};
use crate::meta::check::push_all;
use crate::meta::{self, check, names};
use crate::resources::{Context, Strategy};

/// PersistentVolumeClaims.
pub struct PersistentVolumeClaim;

impl Strategy for PersistentVolumeClaim {
    fn default(&self, object: &mut Value) {
        fill(structure(object, "status"), "phase", "Pending");
        defaults::claim_spec(structure(object, "spec"));
        let status = structure(object, "status");
        for field in ["capacity", "allocatedResources"] {
            some_mut(status, field).into_iter().for_each(defaults::resource_list);
        }
    }

    fn prepare_create(&self, _cx: &Context<'_>, new: &mut Value) {
        set(new, "status", json!({}));
        sources(structure(new, "spec"), &Value::Null);
    }

    fn prepare_update(&self, cx: &Context<'_>, new: &mut Value, old: &Value) {
        if cx.subresource == "status" {
            return copy(new, old, "spec");
        }
        copy(new, old, "status");
        sources(structure(new, "spec"), old.at("spec"));
    }

    fn validate_create(&self, _cx: &Context<'_>, new: &Value) -> Errors {
        let mut out = Errors::new();
        claim::spec(&mut out, new.at("spec"), Options::default(), &Path::new("spec"));
        out
    }

    fn validate_update(&self, cx: &Context<'_>, new: &Value, old: &Value) -> Errors {
        let mut out = Errors::new();
        if cx.subresource == "status" {
            status(&mut out, new);
            return out;
        }
        let (path, now, before) = (Path::new("spec"), new.at("spec"), old.at("spec"));
        out.extend(meta::validate(new, true, &names::dns_subdomain));
        check::kube_finalizers(&mut out, new);
        claim::spec(&mut out, now, options(before), &path);
        immutable_spec(&mut out, new, old);
        let size = |list: &Value| rules::quantity(list.at("storage"));
        let new_size = size(now.at("resources").at("requests"));
        if new_size < size(before.at("resources").at("requests")) && new_size <= size(old.at("status").at("capacity")) {
            let path = path.child("resources").child("requests").child("storage");
            out.push(Error::forbidden(&path, "field can not be less than status.capacity"));
        }
        check::immutable(&mut out, now.at("volumeMode"), before.at("volumeMode"), &Path::new("volumeMode"));
        attributes_class(&mut out, new, old, &path);
        out
    }

    fn warnings(&self, cx: &Context<'_>, new: &Value, _old: Option<&Value>) -> Vec<String> {
        let mut out = Vec::new();
        if cx.subresource == "status" {
            return out;
        }
        if new.at("metadata").at("annotations").has(CLASS) {
            let text = r#"deprecated since v1.8; use "storageClassName" attribute instead"#;
            out.push(format!("metadata.annotations[{CLASS}]: {text}"));
        }
        warnings::claim_spec(&mut out, new.at("spec"), &Path::new("spec"));
        out
    }

    fn reset_fields(&self, subresource: &str) -> &'static [&'static [&'static str]] {
        halves::reset(subresource)
    }
}

/// A source of data is said in two fields, of which each is filled from the other; sources in other namespaces are off,
/// and the older field takes claims and snapshots only.
fn sources(spec: &mut Value, old: &Value) {
    let foreign = !spec.at("dataSourceRef").text("namespace").is_empty();
    if foreign && !old.has("dataSourceRef") {
        unset(spec, "dataSourceRef");
    }
    let in_use = old.has("dataSource") || old.has("dataSourceRef");
    if !in_use && !spec.has("dataSourceRef") && !is_usual(spec.at("dataSource")) {
        unset(spec, "dataSource");
    }
    same_sources(spec);
}

fn same_sources(spec: &mut Value) {
    let (from, to) = match (spec.some("dataSource"), spec.some("dataSourceRef")) {
        (Some(source), None) => (source, "dataSourceRef"),
        (None, Some(reference)) if reference.text("namespace").is_empty() => (reference, "dataSource"),
        _ => return,
    };
    let mut source = json!({});
    for field in ["apiGroup", "kind", "name"] {
        copy(&mut source, from, field);
    }
    set(spec, to, source);
}

fn is_usual(source: &Value) -> bool {
    [("", "PersistentVolumeClaim"), ("snapshot.storage.k8s.io", "VolumeSnapshot")]
        .contains(&(source.text("apiGroup"), source.text("kind")))
}

/// What was stored once and may stay.
fn options(old: &Value) -> Options {
    let bad_group = |field: &str| {
        let group = old.at(field).text("apiGroup");
        !group.is_empty() && !names::subdomain(group).is_empty()
    };
    Options {
        any_selector_value: check::selector_has_bad_value(old.at("selector")),
        any_group: bad_group("dataSource") || bad_group("dataSourceRef"),
    }
}

/// The spec does not change but for the volume, once; a class said in another way; and what bound claims may ask for.
fn immutable_spec(out: &mut Errors, new: &Value, old: &Value) {
    let (mut now, mut before) = (new.at("spec").clone(), old.at("spec").clone());
    same_sources(&mut before);
    if before.text("volumeName").is_empty() {
        copy(&mut before, &now, "volumeName");
    }
    let annotation = |claim: &Value| claim.at("metadata").at("annotations").at(CLASS).as_str().map(str::to_string);
    let (annotated, annotated_before) = (annotation(new), annotation(old));
    let class = now.at("storageClassName").as_str();
    let newly_named = class.is_some() && !before.has("storageClassName");
    let as_annotated = annotated_before.is_some() && class == annotated_before.as_deref();
    if newly_named && as_annotated && (annotated.is_none() || annotated == annotated_before) {
        unset(&mut now, "storageClassName");
    } else {
        let value = annotated.unwrap_or_default();
        if value != annotated_before.clone().unwrap_or_default() {
            let path = Path::new("metadata").child("annotations").child(CLASS);
            out.push(Error::invalid(&path, value, "field is immutable"));
        }
        if newly_named && (annotated_before.is_none() || as_annotated) {
            copy(&mut now, &before, "storageClassName");
        }
    }
    if new.at("status").text("phase") == "Bound" {
        let requested = before.at("resources").at("requests");
        if let Some(requests) = now.get_mut("resources").and_then(|resources| some_mut(resources, "requests")) {
            copy(requests, requested, "storage");
        }
        copy(&mut now, &before, "volumeAttributesClassName");
    }
    if now != before {
        let lines = |spec: &Value| internal::show_lines("PersistentVolumeClaimSpec", spec);
        let diff = diff::unified(&lines(&before), &lines(&now));
        let detail = format!(
            "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound \
             claims\n{diff}"
        );
        out.push(Error::forbidden(&Path::new("spec"), detail));
    }
}

fn attributes_class(out: &mut Errors, new: &Value, old: &Value, path: &Path) {
    let field = "volumeAttributesClassName";
    let (now, before) = (new.at("spec").at(field), old.at("spec").at(field));
    if now == before || !old.at("status").has("currentVolumeAttributesClassName") {
        return;
    }
    let what = match now.as_str() {
        None => "nil",
        Some("") => "empty string",
        _ => return,
    };
    let detail = format!("update to {what} is forbidden when status.currentVolumeAttributesClassName is not nil");
    out.push(Error::forbidden(&path.child(field), detail));
}

/// What the kubelet and the resizer may say of a resource.
const RESIZES: &[&str] = &[
    "ControllerResizeInProgress",
    "ControllerResizeInfeasible",
    "NodeResizeInProgress",
    "NodeResizeInfeasible",
    "NodeResizePending",
];

fn status(out: &mut Errors, new: &Value) {
    if new.at("spec").items("accessModes").is_empty() {
        out.push(Error::required(&Path::new("Spec").child("accessModes"), ""));
    }
    let (status, path) = (new.at("status"), Path::new("status"));
    for (name, value) in status.entries("capacity") {
        compute::basic_quantity(out, value, &path.child("capacity").key(name));
    }
    let resizes = path.child("allocatedResourceStatuses");
    for (name, value) in status.pairs("allocatedResourceStatuses") {
        resource_key(out, name, &resizes);
        if !RESIZES.contains(&value) {
            let mut allowed = RESIZES.to_vec();
            allowed.sort_unstable();
            out.push(Error::not_supported(&resizes, name, &allowed));
        }
    }
    let allocated = path.child("allocatedResources");
    for (name, value) in status.entries("allocatedResources") {
        if !resource_key(out, name, &allocated) {
            continue;
        }
        let path = allocated.key(name);
        if compute::basic_quantity(out, value, &path) {
            compute::resource_quantity(out, "storage", value, &path);
        }
    }
}

/// The name of a resource of a claim: storage, or somebody else's; false when it is none.
fn resource_key(out: &mut Errors, name: &str, path: &Path) -> bool {
    let wrong = names::label_key(name);
    if !wrong.is_empty() {
        push_all(out, path, name, wrong);
        return false;
    }
    let foreign = !compute::is_native(name);
    if !foreign && name != "storage" {
        out.push(Error::not_supported(path, name, &["storage"]));
    }
    foreign || name == "storage"
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const CX: Context<'static> = Context {
        namespace: "a",
        subresource: "",
        now: 0,
        user: crate::resources::Requester { name: "", uid: "", groups: &[], extra: None },
    };

    fn claim(spec: Value, phase: &str) -> Value {
        let mut claim = json!({"metadata": {"name": "a", "namespace": "a", "resourceVersion": "1"},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
            "status": {"phase": phase, "capacity": {"storage": "1Gi"}}});
        for (field, value) in spec.as_object().into_iter().flatten() {
            claim["spec"][field] = value.clone();
        }
        claim
    }

    #[test]
    fn bound_claims_may_grow() {
        let bigger = json!({"resources": {"requests": {"storage": "2Gi"}}});
        let (old, new) = (claim(json!({}), "Bound"), claim(bigger.clone(), "Bound"));
        assert!(PersistentVolumeClaim.validate_update(&CX, &new, &old).is_empty());
        let (old, new) = (claim(json!({}), "Pending"), claim(bigger, "Pending"));
        assert!(!PersistentVolumeClaim.validate_update(&CX, &new, &old).is_empty());
    }

    #[test]
    fn sources_are_said_in_both_fields() {
        let mut spec = json!({"dataSource": {"kind": "PersistentVolumeClaim", "name": "b"}});
        sources(&mut spec, &Value::Null);
        assert_eq!(spec["dataSourceRef"], json!({"kind": "PersistentVolumeClaim", "name": "b"}));
        let mut spec = json!({"dataSource": {"kind": "Thing", "name": "b"}});
        sources(&mut spec, &Value::Null);
        assert_eq!(spec, json!({}));
    }
}

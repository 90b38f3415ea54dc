//! ReplicaSets and ReplicationControllers.

use crate::Value;
use crate::field::{Error, Errors};
use crate::kinds::halves;
use crate::kinds::pod::{self, defaults};
use crate::kinds::rules;
use crate::kinds::view::{View, fill_pointer, set, structure};
use crate::kinds::workload::{self, spec_path};
use crate::resources::{Context, Propagation, Strategy};
use crate::selector::LabelSelector;

const COUNTS: &[&str] = &[
    "replicas",
    "fullyLabeledReplicas",
    "readyReplicas",
    "availableReplicas",
    "observedGeneration",
    "terminatingReplicas",
];
const BOUNDS: &[(&str, &str, &str)] = &[
    ("fullyLabeledReplicas", "replicas", "status.replicas"),
    ("readyReplicas", "replicas", "status.replicas"),
    ("availableReplicas", "replicas", "status.replicas"),
    ("availableReplicas", "readyReplicas", "readyReplicas"),
];

fn warnings(cx: &Context<'_>, new: &Value, old: Option<&Value>) -> Vec<String> {
    let look = cx.subresource != "status" && old.is_none_or(|old| workload::generation_grew(new, old));
    let (template, path) = (new.at("spec").at("template"), spec_path().child("template"));
    if look { workload::warnings(new, template, old.is_none(), &path) } else { Vec::new() }
}

fn selectable(object: &Value, field: &str) -> String {
    match field {
        "status.replicas" => object.at("status").number("replicas").to_string(),
        _ => String::new(),
    }
}

/// ReplicaSets.
pub struct ReplicaSet;

impl Strategy for ReplicaSet {
    fn default(&self, object: &mut Value) {
        let spec = structure(object, "spec");
        fill_pointer(spec, "replicas", 1);
        defaults::template(structure(spec, "template"));
    }

    fn prepare_create(&self, _cx: &Context<'_>, new: &mut Value) {
        workload::create(new);
    }

    fn prepare_update(&self, cx: &Context<'_>, new: &mut Value, old: &Value) {
        workload::update(cx, new, old);
    }

    fn validate_create(&self, _cx: &Context<'_>, new: &Value) -> Errors {
        let mut out = Errors::new();
        replica_set(&mut out, new, None);
        out
    }

    fn validate_update(&self, cx: &Context<'_>, new: &Value, old: &Value) -> Errors {
        let mut out = Errors::new();
        if cx.subresource == "status" {
            workload::counts(&mut out, new.at("status"), COUNTS, BOUNDS);
        } else {
            replica_set(&mut out, new, Some(old));
            let path = spec_path().child("selector");
            workload::same_selector(&mut out, new.at("spec"), old.at("spec"), &path);
        }
        out
    }

    fn warnings(&self, cx: &Context<'_>, new: &Value, old: Option<&Value>) -> Vec<String> {
        warnings(cx, new, old)
    }

    fn selectable(&self, object: &Value, field: &str) -> String {
        selectable(object, field)
    }

    fn has_generation(&self) -> bool {
        true
    }

    fn reset_fields(&self, subresource: &str) -> &'static [&'static [&'static str]] {
        halves::reset(subresource)
    }
}

fn replica_set(out: &mut Errors, new: &Value, old: Option<&Value>) {
    let spec = new.at("spec");
    rules::not_negative_fields(out, spec, &["replicas", "minReadySeconds"], &spec_path());
    workload::selector_and_template(out, spec, &workload::options(old));
}

/// ReplicationControllers.
pub struct ReplicationController;

impl Strategy for ReplicationController {
    fn default(&self, object: &mut Value) {
        let spec = structure(object, "spec");
        fill_pointer(spec, "replicas", 1);
        if let Some(template) = spec.get_mut("template").filter(|t| !t.is_null()) {
            defaults::template(template);
        }
        let labels = spec.at("template").at("metadata").at("labels").clone();
        if labels.is_null() {
            return;
        }
        if spec.entries("selector").next().is_none() {
            set(spec, "selector", labels.clone());
        }
        if object.at("metadata").entries("labels").next().is_none() {
            set(structure(object, "metadata"), "labels", labels);
        }
    }

    fn prepare_create(&self, _cx: &Context<'_>, new: &mut Value) {
        workload::create(new);
    }

    fn prepare_update(&self, cx: &Context<'_>, new: &mut Value, old: &Value) {
        workload::update(cx, new, old);
    }

    fn validate_create(&self, _cx: &Context<'_>, new: &Value) -> Errors {
        let mut out = Errors::new();
        controller(&mut out, new, None);
        out
    }

    fn validate_update(&self, cx: &Context<'_>, new: &Value, old: &Value) -> Errors {
        let mut out = Errors::new();
        if cx.subresource == "status" {
            workload::counts(&mut out, new.at("status"), &COUNTS[..5], BOUNDS);
        } else {
            controller(&mut out, new, Some(old));
        }
        out
    }

    fn warnings(&self, cx: &Context<'_>, new: &Value, old: Option<&Value>) -> Vec<String> {
        warnings(cx, new, old)
    }

    fn selectable(&self, object: &Value, field: &str) -> String {
        selectable(object, field)
    }

    fn has_generation(&self) -> bool {
        true
    }

    fn reset_fields(&self, subresource: &str) -> &'static [&'static [&'static str]] {
        halves::reset(subresource)
    }

    fn default_propagation(&self) -> Propagation {
        Propagation::Orphan
    }
}

fn controller(out: &mut Errors, new: &Value, old: Option<&Value>) {
    let (spec, path) = (new.at("spec"), spec_path());
    rules::not_negative_fields(out, spec, &["minReadySeconds"], &path);
    if spec.entries("selector").next().is_none() {
        out.push(Error::required(&path.child("selector"), ""));
    }
    match spec.int("replicas") {
        None => out.push(Error::required(&path.child("replicas"), "")),
        Some(count) => rules::not_negative(out, count, &path.child("replicas")),
    }
    let (template, path) = (spec.at("template"), path.child("template"));
    if template.is_null() {
        return out.push(Error::required(&path, ""));
    }
    let labels = template.at("metadata").at("labels");
    if !LabelSelector::from_map(spec.at("selector")).matches(labels) {
        workload::not_selected(out, labels, &path);
    }
    pod::spec::template(out, template, &workload::options(old), &path);
    workload::runs_for_ever(out, template, "ReplicationController", &path);
}

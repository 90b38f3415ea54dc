//! What an autoscaler measures.

use crate::Value;
use crate::field::{Error, Errors, Path};
use crate::kinds::view::View;
use crate::kinds::{compute, rules};
use crate::meta::check::push_all;
use crate::meta::names;

/// The sources a metric may have, in the order in which upstream looks at them: type and field.
const SOURCES: [(&str, &str); 5] = [
    ("Object", "object"),
    ("External", "external"),
    ("Pods", "pods"),
    ("Resource", "resource"),
    ("ContainerResource", "containerResource"),
];
const TYPES: [&str; 5] = ["ContainerResource", "External", "Object", "Pods", "Resource"];

/// What the `apiVersion` of a reference may be.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum VersionRule {
    /// It is not looked at.
    Any,
    /// Well formed; the core group is one, too.
    AnyGroup,
    /// Well formed, and of a group with a name.
    NamedGroup,
}

impl VersionRule {
    fn wrong(self, api_version: &str) -> Option<String> {
        if self == VersionRule::Any {
            return None;
        }
        match api_version.matches('/').count() {
            0 if self == VersionRule::NamedGroup => Some("apiVersion must specify API group".into()),
            0 | 1 => None,
            _ => Some(format!("unexpected GroupVersion string: {api_version}")),
        }
    }
}

/// A reference to an object of any kind.
pub(super) fn reference(out: &mut Errors, reference: &Value, rule: VersionRule, path: &Path) {
    rules::path_segment(out, reference, "kind", path);
    rules::path_segment(out, reference, "name", path);
    let version = reference.text("apiVersion");
    if let Some(wrong) = rule.wrong(version) {
        out.push(Error::invalid(&path.child("apiVersion"), version, wrong));
    }
}

/// All metrics of a spec.
pub(super) fn all(out: &mut Errors, spec: &Value, old: &Value, path: &Path) {
    let metrics = spec.items("metrics");
    let bad = |metric: &Value| {
        let described = metric.at("object").at("describedObject");
        metric.has("object") && VersionRule::AnyGroup.wrong(described.text("apiVersion")).is_some()
    };
    let rule = if old.items("metrics").iter().any(bad) { VersionRule::Any } else { VersionRule::AnyGroup };
    for (i, metric) in metrics.iter().enumerate() {
        one(out, metric, rule, &path.index(i));
    }
    let outside = |metric: &Value| ["Object", "External"].contains(&metric.text("type"));
    if spec.int("minReplicas") == Some(0) && !metrics.iter().any(outside) {
        let detail = "must specify at least one Object or External metric to support scaling to zero replicas";
        out.push(Error::forbidden(path, detail));
    }
}

fn one(out: &mut Errors, metric: &Value, rule: VersionRule, path: &Path) {
    let kind = metric.text("type");
    if kind.is_empty() {
        out.push(Error::required(&path.child("type"), "must specify a metric source type"));
    }
    rules::supported(out, kind, &TYPES, &path.child("type"));
    let present: Vec<&str> = SOURCES.iter().map(|(_, field)| *field).filter(|field| metric.has(field)).collect();
    if let Some(field) = present.first() {
        source(out, field, metric.at(field), rule, &path.child(field));
    }
    let expected = SOURCES.iter().find(|(name, _)| *name == kind).map(|(_, field)| *field);
    match expected {
        Some(field) if !metric.has(field) => {
            out.push(Error::required(&path.child(field), "must populate information for the given metric source"));
        }
        Some(_) => {}
        None => rules::supported(out, kind, &TYPES, &path.child("type")),
    }
    if present.len() != 1 {
        for field in present.iter().filter(|field| Some(**field) != expected) {
            out.push(Error::forbidden(&path.child(field), "must populate the given metric source only"));
        }
    }
}

fn source(out: &mut Errors, field: &str, source: &Value, rule: VersionRule, path: &Path) {
    let (aim, aim_path) = (source.at("target"), path.child("target"));
    let has = |field: &str| aim.has(field);
    match field {
        "object" => reference(out, source.at("describedObject"), rule, &path.child("describedObject")),
        "resource" | "containerResource" => resource(out, field, source, path),
        _ => {}
    }
    if ["object", "external", "pods"].contains(&field) {
        let (name, path) = (source.at("metric").text("name"), path.child("metric").child("name"));
        match name {
            "" => out.push(Error::required(&path, "must specify a metric name")),
            name => push_all(out, &path, name, names::path_segment(name, false)),
        }
    }
    target(out, aim, &aim_path);
    let average = aim_path.child("averageValue");
    match field {
        "object" if !has("value") && !has("averageValue") => {
            out.push(Error::required(&average, "must set either a target value or averageValue"));
        }
        "external" if !has("value") && !has("averageValue") => {
            out.push(Error::required(&average, "must set either a target value for metric or a per-pod target"));
        }
        "external" if has("value") && has("averageValue") => {
            let detail = "may not set both a target value for metric and a per-pod target";
            out.push(Error::forbidden(&aim_path.child("value"), detail));
        }
        "pods" if !has("averageValue") => {
            out.push(Error::required(&average, "must specify a positive target averageValue"));
        }
        "resource" | "containerResource" if !has("averageUtilization") && !has("averageValue") => {
            let detail = "must set either a target raw value or a target utilization";
            out.push(Error::required(&aim_path.child("averageUtilization"), detail));
        }
        "resource" | "containerResource" if has("averageUtilization") && has("averageValue") => {
            out.push(Error::forbidden(&average, "may not set both a target raw value and a target utilization"));
        }
        _ => {}
    }
}

fn resource(out: &mut Errors, field: &str, source: &Value, path: &Path) {
    let (name, container) = (source.text("name"), source.text("container"));
    if name.is_empty() {
        out.push(Error::required(&path.child("name"), "must specify a resource name"));
    }
    if field == "resource" {
        return;
    }
    if !name.is_empty() {
        compute::container_resource_name(out, name, &path.child("name"));
    }
    match container {
        "" => out.push(Error::required(&path.child("container"), "must specify a container")),
        name => rules::dns_label(out, name, &path.child("container")),
    }
}

fn target(out: &mut Errors, target: &Value, path: &Path) {
    let (kind, kind_path) = (target.text("type"), path.child("type"));
    if kind.is_empty() {
        out.push(Error::required(&kind_path, "must specify a metric target type"));
    }
    if !["Utilization", "Value", "AverageValue"].contains(&kind) {
        out.push(Error::invalid(&kind_path, kind, "must be either Utilization, Value, or AverageValue"));
    }
    for field in ["value", "averageValue"] {
        if let Some(value) = target.some(field) {
            let quantity = rules::quantity(value);
            if quantity.sign() != 1 {
                out.push(Error::invalid(&path.child(field), quantity.to_string(), "must be positive"));
            }
        }
    }
    if let Some(percent) = target.int("averageUtilization").filter(|percent| *percent < 1) {
        out.push(Error::invalid(&path.child("averageUtilization"), percent, "must be greater than 0"));
    }
}

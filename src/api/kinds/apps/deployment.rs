//! Deployments.

use crate::Value;
use crate::field::{Error, Errors, Path};
use crate::kinds::pod::defaults;
use crate::kinds::view::{View, copy, fill, fill_pointer, structure};
use crate::kinds::workload::{self, amount, spec_path};
use crate::kinds::{internal, rules};
use crate::resources::{Context, Strategy};

/// Deployments.
pub struct Deployment;

impl Strategy for Deployment {
    fn default(&self, object: &mut Value) {
        let spec = structure(object, "spec");
        fill_pointer(spec, "replicas", 1);
        let strategy = structure(spec, "strategy");
        fill(strategy, "type", "RollingUpdate");
        if strategy.text("type") == "RollingUpdate" {
            let rolling = structure(strategy, "rollingUpdate");
            fill_pointer(rolling, "maxUnavailable", "25%");
            fill_pointer(rolling, "maxSurge", "25%");
        }
        fill_pointer(spec, "revisionHistoryLimit", 10);
        fill_pointer(spec, "progressDeadlineSeconds", 600);
        defaults::template(structure(spec, "template"));
    }

    fn prepare_create(&self, _cx: &Context<'_>, new: &mut Value) {
        workload::create(new);
    }

    fn prepare_update(&self, cx: &Context<'_>, new: &mut Value, old: &Value) {
        workload::update(cx, new, old);
        if cx.subresource == "status" {
            copy(&mut new["metadata"], old.at("metadata"), "labels");
        }
    }

    fn validate_create(&self, _cx: &Context<'_>, new: &Value) -> Errors {
        let mut out = Errors::new();
        spec(&mut out, new, None);
        out
    }

    fn validate_update(&self, cx: &Context<'_>, new: &Value, old: &Value) -> Errors {
        let mut out = Errors::new();
        if cx.subresource == "status" {
            status(&mut out, new.at("status"), old.at("status"));
        } else {
            spec(&mut out, new, Some(old));
            let path = spec_path().child("selector");
            workload::same_selector(&mut out, new.at("spec"), old.at("spec"), &path);
        }
        out
    }

    fn warnings(&self, cx: &Context<'_>, new: &Value, old: Option<&Value>) -> Vec<String> {
        let look = cx.subresource != "status" && old.is_none_or(|old| workload::generation_grew(new, old));
        let template = new.at("spec").at("template");
        let path = spec_path().child("template");
        if look { workload::warnings(new, template, old.is_none(), &path) } else { Vec::new() }
    }

    fn has_generation(&self) -> bool {
        true
    }

    /// Annotations count as well: they go to the ReplicaSets.
    fn changes_generation(&self, new: &Value, old: &Value) -> bool {
        new.at("spec") != old.at("spec") || annotations(new) != annotations(old)
    }

    fn reset_fields(&self, subresource: &str) -> &'static [&'static [&'static str]] {
        match subresource {
            "" => &[&["status"]],
            "status" => &[&["spec"], &["metadata", "labels"]],
            _ => &[],
        }
    }
}

fn annotations(object: &Value) -> Vec<(&str, &str)> {
    object.at("metadata").pairs("annotations").collect()
}

fn spec(out: &mut Errors, new: &Value, old: Option<&Value>) {
    let (spec, path) = (new.at("spec"), spec_path());
    rules::not_negative_fields(out, spec, &["replicas"], &path);
    workload::selector_and_template(out, spec, &workload::options(old));
    strategy(out, spec.at("strategy"), &path.child("strategy"));
    rules::not_negative_fields(out, spec, &["minReadySeconds", "revisionHistoryLimit"], &path);
    if let Some(deadline) = spec.int("progressDeadlineSeconds") {
        let path = path.child("progressDeadlineSeconds");
        rules::not_negative(out, deadline, &path);
        if deadline <= spec.number("minReadySeconds") {
            out.push(Error::invalid(&path, deadline, "must be greater than minReadySeconds"));
        }
    }
}

fn strategy(out: &mut Errors, strategy: &Value, path: &Path) {
    let (rolling, rolling_path) = (strategy.at("rollingUpdate"), path.child("rollingUpdate"));
    match strategy.text("type") {
        "Recreate" if !rolling.is_null() => {
            out.push(Error::forbidden(&rolling_path, "may not be specified when strategy `type` is 'Recreate'"));
        }
        "Recreate" => {}
        "RollingUpdate" if rolling.is_null() => {
            out.push(Error::required(&rolling_path, "this should be defaulted and never be nil"));
        }
        "RollingUpdate" => rolling_update(out, rolling, &rolling_path),
        _ => {
            let error = Error::not_supported(path, "", &["Recreate", "RollingUpdate"]);
            out.push(Error { value: Some(internal::show("DeploymentStrategy", strategy)), ..error });
        }
    }
}

fn rolling_update(out: &mut Errors, rolling: &Value, path: &Path) {
    let (unavailable, surge) = (rolling.at("maxUnavailable"), rolling.at("maxSurge"));
    let unavailable_path = path.child("maxUnavailable");
    workload::number_or_percent(out, unavailable, &unavailable_path);
    workload::number_or_percent(out, surge, &path.child("maxSurge"));
    if amount(unavailable) == 0 && amount(surge) == 0 {
        let detail = "may not be 0 when `maxSurge` is 0";
        out.push(Error::invalid(&unavailable_path, unavailable.clone(), detail));
    }
    workload::at_most_100_percent(out, unavailable, &unavailable_path);
}

fn status(out: &mut Errors, new: &Value, old: &Value) {
    const FIELDS: &[&str] = &[
        "observedGeneration",
        "replicas",
        "updatedReplicas",
        "readyReplicas",
        "availableReplicas",
        "unavailableReplicas",
        "terminatingReplicas",
        "collisionCount",
    ];
    const BOUNDS: &[(&str, &str, &str)] = &[
        ("updatedReplicas", "replicas", "status.replicas"),
        ("readyReplicas", "replicas", "status.replicas"),
        ("availableReplicas", "replicas", "status.replicas"),
        ("availableReplicas", "readyReplicas", "readyReplicas"),
    ];
    workload::counts(out, new, FIELDS, BOUNDS);
    workload::grows(out, new, old, "collisionCount");
}

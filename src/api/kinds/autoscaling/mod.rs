//! HorizontalPodAutoscalers, stored as v2.

mod convert;
mod metrics;

use serde_json::json;

use crate::Value;
use crate::field::{Error, Errors, Path};
use crate::kinds::view::{View, fill_pointer, is_zero, set, some_mut, structure};
use crate::kinds::{halves, rules};
use crate::resources::{Context, Strategy};
use crate::status::Status;

/// Longest period of a scaling policy, and longest window of stabilization, in seconds.
const MAX_PERIOD: i64 = 1800;
const MAX_WINDOW: i64 = 3600;

/// HorizontalPodAutoscalers.
pub struct HorizontalPodAutoscaler;

impl Strategy for HorizontalPodAutoscaler {
    fn default(&self, object: &mut Value) {
        let spec = structure(object, "spec");
        fill_pointer(spec, "minReplicas", 1);
        if is_zero(spec.at("metrics")) {
            set(spec, "metrics", json!([convert::cpu_metric(convert::DEFAULT_UTILIZATION)]));
        }
        let Some(behavior) = some_mut(spec, "behavior") else { return };
        let percent = json!({"type": "Percent", "value": 100, "periodSeconds": 15});
        let pods = json!({"type": "Pods", "value": 4, "periodSeconds": 15});
        let up = structure(behavior, "scaleUp");
        fill_pointer(up, "stabilizationWindowSeconds", 0);
        fill_pointer(up, "selectPolicy", "Max");
        fill_pointer(up, "policies", json!([pods, percent]));
        let down = structure(behavior, "scaleDown");
        fill_pointer(down, "selectPolicy", "Max");
        fill_pointer(down, "policies", json!([percent]));
    }

    fn prepare_create(&self, _cx: &Context<'_>, new: &mut Value) {
        set(new, "status", json!({"desiredReplicas": 0, "currentMetrics": null}));
    }

    fn prepare_update(&self, cx: &Context<'_>, new: &mut Value, old: &Value) {
        halves::split(cx, new, old);
    }

    fn validate_create(&self, _cx: &Context<'_>, new: &Value) -> Errors {
        let mut out = Errors::new();
        spec(&mut out, new.at("spec"), &Value::Null);
        out
    }

    fn validate_update(&self, cx: &Context<'_>, new: &Value, old: &Value) -> Errors {
        let mut out = Errors::new();
        if cx.subresource == "status" {
            let fields = ["currentReplicas", "desiredReplicas"];
            rules::not_negative_fields(&mut out, new.at("status"), &fields, &Path::new("status"));
        } else {
            spec(&mut out, new.at("spec"), old.at("spec"));
        }
        out
    }

    fn reset_fields(&self, subresource: &str) -> &'static [&'static [&'static str]] {
        halves::reset(subresource)
    }

    fn convert(&self, object: &mut Value, _group: &str, to: &str) -> Result<(), Status> {
        if to == "v1" {
            convert::to_v1(object);
        } else if object.text("apiVersion") == "autoscaling/v1" {
            convert::from_v1(object);
        }
        convert::drop_annotations(object, to);
        set(object, "apiVersion", format!("autoscaling/{to}"));
        Ok(())
    }
}

fn spec(out: &mut Errors, spec: &Value, old: &Value) {
    let path = Path::new("spec");
    let (least, most, most_path) = (spec.int("minReplicas"), spec.number("maxReplicas"), path.child("maxReplicas"));
    let bound = if old.int("minReplicas") == Some(0) { 0 } else { 1 };
    if let Some(least) = least.filter(|least| *least < bound) {
        let detail = format!("must be greater than or equal to {bound}");
        out.push(Error::invalid(&path.child("minReplicas"), least, detail));
    }
    if most == 0 {
        out.push(Error::required(&most_path, "must be set and greater than 0"));
    } else if most < 0 {
        out.push(Error::invalid(&most_path, most, "must be greater than or equal to 1"));
    }
    if least.is_some_and(|least| most < least) {
        out.push(Error::invalid(&most_path, most, "must be greater than or equal to `minReplicas`"));
    }
    let (target, before) = (spec.at("scaleTargetRef"), old.at("scaleTargetRef"));
    let same = ["apiVersion", "kind"].iter().all(|field| target.text(field) == before.text(field));
    let version = if !old.is_null() && same {
        metrics::VersionRule::Any
    } else if target.text("kind") == "ReplicationController" {
        metrics::VersionRule::AnyGroup
    } else {
        metrics::VersionRule::NamedGroup
    };
    metrics::reference(out, target, version, &path.child("scaleTargetRef"));
    metrics::all(out, spec, old, &path.child("metrics"));
    for field in ["scaleUp", "scaleDown"] {
        if let Some(rules) = spec.at("behavior").some(field) {
            scaling_rules(out, rules, &path.child("behavior").child(field));
        }
    }
}

fn scaling_rules(out: &mut Errors, scaling: &Value, path: &Path) {
    let window = path.child("stabilizationWindowSeconds");
    match scaling.int("stabilizationWindowSeconds") {
        Some(seconds) if seconds < 0 => {
            out.push(Error::invalid(&window, seconds, "must be greater than or equal to zero"));
        }
        Some(seconds) if seconds > MAX_WINDOW => {
            out.push(Error::invalid(&window, seconds, format!("must be less than or equal to {MAX_WINDOW}")));
        }
        _ => {}
    }
    rules::supported_if_set(out, scaling, "selectPolicy", &["Disabled", "Max", "Min"], path);
    let policies = path.child("policies");
    if scaling.items("policies").is_empty() {
        out.push(Error::required(&policies, "must specify at least one Policy"));
    }
    for (i, policy) in scaling.items("policies").iter().enumerate() {
        let path = policies.index(i);
        rules::supported(out, policy.text("type"), &["Percent", "Pods"], &path.child("type"));
        rules::positive(out, policy.number("value"), &path.child("value"));
        let period = policy.number("periodSeconds");
        rules::positive(out, period, &path.child("periodSeconds"));
        if period > MAX_PERIOD {
            let detail = format!("must be less than or equal to {MAX_PERIOD}");
            out.push(Error::invalid(&path.child("periodSeconds"), period, detail));
        }
    }
    if let Some(tolerance) = scaling.some("tolerance") {
        rules::not_negative_quantity(out, tolerance, &path.child("tolerance"));
    }
}

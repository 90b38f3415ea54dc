//! PodDisruptionBudgets.

use serde_json::json;

use crate::Value;
use crate::field::{Error, Errors, Path};
use crate::kinds::view::{View, set};
use crate::kinds::{halves, internal, rules, workload};
use crate::meta::check::{self, SelectorOptions};
use crate::resources::{Context, Strategy};

/// PodDisruptionBudgets.
pub struct PodDisruptionBudget;

impl Strategy for PodDisruptionBudget {
    fn prepare_create(&self, _cx: &Context<'_>, new: &mut Value) {
        set(
            new,
            "status",
            json!({"disruptionsAllowed": 0, "currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0}),
        );
    }

    fn prepare_update(&self, cx: &Context<'_>, new: &mut Value, old: &Value) {
        halves::split(cx, new, old);
    }

    fn checks_meta(&self, _update: bool) -> bool {
        false
    }

    fn validate_create(&self, _cx: &Context<'_>, new: &Value) -> Errors {
        let mut out = Errors::new();
        spec(&mut out, new.at("spec"), false);
        out
    }

    fn validate_update(&self, cx: &Context<'_>, new: &Value, old: &Value) -> Errors {
        let mut out = Errors::new();
        if cx.subresource == "status" {
            let (status, path) = (new.at("status"), Path::new("status"));
            rules::conditions(&mut out, status.items("conditions"), &path.child("conditions"));
            let fields = ["disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods"];
            rules::not_negative_fields(&mut out, status, &fields, &path);
        } else {
            spec(&mut out, new.at("spec"), check::selector_has_bad_value(old.at("spec").at("selector")));
        }
        out
    }

    fn has_generation(&self) -> bool {
        true
    }

    fn reset_fields(&self, subresource: &str) -> &'static [&'static [&'static str]] {
        halves::reset(subresource)
    }
}

fn spec(out: &mut Errors, spec: &Value, any_value: bool) {
    let path = Path::new("spec");
    let amounts = ["minAvailable", "maxUnavailable"];
    if amounts.iter().all(|field| spec.has(field)) {
        let shown = internal::show("PodDisruptionBudgetSpec", spec);
        out.push(Error::invalid_shown(&path, shown, "minAvailable and maxUnavailable cannot be both set"));
    }
    for field in amounts {
        if let Some(amount) = spec.some(field) {
            workload::number_or_percent(out, amount, &path.child(field));
            workload::at_most_100_percent(out, amount, &path.child(field));
        }
    }
    check::selector(out, spec.at("selector"), SelectorOptions { any_value }, &path.child("selector"));
    rules::supported_if_set(out, spec, "unhealthyPodEvictionPolicy", &["AlwaysAllow", "IfHealthyBudget"], &path);
}

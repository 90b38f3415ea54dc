//! DaemonSets.

use crate::Value;
use crate::field::{Error, Errors, Path};
use crate::kinds::pod::{self, defaults};
use crate::kinds::view::{View, fill, fill_pointer, set, structure};
use crate::kinds::workload::{self, amount, spec_path};
use crate::kinds::{halves, internal, rules};
use crate::meta::check;
use crate::resources::{Context, Strategy};
use crate::selector::LabelSelector;

/// Counts the changes of the template; a field of retired versions that lives on as an annotation.
const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

/// DaemonSets.
pub struct DaemonSet;

impl Strategy for DaemonSet {
    fn default(&self, object: &mut Value) {
        let spec = structure(object, "spec");
        let strategy = structure(spec, "updateStrategy");
        fill(strategy, "type", "RollingUpdate");
        if strategy.text("type") == "RollingUpdate" {
            let rolling = structure(strategy, "rollingUpdate");
            fill_pointer(rolling, "maxUnavailable", 1);
            fill_pointer(rolling, "maxSurge", 0);
        }
        fill_pointer(spec, "revisionHistoryLimit", 10);
        defaults::template(structure(spec, "template"));
        // The served form always has the annotation.
        let annotations = structure(structure(object, "metadata"), "annotations");
        fill_pointer(annotations, TEMPLATE_GENERATION, "0");
    }

    fn prepare_create(&self, _cx: &Context<'_>, new: &mut Value) {
        workload::create(new);
        set_generation(new, generation(new).max(1));
    }

    fn prepare_update(&self, cx: &Context<'_>, new: &mut Value, old: &Value) {
        workload::update(cx, new, old);
        let changed = new.at("spec").at("template") != old.at("spec").at("template");
        set_generation(new, generation(old) + i64::from(changed));
    }

    fn validate_create(&self, _cx: &Context<'_>, new: &Value) -> Errors {
        let mut out = Errors::new();
        spec(&mut out, new, None);
        out
    }

    fn validate_update(&self, cx: &Context<'_>, new: &Value, old: &Value) -> Errors {
        let mut out = Errors::new();
        if cx.subresource == "status" {
            workload::counts(&mut out, new.at("status"), COUNTS, &[]);
            workload::grows(&mut out, new.at("status"), old.at("status"), "collisionCount");
        } else {
            let path = spec_path().child("selector");
            workload::same_selector(&mut out, new.at("spec"), old.at("spec"), &path);
            spec(&mut out, new, Some(old));
        }
        out
    }

    fn warnings(&self, cx: &Context<'_>, new: &Value, old: Option<&Value>) -> Vec<String> {
        let template = new.at("spec").at("template");
        let look = cx.subresource != "status" && old.is_none_or(|old| old.at("spec").at("template") != template);
        if look { pod::warnings::template(template, &spec_path().child("template")) } else { Vec::new() }
    }

    fn has_generation(&self) -> bool {
        true
    }

    fn reset_fields(&self, subresource: &str) -> &'static [&'static [&'static str]] {
        halves::reset(subresource)
    }
}

const COUNTS: &[&str] = &[
    "currentNumberScheduled",
    "numberMisscheduled",
    "desiredNumberScheduled",
    "numberReady",
    "observedGeneration",
    "updatedNumberScheduled",
    "numberAvailable",
    "numberUnavailable",
    "collisionCount",
];

fn generation(object: &Value) -> i64 {
    object.at("metadata").at("annotations").text(TEMPLATE_GENERATION).parse().unwrap_or(0)
}

fn set_generation(object: &mut Value, generation: i64) {
    let annotations = structure(structure(object, "metadata"), "annotations");
    set(annotations, TEMPLATE_GENERATION, generation.to_string());
}

fn spec(out: &mut Errors, new: &Value, old: Option<&Value>) {
    let (spec, path) = (new.at("spec"), spec_path());
    let options = workload::options(old);
    let any_value = options.any_selector_value
        || old.is_some_and(|old| check::selector_has_bad_value(old.at("spec").at("selector")));
    let (selector, selector_path) = (spec.at("selector"), path.child("selector"));
    let (template, template_path) = (spec.at("template"), path.child("template"));
    check::selector(out, selector, check::SelectorOptions { any_value }, &selector_path);
    let labels = template.at("metadata").at("labels");
    if LabelSelector::from_object(selector).is_ok_and(|selector| !selector.matches(labels)) {
        workload::not_selected(out, labels, &template_path);
    }
    workload::selects_something(out, selector, "daemonset", &selector_path);
    pod::spec::template(out, template, &options, &template_path);
    workload::runs_for_ever(out, template, "DaemonSet", &template_path);
    rules::not_negative_fields(out, spec, &["minReadySeconds"], &path);
    strategy(out, spec.at("updateStrategy"), &path.child("updateStrategy"));
    rules::not_negative_fields(out, spec, &["revisionHistoryLimit"], &path);
}

fn strategy(out: &mut Errors, strategy: &Value, path: &Path) {
    let (rolling, rolling_path) = (strategy.at("rollingUpdate"), path.child("rollingUpdate"));
    match strategy.text("type") {
        "OnDelete" => {}
        "RollingUpdate" if rolling.is_null() => out.push(Error::required(&rolling_path, "")),
        "RollingUpdate" => rolling_update(out, rolling, &rolling_path),
        _ => {
            let error = Error::not_supported(path, "", &["RollingUpdate", "OnDelete"]);
            out.push(Error { value: Some(internal::show("DaemonSetUpdateStrategy", strategy)), ..error });
        }
    }
}

fn rolling_update(out: &mut Errors, rolling: &Value, path: &Path) {
    let fields = ["maxUnavailable", "maxSurge"];
    for field in fields {
        workload::number_or_percent(out, rolling.at(field), &path.child(field));
    }
    for field in fields {
        workload::at_most_100_percent(out, rolling.at(field), &path.child(field));
    }
    match fields.map(|field| amount(rolling.at(field)) != 0) {
        [true, true] => {
            let detail = "may not be set when maxUnavailable is non-zero";
            out.push(Error::invalid(&path.child("maxSurge"), rolling.at("maxSurge").clone(), detail));
        }
        [false, false] => {
            out.push(Error::required(&path.child("maxUnavailable"), "cannot be 0 when maxSurge is 0"));
        }
        _ => {}
    }
}

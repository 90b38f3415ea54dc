//! Jobs.

use serde_json::json;

use super::{policy, status};
use crate::Value;
use crate::field::{Error, Errors, Path, quote};
use crate::kinds::pod::options::Options;
use crate::kinds::pod::{self, defaults};
use crate::kinds::view::{View, copy, fill, fill_pointer, items_mut, set, some_mut, structure, unset};
use crate::kinds::workload::{self, spec_path};
use crate::kinds::{halves, internal, rules};
use crate::meta::check::{self, push_all};
use crate::meta::names;
use crate::resources::{Context, Propagation, Strategy};
use crate::selector::LabelSelector;

const JOB_NAMES: [&str; 2] = ["job-name", "batch.kubernetes.io/job-name"];
const UIDS: [&str; 2] = ["controller-uid", "batch.kubernetes.io/controller-uid"];

/// Jobs.
pub struct Job;

impl Strategy for Job {
    fn default(&self, object: &mut Value) {
        default_spec(structure(object, "spec"), true);
        let labels = object.at("spec").at("template").at("metadata").at("labels").clone();
        if !labels.is_null() && object.at("metadata").entries("labels").next().is_none() {
            set(structure(object, "metadata"), "labels", labels);
        }
    }

    fn prepare_create(&self, _cx: &Context<'_>, new: &mut Value) {
        if !new.at("spec").flag("manualSelector") {
            generate_selector(new);
        }
        workload::create(new);
    }

    fn prepare_update(&self, cx: &Context<'_>, new: &mut Value, old: &Value) {
        workload::update(cx, new, old);
    }

    fn validate_create(&self, _cx: &Context<'_>, new: &Value) -> Errors {
        let mut out = Errors::new();
        job(&mut out, new, &workload::options(None), false, true);
        out
    }

    fn validate_update(&self, cx: &Context<'_>, new: &Value, old: &Value) -> Errors {
        let mut out = Errors::new();
        if cx.subresource == "status" {
            status::update(&mut out, new, old);
        } else {
            update(&mut out, new, old);
        }
        out
    }

    fn warnings(&self, cx: &Context<'_>, new: &Value, old: Option<&Value>) -> Vec<String> {
        let look = cx.subresource != "status" && old.is_none_or(|old| workload::generation_grew(new, old));
        if look { warnings(new, new.at("spec"), old.is_none(), &spec_path()) } else { Vec::new() }
    }

    fn selectable(&self, object: &Value, field: &str) -> String {
        match field {
            "status.successful" => object.at("status").number("succeeded").to_string(),
            _ => String::new(),
        }
    }

    fn unsupported_field(&self, _version: &str, field: &str) -> String {
        format!("field label {} not supported for Job", quote(field))
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

/// Defaults of a job's spec; in the template of a CronJob most of them wait until there is a job.
pub(super) fn default_spec(spec: &mut Value, whole: bool) {
    if whole {
        if !spec.has("completions") && !spec.has("parallelism") {
            set(spec, "completions", 1);
        }
        fill_pointer(spec, "parallelism", 1);
        let limit = if spec.has("backoffLimitPerIndex") { i64::from(i32::MAX) } else { 6 };
        fill_pointer(spec, "backoffLimit", limit);
        fill_pointer(spec, "completionMode", "NonIndexed");
        fill_pointer(spec, "suspend", false);
        let replacement = if spec.has("podFailurePolicy") { "Failed" } else { "TerminatingOrFailed" };
        fill_pointer(spec, "podReplacementPolicy", replacement);
        fill_pointer(spec, "manualSelector", false);
    }
    if let Some(policy) = some_mut(spec, "podFailurePolicy") {
        for rule in items_mut(policy, "rules") {
            for condition in items_mut(rule, "onPodConditions") {
                fill(condition, "status", "True");
            }
        }
    }
    defaults::template(structure(spec, "template"));
}

/// Labels and a selector that tell this job's pods from all others.
fn generate_selector(job: &mut Value) {
    let (name, uid) = (crate::meta::text(job, "name").to_string(), crate::meta::text(job, "uid").to_string());
    let spec = structure(job, "spec");
    let labels = structure(structure(structure(spec, "template"), "metadata"), "labels");
    for key in JOB_NAMES {
        fill_pointer(labels, key, name.as_str());
    }
    for key in UIDS {
        fill_pointer(labels, key, uid.as_str());
    }
    let selected = structure(structure(spec, "selector"), "matchLabels");
    fill_pointer(selected, UIDS[1], uid);
}

/// A whole job; `prefixed` says that labels with a domain are expected as well.
fn job(out: &mut Errors, new: &Value, options: &Options, any_value: bool, prefixed: bool) {
    let spec = new.at("spec");
    generated_selector(out, new, prefixed);
    selected_spec(out, spec, options, any_value);
    let completions = spec.number("completions");
    if spec.text("completionMode") == "Indexed" && completions > 0 {
        let name = new.at("metadata").text("name");
        let host = format!("{name}-{}", completions - 1);
        if !names::label(&host).is_empty() {
            let detail = format!("will not able to create pod with invalid DNS label: {host}");
            out.push(Error::invalid(&Path::new("metadata").child("name"), name, detail));
        }
    }
}

fn generated_selector(out: &mut Errors, new: &Value, prefixed: bool) {
    let spec = new.at("spec");
    if spec.flag("manualSelector") || spec.at("selector").is_null() {
        return;
    }
    let (name, uid) = (new.at("metadata").text("name"), new.at("metadata").text("uid"));
    let meta = spec.at("template").at("metadata");
    let path = spec_path().child("template").child("metadata").child("labels");
    let pairs = [(UIDS[0], uid), (JOB_NAMES[0], name), (UIDS[1], uid), (JOB_NAMES[1], name)];
    let expected = &pairs[..if prefixed { 4 } else { 2 }];
    for (key, value) in expected {
        let detail = format!("must be '{value}'");
        match meta.at("labels").at(key).as_str() {
            None => out.push(Error::required(&path.key(key), detail)),
            Some(found) if found != *value => {
                out.push(Error::invalid(&path.key(key), meta.at("labels").clone(), detail));
            }
            Some(_) => {}
        }
    }
    let labels: std::collections::BTreeMap<String, String> =
        expected.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
    if LabelSelector::from_object(spec.at("selector")).is_ok_and(|selector| !selector.matches(&labels)) {
        let shown = workload::show_selector(spec.at("selector"));
        out.push(Error::invalid_shown(&spec_path().child("selector"), shown, "`selector` not auto-generated"));
    }
}

/// A job's spec with its selector.
fn selected_spec(out: &mut Errors, spec: &Value, options: &Options, any_value: bool) {
    let path = spec_path();
    self::spec(out, spec, options, &path);
    let (selector, selector_path) = (spec.at("selector"), path.child("selector"));
    if selector.is_null() {
        out.push(Error::required(&selector_path, ""));
    } else {
        check::selector(out, selector, check::SelectorOptions { any_value }, &selector_path);
    }
    let labels = spec.at("template").at("metadata").at("labels");
    if LabelSelector::from_object(selector).is_ok_and(|selector| !selector.matches(labels)) {
        workload::not_selected(out, labels, &path.child("template"));
    }
}

/// A job's spec but for its selector.
pub(super) fn spec(out: &mut Errors, spec: &Value, options: &Options, path: &Path) {
    const COUNTS: &[&str] = &[
        "parallelism",
        "completions",
        "activeDeadlineSeconds",
        "backoffLimit",
        "ttlSecondsAfterFinished",
        "backoffLimitPerIndex",
        "maxFailedIndexes",
    ];
    rules::not_negative_fields(out, spec, COUNTS, path);
    if spec.has("maxFailedIndexes") && !spec.has("backoffLimitPerIndex") {
        let detail = "when maxFailedIndexes is specified";
        out.push(Error::required(&path.child("backoffLimitPerIndex"), detail));
    }
    if let Some(manager) = spec.at("managedBy").as_str() {
        managed_by(out, manager, &path.child("managedBy"));
    }
    completion_mode(out, spec, path);
    if spec.has("podFailurePolicy") {
        policy::pod_failure(out, spec, &path.child("podFailurePolicy"));
    }
    if let Some(success) = spec.some("successPolicy") {
        let path = path.child("successPolicy");
        if spec.text("completionMode") == "Indexed" {
            policy::success(out, spec, &path);
        } else {
            let shown = internal::show("SuccessPolicy", success);
            out.push(Error::invalid_shown(&path, shown, "requires indexed completion mode"));
        }
    }
    if let Some(replacement) = spec.at("podReplacementPolicy").as_str() {
        let both: &[&str] = &["Failed", "TerminatingOrFailed"];
        let allowed = if spec.has("podFailurePolicy") { &both[..1] } else { both };
        rules::supported(out, replacement, allowed, &path.child("podReplacementPolicy"));
    }
    let template = path.child("template");
    pod::spec::template(out, spec.at("template"), options, &template);
    restart_policy(out, spec, &template.child("spec").child("restartPolicy"));
}

fn managed_by(out: &mut Errors, manager: &str, path: &Path) {
    match manager.split_once('/') {
        _ if manager.is_empty() => out.push(Error::required(path, "")),
        Some((host, rest)) if !host.is_empty() && !rest.is_empty() => {
            push_all(out, path, host, names::subdomain(host));
            push_all(out, path, rest, names::http_path(rest));
        }
        _ => {
            let detail = "must be a domain-prefixed path (such as \"acme.io/foo\")";
            out.push(Error::invalid(path, manager, detail));
        }
    }
    if manager.len() > 63 {
        out.push(Error::too_long(path, 63));
    }
}

fn completion_mode(out: &mut Errors, spec: &Value, path: &Path) {
    let mode = spec.at("completionMode").as_str().unwrap_or("NonIndexed");
    rules::supported(out, mode, &["NonIndexed", "Indexed"], &path.child("completionMode"));
    if mode == "Indexed" {
        indexed(out, spec, path);
    }
    if mode == "NonIndexed" {
        for field in ["backoffLimitPerIndex", "maxFailedIndexes"] {
            if let Some(value) = spec.int(field) {
                out.push(Error::invalid(&path.child(field), value, "requires indexed completion mode"));
            }
        }
    }
}

fn indexed(out: &mut Errors, spec: &Value, path: &Path) {
    let fields = ["completions", "parallelism", "maxFailedIndexes"];
    let [completions, parallelism, failed] = fields.map(|field| spec.int(field));
    if completions.is_none() {
        out.push(Error::required(&path.child("completions"), "when completion mode is Indexed"));
    }
    let mut at_most = |field: &str, value: Option<i64>, most: i64, what: &str| {
        if let Some(value) = value.filter(|value| *value > most) {
            let detail = format!("must be less than or equal to {what}");
            out.push(Error::invalid(&path.child(field), value, detail));
        }
    };
    at_most("parallelism", parallelism, 100_000, "100000 when completion mode is Indexed");
    if let Some(completions) = completions {
        at_most("maxFailedIndexes", failed, completions, "completions");
    }
    at_most("maxFailedIndexes", failed, 100_000, "100000");
    if completions.is_some_and(|count| count > 100_000) && spec.has("backoffLimitPerIndex") {
        let what = "10000 when completions are above 100000 and used with backoff limit per index";
        at_most("parallelism", parallelism, 10_000, what);
        at_most("maxFailedIndexes", failed, 10_000, what);
        if failed.is_none() {
            let detail = "must be specified when completions is above 100000";
            out.push(Error::required(&path.child("maxFailedIndexes"), detail));
        }
    }
}

fn restart_policy(out: &mut Errors, spec: &Value, path: &Path) {
    match spec.at("template").at("spec").text("restartPolicy") {
        "Always" | "" => out.push(Error::required(path, "valid values: \"OnFailure\", \"Never\"")),
        "OnFailure" if spec.has("podFailurePolicy") => {
            let detail = "only \"Never\" is supported when podFailurePolicy is specified";
            out.push(Error::invalid(path, "OnFailure", detail));
        }
        other => rules::supported(out, other, &["OnFailure", "Never"], path),
    }
}

fn update(out: &mut Errors, new: &Value, old: &Value) {
    let options = workload::options(Some(old));
    let any_value = options.any_selector_value || check::selector_has_bad_value(old.at("spec").at("selector"));
    let labels = old.at("spec").at("template").at("metadata").at("labels");
    let prefixed = labels.has(JOB_NAMES[1]) && labels.has(UIDS[1]);
    out.extend(check::validate(new, true, &names::dns_subdomain));
    check::kube_finalizers(out, new);
    job(out, new, &options, any_value, prefixed);
    out.extend(check::validate_update(new, old));
    let mutable = is_suspended(old);
    let (new, old, path) = (new.at("spec"), old.at("spec"), spec_path());
    selected_spec(out, new, &options, any_value);
    completions(out, new, old, &path);
    workload::same_selector(out, new, old, &path.child("selector"));
    template(out, new, old, mutable, &path);
    let shapes = [
        ("completionMode", "*string"),
        ("podFailurePolicy", "*PodFailurePolicy"),
        ("backoffLimitPerIndex", "*int"),
        ("managedBy", "*string"),
        ("successPolicy", "*SuccessPolicy"),
    ];
    for (field, shape) in shapes {
        if new.at(field) != old.at(field) {
            let shown = internal::show(shape, new.at(field));
            out.push(Error::invalid_shown(&path.child(field), shown, check::IMMUTABLE));
        }
    }
}

/// A suspended job without pods.
fn is_suspended(job: &Value) -> bool {
    let status = job.at("status");
    let marked = status::is_true(status, "Suspended");
    job.at("spec").flag("suspend") && (!status.has("startTime") || marked) && status.number("active") == 0
}

fn completions(out: &mut Errors, new: &Value, old: &Value, path: &Path) {
    let path = path.child("completions");
    if new.text("completionMode") != "Indexed" {
        return check::immutable(out, new.at("completions"), old.at("completions"), &path);
    }
    let Some(count) = new.int("completions").filter(|count| Some(*count) != old.int("completions")) else { return };
    if Some(count) != new.int("parallelism") {
        out.push(Error::invalid(&path, count, "can only be modified in tandem with spec.parallelism"));
    }
}

/// The template may not change, but for where its pods may run and what they need while the job is suspended.
fn template(out: &mut Errors, new: &Value, old: &Value, mutable: bool, path: &Path) {
    let (template, mut before) = (new.at("template"), old.at("template").clone());
    if mutable {
        allow_scheduling(&mut before, template);
    }
    let path = path.child("template");
    if old.flag("suspend") && mutable {
        let spec = structure(&mut before, "spec");
        for list in ["containers", "initContainers"] {
            let given = template.at("spec").items(list);
            if given.len() != spec.items(list).len() {
                continue;
            }
            for (container, given) in items_mut(spec, list).iter_mut().zip(given) {
                if container.text("name") == given.text("name") {
                    copy(container, given, "resources");
                }
            }
        }
        if template.at("spec") != before.at("spec") {
            let shown = internal::show("PodSpec", template.at("spec"));
            out.push(Error::invalid_shown(&Path::new("spec").child("template.spec"), shown, check::IMMUTABLE));
        }
    } else if *template != before {
        let shown = internal::show("PodTemplateSpec", template);
        out.push(Error::invalid_shown(&path, shown, check::IMMUTABLE));
    }
}

fn allow_scheduling(before: &mut Value, template: &Value) {
    let (given, now) = (template.at("spec"), template.at("metadata"));
    let spec = structure(before, "spec");
    match (given.some("affinity"), spec.has("affinity")) {
        (None, true) => {
            let affinity = structure(spec, "affinity");
            unset(affinity, "nodeAffinity");
            if !affinity.has("podAffinity") && !affinity.has("podAntiAffinity") {
                unset(spec, "affinity");
            }
        }
        (Some(affinity), false) => {
            let mut kept = json!({});
            copy(&mut kept, affinity, "nodeAffinity");
            set(spec, "affinity", kept);
        }
        (Some(affinity), true) => copy(structure(spec, "affinity"), affinity, "nodeAffinity"),
        (None, false) => {}
    }
    for field in ["nodeSelector", "tolerations", "schedulingGates"] {
        copy(spec, given, field);
    }
    let meta = structure(before, "metadata");
    copy(meta, now, "annotations");
    copy(meta, now, "labels");
}

/// Warnings about a job or the template of one.
pub(super) fn warnings(object: &Value, spec: &Value, name: bool, path: &Path) -> Vec<String> {
    let template = path.child("template");
    let mut out = workload::warnings(object, spec.at("template"), name, &template);
    let many = spec.number("completions") > 100_000 && spec.number("parallelism") > 10_000;
    if spec.text("completionMode") == "Indexed" && many {
        let text = "In Indexed Jobs with a number of completions higher than 10^5 and a parallelism higher than 10^4, \
                    Kubernetes might not be able to track completedIndexes when a big number of indexes fail";
        out.push(format!("{path}: {text}"));
    }
    out
}

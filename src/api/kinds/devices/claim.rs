//! Claims of devices, and templates for them.

use std::collections::{BTreeMap, BTreeSet};

use super::{MAX_ITEMS, by_name, configuration, each, each_once, full_name, itself, selectors};
use crate::Value;
use crate::field::{Error, Errors, Path};
use crate::kinds::view::{View, fill, items_mut, set, some_mut, structure};
use crate::kinds::{halves, internal, rules};
use crate::meta::check;
use crate::meta::names;
use crate::resources::{Context, Strategy};

/// Most alternatives of a request.
const MAX_ALTERNATIVES: usize = 8;
/// Most pods that share a claim.
const MAX_CONSUMERS: usize = 256;

/// Claims.
pub struct ResourceClaim;

impl Strategy for ResourceClaim {
    fn default(&self, object: &mut Value) {
        default(structure(object, "spec"));
    }

    fn prepare_create(&self, _cx: &Context<'_>, new: &mut Value) {
        set(new, "status", crate::Map::new());
    }

    fn prepare_update(&self, cx: &Context<'_>, new: &mut Value, old: &Value) {
        halves::split_with_metadata(cx, new, old);
    }

    fn validate_create(&self, _cx: &Context<'_>, new: &Value) -> Errors {
        let mut out = Errors::new();
        spec(&mut out, new.at("spec"), &Path::new("spec"));
        out
    }

    fn validate_update(&self, cx: &Context<'_>, new: &Value, old: &Value) -> Errors {
        let mut out = Errors::new();
        if cx.subresource == "status" {
            status(&mut out, new, old);
            return out;
        }
        rules::whole_metadata(&mut out, new, true, &names::dns_subdomain);
        if new.at("spec") != old.at("spec") {
            let shown = internal::show("ResourceClaimSpec", new.at("spec"));
            out.push(Error::invalid_shown(&Path::new("spec"), shown, check::IMMUTABLE));
        }
        out
    }

    fn reset_fields(&self, subresource: &str) -> &'static [&'static [&'static str]] {
        halves::reset_with_metadata(subresource)
    }
}

/// Templates of claims.
pub struct ResourceClaimTemplate;

impl Strategy for ResourceClaimTemplate {
    fn default(&self, object: &mut Value) {
        default(structure(structure(object, "spec"), "spec"));
    }

    fn validate_create(&self, _cx: &Context<'_>, new: &Value) -> Errors {
        let mut out = Errors::new();
        let (template, path) = (new.at("spec"), Path::new("spec"));
        let meta = template.at("metadata");
        check::annotations(&mut out, meta.pairs("annotations"), &path.child("metadata").child("annotations"));
        check::labels(&mut out, meta.pairs("labels"), &path.child("metadata").child("labels"));
        spec(&mut out, template.at("spec"), &path.child("spec"));
        out
    }

    fn validate_update(&self, _cx: &Context<'_>, new: &Value, old: &Value) -> Errors {
        let mut out = Errors::new();
        if new.at("spec") != old.at("spec") {
            let shown = internal::show("ResourceClaimTemplateSpec", new.at("spec"));
            out.push(Error::invalid_shown(&Path::new("spec"), shown, check::IMMUTABLE));
        }
        out
    }
}

fn default(spec: &mut Value) {
    let Some(devices) = some_mut(spec, "devices") else { return };
    for request in items_mut(devices, "requests") {
        if let Some(exactly) = some_mut(request, "exactly") {
            default_mode(exactly);
        }
        items_mut(request, "firstAvailable").iter_mut().for_each(default_mode);
    }
}

fn default_mode(request: &mut Value) {
    fill(request, "allocationMode", "ExactCount");
    if request.text("allocationMode") == "ExactCount" {
        fill(request, "count", 1);
    }
}

/// Names of requests, each with the names of its alternatives.
type Names<'a> = BTreeMap<&'a str, BTreeSet<&'a str>>;

fn request_names(spec: &Value) -> Names<'_> {
    let requests = spec.at("devices").items("requests").iter();
    requests.map(|r| (r.text("name"), r.items("firstAvailable").iter().map(by_name).collect())).collect()
}

fn spec(out: &mut Errors, spec: &Value, path: &Path) {
    let (devices, path, known) = (spec.at("devices"), path.child("devices"), request_names(spec));
    each_once(out, devices.items("requests"), MAX_ITEMS, &path.child("requests"), by_name, request);
    each(out, devices.items("constraints"), MAX_ITEMS, &path.child("constraints"), |out, constraint, path| {
        self::constraint(out, constraint, &known, path);
    });
    each(out, devices.items("config"), MAX_ITEMS, &path.child("config"), |out, config, path| {
        references(out, config, &known, path);
        configuration(out, config, path);
    });
}

fn request(out: &mut Errors, request: &Value, path: &Path) {
    name(out, request.text("name"), &path.child("name"));
    let alternatives = request.items("firstAvailable");
    match (request.some("exactly"), alternatives.is_empty()) {
        (None, true) => {
            out.push(Error::required(path, "exactly one of `exactly` or `firstAvailable` is required"));
        }
        (Some(_), false) => {
            let detail = "exactly one of `exactly` or `firstAvailable` is required, but multiple fields are set";
            out.push(Error::invalid(path, Value::Null, detail));
        }
        (Some(exactly), true) => what(out, exactly, &path.child("exactly")),
        (None, false) => {
            let path = path.child("firstAvailable");
            each_once(out, alternatives, MAX_ALTERNATIVES, &path, by_name, |out, alternative, path| {
                name(out, alternative.text("name"), &path.child("name"));
                what(out, alternative, path);
            });
        }
    }
}

fn name(out: &mut Errors, name: &str, path: &Path) {
    if name.is_empty() {
        return out.push(Error::required(path, ""));
    }
    rules::dns_label(out, name, path);
}

/// Which devices, and how many.
fn what(out: &mut Errors, request: &Value, path: &Path) {
    match request.text("deviceClassName") {
        "" => out.push(Error::required(&path.child("deviceClassName"), "")),
        class => rules::dns_subdomain(out, class, &path.child("deviceClassName")),
    }
    selectors(out, request.items("selectors"), &path.child("selectors"));
    let (count, count_path) = (request.number("count"), path.child("count"));
    match request.text("allocationMode") {
        "All" if count != 0 => {
            out.push(Error::invalid(&count_path, count, "must not be specified when allocationMode is 'All'"));
        }
        "All" => {}
        "ExactCount" => rules::positive(out, count, &count_path),
        mode => rules::supported(out, mode, &["All", "ExactCount"], &path.child("allocationMode")),
    }
    for (i, toleration) in request.items("tolerations").iter().enumerate() {
        self::toleration(out, toleration, &path.child("tolerations").index(i));
    }
}

fn toleration(out: &mut Errors, toleration: &Value, path: &Path) {
    let (key, operator) = (toleration.text("key"), toleration.text("operator"));
    if !key.is_empty() {
        rules::qualified_name(out, key, &path.child("key"));
    }
    match operator {
        "Exists" if !toleration.text("value").is_empty() => {
            let detail = "must be empty for operator `Exists`";
            out.push(Error::invalid(&path.child("value"), toleration.text("value"), detail));
        }
        "Equal" => {
            let value = toleration.text("value");
            check::push_all(out, &path.child("value"), value, names::label_value(value));
        }
        "Exists" => {}
        other => rules::one_of(out, other, &["Equal", "Exists"], &path.child("operator")),
    }
    let effect = toleration.text("effect");
    if !effect.is_empty() {
        rules::supported(out, effect, &["NoExecute", "NoSchedule", "None"], &path.child("effect"));
    }
}

fn constraint(out: &mut Errors, constraint: &Value, known: &Names<'_>, path: &Path) {
    references(out, constraint, known, path);
    let fields = ["matchAttribute", "distinctAttribute"];
    match fields.iter().find(|field| constraint.has(field)) {
        Some(field) => full_name(out, constraint.text(field), &path.child(field)),
        None => {
            let detail =
                "exactly one of \"matchAttribute\" or \"distinctAttribute\" is required, but multiple fields are set";
            out.push(Error::required(path, detail));
        }
    }
}

/// `requests` of a constraint or a configuration.
fn references(out: &mut Errors, of: &Value, known: &Names<'_>, path: &Path) {
    let path = path.child("requests");
    each_once(out, of.items("requests"), MAX_ITEMS, &path, itself, |out, text, path| {
        reference(out, itself(text), known, path);
    });
}

fn reference(out: &mut Errors, text: &str, known: &Names<'_>, path: &Path) {
    let detail =
        "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'";
    let segments: Vec<&str> = text.split('/').collect();
    if segments.len() > 2 {
        return out.push(Error::invalid(path, text, detail));
    }
    segments.iter().for_each(|segment| name(out, segment, path));
    let found = match segments.as_slice() {
        [one] => known.contains_key(one),
        [one, sub] => known.get(one).is_some_and(|below| below.contains(sub)),
        _ => false,
    };
    if !found {
        out.push(Error::invalid(path, text, detail));
    }
}

fn status(out: &mut Errors, new: &Value, old: &Value) {
    let (status, before, path) = (new.at("status"), old.at("status"), Path::new("status"));
    let (reserved, reserved_path) = (status.items("reservedFor"), path.child("reservedFor"));
    let uid = |consumer: &'_ Value| -> String { consumer.text("uid").into() };
    each(out, reserved, MAX_CONSUMERS, &reserved_path, |out, consumer, path| {
        for field in ["resource", "name", "uid"] {
            rules::required(out, consumer, field, path);
        }
    });
    let mut seen = BTreeSet::new();
    for (i, consumer) in reserved.iter().enumerate() {
        if !seen.insert(uid(consumer)) {
            out.push(Error::duplicate(&reserved_path.index(i), uid(consumer)));
        }
    }
    let added = reserved.iter().any(|consumer| !before.items("reservedFor").contains(consumer));
    if !reserved.is_empty() && !status.has("allocation") {
        out.push(Error::forbidden(&reserved_path, "may not be specified when `allocated` is not set"));
    } else if added && new.at("metadata").has("deletionTimestamp") {
        let detail = "new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set";
        out.push(Error::forbidden(&reserved_path, detail));
    }
    let (allocation, path) = (status.at("allocation"), path.child("allocation"));
    if before.has("allocation") && !allocation.is_null() && allocation != before.at("allocation") {
        out.push(Error::invalid(&path, allocation.clone(), check::IMMUTABLE));
    } else if !before.has("allocation") && !allocation.is_null() {
        self::allocation(out, allocation, &request_names(new.at("spec")), &path);
    }
}

fn allocation(out: &mut Errors, allocation: &Value, known: &Names<'_>, path: &Path) {
    let (devices, devices_path) = (allocation.at("devices"), path.child("devices"));
    each(out, devices.items("results"), MAX_ITEMS, &devices_path.child("results"), |out, result, path| {
        reference(out, result.text("request"), known, &path.child("request"));
        rules::csi_driver(out, result.text("driver"), &path.child("driver"));
        super::slice::pool_name(out, result.text("pool"), &path.child("pool"));
        name(out, result.text("device"), &path.child("device"));
    });
    each(out, devices.items("config"), 2 * MAX_ITEMS, &devices_path.child("config"), |out, config, path| {
        rules::one_of(out, config.text("source"), &["FromClaim", "FromClass"], &path.child("source"));
        references(out, config, known, path);
        configuration(out, config, path);
    });
    if let Some(selector) = allocation.some("nodeSelector") {
        crate::kinds::pod::scheduling::node_selector(out, selector, false, &path.child("nodeSelector"));
    }
}

//! LimitRanges and ResourceQuotas.

use std::collections::BTreeSet;

use crate::Value;
use crate::field::{Error, Errors, Path};
use crate::kinds::compute;
use crate::kinds::pod::defaults::resource_list;
use crate::kinds::rules::quantity;
use crate::kinds::view::{View, fill_pointer, items_mut, set, some_mut, structure};
use crate::kinds::{halves, internal};
use crate::meta::check::{self, push_all};
use crate::meta::names;
use crate::quantity::Quantity;
use crate::resources::{Context, Strategy};

/// LimitRanges.
pub struct LimitRange;

const LISTS: [&str; 5] = ["max", "min", "default", "defaultRequest", "maxLimitRequestRatio"];

impl Strategy for LimitRange {
    fn default(&self, object: &mut Value) {
        for limit in items_mut(structure(object, "spec"), "limits") {
            if limit.text("type") == "Container" {
                fill_list(limit, "default", "max");
                fill_list(limit, "defaultRequest", "default");
                fill_list(limit, "defaultRequest", "min");
            }
            for list in LISTS {
                some_mut(limit, list).into_iter().for_each(resource_list);
            }
        }
    }

    fn validate_create(&self, _cx: &Context<'_>, new: &Value) -> Errors {
        let mut out = Errors::new();
        limit_range(&mut out, new);
        out
    }

    /// An update is looked at as a new object is.
    fn validate_update(&self, _cx: &Context<'_>, new: &Value, _old: &Value) -> Errors {
        let mut out = check::validate(new, true, &names::dns_subdomain);
        check::kube_finalizers(&mut out, new);
        limit_range(&mut out, new);
        out
    }

    fn checks_meta(&self, update: bool) -> bool {
        !update
    }
}

/// What one list does not say another does.
fn fill_list(limit: &mut Value, list: &str, from: &str) {
    let from = limit.at(from).clone();
    for (name, value) in from.as_object().into_iter().flatten() {
        fill_pointer(structure(limit, list), name, value.clone());
    }
}

fn limit_range(out: &mut Errors, new: &Value) {
    let path = Path::new("spec").child("limits");
    let mut seen = BTreeSet::new();
    for (i, limit) in new.at("spec").items("limits").iter().enumerate() {
        let path = path.index(i);
        let kind = limit.text("type");
        limit_type(out, kind, &path.child("type"));
        if !seen.insert(kind) {
            out.push(Error::duplicate(&path.child("type"), kind));
        }
        let mut keys = BTreeSet::new();
        for list in LISTS {
            if list == "maxLimitRequestRatio" {
                claims_have_bounds(out, limit, kind, &path);
            }
            let of_pod = kind == "Pod" && list.starts_with("default");
            if of_pod && limit.entries(list).next().is_some() {
                out.push(Error::forbidden(&path.child(list), "may not be specified when `type` is 'Pod'"));
            }
            for (name, _) in limit.entries(list).filter(|_| !of_pod) {
                limit_name(out, kind, name, &path.child(list).key(name));
                keys.insert(name);
            }
        }
        for key in keys {
            limit_order(out, limit, kind, key, &path);
        }
    }
}

fn limit_type(out: &mut Errors, kind: &str, path: &Path) {
    let wrong = names::label_key(kind);
    if wrong.is_empty() && !kind.contains('/') && !["Pod", "Container", "PersistentVolumeClaim"].contains(&kind) {
        out.push(Error::invalid(path, kind, "must be a standard limit type or fully qualified"));
    }
    push_all(out, path, kind, wrong);
}

fn limit_name(out: &mut Errors, kind: &str, name: &str, path: &Path) {
    if kind == "Pod" || kind == "Container" {
        compute::container_resource_name(out, name, path);
    } else {
        compute::resource_name(out, name, path);
    }
}

fn claims_have_bounds(out: &mut Errors, limit: &Value, kind: &str, path: &Path) {
    if kind == "PersistentVolumeClaim" && !limit.at("min").has("storage") && !limit.at("max").has("storage") {
        let detail = "either minimum or maximum storage value is required, but neither was provided";
        out.push(Error::required(&path.child("limits"), detail));
    }
}

/// The bounds of a resource are in their order: min, default request, default, max.
fn limit_order(out: &mut Errors, limit: &Value, kind: &str, key: &str, path: &Path) {
    let get = |list: &str| -> Option<Quantity> {
        let hidden = kind == "Pod" && list.starts_with("default");
        limit.at(list).some(key).filter(|_| !hidden).map(quantity)
    };
    let [max, min, default, request, ratio] = LISTS.map(get);
    // (list, shown value, smaller and its name, larger and its name)
    let orders = [
        ("min", min, (min, "min value"), (max, "max value")),
        ("defaultRequest", request, (min, "min value"), (request, "default request value")),
        ("defaultRequest", request, (request, "default request value"), (max, "max value")),
        ("defaultRequest", request, (request, "default request value"), (default, "default limit value")),
        ("default", min, (min, "min value"), (default, "default value")),
        ("default", max, (default, "default value"), (max, "max value")),
    ];
    for (list, shown, (small, small_name), (large, large_name)) in orders {
        if let (Some(shown), Some(small), Some(large)) = (shown, small, large)
            && small > large
        {
            let detail = format!("{small_name} {small} is greater than {large_name} {large}");
            out.push(Error::invalid(&path.child(list).key(key), shown.to_string(), detail));
        }
    }
    if let Some(ratio) = ratio {
        limit_ratio(out, ratio, min, max, &path.child("maxLimitRequestRatio").key(key));
    }
    if let (Some(default), Some(request)) = (default, request)
        && !compute::may_overcommit(key)
        && default != request
    {
        let detail = format!("default value {default} must equal to defaultRequest value {request} in {key}");
        out.push(Error::invalid(&path.child("defaultRequest").key(key), request.to_string(), detail));
    }
}

fn limit_ratio(out: &mut Errors, ratio: Quantity, min: Option<Quantity>, max: Option<Quantity>, path: &Path) {
    if ratio.milli_value() < 1000 {
        out.push(Error::invalid(path, ratio.to_string(), format!("ratio {ratio} is less than 1")));
    }
    let (Some(min), Some(max)) = (min, max) else { return };
    let bound = max.as_f64() / min.as_f64();
    if ratio.as_f64() > bound {
        let detail = format!("ratio {ratio} is greater than max/min = {bound:.6}");
        out.push(Error::invalid(path, ratio.to_string(), detail));
    }
}

/// ResourceQuotas.
pub struct ResourceQuota;

impl Strategy for ResourceQuota {
    fn default(&self, object: &mut Value) {
        for (part, lists) in [("spec", &["hard"][..]), ("status", &["hard", "used"])] {
            let Some(part) = some_mut(object, part) else { continue };
            for list in lists {
                some_mut(part, list).into_iter().for_each(resource_list);
            }
        }
    }

    fn prepare_create(&self, _cx: &Context<'_>, new: &mut Value) {
        set(new, "status", crate::Map::new());
    }

    fn prepare_update(&self, cx: &Context<'_>, new: &mut Value, old: &Value) {
        halves::split(cx, new, old);
    }

    fn validate_create(&self, _cx: &Context<'_>, new: &Value) -> Errors {
        let mut out = Errors::new();
        quota_spec(&mut out, new.at("spec"));
        out
    }

    fn validate_update(&self, cx: &Context<'_>, new: &Value, old: &Value) -> Errors {
        let mut out = Errors::new();
        if cx.subresource == "status" {
            for list in ["hard", "used"] {
                quota_list(&mut out, new.at("status"), list, &Path::new("status").child(list));
            }
            return out;
        }
        let (new, old) = (new.at("spec"), old.at("spec"));
        quota_spec(&mut out, new);
        let set = |spec: &'_ Value| -> BTreeSet<String> { spec.texts("scopes").map(str::to_string).collect() };
        if set(new) != set(old) {
            let path = Path::new("spec").child("scopes");
            out.push(Error::invalid(&path, new.at("scopes").clone(), check::IMMUTABLE));
        }
        out
    }

    fn warnings(&self, _cx: &Context<'_>, new: &Value, old: Option<&Value>) -> Vec<String> {
        let mut out = Vec::new();
        let hard = new.at("spec").at("hard");
        for resource in ["cpu", "memory", "storage", "ephemeral-storage"].iter().filter(|_| old.is_none()) {
            let mut name = format!("requests.{resource}");
            if !hard.has(&name) && (*resource == "cpu" || *resource == "memory") && hard.has(resource) {
                name = resource.to_string();
            }
            let limit_name = format!("limits.{resource}");
            let (Some(request), Some(limit)) = (hard.some(&name), hard.some(&limit_name)) else { continue };
            let (request, limit) = (quantity(request), quantity(limit));
            if request > limit {
                out.push(format!("ResourceQuota {name} ({request}) should be less than {limit_name} ({limit})"));
            }
        }
        out
    }

    fn reset_fields(&self, subresource: &str) -> &'static [&'static [&'static str]] {
        halves::reset(subresource)
    }
}

/// Names that quotas know of without a domain.
const QUOTA_NAMES: &[&str] = &[
    "cpu",
    "memory",
    "ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.storage",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
    "pods",
    "resourcequotas",
    "services",
    "replicationcontrollers",
    "secrets",
    "persistentvolumeclaims",
    "configmaps",
    "services.nodeports",
    "services.loadbalancers",
];

fn is_quota_name(name: &str) -> bool {
    QUOTA_NAMES.contains(&name) || compute::is_huge_page(name) || name.starts_with("requests.hugepages-")
}

fn quota_list(out: &mut Errors, object: &Value, list: &str, path: &Path) {
    for (name, value) in object.entries(list) {
        let path = path.key(name);
        if compute::resource_name(out, name, &path) && !name.contains('/') && !is_quota_name(name) {
            out.push(Error::invalid(&path, name, "must be a standard resource for quota"));
        }
        compute::resource_quantity(out, name, value, &path);
    }
}

const SCOPES: &[&str] = &[
    "Terminating",
    "NotTerminating",
    "BestEffort",
    "NotBestEffort",
    "PriorityClass",
    "CrossNamespacePodAffinity",
    "VolumeAttributesClass",
];

/// True when a scope can bound that resource.
fn scope_fits(scope: &str, name: &str) -> bool {
    const POD_COMPUTE: &[&str] = &["cpu", "memory", "requests.cpu", "requests.memory", "limits.cpu", "limits.memory"];
    match scope {
        "Terminating" | "NotTerminating" | "NotBestEffort" | "PriorityClass" | "CrossNamespacePodAffinity" => {
            name == "pods" || POD_COMPUTE.contains(&name)
        }
        "BestEffort" => name == "pods",
        "VolumeAttributesClass" => name == "persistentvolumeclaims" || name == "requests.storage",
        _ => true,
    }
}

fn quota_spec(out: &mut Errors, spec: &Value) {
    let path = Path::new("spec");
    quota_list(out, spec, "hard", &path.child("hard"));
    let unfit =
        |scope: &str| spec.entries("hard").filter(|(name, _)| is_quota_name(name) && !scope_fits(scope, name)).count();
    let shown = spec.at("scopes");
    let scopes_path = path.child("scopes");
    for scope in spec.texts("scopes") {
        if !SCOPES.contains(&scope) {
            out.push(Error::invalid(&scopes_path, shown.clone(), "unsupported scope"));
        }
        for _ in 0..unfit(scope) {
            out.push(Error::invalid(&scopes_path, shown.clone(), "unsupported scope applied to resource"));
        }
    }
    let scopes: BTreeSet<&str> = spec.texts("scopes").collect();
    conflicts(out, &scopes, shown, &scopes_path);
    scope_selector(out, spec, unfit, &path.child("scopeSelector").child("matchExpressions"));
}

fn conflicts(out: &mut Errors, scopes: &BTreeSet<&str>, shown: &Value, path: &Path) {
    for (a, b) in [("BestEffort", "NotBestEffort"), ("NotTerminating", "Terminating")] {
        if scopes.contains(a) && scopes.contains(b) {
            out.push(Error::invalid(path, shown.clone(), "conflicting scopes"));
        }
    }
}

fn scope_selector(out: &mut Errors, spec: &Value, unfit: impl Fn(&str) -> usize, path: &Path) {
    let selector = spec.at("scopeSelector");
    let mut scopes = BTreeSet::new();
    for term in selector.items("matchExpressions") {
        let (scope, operator, values) = (term.text("scopeName"), term.text("operator"), term.items("values"));
        if !SCOPES.contains(&scope) {
            out.push(Error::invalid(&path.child("scopeName"), scope, "unsupported scope"));
        }
        for _ in 0..unfit(scope) {
            let shown = internal::show("ScopeSelector", selector);
            out.push(Error::invalid_shown(path, shown, "unsupported scope applied to resource"));
        }
        let plain = SCOPES[..4].contains(&scope) || scope == "CrossNamespacePodAffinity";
        if plain && operator != "Exists" {
            let detail = "must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, \
                          ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort, \
                          ResourceQuotaScopeNotBestEffort or ResourceQuotaScopeCrossNamespacePodAffinity";
            out.push(Error::invalid(&path.child("operator"), operator, detail));
        }
        let values_path = path.child("values");
        match operator {
            "In" | "NotIn" if values.is_empty() => {
                let detail = "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector";
                out.push(Error::required(&values_path, detail));
            }
            "Exists" | "DoesNotExist" if !values.is_empty() => {
                let detail = "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector";
                out.push(Error::invalid(&values_path, values.to_vec(), detail));
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            other => out.push(Error::invalid(&path.child("operator"), other, "not a valid selector operator")),
        }
        scopes.insert(scope);
    }
    conflicts(out, &scopes, spec.at("scopes"), path);
}

//! Configurations of webhooks.

use std::collections::BTreeSet;

use super::matching::{self, FAILURE_POLICIES, MATCH_POLICIES, REINVOCATION_POLICIES};
use super::{client, name_warnings};
use crate::Value;
use crate::field::{Error, Errors, Path};
use crate::kinds::rules;
use crate::kinds::view::{View, fill_pointer, items_mut, some_mut};
use crate::meta::check::{self, SelectorOptions};
use crate::meta::names;
use crate::resources::{Context, Strategy};

/// Versions of AdmissionReview that the server speaks.
const VERSIONS: [&str; 2] = ["v1", "v1beta1"];
const NO_EFFECTS: [&str; 2] = ["None", "NoneOnDryRun"];
const EFFECTS: [&str; 4] = ["None", "NoneOnDryRun", "Some", "Unknown"];

/// What is asked of hooks: less where the old object did without.
#[derive(Clone, Copy)]
struct Demands {
    no_effects: bool,
    known_version: bool,
    unique_names: bool,
    label_values: bool,
    conditions: bool,
}

impl Demands {
    const ALL: Self =
        Self { no_effects: true, known_version: true, unique_names: true, label_values: true, conditions: true };

    fn of(new: &Value, old: &Value) -> Self {
        let (new, old) = (new.items("webhooks"), old.items("webhooks"));
        let known = |hook: &Value| {
            let mut versions = hook.texts("admissionReviewVersions").peekable();
            versions.peek().is_none() || versions.any(|version| VERSIONS.contains(&version))
        };
        let names: BTreeSet<&str> = old.iter().map(|hook| hook.text("name")).collect();
        let bad_label = |hook: &Value| {
            ["namespaceSelector", "objectSelector"].iter().any(|f| check::selector_has_bad_value(hook.at(f)))
        };
        let conditions =
            |hooks: &[Value]| hooks.iter().map(|hook| hook.at("matchConditions").clone()).collect::<Vec<_>>();
        Self {
            no_effects: old.iter().all(|hook| NO_EFFECTS.contains(&hook.text("sideEffects"))),
            known_version: old.iter().all(known),
            unique_names: names.len() == old.len(),
            label_values: !old.iter().any(bad_label),
            conditions: conditions(new) != conditions(old),
        }
    }
}

fn default(object: &mut Value, mutating: bool) {
    for hook in items_mut(object, "webhooks") {
        fill_pointer(hook, "failurePolicy", "Fail");
        matching::default_match(hook);
        fill_pointer(hook, "timeoutSeconds", 10);
        if mutating {
            fill_pointer(hook, "reinvocationPolicy", "Never");
        }
        items_mut(hook, "rules").iter_mut().for_each(|rule| fill_pointer(rule, "scope", "*"));
        if let Some(service) = hook.get_mut("clientConfig").and_then(|config| some_mut(config, "service")) {
            fill_pointer(service, "port", 443);
        }
    }
}

fn all(out: &mut Errors, new: &Value, demands: Demands) {
    let mut seen = BTreeSet::new();
    for (i, hook) in new.items("webhooks").iter().enumerate() {
        let path = Path::new("webhooks").index(i);
        one(out, hook, demands, &path);
        versions(out, hook, demands.known_version, &path.child("admissionReviewVersions"));
        let name = hook.text("name");
        if demands.unique_names && !name.is_empty() && !seen.insert(name) {
            out.push(Error::duplicate(&path.child("name"), name));
        }
    }
}

fn one(out: &mut Errors, hook: &Value, demands: Demands, path: &Path) {
    full_name(out, hook.text("name"), &path.child("name"));
    for (i, rule) in hook.items("rules").iter().enumerate() {
        matching::rule(out, rule, &path.child("rules").index(i));
    }
    rules::supported_if_set(out, hook, "failurePolicy", &FAILURE_POLICIES, path);
    rules::supported_if_set(out, hook, "matchPolicy", &MATCH_POLICIES, path);
    let effects: &[&str] = if demands.no_effects { &NO_EFFECTS } else { &EFFECTS };
    if hook.has("sideEffects") {
        rules::supported_if_set(out, hook, "sideEffects", effects, path);
    } else {
        let detail = format!("must specify one of {}", effects.join(", "));
        out.push(Error::required(&path.child("sideEffects"), detail));
    }
    if let Some(seconds) = hook.int("timeoutSeconds").filter(|seconds| !(1..=30).contains(seconds)) {
        let detail = "the timeout value must be between 1 and 30 seconds";
        out.push(Error::invalid(&path.child("timeoutSeconds"), seconds, detail));
    }
    for field in ["namespaceSelector", "objectSelector"] {
        let options = SelectorOptions { any_value: !demands.label_values };
        check::selector(out, hook.at(field), options, &path.child(field));
    }
    rules::supported_if_set(out, hook, "reinvocationPolicy", &REINVOCATION_POLICIES, path);
    client::config(out, hook.at("clientConfig"), &path.child("clientConfig"));
    if demands.conditions {
        matching::conditions(out, hook.items("matchConditions"), &path.child("matchConditions"));
    }
}

fn full_name(out: &mut Errors, name: &str, path: &Path) {
    if name.is_empty() {
        return out.push(Error::required(path, ""));
    }
    let wrong = names::subdomain(name);
    if !wrong.is_empty() {
        out.push(Error::invalid(path, name, wrong.join(",")));
    } else if name.split('.').count() < 3 {
        let detail = "should be a domain with at least three segments separated by dots";
        out.push(Error::invalid(path, name, detail));
    }
}

fn versions(out: &mut Errors, hook: &Value, known: bool, path: &Path) {
    let list = hook.at("admissionReviewVersions");
    let mut seen = BTreeSet::new();
    if hook.items("admissionReviewVersions").is_empty() {
        return out.push(Error::required(path, format!("must specify one of {}", VERSIONS.join(", "))));
    }
    for (i, version) in hook.texts("admissionReviewVersions").enumerate() {
        if !seen.insert(version) {
            out.push(Error::invalid(&path.index(i), version, "duplicate version"));
            continue;
        }
        check::push_all(out, &path.index(i), version, names::label_1035(version));
    }
    if known && !VERSIONS.iter().any(|version| seen.contains(version)) {
        let detail = format!("must include at least one of {}", VERSIONS.join(", "));
        out.push(Error::invalid(path, list.clone(), detail));
    }
}

/// Configurations of webhooks.
pub struct Webhooks {
    /// They may change objects; else they only judge.
    pub mutating: bool,
}

impl Strategy for Webhooks {
    fn default(&self, object: &mut Value) {
        default(object, self.mutating);
    }

    fn checks_meta(&self, update: bool) -> bool {
        !update
    }

    fn validate_create(&self, _cx: &Context<'_>, new: &Value) -> Errors {
        let mut out = Errors::new();
        all(&mut out, new, Demands::ALL);
        out
    }

    fn validate_update(&self, _cx: &Context<'_>, new: &Value, old: &Value) -> Errors {
        let mut out = Errors::new();
        rules::whole_metadata(&mut out, new, false, &names::dns_subdomain);
        all(&mut out, new, Demands::of(new, old));
        out
    }

    fn warnings(&self, _cx: &Context<'_>, new: &Value, _old: Option<&Value>) -> Vec<String> {
        name_warnings(new)
    }

    fn has_generation(&self) -> bool {
        true
    }
}

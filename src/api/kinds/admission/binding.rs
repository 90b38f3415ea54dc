//! What binds policies to parameters and to a part of the requests.

use std::collections::BTreeSet;

use super::{matching, name_warnings};
use crate::Value;
use crate::field::{Error, Errors, Path};
use crate::kinds::rules;
use crate::kinds::view::{View, some_mut};
use crate::meta::check::{self, SelectorOptions};
use crate::meta::names;
use crate::resources::{Context, Strategy};

fn default(object: &mut Value) {
    if let Some(resources) = object.get_mut("spec").and_then(|spec| some_mut(spec, "matchResources")) {
        matching::default_resources(resources);
    }
}

fn binding(out: &mut Errors, spec: &Value, mutating: bool) {
    let path = Path::new("spec");
    match spec.text("policyName") {
        "" => out.push(Error::required(&path.child("policyName"), "")),
        name => rules::dns_subdomain(out, name, &path.child("policyName")),
    }
    if let Some(reference) = spec.some("paramRef") {
        param(out, reference, &path.child("paramRef"));
    }
    if let Some(resources) = spec.some("matchResources") {
        matching::resources(out, resources, &path.child("matchResources"));
        if mutating {
            matching::mutating_operations(out, resources, &path.child("matchResources"));
        }
    }
    if !mutating {
        actions(out, spec, &path.child("validationActions"));
    }
}

fn param(out: &mut Errors, of: &Value, path: &Path) {
    let (name, selector) = (of.text("name"), of.some("selector"));
    let exclusive = "name and selector are mutually exclusive";
    if !name.is_empty() {
        check::push_all(out, &path.child("name"), name, names::path_segment(name, false));
        if selector.is_some() {
            out.push(Error::forbidden(&path.child("name"), exclusive));
        }
    }
    if let Some(selector) = selector {
        check::selector(out, selector, SelectorOptions::default(), &path.child("selector"));
        if !name.is_empty() {
            out.push(Error::forbidden(&path.child("selector"), exclusive));
        }
    } else if name.is_empty() {
        out.push(Error::required(path, "one of name or selector must be specified"));
    }
    let (action, action_path) = (of.text("parameterNotFoundAction"), path.child("parameterNotFoundAction"));
    rules::one_of(out, action, &["Deny", "Allow"], &action_path);
}

fn actions(out: &mut Errors, spec: &Value, path: &Path) {
    let mut seen = BTreeSet::new();
    for (i, action) in spec.texts("validationActions").enumerate() {
        rules::supported(out, action, &["Audit", "Deny", "Warn"], &path.index(i));
        if !seen.insert(action) {
            out.push(Error::duplicate(&path.index(i), action));
        }
    }
    if seen.contains("Deny") && seen.contains("Warn") {
        let detail = "must not contain both Deny and Warn (repeating the same validation failure information in the API \
                      response and headers serves no purpose)";
        out.push(Error::invalid(path, spec.at("validationActions").clone(), detail));
    }
    if seen.is_empty() {
        out.push(Error::required(path, "at least one validation action is required"));
    }
}

/// Bindings of admission policies.
pub struct Binding {
    /// The policies change objects; else they judge.
    pub mutating: bool,
}

impl Strategy for Binding {
    fn default(&self, object: &mut Value) {
        default(object);
    }

    fn checks_meta(&self, update: bool) -> bool {
        !update
    }

    fn validate_create(&self, _cx: &Context<'_>, new: &Value) -> Errors {
        let mut out = Errors::new();
        binding(&mut out, new.at("spec"), self.mutating);
        out
    }

    fn validate_update(&self, cx: &Context<'_>, new: &Value, _old: &Value) -> Errors {
        let mut out = Errors::new();
        rules::as_new(&mut out, self, cx, new);
        out
    }

    fn warnings(&self, _cx: &Context<'_>, new: &Value, _old: Option<&Value>) -> Vec<String> {
        name_warnings(new)
    }

    fn has_generation(&self) -> bool {
        true
    }
}

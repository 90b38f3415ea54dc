//! Which requests a hook or a policy is for.

use std::collections::BTreeSet;

use serde_json::json;

use crate::Value;
use crate::field::{Error, Errors, Path};
use crate::kinds::rules;
use crate::kinds::view::{View, fill_pointer, items_mut};
use crate::meta::check::{self, SelectorOptions};
use crate::meta::names;

pub(super) const FAILURE_POLICIES: [&str; 2] = ["Fail", "Ignore"];
pub(super) const MATCH_POLICIES: [&str; 2] = ["Equivalent", "Exact"];
pub(super) const REINVOCATION_POLICIES: [&str; 2] = ["IfNeeded", "Never"];
const OPERATIONS: [&str; 5] = ["*", "CONNECT", "CREATE", "DELETE", "UPDATE"];
const MUTATING_OPERATIONS: [&str; 4] = ["*", "CONNECT", "CREATE", "UPDATE"];
/// Most conditions.
const MAX_CONDITIONS: usize = 64;

/// Defaults of what hooks and policies match by.
pub(super) fn default_match(of: &mut Value) {
    fill_pointer(of, "matchPolicy", "Equivalent");
    fill_pointer(of, "namespaceSelector", json!({}));
    fill_pointer(of, "objectSelector", json!({}));
}

/// Defaults of a policy's `matchConstraints` or of a binding's `matchResources`.
pub(super) fn default_resources(of: &mut Value) {
    default_match(of);
    for field in ["resourceRules", "excludeResourceRules"] {
        items_mut(of, field).iter_mut().for_each(|rule| fill_pointer(rule, "scope", "*"));
    }
}

/// A policy's `matchConstraints` or a binding's `matchResources`.
pub(super) fn resources(out: &mut Errors, of: &Value, path: &Path) {
    match of.at("matchPolicy").as_str() {
        None => out.push(Error::required(&path.child("matchPolicy"), "")),
        Some(policy) => rules::supported(out, policy, &MATCH_POLICIES, &path.child("matchPolicy")),
    }
    for field in ["namespaceSelector", "objectSelector"] {
        match of.some(field) {
            None => out.push(Error::required(&path.child(field), "")),
            Some(selector) => check::selector(out, selector, SelectorOptions::default(), &path.child(field)),
        }
    }
    for field in ["resourceRules", "excludeResourceRules"] {
        for (i, rule) in of.items(field).iter().enumerate() {
            let path = path.child(field).index(i);
            resource_names(out, rule, &path.child("resourceNames"));
            self::rule(out, rule, &path);
        }
    }
}

/// Operations that change nothing can't be mutated.
pub(super) fn mutating_operations(out: &mut Errors, of: &Value, path: &Path) {
    let path = path.child("resourceRules").child("operations");
    for operation in of.items("resourceRules").iter().flat_map(|rule| rule.texts("operations")) {
        rules::supported(out, operation, &MUTATING_OPERATIONS, &path);
    }
}

fn resource_names(out: &mut Errors, rule: &Value, path: &Path) {
    let mut seen = BTreeSet::new();
    for (i, name) in rule.texts("resourceNames").enumerate() {
        check::push_all(out, &path.index(i), name, names::path_segment(name, false));
        if !seen.insert(name) {
            out.push(Error::duplicate(&path.index(i), name));
        }
    }
}

/// A rule with operations.
pub(super) fn rule(out: &mut Errors, rule: &Value, path: &Path) {
    alone(out, rule, "operations", "operations", path);
    for (i, operation) in rule.texts("operations").enumerate() {
        rules::supported(out, operation, &OPERATIONS, &path.child("operations").index(i));
    }
    alone(out, rule, "apiGroups", "API groups", path);
    alone(out, rule, "apiVersions", "API versions", path);
    for (i, version) in rule.texts("apiVersions").enumerate() {
        if version.is_empty() {
            out.push(Error::required(&path.child("apiVersions").index(i), ""));
        }
    }
    rule_resources(out, rule, &path.child("resources"));
    rules::supported_if_set(out, rule, "scope", &["*", "Cluster", "Namespaced"], path);
}

/// A list that is not empty and has nothing beside a wildcard.
fn alone(out: &mut Errors, rule: &Value, field: &str, called: &str, path: &Path) {
    let (list, path) = (rule.items(field), path.child(field));
    if list.is_empty() {
        out.push(Error::required(&path, ""));
    } else if list.len() > 1 && list.iter().any(|v| v == "*") {
        let detail = format!("if '*' is present, must not specify other {called}");
        out.push(Error::invalid(&path, rule.at(field).clone(), detail));
    }
}

fn rule_resources(out: &mut Errors, rule: &Value, path: &Path) {
    if rule.items("resources").is_empty() {
        out.push(Error::required(path, ""));
    }
    let (mut all_of, mut in_all) = (BTreeSet::new(), BTreeSet::new());
    let mut plain = false;
    for (i, text) in rule.texts("resources").enumerate() {
        let path = path.index(i);
        if text.is_empty() {
            out.push(Error::required(&path, ""));
            continue;
        }
        let Some((resource, sub)) = text.split_once('/') else {
            plain = text != "*";
            continue;
        };
        if all_of.contains(resource) {
            let detail = format!("if '{resource}/*' is present, must not specify {text}");
            out.push(Error::invalid(&path, text, detail));
        }
        if in_all.contains(sub) {
            out.push(Error::invalid(&path, text, format!("if '*/{sub}' is present, must not specify {text}")));
        }
        if sub == "*" {
            all_of.insert(resource);
        }
        if resource == "*" {
            in_all.insert(sub);
        }
    }
    let list = rule.items("resources");
    let has = |text: &str| list.iter().any(|v| v == text);
    if list.len() > 1 && has("*/*") {
        let detail = "if '*/*' is present, must not specify other resources";
        out.push(Error::invalid(path, rule.at("resources").clone(), detail));
    }
    if has("*") && plain {
        let detail = "if '*' is present, must not specify other resources without subresources";
        out.push(Error::invalid(path, rule.at("resources").clone(), detail));
    }
}

/// `matchConditions`.
pub(super) fn conditions(out: &mut Errors, conditions: &[Value], path: &Path) {
    if conditions.len() > MAX_CONDITIONS {
        out.push(Error::too_many(path, conditions.len(), MAX_CONDITIONS));
    }
    let mut seen = BTreeSet::new();
    for (i, condition) in conditions.iter().enumerate() {
        let path = path.index(i);
        expression(out, condition, "expression", "", &path);
        match condition.text("name") {
            "" => out.push(Error::required(&path.child("name"), "")),
            name => {
                rules::qualified_name(out, name, &path.child("name"));
                if !seen.insert(name) {
                    out.push(Error::duplicate(&path.child("name"), name));
                }
            }
        }
    }
}

/// An expression that must be there.
pub(super) fn expression(out: &mut Errors, of: &Value, field: &str, missing: &str, path: &Path) {
    if of.text(field).trim().is_empty() {
        out.push(Error::required(&path.child(field), missing));
    }
}

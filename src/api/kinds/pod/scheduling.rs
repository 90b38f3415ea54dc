//! Where a pod may run: affinity, tolerations, spreading, gates.

use std::collections::BTreeSet;

use super::options::Options;
use crate::Value;
use crate::field::{Error, Errors, Path};
use crate::kinds::rules;
use crate::kinds::view::View;
use crate::meta::check::{self, push_all};
use crate::meta::names;

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

/// Node affinity, pod affinity and anti-affinity.
pub fn affinity(out: &mut Errors, affinity: &Value, options: &Options, path: &Path) {
    let node_path = path.child("nodeAffinity");
    let node = affinity.at("nodeAffinity");
    if let Some(selector) = node.some(REQUIRED) {
        node_selector(out, selector, options.any_node_affinity_value, &node_path.child(REQUIRED));
    }
    for (i, term) in node.items(PREFERRED).iter().enumerate() {
        let path = node_path.child(PREFERRED).index(i);
        weight(out, term, &path);
        node_selector_term(out, term.at("preference"), true, &path.child("preference"));
    }
    for kind in ["podAffinity", "podAntiAffinity"] {
        let (affinity, path) = (affinity.at(kind), path.child(kind));
        for (i, term) in affinity.items(REQUIRED).iter().enumerate() {
            pod_term(out, term, options, &path.child(REQUIRED).index(i));
        }
        for (i, term) in affinity.items(PREFERRED).iter().enumerate() {
            let path = path.child(PREFERRED).index(i);
            weight(out, term, &path);
            pod_term(out, term.at("podAffinityTerm"), options, &path.child("podAffinityTerm"));
        }
    }
}

fn weight(out: &mut Errors, term: &Value, path: &Path) {
    let weight = term.number("weight");
    if !(1..=100).contains(&weight) {
        out.push(Error::invalid(&path.child("weight"), weight, "must be in the range 1-100"));
    }
}

/// A selector of nodes; `any_value` lets values pass that are no label values.
pub fn node_selector(out: &mut Errors, selector: &Value, any_value: bool, path: &Path) {
    let path = path.child("nodeSelectorTerms");
    let terms = selector.items("nodeSelectorTerms");
    if terms.is_empty() {
        out.push(Error::required(&path, "must have at least one node selector term"));
    }
    for (i, term) in terms.iter().enumerate() {
        node_selector_term(out, term, any_value, &path.index(i));
    }
}

/// True when a selector of nodes has a value that is no label value.
pub fn has_bad_value(selector: &Value) -> bool {
    let terms = selector.items("nodeSelectorTerms").iter();
    let mut values = terms.flat_map(|term| term.items("matchExpressions")).flat_map(|e| e.texts("values"));
    values.any(|value| !names::label_value(value).is_empty())
}

fn node_selector_term(out: &mut Errors, term: &Value, any_value: bool, path: &Path) {
    for (i, requirement) in term.items("matchExpressions").iter().enumerate() {
        node_requirement(out, requirement, any_value, &path.child("matchExpressions").index(i));
    }
    for (i, requirement) in term.items("matchFields").iter().enumerate() {
        node_field(out, requirement, &path.child("matchFields").index(i));
    }
}

fn node_requirement(out: &mut Errors, requirement: &Value, any_value: bool, path: &Path) {
    let count = requirement.items("values").len();
    let values = path.child("values");
    match requirement.text("operator") {
        "In" | "NotIn" if count == 0 => {
            out.push(Error::required(&values, "must be specified when `operator` is 'In' or 'NotIn'"));
        }
        "Exists" | "DoesNotExist" if count > 0 => {
            out.push(Error::forbidden(&values, "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"));
        }
        "Gt" | "Lt" if count != 1 => {
            out.push(Error::required(&values, "must be specified single value when `operator` is 'Lt' or 'Gt'"));
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" | "Gt" | "Lt" => {}
        other => out.push(Error::invalid(&path.child("operator"), other, "not a valid selector operator")),
    }
    check::label_key(out, requirement.text("key"), &path.child("key"));
    if !any_value {
        for (i, value) in requirement.texts("values").enumerate() {
            push_all(out, &values.index(i), value, names::label_value(value));
        }
    }
}

fn node_field(out: &mut Errors, requirement: &Value, path: &Path) {
    match requirement.text("operator") {
        "In" | "NotIn" => {
            if requirement.items("values").len() != 1 {
                let detail = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector";
                out.push(Error::required(&path.child("values"), detail));
            }
        }
        other => out.push(Error::invalid(&path.child("operator"), other, "not a valid selector operator")),
    }
    match requirement.text("key") {
        "metadata.name" => {
            for (i, value) in requirement.texts("values").enumerate() {
                rules::dns_subdomain(out, value, &path.child("values").index(i));
            }
        }
        other => out.push(Error::invalid(&path.child("key"), other, "not a valid field selector key")),
    }
}

fn pod_term(out: &mut Errors, term: &Value, options: &Options, path: &Path) {
    for field in ["labelSelector", "namespaceSelector"] {
        label_selector(out, term.at(field), options.any_selector_value, &path.child(field));
    }
    for name in term.texts("namespaces") {
        rules::dns_label(out, name, &path.child("namespace"));
    }
    label_keys(out, term, path);
    let (key, path) = (term.text("topologyKey"), path.child("topologyKey"));
    if key.is_empty() {
        out.push(Error::required(&path, "can not be empty"));
    }
    check::label_key(out, key, &path);
}

/// A label selector, absent or not.
pub fn label_selector(out: &mut Errors, selector: &Value, any_value: bool, path: &Path) {
    check::selector(out, selector, check::SelectorOptions { any_value }, path);
}

/// Keys whose values are taken from the pod, in an affinity term or a spread constraint.
pub fn label_keys(out: &mut Errors, term: &Value, path: &Path) {
    let selector = term.at("labelSelector");
    for field in ["matchLabelKeys", "mismatchLabelKeys"] {
        let path = path.child(field);
        if !term.items(field).is_empty() && selector.is_null() {
            out.push(Error::forbidden(&path, "must not be specified when labelSelector is not set"));
            continue;
        }
        for (i, key) in term.texts(field).enumerate() {
            check::label_key(out, key, &path.index(i));
        }
    }
    let mut selected: BTreeSet<&str> = selector.pairs("matchLabels").map(|(key, _)| key).collect();
    for key in selector.items("matchExpressions").iter().map(|e| e.text("key")) {
        let last = term.items("matchLabelKeys").iter().rposition(|k| k == key);
        if let Some(i) = last.filter(|_| selected.contains(key)) {
            out.push(Error::invalid(&path.index(i), key, "exists in both matchLabelKeys and labelSelector"));
        }
        selected.insert(key);
    }
    for (i, key) in term.texts("matchLabelKeys").enumerate() {
        if term.texts("mismatchLabelKeys").any(|other| other == key) {
            let detail = "exists in both matchLabelKeys and mismatchLabelKeys";
            out.push(Error::invalid(&path.child("matchLabelKeys").index(i), key, detail));
        }
    }
}

/// Keys of a spread constraint by the rule of older versions.
fn old_spread_keys(out: &mut Errors, constraint: &Value, path: &Path) {
    if constraint.items("matchLabelKeys").is_empty() {
        return;
    }
    let selector = constraint.at("labelSelector");
    if selector.is_null() {
        out.push(Error::forbidden(path, "must not be specified when labelSelector is not set"));
    }
    let mut selected: BTreeSet<&str> = selector.pairs("matchLabels").map(|(key, _)| key).collect();
    selected.extend(selector.items("matchExpressions").iter().map(|e| e.text("key")));
    for (i, key) in constraint.texts("matchLabelKeys").enumerate() {
        check::label_key(out, key, &path.index(i));
        if selected.contains(key) {
            out.push(Error::invalid(&path.index(i), key, "exists in both matchLabelKeys and labelSelector"));
        }
    }
}

/// Spread constraints.
pub fn spread(out: &mut Errors, constraints: &[Value], options: &Options, path: &Path) {
    let key = |c: &Value| (c.text("topologyKey").to_string(), c.text("whenUnsatisfiable").to_string());
    for (i, constraint) in constraints.iter().enumerate() {
        let path = path.index(i);
        let action = constraint.text("whenUnsatisfiable");
        rules::positive(out, constraint.number("maxSkew"), &path.child("maxSkew"));
        if constraint.text("topologyKey").is_empty() {
            out.push(Error::required(&path.child("topologyKey"), "can not be empty"));
        }
        let actions = ["DoNotSchedule", "ScheduleAnyway"];
        rules::supported(out, action, &actions, &path.child("whenUnsatisfiable"));
        if constraints[i + 1..].iter().any(|other| key(other) == key(constraint)) {
            let text = format!("{{{}, {action}}}", constraint.text("topologyKey"));
            out.push(Error::duplicate(&path.child("{topologyKey, whenUnsatisfiable}"), text));
        }
        min_domains(out, constraint, action, &path.child("minDomains"));
        for field in ["nodeAffinityPolicy", "nodeTaintsPolicy"] {
            rules::supported_if_set(out, constraint, field, &["Honor", "Ignore"], &path);
        }
        if options.old_spread_keys {
            old_spread_keys(out, constraint, &path.child("matchLabelKeys"));
        } else {
            label_keys(out, constraint, &path);
        }
        if !options.any_spread_selector {
            label_selector(out, constraint.at("labelSelector"), false, &path.child("labelSelector"));
        }
    }
}

fn min_domains(out: &mut Errors, constraint: &Value, action: &str, path: &Path) {
    let Some(domains) = constraint.int("minDomains") else { return };
    rules::positive(out, domains, path);
    if action != "DoNotSchedule" {
        let detail = format!("can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {action}");
        out.push(Error::invalid(path, domains, detail));
    }
}

/// Gates that keep a pod from being scheduled.
pub fn gates(out: &mut Errors, gates: &[Value], path: &Path) {
    let mut seen = BTreeSet::new();
    for (i, gate) in gates.iter().enumerate() {
        let name = gate.text("name");
        rules::qualified_name(out, name, &path.index(i));
        if !seen.insert(name) {
            out.push(Error::duplicate(&path.index(i), name));
        }
    }
}

/// Effects of taints, in upstream's order.
pub const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];

/// Tolerations.
pub fn tolerations(out: &mut Errors, tolerations: &[Value], options: &Options, path: &Path) {
    for (i, toleration) in tolerations.iter().enumerate() {
        let path = path.index(i);
        let (key, operator) = (toleration.text("key"), toleration.text("operator"));
        let effect = toleration.text("effect");
        if !key.is_empty() {
            check::label_key(out, key, &path.child("key"));
        } else if operator != "Exists" {
            let detail = "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
            out.push(Error::invalid(&path.child("operator"), operator, detail));
        }
        if toleration.has("tolerationSeconds") && effect != "NoExecute" {
            let detail = "effect must be 'NoExecute' when `tolerationSeconds` is set";
            out.push(Error::invalid(&path.child("effect"), effect, detail));
        }
        toleration_value(out, toleration, operator, options, &path);
        if !effect.is_empty() {
            rules::supported(out, effect, &EFFECTS, &path.child("effect"));
        }
    }
}

fn toleration_value(out: &mut Errors, toleration: &Value, operator: &str, options: &Options, path: &Path) {
    let value = toleration.text("value");
    let path_operator = path.child("operator");
    match operator {
        "Equal" | "" => {
            let wrong = names::label_value(value);
            if !wrong.is_empty() {
                out.push(Error::invalid(&path_operator, value, wrong.join(";")));
            }
        }
        "Exists" if !value.is_empty() => {
            out.push(Error::invalid(&path_operator, value, "value must be empty when `operator` is 'Exists'"));
        }
        "Exists" => {}
        "Lt" | "Gt" if options.comparing_tolerations => {
            if value.parse::<i64>().is_err() {
                let detail = format!("strconv.ParseInt: parsing {}: invalid syntax", crate::field::quote(value));
                out.push(Error::invalid(&path.child("value"), value, detail));
            }
        }
        "Lt" | "Gt" => refused(out, operator, &["Equal", "Exists", "Lt", "Gt"], &path_operator),
        other => refused(out, other, &["Equal", "Exists"], &path_operator),
    }
}

/// Refuses a value in any case, also where the list of what is supported names it.
fn refused(out: &mut Errors, value: &str, allowed: &[&str], path: &Path) {
    out.push(Error::not_supported(path, value, allowed));
}

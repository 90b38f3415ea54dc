//! When a job counts as failed or done before its time.

use std::collections::BTreeSet;

use super::indexes;
use crate::Value;
use crate::field::{Error, Errors, Path};
use crate::kinds::rules;
use crate::kinds::view::View;

/// An error that does not show the value.
pub(super) fn without_value(path: &Path, detail: &str) -> Error {
    Error { value: None, ..Error::invalid(path, Value::Null, detail) }
}

const ACTIONS: &[&str] = &["Count", "FailIndex", "FailJob", "Ignore"];
const STATUSES: &[&str] = &["False", "True", "Unknown"];
const OPERATORS: &[&str] = &["In", "NotIn"];

fn valid_values(list: &[&str]) -> String {
    let quoted: Vec<String> = list.iter().map(|s| crate::field::quote(s)).collect();
    format!("valid values: [{}]", quoted.join(" "))
}

fn one_of(out: &mut Errors, value: &str, list: &[&str], path: &Path) {
    match value {
        "" => out.push(Error::required(path, valid_values(list))),
        value => rules::supported(out, value, list, path),
    }
}

/// What a failed pod means.
pub(super) fn pod_failure(out: &mut Errors, spec: &Value, path: &Path) {
    let rules_path = path.child("rules");
    let list = spec.at("podFailurePolicy").items("rules");
    if list.len() > 20 {
        out.push(Error::too_many(&rules_path, list.len(), 20));
    }
    let pod = spec.at("template").at("spec");
    let containers: BTreeSet<&str> =
        ["containers", "initContainers"].iter().flat_map(|l| pod.items(l)).map(|c| c.text("name")).collect();
    for (i, rule) in list.iter().enumerate() {
        failure_rule(out, spec, rule, &containers, &rules_path.index(i));
    }
}

fn failure_rule(out: &mut Errors, spec: &Value, rule: &Value, containers: &BTreeSet<&str>, path: &Path) {
    let (action, action_path) = (rule.text("action"), path.child("action"));
    if action == "FailIndex" {
        if !spec.has("backoffLimitPerIndex") {
            out.push(Error::invalid(&action_path, action, "requires the backoffLimitPerIndex to be set"));
        }
    } else {
        one_of(out, action, ACTIONS, &action_path);
    }
    let (codes, conditions) = (rule.some("onExitCodes"), rule.items("onPodConditions"));
    if let Some(codes) = codes {
        exit_codes(out, codes, containers, &path.child("onExitCodes"));
    }
    if !conditions.is_empty() {
        pod_conditions(out, conditions, &path.child("onPodConditions"));
    }
    match (codes.is_some(), !conditions.is_empty()) {
        (true, true) => {
            out.push(without_value(path, "specifying both OnExitCodes and OnPodConditions is not supported"));
        }
        (false, false) => {
            out.push(without_value(path, "specifying one of OnExitCodes and OnPodConditions is required"));
        }
        _ => {}
    }
}

fn pod_conditions(out: &mut Errors, conditions: &[Value], path: &Path) {
    if conditions.len() > 20 {
        out.push(Error::too_many(path, conditions.len(), 20));
    }
    for (i, condition) in conditions.iter().enumerate() {
        let path = path.index(i);
        rules::qualified_name(out, condition.text("type"), &path.child("type"));
        one_of(out, condition.text("status"), STATUSES, &path.child("status"));
    }
}

fn exit_codes(out: &mut Errors, codes: &Value, containers: &BTreeSet<&str>, path: &Path) {
    let operator = codes.text("operator");
    one_of(out, operator, OPERATORS, &path.child("operator"));
    if let Some(name) = codes.at("containerName").as_str().filter(|name| !containers.contains(name)) {
        let detail = "must be one of the container or initContainer names in the pod template";
        out.push(Error::invalid(&path.child("containerName"), name, detail));
    }
    let (values, path) = (codes.items("values"), path.child("values"));
    if values.is_empty() {
        out.push(Error::invalid(&path, codes.at("values").clone(), "at least one value is required"));
    } else if values.len() > 255 {
        out.push(Error::too_many(&path, values.len(), 255));
    }
    let numbers: Vec<i64> = values.iter().map(|v| v.as_i64().unwrap_or(0)).collect();
    let mut seen = BTreeSet::new();
    for (i, code) in numbers.iter().enumerate() {
        if operator == "In" && *code == 0 {
            out.push(Error::invalid(&path.index(i), *code, "must not be 0 for the In operator"));
        }
        if !seen.insert(code) {
            out.push(Error::duplicate(&path.index(i), *code));
        }
    }
    if !numbers.is_sorted() {
        out.push(Error::invalid(&path, values.to_vec(), "must be ordered"));
    }
}

/// When enough of a job is done.
pub(super) fn success(out: &mut Errors, spec: &Value, path: &Path) {
    let path = path.child("rules");
    let list = spec.at("successPolicy").items("rules");
    if list.is_empty() {
        let detail = "at least one rules must be specified when the successPolicy is specified";
        out.push(Error::required(&path, detail));
    }
    if list.len() > 20 {
        out.push(Error::too_many(&path, list.len(), 20));
    }
    for (i, rule) in list.iter().enumerate() {
        success_rule(out, rule, spec.number("completions"), &path.index(i));
    }
}

fn success_rule(out: &mut Errors, rule: &Value, completions: i64, path: &Path) {
    let (count, text) = (rule.int("succeededCount"), rule.at("succeededIndexes").as_str());
    if count.is_none() && text.is_none() {
        let detail = "at least one of succeededCount or succeededIndexes must be specified";
        out.push(Error::required(path, detail));
    }
    let mut total = 0;
    if let Some(text) = text {
        let path = path.child("succeededIndexes");
        if text.len() > 64 * 1024 {
            out.push(Error::too_long(&path, 64 * 1024));
        }
        match indexes::count(text, completions) {
            Ok(count) => total = count,
            Err(why) => out.push(Error::invalid(&path, text, format!("error parsing succeededIndexes: {why}"))),
        }
    }
    let Some(count) = count else { return };
    let path = path.child("succeededCount");
    rules::not_negative(out, count, &path);
    let mut at_most = |most: i64, what: &str| {
        if count > most {
            let detail = format!("must be less than or equal to {most} (the number of {what})");
            out.push(Error::invalid(&path, count, detail));
        }
    };
    at_most(completions, "specified completions");
    if text.is_some() {
        at_most(total, "indexes in the specified succeededIndexes field");
    }
}

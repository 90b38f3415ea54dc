//! Admission policies.

use std::collections::BTreeSet;

use super::matching::{self, FAILURE_POLICIES, REINVOCATION_POLICIES};
use super::name_warnings;
use crate::Value;
use crate::field::{Error, Errors, Path};
use crate::kinds::halves;
use crate::kinds::rules;
use crate::kinds::view::{View, fill_pointer, set, some_mut, structure};
use crate::meta::names;
use crate::resources::{Context, Strategy};

/// Most annotations for the audit log that a policy may make, and most bytes of the expression of one.
const MAX_ANNOTATIONS: usize = 20;
const MAX_ANNOTATION_EXPRESSION: usize = 5 * 1024;
const UNSPECIFIED: &str = "expression is not specified";
/// Words that are no names in CEL.
const RESERVED: [&str; 21] = [
    "true",
    "false",
    "null",
    "in",
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
];

fn default(object: &mut Value) {
    let spec = structure(object, "spec");
    fill_pointer(spec, "failurePolicy", "Fail");
    if let Some(constraints) = some_mut(spec, "matchConstraints") {
        matching::default_resources(constraints);
    }
}

/// What both kinds of policies have, up to their variables.
fn common(out: &mut Errors, spec: &Value, old: Option<&Value>, mutating: bool) {
    let path = Path::new("spec");
    match spec.at("failurePolicy").as_str() {
        None => out.push(Error::required(&path.child("failurePolicy"), "")),
        Some(policy) => rules::supported(out, policy, &FAILURE_POLICIES, &path.child("failurePolicy")),
    }
    if let Some(kind) = spec.some("paramKind") {
        param_kind(out, kind, &path.child("paramKind"));
    }
    let constraints_path = path.child("matchConstraints");
    match spec.some("matchConstraints") {
        None => out.push(Error::required(&constraints_path, "")),
        Some(constraints) => {
            matching::resources(out, constraints, &constraints_path);
            if constraints.items("resourceRules").is_empty() {
                out.push(Error::required(&constraints_path.child("resourceRules"), ""));
            }
            if mutating {
                matching::mutating_operations(out, constraints, &constraints_path);
            }
        }
    }
    let same = |old: &Value| ["paramKind", "matchConditions"].iter().all(|field| spec.at(field) == old.at(field));
    if !old.is_some_and(same) {
        matching::conditions(out, spec.items("matchConditions"), &path.child("matchConditions"));
    }
    for (i, variable) in spec.items("variables").iter().enumerate() {
        let path = path.child("variables").index(i);
        let name = variable.text("name");
        if name.trim().is_empty() {
            out.push(Error::required(&path.child("name"), "name is not specified"));
        } else if !names::c_identifier(name).is_empty() || RESERVED.contains(&name) {
            out.push(Error::invalid(&path.child("name"), name, "must be a valid CEL identifier"));
        }
        matching::expression(out, variable, "expression", UNSPECIFIED, &path);
    }
}

fn param_kind(out: &mut Errors, of: &Value, path: &Path) {
    let (version_path, text) = (path.child("apiVersion"), of.text("apiVersion"));
    let (group, version) = text.split_once('/').unwrap_or(("", text));
    if text.is_empty() {
        out.push(Error::required(&version_path, ""));
    } else if version.contains('/') {
        out.push(Error::invalid(&version_path, text, format!("unexpected GroupVersion string: {text}")));
    } else {
        let wrong = names::subdomain(group);
        if !group.is_empty() && !wrong.is_empty() {
            out.push(Error::invalid(&version_path, group, wrong.join(",")));
        }
        let wrong = names::label_1035(version);
        if version.is_empty() {
            out.push(Error::invalid(&version_path, text, "version must be specified"));
        } else if !wrong.is_empty() {
            out.push(Error::invalid(&version_path, version, wrong.join(",")));
        }
    }
    let (kind, kind_path) = (of.text("kind"), path.child("kind"));
    let wrong = names::label_1035(&kind.to_lowercase());
    if kind.is_empty() {
        out.push(Error::required(&kind_path, ""));
    } else if !wrong.is_empty() {
        let detail = format!("may have mixed case, but should otherwise match: {}", wrong.join(","));
        out.push(Error::invalid(&kind_path, kind, detail));
    }
}

/// Policies that judge.
pub struct ValidatingPolicy;

impl Strategy for ValidatingPolicy {
    fn default(&self, object: &mut Value) {
        default(object);
    }

    fn prepare_create(&self, _cx: &Context<'_>, new: &mut Value) {
        set(new, "status", crate::Map::new());
    }

    fn prepare_update(&self, cx: &Context<'_>, new: &mut Value, old: &Value) {
        halves::split_with_metadata(cx, new, old);
    }

    fn checks_meta(&self, update: bool) -> bool {
        !update
    }

    fn validate_create(&self, _cx: &Context<'_>, new: &Value) -> Errors {
        let mut out = Errors::new();
        validating(&mut out, new, None);
        out
    }

    fn validate_update(&self, cx: &Context<'_>, new: &Value, old: &Value) -> Errors {
        let mut out = Errors::new();
        if cx.subresource == "status" {
            status(&mut out, new.at("status"), &Path::new("status"));
        } else {
            rules::whole_metadata(&mut out, new, false, &names::dns_subdomain);
            validating(&mut out, new, Some(old.at("spec")));
        }
        out
    }

    fn warnings(&self, _cx: &Context<'_>, new: &Value, _old: Option<&Value>) -> Vec<String> {
        name_warnings(new)
    }

    fn has_generation(&self) -> bool {
        true
    }

    fn reset_fields(&self, subresource: &str) -> &'static [&'static [&'static str]] {
        halves::reset_with_metadata(subresource)
    }
}

fn status(out: &mut Errors, status: &Value, path: &Path) {
    let warnings = path.child("typeChecking").child("expressionWarnings");
    for (i, warning) in status.at("typeChecking").items("expressionWarnings").iter().enumerate() {
        rules::required(out, warning, "warning", &warnings.index(i));
        if warning.text("fieldRef").trim().is_empty() {
            out.push(Error::required(&warnings.index(i).child("fieldRef"), ""));
        }
    }
    rules::conditions(out, status.items("conditions"), &path.child("conditions"));
}

fn validating(out: &mut Errors, new: &Value, old: Option<&Value>) {
    let (spec, path) = (new.at("spec"), Path::new("spec"));
    common(out, spec, old, false);
    let (judgements, annotations) = (spec.items("validations"), spec.items("auditAnnotations"));
    if judgements.is_empty() && annotations.is_empty() {
        let detail = "validations or auditAnnotations must contain at least one item";
        out.push(Error::required(&path.child("validations"), detail));
        out.push(Error::required(&path.child("auditAnnotations"), detail));
        return;
    }
    for (i, judgement) in judgements.iter().enumerate() {
        validation(out, judgement, &path.child("validations").index(i));
    }
    let path = path.child("auditAnnotations");
    if annotations.len() > MAX_ANNOTATIONS {
        let detail = format!("must not have more than {MAX_ANNOTATIONS} auditAnnotations");
        out.push(Error::invalid(&path, spec.at("auditAnnotations").clone(), detail));
    }
    let mut seen = BTreeSet::new();
    for (i, annotation) in annotations.iter().enumerate() {
        let (path, key) = (path.index(i), annotation.text("key"));
        self::annotation(out, annotation, new.at("metadata").text("name"), &path);
        if !seen.insert(key) {
            out.push(Error::duplicate(&path.child("key"), key));
        }
    }
}

fn validation(out: &mut Errors, of: &Value, path: &Path) {
    matching::expression(out, of, "expression", UNSPECIFIED, path);
    for field in ["messageExpression", "message"] {
        let text = of.text(field);
        if !text.is_empty() && text.trim().is_empty() {
            out.push(Error::invalid(&path.child(field), text, "must be non-empty if specified"));
        } else if field == "message" && text.trim().contains(['\n', '\r']) {
            out.push(Error::invalid(&path.child(field), text, "must not contain line breaks"));
        }
    }
    rules::supported_if_set(out, of, "reason", &["Forbidden", "Invalid", "RequestEntityTooLarge"], path);
}

fn annotation(out: &mut Errors, of: &Value, name: &str, path: &Path) {
    let (key, value) = (of.text("key"), of.text("valueExpression").trim());
    if name.is_empty() {
        out.push(Error::invalid(&path.child("key"), key, "requires metadata.name be non-empty"));
    } else {
        rules::qualified_name(out, &format!("{name}/{key}"), &path.child("key"));
    }
    let value_path = path.child("valueExpression");
    if value.is_empty() {
        out.push(Error::required(&value_path, "valueExpression is not specified"));
    } else if value.len() > MAX_ANNOTATION_EXPRESSION {
        let detail = format!("must not exceed {MAX_ANNOTATION_EXPRESSION} bytes in length");
        out.push(Error::required(&value_path, detail));
    }
}

/// Policies that change objects. They are stored as v1beta1, which is the same.
pub struct MutatingPolicy;

impl Strategy for MutatingPolicy {
    fn default(&self, object: &mut Value) {
        default(object);
    }

    fn checks_meta(&self, update: bool) -> bool {
        !update
    }

    fn validate_create(&self, _cx: &Context<'_>, new: &Value) -> Errors {
        let mut out = Errors::new();
        mutating(&mut out, new.at("spec"), None);
        out
    }

    fn validate_update(&self, _cx: &Context<'_>, new: &Value, old: &Value) -> Errors {
        let mut out = Errors::new();
        rules::whole_metadata(&mut out, new, false, &names::dns_subdomain);
        mutating(&mut out, new.at("spec"), Some(old.at("spec")));
        out
    }

    fn warnings(&self, _cx: &Context<'_>, new: &Value, _old: Option<&Value>) -> Vec<String> {
        name_warnings(new)
    }

    fn has_generation(&self) -> bool {
        true
    }
}

fn mutating(out: &mut Errors, spec: &Value, old: Option<&Value>) {
    let path = Path::new("spec");
    common(out, spec, old, true);
    let mutations = spec.items("mutations");
    if mutations.is_empty() {
        out.push(Error::required(&path.child("mutations"), "mutations must contain at least one item"));
    }
    for (i, mutation) in mutations.iter().enumerate() {
        self::mutation(out, mutation, &path.child("mutations").index(i));
    }
    rules::one_of(out, spec.text("reinvocationPolicy"), &REINVOCATION_POLICIES, &path.child("reinvocationPolicy"));
}

fn mutation(out: &mut Errors, of: &Value, path: &Path) {
    let kind = of.text("patchType");
    let (own, other) = match kind {
        "JSONPatch" => ("jsonPatch", "applyConfiguration"),
        "ApplyConfiguration" => ("applyConfiguration", "jsonPatch"),
        _ => {
            return rules::one_of(out, kind, &["ApplyConfiguration", "JSONPatch"], &path.child("patchType"));
        }
    };
    match of.some(own) {
        None => {
            out.push(Error::required(&path.child(own), format!("must be specified when patchType is {kind}")));
        }
        Some(patch) => matching::expression(out, patch, "expression", "", &path.child(own)),
    }
    if of.has(other) {
        let detail = format!("must not be specified when patchType is {kind}");
        out.push(Error::invalid(&path.child(other), format!("{{{other}}}"), detail));
    }
}

//! What the kinds have in common that make pods out of a template.

use super::pod::options::Options;
use super::pod::{self, prepare_template};
use super::rules;
use super::view::{View, set};
use super::{halves, internal};
use crate::Value;
use crate::field::{Error, Errors, Path};
use crate::meta::check;
use crate::meta::names;
use crate::resources::Context;
use crate::selector::LabelSelector;

/// `spec`.
pub fn spec_path() -> Path {
    Path::new("spec")
}

/// A new object: no status yet, and nothing of features that are off.
pub fn create(new: &mut Value) {
    set(new, "status", crate::Map::new());
    prepare_template(new.get_mut("spec").and_then(|spec| spec.get_mut("template")), None);
}

/// [`halves::split`], and nothing new of features that are off.
pub fn update(cx: &Context<'_>, new: &mut Value, old: &Value) {
    halves::split(cx, new, old);
    if cx.subresource != "status" {
        let template = new.get_mut("spec").and_then(|spec| spec.get_mut("template"));
        prepare_template(template, Some(old.at("spec").at("template")));
    }
}

/// Tolerances for the template of an object and what it was.
pub fn options(old: Option<&Value>) -> Options {
    Options::template(old.map(|old| old.at("spec").at("template")))
}

/// Shows a label selector as upstream does.
pub fn show_selector(selector: &Value) -> String {
    internal::show("*=io.k8s.apimachinery.pkg.apis.meta.v1.LabelSelector", selector)
}

/// A selector that must be there and select something; `kind` as upstream calls it.
pub fn selector(out: &mut Errors, spec: &Value, any_value: bool, kind: &str, path: &Path) {
    let selector = spec.at("selector");
    if selector.is_null() {
        return out.push(Error::required(path, ""));
    }
    check::selector(out, selector, check::SelectorOptions { any_value }, path);
    selects_something(out, selector, kind, path);
}

/// An empty selector would select everything.
pub fn selects_something(out: &mut Errors, selector: &Value, kind: &str, path: &Path) {
    let empty = selector.entries("matchLabels").next().is_none() && selector.items("matchExpressions").is_empty();
    if !selector.is_null() && empty {
        let detail = format!("empty selector is invalid for {kind}");
        out.push(Error::invalid_shown(path, show_selector(selector), detail));
    }
}

/// The selector may not change.
pub fn same_selector(out: &mut Errors, new: &Value, old: &Value, path: &Path) {
    if new.at("selector") != old.at("selector") {
        out.push(Error::invalid_shown(path, show_selector(new.at("selector")), check::IMMUTABLE));
    }
}

/// The template's labels match the selector; `None` for a selector that can't be read.
pub fn template_is_selected(out: &mut Errors, spec: &Value, path: &Path) -> Option<()> {
    let selector = LabelSelector::from_object(spec.at("selector")).ok()?;
    let labels = spec.at("template").at("metadata").at("labels");
    // A selector that selects all is refused elsewhere.
    if !selector.is_empty() && !selector.matches(labels) {
        not_selected(out, labels, path);
    }
    Some(())
}

/// The template's labels do not match the selector.
pub fn not_selected(out: &mut Errors, labels: &Value, path: &Path) {
    let path = path.child("metadata").child("labels");
    out.push(Error::invalid(&path, labels.clone(), "`selector` does not match template `labels`"));
}

/// Pods that run for ever: they are restarted, and have no deadline. `kind` as upstream calls it.
pub fn runs_for_ever(out: &mut Errors, template: &Value, kind: &str, path: &Path) {
    let (spec, path) = (template.at("spec"), path.child("spec"));
    rules::supported(out, spec.text("restartPolicy"), &["Always"], &path.child("restartPolicy"));
    if spec.has("activeDeadlineSeconds") {
        let detail = format!("activeDeadlineSeconds in {kind} is not Supported");
        out.push(Error::forbidden(&path.child("activeDeadlineSeconds"), detail));
    }
}

/// The selector and the template of a Deployment or ReplicaSet.
pub fn selector_and_template(out: &mut Errors, spec: &Value, options: &Options) {
    let (selector_path, template_path) = (spec_path().child("selector"), spec_path().child("template"));
    selector(out, spec, false, "deployment", &selector_path);
    if template_is_selected(out, spec, &template_path).is_none() {
        let shown = show_selector(spec.at("selector"));
        return out.push(Error::invalid_shown(&selector_path, shown, "invalid label selector"));
    }
    let template = spec.at("template");
    pod::spec::template(out, template, options, &template_path);
    runs_for_ever(out, template, "ReplicaSet", &template_path);
}

/// Counts of a status: none negative, and some at most others.
pub fn counts(out: &mut Errors, status: &Value, fields: &[&str], at_most: &[(&str, &str, &str)]) {
    let path = Path::new("status");
    rules::not_negative_fields(out, status, fields, &path);
    for (field, bound, text) in at_most {
        let value = status.number(field);
        if value > status.number(bound) {
            out.push(Error::invalid(&path.child(field), value, format!("cannot be greater than {text}")));
        }
    }
}

/// A counter of the status that only grows.
pub fn grows(out: &mut Errors, new: &Value, old: &Value, field: &str) {
    if new.has(field) && old.has(field) && new.number(field) < old.number(field) {
        let path = Path::new("status").child(field);
        out.push(Error::invalid(&path, new.number(field), "cannot be decremented"));
    }
}

/// A number or a percentage, neither negative.
pub fn number_or_percent(out: &mut Errors, value: &Value, path: &Path) {
    match value.as_str() {
        Some(text) => check::push_all(out, path, text, names::percent(text)),
        None => rules::not_negative(out, value.as_i64().unwrap_or(0), path),
    }
}

/// A percentage is 100 at most.
pub fn at_most_100_percent(out: &mut Errors, value: &Value, path: &Path) {
    if percent(value).is_some_and(|percent| percent > 100) {
        out.push(Error::invalid(path, value.clone(), "must not be greater than 100%"));
    }
}

fn percent(value: &Value) -> Option<i64> {
    let text = value.as_str().filter(|text| names::percent(text).is_empty())?;
    text.trim_end_matches('%').parse().ok()
}

/// The number, or the percentage's; 0 for what is neither.
pub fn amount(value: &Value) -> i64 {
    let plain = || value.as_i64().or_else(|| value.as_str()?.parse().ok());
    percent(value).or_else(plain).unwrap_or(0)
}

/// Warnings about a name that host names are made of, and about the template at that path.
pub fn warnings(new: &Value, template: &Value, name: bool, path: &Path) -> Vec<String> {
    let mut out = Vec::new();
    let wrong = names::label(new.at("metadata").text("name"));
    if name && !wrong.is_empty() {
        out.push(format!(
            "metadata.name: this is used in Pod names and hostnames, which can result in surprising behavior; a DNS label \
             is recommended: [{}]",
            wrong.join(" ")
        ));
    }
    out.extend(pod::warnings::template(template, path));
    out
}

/// True when the spec (or, where it counts, an annotation) has changed, which is when templates are looked at again.
pub fn generation_grew(new: &Value, old: &Value) -> bool {
    new.at("metadata").number("generation") != old.at("metadata").number("generation")
}

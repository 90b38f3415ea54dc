//! IngressClasses.

use crate::Value;
use crate::field::{Error, Errors, Path};
use crate::kinds::rules;
use crate::kinds::view::{View, fill_pointer, some_mut};
use crate::meta::check::push_all;
use crate::meta::names;
use crate::resources::{Context, Strategy};

/// Most bytes that the name of a controller may have.
const MAX_CONTROLLER: usize = 250;

/// IngressClasses.
pub struct IngressClass;

impl Strategy for IngressClass {
    fn default(&self, object: &mut Value) {
        if let Some(parameters) = object.get_mut("spec").and_then(|spec| some_mut(spec, "parameters")) {
            fill_pointer(parameters, "scope", "Cluster");
        }
    }

    fn validate_create(&self, _cx: &Context<'_>, new: &Value) -> Errors {
        let mut out = Errors::new();
        let (spec, path) = (new.at("spec"), Path::new("spec"));
        let (controller, controller_path) = (spec.text("controller"), path.child("controller"));
        if controller.len() > MAX_CONTROLLER {
            out.push(Error::too_long(&controller_path, MAX_CONTROLLER));
        }
        domain_path(&mut out, controller, &controller_path);
        if let Some(parameters) = spec.some("parameters") {
            self::parameters(&mut out, parameters, &path.child("parameters"));
        }
        out
    }

    fn validate_update(&self, cx: &Context<'_>, new: &Value, old: &Value) -> Errors {
        let mut out = Errors::new();
        rules::immutable(&mut out, new.at("spec"), old.at("spec"), "controller", &Path::new("spec"));
        rules::as_new(&mut out, self, cx, new);
        out
    }

    fn has_generation(&self) -> bool {
        true
    }
}

/// `acme.io/foo`.
fn domain_path(out: &mut Errors, text: &str, path: &Path) {
    if text.is_empty() {
        return out.push(Error::required(path, ""));
    }
    let Some((host, rest)) = text.split_once('/').filter(|(host, rest)| !host.is_empty() && !rest.is_empty()) else {
        let detail = "must be a domain-prefixed path (such as \"acme.io/foo\")";
        return out.push(Error::invalid(path, text, detail));
    };
    push_all(out, path, host, names::subdomain(host));
    push_all(out, path, rest, names::http_path(rest));
}

fn parameters(out: &mut Errors, reference: &Value, path: &Path) {
    local_reference(out, reference, path);
    let (scope_path, namespace_path) = (path.child("scope"), path.child("namespace"));
    let Some(scope) = reference.at("scope").as_str() else {
        return out.push(Error::required(&scope_path, ""));
    };
    match (scope, reference.at("namespace").as_str()) {
        ("Namespace", None) => {
            out.push(Error::required(&namespace_path, "`parameters.scope` is set to 'Namespace'"));
        }
        ("Namespace", Some(namespace)) => rules::dns_label(out, namespace, &namespace_path),
        ("Cluster", Some(_)) => {
            out.push(Error::forbidden(&namespace_path, "`parameters.scope` is set to 'Cluster'"));
        }
        ("Cluster", None) => {}
        _ => rules::supported(out, scope, &["Cluster", "Namespace"], &scope_path),
    }
}

/// Group, kind and name of an object of any kind.
pub(super) fn local_reference(out: &mut Errors, reference: &Value, path: &Path) {
    if let Some(group) = reference.at("apiGroup").as_str() {
        rules::dns_subdomain(out, group, &path.child("apiGroup"));
    }
    rules::path_segment(out, reference, "kind", path);
    rules::path_segment(out, reference, "name", path);
}

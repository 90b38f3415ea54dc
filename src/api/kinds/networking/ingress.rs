//! Ingresses.

use crate::Value;
use crate::field::{Error, Errors, Path, quote};
use crate::kinds::core::host_name;
use crate::kinds::view::{View, set};
use crate::kinds::{halves, ip, rules};
use crate::meta::check::push_all;
use crate::meta::names;
use crate::resources::{Context, Strategy};

use super::class::local_reference;

/// Named the class before there was a field.
const CLASS: &str = "kubernetes.io/ingress.class";
const NO_SEQUENCES: [&str; 5] = ["//", "/./", "/../", "%2f", "%2F"];
const NO_ENDS: [&str; 2] = ["/..", "/."];

/// Ingresses.
pub struct Ingress;

/// What is let pass because it was stored so.
#[derive(Clone, Copy, Default)]
struct Tolerances {
    secret_names: bool,
    wildcard_rules: bool,
}

impl Tolerances {
    fn of(old: &Value) -> Self {
        let spec = old.at("spec");
        let bad_secret = |tls: &Value| !secret_name(tls.text("secretName")).is_empty();
        let bad_rule = |rule: &Value| {
            let mut out = Errors::new();
            rule_value(&mut out, rule, &Path::default());
            rule.text("host").contains('*') && !out.is_empty()
        };
        Self {
            secret_names: spec.items("tls").iter().any(bad_secret),
            wildcard_rules: spec.items("rules").iter().any(bad_rule),
        }
    }
}

impl Strategy for Ingress {
    fn prepare_create(&self, _cx: &Context<'_>, new: &mut Value) {
        set(new, "status", serde_json::json!({"loadBalancer": {}}));
    }

    fn prepare_update(&self, cx: &Context<'_>, new: &mut Value, old: &Value) {
        halves::split(cx, new, old);
    }

    fn validate_create(&self, _cx: &Context<'_>, new: &Value) -> Errors {
        let mut out = Errors::new();
        spec(&mut out, new.at("spec"), Tolerances::default());
        let class = new.at("spec").at("ingressClassName").as_str();
        let annotation = new.at("metadata").at("annotations").at(CLASS).as_str();
        if let (Some(class), Some(annotation)) = (class, annotation)
            && class != annotation
        {
            let path = Path::new("annotations").child(CLASS);
            out.push(Error::invalid(&path, annotation, "must match `ingressClassName` when both are specified"));
        }
        out
    }

    fn validate_update(&self, cx: &Context<'_>, new: &Value, old: &Value) -> Errors {
        let mut out = Errors::new();
        if cx.subresource == "status" {
            status(&mut out, new.at("status"), old.at("status"));
        } else {
            rules::whole_metadata(&mut out, new, true, &names::dns_subdomain);
            spec(&mut out, new.at("spec"), Tolerances::of(old));
        }
        out
    }

    fn warnings(&self, cx: &Context<'_>, new: &Value, old: Option<&Value>) -> Vec<String> {
        let mut out = Vec::new();
        if cx.subresource == "status" {
            let path = Path::new("status").child("loadBalancer").child("ingress");
            for (i, point) in new.at("status").at("loadBalancer").items("ingress").iter().enumerate() {
                ip::warnings(&mut out, point.text("ip"), &path.index(i));
            }
        } else if old.is_none()
            && new.at("metadata").at("annotations").has(CLASS)
            && !new.at("spec").has("ingressClassName")
        {
            out.push(format!("annotation {} is deprecated, please use 'spec.ingressClassName' instead", quote(CLASS)));
        }
        out
    }

    fn has_generation(&self) -> bool {
        true
    }

    fn reset_fields(&self, subresource: &str) -> &'static [&'static [&'static str]] {
        halves::reset(subresource)
    }
}

fn secret_name(name: &str) -> Vec<String> {
    if name.is_empty() { Vec::new() } else { names::subdomain(name) }
}

fn spec(out: &mut Errors, spec: &Value, tolerances: Tolerances) {
    let path = Path::new("spec");
    let backend = spec.some("defaultBackend");
    if spec.items("rules").is_empty() && backend.is_none() {
        let detail = "either `defaultBackend` or `rules` must be specified";
        out.push(Error::invalid(&path, spec.at("rules").clone(), detail));
    }
    if let Some(backend) = backend {
        self::backend(out, backend, &path.child("defaultBackend"));
    }
    for (i, rule) in spec.items("rules").iter().enumerate() {
        let path = path.child("rules").index(i);
        let (name, host_path) = (rule.text("host"), path.child("host"));
        let wildcard = host(out, name, &host_path);
        if !wildcard || !tolerances.wildcard_rules {
            rule_value(out, rule, &path);
        }
    }
    for (i, tls) in spec.items("tls").iter().enumerate() {
        let path = path.child("tls").index(i);
        for (j, host) in tls.texts("hosts").enumerate() {
            let wrong = if host.contains('*') { names::wildcard_subdomain(host) } else { names::subdomain(host) };
            push_all(out, &path.child("hosts").index(j), host, wrong);
        }
        if !tolerances.secret_names {
            let name = tls.text("secretName");
            push_all(out, &path.child("secretName"), name, secret_name(name));
        }
    }
    if let Some(class) = spec.at("ingressClassName").as_str() {
        rules::dns_subdomain(out, class, &path.child("ingressClassName"));
    }
}

/// Checks the host of a rule; true when it is a wildcard.
fn host(out: &mut Errors, host: &str, path: &Path) -> bool {
    if host.is_empty() {
        return false;
    }
    if ip::parse(host).is_some() {
        out.push(Error::invalid(path, host, "must be a DNS name, not an IP address"));
    }
    let wildcard = host.contains('*');
    push_all(out, path, host, if wildcard { names::wildcard_subdomain(host) } else { names::subdomain(host) });
    wildcard
}

fn rule_value(out: &mut Errors, rule: &Value, path: &Path) {
    let Some(http) = rule.some("http") else { return };
    let path = path.child("http").child("paths");
    if http.items("paths").is_empty() {
        out.push(Error::required(&path, ""));
    }
    for (i, item) in http.items("paths").iter().enumerate() {
        http_path(out, item, &path.index(i));
    }
}

fn http_path(out: &mut Errors, item: &Value, path: &Path) {
    let (text, text_path) = (item.text("path"), path.child("path"));
    let absolute = text.starts_with('/');
    match item.at("pathType").as_str() {
        None => return out.push(Error::required(&path.child("pathType"), "pathType must be specified")),
        Some("Exact" | "Prefix") => {
            if !absolute {
                out.push(Error::invalid(&text_path, text, "must be an absolute path"));
            }
            for part in NO_SEQUENCES.iter().filter(|part| text.contains(**part)) {
                out.push(Error::invalid(&text_path, text, format!("must not contain '{part}'")));
            }
            for end in NO_ENDS.iter().filter(|end| text.ends_with(**end)) {
                out.push(Error::invalid(&text_path, text, format!("cannot end with '{end}'")));
            }
        }
        Some("ImplementationSpecific") => {
            if !text.is_empty() && !absolute {
                out.push(Error::invalid(&text_path, text, "must be an absolute path"));
            }
        }
        Some(kind) => {
            rules::supported(out, kind, &["Exact", "ImplementationSpecific", "Prefix"], &path.child("pathType"));
        }
    }
    backend(out, item.at("backend"), &path.child("backend"));
}

fn backend(out: &mut Errors, backend: &Value, path: &Path) {
    match (backend.some("resource"), backend.some("service")) {
        (Some(_), Some(_)) => {
            out.push(Error::invalid(path, "", "cannot set both resource and service backends"));
        }
        (Some(resource), None) => local_reference(out, resource, &path.child("resource")),
        (None, Some(service)) => self::service(out, service, path),
        (None, None) => out.push(Error::invalid(path, "", "resource or service backend is required")),
    }
}

fn service(out: &mut Errors, service: &Value, path: &Path) {
    let own = path.child("service");
    match service.text("name") {
        "" => out.push(Error::required(&own.child("name"), "")),
        name => rules::dns_label(out, name, &own.child("name")),
    }
    let (port, port_path) = (service.at("port"), own.child("port"));
    match (port.text("name"), port.number("number")) {
        ("", 0) => out.push(Error::required(path, "port name or number is required")),
        ("", number) => rules::port(out, number, &port_path.child("number")),
        (name, 0) => push_all(out, &port_path.child("name"), name, names::port_name(name)),
        _ => out.push(Error::invalid(path, "", "cannot set both port name & port number")),
    }
}

fn status(out: &mut Errors, new: &Value, old: &Value) {
    let points = |status: &Value| status.at("loadBalancer").items("ingress").to_vec();
    let (new, old) = (points(new), points(old));
    let before: Vec<&str> = old.iter().map(|point| point.text("ip")).filter(|ip| !ip.is_empty()).collect();
    for (i, point) in new.iter().enumerate() {
        let path = Path::new("status").child("loadBalancer").child("ingress").index(i);
        if !point.text("ip").is_empty() {
            rules::legacy_ip(out, point.text("ip"), &before, &path.child("ip"));
        }
        host_name(out, point.text("hostname"), &path.child("hostname"));
    }
}

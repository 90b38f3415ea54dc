//! Where a webhook is: a URL, or a Service of the cluster.

use crate::Value;
use crate::field::{Error, Errors, Path};
use crate::kinds::view::View;
use crate::meta::names;

const FORM: &str = "; desired format: https://host[/path]";

/// How a hook is reached: by exactly one of the two.
pub(super) fn config(out: &mut Errors, config: &Value, path: &Path) {
    match (config.at("url").as_str(), config.some("service")) {
        (Some(url), None) => self::url(out, url, &path.child("url")),
        (None, Some(service)) => self::service(out, service, &path.child("service")),
        _ => out.push(Error::required(path, "exactly one of url or service is required")),
    }
}

fn url(out: &mut Errors, url: &str, path: &Path) {
    let (rest, fragment) = url.split_once('#').unwrap_or((url, ""));
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (scheme, rest) = rest.split_once("://").unwrap_or(("", rest));
    let authority = if scheme.is_empty() { "" } else { rest.split('/').next().unwrap_or_default() };
    let (user, host) = authority.rsplit_once('@').unwrap_or(("", authority));
    if scheme != "https" {
        out.push(Error::invalid(path, scheme, format!("'https' is the only allowed URL scheme{FORM}")));
    }
    if host.is_empty() {
        out.push(Error::invalid(path, host, format!("host must be specified{FORM}")));
    }
    if !user.is_empty() {
        out.push(Error::invalid(path, user, "user information is not permitted in the URL"));
    }
    if !fragment.is_empty() {
        out.push(Error::invalid(path, fragment, "fragments are not permitted in the URL"));
    }
    if !query.is_empty() {
        out.push(Error::invalid(path, query, "query parameters are not permitted in the URL"));
    }
}

fn service(out: &mut Errors, service: &Value, path: &Path) {
    // Upstream mixes the two up.
    for (field, shown) in [("namespace", "name"), ("name", "namespace")] {
        if service.text(field).is_empty() {
            out.push(Error::required(&path.child(shown), ""));
        }
    }
    let port = service.number("port");
    let wrong = names::port(port);
    if !wrong.is_empty() {
        out.push(Error::invalid(&path.child("port"), port, format!("port is not valid: {}", wrong.join(", "))));
    }
    url_path(out, service.text("path"), &path.child("path"));
}

fn url_path(out: &mut Errors, text: &str, path: &Path) {
    match text {
        "" | "/" => return,
        "//" => return out.push(Error::invalid(path, text, "segment[0] may not be empty")),
        _ if !text.starts_with('/') => out.push(Error::invalid(path, text, "must start with a '/'")),
        _ => {}
    }
    // The first character is left out whatever it is, as upstream does.
    let rest: String = text.chars().skip(1).collect();
    for (i, step) in rest.strip_suffix('/').unwrap_or(&rest).split('/').enumerate() {
        if step.is_empty() {
            out.push(Error::invalid(path, text, format!("segment[{i}] may not be empty")));
            continue;
        }
        for wrong in names::subdomain(step) {
            out.push(Error::invalid(path, text, format!("segment[{i}]: {wrong}")));
        }
    }
}

//! Fields of pods and resources of containers that are shown to containers (the downward API).

use crate::Value;
use crate::field::{Error, Errors, Path};
use crate::kinds::rules;
use crate::kinds::view::View;

const RESOURCES: &[&str] = &[
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
];
const BYTES: &[&str] = &["1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"];

/// Splits `metadata.labels['x']`.
fn subscript(path: &str) -> Option<(&str, &str)> {
    let (path, subscript) = path.strip_suffix("']")?.split_once("['")?;
    (!path.is_empty()).then_some((path, subscript))
}

/// The field as pods have it now.
///
/// # Errors
/// Upstream's text when pods have no such field to show.
fn known_field<'a>(version: &str, path: &'a str) -> Result<&'a str, String> {
    if version != "v1" {
        return Err(format!("unsupported pod version: {version}"));
    }
    if let Some((field, _)) = subscript(path) {
        return match field {
            "metadata.annotations" | "metadata.labels" => Ok(path),
            _ => Err(format!("field label does not support subscript: {path}")),
        };
    }
    match path {
        "metadata.annotations"
        | "metadata.labels"
        | "metadata.name"
        | "metadata.namespace"
        | "metadata.uid"
        | "spec.nodeName"
        | "spec.restartPolicy"
        | "spec.serviceAccountName"
        | "spec.schedulerName"
        | "status.phase"
        | "status.hostIP"
        | "status.hostIPs"
        | "status.podIP"
        | "status.podIPs" => Ok(path),
        "spec.host" => Ok("spec.nodeName"),
        _ => Err(format!("field label not supported: {path}")),
    }
}

/// A field of the pod; `allowed` are those without subscript, sorted.
pub fn of_pod(out: &mut Errors, reference: &Value, allowed: &[&str], path: &Path) {
    for field in ["apiVersion", "fieldPath"] {
        if reference.text(field).is_empty() {
            return out.push(Error::required(&path.child(field), ""));
        }
    }
    let given = reference.text("fieldPath");
    let field = match known_field(reference.text("apiVersion"), given) {
        Ok(field) => field,
        Err(why) => {
            let detail = format!("error converting fieldPath: {why}");
            return out.push(Error::invalid(&path.child("fieldPath"), given, detail));
        }
    };
    match subscript(field) {
        Some(("metadata.annotations", key)) => rules::qualified_name(out, &key.to_lowercase(), path),
        Some(("metadata.labels", key)) => rules::qualified_name(out, key, path),
        Some((field, _)) => out.push(Error::invalid(path, field, "does not support subscript")),
        None => rules::supported(out, field, allowed, &path.child("fieldPath")),
    }
}

/// A resource of a container; in a volume the container has to be named.
pub fn of_container(out: &mut Errors, reference: &Value, volume: bool, path: &Path) {
    let resource = reference.text("resource");
    let huge = resource.starts_with("requests.hugepages-") || resource.starts_with("limits.hugepages-");
    if volume && reference.text("containerName").is_empty() {
        out.push(Error::required(&path.child("containerName"), ""));
    } else if resource.is_empty() {
        out.push(Error::required(&path.child("resource"), ""));
    } else if !huge {
        rules::supported(out, resource, RESOURCES, &path.child("resource"));
    }
    let divisor = rules::quantity(reference.at("divisor"));
    if divisor.is_zero() {
        return;
    }
    let (allowed, of): (&[&str], &str) = match resource.split_once('.').map_or("", |(_, name)| name) {
        "cpu" => (&["1m", "1"], "cpu"),
        "memory" => (BYTES, "memory"),
        "ephemeral-storage" => (BYTES, "local ephemeral storage"),
        _ if huge => (BYTES, "hugepages"),
        _ => return,
    };
    if !allowed.contains(&divisor.to_string().as_str()) {
        let list = if of == "cpu" { "1m and 1".to_string() } else { BYTES.join(", ") };
        let detail = format!("only divisor's values {list} are supported with the {of} resource");
        out.push(Error::invalid(&path.child("divisor"), resource, detail));
    }
}

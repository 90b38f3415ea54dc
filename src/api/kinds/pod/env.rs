//! Environment variables and where they come from.

use super::fields;
use crate::Value;
use crate::field::{Error, Errors, Path};
use crate::kinds::rules;
use crate::kinds::view::View;
use crate::meta::check::push_all;
use crate::meta::names;

/// Fields of the pod that a variable may show.
const VARIABLE_FIELDS: &[&str] = &[
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];

/// A list of variables.
pub fn variables(out: &mut Errors, variables: &[Value], path: &Path) {
    for (i, variable) in variables.iter().enumerate() {
        let path = path.index(i);
        match variable.text("name") {
            "" => out.push(Error::required(&path.child("name"), "")),
            name => push_all(out, &path.child("name"), name, names::env_name(name)),
        }
        if let Some(source) = variable.some("valueFrom") {
            value_from(out, variable, source, &path.child("valueFrom"));
        }
    }
}

fn value_from(out: &mut Errors, variable: &Value, source: &Value, path: &Path) {
    type Check = fn(&mut Errors, &Value, &Path);
    let sources: [(&str, Check); 5] = [
        ("fieldRef", |out, v, path| fields::of_pod(out, v, VARIABLE_FIELDS, path)),
        ("resourceFieldRef", |out, v, path| fields::of_container(out, v, false, path)),
        ("configMapKeyRef", key_ref),
        ("secretKeyRef", key_ref),
        ("fileKeyRef", file_ref),
    ];
    let mut count = 0;
    for (field, check) in sources {
        if let Some(value) = source.some(field) {
            count += 1;
            check(out, value, &path.child(field));
        }
    }
    let detail = if count == 0 {
        "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`"
    } else if !variable.text("value").is_empty() {
        "may not be specified when `value` is not empty"
    } else if count > 1 {
        "may not have more than one field specified at a time"
    } else {
        return;
    };
    out.push(Error::invalid(path, "", detail));
}

fn key_ref(out: &mut Errors, reference: &Value, path: &Path) {
    rules::dns_subdomain(out, reference.text("name"), &path.child("name"));
    match reference.text("key") {
        "" => out.push(Error::required(&path.child("key"), "")),
        key => push_all(out, &path.child("key"), key, names::config_key(key)),
    }
}

fn file_ref(out: &mut Errors, reference: &Value, path: &Path) {
    match reference.text("key") {
        "" => out.push(Error::required(&path.child("key"), "")),
        key => push_all(out, &path.child("key"), key, names::env_name(key)),
    }
    match reference.text("volumeName") {
        "" => out.push(Error::required(&path.child("volumeName"), "")),
        name => rules::dns_label(out, name, &path.child("volumeName")),
    }
    match reference.text("path") {
        "" => out.push(Error::required(&path.child("path"), "")),
        value => rules::no_backsteps(out, value, &path.child("path")),
    }
}

/// ConfigMaps and Secrets that are taken whole.
pub fn sources(out: &mut Errors, sources: &[Value], path: &Path) {
    for (i, source) in sources.iter().enumerate() {
        let at = path.index(i);
        let prefix = source.text("prefix");
        if !prefix.is_empty() {
            push_all(out, &at.child("prefix"), prefix, names::env_name(prefix));
        }
        let mut count = 0;
        for field in ["configMapRef", "secretRef"] {
            let Some(reference) = source.some(field) else { continue };
            count += 1;
            let path = at.child(field).child("name");
            match reference.text("name") {
                "" => out.push(Error::required(&path, "")),
                name => push_all(out, &path, name, names::dns_subdomain(name, true)),
            }
        }
        match count {
            0 => out.push(Error::invalid(path, "", "must specify one of: `configMapRef` or `secretRef`")),
            1 => {}
            _ => out.push(Error::invalid(path, "", "may not have more than one field specified at a time")),
        }
    }
}

//! Rules that many kinds share, in upstream's words (`pkg/apis/core/validation`). Each adds what is wrong to a list.

use std::collections::BTreeSet;

use super::ip;
use super::view::View;
use crate::Value;
use crate::field::{Error, Errors, Path};
use crate::meta::check::{self, NEGATIVE, push_all};
use crate::meta::names;
use crate::quantity::Quantity;
use crate::resources::{Context, Strategy};

/// A number that is at least 0.
pub fn not_negative(out: &mut Errors, value: i64, path: &Path) {
    if value < 0 {
        out.push(Error::invalid(path, value, NEGATIVE));
    }
}

/// Fields of an object that are at least 0.
pub fn not_negative_fields(out: &mut Errors, object: &Value, fields: &[&str], path: &Path) {
    for field in fields {
        not_negative(out, object.number(field), &path.child(field));
    }
}

/// A number that is at least 1.
pub fn positive(out: &mut Errors, value: i64, path: &Path) {
    if value <= 0 {
        out.push(Error::invalid(path, value, "must be greater than zero"));
    }
}

/// A number between two others, both included.
pub fn range(out: &mut Errors, value: i64, low: i64, high: i64, path: &Path) {
    push_all(out, path, value, names::in_range(value, low, high));
}

/// A port number.
pub fn port(out: &mut Errors, value: i64, path: &Path) {
    push_all(out, path, value, names::port(value));
}

/// A port number or the name of a port.
pub fn port_or_name(out: &mut Errors, value: &Value, path: &Path) {
    match value.as_str() {
        Some(name) => push_all(out, path, name, names::port_name(name)),
        None => port(out, value.as_i64().unwrap_or(0), path),
    }
}

/// A text that must be there.
pub fn required(out: &mut Errors, object: &Value, field: &str, path: &Path) {
    if object.text(field).is_empty() {
        out.push(Error::required(&path.child(field), ""));
    }
}

/// A text out of a list, which is told in the order given; it must be there.
pub fn one_of(out: &mut Errors, value: &str, allowed: &[&str], path: &Path) {
    if value.is_empty() {
        out.push(Error::required(path, ""));
    } else {
        supported(out, value, allowed, path);
    }
}

/// A text out of a list, which is told in the order given.
pub fn supported(out: &mut Errors, value: &str, allowed: &[&str], path: &Path) {
    if !allowed.contains(&value) {
        out.push(Error::not_supported(path, value, allowed));
    }
}

/// A pointer to a text out of a list.
pub fn supported_if_set(out: &mut Errors, object: &Value, field: &str, allowed: &[&str], path: &Path) {
    if let Some(value) = object.some(field) {
        supported(out, value.as_str().unwrap_or_default(), allowed, &path.child(field));
    }
}

/// A DNS label.
pub fn dns_label(out: &mut Errors, value: &str, path: &Path) {
    push_all(out, path, value, names::label(value));
}

/// A DNS subdomain.
pub fn dns_subdomain(out: &mut Errors, value: &str, path: &Path) {
    push_all(out, path, value, names::subdomain(value));
}

/// A qualified name, as of labels.
pub fn qualified_name(out: &mut Errors, value: &str, path: &Path) {
    push_all(out, path, value, names::label_key(value));
}

/// The mode bits of a file.
pub fn file_mode(out: &mut Errors, object: &Value, field: &str, path: &Path) {
    if let Some(mode) = object.int(field).filter(|mode| !(0..=0o777).contains(mode)) {
        let detail = "must be a number between 0 and 0777 (octal), both inclusive";
        out.push(Error::invalid(&path.child(field), mode, detail));
    }
}

/// A path without `..`.
pub fn no_backsteps(out: &mut Errors, value: &str, path: &Path) {
    if value.split('/').any(|part| part == "..") {
        out.push(Error::invalid(path, value, "must not contain '..'"));
    }
}

/// A relative path without `..`.
pub fn descending_path(out: &mut Errors, value: &str, path: &Path) {
    if value.starts_with('/') {
        out.push(Error::invalid(path, value, "must be a relative path"));
    }
    no_backsteps(out, value, path);
}

/// A relative path without `..` whose first part does not even start so: such names are the kubelet's own.
pub fn unreserved_path(out: &mut Errors, value: &str, path: &Path) {
    descending_path(out, value, path);
    if value.starts_with("..") && !value.starts_with("../") {
        out.push(Error::invalid(path, value, "must not start with '..'"));
    }
}

/// An IP address in one of the fields that once took more forms; what was there before may stay.
pub fn legacy_ip(out: &mut Errors, value: &str, before: &[&str], path: &Path) {
    if !before.contains(&value) {
        ip::check(out, value, path);
    }
}

/// An address range in one of the fields that once took more forms; what was there before may stay.
pub fn legacy_cidr(out: &mut Errors, value: &str, before: &[&str], path: &Path) {
    if !before.contains(&value) {
        ip::check_cidr(out, value, path);
    }
}

/// A quantity that is at least 0.
pub fn not_negative_quantity(out: &mut Errors, value: &Value, path: &Path) {
    let quantity = quantity(value);
    if quantity.sign() < 0 {
        out.push(Error::invalid(path, quantity.to_string(), NEGATIVE));
    }
}

/// The quantity; decoding has checked its form, so what is none counts as 0.
pub fn quantity(value: &Value) -> Quantity {
    Quantity::from_value(value).unwrap_or_default()
}

/// A value that may not change. Null and absent are the same.
pub fn immutable(out: &mut Errors, new: &Value, old: &Value, field: &str, path: &Path) {
    crate::meta::check::immutable(out, new.at(field), old.at(field), &path.child(field));
}

/// The name of a CSI driver.
pub fn csi_driver(out: &mut Errors, name: &str, path: &Path) {
    if name.is_empty() {
        return out.push(Error::required(path, ""));
    }
    if name.len() > 63 {
        out.push(Error::too_long(path, 63));
    }
    push_all(out, path, name, names::subdomain(&name.to_lowercase()));
}

/// Metadata once more, as the kinds have it that check a changed object as they check a new one.
pub fn whole_metadata(out: &mut Errors, new: &Value, namespaced: bool, name: check::NameRule<'_>) {
    out.extend(check::validate(new, namespaced, name));
    check::kube_finalizers(out, new);
}

/// [`whole_metadata`] of an object without a namespace, and then all that a new one is checked for.
pub fn as_new(out: &mut Errors, strategy: &dyn Strategy, cx: &Context<'_>, new: &Value) {
    whole_metadata(out, new, false, &names::dns_subdomain);
    out.extend(strategy.validate_create(cx, new));
}

/// A part of a path: the name or kind of an object that may be of any kind.
pub fn path_segment(out: &mut Errors, object: &Value, field: &str, path: &Path) {
    required(out, object, field, path);
    let value = object.text(field);
    push_all(out, &path.child(field), value, names::path_segment(value, false));
}

/// Conditions of `meta/v1`.
pub fn conditions(out: &mut Errors, conditions: &[Value], path: &Path) {
    let mut seen = BTreeSet::new();
    for (i, condition) in conditions.iter().enumerate() {
        let path = path.index(i);
        if !seen.insert(condition.text("type")) {
            out.push(Error::duplicate(&path.child("type"), condition.text("type")));
        }
        self::condition(out, condition, &path);
    }
}

fn condition(out: &mut Errors, condition: &Value, path: &Path) {
    qualified_name(out, condition.text("type"), &path.child("type"));
    supported(out, condition.text("status"), &["False", "True", "Unknown"], &path.child("status"));
    let generation = condition.number("observedGeneration");
    if generation < 0 {
        let detail = "must be greater than or equal to zero";
        out.push(Error::invalid(&path.child("observedGeneration"), generation, detail));
    }
    required(out, condition, "lastTransitionTime", path);
    let (reason, reason_path) = (condition.text("reason"), path.child("reason"));
    if reason.is_empty() {
        out.push(Error::required(&reason_path, ""));
    } else {
        push_all(out, &reason_path, reason, names::condition_reason(reason));
        if reason.len() > 1024 {
            out.push(Error::too_long(&reason_path, 1024));
        }
    }
    if condition.text("message").len() > 32 * 1024 {
        out.push(Error::too_long(&path.child("message"), 32 * 1024));
    }
}

/// Bytes that base64 stands for.
pub fn decoded_len(text: &str) -> usize {
    text.len() / 4 * 3 - text.bytes().rev().take_while(|b| *b == b'=').count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_count_decoded_bytes() {
        assert_eq!(["", "eA==", "eHg=", "eHh4"].map(decoded_len), [0, 1, 2, 3]);
    }
}

//! `resource.k8s.io`: devices, what classes there are of them, and who claims which. Expressions are checked for their
//! length, not compiled.

mod claim;
mod slice;

pub use claim::{ResourceClaim, ResourceClaimTemplate};
pub use slice::ResourceSlice;

use std::collections::BTreeSet;

use crate::Value;
use crate::field::{Error, Errors, Path};
use crate::kinds::view::View;
use crate::kinds::{compute, rules};
use crate::meta::names;
use crate::resources::{Context, Strategy};

/// Most selectors, configurations and so on: upstream has one limit for nearly all lists.
const MAX_ITEMS: usize = 32;
/// Most bytes of an expression, and of parameters for a driver.
const MAX_EXPRESSION: usize = 10 * 1024;
const MAX_PARAMETERS: usize = 10 * 1024;

/// Classes of devices.
pub struct DeviceClass;

impl Strategy for DeviceClass {
    fn validate_create(&self, _cx: &Context<'_>, new: &Value) -> Errors {
        let mut out = Errors::new();
        class(&mut out, new.at("spec"), &Path::new("spec"));
        out
    }

    fn validate_update(&self, cx: &Context<'_>, new: &Value, _old: &Value) -> Errors {
        let mut out = Errors::new();
        rules::as_new(&mut out, self, cx, new);
        out
    }

    fn has_generation(&self) -> bool {
        true
    }
}

fn class(out: &mut Errors, spec: &Value, path: &Path) {
    selectors(out, spec.items("selectors"), &path.child("selectors"));
    each(out, spec.items("config"), MAX_ITEMS, &path.child("config"), configuration);
    let name = "extendedResourceName";
    if let Some(text) = spec.at(name).as_str().filter(|text| !compute::is_extended(text)) {
        out.push(Error::invalid(&path.child(name), text, "must be a valid extended resource name"));
    }
}

/// A list of at most so many items.
fn each(out: &mut Errors, items: &[Value], max: usize, path: &Path, check: impl Fn(&mut Errors, &Value, &Path)) {
    if items.len() > max {
        out.push(Error::too_many(path, items.len(), max));
    }
    for (i, item) in items.iter().enumerate() {
        check(out, item, &path.index(i));
    }
}

/// As [`each`], and no two have the same key.
fn each_once<'a>(
    out: &mut Errors, items: &'a [Value], max: usize, path: &Path, key: impl Fn(&'a Value) -> &'a str,
    check: impl Fn(&mut Errors, &Value, &Path),
) {
    if items.len() > max {
        out.push(Error::too_many(path, items.len(), max));
    }
    let mut seen = BTreeSet::new();
    for (i, item) in items.iter().enumerate() {
        check(out, item, &path.index(i));
        if !seen.insert(key(item)) {
            out.push(Error::duplicate(&path.index(i), key(item)));
        }
    }
}

fn itself(text: &Value) -> &str {
    text.as_str().unwrap_or_default()
}

fn by_name(object: &Value) -> &str {
    object.text("name")
}

fn selectors(out: &mut Errors, selectors: &[Value], path: &Path) {
    each(out, selectors, MAX_ITEMS, path, |out, selector, path| {
        let path = path.child("cel");
        match selector.some("cel") {
            None => out.push(Error::required(&path, "")),
            Some(cel) if cel.text("expression").len() > MAX_EXPRESSION => {
                out.push(Error::too_long(&path.child("expression"), MAX_EXPRESSION));
            }
            Some(_) => {}
        }
    });
}

/// Parameters for a driver.
fn configuration(out: &mut Errors, config: &Value, path: &Path) {
    let path = path.child("opaque");
    let Some(opaque) = config.some("opaque") else { return out.push(Error::required(&path, "")) };
    rules::csi_driver(out, opaque.text("driver"), &path.child("driver"));
    let (parameters, path) = (opaque.at("parameters"), path.child("parameters"));
    match parameters {
        Value::Null => out.push(Error::required(&path, "")),
        _ if parameters.to_string().len() > MAX_PARAMETERS => out.push(Error::too_long(&path, MAX_PARAMETERS)),
        Value::Object(_) => {}
        _ => out.push(Error::invalid(&path, "<value omitted>", "must be a valid JSON object")),
    }
}

/// `example.com/name`.
fn full_name(out: &mut Errors, text: &str, path: &Path) {
    let parts: Vec<&str> = text.split('/').collect();
    match parts.as_slice() {
        [""] => out.push(Error::required(path, "")),
        [domain, name] => {
            attribute_domain(out, domain, path);
            identifier(out, name, path);
        }
        _ => out.push(Error::invalid(
            path,
            text,
            "a fully qualified name must be a domain and a name separated by a slash",
        )),
    }
}

fn attribute_domain(out: &mut Errors, domain: &str, path: &Path) {
    rules::csi_driver(out, domain, path);
}

fn identifier(out: &mut Errors, name: &str, path: &Path) {
    if name.is_empty() {
        return out.push(Error::required(path, ""));
    }
    if name.len() > MAX_ITEMS {
        out.push(Error::too_long(path, MAX_ITEMS));
    }
    crate::meta::check::push_all(out, path, name, names::c_identifier(name));
}

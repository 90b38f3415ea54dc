//! What a driver has on a node.

use super::{MAX_ITEMS, by_name, each_once, identifier};
use crate::Value;
use crate::field::{Error, Errors, Path};
use crate::kinds::pod::scheduling;
use crate::kinds::view::View;
use crate::kinds::{internal, rules};
use crate::resources::{Context, Strategy};

/// Most devices of a slice, and of one whose devices have taints or share counters.
const MAX_DEVICES: usize = 128;
const MAX_RICH_DEVICES: usize = 64;
const MAX_COUNTER_SETS: usize = 8;
const MAX_POOL_NAME: usize = 253;
const MAX_TEXT: usize = 64;
/// The fields that say where the devices are.
const PLACES: [&str; 4] = ["nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection"];

/// Slices of a pool of devices.
pub struct ResourceSlice;

impl Strategy for ResourceSlice {
    fn validate_create(&self, _cx: &Context<'_>, new: &Value) -> Errors {
        let mut out = Errors::new();
        spec(&mut out, new.at("spec"), &Value::Null);
        out
    }

    fn validate_update(&self, _cx: &Context<'_>, new: &Value, old: &Value) -> Errors {
        let mut out = Errors::new();
        spec(&mut out, new.at("spec"), old.at("spec"));
        out
    }

    fn has_generation(&self) -> bool {
        true
    }
}

fn spec(out: &mut Errors, spec: &Value, old: &Value) {
    let path = Path::new("spec");
    rules::csi_driver(out, spec.text("driver"), &path.child("driver"));
    pool(out, spec.at("pool"), &path.child("pool"));
    if !old.is_null() {
        rules::immutable(out, spec.at("pool"), old.at("pool"), "name", &path.child("pool"));
        rules::immutable(out, spec, old, "driver", &path);
        rules::immutable(out, spec, old, "nodeName", &path);
    }
    places(out, spec, &path);
    if spec.has("sharedCounters") && spec.has("devices") {
        out.push(Error::invalid(&path, "", "only one of `sharedCounters` or `devices` is allowed"));
    }
    let devices = spec.items("devices");
    let lists = ["bools", "ints", "strings", "versions"];
    let rich = |device: &Value| {
        !device.items("taints").is_empty()
            || !device.items("consumesCounters").is_empty()
            || device.entries("attributes").any(|(_, attribute)| lists.iter().any(|list| attribute.has(list)))
    };
    let most = if devices.iter().any(rich) { MAX_RICH_DEVICES } else { MAX_DEVICES };
    each_once(out, devices, most, &path.child("devices"), by_name, device);
    let sets = spec.items("sharedCounters");
    each_once(out, sets, MAX_COUNTER_SETS, &path.child("sharedCounters"), by_name, |out, set, path| {
        label(out, set.text("name"), &path.child("name"));
        if set.entries("counters").next().is_none() {
            out.push(Error::required(&path.child("counters"), ""));
        }
    });
}

fn places(out: &mut Errors, spec: &Value, path: &Path) {
    let mut set = Vec::new();
    for field in PLACES.iter().filter(|field| spec.has(field)) {
        let (value, own) = (spec.at(field), path.child(field));
        match value {
            Value::String(name) if name.is_empty() => {
                out.push(Error::invalid(&own, "", "must be either unset or set to a non-empty string"));
                continue;
            }
            Value::String(name) => rules::dns_subdomain(out, name, &own),
            Value::Bool(false) => {
                out.push(Error::invalid(&own, false, "must be either unset or set to true"));
                continue;
            }
            Value::Object(_) => {
                scheduling::node_selector(out, value, false, &own);
                let terms = value.at("nodeSelectorTerms");
                if value.items("nodeSelectorTerms").len() != 1 {
                    let detail = "must have exactly one node selector term";
                    out.push(Error::invalid(&own.child("nodeSelectorTerms"), terms.clone(), detail));
                }
            }
            _ => {}
        }
        set.push(format!("`{field}`"));
    }
    let needed = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required";
    match set.len() {
        0 => out.push(Error::required(path, needed)),
        1 => {}
        _ => {
            let detail = format!("{needed}, but multiple fields are set");
            out.push(Error::invalid(path, format!("{{{}}}", set.join(", ")), detail));
        }
    }
}

fn pool(out: &mut Errors, pool: &Value, path: &Path) {
    pool_name(out, pool.text("name"), &path.child("name"));
    rules::positive(out, pool.number("resourceSliceCount"), &path.child("resourceSliceCount"));
    let generation = pool.number("generation");
    if generation < 0 {
        let detail = "must be greater than or equal to zero";
        out.push(Error::invalid(&path.child("generation"), generation, detail));
    }
}

/// The name of a pool: subdomains, separated by slashes.
pub(super) fn pool_name(out: &mut Errors, name: &str, path: &Path) {
    if name.is_empty() {
        return out.push(Error::required(path, ""));
    }
    if name.len() > MAX_POOL_NAME {
        out.push(Error::too_long(path, MAX_POOL_NAME));
    }
    name.split('/').for_each(|part| rules::dns_subdomain(out, part, path));
}

fn label(out: &mut Errors, name: &str, path: &Path) {
    match name {
        "" => out.push(Error::required(path, "")),
        name => rules::dns_label(out, name, path),
    }
}

fn device(out: &mut Errors, device: &Value, path: &Path) {
    label(out, device.text("name"), &path.child("name"));
    for (key, attribute) in device.entries("attributes") {
        let path = path.child("attributes").key(key);
        attribute_name(out, key, &path);
        self::attribute(out, attribute, &path);
    }
    for (key, _) in device.entries("capacity") {
        attribute_name(out, key, &path.child("capacity").key(key));
    }
    let count = device.entries("attributes").count() + device.entries("capacity").count();
    if count > MAX_ITEMS {
        let detail = format!("the total number of attributes and capacities must not exceed {MAX_ITEMS}");
        out.push(Error::invalid(path, count as i64, detail));
    }
}

/// A name, maybe behind the domain of the driver that it belongs to.
fn attribute_name(out: &mut Errors, text: &str, path: &Path) {
    match text.split_once('/') {
        Some((domain, name)) => {
            super::attribute_domain(out, domain, path);
            identifier(out, name, path);
        }
        None => identifier(out, text, path),
    }
}

fn attribute(out: &mut Errors, attribute: &Value, path: &Path) {
    let set = attribute.as_object().map_or(0, |map| map.values().filter(|v| !v.is_null()).count());
    let detail = "exactly one value must be specified";
    match set {
        0 => out.push(Error::invalid(path, "", detail)),
        1 => {}
        _ => out.push(Error::invalid_shown(path, internal::show("DeviceAttribute", attribute), detail)),
    }
    let text = attribute.text("string");
    if text.len() > MAX_TEXT {
        out.push(Error::too_long(&path.child("string"), MAX_TEXT));
    }
    if let Some(version) = attribute.at("version").as_str() {
        let path = path.child("version");
        if !is_semantic(version) {
            out.push(Error::invalid(&path, version, "must be a string compatible with semver.org spec 2.0.0"));
        }
        if version.len() > MAX_TEXT {
            out.push(Error::too_long(&path, MAX_TEXT));
        }
    }
}

/// `1.2.3-rc.1+build`.
fn is_semantic(version: &str) -> bool {
    let (rest, build) = version.split_once('+').map_or((version, None), |(rest, build)| (rest, Some(build)));
    let (core, pre) = rest.split_once('-').map_or((rest, None), |(core, pre)| (core, Some(pre)));
    let number = |text: &str| {
        !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) && (text == "0" || !text.starts_with('0'))
    };
    let word = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    let prerelease = |text: &str| word(text) && (!text.bytes().all(|b| b.is_ascii_digit()) || number(text));
    core.split('.').count() == 3
        && core.split('.').all(number)
        && pre.is_none_or(|pre| pre.split('.').all(prerelease))
        && build.is_none_or(|build| build.split('.').all(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_those_of_semver() {
        for good in ["1.2.3", "0.0.0-rc.1+b.01", "1.0.0-x-y"] {
            assert!(is_semantic(good), "{good}");
        }
        for bad in ["x", "1.2", "01.2.3", "1.2.3-", "1.2.3-01", "1.2.3+"] {
            assert!(!is_semantic(bad), "{bad}");
        }
    }
}

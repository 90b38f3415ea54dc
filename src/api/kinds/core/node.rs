//! Nodes.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;

use crate::Value;
use crate::field::{Error, Errors, Path, quote};
use crate::kinds::pod::defaults::resource_list;
use crate::kinds::pod::scheduling::EFFECTS;
use crate::kinds::view::{View, copy, set, some_mut, unset};
use crate::kinds::{compute, halves, internal, ip, rules};
use crate::meta::check;
use crate::meta::names;
use crate::resources::{Context, Strategy};

/// Nodes.
pub struct Node;

impl Strategy for Node {
    fn default(&self, object: &mut Value) {
        if let Some(spec) = some_mut(object, "spec") {
            pod_cidrs(spec);
        }
        let Some(status) = some_mut(object, "status") else { return };
        if !status.has("allocatable") && status.has("capacity") {
            copy_within(status, "capacity", "allocatable");
        }
        for list in ["capacity", "allocatable"] {
            some_mut(status, list).into_iter().for_each(resource_list);
        }
    }

    fn prepare_create(&self, _cx: &Context<'_>, new: &mut Value) {
        drop_config(new, "spec", "configSource");
        drop_config(new, "status", "config");
    }

    fn prepare_update(&self, cx: &Context<'_>, new: &mut Value, old: &Value) {
        if cx.subresource == "status" {
            copy(new, old, "spec");
            if !old.at("status").has("config") {
                drop_config(new, "status", "config");
            }
        } else {
            copy(new, old, "status");
            if !old.at("spec").has("configSource") {
                drop_config(new, "spec", "configSource");
            }
        }
    }

    fn validate_create(&self, _cx: &Context<'_>, new: &Value) -> Errors {
        let mut out = Errors::new();
        node(&mut out, new);
        out
    }

    fn validate_update(&self, cx: &Context<'_>, new: &Value, old: &Value) -> Errors {
        let mut out = Errors::new();
        if cx.subresource != "status" {
            out.extend(check::validate(new, false, &names::dns_subdomain));
            check::kube_finalizers(&mut out, new);
            node(&mut out, new);
        }
        update(&mut out, new, old);
        out
    }

    fn warnings(&self, _cx: &Context<'_>, new: &Value, _old: Option<&Value>) -> Vec<String> {
        let mut out = Vec::new();
        let spec = new.at("spec");
        if spec.has("configSource") {
            out.push("spec.configSource: the feature is removed".into());
        }
        if !spec.text("externalID").is_empty() {
            out.push("spec.externalID: this field is deprecated, and is unused by Kubernetes".into());
        }
        for (i, cidr) in spec.texts("podCIDRs").enumerate() {
            ip::cidr_warnings(&mut out, cidr, &Path::new("spec").child("podCIDRs").index(i));
        }
        out
    }

    fn selectable(&self, object: &Value, field: &str) -> String {
        match field {
            "spec.unschedulable" => object.at("spec").flag("unschedulable").to_string(),
            _ => String::new(),
        }
    }

    fn reset_fields(&self, subresource: &str) -> &'static [&'static [&'static str]] {
        halves::reset(subresource)
    }
}

fn drop_config(node: &mut Value, part: &str, field: &str) {
    if let Some(part) = some_mut(node, part) {
        unset(part, field);
    }
}

fn copy_within(object: &mut Value, from: &str, to: &str) {
    let value = object.at(from).clone();
    set(object, to, value);
}

/// The one range and the list of ranges agree; where they do not, the one counts.
fn pod_cidrs(spec: &mut Value) {
    let one = spec.text("podCIDR").to_string();
    let first = spec.texts("podCIDRs").next().map(str::to_string);
    match first {
        None if !one.is_empty() => set(spec, "podCIDRs", json!([one])),
        Some(first) if one.is_empty() => set(spec, "podCIDR", first),
        Some(first) if first != one => set(spec, "podCIDRs", json!([one])),
        _ => {}
    }
}

fn node(out: &mut Errors, new: &Value) {
    let (spec, status) = (new.at("spec"), new.at("status"));
    let meta_path = Path::new("metadata");
    taints(out, spec.items("taints"), &meta_path.child("taints"));
    resources(out, status);
    if let Some(capacity) = status.at("nodeInfo").at("swap").int("capacity") {
        rules::positive(out, capacity, &meta_path.child("nodeSwapStatus").child("capacity"));
    }
    features(out, status);
    let path = Path::new("spec").child("podCIDRs");
    let cidrs: Vec<&str> = spec.texts("podCIDRs").collect();
    for (i, cidr) in cidrs.iter().enumerate() {
        rules::legacy_cidr(out, cidr, &[], &path.index(i));
    }
    if cidrs.len() > 1 {
        let families: Vec<bool> = cidrs.iter().filter_map(|c| ip::parse_cidr(c)).map(|c| c.addr().is_ipv6()).collect();
        let dual = families.contains(&true) && families.contains(&false);
        if families.len() == cidrs.len() && (!dual || cidrs.len() > 2) {
            let detail = "may specify no more than one CIDR for each IP family";
            out.push(Error::invalid(&path, spec.at("podCIDRs").clone(), detail));
        }
    }
}

fn resources(out: &mut Errors, status: &Value) {
    for list in ["capacity", "allocatable"] {
        for (name, value) in status.entries(list) {
            compute::resource_quantity(out, name, value, &Path::new("status").child(list).child(name));
        }
    }
}

fn features(out: &mut Errors, status: &Value) {
    let path = Path::new("status").child("declaredFeatures");
    let all: Vec<&str> = status.texts("declaredFeatures").collect();
    for (i, feature) in all.iter().enumerate() {
        if let Some(why) = feature_fault(feature) {
            out.push(Error::invalid(
                &path.index(i),
                *feature,
                format!("invalid feature name {}: {why}", quote(feature)),
            ));
        }
        let Some(next) = all.get(i + 1) else { continue };
        if feature == next {
            out.push(Error::duplicate(&path.index(i + 1), *next));
        } else if feature > next {
            out.push(Error::invalid(&path.index(i + 1), *next, "list must be sorted alphabetically"));
        }
    }
}

fn feature_fault(name: &str) -> Option<&'static str> {
    let part_is_legal = |(i, part): (usize, &str)| {
        let first =
            part.bytes().next().is_some_and(|b| if i == 0 { b.is_ascii_uppercase() } else { b.is_ascii_alphabetic() });
        first && part.bytes().all(|b| b.is_ascii_alphanumeric())
    };
    if name.len() > 253 {
        return Some("must be no more than 253 characters");
    }
    (!name.split('/').enumerate().all(part_is_legal)).then_some(
        "must start with an UpperCamelCase segment, with subsequent segments separated by '/' (e.g., MyFeature or \
         MyFeature/mySubFeature), and contain only alphanumeric characters and slashes",
    )
}

fn taints(out: &mut Errors, taints: &[Value], path: &Path) {
    let mut seen: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (i, taint) in taints.iter().enumerate() {
        let path = path.index(i);
        let (key, value, effect) = (taint.text("key"), taint.text("value"), taint.text("effect"));
        check::label_key(out, key, &path.child("key"));
        let wrong = names::label_value(value);
        if !wrong.is_empty() {
            out.push(Error::invalid(&path.child("value"), value, wrong.join(";")));
        }
        rules::one_of(out, effect, &EFFECTS, &path.child("effect"));
        if !seen.entry(effect).or_default().insert(key) {
            let error = Error::duplicate(&path, "");
            let detail = "taints must be unique by key and effect pair".into();
            out.push(Error { value: Some(internal::show("Taint", taint)), detail, ..error });
        }
    }
}

fn update(out: &mut Errors, new_node: &Value, old_node: &Value) {
    resources(out, new_node.at("status"));
    features(out, new_node.at("status"));
    let addresses = new_node.at("status").items("addresses");
    for (i, address) in addresses.iter().enumerate() {
        if addresses[..i].contains(address) {
            let path = Path::new("status").child("addresses").index(i);
            let error = Error::duplicate(&path, "");
            out.push(Error { value: Some(internal::show("NodeAddress", address)), ..error });
        }
    }
    let (new, old, path) = (new_node.at("spec"), old_node.at("spec"), Path::new("spec"));
    let (after, before) = (new.items("podCIDRs"), old.items("podCIDRs"));
    let changes = if before.is_empty() {
        0
    } else if before.len() != after.len() {
        1
    } else {
        before.iter().zip(after).filter(|(a, b)| a != b).count()
    };
    for _ in 0..changes {
        let detail = "node updates may not change podCIDR except from \"\" to valid";
        out.push(Error::forbidden(&path.child("podCIDRs"), detail));
    }
    if !old.text("providerID").is_empty() && old.text("providerID") != new.text("providerID") {
        let detail = "node updates may not change providerID except from \"\" to valid";
        out.push(Error::forbidden(&path.child("providerID"), detail));
    }
    taints(out, new.items("taints"), &Path::new("metadata").child("taints"));
    if new.text("externalID") != old.text("externalID") {
        out.push(Error::forbidden(&path.child("externalID"), "may not be updated"));
    }
}

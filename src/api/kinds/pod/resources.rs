//! Resources that containers and pods ask for, and claims on devices.

use std::collections::BTreeSet;

use super::options::Options;
use super::spec::MIRROR;
use crate::Value;
use crate::field::{Error, Errors, Path};
use crate::kinds::compute;
use crate::kinds::internal;
use crate::kinds::rules;
use crate::kinds::view::View;

type NameRule = fn(&mut Errors, &str, &Path);

/// Requests, limits and claims of a container.
pub fn of_container(out: &mut Errors, own: &Value, claims: &BTreeSet<&str>, options: &Options, path: &Path) {
    requirements(out, own, compute::container_resource_name, claims, options, path);
}

/// What a runtime class needs beside the containers.
pub fn overhead(out: &mut Errors, overhead: &Value, options: &Options, path: &Path) {
    let own = serde_json::json!({"limits": overhead});
    of_container(out, &own, &BTreeSet::new(), options, path);
}

fn requirements(
    out: &mut Errors, own: &Value, name_rule: NameRule, claims: &BTreeSet<&str>, options: &Options, path: &Path,
) {
    let (limits_path, requests_path) = (path.child("limits"), path.child("requests"));
    let (mut computes, mut huge) = (false, false);
    let mut each = |out: &mut Errors, name: &str, value: &Value, path: &Path| {
        huge |= compute::is_huge_page(name);
        computes |= name == "cpu" || name == "memory";
        if compute::is_huge_page(name) && !options.any_huge_pages && !compute::fits_huge_page(name, value) {
            let text = rules::quantity(value).to_string();
            let detail = format!("{text} is not positive integer multiple of {name}");
            out.push(Error::invalid(path, text, detail));
        }
    };
    for (name, value) in own.entries("limits") {
        let path = limits_path.key(name);
        name_rule(out, name, &path);
        compute::resource_quantity(out, name, value, &path);
        each(out, name, value, &path);
    }
    for (name, value) in own.entries("requests") {
        let path = requests_path.key(name);
        name_rule(out, name, &path);
        compute::resource_quantity(out, name, value, &path);
        request_fits_limit(out, name, value, own, &limits_path, &requests_path);
        each(out, name, value, &path);
    }
    if huge && !computes {
        out.push(Error::forbidden(path, "HugePages require cpu or memory"));
    }
    claim_names(out, own.items("claims"), claims, &path.child("claims"));
}

fn request_fits_limit(
    out: &mut Errors, name: &str, value: &Value, own: &Value, limits_path: &Path, requests_path: &Path,
) {
    let request = rules::quantity(value);
    let Some(limit) = own.at("limits").some(name).map(rules::quantity) else {
        if !compute::may_overcommit(name) {
            out.push(Error::required(limits_path, "Limit must be set for non overcommitable resources"));
        }
        return;
    };
    let detail = if request != limit && !compute::may_overcommit(name) {
        format!("must be equal to {name} limit of {limit}")
    } else if request > limit {
        format!("must be less than or equal to {name} limit of {limit}")
    } else {
        return;
    };
    out.push(Error::invalid(requests_path, request.to_string(), detail));
}

fn claim_names(out: &mut Errors, claims: &[Value], known: &BTreeSet<&str>, path: &Path) {
    let mut seen: BTreeSet<String> = BTreeSet::new();
    for (i, claim) in claims.iter().enumerate() {
        let path = path.index(i);
        let (name, request) = (claim.text("name"), claim.text("request"));
        if name.is_empty() {
            out.push(Error::required(&path, ""));
            continue;
        }
        if seen.contains(name) {
            out.push(Error::duplicate(&path, name));
        } else {
            let mut key = name.to_string();
            if !request.is_empty() {
                rules::dns_label(out, request, &path.child("request"));
                key = format!("{name}/{request}");
            }
            let part = |other: &&String| other.split_once('/').is_some_and(|(claim, _)| claim == name);
            if seen.contains(&key) {
                out.push(Error::duplicate(&path, key.as_str()));
            } else if request.is_empty() && seen.iter().any(|other| part(&other)) {
                out.push(Error::duplicate(&path, name));
            }
            seen.insert(key);
        }
        if !known.contains(name) {
            let list: Vec<&str> = known.iter().copied().collect();
            let list = if list.is_empty() { " which is empty".into() } else { format!(": {}", list.join(", ")) };
            let detail = format!("must be one of the names in pod.spec.resourceClaims{list}");
            out.push(Error { detail, ..Error::not_found(&path, name) });
        }
    }
}

/// Claims that a pod brings.
pub fn claims(out: &mut Errors, claims: &[Value], meta: Option<&Value>, path: &Path) {
    let mut seen = BTreeSet::new();
    for (i, claim) in claims.iter().enumerate() {
        let path = path.index(i);
        if meta.is_some_and(|meta| meta.at("annotations").has(MIRROR)) {
            out.push(Error::forbidden(&Path::default(), "static pods do not support resource claims"));
            continue;
        }
        let name = claim.text("name");
        if name.is_empty() {
            out.push(Error::required(&path.child("name"), ""));
        } else if !seen.insert(name) {
            out.push(Error::duplicate(&path.child("name"), name));
        } else {
            rules::dns_label(out, name, &path.child("name"));
        }
        let sources = ["resourceClaimName", "resourceClaimTemplateName"];
        let detail = match sources.map(|field| claim.has(field)) {
            [true, true] => Some("at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified"),
            [false, false] => Some("must specify one of: `resourceClaimName`, `resourceClaimTemplateName`"),
            _ => None,
        };
        if let Some(detail) = detail {
            out.push(Error::invalid_shown(&path, internal::show("PodResourceClaim", claim), detail));
        }
        for field in sources {
            if let Some(name) = claim.at(field).as_str() {
                rules::dns_subdomain(out, name, &path.child(field));
            }
        }
    }
}

/// Resources of a pod as a whole.
pub fn of_pod(out: &mut Errors, spec: &Value, claims: &BTreeSet<&str>, options: &Options, path: &Path) {
    let Some(own) = spec.some("resources") else { return };
    let resources_path = path.child("resources");
    if spec.at("os").text("name") == "windows" {
        return out.push(Error::forbidden(&resources_path, "may not be set for a windows pod"));
    }
    if own.has("claims") {
        let detail = "claims may not be set for Resources at pod-level";
        out.push(Error::forbidden(&resources_path.child("claims"), detail));
    }
    requirements(out, own, compute::pod_resource_name, claims, options, &resources_path);
    pod_covers_containers(out, spec, own, &resources_path);
}

fn pod_covers_containers(out: &mut Errors, spec: &Value, own: &Value, path: &Path) {
    for (list, what) in [("requests", "requests"), ("limits", "limits")] {
        for (name, sum) in compute::of_containers(spec, list) {
            if list == "limits" && !compute::is_huge_page(&name) {
                continue;
            }
            let Some(pod) = own.at(list).some(&name).map(rules::quantity) else { continue };
            if sum > pod {
                let detail = format!("must be greater than or equal to aggregate container {what} of {sum}");
                out.push(Error::invalid(&path.child(list).key(&name), pod.to_string(), detail));
            }
        }
    }
    for (i, container) in spec.items("containers").iter().enumerate() {
        for (name, limit) in container.at("resources").entries("limits") {
            let Some(pod) = own.at("limits").some(name).map(rules::quantity) else { continue };
            let limit = rules::quantity(limit);
            if limit > pod {
                let path = path.child("containers").index(i).key(name).child("limits");
                let detail = format!("must be less than or equal to pod limits of {pod}");
                out.push(Error::invalid(&path, limit.to_string(), detail));
            }
        }
    }
}

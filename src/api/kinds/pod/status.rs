//! How a pod's status may change.

use std::collections::{BTreeMap, BTreeSet};

use super::options::Options;
use super::update;
use crate::Value;
use crate::field::{Error, Errors, Path};
use crate::kinds::compute;
use crate::kinds::view::View;
use crate::kinds::{internal, ip, rules};
use crate::meta::check::push_all;
use crate::meta::names;

const STATUSES: [(&str, &str); 3] = [
    ("containerStatuses", "containers"),
    ("initContainerStatuses", "initContainers"),
    ("ephemeralContainerStatuses", "ephemeralContainers"),
];

/// An update of the status.
pub fn update(out: &mut Errors, new_pod: &Value, old_pod: &Value) {
    update::annotations(out, new_pod, old_pod, &Options::pod(old_pod));
    let path = Path::new("status");
    let (new, old) = (new_pod.at("status"), old_pod.at("status"));
    conditions(out, new.items("conditions"), &path.child("conditions"));
    nominated(out, new, old, old_pod.at("spec"), &path.child("nominatedNodeName"));
    generation(out, new, &path);
    rules::immutable(out, new, old, "qosClass", &path);
    transitions(out, new, old, old_pod.at("spec"), &path);
    let spec = new_pod.at("spec");
    claims(out, new.items("resourceClaimStatuses"), spec, &path.child("resourceClaimStatuses"));
    extended_claim(out, new, spec, &path.child("extendedResourceClaimStatus"));
    addresses(out, new, old, &path);
    for (list, _) in STATUSES {
        users(out, new.items(list), spec, &path.child(list));
    }
    for (list, containers) in STATUSES {
        allocated(out, new.items(list), spec.items(containers), containers, &path.child(list));
    }
}

fn generation(out: &mut Errors, object: &Value, path: &Path) {
    let generation = object.number("observedGeneration");
    if generation < 0 {
        let path = path.child("observedGeneration");
        out.push(Error::invalid(&path, generation, "must be a non-negative integer"));
    }
}

fn conditions(out: &mut Errors, conditions: &[Value], path: &Path) {
    for (i, condition) in conditions.iter().enumerate() {
        let path = path.index(i);
        generation(out, condition, &path);
        let kind = condition.text("type");
        if !["PodScheduled", "Ready", "Initialized"].contains(&kind) {
            rules::qualified_name(out, kind, &path.child("Type"));
        }
    }
}

fn nominated(out: &mut Errors, new: &Value, old: &Value, spec: &Value, path: &Path) {
    let node = new.text("nominatedNodeName");
    if node.is_empty() || node == old.text("nominatedNodeName") {
        return;
    }
    rules::dns_subdomain(out, node, path);
    if !spec.text("nodeName").is_empty() {
        out.push(Error::forbidden(path, "may not be set on pods that are already bound to a node"));
    }
}

/// True when a container that ended with that code is started again.
fn restarts(container: &Value, spec: &Value, code: i64) -> bool {
    let by_policy = |policy: &str| match policy {
        "OnFailure" => code != 0,
        "Never" => false,
        _ => true,
    };
    let Some(policy) = container.at("restartPolicy").as_str() else {
        return by_policy(spec.text("restartPolicy"));
    };
    let matches = |rule: &&Value| {
        let codes = rule.at("exitCodes");
        let listed = codes.items("values").iter().any(|v| v.as_i64() == Some(code));
        match codes.text("operator") {
            "In" => listed,
            "NotIn" => !listed,
            _ => false,
        }
    };
    match container.items("restartPolicyRules").iter().find(matches).map(|rule| rule.text("action")) {
        Some("Restart" | "RestartAllContainers") => true,
        _ => by_policy(policy),
    }
}

/// A container that ended for good does not run again.
fn transitions(out: &mut Errors, new: &Value, old: &Value, spec: &Value, path: &Path) {
    let all_may_restart = ["initContainers", "containers"]
        .iter()
        .flat_map(|list| spec.items(list))
        .any(|c| c.items("restartPolicyRules").iter().any(|rule| rule.text("action") == "RestartAllContainers"));
    for (list, containers) in STATUSES {
        let ephemeral = containers == "ephemeralContainers";
        if all_may_restart && !ephemeral {
            continue;
        }
        for (i, before) in old.items(list).iter().enumerate() {
            let Some(ended) = before.at("state").some("terminated") else { continue };
            let name = before.text("name");
            let runs = |now: &&Value| now.text("name") == name && !now.at("state").has("terminated");
            if !new.items(list).iter().any(|now| runs(&now)) {
                continue;
            }
            let container = spec.items(containers).iter().find(|c| c.text("name") == name);
            let allowed = !ephemeral && container.is_some_and(|c| restarts(c, spec, ended.number("exitCode")));
            if !allowed {
                let path = path.child(list).index(i).child("state");
                out.push(Error::forbidden(&path, "may not be transitioned to non-terminated state"));
            }
        }
    }
}

fn claims(out: &mut Errors, statuses: &[Value], spec: &Value, path: &Path) {
    let mut seen = BTreeSet::new();
    for (i, status) in statuses.iter().enumerate() {
        let path = path.index(i);
        let name = status.text("name");
        if !spec.items("resourceClaims").iter().any(|claim| claim.text("name") == name) {
            let detail = "must match the name of an entry in `spec.resourceClaims`";
            out.push(Error::invalid(&path.child("name"), name, detail));
        }
        if !seen.insert(name) {
            out.push(Error::duplicate(&path.child("name"), name));
        }
        if let Some(claim) = status.at("resourceClaimName").as_str() {
            rules::dns_subdomain(out, claim, &path.child("resourceClaimName"));
        }
    }
}

fn extended_claim(out: &mut Errors, status: &Value, spec: &Value, path: &Path) {
    let Some(claim) = status.some("extendedResourceClaimStatus") else { return };
    let lists = spec.items("initContainers").iter().chain(spec.items("containers"));
    let containers: BTreeMap<&str, &Value> = lists.map(|c| (c.text("name"), c)).collect();
    let mappings = claim.items("requestMappings");
    let mappings_path = path.child("requestMappings");
    if mappings.is_empty() {
        out.push(Error::required(&mappings_path, "at least one request mapping is required"));
    }
    let mut seen = BTreeSet::new();
    for (i, mapping) in mappings.iter().enumerate() {
        let at = mappings_path.index(i);
        let fields = ["containerName", "resourceName", "requestName"];
        let [container, resource, request] = fields.map(|field| mapping.text(field));
        match containers.get(container) {
            None => {
                let detail = "must match the name of an entry in spec.initContainers.name or spec.containers.name";
                out.push(Error::invalid(&at.child("containerName"), container, detail));
            }
            Some(c) if !c.at("resources").at("requests").has(resource) => {
                let detail = "must match the extended resource name of an entry in \
                              spec.initContainers.resources.requests or spec.containers.resources.requests";
                out.push(Error::invalid(&at.child("resourceName"), resource, detail));
            }
            Some(_) => {}
        }
        rules::dns_label(out, request, &path.child("requestName"));
        if !seen.insert((container, resource, request)) {
            for field in fields {
                out.push(Error::duplicate(&at.child(field), mapping.text(field)));
            }
        }
    }
    match claim.text("resourceClaimName") {
        "" => out.push(Error::required(&path.child("resourceClaimName"), "")),
        name => rules::dns_subdomain(out, name, &path.child("resourceClaimName")),
    }
}

fn addresses(out: &mut Errors, new: &Value, old: &Value, path: &Path) {
    for (list, shape) in [("podIPs", "[]PodIP"), ("hostIPs", "[]HostIP")] {
        let ips = |status: &'_ Value| -> Vec<String> {
            status.items(list).iter().map(|ip| ip.text("ip").to_string()).collect()
        };
        let path = path.child(list);
        let (now, before) = (ips(new), ips(old));
        let before: Vec<&str> = before.iter().map(String::as_str).collect();
        if let Some(first) = now.first().filter(|first| list == "hostIPs" && *first != new.text("hostIP")) {
            let path = path.index(0).child("ip");
            out.push(Error::invalid(&path, first.as_str(), "must be equal to `hostIP`"));
        }
        for (i, ip) in now.iter().enumerate() {
            rules::legacy_ip(out, ip, &before, &path.index(i));
        }
        let texts: Vec<&str> = now.iter().map(String::as_str).collect();
        let readable = texts.iter().all(|ip| ip::parse(ip).is_some());
        if readable && (texts.len() > 2 || (texts.len() == 2 && !ip::is_dual_stack(&texts))) {
            let detail = "may specify no more than one IP for each IP family";
            out.push(Error::invalid_shown(&path, internal::show(shape, new.at(list)), detail));
        }
    }
}

fn users(out: &mut Errors, statuses: &[Value], spec: &Value, path: &Path) {
    for (i, status) in statuses.iter().enumerate() {
        let Some(user) = status.at("user").some("linux") else { continue };
        let path = path.index(i).child("user").child("linux");
        match spec.at("os").text("name") {
            "windows" => out.push(Error::forbidden(&path, "cannot be set for a windows pod")),
            "linux" | "" => {
                for field in ["uid", "gid"] {
                    push_all(out, &path.child(field), user.number(field), names::user_id(user.number(field)));
                }
                for (j, id) in user.items("supplementalGroups").iter().enumerate() {
                    let id = id.as_i64().unwrap_or(0);
                    push_all(out, &path.child("supplementalGroups").index(j), id, names::user_id(id));
                }
            }
            _ => {}
        }
    }
}

fn allocated(out: &mut Errors, statuses: &[Value], containers: &[Value], list: &str, path: &Path) {
    for (i, status) in statuses.iter().enumerate() {
        let path = path.index(i).child("allocatedResourcesStatus");
        let resources = status.items("allocatedResourcesStatus");
        if list == "ephemeralContainers" {
            if !resources.is_empty() {
                out.push(Error::forbidden(&path, "must not be specified in container status"));
            }
            continue;
        }
        let container = containers.iter().find(|c| c.text("name") == status.text("name"));
        for (j, resource) in resources.iter().enumerate() {
            let path = path.index(j);
            if let Some(container) = container {
                allocated_is_asked(out, resource.text("name"), container, &path.child("name"));
            }
            health(out, resource.items("resources"), &path.child("resources"));
        }
    }
}

fn allocated_is_asked(out: &mut Errors, name: &str, container: &Value, path: &Path) {
    let resources = container.at("resources");
    let (found, detail) = match name.strip_prefix("claim:") {
        Some(claim) => {
            let text = |c: &Value| match c.text("request") {
                "" => c.text("name").to_string(),
                request => format!("{}/{request}", c.text("name")),
            };
            let detail = "must match one of the container's resource claims in a format \
                          'claim:<claimName>/<request>' or 'claim:<claimName>' if request is empty";
            (resources.items("claims").iter().any(|c| text(c) == claim), detail)
        }
        None => {
            let found = compute::amounts(resources.at("requests")).contains_key(name);
            (found, "must match one of the container's resource requests")
        }
    };
    if !found {
        out.push(Error::invalid(path, name, detail));
    }
}

fn health(out: &mut Errors, resources: &[Value], path: &Path) {
    let mut seen = BTreeSet::new();
    for (i, resource) in resources.iter().enumerate() {
        let path = path.index(i);
        let states = ["Healthy", "Unhealthy", "Unknown"];
        rules::supported(out, resource.text("health"), &states, &path.child("health"));
        if let Some(message) = resource.at("message").as_str() {
            let path = path.child("message");
            if message.is_empty() {
                out.push(Error::required(&path, "must be non-empty if specified"));
            } else if message.len() > 1024 {
                out.push(Error::too_long(&path, 1024));
            }
        }
        if !seen.insert(resource.text("resourceID")) {
            out.push(Error::duplicate(&path.child("resourceID"), resource.text("resourceID")));
        }
    }
}

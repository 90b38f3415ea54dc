//! What is wrong with a pod's metadata and spec, and with a pod template; the order is upstream's
//! (`ValidatePodSpec` and what it calls).

use std::collections::BTreeSet;

use super::options::Options;
use super::{containers, resources, scheduling, security, volumes};
use crate::Value;
use crate::field::{Error, Errors, Path};
use crate::kinds::rules;
use crate::kinds::view::View;
use crate::meta::check::{self, push_all};
use crate::meta::names;

/// Annotation of the copies of static pods.
pub const MIRROR: &str = "kubernetes.io/config.mirror";
/// Annotation that says which pods a ReplicaSet deletes first.
pub const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";
/// Prefix of annotations that once stated AppArmor profiles.
pub const APP_ARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";
const TOLERATIONS: &str = "scheduler.alpha.kubernetes.io/tolerations";

/// Visits all containers with their paths: init containers, containers, ephemeral containers.
pub fn each_container<'a>(spec: &'a Value, path: &Path, mut visit: impl FnMut(&'a Value, &Path)) {
    for list in super::defaults::CONTAINERS {
        let path = path.child(list);
        for (i, container) in spec.items(list).iter().enumerate() {
            visit(container, &path.index(i));
        }
    }
}

/// A whole pod but for its metadata proper.
pub fn pod(out: &mut Errors, pod: &Value, options: &Options) {
    let (meta, spec) = (pod.at("metadata"), pod.at("spec"));
    let path = Path::new("spec");
    annotations(out, meta, spec, options, &Path::new("metadata").child("annotations"));
    pod_spec(out, spec, Some(meta), options, &path);
    if spec.text("serviceAccountName").is_empty() {
        no_tokens(out, spec, &path);
    }
    for list in ["containers", "initContainers"] {
        for (i, container) in spec.items(list).iter().enumerate() {
            containers::image_is_trimmed(out, container, &path.child(list).index(i));
        }
    }
}

/// Without service account there is nobody to issue a token for.
fn no_tokens(out: &mut Errors, spec: &Value, path: &Path) {
    for (i, volume) in spec.items("volumes").iter().enumerate() {
        for (j, source) in volume.at("projected").items("sources").iter().enumerate() {
            if source.has("serviceAccountToken") {
                let path = path.child("volumes").index(i).child("projected").child("sources").index(j);
                let detail = "must not be specified when serviceAccountName is not set";
                out.push(Error::forbidden(&path.child("serviceAccountToken"), detail));
            }
        }
    }
}

/// A pod template under its path.
pub fn template(out: &mut Errors, template: &Value, options: &Options, path: &Path) {
    let (meta, spec) = (template.at("metadata"), template.at("spec"));
    let spec_path = path.child("spec");
    check::labels(out, meta.pairs("labels"), &path.child("labels"));
    check::annotations(out, meta.pairs("annotations"), &path.child("annotations"));
    annotations(out, meta, spec, options, &path.child("annotations"));
    pod_spec(out, spec, None, options, &spec_path);
    security::seccomp_annotations_match(out, meta, spec, &spec_path);
    security::app_armor_annotations_match(out, meta, spec, &spec_path);
    if !spec.items("ephemeralContainers").is_empty() {
        let detail = "ephemeral containers not allowed in pod template";
        out.push(Error::forbidden(&spec_path.child("ephemeralContainers"), detail));
    }
}

/// Annotations that mean something to pods.
pub fn annotations(out: &mut Errors, meta: &Value, spec: &Value, options: &Options, path: &Path) {
    let annotations = meta.at("annotations");
    if let Some(value) = annotations.some(MIRROR)
        && spec.text("nodeName").is_empty()
    {
        let detail = "must set spec.nodeName if mirror pod annotation is set";
        out.push(Error::invalid(&path.key(MIRROR), value.clone(), detail));
    }
    if !annotations.text(TOLERATIONS).is_empty() {
        match serde_json::from_str::<Vec<Value>>(annotations.text(TOLERATIONS)) {
            Ok(list) => scheduling::tolerations(out, &list, options, &path.child(TOLERATIONS)),
            Err(error) => out.push(Error::invalid(path, TOLERATIONS, error.to_string())),
        }
    }
    if !options.any_deletion_cost && !deletion_cost_is_valid(annotations) {
        let detail = "must be a 32bit integer";
        out.push(Error::invalid(&path.key(DELETION_COST), annotations.text(DELETION_COST), detail));
    }
    security::seccomp_annotations(out, annotations, path);
    security::app_armor_annotations(out, annotations, spec, path);
}

/// A cost is a 32-bit number without plus sign or leading zeros.
pub fn deletion_cost_is_valid(annotations: &Value) -> bool {
    let Some(cost) = annotations.some(DELETION_COST) else { return true };
    let text = cost.as_str().unwrap_or_default();
    let odd = text.starts_with('+') || (text.len() > 1 && text.starts_with('0'));
    !odd && text.parse::<i32>().is_ok()
}

/// A pod spec; `meta` is the pod's metadata, absent in a template.
pub fn pod_spec(out: &mut Errors, spec: &Value, meta: Option<&Value>, options: &Options, path: &Path) {
    if !spec.has("terminationGracePeriodSeconds") {
        out.push(Error::required(&path.child("terminationGracePeriodSeconds"), ""));
    }
    let found = volumes::volumes(out, spec.items("volumes"), meta, options, &path.child("volumes"));
    let claims: BTreeSet<&str> =
        spec.items("resourceClaims").iter().map(|c| c.text("name")).filter(|n| !n.is_empty()).collect();
    resources::claims(out, spec.items("resourceClaims"), meta, &path.child("resourceClaims"));
    let pod = containers::Pod { spec, volumes: &found, claims: &claims, options };
    containers::containers(out, &pod, &path.child("containers"));
    containers::init_containers(out, &pod, &path.child("initContainers"));
    containers::ephemeral_containers(out, &pod, &path.child("ephemeralContainers"));
    resources::of_pod(out, spec, &claims, options, path);
    host_network_ports(out, spec, options, path);
    rules::one_of(out, spec.text("restartPolicy"), &["Always", "OnFailure", "Never"], &path.child("restartPolicy"));
    let policies = ["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"];
    rules::one_of(out, spec.text("dnsPolicy"), &policies, &path.child("dnsPolicy"));
    check::labels(out, spec.pairs("nodeSelector"), &path.child("nodeSelector"));
    security::pod(out, spec, options, &path.child("securityContext"));
    scheduling::affinity(out, spec.at("affinity"), options, &path.child("affinity"));
    dns_config(out, spec, &path.child("dnsConfig"));
    for (i, gate) in spec.items("readinessGates").iter().enumerate() {
        let path = path.child("readinessGates").index(i).child("conditionType");
        rules::qualified_name(out, gate.text("conditionType"), &path);
    }
    scheduling::gates(out, spec.items("schedulingGates"), &path.child("schedulingGates"));
    let constraints = spec.items("topologySpreadConstraints");
    scheduling::spread(out, constraints, options, &path.child("topologySpreadConstraints"));
    security::host_process(out, spec, path);
    host_users(out, spec, options, path);
    host_name_override(out, spec, path);
    names_in(out, spec, options, path);
    operating_system(out, spec, path);
    scheduling_group(out, spec, &path.child("schedulingGroup"));
    file_volumes(out, spec, path);
}

fn names_in(out: &mut Errors, spec: &Value, options: &Options, path: &Path) {
    for field in ["serviceAccountName", "nodeName"] {
        subdomain_if_set(out, spec, field, path);
    }
    if let Some(seconds) = spec.int("activeDeadlineSeconds") {
        rules::range(out, seconds, 1, i64::from(i32::MAX), &path.child("activeDeadlineSeconds"));
    }
    for field in ["hostname", "subdomain"] {
        let name = spec.text(field);
        if !name.is_empty() {
            rules::dns_label(out, name, &path.child(field));
        }
    }
    scheduling::tolerations(out, spec.items("tolerations"), options, &path.child("tolerations"));
    host_aliases(out, spec.items("hostAliases"), &path.child("hostAliases"));
    subdomain_if_set(out, spec, "priorityClassName", path);
    if let Some(name) = spec.some("runtimeClassName") {
        rules::dns_subdomain(out, name.as_str().unwrap_or_default(), &path.child("runtimeClassName"));
    }
    if let Some(policy) = spec.some("preemptionPolicy") {
        let policy = policy.as_str().unwrap_or_default();
        rules::one_of(out, policy, &["PreemptLowerPriority", "Never"], &path.child("preemptionPolicy"));
    }
    if let Some(overhead) = spec.some("overhead") {
        resources::overhead(out, overhead, options, &path.child("overhead"));
    }
}

fn subdomain_if_set(out: &mut Errors, object: &Value, field: &str, path: &Path) {
    let name = object.text(field);
    if !name.is_empty() {
        rules::dns_subdomain(out, name, &path.child(field));
    }
}

fn host_network_ports(out: &mut Errors, spec: &Value, options: &Options, path: &Path) {
    if !spec.flag("hostNetwork") {
        return;
    }
    for (i, container) in spec.items("containers").iter().enumerate() {
        for (j, port) in container.items("ports").iter().enumerate() {
            let host = port.number("hostPort");
            if (options.is_pod || host != 0) && host != port.number("containerPort") {
                let path = path.child("containers").index(i).child("ports").index(j).child("hostPort");
                let detail = "must match `containerPort` when `hostNetwork` is true";
                out.push(Error::invalid(&path, host, detail));
            }
        }
    }
}

fn dns_config(out: &mut Errors, spec: &Value, path: &Path) {
    let config = spec.at("dnsConfig");
    if spec.text("dnsPolicy") == "None" {
        if config.is_null() {
            return out.push(Error::required(path, "must provide `dnsConfig` when `dnsPolicy` is None"));
        }
        if config.items("nameservers").is_empty() {
            let detail = "must provide at least one DNS nameserver when `dnsPolicy` is None";
            return out.push(Error::required(&path.child("nameservers"), detail));
        }
    }
    let servers = path.child("nameservers");
    if config.items("nameservers").len() > 3 {
        let detail = "must not have more than 3 nameservers";
        out.push(Error::invalid(&servers, config.at("nameservers").clone(), detail));
    }
    for (i, server) in config.texts("nameservers").enumerate() {
        rules::legacy_ip(out, server, &[], &servers.index(i));
    }
    dns_searches(out, config, &path.child("searches"));
    for (i, option) in config.items("options").iter().enumerate() {
        if option.text("name").is_empty() {
            out.push(Error::required(&path.child("options").index(i), "must not be empty"));
        }
    }
}

fn dns_searches(out: &mut Errors, config: &Value, path: &Path) {
    let searches = config.items("searches");
    if searches.len() > 32 {
        out.push(Error::invalid(path, searches.to_vec(), "must not have more than 32 search paths"));
    }
    let length = config.texts("searches").map(|s| s.len() + 1).sum::<usize>();
    if length > 2048 + 1 {
        let detail = "must not have more than 2048 characters (including spaces) in the search list";
        out.push(Error::invalid(path, searches.to_vec(), detail));
    }
    for (i, search) in config.texts("searches").enumerate().filter(|(_, s)| *s != ".") {
        let search = search.strip_suffix('.').unwrap_or(search);
        push_all(out, &path.index(i), search, names::subdomain_underscore(search));
    }
}

fn host_aliases(out: &mut Errors, aliases: &[Value], path: &Path) {
    for (i, alias) in aliases.iter().enumerate() {
        let path = path.index(i);
        rules::legacy_ip(out, alias.text("ip"), &[], &path.child("ip"));
        for (j, name) in alias.texts("hostnames").enumerate() {
            rules::dns_subdomain(out, name, &path.child("hostnames").index(j));
        }
    }
}

fn host_users(out: &mut Errors, spec: &Value, options: &Options, path: &Path) {
    if spec.at("hostUsers").as_bool() != Some(false) {
        return;
    }
    let mut forbid = |path: &Path| out.push(Error::forbidden(path, "when `hostUsers` is false"));
    if spec.flag("hostNetwork") && !options.host_network_without_host_users {
        forbid(&path.child("hostNetwork"));
    }
    if spec.flag("hostPID") {
        forbid(&path.child("HostPID"));
    }
    if spec.flag("hostIPC") {
        forbid(&path.child("HostIPC"));
    }
    if !options.devices_without_host_users {
        each_container(spec, path, |container, path| {
            if !container.items("volumeDevices").is_empty() {
                forbid(&path.child("volumeDevices"));
            }
        });
    }
}

fn host_name_override(out: &mut Errors, spec: &Value, path: &Path) {
    let Some(name) = spec.at("hostnameOverride").as_str() else { return };
    let path = path.child("hostnameOverride");
    if spec.flag("setHostnameAsFQDN") {
        out.push(Error::forbidden(&path, "may not be specified when setHostnameAsFQDN is true"));
    }
    if spec.flag("hostNetwork") {
        out.push(Error::forbidden(&path, "may not be specified when hostNetwork is true"));
    }
    if name.len() > 64 {
        out.push(Error::too_long(&path, 64));
    }
    rules::dns_subdomain(out, name, &path);
}

fn operating_system(out: &mut Errors, spec: &Value, path: &Path) {
    if !spec.has("os") {
        return;
    }
    match spec.at("os").text("name") {
        "" => out.push(Error::required(&path.child("os").child("name"), "")),
        "linux" => security::linux(out, spec, path),
        "windows" => security::windows(out, spec, path),
        other => rules::supported(out, other, &["linux", "windows"], &path.child("os")),
    }
}

fn scheduling_group(out: &mut Errors, spec: &Value, path: &Path) {
    let Some(group) = spec.some("schedulingGroup") else { return };
    let path = path.child("podGroupName");
    match group.at("podGroupName").as_str() {
        None => out.push(Error::invalid(&path, Value::Null, "must specify one of: `podGroupName`")),
        Some(name) => rules::dns_subdomain(out, name, &path),
    }
}

/// Files with variables come from emptyDir volumes.
fn file_volumes(out: &mut Errors, spec: &Value, path: &Path) {
    each_container(spec, path, |container, path| {
        for (i, variable) in container.items("env").iter().enumerate() {
            let Some(file) = variable.at("valueFrom").some("fileKeyRef") else { continue };
            let name = file.text("volumeName");
            let path = path.child("env").index(i).child("valueFrom").child("fileKeyRef").child("volumeName");
            match spec.items("volumes").iter().rev().find(|v| v.text("name") == name) {
                None => out.push(Error::not_found(&path, name)),
                Some(volume) if !volume.has("emptyDir") => {
                    out.push(Error::invalid(&path, name, "referenced volume must be of type emptyDir"));
                }
                Some(_) => {}
            }
        }
    });
}

//! Containers of a pod: those that run, those that run before, and those put in to look around.

use std::collections::BTreeSet;

use super::options::Options;
use super::{env, mounts, probes, resources, security, volumes};
use crate::Value;
use crate::field::{Error, Errors, Path};
use crate::kinds::compute::is_sidecar;
use crate::kinds::rules;
use crate::kinds::view::{View, is_zero};
use crate::meta::check::push_all;
use crate::meta::names;

/// What the rules for containers have to know of their pod.
pub struct Pod<'a> {
    /// The pod spec.
    pub spec: &'a Value,
    /// The valid volumes.
    pub volumes: &'a volumes::ByName<'a>,
    /// Names of resource claims.
    pub claims: &'a BTreeSet<&'a str>,
    /// Tolerances.
    pub options: &'a Options,
}

impl Pod<'_> {
    /// The time that a pod has to end.
    pub fn grace(&self) -> Option<i64> {
        self.spec.int("terminationGracePeriodSeconds")
    }
}

/// An image's name without spaces around it; only pods have to, templates may be filled in later.
pub fn image_is_trimmed(out: &mut Errors, container: &Value, path: &Path) {
    let image = container.text("image");
    if image.trim() != image {
        out.push(Error::invalid(&path.child("image"), image, "must not have leading or trailing whitespace"));
    }
}

/// The containers that run.
pub fn containers(out: &mut Errors, pod: &Pod<'_>, path: &Path) {
    let list = pod.spec.items("containers");
    if list.is_empty() {
        return out.push(Error::required(path, ""));
    }
    let mut seen = BTreeSet::new();
    for (i, container) in list.iter().enumerate() {
        let path = path.index(i);
        common(out, container, pod, &path);
        if !seen.insert(container.text("name")) {
            out.push(Error::duplicate(&path.child("name"), container.text("name")));
        }
        running(out, container, pod, &path);
        restart_policy(out, container, &path);
    }
    let mut ports = BTreeSet::new();
    for (i, container) in list.iter().enumerate() {
        host_ports(out, container, &mut ports, &path.index(i));
    }
}

/// What only containers have that keep running.
fn running(out: &mut Errors, container: &Value, pod: &Pod<'_>, path: &Path) {
    if let Some(lifecycle) = container.some("lifecycle") {
        probes::lifecycle(out, lifecycle, pod, &path.child("lifecycle"));
    }
    probes::probes(out, container, path);
}

fn host_ports<'a>(out: &mut Errors, container: &'a Value, seen: &mut BTreeSet<(&'a str, &'a str, i64)>, path: &Path) {
    for (i, port) in container.items("ports").iter().enumerate() {
        let key = (port.text("protocol"), port.text("hostIP"), port.number("hostPort"));
        if key.2 != 0 && !seen.insert(key) {
            let text = format!("{}/{}/{}", key.0, key.1, key.2);
            out.push(Error::duplicate(&path.child("ports").index(i).child("hostPort"), text));
        }
    }
}

/// The containers that run before the others, and sidecars.
pub fn init_containers(out: &mut Errors, pod: &Pod<'_>, path: &Path) {
    let mut seen: BTreeSet<&str> = pod.spec.items("containers").iter().map(|c| c.text("name")).collect();
    for (i, container) in pod.spec.items("initContainers").iter().enumerate() {
        let at = path.index(i);
        common(out, container, pod, &at);
        restart_policy(out, container, &at);
        let name = container.text("name");
        if seen.contains(name) {
            out.push(Error::duplicate(&at.child("name"), name));
        } else if !name.is_empty() {
            seen.insert(name);
        }
        // Upstream looks at each container alone here and so counts it as the first of its list.
        host_ports(out, container, &mut BTreeSet::new(), &path.index(0));
        if is_sidecar(container) {
            running(out, container, pod, &at);
        } else {
            ending(out, container, pod, &at);
        }
    }
}

/// What a container that ends can't have.
fn ending(out: &mut Errors, container: &Value, pod: &Pod<'_>, path: &Path) {
    for field in ["lifecycle", "livenessProbe", "readinessProbe", "startupProbe"] {
        if container.has(field) {
            let detail = "may not be set for init containers without restartPolicy=Always";
            out.push(Error::forbidden(&path.child(field), detail));
        }
    }
    if pod.options.restart_init_containers {
        return;
    }
    for (i, policy) in container.items("resizePolicy").iter().enumerate() {
        let policy = policy.text("restartPolicy");
        if policy == "RestartContainer" {
            let detail = "must not be set to 'RestartContainer' for non-sidecar initContainers";
            let path = path.child("resizePolicy").index(i).child("restartPolicy");
            out.push(Error::invalid(&path, policy, detail));
        }
    }
}

/// Fields that the containers put in later may have.
const EPHEMERAL_FIELDS: &[&str] = &[
    "name",
    "image",
    "command",
    "args",
    "workingDir",
    "envFrom",
    "env",
    "volumeMounts",
    "volumeDevices",
    "terminationMessagePath",
    "terminationMessagePolicy",
    "imagePullPolicy",
    "securityContext",
    "stdin",
    "stdinOnce",
    "tty",
    "targetContainerName",
];
/// The other fields of containers, in the order in which upstream looks at them.
const OTHER_FIELDS: &[&str] = &[
    "ports",
    "resources",
    "resizePolicy",
    "restartPolicy",
    "restartPolicyRules",
    "livenessProbe",
    "readinessProbe",
    "startupProbe",
    "lifecycle",
];

/// The containers put in to look around.
pub fn ephemeral_containers(out: &mut Errors, pod: &Pod<'_>, path: &Path) {
    let names = |list: &str| pod.spec.items(list).iter().map(|c| c.text("name")).collect::<BTreeSet<_>>();
    let others: BTreeSet<&str> = names("containers").union(&names("initContainers")).copied().collect();
    let mut seen = others.clone();
    for (i, container) in pod.spec.items("ephemeralContainers").iter().enumerate() {
        let path = path.index(i);
        common(out, container, pod, &path);
        image_is_trimmed(out, container, &path);
        let name = container.text("name");
        if !seen.insert(name) {
            out.push(Error::duplicate(&path.child("name"), name));
        }
        let target = container.text("targetContainerName");
        if !target.is_empty() && !others.contains(target) {
            out.push(Error::not_found(&path.child("targetContainerName"), target));
        }
        debug_assert!(EPHEMERAL_FIELDS.iter().all(|f| !OTHER_FIELDS.contains(f)));
        for field in OTHER_FIELDS.iter().filter(|field| !is_zero(container.at(field))) {
            out.push(Error::forbidden(&path.child(field), "cannot be set for an Ephemeral Container"));
        }
        for (j, mount) in container.items("volumeMounts").iter().enumerate() {
            for field in ["subPath", "subPathExpr"].iter().filter(|field| !mount.text(field).is_empty()) {
                let path = path.child("volumeMounts").index(j).child(field);
                out.push(Error::forbidden(&path, "cannot be set for an Ephemeral Container"));
            }
        }
    }
}

/// What all containers have.
fn common(out: &mut Errors, container: &Value, pod: &Pod<'_>, path: &Path) {
    let name = container.text("name");
    if name.is_empty() {
        out.push(Error::required(&path.child("name"), ""));
    } else {
        rules::dns_label(out, name, &path.child("name"));
    }
    rules::required(out, container, "image", path);
    let policies = ["File", "FallbackToLogsOnError"];
    let policy = container.text("terminationMessagePolicy");
    rules::one_of(out, policy, &policies, &path.child("terminationMessagePolicy"));
    ports(out, container.items("ports"), &path.child("ports"));
    env::variables(out, container.items("env"), &path.child("env"));
    env::sources(out, container.items("envFrom"), &path.child("envFrom"));
    mounts::mounts(out, container, pod.volumes, &path.child("volumeMounts"));
    mounts::devices(out, container, pod.volumes, &path.child("volumeDevices"));
    pull_policy(out, container.text("imagePullPolicy"), &path.child("imagePullPolicy"));
    resources::of_container(out, container.at("resources"), pod.claims, pod.options, &path.child("resources"));
    resize_policy(out, container.items("resizePolicy"), pod.spec, &path.child("resizePolicy"));
    let host_users = pod.spec.at("hostUsers").as_bool() != Some(false);
    security::container(out, container.at("securityContext"), host_users, &path.child("securityContext"));
}

/// When an image is pulled.
pub fn pull_policy(out: &mut Errors, policy: &str, path: &Path) {
    rules::one_of(out, policy, &["Always", "IfNotPresent", "Never"], path);
}

fn ports(out: &mut Errors, ports: &[Value], path: &Path) {
    let mut seen = BTreeSet::new();
    for (i, port) in ports.iter().enumerate() {
        let path = path.index(i);
        let name = port.text("name");
        if !name.is_empty() {
            let wrong = names::port_name(name);
            if wrong.is_empty() && !seen.insert(name) {
                out.push(Error::duplicate(&path.child("name"), name));
            }
            push_all(out, &path.child("name"), name, wrong);
        }
        match port.number("containerPort") {
            0 => out.push(Error::required(&path.child("containerPort"), "")),
            number => rules::port(out, number, &path.child("containerPort")),
        }
        if port.number("hostPort") != 0 {
            rules::port(out, port.number("hostPort"), &path.child("hostPort"));
        }
        rules::one_of(out, port.text("protocol"), &["SCTP", "TCP", "UDP"], &path.child("protocol"));
    }
}

fn resize_policy(out: &mut Errors, policies: &[Value], spec: &Value, path: &Path) {
    let mut seen = BTreeSet::new();
    for (i, policy) in policies.iter().enumerate() {
        let name = policy.text("resourceName");
        if !seen.insert(name) {
            out.push(Error::duplicate(&path.index(i), name));
        }
        rules::one_of(out, name, &["cpu", "memory"], path);
        let restart = policy.text("restartPolicy");
        rules::one_of(out, restart, &["NotRequired", "RestartContainer"], path);
        if spec.text("restartPolicy") == "Never" && restart != "NotRequired" {
            let detail = "must be 'NotRequired' when pod `restartPolicy` is 'Never'";
            out.push(Error::invalid(path, restart, detail));
        }
    }
}

/// When a container is started again, other than its pod says.
fn restart_policy(out: &mut Errors, container: &Value, path: &Path) {
    let rules = container.items("restartPolicyRules");
    let policy_path = path.child("restartPolicy");
    match container.at("restartPolicy").as_str() {
        None if rules.is_empty() => return,
        None => out.push(Error::required(&policy_path, "must specify restartPolicy when restart rules are used")),
        Some(policy) => rules::supported(out, policy, &["Always", "Never", "OnFailure"], &policy_path),
    }
    let path = path.child("restartPolicyRules");
    if rules.len() > 20 {
        out.push(Error::too_many(&path, rules.len(), 20));
    }
    for (i, rule) in rules.iter().enumerate() {
        let path = path.index(i);
        rules::supported(out, rule.text("action"), &["Restart", "RestartAllContainers"], &path.child("action"));
        let codes_path = path.child("exitCodes");
        let Some(codes) = rule.some("exitCodes") else {
            out.push(Error::required(&codes_path, "must be specified"));
            continue;
        };
        rules::supported(out, codes.text("operator"), &["In", "NotIn"], &codes_path.child("operator"));
        if codes.items("values").len() > 255 {
            out.push(Error::too_many(&codes_path.child("values"), codes.items("values").len(), 255));
        }
    }
}

//! Security contexts, profiles and what pods of an operating system may not set.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use regex::Regex;

use super::options::Options;
use super::spec::{APP_ARMOR, each_container};
use crate::Value;
use crate::field::{Error, Errors, Path};
use crate::kinds::internal;
use crate::kinds::rules;
use crate::kinds::view::View;
use crate::meta::check::push_all;
use crate::meta::names;

const SECCOMP_POD: &str = "seccomp.security.alpha.kubernetes.io/pod";
/// Prefix of annotations that once stated seccomp profiles of containers.
pub const SECCOMP_CONTAINER: &str = "container.seccomp.security.alpha.kubernetes.io/";
/// Annotation that once stated a pod's seccomp profile.
pub const SECCOMP: &str = SECCOMP_POD;
const PROFILES: [&str; 3] = ["Localhost", "RuntimeDefault", "Unconfined"];

fn ids(out: &mut Errors, context: &Value, fields: &[&str], path: &Path) {
    for field in fields {
        if let Some(id) = context.int(field) {
            push_all(out, &path.child(field), id, names::user_id(id));
        }
    }
}

/// The security context of a pod; `spec` holds also what is shared with the host.
pub fn pod(out: &mut Errors, spec: &Value, options: &Options, path: &Path) {
    let context = spec.at("securityContext");
    ids(out, context, &["fsGroup", "runAsUser", "runAsGroup"], path);
    for (i, id) in context.items("supplementalGroups").iter().enumerate() {
        let id = id.as_i64().unwrap_or(0);
        push_all(out, &path.child("supplementalGroups").index(i), id, names::user_id(id));
    }
    if spec.flag("shareProcessNamespace") && spec.flag("hostPID") {
        let detail = "ShareProcessNamespace and HostPID cannot both be enabled";
        out.push(Error::invalid(&path.child("shareProcessNamespace"), true, detail));
    }
    sysctls(out, spec, options, &path.child("sysctls"));
    rules::supported_if_set(out, context, "fsGroupChangePolicy", &["Always", "OnRootMismatch"], path);
    seccomp(out, context.at("seccompProfile"), &path.child("seccompProfile"));
    windows_options(out, context.at("windowsOptions"), &path.child("windowsOptions"));
    app_armor(out, context.at("appArmorProfile"), &path.child("appArmorProfile"));
    rules::supported_if_set(out, context, "supplementalGroupsPolicy", &["Merge", "Strict"], path);
    let policies: &[&str] = if options.any_selinux_policy { &["MountOption", "Recursive"] } else { &["Recursive"] };
    rules::supported_if_set(out, context, "seLinuxChangePolicy", policies, path);
}

const SYSCTL: &str = r"^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$";

fn sysctls(out: &mut Errors, spec: &Value, options: &Options, path: &Path) {
    static PATTERN: LazyLock<Regex> = LazyLock::new(|| Regex::new(SYSCTL).expect("a constant pattern"));
    let mut seen = BTreeSet::new();
    for (i, sysctl) in spec.at("securityContext").items("sysctls").iter().enumerate() {
        let path = path.index(i).child("name");
        let name = sysctl.text("name");
        if name.is_empty() {
            out.push(Error::required(&path, ""));
        } else if name.len() > 253 || !PATTERN.is_match(name) {
            let detail = format!("must have at most 253 characters and match regex {SYSCTL}");
            out.push(Error::invalid(&path, name, detail));
        } else if seen.contains(name) {
            out.push(Error::duplicate(&path, name));
        }
        if !options.host_sysctls {
            host_sysctl(out, name, spec, &path);
        }
        seen.insert(name);
    }
}

/// A sysctl of a namespace that the pod shares with its host.
pub fn host_sysctl(out: &mut Errors, name: &str, spec: &Value, path: &Path) {
    let dotted = dotted(name);
    let of_net = dotted.starts_with("net.");
    let of_ipc = ["kernel.sem", "kernel.shm", "kernel.msg", "fs.mqueue."].iter().any(|p| dotted.starts_with(p));
    if spec.flag("hostNetwork") && of_net {
        out.push(Error::invalid(path, name, "may not be specified when 'hostNetwork' is true"));
    } else if spec.flag("hostIPC") && of_ipc {
        out.push(Error::invalid(path, name, "may not be specified when 'hostIPC' is true"));
    }
}

/// Slashes may separate the parts instead of dots; then dots belong to the parts.
fn dotted(name: &str) -> String {
    match name.find(['.', '/']) {
        Some(at) if name.as_bytes()[at] == b'/' => name
            .chars()
            .map(|c| {
                if c == '/' {
                    '.'
                } else if c == '.' {
                    '/'
                } else {
                    c
                }
            })
            .collect(),
        _ => name.into(),
    }
}

/// The security context of a container.
pub fn container(out: &mut Errors, context: &Value, host_users: bool, path: &Path) {
    if context.is_null() {
        return;
    }
    ids(out, context, &["runAsUser", "runAsGroup"], path);
    if let Some(mount) = context.at("procMount").as_str() {
        let path = path.child("procMount");
        rules::supported(out, mount, &["Default", "Unmasked"], &path);
        if host_users && mount == "Unmasked" {
            out.push(Error::invalid(&path, mount, "`hostUsers` must be false to use `Unmasked`"));
        }
    }
    seccomp(out, context.at("seccompProfile"), &path.child("seccompProfile"));
    if context.at("allowPrivilegeEscalation").as_bool() == Some(false) {
        let mut wrong = |detail: &str| {
            out.push(Error::invalid_shown(path, internal::show("SecurityContext", context), detail));
        };
        if context.flag("privileged") {
            wrong("cannot set `allowPrivilegeEscalation` to false and `privileged` to true");
        }
        for _ in context.at("capabilities").texts("add").filter(|c| *c == "CAP_SYS_ADMIN") {
            wrong("cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN");
        }
    }
    windows_options(out, context.at("windowsOptions"), &path.child("windowsOptions"));
    app_armor(out, context.at("appArmorProfile"), &path.child("appArmorProfile"));
}

fn seccomp(out: &mut Errors, profile: &Value, path: &Path) {
    if profile.is_null() {
        return;
    }
    let (kind, file_path) = (profile.text("type"), path.child("localhostProfile"));
    match kind {
        "" => out.push(Error::required(&path.child("type"), "type is required when seccompProfile is set")),
        kind => rules::supported(out, kind, &PROFILES, &path.child("type")),
    }
    match (kind, profile.at("localhostProfile").as_str()) {
        ("Localhost", None) => out.push(Error::required(&file_path, "must be set when seccomp type is Localhost")),
        ("Localhost", Some(file)) => rules::descending_path(out, file, &file_path),
        (_, Some(_)) => {
            let shown = internal::show("SeccompProfile", profile);
            out.push(Error::invalid_shown(&file_path, shown, "can only be set when seccomp type is Localhost"));
        }
        (_, None) => {}
    }
}

fn app_armor(out: &mut Errors, profile: &Value, path: &Path) {
    if profile.is_null() {
        return;
    }
    let file = profile.at("localhostProfile").as_str();
    let file_path = path.child("localhostProfile");
    match (profile.text("type"), file) {
        ("", _) => out.push(Error::required(&path.child("type"), "type is required when appArmorProfile is set")),
        ("Localhost", None) => out.push(Error::required(&file_path, "must be set when AppArmor type is Localhost")),
        ("Localhost", Some(file)) => {
            if file.trim() != file {
                out.push(Error::invalid(&file_path, file, "must not be padded with whitespace"));
            } else if file.is_empty() {
                out.push(Error::required(&file_path, "must be set when AppArmor type is Localhost"));
            }
            if file.len() > 4095 {
                out.push(Error::too_long(&file_path, 4095));
            }
        }
        ("RuntimeDefault" | "Unconfined", Some(file)) => {
            out.push(Error::invalid(&file_path, file, "can only be set when AppArmor type is Localhost"));
        }
        (kind, _) => rules::supported(out, kind, &PROFILES, &path.child("type")),
    }
}

/// True for an AppArmor profile without fault.
pub fn app_armor_is_valid(profile: &Value) -> bool {
    let mut out = Errors::new();
    app_armor(&mut out, profile, &Path::default());
    out.is_empty()
}

/// Annotations that once stated seccomp profiles.
pub fn seccomp_annotations(out: &mut Errors, annotations: &Value, path: &Path) {
    if let Some(profile) = annotations.some(SECCOMP_POD) {
        seccomp_name(out, profile.as_str().unwrap_or_default(), &path.child(SECCOMP_POD));
    }
    let all = annotations.as_object().into_iter().flatten();
    for (key, profile) in all.filter(|(key, _)| key.starts_with(SECCOMP_CONTAINER)) {
        seccomp_name(out, profile.as_str().unwrap_or_default(), &path.child(key));
    }
}

fn seccomp_name(out: &mut Errors, profile: &str, path: &Path) {
    match profile {
        "runtime/default" | "docker/default" | "unconfined" => {}
        _ => match profile.strip_prefix("localhost/") {
            Some(file) => rules::descending_path(out, file, path),
            None => out.push(Error::invalid(path, profile, "must be a valid seccomp profile")),
        },
    }
}

/// Annotations that once stated AppArmor profiles.
pub fn app_armor_annotations(out: &mut Errors, annotations: &Value, spec: &Value, path: &Path) {
    for (key, profile) in annotations.as_object().into_iter().flatten() {
        let Some(name) = key.strip_prefix(APP_ARMOR) else { continue };
        let mut found = false;
        each_container(spec, &Path::default(), |container, _| found |= container.text("name") == name);
        if !found {
            out.push(Error::invalid(&path.key(key), name, "container not found"));
        }
        let profile = profile.as_str().unwrap_or_default();
        let known = ["", "runtime/default", "unconfined"].contains(&profile) || profile.starts_with("localhost/");
        if !known {
            let detail = format!("invalid AppArmor profile name: {}", crate::field::quote(profile));
            out.push(Error::invalid(&path.key(key), profile, detail));
        }
    }
}

/// An annotation and a field say the same; `what` names the kind of profile.
fn annotation_matches(
    out: &mut Errors, annotation: &Value, profile: &Value, runtime: &[&str], what: &str, path: &Path,
) {
    let Some(annotation) = annotation.as_str() else { return };
    let wrong_type = match profile.text("type") {
        "Unconfined" => annotation != "unconfined",
        "RuntimeDefault" => !runtime.contains(&annotation),
        "Localhost" => match annotation.strip_prefix("localhost/") {
            None => true,
            Some(file) => {
                if profile.at("localhostProfile").as_str() != Some(file) {
                    let detail = format!("{what} profile in annotation and field must match");
                    out.push(Error::forbidden(&path.child("localhostProfile"), detail));
                }
                false
            }
        },
        _ => false,
    };
    if wrong_type {
        out.push(Error::forbidden(&path.child("type"), format!("{what} type in annotation and field must match")));
    }
}

/// Seccomp annotations and fields say the same.
pub fn seccomp_annotations_match(out: &mut Errors, meta: &Value, spec: &Value, path: &Path) {
    const RUNTIME: [&str; 2] = ["runtime/default", "docker/default"];
    let annotations = meta.at("annotations");
    let mut check = |annotation: &Value, context: &Value, path: &Path| {
        if let Some(profile) = context.some("seccompProfile") {
            let path = path.child("securityContext").child("seccompProfile");
            annotation_matches(out, annotation, profile, &RUNTIME, "seccomp", &path);
        }
    };
    check(annotations.at(SECCOMP_POD), spec.at("securityContext"), path);
    each_container(spec, path, |container, path| {
        let key = format!("{SECCOMP_CONTAINER}{}", container.text("name"));
        check(annotations.at(&key), container.at("securityContext"), path);
    });
}

/// AppArmor annotations and fields say the same.
pub fn app_armor_annotations_match(out: &mut Errors, meta: &Value, spec: &Value, path: &Path) {
    if spec.at("os").text("name") == "windows" {
        return;
    }
    let of_pod = spec.at("securityContext").some("appArmorProfile");
    each_container(spec, path, |container, path| {
        let Some(profile) = container.at("securityContext").some("appArmorProfile").or(of_pod) else { return };
        let key = format!("{APP_ARMOR}{}", container.text("name"));
        let path = path.child("securityContext").child("appArmorProfile");
        annotation_matches(out, meta.at("annotations").at(&key), profile, &["runtime/default"], "apparmor", &path);
    });
}

/// What pods for Linux can't set.
pub fn linux(out: &mut Errors, spec: &Value, path: &Path) {
    let mut check = |context: &Value, path: &Path| {
        if context.has("windowsOptions") {
            let path = path.child("securityContext").child("windowsOptions");
            out.push(Error::forbidden(&path, "windows options cannot be set for a linux pod"));
        }
    };
    check(spec.at("securityContext"), path);
    each_container(spec, path, |container, path| check(container.at("securityContext"), path));
}

/// Fields of a pod that pods for Windows can't set, in upstream's order; true: below the security context.
const NOT_ON_WINDOWS: &[(&str, bool)] = &[
    ("appArmorProfile", true),
    ("seLinuxOptions", true),
    ("hostUsers", false),
    ("hostPID", false),
    ("hostIPC", false),
    ("seccompProfile", true),
    ("fsGroup", true),
    ("fsGroupChangePolicy", true),
    ("sysctls", true),
    ("shareProcessNamespace", false),
    ("runAsUser", true),
    ("runAsGroup", true),
    ("supplementalGroups", true),
    ("supplementalGroupsPolicy", true),
    ("seLinuxChangePolicy", true),
];
/// The same of a container's security context.
const NOT_IN_WINDOWS_CONTAINERS: &[&str] = &[
    "appArmorProfile",
    "seLinuxOptions",
    "seccompProfile",
    "capabilities",
    "readOnlyRootFilesystem",
    "privileged",
    "allowPrivilegeEscalation",
    "procMount",
    "runAsUser",
    "runAsGroup",
];

/// What pods for Windows can't set.
pub fn windows(out: &mut Errors, spec: &Value, path: &Path) {
    let mut forbid = |path: Path| out.push(Error::forbidden(&path, "cannot be set for a windows pod"));
    let context = spec.at("securityContext");
    for (field, below) in NOT_ON_WINDOWS {
        let set = match *field {
            "hostPID" | "hostIPC" => spec.flag(field),
            "sysctls" => !context.items(field).is_empty(),
            field if *below => context.has(field),
            field => spec.has(field),
        };
        if set {
            forbid(if *below { path.child("securityContext").child(field) } else { path.child(field) });
        }
    }
    each_container(spec, path, |container, path| {
        for field in NOT_IN_WINDOWS_CONTAINERS {
            if container.at("securityContext").has(field) {
                forbid(path.child("securityContext").child(field));
            }
        }
    });
}

/// Windows containers that are processes of the host: all or none.
pub fn host_process(out: &mut Errors, spec: &Value, path: &Path) {
    let of = |context: &Value| context.at("windowsOptions").at("hostProcess").as_bool();
    let pod = of(spec.at("securityContext"));
    let (mut count, mut on_host) = (0, 0);
    each_container(spec, path, |container, path| {
        let own = of(container.at("securityContext"));
        count += 1;
        if let (Some(pod), Some(own)) = (pod, own)
            && pod != own
        {
            let path = path.child("securityContext").child("windowsOptions").child("hostProcess");
            let detail = format!("pod hostProcess value must be identical if both are specified, was {pod}");
            out.push(Error::invalid(&path, own, detail));
        }
        on_host += usize::from(own.or(pod) == Some(true));
    });
    if on_host == 0 {
        return;
    }
    if on_host != count {
        let detail = "If pod contains any hostProcess containers then all containers must be HostProcess containers";
        out.push(Error::invalid(path, "", detail));
    }
    if !spec.flag("hostNetwork") {
        let detail = "hostNetwork must be true if pod contains any hostProcess containers";
        out.push(Error::invalid(&path.child("hostNetwork"), false, detail));
    }
}

fn windows_options(out: &mut Errors, options: &Value, path: &Path) {
    if let Some(name) = options.at("gmsaCredentialSpecName").as_str() {
        rules::dns_subdomain(out, name, &path.child("gmsaCredentialSpecName"));
    }
    if let Some(spec) = options.at("gmsaCredentialSpec").as_str() {
        let path = path.child("gmsaCredentialSpec");
        if spec.is_empty() {
            out.push(Error::invalid(&path, spec, "gmsaCredentialSpec cannot be an empty string"));
        } else if spec.len() > 64 * 1024 {
            out.push(Error::invalid(&path, spec, "gmsaCredentialSpec size must be under 64 KiB"));
        }
    }
    if let Some(name) = options.at("runAsUserName").as_str() {
        for detail in windows_user(name) {
            out.push(Error::invalid(&path.child("runAsUserName"), name, format!("runAsUserName{detail}")));
        }
    }
}

/// What is wrong with `DOMAIN\user`.
fn windows_user(name: &str) -> Vec<&'static str> {
    let parts: Vec<&str> = name.split('\\').collect();
    let (domain, user) = match parts.as_slice() {
        _ if name.is_empty() => return vec![" cannot be an empty string"],
        _ if name.bytes().any(|b| b.is_ascii_control()) => return vec![" cannot contain control characters"],
        [user] => (None, *user),
        [domain, user] => (Some(*domain), *user),
        _ => return vec![" cannot contain more than one backslash"],
    };
    let mut out = Vec::new();
    if domain.is_some_and(|d| d.len() >= 256) {
        out.push("'s Domain length must be under 256 characters");
    }
    if domain.is_some_and(|d| !is_net_bios(d) && !is_windows_domain(d)) {
        out.push("'s Domain doesn't match the NetBios nor the DNS format");
    }
    if user.is_empty() {
        out.push("'s User cannot be empty");
    } else if user.len() > 104 {
        out.push("'s User length must not be longer than 104 characters");
    }
    if !user.is_empty() && user.chars().all(|c| c == '.' || c == ' ') {
        out.push("'s User cannot contain only periods or spaces");
    }
    if user.contains(['"', '/', '\\', ':', ';', '|', '=', ',', '+', '*', '?', '<', '>', '@', '[', ']']) {
        out.push("'s User cannot contain the following characters: \"/\\:;|=,+*?<>@[]");
    }
    out
}

fn is_net_bios(domain: &str) -> bool {
    let count = domain.chars().count();
    (1..=15).contains(&count)
        && !domain.starts_with('.')
        && !domain.contains(['\\', '/', ':', '*', '?', '"', '<', '>', '|'])
}

fn is_windows_domain(domain: &str) -> bool {
    domain.split('.').all(|part| {
        (1..=63).contains(&part.len())
            && part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
            && !part.starts_with('-')
            && !part.ends_with('-')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_of_windows() {
        for good in ["user", "DOMAIN\\user", "a.example.com\\user"] {
            assert!(windows_user(good).is_empty(), "{good}");
        }
        assert_eq!(windows_user("a\\b\\c"), [" cannot contain more than one backslash"]);
        assert_eq!(windows_user("a\\"), ["'s User cannot be empty"]);
        assert_eq!(windows_user(".."), ["'s User cannot contain only periods or spaces"]);
    }

    #[test]
    fn sysctls_with_slashes_have_a_namespace_too() {
        let spec = serde_json::json!({"hostNetwork": true});
        let mut out = Errors::new();
        host_sysctl(&mut out, "net/ipv4/ip_forward", &spec, &Path::new("x"));
        assert_eq!(out.0.len(), 1);
    }
}

//! Security contexts, as the runtime wants them: the container's settings over the pod's.

use crate::pods::{self, describe};
use k8s_cri::v1;
use k8s_openapi::api::core::v1::{
    AppArmorProfile, Container, Pod, PodSecurityContext, SELinuxOptions, SeccompProfile, SecurityContext,
};
use std::path::Path;

/// What the node's configuration adds.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Directory of seccomp profiles that pods name.
    pub seccomp_root: std::path::PathBuf,
    /// Do pods without a seccomp profile get the runtime's?
    pub seccomp_default: bool,
}

fn pod_context(pod: &Pod) -> &PodSecurityContext {
    static EMPTY: std::sync::LazyLock<PodSecurityContext> = std::sync::LazyLock::new(PodSecurityContext::default);
    pods::spec(pod).security_context.as_ref().unwrap_or(&EMPTY)
}

/// The settings that hold for a container.
pub fn effective(pod: &Pod, container: &Container) -> SecurityContext {
    let outer = pod_context(pod);
    let mut context = container.security_context.clone().unwrap_or_default();
    context.se_linux_options = context.se_linux_options.or_else(|| outer.se_linux_options.clone());
    context.run_as_user = context.run_as_user.or(outer.run_as_user);
    context.run_as_group = context.run_as_group.or(outer.run_as_group);
    context.run_as_non_root = context.run_as_non_root.or(outer.run_as_non_root);
    context.seccomp_profile = context.seccomp_profile.or_else(|| outer.seccomp_profile.clone());
    context.app_armor_profile = context.app_armor_profile.or_else(|| outer.app_armor_profile.clone());
    context
}

/// The user that an image names: a number, or a name that only the image can resolve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImageUser {
    /// A user id.
    Id(i64),
    /// A user name.
    Name(String),
}

/// Refuses a container that must not run as root and would, or might.
pub fn verify_non_root(pod: &Pod, container: &Container, user: &ImageUser) -> Result<(), String> {
    let context = effective(pod, container);
    if context.run_as_non_root != Some(true) {
        return Ok(());
    }
    let place = format!("(pod: {:?}, container: {})", describe(pod), container.name);
    match (context.run_as_user, user) {
        (Some(0), _) => Err(format!("container's runAsUser breaks non-root policy {place}")),
        (Some(_), _) => Ok(()),
        (None, ImageUser::Name(name)) => Err(format!(
            "container has runAsNonRoot and image has non-numeric user ({name}), cannot verify user is non-root {place}"
        )),
        (None, ImageUser::Id(0)) => Err(format!("container has runAsNonRoot and image will run as root {place}")),
        (None, ImageUser::Id(_)) => Ok(()),
    }
}

/// Namespaces that the pod shares with the node or among its containers.
pub fn namespaces(pod: &Pod) -> v1::NamespaceOption {
    let spec = pods::spec(pod);
    let node_or = |host: Option<bool>, otherwise: v1::NamespaceMode| match host {
        Some(true) => v1::NamespaceMode::Node as i32,
        _ => otherwise as i32,
    };
    let pid = match spec.share_process_namespace {
        Some(true) => v1::NamespaceMode::Pod,
        _ => v1::NamespaceMode::Container,
    };
    v1::NamespaceOption {
        network: node_or(spec.host_network, v1::NamespaceMode::Pod),
        pid: node_or(spec.host_pid, pid),
        ipc: node_or(spec.host_ipc, v1::NamespaceMode::Pod),
        ..Default::default()
    }
}

fn profile(kind: v1::security_profile::ProfileType, localhost: String) -> v1::SecurityProfile {
    v1::SecurityProfile { profile_type: kind as i32, localhost_ref: localhost }
}

fn seccomp(chosen: Option<&SeccompProfile>, settings: &Settings) -> Result<v1::SecurityProfile, String> {
    use v1::security_profile::ProfileType;
    let Some(chosen) = chosen else {
        let kind = if settings.seccomp_default { ProfileType::RuntimeDefault } else { ProfileType::Unconfined };
        return Ok(profile(kind, String::new()));
    };
    match chosen.type_.as_str() {
        "RuntimeDefault" => Ok(profile(ProfileType::RuntimeDefault, String::new())),
        "Localhost" => match chosen.localhost_profile.as_deref().filter(|name| !name.is_empty()) {
            Some(name) => Ok(profile(ProfileType::Localhost, path_in(&settings.seccomp_root, name))),
            None => Err("localhostProfile must be set if seccompProfile type is Localhost.".into()),
        },
        _ => Ok(profile(ProfileType::Unconfined, String::new())),
    }
}

fn path_in(root: &Path, name: &str) -> String {
    root.join(name.trim_start_matches('/')).display().to_string()
}

/// The profile, and its old one-word form for runtimes that read only that.
fn apparmor(chosen: Option<&AppArmorProfile>) -> Result<(Option<v1::SecurityProfile>, String), String> {
    use v1::security_profile::ProfileType;
    let Some(chosen) = chosen else { return Ok((None, String::new())) };
    match chosen.type_.as_str() {
        "RuntimeDefault" => Ok((Some(profile(ProfileType::RuntimeDefault, String::new())), "runtime/default".into())),
        "Unconfined" => Ok((Some(profile(ProfileType::Unconfined, String::new())), "unconfined".into())),
        "Localhost" => {
            let name = chosen.localhost_profile.clone().ok_or("missing localhost apparmor profile name")?;
            Ok((Some(profile(ProfileType::Localhost, name.clone())), format!("localhost/{name}")))
        }
        other => Err(format!("unknown apparmor profile type: {other:?}")),
    }
}

/// The profile that the old annotation asks for; the field wins.
fn apparmor_annotation(pod: &Pod, container: &Container) -> Option<AppArmorProfile> {
    let key = format!("container.apparmor.security.beta.kubernetes.io/{}", container.name);
    let value = pods::annotation(pod, &key)?;
    let (type_, localhost_profile) = match value {
        "runtime/default" => ("RuntimeDefault", None),
        "unconfined" => ("Unconfined", None),
        other => ("Localhost", Some(other.strip_prefix("localhost/")?.to_owned())),
    };
    Some(AppArmorProfile { type_: type_.into(), localhost_profile })
}

fn selinux(options: &SELinuxOptions) -> v1::SeLinuxOption {
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    v1::SeLinuxOption {
        user: text(&options.user),
        role: text(&options.role),
        r#type: text(&options.type_),
        level: text(&options.level),
    }
}

fn groups(pod: &Pod) -> Vec<i64> {
    let context = pod_context(pod);
    context.fs_group.into_iter().chain(context.supplemental_groups.iter().flatten().copied()).collect()
}

fn groups_policy(pod: &Pod) -> i32 {
    match pod_context(pod).supplemental_groups_policy.as_deref() {
        Some("Strict") => v1::SupplementalGroupsPolicy::Strict as i32,
        _ => v1::SupplementalGroupsPolicy::Merge as i32,
    }
}

const MASKED: [&str; 12] = [
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];
const READ_ONLY: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// The security context of a container.
pub fn of_container(
    pod: &Pod, container: &Container, user: &ImageUser, settings: &Settings,
) -> Result<v1::LinuxContainerSecurityContext, String> {
    let context = effective(pod, container);
    let number = |value: Option<i64>| value.map(|value| v1::Int64Value { value });
    let from_image = context.run_as_user.is_none();
    let armor = context.app_armor_profile.or_else(|| apparmor_annotation(pod, container));
    let (apparmor, old_form) = apparmor(armor.as_ref())?;
    let unmasked = context.proc_mount.as_deref() == Some("Unmasked");
    let paths = |list: &[&str]| if unmasked { Vec::new() } else { list.iter().map(|p| (*p).into()).collect() };
    #[allow(deprecated)] // runtimes of containerd's 1.x line read only the old AppArmor field
    Ok(v1::LinuxContainerSecurityContext {
        capabilities: context.capabilities.map(|c| v1::Capability {
            add_capabilities: c.add.unwrap_or_default(),
            drop_capabilities: c.drop.unwrap_or_default(),
            ..Default::default()
        }),
        privileged: context.privileged.unwrap_or(false),
        namespace_options: Some(namespaces(pod)),
        selinux_options: context.se_linux_options.as_ref().map(selinux),
        run_as_user: number(context.run_as_user).or_else(|| match user {
            ImageUser::Id(id) => number(Some(*id)),
            ImageUser::Name(_) => None,
        }),
        run_as_group: number(context.run_as_group),
        run_as_username: match user {
            ImageUser::Name(name) if from_image => name.clone(),
            _ => String::new(),
        },
        readonly_rootfs: context.read_only_root_filesystem.unwrap_or(false),
        supplemental_groups: groups(pod),
        supplemental_groups_policy: groups_policy(pod),
        no_new_privs: context.allow_privilege_escalation == Some(false),
        masked_paths: paths(&MASKED),
        readonly_paths: paths(&READ_ONLY),
        seccomp: Some(seccomp(context.seccomp_profile.as_ref(), settings)?),
        apparmor,
        apparmor_profile: old_form,
        ..Default::default()
    })
}

/// Does any container of the pod run privileged? Its sandbox must then be so too.
fn any_privileged(pod: &Pod) -> bool {
    pods::places(pod)
        .filter_map(|(place, _)| pods::container_at(pod, place))
        .any(|c| c.security_context.and_then(|s| s.privileged).unwrap_or(false))
}

/// The security context of the sandbox; its own process always runs under the runtime's seccomp profile.
pub fn of_sandbox(pod: &Pod) -> v1::LinuxSandboxSecurityContext {
    let context = pod_context(pod);
    let number = |value: Option<i64>| value.map(|value| v1::Int64Value { value });
    v1::LinuxSandboxSecurityContext {
        namespace_options: Some(namespaces(pod)),
        selinux_options: context.se_linux_options.as_ref().map(selinux),
        run_as_user: number(context.run_as_user),
        run_as_group: number(context.run_as_group),
        supplemental_groups: groups(pod),
        supplemental_groups_policy: groups_policy(pod),
        privileged: any_privileged(pod),
        seccomp: Some(profile(v1::security_profile::ProfileType::RuntimeDefault, String::new())),
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(context: serde_json::Value, container: serde_json::Value) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec":
            {"securityContext": context, "containers": [{"name": "c", "securityContext": container}]}}))
        .unwrap()
    }

    #[test]
    fn the_containers_settings_go_over_the_pods() {
        let pod = pod(json!({"runAsUser": 1, "runAsGroup": 2, "fsGroup": 9}), json!({"runAsUser": 5}));
        let context = of_container(&pod, &pods::apps(&pod)[0], &ImageUser::Id(7), &Settings::default()).unwrap();
        assert_eq!(context.run_as_user.unwrap().value, 5);
        assert_eq!(context.run_as_group.unwrap().value, 2);
        assert_eq!(context.supplemental_groups, [9]);
        assert_eq!(context.readonly_paths.len(), 5);
    }

    #[test]
    fn a_container_that_must_not_be_root_is_refused_when_it_would_be() {
        let pod = pod(json!({"runAsNonRoot": true}), json!({}));
        let verify = |user| verify_non_root(&pod, &pods::apps(&pod)[0], &user);
        assert_eq!(
            verify(ImageUser::Id(0)).unwrap_err(),
            "container has runAsNonRoot and image will run as root (pod: \"p_n(u)\", container: c)"
        );
        assert!(verify(ImageUser::Name("nobody".into())).unwrap_err().contains("non-numeric user (nobody)"));
        assert_eq!(verify(ImageUser::Id(65534)), Ok(()));
    }
}

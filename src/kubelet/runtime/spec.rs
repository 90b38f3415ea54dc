//! A pod as the runtime's configuration: sandbox and containers. Pure.

use super::{labels, resources, security};
use crate::pods::expand::expand;
use crate::pods::files::Resolver;
use crate::pods::{self, Kind, Place};
use k8s_cri::v1;
use k8s_openapi::api::core::v1::{Container, ContainerPort, Pod};
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

/// Directory of a pod's logs: `<root>/<namespace>_<name>_<uid>`.
pub fn pod_log_dir(root: &Path, pod: &Pod) -> PathBuf {
    root.join(format!("{}_{}_{}", pods::namespace(pod), pods::name(pod), pods::uid(pod)))
}

/// A container's log below the pod's directory: `<container>/<restart count>.log`.
pub fn log_path(container: &str, restart_count: i32) -> String {
    format!("{container}/{restart_count}.log")
}

/// How often a container ran already, told by its log files: the count must not fall when the runtime forgets.
pub fn restart_count_from_logs(names: impl Iterator<Item = String>) -> i32 {
    names.filter_map(|name| name.split_once(".log")?.0.parse::<i32>().ok()).map(|count| count + 1).max().unwrap_or(0)
}

/// Everything about a sandbox that the pod alone does not tell.
pub struct SandboxParts<'a> {
    /// Which try it is.
    pub attempt: u32,
    /// The name that the kernel shows; the runtime takes the node's when the pod uses its network.
    pub host_name: String,
    /// The resolver.
    pub resolver: Resolver,
    /// Directory of all pods' logs.
    pub log_root: &'a Path,
    /// The pod's control group, in the driver's form.
    pub cgroup_parent: String,
    /// How limits are enforced.
    pub rules: &'a resources::Rules,
}

/// The sandbox of a pod.
pub fn sandbox(pod: &Pod, parts: SandboxParts<'_>) -> v1::PodSandboxConfig {
    let SandboxParts { attempt, host_name, resolver, log_root, cgroup_parent, rules } = parts;
    let context = pods::spec(pod).security_context.as_ref();
    let sysctls = context.and_then(|c| c.sysctls.as_ref()).into_iter().flatten();
    v1::PodSandboxConfig {
        metadata: Some(v1::PodSandboxMetadata {
            name: pods::name(pod).into(),
            uid: pods::uid(pod).into(),
            namespace: pods::namespace(pod).into(),
            attempt,
        }),
        hostname: if pods::host_network(pod) { String::new() } else { host_name },
        log_directory: pod_log_dir(log_root, pod).display().to_string(),
        dns_config: Some(v1::DnsConfig {
            servers: resolver.servers,
            searches: resolver.searches,
            options: resolver.options,
        }),
        port_mappings: port_mappings(pod),
        labels: labels::of_sandbox(pod),
        annotations: pod.metadata.annotations.clone().unwrap_or_default().into_iter().collect(),
        linux: Some(v1::LinuxPodSandboxConfig {
            cgroup_parent,
            security_context: Some(security::of_sandbox(pod)),
            sysctls: sysctls.map(|s| (s.name.clone(), s.value.clone())).collect(),
            overhead: Some(resources::overhead(rules, pod)),
            resources: Some(resources::of_pod(rules, pod)),
        }),
        ..Default::default()
    }
}

fn port_mappings(pod: &Pod) -> Vec<v1::PortMapping> {
    let sidecars = pods::inits(pod).iter().filter(|c| pods::is_sidecar(c));
    pods::apps(pod).iter().chain(sidecars).flat_map(container_ports).collect()
}

fn container_ports(container: &Container) -> Vec<v1::PortMapping> {
    let mut seen = HashSet::new();
    let fresh = |port: &&ContainerPort| {
        let ip = port.host_ip.as_deref().unwrap_or_default();
        let family = if ip.is_empty() {
            "any"
        } else if ip.contains(':') {
            "v6"
        } else {
            "v4"
        };
        let protocol = port.protocol.as_deref().unwrap_or("TCP");
        let anonymous = format!("{family}-{protocol}-{ip}:{}:{}", port.container_port, port.host_port.unwrap_or(0));
        seen.insert(port.name.clone().filter(|name| !name.is_empty()).unwrap_or(anonymous))
    };
    let mapping = |port: &ContainerPort| v1::PortMapping {
        protocol: match port.protocol.as_deref() {
            Some("UDP") => v1::Protocol::Udp as i32,
            Some("SCTP") => v1::Protocol::Sctp as i32,
            _ => v1::Protocol::Tcp as i32,
        },
        container_port: port.container_port,
        host_port: port.host_port.unwrap_or(0),
        host_ip: port.host_ip.clone().unwrap_or_default(),
    };
    container.ports.as_deref().unwrap_or_default().iter().filter(fresh).map(mapping).collect()
}

/// Everything about a container that the pod alone does not tell.
pub struct ContainerParts<'a> {
    /// Its place in the pod.
    pub place: Place,
    /// How often it ran before.
    pub restart_count: i32,
    /// The image by id or digest.
    pub image_ref: String,
    /// The user that the image names.
    pub image_user: security::ImageUser,
    /// Its environment.
    pub env: Vec<(String, String)>,
    /// Its mounts.
    pub mounts: Vec<v1::Mount>,
    /// For an ephemeral container: the container whose processes it looks at.
    pub target: Option<String>,
    /// Security settings of the node.
    pub security: &'a security::Settings,
    /// How limits are enforced.
    pub rules: &'a resources::Rules,
}

/// A container of a pod.
pub fn container(pod: &Pod, container: &Container, parts: ContainerParts<'_>) -> Result<v1::ContainerConfig, String> {
    let ContainerParts { place, restart_count, image_ref, image_user, env, mounts, target, security, rules } = parts;
    security::verify_non_root(pod, container, &image_user)?;
    let known: HashMap<&str, &str> = env.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let expanded = |list: &Option<Vec<String>>| -> Vec<String> {
        let lookup = |name: &str| known.get(name).map(|value| (*value).to_owned());
        list.iter().flatten().map(|text| expand(text, lookup)).collect()
    };
    let mut context = security::of_container(pod, container, &image_user, security)?;
    if let (Some(target), Some(options)) = (target, context.namespace_options.as_mut())
        && options.pid == v1::NamespaceMode::Container as i32
    {
        options.pid = v1::NamespaceMode::Target as i32;
        options.target_id = target;
    }
    debug_assert!(place.kind != Kind::Ephemeral || pods::ephemerals(pod).len() > place.index);
    Ok(v1::ContainerConfig {
        metadata: Some(v1::ContainerMetadata { name: container.name.clone(), attempt: restart_count as u32 }),
        image: Some(v1::ImageSpec {
            image: image_ref,
            user_specified_image: container.image.clone().unwrap_or_default(),
            ..Default::default()
        }),
        command: expanded(&container.command),
        args: expanded(&container.args),
        working_dir: container.working_dir.clone().unwrap_or_default(),
        mounts,
        labels: labels::of_container(pod, container),
        annotations: labels::annotations(pod, container, restart_count),
        log_path: log_path(&container.name, restart_count),
        stdin: container.stdin.unwrap_or(false),
        stdin_once: container.stdin_once.unwrap_or(false),
        tty: container.tty.unwrap_or(false),
        linux: Some(v1::LinuxContainerConfig {
            resources: Some(resources::of_container(rules, pod, container)),
            security_context: Some(context),
        }),
        envs: env.into_iter().map(|(key, value)| v1::KeyValue { key, value: value.into() }).collect(),
        ..Default::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_container_takes_environment_ports_and_names_from_its_pod() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "n", "uid": "u", "labels": {"app": "x"}},
            "spec": {"containers": [{"name": "c", "image": "i:1", "command": ["echo", "$(A)", "$(B)"],
                "ports": [{"containerPort": 80, "hostPort": 8080}, {"containerPort": 80, "hostPort": 8080}]}]}
        }))
        .unwrap();
        let parts = ContainerParts {
            place: Place { kind: Kind::App, index: 0 },
            restart_count: 2,
            image_ref: "sha256:1".into(),
            image_user: security::ImageUser::Id(0),
            env: vec![("A".into(), "1".into())],
            mounts: vec![],
            target: None,
            security: &Default::default(),
            rules: &Default::default(),
        };
        let config = container(&pod, &pods::apps(&pod)[0], parts).unwrap();
        assert_eq!(config.command, ["echo", "1", "$(B)"]);
        assert_eq!(config.log_path, "c/2.log");
        let sandbox = sandbox(
            &pod,
            SandboxParts {
                attempt: 1,
                host_name: "p".into(),
                resolver: Resolver::default(),
                log_root: Path::new("/var/log/pods"),
                cgroup_parent: "/kubepods/podu".into(),
                rules: &Default::default(),
            },
        );
        assert_eq!(sandbox.port_mappings.len(), 1);
        assert_eq!(sandbox.log_directory, "/var/log/pods/n_p_u");
        assert_eq!(sandbox.labels["app"], "x");
    }

    #[test]
    fn restart_count_never_falls_when_the_runtime_forgets() {
        let names = ["0.log", "3.log", "3.log.20240101-000000", "x.log"].map(str::to_owned);
        assert_eq!(restart_count_from_logs(names.into_iter()), 4);
        assert_eq!(restart_count_from_logs(std::iter::empty()), 0);
    }
}

//! The mounts of a container: its volumes, /etc/hosts, the file for its last words.

use super::context::Context;
use crate::pods::expand::{expand, missing};
use crate::pods::{self, files};
use crate::volumes::{Ready, pod_dir, subpath};
use k8s_cri::v1;
use k8s_openapi::api::core::v1::{Container, Pod, VolumeMount};
use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

const HOSTS: &str = "/etc/hosts";

/// What mounts are made from.
pub struct Parts<'a> {
    /// The pod's volumes.
    pub volumes: &'a HashMap<String, Ready>,
    /// The container's environment, for `subPathExpr`.
    pub env: &'a [(String, String)],
    /// The pod's addresses.
    pub pod_ips: &'a [String],
}

/// All mounts of a container.
pub fn all(ctx: &Context, pod: &Pod, container: &Container, parts: &Parts<'_>) -> Result<Vec<v1::Mount>, String> {
    let dir = pod_dir(ctx.volumes.root(), pods::uid(pod));
    let mut mounts = Vec::new();
    let list = container.volume_mounts.as_deref().unwrap_or_default();
    for (index, mount) in list.iter().enumerate() {
        mounts.push(one(&dir, container, index, mount, parts)?);
    }
    let own_hosts = list.iter().any(|mount| mount.mount_path == HOSTS);
    if !own_hosts && (pods::host_network(pod) || !parts.pod_ips.is_empty()) {
        mounts.push(hosts(ctx, &dir, pod, parts.pod_ips)?);
    }
    if let Some(path) = container.termination_message_path.as_deref().filter(|path| !path.is_empty()) {
        mounts.push(last_words(&dir, container, path)?);
    }
    Ok(mounts)
}

fn one(
    dir: &Path, container: &Container, index: usize, mount: &VolumeMount, parts: &Parts<'_>,
) -> Result<v1::Mount, String> {
    let volume = parts
        .volumes
        .get(&mount.name)
        .ok_or_else(|| format!("cannot find volume {:?} to mount into container {:?}", mount.name, container.name))?;
    let sub = sub_path(mount, parts.env)?;
    let host_path = match sub.as_str() {
        "" => volume.path.clone(),
        sub => {
            let place = subpath::Place { pod_dir: dir, volume: &mount.name, container: &container.name, index };
            subpath::prepare(&volume.path, Path::new(sub), &place).map_err(|error| {
                // The error may tell about the node's files: the pod's owner hears only that it failed.
                tracing::warn!(volume = mount.name, container = container.name, %error, "can't prepare a subPath");
                format!("failed to prepare subPath for volumeMount {:?} of container {:?}", mount.name, container.name)
            })?
        }
    };
    let propagation = match mount.mount_propagation.as_deref() {
        None | Some("None") => v1::MountPropagation::PropagationPrivate,
        Some("HostToContainer") => v1::MountPropagation::PropagationHostToContainer,
        Some("Bidirectional") => v1::MountPropagation::PropagationBidirectional,
        Some(other) => return Err(format!("invalid MountPropagation mode: {other:?}")),
    };
    if mount.recursive_read_only.as_deref() == Some("Enabled") {
        return Err(
            "failed to resolve recursive read-only mode: recursive read-only mount is not supported by the runtime"
                .into(),
        );
    }
    Ok(v1::Mount {
        container_path: absolute(&mount.mount_path),
        host_path: host_path.display().to_string(),
        readonly: volume.read_only || mount.read_only == Some(true),
        propagation: propagation as i32,
        ..Default::default()
    })
}

fn absolute(path: &str) -> String {
    if path.starts_with('/') { path.to_owned() } else { format!("/{path}") }
}

fn sub_path(mount: &VolumeMount, env: &[(String, String)]) -> Result<String, String> {
    let mut path = mount.sub_path.clone().unwrap_or_default();
    if let Some(expression) = mount.sub_path_expr.as_deref().filter(|text| !text.is_empty()) {
        let lookup = |name: &str| env.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone());
        let unknown = missing(expression, lookup);
        if !unknown.is_empty() {
            return Err(format!("missing value for {}", unknown.join(", ")));
        }
        path = expand(expression, lookup);
    }
    if path.starts_with('/') {
        return Err(format!("error SubPath `{path}` must not be an absolute path"));
    }
    if Path::new(&path).components().any(|part| part == Component::ParentDir) {
        return Err(format!("unable to provision SubPath `{path}`: must not contain '..'"));
    }
    Ok(path)
}

/// Writes a file so that a running container that has it mounted sees the change: in place.
fn write(path: &Path, text: &str, mode: u32) -> io::Result<()> {
    fs::write(path, text)?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

fn hosts(ctx: &Context, dir: &Path, pod: &Pod, pod_ips: &[String]) -> Result<v1::Mount, String> {
    let aliases = pods::spec(pod).host_aliases.as_deref().unwrap_or_default();
    let text = match pods::host_network(pod) {
        true => files::node_hosts(&fs::read_to_string(HOSTS).map_err(|e| format!("{HOSTS}: {e}"))?, aliases),
        false => {
            let (host, domain) = files::host_name(pod, &ctx.dns.cluster_domain)?;
            files::managed_hosts(pod_ips, &host, &domain, aliases)
        }
    };
    let path = dir.join("etc-hosts");
    write(&path, &text, 0o644).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(v1::Mount {
        container_path: HOSTS.into(),
        host_path: path.display().to_string(),
        selinux_relabel: false,
        ..Default::default()
    })
}

fn last_words(dir: &Path, container: &Container, container_path: &str) -> Result<v1::Mount, String> {
    let own = dir.join("containers").join(&container.name);
    let path: PathBuf = own.join(format!("{:08x}", rand::random::<u32>()));
    fs::create_dir_all(&own)
        .and_then(|()| write(&path, "", 0o666))
        .map_err(|error| format!("can't make the termination log {}: {error}", path.display()))?;
    Ok(v1::Mount {
        container_path: absolute(container_path),
        host_path: path.display().to_string(),
        ..Default::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn run(mount: serde_json::Value) -> Result<String, String> {
        sub_path(&serde_json::from_value(mount).unwrap(), &[("POD".into(), "p1".into())])
    }

    #[test]
    fn sub_paths_expand_and_stay_inside() {
        assert_eq!(run(json!({"name": "v", "mountPath": "/m", "subPathExpr": "x/$(POD)"})).unwrap(), "x/p1");
        assert!(run(json!({"name": "v", "mountPath": "/m", "subPathExpr": "$(NO)"})).is_err());
        assert!(run(json!({"name": "v", "mountPath": "/m", "subPath": "/etc"})).is_err());
        assert!(run(json!({"name": "v", "mountPath": "/m", "subPath": "a/../../b"})).is_err());
    }
}

//! Volumes: where each volume of a pod lies on the node, and what is in it.
//!
//! A pod's worker calls [`Volumes::setup`] before containers start and again from time to time; it is idempotent and
//! brings changed ConfigMaps, Secrets, labels and tokens into the files. [`Volumes::teardown`] undoes everything.
//! The layout below the kubelet's directory is upstream's.

pub mod atomic;
pub mod host_path;
pub mod mounts;
pub mod ownership;
pub mod payload;
pub mod subpath;

use crate::objects::Objects;
use crate::pods::downward::Surroundings;
use crate::pods::{self};
use crate::units::value;
use k8s_openapi::api::core::v1::{EmptyDirVolumeSource, Pod, Volume};
use payload::{Found, Gather, Payload};
use std::collections::HashMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A volume that is ready for use.
#[derive(Clone, Debug, PartialEq)]
pub struct Ready {
    /// Where it lies on the node.
    pub path: PathBuf,
    /// May containers only read it?
    pub read_only: bool,
}

/// Volumes that could not be made ready: name and why, in the words of the event.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.iter().map(|(name, why)| format!("MountVolume.SetUp failed for volume {name:?} : {why}")).collect::<Vec<_>>().join("; "))]
pub struct SetupError(pub Vec<(String, String)>);

/// Makes volumes below the kubelet's directory.
pub struct Volumes {
    root: PathBuf,
    objects: Arc<Objects>,
}

/// The directory of a pod.
pub fn pod_dir(root: &Path, uid: &str) -> PathBuf {
    root.join("pods").join(uid)
}

/// The kinds of volumes that this kubelet makes.
enum Source<'a> {
    EmptyDir(&'a EmptyDirVolumeSource),
    HostPath(&'a k8s_openapi::api::core::v1::HostPathVolumeSource),
    /// Files of objects: the plugin's directory name, whether the files are kept in memory, the default mode.
    Files {
        plugin: &'static str,
        memory: bool,
        mode: u32,
    },
    /// A claim that is bound to a directory of this node.
    Claim(&'a str),
    Unsupported,
}

fn source(volume: &Volume) -> Source<'_> {
    let mode = |mode: Option<i32>| mode.unwrap_or(0o644) as u32;
    if let Some(empty) = &volume.empty_dir {
        Source::EmptyDir(empty)
    } else if let Some(host) = &volume.host_path {
        Source::HostPath(host)
    } else if let Some(map) = &volume.config_map {
        Source::Files { plugin: "configmap", memory: false, mode: mode(map.default_mode) }
    } else if let Some(secret) = &volume.secret {
        Source::Files { plugin: "secret", memory: true, mode: mode(secret.default_mode) }
    } else if let Some(projected) = &volume.projected {
        Source::Files { plugin: "projected", memory: true, mode: mode(projected.default_mode) }
    } else if let Some(downward) = &volume.downward_api {
        Source::Files { plugin: "downward-api", memory: true, mode: mode(downward.default_mode) }
    } else if let Some(claim) = &volume.persistent_volume_claim {
        Source::Claim(&claim.claim_name)
    } else {
        Source::Unsupported
    }
}

impl Volumes {
    /// Volumes below `root`, with objects from `objects`.
    pub fn new(root: PathBuf, objects: Arc<Objects>) -> Self {
        Self { root, objects }
    }

    /// The kubelet's directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    fn volume_dir(&self, pod: &Pod, plugin: &str, name: &str) -> PathBuf {
        pod_dir(&self.root, pods::uid(pod)).join("volumes").join(format!("kubernetes.io~{plugin}")).join(name)
    }

    /// Makes every volume of the pod ready, or says which ones are not.
    pub async fn setup(&self, pod: &Pod, around: &Surroundings) -> Result<HashMap<String, Ready>, SetupError> {
        let (mut ready, mut failed) = (HashMap::new(), Vec::new());
        for volume in pods::spec(pod).volumes.as_deref().unwrap_or_default() {
            // Image volumes need a newer runtime than the ones met so far; they are mounted by the runtime itself.
            match self.setup_one(pod, volume, around).await {
                Ok(one) => drop(ready.insert(volume.name.clone(), one)),
                Err(why) => failed.push((volume.name.clone(), why)),
            }
        }
        if failed.is_empty() { Ok(ready) } else { Err(SetupError(failed)) }
    }

    async fn setup_one(&self, pod: &Pod, volume: &Volume, around: &Surroundings) -> Result<Ready, String> {
        match source(volume) {
            Source::EmptyDir(empty) => self.empty_dir(pod, &volume.name, empty),
            Source::HostPath(host) => {
                host_path::check(Path::new(&host.path), host.type_.as_deref().unwrap_or_default())?;
                Ok(Ready { path: host.path.clone().into(), read_only: false })
            }
            Source::Files { plugin, memory, mode } => {
                let dir = self.volume_dir(pod, plugin, &volume.name);
                let gather = self.gather(pod, volume).await?;
                let payload = payload::build(pod, volume, mode, &gather, around)?;
                self.write_files(pod, &dir, memory, &payload)?;
                Ok(Ready { path: dir, read_only: true })
            }
            Source::Claim(name) => self.claim(pod, name).await,
            Source::Unsupported => Err(format!("no volume plugin matched for volume {:?}", volume.name)),
        }
    }

    fn empty_dir(&self, pod: &Pod, name: &str, empty: &EmptyDirVolumeSource) -> Result<Ready, String> {
        let dir = self.volume_dir(pod, "empty-dir", name);
        make_dir(&dir, 0o777)?;
        let medium = empty.medium.as_deref().unwrap_or_default();
        if !medium.is_empty() && !mounts::is_mount_point(&dir) {
            let mounted = match medium {
                "Memory" => mounts::tmpfs(&dir, empty.size_limit.as_ref().map(value)),
                _ => match medium.strip_prefix("HugePages") {
                    Some(size) => mounts::huge_pages(&dir, size.trim_start_matches('-')),
                    None => return Err(format!("unknown storage medium {medium:?}")),
                },
            };
            mounted.map_err(|error| format!("can't mount {medium} at {}: {error}", dir.display()))?;
            // The mounted file system has a root of its own.
            set_mode(&dir, 0o777)?;
        }
        // Once only: what is in it afterwards is the pod's own business.
        let done = self.mark(pod, name);
        if !done.exists() {
            let fault = |error: std::io::Error| format!("can't set the group of {}: {error}", dir.display());
            ownership::apply(pod, &dir, false).map_err(fault)?;
            done.parent()
                .map_or(Ok(()), std::fs::create_dir_all)
                .and_then(|()| std::fs::write(&done, ""))
                .map_err(fault)?;
        }
        Ok(Ready { path: dir, read_only: false })
    }

    /// The file that says that a volume has been set up for good.
    fn mark(&self, pod: &Pod, name: &str) -> PathBuf {
        pod_dir(&self.root, pods::uid(pod)).join("plugins/kubernetes.io~empty-dir").join(name).join("ready")
    }

    fn write_files(&self, pod: &Pod, dir: &Path, memory: bool, payload: &Payload) -> Result<(), String> {
        make_dir(dir, 0o777)?;
        if memory && !mounts::is_mount_point(dir) {
            mounts::tmpfs(dir, None).map_err(|error| format!("can't mount tmpfs at {}: {error}", dir.display()))?;
            set_mode(dir, 0o777)?;
        }
        let owner = |new: &Path| ownership::apply_to_files(pod, new);
        let changed = atomic::write(dir, payload, owner).map_err(|e| format!("can't write {}: {e}", dir.display()))?;
        if changed {
            ownership::apply_root(pod, dir).map_err(|e| format!("can't set the group of {}: {e}", dir.display()))?;
        }
        Ok(())
    }

    /// Fetches the objects that a volume of files shows.
    async fn gather(&self, pod: &Pod, volume: &Volume) -> Result<Gather, String> {
        let namespace = pods::namespace(pod);
        let mut gather = Gather::default();
        let needs = payload::references(volume);
        for name in needs.config_maps {
            let found: Found<_> = self.objects.config_map(namespace, &name).await?;
            gather.config_maps.insert(name, found);
        }
        for name in needs.secrets {
            let found: Found<_> = self.objects.secret(namespace, &name).await?;
            gather.secrets.insert(name, found);
        }
        for (path, wish) in needs.tokens {
            gather.tokens.insert(path, self.objects.token(pod, &wish).await?);
        }
        Ok(gather)
    }

    /// A claim bound to a hostPath or local volume; other kinds need drivers that are not here.
    async fn claim(&self, pod: &Pod, name: &str) -> Result<Ready, String> {
        let volume = self.objects.bound_volume(pods::namespace(pod), name).await?;
        let spec = volume.spec.unwrap_or_default();
        let path = if let Some(host) = &spec.host_path {
            host_path::check(Path::new(&host.path), host.type_.as_deref().unwrap_or_default())?;
            host.path.clone()
        } else if let Some(local) = &spec.local {
            host_path::check(Path::new(&local.path), "Directory")?;
            local.path.clone()
        } else {
            let name = volume.metadata.name.unwrap_or_default();
            return Err(format!("no volume plugin matched for persistent volume {name:?}"));
        };
        Ok(Ready { path: path.into(), read_only: false })
    }

    /// When a token of the pod wants to be written anew, if any does.
    pub fn next_refresh(&self, pod: &Pod) -> Option<jiff::Timestamp> {
        self.objects.next_token_refresh(pods::uid(pod))
    }

    /// Unmounts and removes all that belongs to the pod: its volumes and then its directory.
    pub fn teardown(&self, uid: &str) -> std::io::Result<()> {
        let dir = pod_dir(&self.root, uid);
        if !dir.exists() {
            return Ok(());
        }
        mounts::unmount_below(&dir)?;
        std::fs::remove_dir_all(&dir)
    }
}

fn make_dir(dir: &Path, mode: u32) -> Result<(), String> {
    if dir.is_dir() {
        return Ok(());
    }
    std::fs::create_dir_all(dir).map_err(|error| format!("can't make {}: {error}", dir.display()))?;
    set_mode(dir, mode)
}

fn set_mode(dir: &Path, mode: u32) -> Result<(), String> {
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(mode))
        .map_err(|error| format!("can't set the mode of {}: {error}", dir.display()))
}

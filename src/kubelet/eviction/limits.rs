//! Local storage beyond a limit: of an emptyDir, of a pod, of a container.

use super::disk_use;
use crate::pods::qos::{Side, totals};
use crate::pods::{self, apps, inits};
use crate::runtime::cri::Cri;
use crate::runtime::labels::{CONTAINER_NAME, POD_UID};
use crate::units::{from_bytes, milli, value};
use k8s_openapi::api::core::v1::Pod;
use std::collections::BTreeMap;
use std::path::Path;

const STORAGE: &str = "ephemeral-storage";

/// What a pod has written, in bytes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Written {
    /// By each emptyDir on disk.
    pub empty_dirs: BTreeMap<String, u64>,
    /// By each container: its layer and its log.
    pub containers: BTreeMap<String, u64>,
}

/// Does anything limit what the pod writes?
pub fn limited(pod: &Pod) -> bool {
    pods::spec(pod).volumes.iter().flatten().any(|v| v.empty_dir.as_ref().is_some_and(|dir| dir.size_limit.is_some()))
        || limits_storage(pod)
}

/// Do limits of its containers or its own limit what the pod writes?
pub fn limits_storage(pod: &Pod) -> bool {
    totals(pod, Side::Limits, false).contains_key(STORAGE)
}

/// Why a pod must go that has written more than it may, in upstream's words and order.
pub fn exceeded(pod: &Pod, written: &Written) -> Option<String> {
    empty_dir(pod, written).or_else(|| whole_pod(pod, written)).or_else(|| container(pod, written))
}

fn empty_dir(pod: &Pod, written: &Written) -> Option<String> {
    pods::spec(pod).volumes.iter().flatten().find_map(|volume| {
        let limit = volume.empty_dir.as_ref()?.size_limit.as_ref().filter(|limit| milli(limit) > 0)?;
        let used = *written.empty_dirs.get(&volume.name)?;
        (used > value(limit) as u64)
            .then(|| format!("Usage of EmptyDir volume {:?} exceeds the limit {:?}. ", volume.name, limit.0))
    })
}

fn whole_pod(pod: &Pod, written: &Written) -> Option<String> {
    let limit = totals(pod, Side::Limits, false).get(STORAGE)? / 1000;
    let used: u64 = written.empty_dirs.values().chain(written.containers.values()).sum();
    (used > limit as u64).then(|| {
        let limit = from_bytes(limit).0;
        format!("Pod ephemeral local storage usage exceeds the total limit of containers {limit}. ")
    })
}

fn container(pod: &Pod, written: &Written) -> Option<String> {
    apps(pod).iter().find_map(|container| {
        let limits = container.resources.as_ref()?.limits.as_ref()?;
        let limit = limits.get(STORAGE).filter(|limit| value(limit) != 0)?;
        let used = *written.containers.get(&container.name)?;
        (used > value(limit) as u64)
            .then(|| format!("Container {} exceeded its local ephemeral storage limit {:?}. ", container.name, limit.0))
    })
}

/// What each emptyDir on disk holds.
pub fn empty_dirs(pod: &Pod, pod_dir: &Path) -> BTreeMap<String, u64> {
    let root = pod_dir.join("volumes/kubernetes.io~empty-dir");
    let dirs = pods::spec(pod).volumes.iter().flatten().filter(|volume| volume.empty_dir.is_some());
    dirs.map(|volume| (volume.name.clone(), disk_use(&root.join(&volume.name)))).collect()
}

/// What the layers of all containers hold, by pod and container.
///
/// # Errors
/// What the runtime says.
pub async fn layers(cri: &Cri) -> crate::runtime::cri::Result<BTreeMap<(String, String), u64>> {
    let mut layers = BTreeMap::new();
    for stats in cri.container_stats().await? {
        let Some(attributes) = stats.attributes else { continue };
        let label = |key: &str| attributes.labels.get(key).cloned().unwrap_or_default();
        let used = stats.writable_layer.and_then(|layer| layer.used_bytes).map_or(0, |bytes| bytes.value);
        *layers.entry((label(POD_UID), label(CONTAINER_NAME))).or_default() += used;
    }
    Ok(layers)
}

/// What each container has written: its layer, and the logs below the pod's directory of logs.
pub fn containers(pod: &Pod, layers: &BTreeMap<(String, String), u64>, logs: &Path) -> BTreeMap<String, u64> {
    let of = |name: &str| {
        let layer = layers.get(&(pods::uid(pod).to_owned(), name.to_owned())).copied().unwrap_or_default();
        layer + disk_use(&logs.join(name))
    };
    inits(pod).iter().chain(apps(pod)).map(|container| (container.name.clone(), of(&container.name))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod() -> Pod {
        serde_json::from_value(serde_json::json!({
            "spec": {
                "volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1Mi"}}, {"name": "w", "emptyDir": {}}],
                "containers": [
                    {"name": "a", "resources": {"limits": {"ephemeral-storage": "2Mi"}}},
                    {"name": "b", "resources": {"limits": {"ephemeral-storage": "1Mi"}}},
                ],
            },
        }))
        .unwrap()
    }

    fn written(v: u64, w: u64, a: u64, b: u64) -> Written {
        let map = |pairs: [(&str, u64); 2]| pairs.map(|(name, bytes)| (name.to_owned(), bytes)).into();
        Written { empty_dirs: map([("v", v), ("w", w)]), containers: map([("a", a), ("b", b)]) }
    }

    #[test]
    fn volumes_then_the_pod_then_containers_are_held_to_their_limits() {
        const MI: u64 = 1 << 20;
        assert_eq!(exceeded(&pod(), &written(MI, MI, MI, 0)), None);
        let told = |written| exceeded(&pod(), &written).unwrap();
        assert_eq!(told(written(MI + 1, 0, 0, 0)), "Usage of EmptyDir volume \"v\" exceeds the limit \"1Mi\". ");
        let total = "Pod ephemeral local storage usage exceeds the total limit of containers 3Mi. ";
        assert_eq!(told(written(MI, MI, MI, 1)), total);
        assert_eq!(told(written(0, 0, 0, MI + 1)), "Container b exceeded its local ephemeral storage limit \"1Mi\". ");
    }

    #[test]
    fn a_pod_without_limits_is_not_looked_at() {
        assert!(limited(&pod()));
        assert!(!limited(&Pod::default()));
    }
}

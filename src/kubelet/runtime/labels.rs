//! Labels and annotations on containers and sandboxes: the kubelet's memory across its own restarts.
//!
//! Keys, values and the spec's hash are upstream's, so that either kubelet takes over the other's containers untouched.

use crate::pods;
use k8s_openapi::api::core::v1::{Container, ContainerPort, LifecycleHandler, Pod};
use std::collections::HashMap;

/// Label: the pod's name.
pub const POD_NAME: &str = "io.kubernetes.pod.name";
/// Label: the pod's namespace.
pub const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
/// Label: the pod's UID.
pub const POD_UID: &str = "io.kubernetes.pod.uid";
/// Label: the container's name.
pub const CONTAINER_NAME: &str = "io.kubernetes.container.name";

const HASH: &str = "io.kubernetes.container.hash";
const RESTART_COUNT: &str = "io.kubernetes.container.restartCount";
const TERMINATION_PATH: &str = "io.kubernetes.container.terminationMessagePath";
const TERMINATION_POLICY: &str = "io.kubernetes.container.terminationMessagePolicy";
const PRE_STOP: &str = "io.kubernetes.container.preStopHandler";
const PORTS: &str = "io.kubernetes.container.ports";
const DELETION_GRACE: &str = "io.kubernetes.pod.deletionGracePeriod";
const TERMINATION_GRACE: &str = "io.kubernetes.pod.terminationGracePeriod";

/// Labels of a sandbox: the pod's own and its identity.
pub fn of_sandbox(pod: &Pod) -> HashMap<String, String> {
    let mut labels: HashMap<_, _> = pod.metadata.labels.clone().unwrap_or_default().into_iter().collect();
    labels.extend(identity(pod));
    labels
}

/// Labels of a container.
pub fn of_container(pod: &Pod, container: &Container) -> HashMap<String, String> {
    let mut labels: HashMap<_, _> = identity(pod).into();
    labels.insert(CONTAINER_NAME.into(), container.name.clone());
    labels
}

fn identity(pod: &Pod) -> [(String, String); 3] {
    [
        (POD_NAME.into(), pods::name(pod).into()),
        (POD_NAMESPACE.into(), pods::namespace(pod).into()),
        (POD_UID.into(), pods::uid(pod).into()),
    ]
}

/// Annotations of a container.
pub fn annotations(pod: &Pod, container: &Container, restart_count: i32) -> HashMap<String, String> {
    let mut notes: HashMap<String, String> = HashMap::from([
        (HASH.into(), format!("{:x}", hash(container))),
        (RESTART_COUNT.into(), restart_count.to_string()),
        (TERMINATION_PATH.into(), container.termination_message_path.clone().unwrap_or_default()),
        (TERMINATION_POLICY.into(), container.termination_message_policy.clone().unwrap_or_default()),
    ]);
    if let Some(grace) = pod.metadata.deletion_grace_period_seconds {
        notes.insert(DELETION_GRACE.into(), grace.to_string());
    }
    if let Some(grace) = pods::spec(pod).termination_grace_period_seconds {
        notes.insert(TERMINATION_GRACE.into(), grace.to_string());
    }
    if let Some(hook) = container.lifecycle.as_ref().and_then(|l| l.pre_stop.as_ref())
        && let Ok(text) = serde_json::to_string(hook)
    {
        notes.insert(PRE_STOP.into(), text);
    }
    if let Some(ports) = container.ports.as_ref().filter(|ports| !ports.is_empty())
        && let Ok(text) = serde_json::to_string(ports)
    {
        notes.insert(PORTS.into(), text);
    }
    notes
}

/// What a container's annotations tell: enough to count on and to stop it when its pod is no longer known.
#[derive(Clone, Debug, Default)]
pub struct Notes {
    /// Hash of the spec.
    pub hash: u64,
    /// How often the name ran before.
    pub restart_count: i32,
    /// Where the termination message is written.
    pub termination_path: String,
    /// `File` or `FallbackToLogsOnError`.
    pub termination_policy: String,
    /// Grace period that the deletion asked for.
    pub deletion_grace: Option<i64>,
    /// Grace period of the spec.
    pub termination_grace: Option<i64>,
    /// Hook to run before the stop.
    pub pre_stop: Option<LifecycleHandler>,
    /// Ports, which a hook may name.
    pub ports: Option<Vec<ContainerPort>>,
}

impl Notes {
    /// Reads the annotations; what is missing or unreadable stays empty.
    pub fn read(notes: &HashMap<String, String>) -> Self {
        let text = |key: &str| notes.get(key).cloned().unwrap_or_default();
        let number = |key: &str| notes.get(key).and_then(|value| value.parse::<i64>().ok());
        Self {
            hash: u64::from_str_radix(&text(HASH), 16).unwrap_or(0),
            restart_count: number(RESTART_COUNT).unwrap_or(0) as i32,
            termination_path: text(TERMINATION_PATH),
            termination_policy: text(TERMINATION_POLICY),
            deletion_grace: number(DELETION_GRACE),
            termination_grace: number(TERMINATION_GRACE),
            pre_stop: notes.get(PRE_STOP).and_then(|text| serde_json::from_str(text).ok()),
            ports: notes.get(PORTS).and_then(|text| serde_json::from_str(text).ok()),
        }
    }
}

/// Hash of what makes a running container outdated when it changes: its name and its image.
///
/// The form is upstream's (FNV-1a of 32 bits over Go's print of the JSON's bytes), and its tests pin the values.
pub fn hash(container: &Container) -> u64 {
    let picked = serde_json::json!({"image": container.image.as_deref().unwrap_or_default(), "name": container.name});
    let bytes: Vec<String> = picked.to_string().bytes().map(|byte| byte.to_string()).collect();
    let printed = format!("([]uint8)[{}]", bytes.join(" "));
    printed.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_upstreams_so_that_a_swap_of_kubelets_restarts_nothing() {
        let container =
            |name: &str, image: &str| Container { name: name.into(), image: Some(image.into()), ..Default::default() };
        assert_eq!(hash(&container("test_container", "foo/image:v1")), 0x8e45cbd0);
        assert_eq!(hash(&container("foo", "bar")), 0x11a6d6d6);
    }

    #[test]
    fn annotations_come_back_as_written() {
        let pod: Pod = serde_json::from_value(serde_json::json!({"spec": {"terminationGracePeriodSeconds": 7,
            "containers": [{"name": "c", "lifecycle": {"preStop": {"sleep": {"seconds": 1}}}}]}}))
        .unwrap();
        let notes = Notes::read(&annotations(&pod, &pods::apps(&pod)[0], 3));
        assert_eq!((notes.restart_count, notes.termination_grace, notes.deletion_grace), (3, Some(7), None));
        assert_eq!(notes.pre_stop.unwrap().sleep.unwrap().seconds, 1);
    }
}

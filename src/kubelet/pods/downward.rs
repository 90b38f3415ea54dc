//! The downward API: fields and resources of the pod as text, for environment variables and files.

use super::{name, namespace, spec, uid};
use crate::units::{ResourceList, milli, milli_of, parse_milli};
use k8s_openapi::api::core::v1::{Container, Pod, ResourceFieldSelector};
use std::collections::BTreeMap;

/// What the spec does not say: addresses and the node's allocatable resources.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Surroundings {
    /// The pod's addresses, the first one first.
    pub pod_ips: Vec<String>,
    /// The node's addresses.
    pub host_ips: Vec<String>,
    /// The node's allocatable resources, which stand in for missing limits.
    pub allocatable: ResourceList,
}

/// The value of a pod field, `metadata.labels['x']` form included.
pub fn field(pod: &Pod, path: &str, around: &Surroundings) -> Result<String, String> {
    if let Some((list, key)) = subscript(path) {
        return match list {
            "metadata.annotations" => Ok(look_up(pod.metadata.annotations.as_ref(), key)),
            "metadata.labels" => Ok(look_up(pod.metadata.labels.as_ref(), key)),
            _ => Err(format!("field label does not support subscript: {path}")),
        };
    }
    Ok(match path {
        "metadata.annotations" => map_lines(pod.metadata.annotations.as_ref()),
        "metadata.labels" => map_lines(pod.metadata.labels.as_ref()),
        "metadata.name" => name(pod).into(),
        "metadata.namespace" => namespace(pod).into(),
        "metadata.uid" => uid(pod).into(),
        "spec.nodeName" | "spec.host" => spec(pod).node_name.clone().unwrap_or_default(),
        "spec.serviceAccountName" => spec(pod).service_account_name.clone().unwrap_or_default(),
        "status.hostIP" => around.host_ips.first().cloned().unwrap_or_default(),
        "status.hostIPs" => around.host_ips.join(","),
        "status.podIP" => around.pod_ips.first().cloned().unwrap_or_default(),
        "status.podIPs" => around.pod_ips.join(","),
        "spec.restartPolicy" | "spec.schedulerName" | "status.phase" => {
            return Err(format!("unsupported fieldPath: {path}"));
        }
        _ => return Err(format!("field label not supported: {path}")),
    })
}

fn subscript(path: &str) -> Option<(&str, &str)> {
    let (list, key) = path.strip_suffix("']")?.split_once("['")?;
    (!list.is_empty()).then_some((list, key))
}

fn look_up(map: Option<&BTreeMap<String, String>>, key: &str) -> String {
    map.and_then(|map| map.get(key)).cloned().unwrap_or_default()
}

/// `key="value"` lines in order of the keys, values quoted as Go quotes them.
fn map_lines(map: Option<&BTreeMap<String, String>>) -> String {
    let lines: Vec<String> =
        map.into_iter().flatten().map(|(key, value)| format!("{key}={}", api::field::quote(value))).collect();
    lines.join("\n")
}

/// The value of a container's resource in units of the divisor, rounded up.
pub fn resource(
    pod: &Pod, container: &Container, selector: &ResourceFieldSelector, around: &Surroundings,
) -> Result<String, String> {
    let path = selector.resource.as_str();
    let unsupported = || format!("unsupported container resource : {path}");
    let (side, resource) = path.split_once('.').ok_or_else(unsupported)?;
    let known = matches!(resource, "cpu" | "memory" | "ephemeral-storage") || resource.starts_with("hugepages-");
    let own = container.resources.as_ref();
    let amount = match side {
        "requests" if known => milli_of(own.and_then(|r| r.requests.as_ref()), resource).unwrap_or(0),
        "limits" if known => {
            let limit = milli_of(own.and_then(|r| r.limits.as_ref()), resource).filter(|limit| *limit != 0);
            limit.unwrap_or_else(|| allocatable(pod, resource, around))
        }
        _ => return Err(unsupported()),
    };
    let divisor = selector.divisor.as_ref().and_then(|divisor| parse_milli(&divisor.0)).filter(|divisor| *divisor > 0);
    let divisor = divisor.unwrap_or(1000);
    // Everything but cpu counts whole units on both sides.
    let (amount, divisor) = match resource {
        "cpu" => (amount as i128, divisor),
        _ => (amount as i128 / 1000, (divisor + 999) / 1000),
    };
    Ok(((amount + divisor - 1) / divisor).to_string())
}

/// What stands in for a missing limit: the pod-level limit, else the node's allocatable.
fn allocatable(pod: &Pod, resource: &str, around: &Surroundings) -> i64 {
    let pod_level = spec(pod).resources.as_ref().and_then(|r| r.limits.as_ref());
    let own = milli_of(pod_level, resource).filter(|limit| *limit != 0);
    own.unwrap_or_else(|| around.allocatable.get(resource).map(milli).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
    use serde_json::json;

    fn pod() -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "n", "uid": "u", "labels": {"b": "2", "a": "x \"y\""}},
            "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1500m", "memory": "65Mi"}}}]}
        }))
        .unwrap()
    }

    #[test]
    fn fields_read_as_text() {
        let around = Surroundings { pod_ips: vec!["10.0.0.1".into()], ..Default::default() };
        let get = |path| field(&pod(), path, &around);
        assert_eq!(get("metadata.labels").unwrap(), "a=\"x \\\"y\\\"\"\nb=\"2\"");
        assert_eq!(get("metadata.labels['b']").unwrap(), "2");
        assert_eq!(get("metadata.labels['none']").unwrap(), "");
        assert_eq!(get("status.podIP").unwrap(), "10.0.0.1");
        assert_eq!(get("spec.nope").unwrap_err(), "field label not supported: spec.nope");
    }

    #[test]
    fn downward_cpu_and_memory_round_up() {
        let around = Surroundings {
            allocatable: [("cpu".to_owned(), Quantity("4".into())), ("memory".to_owned(), Quantity("1Gi".into()))]
                .into(),
            ..Default::default()
        };
        let pod = pod();
        let get = |path: &str, divisor: &str| {
            let selector = ResourceFieldSelector {
                resource: path.into(),
                divisor: (!divisor.is_empty()).then(|| Quantity(divisor.into())),
                ..Default::default()
            };
            resource(&pod, &super::super::apps(&pod)[0], &selector, &around)
        };
        assert_eq!(get("requests.cpu", "").unwrap(), "2");
        assert_eq!(get("requests.cpu", "1m").unwrap(), "1500");
        assert_eq!(get("requests.memory", "1Gi").unwrap(), "1");
        assert_eq!(get("requests.memory", "1Mi").unwrap(), "65");
        assert_eq!(get("limits.cpu", "").unwrap(), "4");
        assert_eq!(get("limits.memory", "0").unwrap(), "1073741824");
        assert!(get("limits.nope", "").is_err());
    }
}

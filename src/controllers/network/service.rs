//! What the controllers of Services share: which pods belong, on which port they listen, and when the last change began.

use crate::common::pods;
use api::selector::LabelSelector;
use client::{Informer, Key, Queue};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod, Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

/// Annotation with the time of the first change that a write answers to.
pub(super) const ENDPOINTS_TRIGGER: &str = "endpoints.kubernetes.io/last-change-trigger-time";
/// Label of what belongs to a headless Service.
pub(super) const HEADLESS: &str = "service.kubernetes.io/headless";

pub(super) fn spec(service: &Service) -> &ServiceSpec {
    static EMPTY: std::sync::LazyLock<ServiceSpec> = std::sync::LazyLock::new(ServiceSpec::default);
    service.spec.as_ref().unwrap_or(&EMPTY)
}

/// The Service's selector, if its endpoints are to be computed: external names and Services without one have others who
/// know.
pub(super) fn selector(service: &Service) -> Option<LabelSelector> {
    let spec = spec(service);
    if spec.type_.as_deref() == Some("ExternalName") {
        return None;
    }
    let pairs = spec.selector.as_ref()?;
    Some(LabelSelector::from_pairs(pairs.iter().map(|(key, value)| (key.as_str(), value.as_str()))))
}

pub(super) fn is_headless(service: &Service) -> bool {
    spec(service).cluster_ip.as_deref() == Some("None")
}

/// Whether the Service has an address of its own.
pub(super) fn has_ip(service: &Service) -> bool {
    spec(service).cluster_ip.as_deref().is_some_and(|ip| ip != "None" && !ip.is_empty())
}

pub(super) fn publishes_unready(service: &Service) -> bool {
    spec(service).publish_not_ready_addresses == Some(true)
}

/// The addresses of a pod.
pub(super) fn pod_ips(pod: &Pod) -> Vec<IpAddr> {
    let Some(status) = &pod.status else { return Vec::new() };
    let all = status.pod_ips.iter().flatten().map(|ip| ip.ip.as_str());
    let mut ips: Vec<IpAddr> = all.filter_map(|ip| ip.parse().ok()).collect();
    if ips.is_empty() {
        ips.extend(status.pod_ip.as_deref().and_then(|ip| ip.parse::<IpAddr>().ok()));
    }
    ips
}

/// Whether a pod can be an endpoint: it has an address, has not ended, and is not going unless those are wanted too.
pub(super) fn is_endpoint(pod: &Pod, terminating_too: bool) -> bool {
    !pods::is_terminal(pod) && !pod_ips(pod).is_empty() && (terminating_too || !pods::is_terminating(pod))
}

/// The pod's own host name, if it is one under this Service.
pub(super) fn hostname(pod: &Pod, service: &Service) -> Option<String> {
    let spec = pod.spec.as_ref()?;
    let same = spec.subdomain == service.metadata.name && pod.metadata.namespace == service.metadata.namespace;
    spec.hostname.clone().filter(|hostname| same && !hostname.is_empty())
}

/// The port on which a pod serves a Service's port.
pub(super) fn find_port(pod: &Pod, port: &ServicePort) -> Option<i32> {
    let protocol = port.protocol.as_deref().unwrap_or("TCP");
    match &port.target_port {
        None => Some(port.port),
        Some(IntOrString::Int(0)) => Some(port.port),
        Some(IntOrString::Int(number)) => Some(*number),
        Some(IntOrString::String(name)) => {
            let spec = pod.spec.as_ref()?;
            let sidecar = |container: &&Container| container.restart_policy.as_deref() == Some("Always");
            let sidecars = spec.init_containers.iter().flatten().filter(sidecar);
            let ports = spec.containers.iter().chain(sidecars).flat_map(|container| container.ports.iter().flatten());
            let mut named = ports.filter(|own| own.name.as_ref() == Some(name));
            named.find(|own| own.protocol.as_deref().unwrap_or("TCP") == protocol).map(|own| own.container_port)
        }
    }
}

/// Wakes the Services that a pod belongs or belonged to, after a time in which more changes are gathered.
pub(super) fn wake_by_pods(
    queue: &Queue<Key>, services: &Informer<Service>, pods: &Informer<Pod>, gather: std::time::Duration,
) {
    let (queue, services) = (queue.clone(), services.clone());
    pods.on_change(move |change| {
        if let client::Change::Updated(old, new) = change
            && !matters(old, new)
        {
            return;
        }
        let namespace = change.object().metadata.namespace.clone().unwrap_or_default();
        for service in services.in_namespace(&namespace) {
            let Some(selector) = selector(&service) else { continue };
            if change.both().any(|pod| pods::selects(&selector, &pod.metadata)) {
                queue.add_after(Key::of(&service.metadata), gather);
            }
        }
    });
}

/// Whether a pod's change can change endpoints.
fn matters(old: &Pod, new: &Pod) -> bool {
    let view = |pod: &Pod| {
        let spec =
            pod.spec.as_ref().map(|spec| (spec.node_name.clone(), spec.hostname.clone(), spec.subdomain.clone()));
        (
            pod.metadata.labels.clone(),
            pod.metadata.deletion_timestamp.is_some(),
            pods::is_terminal(pod),
            pods::condition(pod, "Ready").cloned(),
            pod_ips(pod),
            spec,
        )
    };
    view(old) != view(new)
}

/// Remembers since when pods are as they are, to tell how long a change took to reach the endpoints.
#[derive(Default)]
pub(super) struct Triggers {
    seen: Mutex<HashMap<Key, Seen>>,
}

#[derive(Default)]
struct Seen {
    service: Option<Timestamp>,
    pods: BTreeMap<String, Timestamp>,
}

impl Triggers {
    /// The earliest time of a change since the last call for this Service.
    pub(super) fn since_last(&self, key: &Key, service: &Service, pods: &[Arc<Pod>]) -> Option<Timestamp> {
        let mut all = self.seen.lock();
        let old = all.remove(key).unwrap_or_default();
        let created = service.metadata.creation_timestamp.as_ref().map(|time| time.0);
        let mut new = Seen { service: created, ..Seen::default() };
        let mut changes: Vec<Timestamp> = created.filter(|time| old.service < Some(*time)).into_iter().collect();
        for pod in pods {
            let ready = pods::condition(pod, "Ready").and_then(|condition| condition.last_transition_time.as_ref());
            let (Some(time), Some(name)) = (ready.map(|time| time.0), pod.metadata.name.clone()) else { continue };
            if old.pods.get(&name).is_none_or(|known| *known < time) {
                changes.push(time);
            }
            new.pods.insert(name, time);
        }
        all.insert(key.clone(), new);
        changes.into_iter().min()
    }

    pub(super) fn forget(&self, key: &Key) {
        self.seen.lock().remove(key);
    }
}

/// A trigger time as it stands in annotations.
pub(super) fn trigger_text(time: Timestamp) -> String {
    time.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(value: Value) -> Pod {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_named_port_is_looked_up_by_name_and_protocol() {
        let ports = json!([{"name": "dns", "protocol": "TCP", "containerPort": 1053},
            {"name": "dns", "protocol": "UDP", "containerPort": 2053}]);
        let pod = pod(json!({"spec": {"containers": [{"name": "c", "ports": ports}]}}));
        let port = |value: Value| serde_json::from_value::<ServicePort>(value).unwrap();
        assert_eq!(find_port(&pod, &port(json!({"port": 53, "protocol": "UDP", "targetPort": "dns"}))), Some(2053));
        assert_eq!(find_port(&pod, &port(json!({"port": 53, "targetPort": "web"}))), None);
        assert_eq!(find_port(&pod, &port(json!({"port": 53, "targetPort": 5}))), Some(5));
    }

    #[test]
    fn the_trigger_is_the_earliest_change_since_the_last_look() {
        let ready = |name: &str, at: &str| {
            let condition = json!({"type": "Ready", "status": "True", "lastTransitionTime": at});
            Arc::new(pod(json!({"metadata": {"name": name}, "status": {"conditions": [condition]}})))
        };
        let (triggers, key, service) = (Triggers::default(), Key::new("a", "web"), Service::default());
        let first = [ready("x", "2020-01-01T00:00:05Z"), ready("y", "2020-01-01T00:00:01Z")];
        let time = triggers.since_last(&key, &service, &first).unwrap();
        assert_eq!(trigger_text(time), "2020-01-01T00:00:01Z");
        assert_eq!(triggers.since_last(&key, &service, &first), None);
        let then = [first[0].clone(), ready("y", "2020-01-01T00:00:09Z")];
        assert_eq!(trigger_text(triggers.since_last(&key, &service, &then).unwrap()), "2020-01-01T00:00:09Z");
    }
}

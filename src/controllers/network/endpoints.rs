//! endpoints-controller: one Endpoints object per Service, a thousand addresses at most.

use super::service::{
    self, ENDPOINTS_TRIGGER, HEADLESS, Triggers, find_port, has_ip, hostname, is_endpoint, is_headless, pod_ips,
    publishes_unready, selector, spec, trigger_text,
};
use crate::common::pods;
use crate::context::{Context, Outcome};
use client::{Informer, Key, Queue, Recorder, retry};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    EndpointAddress, EndpointPort, EndpointSubset, Endpoints, ObjectReference, Pod, Service,
};
use kube::api::{DeleteParams, ObjectMeta, PostParams};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const MANAGED_BY: (&str, &str) = ("endpoints.kubernetes.io/managed-by", "endpoint-controller");
const OVER_CAPACITY: &str = "endpoints.kubernetes.io/over-capacity";
const ELECTION: &str = "control-plane.alpha.kubernetes.io/leader";
/// Addresses in one object at most.
const CAPACITY: usize = 1000;

pub(crate) async fn run(context: Context) {
    let shell = Shell {
        services: context.informer(),
        endpoints: context.informer(),
        pods: context.informer(),
        recorder: context.recorder("endpoint-controller"),
        triggers: Triggers::default(),
        context: context.clone(),
    };
    let queue = Queue::<Key>::default();
    let wake = queue.clone();
    shell.services.on_change(move |change| wake.add(Key::of(&change.object().metadata)));
    let gather = context.options.flags.duration("endpoint-updates-batch-period");
    service::wake_by_pods(&queue, &shell.services, &shell.pods, gather);
    let wake = queue.clone();
    shell.endpoints.on_change(move |change| {
        let elects = change.object().metadata.annotations.as_ref().is_some_and(|all| all.contains_key(ELECTION));
        match change {
            // Those that are here when we start may be left over from a Service that is gone.
            client::Change::Added(_) | client::Change::Removed(_) if !elects => {
                wake.add(Key::of(&change.object().metadata));
            }
            _ => {}
        }
    });
    shell.services.synced().await;
    shell.endpoints.synced().await;
    shell.pods.synced().await;
    context.resync_keys(&shell.services, &queue);
    let workers = context.options.workers("concurrent-endpoint-syncs");
    context.serve(&queue, workers, |key| shell.reconcile(key)).await;
}

#[derive(Debug, PartialEq)]
enum Command {
    Create(Endpoints),
    Replace(Endpoints),
}

/// What to write for a Service whose pods are these.
fn plan(
    service: &Service, pods: &[Arc<Pod>], current: Option<&Endpoints>, trigger: Option<Timestamp>,
) -> Option<Command> {
    let subsets = repack(pods.iter().flat_map(|pod| subsets_of(service, pod)).collect());
    let wanted_labels = labels(service);
    if let Some(current) = current {
        let same = repack(current.subsets.clone().unwrap_or_default()) == subsets;
        let count: usize = subsets.iter().map(addresses).sum();
        let marked = current.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(OVER_CAPACITY));
        let labelled = current.metadata.labels.as_ref() == Some(&wanted_labels);
        if same && labelled && !marked && count <= CAPACITY {
            return None;
        }
    }
    let mut endpoints = current.cloned().unwrap_or_else(|| Endpoints {
        metadata: ObjectMeta {
            name: service.metadata.name.clone(),
            namespace: service.metadata.namespace.clone(),
            ..Default::default()
        },
        subsets: None,
    });
    endpoints.metadata.labels = Some(wanted_labels);
    let annotations = endpoints.metadata.annotations.get_or_insert_default();
    annotations.remove(ENDPOINTS_TRIGGER);
    annotations.remove(OVER_CAPACITY);
    if let Some(time) = trigger {
        annotations.insert(ENDPOINTS_TRIGGER.into(), trigger_text(time));
    }
    let (subsets, truncated) = truncate(subsets);
    if truncated {
        annotations.insert(OVER_CAPACITY.into(), "truncated".into());
    }
    endpoints.subsets = Some(subsets).filter(|subsets| !subsets.is_empty());
    match current {
        None => Some(Command::Create(endpoints)),
        Some(current) if *current == endpoints => None,
        Some(_) => Some(Command::Replace(endpoints)),
    }
}

fn labels(service: &Service) -> BTreeMap<String, String> {
    let mut labels = service.metadata.labels.clone().unwrap_or_default();
    labels.remove(HEADLESS);
    if !has_ip(service) {
        labels.insert(HEADLESS.into(), String::new());
    }
    labels.insert(MANAGED_BY.0.into(), MANAGED_BY.1.into());
    labels
}

/// A subset of one address for each port on which a pod serves.
fn subsets_of(service: &Service, pod: &Pod) -> Vec<EndpointSubset> {
    let Some(address) = address(service, pod).filter(|_| is_endpoint(pod, publishes_unready(service))) else {
        return Vec::new();
    };
    let ready = publishes_unready(service) || pods::is_ready(pod);
    let subset = |ports: Option<Vec<EndpointPort>>| EndpointSubset {
        addresses: ready.then(|| vec![address.clone()]),
        not_ready_addresses: (!ready).then(|| vec![address.clone()]),
        ports,
    };
    let service_ports = spec(service).ports.as_deref().unwrap_or_default();
    if service_ports.is_empty() {
        return if is_headless(service) { vec![subset(None)] } else { Vec::new() };
    }
    let port = |port: &k8s_openapi::api::core::v1::ServicePort| {
        Some(EndpointPort {
            name: port.name.clone().filter(|name| !name.is_empty()),
            port: find_port(pod, port)?,
            protocol: port.protocol.clone(),
            app_protocol: port.app_protocol.clone(),
        })
    };
    service_ports.iter().filter_map(port).map(|port| subset(Some(vec![port]))).collect()
}

/// The pod's address in the Service's first family.
fn address(service: &Service, pod: &Pod) -> Option<EndpointAddress> {
    let family = spec(service).ip_families.as_ref().and_then(|families| families.first().cloned());
    let ips = pod_ips(pod);
    let cluster_ip = spec(service).cluster_ip.as_deref().and_then(|ip| ip.parse::<std::net::IpAddr>().ok());
    let six = match family {
        Some(family) => family == "IPv6",
        None => cluster_ip.or(ips.first().copied()).is_some_and(|ip| ip.is_ipv6()),
    };
    let ip = ips.into_iter().find(|ip| ip.is_ipv6() == six)?;
    Some(EndpointAddress {
        ip: ip.to_string(),
        hostname: hostname(pod, service),
        // A pod without a node gives an empty name, which the server refuses: it can't be an endpoint.
        node_name: Some(pods::node(pod).to_owned()),
        target_ref: Some(ObjectReference {
            kind: Some("Pod".into()),
            namespace: pod.metadata.namespace.clone(),
            name: pod.metadata.name.clone(),
            uid: pod.metadata.uid.clone(),
            ..Default::default()
        }),
    })
}

type PortKey = (Option<String>, i32, Option<String>, Option<String>);

fn port_key(port: &EndpointPort) -> PortKey {
    let EndpointPort { name, port, protocol, app_protocol } = port.clone();
    (name, port, protocol, app_protocol)
}

/// Gathers the addresses that have the same ports in one subset, everything sorted. References lose their
/// resourceVersion, so that objects with and without one are equal.
pub(super) fn repack(subsets: Vec<EndpointSubset>) -> Vec<EndpointSubset> {
    let identity = |address: &EndpointAddress| {
        let uid = address.target_ref.as_ref().and_then(|target| target.uid.clone());
        (address.ip.clone(), uid)
    };
    // By address: whether it is ready, and its ports.
    let mut by_address: BTreeMap<_, (EndpointAddress, BTreeMap<PortKey, bool>)> = BTreeMap::new();
    let mut portless: BTreeMap<_, (EndpointAddress, bool)> = BTreeMap::new();
    for subset in subsets {
        let ready = subset.addresses.into_iter().flatten().map(|address| (address, true));
        let unready = subset.not_ready_addresses.into_iter().flatten().map(|address| (address, false));
        for (mut address, ready) in ready.chain(unready) {
            if let Some(target) = &mut address.target_ref {
                target.resource_version = None;
            }
            let ports = subset.ports.as_deref().unwrap_or_default();
            if ports.is_empty() {
                portless.entry(identity(&address)).or_insert((address.clone(), ready));
            }
            for port in ports {
                let entry = by_address.entry(identity(&address)).or_insert_with(|| (address.clone(), BTreeMap::new()));
                // Not ready on a port in any subset is not ready there.
                entry.1.entry(port_key(port)).and_modify(|known| *known &= ready).or_insert(ready);
            }
        }
    }
    let mut groups: BTreeMap<BTreeSet<PortKey>, (Vec<EndpointAddress>, Vec<EndpointAddress>)> = BTreeMap::new();
    for (address, ports) in by_address.into_values() {
        for ready in [true, false] {
            let keys: BTreeSet<_> =
                ports.iter().filter(|(_, state)| **state == ready).map(|(key, _)| key.clone()).collect();
            if !keys.is_empty() {
                let group = groups.entry(keys).or_default();
                if ready { &mut group.0 } else { &mut group.1 }.push(address.clone());
            }
        }
    }
    for (address, ready) in portless.into_values() {
        let group = groups.entry(BTreeSet::new()).or_default();
        if ready { &mut group.0 } else { &mut group.1 }.push(address);
    }
    let full = |addresses: Vec<EndpointAddress>| Some(addresses).filter(|addresses| !addresses.is_empty());
    let subset = |(keys, (ready, unready)): (BTreeSet<PortKey>, (Vec<EndpointAddress>, Vec<EndpointAddress>))| {
        let ports: Vec<EndpointPort> = keys
            .into_iter()
            .map(|(name, port, protocol, app_protocol)| EndpointPort { name, port, protocol, app_protocol })
            .collect();
        EndpointSubset {
            addresses: full(ready),
            not_ready_addresses: full(unready),
            ports: Some(ports).filter(|ports| !ports.is_empty()),
        }
    };
    groups.into_iter().map(subset).collect()
}

fn addresses(subset: &EndpointSubset) -> usize {
    subset.addresses.as_ref().map_or(0, Vec::len) + subset.not_ready_addresses.as_ref().map_or(0, Vec::len)
}

/// Cuts down to the capacity: ready addresses first, each subset in proportion.
fn truncate(mut subsets: Vec<EndpointSubset>) -> (Vec<EndpointSubset>, bool) {
    let length = |list: &Option<Vec<EndpointAddress>>| list.as_ref().map_or(0, Vec::len);
    let ready: usize = subsets.iter().map(|subset| length(&subset.addresses)).sum();
    let unready: usize = subsets.iter().map(|subset| length(&subset.not_ready_addresses)).sum();
    if ready + unready <= CAPACITY {
        return (subsets, false);
    }
    let cut_ready = ready > CAPACITY;
    let (room, all) = if cut_ready { (CAPACITY, ready) } else { (CAPACITY - ready, unready) };
    let mut left = room;
    for subset in &mut subsets {
        if cut_ready {
            subset.not_ready_addresses = None;
        }
        let list = if cut_ready { &mut subset.addresses } else { &mut subset.not_ready_addresses };
        let Some(list) = list else { continue };
        let share = (list.len() * room).div_ceil(all).min(left);
        list.truncate(share);
        left -= list.len();
    }
    (subsets, true)
}

struct Shell {
    context: Context,
    services: Informer<Service>,
    endpoints: Informer<Endpoints>,
    pods: Informer<Pod>,
    recorder: Recorder,
    triggers: Triggers,
}

impl Shell {
    async fn reconcile(&self, key: Key) -> Outcome {
        let api = self.context.within::<Endpoints>(&key.namespace);
        let Some(service) = self.services.get(&key) else {
            self.triggers.forget(&key);
            if self.endpoints.get(&key).is_some() {
                retry::ignore_not_found(api.delete(&key.name, &DeleteParams::default()).await)?;
            }
            return Ok(None);
        };
        let Some(selector) = selector(&service) else { return Ok(None) };
        let mut pods = self.pods.in_namespace(&key.namespace);
        pods.retain(|pod| pods::selects(&selector, &pod.metadata));
        let trigger = self.triggers.since_last(&key, &service, &pods);
        let current = self.endpoints.get(&key);
        let Some(command) = plan(&service, &pods, current.as_deref(), trigger) else { return Ok(None) };
        let (done, endpoints, reason, what) = match &command {
            Command::Create(endpoints) => {
                let done = api.create(&PostParams::default(), endpoints).await;
                (done, endpoints, "FailedToCreateEndpoint", "create endpoint for service")
            }
            Command::Replace(endpoints) => {
                let done = api.replace(&key.name, &PostParams::default(), endpoints).await;
                (done, endpoints, "FailedToUpdateEndpoint", "update endpoint")
            }
        };
        match done {
            Ok(_) => Ok(None),
            Err(error) if retry::has_cause(&error, "NamespaceTerminating") => Ok(None),
            Err(error) => {
                let message = format!("Failed to {what} {key}: {}", retry::message(&error));
                self.recorder.warning(endpoints, reason, message);
                Err(error.into())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn service(extra: Value) -> Service {
        let mut spec = json!({"selector": {"app": "web"}, "clusterIP": "10.0.0.1", "ipFamilies": ["IPv4"],
            "ports": [{"name": "h", "port": 80, "targetPort": 8080, "protocol": "TCP"}]});
        for (key, value) in extra.as_object().unwrap() {
            spec[key] = value.clone();
        }
        serde_json::from_value(json!({"metadata": {"name": "web", "namespace": "a"}, "spec": spec})).unwrap()
    }

    fn pod(name: &str, ip: &str, ready: bool) -> Arc<Pod> {
        let status = if ready { "True" } else { "False" };
        let pod = json!({
            "metadata": {"name": name, "namespace": "a", "uid": name},
            "spec": {"nodeName": "n", "containers": []},
            "status": {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}],
                "conditions": [{"type": "Ready", "status": status}]},
        });
        Arc::new(serde_json::from_value(pod).unwrap())
    }

    fn made(command: Option<Command>) -> Endpoints {
        match command {
            Some(Command::Create(endpoints) | Command::Replace(endpoints)) => endpoints,
            None => panic!("nothing to write"),
        }
    }

    fn ips(list: Option<&Vec<EndpointAddress>>) -> Vec<&str> {
        list.into_iter().flatten().map(|address| address.ip.as_str()).collect()
    }

    #[test]
    fn ready_and_unready_pods_share_a_subset() {
        let pods = [pod("x", "10.1.2.2", true), pod("y", "10.1.2.1", false), pod("z", "10.1.2.3", true)];
        let endpoints = made(plan(&service(json!({})), &pods, None, None));
        let subsets = endpoints.subsets.clone().unwrap();
        assert_eq!(subsets.len(), 1);
        assert_eq!(ips(subsets[0].addresses.as_ref()), ["10.1.2.2", "10.1.2.3"]);
        assert_eq!(ips(subsets[0].not_ready_addresses.as_ref()), ["10.1.2.1"]);
        assert_eq!(subsets[0].ports.as_ref().unwrap()[0].port, 8080);
        assert_eq!(endpoints.metadata.labels.as_ref().unwrap()[MANAGED_BY.0], MANAGED_BY.1);
        assert_eq!(plan(&service(json!({})), &pods, Some(&endpoints), None), None);
    }

    #[test]
    fn a_service_without_pods_has_an_empty_object() {
        let endpoints = made(plan(&service(json!({})), &[], None, None));
        assert_eq!(endpoints.subsets, None);
    }

    #[test]
    fn not_ready_addresses_can_be_published() {
        let service = service(json!({"publishNotReadyAddresses": true, "clusterIP": "None"}));
        let endpoints = made(plan(&service, &[pod("x", "10.1.2.2", false)], None, None));
        assert_eq!(ips(endpoints.subsets.unwrap()[0].addresses.as_ref()), ["10.1.2.2"]);
        assert!(endpoints.metadata.labels.unwrap().contains_key(HEADLESS));
    }

    #[test]
    fn pods_that_resolve_a_port_differently_have_subsets_of_their_own() {
        let service = service(json!({"ports": [{"name": "h", "port": 80, "targetPort": "web", "protocol": "TCP"}]}));
        let with_port = |name: &str, ip: &str, port: i32| {
            let mut pod = Pod::clone(&pod(name, ip, true));
            let container = json!({"name": "c", "ports": [{"name": "web", "containerPort": port, "protocol": "TCP"}]});
            pod.spec.as_mut().unwrap().containers = vec![serde_json::from_value(container).unwrap()];
            Arc::new(pod)
        };
        let pods = [with_port("x", "10.1.2.2", 81), with_port("y", "10.1.2.3", 82)];
        assert_eq!(made(plan(&service, &pods, None, None)).subsets.unwrap().len(), 2);
    }

    #[test]
    fn more_than_a_thousand_addresses_are_cut_ready_ones_first() {
        let pods: Vec<_> =
            (0..1200).map(|n| pod(&format!("p{n:04}"), &format!("10.1.{}.{}", n / 250, n % 250), n % 4 != 0)).collect();
        let endpoints = made(plan(&service(json!({})), &pods, None, None));
        let subsets = endpoints.subsets.clone().unwrap();
        assert_eq!(subsets[0].addresses.as_ref().unwrap().len(), 900);
        assert_eq!(subsets[0].not_ready_addresses.as_ref().unwrap().len(), 100);
        assert_eq!(endpoints.metadata.annotations.as_ref().unwrap()[OVER_CAPACITY], "truncated");
        assert_eq!(plan(&service(json!({})), &pods, Some(&endpoints), None), None);
    }
}

//! endpointslice-controller: the endpoints of a Service, of any number, in slices by address family and ports.

use super::pack::{self, Command, Frame, Group, pack, port_key};
use super::service::{
    self, ENDPOINTS_TRIGGER, HEADLESS, Triggers, find_port, has_ip, hostname, is_endpoint, is_headless, pod_ips,
    publishes_unready, selector, spec, trigger_text,
};
use crate::common::expect::Expectations;
use crate::common::pods::{self, names};
use crate::context::{Context, Fault, Outcome};
use base::backoff::Policy;
use client::{Informer, Key, Queue, Recorder, owner, retry};
use k8s_openapi::api::core::v1::{Node, ObjectReference, Pod, Service};
use k8s_openapi::api::discovery::v1::{
    Endpoint, EndpointConditions, EndpointHints, EndpointPort, EndpointSlice, ForNode, ForZone,
};
use kube::api::{DeleteParams, PostParams};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

const SERVICE_NAME: &str = "kubernetes.io/service-name";
const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
const CONTROLLER: &str = "endpointslice-controller.k8s.io";
const ZONE: &str = "topology.kubernetes.io/zone";

pub(crate) async fn run(context: Context) {
    let shell = Shell {
        services: context.informer(),
        slices: context.informer(),
        pods: context.informer(),
        nodes: context.informer(),
        recorder: context.recorder("endpoint-slice-controller"),
        triggers: Triggers::default(),
        expect: Expectations::default(),
        context: context.clone(),
    };
    shell.slices.add_index("service", by_service);
    let queue = Queue::new(Policy { first: Duration::from_secs(1), ..client::queue::RETRIES });
    let wake = queue.clone();
    shell.services.on_change(move |change| wake.add(Key::of(&change.object().metadata)));
    let gather = context.options.flags.duration("endpointslice-updates-batch-period");
    service::wake_by_pods(&queue, &shell.services, &shell.pods, gather);
    wake_by_slices(&queue, &shell.slices, CONTROLLER);
    wake_by_nodes(&queue, &shell);
    shell.services.synced().await;
    shell.slices.synced().await;
    shell.pods.synced().await;
    shell.nodes.synced().await;
    context.resync_keys(&shell.services, &queue);
    let workers = context.options.workers("concurrent-service-endpoint-syncs");
    context.serve(&queue, workers, |key| shell.reconcile(key)).await;
}

/// A slice stands under `namespace/service` of its label.
pub(super) fn by_service(slice: &EndpointSlice) -> Vec<String> {
    let service = slice.metadata.labels.as_ref().and_then(|labels| labels.get(SERVICE_NAME));
    let namespace = slice.metadata.namespace.as_deref().unwrap_or_default();
    service.map(|service| format!("{namespace}/{service}")).into_iter().collect()
}

pub(super) fn is_managed(slice: &EndpointSlice, controller: &str) -> bool {
    slice.metadata.labels.as_ref().and_then(|labels| labels.get(MANAGED_BY)).is_some_and(|by| by == controller)
}

/// A slice of ours that others have changed or removed wakes its Service.
pub(super) fn wake_by_slices(queue: &Queue<Key>, slices: &Informer<EndpointSlice>, controller: &'static str) {
    let queue = queue.clone();
    slices.on_change(move |change| {
        for slice in change.both().filter(|slice| is_managed(slice, controller)) {
            if let Some(service) = slice.metadata.labels.as_ref().and_then(|labels| labels.get(SERVICE_NAME)) {
                queue.add(Key::new(slice.metadata.namespace.clone().unwrap_or_default(), service.clone()));
            }
        }
    });
}

/// A node that comes, goes or moves to another zone wakes the Services of its pods.
fn wake_by_nodes(queue: &Queue<Key>, shell: &Shell) {
    let (queue, services, pods) = (queue.clone(), shell.services.clone(), shell.pods.clone());
    pods.index_nodes();
    shell.nodes.on_change(move |change| {
        if let client::Change::Updated(old, new) = change
            && zone(old) == zone(new)
        {
            return;
        }
        let on_node = pods.on_node(change.object().metadata.name.as_deref().unwrap_or_default());
        for pod in on_node {
            for service in services.in_namespace(pod.metadata.namespace.as_deref().unwrap_or_default()) {
                if selector(&service).is_some_and(|selector| pods::selects(&selector, &pod.metadata)) {
                    queue.add(Key::of(&service.metadata));
                }
            }
        }
    });
}

fn zone(node: &Node) -> Option<&str> {
    node.metadata.labels.as_ref()?.get(ZONE).map(String::as_str)
}

/// What a Service's slices must be.
fn plan(
    service: &Service, pods: &[Arc<Pod>], nodes: &HashMap<String, Arc<Node>>, existing: &[Arc<EndpointSlice>],
    max: usize,
) -> Vec<Command> {
    let frame = frame(service, max);
    let families = families(service, pods);
    let mut commands = Vec::new();
    for family in &families {
        let of_family: Vec<_> = existing.iter().filter(|slice| slice.address_type == *family).cloned().collect();
        let groups = groups(service, pods, nodes, family);
        commands.extend(pack(&frame, family, &groups, &of_family, true));
    }
    let strays = existing.iter().filter(|slice| !families.contains(&slice.address_type));
    commands.extend(strays.cloned().map(Command::Delete));
    if service.metadata.deletion_timestamp.is_some() {
        // The garbage collector is at work: what is made now would race with it.
        commands.retain(|command| !matches!(command, Command::Create(_)));
    }
    commands
}

/// The address types of a Service; where it does not say, those of its pods.
fn families(service: &Service, pods: &[Arc<Pod>]) -> Vec<String> {
    let known = spec(service).ip_families.clone().unwrap_or_default();
    if !known.is_empty() {
        return known;
    }
    let six = pods.iter().flat_map(|pod| pod_ips(pod)).any(|ip| ip.is_ipv6());
    let cluster_six = spec(service).cluster_ip.as_deref().is_some_and(|ip| ip.contains(':'));
    vec![if cluster_six || (six && !has_ip(service)) { "IPv6" } else { "IPv4" }.to_owned()]
}

fn frame(service: &Service, max: usize) -> Frame {
    let reserved = |key: &str| key == SERVICE_NAME || key == MANAGED_BY || key == HEADLESS;
    let mut labels = service.metadata.labels.clone().unwrap_or_default();
    labels.retain(|key, _| !reserved(key));
    if !has_ip(service) {
        labels.insert(HEADLESS.into(), String::new());
    }
    let (namespace, name) = names(&service.metadata);
    labels.insert(SERVICE_NAME.into(), name.to_owned());
    labels.insert(MANAGED_BY.into(), CONTROLLER.into());
    Frame {
        owner: owner::controller_ref(service),
        namespace: namespace.to_owned(),
        labels,
        annotations: BTreeMap::new(),
        max,
    }
}

fn groups(
    service: &Service, pods: &[Arc<Pod>], nodes: &HashMap<String, Arc<Node>>, family: &str,
) -> BTreeMap<pack::PortsOf, Group> {
    let mut groups: BTreeMap<_, Group> = BTreeMap::new();
    for pod in pods.iter().filter(|pod| is_endpoint(pod, true)) {
        let node = nodes.get(pods::node(pod));
        // A pod whose node is gone will soon be collected; till then it is no endpoint, unless all are wanted.
        if node.is_none() && !publishes_unready(service) {
            continue;
        }
        let Some(endpoint) = endpoint(service, pod, node.map(Arc::as_ref), family) else { continue };
        let ports = ports(service, pod);
        let group = groups.entry(port_key(&ports)).or_default();
        group.ports = ports;
        group.endpoints.push(endpoint);
    }
    groups
}

/// The ports on which a pod serves; names are always set.
fn ports(service: &Service, pod: &Pod) -> Vec<EndpointPort> {
    let all = spec(service).ports.as_deref().unwrap_or_default();
    if all.is_empty() && is_headless(service) {
        return Vec::new();
    }
    let port = |port: &k8s_openapi::api::core::v1::ServicePort| {
        Some(EndpointPort {
            name: Some(port.name.clone().unwrap_or_default()),
            port: Some(find_port(pod, port)?),
            protocol: Some(port.protocol.clone().unwrap_or_else(|| "TCP".into())),
            app_protocol: port.app_protocol.clone(),
        })
    };
    all.iter().filter_map(port).collect()
}

fn endpoint(service: &Service, pod: &Pod, node: Option<&Node>, family: &str) -> Option<Endpoint> {
    let six = family == "IPv6";
    let addresses: Vec<_> =
        pod_ips(pod).into_iter().filter(|ip| ip.is_ipv6() == six).map(|ip| ip.to_string()).collect();
    if addresses.is_empty() {
        return None;
    }
    let (serving, terminating) = (pods::is_ready(pod), pods::is_terminating(pod));
    let ready = publishes_unready(service) || (serving && !terminating);
    let node_name = Some(pods::node(pod)).filter(|node| !node.is_empty()).map(str::to_owned);
    let zone = node.and_then(zone).map(str::to_owned);
    Some(Endpoint {
        addresses,
        conditions: Some(EndpointConditions {
            ready: Some(ready),
            serving: Some(serving),
            terminating: Some(terminating),
        }),
        hints: hints(service, ready, node_name.as_deref(), zone.as_deref()),
        hostname: hostname(pod, service),
        node_name,
        target_ref: Some(ObjectReference {
            kind: Some("Pod".into()),
            namespace: pod.metadata.namespace.clone(),
            name: pod.metadata.name.clone(),
            uid: pod.metadata.uid.clone(),
            ..Default::default()
        }),
        zone,
        deprecated_topology: None,
    })
}

/// Where an endpoint should be used from, when the Service prefers what is near.
fn hints(service: &Service, ready: bool, node: Option<&str>, zone: Option<&str>) -> Option<EndpointHints> {
    let distribution = spec(service).traffic_distribution.as_deref().unwrap_or_default();
    if !ready || !matches!(distribution, "PreferClose" | "PreferSameZone" | "PreferSameNode") {
        return None;
    }
    let for_zones = zone.map(|zone| vec![ForZone { name: zone.to_owned() }]);
    let same_node = node.filter(|_| distribution == "PreferSameNode");
    let for_nodes = same_node.map(|node| vec![ForNode { name: node.to_owned() }]);
    (for_zones.is_some() || for_nodes.is_some()).then_some(EndpointHints { for_nodes, for_zones })
}

struct Shell {
    context: Context,
    services: Informer<Service>,
    slices: Informer<EndpointSlice>,
    pods: Informer<Pod>,
    nodes: Informer<Node>,
    recorder: Recorder,
    triggers: Triggers,
    expect: Expectations,
}

impl Shell {
    async fn reconcile(&self, key: Key) -> Outcome {
        let Some(service) = self.services.get(&key) else {
            self.triggers.forget(&key);
            self.expect.forget(&key);
            return Ok(None);
        };
        let Some(selector) = selector(&service) else { return Ok(None) };
        if let Some(wait) = self.expect.unseen(&key, &self.slices) {
            return Ok(Some(wait));
        }
        let mut pods = self.pods.in_namespace(&key.namespace);
        pods.retain(|pod| pods::selects(&selector, &pod.metadata));
        let trigger = self.triggers.since_last(&key, &service, &pods).map(trigger_text);
        let mut existing = self.slices.by_index("service", &key.to_string());
        existing.retain(|slice| is_managed(slice, CONTROLLER) && slice.metadata.deletion_timestamp.is_none());
        let max = self.context.options.workers("max-endpoints-per-slice");
        let commands = plan(&service, &pods, &self.nodes_of(&pods), &existing, max);
        let done = apply(&self.context, &self.expect, &key, commands, trigger.as_deref()).await;
        if let Err(fault) = &done {
            let message = format!("Error updating Endpoint Slices for Service {key}: {fault}");
            self.recorder.warning(service.as_ref(), "FailedToUpdateEndpointSlices", message);
        }
        done.map(|()| None)
    }

    fn nodes_of(&self, pods: &[Arc<Pod>]) -> HashMap<String, Arc<Node>> {
        let find = |name: &str| Some((name.to_owned(), self.nodes.find("", name)?));
        pods.iter().filter_map(|pod| find(pods::node(pod))).collect()
    }
}

/// Carries out writes of slices, those that make or change first; `trigger` is noted on them.
pub(super) async fn apply(
    context: &Context, expect: &Expectations, key: &Key, commands: Vec<Command>, trigger: Option<&str>,
) -> Result<(), Fault> {
    let api = context.within::<EndpointSlice>(&key.namespace);
    let stamp = |mut slice: EndpointSlice| {
        let annotations = slice.metadata.annotations.get_or_insert_default();
        match trigger {
            Some(trigger) => drop(annotations.insert(ENDPOINTS_TRIGGER.into(), trigger.to_owned())),
            None => drop(annotations.remove(ENDPOINTS_TRIGGER)),
        }
        slice
    };
    for command in commands {
        match command {
            Command::Create(slice) => match api.create(&PostParams::default(), &stamp(slice)).await {
                Ok(made) => expect.made(key, &made.metadata),
                Err(error) if retry::has_cause(&error, "NamespaceTerminating") => return Ok(()),
                Err(error) => return Err(error.into()),
            },
            Command::Replace(slice) => {
                let name = slice.metadata.name.clone().unwrap_or_default();
                let written = api.replace(&name, &PostParams::default(), &stamp(slice)).await?;
                expect.made(key, &written.metadata);
            }
            Command::Delete(slice) => {
                let name = slice.metadata.name.as_deref().unwrap_or_default();
                retry::ignore_not_found(api.delete(name, &DeleteParams::default()).await)?;
                expect.deleted(key, &slice.metadata);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn service(extra: Value) -> Service {
        let mut spec = json!({"selector": {"app": "web"}, "clusterIP": "10.0.0.1", "ipFamilies": ["IPv4"],
            "ports": [{"port": 80, "targetPort": 8080, "protocol": "TCP"}]});
        for (key, value) in extra.as_object().unwrap() {
            spec[key] = value.clone();
        }
        let metadata = json!({"name": "web", "namespace": "a", "uid": "s", "labels": {"team": "x"}});
        serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap()
    }

    fn pod(name: &str, node: &str, ready: bool, deleted: bool) -> Arc<Pod> {
        let status = if ready { "True" } else { "False" };
        let mut pod = json!({
            "metadata": {"name": name, "namespace": "a", "uid": name},
            "spec": {"nodeName": node, "containers": []},
            "status": {"phase": "Running", "podIPs": [{"ip": "10.1.0.1"}, {"ip": "fd00::1"}],
                "conditions": [{"type": "Ready", "status": status}]},
        });
        if deleted {
            pod["metadata"]["deletionTimestamp"] = json!("2020-01-01T00:00:00Z");
        }
        Arc::new(serde_json::from_value(pod).unwrap())
    }

    fn nodes() -> HashMap<String, Arc<Node>> {
        let node = json!({"metadata": {"name": "n", "labels": {ZONE: "z1"}}});
        [("n".to_owned(), Arc::new(serde_json::from_value(node).unwrap()))].into()
    }

    fn created(commands: &[Command]) -> Vec<EndpointSlice> {
        let made = |command: &Command| match command {
            Command::Create(slice) => Some(slice.clone()),
            _ => None,
        };
        commands.iter().filter_map(made).collect()
    }

    fn conditions(endpoint: &Endpoint) -> (bool, bool, bool) {
        let conditions = endpoint.conditions.as_ref().unwrap();
        (conditions.ready.unwrap(), conditions.serving.unwrap(), conditions.terminating.unwrap())
    }

    #[test]
    fn a_slice_has_upstreams_shape() {
        let slices = created(&plan(&service(json!({})), &[pod("x", "n", true, false)], &nodes(), &[], 100));
        let slice = &slices[0];
        assert_eq!(slice.metadata.generate_name.as_deref(), Some("web-"));
        let labels = json!({SERVICE_NAME: "web", MANAGED_BY: CONTROLLER, "team": "x"});
        assert_eq!(json!(slice.metadata.labels), labels);
        assert_eq!(json!(slice.ports), json!([{"name": "", "port": 8080, "protocol": "TCP"}]));
        let endpoint = &slice.endpoints.as_ref().unwrap()[0];
        assert_eq!(conditions(endpoint), (true, true, false));
        assert_eq!((endpoint.node_name.as_deref(), endpoint.zone.as_deref()), (Some("n"), Some("z1")));
        assert_eq!(endpoint.hints, None);
    }

    #[test]
    fn only_terminating_local_pods_are_still_serving() {
        let slices = created(&plan(&service(json!({})), &[pod("x", "n", true, true)], &nodes(), &[], 100));
        assert_eq!(conditions(&slices[0].endpoints.as_ref().unwrap()[0]), (false, true, true));
    }

    #[test]
    fn pods_whose_node_is_missing_are_skipped() {
        let pods = [pod("x", "gone", true, false)];
        let slices = created(&plan(&service(json!({})), &pods, &nodes(), &[], 100));
        assert!(slices[0].endpoints.as_ref().unwrap().is_empty());
        let all = service(json!({"publishNotReadyAddresses": true}));
        assert_eq!(created(&plan(&all, &pods, &nodes(), &[], 100))[0].endpoints.as_ref().unwrap().len(), 1);
    }

    #[test]
    fn dual_stack_services_have_slices_of_both_families() {
        let service = service(json!({"ipFamilies": ["IPv4", "IPv6"]}));
        let slices = created(&plan(&service, &[pod("x", "n", true, false)], &nodes(), &[], 100));
        let types: Vec<_> = slices.iter().map(|slice| slice.address_type.as_str()).collect();
        assert_eq!(types, ["IPv4", "IPv6"]);
        assert_eq!(slices[1].endpoints.as_ref().unwrap()[0].addresses, ["fd00::1"]);
    }

    #[test]
    fn near_endpoints_are_hinted_at() {
        let service = service(json!({"trafficDistribution": "PreferSameNode"}));
        let pods = [pod("x", "n", true, false), pod("y", "n", false, false)];
        let slices = created(&plan(&service, &pods, &nodes(), &[], 100));
        let hints: Vec<_> = slices[0].endpoints.iter().flatten().map(|endpoint| json!(endpoint.hints)).collect();
        assert_eq!(hints, [json!({"forNodes": [{"name": "n"}], "forZones": [{"name": "z1"}]}), json!(null)]);
    }
}

//! endpointslice-mirroring-controller: Endpoints that people write for Services without a selector become slices too.

use super::endpoints::repack;
use super::pack::{Command, Frame, Group, pack, port_key};
use super::service::{ENDPOINTS_TRIGGER, spec};
use super::slices::{apply, by_service, is_managed, wake_by_slices};
use crate::common::expect::Expectations;
use crate::common::pods::names;
use crate::context::{Context, Outcome};
use client::{Informer, Key, Queue, Recorder, owner};
use k8s_openapi::api::core::v1::{EndpointAddress, Endpoints, Service};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

const CONTROLLER: &str = "endpointslicemirroring-controller.k8s.io";
const SKIP: &str = "endpointslice.kubernetes.io/skip-mirror";
const ELECTION: &str = "control-plane.alpha.kubernetes.io/leader";
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

pub(crate) async fn run(context: Context) {
    let shell = Shell {
        services: context.informer(),
        endpoints: context.informer(),
        slices: context.informer(),
        recorder: context.recorder("endpoint-slice-mirroring-controller"),
        expect: Expectations::default(),
        context: context.clone(),
    };
    shell.slices.add_index("service", by_service);
    let queue = Queue::<Key>::default();
    let (wake, gather) =
        (queue.clone(), context.options.flags.duration("mirroring-endpointslice-updates-batch-period"));
    shell.endpoints.on_change(move |change| wake.add_after(Key::of(&change.object().metadata), gather));
    let wake = queue.clone();
    shell.services.on_change(move |change| wake.add(Key::of(&change.object().metadata)));
    wake_by_slices(&queue, &shell.slices, CONTROLLER);
    shell.services.synced().await;
    shell.endpoints.synced().await;
    shell.slices.synced().await;
    context.resync_keys(&shell.endpoints, &queue);
    let workers = context.options.workers("mirroring-concurrent-service-endpoint-syncs");
    context.serve(&queue, workers, |key| shell.reconcile(key)).await;
}

/// Whether these Endpoints are somebody's own work for this Service.
fn is_mirrored(endpoints: &Endpoints, service: Option<&Service>) -> bool {
    let meta = &endpoints.metadata;
    let skipped = meta.labels.as_ref().and_then(|labels| labels.get(SKIP)).is_some_and(|value| value == "true");
    let elects = meta.annotations.as_ref().is_some_and(|annotations| annotations.contains_key(ELECTION));
    !skipped && !elects && service.is_some_and(|service| spec(service).selector.is_none())
}

/// What the mirror could not show.
#[derive(Debug, Default, PartialEq)]
struct Skipped {
    invalid: usize,
    /// All that were left out, invalid ones included.
    all: usize,
}

fn plan(endpoints: &Endpoints, existing: &[Arc<EndpointSlice>], max: usize) -> (Vec<Command>, Skipped) {
    let mut skipped = Skipped::default();
    let mut families: BTreeMap<&str, BTreeMap<_, Group>> =
        [("IPv4", BTreeMap::new()), ("IPv6", BTreeMap::new())].into();
    for subset in repack(endpoints.subsets.clone().unwrap_or_default()) {
        let ports: Vec<_> = subset.ports.iter().flatten().map(port).collect();
        let ready = subset.addresses.iter().flatten().map(|address| (address, true));
        let unready = subset.not_ready_addresses.iter().flatten().map(|address| (address, false));
        let mut added = 0;
        for (address, ready) in ready.chain(unready) {
            let Some(ip) = Some(address).filter(|_| added < max).and_then(|address| address.ip.parse::<IpAddr>().ok())
            else {
                skipped.all += 1;
                skipped.invalid += usize::from(added < max);
                continue;
            };
            added += 1;
            let family = if ip.is_ipv6() { "IPv6" } else { "IPv4" };
            let group = families.entry(family).or_default().entry(port_key(&ports)).or_default();
            group.ports.clone_from(&ports);
            group.endpoints.push(endpoint(address, ip, ready));
        }
    }
    let frame = frame(endpoints, max);
    let mut commands = Vec::new();
    for (family, groups) in &families {
        let of_family: Vec<_> = existing.iter().filter(|slice| slice.address_type == *family).cloned().collect();
        commands.extend(pack(&frame, family, groups, &of_family, false));
    }
    (commands, skipped)
}

fn port(port: &k8s_openapi::api::core::v1::EndpointPort) -> EndpointPort {
    EndpointPort {
        name: Some(port.name.clone().unwrap_or_default()),
        port: Some(port.port),
        protocol: Some(port.protocol.clone().unwrap_or_else(|| "TCP".into())),
        app_protocol: port.app_protocol.clone(),
    }
}

fn endpoint(address: &EndpointAddress, ip: IpAddr, ready: bool) -> Endpoint {
    Endpoint {
        addresses: vec![ip.to_string()],
        conditions: Some(EndpointConditions { ready: Some(ready), ..Default::default() }),
        hostname: address.hostname.clone().filter(|hostname| !hostname.is_empty()),
        node_name: address.node_name.clone(),
        target_ref: address.target_ref.clone(),
        ..Default::default()
    }
}

fn frame(endpoints: &Endpoints, max: usize) -> Frame {
    let (namespace, name) = names(&endpoints.metadata);
    let mut labels = endpoints.metadata.labels.clone().unwrap_or_default();
    labels.insert("kubernetes.io/service-name".into(), name.to_owned());
    labels.insert("endpointslice.kubernetes.io/managed-by".into(), CONTROLLER.into());
    let mut annotations = endpoints.metadata.annotations.clone().unwrap_or_default();
    annotations.retain(|key, _| key != ENDPOINTS_TRIGGER && key != LAST_APPLIED);
    Frame { owner: owner::controller_ref(endpoints), namespace: namespace.to_owned(), labels, annotations, max }
}

struct Shell {
    context: Context,
    services: Informer<Service>,
    endpoints: Informer<Endpoints>,
    slices: Informer<EndpointSlice>,
    recorder: Recorder,
    expect: Expectations,
}

impl Shell {
    async fn reconcile(&self, key: Key) -> Outcome {
        if let Some(wait) = self.expect.unseen(&key, &self.slices) {
            return Ok(Some(wait));
        }
        let mut existing = self.slices.by_index("service", &key.to_string());
        existing.retain(|slice| is_managed(slice, CONTROLLER) && slice.metadata.deletion_timestamp.is_none());
        let endpoints = self.endpoints.get(&key);
        let service = self.services.get(&key);
        let Some(endpoints) = endpoints.filter(|endpoints| is_mirrored(endpoints, service.as_deref())) else {
            let commands = existing.into_iter().map(Command::Delete).collect();
            apply(&self.context, &self.expect, &key, commands, None).await?;
            return Ok(None);
        };
        let max = self.context.options.workers("mirroring-max-endpoints-per-subset");
        let (commands, skipped) = plan(&endpoints, &existing, max);
        self.tell(&endpoints, &skipped, max);
        let trigger = endpoints.metadata.annotations.as_ref().and_then(|all| all.get(ENDPOINTS_TRIGGER)).cloned();
        apply(&self.context, &self.expect, &key, commands, trigger.as_deref()).await?;
        Ok(None)
    }

    fn tell(&self, endpoints: &Endpoints, skipped: &Skipped, max: usize) {
        let Skipped { invalid, all } = skipped;
        if *invalid > 0 {
            let message = format!("Skipped {invalid} invalid IP addresses when mirroring to EndpointSlices");
            self.recorder.warning(endpoints, "InvalidIPAddress", message);
        }
        if all > invalid {
            let message = format!(
                "A max of {max} addresses can be mirrored to EndpointSlices per Endpoints subset. {all} addresses were skipped"
            );
            self.recorder.warning(endpoints, "TooManyAddressesToMirror", message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn endpoints(subsets: Value) -> Endpoints {
        let metadata =
            json!({"name": "db", "namespace": "a", "uid": "e", "annotations": {LAST_APPLIED: "{}", "x": "y"}});
        serde_json::from_value(json!({"metadata": metadata, "subsets": subsets})).unwrap()
    }

    #[test]
    fn hand_written_endpoints_become_slices_by_family() {
        let subsets = json!([{"addresses": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}], "ports": [{"port": 5432}]}]);
        let (commands, skipped) = plan(&endpoints(subsets), &[], 1000);
        assert_eq!((commands.len(), skipped), (2, Skipped::default()));
        let Command::Create(slice) = &commands[0] else { panic!() };
        assert_eq!(json!(slice.metadata.annotations), json!({"x": "y"}));
        assert_eq!(json!(slice.ports), json!([{"name": "", "port": 5432, "protocol": "TCP"}]));
        assert_eq!(json!(slice.endpoints), json!([{"addresses": ["10.0.0.1"], "conditions": {"ready": true}}]));
    }

    #[test]
    fn too_many_addresses_are_left_out() {
        let addresses: Vec<_> = (1..=5).map(|n| json!({"ip": format!("10.0.0.{n}")})).collect();
        let (commands, skipped) = plan(&endpoints(json!([{"addresses": addresses, "ports": [{"port": 1}]}])), &[], 3);
        assert_eq!((commands.len(), skipped), (1, Skipped { invalid: 0, all: 2 }));
    }

    #[test]
    fn endpoints_of_services_with_a_selector_are_not_mirrored() {
        let plain = endpoints(json!([]));
        let service = |spec: Value| serde_json::from_value::<Service>(json!({"spec": spec})).unwrap();
        assert!(is_mirrored(&plain, Some(&service(json!({})))));
        assert!(!is_mirrored(&plain, Some(&service(json!({"selector": {"a": "b"}})))));
        assert!(!is_mirrored(&plain, None));
        let mut skipping = plain.clone();
        skipping.metadata.labels = Some([(SKIP.to_owned(), "true".to_owned())].into());
        assert!(!is_mirrored(&skipping, Some(&service(json!({})))));
    }
}

//! Services and their endpoints as the rules need them: one [`Port`] per port of a service and family of addresses.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use k8s_openapi::api::core::v1::{Service, ServicePort};
use k8s_openapi::api::discovery::v1::{Endpoint as SliceEndpoint, EndpointSlice};

/// A family of addresses; rules never mix them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// The family of an address.
    pub fn of(ip: IpAddr) -> Self {
        if ip.is_ipv4() { Family::V4 } else { Family::V6 }
    }

    /// nft's word for it.
    pub fn word(self) -> &'static str {
        if self == Family::V4 { "ip" } else { "ip6" }
    }

    /// The API's name of it.
    pub fn name(self) -> &'static str {
        if self == Family::V4 { "IPv4" } else { "IPv6" }
    }

    /// Addresses of this family among texts that should be addresses.
    fn pick<'a>(self, texts: impl IntoIterator<Item = &'a String>) -> Vec<IpAddr> {
        let addresses = texts.into_iter().filter_map(|t| t.parse().ok());
        addresses.filter(|ip| Family::of(*ip) == self).collect()
    }
}

/// Where this proxy runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Name of the node.
    pub node: String,
    /// The node's zone, empty when it has none.
    pub zone: String,
}

/// A backend.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Endpoint {
    /// Address of the pod.
    pub ip: IpAddr,
    /// Its port.
    pub port: u16,
    /// Takes new connections.
    pub ready: bool,
    /// Works, though it may be about to end.
    pub serving: bool,
    /// Is about to end.
    pub terminating: bool,
    /// Runs on this node.
    pub local: bool,
    /// Nodes and zones that should prefer it; empty when nobody said.
    pub for_zones: Vec<String>,
    /// Nodes that should prefer it; empty when nobody said.
    pub for_nodes: Vec<String>,
}

impl Endpoint {
    /// Better than nothing: it still answers while it ends.
    fn lingers(&self) -> bool {
        self.serving && self.terminating
    }
}

/// One port of a service in one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Namespace of the service.
    pub namespace: String,
    /// Name of the service.
    pub service: String,
    /// Name of the port, empty when it has none.
    pub name: String,
    /// `tcp`, `udp` or `sctp`.
    pub protocol: &'static str,
    /// ClusterIPs of the family.
    pub cluster_ips: Vec<IpAddr>,
    /// Port of the service.
    pub port: u16,
    /// Port on every node, 0 for none.
    pub node_port: u16,
    /// Addresses that lead to the cluster from outside: `externalIPs`.
    pub external_ips: Vec<IpAddr>,
    /// Addresses of its load balancer.
    pub balancer_ips: Vec<IpAddr>,
    /// Who may come through the load balancer; empty for everybody.
    pub source_ranges: Vec<IpNet>,
    /// For how many seconds a client stays with an endpoint; 0 for no affinity.
    pub affinity: u32,
    /// `internalTrafficPolicy: Local`.
    pub internal_local: bool,
    /// `externalTrafficPolicy: Local`.
    pub external_local: bool,
    /// Port of the health check for load balancers, 0 for none.
    pub health_port: u16,
    /// All endpoints, sorted.
    pub endpoints: Vec<Endpoint>,
}

/// Endpoints that traffic goes to, after readiness, policies and hints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// For traffic that may go anywhere.
    pub cluster: Vec<Endpoint>,
    /// For traffic that must stay on this node.
    pub local: Vec<Endpoint>,
}

impl Port {
    /// `namespace/name:port`, as messages name it.
    pub fn full_name(&self) -> String {
        match self.name.as_str() {
            "" => format!("{}/{}", self.namespace, self.service),
            name => format!("{}/{}:{name}", self.namespace, self.service),
        }
    }

    /// Chooses among the endpoints (KEP-1669: endpoints that end serve while nothing else does; KEP-2433, KEP-4444:
    /// hints are obeyed when every ready endpoint has one and one of them is for us).
    pub fn choose(&self, place: &Place) -> Choice {
        Choice {
            cluster: usable(hinted(&self.endpoints, place)),
            local: usable(self.endpoints.iter().filter(|e| e.local).collect()),
        }
    }
}

fn usable(endpoints: Vec<&Endpoint>) -> Vec<Endpoint> {
    let ready: Vec<Endpoint> = endpoints.iter().filter(|e| e.ready).map(|e| (*e).clone()).collect();
    if !ready.is_empty() {
        return ready;
    }
    endpoints.into_iter().filter(|e| e.lingers()).cloned().collect()
}

/// The endpoints that hints leave to this place; all of them where hints are missing or leave none.
fn hinted<'a>(endpoints: &'a [Endpoint], place: &Place) -> Vec<&'a Endpoint> {
    let ready: Vec<&Endpoint> = endpoints.iter().filter(|e| e.ready).collect();
    let by = |hints: fn(&Endpoint) -> &Vec<String>, wanted: &String| -> Option<Vec<&'a Endpoint>> {
        let all_hinted = !ready.is_empty() && ready.iter().all(|e| !hints(e).is_empty());
        let some_for_us = ready.iter().any(|e| hints(e).contains(wanted));
        let ours = || endpoints.iter().filter(|e| hints(e).contains(wanted)).collect();
        (!wanted.is_empty() && all_hinted && some_for_us).then(ours)
    };
    by(|e| &e.for_nodes, &place.node)
        .or_else(|| by(|e| &e.for_zones, &place.zone))
        .unwrap_or_else(|| endpoints.iter().collect())
}

fn protocol(name: Option<&str>) -> &'static str {
    match name {
        Some("UDP") => "udp",
        Some("SCTP") => "sctp",
        _ => "tcp",
    }
}

fn port_number(value: i32) -> u16 {
    u16::try_from(value).unwrap_or(0)
}

/// The ports of a service in a family, with the endpoints that its slices name. Nothing for headless and external
/// services.
pub fn ports(service: &Service, slices: &[&EndpointSlice], family: Family, place: &Place) -> Vec<Port> {
    let Some(spec) = &service.spec else { return Vec::new() };
    let headless = spec.cluster_ip.as_deref().is_none_or(|ip| ip.is_empty() || ip == "None");
    if headless || spec.type_.as_deref() == Some("ExternalName") {
        return Vec::new();
    }
    let all = spec.cluster_ips.iter().flatten().chain(spec.cluster_ip.iter());
    let cluster_ips: Vec<IpAddr> = family.pick(all).into_iter().collect::<BTreeSet<_>>().into_iter().collect();
    if cluster_ips.is_empty() {
        return Vec::new();
    }
    spec.ports.iter().flatten().map(|p| port(service, p, cluster_ips.clone(), slices, family, place)).collect()
}

fn port(
    service: &Service, port: &ServicePort, cluster_ips: Vec<IpAddr>, slices: &[&EndpointSlice], family: Family,
    place: &Place,
) -> Port {
    let spec = service.spec.clone().unwrap_or_default();
    let affinity = spec.session_affinity_config.as_ref().and_then(|c| c.client_ip.as_ref()?.timeout_seconds);
    let affinity = match spec.session_affinity.as_deref() {
        Some("ClientIP") => u32::try_from(affinity.unwrap_or(10_800)).unwrap_or(10_800),
        _ => 0,
    };
    let name = port.name.clone().unwrap_or_default();
    let mut endpoints: Vec<Endpoint> = slices
        .iter()
        .flat_map(|s| slice_endpoints(s, &name, protocol(port.protocol.as_deref()), family, place))
        .collect();
    endpoints.sort();
    endpoints.dedup_by(|a, b| (a.ip, a.port) == (b.ip, b.port));
    Port {
        namespace: service.metadata.namespace.clone().unwrap_or_default(),
        service: service.metadata.name.clone().unwrap_or_default(),
        name,
        protocol: protocol(port.protocol.as_deref()),
        cluster_ips,
        port: port_number(port.port),
        node_port: port_number(port.node_port.unwrap_or(0)),
        external_ips: family.pick(spec.external_ips.iter().flatten()),
        balancer_ips: balancer_ips(service, family),
        source_ranges: source_ranges(spec.load_balancer_source_ranges.iter().flatten(), family),
        affinity,
        internal_local: spec.internal_traffic_policy.as_deref() == Some("Local"),
        external_local: spec.external_traffic_policy.as_deref() == Some("Local"),
        health_port: port_number(spec.health_check_node_port.unwrap_or(0)),
        endpoints,
    }
}

/// Addresses of the load balancer that are handled here: those whose mode is not `Proxy` (KEP-1860).
fn balancer_ips(service: &Service, family: Family) -> Vec<IpAddr> {
    let status = service.status.as_ref().and_then(|s| s.load_balancer.as_ref());
    let ingress = status.and_then(|l| l.ingress.as_ref()).into_iter().flatten();
    let direct = ingress.filter(|i| i.ip_mode.as_deref() != Some("Proxy"));
    family.pick(direct.filter_map(|i| i.ip.as_ref()))
}

fn source_ranges<'a>(texts: impl Iterator<Item = &'a String>, family: Family) -> Vec<IpNet> {
    let ranges = texts.filter_map(|t| t.trim().parse::<IpNet>().ok());
    ranges.map(|r| r.trunc()).filter(|r| Family::of(r.addr()) == family).collect()
}

fn slice_endpoints(
    slice: &EndpointSlice, name: &str, protocol_name: &str, family: Family, place: &Place,
) -> Vec<Endpoint> {
    let ports = slice.ports.iter().flatten();
    let wanted = ports
        .filter(|p| p.name.as_deref().unwrap_or_default() == name && protocol(p.protocol.as_deref()) == protocol_name);
    let Some(number) = wanted.filter_map(|p| p.port).map(port_number).next() else { return Vec::new() };
    slice.endpoints.iter().flatten().filter_map(|e| endpoint(e, number, family, place)).collect()
}

fn endpoint(endpoint: &SliceEndpoint, port: u16, family: Family, place: &Place) -> Option<Endpoint> {
    // Further addresses are the same backend again; consumers use the first (EndpointSlice API).
    let ip: IpAddr = endpoint.addresses.first()?.parse().ok()?;
    let conditions = endpoint.conditions.clone().unwrap_or_default();
    let ready = conditions.ready.unwrap_or(true);
    let hints = endpoint.hints.clone().unwrap_or_default();
    (Family::of(ip) == family).then(|| Endpoint {
        ip,
        port,
        ready,
        serving: conditions.serving.unwrap_or(ready),
        terminating: conditions.terminating.unwrap_or(false),
        local: endpoint.node_name.as_deref() == Some(place.node.as_str()),
        for_zones: hints.for_zones.into_iter().flatten().map(|z| z.name).collect(),
        for_nodes: hints.for_nodes.into_iter().flatten().map(|n| n.name).collect(),
    })
}

#[cfg(test)]
impl Port {
    /// A port of a service with one local endpoint, for tests.
    pub(crate) fn test(protocol: &'static str) -> Self {
        let endpoint = Endpoint {
            ip: IpAddr::from([10, 244, 0, 5]),
            port: 8080,
            ready: true,
            serving: true,
            terminating: false,
            local: true,
            for_zones: vec![],
            for_nodes: vec![],
        };
        Self {
            namespace: "default".into(),
            service: "web".into(),
            name: "http".into(),
            protocol,
            cluster_ips: vec![],
            port: 80,
            node_port: 0,
            external_ips: vec![],
            balancer_ips: vec![],
            source_ranges: vec![],
            affinity: 0,
            internal_local: false,
            external_local: false,
            health_port: 0,
            endpoints: vec![endpoint],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(ip: &str, ready: bool, serving: bool, terminating: bool, local: bool) -> Endpoint {
        let ip = ip.parse().unwrap();
        Endpoint { ip, port: 80, ready, serving, terminating, local, for_zones: vec![], for_nodes: vec![] }
    }

    fn with(endpoints: Vec<Endpoint>) -> Port {
        let service: Service = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "s", "namespace": "n"},
            "spec": {"clusterIP": "10.96.0.5", "clusterIPs": ["10.96.0.5"], "ports": [{"port": 80}]},
        }))
        .unwrap();
        let mut ports = ports(&service, &[], Family::V4, &Place::default());
        Port { endpoints, ..ports.remove(0) }
    }

    #[test]
    fn endpoints_that_end_serve_only_while_nothing_else_is_ready() {
        let place = Place::default();
        let port = with(vec![end("10.0.0.1", true, true, false, false), end("10.0.0.2", false, true, true, true)]);
        let choice = port.choose(&place);
        assert_eq!(choice.cluster.len(), 1);
        assert!(choice.cluster[0].ready);
        assert_eq!(choice.local, [end("10.0.0.2", false, true, true, true)]);
    }

    #[test]
    fn hints_count_only_when_every_ready_endpoint_has_one_and_one_is_for_us() {
        let hinted =
            |ip: &str, zone: &str| Endpoint { for_zones: vec![zone.into()], ..end(ip, true, true, false, false) };
        let place = |zone: &str| Place { node: "n1".into(), zone: zone.into() };
        let port = with(vec![hinted("10.0.0.1", "a"), hinted("10.0.0.2", "b")]);
        assert_eq!(port.choose(&place("a")).cluster.len(), 1);
        assert_eq!(port.choose(&place("c")).cluster.len(), 2);
        let port = with(vec![hinted("10.0.0.1", "a"), end("10.0.0.2", true, true, false, false)]);
        assert_eq!(port.choose(&place("a")).cluster.len(), 2);
    }

    #[test]
    fn slices_are_matched_by_port_name_and_family() {
        let slice: EndpointSlice = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "s-1"}, "addressType": "IPv4",
            "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
            "endpoints": [{"addresses": ["10.0.0.9"], "nodeName": "n1", "conditions": {"ready": true}}],
        }))
        .unwrap();
        let place = Place { node: "n1".into(), zone: String::new() };
        let found = slice_endpoints(&slice, "http", "tcp", Family::V4, &place);
        assert_eq!((found.len(), found[0].port, found[0].local), (1, 8080, true));
        assert!(slice_endpoints(&slice, "http", "udp", Family::V4, &place).is_empty());
        assert!(slice_endpoints(&slice, "http", "tcp", Family::V6, &place).is_empty());
    }
}

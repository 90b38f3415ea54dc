//! The cluster's names, answered from services and their endpoints (Kubernetes DNS-Based Service Discovery 1.1.0).
//!
//! ```text
//!   web.default.svc.cluster.local              A, AAAA: ClusterIPs; headless: ready endpoints; CNAME: external name
//!   _http._tcp.web.default.svc.cluster.local   SRV: named ports only
//!   pod-1.web.default.svc.cluster.local        an endpoint by its host name, or by its address with dashes
//!   10-244-0-7.default.pod.cluster.local       any address in a pod's form
//!   7.0.96.10.in-addr.arpa                     PTR: ClusterIPs and endpoints of headless services
//! ```

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;

use client::Informer;
use hickory_proto::rr::rdata::{A, AAAA, CNAME, PTR, SOA, SRV, TXT};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use k8s_openapi::api::core::v1::{Namespace, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;

/// Seconds that answers live (CoreDNS's default for clusters).
pub const TTL: u32 = 30;

/// An answer of the zone.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// Records; none when the name is there but has nothing of that type.
    Found {
        /// What was asked for.
        answers: Vec<Record>,
        /// Addresses of what the answers name.
        additionals: Vec<Record>,
    },
    /// There is no such name.
    NoName,
    /// The name is not of this zone.
    Elsewhere,
    /// An external name, which the asker wants addresses of.
    External(Record, Name),
}

/// What the zone answers from.
pub struct Zone {
    domain: Name,
    services: Informer<Service>,
    slices: Informer<EndpointSlice>,
    namespaces: Informer<Namespace>,
}

const BY_SERVICE: &str = "service";
const BY_ADDRESS: &str = "address";

fn service_of(slice: &EndpointSlice) -> Option<(String, String)> {
    let labels = slice.metadata.labels.as_ref()?;
    Some((slice.metadata.namespace.clone()?, labels.get("kubernetes.io/service-name")?.clone()))
}

fn slice_services(slice: &EndpointSlice) -> Vec<String> {
    service_of(slice).into_iter().map(|(namespace, name)| format!("{namespace}/{name}")).collect()
}

fn slice_addresses(slice: &EndpointSlice) -> Vec<String> {
    slice.endpoints.iter().flatten().flat_map(|e| e.addresses.iter().cloned()).collect()
}

fn cluster_ips(service: &Service) -> Vec<IpAddr> {
    let Some(spec) = &service.spec else { return Vec::new() };
    let texts = spec.cluster_ips.iter().flatten().chain(spec.cluster_ip.iter());
    let mut ips: Vec<IpAddr> = texts.filter_map(|t| t.parse().ok()).collect();
    ips.sort();
    ips.dedup();
    ips
}

fn service_addresses(service: &Service) -> Vec<String> {
    cluster_ips(service).iter().map(IpAddr::to_string).collect()
}

fn is_headless(service: &Service) -> bool {
    service.spec.as_ref().is_some_and(|s| s.cluster_ip.as_deref() == Some("None"))
}

fn external_name(service: &Service) -> Option<&str> {
    let spec = service.spec.as_ref()?;
    (spec.type_.as_deref() == Some("ExternalName")).then_some(spec.external_name.as_deref()?)
}

/// A ready endpoint of a service, under its name below the service's.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Backend {
    host: String,
    ip: IpAddr,
    /// Name, protocol, number.
    ports: Vec<(String, String, u16)>,
}

fn dashed(ip: IpAddr) -> String {
    ip.to_string().replace(['.', ':'], "-")
}

fn backends(slice: &EndpointSlice) -> Vec<Backend> {
    let ports: Vec<(String, String, u16)> = slice
        .ports
        .iter()
        .flatten()
        .filter_map(|p| {
            let number = u16::try_from(p.port?).ok()?;
            let protocol = p.protocol.clone().unwrap_or_else(|| "TCP".into()).to_lowercase();
            Some((p.name.clone().unwrap_or_default(), protocol, number))
        })
        .collect();
    let ready =
        slice.endpoints.iter().flatten().filter(|e| e.conditions.as_ref().and_then(|c| c.ready).unwrap_or(true));
    let backends = ready.flat_map(|e| {
        let host = e.hostname.clone();
        let ips = e.addresses.iter().filter_map(|a| a.parse::<IpAddr>().ok()).collect::<Vec<_>>();
        ips.into_iter().map(move |ip| (host.clone().unwrap_or_else(|| dashed(ip)), ip)).collect::<Vec<_>>()
    });
    backends.map(|(host, ip)| Backend { host, ip, ports: ports.clone() }).collect()
}

fn found(answers: Vec<Record>) -> Answer {
    Answer::Found { answers, additionals: Vec::new() }
}

fn address_record(name: &Name, ip: IpAddr) -> Record {
    let data = match ip {
        IpAddr::V4(ip) => RData::A(A(ip)),
        IpAddr::V6(ip) => RData::AAAA(AAAA(ip)),
    };
    Record::from_rdata(name.clone(), TTL, data)
}

/// Addresses of the family that was asked for.
fn addresses(name: &Name, ips: impl IntoIterator<Item = IpAddr>, kind: RecordType) -> Vec<Record> {
    let wanted = ips.into_iter().filter(|ip| match kind {
        RecordType::A => ip.is_ipv4(),
        RecordType::AAAA => ip.is_ipv6(),
        RecordType::ANY => true,
        _ => false,
    });
    wanted.map(|ip| address_record(name, ip)).collect()
}

impl Zone {
    /// A zone over these informers.
    pub fn new(
        domain: Name, services: Informer<Service>, slices: Informer<EndpointSlice>, namespaces: Informer<Namespace>,
    ) -> Self {
        services.add_index(BY_ADDRESS, service_addresses);
        slices.add_index(BY_SERVICE, slice_services);
        slices.add_index(BY_ADDRESS, slice_addresses);
        Self { domain, services, slices, namespaces }
    }

    /// Waits until everything is known.
    pub async fn synced(&self) {
        self.services.synced().await;
        self.slices.synced().await;
        self.namespaces.synced().await;
    }

    /// Everything is known.
    pub fn has_synced(&self) -> bool {
        self.services.has_synced() && self.slices.has_synced() && self.namespaces.has_synced()
    }

    /// The zone's SOA record, which says how long a "no" may be kept.
    pub fn soa(&self) -> Record {
        let below =
            |label: &str| Name::from_ascii(label).and_then(|n| n.append_domain(&self.domain)).unwrap_or_default();
        let data = SOA::new(below("ns.dns"), below("hostmaster"), 1, 7200, 1800, 86_400, 5);
        Record::from_rdata(self.domain.clone(), 5, RData::SOA(data))
    }

    /// Answers a question.
    pub fn lookup(&self, name: &Name, kind: RecordType) -> Answer {
        if !self.domain.zone_of(name) {
            return self.reverse(name, kind);
        }
        let depth = self.domain.num_labels();
        let labels: Vec<String> = name.iter().map(|l| String::from_utf8_lossy(l).to_lowercase()).collect();
        let below = labels.len() - usize::from(depth);
        let labels: Vec<&str> = labels[..below].iter().map(String::as_str).collect();
        match labels.as_slice() {
            [] => self.apex(kind),
            ["dns-version"] => {
                let text = || Record::from_rdata(name.clone(), TTL, RData::TXT(TXT::new(vec!["1.1.0".into()])));
                found(if kind == RecordType::TXT { vec![text()] } else { Vec::new() })
            }
            ["svc" | "pod"] | ["dns", ..] => found(Vec::new()),
            [namespace, "svc" | "pod"] => match self.namespaces.find("", namespace) {
                Some(_) => found(Vec::new()),
                None => Answer::NoName,
            },
            [address, namespace, "pod"] => self.pod(name, address, namespace, kind),
            [rest @ .., service, namespace, "svc"] => self.service(name, rest, service, namespace, kind),
            _ => Answer::NoName,
        }
    }

    fn apex(&self, kind: RecordType) -> Answer {
        found(if kind == RecordType::SOA { vec![self.soa()] } else { Vec::new() })
    }

    /// Any address in the form that pods have, in a namespace that is there.
    fn pod(&self, name: &Name, address: &str, namespace: &str, kind: RecordType) -> Answer {
        let dots = address.replace('-', ".").parse::<IpAddr>();
        let Ok(ip) = dots.or_else(|_| address.replace('-', ":").parse()) else { return Answer::NoName };
        match self.namespaces.find("", namespace) {
            Some(_) => found(addresses(name, [ip], kind)),
            None => Answer::NoName,
        }
    }

    fn service(&self, name: &Name, rest: &[&str], service: &str, namespace: &str, kind: RecordType) -> Answer {
        let Some(object) = self.services.find(namespace, service) else { return Answer::NoName };
        if let Some(target) = external_name(&object) {
            return if rest.is_empty() { external(name, target) } else { Answer::NoName };
        }
        let suffix = self.service_name(service, namespace);
        match rest {
            [] if is_headless(&object) => {
                let ips = self.backends(namespace, service).into_iter().map(|b| b.ip);
                found(addresses(name, ips, kind))
            }
            [] => found(addresses(name, cluster_ips(&object), kind)),
            [port, protocol] if port.starts_with('_') && protocol.starts_with('_') => {
                self.ports(name, &object, &suffix, (&port[1..], &protocol[1..]), kind)
            }
            [host] if is_headless(&object) => {
                let all = self.backends(namespace, service);
                let ips: Vec<IpAddr> = all.into_iter().filter(|b| b.host == *host).map(|b| b.ip).collect();
                if ips.is_empty() { Answer::NoName } else { found(addresses(name, ips, kind)) }
            }
            _ => Answer::NoName,
        }
    }

    fn service_name(&self, service: &str, namespace: &str) -> Name {
        let below = Name::from_ascii(format!("{service}.{namespace}.svc"));
        below.and_then(|n| n.append_domain(&self.domain)).unwrap_or_default()
    }

    fn backends(&self, namespace: &str, service: &str) -> Vec<Backend> {
        let slices = self.slices.by_index(BY_SERVICE, &format!("{namespace}/{service}"));
        let mut all: Vec<Backend> = slices.iter().flat_map(|s| backends(s)).collect();
        all.sort_by(|a, b| (a.ip, &a.host).cmp(&(b.ip, &b.host)));
        all.dedup();
        all
    }

    /// SRV records: one for a ClusterIP, one per endpoint of a headless service.
    fn ports(
        &self, name: &Name, service: &Service, suffix: &Name, (port, protocol): (&str, &str), kind: RecordType,
    ) -> Answer {
        let wanted = matches!(kind, RecordType::SRV | RecordType::ANY);
        let srv = |number: u16, weight: u16, target: &Name| {
            Record::from_rdata(name.clone(), TTL, RData::SRV(SRV::new(0, weight, number, target.clone())))
        };
        if !is_headless(service) {
            let ports = service.spec.iter().flat_map(|s| s.ports.iter().flatten());
            let mut matching = ports.filter(|p| {
                let own = p.protocol.as_deref().unwrap_or("TCP").to_lowercase();
                p.name.as_deref() == Some(port) && own == protocol
            });
            let Some(number) = matching.next().and_then(|p| u16::try_from(p.port).ok()) else { return Answer::NoName };
            let glue = cluster_ips(service).into_iter().map(|ip| address_record(suffix, ip)).collect();
            let answers = if wanted { vec![srv(number, 100, suffix)] } else { Vec::new() };
            return Answer::Found { answers, additionals: if wanted { glue } else { Vec::new() } };
        }
        let meta = &service.metadata;
        let all =
            self.backends(meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default());
        let of = |backend: &Backend| {
            let number =
                backend.ports.iter().find(|(n, p, _)| n == port && p == protocol).map(|(.., number)| *number)?;
            let target = Name::from_ascii(&backend.host).and_then(|n| n.append_domain(suffix)).ok()?;
            Some((number, target, backend.ip))
        };
        let hits: Vec<(u16, Name, IpAddr)> = all.iter().filter_map(of).collect();
        if hits.is_empty() {
            return Answer::NoName;
        }
        if !wanted {
            return found(Vec::new());
        }
        // A backend with addresses of both families is one target.
        let mut targets: Vec<(u16, &Name)> = hits.iter().map(|(number, target, _)| (*number, target)).collect();
        let mut seen = HashSet::new();
        targets.retain(|target| seen.insert(*target));
        let weight = u16::try_from(100 / targets.len()).unwrap_or(1).max(1);
        Answer::Found {
            answers: targets.into_iter().map(|(number, target)| srv(number, weight, target)).collect(),
            additionals: hits.iter().map(|(_, target, ip)| address_record(target, *ip)).collect(),
        }
    }

    /// Names of addresses that are ours.
    fn reverse(&self, name: &Name, kind: RecordType) -> Answer {
        let Some(ip) = reverse_address(name) else { return Answer::Elsewhere };
        let text = ip.to_string();
        let mut targets: Vec<Name> = self
            .services
            .by_index(BY_ADDRESS, &text)
            .iter()
            .filter_map(|s| Some(self.service_name(s.metadata.name.as_deref()?, s.metadata.namespace.as_deref()?)))
            .collect();
        for slice in self.slices.by_index(BY_ADDRESS, &text) {
            targets.extend(self.backend_names(&slice, ip));
        }
        if targets.is_empty() {
            return Answer::Elsewhere;
        }
        let record = |target: Name| Record::from_rdata(name.clone(), TTL, RData::PTR(PTR(target)));
        found(if kind == RecordType::PTR { targets.into_iter().map(record).collect() } else { Vec::new() })
    }

    fn backend_names(&self, slice: &Arc<EndpointSlice>, ip: IpAddr) -> Vec<Name> {
        let Some((namespace, service)) = service_of(slice) else { return Vec::new() };
        let headless = self.services.find(&namespace, &service).is_some_and(|s| is_headless(&s));
        if !headless {
            return Vec::new();
        }
        let suffix = self.service_name(&service, &namespace);
        let hosts = backends(slice).into_iter().filter(|b| b.ip == ip);
        hosts.filter_map(|b| Name::from_ascii(&b.host).and_then(|n| n.append_domain(&suffix)).ok()).collect()
    }
}

fn external(name: &Name, target: &str) -> Answer {
    // An address is no name, and the API's words on it are that it is not resolved.
    if target.parse::<IpAddr>().is_ok() {
        return Answer::NoName;
    }
    let Ok(mut target) = Name::from_utf8(target) else { return found(Vec::new()) };
    target.set_fqdn(true);
    let record = Record::from_rdata(name.clone(), TTL, RData::CNAME(CNAME(target.clone())));
    Answer::External(record, target)
}

/// The address that a name below `in-addr.arpa` or `ip6.arpa` stands for.
fn reverse_address(name: &Name) -> Option<IpAddr> {
    let lower = name.to_ascii().to_lowercase();
    let lower = lower.trim_end_matches('.');
    if let Some(octets) = lower.strip_suffix(".in-addr.arpa") {
        let parts: Vec<&str> = octets.split('.').rev().collect();
        return if parts.len() == 4 { parts.join(".").parse().ok() } else { None };
    }
    let digits: Vec<char> =
        lower.strip_suffix(".ip6.arpa")?.split('.').rev().map(|d| d.chars().next().unwrap_or('x')).collect();
    let groups: Vec<String> = digits.chunks(4).map(|c| c.iter().collect()).collect();
    if digits.len() == 32 { groups.join(":").parse().ok() } else { None }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn informer<K: client::informer::Object>(objects: &[Value]) -> Informer<K> {
        Informer::fixed(objects.iter().map(|o| serde_json::from_value(o.clone()).unwrap()))
    }

    pub(crate) fn zone() -> Zone {
        let service = |name: &str, spec: Value| json!({"metadata": {"name": name, "namespace": "ns"}, "spec": spec});
        let services = informer(&[
            service(
                "web",
                json!({"clusterIP": "10.96.0.7", "clusterIPs": ["10.96.0.7"], "ports": [
                {"name": "http", "port": 80, "protocol": "TCP"}, {"port": 81, "protocol": "TCP"}]}),
            ),
            service("db", json!({"clusterIP": "None", "ports": [{"name": "sql", "port": 5432}]})),
            service("out", json!({"type": "ExternalName", "externalName": "example.org"})),
            service("address", json!({"type": "ExternalName", "externalName": "192.0.2.1"})),
            service("many", json!({"clusterIP": "None"})),
            service("both", json!({"clusterIP": "None", "ports": [{"name": "sql", "port": 5432}]})),
        ]);
        let many: Vec<Value> = (0..100).map(|i| json!({"addresses": [format!("10.244.7.{i}")]})).collect();
        let slice = |name: &str, service: &str, family: &str, endpoints: Value| {
            json!({
                "metadata": {"name": name, "namespace": "ns", "labels": {"kubernetes.io/service-name": service}},
                "addressType": family,
                "ports": [{"name": "sql", "port": 5432, "protocol": "TCP"}],
                "endpoints": endpoints,
            })
        };
        let one = |ip: &str| json!([{"addresses": [ip], "hostname": "both-0"}]);
        let slices = informer(&[
            slice("many-1", "many", "IPv4", json!(many)),
            slice("both-4", "both", "IPv4", one("10.244.8.1")),
            slice("both-6", "both", "IPv6", one("fd00::8:1")),
            json!({
                "metadata": {"name": "db-1", "namespace": "ns", "labels": {"kubernetes.io/service-name": "db"}},
                "addressType": "IPv4",
                "ports": [{"name": "sql", "port": 5432, "protocol": "TCP"}],
                "endpoints": [
                    {"addresses": ["10.244.0.5"], "hostname": "db-0", "conditions": {"ready": true}},
                    {"addresses": ["10.244.0.6"], "conditions": {"ready": true}},
                    {"addresses": ["10.244.0.7"], "hostname": "db-2", "conditions": {"ready": false}},
                ],
            }),
        ]);
        let namespaces = informer(&[json!({"metadata": {"name": "ns"}})]);
        Zone::new(Name::from_ascii("cluster.local.").unwrap(), services, slices, namespaces)
    }

    fn ask(name: &str, kind: RecordType) -> Answer {
        zone().lookup(&Name::from_ascii(name).unwrap(), kind)
    }

    fn data(answer: Answer) -> Vec<String> {
        match answer {
            Answer::Found { answers, .. } => answers.iter().map(|r| r.data.to_string()).collect(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_service_has_its_cluster_ip() {
        assert_eq!(data(ask("web.ns.svc.cluster.local.", RecordType::A)), ["10.96.0.7"]);
        assert_eq!(data(ask("WEB.ns.svc.Cluster.Local.", RecordType::A)), ["10.96.0.7"]);
        assert!(data(ask("web.ns.svc.cluster.local.", RecordType::AAAA)).is_empty());
        assert_eq!(ask("nobody.ns.svc.cluster.local.", RecordType::A), Answer::NoName);
        assert_eq!(ask("x.web.ns.svc.cluster.local.", RecordType::A), Answer::NoName);
        assert_eq!(ask("example.org.", RecordType::A), Answer::Elsewhere);
    }

    #[test]
    fn headless_answers_hold_ready_addresses_only() {
        assert_eq!(data(ask("db.ns.svc.cluster.local.", RecordType::A)), ["10.244.0.5", "10.244.0.6"]);
        assert_eq!(data(ask("db-0.db.ns.svc.cluster.local.", RecordType::A)), ["10.244.0.5"]);
        assert_eq!(data(ask("10-244-0-6.db.ns.svc.cluster.local.", RecordType::A)), ["10.244.0.6"]);
        assert_eq!(ask("db-2.db.ns.svc.cluster.local.", RecordType::A), Answer::NoName);
    }

    #[test]
    fn srv_is_for_named_ports_only() {
        let one = data(ask("_http._tcp.web.ns.svc.cluster.local.", RecordType::SRV));
        assert_eq!(one, ["0 100 80 web.ns.svc.cluster.local."]);
        assert_eq!(ask("_http._udp.web.ns.svc.cluster.local.", RecordType::SRV), Answer::NoName);
        let each = data(ask("_sql._tcp.db.ns.svc.cluster.local.", RecordType::SRV));
        assert_eq!(each, ["0 50 5432 db-0.db.ns.svc.cluster.local.", "0 50 5432 10-244-0-6.db.ns.svc.cluster.local."]);
    }

    #[test]
    fn a_backend_of_both_families_is_one_target_with_two_addresses() {
        let Answer::Found { answers, additionals } = ask("_sql._tcp.both.ns.svc.cluster.local.", RecordType::SRV)
        else {
            panic!("not found");
        };
        let targets: Vec<String> = answers.iter().map(|r| r.data.to_string()).collect();
        assert_eq!(targets, ["0 100 5432 both-0.both.ns.svc.cluster.local."]);
        assert_eq!(additionals.len(), 2);
        assert_eq!(data(ask("both-0.both.ns.svc.cluster.local.", RecordType::AAAA)), ["fd00::8:1"]);
    }

    #[test]
    fn an_external_name_that_is_an_address_is_not_resolved() {
        assert_eq!(ask("address.ns.svc.cluster.local.", RecordType::A), Answer::NoName);
    }

    #[test]
    fn external_names_are_aliases() {
        assert!(
            matches!(ask("out.ns.svc.cluster.local.", RecordType::A), Answer::External(_, target) if target.to_ascii() == "example.org.")
        );
    }

    #[test]
    fn addresses_have_names() {
        assert_eq!(data(ask("7.0.96.10.in-addr.arpa.", RecordType::PTR)), ["web.ns.svc.cluster.local."]);
        assert_eq!(data(ask("5.0.244.10.in-addr.arpa.", RecordType::PTR)), ["db-0.db.ns.svc.cluster.local."]);
        assert_eq!(ask("1.2.0.192.in-addr.arpa.", RecordType::PTR), Answer::Elsewhere);
    }

    #[test]
    fn pods_have_names_by_their_address_in_namespaces_that_are_there() {
        assert_eq!(data(ask("10-244-0-9.ns.pod.cluster.local.", RecordType::A)), ["10.244.0.9"]);
        assert_eq!(ask("10-244-0-9.none.pod.cluster.local.", RecordType::A), Answer::NoName);
        assert!(data(ask("ns.svc.cluster.local.", RecordType::A)).is_empty());
    }
}

//! From services to rules: pure, so that what the kernel will hold can be read and tested as text.
//!
//! ```text
//!   nat prerouting, output ─► services ─► service-ips      address, protocol, port ─► service chain
//!                                     └─► service-nodeports         protocol, port ─► external chain
//!   external chain ─► service chain (all endpoints) or local chain (those of this node) ─► endpoint chain ─► dnat
//!   filter (before nat) ─► no-endpoint maps: reject or drop what nobody would answer
//!   nat postrouting ─► masquerade what was marked
//! ```

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use sha2::{Digest, Sha256};

use crate::model::{Choice, Endpoint, Family, Place, Port};
use crate::ruleset::{Chain, Ruleset, Set};

/// What the rules depend on beside services.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Where this is.
    pub place: Place,
    /// What tells traffic of pods: other traffic to a ClusterIP is masqueraded.
    pub local: Local,
    /// Masquerade everything that goes to a ClusterIP.
    pub masquerade_all: bool,
    /// Bit of the packet mark that asks for masquerading.
    pub masquerade_bit: i32,
    /// The node's own addresses.
    pub node_ips: Vec<IpAddr>,
    /// Addresses on which node ports are open; a family that is left out has them on all but the loopback.
    pub node_port_ips: BTreeMap<Family, Vec<IpAddr>>,
    /// Addresses of services: what is no service there is dropped.
    pub service_cidrs: Vec<IpNet>,
}

/// What tells traffic of pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Local {
    /// It comes from these addresses, of which the first of a family counts. Nothing is told where there is none.
    Networks(Vec<IpNet>),
    /// It comes in by an interface of this name; a star at the end stands for any rest.
    Interface(String),
}

impl Local {
    /// The condition that traffic comes from pods (`is` is empty), or that it does not (`is` is `!=`).
    fn condition(&self, family: Family, is: &str) -> Option<String> {
        match self {
            Local::Networks(networks) => {
                let network = networks.iter().find(|network| Family::of(network.addr()) == family)?;
                Some(format!("{} saddr {is}{network}", family.word()))
            }
            Local::Interface(name) => Some(format!("iifname {is}\"{name}\"")),
        }
    }
}

/// The table of a family.
pub fn table(family: Family) -> &'static str {
    match family {
        Family::V4 => "ip kube-proxy",
        Family::V6 => "ip6 kube-proxy",
    }
}

/// The rules for these ports, which are all of one family.
pub fn compute(family: Family, ports: &[Port], options: &Options) -> Ruleset {
    let mut build = Build { family, ip: family.word(), rules: frame(family, options), options };
    for port in ports {
        build.port(port);
    }
    build.rules
}

fn set(kind: &'static str, header: String) -> Set {
    Set { kind, header, elements: BTreeMap::new() }
}

/// All that does not depend on services.
fn frame(family: Family, options: &Options) -> Ruleset {
    let (ip, address) = (family.word(), if family == Family::V4 { "ipv4_addr" } else { "ipv6_addr" });
    let mut rules = Ruleset::default();
    for (name, hook) in [
        ("nat-prerouting", "type nat hook prerouting priority -100 ;"),
        ("nat-output", "type nat hook output priority -100 ;"),
        ("nat-postrouting", "type nat hook postrouting priority 100 ;"),
        ("filter-prerouting-pre-dnat", "type filter hook prerouting priority -110 ;"),
        ("filter-output-pre-dnat", "type filter hook output priority -110 ;"),
        ("filter-input", "type filter hook input priority 0 ;"),
        ("filter-forward", "type filter hook forward priority 0 ;"),
        ("filter-output", "type filter hook output priority 0 ;"),
    ] {
        rules.chains.insert(name.into(), Chain { hook: Some(hook), rules: Vec::new() });
    }
    let by_ip = format!("type {address} . inet_proto . inet_service : verdict ;");
    let by_port = "type inet_proto . inet_service : verdict ;".to_string();
    for (name, header) in [
        ("service-ips", &by_ip),
        ("no-endpoint-services", &by_ip),
        ("firewall-ips", &by_ip),
        ("service-nodeports", &by_port),
        ("no-endpoint-nodeports", &by_port),
    ] {
        rules.sets.insert(name.into(), set("map", header.clone()));
    }
    rules.sets.insert("cluster-ips".into(), set("set", format!("type {address} ;")));
    // Traffic to node ports in the filter, and in nat, where it may come by with any destination.
    let (filtered, translated) = match options.node_port_ips.get(&family) {
        Some(ips) => {
            let mut open = set("set", format!("type {address} ;"));
            open.elements.extend(ips.iter().map(|ip| (ip.to_string(), String::new())));
            rules.sets.insert("nodeport-ips".into(), open);
            (format!("{ip} daddr @nodeport-ips"), format!("{ip} daddr @nodeport-ips"))
        }
        None => {
            let outside = format!("{ip} daddr != {}", if family == Family::V4 { "127.0.0.0/8" } else { "::1" });
            (outside.clone(), format!("fib daddr type local {outside}"))
        }
    };

    for chain in ["nat-prerouting", "nat-output"] {
        rules.rule(chain, "jump services");
    }
    rules.rule("nat-postrouting", "jump masquerading");
    for chain in ["filter-prerouting-pre-dnat", "filter-output-pre-dnat"] {
        rules.rule(chain, "ct state new jump firewall-check");
    }
    for chain in ["filter-input", "filter-forward", "filter-output"] {
        rules.rule(chain, "ct state new jump service-endpoints-check");
    }
    rules.rule("filter-input", "ct state new jump nodeport-endpoints-check");
    for chain in ["filter-forward", "filter-output"] {
        rules.rule(chain, "ct state new jump cluster-ips-check");
    }

    let outsiders = options.local.condition(family, "!= ").map(|from| format!("{from} "));
    if let Some(who) = if options.masquerade_all { Some(String::new()) } else { outsiders } {
        rules.rule("services", format!("{ip} daddr @cluster-ips {who}jump mark-for-masquerade"));
    }
    rules.rule("services", format!("{ip} daddr . meta l4proto . th dport vmap @service-ips"));
    rules.rule("services", format!("{translated} meta l4proto . th dport vmap @service-nodeports"));
    rules.rule("service-endpoints-check", format!("{ip} daddr . meta l4proto . th dport vmap @no-endpoint-services"));
    rules.rule("nodeport-endpoints-check", format!("{filtered} meta l4proto . th dport vmap @no-endpoint-nodeports"));
    rules.rule("firewall-check", format!("{ip} daddr . meta l4proto . th dport vmap @firewall-ips"));
    rules.rule("cluster-ips-check", format!("{ip} daddr @cluster-ips reject"));
    let unused: Vec<String> =
        options.service_cidrs.iter().filter(|c| Family::of(c.addr()) == family).map(IpNet::to_string).collect();
    if !unused.is_empty() {
        rules.rule("cluster-ips-check", format!("{ip} daddr {{ {} }} drop", unused.join(", ")));
    }
    rules.rule("reject-chain", "reject");
    let mark = 1u32 << options.masquerade_bit;
    rules.rule("mark-for-masquerade", format!("meta mark set meta mark or {mark:#x}"));
    rules.rule("masquerading", format!("meta mark and {mark:#x} == 0 return"));
    rules.rule("masquerading", format!("meta mark set meta mark xor {mark:#x}"));
    rules.rule("masquerading", "masquerade fully-random");
    rules
}

/// A short, stable name for a chain: a hash that tells apart, and words for the reader, within nft's limits.
fn chain_name(prefix: &str, port: &Port, rest: &str) -> String {
    let words = format!("{}/{}/{}/{}{rest}", port.namespace, port.service, port.protocol, port.name);
    let hash: String = Sha256::digest(&words).iter().take(4).map(|b| format!("{b:02X}")).collect();
    let mut name = format!("{prefix}-{hash}-{words}").replace(':', ".");
    name.truncate(120);
    name
}

struct Build<'a> {
    family: Family,
    ip: &'static str,
    rules: Ruleset,
    options: &'a Options,
}

impl Build<'_> {
    fn map(&mut self, map: &str, key: String, verdict: String) {
        if let Some(set) = self.rules.sets.get_mut(map) {
            set.elements.insert(key, verdict);
        }
    }

    fn key(&self, ip: IpAddr, port: &Port) -> String {
        format!("{ip} . {} . {}", port.protocol, port.port)
    }

    fn port(&mut self, port: &Port) {
        for ip in &port.cluster_ips {
            if let Some(set) = self.rules.sets.get_mut("cluster-ips") {
                set.elements.insert(ip.to_string(), String::new());
            }
        }
        let choice = port.choose(&self.options.place);
        self.internal(port, &choice);
        self.external(port, &choice);
    }

    /// Traffic to the ClusterIP.
    fn internal(&mut self, port: &Port, choice: &Choice) {
        let endpoints = if port.internal_local { &choice.local } else { &choice.cluster };
        let verdict = match (endpoints.is_empty(), choice.cluster.is_empty()) {
            (true, false) => "drop".to_string(),
            (true, true) => "goto reject-chain".to_string(),
            _ => {
                let target = if port.internal_local { "local" } else { "service" };
                let chain = self.endpoints_chain(target, port, endpoints);
                for ip in &port.cluster_ips {
                    self.map("service-ips", self.key(*ip, port), format!("goto {chain}"));
                }
                return;
            }
        };
        for ip in &port.cluster_ips {
            self.map("no-endpoint-services", self.key(*ip, port), verdict.clone());
        }
    }

    /// Traffic from outside: node port, external addresses, load balancer.
    fn external(&mut self, port: &Port, choice: &Choice) {
        let ips: Vec<IpAddr> = port.external_ips.iter().chain(&port.balancer_ips).copied().collect();
        if ips.is_empty() && port.node_port == 0 {
            return;
        }
        let endpoints = if port.external_local { &choice.local } else { &choice.cluster };
        if choice.cluster.is_empty() && endpoints.is_empty() {
            return self.unanswered(port, &ips, "goto reject-chain");
        }
        if port.external_local && endpoints.is_empty() {
            // What comes from this node or its pods may go anywhere and has another destination by then, so only real
            // outsiders are dropped.
            self.unanswered(port, &ips, "drop");
        }
        let chain = self.external_chain(port, choice);
        for ip in ips {
            self.map("service-ips", self.key(ip, port), format!("goto {chain}"));
        }
        if port.node_port != 0 {
            self.map("service-nodeports", format!("{} . {}", port.protocol, port.node_port), format!("goto {chain}"));
        }
        self.firewall(port);
    }

    fn unanswered(&mut self, port: &Port, ips: &[IpAddr], verdict: &str) {
        for ip in ips {
            self.map("no-endpoint-services", self.key(*ip, port), verdict.to_string());
        }
        if port.node_port != 0 {
            self.map("no-endpoint-nodeports", format!("{} . {}", port.protocol, port.node_port), verdict.to_string());
        }
    }

    fn external_chain(&mut self, port: &Port, choice: &Choice) -> String {
        let chain = chain_name("external", port, "");
        if !port.external_local {
            let all = self.endpoints_chain("service", port, &choice.cluster);
            self.rules.rule(&chain, "jump mark-for-masquerade");
            self.rules.rule(&chain, format!("goto {all}"));
            return chain;
        }
        if !choice.cluster.is_empty() {
            let all = self.endpoints_chain("service", port, &choice.cluster);
            if let Some(local) = self.options.local.condition(self.family, "") {
                self.rules.rule(&chain, format!("{local} goto {all}"));
            }
            self.rules.rule(&chain, "fib saddr type local jump mark-for-masquerade");
            self.rules.rule(&chain, format!("fib saddr type local goto {all}"));
        }
        if !choice.local.is_empty() {
            let local = self.endpoints_chain("local", port, &choice.local);
            self.rules.rule(&chain, format!("goto {local}"));
        }
        chain
    }

    /// `loadBalancerSourceRanges`: everybody else is dropped before addresses are translated.
    fn firewall(&mut self, port: &Port) {
        if port.source_ranges.is_empty() || port.balancer_ips.is_empty() {
            return;
        }
        let chain = chain_name("firewall", port, "");
        let mut ranges: Vec<String> = port.source_ranges.iter().map(IpNet::to_string).collect();
        // A balancer's address may be one of this node's, and then what comes from the node comes from there.
        if self.options.node_ips.iter().any(|ip| port.source_ranges.iter().any(|range| range.contains(ip))) {
            ranges.extend(port.balancer_ips.iter().map(IpAddr::to_string));
        }
        self.rules.rule(&chain, format!("{} saddr {{ {} }} return", self.ip, ranges.join(", ")));
        self.rules.rule(&chain, "drop");
        for ip in &port.balancer_ips {
            self.map("firewall-ips", self.key(*ip, port), format!("goto {chain}"));
        }
    }

    /// The chain that spreads over endpoints; made once however many lead to it.
    fn endpoints_chain(&mut self, prefix: &str, port: &Port, endpoints: &[Endpoint]) -> String {
        let chain = chain_name(prefix, port, "");
        if self.rules.chains.contains_key(&chain) {
            return chain;
        }
        let targets: Vec<String> = endpoints.iter().map(|e| self.endpoint_chain(port, e)).collect();
        if port.affinity > 0 {
            for (endpoint, target) in endpoints.iter().zip(&targets) {
                let known = affinity_set(port, endpoint);
                self.rules.rule(&chain, format!("{} saddr @{known} goto {target}", self.ip));
            }
        }
        let spread: Vec<String> = targets.iter().enumerate().map(|(i, t)| format!("{i} : goto {t}")).collect();
        self.rules.rule(&chain, format!("numgen random mod {} vmap {{ {} }}", targets.len(), spread.join(", ")));
        chain
    }

    fn endpoint_chain(&mut self, port: &Port, endpoint: &Endpoint) -> String {
        let chain = chain_name("endpoint", port, &format!("__{}/{}", endpoint.ip, endpoint.port));
        if self.rules.chains.contains_key(&chain) {
            return chain;
        }
        // A pod that reaches itself through its service must see an answer from elsewhere.
        self.rules.rule(&chain, format!("{} saddr {} jump mark-for-masquerade", self.ip, endpoint.ip));
        if port.affinity > 0 {
            let known = affinity_set(port, endpoint);
            let address = if self.ip == "ip" { "ipv4_addr" } else { "ipv6_addr" };
            let header = format!("type {address} ; flags dynamic,timeout ; timeout {}s ;", port.affinity);
            self.rules.sets.insert(known.clone(), set("set", header));
            self.rules.rule(&chain, format!("update @{known} {{ {} saddr }}", self.ip));
        }
        let target = match endpoint.ip {
            IpAddr::V4(ip) => format!("{ip}:{}", endpoint.port),
            IpAddr::V6(ip) => format!("[{ip}]:{}", endpoint.port),
        };
        self.rules.rule(&chain, format!("meta l4proto {} dnat to {target}", port.protocol));
        chain
    }
}

/// Affinity ends with its timeout's change, so the timeout is in the name.
fn affinity_set(port: &Port, endpoint: &Endpoint) -> String {
    chain_name("affinity", port, &format!("__{}/{}_{}", endpoint.ip, endpoint.port, port.affinity))
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn options() -> Options {
        Options {
            place: Place { node: "n1".into(), zone: String::new() },
            local: Local::Networks(vec!["10.244.0.0/16".parse().unwrap(), "fd00::/48".parse().unwrap()]),
            masquerade_all: false,
            masquerade_bit: 14,
            node_ips: vec!["192.0.2.2".parse().unwrap()],
            node_port_ips: BTreeMap::from([(Family::V4, vec!["192.0.2.2".parse().unwrap()])]),
            service_cidrs: vec!["10.96.0.0/16".parse().unwrap(), "10.97.0.0/16".parse().unwrap()],
        }
    }

    fn port(endpoints: &[(&str, bool)]) -> Port {
        let template = Port::test("tcp").endpoints.remove(0);
        let endpoint =
            |(ip, local): &(&str, bool)| Endpoint { ip: ip.parse().unwrap(), local: *local, ..template.clone() };
        Port {
            cluster_ips: vec!["10.96.0.7".parse().unwrap()],
            node_port: 30080,
            endpoints: endpoints.iter().map(endpoint).collect(),
            ..Port::test("tcp")
        }
    }

    fn text(rules: &Ruleset) -> String {
        crate::ruleset::transaction("ip kube-proxy", None, rules).unwrap()
    }

    #[test]
    fn a_service_spreads_over_its_endpoints() {
        let rules = compute(Family::V4, &[port(&[("10.244.0.5", true), ("10.244.1.6", false)])], &options());
        let text = text(&rules);
        assert!(text.contains("numgen random mod 2 vmap"));
        assert!(text.contains("dnat to 10.244.0.5:8080") && text.contains("dnat to 10.244.1.6:8080"));
        assert!(rules.sets["service-ips"].elements.contains_key("10.96.0.7 . tcp . 80"));
        assert!(rules.sets["service-nodeports"].elements.contains_key("tcp . 30080"));
        assert!(rules.sets["no-endpoint-services"].elements.is_empty());
    }

    #[test]
    fn without_endpoints_it_is_refused_at_once() {
        let rules = compute(Family::V4, &[port(&[])], &options());
        assert_eq!(rules.sets["no-endpoint-services"].elements["10.96.0.7 . tcp . 80"], "goto reject-chain");
        assert_eq!(rules.sets["no-endpoint-nodeports"].elements["tcp . 30080"], "goto reject-chain");
        assert!(rules.sets["service-ips"].elements.is_empty());
    }

    #[test]
    fn local_policy_without_local_pod_drops_outsiders_only() {
        let balancer_ips = vec!["203.0.113.7".parse().unwrap()];
        let external = Port { external_local: true, balancer_ips, ..port(&[("10.244.1.6", false)]) };
        let rules = compute(Family::V4, &[external], &options());
        assert_eq!(rules.sets["no-endpoint-nodeports"].elements["tcp . 30080"], "drop");
        assert_eq!(rules.sets["no-endpoint-services"].elements["203.0.113.7 . tcp . 80"], "drop");
        assert!(text(&rules).contains("fib saddr type local goto service-"));
        let internal = Port { internal_local: true, ..port(&[("10.244.1.6", false)]) };
        let rules = compute(Family::V4, &[internal], &options());
        assert_eq!(rules.sets["no-endpoint-services"].elements["10.96.0.7 . tcp . 80"], "drop");
    }

    #[test]
    fn traffic_to_cluster_ips_is_masqueraded_unless_it_comes_from_pods() {
        let services = |family: Family, options: &Options| frame(family, options).chains["services"].rules.join("\n");
        let (v4, v6) = (services(Family::V4, &options()), services(Family::V6, &options()));
        assert!(v4.contains("ip daddr @cluster-ips ip saddr != 10.244.0.0/16 jump mark-for-masquerade"), "{v4}");
        assert!(v6.contains("ip6 daddr @cluster-ips ip6 saddr != fd00::/48 jump mark-for-masquerade"), "{v6}");
        let all = Options { masquerade_all: true, ..options() };
        assert!(services(Family::V4, &all).contains("ip daddr @cluster-ips jump mark-for-masquerade"));
        let unknown = Options { local: Local::Networks(vec![]), ..options() };
        assert!(!services(Family::V4, &unknown).contains("masquerade"));
        let bridge = Options { local: Local::Interface("cni0".into()), ..options() };
        assert!(services(Family::V6, &bridge).contains("@cluster-ips iifname != \"cni0\" jump"));
        let external = Port { external_local: true, ..port(&[("10.244.1.6", false)]) };
        assert!(text(&compute(Family::V4, &[external], &bridge)).contains("iifname \"cni0\" goto service-"));
    }

    #[test]
    fn node_ports_are_open_on_their_addresses_or_on_all_but_the_loopback() {
        let here = compute(Family::V4, &[], &options());
        assert!(here.sets["nodeport-ips"].elements.contains_key("192.0.2.2"));
        assert!(text(&here).contains("ip daddr @nodeport-ips meta l4proto . th dport vmap @service-nodeports"));
        let everywhere = compute(Family::V6, &[], &options());
        assert!(!everywhere.sets.contains_key("nodeport-ips"));
        let text = text(&everywhere);
        assert!(text.contains("fib daddr type local ip6 daddr != ::1 meta l4proto . th dport vmap @service-nodeports"));
        assert!(text.contains("ip6 daddr != ::1 meta l4proto . th dport vmap @no-endpoint-nodeports"));
    }

    #[test]
    fn addresses_of_services_that_nobody_has_are_dropped() {
        let check = frame(Family::V4, &options()).chains["cluster-ips-check"].rules.clone();
        assert_eq!(check, ["ip daddr @cluster-ips reject", "ip daddr { 10.96.0.0/16, 10.97.0.0/16 } drop"]);
        assert_eq!(frame(Family::V6, &options()).chains["cluster-ips-check"].rules.len(), 1);
    }

    #[test]
    fn a_node_within_the_source_ranges_reaches_a_balancer_that_has_its_address() {
        let balanced = |range: &str| {
            let balancer_ips = vec!["203.0.113.7".parse().unwrap()];
            let source_ranges = vec![range.parse().unwrap()];
            Port { balancer_ips, source_ranges, ..port(&[("10.244.0.5", true)]) }
        };
        let inside = text(&compute(Family::V4, &[balanced("192.0.2.0/24")], &options()));
        assert!(inside.contains("ip saddr { 192.0.2.0/24, 203.0.113.7 } return"), "{inside}");
        let outside = text(&compute(Family::V4, &[balanced("198.51.100.0/24")], &options()));
        assert!(outside.contains("ip saddr { 198.51.100.0/24 } return"), "{outside}");
    }

    #[test]
    fn affinity_is_kept_while_other_things_change_and_ends_when_it_is_switched_off() {
        let sticky = Port { affinity: 10_800, ..port(&[("10.244.0.5", true)]) };
        let more = Port { affinity: 10_800, ..port(&[("10.244.0.5", true), ("10.244.0.6", true)]) };
        let (old, new) = (compute(Family::V4, &[sticky], &options()), compute(Family::V4, &[more], &options()));
        let change = crate::ruleset::transaction("ip kube-proxy", Some(&old), &new).unwrap();
        assert!(!change.contains("delete table") && !change.contains("delete set"));
        let plain = compute(Family::V4, &[port(&[("10.244.0.5", true)])], &options());
        let change = crate::ruleset::transaction("ip kube-proxy", Some(&old), &plain).unwrap();
        assert!(change.contains("delete set ip kube-proxy affinity-"));
    }
}

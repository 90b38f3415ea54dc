//! The part of a Service's spec that allocation reads and writes.

use std::net::IpAddr;

use api::Value;
use ipnet::IpNet;

use crate::registry::object;

/// An address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// `IPv4` or `IPv6`.
    pub fn name(self) -> &'static str {
        match self {
            Family::V4 => "IPv4",
            Family::V6 => "IPv6",
        }
    }

    /// The other one.
    pub fn other(self) -> Self {
        match self {
            Family::V4 => Family::V6,
            Family::V6 => Family::V4,
        }
    }

    /// The family of a name.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "IPv4" => Some(Family::V4),
            "IPv6" => Some(Family::V6),
            _ => None,
        }
    }

    /// The family of an address in text; what is no address counts as IPv4, and is refused later.
    pub fn of(address: &str) -> Self {
        if matches!(address.parse(), Ok(IpAddr::V6(_))) { Family::V6 } else { Family::V4 }
    }

    /// The family of a range.
    pub fn of_net(net: &IpNet) -> Self {
        if matches!(net, IpNet::V6(_)) { Family::V6 } else { Family::V4 }
    }
}

/// A port of a Service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Port {
    /// Name.
    pub name: String,
    /// Port.
    pub port: i64,
    /// Node port; 0 when there is none.
    pub node_port: u16,
}

/// What allocation knows of a Service.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Spec {
    /// `type`.
    pub kind: String,
    /// `clusterIP`; `None` for headless ones.
    pub cluster_ip: String,
    /// `clusterIPs`.
    pub cluster_ips: Vec<String>,
    /// `ipFamilies`.
    pub families: Vec<Family>,
    /// `ipFamilyPolicy`; empty when it is not set.
    pub policy: String,
    /// It has a selector.
    pub selects: bool,
    /// Ports.
    pub ports: Vec<Port>,
    /// `allocateLoadBalancerNodePorts`.
    pub load_balancer_ports: bool,
    /// `externalTrafficPolicy` is `Local`.
    pub local: bool,
    /// `healthCheckNodePort`; 0 when there is none.
    pub health_port: u16,
}

impl Spec {
    /// Reads it from a Service.
    pub fn read(service: &Value) -> Self {
        let text = |field: &str| object::text(service, &["spec", field]).to_string();
        let texts = |field: &str| {
            let items = object::list(service, &["spec", field]).iter();
            items.filter_map(|v| v.as_str().map(str::to_string)).collect::<Vec<_>>()
        };
        let selector = object::at(service, &["spec", "selector"]).and_then(Value::as_object);
        Self {
            kind: text("type"),
            cluster_ip: text("clusterIP"),
            cluster_ips: texts("clusterIPs"),
            families: texts("ipFamilies").iter().filter_map(|name| Family::named(name)).collect(),
            policy: text("ipFamilyPolicy"),
            selects: selector.is_some_and(|s| !s.is_empty()),
            ports: object::list(service, &["spec", "ports"]).iter().map(read_port).collect(),
            load_balancer_ports: object::at(service, &["spec", "allocateLoadBalancerNodePorts"])
                .and_then(Value::as_bool)
                .unwrap_or(true),
            local: text("externalTrafficPolicy") == "Local",
            health_port: number(object::at(service, &["spec", "healthCheckNodePort"])),
        }
    }

    /// Writes back what allocation may have changed.
    pub fn write(&self, service: &mut Value) {
        let spec = object::fields(service, &["spec"]);
        let mut set = |field: &str, value: Option<Value>| {
            match value {
                Some(value) => spec.insert(field.into(), value),
                None => spec.remove(field),
            };
        };
        let text = |s: &str| (!s.is_empty()).then(|| Value::from(s));
        let names: Vec<&str> = self.families.iter().map(|f| f.name()).collect();
        set("clusterIP", text(&self.cluster_ip));
        set("clusterIPs", (!self.cluster_ips.is_empty()).then(|| self.cluster_ips.clone().into()));
        set("ipFamilies", (!names.is_empty()).then(|| names.into()));
        set("ipFamilyPolicy", text(&self.policy));
        set("healthCheckNodePort", (self.health_port != 0).then(|| self.health_port.into()));
        let ports = spec.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten();
        for (value, port) in ports.zip(&self.ports).filter(|(_, port)| port.node_port != 0) {
            value["nodePort"] = port.node_port.into();
        }
    }

    /// It is of a type that has node ports.
    pub fn has_node_ports(&self) -> bool {
        matches!(self.kind.as_str(), "NodePort" | "LoadBalancer")
    }

    /// Ports without a node port get one.
    pub fn allocates_node_ports(&self) -> bool {
        self.kind == "NodePort" || (self.kind == "LoadBalancer" && self.load_balancer_ports)
    }

    /// It is of a type that has ClusterIPs.
    pub fn has_addresses(&self) -> bool {
        matches!(self.kind.as_str(), "ClusterIP" | "NodePort" | "LoadBalancer")
    }

    /// It is headless.
    pub fn headless(&self) -> bool {
        self.cluster_ip == "None" || self.cluster_ips.first().is_some_and(|ip| ip == "None")
    }

    /// It needs a port on which nodes tell load balancers how they are.
    pub fn needs_health_port(&self) -> bool {
        self.kind == "LoadBalancer" && self.local
    }

    /// Node ports that it has.
    pub fn node_ports(&self) -> Vec<u16> {
        self.ports.iter().map(|p| p.node_port).filter(|port| *port != 0).collect()
    }

    /// The node port that some port of that number names; 0 when none does.
    pub fn requested_node_port(&self, port: i64) -> u16 {
        self.ports.iter().find(|p| p.port == port && p.node_port != 0).map_or(0, |p| p.node_port)
    }

    /// Addresses that it holds.
    pub fn addresses(&self) -> Vec<String> {
        if self.kind == "ExternalName" || self.headless() {
            return Vec::new();
        }
        self.cluster_ips.iter().filter(|ip| !ip.is_empty()).cloned().collect()
    }
}

fn read_port(port: &Value) -> Port {
    Port {
        name: object::text(port, &["name"]).to_string(),
        port: port.get("port").and_then(Value::as_i64).unwrap_or_default(),
        node_port: number(port.get("nodePort")),
    }
}

/// A port number; what does not fit is left to validation.
fn number(value: Option<&Value>) -> u16 {
    value.and_then(Value::as_i64).and_then(|n| u16::try_from(n).ok()).unwrap_or_default()
}

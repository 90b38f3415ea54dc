//! From the name in a proxy's path to an address: `name`, `name:port` or `scheme:name:port`.

use std::net::IpAddr;

use api::Value;
use api::field::quote;
use api::status::Status;

use crate::registry::object;
use crate::streams::Call;
use crate::streams::locate::{Backend, Location, Trust};
use crate::streams::wire;

/// A name taken apart.
#[derive(Debug, PartialEq, Eq)]
struct Id<'a> {
    https: bool,
    name: &'a str,
    port: &'a str,
}

fn split(id: &str) -> Option<Id<'_>> {
    let parts: Vec<&str> = id.split(':').collect();
    let (scheme, name, port) = match parts.as_slice() {
        [name] => ("", *name, ""),
        [name, port] => ("", *name, *port),
        [scheme, name, port] => (*scheme, *name, *port),
        _ => return None,
    };
    let known = matches!(scheme, "" | "http" | "https") && !name.is_empty();
    known.then_some(Id { https: scheme == "https", name, port })
}

fn id<'a>(kind: &str, id: &'a str) -> Result<Id<'a>, Status> {
    split(id).ok_or_else(|| Status::bad_request(format!("invalid {kind} request {}", quote(id))))
}

/// An address of a machine that can be anywhere: requests to ourselves and our neighbours on the link are not passed on.
fn is_global(ip: IpAddr) -> bool {
    let near = match ip.to_canonical() {
        IpAddr::V4(ip) => ip.is_broadcast() || ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    let ip = ip.to_canonical();
    !(near || ip.is_unspecified() || ip.is_loopback() || ip.is_multicast())
}

fn not_allowed() -> Status {
    Status::bad_request("address not allowed")
}

fn stranger(https: bool, host: &str, port: String) -> Backend {
    let location = Location { https, host: host.to_string(), port, ..Location::default() };
    Backend { location, trust: Trust::Stranger }
}

/// A pod's first address, at the port that is named or the first that the pod has.
///
/// # Errors
/// 400, 404 and 503 in upstream's words.
pub async fn pod(call: &Call<'_>) -> Result<Backend, Status> {
    let id = id("pod", &call.req.info.name)?;
    let pod = call.get("pods", &call.req.info.namespace, id.name).await?;
    let port = if id.port.is_empty() { first_port(&pod) } else { id.port.to_string() };
    let ip = object::list(&pod, &["status", "podIPs"]).first().map_or("", |ip| object::text(ip, &["ip"]));
    match ip.parse().is_ok_and(is_global) {
        true => Ok(stranger(id.https, ip, port)),
        false => Err(not_allowed()),
    }
}

fn first_port(pod: &Value) -> String {
    let containers = object::list(pod, &["spec", "containers"]).iter();
    let port = containers.flat_map(|c| object::list(c, &["ports"])).find_map(|port| port["containerPort"].as_u64());
    port.map(|port| port.to_string()).unwrap_or_default()
}

/// A node's address: the kubelet's port unless another is named.
///
/// # Errors
/// 400, 404 and 503 in upstream's words.
pub async fn node(call: &Call<'_>) -> Result<Backend, Status> {
    let id = id("node", &call.req.info.name)?;
    let kubelet = call.kubelet(id.name).await?;
    let backend = kubelet.at(String::new(), Vec::new());
    let addresses = wire::addresses(&backend.location).await.map_err(Status::bad_request)?;
    if !addresses.iter().all(|address| is_global(address.ip())) {
        return Err(not_allowed());
    }
    match id.port {
        "" => Ok(backend),
        port if port == backend.location.port => Ok(backend),
        port => Ok(stranger(id.https, &backend.location.host, port.to_string())),
    }
}

/// A pod that stands behind a Service, at random.
///
/// # Errors
/// 400, 404 and 503 in upstream's words.
pub async fn service(call: &Call<'_>) -> Result<Backend, Status> {
    let id = id("service", &call.req.info.name)?;
    let namespace = &call.req.info.namespace;
    let port = match id.port.parse::<i64>() {
        Ok(number) => port_name(&call.get("services", namespace, id.name).await?, number, id.name)?,
        Err(_) => id.port.to_string(),
    };
    let endpoints = call.get("endpoints", namespace, id.name).await?;
    let subsets = object::list(&endpoints, &["subsets"]);
    let none = |name: &str| unavailable(format!("no endpoints available for service {}", quote(name)));
    if subsets.is_empty() {
        return Err(none(id.name));
    }
    for (address, number) in candidates(subsets, &port) {
        if is_pod(call, address).await {
            return Ok(stranger(id.https, object::text(address, &["ip"]), number.to_string()));
        }
    }
    Err(none(&call.req.info.name))
}

fn unavailable(text: String) -> Status {
    Status::new(503, "ServiceUnavailable", text)
}

/// The name of a Service's port by its number.
fn port_name(service: &Value, number: i64, name: &str) -> Result<String, Status> {
    let ports = object::list(service, &["spec", "ports"]);
    let found = ports.iter().find(|port| port["port"].as_i64() == Some(number));
    let found = found.map(|port| object::text(port, &["name"]).to_string());
    found.ok_or_else(|| unavailable(format!("no service port {number} found for service {}", quote(name))))
}

/// Ready addresses with a port of that name, in an order that begins anywhere.
fn candidates<'e>(subsets: &'e [Value], port: &str) -> Vec<(&'e Value, u64)> {
    let turned = |list: &'e [Value]| {
        let start = if list.is_empty() { 0 } else { rand::random_range(0..list.len()) };
        list[start..].iter().chain(&list[..start])
    };
    let mut found = Vec::new();
    for subset in turned(subsets) {
        let ports = object::list(subset, &["ports"]).iter().filter(|p| object::text(p, &["name"]) == port);
        for number in ports.filter_map(|p| p["port"].as_u64()) {
            found.extend(turned(object::list(subset, &["addresses"])).map(|address| (address, number)));
        }
    }
    found
}

/// Only pods of the namespace are reached, and only at their own addresses.
async fn is_pod(call: &Call<'_>, address: &Value) -> bool {
    let target = |field: &str| object::text(address, &["targetRef", field]);
    if target("namespace") != call.req.info.namespace || target("name").is_empty() {
        return false;
    }
    let Ok(pod) = call.get("pods", target("namespace"), target("name")).await else { return false };
    object::list(&pod, &["status", "podIPs"]).iter().any(|ip| ip["ip"] == address["ip"])
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn names_have_up_to_three_parts() {
        let parts = |text| split(text).map(|id| (id.https, id.name, id.port));
        assert_eq!(parts("a"), Some((false, "a", "")));
        assert_eq!(parts("a:80"), Some((false, "a", "80")));
        assert_eq!(parts("https:a:web"), Some((true, "a", "web")));
        assert_eq!(parts("https:a:"), Some((true, "a", "")));
        assert_eq!((parts("ftp:a:1"), parts(":1"), parts("a:b:c:d")), (None, None, None));
    }

    #[test]
    fn only_addresses_that_can_be_anywhere_are_reached() {
        let global = |text: &str| is_global(text.parse().expect("an address"));
        for ip in ["10.0.0.1", "192.168.0.1", "8.8.8.8", "fd00::1", "2001:db8::1"] {
            assert!(global(ip), "{ip}");
        }
        for ip in ["127.0.0.1", "169.254.169.254", "0.0.0.0", "224.0.0.1", "255.255.255.255", "::1", "fe80::1", "::"] {
            assert!(!global(ip), "{ip}");
        }
        assert!(!global("::ffff:127.0.0.1"));
    }

    #[test]
    fn endpoints_are_those_of_the_port_that_are_ready() {
        let subsets = json!([
            {"notReadyAddresses": [{"ip": "10.0.0.9"}], "ports": [{"name": "web", "port": 80}]},
            {"addresses": [{"ip": "10.0.0.1"}, {"ip": "10.0.0.2"}],
             "ports": [{"name": "web", "port": 8080}, {"name": "other", "port": 1}]},
        ]);
        let subsets = subsets.as_array().expect("a list");
        let found = candidates(subsets, "web");
        assert_eq!((found.len(), found[0].1), (2, 8080));
        assert!(candidates(subsets, "").is_empty());
        assert_eq!(first_port(&json!({"spec": {"containers": [{}, {"ports": [{"containerPort": 5}]}]}})), "5");
    }

    #[test]
    fn a_port_that_the_service_does_not_have_is_unavailable() {
        let service = json!({"spec": {"ports": [{"name": "web", "port": 80}]}});
        assert_eq!(port_name(&service, 80, "s").expect("found"), "web");
        let status = port_name(&service, 81, "s").expect_err("none");
        assert_eq!((status.code, status.message.as_str()), (503, "no service port 81 found for service \"s\""));
    }
}

//! Endpoints.

use crate::Value;
use crate::field::{Error, Errors, Path};
use crate::kinds::view::{View, fill, items_mut};
use crate::kinds::{ip, rules};
use crate::meta::check;
use crate::meta::names;
use crate::resources::{Context, Strategy};

/// Endpoints.
pub struct Endpoints;

impl Strategy for Endpoints {
    fn default(&self, object: &mut Value) {
        for subset in items_mut(object, "subsets") {
            for port in items_mut(subset, "ports") {
                fill(port, "protocol", "TCP");
            }
        }
    }

    fn validate_create(&self, _cx: &Context<'_>, new: &Value) -> Errors {
        let mut out = Errors::new();
        subsets(&mut out, new.items("subsets"));
        out
    }

    fn validate_update(&self, _cx: &Context<'_>, new: &Value, old: &Value) -> Errors {
        let mut out = check::validate(new, true, &names::dns_subdomain);
        check::kube_finalizers(&mut out, new);
        if new.items("subsets") != old.items("subsets") {
            subsets(&mut out, new.items("subsets"));
        }
        out
    }

    fn warnings(&self, _cx: &Context<'_>, new: &Value, _old: Option<&Value>) -> Vec<String> {
        let mut out = Vec::new();
        if new.at("metadata").at("labels").text("endpoints.kubernetes.io/managed-by") == "endpoint-controller" {
            return out;
        }
        for (i, subset) in new.items("subsets").iter().enumerate() {
            for list in ["addresses", "notReadyAddresses"] {
                for (j, address) in subset.items(list).iter().enumerate() {
                    let path = Path::new("subsets").index(i).child(list).index(j).child("ip");
                    ip::warnings(&mut out, address.text("ip"), &path);
                }
            }
        }
        out
    }
}

fn subsets(out: &mut Errors, subsets: &[Value]) {
    for (i, subset) in subsets.iter().enumerate() {
        let path = Path::new("subsets").index(i);
        let lists = ["addresses", "notReadyAddresses"];
        if lists.iter().all(|list| subset.items(list).is_empty()) {
            out.push(Error::required(&path, "must specify `addresses` or `notReadyAddresses`"));
        }
        for list in lists {
            for (j, one) in subset.items(list).iter().enumerate() {
                endpoint(out, one, &path.child(list).index(j));
            }
        }
        let ports = subset.items("ports");
        for (j, one) in ports.iter().enumerate() {
            port(out, one, ports.len() > 1, &path.child("ports").index(j));
        }
    }
}

fn endpoint(out: &mut Errors, endpoint: &Value, path: &Path) {
    let ip_path = path.child("ip");
    rules::legacy_ip(out, endpoint.text("ip"), &[], &ip_path);
    let host = endpoint.text("hostname");
    if !host.is_empty() {
        rules::dns_label(out, host, &path.child("hostname"));
    }
    if let Some(node) = endpoint.at("nodeName").as_str() {
        rules::dns_subdomain(out, node, &path.child("nodeName"));
    }
    address(out, endpoint.text("ip"), &ip_path);
}

/// An address that traffic may be sent to: none of the host's own or of the link.
pub fn address(out: &mut Errors, text: &str, path: &Path) {
    let Some(ip) = ip::parse(text) else {
        return out.push(Error::invalid(path, text, "must be a valid IP address"));
    };
    let (link, multicast) = match ip {
        std::net::IpAddr::V4(ip) => (ip.is_link_local(), ip.octets()[..3] == [224, 0, 0]),
        std::net::IpAddr::V6(ip) => {
            let first = ip.segments()[0];
            (first & 0xffc0 == 0xfe80, first & 0xff0f == 0xff02)
        }
    };
    let mut refuse = |wrong: bool, detail: &str| {
        if wrong {
            out.push(Error::invalid(path, text, detail));
        }
    };
    refuse(ip.is_unspecified(), &format!("may not be unspecified ({text})"));
    refuse(ip.is_loopback(), "may not be in the loopback range (127.0.0.0/8, ::1/128)");
    refuse(link, "may not be in the link-local range (169.254.0.0/16, fe80::/10)");
    refuse(multicast, "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)");
}

fn port(out: &mut Errors, port: &Value, named: bool, path: &Path) {
    let name = port.text("name");
    if !name.is_empty() {
        rules::dns_label(out, name, &path.child("name"));
    } else if named {
        out.push(Error::required(&path.child("name"), ""));
    }
    rules::port(out, port.number("port"), &path.child("port"));
    rules::one_of(out, port.text("protocol"), &["SCTP", "TCP", "UDP"], &path.child("protocol"));
    if let Some(protocol) = port.at("appProtocol").as_str() {
        rules::qualified_name(out, protocol, &path.child("appProtocol"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CVE-2021-25737.
    #[test]
    fn no_traffic_to_the_host_itself_or_the_link() {
        for bad in ["127.0.0.1", "::1", "169.254.1.1", "fe80::1", "224.0.0.5", "ff02::1", "0.0.0.0"] {
            let mut out = Errors::new();
            address(&mut out, bad, &Path::new("ip"));
            assert_eq!(out.0.len(), 1, "{bad}");
        }
        let mut out = Errors::new();
        address(&mut out, "10.0.0.1", &Path::new("ip"));
        assert!(out.is_empty());
    }
}

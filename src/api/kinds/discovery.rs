//! EndpointSlices.

use std::collections::BTreeSet;

use crate::Value;
use crate::field::{Error, Errors, Path};
use crate::kinds::core::endpoint_ip;
use crate::kinds::view::{View, fill_pointer, items_mut, set, unset};
use crate::kinds::{ip, rules};
use crate::meta::check::{self, push_all};
use crate::meta::names;
use crate::resources::{Context, Strategy};

/// EndpointSlices.
pub struct EndpointSlice;

const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
const HOST: &str = "kubernetes.io/hostname";

impl Strategy for EndpointSlice {
    fn default(&self, object: &mut Value) {
        for port in items_mut(object, "ports") {
            fill_pointer(port, "name", "");
            fill_pointer(port, "protocol", "TCP");
        }
    }

    fn prepare_create(&self, _cx: &Context<'_>, new: &mut Value) {
        drop_topology(new, None);
    }

    fn prepare_update(&self, _cx: &Context<'_>, new: &mut Value, old: &Value) {
        if new.at("endpoints") != old.at("endpoints") {
            drop_topology(new, Some(old));
        }
    }

    fn validate_create(&self, _cx: &Context<'_>, new: &Value) -> Errors {
        let mut out = Errors::new();
        slice(&mut out, new, &Value::Null);
        out
    }

    /// The metadata of an update is looked at as that of a new object.
    fn validate_update(&self, _cx: &Context<'_>, new: &Value, old: &Value) -> Errors {
        let mut out = crate::meta::validate(new, true, &names::dns_subdomain);
        check::kube_finalizers(&mut out, new);
        slice(&mut out, new, old);
        let field = "addressType";
        check::immutable(&mut out, new.at(field), old.at(field), &Path::new(field));
        out
    }

    fn checks_meta(&self, update: bool) -> bool {
        !update
    }

    fn warnings(&self, _cx: &Context<'_>, new: &Value, old: Option<&Value>) -> Vec<String> {
        let mut out = Vec::new();
        if old.is_none() && new.text("addressType") == "FQDN" {
            out.push("spec.addressType: FQDN endpoints are deprecated".into());
        }
        let manager = new.at("metadata").at("labels").text(MANAGED_BY);
        if ["endpointslice-controller.k8s.io", "endpointslicemirroring-controller.k8s.io"].contains(&manager) {
            return out;
        }
        for (i, endpoint) in new.items("endpoints").iter().enumerate() {
            for (j, address) in endpoint.texts("addresses").enumerate() {
                let path = Path::new("endpoints").index(i).child("addresses").index(j);
                ip::warnings(&mut out, address, &path);
            }
        }
        out
    }

    fn has_generation(&self) -> bool {
        true
    }

    fn changes_generation(&self, new: &Value, old: &Value) -> bool {
        crate::meta::differs_outside(new, old, &["apiVersion", "kind", "metadata"])
            || new.at("metadata").at("labels") != old.at("metadata").at("labels")
    }
}

/// Labels of endpoints are of a retired version; the name of a node among them is kept as such.
fn drop_topology(new: &mut Value, old: Option<&Value>) {
    let nodes: BTreeSet<&str> = old
        .into_iter()
        .flat_map(|old| old.items("endpoints"))
        .map(|e| e.at("deprecatedTopology").text(HOST))
        .filter(|node| !node.is_empty())
        .collect();
    for endpoint in items_mut(new, "endpoints") {
        let node = endpoint.at("deprecatedTopology").text(HOST).to_string();
        if !endpoint.has("nodeName") && nodes.contains(node.as_str()) && names::subdomain(&node).is_empty() {
            set(endpoint, "nodeName", node);
        }
        unset(endpoint, "deprecatedTopology");
    }
}

fn slice(out: &mut Errors, new: &Value, old: &Value) {
    let kind = new.text("addressType");
    rules::one_of(out, kind, &["FQDN", "IPv4", "IPv6"], &Path::new("addressType"));
    ports(out, new.items("ports"), &Path::new("ports"));
    if new.at("endpoints") != old.at("endpoints") {
        endpoints(out, new.items("endpoints"), kind, &Path::new("endpoints"));
    }
}

fn endpoints(out: &mut Errors, endpoints: &[Value], kind: &str, path: &Path) {
    if endpoints.len() > 1000 {
        return out.push(Error::too_many(path, endpoints.len(), 1000));
    }
    for (i, endpoint) in endpoints.iter().enumerate() {
        let path = path.index(i);
        addresses(out, endpoint, kind, &path.child("addresses"));
        if let Some(node) = endpoint.at("nodeName").as_str() {
            rules::dns_subdomain(out, node, &path.child("nodeName"));
        }
        let (topology, topology_path) = (endpoint.entries("deprecatedTopology"), path.child("deprecatedTopology"));
        if topology.clone().count() > 16 {
            out.push(Error::too_many(&topology_path, topology.count(), 16));
        }
        check::labels(out, endpoint.pairs("deprecatedTopology"), &topology_path);
        if let Some(host) = endpoint.at("hostname").as_str() {
            rules::dns_label(out, host, &path.child("hostname"));
        }
        hints(out, endpoint.at("hints"), &path.child("hints"));
    }
}

fn addresses(out: &mut Errors, endpoint: &Value, kind: &str, path: &Path) {
    let list = endpoint.items("addresses");
    if list.is_empty() {
        out.push(Error::required(path, "must contain at least 1 address"));
    } else if list.len() > 100 {
        out.push(Error::too_many(path, list.len(), 100));
    }
    for (i, address) in endpoint.texts("addresses").enumerate() {
        let at = path.index(i);
        match kind {
            "IPv4" if ip::check(out, address, &at) => {
                if address.contains(':') {
                    out.push(Error::invalid(path, address, "must be an IPv4 address"));
                }
                endpoint_ip(out, address, &at);
            }
            "IPv6" if ip::check_canonical(out, address, &at) => {
                if !address.contains(':') {
                    out.push(Error::invalid(path, address, "must be an IPv6 address"));
                }
                endpoint_ip(out, address, &at);
            }
            "FQDN" => qualified_domain(out, address, &at),
            _ => {}
        }
    }
}

fn qualified_domain(out: &mut Errors, name: &str, path: &Path) {
    if name.is_empty() {
        return out.push(Error::required(path, ""));
    }
    let name = name.strip_suffix('.').unwrap_or(name);
    let wrong = names::subdomain(name);
    if !wrong.is_empty() {
        out.push(Error::invalid(path, name, wrong.join(",")));
    } else if !name.contains('.') {
        let detail = "should be a domain with at least two segments separated by dots";
        out.push(Error::invalid(path, name, detail));
    } else if let Some(label) = name.split('.').find(|label| !names::label(label).is_empty()) {
        out.push(Error::invalid(path, label, names::label(label).join(",")));
    }
}

fn ports(out: &mut Errors, ports: &[Value], path: &Path) {
    if ports.len() > 20_000 {
        return out.push(Error::too_many(path, ports.len(), 20_000));
    }
    let mut seen = BTreeSet::new();
    for (i, port) in ports.iter().enumerate() {
        let path = path.index(i);
        let name = port.text("name");
        if !name.is_empty() {
            rules::dns_label(out, name, &path.child("name"));
        }
        if !seen.insert(name) {
            out.push(Error::duplicate(&path.child("name"), name));
        }
        match port.at("protocol").as_str() {
            None => out.push(Error::required(&path.child("protocol"), "")),
            Some(protocol) => rules::supported(out, protocol, &["SCTP", "TCP", "UDP"], &path.child("protocol")),
        }
        if let Some(protocol) = port.at("appProtocol").as_str() {
            rules::qualified_name(out, protocol, &path.child("appProtocol"));
        }
    }
}

fn hints(out: &mut Errors, hints: &Value, path: &Path) {
    for (field, rule) in [("forZones", names::label_value as fn(&str) -> names::Wrong), ("forNodes", names::subdomain)]
    {
        let (list, path) = (hints.items(field), path.child(field));
        if list.len() > 8 {
            return out.push(Error::too_many(&path, list.len(), 8));
        }
        let mut seen = BTreeSet::new();
        for (i, hint) in list.iter().enumerate() {
            let (name, path) = (hint.text("name"), path.index(i).child("name"));
            if !seen.insert(name) {
                out.push(Error::duplicate(&path, name));
            }
            push_all(out, &path, name, rule(name));
        }
    }
}

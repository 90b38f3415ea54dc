//! Services. Cluster addresses and node ports are allocated by the server; the rules here see them allocated.

use std::collections::BTreeSet;

use crate::Value;
use crate::field::{Error, Errors, Path};
use crate::kinds::view::{View, copy, fill, fill_pointer, items_mut, set, some_mut, structure, unset};
use crate::kinds::{halves, internal, ip, rules};
use crate::meta::check;
use crate::meta::names;
use crate::resources::{Context, Strategy};

/// Services.
pub struct Service;

const HINTS: &str = "service.kubernetes.io/topology-aware-hints";
const MODE: &str = "service.kubernetes.io/topology-mode";
const RANGES: &str = "service.beta.kubernetes.io/load-balancer-source-ranges";
const DAY: i64 = 24 * 60 * 60;

impl Strategy for Service {
    fn default(&self, object: &mut Value) {
        let spec = structure(object, "spec");
        fill(spec, "sessionAffinity", "None");
        session_affinity(spec);
        fill(spec, "type", "ClusterIP");
        for port in items_mut(spec, "ports") {
            fill(port, "protocol", "TCP");
            let target = port.at("targetPort");
            if target.is_null() || target == 0 || target == "" {
                let number = port.number("port");
                set(port, "targetPort", number);
            }
        }
        if externally_accessible(spec) {
            fill(spec, "externalTrafficPolicy", "Cluster");
        }
        if spec.text("type") != "ExternalName" {
            fill_pointer(spec, "internalTrafficPolicy", "Cluster");
        }
        if spec.text("type") != "LoadBalancer" {
            return;
        }
        fill_pointer(spec, "allocateLoadBalancerNodePorts", true);
        let balancer = some_mut(object, "status").and_then(|status| some_mut(status, "loadBalancer"));
        for ingress in balancer.into_iter().flat_map(|balancer| items_mut(balancer, "ingress")) {
            if !ingress.text("ip").is_empty() {
                fill_pointer(ingress, "ipMode", "VIP");
            }
        }
    }

    fn prepare_create(&self, _cx: &Context<'_>, new: &mut Value) {
        set(new, "status", crate::Map::new());
    }

    fn prepare_update(&self, cx: &Context<'_>, new: &mut Value, old: &Value) {
        if cx.subresource == "status" {
            return copy(new, old, "spec");
        }
        copy(new, old, "status");
        drop_by_type(structure(new, "spec"), old.at("spec"));
        if new.at("spec").text("type") != "LoadBalancer" {
            set(structure(new, "status"), "loadBalancer", crate::Map::new());
        }
    }

    /// Services may have names that start with a digit since that rule was relaxed.
    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        names::dns_label(name, prefix)
    }

    fn validate_create(&self, _cx: &Context<'_>, new: &Value) -> Errors {
        let mut out = Errors::new();
        service(&mut out, new, &Value::Null);
        out
    }

    fn validate_update(&self, cx: &Context<'_>, new: &Value, old: &Value) -> Errors {
        let mut out = Errors::new();
        if cx.subresource == "status" {
            let path = Path::new("status").child("loadBalancer");
            let balancer = |object: &Value| object.at("status").at("loadBalancer").clone();
            let is_balancer = new.at("spec").text("type") == "LoadBalancer";
            load_balancer_status(&mut out, &balancer(new), &balancer(old), is_balancer, &path);
            return out;
        }
        let (spec, before) = (new.at("spec"), old.at("spec"));
        cluster_ips_stay(&mut out, spec, before);
        families_stay(&mut out, spec, before);
        load_balancer_class(&mut out, spec, before);
        let port = "healthCheckNodePort";
        if needs_health_port(before) && needs_health_port(spec) && spec.number(port) != before.number(port) {
            out.push(Error::forbidden(&Path::new("spec").child(port), check::IMMUTABLE));
        }
        service(&mut out, new, old);
        out
    }

    fn warnings(&self, cx: &Context<'_>, new: &Value, _old: Option<&Value>) -> Vec<String> {
        let mut out = Vec::new();
        if cx.subresource == "status" {
            for (i, ingress) in new.at("status").at("loadBalancer").items("ingress").iter().enumerate() {
                let path = Path::new("status").child("loadBalancer").child("ingress").index(i);
                if !ingress.text("ip").is_empty() {
                    ip::warnings(&mut out, ingress.text("ip"), &path);
                }
            }
        } else {
            warnings(&mut out, new);
        }
        out
    }

    fn reset_fields(&self, subresource: &str) -> &'static [&'static [&'static str]] {
        halves::reset(subresource)
    }
}

fn session_affinity(spec: &mut Value) {
    if spec.text("sessionAffinity") == "None" {
        unset(spec, "sessionAffinityConfig");
    }
    if spec.text("sessionAffinity") == "ClientIP" {
        let config = structure(structure(spec, "sessionAffinityConfig"), "clientIP");
        fill_pointer(config, "timeoutSeconds", 10800);
    }
}

fn externally_accessible(spec: &Value) -> bool {
    let kind = spec.text("type");
    kind == "LoadBalancer" || kind == "NodePort" || (kind == "ClusterIP" && !spec.items("externalIPs").is_empty())
}

fn needs_node_port(spec: &Value) -> bool {
    ["NodePort", "LoadBalancer"].contains(&spec.text("type"))
}

fn needs_health_port(spec: &Value) -> bool {
    spec.text("type") == "LoadBalancer" && spec.text("externalTrafficPolicy") == "Local"
}

fn is_headless(spec: &Value) -> bool {
    let ips = spec.items("clusterIPs");
    ips.len() == 1 && ips[0] == "None"
}

/// What a change of the type makes senseless is dropped, unless it was changed as well.
fn drop_by_type(new: &mut Value, old: &Value) {
    let kept = |new: &Value, field: &str| new.at(field) == old.at(field);
    if old.text("type") != "ExternalName" && new.text("type") == "ExternalName" {
        if kept(new, "clusterIP") && kept(new, "clusterIPs") {
            unset(new, "clusterIP");
            unset(new, "clusterIPs");
        }
        for field in ["ipFamilies", "ipFamilyPolicy"] {
            if kept(new, field) {
                unset(new, field);
            }
        }
    }
    let ports = |spec: &Value| -> BTreeSet<i64> {
        spec.items("ports").iter().map(|p| p.number("nodePort")).filter(|n| *n != 0).collect()
    };
    if needs_node_port(old) && !needs_node_port(new) && ports(old).is_superset(&ports(new)) {
        items_mut(new, "ports").iter_mut().for_each(|port| drop(unset(port, "nodePort")));
    }
    let mut unless_needed = |field: &str, needed: fn(&Value) -> bool| {
        if needed(old) && !needed(new) && kept(new, field) {
            unset(new, field);
        }
    };
    let is_balancer = |spec: &Value| spec.text("type") == "LoadBalancer";
    unless_needed("healthCheckNodePort", needs_health_port);
    unless_needed("allocateLoadBalancerNodePorts", is_balancer);
    unless_needed("loadBalancerClass", is_balancer);
    unless_needed("externalTrafficPolicy", externally_accessible);
    unless_needed("internalTrafficPolicy", |spec| spec.text("type") != "ExternalName");
}

/// A whole Service; `old` is null for a new one.
fn service(out: &mut Errors, new: &Value, old: &Value) {
    let (spec, path) = (new.at("spec"), Path::new("spec"));
    topology(out, new.at("metadata").at("annotations"));
    by_type(out, spec, &path);
    ports(out, spec, &path.child("ports"));
    check::labels(out, spec.pairs("selector"), &path.child("selector"));
    affinity(out, spec, &path);
    cluster_ips(out, spec, old.at("spec"), &path);
    let before: Vec<&str> = old.at("spec").texts("externalIPs").collect();
    for (i, external) in spec.texts("externalIPs").enumerate() {
        let path = path.child("externalIPs").index(i);
        let mut wrong = Errors::new();
        rules::legacy_ip(&mut wrong, external, &before, &path);
        if wrong.is_empty() {
            super::endpoint_ip(&mut wrong, external, &path);
        }
        out.extend(wrong);
    }
    let types = ["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"];
    rules::one_of(out, spec.text("type"), &types, &path.child("type"));
    node_ports(out, spec, &path.child("ports"));
    source_ranges(out, new, old, &path.child("LoadBalancerSourceRanges"));
    let allocate = "allocateLoadBalancerNodePorts";
    match (spec.has(allocate), spec.text("type") == "LoadBalancer") {
        (true, false) => {
            out.push(Error::forbidden(&path.child(allocate), "may only be used when `type` is 'LoadBalancer'"));
        }
        (false, true) => out.push(Error::required(&Path::new(allocate), "")),
        _ => {}
    }
    load_balancer_class(out, spec, &Value::Null);
    traffic(out, spec, &path);
}

fn topology(out: &mut Errors, annotations: &Value) {
    if let (Some(mode), Some(hints)) = (annotations.some(MODE), annotations.some(HINTS))
        && mode != hints
    {
        let path = Path::new("metadata").child("annotations").key(MODE);
        let detail = format!("must match annotations[{HINTS}] when both are specified");
        out.push(Error::invalid(&path, mode.clone(), detail));
    }
}

fn by_type(out: &mut Errors, spec: &Value, path: &Path) {
    let kind = spec.text("type");
    if spec.items("ports").is_empty() && !is_headless(spec) && kind != "ExternalName" {
        out.push(Error::required(&path.child("ports"), ""));
    }
    if needs_node_port(spec) && is_headless(spec) {
        let detail = format!("may not be set to 'None' for {kind} services");
        out.push(Error::invalid(&path.child("clusterIPs").index(0), "None", detail));
    }
    if kind != "ExternalName" {
        return;
    }
    for field in ["clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
        if spec.has(field) {
            out.push(Error::forbidden(&path.child(field), "may not be set for ExternalName services"));
        }
    }
    let name = spec.text("externalName");
    match name.strip_suffix('.').unwrap_or(name) {
        "" => out.push(Error::required(&path.child("externalName"), "")),
        name => rules::dns_subdomain(out, name, &path.child("externalName")),
    }
}

fn ports(out: &mut Errors, spec: &Value, path: &Path) {
    let list = spec.items("ports");
    let mut seen = BTreeSet::new();
    for (i, port) in list.iter().enumerate() {
        let path = path.index(i);
        let name = port.text("name");
        if !name.is_empty() {
            rules::dns_label(out, name, &path.child("name"));
            if !seen.insert(name) {
                out.push(Error::duplicate(&path.child("name"), name));
            }
        } else if list.len() > 1 {
            out.push(Error::required(&path.child("name"), ""));
        }
        rules::port(out, port.number("port"), &path.child("port"));
        rules::one_of(out, port.text("protocol"), &["SCTP", "TCP", "UDP"], &path.child("protocol"));
        rules::port_or_name(out, port.at("targetPort"), &path.child("targetPort"));
        if let Some(protocol) = port.at("appProtocol").as_str() {
            rules::qualified_name(out, protocol, &path.child("appProtocol"));
        }
    }
}

fn affinity(out: &mut Errors, spec: &Value, path: &Path) {
    let kind = spec.text("sessionAffinity");
    rules::one_of(out, kind, &["ClientIP", "None"], &path.child("sessionAffinity"));
    let (config, mut path) = (spec.at("sessionAffinityConfig"), path.child("sessionAffinityConfig"));
    if kind == "None" && !config.is_null() {
        out.push(Error::forbidden(&path, "must not be set when session affinity is None"));
    }
    if kind != "ClientIP" {
        return;
    }
    let needed = "when session affinity type is ClientIP";
    let mut at = config;
    for field in ["clientIP", "timeoutSeconds"] {
        if at.is_null() {
            break;
        }
        (at, path) = (at.at(field), path.child(field));
    }
    match at.as_i64() {
        None => out.push(Error::required(&path, needed)),
        Some(seconds) if !(1..=DAY).contains(&seconds) => {
            out.push(Error::invalid(&path, seconds, "must be greater than 0 and less than 86400"));
        }
        Some(_) => {}
    }
}

/// What is wrong with `clusterIP`, `clusterIPs`, `ipFamilies` and `ipFamilyPolicy` of a spec, beside what they were.
pub fn cluster_ips(out: &mut Errors, spec: &Value, old: &Value, path: &Path) {
    if spec.text("type") == "ExternalName" {
        return;
    }
    let (one, shown, ips_path) = (spec.text("clusterIP"), spec.at("clusterIPs"), path.child("clusterIPs"));
    let ips: Vec<&str> = spec.texts("clusterIPs").collect();
    match (one, ips.first()) {
        ("", None) => {}
        ("", Some(_)) => {
            out.push(Error::invalid(&ips_path, shown.clone(), "must be empty when `clusterIP` is not specified"));
        }
        (_, None) => out.push(Error::required(&ips_path, "")),
        (one, Some(first)) if one != *first => {
            out.push(Error::invalid(&ips_path, shown.clone(), "first value must match `clusterIP`"));
        }
        _ => {}
    }
    let families: Vec<&str> = spec.texts("ipFamilies").collect();
    let families_path = path.child("ipFamilies");
    for (i, family) in families.iter().enumerate() {
        rules::supported(out, family, &["IPv4", "IPv6"], &families_path.index(i));
        if families[..i].contains(family) {
            out.push(Error::duplicate(&families_path.index(i), *family));
        }
    }
    let policies = ["PreferDualStack", "RequireDualStack", "SingleStack"];
    rules::supported_if_set(out, spec, "ipFamilyPolicy", &policies, path);
    if each_cluster_ip(out, spec, old, &ips, &ips_path) {
        families_fit(out, spec, &ips, &families, &ips_path);
    }
}

/// Each address alone, and how many there are; false when one is none.
fn each_cluster_ip(out: &mut Errors, spec: &Value, old: &Value, ips: &[&str], path: &Path) -> bool {
    let shown = spec.at("clusterIPs");
    let before: Vec<&str> = old.texts("clusterIPs").collect();
    let mut ok = true;
    for (i, ip) in ips.iter().enumerate() {
        if i == 0 && *ip == "None" {
            if ips.len() > 1 {
                ok = false;
                out.push(Error::invalid(path, shown.clone(), "'None' must be the first and only value"));
            }
            continue;
        }
        let count = out.0.len();
        rules::legacy_ip(out, ip, &before, &path.index(i));
        ok &= out.0.len() == count;
    }
    if ips.len() > 2 {
        out.push(Error::invalid(path, shown.clone(), "may only hold up to 2 values"));
    }
    ok
}

fn families_fit(out: &mut Errors, spec: &Value, ips: &[&str], families: &[&str], path: &Path) {
    if ips.len() > 1 && !ip::is_dual_stack(ips) {
        let detail = "may specify no more than one IP for each IP family";
        out.push(Error::invalid(path, spec.at("clusterIPs").clone(), detail));
    }
    if is_headless(spec) {
        return;
    }
    for (i, (ip, family)) in ips.iter().zip(families).enumerate() {
        let is_v6 = ip.contains(':');
        if (*family == "IPv4" && is_v6) || (*family == "IPv6" && !is_v6) {
            let detail = format!("expected an {family} value as indicated by `ipFamilies[{i}]`");
            out.push(Error::invalid(&path.index(i), *ip, detail));
        }
    }
}

fn node_ports(out: &mut Errors, spec: &Value, path: &Path) {
    let list = spec.items("ports");
    for (i, port) in list.iter().enumerate() {
        if spec.text("type") == "ClusterIP" && port.number("nodePort") != 0 {
            let detail = "may not be used when `type` is 'ClusterIP'";
            out.push(Error::forbidden(&path.index(i).child("nodePort"), detail));
        }
    }
    let key = |port: &Value, field: &str| (port.text("protocol").to_string(), port.number(field));
    for (i, port) in list.iter().enumerate() {
        let node = port.number("nodePort");
        if node != 0 && list[..i].iter().any(|other| key(other, "nodePort") == key(port, "nodePort")) {
            out.push(Error::duplicate(&path.index(i).child("nodePort"), node));
        }
    }
    for (i, port) in list.iter().enumerate() {
        if list[..i].iter().any(|other| key(other, "port") == key(port, "port")) {
            let only = serde_json::json!({"protocol": port.text("protocol"), "port": port.number("port")});
            let error = Error::duplicate(&path.index(i), "");
            out.push(Error { value: Some(internal::show("ServicePort", &only)), ..error });
        }
    }
}

fn source_ranges(out: &mut Errors, new: &Value, old: &Value, path: &Path) {
    let spec = new.at("spec");
    let refuse_type = |out: &mut Errors, path: &Path| {
        if spec.text("type") != "LoadBalancer" {
            out.push(Error::forbidden(path, "may only be used when `type` is 'LoadBalancer'"));
        }
    };
    let ranges = "loadBalancerSourceRanges";
    if !spec.items(ranges).is_empty() {
        refuse_type(out, path);
        let before: Vec<&str> = old.at("spec").texts(ranges).map(str::trim).collect();
        for (i, range) in spec.texts(ranges).enumerate() {
            rules::legacy_cidr(out, range.trim(), &before, &path.index(i));
        }
        return;
    }
    let Some(text) = new.at("metadata").at("annotations").at(RANGES).as_str() else { return };
    let path = Path::new("metadata").child("annotations").key(RANGES);
    refuse_type(out, &path);
    let unchanged = old.at("metadata").at("annotations").at(RANGES).as_str() == Some(text);
    if unchanged || text.trim().is_empty() {
        return;
    }
    for range in text.trim().split(',') {
        rules::legacy_cidr(out, range.trim(), &[], &path);
    }
}

/// The class of the load balancer; `old` is null for a new Service.
fn load_balancer_class(out: &mut Errors, spec: &Value, old: &Value) {
    let (class, path) = (spec.at("loadBalancerClass"), Path::new("spec").child("loadBalancerClass"));
    let is_balancer = spec.text("type") == "LoadBalancer";
    if old.text("type") == "LoadBalancer" && is_balancer && class != old.at("loadBalancerClass") {
        out.push(Error::invalid(&path, class.clone(), "may not change once set"));
    }
    match class.as_str() {
        Some(class) if is_balancer => rules::qualified_name(out, class, &path),
        Some(_) => out.push(Error::forbidden(&path, "may only be used when `type` is 'LoadBalancer'")),
        None => {}
    }
}

fn traffic(out: &mut Errors, spec: &Value, path: &Path) {
    let (policy, policy_path) = (spec.text("externalTrafficPolicy"), path.child("externalTrafficPolicy"));
    if externally_accessible(spec) {
        rules::one_of(out, policy, &["Cluster", "Local"], &policy_path);
    } else if !policy.is_empty() {
        out.push(Error::invalid(&policy_path, policy, "may only be set for externally-accessible services"));
    }
    let (port, port_path) = (spec.number("healthCheckNodePort"), path.child("healthCheckNodePort"));
    match (needs_health_port(spec), port) {
        (false, 0) => {}
        (false, port) => {
            let detail = "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'";
            out.push(Error::invalid(&port_path, port, detail));
        }
        (true, 0) => out.push(Error::required(&port_path, "")),
        (true, port) => rules::port(out, port, &port_path),
    }
    let has_address = ["NodePort", "LoadBalancer", "ClusterIP"].contains(&spec.text("type"));
    if has_address && !spec.has("internalTrafficPolicy") {
        out.push(Error::required(&path.child("internalTrafficPolicy"), ""));
    }
    rules::supported_if_set(out, spec, "internalTrafficPolicy", &["Cluster", "Local"], path);
    let distributions = ["PreferClose", "PreferSameZone", "PreferSameNode"];
    rules::supported_if_set(out, spec, "trafficDistribution", &distributions, path);
}

fn cluster_ips_stay(out: &mut Errors, new: &Value, old: &Value) {
    let external = [new, old].iter().any(|spec| spec.text("type") == "ExternalName");
    if external || (is_headless(new) && is_headless(old)) {
        return;
    }
    let (now, before) = (new.items("clusterIPs"), old.items("clusterIPs"));
    let path = Path::new("spec").child("clusterIPs");
    let shown = new.at("clusterIPs");
    let mut refuse = |i: usize, detail: &str| out.push(Error::invalid(&path.index(i), shown.clone(), detail));
    if now.len() == before.len() {
        for i in (0..now.len()).filter(|i| now[*i] != before[*i]) {
            refuse(i, "may not change once set");
        }
        return;
    }
    if now.is_empty() {
        refuse(0, "primary clusterIP can not be unset");
    } else if !before.is_empty() && now[0] != before[0] {
        refuse(0, "may not change once set");
    }
    if now.len() == 1 && before.len() > 1 {
        single_stack(out, new, "clusterIP");
    }
}

fn single_stack(out: &mut Errors, new: &Value, what: &str) {
    if new.text("ipFamilyPolicy") != "SingleStack" {
        let path = Path::new("spec").child("ipFamilyPolicy");
        let detail = format!("must be set to 'SingleStack' when releasing the secondary {what}");
        out.push(Error::invalid(&path, new.at("ipFamilyPolicy").clone(), detail));
    }
}

fn families_stay(out: &mut Errors, new: &Value, old: &Value) {
    let external = [new, old].iter().any(|spec| spec.text("type") == "ExternalName");
    if external || is_headless(new) || is_headless(old) {
        return;
    }
    let (now, before) = (new.items("ipFamilies"), old.items("ipFamilies"));
    let path = Path::new("spec").child("ipFamilies").index(0);
    let (shown, ips) = (new.at("ipFamilies"), new.at("clusterIPs"));
    if now.len() == before.len() {
        for _ in now.iter().zip(before).filter(|(a, b)| a != b) {
            out.push(Error::invalid(&path, shown.clone(), "may not change once set"));
        }
        return;
    }
    if before.len() > now.len() && new.items("clusterIPs").is_empty() {
        out.push(Error::invalid(&path, shown.clone(), "primary ipFamily can not be unset"));
    }
    if !now.is_empty() && !before.is_empty() && now[0] != before[0] {
        // Upstream shows the addresses here.
        out.push(Error::invalid(&path, ips.clone(), "may not change once set"));
    }
    if now.len() == 1 && before.len() > 1 {
        single_stack(out, new, "ipFamily");
    }
}

/// Where a load balancer can be reached, of a Service or an Ingress; `allowed`: there may be one at all.
pub fn load_balancer_status(out: &mut Errors, new: &Value, old: &Value, allowed: bool, path: &Path) {
    let path = path.child("ingress");
    if !allowed && !new.items("ingress").is_empty() {
        return out.push(Error::forbidden(&path, "may only be used when `spec.type` is 'LoadBalancer'"));
    }
    let before: Vec<&str> = old.items("ingress").iter().map(|i| i.text("ip")).filter(|ip| !ip.is_empty()).collect();
    for (i, ingress) in new.items("ingress").iter().enumerate() {
        let path = path.index(i);
        let (ip, mode) = (ingress.text("ip"), ingress.at("ipMode").as_str());
        if !ip.is_empty() {
            rules::legacy_ip(out, ip, &before, &path.child("ip"));
        }
        match mode {
            None if !ip.is_empty() => {
                out.push(Error::required(&path.child("ipMode"), "must be specified when `ip` is set"));
            }
            None => {}
            Some(_) if ip.is_empty() => {
                out.push(Error::forbidden(&path.child("ipMode"), "may not be specified when `ip` is not set"));
            }
            Some(mode) => rules::supported(out, mode, &["Proxy", "VIP"], &path.child("ipMode")),
        }
        host_name(out, ingress.text("hostname"), &path.child("hostname"));
    }
}

/// A host name that is no address.
pub fn host_name(out: &mut Errors, host: &str, path: &Path) {
    if host.is_empty() {
        return;
    }
    rules::dns_subdomain(out, host, path);
    if ip::parse(host).is_some() {
        out.push(Error::invalid(path, host, "must be a DNS name, not an IP address"));
    }
}

fn warnings(out: &mut Vec<String>, new: &Value) {
    let (spec, path) = (new.at("spec"), Path::new("spec"));
    if new.at("metadata").at("annotations").has(HINTS) {
        out.push(format!("annotation {HINTS} is deprecated, please use {MODE} instead"));
    }
    let headless = spec.text("type") == "ClusterIP" && spec.text("clusterIP") == "None";
    let external = spec.text("type") == "ExternalName";
    if !["", "None"].contains(&spec.text("clusterIP")) {
        for (i, ip) in spec.texts("clusterIPs").enumerate() {
            ip::warnings(out, ip, &path.child("clusterIPs").index(i));
        }
    }
    let has_external_ips = !spec.items("externalIPs").is_empty();
    let balancer = spec.text("loadBalancerIP");
    if headless {
        if !balancer.is_empty() {
            out.push("spec.loadBalancerIP is ignored for headless services".into());
        }
        if has_external_ips {
            out.push("spec.externalIPs is ignored for headless services".into());
        }
        if spec.text("sessionAffinity") != "None" {
            out.push("spec.SessionAffinity is ignored for headless services".into());
        }
    }
    for (i, ip) in spec.texts("externalIPs").enumerate() {
        ip::warnings(out, ip, &path.child("externalIPs").index(i));
    }
    if has_external_ips && !headless && !external {
        out.push("spec.externalIPs is deprecated and may no longer be implemented in some clusters".into());
    }
    if !balancer.is_empty() {
        ip::warnings(out, balancer, &path.child("loadBalancerIP"));
    }
    for (i, range) in spec.texts("loadBalancerSourceRanges").enumerate() {
        ip::cidr_warnings(out, range, &path.child("loadBalancerSourceRanges").index(i));
    }
    if external && has_external_ips {
        out.push("spec.externalIPs is ignored when spec.type is \"ExternalName\"".into());
    }
    if !external && !spec.text("externalName").is_empty() {
        out.push("spec.externalName is ignored when spec.type is not \"ExternalName\"".into());
    }
    if spec.text("trafficDistribution") == "PreferClose" {
        out.push("spec.trafficDistribution: \"PreferClose\" is deprecated; use \"PreferSameZone\"".into());
    }
}

//! NetworkPolicies.

use crate::Value;
use crate::field::{Error, Errors, Path};
use crate::kinds::view::{View, fill_pointer, is_zero, items_mut, set, structure};
use crate::kinds::{internal, ip, rules};
use crate::meta::check::{self, SelectorOptions};
use crate::resources::{Context, Strategy};

/// The two directions: the list of rules, and that of peers in a rule.
const DIRECTIONS: [(&str, &str); 2] = [("ingress", "from"), ("egress", "to")];

/// NetworkPolicies.
pub struct NetworkPolicy;

impl Strategy for NetworkPolicy {
    fn default(&self, object: &mut Value) {
        let spec = structure(object, "spec");
        for (rules, _) in DIRECTIONS {
            let rules = items_mut(spec, rules).iter_mut();
            rules.flat_map(|rule| items_mut(rule, "ports")).for_each(|port| fill_pointer(port, "protocol", "TCP"));
        }
        if is_zero(spec.at("policyTypes")) {
            let egress = !spec.items("egress").is_empty();
            let types = if egress { vec!["Ingress", "Egress"] } else { vec!["Ingress"] };
            set(spec, "policyTypes", types);
        }
    }

    fn validate_create(&self, _cx: &Context<'_>, new: &Value) -> Errors {
        let mut out = Errors::new();
        spec(&mut out, new.at("spec"), SelectorOptions::default(), &[]);
        out
    }

    fn validate_update(&self, _cx: &Context<'_>, new: &Value, old: &Value) -> Errors {
        let mut out = Errors::new();
        let old = old.at("spec");
        let any_value = check::selector_has_bad_value(old.at("podSelector"));
        spec(&mut out, new.at("spec"), SelectorOptions { any_value }, &ranges(old));
        out
    }

    fn warnings(&self, _cx: &Context<'_>, new: &Value, _old: Option<&Value>) -> Vec<String> {
        let mut out = Vec::new();
        each_peer(new.at("spec"), |peer, path| {
            let (block, path) = (peer.at("ipBlock"), path.child("ipBlock"));
            ip::cidr_warnings(&mut out, block.text("cidr"), &path.child("cidr"));
            for (i, except) in block.texts("except").enumerate() {
                ip::cidr_warnings(&mut out, except, &path.child("except").index(i));
            }
        });
        out
    }

    fn has_generation(&self) -> bool {
        true
    }
}

fn each_peer<'a>(spec: &'a Value, mut visit: impl FnMut(&'a Value, &Path)) {
    for (rules, peers) in DIRECTIONS {
        for (i, rule) in spec.items(rules).iter().enumerate() {
            for (j, peer) in rule.items(peers).iter().enumerate() {
                visit(peer, &Path::new("spec").child(rules).index(i).child(peers).index(j));
            }
        }
    }
}

/// All address ranges of a spec: what was stored may stay as it is.
fn ranges(spec: &Value) -> Vec<&str> {
    let mut out = Vec::new();
    each_peer(spec, |peer, _| {
        if let Some(block) = peer.some("ipBlock") {
            out.push(block.text("cidr"));
            out.extend(block.texts("except"));
        }
    });
    out
}

fn spec(out: &mut Errors, spec: &Value, options: SelectorOptions, before: &[&str]) {
    let path = Path::new("spec");
    check::selector(out, spec.at("podSelector"), options, &path.child("podSelector"));
    for (rules, peers) in DIRECTIONS {
        for (i, rule) in spec.items(rules).iter().enumerate() {
            let path = path.child(rules).index(i);
            for (j, port) in rule.items("ports").iter().enumerate() {
                self::port(out, port, &path.child("ports").index(j));
            }
            for (j, peer) in rule.items(peers).iter().enumerate() {
                self::peer(out, peer, options, before, &path.child(peers).index(j));
            }
        }
    }
    let path = path.child("policyTypes");
    if spec.items("policyTypes").len() > 2 {
        let shown = internal::show("[]string", spec.at("policyTypes"));
        return out.push(Error::invalid_shown(&path, shown, "may not specify more than two policyTypes"));
    }
    for (i, kind) in spec.texts("policyTypes").enumerate() {
        rules::supported(out, kind, &["Ingress", "Egress"], &path.index(i));
    }
}

fn port(out: &mut Errors, port: &Value, path: &Path) {
    rules::supported_if_set(out, port, "protocol", &["TCP", "UDP", "SCTP"], path);
    let (number, end, end_path) = (port.at("port"), port.int("endPort"), path.child("endPort"));
    if let Some(first) = number.as_i64() {
        rules::port(out, first, &path.child("port"));
        if let Some(end) = end {
            if end < first {
                out.push(Error::invalid(&end_path, first, "must be greater than or equal to `port`"));
            }
            rules::port(out, end, &end_path);
        }
        return;
    }
    let why = if number.is_null() { "not specified" } else { "non-numeric" };
    if let Some(end) = end {
        out.push(Error::invalid(&end_path, end, format!("may not be specified when `port` is {why}")));
    }
    if !number.is_null() {
        rules::port_or_name(out, number, &path.child("port"));
    }
}

fn peer(out: &mut Errors, peer: &Value, options: SelectorOptions, before: &[&str], path: &Path) {
    let mut found = 0;
    for field in ["podSelector", "namespaceSelector"] {
        if let Some(selector) = peer.some(field) {
            found += 1;
            check::selector(out, selector, options, &path.child(field));
        }
    }
    let block = peer.some("ipBlock");
    if let Some(block) = block {
        found += 1;
        self::block(out, block, before, &path.child("ipBlock"));
    }
    if found == 0 {
        out.push(Error::required(path, "must specify a peer"));
    } else if found > 1 && block.is_some() {
        out.push(Error::forbidden(path, "may not specify both ipBlock and another peer"));
    }
}

fn block(out: &mut Errors, block: &Value, before: &[&str], path: &Path) {
    let (text, cidr_path) = (block.text("cidr"), path.child("cidr"));
    if text.is_empty() {
        return out.push(Error::required(&cidr_path, ""));
    }
    rules::legacy_cidr(out, text, before, &cidr_path);
    let Some(whole) = ip::parse_cidr(text) else { return };
    for (i, text) in block.texts("except").enumerate() {
        let path = path.child("except").index(i);
        rules::legacy_cidr(out, text, before, &path);
        let Some(part) = ip::parse_cidr(text) else { continue };
        if !whole.contains(&part.network()) || whole.prefix_len() >= part.prefix_len() {
            out.push(Error::invalid(&path, text, "must be a strict subset of `cidr`"));
        }
    }
}

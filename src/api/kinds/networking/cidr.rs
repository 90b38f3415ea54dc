//! ServiceCIDRs, and the addresses that were taken from them.

use crate::Value;
use crate::field::{Error, Errors, Path};
use crate::kinds::view::{View, unset};
use crate::kinds::{halves, internal, ip, rules};
use crate::meta::check;
use crate::meta::names;
use crate::resources::{Context, Strategy};

/// Ranges of addresses for Services.
pub struct ServiceCidr;

impl Strategy for ServiceCidr {
    fn prepare_create(&self, _cx: &Context<'_>, new: &mut Value) {
        unset(new, "status");
    }

    fn prepare_update(&self, cx: &Context<'_>, new: &mut Value, old: &Value) {
        halves::split_with_metadata(cx, new, old);
    }

    fn validate_create(&self, _cx: &Context<'_>, new: &Value) -> Errors {
        let mut out = Errors::new();
        ranges(&mut out, new.at("spec"));
        out
    }

    /// A second family may come later; else nothing changes.
    fn validate_update(&self, cx: &Context<'_>, new: &Value, old: &Value) -> Errors {
        let mut out = Errors::new();
        if cx.subresource == "status" {
            return out;
        }
        let (spec, path) = (new.at("spec"), Path::new("spec").child("cidrs"));
        let (now, before): (Vec<&str>, Vec<&str>) =
            (spec.texts("cidrs").collect(), old.at("spec").texts("cidrs").collect());
        let grows = before.len() == 1 && now.len() == 2;
        if now.len() != before.len() && !grows {
            check::immutable(&mut out, spec.at("cidrs"), old.at("spec").at("cidrs"), &path);
            return out;
        }
        for (i, (now, _)) in now.iter().zip(&before).enumerate().filter(|(_, (now, before))| now != before) {
            out.push(Error::invalid(&path.index(i), *now, check::IMMUTABLE));
        }
        if grows {
            ranges(&mut out, spec);
        }
        out
    }

    fn reset_fields(&self, subresource: &str) -> &'static [&'static [&'static str]] {
        halves::reset_with_metadata(subresource)
    }
}

fn ranges(out: &mut Errors, spec: &Value) {
    let path = Path::new("spec").child("cidrs");
    let cidrs: Vec<&str> = spec.texts("cidrs").collect();
    if cidrs.is_empty() {
        return out.push(Error::required(&path, "at least one CIDR required"));
    }
    if cidrs.len() > 2 {
        let shown = internal::show("ServiceCIDRSpec", spec);
        return out.push(Error::invalid_shown(&path, shown, "may only hold up to 2 values"));
    }
    for (i, cidr) in cidrs.iter().enumerate() {
        ip::check_canonical_cidr(out, cidr, &path.index(i));
    }
    let families: Vec<bool> = cidrs.iter().filter_map(|c| ip::parse_cidr(c)).map(|net| net.addr().is_ipv6()).collect();
    if families.len() == 2 && families[0] == families[1] {
        let detail = "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64";
        out.push(Error::invalid(&path, spec.at("cidrs").clone(), detail));
    }
}

/// An address that belongs to an object, mostly a Service; its name is the address.
pub struct IpAddress;

impl Strategy for IpAddress {
    fn validate_name(&self, name: &str, _prefix: bool) -> Vec<String> {
        let mut out = Errors::new();
        ip::check_canonical(&mut out, name, &Path::default());
        out.into_iter().map(|error| error.detail).collect()
    }

    fn validate_create(&self, _cx: &Context<'_>, new: &Value) -> Errors {
        let mut out = Errors::new();
        let path = Path::new("spec").child("parentRef");
        let Some(parent) = new.at("spec").some("parentRef") else {
            out.push(Error::required(&path, ""));
            return out;
        };
        let group = parent.text("group");
        if !group.is_empty() {
            rules::dns_subdomain(&mut out, group, &path.child("group"));
        }
        rules::path_segment(&mut out, parent, "resource", &path);
        rules::path_segment(&mut out, parent, "name", &path);
        let namespace = parent.text("namespace");
        check::push_all(&mut out, &path.child("namespace"), namespace, names::path_segment(namespace, false));
        out
    }

    fn validate_update(&self, cx: &Context<'_>, new: &Value, old: &Value) -> Errors {
        let mut out = Errors::new();
        rules::whole_metadata(&mut out, new, false, &|name, prefix| self.validate_name(name, prefix));
        out.extend(self.validate_create(cx, new));
        let (new, old) = (new.at("spec").at("parentRef"), old.at("spec").at("parentRef"));
        if new != old {
            let path = Path::new("spec").child("parentRef");
            out.push(Error::invalid_shown(&path, internal::show("*ParentReference", new), check::IMMUTABLE));
        }
        out
    }
}

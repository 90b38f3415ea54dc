//! IP addresses and address ranges as upstream reads them: leniently first, so that it can say what is wrong.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use crate::field::{Error, Errors, Path, quote};

/// Reads an address, leading zeros in IPv4 parts allowed. IPv4 in IPv6 is IPv4.
pub fn parse(text: &str) -> Option<IpAddr> {
    if text.contains(':') {
        return text.parse::<Ipv6Addr>().ok().map(|ip| IpAddr::V6(ip).to_canonical());
    }
    let mut parts = [0u8; 4];
    let mut given = text.split('.');
    for part in &mut parts {
        let digits = given.next()?;
        if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        *part =
            digits.trim_start_matches('0').parse().or_else(|e| if all_zero(digits) { Ok(0) } else { Err(e) }).ok()?;
    }
    given.next().is_none().then(|| IpAddr::V4(Ipv4Addr::from(parts)))
}

fn all_zero(digits: &str) -> bool {
    digits.bytes().all(|b| b == b'0')
}

fn mapped(text: &str) -> bool {
    text.parse::<Ipv6Addr>().is_ok_and(|ip| ip.to_ipv4_mapped().is_some())
}

/// Reads `address/bits`, leading zeros allowed; the address keeps its low bits.
pub fn parse_cidr(text: &str) -> Option<IpNet> {
    let (address, bits) = text.split_once('/')?;
    if bits.is_empty() || !bits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let bits: u8 = bits.parse().ok()?;
    if mapped(address) {
        let v4 = parse(address)?;
        return IpNet::new(v4, bits.checked_sub(96)?).ok();
    }
    IpNet::new(parse(address)?, bits).ok()
}

/// True when both families are there, each at most once over all pairs: what `podIPs` and the like may hold.
pub fn is_dual_stack(texts: &[&str]) -> bool {
    let ips: Vec<IpAddr> = texts.iter().filter_map(|t| parse(t)).collect();
    ips.iter().any(IpAddr::is_ipv4) && ips.iter().any(IpAddr::is_ipv6)
}

/// An address without leading zeros, IPv4 not in IPv6.
pub fn check(out: &mut Errors, value: &str, path: &Path) -> bool {
    if parse(value).is_none() {
        let detail = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
        out.push(Error::invalid(path, value, detail));
        return false;
    }
    if value.parse::<IpAddr>().is_err() {
        out.push(Error::invalid(path, value, "must not have leading 0s"));
        return false;
    }
    if mapped(value) {
        out.push(Error::invalid(path, value, "must not be an IPv4-mapped IPv6 address"));
        return false;
    }
    true
}

/// An address in its one canonical form.
pub fn check_canonical(out: &mut Errors, value: &str, path: &Path) -> bool {
    if !check(out, value, path) {
        return false;
    }
    match parse(value).map(|ip| ip.to_string()) {
        Some(canonical) if canonical != value => {
            out.push(Error::invalid(path, value, format!("must be in canonical form ({})", quote(&canonical))));
            false
        }
        _ => true,
    }
}

/// An address range without leading zeros, IPv4 in IPv6, or bits beyond the prefix.
pub fn check_cidr(out: &mut Errors, value: &str, path: &Path) -> bool {
    let Some(lenient) = parse_cidr(value) else {
        let detail = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";
        out.push(Error::invalid(path, value, detail));
        return false;
    };
    let (address, bits) = value.split_once('/').unwrap_or_default();
    let detail = if address.parse::<IpAddr>().is_err() || (bits.len() > 1 && bits.starts_with('0')) {
        "must not have leading 0s in IP or prefix length"
    } else if mapped(address) {
        "must not have an IPv4-mapped IPv6 address"
    } else if lenient.addr() != lenient.network() {
        "must not have bits set beyond the prefix length"
    } else {
        return true;
    };
    out.push(Error::invalid(path, value, detail));
    false
}

/// An address range in its one canonical form.
pub fn check_canonical_cidr(out: &mut Errors, value: &str, path: &Path) -> bool {
    if !check_cidr(out, value, path) {
        return false;
    }
    match parse_cidr(value).map(|net| net.to_string()) {
        Some(canonical) if canonical != value => {
            out.push(Error::invalid(path, value, format!("must be in canonical form ({})", quote(&canonical))));
            false
        }
        _ => true,
    }
}

/// Warnings about the form of an address that was let pass.
pub fn warnings(out: &mut Vec<String>, value: &str, path: &Path) {
    let Some(ip) = parse(value) else { return };
    let given = quote(value);
    if value.parse::<IpAddr>().is_err() || mapped(value) {
        let better = quote(&ip.to_string());
        out.push(format!("{path}: non-standard IP address {given} is invalid: use {better}"));
    } else if ip.is_ipv6() && ip.to_string() != value {
        let better = quote(&ip.to_string());
        out.push(format!("{path}: IPv6 address {given} should be in RFC 5952 canonical format ({better})"));
    }
}

/// Warnings about the form of an address range that was let pass.
pub fn cidr_warnings(out: &mut Vec<String>, value: &str, path: &Path) {
    let Some(net) = parse_cidr(value) else { return };
    let before = out.len();
    let given = quote(value);
    let canonical = quote(&net.trunc().to_string());
    if net.addr() != net.network() {
        let single = quote(&format!("{}/{}", net.addr(), net.max_prefix_len()));
        out.push(format!(
            "{path}: CIDR value {given} is ambiguous in this context (should be {canonical} or {single}?)"
        ));
    }
    let (address, bits) = value.split_once('/').unwrap_or_default();
    if address.parse::<IpAddr>().is_err() || (bits.len() > 1 && bits.starts_with('0')) || mapped(address) {
        out.push(format!("{path}: non-standard CIDR value {given} is invalid: use {canonical}"));
    }
    if out.len() == before && net.addr().is_ipv6() && net.to_string() != value {
        out.push(format!("{path}: IPv6 CIDR value {given} should be in RFC 5952 canonical format ({canonical})"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(check: fn(&mut Errors, &str, &Path) -> bool, value: &str) -> Option<String> {
        let mut out = Errors::new();
        check(&mut out, value, &Path::new("ip"));
        out.into_iter().next().map(|e| e.detail)
    }

    #[test]
    fn addresses() {
        for good in ["10.0.0.1", "0.0.0.0", "2001:db8::1", "::1"] {
            assert_eq!(wrong(check, good), None, "{good}");
        }
        assert_eq!(wrong(check, "010.0.0.1").unwrap(), "must not have leading 0s");
        assert_eq!(wrong(check, "::ffff:1.2.3.4").unwrap(), "must not be an IPv4-mapped IPv6 address");
        for bad in ["", "x", "1.2.3", "1.2.3.4.5", "256.1.1.1", "1.2.3.4/8", "fe80::1%eth0"] {
            assert!(wrong(check, bad).unwrap().starts_with("must be a valid IP"), "{bad}");
        }
        assert_eq!(wrong(check_canonical, "2001:DB8::1").unwrap(), "must be in canonical form (\"2001:db8::1\")");
    }

    #[test]
    fn ranges() {
        assert_eq!(wrong(check_cidr, "10.0.0.0/8"), None);
        assert_eq!(wrong(check_cidr, "10.0.0.1/8").unwrap(), "must not have bits set beyond the prefix length");
        assert_eq!(wrong(check_cidr, "10.0.0.0/08").unwrap(), "must not have leading 0s in IP or prefix length");
        assert!(wrong(check_cidr, "10.0.0.0").unwrap().starts_with("must be a valid CIDR"));
    }

    #[test]
    fn odd_forms_are_warned_of() {
        let mut out = Vec::new();
        warnings(&mut out, "010.0.0.1", &Path::new("a"));
        warnings(&mut out, "2001:0db8::1", &Path::new("b"));
        cidr_warnings(&mut out, "10.0.0.1/8", &Path::new("c"));
        assert_eq!(
            out,
            [
                "a: non-standard IP address \"010.0.0.1\" is invalid: use \"10.0.0.1\"",
                "b: IPv6 address \"2001:0db8::1\" should be in RFC 5952 canonical format (\"2001:db8::1\")",
                "c: CIDR value \"10.0.0.1/8\" is ambiguous in this context (should be \"10.0.0.0/8\" or \"10.0.0.1/32\"?)",
            ]
        );
    }
}

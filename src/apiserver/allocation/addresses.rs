//! ClusterIPs: an address is taken by creating the IPAddress object of its name.

use std::net::IpAddr;
use std::sync::Arc;

use api::Value;
use api::resources::Row;
use api::status::Status;
use ipnet::IpNet;
use serde_json::json;

use super::spec::Family;
use crate::Api;
use crate::registry::{internal, object};

/// The Service that an address is for.
#[derive(Clone, Copy, Debug)]
pub struct Owner<'a> {
    /// Namespace.
    pub namespace: &'a str,
    /// Name.
    pub name: &'a str,
}

/// Why an address can't be had.
pub enum Refusal {
    /// No address is left.
    Full,
    /// The wanted one is no address.
    Unparsed,
    /// In upstream's words.
    Why(String),
}

fn row(api: &Arc<Api>, plural: &str) -> Result<Arc<Row>, Refusal> {
    let found = api.resources.find("networking.k8s.io", plural);
    found.ok_or_else(|| Refusal::Why(format!("no resource {plural}")))
}

/// Ranges of a family that Services may take addresses from: those of ready ServiceCIDRs, else what the flags say.
fn ranges(api: &Arc<Api>, family: Family) -> Vec<IpNet> {
    let cidrs = api.resources.find("networking.k8s.io", "servicecidrs");
    let objects = cidrs.map_or_else(|| Ok(Vec::new()), |row| internal::list(api, &row, "")).unwrap_or_else(|error| {
        tracing::error!(%error, "ServiceCIDRs can't be read; addresses are taken from the ranges of the flags alone");
        Vec::new()
    });
    let ready = objects.iter().filter(|cidr| is_ready(cidr));
    let texts = ready.flat_map(|cidr| object::list(cidr, &["spec", "cidrs"]).iter().filter_map(Value::as_str));
    let mut found: Vec<IpNet> = texts.filter_map(|text| text.parse().ok()).collect();
    found.retain(|net| Family::of_net(net) == family);
    for net in api.services.ranges.iter().filter(|net| Family::of_net(net) == family) {
        if !found.contains(net) {
            found.insert(0, *net);
        }
    }
    found
}

fn is_ready(cidr: &Value) -> bool {
    !object::deleting(cidr)
        && object::list(cidr, &["status", "conditions"])
            .iter()
            .any(|c| object::text(c, &["type"]) == "Ready" && object::text(c, &["status"]) == "True")
}

/// Takes an address: the wanted one, or any where that is empty.
///
/// # Errors
/// Why it can't be had.
pub async fn take(
    api: &Arc<Api>, family: Family, wanted: &str, owner: &Owner<'_>, dry_run: bool,
) -> Result<String, Refusal> {
    let ranges = ranges(api, family);
    if wanted.is_empty() {
        return take_any(api, &ranges, owner, dry_run).await;
    }
    let address: IpAddr = wanted.parse().map_err(|_| Refusal::Unparsed)?;
    if !ranges.iter().any(|net| usable(net).contains(address)) {
        let shown = ranges.iter().find(|net| net.contains(&address)).or(ranges.first());
        return Err(Refusal::Why(match shown {
            Some(net) => {
                format!("the provided IP ({address}) is not in the valid range. The range of valid IPs is {net}")
            }
            None => "the provided network does not match the current range".into(),
        }));
    }
    if dry_run {
        return Ok(wanted.to_string());
    }
    match create(api, address, owner).await? {
        true => Ok(wanted.to_string()),
        false => Err(Refusal::Why("provided IP is already allocated".into())),
    }
}

async fn take_any(api: &Arc<Api>, ranges: &[IpNet], owner: &Owner<'_>, dry_run: bool) -> Result<String, Refusal> {
    for net in ranges {
        if dry_run {
            return Ok(net.network().to_string());
        }
        let range = usable(net);
        let reserved = reserved(range.size);
        for (from, count) in [(reserved, range.size - reserved), (0, reserved)] {
            if let Some(address) = search(api, &range, from, count, owner).await? {
                return Ok(address.to_string());
            }
        }
    }
    Err(Refusal::Full)
}

/// Tries the addresses of a part of a range, from a random one on, around to where it began.
async fn search(
    api: &Arc<Api>, range: &Usable, from: u128, count: u128, owner: &Owner<'_>,
) -> Result<Option<IpAddr>, Refusal> {
    if count == 0 {
        return Ok(None);
    }
    let row = row(api, "ipaddresses")?;
    let start = rand::random_range(0..count);
    // A full range of IPv6 can't be searched to its end by anyone; so many tries find a free one unless it is full.
    for i in 0..count.min(1 << 20) {
        let address = range.at(from + (start + i) % count);
        if internal::exists(api, &row, "", &address.to_string()) {
            continue;
        }
        if create(api, address, owner).await? {
            return Ok(Some(address));
        }
    }
    Ok(None)
}

/// Addresses that may be given: without the network's own and, for IPv4, the broadcast address.
struct Usable {
    first: u128,
    size: u128,
    v6: bool,
}

impl Usable {
    fn at(&self, offset: u128) -> IpAddr {
        let number = self.first + offset;
        if self.v6 { IpAddr::V6(number.into()) } else { IpAddr::V4((number as u32).into()) }
    }

    fn contains(&self, address: IpAddr) -> bool {
        let number = match address {
            IpAddr::V4(v4) if !self.v6 => u128::from(u32::from(v4)),
            IpAddr::V6(v6) if self.v6 => u128::from(v6),
            _ => return false,
        };
        number >= self.first && number - self.first < self.size
    }
}

fn usable(net: &IpNet) -> Usable {
    match net {
        IpNet::V4(net) => {
            let (first, last) = (u32::from(net.network()), u32::from(net.broadcast()));
            Usable { first: u128::from(first) + 1, size: u128::from(last - first).saturating_sub(1), v6: false }
        }
        IpNet::V6(net) => {
            let (first, last) = (u128::from(net.network()), u128::from(net.broadcast()));
            // Upstream gives no more than 2^64 addresses of a range.
            Usable { first: first + 1, size: (last - first).min(u128::from(u64::MAX)), v6: true }
        }
    }
}

/// The lower part of a range, which is given at random only when the rest is full, so that it is there for those who
/// ask for a certain address: a sixteenth, but from 16 to 256 addresses.
fn reserved(size: u128) -> u128 {
    if size <= 16 { 0 } else { (size / 16).clamp(16, 256) }
}

/// Creates the object that makes an address taken; false when somebody has it.
async fn create(api: &Arc<Api>, address: IpAddr, owner: &Owner<'_>) -> Result<bool, Refusal> {
    let row = row(api, "ipaddresses")?;
    let family = if address.is_ipv6() { Family::V6 } else { Family::V4 };
    match internal::create(api, &row, "", address_object(address, family, owner)).await {
        Ok(_) => Ok(true),
        Err(status) if status.reason == "AlreadyExists" => Ok(false),
        Err(status) => Err(Refusal::Why(status.message)),
    }
}

fn address_object(address: IpAddr, family: Family, owner: &Owner<'_>) -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "IPAddress",
        "metadata": {
            "name": address.to_string(),
            "labels": {
                "ipaddress.kubernetes.io/ip-family": family.name(),
                "ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io",
            },
        },
        "spec": {"parentRef": {"resource": "services", "namespace": owner.namespace, "name": owner.name}},
    })
}

/// Gives an address back. Failures are logged: the next repair finds it.
pub async fn release(api: &Arc<Api>, address: &str) {
    let Ok(row) = row(api, "ipaddresses") else { return };
    match internal::delete(api, &row, "", address).await {
        Err(status) if status.code != 404 => {
            tracing::error!(%status, address, "address stays taken until the next repair")
        }
        _ => {}
    }
}

/// Records that a Service holds an address, where nothing does.
///
/// # Errors
/// When the store does not answer.
pub async fn record(api: &Arc<Api>, address: &str, owner: &Owner<'_>) -> Result<(), Status> {
    let Ok(address) = address.parse::<IpAddr>() else { return Ok(()) };
    match create(api, address, owner).await {
        Ok(_) => Ok(()),
        Err(Refusal::Why(why)) => Err(Status::internal(why)),
        Err(Refusal::Full | Refusal::Unparsed) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ends_of_a_range_are_not_given() {
        let range = usable(&"10.96.0.0/16".parse().unwrap());
        assert_eq!(range.at(0), "10.96.0.1".parse::<IpAddr>().unwrap());
        assert!(range.contains("10.96.255.254".parse().unwrap()));
        for address in ["10.96.0.0", "10.96.255.255", "10.97.0.1", "::1"] {
            assert!(!range.contains(address.parse().unwrap()), "{address}");
        }
        assert_eq!(reserved(range.size), 256);
        assert_eq!(reserved(254), 16);
    }

    #[test]
    fn a_range_of_ipv6_has_no_broadcast_address() {
        let range = usable(&"fd00::/120".parse().unwrap());
        assert!(range.contains("fd00::ff".parse().unwrap()));
        assert_eq!(range.size, 255);
    }
}

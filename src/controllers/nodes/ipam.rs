//! node-ipam-controller: gives each node a range of pod addresses out of `--cluster-cidr`.

use crate::context::{Context, Fault, Outcome};
use client::events::EventKind;
use client::{Informer, Key, Queue, Recorder, retry};
use ipnet::IpNet;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams};
use parking_lot::Mutex;
use serde_json::json;
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Gives ranges until the context's end.
///
/// # Errors
/// When the flags name no ranges that can be given.
pub(crate) async fn run(context: Context) -> Result<(), base::Fault> {
    let flags = &context.options.flags;
    if !flags.switch("allocate-node-cidrs") {
        return Ok(());
    }
    let allocator = flags.text("cidr-allocator-type");
    if allocator != "RangeAllocator" {
        return Err(format!("invalid CIDR allocator type: {allocator}").into());
    }
    let pools = pools(&context)?;
    let shell = Shell {
        nodes: context.informer(),
        pools: Mutex::new(pools),
        recorder: context.recorder("cidrAllocator"),
        context: context.clone(),
    };
    let queue = Queue::<Key>::default();
    shell.nodes.synced().await;
    // What is in use must be known before anything is given away.
    for node in shell.nodes.list() {
        shell.occupy(&node);
    }
    let wake = queue.clone();
    let released = std::sync::Arc::new(Mutex::new(Vec::new()));
    let gone = released.clone();
    shell.nodes.on_change(move |change| {
        if let client::Change::Removed(node) = change {
            gone.lock().push(node.clone());
        }
        wake.add(Key::of(&change.object().metadata));
    });
    context
        .serve(&queue, 30, |key| {
            for node in std::mem::take(&mut *released.lock()) {
                shell.release(&node);
            }
            shell.reconcile(key)
        })
        .await;
    Ok(())
}

fn pools(context: &Context) -> Result<Vec<Pool>, String> {
    let flags = &context.options.flags;
    let sizes = (
        flags.int("node-cidr-mask-size-ipv4"),
        flags.int("node-cidr-mask-size-ipv6"),
        flags.int("node-cidr-mask-size"),
    );
    let services: Vec<IpNet> =
        flags.list("service-cluster-ip-range").iter().filter_map(|range| range.parse().ok()).collect();
    let ranges = flags.list("cluster-cidr");
    let ranges = ranges.iter().filter_map(|range| range.parse::<IpNet>().ok());
    ranges.map(|range| Pool::new(range.trunc(), mask_size(&range, sizes), &services)).collect()
}

/// The flag of the family, the common flag, or upstream's default.
fn mask_size(range: &IpNet, (four, six, common): (i64, i64, i64)) -> u8 {
    let (own, default) = match range {
        IpNet::V4(_) => (four, 24),
        IpNet::V6(_) => (six, 64),
    };
    let given = [own, common].into_iter().find(|size| *size > 0);
    given.and_then(|size| u8::try_from(size).ok()).unwrap_or(default)
}

/// One range, cut in equal parts.
#[derive(Debug)]
struct Pool {
    range: IpNet,
    mask: u8,
    used: BTreeSet<u64>,
    next: u64,
}

impl Pool {
    /// Parts in one pool at most.
    const LARGEST: u8 = 16;

    fn new(range: IpNet, mask: u8, reserved: &[IpNet]) -> Result<Self, String> {
        let bits = mask.checked_sub(range.prefix_len()).filter(|_| mask <= range.max_prefix_len());
        match bits {
            None => Err(format!("node mask size {mask} does not fit in {range}")),
            Some(bits) if bits > Self::LARGEST => Err("New CIDR set failed; the node CIDR size is too big".into()),
            Some(_) => {
                let mut pool = Self { range, mask, used: BTreeSet::new(), next: 0 };
                reserved.iter().for_each(|range| pool.occupy(range));
                Ok(pool)
            }
        }
    }

    fn count(&self) -> u64 {
        1 << (self.mask - self.range.prefix_len())
    }

    fn part(&self, number: u64) -> Option<IpNet> {
        let shift = self.range.max_prefix_len() - self.mask;
        let offset = u128::from(number).checked_shl(u32::from(shift)).unwrap_or(0);
        let address = match self.range.network() {
            IpAddr::V4(base) => IpAddr::V4(Ipv4Addr::from(u32::from(base).checked_add(u32::try_from(offset).ok()?)?)),
            IpAddr::V6(base) => IpAddr::V6(Ipv6Addr::from(u128::from(base).checked_add(offset)?)),
        };
        IpNet::new(address, self.mask).ok()
    }

    /// The parts that a range touches.
    fn numbers(&self, range: &IpNet) -> Option<std::ops::RangeInclusive<u64>> {
        if self.range.contains(&range.network()) || range.contains(&self.range.network()) {
            Some(self.number(range.network())?..=self.number(range.broadcast())?)
        } else {
            None
        }
    }

    /// The number of the part that holds an address; the first or last where it lies outside.
    fn number(&self, address: IpAddr) -> Option<u64> {
        let shift = u32::from(self.range.max_prefix_len() - self.mask);
        let offset = match (self.range.network(), address) {
            (IpAddr::V4(base), IpAddr::V4(address)) => u128::from(u32::from(address).saturating_sub(u32::from(base))),
            (IpAddr::V6(base), IpAddr::V6(address)) => u128::from(address).saturating_sub(u128::from(base)),
            _ => return None,
        };
        let number = offset.checked_shr(shift).unwrap_or(0);
        Some(u64::try_from(number).unwrap_or(u64::MAX).min(self.count() - 1))
    }

    fn occupy(&mut self, range: &IpNet) {
        if let Some(numbers) = self.numbers(range) {
            self.used.extend(numbers);
        }
    }

    fn release(&mut self, range: &IpNet) {
        for number in self.numbers(range).into_iter().flatten() {
            self.used.remove(&number);
        }
    }

    /// The next free part, going round, so that a range is not used again at once.
    fn allocate(&mut self) -> Option<IpNet> {
        let count = self.count();
        let number = (0..count).map(|step| (self.next + step) % count).find(|number| !self.used.contains(number))?;
        self.used.insert(number);
        self.next = (number + 1) % count;
        self.part(number)
    }
}

fn ranges_of(node: &Node) -> Vec<IpNet> {
    let spec = node.spec.as_ref();
    let all = spec.and_then(|spec| spec.pod_cidrs.clone()).filter(|all| !all.is_empty());
    let all = all.or_else(|| spec.and_then(|spec| spec.pod_cidr.clone()).map(|one| vec![one])).unwrap_or_default();
    all.iter().filter_map(|range| range.parse().ok()).collect()
}

struct Shell {
    context: Context,
    nodes: Informer<Node>,
    pools: Mutex<Vec<Pool>>,
    recorder: Recorder,
}

impl Shell {
    fn occupy(&self, node: &Node) {
        let mut pools = self.pools.lock();
        for range in ranges_of(node) {
            pools.iter_mut().for_each(|pool| pool.occupy(&range));
        }
    }

    fn release(&self, node: &Node) {
        let mut pools = self.pools.lock();
        for range in ranges_of(node) {
            pools.iter_mut().for_each(|pool| pool.release(&range));
        }
    }

    async fn reconcile(&self, key: Key) -> Outcome {
        let Some(node) = self.nodes.get(&key) else { return Ok(None) };
        if !ranges_of(&node).is_empty() {
            self.occupy(&node);
            return Ok(None);
        }
        let Some(ranges) = self.allocate() else {
            self.tell(&node, "CIDRNotAvailable");
            return Err(Fault::Unusable(
                "CIDR allocation failed; there are no remaining CIDRs left to allocate".into(),
            ));
        };
        let texts: Vec<String> = ranges.iter().map(ToString::to_string).collect();
        let patch = json!({
            "metadata": {"uid": node.metadata.uid},
            "spec": {"podCIDR": texts[0], "podCIDRs": texts},
        });
        let api = self.context.all::<Node>();
        if let Err(error) = api.patch(&key.name, &PatchParams::default(), &Patch::Strategic(patch)).await {
            let mut pools = self.pools.lock();
            for (pool, range) in pools.iter_mut().zip(&ranges) {
                pool.release(range);
            }
            drop(pools);
            if retry::is_not_found(&error) {
                return Ok(None);
            }
            self.tell(&node, "CIDRAssignmentFailed");
            return Err(error.into());
        }
        Ok(None)
    }

    /// A part of each range, or none at all.
    fn allocate(&self) -> Option<Vec<IpNet>> {
        let mut pools = self.pools.lock();
        let mut taken = Vec::new();
        for at in 0..pools.len() {
            match pools[at].allocate() {
                Some(range) => taken.push(range),
                None => {
                    for (pool, range) in pools.iter_mut().zip(&taken) {
                        pool.release(range);
                    }
                    return None;
                }
            }
        }
        Some(taken).filter(|taken| !taken.is_empty())
    }

    fn tell(&self, node: &Node, what: &str) {
        let name = node.metadata.name.as_deref().unwrap_or_default();
        let message = format!("Node {name} status is now: {what}");
        self.recorder.record(&client::events::reference(node), EventKind::Normal, what, message);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    #[test]
    fn ranges_go_round_and_come_back() {
        let mut pool = Pool::new(net("10.244.0.0/22"), 24, &[]).unwrap();
        let all: Vec<_> = (0..4).filter_map(|_| pool.allocate()).map(|range| range.to_string()).collect();
        assert_eq!(all, ["10.244.0.0/24", "10.244.1.0/24", "10.244.2.0/24", "10.244.3.0/24"]);
        assert_eq!(pool.allocate(), None);
        pool.release(&net("10.244.1.0/24"));
        assert_eq!(pool.allocate(), Some(net("10.244.1.0/24")));
    }

    #[test]
    fn ranges_in_use_and_of_services_are_not_given_away() {
        let mut pool = Pool::new(net("10.0.0.0/14"), 16, &[net("10.1.0.0/20")]).unwrap();
        pool.occupy(&net("10.0.0.0/16"));
        assert_eq!(pool.allocate(), Some(net("10.2.0.0/16")));
        let mut six = Pool::new(net("fd00::/56"), 64, &[]).unwrap();
        six.allocate();
        assert_eq!(six.allocate(), Some(net("fd00:0:0:1::/64")));
    }

    #[test]
    fn a_range_that_is_wider_than_the_pool_fills_it() {
        let mut pool = Pool::new(net("10.0.4.0/22"), 24, &[net("10.0.0.0/16")]).unwrap();
        assert_eq!(pool.allocate(), None);
    }

    #[test]
    fn masks_that_do_not_fit_are_refused() {
        assert!(Pool::new(net("10.0.0.0/24"), 16, &[]).is_err());
        assert!(Pool::new(net("10.0.0.0/8"), 28, &[]).is_err());
        assert_eq!(mask_size(&net("10.0.0.0/8"), (0, 0, 0)), 24);
        assert_eq!(mask_size(&net("fd00::/48"), (0, 0, 60)), 60);
    }
}

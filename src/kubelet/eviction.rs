//! Eviction: when memory, disk or processes run short, and when a pod fills more of a volume than it may.
//!
//! The thresholds' meaning and the order of victims follow upstream's documentation: pods above their requests first,
//! then by priority, then by how far they are above.

use crate::events::{Events, Level};
use crate::images::gc::ImageGc;
use crate::kubelet::Request;
use crate::node::machine::{Disk, memory_field, number, processes};
use crate::node::status::Pressure;
use crate::pods::qos::{Side, totals};
use crate::pods::{self, is_critical};
use crate::status::conditions::condition;
use crate::table::Table;
use crate::units::{milli, value};
use crate::volumes::pod_dir;
use crate::work::context::Context;
use crate::work::terminate::Ending;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, mpsc};

/// How often the node is looked at.
const LOOK: Duration = Duration::from_secs(10);
/// Seconds that a pod gets that is evicted at once.
const GRACE: i64 = 1;

/// What is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Signal {
    /// `memory.available`
    Memory,
    /// `nodefs.available`
    Disk,
    /// `nodefs.inodesFree`
    Inodes,
    /// `imagefs.available`
    ImageDisk,
    /// `imagefs.inodesFree`
    ImageInodes,
    /// `pid.available`
    Pids,
}

impl Signal {
    fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "memory.available" => Signal::Memory,
            "nodefs.available" => Signal::Disk,
            "nodefs.inodesFree" => Signal::Inodes,
            "imagefs.available" => Signal::ImageDisk,
            "imagefs.inodesFree" => Signal::ImageInodes,
            "pid.available" => Signal::Pids,
            _ => return None,
        })
    }

    fn resource(self) -> &'static str {
        match self {
            Signal::Memory => "memory",
            Signal::Disk | Signal::ImageDisk => "ephemeral-storage",
            Signal::Inodes | Signal::ImageInodes => "inodes",
            Signal::Pids => "pids",
        }
    }
}

/// How little is too little.
#[derive(Clone, Debug, PartialEq)]
pub enum Least {
    /// So much.
    Amount(i64),
    /// So many hundredths of the whole.
    Percent(f64),
}

impl Least {
    fn parse(text: &str) -> Option<Self> {
        match text.strip_suffix('%') {
            Some(percent) => percent.parse().ok().map(Least::Percent),
            None => api::quantity::Quantity::parse(text).ok().map(|amount| Least::Amount(amount.value())),
        }
    }

    /// In units, given the whole.
    pub fn of(&self, whole: u64) -> u64 {
        match self {
            Least::Amount(amount) => (*amount).max(0) as u64,
            Least::Percent(percent) => (whole as f64 * percent / 100.0) as u64,
        }
    }
}

/// Reads thresholds of the configuration; unknown names and texts are refused by name.
pub fn thresholds(from: &BTreeMap<String, String>) -> Result<BTreeMap<Signal, Least>, String> {
    let one = |(name, text): (&String, &String)| {
        let signal = Signal::parse(name).ok_or_else(|| format!("unknown eviction signal {name:?}"))?;
        let least = Least::parse(text).ok_or_else(|| format!("invalid eviction threshold {name}<{text}"))?;
        Ok((signal, least))
    };
    from.iter().map(one).collect()
}

/// What there is and what is left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Stock {
    whole: u64,
    left: u64,
}

/// The first threshold that is passed, with its numbers.
#[derive(Clone, Debug, PartialEq)]
struct Shortage {
    signal: Signal,
    threshold: u64,
    left: u64,
}

fn shortages(stock: &BTreeMap<Signal, Stock>, thresholds: &BTreeMap<Signal, Least>) -> Vec<Shortage> {
    let passed = |(signal, least): (&Signal, &Least)| {
        let stock = stock.get(signal)?;
        let threshold = least.of(stock.whole);
        (stock.whole > 0 && stock.left < threshold).then_some(Shortage { signal: *signal, threshold, left: stock.left })
    };
    thresholds.iter().filter_map(passed).collect()
}

/// How many processes there may be, and how many there are.
fn pids() -> Option<(u64, u64)> {
    let most = number("/proc/sys/kernel/pid_max")?.min(number("/proc/sys/kernel/threads-max").unwrap_or(u64::MAX));
    Some((most, processes()?))
}

fn pressure(shortages: &[Shortage]) -> Pressure {
    let any = |signals: &[Signal]| shortages.iter().any(|short| signals.contains(&short.signal));
    Pressure {
        memory: any(&[Signal::Memory]),
        disk: any(&[Signal::Disk, Signal::Inodes, Signal::ImageDisk, Signal::ImageInodes]),
        pid: any(&[Signal::Pids]),
    }
}

/// A pod that may have to go.
#[derive(Clone, Debug)]
struct Victim {
    uid: String,
    used: i64,
    requested: i64,
    priority: i32,
}

/// The order in which pods go.
fn rank(mut victims: Vec<Victim>) -> Vec<Victim> {
    victims.sort_by(|a, b| {
        let above = |v: &Victim| v.used > v.requested;
        above(b)
            .cmp(&above(a))
            .then(a.priority.cmp(&b.priority))
            .then((b.used - b.requested).cmp(&(a.used - a.requested)))
    });
    victims
}

/// Watches the node.
pub struct Evictor {
    /// The workers' common ground.
    pub ctx: Arc<Context>,
    /// The pods there shall be.
    pub table: Arc<Table>,
    /// Thresholds that evict at once.
    pub thresholds: BTreeMap<Signal, Least>,
    /// Where the pressure is shown.
    pub pressure: Arc<RwLock<Pressure>>,
    /// Wakes the keeper of the node's status.
    pub wake: Arc<Notify>,
    /// Ends pods.
    pub requests: mpsc::Sender<Request>,
    /// Frees disk before pods must go.
    pub images: Arc<ImageGc>,
}

impl Evictor {
    /// Looks until it is dropped.
    pub async fn run(self) {
        let mut ticks = tokio::time::interval(LOOK);
        loop {
            ticks.tick().await;
            self.volumes().await;
            self.look().await;
        }
    }

    /// What there is of each signal; one that can't be read has no entry, and evicts nobody.
    fn stock(&self) -> BTreeMap<Signal, Stock> {
        let of = |whole, left| Stock { whole, left };
        let memory = memory_field("MemTotal") as u64;
        let used = match &self.ctx.cgroups {
            Some(groups) => groups.usage_of_machine().working_set,
            None => memory.saturating_sub(memory_field("MemAvailable") as u64),
        };
        let mut stock = BTreeMap::from([(Signal::Memory, of(memory, memory.saturating_sub(used)))]);
        match Disk::of(self.ctx.volumes.root()) {
            Ok(disk) => stock.extend([
                (Signal::Disk, of(disk.capacity, disk.available)),
                (Signal::Inodes, of(disk.inodes, disk.inodes_free)),
                (Signal::ImageDisk, of(disk.capacity, disk.available)),
                (Signal::ImageInodes, of(disk.inodes, disk.inodes_free)),
            ]),
            Err(error) => tracing::warn!(%error, "the disk can't be looked at: it is not watched for eviction"),
        }
        match pids() {
            Some((most, running)) => drop(stock.insert(Signal::Pids, of(most, most.saturating_sub(running)))),
            None => tracing::warn!("processes can't be counted: they are not watched for eviction"),
        }
        stock
    }

    async fn look(&self) {
        let shortages = shortages(&self.stock(), &self.thresholds);
        let seen = pressure(&shortages);
        let before = std::mem::replace(&mut *self.pressure.write(), seen);
        if before != seen {
            self.wake.notify_one();
        }
        let Some(short) = shortages.first() else { return };
        tracing::warn!(
            resource = short.signal.resource(),
            left = short.left,
            threshold = short.threshold,
            "the node runs short"
        );
        if seen.disk {
            match self.images.free_bytes(short.threshold.saturating_sub(short.left)).await {
                Ok(freed) if freed > 0 => return,
                Ok(_) => {}
                Err(error) => tracing::warn!(error, "can't free disk by removing images"),
            }
        }
        self.evict_one(short).await;
    }

    fn candidates(&self) -> Vec<Arc<Pod>> {
        let alive = |pod: &Arc<Pod>| {
            let status = self.ctx.statuses.get(pods::uid(pod)).unwrap_or_default();
            !pods::is_terminal(status.phase.as_deref().unwrap_or_default()) && !pods::is_deleting(pod)
        };
        self.table.all().into_iter().filter(|pod| alive(pod) && !is_critical(pod)).collect()
    }

    async fn evict_one(&self, short: &Shortage) {
        let resource = short.signal.resource();
        let victims = self.candidates().iter().map(|pod| self.victim(pod, short.signal)).collect();
        let Some(victim) = rank(victims).into_iter().next() else { return };
        let Some(pod) = self.table.get(&victim.uid) else { return };
        let amount = |amount: u64| match resource {
            "memory" | "ephemeral-storage" => crate::units::from_bytes(amount as i64).0,
            _ => amount.to_string(),
        };
        let message = format!(
            "The node was low on resource: {resource}. Threshold quantity: {}, available: {}. ",
            amount(short.threshold),
            amount(short.left)
        );
        self.evict(&pod, message).await;
    }

    fn victim(&self, pod: &Pod, signal: Signal) -> Victim {
        let requests = totals(pod, Side::Requests, true);
        let request = |name: &str| requests.get(name).copied().unwrap_or(0) / 1000;
        let usage = self.ctx.cgroups.as_ref().map(|groups| groups.usage(Some(pod))).unwrap_or_default();
        let (used, requested) = match signal {
            Signal::Memory => (usage.working_set as i64, request("memory")),
            Signal::Pids => (usage.pids as i64, 0),
            _ => {
                let dir = pod_dir(self.ctx.volumes.root(), pods::uid(pod));
                (disk_use(&dir) as i64, request("ephemeral-storage"))
            }
        };
        let priority = pods::spec(pod).priority.unwrap_or(0);
        Victim { uid: pods::uid(pod).to_owned(), used, requested, priority }
    }

    async fn evict(&self, pod: &Arc<Pod>, message: String) {
        self.ctx.events.pod(pod, Level::Warning, "Evicted", &message);
        let disruption = condition(pod, "DisruptionTarget", true, "TerminationByKubelet", &message);
        self.ctx.statuses.disrupt(pods::uid(pod), disruption);
        let ending = Ending { grace: Some(GRACE), eviction: Some(("Evicted".into(), message)) };
        let uid = pods::uid(pod).to_owned();
        // The loop is there as long as the kubelet is.
        let _ = self.requests.send(Request::End(uid, ending)).await;
    }

    /// Pods that fill more of an emptyDir than they may.
    async fn volumes(&self) {
        for pod in self.candidates() {
            let Some((name, limit)) = self.overfull(&pod) else { continue };
            let message = format!("Usage of EmptyDir volume {name:?} exceeds the limit {:?}. ", limit.0);
            self.evict(&pod, message).await;
        }
    }

    fn overfull(&self, pod: &Pod) -> Option<(String, Quantity)> {
        let dir = pod_dir(self.ctx.volumes.root(), pods::uid(pod)).join("volumes/kubernetes.io~empty-dir");
        pods::spec(pod).volumes.iter().flatten().find_map(|volume| {
            let limit = volume.empty_dir.as_ref()?.size_limit.clone().filter(|limit| milli(limit) > 0)?;
            (disk_use(&dir.join(&volume.name)) > value(&limit) as u64).then(|| (volume.name.clone(), limit))
        })
    }
}

/// Bytes on disk of all that lies below a directory, other file systems excepted.
fn disk_use(dir: &Path) -> u64 {
    let Ok(meta) = std::fs::symlink_metadata(dir) else { return 0 };
    let (mut sum, mut todo) = (0, vec![dir.to_owned()]);
    while let Some(dir) = todo.pop() {
        for entry in std::fs::read_dir(&dir).into_iter().flatten().flatten() {
            // What goes away while it is counted does not count.
            let Ok(own) = entry.metadata() else { continue };
            if own.dev() != meta.dev() {
                continue;
            }
            sum += own.blocks() * 512;
            if own.is_dir() {
                todo.push(entry.path());
            }
        }
    }
    sum
}

/// Tells that a limit of the node is in force.
pub fn enforced(events: &Events, node: &str) {
    events.node(node, Level::Normal, "NodeAllocatableEnforced", "Updated Node Allocatable limit across pods");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thresholds_are_amounts_or_parts_of_the_whole() {
        let read = |pairs: &[(&str, &str)]| {
            thresholds(&pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect())
        };
        let limits = read(&[("memory.available", "100Mi"), ("nodefs.available", "10%")]).unwrap();
        let stock = BTreeMap::from([
            (Signal::Memory, Stock { whole: 1 << 30, left: 50 << 20 }),
            (Signal::Disk, Stock { whole: 1000, left: 100 }),
        ]);
        let short = shortages(&stock, &limits);
        assert_eq!(short, [Shortage { signal: Signal::Memory, threshold: 100 << 20, left: 50 << 20 }]);
        assert_eq!(pressure(&short), Pressure { memory: true, ..Default::default() });
        assert!(read(&[("nope", "1")]).unwrap_err().contains("nope"));
    }

    #[test]
    fn pods_above_their_requests_go_first_then_by_priority_then_by_excess() {
        let victim = |uid: &str, used, requested, priority| Victim { uid: uid.into(), used, requested, priority };
        let order: Vec<String> = rank(vec![
            victim("modest", 10, 20, 0),
            victim("greedy", 100, 20, 0),
            victim("important", 200, 20, 10),
            victim("greedier", 150, 20, 0),
        ])
        .into_iter()
        .map(|victim| victim.uid)
        .collect();
        assert_eq!(order, ["greedier", "greedy", "important", "modest"]);
    }
}

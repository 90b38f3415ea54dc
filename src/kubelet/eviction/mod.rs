//! Eviction: when memory, disk or processes run short, and when a pod fills more of a volume than it may.
//!
//! The thresholds' meaning and the order of victims follow upstream's documentation: pods above their requests first,
//! then by priority, then by how far they are above.

pub mod limits;
pub mod thresholds;

use self::limits::Written;
use self::thresholds::{Memory, Shortage, Signal, Stock, Threshold};
use crate::events::{Events, Level};
use crate::images::gc::ImageGc;
use crate::kubelet::Request;
use crate::node::machine::{Disk, memory_field, number, processes};
use crate::node::status::Pressure;
use crate::pods::qos::{Side, totals};
use crate::pods::{self, is_critical};
use crate::runtime::spec::pod_log_dir;
use crate::status::conditions::condition;
use crate::table::Table;
use crate::volumes::pod_dir;
use crate::work::context::Context;
use crate::work::terminate::Ending;
use k8s_openapi::api::core::v1::Pod;
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Notify, mpsc};

/// How often the node is looked at.
const LOOK: Duration = Duration::from_secs(10);
/// Seconds that a pod gets that is evicted at once.
const GRACE: i64 = 1;

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
    /// When the node is short of something.
    pub thresholds: Vec<Threshold>,
    /// Seconds that a pod gets at most which a soft threshold evicts.
    pub soft_grace: i64,
    /// Are pods held to what they may write?
    pub storage_limits: bool,
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
        let (mut memory, mut images_at) = (Memory::default(), None);
        loop {
            ticks.tick().await;
            if self.storage_limits {
                self.hold_to_limits().await;
            }
            if images_at.is_none() {
                images_at = self.images_at().await;
            }
            self.look(&mut memory, images_at.as_deref()).await;
        }
    }

    /// Where the runtime has its images, as soon as it tells.
    async fn images_at(&self) -> Option<PathBuf> {
        match self.ctx.cri.image_root().await {
            Ok(path) => path,
            Err(error) => {
                tracing::warn!(%error, "the runtime does not tell where images are: their disk is not watched");
                None
            }
        }
    }

    /// What there is of each signal; one that can't be read has no entry, and evicts nobody.
    fn stock(&self, images_at: Option<&Path>) -> BTreeMap<Signal, Stock> {
        let of = |whole, left| Stock { whole, left };
        let memory = memory_field("MemTotal") as u64;
        let used = match &self.ctx.cgroups {
            Some(groups) => groups.usage_of_machine().working_set,
            None => memory.saturating_sub(memory_field("MemAvailable") as u64),
        };
        let mut stock = BTreeMap::from([(Signal::Memory, of(memory, memory.saturating_sub(used)))]);
        let mut disk = |path: &Path, bytes, inodes| match Disk::of(path) {
            Ok(disk) => {
                stock.insert(bytes, of(disk.capacity, disk.available));
                stock.insert(inodes, of(disk.inodes, disk.inodes_free));
            }
            Err(error) => tracing::warn!(%error, ?path, "the disk can't be looked at: it is not watched for eviction"),
        };
        disk(self.ctx.volumes.root(), Signal::Disk, Signal::Inodes);
        if let Some(path) = images_at {
            disk(path, Signal::ImageDisk, Signal::ImageInodes);
        }
        match pids() {
            Some((most, running)) => drop(stock.insert(Signal::Pids, of(most, most.saturating_sub(running)))),
            None => tracing::warn!("processes can't be counted: they are not watched for eviction"),
        }
        stock
    }

    async fn look(&self, memory: &mut Memory, images_at: Option<&Path>) {
        let look = memory.look(Instant::now(), &self.stock(images_at), &self.thresholds);
        let seen = pressure(&look.short);
        let before = std::mem::replace(&mut *self.pressure.write(), seen);
        if before != seen {
            self.wake.notify_one();
        }
        let Some(short) = look.due.first() else { return };
        tracing::warn!(
            resource = short.signal.resource(),
            left = short.left,
            threshold = short.threshold,
            "the node runs short"
        );
        if pressure(&look.due).disk {
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
        let disruption = condition(&pod, "DisruptionTarget", true, "TerminationByKubelet", &message);
        self.ctx.statuses.disrupt(pods::uid(&pod), disruption);
        let grace = if short.soft { self.soft_grace(&pod) } else { GRACE };
        self.evict(&pod, grace, message).await;
    }

    /// The pod's own time where that is shorter.
    fn soft_grace(&self, pod: &Pod) -> i64 {
        pods::spec(pod).termination_grace_period_seconds.map_or(self.soft_grace, |own| own.min(self.soft_grace))
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

    async fn evict(&self, pod: &Arc<Pod>, grace: i64, message: String) {
        self.ctx.events.pod(pod, Level::Warning, "Evicted", &message);
        let ending = Ending { grace: Some(grace), eviction: Some(("Evicted".into(), message)) };
        let uid = pods::uid(pod).to_owned();
        // The loop is there as long as the kubelet is.
        let _ = self.requests.send(Request::End(uid, ending)).await;
    }

    /// Ends pods that have written more than they may.
    async fn hold_to_limits(&self) {
        let pods: Vec<_> = self.candidates().into_iter().filter(|pod| limits::limited(pod)).collect();
        let layers = match pods.iter().any(|pod| limits::limits_storage(pod)) {
            false => BTreeMap::new(),
            true => match limits::layers(&self.ctx.cri).await {
                Ok(layers) => layers,
                Err(error) => {
                    tracing::warn!(%error, "the runtime does not tell what containers wrote: only volumes and logs count");
                    BTreeMap::new()
                }
            },
        };
        for pod in pods {
            let dir = pod_dir(self.ctx.volumes.root(), pods::uid(&pod));
            let logs = pod_log_dir(&self.ctx.log_root, &pod);
            let written = Written {
                empty_dirs: limits::empty_dirs(&pod, &dir),
                containers: limits::containers(&pod, &layers, &logs),
            };
            if let Some(message) = limits::exceeded(&pod, &written) {
                self.evict(&pod, GRACE, message).await;
            }
        }
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

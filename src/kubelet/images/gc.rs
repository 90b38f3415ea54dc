//! Removes images that nothing uses: when the disk grows full, and when they have been unused for long.

use crate::events::{Events, Level};
use crate::runtime::cri::{Cri, Result};
use k8s_cri::v1;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

/// When images are removed.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// Use of the disk in percent above which images go.
    pub high: u64,
    /// Use of the disk in percent down to which they go.
    pub low: u64,
    /// How long an unused image stays at least.
    pub min_age: Duration,
    /// How long it stays at most; zero is for ever.
    pub max_age: Duration,
}

/// When an image was first seen and last in use.
#[derive(Clone, Copy, Debug)]
struct Record {
    first: Instant,
    last: Instant,
}

/// An image as the collector sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Candidate {
    id: String,
    size: u64,
}

/// The collector of unused images.
pub struct ImageGc {
    cri: Cri,
    events: Events,
    node: String,
    policy: Policy,
    records: Mutex<HashMap<String, Record>>,
}

/// What the disk of images holds: capacity and what is free, in bytes.
fn disk(mountpoint: &str) -> std::io::Result<(u64, u64)> {
    let stat = nix::sys::statvfs::statvfs(mountpoint)?;
    let unit = stat.fragment_size();
    Ok((stat.blocks() * unit, stat.blocks_available() * unit))
}

impl ImageGc {
    /// A collector that obeys a policy.
    pub fn new(cri: Cri, events: Events, node: String, policy: Policy) -> Self {
        Self { cri, events, node, policy, records: Mutex::default() }
    }

    /// Looks once, and removes what must go.
    pub async fn run_once(&self) {
        if let Err(error) = self.collect().await {
            tracing::warn!(%error, "image garbage collection failed");
            self.events.node(&self.node, Level::Warning, "ImageGCFailed", error);
        }
    }

    async fn collect(&self) -> std::result::Result<(), String> {
        let unused = self.unused().await.map_err(|error| error.with_code())?;
        let old = |record: &Record| !self.policy.max_age.is_zero() && record.last.elapsed() > self.policy.max_age;
        for (candidate, record) in unused.iter().filter(|(_, record)| old(record)) {
            tracing::info!(image = candidate.id, unused = ?record.last.elapsed(), "removing an image unused for long");
            self.remove(&candidate.id).await?;
        }
        let Some(usage) = self.cri.image_fs().await.map_err(|error| error.with_code())?.into_iter().next() else {
            return Ok(());
        };
        let mountpoint = usage.fs_id.map(|id| id.mountpoint).unwrap_or_default();
        let (capacity, available) = disk(&mountpoint).map_err(|error| format!("{mountpoint}: {error}"))?;
        if capacity == 0 {
            return Err(format!("invalid capacity 0 on image filesystem {mountpoint}"));
        }
        let used = 100 - available * 100 / capacity;
        if used < self.policy.high {
            return Ok(());
        }
        let wanted = (capacity * (100 - self.policy.low) / 100).saturating_sub(available);
        let freed = self.free(unused, wanted).await?;
        match freed >= wanted {
            true => Ok(()),
            false => Err(format!(
                "Failed to garbage collect required amount of images. Attempted to free {wanted} bytes, but only found {freed} bytes eligible to free."
            )),
        }
    }

    /// Removes the longest unused images until so many bytes are free.
    pub async fn free_bytes(&self, wanted: u64) -> std::result::Result<u64, String> {
        let unused = self.unused().await.map_err(|error| error.with_code())?;
        self.free(unused, wanted).await
    }

    async fn free(&self, unused: Vec<(Candidate, Record)>, wanted: u64) -> std::result::Result<u64, String> {
        let mut freed = 0;
        for (candidate, record) in unused {
            if freed >= wanted {
                break;
            }
            if record.first.elapsed() < self.policy.min_age {
                continue;
            }
            self.remove(&candidate.id).await?;
            freed += candidate.size;
        }
        Ok(freed)
    }

    async fn remove(&self, id: &str) -> std::result::Result<(), String> {
        self.cri.remove_image(id).await.map_err(|error| error.with_code())?;
        self.records.lock().remove(id);
        Ok(())
    }

    /// Images that no container uses, the longest unused first.
    async fn unused(&self) -> Result<Vec<(Candidate, Record)>> {
        let (images, containers) = tokio::try_join!(self.cri.list_images(), self.cri.containers(None))?;
        let in_use: HashSet<String> = containers.into_iter().map(|container| container.image_ref).collect();
        let now = Instant::now();
        let mut records = self.records.lock();
        records.retain(|id, _| images.iter().any(|image| image.id == *id));
        let mut unused = Vec::new();
        for image in images {
            let used = image.pinned || is_used(&image, &in_use);
            let record = records.entry(image.id.clone()).or_insert(Record { first: now, last: now });
            if used {
                record.last = now;
            } else {
                unused.push((Candidate { id: image.id, size: image.size }, *record));
            }
        }
        unused.sort_by_key(|(_, record)| (record.last, record.first));
        Ok(unused)
    }
}

/// Containers name images by id, or by digest.
fn is_used(image: &v1::Image, in_use: &HashSet<String>) -> bool {
    in_use.contains(&image.id) || image.repo_digests.iter().chain(&image.repo_tags).any(|name| in_use.contains(name))
}

//! What fills the cache: a list at one revision, then the one watch from there on.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::StreamExt;

use super::resource::Applied;
use super::{Cache, Cached, Decode};
use crate::{Change, Changes, Error, KeyValue, Result, Revision};

/// Items in a page of the list.
const PAGE: usize = 1000;
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

type Loaded<D> = Vec<Arc<Cached<<D as Decode>::Entry>>>;

/// Feeds the cache until it is dropped.
pub(super) async fn run<D: Decode>(cache: Weak<Cache<D>>, root: String, mut changes: Changes) {
    loop {
        while let Some(batch) = changes.next().await {
            let Some(cache) = cache.upgrade() else { return };
            match batch {
                Ok(batch) => cache.apply(batch),
                Err(error) => {
                    tracing::warn!("watch cache: the watch ended, listing again: {error}");
                    break;
                }
            }
        }
        let mut pause = PAUSE.0;
        changes = loop {
            let Some(cache) = cache.upgrade() else { return };
            match cache.load(&root).await {
                Ok(changes) => break changes,
                Err(error) => tracing::warn!("watch cache: list failed, will try again: {error}"),
            }
            drop(cache);
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE.1);
        };
    }
}

impl<D: Decode> Cache<D> {
    /// Lists everything below `root` at one revision, replaces what the cache has, and opens the watch from there.
    pub(super) async fn load(self: &Arc<Self>, root: &str) -> Result<Changes> {
        loop {
            let (loaded, revision) = match self.list_all(root).await {
                // Compacted while it was read: begin again.
                Err(Error::Compacted { .. }) => continue,
                other => other?,
            };
            match self.store.watch("", revision).await {
                Err(Error::Compacted { .. }) => continue,
                Err(error) => return Err(error),
                Ok(changes) => {
                    self.replace(loaded, revision);
                    return Ok(changes);
                }
            }
        }
    }

    /// All pages at the revision of the first; each is decoded beside the reading of the next.
    async fn list_all(self: &Arc<Self>, root: &str) -> Result<(Loaded<D>, Revision)> {
        let (mut from, mut revision) = (String::new(), 0);
        let mut decoding = Vec::new();
        loop {
            let page = self.store.list(root, &from, PAGE, revision).await?;
            revision = page.revision;
            if let Some(last) = page.items.last() {
                from = format!("{}\0", last.key);
            }
            let cache = self.clone();
            decoding.push(tokio::task::spawn_blocking(move || cache.decode_page(page.items)));
            if !page.more {
                break;
            }
        }
        let mut loaded = Vec::new();
        for page in decoding {
            let page = page.await.map_err(|e| Error::Unavailable(format!("decoding failed: {e}")))?;
            loaded.extend(page);
        }
        Ok((loaded, revision))
    }

    fn decode_page(&self, items: Vec<KeyValue>) -> Loaded<D> {
        items.into_iter().filter(|kv| self.decode.resource(&kv.key).is_some()).map(|kv| self.decode(&kv)).collect()
    }

    fn replace(&self, loaded: Loaded<D>, revision: Revision) {
        self.listed.store(revision, Ordering::Release);
        let mut by_resource: HashMap<Box<str>, Loaded<D>> = HashMap::new();
        for cached in loaded {
            if let Some(name) = self.decode.resource(&cached.key) {
                match by_resource.get_mut(name) {
                    Some(entries) => entries.push(cached),
                    None => drop(by_resource.insert(name.into(), vec![cached])),
                }
            }
        }
        let old: Vec<Box<str>> = self.resources.read().keys().cloned().collect();
        for name in old {
            by_resource.entry(name).or_default();
        }
        for (name, entries) in by_resource {
            self.resource(&name).replace(entries, revision);
        }
        self.reached.send_replace(revision);
    }

    /// Applies a batch of changes, whole revisions only, and says that they are there. Each resource gets its part at
    /// once: nobody sees half a transaction.
    fn apply(&self, batch: Vec<Change>) {
        let Some(last) = batch.last().map(|change| change.revision) else { return };
        let mut parts: Vec<(Box<str>, Vec<Applied<D::Entry>>)> = Vec::new();
        for change in batch {
            let Some(name) = self.decode.resource(&change.key) else { continue };
            let part = match parts.iter().position(|(part, _)| **part == *name) {
                Some(at) => at,
                None => {
                    parts.push((name.into(), Vec::new()));
                    parts.len() - 1
                }
            };
            let applied = self.applied(change);
            parts[part].1.push(applied);
        }
        for (name, part) in parts {
            self.resource(&name).apply(part);
        }
        self.reached.send_replace(last);
    }

    fn applied(&self, change: Change) -> Applied<D::Entry> {
        match change.value {
            None => Applied::Deleted(change.key, change.revision),
            Some(value) => {
                let Change { key, create_revision, revision, .. } = change;
                Applied::Put(self.decode(&KeyValue { key, value, mod_revision: revision, create_revision }))
            }
        }
    }
}

//! The watch cache: the whole keyspace in memory, fed by one watch, indistinguishable from the store but by speed.
//!
//! ```text
//!   store ──one watch──► apply ──► persistent map per resource ──► snapshots (a pointer each) ──► get, list
//!                              ├─► log of events per resource  ──► older snapshots, late watchers
//!                              └─► index of watchers           ──► a bounded queue per watcher   ──► watch
//! ```
//!
//! What an entry holds beside its bytes is the caller's business: a [`Decode`] turns each stored value into an entry
//! once, when it enters the cache, and everything after that shares the entry.
//!
//! Because the watch covers the whole keyspace, every revision arrives as an event: the cache knows which revision it
//! has reached without progress notifications, which etcd before 3.4.25 can't be asked for.

mod check;
mod feed;
mod refresh;
mod resource;
mod store;
#[cfg(test)]
mod tests;
mod watchers;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use parking_lot::RwLock;

use crate::{Error, KeyValue, Result, Revision, Store};
pub use check::{Difference, differences};
use resource::Resource;
pub use store::{CacheStore, Raw};
pub use watchers::Cursor;

/// How long a read waits for a revision that is not there yet: upstream's patience.
const PATIENCE: Duration = Duration::from_secs(3);

/// Turns stored values into entries.
pub trait Decode: Send + Sync + 'static {
    /// What readers get.
    type Entry: Indexed + Send + Sync + 'static;

    /// The resource a key belongs to, as the part of the key before the object's own (`/registry/pods/`), or `None`
    /// for keys that nobody reads through the cache.
    fn resource<'k>(&self, key: &'k str) -> Option<&'k str>;

    /// Fields by which a resource's entries can be looked up and watched at the price of what is found.
    fn indexes(&self, _resource: &str) -> &'static [&'static str] {
        &[]
    }

    /// Makes the entry of a value, once per write. Values that can't be decoded become entries that say so; they are
    /// never dropped.
    fn decode(&self, kv: &KeyValue) -> Self::Entry;
}

/// What the cache asks of an entry.
pub trait Indexed {
    /// Value of one of the fields that [`Decode::indexes`] names (`spec.nodeName` …).
    fn index(&self, field: &str) -> Option<&str>;

    /// Bytes it holds, about: what bounds the log of events.
    fn weight(&self) -> usize;

    /// True when the other was made of the same value: what the checker compares.
    fn same(&self, other: &Self) -> bool;
}

/// An entry under its key and revision.
#[derive(Debug)]
pub struct Cached<E> {
    /// Key.
    pub key: Arc<str>,
    /// Revision of the last write: the object's resourceVersion.
    pub revision: Revision,
    /// Revision of the write that made the key.
    pub created: Revision,
    /// What [`Decode`] made of the value.
    pub entry: E,
}

/// The same key at the same revision has the same value: maps of entries are compared by that.
impl<E> PartialEq for Cached<E> {
    fn eq(&self, other: &Self) -> bool {
        self.revision == other.revision && self.key == other.key
    }
}

/// A change as watchers see it.
#[derive(Debug)]
pub struct Event<E> {
    /// Revision of the change. For a deletion this is newer than the entry's own.
    pub revision: Revision,
    /// The object after the change; `None` when it was deleted.
    pub now: Option<Arc<Cached<E>>>,
    /// The object before the change; `None` when it was made.
    pub before: Option<Arc<Cached<E>>>,
}

impl<E> Event<E> {
    /// The key that changed.
    pub fn key(&self) -> &str {
        self.now.as_ref().or(self.before.as_ref()).map_or("", |cached| &cached.key)
    }
}

/// Entries by key.
pub type Entries<E> = imbl::OrdMap<Arc<str>, Arc<Cached<E>>>;

/// A state of one resource at one revision; stays as it is while held.
pub struct Snapshot<E> {
    /// The revision of the whole store at which this is the state.
    pub revision: Revision,
    /// Entries by key, in key order.
    pub entries: Entries<E>,
    /// The same entries by indexed field and value; empty for older states, which have no index.
    indexes: Vec<(&'static str, resource::Index<E>)>,
}

impl<E> Snapshot<E> {
    /// A state that was read elsewhere, without an index.
    pub fn of(revision: Revision, entries: Entries<E>) -> Self {
        Self { revision, entries, indexes: Vec::new() }
    }

    /// Entries whose indexed field has this value, in key order; `None` when that field is not indexed here.
    pub fn by_field(&self, field: &str, value: &str) -> Option<Entries<E>> {
        let (_, index) = self.indexes.iter().find(|(name, _)| *name == field)?;
        Some(index.get(value).cloned().unwrap_or_default())
    }
}

/// What a watcher wants to see; narrower is cheaper: a watcher costs nothing when something else happens. The final
/// word on a selector is the watcher's own.
#[derive(Debug, Clone, Default)]
pub struct Interest {
    /// The resource, as [`Decode::resource`] names it.
    pub resource: String,
    /// Only keys below this prefix (a namespace), empty for all.
    pub prefix: String,
    /// Only this key.
    pub key: Option<String>,
    /// Only entries whose indexed field has, or had, this value.
    pub field: Option<(&'static str, String)>,
}

/// The cache.
pub struct Cache<D: Decode> {
    decode: D,
    store: Arc<dyn Store>,
    resources: RwLock<HashMap<Box<str>, Arc<Resource<D::Entry>>>>,
    /// Revision of the last list: a resource that nobody heard of is known to be empty since then.
    listed: AtomicI64,
    /// The revision up to which everything is applied and handed to watchers.
    reached: tokio::sync::watch::Sender<Revision>,
    refresher: refresh::Refresher,
    /// The task that feeds it, which ends with it.
    feeder: parking_lot::Mutex<Option<tokio_util::task::AbortOnDropHandle<()>>>,
}

impl<D: Decode> Cache<D> {
    /// Starts a cache of everything: lists what is below `root` (`/registry/`), then watches the whole keyspace;
    /// returns when the first list is in. Loses its watch: lists again and tells watchers that they must, too, where
    /// events are missing.
    ///
    /// # Errors
    /// When the store can't be read.
    pub async fn start(store: Arc<dyn Store>, root: &str, decode: D) -> Result<Arc<Self>> {
        let cache = Arc::new(Self {
            decode,
            refresher: refresh::Refresher::start(store.clone()),
            store,
            resources: RwLock::new(HashMap::new()),
            listed: AtomicI64::new(0),
            reached: tokio::sync::watch::channel(0).0,
            feeder: parking_lot::Mutex::new(None),
        });
        let changes = cache.load(root).await?;
        let feeder = tokio::spawn(feed::run(Arc::downgrade(&cache), root.to_string(), changes));
        *cache.feeder.lock() = Some(tokio_util::task::AbortOnDropHandle::new(feeder));
        Ok(cache)
    }

    /// The entry of a key as the cache has it now.
    pub fn get(&self, key: &str) -> Option<Arc<Cached<D::Entry>>> {
        self.existing(self.decode.resource(key)?)?.get(key)
    }

    /// The state of a resource now.
    pub fn snapshot(&self, resource: &str) -> Snapshot<D::Entry> {
        let reached = self.revision();
        match self.existing(resource) {
            Some(resource) => resource.snapshot(reached),
            None => Snapshot { revision: reached, entries: Entries::new(), indexes: Vec::new() },
        }
    }

    /// The state of a resource at an older revision, for continue tokens.
    ///
    /// # Errors
    /// `Compacted` when the cache no longer has it, `Future` when it does not have it yet.
    pub fn snapshot_at(&self, resource: &str, revision: Revision) -> Result<Snapshot<D::Entry>> {
        let current = self.revision();
        if revision > current {
            return Err(Error::Future { wanted: revision, current });
        }
        self.resource(resource).at(revision)
    }

    /// The revision the cache has reached.
    pub fn revision(&self) -> Revision {
        *self.reached.borrow()
    }

    /// Waits until the cache has reached a revision.
    ///
    /// # Errors
    /// `Future` when it does not within three seconds, upstream's patience.
    pub async fn wait(&self, revision: Revision) -> Result<()> {
        if self.revision() >= revision {
            return Ok(());
        }
        let mut reached = self.reached.subscribe();
        let wait = reached.wait_for(|&reached| reached >= revision);
        match tokio::time::timeout(PATIENCE, wait).await {
            Ok(Ok(_)) => Ok(()),
            _ => Err(Error::Future { wanted: revision, current: self.revision() }),
        }
    }

    /// Makes the cache current: asks the store for its revision (one question serves all who wait at that moment) and
    /// waits until the cache has reached it. After this, reads are linearizable.
    ///
    /// # Errors
    /// `Unavailable` when the store does not answer, or the cache does not follow.
    pub async fn refresh(&self) -> Result<Revision> {
        let revision = self.refresher.ask().await?;
        match self.wait(revision).await {
            Ok(()) => Ok(revision),
            Err(Error::Future { wanted, current }) => {
                Err(Error::Unavailable(format!("the watch cache is at revision {current} and does not reach {wanted}")))
            }
            Err(error) => Err(error),
        }
    }

    /// Events after a revision; 0 starts at the newest.
    ///
    /// # Errors
    /// `Compacted` when the log no longer reaches back so far.
    pub fn watch(self: &Arc<Self>, interest: Interest, after: Revision) -> Result<Cursor<D::Entry>> {
        let resource = self.resource(&interest.resource);
        let after = if after == 0 { self.revision() } else { after };
        resource.watch(interest, after, self.reached.subscribe())
    }

    /// The store below, for reads of what the cache no longer has.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Makes an entry of a value that the store gave.
    pub fn decode(&self, kv: &KeyValue) -> Arc<Cached<D::Entry>> {
        let entry = self.decode.decode(kv);
        Arc::new(Cached { key: kv.key.clone(), revision: kv.mod_revision, created: kv.create_revision, entry })
    }

    /// Number of entries by resource.
    pub fn counts(&self) -> Vec<(String, usize)> {
        let resources = self.resources.read();
        let mut counts: Vec<_> = resources.iter().map(|(name, r)| (name.to_string(), r.len())).collect();
        counts.sort();
        counts
    }

    fn existing(&self, name: &str) -> Option<Arc<Resource<D::Entry>>> {
        self.resources.read().get(name).cloned()
    }

    /// The resource of that name, made when it is not there.
    fn resource(&self, name: &str) -> Arc<Resource<D::Entry>> {
        if let Some(resource) = self.existing(name) {
            return resource;
        }
        let mut resources = self.resources.write();
        // It was empty in the last list, and nothing was applied to it since: its log is complete from there on.
        let since = self.listed.load(Ordering::Acquire);
        let make = || Arc::new(Resource::new(self.decode.indexes(name), since));
        resources.entry(name.into()).or_insert_with(make).clone()
    }
}

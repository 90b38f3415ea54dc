//! The watch cache: the whole keyspace in memory, fed by one watch, indistinguishable from the store but by speed.
//!
//! ```text
//!   store ──one watch──► apply ──► persistent map per resource ──► snapshots (a pointer each) ──► get, list
//!                              └─► ring of events per resource ──► cursors, woken by index    ──► watch
//! ```
//!
//! What an entry holds beside its bytes is the caller's business: a [`Decode`] turns each stored value into an entry
//! once, when it enters the cache, and everything after that shares the entry.

use std::sync::Arc;

use crate::{KeyValue, Result, Revision, Store};

/// Turns stored values into entries. One call per write, on the cache's own task.
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

    /// Makes the entry of a value. Values that can't be decoded become entries that say so; they are never dropped.
    fn decode(&self, kv: &KeyValue) -> Self::Entry;
}

/// What the cache asks of an entry.
pub trait Indexed {
    /// Value of one of the fields that [`Decode::indexes`] names (`spec.nodeName` …).
    fn index(&self, field: &str) -> Option<&str>;

    /// Bytes it holds, about: what bounds the log of events.
    fn weight(&self) -> usize;
}

/// An entry under its key and revision.
#[derive(Debug)]
pub struct Cached<E> {
    /// Key.
    pub key: Arc<str>,
    /// Revision of the last write: the object's resourceVersion.
    pub revision: Revision,
    /// What [`Decode`] made of the value.
    pub entry: E,
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

/// A state of one resource, or of the part below a prefix, at one revision; stays as it is while held.
pub struct Snapshot<E> {
    /// The revision of the whole store at which this is the state.
    pub revision: Revision,
    /// Entries by key, in key order.
    pub entries: imbl::OrdMap<Arc<str>, Arc<Cached<E>>>,
}

/// The cache.
pub struct Cache<D: Decode> {
    _decode: D,
}

/// What a watcher wants to see; narrower is cheaper. The cache uses it to decide whom to wake; the final word on a
/// selector is the watcher's own.
#[derive(Debug, Clone, Default)]
pub struct Interest {
    /// The resource, as [`Decode::resource`] names it.
    pub resource: String,
    /// Only keys below this prefix (a namespace), empty for all.
    pub prefix: String,
    /// Only entries whose indexed field has, or had, this value.
    pub field: Option<(&'static str, String)>,
}

/// A watcher's place in the log. Bounded: one that falls too far behind is cut off and told so.
pub struct Cursor<E> {
    _entry: std::marker::PhantomData<E>,
}

impl<E: Send + Sync + 'static> Cursor<E> {
    /// The next events, all that are ready, in order; waits when there are none. `Err(Compacted)` when this watcher
    /// fell behind and must list again.
    pub async fn next(&mut self) -> Result<Vec<Arc<Event<E>>>> {
        todo!()
    }

    /// The revision up to which this cursor has seen everything it is interested in: what a bookmark may carry.
    pub fn progress(&self) -> Revision {
        todo!()
    }
}

impl<D: Decode> Cache<D> {
    /// Starts a cache of everything below `root` (`/registry/`): lists, then watches; returns when the first list is
    /// in. Loses its watch: lists again and tells watchers that they must, too, where events are missing.
    ///
    /// # Errors
    /// When the store can't be read at all before `timeout`.
    pub async fn start(_store: Arc<dyn Store>, _root: &str, _decode: D) -> Result<Arc<Self>> {
        todo!()
    }

    /// The entry of a key as the cache has it now.
    pub fn get(&self, _key: &str) -> Option<Arc<Cached<D::Entry>>> {
        todo!()
    }

    /// The state of a resource now.
    pub fn snapshot(&self, _resource: &str) -> Snapshot<D::Entry> {
        todo!()
    }

    /// The state of a resource at an older revision, for continue tokens.
    ///
    /// # Errors
    /// `Compacted` when the cache no longer has it, `Future` when it does not have it yet.
    pub fn snapshot_at(&self, _resource: &str, _revision: Revision) -> Result<Snapshot<D::Entry>> {
        todo!()
    }

    /// The revision the cache has reached.
    pub fn revision(&self) -> Revision {
        todo!()
    }

    /// Waits until the cache has reached a revision.
    ///
    /// # Errors
    /// `Future` when it does not within three seconds, upstream's patience.
    pub async fn wait(&self, _revision: Revision) -> Result<()> {
        todo!()
    }

    /// Makes the cache current: asks the store for its revision (one question serves all who wait at that moment) and
    /// waits until the cache has reached it. After this, reads are linearizable.
    ///
    /// # Errors
    /// `Unavailable` when the store does not answer.
    pub async fn refresh(&self) -> Result<Revision> {
        todo!()
    }

    /// Events after a revision; 0 starts at the newest.
    ///
    /// # Errors
    /// `Compacted` when the ring no longer reaches back so far.
    pub fn watch(&self, _interest: Interest, _after: Revision) -> Result<Cursor<D::Entry>> {
        todo!()
    }
}

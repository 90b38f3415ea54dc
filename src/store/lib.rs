//! Keys and values under revisions: one trait, two implementations, and a cache over either.
//!
//! ```text
//!   registry ── writes ──► Store ──┬── etcd      the real one
//!       │                          └── memory    for tests, same answers
//!       └───── reads ────► cache ◄─┘  one watch over the whole keyspace feeds it
//! ```
//!
//! Contract: a revision names a state of the whole keyspace; every successful write makes one. Events arrive in
//! revision order, none left out, several may share a revision (a transaction). Callers can't tell the
//! implementations apart but by speed; one suite (`suite.rs`) says so for both, and for the cache as a third (`CacheStore`).

pub mod cache;
pub mod etcd;
pub mod memory;
#[cfg(test)]
mod suite;
pub mod testing;

use bytes::Bytes;
use std::sync::Arc;

/// A state of the whole keyspace: etcd's revision.
pub type Revision = i64;

/// A stored value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyValue {
    /// Key, for example `/registry/pods/default/web`.
    pub key: Arc<str>,
    /// Value as it was written.
    pub value: Bytes,
    /// Revision of the last write.
    pub mod_revision: Revision,
    /// Revision of the write that made the key.
    pub create_revision: Revision,
}

/// A page of a range.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// Items in key order.
    pub items: Vec<KeyValue>,
    /// Revision at which the page was read.
    pub revision: Revision,
    /// More items follow.
    pub more: bool,
    /// Items in the range from where this page begins, on this page and after it.
    pub count: usize,
}

/// A change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Key.
    pub key: Arc<str>,
    /// The new value; `None` when the key was deleted or its lease expired.
    pub value: Option<Bytes>,
    /// Revision of the write that made the key; 0 for a deletion.
    pub create_revision: Revision,
    /// Revision of the change.
    pub revision: Revision,
}

/// What a write expects to find; the write fails with [`Error::Conflict`] when it finds something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// The key is not there.
    Absent,
    /// The key was last written at this revision.
    At(Revision),
}

/// Why an operation did not happen.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The key holds something else than expected; that is given, so that the caller can try again without asking.
    #[error("conflict")]
    Conflict(Option<KeyValue>),
    /// The revision is compacted away.
    #[error("required revision has been compacted")]
    Compacted {
        /// Oldest revision that can still be read; 0 when the store does not say.
        oldest: Revision,
    },
    /// The revision is not reached yet.
    #[error("required revision {wanted} is a future revision, current is {current}")]
    Future {
        /// Revision asked for.
        wanted: Revision,
        /// Revision the store is at.
        current: Revision,
    },
    /// The value is larger than the store takes.
    #[error("request is too large")]
    TooLarge,
    /// The store is out of space and refuses writes.
    #[error("database space exceeded")]
    NoSpace,
    /// The store can't be reached, has no leader or does not answer in time. A write may or may not have happened.
    #[error("store unavailable: {0}")]
    Unavailable(String),
}

/// Result of a store operation.
pub type Result<T> = std::result::Result<T, Error>;

/// Changes from a revision on, in order. Ends with an error or when the store is closed.
pub type Changes = futures::stream::BoxStream<'static, Result<Vec<Change>>>;

/// A versioned key-value store.
#[async_trait::async_trait]
pub trait Store: Send + Sync + 'static {
    /// The value of a key, linearizable.
    async fn get(&self, key: &str) -> Result<(Option<KeyValue>, Revision)>;

    /// Up to `limit` (0: all) items whose key starts with `prefix` and is at least `from` (empty: all), at a revision
    /// (0: the newest, linearizable).
    async fn list(&self, prefix: &str, from: &str, limit: usize, at: Revision) -> Result<Page>;

    /// Writes a value; `ttl` is its life in seconds (0: for ever).
    async fn put(&self, key: &str, value: Bytes, expect: Expect, ttl: i64) -> Result<Revision>;

    /// Deletes a key last written at that revision; returns what was deleted and the revision of the deletion.
    async fn delete(&self, key: &str, expect: Revision) -> Result<(KeyValue, Revision)>;

    /// Changes below `prefix` (empty: of every key) after a revision (0: from now on). The stream is attached when this
    /// returns: a write that starts later is in it.
    async fn watch(&self, prefix: &str, after: Revision) -> Result<Changes>;

    /// The newest revision, linearizable.
    async fn revision(&self) -> Result<Revision>;

    /// Forgets what was before a revision: older states can't be read or watched from any more.
    async fn compact(&self, before: Revision) -> Result<()>;
}

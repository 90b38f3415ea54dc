//! The verbs, once for all resources.
//!
//! - `read`: get and list. `watch`: watch and streaming lists. Bytes from the cache, never a tree of values.
//! - `write`: create, update, patch, apply; `delete`: delete and deletecollection. The only place where conflicts loop.

pub mod delete;
pub mod internal;
pub mod output;
pub mod patch;
pub mod read;
pub mod watch;
pub mod write;

use std::collections::BTreeMap;
use std::sync::Arc;

use api::resources::{Row, Text};
use parking_lot::RwLock;

/// The table as it is now. Readers take a snapshot; custom resources come and go by replacing it.
pub struct Resources(RwLock<Arc<BTreeMap<(Text, Text), Arc<Row>>>>);

impl Resources {
    /// A table of these rows, by group and plural.
    pub fn new(rows: BTreeMap<(Text, Text), Arc<Row>>) -> Self {
        Self(RwLock::new(Arc::new(rows)))
    }

    /// The table now.
    pub fn snapshot(&self) -> Arc<BTreeMap<(Text, Text), Arc<Row>>> {
        self.0.read().clone()
    }

    /// The row of a resource.
    pub fn find(&self, group: &str, plural: &str) -> Option<Arc<Row>> {
        let key = (Text::Owned(group.to_string()), Text::Owned(plural.to_string()));
        self.snapshot().get(&key).cloned()
    }

    /// Replaces the table.
    pub fn replace(&self, rows: BTreeMap<(Text, Text), Arc<Row>>) {
        *self.0.write() = Arc::new(rows);
    }
}

//! Is the cache what the store is? Compared object by object, in tests and under load.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Cache, Cached, Decode, Indexed};
use crate::{Error, KeyValue, Result, Revision};

/// Items read from the store at a time.
const PAGE: usize = 500;

/// A key that is not the same in cache and store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The key.
    pub key: String,
    /// Revision in the store; `None` when it is not there.
    pub store: Option<Revision>,
    /// Revision in the cache; `None` when it is not there. Equal revisions mean that the contents differ.
    pub cache: Option<Revision>,
}

impl<D: Decode> Cache<D> {
    /// Compares everything below `root` with the store, both at the revision that the store has now. Writers may go on
    /// meanwhile.
    ///
    /// # Errors
    /// When the store can't be read, or the state was forgotten before it was read (much was written: try again).
    pub async fn check(&self, root: &str) -> Result<Vec<Difference>> {
        let revision = self.refresh().await?;
        let mut cached = BTreeMap::new();
        let names: Vec<Box<str>> = self.resources.read().keys().cloned().collect();
        for name in names {
            let state = self.snapshot_at(&name, revision)?;
            cached.extend(state.entries.iter().map(|(key, cached)| (key.clone(), cached.clone())));
        }
        let mut differences = Vec::new();
        let mut from = String::new();
        loop {
            let page = self.store.list(root, &from, PAGE, revision).await?;
            for kv in page.items.iter().filter(|kv| self.decode.resource(&kv.key).is_some()) {
                differences.extend(self.difference(kv, cached.remove(&kv.key)));
            }
            match page.items.last() {
                Some(last) if page.more => from = format!("{}\0", last.key),
                _ => break,
            }
        }
        for (key, cached) in cached {
            differences.push(Difference { key: key.to_string(), store: None, cache: Some(cached.revision) });
        }
        Ok(differences)
    }

    fn difference(&self, kv: &KeyValue, cached: Option<Arc<Cached<D::Entry>>>) -> Option<Difference> {
        let same = |cached: &Cached<D::Entry>| {
            cached.revision == kv.mod_revision
                && cached.created == kv.create_revision
                && cached.entry.same(&self.decode.decode(kv))
        };
        if cached.as_deref().is_some_and(same) {
            return None;
        }
        let cache = cached.map(|c| c.revision);
        Some(Difference { key: kv.key.to_string(), store: Some(kv.mod_revision), cache })
    }
}

/// Runs the check until it could be made (states may be forgotten while it runs) and says what differs.
///
/// # Errors
/// When the store can't be read.
pub async fn differences<D: Decode>(cache: &Cache<D>, root: &str) -> Result<Vec<Difference>> {
    loop {
        match cache.check(root).await {
            Err(Error::Compacted { .. }) => {}
            other => return other,
        }
    }
}

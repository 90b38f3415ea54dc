//! The state of one key, as the cache guesses it or as the store gave it.

use std::sync::Arc;

use api::Value;
use api::status::Status;
use store::cache::Cached;
use store::{KeyValue, Revision};

use crate::Api;
use crate::entry::Entry;

/// A state.
pub struct State {
    /// Revision of the last write; 0 when the key is not there.
    pub revision: Revision,
    /// The store itself said so; else it is the cache's guess.
    pub fresh: bool,
    found: Found,
}

enum Found {
    Nothing,
    Cached(Arc<Cached<Entry>>),
    Stored(Arc<Cached<Entry>>),
}

impl State {
    /// What the cache knows.
    pub fn guess(api: &Api, key: &str) -> Self {
        match api.cache.get(key) {
            Some(cached) => Self { revision: cached.revision, fresh: false, found: Found::Cached(cached) },
            None => Self { revision: 0, fresh: false, found: Found::Nothing },
        }
    }

    /// What the store gave.
    pub fn found(api: &Api, kv: Option<KeyValue>) -> Self {
        match kv {
            Some(kv) => Self { revision: kv.mod_revision, fresh: true, found: Found::Stored(api.cache.decode(&kv)) },
            None => Self { revision: 0, fresh: true, found: Found::Nothing },
        }
    }

    /// The object in the stored version, with its resourceVersion; `None` when it is not there.
    ///
    /// # Errors
    /// 500 when the stored value can't be decoded.
    pub fn object(&self) -> Result<Option<Value>, Status> {
        match &self.found {
            Found::Nothing => Ok(None),
            Found::Cached(cached) => cached.entry.parse().map(Some),
            Found::Stored(stored) => stored.entry.parse().map(Some),
        }
    }
}

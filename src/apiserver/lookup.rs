//! Objects from the cache by resource and name, for parts that look before a request reaches the registry.

use std::sync::Arc;

use store::cache::{Cache, Cached};

use crate::entry::{self, Decoder, Entry};
use crate::registry::Resources;

/// Finds objects in the cache.
#[derive(Clone)]
pub struct Lookup {
    cache: Arc<Cache<Decoder>>,
    resources: Arc<Resources>,
    etcd_prefix: Arc<str>,
}

impl Lookup {
    /// Over this cache and table.
    pub fn new(cache: Arc<Cache<Decoder>>, resources: Arc<Resources>, etcd_prefix: &str) -> Self {
        Self { cache, resources, etcd_prefix: etcd_prefix.into() }
    }

    /// An object as the cache has it now.
    pub fn get(&self, group: &str, plural: &str, namespace: &str, name: &str) -> Option<Arc<Cached<Entry>>> {
        let row = self.resources.find(group, plural)?;
        self.cache.get(&entry::key(&self.etcd_prefix, &row, namespace, name))
    }

    /// Below which key the objects of a resource are.
    pub fn prefix(&self, group: &str, plural: &str) -> Option<String> {
        Some(entry::resource_prefix(&self.etcd_prefix, &*self.resources.find(group, plural)?))
    }

    /// The cache.
    pub fn cache(&self) -> &Arc<Cache<Decoder>> {
        &self.cache
    }
}

//! What the cache keeps of an object: its bytes with the resourceVersion spliced in, and what readers ask of it
//! (labels, selectable fields, owners), taken out once.

use bytes::Bytes;
use std::sync::Arc;

/// A cached object.
#[derive(Debug)]
pub struct Entry {
    /// JSON in the stored version, with `metadata.resourceVersion`: what GET, LIST and WATCH hand out.
    pub json: Bytes,
    /// Namespace, empty for cluster-scoped objects.
    pub namespace: Box<str>,
    /// Name.
    pub name: Box<str>,
    /// Labels, sorted by key.
    pub labels: Box<[(Arc<str>, Arc<str>)]>,
    /// Values of the row's selectable fields, in the row's order.
    pub fields: Box<[Arc<str>]>,
}

/// Makes entries.
pub struct Decoder;

impl store::cache::Decode for Decoder {
    type Entry = Entry;

    fn resource<'k>(&self, _key: &'k str) -> Option<&'k str> {
        todo!()
    }

    fn decode(&self, _kv: &store::KeyValue) -> Entry {
        todo!()
    }
}

impl store::cache::Indexed for Entry {
    fn index(&self, _field: &str) -> Option<&str> {
        todo!()
    }
}

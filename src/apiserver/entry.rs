//! What the cache keeps of an object: its bytes with the resourceVersion spliced in, and what readers ask of it
//! (labels, selectable fields, owners), taken out once.

use api::Value;
use api::status::Status;
use bytes::Bytes;
use std::sync::Arc;

use crate::registry::Resources;

/// A cached object. All text is a slice of its one buffer; other forms are made when they are first asked for.
#[derive(Debug)]
pub struct Entry {
    json: Bytes,
}

impl Entry {
    /// Namespace, empty for cluster-scoped objects.
    pub fn namespace(&self) -> &str {
        todo!()
    }

    /// Name.
    pub fn name(&self) -> &str {
        todo!()
    }

    /// UID.
    pub fn uid(&self) -> &str {
        todo!()
    }

    /// The value of a label.
    pub fn label(&self, _key: &str) -> Option<&str> {
        todo!()
    }

    /// All labels, in the order of the bytes.
    pub fn labels(&self) -> impl Iterator<Item = (&str, &str)> {
        std::iter::empty()
    }

    /// The value of a selectable field, `metadata.name` and `metadata.namespace` included; `None` when the row does
    /// not list it.
    pub fn field(&self, _name: &str) -> Option<&str> {
        todo!()
    }

    /// UIDs of the owners.
    pub fn owners(&self) -> impl Iterator<Item = &str> {
        std::iter::empty()
    }

    /// `metadata.deletionTimestamp` is set.
    pub fn terminating(&self) -> bool {
        todo!()
    }

    /// `apiVersion` of the stored form.
    pub fn api_version(&self) -> &str {
        todo!()
    }

    /// The object as JSON in the stored version, with its resourceVersion; copied.
    ///
    /// # Errors
    /// 500 when the stored value could not be decoded.
    pub fn json(&self) -> Result<Bytes, Status> {
        Ok(self.json.clone())
    }

    /// The object as a tree, in the stored version, with its resourceVersion; made anew with each call.
    ///
    /// # Errors
    /// 500 when the stored value could not be decoded.
    pub fn parse(&self) -> Result<Value, Status> {
        todo!()
    }

    /// The object as a shared tree, kept with the entry while memory allows: for what is read often and changes
    /// seldom, such as policies and namespaces.
    ///
    /// # Errors
    /// As [`Entry::parse`].
    pub fn value(&self) -> Result<Arc<Value>, Status> {
        todo!()
    }

    /// The object as a typed struct, kept with the entry: for authorizers and admission.
    ///
    /// # Errors
    /// As [`Entry::parse`], and 500 when the object does not fit the type.
    pub fn typed<T: serde::de::DeserializeOwned + Send + Sync + 'static>(&self) -> Result<Arc<T>, Status> {
        todo!()
    }
}

/// Makes entries.
pub struct Decoder {
    _prefix: String,
    _resources: Arc<Resources>,
}

impl Decoder {
    /// A decoder of what is stored below `etcd_prefix` (`/registry`), by the rows of that table.
    pub fn new(etcd_prefix: &str, resources: Arc<Resources>) -> Self {
        Self { _prefix: etcd_prefix.to_string(), _resources: resources }
    }
}

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

    fn weight(&self) -> usize {
        self.json.len()
    }

    fn same(&self, other: &Self) -> bool {
        self.json == other.json
    }
}

/// `/registry/pods/` : below which the objects of a resource are stored.
pub fn resource_prefix(etcd_prefix: &str, row: &api::resources::Row) -> String {
    format!("{etcd_prefix}/{}/", row.storage)
}

/// `/registry/pods/default/web` (or `/registry/nodes/n1`): where an object is stored.
pub fn key(etcd_prefix: &str, row: &api::resources::Row, namespace: &str, name: &str) -> String {
    match namespace {
        "" => format!("{etcd_prefix}/{}/{name}", row.storage),
        _ => format!("{etcd_prefix}/{}/{namespace}/{name}", row.storage),
    }
}

//! The verbs, once for all resources.
//!
//! - `read`: get and list; `watch`: watch and streaming lists; `frame`: their events. Bytes from the cache.
//! - `write`: create and update; `patch`: the four kinds of it; `engine`: the one path of all of these; `lifecycle`: what
//!   it does to metadata; `hooks`: what some kinds need beside.
//! - `delete`: delete and deletecollection. `internal`: what the server writes and reads for itself.
//! - `input`, `options`, `list_options`, `token`: what requests say. `output`: what answers are made of. `object`, `state`:
//!   views of an object and of what is stored.

pub mod delete;
pub mod engine;
mod frame;
pub mod hooks;
pub mod input;
pub mod internal;
pub(crate) mod lifecycle;
pub mod list_options;
mod namespaces;
pub mod object;
pub mod options;
pub mod output;
pub mod patch;
pub mod read;
#[cfg(test)]
mod read_tests;
mod state;
mod token;
pub mod watch;
pub mod write;

use std::collections::BTreeMap;
use std::sync::Arc;

use api::resources::{Row, Text};
use api::schema::Facts;
use api::status::Status;
use parking_lot::RwLock;

/// The table as it is now. Readers take a snapshot, so that it can be replaced under them.
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

/// The facts that hold the types of a row.
pub fn facts(_row: &Row) -> &'static Facts {
    api::schema::builtin()
}

/// `v1` or `apps/v1`.
pub fn api_version(group: &str, version: &str) -> String {
    if group.is_empty() { version.to_string() } else { format!("{group}/{version}") }
}

/// Adds a warning that is not there yet.
pub fn warn(warnings: &mut Vec<String>, text: String) {
    if !warnings.contains(&text) {
        warnings.push(text);
    }
}

/// What a client is told when the store did not do what it should.
pub fn failure(error: store::Error, row: &Row, name: &str, verb: &str) -> Status {
    let of = row.group_resource();
    match error {
        store::Error::Conflict(_) => Status::conflict(of, name, "the object has been modified"),
        store::Error::TooLarge => Status::new(500, "", "etcdserver: request is too large"),
        store::Error::NoSpace => Status::new(500, "", "etcdserver: mvcc: database space exceeded"),
        store::Error::Unavailable(why) => {
            tracing::error!(%verb, resource = %of, name, "the store did not answer: {why}");
            Status::new(500, "", why)
        }
        other => Status::new(500, "", other.to_string()),
    }
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod threads {
    use super::*;
    use crate::Api;
    use crate::request::Request;

    fn is_send<T: Send>(_: T) {}

    /// Only compiled: the verbs run on a runtime with threads.
    #[allow(dead_code)]
    fn verbs_can_move_between_threads(api: &Arc<Api>, row: &Arc<Row>, req: &mut Request) {
        is_send(write::create(api, row, req));
        is_send(write::update(api, row, req));
        is_send(patch::patch(api, row, req));
        is_send(delete::delete(api, row, req));
        is_send(delete::delete_collection(api, row, req));
        is_send(internal::create(api, row, "", api::Value::Null));
        is_send(internal::update(api, row, "", "", "", &|v| Ok(v)));
    }
}

//! Get and list, for all resources: bytes from the cache, never a tree of values.

use std::sync::Arc;

use api::resources::Row;
use api::status::Status;
use store::cache::Cached;

use crate::Api;
use crate::entry::Entry;
use crate::registry::output::ListMeta;
use crate::request::{Answer, Request};

/// Answers `GET` of an object. (`?watch=true` changes nothing here, as upstream.)
///
/// # Errors
/// Whatever upstream answers.
pub async fn get(_api: &Arc<Api>, _row: &Arc<Row>, _req: &mut Request) -> Result<Answer, Status> {
    todo!()
}

/// Answers `GET` of a collection that is no watch.
///
/// # Errors
/// Whatever upstream answers.
pub async fn list(_api: &Arc<Api>, _row: &Arc<Row>, _req: &mut Request) -> Result<Answer, Status> {
    todo!()
}

/// The objects that a request's query selects, with the list's metadata: what `list` answers and deletecollection
/// deletes.
///
/// # Errors
/// Whatever upstream's list answers.
pub async fn select(
    _api: &Arc<Api>, _row: &Arc<Row>, _req: &Request,
) -> Result<(ListMeta, Vec<Arc<Cached<Entry>>>), Status> {
    todo!()
}

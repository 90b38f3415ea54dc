//! Objects, lists and failures on their way out, in the form the client asked for: JSON, YAML, protobuf, as
//! themselves, as a Table or as metadata alone.

use api::Value;
use api::resources::Row;
use api::status::Status;
use http::{HeaderMap, StatusCode};
use std::sync::Arc;
use store::cache::Cached;

use crate::Api;
use crate::entry::Entry;
use crate::request::{Answer, Request};

/// What the client wants to get back. Upstream negotiates before it does anything else: so must every handler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Accept {}

/// Reads the Accept header (or its absence) for an answer of this resource that is no watch.
///
/// # Errors
/// 406 with upstream's list of what there is.
pub fn negotiate(_row: &Row, _req: &Request) -> Result<Accept, Status> {
    todo!()
}

/// Answers an object from the cache.
///
/// # Errors
/// 500 when it can't be said in the version of the request.
pub fn entry(
    _api: &Api, _row: &Row, _req: &Request, _accept: &Accept, _code: StatusCode, _object: &Arc<Cached<Entry>>,
) -> Result<Answer, Status> {
    todo!()
}

/// Answers an object that was just written: the bytes as they were stored, under their new revision.
///
/// # Errors
/// As [`entry`].
pub fn stored(
    _api: &Api, _row: &Row, _req: &Request, _accept: &Accept, _code: StatusCode, _kv: &store::KeyValue,
) -> Result<Answer, Status> {
    todo!()
}

/// Answers an object that is not stored: of a dry run (in the stored version), or of a kind of its own (Scale,
/// TokenRequest, a Status of success, reviews), said by its `apiVersion` and `kind`.
///
/// # Errors
/// As [`entry`].
pub fn object(
    _api: &Api, _row: &Row, _req: &Request, _accept: &Accept, _code: StatusCode, _object: Value,
) -> Result<Answer, Status> {
    todo!()
}

/// `metadata` of a list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListMeta {
    /// resourceVersion.
    pub revision: store::Revision,
    /// Token for the next page, empty on the last.
    pub token: String,
    /// Items that follow, where that is known.
    pub remaining: Option<i64>,
}

/// Answers a list.
///
/// # Errors
/// As [`entry`]; one object that can't be decoded fails the whole list.
pub fn list(
    _api: &Api, _row: &Row, _req: &Request, _accept: &Accept, _meta: ListMeta, _items: Vec<Arc<Cached<Entry>>>,
) -> Result<Answer, Status> {
    todo!()
}

/// Answers a failure (or a success that has no object but a Status), in the encoding the client accepts.
pub fn failure(_headers: &HeaderMap, _status: &Status) -> Answer {
    todo!()
}

//! Watches and streaming lists, for all resources.

use std::sync::Arc;

use api::resources::Row;
use api::status::Status;

use crate::Api;
use crate::request::{Answer, Request};

/// Answers a watch: `GET` of a collection with `watch` in its query, and the legacy paths below `/watch/`, whose name
/// (when they have one) stands in `req.info.name`.
///
/// # Errors
/// Whatever upstream answers before the stream begins.
pub async fn watch(_api: &Arc<Api>, _row: &Arc<Row>, _req: &mut Request) -> Result<Answer, Status> {
    todo!()
}

//! Subresources that are not streams: status, scale, binding, eviction, token and so on.

pub mod token;

use std::sync::Arc;

use api::resources::Row;
use api::status::Status;

use crate::Api;
use crate::request::{Answer, Request};

/// Answers a request to a subresource of a row, any verb. The dispatcher has checked that the row has the subresource
/// and the subresource the verb; streams (log, exec, attach, portforward, proxy) are not for this function.
///
/// # Errors
/// Whatever upstream answers.
pub async fn serve(_api: &Arc<Api>, _row: &Arc<Row>, _req: &mut Request) -> Result<Answer, Status> {
    todo!()
}

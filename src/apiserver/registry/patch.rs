//! Patch and apply, for all resources.

use std::sync::Arc;

use api::resources::Row;
use api::status::Status;

use crate::Api;
use crate::request::{Answer, Request};

/// Answers `PATCH` to an object; the content type says which kind of patch it is.
///
/// # Errors
/// Whatever upstream answers.
pub async fn patch(_api: &Arc<Api>, _row: &Arc<Row>, _req: &mut Request) -> Result<Answer, Status> {
    todo!()
}

//! Delete and deletecollection, for all resources.

use std::sync::Arc;

use api::resources::Row;
use api::status::Status;

use crate::Api;
use crate::request::{Answer, Request};

/// Answers `DELETE` of an object.
///
/// # Errors
/// Whatever upstream answers.
pub async fn delete(_api: &Arc<Api>, _row: &Arc<Row>, _req: &mut Request) -> Result<Answer, Status> {
    todo!()
}

/// Answers `DELETE` of a collection.
///
/// # Errors
/// Whatever upstream answers.
pub async fn delete_collection(_api: &Arc<Api>, _row: &Arc<Row>, _req: &mut Request) -> Result<Answer, Status> {
    todo!()
}

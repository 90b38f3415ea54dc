//! Create and update, for all resources.

use std::sync::Arc;

use api::resources::Row;
use api::status::Status;

use crate::Api;
use crate::request::{Answer, Request};

/// Answers `POST` to a collection.
///
/// # Errors
/// Whatever upstream answers; see the steps.
pub async fn create(_api: &Arc<Api>, _row: &Arc<Row>, _req: &mut Request) -> Result<Answer, Status> {
    todo!()
}

/// Answers `PUT` to an object.
///
/// # Errors
/// As [`create`], and 409 when the object has changed.
pub async fn update(_api: &Arc<Api>, _row: &Arc<Row>, _req: &mut Request) -> Result<Answer, Status> {
    todo!()
}

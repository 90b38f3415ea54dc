//! The verbs on values, for callers inside the API server (bootstrap, reconcilers): the same engine without HTTP, in
//! the name of `system:apiserver`. Objects are in the stored version.

use std::sync::Arc;

use api::Value;
use api::resources::Row;
use api::status::Status;

use crate::Api;

/// Reads an object from the store, linearizable.
///
/// # Errors
/// 404 when it is not there.
pub async fn get(_api: &Arc<Api>, _row: &Arc<Row>, _namespace: &str, _name: &str) -> Result<Value, Status> {
    todo!()
}

/// All objects of a resource (of a namespace where one is given) as the cache has them now.
pub fn list(_api: &Arc<Api>, _row: &Arc<Row>, _namespace: &str) -> Vec<Value> {
    todo!()
}

/// Creates an object; answers what was stored.
///
/// # Errors
/// As `POST`.
pub async fn create(_api: &Arc<Api>, _row: &Arc<Row>, _namespace: &str, _object: Value) -> Result<Value, Status> {
    todo!()
}

/// Changes an object by a function of its current state, which is called again when the write loses a race. The
/// subresource is `status`, `scale` … or empty.
///
/// # Errors
/// As `PUT`, and what the function gives.
pub async fn update(
    _api: &Arc<Api>, _row: &Arc<Row>, _namespace: &str, _name: &str, _subresource: &str,
    _change: &(dyn Fn(Value) -> Result<Value, Status> + Send + Sync),
) -> Result<Value, Status> {
    todo!()
}

/// Deletes an object, in the background.
///
/// # Errors
/// As `DELETE`.
pub async fn delete(_api: &Arc<Api>, _row: &Arc<Row>, _namespace: &str, _name: &str) -> Result<(), Status> {
    todo!()
}

//! Strategic merge patch: merge keys, `$patch`, `$retainKeys`, `$setElementOrder`, `$deleteFromPrimitiveList`.

use crate::Value;
use crate::schema::{Facts, Type};
use crate::status::Status;

/// Applies a strategic merge patch to an object of type `ty`.
///
/// # Errors
/// 400, 422 or 500 as upstream answers malformed directives and missing merge keys.
pub fn apply(_facts: &Facts, _ty: &Type, _live: &Value, _patch: &Value) -> Result<Value, Status> {
    todo!()
}

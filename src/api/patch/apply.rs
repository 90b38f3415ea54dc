//! Server-side apply and managedFields: who owns which field, merging, conflicts (KEP-555).
//!
//! Entry points for the registry: [`apply`] for apply patches, [`track_update`] for every other write.

use crate::Value;
use crate::schema::{Facts, Type};
use crate::status::Status;

/// Who writes, and when.
#[derive(Debug, Clone)]
pub struct Writer<'a> {
    /// `fieldManager`, or what stands before the first `/` of the user agent.
    pub manager: &'a str,
    /// `apiVersion` under which the write came.
    pub api_version: &'a str,
    /// `status`, `scale` …; empty for the object itself.
    pub subresource: &'a str,
    /// The time to note, RFC 3339 with seconds.
    pub now: &'a str,
}

/// Fields whose ownership a resource's strategy resets, as paths of names (`["status"]`).
pub type ResetFields<'a> = &'a [&'a [&'a str]];

/// Applies `config` onto `live` (`None`: the object is created). Returns the merged object with its managedFields; a
/// no-op gives back `live` unchanged, times included.
///
/// # Errors
/// 409 with one cause per conflicting field unless `force`; 400/422/500 as upstream words malformed configurations.
pub fn apply(
    _facts: &Facts, _ty: &Type, _live: Option<&Value>, _config: &Value, _writer: &Writer<'_>, _reset: ResetFields<'_>,
    _force: bool,
) -> Result<Value, Status> {
    todo!()
}

/// Notes in `new` who owns what after a create (`old` is `None`) or an update. `managedFields` sent by the client are
/// honoured as upstream honours them (an empty list resets, an absent one keeps `old`'s).
pub fn track_update(
    _facts: &Facts, _ty: &Type, _old: Option<&Value>, _new: &mut Value, _writer: &Writer<'_>, _reset: ResetFields<'_>,
) {
    todo!()
}

//! Spec and status are halves of an object, each written through a path of its own: what the other path sends of it does
//! not count, and server-side apply gives nobody a share of it there.
//!
//! For some kinds the path of the status keeps the metadata, too; those take the functions whose names say so.

use crate::Value;
use crate::kinds::view::copy;
use crate::meta;
use crate::resources::Context;

/// An update of the object keeps the status, one of the status keeps the spec.
pub fn split(cx: &Context<'_>, new: &mut Value, old: &Value) {
    let other = if cx.subresource == "status" { "spec" } else { "status" };
    copy(new, old, other);
}

/// [`split`]; one of the status keeps the metadata, too.
pub fn split_with_metadata(cx: &Context<'_>, new: &mut Value, old: &Value) {
    split(cx, new, old);
    if cx.subresource == "status" {
        meta::keep_all(new, old);
    }
}

/// Paths that nobody owns through a subresource of an object that is [`split`].
pub fn reset(subresource: &str) -> &'static [&'static [&'static str]] {
    match subresource {
        "" => &[&["status"]],
        "status" => &[&["spec"]],
        _ => &[],
    }
}

/// [`reset`], for [`split_with_metadata`].
pub fn reset_with_metadata(subresource: &str) -> &'static [&'static [&'static str]] {
    match subresource {
        "status" => &[&["spec"], &["metadata"]],
        other => reset(other),
    }
}

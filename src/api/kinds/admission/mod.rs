//! `admissionregistration.k8s.io`: webhooks, policies and what binds these. Expressions are checked for their form, not
//! compiled.

mod binding;
mod client;
mod matching;
mod policy;
mod webhook;

pub use binding::Binding;
pub use policy::{MutatingPolicy, ValidatingPolicy};
pub use webhook::Webhooks;

use crate::Value;
use crate::field::quote;
use crate::kinds::view::View;

/// The end of names that are kept for objects from files.
const STATIC: &str = ".static.k8s.io";

/// Warnings about the name.
fn name_warnings(object: &Value) -> Vec<String> {
    if !object.at("metadata").text("name").ends_with(STATIC) {
        return Vec::new();
    }
    vec![format!(
        "metadata.name: names ending with {} are reserved for static manifest-based configurations and cannot be managed \
         via the API",
        quote(STATIC)
    )]
}

//! Deletion of namespaces: first a mark, then, when the namespace controller has emptied them and taken its finalizer
//! from the spec, the deletion itself.

use api::Value;
use async_trait::async_trait;

use super::delete::collector_finalizers;
use super::hooks::{Hooks, OnDelete};
use super::object;
use super::options::DeleteOptions;

/// Hooks of namespaces.
pub struct Namespaces;

#[async_trait]
impl Hooks for Namespaces {
    fn may_remove(&self, object: &Value) -> bool {
        object::list(object, &["spec", "finalizers"]).is_empty()
    }

    fn on_delete(&self, namespace: &Value, options: &DeleteOptions, now: i64) -> Option<OnDelete> {
        if object::deleting(namespace) {
            return (!self.may_remove(namespace)).then_some(OnDelete::Keep);
        }
        let mut marked = namespace.clone();
        object::set_meta(&mut marked, "deletionTimestamp", object::time(now));
        object::fields(&mut marked, &["status"]).insert("phase".into(), "Terminating".into());
        if let Some(finalizers) = collector_finalizers(namespace, options, api::resources::Propagation::Background) {
            object::set_finalizers(&mut marked, finalizers);
        }
        Some(OnDelete::Write(marked))
    }
}

//! What a few resources do beside their object when it is written: Services take addresses and ports. One row each;
//! all others have nothing here.

use std::sync::Arc;

use api::Value;
use api::resources::Row;
use api::status::Status;
use async_trait::async_trait;

use super::engine::Write;
use crate::Api;

/// Actions around a write.
#[async_trait]
pub trait Hooks: Send + Sync {
    /// Before the strategy prepares a new object, which has its name and UID.
    async fn begin_create(&self, _w: &Write<'_>, _new: &mut Value) -> Result<Undo, Status> {
        Ok(Undo::nothing())
    }

    /// Before the strategy prepares an update.
    async fn begin_update(&self, _w: &Write<'_>, _new: &mut Value, _live: &Value) -> Result<Undo, Status> {
        Ok(Undo::nothing())
    }

    /// After an object is gone.
    async fn after_delete(&self, _api: &Arc<Api>, _row: &Arc<Row>, _object: &Value) {}

    /// False while an object whose finalizers are gone must stay nevertheless.
    fn may_remove(&self, _object: &Value) -> bool {
        true
    }

    /// What a delete does instead of the usual: `None` for the usual.
    fn on_delete(&self, _object: &Value, _options: &super::options::DeleteOptions, _now: i64) -> Option<OnDelete> {
        None
    }
}

/// What a delete does instead of deleting.
pub enum OnDelete {
    /// Writes this state of the object and answers it.
    Write(Value),
    /// Answers the object as it is.
    Keep,
    /// Refuses, for this reason.
    Refuse(&'static str),
}

/// What to do once a write is through: `finish(true)` when it happened, `finish(false)` to take back what was done.
pub struct Undo(Option<Box<dyn Finish>>);

/// The end of a hook's action.
#[async_trait]
pub trait Finish: Send + Sync {
    /// Ends the action.
    async fn finish(self: Box<Self>, api: &Arc<Api>, done: bool);
}

impl Undo {
    /// Nothing to do.
    pub fn nothing() -> Self {
        Self(None)
    }

    /// This is to do.
    pub fn with(finish: impl Finish + 'static) -> Self {
        Self(Some(Box::new(finish)))
    }

    /// Does it.
    pub async fn finish(&mut self, api: &Arc<Api>, done: bool) {
        if let Some(finish) = self.0.take() {
            finish.finish(api, done).await;
        }
    }
}

/// Hooks of PriorityClasses: those of the system stay.
struct Priorities;

impl Hooks for Priorities {
    fn on_delete(&self, class: &Value, _options: &super::options::DeleteOptions, _now: i64) -> Option<OnDelete> {
        let name = super::object::name(class);
        let system = api::kinds::scheduling::SYSTEM_CLASSES.iter().any(|(known, _)| *known == name);
        system.then_some(OnDelete::Refuse("this is a system priority class and cannot be deleted"))
    }
}

struct Nothing;

#[async_trait]
impl Hooks for Nothing {}

/// The hooks of a resource.
pub fn of(row: &Row) -> &'static dyn Hooks {
    match (&*row.group, &*row.plural) {
        ("", "namespaces") => &super::namespaces::Namespaces,
        ("", "services") => &crate::allocation::ServiceHooks,
        ("scheduling.k8s.io", "priorityclasses") => &Priorities,
        ("rbac.authorization.k8s.io", "roles" | "clusterroles") => &crate::authz::escalation::Roles,
        ("rbac.authorization.k8s.io", "rolebindings" | "clusterrolebindings") => &crate::authz::escalation::Bindings,
        _ => &Nothing,
    }
}

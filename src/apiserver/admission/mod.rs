//! Admission: a list of plugins in upstream's order. Each sees every write; mutating ones first, then, after the
//! strategy's validation, validating ones.

use std::sync::Arc;

use api::Value;
use api::resources::Row;
use api::status::Status;

use crate::request::User;
use crate::{Api, Settings};

/// What is done to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A new object.
    Create,
    /// A change, also of a subresource.
    Update,
    /// A deletion.
    Delete,
    /// A connection (exec, attach, portforward, proxy).
    Connect,
}

impl Operation {
    /// `CREATE`, as reviews have it.
    pub fn name(self) -> &'static str {
        match self {
            Operation::Create => "CREATE",
            Operation::Update => "UPDATE",
            Operation::Delete => "DELETE",
            Operation::Connect => "CONNECT",
        }
    }
}

/// A write under review: upstream's admission attributes. Objects are in the stored version (or of the subresource's
/// own kind, such as an Eviction).
pub struct Review<'a> {
    /// The server.
    pub api: &'a Arc<Api>,
    /// The resource.
    pub row: &'a Arc<Row>,
    /// Version of the request.
    pub version: &'a str,
    /// Group, version and kind of the request's object.
    pub kind: (&'a str, &'a str, &'a str),
    /// Namespace, empty for cluster-scoped objects.
    pub namespace: &'a str,
    /// Name, empty where it is not known yet.
    pub name: &'a str,
    /// `status`, `binding` …; empty for the object itself.
    pub subresource: &'a str,
    /// What is done.
    pub operation: Operation,
    /// Who does it.
    pub user: &'a User,
    /// Nothing will be stored.
    pub dry_run: bool,
    /// CreateOptions, UpdateOptions, DeleteOptions as an object.
    pub options: &'a Value,
    /// The object as it is stored; `None` on create.
    pub old: Option<&'a Value>,
    /// Warnings for the client.
    pub warnings: &'a parking_lot::Mutex<Vec<String>>,
}

/// An admission plugin.
#[async_trait::async_trait]
pub trait Plugin: Send + Sync {
    /// Upstream's name, as `--enable-admission-plugins` has it.
    fn name(&self) -> &'static str;

    /// True when this plugin wants to see that write. Cheap; asked before anything else.
    fn handles(&self, review: &Review<'_>) -> bool;

    /// Changes the object or refuses it. The object is null on delete.
    async fn mutate(&self, _review: &Review<'_>, _object: &mut Value) -> Result<(), Status> {
        Ok(())
    }

    /// Refuses the object or lets it pass. The object is null on delete.
    async fn validate(&self, _review: &Review<'_>, _object: &Value) -> Result<(), Status> {
        Ok(())
    }
}

/// The plugins that are on.
pub struct Chain {
    plugins: Vec<Box<dyn Plugin>>,
}

impl Chain {
    /// The plugins whose names the settings list, in upstream's order.
    pub fn new(_settings: &Settings) -> Self {
        Self { plugins: Vec::new() }
    }

    /// Runs the mutating half.
    ///
    /// # Errors
    /// The first refusal.
    pub async fn mutate(&self, review: &Review<'_>, object: &mut Value) -> Result<(), Status> {
        for plugin in self.plugins.iter().filter(|p| p.handles(review)) {
            plugin.mutate(review, object).await?;
        }
        Ok(())
    }

    /// Runs the validating half.
    ///
    /// # Errors
    /// The first refusal.
    pub async fn validate(&self, review: &Review<'_>, object: &Value) -> Result<(), Status> {
        for plugin in self.plugins.iter().filter(|p| p.handles(review)) {
            plugin.validate(review, object).await?;
        }
        Ok(())
    }
}

/// Every plugin's name in upstream's order, and whether it is on without `--enable-admission-plugins`.
pub fn known() -> &'static [(&'static str, bool)] {
    &[]
}

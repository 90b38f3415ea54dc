//! Admission: a list of plugins in upstream's order. Each sees every write; mutating ones first, then, after the
//! strategy's validation, validating ones.

mod account;
mod certificates;
mod ingress;
mod limits;
mod noderestriction;
mod nodes;
mod place;
mod pods;
mod quota;
mod security;
mod storage;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use api::Value;
use api::resources::Row;
use api::status::Status;
use store::cache::Cached;

use crate::entry::{self, Entry};
use crate::registry::object;
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
#[derive(Clone, Copy)]
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

impl Review<'_> {
    /// True for the resource itself (no subresource) of that group and plural.
    pub fn is(&self, group: &str, plural: &str) -> bool {
        self.subresource.is_empty() && self.row.group == group && self.row.plural == plural
    }

    /// True for that subresource of a resource.
    pub fn is_sub(&self, group: &str, plural: &str, subresource: &str) -> bool {
        self.subresource == subresource && self.row.group == group && self.row.plural == plural
    }

    /// True for creations and updates.
    pub fn writes(&self) -> bool {
        matches!(self.operation, Operation::Create | Operation::Update)
    }

    /// A refusal in upstream's words, with the name by which the object is known so far.
    pub fn forbidden(&self, object: &Value, why: impl std::fmt::Display) -> Status {
        let names = [self.name, object::name(object), object::meta_text(object, "generateName"), "Unknown"];
        let name = names.into_iter().find(|name| !name.is_empty()).unwrap_or_default();
        Status::forbidden(self.row.group_resource(), name, why)
    }

    /// The row of a resource; `None` when this server does not have it.
    fn row_of(&self, group: &str, plural: &str) -> Option<Arc<Row>> {
        self.api.resources.find(group, plural)
    }

    /// An object as the cache has it.
    fn find(&self, group: &str, plural: &str, namespace: &str, name: &str) -> Option<Arc<Cached<Entry>>> {
        let row = self.row_of(group, plural)?;
        self.api.cache.get(&entry::key(&self.api.settings.etcd_prefix, &row, namespace, name))
    }

    /// As [`Review::find`]; what is missing is looked for once more when the cache has all that this server wrote.
    async fn find_settled(&self, group: &str, plural: &str, namespace: &str, name: &str) -> Option<Arc<Cached<Entry>>> {
        if let Some(found) = self.find(group, plural, namespace, name) {
            return Some(found);
        }
        self.api.admission.settle(self.api).await;
        self.find(group, plural, namespace, name)
    }

    /// All objects of a resource (of a namespace where one is given) as the cache has them.
    fn list(&self, group: &str, plural: &str, namespace: &str) -> Vec<Arc<Cached<Entry>>> {
        let Some(row) = self.row_of(group, plural) else { return Vec::new() };
        let snapshot = self.api.cache.snapshot(&entry::resource_prefix(&self.api.settings.etcd_prefix, &row));
        let wanted = snapshot.entries.values().filter(|c| namespace.is_empty() || c.entry.namespace() == namespace);
        wanted.cloned().collect()
    }

    /// As [`Review::list`], but with all that this server wrote, when there is nothing else.
    async fn list_settled(&self, group: &str, plural: &str, namespace: &str) -> Vec<Arc<Cached<Entry>>> {
        let found = self.list(group, plural, namespace);
        if !found.is_empty() {
            return found;
        }
        self.api.admission.settle(self.api).await;
        self.list(group, plural, namespace)
    }
}

/// The plugins that are on.
pub struct Chain {
    plugins: Vec<Box<dyn Plugin>>,
    written: AtomicI64,
}

impl Chain {
    /// The plugins whose names the settings list, in upstream's order.
    pub fn new(settings: &Settings) -> Self {
        let on = |plugin: &dyn Plugin| settings.admission.contains(&plugin.name());
        Self { plugins: plugins().into_iter().filter(|p| on(p.as_ref())).collect(), written: AtomicI64::new(0) }
    }

    /// Notes that this server wrote at a revision.
    pub fn wrote(&self, revision: store::Revision) {
        self.written.fetch_max(revision, Ordering::Relaxed);
    }

    /// Waits until the cache has everything that this server wrote, so that a client which made a namespace finds it.
    pub async fn settle(&self, api: &Api) {
        let written = self.written.load(Ordering::Relaxed);
        if api.cache.revision() < written
            && let Err(error) = api.cache.wait(written).await
        {
            tracing::warn!(%error, written, "admission decides by a cache that lags behind");
        }
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

/// Every plugin that is here, in upstream's order.
fn plugins() -> Vec<Box<dyn Plugin>> {
    vec![
        Box::new(place::NamespaceLifecycle::default()),
        Box::new(limits::LimitRanger),
        Box::new(account::ServiceAccount),
        Box::new(noderestriction::NodeRestriction),
        Box::new(nodes::TaintNodesByCondition),
        Box::new(security::PodSecurity),
        Box::new(pods::Priority),
        Box::new(pods::DefaultTolerationSeconds),
        Box::new(storage::DefaultStorageClass),
        Box::new(storage::StorageObjectInUseProtection),
        Box::new(storage::PersistentVolumeClaimResize),
        Box::new(pods::RuntimeClass),
        Box::new(certificates::CertificateApproval),
        Box::new(certificates::CertificateSigning),
        Box::new(certificates::CertificateSubjectRestriction),
        Box::new(ingress::DefaultIngressClass),
        Box::new(pods::PodTopologyLabels),
        Box::new(quota::ResourceQuota::default()),
    ]
}

/// Every plugin's name in upstream's order, and whether it is on without `--enable-admission-plugins`.
pub fn known() -> &'static [(&'static str, bool)] {
    &[
        ("AlwaysAdmit", false),
        ("NamespaceAutoProvision", false),
        ("NamespaceLifecycle", true),
        ("NamespaceExists", false),
        ("LimitPodHardAntiAffinityTopology", false),
        ("LimitRanger", true),
        ("ServiceAccount", true),
        ("NodeRestriction", false),
        ("TaintNodesByCondition", true),
        ("AlwaysPullImages", false),
        ("ImagePolicyWebhook", false),
        ("PodSecurity", true),
        ("PodNodeSelector", false),
        ("Priority", true),
        ("DefaultTolerationSeconds", true),
        ("PodTolerationRestriction", false),
        ("EventRateLimit", false),
        ("ExtendedResourceToleration", false),
        ("DefaultStorageClass", true),
        ("StorageObjectInUseProtection", true),
        ("PodGroupProtection", true),
        ("OwnerReferencesPermissionEnforcement", false),
        ("PersistentVolumeClaimResize", true),
        ("RuntimeClass", true),
        ("CertificateApproval", true),
        ("CertificateSigning", true),
        ("ClusterTrustBundleAttest", true),
        ("CertificateSubjectRestriction", true),
        ("DefaultIngressClass", true),
        ("DenyServiceExternalIPs", false),
        ("PodTopologyLabels", true),
        ("PodGroupWorkloadExists", true),
        ("NodeDeclaredFeatureValidator", true),
        ("JobValidation", true),
        ("PodResizeValidator", true),
        ("MutatingAdmissionPolicy", true),
        ("MutatingAdmissionWebhook", true),
        ("ValidatingAdmissionPolicy", true),
        ("ValidatingAdmissionWebhook", true),
        ("ResourceQuota", true),
        ("AlwaysDeny", false),
    ]
}

/// A list of an object that is changed in place, made where it is missing.
fn items<'a>(object: &'a mut Value, path: &[&str], field: &str) -> &'a mut Vec<Value> {
    let list = object::fields(object, path).entry(field).or_insert_with(|| Value::Array(Vec::new()));
    if !list.is_array() {
        *list = Value::Array(Vec::new());
    }
    match list {
        Value::Array(items) => items,
        _ => unreachable!("made a list above"),
    }
}

/// Of the classes whose annotation says that they are the default, the newest; of equally new ones the first by name.
fn default_class(classes: &[Arc<Cached<Entry>>], annotation: &str) -> Option<String> {
    let values = classes.iter().filter_map(|cached| cached.entry.value().ok());
    let marked = values.filter(|class| object::annotation(class, annotation) == Some("true"));
    let ranked = marked.map(|class| {
        let made = object::seconds(object::meta_text(&class, "creationTimestamp")).unwrap_or_default();
        (std::cmp::Reverse(made), object::name(&class).to_string())
    });
    ranked.min().map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plugins_stand_in_upstreams_order_under_known_names() {
        let places: Vec<usize> = plugins()
            .iter()
            .map(|p| known().iter().position(|(name, _)| *name == p.name()).expect("a known name"))
            .collect();
        assert!(places.is_sorted(), "{places:?}");
    }
}

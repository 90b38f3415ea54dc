//! THE TABLE: one row per resource. Routes, discovery, OpenAPI, caches, printers, RBAC's bootstrap and the generic
//! tests iterate over it; a CustomResourceDefinition makes the same row at run time.

mod build;
mod groups;
mod table;

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::LazyLock;

use base64::Engine as _;
use sha2::Digest as _;

use crate::Value;
use crate::field::Errors;
use crate::meta;
use crate::status::Status;

pub use groups::{GROUPS, Group, GroupVersion};

/// Text that is static in built-in rows and owned in those of custom resources.
pub type Text = Cow<'static, str>;

/// Where objects of a resource live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// In a namespace.
    Namespaced,
    /// In the cluster.
    Cluster,
}

/// A resource.
#[derive(Clone)]
pub struct Row {
    /// API group, empty for core.
    pub group: Text,
    /// Versions in discovery's order of preference.
    pub versions: Vec<Version>,
    /// Group of the stored objects: core for `events.k8s.io`, else the row's own. Strategies see stored objects.
    pub stored_group: Text,
    /// The version in which objects are stored and in which strategies see them.
    pub stored: Text,
    /// The version that `storageVersionHash` is made of, where it is not the stored one.
    pub hashed: Option<Text>,
    /// Kind.
    pub kind: Text,
    /// Kind of lists.
    pub list_kind: Text,
    /// Plural, as in paths.
    pub plural: Text,
    /// Singular.
    pub singular: Text,
    /// Short names.
    pub short_names: Vec<Text>,
    /// Categories, such as `all`.
    pub categories: Vec<Text>,
    /// Scope.
    pub scope: Scope,
    /// Verbs in discovery's order.
    pub verbs: Vec<Text>,
    /// Subresources.
    pub subresources: Vec<Subresource>,
    /// Where it is stored below `/registry`, without slashes at the ends, as upstream stores it (`pods`,
    /// `services/specs`, `apiregistration.k8s.io/apiservices`); empty for what is not stored.
    pub storage: Text,
    /// Fields that field selectors may name beside `metadata.name` and `metadata.namespace`.
    pub selectable: &'static [&'static str],
    /// PUT to a name that is not there creates it.
    pub create_on_update: bool,
    /// An update without a resourceVersion is allowed.
    pub unconditional_update: bool,
    /// A delete answers with the object that was deleted rather than with a Status.
    pub answers_deleted: bool,
    /// What is particular to the kind.
    pub strategy: &'static dyn Strategy,
}

/// A version of a resource.
#[derive(Clone, Debug)]
pub struct Version {
    /// `v1`, `v2beta1` …
    pub name: Text,
    /// Served without `--runtime-config`.
    pub default: bool,
    /// OpenAPI name of the type in [`crate::schema`].
    pub schema: Text,
    /// Set when it is deprecated; drives the Warning header.
    pub deprecated: Option<Deprecation>,
}

/// Since when a version is deprecated and what comes after; releases as `(1, 35)`.
#[derive(Clone, Debug)]
pub struct Deprecation {
    /// First release that says so.
    pub since: (u32, u32),
    /// First release without it, if that is decided.
    pub removed: Option<(u32, u32)>,
    /// `discovery.k8s.io/v1 EndpointSlice`.
    pub instead: Option<Text>,
}

/// A subresource.
#[derive(Clone, Debug)]
pub struct Subresource {
    /// `status`, `scale`, `log` …
    pub name: Text,
    /// Verbs in discovery's order.
    pub verbs: Vec<Text>,
    /// Group, version and kind of its objects; group and version are both empty when they are the request's own.
    pub gvk: (Text, Text, Text),
}

/// What a strategy may know of a request.
#[derive(Debug, Clone, Copy)]
pub struct Context<'a> {
    /// Namespace, empty for cluster-scoped objects.
    pub namespace: &'a str,
    /// `status`, `scale` …; empty for the object itself.
    pub subresource: &'a str,
    /// Seconds since 1970.
    pub now: i64,
    /// Who asks.
    pub user: Requester<'a>,
}

/// Who asks, as some kinds keep it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Requester<'a> {
    /// User name.
    pub name: &'a str,
    /// UID, may be empty.
    pub uid: &'a str,
    /// Groups.
    pub groups: &'a [String],
    /// Extra values by key.
    pub extra: Option<&'a std::collections::BTreeMap<String, Vec<String>>>,
}

/// What is particular to a kind. Every method has a default that does nothing; objects are in the stored version.
/// Order on create: `default`, owners of fields are noted, mutating admission, `default` again, `prepare_create`,
/// `validate_create`, `warnings`, validating admission. On update the same with `prepare_update` and
/// `validate_update`. The engine does everything generic:
/// metadata (names, uid, timestamps, generation bookkeeping below), resourceVersion, managedFields. It calls
/// [`Row::check_create`] and [`Row::check_update`], which add what all kinds share to the two `validate` methods.
pub trait Strategy: Sync {
    /// Fills in what upstream's defaulting functions fill in. Idempotent.
    fn default(&self, _object: &mut Value) {}

    /// Drops or resets what a creator may not set (status, generation is 1 and so on).
    fn prepare_create(&self, _cx: &Context<'_>, _new: &mut Value) {}

    /// Drops or resets what this kind of update may not change: without subresource the status, with `status` the
    /// rest.
    fn prepare_update(&self, _cx: &Context<'_>, _new: &mut Value, _old: &Value) {}

    /// False for the few kinds whose own validation does not look at metadata, which then is checked only by the
    /// rules that all kinds share (any name that can stand in a path).
    fn checks_meta(&self, _update: bool) -> bool {
        true
    }

    /// True when finalizers without a domain have to be Kubernetes' own, as with all kinds but those made at run time.
    fn checks_finalizers(&self) -> bool {
        true
    }

    /// All that is wrong with a new object, in upstream's order and words; metadata has been checked before.
    fn validate_create(&self, _cx: &Context<'_>, _new: &Value) -> Errors {
        Errors::new()
    }

    /// All that is wrong with an updated object.
    fn validate_update(&self, _cx: &Context<'_>, _new: &Value, _old: &Value) -> Errors {
        Errors::new()
    }

    /// Texts for Warning headers.
    fn warnings(&self, _cx: &Context<'_>, _new: &Value, _old: Option<&Value>) -> Vec<String> {
        Vec::new()
    }

    /// Value of a selectable field, as text; the default reads the field of that path and prints it (absent: empty).
    fn selectable(&self, object: &Value, field: &str) -> String {
        let mut at = object;
        for part in field.split('.') {
            match at.get(part) {
                Some(next) => at = next,
                None => return String::new(),
            }
        }
        match at {
            Value::String(s) => s.clone(),
            Value::Null => String::new(),
            other => other.to_string(),
        }
    }

    /// The name under which [`Strategy::selectable`] knows a field that a selector names; the default is the same.
    fn field_alias<'a>(&self, field: &'a str) -> &'a str {
        field
    }

    /// What is said of a field that selectors may not name, for a row that has selectable fields.
    fn unsupported_field(&self, _version: &str, field: &str) -> String {
        format!("field label not supported: {field}")
    }

    /// How a name is checked; the default is a DNS subdomain.
    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        meta::dns_subdomain(name, prefix)
    }

    /// True when `metadata.generation` is kept: 1 on create, one more with every change that
    /// [`Strategy::changes_generation`].
    fn has_generation(&self) -> bool {
        false
    }

    /// True when this update counts in `metadata.generation`: what is neither metadata nor status differs. Asked only
    /// for updates of the object itself and of subresources that change its spec, after `prepare_update`.
    fn changes_generation(&self, new: &Value, old: &Value) -> bool {
        meta::differs_outside(new, old, &["apiVersion", "kind", "metadata", "status"])
    }

    /// Paths that this subresource (empty: the object itself) may not own.
    fn reset_fields(&self, _subresource: &str) -> &'static [&'static [&'static str]] {
        &[]
    }

    /// When there are any, only these paths and what is below them may be owned through this subresource; `*` is any
    /// step.
    fn ownable_fields(&self, _subresource: &str) -> &'static [&'static [&'static str]] {
        &[]
    }

    /// Seconds of grace for a delete that asks for so many (`None`: it does not say); `None` deletes at once. Pods alone
    /// are graceful.
    fn grace_period(&self, _object: &Value, _asked: Option<i64>) -> Option<i64> {
        None
    }

    /// Finalizer-like behaviour on delete: `Background` or `Orphan` where the client says nothing.
    fn default_propagation(&self) -> Propagation {
        Propagation::Background
    }

    /// Converts an object between two versions of the resource in place, `apiVersion` included.
    ///
    /// # Errors
    /// When the object can't be said in the other version.
    fn convert(&self, object: &mut Value, group: &str, to: &str) -> Result<(), Status> {
        let api_version = if group.is_empty() { to.to_string() } else { format!("{group}/{to}") };
        object["apiVersion"] = api_version.into();
        Ok(())
    }
}

/// What happens to dependents when their owner is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagation {
    /// The garbage collector deletes them afterwards.
    Background,
    /// They stay, without owner.
    Orphan,
    /// They go first.
    Foreground,
    /// Nobody looks after them: the kind has no dependents, and its objects get no finalizers for them.
    Unsupported,
}

/// A strategy that does nothing: the object is stored as its schema has it.
pub struct Plain;

impl Strategy for Plain {}

impl Row {
    /// `pods` or `deployments.apps`, as in Status texts.
    pub fn group_resource(&self) -> crate::status::Of<'_> {
        crate::status::Of { group: &self.group, name: &self.plural }
    }

    /// The version of that name.
    pub fn version(&self, name: &str) -> Option<&Version> {
        self.versions.iter().find(|v| v.name == name)
    }

    /// `apiVersion` of stored objects.
    pub fn stored_api_version(&self) -> String {
        api_version(&self.stored_group, &self.stored)
    }

    /// True when objects are kept in etcd.
    pub fn is_stored(&self) -> bool {
        !self.storage.is_empty()
    }

    /// The `storageVersionHash` of discovery; empty for what is not stored.
    pub fn storage_version_hash(&self) -> String {
        if !self.is_stored() {
            return String::new();
        }
        let version = self.hashed.as_ref().unwrap_or(&self.stored);
        let digest = sha2::Sha256::digest(format!("{}/{version}/{}", self.stored_group, self.kind));
        base64::engine::general_purpose::STANDARD.encode(&digest[..8])
    }

    /// Everything that is wrong with a new object, named and with system fields, after admission.
    ///
    /// # Errors
    /// 422 with all causes.
    pub fn check_create(&self, cx: &Context<'_>, new: &Value) -> Result<(), Status> {
        let namespaced = self.scope == Scope::Namespaced;
        let mut errors = Errors::new();
        if self.strategy.checks_meta(false) {
            let rule = |name: &str, prefix: bool| self.strategy.validate_name(name, prefix);
            errors.extend(meta::validate(new, namespaced, &rule));
            self.check_finalizers(&mut errors, new);
        }
        errors.extend(self.strategy.validate_create(cx, new));
        self.refuse(new, errors)?;
        // Comes second so that the kind's own texts are shown where both would refuse.
        self.refuse(new, meta::validate(new, namespaced, &meta::names::path_segment))
    }

    /// Everything that is wrong with an update of the object or of one of its subresources, after admission.
    ///
    /// # Errors
    /// 422 with all causes, some of them several times, as upstream has it.
    pub fn check_update(&self, cx: &Context<'_>, new: &Value, old: &Value) -> Result<(), Status> {
        let namespaced = self.scope == Scope::Namespaced;
        let mut errors = meta::validate(new, namespaced, &meta::names::path_segment);
        errors.extend(meta::validate_update(new, old));
        if self.strategy.checks_meta(true) {
            errors.extend(meta::validate_update(new, old));
            self.check_finalizers(&mut errors, new);
        }
        errors.extend(self.strategy.validate_update(cx, new, old));
        self.refuse(new, errors)
    }

    fn check_finalizers(&self, errors: &mut Errors, new: &Value) {
        if self.strategy.checks_finalizers() {
            meta::check::kube_finalizers(errors, new);
        }
    }

    fn refuse(&self, object: &Value, errors: Errors) -> Result<(), Status> {
        if errors.is_empty() {
            return Ok(());
        }
        // Upstream names the internal kind, which is that of the stored form.
        let of = crate::status::Of { group: &self.stored_group, name: &self.kind };
        Err(Status::invalid(of, meta::text(object, "name"), errors))
    }

    /// Checks the name of a field in a field selector and returns the name under which its value is found.
    ///
    /// # Errors
    /// Upstream's text when selectors of this resource may not name it.
    pub fn field_label<'a>(&self, version: &str, field: &'a str) -> Result<&'a str, String> {
        if field == "metadata.name" {
            return Ok(field);
        }
        if self.selectable.is_empty() {
            let unknown = || {
                format!(
                    "{} is not a known field selector: only \"metadata.name\", \"metadata.namespace\"",
                    crate::field::quote(field)
                )
            };
            return if field == "metadata.namespace" { Ok(field) } else { Err(unknown()) };
        }
        let known = match field {
            "metadata.namespace" => self.scope == Scope::Namespaced,
            _ => self.selectable.contains(&field) || self.selectable.contains(&self.strategy.field_alias(field)),
        };
        if known { Ok(self.strategy.field_alias(field)) } else { Err(self.strategy.unsupported_field(version, field)) }
    }

    /// The Warning text for a use of that version; `None` unless it is deprecated. `list` says that the answer is a
    /// list.
    pub fn deprecation(&self, version: &str, list: bool) -> Option<String> {
        let deprecation = self.version(version)?.deprecated.as_ref()?;
        // Upstream's lists of the core group are not deprecated themselves: the warning is about their items.
        let suffix = if list && !self.group.is_empty() { "List" } else { "" };
        let api_version = api_version(&self.group, version);
        let (major, minor) = deprecation.since;
        let mut text = format!("{api_version} {}{suffix} is deprecated in v{major}.{minor}+", self.kind);
        if let Some((major, minor)) = deprecation.removed {
            text.push_str(&format!(", unavailable in v{major}.{minor}+"));
        }
        if let Some(instead) = &deprecation.instead {
            text.push_str(&format!("; use {instead}{suffix}"));
        }
        Some(text)
    }

    /// The subresource of that name.
    pub fn subresource(&self, name: &str) -> Option<&Subresource> {
        self.subresources.iter().find(|s| s.name == name)
    }
}

/// Every built-in resource in discovery's order: core first, then group by group.
pub fn builtin() -> &'static [Row] {
    static ROWS: LazyLock<Vec<Row>> = LazyLock::new(table::rows);
    &ROWS
}

/// The built-in resource of that group and plural.
pub fn find(group: &str, plural: &str) -> Option<&'static Row> {
    static INDEX: LazyLock<HashMap<(&'static str, &'static str), &'static Row>> =
        LazyLock::new(|| builtin().iter().map(|row| ((&*row.group, &*row.plural), row)).collect());
    INDEX.get(&(group, plural)).copied()
}

/// `v1` or `apps/v1`.
pub fn api_version(group: &str, version: &str) -> String {
    if group.is_empty() { version.to_string() } else { format!("{group}/{version}") }
}

#[cfg(test)]
mod tests;

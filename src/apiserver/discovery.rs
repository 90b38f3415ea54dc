//! Which APIs there are: the old documents (`/api`, `/apis`, a group, a group's version) and the aggregated one, all
//! made from the table as it is, and kept until the table changes.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::resources::{GROUPS, Row, Scope, Subresource, Text, api_version};
use parking_lot::Mutex;
use serde::Serialize;
use sha2::Digest as _;

use crate::registry::Resources;

/// A snapshot of the table.
type Table = Arc<BTreeMap<(Text, Text), Arc<Row>>>;

/// Makes the documents and keeps the last ones.
pub struct Discovery {
    resources: Arc<Resources>,
    kept: Mutex<Option<(Table, Arc<Documents>)>>,
}

/// The documents for one state of the table.
pub struct Documents {
    /// Groups with their versions, in discovery's order; core first.
    pub groups: Vec<Group>,
    /// Aggregated form of core.
    pub core: Aggregated,
    /// Aggregated form of all other groups.
    pub named: Aggregated,
    /// OpenAPI documents that were asked for.
    pub openapi: crate::endpoints::openapi::Kept,
}

/// An aggregated document.
pub struct Aggregated {
    /// The document.
    pub document: GroupDiscoveryList,
    /// Hash over it.
    pub etag: String,
}

/// A group that is served.
#[derive(Clone)]
pub struct Group {
    /// Name.
    pub name: String,
    /// Versions in order of preference, each with its rows.
    pub versions: Vec<(String, Vec<Arc<Row>>)>,
}

impl Discovery {
    /// For this table.
    pub fn new(resources: Arc<Resources>) -> Self {
        Self { resources, kept: Mutex::default() }
    }

    /// The documents now.
    pub fn documents(&self) -> Arc<Documents> {
        let table = self.resources.snapshot();
        let mut kept = self.kept.lock();
        match &*kept {
            Some((of, documents)) if Arc::ptr_eq(of, &table) => documents.clone(),
            _ => {
                let documents = Arc::new(Documents::new(&table));
                *kept = Some((table, documents.clone()));
                documents
            }
        }
    }
}

impl Documents {
    fn new(table: &Table) -> Self {
        let groups = groups(table);
        let (core, named): (Vec<_>, Vec<_>) = groups.iter().partition(|g| g.name.is_empty());
        Self { core: aggregate(&core), named: aggregate(&named), groups: groups.clone(), openapi: Default::default() }
    }

    /// The group of that name.
    pub fn group(&self, name: &str) -> Option<&Group> {
        self.groups.iter().find(|g| g.name == name)
    }
}

/// Built-in groups in their order, then custom ones by name.
fn groups(table: &Table) -> Vec<Group> {
    let mut by_name: BTreeMap<&str, Vec<&Arc<Row>>> = BTreeMap::new();
    for row in table.values() {
        by_name.entry(&row.group).or_default().push(row);
    }
    let mut names: Vec<&str> = GROUPS.iter().map(|g| g.name).filter(|n| by_name.contains_key(n)).collect();
    names.extend(by_name.keys().copied().filter(|n| GROUPS.iter().all(|g| g.name != *n)));
    names.into_iter().map(|name| Group { name: name.to_string(), versions: versions(name, &by_name[name]) }).collect()
}

fn versions(group: &str, rows: &[&Arc<Row>]) -> Vec<(String, Vec<Arc<Row>>)> {
    let mut versions: BTreeMap<String, Vec<Arc<Row>>> = BTreeMap::new();
    for row in rows {
        for version in &row.versions {
            versions.entry(version.name.to_string()).or_default().push((*row).clone());
        }
    }
    let mut versions: Vec<_> = versions.into_iter().collect();
    let order: Vec<&str> = GROUPS
        .iter()
        .find(|g| g.name == group)
        .map(|g| g.versions.iter().map(|v| v.name).collect())
        .unwrap_or_default();
    let place = |name: &str| order.iter().position(|v| *v == name).unwrap_or(order.len());
    versions.sort_by(|(a, _), (b, _)| place(a).cmp(&place(b)).then_with(|| preference(b).cmp(&preference(a))));
    versions
}

/// How much a version is preferred: stable ones first, then beta, then alpha, higher numbers first; other names last.
pub fn preference(version: &str) -> (u8, u64, u64, std::cmp::Reverse<String>) {
    let other = || (0, 0, 0, std::cmp::Reverse(version.to_string()));
    let Some(rest) = version.strip_prefix('v') else { return other() };
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let Ok(major) = rest[..end].parse() else { return other() };
    let (level, minor) = match &rest[end..] {
        "" => (3, "0"),
        stage if stage.starts_with("beta") => (2, &stage[4..]),
        stage if stage.starts_with("alpha") => (1, &stage[5..]),
        _ => return other(),
    };
    match minor.parse() {
        Ok(minor) => (level, major, minor, std::cmp::Reverse(String::new())),
        Err(_) => other(),
    }
}

/// `APIVersions`: the answer to `/api`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ApiVersions {
    kind: &'static str,
    versions: Vec<String>,
    #[serde(rename = "serverAddressByClientCIDRs")]
    addresses: Vec<Address>,
}

#[derive(Serialize)]
struct Address {
    #[serde(rename = "clientCIDR")]
    client: &'static str,
    #[serde(rename = "serverAddress")]
    server: String,
}

/// `APIGroupList`: the answer to `/apis`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ApiGroupList {
    kind: &'static str,
    api_version: &'static str,
    groups: Vec<ApiGroup>,
}

/// `APIGroup`: the answer to `/apis/apps`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ApiGroup {
    #[serde(skip_serializing_if = "str::is_empty")]
    kind: &'static str,
    #[serde(skip_serializing_if = "str::is_empty")]
    api_version: &'static str,
    name: String,
    versions: Vec<GroupVersion>,
    preferred_version: Option<GroupVersion>,
}

#[derive(Serialize, Clone)]
#[serde(rename_all = "camelCase")]
struct GroupVersion {
    group_version: String,
    version: String,
}

/// `APIResourceList`: the answer to `/apis/apps/v1`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ApiResourceList {
    kind: &'static str,
    #[serde(skip_serializing_if = "str::is_empty")]
    api_version: &'static str,
    group_version: String,
    resources: Vec<ApiResource>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ApiResource {
    name: String,
    singular_name: String,
    namespaced: bool,
    #[serde(skip_serializing_if = "String::is_empty")]
    group: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    version: String,
    kind: String,
    verbs: Vec<Text>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    short_names: Vec<Text>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    categories: Vec<Text>,
    #[serde(skip_serializing_if = "String::is_empty")]
    storage_version_hash: String,
}

/// Answers `/api`; `server` is where clients reach us.
pub fn api_versions(documents: &Documents, server: String) -> ApiVersions {
    let versions = documents.group("").map(|g| g.versions.iter().map(|(v, _)| v.clone()).collect());
    ApiVersions {
        kind: "APIVersions",
        versions: versions.unwrap_or_default(),
        addresses: vec![Address { client: "0.0.0.0/0", server }],
    }
}

/// Answers `/apis`.
pub fn api_groups(documents: &Documents) -> ApiGroupList {
    let named = documents.groups.iter().filter(|g| !g.name.is_empty());
    ApiGroupList { kind: "APIGroupList", api_version: "v1", groups: named.map(|g| group_of(g, "", "")).collect() }
}

/// Answers `/apis/apps`.
pub fn api_group(group: &Group) -> ApiGroup {
    group_of(group, "APIGroup", "v1")
}

fn group_of(group: &Group, kind: &'static str, api: &'static str) -> ApiGroup {
    let version = |(version, _): &(String, _)| GroupVersion {
        group_version: api_version(&group.name, version),
        version: version.clone(),
    };
    let versions: Vec<GroupVersion> = group.versions.iter().map(version).collect();
    let preferred_version = versions.first().cloned();
    ApiGroup { kind, api_version: api, name: group.name.clone(), versions, preferred_version }
}

/// Answers `/apis/apps/v1`.
pub fn api_resources(group: &Group, version: &str) -> Option<ApiResourceList> {
    let (_, rows) = group.versions.iter().find(|(v, _)| v == version)?;
    Some(ApiResourceList {
        kind: "APIResourceList",
        // Upstream leaves it out for the core group.
        api_version: if group.name.is_empty() { "" } else { "v1" },
        group_version: api_version(&group.name, version),
        resources: rows.iter().flat_map(|row| resources_of(row)).collect(),
    })
}

fn resources_of(row: &Row) -> impl Iterator<Item = ApiResource> {
    let own = ApiResource {
        name: row.plural.to_string(),
        singular_name: row.singular.to_string(),
        namespaced: row.scope == Scope::Namespaced,
        group: String::new(),
        version: String::new(),
        kind: row.kind.to_string(),
        verbs: row.verbs.clone(),
        short_names: row.short_names.clone(),
        categories: row.categories.clone(),
        storage_version_hash: row.storage_version_hash(),
    };
    let sub = |sub: &Subresource| ApiResource {
        name: format!("{}/{}", row.plural, sub.name),
        singular_name: String::new(),
        namespaced: row.scope == Scope::Namespaced,
        group: sub.gvk.0.to_string(),
        version: sub.gvk.1.to_string(),
        kind: sub.gvk.2.to_string(),
        verbs: sub.verbs.clone(),
        short_names: Vec::new(),
        categories: Vec::new(),
        storage_version_hash: String::new(),
    };
    std::iter::once(own).chain(row.subresources.iter().map(sub)).collect::<Vec<_>>().into_iter()
}

/// `APIGroupDiscoveryList` of `apidiscovery.k8s.io/v2`.
#[derive(Serialize, Clone)]
#[serde(rename_all = "camelCase")]
pub struct GroupDiscoveryList {
    #[serde(skip_serializing_if = "str::is_empty")]
    kind: &'static str,
    #[serde(skip_serializing_if = "str::is_empty")]
    api_version: &'static str,
    metadata: Empty,
    items: Vec<GroupDiscovery>,
}

#[derive(Serialize, Clone, Default)]
struct Empty {}

#[derive(Serialize, Clone)]
struct GroupDiscovery {
    metadata: Named,
    versions: Vec<VersionDiscovery>,
}

#[derive(Serialize, Clone)]
struct Named {
    #[serde(skip_serializing_if = "String::is_empty")]
    name: String,
}

#[derive(Serialize, Clone)]
struct VersionDiscovery {
    version: String,
    resources: Vec<ResourceDiscovery>,
    freshness: &'static str,
}

#[derive(Serialize, Clone)]
#[serde(rename_all = "camelCase")]
struct ResourceDiscovery {
    resource: Text,
    response_kind: ResponseKind,
    scope: &'static str,
    singular_resource: Text,
    verbs: Vec<Text>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    short_names: Vec<Text>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    categories: Vec<Text>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    subresources: Vec<SubresourceDiscovery>,
}

#[derive(Serialize, Clone)]
struct ResponseKind {
    group: Text,
    version: Text,
    kind: Text,
}

#[derive(Serialize, Clone)]
#[serde(rename_all = "camelCase")]
struct SubresourceDiscovery {
    subresource: Text,
    response_kind: ResponseKind,
    verbs: Vec<Text>,
}

fn aggregate(groups: &[&Group]) -> Aggregated {
    let items = groups.iter().map(|group| GroupDiscovery {
        metadata: Named { name: group.name.clone() },
        versions: group.versions.iter().map(|(version, rows)| version_discovery(version, rows)).collect(),
    });
    let mut document = GroupDiscoveryList { kind: "", api_version: "", metadata: Empty {}, items: items.collect() };
    // Upstream hashes the document before it says its kind.
    let bytes = serde_json::to_vec(&document).unwrap_or_default();
    let etag = sha2::Sha512::digest(&bytes).iter().map(|b| format!("{b:02X}")).collect();
    (document.kind, document.api_version) = ("APIGroupDiscoveryList", "apidiscovery.k8s.io/v2");
    Aggregated { document, etag }
}

fn version_discovery(version: &str, rows: &[Arc<Row>]) -> VersionDiscovery {
    let resources = rows.iter().map(|row| ResourceDiscovery {
        resource: row.plural.clone(),
        response_kind: ResponseKind { group: Text::Borrowed(""), version: Text::Borrowed(""), kind: row.kind.clone() },
        scope: if row.scope == Scope::Namespaced { "Namespaced" } else { "Cluster" },
        singular_resource: row.singular.clone(),
        verbs: row.verbs.clone(),
        short_names: row.short_names.clone(),
        categories: row.categories.clone(),
        subresources: row.subresources.iter().map(subresource_discovery).collect(),
    });
    VersionDiscovery { version: version.to_string(), resources: resources.collect(), freshness: "Current" }
}

fn subresource_discovery(sub: &Subresource) -> SubresourceDiscovery {
    let (group, version, kind) = sub.gvk.clone();
    SubresourceDiscovery {
        subresource: sub.name.clone(),
        response_kind: ResponseKind { group, version, kind },
        verbs: sub.verbs.clone(),
    }
}

/// Which form of discovery an Accept header asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// The old documents.
    Plain,
    /// The aggregated document.
    Aggregated,
}

/// How a document is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// JSON.
    Json,
    /// YAML.
    Yaml,
    /// Protobuf.
    Protobuf,
}

/// Reads an Accept header: the first aggregated form that is on offer wins, else the first plain one; nothing when
/// none fits. `aggregated` says that this path has that form.
pub fn negotiate(accept: &str, aggregated: bool) -> Option<(Form, Encoding)> {
    if accept.trim().is_empty() {
        return Some((Form::Plain, Encoding::Json));
    }
    let offers: Vec<_> = accept.split(',').filter_map(offer).collect();
    let wanted = |form| offers.iter().find(|(f, _)| *f == form).copied();
    wanted(Form::Aggregated).filter(|_| aggregated).or_else(|| wanted(Form::Plain))
}

/// One clause of an Accept header, when it is something that discovery has.
fn offer(clause: &str) -> Option<(Form, Encoding)> {
    let mut parts = clause.split(';').map(str::trim);
    let encoding = match parts.next()?.to_ascii_lowercase().as_str() {
        "application/json" | "*/*" | "application/*" => Encoding::Json,
        "application/yaml" => Encoding::Yaml,
        "application/vnd.kubernetes.protobuf" => Encoding::Protobuf,
        _ => return None,
    };
    let (mut group, mut version, mut kind) = ("", "", "");
    for (key, value) in parts.filter_map(|p| p.split_once('=')) {
        match key {
            "g" => group = value,
            "v" => version = value,
            "as" => kind = value,
            _ => {}
        }
    }
    match (group, version, kind) {
        ("", "", "") => Some((Form::Plain, encoding)),
        ("apidiscovery.k8s.io", "v2", "APIGroupDiscoveryList") => Some((Form::Aggregated, encoding)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn documents() -> Documents {
        let rows = api::resources::builtin().iter().map(|row| {
            let mut row = row.clone();
            row.versions.retain(|v| v.default);
            ((row.group.clone(), row.plural.clone()), Arc::new(row))
        });
        Documents::new(&Arc::new(rows.filter(|(_, row)| !row.versions.is_empty()).collect()))
    }

    #[test]
    fn the_core_groups_hash_is_upstreams() {
        // Recorded from kube-apiserver 1.36.2: equal only when every byte of the document is.
        assert_eq!(
            documents().core.etag,
            "4D7E1BED90B364BC86049DD9E636494980AEF65B7F8CFAA267616FA062B514A8A3CC2C2851CC9337B8D28B4C80960E2353DE5E0B152E87CC223E02EA3C5C37AC"
        );
    }

    #[test]
    fn versions_are_preferred_as_upstream_prefers_them() {
        let mut versions = ["v1alpha1", "v2beta1", "v1", "foo1", "v10", "v2", "v1beta2", "v11alpha2", "foo10"];
        versions.sort_by_key(|v| std::cmp::Reverse(preference(v)));
        assert_eq!(versions, ["v10", "v2", "v1", "v2beta1", "v1beta2", "v11alpha2", "v1alpha1", "foo1", "foo10"]);
    }

    #[test]
    fn the_aggregated_form_is_negotiated_exactly() {
        let v2 = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
        let beta = "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList";
        assert_eq!(negotiate(v2, true), Some((Form::Aggregated, Encoding::Json)));
        assert_eq!(negotiate(v2, false), None);
        assert_eq!(negotiate(beta, true), None);
        assert_eq!(negotiate(&format!("{beta},application/json"), true), Some((Form::Plain, Encoding::Json)));
        assert_eq!(negotiate(&format!("application/json,{v2}"), true), Some((Form::Aggregated, Encoding::Json)));
        assert_eq!(negotiate("", true), Some((Form::Plain, Encoding::Json)));
    }
}

//! Discovery documents from the table: `/api`, `/apis`, a group, a group's version, and the aggregated form.
//!
//! ```text
//! rows ──groups()──► [Group { versions: [Version { rows }] }] ──► group_list, group, resource_list, aggregated
//! ```
//!
//! All are [`Value`]s of meta/v1 and apidiscovery/v2 types, which the codecs write in every media type.

use std::cmp::Ordering;

use serde_json::json;
use sha2::Digest as _;

use crate::Value;
use crate::resources::{self, GROUPS, Row, Scope, Text, api_version};

/// Priority of the groups of custom resources.
const CUSTOM_PRIORITY: i32 = 1000;

/// A group with what it serves.
#[derive(Clone)]
pub struct Group<'a> {
    /// Name, empty for core.
    pub name: Text,
    /// Groups of a higher priority come first.
    pub priority: i32,
    /// Versions, the preferred one first.
    pub versions: Vec<Version<'a>>,
}

/// A version of a group with its resources.
#[derive(Clone)]
pub struct Version<'a> {
    /// `v1`, `v1beta1` …
    pub name: Text,
    /// What is served in this version, in the table's order.
    pub rows: Vec<&'a Row>,
}

/// Sorts rows into groups and versions, in the order of `/apis`. `served` says whether a row is served in a version.
pub fn groups<'a>(rows: impl Iterator<Item = &'a Row>, served: impl Fn(&Row, &str) -> bool) -> Vec<Group<'a>> {
    let mut groups: Vec<Group<'a>> = Vec::new();
    for row in rows {
        for version in &row.versions {
            if !served(row, &version.name) {
                continue;
            }
            let group = match groups.iter().position(|g| g.name == row.group) {
                Some(at) => &mut groups[at],
                None => {
                    groups.push(Group {
                        name: row.group.clone(),
                        priority: priority(&row.group),
                        versions: Vec::new(),
                    });
                    groups.last_mut().expect("one was pushed")
                }
            };
            match group.versions.iter_mut().find(|v| v.name == version.name) {
                Some(there) => there.rows.push(row),
                None => group.versions.push(Version { name: version.name.clone(), rows: vec![row] }),
            }
        }
    }
    for group in &mut groups {
        sort_versions(group);
    }
    groups.sort_by(|a, b| order(a.priority, &a.name, b.priority, &b.name));
    groups
}

/// Order of groups: by priority, then by name; the group of APIServices comes before all.
pub fn order(a_priority: i32, a: &str, b_priority: i32, b: &str) -> Ordering {
    let first = |name: &str| name != "apiregistration.k8s.io";
    first(a).cmp(&first(b)).then(b_priority.cmp(&a_priority)).then_with(|| a.cmp(b))
}

fn priority(group: &str) -> i32 {
    resources::Group::find(group).map_or(CUSTOM_PRIORITY, |group| group.priority)
}

fn is_custom(group: &str) -> bool {
    resources::Group::find(group).is_none()
}

fn sort_versions(group: &mut Group<'_>) {
    match GROUPS.iter().find(|g| g.name == group.name) {
        Some(known) => {
            let place = |name: &str| known.versions.iter().position(|v| v.name == name).unwrap_or(usize::MAX);
            group.versions.sort_by_key(|version| place(&version.name));
        }
        None => group.versions.sort_by(|a, b| compare_versions(&a.name, &b.name)),
    }
}

/// Order of preference of version names: stable, beta, alpha, each with the newest first, then everything that is no
/// version, by name.
pub fn compare_versions(a: &str, b: &str) -> Ordering {
    match (version_parts(a), version_parts(b)) {
        (Some(a), Some(b)) => b.cmp(&a),
        (Some(_), None) => Ordering::Less,
        (None, Some(_)) => Ordering::Greater,
        (None, None) => a.cmp(b),
    }
}

/// `v2beta1` as (stability, 2, 1).
fn version_parts(name: &str) -> Option<(u8, u32, u32)> {
    let rest = name.strip_prefix('v')?;
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    let major = number(&rest[..digits])?;
    match &rest[digits..] {
        "" => Some((2, major, 0)),
        rest => match (rest.strip_prefix("beta"), rest.strip_prefix("alpha")) {
            (Some(minor), _) => Some((1, major, number(minor)?)),
            (_, Some(minor)) => Some((0, major, number(minor)?)),
            _ => None,
        },
    }
}

fn number(text: &str) -> Option<u32> {
    if text.starts_with('0') { None } else { text.parse().ok() }
}

/// `/api`: `APIVersions` with the address (`host:port`) that clients should use.
pub fn api_versions(address: &str) -> Value {
    json!({
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}],
    })
}

/// `/apis`: `APIGroupList` of all groups but core.
pub fn group_list(groups: &[Group<'_>]) -> Value {
    let groups: Vec<Value> = groups.iter().filter(|g| !g.name.is_empty()).map(group_body).collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

/// `/apis/{group}`: `APIGroup`.
pub fn group(group: &Group<'_>) -> Value {
    let mut body = group_body(group);
    body["kind"] = "APIGroup".into();
    body["apiVersion"] = "v1".into();
    body
}

fn group_body(group: &Group<'_>) -> Value {
    let versions: Vec<Value> = group
        .versions
        .iter()
        .map(|v| json!({"groupVersion": api_version(&group.name, &v.name), "version": v.name}))
        .collect();
    json!({"name": group.name, "preferredVersion": versions.first(), "versions": versions})
}

/// `/api/v1` or `/apis/{group}/{version}`: `APIResourceList`.
pub fn resource_list(group: &str, version: &Version<'_>) -> Value {
    let resources: Vec<Value> = version.rows.iter().flat_map(|row| resource_entries(row)).collect();
    let mut list = json!({
        "kind": "APIResourceList",
        "groupVersion": api_version(group, &version.name),
        "resources": resources,
    });
    if !group.is_empty() {
        list["apiVersion"] = "v1".into();
    }
    list
}

/// A resource and its subresources.
fn resource_entries(row: &Row) -> Vec<Value> {
    let namespaced = row.scope == Scope::Namespaced;
    let mut own = json!({
        "name": row.plural, "singularName": row.singular, "namespaced": namespaced, "kind": row.kind, "verbs": row.verbs,
    });
    let hash = row.storage_version_hash();
    if !hash.is_empty() {
        own["storageVersionHash"] = hash.into();
    }
    add_names(&mut own, row);
    let mut entries = vec![own];
    for sub in &row.subresources {
        let (group, version, kind) = &sub.gvk;
        let name = format!("{}/{}", row.plural, sub.name);
        let mut entry = json!({
            "name": name, "singularName": "", "namespaced": namespaced, "kind": kind, "verbs": sub.verbs,
        });
        if !version.is_empty() {
            entry["version"] = version.clone().into();
        }
        if !group.is_empty() {
            entry["group"] = group.clone().into();
        }
        entries.push(entry);
    }
    entries
}

fn add_names(entry: &mut Value, row: &Row) {
    if !row.short_names.is_empty() {
        entry["shortNames"] = row.short_names.clone().into();
    }
    if !row.categories.is_empty() {
        entry["categories"] = row.categories.clone().into();
    }
}

/// `APIGroupDiscoveryList` of these groups, as `/api` (core alone) and `/apis` (all others) give it.
pub fn aggregated(groups: &[Group<'_>]) -> Value {
    aggregated_list(groups.iter().map(aggregated_group).collect())
}

/// An `APIGroupDiscoveryList` from its items.
pub fn aggregated_list(items: Vec<Value>) -> Value {
    json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items})
}

/// A group's item in aggregated discovery.
pub fn aggregated_group(group: &Group<'_>) -> Value {
    let versions: Vec<Value> = group.versions.iter().map(|v| aggregated_version(&group.name, v)).collect();
    let metadata = if group.name.is_empty() { json!({}) } else { json!({"name": group.name}) };
    json!({"metadata": metadata, "versions": versions})
}

fn aggregated_version(group: &str, version: &Version<'_>) -> Value {
    let resources: Vec<Value> = version.rows.iter().map(|row| aggregated_resource(group, &version.name, row)).collect();
    json!({"version": version.name, "resources": resources, "freshness": "Current"})
}

fn aggregated_resource(group: &str, version: &str, row: &Row) -> Value {
    // Built-in resources leave out group and version that are the request's own; custom ones name them.
    let home = if is_custom(group) { (group, version) } else { ("", "") };
    let response =
        |(group, version): (&str, &str), kind: &str| json!({"group": group, "version": version, "kind": kind});
    let scope = if row.scope == Scope::Namespaced { "Namespaced" } else { "Cluster" };
    let mut entry = json!({
        "resource": row.plural, "responseKind": response(home, &row.kind), "scope": scope,
        "singularResource": row.singular, "verbs": row.verbs,
    });
    add_names(&mut entry, row);
    let subresources: Vec<Value> = row
        .subresources
        .iter()
        .map(|sub| {
            let (group, version, kind) = &sub.gvk;
            let place = if version.is_empty() { home } else { (&**group, &**version) };
            json!({"subresource": sub.name, "responseKind": response(place, kind), "verbs": sub.verbs})
        })
        .collect();
    if !subresources.is_empty() {
        entry["subresources"] = subresources.into();
    }
    entry
}

/// The ETag of an `APIGroupDiscoveryList`, without the quotes: a hash of its JSON without `kind` and `apiVersion`.
pub fn etag(list: &Value) -> String {
    let facts = crate::schema::builtin();
    let Some(ty) = facts.kind("apidiscovery.k8s.io", "v2", "APIGroupDiscoveryList") else { return String::new() };
    let mut bare = crate::Map::new();
    for name in ["metadata", "items"] {
        bare.insert(name.into(), list[name].clone());
    }
    let mut text = Vec::new();
    crate::codec::json::encode(facts, ty, &Value::Object(bare), &mut text);
    sha2::Sha512::digest(&text).iter().map(|byte| format!("{byte:02X}")).collect()
}

#[cfg(test)]
mod tests;

//! Which APIs there are: the documents of [`api::discovery`], made from the table as it is. The aggregated ones are kept
//! until the table changes; the others are small.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::Value;
use api::discovery::{Group, Version};
use api::resources::{Row, Text};
use parking_lot::Mutex;

use crate::registry::Resources;

/// A snapshot of the table.
type Table = Arc<BTreeMap<(Text, Text), Arc<Row>>>;

/// Makes the documents and keeps the last ones.
pub struct Discovery {
    resources: Arc<Resources>,
    kept: Mutex<Option<Arc<Documents>>>,
}

/// The documents for one state of the table.
pub struct Documents {
    table: Table,
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
    pub document: Value,
    /// Hash over it.
    pub etag: String,
}

impl Aggregated {
    fn of(groups: &[Group<'_>]) -> Self {
        let document = api::discovery::aggregated(groups);
        let etag = api::discovery::etag(&document);
        Self { document, etag }
    }
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
            Some(documents) if Arc::ptr_eq(&documents.table, &table) => documents.clone(),
            _ => {
                let documents = Arc::new(Documents::new(table));
                *kept = Some(documents.clone());
                documents
            }
        }
    }
}

impl Documents {
    fn new(table: Table) -> Self {
        let (core, named): (Vec<_>, Vec<_>) = groups(&table).into_iter().partition(|g| g.name.is_empty());
        let (core, named) = (Aggregated::of(&core), Aggregated::of(&named));
        Self { table, core, named, openapi: Default::default() }
    }

    /// Groups with their versions, in discovery's order; core first.
    pub fn groups(&self) -> Vec<Group<'_>> {
        groups(&self.table)
    }

    /// The group of that name.
    pub fn group(&self, name: &str) -> Option<Group<'_>> {
        self.groups().into_iter().find(|g| g.name == name)
    }

    /// The `APIResourceList` of a group's version.
    pub fn resources(&self, group: &str, version: &str) -> Option<Value> {
        let group = self.group(group)?;
        let version: &Version<'_> = group.versions.iter().find(|v| v.name == version)?;
        Some(api::discovery::resource_list(&group.name, version))
    }
}

/// The table holds only what is served.
fn groups(table: &Table) -> Vec<Group<'_>> {
    api::discovery::groups(table.values().map(|row| &**row), |_, _| true)
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
        Documents::new(Arc::new(rows.filter(|(_, row)| !row.versions.is_empty()).collect()))
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

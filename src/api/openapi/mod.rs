//! The OpenAPI documents: v2 as JSON and protobuf, v3 per group and version, made from the table and the facts.
//!
//! ```text
//! table (discovery::Group) ──paths──► operations ──┬─► v2: one document ──gnostic──► protobuf
//! facts ──schemas──► definitions ──────────────────┘
//! k8s-openapi's schemas ──texts──► descriptions     └─► v3: a document per group and version
//! ```
//!
//! Nothing is kept: a caller builds a document when it is first asked for and keeps its bytes. Definitions and paths go
//! one by one to the writer, so a document never stands in memory as a tree.
//!
//! What differs from upstream's documents: parameters that only options of lists have are described in our own words,
//! as are lists; values of enumerations are listed without a sentence for each; there is no CBOR.

mod document;
mod gnostic;
mod paths;
mod schemas;
mod texts;

use crate::Value;
use crate::discovery::Group;

/// What is served.
#[derive(Clone, Copy)]
pub struct Api<'a> {
    /// Groups, versions and resources, core included.
    pub groups: &'a [Group<'a>],
    /// The OpenAPI v3 schema of a custom resource's version, by the name that its row gives (`Version::schema`).
    pub custom: &'a dyn Fn(&str) -> Option<Value>,
}

/// Media type of [`v2_protobuf`].
pub const V2_PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";

/// The v2 document as JSON.
pub fn v2(api: Api<'_>) -> Vec<u8> {
    document::v2(api)
}

/// The v2 document in gnostic's protobuf form.
pub fn v2_protobuf(api: Api<'_>) -> Vec<u8> {
    gnostic::document(api)
}

/// The names of the v3 documents, sorted: `api`, `api/v1`, `apis`, `apis/apps`, `apis/apps/v1`, `version` …
pub fn v3_names(api: Api<'_>) -> Vec<String> {
    document::v3_names(api)
}

/// The v3 document of that name as JSON; `None` when there is none.
pub fn v3(api: Api<'_>, name: &str) -> Option<Vec<u8>> {
    document::v3(api, name)
}

/// `/openapi/v3`: where each document is; its hash makes a URL that clients may keep for ever.
pub fn v3_index(documents: impl Iterator<Item = (String, String)>) -> Value {
    let paths = documents.map(|(name, hash)| {
        let url = format!("/openapi/v3/{name}?hash={hash}");
        (name, serde_json::json!({"serverRelativeURL": url}))
    });
    serde_json::json!({"paths": paths.collect::<crate::Map>()})
}

/// Which version of OpenAPI is written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flavor {
    V2,
    V3,
}

impl Flavor {
    /// The reference to a definition.
    fn reference(self, name: &str) -> String {
        match self {
            Flavor::V2 => format!("#/definitions/{name}"),
            Flavor::V3 => format!("#/components/schemas/{name}"),
        }
    }
}

#[cfg(test)]
mod tests;

//! The API as data: what resources exist, what their objects look like, and every pure operation on them.
//!
//! ```text
//!            bytes ──codec──► Value ──patch / apply──► Value ──kinds: default, validate──► Value ──codec──► bytes
//!                                │ facts about types (schema) drive codec, patch, pruning, OpenAPI │
//!                                └────────────── rows (resources) drive routes, discovery, tables ─┘
//! ```
//!
//! Contract: nothing here does I/O, reads a clock or is async; equal inputs give equal outputs. Objects are
//! [`Value`] trees; code that reads many fields decodes into k8s-openapi's typed structs. Every refusal is a
//! [`status::Status`] in upstream's words, or a [`field::Errors`] list that becomes one.

pub mod codec;
pub mod discovery;
pub mod field;
pub mod kinds;
pub mod meta;
pub mod openapi;
pub mod patch;
pub mod print;
pub mod quantity;
pub mod quota;
pub mod resources;
pub mod schema;
pub mod selector;
pub mod status;

/// A decoded object or part of one. Object keys are sorted, as Go's maps are when encoded.
pub use serde_json::Value;
/// The fields of a decoded object.
pub type Map = serde_json::Map<String, Value>;

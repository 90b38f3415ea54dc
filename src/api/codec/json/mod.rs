//! JSON in upstream's canonical form, and decoding with field validation.
//!
//! ```text
//! bytes ──decode(type)──► normalized Value ──encode(type)──► upstream's bytes
//!   └────parse──► Value ──patch──► Value ──normalize(type)──┘
//! ```
//!
//! A *normalized* value holds what upstream's typed object would be written as: known fields only, canonical times,
//! quantities and base64, zero values left out or written as Go's tags have it.

mod path;
mod read;
mod typed;
mod untyped;
mod value;
mod write;
mod zero;

use crate::Value;
use crate::schema::{Facts, Type};
use crate::status::Status;

pub use read::MAX_DEPTH;
pub use untyped::{TypeMeta, prune};
pub(crate) use zero::{fill as complete, is_omitted as leaves_out, zero as zero_value};

/// What a decoder noticed beside the object: unknown and duplicate fields, in the words that upstream puts into
/// warnings and strict errors (`unknown field "spec.foo"`, `duplicate field "metadata.name"`), in upstream's order.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Strictness {
    /// The texts.
    pub problems: Vec<String>,
}

impl Strictness {
    /// The texts as warnings: YAML's one text, which holds all repeated keys, becomes one for each.
    pub fn warnings(&self) -> impl Iterator<Item = &str> {
        const YAML: &str = "yaml: unmarshal errors:\n";
        self.problems.iter().flat_map(|text| {
            let lines = text.strip_prefix(YAML).map(|rest| rest.lines().map(str::trim));
            let whole = lines.is_none().then_some(text.as_str());
            lines.into_iter().flatten().chain(whole)
        })
    }
}

/// Parses JSON without a schema; duplicate keys take the last value and are noted with their path.
///
/// # Errors
/// 400 with Go's decoder's words when the text is not JSON; nesting is bounded at [`MAX_DEPTH`].
pub fn parse(bytes: &[u8]) -> Result<(Value, Strictness), Status> {
    untyped::parse(&read::text(bytes)).map_err(Status::bad_request)
}

/// Decodes a request's body as upstream's typed decoder does: the normalized object (`kind` and `apiVersion` as the
/// body has them), and what was noticed. Types of custom resources are pruned instead of checked.
///
/// # Errors
/// 400 with the words of Go's decoder, bare: callers say whose body it was.
pub fn decode(facts: &Facts, ty: &Type, bytes: &[u8]) -> Result<(Value, Strictness), Status> {
    let text = read::text(bytes);
    if ty.custom {
        let (mut value, mut noted) = untyped::parse(&text).map_err(Status::bad_request)?;
        noted.problems.extend(prune(facts, ty, &mut value));
        return Ok((value, noted));
    }
    typed::decode(facts, ty, &text).map_err(Status::bad_request)
}

/// Reads `apiVersion` and `kind` of a body, both empty where absent.
///
/// # Errors
/// 400 with upstream's words (`couldn't get version/kind; json parse error: …`), bare.
pub fn type_meta(bytes: &[u8]) -> Result<TypeMeta, Status> {
    untyped::type_meta(&read::text(bytes)).map_err(Status::bad_request)
}

/// Brings an object that was built as a tree (by a patch, by defaulting) into the normalized form, in place. Unknown
/// fields are removed and noted, sorted. Idempotent.
///
/// # Errors
/// 400 in the words of upstream's converter from unstructured objects (`cannot restore slice from map`), bare. A tree
/// that upstream would decode from JSON instead (after a JSON or merge patch) goes through [`redecode`].
pub fn normalize(facts: &Facts, ty: &Type, value: &mut Value, noted: &mut Strictness) -> Result<(), Status> {
    if ty.custom {
        noted.problems.extend(prune(facts, ty, value));
        return Ok(());
    }
    value::normalize(facts, ty, value, noted).map_err(Status::bad_request)
}

/// Writes a tree as JSON and decodes that: what upstream does with the result of a JSON or merge patch.
///
/// # Errors
/// As [`decode`].
pub fn redecode(facts: &Facts, ty: &Type, value: &Value) -> Result<(Value, Strictness), Status> {
    let mut bytes = Vec::with_capacity(1024);
    write::any(value, &mut bytes);
    decode(facts, ty, &bytes)
}

/// Writes an object with its fields in upstream's order (kind and apiVersion first), no spaces, no newline, and with
/// the characters that Go escapes (`<`, `>`, `&`, U+2028, U+2029) escaped. Fields that the type does not have are left
/// out, as are zero values that upstream leaves out; zero values that upstream writes are written when absent. Custom
/// resources are written with sorted keys.
pub fn encode(facts: &Facts, ty: &Type, value: &Value, out: &mut Vec<u8>) {
    write::typed(facts, ty, value, out);
}

/// Writes a value without a schema: keys sorted, Go's escapes and numbers.
pub fn encode_any(value: &Value, out: &mut Vec<u8>) {
    write::any(value, out);
}

/// Lays JSON out over lines with two spaces of indentation, as `?pretty=true` asks for; `json` is valid.
pub fn indent(json: &[u8], out: &mut Vec<u8>) {
    write::indent(json, out);
}

/// A value from JSON text that is known to be valid.
fn any(text: &str) -> Result<Value, String> {
    untyped::parse(text).map(|(value, _)| value)
}

#[cfg(test)]
mod tests;

//! JSON in upstream's canonical form, and decoding with field validation.

use crate::Value;
use crate::schema::{Facts, Type};
use crate::status::Status;

/// What a decoder noticed beside the object: unknown and duplicate fields, in the words that upstream puts into
/// warnings and strict errors (`unknown field "spec.foo"`, `duplicate field "metadata.name"`), in upstream's order.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Strictness {
    /// The texts.
    pub problems: Vec<String>,
}

/// Parses JSON without a schema; duplicate keys take the last value and are noted with their path.
///
/// # Errors
/// 400 with Go's decoder's words when the text is not JSON; nesting is bounded at 10,000 levels as upstream's.
pub fn parse(_bytes: &[u8]) -> Result<(Value, Strictness), Status> {
    todo!()
}

/// Brings a parsed object into the form upstream's typed decoding gives: unknown fields pruned and noted, zero values
/// dropped or written as the facts say, wrong types refused, names of fields matched as upstream matches them.
///
/// # Errors
/// 400 in the words of Go's decoder when a value has the wrong type.
pub fn normalize(_facts: &Facts, _ty: &Type, _value: &mut Value, _noted: &mut Strictness) -> Result<(), Status> {
    todo!()
}

/// Writes a normalized object with its fields in upstream's order (kind and apiVersion first), no spaces, no newline,
/// and with the characters that Go escapes (`<`, `>`, `&`, U+2028, U+2029) escaped.
pub fn encode(_facts: &Facts, _ty: &Type, _value: &Value, _out: &mut Vec<u8>) {
    todo!()
}

/// Writes a value without a schema: keys sorted, Go's escapes.
pub fn encode_any(_value: &Value, _out: &mut Vec<u8>) {
    todo!()
}

//! Kubernetes' protobuf encoding: the `k8s\0` magic, the `Unknown` envelope and every message by the facts.
//!
//! The envelope (`runtime.Unknown`) holds the type in field 1, the object in field 2 and two empty texts in 3 and 4;
//! those are empty for protobuf objects and written nevertheless.

mod read;
pub(crate) mod wire;
mod write;

use crate::Value;
use crate::schema::{Facts, ListType, Shape, Type};
use crate::status::Status;

/// First bytes of every protobuf body and stored value.
pub const MAGIC: &[u8; 4] = b"k8s\0";

/// An envelope taken apart: what it says it holds, and the message.
#[derive(Debug, Clone, PartialEq)]
pub struct Unknown<'a> {
    /// `apiVersion` of the object.
    pub api_version: String,
    /// `kind` of the object.
    pub kind: String,
    /// The message.
    pub raw: &'a [u8],
}

/// Takes the envelope apart.
///
/// # Errors
/// 400 in upstream's words, bare, when the magic is missing or the envelope is torn.
pub fn open(bytes: &[u8]) -> Result<Unknown<'_>, Status> {
    let refuse = |text: &str| Err(Status::bad_request(text));
    match bytes.strip_prefix(MAGIC) {
        _ if bytes.is_empty() => refuse("empty data"),
        None => refuse("provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]"),
        Some([]) => refuse("empty body"),
        Some(envelope) => read::envelope(envelope).map_err(Status::bad_request),
    }
}

/// Decodes a message (without envelope) into the normalized form; `apiVersion` and `kind` are the caller's to set.
///
/// # Errors
/// 400 in the words of upstream's decoder, bare, when the bytes are not such a message.
pub fn decode(facts: &Facts, ty: &Type, raw: &[u8]) -> Result<Value, Status> {
    read::message(facts, ty, raw).map(Value::Object).map_err(Status::bad_request)
}

/// The content of a field of a message that has only length-delimited ones, for types that the facts don't know; empty when
/// the field is not there.
///
/// # Errors
/// When the bytes are not such a message.
pub fn field(raw: &[u8], number: u32) -> Result<&[u8], String> {
    let (mut fields, mut found): (_, &[u8]) = (wire::Fields::new(raw), &[]);
    while let Some((at, content)) = fields.next("message")? {
        let wire::Wire::Bytes(content) = content else { return content.unlike(&at.to_string()) };
        if at == number {
            found = content;
        }
    }
    Ok(found)
}

/// Encodes a normalized object as the message alone, byte for byte as upstream's gogo marshaller does.
pub fn encode(facts: &Facts, ty: &Type, value: &Value, out: &mut Vec<u8>) {
    write::message(facts, ty, value, out);
}

/// Encodes an object with magic and envelope; the envelope says the object's own `apiVersion` and `kind`.
pub fn seal(facts: &Facts, ty: &Type, value: &Value, out: &mut Vec<u8>) {
    let text = |name: &str| value.get(name).and_then(Value::as_str).unwrap_or_default();
    seal_with(text("apiVersion"), text("kind"), out, |out| encode(facts, ty, value, out));
}

/// Writes magic and envelope around a message that `body` writes.
pub fn seal_with(api_version: &str, kind: &str, out: &mut Vec<u8>, body: impl FnOnce(&mut Vec<u8>)) {
    out.extend_from_slice(MAGIC);
    wire::nested(1, out, |out| {
        wire::bytes(1, api_version.as_bytes(), out);
        wire::bytes(2, kind.as_bytes(), out);
    });
    wire::nested(2, out, body);
    wire::bytes(3, b"", out);
    wire::bytes(4, b"", out);
}

/// Writes one event of a watch: the bare message `meta/v1.WatchEvent` around an object that is in its envelope. Streams
/// have no envelope around the event itself; frames (four bytes of length, big endian) are the caller's.
pub fn watch_event(kind: &str, sealed_object: &[u8], out: &mut Vec<u8>) {
    wire::bytes(1, kind.as_bytes(), out);
    wire::nested(2, out, |out| wire::bytes(1, sealed_object, out));
}

/// Gives a normalized object the form it has after upstream's storage, which is protobuf: empty lists and maps are no
/// longer told from absent ones. Kinds that upstream stores so should pass through this before they are encoded.
pub fn settle(facts: &Facts, ty: &Type, value: &mut Value) {
    if let Value::Object(map) = value {
        for (name, value) in map.iter_mut() {
            if let Some(field) = ty.field(name)
                && field.number > 0
            {
                settle_shape(facts, &field.shape, value);
            }
        }
        map.retain(|name, value| {
            !value.is_null() || ty.field(name).is_none_or(|f| f.zero_is_written() || matches!(f.shape, Shape::Json))
        });
    }
}

fn settle_shape(facts: &Facts, shape: &Shape, value: &mut Value) {
    match (shape, &mut *value) {
        (Shape::Struct(id), _) => settle(facts, facts.at(*id), value),
        (Shape::List(..), Value::Array(items)) if items.is_empty() => *value = Value::Null,
        (Shape::Map(_), Value::Object(map)) if map.is_empty() => *value = Value::Null,
        (Shape::List(item, _), Value::Array(items)) => {
            items.iter_mut().for_each(|value| settle_shape(facts, item, value));
        }
        (Shape::Map(item), Value::Object(map)) => {
            for (_, value) in map.iter_mut() {
                match (&**item, &*value) {
                    (Shape::Bytes, Value::Null) => *value = "".into(),
                    // A list in a map is a message of its own, which stays when it is empty.
                    (Shape::List(..), Value::Null) => *value = Value::Array(Vec::new()),
                    (Shape::List(..), _) => {}
                    _ => settle_shape(facts, item, value),
                }
            }
        }
        _ => {}
    }
}

/// The shape of the items of a list that is a message of its own (`ExtraValue`).
fn is_list(shape: &Shape) -> Option<&Shape> {
    match shape {
        Shape::List(item, ListType::Atomic | ListType::Set | ListType::Map(_)) => Some(item),
        _ => None,
    }
}

#[cfg(test)]
mod tests;

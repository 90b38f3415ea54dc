//! Kubernetes' protobuf encoding: the `k8s\0` magic, the `Unknown` envelope and every message by the facts.

use crate::Value;
use crate::schema::{Facts, Type};
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
/// 400 when the magic is missing or the envelope is torn.
pub fn open(_bytes: &[u8]) -> Result<Unknown<'_>, Status> {
    todo!()
}

/// Decodes a message (without envelope) into the normalized form; `apiVersion` and `kind` are the caller's to set.
///
/// # Errors
/// 400 when the bytes are not such a message.
pub fn decode(_facts: &Facts, _ty: &Type, _raw: &[u8]) -> Result<Value, Status> {
    todo!()
}

/// Encodes a normalized object as the message alone, byte for byte as upstream's gogo marshaller does.
pub fn encode(_facts: &Facts, _ty: &Type, _value: &Value, _out: &mut Vec<u8>) {
    todo!()
}

/// Encodes an object with magic and envelope.
pub fn seal(_facts: &Facts, _ty: &Type, _value: &Value, _out: &mut Vec<u8>) {
    todo!()
}

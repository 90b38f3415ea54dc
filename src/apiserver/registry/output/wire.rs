//! The little protobuf that is written by hand: envelopes, lists and watch events around messages that are there.

use api::codec::proto::MAGIC;

use super::ListMeta;

/// What stands after the message in an envelope: no content encoding, no content type (it is protobuf).
pub(super) const ENVELOPE_CLOSE: &[u8] = &[0x1a, 0, 0x22, 0];

fn varint(mut number: u64, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Tag and length of a field that holds bytes.
pub(super) fn open(number: u8, length: usize, out: &mut Vec<u8>) {
    out.push(number << 3 | 2);
    varint(length as u64, out);
}

/// A field that holds bytes.
pub(super) fn field(number: u8, bytes: &[u8], out: &mut Vec<u8>) {
    open(number, bytes.len(), out);
    out.extend_from_slice(bytes);
}

/// `ListMeta`: selfLink, resourceVersion, continue, and maybe remainingItemCount.
pub(super) fn list_meta(meta: &ListMeta) -> Vec<u8> {
    let mut out = Vec::new();
    field(1, b"", &mut out);
    let revision = if meta.revision > 0 { meta.revision.to_string() } else { String::new() };
    field(2, revision.as_bytes(), &mut out);
    field(3, meta.token.as_bytes(), &mut out);
    if let Some(remaining) = meta.remaining {
        out.push(4 << 3);
        varint(remaining as u64, &mut out);
    }
    out
}

/// Magic and envelope up to a message of that length.
pub(super) fn envelope_open(api_version: &str, kind: &str, length: usize) -> Vec<u8> {
    let mut meta = Vec::new();
    field(1, api_version.as_bytes(), &mut meta);
    field(2, kind.as_bytes(), &mut meta);
    let mut out = MAGIC.to_vec();
    field(1, &meta, &mut out);
    open(2, length, &mut out);
    out
}

/// A message in its envelope.
pub(in crate::registry) fn seal(api_version: &str, kind: &str, message: &[u8]) -> Vec<u8> {
    let mut out = envelope_open(api_version, kind, message.len());
    out.extend_from_slice(message);
    out.extend_from_slice(ENVELOPE_CLOSE);
    out
}

/// A watch event as a frame: its length in four bytes, then a `WatchEvent` around an object in its envelope.
pub(in crate::registry) fn event(kind: &str, object: &[u8], out: &mut Vec<u8>) {
    let mut raw = Vec::with_capacity(object.len() + 6);
    field(1, object, &mut raw);
    let mut message = Vec::with_capacity(raw.len() + 16);
    field(1, kind.as_bytes(), &mut message);
    field(2, &raw, &mut message);
    out.extend_from_slice(&(message.len() as u32).to_be_bytes());
    out.extend_from_slice(&message);
}

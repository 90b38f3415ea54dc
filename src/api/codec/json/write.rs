//! Writing JSON as Go's encoder does.

use super::zero::{is_omitted, zero_field};
use crate::schema::{Facts, Shape, Type};
use crate::{Map, Value};

/// Fields of most structures fit the stack.
const INLINE: usize = 64;

pub(super) fn typed(facts: &Facts, ty: &Type, value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Object(map) if !ty.custom => structure(facts, ty, map, out),
        other => any(other, out),
    }
}

fn structure(facts: &Facts, ty: &Type, map: &Map, out: &mut Vec<u8>) {
    let mut few = [None; INLINE];
    let mut many;
    let slots: &mut [Option<&Value>] = if ty.fields.len() <= INLINE {
        &mut few[..ty.fields.len()]
    } else {
        many = vec![None; ty.fields.len()];
        &mut many
    };
    for (name, value) in map {
        if let Some(position) = ty.position(name) {
            slots[position] = Some(value);
        }
    }
    out.push(b'{');
    let mut first = true;
    for (field, slot) in ty.fields.iter().zip(slots) {
        let value = match slot {
            Some(value) if is_omitted(field, value) => continue,
            Some(Value::Null) if field.pointer && field.omit_empty => continue,
            Some(value) => *value,
            None if field.zero_is_written() => &zero_field(facts, field),
            None => continue,
        };
        if !std::mem::take(&mut first) {
            out.push(b',');
        }
        out.push(b'"');
        out.extend_from_slice(field.name.as_bytes());
        out.extend_from_slice(b"\":");
        shape(facts, &field.shape, value, out);
    }
    out.push(b'}');
}

fn shape(facts: &Facts, shape_: &Shape, value: &Value, out: &mut Vec<u8>) {
    match (shape_, value) {
        (Shape::Struct(id), Value::Object(map)) => structure(facts, facts.at(*id), map, out),
        (Shape::SchemaOr(_, id), Value::Object(map)) => structure(facts, facts.at(*id), map, out),
        (Shape::SchemaOr(_, id), Value::Array(items)) => list(items, out, |item, out| match item {
            Value::Object(map) => structure(facts, facts.at(*id), map, out),
            other => any(other, out),
        }),
        (Shape::List(item, _), Value::Array(items)) => list(items, out, |value, out| shape(facts, item, value, out)),
        (Shape::Map(item), Value::Object(map)) => object(map, out, |value, out| shape(facts, item, value, out)),
        (_, other) => any(other, out),
    }
}

pub(super) fn any(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Null => out.extend_from_slice(b"null"),
        Value::Bool(true) => out.extend_from_slice(b"true"),
        Value::Bool(false) => out.extend_from_slice(b"false"),
        Value::Number(n) => number(n, out),
        Value::String(text) => string(text, out),
        Value::Array(items) => list(items, out, any),
        Value::Object(map) => object(map, out, any),
    }
}

fn list(items: &[Value], out: &mut Vec<u8>, item: impl Fn(&Value, &mut Vec<u8>)) {
    out.push(b'[');
    for (i, value) in items.iter().enumerate() {
        if i > 0 {
            out.push(b',');
        }
        item(value, out);
    }
    out.push(b']');
}

fn object(map: &Map, out: &mut Vec<u8>, item: impl Fn(&Value, &mut Vec<u8>)) {
    out.push(b'{');
    for (i, (key, value)) in map.iter().enumerate() {
        if i > 0 {
            out.push(b',');
        }
        string(key, out);
        out.push(b':');
        item(value, out);
    }
    out.push(b'}');
}

/// Integers as they are; floating point without an exponent between 1e-6 and 1e21.
fn number(n: &serde_json::Number, out: &mut Vec<u8>) {
    if let Some(n) = n.as_i64() {
        out.extend_from_slice(itoa::Buffer::new().format(n).as_bytes());
        return;
    }
    let Some(float) = n.as_f64().filter(|_| n.is_f64()) else {
        out.extend_from_slice(n.to_string().as_bytes());
        return;
    };
    let size = float.abs();
    if size != 0.0 && !(1e-6..1e21).contains(&size) {
        let text = format!("{float:e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let sign = if exponent.starts_with('-') { "" } else { "+" };
        out.extend_from_slice(format!("{digits}e{sign}{exponent}").as_bytes());
    } else {
        out.extend_from_slice(format!("{float}").as_bytes());
    }
}

pub(super) fn indent(json: &[u8], out: &mut Vec<u8>) {
    let mut depth = 0;
    let mut at = 0;
    let line = |depth: usize, out: &mut Vec<u8>| {
        out.push(b'\n');
        out.extend(std::iter::repeat_n(b' ', 2 * depth));
    };
    while let Some(&b) = json.get(at) {
        at += 1;
        match b {
            b'"' => {
                let end = string_end(json, at);
                out.extend_from_slice(&json[at - 1..end]);
                at = end;
            }
            b' ' | b'\n' | b'\r' | b'\t' => {}
            b'{' | b'[' => {
                out.push(b);
                let next = json[at..].iter().position(|b| !b.is_ascii_whitespace()).map_or(json.len(), |n| at + n);
                if let Some(close @ (b'}' | b']')) = json.get(next) {
                    out.push(*close);
                    at = next + 1;
                } else {
                    depth += 1;
                    line(depth, out);
                }
            }
            b'}' | b']' => {
                depth -= 1;
                line(depth, out);
                out.push(b);
            }
            b',' => {
                out.push(b);
                line(depth, out);
            }
            b':' => out.extend_from_slice(b": "),
            other => out.push(other),
        }
    }
}

/// Where the string that began before `at` ends, its closing quote included.
fn string_end(json: &[u8], mut at: usize) -> usize {
    while let Some(&b) = json.get(at) {
        at += 1;
        match b {
            b'"' => return at,
            b'\\' => at += 1,
            _ => {}
        }
    }
    json.len()
}

/// A string with Go's escapes.
pub(super) fn string(text: &str, out: &mut Vec<u8>) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    out.push(b'"');
    let bytes = text.as_bytes();
    let mut plain = 0;
    for (i, &b) in bytes.iter().enumerate() {
        let (escape, len): (&[u8], usize) = match b {
            b'"' => (b"\\\"", 1),
            b'\\' => (b"\\\\", 1),
            b'\n' => (b"\\n", 1),
            b'\r' => (b"\\r", 1),
            b'\t' => (b"\\t", 1),
            8 => (b"\\b", 1),
            12 => (b"\\f", 1),
            0..0x20 | b'<' | b'>' | b'&' => {
                (&[b'\\', b'u', b'0', b'0', HEX[(b >> 4) as usize], HEX[(b & 15) as usize]], 1)
            }
            0xe2 if bytes[i..].starts_with(b"\xe2\x80\xa8") => (b"\\u2028", 3),
            0xe2 if bytes[i..].starts_with(b"\xe2\x80\xa9") => (b"\\u2029", 3),
            _ => continue,
        };
        out.extend_from_slice(&bytes[plain..i]);
        out.extend_from_slice(escape);
        plain = i + len;
    }
    out.extend_from_slice(&bytes[plain..]);
    out.push(b'"');
}

//! Values to messages. What is no pointer in Go is written even when it is zero; empty lists and maps are not.

use super::{is_list, wire};
use crate::codec::{json, leaf};
use crate::schema::{Facts, Field, SchemaOr, Shape, Type, TypeId};
use crate::{Map, Value};

pub(super) fn message(facts: &Facts, ty: &Type, value: &Value, out: &mut Vec<u8>) {
    let empty = Map::new();
    let map = value.as_object().unwrap_or(&empty);
    let fields: Vec<&Field> = ty.numbered().collect();
    level(facts, &fields, 0, map, out);
}

/// Fields in the order of their numbers; those of one inlined message stand together.
fn level(facts: &Facts, fields: &[&Field], depth: usize, map: &Map, out: &mut Vec<u8>) {
    let mut rest = fields;
    while let Some((first, others)) = rest.split_first() {
        match first.inline.get(depth) {
            None => {
                field(facts, first, map.get(&*first.name), out);
                rest = others;
            }
            Some(number) => {
                let same = rest.iter().take_while(|f| f.inline.get(depth) == Some(number)).count();
                wire::nested(*number, out, |out| level(facts, &rest[..same], depth + 1, map, out));
                rest = &rest[same..];
            }
        }
    }
}

fn field(facts: &Facts, field: &Field, value: Option<&Value>, out: &mut Vec<u8>) {
    let value = value.filter(|value| !value.is_null());
    match (&field.shape, value) {
        (_, None) if field.pointer => {}
        (Shape::List(..) | Shape::Map(_) | Shape::Bytes, None) => {}
        (Shape::List(item, _), Some(Value::Array(items))) if !field.wrapped => {
            for value in items {
                shape(facts, item, field.number, value, out);
            }
        }
        (Shape::Map(item), Some(Value::Object(map))) => {
            for (key, value) in map {
                entry(facts, item, field.number, key, value, out);
            }
        }
        (field_shape, value) => shape(facts, field_shape, field.number, value.unwrap_or(&Value::Null), out),
    }
}

fn entry(facts: &Facts, item: &Shape, number: u32, key: &str, value: &Value, out: &mut Vec<u8>) {
    wire::nested(number, out, |out| {
        wire::bytes(1, key.as_bytes(), out);
        let is_empty = matches!(value, Value::Null) || value.as_str() == Some("");
        if !(matches!(item, Shape::Bytes) && is_empty) {
            shape(facts, item, 2, value, out);
        }
    });
}

fn shape(facts: &Facts, shape_: &Shape, number: u32, value: &Value, out: &mut Vec<u8>) {
    match shape_ {
        Shape::String => wire::bytes(number, value.as_str().unwrap_or_default().as_bytes(), out),
        Shape::Bool => wire::varint(number, i64::from(value.as_bool().unwrap_or_default()), out),
        Shape::Int32 | Shape::Int64 => wire::varint(number, value.as_i64().unwrap_or_default(), out),
        Shape::Double => wire::double(number, value.as_f64().unwrap_or_default(), out),
        Shape::Bytes => {
            let bytes = leaf::base64_decode(value.as_str().unwrap_or_default()).unwrap_or_default();
            wire::bytes(number, &bytes, out);
        }
        Shape::Time => wire::nested(number, out, |out| time(value, false, out)),
        Shape::MicroTime => wire::nested(number, out, |out| time(value, true, out)),
        Shape::Duration => {
            let nanos = leaf::duration(value.as_str().unwrap_or("0")).unwrap_or_default();
            wire::nested(number, out, |out| wire::varint(1, nanos, out));
        }
        Shape::IntOrString => wire::nested(number, out, |out| {
            wire::varint(1, i64::from(value.is_string()), out);
            wire::varint(2, value.as_i64().unwrap_or_default(), out);
            wire::bytes(3, value.as_str().unwrap_or_default().as_bytes(), out);
        }),
        Shape::Quantity => {
            wire::nested(number, out, |out| wire::bytes(1, value.as_str().unwrap_or("0").as_bytes(), out));
        }
        Shape::Raw | Shape::FieldsV1 | Shape::Json => wire::nested(number, out, |out| raw(value, out)),
        Shape::SchemaOr(kind, id) => wire::nested(number, out, |out| schema_or(facts, *kind, *id, value, out)),
        Shape::Struct(id) => wire::nested(number, out, |out| message(facts, facts.at(*id), value, out)),
        Shape::List(..) => wire::nested(number, out, |out| {
            for value in value.as_array().map(Vec::as_slice).unwrap_or_default() {
                shape(facts, is_list(shape_).unwrap_or(shape_), 1, value, out);
            }
        }),
        // Protobuf has no map but as a field of a message.
        Shape::Map(_) => {}
    }
}

fn time(value: &Value, micro: bool, out: &mut Vec<u8>) {
    if let Some(Ok(moment)) = value.as_str().map(|text| leaf::time(text, micro)) {
        wire::varint(1, moment.seconds, out);
        let nanos = if micro { moment.nanos / 1000 * 1000 } else { 0 };
        wire::varint(2, i64::from(nanos), out);
    }
}

/// JSON text within a message of one field.
fn raw(value: &Value, out: &mut Vec<u8>) {
    if !value.is_null() {
        let mut text = Vec::new();
        json::encode_any(value, &mut text);
        wire::bytes(1, &text, out);
    }
}

fn schema_or(facts: &Facts, kind: SchemaOr, id: TypeId, value: &Value, out: &mut Vec<u8>) {
    let schema = |number, value: &Value, out: &mut Vec<u8>| {
        wire::nested(number, out, |out| message(facts, facts.at(id), value, out));
    };
    let first = if kind == SchemaOr::Bool { 2 } else { 1 };
    if kind == SchemaOr::Bool {
        wire::varint(1, i64::from(value.is_object() || value.as_bool().unwrap_or_default()), out);
    }
    match value {
        Value::Object(_) => schema(first, value, out),
        Value::Array(items) => {
            for item in items {
                match item {
                    Value::String(text) => wire::bytes(2, text.as_bytes(), out),
                    item => schema(2, item, out),
                }
            }
        }
        _ => {}
    }
}

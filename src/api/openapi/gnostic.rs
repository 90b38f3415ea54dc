//! The v2 document in the protobuf form of gnostic (`openapi.v2.Document`), which older kubectls ask for.

use super::Api;
use super::document::{V2, path_v2};
use crate::codec::proto::wire::{bytes, nested, varint};
use crate::{Map, Value};

pub(super) fn document(api: Api<'_>) -> Vec<u8> {
    let document = V2::new(api);
    let mut out = Vec::with_capacity(4 << 20);
    bytes(1, b"2.0", &mut out);
    nested(2, &mut out, |out| texts(&V2::info(), &[("title", 1), ("version", 2)], out));
    nested(8, &mut out, |out| {
        for path in &document.paths {
            named(2, &path.path, out, |out| path_item(&path_v2(path), out));
        }
    });
    nested(9, &mut out, |out| {
        for name in &document.names {
            named(1, name, out, |out| schema(&document.schemas.definition(name), out));
        }
    });
    nested(10, &mut out, |out| {
        for (name, value) in &document.parameters {
            named(1, name, out, |out| parameter(value, out));
        }
    });
    nested(12, &mut out, |out| named(1, "BearerToken", out, |_| {}));
    nested(13, &mut out, |out| {
        for (name, value) in V2::security_definitions().as_object().into_iter().flatten() {
            named(1, name, out, |out| {
                nested(2, out, |out| texts(value, &[("type", 1), ("name", 2), ("in", 3), ("description", 4)], out));
            });
        }
    });
    out.shrink_to_fit();
    out
}

/// A name and a message.
fn named(number: u32, name: &str, out: &mut Vec<u8>, value: impl FnOnce(&mut Vec<u8>)) {
    nested(number, out, |out| {
        bytes(1, name.as_bytes(), out);
        nested(2, out, value);
    });
}

/// Texts among the fields of a value.
fn texts(value: &Value, fields: &[(&str, u32)], out: &mut Vec<u8>) {
    for (name, number) in fields {
        if let Some(text) = value.get(name).and_then(Value::as_str).filter(|text| !text.is_empty()) {
            bytes(*number, text.as_bytes(), out);
        }
    }
}

fn list(value: Option<&Value>) -> impl Iterator<Item = &Value> {
    value.and_then(Value::as_array).into_iter().flatten()
}

fn text_list(value: Option<&Value>, number: u32, out: &mut Vec<u8>) {
    list(value).filter_map(Value::as_str).for_each(|text| bytes(number, text.as_bytes(), out));
}

fn flag(value: &Value, name: &str, number: u32, out: &mut Vec<u8>) {
    if value.get(name) == Some(&Value::Bool(true)) {
        varint(number, 1, out);
    }
}

/// A value as `Any`, which holds YAML.
fn any(value: &Value, out: &mut Vec<u8>) {
    bytes(2, &crate::codec::yaml::encode(value), out);
}

/// `x-` fields.
fn extensions(value: &Value, number: u32, out: &mut Vec<u8>) {
    for (name, value) in value.as_object().into_iter().flatten().filter(|(name, _)| name.starts_with("x-")) {
        named(number, name, out, |out| any(value, out));
    }
}

fn path_item(value: &Value, out: &mut Vec<u8>) {
    for (method, number) in
        [("get", 2), ("put", 3), ("post", 4), ("delete", 5), ("options", 6), ("head", 7), ("patch", 8)]
    {
        if let Some(value) = value.get(method) {
            nested(number, out, |out| operation(value, out));
        }
    }
    list(value.get("parameters")).for_each(|value| parameters_item(9, value, out));
}

fn operation(value: &Value, out: &mut Vec<u8>) {
    text_list(value.get("tags"), 1, out);
    texts(value, &[("description", 3), ("operationId", 5)], out);
    text_list(value.get("produces"), 6, out);
    text_list(value.get("consumes"), 7, out);
    list(value.get("parameters")).for_each(|value| parameters_item(8, value, out));
    nested(9, out, |out| {
        for (code, response) in value["responses"].as_object().into_iter().flatten() {
            named(1, code, out, |out| {
                nested(1, out, |out| {
                    texts(response, &[("description", 1)], out);
                    if let Some(value) = response.get("schema") {
                        nested(2, out, |out| nested(1, out, |out| schema(value, out)));
                    }
                });
            });
        }
    });
    text_list(value.get("schemes"), 10, out);
    extensions(value, 13, out);
}

fn parameters_item(number: u32, value: &Value, out: &mut Vec<u8>) {
    nested(number, out, |out| match value.get("$ref") {
        Some(_) => nested(2, out, |out| texts(value, &[("$ref", 1)], out)),
        None => nested(1, out, |out| parameter(value, out)),
    });
}

fn parameter(value: &Value, out: &mut Vec<u8>) {
    let place = value["in"].as_str().unwrap_or_default();
    if place == "body" {
        return nested(1, out, |out| {
            texts(value, &[("description", 1), ("name", 2), ("in", 3)], out);
            flag(value, "required", 4, out);
            nested(5, out, |out| schema(&value["schema"], out));
        });
    }
    nested(2, out, |out| {
        let (kind, type_number, unique_number) = if place == "path" { (4, 5, 19) } else { (3, 6, 20) };
        nested(kind, out, |out| {
            flag(value, "required", 1, out);
            texts(value, &[("in", 2), ("description", 3), ("name", 4), ("type", type_number)], out);
            flag(value, "uniqueItems", unique_number, out);
        });
    });
}

fn schema(value: &Value, out: &mut Vec<u8>) {
    texts(value, &[("$ref", 1), ("format", 2), ("title", 3), ("description", 4)], out);
    texts(value, &[("pattern", 13)], out);
    text_list(value.get("required"), 19, out);
    list(value.get("enum")).for_each(|value| nested(20, out, |out| any(value, out)));
    match value.get("additionalProperties") {
        Some(Value::Bool(allowed)) => nested(21, out, |out| varint(2, i64::from(*allowed), out)),
        Some(of) => nested(21, out, |out| nested(1, out, |out| schema(of, out))),
        None => {}
    }
    if let Some(kind) = value.get("type").and_then(Value::as_str) {
        nested(22, out, |out| bytes(1, kind.as_bytes(), out));
    }
    if let Some(items) = value.get("items") {
        nested(23, out, |out| nested(1, out, |out| schema(items, out)));
    }
    if let Some(properties) = value.get("properties").and_then(Value::as_object) {
        nested(25, out, |out| named_schemas(properties, out));
    }
    extensions(value, 31, out);
}

fn named_schemas(schemas: &Map, out: &mut Vec<u8>) {
    for (name, value) in schemas {
        named(1, name, out, |out| schema(value, out));
    }
}

//! From a tree of values to the normalized form, as upstream's converter fills a struct from an unstructured object.

use std::borrow::Cow;

use super::path::{Path, Step};
use super::typed::{moment, quantity};
use super::zero::{fill, is_omitted, zero, zero_field};
use super::{Strictness, typed, write};
use crate::codec::leaf;
use crate::schema::{Facts, Field, Shape, Type};
use crate::{Map, Value};

pub(super) fn normalize(facts: &Facts, ty: &Type, value: &mut Value, noted: &mut Strictness) -> Result<(), String> {
    let mut converter = Converter { facts, unknown: Vec::new() };
    match value {
        Value::Object(map) => converter.structure(ty, map, &Path::root(ty))?,
        Value::Null => *value = zero_object(facts, ty),
        other => return Err(format!("cannot restore struct from: {}", kind(other))),
    }
    converter.unknown.sort();
    noted.problems.append(&mut converter.unknown);
    Ok(())
}

fn zero_object(facts: &Facts, ty: &Type) -> Value {
    let mut map = Map::new();
    fill(facts, ty, &mut map);
    Value::Object(map)
}

/// Go's name for the kind of a decoded value.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "invalid",
        Value::Bool(_) => "bool",
        Value::Number(n) if n.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "slice",
        Value::Object(_) => "map",
    }
}

struct Converter<'a> {
    facts: &'a Facts,
    unknown: Vec<String>,
}

impl Converter<'_> {
    fn structure(&mut self, ty: &Type, map: &mut Map, path: &Path<'_>) -> Result<(), String> {
        // The first error in Go's order of fields is the one to report; without errors any order will do.
        let mut failed: Option<(usize, String)> = None;
        map.retain(|name, value| {
            let Some(position) = ty.position(name) else {
                self.unknown.push(format!("unknown field \"{}\"", path.below(name)));
                return ty.preserve_unknown;
            };
            let field = &ty.fields[position];
            match self.field(ty, field, value, path) {
                Ok(keep) => keep,
                Err(text) => {
                    if failed.as_ref().is_none_or(|(before, _)| position < *before) {
                        failed = Some((position, text));
                    }
                    true
                }
            }
        });
        fill(self.facts, ty, map);
        failed.map_or(Ok(()), |(_, text)| Err(text))
    }

    /// Whether the field stays.
    fn field(&mut self, ty: &Type, field: &Field, value: &mut Value, path: &Path<'_>) -> Result<bool, String> {
        if value.is_null() {
            *value = zero_field(self.facts, field);
            return Ok(!is_omitted(field, value) && field.zero_is_written());
        }
        self.shape(&field.shape, value, &path.child(Step::Field(ty, field)))?;
        Ok(!is_omitted(field, value))
    }

    fn shape(&mut self, shape: &Shape, value: &mut Value, path: &Path<'_>) -> Result<(), String> {
        if value.is_null() {
            *value = zero(self.facts, shape);
            return Ok(());
        }
        match (shape, &mut *value) {
            (Shape::String, Value::String(_)) | (Shape::Bool, Value::Bool(_)) => Ok(()),
            (Shape::Int64, Value::Number(n)) if n.is_i64() => Ok(()),
            (Shape::Int32, Value::Number(n)) if n.as_i64().is_some_and(|n| i32::try_from(n).is_ok()) => Ok(()),
            (Shape::Double, Value::Number(_)) => Ok(()),
            (Shape::Int32 | Shape::Int64, Value::Number(n)) => {
                *value = self.integer(shape, n, path)?;
                Ok(())
            }
            (Shape::String | Shape::Bool | Shape::Int32 | Shape::Int64 | Shape::Double, other) => {
                Err(self.unlike(shape, other, path))
            }
            (Shape::Struct(id), Value::Object(map)) => {
                let facts = self.facts;
                self.structure(facts.at(*id), map, path)
            }
            (Shape::Struct(_), other) => Err(format!("cannot restore struct from: {}", kind(other))),
            (Shape::List(item, _), Value::Array(items)) => {
                for (i, value) in items.iter_mut().enumerate() {
                    self.shape(item, value, &path.child(Step::Index(i)))?;
                }
                Ok(())
            }
            (Shape::List(..), other) => Err(format!("cannot restore slice from {}", kind(other))),
            (Shape::Map(item), Value::Object(map)) => {
                for (key, value) in map {
                    self.shape(item, value, &path.child(Step::Key(key)))?;
                }
                Ok(())
            }
            (Shape::Map(_), other) => Err(format!("cannot restore map from {}", kind(other))),
            (Shape::Bytes, Value::String(text)) => {
                let bytes = leaf::base64_decode(text).map_err(|e| format!("error decoding from json: {e}"))?;
                *text = leaf::base64_encode(&bytes);
                Ok(())
            }
            (Shape::Bytes, other) => Err(format!("cannot restore slice from {}", kind(other))),
            (Shape::Raw | Shape::FieldsV1 | Shape::Json, _) | (Shape::IntOrString, Value::String(_)) => Ok(()),
            (Shape::IntOrString, Value::Number(n)) if n.as_i64().is_some_and(|n| i32::try_from(n).is_ok()) => Ok(()),
            (Shape::Time | Shape::MicroTime | Shape::Duration, Value::String(text)) => {
                *value = moment(shape, Cow::Borrowed(text))?;
                Ok(())
            }
            (Shape::Quantity, Value::String(text)) => {
                if let Value::String(canonical) = quantity(text)? {
                    *text = canonical;
                }
                Ok(())
            }
            (_, other) => {
                *value = self.through_text(shape, other)?;
                Ok(())
            }
        }
    }

    /// A whole number for an integer field; too large ones wrap, as Go's conversion does.
    fn integer(&self, shape: &Shape, n: &serde_json::Number, path: &Path<'_>) -> Result<Value, String> {
        let whole = match (n.as_i64(), n.as_f64()) {
            (Some(n), _) => n,
            (None, Some(f)) if f == f.trunc() => f as i64,
            _ => return Err(format!("cannot convert float64 to {}", path.go_type(self.facts, shape))),
        };
        Ok(if matches!(shape, Shape::Int32) { Value::from(whole as i32) } else { whole.into() })
    }

    fn unlike(&self, shape: &Shape, value: &Value, path: &Path<'_>) -> String {
        match (shape, value) {
            (Shape::String, Value::Number(n)) if !n.is_f64() => {
                format!("cannot convert int64 to {}", path.go_type(self.facts, shape))
            }
            _ => {
                let kind = match shape {
                    Shape::String => "string",
                    Shape::Bool => "bool",
                    Shape::Int32 => "int32",
                    Shape::Int64 => "int64",
                    _ => "float64",
                };
                format!("unrecognized type: {kind}")
            }
        }
    }

    /// Types with a decoder of their own get the value as text.
    fn through_text(&self, shape: &Shape, value: &Value) -> Result<Value, String> {
        let mut text = Vec::new();
        write::any(value, &mut text);
        typed::decode_part(self.facts, shape, &String::from_utf8_lossy(&text))
    }
}

//! Messages to values.

use super::wire::{Fields, Wire};
use super::{Unknown, is_list};
use crate::codec::json::{self, complete, leaves_out};
use crate::codec::leaf::{self, Moment, ZERO_SECONDS};
use crate::schema::{Facts, Field, SchemaOr, Shape, Type, TypeId};
use crate::{Map, Value};

/// How deep messages may nest; recursive schemas are the only ones that could go deeper.
const MAX_DEPTH: usize = json::MAX_DEPTH;

pub(super) fn envelope(bytes: &[u8]) -> Result<Unknown<'_>, String> {
    let mut unknown = Unknown { api_version: String::new(), kind: String::new(), raw: &[] };
    let mut fields = Fields::new(bytes);
    while let Some((number, wire)) = fields.next("Unknown")? {
        match (number, wire) {
            (1, Wire::Bytes(bytes)) => {
                let mut fields = Fields::new(bytes);
                while let Some((number, wire)) = fields.next("TypeMeta")? {
                    match (number, wire) {
                        (1, Wire::Bytes(bytes)) => unknown.api_version = text(bytes),
                        (2, Wire::Bytes(bytes)) => unknown.kind = text(bytes),
                        (1, other) => return other.unlike("APIVersion"),
                        (2, other) => return other.unlike("Kind"),
                        _ => {}
                    }
                }
            }
            (2, Wire::Bytes(bytes)) => unknown.raw = bytes,
            (1, other) => return other.unlike("TypeMeta"),
            (2, other) => return other.unlike("Raw"),
            _ => {}
        }
    }
    Ok(unknown)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub(super) fn message(facts: &Facts, ty: &Type, bytes: &[u8]) -> Result<Map, String> {
    Reader { facts, depth: 0 }.message(ty, bytes)
}

struct Reader<'a> {
    facts: &'a Facts,
    depth: usize,
}

impl Reader<'_> {
    fn message(&mut self, ty: &Type, bytes: &[u8]) -> Result<Map, String> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err("proto: exceeded max depth".into());
        }
        let mut map = Map::new();
        self.level(ty, &mut Vec::new(), bytes, &mut map)?;
        self.depth -= 1;
        complete(self.facts, ty, &mut map);
        Ok(map)
    }

    /// The fields of a message, or of one inlined into it at `path`.
    fn level(&mut self, ty: &Type, path: &mut Vec<u32>, bytes: &[u8], map: &mut Map) -> Result<(), String> {
        let mut fields = Fields::new(bytes);
        while let Some((number, wire)) = fields.next(ty.short_name())? {
            path.push(number);
            if let Some(field) = ty.numbered_field(path) {
                self.field(field, wire, map)?;
            } else if ty.has_inline(path) {
                match wire {
                    Wire::Bytes(bytes) => self.level(ty, path, bytes, map)?,
                    other => return other.unlike("the inlined message"),
                }
            }
            path.pop();
        }
        Ok(())
    }

    fn field(&mut self, field: &Field, wire: Wire<'_>, map: &mut Map) -> Result<(), String> {
        match (&field.shape, wire) {
            (Shape::List(item, _), wire) if !field.wrapped => {
                let list = map.entry(&*field.name).or_insert_with(|| Value::Array(Vec::new()));
                if let Value::Array(items) = list {
                    self.item(item, wire, items, &field.name)?;
                }
            }
            (Shape::Map(value), Wire::Bytes(bytes)) => {
                let (key, value) = self.entry(value, bytes, &field.name)?;
                let there = map.entry(&*field.name).or_insert_with(|| Value::Object(Map::new()));
                if let Value::Object(map) = there {
                    map.insert(key, value);
                }
            }
            (shape, wire) => {
                let value = self.shape(shape, wire, &field.name)?;
                if leaves_out(field, &value) {
                    map.remove(&*field.name);
                } else {
                    map.insert(field.name.to_string(), value);
                }
            }
        }
        Ok(())
    }

    /// One item of a list, or several numbers packed together.
    fn item(&mut self, shape: &Shape, wire: Wire<'_>, items: &mut Vec<Value>, name: &str) -> Result<(), String> {
        match (shape, wire) {
            (Shape::Int32 | Shape::Int64 | Shape::Bool, Wire::Bytes(bytes)) => {
                let mut packed = Fields::new(bytes);
                while !packed.is_empty() {
                    let n = Wire::Varint(packed.varint()?);
                    items.push(self.shape(shape, n, name)?);
                }
            }
            _ => items.push(self.shape(shape, wire, name)?),
        }
        Ok(())
    }

    fn entry(&mut self, shape: &Shape, bytes: &[u8], name: &str) -> Result<(String, Value), String> {
        let (mut key, mut value) = (String::new(), None);
        let mut fields = Fields::new(bytes);
        while let Some((number, wire)) = fields.next(name)? {
            match (number, wire) {
                (1, Wire::Bytes(bytes)) => key = text(bytes),
                (2, wire) => value = Some(self.shape(shape, wire, name)?),
                _ => {}
            }
        }
        let value = match (value, shape) {
            (Some(value), _) => value,
            (None, Shape::Bytes) => "".into(),
            (None, shape) => json::zero_value(self.facts, shape),
        };
        Ok((key, value))
    }

    fn shape(&mut self, shape: &Shape, wire: Wire<'_>, name: &str) -> Result<Value, String> {
        Ok(match (shape, wire) {
            (Shape::String, Wire::Bytes(bytes)) => Value::String(text(bytes)),
            (Shape::Bool, Wire::Varint(n)) => Value::Bool(n != 0),
            (Shape::Int32, Wire::Varint(n)) => Value::from(n as i32),
            (Shape::Int64, Wire::Varint(n)) => Value::from(n as i64),
            (Shape::Double, Wire::Fixed64(bits)) => Value::from(f64::from_bits(bits)),
            (Shape::Bytes, Wire::Bytes(bytes)) => Value::String(leaf::base64_encode(bytes)),
            (Shape::Time | Shape::MicroTime, Wire::Bytes(bytes)) => time(bytes, matches!(shape, Shape::MicroTime))?,
            (Shape::Duration, Wire::Bytes(bytes)) => duration(bytes)?,
            (Shape::IntOrString, Wire::Bytes(bytes)) => int_or_string(bytes)?,
            (Shape::Quantity, Wire::Bytes(bytes)) => quantity(bytes)?,
            (Shape::Raw | Shape::FieldsV1 | Shape::Json, Wire::Bytes(bytes)) => self.raw(bytes)?,
            (Shape::SchemaOr(kind, id), Wire::Bytes(bytes)) => self.schema_or(*kind, *id, bytes)?,
            (Shape::Struct(id), Wire::Bytes(bytes)) => {
                let facts = self.facts;
                Value::Object(self.message(facts.at(*id), bytes)?)
            }
            (shape, Wire::Bytes(bytes)) if is_list(shape).is_some() => {
                let mut items = Vec::new();
                let mut fields = Fields::new(bytes);
                while let Some((number, wire)) = fields.next(name)? {
                    if let (1, Some(item)) = (number, is_list(shape)) {
                        self.item(item, wire, &mut items, name)?;
                    }
                }
                Value::Array(items)
            }
            (_, wire) => return wire.unlike(name),
        })
    }

    /// What a RawExtension, FieldsV1 or JSON holds: JSON text, or an object in its own envelope.
    fn raw(&mut self, bytes: &[u8]) -> Result<Value, String> {
        let raw = single(bytes, "RawExtension")?.unwrap_or_default();
        if raw.is_empty() {
            return Ok(Value::Null);
        }
        let Some(sealed) = raw.strip_prefix(super::MAGIC) else {
            return json::parse(raw).map(|(value, _)| value).map_err(|status| status.message);
        };
        let unknown = envelope(sealed)?;
        let (group, version) = unknown.api_version.split_once('/').unwrap_or(("", &unknown.api_version));
        let facts = self.facts;
        let Some(ty) = facts.kind(group, version, &unknown.kind) else {
            return Err(format!("no kind \"{}\" is registered for version \"{}\"", unknown.kind, unknown.api_version));
        };
        let mut object = self.message(ty, unknown.raw)?;
        object.insert("apiVersion".into(), unknown.api_version.into());
        object.insert("kind".into(), unknown.kind.into());
        Ok(Value::Object(object))
    }

    fn schema_or(&mut self, kind: SchemaOr, id: TypeId, bytes: &[u8]) -> Result<Value, String> {
        let facts = self.facts;
        let (mut allows, mut schema, mut list) = (false, None, Vec::new());
        let mut fields = Fields::new(bytes);
        while let Some((number, wire)) = fields.next("JSONSchemaPropsOr")? {
            match (kind, number, wire) {
                (SchemaOr::Bool, 1, Wire::Varint(n)) => allows = n != 0,
                (SchemaOr::Bool, 2, Wire::Bytes(bytes))
                | (SchemaOr::Array | SchemaOr::Strings, 1, Wire::Bytes(bytes)) => {
                    schema = Some(Value::Object(self.message(facts.at(id), bytes)?));
                }
                (SchemaOr::Array, 2, Wire::Bytes(bytes)) => {
                    list.push(Value::Object(self.message(facts.at(id), bytes)?));
                }
                (SchemaOr::Strings, 2, Wire::Bytes(bytes)) => list.push(Value::String(text(bytes))),
                (_, 1 | 2, wire) => return wire.unlike("Schema"),
                _ => {}
            }
        }
        Ok(match (kind, schema) {
            (SchemaOr::Bool, Some(schema)) => schema,
            (SchemaOr::Bool, None) => Value::Bool(allows),
            (_, _) if !list.is_empty() => Value::Array(list),
            (_, Some(schema)) => schema,
            (_, None) => Value::Null,
        })
    }
}

/// Bytes of field 1 of a message that has no other.
fn single<'a>(bytes: &'a [u8], message: &str) -> Result<Option<&'a [u8]>, String> {
    let mut found = None;
    let mut fields = Fields::new(bytes);
    while let Some((number, wire)) = fields.next(message)? {
        match (number, wire) {
            (1, Wire::Bytes(bytes)) => found = Some(bytes),
            (1, other) => return other.unlike("Raw"),
            _ => {}
        }
    }
    Ok(found)
}

fn time(bytes: &[u8], micro: bool) -> Result<Value, String> {
    if bytes.is_empty() {
        return Ok(Value::Null);
    }
    let (mut seconds, mut nanos) = (0, 0);
    let mut fields = Fields::new(bytes);
    while let Some((number, wire)) = fields.next("Timestamp")? {
        match (number, wire) {
            (1, Wire::Varint(n)) => seconds = n as i64,
            (2, Wire::Varint(n)) if micro => nanos = n as u32,
            _ => {}
        }
    }
    let moment = Moment { seconds: seconds.clamp(ZERO_SECONDS, 253_402_300_799), nanos: nanos.min(999_999_999) };
    Ok(if moment.is_zero() { Value::Null } else { moment.text(micro).into() })
}

fn duration(bytes: &[u8]) -> Result<Value, String> {
    let mut nanos = 0;
    let mut fields = Fields::new(bytes);
    while let Some((number, wire)) = fields.next("Duration")? {
        if let (1, Wire::Varint(n)) = (number, wire) {
            nanos = n as i64;
        }
    }
    Ok(leaf::duration_text(nanos).into())
}

fn int_or_string(bytes: &[u8]) -> Result<Value, String> {
    let (mut is_text, mut int, mut string) = (false, 0, String::new());
    let mut fields = Fields::new(bytes);
    while let Some((number, wire)) = fields.next("IntOrString")? {
        match (number, wire) {
            (1, Wire::Varint(n)) => is_text = n != 0,
            (2, Wire::Varint(n)) => int = n as i32,
            (3, Wire::Bytes(bytes)) => string = text(bytes),
            (1, other) => return other.unlike("Type"),
            (2, other) => return other.unlike("IntVal"),
            (3, other) => return other.unlike("StrVal"),
            _ => {}
        }
    }
    Ok(if is_text { string.into() } else { int.into() })
}

fn quantity(bytes: &[u8]) -> Result<Value, String> {
    match single(bytes, "Quantity")? {
        None => Ok("0".into()),
        Some(bytes) => {
            let text = text(bytes);
            let canonical = crate::quantity::canonical(&text).map_err(|e| e.to_string())?;
            Ok(canonical.into_owned().into())
        }
    }
}

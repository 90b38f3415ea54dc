//! Go's zero values: which are written, which are left out.

use crate::schema::{Facts, Field, Shape, Type};
use crate::{Map, Value};

/// The zero value of a shape, as it is written.
pub(crate) fn zero(facts: &Facts, shape: &Shape) -> Value {
    match shape {
        Shape::String => Value::String(String::new()),
        Shape::Bool => Value::Bool(false),
        Shape::Int32 | Shape::Int64 | Shape::Double | Shape::IntOrString => 0.into(),
        Shape::Duration => "0s".into(),
        Shape::Quantity => "0".into(),
        Shape::Struct(id) => {
            let mut map = Map::new();
            fill(facts, facts.at(*id), &mut map);
            Value::Object(map)
        }
        _ => Value::Null,
    }
}

/// The zero value of a field.
pub(super) fn zero_field(facts: &Facts, field: &Field) -> Value {
    if field.pointer { Value::Null } else { zero(facts, &field.shape) }
}

/// Writes the zero values that must not be absent.
pub(crate) fn fill(facts: &Facts, ty: &Type, map: &mut Map) {
    for field in ty.always_written() {
        if !map.contains_key(&*field.name) {
            map.insert(field.name.to_string(), zero_field(facts, field));
        }
    }
}

/// True when a field is left out because of what it holds.
pub(crate) fn is_omitted(field: &Field, value: &Value) -> bool {
    if field.pointer {
        return false;
    }
    match value {
        Value::Null => field.omit_zero || (field.omit_empty && !field.zero_is_written()),
        Value::Bool(b) => field.omit_empty && !b,
        Value::Number(n) => field.omit_empty && !matches!(field.shape, Shape::IntOrString) && n.as_f64() == Some(0.0),
        Value::String(s) => field.omit_empty && s.is_empty() && matches!(field.shape, Shape::String | Shape::Bytes),
        Value::Array(items) => field.omit_empty && items.is_empty() && matches!(field.shape, Shape::List(..)),
        Value::Object(map) => field.omit_empty && map.is_empty() && matches!(field.shape, Shape::Map(_)),
    }
}

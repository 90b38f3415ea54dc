//! Reading and filling decoded objects: absent, null and zero mean what they mean in Go.

use crate::{Map, Value};

/// Reads fields without copying. An absent field and null are the same; so is a value of another type, which decoding
/// has refused before.
pub trait View {
    /// The field, null when it is absent.
    fn at(&self, field: &str) -> &Value;

    /// The field is there and not null: a pointer in Go that is not nil.
    fn has(&self, field: &str) -> bool {
        !self.at(field).is_null()
    }

    /// The field if it is there and not null.
    fn some(&self, field: &str) -> Option<&Value> {
        Some(self.at(field)).filter(|v| !v.is_null())
    }

    /// A text, empty when it is absent.
    fn text(&self, field: &str) -> &str {
        self.at(field).as_str().unwrap_or_default()
    }

    /// A number, if there is one.
    fn int(&self, field: &str) -> Option<i64> {
        self.at(field).as_i64()
    }

    /// A number, 0 when it is absent.
    fn number(&self, field: &str) -> i64 {
        self.int(field).unwrap_or(0)
    }

    /// A truth value, false when it is absent.
    fn flag(&self, field: &str) -> bool {
        self.at(field).as_bool().unwrap_or(false)
    }

    /// The items of a list.
    fn items(&self, field: &str) -> &[Value] {
        self.at(field).as_array().map(Vec::as_slice).unwrap_or_default()
    }

    /// The texts of a list.
    fn texts<'a>(&'a self, field: &str) -> impl Iterator<Item = &'a str> + Clone {
        self.items(field).iter().map(|v| v.as_str().unwrap_or_default())
    }

    /// The entries of a map, by key.
    fn entries<'a>(&'a self, field: &str) -> impl Iterator<Item = (&'a str, &'a Value)> + Clone {
        self.at(field).as_object().into_iter().flatten().map(|(k, v)| (k.as_str(), v))
    }

    /// The entries of a map of texts, by key.
    fn pairs<'a>(&'a self, field: &str) -> impl Iterator<Item = (&'a str, &'a str)> + Clone {
        self.entries(field).map(|(k, v)| (k, v.as_str().unwrap_or_default()))
    }
}

impl View for Value {
    fn at(&self, field: &str) -> &Value {
        self.get(field).unwrap_or(&Value::Null)
    }
}

/// True for what Go calls a zero value, or nil.
pub fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Bool(true) => false,
        Value::Number(n) => n.as_f64() == Some(0.0),
        Value::String(s) => s.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
    }
}

/// Sets a field that holds its zero value (a plain field in Go).
pub fn fill(object: &mut Value, field: &str, value: impl Into<Value>) {
    if is_zero(object.at(field)) {
        set(object, field, value);
    }
}

/// Sets a field that is absent (a pointer in Go).
pub fn fill_pointer(object: &mut Value, field: &str, value: impl Into<Value>) {
    if !object.has(field) {
        set(object, field, value);
    }
}

/// Sets a field.
pub fn set(object: &mut Value, field: &str, value: impl Into<Value>) {
    if let Some(map) = object.as_object_mut() {
        map.insert(field.into(), value.into());
    }
}

/// Drops a field.
pub fn unset(object: &mut Value, field: &str) -> Option<Value> {
    object.as_object_mut().and_then(|map| map.remove(field))
}

/// Makes a field what it is in another object, or drops it where the other lacks it.
pub fn copy(object: &mut Value, from: &Value, field: &str) {
    match from.some(field) {
        Some(value) => set(object, field, value.clone()),
        None => drop(unset(object, field)),
    }
}

/// A structure's field, made if it is absent.
pub fn structure<'a>(object: &'a mut Value, field: &str) -> &'a mut Value {
    fill_pointer(object, field, Map::new());
    object.get_mut(field).unwrap_or_else(|| unreachable!("just made"))
}

/// The items of a list, to change them.
pub fn items_mut<'a>(object: &'a mut Value, field: &str) -> &'a mut [Value] {
    object.get_mut(field).and_then(Value::as_array_mut).map(Vec::as_mut_slice).unwrap_or_default()
}

/// A field that is there and not null, to change it.
pub fn some_mut<'a>(object: &'a mut Value, field: &str) -> Option<&'a mut Value> {
    object.get_mut(field).filter(|v| !v.is_null())
}

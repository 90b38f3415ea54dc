//! What the facts say of a value for ownership and merging, and walking values by it.

use std::sync::Arc;

use super::element;
use crate::schema::{Facts, Field, ListType, Shape, Type};
use crate::{Map, Value};

/// What kind of scalar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scalar {
    Numeric,
    String,
    Boolean,
    /// Any scalar.
    Any,
}

/// How a value is owned and merged.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind<'a> {
    Scalar(Scalar),
    /// Anything at all, always one whole.
    Whole,
    /// A list that is one whole.
    Atomic(&'a Shape),
    /// Scalars that are items by themselves.
    Set(&'a Shape),
    /// Structures told apart by keys.
    Keyed(&'a Shape, &'a [Arc<str>]),
    /// Named fields; one whole when so said.
    Struct(&'a Type, bool),
    /// Entries of one shape; one whole when so said.
    Map(&'a Shape, bool),
    /// No schema: objects are maps, lists are one whole.
    Free,
}

/// Why a value does not fit its schema: a path and a text, which upstream joins by `: `.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    pub path: String,
    pub text: String,
}

impl Fault {
    pub(super) fn new(text: impl Into<String>) -> Self {
        Self { path: String::new(), text: text.into() }
    }

    pub(super) fn below(mut self, step: &str) -> Self {
        self.path.insert_str(0, &element::readable(step));
        self
    }
}

/// Several faults in one text, as upstream prints them.
pub(super) fn faults_text(faults: &[Fault]) -> String {
    let line = |f: &Fault| if f.path.is_empty() { f.text.clone() } else { format!("{}: {}", f.path, f.text) };
    match faults {
        [one] => line(one),
        many => {
            let lines: Vec<String> = many.iter().map(|f| format!("  {}", line(f))).collect();
            format!("errors:\n{}", lines.join("\n"))
        }
    }
}

impl<'a> Kind<'a> {
    /// The kind of an object of that type.
    pub(super) fn root(ty: &'a Type) -> Self {
        Kind::Struct(ty, ty.atomic)
    }

    /// The kind of a list's items or a map's values.
    pub(super) fn of_shape(facts: &'a Facts, shape: &'a Shape) -> Self {
        match shape {
            Shape::String | Shape::Bytes | Shape::Duration => Kind::Scalar(Scalar::String),
            Shape::Bool => Kind::Scalar(Scalar::Boolean),
            Shape::Int32 | Shape::Int64 | Shape::Double => Kind::Scalar(Scalar::Numeric),
            Shape::Time | Shape::MicroTime | Shape::IntOrString | Shape::Quantity => Kind::Scalar(Scalar::Any),
            Shape::Raw => Kind::Whole,
            Shape::FieldsV1 | Shape::Json | Shape::SchemaOr(..) => Kind::Free,
            Shape::Struct(id) => Kind::root(facts.at(*id)),
            Shape::List(items, ListType::Atomic) => Kind::Atomic(items),
            Shape::List(items, ListType::Set) => Kind::Set(items),
            Shape::List(items, ListType::Map(keys)) => Kind::Keyed(items, keys),
            Shape::Map(values) => Kind::Map(values, false),
        }
    }

    /// The kind of a field, whose own markers win over those of its type.
    pub(super) fn of_field(facts: &'a Facts, field: &'a Field) -> Self {
        match (Self::of_shape(facts, &field.shape), field.map_atomic) {
            (Kind::Struct(ty, _), Some(atomic)) => Kind::Struct(ty, atomic),
            (Kind::Map(values, _), Some(atomic)) => Kind::Map(values, atomic),
            // Lists that state no type are told apart as strategic merge tells them apart.
            (Kind::Atomic(items), _) if !field.list_stated && field.patch_merge => match &field.patch_merge_key {
                key if key.is_empty() => Kind::Set(items),
                key => Kind::Keyed(items, std::slice::from_ref(key)),
            },
            (kind, _) => kind,
        }
    }

    /// The kind of a map's entry, and whether it is a field that the schema names.
    pub(super) fn child(self, facts: &'a Facts, name: &str) -> (Kind<'a>, bool) {
        match self {
            Kind::Struct(ty, _) => match ty.field(name) {
                Some(field) => (Kind::of_field(facts, field), true),
                None => (Kind::Free, false),
            },
            Kind::Map(values, _) => (Kind::of_shape(facts, values), false),
            Kind::Whole => (Kind::Whole, false),
            _ => (Kind::Free, false),
        }
    }

    /// The kind of a list's items.
    pub(super) fn items(self, facts: &'a Facts) -> Kind<'a> {
        match self {
            Kind::Atomic(items) | Kind::Set(items) | Kind::Keyed(items, _) => Kind::of_shape(facts, items),
            Kind::Free | Kind::Whole => Kind::Whole,
            other => other,
        }
    }

    /// The kind as it applies to this value: what has no schema goes by what it is.
    pub(super) fn for_value(self, value: Option<&Value>) -> Kind<'a> {
        match (self, value) {
            (Kind::Free, Some(Value::Object(_)) | None) => Kind::Free,
            (Kind::Free, Some(Value::Null)) => Kind::Free,
            (Kind::Free, Some(Value::Array(_))) => Kind::Whole,
            (Kind::Free, Some(_)) => Kind::Scalar(Scalar::Any),
            (kind, _) => kind,
        }
    }

    /// True for lists whose items are owned one by one.
    pub(super) fn is_associative(self) -> bool {
        matches!(self, Kind::Set(_) | Kind::Keyed(..))
    }

    /// True for maps whose entries are owned one by one.
    pub(super) fn is_granular_map(self) -> bool {
        matches!(self, Kind::Struct(_, false) | Kind::Map(_, false) | Kind::Free)
    }

    /// True for whatever may hold a map.
    pub(super) fn is_any_map(self) -> bool {
        matches!(self, Kind::Struct(..) | Kind::Map(..) | Kind::Free | Kind::Whole)
    }

    /// The step to an item of an associative list.
    ///
    /// # Errors
    /// An item that can't be told apart, in upstream's words.
    pub(super) fn step(self, facts: &'a Facts, item: &'a Value) -> Result<String, String> {
        match self {
            Kind::Keyed(shape, keys) => keyed_step(facts, shape, keys, item),
            Kind::Set(_) => match item {
                Value::Object(_) => Err("associative list without keys has an element that's a map type".into()),
                Value::Array(_) => Err("not supported: associative list with lists as elements".into()),
                Value::Null => Err("associative list without keys has an element that's an explicit null".into()),
                scalar => Ok(element::value(scalar)),
            },
            _ => Err("invalid indexing of non-associative list".into()),
        }
    }
}

fn keyed_step<'a>(facts: &'a Facts, shape: &'a Shape, keys: &'a [Arc<str>], item: &'a Value) -> Result<String, String> {
    let item = match item {
        Value::Object(item) => item,
        Value::Null => return Err("associative list with keys may not have a null element".into()),
        _ => return Err("associative list with keys may not have non-map elements".into()),
    };
    let default = |name: &str| facts.of(shape).and_then(|ty| ty.field(name)?.default.as_deref());
    let fields: Vec<(&str, &Value)> =
        keys.iter().filter_map(|key| Some((&**key, item.get(&**key).or_else(|| default(key))?))).collect();
    if fields.is_empty() && !keys.is_empty() {
        let keys: Vec<String> = keys.iter().map(|k| crate::field::quote(k)).collect();
        return Err(format!(
            "associative list with keys has an element that omits all key fields [{}] (and doesn't have default values \
             for any key fields)",
            keys.join(" ")
        ));
    }
    Ok(element::keyed(fields))
}

/// The entries of a map; none when it is absent or null.
pub(super) fn map(value: Option<&Value>) -> Option<&Map> {
    value.and_then(Value::as_object)
}

/// The items of a list; none when it is absent or null.
pub(super) fn list(value: Option<&Value>) -> Option<&[Value]> {
    value.and_then(Value::as_array).map(Vec::as_slice)
}

/// Equality in which numbers are equal when they are worth the same.
pub(super) fn equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(x), Value::Number(y)) => x == y || x.as_f64() == y.as_f64() && (x.is_f64() || y.is_f64()),
        (Value::Array(x), Value::Array(y)) => x.len() == y.len() && x.iter().zip(y).all(|(a, b)| equal(a, b)),
        (Value::Object(x), Value::Object(y)) => {
            x.len() == y.len() && x.iter().all(|(k, v)| y.get(k).is_some_and(|w| equal(v, w)))
        }
        _ => a == b,
    }
}

/// Visits the entries of two maps side by side, in the order of names.
///
/// # Errors
/// The first that `visit` returns.
pub(super) fn zip<'v, E>(
    left: Option<&'v Map>, right: Option<&'v Map>,
    mut visit: impl FnMut(&'v str, Option<&'v Value>, Option<&'v Value>) -> Result<(), E>,
) -> Result<(), E> {
    for (name, l) in left.into_iter().flatten() {
        visit(name, Some(l), right.and_then(|right| right.get(name)))?;
    }
    for (name, r) in right.into_iter().flatten() {
        if !left.is_some_and(|left| left.contains_key(name)) {
            visit(name, None, Some(r))?;
        }
    }
    Ok(())
}

/// The object that Go's zero value of a type encodes to: what a new object is compared with.
pub(super) fn zero(facts: &Facts, ty: &Type, api_version: &str, kind: &str) -> Value {
    let mut object = if ty.custom { Map::new() } else { zero_fields(facts, ty) };
    object.insert("apiVersion".into(), api_version.into());
    object.insert("kind".into(), kind.into());
    object.into()
}

fn zero_fields(facts: &Facts, ty: &Type) -> Map {
    let mut out = Map::new();
    for field in ty.fields.iter().filter(|f| !f.omit_zero) {
        if field.pointer {
            if !field.omit_empty {
                out.insert(field.name.to_string(), Value::Null);
            }
            continue;
        }
        // What is a structure in Go is there even when it may be left out empty.
        let value = match &field.shape {
            Shape::Struct(id) => zero_fields(facts, facts.at(*id)).into(),
            Shape::Time | Shape::MicroTime | Shape::Raw => Value::Null,
            Shape::IntOrString => 0.into(),
            Shape::Quantity => "0".into(),
            Shape::Duration => "0s".into(),
            _ if field.omit_empty => continue,
            Shape::String => "".into(),
            Shape::Bool => false.into(),
            Shape::Int32 | Shape::Int64 | Shape::Double => 0.into(),
            _ => Value::Null,
        };
        out.insert(field.name.to_string(), value);
    }
    out
}

//! Whether a configuration fits its schema, before it is merged, and whether recorded ownership still does.

use std::collections::HashSet;

use super::element;
use super::set::Set;
use super::typed::{Fault, Kind, Scalar};
use crate::schema::Facts;
use crate::{Map, Value};

/// All that does not fit, in upstream's words.
pub(super) fn validate<'a>(facts: &'a Facts, kind: Kind<'a>, value: &'a Value, repeats: bool) -> Vec<Fault> {
    let mut faults = Vec::new();
    Check { facts, repeats, open: false }.value(kind, value, &mut faults);
    faults
}

struct Check<'a> {
    facts: &'a Facts,
    /// Items that can't be told apart are allowed.
    repeats: bool,
    /// Fields that the schema does not name are allowed, here and below.
    open: bool,
}

impl<'a> Check<'a> {
    fn value(&self, kind: Kind<'a>, value: &'a Value, faults: &mut Vec<Fault>) {
        match kind {
            _ if value.is_null() => {}
            Kind::Scalar(scalar) => faults.extend(scalar_fault(scalar, value)),
            Kind::Whole | Kind::Free => {}
            Kind::Struct(..) | Kind::Map(..) => match value {
                Value::Object(fields) => self.fields(kind, fields, faults),
                other => faults.push(Fault::new(format!("expected map, got &{{{}}}", go_text(other)))),
            },
            Kind::Atomic(_) | Kind::Set(_) | Kind::Keyed(..) => match value {
                Value::Array(items) => self.items(kind, items, faults),
                other => faults.push(Fault::new(format!("expected list, got &{{{}}}", go_text(other)))),
            },
        }
    }

    fn fields(&self, kind: Kind<'a>, fields: &'a Map, faults: &mut Vec<Fault>) {
        let open = match kind {
            Kind::Struct(ty, _) => self.open || ty.preserve_unknown || ty.fields.is_empty(),
            _ => self.open,
        };
        let below = Check { facts: self.facts, repeats: self.repeats, open };
        for (name, value) in fields {
            let (of, named) = kind.child(self.facts, name);
            if !named && !open && matches!(kind, Kind::Struct(..)) {
                faults.push(Fault::new("field not declared in schema").below(&element::field(name)));
                return;
            }
            below.child(of, value, || element::field(name), faults);
        }
    }

    fn child(&self, kind: Kind<'a>, value: &'a Value, step: impl Fn() -> String, faults: &mut Vec<Fault>) {
        let before = faults.len();
        self.value(kind, value, faults);
        for fault in &mut faults[before..] {
            *fault = fault.clone().below(&step());
        }
    }

    fn items(&self, kind: Kind<'a>, items: &'a [Value], faults: &mut Vec<Fault>) {
        let mut seen = HashSet::new();
        for (i, item) in items.iter().enumerate() {
            let mut step = format!("i:{i}");
            if kind.is_associative() {
                match kind.step(self.facts, item) {
                    Ok(found) => step = found,
                    Err(e) => return faults.push(Fault::new(format!("element {i}: {e}"))),
                }
                if !seen.insert(step.clone()) && !self.repeats {
                    let text = format!("duplicate entries for key {}", element::readable(&step));
                    faults.push(Fault::new(text));
                }
            }
            self.child(kind.items(self.facts), item, || step.clone(), faults);
        }
    }
}

fn scalar_fault(scalar: Scalar, value: &Value) -> Option<Fault> {
    let text = match scalar {
        Scalar::Numeric if !value.is_number() => {
            format!("expected numeric (int or float), got {}", go_type(value))
        }
        Scalar::String if !value.is_string() => {
            format!("expected string, got &value.valueUnstructured{{Value:{}}}", go_syntax(value))
        }
        Scalar::Boolean if !value.is_boolean() => format!("expected boolean, got &{{{}}}", go_text(value)),
        Scalar::Any if value.is_array() || value.is_object() => {
            format!("expected any scalar, got &{{{}}}", go_text(value))
        }
        _ => return None,
    };
    Some(Fault::new(text))
}

/// Go's `%v`.
fn go_text(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".into(),
        Value::String(s) => s.clone(),
        Value::Array(items) => format!("[{}]", items.iter().map(go_text).collect::<Vec<_>>().join(" ")),
        Value::Object(map) => {
            let entries: Vec<String> = map.iter().map(|(k, v)| format!("{k}:{}", go_text(v))).collect();
            format!("map[{}]", entries.join(" "))
        }
        other => other.to_string(),
    }
}

/// Go's `%T`.
fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(n) if n.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}

/// Go's `%#v`.
fn go_syntax(value: &Value) -> String {
    match value {
        Value::Null => "interface {}(nil)".into(),
        Value::String(s) => crate::field::quote(s),
        Value::Array(items) => {
            format!("[]interface {{}}{{{}}}", items.iter().map(go_syntax).collect::<Vec<_>>().join(", "))
        }
        Value::Object(map) => {
            let entries: Vec<String> =
                map.iter().map(|(k, v)| format!("{}:{}", crate::field::quote(k), go_syntax(v))).collect();
            format!("map[string]interface {{}}{{{}}}", entries.join(", "))
        }
        other => other.to_string(),
    }
}

/// Brings ownership in line with a schema that has since made lists or maps atomic: who owned a part owns the whole.
pub(super) fn reconcile<'a>(facts: &'a Facts, kind: Kind<'a>, owned: &mut Set) {
    if matches!(kind, Kind::Free | Kind::Whole) {
        return;
    }
    for (step, node) in owned.iter_mut() {
        let Some(node) = node.as_object_mut().filter(|node| !node.is_empty()) else { continue };
        let of = match step.strip_prefix("f:") {
            Some(name) => match kind {
                Kind::Struct(ty, _) if ty.field(name).is_none() => continue,
                _ => kind.child(facts, name).0,
            },
            None => kind.items(facts),
        };
        match of {
            Kind::Struct(_, true) | Kind::Map(_, true) | Kind::Atomic(_) | Kind::Whole => *node = Set::new(),
            Kind::Free | Kind::Scalar(_) => {}
            _ => reconcile(facts, of, node),
        }
    }
}

/// Checks an entry of `metadata.managedFields` but for its fields.
///
/// # Errors
/// In upstream's words.
pub(super) fn entry(index: usize, entry: &Map) -> Result<(), String> {
    let text = |name: &str| entry.get(name).and_then(Value::as_str).unwrap_or_default();
    if !matches!(text("operation"), "Apply" | "Update") {
        return Err("operation must be `Apply` or `Update`".into());
    }
    if text("apiVersion").is_empty() {
        return Err("apiVersion must not be empty".into());
    }
    match text("fieldsType") {
        "FieldsV1" => Ok(()),
        "" => Err(format!("missing fieldsType in managed fields entry {index}")),
        other => Err(format!("invalid fieldsType {} in managed fields entry {index}", crate::field::quote(other))),
    }
}

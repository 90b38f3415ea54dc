//! Columns of custom resources: `additionalPrinterColumns`, whose cells are simple JSONPath expressions.

use super::columns::{self};
use super::{Cell, Column, seconds};
use crate::Value;

/// A column of a custom resource.
#[derive(Debug, Clone, PartialEq)]
pub struct CustomColumn {
    /// What is shown of it.
    pub column: Column,
    /// Where its cells are found.
    pub path: Path,
}

/// A parsed expression.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Path(Vec<Step>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    /// An entry of a map.
    Field(String),
    /// An item of a list; negative ones count from the end.
    Index(i64),
    /// All entries or items.
    All,
    /// Items for which this holds.
    Where(Path, Option<(Comparison, Value)>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Comparison {
    Equal,
    NotEqual,
}

impl Path {
    /// Parses `.spec.replicas`, `.metadata.labels['a']`, `.items[0]`, `.conditions[?(@.type=="Ready")].status`.
    ///
    /// # Errors
    /// A text that is no such expression.
    pub fn parse(text: &str) -> Result<Self, String> {
        let bad = || format!("unrecognized column definition {}", crate::field::quote(text));
        let mut steps = Vec::new();
        let mut rest = text.trim_start_matches('$');
        while !rest.is_empty() {
            let (step, after) = match rest.strip_prefix('[') {
                Some(inside) => {
                    let end = closing(inside).ok_or_else(bad)?;
                    (bracket(&inside[..end]).ok_or_else(bad)?, &inside[end + 1..])
                }
                None => {
                    let (name, after) = name(rest.strip_prefix('.').ok_or_else(bad)?);
                    (if name == "*" { Step::All } else { Step::Field(name) }, after)
                }
            };
            // A dot before a bracket, or a lone one, adds nothing.
            if step != Step::Field(String::new()) {
                steps.push(step);
            }
            rest = after;
        }
        Ok(Self(steps))
    }

    /// The first value that it leads to.
    pub fn first<'v>(&self, object: &'v Value) -> Option<&'v Value> {
        let mut found = vec![object];
        for step in &self.0 {
            found = found.into_iter().flat_map(|value| step.follow(value)).collect();
        }
        found.first().copied()
    }
}

/// A field's name up to the next dot or bracket; a backslash takes a dot into the name.
fn name(text: &str) -> (String, &str) {
    let (mut name, mut escaped) = (String::new(), false);
    for (i, c) in text.char_indices() {
        match c {
            _ if escaped => {
                name.push(c);
                escaped = false;
            }
            '\\' => escaped = true,
            '.' | '[' => return (name, &text[i..]),
            c => name.push(c),
        }
    }
    (name, "")
}

/// Where the bracket that is open closes.
fn closing(text: &str) -> Option<usize> {
    let (mut depth, mut quote) = (1, None);
    for (i, c) in text.char_indices() {
        match (quote, c) {
            (Some(q), c) if q == c => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(c),
            (None, '[') => depth += 1,
            (None, ']') => {
                depth -= 1;
                if depth == 0 {
                    return Some(i);
                }
            }
            _ => {}
        }
    }
    None
}

fn bracket(text: &str) -> Option<Step> {
    let text = text.trim();
    if text == "*" {
        return Some(Step::All);
    }
    if let Some(condition) = text.strip_prefix("?(").and_then(|t| t.strip_suffix(')')) {
        return filter(condition);
    }
    if let Some(quoted) = unquote(text) {
        return Some(Step::Field(quoted.to_string()));
    }
    text.parse().ok().map(Step::Index)
}

fn unquote(text: &str) -> Option<&str> {
    let by = |q: char| text.strip_prefix(q).and_then(|t| t.strip_suffix(q));
    by('\'').or_else(|| by('"'))
}

fn filter(condition: &str) -> Option<Step> {
    let path = |text: &str| Path::parse(text.trim().strip_prefix('@')?).ok();
    for (sign, comparison) in [("==", Comparison::Equal), ("!=", Comparison::NotEqual)] {
        if let Some((left, right)) = condition.split_once(sign) {
            let right = right.trim();
            let value = match unquote(right) {
                Some(text) => Value::from(text),
                None => serde_json::from_str(right).ok()?,
            };
            return Some(Step::Where(path(left)?, Some((comparison, value))));
        }
    }
    Some(Step::Where(path(condition)?, None))
}

impl Step {
    fn follow<'v>(&self, value: &'v Value) -> Vec<&'v Value> {
        match (self, value) {
            (Step::Field(name), Value::Object(map)) => map.get(name).into_iter().collect(),
            (Step::Index(i), Value::Array(items)) => {
                let i = if *i < 0 { *i + items.len() as i64 } else { *i };
                usize::try_from(i).ok().and_then(|i| items.get(i)).into_iter().collect()
            }
            (Step::All, Value::Array(items)) => items.iter().collect(),
            (Step::All, Value::Object(map)) => map.values().collect(),
            (Step::Where(path, wanted), Value::Array(items)) => {
                let holds = |item: &&Value| match (path.first(item), wanted) {
                    (found, None) => found.is_some(),
                    (Some(found), Some((Comparison::Equal, value))) => found == value,
                    (Some(found), Some((Comparison::NotEqual, value))) => found != value,
                    (None, Some(_)) => false,
                };
                items.iter().filter(holds).collect()
            }
            _ => Vec::new(),
        }
    }
}

impl CustomColumn {
    /// A column as an entry of `additionalPrinterColumns` has it.
    ///
    /// # Errors
    /// A JSONPath that can't be parsed.
    pub fn new(entry: &Value) -> Result<Self, String> {
        let text = |name: &str| entry.get(name).and_then(Value::as_str).unwrap_or_default().to_string();
        let path = text("jsonPath");
        let description = match text("description") {
            none if none.is_empty() => format!("Custom resource definition column (in JSONPath format): {path}"),
            description => description,
        };
        let priority = entry.get("priority").and_then(Value::as_i64).unwrap_or_default();
        let column = Column {
            name: text("name").into(),
            kind: text("type").into(),
            format: text("format").into(),
            description: description.into(),
            priority: i32::try_from(priority).unwrap_or_default(),
        };
        Ok(Self { column, path: Path::parse(&path)? })
    }

    /// The columns of a version of a CustomResourceDefinition: what it lists, or the age.
    ///
    /// # Errors
    /// As [`CustomColumn::new`].
    pub fn list(entries: &Value) -> Result<Vec<Self>, String> {
        match entries.as_array().map(Vec::as_slice).unwrap_or_default() {
            [] => {
                let age = columns::age();
                let column = Column { kind: "date".into(), ..age };
                Ok(vec![Self { column, path: Path::parse(".metadata.creationTimestamp")? }])
            }
            entries => entries.iter().map(Self::new).collect(),
        }
    }

    pub(super) fn cell(&self, object: &Value) -> Cell {
        let Some(value) = self.path.first(object) else { return Cell::Is(Value::Null) };
        Cell::Is(match (&*self.column.kind, value) {
            ("string", Value::String(s)) => s.clone().into(),
            ("string", Value::Null) => Value::Null,
            ("string", value) => value.to_string().into(),
            ("integer", Value::Number(n)) => match (n.as_i64(), n.as_f64()) {
                (Some(n), _) => n.into(),
                (None, Some(n)) => (n as i64).into(),
                _ => Value::Null,
            },
            ("number", Value::Number(n)) => n
                .as_f64()
                .map_or(Value::Null, |f| if f.fract() == 0.0 && f.abs() < 1e15 { (f as i64).into() } else { f.into() }),
            ("boolean", Value::Bool(b)) => (*b).into(),
            ("date", Value::String(time)) => match seconds(time) {
                Some(at) => return Cell::Since("".into(), at, "".into()),
                None if time.is_empty() => "<unknown>".into(),
                None => "<invalid>".into(),
            },
            _ => Value::Null,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn paths_lead_where_kubectl_would_go() {
        let object = json!({
            "spec": {"replicas": 3, "list": [1, 2, 3]},
            "metadata": {"labels": {"a.b/c": "x"}},
            "status": {"conditions": [{"type": "Other", "status": "False"}, {"type": "Ready", "status": "True"}]},
        });
        for (path, want) in [
            (".spec.replicas", json!(3)),
            (".spec.list[1]", json!(2)),
            (".spec.list[-1]", json!(3)),
            (".spec.list[*]", json!(1)),
            (r".metadata.labels.a\.b/c", json!("x")),
            (".metadata.labels['a.b/c']", json!("x")),
            (".status.conditions[?(@.type==\"Ready\")].status", json!("True")),
            (".status.conditions[?(@.type=='Ready')].status", json!("True")),
            (".status.conditions[?(@.type!='Ready')].status", json!("False")),
        ] {
            assert_eq!(Path::parse(path).unwrap().first(&object), Some(&want), "{path}");
        }
        assert_eq!(Path::parse(".spec.none").unwrap().first(&object), None);
        assert!(Path::parse("spec").is_err());
        assert!(Path::parse(".spec[").is_err());
    }

    #[test]
    fn cells_have_the_type_of_their_column() {
        let object = json!({"n": 3, "f": 1.5, "s": "x", "m": {"a": 1}, "t": "2026-01-01T00:00:00Z"});
        let cell = |kind: &str, path: &str| {
            CustomColumn::new(&json!({"name": "C", "type": kind, "jsonPath": path})).unwrap().cell(&object)
        };
        assert_eq!(cell("integer", ".n"), Cell::Is(json!(3)));
        assert_eq!(cell("integer", ".f"), Cell::Is(json!(1)));
        assert_eq!(cell("integer", ".s"), Cell::Is(Value::Null));
        assert_eq!(cell("string", ".n"), Cell::Is(json!("3")));
        assert_eq!(cell("string", ".m"), Cell::Is(json!("{\"a\":1}")));
        assert_eq!(cell("string", ".none"), Cell::Is(Value::Null));
        assert_eq!(cell("date", ".s"), Cell::Is(json!("<invalid>")));
        assert!(matches!(cell("date", ".t"), Cell::Since(..)));
    }
}

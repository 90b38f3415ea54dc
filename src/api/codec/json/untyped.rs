//! JSON without Go types: free-form values, and pruning custom resources by their schema.

use super::Strictness;
use super::read::Reader;
use crate::schema::{Facts, Shape, Type};
use crate::{Map, Value};

/// What a body says it is.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct TypeMeta {
    /// `apiVersion`.
    pub api_version: String,
    /// `kind`.
    pub kind: String,
}

pub(super) fn parse(text: &str) -> Result<(Value, Strictness), String> {
    let mut parser = Parser { reader: Reader::new(text), noted: Strictness::default(), path: String::new() };
    let value = parser.value()?;
    parser.reader.end()?;
    Ok((value, parser.noted))
}

struct Parser<'a> {
    reader: Reader<'a>,
    noted: Strictness,
    path: String,
}

impl Parser<'_> {
    fn value(&mut self) -> Result<Value, String> {
        Ok(match self.reader.peek()? {
            b'{' => self.object()?,
            b'[' => self.list()?,
            b'"' => Value::String(self.reader.string()?.into_owned()),
            b't' | b'f' => Value::Bool(self.reader.word()? == "true"),
            b'n' => {
                self.reader.word()?;
                Value::Null
            }
            _ => number(self.reader.number()?)?,
        })
    }

    fn object(&mut self) -> Result<Value, String> {
        let mut map = Map::new();
        let here = self.path.len();
        self.reader.begin_object()?;
        let mut first = true;
        while let Some(key) = self.reader.key(&mut first)? {
            if here > 0 {
                self.path.push('.');
            }
            self.path.push_str(&key);
            if map.contains_key(&*key) {
                self.duplicate();
            }
            let value = self.value()?;
            self.path.truncate(here);
            map.insert(key.into_owned(), value);
        }
        Ok(Value::Object(map))
    }

    fn duplicate(&mut self) {
        let text = format!("duplicate field {}", crate::field::quote(&self.path));
        if self.noted.problems.len() < 100 && !self.noted.problems.contains(&text) {
            self.noted.problems.push(text);
        }
    }

    fn list(&mut self) -> Result<Value, String> {
        let mut items = Vec::new();
        let here = self.path.len();
        self.reader.begin_list()?;
        let mut first = true;
        while self.reader.item(&mut first)? {
            self.path.push('[');
            self.path.push_str(itoa::Buffer::new().format(items.len()));
            self.path.push(']');
            items.push(self.value()?);
            self.path.truncate(here);
        }
        Ok(Value::Array(items))
    }
}

/// A number: an integer when it is written as one and fits 64 bits, else floating point.
pub(super) fn number(text: &str) -> Result<Value, String> {
    if !text.contains('.')
        && let Ok(n) = text.parse::<i64>()
    {
        return Ok(n.into());
    }
    match text.parse::<f64>().ok().filter(|n| n.is_finite()) {
        Some(n) => Ok(n.into()),
        None => Err(format!("json: cannot unmarshal number {text} into Go value of type float64")),
    }
}

pub(super) fn type_meta(text: &str) -> Result<TypeMeta, String> {
    read_type_meta(text).map_err(|e| format!("couldn't get version/kind; json parse error: {e}"))
}

/// Go matches the two names in any case here.
fn read_type_meta(text: &str) -> Result<TypeMeta, String> {
    let mut reader = Reader::new(text);
    let mut meta = TypeMeta::default();
    let mut wrong = None;
    if reader.peek()? != b'{' {
        let value = kind_of(&mut reader)?;
        reader.end()?;
        return match value {
            "null" => Ok(meta),
            value => Err(format!(
                "json: cannot unmarshal {value} into Go value of type struct {{ APIVersion string \
                 \"json:\\\"apiVersion,omitempty\\\"\"; Kind string \"json:\\\"kind,omitempty\\\"\" }}"
            )),
        };
    }
    reader.begin_object()?;
    let mut first = true;
    while let Some(key) = reader.key(&mut first)? {
        let (slot, name) = if key.eq_ignore_ascii_case("apiVersion") {
            (&mut meta.api_version, "apiVersion")
        } else if key.eq_ignore_ascii_case("kind") {
            (&mut meta.kind, "kind")
        } else {
            reader.skip()?;
            continue;
        };
        if reader.peek()? == b'"' {
            *slot = reader.string()?.into_owned();
            continue;
        }
        let value = kind_of(&mut reader)?;
        if value != "null" {
            let text = format!("json: cannot unmarshal {value} into Go struct field .{name} of type string");
            wrong.get_or_insert(text);
        }
    }
    reader.end()?;
    wrong.map_or(Ok(meta), Err)
}

/// Passes over a value; says what it is.
fn kind_of(reader: &mut Reader<'_>) -> Result<&'static str, String> {
    let kind = match reader.peek()? {
        b'{' => "object",
        b'[' => "array",
        b'"' => "string",
        b't' | b'f' => "bool",
        b'n' => "null",
        _ => "number",
    };
    reader.skip()?;
    Ok(kind)
}

/// Removes from a custom resource what its schema does not know, and gives the unknown fields' texts, sorted. The root's
/// `apiVersion`, `kind` and `metadata` are the caller's.
pub fn prune(facts: &Facts, ty: &Type, value: &mut Value) -> Vec<String> {
    let mut pruner = Pruner { facts, path: String::new(), unknown: Vec::new() };
    if let Value::Object(map) = value {
        pruner.structure(ty, map, true);
    }
    pruner.unknown.sort();
    pruner.unknown.iter().map(|path| format!("unknown field \"{path}\"")).collect()
}

struct Pruner<'a> {
    facts: &'a Facts,
    path: String,
    unknown: Vec<String>,
}

impl Pruner<'_> {
    fn structure(&mut self, ty: &Type, map: &mut Map, root: bool) {
        let here = self.path.len();
        map.retain(|key, value| {
            if (ty.object || root) && matches!(key.as_str(), "apiVersion" | "kind" | "metadata") {
                return true;
            }
            if here > 0 {
                self.path.push('.');
            }
            self.path.push_str(key);
            let keep = match ty.field(key) {
                Some(field) => {
                    self.shape(&field.shape, value);
                    true
                }
                None if ty.preserve_unknown => true,
                None => {
                    self.unknown.push(self.path.clone());
                    false
                }
            };
            self.path.truncate(here);
            keep
        });
    }

    fn shape(&mut self, shape: &Shape, value: &mut Value) {
        let here = self.path.len();
        match (shape, value) {
            (Shape::Struct(id), Value::Object(map)) => {
                let facts = self.facts;
                let ty = facts.at(*id);
                if ty.custom {
                    self.structure(ty, map, false);
                }
            }
            (Shape::Map(item), Value::Object(map)) => {
                for (key, value) in map {
                    self.path.push('.');
                    self.path.push_str(key);
                    self.shape(item, value);
                    self.path.truncate(here);
                }
            }
            (Shape::List(item, _), Value::Array(items)) => {
                for (i, value) in items.iter_mut().enumerate() {
                    self.path.push_str(&format!("[{i}]"));
                    self.shape(item, value);
                    self.path.truncate(here);
                }
            }
            _ => {}
        }
    }
}

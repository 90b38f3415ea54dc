//! Decoding with the facts in one pass over the text, as Go's decoder fills a struct.
//!
//! A value of the wrong type is noted (the first one is reported) and decoding goes on, so a later syntax error or a
//! refusal by a type with its own decoder comes first, as upstream.

use std::borrow::Cow;

use super::path::{Path, Step};
use super::read::Reader;
use super::zero::{fill, is_omitted, zero};
use super::{Strictness, any};
use crate::codec::leaf;
use crate::schema::{Facts, Field, SchemaOr, Shape, Type, TypeId};
use crate::{Map, Value};

/// Unknown and duplicate fields are noted up to this number, as upstream.
const MAX_PROBLEMS: usize = 100;

/// A value of the wrong type.
struct Mismatch {
    value: String,
    place: Option<(String, String)>,
    go_type: String,
}

impl Mismatch {
    fn text(&self) -> String {
        let Self { value, place, go_type } = self;
        match place {
            Some((holder, field)) => {
                format!("json: cannot unmarshal {value} into Go struct field {holder}.{field} of type {go_type}")
            }
            None => format!("json: cannot unmarshal {value} into Go value of type {go_type}"),
        }
    }
}

/// Why decoding can't go on.
pub(super) enum Stop {
    /// The text is not JSON.
    Syntax(String),
    /// A type with a decoder of its own refused.
    Refused(String),
}

impl From<String> for Stop {
    fn from(text: String) -> Self {
        Stop::Syntax(text)
    }
}

/// What became of a value.
enum Out {
    /// Nothing: null for what can't be null.
    Unset,
    /// The zero value: null for a pointer, a list or a map.
    Nil,
    /// A value.
    Is(Value),
}

/// Decodes an object of type `ty`. On an error the text is that of upstream's decoder.
pub(super) fn decode(facts: &Facts, ty: &Type, text: &str) -> Result<(Value, Strictness), String> {
    let mut decoder =
        Decoder { facts, reader: Reader::new(text), noted: Strictness::default(), strict: true, wrong: None };
    match decoder.root(ty) {
        Ok(value) => match decoder.wrong {
            Some(wrong) => Err(wrong),
            None => Ok((value, decoder.noted)),
        },
        Err(Stop::Syntax(text)) => Err(text),
        // Go checks the syntax of the whole text before anything else.
        Err(Stop::Refused(refusal)) => {
            let mut reader = Reader::new(text);
            Err(reader.skip().and_then(|_| reader.end()).err().unwrap_or(refusal))
        }
    }
}

/// Decodes one value by its shape: what a type with its own decoder does with the text of a value.
pub(super) fn decode_part(facts: &Facts, shape: &Shape, text: &str) -> Result<Value, String> {
    let mut decoder =
        Decoder { facts, reader: Reader::new(text), noted: Strictness::default(), strict: false, wrong: None };
    let nowhere = Type::default();
    let value = decoder.element(shape, &Path::root(&nowhere), None);
    match (value, decoder.wrong) {
        (Ok(value), None) => Ok(value),
        (Err(Stop::Syntax(text) | Stop::Refused(text)), _) | (Ok(_), Some(text)) => Err(text),
    }
}

struct Decoder<'a> {
    facts: &'a Facts,
    reader: Reader<'a>,
    noted: Strictness,
    /// Whether unknown and duplicate fields are noted here.
    strict: bool,
    /// The first wrong type's text.
    wrong: Option<String>,
}

impl<'a> Decoder<'a> {
    fn root(&mut self, ty: &Type) -> Result<Value, Stop> {
        let path = Path::root(ty);
        let value = match self.reader.peek()? {
            b'{' => self.structure(ty, &path, None)?,
            b'n' => {
                self.reader.word()?;
                self.zero_struct(ty)
            }
            _ => {
                self.wrong_type(&path, &Shape::Json)?;
                Value::Null
            }
        };
        self.reader.end()?;
        Ok(value)
    }

    fn zero_struct(&self, ty: &Type) -> Value {
        let mut map = Map::new();
        fill(self.facts, ty, &mut map);
        Value::Object(map)
    }

    fn note(&mut self, what: &str, path: &Path<'_>, name: &str) {
        if !self.strict || self.noted.problems.len() >= MAX_PROBLEMS {
            return;
        }
        let text = format!("{what} field {}", crate::field::quote(&path.below(name)));
        if !self.noted.problems.contains(&text) {
            self.noted.problems.push(text);
        }
    }

    /// Passes over a value of the wrong type and notes it.
    fn wrong_type(&mut self, path: &Path<'_>, shape: &Shape) -> Result<Out, Stop> {
        let value = match self.reader.peek()? {
            b'{' => "object",
            b'[' => "array",
            b'"' => "string",
            b't' | b'f' => "bool",
            b'n' => "null",
            _ => "number",
        };
        self.reader.skip()?;
        self.wrong_value(value, path, path.go_type(self.facts, shape));
        Ok(Out::Unset)
    }

    fn wrong_value(&mut self, value: &str, path: &Path<'_>, go_type: String) {
        if self.wrong.is_none() {
            let wrong = Mismatch { value: value.into(), place: path.go_context(), go_type };
            self.wrong = Some(wrong.text());
        }
    }

    /// The error of a type with its own decoder that wanted another type.
    fn refused_type(&mut self, path: &Path<'_>, go_type: &str) -> Stop {
        let (kind, number) = match self.reader.peek() {
            Ok(b'{') => ("object", false),
            Ok(b'[') => ("array", false),
            Ok(b'"') => ("string", false),
            Ok(b't' | b'f') => ("bool", false),
            Ok(_) => ("number", go_type == "int32"),
            Err(text) => return Stop::Syntax(text),
        };
        let value = match self.reader.skip() {
            Ok(text) if number => format!("number {text}"),
            Ok(_) => kind.to_string(),
            Err(text) => return Stop::Syntax(text),
        };
        Stop::Refused(Mismatch { value, place: path.go_context(), go_type: go_type.into() }.text())
    }

    /// A structure; `old` is what an earlier field of the same name left.
    fn structure(&mut self, ty: &Type, path: &Path<'_>, old: Option<Map>) -> Result<Value, Stop> {
        let fresh = old.is_none();
        let mut map = old.unwrap_or_default();
        let mut seen = Seen::default();
        self.reader.begin_object()?;
        let mut first = true;
        while let Some(key) = self.reader.key(&mut first)? {
            let Some(position) = ty.position(&key) else {
                self.note("unknown", path, &key);
                let text = self.reader.skip()?;
                if ty.preserve_unknown {
                    map.insert(key.into_owned(), any(text)?);
                }
                continue;
            };
            let field = &ty.fields[position];
            let again = seen.again(position);
            if again {
                self.note("duplicate", path, &key);
            }
            let old = if again || !fresh { map.remove(&*field.name) } else { None };
            if let Some(value) = self.field(ty, field, path, old)? {
                map.insert(field.name.to_string(), value);
            }
        }
        fill(self.facts, ty, &mut map);
        Ok(Value::Object(map))
    }

    /// What the field holds after this value; `None` when it is left out.
    fn field(&mut self, ty: &Type, field: &Field, path: &Path<'_>, old: Option<Value>) -> Result<Option<Value>, Stop> {
        let path = path.child(Step::Field(ty, field));
        if field.pointer && self.reader.peek()? == b'n' {
            self.reader.word()?;
            return Ok(None);
        }
        Ok(match self.shape(&field.shape, &path, old.clone())? {
            Out::Unset => old,
            Out::Nil => None,
            Out::Is(value) => Some(value).filter(|value| !is_omitted(field, value)),
        })
    }

    fn shape(&mut self, shape: &Shape, path: &Path<'_>, old: Option<Value>) -> Result<Out, Stop> {
        let next = self.reader.peek()?;
        Ok(match (shape, next) {
            (Shape::String, b'"') => Out::Is(Value::String(self.reader.string()?.into_owned())),
            (Shape::Bool, b't' | b'f') => Out::Is(Value::Bool(self.reader.word()? == "true")),
            (Shape::Struct(id), b'{') => {
                let old = old.and_then(|old| if let Value::Object(map) = old { Some(map) } else { None });
                let facts = self.facts;
                Out::Is(self.structure(facts.at(*id), path, old)?)
            }
            (Shape::List(item, _), b'[') => self.list(item, path, old)?,
            (Shape::Map(value), b'{') => self.map(value, path, old)?,
            (Shape::Int32 | Shape::Int64 | Shape::Double, b'-' | b'0'..=b'9') => self.number(shape, path)?,
            (Shape::Bytes, b'"') => self.base64()?,
            (Shape::Bytes, b'[') => self.byte_list(path)?,
            (Shape::Time | Shape::MicroTime | Shape::Duration, _) => self.moment(shape, path)?,
            (Shape::Quantity, _) => self.quantity()?,
            (Shape::IntOrString, _) => self.int_or_string(path)?,
            (Shape::Raw | Shape::FieldsV1 | Shape::Json, b'n') => {
                self.reader.word()?;
                Out::Unset
            }
            (Shape::Raw | Shape::FieldsV1 | Shape::Json, _) => Out::Is(any(self.reader.skip()?)?),
            (Shape::SchemaOr(kind, id), _) => self.schema_or(*kind, *id, path)?,
            (_, b'n') => {
                self.reader.word()?;
                if matches!(shape, Shape::List(..) | Shape::Map(_) | Shape::Bytes) { Out::Nil } else { Out::Unset }
            }
            _ => self.wrong_type(path, shape)?,
        })
    }

    /// An item or a map's value, which is there whatever it is.
    fn element(&mut self, shape: &Shape, path: &Path<'_>, old: Option<Value>) -> Result<Value, Stop> {
        Ok(match self.shape(shape, path, old.clone())? {
            Out::Is(value) => value,
            Out::Nil => Value::Null,
            Out::Unset => old.unwrap_or_else(|| zero(self.facts, shape)),
        })
    }

    fn list(&mut self, item: &Shape, path: &Path<'_>, old: Option<Value>) -> Result<Out, Stop> {
        let mut old = match old {
            Some(Value::Array(items)) => items,
            _ => Vec::new(),
        };
        let mut items = Vec::new();
        self.reader.begin_list()?;
        let mut first = true;
        while self.reader.item(&mut first)? {
            let i = items.len();
            let old = old.get_mut(i).map(Value::take);
            items.push(self.element(item, &path.child(Step::Index(i)), old)?);
        }
        Ok(Out::Is(Value::Array(items)))
    }

    fn map(&mut self, value: &Shape, path: &Path<'_>, old: Option<Value>) -> Result<Out, Stop> {
        let (mut map, mut inherited) = match old {
            Some(Value::Object(map)) => (map.clone(), Some(map)),
            _ => (Map::new(), None),
        };
        self.reader.begin_object()?;
        let mut first = true;
        while let Some(key) = self.reader.key(&mut first)? {
            let there = map.contains_key(&*key);
            if there && inherited.as_mut().is_none_or(|inherited| inherited.remove(&*key).is_none()) {
                self.note("duplicate", path, &key);
            }
            let element = self.element(value, &path.child(Step::Key(&key)), None)?;
            map.insert(key.into_owned(), element);
        }
        Ok(Out::Is(Value::Object(map)))
    }

    fn number(&mut self, shape: &Shape, path: &Path<'_>) -> Result<Out, Stop> {
        let text = self.reader.number()?;
        let value = match shape {
            Shape::Double => text.parse::<f64>().ok().filter(|n| n.is_finite()).map(Value::from),
            Shape::Int32 => text.parse::<i32>().ok().map(Value::from),
            _ => text.parse::<i64>().ok().map(Value::from),
        };
        Ok(match value {
            Some(value) => Out::Is(value),
            None => {
                self.wrong_value(&format!("number {text}"), path, path.go_type(self.facts, shape));
                Out::Unset
            }
        })
    }

    fn base64(&mut self) -> Result<Out, Stop> {
        let text = self.reader.string()?;
        Ok(match leaf::base64_decode(&text) {
            Ok(bytes) => Out::Is(Value::String(leaf::base64_encode(&bytes))),
            Err(fault) => {
                self.wrong.get_or_insert(fault);
                Out::Unset
            }
        })
    }

    /// Bytes as a list of numbers, which Go's decoder takes too.
    fn byte_list(&mut self, path: &Path<'_>) -> Result<Out, Stop> {
        let mut bytes = Vec::new();
        self.reader.begin_list()?;
        let mut first = true;
        while self.reader.item(&mut first)? {
            let next = self.reader.peek()?;
            match next {
                b'-' | b'0'..=b'9' => {
                    let text = self.reader.number()?;
                    match text.parse() {
                        Ok(byte) => bytes.push(byte),
                        Err(_) => self.wrong_value(&format!("number {text}"), path, "uint8".into()),
                    }
                }
                b'n' => {
                    self.reader.word()?;
                    bytes.push(0);
                }
                _ => drop(self.wrong_type(&path.child(Step::Index(bytes.len())), &Shape::Int32)?),
            }
        }
        Ok(Out::Is(Value::String(leaf::base64_encode(&bytes))))
    }

    fn moment(&mut self, shape: &Shape, path: &Path<'_>) -> Result<Out, Stop> {
        match self.reader.peek()? {
            b'n' => {
                self.reader.word()?;
                Ok(if matches!(shape, Shape::Duration) { Out::Unset } else { Out::Is(Value::Null) })
            }
            b'"' => {
                let text = self.reader.string()?;
                moment(shape, text).map(Out::Is).map_err(Stop::Refused)
            }
            _ => Err(self.refused_type(path, "string")),
        }
    }

    fn quantity(&mut self) -> Result<Out, Stop> {
        let text = self.reader.skip()?;
        if text == "null" {
            return Ok(Out::Is("0".into()));
        }
        quantity(text).map(Out::Is).map_err(Stop::Refused)
    }

    fn int_or_string(&mut self, path: &Path<'_>) -> Result<Out, Stop> {
        match self.reader.peek()? {
            b'"' => Ok(Out::Is(Value::String(self.reader.string()?.into_owned()))),
            b'n' => {
                self.reader.word()?;
                Ok(Out::Is(0.into()))
            }
            b'-' | b'0'..=b'9' => {
                let text = self.reader.number()?;
                text.parse::<i32>().map(|n| Out::Is(n.into())).map_err(|_| {
                    let value = format!("number {text}");
                    Stop::Refused(Mismatch { value, place: path.go_context(), go_type: "int32".into() }.text())
                })
            }
            _ => Err(self.refused_type(path, "int32")),
        }
    }

    /// A schema or what may stand in its place. Inside it nothing is noted: upstream's type decodes by itself there.
    fn schema_or(&mut self, kind: SchemaOr, id: TypeId, path: &Path<'_>) -> Result<Out, Stop> {
        let facts = self.facts;
        let schema = Shape::Struct(id);
        Ok(match (kind, self.reader.peek()?) {
            (_, b'{') => Out::Is(self.apart(path, |this, path| this.structure(facts.at(id), path, None))?),
            (SchemaOr::Bool, b't' | b'f') => Out::Is(Value::Bool(self.reader.word()? == "true")),
            (SchemaOr::Bool, _) => return Err(Stop::Refused("boolean or JSON schema expected".into())),
            (SchemaOr::Array, b'[') => self.apart(path, |this, path| this.list(&schema, path, None))?.or_null(),
            (SchemaOr::Strings, b'[') => {
                self.apart(path, |this, path| this.list(&Shape::String, path, None))?.or_null()
            }
            _ => {
                self.reader.skip()?;
                Out::Is(Value::Null)
            }
        })
    }

    /// Runs a decoder within a type that decodes by itself: its first wrong type is the type's refusal.
    fn apart<T>(
        &mut self, path: &Path<'_>, run: impl FnOnce(&mut Self, &Path<'_>) -> Result<T, Stop>,
    ) -> Result<T, Stop> {
        let before = self.wrong.take();
        let strict = std::mem::replace(&mut self.strict, false);
        let out = run(self, path);
        self.strict = strict;
        match std::mem::replace(&mut self.wrong, before) {
            Some(wrong) if out.is_ok() => Err(Stop::Refused(wrong)),
            _ => out,
        }
    }
}

impl Out {
    /// An empty list is what Go can't tell from none here.
    fn or_null(self) -> Self {
        match self {
            Out::Is(Value::Array(items)) if items.is_empty() => Out::Is(Value::Null),
            other => other,
        }
    }
}

/// A time or duration in its canonical form; null for the zero time.
pub(super) fn moment(shape: &Shape, text: Cow<'_, str>) -> Result<Value, String> {
    if matches!(shape, Shape::Duration) {
        return Ok(leaf::duration_text(leaf::duration(&text)?).into());
    }
    let canonical = leaf::canonical_time(&text, matches!(shape, Shape::MicroTime))?;
    Ok(canonical.map_or(Value::Null, |text| Value::String(text.into_owned())))
}

/// A quantity from the text of a JSON value.
pub(super) fn quantity(text: &str) -> Result<Value, String> {
    let bare = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text);
    let canonical = crate::quantity::canonical(bare).map_err(|e| e.to_string())?;
    Ok(Value::String(canonical.into_owned()))
}

/// Which fields of a structure have come already.
#[derive(Default)]
struct Seen {
    low: u128,
    high: Vec<usize>,
}

impl Seen {
    /// Marks a field and says whether it was marked.
    fn again(&mut self, position: usize) -> bool {
        if position < 128 {
            let bit = 1u128 << position;
            let again = self.low & bit != 0;
            self.low |= bit;
            return again;
        }
        let again = self.high.contains(&position);
        if !again {
            self.high.push(position);
        }
        again
    }
}

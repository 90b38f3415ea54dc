//! Field paths and validation errors, in upstream's words (apimachinery `util/validation/field`).

use std::fmt;

use crate::Value;

/// Where in an object: `spec.containers[0].env[1].name`, `metadata.labels[a/b]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Path(String);

impl Path {
    /// A path of one field.
    pub fn new(name: &str) -> Self {
        Self(name.into())
    }

    /// The field of that name below this one.
    pub fn child(&self, name: &str) -> Self {
        if self.0.is_empty() { Self(name.into()) } else { Self(format!("{}.{name}", self.0)) }
    }

    /// The list item at that position.
    pub fn index(&self, i: usize) -> Self {
        Self(format!("{}[{i}]", self.0))
    }

    /// The map entry under that key.
    pub fn key(&self, key: &str) -> Self {
        Self(format!("{}[{key}]", self.0))
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What is wrong with a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Must be set.
    Required,
    /// Breaks a rule.
    Invalid,
    /// Is not one of the values allowed.
    NotSupported,
    /// Stands there twice.
    Duplicate,
    /// May not be set.
    Forbidden,
    /// Too many bytes.
    TooLong,
    /// Too many items.
    TooMany,
    /// Names something that is not there.
    NotFound,
    /// Is of the wrong type.
    TypeInvalid,
    /// Could not be checked.
    Internal,
}

impl Kind {
    /// The cause's machine-readable reason.
    pub fn reason(self) -> &'static str {
        match self {
            Kind::Required => "FieldValueRequired",
            Kind::Invalid => "FieldValueInvalid",
            Kind::NotSupported => "FieldValueNotSupported",
            Kind::Duplicate => "FieldValueDuplicate",
            Kind::Forbidden => "FieldValueForbidden",
            Kind::TooLong => "FieldValueTooLong",
            Kind::TooMany => "FieldValueTooMany",
            Kind::NotFound => "FieldValueNotFound",
            Kind::TypeInvalid => "FieldValueTypeInvalid",
            Kind::Internal => "InternalError",
        }
    }

    fn text(self) -> &'static str {
        match self {
            Kind::Required => "Required value",
            Kind::Invalid | Kind::TypeInvalid => "Invalid value",
            Kind::NotSupported => "Unsupported value",
            Kind::Duplicate => "Duplicate value",
            Kind::Forbidden => "Forbidden",
            Kind::TooLong => "Too long",
            Kind::TooMany => "Too many",
            Kind::NotFound => "Not found",
            Kind::Internal => "Internal error",
        }
    }
}

/// One validation error.
#[derive(Clone, Debug, PartialEq)]
pub struct Error {
    /// What is wrong.
    pub kind: Kind,
    /// Path of the field.
    pub field: String,
    /// The offending value, already printed as upstream prints it; `None` where upstream leaves it out.
    pub value: Option<String>,
    /// More words, may be empty.
    pub detail: String,
}

/// Prints a value as upstream does in a validation error: Go's `%#v` for strings, JSON for structures.
pub fn show(value: &Value) -> String {
    match value {
        Value::String(s) => quote(s),
        other => other.to_string(),
    }
}

/// Go's `%q`.
pub fn quote(s: &str) -> String {
    let mut out = String::with_capacity(s.len() + 2);
    out.push('"');
    for c in s.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\u{b}' => out.push_str("\\v"),
            c if (c as u32) < 0x20 || c as u32 == 0x7f => out.push_str(&format!("\\x{:02x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

impl Error {
    fn make(kind: Kind, path: &Path, value: Option<String>, detail: impl Into<String>) -> Self {
        Self { kind, field: path.to_string(), value, detail: detail.into() }
    }

    /// A value must be set.
    pub fn required(path: &Path, detail: impl Into<String>) -> Self {
        Self::make(Kind::Required, path, None, detail)
    }

    /// A value breaks a rule.
    pub fn invalid(path: &Path, value: impl Into<Value>, detail: impl Into<String>) -> Self {
        Self::make(Kind::Invalid, path, Some(show(&value.into())), detail)
    }

    /// A value breaks a rule, printed already (structures, whose fields upstream prints in its own order).
    pub fn invalid_shown(path: &Path, shown: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::make(Kind::Invalid, path, Some(shown.into()), detail)
    }

    /// A value is none of those allowed, which are listed in the order given.
    pub fn not_supported(path: &Path, value: impl Into<Value>, allowed: &[&str]) -> Self {
        let list: Vec<String> = allowed.iter().map(|s| quote(s)).collect();
        let detail = if list.is_empty() { String::new() } else { format!("supported values: {}", list.join(", ")) };
        Self::make(Kind::NotSupported, path, Some(show(&value.into())), detail)
    }

    /// A value stands there twice.
    pub fn duplicate(path: &Path, value: impl Into<Value>) -> Self {
        Self::make(Kind::Duplicate, path, Some(show(&value.into())), "")
    }

    /// A value may not be set.
    pub fn forbidden(path: &Path, detail: impl Into<String>) -> Self {
        Self::make(Kind::Forbidden, path, None, detail)
    }

    /// A string is longer than `max` bytes.
    pub fn too_long(path: &Path, max: usize) -> Self {
        let unit = if max == 1 { "byte" } else { "bytes" };
        Self::make(Kind::TooLong, path, None, format!("may not be more than {max} {unit}"))
    }

    /// A list has more than `max` items.
    pub fn too_many(path: &Path, actual: usize, max: usize) -> Self {
        let unit = if max == 1 { "item" } else { "items" };
        Self::make(Kind::TooMany, path, Some(actual.to_string()), format!("must have at most {max} {unit}"))
    }

    /// A value names something that is not there.
    pub fn not_found(path: &Path, value: impl Into<Value>) -> Self {
        Self::make(Kind::NotFound, path, Some(show(&value.into())), "")
    }

    /// The error without its path: a cause's message.
    pub fn body(&self) -> String {
        let mut out = self.kind.text().to_string();
        if let Some(value) = &self.value {
            out.push_str(": ");
            out.push_str(value);
        }
        if !self.detail.is_empty() {
            out.push_str(": ");
            out.push_str(&self.detail);
        }
        out
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.body())
    }
}

/// Validation errors in the order they were found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Errors(pub Vec<Error>);

impl Errors {
    /// No errors.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds one.
    pub fn push(&mut self, error: Error) {
        self.0.push(error);
    }

    /// Adds all of another list.
    pub fn extend(&mut self, other: Errors) {
        self.0.extend(other.0);
    }

    /// True when nothing is wrong.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Upstream's one-line form: the error itself, or `[a, b]` without repeats; `None` when there is none.
    pub fn aggregate(&self) -> Option<String> {
        let mut texts: Vec<String> = Vec::new();
        for error in &self.0 {
            let text = error.to_string();
            if !texts.contains(&text) {
                texts.push(text);
            }
        }
        match texts.len() {
            0 => None,
            1 => texts.pop(),
            _ => Some(format!("[{}]", texts.join(", "))),
        }
    }
}

impl IntoIterator for Errors {
    type Item = Error;
    type IntoIter = std::vec::IntoIter<Error>;
    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_errors_are_one_bracketed_line_without_repeats() {
        let path = Path::new("spec").child("containers").index(0).child("name");
        let mut errors = Errors::new();
        errors.push(Error::required(&path, ""));
        errors.push(Error::invalid(&Path::new("metadata").key("a"), "x\"y", "must be nice"));
        errors.push(Error::required(&path, ""));
        let want = "[spec.containers[0].name: Required value, metadata[a]: Invalid value: \"x\\\"y\": must be nice]";
        assert_eq!(errors.aggregate().as_deref(), Some(want));
    }
}

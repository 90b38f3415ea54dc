//! Label and field selectors: the query syntax, `LabelSelector` objects, and matching.
//!
//! Source of grammar and texts: apimachinery `labels`, `fields` and `meta/v1` helpers.

use std::collections::BTreeMap;
use std::fmt;

use crate::field::{self, Path};
use crate::meta;
use crate::resources::Row;
use crate::status::Status;
use crate::{Map, Value};

/// Why a selector makes no sense, in upstream's words. In a query it is a 400.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Error(pub String);

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        Status::bad_request(error.0)
    }
}

/// How a label is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operator {
    /// `a in (x,y)`
    In,
    /// `a notin (x,y)`
    NotIn,
    /// `a=x`
    Equals,
    /// `a==x`
    DoubleEquals,
    /// `a!=x`
    NotEquals,
    /// `a`
    Exists,
    /// `!a`
    DoesNotExist,
    /// `a>1`
    GreaterThan,
    /// `a<1`
    LessThan,
}

/// One condition on a label.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Requirement {
    key: String,
    operator: Operator,
    /// Sorted and without repeats when parsed from text, as written when made from an object.
    values: Vec<String>,
}

impl Requirement {
    /// A checked requirement.
    ///
    /// # Errors
    /// When the key or a value is no legal label, or the number of values does not fit the operator.
    pub fn new(key: &str, operator: Operator, values: Vec<String>) -> Result<Self, Error> {
        let mut errors = field::Errors::new();
        if let Some(error) = bad_key(key, &Path::new("key")) {
            errors.push(error);
        }
        let path = Path::new("values");
        check_count(operator, &values, &path, &mut errors);
        for (i, value) in values.iter().enumerate() {
            let wrong = meta::label_value(value);
            if !wrong.is_empty() {
                errors.push(field::Error::invalid(&path.index(i).key(key), value.as_str(), wrong.join("; ")));
            }
        }
        match errors.aggregate() {
            Some(text) => Err(Error(text)),
            None => Ok(Self { key: key.into(), operator, values }),
        }
    }

    /// The label's key.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// How it is compared.
    pub fn operator(&self) -> Operator {
        self.operator
    }

    /// What it is compared with.
    pub fn values(&self) -> &[String] {
        &self.values
    }

    fn matches(&self, value: Option<&str>) -> bool {
        let listed = |v: &str| self.values.iter().any(|x| x == v);
        match self.operator {
            Operator::In | Operator::Equals | Operator::DoubleEquals => value.is_some_and(listed),
            Operator::NotIn | Operator::NotEquals => !value.is_some_and(listed),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
            Operator::GreaterThan => self.compare(value).is_some_and(|(a, b)| a > b),
            Operator::LessThan => self.compare(value).is_some_and(|(a, b)| a < b),
        }
    }

    fn compare(&self, value: Option<&str>) -> Option<(i64, i64)> {
        Some((value?.parse().ok()?, self.values.first()?.parse().ok()?))
    }
}

fn bad_key(key: &str, path: &Path) -> Option<field::Error> {
    let wrong = meta::label_key(key);
    (!wrong.is_empty()).then(|| field::Error::invalid(path, key, wrong.join("; ")))
}

fn check_count(operator: Operator, values: &[String], path: &Path, errors: &mut field::Errors) {
    let list = || Value::from(values.to_vec());
    let mut wrong = |detail: &str| errors.push(field::Error::invalid(path, list(), detail));
    match operator {
        Operator::In | Operator::NotIn if values.is_empty() => {
            wrong("for 'in', 'notin' operators, values set can't be empty");
        }
        Operator::Equals | Operator::DoubleEquals | Operator::NotEquals if values.len() != 1 => {
            wrong("exact-match compatibility requires one single value");
        }
        Operator::Exists | Operator::DoesNotExist if !values.is_empty() => {
            wrong("values set must be empty for exists and does not exist");
        }
        Operator::GreaterThan | Operator::LessThan => {
            if values.len() != 1 {
                wrong("for 'Gt', 'Lt' operators, exactly one value is required");
            }
            for (i, value) in values.iter().enumerate().filter(|(_, v)| v.parse::<i64>().is_err()) {
                let detail = "for 'Gt', 'Lt' operators, the value must be an integer";
                errors.push(field::Error::invalid(&path.index(i), value.as_str(), detail));
            }
        }
        _ => {}
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut values: Vec<&str> = self.values.iter().map(String::as_str).collect();
        values.sort_unstable();
        let (key, values) = (&self.key, values.join(","));
        match self.operator {
            Operator::In => write!(f, "{key} in ({values})"),
            Operator::NotIn => write!(f, "{key} notin ({values})"),
            Operator::Equals => write!(f, "{key}={values}"),
            Operator::DoubleEquals => write!(f, "{key}=={values}"),
            Operator::NotEquals => write!(f, "{key}!={values}"),
            Operator::Exists => write!(f, "{key}"),
            Operator::DoesNotExist => write!(f, "!{key}"),
            Operator::GreaterThan => write!(f, "{key}>{values}"),
            Operator::LessThan => write!(f, "{key}<{values}"),
        }
    }
}

/// Something that has labels.
pub trait Labelled {
    /// The label under that key.
    fn label(&self, key: &str) -> Option<&str>;
}

impl Labelled for Map {
    fn label(&self, key: &str) -> Option<&str> {
        self.get(key).and_then(Value::as_str)
    }
}

/// The labels' map itself (not the object that has them); null has no labels.
impl Labelled for Value {
    fn label(&self, key: &str) -> Option<&str> {
        self.get(key).and_then(Value::as_str)
    }
}

/// Pairs sorted by key.
impl<K: AsRef<str>, V: AsRef<str>> Labelled for [(K, V)] {
    fn label(&self, key: &str) -> Option<&str> {
        let at = self.binary_search_by(|(k, _)| k.as_ref().cmp(key)).ok()?;
        Some(self[at].1.as_ref())
    }
}

impl<K: AsRef<str>, V: AsRef<str>> Labelled for Vec<(K, V)> {
    fn label(&self, key: &str) -> Option<&str> {
        self.as_slice().label(key)
    }
}

impl Labelled for BTreeMap<String, String> {
    fn label(&self, key: &str) -> Option<&str> {
        self.get(key).map(String::as_str)
    }
}

/// A label selector: requirements that must all hold, sorted by key. Without any it selects everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct LabelSelector {
    requirements: Vec<Requirement>,
    nothing: bool,
}

impl LabelSelector {
    /// Selects every object.
    pub fn everything() -> Self {
        Self::default()
    }

    /// Selects no object.
    pub fn nothing() -> Self {
        Self { requirements: Vec::new(), nothing: true }
    }

    /// All of these requirements.
    pub fn new(mut requirements: Vec<Requirement>) -> Self {
        requirements.sort_by(|a, b| a.key.cmp(&b.key));
        Self { requirements, nothing: false }
    }

    /// Parses the query syntax: `a=b,c!=d,e in (f,g),h notin (i),j,!k,l>1,m<2`.
    ///
    /// # Errors
    /// In upstream's words.
    pub fn parse(text: &str) -> Result<Self, Error> {
        Parser::new(text).selector().map(Self::new)
    }

    /// A selector from a `LabelSelector` object; null selects nothing, an empty one everything.
    ///
    /// # Errors
    /// When an operator is unknown or a requirement illegal.
    pub fn from_object(object: &Value) -> Result<Self, Error> {
        let Some(object) = object.as_object() else { return Ok(Self::nothing()) };
        let mut requirements = Vec::new();
        for (key, value) in object.get("matchLabels").and_then(Value::as_object).into_iter().flatten() {
            let value = value.as_str().unwrap_or_default().to_string();
            requirements.push(Requirement::new(key, Operator::Equals, vec![value])?);
        }
        for expression in object.get("matchExpressions").and_then(Value::as_array).into_iter().flatten() {
            requirements.push(requirement_of(expression)?);
        }
        Ok(Self::new(requirements))
    }

    /// A selector from a typed `LabelSelector`; `None` selects nothing.
    ///
    /// # Errors
    /// As [`LabelSelector::from_object`].
    pub fn from_typed(
        selector: Option<&k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector>,
    ) -> Result<Self, Error> {
        let Some(selector) = selector else { return Ok(Self::nothing()) };
        let mut requirements = Vec::new();
        for (key, value) in selector.match_labels.iter().flatten() {
            requirements.push(Requirement::new(key, Operator::Equals, vec![value.clone()])?);
        }
        for e in selector.match_expressions.iter().flatten() {
            let operator = object_operator(&e.operator)?;
            requirements.push(Requirement::new(&e.key, operator, e.values.clone().unwrap_or_default())?);
        }
        Ok(Self::new(requirements))
    }

    /// A selector from a plain map, as in `Service.spec.selector`, whose keys and values are legal already. Null and an
    /// empty map select everything.
    pub fn from_map(map: &Value) -> Self {
        let pairs = map.as_object().into_iter().flatten();
        Self::from_pairs(pairs.map(|(k, v)| (k.as_str(), v.as_str().unwrap_or_default())))
    }

    /// A selector from pairs that are legal already.
    pub fn from_pairs<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let equal = |(key, value): (&str, &str)| Requirement {
            key: key.into(),
            operator: Operator::Equals,
            values: vec![value.into()],
        };
        Self::new(pairs.into_iter().map(equal).collect())
    }

    /// True when the labels satisfy every requirement.
    pub fn matches(&self, labels: &(impl Labelled + ?Sized)) -> bool {
        !self.nothing && self.requirements.iter().all(|r| r.matches(labels.label(&r.key)))
    }

    /// True when an object's `metadata.labels` satisfy every requirement.
    pub fn matches_object(&self, object: &Value) -> bool {
        self.matches(&object["metadata"]["labels"])
    }

    /// True when it selects everything.
    pub fn is_empty(&self) -> bool {
        !self.nothing && self.requirements.is_empty()
    }

    /// The requirements, sorted by key.
    pub fn requirements(&self) -> &[Requirement] {
        &self.requirements
    }

    /// The one value that this label must have, if the selector pins it.
    pub fn exact(&self, key: &str) -> Option<&str> {
        let r = self.requirements.iter().find(|r| r.key == key)?;
        match (r.operator, r.values.as_slice()) {
            (Operator::Equals | Operator::DoubleEquals | Operator::In, [value]) => Some(value),
            _ => None,
        }
    }
}

fn object_operator(text: &str) -> Result<Operator, Error> {
    match text {
        "In" => Ok(Operator::In),
        "NotIn" => Ok(Operator::NotIn),
        "Exists" => Ok(Operator::Exists),
        "DoesNotExist" => Ok(Operator::DoesNotExist),
        other => Err(Error(format!("{} is not a valid label selector operator", field::quote(other)))),
    }
}

fn requirement_of(expression: &Value) -> Result<Requirement, Error> {
    let text = |name: &str| expression.get(name).and_then(Value::as_str).unwrap_or_default();
    let values = expression.get("values").and_then(Value::as_array).into_iter().flatten();
    let values = values.map(|v| v.as_str().unwrap_or_default().to_string()).collect();
    Requirement::new(text("key"), object_operator(text("operator"))?, values)
}

impl fmt::Display for LabelSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, requirement) in self.requirements.iter().enumerate() {
            let comma = if i > 0 { "," } else { "" };
            write!(f, "{comma}{requirement}")?;
        }
        Ok(())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token {
    Bad,
    End,
    Close,
    Comma,
    Not,
    DoubleEquals,
    Equals,
    Greater,
    Identifier,
    In,
    Less,
    NotEquals,
    NotIn,
    Open,
}

fn symbol(text: &str) -> Option<Token> {
    Some(match text {
        ")" => Token::Close,
        "," => Token::Comma,
        "!" => Token::Not,
        "==" => Token::DoubleEquals,
        "=" => Token::Equals,
        ">" => Token::Greater,
        "<" => Token::Less,
        "!=" => Token::NotEquals,
        "(" => Token::Open,
        _ => return None,
    })
}

fn is_special(c: char) -> bool {
    matches!(c, '=' | '!' | '(' | ')' | ',' | '>' | '<')
}

fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\r' | '\n')
}

/// Tokens with their text; the last is always [`Token::End`]. A NUL ends the text, as upstream has it.
fn tokens(text: &str) -> Vec<(Token, String)> {
    let mut rest = text.split('\0').next().unwrap_or_default();
    let mut out = Vec::new();
    loop {
        rest = rest.trim_start_matches(is_space);
        let Some(first) = rest.chars().next() else {
            out.push((Token::End, String::new()));
            return out;
        };
        let (token, length) = if is_special(first) { special(rest) } else { word(rest) };
        let literal = match token {
            Token::Bad => format!("error expected: keyword found '{}'", &rest[..length]),
            _ => rest[..length].to_string(),
        };
        out.push((token, literal));
        rest = &rest[length..];
    }
}

fn word(rest: &str) -> (Token, usize) {
    let length = rest.find(|c| is_special(c) || is_space(c)).unwrap_or(rest.len());
    let token = match &rest[..length] {
        "in" => Token::In,
        "notin" => Token::NotIn,
        _ => Token::Identifier,
    };
    (token, length)
}

/// The longest run of special characters that is a symbol. Every special character is one by itself but for none, so the
/// run grows from a symbol to a longer symbol.
fn special(rest: &str) -> (Token, usize) {
    let mut found = (Token::Bad, 1);
    for end in 1..=rest.chars().take_while(|c| is_special(*c)).count() {
        match symbol(&rest[..end]) {
            Some(token) => found = (token, end),
            None => break,
        }
    }
    found
}

struct Parser {
    tokens: Vec<(Token, String)>,
    at: usize,
}

impl Parser {
    fn new(text: &str) -> Self {
        Self { tokens: tokens(text), at: 0 }
    }

    /// The next token where a value may stand, so that `in` and `notin` are names.
    fn peek(&self) -> (Token, &str) {
        let (token, text) = self.raw();
        (if matches!(token, Token::In | Token::NotIn) { Token::Identifier } else { token }, text)
    }

    fn raw(&self) -> (Token, &str) {
        let (token, text) = &self.tokens[self.at.min(self.tokens.len() - 1)];
        (*token, text)
    }

    fn next(&mut self) -> (Token, String) {
        let (token, text) = self.peek();
        let item = (token, text.to_string());
        self.at += 1;
        item
    }

    fn selector(mut self) -> Result<Vec<Requirement>, Error> {
        let mut out = Vec::new();
        loop {
            match self.peek() {
                (Token::Identifier | Token::Not, _) => {}
                (Token::End, _) => return Ok(out),
                (_, text) => {
                    return Err(Error(format!("found '{text}', expected: !, identifier, or 'end of string'")));
                }
            }
            let requirement = self.requirement();
            out.push(requirement.map_err(|e| Error(format!("unable to parse requirement: {e}")))?);
            match self.next() {
                (Token::End, _) => return Ok(out),
                (Token::Comma, _) => self.after_comma()?,
                (_, text) => return Err(Error(format!("found '{text}', expected: ',' or 'end of string'"))),
            }
        }
    }

    fn after_comma(&self) -> Result<(), Error> {
        match self.peek() {
            (Token::Identifier | Token::Not, _) => Ok(()),
            (_, text) => Err(Error(format!("found '{text}', expected: identifier after ','"))),
        }
    }

    fn requirement(&mut self) -> Result<Requirement, Error> {
        let (mut token, mut key) = self.next();
        let negated = token == Token::Not;
        if negated {
            (token, key) = self.next();
        }
        if token != Token::Identifier {
            return Err(Error(format!("found '{key}', expected: identifier")));
        }
        if let Some(error) = bad_key(&key, &Path::new("<nil>")) {
            return Err(Error(error.to_string()));
        }
        if negated {
            return Requirement::new(&key, Operator::DoesNotExist, Vec::new());
        }
        if matches!(self.peek().0, Token::End | Token::Comma) {
            return Requirement::new(&key, Operator::Exists, Vec::new());
        }
        let operator = self.operator()?;
        let mut values = match operator {
            Operator::In | Operator::NotIn => self.values()?,
            _ => vec![self.exact_value()?],
        };
        values.sort();
        values.dedup();
        Requirement::new(&key, operator, values)
    }

    fn operator(&mut self) -> Result<Operator, Error> {
        let (token, text) = self.raw();
        let operator = match token {
            Token::In => Operator::In,
            Token::Equals => Operator::Equals,
            Token::DoubleEquals => Operator::DoubleEquals,
            Token::Greater => Operator::GreaterThan,
            Token::Less => Operator::LessThan,
            Token::NotIn => Operator::NotIn,
            Token::NotEquals => Operator::NotEquals,
            _ => return Err(Error(format!("found '{text}', expected: in, notin, =, ==, !=, gt, lt"))),
        };
        self.at += 1;
        Ok(operator)
    }

    fn values(&mut self) -> Result<Vec<String>, Error> {
        let (token, text) = self.next();
        if token != Token::Open {
            return Err(Error(format!("found '{text}' expected: '('")));
        }
        let (token, first) = self.peek();
        let first = first.to_string();
        match token {
            Token::Identifier | Token::Comma => {
                let values = self.identifiers()?;
                match self.next().0 {
                    Token::Close => Ok(values),
                    _ => Err(Error(format!("found '{first}', expected: ')'"))),
                }
            }
            Token::Close => {
                self.at += 1;
                Ok(vec![String::new()])
            }
            _ => Err(Error(format!("found '{first}', expected: ',', ')' or identifier"))),
        }
    }

    fn identifiers(&mut self) -> Result<Vec<String>, Error> {
        let mut out = Vec::new();
        loop {
            let (token, text) = self.next();
            match token {
                Token::Identifier => {
                    out.push(text);
                    match self.peek() {
                        (Token::Comma, _) => {}
                        (Token::Close, _) => return Ok(out),
                        (_, text) => return Err(Error(format!("found '{text}', expected: ',' or ')'"))),
                    }
                }
                Token::Comma => {
                    let next = self.peek().0;
                    if out.is_empty() || matches!(next, Token::Close | Token::Comma) {
                        out.push(String::new());
                    }
                    if next == Token::Close {
                        return Ok(out);
                    }
                }
                _ => return Err(Error(format!("found '{text}', expected: ',', or identifier"))),
            }
        }
    }

    fn exact_value(&mut self) -> Result<String, Error> {
        if matches!(self.peek().0, Token::End | Token::Comma) {
            return Ok(String::new());
        }
        match self.next() {
            (Token::Identifier, text) => Ok(text),
            (_, text) => Err(Error(format!("found '{text}', expected: identifier"))),
        }
    }
}

/// One condition on a field.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FieldTerm {
    /// Path, such as `metadata.name`.
    pub field: String,
    /// The value, without escapes.
    pub value: String,
    /// `!=` rather than `=`.
    pub negated: bool,
}

/// A field selector: terms that must all hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct FieldSelector {
    terms: Vec<FieldTerm>,
}

impl FieldSelector {
    /// Parses `a=b,c!=d,e==f`, where `\` escapes `,`, `=` and itself in values.
    ///
    /// # Errors
    /// In upstream's words.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let mut parts = split_terms(text);
        parts.sort_unstable();
        let parts = parts.into_iter().filter(|p| !p.is_empty());
        let terms = parts.map(|part| parse_term(text, part)).collect::<Result<_, _>>()?;
        Ok(Self { terms })
    }

    /// A selector of one `=` term.
    pub fn equal(field: &str, value: &str) -> Self {
        Self { terms: vec![FieldTerm { field: field.into(), value: value.into(), negated: false }] }
    }

    /// Renames fields as a kind does and refuses those it has not.
    ///
    /// # Errors
    /// Whatever `rename` says.
    pub fn transform(mut self, rename: impl Fn(&str) -> Result<String, Error>) -> Result<Self, Error> {
        for term in &mut self.terms {
            term.field = rename(&term.field)?;
        }
        Ok(self)
    }

    /// Checks that a resource, custom if so said, has these fields to select by.
    ///
    /// # Errors
    /// 400 in upstream's words, which differ between kinds.
    pub fn for_row(self, row: &Row, custom: bool) -> Result<Self, Error> {
        self.transform(|field| selectable(row, custom, field))
    }

    /// True when all terms hold; `value` gives a field's text, empty where it is absent.
    pub fn matches<'a>(&self, value: impl Fn(&str) -> std::borrow::Cow<'a, str>) -> bool {
        self.terms.iter().all(|t| (value(&t.field) == t.value.as_str()) != t.negated)
    }

    /// True when it selects everything.
    pub fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }

    /// The terms, in the order in which upstream prints them.
    pub fn terms(&self) -> &[FieldTerm] {
        &self.terms
    }

    /// The one value that this field must have, if the selector pins it.
    pub fn exact(&self, field: &str) -> Option<&str> {
        self.terms.iter().find(|t| !t.negated && t.field == field).map(|t| t.value.as_str())
    }
}

/// The name of a selectable field, or why it is none (`AddFieldLabelConversionFunc` of each kind).
fn selectable(row: &Row, custom: bool, field: &str) -> Result<String, Error> {
    let named = match field {
        "metadata.name" => true,
        "metadata.namespace" => (row.group.as_ref(), row.kind.as_ref()) != ("", "Namespace"),
        _ => row.selectable.contains(&field),
    };
    if named {
        return Ok(field.into());
    }
    Err(Error(match (row.group.as_ref(), row.kind.as_ref()) {
        ("", "Pod") if field == "spec.host" => return Ok("spec.nodeName".into()),
        ("batch", "Job") => format!("field label {} not supported for Job", field::quote(field)),
        ("resource.k8s.io", "ResourceSlice") => format!(
            "field label not supported for resource.k8s.io/{}, Kind=ResourceSlice: {field}",
            row.versions.first().map_or("", |v| v.name.as_ref())
        ),
        _ if custom || !row.selectable.is_empty() => format!("field label not supported: {field}"),
        _ => format!(
            "{} is not a known field selector: only \"metadata.name\", \"metadata.namespace\"",
            field::quote(field)
        ),
    }))
}

impl fmt::Display for FieldSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, term) in self.terms.iter().enumerate() {
            let comma = if i > 0 { "," } else { "" };
            let operator = if term.negated { "!=" } else { "=" };
            write!(f, "{comma}{}{operator}{}", term.field, escape(&term.value))?;
        }
        Ok(())
    }
}

fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace(',', "\\,").replace('=', "\\=")
}

fn split_terms(text: &str) -> Vec<&str> {
    let mut out = Vec::new();
    let (mut start, mut escaped) = (0, false);
    for (i, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            ',' => {
                out.push(&text[start..i]);
                start = i + 1;
            }
            _ => {}
        }
    }
    out.push(&text[start..]);
    out
}

fn parse_term(text: &str, part: &str) -> Result<FieldTerm, Error> {
    for (i, _) in part.char_indices() {
        for (operator, negated) in [("!=", true), ("==", false), ("=", false)] {
            if let Some(value) = part[i..].strip_prefix(operator) {
                return Ok(FieldTerm { field: part[..i].into(), value: unescape(value)?, negated });
            }
        }
    }
    Err(Error(format!("invalid selector: '{text}'; can't understand '{part}'")))
}

fn unescape(value: &str) -> Result<String, Error> {
    let bad = |sequence: &str| Error(format!("invalid field selector: invalid escape sequence: {sequence}"));
    let mut out = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(c @ ('\\' | ',' | '=')) => out.push(c),
                Some(c) => return Err(bad(&format!("\\{c}"))),
                None => return Err(bad("\\")),
            },
            // Upstream prints the character's number.
            ',' | '=' => {
                return Err(Error(format!("invalid field selector: unescaped character in value: {}", c as u32)));
            }
            c => out.push(c),
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn parse(text: &str) -> String {
        match LabelSelector::parse(text) {
            Ok(selector) => selector.to_string(),
            Err(error) => format!("error: {error}"),
        }
    }

    #[test]
    fn prints_sorted_what_it_parsed() {
        for (text, want) in [
            ("", ""),
            ("x in (foo,,baz),y,z notin ()", "x in (,baz,foo),y,z notin ()"),
            ("b=1, a == 2 ,c!=3", "a==2,b=1,c!=3"),
            ("!a", "!a"),
            ("a,!b", "a,!b"),
            ("x>1,y<2", "x>1,y<2"),
            ("x=", "x="),
            ("x=,z=in", "x=,z=in"),
            ("in in (notin)", "in in (notin)"),
            ("x in (a,a,b)", "x in (a,b)"),
            ("a.b/c=d", "a.b/c=d"),
        ] {
            assert_eq!(parse(text), want, "{text}");
        }
    }

    #[test]
    fn refuses_in_upstreams_words() {
        for (text, want) in [
            ("==", "found '==', expected: !, identifier, or 'end of string'"),
            ("a==b==", "found '==', expected: ',' or 'end of string'"),
            ("a===b", "unable to parse requirement: found '=', expected: identifier"),
            ("a,", "found '', expected: identifier after ','"),
            ("a,,b", "found ',', expected: identifier after ','"),
            ("a b", "unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt"),
            ("a in b", "unable to parse requirement: found 'b' expected: '('"),
            ("a in (b", "unable to parse requirement: found '', expected: ',' or ')'"),
            ("a in (=)", "unable to parse requirement: found '=', expected: ',', ')' or identifier"),
            ("!", "unable to parse requirement: found '', expected: identifier"),
            (
                "a=1&b",
                "unable to parse requirement: values[0][a]: Invalid value: \"1&b\": a valid label must be an empty \
                 string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an \
                 alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is \
                 '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')",
            ),
            (
                "-a=b",
                "unable to parse requirement: <nil>: Invalid value: \"-a\": name part must consist of alphanumeric \
                 characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or \
                 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')",
            ),
            (
                "a>x",
                "unable to parse requirement: values[0]: Invalid value: \"x\": for 'Gt', 'Lt' operators, the value must \
                 be an integer",
            ),
        ] {
            assert_eq!(parse(text), format!("error: {want}"), "{text}");
        }
    }

    #[test]
    fn matches_pairs_and_maps() {
        let labels = [("app", "web"), ("size", "7"), ("tier", "front")];
        let map = json!({"app": "web", "size": "7", "tier": "front"});
        for (text, want) in [
            ("app=web", true),
            ("app!=web", false),
            ("other!=web", true),
            ("app in (x,web)", true),
            ("app notin (x)", true),
            ("other notin (x)", true),
            ("other in (x)", false),
            ("app", true),
            ("!app", false),
            ("size>6,size<8", true),
            ("app>6", false),
            ("app=web,tier=back", false),
        ] {
            let selector = LabelSelector::parse(text).unwrap();
            assert_eq!(selector.matches(&labels[..]), want, "{text}");
            assert_eq!(selector.matches(&map), want, "{text}");
        }
    }

    #[test]
    fn objects_select_nothing_when_absent_and_everything_when_empty() {
        let labels = json!({"a": "b"});
        assert!(!LabelSelector::from_object(&Value::Null).unwrap().matches(&labels));
        assert!(LabelSelector::from_object(&json!({})).unwrap().matches(&labels));
        let selector = json!({
            "matchLabels": {"a": "b"},
            "matchExpressions": [{"key": "c", "operator": "DoesNotExist"}],
        });
        let selector = LabelSelector::from_object(&selector).unwrap();
        assert!(selector.matches(&labels));
        assert_eq!(selector.to_string(), "a=b,!c");
        let wrong = json!({"matchExpressions": [{"key": "c", "operator": "Is"}]});
        let error = LabelSelector::from_object(&wrong).unwrap_err();
        assert_eq!(error.to_string(), "\"Is\" is not a valid label selector operator");
    }

    #[test]
    fn field_selectors_unescape_values() {
        let selector = FieldSelector::parse(r"metadata.name=a\,b,status.phase!=x\=\\,").unwrap();
        assert_eq!(selector.exact("metadata.name"), Some("a,b"));
        assert_eq!(selector.to_string(), r"metadata.name=a\,b,status.phase!=x\=\\");
        let value = |f: &str| std::borrow::Cow::from(if f == "metadata.name" { "a,b" } else { "" });
        assert!(selector.matches(value));
        for (text, want) in [
            ("a", "invalid selector: 'a'; can't understand 'a'"),
            (r"a=\x", r"invalid field selector: invalid escape sequence: \x"),
            ("a=b=c", "invalid field selector: unescaped character in value: 61"),
        ] {
            assert_eq!(FieldSelector::parse(text).unwrap_err().to_string(), want);
        }
    }
}

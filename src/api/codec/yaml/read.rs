//! YAML text to values: events to a flat tree of nodes, nodes to values with aliases followed.

use std::collections::{HashMap, HashSet};

use granit_parser::{ErrorKind, Event, Options, Parser, ScalarStyle, ScanError, Span, StructureStyle, Tag};

use super::resolve::{Meaning, go_g, resolve};
use crate::codec::json::{MAX_DEPTH, Strictness};
use crate::codec::leaf;
use crate::{Map, Value};

/// A node's place in the list of nodes.
type NodeId = usize;

struct Node {
    /// First line, from 1.
    line: usize,
    /// `!!str` …, empty where there is none.
    tag: String,
    kind: Kind,
}

enum Kind {
    Scalar { text: String, plain: bool },
    List(Vec<NodeId>),
    Map(Vec<NodeId>),
    Alias { target: Option<NodeId>, name: String },
}

pub(super) fn parse(bytes: &[u8]) -> Result<(Value, Strictness), String> {
    let text = std::str::from_utf8(bytes).map_err(|_| "invalid leading UTF-8 octet")?;
    if !text.chars().all(is_allowed) {
        return Err("control characters are not allowed".into());
    }
    let (nodes, root) = nodes(text)?;
    let Some(root) = root else { return Ok((Value::Null, Strictness::default())) };
    let mut decoder =
        Decoder { nodes: &nodes, repeated: Vec::new(), following: HashSet::new(), decoded: 0, aliased: 0, depth: 0 };
    let value = decoder.value(root)?;
    let mut noted = Strictness::default();
    if !decoder.repeated.is_empty() {
        noted.problems.push(format!("yaml: unmarshal errors:\n  {}", decoder.repeated.join("\n  ")));
    }
    Ok((value, noted))
}

fn is_allowed(c: char) -> bool {
    matches!(c, '\t' | '\n' | '\r' | ' '..='~' | '\u{85}' | '\u{a0}'..='\u{d7ff}' | '\u{e000}'..='\u{fffd}' | '\u{10000}'..)
}

/// Nodes of the first document.
fn nodes(text: &str) -> Result<(Vec<Node>, Option<NodeId>), String> {
    let mut options = Options::default();
    options.emit_unresolved_aliases = true;
    options.set_emit_comments(false);
    options.flow_nesting_limit = MAX_DEPTH;
    options.block_nesting_limit = MAX_DEPTH;
    let mut parser = Parser::new_from_str_with_options(text, options);
    let mut builder =
        Builder { text, nodes: Vec::new(), open: Vec::new(), flows: 0, anchors: HashMap::new(), root: None };
    while let Some(event) = parser.next_event() {
        let (event, span) = event.map_err(|error| words(text, &error))?;
        if builder.flows == 0 && is_after_tab(text, &span) {
            let place = match span.start.line() {
                0 | 1 => String::new(),
                line => format!("line {line}: "),
            };
            return Err(format!("{place}found character that cannot start any token"));
        }
        if !builder.event(event, span) {
            break;
        }
    }
    Ok((builder.nodes, builder.root))
}

/// True for what stands after a tab where libyaml takes none: indentation, and after the indicators of blocks.
fn is_after_tab(text: &str, span: &Span) -> bool {
    let Some(before) = span.start.byte_offset().and_then(|at| text.get(..at)) else { return false };
    let line = before.rsplit('\n').next().unwrap_or_default();
    let bare = line.trim_end_matches([' ', '\t']);
    line[bare.len()..].contains('\t') && (bare.is_empty() || bare.ends_with(['-', '?']))
}

struct Builder<'a> {
    text: &'a str,
    nodes: Vec<Node>,
    open: Vec<NodeId>,
    /// Flow collections that are open.
    flows: usize,
    anchors: HashMap<usize, NodeId>,
    root: Option<NodeId>,
}

impl Builder<'_> {
    /// Takes an event in; false at the end of the document.
    fn event(&mut self, event: Event<'_>, span: Span) -> bool {
        let line = span.start.line();
        match event {
            Event::DocumentEnd => return false,
            Event::Scalar(text, style, anchor, tag) => {
                let plain = matches!(style, ScalarStyle::Plain);
                self.add(line, tag.as_deref(), anchor, Kind::Scalar { text: text.into_owned(), plain });
            }
            Event::SequenceStart(style, anchor, tag) => {
                self.flows += usize::from(self.flows > 0 || style == StructureStyle::Flow);
                let id = self.add(line, tag.as_deref(), anchor, Kind::List(Vec::new()));
                self.open.push(id);
            }
            Event::MappingStart(style, anchor, tag) => {
                self.flows += usize::from(self.flows > 0 || style == StructureStyle::Flow);
                let id = self.add(line, tag.as_deref(), anchor, Kind::Map(Vec::new()));
                self.open.push(id);
            }
            Event::SequenceEnd | Event::MappingEnd => {
                self.open.pop();
                self.flows = self.flows.saturating_sub(1);
            }
            Event::Alias(anchor) => {
                let name = span.slice(self.text).unwrap_or_default().trim_start_matches('*').to_string();
                let target = self.anchors.get(&anchor).copied();
                self.add(line, None, 0, Kind::Alias { target, name });
            }
            Event::UnresolvedAlias(name) => {
                self.add(line, None, 0, Kind::Alias { target: None, name: name.into_owned() });
            }
            _ => {}
        }
        true
    }

    fn add(&mut self, line: usize, tag: Option<&Tag>, anchor: usize, kind: Kind) -> NodeId {
        let id = self.nodes.len();
        let tag = tag.map(|tag| match tag.core_suffix() {
            Some(suffix) => format!("!!{suffix}"),
            None => tag.original(),
        });
        self.nodes.push(Node { line, tag: tag.unwrap_or_default(), kind });
        if anchor > 0 {
            self.anchors.insert(anchor, id);
        }
        match self.open.last().map(|&parent| &mut self.nodes[parent].kind) {
            Some(Kind::List(children) | Kind::Map(children)) => children.push(id),
            _ => self.root = Some(id),
        }
        id
    }
}

/// A scalar that is a key or a value.
enum Scalar {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Float(f64),
    Text(String),
}

struct Decoder<'a> {
    nodes: &'a [Node],
    repeated: Vec<String>,
    following: HashSet<NodeId>,
    decoded: usize,
    aliased: usize,
    depth: usize,
}

impl Decoder<'_> {
    /// Counts a step and refuses documents that are mostly aliases: Go's bound, which lets small ones through.
    fn count(&mut self) -> Result<(), String> {
        const LOW: f64 = 400_000.0;
        const HIGH: f64 = 4_000_000.0;
        self.decoded += 1;
        self.aliased += usize::from(!self.following.is_empty());
        let decoded = self.decoded as f64;
        let allowed = 0.99 - 0.89 * ((decoded - LOW) / (HIGH - LOW)).clamp(0.0, 1.0);
        if self.aliased > 100 && self.decoded > 1000 && self.aliased as f64 / decoded > allowed {
            return Err("document contains excessive aliasing".into());
        }
        Ok(())
    }

    fn value(&mut self, id: NodeId) -> Result<Value, String> {
        self.count()?;
        if self.depth >= MAX_DEPTH {
            return Err(format!("exceeded max depth of {MAX_DEPTH}"));
        }
        self.depth += 1;
        let nodes = self.nodes;
        let value = match &nodes[id].kind {
            Kind::Scalar { text, plain } => match scalar(&nodes[id].tag, text, *plain)? {
                Scalar::Null => Value::Null,
                Scalar::Bool(b) => b.into(),
                Scalar::Int(n) => n.into(),
                Scalar::Uint(n) => n.into(),
                Scalar::Float(n) if n.is_finite() => whole(n),
                Scalar::Float(n) => return Err(format!("json: unsupported value: {}", infinite(n))),
                Scalar::Text(text) => text.into(),
            },
            Kind::List(children) => {
                let mut items = Vec::with_capacity(children.len());
                for &child in children {
                    items.push(self.value(child)?);
                }
                Value::Array(items)
            }
            Kind::Map(children) => {
                let (mut map, mut seen) = (Map::new(), HashSet::new());
                self.mapping(children, &mut map, &mut seen)?;
                Value::Object(map)
            }
            Kind::Alias { target, name } => self.follow(id, *target, name, |this, target| this.value(target))?,
        };
        self.depth -= 1;
        Ok(value)
    }

    fn follow<T>(
        &mut self, id: NodeId, target: Option<NodeId>, name: &str,
        run: impl FnOnce(&mut Self, NodeId) -> Result<T, String>,
    ) -> Result<T, String> {
        let Some(target) = target else { return Err(format!("unknown anchor '{name}' referenced")) };
        if !self.following.insert(id) {
            return Err(format!("anchor '{name}' value contains itself"));
        }
        let out = run(self, target);
        self.following.remove(&id);
        out
    }

    fn mapping(&mut self, children: &[NodeId], map: &mut Map, seen: &mut HashSet<String>) -> Result<(), String> {
        for pair in children.chunks(2) {
            let &[key, value] = pair else { continue };
            if self.is_merge(key) {
                self.merge(value, map, seen)?;
                continue;
            }
            let (key, shown) = self.key(key)?;
            let line = self.nodes[value].line;
            let value = self.value(value)?;
            if !seen.insert(shown.clone()) {
                self.repeated.push(format!("line {line}: key {shown} already set in map"));
            }
            map.insert(key, value);
        }
        Ok(())
    }

    fn is_merge(&self, id: NodeId) -> bool {
        let node = &self.nodes[id];
        matches!(&node.kind, Kind::Scalar { text, plain }
            if text == "<<" && ((*plain && node.tag.is_empty()) || node.tag == "!!merge"))
    }

    /// Adds the entries of a mapping, or of several, of which the first wins.
    fn merge(&mut self, id: NodeId, map: &mut Map, seen: &mut HashSet<String>) -> Result<(), String> {
        self.count()?;
        let nodes = self.nodes;
        let want_map = || Err("map merge requires map or sequence of maps as the value".to_string());
        match &nodes[id].kind {
            Kind::Map(children) => self.mapping(children, map, seen),
            Kind::List(children) if !self.is_nested_merge(children) => want_map(),
            Kind::List(children) => children.iter().rev().try_for_each(|&child| self.merge(child, map, seen)),
            Kind::Alias { target: Some(target), .. } if !matches!(nodes[*target].kind, Kind::Map(_)) => want_map(),
            Kind::Alias { target, name } => {
                self.follow(id, *target, name, |this, target| this.merge(target, map, seen))
            }
            Kind::Scalar { .. } => want_map(),
        }
    }

    fn is_nested_merge(&self, children: &[NodeId]) -> bool {
        children.iter().all(|&child| matches!(self.nodes[child].kind, Kind::Map(_) | Kind::Alias { .. }))
    }

    /// A key as text, and as Go shows it.
    fn key(&mut self, id: NodeId) -> Result<(String, String), String> {
        self.count()?;
        let nodes = self.nodes;
        Ok(match &nodes[id].kind {
            Kind::Scalar { text, plain } => match scalar(&nodes[id].tag, text, *plain)? {
                Scalar::Null => return Err("unsupported map key of type: %!s(<nil>), key: <nil>".into()),
                Scalar::Bool(b) => (b.to_string(), b.to_string()),
                Scalar::Int(n) => (n.to_string(), n.to_string()),
                Scalar::Uint(n) => (n.to_string(), format!("{n:#x}")),
                Scalar::Float(n) => {
                    let short = n as f32;
                    let text = go_g(&format!("{short:e}"), &short.to_string(), 6.max(digits(short)));
                    (text.clone(), text)
                }
                Scalar::Text(text) => {
                    let shown = crate::field::quote(&text);
                    (text, shown)
                }
            },
            Kind::Alias { target, name } => self.follow(id, *target, name, |this, target| this.key(target))?,
            Kind::List(_) => return Err("invalid map key: []interface {}{}".into()),
            Kind::Map(_) => return Err("invalid map key: map[interface {}]interface {}{}".into()),
        })
    }
}

/// Digits before the point of a number that has as many.
fn digits(n: f32) -> usize {
    let text = format!("{n:e}");
    text.split_once('e').map_or(1, |(digits, _)| digits.bytes().filter(u8::is_ascii_digit).count())
}

/// A float as JSON's reader would have it: an integer when it is whole and small enough to be written as one.
fn whole(n: f64) -> Value {
    if n == n.trunc() && n.abs() < 1e15 { Value::from(n as i64) } else { n.into() }
}

fn infinite(n: f64) -> &'static str {
    match n {
        n if n.is_nan() => "NaN",
        n if n > 0.0 => "+Inf",
        _ => "-Inf",
    }
}

fn scalar(tag: &str, text: &str, plain: bool) -> Result<Scalar, String> {
    if tag.is_empty() && !plain {
        return Ok(Scalar::Text(text.into()));
    }
    let as_text = || Ok(Scalar::Text(text.to_string()));
    match tag {
        "!!str" => return as_text(),
        "!!binary" => {
            let bytes = leaf::base64_decode(text).map_err(|_| "!!binary value contains invalid base64 data")?;
            return Ok(Scalar::Text(String::from_utf8_lossy(&bytes).into_owned()));
        }
        "" | "!!bool" | "!!int" | "!!float" | "!!null" | "!!timestamp" => {}
        _ => return as_text(),
    }
    let (found, scalar) = match resolve(text) {
        Meaning::Null => ("!!null", Scalar::Null),
        Meaning::Bool(b) => ("!!bool", Scalar::Bool(b)),
        Meaning::Int(n) if tag == "!!float" => ("!!float", Scalar::Float(n as f64)),
        Meaning::Int(n) => ("!!int", Scalar::Int(n)),
        Meaning::Uint(n) => ("!!int", Scalar::Uint(n)),
        Meaning::Float(n) => ("!!float", Scalar::Float(n)),
        Meaning::Timestamp => ("!!timestamp", Scalar::Text(text.into())),
        Meaning::Merge => ("!!merge", Scalar::Text(text.into())),
        Meaning::Text => ("!!str", Scalar::Text(text.into())),
    };
    if !tag.is_empty() && tag != found {
        return Err(format!("cannot decode {found} `{text}` as a {tag}"));
    }
    Ok(scalar)
}

/// The words of libyaml for what the parser found wrong. Lines count from 1 in its scanner and from 0 in its parser,
/// and the first is not named.
fn words(text: &str, error: &ScanError) -> String {
    // An unclosed bracket is reported where it stands; libyaml runs into the end of the text.
    let unclosed = matches!(
        error.kind(),
        ErrorKind::UnclosedFlowCollection { .. }
            | ErrorKind::UnexpectedEofFlowSequence
            | ErrorKind::UnexpectedEofFlowMapping
            | ErrorKind::UnexpectedEofImplicitFlowMapping
    );
    let after = |at: usize| text.get(at..).is_some_and(|rest| rest.trim().is_empty());
    let at_end = unclosed || error.marker().byte_offset().is_some_and(after);
    let (problem, scanner) = problem(text, error.kind(), at_end);
    let mut line = error.marker().line().saturating_sub(1);
    if at_end && !scanner {
        line = text.lines().count();
    }
    match line {
        0 => problem,
        line => format!("line {}: {problem}", line + usize::from(scanner)),
    }
}

fn problem(text: &str, kind: &ErrorKind, at_end: bool) -> (String, bool) {
    let flow = |separator: &str| match text.trim_end().as_bytes().last() {
        Some(b'[' | b'{' | b',' | b':') if at_end => "did not find expected node content".to_string(),
        _ => format!("did not find expected ',' or '{separator}'"),
    };
    match kind {
        ErrorKind::UnclosedFlowCollection { open: '{' } => (flow("}"), false),
        ErrorKind::UnclosedFlowCollection { .. } => (flow("]"), false),
        ErrorKind::UnexpectedEofFlowSequence | ErrorKind::ExpectedFlowSequenceSeparator => (flow("]"), false),
        ErrorKind::UnexpectedEofFlowMapping
        | ErrorKind::UnexpectedEofImplicitFlowMapping
        | ErrorKind::ExpectedFlowMappingSeparator => (flow("}"), false),
        ErrorKind::MismatchedFlowCollectionEnd { open: '{', .. } => (flow("}"), false),
        ErrorKind::MismatchedFlowCollectionEnd { .. } => (flow("]"), false),
        ErrorKind::MisplacedFlowCollectionEnd => ("did not find expected node content".into(), false),
        ErrorKind::UnexpectedEof | ErrorKind::UnexpectedEofBlockMapping | ErrorKind::ExpectedBlockMappingKey => {
            ("did not find expected key".into(), false)
        }
        ErrorKind::UnexpectedEofBlockSequence | ErrorKind::ExpectedBlockSequenceEntry => {
            ("did not find expected '-' indicator".into(), false)
        }
        ErrorKind::ExpectedDocumentStart => ("did not find expected <document start>".into(), false),
        ErrorKind::ExpectedNodeContent => ("did not find expected node content".into(), false),
        ErrorKind::UndeclaredTagHandle => ("found undefined tag handle".into(), false),
        ErrorKind::SimpleKeyExpected | ErrorKind::InvalidSimpleKey => ("could not find expected ':'".into(), true),
        ErrorKind::UnexpectedCharacter { .. } | ErrorKind::TabNotAllowed | ErrorKind::TabInBlockIndentation => {
            ("found character that cannot start any token".into(), true)
        }
        ErrorKind::UnclosedQuotedScalar => ("found unexpected end of stream".into(), true),
        ErrorKind::RecursionLimitExceeded => (format!("exceeded max depth of {MAX_DEPTH}"), true),
        // The rest is worded as libyaml words it, after what it was doing.
        other => {
            let text = other.to_string();
            let problem = match text.split_once(", ") {
                Some((context, problem)) if context.starts_with("while ") => problem.to_string(),
                _ => text,
            };
            (problem, true)
        }
    }
}

//! Values to YAML text, as libyaml's emitter lays it out.

use std::cmp::Ordering;

use super::resolve::{Meaning, go_g, is_base_60, resolve};
use crate::{Map, Value};

/// Columns after which a scalar is folded.
const WIDTH: usize = 80;
/// Longer keys stand after a question mark.
const SIMPLE_KEY: usize = 128;

pub(super) fn document(value: &Value) -> Vec<u8> {
    let mut writer = Writer { out: String::new(), column: 0 };
    match value {
        Value::Object(map) if !map.is_empty() => writer.map(map, 0, true),
        Value::Array(items) if !items.is_empty() => writer.list(items, 0, true),
        other => writer.scalar(other, 2),
    }
    writer.out.push('\n');
    writer.out.into_bytes()
}

struct Writer {
    out: String,
    column: usize,
}

impl Writer {
    fn push(&mut self, text: &str) {
        self.out.push_str(text);
        self.column += text.chars().count();
    }

    fn line(&mut self, indent: usize) {
        if !self.out.is_empty() {
            self.out.push('\n');
        }
        self.out.extend(std::iter::repeat_n(' ', indent));
        self.column = indent;
    }

    /// `here`: the first entry goes on the line that is begun already.
    fn map(&mut self, map: &Map, indent: usize, here: bool) {
        let mut entries: Vec<(&String, &Value)> = map.iter().collect();
        entries.sort_by(|(a, _), (b, _)| natural(a, b));
        for (i, (key, value)) in entries.into_iter().enumerate() {
            if i > 0 || !here {
                self.line(indent);
            }
            let style = Style::of(key);
            if key.len() > SIMPLE_KEY || style.multiline {
                self.push("? ");
                self.text(key, indent + 2, false);
                self.line(indent);
            } else {
                self.text(key, indent, true);
            }
            self.push(":");
            self.below(value, indent);
        }
    }

    /// A value after its key.
    fn below(&mut self, value: &Value, indent: usize) {
        match value {
            Value::Object(map) if !map.is_empty() => self.map(map, indent + 2, false),
            Value::Array(items) if !items.is_empty() => self.list(items, indent, false),
            other => {
                self.push(" ");
                self.scalar(other, indent + 2);
            }
        }
    }

    fn list(&mut self, items: &[Value], indent: usize, here: bool) {
        for (i, item) in items.iter().enumerate() {
            if i > 0 || !here {
                self.line(indent);
            }
            self.push("- ");
            match item {
                Value::Object(map) if !map.is_empty() => self.map(map, indent + 2, true),
                Value::Array(items) if !items.is_empty() => self.list(items, indent + 2, true),
                other => self.scalar(other, indent + 2),
            }
        }
    }

    fn scalar(&mut self, value: &Value, indent: usize) {
        match value {
            Value::Null => self.push("null"),
            Value::Bool(b) => self.push(if *b { "true" } else { "false" }),
            Value::Number(n) => match n.as_f64().filter(|_| n.is_f64()) {
                Some(float) => {
                    let text = go_g(&format!("{float:e}"), &float.to_string(), 21);
                    self.push(&text);
                }
                None => self.push(&n.to_string()),
            },
            Value::String(text) => self.text(text, indent, false),
            Value::Array(_) => self.push("[]"),
            Value::Object(_) => self.push("{}"),
        }
    }

    /// Text in the style that shows it best; what is folded continues at `indent`.
    fn text(&mut self, text: &str, indent: usize, key: bool) {
        let style = Style::of(text);
        let means_text = matches!(resolve(text), Meaning::Text) && !is_base_60(text);
        if text.contains('\n') && style.block && !key {
            self.literal(text, indent);
        } else if text.contains('\n') || !means_text {
            self.double_quoted(text, indent, !key);
        } else if style.plain {
            self.plain(text, indent, !key);
        } else if style.single {
            self.single_quoted(text, indent, !key);
        } else {
            self.double_quoted(text, indent, !key);
        }
    }

    fn plain(&mut self, text: &str, indent: usize, fold: bool) {
        let mut chars = text.chars().peekable();
        let mut after_space = false;
        while let Some(c) = chars.next() {
            if c == ' ' && fold && !after_space && self.column > WIDTH && chars.peek() != Some(&' ') {
                self.line(indent);
            } else {
                self.out.push(c);
                self.column += 1;
            }
            after_space = c == ' ';
        }
    }

    fn single_quoted(&mut self, text: &str, indent: usize, fold: bool) {
        self.push("'");
        let mut chars = text.chars().peekable();
        let (mut first, mut after_space) = (true, false);
        while let Some(c) = chars.next() {
            let next = chars.peek();
            let inside = !first && next.is_some();
            if c == ' ' && fold && !after_space && self.column > WIDTH && inside && next != Some(&' ') {
                self.line(indent);
            } else {
                let mut buffer = [0; 4];
                self.push(if c == '\'' { "''" } else { c.encode_utf8(&mut buffer) });
            }
            (first, after_space) = (false, c == ' ');
        }
        self.push("'");
    }

    fn double_quoted(&mut self, text: &str, indent: usize, fold: bool) {
        self.push("\"");
        let mut chars = text.chars().peekable();
        let (mut first, mut after_space) = (true, false);
        while let Some(c) = chars.next() {
            let next = chars.peek();
            if !is_printable(c) || matches!(c, '"' | '\\' | '\n' | '\u{2028}' | '\u{2029}' | '\u{feff}') {
                let escape = escape(c);
                self.push(&escape);
                after_space = false;
            } else if c == ' ' {
                if fold && !after_space && self.column > WIDTH && !first && next.is_some() {
                    self.line(indent);
                    if next == Some(&' ') {
                        self.push("\\");
                    }
                } else {
                    self.push(" ");
                }
                after_space = true;
            } else {
                self.push(c.encode_utf8(&mut [0; 4]));
                after_space = false;
            }
            first = false;
        }
        self.push("\"");
    }

    fn literal(&mut self, text: &str, indent: usize) {
        self.push("|");
        if text.starts_with([' ', '\n']) {
            self.push("2");
        }
        match text.strip_suffix('\n') {
            None => self.push("-"),
            Some(rest) if rest.is_empty() || rest.ends_with('\n') => self.push("+"),
            Some(_) => {}
        }
        let body = text.strip_suffix('\n').unwrap_or(text);
        for line in body.split('\n') {
            if line.is_empty() {
                self.out.push('\n');
            } else {
                self.line(indent);
                self.push(line);
            }
        }
    }
}

fn is_printable(c: char) -> bool {
    matches!(c, '\n' | ' '..='~' | '\u{a0}'..='\u{d7ff}' | '\u{e000}'..='\u{fffd}') && c != '\u{feff}'
}

fn is_break(c: char) -> bool {
    matches!(c, '\r' | '\n' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

fn escape(c: char) -> String {
    match c {
        '\0' => "\\0".into(),
        '\u{7}' => "\\a".into(),
        '\u{8}' => "\\b".into(),
        '\t' => "\\t".into(),
        '\n' => "\\n".into(),
        '\u{b}' => "\\v".into(),
        '\u{c}' => "\\f".into(),
        '\r' => "\\r".into(),
        '\u{1b}' => "\\e".into(),
        '"' => "\\\"".into(),
        '\\' => "\\\\".into(),
        '\u{85}' => "\\N".into(),
        '\u{a0}' => "\\_".into(),
        '\u{2028}' => "\\L".into(),
        '\u{2029}' => "\\P".into(),
        c if (c as u32) <= 0xff => format!("\\x{:02X}", c as u32),
        c if (c as u32) <= 0xffff => format!("\\u{:04X}", c as u32),
        c => format!("\\U{:08X}", c as u32),
    }
}

/// Which styles can show a text.
struct Style {
    plain: bool,
    single: bool,
    block: bool,
    multiline: bool,
}

impl Style {
    fn of(text: &str) -> Self {
        let mut style = Self { plain: true, single: true, block: true, multiline: false };
        if text.is_empty() {
            style.block = false;
            return style;
        }
        style.plain = !text.starts_with("---") && !text.starts_with("...");
        let blank = |c: Option<&char>| c.is_none_or(|c| matches!(c, ' ' | '\t'));
        let mut before: Option<char> = None;
        let mut chars = text.chars().peekable();
        while let Some(c) = chars.next() {
            let next = chars.peek();
            let indicator = match (before, c) {
                (
                    None,
                    '#' | ',' | '[' | ']' | '{' | '}' | '&' | '*' | '!' | '|' | '>' | '\'' | '"' | '%' | '@' | '`',
                ) => true,
                (None, '?' | '-') | (_, ':') => blank(next),
                (Some(b), '#') => matches!(b, ' ' | '\t' | '\0') || is_break(b),
                _ => false,
            };
            let at_edge = before.is_none() || next.is_none();
            style.plain &= !indicator && !((c == ' ' || is_break(c)) && at_edge);
            style.multiline |= is_break(c);
            if !is_printable(c) {
                (style.plain, style.single, style.block) = (false, false, false);
            }
            if c == ' ' && before.is_some_and(is_break) {
                (style.plain, style.single) = (false, false);
            }
            if is_break(c) && before == Some(' ') {
                (style.plain, style.single, style.block) = (false, false, false);
            }
            if c == ' ' && next.is_none() {
                style.block = false;
            }
            before = Some(c);
        }
        style.plain &= !style.multiline;
        style
    }
}

/// The order of keys: letters after everything else, numbers within keys by their value.
fn natural(a: &str, b: &str) -> Ordering {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let Some(i) = a.iter().zip(&b).position(|(a, b)| a != b) else { return a.len().cmp(&b.len()) };
    let (x, y) = (a[i], b[i]);
    match (x.is_alphabetic(), y.is_alphabetic()) {
        (true, true) => return x.cmp(&y),
        (true, false) => return Ordering::Greater,
        (false, true) => return Ordering::Less,
        (false, false) => {}
    }
    // A zero after other digits belongs to their number.
    let within = (x == '0' || y == '0') && a[..i].iter().rev().take_while(|c| c.is_numeric()).any(|&c| c != '0');
    let number = |chars: &[char]| {
        let digits = chars[i..].iter().take_while(|c| c.is_ascii_digit());
        let start = i64::from(within);
        digits.fold((start, i), |(n, end), c| {
            (n.wrapping_mul(10).wrapping_add(i64::from(*c as u32 - '0' as u32)), end + 1)
        })
    };
    number(&a).cmp(&number(&b)).then(x.cmp(&y))
}

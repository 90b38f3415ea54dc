//! Steps of a field path as `FieldsV1` writes them: `f:name`, `k:{"key":"value"}`, `v:value`, `i:3`.

use std::cmp::Ordering;

use crate::field::quote;
use crate::{Map, Value};

/// The step to a field or map entry.
pub(super) fn field(name: &str) -> String {
    let mut out = String::with_capacity(name.len() + 2);
    out.push_str("f:");
    out.push_str(name);
    out
}

/// The step to a scalar of a set.
pub(super) fn value(value: &Value) -> String {
    let mut out = String::from("v:");
    push_json(&mut out, value);
    out
}

/// The step to an item of a keyed list; `fields` are sorted by name here.
pub(super) fn keyed(mut fields: Vec<(&str, &Value)>) -> String {
    fields.sort_by_key(|f| f.0);
    let mut out = String::with_capacity(32);
    out.push_str("k:{");
    for (i, (name, value)) in fields.into_iter().enumerate() {
        if i > 0 {
            out.push(',');
        }
        push_text(&mut out, name);
        out.push(':');
        push_json(&mut out, value);
    }
    out.push('}');
    out
}

fn push_json(out: &mut String, value: &Value) {
    match value {
        Value::String(s) => push_text(out, s),
        other => out.push_str(&other.to_string()),
    }
}

/// A JSON string with Go's extra escapes, so that steps equal those in objects that upstream wrote.
fn push_text(out: &mut String, text: &str) {
    if text.bytes().all(|b| (0x20..0x80).contains(&b) && !matches!(b, b'"' | b'\\' | b'<' | b'>' | b'&')) {
        out.push('"');
        out.push_str(text);
        out.push('"');
        return;
    }
    for c in Value::from(text).to_string().chars() {
        match c {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => out.push_str(&format!("\\u{:04x}", c as u32)),
            c => out.push(c),
        }
    }
}

/// A step as a client sent it, written as we write it; `None` for kinds of steps that are not known, which are ignored.
///
/// # Errors
/// A text that is no step, in upstream's words.
pub(super) fn canonical(step: &str) -> Result<Option<String>, String> {
    let kind = step.get(..1).unwrap_or_default();
    if step.len() < 2 {
        return Err("key must be 2 characters long:".into());
    }
    let Some(rest) = step.get(2..).filter(|_| step.as_bytes()[1] == b':') else {
        return Err(format!("missing colon: {step}"));
    };
    Ok(match kind {
        "f" => Some(step.to_string()),
        "v" => Some(value(&parse(rest)?)),
        "k" => match parse(rest)? {
            Value::Object(fields) => Some(keyed(fields.iter().map(|(k, v)| (k.as_str(), v)).collect())),
            _ => return Err(format!("expected an object: {rest}")),
        },
        "i" => Some(format!("i:{}", rest.parse::<i64>().map_err(|e| e.to_string())?)),
        _ => None,
    })
}

fn parse(text: &str) -> Result<Value, String> {
    serde_json::from_str(text).map_err(|e| e.to_string())
}

/// A step in upstream's readable form: `.name`, `[name="x"]`, `[="x"]`, `[3]`.
pub(super) fn readable(step: &str) -> String {
    let (kind, rest) = step.split_at(step.len().min(2));
    match kind {
        "f:" => format!(".{rest}"),
        "v:" => format!("[={}]", readable_value(&parse(rest).unwrap_or_default())),
        "k:" => {
            let fields: Map = serde_json::from_str(rest).unwrap_or_default();
            let fields: Vec<String> = fields.iter().map(|(k, v)| format!("{k}={}", readable_value(v))).collect();
            format!("[{}]", fields.join(","))
        }
        _ => format!("[{rest}]"),
    }
}

fn readable_value(value: &Value) -> String {
    match value {
        Value::String(s) => quote(s),
        Value::Array(items) => format!("[{}]", items.iter().map(readable_value).collect::<Vec<_>>().join(",")),
        Value::Object(map) => map.iter().map(|(k, v)| format!("{k}={}", readable_value(v))).collect(),
        other => other.to_string(),
    }
}

/// Upstream's order of steps: fields, keys, values, indexes; numbers by worth.
pub(super) fn compare(a: &str, b: &str) -> Ordering {
    let rank = |s: &str| match s.as_bytes().first() {
        Some(b'f') => 0,
        Some(b'k') => 1,
        Some(b'v') => 2,
        _ => 3,
    };
    rank(a).cmp(&rank(b)).then_with(|| match rank(a) {
        0 => a.cmp(b),
        1 => {
            let fields = |s: &str| serde_json::from_str::<Map>(&s[2..]).unwrap_or_default();
            let (x, y) = (fields(a), fields(b));
            let pairs = x.iter().zip(&y).map(|((k, v), (l, w))| k.cmp(l).then_with(|| compare_values(v, w)));
            pairs.fold(Ordering::Equal, Ordering::then).then(x.len().cmp(&y.len()))
        }
        _ => {
            let value = |s: &str| s.get(2..).and_then(|s| parse(s).ok()).unwrap_or_default();
            compare_values(&value(a), &value(b))
        }
    })
}

fn compare_values(a: &Value, b: &Value) -> Ordering {
    match (a, b) {
        (Value::Number(x), Value::Number(y)) => match (x.as_i64(), y.as_i64()) {
            (Some(x), Some(y)) => x.cmp(&y),
            _ => x.as_f64().partial_cmp(&y.as_f64()).unwrap_or(Ordering::Equal),
        },
        (Value::String(x), Value::String(y)) => x.cmp(y),
        (Value::Bool(x), Value::Bool(y)) => x.cmp(y),
        _ => {
            let rank = |v: &Value| match v {
                Value::Number(_) => 0,
                Value::String(_) => 1,
                Value::Bool(_) => 2,
                _ => 3,
            };
            rank(a).cmp(&rank(b))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn steps_are_written_as_upstream_writes_them() {
        let (port, tcp) = (json!(80), json!("TCP"));
        let step = keyed(vec![("protocol", &tcp), ("containerPort", &port)]);
        assert_eq!(step, r#"k:{"containerPort":80,"protocol":"TCP"}"#);
        assert_eq!(readable(&step), r#"[containerPort=80,protocol="TCP"]"#);
        assert_eq!(value(&json!("a<b")), "v:\"a\\u003cb\"");
        assert_eq!(readable("v:\"a\\u003cb\""), r#"[="a<b"]"#);
        assert_eq!(readable("f:spec"), ".spec");
    }

    #[test]
    fn sent_steps_become_canonical() {
        assert_eq!(canonical(r#"k:{ "b":1, "a":"x" }"#).unwrap().unwrap(), r#"k:{"a":"x","b":1}"#);
        assert_eq!(canonical("z:x"), Ok(None));
        assert!(canonical("f").is_err());
        assert!(canonical("fx").is_err());
        assert!(canonical("v:{").is_err());
    }

    #[test]
    fn numbers_order_by_worth() {
        let mut steps = [r#"k:{"p":443}"#, "f:z", r#"k:{"p":8080}"#, r#"k:{"p":80}"#, "v:1"];
        steps.sort_by(|a, b| compare(a, b));
        assert_eq!(steps, ["f:z", r#"k:{"p":80}"#, r#"k:{"p":443}"#, r#"k:{"p":8080}"#, "v:1"]);
    }
}

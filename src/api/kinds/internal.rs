//! Structures as upstream prints them in texts: it validates its internal types, whose JSON has Go's field names, all
//! fields, and null for what is not there. `internal.txt` lists their fields: Go name, name in the served version (`-`:
//! the fields of an embedded structure), and shape (`*` pointer, `[]` list, `{}` map, `&` embedded, `=` a type of the
//! facts, which has JSON names of its own).

use std::collections::HashMap;
use std::sync::LazyLock;

use super::view::{View, set, unset};
use crate::Value;
use crate::schema;

static TYPES: LazyLock<HashMap<&'static str, Vec<Field>>> = LazyLock::new(|| {
    let mut types: HashMap<&str, Vec<Field>> = HashMap::new();
    let mut current = "";
    for line in include_str!("internal.txt").lines() {
        let Some(line) = line.strip_prefix(' ') else {
            current = line;
            types.entry(current).or_default();
            continue;
        };
        let mut words = line.split(' ');
        let mut word = || words.next().expect("three words in a line of internal.txt");
        types.entry(current).or_default().push(Field { go: word(), json: word(), shape: word() });
    }
    types
});

struct Field {
    go: &'static str,
    json: &'static str,
    shape: &'static str,
}

/// A value with the order of its fields.
enum Tree {
    Plain(String),
    List(Vec<Tree>),
    Fields(Vec<(String, Tree)>),
}

fn text(s: &str) -> String {
    let quoted = Value::from(s).to_string();
    quoted.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")
}

fn null() -> Tree {
    Tree::Plain("null".into())
}

fn tree(shape: &str, value: &Value) -> Tree {
    if let Some(shape) = shape.strip_prefix('*') {
        return if value.is_null() { null() } else { tree(shape, value) };
    }
    if let Some(shape) = shape.strip_prefix("[]") {
        let Some(list) = value.as_array() else { return null() };
        return Tree::List(list.iter().map(|item| tree(shape, item)).collect());
    }
    if let Some(shape) = shape.strip_prefix("{}") {
        let Some(map) = value.as_object() else { return null() };
        return Tree::Fields(map.iter().map(|(k, v)| (k.clone(), tree(shape, v))).collect());
    }
    if let Some(name) = shape.strip_prefix('=') {
        return served(schema::builtin().get(name), value);
    }
    match shape {
        "string" => Tree::Plain(text(value.as_str().unwrap_or_default())),
        "bytes" | "time" if value.is_null() => null(),
        "bytes" | "time" | "quantity" if value.is_string() => Tree::Plain(text(value.as_str().unwrap_or_default())),
        "quantity" => Tree::Plain("\"0\"".into()),
        "bool" => Tree::Plain(value.as_bool().unwrap_or(false).to_string()),
        "int" => Tree::Plain(value.as_i64().unwrap_or(0).to_string()),
        "intstr" if value.is_null() => Tree::Plain("0".into()),
        "intstr" | "raw" => plain(value),
        name => Tree::Fields(fields(name, value)),
    }
}

fn fields(name: &str, value: &Value) -> Vec<(String, Tree)> {
    let mut out = Vec::new();
    for field in TYPES.get(name).into_iter().flatten() {
        match field.shape.strip_prefix('&') {
            Some(shape) if field.json == "-" => out.extend(fields(shape, value)),
            Some(shape) => {
                if let Tree::Fields(fields) = tree(shape, value.at(field.json)) {
                    out.extend(fields);
                }
            }
            None => out.push((field.go.into(), tree(field.shape, value.at(field.json)))),
        }
    }
    out
}

/// A value whose type has JSON names also in upstream's internal form.
fn served(ty: Option<&schema::Type>, value: &Value) -> Tree {
    let (Some(ty), Some(map)) = (ty, value.as_object()) else { return plain(value) };
    let facts = schema::builtin();
    let known = ty.fields.iter().filter_map(|field| {
        let value = map.get(&*field.name)?;
        Some((field.name.to_string(), by_shape(facts, &field.shape, value)))
    });
    Tree::Fields(known.collect())
}

fn by_shape(facts: &schema::Facts, shape: &schema::Shape, value: &Value) -> Tree {
    match (shape, value) {
        (schema::Shape::List(item, _), Value::Array(list)) => {
            Tree::List(list.iter().map(|value| by_shape(facts, item, value)).collect())
        }
        (schema::Shape::Struct(_), Value::Object(_)) => served(facts.of(shape), value),
        _ => plain(value),
    }
}

fn plain(value: &Value) -> Tree {
    match value {
        Value::String(s) => Tree::Plain(text(s)),
        Value::Array(list) => Tree::List(list.iter().map(plain).collect()),
        Value::Object(map) => Tree::Fields(map.iter().map(|(k, v)| (k.clone(), plain(v))).collect()),
        other => Tree::Plain(other.to_string()),
    }
}

fn print(tree: &Tree, indent: Option<usize>, out: &mut String) {
    let next = indent.map(|i| i + 1);
    let line = |out: &mut String, indent: Option<usize>| {
        if let Some(indent) = indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', indent));
        }
    };
    let (open, close, count) = match tree {
        Tree::Plain(text) => return out.push_str(text),
        Tree::List(list) => ('[', ']', list.len()),
        Tree::Fields(fields) => ('{', '}', fields.len()),
    };
    out.push(open);
    for i in 0..count {
        if i > 0 {
            out.push(',');
        }
        line(out, next);
        match tree {
            Tree::List(list) => print(&list[i], next, out),
            Tree::Fields(fields) => {
                out.push_str(&text(&fields[i].0));
                out.push_str(if indent.is_some() { ": " } else { ":" });
                print(&fields[i].1, next, out);
            }
            Tree::Plain(_) => {}
        }
    }
    if count > 0 {
        line(out, indent);
    }
    out.push(close);
}

/// The shape's JSON on one line; `PodIP`, `[]PodIP`, `=io.k8s…`.
pub fn show(shape: &str, value: &Value) -> String {
    let mut out = String::new();
    print(&tree(shape, &moved(shape, value)), None, &mut out);
    out
}

/// The shape's JSON, one field a line.
pub fn show_lines(shape: &str, value: &Value) -> String {
    let mut out = String::new();
    print(&tree(shape, &moved(shape, value)), Some(0), &mut out);
    out
}

/// In the internal form what a pod shares with its host is part of the security context.
fn moved(shape: &str, value: &Value) -> Value {
    let mut value = value.clone();
    match shape {
        "PodSpec" => move_host(&mut value),
        "PodTemplateSpec" => value.get_mut("spec").into_iter().for_each(move_host),
        _ => {}
    }
    value
}

fn move_host(spec: &mut Value) {
    for field in ["hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace", "hostUsers"] {
        let Some(value) = unset(spec, field) else { continue };
        set(super::view::structure(spec, "securityContext"), field, value);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn all_fields_are_shown() {
        let claim = json!({"name": "a", "resourceClaimName": "x"});
        let want = r#"{"Name":"a","ResourceClaimName":"x","ResourceClaimTemplateName":null}"#;
        assert_eq!(show("PodResourceClaim", &claim), want);
        assert_eq!(show("[]PodIP", &json!([{"ip": "192.0.2.1"}])), r#"[{"IP":"192.0.2.1"}]"#);
    }

    #[test]
    fn the_host_is_in_the_security_context() {
        let spec = json!({"hostNetwork": true, "securityContext": {}});
        assert!(show("PodSpec", &spec).contains(r#""SecurityContext":{"HostNetwork":true,"HostPID":false"#));
    }
}

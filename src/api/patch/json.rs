//! JSON patch, RFC 6902, with upstream's bounds, its leniency (the `json-patch` library) and its words.

use crate::codec;
use crate::status::{Details, Status};
use crate::{Map, Value};

/// Operations that one patch may have.
const MAX_OPERATIONS: usize = 10_000;

/// Bytes of JSON that the copy operations of one patch may copy together.
const MAX_COPIED: usize = 3 * 1024 * 1024;

/// Applies a JSON patch document. `strict` says that unknown fields are warned of or refused, for which upstream decodes
/// the patch once more, with other words for what it can't decode.
///
/// # Errors
/// 400 when it can't be decoded, 413 when it has more than 10,000 operations, 422 when an operation fails (a test that
/// does not hold, a path that is not there) or when copies grow beyond bounds.
pub fn apply(live: &Value, patch: &[u8], strict: bool) -> Result<Value, Status> {
    let operations = decode(patch, strict)?;
    if operations.len() > MAX_OPERATIONS {
        let count = operations.len();
        let message = format!(
            "Request entity too large: The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {count}"
        );
        return Err(Status::new(413, "RequestEntityTooLarge", message));
    }
    let mut document = Document { root: live.clone(), copied: 0 };
    for operation in &operations {
        document.run(operation).map_err(|Failed| failed())?;
    }
    Ok(document.root)
}

/// An operation that can't be done. Upstream does not say why.
struct Failed;

fn failed() -> Status {
    let mut status = Status::new(422, "Invalid", "the server rejected our request due to an error in our request");
    status.details = Some(Box::<Details>::default());
    status
}

fn decode(patch: &[u8], strict: bool) -> Result<Vec<Map>, Status> {
    let refuse = |why: String| Status::bad_request(if strict { format!("error decoding patch: {why}") } else { why });
    let (value, _) = codec::json::parse(patch).map_err(|e| refuse(e.message))?;
    let (list, item) = if strict {
        ("[]handlers.jsonPatchOp", "handlers.jsonPatchOp")
    } else {
        ("jsonpatch.Patch", "jsonpatch.Operation")
    };
    let mismatch = |value: &Value, into: &str| refuse(format!("json: cannot unmarshal {} into Go {into}", word(value)));
    let items = match value {
        Value::Null => Vec::new(),
        Value::Array(items) => items,
        other => return Err(mismatch(&other, &format!("value of type {list}"))),
    };
    let mut out = Vec::with_capacity(items.len());
    for operation in items {
        let operation = match operation {
            Value::Null => Map::new(),
            Value::Object(operation) => operation,
            other => return Err(mismatch(&other, &format!("value of type {item}"))),
        };
        for name in ["op", "path", "from"] {
            match operation.get(name) {
                None | Some(Value::Null | Value::String(_)) => {}
                Some(other) if strict => {
                    return Err(mismatch(other, &format!("struct field jsonPatchOp.{name} of type string")));
                }
                Some(_) => {}
            }
        }
        out.push(operation);
    }
    Ok(out)
}

fn word(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

struct Document {
    root: Value,
    copied: usize,
}

impl Document {
    fn run(&mut self, operation: &Map) -> Result<(), Failed> {
        let text = |name: &str| operation.get(name).and_then(Value::as_str);
        // A value that is not there counts as null.
        let value = || operation.get("value").cloned().unwrap_or_default();
        let path = || text("path").ok_or(Failed);
        match text("op").unwrap_or_default() {
            "add" => self.add(path()?, value()),
            "remove" => self.remove(path()?).map(drop),
            "replace" => self.replace(path()?, value()),
            "move" => {
                let moved = self.remove(text("from").ok_or(Failed)?)?;
                self.add(path()?, moved)
            }
            "copy" => {
                let copy = self.get(text("from").ok_or(Failed)?)?;
                let path = path()?;
                self.copied += copy.to_string().len();
                if self.copied > MAX_COPIED { Err(Failed) } else { self.add(path, copy) }
            }
            "test" => self.test(path()?, operation.get("value")),
            _ => Err(Failed),
        }
    }

    /// The container that a path leads into, and the last key of the path.
    fn find<'p>(&mut self, path: &'p str) -> Result<(&mut Value, std::borrow::Cow<'p, str>), Failed> {
        // What stands before the first slash does not count.
        let (_, steps) = path.split_once('/').ok_or(Failed)?;
        let (parents, last) = steps.rsplit_once('/').map_or((None, steps), |(parents, last)| (Some(parents), last));
        let mut at = &mut self.root;
        for part in parents.into_iter().flat_map(|parents| parents.split('/')) {
            let key = unescape(part);
            at = match at {
                Value::Object(map) => map.get_mut(&*key).ok_or(Failed)?,
                Value::Array(items) => {
                    let i = existing(&key, items.len())?;
                    &mut items[i]
                }
                _ => return Err(Failed),
            };
        }
        if at.is_object() || at.is_array() { Ok((at, unescape(last))) } else { Err(Failed) }
    }

    fn get(&mut self, path: &str) -> Result<Value, Failed> {
        let (container, key) = self.find(path)?;
        match container {
            Value::Array(items) => Ok(items[existing(&key, items.len())?].clone()),
            container => Ok(container.get(&*key).cloned().unwrap_or_default()),
        }
    }

    fn add(&mut self, path: &str, value: Value) -> Result<(), Failed> {
        let (container, key) = self.find(path)?;
        match container {
            Value::Array(items) if key == "-" => items.push(value),
            Value::Array(items) => items.insert(index(&key, items.len() + 1)?, value),
            Value::Object(map) => drop(map.insert(key.into_owned(), value)),
            _ => return Err(Failed),
        }
        Ok(())
    }

    fn remove(&mut self, path: &str) -> Result<Value, Failed> {
        let (container, key) = self.find(path)?;
        match container {
            Value::Array(items) => Ok(items.remove(existing(&key, items.len())?)),
            Value::Object(map) => map.remove(&*key).ok_or(Failed),
            _ => Err(Failed),
        }
    }

    /// A key that an object has not is added all the same.
    fn replace(&mut self, path: &str, value: Value) -> Result<(), Failed> {
        if path.is_empty() {
            if !value.is_object() && !value.is_array() {
                return Err(Failed);
            }
            self.root = value;
            return Ok(());
        }
        let (container, key) = self.find(path)?;
        match container {
            Value::Array(items) => {
                let i = existing(&key, items.len())?;
                items[i] = value;
            }
            Value::Object(map) => drop(map.insert(key.into_owned(), value)),
            _ => return Err(Failed),
        }
        Ok(())
    }

    /// A key that is not there equals null.
    fn test(&mut self, path: &str, want: Option<&Value>) -> Result<(), Failed> {
        let want = want.unwrap_or(&Value::Null);
        let holds = if path.is_empty() { self.root == *want } else { self.get(path)? == *want };
        if holds { Ok(()) } else { Err(Failed) }
    }
}

/// An index into a list of that length; negative ones count from the end.
fn index(key: &str, length: usize) -> Result<usize, Failed> {
    let i: i64 = key.parse().map_err(|_| Failed)?;
    let i = if i < 0 { i + length as i64 } else { i };
    usize::try_from(i).ok().filter(|i| *i < length).ok_or(Failed)
}

fn existing(key: &str, length: usize) -> Result<usize, Failed> {
    index(key, length)
}

/// A key of a JSON pointer without its escapes.
fn unescape(key: &str) -> std::borrow::Cow<'_, str> {
    if !key.contains('~') {
        return key.into();
    }
    // In one pass: `~01` is `~1`, not `/`.
    let mut out = String::with_capacity(key.len());
    let mut rest = key;
    while let Some(at) = rest.find('~') {
        out.push_str(&rest[..at]);
        let (replaced, taken) = match rest[at..].as_bytes().get(1) {
            Some(b'1') => ('/', 2),
            Some(b'0') => ('~', 2),
            _ => ('~', 1),
        };
        out.push(replaced);
        rest = &rest[at + taken..];
    }
    out.push_str(rest);
    out.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn run(live: Value, patch: Value) -> Result<Value, u16> {
        apply(&live, patch.to_string().as_bytes(), true).map_err(|status| status.code)
    }

    #[test]
    fn operations_do_what_upstreams_library_does() {
        let live = json!({"a": {"b/c": 1, "l": [1, 2, 3]}, "n": null});
        for (patch, want) in [
            (json!([{"op": "add", "path": "/a/x", "value": 1}]), Ok(json!({"b/c": 1, "l": [1, 2, 3], "x": 1}))),
            (json!([{"op": "add", "path": "/a/x"}]), Ok(json!({"b/c": 1, "l": [1, 2, 3], "x": null}))),
            (json!([{"op": "add", "path": "/a/l/-", "value": 4}]), Ok(json!({"b/c": 1, "l": [1, 2, 3, 4]}))),
            (json!([{"op": "add", "path": "/a/l/01", "value": 4}]), Ok(json!({"b/c": 1, "l": [1, 4, 2, 3]}))),
            (json!([{"op": "add", "path": "/a/l/3", "value": 4}]), Ok(json!({"b/c": 1, "l": [1, 2, 3, 4]}))),
            (json!([{"op": "add", "path": "/a/l/-1", "value": 4}]), Ok(json!({"b/c": 1, "l": [1, 2, 3, 4]}))),
            (json!([{"op": "add", "path": "/a/l/5", "value": 4}]), Err(422)),
            (json!([{"op": "remove", "path": "/a/l/-1"}]), Ok(json!({"b/c": 1, "l": [1, 2]}))),
            (json!([{"op": "remove", "path": "/a/l/-4"}]), Err(422)),
            (json!([{"op": "remove", "path": "/a/none"}]), Err(422)),
            (json!([{"op": "replace", "path": "/a/b~1c", "value": 2}]), Ok(json!({"b/c": 2, "l": [1, 2, 3]}))),
            (json!([{"op": "replace", "path": "/a/new", "value": 2}]), Ok(json!({"b/c": 1, "l": [1, 2, 3], "new": 2}))),
            (json!([{"op": "replace", "path": "/a/l/9", "value": 2}]), Err(422)),
            (json!([{"op": "move", "from": "/a/l", "path": "/a/m"}]), Ok(json!({"b/c": 1, "m": [1, 2, 3]}))),
            (json!([{"op": "move", "from": "/a/none", "path": "/a/m"}]), Err(422)),
            (json!([{"op": "copy", "from": "/a/b~1c", "path": "/a/m"}]), Ok(json!({"b/c": 1, "l": [1, 2, 3], "m": 1}))),
            (json!([{"op": "test", "path": "/a/b~1c", "value": 1}]), Ok(json!({"b/c": 1, "l": [1, 2, 3]}))),
            (json!([{"op": "test", "path": "/a/b~1c", "value": 2}]), Err(422)),
            (json!([{"op": "test", "path": "/a/none", "value": null}]), Ok(json!({"b/c": 1, "l": [1, 2, 3]}))),
            (json!([{"op": "add", "path": "/n/x", "value": 1}]), Err(422)),
            (json!([{"op": "add", "path": "", "value": {}}]), Err(422)),
            (json!([{"op": "increase", "path": "/a"}]), Err(422)),
            (json!([{"path": "/a"}]), Err(422)),
            (json!([{"op": "add", "path": 5}]), Err(400)),
            (json!({"op": "add"}), Err(400)),
        ] {
            assert_eq!(run(live.clone(), patch.clone()).map(|v| v["a"].clone()), want, "{patch}");
        }
    }

    #[test]
    fn keys_are_unescaped_in_one_pass() {
        assert_eq!(unescape("a~01b~1~0"), "a~1b/~");
        assert_eq!(unescape("~"), "~");
    }

    #[test]
    fn patches_that_multiply_are_stopped() {
        let copy = json!({"op": "copy", "from": "/a", "path": "/a/x"});
        let bomb: Vec<Value> = (0..200).map(|_| copy.clone()).collect();
        assert_eq!(run(json!({"a": {"t": "x".repeat(1024)}}), bomb.into()), Err(422));
        let many: Vec<Value> = (0..10_001).map(|_| json!({"op": "test", "path": "/n", "value": null})).collect();
        assert_eq!(run(json!({"n": null}), many.into()), Err(413));
    }
}

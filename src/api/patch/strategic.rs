//! Strategic merge patch: merge keys, `$patch`, `$retainKeys`, `$setElementOrder`, `$deleteFromPrimitiveList`.
//!
//! Source of every rule: apimachinery `util/strategicpatch`. Maps merge by name; lists whose field says so merge by key or,
//! for scalars, as sets; everything else is replaced. Null deletes.

use std::collections::{HashMap, HashSet};

use crate::schema::{Facts, Field, Shape, Type};
use crate::status::{Details, Status};
use crate::{Map, Value};

const PATCH: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const SET_ORDER: &str = "$setElementOrder";
const DELETE_FROM: &str = "$deleteFromPrimitiveList";

/// Applies a strategic merge patch to an object of type `ty`.
///
/// # Errors
/// 400 for directives of a wrong form, 422 for lists of lists, 500 for missing merge keys and the like, as upstream answers.
pub fn apply(facts: &Facts, ty: &Type, live: &Value, patch: &Value) -> Result<Value, Status> {
    if ty.custom {
        return Err(Error::Unsupported.into());
    }
    let (live, patch) = (live.as_object().cloned().unwrap_or_default(), patch.as_object().cloned().unwrap_or_default());
    let merged = Merge { facts }.maps(live, patch, Schema::Struct(ty))?;
    Ok(merged.into())
}

/// Why a patch can't be applied, in upstream's words.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("strategic merge patch format is not supported")]
    Unsupported,
    #[error("invalid patch format of primitive list")]
    PrimitiveList,
    #[error("invalid patch format of retainKeys")]
    RetainKeys,
    #[error("invalid patch format of setElementOrder list")]
    SetOrder,
    #[error("lists of lists are not supported")]
    ListOfLists,
    #[error("{0}")]
    Other(String),
}

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        match error {
            Error::Unsupported | Error::PrimitiveList | Error::RetainKeys | Error::SetOrder => {
                Status::bad_request(error.to_string())
            }
            Error::ListOfLists => {
                let text = "the server rejected our request due to an error in our request";
                let mut status = Status::new(422, "Invalid", text);
                status.details = Some(Box::<Details>::default());
                status
            }
            Error::Other(why) => Status::new(500, "", why),
        }
    }
}

fn other<T>(why: impl Into<String>) -> Result<T, Error> {
    Err(Error::Other(why.into()))
}

fn no_merge_key<T>(map: &Map, key: &str) -> Result<T, Error> {
    other(format!("map: {} does not contain declared merge key: {key}", go_map(map)))
}

/// Go's `%v`.
fn go(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".into(),
        Value::String(s) => s.clone(),
        Value::Array(items) => go_list(items),
        Value::Object(map) => go_map(map),
        other => other.to_string(),
    }
}

fn go_list(items: &[Value]) -> String {
    format!("[{}]", items.iter().map(go).collect::<Vec<_>>().join(" "))
}

fn go_map(map: &Map) -> String {
    let entries: Vec<String> = map.iter().map(|(k, v)| format!("{k}:{}", go(v))).collect();
    format!("map[{}]", entries.join(" "))
}

/// Go's name for what a value decodes to.
fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "%!s(<nil>)",
        Value::Bool(_) => "bool",
        Value::Number(n) if n.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}

fn wrong_type<T>(expected: &str, value: &Value) -> Result<T, Error> {
    other(format!("expected a {expected}, but received a {}", go_type(value)))
}

fn list_or_wrong(value: Value) -> Result<Vec<Value>, Error> {
    match value {
        Value::Array(items) => Ok(items),
        value => wrong_type("[]interface {}", &value),
    }
}

fn map_or_wrong(value: &Value) -> Result<&Map, Error> {
    match value {
        Value::Object(map) => Ok(map),
        value => wrong_type("map[string]interface {}", value),
    }
}

/// What is known of the values of a map that is merged.
#[derive(Clone, Copy)]
enum Schema<'a> {
    Struct(&'a Type),
    /// Not a structure: Go's kind of it.
    Other(&'static str),
}

/// What is known of a field that is merged.
#[derive(Clone, Copy)]
struct Known<'a> {
    schema: Schema<'a>,
    merge: bool,
    key: &'a str,
}

struct Merge<'a> {
    facts: &'a Facts,
}

impl<'a> Merge<'a> {
    fn field(&self, schema: Schema<'a>, name: &str) -> Result<&'a Field, Error> {
        let ty = match schema {
            Schema::Struct(ty) => ty,
            Schema::Other(kind) => {
                return other(format!("merging an object in json but data type is not struct, instead is: {kind}"));
            }
        };
        let found = ty.field(name).or_else(|| ty.fields.iter().find(|f| f.name.eq_ignore_ascii_case(name)));
        found.ok_or_else(|| {
            let ty = ty.short_name();
            let name = crate::field::quote(name);
            Error::Other(format!("unable to find api field in struct {ty} for the json field {name}"))
        })
    }

    fn known_map(&self, schema: Schema<'a>, name: &str) -> Result<Known<'a>, Error> {
        let field = self.field(schema, name)?;
        Ok(Known { schema: self.schema_of(&field.shape), merge: field.patch_merge, key: &field.patch_merge_key })
    }

    fn known_list(&self, schema: Schema<'a>, name: &str) -> Result<Known<'a>, Error> {
        let field = self.field(schema, name)?;
        match &field.shape {
            Shape::List(items, _) => {
                Ok(Known { schema: self.schema_of(items), merge: field.patch_merge, key: &field.patch_merge_key })
            }
            Shape::Json | Shape::SchemaOr(..) | Shape::Bytes => {
                Ok(Known { schema: Schema::Other("slice"), merge: false, key: "" })
            }
            _ => other("expected slice or array type, but got: struct"),
        }
    }

    fn schema_of(&self, shape: &'a Shape) -> Schema<'a> {
        match shape {
            Shape::Struct(id) => Schema::Struct(self.facts.at(*id)),
            Shape::Map(_) => Schema::Other("map"),
            Shape::List(..) | Shape::Bytes => Schema::Other("slice"),
            Shape::String => Schema::Other("string"),
            Shape::Bool => Schema::Other("bool"),
            Shape::Int32 => Schema::Other("int32"),
            Shape::Int64 => Schema::Other("int64"),
            Shape::Double => Schema::Other("float64"),
            _ => Schema::Other("struct"),
        }
    }

    fn maps(&self, mut live: Map, mut patch: Map, schema: Schema<'a>) -> Result<Map, Error> {
        if let Some(directive) = patch.remove(PATCH) {
            return match directive.as_str() {
                Some("replace") => Ok(patch),
                Some("delete") => Ok(Map::new()),
                _ => {
                    patch.insert(PATCH.into(), directive.clone());
                    other(format!("unknown patch type: {} in map: {}", go(&directive), go_map(&patch)))
                }
            };
        }
        retain_keys(&mut live, &mut patch)?;
        self.ordered_lists(&mut live, &mut patch, schema)?;
        for (name, value) in patch {
            match name.strip_prefix(DELETE_FROM) {
                Some(rest) => self.delete_from(&mut live, rest, value, schema)?,
                None => self.entry(&mut live, name, value, schema)?,
            }
        }
        Ok(live)
    }

    /// `$deleteFromPrimitiveList/name`.
    fn delete_from(&self, live: &mut Map, rest: &str, value: Value, schema: Schema<'a>) -> Result<(), Error> {
        let name = rest.strip_prefix('/').ok_or(Error::PrimitiveList)?;
        if value.is_null() {
            live.remove(name);
            return Ok(());
        }
        let (Some(Value::Array(_)), Value::Array(value)) = (live.get(name), value) else { return Ok(()) };
        let known = self.known_list(schema, name)?;
        if let Some(have) = live.get_mut(name) {
            let list = list_or_wrong(have.take())?;
            *have = self.lists(list, value, known, true)?.into();
        }
        Ok(())
    }

    fn entry(&self, live: &mut Map, name: String, mut value: Value, schema: Schema<'a>) -> Result<(), Error> {
        if value.is_null() {
            live.remove(&name);
            return Ok(());
        }
        match (live.get_mut(&name), value) {
            (Some(Value::Object(have)), Value::Object(value)) => {
                let known = self.known_map(schema, &name)?;
                let merged = self.maps(std::mem::take(have), value, known.schema)?;
                live.insert(name, merged.into());
            }
            (Some(Value::Array(have)), Value::Array(value)) => {
                let known = self.known_list(schema, &name)?;
                let merged = self.merge_or_replace(std::mem::take(have), value, known)?;
                live.insert(name, merged.into());
            }
            (_, other) => {
                value = other;
                discard_nulls(&mut value);
                match without_directives(value) {
                    Some(value) => live.insert(name, value),
                    None => live.remove(&name),
                };
            }
        }
        Ok(())
    }

    fn merge_or_replace(&self, live: Vec<Value>, patch: Vec<Value>, known: Known<'a>) -> Result<Vec<Value>, Error> {
        if known.merge { self.lists(live, patch, known, false) } else { Ok(patch) }
    }

    /// `$setElementOrder/name`: lists that also come with the order of their items.
    fn ordered_lists(&self, live: &mut Map, patch: &mut Map, schema: Schema<'a>) -> Result<(), Error> {
        let directives: Vec<String> = patch.keys().filter(|k| k.starts_with(SET_ORDER)).cloned().collect();
        for directive in directives {
            let order = list_or_wrong(patch.remove(&directive).unwrap_or_default())?;
            let name = directive[SET_ORDER.len()..].strip_prefix('/').ok_or(Error::SetOrder)?;
            let have = live.get(name).cloned().map(list_or_wrong).transpose()?;
            let items = patch.get(name).cloned().map(list_or_wrong).transpose()?;
            let known = self.known_list(schema, name)?;
            check_order(items.as_deref().unwrap_or_default(), &order, known.key)?;
            let both: Vec<Value> = have.iter().chain(&items).flatten().cloned().collect();
            let before = have.clone().unwrap_or_default();
            let merged = match (have, items) {
                (None, None) => continue,
                (Some(have), None) => have,
                (None, Some(items)) => items.into_iter().filter_map(without_directives).collect(),
                (Some(have), Some(items)) => self.merge_or_replace(have, items, known)?,
            };
            let (ours, theirs) = split(merged, &order, known.key)?;
            let maps = are_maps(&both)?;
            let ordered = order_items(ours, theirs, &order, &before, known.key, maps)?;
            live.insert(name.to_string(), ordered.into());
            patch.remove(name);
        }
        Ok(())
    }

    fn lists(&self, live: Vec<Value>, patch: Vec<Value>, known: Known<'a>, delete: bool) -> Result<Vec<Value>, Error> {
        if live.is_empty() && patch.is_empty() {
            return Ok(live);
        }
        let maps = are_maps_of(live.iter().chain(&patch), || format!("[{} {}]", go_list(&live), go_list(&patch)))?;
        if !maps {
            if delete {
                return Ok(live.into_iter().filter(|item| !patch.contains(item)).collect());
            }
            let mut merged: Vec<Value> = Vec::with_capacity(live.len() + patch.len());
            let mut seen = HashSet::new();
            merged.extend(live.iter().chain(&patch).filter(|item| seen.insert(item.to_string())).cloned());
            let (ours, theirs) = split(merged, &patch, known.key)?;
            return order_items(ours, theirs, &patch, &live, known.key, false);
        }
        if known.key.is_empty() {
            let kind = match known.schema {
                Schema::Struct(_) => "struct",
                Schema::Other(kind) => kind,
            };
            return other(format!("cannot merge lists without merge key for {kind}"));
        }
        let (before, patch) = special_items(live, patch, known.key)?;
        let (merged, before) = self.keyed_items(before, &patch, known)?;
        let (ours, theirs) = split(merged, &patch, known.key)?;
        order_items(ours, theirs, &patch, &before, known.key, true)
    }

    /// Merges items by key; returns also the list as it was but for its items' contents.
    fn keyed_items(
        &self, mut live: Vec<Value>, patch: &[Value], known: Known<'a>,
    ) -> Result<(Vec<Value>, Vec<Value>), Error> {
        let length = live.len();
        for item in patch {
            let map = map_or_wrong(item)?;
            let Some(key) = map.get(known.key) else { return no_merge_key(map, known.key) };
            match find(&live, known.key, key)? {
                Some(at) => {
                    let Value::Object(have) = live[at].take() else { continue };
                    live[at] = self.maps(have, map.clone(), known.schema)?.into();
                }
                None => live.push(item.clone()),
            }
        }
        let before = live[..length].to_vec();
        Ok((live, before))
    }
}

/// Takes out of the list what the patch deletes, and of the patch what are directives. A `replace` makes the patch's items
/// the list.
fn special_items(mut live: Vec<Value>, patch: Vec<Value>, key: &str) -> Result<(Vec<Value>, Vec<Value>), Error> {
    let mut rest = Vec::with_capacity(patch.len());
    let mut replace = false;
    for item in patch {
        let map = map_or_wrong(&item)?;
        match map.get(PATCH) {
            None => rest.push(item),
            Some(Value::String(directive)) if directive == "delete" => {
                let Some(value) = map.get(key) else { return no_merge_key(map, key) };
                while let Some(at) = find(&live, key, value)? {
                    live.remove(at);
                }
            }
            Some(Value::String(directive)) if directive == "replace" => replace = true,
            Some(Value::String(directive)) if directive == "merge" => {
                return other("merging lists cannot yet be specified in the patch");
            }
            Some(directive) => {
                return other(format!("unknown patch type: {} in map: {}", go(directive), go_map(map)));
            }
        }
    }
    Ok(if replace { (rest, Vec::new()) } else { (live, rest) })
}

/// Position of the item whose key has that value.
fn find(items: &[Value], key: &str, value: &Value) -> Result<Option<usize>, Error> {
    for (i, item) in items.iter().enumerate() {
        match item {
            Value::Object(map) if map.get(key) == Some(value) => return Ok(Some(i)),
            Value::Object(_) => {}
            _ => return other(format!("value for key {i} is not a map")),
        }
    }
    Ok(None)
}

/// Whether the items are maps; all must be of one type.
fn are_maps(items: &[Value]) -> Result<bool, Error> {
    are_maps_of(items.iter(), || go_list(items))
}

fn are_maps_of<'v>(items: impl Iterator<Item = &'v Value>, show: impl Fn() -> String) -> Result<bool, Error> {
    let mut first: Option<&Value> = None;
    for item in items {
        match first {
            None if item.is_array() => return Err(Error::ListOfLists),
            None => first = Some(item),
            Some(first) if go_type(first) != go_type(item) => {
                return other(format!("list element types are not identical: {}", show()));
            }
            Some(_) => {}
        }
    }
    match first {
        Some(item) => Ok(item.is_object()),
        None => other("no elements in any of the given slices"),
    }
}

/// Parts a list into the items that another list has too, and the rest.
fn split(items: Vec<Value>, by: &[Value], key: &str) -> Result<(Vec<Value>, Vec<Value>), Error> {
    let known: HashSet<String> = if key.is_empty() {
        by.iter().map(Value::to_string).collect()
    } else {
        by.iter().filter_map(|item| Some(item.get(key)?.to_string())).collect()
    };
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for item in items {
        let listed = if key.is_empty() {
            known.contains(&item.to_string())
        } else {
            let map = map_or_wrong(&item)?;
            let Some(value) = map.get(key) else { return no_merge_key(map, key) };
            known.contains(&value.to_string())
        };
        if listed { ours.push(item) } else { theirs.push(item) }
    }
    Ok((ours, theirs))
}

/// First positions in a list, by key or value.
struct Order(HashMap<String, usize>);

impl Order {
    fn new(items: &[Value], key: &str, maps: bool) -> Self {
        let mut positions = HashMap::with_capacity(items.len());
        for (i, item) in items.iter().enumerate() {
            positions.entry(Self::name(item, key, maps)).or_insert(i);
        }
        Self(positions)
    }

    fn name(item: &Value, key: &str, maps: bool) -> String {
        match item.get(key) {
            Some(value) if maps => value.to_string(),
            _ if maps => Value::Null.to_string(),
            _ => item.to_string(),
        }
    }

    fn of(&self, item: &Value, key: &str, maps: bool) -> Option<usize> {
        self.0.get(&Self::name(item, key, maps)).copied()
    }
}

/// Sorts the patch's items as the patch has them and the others as the server had them, then merges the two: the server's
/// order decides where both are known, else the patch's items come first.
fn order_items(
    ours: Vec<Value>, theirs: Vec<Value>, patch: &[Value], server: &[Value], key: &str, maps: bool,
) -> Result<Vec<Value>, Error> {
    let (by_patch, by_server) = (Order::new(patch, key, maps), Order::new(server, key, maps));
    if maps {
        for map in [&ours, &theirs].into_iter().flatten().chain(patch).chain(server) {
            let map = map_or_wrong(map)?;
            if !map.contains_key(key) {
                return no_merge_key(map, key);
            }
        }
    }
    let sorted = |items: Vec<Value>, order: &Order| {
        let mut placed: Vec<(usize, Value)> =
            items.into_iter().map(|item| (order.of(&item, key, maps).unwrap_or(usize::MAX), item)).collect();
        placed.sort_by_key(|(at, _)| *at);
        placed.into_iter().map(|(_, item)| item)
    };
    let mut ours = sorted(ours, &by_patch).peekable();
    let mut theirs = sorted(theirs, &by_server).peekable();
    let mut out = Vec::new();
    loop {
        let server_first = match (theirs.peek(), ours.peek()) {
            (None, None) => return Ok(out),
            (Some(_), None) => true,
            (None, Some(_)) => false,
            (Some(a), Some(b)) => match (by_server.of(a, key, maps), by_server.of(b, key, maps)) {
                (Some(a), Some(b)) => a < b,
                _ => false,
            },
        };
        out.extend(if server_first { theirs.next() } else { ours.next() });
    }
}

/// The patch's items must stand in the order that the directive gives.
fn check_order(items: &[Value], order: &[Value], key: &str) -> Result<(), Error> {
    if items.is_empty() || order.is_empty() {
        return Ok(());
    }
    let is_deletion = |item: &Value| item.get(PATCH).is_some_and(|d| d == "delete");
    if !key.is_empty() {
        for item in items {
            map_or_wrong(item)?;
        }
    }
    let mut left = items.iter().filter(|item| key.is_empty() || !is_deletion(item)).peekable();
    let mut order_left = order.iter();
    while let Some(item) = left.peek() {
        if item.get(PATCH).is_some() {
            left.next();
            continue;
        }
        let Some(next) = order_left.next() else {
            return other(format!(
                "The order in patch list:\n{}\n doesn't match {SET_ORDER} list:\n{}\n",
                go_list(items),
                go_list(order)
            ));
        };
        if same_key(item, next, key)? {
            left.next();
        }
    }
    Ok(())
}

fn same_key(left: &Value, right: &Value, key: &str) -> Result<bool, Error> {
    if key.is_empty() {
        return Ok(left == right);
    }
    let (left, right) = (map_or_wrong(left)?, map_or_wrong(right)?);
    match (left.get(key), right.get(key)) {
        (None, _) => no_merge_key(left, key),
        (_, None) => no_merge_key(right, key),
        (a, b) => Ok(a == b),
    }
}

/// `$retainKeys`: what is not listed goes.
fn retain_keys(live: &mut Map, patch: &mut Map) -> Result<(), Error> {
    let Some(keys) = patch.remove(RETAIN_KEYS) else { return Ok(()) };
    let Value::Array(keys) = keys else { return Err(Error::RetainKeys) };
    let keys: HashSet<&str> = keys.iter().filter_map(Value::as_str).collect();
    for (name, value) in patch.iter() {
        let directive = name.starts_with(DELETE_FROM) || name.starts_with(SET_ORDER);
        if !value.is_null() && !directive && !keys.contains(name.as_str()) {
            return Err(Error::RetainKeys);
        }
    }
    live.retain(|name, _| keys.contains(name.as_str()));
    Ok(())
}

/// A new value without the parts that are directives; `None` when it is one itself.
fn without_directives(value: Value) -> Option<Value> {
    match value {
        Value::Object(map) if map.contains_key(PATCH) => None,
        Value::Object(map) => {
            let kept = map.into_iter().filter_map(|(name, value)| Some((name, without_directives(value)?)));
            Some(Value::Object(kept.collect()))
        }
        Value::Array(items) => Some(items.into_iter().filter_map(without_directives).collect()),
        value => Some(value),
    }
}

fn discard_nulls(value: &mut Value) {
    match value {
        Value::Object(map) => map.retain(|_, value| {
            discard_nulls(value);
            !value.is_null()
        }),
        Value::Array(items) => items.iter_mut().for_each(discard_nulls),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::builtin;
    use serde_json::json;

    fn pod(live: Value, patch: Value) -> Result<Value, (u16, String)> {
        let ty = builtin().kind("", "v1", "Pod").expect("Pod is built in");
        let live = json!({ "spec": live });
        let merged = apply(builtin(), ty, &live, &json!({ "spec": patch }));
        merged.map(|object| object["spec"].clone()).map_err(|status| (status.code, status.message))
    }

    fn names(spec: &Value) -> Vec<&str> {
        spec["containers"].as_array().into_iter().flatten().filter_map(|c| c["name"].as_str()).collect()
    }

    fn container(name: &str) -> Value {
        json!({"name": name, "image": "i"})
    }

    #[test]
    fn lists_merge_by_key_with_the_patchs_new_items_first() {
        let live = json!({"containers": [container("a"), container("b")]});
        let patch = json!({"containers": [{"name": "c", "image": "x"}, {"name": "a", "image": "y"}]});
        let merged = pod(live, patch).unwrap();
        assert_eq!(names(&merged), ["c", "a", "b"]);
        assert_eq!(merged["containers"][1], json!({"name": "a", "image": "y"}));
    }

    #[test]
    fn items_are_deleted_and_lists_replaced_by_directive() {
        let live = json!({"containers": [container("a"), container("b")]});
        let merged = pod(live.clone(), json!({"containers": [{"name": "a", "$patch": "delete"}]})).unwrap();
        assert_eq!(names(&merged), ["b"]);
        let merged = pod(live.clone(), json!({"containers": [container("z"), {"$patch": "replace"}]})).unwrap();
        assert_eq!(names(&merged), ["z"]);
        let refused = pod(live, json!({"containers": [{"image": "x"}]})).unwrap_err();
        assert_eq!(refused, (500, "map: map[image:x] does not contain declared merge key: name".into()));
    }

    #[test]
    fn order_is_set_by_directive() {
        let live = json!({"containers": [container("a"), container("b"), container("c")]});
        let order = json!([{"name": "c"}, {"name": "a"}, {"name": "b"}]);
        let merged = pod(live.clone(), json!({"$setElementOrder/containers": order})).unwrap();
        assert_eq!(names(&merged), ["c", "a", "b"]);
        let patch = json!({
            "$setElementOrder/containers": [{"name": "x"}, {"name": "b"}],
            "containers": [{"name": "x", "image": "i"}],
        });
        assert_eq!(names(&pod(live.clone(), patch).unwrap()), ["x", "a", "b", "c"]);
        let patch = json!({"$setElementOrder/containers": [{"name": "x"}], "containers": [{"name": "y"}]});
        let want = "The order in patch list:\n[map[name:y]]\n doesn't match $setElementOrder list:\n[map[name:x]]\n";
        assert_eq!(pod(live, patch).unwrap_err(), (500, want.into()));
    }

    #[test]
    fn keys_are_retained_by_directive() {
        let live = json!({"volumes": [{"name": "v", "emptyDir": {}}]});
        let patch = json!({"volumes": [{"$retainKeys": ["name", "hostPath"], "name": "v", "hostPath": {"path": "/"}}]});
        let merged = pod(live.clone(), patch).unwrap();
        assert_eq!(merged["volumes"], json!([{"name": "v", "hostPath": {"path": "/"}}]));
        let patch = json!({"volumes": [{"$retainKeys": ["name"], "name": "v", "hostPath": {"path": "/"}}]});
        assert_eq!(pod(live, patch).unwrap_err(), (400, "invalid patch format of retainKeys".into()));
    }

    #[test]
    fn scalars_merge_as_sets_and_are_deleted_by_directive() {
        let ty = builtin().kind("", "v1", "ConfigMap").unwrap();
        let live = json!({"metadata": {"finalizers": ["x/a", "x/b"]}});
        let run = |patch: Value| {
            apply(builtin(), ty, &live, &json!({ "metadata": patch })).map(|o| o["metadata"]["finalizers"].clone())
        };
        assert_eq!(run(json!({"finalizers": ["x/c", "x/b"]})).unwrap(), json!(["x/c", "x/a", "x/b"]));
        assert_eq!(run(json!({"$deleteFromPrimitiveList/finalizers": ["x/a"]})).unwrap(), json!(["x/b"]));
        assert_eq!(run(json!({"$deleteFromPrimitiveListfinalizers": ["x/a"]})).unwrap_err().code, 400);
        assert_eq!(run(json!({"finalizers": null})).unwrap(), Value::Null);
    }

    #[test]
    fn new_values_lose_nulls_and_directives() {
        let patch = json!({"nodeSelector": {"a": null, "b": "c"}, "securityContext": {"$patch": "delete"}});
        assert_eq!(pod(json!({}), patch).unwrap(), json!({"nodeSelector": {"b": "c"}}));
        assert_eq!(pod(json!({"hostNetwork": true}), json!({"hostNetwork": null})).unwrap(), json!({}));
    }

    #[test]
    fn maps_are_replaced_or_emptied_by_directive() {
        let live = json!({"nodeSelector": {"a": "b"}});
        let merged = pod(live.clone(), json!({"nodeSelector": {"$patch": "replace", "c": "d"}})).unwrap();
        assert_eq!(merged["nodeSelector"], json!({"c": "d"}));
        let merged = pod(live.clone(), json!({"nodeSelector": {"$patch": "delete"}})).unwrap();
        assert_eq!(merged["nodeSelector"], json!({}));
        let refused = pod(live, json!({"nodeSelector": {"$patch": "x"}})).unwrap_err();
        assert_eq!(refused, (500, "unknown patch type: x in map: map[$patch:x]".into()));
    }
}

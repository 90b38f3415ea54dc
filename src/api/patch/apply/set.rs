//! Sets of field paths in the very form of `FieldsV1`: a tree of JSON objects whose keys are [steps](super::element).
//!
//! A node is a member of the set when it has the key `.` or no keys at all; its other keys are what is below. Working on
//! this form means that ownership that does not change is neither decoded nor encoded.

use super::element;
use crate::{Map, Value};

const SELF: &str = ".";

/// A set of paths. The root is the empty path, which is never a member.
pub(super) type Set = Map;

fn is_member(node: &Map) -> bool {
    node.is_empty() || node.contains_key(SELF)
}

fn object(node: &Value) -> Option<&Map> {
    node.as_object()
}

/// Adds a node that is not there yet; one that is no member and has nothing below is left out.
pub(super) fn insert(set: &mut Set, step: String, mut below: Map, member: bool) {
    if below.is_empty() && !member {
        return;
    }
    if member && !below.is_empty() {
        below.insert(SELF.into(), Map::new().into());
    }
    set.insert(step, below.into());
}

/// Adds all paths of another set.
pub(super) fn union(into: &mut Set, from: Set) {
    for (step, node) in from {
        match (into.get_mut(&step), node) {
            (Some(Value::Object(have)), Value::Object(more)) => union_node(have, more),
            (_, node) => {
                into.insert(step, node);
            }
        }
    }
}

fn union_node(have: &mut Map, more: Map) {
    let member = is_member(have) || is_member(&more);
    union(have, more);
    if member && !have.is_empty() {
        have.insert(SELF.into(), Map::new().into());
    }
}

/// Takes the paths of another set away; what is below a path stays.
pub(super) fn subtract(from: &mut Set, what: &Set) {
    if what.is_empty() {
        return;
    }
    from.retain(|step, node| match (node, what.get(step).and_then(object)) {
        (Value::Object(node), Some(less)) => subtract_node(node, less, false),
        _ => true,
    });
}

/// Takes the paths of another set away, with all that is below them.
pub(super) fn subtract_deep(from: &mut Set, what: &Set) {
    from.retain(|step, node| match (node, what.get(step).and_then(object)) {
        (Value::Object(_), Some(less)) if is_member(less) => false,
        (Value::Object(node), Some(less)) => subtract_node(node, less, true),
        _ => true,
    });
}

/// Returns whether anything is left.
fn subtract_node(node: &mut Map, less: &Map, deep: bool) -> bool {
    let member = is_member(node) && !is_member(less);
    node.remove(SELF);
    if deep {
        subtract_deep(node, less)
    } else {
        subtract(node, less)
    }
    if node.is_empty() {
        return member;
    }
    if member {
        node.insert(SELF.into(), Map::new().into());
    }
    true
}

/// The paths that are in both.
pub(super) fn intersection(a: &Set, b: &Set) -> Set {
    let mut out = Set::new();
    for (step, x) in a.iter().filter(|(step, _)| *step != SELF) {
        if let (Some(x), Some(y)) = (object(x), b.get(step).and_then(object)) {
            insert(&mut out, step.clone(), intersection(x, y), is_member(x) && is_member(y));
        }
    }
    out
}

/// Keeps what lies at, above or below one of these paths of names, where `*` is any step.
pub(super) fn keep_only(set: &mut Set, paths: &[&[&str]]) {
    let fits = |step: &str, first: &str| first == "*" || step.strip_prefix("f:") == Some(first);
    set.retain(|step, node| {
        let tails: Vec<&[&str]> = paths
            .iter()
            .filter_map(|path| path.split_first())
            .filter(|(first, _)| fits(step, first))
            .map(|(_, tail)| tail)
            .collect();
        match node {
            Value::Object(_) if tails.is_empty() => false,
            Value::Object(_) if tails.iter().any(|tail| tail.is_empty()) => true,
            Value::Object(node) => {
                let member = is_member(node);
                node.remove(SELF);
                keep_only(node, &tails);
                if member && !node.is_empty() {
                    node.insert(SELF.into(), Map::new().into());
                }
                member || !node.is_empty()
            }
            _ => false,
        }
    });
}

/// A set of paths of names.
pub(super) fn of_names(paths: &[&[&str]]) -> Set {
    let mut set = Set::new();
    for path in paths {
        union(&mut set, of_path(path));
    }
    set
}

fn of_path(path: &[&str]) -> Set {
    let mut set = Set::new();
    if let Some((first, rest)) = path.split_first() {
        insert(&mut set, element::field(first), of_path(rest), rest.is_empty());
    }
    set
}

/// True when this path of names is a member.
pub(super) fn has(set: &Set, path: &[&str]) -> bool {
    let mut at = set;
    for name in path {
        match at.get(&element::field(name)).and_then(object) {
            Some(node) => at = node,
            None => return false,
        }
    }
    is_member(at) && !path.is_empty()
}

/// The paths in readable form, members of a level before what is below it, as upstream lists them.
pub(super) fn readable(set: &Set) -> Vec<String> {
    let mut out = Vec::new();
    list(set, "", &mut out);
    out
}

fn list(set: &Set, prefix: &str, out: &mut Vec<String>) {
    let mut steps: Vec<(&String, &Map)> =
        set.iter().filter(|(step, _)| *step != SELF).filter_map(|(step, node)| Some((step, object(node)?))).collect();
    steps.sort_by(|a, b| element::compare(a.0, b.0));
    for (step, _) in steps.iter().filter(|(_, node)| is_member(node)) {
        out.push(format!("{prefix}{}", element::readable(step)));
    }
    for (step, node) in steps {
        if !node.is_empty() {
            list(node, &format!("{prefix}{}", element::readable(step)), out);
        }
    }
}

/// A set as a client sent it, in canonical form.
///
/// # Errors
/// A key that is no step.
pub(super) fn canonical(fields: &Value) -> Result<Set, String> {
    let mut out = Set::new();
    for (step, node) in fields.as_object().into_iter().flatten().filter(|(step, _)| *step != SELF) {
        let Some(step) = element::canonical(step)? else { continue };
        let below = canonical(node)?;
        let member = node.get(SELF).is_some() || below.is_empty();
        let mut one = Set::new();
        insert(&mut one, step, below, member);
        union(&mut out, one);
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn set(value: Value) -> Set {
        value.as_object().cloned().unwrap_or_default()
    }

    #[test]
    fn algebra_on_members_leaves_what_is_below() {
        let a = set(json!({"f:spec": {".": {}, "f:x": {}, "f:y": {"f:z": {}}}, "f:data": {}}));
        let mut less = a.clone();
        subtract(&mut less, &set(json!({"f:spec": {}, "f:data": {"f:q": {}}})));
        assert_eq!(Value::from(less), json!({"f:spec": {"f:x": {}, "f:y": {"f:z": {}}}, "f:data": {}}));
        let mut deep = a.clone();
        subtract_deep(&mut deep, &set(json!({"f:spec": {}})));
        assert_eq!(Value::from(deep), json!({"f:data": {}}));
        let both = intersection(&a, &set(json!({"f:spec": {"f:x": {}}, "f:data": {".": {}, "f:k": {}}})));
        assert_eq!(Value::from(both), json!({"f:spec": {"f:x": {}}, "f:data": {}}));
        assert_eq!(readable(&a), [".data", ".spec", ".spec.x", ".spec.y.z"]);
    }

    #[test]
    fn filters_keep_what_they_name() {
        let mut a = set(json!({"f:spec": {
            "f:containers": {"k:{\"name\":\"c\"}": {".": {}, "f:image": {}, "f:resources": {"f:limits": {}}}},
            "f:nodeName": {},
        }}));
        keep_only(&mut a, &[&["spec", "containers", "*", "resources"]]);
        let want =
            json!({"f:spec": {"f:containers": {"k:{\"name\":\"c\"}": {".": {}, "f:resources": {"f:limits": {}}}}}});
        assert_eq!(Value::from(a), want);
    }

    fn sets() -> impl Strategy<Value = Set> {
        let leaf = Just(Value::Object(Map::new()));
        let node = leaf.prop_recursive(3, 24, 4, |inner| {
            (prop::collection::btree_map("f:[a-c]", inner, 0..4), any::<bool>()).prop_map(|(below, member)| {
                let mut out = Set::new();
                insert(&mut out, "x".into(), below.into_iter().collect(), member);
                out.remove("x").unwrap_or_else(|| Value::Object(Map::new()))
            })
        });
        prop::collection::btree_map("f:[a-c]", node, 0..4).prop_map(|m| m.into_iter().collect())
    }

    proptest! {
        #[test]
        fn laws_of_sets_hold(a in sets(), b in sets()) {
            let mut both = a.clone();
            union(&mut both, b.clone());
            let mut other = b.clone();
            union(&mut other, a.clone());
            prop_assert_eq!(&both, &other);
            let mut rest = both.clone();
            subtract(&mut rest, &b);
            prop_assert!(intersection(&rest, &b).is_empty());
            union(&mut rest, intersection(&both, &b));
            prop_assert_eq!(rest, both);
            prop_assert_eq!(canonical(&Value::from(a.clone())).unwrap(), a);
        }
    }
}

//! Merging an applied configuration into a live object, and taking fields out of an object.

use std::collections::{HashMap, HashSet};

use super::element;
use super::set::Set;
use super::typed::{Fault, Kind, list, map, zip};
use crate::schema::Facts;
use crate::{Map, Value};

/// `right` merged into `left`; absent when neither has anything.
///
/// # Errors
/// Lists whose items can't be told apart.
pub(super) fn merge<'a>(
    facts: &'a Facts, kind: Kind<'a>, left: Option<&'a Value>, right: Option<&'a Value>,
) -> Result<Option<Value>, Fault> {
    // What has no schema and changes its type becomes what the right one is.
    let kind = if right.is_some() { kind.for_value(right) } else { kind.for_value(left) };
    if kind.is_granular_map() {
        merge_maps(facts, kind, left, right)
    } else if kind.is_associative() {
        merge_lists(facts, kind, left, right)
    } else {
        Ok(right.or(left).cloned())
    }
}

fn merge_maps<'a>(
    facts: &'a Facts, kind: Kind<'a>, left: Option<&'a Value>, right: Option<&'a Value>,
) -> Result<Option<Value>, Fault> {
    let (l, r) = (map(left), map(right));
    if l.is_none_or(Map::is_empty) && r.is_none_or(Map::is_empty) {
        return Ok(right.or(left).cloned());
    }
    let mut out = Map::new();
    zip(l, r, |name, x, y| {
        let merged = merge(facts, kind.child(facts, name).0, x, y).map_err(|e| e.below(&element::field(name)))?;
        if let Some(value) = merged {
            out.insert(name.to_string(), value);
        }
        Ok(())
    })?;
    Ok((!out.is_empty()).then(|| out.into()))
}

/// Items of one side: their steps in order, and the item behind each step; null behind one that is there twice.
struct Items<'a> {
    steps: Vec<String>,
    by_step: HashMap<String, &'a Value>,
}

impl<'a> Items<'a> {
    fn new(facts: &'a Facts, kind: Kind<'a>, items: &'a [Value], repeats: bool) -> Result<Self, Fault> {
        let mut out = Self { steps: Vec::with_capacity(items.len()), by_step: HashMap::with_capacity(items.len()) };
        for (i, item) in items.iter().enumerate() {
            let step = kind.step(facts, item).map_err(|e| Fault::new(format!("element {i}: {e}")))?;
            if let Some(have) = out.by_step.get_mut(&step) {
                if !repeats {
                    return Err(Fault::new(format!("duplicate entries for key {}", element::readable(&step))));
                }
                *have = &Value::Null;
            } else {
                out.by_step.insert(step.clone(), item);
            }
            out.steps.push(step);
        }
        Ok(out)
    }

    fn has(&self, step: &str) -> bool {
        self.by_step.contains_key(step)
    }
}

/// The order is the right side's, with items that only the left side has kept where they stood among their neighbours.
fn merge_lists<'a>(
    facts: &'a Facts, kind: Kind<'a>, left: Option<&'a Value>, right: Option<&'a Value>,
) -> Result<Option<Value>, Fault> {
    let (l, r) = (list(left), list(right));
    if l.is_none_or(<[_]>::is_empty) && r.is_none_or(<[_]>::is_empty) {
        return Ok(right.or(left).cloned());
    }
    let r = Items::new(facts, kind, r.unwrap_or_default(), false)?;
    let l_items = l.unwrap_or_default();
    let l = Items::new(facts, kind, l_items, true)?;
    let mut out = Vec::with_capacity(l.steps.len().max(r.steps.len()));
    let of = kind.items(facts);
    let mut push = |step: &str, x: Option<&'a Value>, y: Option<&'a Value>| -> Result<(), Fault> {
        out.extend(merge(facts, of, x, y).map_err(|e| e.below(step))?);
        Ok(())
    };
    let mut shared = r.steps.iter().filter(|step| l.has(step));
    let mut next_shared = shared.next();
    let mut merged: HashSet<&str> = HashSet::new();
    let (mut i, mut j) = (0, 0);
    while i < l.steps.len() || j < r.steps.len() {
        if let (Some(x), Some(y)) = (l.steps.get(i), r.steps.get(j)) {
            if x == y {
                merged.insert(x);
                push(x, l.by_step.get(x).copied(), r.by_step.get(x).copied())?;
                (i, j) = (i + 1, j + 1);
                next_shared = shared.next();
                continue;
            }
            // The left item comes later, where the right side has it.
            if r.has(x) && next_shared.is_some_and(|next| next != x) {
                i += 1;
                continue;
            }
        }
        if let Some(x) = l.steps.get(i) {
            if !r.has(x) {
                push(x, Some(&l_items[i]), None)?;
                i += 1;
                continue;
            }
            if merged.contains(x.as_str()) {
                i += 1;
            }
        }
        if let Some(y) = r.steps.get(j) {
            merged.insert(y);
            push(y, l.by_step.get(y).copied(), r.by_step.get(y).copied())?;
            j += 1;
            if next_shared == Some(y) {
                next_shared = shared.next();
            }
        }
    }
    Ok((!out.is_empty()).then(|| out.into()))
}

/// The value without the fields of a set. What loses all it has becomes null.
pub(super) fn remove<'a>(facts: &'a Facts, kind: Kind<'a>, value: &'a Value, what: &Set) -> Value {
    let kind = kind.for_value(Some(value));
    if kind.is_granular_map() {
        remove_from_map(facts, kind, value, what)
    } else if kind.is_associative() {
        remove_from_list(facts, kind, value, what)
    } else if matches!(kind, Kind::Scalar(_)) {
        value.clone()
    } else {
        Value::Null
    }
}

fn is_exact(node: Option<&Value>) -> bool {
    node.and_then(Value::as_object).is_some_and(|n| n.is_empty() || n.contains_key("."))
}

/// What of the set lies below a node, if anything does.
fn below(node: Option<&Value>) -> Option<&Set> {
    let node = node?.as_object()?;
    node.keys().any(|step| step != ".").then_some(node)
}

fn remove_from_map<'a>(facts: &'a Facts, kind: Kind<'a>, value: &'a Value, what: &Set) -> Value {
    let mut out = Map::new();
    for (name, child) in map(Some(value)).into_iter().flatten() {
        let node = what.get(&element::field(name));
        if is_exact(node) {
            continue;
        }
        let child = match below(node) {
            Some(what) => remove(facts, kind.child(facts, name).0, child, what),
            None => child.clone(),
        };
        out.insert(name.clone(), child);
    }
    if out.is_empty() { Value::Null } else { out.into() }
}

fn remove_from_list<'a>(facts: &'a Facts, kind: Kind<'a>, value: &'a Value, what: &Set) -> Value {
    let mut out = Vec::new();
    for item in list(Some(value)).unwrap_or_default() {
        let node = kind.step(facts, item).ok().and_then(|step| what.get(&step));
        if is_exact(node) {
            continue;
        }
        out.push(match below(node) {
            Some(what) => remove(facts, kind.items(facts), item, what),
            None => item.clone(),
        });
    }
    if out.is_empty() { Value::Null } else { out.into() }
}

/// Adds the fields that the schema names and that have something below them: they are owned with what they hold.
pub(super) fn with_named_fields<'a>(facts: &'a Facts, kind: Option<Kind<'a>>, set: &Set) -> Set {
    let mut out = Set::new();
    for (step, node) in set.iter().filter(|(step, _)| *step != ".") {
        let Some(node) = node.as_object() else { continue };
        let (of, named) = match (step.strip_prefix("f:"), kind) {
            (Some(name), Some(kind)) if kind.is_any_map() => {
                let (of, named) = kind.child(facts, name);
                (Some(of), named)
            }
            (None, Some(kind @ Kind::Keyed(..))) if step.starts_with("k:") => (Some(kind.items(facts)), false),
            _ => (None, false),
        };
        let member = named || node.is_empty() || node.contains_key(".");
        super::set::insert(&mut out, step.clone(), with_named_fields(facts, of, node), member);
    }
    out
}

//! What differs between two objects, and which fields an object has, both as sets of paths.

use std::collections::BTreeMap;

use super::element;
use super::set::{self, Set};
use super::typed::{Fault, Kind, equal, list, map, zip};
use crate::Value;
use crate::schema::Facts;

/// The difference between two objects.
#[derive(Debug, Default)]
pub(super) struct Diff {
    /// Fields that the right one has and the left one has not, or has otherwise.
    pub touched: Set,
    /// Fields that only the left one has.
    pub removed: Set,
}

impl Diff {
    pub(super) fn is_empty(&self) -> bool {
        self.touched.is_empty() && self.removed.is_empty()
    }
}

/// What happened to a node as a whole.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mark {
    Same,
    Touched,
    Removed,
}

fn leaf(left: Option<&Value>, right: Option<&Value>) -> Mark {
    match (left, right) {
        (None, _) => Mark::Touched,
        (_, None) => Mark::Removed,
        (Some(l), Some(r)) if equal(l, r) => Mark::Same,
        _ => Mark::Touched,
    }
}

fn presence(left: Option<&Value>, right: Option<&Value>) -> Mark {
    match (left, right) {
        (None, _) => Mark::Touched,
        (_, None) => Mark::Removed,
        _ => Mark::Same,
    }
}

/// Compares two objects of one kind.
///
/// # Errors
/// A list with items that can't be told apart.
pub(super) fn compare(facts: &Facts, kind: Kind<'_>, left: &Value, right: &Value) -> Result<Diff, Fault> {
    let mut diff = Diff::default();
    Comparison { facts }.node(Some(left), Some(right), kind, &mut diff)?;
    Ok(diff)
}

struct Comparison<'a> {
    facts: &'a Facts,
}

impl<'a> Comparison<'a> {
    /// Notes what differs below, and returns what happened to the node itself.
    fn node(
        &self, left: Option<&'a Value>, right: Option<&'a Value>, kind: Kind<'a>, below: &mut Diff,
    ) -> Result<Mark, Fault> {
        let (l, r) = (kind.for_value(left), kind.for_value(right));
        match (left, right) {
            (_, None) => self.as_kind(left, right, l, below),
            (None, _) => self.as_kind(left, right, r, below),
            _ if std::mem::discriminant(&l) == std::mem::discriminant(&r) => self.as_kind(left, right, r, below),
            // A value without schema that changes its type counts as what it was and as what it is.
            _ => {
                let before = self.as_kind(left, right, l, below)?;
                let after = self.as_kind(left, right, r, below)?;
                Ok(if before == Mark::Same { after } else { before })
            }
        }
    }

    fn as_kind(
        &self, left: Option<&'a Value>, right: Option<&'a Value>, kind: Kind<'a>, below: &mut Diff,
    ) -> Result<Mark, Fault> {
        if kind.is_granular_map() {
            self.maps(left, right, kind, below)
        } else if kind.is_associative() {
            self.lists(left, right, kind, below)
        } else {
            Ok(leaf(left, right))
        }
    }

    fn maps(
        &self, left: Option<&'a Value>, right: Option<&'a Value>, kind: Kind<'a>, below: &mut Diff,
    ) -> Result<Mark, Fault> {
        let (l, r) = (map(left), map(right));
        if l.is_none_or(|m| m.is_empty()) && r.is_none_or(|m| m.is_empty()) {
            return Ok(leaf(left, right));
        }
        zip(l, r, |name, x, y| {
            if x == y {
                return Ok(());
            }
            self.descend(x, y, kind.child(self.facts, name).0, below, || element::field(name))
        })?;
        Ok(presence(left, right))
    }

    fn descend(
        &self, left: Option<&'a Value>, right: Option<&'a Value>, kind: Kind<'a>, into: &mut Diff,
        step: impl Fn() -> String,
    ) -> Result<(), Fault> {
        let mut below = Diff::default();
        let mark = self.node(left, right, kind, &mut below).map_err(|e| e.below(&step()))?;
        if mark == Mark::Touched || !below.touched.is_empty() {
            set::insert(&mut into.touched, step(), below.touched, mark == Mark::Touched);
        }
        if mark == Mark::Removed || !below.removed.is_empty() {
            set::insert(&mut into.removed, step(), below.removed, mark == Mark::Removed);
        }
        Ok(())
    }

    fn lists(
        &self, left: Option<&'a Value>, right: Option<&'a Value>, kind: Kind<'a>, below: &mut Diff,
    ) -> Result<Mark, Fault> {
        let (l, r) = (list(left), list(right));
        if l.is_none_or(<[_]>::is_empty) && r.is_none_or(<[_]>::is_empty) {
            return Ok(leaf(left, right));
        }
        let mut items: BTreeMap<String, (Vec<&Value>, Vec<&Value>)> = BTreeMap::new();
        for (i, item) in l.into_iter().flatten().enumerate() {
            items.entry(self.step(kind, i, item)?).or_default().0.push(item);
        }
        for (i, item) in r.into_iter().flatten().enumerate() {
            items.entry(self.step(kind, i, item)?).or_default().1.push(item);
        }
        let of = kind.items(self.facts);
        for (step, (l, r)) in items {
            self.items(&l, &r, of, below, step)?;
        }
        Ok(presence(left, right))
    }

    fn step(&self, kind: Kind<'a>, i: usize, item: &'a Value) -> Result<String, Fault> {
        kind.step(self.facts, item).map_err(|e| Fault::new(format!("element {i}: {e}")))
    }

    /// Items with one key: one on each side, or repeats, which count as a whole.
    fn items(
        &self, left: &[&'a Value], right: &[&'a Value], kind: Kind<'a>, below: &mut Diff, step: String,
    ) -> Result<(), Fault> {
        let one = |side: &[&'a Value]| side.first().copied();
        match (left.len(), right.len()) {
            (0 | 1, 0 | 1) => {
                if one(left) != one(right) {
                    self.descend(one(left), one(right), kind, below, || step.clone())?;
                }
            }
            (0 | 1, _) => {
                if let Some(item) = one(left) {
                    self.descend(Some(item), None, kind, below, || step.clone())?;
                }
                add(&mut below.touched, step);
            }
            (_, 0 | 1) => {
                if let Some(item) = one(right) {
                    self.descend(None, Some(item), kind, below, || step.clone())?;
                }
                add(&mut below.removed, step);
            }
            _ => {
                if left.len() != right.len() || left.iter().zip(right).any(|(l, r)| !equal(l, r)) {
                    add(&mut below.touched, step);
                }
            }
        }
        Ok(())
    }
}

fn add(set: &mut Set, step: String) {
    let mut one = Set::new();
    set::insert(&mut one, step, Set::new(), true);
    set::union(set, one);
}

/// The fields that an object has.
pub(super) fn field_set(facts: &Facts, kind: Kind<'_>, value: &Value) -> Set {
    let mut out = Set::new();
    fields_below(facts, kind, value, &mut out);
    out
}

/// Notes the fields below a value, and returns whether the value itself is one.
fn fields_below<'a>(facts: &'a Facts, kind: Kind<'a>, value: &'a Value, out: &mut Set) -> bool {
    let kind = kind.for_value(Some(value));
    if kind.is_granular_map() {
        for (name, child) in map(Some(value)).into_iter().flatten() {
            let (of, named) = kind.child(facts, name);
            let mut below = Set::new();
            let own = fields_below(facts, of, child, &mut below);
            let empty = child.is_null() || child.as_object().is_some_and(serde_json::Map::is_empty);
            set::insert(out, element::field(name), below, own || empty || !named);
        }
        false
    } else if kind.is_associative() {
        item_fields(facts, kind, list(Some(value)).unwrap_or_default(), out);
        false
    } else {
        true
    }
}

fn item_fields<'a>(facts: &'a Facts, kind: Kind<'a>, items: &'a [Value], out: &mut Set) {
    let of = kind.items(facts);
    let mut seen: BTreeMap<String, (&Value, bool)> = BTreeMap::new();
    for item in items {
        let Ok(step) = kind.step(facts, item) else { continue };
        seen.entry(step).and_modify(|(_, repeated)| *repeated = true).or_insert((item, false));
    }
    for (step, (item, repeated)) in seen {
        let mut below = Set::new();
        // Repeats count as a whole.
        if !repeated {
            fields_below(facts, of, item, &mut below);
        }
        set::insert(out, step, below, true);
    }
}

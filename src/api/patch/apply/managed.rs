//! The entries of `metadata.managedFields`, changed in place.

use std::cmp::Ordering;

use super::check;
use super::set::{self, Set};
use crate::{Map, Value};

/// One entry: who owns which fields since when. It stays the JSON object that it is.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Entry(Map);

/// What tells entries apart. The version matters for updates only: an applier has one entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct Identity<'a> {
    pub manager: &'a str,
    pub operation: &'a str,
    pub api_version: &'a str,
    pub subresource: &'a str,
}

pub(super) const APPLY: &str = "Apply";
pub(super) const UPDATE: &str = "Update";

impl Entry {
    pub(super) fn new(identity: Identity<'_>, fields: Set) -> Self {
        let mut entry = Map::new();
        entry.insert("manager".into(), identity.manager.into());
        entry.insert("operation".into(), identity.operation.into());
        entry.insert("apiVersion".into(), identity.api_version.into());
        entry.insert("fieldsType".into(), "FieldsV1".into());
        entry.insert("fieldsV1".into(), fields.into());
        if !identity.subresource.is_empty() {
            entry.insert("subresource".into(), identity.subresource.into());
        }
        Self(entry)
    }

    fn text(&self, name: &str) -> &str {
        self.0.get(name).and_then(Value::as_str).unwrap_or_default()
    }

    pub(super) fn manager(&self) -> &str {
        self.text("manager")
    }

    pub(super) fn api_version(&self) -> &str {
        self.text("apiVersion")
    }

    pub(super) fn subresource(&self) -> &str {
        self.text("subresource")
    }

    pub(super) fn time(&self) -> &str {
        self.text("time")
    }

    pub(super) fn is_apply(&self) -> bool {
        self.text("operation") == APPLY
    }

    pub(super) fn is(&self, other: Identity<'_>) -> bool {
        self.manager() == other.manager
            && self.text("operation") == other.operation
            && self.subresource() == other.subresource
            && (other.operation == APPLY || self.api_version() == other.api_version)
    }

    pub(super) fn identity(&self) -> Identity<'_> {
        Identity {
            manager: self.manager(),
            operation: self.text("operation"),
            api_version: self.api_version(),
            subresource: self.subresource(),
        }
    }

    /// The fields; an entry always has some object here once decoded.
    pub(super) fn fields(&self) -> &Set {
        static NONE: std::sync::LazyLock<Set> = std::sync::LazyLock::new(Set::new);
        self.0.get("fieldsV1").and_then(Value::as_object).unwrap_or(&NONE)
    }

    pub(super) fn fields_mut(&mut self) -> &mut Set {
        let fields = self.0.entry("fieldsV1").or_insert_with(|| Set::new().into());
        if !fields.is_object() {
            *fields = Set::new().into();
        }
        match fields {
            Value::Object(fields) => fields,
            _ => unreachable!("made an object above"),
        }
    }

    /// Empty takes the time away.
    pub(super) fn set_time(&mut self, time: &str) {
        if time.is_empty() {
            self.0.remove("time");
        } else {
            self.0.insert("time".into(), time.into());
        }
    }

    pub(super) fn set_api_version(&mut self, api_version: &str) {
        if self.api_version() != api_version {
            self.0.insert("apiVersion".into(), api_version.into());
        }
    }

    fn seconds(&self) -> i64 {
        self.time().parse::<jiff::Timestamp>().map_or(0, |t| t.as_second())
    }

    fn order(&self, other: &Self) -> Ordering {
        let text = |name: &str| self.text(name).cmp(other.text(name));
        text("operation")
            .then_with(|| compare_times(self, other))
            .then_with(|| text("manager"))
            .then_with(|| text("apiVersion"))
            .then_with(|| text("subresource"))
    }
}

/// By seconds; no time comes first.
fn compare_times(a: &Entry, b: &Entry) -> Ordering {
    let (x, y) = (a.time(), b.time());
    // Times that we wrote compare as text.
    if x.len() == y.len() && x.ends_with('Z') && y.ends_with('Z') { x.cmp(y) } else { a.seconds().cmp(&b.seconds()) }
}

/// Reads a list of entries. Those that were not written here (`trusted` is false) get their fields in canonical form.
///
/// # Errors
/// In upstream's words, when an entry makes no sense.
pub(super) fn decode(list: Value, trusted: bool) -> Result<Vec<Entry>, String> {
    let Value::Array(list) = list else { return Ok(Vec::new()) };
    let mut out: Vec<Entry> = Vec::with_capacity(list.len());
    for (i, entry) in list.into_iter().enumerate() {
        let Value::Object(mut entry) = entry else { return Err("expected an object".into()) };
        check::entry(i, &entry)?;
        if !trusted {
            let fields = set::canonical(entry.get("fieldsV1").unwrap_or(&Value::Null));
            let fields = fields.map_err(|e| format!("error decoding set: {e}"))?;
            entry.insert("fieldsV1".into(), fields.into());
        }
        let entry = Entry(entry);
        // The last of several entries with one identity counts.
        match out.iter_mut().find(|have| have.is(entry.identity())) {
            Some(have) => *have = entry,
            None => out.push(entry),
        }
    }
    Ok(out)
}

/// The list in upstream's order; none when it is empty.
pub(super) fn encode(mut entries: Vec<Entry>) -> Option<Value> {
    if entries.is_empty() {
        return None;
    }
    entries.sort_by(Entry::order);
    Some(Value::Array(entries.into_iter().map(|entry| entry.0.into()).collect()))
}

/// How many entries of updates an object keeps.
const MAX_UPDATE_MANAGERS: usize = 10;

/// Who owns what the oldest updaters owned.
const ANCIENT: &str = "ancient-changes";

/// Merges the oldest updaters of each version into one entry when there are too many.
pub(super) fn cap_updaters(entries: &mut Vec<Entry>) {
    let mut count = entries.iter().filter(|e| !e.is_apply()).count();
    if count <= MAX_UPDATE_MANAGERS {
        return;
    }
    let (mut updaters, appliers): (Vec<Entry>, Vec<Entry>) =
        std::mem::take(entries).into_iter().partition(|e| !e.is_apply());
    updaters.sort_by(|a, b| {
        let text = |e: &Entry| (e.manager().to_string(), e.api_version().to_string(), e.subresource().to_string());
        compare_times(a, b).then_with(|| text(a).cmp(&text(b)))
    });
    let mut updaters: Vec<Option<Entry>> = updaters.into_iter().map(Some).collect();
    // Position of the first entry of each version that was looked at.
    let mut first: Vec<(String, usize)> = Vec::new();
    for i in 0..updaters.len() {
        let Some(version) = updaters[i].as_ref().map(|e| e.api_version().to_string()) else { continue };
        let Some(&(_, at)) = first.iter().find(|(v, _)| *v == version) else {
            first.push((version, i));
            continue;
        };
        let bucket = updaters.iter().position(|e| e.as_ref().is_some_and(|e| e.is(bucket_of(&version)))).unwrap_or(at);
        if bucket == i {
            continue;
        }
        if let (Some(younger), Some(bucket)) = (updaters[i].take(), updaters[bucket].as_mut()) {
            into_bucket(bucket, younger);
        }
        count -= 1;
        if count <= MAX_UPDATE_MANAGERS {
            break;
        }
    }
    entries.extend(appliers);
    entries.extend(updaters.into_iter().flatten());
}

fn bucket_of(api_version: &str) -> Identity<'_> {
    Identity { manager: ANCIENT, operation: UPDATE, api_version, subresource: "" }
}

/// Makes an entry the bucket of its version and adds a younger entry to it.
fn into_bucket(bucket: &mut Entry, mut younger: Entry) {
    bucket.0.insert("manager".into(), ANCIENT.into());
    bucket.0.remove("subresource");
    match younger.0.remove("time") {
        Some(time) => bucket.0.insert("time".into(), time),
        None => bucket.0.remove("time"),
    };
    set::union(bucket.fields_mut(), std::mem::take(younger.fields_mut()));
}

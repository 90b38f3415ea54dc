//! Server-side apply and managedFields: who owns which field, merging, conflicts (KEP-555).
//!
//! ```text
//!                       facts ─► typed ─┬─► compare ─► what changed ─┐
//!   live, configuration ────────────────┼─► merge, remove            ├─► set algebra ─► entries (managed)
//!                                       └─► check                    ┘
//! ```
//!
//! Entry points for the registry: [`Tracker::apply`] for apply patches, [`Tracker::track_update`] for every other write.
//! Source of every rule: apimachinery `util/managedfields` and structured-merge-diff.

mod check;
mod compare;
mod element;
mod last_applied;
mod managed;
mod merge;
mod scale;
mod set;
#[cfg(test)]
mod tests;
mod typed;

pub use scale::{ReplicasPaths, scale_to_parent, scale_to_subresource};

use crate::resources::Row;
use crate::schema::{Facts, Type};
use crate::status::Status;
use crate::{Map, Value};
use compare::Diff;
use managed::{APPLY, Entry, Identity, UPDATE};
use set::Set;
use typed::Kind;

/// Who writes, and when.
#[derive(Debug, Clone, Copy)]
pub struct Writer<'a> {
    /// `fieldManager`, or what stands before the first `/` of the user agent.
    pub manager: &'a str,
    /// `apiVersion` under which the write came.
    pub api_version: &'a str,
    /// Kind of the objects.
    pub kind: &'a str,
    /// `status`, `scale` …; empty for the object itself.
    pub subresource: &'a str,
    /// The time to note, RFC 3339 with seconds, in UTC.
    pub now: &'a str,
}

/// Fields that a write may not own, as paths of names (`["status"]`).
#[derive(Debug, Clone, Copy, Default)]
pub struct Reset<'a> {
    /// These and all below them are left out.
    pub fields: &'a [&'a [&'a str]],
    /// When there are any, only these and what is below them can be owned; `*` stands for any step.
    pub only: &'a [&'a [&'a str]],
}

/// The other versions of a resource, in which some of an object's managers may have written.
pub trait Versions {
    /// An object said in another version, with its type; `None` when there is no such version any more.
    fn convert(&self, object: &Value, api_version: &str) -> Option<(Value, &Type)>;
}

/// For resources of one version.
pub struct OneVersion;

impl Versions for OneVersion {
    fn convert(&self, _object: &Value, _api_version: &str) -> Option<(Value, &Type)> {
        None
    }
}

/// The versions of a resource of the table.
pub struct RowVersions<'a> {
    /// The resource.
    pub row: &'a Row,
    /// The facts that hold its types.
    pub facts: &'a Facts,
}

impl Versions for RowVersions<'_> {
    fn convert(&self, object: &Value, api_version: &str) -> Option<(Value, &Type)> {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let ty = self.facts.kind(group, version, &self.row.kind)?;
        let mut object = object.clone();
        self.row.strategy.convert(&mut object, group, version).ok()?;
        Some((object, ty))
    }
}

/// Keeps `metadata.managedFields` for one write. Objects are in the writer's version, complete as the codec leaves them.
#[derive(Clone, Copy)]
pub struct Tracker<'a> {
    /// The facts.
    pub facts: &'a Facts,
    /// Type of the objects.
    pub ty: &'a Type,
    /// Other versions.
    pub versions: &'a dyn Versions,
    /// Who writes.
    pub writer: Writer<'a>,
    /// What can't be owned through this resource or subresource.
    pub reset: Reset<'a>,
}

/// Paths that nobody owns.
const NOT_OWNED: &[&[&str]] = &[
    &["apiVersion"],
    &["kind"],
    &["metadata"],
    &["metadata", "name"],
    &["metadata", "namespace"],
    &["metadata", "creationTimestamp"],
    &["metadata", "selfLink"],
    &["metadata", "uid"],
    &["metadata", "clusterName"],
    &["metadata", "generation"],
    &["metadata", "managedFields"],
    &["metadata", "resourceVersion"],
];

/// Who owns what was there before the first apply.
const BEFORE_FIRST_APPLY: &str = "before-first-apply";

/// A failed apply.
enum Failure {
    /// Per conflicting manager the fields that it owns.
    Conflicts(Vec<(Entry, Set)>),
    Status(Status),
}

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        Failure::Status(status)
    }
}

fn plain(message: String) -> Status {
    Status::new(500, "", message)
}

impl Reset<'static> {
    /// What a resource's strategy says of a subresource (empty: the object itself).
    pub fn of(row: &Row, subresource: &str) -> Self {
        Self { fields: row.strategy.reset_fields(subresource), only: row.strategy.ownable_fields(subresource) }
    }
}

impl<'a> Tracker<'a> {
    /// Notes in `new` who owns what after a create (`old` is `None`) or an update. `managedFields` sent by the client are
    /// honoured as upstream honours them: an empty list, or one with one empty entry, resets; an absent or senseless one
    /// keeps `old`'s. Objects without managers stay without until somebody applies. A list that can't be compared leaves
    /// the object without managers.
    pub fn track_update(&self, old: Option<&Value>, new: &mut Value) {
        let sent = take_managed_fields(new);
        let live = old.and_then(managed_fields);
        let entries = self.entries_of_update(live, sent);
        if entries.is_empty() && old.is_some_and(has_uid) {
            return;
        }
        let zero;
        let old = match old {
            Some(old) => old,
            None => {
                zero = typed::zero(self.facts, self.ty, self.writer.api_version, self.writer.kind);
                &zero
            }
        };
        let updated = self.update(old, new, entries, self.writer.manager);
        set_managed_fields(new, updated.ok().and_then(managed::encode));
    }

    fn entries_of_update(&self, live: Option<&Value>, sent: Option<Value>) -> Vec<Entry> {
        let of_live = || managed::decode(live.cloned().unwrap_or_default(), true).unwrap_or_default();
        match sent {
            // The usual case needs no copy.
            Some(sent) if Some(&sent) == live && !is_reset(&sent) => managed::decode(sent, true).unwrap_or_default(),
            Some(_) if !self.writer.subresource.is_empty() => of_live(),
            Some(sent) if is_reset(&sent) => Vec::new(),
            Some(sent) => match managed::decode(sent, false) {
                Ok(entries) if !entries.is_empty() => entries,
                _ => of_live(),
            },
            None => of_live(),
        }
    }

    fn root(&self) -> Kind<'a> {
        Kind::root(self.ty)
    }

    fn compare(&self, old: &Value, new: &Value) -> Result<Diff, String> {
        let diff = compare::compare(self.facts, self.root(), old, new);
        let mut diff = diff.map_err(|e| format!("failed to compare objects: {}", typed::faults_text(&[e])))?;
        self.filter(&mut diff.touched);
        self.filter(&mut diff.removed);
        Ok(diff)
    }

    fn filter(&self, set: &mut Set) {
        if !self.reset.fields.is_empty() {
            set::subtract_deep(set, &set::of_names(self.reset.fields));
        }
        if !self.reset.only.is_empty() {
            set::keep_only(set, self.reset.only);
        }
    }

    fn strip(set: &mut Set) {
        static STRIP: std::sync::LazyLock<Set> = std::sync::LazyLock::new(|| set::of_names(NOT_OWNED));
        set::subtract(set, &STRIP);
    }

    /// The same for objects said in another version.
    fn in_version<'b>(&'b self, object: &Value, api_version: &str) -> Option<(Value, Tracker<'b>)> {
        let (value, ty) = self.versions.convert(object, api_version)?;
        Some((
            value,
            Tracker { facts: self.facts, ty, versions: self.versions, writer: self.writer, reset: self.reset },
        ))
    }

    /// Drops managers of versions that are gone, and brings ownership in line with the schema of today.
    fn reconcile(&self, live: &Value, entries: &mut Vec<Entry>) {
        entries.retain_mut(|entry| {
            if entry.api_version() == self.writer.api_version {
                check::reconcile(self.facts, self.root(), entry.fields_mut());
                return true;
            }
            match self.versions.convert(live, entry.api_version()) {
                Some((_, ty)) => {
                    check::reconcile(self.facts, Kind::root(ty), entry.fields_mut());
                    true
                }
                None => false,
            }
        });
    }

    /// The entries after an update by `manager`.
    fn update(&self, old: &Value, new: &Value, mut entries: Vec<Entry>, manager: &str) -> Result<Vec<Entry>, String> {
        self.reconcile(old, &mut entries);
        let mut diff = self.compare(old, new)?;
        self.settle(old, new, &diff, &mut entries, |_| false)?;
        Self::strip(&mut diff.touched);
        if !diff.touched.is_empty() {
            let identity = self.identity(manager, UPDATE);
            let entry = match entries.iter_mut().position(|e| e.is(identity)) {
                Some(at) => &mut entries[at],
                None => {
                    entries.push(Entry::new(identity, Set::new()));
                    entries.last_mut().ok_or_else(String::new)?
                }
            };
            set::union(entry.fields_mut(), diff.touched);
            entry.set_time(self.writer.now);
        }
        managed::cap_updaters(&mut entries);
        Ok(entries)
    }

    fn identity<'b>(&'b self, manager: &'b str, operation: &'static str) -> Identity<'b> {
        Identity {
            manager: if manager.is_empty() { "unknown" } else { manager },
            operation,
            api_version: self.writer.api_version,
            subresource: self.writer.subresource,
        }
    }

    /// Takes from every manager but those spared what others changed or removed; returns what was taken by change.
    fn settle(
        &self, old: &Value, new: &Value, diff: &Diff, entries: &mut Vec<Entry>, spared: impl Fn(&Entry) -> bool,
    ) -> Result<(), String> {
        let others = self.other_versions(old, new, entries, &spared)?;
        entries.retain_mut(|entry| {
            if !spared(entry) {
                let diff = others.iter().find(|(v, _)| v == entry.api_version()).map_or(diff, |(_, diff)| diff);
                if !diff.is_empty() {
                    set::subtract(entry.fields_mut(), &diff.touched);
                    set::subtract(entry.fields_mut(), &diff.removed);
                }
            }
            !entry.fields().is_empty()
        });
        Ok(())
    }

    /// The difference as managers of other versions see it.
    fn other_versions(
        &self, old: &Value, new: &Value, entries: &mut Vec<Entry>, spared: &impl Fn(&Entry) -> bool,
    ) -> Result<Vec<(String, Diff)>, String> {
        let mut out: Vec<(String, Diff)> = Vec::new();
        for entry in entries.iter().filter(|e| !spared(e) && e.api_version() != self.writer.api_version) {
            let version = entry.api_version();
            if out.iter().any(|(v, _)| v == version) {
                continue;
            }
            if let (Some((old, there)), Some((new, _))) = (self.in_version(old, version), self.in_version(new, version))
            {
                out.push((version.to_string(), there.compare(&old, &new)?));
            }
        }
        let known = |v: &str| v == self.writer.api_version || out.iter().any(|(known, _)| known == v);
        entries.retain(|e| spared(e) || known(e.api_version()));
        Ok(out)
    }

    /// Applies `config` onto `live` (`None`: the object is created). Returns the merged object with its managedFields: it
    /// is `live` but for ownership when nothing changes. The result is as merged: the codec has yet to complete it.
    ///
    /// # Errors
    /// 409 with one cause per conflicting field unless `force`; 400 for a configuration of another kind or version or with
    /// managedFields; 500 for one that does not fit the schema, all as upstream has it.
    pub fn apply(&self, live: Option<&Value>, config: &Value, force: bool) -> Result<Value, Status> {
        self.check_kind(config)?;
        let zero;
        let (live, entries) = match live {
            Some(live) => (live, managed_fields(live).cloned().unwrap_or_default()),
            None => {
                zero = typed::zero(self.facts, self.ty, self.writer.api_version, self.writer.kind);
                (&zero, Value::Null)
            }
        };
        let entries =
            managed::decode(entries, true).map_err(|e| plain(format!("failed to decode managed fields: {e}")))?;
        let entries = if entries.is_empty() { self.before_first_apply(live)? } else { entries };
        let (mut object, entries) = self.apply_leniently(live, config, entries, force)?;
        if self.writer.manager == last_applied::KUBECTL {
            last_applied::refresh(&mut object, config);
        }
        set_managed_fields(&mut object, managed::encode(entries));
        Ok(object)
    }

    fn check_kind(&self, config: &Value) -> Result<(), Status> {
        let text = |name: &str| config.get(name).and_then(Value::as_str).unwrap_or_default();
        let (api_version, kind) = (text("apiVersion"), text("kind"));
        if (api_version, kind) != (self.writer.api_version, self.writer.kind) {
            return Err(Status::bad_request(format!("invalid object type: {}", gvk(api_version, kind))));
        }
        Ok(())
    }

    /// Who owns what an object without managers has.
    fn before_first_apply(&self, live: &Value) -> Result<Vec<Entry>, Status> {
        let zero = typed::zero(self.facts, self.ty, self.writer.api_version, self.writer.kind);
        let entries = self.update(&zero, live, Vec::new(), BEFORE_FIRST_APPLY);
        entries.map_err(|e| plain(format!("failed to create manager for existing fields: {e}")))
    }

    /// Applies; `kubectl` may take over fields that it last set by client-side apply.
    fn apply_leniently(
        &self, live: &Value, config: &Value, entries: Vec<Entry>, force: bool,
    ) -> Result<(Value, Vec<Entry>), Status> {
        let retry = (self.writer.manager == last_applied::KUBECTL && !force).then(|| entries.clone());
        let conflicts = match self.apply_strictly(live, config, entries, force) {
            Ok(done) => return Ok(done),
            Err(Failure::Status(status)) => return Err(status),
            Err(Failure::Conflicts(conflicts)) => conflicts,
        };
        let allowed = retry.and_then(|entries| Some((entries, last_applied::unchanged_fields(self, live)?)));
        let Some((entries, allowed)) = allowed else { return Err(conflict(&conflicts)) };
        let mut rest = conflicts;
        rest.retain_mut(|(_, fields)| {
            set::subtract(fields, &allowed);
            !fields.is_empty()
        });
        if !rest.is_empty() {
            return Err(conflict(&rest));
        }
        self.apply_strictly(live, config, entries, true).map_err(|failure| match failure {
            Failure::Status(status) => status,
            Failure::Conflicts(conflicts) => conflict(&conflicts),
        })
    }

    fn apply_strictly(
        &self, live: &Value, config: &Value, mut entries: Vec<Entry>, force: bool,
    ) -> Result<(Value, Vec<Entry>), Failure> {
        if config["metadata"]["managedFields"].is_array() {
            return Err(Status::bad_request("metadata.managedFields must be nil").into());
        }
        self.check_object("patch", config, false)?;
        self.check_object("live", live, true)?;
        self.reconcile(live, &mut entries);
        let merged = merge::merge(self.facts, self.root(), Some(live), Some(config))
            .map_err(|e| plain(format!("failed to merge config: {}", typed::faults_text(&[e]))))?
            .unwrap_or_default();
        let mut fields = compare::field_set(self.facts, self.root(), config);
        self.filter(&mut fields);
        let identity = self.identity(self.writer.manager, APPLY);
        let last = entries.iter().position(|e| e.is(identity)).map(|at| entries.remove(at));
        let mut own = last.clone().unwrap_or_else(|| Entry::new(identity, Set::new()));
        own.set_api_version(self.writer.api_version);
        *own.fields_mut() = fields;
        let merged = match &last {
            Some(last) if !last.fields().is_empty() => self.prune(merged, last, &own, &entries),
            _ => merged,
        };
        let diff = self.compare(live, &merged).map_err(plain)?;
        self.find_conflicts(live, &merged, &diff, &mut entries, force)?;
        self.settle(live, &merged, &diff, &mut entries, |_| false).map_err(plain)?;
        let changed = !typed::equal(live, &merged);
        if changed {
            own.set_time(self.writer.now);
        }
        Self::strip(own.fields_mut());
        if !own.fields().is_empty() {
            entries.push(own);
        }
        Ok((if changed { merged } else { live.clone() }, entries))
    }

    fn check_object(&self, what: &str, object: &Value, repeats: bool) -> Result<(), Status> {
        let faults = check::validate(self.facts, self.root(), object, repeats);
        if faults.is_empty() {
            return Ok(());
        }
        let name = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_string();
        let gvk = gvk(self.writer.api_version, self.writer.kind);
        let text = typed::faults_text(&faults);
        let (namespace, name) = (name("namespace"), name("name"));
        Err(plain(format!("failed to create typed {what} object ({namespace}/{name}; {gvk}): {text}")))
    }

    /// Unless forced, nobody else may own what changes.
    fn find_conflicts(
        &self, live: &Value, merged: &Value, diff: &Diff, entries: &mut Vec<Entry>, force: bool,
    ) -> Result<(), Failure> {
        if force {
            return Ok(());
        }
        let others = self.other_versions(live, merged, entries, &|_| false).map_err(plain)?;
        let mut conflicts: Vec<(Entry, Set)> = Vec::new();
        for entry in entries.iter() {
            let diff = others.iter().find(|(v, _)| v == entry.api_version()).map_or(diff, |(_, diff)| diff);
            let fields = set::intersection(entry.fields(), &diff.touched);
            if !fields.is_empty() {
                conflicts.push((entry.clone(), fields));
            }
        }
        if conflicts.is_empty() { Ok(()) } else { Err(Failure::Conflicts(conflicts)) }
    }

    /// Takes out of the merged object what this manager no longer applies and nobody else owns.
    fn prune(&self, merged: Value, last: &Entry, own: &Entry, others: &[Entry]) -> Value {
        let here = self.writer.api_version;
        if last.api_version() == here {
            return self.prune_here(merged, last, own, others);
        }
        // Removal happens in the version in which the fields were applied, then the object comes back.
        let Some((there_merged, there)) = self.in_version(&merged, last.api_version()) else { return merged };
        let at_version = Tracker { writer: Writer { api_version: last.api_version(), ..self.writer }, ..there };
        let pruned = at_version.prune_here(there_merged, last, own, others);
        match self.versions.convert(&pruned, here) {
            Some((pruned, _)) => pruned,
            None => merged,
        }
    }

    fn prune_here(&self, merged: Value, last: &Entry, own: &Entry, others: &[Entry]) -> Value {
        let (facts, kind) = (self.facts, self.root());
        let named = |set: &Set| merge::with_named_fields(facts, Some(kind), set);
        let last = named(last.fields());
        let mut pruned = merge::remove(facts, kind, &merged, &last);
        // Versions other than this one see the object their way; this one goes first.
        let mut versions: Vec<&str> = vec![self.writer.api_version];
        for entry in others.iter().chain([own]) {
            if !versions.contains(&entry.api_version()) {
                versions.push(entry.api_version());
            }
        }
        for version in versions {
            let mut owned = Set::new();
            for entry in others.iter().chain([own]).filter(|e| e.api_version() == version) {
                set::union(&mut owned, entry.fields().clone());
            }
            if !owned.is_empty() {
                pruned = self.add_back(&merged, pruned, version, &owned);
            }
        }
        let mut lost = named(&compare::field_set(facts, kind, &merged));
        set::subtract(&mut lost, &named(&compare::field_set(facts, kind, &pruned)));
        merge::remove(facts, kind, &merged, &set::intersection(&lost, &last))
    }

    /// Puts back what somebody owns.
    fn add_back(&self, merged: &Value, pruned: Value, version: &str, owned: &Set) -> Value {
        if version == self.writer.api_version {
            return self.add_back_here(merged, &pruned, owned);
        }
        let both = (self.in_version(merged, version), self.in_version(&pruned, version));
        let (Some((merged, there)), Some((there_pruned, _))) = both else { return pruned };
        let back = there.add_back_here(&merged, &there_pruned, owned);
        self.versions.convert(&back, self.writer.api_version).map_or(pruned, |(back, _)| back)
    }

    fn add_back_here(&self, merged: &Value, pruned: &Value, owned: &Set) -> Value {
        let (facts, kind) = (self.facts, self.root());
        let named = |set: &Set| merge::with_named_fields(facts, Some(kind), set);
        let mut lost = named(&compare::field_set(facts, kind, merged));
        set::subtract(&mut lost, &named(&compare::field_set(facts, kind, pruned)));
        set::subtract(&mut lost, &named(owned));
        merge::remove(facts, kind, merged, &lost)
    }
}

/// Puts the old times back where an update changed nothing but times in managedFields, so that it is none.
pub fn ignore_times(new: &mut Value, old: &Value) {
    let (Some(had), Some(has)) = (managed_fields(old), managed_fields(new)) else { return };
    if had == has || !same_but_for_times(had, has) {
        return;
    }
    let had = had.clone();
    let taken = take_managed_fields(new);
    let mut bare = old.clone();
    take_managed_fields(&mut bare);
    let restored = if *new == bare { Some(had) } else { taken };
    set_managed_fields(new, restored);
}

fn same_but_for_times(a: &Value, b: &Value) -> bool {
    let (Some(a), Some(b)) = (a.as_array(), b.as_array()) else { return false };
    let same = |a: &Value, b: &Value| {
        let (Some(a), Some(b)) = (a.as_object(), b.as_object()) else { return false };
        let count = |m: &Map| m.keys().filter(|k| *k != "time").count();
        count(a) == count(b) && a.iter().filter(|(k, _)| *k != "time").all(|(k, v)| b.get(k) == Some(v))
    };
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b))
}

/// 409, with a cause for each field.
fn conflict(conflicts: &[(Entry, Set)]) -> Status {
    let mut conflicts: Vec<(String, Vec<String>)> =
        conflicts.iter().map(|(entry, fields)| (owner(entry), set::readable(fields))).collect();
    conflicts.sort();
    let count: usize = conflicts.iter().map(|(_, paths)| paths.len()).sum();
    let message = match conflicts.as_slice() {
        [(owner, paths)] if paths.len() == 1 => {
            format!("Apply failed with 1 conflict: conflict with {owner}: {}", paths[0])
        }
        all => {
            let mut lines = Vec::new();
            for (owner, paths) in all {
                lines.push(format!("conflicts with {owner}:"));
                lines.extend(paths.iter().map(|path| format!("- {path}")));
            }
            format!("Apply failed with {count} conflicts: {}", lines.join("\n"))
        }
    };
    let mut status = Status::new(409, "Conflict", message);
    for (owner, paths) in conflicts {
        for path in paths {
            status = status.cause("FieldManagerConflict", format!("conflict with {owner}"), path);
        }
    }
    status
}

/// `"manager" with subresource "status" using v1`.
fn owner(entry: &Entry) -> String {
    let mut out = crate::field::quote(entry.manager());
    if !entry.subresource().is_empty() {
        out.push_str(&format!(" with subresource {}", crate::field::quote(entry.subresource())));
    }
    if !entry.is_apply() {
        out.push_str(&format!(" using {}", entry.api_version()));
    }
    out
}

/// Go's form of a group, version and kind: `apps/v1, Kind=Deployment`, `/v1, Kind=Pod`.
fn gvk(api_version: &str, kind: &str) -> String {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    format!("{group}/{version}, Kind={kind}")
}

fn managed_fields(object: &Value) -> Option<&Value> {
    object.get("metadata")?.get("managedFields")
}

fn has_uid(object: &Value) -> bool {
    object["metadata"]["uid"].as_str().is_some_and(|uid| !uid.is_empty())
}

fn take_managed_fields(object: &mut Value) -> Option<Value> {
    object.get_mut("metadata")?.as_object_mut()?.remove("managedFields").filter(|fields| !fields.is_null())
}

fn set_managed_fields(object: &mut Value, fields: Option<Value>) {
    let Some(object) = object.as_object_mut() else { return };
    let metadata = object.entry("metadata").or_insert_with(|| Map::new().into());
    let Some(metadata) = metadata.as_object_mut() else { return };
    match fields {
        Some(fields) => metadata.insert("managedFields".into(), fields),
        None => metadata.remove("managedFields"),
    };
}

/// An empty list, or one with one empty entry.
fn is_reset(fields: &Value) -> bool {
    match fields.as_array().map(Vec::as_slice) {
        Some([]) => true,
        Some([one]) => {
            one.as_object().is_some_and(|entry| entry.values().all(|v| v.is_null() || v.as_str() == Some("")))
        }
        _ => false,
    }
}

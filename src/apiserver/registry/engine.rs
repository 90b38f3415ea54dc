//! The write engine: one path for every resource, and the only place where conflicts loop.
//!
//! ```text
//!   edit(live) ─► default ─► owners of fields ─► mutating admission, default ─► prepare, validate ─► validating admission
//!                                                                                                        │
//!   answer ◄── one transaction on the revision ◄── encode once ◄── nothing changed? answer ◄─────────────┘
//! ```
//!
//! The cache's entry is the guess of the current state: as long as it holds, an update costs one round trip. What a
//! stale guess refuses (or finds unchanged) is tried again on the state that the store gives.

use std::sync::Arc;

use api::resources::{Context, Requester, Row};
use api::status::Status;
use api::{Value, patch};
use bytes::Bytes;
use parking_lot::Mutex;
use store::{Expect, KeyValue};

use super::hooks;
use super::options::Options;
use super::{facts, failure, lifecycle, object, state, warn};
use crate::Api;
use crate::admission::{Operation, Review};
use crate::entry;
use crate::request::User;
use state::State;

/// Seconds a write may take, conflicts and all.
pub(super) const PATIENCE: std::time::Duration = std::time::Duration::from_secs(34);

/// How often a name is generated before the creation fails.
const NAME_ATTEMPTS: usize = 8;

/// Everything about a write but the object.
#[derive(Clone, Copy)]
pub struct Write<'a> {
    /// The server.
    pub api: &'a Arc<Api>,
    /// The resource.
    pub row: &'a Arc<Row>,
    /// Version of the request.
    pub version: &'a str,
    /// Namespace; empty for cluster-scoped objects.
    pub namespace: &'a str,
    /// Name; empty on create.
    pub name: &'a str,
    /// `status`, `scale` …; empty for the object itself.
    pub subresource: &'a str,
    /// Who writes.
    pub user: &'a User,
    /// Who owns what is written.
    pub manager: &'a str,
    /// Options.
    pub options: &'a Options,
    /// Group, version and kind of what the request carries.
    pub kind: (&'a str, &'a str, &'a str),
    /// What admission sees instead of the object.
    pub view: Option<&'a dyn View>,
    /// Warnings for the client.
    pub warnings: &'a Mutex<Vec<String>>,
}

/// A part of an object that a subresource shows as an object of its own, such as a Scale.
pub trait View: Send + Sync {
    /// What is shown of an object in the stored version.
    fn show(&self, object: &Value) -> Value;

    /// Takes over a changed part.
    fn put(&self, object: &mut Value, shown: &Value);
}

/// What an edit made of an object, in the version of the request.
pub struct Edited {
    /// The object.
    pub object: Value,
    /// The edit has noted in managedFields who owns what.
    pub tracked: bool,
}

/// A pure change: from the object as it is (`None`: not there) to the object as it shall be, both in the version of
/// the request.
pub type Edit<'a> = dyn Fn(Option<&Value>) -> Result<Edited, Status> + Send + Sync + 'a;

/// What was written.
pub struct Written {
    /// The object in the stored version, with its resourceVersion.
    pub object: Value,
    /// The value as it is stored; `None` when nothing was written.
    pub kv: Option<KeyValue>,
    /// The object is new.
    pub created: bool,
}

impl Write<'_> {
    /// Where the object is stored.
    pub fn key(&self, name: &str) -> String {
        entry::key(&self.api.settings.etcd_prefix, self.row, self.namespace, name)
    }

    /// What the strategy may know.
    pub fn context(&self, now: i64) -> Context<'_> {
        // A view changes the object itself: its strategy is the object's.
        let subresource = if self.view.is_some() { "" } else { self.subresource };
        let User { name, uid, groups, extra } = self.user;
        let user = Requester { name, uid, groups, extra: Some(extra) };
        Context { namespace: self.namespace, subresource, now, user }
    }

    fn review<'r>(&'r self, operation: Operation, name: &'r str, old: Option<&'r Value>) -> Review<'r> {
        Review {
            api: self.api,
            row: self.row,
            version: self.version,
            kind: self.kind,
            namespace: self.namespace,
            name,
            subresource: self.subresource,
            operation,
            user: self.user,
            dry_run: self.options.dry_run,
            options: &self.options.object,
            old,
            warnings: self.warnings,
        }
    }

    /// Adds a warning.
    pub fn warn(&self, text: String) {
        warn(&mut self.warnings.lock(), text);
    }

    fn ttl(&self) -> i64 {
        if self.row.storage == "events" { self.api.settings.event_ttl } else { 0 }
    }

    fn failure(&self, error: store::Error, name: &str, verb: &str) -> Status {
        failure(error, self.row, name, verb)
    }
}

/// Creates an object, which is in the version of the request.
///
/// # Errors
/// Whatever upstream answers.
pub async fn create(w: &Write<'_>, object: Value) -> Result<Written, Status> {
    let now = object::now();
    let mut object = to_stored(w, object)?;
    w.row.strategy.default(&mut object);
    lifecycle::wipe(&mut object);
    api::meta::match_namespace(&mut object, w.namespace)?;
    lifecycle::dedup_owners(w, &mut object, false);
    track(w, None, &mut object, now)?;
    let name = object::name(&object).to_string();
    mutate(w, Operation::Create, &name, None, &mut object).await?;
    lifecycle::dedup_owners(w, &mut object, true);
    if !name.is_empty() || object::meta_text(&object, "generateName").is_empty() {
        return create_named(w, object, now).await;
    }
    for _ in 1..NAME_ATTEMPTS {
        match create_named(w, object.clone(), now).await {
            Err(status) if status.reason == "AlreadyExists" => {}
            answer => return answer,
        }
    }
    create_named(w, object, now).await
}

async fn create_named(w: &Write<'_>, mut object: Value, now: i64) -> Result<Written, Status> {
    lifecycle::init(&mut object, now);
    let mut undo = hooks::of(w.row).begin_create(w, &mut object).await?;
    let result = finish_create(w, object, now).await;
    undo.finish(w.api, result.is_ok() && !w.options.dry_run).await;
    result
}

async fn finish_create(w: &Write<'_>, mut object: Value, now: i64) -> Result<Written, Status> {
    prepare_create(w, &mut object, now).await?;
    if !object::meta_text(&object, "resourceVersion").is_empty() {
        return Err(Status::new(500, "", "resourceVersion should not be set on objects to be created"));
    }
    let name = object::name(&object).to_string();
    let key = w.key(&name);
    if w.options.dry_run {
        let (there, _) = w.api.store.get(&key).await.map_err(|e| w.failure(e, &name, "create"))?;
        return match there {
            Some(kv) => Err(already_exists(w, &object, Some(&kv))),
            None => Ok(Written { object, kv: None, created: true }),
        };
    }
    match put(w, &key, &mut object, Expect::Absent).await {
        Ok(kv) => Ok(Written { object, kv: Some(kv), created: true }),
        Err(store::Error::Conflict(there)) => Err(already_exists(w, &object, there.as_ref())),
        Err(e) => Err(w.failure(e, &name, "create")),
    }
}

/// The strategy's and the validating plugins' part of a creation.
async fn prepare_create(w: &Write<'_>, object: &mut Value, now: i64) -> Result<(), Status> {
    api::meta::match_namespace(object, w.namespace)?;
    lifecycle::before_create(w, object, now)?;
    let name = object::name(object).to_string();
    validate(w, Operation::Create, &name, None, object).await
}

fn already_exists(w: &Write<'_>, object: &Value, there: Option<&KeyValue>) -> Status {
    let name = object::name(object);
    let mut status = Status::already_exists(w.row.group_resource(), name);
    if !object::meta_text(object, "generateName").is_empty() {
        let of = w.row.group_resource();
        status.message =
            format!("{of} \"{name}\" already exists, the server was not able to generate a unique name for the object");
        status = status.retry_after(1);
    }
    if there.is_some_and(|kv| w.api.cache.decode(kv).entry.terminating()) {
        status.message = format!("object is being deleted: {}", status.message);
    }
    status
}

/// How an update treats what it finds.
#[derive(Clone, Copy, Default)]
pub struct Terms<'a> {
    /// Creates the object when it is not there.
    pub create: bool,
    /// The UID that the client says the object has.
    pub uid: Option<&'a str>,
}

/// Updates an object by an edit.
///
/// # Errors
/// Whatever upstream answers.
pub async fn update(w: &Write<'_>, terms: Terms<'_>, edit: &Edit<'_>) -> Result<Written, Status> {
    until_settled(w, Work::Edit(terms, edit)).await
}

/// What a write does to what it finds.
#[derive(Clone, Copy)]
enum Work<'a> {
    /// An edit, with all that belongs to an update.
    Edit(Terms<'a>, &'a Edit<'a>),
    /// A change past strategies and admission.
    Modify(&'a Modify<'a>),
}

/// Attempts a write until no conflict is left, for as long as a write may take.
async fn until_settled(w: &Write<'_>, work: Work<'_>) -> Result<Written, Status> {
    let all = async {
        let key = w.key(w.name);
        let mut state = State::guess(w.api, &key);
        loop {
            let outcome = match work {
                Work::Edit(terms, edit) => attempt(w, &key, terms, edit, &state).await,
                Work::Modify(change) => modify_once(w, &key, &state, change).await,
            };
            match outcome {
                Ok(Outcome::Done(written)) => return Ok(*written),
                Ok(Outcome::Lost(kv)) => state = State::found(w.api, kv),
                // The guess may be stale: ask, and try again if it was.
                Ok(Outcome::Unchanged(_)) | Err(_) if !state.fresh && refreshed(w, &key, &mut state).await? => {}
                Ok(Outcome::Unchanged(written)) => return Ok(*written),
                Err(status) => return Err(status),
            }
        }
    };
    tokio::time::timeout(PATIENCE, all).await.unwrap_or_else(|_| Err(too_slow()))
}

/// What a write that ran out of time is answered with.
pub fn too_slow() -> Status {
    let text = "Timeout: request did not complete within requested timeout - context deadline exceeded";
    Status::new(504, "Timeout", text)
}

/// Reads the state anew; true when it is another one than before.
async fn refreshed(w: &Write<'_>, key: &str, state: &mut State) -> Result<bool, Status> {
    let (kv, _) = w.api.store.get(key).await.map_err(|e| w.failure(e, w.name, "update"))?;
    let found = State::found(w.api, kv);
    let differs = found.revision != state.revision;
    *state = found;
    Ok(differs)
}

enum Outcome {
    Done(Box<Written>),
    Unchanged(Box<Written>),
    Lost(Option<KeyValue>),
}

async fn attempt(
    w: &Write<'_>, key: &str, terms: Terms<'_>, edit: &Edit<'_>, state: &State,
) -> Result<Outcome, Status> {
    let now = object::now();
    let live = state.object()?;
    if let (Some(uid), Some(live)) = (terms.uid, &live) {
        check_uid(w, key, uid, live)?;
    }
    if live.is_none() && !terms.create {
        return Err(Status::not_found(w.row.group_resource(), w.name));
    }
    let shown = live.as_ref().map(|live| to_requested(w, live)).transpose()?;
    let edited = edit(shown.as_ref())?;
    let mut new = to_stored(w, edited.object)?;
    w.row.strategy.default(&mut new);
    api::meta::match_namespace(&mut new, w.namespace)?;
    if !edited.tracked {
        track(w, live.as_ref(), &mut new, now)?;
    }
    let operation = if live.is_some() { Operation::Update } else { Operation::Create };
    mutate(w, operation, w.name, live.as_ref(), &mut new).await?;
    lifecycle::dedup_owners(w, &mut new, true);
    match live {
        Some(live) => change(w, key, state, live, new, now).await,
        None => create_on_update(w, new, now).await,
    }
}

fn check_uid(w: &Write<'_>, key: &str, uid: &str, live: &Value) -> Result<(), Status> {
    let own = object::uid(live);
    if uid.is_empty() || uid == own {
        return Ok(());
    }
    let why = format!(
        "StorageError: invalid object, Code: 4, Key: {key}, ResourceVersion: 0, AdditionalErrorMsg: Precondition \
         failed: UID in precondition: {uid}, UID in object meta: {own}"
    );
    Err(Status::conflict(w.row.group_resource(), w.name, why))
}

async fn create_on_update(w: &Write<'_>, mut new: Value, now: i64) -> Result<Outcome, Status> {
    may_create(w)?;
    lifecycle::init(&mut new, now);
    let mut undo = hooks::of(w.row).begin_create(w, &mut new).await?;
    let result = create_absent(w, new, now).await;
    undo.finish(w.api, matches!(result, Ok(Outcome::Done(_))) && !w.options.dry_run).await;
    result
}

/// An update or an apply that creates needs the right to create.
fn may_create(w: &Write<'_>) -> Result<(), Status> {
    let asked = crate::authz::Attributes {
        verb: "create",
        is_resource: true,
        namespace: w.namespace,
        group: &w.row.group,
        version: w.version,
        resource: &w.row.plural,
        subresource: w.subresource,
        name: w.name,
        ..Default::default()
    };
    w.api.authorizer.check(w.user, &asked)
}

async fn create_absent(w: &Write<'_>, mut new: Value, now: i64) -> Result<Outcome, Status> {
    prepare_create(w, &mut new, now).await?;
    object::unset_meta(&mut new, "resourceVersion");
    if w.options.dry_run {
        return Ok(Outcome::Done(Box::new(Written { object: new, kv: None, created: true })));
    }
    match put(w, &w.key(w.name), &mut new, Expect::Absent).await {
        Ok(kv) => Ok(Outcome::Done(Box::new(Written { object: new, kv: Some(kv), created: true }))),
        Err(store::Error::Conflict(there)) => Ok(Outcome::Lost(there)),
        Err(e) => Err(w.failure(e, w.name, "create")),
    }
}

/// The second half of an update of an object that is there.
async fn change(
    w: &Write<'_>, key: &str, state: &State, live: Value, mut new: Value, now: i64,
) -> Result<Outcome, Status> {
    lifecycle::check_version(w, &mut new, state.revision)?;
    let mut undo = hooks::of(w.row).begin_update(w, &mut new, &live).await?;
    let result = commit(w, key, state, live, new, now).await;
    undo.finish(w.api, matches!(result, Ok(Outcome::Done(_))) && !w.options.dry_run).await;
    result
}

async fn commit(
    w: &Write<'_>, key: &str, state: &State, live: Value, mut new: Value, now: i64,
) -> Result<Outcome, Status> {
    api::meta::match_namespace(&mut new, w.namespace)?;
    lifecycle::before_update(w, &mut new, &live, now)?;
    lifecycle::keep_times(&mut new, &live);
    validate(w, Operation::Update, w.name, Some(&live), &new).await?;
    if lifecycle::completes_deletion(&new, &live) && hooks::of(w.row).may_remove(&new) {
        return remove(w, key, state, new, &live).await;
    }
    replace(w, key, state, live, new).await
}

/// Stores what became of an object, unless that is what is stored.
async fn replace(w: &Write<'_>, key: &str, state: &State, live: Value, mut new: Value) -> Result<Outcome, Status> {
    if w.options.dry_run {
        return Ok(Outcome::Done(Box::new(Written { object: new, kv: None, created: false })));
    }
    if new == live {
        return Ok(Outcome::Unchanged(Box::new(Written { object: live, kv: None, created: false })));
    }
    match put(w, key, &mut new, Expect::At(state.revision)).await {
        Ok(kv) => Ok(Outcome::Done(Box::new(Written { object: new, kv: Some(kv), created: false }))),
        Err(store::Error::Conflict(there)) => Ok(Outcome::Lost(there)),
        Err(e) => Err(w.failure(e, w.name, "update")),
    }
}

/// Deletes an object whose last finalizer this update takes away; the answer is the object as the update made it.
async fn remove(w: &Write<'_>, key: &str, state: &State, new: Value, live: &Value) -> Result<Outcome, Status> {
    let done = |object| Ok(Outcome::Done(Box::new(Written { object, kv: None, created: false })));
    if w.options.dry_run {
        return done(new);
    }
    match w.api.store.delete(key, state.revision).await {
        Ok((_, revision)) => {
            w.api.admission.wrote(revision);
            hooks::of(w.row).after_delete(w.api, w.row, live).await;
            done(new)
        }
        Err(store::Error::Conflict(there)) => Ok(Outcome::Lost(there)),
        Err(e) => Err(w.failure(e, w.name, "delete")),
    }
}

/// Writes an object. One that is too large for the store is tried once more without its managedFields, as upstream
/// does. On success the object has its new resourceVersion.
async fn put(w: &Write<'_>, key: &str, object: &mut Value, expect: Expect) -> store::Result<KeyValue> {
    let result = put_once(w, key, object, expect).await;
    if matches!(result, Err(store::Error::TooLarge)) && object::meta(object, "managedFields").is_some() {
        object::unset_meta(object, "managedFields");
        return put_once(w, key, object, expect).await;
    }
    result
}

async fn put_once(w: &Write<'_>, key: &str, object: &mut Value, expect: Expect) -> store::Result<KeyValue> {
    let value = encode(w.row, object);
    let revision = w.api.store.put(key, value.clone(), expect, w.ttl()).await?;
    w.api.admission.wrote(revision);
    object::set_meta(object, "resourceVersion", revision.to_string());
    let create_revision = if expect == Expect::Absent { revision } else { 0 };
    Ok(KeyValue { key: Arc::from(key), value, mod_revision: revision, create_revision })
}

/// The bytes under which an object is stored: without resourceVersion, which is the revision of the write.
pub fn encode(row: &Row, object: &mut Value) -> Bytes {
    object::unset_meta(object, "resourceVersion");
    let mut out = Vec::with_capacity(1024);
    match stored_type(row) {
        Some(ty) => api::codec::json::encode(facts(row), ty, object, &mut out),
        None => api::codec::json::encode_any(object, &mut out),
    }
    out.into()
}

fn stored_type(row: &Row) -> Option<&api::schema::Type> {
    if row.stored_group != row.group {
        return facts(row).kind(&row.stored_group, &row.stored, &row.kind);
    }
    row.version(&row.stored).and_then(|v| facts(row).get(&v.schema))
}

fn requested_type<'a>(row: &'a Row, version: &str) -> Option<&'a api::schema::Type> {
    row.version(version).and_then(|v| facts(row).get(&v.schema))
}

/// True when objects in the requested version look as they are stored.
fn is_stored_form(w: &Write<'_>) -> bool {
    w.version == w.row.stored && w.row.group == w.row.stored_group
}

fn to_stored(w: &Write<'_>, mut object: Value) -> Result<Value, Status> {
    if !is_stored_form(w) {
        w.row.strategy.convert(&mut object, &w.row.stored_group, &w.row.stored)?;
    }
    Ok(object)
}

fn to_requested(w: &Write<'_>, stored: &Value) -> Result<Value, Status> {
    let mut object = stored.clone();
    if !is_stored_form(w) {
        w.row.strategy.convert(&mut object, &w.row.group, w.version)?;
    }
    Ok(object)
}

/// Notes who owns what in a new object that is in the stored version.
fn track(w: &Write<'_>, live: Option<&Value>, new: &mut Value, now: i64) -> Result<(), Status> {
    let Some(ty) = requested_type(w.row, w.version) else { return Ok(()) };
    let (api_version, now) = (super::api_version(&w.row.group, w.version), object::time(now));
    let facts = facts(w.row);
    let tracker = patch::apply::Tracker {
        facts,
        ty,
        versions: &patch::apply::RowVersions { row: w.row, facts },
        writer: patch::apply::Writer {
            manager: w.manager,
            api_version: &api_version,
            kind: &w.row.kind,
            subresource: w.subresource,
            now: &now,
        },
        reset: patch::apply::Reset::of(w.row, w.subresource),
    };
    if is_stored_form(w) {
        tracker.track_update(live, new);
        return Ok(());
    }
    let live = live.map(|live| to_requested(w, live)).transpose()?;
    let mut shown = to_requested(w, new)?;
    tracker.track_update(live.as_ref(), &mut shown);
    object::copy_meta(new, &shown, "managedFields");
    Ok(())
}

/// The mutating half of admission.
///
/// # Errors
/// The first refusal.
pub async fn mutate(
    w: &Write<'_>, operation: Operation, name: &str, old: Option<&Value>, new: &mut Value,
) -> Result<(), Status> {
    match w.view {
        None => w.api.admission.mutate(&w.review(operation, name, old), new).await?,
        Some(view) => {
            let (old, mut shown) = (old.map(|old| view.show(old)), view.show(new));
            w.api.admission.mutate(&w.review(operation, name, old.as_ref()), &mut shown).await?;
            view.put(new, &shown);
        }
    }
    // What a plugin added is as incomplete as what a client sends.
    w.row.strategy.default(new);
    Ok(())
}

/// The validating half of admission.
///
/// # Errors
/// The first refusal.
pub async fn validate(
    w: &Write<'_>, operation: Operation, name: &str, old: Option<&Value>, new: &Value,
) -> Result<(), Status> {
    let Some(view) = w.view else {
        return w.api.admission.validate(&w.review(operation, name, old), new).await;
    };
    let (old, shown) = (old.map(|old| view.show(old)), view.show(new));
    w.api.admission.validate(&w.review(operation, name, old.as_ref()), &shown).await
}

/// A change of an object in the stored version.
pub type Modify<'a> = dyn Fn(&mut Value) -> Result<(), Status> + Send + Sync + 'a;

/// Changes a stored object by a function of its current state, past strategies and admission: for what upstream does
/// behind them (binding, the eviction's condition, budgets).
///
/// # Errors
/// 404 when the object is not there, and what the function gives.
pub async fn modify(w: &Write<'_>, change: &Modify<'_>) -> Result<Written, Status> {
    until_settled(w, Work::Modify(change)).await
}

async fn modify_once(w: &Write<'_>, key: &str, state: &State, change: &Modify<'_>) -> Result<Outcome, Status> {
    let live = state.object()?.ok_or_else(|| Status::not_found(w.row.group_resource(), w.name))?;
    let mut new = live.clone();
    change(&mut new)?;
    replace(w, key, state, live, new).await
}

//! Delete and deletecollection, for all resources: grace, finalizers and what happens to dependents.

use std::sync::Arc;

use api::Value;
use api::resources::{Propagation, Row};
use api::status::{Details, Of, Status};
use futures::StreamExt as _;
use http::StatusCode;
use parking_lot::Mutex;
use store::{Expect, KeyValue};

use super::engine::{self, PATIENCE, too_slow};
use super::hooks::{self, OnDelete};
use super::options::{DeleteOptions, Preconditions};
use super::state::State;
use super::{facts, failure, input, object, output, read, warn};
use crate::admission::{Operation, Review};
use crate::request::{Answer, Request, User};
use crate::{Api, entry};

/// Finalizer of the garbage collector: dependents are orphaned first.
const ORPHAN: &str = "orphan";
/// Finalizer of the garbage collector: dependents are deleted first.
const FOREGROUND: &str = "foregroundDeletion";

/// Workers of a deletecollection.
const WORKERS: usize = 4;

/// Answers `DELETE` of an object.
///
/// # Errors
/// Whatever upstream answers.
pub async fn delete(api: &Arc<Api>, row: &Arc<Row>, req: &mut Request) -> Result<Answer, Status> {
    let accept = output::negotiate(row, req)?;
    let options = read_options(row, req)?;
    warn_of_orphans(row, req, &options);
    let warnings = Mutex::new(Vec::new());
    let (info, user) = (req.info.clone(), req.user.clone());
    let delete = Delete {
        api,
        row,
        version: &info.version,
        namespace: &info.namespace,
        name: &info.name,
        user: &user,
        options: &options,
        reviewed: false,
        warnings: &warnings,
    };
    let result = delete.run().await;
    warnings.into_inner().into_iter().for_each(|text| warn(&mut req.warnings, text));
    let Deleted { object, gone } = result?;
    // As upstream: 202 only for clients that still ask with `orphanDependents: false`.
    let code = if !gone && options.orphan == Some(false) { StatusCode::ACCEPTED } else { StatusCode::OK };
    if gone && !row.answers_deleted {
        return output::object(api, row, req, &accept, code, success(row, &object).to_value());
    }
    output::object(api, row, req, &accept, code, object)
}

fn read_options(row: &Row, req: &Request) -> Result<DeleteOptions, Status> {
    if req.body.is_empty() {
        return DeleteOptions::from_query(req);
    }
    DeleteOptions::from_object(input::delete_options(req, facts(row))?)
}

/// Jobs keep their pods unless the client says otherwise, which surprises people.
fn warn_of_orphans(row: &Row, req: &mut Request, options: &DeleteOptions) {
    let silent = options.propagation.is_none() && options.orphan.is_none();
    if silent && row.group == "batch" && row.plural == "jobs" && default_propagation(row) == Propagation::Orphan {
        let text = "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to \
                    remove them or set propagationPolicy=Orphan to suppress this warning";
        warn(&mut req.warnings, text.to_string());
    }
}

/// Answers `DELETE` of a collection: the list of what was deleted.
///
/// # Errors
/// Whatever upstream answers.
pub async fn delete_collection(api: &Arc<Api>, row: &Arc<Row>, req: &mut Request) -> Result<Answer, Status> {
    let accept = output::negotiate(row, req)?;
    let selection = read::select(api, row, req);
    let (meta, items) = selection.await?;
    let options = read_options(row, req)?;
    warn_of_orphans(row, req, &options);
    let warnings = Mutex::new(Vec::new());
    let (info, user) = (req.info.clone(), req.user.clone());
    let results = futures::stream::iter(items.clone().into_iter().map(|item| {
        let (info, user, options, warnings) = (&info, &user, &options, &warnings);
        async move {
            let delete = Delete {
                api,
                row,
                version: &info.version,
                namespace: item.entry.namespace(),
                name: item.entry.name(),
                user,
                options,
                reviewed: false,
                warnings,
            };
            delete.run().await
        }
    }))
    .buffer_unordered(WORKERS)
    .collect::<Vec<_>>()
    .await;
    warnings.into_inner().into_iter().for_each(|text| warn(&mut req.warnings, text));
    match results.into_iter().filter_map(Result::err).find(|status| status.reason != "NotFound") {
        Some(status) => Err(status),
        None => output::list(api, row, req, &accept, meta, items),
    }
}

/// The Status that answers a deletion whose object is not shown.
fn success(row: &Row, object: &Value) -> Status {
    let details = Details {
        name: object::name(object).into(),
        group: row.group.to_string(),
        kind: row.plural.to_string(),
        uid: object::uid(object).into(),
        ..Details::default()
    };
    Status { details: Some(Box::new(details)), ..Status::new(0, "", "") }
}

/// A deletion.
pub struct Delete<'a> {
    /// The server.
    pub api: &'a Arc<Api>,
    /// The resource.
    pub row: &'a Arc<Row>,
    /// Version of the request.
    pub version: &'a str,
    /// Namespace; empty for cluster-scoped objects.
    pub namespace: &'a str,
    /// Name.
    pub name: &'a str,
    /// Who deletes.
    pub user: &'a User,
    /// Options.
    pub options: &'a DeleteOptions,
    /// Admission has seen already what leads to this deletion.
    pub reviewed: bool,
    /// Warnings for the client.
    pub warnings: &'a Mutex<Vec<String>>,
}

/// What a deletion left behind.
pub struct Deleted {
    /// The object as it was or, while it waits for its end, as it is; in the stored version.
    pub object: Value,
    /// It is gone.
    pub gone: bool,
}

/// What a deletion does to the state it finds.
enum Step {
    /// Nothing: it is being deleted already.
    Keep,
    /// Marks it, and waits.
    Mark(Value),
    /// Marks it with no grace left, so that watchers see it, and removes it.
    MarkAndRemove(Value),
    /// Removes it.
    Remove,
}

enum Outcome {
    Done(Box<Deleted>),
    /// Somebody else was faster.
    Lost(Option<KeyValue>),
    /// Marked; the second step is due.
    Marked(Box<KeyValue>),
}

impl Delete<'_> {
    /// Deletes.
    ///
    /// # Errors
    /// Whatever upstream answers.
    pub async fn run(&self) -> Result<Deleted, Status> {
        tokio::time::timeout(PATIENCE, self.settle()).await.unwrap_or_else(|_| Err(too_slow()))
    }

    async fn settle(&self) -> Result<Deleted, Status> {
        let key = entry::key(&self.api.settings.etcd_prefix, self.row, self.namespace, self.name);
        let mut state = State::guess(self.api, &key);
        let mut preconditions = self.options.preconditions.clone();
        let mut marked = None;
        loop {
            match self.attempt(&key, &state, &preconditions, marked.is_some()).await {
                Ok(Outcome::Done(deleted)) => return Ok(*deleted),
                Ok(Outcome::Marked(kv)) => {
                    if preconditions.resource_version.is_some() {
                        preconditions.resource_version = Some(kv.mod_revision.to_string());
                    }
                    state = State::found(self.api, Some(*kv));
                    marked = state.object()?;
                }
                Ok(Outcome::Lost(None)) if marked.is_some() => {
                    // Another one finished what this request began: gone is gone.
                    let object = marked.unwrap_or_default();
                    hooks::of(self.row).after_delete(self.api, self.row, &object).await;
                    return Ok(Deleted { object, gone: true });
                }
                Ok(Outcome::Lost(kv)) => state = State::found(self.api, kv),
                Err(status) if state.fresh => return Err(status),
                Err(status) => {
                    let (kv, _) = self.api.store.get(&key).await.map_err(|e| self.failure(e))?;
                    let found = State::found(self.api, kv);
                    if found.revision == state.revision {
                        return Err(status);
                    }
                    state = found;
                }
            }
        }
    }

    fn failure(&self, error: store::Error) -> Status {
        failure(error, self.row, self.name, "delete")
    }

    async fn attempt(
        &self, key: &str, state: &State, preconditions: &Preconditions, marked: bool,
    ) -> Result<Outcome, Status> {
        let Some(object) = state.object()? else {
            return Err(Status::not_found(self.row.group_resource(), self.name));
        };
        check(preconditions, &object, Of { group: &self.row.stored_group, name: &self.row.kind })?;
        if let Some(OnDelete::Refuse(why)) = hooks::of(self.row).on_delete(&object, self.options, 0) {
            return Err(Status::forbidden(self.row.group_resource(), self.name, why));
        }
        if marked && self.finalized(&object) {
            return self.remove(key, state, object).await;
        }
        match self.decide(&object, object::now()) {
            Step::Keep => Ok(Outcome::Done(Box::new(Deleted { object, gone: false }))),
            Step::Remove => {
                self.review(&object).await?;
                self.remove(key, state, object).await
            }
            Step::Mark(new) => {
                self.review(&object).await?;
                self.mark(key, state, object, new, false).await
            }
            Step::MarkAndRemove(new) => {
                self.review(&object).await?;
                self.mark(key, state, object, new, true).await
            }
        }
    }

    /// A marked object may go when nobody has added a finalizer meanwhile.
    fn finalized(&self, object: &Value) -> bool {
        object::finalizers(object).is_empty() && object::grace(object).unwrap_or_default() == 0
    }

    fn decide(&self, object: &Value, now: i64) -> Step {
        match hooks::of(self.row).on_delete(object, self.options, now) {
            Some(OnDelete::Write(new)) => return Step::Mark(new),
            Some(OnDelete::Keep | OnDelete::Refuse(_)) => return Step::Keep,
            None => {}
        }
        decide(self.row, object, self.options, now)
    }

    async fn review(&self, old: &Value) -> Result<(), Status> {
        if self.reviewed {
            return Ok(());
        }
        let review = Review {
            api: self.api,
            row: self.row,
            version: self.version,
            kind: (&self.row.group, self.version, &self.row.kind),
            namespace: self.namespace,
            name: self.name,
            subresource: "",
            operation: Operation::Delete,
            user: self.user,
            dry_run: self.options.dry_run,
            options: &self.options.object,
            old: Some(old),
            warnings: self.warnings,
        };
        let mut nothing = Value::Null;
        self.api.admission.mutate(&review, &mut nothing).await?;
        self.api.admission.validate(&review, &nothing).await
    }

    async fn mark(
        &self, key: &str, state: &State, old: Value, mut new: Value, remove: bool,
    ) -> Result<Outcome, Status> {
        if self.options.dry_run || new == old {
            return Ok(Outcome::Done(Box::new(Deleted { object: new, gone: remove })));
        }
        let value = engine::encode(self.row, &mut new);
        match self.api.store.put(key, value.clone(), Expect::At(state.revision), 0).await {
            Ok(revision) => {
                self.api.admission.wrote(revision);
                let kv = KeyValue { key: Arc::from(key), value, mod_revision: revision, create_revision: 0 };
                if remove {
                    return Ok(Outcome::Marked(Box::new(kv)));
                }
                object::set_meta(&mut new, "resourceVersion", revision.to_string());
                Ok(Outcome::Done(Box::new(Deleted { object: new, gone: false })))
            }
            Err(store::Error::Conflict(kv)) => Ok(Outcome::Lost(kv)),
            Err(e) => Err(self.failure(e)),
        }
    }

    async fn remove(&self, key: &str, state: &State, mut object: Value) -> Result<Outcome, Status> {
        if self.options.dry_run {
            return Ok(Outcome::Done(Box::new(Deleted { object, gone: true })));
        }
        match self.api.store.delete(key, state.revision).await {
            Ok((_, revision)) => {
                self.api.admission.wrote(revision);
                object::set_meta(&mut object, "resourceVersion", revision.to_string());
                hooks::of(self.row).after_delete(self.api, self.row, &object).await;
                Ok(Outcome::Done(Box::new(Deleted { object, gone: true })))
            }
            Err(store::Error::Conflict(kv)) => Ok(Outcome::Lost(kv)),
            Err(e) => Err(self.failure(e)),
        }
    }
}

/// Checks what must hold of an object.
///
/// # Errors
/// 409 when it does not hold.
pub fn check(preconditions: &Preconditions, object: &Value, of: Of<'_>) -> Result<(), Status> {
    let (uid, version) = (object::uid(object), object::meta_text(object, "resourceVersion"));
    if let Some(wanted) = preconditions.uid.as_deref().filter(|wanted| *wanted != uid) {
        let why = format!(
            "the UID in the precondition ({wanted}) does not match the UID in record ({uid}). The object might have \
             been deleted and then recreated"
        );
        return Err(Status::conflict(of, object::name(object), why));
    }
    if let Some(wanted) = preconditions.resource_version.as_deref().filter(|wanted| *wanted != version) {
        let why = format!(
            "the ResourceVersion in the precondition ({wanted}) does not match the ResourceVersion in record \
             ({version}). The object might have been modified"
        );
        return Err(Status::conflict(of, object::name(object), why));
    }
    Ok(())
}

/// What a deletion does to an object: the rules of grace and of finalizers, without I/O.
fn decide(row: &Row, object: &Value, options: &DeleteOptions, now: i64) -> Step {
    let graceful = match graceful(row, object, options, now) {
        Grace::Pending => return Step::Keep,
        Grace::None => None,
        Grace::Until(marked) => Some(marked),
    };
    let finalizers = collector_finalizers(object, options, default_propagation(row));
    let waits = !finalizers.as_ref().unwrap_or(&object::finalizers(object)).is_empty();
    let with_finalizers = |mut object: Value| {
        if let Some(finalizers) = finalizers.clone() {
            object::set_finalizers(&mut object, finalizers);
        }
        object
    };
    match graceful {
        Some((marked, 0)) if !waits => Step::MarkAndRemove(with_finalizers(marked)),
        Some((marked, _)) => Step::Mark(with_finalizers(marked)),
        None if waits => Step::Mark(mark_now(with_finalizers(object.clone()), now)),
        None => Step::Remove,
    }
}

/// What grace an object gets.
enum Grace {
    /// None: it goes at once.
    None,
    /// It has that much grace already, and this request does not shorten it.
    Pending,
    /// It is marked, with so many seconds of grace.
    Until((Value, i64)),
}

fn graceful(row: &Row, object: &Value, options: &DeleteOptions, now: i64) -> Grace {
    let asked = options.grace.map(|seconds| if seconds < 0 { 1 } else { seconds });
    let Some(period) = row.strategy.grace_period(object, asked) else { return Grace::None };
    if object::deleting(object) {
        return shorten(object, asked, now);
    }
    let mut marked = object.clone();
    object::set_meta(&mut marked, "deletionTimestamp", object::time(now + period));
    object::set_meta(&mut marked, "deletionGracePeriodSeconds", period);
    bump_generation(&mut marked);
    Grace::Until((marked, period))
}

/// A second deletion may only shorten the grace of the first.
fn shorten(object: &Value, asked: Option<i64>, now: i64) -> Grace {
    let current = match object::grace(object) {
        None | Some(0) => return Grace::None,
        Some(seconds) if seconds < 0 => 1,
        Some(seconds) => seconds,
    };
    let Some(mut period) = asked.filter(|asked| *asked < current) else { return Grace::Pending };
    let began = object::seconds(object::meta_text(object, "deletionTimestamp")).unwrap_or(now) - current;
    let mut end = began + period;
    if end < now {
        end = now;
        // The whole period is over, but somebody must still see it end gracefully.
        period = period.min(1);
    }
    let mut marked = object.clone();
    object::set_meta(&mut marked, "deletionTimestamp", object::time(end));
    object::set_meta(&mut marked, "deletionGracePeriodSeconds", period);
    Grace::Until((marked, period))
}

fn bump_generation(object: &mut Value) {
    let generation = object::generation(object);
    if generation > 0 {
        object::set_meta(object, "generation", generation + 1);
    }
}

/// Marks an object that waits for its finalizers and has no grace.
fn mark_now(mut object: Value, now: i64) -> Value {
    if !object::deleting(&object) {
        bump_generation(&mut object);
    }
    let later = object::seconds(object::meta_text(&object, "deletionTimestamp")).is_none_or(|time| time > now);
    if later {
        object::set_meta(&mut object, "deletionTimestamp", object::time(now));
    }
    object::set_meta(&mut object, "deletionGracePeriodSeconds", 0);
    object
}

fn default_propagation(row: &Row) -> Propagation {
    row.strategy.default_propagation()
}

/// The finalizers an object has once the garbage collector's two are as the options want them; `None` when they are so
/// already.
pub fn collector_finalizers(object: &Value, options: &DeleteOptions, default: Propagation) -> Option<Vec<String>> {
    let old = object::finalizers(object);
    let mut new: Vec<String> = old.iter().filter(|f| *f != ORPHAN && *f != FOREGROUND).cloned().collect();
    match propagation(&old, options, default) {
        Propagation::Orphan => new.push(ORPHAN.into()),
        Propagation::Foreground => new.push(FOREGROUND.into()),
        Propagation::Background | Propagation::Unsupported => {}
    }
    let same = old.len() == new.len() && old.iter().all(|f| new.contains(f));
    (!same).then_some(new)
}

/// Options come first, then a finalizer that the object has, then the row's default.
fn propagation(finalizers: &[String], options: &DeleteOptions, default: Propagation) -> Propagation {
    if default == Propagation::Unsupported {
        return default;
    }
    match (options.orphan, options.propagation.as_deref()) {
        (Some(true), _) | (None, Some("Orphan")) => return Propagation::Orphan,
        (Some(false), _) | (None, Some("Background")) => return Propagation::Background,
        (None, Some("Foreground")) => return Propagation::Foreground,
        _ => {}
    }
    match finalizers.iter().find(|f| *f == ORPHAN || *f == FOREGROUND).map(String::as_str) {
        Some(ORPHAN) => Propagation::Orphan,
        Some(_) => Propagation::Foreground,
        None => default,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn options(text: &str) -> DeleteOptions {
        DeleteOptions::from_object(serde_json::from_str(text).unwrap()).unwrap()
    }

    #[test]
    fn options_override_finalizers_which_override_the_default() {
        let object = json!({"metadata": {"finalizers": ["a/b", "orphan"]}});
        let want = |text: &str| collector_finalizers(&object, &options(text), Propagation::Background);
        assert_eq!(want("{}"), None);
        assert_eq!(want(r#"{"propagationPolicy": "Background"}"#), Some(vec!["a/b".into()]));
        assert_eq!(want(r#"{"propagationPolicy": "Foreground"}"#), Some(vec!["a/b".into(), FOREGROUND.into()]));
        assert_eq!(want(r#"{"orphanDependents": false}"#), Some(vec!["a/b".into()]));
        let plain = json!({"metadata": {}});
        let default = collector_finalizers(&plain, &options("{}"), Propagation::Orphan);
        assert_eq!(default, Some(vec![ORPHAN.into()]));
    }

    #[test]
    fn a_second_delete_only_shortens_the_grace() {
        let object = json!({"metadata": {"deletionTimestamp": object::time(1030), "deletionGracePeriodSeconds": 30}});
        assert!(matches!(shorten(&object, None, 1000), Grace::Pending));
        assert!(matches!(shorten(&object, Some(30), 1000), Grace::Pending));
        let Grace::Until((marked, 5)) = shorten(&object, Some(5), 1000) else { panic!("shortened to 5") };
        assert_eq!(object::meta_text(&marked, "deletionTimestamp"), object::time(1005));
        // Four seconds are over; of a grace of three nothing is left, but it still ends gracefully.
        let Grace::Until((marked, 1)) = shorten(&object, Some(3), 1004) else { panic!("shortened to 1") };
        assert_eq!(object::meta_text(&marked, "deletionTimestamp"), object::time(1004));
    }

    #[test]
    fn an_object_without_grace_that_waits_for_finalizers_is_marked_once() {
        let object = json!({"metadata": {"generation": 1, "finalizers": ["a/b"]}});
        let marked = mark_now(object, 1000);
        assert_eq!(object::generation(&marked), 2);
        let again = mark_now(marked.clone(), 2000);
        assert_eq!(again, marked);
    }
}

//! Subresources that are not streams: status, scale, binding, eviction, token and so on.
//!
//! Most have the object's own kind and go through the engine like the object itself, with a strategy that knows the
//! subresource. Those with a kind of their own have a file here.

pub mod binding;
mod eviction;
mod scale;
pub mod token;

use std::sync::Arc;

use api::Value;
use api::patch::apply::{OneVersion, Reset, Tracker, Writer};
use api::resources::Row;
use api::status::Status;
use http::StatusCode;

use crate::Api;
use crate::registry::engine::Write;
use crate::registry::input::{self, Expected};
use crate::registry::options::{Kind, Options};
use crate::registry::output::{self, Accept};
use crate::registry::write::{not_allowed, with};
use crate::registry::{api_version, facts, lifecycle, object, patch, read, write};
use crate::request::{Answer, Request};

/// Answers a request to a subresource of a row, any verb. The dispatcher has checked that the row has the subresource
/// and the subresource the verb; streams (log, exec, attach, portforward, proxy) are not for this function.
///
/// # Errors
/// Whatever upstream answers.
pub async fn serve(api: &Arc<Api>, row: &Arc<Row>, req: &mut Request) -> Result<Answer, Status> {
    let (subresource, verb) = (req.info.subresource.clone(), req.info.verb.clone());
    match (subresource.as_str(), verb.as_str()) {
        ("scale", "get") => scale::get(api, row, req).await,
        ("scale", "update" | "patch") => scale::update(api, row, req).await,
        ("binding", "create") => binding::create(api, row, req).await,
        ("eviction", "create") => eviction::create(api, row, req).await,
        ("token", "create") => token::create(api, row, req).await,
        (_, "get") => read::get(api, row, req).await,
        (_, "update") => write::update(api, row, req).await,
        (_, "patch") => patch::patch(api, row, req).await,
        _ => Err(not_allowed()),
    }
}

/// Reads what is common to all creations of an object that is stored in another form or not at all: the object, after
/// the checks that a body gets, and the options.
struct Creation {
    accept: Accept,
    options: Options,
    object: Value,
}

/// What a kind of creation does with the metadata that the client sends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Metadata {
    /// UID and times are erased.
    Wiped,
    /// They are kept, as preconditions.
    Kept,
}

impl Creation {
    fn read(row: &Arc<Row>, req: &mut Request, expected: &Expected<'_>, metadata: Metadata) -> Result<Self, Status> {
        let accept = output::negotiate(row, req)?;
        input::encoding(req)?;
        let options = Options::read(req, Kind::Create)?;
        let mut object = input::decode(req, expected, options.validation)?;
        if metadata == Metadata::Wiped {
            lifecycle::wipe(&mut object);
        }
        api::meta::match_namespace(&mut object, &req.info.namespace)?;
        Ok(Self { accept, options, object })
    }
}

/// Notes who owns what in an object of its own kind.
fn track(w: &Write<'_>, old: Option<&Value>, new: &mut Value) {
    let (group, version, kind) = w.kind;
    let Some(ty) = facts(w.row).kind(group, version, kind) else { return };
    let (api_version, now) = (api_version(group, version), object::time(object::now()));
    let writer = Writer { manager: w.manager, api_version: &api_version, kind, subresource: w.subresource, now: &now };
    Tracker { facts: facts(w.row), ty, versions: &OneVersion, writer, reset: Reset::default() }.track_update(old, new);
}

/// The Status that answers a creation which leaves nothing to show.
fn created(api: &Arc<Api>, row: &Arc<Row>, req: &Request, accept: &Accept) -> Result<Answer, Status> {
    output::object(api, row, req, accept, StatusCode::CREATED, Status::new(201, "", "").to_value())
}

/// Runs a write whose requests carry objects of their own kind.
async fn with_kind<T>(
    api: &Arc<Api>, row: &Arc<Row>, req: &mut Request, options: &Options, kind: (&str, &str, &str),
    run: impl AsyncFnOnce(Write<'_>) -> Result<T, Status>,
) -> Result<T, Status> {
    with(api, row, req, options, async |w| run(Write { kind, ..w }).await).await
}

/// Sets a condition in a list of conditions as pods have them. The time of the last transition stays where the status
/// does.
fn set_condition(conditions: &mut Vec<Value>, mut condition: Value, now: i64) {
    condition["lastProbeTime"] = Value::Null;
    condition["lastTransitionTime"] = object::time(now).into();
    let kind = condition["type"].clone();
    match conditions.iter_mut().find(|c| c["type"] == kind) {
        Some(old) => {
            if old["status"] == condition["status"] {
                condition["lastTransitionTime"] = old["lastTransitionTime"].take();
            }
            *old = condition;
        }
        None => conditions.push(condition),
    }
}

/// The conditions of an object's status, made where they are missing.
fn conditions(object: &mut Value) -> &mut Vec<Value> {
    let status = object::fields(object, &["status"]);
    let list = status.entry("conditions").or_insert_with(|| Value::Array(Vec::new()));
    if !list.is_array() {
        *list = Value::Array(Vec::new());
    }
    match list {
        Value::Array(items) => items,
        _ => unreachable!("made a list above"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_condition_keeps_its_transition_time_while_its_status_stays() {
        let mut pod = json!({});
        set_condition(conditions(&mut pod), json!({"type": "PodScheduled", "status": "True"}), 1000);
        set_condition(conditions(&mut pod), json!({"type": "PodScheduled", "status": "True", "reason": "R"}), 2000);
        let want = json!([{
            "type": "PodScheduled", "status": "True", "reason": "R", "lastProbeTime": null,
            "lastTransitionTime": object::time(1000),
        }]);
        assert_eq!(pod["status"]["conditions"], want);
        set_condition(conditions(&mut pod), json!({"type": "PodScheduled", "status": "False"}), 3000);
        assert_eq!(pod["status"]["conditions"][0]["lastTransitionTime"], object::time(3000));
    }
}

//! Create and update, for all resources.

use std::sync::Arc;

use api::Value;
use api::resources::Row;
use api::status::Status;
use http::StatusCode;
use parking_lot::Mutex;

use super::engine::{self, Edited, Terms, Write, Written};
use super::input::{self, Expected};
use super::options::{Kind, Options, printable};
use super::output::{self, Accept};
use super::{api_version, facts, object, warn};
use crate::Api;
use crate::request::{Answer, Request};

/// What is answered to a method that a resource does not have.
pub fn not_allowed() -> Status {
    let mut status =
        Status::new(405, "MethodNotAllowed", "the server does not allow this method on the requested resource");
    status.details = Some(Box::default());
    status
}

/// Answers `POST` to a collection.
///
/// # Errors
/// Whatever upstream answers.
pub async fn create(api: &Arc<Api>, row: &Arc<Row>, req: &mut Request) -> Result<Answer, Status> {
    let accept = output::negotiate(row, req)?;
    input::encoding(req)?;
    let options = Options::read(req, Kind::Create)?;
    let version = req.info.version.clone();
    let decoded = input::decode(req, &expected(row, &version), options.validation)?;
    let written = with(api, row, req, &options, async |w| engine::create(&w, decoded).await).await?;
    answer(api, row, req, &accept, written)
}

/// Answers `PUT` to an object or to a subresource that has the object's own kind (`status`, `finalize` …).
///
/// # Errors
/// As [`create`], and 409 when the object has changed.
pub async fn update(api: &Arc<Api>, row: &Arc<Row>, req: &mut Request) -> Result<Answer, Status> {
    let accept = output::negotiate(row, req)?;
    let options = Options::read(req, Kind::Update)?;
    let version = req.info.version.clone();
    let mut decoded = input::decode(req, &expected(row, &version), options.validation)?;
    api::meta::match_namespace(&mut decoded, &req.info.namespace)?;
    input::check_name(&decoded, &req.info.name)?;
    let uid = object::uid(&decoded).to_string();
    let terms = Terms { create: row.create_on_update && req.info.subresource.is_empty(), uid: Some(&uid) };
    let written = with(api, row, req, &options, async |w| {
        super::lifecycle::dedup_owners(&w, &mut decoded, false);
        let edit = |_: Option<&Value>| Ok(Edited { object: decoded.clone(), tracked: false });
        engine::update(&w, terms, &edit).await
    })
    .await?;
    answer(api, row, req, &accept, written)
}

/// The kind that a request to this row has in its body.
pub fn expected<'a>(row: &'a Row, version: &'a str) -> Expected<'a> {
    Expected {
        facts: facts(row),
        group: &row.group,
        version,
        kind: &row.kind,
        internal_group: &row.stored_group,
        also: &[],
    }
}

/// Runs a write in the name of a request; its warnings become the request's, also when it fails.
///
/// # Errors
/// What the write gives.
pub async fn with<T>(
    api: &Arc<Api>, row: &Arc<Row>, req: &mut Request, options: &Options,
    run: impl AsyncFnOnce(Write<'_>) -> Result<T, Status>,
) -> Result<T, Status> {
    let warnings = Mutex::new(Vec::new());
    let manager = manager(req, options);
    let (info, user) = (req.info.clone(), req.user.clone());
    let write = Write {
        api,
        row,
        version: &info.version,
        namespace: &info.namespace,
        name: &info.name,
        subresource: &info.subresource,
        user: &user,
        manager: &manager,
        options,
        kind: (&row.group, &info.version, &row.kind),
        view: None,
        warnings: &warnings,
    };
    let result = run(write).await;
    warnings.into_inner().into_iter().for_each(|text| warn(&mut req.warnings, text));
    result
}

/// The field manager that the client names, or what stands before the first slash of its user agent.
pub fn manager(req: &Request, options: &Options) -> String {
    if !options.field_manager.is_empty() {
        return options.field_manager.clone();
    }
    let agent = req.headers.get(http::header::USER_AGENT).map_or("", |h| h.to_str().unwrap_or_default());
    let name = agent.split('/').next().unwrap_or_default();
    let mut manager = String::new();
    for c in name.chars().filter(|c| printable(*c)) {
        if manager.len() + c.len_utf8() > 128 {
            break;
        }
        manager.push(c);
    }
    manager
}

/// Answers what was written.
///
/// # Errors
/// 500 when it can't be said in the version of the request.
pub fn answer(
    api: &Arc<Api>, row: &Arc<Row>, req: &Request, accept: &Accept, written: Written,
) -> Result<Answer, Status> {
    let code = if written.created { StatusCode::CREATED } else { StatusCode::OK };
    match &written.kv {
        Some(kv) => output::stored(api, row, req, accept, code, kv),
        None => output::object(api, row, req, accept, code, typed(row, written.object)),
    }
}

/// Makes sure that an object in the stored version says so.
fn typed(row: &Row, mut object: Value) -> Value {
    object["apiVersion"] = api_version(&row.stored_group, &row.stored).into();
    object["kind"] = row.kind.as_ref().into();
    object
}

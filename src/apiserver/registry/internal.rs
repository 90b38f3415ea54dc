//! The verbs on values, for callers inside the API server (bootstrap, reconcilers): the same engine without HTTP, in
//! the name of `system:apiserver`. Objects are in the stored version.

use std::sync::{Arc, LazyLock};

use api::Value;
use api::resources::Row;
use api::status::Status;
use parking_lot::Mutex;

use super::delete::Delete;
use super::engine::{self, Edited, Terms, Write};
use super::options::{DeleteOptions, Kind, Options};
use super::state::State;
use super::{failure, object};
use crate::request::User;
use crate::{Api, entry};

/// The server's own user.
pub fn user() -> &'static User {
    static USER: LazyLock<User> = LazyLock::new(|| User {
        name: "system:apiserver".into(),
        groups: vec!["system:masters".into(), "system:authenticated".into()],
        ..User::default()
    });
    &USER
}

/// Field manager of what the server writes by itself.
const MANAGER: &str = "kube-apiserver";

/// Reads an object from the store, linearizable.
///
/// # Errors
/// 404 when it is not there.
pub async fn get(api: &Arc<Api>, row: &Arc<Row>, namespace: &str, name: &str) -> Result<Value, Status> {
    let key = entry::key(&api.settings.etcd_prefix, row, namespace, name);
    let (kv, _) = api.store.get(&key).await.map_err(|e| failure(e, row, name, "get"))?;
    State::found(api, kv).object()?.ok_or_else(|| Status::not_found(row.group_resource(), name))
}

/// All objects of a resource (of a namespace where one is given) as the cache has them now.
///
/// # Errors
/// When one can't be decoded: whoever decides by what is there must not take it for absent.
pub fn list(api: &Arc<Api>, row: &Arc<Row>, namespace: &str) -> Result<Vec<Value>, Status> {
    let snapshot = api.cache.snapshot(&entry::resource_prefix(&api.settings.etcd_prefix, row));
    let wanted = snapshot.entries.values().filter(|c| namespace.is_empty() || c.entry.namespace() == namespace);
    wanted.map(|cached| cached.entry.parse().map_err(Status::internal)).collect()
}

/// Runs a write in the server's own name.
async fn write<T>(
    api: &Arc<Api>, row: &Arc<Row>, place: (&str, &str, &str), kind: Kind,
    run: impl AsyncFnOnce(Write<'_>) -> Result<T, Status>,
) -> Result<T, Status> {
    let (namespace, name, subresource) = place;
    // Told apart from the owners of clients by the manager; nobody reads its warnings.
    let (options, warnings) = (Options::internal(kind, MANAGER), Mutex::new(Vec::new()));
    let version = stored_request_version(row);
    run(Write {
        api,
        row,
        version,
        namespace,
        name,
        subresource,
        user: user(),
        manager: MANAGER,
        options: &options,
        kind: (&row.group, version, &row.kind),
        view: None,
        warnings: &warnings,
    })
    .await
}

/// The row's version whose objects look as they are stored.
fn stored_request_version(row: &Row) -> &str {
    &row.stored
}

/// Creates an object; answers what was stored.
///
/// # Errors
/// As `POST`.
pub async fn create(api: &Arc<Api>, row: &Arc<Row>, namespace: &str, object: Value) -> Result<Value, Status> {
    write(api, row, (namespace, "", ""), Kind::Create, async |w| engine::create(&w, object).await.map(|d| d.object))
        .await
}

/// Changes an object by a function of its current state, which is called again when the write loses a race. The
/// subresource is `status`, `scale` … or empty.
///
/// # Errors
/// As `PUT`, and what the function gives.
pub async fn update(
    api: &Arc<Api>, row: &Arc<Row>, namespace: &str, name: &str, subresource: &str,
    change: &(dyn Fn(Value) -> Result<Value, Status> + Send + Sync),
) -> Result<Value, Status> {
    let edit = |live: Option<&Value>| {
        let live = live.ok_or_else(|| Status::not_found(row.group_resource(), name))?;
        Ok(Edited { object: change(live.clone())?, tracked: false })
    };
    let place = (namespace, name, subresource);
    write(api, row, place, Kind::Update, async |w| engine::update(&w, Terms::default(), &edit).await.map(|d| d.object))
        .await
}

/// Deletes an object, in the background.
///
/// # Errors
/// As `DELETE`.
pub async fn delete(api: &Arc<Api>, row: &Arc<Row>, namespace: &str, name: &str) -> Result<(), Status> {
    let (options, warnings) = (DeleteOptions::internal(), Mutex::new(Vec::new()));
    let version = stored_request_version(row);
    let delete = Delete {
        api,
        row,
        version,
        namespace,
        name,
        user: user(),
        options: &options,
        reviewed: false,
        warnings: &warnings,
    };
    delete.run().await.map(|_| ())
}

/// As [`list`], but linearizable.
///
/// # Errors
/// When the store does not answer.
pub async fn list_now(api: &Arc<Api>, row: &Arc<Row>, namespace: &str) -> Result<Vec<Value>, Status> {
    api.cache.refresh().await.map_err(|e| failure(e, row, "", "list"))?;
    list(api, row, namespace)
}

/// True when an object is there, by the cache.
pub fn exists(api: &Arc<Api>, row: &Row, namespace: &str, name: &str) -> bool {
    api.cache.get(&entry::key(&api.settings.etcd_prefix, row, namespace, name)).is_some()
}

/// The name of an object.
pub fn name(object: &Value) -> &str {
    object::name(object)
}

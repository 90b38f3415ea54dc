//! `scale`: the number of replicas as an object of its own, autoscaling/v1 Scale.

use std::sync::Arc;

use api::field::{Error, Errors, Path};
use api::patch::apply::{self, ReplicasPaths};
use api::resources::Row;
use api::selector::LabelSelector;
use api::status::{Of, Status};
use api::{Map, Value};
use http::StatusCode;
use serde_json::json;

use super::{track, with_kind};
use crate::registry::engine::{self, Edited, Terms, View, Write};
use crate::registry::input::{self, Expected};
use crate::registry::options::{Kind, Options};
use crate::registry::patch::{Method, Patcher, Target, method};
use crate::registry::{api_version, facts, object, output};
use crate::request::{Answer, Request};
use crate::{Api, entry};

const KIND: (&str, &str, &str) = ("autoscaling", "v1", "Scale");
const API_VERSION: &str = "autoscaling/v1";

/// Answers `GET`.
///
/// # Errors
/// 404 when the object is not there.
pub async fn get(api: &Arc<Api>, row: &Arc<Row>, req: &mut Request) -> Result<Answer, Status> {
    let accept = output::negotiate(row, req)?;
    let missing = || Status::not_found(row.group_resource(), &req.info.name);
    let key = entry::key(&api.settings.etcd_prefix, row, &req.info.namespace, &req.info.name);
    api.cache.refresh().await.map_err(|e| crate::registry::failure(e, row, &req.info.name, "get"))?;
    let live = api.cache.get(&key).ok_or_else(missing)?.entry.parse()?;
    output::object(api, row, req, &accept, StatusCode::OK, Scale.show(&live))
}

/// How a request changes a Scale.
enum Change {
    Put(Value),
    Patch(Method),
}

/// Answers `PUT` and `PATCH`.
///
/// # Errors
/// Whatever upstream answers.
pub async fn update(api: &Arc<Api>, row: &Arc<Row>, req: &mut Request) -> Result<Answer, Status> {
    let patched = req.info.verb == "patch";
    let kind = if patched { Kind::Patch(method(req)? == Method::Apply) } else { Kind::Update };
    let accept = output::negotiate(row, req)?;
    let options = Options::read(req, kind)?;
    let change = if patched { Change::Patch(method(req)?) } else { Change::Put(read_body(row, req, &options)?) };
    let body = req.body.clone();
    let written = with_kind(api, row, req, &options, KIND, async |w| {
        let w = Write { view: Some(&Scale), ..w };
        let edit = |live: Option<&Value>| edit(&w, &change, &body, live);
        engine::update(&w, Terms::default(), &edit).await
    })
    .await?;
    output::object(api, row, req, &accept, StatusCode::OK, Scale.show(&written.object))
}

fn read_body(row: &Row, req: &mut Request, options: &Options) -> Result<Value, Status> {
    let (group, version, kind) = KIND;
    let expected = Expected { facts: facts(row), group, version, kind, internal_group: group, also: &[] };
    let mut scale = input::decode(req, &expected, options.validation)?;
    api::meta::match_namespace(&mut scale, &req.info.namespace)?;
    input::check_name(&scale, &req.info.name)?;
    Ok(scale)
}

/// Changes the Scale that an object shows, and takes the change over into the object.
fn edit(w: &Write<'_>, change: &Change, body: &[u8], live: Option<&Value>) -> Result<Edited, Status> {
    let live = live.ok_or_else(|| Status::not_found(w.row.group_resource(), w.name))?;
    let parent = api_version(&w.row.group, w.version);
    let paths: ReplicasPaths<'_> = &[(&parent, &["spec", "replicas"])];
    let owners = owners_of(live);
    let mut before = Scale.show(live);
    set_owners(&mut before, apply::scale_to_subresource(&owners, paths));
    let mut scale = match change {
        Change::Put(scale) => scale.clone(),
        Change::Patch(method) => patch(w, *method, body, &before)?,
    };
    if !matches!(change, Change::Patch(Method::Apply)) {
        track(w, Some(&before), &mut scale);
    }
    check(w, &scale, live)?;
    let mut object = live.clone();
    Scale.put(&mut object, &scale);
    object::copy_meta(&mut object, &scale, "resourceVersion");
    set_owners(&mut object, apply::scale_to_parent(&owners, &owners_of(&scale), &parent, paths));
    Ok(Edited { object, tracked: true })
}

fn owners_of(object: &Value) -> Value {
    object::meta(object, "managedFields").cloned().unwrap_or_default()
}

fn set_owners(object: &mut Value, owners: Option<Value>) {
    match owners {
        Some(owners) => object::set_meta(object, "managedFields", owners),
        None => object::unset_meta(object, "managedFields"),
    }
}

fn patch(w: &Write<'_>, method: Method, body: &[u8], before: &Value) -> Result<Value, Status> {
    let (group, version, kind) = KIND;
    let ty = facts(w.row).kind(group, version, kind).ok_or_else(|| Status::internal("no facts about Scale"))?;
    let target = Target { ty, api_version: API_VERSION.into(), kind: kind.into(), internal_group: group.into() };
    let patcher = Patcher { w, method, body, target: &target, reset: Default::default() };
    patcher.edit(Some(before)).map(|edited| edited.object)
}

fn check(w: &Write<'_>, scale: &Value, live: &Value) -> Result<(), Status> {
    let replicas = replicas(scale, "spec");
    if replicas < 0 {
        let path = Path::new("spec").child("replicas");
        let errors = Errors(vec![Error::invalid(&path, replicas, "must be greater than or equal to 0")]);
        return Err(Status::invalid(Of { group: "autoscaling", name: "Scale" }, w.name, errors));
    }
    let (uid, own) = (object::uid(scale), object::uid(live));
    if !uid.is_empty() && uid != own {
        let resource = format!("{}/scale", w.row.plural);
        let why = format!("Precondition failed: UID in precondition: {uid}, UID in object meta: {own}");
        return Err(Status::conflict(Of { group: &w.row.group, name: &resource }, w.name, why));
    }
    Ok(())
}

fn replicas(object: &Value, part: &str) -> i64 {
    object::at(object, &[part, "replicas"]).and_then(Value::as_i64).unwrap_or_default()
}

/// An object's replicas as a Scale.
struct Scale;

impl View for Scale {
    fn show(&self, object: &Value) -> Value {
        let mut metadata = Map::new();
        for field in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
            if let Some(value) = object::meta(object, field) {
                metadata.insert(field.into(), value.clone());
            }
        }
        let mut spec = Map::new();
        if replicas(object, "spec") != 0 {
            spec.insert("replicas".into(), replicas(object, "spec").into());
        }
        let mut status = Map::from_iter([("replicas".into(), replicas(object, "status").into())]);
        let selector = selector(object);
        if !selector.is_empty() {
            status.insert("selector".into(), selector.into());
        }
        json!({"kind": "Scale", "apiVersion": API_VERSION, "metadata": metadata, "spec": spec, "status": status})
    }

    fn put(&self, object: &mut Value, shown: &Value) {
        object::fields(object, &["spec"]).insert("replicas".into(), replicas(shown, "spec").into());
    }
}

/// The selector as text; a ReplicationController has a plain map, the others have a LabelSelector.
fn selector(object: &Value) -> String {
    let Some(selector) = object::at(object, &["spec", "selector"]) else { return String::new() };
    if object::text(object, &["kind"]) == "ReplicationController" {
        return LabelSelector::from_map(selector).to_string();
    }
    LabelSelector::from_object(selector).map(|s| s.to_string()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scale_shows_zero_replicas_as_nothing() {
        let object = json!({"kind": "Deployment", "metadata": {"name": "d"}, "spec": {"replicas": 0}});
        assert_eq!(Scale.show(&object)["spec"], json!({}));
        assert_eq!(Scale.show(&object)["status"], json!({"replicas": 0}));
    }
}

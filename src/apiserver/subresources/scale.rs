//! `scale`: the number of replicas as an object of its own, autoscaling/v1 Scale.

use std::sync::Arc;

use api::field::{Error, Errors, Path};
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
    let owners = object::list(live, &["metadata", "managedFields"]);
    let mut before = Scale.show(live);
    set_owners(&mut before, to_scale(owners, &parent));
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
    let owners = to_parent(owners, object::list(&scale, &["metadata", "managedFields"]), &parent);
    set_owners(&mut object, owners);
    Ok(Edited { object, tracked: true })
}

fn set_owners(object: &mut Value, owners: Vec<Value>) {
    if owners.is_empty() {
        object::unset_meta(object, "managedFields");
    } else {
        object::set_meta(object, "managedFields", owners);
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

/// Who a managedFields entry belongs to: appliers are told apart without the version.
fn owner(entry: &Value) -> (String, String, String, String) {
    let text = |field: &str| object::text(entry, &[field]).to_string();
    let version = if text("operation") == "Apply" { String::new() } else { text("apiVersion") };
    (text("manager"), text("operation"), version, text("subresource"))
}

fn owns_replicas(entry: &Value) -> bool {
    entry.pointer("/fieldsV1/f:spec/f:replicas").is_some()
}

fn entry_of(entry: &Value, version: &str, time: Option<&Value>) -> Value {
    let mut out = Map::new();
    for field in ["manager", "operation", "subresource"] {
        if let Some(value) = entry.get(field) {
            out.insert(field.into(), value.clone());
        }
    }
    out.insert("apiVersion".into(), version.into());
    out.insert("fieldsType".into(), "FieldsV1".into());
    out.insert("fieldsV1".into(), json!({"f:spec": {"f:replicas": {}}}));
    if let Some(time) = time {
        out.insert("time".into(), time.clone());
    }
    out.into()
}

/// The owners of the replicas as owners of the Scale's.
fn to_scale(owners: &[Value], parent: &str) -> Vec<Value> {
    let mine = owners.iter().filter(|e| object::text(e, &["apiVersion"]) == parent && owns_replicas(e));
    mine.map(|e| entry_of(e, API_VERSION, e.get("time"))).collect()
}

/// The owners of an object after those of its Scale have become `scale`. What upstream does: entries are told apart
/// by version too, so that an updater's share of the replicas moves into an entry of its own, which has no time.
fn to_parent(owners: &[Value], scale: &[Value], parent: &str) -> Vec<Value> {
    let mut left: Vec<&Value> = scale.iter().collect();
    let mut out = Vec::new();
    for entry in owners {
        if object::text(entry, &["apiVersion"]) != parent || !owns_replicas(entry) {
            out.push(entry.clone());
            continue;
        }
        match left.iter().position(|s| owner(s) == owner(entry)) {
            Some(i) => {
                left.remove(i);
                out.push(entry.clone());
            }
            None => out.extend(without_replicas(entry)),
        }
    }
    out.extend(left.into_iter().filter(|e| owns_replicas(e)).map(|e| entry_of(e, parent, None)));
    out
}

/// An entry without its share of the replicas; `None` when that was all.
fn without_replicas(entry: &Value) -> Option<Value> {
    let mut entry = entry.clone();
    let fields = entry.get_mut("fieldsV1")?.as_object_mut()?;
    let spec = fields.get_mut("f:spec")?.as_object_mut()?;
    spec.remove("f:replicas");
    if spec.is_empty() {
        fields.remove("f:spec");
    }
    let nothing = fields.is_empty();
    (!nothing).then_some(entry)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(manager: &str, operation: &str, version: &str, fields: Value) -> Value {
        json!({"manager": manager, "operation": operation, "apiVersion": version, "time": "t", "fieldsType": "FieldsV1", "fieldsV1": fields})
    }

    #[test]
    fn an_updater_of_the_scale_gets_an_entry_of_its_own() {
        let owners = [entry("golden", "Update", "apps/v1", json!({"f:spec": {"f:replicas": {}, "f:selector": {}}}))];
        let mut scale = to_scale(&owners, "apps/v1");
        assert_eq!(scale[0]["apiVersion"], API_VERSION);
        scale[0]["subresource"] = "scale".into();
        let after = to_parent(&owners, &scale, "apps/v1");
        assert_eq!(after[0]["fieldsV1"], json!({"f:spec": {"f:selector": {}}}));
        let want = json!({
            "manager": "golden", "operation": "Update", "apiVersion": "apps/v1", "fieldsType": "FieldsV1",
            "fieldsV1": {"f:spec": {"f:replicas": {}}}, "subresource": "scale",
        });
        assert_eq!(after[1], want);
    }

    #[test]
    fn an_applier_keeps_its_share() {
        let owners = [entry("m", "Apply", "apps/v1", json!({"f:spec": {"f:replicas": {}}}))];
        let after = to_parent(&owners, &to_scale(&owners, "apps/v1"), "apps/v1");
        assert_eq!(after, owners);
    }

    #[test]
    fn a_scale_shows_zero_replicas_as_nothing() {
        let object = json!({"kind": "Deployment", "metadata": {"name": "d"}, "spec": {"replicas": 0}});
        assert_eq!(Scale.show(&object)["spec"], json!({}));
        assert_eq!(Scale.show(&object)["status"], json!({"replicas": 0}));
    }
}

//! `pods/binding` and `bindings`: the scheduler gives a pod its node.

use std::sync::Arc;

use api::field::{Error, Errors, Path};
use api::resources::Row;
use api::status::{Of, Status};
use api::{Map, Value};
use serde_json::json;

use super::{Creation, Metadata, conditions, created, set_condition, track, with_kind};
use crate::Api;
use crate::admission::Operation;
use crate::registry::engine::{self, Write};
use crate::registry::input::Expected;
use crate::registry::{facts, object};
use crate::request::{Answer, Request};

const KIND: (&str, &str, &str) = ("", "v1", "Binding");

/// Answers `POST` to `pods/{name}/binding`.
///
/// # Errors
/// 409 when the pod has a node or is going, and whatever else upstream answers.
pub async fn create(api: &Arc<Api>, row: &Arc<Row>, req: &mut Request) -> Result<Answer, Status> {
    bind(api, row, row, req).await
}

/// Answers `POST` to `bindings`, the older path: the pod is the one of the object's name.
///
/// # Errors
/// As [`create`].
pub async fn legacy(api: &Arc<Api>, row: &Arc<Row>, req: &mut Request) -> Result<Answer, Status> {
    let pods = api.resources.find("", "pods").ok_or_else(|| Status::internal("no resource pods"))?;
    bind(api, row, &pods, req).await
}

async fn bind(api: &Arc<Api>, row: &Arc<Row>, pods: &Arc<Row>, req: &mut Request) -> Result<Answer, Status> {
    let expected =
        Expected { facts: facts(row), group: "", version: "v1", kind: "Binding", internal_group: "", also: &[] };
    let Creation { accept, options, object } = Creation::read(row, req, &expected, Metadata::Kept)?;
    with_kind(api, row, req, &options, KIND, async |w| {
        let name = if w.name.is_empty() { object::name(&object).to_string() } else { w.name.to_string() };
        assign(&w, pods, &name, object).await
    })
    .await?;
    created(api, row, req, &accept)
}

async fn assign(w: &Write<'_>, pods: &Arc<Row>, name: &str, mut binding: Value) -> Result<(), Status> {
    track(w, None, &mut binding);
    engine::mutate(w, Operation::Create, name, None, &mut binding).await?;
    if object::name(&binding) != name {
        return Err(Status::bad_request("name in URL does not match name in Binding object"));
    }
    if let Some(why) = check(&binding).aggregate() {
        return Err(Status::new(500, "", why));
    }
    engine::validate(w, Operation::Create, name, None, &binding).await?;
    let pod = Write { row: pods, name, ..*w };
    let change = |pod: &mut Value| place(pod, &binding, object::now());
    engine::modify(&pod, &change).await.map(|_| ())
}

fn check(binding: &Value) -> Errors {
    let mut errors = Errors::new();
    let path = Path::new("target");
    let kind = object::text(binding, &["target", "kind"]);
    if !matches!(kind, "" | "Node") {
        errors.push(Error::not_supported(&path.child("kind"), kind, &["Node", "<empty>"]));
    }
    if object::text(binding, &["target", "name"]).is_empty() {
        errors.push(Error::required(&path.child("name"), ""));
    }
    errors
}

/// Puts a pod on the node of a binding.
fn place(pod: &mut Value, binding: &Value, now: i64) -> Result<(), Status> {
    check_preconditions(pod, binding)?;
    let name = object::name(pod).to_string();
    let refuse = |why: String| Err(Status::conflict(Of { group: "", name: "pods/binding" }, &name, why));
    let node = object::text(pod, &["spec", "nodeName"]);
    if object::deleting(pod) {
        return refuse(format!("pod {name} is being deleted, cannot be assigned to a host"));
    }
    if !node.is_empty() {
        return refuse(format!("pod {name} is already assigned to node \"{node}\""));
    }
    if !object::list(pod, &["spec", "schedulingGates"]).is_empty() {
        return refuse(format!("pod {name} has non-empty .spec.schedulingGates"));
    }
    let node = object::text(binding, &["target", "name"]);
    object::fields(pod, &["spec"]).insert("nodeName".into(), node.into());
    object::fields(pod, &["status"]).remove("nominatedNodeName");
    for field in ["annotations", "labels"] {
        copy_map(pod, binding, field);
    }
    set_condition(conditions(pod), json!({"type": "PodScheduled", "status": "True"}), now);
    Ok(())
}

fn copy_map(pod: &mut Value, binding: &Value, field: &str) {
    let from = object::meta(binding, field).and_then(Value::as_object).cloned().unwrap_or_else(Map::new);
    if !from.is_empty() {
        object::fields(pod, &["metadata", field]).extend(from);
    }
}

/// UID and resourceVersion of a binding are those that the scheduler saw.
fn check_preconditions(pod: &Value, binding: &Value) -> Result<(), Status> {
    let fields = [("UID", "uid"), ("ResourceVersion", "resourceVersion")];
    for (label, field) in fields {
        let (wanted, found) = (object::meta_text(binding, field), object::meta_text(pod, field));
        if !wanted.is_empty() && wanted != found {
            let key = format!("/registry/pods/{}/{}", object::namespace(pod), object::name(pod));
            let why = format!(
                "StorageError: invalid object, Code: 4, Key: {key}, ResourceVersion: 0, AdditionalErrorMsg: \
                 Precondition failed: {label} in precondition: {wanted}, {label} in object meta: {found}"
            );
            return Err(Status::conflict(Of { group: "", name: "pods" }, object::name(pod), why));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn binding(node: &str) -> Value {
        json!({"metadata": {"name": "p", "annotations": {"a": "b"}}, "target": {"kind": "Node", "name": node}})
    }

    #[test]
    fn a_pod_gets_node_condition_and_annotations() {
        let mut pod = json!({"metadata": {"name": "p"}, "spec": {}, "status": {"nominatedNodeName": "x"}});
        place(&mut pod, &binding("n1"), 1000).unwrap();
        assert_eq!(pod["spec"]["nodeName"], "n1");
        assert_eq!(pod["metadata"]["annotations"]["a"], "b");
        assert_eq!(pod["status"]["conditions"][0]["type"], "PodScheduled");
        assert!(pod["status"].get("nominatedNodeName").is_none());
    }

    #[test]
    fn a_pod_that_has_a_node_is_refused_in_upstreams_words() {
        let mut pod = json!({"metadata": {"name": "p"}, "spec": {"nodeName": "n1"}});
        let status = place(&mut pod, &binding("n2"), 1000).unwrap_err();
        let text = "Operation cannot be fulfilled on pods/binding \"p\": pod p is already assigned to node \"n1\"";
        assert_eq!((status.code, status.message.as_str()), (409, text));
    }

    #[test]
    fn a_binding_needs_a_node() {
        let text = check(&binding("")).aggregate();
        assert_eq!(text.as_deref(), Some("target.name: Required value"));
    }
}

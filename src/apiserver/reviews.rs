//! Kinds that are asked, not stored: who am I, may I, may they, whose token is this.

use std::sync::Arc;

use api::Value;
use api::field::{Error, Errors, Kind as Fault, Path, quote};
use api::patch::apply::{OneVersion, Reset, Tracker, Writer};
use api::resources::Row;
use api::status::{Of, Status};
use http::StatusCode;
use serde_json::json;

use crate::authz::rbac::Rule;
use crate::authz::{Attributes, Decision};
use crate::registry::options::{Kind, Options};
use crate::registry::{facts, input, lifecycle, object, output, write};
use crate::request::{Answer, Request, User};
use crate::server::Server;

/// Answers `POST` of a review.
///
/// # Errors
/// Whatever upstream answers.
pub async fn create(server: &Arc<Server>, row: &Arc<Row>, request: &mut Request) -> Result<Answer, Status> {
    let accept = output::negotiate(row, request)?;
    input::encoding(request)?;
    let options = Options::read(request, Kind::Create)?;
    let version = request.info.version.clone();
    let mut review = input::decode(request, &write::expected(row, &version), options.validation)?;
    lifecycle::wipe(&mut review);
    api::meta::match_namespace(&mut review, &request.info.namespace)?;
    track(row, request, &options, &mut review);
    let answered = answer(server, row, &request.user, review)?;
    output::object(&server.api, row, request, &accept, StatusCode::CREATED, answered)
}

/// Reviews have managedFields like everything else.
fn track(row: &Row, request: &Request, options: &Options, review: &mut Value) {
    let facts = facts(row);
    let Some(ty) = facts.kind(&row.group, &request.info.version, &row.kind) else { return };
    let api_version = api::resources::api_version(&row.group, &request.info.version);
    let manager = write::manager(request, options);
    let now = object::time(object::now());
    let writer = Writer { manager: &manager, api_version: &api_version, kind: &row.kind, subresource: "", now: &now };
    Tracker { facts, ty, versions: &OneVersion, writer, reset: Reset::default() }.track_update(None, review);
}

fn answer(server: &Server, row: &Row, user: &User, mut review: Value) -> Result<Value, Status> {
    let head = json!({"kind": review["kind"], "apiVersion": review["apiVersion"], "metadata": {}});
    match &*row.plural {
        "selfsubjectreviews" => {
            review["metadata"]["creationTimestamp"] = base::clock::now_rfc3339().into();
            review["status"] = json!({ "userInfo": user_info(user) });
            Ok(review)
        }
        "selfsubjectaccessreviews" => {
            check(row, &review)?;
            review["status"] = access(server, user, &review["spec"]);
            Ok(review)
        }
        "subjectaccessreviews" | "localsubjectaccessreviews" => {
            check(row, &review)?;
            review["status"] = access(server, &subject(&review["spec"]), &review["spec"]);
            Ok(review)
        }
        "selfsubjectrulesreviews" => {
            let namespace = review["spec"]["namespace"].as_str().unwrap_or_default();
            if namespace.is_empty() {
                return Err(Status::bad_request("no namespace on request"));
            }
            let mut answered = head;
            answered["spec"] = json!({});
            answered["status"] = rules(server, user, namespace);
            Ok(answered)
        }
        "tokenreviews" => {
            if review["spec"]["token"].as_str().unwrap_or_default().is_empty() {
                return Err(Status::bad_request("token is required for TokenReview in authentication"));
            }
            review["status"] = token(server, &review["spec"]);
            Ok(review)
        }
        other => Err(Status::internal(format!("nobody answers {other}"))),
    }
}

/// Checks an access review: one thing is asked, by somebody, and nothing else is said.
fn check(row: &Row, review: &Value) -> Result<(), Status> {
    let mut errors = Errors::new();
    let spec = &review["spec"];
    let path = Path::new("spec");
    let (resource, other) = (&spec["resourceAttributes"], &spec["nonResourceAttributes"]);
    let local = row.plural == "localsubjectaccessreviews";
    let invalid = |path: Path, value: String, detail: &str| Error {
        kind: Fault::Invalid,
        field: path.to_string(),
        value: Some(value),
        detail: detail.to_string(),
    };
    // Upstream shows its internal struct.
    let shown = || format!("{{\"Path\":{},\"Verb\":{}}}", quoted(&other["path"]), quoted(&other["verb"]));
    if resource.is_object() && other.is_object() {
        let detail = "cannot be specified in combination with resourceAttributes";
        errors.push(invalid(path.child("nonResourceAttributes"), shown(), detail));
    }
    if !resource.is_object() && !other.is_object() {
        let detail = "exactly one of nonResourceAttributes or resourceAttributes must be specified";
        errors.push(invalid(path.child("resourceAttributes"), "null".into(), detail));
    }
    let empty = |v: &Value| v.as_str().is_none_or(str::is_empty) && v.as_array().is_none_or(Vec::is_empty);
    if row.plural != "selfsubjectaccessreviews" && empty(&spec["user"]) && empty(&spec["groups"]) {
        errors.push(invalid(path.child("user"), "\"\"".into(), "at least one of user or group must be specified"));
    }
    for selector in ["fieldSelector", "labelSelector"] {
        check_selector(&resource[selector], &path.child("resourceAttributes").child(selector), &mut errors);
    }
    check_metadata(row, review, local, &mut errors);
    if local && resource.is_object() {
        let namespace = resource["namespace"].as_str().unwrap_or_default();
        if namespace != object::namespace(review) {
            let field = path.child("resourceAttributes").child("namespace");
            errors.push(invalid(field, quote(namespace), "must match metadata.namespace"));
        }
    }
    if local && other.is_object() {
        errors.push(invalid(path.child("nonResourceAttributes"), shown(), "disallowed on this kind of request"));
    }
    if errors.is_empty() {
        return Ok(());
    }
    // Upstream loses the kind on the way: its internal object has none.
    Err(Status::invalid(Of { group: &row.group, name: "" }, "", errors))
}

fn quoted(value: &Value) -> String {
    Value::from(value.as_str().unwrap_or_default()).to_string()
}

fn check_metadata(row: &Row, review: &Value, local: bool, errors: &mut Errors) {
    let mut rest = review["metadata"].as_object().cloned().unwrap_or_default();
    rest.remove("managedFields");
    if local {
        rest.remove("namespace");
    }
    if rest.values().all(Value::is_null) {
        return;
    }
    let facts = facts(row);
    let mut bytes = Vec::new();
    match facts.get("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta") {
        Some(ty) => api::codec::json::encode(facts, ty, &review["metadata"], &mut bytes),
        None => bytes = review["metadata"].to_string().into_bytes(),
    }
    let detail = if local { "must be empty except for namespace" } else { "must be empty" };
    errors.push(Error {
        kind: Fault::Invalid,
        field: "metadata".into(),
        value: Some(String::from_utf8_lossy(&bytes).into_owned()),
        detail: detail.into(),
    });
}

fn check_selector(selector: &Value, path: &Path, errors: &mut Errors) {
    if !selector.is_object() {
        return;
    }
    let raw = selector["rawSelector"].as_str().unwrap_or_default();
    let requirements = selector["requirements"].as_array().map_or(&[][..], Vec::as_slice);
    match (raw.is_empty(), requirements.is_empty()) {
        (false, false) => {
            let detail = "may not specified at the same time as requirements";
            errors.push(Error::invalid(&path.child("rawSelector"), raw, detail));
        }
        (true, true) => {
            let detail = format!("when {path} is specified, requirements or rawSelector is required");
            errors.push(Error::required(&path.child("requirements"), detail));
        }
        _ => {}
    }
    for (i, requirement) in requirements.iter().enumerate() {
        check_requirement(requirement, &path.child("requirements").index(i), errors);
    }
}

/// Operators that we don't know are let through, as newer clients may send them.
fn check_requirement(requirement: &Value, path: &Path, errors: &mut Errors) {
    let values = requirement["values"].as_array().map_or(0, Vec::len);
    match requirement["operator"].as_str().unwrap_or_default() {
        "" => errors.push(Error::required(&path.child("operator"), "must be specified")),
        operator @ ("In" | "NotIn") if values == 0 => {
            let detail = format!("must be specified when `operator` is '{}'", known(operator));
            errors.push(Error::required(&path.child("values"), detail));
        }
        operator @ ("Exists" | "DoesNotExist") if values > 0 => {
            let detail = format!("may not be specified when `operator` is '{}'", known(operator));
            errors.push(Error::forbidden(&path.child("values"), detail));
        }
        _ => {}
    }
    if requirement["key"].as_str().unwrap_or_default().is_empty() {
        errors.push(Error::required(&path.child("key"), "must be specified"));
    }
}

/// The pair of operators that a rule is about.
fn known(operator: &str) -> &'static str {
    match operator {
        "In" | "NotIn" => "In' or 'NotIn",
        _ => "Exists' or 'DoesNotExist",
    }
}

fn user_info(user: &User) -> Value {
    let mut info = json!({"username": user.name});
    if !user.uid.is_empty() {
        info["uid"] = user.uid.clone().into();
    }
    if !user.groups.is_empty() {
        info["groups"] = user.groups.clone().into();
    }
    if !user.extra.is_empty() {
        info["extra"] = json!(user.extra);
    }
    info
}

fn strings(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().filter_map(|s| s.as_str().map(str::to_string)).collect()
}

fn subject(spec: &Value) -> User {
    let extra = spec["extra"].as_object().into_iter().flatten();
    User {
        name: spec["user"].as_str().unwrap_or_default().to_string(),
        uid: spec["uid"].as_str().unwrap_or_default().to_string(),
        groups: strings(&spec["groups"]),
        extra: extra.map(|(key, values)| (key.to_ascii_lowercase(), strings(values))).collect(),
    }
}

fn access(server: &Server, user: &User, spec: &Value) -> Value {
    let text = |section: &str, field: &str| spec[section][field].as_str().unwrap_or_default();
    let resource = |field| text("resourceAttributes", field);
    let asked = match spec["resourceAttributes"].is_object() {
        true => Attributes {
            is_resource: true,
            verb: resource("verb"),
            namespace: resource("namespace"),
            group: resource("group"),
            version: resource("version"),
            resource: resource("resource"),
            subresource: resource("subresource"),
            name: resource("name"),
            field_selector: spec["resourceAttributes"]["fieldSelector"]["rawSelector"].as_str().unwrap_or_default(),
            path: "",
        },
        false => Attributes {
            verb: text("nonResourceAttributes", "verb"),
            path: text("nonResourceAttributes", "path"),
            ..Attributes::default()
        },
    };
    let (allowed, denied, reason) = match server.api.authorizer.authorize(user, &asked) {
        Decision::Allow(reason) => (true, false, reason),
        Decision::Deny(reason) => (false, true, reason),
        Decision::NoOpinion(reason) => (false, false, reason),
    };
    let mut status = json!({ "allowed": allowed });
    if denied {
        status["denied"] = true.into();
    }
    if !reason.is_empty() {
        status["reason"] = reason.into();
    }
    status
}

/// What a user may do in a namespace, by roles; members of `system:masters` may do all by no role.
fn rules(server: &Server, user: &User, namespace: &str) -> Value {
    let (rules, errors) = server.api.authorizer.rbac().rules_for(user, namespace);
    let (paths, resources): (Vec<Rule>, Vec<Rule>) = rules.into_iter().partition(|r| r.resources.is_empty());
    let mut status = json!({"resourceRules": resources, "nonResourceRules": paths, "incomplete": false});
    if !errors.is_empty() {
        status["evaluationError"] = errors.join(", ").into();
        status["incomplete"] = true.into();
    }
    status
}

fn token(server: &Server, spec: &Value) -> Value {
    let audiences = strings(&spec["audiences"]);
    let token = spec["token"].as_str().unwrap_or_default();
    let authenticator = &server.api.authenticator;
    let wanted = if audiences.is_empty() { &authenticator.audiences } else { &audiences };
    match authenticator.by_token(token, wanted) {
        Ok(Some(known)) => {
            let user = user_info(&crate::authn::with_authenticated(known.user));
            let audiences = if known.audiences.is_empty() { wanted.clone() } else { known.audiences };
            json!({"authenticated": true, "user": user, "audiences": audiences})
        }
        Ok(None) => json!({"user": {}, "error": "invalid bearer token"}),
        Err(why) => json!({"user": {}, "error": format!("[invalid bearer token, {why}]")}),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(plural: &str, review: &Value) -> String {
        let row = api::resources::find("authorization.k8s.io", plural).expect("row");
        check(row, review).expect_err("refused").message
    }

    #[test]
    fn reviews_that_ask_nothing_or_too_much_are_refused() {
        assert_eq!(
            refused("selfsubjectaccessreviews", &json!({"spec": {}})),
            ".authorization.k8s.io \"\" is invalid: spec.resourceAttributes: Invalid value: null: exactly one of nonResourceAttributes or resourceAttributes must be specified"
        );
        assert_eq!(
            refused(
                "selfsubjectaccessreviews",
                &json!({"spec": {"resourceAttributes": {"verb": "get"}, "nonResourceAttributes": {"path": "/", "verb": "get"}}})
            ),
            ".authorization.k8s.io \"\" is invalid: spec.nonResourceAttributes: Invalid value: {\"Path\":\"/\",\"Verb\":\"get\"}: cannot be specified in combination with resourceAttributes"
        );
        assert_eq!(
            refused("subjectaccessreviews", &json!({"spec": {"resourceAttributes": {"verb": "get"}}})),
            ".authorization.k8s.io \"\" is invalid: spec.user: Invalid value: \"\": at least one of user or group must be specified"
        );
    }
}

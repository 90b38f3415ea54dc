//! `serviceaccounts/token`: TokenRequest. Claims are made here; keys are the issuer's.

use std::sync::Arc;

use api::field::{Error, Errors, Path};
use api::resources::Row;
use api::status::{Of, Status};
use api::{Map, Value};
use http::StatusCode;
use serde_json::json;

use super::{Creation, Metadata, track, with_kind};
use crate::Api;
use crate::admission::Operation;
use crate::registry::engine::{self, Write};
use crate::registry::input::Expected;
use crate::registry::{facts, internal, object, output};
use crate::request::{Answer, Request};

/// Who signs service-account tokens.
pub trait Issuer: Send + Sync {
    /// `iss` of the tokens.
    fn issuer(&self) -> &str;

    /// Audiences of a token whose request names none: those of the API server.
    fn audiences(&self) -> &[String];

    /// The longest life of a token in seconds; 0 when there is no bound.
    fn max_expiration(&self) -> i64;

    /// Seconds to which the life of a token that a pod asks for (3607) is extended; 0 when that is off.
    fn extension(&self) -> i64;

    /// Signs claims.
    ///
    /// # Errors
    /// 500 when the key does not sign.
    fn sign(&self, claims: &Value) -> Result<String, Status>;
}

const KIND: (&str, &str, &str) = ("authentication.k8s.io", "v1", "TokenRequest");
const OF: Of<'static> = Of { group: KIND.0, name: KIND.2 };

/// The life that the kubelet asks for: an hour, and a mark that says that the pod did not ask itself.
const ASKED_BY_KUBELET: i64 = 3607;

/// Answers `POST` to `serviceaccounts/{name}/token`.
///
/// # Errors
/// Whatever upstream answers.
pub async fn create(api: &Arc<Api>, row: &Arc<Row>, req: &mut Request) -> Result<Answer, Status> {
    let issuer = api.tokens.clone().ok_or_else(super::not_allowed)?;
    let (group, version, kind) = KIND;
    let expected = Expected { facts: facts(row), group, version, kind, internal_group: group, also: &[] };
    let Creation { accept, options, object } = Creation::read(row, req, &expected, Metadata::Kept)?;
    let answer = with_kind(api, row, req, &options, KIND, async |w| issue(&w, issuer.as_ref(), object).await).await?;
    output::object(api, row, req, &accept, StatusCode::CREATED, answer)
}

async fn issue(w: &Write<'_>, issuer: &dyn Issuer, mut request: Value) -> Result<Value, Status> {
    if object::at(&request, &["spec", "expirationSeconds"]).is_none() {
        object::fields(&mut request, &["spec"]).insert("expirationSeconds".into(), 3600.into());
    }
    track(w, None, &mut request);
    engine::mutate(w, Operation::Create, w.name, None, &mut request).await?;
    check_place(w, &request)?;
    let account = internal::get(w.api, w.row, w.namespace, w.name).await?;
    complete(w, issuer, &mut request, &account)?;
    let now = object::now();
    object::set_meta(&mut request, "creationTimestamp", object::time(now));
    object::fields(&mut request, &[]).remove("status");
    check_expiration(&request)?;
    engine::validate(w, Operation::Create, w.name, None, &request).await?;
    let bound = bound_object(w, &request).await?;
    let asked = limit(w, issuer, &mut request);
    let extended = extended(issuer, &bound, &request, asked);
    let life = Life { now, seconds: extended.unwrap_or(asked), warn_after: extended.map(|_| asked) };
    let audiences = object::list(&request, &["spec", "audiences"]).to_vec();
    let token = issuer.sign(&claims(issuer.issuer(), &account, &bound, &audiences, &life))?;
    request["status"] = json!({"token": token, "expirationTimestamp": object::time(now + asked)});
    Ok(request)
}

fn check_place(w: &Write<'_>, request: &Value) -> Result<(), Status> {
    let checks = [
        ("name", w.name, "must match the service account name if specified"),
        ("namespace", w.namespace, "must match the service account namespace if specified"),
    ];
    for (field, wanted, why) in checks {
        let found = object::meta_text(request, field);
        if !found.is_empty() && found != wanted {
            let errors = Errors(vec![Error::invalid(&Path::new("metadata").child(field), found, why)]);
            return Err(Status::invalid(OF, w.name, errors));
        }
    }
    Ok(())
}

/// Fills in what the client left open: whose token, and for whom.
fn complete(w: &Write<'_>, issuer: &dyn Issuer, request: &mut Value, account: &Value) -> Result<(), Status> {
    let (asked, own) = (object::uid(request), object::uid(account));
    if !asked.is_empty() && asked != own {
        let why =
            format!("the UID in the token request ({asked}) does not match the UID of the service account ({own})");
        return Err(Status::conflict(OF, w.name, why));
    }
    for field in ["name", "namespace", "uid"] {
        object::copy_meta(request, account, field);
    }
    if object::list(request, &["spec", "audiences"]).is_empty() {
        object::fields(request, &["spec"]).insert("audiences".into(), issuer.audiences().to_vec().into());
    }
    Ok(())
}

fn expiration(request: &Value) -> i64 {
    object::at(request, &["spec", "expirationSeconds"]).and_then(Value::as_i64).unwrap_or_default()
}

fn check_expiration(request: &Value) -> Result<(), Status> {
    let (seconds, path) = (expiration(request), Path::new("spec").child("expirationSeconds"));
    let mut errors = Errors::new();
    if seconds < 600 {
        errors.push(Error::invalid(&path, seconds, "may not specify a duration less than 10 minutes"));
    }
    if seconds > 1 << 32 {
        errors.push(Error::invalid(&path, seconds, "may not specify a duration larger than 2^32 seconds"));
    }
    if errors.is_empty() { Ok(()) } else { Err(Status::invalid(OF, "", errors)) }
}

/// The object whose end ends the token.
#[derive(Default)]
struct Bound {
    pod: Option<Value>,
    node: Option<Value>,
    secret: Option<Value>,
}

async fn bound_object(w: &Write<'_>, request: &Value) -> Result<Bound, Status> {
    let Some(reference) = object::at(request, &["spec", "boundObjectRef"]) else { return Ok(Bound::default()) };
    let text = |field: &str| object::text(reference, &[field]);
    let (name, kind, api_version) = (text("name"), text("kind"), text("apiVersion"));
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let mut bound = Bound::default();
    let found = match (group, kind) {
        ("", "Pod") => {
            let pod = find(w, "pods", w.namespace, name).await?;
            if object::text(&pod, &["spec", "serviceAccountName"]) != w.name {
                let account = w.name;
                return Err(Status::bad_request(format!(
                    "cannot bind token for serviceaccount \"{account}\" to pod running with different serviceaccount \
                     name."
                )));
            }
            bound.node = node_of(w, &pod).await?;
            bound.pod.insert(pod)
        }
        ("", "Node") => bound.node.insert(find(w, "nodes", "", name).await?),
        ("", "Secret") => bound.secret.insert(find(w, "secrets", w.namespace, name).await?),
        _ => {
            let kind = format!("{group}/{version}, Kind={kind}");
            return Err(Status::bad_request(format!("cannot bind token to object of type {kind}")));
        }
    };
    let (asked, own) = (text("uid"), object::uid(found));
    if !asked.is_empty() && asked != own {
        let why = format!(
            "the UID in the bound object reference ({asked}) does not match the UID in record. The object might have \
             been deleted and then recreated"
        );
        return Err(Status::conflict(Of { group: "", name: kind }, name, why));
    }
    Ok(bound)
}

async fn find(w: &Write<'_>, plural: &str, namespace: &str, name: &str) -> Result<Value, Status> {
    let row = w.api.resources.find("", plural).ok_or_else(|| Status::internal(format!("no resource {plural}")))?;
    internal::get(w.api, &row, namespace, name).await
}

/// The node of a pod; one that is not there yet is known by its name alone.
async fn node_of(w: &Write<'_>, pod: &Value) -> Result<Option<Value>, Status> {
    let name = object::text(pod, &["spec", "nodeName"]);
    if name.is_empty() {
        return Ok(None);
    }
    match find(w, "nodes", "", name).await {
        Err(status) if status.code == 404 => Ok(Some(json!({"metadata": {"name": name}}))),
        Err(status) => Err(Status::internal(status)),
        Ok(node) => Ok(Some(node)),
    }
}

/// Shortens the life to what the server allows; the seconds that the token is asked for.
fn limit(w: &Write<'_>, issuer: &dyn Issuer, request: &mut Value) -> i64 {
    let (asked, most) = (expiration(request), issuer.max_expiration());
    if most == 0 || asked <= most {
        return asked;
    }
    w.warn(format!("requested expiration of {asked} seconds shortened to {most} seconds"));
    object::fields(request, &["spec"]).insert("expirationSeconds".into(), most.into());
    most
}

/// The longer life of a pod's token for the API server, so that old clients, which never read it again, still work.
fn extended(issuer: &dyn Issuer, bound: &Bound, request: &Value, asked: i64) -> Option<i64> {
    let audiences = object::list(request, &["spec", "audiences"]);
    let ours = |audience: &Value| issuer.audiences().iter().any(|a| audience == a);
    let extends = issuer.extension() > 0 && bound.pod.is_some() && asked == ASKED_BY_KUBELET;
    (extends && audiences.iter().all(ours)).then(|| issuer.extension())
}

struct Life {
    now: i64,
    seconds: i64,
    warn_after: Option<i64>,
}

fn claims(issuer: &str, account: &Value, bound: &Bound, audiences: &[Value], life: &Life) -> Value {
    let reference = |object: &Value| {
        let fields = [("name", object::name(object)), ("uid", object::uid(object))];
        let set = fields.into_iter().filter(|(_, text)| !text.is_empty());
        Value::Object(set.map(|(field, text)| (field.to_string(), text.into())).collect())
    };
    let namespace = object::namespace(account);
    let mut private = Map::new();
    private.insert("namespace".into(), namespace.into());
    private.insert("serviceaccount".into(), reference(account));
    for (field, object) in [("pod", &bound.pod), ("node", &bound.node), ("secret", &bound.secret)] {
        if let Some(object) = object {
            private.insert(field.into(), reference(object));
        }
    }
    if let Some(seconds) = life.warn_after {
        private.insert("warnafter".into(), (life.now + seconds).into());
    }
    json!({
        "aud": audiences,
        "exp": life.now + life.seconds,
        "iat": life.now,
        "iss": issuer,
        "jti": uuid::Uuid::new_v4().to_string(),
        "kubernetes.io": private,
        "nbf": life.now,
        "sub": format!("system:serviceaccount:{namespace}:{}", object::name(account)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_name_the_account_the_pod_and_its_node() {
        let object = |name: &str| json!({"metadata": {"name": name, "uid": format!("u-{name}"), "namespace": "ns"}});
        let bound = Bound { pod: Some(object("p")), node: Some(json!({"metadata": {"name": "n"}})), secret: None };
        let life = Life { now: 1000, seconds: 31_536_000, warn_after: Some(3607) };
        let claims = claims("iss", &object("sa"), &bound, &["a".into()], &life);
        assert_eq!(claims["sub"], "system:serviceaccount:ns:sa");
        assert_eq!(claims["exp"], 31_537_000);
        let want = json!({
            "namespace": "ns",
            "serviceaccount": {"name": "sa", "uid": "u-sa"},
            "pod": {"name": "p", "uid": "u-p"},
            "node": {"name": "n"},
            "warnafter": 4607,
        });
        assert_eq!(claims["kubernetes.io"], want);
    }

    #[test]
    fn a_token_lives_ten_minutes_at_least() {
        let status = check_expiration(&json!({"spec": {"expirationSeconds": 599}})).unwrap_err();
        assert!(status.message.ends_with("may not specify a duration less than 10 minutes"), "{}", status.message);
    }
}

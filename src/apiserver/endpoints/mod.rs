//! Paths that are no resources: discovery, health, version, metrics, OpenAPI, and what helps to debug.

pub mod debug;
pub mod oidc;
pub mod openapi;
pub mod status;

use std::sync::Arc;

use api::Value;
use api::resources::GROUPS;
use api::status::Status;
use base::health::Report;
use base::server::Peer;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};

use crate::discovery::{self, Encoding, Form};
use crate::request::{Answer, Body, Request};
use crate::respond::{
    Failure, json, method_not_allowed, not_acceptable, only_get, page_not_found, plain, resource_not_found, typed,
};
use crate::server::Server;

pub use status::component_statuses;

/// Answers a request that is about no resource.
///
/// # Errors
/// Whatever upstream answers.
pub async fn serve(server: &Arc<Server>, peer: &Peer, request: Request) -> Result<Answer, Failure> {
    let path = request.info.path.clone();
    // One slash at the end changes nothing for documents.
    let segments: Vec<&str> = path.strip_prefix('/').unwrap_or(&path).split('/').collect();
    let segments = match segments.as_slice() {
        [front @ .., ""] if !front.is_empty() => front,
        all => all,
    };
    match segments {
        [""] | ["index.html"] => index(server, &request),
        ["api"] | ["apis"] | ["api", _] | ["apis", _] | ["apis", _, _] => {
            discovery_document(server, peer, &request, segments)
        }
        ["version"] => version(&request),
        [endpoint @ ("healthz" | "livez" | "readyz"), check @ ..] => {
            health(server, &request, endpoint, &check.join("/")).await
        }
        ["metrics"] => only_get(&request.method).map(|()| metrics(base::metrics::global().text())),
        ["metrics", "slis"] => {
            only_get(&request.method)?;
            Ok(metrics(status::slis(server).await))
        }
        [".well-known", "openid-configuration"] => server.oidc.configuration(&request.method),
        ["openapi", rest @ ..] => openapi::serve(server, &request, rest).unwrap_or_else(|| Err(page_not_found())),
        ["openid", "v1", "jwks"] => server.oidc.keys(&request.method),
        ["flagz"] => Ok(plain(StatusCode::OK, base::health::flagz(crate::options::NAME, &server.options.shown))),
        ["statusz"] => Ok(plain(StatusCode::OK, base::health::statusz(crate::options::NAME, &STATUSZ_PATHS))),
        ["debug", rest @ ..] => debug::serve(server, &path, rest),
        _ => Err(page_not_found()),
    }
}

const STATUSZ_PATHS: [&str; 6] = ["/healthz", "/livez", "/metrics", "/readyz", "/statusz", "/version"];

/// The paths that there are.
fn index(server: &Server, request: &Request) -> Result<Answer, Failure> {
    only_get(&request.method)?;
    let mut paths: Vec<String> = ["/.well-known/openid-configuration", "/api", "/apis", "/apis/", "/healthz", "/livez"]
        .into_iter()
        .chain(["/metrics", "/metrics/slis", "/openid/v1/jwks", "/readyz", "/version", "/flagz", "/statusz"])
        .chain(["/openapi/v2", "/openapi/v3", "/openapi/v3/"])
        .map(str::to_string)
        .collect();
    let documents = server.discovery.documents();
    for group in documents.groups() {
        let root = if group.name.is_empty() { "/api".to_string() } else { format!("/apis/{}", group.name) };
        paths.extend(group.versions.iter().map(|version| format!("{root}/{}", version.name)));
        if !group.name.is_empty() {
            paths.push(root);
        }
    }
    let health = &server.health;
    for (endpoint, checks) in [("healthz", &health.healthz), ("livez", &health.livez), ("readyz", &health.readyz)] {
        paths.extend(checks.names().map(|name| format!("/{endpoint}/{name}")));
    }
    paths.sort();
    Ok(json(&serde_json::json!({ "paths": paths })))
}

fn version(request: &Request) -> Result<Answer, Failure> {
    if request.method != Method::GET {
        return Err(method_not_allowed());
    }
    if !accepts(&request.headers, "application/json") {
        return Err(not_acceptable("application/json"));
    }
    // Indented, as upstream writes it.
    Ok(typed("application/json", format!("{:#}", base::health::version_json())))
}

/// Does the Accept header take that media type?
fn accepts(headers: &HeaderMap, media_type: &str) -> bool {
    let accept = headers.get(header::ACCEPT).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let family = format!("{}/*", media_type.split('/').next().unwrap_or_default());
    let clause = |c: &str| {
        let c = c.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        c == media_type || c == "*/*" || c == family
    };
    accept.trim().is_empty() || accept.split(',').any(clause)
}

fn discovery_document(server: &Server, peer: &Peer, request: &Request, segments: &[&str]) -> Result<Answer, Failure> {
    let documents = server.discovery.documents();
    let missing = |group: &str| {
        let built_in = GROUPS.iter().any(|g| g.name == group) && documents.group(group).is_some();
        if built_in { resource_not_found() } else { page_not_found() }
    };
    let find = |group: &str, version: &str| documents.resources(group, version).ok_or_else(|| missing(group));
    let root = matches!(segments, ["api"] | ["apis"]);
    let accept = request.headers.get(header::ACCEPT).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let form = discovery::negotiate(accept, root);
    let aggregated = matches!(form, Some((Form::Aggregated, _)));
    let value = match segments {
        ["api"] if aggregated => return aggregate(request, &documents.core, form),
        ["apis"] if aggregated => return aggregate(request, &documents.named, form),
        ["api"] => {
            let address = std::net::SocketAddr::new(server.options.advertise, peer.local.port());
            api::discovery::api_versions(&address.to_string())
        }
        ["apis"] => api::discovery::group_list(&documents.groups()),
        ["api", version] => find("", version)?,
        ["apis", group] => api::discovery::group(&documents.group(group).ok_or_else(|| missing(group))?),
        ["apis", group, version] => find(group, version)?,
        _ => return Err(page_not_found()),
    };
    if request.method != Method::GET {
        return Err(method_not_allowed());
    }
    let Some((_, encoding)) = form else { return Err(unacceptable()) };
    let mut answer = encode(&value, "io.k8s.apimachinery.pkg.apis.meta.v1", encoding)?;
    if root {
        answer.headers_mut().insert(header::VARY, HeaderValue::from_static("Accept"));
    }
    Ok(answer)
}

fn unacceptable() -> Failure {
    let text = "only the following media types are accepted: application/json, application/yaml, application/vnd.kubernetes.protobuf";
    Failure::Status(Status::new(406, "NotAcceptable", text))
}

fn aggregate(
    request: &Request, aggregated: &discovery::Aggregated, form: Option<(Form, Encoding)>,
) -> Result<Answer, Failure> {
    if request.method != Method::GET {
        return Err(method_not_allowed());
    }
    let Some((_, encoding)) = form else { return Err(unacceptable()) };
    let etag = format!("\"{}\"", aggregated.etag);
    let known = request.headers.get(header::IF_NONE_MATCH).and_then(|v| v.to_str().ok()) == Some(etag.as_str());
    let mut answer = if known {
        let mut answer = Answer::new(Body::empty());
        *answer.status_mut() = StatusCode::NOT_MODIFIED;
        answer
    } else {
        let mut answer = encode(&aggregated.document, "io.k8s.api.apidiscovery.v2", encoding)?;
        let content_type = match encoding {
            Encoding::Json => "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
            Encoding::Yaml => "application/yaml;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
            Encoding::Protobuf => {
                "application/vnd.kubernetes.protobuf;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
            }
        };
        answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
        answer
    };
    let headers = answer.headers_mut();
    headers.insert(header::VARY, HeaderValue::from_static("Accept"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("public"));
    headers.insert(header::ETAG, HeaderValue::from_str(&etag).map_err(Status::internal)?);
    Ok(answer)
}

/// A document in the wanted encoding; its type is found in `package` by its kind.
fn encode(value: &Value, package: &str, encoding: Encoding) -> Result<Answer, Failure> {
    let facts = api::schema::builtin();
    let kind = value["kind"].as_str().unwrap_or_default();
    let missing = || Status::internal(format!("no facts about {package}.{kind}"));
    let ty = facts.get(&format!("{package}.{kind}")).ok_or_else(missing)?;
    let mut bytes = Vec::new();
    Ok(match encoding {
        Encoding::Json => {
            api::codec::json::encode(facts, ty, value, &mut bytes);
            bytes.push(b'\n');
            typed("application/json", bytes)
        }
        Encoding::Yaml => typed("application/yaml", api::codec::yaml::encode(value)),
        Encoding::Protobuf => {
            api::codec::proto::seal(facts, ty, value, &mut bytes);
            typed("application/vnd.kubernetes.protobuf", bytes)
        }
    })
}

async fn health(server: &Server, request: &Request, endpoint: &str, check: &str) -> Result<Answer, Failure> {
    only_get(&request.method)?;
    let checks = match endpoint {
        "healthz" => &server.health.healthz,
        "livez" => &server.health.livez,
        _ => &server.health.readyz,
    };
    let Report { ok, text } = match check {
        "" => {
            let exclude: Vec<&str> =
                request.query.iter().filter(|(k, _)| k == "exclude").map(|(_, v)| v.as_str()).collect();
            checks.report(endpoint, request.param("verbose").is_some(), &exclude).await
        }
        one => checks.report_one(one).await.ok_or_else(page_not_found)?,
    };
    Ok(plain(if ok { StatusCode::OK } else { StatusCode::INTERNAL_SERVER_ERROR }, text))
}

fn metrics(text: String) -> Answer {
    typed(base::metrics::CONTENT_TYPE, text)
}

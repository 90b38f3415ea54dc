//! From a path to its handler: row, version, subresource and verb by table, one function for all resources.

use std::sync::Arc;

use api::resources::{GROUPS, Row, Scope};
use api::status::Status;
use base::server::Peer;
use http::Method;

use crate::request::{Answer, Info, Request};
use crate::respond::{Failure, method_not_allowed, page_not_found, resource_not_found};
use crate::server::Server;
use crate::{chain, endpoints, info, registry, reviews, streams, subresources};

/// Subresources that are streams or pass the request on.
const STREAMS: [&str; 5] = ["attach", "exec", "log", "portforward", "proxy"];

/// True when the body is not ours to read.
pub fn passes_on(_server: &Server, info: &Info) -> bool {
    info.is_resource && info.subresource == "proxy"
}

/// Answers a request that passed the chain.
///
/// # Errors
/// Whatever upstream answers.
pub async fn dispatch(server: &Arc<Server>, peer: &Peer, mut request: Request) -> Result<Answer, Failure> {
    if !request.info.is_resource {
        return endpoints::serve(server, peer, request).await;
    }
    let row = resolve(server, &request.info)?;
    let target = target(&row, &request)?;
    if let Some(text) = row.deprecation(&request.info.version, target == Target::List || target == Target::Watch) {
        request.warnings.push(text);
    }
    if row.scope == Scope::Cluster {
        // Paths of a namespace count as in it for authorization alone.
        request.info.namespace.clear();
    }
    let outcome = run(server, peer, &row, target, &mut request).await;
    let mut answer = outcome.unwrap_or_else(|status| Failure::Status(status).answer(&request.headers));
    chain::warn(&mut answer, &request.warnings);
    Ok(answer)
}

/// What a path and a method lead to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    Get,
    List,
    Watch,
    Create,
    Update,
    Patch,
    Delete,
    DeleteCollection,
    Subresource,
    Stream,
}

async fn run(
    server: &Arc<Server>, peer: &Peer, row: &Arc<Row>, target: Target, request: &mut Request,
) -> Result<Answer, Status> {
    let api = &server.api;
    match target {
        Target::Create if row.group.is_empty() && row.plural == "bindings" => {
            subresources::binding::legacy(api, row, request).await
        }
        Target::Create if !row.is_stored() => reviews::create(server, row, request).await,
        Target::Get | Target::List if !row.is_stored() => endpoints::component_statuses(server, row, request).await,
        Target::Get => registry::read::get(api, row, request).await,
        Target::List => registry::read::list(api, row, request).await,
        Target::Watch => registry::watch::watch(api, row, request).await,
        Target::Create => registry::write::create(api, row, request).await,
        Target::Update => registry::write::update(api, row, request).await,
        Target::Patch => registry::patch::patch(api, row, request).await,
        Target::Delete => registry::delete::delete(api, row, request).await,
        Target::DeleteCollection => registry::delete::delete_collection(api, row, request).await,
        Target::Subresource => subresources::serve(api, row, request).await,
        Target::Stream => streams::serve(&server.streams, api, peer, row, request).await,
    }
}

/// The row and version of a path.
fn resolve(server: &Server, info: &Info) -> Result<Arc<Row>, Failure> {
    let built_in = GROUPS.iter().any(|g| g.name == info.group);
    let unknown = || if built_in { resource_not_found() } else { page_not_found() };
    let row = server.api.resources.find(&info.group, &info.resource).ok_or_else(unknown)?;
    if row.version(&info.version).is_some() { Ok(row) } else { Err(unknown()) }
}

/// Where in the resource the path leads, and what the method does there.
fn target(row: &Row, request: &Request) -> Result<Target, Failure> {
    let shape = Shape::of(&request.info);
    let in_namespace = shape.in_namespace;
    let parts: Vec<&str> = request.info.parts.iter().map(String::as_str).collect();
    let namespaced = row.scope == Scope::Namespaced;
    // Behind `proxy` anything may stand.
    if in_namespace && !namespaced || parts.iter().take(3).any(|p| p.is_empty()) {
        return Err(resource_not_found());
    }
    let (method, has) = (&request.method, |verb: &str| row.verbs.iter().any(|v| v == verb));
    let found = match parts.as_slice() {
        [_] if namespaced && !in_namespace => across_namespaces(method, &has, request),
        [_] => collection(method, &has, request),
        [_, _] if shape.legacy_watch => (has("watch"), (*method == Method::GET).then_some(Target::Watch)),
        [_, _] if namespaced && !in_namespace => (false, None),
        [_, _] => item(method, &has),
        [_, _, sub, rest @ ..] if !(namespaced && !in_namespace) => subresource(row, method, sub, rest),
        _ => (false, None),
    };
    match found {
        (false, _) => Err(resource_not_found()),
        (true, None) => Err(method_not_allowed()),
        (true, Some(target)) => valid_name(target, parts.get(1)).map(|()| target),
    }
}

/// Whether the path has a namespace in front, and the legacy `watch`.
struct Shape {
    in_namespace: bool,
    legacy_watch: bool,
}

impl Shape {
    fn of(info: &Info) -> Self {
        let segments = info::split(&info.path);
        let prefix = if info.api_prefix == "api" { 2 } else { 3 };
        let legacy_watch = segments.get(prefix) == Some(&"watch");
        let before = segments.len() - info.parts.len();
        Self { in_namespace: before == prefix + usize::from(legacy_watch) + 2, legacy_watch }
    }
}

/// `(the path exists, what the method does there)`.
type Found = (bool, Option<Target>);

fn across_namespaces(method: &Method, has: &impl Fn(&str) -> bool, request: &Request) -> Found {
    (has("list"), (*method == Method::GET).then(|| list_or_watch(request)))
}

fn list_or_watch(request: &Request) -> Target {
    if request.info.verb == "watch" { Target::Watch } else { Target::List }
}

fn collection(method: &Method, has: &impl Fn(&str) -> bool, request: &Request) -> Found {
    let target = match *method {
        Method::GET if has("list") => Some(list_or_watch(request)),
        Method::POST if has("create") => Some(Target::Create),
        Method::DELETE if has("deletecollection") => Some(Target::DeleteCollection),
        _ => None,
    };
    (["list", "create", "deletecollection"].iter().any(|v| has(v)), target)
}

fn item(method: &Method, has: &impl Fn(&str) -> bool) -> Found {
    let target = match *method {
        Method::GET if has("get") => Some(Target::Get),
        Method::PUT if has("update") => Some(Target::Update),
        Method::PATCH if has("patch") => Some(Target::Patch),
        Method::DELETE if has("delete") => Some(Target::Delete),
        _ => None,
    };
    (["get", "update", "patch", "delete"].iter().any(|v| has(v)), target)
}

fn subresource(row: &Row, method: &Method, name: &str, rest: &[&str]) -> Found {
    let Some(sub) = row.subresource(name).filter(|_| rest.is_empty() || name == "proxy") else { return (false, None) };
    let verb = match *method {
        Method::GET => "get",
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        // What is proxied has methods of its own.
        Method::HEAD | Method::OPTIONS if name == "proxy" => "get",
        _ => return (true, None),
    };
    let target = if STREAMS.contains(&name) { Target::Stream } else { Target::Subresource };
    (true, sub.verbs.iter().any(|v| v == verb).then_some(target))
}

/// Names that would lead elsewhere in the store are refused before anybody uses them.
fn valid_name(target: Target, name: Option<&&str>) -> Result<(), Failure> {
    let Some(name) = name.filter(|_| target != Target::Watch) else { return Ok(()) };
    match info::invalid_segment(name) {
        None => Ok(()),
        Some(why) => {
            let quoted = api::field::quote(name);
            Err(Status::bad_request(format!("Name parameter invalid: {quoted}: {why}")).into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn to(method: &str, url: &str) -> Result<Target, u16> {
        let (path, query) = url.split_once('?').unwrap_or((url, ""));
        let method: Method = method.parse().expect("method");
        let query = base::health::parse_query(query);
        let info = info::parse(&method, path, &query).expect("parsed");
        let row = api::resources::find(&info.group, &info.resource).ok_or(404u16)?;
        let request = Request {
            info,
            user: Arc::default(),
            method,
            uri: http::Uri::default(),
            query,
            headers: http::HeaderMap::new(),
            body: bytes::Bytes::new(),
            unread: None,
            upgrade: None,
            warnings: Vec::new(),
        };
        target(row, &request).map_err(|f| f.code())
    }

    #[test]
    fn paths_and_methods_lead_where_upstream_leads_them() {
        for (method, url, expected) in [
            ("GET", "/api/v1/namespaces/x/pods", Ok(Target::List)),
            ("GET", "/api/v1/namespaces/x/pods/", Ok(Target::List)),
            ("GET", "/api/v1/pods?watch=true", Ok(Target::Watch)),
            ("POST", "/api/v1/pods", Err(405)),
            ("DELETE", "/api/v1/pods", Err(405)),
            ("GET", "/api/v1/pods/a", Err(404)),
            ("GET", "/api/v1/namespaces/x/pods/a", Ok(Target::Get)),
            ("GET", "/api/v1/namespaces/x/pods//a", Err(404)),
            ("POST", "/api/v1/namespaces/x/pods/a", Err(405)),
            ("HEAD", "/api/v1/namespaces/x/pods/a", Err(405)),
            ("OPTIONS", "/api/v1/namespaces/x/pods", Err(405)),
            ("GET", "/api/v1/namespaces/x/pods/a/log", Ok(Target::Stream)),
            ("GET", "/api/v1/namespaces/x/pods/a/proxy/b/c", Ok(Target::Stream)),
            ("GET", "/api/v1/namespaces/x/pods/a/proxy//b//c", Ok(Target::Stream)),
            ("GET", "/api/v1/namespaces/x/pods/a//b", Err(404)),
            ("GET", "/api/v1/namespaces/x/pods/a/status", Ok(Target::Subresource)),
            ("GET", "/api/v1/namespaces/x/pods/a/status/b", Err(404)),
            ("GET", "/api/v1/namespaces/x/pods/a/nothing", Err(404)),
            ("GET", "/api/v1/namespaces", Ok(Target::List)),
            ("GET", "/api/v1/namespaces/x", Ok(Target::Get)),
            ("PUT", "/api/v1/namespaces/x/finalize", Ok(Target::Subresource)),
            ("GET", "/api/v1/namespaces/x/namespaces", Err(404)),
            ("GET", "/api/v1/namespaces/x/nodes", Err(404)),
            ("GET", "/api/v1/nodes/x/pods", Err(404)),
            ("GET", "/api/v1/watch/namespaces/x/configmaps", Ok(Target::Watch)),
            ("GET", "/api/v1/watch/configmaps", Ok(Target::Watch)),
            ("GET", "/api/v1/watch/namespaces/x/configmaps/a", Ok(Target::Watch)),
            ("GET", "/api/v1/namespaces/x/configmaps/..", Err(400)),
            ("GET", "/api/v1/namespaces//configmaps", Ok(Target::List)),
            ("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", Ok(Target::Create)),
            ("GET", "/apis/authorization.k8s.io/v1/subjectaccessreviews", Err(405)),
        ] {
            assert_eq!(to(method, url), expected, "{method} {url}");
        }
    }
}

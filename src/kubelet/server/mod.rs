//! The kubelet's HTTPS server: pods, logs, streams into containers, usage, metrics, health.
//!
//! Every request passes authentication and authorization, save those for the port without them. Streams into containers
//! are handed to the runtime's own server without being looked into.

pub mod auth;
pub mod listen;
pub mod logs;
pub mod stats;
pub mod stream;

use crate::pods;
use crate::table::Table;
use crate::work::context::Context;
use auth::Guard;
use axum::Router;
use axum::body::Body;
use axum::extract::{FromRequestParts, Path, State};
use axum::routing::{any, get};
use base::server::{Handler, Peer};
use http::request::Parts;
use http::{HeaderValue, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use parking_lot::RwLock;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tower::ServiceExt;

/// An answer.
pub type Answer = Response<Body>;

/// The server's knowledge.
pub struct Server {
    /// The workers' common ground.
    pub ctx: Arc<Context>,
    /// The pods there shall be.
    pub table: Arc<Table>,
    /// The configuration, for `/configz`.
    pub configz: serde_json::Value,
    /// The command line, for `/flagz`.
    pub flags: Vec<(String, String)>,
    /// Are exec, logs and the like served?
    pub debugging: bool,
    /// Is `/logs/` served?
    pub system_logs: bool,
    /// When the runtime was last listed.
    pub listed: Arc<RwLock<Option<Instant>>>,
    /// Usage between two looks.
    pub meter: stats::Meter,
}

/// An answer of text.
pub fn text(status: StatusCode, text: impl Into<String>) -> Answer {
    typed(status, "text/plain; charset=utf-8", text.into())
}

/// An answer of a type.
pub fn typed(status: StatusCode, kind: &'static str, body: impl Into<Body>) -> Answer {
    let mut answer = Response::new(body.into());
    *answer.status_mut() = status;
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    answer
}

fn json(value: &impl serde::Serialize) -> Answer {
    match serde_json::to_vec(value) {
        Ok(bytes) => typed(StatusCode::OK, "application/json", bytes),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

/// The parameters of a query; the last of a name counts, except for those that are lists.
pub struct Query(Vec<(String, String)>);

impl<S: Sync> FromRequestParts<S> for Query {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        Ok(Self(base::health::parse_query(parts.uri.query().unwrap_or_default())))
    }
}

/// One parameter.
pub fn param<'a>(query: &'a Query, name: &str) -> Option<&'a str> {
    query.0.iter().rev().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
}

/// Asks who the client is and what it may, and then the routes.
pub struct Front {
    guard: Option<Guard>,
    routes: Router,
}

impl Front {
    /// All that a server has; without a guard anybody may ask.
    pub fn new(server: Arc<Server>, guard: Option<Guard>) -> Self {
        Self { guard, routes: routes(server) }
    }

    /// The health endpoint alone, for its own port: nothing else is told there.
    pub fn health(server: Arc<Server>) -> Self {
        Self { guard: None, routes: health_routes().with_state(server) }
    }
}

impl Handler for Front {
    type Connection = Peer;
    type Body = Body;

    fn connected(&self, peer: Peer) -> Peer {
        peer
    }

    async fn call(&self, peer: Arc<Peer>, request: Request<Incoming>) -> Answer {
        if let Some(guard) = &self.guard
            && let Err(refused) = guard.admit(&peer, &request).await
        {
            return refused;
        }
        let answered = self.routes.clone().oneshot(request.map(Body::new)).await;
        answered.unwrap_or_else(|never| match never {})
    }
}

type Of = State<Arc<Server>>;
/// Namespace, pod, container.
type Place3 = Path<(String, String, String)>;
/// Namespace, pod, UID, container.
type Place4 = Path<(String, String, String, String)>;

fn health_routes() -> Router<Arc<Server>> {
    Router::new()
        .route("/healthz", get(async |State(server): Of| server.health("")))
        .route("/healthz/{check}", get(async |State(server): Of, Path(check): Path<String>| server.health(&check)))
        .fallback(async || text(StatusCode::NOT_FOUND, "404 page not found\n"))
}

/// What is served, by path.
fn routes(server: Arc<Server>) -> Router {
    let mut routes = health_routes()
        .route("/pods", get(async |State(server): Of| server.pods()))
        .route("/runningpods/", get(async |State(server): Of| server.running_pods().await))
        .route("/runningpods", get(async |State(server): Of| server.running_pods().await))
        .route("/stats/summary", any(summary))
        .route("/metrics", get(async |State(server): Of| server.metrics().await))
        .route("/metrics/resource", get(async |State(server): Of| server.resource_metrics().await))
        .route("/metrics/cadvisor", get(async |State(server): Of| server.cadvisor_metrics().await))
        .route("/metrics/probes", get(async |State(server): Of| metrics(server.ctx.probes.metrics())))
        .route("/configz", get(async |State(server): Of| json(&serde_json::json!({"kubeletconfig": server.configz}))))
        .route(
            "/flagz",
            get(async |State(server): Of| text(StatusCode::OK, base::health::flagz("kubelet", &server.flags))),
        )
        .route("/statusz", get(async || text(StatusCode::OK, base::health::statusz("kubelet", &[]))));
    if server.system_logs {
        routes = routes
            .route("/logs/", get(async || logs::system("").await))
            .route("/logs/{*path}", get(async |Path(path): Path<String>| logs::system(&path).await));
    }
    let into_containers = if server.debugging { containers() } else { disabled() };
    routes.merge(into_containers).with_state(server)
}

/// Logs of containers and streams into them.
fn containers() -> Router<Arc<Server>> {
    Router::new()
        .route("/containerLogs/{namespace}/{pod}/{container}", get(container_log))
        .route("/exec/{namespace}/{pod}/{container}", any(exec))
        .route("/exec/{namespace}/{pod}/{uid}/{container}", any(exec_by_uid))
        .route("/attach/{namespace}/{pod}/{container}", any(attach))
        .route("/attach/{namespace}/{pod}/{uid}/{container}", any(attach_by_uid))
        .route("/portForward/{namespace}/{pod}", any(port_forward))
        .route("/portForward/{namespace}/{pod}/{uid}", any(port_forward_by_uid))
        .route("/run/{namespace}/{pod}/{container}", any(run))
        .route("/run/{namespace}/{pod}/{uid}/{container}", any(run_by_uid))
}

/// The same paths where `enableDebuggingHandlers` is off.
fn disabled() -> Router<Arc<Server>> {
    let refuse = async || text(StatusCode::METHOD_NOT_ALLOWED, "Debug endpoints are disabled.");
    let paths = ["exec", "attach", "portForward", "run", "containerLogs"].map(|kind| format!("/{kind}/{{*rest}}"));
    paths.iter().fold(Router::new(), |routes, path| routes.route(path, any(refuse)))
}

async fn summary(State(server): Of, query: Query) -> Answer {
    match server.summary(param(&query, "only_cpu_and_memory") == Some("true")).await {
        Ok(summary) => json(&summary),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, error),
    }
}

async fn container_log(State(server): Of, Path((namespace, pod, container)): Place3, query: Query) -> Answer {
    logs::container(&server, &namespace, &pod, &container, &query).await
}

async fn exec(State(s): Of, Path((namespace, pod, container)): Place3, query: Query, request: Request<Body>) -> Answer {
    s.exec(request, &query, &namespace, &pod, None, &container).await
}

async fn exec_by_uid(State(s): Of, Path(place): Place4, query: Query, request: Request<Body>) -> Answer {
    let (namespace, pod, uid, container) = place;
    s.exec(request, &query, &namespace, &pod, Some(&uid), &container).await
}

async fn attach(State(s): Of, Path((ns, pod, container)): Place3, query: Query, request: Request<Body>) -> Answer {
    s.attach(request, &query, &ns, &pod, None, &container).await
}

async fn attach_by_uid(State(s): Of, Path(place): Place4, query: Query, request: Request<Body>) -> Answer {
    let (namespace, pod, uid, container) = place;
    s.attach(request, &query, &namespace, &pod, Some(&uid), &container).await
}

async fn port_forward(
    State(s): Of, Path((namespace, pod)): Path<(String, String)>, query: Query, request: Request<Body>,
) -> Answer {
    s.port_forward(request, &query, &namespace, &pod, None).await
}

async fn port_forward_by_uid(
    State(s): Of, Path((namespace, pod, uid)): Place3, query: Query, request: Request<Body>,
) -> Answer {
    s.port_forward(request, &query, &namespace, &pod, Some(&uid)).await
}

async fn run(State(s): Of, Path((namespace, pod, container)): Place3, query: Query) -> Answer {
    s.run(&query, &namespace, &pod, None, &container).await
}

async fn run_by_uid(State(s): Of, Path((namespace, pod, uid, container)): Place4, query: Query) -> Answer {
    s.run(&query, &namespace, &pod, Some(&uid), &container).await
}

fn metrics(text: String) -> Answer {
    typed(StatusCode::OK, base::metrics::CONTENT_TYPE, text)
}

impl Server {
    /// Is the loop over the runtime alive?
    fn healthy(&self) -> Result<(), String> {
        match *self.listed.read() {
            Some(at) if at.elapsed() < Duration::from_secs(180) => Ok(()),
            Some(at) => Err(format!("pleg was last seen active {:?} ago", at.elapsed())),
            None => Err("the container runtime has not been listed yet".into()),
        }
    }

    /// One check, or all of them.
    fn health(&self, check: &str) -> Answer {
        match check {
            "ping" | "log" => return text(StatusCode::OK, "ok"),
            "" | "syncloop" => {}
            _ => return text(StatusCode::NOT_FOUND, "404 page not found\n"),
        }
        match self.healthy() {
            Ok(()) => text(StatusCode::OK, "ok"),
            Err(why) => {
                let body = format!("[+]ping ok\n[+]log ok\n[-]syncloop failed: {why}\nhealthz check failed\n");
                text(StatusCode::INTERNAL_SERVER_ERROR, body)
            }
        }
    }

    /// A pod by namespace and name. Its UID may be given, by its own or its mirror's.
    pub fn pod(&self, namespace: &str, name: &str, uid: Option<&str>) -> Option<Arc<Pod>> {
        let pod = self.table.find(namespace, name, None)?;
        let mirror = self.ctx.mirrors.as_ref().and_then(|mirrors| mirrors.of(&pod));
        let fits = |uid: &str| pods::uid(&pod) == uid || mirror.as_ref().is_some_and(|mirror| pods::uid(mirror) == uid);
        uid.is_none_or(fits).then_some(pod)
    }

    /// The status of a pod as the kubelet has it.
    pub fn status(&self, pod: &Pod) -> PodStatus {
        self.ctx.statuses.get(pods::uid(pod)).or_else(|| pod.status.clone()).unwrap_or_default()
    }

    fn pods(&self) -> Answer {
        let mut items: Vec<Pod> = self
            .table
            .all()
            .into_iter()
            .map(|pod| {
                let status = self.status(&pod);
                Pod { status: Some(status), ..Pod::clone(&pod) }
            })
            .collect();
        items.sort_by(|a, b| (pods::namespace(a), pods::name(a)).cmp(&(pods::namespace(b), pods::name(b))));
        json(&serde_json::json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items}))
    }

    async fn running_pods(&self) -> Answer {
        let containers = match self.ctx.cri.containers(None).await {
            Ok(containers) => containers,
            Err(error) => return text(StatusCode::INTERNAL_SERVER_ERROR, error.with_code()),
        };
        let mut pods: HashMap<(String, String, String), Vec<serde_json::Value>> = HashMap::new();
        let running = k8s_cri::v1::ContainerState::ContainerRunning as i32;
        for container in containers.into_iter().filter(|container| container.state == running) {
            use crate::runtime::labels::{CONTAINER_NAME, POD_NAME, POD_NAMESPACE, POD_UID};
            let label = |key: &str| container.labels.get(key).cloned().unwrap_or_default();
            let image = container.image.as_ref().map(|image| image.image.clone()).unwrap_or_default();
            let entry = serde_json::json!({"name": label(CONTAINER_NAME), "image": image, "resources": {}});
            pods.entry((label(POD_NAMESPACE), label(POD_NAME), label(POD_UID))).or_default().push(entry);
        }
        let items: Vec<serde_json::Value> = pods
            .into_iter()
            .map(|((namespace, name, uid), containers)| {
                serde_json::json!({"metadata": {"name": name, "namespace": namespace, "uid": uid},
                    "spec": {"containers": containers}, "status": {}})
            })
            .collect();
        json(&serde_json::json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items}))
    }
}

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
use base::Fault;
use base::server::{Handler, Peer};
use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use parking_lot::RwLock;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Body of an answer.
pub type Body = UnsyncBoxBody<Bytes, Fault>;
/// An answer.
pub type Answer = Response<Body>;

/// The server's knowledge.
pub struct Server {
    /// The workers' common ground.
    pub ctx: Arc<Context>,
    /// The pods there shall be.
    pub table: Arc<Table>,
    /// Who may ask; none on the port without authentication.
    pub guard: Option<Guard>,
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
pub fn typed(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Answer {
    let body = Full::new(body.into()).map_err(|never| match never {}).boxed_unsync();
    let mut answer = Response::new(body);
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
pub type Query = Vec<(String, String)>;

/// One parameter.
pub fn param<'a>(query: &'a Query, name: &str) -> Option<&'a str> {
    query.iter().rev().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
}

impl Handler for Server {
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
        self.route(request).await
    }
}

impl Server {
    async fn route(&self, request: Request<Incoming>) -> Answer {
        let path = request.uri().path().to_owned();
        let parts: Vec<String> = path
            .trim_matches('/')
            .split('/')
            .map(|part| base::health::unescape(part, false).unwrap_or_else(|| part.to_owned()))
            .collect();
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        let query: Query = base::health::parse_query(request.uri().query().unwrap_or_default());
        let get = matches!(*request.method(), Method::GET | Method::HEAD);
        match parts.as_slice() {
            ["healthz", rest @ ..] if get => self.health(rest),
            ["pods"] if get => self.pods(),
            ["runningpods"] if get => self.running_pods().await,
            ["stats", "summary"] => match self.summary(param(&query, "only_cpu_and_memory") == Some("true")).await {
                Ok(summary) => json(&summary),
                Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, error),
            },
            ["metrics"] if get => self.metrics().await,
            ["metrics", "resource"] if get => self.resource_metrics().await,
            ["metrics", "cadvisor"] if get => self.cadvisor_metrics().await,
            ["metrics", "probes"] if get => typed(StatusCode::OK, base::metrics::CONTENT_TYPE, String::new()),
            ["configz"] if get => json(&serde_json::json!({"kubeletconfig": self.configz})),
            ["flagz"] if get => text(StatusCode::OK, base::health::flagz("kubelet", &self.flags)),
            ["statusz"] if get => text(StatusCode::OK, base::health::statusz("kubelet", &[])),
            ["logs", rest @ ..] if get && self.system_logs => logs::system(rest).await,
            ["exec" | "attach" | "portForward" | "run" | "containerLogs", ..] if !self.debugging => {
                text(StatusCode::METHOD_NOT_ALLOWED, "Debug endpoints are disabled.")
            }
            ["containerLogs", namespace, pod, container] if get => {
                logs::container(self, namespace, pod, container, &query).await
            }
            ["exec", namespace, pod, container] => self.exec(request, &query, namespace, pod, None, container).await,
            ["exec", namespace, pod, uid, container] => {
                self.exec(request, &query, namespace, pod, Some(uid), container).await
            }
            ["attach", namespace, pod, container] => {
                self.attach(request, &query, namespace, pod, None, container).await
            }
            ["attach", namespace, pod, uid, container] => {
                self.attach(request, &query, namespace, pod, Some(uid), container).await
            }
            ["portForward", namespace, pod] => self.port_forward(request, &query, namespace, pod, None).await,
            ["portForward", namespace, pod, uid] => self.port_forward(request, &query, namespace, pod, Some(uid)).await,
            ["run", namespace, pod, container] => self.run(&query, namespace, pod, None, container).await,
            ["run", namespace, pod, uid, container] => self.run(&query, namespace, pod, Some(uid), container).await,
            _ => text(StatusCode::NOT_FOUND, "404 page not found\n"),
        }
    }

    /// Is the loop over the runtime alive?
    fn healthy(&self) -> Result<(), String> {
        match *self.listed.read() {
            Some(at) if at.elapsed() < Duration::from_secs(180) => Ok(()),
            Some(at) => Err(format!("pleg was last seen active {:?} ago", at.elapsed())),
            None => Err("the container runtime has not been listed yet".into()),
        }
    }

    fn health(&self, rest: &[&str]) -> Answer {
        match rest {
            ["ping" | "log"] => return text(StatusCode::OK, "ok"),
            [] | ["syncloop"] => {}
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

/// The health endpoint on its own port: nothing else is told there.
pub struct HealthOnly(pub Arc<Server>);

impl Handler for HealthOnly {
    type Connection = ();
    type Body = Body;

    fn connected(&self, _: Peer) {}

    async fn call(&self, _: Arc<()>, request: Request<Incoming>) -> Answer {
        let path = request.uri().path().trim_matches('/').to_owned();
        let parts: Vec<&str> = path.split('/').collect();
        match parts.as_slice() {
            ["healthz", rest @ ..] => self.0.health(rest),
            _ => text(StatusCode::NOT_FOUND, "404 page not found\n"),
        }
    }
}

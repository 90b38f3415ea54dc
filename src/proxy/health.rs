//! What others ask: is this proxy well (`/healthz`, `/livez`), and does a service have endpoints here (KEP-27's health
//! checks for load balancers).

use std::collections::HashMap;
use std::net::{Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::server::{self, Handler, Limits, Peer};
use base::shutdown::Shutdown;
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use k8s_openapi::api::core::v1::Node;
use parking_lot::Mutex;
use serde_json::json;

use crate::model::{Place, Port};
use crate::sync::{Progress, Syncer};

/// The proxy is unwell when a change is older than this and the kernel does not have it.
const PATIENCE: Duration = Duration::from_secs(120);

/// Serves `/healthz` and `/livez`.
pub struct Server(pub Arc<Syncer>);

/// True while the kernel keeps up.
fn keeps_up(progress: Progress, now: Instant) -> bool {
    progress.synced.is_some()
        && progress.pending_since.is_none_or(|since| now.saturating_duration_since(since) < PATIENCE)
}

/// A node that is being taken away should get no new traffic from load balancers (KEP-3836).
fn is_leaving(node: Option<&Node>) -> bool {
    let Some(node) = node else { return false };
    let taints = node.spec.iter().flat_map(|s| s.taints.iter().flatten());
    node.metadata.deletion_timestamp.is_some() || taints.into_iter().any(|t| t.key == "ToBeDeletedByClusterAutoscaler")
}

fn json(code: StatusCode, body: &serde_json::Value) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body.to_string())));
    *response.status_mut() = code;
    let headers = response.headers_mut();
    headers.insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
    headers.insert("X-Content-Type-Options", http::HeaderValue::from_static("nosniff"));
    response
}

fn status(ok: bool) -> StatusCode {
    if ok { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}

impl Handler for Server {
    type Connection = Peer;
    type Body = Full<Bytes>;

    fn connected(&self, peer: Peer) -> Peer {
        peer
    }

    async fn call(&self, _peer: Arc<Peer>, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let progress = self.0.progress();
        let well = keeps_up(progress, Instant::now());
        let well = match request.uri().path() {
            "/healthz" => well && !is_leaving(self.0.node().as_deref()),
            "/livez" => well,
            _ => return json(StatusCode::NOT_FOUND, &json!("404 page not found")),
        };
        let now = jiff::Timestamp::now();
        let synced = progress.synced.map(|at| now - jiff::SignedDuration::try_from(at.elapsed()).unwrap_or_default());
        let body = json!({"lastUpdated": synced.map(|t| t.to_string()), "currentTime": now.to_string()});
        json(status(well), &body)
    }
}

/// Health servers of services, one per health-check node port.
#[derive(Default)]
pub struct HealthPorts {
    open: Mutex<HashMap<u16, Open>>,
}

struct Open {
    answer: Arc<Mutex<Answer>>,
    shutdown: Shutdown,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

/// What one of them answers.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Answer {
    namespace: String,
    service: String,
    endpoints: usize,
}

impl HealthPorts {
    /// Opens, changes and closes servers so that there is one for every port that services name.
    pub async fn set(&self, ports: &[Port], place: &Place) {
        let wanted = wanted(ports, place);
        self.open.lock().retain(|port, _| wanted.contains_key(port));
        for (port, answer) in wanted {
            if let Some(open) = self.open.lock().get(&port) {
                *open.answer.lock() = answer;
                continue;
            }
            let address = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port);
            match server::listen(address, false) {
                Ok(listener) => {
                    let (answer, shutdown) = (Arc::new(Mutex::new(answer)), Shutdown::new());
                    let handler = Arc::new(ServiceServer(answer.clone()));
                    tokio::spawn(server::serve(listener, None, Limits::default(), handler, shutdown.clone()));
                    self.open.lock().insert(port, Open { answer, shutdown });
                }
                Err(error) => {
                    let service = format!("{}/{}", answer.namespace, answer.service);
                    tracing::error!(%error, port, service, "can't listen at a service's health-check node port");
                }
            }
        }
    }
}

/// For each health port, the service and how many distinct local backends it has.
fn wanted(ports: &[Port], place: &Place) -> HashMap<u16, Answer> {
    let mut answers: HashMap<u16, Answer> = HashMap::new();
    for port in ports.iter().filter(|p| p.health_port != 0 && p.external_local) {
        let mut ips: Vec<_> = port.choose(place).local.into_iter().map(|e| e.ip).collect();
        ips.sort();
        ips.dedup();
        let fresh = || Answer { namespace: port.namespace.clone(), service: port.service.clone(), endpoints: 0 };
        let answer = answers.entry(port.health_port).or_insert_with(fresh);
        answer.endpoints = answer.endpoints.max(ips.len());
    }
    answers
}

struct ServiceServer(Arc<Mutex<Answer>>);

impl Handler for ServiceServer {
    type Connection = Peer;
    type Body = Full<Bytes>;

    fn connected(&self, peer: Peer) -> Peer {
        peer
    }

    async fn call(&self, _peer: Arc<Peer>, _request: Request<Incoming>) -> Response<Full<Bytes>> {
        let answer = self.0.lock().clone();
        let body = json!({
            "service": {"namespace": answer.namespace, "name": answer.service},
            "localEndpoints": answer.endpoints,
            "serviceProxyHealthy": true,
        });
        json(status(answer.endpoints > 0), &body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_proxy_is_well_once_it_synced_and_while_changes_are_young() {
        let now = Instant::now();
        assert!(!keeps_up(Progress::default(), now));
        let synced = Progress { pending_since: None, synced: Some(now) };
        assert!(keeps_up(synced, now));
        let late = Progress { pending_since: Some(now), ..synced };
        assert!(keeps_up(late, now + Duration::from_secs(60)));
        assert!(!keeps_up(late, now + Duration::from_secs(121)));
    }

    #[test]
    fn a_node_that_leaves_is_not_well() {
        let tainted: Node = serde_json::from_value(json!({
            "metadata": {"name": "n"}, "spec": {"taints": [{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}]},
        }))
        .unwrap();
        assert!(is_leaving(Some(&tainted)));
        assert!(!is_leaving(None));
    }
}

//! What others ask: is this proxy well (`/healthz`, `/livez`), and does a service have endpoints here (KEP-27's health
//! checks for load balancers).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::server::{self, Handler, Limits, Peer};
use base::shutdown::Shutdown;
use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use parking_lot::Mutex;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family;
use serde::Serialize;

use crate::model::{Family, Port};
use crate::sync::Syncer;

/// What the kernel has of each family, and since when it lacks something.
#[derive(Debug)]
pub struct Vitals {
    patience: Duration,
    families: Mutex<BTreeMap<Family, Progress>>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Progress {
    /// The oldest change that the kernel does not have yet.
    pending_since: Option<Instant>,
    /// The last time the kernel had everything.
    updated: Option<Timestamp>,
}

/// A family in the body of an answer.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct FamilyHealth {
    last_updated: String,
    healthy: bool,
}

/// The body of an answer.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Health {
    last_updated: String,
    current_time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    node_eligible: Option<bool>,
    healthy: bool,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    status: BTreeMap<&'static str, FamilyHealth>,
}

impl Vitals {
    /// Nothing is known, and a change is late after `patience`.
    pub fn new(patience: Duration) -> Self {
        Self { patience, families: Mutex::default() }
    }

    /// A change came that the kernel does not have yet.
    pub fn queued(&self, families: &[Family]) {
        let mut all = self.families.lock();
        for family in families {
            all.entry(*family).or_default().pending_since.get_or_insert_with(Instant::now);
        }
    }

    /// The kernel has everything of a family.
    pub fn updated(&self, family: Family) {
        let progress = Progress { pending_since: None, updated: Some(Timestamp::now()) };
        self.families.lock().insert(family, progress);
    }

    /// The kernel keeps up.
    pub fn healthy(&self) -> bool {
        self.families.lock().values().all(|progress| !self.late(*progress, Instant::now()))
    }

    fn late(&self, progress: Progress, now: Instant) -> bool {
        // Before the first time it is not late but starting.
        progress.updated.is_some()
            && progress.pending_since.is_some_and(|since| now.saturating_duration_since(since) >= self.patience)
    }

    fn health(&self, node_eligible: Option<bool>) -> Health {
        let (now, current) = (Instant::now(), Timestamp::now());
        let families = self.families.lock();
        let known = families.iter().filter_map(|(family, progress)| Some((*family, *progress, progress.updated?)));
        let status: BTreeMap<_, _> = known
            .map(|(family, progress, updated)| {
                let healthy = !self.late(progress, now);
                (family.name(), FamilyHealth { last_updated: updated.to_string(), healthy })
            })
            .collect();
        let healthy = status.values().all(|family| family.healthy);
        let latest = families.values().filter_map(|progress| progress.updated).max();
        // While all is well upstream's answers say that it was looked at just now, whenever something last changed.
        let well = healthy && node_eligible != Some(false);
        let last = if well { Some(current) } else { latest };
        Health {
            last_updated: last.map_or("0001-01-01T00:00:00Z".into(), |at| at.to_string()),
            current_time: current.to_string(),
            node_eligible,
            healthy,
            status,
        }
    }
}

/// A node that is gone or is being taken away should get no new traffic from load balancers (KEP-3836).
fn is_eligible(node: Option<&Node>) -> bool {
    let Some(node) = node else { return false };
    let taints = node.spec.iter().flat_map(|s| s.taints.iter().flatten());
    node.metadata.deletion_timestamp.is_none() && taints.into_iter().all(|t| t.key != "ToBeDeletedByClusterAutoscaler")
}

fn json(ok: bool, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = if ok { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

fn not_found() -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from_static(b"404 page not found\n")));
    *response.status_mut() = StatusCode::NOT_FOUND;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Code {
    code: u16,
}

/// Serves `/healthz` and `/livez`.
pub struct Server {
    syncer: Arc<Syncer>,
    healthz: family::Family<Code, Counter>,
    livez: family::Family<Code, Counter>,
}

impl Server {
    /// The answers for this syncer.
    pub fn new(syncer: Arc<Syncer>) -> Self {
        let add = |path: &str| {
            let (name, help) = (format!("kubeproxy_proxy_{path}"), format!("Cumulative proxy {path} HTTP status"));
            base::metrics::global().add(&name, &help, family::Family::default())
        };
        Self { syncer, healthz: add("healthz"), livez: add("livez") }
    }
}

impl Handler for Server {
    type Connection = Peer;
    type Body = Full<Bytes>;

    fn connected(&self, peer: Peer) -> Peer {
        peer
    }

    async fn call(&self, _peer: Arc<Peer>, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let (eligible, counter) = match request.uri().path() {
            "/healthz" => (Some(is_eligible(self.syncer.node().as_deref())), &self.healthz),
            "/livez" => (None, &self.livez),
            _ => return not_found(),
        };
        let health = self.syncer.vitals().health(eligible);
        let response = match serde_json::to_string(&health) {
            Ok(body) => json(health.healthy && eligible != Some(false), body),
            Err(error) => json(false, error.to_string()),
        };
        counter.get_or_create(&Code { code: response.status().as_u16() }).inc();
        response
    }
}

/// Health servers of services, one for each health-check node port and address.
pub struct HealthPorts {
    vitals: Arc<Vitals>,
    open: Mutex<HashMap<SocketAddr, Open>>,
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
pub struct Answer {
    namespace: String,
    service: String,
    endpoints: usize,
}

impl HealthPorts {
    /// None are open. What the proxy itself lacks is in their answers.
    pub fn new(vitals: Arc<Vitals>) -> Self {
        Self { vitals, open: Mutex::default() }
    }

    /// Opens, changes and closes servers so that there is one at every address that is wanted.
    pub fn set(&self, wanted: HashMap<SocketAddr, Answer>) {
        let mut open = self.open.lock();
        open.retain(|address, _| wanted.contains_key(address));
        for (address, answer) in wanted {
            if let Some(open) = open.get(&address) {
                *open.answer.lock() = answer;
                continue;
            }
            match server::listen_in_family(address) {
                Ok(listener) => {
                    let (answer, shutdown) = (Arc::new(Mutex::new(answer)), Shutdown::new());
                    let handler = Arc::new(ServiceServer { answer: answer.clone(), vitals: self.vitals.clone() });
                    tokio::spawn(server::serve(listener, None, Limits::default(), handler, shutdown.clone()));
                    open.insert(address, Open { answer, shutdown });
                }
                Err(error) => {
                    let service = format!("{}/{}", answer.namespace, answer.service);
                    tracing::error!(%error, %address, service, "can't listen at a service's health-check node port");
                }
            }
        }
    }
}

/// For each health port at these addresses, the service and how many distinct ready backends it has here. Those that
/// end do not count, though traffic may still go to them: a balancer is to look elsewhere.
pub fn answers(ports: &[Port], addresses: &[IpAddr]) -> HashMap<SocketAddr, Answer> {
    let mut services: BTreeMap<u16, (&Port, BTreeSet<IpAddr>)> = BTreeMap::new();
    for port in ports.iter().filter(|p| p.health_port != 0 && p.external_local) {
        let (_, ips) = services.entry(port.health_port).or_insert_with(|| (port, BTreeSet::new()));
        ips.extend(port.endpoints.iter().filter(|e| e.ready && e.local).map(|e| e.ip));
    }
    let each = services.into_iter().flat_map(|(number, (port, ips))| {
        let (namespace, service) = (port.namespace.clone(), port.service.clone());
        let answer = Answer { namespace, service, endpoints: ips.len() };
        addresses.iter().map(move |ip| (SocketAddr::new(*ip, number), answer.clone()))
    });
    each.collect()
}

struct ServiceServer {
    answer: Arc<Mutex<Answer>>,
    vitals: Arc<Vitals>,
}

impl Handler for ServiceServer {
    type Connection = Peer;
    type Body = Full<Bytes>;

    fn connected(&self, peer: Peer) -> Peer {
        peer
    }

    async fn call(&self, _peer: Arc<Peer>, _request: Request<Incoming>) -> Response<Full<Bytes>> {
        service_answer(&self.answer.lock().clone(), self.vitals.healthy())
    }
}

fn service_answer(answer: &Answer, healthy: bool) -> Response<Full<Bytes>> {
    let Answer { namespace, service, endpoints } = answer;
    let body = format!(
        "{{\n\t\"service\": {{\n\t\t\"namespace\": {namespace:?},\n\t\t\"name\": {service:?}\n\t}},\n\
         \t\"localEndpoints\": {endpoints},\n\t\"serviceProxyHealthy\": {healthy}\n}}"
    );
    let mut response = json(healthy && *endpoints > 0, body);
    response.headers_mut().insert("X-Load-Balancing-Endpoint-Weight", HeaderValue::from(*endpoints));
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_proxy_is_well_while_it_starts_and_while_changes_are_young() {
        let vitals = Vitals::new(Duration::from_secs(60));
        vitals.queued(&[Family::V4]);
        assert!(vitals.healthy(), "it starts");
        let (now, updated) = (Instant::now(), Some(Timestamp::now()));
        let late = Progress { pending_since: Some(now), updated };
        assert!(!vitals.late(late, now + Duration::from_secs(59)));
        assert!(vitals.late(late, now + Duration::from_secs(60)));
        assert!(!vitals.late(Progress { pending_since: None, updated }, now + Duration::from_secs(60)));
    }

    #[test]
    fn answers_on_health_are_upstreams() {
        let vitals = Vitals::new(Duration::ZERO);
        vitals.updated(Family::V4);
        let body = serde_json::to_value(vitals.health(Some(true))).unwrap();
        assert_eq!((&body["nodeEligible"], &body["healthy"]), (&json!(true), &json!(true)));
        assert_eq!(body["lastUpdated"], body["currentTime"]);
        assert_eq!(body["status"]["IPv4"]["healthy"], json!(true));
        vitals.queued(&[Family::V4]);
        let body = serde_json::to_value(vitals.health(None)).unwrap();
        assert_eq!((body.get("nodeEligible"), &body["healthy"]), (None, &json!(false)));
        assert_eq!(body["lastUpdated"], body["status"]["IPv4"]["lastUpdated"]);
        let text = serde_json::to_string(&vitals.health(Some(false))).unwrap();
        assert!(
            text.starts_with("{\"lastUpdated\":\"") && text.contains("\"nodeEligible\":false,\"healthy\""),
            "{text}"
        );
    }

    #[test]
    fn a_node_that_leaves_or_is_not_known_is_not_eligible() {
        let tainted: Node = serde_json::from_value(json!({
            "metadata": {"name": "n"}, "spec": {"taints": [{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}]},
        }))
        .unwrap();
        assert!(!is_eligible(Some(&tainted)));
        assert!(!is_eligible(None));
        assert!(is_eligible(Some(&Node::default())));
    }

    #[test]
    fn balancers_are_told_of_ready_endpoints_here_in_upstreams_form() {
        use crate::model::Endpoint;
        let endpoint = |ip: &str, ready: bool, local: bool| Endpoint {
            ip: ip.parse().unwrap(),
            port: 80,
            ready,
            serving: true,
            terminating: !ready,
            local,
            for_zones: vec![],
            for_nodes: vec![],
        };
        let endpoints = vec![
            endpoint("10.0.0.1", true, true),
            endpoint("10.0.0.2", false, true),
            endpoint("10.0.0.3", true, false),
        ];
        let port = Port { external_local: true, health_port: 30_000, endpoints, ..Port::test("tcp") };
        let found = answers(&[port.clone(), port], &["192.0.2.2".parse().unwrap()]);
        let answer = &found[&"192.0.2.2:30000".parse().unwrap()];
        assert_eq!((found.len(), answer.endpoints), (1, 1));
        let response = service_answer(answer, true);
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["x-load-balancing-endpoint-weight"], "1");
        assert_eq!(service_answer(answer, false).status(), 503);
        assert_eq!(service_answer(&Answer { endpoints: 0, ..answer.clone() }, true).status(), 503);
    }
}

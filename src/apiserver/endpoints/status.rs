//! What tells how the control plane is: the deprecated ComponentStatuses, and health checks as metrics.

use std::sync::Arc;

use api::Value;
use api::resources::Row;
use api::status::Status;
use http::StatusCode;
use serde_json::json;

use crate::registry::output;
use crate::request::{Answer, Request};
use crate::server::Server;

/// Answers `GET` of ComponentStatuses, one or all: each component is asked at that moment.
///
/// # Errors
/// 404 for other names, 406.
pub async fn component_statuses(server: &Arc<Server>, row: &Arc<Row>, request: &mut Request) -> Result<Answer, Status> {
    let accept = output::negotiate(row, request)?;
    let (scheduler, manager, etcd) = futures::join!(probe("127.0.0.1:10259"), probe("127.0.0.1:10257"), async {
        server.api.store.revision().await.map(|_| "ok".to_string()).map_err(|e| e.to_string())
    },);
    let all = [("scheduler", scheduler), ("controller-manager", manager), ("etcd-0", etcd)];
    let items: Vec<Value> = all.iter().map(|(name, outcome)| component(name, outcome)).collect();
    let name = request.info.name.clone();
    if !name.is_empty() && request.info.parts.len() > 1 {
        let found = items.into_iter().find(|i| i["metadata"]["name"] == name.as_str());
        let object = found.ok_or_else(|| Status::not_found(row.group_resource(), &name))?;
        return output::object(&server.api, row, request, &accept, StatusCode::OK, object);
    }
    output::made_list(row, request, &accept, items)
}

fn component(name: &str, outcome: &Result<String, String>) -> Value {
    let condition = match outcome {
        Ok(message) => json!({"type": "Healthy", "status": "True", "message": message}),
        Err(why) => json!({"type": "Healthy", "status": "False", "message": why}),
    };
    json!({"kind": "ComponentStatus", "apiVersion": "v1", "metadata": {"name": name}, "conditions": [condition]})
}

/// Asks a component on this machine for its health. Its certificate is its own, and nothing but its word is at stake.
async fn probe(address: &str) -> Result<String, String> {
    let patience = std::time::Duration::from_secs(5);
    match tokio::time::timeout(patience, ask(address)).await {
        Ok(outcome) => outcome.map_err(|e| format!("Get \"https://{address}/healthz\": {e}")),
        Err(_) => Err(format!("Get \"https://{address}/healthz\": context deadline exceeded")),
    }
}

async fn ask(address: &str) -> Result<String, base::Fault> {
    use http_body_util::BodyExt as _;
    let config = base::tls::insecure_client(None, &["http/1.1"])?;
    let stream = tokio::net::TcpStream::connect(address).await?;
    let name = rustls_pki_types::ServerName::try_from("localhost")?;
    let stream = tokio_rustls::TlsConnector::from(config).connect(name, stream).await?;
    let io = hyper_util::rt::TokioIo::new(stream);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await?;
    let driver = tokio::spawn(connection);
    let request = http::Request::get("/healthz").header(http::header::HOST, address);
    let answer = sender.send_request(request.body(http_body_util::Empty::<bytes::Bytes>::new())?).await?;
    let code = answer.status();
    let body = answer.into_body().collect().await?.to_bytes();
    driver.abort();
    let text = String::from_utf8_lossy(&body).into_owned();
    if code.is_success() { Ok(text) } else { Err(format!("HTTP {code}: {text}").into()) }
}

/// Health checks as metrics.
pub async fn slis(server: &Server) -> String {
    use std::fmt::Write as _;
    let health = &server.health;
    let mut text = String::from(
        "# HELP kubernetes_healthcheck [STABLE] This metric records the result of a single healthcheck.\n\
         # TYPE kubernetes_healthcheck gauge\n",
    );
    for (endpoint, checks) in [("healthz", &health.healthz), ("livez", &health.livez), ("readyz", &health.readyz)] {
        for name in checks.names() {
            let ok = checks.report_one(name).await.is_some_and(|r| r.ok);
            let _ = writeln!(text, "kubernetes_healthcheck{{name={name:?},type={endpoint:?}}} {}", u8::from(ok));
        }
    }
    text
}

//! The standard health check of gRPC: one call over HTTP/2 in the clear.

use super::Outcome;
use super::dial::{dial, join};
use base::clock::format_duration;
use bytes::{BufMut, Bytes, BytesMut};
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use std::time::{Duration, Instant};

#[derive(Clone, PartialEq, Message)]
struct HealthCheckRequest {
    #[prost(string, tag = "1")]
    service: String,
}

#[derive(Clone, PartialEq, Message)]
struct HealthCheckResponse {
    #[prost(int32, tag = "1")]
    status: i32,
}

/// The name of a serving status.
fn status_name(status: i32) -> String {
    match status {
        0 => "UNKNOWN".into(),
        1 => "SERVING".into(),
        2 => "NOT_SERVING".into(),
        3 => "SERVICE_UNKNOWN".into(),
        other => other.to_string(),
    }
}

/// Asks a service's health.
pub async fn probe(host: &str, port: u16, service: &str, timeout: Duration) -> Outcome {
    let address = join(host, port);
    let start = Instant::now();
    let stream = match connect(host, port, timeout).await {
        Some(stream) => stream,
        None => {
            return Outcome::Failure(format!(
                "timeout: failed to connect service {address:?} within {}: context deadline exceeded",
                format_duration(timeout)
            ));
        }
    };
    let left = timeout.saturating_sub(start.elapsed());
    match tokio::time::timeout(left, call(stream, &address, service)).await {
        Ok(outcome) => outcome,
        Err(_) => Outcome::Failure(format!("timeout: health rpc did not complete within {}", format_duration(timeout))),
    }
}

/// Connects, trying again until the time is up, as gRPC's blocking dial does.
async fn connect(host: &str, port: u16, timeout: Duration) -> Option<tokio::net::TcpStream> {
    let end = Instant::now() + timeout;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        match dial(host, port, left).await {
            Ok(stream) => return Some(stream),
            Err(_) if left.is_zero() => return None,
            Err(_) => tokio::time::sleep(left.min(Duration::from_millis(200))).await,
        }
    }
}

fn failed(error: impl std::fmt::Display) -> Outcome {
    let text = format!("rpc error: code = Unavailable desc = {error}");
    Outcome::Failure(format!("error: health rpc probe failed: {text}"))
}

async fn call(stream: tokio::net::TcpStream, address: &str, service: &str) -> Outcome {
    let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
    let (mut sender, connection) = match handshake {
        Ok(pair) => pair,
        Err(error) => return failed(error),
    };
    let running = tokio::spawn(connection);
    let message = HealthCheckRequest { service: service.into() }.encode_to_vec();
    let mut body = BytesMut::with_capacity(message.len() + 5);
    body.put_u8(0);
    body.put_u32(message.len() as u32);
    body.put_slice(&message);
    let (major, minor) = base::version::MAJOR_MINOR;
    let request = Request::builder()
        .method("POST")
        .uri(format!("http://{address}/grpc.health.v1.Health/Check"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("user-agent", format!("kube-probe/{major}.{minor}"))
        .body(Full::new(Bytes::from(body)));
    let outcome = match request {
        Ok(request) => match sender.send_request(request).await {
            Ok(response) => answer(response).await,
            Err(error) => failed(error),
        },
        Err(error) => failed(error),
    };
    running.abort();
    outcome
}

async fn answer(response: http::Response<hyper::body::Incoming>) -> Outcome {
    let (parts, body) = response.into_parts();
    let collected = match body.collect().await {
        Ok(collected) => collected,
        Err(error) => return failed(error),
    };
    let trailers = collected.trailers().cloned().unwrap_or_default();
    // An answer without a body carries its status in the headers.
    let find = |name: &str| {
        let value = trailers.get(name).or_else(|| parts.headers.get(name))?;
        value.to_str().ok().map(str::to_owned)
    };
    let code = find("grpc-status").and_then(|code| code.parse::<i32>().ok()).unwrap_or(2);
    let message = find("grpc-message").unwrap_or_default();
    if code == 0 {
        let bytes = collected.to_bytes();
        let decoded = bytes.get(5..).and_then(|bytes| HealthCheckResponse::decode(bytes).ok());
        return match decoded.map(|response| response.status) {
            Some(1) => Outcome::Success,
            Some(status) => Outcome::Failure(format!("service unhealthy (responded with {:?})", status_name(status))),
            None => failed("the answer is no health check"),
        };
    }
    if code == 12 {
        return Outcome::Failure(format!(
            "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): {message}"
        ));
    }
    let name = tonic::Code::from_i32(code);
    Outcome::Failure(format!("error: health rpc probe failed: rpc error: code = {name:?} desc = {message}"))
}

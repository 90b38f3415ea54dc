//! Connections that change their protocol: handed through byte for byte, or out of a websocket's messages.
//!
//! ```text
//!  client ── SPDY or websocket ──► API server ── the same ──► backend
//!  client ── websocket[SPDY] ────► API server ── SPDY ──────► backend        (tunnel)
//! ```
//!
//! An answer of the backend that is no upgrade goes to the client, whose connection ends with it: nothing may be sent
//! past it (CVE-2018-1002105).

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use api::status::Status;

use super::locate::Backend;
use super::websocket::{self, Inbox, Outbox, Socket, TUNNEL};
use super::{Call, forward, wire};
use crate::request::{Answer, Body};
use crate::respond::plain;

/// Which protocol an upgraded connection carries inside.
pub static STREAM_PROTOCOL: HeaderName = HeaderName::from_static("x-stream-protocol-version");

/// How long a backend may take to notice that the client is done.
const LINGER: Duration = Duration::from_secs(5);

fn unexpected(text: impl Into<String>) -> Status {
    Status::new(500, "", text)
}

/// Hands the client's connection to the backend, as it asks for it.
///
/// # Errors
/// 400 for requests that ask for no upgrade, 500 when the backend can't be reached.
pub async fn pass(mut call: Call<'_>, backend: &Backend) -> Result<Answer, Status> {
    if !websocket::is_upgrade(&call.req.headers) {
        return Err(Status::bad_request("Upgrade request required"));
    }
    let headers = forward::headers(&call);
    let response = ask(&call, backend, call.req.method.clone(), headers).await?;
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Ok(refused(response));
    }
    let mut answer = Answer::new(Body::empty());
    *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    *answer.headers_mut() = response.headers().clone();
    let client = taken(&mut call)?;
    call.streams.run(join(client, hyper::upgrade::on(response)));
    Ok(answer)
}

/// Hands SPDY from the messages of a websocket to the backend, and back.
///
/// # Errors
/// 500 when the backend can't be reached.
pub async fn tunnel(mut call: Call<'_>, backend: &Backend) -> Result<Answer, Status> {
    let mut headers = forward::headers(&call);
    let inner: Vec<String> = {
        let wanted = websocket::protocols(&call.req.headers).into_iter();
        wanted.filter(|p| p.ends_with(".k8s.io")).filter_map(|p| p.strip_prefix(TUNNEL)).map(str::to_string).collect()
    };
    for name in [header::SEC_WEBSOCKET_PROTOCOL, header::SEC_WEBSOCKET_KEY, header::SEC_WEBSOCKET_VERSION] {
        headers.remove(name);
    }
    headers.insert(header::UPGRADE, HeaderValue::from_static("SPDY/3.1"));
    headers.remove(&STREAM_PROTOCOL);
    for value in inner.iter().filter_map(|protocol| HeaderValue::from_str(protocol).ok()) {
        headers.append(STREAM_PROTOCOL.clone(), value);
    }
    let response = ask(&call, backend, Method::POST, headers).await?;
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Ok(refused(response));
    }
    let upgrade = response.headers().get(header::UPGRADE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    if !websocket::is_upgrade(response.headers()) || !upgrade.to_ascii_lowercase().contains("spdy/3.1") {
        let text = "unable to upgrade: missing upgrade headers in response\n";
        return Ok(plain(StatusCode::INTERNAL_SERVER_ERROR, text));
    }
    let chosen = response.headers().get(&STREAM_PROTOCOL).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let chosen = if chosen.is_empty() { String::new() } else { format!("{TUNNEL}{chosen}") };
    let answer = match websocket::accept(&call.req.headers, &chosen) {
        Ok(answer) | Err(answer) => answer,
    };
    if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
        let client = taken(&mut call)?;
        call.streams.run(join_messages(client, hyper::upgrade::on(response)));
    }
    Ok(answer)
}

/// The client's connection.
///
/// # Errors
/// 500 where the server can't give it away.
pub fn taken(call: &mut Call<'_>) -> Result<OnUpgrade, Status> {
    call.req.upgrade.take().ok_or_else(|| unexpected("request connection cannot be hijacked"))
}

/// Asks the backend to upgrade. What it answers is 101 or a failure.
async fn ask(
    call: &Call<'_>, backend: &Backend, method: Method, headers: HeaderMap,
) -> Result<Response<Incoming>, Status> {
    let stream = call.streams.wire.connect(backend).await;
    let stream = stream.map_err(|why| unexpected(format!("error dialing backend: {why}")))?;
    let mut request = Request::new(Empty::<Bytes>::new());
    *request.method_mut() = method;
    *request.uri_mut() = forward::uri(&backend.location)?;
    *request.headers_mut() = headers;
    let response = wire::exchange(stream, request).await.map_err(unexpected)?;
    let code = response.status().as_u16();
    if code != 101 && code < 400 {
        return Err(unexpected(format!("invalid upgrade response: status code {code}")));
    }
    Ok(response)
}

/// The backend's refusal, after which the connection ends.
fn refused(response: Response<Incoming>) -> Answer {
    let (mut parts, body) = response.into_parts();
    forward::strip_hops(&mut parts.headers);
    parts.headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    Answer::from_parts(parts, forward::stream(body))
}

/// Joins two upgraded connections.
async fn join(client: OnUpgrade, backend: OnUpgrade) {
    match tokio::try_join!(client, backend) {
        Ok((client, backend)) => base::relay::join(TokioIo::new(client), TokioIo::new(backend)).await,
        Err(error) => tracing::debug!(%error, "a connection was not upgraded"),
    }
}

/// Copies between the messages of a websocket and an upgraded connection until one of them ends.
async fn join_messages(client: OnUpgrade, backend: OnUpgrade) {
    let (socket, backend) = match tokio::join!(Socket::open(client), backend) {
        (Ok(socket), Ok(backend)) => (socket, TokioIo::new(backend)),
        (Err(error), _) | (_, Err(error)) => return tracing::debug!(%error, "a connection was not upgraded"),
    };
    let (outbox, mut inbox) = socket.split();
    let (mut from_backend, mut to_backend) = tokio::io::split(backend);
    tokio::select! {
        () = unwrap(&mut inbox, &mut to_backend) => {}
        () = wrap(&mut from_backend, &outbox) => {}
    }
    let _ = tokio::time::timeout(LINGER, to_backend.shutdown()).await;
    outbox.close(&mut inbox).await;
}

async fn unwrap(inbox: &mut Inbox, to: &mut (impl AsyncWrite + Unpin)) {
    while let Some(bytes) = inbox.bytes().await {
        if to.write_all(&bytes).await.is_err() || to.flush().await.is_err() {
            return;
        }
    }
}

async fn wrap(from: &mut (impl AsyncRead + Unpin), outbox: &Outbox) {
    let mut buffer = bytes::BytesMut::new();
    loop {
        buffer.reserve(32 << 10);
        match from.read_buf(&mut buffer).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        if outbox.bytes(buffer.split().freeze()).await.is_err() {
            return;
        }
    }
}

/// The text of a refusal, at most so much of it as is worth reading.
pub async fn text(response: Response<Incoming>) -> String {
    let body = http_body_util::Limited::new(response.into_body(), 50_000);
    let bytes = body.collect().await.map(|collected| collected.to_bytes()).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

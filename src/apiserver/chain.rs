//! What every request passes before it reaches its handler: one list, in order, each step with the reason for its
//! place.
//!
//! 1. audit id         first, so that everything that is said about the request can name it
//! 2. request info     all later steps ask what the request is about; a CORS preflight is answered here
//! 3. deadline         the client's, or ours; not for what runs as long as the client likes
//! 4. panic guard      a fault in one request ends that request
//! 5. authentication   who asks
//! 6. impersonation    in whose name; needs the rights of who asks
//! 7. flow control     before rights are looked up, so that a flood costs little
//! 8. authorization    may they
//! 9. body             read only now: nobody who may not write makes us read
//! 10. dispatch        [`crate::route`]
//!
//! On the way back: the audit id, caching headers, HSTS, CORS, the end of streams with the server, GOAWAY, metrics.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::status::Status;
use base::server::Peer;
use bytes::{Bytes, BytesMut};
use futures::FutureExt as _;
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;

use crate::authn::{self, Verdicts};
use crate::authz::Attributes;
use crate::request::{Answer, Body, Info, Request, User};
use crate::respond::Failure;
use crate::server::Server;
use crate::{info, route};

/// Largest body of a write.
pub const BODY_LIMIT: usize = 3 << 20;
/// What is read and thrown away of a body beyond that, so that the client sees our answer before a broken connection.
const DRAIN_LIMIT: usize = 32 << 20;

static AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");

/// What is known of a connection.
pub struct Connection {
    /// The other end.
    pub peer: Peer,
    /// Verdicts on its client certificate.
    pub verdicts: Verdicts,
}

/// Answers a request.
pub async fn serve(server: &Arc<Server>, connection: &Connection, mut request: http::Request<Incoming>) -> Answer {
    let started = Instant::now();
    let upgrade = request.headers().contains_key(header::UPGRADE).then(|| hyper::upgrade::on(&mut request));
    let (parts, body) = request.into_parts();
    let audit_id = audit_id(&parts.headers);
    let h2 = parts.version == http::Version::HTTP_2;
    let query = base::health::parse_query(parts.uri.query().unwrap_or_default());
    let path = base::health::unescape(parts.uri.path(), false);
    let asked = match path {
        Some(path) => info::parse(&parts.method, &path, &query).map_err(internal),
        None => Err(Failure::Text(400, "400 Bad Request: malformed path".into())),
    };
    let accept = accept_only(&parts.headers);
    let origin = server.cors.allowed(&parts.headers);
    if origin.is_some() && parts.method == http::Method::OPTIONS {
        return server.cors.preflight(origin);
    }
    let (info, outcome) = match asked {
        Err(failure) => (Info::default(), Err(failure)),
        Ok(info) => {
            let seen = info.clone();
            let exchange = Exchange { server, connection, parts, body, upgrade, query, info };
            (seen, guarded(exchange).await)
        }
    };
    let mut answer = outcome.unwrap_or_else(|failure| failure.answer(&accept));
    finish(server, &mut answer, audit_id);
    server.cors.mark(&mut answer, origin);
    end_with_server(server, &mut answer, &info);
    rebalance(server, connection, h2);
    server.metrics.observe(&info, answer.status().as_u16(), started.elapsed());
    answer
}

/// A request on its way in.
struct Exchange<'a> {
    server: &'a Arc<Server>,
    connection: &'a Connection,
    parts: Parts,
    body: Incoming,
    upgrade: Option<hyper::upgrade::OnUpgrade>,
    query: Vec<(String, String)>,
    info: Info,
}

/// Runs the rest of the chain so that a panic or a passed deadline ends this request alone.
async fn guarded(exchange: Exchange<'_>) -> Result<Answer, Failure> {
    let limit = deadline(&exchange)?;
    let uri = exchange.parts.uri.clone();
    let work = std::panic::AssertUnwindSafe(admitted(exchange)).catch_unwind();
    let outcome = match limit {
        None => work.await,
        Some(limit) => match tokio::time::timeout(limit, work).await {
            Ok(outcome) => outcome,
            Err(_) => {
                let text = "Timeout: request did not complete within the allotted timeout";
                return Err(Status::new(504, "Timeout", text).into());
            }
        },
    };
    outcome.unwrap_or_else(|_| {
        tracing::error!(%uri, "request caused a panic");
        let text = "This request caused apiserver to panic. Look in the logs for details.";
        Err(Failure::Text(500, format!("{text}\n")))
    })
}

/// How long the request may take; none for those that run as long as their client likes.
fn deadline(exchange: &Exchange<'_>) -> Result<Option<Duration>, Failure> {
    if info::long_running(&exchange.info) {
        return Ok(None);
    }
    let longest = exchange.server.options.request_timeout;
    let given = exchange.query.iter().find(|(k, _)| k == "timeout").map(|(_, v)| v.as_str());
    match given.filter(|v| !v.is_empty()) {
        None => Ok(Some(longest)),
        Some(text) => match base::clock::parse_duration(text) {
            Some(Duration::ZERO) => Ok(Some(longest)),
            Some(wanted) => Ok(Some(wanted.min(longest))),
            None => {
                let why = format!("invalid timeout specified in the request URL - time: invalid duration {text:?}");
                Err(Status::bad_request(why).into())
            }
        },
    }
}

async fn admitted(exchange: Exchange<'_>) -> Result<Answer, Failure> {
    let Exchange { server, connection, mut parts, body, upgrade, query, info } = exchange;
    let user = authenticate(server, connection, &mut parts.headers)?;
    let user = impersonate(server, user, &mut parts.headers)?;
    let _seat = server.flow.admit(&user, &info)?;
    server.api.authorizer.check(&user, &Attributes::of(&info, &query))?;
    let passes_on = upgrade.is_some() || route::passes_on(server, &info);
    let (body, unread) = if passes_on { (Bytes::new(), Some(body)) } else { (read(body, &parts.headers).await?, None) };
    let Parts { method, uri, headers, .. } = parts;
    let warnings = Vec::new();
    let request = Request { info, user, method, uri, query, headers, body, unread, upgrade, warnings };
    route::dispatch(server, &connection.peer, request).await
}

fn authenticate(server: &Server, connection: &Connection, headers: &mut HeaderMap) -> Result<Arc<User>, Failure> {
    if let Some(token) = authn::websocket_bearer(headers).filter(|_| !headers.contains_key(header::AUTHORIZATION)) {
        if let Ok(value) = HeaderValue::from_str(&format!("Bearer {token}")) {
            headers.insert(header::AUTHORIZATION, value);
        }
    }
    let found = server.api.authenticator.authenticate(&connection.peer, &connection.verdicts, headers);
    server.metrics.authenticated(found.as_ref().ok().map(|u| u.name.as_str()));
    let user = found.map_err(|why| {
        tracing::debug!(%why, remote = %connection.peer.remote, "unable to authenticate the request");
        Failure::Status(Status::unauthorized())
    })?;
    server.api.authenticator.strip(headers);
    Ok(user)
}

/// The user in whose name the request goes on: the one who asks, or whom they act as.
fn impersonate(server: &Server, user: Arc<User>, headers: &mut HeaderMap) -> Result<Arc<User>, Failure> {
    const EXTRA: &str = "impersonate-extra-";
    let all = |name: &str| {
        let values = headers.get_all(name).iter();
        values.filter_map(|v| v.to_str().ok()).map(str::to_string).collect::<Vec<_>>()
    };
    let (names, groups, uids) = (all("impersonate-user"), all("impersonate-group"), all("impersonate-uid"));
    let extra = authn::extra(headers, &[EXTRA.to_string()]);
    let name = names.first().cloned().unwrap_or_default();
    let uid = uids.first().cloned().unwrap_or_default();
    if name.is_empty() {
        if groups.is_empty() && uid.is_empty() && extra.is_empty() {
            return Ok(user);
        }
        let text = "requested impersonation of groups, uid or extra without impersonating a user";
        return Err(Failure::Status(Status::new(500, "", text)));
    }
    let wanted = User { name, uid, groups, extra };
    allowed_to_act_as(server, &user, &wanted)?;
    for name in ["impersonate-user", "impersonate-group", "impersonate-uid"] {
        headers.remove(name);
    }
    let gone: Vec<HeaderName> = headers.keys().filter(|n| n.as_str().starts_with(EXTRA)).cloned().collect();
    for name in gone {
        headers.remove(name);
    }
    Ok(Arc::new(completed(wanted)))
}

/// Each thing that is taken over needs the right to impersonate it.
fn allowed_to_act_as(server: &Server, user: &User, wanted: &User) -> Result<(), Status> {
    let check = |attributes: Attributes<'_>| {
        let attributes = Attributes { verb: "impersonate", is_resource: true, ..attributes };
        server.api.authorizer.check(user, &attributes)
    };
    const G: &str = "authentication.k8s.io";
    let core = Attributes { version: "v1", ..Attributes::default() };
    match authn::service_account::split_username(&wanted.name) {
        Some((namespace, name)) => check(Attributes { resource: "serviceaccounts", namespace, name, ..core })?,
        None => check(Attributes { resource: "users", name: &wanted.name, ..core })?,
    }
    for name in &wanted.groups {
        check(Attributes { resource: "groups", name, ..core })?;
    }
    for (key, values) in &wanted.extra {
        for name in values {
            check(Attributes { group: G, resource: "userextras", subresource: key, name, ..core })?;
        }
    }
    match wanted.uid.as_str() {
        "" => Ok(()),
        name => check(Attributes { group: G, resource: "uids", name, ..core }),
    }
}

/// Groups that follow from the name are added, unless groups were given.
fn completed(mut user: User) -> User {
    if user.groups.is_empty() {
        if let Some((namespace, name)) = authn::service_account::split_username(&user.name) {
            user.groups = authn::service_account::user(namespace, name, "").groups;
        }
    }
    if user.name == authn::ANONYMOUS {
        if !user.groups.iter().any(|g| g == authn::UNAUTHENTICATED) {
            user.groups.push(authn::UNAUTHENTICATED.to_string());
        }
        return user;
    }
    authn::with_authenticated(user)
}

/// Reads a body within its limit.
async fn read(mut body: Incoming, headers: &HeaderMap) -> Result<Bytes, Failure> {
    use hyper::body::Body as _;
    if body.is_end_stream() {
        return Ok(Bytes::new());
    }
    let expected = headers.get(header::CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse::<usize>().ok());
    let mut first: Option<Bytes> = None;
    let mut rest = BytesMut::new();
    let mut size = 0;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|e| Failure::Status(Status::bad_request(format!("unable to read the body: {e}"))))?;
        let Ok(data) = frame.into_data() else { continue };
        size += data.len();
        if size > BODY_LIMIT {
            drain(body, size).await;
            return Err(too_large());
        }
        match (&first, rest.is_empty()) {
            (None, true) => first = Some(data),
            (Some(_), true) => {
                rest.reserve(expected.unwrap_or(0).min(BODY_LIMIT).max(size));
                rest.extend_from_slice(&first.take().unwrap_or_default());
                rest.extend_from_slice(&data);
            }
            _ => rest.extend_from_slice(&data),
        }
    }
    Ok(first.unwrap_or_else(|| rest.freeze()))
}

async fn drain(mut body: Incoming, mut size: usize) {
    while let Some(Ok(frame)) = body.frame().await {
        size += frame.data_ref().map_or(0, Bytes::len);
        if size > DRAIN_LIMIT {
            return;
        }
    }
}

fn too_large() -> Failure {
    let text = format!("Request entity too large: limit is {BODY_LIMIT}");
    Failure::Status(Status::new(413, "RequestEntityTooLarge", text))
}

fn internal(text: String) -> Failure {
    Failure::Text(500, format!("Internal Server Error: {text}\n"))
}

/// The client's audit id when it is one, else a new one.
fn audit_id(headers: &HeaderMap) -> HeaderValue {
    let given = headers.get(&AUDIT_ID).filter(|v| (1..=64).contains(&v.len()));
    given.cloned().unwrap_or_else(|| {
        let mut buffer = uuid::Uuid::encode_buffer();
        let text = uuid::Uuid::new_v4().as_hyphenated().encode_lower(&mut buffer);
        // A UUID's text is always a header value.
        HeaderValue::from_str(text).unwrap_or_else(|_| HeaderValue::from_static(""))
    })
}

/// The headers that decide how a failure is said.
fn accept_only(headers: &HeaderMap) -> HeaderMap {
    let mut kept = HeaderMap::new();
    for name in [header::ACCEPT, header::USER_AGENT] {
        if let Some(value) = headers.get(&name) {
            kept.insert(name, value.clone());
        }
    }
    kept
}

/// Streams end when the server does: nobody waits for a watch.
fn end_with_server(server: &Server, answer: &mut Answer, info: &Info) {
    use futures::StreamExt as _;
    if !info::long_running(info) {
        return;
    }
    if let Body::Stream(stream) = answer.body_mut() {
        let inner = std::mem::replace(stream, futures::stream::empty().boxed());
        *stream = inner.take_until(server.ending.clone().cancelled_owned()).boxed();
    }
}

/// Tells some HTTP/2 clients to connect anew, so that they find other servers (`--goaway-chance`).
fn rebalance(server: &Server, connection: &Connection, h2: bool) {
    let chance = server.options.goaway_chance;
    if h2 && chance > 0.0 && rand::random::<f64>() < chance {
        connection.peer.close.cancel();
    }
}

fn finish(server: &Server, answer: &mut Answer, audit_id: HeaderValue) {
    let headers = answer.headers_mut();
    headers.insert(AUDIT_ID.clone(), audit_id);
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-cache, private"));
    if !server.options.hsts.is_empty() {
        if let Ok(value) = HeaderValue::from_str(&server.options.hsts.join("; ")) {
            headers.insert(header::STRICT_TRANSPORT_SECURITY, value);
        }
    }
}

/// Adds Warning headers to an answer: each text once, all of them within 4 KiB.
pub fn warn(answer: &mut Answer, warnings: &[String]) {
    let mut seen = BTreeMap::new();
    let texts: Vec<&String> = warnings.iter().filter(|w| seen.insert(w.as_str(), ()).is_none()).collect();
    let total: usize = texts.iter().map(|t| t.len()).sum();
    let mut budget = 4 << 10;
    for text in texts {
        // As upstream: when all is too much, each is cut, and what is still too much is left out.
        let cut: String = if total > 4 << 10 { text.chars().take(256).collect() } else { text.clone() };
        if cut.len() > budget {
            return;
        }
        budget -= cut.len();
        if let Ok(value) = HeaderValue::from_bytes(warning(&cut).as_bytes()) {
            answer.headers_mut().append(header::WARNING, value);
        }
    }
}

/// `299 - "text"`, with quotes and backslashes escaped and without line breaks and other control characters.
fn warning(text: &str) -> String {
    let mut value = String::from("299 - \"");
    for c in text.chars() {
        match c {
            '"' | '\\' => value.extend(['\\', c]),
            c if c.is_control() => value.push(' '),
            c => value.push(c),
        }
    }
    value.push('"');
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_are_escaped_once_and_bounded() {
        let mut answer = Answer::new(Body::empty());
        warn(&mut answer, &["a \"b\"\n".into(), "a \"b\"\n".into(), "c".into()]);
        let texts: Vec<_> =
            answer.headers().get_all(header::WARNING).iter().map(|v| v.to_str().expect("text")).collect();
        assert_eq!(texts, ["299 - \"a \\\"b\\\" \"", "299 - \"c\""]);
        let mut answer = Answer::new(Body::empty());
        let long: Vec<String> = (0..100).map(|i| format!("{i}{}", "x".repeat(1000))).collect();
        warn(&mut answer, &long);
        let size: usize = answer.headers().get_all(header::WARNING).iter().map(HeaderValue::len).sum();
        assert!(size < 5 << 10, "{size}");
    }

    #[test]
    fn impersonated_service_accounts_get_their_groups() {
        let user = |name: &str, groups: &[&str]| {
            let groups = groups.iter().map(|g| g.to_string()).collect();
            completed(User { name: name.into(), groups, ..User::default() }).groups
        };
        assert_eq!(
            user("system:serviceaccount:a:b", &[]),
            ["system:serviceaccounts", "system:serviceaccounts:a", "system:authenticated"]
        );
        assert_eq!(user("ann", &["g"]), ["g", "system:authenticated"]);
        assert_eq!(user("system:anonymous", &[]), ["system:unauthenticated"]);
    }
}

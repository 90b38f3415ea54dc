//! `pods/proxy`, `services/proxy`, `nodes/proxy`: any request, passed on to what the name leads to.
//!
//! - [`target`]: from a name to an address.
//! - [`links`]: redirects and links of the answer lead back through the proxy.
//! - [`html`]: where links stand in a page.

mod html;
mod links;
mod target;

use std::io::{Read as _, Write as _};

use api::status::Status;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Incoming;
use serde_json::json;

use super::locate::{Backend, escape};
use super::{Call, forward, upgrade, websocket, wire};
use crate::request::{Answer, Body};
use links::Links;

static FORWARDED_URI: HeaderName = HeaderName::from_static("x-forwarded-uri");

/// What a backend says about other origins is not for ours.
const CORS: [HeaderName; 4] = [
    header::ACCESS_CONTROL_ALLOW_CREDENTIALS,
    header::ACCESS_CONTROL_ALLOW_HEADERS,
    header::ACCESS_CONTROL_ALLOW_METHODS,
    header::ACCESS_CONTROL_ALLOW_ORIGIN,
];

/// Passes a request on.
///
/// # Errors
/// 400, 404 and 503 in upstream's words.
pub async fn serve(call: Call<'_>) -> Result<Answer, Status> {
    call.no_dry_run()?;
    let path = subpath(&call.req.info.parts, &call.req.info.path);
    let resource = call.req.info.resource.clone();
    let kind = match resource.as_str() {
        "pods" => "PodProxyOptions",
        "services" => "ServiceProxyOptions",
        _ => "NodeProxyOptions",
    };
    call.admit(kind, json!({"kind": kind, "apiVersion": "v1", "path": path})).await?;
    let mut backend = match resource.as_str() {
        "pods" => target::pod(&call).await?,
        "services" => target::service(&call).await?,
        _ => target::node(&call).await?,
    };
    backend.location.path = links::join(&["", &path]);
    backend.location.query = call.req.uri.query().unwrap_or_default().to_string();
    pass(call, backend).await
}

/// Passes a request on to a backend whose location has path and query.
///
/// # Errors
/// 503 when it can't be reached.
pub async fn pass(mut call: Call<'_>, backend: Backend) -> Result<Answer, Status> {
    if websocket::is_upgrade(&call.req.headers) {
        return upgrade::pass(call, &backend).await;
    }
    if backend.location.path.is_empty() && matches!(call.req.method, Method::GET | Method::HEAD) {
        return Ok(to_root(&call));
    }
    let request = request(&mut call, &backend)?;
    let stream = call.streams.wire.connect(&backend).await.map_err(unreachable)?;
    let response = wire::exchange(stream, request).await.map_err(unreachable)?;
    let host = call.req.headers.get(header::HOST).and_then(|v| v.to_str().ok()).map(str::to_string);
    let host = host.or_else(|| call.req.uri.authority().map(ToString::to_string)).unwrap_or_default();
    let prefix = prefix(&call.req.info.path, &backend.location.path);
    answer(response, &Links { prefix: &prefix, backend: &backend.location.authority(), host: &host }).await
}

/// What follows `proxy` in a path, with the slashes that stood around it.
fn subpath(parts: &[String], path: &str) -> String {
    let mut rest = parts.get(3..).unwrap_or_default().join("/");
    if !rest.is_empty() && !rest.starts_with('/') {
        rest.insert(0, '/');
    }
    if path.ends_with('/') && !rest.ends_with('/') {
        rest.push('/');
    }
    rest
}

/// What of the request's path is not the backend's.
fn prefix(path: &str, below: &str) -> String {
    let slash = if path.ends_with('/') && !below.ends_with('/') { "/" } else { "" };
    path.strip_suffix(&format!("{below}{slash}")).unwrap_or(path).to_string()
}

/// A page's relative links need the slash at the end of its path.
fn to_root(call: &Call<'_>) -> Answer {
    let query = call.req.uri.query().map(|q| format!("?{q}")).unwrap_or_default();
    let mut answer = Answer::new(Body::empty());
    *answer.status_mut() = StatusCode::MOVED_PERMANENTLY;
    if let Ok(location) = HeaderValue::from_str(&format!("{}/{query}", call.req.info.path)) {
        answer.headers_mut().insert(header::LOCATION, location);
    }
    answer
}

fn unreachable(why: String) -> Status {
    Status::new(503, "ServiceUnavailable", format!("error trying to reach service: {why}"))
}

type Outgoing = UnsyncBoxBody<Bytes, hyper::Error>;

/// The request as the backend gets it.
fn request(call: &mut Call<'_>, backend: &Backend) -> Result<Request<Outgoing>, Status> {
    let mut headers = forward::headers(call);
    let trailers = headers.get(header::TE).is_some_and(|te| te.to_str().is_ok_and(|te| te.contains("trailers")));
    forward::strip_hops(&mut headers);
    if trailers {
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
    }
    // The server has answered it already.
    headers.remove(header::EXPECT);
    if let Some(length) = call.req.headers.get(header::CONTENT_LENGTH) {
        headers.insert(header::CONTENT_LENGTH, length.clone());
    }
    let path = &backend.location.path;
    let uri = links::join(&[&prefix(&call.req.info.path, path), &escape(path, links::PATH)]);
    if let Ok(uri) = HeaderValue::from_str(&uri) {
        headers.insert(FORWARDED_URI.clone(), uri);
    }
    let body = match call.req.unread.take() {
        Some(body) => body.boxed_unsync(),
        None => Empty::new().map_err(|never| match never {}).boxed_unsync(),
    };
    let mut request = Request::new(body);
    *request.method_mut() = call.req.method.clone();
    *request.uri_mut() = forward::uri(&backend.location)?;
    *request.headers_mut() = headers;
    Ok(request)
}

/// The answer as the client gets it.
async fn answer(response: Response<Incoming>, links: &Links<'_>) -> Result<Answer, Status> {
    let (mut parts, body) = response.into_parts();
    parts.version = http::Version::default();
    parts.extensions.clear();
    forward::strip_hops(&mut parts.headers);
    for name in CORS {
        parts.headers.remove(name);
    }
    if let Some(location) = parts.headers.get(header::LOCATION).and_then(|v| v.to_str().ok()) {
        let location = links.rewrite(location).unwrap_or_else(|| location.to_string());
        if let Ok(location) = HeaderValue::from_str(&location) {
            parts.headers.insert(header::LOCATION, location);
        }
        return Ok(Answer::from_parts(parts, forward::stream(body)));
    }
    if !is_page(&parts.headers) {
        return Ok(Answer::from_parts(parts, forward::stream(body)));
    }
    let encoding = parts.headers.get(header::CONTENT_ENCODING).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let Some(encoding) = Encoding::of(encoding) else {
        return Ok(Answer::from_parts(parts, forward::stream(body)));
    };
    let bytes = body.collect().await.map_err(|e| unreachable(super::words::http(&e)))?.to_bytes();
    if bytes.is_empty() {
        // Of a HEAD, for example: the length is that of a page that is not here.
        return Ok(Answer::from_parts(parts, Body::empty()));
    }
    let page = encoding.decode(&bytes).map_err(|e| Status::new(500, "", e.to_string()))?;
    let page = html::rewrite(&page, |url| links.rewrite(url));
    let bytes = encoding.encode(page).map_err(|e| Status::new(500, "", e.to_string()))?;
    parts.headers.remove(header::CONTENT_LENGTH);
    Ok(Answer::from_parts(parts, Body::from(bytes)))
}

fn is_page(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    kind.split(';').next().unwrap_or_default().trim() == "text/html"
}

/// How a page is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Encoding {
    None,
    Gzip,
    Deflate,
}

impl Encoding {
    /// By its name; pages in encodings that are not known go through as they are.
    fn of(name: &str) -> Option<Self> {
        match name {
            "" => Some(Encoding::None),
            "gzip" => Some(Encoding::Gzip),
            "deflate" => Some(Encoding::Deflate),
            _ => None,
        }
    }

    fn decode(self, bytes: &[u8]) -> std::io::Result<Vec<u8>> {
        let mut out = Vec::new();
        match self {
            Encoding::None => out.extend_from_slice(bytes),
            Encoding::Gzip => drop(flate2::read::MultiGzDecoder::new(bytes).read_to_end(&mut out)?),
            Encoding::Deflate => drop(flate2::read::DeflateDecoder::new(bytes).read_to_end(&mut out)?),
        }
        Ok(out)
    }

    fn encode(self, bytes: Vec<u8>) -> std::io::Result<Vec<u8>> {
        let level = flate2::Compression::default();
        match self {
            Encoding::None => Ok(bytes),
            Encoding::Gzip => {
                let mut writer = flate2::write::GzEncoder::new(Vec::new(), level);
                writer.write_all(&bytes)?;
                writer.finish()
            }
            Encoding::Deflate => {
                let mut writer = flate2::write::DeflateEncoder::new(Vec::new(), level);
                writer.write_all(&bytes)?;
                writer.finish()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_follows_proxy_keeps_its_slashes() {
        let of = |path: &str| {
            let parts: Vec<String> = crate::info::split(path).iter().skip(2).map(|p| p.to_string()).collect();
            links::join(&["", &subpath(&parts, path)])
        };
        assert_eq!(of("/api/v1/nodes/n/proxy"), "");
        assert_eq!(of("/api/v1/nodes/n/proxy/"), "/");
        assert_eq!(of("/api/v1/nodes/n/proxy/a/b"), "/a/b");
        assert_eq!(of("/api/v1/nodes/n/proxy/a/b/"), "/a/b/");
        assert_eq!(of("/api/v1/nodes/n/proxy//a//b"), "/a/b");
        assert_eq!(of("/api/v1/nodes/n/proxy/a/../../b"), "/b");
    }

    #[test]
    fn the_prefix_is_what_the_backend_does_not_see() {
        assert_eq!(prefix("/api/v1/nodes/n/proxy/a/", "/a/"), "/api/v1/nodes/n/proxy");
        assert_eq!(prefix("/api/v1/nodes/n/proxy/a", "/a"), "/api/v1/nodes/n/proxy");
        assert_eq!(prefix("/api/v1/nodes/n/proxy", ""), "/api/v1/nodes/n/proxy");
    }

    #[test]
    fn compressed_pages_come_back_compressed() {
        for encoding in [Encoding::None, Encoding::Gzip, Encoding::Deflate] {
            let there = encoding.encode(b"<p>".to_vec()).expect("encoded");
            assert_eq!(encoding.decode(&there).expect("decoded"), b"<p>");
        }
        assert_eq!(Encoding::of("br"), None);
    }
}

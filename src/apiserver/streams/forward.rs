//! What a request and an answer take with them on their way through.

use api::status::Status;
use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _};
use http::{HeaderMap, HeaderName, HeaderValue, Uri, header};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;

use super::Call;
use super::locate::Location;
use crate::request::Body;

static FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Headers of one connection, not of what passes over it.
const HOPS: [&str; 9] = [
    "connection",
    "proxy-connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Removes what belongs to one connection, and what its `Connection` header names.
pub fn strip_hops(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = {
        let lists = headers.get_all(header::CONNECTION).iter().filter_map(|v| v.to_str().ok());
        lists.flat_map(|list| list.split(',')).filter_map(|name| name.trim().parse().ok()).collect()
    };
    for name in named {
        headers.remove(name);
    }
    for name in HOPS {
        headers.remove(name);
    }
}

/// The client's headers for a backend: all of them, a Host in any case, and whom the request came from.
pub fn headers(call: &Call<'_>) -> HeaderMap {
    let mut headers = call.req.headers.clone();
    // There is no body, or it tells its length itself.
    headers.remove(header::CONTENT_LENGTH);
    if !headers.contains_key(header::HOST)
        && let Some(host) = call.req.uri.authority().and_then(|a| HeaderValue::from_str(a.as_str()).ok())
    {
        headers.insert(header::HOST, host);
    }
    let before = headers.get_all(&FORWARDED_FOR).iter().filter_map(|v| v.to_str().ok());
    let ip = call.peer.remote.ip().to_canonical().to_string();
    let chain: Vec<&str> = before.chain([ip.as_str()]).collect();
    if let Ok(value) = HeaderValue::from_str(&chain.join(", ")) {
        headers.insert(FORWARDED_FOR.clone(), value);
    }
    headers
}

/// The request line's target.
///
/// # Errors
/// 500 when the query has what no URI has.
pub fn uri(location: &Location) -> Result<Uri, Status> {
    location.target().parse().map_err(|e| Status::new(500, "", format!("parse {:?}: {e}", location.to_string())))
}

/// A backend's body as one of ours.
pub fn stream(body: Incoming) -> Body {
    Body::Stream(body.into_data_stream().map_err(std::io::Error::other).boxed())
}

/// As [`stream`], but an end that is no end is taken for one, as for logs, which have no length.
pub fn tolerant(body: Incoming) -> futures::stream::BoxStream<'static, Bytes> {
    let pieces = body.into_data_stream();
    pieces.take_while(|piece| std::future::ready(piece.is_ok())).filter_map(|piece| async { piece.ok() }).boxed()
}

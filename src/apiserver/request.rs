//! A request after the chain: who asks for what. Handlers take a [`Request`] and give an [`Answer`].

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use std::collections::{BTreeMap, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// What the path and the method say, as upstream's RequestInfo.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Info {
    /// Below `/api` or `/apis/{group}`, with a resource.
    pub is_resource: bool,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`; the lower-case method for
    /// what is no resource.
    pub verb: String,
    /// `api` or `apis`.
    pub api_prefix: String,
    /// Group, empty for core.
    pub group: String,
    /// Version.
    pub version: String,
    /// Namespace, empty when the path has none.
    pub namespace: String,
    /// Plural.
    pub resource: String,
    /// `status`, `log` …
    pub subresource: String,
    /// Name, empty for collections.
    pub name: String,
    /// All path segments after the version (and namespace).
    pub parts: Vec<String>,
    /// The path, without query.
    pub path: String,
}

/// Who asks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct User {
    /// Name, for example `system:serviceaccount:default:default`.
    pub name: String,
    /// UID, may be empty.
    pub uid: String,
    /// Groups.
    pub groups: Vec<String>,
    /// Extra values by key.
    pub extra: BTreeMap<String, Vec<String>>,
}

/// A request that was authenticated and authorized.
pub struct Request {
    /// What is asked for.
    pub info: Info,
    /// Who asks.
    pub user: Arc<User>,
    /// The method.
    pub method: http::Method,
    /// Path and query as they came.
    pub uri: http::Uri,
    /// Query parameters, decoded, in order.
    pub query: Vec<(String, String)>,
    /// Headers.
    pub headers: HeaderMap,
    /// The body, read whole and within its limit; empty for upgrades and where `unread` has it.
    pub body: Bytes,
    /// The body of a request that is passed on (proxy subresources, aggregated APIs): not read, without a limit.
    pub unread: Option<hyper::body::Incoming>,
    /// For upgrades (websocket, SPDY): what hyper hands over once the answer is 101.
    pub upgrade: Option<hyper::upgrade::OnUpgrade>,
    /// Warnings for the answer, collected on the way.
    pub warnings: Vec<String>,
}

impl Request {
    /// The first value of a query parameter, or nothing.
    pub fn param(&self, name: &str) -> Option<&str> {
        self.query.iter().find(|(k, _)| k == name).map(|(_, v)| v.as_str())
    }
}

/// Pieces of a body are joined up to this many bytes.
const WRITE: usize = 32 * 1024;

/// An answer on its way out.
pub type Answer = http::Response<Body>;

/// Body of an answer: shared bytes, written as they are.
pub enum Body {
    /// All of it is there: pieces that are sent one after the other without being joined.
    Pieces(VecDeque<Bytes>),
    /// Comes as it goes, such as a watch.
    Stream(futures::stream::BoxStream<'static, Result<Bytes, std::io::Error>>),
}

impl From<Vec<u8>> for Body {
    fn from(bytes: Vec<u8>) -> Self {
        Body::Pieces(VecDeque::from([Bytes::from(bytes)]))
    }
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Self {
        Body::Pieces(VecDeque::from([bytes]))
    }
}

impl Body {
    /// The next piece to write: small ones are joined, since each write costs more than a copy.
    fn next_piece(pieces: &mut VecDeque<Bytes>) -> Option<Bytes> {
        let first = pieces.pop_front()?;
        let fits = |length: usize, next: Option<&Bytes>| next.is_some_and(|next| length + next.len() <= WRITE);
        if !fits(first.len(), pieces.front()) {
            return Some(first);
        }
        let mut joined = BytesMut::with_capacity(WRITE);
        joined.extend_from_slice(&first);
        while fits(joined.len(), pieces.front())
            && let Some(next) = pieces.pop_front()
        {
            joined.extend_from_slice(&next);
        }
        Some(joined.freeze())
    }

    /// No body.
    pub fn empty() -> Self {
        Body::Pieces(VecDeque::new())
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        self: Pin<&mut Self>, cx: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, std::io::Error>>> {
        match self.get_mut() {
            Body::Pieces(pieces) => Poll::Ready(Self::next_piece(pieces).map(|b| Ok(http_body::Frame::data(b)))),
            Body::Stream(stream) => stream.as_mut().poll_next(cx).map(|o| o.map(|r| r.map(http_body::Frame::data))),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Body::Pieces(pieces) if pieces.is_empty())
    }

    fn size_hint(&self) -> http_body::SizeHint {
        match self {
            Body::Pieces(pieces) => http_body::SizeHint::with_exact(pieces.iter().map(|b| b.len() as u64).sum()),
            Body::Stream(_) => http_body::SizeHint::default(),
        }
    }
}

#[cfg(test)]
impl Request {
    /// A request without query, headers and body, for tests.
    pub fn of(method: &str, path: &str) -> Self {
        Self {
            info: Info { path: path.into(), ..Info::default() },
            user: Arc::default(),
            method: method.parse().expect("a method"),
            uri: path.parse().expect("a path"),
            query: Vec::new(),
            headers: HeaderMap::new(),
            body: Bytes::new(),
            unread: None,
            upgrade: None,
            warnings: Vec::new(),
        }
    }
}

//! A client with several HTTP/2 connections, as a controller's: TLS 1.3, a client certificate, windows as Go's.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls_pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::Result;

/// Bytes of a stream, and of a connection, that may be under way.
const STREAM_WINDOW: u32 = 4 << 20;
const CONNECTION_WINDOW: u32 = 1 << 30;

/// A request.
#[derive(Clone, Debug)]
pub struct Call {
    /// Method.
    pub method: Method,
    /// Path and query.
    pub path: String,
    /// What is accepted.
    pub accept: &'static str,
    /// Type of the body.
    pub content_type: &'static str,
    /// Body.
    pub body: Bytes,
}

/// JSON.
pub const JSON: &str = "application/json";

impl Call {
    /// A read.
    pub fn get(path: impl Into<String>) -> Self {
        Self { method: Method::GET, path: path.into(), accept: JSON, content_type: JSON, body: Bytes::new() }
    }

    /// A write of JSON.
    pub fn send(method: Method, path: impl Into<String>, body: impl Into<Bytes>) -> Self {
        Self { method, path: path.into(), accept: JSON, content_type: JSON, body: body.into() }
    }

    /// In another form.
    #[must_use]
    pub fn accepting(mut self, accept: &'static str) -> Self {
        self.accept = accept;
        self
    }

    /// With a body of another type.
    #[must_use]
    pub fn of_type(mut self, content_type: &'static str) -> Self {
        self.content_type = content_type;
        self
    }
}

/// Connections that requests are spread over.
pub struct Client {
    senders: Vec<SendRequest<Full<Bytes>>>,
    next: AtomicUsize,
}

impl Client {
    /// Connects so often to a port of this machine.
    ///
    /// # Errors
    /// When nobody listens there, or TLS fails.
    pub async fn open(port: u16, tls: &Arc<rustls::ClientConfig>, connections: usize) -> Result<Self> {
        let mut tls = rustls::ClientConfig::clone(tls);
        tls.alpn_protocols = vec![b"h2".to_vec()];
        let tls = TlsConnector::from(Arc::new(tls));
        let mut senders = Vec::with_capacity(connections);
        for _ in 0..connections {
            let stream = TcpStream::connect(("127.0.0.1", port)).await?;
            stream.set_nodelay(true)?;
            let stream = tls.connect(ServerName::try_from("127.0.0.1")?, stream).await?;
            let (sender, connection) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
                .initial_stream_window_size(STREAM_WINDOW)
                .initial_connection_window_size(CONNECTION_WINDOW)
                .handshake(TokioIo::new(stream))
                .await?;
            // Its end shows in the next request.
            tokio::spawn(connection);
            senders.push(sender);
        }
        Ok(Self { senders, next: AtomicUsize::new(0) })
    }

    /// Sends a request; the answer's body follows.
    ///
    /// # Errors
    /// When the connection breaks, or the answer is no success.
    pub async fn open_stream(&self, call: &Call) -> Result<Response<Incoming>> {
        let at = self.next.fetch_add(1, Ordering::Relaxed) % self.senders.len();
        let mut sender = self.senders[at].clone();
        sender.ready().await?;
        let request = Request::builder()
            .method(call.method.clone())
            .uri(format!("https://127.0.0.1{}", call.path))
            .header("accept", call.accept)
            .header("content-type", call.content_type)
            .body(Full::new(call.body.clone()))?;
        let answer = sender.send_request(request).await?;
        let status = answer.status();
        if status.is_success() {
            return Ok(answer);
        }
        let body = answer.into_body().collect().await?.to_bytes();
        Err(format!("{} {}: {status}: {}", call.method, call.path, String::from_utf8_lossy(&body)).into())
    }

    /// Sends a request and reads the answer to its end; how many bytes it had.
    ///
    /// # Errors
    /// As [`Client::open_stream`].
    pub async fn size(&self, call: &Call) -> Result<usize> {
        let mut body = self.open_stream(call).await?.into_body();
        let mut size = 0;
        while let Some(frame) = body.frame().await {
            size += frame?.data_ref().map_or(0, Bytes::len);
        }
        Ok(size)
    }

    /// Sends a request and keeps the answer.
    ///
    /// # Errors
    /// As [`Client::open_stream`].
    pub async fn body(&self, call: &Call) -> Result<Bytes> {
        Ok(self.open_stream(call).await?.into_body().collect().await?.to_bytes())
    }
}

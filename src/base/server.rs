//! Connections: listening sockets, TLS, HTTP/1.1 and HTTP/2, and an end that lets what runs finish.
//!
//! ```text
//!   listener ─► accept ─► TLS ─► ALPN ─┬─► HTTP/2   ─► Handler::call, many at once
//!                                     └─► HTTP/1.1 ─► Handler::call, one after the other, upgrades kept
//! ```
//!
//! A [`Handler`] sees each connection once ([`Handler::connected`]) and keeps there what holds for all its requests,
//! such as the verdict on a client certificate.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls_pki_types::CertificateDer;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::TaskTracker;

use crate::Fault;
use crate::shutdown::Shutdown;

/// Who is at the other end.
#[derive(Debug, Clone)]
pub struct Peer {
    /// Remote address.
    pub remote: SocketAddr,
    /// Our own address on this connection.
    pub local: SocketAddr,
    /// Certificates that the client presented, end entity first; their key is proven, their issuer is not looked at.
    pub certificates: Vec<CertificateDer<'static>>,
    /// The connection is encrypted.
    pub tls: bool,
    /// Cancelled by a handler, it ends this connection after the requests that it has, as the server's shutdown does.
    pub close: Shutdown,
}

/// What serves requests.
pub trait Handler: Send + Sync + 'static {
    /// What is known of a connection.
    type Connection: Send + Sync + 'static;
    /// Body of answers.
    type Body: http_body::Body<Data = Bytes, Error: Into<Fault>> + Send + 'static;

    /// A connection was made.
    fn connected(&self, peer: Peer) -> Self::Connection;

    /// Answers a request.
    fn call(
        &self, connection: Arc<Self::Connection>, request: http::Request<Incoming>,
    ) -> impl Future<Output = http::Response<Self::Body>> + Send;
}

/// Limits of a server.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Requests at a time on one HTTP/2 connection.
    pub streams: u32,
    /// Bytes of headers.
    pub headers: u32,
    /// A client that does not send its headers in this time is dropped.
    pub header_timeout: Duration,
    /// How long requests may still run after the shutdown.
    pub drain: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { streams: 250, headers: 1 << 20, header_timeout: Duration::from_secs(32), drain: Duration::from_secs(60) }
    }
}

/// Listens at an address; port 0 takes a free one. `reuse` shares the port with other processes (`SO_REUSEPORT`).
///
/// # Errors
/// When the address is taken or not ours.
pub fn listen(address: SocketAddr, reuse: bool) -> std::io::Result<TcpListener> {
    let socket = socket(address)?;
    if reuse {
        socket.set_reuseport(true)?;
    }
    socket.bind(address)?;
    socket.listen(4096)
}

/// Listens at an address, and for its family alone: IPv6's `::` leaves the port to others for IPv4.
///
/// # Errors
/// When the address is taken or not ours.
pub fn listen_in_family(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = socket(address)?;
    if address.is_ipv6() {
        socket2::SockRef::from(&socket).set_only_v6(true)?;
    }
    socket.bind(address)?;
    socket.listen(4096)
}

fn socket(address: SocketAddr) -> std::io::Result<tokio::net::TcpSocket> {
    let socket = match address {
        SocketAddr::V4(_) => tokio::net::TcpSocket::new_v4()?,
        SocketAddr::V6(_) => tokio::net::TcpSocket::new_v6()?,
    };
    socket.set_reuseaddr(true)?;
    Ok(socket)
}

/// Serves until the shutdown, then takes no new connections, tells the old ones to end after what they are at, and
/// returns when they have, or when their time is over.
pub async fn serve<H: Handler>(
    listener: TcpListener, tls: Option<Arc<rustls::ServerConfig>>, limits: Limits, handler: Arc<H>, shutdown: Shutdown,
) {
    let tls = tls.map(tokio_rustls::TlsAcceptor::from);
    let connections = TaskTracker::new();
    while let Some(accepted) = crate::shutdown::unless(&shutdown, listener.accept()).await {
        match accepted {
            Ok((stream, remote)) => {
                let connection =
                    serve_connection(stream, remote, tls.clone(), limits, handler.clone(), shutdown.clone());
                connections.spawn(async move {
                    if let Err(why) = connection.await {
                        tracing::debug!(%remote, %why, "connection ended");
                    }
                });
            }
            Err(why) => {
                // Out of file descriptors, mostly: give others a moment to close theirs.
                tracing::warn!(%why, "can't accept a connection");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }
    drop(listener);
    connections.close();
    if tokio::time::timeout(limits.drain, connections.wait()).await.is_err() {
        tracing::warn!(open = connections.len(), "connections did not end in time");
    }
}

/// How long a handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(10);

async fn serve_connection<H: Handler>(
    stream: TcpStream, remote: SocketAddr, tls: Option<tokio_rustls::TlsAcceptor>, limits: Limits, handler: Arc<H>,
    shutdown: Shutdown,
) -> Result<(), Fault> {
    stream.set_nodelay(true)?;
    keep_alive(&stream)?;
    let local = stream.local_addr()?;
    let Some(tls) = tls else {
        let peer = Peer { remote, local, certificates: Vec::new(), tls: false, close: shutdown.child_token() };
        return http1(TokioIo::new(stream), limits, handler, peer).await;
    };
    let stream = tokio::time::timeout(HANDSHAKE, tls.accept(stream)).await??;
    let session = stream.get_ref().1;
    let certificates = session.peer_certificates().unwrap_or_default().iter().map(|c| c.clone().into_owned()).collect();
    let h2 = session.alpn_protocol() == Some(b"h2");
    let peer = Peer { remote, local, certificates, tls: true, close: shutdown.child_token() };
    match h2 {
        true => http2(TokioIo::new(stream), limits, handler, peer).await,
        false => http1(TokioIo::new(stream), limits, handler, peer).await,
    }
}

/// Dead peers are noticed after some minutes.
fn keep_alive(stream: &TcpStream) -> std::io::Result<()> {
    let socket = socket2::SockRef::from(stream);
    socket.set_tcp_keepalive(&socket2::TcpKeepalive::new().with_time(Duration::from_secs(180)))
}

async fn http2<H: Handler, I>(io: TokioIo<I>, limits: Limits, handler: Arc<H>, peer: Peer) -> Result<(), Fault>
where
    I: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin + 'static,
{
    let close = peer.close.clone();
    let service = service(handler, peer);
    let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits.streams)
        .max_header_list_size(limits.headers)
        .initial_stream_window_size(256 << 10)
        .initial_connection_window_size(1 << 20)
        .keep_alive_interval(Duration::from_secs(30))
        .keep_alive_timeout(Duration::from_secs(15))
        .serve_connection(io, service);
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        ended = connection.as_mut() => return Ok(ended?),
        () = close.cancelled() => connection.as_mut().graceful_shutdown(),
    }
    Ok(connection.await?)
}

async fn http1<H: Handler, I>(io: TokioIo<I>, limits: Limits, handler: Arc<H>, peer: Peer) -> Result<(), Fault>
where
    I: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin + 'static,
{
    let close = peer.close.clone();
    let service = service(handler, peer);
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_timeout)
        .max_buf_size(limits.headers as usize)
        .preserve_header_case(false)
        .serve_connection(io, service)
        .with_upgrades();
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        ended = connection.as_mut() => return Ok(ended?),
        () = close.cancelled() => connection.as_mut().graceful_shutdown(),
    }
    Ok(connection.await?)
}

fn service<H: Handler>(
    handler: Arc<H>, peer: Peer,
) -> impl hyper::service::Service<
    http::Request<Incoming>,
    Response = http::Response<H::Body>,
    Error = Infallible,
    Future = impl Future<Output = Result<http::Response<H::Body>, Infallible>> + Send,
> {
    let connection = Arc::new(handler.connected(peer));
    hyper::service::service_fn(move |request| {
        let (handler, connection) = (handler.clone(), connection.clone());
        async move { Ok(handler.call(connection, request).await) }
    })
}

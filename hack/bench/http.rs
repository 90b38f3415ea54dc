//! The smallest client that will do: one connection, HTTP/1.1, with or without TLS.

use std::sync::Arc;

use ::http::{Request, StatusCode};
use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use rustls_pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::Result;

/// A connection.
pub struct Connection {
    sender: SendRequest<Empty<Bytes>>,
}

impl Connection {
    /// Connects to a port of this machine.
    ///
    /// # Errors
    /// When nobody listens there, or TLS fails.
    pub async fn open(port: u16, tls: Option<&Arc<rustls::ClientConfig>>) -> Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.set_nodelay(true)?;
        match tls {
            None => Self::over(stream).await,
            Some(tls) => {
                let name = ServerName::try_from("127.0.0.1")?;
                Self::over(TlsConnector::from(tls.clone()).connect(name, stream).await?).await
            }
        }
    }

    async fn over<S>(stream: S) -> Result<Self>
    where
        S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin + 'static,
    {
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        // Its end shows in the next request.
        tokio::spawn(connection);
        Ok(Self { sender })
    }

    /// Asks for a path.
    ///
    /// # Errors
    /// When the connection breaks.
    pub async fn get(&mut self, path: &str) -> Result<(StatusCode, Bytes)> {
        let request = Request::get(path).header("Host", "127.0.0.1").body(Empty::new())?;
        self.sender.ready().await?;
        let answer = self.sender.send_request(request).await?;
        let status = answer.status();
        Ok((status, answer.into_body().collect().await?.to_bytes()))
    }
}

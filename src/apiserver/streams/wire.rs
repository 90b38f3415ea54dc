//! From a location to a connection, and one HTTP/1.1 exchange over it.
//!
//! Each exchange has its own connection: most of them are streams, which keep it for as long as they last.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use base::Fault;
use base::shutdown::Shutdown;
use base::tls::{Authorities, Identity};
use http::{Request, Response};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use super::locate::{Backend, Location, Trust};
use super::words;
use crate::options;

/// How long a connection may take to be there.
const DIAL: Duration = Duration::from_secs(30);
/// How long its handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Only this is spoken: upgrades need it.
const ALPN: &[&str] = &["http/1.1"];

/// Both halves of a connection.
pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// A connection, encrypted or not.
pub type Stream = Box<dyn Duplex>;

/// How backends are spoken to: who we are for kubelets, and whom we trust.
pub struct Wire {
    identity: Option<Arc<Identity>>,
    authorities: Option<Arc<Authorities>>,
    /// Configuration for kubelets and the roots it was made with.
    verified: Mutex<Option<(Arc<RootCertStore>, Arc<ClientConfig>)>>,
    unverified: Arc<ClientConfig>,
    stranger: Arc<ClientConfig>,
    /// `--kubelet-preferred-address-types`.
    pub address_types: Vec<String>,
}

impl Wire {
    /// As the `--kubelet-*` flags say. Files are read again when they change, until the shutdown.
    ///
    /// # Errors
    /// When a file can't be read.
    pub fn new(options: &options::Kubelet, shutdown: &Shutdown) -> Result<Self, Fault> {
        let identity = options.identity.clone().map(Identity::from_files).transpose()?;
        let authorities = options.ca.as_ref().map(Authorities::load).transpose()?;
        if let Some(identity) = &identity {
            identity.keep_fresh(shutdown);
        }
        if let Some(authorities) = &authorities {
            authorities.keep_fresh(shutdown);
        }
        Ok(Self {
            unverified: base::tls::insecure_client(identity.clone(), ALPN)?,
            stranger: base::tls::insecure_client(None, ALPN)?,
            identity,
            authorities,
            verified: Mutex::default(),
            address_types: options.address_types.clone(),
        })
    }

    fn config(&self, trust: Trust) -> Result<Arc<ClientConfig>, base::tls::Error> {
        let authorities = match (trust, &self.authorities) {
            (Trust::Stranger, _) => return Ok(self.stranger.clone()),
            // As upstream, kubelets are not verified where nobody says by what.
            (Trust::KubeletUnverified, _) | (Trust::Kubelet, None) => return Ok(self.unverified.clone()),
            (Trust::Kubelet, Some(authorities)) => authorities,
        };
        let roots = authorities.roots();
        let mut verified = self.verified.lock();
        if let Some((_, config)) = verified.as_ref().filter(|(of, _)| Arc::ptr_eq(of, &roots)) {
            return Ok(config.clone());
        }
        let config = base::tls::client(roots.clone(), self.identity.clone(), ALPN)?;
        *verified = Some((roots, config.clone()));
        Ok(config)
    }

    /// Connects.
    ///
    /// # Errors
    /// In Go's words.
    pub async fn connect(&self, backend: &Backend) -> Result<Stream, String> {
        let location = &backend.location;
        let stream = dial(location).await?;
        if !location.https {
            return Ok(Box::new(stream));
        }
        let config = self.config(backend.trust).map_err(|e| e.to_string())?;
        let name = ServerName::try_from(location.host.clone())
            .map_err(|_| format!("tls: {:?} is no name for a server", location.host))?;
        let handshake = tokio_rustls::TlsConnector::from(config).connect(name, stream);
        match tokio::time::timeout(HANDSHAKE, handshake).await {
            Ok(Ok(stream)) => Ok(Box::new(stream)),
            Ok(Err(error)) => Err(words::io(&error)),
            Err(_) => Err("net/http: TLS handshake timeout".into()),
        }
    }
}

/// The first address of a location that takes a connection; the error is that of the first that does not.
async fn dial(location: &Location) -> Result<TcpStream, String> {
    let addresses = addresses(location).await.map_err(|why| format!("dial tcp: {why}"))?;
    let mut first = None;
    for address in addresses {
        let why = match tokio::time::timeout(DIAL, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => {
                // An error would say that the connection is gone already, which the next step sees too.
                let _ = stream.set_nodelay(true);
                return Ok(stream);
            }
            Ok(Err(error)) => format!("dial tcp {address}: connect: {}", words::io(&error)),
            Err(_) => format!("dial tcp {address}: i/o timeout"),
        };
        first.get_or_insert(why);
    }
    Err(first.unwrap_or_else(|| format!("dial tcp: lookup {}: no such host", location.host)))
}

/// Addresses of a location's host.
///
/// # Errors
/// In Go's words, when there is no such host or port.
pub async fn addresses(location: &Location) -> Result<Vec<SocketAddr>, String> {
    let port = location.port_number().ok_or_else(|| format!("lookup tcp/{}: unknown port", location.port))?;
    let found = tokio::net::lookup_host((location.host.as_str(), port)).await;
    let found: Vec<SocketAddr> = found.map(Iterator::collect).unwrap_or_default();
    if found.is_empty() { Err(format!("lookup {}: no such host", location.host)) } else { Ok(found) }
}

/// Sends a request and waits for the head of its answer.
///
/// # Errors
/// In Go's words.
pub async fn exchange<B>(stream: Stream, request: Request<B>) -> Result<Response<Incoming>, String>
where
    B: http_body::Body<Data: Send, Error: Into<Fault>> + Send + 'static,
{
    let builder = {
        let mut builder = hyper::client::conn::http1::Builder::new();
        // As Go writes them: some servers in containers compare names with case.
        builder.title_case_headers(true).max_buf_size(1 << 20);
        builder
    };
    let (mut sender, connection) = builder.handshake(TokioIo::new(stream)).await.map_err(|e| words::http(&e))?;
    tokio::spawn(async move {
        if let Err(error) = connection.with_upgrades().await {
            tracing::debug!(%error, "the connection to a backend ended");
        }
    });
    sender.send_request(request).await.map_err(|e| words::http(&e))
}

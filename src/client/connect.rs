//! Connections to the API server: from a kubeconfig or from inside a pod, over HTTP/2, without client-side limits.
//!
//! kube's own client speaks HTTP/1.1, a connection for each watch. This one multiplexes: all requests of a component
//! share one connection, and watches are spread over further ones, since the server caps the streams of each.

use http::{HeaderValue, Request, Response, StatusCode, header};
use hyper_rustls::{FixedServerNameResolver, HttpsConnector};
use hyper_util::client::legacy::{Client as HyperClient, connect::HttpConnector};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::{ObjectMeta, PostParams};
use kube::client::{Body, ConfigExt, retry::RetryPolicy};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use parking_lot::Mutex;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::Instant;
use tower::retry::RetryLayer;
use tower::{BoxError, Service, ServiceBuilder, ServiceExt};

/// Watches on one connection. Servers allow 100 streams (upstream's default); some are left for lists.
const WATCHES_PER_CONNECTION: usize = 80;

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The kubeconfig can't be read or is not complete.
    #[error("unable to load kubeconfig {path}: {source}")]
    Kubeconfig {
        /// The file.
        path: String,
        /// What is wrong with it.
        source: Box<kube::config::KubeconfigError>,
    },
    /// Neither a kubeconfig was given nor does this run in a pod.
    #[error("unable to load in-cluster configuration: {0}")]
    InCluster(#[from] kube::config::InClusterError),
    /// The credentials or certificates don't work.
    #[error("unable to set up the client: {0}")]
    Setup(#[from] Box<kube::Error>),
    /// The server's address is not one.
    #[error("invalid address of the API server {0:?}: it must be a URL")]
    Address(String),
    /// The name that the server's certificate must carry is not a name.
    #[error("invalid tls-server-name {0:?}")]
    ServerName(String),
}

type Transport = HyperClient<HttpsConnector<HttpConnector>, Body>;

/// A way to the API server under one identity. Clones share their connections.
#[derive(Clone)]
pub struct Connection {
    inner: Arc<Inner>,
}

struct Inner {
    config: Config,
    requests: Client,
    watches: Mutex<Vec<(Client, Arc<()>)>>,
    /// The transport without the client certificate, shared by all service accounts.
    anonymous: OnceLock<Transport>,
}

/// The right to one watch on a connection; held as long as the watch.
pub struct WatchSlot {
    client: Client,
    _occupied: Arc<()>,
}

impl WatchSlot {
    /// The client to watch with.
    pub fn client(&self) -> Client {
        self.client.clone()
    }
}

impl Connection {
    /// Connects as a kubeconfig says, or as the pod's service account when there is none. `user_agent` is the
    /// component's name.
    ///
    /// # Errors
    /// When the configuration can't be read; an unreachable server shows with the first request.
    pub async fn open(kubeconfig: Option<&Path>, user_agent: &str) -> Result<Self, ConnectError> {
        let config = match kubeconfig {
            None => Config::incluster()?,
            Some(path) => read_kubeconfig(path).await.map_err(|source| ConnectError::Kubeconfig {
                path: path.display().to_string(),
                source: Box::new(source),
            })?,
        };
        Self::from_config(config, user_agent)
    }

    /// As [`Connection::open`], but to the server at this address, as `--master` has it; empty for the kubeconfig's.
    ///
    /// # Errors
    /// When the configuration can't be read, or the address is none.
    pub async fn open_at(master: &str, kubeconfig: Option<&Path>, user_agent: &str) -> Result<Self, ConnectError> {
        if master.is_empty() {
            return Self::open(kubeconfig, user_agent).await;
        }
        let address = || ConnectError::Address(master.to_owned());
        let url: http::Uri = master.parse().map_err(|_| address())?;
        if url.scheme().is_none() || url.authority().is_none() {
            return Err(address());
        }
        let mut config = match kubeconfig {
            None => Config::new(url.clone()),
            Some(_) => Self::open(kubeconfig, user_agent).await?.config().clone(),
        };
        config.cluster_url = url;
        Self::from_config(config, user_agent)
    }

    /// Connects as `config` says.
    ///
    /// # Errors
    /// When its certificates or credentials can't be used.
    pub fn from_config(mut config: Config, user_agent: &str) -> Result<Self, ConnectError> {
        let agent = format!(
            "{user_agent}/v{} ({}/{})",
            env!("CARGO_PKG_VERSION"),
            std::env::consts::OS,
            std::env::consts::ARCH
        );
        if let Ok(agent) = HeaderValue::from_str(&agent) {
            config.headers.retain(|(name, _)| name != header::USER_AGENT);
            config.headers.push((header::USER_AGENT, agent));
        }
        let requests = make_client(transport(&config)?, &config, None)?;
        Ok(Self { inner: Arc::new(Inner { config, requests, watches: Mutex::default(), anonymous: OnceLock::new() }) })
    }

    /// The client for everything but watches.
    pub fn client(&self) -> Client {
        self.inner.requests.clone()
    }

    /// The configuration this was made from.
    pub fn config(&self) -> &Config {
        &self.inner.config
    }

    /// A client to watch with, on a connection that still has room.
    pub fn watch_slot(&self) -> WatchSlot {
        let mut watches = self.inner.watches.lock();
        watches.retain(|(_, slots)| Arc::strong_count(slots) > 1);
        let roomy = watches.iter().find(|(_, slots)| Arc::strong_count(slots) <= WATCHES_PER_CONNECTION);
        if let Some((client, slots)) = roomy {
            return WatchSlot { client: client.clone(), _occupied: slots.clone() };
        }
        let config = &self.inner.config;
        let client = transport(config)
            .and_then(|transport| make_client(transport, config, None))
            .unwrap_or_else(|_| self.client());
        let slots = Arc::new(());
        watches.push((client.clone(), slots.clone()));
        WatchSlot { client, _occupied: slots }
    }

    /// A client that acts as a service account: its token is asked for under this connection's identity and renewed in
    /// time; the account is made if it is missing.
    ///
    /// # Errors
    /// When the certificates can't be used.
    pub fn service_account(&self, namespace: &str, name: &str) -> Result<Client, ConnectError> {
        let mut config = self.inner.config.clone();
        config.auth_info = kube::config::AuthInfo::default();
        if let Some((_, agent)) = config.headers.iter_mut().find(|(header, _)| header == header::USER_AGENT)
            && let Ok(text) = HeaderValue::from_str(&format!("{}/{name}", agent.to_str().unwrap_or_default()))
        {
            *agent = text;
        }
        let transport = match self.inner.anonymous.get() {
            Some(transport) => transport.clone(),
            None => {
                let made = transport(&config)?;
                self.inner.anonymous.get_or_init(|| made).clone()
            }
        };
        let tokens = Tokens {
            client: self.client(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            cached: tokio::sync::Mutex::default(),
        };
        make_client(transport, &config, Some(Arc::new(tokens)))
    }
}

async fn read_kubeconfig(path: &Path) -> Result<Config, kube::config::KubeconfigError> {
    let kubeconfig = Kubeconfig::read_from(path)?;
    Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await
}

/// One HTTP/2 connection (HTTP/1.1 where the server has no other), pinged when it is silent, as Go's client does it.
fn transport(config: &Config) -> Result<Transport, ConnectError> {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // Another thread may win; theirs is the same provider.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    }
    let mut tls = config.rustls_client_config().map_err(Box::new)?;
    tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(config.connect_timeout);
    tcp.set_keepalive(Some(Duration::from_secs(30)));
    let connector = match &config.tls_server_name {
        None => HttpsConnector::from((tcp, tls)),
        Some(name) => {
            let name = name.clone().try_into().map_err(|_| ConnectError::ServerName(name.clone()))?;
            HttpsConnector::new(tcp, tls, false, Arc::new(FixedServerNameResolver::new(name)))
        }
    };
    Ok(HyperClient::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .http2_keep_alive_interval(Duration::from_secs(30))
        .http2_keep_alive_timeout(Duration::from_secs(15))
        .http2_keep_alive_while_idle(true)
        .build(connector))
}

fn make_client(transport: Transport, config: &Config, tokens: Option<Arc<Tokens>>) -> Result<Client, ConnectError> {
    // As client-go: ten attempts when the server asks for patience.
    let retry = RetryPolicy::new(Duration::from_millis(100), Duration::from_secs(10), 10, true)
        .expect("the bounds are in order");
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .layer(RetryLayer::new(retry))
        .option_layer(config.auth_layer().map_err(Box::new)?)
        .layer(config.extra_headers_layer().map_err(Box::new)?)
        .layer_fn(move |inner| WithToken { inner, tokens: tokens.clone() })
        .map_err(BoxError::from)
        .service(transport);
    Ok(Client::new(service.boxed(), config.default_namespace.clone()))
}

/// The current token of a service account.
struct Tokens {
    client: Client,
    namespace: String,
    name: String,
    cached: tokio::sync::Mutex<Option<(HeaderValue, Instant)>>,
}

impl Tokens {
    /// Seconds, as kube-controller-manager asks for.
    const LIFETIME: i64 = 3600;

    async fn bearer(&self) -> Result<HeaderValue, BoxError> {
        let mut cached = self.cached.lock().await;
        if let Some((header, renew)) = &*cached
            && Instant::now() < *renew
        {
            return Ok(header.clone());
        }
        let status = self.request().await?.status.ok_or("the server granted no token")?;
        let token = status.token.ok_or("the server granted an empty token")?;
        let expires = status.expiration_timestamp.ok_or("the server granted a token without an end")?.0;
        let left = Duration::try_from(expires.duration_since(jiff::Timestamp::now())).unwrap_or_default();
        let mut header = HeaderValue::from_str(&format!("Bearer {token}"))?;
        header.set_sensitive(true);
        *cached = Some((header.clone(), Instant::now() + left.mul_f64(0.8)));
        Ok(header)
    }

    async fn request(&self) -> kube::Result<TokenRequest> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), &self.namespace);
        if accounts.get_opt(&self.name).await?.is_none() {
            let metadata = ObjectMeta { name: Some(self.name.clone()), ..Default::default() };
            let account = ServiceAccount { metadata, ..Default::default() };
            match accounts.create(&PostParams::default(), &account).await {
                Err(error) if !crate::retry::is_already_exists(&error) => return Err(error),
                _ => {}
            }
        }
        let spec = TokenRequestSpec { expiration_seconds: Some(Self::LIFETIME), ..Default::default() };
        let request = TokenRequest { spec: Some(spec), ..Default::default() };
        accounts.create_token_request(&self.name, &PostParams::default(), &request).await
    }

    async fn forget(&self, used: &HeaderValue) {
        let mut cached = self.cached.lock().await;
        if cached.as_ref().is_some_and(|(header, _)| header == used) {
            *cached = None;
        }
    }
}

/// Adds the token to each request, and drops one that the server no longer takes.
#[derive(Clone)]
struct WithToken<S> {
    inner: S,
    tokens: Option<Arc<Tokens>>,
}

impl<S, B> Service<Request<Body>> for WithToken<S>
where
    S: Service<Request<Body>, Response = Response<B>, Error = BoxError> + Clone + Send + 'static,
    S::Future: Send,
    B: Send,
{
    type Response = Response<B>;
    type Error = BoxError;
    type Future = futures::future::BoxFuture<'static, Result<Response<B>, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let ready = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, ready);
        let Some(tokens) = self.tokens.clone() else { return Box::pin(inner.call(request)) };
        Box::pin(async move {
            let bearer = tokens.bearer().await?;
            request.headers_mut().insert(header::AUTHORIZATION, bearer.clone());
            let response = inner.call(request).await?;
            if response.status() == StatusCode::UNAUTHORIZED {
                tokens.forget(&bearer).await;
            }
            Ok(response)
        })
    }
}

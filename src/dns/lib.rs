//! Cluster DNS: names of services and pods from the API server, all other names from the resolvers outside.
//!
//! ```text
//!   question ─► handler ─► zone (informers: Services, EndpointSlices, Namespaces) ─► answer
//!                     └─► not ours ─► cache ─► forward ─► resolvers of /etc/resolv.conf
//!   /health on 8080, /ready on 8181 once everything is known, /metrics on 9153
//! ```
//!
//! Contract: an answer about the cluster is a pure function of the question and what the informers hold at that moment;
//! it is not cached, so a change is seen by the next question. While the API server is away, names live on.

pub mod cache;
pub mod forward;
pub mod handler;
pub mod metrics;
pub mod zone;

use base::component::{self, Threads};
use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use base::flags::{self, Flags};
use base::health::{Checks, Endpoints, Flag};
use base::server::{self, Limits};
use base::shutdown::Shutdown;
use client::{Connection, Informers};
use hickory_proto::rr::Name;
use hickory_server::net::NetError;
use hickory_server::server::Server;
use k8s_openapi::api::core::v1::{Namespace, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;

use forward::Forwarder;
use handler::Handler;
use metrics::Metrics;
use zone::Zone;

/// How long a TCP connection may be silent.
const TCP_IDLE: Duration = Duration::from_secs(10);

/// Why DNS ended.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Connect(#[from] client::ConnectError),
    #[error("can't listen at {0}: {1}")]
    Listen(SocketAddr, std::io::Error),
    #[error("{0}: {1}")]
    Read(String, std::io::Error),
    #[error("invalid cluster domain {0:?}")]
    Domain(String),
    #[error("{0}")]
    Io(#[from] std::io::Error),
    #[error("serving: {0}")]
    Serve(#[from] NetError),
    #[error("loop detected: a resolver of {0} asks this server")]
    Loop(String),
}

fn command() -> clap::Command {
    let flags = [
        flags::text("kubeconfig", "", "path of the kubeconfig; the in-cluster one when empty"),
        flags::text("cluster-domain", "cluster.local", "the cluster's domain"),
        flags::ip("bind-address", "0.0.0.0", "address to serve on"),
        flags::int("port", 53, "port of DNS, by UDP and TCP"),
        flags::int("health-port", 8080, "port of /health"),
        flags::int("ready-port", 8181, "port of /ready"),
        flags::int("metrics-port", 9153, "port of /metrics"),
        flags::text("resolv-conf", "/etc/resolv.conf", "file with the resolvers for names outside the cluster"),
    ];
    flags::command("dns", "Answers names of services and pods.", flags)
}

/// Runs cluster DNS with these arguments, the first of which is its name.
pub fn main(args: Vec<OsString>) -> ExitCode {
    component::main(command(), args, Threads::PerProcessor, |flags, shutdown| async move {
        Ok(run(&flags, &shutdown).await?)
    })
}

fn address(flags: &Flags, port: &str) -> SocketAddr {
    let ip = flags.ip("bind-address").unwrap_or(IpAddr::from([0, 0, 0, 0]));
    SocketAddr::new(ip, u16::try_from(flags.int(port)).unwrap_or(0))
}

fn domain(text: &str) -> Result<Name, Error> {
    let mut name = Name::from_ascii(text).map_err(|_| Error::Domain(text.into()))?.to_lowercase();
    name.set_fqdn(true);
    Ok(name)
}

async fn run(flags: &Flags, shutdown: &Shutdown) -> Result<(), Error> {
    let connection = Connection::open(flags.path("kubeconfig").as_deref(), "dns").await?;
    let informers = Informers::new(&connection);
    let zone = Arc::new(Zone::new(
        domain(flags.text("cluster-domain"))?,
        informers.of::<Service>(),
        informers.of::<EndpointSlice>(),
        informers.of::<Namespace>(),
    ));
    let listen = address(flags, "port");
    let resolv = flags.text("resolv-conf");
    let metrics = Arc::new(Metrics::new());
    let forwarder = Forwarder::from_resolv_conf(Path::new(resolv), listen, metrics.clone())
        .map_err(|e| Error::Read(resolv.into(), e))?;
    let ready = serve_health(flags, shutdown)?;
    if base::shutdown::unless(shutdown, zone.synced()).await.is_none() {
        return Ok(());
    }
    let handler = Handler::new(zone, forwarder, metrics);
    let looped = handler.looped();
    let probe = handler.probe();
    let mut server = Server::new(handler);
    server.register_socket(tokio::net::UdpSocket::bind(listen).await.map_err(|e| Error::Listen(listen, e))?);
    let listener = server::listen(listen, false).map_err(|e| Error::Listen(listen, e))?;
    server.register_listener(listener, TCP_IDLE, 1024);
    ready.set(true);
    tracing::info!(%listen, "answering");
    let told = shutdown.clone();
    tokio::spawn(async move { base::shutdown::unless(&told, probe).await });
    tokio::select! {
        () = shutdown.cancelled() => server.shutdown_gracefully().await?,
        () = looped.cancelled() => return Err(Error::Loop(resolv.into())),
        result = server.block_until_done() => result?,
    }
    Ok(())
}

/// Serves health, readiness and metrics, each on its own port as CoreDNS does. Ready is what the returned flag says.
fn serve_health(flags: &Flags, shutdown: &Shutdown) -> Result<Flag, Error> {
    let ready = Flag::new("not everything is known yet");
    let check = ready.clone();
    let start = |port: &str, endpoints: Endpoints| -> Result<(), Error> {
        let at = address(flags, port);
        let listener = server::listen(at, false).map_err(|e| Error::Listen(at, e))?;
        tokio::spawn(server::serve(listener, None, Limits::default(), Arc::new(endpoints), shutdown.clone()));
        Ok(())
    };
    let plain = |checks: Checks| Endpoints {
        healthz: Checks::new(),
        livez: Checks::new(),
        readyz: checks,
        component: "dns",
        ..Endpoints::default()
    };
    start("health-port", Endpoints { extra: Some(path_check("/health", None)), ..plain(Checks::new()) })?;
    let checks = Checks::new().with("informers", check.check());
    start("ready-port", Endpoints { extra: Some(path_check("/ready", Some(check))), ..plain(checks) })?;
    start("metrics-port", Endpoints { metrics: true, ..plain(Checks::new()) })?;
    Ok(ready)
}

/// Answers one path with OK, or with 503 and the part of CoreDNS that is not ready while a flag does not hold.
fn path_check(path: &'static str, flag: Option<Flag>) -> base::health::Extra {
    use http_body_util::Full;
    Arc::new(move |request| {
        let holds = flag.as_ref().is_none_or(Flag::holds);
        Box::pin(async move {
            if request.uri().path() != path {
                return Err(request);
            }
            let mut response = http::Response::new(Full::new(bytes::Bytes::from_static(if holds {
                &b"OK"[..]
            } else {
                b"kubernetes"
            })));
            *response.status_mut() = if holds { http::StatusCode::OK } else { http::StatusCode::SERVICE_UNAVAILABLE };
            Ok(response)
        })
    })
}

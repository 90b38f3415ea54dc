//! kube-proxy: keeps the kernel's rules in step with services and their endpoints.
//!
//! ```text
//!   informers: Services, EndpointSlices, ServiceCIDRs, this Node
//!       └──wake──► syncer: model ─► rules (pure) ─► difference ─► nft, once
//!                                └─► flows: UDP flows that lead to endpoints which are gone are forgotten
//!   health: /healthz, /livez; small servers for services with a health-check node port
//! ```
//!
//! Contract: the rules are a pure function of what the informers hold; one transaction brings the kernel there, or nothing
//! changes; what did not change is not touched. The proxy runs on after the API server is gone, with what it knew last.

pub mod config;
pub mod flags;
pub mod flows;
pub mod health;
pub mod host;
pub mod kernel;
pub mod model;
pub mod rules;
pub mod ruleset;
pub mod sync;

use base::component::{self, Threads};
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use base::flags::Flags;
use base::health::{Checks, Endpoints, Extra};
use base::server::{self, Handler, Limits};
use base::shutdown::Shutdown;
use client::events::{EventKind, Record, Recorder};
use client::{Connection, Informers, Selection};
use k8s_openapi::api::core::v1::{Node, ObjectReference, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::ServiceCIDR;

use flags::{LocalMode, NodePorts, Settings};
use rules::Local;

/// Time before a port that is taken is asked for again.
const RETRY: Duration = Duration::from_secs(5);

/// Why the proxy ended.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Config(#[from] config::Error),
    #[error(transparent)]
    Connect(#[from] client::ConnectError),
    #[error("can't listen at {0}: {1}")]
    Listen(SocketAddr, std::io::Error),
    #[error(transparent)]
    Kernel(#[from] kernel::Error),
    #[error(transparent)]
    Host(#[from] host::Error),
    #[error(transparent)]
    Range(#[from] sync::NoRange),
    #[error("writing {0:?}: {1}")]
    Write(PathBuf, String),
}

/// Runs kube-proxy with these arguments, the first of which is its name.
pub fn main(args: Vec<OsString>) -> ExitCode {
    component::main(
        flags::command(),
        args,
        Threads::One,
        |flags, shutdown| async move { Ok(run(&flags, &shutdown).await?) },
    )
}

async fn run(flags: &Flags, shutdown: &Shutdown) -> Result<(), Error> {
    let settings = Settings::from_flags(flags)?;
    if let Some(path) = flags.path("write-config-to") {
        return write_config(&settings, path);
    }
    if flags.switch("cleanup") {
        return cleanup().await;
    }
    warn(&settings);
    host::track_connections(&settings.conntrack, Path::new("/"))?;
    if flags.switch("init-only") {
        tracing::info!("System initialized and --init-only specified");
        return Ok(());
    }
    let master = settings.master.as_deref().unwrap_or_default();
    let connection = Connection::open_at(master, settings.kubeconfig.as_deref(), "kube-proxy").await?;
    host::adjust_oom_score(settings.oom_score_adj);
    tell_start(&connection, &settings.node);
    let syncer = sync::Syncer::new(settings.clone(), sources(&settings, &connection));
    serve(&settings, flags, &syncer, shutdown)?;
    syncer.run(shutdown).await?;
    Ok(())
}

/// Tells what will not be as somebody may expect.
fn warn(settings: &Settings) {
    if !settings.idle.is_empty() {
        tracing::warn!(fields = ?settings.idle, "given, but without effect in this kube-proxy");
    }
    if settings.config.mode == "iptables" {
        // Both mean the same services and the same endpoints; only the kernel's tables differ.
        tracing::warn!("proxy mode iptables is served by nftables, without node ports on 127.0.0.1");
    }
    match &settings.node_ports {
        NodePorts::In(networks) if networks.is_empty() => tracing::warn!(
            "nodePortAddresses is unset; NodePort connections will be accepted on all local IPs. Consider using \
             `--nodeport-addresses primary`"
        ),
        NodePorts::In(networks) if networks.iter().any(|network| network.addr().is_loopback()) => {
            tracing::warn!("--nodeport-addresses includes localhost but localhost NodePorts are not supported")
        }
        NodePorts::In(_) | NodePorts::Primary => {}
    }
    if settings.local == LocalMode::Told(Local::Networks(Vec::new())) {
        tracing::warn!("Detect-local-mode set to ClusterCIDR, but no cluster CIDR specified");
    }
}

/// The event that upstream's proxy begins with.
fn tell_start(connection: &Connection, node: &str) {
    let about = ObjectReference {
        api_version: Some("v1".into()),
        kind: Some("Node".into()),
        name: Some(node.into()),
        ..ObjectReference::default()
    };
    Recorder::series(connection.client(), "kube-proxy").send(Record {
        about,
        related: None,
        kind: EventKind::Normal,
        reason: "Starting".into(),
        action: "StartKubeProxy".into(),
        message: String::new(),
        annotations: Vec::new(),
    });
}

fn write_config(settings: &Settings, path: PathBuf) -> Result<(), Error> {
    let text = serde_saphyr::to_string(&settings.config).map_err(|error| error.to_string());
    let written = text.and_then(|text| std::fs::write(&path, text).map_err(|error| error.to_string()));
    written.map_err(|error| Error::Write(path.clone(), error))?;
    tracing::info!(file = %path.display(), "Wrote configuration");
    Ok(())
}

fn sources(settings: &Settings, connection: &Connection) -> sync::Sources {
    let informers = Informers::new(connection);
    let ours = Selection::labels("!service.kubernetes.io/service-proxy-name");
    sync::Sources {
        services: informers.select::<Service>(&ours),
        // Headless services direct no traffic.
        slices: informers.select::<EndpointSlice>(&Selection::labels("!service.kubernetes.io/headless")),
        nodes: informers.select::<Node>(&Selection::named(&settings.node)),
        ranges: informers.of::<ServiceCIDR>(),
    }
}

/// Serves health and metrics in the background.
fn serve(settings: &Settings, flags: &Flags, syncer: &Arc<sync::Syncer>, shutdown: &Shutdown) -> Result<(), Error> {
    if let Some(address) = settings.health {
        let handler = Arc::new(health::Server::new(syncer.clone()));
        serve_at(address, settings.hard_fail, handler, shutdown)?;
    }
    if let Some(address) = settings.metrics {
        // A structure of texts and numbers always has a form in JSON.
        let shown = serde_json::to_value(&settings.config).unwrap_or_default();
        let endpoints = Endpoints {
            healthz: Checks::new(),
            livez: Checks::new(),
            readyz: Checks::new(),
            component: "kube-proxy",
            metrics: true,
            flags: flags.all(),
            configz: Arc::new(parking_lot::RwLock::new(vec![("kubeproxy.config.k8s.io".into(), shown)])),
            extra: Some(proxy_mode(settings.config.mode.clone())),
            ..Endpoints::default()
        };
        serve_at(address, settings.hard_fail, Arc::new(endpoints), shutdown)?;
    }
    Ok(())
}

/// Answers `/proxyMode`.
fn proxy_mode(mode: String) -> Extra {
    Arc::new(move |request| {
        let mode = mode.clone();
        Box::pin(async move {
            if request.uri().path() != "/proxyMode" {
                return Err(request);
            }
            let mut response = http::Response::new(http_body_util::Full::new(bytes::Bytes::from(mode)));
            let headers = response.headers_mut();
            headers.insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static("text/plain; charset=utf-8"));
            headers.insert(http::header::X_CONTENT_TYPE_OPTIONS, http::HeaderValue::from_static("nosniff"));
            Ok(response)
        })
    })
}

/// Serves at an address in the background. One that is taken ends the proxy, or is asked for until it is free: traffic
/// is of more use than answers about it.
fn serve_at<H: Handler>(
    address: SocketAddr, hard_fail: bool, handler: Arc<H>, shutdown: &Shutdown,
) -> Result<(), Error> {
    let mut listener = server::listen(address, false).map_err(|error| Error::Listen(address, error));
    if hard_fail && let Err(error) = listener {
        return Err(error);
    }
    let shutdown = shutdown.clone();
    tokio::spawn(async move {
        loop {
            match listener {
                Ok(listener) => return server::serve(listener, None, Limits::default(), handler, shutdown).await,
                Err(error) => tracing::error!(%error, "trying again"),
            }
            if base::shutdown::unless(&shutdown, tokio::time::sleep(RETRY)).await.is_none() {
                return;
            }
            listener = server::listen(address, false).map_err(|error| Error::Listen(address, error));
        }
    });
    Ok(())
}

async fn cleanup() -> Result<(), Error> {
    for family in sync::FAMILIES {
        let table = rules::table(family);
        kernel::run(&format!("add table {table}\ndelete table {table}\n")).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(args: &[&str]) -> Settings {
        let Ok(flags) = base::flags::parse(flags::command(), args.iter().map(OsString::from)) else {
            panic!("bad flags");
        };
        Settings::from_flags(&flags).unwrap()
    }

    #[test]
    fn a_configuration_that_was_written_is_read_as_it_was() {
        let path = std::env::temp_dir().join(format!("proxy-written-{}.yaml", std::process::id()));
        let args =
            ["--cluster-cidr=10.244.0.0/16", "--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0s"];
        let settings = settings(&args);
        write_config(&settings, path.clone()).unwrap();
        let mut read = config::load(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        read.complete();
        assert_eq!(read, settings.config);
    }

    #[tokio::test]
    async fn a_port_that_is_taken_ends_the_proxy_only_when_it_is_told_so() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, shutdown) = (taken.local_addr().unwrap(), Shutdown::new());
        let handler = Arc::new(Endpoints::default());
        assert!(matches!(serve_at(address, true, handler.clone(), &shutdown), Err(Error::Listen(..))));
        serve_at(address, false, handler, &shutdown).unwrap();
        shutdown.cancel();
    }
}

//! kube-proxy: keeps the kernel's rules in step with services and their endpoints.
//!
//! ```text
//!   informers: Services, EndpointSlices, this Node ──wake──► syncer: model ─► rules (pure) ─► difference ─► nft, once
//!                                                                                └─► conntrack forgets stale UDP flows
//!   health: /healthz, /livez; one small server per service with a health-check node port
//! ```
//!
//! Contract: the rules are a pure function of what the informers hold; one transaction brings the kernel there, or nothing
//! changes; what did not change is not touched. The proxy runs on after the API server is gone, with what it knew last.

pub mod config;
pub mod health;
pub mod kernel;
pub mod model;
pub mod rules;
pub mod ruleset;
pub mod sync;

use base::component::{self, Threads};
use std::ffi::OsString;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;

use base::health::{Checks, Endpoints};
use base::server::{self, Limits};
use base::shutdown::Shutdown;
use client::{Connection, Informers, Selection};
use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;

use config::Config;
use model::Family;

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
    #[error("{0}")]
    Io(#[from] std::io::Error),
    #[error("invalid master URL: {0}")]
    Master(String),
}

/// Runs kube-proxy with these arguments, the first of which is its name.
pub fn main(args: Vec<OsString>) -> ExitCode {
    component::main(config::command(), args, Threads::One, |flags, shutdown| async move {
        Ok(run(&flags, &shutdown).await?)
    })
}

async fn run(flags: &base::flags::Flags, shutdown: &Shutdown) -> Result<(), Error> {
    if flags.switch("cleanup") {
        return cleanup().await;
    }
    let config = Config::from_flags(flags)?;
    let connection = connect(&config).await?;
    let informers = Informers::new(&connection);
    let services = informers.of::<Service>();
    // Headless services direct no traffic.
    let slices = informers.select::<EndpointSlice>(&Selection::labels("!service.kubernetes.io/headless"));
    let nodes = informers.select::<Node>(&Selection::named(&config.node));
    let syncer = sync::Syncer::new(config.clone(), services, slices, nodes);
    serve(&config, flags, &syncer, shutdown)?;
    syncer.run(shutdown).await;
    Ok(())
}

async fn connect(config: &Config) -> Result<Connection, Error> {
    let connection = Connection::open(config.kubeconfig.as_deref(), "kube-proxy").await?;
    let Some(master) = &config.master else { return Ok(connection) };
    let mut moved = connection.config().clone();
    moved.cluster_url = master.parse().map_err(|e: http::uri::InvalidUri| Error::Master(e.to_string()))?;
    Ok(Connection::from_config(moved, "kube-proxy")?)
}

/// Serves health and metrics in the background.
fn serve(
    config: &Config, flags: &base::flags::Flags, syncer: &Arc<sync::Syncer>, shutdown: &Shutdown,
) -> Result<(), Error> {
    if let Some(address) = config.health {
        let listener = server::listen(address, false).map_err(|e| Error::Listen(address, e))?;
        let handler = Arc::new(health::Server(syncer.clone()));
        tokio::spawn(server::serve(listener, None, Limits::default(), handler, shutdown.clone()));
    }
    if let Some(address) = config.metrics {
        let listener = server::listen(address, false).map_err(|e| Error::Listen(address, e))?;
        let endpoints = Endpoints {
            healthz: Checks::new(),
            livez: Checks::new(),
            readyz: Checks::new(),
            component: "kube-proxy",
            metrics: true,
            flags: flags.all(),
            configz: Arc::new(parking_lot::RwLock::new(vec![("kubeproxy.config.k8s.io".into(), config.shown.clone())])),
            ..Endpoints::default()
        };
        tokio::spawn(server::serve(listener, None, Limits::default(), Arc::new(endpoints), shutdown.clone()));
    }
    Ok(())
}

async fn cleanup() -> Result<(), Error> {
    for family in [Family::V4, Family::V6] {
        let table = rules::table(family);
        kernel::run(&format!("add table {table}\ndelete table {table}\n")).await?;
    }
    Ok(())
}

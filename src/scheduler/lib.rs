//! kube-scheduler: finds a node for every pod that has none.
//!
//! ```text
//!   informers: Pods, Nodes, Namespaces, budgets ─► world (persistent) ─► snapshot ┐
//!                                             └─► queue ─► pod ──► cycle (pure): plugins filter, score ─► node ─► assume ─► bind
//!                                                   ▲                    └─► nobody: preemption (pure) ─► victims, reasons
//!                                                   └── events that may help, after a pause ◄──────────────────────┘
//! ```
//!
//! Contract: a cycle sees one snapshot and decides purely; one pod is decided at a time, bindings run beside. A pod that is
//! decided counts on its node at once (assumed) until the API server says so or the binding fails.

pub mod config;
pub mod cycle;
pub mod framework;
pub mod plugins;
pub mod preemption;
pub mod queue;
pub mod resources;
pub mod shell;
pub mod state;

use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;

use base::Fault;
use base::flags::Flags;
use base::health::{Checks, Endpoints, Flag};
use base::shutdown::Shutdown;
use client::leader::Election;
use client::{Connection, Informers, Recorder};

use config::Config;

/// Runs kube-scheduler with these arguments, the first of which is its name.
pub fn main(args: Vec<OsString>) -> ExitCode {
    base::component::main(config::command(), args, |flags, shutdown| async move { run(&flags, shutdown).await })
}

async fn run(flags: &Flags, shutdown: Shutdown) -> Result<(), Fault> {
    let config = Config::from_flags(flags)?;
    let connection = Connection::open(config.kubeconfig.as_deref(), "kube-scheduler").await?;
    let synced = Flag::new("informers are not synced");
    serve(flags, &config, &synced, &shutdown).await?;
    let informers = Informers::new(&connection);
    let recorder = Recorder::series(connection.client(), "default-scheduler");
    let election = config.election.clone();
    let scheduler = shell::Scheduler::new(config, connection.client(), &informers, recorder);
    let work = |term: Shutdown| async move { scheduler.run(&term, &synced).await };
    let Some(election) = election else {
        work(shutdown).await;
        return Ok(());
    };
    let recorder = Recorder::core(connection.client(), "default-scheduler", "");
    let candidate =
        Election::new(connection.client(), &election.namespace, &election.name, election.timing, Some(recorder));
    Ok(candidate.lead(shutdown, work).await?)
}

/// Serves health and metrics over HTTPS in the background.
async fn serve(flags: &Flags, config: &Config, synced: &Flag, shutdown: &Shutdown) -> Result<(), Fault> {
    let endpoints = Endpoints {
        healthz: Checks::new(),
        livez: Checks::new(),
        readyz: Checks::new().with("sched-handler-sync", synced.check()),
        component: "kube-scheduler",
        metrics: true,
        flags: flags.all(),
        configz: Arc::new(parking_lot::RwLock::new(vec![("componentconfig".into(), config.shown.clone())])),
        ..Endpoints::default()
    };
    client::serving::serve(flags, endpoints, shutdown).await
}

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

use base::component::{self, Threads};
use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;

use base::Fault;
use base::flags::Flags;
use base::health::{Checks, Endpoints, Flag, not_ending};
use base::shutdown::Shutdown;
use client::leader::{Election, Watchdog};
use client::{Connection, Informers, Recorder};

use config::Config;

/// Runs kube-scheduler with these arguments, the first of which is its name.
pub fn main(args: Vec<OsString>) -> ExitCode {
    component::main(config::command(), args, Threads::One, |flags, shutdown| async move { run(&flags, shutdown).await })
}

async fn run(flags: &Flags, shutdown: Shutdown) -> Result<(), Fault> {
    let config = Config::from_flags(flags)?;
    let connection = Connection::open_at(flags.text("master"), config.kubeconfig.as_deref(), "kube-scheduler").await?;
    let (synced, watchdog) = (Flag::new("handlers are not fully synchronized"), Watchdog::default());
    serve(flags, &config, &synced, &watchdog, &shutdown).await?;
    let informers = Informers::new(&connection);
    let recorder = Recorder::series(connection.client(), "default-scheduler");
    let election = config.election.clone();
    let scheduler = shell::Scheduler::new(config, connection.client(), &informers, recorder);
    // One that waits for the lead knows everything already, and takes over at once.
    if base::shutdown::unless(&shutdown, scheduler.synced()).await.is_none() {
        return Ok(());
    }
    synced.set(true);
    let work = |term: Shutdown| async move { scheduler.run(&term).await };
    let Some(election) = election else {
        work(shutdown).await;
        return Ok(());
    };
    let recorder = Recorder::core(connection.client(), "default-scheduler", "");
    let (namespace, name) = (&election.namespace, &election.name);
    let candidate = Election::new(connection.client(), namespace, name, election.timing, Some(recorder), watchdog);
    Ok(candidate.lead(shutdown, work).await?)
}

/// Serves health and metrics over HTTPS in the background.
async fn serve(
    flags: &Flags, config: &Config, synced: &Flag, watchdog: &Watchdog, shutdown: &Shutdown,
) -> Result<(), Fault> {
    let leads = config.election.as_ref().map(|_| Checks::default().with("leaderElection", watchdog.check()));
    let endpoints = Endpoints {
        healthz: leads.clone().unwrap_or_else(Checks::new),
        livez: Checks::new(),
        readyz: leads
            .unwrap_or_default()
            .with("shutdown", not_ending(shutdown))
            .with("sched-handler-sync", synced.check()),
        component: "kube-scheduler",
        metrics: true,
        flags: flags.all(),
        configz: Arc::new(parking_lot::RwLock::new(vec![("componentconfig".into(), config.shown.clone())])),
        ..Endpoints::default()
    };
    client::serving::serve(flags, endpoints, shutdown).await
}

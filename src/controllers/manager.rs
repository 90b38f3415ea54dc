//! The process: flags, the small HTTPS server, the lead, and the controllers of the table under it.

use crate::context::Context;
use crate::options::{self, Options};
use crate::table::{ABSENT, TABLE, enabled};
use base::component::{self, Threads};
use base::health::{Checks, Endpoints};
use base::shutdown::Shutdown;
use client::leader::{Election, Lost, Watchdog};
use client::{Connection, Informers, Recorder};
use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;
use tokio::task::JoinSet;

const NAME: &str = "kube-controller-manager";

/// Runs kube-controller-manager with this command line, which starts with the program's name.
pub fn main(args: Vec<OsString>) -> ExitCode {
    component::main(options::command(), args, Threads::One, |flags, stop| async move {
        let options = Options::read(flags)?;
        run(options, stop).await
    })
}

async fn run(options: Options, stop: Shutdown) -> Result<(), base::Fault> {
    let kubeconfig = options.flags.path("kubeconfig");
    let connection = Connection::open(kubeconfig.as_deref(), NAME).await?;
    let watchdog = Watchdog::default();
    serve(&options, &watchdog, &stop).await?;
    let options = Arc::new(options);
    if !options.flags.switch("leader-elect") {
        return controllers(&options, &connection, stop).await;
    }
    let recorder = Recorder::core(connection.client(), NAME, "");
    let election = Election::new(
        connection.client(),
        options.flags.text("leader-elect-resource-namespace"),
        options.flags.text("leader-elect-resource-name"),
        options.timing(),
        Some(recorder),
        watchdog,
    );
    let mut end = Ok(());
    let lead = election.lead(stop.clone(), async |term| end = controllers(&options, &connection, term).await).await;
    match lead {
        Err(Lost) => Err(Lost.into()),
        Ok(()) => end,
    }
}

/// Serves health and metrics over HTTPS in the background.
async fn serve(options: &Options, watchdog: &Watchdog, stop: &Shutdown) -> Result<(), base::Fault> {
    let healthz = match options.flags.switch("leader-elect") {
        true => Checks::default().with("leaderElection", watchdog.check()),
        false => Checks::new(),
    };
    let endpoints = Endpoints {
        healthz: healthz.clone(),
        livez: healthz.clone(),
        readyz: healthz,
        component: NAME,
        flags: options.flags.all(),
        metrics: true,
        ..Endpoints::default()
    };
    client::serving::serve(&options.flags, endpoints, stop).await
}

/// Runs the controllers until `stop`, or until one of them panics.
async fn controllers(options: &Arc<Options>, connection: &Connection, stop: Shutdown) -> Result<(), base::Fault> {
    for name in options.controllers.iter().filter(|name| ABSENT.contains(&name.as_str())) {
        tracing::warn!(controller = %name, "this controller is not implemented; it is not started");
    }
    let informers = Informers::new(connection);
    let mut running = JoinSet::new();
    for row in TABLE.iter().filter(|row| enabled(row, &options.controllers)) {
        let client = match options.flags.switch("use-service-account-credentials") {
            true => connection.service_account("kube-system", row.account)?,
            false => connection.client(),
        };
        let context = Context {
            name: row.name,
            client,
            informers: informers.clone(),
            options: options.clone(),
            stop: stop.clone(),
        };
        tracing::info!(controller = row.name, "starting controller");
        running.spawn((row.start)(context));
    }
    tracing::info!(count = running.len(), "controllers started");
    while let Some(end) = running.join_next().await {
        if let Err(error) = end {
            return Err(error.into());
        }
    }
    // Controllers that have nothing to do end early; the lead is kept until the stop.
    stop.cancelled().await;
    Ok(())
}

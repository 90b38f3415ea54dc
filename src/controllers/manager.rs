//! The process: flags, the small HTTPS server, the lead, and the controllers of the table under it.

use crate::context::Context;
use crate::options::{self, Options};
use crate::table::{self, TABLE, enabled};
use base::backoff::jittered;
use base::component::{self, Threads};
use base::health::{Checks, Endpoints};
use base::shutdown::Shutdown;
use client::leader::{Election, Lost, Watchdog};
use client::{Connection, Informers, Recorder};
use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
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
    let connection = Connection::open_at(options.flags.text("master"), kubeconfig.as_deref(), NAME).await?;
    let watchdog = Watchdog::default();
    serve(&options, &watchdog, &stop).await?;
    options.tell_of_what_has_no_effect();
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

/// Runs the controllers until `stop`, or until one of them fails.
async fn controllers(options: &Arc<Options>, connection: &Connection, stop: Shutdown) -> Result<(), base::Fault> {
    let (named, implied) = table::missing(&options.controllers);
    if !named.is_empty() {
        tracing::warn!(
            controllers = named.join(","),
            "controllers are asked for that are not implemented; they are not started"
        );
    }
    if !implied.is_empty() {
        tracing::info!(
            controllers = implied.join(","),
            "of the controllers that run by default these are not implemented"
        );
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
            connection: connection.clone(),
            informers: informers.clone(),
            options: options.clone(),
            stop: stop.clone(),
        };
        tracing::info!(controller = row.name, "starting controller");
        running.spawn((row.start)(context));
        let pause = options.flags.duration("controller-start-interval");
        if !pause.is_zero() && stop.run_until_cancelled(tokio::time::sleep(jittered(pause, 1.0))).await.is_none() {
            break;
        }
    }
    tracing::info!(count = running.len(), "controllers started");
    watch(&mut running, &stop, options.flags.duration("controller-shutdown-timeout")).await
}

/// Waits for the end of all controllers, after `stop` no longer than `patience`. Those that have nothing to do end early;
/// the lead is kept until the stop.
async fn watch(
    running: &mut JoinSet<Result<(), base::Fault>>, stop: &Shutdown, patience: Duration,
) -> Result<(), base::Fault> {
    while let Some(end) = stop.run_until_cancelled(running.join_next()).await.flatten() {
        end??;
    }
    stop.cancelled().await;
    let rest = async {
        while let Some(end) = running.join_next().await {
            end??;
        }
        Ok(())
    };
    tokio::time::timeout(patience, rest).await.unwrap_or_else(|_| {
        tracing::warn!("controllers have not ended in time");
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn controllers_that_end_early_keep_the_lead_and_one_that_fails_ends_all() {
        let stop = Shutdown::default();
        let mut running = JoinSet::new();
        running.spawn(async { Ok(()) });
        let mut end = std::pin::pin!(watch(&mut running, &stop, Duration::from_secs(60)));
        assert!(futures::poll!(end.as_mut()).is_pending());
        tokio::task::yield_now().await;
        assert!(futures::poll!(end.as_mut()).is_pending());
        stop.cancel();
        end.await.unwrap();
        let mut running = JoinSet::new();
        running.spawn(async { Err("no authority".into()) });
        running.spawn(std::future::pending());
        let end = watch(&mut running, &Shutdown::default(), Duration::from_secs(60)).await;
        assert_eq!(end.unwrap_err().to_string(), "no authority");
    }

    #[tokio::test]
    async fn a_controller_that_does_not_end_is_waited_for_no_longer_than_asked() {
        let (stop, mut running) = (Shutdown::default(), JoinSet::new());
        running.spawn(std::future::pending());
        stop.cancel();
        watch(&mut running, &stop, Duration::ZERO).await.unwrap();
    }
}

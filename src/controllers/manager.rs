//! The process: flags, the small HTTPS server, the lead, and the controllers of the table under it.

use crate::context::Context;
use crate::options::{self, Options};
use crate::table::{ABSENT, TABLE, enabled};
use base::flags::Exit;
use base::health::{Checks, Endpoints, check};
use client::leader::{Election, Lost};
use client::{Connection, Informers, Recorder};
use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::sync::Arc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

const NAME: &str = "kube-controller-manager";

/// Runs kube-controller-manager with this command line, which starts with the program's name.
pub fn main(args: Vec<OsString>) -> ExitCode {
    let options = match options::parse(args.into_iter().skip(1)) {
        Ok(options) => options,
        Err(Exit::Print(text)) => {
            print!("{text}");
            return ExitCode::SUCCESS;
        }
        Err(Exit::Refuse(why)) => {
            eprintln!("Error: {why}");
            return ExitCode::FAILURE;
        }
    };
    base::logging::init(options.flags.logging());
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("Error: unable to start: {error}");
            return ExitCode::FAILURE;
        }
    };
    let end = runtime.block_on(run(options));
    runtime.shutdown_background();
    match end {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(%error, "{NAME} ends");
            eprintln!("Error: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(options: Options) -> Result<(), base::Fault> {
    let stop = base::shutdown::on_signals()?;
    let kubeconfig = options.flags.path("kubeconfig");
    let connection = Connection::open(kubeconfig.as_deref(), NAME).await?;
    serve(&options, stop.clone()).await?;
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
    );
    let mut end = Ok(());
    let lead = election.lead(stop.clone(), async |term| end = controllers(&options, &connection, term).await).await;
    match lead {
        Err(Lost) => Err(Lost.into()),
        Ok(()) => end,
    }
}

async fn serve(options: &Options, stop: CancellationToken) -> Result<(), base::Fault> {
    let Ok(port) = u16::try_from(options.flags.int("secure-port")) else { return Err("invalid --secure-port".into()) };
    if port == 0 {
        return Ok(());
    }
    let flags = &options.flags;
    let identity = match (flags.path("tls-cert-file"), flags.path("tls-private-key-file")) {
        (Some(cert), Some(key)) => base::tls::Identity::from_files(base::tls::Files { cert, key })?,
        _ => base::tls::Identity::self_signed(&["localhost".into(), client::hostname()])?,
    };
    identity.keep_fresh(&stop);
    let authorities = flags.path("client-ca-file").map(base::tls::Authorities::load).transpose()?;
    if let Some(authorities) = &authorities {
        authorities.keep_fresh(&stop);
    }
    let reviewer = match flags.path("authentication-kubeconfig") {
        Some(path) => Some(Connection::open(Some(&path), NAME).await?),
        None => None,
    };
    let gate = client::gate::Delegated::new(reviewer.as_ref(), authorities.clone());
    let ask: Vec<_> = authorities.into_iter().collect();
    let tls = base::tls::server(identity, Some(&ask), &flags.tls_policy())?;
    let address = flags.ip("bind-address").unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    let listener = base::server::listen(SocketAddr::new(address, port), flags.switch("permit-port-sharing"))?;
    let healthz = Checks::default().with("leaderElection", check(async || Ok(())));
    let endpoints = Endpoints {
        healthz: healthz.clone(),
        livez: healthz.clone(),
        readyz: healthz,
        component: NAME,
        flags: flags.all(),
        metrics: true,
        gate: Some(gate),
        ..Endpoints::default()
    };
    let limits = base::server::Limits::default();
    tokio::spawn(base::server::serve(listener, Some(tls), limits, Arc::new(endpoints), stop));
    Ok(())
}

/// Runs the controllers until `stop`, or until one of them panics.
async fn controllers(
    options: &Arc<Options>, connection: &Connection, stop: CancellationToken,
) -> Result<(), base::Fault> {
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

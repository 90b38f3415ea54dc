//! `navarch up`, `down`, `certs`, `etcd`: the commands that begin, tend and end a cluster.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::cluster::settings::Settings;
use crate::cluster::{self, Context, Error, Layout, Result, down, kubeconfig, pki, snapshot, up};

/// A Kubernetes 1.36 cluster in one binary.
///
/// Called under the name of a component (kube-apiserver, kube-scheduler, kubelet …), or with it as the first argument,
/// it is that component, with upstream's flags.
#[derive(Debug, Parser)]
#[command(name = "navarch", version)]
struct Cli {
    #[command(subcommand)]
    command: Life,
}

#[derive(Debug, Subcommand)]
enum Life {
    Up(up::Args),
    Down(down::Args),
    /// Shows and renews certificates.
    Certs {
        #[command(subcommand)]
        command: Certs,
    },
    /// Tends etcd.
    Etcd {
        #[command(subcommand)]
        command: Etcd,
    },
}

#[derive(Debug, Subcommand)]
enum Certs {
    /// Shows when each certificate ends.
    CheckExpiration(Place),
    /// Issues all certificates and kubeconfigs anew; authorities stay. Components take the new files when they restart.
    Renew(Place),
}

#[derive(Debug, clap::Args)]
struct Place {
    /// Directory that holds all of the cluster's state.
    #[arg(long, default_value = "/var/lib/navarch")]
    dir: PathBuf,
}

#[derive(Debug, Subcommand)]
enum Etcd {
    /// Saves and restores all that is stored.
    Snapshot {
        #[command(subcommand)]
        command: Snapshot,
    },
}

#[derive(Debug, Subcommand)]
enum Snapshot {
    /// Writes all that is stored into a file.
    Save(snapshot::Args),
    /// Brings back what a file holds; everything stored since is gone, and every client lists again.
    Restore(snapshot::RestoreArgs),
}

/// Runs a command of the cluster's life.
pub fn main(args: Vec<OsString>) -> ExitCode {
    let cli = Cli::parse_from(args);
    // Both of rustls' users in this program must find the same provider.
    base::tls::install();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&Error::new("starting", error)),
    };
    match runtime.block_on(run(cli.command)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error),
    }
}

fn fail(error: &Error) -> ExitCode {
    eprintln!("navarch: {error}");
    ExitCode::FAILURE
}

async fn run(command: Life) -> Result<()> {
    match command {
        Life::Up(args) => up::run(args).await,
        Life::Down(args) => down::run(args).await,
        Life::Certs { command: Certs::CheckExpiration(place) } => check_expiration(&place),
        Life::Certs { command: Certs::Renew(place) } => renew(&place),
        Life::Etcd { command: Etcd::Snapshot { command: Snapshot::Save(args) } } => snapshot::save(args).await,
        Life::Etcd { command: Etcd::Snapshot { command: Snapshot::Restore(args) } } => snapshot::restore(args).await,
    }
}

fn layout(place: &Place) -> Result<Layout> {
    Layout::new(&place.dir).context("finding the state directory")
}

fn check_expiration(place: &Place) -> Result<()> {
    println!("{:<28}EXPIRES", "CERTIFICATE");
    for (name, end) in pki::expiries(&layout(place)?) {
        println!("{name:<28}{}", end.map_or_else(|| "missing".to_string(), |end| end.to_string()));
    }
    Ok(())
}

fn renew(place: &Place) -> Result<()> {
    let layout = layout(place)?;
    let settings = cluster::settings::need(&layout)?;
    renew_all(&layout, &settings)?;
    println!("renewed; components take the new files when they restart");
    Ok(())
}

fn renew_all(layout: &Layout, settings: &Settings) -> Result<()> {
    pki::renew(layout, &settings.names())?;
    kubeconfig::ensure(layout, &settings.server(), &settings.names(), true)
}

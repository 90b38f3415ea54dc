//! `navarch etcd snapshot`: all that is stored, into a file and back.
//!
//! A restored etcd would count its revisions from where the snapshot left off, and clients that had seen later ones would
//! wait for ever or miss what happened. So a restore goes on counting behind the last revision anybody saw, and compacts
//! what is before it: every watcher is told to list again.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use serde_json::Value;
use store::{Expect, Store};

use super::settings::{self, Settings};
use super::{Context, Error, Layout, Progress, Result};
use super::{apply, control_plane, images, manifests, ports, process, succeed};

/// A snapshot's file, and the cluster it belongs to.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The file.
    file: PathBuf,
    /// Directory that holds all of the cluster's state.
    #[arg(long, default_value = "/var/lib/navarch")]
    dir: PathBuf,
}

/// Revisions that are skipped when nobody can say how far the lost etcd had come.
const UNKNOWN_GAP: i64 = 10_000;
/// Writes under way at once while revisions are skipped.
const AT_ONCE: usize = 256;
/// The key that is written to skip revisions.
const SKIP_KEY: &str = "/navarch/restore";

fn etcdctl(layout: &Layout, settings: &Settings) -> Result<Command> {
    let pki = layout.pki().join("etcd");
    let mut command = Command::new(images::need("etcdctl")?);
    command
        .env("ETCDCTL_API", "3")
        .arg(format!("--endpoints=https://127.0.0.1:{}", settings.etcd_port))
        .arg(format!("--cacert={}", pki.join("ca.crt").display()))
        .arg(format!("--cert={}", pki.join("healthcheck-client.crt").display()))
        .arg(format!("--key={}", pki.join("healthcheck-client.key").display()));
    Ok(command)
}

/// Saves a snapshot.
///
/// # Errors
/// When etcd does not answer or the file can't be written.
pub async fn save(args: Args) -> Result<()> {
    let layout = Layout::new(&args.dir).context("finding the state directory")?;
    let settings = settings::need(&layout)?;
    succeed("saving a snapshot", etcdctl(&layout, &settings)?.args(["snapshot", "save"]).arg(&args.file))?;
    let size = fs::metadata(&args.file).context("looking at the snapshot")?.len();
    println!("saved {size} bytes to {}", args.file.display());
    Ok(())
}

/// The revision etcd is at, when it answers.
fn revision(layout: &Layout, settings: &Settings) -> Option<i64> {
    let mut command = etcdctl(layout, settings).ok()?;
    let output = succeed("asking etcd", command.args(["endpoint", "status", "--write-out=json"])).ok()?;
    let status: Value = serde_json::from_slice(&output.stdout).ok()?;
    status.pointer("/0/Status/header/revision")?.as_i64()
}

/// The revision a snapshot was taken at.
fn snapshot_revision(file: &Path) -> Result<i64> {
    let what = format!("reading {}", file.display());
    let mut command = Command::new(images::need("etcdctl")?);
    command.env("ETCDCTL_API", "3").args(["snapshot", "status", "--write-out=json"]).arg(file);
    let output = succeed(&what, &mut command)?;
    let status: Value = serde_json::from_slice(&output.stdout).context(&what)?;
    status["revision"].as_i64().ok_or_else(|| Error::new(what, "it names no revision"))
}

/// Restores a snapshot.
///
/// # Errors
/// The first step that did not succeed. Until etcd is replaced everything is as it was; what etcd held before is kept
/// beside its new data.
pub async fn restore(args: Args) -> Result<()> {
    let layout = Layout::new(&args.dir).context("finding the state directory")?;
    let settings = settings::need(&layout)?;
    let progress = Progress::start();
    let taken = snapshot_revision(&args.file)?;
    let reached = revision(&layout, &settings).unwrap_or(taken + UNKNOWN_GAP).max(taken);
    let fresh = layout.path("etcd-restored");
    unpack(&layout, &settings, &args.file, &fresh)?;
    progress.step(format!("unpacked the snapshot, which was taken at revision {taken}"));

    stop(&layout, &settings)?;
    progress.step("the control plane has stopped");
    let old = swap(&layout, &fresh)?;
    progress.step(format!("etcd has its new data; what it held is in {}", old.display()));

    start_etcd(&layout, &settings)?;
    skip(&layout, &settings, reached).await?;
    progress.step(format!("etcd counts on behind revision {reached}"));
    start_rest(&layout, &settings)?;
    let client = apply::client(&layout.kubeconfig("super-admin")).await?;
    apply::wait_ready(&client, "/readyz", Duration::from_secs(120)).await?;
    progress.step("the API server is ready");
    Ok(())
}

fn unpack(layout: &Layout, settings: &Settings, file: &Path, fresh: &Path) -> Result<()> {
    if fresh.exists() {
        fs::remove_dir_all(fresh).context(format!("removing {}", fresh.display()))?;
    }
    let peer = match settings.control_plane_only {
        true => format!("https://127.0.0.1:{}", settings.etcd_peer_port),
        false => format!("https://{}:{}", settings.advertise, settings.etcd_peer_port),
    };
    let mut command = etcdctl(layout, settings)?;
    command
        .args(["snapshot", "restore"])
        .arg(file)
        .arg(format!("--data-dir={}", fresh.display()))
        .arg(format!("--name={}", settings.node))
        .arg(format!("--initial-cluster={}={peer}", settings.node))
        .arg(format!("--initial-advertise-peer-urls={peer}"));
    succeed("unpacking the snapshot", &mut command).map(drop)
}

/// Where static pods wait while they must not run.
fn parked(layout: &Layout, name: &str) -> PathBuf {
    layout.path("kubernetes/parked").join(format!("{name}.yaml"))
}

fn active(layout: &Layout, name: &str) -> PathBuf {
    layout.manifests().join(format!("{name}.yaml"))
}

fn stop(layout: &Layout, settings: &Settings) -> Result<()> {
    if settings.control_plane_only {
        for name in
            [control_plane::SCHEDULER, control_plane::CONTROLLER_MANAGER, control_plane::APISERVER, control_plane::ETCD]
        {
            process::stop(layout, name, Duration::from_secs(20));
        }
        return Ok(());
    }
    fs::create_dir_all(layout.path("kubernetes/parked")).context("parking the static pods")?;
    for (name, _) in manifests::STATIC {
        if active(layout, name).exists() {
            fs::rename(active(layout, name), parked(layout, name)).context(format!("parking {name}"))?;
        }
    }
    let ports = [settings.port, settings.etcd_port, settings.controller_manager_port, settings.scheduler_port];
    match process::wait_until(Duration::from_secs(90), || ports.into_iter().all(ports::is_free)) {
        true => Ok(()),
        false => Err(Error::new("stopping the control plane", "the kubelet does not take it down; does it run?")),
    }
}

fn swap(layout: &Layout, fresh: &Path) -> Result<PathBuf> {
    let now = jiff::Timestamp::now().as_second();
    let old = layout.path(&format!("etcd-before-{now}"));
    if layout.etcd().exists() {
        fs::rename(layout.etcd(), &old).context("putting etcd's data aside")?;
    }
    fs::rename(fresh, layout.etcd()).context("putting the snapshot in place")?;
    Ok(old)
}

fn unpark(layout: &Layout, name: &str) -> Result<()> {
    fs::rename(parked(layout, name), active(layout, name)).context(format!("starting {name}"))
}

fn start_etcd(layout: &Layout, settings: &Settings) -> Result<()> {
    match settings.control_plane_only {
        true => control_plane::start(layout, settings, control_plane::ETCD),
        false => unpark(layout, "etcd"),
    }
}

fn start_rest(layout: &Layout, settings: &Settings) -> Result<()> {
    let rest = [control_plane::APISERVER, control_plane::CONTROLLER_MANAGER, control_plane::SCHEDULER];
    match settings.control_plane_only {
        // The others were running only when somebody asked for them; `up` starts them again.
        true => control_plane::start(layout, settings, control_plane::APISERVER),
        false => rest.iter().try_for_each(|name| unpark(layout, name)),
    }
}

/// Writes until etcd is behind a revision, and compacts what is before.
async fn skip(layout: &Layout, settings: &Settings, until: i64) -> Result<()> {
    let what = "counting on";
    let pki = layout.pki().join("etcd");
    let options = store::etcd::Options {
        endpoints: vec![format!("https://127.0.0.1:{}", settings.etcd_port)],
        ca: Some(pki.join("ca.crt")),
        identity: Some((pki.join("healthcheck-client.crt"), pki.join("healthcheck-client.key"))),
        compaction: Duration::ZERO,
        observer: None,
    };
    let etcd: Arc<dyn Store> = store::etcd::Etcd::connect(options).await.context(what)?;
    let mut at = wait_revision(&*etcd).await?;
    while at <= until {
        let batch = (until - at + 1).min(AT_ONCE as i64 * 16);
        let numbers = futures::stream::iter(0..batch);
        let writes = numbers.map(|n| write_once(etcd.clone(), n as usize % AT_ONCE)).buffer_unordered(AT_ONCE);
        writes.try_for_each(|()| std::future::ready(Ok(()))).await.context(what)?;
        at = etcd.revision().await.context(what)?;
    }
    let mut command = etcdctl(layout, settings)?;
    succeed(what, command.args(["del", "--prefix", SKIP_KEY]))?;
    let last = etcd.revision().await.context(what)?;
    succeed(what, etcdctl(layout, settings)?.args(["compact", &last.to_string()])).map(drop)
}

/// Makes one revision; losing a race on the key makes none, which the caller sees by the revision.
async fn write_once(etcd: Arc<dyn Store>, slot: usize) -> store::Result<()> {
    let key = format!("{SKIP_KEY}/{slot}");
    let expect = match etcd.get(&key).await?.0 {
        Some(found) => Expect::At(found.mod_revision),
        None => Expect::Absent,
    };
    match etcd.put(&key, Bytes::from_static(b"skip"), expect, 0).await {
        Ok(_) | Err(store::Error::Conflict(_)) => Ok(()),
        Err(error) => Err(error),
    }
}

async fn wait_revision(etcd: &dyn Store) -> Result<i64> {
    let mut last = Error::new("waiting for etcd", "no answer");
    for _ in 0..600 {
        match etcd.revision().await {
            Ok(revision) => return Ok(revision),
            Err(error) => last = Error::new("waiting for etcd", error),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Err(last)
}

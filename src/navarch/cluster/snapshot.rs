//! `navarch etcd snapshot`: all that is stored, into a file and back.
//!
//! A restored etcd would count its revisions from where the snapshot left off, and clients that had seen later ones would
//! wait for ever or miss what happened. So a restore goes on counting behind the last revision anybody saw, and compacts
//! what is before it: every watcher is told to list again. All that happens to data that nobody uses yet:
//!
//! ```text
//!   unpack ─► stop the API server's side ─► ask etcd how far it came ─► stop etcd
//!     ─► an etcd over the new data: count on, compact ─► swap the directories ─► start
//! ```
//! Until the swap, whatever breaks off leaves the cluster as it was; `up` starts it again.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use jiff::Timestamp;
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

/// A snapshot to restore.
#[derive(Debug, clap::Args)]
pub struct RestoreArgs {
    /// The snapshot.
    #[command(flatten)]
    snapshot: Args,
    /// Revisions to skip when the etcd that is replaced can't say how far it had come. It must be more than were made
    /// since the snapshot; by default ten for each second since its newest lease was renewed, and at least 10000.
    #[arg(long)]
    skip_revisions: Option<i64>,
}

/// Revisions that are skipped at least when nobody can say how far the lost etcd had come.
const UNKNOWN_GAP: i64 = 10_000;
/// Revisions that a busy cluster makes in a second.
const BUSY: i64 = 10;
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

/// How many revisions are skipped when the lost etcd can't be asked: enough for a busy cluster since the time at which
/// the snapshot's own objects end.
fn gap(asked: Option<i64>, newest: Option<Timestamp>, now: Timestamp) -> i64 {
    let age = newest.map_or(0, |newest| now.duration_since(newest).as_secs());
    asked.unwrap_or(age.saturating_mul(BUSY)).max(UNKNOWN_GAP)
}

/// The last renewal of a lease: in a cluster that lives there is one every few seconds.
async fn newest_renewal(etcd: &dyn Store) -> Result<Option<Timestamp>> {
    let leases = etcd.list("/registry/leases/", "", 0, 0).await.context("reading the leases")?;
    let renewed = |lease: &store::KeyValue| {
        let lease: Value = serde_json::from_slice(&lease.value).ok()?;
        lease["spec"]["renewTime"].as_str()?.parse::<Timestamp>().ok()
    };
    Ok(leases.items.iter().filter_map(renewed).max())
}

/// An etcd over a directory of data that nobody else uses, on ports of its own.
struct Aside<'a> {
    layout: &'a Layout,
    settings: Settings,
}

/// Its name on record.
const ASIDE: &str = "etcd-aside";

impl<'a> Aside<'a> {
    fn start(layout: &'a Layout, settings: &Settings, data: &Path) -> Result<Self> {
        let settings = Settings {
            etcd_port: ports::any()?,
            etcd_peer_port: ports::any()?,
            etcd_metrics_port: ports::any()?,
            ..settings.clone()
        };
        process::start(layout, ASIDE, &mut control_plane::etcd(layout, data, &settings)?)?;
        Ok(Self { layout, settings })
    }
}

impl Drop for Aside<'_> {
    fn drop(&mut self) {
        process::stop(self.layout, ASIDE, Duration::from_secs(20));
    }
}

/// The revision that data had come to whose etcd is gone.
async fn revision_of(layout: &Layout, settings: &Settings, data: &Path) -> Result<i64> {
    if !data.join("member").exists() {
        return Err(Error::new("asking etcd", "it does not answer, and its data is gone"));
    }
    let aside = Aside::start(layout, settings, data)?;
    let etcd = connect(layout, &aside.settings).await?;
    wait_revision(&*etcd, Duration::from_secs(20)).await
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
/// The first step that did not succeed. Until etcd's data is swapped nothing is lost; what etcd held before is kept beside
/// its new data.
pub async fn restore(args: RestoreArgs) -> Result<()> {
    let RestoreArgs { snapshot: Args { file, dir }, skip_revisions } = args;
    let layout = Layout::new(&dir).context("finding the state directory")?;
    let settings = settings::need(&layout)?;
    let progress = Progress::start();
    let taken = snapshot_revision(&file)?;
    let fresh = layout.path("etcd-restored");
    unpack(&layout, &settings, &file, &fresh)?;
    progress.step(format!("unpacked the snapshot, which was taken at revision {taken}"));

    stop(&layout, &settings, &CLIENTS)?;
    let asked = revision(&layout, &settings);
    stop(&layout, &settings, &[control_plane::ETCD])?;
    progress.step("the control plane has stopped");
    let known = match asked {
        Some(revision) => Some(revision),
        None => match revision_of(&layout, &settings, &layout.etcd()).await {
            Ok(revision) => Some(revision),
            Err(error) => {
                progress.step(format!("nobody can say how far etcd had come: {error}"));
                None
            }
        },
    };
    let reached = count_on(&layout, &settings, &fresh, known, taken, skip_revisions).await?;
    progress.step(format!("the new data counts on behind revision {reached}"));

    let old = swap(&layout, &fresh)?;
    progress.step(format!("etcd has its new data; what it held is in {}", old.display()));
    start(&layout, &settings)?;
    let client = apply::client(&layout.kubeconfig("super-admin")).await?;
    apply::wait_ready(&client, "/readyz", Duration::from_secs(120)).await?;
    progress.step("the API server is ready");
    Ok(())
}

/// What asks etcd, or asks who asks etcd: stopped before it.
const CLIENTS: [&str; 3] = [control_plane::SCHEDULER, control_plane::CONTROLLER_MANAGER, control_plane::APISERVER];

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

fn port(settings: &Settings, name: &str) -> u16 {
    match name {
        control_plane::ETCD => settings.etcd_port,
        control_plane::APISERVER => settings.port,
        control_plane::CONTROLLER_MANAGER => settings.controller_manager_port,
        _ => settings.scheduler_port,
    }
}

fn stop(layout: &Layout, settings: &Settings, names: &[&str]) -> Result<()> {
    if settings.control_plane_only {
        names.iter().for_each(|name| process::stop(layout, name, Duration::from_secs(20)));
        return Ok(());
    }
    fs::create_dir_all(layout.path("kubernetes/parked")).context("parking the static pods")?;
    for name in names.iter().filter(|name| active(layout, name).exists()) {
        fs::rename(active(layout, name), parked(layout, name)).context(format!("parking {name}"))?;
    }
    let free = || names.iter().all(|name| ports::is_free(port(settings, name)));
    match process::wait_until(Duration::from_secs(90), free) {
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

/// Starts what was stopped.
fn start(layout: &Layout, settings: &Settings) -> Result<()> {
    let names = [control_plane::ETCD, control_plane::APISERVER];
    match settings.control_plane_only {
        true => names
            .into_iter()
            .chain(control_plane::chosen(settings))
            .try_for_each(|name| control_plane::start(layout, settings, name)),
        false => manifests::STATIC.iter().try_for_each(|(name, _)| unpark(layout, name)),
    }
}

async fn connect(layout: &Layout, settings: &Settings) -> Result<Arc<dyn Store>> {
    let pki = layout.pki().join("etcd");
    let options = store::etcd::Options {
        endpoints: vec![format!("https://127.0.0.1:{}", settings.etcd_port)],
        ca: Some(pki.join("ca.crt")),
        identity: Some((pki.join("healthcheck-client.crt"), pki.join("healthcheck-client.key"))),
        compaction: Duration::ZERO,
        observer: None,
    };
    Ok(store::etcd::Etcd::connect(options).await.context("connecting to etcd")?)
}

/// Writes to data that nobody uses until it is behind the revision that was reached, and compacts what is before.
/// Returns that revision.
async fn count_on(
    layout: &Layout, settings: &Settings, data: &Path, known: Option<i64>, taken: i64, skip: Option<i64>,
) -> Result<i64> {
    let what = "counting on";
    let aside = Aside::start(layout, settings, data)?;
    let etcd = connect(layout, &aside.settings).await?;
    let mut at = wait_revision(&*etcd, Duration::from_secs(60)).await?;
    let until = match known {
        Some(revision) => revision.max(taken),
        None => taken + gap(skip, newest_renewal(&*etcd).await?, Timestamp::now()),
    };
    while at <= until {
        let batch = (until - at + 1).min(AT_ONCE as i64 * 16);
        let numbers = futures::stream::iter(0..batch);
        let writes = numbers.map(|n| write_once(etcd.clone(), n as usize % AT_ONCE)).buffer_unordered(AT_ONCE);
        writes.try_for_each(|()| std::future::ready(Ok(()))).await.context(what)?;
        at = etcd.revision().await.context(what)?;
    }
    let mut command = etcdctl(layout, &aside.settings)?;
    succeed(what, command.args(["del", "--prefix", SKIP_KEY]))?;
    let last = etcd.revision().await.context(what)?;
    succeed(what, etcdctl(layout, &aside.settings)?.args(["compact", &last.to_string()]))?;
    Ok(until)
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

async fn wait_revision(etcd: &dyn Store, patience: Duration) -> Result<i64> {
    let end = tokio::time::Instant::now() + patience;
    loop {
        match etcd.revision().await {
            Ok(revision) => return Ok(revision),
            Err(error) if tokio::time::Instant::now() > end => return Err(Error::new("waiting for etcd", error)),
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unknown_is_skipped_generously() {
        let now: Timestamp = "2026-01-02T00:00:00Z".parse().unwrap();
        assert_eq!(gap(None, None, now), UNKNOWN_GAP);
        assert_eq!(gap(Some(1_000_000), Some(now), now), 1_000_000);
        assert_eq!(gap(None, Some("2026-01-01T00:00:00Z".parse().unwrap()), now), 864_000);
    }
}

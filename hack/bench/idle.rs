//! What it costs to do nothing: memory, CPU and requests to etcd of an API server alone, and of a cluster.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::cluster::Cluster;
use crate::etcd::{self, Etcd};
use crate::figure::Figure;
use crate::pki::Pki;
use crate::process::{self, Found, OURS};
use crate::server::{Folder, Server};
use crate::{Result, Settings};

/// The cgroup below which a whole cluster keeps its pods.
const CGROUP: &str = "navarch";

/// The API server alone.
///
/// # Errors
/// When it does not start, or ends.
pub async fn alone(settings: &Settings) -> Result<Vec<Figure>> {
    let folder = Folder::new()?;
    let pki = Pki::make(&folder.path().join("pki"))?;
    let etcd = Etcd::start(&settings.etcd, folder.path()).await?;
    let server = Server::start(settings, &etcd, &pki, &folder.path().join("server.log")).await?;
    tokio::time::sleep(Duration::from_secs(settings.settle)).await;
    let held = process::memory(server.pid());
    if held.resident == 0.0 {
        return Err("the server ended".into());
    }
    let how =
        format!("/proc/PID/status and smaps_rollup, {} s after it was ready, nothing asked since", settings.settle);
    let mut figures = vec![
        Figure::new("resident memory, idle", "MiB", vec![held.resident], &how).at_most(30.0),
        Figure::new("proportional (Pss)", "MiB", vec![held.proportional], &how),
        Figure::new("of it backed by no file", "MiB", vec![held.anonymous], &how),
        Figure::new("peak since the start", "MiB", vec![held.peak], &how),
        Figure::new("threads", "", vec![process::threads(server.pid())], &how),
    ];
    let found =
        [Found { pid: server.pid(), name: "kube-apiserver".into() }, Found { pid: etcd.pid(), name: "etcd".into() }];
    figures.extend(watch(&found, etcd.metrics_port(), settings.seconds).await?);
    Ok(figures)
}

/// Every component of a cluster: that of `--dir`, or else a control plane with scheduler and controller-manager.
///
/// # Errors
/// When there is none, or it does not start.
pub async fn cluster(settings: &Settings) -> Result<Vec<Figure>> {
    if let Some(dir) = &settings.dir {
        return of(&std::path::absolute(dir)?, settings).await;
    }
    let cluster = Cluster::control_plane(settings, &["--scheduler", "--controller-manager"]).await?;
    tokio::time::sleep(Duration::from_secs(settings.settle)).await;
    of(cluster.dir(), settings).await
}

async fn of(dir: &Path, settings: &Settings) -> Result<Vec<Figure>> {
    let text = std::fs::read(dir.join("cluster.json")).map_err(|e| format!("no cluster in {}: {e}", dir.display()))?;
    let cluster: serde_json::Value = serde_json::from_slice(&text)?;
    let port = cluster["etcd_metrics_port"].as_u64().and_then(|p| u16::try_from(p).ok());
    let port = port.ok_or("cluster.json does not say where etcd's metrics are")?;
    // A control plane of plain processes has no cgroup of its own; that of a whole cluster beside it is not meant.
    let cgroup = (cluster["control_plane_only"] != true).then_some(CGROUP);
    let found = process::of_cluster(dir, cgroup);
    let mut figures = watch(&found, port, settings.seconds).await?;
    for (name, pids) in by_name(&found) {
        let resident: f64 = pids.iter().map(|pid| process::memory(*pid).resident).sum();
        figures.push(Figure::new(format!("resident memory of {name}"), "MiB", vec![resident], "/proc/PID/status"));
    }
    Ok(figures)
}

fn by_name(found: &[Found]) -> BTreeMap<&str, Vec<u32>> {
    let mut names: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
    for process in found {
        names.entry(&process.name).or_default().push(process.pid);
    }
    names
}

/// Watches processes and etcd for some time.
async fn watch(found: &[Found], metrics_port: u16, seconds: u64) -> Result<Vec<Figure>> {
    let used = |pids: &[u32]| pids.iter().map(|pid| process::cpu(*pid).unwrap_or(0.0)).sum::<f64>();
    let woken = |pids: &[u32]| pids.iter().map(|pid| process::wakeups(*pid)).sum::<f64>();
    let names = by_name(found);
    let begin = Instant::now();
    let before: Vec<(f64, f64)> = names.values().map(|pids| (used(pids), woken(pids))).collect();
    let requests = etcd::requests(metrics_port).await?;
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    let after: Vec<(f64, f64)> = names.values().map(|pids| (used(pids), woken(pids))).collect();
    let length = begin.elapsed().as_secs_f64();
    let requested = etcd::requests(metrics_port).await?;
    if let Some(gone) = found.iter().find(|f| process::cpu(f.pid).is_none()) {
        return Err(format!("{} ended meanwhile", gone.name).into());
    }
    let how = format!("user and system time over {seconds} s (/proc/PID/stat), in percent of one processor");
    let mut figures = Vec::new();
    let mut together = 0.0;
    for ((name, _), (before, after)) in names.iter().zip(before.iter().zip(&after)) {
        let share = (after.0 - before.0) / length * 100.0;
        let wakeups = (after.1 - before.1) / length;
        if OURS.contains(name) {
            together += share;
        }
        figures.push(Figure::new(
            format!("idle CPU of {name}"),
            "%",
            vec![share],
            format!("{how}; {wakeups:.1} wake-ups a second"),
        ));
    }
    figures.push(Figure::new("idle CPU of our components together", "%", vec![together], how).at_most(1.0));
    figures.push(rate(&requests, &requested, length));
    Ok(figures)
}

/// Requests to etcd by method; the two questions for the metrics are none of them.
fn rate(before: &BTreeMap<String, f64>, after: &BTreeMap<String, f64>, length: f64) -> Figure {
    let grown = |(method, count): (&String, &f64)| {
        let more = count - before.get(method).copied().unwrap_or(0.0);
        (more > 0.0).then(|| (method.clone(), more))
    };
    let grown: Vec<(String, f64)> = after.iter().filter_map(grown).collect();
    let parts: Vec<String> = grown.iter().map(|(method, more)| format!("{method} {more}")).collect();
    let total: f64 = grown.iter().map(|(_, more)| more).sum();
    let how = format!("grpc_server_handled_total of etcd over {length:.0} s: {}", parts.join(", "));
    Figure::new("requests to etcd", "per s", vec![total / length], how)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_from_the_first_look_on() {
        let before = BTreeMap::from([("Range".to_string(), 10.0), ("Txn".to_string(), 4.0)]);
        let after = BTreeMap::from([("Range".to_string(), 40.0), ("Txn".to_string(), 4.0), ("Put".to_string(), 30.0)]);
        let figure = rate(&before, &after, 60.0);
        assert_eq!(figure.samples, [1.0]);
        assert!(figure.how.ends_with("Put 30, Range 30"), "{}", figure.how);
    }
}

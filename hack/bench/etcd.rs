//! An etcd of a bench's own, and what any etcd says of the requests it had.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::Result;
use crate::http::Connection;
use crate::process::Process;
use crate::server::free_port;

/// How long it may take to come up.
const PATIENCE: Duration = Duration::from_secs(30);

/// A running etcd.
pub struct Etcd {
    process: Process,
    port: u16,
}

impl Etcd {
    /// Starts one on the data in a folder, and waits until it has a leader.
    ///
    /// # Errors
    /// When it does not come up.
    pub async fn start(program: &Path, dir: &Path) -> Result<Self> {
        std::fs::create_dir_all(dir)?;
        let (port, peer) = (free_port()?, free_port()?);
        let (client, peer) = (format!("http://127.0.0.1:{port}"), format!("http://127.0.0.1:{peer}"));
        let mut command = Command::new(program);
        command
            .args(["--name", "bench", "--logger", "zap", "--log-level", "warn"])
            .arg("--data-dir")
            .arg(dir.join("data"));
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.args(["--initial-cluster", &format!("bench={peer}")]);
        let mut etcd = Self { process: Process::start("etcd", &mut command, &dir.join("etcd.log"))?, port };
        let end = Instant::now() + PATIENCE;
        while !healthy(port).await {
            etcd.process.check()?;
            if Instant::now() > end {
                return Err("etcd does not come up".into());
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(etcd)
    }

    /// Where it listens.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// The port of its metrics.
    pub fn metrics_port(&self) -> u16 {
        self.port
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }
}

async fn healthy(port: u16) -> bool {
    let Ok(mut connection) = Connection::open(port, None).await else { return false };
    connection.get("/health").await.is_ok_and(|(status, body)| status == 200 && body.windows(4).any(|w| w == b"true"))
}

/// Requests that an etcd has answered so far, by method. A stream (watch) counts when it ends.
///
/// # Errors
/// When it does not tell.
pub async fn requests(metrics_port: u16) -> Result<BTreeMap<String, f64>> {
    let (status, body) = Connection::open(metrics_port, None).await?.get("/metrics").await?;
    if status != 200 {
        return Err(format!("etcd's /metrics: {status}").into());
    }
    Ok(handled(&String::from_utf8_lossy(&body)))
}

fn handled(text: &str) -> BTreeMap<String, f64> {
    let mut counts = BTreeMap::new();
    for line in text.lines().filter_map(|l| l.strip_prefix("grpc_server_handled_total{")) {
        let Some((labels, value)) = line.rsplit_once("} ") else { continue };
        let method = labels.split(',').find_map(|l| l.strip_prefix("grpc_method=\"")).unwrap_or_default();
        *counts.entry(method.trim_end_matches('"').to_string()).or_default() += value.parse().unwrap_or(0.0);
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_summed_by_method() {
        let text = "# HELP x\ngrpc_server_handled_total{grpc_code=\"OK\",grpc_method=\"Range\",grpc_service=\"etcdserverpb.KV\"} 5\n\
            grpc_server_handled_total{grpc_code=\"Aborted\",grpc_method=\"Range\",grpc_service=\"etcdserverpb.KV\"} 2\nother 1\n";
        assert_eq!(handled(text), BTreeMap::from([("Range".to_string(), 7.0)]));
    }
}

//! One measure: operations by several clients at once, what each took, and what they cost the processes involved.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use serde_json::json;

use super::rig::Rig;
use crate::Result;
use crate::figure::Figure;
use crate::process;

/// What so many operations cost.
#[derive(Debug, Clone, Default)]
pub struct Cost {
    /// Operations that succeeded.
    pub operations: usize,
    /// Those that failed, and events that were lost.
    pub errors: usize,
    /// The first failure.
    pub first_error: Option<String>,
    /// Time that it took in all.
    pub wall: Duration,
    /// What single operations took, sorted.
    pub latencies: Vec<Duration>,
    /// Bytes of the answers.
    pub bytes: usize,
    /// CPU seconds of the server, of etcd, and of this program.
    pub cpu: [f64; 3],
    /// Resident memory of the server in MiB: before, and the most meanwhile.
    pub resident: [f64; 2],
    /// What one operation is, where that is not a request.
    pub unit: Option<&'static str>,
    /// Further numbers, with their units.
    pub more: Vec<(String, f64, &'static str)>,
}

/// What the processes have used so far.
pub struct Meter<'a> {
    rig: &'a Rig,
    start: Instant,
    cpu: [f64; 3],
    resident: f64,
}

impl<'a> Meter<'a> {
    /// Starts the clock.
    pub fn start(rig: &'a Rig) -> Self {
        let resident = process::memory(rig.server_pid()).resident;
        // The most so far counts from here on.
        let _ = std::fs::write(format!("/proc/{}/clear_refs", rig.server_pid()), "5");
        Self { rig, start: Instant::now(), cpu: rig.cpu(), resident }
    }

    /// Stops it.
    pub fn stop(self) -> Cost {
        let wall = self.start.elapsed();
        let now = self.rig.cpu();
        let cpu = [0, 1, 2].map(|n| now[n] - self.cpu[n]);
        let resident = [self.resident, process::memory(self.rig.server_pid()).peak];
        Cost { wall, cpu, resident, ..Cost::default() }
    }
}

/// An operation: its number, and how many bytes came.
pub type Operation = Arc<dyn Fn(usize) -> BoxFuture<'static, Result<usize>> + Send + Sync>;

/// How much is done.
#[derive(Clone, Copy, Debug)]
pub struct Volume {
    /// Clients at once.
    pub clients: usize,
    /// Operations at most.
    pub operations: usize,
    /// And no longer than this.
    pub time: Duration,
}

impl Volume {
    /// So many operations.
    pub const fn count(clients: usize, operations: usize) -> Self {
        Self { clients, operations, time: Duration::from_secs(600) }
    }

    /// As many as there are in so many seconds.
    pub const fn seconds(clients: usize, seconds: u64) -> Self {
        Self { clients, operations: usize::MAX, time: Duration::from_secs(seconds) }
    }
}

/// Runs an operation again and again.
pub async fn run(rig: &Rig, volume: Volume, operation: Operation) -> Cost {
    let next = Arc::new(AtomicUsize::new(0));
    let meter = Meter::start(rig);
    let end = Instant::now() + volume.time;
    let clients = (0..volume.clients).map(|_| {
        let (next, operation) = (next.clone(), operation.clone());
        tokio::spawn(async move {
            let mut own = Cost::default();
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= volume.operations || Instant::now() >= end {
                    return own;
                }
                let start = Instant::now();
                match operation(number).await {
                    Ok(bytes) => {
                        own.bytes += bytes;
                        own.latencies.push(start.elapsed());
                    }
                    Err(error) => {
                        own.errors += 1;
                        own.first_error.get_or_insert_with(|| error.to_string());
                    }
                }
            }
        })
    });
    let parts = futures::future::join_all(clients).await;
    let mut cost = meter.stop();
    for part in parts.into_iter().flatten() {
        cost.bytes += part.bytes;
        cost.errors += part.errors;
        cost.latencies.extend(part.latencies);
        cost.first_error = cost.first_error.or(part.first_error);
    }
    cost.operations = cost.latencies.len();
    cost.latencies.sort();
    cost
}

impl Cost {
    fn each(&self, seconds: f64) -> f64 {
        seconds * 1e3 / self.operations.max(1) as f64
    }

    fn percentile(&self, hundredths: usize) -> f64 {
        let at = (self.latencies.len() * hundredths / 100).min(self.latencies.len().saturating_sub(1));
        self.latencies.get(at).map_or(f64::NAN, |latency| latency.as_secs_f64() * 1e3)
    }

    /// For people: CPU of the server for each operation, and all the rest.
    pub fn line(&self, name: &str, goal: Option<f64>) -> String {
        let [server, etcd, client] = self.cpu.map(|seconds| self.each(seconds));
        let verdict = goal.map_or_else(String::new, |goal| {
            format!(" (at most {goal}: {})", if server <= goal { "holds" } else { "MISSED" })
        });
        let rate = self.operations as f64 / self.wall.as_secs_f64();
        let size = self.bytes as f64 / self.operations.max(1) as f64 / 1e3;
        let unit = self.unit.unwrap_or("op");
        let mut line = format!(
            "{name:<44} {server:>9.4} ms/{unit}{verdict}; etcd {etcd:.4}, client {client:.4}; {rate:.0}/s, p50 {:.2} ms, p99 {:.2} ms, {size:.1} kB; RSS {:.0} to {:.0} MiB",
            self.percentile(50),
            self.percentile(99),
            self.resident[0],
            self.resident[1],
        );
        for (what, value, unit) in &self.more {
            line += &format!("; {what} {value:.2} {unit}");
        }
        if self.errors > 0 {
            line += &format!("; {} FAILED: {}", self.errors, self.first_error.as_deref().unwrap_or_default());
        }
        line
    }

    /// For programs.
    pub fn figures(&self, name: &str, goal: Option<f64>) -> Vec<Figure> {
        let [server, etcd, client] = self.cpu.map(|seconds| self.each(seconds));
        let how = json!({"operations": self.operations, "errors": self.errors, "seconds": self.wall.as_secs_f64(),
            "p50_ms": self.percentile(50), "p99_ms": self.percentile(99), "bytes": self.bytes, "etcd_cpu_ms": etcd,
            "client_cpu_ms": client, "rss_before_mib": self.resident[0], "rss_peak_mib": self.resident[1]})
        .to_string();
        let mut figure = Figure::new(
            format!("{name}: server CPU per {}", self.unit.unwrap_or("operation")),
            "ms",
            vec![server],
            how,
        );
        figure.goal = goal;
        let more =
            self.more.iter().map(|(what, value, unit)| Figure::new(format!("{name}: {what}"), unit, vec![*value], ""));
        std::iter::once(figure).chain(more).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cost_tells_what_each_operation_took_and_what_failed() {
        let cost = Cost {
            operations: 4,
            errors: 1,
            first_error: Some("gone".into()),
            wall: Duration::from_secs(2),
            latencies: (1..=4).map(Duration::from_millis).collect(),
            cpu: [0.008, 0.0, 0.0],
            ..Cost::default()
        };
        let line = cost.line("reads", Some(1.0));
        assert!(line.contains("2.0000 ms/op (at most 1: MISSED)") && line.contains("2/s"), "{line}");
        assert!(line.ends_with("1 FAILED: gone"), "{line}");
        assert_eq!(cost.percentile(50), 3.0);
    }
}

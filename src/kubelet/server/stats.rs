//! Usage of node, pods and containers: the summary, and the metrics that autoscalers and `kubectl top` read.

use super::{Answer, Server, text, typed};
use crate::node::machine::{Disk, memory_field, number, processes};
use crate::pods;
use crate::runtime::labels::{CONTAINER_NAME, POD_NAME, POD_NAMESPACE, POD_UID};
use http::StatusCode;
use jiff::Timestamp;
use k8s_cri::v1::{ContainerStats, FilesystemUsage};
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
use std::path::Path;

/// Rates from cumulative counters: what was seen last, by name.
#[derive(Default)]
pub struct Meter {
    seen: Mutex<HashMap<String, (i64, u64, u64)>>,
}

impl Meter {
    /// Nanoseconds of cpu in a second, since the last look that was at least a second before.
    fn rate(&self, name: &str, at: i64, used: u64) -> u64 {
        let mut seen = self.seen.lock();
        let (then, before, rate) = seen.get(name).copied().unwrap_or((at, used, 0));
        let passed = at - then;
        if passed < 1_000_000_000 {
            seen.entry(name.to_owned()).or_insert((at, used, 0));
            return rate;
        }
        let rate = (u128::from(used.saturating_sub(before)) * 1_000_000_000 / passed as u128) as u64;
        seen.insert(name.to_owned(), (at, used, rate));
        rate
    }

    fn retain(&self, names: &[String]) {
        self.seen.lock().retain(|name, _| names.contains(name));
    }
}

/// One pod's share of the summary.
#[derive(Default)]
struct OfPod {
    name: String,
    namespace: String,
    containers: Vec<Value>,
    cpu: u64,
    memory: u64,
}

fn stamp(nanoseconds: i64) -> Value {
    match Timestamp::from_nanosecond(nanoseconds.into()) {
        Ok(time) if nanoseconds > 0 => json!(time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()),
        _ => Value::Null,
    }
}

fn now() -> i64 {
    Timestamp::now().as_nanosecond() as i64
}

fn label<'a>(stats: &'a ContainerStats, key: &str) -> &'a str {
    stats.attributes.as_ref().and_then(|a| a.labels.get(key)).map(String::as_str).unwrap_or_default()
}

fn cpu_of(stats: &ContainerStats) -> (i64, u64) {
    let cpu = stats.cpu.as_ref();
    let used = cpu.and_then(|cpu| cpu.usage_core_nano_seconds.as_ref()).map_or(0, |value| value.value);
    (cpu.map_or(0, |cpu| cpu.timestamp), used)
}

fn memory_of(stats: &ContainerStats) -> u64 {
    let memory = stats.memory.as_ref();
    memory.and_then(|memory| memory.working_set_bytes.as_ref()).map_or(0, |value| value.value)
}

fn disk(stat: Disk) -> Value {
    json!({
        "time": stamp(now()), "availableBytes": stat.available, "capacityBytes": stat.capacity,
        "usedBytes": stat.capacity.saturating_sub(stat.available), "inodesFree": stat.inodes_free,
        "inodes": stat.inodes, "inodesUsed": stat.inodes.saturating_sub(stat.inodes_free),
    })
}

/// The file system at a path; nothing, with a line in the log, where it can't be looked at.
fn look_at(path: &Path) -> Option<Value> {
    Disk::of(path).inspect_err(|error| tracing::warn!(%error, ?path, "a file system can't be looked at")).ok().map(disk)
}

fn layer(usage: Option<&FilesystemUsage>) -> Value {
    let value = |v: Option<&k8s_cri::v1::UInt64Value>| v.map_or(0, |v| v.value);
    match usage {
        Some(usage) => json!({
            "time": stamp(usage.timestamp),
            "usedBytes": value(usage.used_bytes.as_ref()), "inodesUsed": value(usage.inodes_used.as_ref()),
        }),
        None => Value::Null,
    }
}

/// Bytes in and out of the node's own interfaces.
fn network() -> Value {
    let table = std::fs::read_to_string("/proc/net/dev").unwrap_or_default();
    let interfaces: Vec<Value> = table
        .lines()
        .skip(2)
        .filter_map(|line| {
            let (name, rest) = line.split_once(':')?;
            let numbers: Vec<u64> = rest.split_whitespace().filter_map(|number| number.parse().ok()).collect();
            let get = |at: usize| numbers.get(at).copied().unwrap_or(0);
            (name.trim() != "lo").then(|| {
                json!({"name": name.trim(), "rxBytes": get(0), "rxErrors": get(2), "txBytes": get(8), "txErrors": get(10)})
            })
        })
        .collect();
    let mut network = interfaces.first().cloned().unwrap_or_else(|| json!({"name": ""}));
    network["time"] = stamp(now());
    network["interfaces"] = interfaces.into();
    network
}

impl Server {
    /// Usage of all containers.
    ///
    /// # Errors
    /// What the runtime says.
    async fn containers(&self) -> Result<Vec<ContainerStats>, String> {
        self.ctx.cri.container_stats().await.map_err(|error| {
            let error = format!("failed to list container stats: {}", error.with_code());
            tracing::warn!(error, "the runtime gives no usage of containers");
            error
        })
    }

    fn node_usage(&self) -> (i64, crate::cgroups::Usage) {
        let usage = self.ctx.cgroups.as_ref().map(|groups| groups.usage_of_machine()).unwrap_or_default();
        (now(), usage)
    }

    fn pod_usage(&self, uid: &str) -> Option<crate::cgroups::Usage> {
        let pod = self.table.get(uid)?;
        self.ctx.cgroups.as_ref().map(|groups| groups.usage(Some(&pod)))
    }

    /// What `/stats/summary` shows.
    ///
    /// # Errors
    /// When the runtime does not tell.
    pub async fn summary(&self, only_cpu_and_memory: bool) -> Result<Value, String> {
        let mut by_pod: BTreeMap<String, OfPod> = BTreeMap::new();
        let mut names = vec!["node".to_owned()];
        for stats in self.containers().await? {
            let uid = label(&stats, POD_UID).to_owned();
            let (at, cpu) = cpu_of(&stats);
            let id = stats.attributes.as_ref().map(|a| a.id.clone()).unwrap_or_default();
            let rate = self.meter.rate(&id, at, cpu);
            names.push(id);
            let memory = memory_of(&stats);
            let value = |v: Option<&k8s_cri::v1::UInt64Value>| v.map_or(0, |v| v.value);
            let usage = stats.memory.as_ref().map_or(0, |m| value(m.usage_bytes.as_ref()));
            let rss = stats.memory.as_ref().map_or(0, |m| value(m.rss_bytes.as_ref()));
            let mut entry = json!({
                "name": label(&stats, CONTAINER_NAME), "startTime": stamp(at),
                "cpu": {"time": stamp(at), "usageNanoCores": rate, "usageCoreNanoSeconds": cpu},
                "memory": {"time": stamp(at), "usageBytes": usage, "workingSetBytes": memory, "rssBytes": rss},
            });
            if !only_cpu_and_memory {
                entry["rootfs"] = layer(stats.writable_layer.as_ref());
            }
            let pod = by_pod.entry(uid).or_default();
            pod.name = label(&stats, POD_NAME).to_owned();
            pod.namespace = label(&stats, POD_NAMESPACE).to_owned();
            pod.containers.push(entry);
            pod.cpu += cpu;
            pod.memory += memory;
        }
        let pods: Vec<Value> = by_pod
            .into_iter()
            .map(|(uid, pod)| {
                names.push(uid.clone());
                self.pod_summary(&uid, pod)
            })
            .collect();
        let (at, usage) = self.node_usage();
        let rate = self.meter.rate("node", at, usage.cpu);
        self.meter.retain(&names);
        let available = memory_field("MemTotal") as u64 - usage.working_set.min(memory_field("MemTotal") as u64);
        let mut node = json!({
            "nodeName": self.ctx.node, "startTime": stamp(self.ctx.probes.started_at().as_nanosecond() as i64),
            "cpu": {"time": stamp(at), "usageNanoCores": rate, "usageCoreNanoSeconds": usage.cpu},
            "memory": {"time": stamp(at), "availableBytes": available, "usageBytes": usage.memory,
                "workingSetBytes": usage.working_set, "rssBytes": usage.rss},
        });
        if !only_cpu_and_memory {
            node["network"] = network();
            if let Some(fs) = look_at(self.ctx.volumes.root()) {
                node["fs"] = fs;
            }
            if let Some(fs) = self.image_fs().await {
                node["runtime"] = json!({"imageFs": fs});
            }
            let most = number("/proc/sys/kernel/pid_max").unwrap_or(0);
            node["rlimit"] = json!({"time": stamp(at), "maxpid": most, "curproc": processes().unwrap_or(0)});
        }
        Ok(json!({"node": node, "pods": pods}))
    }

    fn pod_summary(&self, uid: &str, pod: OfPod) -> Value {
        // The pod's own group counts what its containers don't: the sandbox, and what has ended.
        let usage = self.pod_usage(uid);
        let cpu = usage.map_or(pod.cpu, |usage| usage.cpu.max(pod.cpu));
        let memory = usage.map_or(pod.memory, |usage| usage.working_set.max(pod.memory));
        let at = now();
        let rate = self.meter.rate(uid, at, cpu);
        let start = self.ctx.statuses.get(uid).and_then(|status| status.start_time);
        let mut entry = json!({
            "podRef": {"name": pod.name, "namespace": pod.namespace, "uid": uid},
            "startTime": start, "containers": pod.containers,
            "cpu": {"time": stamp(at), "usageNanoCores": rate, "usageCoreNanoSeconds": cpu},
            "memory": {"time": stamp(at), "usageBytes": usage.map_or(memory, |u| u.memory), "workingSetBytes": memory},
        });
        if let Some(usage) = usage {
            entry["process_stats"] = json!({"process_count": usage.pids});
        }
        entry
    }

    /// The images' file system; nothing, with a line in the log, where it can't be looked at.
    async fn image_fs(&self) -> Option<Value> {
        let list = self.ctx.cri.image_fs().await;
        let list = list.inspect_err(|error| tracing::warn!(%error, "the runtime gives no usage of images")).ok()?;
        let usage = list.into_iter().next()?;
        let mountpoint = usage.fs_id.as_ref().map(|id| id.mountpoint.clone()).unwrap_or_default();
        let mut entry = look_at(Path::new(&mountpoint))?;
        entry["usedBytes"] = json!(usage.used_bytes.map_or(0, |value| value.value));
        Some(entry)
    }

    /// What `/metrics/resource` shows: what the metrics server reads.
    pub(super) async fn resource_metrics(&self) -> Answer {
        let mut out = Text::default();
        let mut pods: BTreeMap<(String, String, String), (u64, u64)> = BTreeMap::new();
        // A scrape that fails is told as one, beside what is known all the same.
        let stats = self.containers().await;
        let failed = f64::from(u8::from(stats.is_err()));
        let stats = stats.unwrap_or_default();
        for one in &stats {
            let labels = format!(
                "container=\"{}\",namespace=\"{}\",pod=\"{}\"",
                label(one, CONTAINER_NAME),
                label(one, POD_NAMESPACE),
                label(one, POD_NAME)
            );
            let (at, cpu) = cpu_of(one);
            let seconds = cpu as f64 / 1e9;
            out.add(
                "container_cpu_usage_seconds_total",
                "counter",
                "Cumulative cpu time consumed by the container in core-seconds",
                &labels,
                seconds,
                at,
            );
            out.add(
                "container_memory_working_set_bytes",
                "gauge",
                "Current working set of the container in bytes",
                &labels,
                memory_of(one) as f64,
                at,
            );
            let key =
                (label(one, POD_NAMESPACE).to_owned(), label(one, POD_NAME).to_owned(), label(one, POD_UID).to_owned());
            let sums = pods.entry(key).or_default();
            sums.0 += cpu;
            sums.1 += memory_of(one);
        }
        let (at, usage) = self.node_usage();
        out.add(
            "node_cpu_usage_seconds_total",
            "counter",
            "Cumulative cpu time consumed by the node in core-seconds",
            "",
            usage.cpu as f64 / 1e9,
            at,
        );
        out.add(
            "node_memory_working_set_bytes",
            "gauge",
            "Current working set of the node in bytes",
            "",
            usage.working_set as f64,
            at,
        );
        for ((namespace, name, uid), (cpu, memory)) in pods {
            let labels = format!("namespace=\"{namespace}\",pod=\"{name}\"");
            let own = self.pod_usage(&uid).unwrap_or_default();
            out.add(
                "pod_cpu_usage_seconds_total",
                "counter",
                "Cumulative cpu time consumed by the pod in core-seconds",
                &labels,
                own.cpu.max(cpu) as f64 / 1e9,
                at,
            );
            out.add(
                "pod_memory_working_set_bytes",
                "gauge",
                "Current working set of the pod in bytes",
                &labels,
                own.working_set.max(memory) as f64,
                at,
            );
        }
        out.add(
            "resource_scrape_error",
            "gauge",
            "1 if there was an error while getting container metrics, 0 otherwise",
            "",
            failed,
            0,
        );
        typed(StatusCode::OK, base::metrics::CONTENT_TYPE, out.finish())
    }

    /// The part of `/metrics/cadvisor` that dashboards read most.
    pub(super) async fn cadvisor_metrics(&self) -> Answer {
        let mut out = Text::default();
        let stats = match self.containers().await {
            Ok(stats) => stats,
            Err(error) => return text(StatusCode::INTERNAL_SERVER_ERROR, error),
        };
        for one in stats {
            let attributes = one.attributes.clone().unwrap_or_default();
            let labels = format!(
                "container=\"{}\",id=\"{}\",name=\"{}\",namespace=\"{}\",pod=\"{}\"",
                label(&one, CONTAINER_NAME),
                attributes.id,
                attributes.id,
                label(&one, POD_NAMESPACE),
                label(&one, POD_NAME)
            );
            let (at, cpu) = cpu_of(&one);
            out.add(
                "container_cpu_usage_seconds_total",
                "counter",
                "Cumulative cpu time consumed in seconds.",
                &labels,
                cpu as f64 / 1e9,
                at,
            );
            out.add(
                "container_memory_working_set_bytes",
                "gauge",
                "Current working set in bytes.",
                &labels,
                memory_of(&one) as f64,
                at,
            );
        }
        let machine_cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        out.add("machine_cpu_cores", "gauge", "Number of logical CPU cores.", "", machine_cpus as f64, 0);
        out.add(
            "machine_memory_bytes",
            "gauge",
            "Amount of memory installed on the machine.",
            "",
            memory_field("MemTotal") as f64,
            0,
        );
        typed(StatusCode::OK, base::metrics::CONTENT_TYPE, out.finish())
    }

    /// The kubelet's own metrics.
    pub(super) async fn metrics(&self) -> Answer {
        let mut out = Text::default();
        let listed = tokio::try_join!(self.ctx.cri.sandboxes(None), self.ctx.cri.containers(None));
        let (sandboxes, containers) = match listed {
            Ok(lists) => lists,
            Err(error) => return text(StatusCode::INTERNAL_SERVER_ERROR, error.with_code()),
        };
        let up = sandboxes.into_iter().filter(|sandbox| sandbox.state == 0).count();
        out.add("kubelet_running_pods", "gauge", "Number of pods that have a running pod sandbox", "", up as f64, 0);
        let mut states: BTreeMap<&str, usize> = BTreeMap::new();
        for container in containers {
            *states.entry(crate::runtime::state::State::from_cri(container.state).word()).or_default() += 1;
        }
        for (state, count) in states {
            let labels = format!("container_state=\"{state}\"");
            out.add(
                "kubelet_running_containers",
                "gauge",
                "Number of containers currently running",
                &labels,
                count as f64,
                0,
            );
        }
        let desired = self.table.all().iter().filter(|pod| !pods::is_deleting(pod)).count();
        out.add("kubelet_desired_pods", "gauge", "The number of pods the kubelet is being instructed to run. static is true if the pod is not from the apiserver.", "", desired as f64, 0);
        let node = format!("node=\"{}\"", self.ctx.node);
        out.add("kubelet_node_name", "gauge", "The node's name. The count is always 1.", &node, 1.0, 0);
        typed(StatusCode::OK, base::metrics::CONTENT_TYPE, base::metrics::global().text() + &out.finish())
    }
}

/// Metrics in text form, one family after the other.
#[derive(Default)]
struct Text {
    families: BTreeMap<String, (String, Vec<String>)>,
}

impl Text {
    fn add(&mut self, name: &str, kind: &str, help: &str, labels: &str, value: f64, at: i64) {
        let head = format!("# HELP {name} {help}\n# TYPE {name} {kind}\n");
        let mut line = match labels {
            "" => format!("{name} {value}"),
            labels => format!("{name}{{{labels}}} {value}"),
        };
        if at > 0 {
            // Milliseconds since 1970.
            let _ = write!(line, " {}", at / 1_000_000);
        }
        self.families.entry(name.to_owned()).or_insert_with(|| (head, Vec::new())).1.push(line);
    }

    fn finish(self) -> String {
        let mut out = String::new();
        for (head, lines) in self.families.into_values() {
            out.push_str(&head);
            for line in lines {
                out.push_str(&line);
                out.push('\n');
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_come_from_two_looks() {
        let meter = Meter::default();
        let second = 1_000_000_000;
        assert_eq!(meter.rate("a", second, 0), 0);
        assert_eq!(meter.rate("a", 3 * second, second as u64), 500_000_000);
        assert_eq!(meter.rate("a", 3 * second + 1, 5), 500_000_000);
    }
}

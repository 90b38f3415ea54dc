//! Metrics in Prometheus' text form, under upstream's names.

use std::sync::{Arc, LazyLock};

use parking_lot::RwLock;
pub use prometheus_client::metrics::counter::Counter;
pub use prometheus_client::metrics::family::Family;
pub use prometheus_client::metrics::gauge::Gauge;
pub use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Metric;

/// Content type that upstream answers with.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8; escaping=underscores";

/// The metrics of a process.
#[derive(Clone, Default)]
pub struct Registry(Arc<RwLock<prometheus_client::registry::Registry>>);

impl Registry {
    /// Adds a metric and gives it back. Names of counters are given without their `_total`.
    pub fn add<M: Metric + Clone>(&self, name: &str, help: &str, metric: M) -> M {
        // The encoder ends each help text with a full stop.
        self.0.write().register(name, help.trim_end_matches('.'), metric.clone());
        metric
    }

    /// All metrics as text.
    pub fn text(&self) -> String {
        let mut text = String::new();
        match prometheus_client::encoding::prometheus_text::encode(&mut text, &self.0.read()) {
            Ok(()) => text,
            // A String takes everything; only a broken collector could fail.
            Err(e) => format!("# {e}\n"),
        }
    }
}

/// The registry of this process: a component's metrics live for as long as it does.
pub fn global() -> &'static Registry {
    static GLOBAL: LazyLock<Registry> = LazyLock::new(|| {
        let registry = Registry::default();
        process(&registry);
        registry
    });
    &GLOBAL
}

/// Bounds of a histogram of seconds, from `first`, each `factor` times the one before.
pub fn exponential(first: f64, factor: f64, count: u16) -> impl Iterator<Item = f64> {
    prometheus_client::metrics::histogram::exponential_buckets(first, factor, count)
}

/// What every Go process says of itself, as far as it makes sense here.
fn process(registry: &Registry) {
    #[derive(Clone, Debug, PartialEq, Eq, Hash, prometheus_client::encoding::EncodeLabelSet)]
    struct Build {
        build_date: &'static str,
        compiler: &'static str,
        git_version: &'static str,
        major: String,
        minor: String,
        platform: String,
    }
    let (major, minor) = crate::version::MAJOR_MINOR;
    let build = Build {
        build_date: "",
        compiler: "rustc",
        git_version: crate::version::GIT_VERSION,
        major: major.to_string(),
        minor: minor.to_string(),
        platform: crate::version::platform(),
    };
    let family: Family<Build, Gauge> = Family::default();
    family.get_or_create(&build).set(1);
    registry.add("kubernetes_build_info", "Constant 1, labelled by what this was built from", family);
    let started: Gauge<f64, std::sync::atomic::AtomicU64> = Gauge::default();
    started.set(jiff::Timestamp::now().as_millisecond() as f64 / 1000.0);
    registry.add("process_start_time_seconds", "Start time of the process since unix epoch in seconds", started);
    registry.0.write().register_collector(Box::new(Usage));
}

/// CPU, memory and open files of this process, read when asked for.
#[derive(Debug)]
struct Usage;

impl prometheus_client::collector::Collector for Usage {
    fn encode(&self, mut out: prometheus_client::encoding::DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        use prometheus_client::encoding::EncodeMetric as _;
        use prometheus_client::metrics::MetricType;
        use prometheus_client::metrics::counter::ConstCounter;
        use prometheus_client::metrics::gauge::ConstGauge;
        let cpu = ConstCounter::new(cpu_seconds());
        let help = "Total user and system CPU time spent in seconds";
        cpu.encode(out.encode_descriptor("process_cpu_seconds", help, None, MetricType::Counter)?)?;
        for (name, help, value) in [
            ("process_resident_memory_bytes", "Resident memory size in bytes", resident_bytes()),
            ("process_open_fds", "Number of open file descriptors", open_files()),
        ] {
            ConstGauge::new(value).encode(out.encode_descriptor(name, help, None, MetricType::Gauge)?)?;
        }
        Ok(())
    }
}

/// User and system time of this process in seconds.
pub fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // Fields 14 and 15, counted after the command's closing bracket; in ticks of a hundredth of a second.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |i: usize| fields.get(i).and_then(|f| f.parse::<f64>().ok()).unwrap_or(0.0);
    (ticks(11) + ticks(12)) / 100.0
}

/// Resident memory of this process in bytes.
pub fn resident_bytes() -> i64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: i64 = statm.split_whitespace().nth(1).and_then(|p| p.parse().ok()).unwrap_or(0);
    pages * 4096
}

fn open_files() -> i64 {
    std::fs::read_dir("/proc/self/fd").map(|d| d.count() as i64).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_prometheus_not_openmetrics() {
        let registry = Registry::default();
        let counter = registry.add("things", "Things counted.", Counter::<u64>::default());
        counter.inc();
        assert_eq!(
            registry.text(),
            "# HELP things_total Things counted.\n# TYPE things_total counter\nthings_total 1\n"
        );
    }
}

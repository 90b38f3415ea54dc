//! What `/metrics/probes` shows: how often each probe said what, and how long it took. Names are upstream's.

use super::{Outcome, ProbeKind};
use crate::pods;
use base::metrics::{Counter, Family, Histogram, Registry};
use k8s_openapi::api::core::v1::Pod;
use prometheus_client::encoding::EncodeLabelSet;
use std::time::Duration;

/// One probe of one container.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Probe {
    probe_type: &'static str,
    container: String,
    pod: String,
    namespace: String,
}

/// One probe of one container, and what it said.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Said {
    probe_type: &'static str,
    result: &'static str,
    container: String,
    pod: String,
    namespace: String,
    pod_uid: String,
}

/// The metrics of all probes.
#[derive(Clone)]
pub struct Metrics {
    registry: Registry,
    total: Family<Said, Counter>,
    duration: Family<Probe, Histogram, fn() -> Histogram>,
}

const RESULTS: [&str; 3] = ["successful", "failed", "unknown"];

fn result(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Success | Outcome::Warning(_) => RESULTS[0],
        Outcome::Failure(_) => RESULTS[1],
        Outcome::Error(_) => RESULTS[2],
    }
}

fn probe(pod: &Pod, container: &str, kind: ProbeKind) -> Probe {
    Probe {
        probe_type: kind.word(),
        container: container.to_owned(),
        pod: pods::name(pod).to_owned(),
        namespace: pods::namespace(pod).to_owned(),
    }
}

fn said(pod: &Pod, container: &str, kind: ProbeKind, result: &'static str) -> Said {
    let Probe { probe_type, container, pod: name, namespace } = probe(pod, container, kind);
    Said { probe_type, result, container, pod: name, namespace, pod_uid: pods::uid(pod).to_owned() }
}

/// Prometheus' own bounds, in seconds.
fn buckets() -> Histogram {
    Histogram::new([0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0])
}

impl Default for Metrics {
    fn default() -> Self {
        let registry = Registry::default();
        let help = "Cumulative number of a liveness, readiness or startup probe for a container by result";
        let total = registry.add("prober_probe", help, Family::default());
        let duration = Family::new_with_constructor(buckets as fn() -> Histogram);
        let duration =
            registry.add("prober_probe_duration_seconds", "Duration in seconds for a probe response", duration);
        Self { registry, total, duration }
    }
}

impl Metrics {
    /// Notes what a probe said, and how long that took; as upstream has it, failures have no time.
    pub fn note(&self, pod: &Pod, container: &str, kind: ProbeKind, outcome: &Outcome, took: Duration) {
        self.total.get_or_create(&said(pod, container, kind, result(outcome))).inc();
        if !matches!(outcome, Outcome::Failure(_)) {
            self.duration.get_or_create(&probe(pod, container, kind)).observe(took.as_secs_f64());
        }
    }

    /// Forgets a probe that is over.
    pub fn forget(&self, pod: &Pod, container: &str, kind: ProbeKind) {
        for result in RESULTS {
            self.total.remove(&said(pod, container, kind, result));
        }
        self.duration.remove(&probe(pod, container, kind));
    }

    /// All of them as text.
    pub fn text(&self) -> String {
        self.registry.text()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_counted_by_probe_and_go_with_it() {
        let metrics = Metrics::default();
        let mut pod = Pod::default();
        pod.metadata.name = Some("web".into());
        pod.metadata.namespace = Some("default".into());
        let note = |outcome| metrics.note(&pod, "c", ProbeKind::Liveness, &outcome, Duration::from_millis(1));
        note(Outcome::Success);
        note(Outcome::Failure("no".into()));
        let text = metrics.text();
        assert!(
            text.contains(r#"prober_probe_total{probe_type="Liveness",result="failed",container="c",pod="web""#),
            "{text}"
        );
        assert!(text.contains(r#"prober_probe_duration_seconds_count{probe_type="Liveness",container="c",pod="web",namespace="default"} 1"#), "{text}");
        metrics.forget(&pod, "c", ProbeKind::Liveness);
        assert!(!metrics.text().contains("web"));
    }
}

//! Probes: a task for each probe of each container, results in one place, and a wake-up for the pod when one changes.

pub mod dial;
pub mod grpc;
pub mod http;
pub mod manager;
pub mod metrics;
pub mod worker;

pub use manager::ProbeManager;

/// The three kinds of probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProbeKind {
    /// Shall the container be restarted?
    Liveness,
    /// May traffic come in?
    Readiness,
    /// Has it started, so that the others may begin?
    Startup,
}

impl ProbeKind {
    /// As events name it.
    pub fn word(self) -> &'static str {
        match self {
            ProbeKind::Liveness => "Liveness",
            ProbeKind::Readiness => "Readiness",
            ProbeKind::Startup => "Startup",
        }
    }
}

/// What one probing said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Well.
    Success,
    /// Well, with something to be told.
    Warning(String),
    /// Not well, and why.
    Failure(String),
    /// It could not be carried out; the result before stays.
    Error(String),
}

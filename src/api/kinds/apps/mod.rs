//! Workloads that run for ever.

mod daemonset;
mod deployment;
mod replicas;
mod revision;
mod statefulset;

pub use daemonset::DaemonSet;
pub use deployment::Deployment;
pub use replicas::{ReplicaSet, ReplicationController};
pub use revision::ControllerRevision;
pub use statefulset::StatefulSet;

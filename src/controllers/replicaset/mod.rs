//! replicaset-controller and replicationcontroller-controller: as many pods as asked for.

mod plan;
mod shell;

pub(crate) use shell::{run, run_replication_controllers};

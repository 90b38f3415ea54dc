//! daemonset-controller: one pod on every node that takes it, replaced node by node when the template changes.

mod failures;
mod plan;
mod shell;

pub(crate) use shell::run;

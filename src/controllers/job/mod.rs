//! job-controller and ttl-after-finished-controller: pods that run to their end, each counted exactly once.
//!
//! A pod carries a finalizer until the Job's status has its UID among the uncounted ones; only then is the finalizer
//! removed, and only when the pod is seen without it does the UID become a count. A crash between any two steps loses and
//! doubles nothing.

mod plan;
mod shell;
mod ttl;

pub(crate) use shell::run;
pub(crate) use ttl::run as run_ttl;

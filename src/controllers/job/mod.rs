//! job-controller and ttl-after-finished-controller: pods that run to their end, each counted exactly once.
//!
//! A pod carries a finalizer until the Job's status has its UID among the uncounted ones; only then is the finalizer
//! removed, and only when the pod is seen without it does the UID become a count. A crash between any two steps loses and
//! doubles nothing. Where each index has a limit of failures, the finalizer also keeps the last failed pod of an index until
//! its replacement is there, for the count of failures stands on the pods alone.

mod backoff;
mod indexes;
mod plan;
mod policy;
mod shell;
#[cfg(test)]
mod tests;
mod ttl;

pub(crate) use shell::run;
pub(crate) use ttl::run as run_ttl;

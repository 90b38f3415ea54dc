//! deployment-controller: rolls a template out by growing the ReplicaSet of the new one and shrinking those of the old.
//!
//! ```text
//!   Deployment + its ReplicaSets ──plan──► create | replace (scale, revision) | delete a set, then one status
//! ```

mod plan;
mod sets;
mod shell;
mod status;

pub(crate) use sets::scaled;
pub(crate) use shell::run;

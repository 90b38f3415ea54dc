//! Workloads that end: jobs, and jobs by the clock.

mod cronjob;
pub mod indexes;
mod job;
mod policy;
pub mod schedule;
mod status;

pub use cronjob::CronJob;
pub use job::Job;

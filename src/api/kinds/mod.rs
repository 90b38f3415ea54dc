//! What is particular to each kind: defaulting and validation, one file per area, as [`Strategy`] implementations that
//! the table's rows point to. `docs/validation.md` says where each kind's rules live.
//!
//! Rules read decoded objects through [`view`] and add to a list of errors ([`rules`] holds those that many kinds
//! share); nothing is copied into typed structures, so that a write costs no second decoding and rules that repeat can
//! stand in tables.
//!
//! [`Strategy`]: crate::resources::Strategy

pub mod admission;
pub mod apps;
pub mod autoscaling;
pub mod batch;
pub mod certificates;
pub mod claim;
pub mod compute;
pub mod coordination;
pub mod core;
pub mod devices;
pub mod diff;
pub mod discovery;
pub mod disruption;
pub mod flowcontrol;
pub mod halves;
pub mod image;
pub mod internal;
pub mod ip;
pub mod networking;
pub mod pod;
pub mod rbac;
pub mod registration;
pub mod rules;
pub mod runtime;
pub mod scheduling;
pub mod signer;
pub mod storage;
pub mod view;
pub mod workload;

#[cfg(test)]
mod golden;

//! The controllers of nodes: node-lifecycle-controller (who is silent, and which taints tell of it),
//! taint-eviction-controller (pods that don't tolerate those), node-ipam-controller (ranges of addresses), ttl-controller.

mod eviction;
mod ipam;
mod lifecycle;
mod monitor;
mod taints;
mod ttl;

pub(crate) use eviction::{delete_disrupted, run as run_eviction};
pub(crate) use ipam::run as run_ipam;
pub(crate) use lifecycle::run as run_lifecycle;
pub(crate) use taints::tolerates;
pub(crate) use ttl::run as run_ttl;

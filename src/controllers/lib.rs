//! kube-controller-manager: the loops that make the cluster be what its objects say.
//!
//! ```text
//!   informers ──key──► queue ──► snapshot ──► plan (pure) ──► commands ──► API server
//! ```
//!
//! Contract: [`table`] lists every controller; each has a pure `plan` from what is there to what must be done, and a shell
//! that gathers the one and does the other. A shell is woken by keys and by time, reads the world anew each time, and may
//! be run again at any moment. Only the leader runs.

mod aggregation;
mod bootstrap;
mod common;
mod context;
mod daemonset;
mod deployment;
mod gc;
mod job;
mod manager;
mod namespace;
mod network;
mod nodes;
mod options;
mod podgc;
mod replicaset;
mod rootca;
mod serviceaccount;
mod table;

pub use manager::main;

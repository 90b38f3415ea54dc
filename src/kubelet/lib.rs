//! The kubelet: runs the pods of one node through the container runtime, and tells the API server of them.
//!
//! ```text
//! static manifests ─┐                ┌─ worker per pod ─► plan (pure) ─► runtime (CRI), volumes, control groups
//! API server ───────┼─► kubelet loop ┤
//! runtime ──────────┘                └─ probes, images, logs, eviction, garbage …
//!        statuses, events, node, lease ─► API server          HTTPS server ◄─ logs, exec, usage
//! ```
//!
//! Contract: what a pod needs is decided by pure functions (`runtime::plan`, `status::generate`, `pods::*`), run by one
//! task per pod. The runtime's labels and annotations are the memory across restarts; the kubelet may be killed at any
//! moment and finds its way again. Without a kubeconfig it runs static pods alone.

pub mod allocation;
pub mod backoff;
pub mod bootstrap;
pub mod cgroups;
pub mod config;
pub mod descriptor;
pub mod events;
pub mod eviction;
pub mod flags;
pub mod gc;
pub mod hooks;
pub mod images;
pub mod kubelet;
pub mod logs;
pub mod mirror;
pub mod node;
pub mod objects;
pub mod pods;
pub mod probes;
pub mod run;
pub mod runtime;
pub mod server;
pub mod sources;
pub mod status;
pub mod table;
pub mod units;
pub mod volumes;
pub mod work;

pub use flags::command;
pub use run::{main, run};

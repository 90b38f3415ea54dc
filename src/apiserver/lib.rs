//! kube-apiserver: the only component that speaks to etcd, and the only one that others speak to.
//!
//! Contract: what is answered with success is in etcd; whoever reads consistently sees it; a watch leaves nothing out.
//!
//! ```text
//!  socket ─► base::server (TLS, HTTP/1.1, 2) ─► chain ─► route ─┬─► registry: read  ─► cache ─► shared bytes
//!                                                             ├─► registry: watch ─► cache ─► shared bytes
//!                                                             ├─► registry: write ─► admission ─► store
//!                                                             ├─► subresources, streams (kubelet), discovery …
//!                                                             └─► health, metrics, version
//! ```
//!
//! A write, in order: decode (codec, field validation) → patch or apply → default → owners of fields → mutating
//! admission → default → strategy.prepare → strategy.validate → validating admission → encode once → one transaction on
//! mod_revision → answer. Conflicts on objects loop in `registry::{engine, delete}`; the server's own keys (node ports, its
//! lease) in `allocation::ports` and `bootstrap::endpoints`. JSON in the stored version never becomes a tree to be read.

pub mod admission;
pub mod allocation;
pub mod authn;
pub mod authz;
pub mod bootstrap;
pub mod chain;
pub mod cors;
pub mod discovery;
#[cfg(test)]
mod ending_tests;
pub mod endpoints;
pub mod entry;
pub mod flow;
pub mod health;
pub mod info;
pub mod lookup;
pub mod metrics;
pub mod options;
pub mod registry;
pub mod request;
pub mod respond;
pub mod reviews;
pub mod route;
pub mod run;
pub mod server;
pub mod streams;
pub mod subresources;
#[cfg(test)]
mod testing;

use std::sync::Arc;

use entry::Decoder;

pub use run::main;

/// The state that all requests share.
pub struct Api {
    /// etcd (or memory, in tests).
    pub store: Arc<dyn store::Store>,
    /// Everything that is stored, decoded once.
    pub cache: Arc<store::cache::Cache<Decoder>>,
    /// The table as it is now.
    pub resources: Arc<registry::Resources>,
    /// What the command line said.
    pub settings: Settings,
    /// Who asks.
    pub authenticator: Arc<authn::Authenticator>,
    /// Who may do what.
    pub authorizer: Arc<authz::Authorizer>,
    /// The admission plugins that are on.
    pub admission: admission::Chain,
    /// ClusterIPs and node ports.
    pub services: allocation::Services,
    /// Who signs service-account tokens; `None` where no key is configured.
    pub tokens: Option<Arc<dyn subresources::token::Issuer>>,
}

/// What the flags decide for the registry and admission; the flags themselves are in `options`.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Prefix of all keys, without slash at the end (`/registry`).
    pub etcd_prefix: String,
    /// Seconds an Event lives.
    pub event_ttl: i64,
    /// A watch without a timeout of its own ends after this and up to twice as long.
    pub min_request_timeout: std::time::Duration,
    /// Ranges of ClusterIPs, the first being the primary family.
    pub service_ranges: Vec<ipnet::IpNet>,
    /// First and last node port.
    pub node_ports: (u16, u16),
    /// Names of admission plugins that are on, in upstream's order.
    pub admission: Vec<&'static str>,
    /// Privileged containers are allowed.
    pub allow_privileged: bool,
}

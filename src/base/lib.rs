//! Shared ground: clocks, TLS, logging, metrics, shutdown, flags, and the small HTTPS server of every component.
//!
//! ```text
//!   flags, fields, features ──► logging, version    what every component answers to on its command line
//!   tls   ──► server ──► health           sockets, connections, and the endpoints beside a component's work
//!   metrics, clock, backoff, relay, shutdown   leaves
//! ```
//!
//! Contract: nothing here knows the API; every part works alone.

pub mod backoff;
pub mod clock;
pub mod component;
pub mod features;
pub mod fields;
pub mod flags;
pub mod health;
pub mod logging;
pub mod metrics;
pub mod relay;
pub mod server;
pub mod shutdown;
pub mod tls;
pub mod version;

/// Why a component could not start or had to end; printed for the operator.
pub type Fault = Box<dyn std::error::Error + Send + Sync>;

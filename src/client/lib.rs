//! What every component needs to live off the API server, on the kube crate.
//!
//! ```text
//!   API server ──watch──► informer (one per kind, shared) ──key──► queue ──key──► worker: read informers, plan, apply
//!        ▲                                                                          │
//!        └────────────── kube::Api, retry on conflict, event recorder ◄─────────────┘
//! ```
//!
//! Contract: informers and queues carry keys, never payloads; a worker reads the world when it runs, so an event that is
//! lost or doubled changes nothing. Everything here is cheap to clone and stops with its `CancellationToken`.

pub mod connect;
pub mod discovery;
pub mod events;
pub mod gate;
pub mod informer;
pub mod leader;
pub mod owner;
pub mod queue;
pub mod retry;
pub mod serving;

pub use connect::{ConnectError, Connection};
pub use events::Recorder;
pub use informer::{Change, Informer, Informers, Key, Selection};
pub use queue::Queue;

/// The time as the API writes it, in whole seconds.
pub fn now() -> k8s_openapi::apimachinery::pkg::apis::meta::v1::Time {
    let now = jiff::Timestamp::now();
    k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(
        jiff::Timestamp::from_second(now.as_second()).expect("whole seconds of a valid time are valid"),
    )
}

/// The machine's name, as components sign with it.
pub fn hostname() -> String {
    nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok()).unwrap_or_else(|| "localhost".into())
}

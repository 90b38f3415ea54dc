//! Life of a cluster: `up`, `down`, certificates and etcd snapshots; what kubeadm does, on one machine.
//!
//! ```text
//!   up ─► pki, kubeconfigs ─► images ─► containerd ─► static pod manifests ─► kubelet ─► add-ons
//!   up --control-plane-only ─► pki ─► etcd, kube-apiserver (and friends) as plain processes
//! ```
//!
//! Everything lives below one state directory (see [`Layout`]), and `down` removes all that was made outside of it:
//! processes, mounts, network namespaces, the bridge, rules, cgroups.

pub mod apply;
pub mod cgroups;
pub mod control_plane;
pub mod down;
pub mod images;
pub mod kubeconfig;
pub mod layout;
pub mod manifests;
pub mod network;
pub mod oci;
pub mod pki;
pub mod ports;
pub mod process;
pub mod runtime;
pub mod settings;
pub mod snapshot;
pub mod up;

pub use layout::Layout;

use std::fmt::Display;
use std::process::{Command, Output};
use std::time::Instant;

/// Why a step of a cluster's life did not succeed: what was tried, and what went wrong.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {why}")]
pub struct Error {
    /// What was tried.
    pub what: String,
    /// What went wrong.
    pub why: String,
}

/// Result of a step.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error of a step that found something it can't go on with.
    pub fn new(what: impl Display, why: impl Display) -> Self {
        Self { what: what.to_string(), why: why.to_string() }
    }
}

/// Runs a command to its end.
///
/// # Errors
/// When it can't be run, or fails: with what it said on its standard error.
pub fn succeed(what: &str, command: &mut Command) -> Result<Output> {
    let output = command.output().context(what)?;
    match output.status.success() {
        true => Ok(output),
        false => Err(Error::new(what, String::from_utf8_lossy(&output.stderr).trim())),
    }
}

/// Says what was tried when something goes wrong.
pub trait Context<T> {
    /// Turns the error into a [`Error`] that says what was tried.
    ///
    /// # Errors
    /// The same, with its context.
    fn context(self, what: impl Display) -> Result<T>;
}

impl<T, E: Display> Context<T> for std::result::Result<T, E> {
    fn context(self, what: impl Display) -> Result<T> {
        self.map_err(|e| Error::new(what, e))
    }
}

/// Prints steps with the time since the start.
pub struct Progress {
    start: Instant,
}

impl Progress {
    /// Starts the clock.
    pub fn start() -> Self {
        Self { start: Instant::now() }
    }

    /// One line on standard output.
    pub fn step(&self, text: impl Display) {
        println!("[{:6.2}s] {text}", self.start.elapsed().as_secs_f64());
    }
}

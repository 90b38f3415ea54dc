//! The real store.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::Result;

/// How to reach etcd: upstream's `--etcd-*` flags.
#[derive(Clone, Default)]
pub struct Options {
    /// `http://host:port` or `https://host:port`, one or more.
    pub endpoints: Vec<String>,
    /// PEM file with the CA of etcd's certificates.
    pub ca: Option<PathBuf>,
    /// PEM files with our certificate and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// Between two compactions (`--etcd-compaction-interval`, five minutes); zero never compacts.
    pub compaction: Duration,
    /// Told of every request, for metrics.
    pub observer: Option<Arc<dyn Observer>>,
}

/// Told of every request.
pub trait Observer: Send + Sync {
    /// A request ended: `get`, `list`, `create`, `update`, `delete`, `compact`, `revision`; below which prefix or key;
    /// how long it took; and whether it failed.
    fn request(&self, operation: &'static str, key: &str, took: Duration, failed: bool);
}

/// A client of etcd.
pub struct Etcd {}

impl Etcd {
    /// A client; connects as needed, so an etcd that is not up yet is no error.
    ///
    /// # Errors
    /// When the options make no sense or a file can't be read.
    pub async fn connect(_options: Options) -> Result<Arc<Self>> {
        todo!()
    }
}

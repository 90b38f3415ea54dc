//! Where everything of a cluster lives.

use std::path::{Path, PathBuf};

/// A cluster's state directory.
#[derive(Debug, Clone)]
pub struct Layout {
    root: PathBuf,
}

impl Layout {
    /// The layout below a directory, which becomes absolute.
    ///
    /// # Errors
    /// When the working directory can't be read.
    pub fn new(root: &Path) -> std::io::Result<Self> {
        Ok(Self { root: std::path::absolute(root)? })
    }

    /// The state directory itself.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// A path below it.
    pub fn path(&self, below: &str) -> PathBuf {
        self.root.join(below)
    }

    /// Certificates and keys, as in `/etc/kubernetes/pki`.
    pub fn pki(&self) -> PathBuf {
        self.path("kubernetes/pki")
    }

    /// A kubeconfig, as in `/etc/kubernetes/admin.conf`.
    pub fn kubeconfig(&self, name: &str) -> PathBuf {
        self.path(&format!("kubernetes/{name}.conf"))
    }

    /// Static pod manifests.
    pub fn manifests(&self) -> PathBuf {
        self.path("kubernetes/manifests")
    }

    /// etcd's data.
    pub fn etcd(&self) -> PathBuf {
        self.path("etcd")
    }

    /// containerd's socket.
    pub fn containerd_socket(&self) -> PathBuf {
        self.path("containerd/containerd.sock")
    }

    /// Logs of processes.
    pub fn logs(&self) -> PathBuf {
        self.path("log")
    }

    /// What was decided at the first `up` and must not change: ports, addresses.
    pub fn settings(&self) -> PathBuf {
        self.path("cluster.json")
    }
}

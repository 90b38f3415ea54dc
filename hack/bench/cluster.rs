//! How long `navarch up` takes: the control plane alone, and a whole cluster.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::figure::Figure;
use crate::server::Folder;
use crate::{Result, Settings};

/// A cluster that `navarch down` ends when this is dropped.
pub struct Cluster {
    navarch: std::path::PathBuf,
    folder: Folder,
    /// From exec to the end of `navarch up`.
    pub took: Duration,
}

impl Cluster {
    /// etcd and the API server as plain processes, with further flags of `navarch up`.
    ///
    /// # Errors
    /// When it does not come up.
    pub async fn control_plane(settings: &Settings, more: &[&str]) -> Result<Self> {
        let flags = [&["--control-plane-only"], more].concat();
        Self::up(settings, &flags).await
    }

    async fn up(settings: &Settings, flags: &[&str]) -> Result<Self> {
        let mut cluster = Self { navarch: settings.navarch()?, folder: Folder::new()?, took: Duration::ZERO };
        let mut command = Command::new(&cluster.navarch);
        command.arg("up").args(flags).arg("--dir").arg(cluster.dir());
        // Where it runs must be free to serve an interruption meanwhile.
        let work = tokio::task::spawn_blocking(move || {
            let start = Instant::now();
            command.stdin(Stdio::null()).output().map(|output| (output, start.elapsed()))
        });
        let (output, took) = work.await??;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(format!("navarch up: {}", said.trim()).into());
        }
        cluster.took = took;
        Ok(cluster)
    }

    /// Its state directory.
    pub fn dir(&self) -> &Path {
        self.folder.path()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let ended = Command::new(&self.navarch).args(["down", "--keep", "--dir"]).arg(self.folder.path()).output();
        match ended {
            Ok(output) if output.status.success() => {}
            Ok(output) => eprintln!("navarch down: {}", String::from_utf8_lossy(&output.stderr).trim()),
            Err(why) => eprintln!("navarch down: {why}"),
        }
    }
}

/// `navarch up --control-plane-only`, each time in a new directory.
///
/// # Errors
/// When it fails once.
pub async fn control_plane(settings: &Settings) -> Result<Vec<Figure>> {
    let mut samples = Vec::new();
    for _ in 0..settings.runs {
        samples.push(Cluster::control_plane(settings, &[]).await?.took.as_secs_f64() * 1e3);
    }
    let how =
        "from exec to its end, in a new directory: keys and certificates are made, etcd starts empty, /readyz is 200";
    Ok(vec![Figure::new("navarch up --control-plane-only", "ms", samples, how).at_most(1000.0)])
}

/// A whole `navarch up`, which ends when the node is Ready and DNS answers.
///
/// # Errors
/// When it fails.
pub async fn whole(settings: &Settings) -> Result<Vec<Figure>> {
    if !nix::unistd::geteuid().is_root() {
        return Err("a whole cluster takes root".into());
    }
    let took = Cluster::up(settings, &[]).await?.took.as_secs_f64();
    let how = "from exec to the end of `navarch up` in a new directory; it ends when the node is Ready and DNS answers";
    Ok(vec![Figure::new("navarch up, a whole cluster", "s", vec![took], how).at_most(20.0)])
}

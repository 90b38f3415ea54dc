//! An API server of a bench's own on an etcd of its own: what all benches of the API server are taken from.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::etcd::Etcd;
use crate::http::Connection;
use crate::pki::Pki;
use crate::process::Process;
use crate::{Result, Settings};

/// How long a server may take to become ready.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two questions whether it is. Asking costs the server time, too.
const PAUSE: Duration = Duration::from_millis(1);

/// A folder that goes away with the value.
pub struct Folder(PathBuf);

impl Folder {
    /// A new one.
    ///
    /// # Errors
    /// When it can't be made.
    pub fn new() -> Result<Self> {
        let path =
            std::env::temp_dir().join(format!("navarch-bench-{}-{:08x}", std::process::id(), rand::random::<u32>()));
        std::fs::create_dir_all(&path)?;
        Ok(Self(path))
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(why) = std::fs::remove_dir_all(&self.0) {
            eprintln!("{}: {why}", self.0.display());
        }
    }
}

/// A port that nobody listens at.
///
/// # Errors
/// When there is none.
pub fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// A ready API server.
pub struct Server {
    process: Process,
    /// Where it listens.
    pub port: u16,
    /// From exec to ready.
    pub ready_after: Duration,
    /// CPU seconds that it had used when it was ready.
    pub cpu_at_ready: f64,
}

impl Server {
    /// Starts it and asks again and again until `/readyz` says 200. The clock starts before the exec.
    ///
    /// # Errors
    /// When it ends, or does not become ready.
    pub async fn start(settings: &Settings, etcd: &Etcd, pki: &Pki, log: &Path) -> Result<Self> {
        let (port, tls) = (free_port()?, pki.admin()?);
        let mut command = command(settings, &etcd.url(), port, pki)?;
        let start = Instant::now();
        let mut process = Process::start("kube-apiserver", &mut command, log)?;
        let mut connection = None;
        while !ready(&mut connection, port, &tls).await {
            process.check().map_err(|why| format!("{why}: {}", last_line(log)))?;
            if start.elapsed() > PATIENCE {
                return Err(format!("not ready within {PATIENCE:?}: {}", last_line(log)).into());
            }
            tokio::time::sleep(PAUSE).await;
        }
        let ready_after = start.elapsed();
        let cpu_at_ready = crate::process::cpu_of_threads(process.pid());
        Ok(Self { process, port, ready_after, cpu_at_ready })
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }
}

/// One question, on the connection there is or a new one.
async fn ready(held: &mut Option<Connection>, port: u16, tls: &Arc<rustls::ClientConfig>) -> bool {
    if held.is_none() {
        *held = Connection::open(port, Some(tls)).await.ok();
    }
    let Some(connection) = held else { return false };
    match connection.get("/readyz").await {
        Ok((status, _)) => status == 200,
        Err(_) => {
            *held = None;
            false
        }
    }
}

/// The command line, with flags that ours and upstream's take, as kubeadm gives them.
fn command(settings: &Settings, etcd: &str, port: u16, pki: &Pki) -> Result<Command> {
    let program = settings.server()?;
    let mut command = Command::new(&program);
    if program.file_name().is_some_and(|n| n == "navarch") {
        command.arg("kube-apiserver");
    }
    let file = |flag: &str, name: &str| format!("--{flag}={}", pki.path(name).display());
    command
        .args(["--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", "--endpoint-reconciler-type=none"])
        .args(["--authorization-mode=Node,RBAC", "--allow-privileged=true", "--enable-bootstrap-token-auth=true"])
        .args(["--enable-admission-plugins=NodeRestriction", "--service-cluster-ip-range=10.96.0.0/16"])
        .arg("--service-account-issuer=https://kubernetes.default.svc.cluster.local")
        .arg(format!("--etcd-servers={etcd}"))
        .arg(format!("--secure-port={port}"))
        .arg(file("client-ca-file", "ca.crt"))
        .arg(file("tls-cert-file", "server.crt"))
        .arg(file("tls-private-key-file", "server.key"))
        .arg(file("service-account-key-file", "sa.pub"))
        .arg(file("service-account-signing-key-file", "sa.key"))
        .args(settings.server_flags.split_whitespace());
    Ok(command)
}

/// The last line of a log, for messages.
pub fn last_line(log: &Path) -> String {
    let text = std::fs::read(log).map(|b| String::from_utf8_lossy(&b).into_owned()).unwrap_or_default();
    text.trim_end().lines().last().unwrap_or("it said nothing").to_string()
}

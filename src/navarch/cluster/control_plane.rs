//! `navarch up --control-plane-only`: etcd and the API server as plain processes, for tests and CI.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::settings::Settings;
use super::{Context, Error, Layout, Progress, Result};
use super::{apply, images, kubeconfig, pki, ports, process};

/// etcd's name on record.
pub const ETCD: &str = "etcd";
/// The API server's name on record.
pub const APISERVER: &str = "kube-apiserver";
/// The controller-manager's name on record.
pub const CONTROLLER_MANAGER: &str = "kube-controller-manager";
/// The scheduler's name on record.
pub const SCHEDULER: &str = "kube-scheduler";

/// Starts what is not running and waits until the API server is ready.
///
/// # Errors
/// The first step that did not succeed.
pub async fn up(layout: &Layout, settings: &Settings, progress: &Progress) -> Result<()> {
    // etcd takes longest to start: it begins as soon as it has its certificates, and the others are made meanwhile.
    pki::ensure_etcd(layout, &settings.names())?;
    start(layout, settings, ETCD)?;
    progress.step(format!("etcd starts at {}", settings.etcd_port));
    pki::ensure(layout, &settings.names())?;
    kubeconfig::ensure(layout, &settings.server(), &settings.names(), false)?;
    progress.step(format!("certificates and kubeconfigs are in {}", layout.path("kubernetes").display()));
    start(layout, settings, APISERVER)?;
    progress.step("the API server starts");
    let client = apply::client(&layout.kubeconfig("super-admin")).await?;
    ready(layout, &client, &[ETCD, APISERVER], Duration::from_secs(30)).await?;
    let access = super::manifests::ADDONS[0].1;
    for object in super::manifests::objects(access)? {
        apply::apply(&client, &object).await?;
    }
    progress.step(format!("the API server is ready at {}", settings.server()));
    for name in chosen(settings) {
        start(layout, settings, name)?;
        progress.step(format!("{name} starts"));
    }
    Ok(())
}

/// What runs beside etcd and the API server since somebody asked for it.
pub fn chosen(settings: &Settings) -> impl Iterator<Item = &'static str> {
    let all = [(CONTROLLER_MANAGER, settings.controller_manager), (SCHEDULER, settings.scheduler)];
    all.into_iter().filter(|(_, chosen)| *chosen).map(|(name, _)| name)
}

/// Starts one of the processes, unless it runs.
///
/// # Errors
/// When it can't be started.
pub fn start(layout: &Layout, settings: &Settings, name: &str) -> Result<()> {
    if process::running(layout, name).is_some() {
        return Ok(());
    }
    let (command, port) = match name {
        ETCD => (etcd(layout, &layout.etcd(), settings), settings.etcd_port),
        APISERVER => (apiserver(layout, settings), settings.port),
        CONTROLLER_MANAGER => (controller_manager(layout, settings), settings.controller_manager_port),
        SCHEDULER => (scheduler(layout, settings), settings.scheduler_port),
        other => return Err(Error::new("starting a process", format!("nobody knows {other}"))),
    };
    ports::free(&[(name, port)])?;
    let mut command = command?;
    process::start(layout, name, &mut command).map(drop)
}

/// Waits until the API server is ready, as long as these processes live.
///
/// # Errors
/// When it is not ready in time, or a process ended: with what that said last.
pub async fn ready(layout: &Layout, client: &kube::Client, processes: &[&str], patience: Duration) -> Result<()> {
    let waiting = apply::wait_ready(client, "/readyz", patience);
    tokio::pin!(waiting);
    loop {
        tokio::select! {
            result = &mut waiting => return result,
            () = tokio::time::sleep(Duration::from_millis(200)) => {}
        }
        if let Some(name) = processes.iter().find(|name| process::running(layout, name).is_none()) {
            return Err(Error::new(format!("starting {name}"), process::last_line(&process::log_path(layout, name))));
        }
    }
}

/// etcd over a directory of data, on the ports of the settings.
pub fn etcd(layout: &Layout, data: &Path, settings: &Settings) -> Result<Command> {
    let pki = layout.pki().join("etcd");
    let pki = pki.display();
    let (client, peer, metrics) = (settings.etcd_port, settings.etcd_peer_port, settings.etcd_metrics_port);
    let mut command = Command::new(images::need("etcd")?);
    command
        .arg(format!("--data-dir={}", data.display()))
        .arg(format!("--name={}", settings.node))
        .arg(format!("--listen-client-urls=https://127.0.0.1:{client}"))
        .arg(format!("--advertise-client-urls=https://127.0.0.1:{client}"))
        .arg(format!("--listen-peer-urls=https://127.0.0.1:{peer}"))
        .arg(format!("--initial-advertise-peer-urls=https://127.0.0.1:{peer}"))
        .arg(format!("--initial-cluster={}=https://127.0.0.1:{peer}", settings.node))
        .arg(format!("--listen-metrics-urls=http://127.0.0.1:{metrics}"))
        .arg(format!("--cert-file={pki}/server.crt"))
        .arg(format!("--key-file={pki}/server.key"))
        .arg(format!("--trusted-ca-file={pki}/ca.crt"))
        .arg("--client-cert-auth=true")
        .arg(format!("--peer-cert-file={pki}/peer.crt"))
        .arg(format!("--peer-key-file={pki}/peer.key"))
        .arg(format!("--peer-trusted-ca-file={pki}/ca.crt"))
        .arg("--peer-client-cert-auth=true");
    Ok(command)
}

fn component(name: &str) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("finding this program")?);
    command.arg(name);
    Ok(command)
}

fn apiserver(layout: &Layout, settings: &Settings) -> Result<Command> {
    let pki = layout.pki();
    let pki = pki.display();
    let mut command = component(APISERVER)?;
    command
        .arg("--bind-address=127.0.0.1")
        .arg(format!("--advertise-address={}", settings.advertise))
        .arg("--allow-privileged=true")
        .arg("--authorization-mode=Node,RBAC")
        .arg(format!("--client-ca-file={pki}/ca.crt"))
        .arg("--enable-admission-plugins=NodeRestriction")
        .arg("--enable-bootstrap-token-auth=true")
        // It listens on the loopback address alone, which no endpoint may have.
        .arg("--endpoint-reconciler-type=none")
        .arg(format!("--etcd-cafile={pki}/etcd/ca.crt"))
        .arg(format!("--etcd-certfile={pki}/apiserver-etcd-client.crt"))
        .arg(format!("--etcd-keyfile={pki}/apiserver-etcd-client.key"))
        .arg(format!("--etcd-servers=https://127.0.0.1:{}", settings.etcd_port))
        .arg(format!("--kubelet-client-certificate={pki}/apiserver-kubelet-client.crt"))
        .arg(format!("--kubelet-client-key={pki}/apiserver-kubelet-client.key"))
        .arg(format!("--proxy-client-cert-file={pki}/front-proxy-client.crt"))
        .arg(format!("--proxy-client-key-file={pki}/front-proxy-client.key"))
        .arg("--requestheader-allowed-names=front-proxy-client")
        .arg(format!("--requestheader-client-ca-file={pki}/front-proxy-ca.crt"))
        .arg("--requestheader-extra-headers-prefix=X-Remote-Extra-")
        .arg("--requestheader-group-headers=X-Remote-Group")
        .arg("--requestheader-username-headers=X-Remote-User")
        .arg(format!("--secure-port={}", settings.port))
        .arg(format!("--service-account-issuer=https://kubernetes.default.svc.{}", settings.domain))
        .arg(format!("--service-account-key-file={pki}/sa.pub"))
        .arg(format!("--service-account-signing-key-file={pki}/sa.key"))
        .arg(format!("--service-cluster-ip-range={}", settings.service_cidr))
        .arg(format!("--tls-cert-file={pki}/apiserver.crt"))
        .arg(format!("--tls-private-key-file={pki}/apiserver.key"));
    Ok(command)
}

fn controller_manager(layout: &Layout, settings: &Settings) -> Result<Command> {
    let pki = layout.pki();
    let pki = pki.display();
    let mut command = component(CONTROLLER_MANAGER)?;
    command
        .arg("--bind-address=127.0.0.1")
        .arg(format!("--secure-port={}", settings.controller_manager_port))
        .args(identity(layout, "controller-manager"))
        .arg(format!("--client-ca-file={pki}/ca.crt"))
        .arg(format!("--cluster-signing-cert-file={pki}/ca.crt"))
        .arg(format!("--cluster-signing-key-file={pki}/ca.key"))
        .arg(format!("--root-ca-file={pki}/ca.crt"))
        .arg(format!("--service-account-private-key-file={pki}/sa.key"))
        .arg(format!("--service-cluster-ip-range={}", settings.service_cidr))
        .arg("--use-service-account-credentials=true");
    Ok(command)
}

fn scheduler(layout: &Layout, settings: &Settings) -> Result<Command> {
    let mut command = component(SCHEDULER)?;
    command
        .arg("--bind-address=127.0.0.1")
        .arg(format!("--secure-port={}", settings.scheduler_port))
        .args(identity(layout, "scheduler"));
    Ok(command)
}

/// By which kubeconfig a component acts, and asks who its own clients are.
fn identity(layout: &Layout, name: &str) -> [String; 3] {
    let path = layout.kubeconfig(name);
    ["", "authentication-", "authorization-"].map(|purpose| format!("--{purpose}kubeconfig={}", path.display()))
}

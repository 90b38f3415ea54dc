//! A containerd of the cluster's own: its state, socket and network configuration beside whatever the machine has.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use k8s_cri::v1::runtime_service_client::RuntimeServiceClient;
use k8s_cri::v1::{ListPodSandboxRequest, RemovePodSandboxRequest, StopPodSandboxRequest, VersionRequest};
use tonic::transport::{Channel, Endpoint};

use super::{Context, Error, Layout, Result, images, process};

/// The process's name on record.
pub const NAME: &str = "containerd";

fn config(layout: &Layout) -> String {
    let path = |below: &str| layout.path(below).display().to_string();
    // Lowering oom_score_adj takes CAP_SYS_RESOURCE, which root may lack in a sandbox.
    let restrict = !has_capability(24);
    format!(
        r#"version = 2
root = "{root}"
state = "{state}"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.internal.v1.opt"]

[grpc]
  address = "{socket}"

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  restrict_oom_score_adj = {restrict}
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"

  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{cni}"

  [plugins."io.containerd.grpc.v1.cri".containerd]
    default_runtime_name = "runc"

    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"

      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false

  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "{registries}"
"#,
        root = path("containerd/root"),
        state = path("containerd/state"),
        socket = layout.containerd_socket().display(),
        pause = images::PAUSE,
        cni = path("cni"),
        registries = path("containerd/certs.d"),
    )
}

fn has_capability(bit: u32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|l| l.strip_prefix("CapEff:")).unwrap_or("0");
    u64::from_str_radix(effective.trim(), 16).unwrap_or(0) >> bit & 1 == 1
}

/// How pods get their addresses: a veth each, routed, so that every packet passes the machine's own rules.
fn network_config(layout: &Layout, pod_cidr: &str) -> String {
    serde_json::json!({
        "cniVersion": "0.4.0",
        "name": "navarch",
        "plugins": [
            {
                "type": "ptp",
                "ipMasq": false,
                "ipam": {
                    "type": "host-local",
                    "dataDir": layout.path("cni-state"),
                    "ranges": [[{"subnet": pod_cidr}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            },
            {"type": "portmap", "capabilities": {"portMappings": true}},
        ],
    })
    .to_string()
}

fn write_changed(path: &Path, text: &str) -> Result<bool> {
    if fs::read_to_string(path).is_ok_and(|old| old == text) {
        return Ok(false);
    }
    let what = || format!("writing {}", path.display());
    fs::create_dir_all(path.parent().expect("paths of the layout have parents")).context(what())?;
    fs::write(path, text).context(what())?;
    Ok(true)
}

/// Starts containerd unless it runs, and waits until it answers.
///
/// # Errors
/// When it does not start or does not answer.
pub async fn ensure(layout: &Layout, pod_cidr: &str) -> Result<()> {
    write_changed(&layout.path("cni/10-navarch.conflist"), &network_config(layout, pod_cidr))?;
    fs::create_dir_all(layout.path("containerd/certs.d")).context("making containerd's directories")?;
    start(layout).await
}

/// Starts containerd with the configuration that is there, and waits until it answers.
///
/// # Errors
/// When it does not start or does not answer.
pub async fn start(layout: &Layout) -> Result<()> {
    let path = layout.path("containerd/config.toml");
    write_changed(&path, &config(layout))?;
    let mut command = Command::new(images::need("containerd")?);
    command.arg("--config").arg(&path);
    let record = process::start(layout, NAME, &mut command)?;
    let log = process::log_path(layout, NAME);
    for _ in 0..1000 {
        if let Ok(mut client) = connect(layout).await
            && client.version(VersionRequest::default()).await.is_ok()
        {
            return Ok(());
        }
        if !record.alive() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Err(Error::new("starting containerd", process::last_line(&log)))
}

/// A connection to containerd's CRI.
///
/// # Errors
/// When nobody listens at the socket.
pub async fn connect(layout: &Layout) -> Result<RuntimeServiceClient<Channel>> {
    let socket = layout.containerd_socket();
    let connector = tower::service_fn(move |_| {
        let socket = socket.clone();
        async move { tokio::net::UnixStream::connect(socket).await.map(TokioIo::new) }
    });
    let endpoint = Endpoint::from_static("http://containerd");
    let channel = endpoint.connect_with_connector(connector).await.context("connecting to containerd")?;
    Ok(RuntimeServiceClient::new(channel))
}

/// Stops and removes every pod, with its network and mounts. Returns how many are gone, and why others are not.
///
/// # Errors
/// When containerd can't be asked.
pub async fn remove_pods(layout: &Layout) -> Result<(usize, Vec<Error>)> {
    let mut client = connect(layout).await?;
    let list = client.list_pod_sandbox(ListPodSandboxRequest::default()).await.context("listing pods")?;
    let ids: Vec<String> = list.into_inner().items.into_iter().map(|s| s.id).collect();
    let removals = ids.iter().map(|id| remove_pod(client.clone(), id.clone()));
    let results = futures::future::join_all(removals).await;
    let failed: Vec<Error> = results.into_iter().filter_map(Result::err).collect();
    Ok((ids.len() - failed.len(), failed))
}

async fn remove_pod(mut client: RuntimeServiceClient<Channel>, id: String) -> Result<()> {
    let what = format!("removing the pod {id}");
    client.stop_pod_sandbox(StopPodSandboxRequest { pod_sandbox_id: id.clone() }).await.context(&what)?;
    client.remove_pod_sandbox(RemovePodSandboxRequest { pod_sandbox_id: id }).await.context(&what)?;
    Ok(())
}

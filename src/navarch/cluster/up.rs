//! `navarch up`: a whole cluster on this machine. Every step looks first whether its work is done already, so a second
//! call repairs what is broken and leaves the rest alone.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use hickory_proto::op::{Message, Query, ResponseCode};
use hickory_proto::rr::{Name, RecordType};
use k8s_openapi::api::core::v1::Node;
use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use serde_json::{Value, json};

use super::settings::{Choices, Settings};
use super::{Context, Error, Layout, Progress, Result};
use super::{apply, cgroups, control_plane, images, kubeconfig, manifests, network, pki, ports, process, runtime};

/// The kubelet's name on record.
pub const KUBELET: &str = "kubelet";

/// Starts a cluster on this machine, or repairs it.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Directory that holds all of the cluster's state.
    #[arg(long, default_value = "/var/lib/navarch")]
    pub dir: PathBuf,
    /// Only etcd and the API server, as plain processes on ports of their own.
    #[arg(long)]
    pub control_plane_only: bool,
    /// With --control-plane-only: run the scheduler, too.
    #[arg(long, requires = "control_plane_only")]
    pub scheduler: bool,
    /// With --control-plane-only: run the controller-manager, too.
    #[arg(long, requires = "control_plane_only")]
    pub controller_manager: bool,
    /// What to choose.
    #[command(flatten)]
    pub choices: Choices,
}

/// Brings the cluster up.
///
/// # Errors
/// The first step that did not succeed.
pub async fn run(args: Args) -> Result<()> {
    let layout = Layout::new(&args.dir).context("finding the state directory")?;
    let progress = Progress::start();
    let settings = match Settings::load(&layout)? {
        Some(settings) if settings.control_plane_only != args.control_plane_only => {
            let what = format!("starting a cluster in {}", layout.root().display());
            return Err(Error::new(what, "one of the other form is there; `navarch down` ends it"));
        }
        Some(settings) => {
            settings.agree(&args.choices)?;
            settings
        }
        None => {
            unclaimed(layout.root())?;
            Settings::choose(&args.choices, args.control_plane_only)?
        }
    };
    let before: Vec<String> = running(&layout);
    if args.control_plane_only {
        let settings = Settings {
            scheduler: settings.scheduler || args.scheduler,
            controller_manager: settings.controller_manager || args.controller_manager,
            ..settings
        };
        settings.save(&layout)?;
        control_plane::up(&layout, &settings, &progress).await?;
    } else {
        preflight()?;
        claim(Path::new(CLAIM), &layout)?;
        settings.save(&layout)?;
        if process::recorded(&layout).iter().all(|name| process::running(&layout, name).is_none()) {
            ports::free(&settings.ports())?;
        }
        whole(&layout, settings, &progress).await?;
    }
    if !before.is_empty() && before == running(&layout) {
        progress.step("already up: nothing was missing");
    }
    println!("export KUBECONFIG={}", layout.kubeconfig("admin").display());
    Ok(())
}

/// The processes that run, with their numbers.
fn running(layout: &Layout) -> Vec<String> {
    let names = process::recorded(layout).into_iter();
    let mut all: Vec<String> = names
        .filter_map(|name| process::running(layout, &name).map(|record| format!("{name} {}", record.pid)))
        .collect();
    all.sort();
    all
}

/// Refuses a directory that holds what is not a cluster's: `down` would remove it.
fn unclaimed(root: &Path) -> Result<()> {
    let what = format!("starting a cluster in {}", root.display());
    match fs::read_dir(root).map(|mut entries| entries.next()) {
        Ok(None) => Ok(()),
        Ok(Some(_)) => {
            Err(Error::new(what, "the directory holds other files; name an empty one, or one that is not there"))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(Error::new(what, error)),
    }
}

/// Where the machine keeps, until it is started anew, which directory its whole cluster is in: rules, routes, cgroups
/// and addresses of pods are the machine's own, so there is one.
pub(super) const CLAIM: &str = "/run/navarch";

/// Takes the machine for the cluster of a directory.
fn claim(claim: &Path, layout: &Layout) -> Result<()> {
    let what = format!("starting a cluster in {}", layout.root().display());
    match fs::read_to_string(claim) {
        Ok(holder)
            if Path::new(&holder) != layout.root()
                && Layout::new(Path::new(&holder)).is_ok_and(|other| other.settings().exists()) =>
        {
            let why = format!("this machine has one in {holder}; `navarch down --dir {holder}` ends it");
            return Err(Error::new(what, why));
        }
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(Error::new(what, error)),
        _ => {}
    }
    fs::write(claim, layout.root().display().to_string()).context(what)
}

async fn whole(layout: &Layout, mut settings: Settings, progress: &Progress) -> Result<()> {
    pki::ensure(layout, &settings.names())?;
    kubeconfig::ensure(layout, &settings.server(), &settings.names(), false)?;
    progress.step(format!("certificates and kubeconfigs are in {}", layout.path("kubernetes").display()));

    let before = &mut settings.before;
    before.kernel = network::set_kernel(&before.kernel)?;
    if before.tables.is_none() {
        before.tables = Some(network::foreign_tables()?);
        if cgroups::exists(cgroups::ROOT) {
            let what = format!("making the cgroup {}", cgroups::ROOT);
            return Err(Error::new(what, "this machine has one of that name already, and `down` would remove it"));
        }
    }
    before.mounted_namespaces |= network::mount_namespaces()?;
    settings.save(layout)?;
    network::ensure(&settings.pod_cidr.to_string(), &settings.service_cidr.to_string(), settings.advertise)?;
    network::pass_firewalls(&settings.pod_cidr.to_string())?;
    cgroups::ensure(cgroups::ROOT)?;
    progress.step("the kernel forwards, routes and rules keep cluster traffic on this machine");

    runtime::ensure(layout, &settings.node_cidr().to_string()).await?;
    progress.step(format!("containerd answers at {}", layout.containerd_socket().display()));

    let images = images::ensure(layout)?;
    let new: Vec<&str> = images.iter().filter(|i| i.new).map(|i| i.name.as_str()).collect();
    progress.step(if new.is_empty() { "images are there".into() } else { format!("imported {}", new.join(", ")) });

    let values = values(layout, &settings, &images);
    write_static(layout, &values)?;
    if only_loopback(&fs::read_to_string(resolv_conf()).unwrap_or_default()) {
        progress.step(format!(
            "{} names only resolvers on this machine's loopback: pods will resolve the cluster's names alone",
            resolv_conf()
        ));
    }
    start_kubelet(layout, &settings)?;
    progress.step("the kubelet runs and starts the control plane as static pods");

    let client = apply::client(&layout.kubeconfig("super-admin")).await?;
    control_plane::ready(layout, &client, &[KUBELET, runtime::NAME], Duration::from_secs(120)).await?;
    progress.step(format!("the API server is ready at {}", settings.server()));

    apply_addons(&client, layout, &settings, &values).await?;
    progress.step("access, kube-proxy and DNS are applied");

    mark_node(&client, &settings.node).await?;
    wait_node(&client, &settings.node, Duration::from_secs(60)).await?;
    progress.step(format!("node {} is Ready", settings.node));

    wait_dns(&settings, Duration::from_secs(60)).await?;
    progress.step(format!("DNS answers at {}", settings.service_ip(10)));
    Ok(())
}

fn preflight() -> Result<()> {
    if !nix::unistd::geteuid().is_root() {
        return Err(Error::new("starting a cluster", "this takes root; --control-plane-only does not"));
    }
    ["containerd", "ctr", "runc", "etcd", "etcdctl", "ip", "nft", "busybox"]
        .iter()
        .try_for_each(|p| images::need(p).map(drop))
}

fn values(layout: &Layout, settings: &Settings, images: &[images::Imported]) -> Vec<(&'static str, String)> {
    let digest = |name: &str| images.iter().find(|i| i.name == name).map(|i| i.digest.clone()).unwrap_or_default();
    vec![
        ("node", settings.node.clone()),
        ("advertise", settings.advertise.to_string()),
        ("server", format!("https://{}", SocketAddr::new(settings.advertise, settings.port))),
        ("domain", settings.domain.clone()),
        ("pod_cidr", settings.pod_cidr.to_string()),
        ("service_cidr", settings.service_cidr.to_string()),
        ("dns_ip", settings.service_ip(10).to_string()),
        ("pki", layout.pki().display().to_string()),
        ("conf", layout.path("kubernetes").display().to_string()),
        ("etcd_dir", layout.etcd().display().to_string()),
        ("image", images::navarch()),
        ("image_digest", digest(&images::navarch())),
        ("etcd_image", images::ETCD.into()),
        ("etcd_image_digest", digest(images::ETCD)),
        ("port", settings.port.to_string()),
        ("etcd_port", settings.etcd_port.to_string()),
        ("etcd_peer_port", settings.etcd_peer_port.to_string()),
        ("etcd_metrics_port", settings.etcd_metrics_port.to_string()),
        ("controller_manager_port", settings.controller_manager_port.to_string()),
        ("scheduler_port", settings.scheduler_port.to_string()),
        ("proxy_health_port", settings.proxy_health_port.to_string()),
        ("proxy_metrics_port", settings.proxy_metrics_port.to_string()),
    ]
}

/// Writes a file unless it holds that text already: the kubelet must not see a change where there is none.
fn write_changed(path: &Path, text: &str) -> Result<()> {
    if fs::read_to_string(path).is_ok_and(|old| old == text) {
        return Ok(());
    }
    pki::write_secret(path, text)
}

fn write_static(layout: &Layout, values: &[(&'static str, String)]) -> Result<()> {
    for (name, template) in manifests::STATIC {
        write_changed(&layout.manifests().join(format!("{name}.yaml")), &manifests::fill(template, values)?)?;
    }
    Ok(())
}

fn kubelet_config(layout: &Layout, settings: &Settings) -> Value {
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": false},
            "webhook": {"enabled": true, "cacheTTL": "2m0s"},
            "x509": {"clientCAFile": layout.pki().join("ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": format!("/{}", cgroups::ROOT),
        "clusterDNS": [settings.service_ip(10)],
        "clusterDomain": settings.domain,
        "containerRuntimeEndpoint": format!("unix://{}", layout.containerd_socket().display()),
        // Images come from files here: one that is removed to free disk could not be pulled again. And a machine whose
        // disk is nearly full for other reasons must still run its pods.
        "evictionHard": {
            "memory.available": "100Mi",
            "nodefs.available": "0%",
            "nodefs.inodesFree": "0%",
            "imagefs.available": "0%",
        },
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "failCgroupV1": false,
        "failSwapOn": false,
        "healthzBindAddress": "127.0.0.1",
        "healthzPort": settings.kubelet_health_port,
        "port": settings.kubelet_port,
        "podLogsDir": layout.path("log/pods"),
        "resolvConf": resolv_conf(),
        "staticPodPath": layout.manifests(),
    })
}

/// The file that names this machine's resolvers. Where systemd-resolved stands between, pods need those behind it: its own
/// address is the machine's loopback, which in a pod is the pod's.
fn resolv_conf() -> &'static str {
    const OWN: &str = "/etc/resolv.conf";
    const RESOLVED: &str = "/run/systemd/resolve/resolv.conf";
    let text = fs::read_to_string(OWN).unwrap_or_default();
    if only_loopback(&text) && Path::new(RESOLVED).exists() { RESOLVED } else { OWN }
}

/// Do all of a resolver configuration's servers answer on the machine's loopback alone?
fn only_loopback(text: &str) -> bool {
    let servers = text.lines().filter_map(|line| line.trim().strip_prefix("nameserver"));
    let mut addresses = servers.filter_map(|server| server.trim().parse::<IpAddr>().ok()).peekable();
    addresses.peek().is_some() && addresses.all(|address| address.is_loopback())
}

fn start_kubelet(layout: &Layout, settings: &Settings) -> Result<()> {
    let config = layout.path("kubelet/config.yaml");
    let text =
        serde_saphyr::to_string(&kubelet_config(layout, settings)).context("writing the kubelet's configuration")?;
    write_changed(&config, &text)?;
    let me = std::env::current_exe().context("finding this program")?;
    if let Some(record) = process::running(layout, KUBELET)
        && fs::read_link(format!("/proc/{}/exe", record.pid)).ok() != Some(me.clone())
    {
        // Built anew since: the containers live on while it restarts.
        process::stop(layout, KUBELET, Duration::from_secs(20));
    }
    let mut command = Command::new(me);
    command
        .arg("kubelet")
        .arg(format!("--config={}", config.display()))
        .arg(format!("--kubeconfig={}", layout.kubeconfig("kubelet").display()))
        .arg(format!("--root-dir={}", layout.path("kubelet").display()))
        .arg(format!("--cert-dir={}", layout.path("kubelet/pki").display()))
        .arg(format!("--hostname-override={}", settings.node))
        .arg(format!("--node-ip={}", settings.advertise));
    process::start(layout, KUBELET, &mut command).map(drop)
}

async fn apply_addons(
    client: &Client, layout: &Layout, settings: &Settings, values: &[(&'static str, String)],
) -> Result<()> {
    for (_, template) in manifests::ADDONS {
        for object in manifests::objects(&manifests::fill(template, values)?)? {
            apply::apply(client, &object).await?;
        }
    }
    let ca = fs::read_to_string(layout.pki().join("ca.crt")).context("reading ca.crt")?;
    apply::apply(client, &cluster_info(settings, &ca)?).await
}

/// What a joining machine reads first: where the cluster is and whom to trust.
fn cluster_info(settings: &Settings, ca: &str) -> Result<Value> {
    use base64::Engine;
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "", "cluster": {
            "server": format!("https://{}", SocketAddr::new(settings.advertise, settings.port)),
            "certificate-authority-data": base64::engine::general_purpose::STANDARD.encode(ca),
        }}],
    });
    let text = serde_saphyr::to_string(&config).context("writing cluster-info")?;
    Ok(json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "cluster-info", "namespace": "kube-public"},
        "data": {"kubeconfig": text},
    }))
}

/// Gives the node its role, once it is there.
async fn mark_node(client: &Client, name: &str) -> Result<()> {
    let nodes: Api<Node> = Api::all(client.clone());
    let labels = json!({"metadata": {"labels": {
        "node-role.kubernetes.io/control-plane": "",
        "node.kubernetes.io/exclude-from-external-load-balancers": "",
    }}});
    let end = tokio::time::Instant::now() + Duration::from_secs(60);
    loop {
        match nodes.patch(name, &PatchParams::default(), &Patch::Merge(&labels)).await {
            Ok(_) => return Ok(()),
            Err(error) if tokio::time::Instant::now() > end => {
                return Err(Error::new(format!("waiting for node {name} to register"), error));
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

fn is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|s| s.conditions.as_ref());
    conditions.is_some_and(|all| all.iter().any(|c| c.type_ == "Ready" && c.status == "True"))
}

async fn wait_node(client: &Client, name: &str, patience: Duration) -> Result<()> {
    let nodes: Api<Node> = Api::all(client.clone());
    let ready = kube::runtime::wait::await_condition(nodes, name, |node: Option<&Node>| node.is_some_and(is_ready));
    let what = format!("waiting for node {name} to be Ready");
    tokio::time::timeout(patience, ready).await.context(&what)?.map(drop).context(&what)
}

async fn wait_dns(settings: &Settings, patience: Duration) -> Result<()> {
    let server = SocketAddr::new(settings.service_ip(10), 53);
    let name = format!("kubernetes.default.svc.{}.", settings.domain);
    let end = tokio::time::Instant::now() + patience;
    let mut last = Error::new("asking DNS", "no answer");
    while tokio::time::Instant::now() < end {
        match ask_dns(server, &name).await {
            Ok(()) => return Ok(()),
            Err(error) => last = error,
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Err(Error::new(format!("waiting for DNS at {server}"), last))
}

async fn ask_dns(server: SocketAddr, name: &str) -> Result<()> {
    let what = "asking DNS";
    let mut query = Message::query();
    query.add_query(Query::query(Name::from_ascii(name).context(what)?, RecordType::A));
    let socket = tokio::net::UdpSocket::bind("0.0.0.0:0").await.context(what)?;
    socket.connect(server).await.context(what)?;
    socket.send(&query.to_vec().context(what)?).await.context(what)?;
    let mut buffer = [0; 512];
    let answer = tokio::time::timeout(Duration::from_millis(500), socket.recv(&mut buffer));
    let length = answer.await.context(what)?.context(what)?;
    let answer = Message::from_vec(&buffer[..length]).context(what)?;
    match answer.metadata.response_code {
        ResponseCode::NoError if !answer.answers.is_empty() => Ok(()),
        code => Err(Error::new(what, code)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_has_one_whole_cluster_until_that_one_is_gone() {
        let dir = std::env::temp_dir().join(format!("navarch-claim-{}", std::process::id()));
        let file = dir.join("claim");
        let [first, second] = ["first", "second"].map(|name| Layout::new(&dir.join(name)).unwrap());
        fs::create_dir_all(first.root()).unwrap();
        fs::write(first.settings(), "{}").unwrap();
        claim(&file, &first).unwrap();
        claim(&file, &first).unwrap();
        let refused = claim(&file, &second).unwrap_err().to_string();
        assert!(refused.contains(&first.root().display().to_string()), "{refused}");
        fs::remove_dir_all(first.root()).unwrap();
        claim(&file, &second).unwrap();
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_directory_with_other_files_is_not_taken() {
        let dir = std::env::temp_dir().join(format!("navarch-taken-{}", std::process::id()));
        unclaimed(&dir).unwrap();
        fs::create_dir_all(&dir).unwrap();
        unclaimed(&dir).unwrap();
        fs::write(dir.join("mine"), "").unwrap();
        assert!(unclaimed(&dir).unwrap_err().to_string().contains("other files"));
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn resolvers_on_the_loopback_are_of_no_use_to_pods() {
        assert!(only_loopback("# stub\nnameserver 127.0.0.53\nsearch x\n"));
        assert!(only_loopback("nameserver ::1\nnameserver 127.0.0.1\n"));
        assert!(!only_loopback("nameserver 127.0.0.1\nnameserver 192.0.2.1\n"));
        assert!(!only_loopback(""));
    }
}

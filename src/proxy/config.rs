//! What kube-proxy is told: a KubeProxyConfiguration (kubeproxy.config.k8s.io/v1alpha1) and upstream's flags, which the
//! file overrides as upstream's does.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use base::flags::{self, Flags};
use clap::Command;
use ipnet::IpNet;
use serde::Deserialize;
use serde_json::Value;

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file could not be read.
    #[error("failed to read kube-proxy config {0:?}: {1}")]
    Read(PathBuf, std::io::Error),
    /// A file is no configuration.
    #[error("failed to decode kube-proxy config {0:?}: {1}")]
    Decode(PathBuf, String),
    /// A value can't be used.
    #[error("{0}: invalid value {1:?}: {2}")]
    Invalid(&'static str, String, String),
}

/// The settings, checked.
#[derive(Debug, Clone)]
pub struct Config {
    /// Kubeconfig; none inside a cluster.
    pub kubeconfig: Option<PathBuf>,
    /// Another address of the API server than the kubeconfig's.
    pub master: Option<String>,
    /// Name of the node.
    pub node: String,
    /// Address that the proxy listens on; unspecified for all.
    pub bind: IpAddr,
    /// Addresses of pods.
    pub cluster_cidr: Option<IpNet>,
    /// Where `/healthz` is served.
    pub health: Option<SocketAddr>,
    /// Where `/metrics` is served.
    pub metrics: Option<SocketAddr>,
    /// Networks whose addresses of this node have node ports; `primary` alone means the node's own address.
    pub node_port_addresses: Vec<String>,
    /// Masquerade all that goes to ClusterIPs.
    pub masquerade_all: bool,
    /// Bit of the mark that asks for masquerading.
    pub masquerade_bit: u32,
    /// Everything is computed anew at least that often.
    pub sync_period: Duration,
    /// Time between two transactions.
    pub min_sync_period: Duration,
    /// The configuration as `/configz` shows it.
    pub shown: Value,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct File {
    api_version: String,
    kind: String,
    bind_address: Option<String>,
    #[serde(rename = "clusterCIDR")]
    cluster_cidr: Option<String>,
    client_connection: ClientConnection,
    healthz_bind_address: Option<String>,
    metrics_bind_address: Option<String>,
    hostname_override: Option<String>,
    mode: Option<String>,
    node_port_addresses: Option<Vec<String>>,
    nftables: Rules,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ClientConnection {
    kubeconfig: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Rules {
    #[serde(rename = "masqueradeAll")]
    masquerade_all: Option<bool>,
    #[serde(rename = "masqueradeBit")]
    masquerade_bit: Option<u32>,
    sync_period: Option<String>,
    min_sync_period: Option<String>,
}

/// The command line.
pub fn command() -> Command {
    let flags = [
        flags::text("config", "", "path of the configuration file; it overrides the other flags"),
        flags::text("kubeconfig", "", "path of the kubeconfig; the in-cluster one when empty"),
        flags::text("master", "", "address of the API server, over the kubeconfig's"),
        flags::text("hostname-override", "", "name of the node, instead of the host's"),
        flags::ip("bind-address", "0.0.0.0", "address to serve on"),
        flags::text("cluster-cidr", "", "addresses of pods; traffic from elsewhere to ClusterIPs is masqueraded"),
        flags::text("healthz-bind-address", "0.0.0.0:10256", "where to serve health; empty for nowhere"),
        flags::text("metrics-bind-address", "127.0.0.1:10249", "where to serve metrics; empty for nowhere"),
        flags::choice(
            "proxy-mode",
            "nftables",
            &["nftables", "iptables", ""],
            "how traffic is directed; nftables it is",
        ),
        flags::list("nodeport-addresses", "", "networks whose addresses have node ports; primary when empty"),
        flags::switch("masquerade-all", false, "masquerade all that goes to ClusterIPs"),
        flags::duration("nftables-sync-period", "30s", "everything is computed anew at least that often"),
        flags::duration("nftables-min-sync-period", "1s", "least time between two transactions"),
        flags::switch("cleanup", false, "remove the proxy's rules and quit"),
    ];
    let flags = flags.into_iter().chain(flags::metrics());
    flags::command("kube-proxy", "Directs traffic for services to their endpoints, on every node.", flags)
}

fn text(flags: &Flags, file: Option<String>, name: &str) -> String {
    file.unwrap_or_else(|| flags.text(name).to_string())
}

fn parse<T: std::str::FromStr<Err: ToString>>(name: &'static str, text: &str) -> Result<T, Error> {
    text.parse().map_err(|e: T::Err| Error::Invalid(name, text.to_string(), e.to_string()))
}

fn optional<T: std::str::FromStr<Err: ToString>>(name: &'static str, text: &str) -> Result<Option<T>, Error> {
    if text.is_empty() { Ok(None) } else { parse(name, text).map(Some) }
}

fn period(name: &'static str, file: Option<String>, flag: Duration) -> Result<Duration, Error> {
    match file.as_deref() {
        None | Some("0s" | "") => Ok(flag),
        Some(text) => base::clock::parse_duration(text)
            .ok_or_else(|| Error::Invalid(name, text.to_string(), "it is no duration".to_string())),
    }
}

fn read(path: &Path) -> Result<(File, Value), Error> {
    let bytes = std::fs::read_to_string(path).map_err(|e| Error::Read(path.into(), e))?;
    let decode = |why: String| Error::Decode(path.into(), why);
    let value: Value = serde_saphyr::from_str(&bytes).map_err(|e| decode(e.to_string()))?;
    let file: File = serde_json::from_value(value.clone()).map_err(|e| decode(e.to_string()))?;
    if (file.api_version.as_str(), file.kind.as_str()) != ("kubeproxy.config.k8s.io/v1alpha1", "KubeProxyConfiguration")
    {
        let why = format!("no kind {:?} is registered for version {:?}", file.kind, file.api_version);
        return Err(decode(why));
    }
    Ok((file, value))
}

impl Config {
    /// What flags and file say together.
    ///
    /// # Errors
    /// When the file can't be read or a value can't be used.
    pub fn from_flags(flags: &Flags) -> Result<Self, Error> {
        let (file, shown) = match flags.path("config") {
            Some(path) => read(&path)?,
            None => (File::default(), Value::Null),
        };
        match file.mode.as_deref().unwrap_or(flags.text("proxy-mode")) {
            "" | "nftables" => {}
            // Both mean the same services and the same endpoints; only the kernel's tables differ.
            "iptables" => tracing::warn!("proxy mode iptables is served by nftables"),
            other => {
                let why = "supported values: nftables, iptables".to_string();
                return Err(Error::Invalid("mode", other.to_string(), why));
            }
        }
        let node = text(flags, file.hostname_override, "hostname-override");
        // The flag alone wins over the file, since each node of a DaemonSet shares one file.
        let node = if flags.given("hostname-override") { flags.text("hostname-override").into() } else { node };
        Ok(Self {
            kubeconfig: optional("kubeconfig", &text(flags, file.client_connection.kubeconfig, "kubeconfig"))?,
            master: Some(flags.text("master").to_string()).filter(|m| !m.is_empty()),
            node: if node.is_empty() { client::hostname().to_lowercase() } else { node.trim().to_lowercase() },
            bind: match file.bind_address.as_deref() {
                Some(text) => parse("bindAddress", text)?,
                None => flags.ip("bind-address").unwrap_or(IpAddr::from([0, 0, 0, 0])),
            },
            cluster_cidr: first_cidr(&text(flags, file.cluster_cidr, "cluster-cidr"))?,
            health: address(
                "healthzBindAddress",
                &text(flags, file.healthz_bind_address, "healthz-bind-address"),
                10256,
            )?,
            metrics: address(
                "metricsBindAddress",
                &text(flags, file.metrics_bind_address, "metrics-bind-address"),
                10249,
            )?,
            node_port_addresses: file.node_port_addresses.unwrap_or_else(|| flags.list("nodeport-addresses")),
            masquerade_all: file.nftables.masquerade_all.unwrap_or_else(|| flags.switch("masquerade-all")),
            masquerade_bit: file.nftables.masquerade_bit.unwrap_or(14).min(31),
            sync_period: period(
                "nftables.syncPeriod",
                file.nftables.sync_period,
                flags.duration("nftables-sync-period"),
            )?,
            min_sync_period: period(
                "nftables.minSyncPeriod",
                file.nftables.min_sync_period,
                flags.duration("nftables-min-sync-period"),
            )?,
            shown,
        })
    }
}

fn first_cidr(text: &str) -> Result<Option<IpNet>, Error> {
    optional("clusterCIDR", text.split(',').next().unwrap_or_default().trim())
}

/// An address with or without port.
fn address(name: &'static str, text: &str, port: u16) -> Result<Option<SocketAddr>, Error> {
    match text.parse::<IpAddr>() {
        Ok(ip) => Ok(Some(SocketAddr::new(ip, port))),
        Err(_) => optional(name, text),
    }
}

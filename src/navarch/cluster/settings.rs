//! What is decided once and must stay as it is while the cluster lives.

use std::fs;
use std::net::{IpAddr, SocketAddr};

use ipnet::Ipv4Net;
use serde::{Deserialize, Serialize};

use super::{Context, Error, Layout, Result, network, pki, ports};

/// Ports, addresses and names of a cluster, kept in its state directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Only etcd and the API server run, as plain processes.
    pub control_plane_only: bool,
    /// Name of the node.
    pub node: String,
    /// Address under which others reach the API server.
    pub advertise: IpAddr,
    /// Addresses of pods.
    pub pod_cidr: Ipv4Net,
    /// Addresses of services.
    pub service_cidr: Ipv4Net,
    /// The cluster's domain.
    pub domain: String,
    /// The API server's port.
    pub port: u16,
    /// etcd's port for clients.
    pub etcd_port: u16,
    /// etcd's port for its peers.
    pub etcd_peer_port: u16,
    /// etcd's port for health and metrics.
    pub etcd_metrics_port: u16,
    /// The controller-manager's port.
    pub controller_manager_port: u16,
    /// The scheduler's port.
    pub scheduler_port: u16,
    /// The kubelet's port.
    pub kubelet_port: u16,
    /// The kubelet's port for its own health.
    pub kubelet_health_port: u16,
    /// kube-proxy's port for health.
    pub proxy_health_port: u16,
    /// kube-proxy's port for metrics.
    pub proxy_metrics_port: u16,
    /// With a control plane alone: a scheduler runs, too.
    #[serde(default)]
    pub scheduler: bool,
    /// With a control plane alone: a controller-manager runs, too.
    #[serde(default)]
    pub controller_manager: bool,
    /// What of this machine was so before, to be put back.
    #[serde(default)]
    pub before: network::Before,
}

/// What a person may choose at the first `up`.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Choices {
    /// Port of the API server: 6443 where it is free, else one that is; 0 for any.
    #[arg(long)]
    pub port: Option<u16>,
    /// Port of etcd for clients: 2379 where it is free, else one that is; 0 for any.
    #[arg(long)]
    pub etcd_port: Option<u16>,
    /// Name of the node: this machine's host name.
    #[arg(long)]
    pub node_name: Option<String>,
    /// Addresses of pods: 10.244.0.0/16.
    #[arg(long)]
    pub pod_cidr: Option<Ipv4Net>,
    /// Addresses of services: 10.96.0.0/16.
    #[arg(long)]
    pub service_cidr: Option<Ipv4Net>,
}

fn host_name() -> String {
    let name = nix::unistd::gethostname().ok().and_then(|n| n.into_string().ok()).unwrap_or_default();
    let name = name.to_lowercase();
    if name.is_empty() { "node".into() } else { name }
}

impl Settings {
    /// Settles what was not chosen.
    ///
    /// # Errors
    /// When a port that was asked for is taken.
    pub fn choose(choices: &Choices, control_plane_only: bool) -> Result<Self> {
        // Several control planes stand side by side in tests, so theirs are any ports unless somebody asks.
        let usual = |what: &str, asked: Option<u16>, port: u16| {
            let asked = if control_plane_only { asked.or(Some(0)) } else { asked };
            ports::choose(what, asked, port)
        };
        let advertise = if control_plane_only { IpAddr::from([127, 0, 0, 1]) } else { network::own_address() };
        Ok(Self {
            control_plane_only,
            node: choices.node_name.clone().unwrap_or_else(host_name),
            advertise,
            pod_cidr: choices.pod_cidr.unwrap_or(Ipv4Net::new_assert([10, 244, 0, 0].into(), 16)),
            service_cidr: choices.service_cidr.unwrap_or(Ipv4Net::new_assert([10, 96, 0, 0].into(), 16)),
            domain: "cluster.local".into(),
            port: usual("the API server", choices.port, 6443)?,
            etcd_port: usual("etcd", choices.etcd_port, 2379)?,
            etcd_peer_port: usual("etcd's peers", None, 2380)?,
            etcd_metrics_port: usual("etcd's metrics", None, 2381)?,
            controller_manager_port: usual("the controller-manager", None, 10257)?,
            scheduler_port: usual("the scheduler", None, 10259)?,
            kubelet_port: usual("the kubelet", None, 10250)?,
            kubelet_health_port: usual("the kubelet's health", None, 10248)?,
            proxy_health_port: usual("kube-proxy's health", None, 10256)?,
            proxy_metrics_port: usual("kube-proxy's metrics", None, 10249)?,
            scheduler: false,
            controller_manager: false,
            before: network::Before::default(),
        })
    }

    /// Refuses a choice that was made otherwise when the cluster was started.
    ///
    /// # Errors
    /// Names the choice.
    pub fn agree(&self, choices: &Choices) -> Result<()> {
        let differs = |asked: Option<u16>, port: u16| asked.is_some_and(|asked| asked != 0 && asked != port);
        let settled = [
            ("--port", differs(choices.port, self.port), self.port.to_string()),
            ("--etcd-port", differs(choices.etcd_port, self.etcd_port), self.etcd_port.to_string()),
            ("--node-name", choices.node_name.as_ref().is_some_and(|name| *name != self.node), self.node.clone()),
            ("--pod-cidr", choices.pod_cidr.is_some_and(|cidr| cidr != self.pod_cidr), self.pod_cidr.to_string()),
            (
                "--service-cidr",
                choices.service_cidr.is_some_and(|cidr| cidr != self.service_cidr),
                self.service_cidr.to_string(),
            ),
        ];
        match settled.into_iter().find(|(_, differs, _)| *differs) {
            None => Ok(()),
            Some((flag, _, value)) => {
                Err(Error::new(flag, format!("the cluster was started with {value}; `navarch down` ends it")))
            }
        }
    }

    /// The ports of a whole cluster's parts.
    pub fn ports(&self) -> [(&'static str, u16); 10] {
        [
            ("the API server", self.port),
            ("etcd", self.etcd_port),
            ("etcd's peers", self.etcd_peer_port),
            ("etcd's metrics", self.etcd_metrics_port),
            ("the controller-manager", self.controller_manager_port),
            ("the scheduler", self.scheduler_port),
            ("the kubelet", self.kubelet_port),
            ("the kubelet's health", self.kubelet_health_port),
            ("kube-proxy's health", self.proxy_health_port),
            ("kube-proxy's metrics", self.proxy_metrics_port),
        ]
    }

    /// What was settled before, when anything was.
    ///
    /// # Errors
    /// When the file is there and can't be understood.
    pub fn load(layout: &Layout) -> Result<Option<Self>> {
        let path = layout.settings();
        let what = || format!("reading {}", path.display());
        match fs::read(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::new(what(), error)),
            Ok(bytes) => serde_json::from_slice(&bytes).map(Some).context(what()),
        }
    }

    /// Keeps the settings.
    ///
    /// # Errors
    /// When the file can't be written.
    pub fn save(&self, layout: &Layout) -> Result<()> {
        let text = serde_json::to_string_pretty(self).context("writing the settings")?;
        pki::write_secret(&layout.settings(), &text)
    }

    /// Where kubectl finds the API server on this machine.
    pub fn server(&self) -> String {
        format!("https://{}", SocketAddr::new([127, 0, 0, 1].into(), self.port))
    }

    /// The address of that number in the service range.
    pub fn service_ip(&self, number: u32) -> IpAddr {
        let base = u32::from(self.service_cidr.network());
        IpAddr::V4((base + number).into())
    }

    /// The part of the pod range that this node has: the first /24.
    pub fn node_cidr(&self) -> Ipv4Net {
        let prefix = self.pod_cidr.prefix_len().max(24);
        Ipv4Net::new_assert(self.pod_cidr.network(), prefix)
    }

    /// What the certificates' placeholders stand for.
    pub fn names(&self) -> pki::Names {
        pki::Names {
            node: self.node.clone(),
            advertise: self.advertise,
            service_ip: self.service_ip(1),
            domain: self.domain.clone(),
        }
    }
}

/// The settings of a cluster that must be there.
///
/// # Errors
/// When there is none.
pub fn need(layout: &Layout) -> Result<Settings> {
    let missing = || Error::new(format!("looking for a cluster in {}", layout.root().display()), "there is none");
    Settings::load(layout)?.ok_or_else(missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_start_may_not_choose_otherwise() {
        let settings = Settings::choose(&Choices::default(), true).unwrap();
        let same = Choices { port: Some(settings.port), node_name: Some(settings.node.clone()), ..Default::default() };
        settings.agree(&same).unwrap();
        settings.agree(&Choices { port: Some(0), ..Default::default() }).unwrap();
        let other = Choices { pod_cidr: Some(Ipv4Net::new_assert([10, 1, 0, 0].into(), 16)), ..Default::default() };
        let refused = settings.agree(&other).unwrap_err().to_string();
        assert!(refused.starts_with("--pod-cidr: the cluster was started with 10.244.0.0/16"), "{refused}");
    }
}

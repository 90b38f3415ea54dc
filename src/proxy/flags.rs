//! kube-proxy's command line: upstream's flags, and what they and the configuration file say together.
//!
//! ```text
//!   --config ─► the file, and of the flags only --hostname-override, --master and the log's
//!   none     ─► FIELDS that were given, over the defaults
//! ```

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use base::fields::{self, Field, Form, field};
use base::flags::{self as f, Flags};
use clap::{Arg, Command};
use ipnet::IpNet;
use serde_json::Value;

use crate::config::{self, Backend, Config, Conntrack, Error};
use crate::rules::Local;

/// Help of a flag that is taken and changes nothing.
const IDLE: &str = "taken, without effect here; a warning is logged";

/// Flags beside the configuration that change nothing.
const UNUSED: [&str; 2] = ["boot-id-file", "machine-id-file"];

/// The flags that are fields of the configuration. Those of iptables that have no twin for nftables count in both
/// modes.
const FIELDS: &[Field] = &[
    field("feature-gates", "/featureGates", Form::Switches, IDLE),
    field("kubeconfig", "/clientConnection/kubeconfig", Form::Text, "the kubeconfig; the in-cluster one when empty"),
    field("kube-api-content-type", "/clientConnection/contentType", Form::Text, IDLE),
    field("kube-api-burst", "/clientConnection/burst", Form::Int, IDLE),
    field("kube-api-qps", "/clientConnection/qps", Form::Float, IDLE),
    field("bind-address", "/bindAddress", Form::Text, "the node's primary address, unless it is unspecified"),
    field("healthz-bind-address", "/healthzBindAddress", Form::Text, "where to serve health; empty for nowhere"),
    field("metrics-bind-address", "/metricsBindAddress", Form::Text, "where to serve metrics; empty for nowhere"),
    field("bind-address-hard-fail", "/bindAddressHardFail", Form::Switch, "end when a port is taken"),
    field("profiling", "/enableProfiling", Form::Switch, IDLE),
    field("show-hidden-metrics-for-version", "/showHiddenMetricsForVersion", Form::Text, IDLE),
    field("proxy-mode", "/mode", Form::Text, "nftables, or iptables, which nftables serve"),
    field("iptables-masquerade-bit", "/iptables/masqueradeBit", Form::Int, "bit of the mark that asks to masquerade"),
    field("masquerade-all", "/iptables/masqueradeAll", Form::Switch, "masquerade all that goes to ClusterIPs"),
    field("iptables-localhost-nodeports", "/iptables/localhostNodePorts", Form::Switch, IDLE),
    field("iptables-sync-period", "/iptables/syncPeriod", Form::Span, "all is computed anew at least that often"),
    field("iptables-min-sync-period", "/iptables/minSyncPeriod", Form::Span, "least time between two transactions"),
    field("ipvs-sync-period", "/ipvs/syncPeriod", Form::Span, IDLE),
    field("ipvs-min-sync-period", "/ipvs/minSyncPeriod", Form::Span, IDLE),
    field("ipvs-scheduler", "/ipvs/scheduler", Form::Text, IDLE),
    field("ipvs-exclude-cidrs", "/ipvs/excludeCIDRs", Form::List, IDLE),
    field("ipvs-strict-arp", "/ipvs/strictARP", Form::Switch, IDLE),
    field("ipvs-tcp-timeout", "/ipvs/tcpTimeout", Form::Span, IDLE),
    field("ipvs-tcpfin-timeout", "/ipvs/tcpFinTimeout", Form::Span, IDLE),
    field("ipvs-udp-timeout", "/ipvs/udpTimeout", Form::Span, IDLE),
    field(
        "detect-local-mode",
        "/detectLocalMode",
        Form::Text,
        "what tells traffic of pods: ClusterCIDR, NodeCIDR, BridgeInterface, InterfaceNamePrefix",
    ),
    field("pod-bridge-interface", "/detectLocal/bridgeInterface", Form::Text, "the bridge that pods are at"),
    field(
        "pod-interface-name-prefix",
        "/detectLocal/interfaceNamePrefix",
        Form::Text,
        "how the names of pods' interfaces begin",
    ),
    field("cluster-cidr", "/clusterCIDR", Form::Text, "addresses of pods; two by comma for both families"),
    field(
        "nodeport-addresses",
        "/nodePortAddresses",
        Form::List,
        "networks whose addresses have node ports, or primary",
    ),
    field("oom-score-adj", "/oomScoreAdj", Form::Int, "the proxy's out-of-memory score"),
    field("conntrack-max-per-core", "/conntrack/maxPerCore", Form::Int, "connections for each processor; 0 for as is"),
    field("conntrack-min", "/conntrack/min", Form::Int, "connections at least"),
    field(
        "conntrack-tcp-timeout-established",
        "/conntrack/tcpEstablishedTimeout",
        Form::Span,
        "how long a silent TCP connection is kept; 0 for as is",
    ),
    field(
        "conntrack-tcp-timeout-close-wait",
        "/conntrack/tcpCloseWaitTimeout",
        Form::Span,
        "how long one is kept that the other side closed; 0 for as is",
    ),
    field(
        "conntrack-tcp-be-liberal",
        "/conntrack/tcpBeLiberal",
        Form::Switch,
        "let TCP packets outside of the window through",
    ),
    field(
        "conntrack-udp-timeout",
        "/conntrack/udpTimeout",
        Form::Span,
        "how long a UDP flow without answer is kept; 0 for as is",
    ),
    field(
        "conntrack-udp-timeout-stream",
        "/conntrack/udpStreamTimeout",
        Form::Span,
        "how long a UDP flow with answers is kept; 0 for as is",
    ),
    field("config-sync-period", "/configSyncPeriod", Form::Span, IDLE),
];

/// Flags of [`FIELDS`] whose field is one of `nftables` as well.
const SHARED: [(&str, &str); 3] = [
    ("masquerade-all", "masqueradeAll"),
    ("iptables-sync-period", "syncPeriod"),
    ("iptables-min-sync-period", "minSyncPeriod"),
];

/// The command line.
pub fn command() -> Command {
    let defaults = config::defaults();
    let mut flags = own();
    flags.extend(FIELDS.iter().map(|field| field.flag(&defaults)));
    f::command("kube-proxy", "Directs traffic for services to their endpoints, on every node.", flags)
}

/// Flags that are not fields of the configuration.
fn own() -> Vec<Arg> {
    vec![
        f::text("config", "", "file with a KubeProxyConfiguration; other flags are ignored then"),
        f::text("write-config-to", "", "write the configuration to this file and quit"),
        f::switch("cleanup", false, "remove the proxy's rules and quit"),
        f::switch("init-only", false, "set what needs all of root's rights and quit"),
        f::text("master", "", "address of the API server, over the kubeconfig's"),
        f::text("hostname-override", "", "name of the node, instead of the host's"),
        f::int("healthz-port", config::PORTS.0.into(), "deprecated: use --healthz-bind-address"),
        f::int("metrics-port", config::PORTS.1.into(), "deprecated: use --metrics-bind-address"),
        f::text("boot-id-file", "", IDLE),
        f::text("machine-id-file", "", IDLE),
    ]
}

/// What tells traffic of pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LocalMode {
    /// The node's range of pod addresses, which the API server knows.
    Node,
    /// What was configured.
    Told(Local),
}

/// Where node ports are open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodePorts {
    /// On the node's own address.
    Primary,
    /// On all its addresses in these networks; a family without one has them everywhere.
    In(Vec<IpNet>),
}

/// The settings, checked.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Kubeconfig; none inside a cluster.
    pub kubeconfig: Option<PathBuf>,
    /// Another address of the API server than the kubeconfig's.
    pub master: Option<String>,
    /// Name of the node.
    pub node: String,
    /// The node's primary address, when somebody said.
    pub address: Option<IpAddr>,
    /// Where `/healthz` is served.
    pub health: Option<SocketAddr>,
    /// Where `/metrics` is served.
    pub metrics: Option<SocketAddr>,
    /// Is a port that is taken a reason to end?
    pub hard_fail: bool,
    /// What tells traffic of pods.
    pub local: LocalMode,
    /// Where node ports are open.
    pub node_ports: NodePorts,
    /// Masquerading and periods.
    pub backend: Backend,
    /// The kernel's tracking of connections.
    pub conntrack: Conntrack,
    /// The proxy's out-of-memory score.
    pub oom_score_adj: i32,
    /// What was given and changes nothing.
    pub idle: Vec<&'static str>,
    /// The configuration, complete.
    pub config: Config,
}

impl Settings {
    /// What flags and file say together.
    ///
    /// # Errors
    /// When the file can't be read or a value can't be used.
    pub fn from_flags(flags: &Flags) -> Result<Self, Error> {
        let mut config = match flags.path("config") {
            Some(path) => config::load(&path)?,
            None => from_fields(flags)?,
        };
        config.complete();
        if flags.given("hostname-override") && !flags.text("hostname-override").is_empty() {
            // This flag wins over the file, since the nodes of a DaemonSet share one.
            config.hostname_override = match flags.text("hostname-override").trim() {
                "" => return Err(Error::Flags("empty hostname-override is invalid".into())),
                name => name.to_lowercase(),
            };
        }
        config.validate()?;
        let unused = UNUSED.into_iter().filter(|name| flags.given(name));
        let idle = config.idle().into_iter().chain(unused).collect();
        Ok(Self { master: Some(flags.text("master").to_owned()).filter(|m| !m.is_empty()), idle, ..settle(config)? })
    }
}

fn from_fields(flags: &Flags) -> Result<Config, Error> {
    let mut value = Value::Object(Default::default());
    fields::overlay(FIELDS, flags, &mut value).map_err(Error::Flags)?;
    for (_, name) in SHARED.iter().filter(|(flag, _)| flags.given(flag)) {
        value["nftables"][name] = value["iptables"][name].clone();
    }
    let mut config = config::decode(value)?;
    if flags.text("write-config-to").is_empty() {
        let port = |flag: &str| {
            u16::try_from(flags.int(flag)).map_err(|_| Error::Flags(format!("--{flag} must be a valid port")))
        };
        for (flag, address) in
            [("healthz-port", &mut config.healthz_bind_address), ("metrics-port", &mut config.metrics_bind_address)]
        {
            *address = match port(flag)? {
                0 => String::new(),
                port => config::with_port(address, port),
            };
        }
    }
    Ok(config)
}

/// Turns texts that [`Config::validate`] let pass into what they mean.
fn settle(config: Config) -> Result<Settings, Error> {
    fn parse<T: std::str::FromStr<Err: ToString>>(text: &str) -> Result<T, Error> {
        text.parse().map_err(|error: T::Err| Error::Invalid(format!("{text:?}: {}", error.to_string())))
    }
    fn optional<T: std::str::FromStr<Err: ToString>>(text: &str) -> Result<Option<T>, Error> {
        if text.is_empty() { Ok(None) } else { parse(text).map(Some) }
    }
    let networks = |texts: &mut dyn Iterator<Item = &str>| -> Result<Vec<IpNet>, Error> {
        texts.map(|text| parse::<IpNet>(text).map(|network| network.trunc())).collect()
    };
    let node = match config.hostname_override.trim() {
        "" => client::hostname().trim().to_lowercase(),
        name => name.to_lowercase(),
    };
    if node.is_empty() {
        return Err(Error::Flags("empty hostname is invalid".into()));
    }
    let bind: IpAddr = parse(&config.bind_address)?;
    let local = &config.detect_local;
    Ok(Settings {
        kubeconfig: optional(&config.client_connection.kubeconfig)?,
        master: None,
        node,
        address: Some(bind).filter(|ip| !ip.is_unspecified()),
        health: optional(&config.healthz_bind_address)?,
        metrics: optional(&config.metrics_bind_address)?,
        hard_fail: config.bind_address_hard_fail,
        local: match config.detect_local_mode.as_str() {
            "NodeCIDR" => LocalMode::Node,
            "BridgeInterface" => LocalMode::Told(Local::Interface(local.bridge_interface.clone())),
            "InterfaceNamePrefix" => LocalMode::Told(Local::Interface(format!("{}*", local.interface_name_prefix))),
            _ => LocalMode::Told(Local::Networks(networks(&mut config.cluster_cidrs().into_iter())?)),
        },
        node_ports: match config.node_port_addresses.as_slice() {
            [one] if one == "primary" => NodePorts::Primary,
            texts => NodePorts::In(networks(&mut texts.iter().map(String::as_str))?),
        },
        backend: config.backend(),
        conntrack: config.conntrack.clone(),
        oom_score_adj: config.oom_score_adj,
        idle: Vec::new(),
        config,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::fields::Span;
    use std::time::Duration;

    fn settings(args: &[&str]) -> Result<Settings, String> {
        match f::parse(command(), args.iter().map(std::ffi::OsString::from)) {
            Ok(flags) => Settings::from_flags(&flags).map_err(|error| error.to_string()),
            Err(f::Exit::Refuse(text) | f::Exit::Print(text)) => Err(text),
        }
    }

    fn file(text: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("proxy-flags-{}.yaml", std::process::id()));
        let head = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";
        std::fs::write(&path, format!("{head}{text}")).unwrap();
        path
    }

    #[test]
    fn each_flag_of_a_field_finds_it_and_has_its_default() {
        let defaults = config::defaults();
        for field in FIELDS {
            assert!(defaults.pointer(field.at).is_some(), "--{} at {}", field.flag, field.at);
        }
        let settings = settings(&[]).unwrap();
        assert_eq!(settings.health, "0.0.0.0:10256".parse().ok());
        assert_eq!(settings.node_ports, NodePorts::Primary);
        assert!(settings.idle.is_empty(), "{:?}", settings.idle);
    }

    #[test]
    fn with_a_file_only_the_nodes_name_is_taken_from_the_flags() {
        let file = file("hostnameOverride: from-file\nclusterCIDR: 10.1.0.0/16\nmetricsBindAddress: 127.0.0.1:1\n");
        let config = format!("--config={}", file.display());
        let settings =
            settings(&[&config, "--hostname-override= N1 ", "--cluster-cidr=10.2.0.0/16", "--master=https://a"]);
        std::fs::remove_file(file).unwrap();
        let settings = settings.unwrap();
        assert_eq!((settings.node.as_str(), settings.master.as_deref()), ("n1", Some("https://a")));
        assert_eq!(settings.local, LocalMode::Told(Local::Networks(vec!["10.1.0.0/16".parse().unwrap()])));
        assert_eq!(settings.metrics, "127.0.0.1:1".parse().ok());
    }

    #[test]
    fn flags_say_what_a_file_would() {
        let settings = settings(&[
            "--masquerade-all",
            "--iptables-sync-period=1m",
            "--healthz-port=0",
            "--metrics-bind-address=127.0.0.2",
            "--detect-local-mode=InterfaceNamePrefix",
            "--pod-interface-name-prefix=veth",
            "--nodeport-addresses=10.0.0.0/8,fd00::/64",
            "--conntrack-tcp-timeout-established=0s",
            "--conntrack-max-per-core=0",
            "--bind-address=10.0.0.9",
            "--config-sync-period=1m",
        ]);
        let settings = settings.unwrap();
        assert!(settings.backend.masquerade_all);
        assert_eq!(settings.backend.sync_period, Duration::from_secs(60));
        assert_eq!((settings.health, settings.metrics), (None, "127.0.0.2:10249".parse().ok()));
        assert_eq!(settings.local, LocalMode::Told(Local::Interface("veth*".into())));
        assert!(matches!(&settings.node_ports, NodePorts::In(networks) if networks.len() == 2));
        assert_eq!(settings.conntrack.tcp_established_timeout, Span::secs(0));
        assert_eq!(settings.address, "10.0.0.9".parse().ok());
        assert_eq!(settings.idle, ["configSyncPeriod"]);
    }

    #[test]
    fn flags_that_can_not_be_used_are_refused() {
        assert_eq!(settings(&["--nope"]).unwrap_err(), "unknown flag: --nope");
        assert!(settings(&["--proxy-mode=ipvs"]).unwrap_err().contains("not supported by this kube-proxy"));
        assert!(settings(&["--iptables-sync-period=0s"]).unwrap_err().contains("must be greater than 0"));
        assert!(settings(&["--hostname-override= "]).unwrap_err().contains("empty hostname-override is invalid"));
        assert!(settings(&["--iptables-masquerade-bit=32"]).unwrap_err().contains("must be within the range [0, 31]"));
    }
}

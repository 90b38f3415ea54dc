//! kube-proxy's configuration: KubeProxyConfiguration v1alpha1 with upstream's defaults, and what of it can't be used.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use api::field::{self, Errors};
use base::fields::{self, Span};
use base::section;
use ipnet::IpNet;
use serde_json::{Value, json};

section! {
    /// How the API server is reached.
    ClientConnection {
        /// The kubeconfig; none inside a cluster.
        kubeconfig: String = String::new(),
        /// Upstream: forms of answers.
        accept_content_types: String = String::new(),
        /// Upstream: form of requests.
        content_type: String = "application/vnd.kubernetes.protobuf".into(),
        /// Upstream: requests in a second.
        qps: f32 = 5.0,
        /// Upstream: requests at once.
        burst: i32 = 10,
    }
}

section! {
    /// What holds in mode `iptables`.
    Iptables {
        /// Bit of the mark that asks for masquerading.
        masquerade_bit: i32 = 14,
        /// Is all masqueraded that goes to ClusterIPs?
        masquerade_all: bool = false,
        /// Upstream: node ports on 127.0.0.1.
        localhost_node_ports: bool = true,
        /// Everything is computed anew at least that often.
        sync_period: Span = Span::secs(30),
        /// Least time between two transactions.
        min_sync_period: Span = Span::secs(1),
    }
}

section! {
    /// Upstream: what holds in mode `ipvs`.
    Ipvs {
        /// Upstream.
        sync_period: Span = Span::secs(30),
        /// Upstream.
        min_sync_period: Span = Span::secs(0),
        /// Upstream.
        scheduler: String = String::new(),
        /// Upstream.
        #[serde(rename = "excludeCIDRs")]
        exclude_cidrs: Vec<String> = Vec::new(),
        /// Upstream.
        #[serde(rename = "strictARP")]
        strict_arp: bool = false,
        /// Upstream.
        tcp_timeout: Span = Span::secs(0),
        /// Upstream.
        tcp_fin_timeout: Span = Span::secs(0),
        /// Upstream.
        udp_timeout: Span = Span::secs(0),
    }
}

section! {
    /// What holds in mode `nftables`.
    Nftables {
        /// Bit of the mark that asks for masquerading.
        masquerade_bit: i32 = 14,
        /// Is all masqueraded that goes to ClusterIPs?
        masquerade_all: bool = false,
        /// Everything is computed anew at least that often.
        sync_period: Span = Span::secs(30),
        /// Least time between two transactions.
        min_sync_period: Span = Span::secs(1),
    }
}

section! {
    /// Upstream: what holds on Windows.
    Winkernel {
        /// Upstream.
        network_name: String = String::new(),
        /// Upstream.
        source_vip: String = String::new(),
        /// Upstream.
        #[serde(rename = "enableDSR")]
        enable_dsr: bool = false,
        /// Upstream.
        root_hns_endpoint_name: String = String::new(),
        /// Upstream.
        forward_health_check_vip: bool = false,
    }
}

section! {
    /// What tells traffic of this node's pods.
    DetectLocal {
        /// A bridge that pods are at.
        bridge_interface: String = String::new(),
        /// How the names of pods' interfaces begin.
        interface_name_prefix: String = String::new(),
    }
}

section! {
    /// The kernel's tracking of connections; 0 leaves a setting as it is.
    Conntrack {
        /// Connections for each processor.
        max_per_core: i32 = 32 * 1024,
        /// Connections at least.
        min: i32 = 128 * 1024,
        /// How long a silent TCP connection is kept.
        tcp_established_timeout: Span = Span::secs(24 * 3600),
        /// How long one is kept that the other side closed.
        tcp_close_wait_timeout: Span = Span::secs(3600),
        /// Are packets outside of the window let through?
        tcp_be_liberal: bool = false,
        /// How long a UDP flow without answer is kept.
        udp_timeout: Span = Span::secs(0),
        /// How long one with answers is kept.
        udp_stream_timeout: Span = Span::secs(0),
    }
}

section! {
    /// KubeProxyConfiguration v1alpha1. Where the text says "Upstream", this proxy has no part for the field: see
    /// [`IDLE`].
    Config {
        /// `kubeproxy.config.k8s.io/v1alpha1`
        api_version: String = API_VERSION.into(),
        /// `KubeProxyConfiguration`
        kind: String = KIND.into(),
        /// Upstream: features switched on or off.
        feature_gates: BTreeMap<String, bool> = BTreeMap::new(),
        /// How the API server is reached.
        client_connection: ClientConnection = ClientConnection::default(),
        /// Logging; `-v` and `--logging-format` on the command line have the say here.
        #[serde(skip_serializing_if = "Value::is_null")]
        logging: Value = Value::Null,
        /// Name of the node, instead of the host's.
        hostname_override: String = String::new(),
        /// The node's primary address, unless it is unspecified.
        bind_address: String = "0.0.0.0".into(),
        /// Where health is served.
        healthz_bind_address: String = "0.0.0.0:10256".into(),
        /// Where metrics are served.
        metrics_bind_address: String = "127.0.0.1:10249".into(),
        /// Is a port that is taken a reason to end?
        bind_address_hard_fail: bool = false,
        /// Upstream: profiling.
        enable_profiling: bool = false,
        /// Upstream: metrics.
        show_hidden_metrics_for_version: String = String::new(),
        /// `nftables`, or `iptables`, which nftables serve with that mode's settings.
        mode: String = String::new(),
        /// What holds in mode `iptables`.
        iptables: Iptables = Iptables::default(),
        /// Upstream: what holds in mode `ipvs`.
        ipvs: Ipvs = Ipvs::default(),
        /// What holds in mode `nftables`.
        nftables: Nftables = Nftables::default(),
        /// Upstream: what holds on Windows.
        winkernel: Winkernel = Winkernel::default(),
        /// How traffic of this node's pods is told: `ClusterCIDR`, `NodeCIDR`, `BridgeInterface` or
        /// `InterfaceNamePrefix`.
        detect_local_mode: String = String::new(),
        /// What those need to know.
        detect_local: DetectLocal = DetectLocal::default(),
        /// Addresses of pods, of each family.
        #[serde(rename = "clusterCIDR")]
        cluster_cidr: String = String::new(),
        /// Networks whose addresses of this node have node ports, or `primary`.
        node_port_addresses: Vec<String> = Vec::new(),
        /// Out-of-memory score of the proxy itself.
        oom_score_adj: i32 = -999,
        /// The kernel's tracking of connections.
        conntrack: Conntrack = Conntrack::default(),
        /// Upstream: how often informers tell everything again.
        config_sync_period: Span = Span::secs(15 * 60),
        /// Upstream: unused.
        port_range: String = String::new(),
        /// Upstream: Windows.
        windows_run_as_service: bool = false,
    }
}

const API_VERSION: &str = "kubeproxy.config.k8s.io/v1alpha1";
const KIND: &str = "KubeProxyConfiguration";

/// Fields that tune how upstream works, and that have nothing to tune here.
const IDLE: &[&str] = &[
    "/featureGates",
    "/clientConnection/acceptContentTypes",
    "/clientConnection/contentType",
    "/clientConnection/qps",
    "/clientConnection/burst",
    "/logging",
    "/enableProfiling",
    "/showHiddenMetricsForVersion",
    "/iptables/localhostNodePorts",
    "/ipvs",
    "/winkernel",
    "/configSyncPeriod",
    "/portRange",
    "/windowsRunAsService",
];

/// Texts and times whose zero is no default.
const MEANINGFUL: &[&str] = &["tcpEstablishedTimeout", "tcpCloseWaitTimeout"];

/// Port of health and of metrics when an address comes without.
pub const PORTS: (u16, u16) = (10256, 10249);

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file can't be read.
    #[error("failed complete: open {0:?}: {1}")]
    Read(PathBuf, std::io::Error),
    /// The file or the flags are no configuration.
    #[error("failed complete: failed to decode: {0}")]
    Decode(String),
    /// The flags make no sense.
    #[error("failed complete: {0}")]
    Flags(String),
    /// A value can't be used.
    #[error("failed validate: {0}")]
    Invalid(String),
}

/// The settings of the mode that is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backend {
    /// Is all masqueraded that goes to ClusterIPs?
    pub masquerade_all: bool,
    /// Bit of the mark that asks for masquerading.
    pub masquerade_bit: i32,
    /// Everything is computed anew at least that often.
    pub sync_period: Duration,
    /// Least time between two transactions.
    pub min_sync_period: Duration,
}

/// The defaults as JSON.
pub fn defaults() -> Value {
    json(&Config::default())
}

fn json(config: &Config) -> Value {
    // A structure of texts, numbers and lists always has a form in JSON.
    serde_json::to_value(config).unwrap_or_default()
}

/// Reads the configuration file.
///
/// # Errors
/// When it can't be read, or is no KubeProxyConfiguration.
pub fn load(path: &Path) -> Result<Config, Error> {
    let text = std::fs::read_to_string(path).map_err(|error| Error::Read(path.into(), error))?;
    parse(&text)
}

/// Parses YAML or JSON. Null stands for what is left out. A field that there is not is told and passed over, as
/// upstream does as long as this version is an alpha.
fn parse(text: &str) -> Result<Config, Error> {
    let mut value: Value = serde_saphyr::from_str(text).map_err(|error| Error::Decode(error.to_string()))?;
    let word = |name: &str| value[name].as_str().unwrap_or_default().to_owned();
    let (version, kind) = (word("apiVersion"), word("kind"));
    if (version.as_str(), kind.as_str()) != (API_VERSION, KIND) {
        return Err(Error::Decode(format!("no kind {kind:?} is registered for version {version:?}")));
    }
    let unknown = take_unknown(&mut value, &defaults(), "");
    if !unknown.is_empty() {
        tracing::warn!(?unknown, "the configuration has fields that are unknown");
    }
    fields::drop_unset(&mut value, MEANINGFUL);
    let mut config = decode(value.clone())?;
    // Only what the file leaves out is on the loopback, or everywhere, of the address's family.
    if config.bind_address.parse::<IpAddr>().is_ok_and(|ip| ip.is_ipv6()) {
        for (name, field, host, port) in [
            ("healthzBindAddress", &mut config.healthz_bind_address, "::", PORTS.0),
            ("metricsBindAddress", &mut config.metrics_bind_address, "::1", PORTS.1),
        ] {
            if value.get(name).is_none() {
                *field = format!("[{host}]:{port}");
            }
        }
    }
    Ok(config)
}

/// Takes out the fields that are not known, and says where they were.
fn take_unknown(value: &mut Value, known: &Value, at: &str) -> Vec<String> {
    let (Value::Object(map), Value::Object(known)) = (value, known) else { return Vec::new() };
    // A map that is empty by default has keys of the user's own.
    if known.is_empty() {
        return Vec::new();
    }
    let is_unknown = |name: &String| !known.contains_key(name) && name != "logging";
    let names: Vec<String> = map.keys().filter(|name| is_unknown(name)).cloned().collect();
    let mut gone: Vec<String> = names.iter().map(|name| format!("{at}{name}")).collect();
    map.retain(|name, _| !names.contains(name));
    for (name, value) in map.iter_mut() {
        let known = known.get(name).unwrap_or(&Value::Null);
        gone.extend(take_unknown(value, known, &format!("{at}{name}.")));
    }
    gone
}

/// The configuration that JSON says, over the defaults.
///
/// # Errors
/// Names the field that is unknown or of the wrong kind.
pub fn decode(value: Value) -> Result<Config, Error> {
    serde_json::from_value(value).map_err(|error| Error::Decode(error.to_string()))
}

/// An address with a port, as far as it is one.
pub fn with_port(address: &str, port: u16) -> String {
    match address.parse::<IpAddr>() {
        Ok(IpAddr::V4(ip)) => format!("{ip}:{port}"),
        Ok(IpAddr::V6(ip)) => format!("[{ip}]:{port}"),
        Err(_) => address.to_owned(),
    }
}

impl Config {
    /// Fills in what depends on other fields.
    pub fn complete(&mut self) {
        if self.mode.is_empty() {
            self.mode = "nftables".into();
        }
        if self.mode == "nftables" && self.node_port_addresses.is_empty() {
            self.node_port_addresses = vec!["primary".into()];
        }
        if self.detect_local_mode.is_empty() {
            self.detect_local_mode = "ClusterCIDR".into();
        }
        for (address, port) in [(&mut self.healthz_bind_address, PORTS.0), (&mut self.metrics_bind_address, PORTS.1)] {
            *address = with_port(address, port);
        }
    }

    /// The settings of the mode that is on.
    pub fn backend(&self) -> Backend {
        let (iptables, nftables) = (&self.iptables, &self.nftables);
        match self.mode.as_str() {
            "iptables" => Backend {
                masquerade_all: iptables.masquerade_all,
                masquerade_bit: iptables.masquerade_bit,
                sync_period: iptables.sync_period.0,
                min_sync_period: iptables.min_sync_period.0,
            },
            _ => Backend {
                masquerade_all: nftables.masquerade_all,
                masquerade_bit: nftables.masquerade_bit,
                sync_period: nftables.sync_period.0,
                min_sync_period: nftables.min_sync_period.0,
            },
        }
    }

    /// `clusterCIDR`, one text for each family.
    pub fn cluster_cidrs(&self) -> Vec<&str> {
        if self.cluster_cidr.is_empty() { Vec::new() } else { self.cluster_cidr.split(',').collect() }
    }

    /// Fields that differ from upstream's defaults and change nothing in this proxy, for a warning at start.
    pub fn idle(&self) -> Vec<&'static str> {
        fields::differing(&json(self), &defaults(), IDLE)
    }

    /// Refuses what can't work, in upstream's words.
    ///
    /// # Errors
    /// Names the fields.
    pub fn validate(&self) -> Result<(), Error> {
        let mut errors = Errors::new();
        let path = field::Path::new(KIND);
        self.validate_rules(&path, &mut errors);
        self.validate_host(&path, &mut errors);
        validate_mode(&self.mode, &path, &mut errors);
        if self.client_connection.burst < 0 {
            let path = path.child("ClientConnection").child("Burst");
            let detail = "must be greater than or equal to 0";
            errors.push(field::Error::invalid(&path, self.client_connection.burst, detail));
        }
        self.validate_periods(&path, &mut errors);
        self.validate_addresses(&path, &mut errors);
        self.validate_local(&path, &mut errors);
        errors.aggregate().map_or(Ok(()), |text| Err(Error::Invalid(text)))
    }

    fn validate_rules(&self, path: &field::Path, errors: &mut Errors) {
        let bits = [
            ("KubeProxyIPTablesConfiguration", self.iptables.masquerade_bit, true),
            ("KubeProxyNFTablesConfiguration", self.nftables.masquerade_bit, self.mode == "nftables"),
        ];
        for (section, bit, _) in bits.into_iter().filter(|(.., on)| *on) {
            if !(0..=31).contains(&bit) {
                let path = path.child(section).child("MasqueradeBit");
                errors.push(field::Error::invalid(&path, bit, "must be within the range [0, 31]"));
            }
        }
    }

    fn validate_host(&self, path: &field::Path, errors: &mut Errors) {
        let path = path.child("KubeProxyLinuxConfiguration");
        let conntrack = path.child("KubeProxyConntrackConfiguration");
        for (name, value) in [("MaxPerCore", self.conntrack.max_per_core), ("Min", self.conntrack.min)] {
            if value < 0 {
                let detail = "must be greater than or equal to 0";
                errors.push(field::Error::invalid(&conntrack.child(name), value, detail));
            }
        }
        if !(-1000..=1000).contains(&self.oom_score_adj) {
            let detail = "must be within the range [-1000, 1000]";
            errors.push(field::Error::invalid(&path.child("OOMScoreAdj"), self.oom_score_adj, detail));
        }
    }

    fn validate_periods(&self, path: &field::Path, errors: &mut Errors) {
        let Backend { sync_period, min_sync_period, .. } = self.backend();
        let mut refuse = |name: &str, value: Duration, detail: &str| {
            errors.push(field::Error::invalid(&path.child(name), base::clock::format_duration(value), detail));
        };
        for (name, value) in [("ConfigSyncPeriod", self.config_sync_period.0), ("SyncPeriod", sync_period)] {
            if value.is_zero() {
                refuse(name, value, "must be greater than 0");
            }
        }
        if min_sync_period > sync_period {
            let least = path.child("MinSyncPeriod");
            refuse("SyncPeriod", min_sync_period, &format!("must be greater than or equal to {least}"));
        }
    }

    fn validate_addresses(&self, path: &field::Path, errors: &mut Errors) {
        if self.bind_address.parse::<IpAddr>().is_err() {
            let detail = "not a valid textual representation of an IP address";
            errors.push(field::Error::invalid(&path.child("BindAddress"), self.bind_address.as_str(), detail));
        }
        for (name, text) in
            [("HealthzBindAddress", &self.healthz_bind_address), ("MetricsBindAddress", &self.metrics_bind_address)]
        {
            // Upstream's flag says that empty is off, though it refuses that for metrics.
            if !text.is_empty() {
                validate_host_port(text, &path.child(name), errors);
            }
        }
        let path = path.child("NodePortAddresses");
        let primary = |text: &String| text == "primary";
        let until = self.node_port_addresses.iter().position(primary).map_or(usize::MAX, |i| i + 1);
        for (i, text) in self.node_port_addresses.iter().enumerate().take(until) {
            let detail = match primary(text) {
                true if self.node_port_addresses.len() > 1 => "can't use both 'primary' and CIDRs",
                false if text.parse::<IpNet>().is_err() => "must be a valid CIDR",
                _ => continue,
            };
            errors.push(field::Error::invalid(&path.index(i), text.as_str(), detail));
        }
    }

    fn validate_local(&self, path: &field::Path, errors: &mut Errors) {
        let modes = ["ClusterCIDR", "NodeCIDR", "BridgeInterface", "InterfaceNamePrefix", ""];
        let mode = self.detect_local_mode.as_str();
        if !modes.contains(&mode) {
            errors.push(field::Error::not_supported(&path.child("DetectLocalMode"), mode, &modes));
        }
        let path = path.child("DetectLocalConfiguration");
        let DetectLocal { bridge_interface, interface_name_prefix } = &self.detect_local;
        let (name, text) = match mode {
            "BridgeInterface" => ("InterfaceName", bridge_interface),
            "InterfaceNamePrefix" => ("InterfacePrefix", interface_name_prefix),
            "ClusterCIDR" => return validate_pair(&self.cluster_cidrs(), &path.child("ClusterCIDRs"), errors),
            _ => return,
        };
        if text.is_empty() {
            errors.push(field::Error::invalid(&path.child(name), "", "must not be empty"));
        }
    }
}

fn validate_mode(mode: &str, path: &field::Path, errors: &mut Errors) {
    let path = path.child("Mode").child("ProxyMode");
    match mode {
        "" | "nftables" | "iptables" => {}
        "ipvs" => {
            let detail = "ipvs is not supported by this kube-proxy; nftables directs the same services";
            errors.push(field::Error::forbidden(&path, detail));
        }
        other => {
            let detail = "must be iptables, ipvs, nftables or blank (blank means the best-available proxy [currently \
                          nftables])";
            errors.push(field::Error::invalid(&path, other, detail));
        }
    }
}

/// Host and port, the host without brackets.
fn split_host_port(text: &str) -> Option<(&str, &str)> {
    let (host, port) = text.rsplit_once(':')?;
    match host.strip_prefix('[') {
        Some(host) => Some((host.strip_suffix(']')?, port)),
        None => (!host.contains(':')).then_some((host, port)),
    }
}

fn validate_host_port(text: &str, path: &field::Path, errors: &mut Errors) {
    let Some((host, port)) = split_host_port(text) else {
        return errors.push(field::Error::invalid(path, text, "must be IP:port"));
    };
    if host.parse::<IpAddr>().is_err() {
        errors.push(field::Error::invalid(path, host, "must be a valid IP"));
    }
    if !port.parse::<u16>().is_ok_and(|port| port > 0) {
        errors.push(field::Error::invalid(path, port, "must be a valid port"));
    }
}

/// One network, or one of each family; or none at all.
fn validate_pair(cidrs: &[&str], path: &field::Path, errors: &mut Errors) {
    let parsed: Vec<Option<IpNet>> = cidrs.iter().map(|cidr| cidr.parse().ok()).collect();
    let pair = "must be a either a single CIDR or dual-stack pair of CIDRs (e.g. [10.100.0.0/16, \
                fde4:8dba:82e1::/48]";
    let same = |a: &IpNet, b: &IpNet| a.addr().is_ipv4() == b.addr().is_ipv4();
    if cidrs.len() > 2 {
        return errors.push(field::Error::invalid(path, json!(cidrs), pair));
    }
    for (i, cidr) in cidrs.iter().enumerate().filter(|(i, _)| parsed[*i].is_none()) {
        let detail = "must be a valid CIDR block (e.g. 10.100.0.0/16 or fde4:8dba:82e1::/48)";
        errors.push(field::Error::invalid(&path.index(i), *cidr, detail));
    }
    if let [Some(a), Some(b)] = parsed.as_slice()
        && same(a, b)
    {
        errors.push(field::Error::invalid(path, json!(cidrs), pair));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(fields: &str) -> Result<Config, String> {
        let mut config =
            parse(&format!("apiVersion: {API_VERSION}\nkind: {KIND}\n{fields}")).map_err(|e| e.to_string())?;
        config.complete();
        config.validate().map_err(|e| e.to_string())?;
        Ok(config)
    }

    #[test]
    fn what_a_file_leaves_out_has_upstreams_defaults() {
        let config = read("").unwrap();
        let backend = config.backend();
        assert_eq!((backend.masquerade_bit, backend.sync_period), (14, Duration::from_secs(30)));
        assert_eq!(config.node_port_addresses, ["primary"]);
        assert_eq!(config.detect_local_mode, "ClusterCIDR");
        assert_eq!(config.conntrack.tcp_established_timeout, Span::secs(86_400));
        let empty = "nftables: {masqueradeBit: null, syncPeriod: 0s}\nmetricsBindAddress: ''\nbindAddress: '::1'\n";
        let config = read(empty).unwrap();
        assert_eq!(config.backend(), backend);
        assert_eq!(
            (config.healthz_bind_address, config.metrics_bind_address),
            ("[::]:10256".into(), "[::1]:10249".into())
        );
        assert_eq!(read("healthzBindAddress: 10.0.0.1").unwrap().healthz_bind_address, "10.0.0.1:10256");
    }

    #[test]
    fn zero_leaves_the_kernels_times_alone_though_it_is_no_default() {
        let text = "conntrack: {maxPerCore: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s, min: null}";
        let conntrack = read(text).unwrap().conntrack;
        assert_eq!(
            (
                conntrack.max_per_core,
                conntrack.min,
                conntrack.tcp_established_timeout,
                conntrack.tcp_close_wait_timeout
            ),
            (0, 131_072, Span::secs(0), Span::secs(0))
        );
    }

    #[test]
    fn the_settings_of_the_mode_count_and_iptables_has_node_ports_everywhere() {
        let text = "mode: iptables\niptables: {masqueradeBit: 3, masqueradeAll: true}\nnftables: {masqueradeBit: 4}";
        let config = read(text).unwrap();
        assert_eq!((config.backend().masquerade_bit, config.backend().masquerade_all), (3, true));
        assert!(config.node_port_addresses.is_empty());
    }

    #[test]
    fn what_can_not_be_used_is_refused_in_upstreams_words() {
        let invalid = |field: &str, rest: &str| format!("failed validate: KubeProxyConfiguration.{field}: {rest}");
        for (text, want) in [
            (
                "nftables: {masqueradeBit: 32}",
                invalid(
                    "KubeProxyNFTablesConfiguration.MasqueradeBit",
                    "Invalid value: 32: must be within the range [0, 31]",
                ),
            ),
            (
                "nftables: {syncPeriod: 1s, minSyncPeriod: 2s}",
                invalid(
                    "SyncPeriod",
                    "Invalid value: \"2s\": must be greater than or equal to KubeProxyConfiguration.MinSyncPeriod",
                ),
            ),
            (
                "nodePortAddresses: [primary, 10.0.0.0/8]",
                invalid("NodePortAddresses[0]", "Invalid value: \"primary\": can't use both 'primary' and CIDRs"),
            ),
            (
                "nodePortAddresses: [10.0.0.1]",
                invalid("NodePortAddresses[0]", "Invalid value: \"10.0.0.1\": must be a valid CIDR"),
            ),
            (
                "detectLocalMode: Guess",
                invalid(
                    "DetectLocalMode",
                    "Unsupported value: \"Guess\": supported values: \"ClusterCIDR\", \"NodeCIDR\", \
                     \"BridgeInterface\", \"InterfaceNamePrefix\", \"\"",
                ),
            ),
            (
                "detectLocalMode: BridgeInterface",
                invalid("DetectLocalConfiguration.InterfaceName", "Invalid value: \"\": must not be empty"),
            ),
            (
                "clusterCIDR: 10.244.0.0/16,x",
                invalid(
                    "DetectLocalConfiguration.ClusterCIDRs[1]",
                    "Invalid value: \"x\": must be a valid CIDR block (e.g. 10.100.0.0/16 or fde4:8dba:82e1::/48)",
                ),
            ),
            ("healthzBindAddress: 'x:0'", {
                let field = "KubeProxyConfiguration.HealthzBindAddress: Invalid value";
                format!("failed validate: [{field}: \"x\": must be a valid IP, {field}: \"0\": must be a valid port]")
            }),
            (
                "conntrack: {min: -1}",
                invalid(
                    "KubeProxyLinuxConfiguration.KubeProxyConntrackConfiguration.Min",
                    "Invalid value: -1: must be greater than or equal to 0",
                ),
            ),
            (
                "oomScoreAdj: 1001",
                invalid(
                    "KubeProxyLinuxConfiguration.OOMScoreAdj",
                    "Invalid value: 1001: must be within the range [-1000, 1000]",
                ),
            ),
        ] {
            assert_eq!(read(text).unwrap_err(), want);
        }
        assert!(read("clusterCIDR: 10.0.0.0/8,11.0.0.0/8").unwrap_err().contains("dual-stack pair"));
        assert!(read("mode: ipvs").unwrap_err().contains("not supported by this kube-proxy"));
        assert!(read("mode: userspace").unwrap_err().contains("must be iptables, ipvs, nftables or blank"));
        assert!(read("nftables: {masqueradeBit: many}").unwrap_err().contains("failed to decode"));
        read("clusterCIDR: 10.244.0.0/16,fd00::/48\nnodePortAddresses: [10.0.0.0/8, 'fd00::/64']").unwrap();
    }

    #[test]
    fn fields_that_are_unknown_are_passed_over_and_those_without_effect_are_told() {
        let text = "udpIdleTimeout: 250ms\nnftables: {nope: 1}\nfeatureGates: {A: true}\nlogging: {verbosity: 4}\n";
        let mut value: Value = serde_saphyr::from_str(text).unwrap();
        assert_eq!(take_unknown(&mut value, &defaults(), ""), ["udpIdleTimeout", "nftables.nope"]);
        assert_eq!(read(text).unwrap().idle(), ["featureGates", "logging"]);
        assert!(parse("kind: Other").unwrap_err().to_string().contains("no kind \"Other\" is registered"));
    }
}

//! The kubelet's command line: upstream's flags, and how they go over the configuration file.

use crate::config::{Config, ConfigError, Span};
use base::flags::{self as f, Flags};
use clap::{Arg, Command};
use k8s_openapi::api::core::v1::Taint;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The kubelet's command line.
pub fn command() -> Command {
    f::command("kubelet", "The node's agent: runs the pods of its node and tells the API server of them.", list())
}

fn list() -> Vec<Arg> {
    let mut flags = own();
    flags.extend(configuration());
    flags.extend(tolerated());
    flags
}

/// Flags that are not fields of the configuration.
fn own() -> Vec<Arg> {
    vec![
        f::text("config", "", "file with a KubeletConfiguration; flags go over it"),
        f::text("config-dir", "", "directory of .conf files that go over --config, in order of their names"),
        f::text("kubeconfig", "", "kubeconfig for the API server; without it the kubelet runs static pods alone"),
        f::text(
            "bootstrap-kubeconfig",
            "",
            "kubeconfig for asking for a client certificate when --kubeconfig is missing",
        ),
        f::text("root-dir", "/var/lib/kubelet", "directory for volumes and state"),
        f::text("cert-dir", "", "directory of certificates; by default pki below --root-dir"),
        f::text("hostname-override", "", "name of the node instead of the machine's"),
        f::text("node-ip", "", "address of the node; two by comma for both families"),
        f::map("node-labels", "labels to register with"),
        f::text("cloud-provider", "", "external, or empty"),
        f::int("maximum-dead-containers", -1, "ended containers kept on the node; -1 is no limit"),
        f::int("maximum-dead-containers-per-container", 1, "ended runs kept of each container"),
        f::duration("minimum-container-ttl-duration", "0s", "how long an ended container is kept at least"),
    ]
}

/// Flags that are fields of the configuration. Their defaults are the configuration's.
fn configuration() -> Vec<Arg> {
    vec![
        f::text("address", "0.0.0.0", "address to serve on"),
        f::switch("anonymous-auth", false, "let requests without credentials be system:anonymous"),
        f::switch("authentication-token-webhook", true, "ask the API server about tokens"),
        f::duration("authentication-token-webhook-cache-ttl", "2m0s", "how long answers on tokens are kept"),
        f::choice("authorization-mode", "Webhook", &["AlwaysAllow", "Webhook"], "what clients may do"),
        f::duration("authorization-webhook-cache-authorized-ttl", "5m0s", "how long a yes is kept"),
        f::duration("authorization-webhook-cache-unauthorized-ttl", "30s", "how long a no is kept"),
        f::text("cgroup-driver", "cgroupfs", "cgroupfs or systemd"),
        f::text("cgroup-root", "", "control group above all pods"),
        f::switch("cgroups-per-qos", true, "a control group for each class and pod"),
        f::text("client-ca-file", "", "authorities whose client certificates are trusted"),
        f::list("cluster-dns", "", "addresses of the cluster's DNS"),
        f::text("cluster-domain", "", "domain of the cluster"),
        f::int("container-log-max-files", 5, "log files of a container"),
        f::text("container-log-max-size", "10Mi", "size of a log before it is rotated"),
        f::text("container-runtime-endpoint", "unix:///run/containerd/containerd.sock", "the runtime's socket"),
        f::switch("cpu-cfs-quota", true, "enforce cpu limits"),
        f::duration("cpu-cfs-quota-period", "100ms", "the period of the quota"),
        f::switch("enable-debugging-handlers", true, "serve exec, logs and the like"),
        f::switch("enable-server", true, "serve at all"),
        f::list("enforce-node-allocatable", "pods", "where reservations are enforced"),
        f::map("eviction-hard", "thresholds that evict at once, as memory.available<1Gi"),
        f::duration("eviction-pressure-transition-period", "5m0s", "how long a pressure is shown after it ended"),
        f::switch("fail-cgroupv1", true, "refuse to start on version 1 of control groups"),
        f::switch("fail-swap-on", true, "refuse to start with swap"),
        f::map("feature-gates", "features switched on or off"),
        f::duration("file-check-frequency", "20s", "how often static pods are read without cause"),
        f::text("healthz-bind-address", "127.0.0.1", "address of the health endpoint"),
        f::int("healthz-port", 10248, "port of the health endpoint; 0 is off"),
        f::int("image-gc-high-threshold", 85, "disk use in percent above which images are removed"),
        f::int("image-gc-low-threshold", 80, "disk use in percent down to which they are removed"),
        f::text("image-service-endpoint", "", "the images' socket, when it is another"),
        f::map("kube-reserved", "resources kept for the cluster's parts"),
        f::int("max-pods", 110, "pods on this node"),
        f::duration("minimum-image-ttl-duration", "2m0s", "how long an unused image is kept at least"),
        f::int("node-status-max-images", 50, "images in the node's status; -1 is all"),
        f::duration("node-status-update-frequency", "10s", "how often the node's status is made"),
        f::int("oom-score-adj", -999, "out-of-memory score of the kubelet"),
        f::text("pod-cidr", "", "range of pods' addresses without an API server"),
        f::int("pod-max-pids", -1, "processes in a pod"),
        f::text("pod-manifest-path", "", "directory (or file) of static pods"),
        f::int("pods-per-core", 0, "pods for each processor; 0 is no limit"),
        f::int("port", 10250, "port to serve on"),
        f::text("provider-id", "", "the cloud's name of this machine"),
        f::int("read-only-port", 0, "port without authentication; 0 is off"),
        f::switch("register-node", true, "register the node"),
        f::list("register-with-taints", "", "taints to register with: key=value:effect"),
        f::int("registry-burst", 10, "pulls at once"),
        f::int("registry-qps", 5, "pulls in a second; 0 is no limit"),
        f::text("resolv-conf", "/etc/resolv.conf", "the node's resolver configuration"),
        f::switch("rotate-certificates", false, "renew the client certificate through the API"),
        f::switch("rotate-server-certificates", false, "ask for the serving certificate through the API"),
        f::switch("seccomp-default", false, "the runtime's seccomp profile for pods that name none"),
        f::switch("serialize-image-pulls", true, "pull one image at a time"),
        f::duration("streaming-connection-idle-timeout", "4h0m0s", "how long a silent stream is kept"),
        f::duration("sync-frequency", "1m0s", "how often a pod is looked at without cause"),
        f::map("system-reserved", "resources kept for the system"),
        f::text("tls-cert-file", "", "serving certificate"),
        f::list("tls-cipher-suites", "", "cipher suites of TLS 1.2"),
        f::text("tls-min-version", "", "lowest version of TLS"),
        f::text("tls-private-key-file", "", "key of the serving certificate"),
    ]
}

/// Flags of upstream's that have no part to play here: they are taken, so that a unit file written for upstream starts.
fn tolerated() -> Vec<Arg> {
    let mut flags: Vec<Arg> = [
        "allowed-unsafe-sysctls",
        "container-runtime",
        "cpu-manager-policy",
        "experimental-mounter-path",
        "eviction-minimum-reclaim",
        "eviction-soft",
        "eviction-soft-grace-period",
        "hairpin-mode",
        "image-credential-provider-bin-dir",
        "image-credential-provider-config",
        "kube-api-content-type",
        "kube-reserved-cgroup",
        "kubelet-cgroups",
        "lock-file",
        "manifest-url",
        "memory-manager-policy",
        "pod-infra-container-image",
        "qos-reserved",
        "reserved-cpus",
        "reserved-memory",
        "runtime-cgroups",
        "system-cgroups",
        "system-reserved-cgroup",
        "topology-manager-policy",
        "topology-manager-scope",
        "volume-plugin-dir",
        "cpu-manager-policy-options",
        "topology-manager-policy-options",
        "manifest-url-header",
    ]
    .map(|name| f::text(name, "", "taken, without effect"))
    .into();
    flags.extend(
        [
            "contention-profiling",
            "enable-controller-attach-detach",
            "exit-on-lock-contention",
            "experimental-allocatable-ignore-eviction",
            "kernel-memcg-notification",
            "local-storage-capacity-isolation",
            "make-iptables-util-chains",
            "protect-kernel-defaults",
            "runonce",
        ]
        .map(|name| f::switch(name, false, "taken, without effect")),
    );
    flags.extend(
        [
            "event-burst",
            "event-qps",
            "eviction-max-pod-grace-period",
            "kube-api-burst",
            "kube-api-qps",
            "max-open-files",
        ]
        .map(|name| f::int(name, 0, "taken, without effect")),
    );
    flags.extend(
        ["cpu-manager-reconcile-period", "http-check-frequency", "runtime-request-timeout", "volume-stats-agg-period"]
            .map(|name| f::duration(name, "0s", "taken, without effect")),
    );
    flags
}

/// What the command line says beside the configuration.
#[derive(Clone, Debug)]
pub struct Options {
    /// The configuration: file, then flags.
    pub config: Config,
    /// Way to the API server.
    pub kubeconfig: Option<PathBuf>,
    /// Way to a first client certificate.
    pub bootstrap_kubeconfig: Option<PathBuf>,
    /// Directory for volumes and state.
    pub root_dir: PathBuf,
    /// Directory of certificates.
    pub cert_dir: PathBuf,
    /// The node's name.
    pub node_name: String,
    /// The node's addresses, when they are given.
    pub node_ips: Vec<std::net::IpAddr>,
    /// Labels to register with.
    pub node_labels: BTreeMap<String, String>,
    /// Does a cloud set the node's addresses?
    pub external_cloud: bool,
    /// Ended containers kept on the node; `None` is no limit.
    pub dead_containers: Option<usize>,
    /// Ended runs kept of each container.
    pub dead_per_container: usize,
    /// How long an ended container is kept at least.
    pub dead_age: std::time::Duration,
}

impl Options {
    /// Reads the configuration file and puts the flags over it.
    ///
    /// # Errors
    /// When the file can't be read or a value makes no sense.
    pub fn from_flags(flags: &Flags) -> Result<Self, ConfigError> {
        let mut config = match flags.path("config") {
            Some(path) => Config::read(&path)?,
            None => Config::default(),
        };
        overlay(flags, &mut config)?;
        config.validate()?;
        let root_dir = flags.path("root-dir").unwrap_or_else(|| "/var/lib/kubelet".into());
        let invalid = |text: String| ConfigError::Invalid(text);
        let ips = flags
            .list("node-ip")
            .into_iter()
            .map(|ip| ip.parse().map_err(|_| invalid(format!("bad --node-ip {ip:?}"))));
        let node_name = match flags.text("hostname-override") {
            "" => client::hostname(),
            given => given.to_owned(),
        };
        Ok(Self {
            config,
            kubeconfig: flags.path("kubeconfig"),
            bootstrap_kubeconfig: flags.path("bootstrap-kubeconfig"),
            cert_dir: flags.path("cert-dir").unwrap_or_else(|| root_dir.join("pki")),
            root_dir,
            node_name: node_name.trim().to_lowercase(),
            node_ips: ips.collect::<Result<_, _>>()?,
            node_labels: flags.map("node-labels"),
            external_cloud: flags.text("cloud-provider") == "external",
            dead_containers: usize::try_from(flags.int("maximum-dead-containers")).ok(),
            dead_per_container: flags.int("maximum-dead-containers-per-container").max(0) as usize,
            dead_age: flags.duration("minimum-container-ttl-duration"),
        })
    }
}

/// Puts the flags that were given over the configuration.
fn overlay(flags: &Flags, config: &mut Config) -> Result<(), ConfigError> {
    let text = |name: &str, field: &mut String| {
        if flags.given(name) {
            *field = flags.text(name).to_owned();
        }
    };
    let switch = |name: &str, field: &mut bool| {
        if flags.given(name) {
            *field = flags.switch(name);
        }
    };
    let span = |name: &str, field: &mut Span| {
        if flags.given(name) {
            *field = Span(flags.duration(name));
        }
    };
    let int = |name: &str, field: &mut i32| {
        if flags.given(name) {
            *field = flags.int(name).clamp(i32::MIN.into(), i32::MAX.into()) as i32;
        }
    };
    let list = |name: &str, field: &mut Vec<String>| {
        if flags.given(name) {
            *field = flags.list(name);
        }
    };
    let map = |name: &str, field: &mut BTreeMap<String, String>| {
        if flags.given(name) {
            *field = flags.map(name);
        }
    };
    text("address", &mut config.address);
    switch("anonymous-auth", &mut config.authentication.anonymous.enabled);
    switch("authentication-token-webhook", &mut config.authentication.webhook.enabled);
    span("authentication-token-webhook-cache-ttl", &mut config.authentication.webhook.cache_ttl);
    text("authorization-mode", &mut config.authorization.mode);
    span("authorization-webhook-cache-authorized-ttl", &mut config.authorization.webhook.cache_authorized_ttl);
    span("authorization-webhook-cache-unauthorized-ttl", &mut config.authorization.webhook.cache_unauthorized_ttl);
    text("cgroup-driver", &mut config.cgroup_driver);
    text("cgroup-root", &mut config.cgroup_root);
    switch("cgroups-per-qos", &mut config.cgroups_per_qos);
    text("client-ca-file", &mut config.authentication.x509.client_ca_file);
    list("cluster-dns", &mut config.cluster_dns);
    text("cluster-domain", &mut config.cluster_domain);
    int("container-log-max-files", &mut config.container_log_max_files);
    text("container-log-max-size", &mut config.container_log_max_size);
    text("container-runtime-endpoint", &mut config.container_runtime_endpoint);
    switch("cpu-cfs-quota", &mut config.cpu_cfs_quota);
    span("cpu-cfs-quota-period", &mut config.cpu_cfs_quota_period);
    switch("enable-debugging-handlers", &mut config.enable_debugging_handlers);
    switch("enable-server", &mut config.enable_server);
    list("enforce-node-allocatable", &mut config.enforce_node_allocatable);
    if flags.given("eviction-hard") {
        config.eviction_hard = Some(thresholds(flags));
    }
    span("eviction-pressure-transition-period", &mut config.eviction_pressure_transition_period);
    switch("fail-cgroupv1", &mut config.fail_cgroup_v1);
    switch("fail-swap-on", &mut config.fail_swap_on);
    if flags.given("feature-gates") {
        config.feature_gates = flags.map("feature-gates").into_iter().map(|(k, v)| (k, v == "true")).collect();
    }
    span("file-check-frequency", &mut config.file_check_frequency);
    text("healthz-bind-address", &mut config.healthz_bind_address);
    port(flags, "healthz-port", &mut config.healthz_port)?;
    int("image-gc-high-threshold", &mut config.image_gc_high_threshold_percent);
    int("image-gc-low-threshold", &mut config.image_gc_low_threshold_percent);
    text("image-service-endpoint", &mut config.image_service_endpoint);
    map("kube-reserved", &mut config.kube_reserved);
    int("max-pods", &mut config.max_pods);
    span("minimum-image-ttl-duration", &mut config.image_minimum_gc_age);
    int("node-status-max-images", &mut config.node_status_max_images);
    span("node-status-update-frequency", &mut config.node_status_update_frequency);
    int("oom-score-adj", &mut config.oom_score_adj);
    text("pod-cidr", &mut config.pod_cidr);
    if flags.given("pod-max-pids") {
        config.pod_pids_limit = flags.int("pod-max-pids");
    }
    text("pod-manifest-path", &mut config.static_pod_path);
    int("pods-per-core", &mut config.pods_per_core);
    port(flags, "port", &mut config.port)?;
    text("provider-id", &mut config.provider_id);
    port(flags, "read-only-port", &mut config.read_only_port)?;
    switch("register-node", &mut config.register_node);
    if flags.given("register-with-taints") {
        config.register_with_taints = taints(&flags.list("register-with-taints"))?;
    }
    int("registry-burst", &mut config.registry_burst);
    int("registry-qps", &mut config.registry_pull_qps);
    text("resolv-conf", &mut config.resolv_conf);
    switch("rotate-certificates", &mut config.rotate_certificates);
    switch("rotate-server-certificates", &mut config.server_tls_bootstrap);
    switch("seccomp-default", &mut config.seccomp_default);
    if flags.given("serialize-image-pulls") {
        config.serialize_image_pulls = Some(flags.switch("serialize-image-pulls"));
    }
    span("streaming-connection-idle-timeout", &mut config.streaming_connection_idle_timeout);
    span("sync-frequency", &mut config.sync_frequency);
    map("system-reserved", &mut config.system_reserved);
    text("tls-cert-file", &mut config.tls_cert_file);
    list("tls-cipher-suites", &mut config.tls_cipher_suites);
    text("tls-min-version", &mut config.tls_min_version);
    text("tls-private-key-file", &mut config.tls_private_key_file);
    Ok(())
}

fn port(flags: &Flags, name: &str, field: &mut u16) -> Result<(), ConfigError> {
    if flags.given(name) {
        let value = flags.int(name);
        *field = u16::try_from(value)
            .map_err(|_| ConfigError::Invalid(format!("--{name} {value} must be between 0 and 65535, inclusive")))?;
    }
    Ok(())
}

/// `memory.available<1Gi,nodefs.available<10%`
fn thresholds(flags: &Flags) -> BTreeMap<String, String> {
    let pairs = flags.list("eviction-hard");
    pairs.iter().filter_map(|pair| pair.split_once('<')).map(|(name, value)| (name.into(), value.into())).collect()
}

/// `key=value:effect` or `key:effect`.
fn taints(list: &[String]) -> Result<Vec<Taint>, ConfigError> {
    let parse = |text: &String| {
        let (rest, effect) = text.rsplit_once(':')?;
        let (key, value) = match rest.split_once('=') {
            Some((key, value)) => (key, Some(value.to_owned())),
            None => (rest, None),
        };
        let known = matches!(effect, "NoSchedule" | "PreferNoSchedule" | "NoExecute");
        (known && !key.is_empty()).then(|| Taint { key: key.into(), value, effect: effect.into(), time_added: None })
    };
    list.iter()
        .map(|text| parse(text).ok_or_else(|| ConfigError::Invalid(format!("invalid taint spec: {text}"))))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(args: &[&str]) -> Result<Options, String> {
        match f::parse(command(), args.iter().map(std::ffi::OsString::from)) {
            Ok(flags) => Options::from_flags(&flags).map_err(|error| error.to_string()),
            Err(f::Exit::Refuse(text)) => Err(text),
            Err(f::Exit::Print(text)) => Err(text),
        }
    }

    #[test]
    fn flags_go_over_the_configuration() {
        let options = options(&[
            "--hostname-override=N1",
            "--node-ip=10.0.0.1",
            "--port=1",
            "--cgroup-root",
            "/x",
            "--register-with-taints=a=b:NoSchedule,c:NoExecute",
            "--node-labels=a=b,c=d",
            "--eviction-hard=memory.available<1Gi",
        ])
        .unwrap();
        assert_eq!(options.node_name, "n1");
        assert_eq!((options.config.port, options.config.cgroup_root.as_str()), (1, "/x"));
        assert_eq!(options.config.register_with_taints.len(), 2);
        assert_eq!(options.node_labels.len(), 2);
        assert_eq!(options.config.eviction_hard()["memory.available"], "1Gi");
        assert_eq!(options.config.max_pods, 110);
    }

    #[test]
    fn an_unknown_flag_is_refused_by_name() {
        assert_eq!(options(&["--no-such"]).unwrap_err(), "unknown flag: --no-such");
        assert!(options(&["--register-with-taints=a"]).unwrap_err().contains("invalid taint spec: a"));
    }
}

//! The kubelet's command line: upstream's flags, and how they go over the configuration file.
//!
//! ```text
//!   --config ─▶ --config-dir/*.conf ─▶ FIELDS that were given ─▶ Config ─▶ validate
//! ```
//! Most flags are fields of the configuration: a row of [`FIELDS`] each, which declares the flag with the field's
//! default and puts it over the field. The others are in [`own`].

use crate::config::{self, Config, ConfigError};
use base::fields::{self, Field, Form, field};
use base::flags::{self as f, Flags};
use clap::{Arg, Command};
use k8s_openapi::api::core::v1::Taint;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The kubelet's command line.
pub fn command() -> Command {
    f::command("kubelet", "The node's agent: runs the pods of its node and tells the API server of them.", list())
}

fn list() -> Vec<Arg> {
    let defaults = config::defaults();
    let mut flags = own();
    flags.extend(FIELDS.iter().map(|field| field.flag(&defaults)));
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
        f::text("lock-file", "", ABSENT),
        f::switch("exit-on-lock-contention", false, ABSENT),
        f::text("runtime-cgroups", "", "accepted; the runtime has its own"),
        f::text("image-credential-provider-config", "", ABSENT),
        f::text("image-credential-provider-bin-dir", "", ABSENT),
        f::text("experimental-mounter-path", "", "accepted; volumes are mounted directly"),
        f::switch("experimental-allocatable-ignore-eviction", false, "leave eviction thresholds out of allocatable"),
    ]
}

/// Help of a flag that this kubelet refuses when it is given.
const ABSENT: &str = "not supported by this kubelet: other values than the default are refused";

/// Help of a flag that is taken, so that a unit file written for upstream starts, and changes nothing.
const IDLE: &str = "taken, without effect here; a warning is logged";

/// Flags beside the configuration that are refused when they are given.
const REFUSED: [&str; 4] =
    ["lock-file", "exit-on-lock-contention", "image-credential-provider-config", "image-credential-provider-bin-dir"];

/// The flags that are fields of the configuration.
const FIELDS: &[Field] = &[
    field("address", "/address", Form::Text, "address to serve on"),
    field(
        "allowed-unsafe-sysctls",
        "/allowedUnsafeSysctls",
        Form::List,
        "kernel settings beyond the safe ones that pods may change, * at the end for more",
    ),
    field(
        "anonymous-auth",
        "/authentication/anonymous/enabled",
        Form::Switch,
        "let requests without credentials be system:anonymous",
    ),
    field(
        "authentication-token-webhook",
        "/authentication/webhook/enabled",
        Form::Switch,
        "ask the API server about tokens",
    ),
    field(
        "authentication-token-webhook-cache-ttl",
        "/authentication/webhook/cacheTTL",
        Form::Span,
        "how long answers on tokens are kept",
    ),
    field("authorization-mode", "/authorization/mode", Form::Text, "what clients may do"),
    field(
        "authorization-webhook-cache-authorized-ttl",
        "/authorization/webhook/cacheAuthorizedTTL",
        Form::Span,
        "how long a yes is kept",
    ),
    field(
        "authorization-webhook-cache-unauthorized-ttl",
        "/authorization/webhook/cacheUnauthorizedTTL",
        Form::Span,
        "how long a no is kept",
    ),
    field("cgroup-driver", "/cgroupDriver", Form::Text, "cgroupfs or systemd"),
    field("cgroup-root", "/cgroupRoot", Form::Text, "control group above all pods"),
    field("cgroups-per-qos", "/cgroupsPerQOS", Form::Switch, "a control group for each class and pod"),
    field(
        "client-ca-file",
        "/authentication/x509/clientCAFile",
        Form::Text,
        "authorities whose client certificates are trusted",
    ),
    field("cluster-dns", "/clusterDNS", Form::List, "addresses of the cluster's DNS"),
    field("cluster-domain", "/clusterDomain", Form::Text, "domain of the cluster"),
    field("container-log-max-files", "/containerLogMaxFiles", Form::Int, "log files of a container"),
    field("container-log-max-size", "/containerLogMaxSize", Form::Text, "size of a log before it is rotated"),
    field("container-runtime-endpoint", "/containerRuntimeEndpoint", Form::Text, "the runtime's socket"),
    field("contention-profiling", "/enableContentionProfiling", Form::Switch, IDLE),
    field("cpu-cfs-quota", "/cpuCFSQuota", Form::Switch, "enforce cpu limits"),
    field("cpu-cfs-quota-period", "/cpuCFSQuotaPeriod", Form::Span, "the period of the quota"),
    field("cpu-manager-policy", "/cpuManagerPolicy", Form::Text, ABSENT),
    field("cpu-manager-policy-options", "/cpuManagerPolicyOptions", Form::Map, ABSENT),
    field("cpu-manager-reconcile-period", "/cpuManagerReconcilePeriod", Form::Span, IDLE),
    field(
        "enable-controller-attach-detach",
        "/enableControllerAttachDetach",
        Form::Switch,
        "let a controller attach volumes",
    ),
    field("enable-debugging-handlers", "/enableDebuggingHandlers", Form::Switch, "serve exec, logs and the like"),
    field("enable-server", "/enableServer", Form::Switch, "serve at all"),
    field("enforce-node-allocatable", "/enforceNodeAllocatable", Form::List, "where reservations are enforced"),
    field("event-burst", "/eventBurst", Form::Int, "events at once"),
    field("event-qps", "/eventRecordQPS", Form::Int, "events in a second"),
    field("eviction-hard", "/evictionHard", Form::Below, "thresholds that evict at once, as memory.available<1Gi"),
    field(
        "eviction-max-pod-grace-period",
        "/evictionMaxPodGracePeriod",
        Form::Int,
        "seconds that a pod gets at most when a soft threshold evicts it",
    ),
    field(
        "eviction-minimum-reclaim",
        "/evictionMinimumReclaim",
        Form::Map,
        "what an eviction frees at least, as memory.available=1Gi",
    ),
    field(
        "eviction-pressure-transition-period",
        "/evictionPressureTransitionPeriod",
        Form::Span,
        "how long a pressure is shown after it ended",
    ),
    field(
        "eviction-soft",
        "/evictionSoft",
        Form::Below,
        "thresholds that evict after a while, as memory.available<1Gi",
    ),
    field(
        "eviction-soft-grace-period",
        "/evictionSoftGracePeriod",
        Form::Map,
        "how long that while is, as memory.available=1m30s",
    ),
    field("fail-cgroupv1", "/failCgroupV1", Form::Switch, "refuse to start on version 1 of control groups"),
    field("fail-swap-on", "/failSwapOn", Form::Switch, "refuse to start with swap"),
    field("feature-gates", "/featureGates", Form::Switches, IDLE),
    field("file-check-frequency", "/fileCheckFrequency", Form::Span, "how often static pods are read without cause"),
    field("hairpin-mode", "/hairpinMode", Form::Text, IDLE),
    field("healthz-bind-address", "/healthzBindAddress", Form::Text, "address of the health endpoint"),
    field("healthz-port", "/healthzPort", Form::Int, "port of the health endpoint; 0 is off"),
    field("http-check-frequency", "/httpCheckFrequency", Form::Span, IDLE),
    field(
        "image-gc-high-threshold",
        "/imageGCHighThresholdPercent",
        Form::Int,
        "disk use in percent above which images are removed",
    ),
    field(
        "image-gc-low-threshold",
        "/imageGCLowThresholdPercent",
        Form::Int,
        "disk use in percent down to which they are removed",
    ),
    field("image-service-endpoint", "/imageServiceEndpoint", Form::Text, "the images' socket, when it is another"),
    field("kernel-memcg-notification", "/kernelMemcgNotification", Form::Switch, IDLE),
    field("kube-api-burst", "/kubeAPIBurst", Form::Int, IDLE),
    field("kube-api-content-type", "/contentType", Form::Text, IDLE),
    field("kube-api-qps", "/kubeAPIQPS", Form::Int, IDLE),
    field("kube-reserved", "/kubeReserved", Form::Map, "resources kept for the cluster's parts"),
    field("kube-reserved-cgroup", "/kubeReservedCgroup", Form::Text, ABSENT),
    field("kubelet-cgroups", "/kubeletCgroups", Form::Text, IDLE),
    field(
        "local-storage-capacity-isolation",
        "/localStorageCapacityIsolation",
        Form::Switch,
        "show and enforce ephemeral storage",
    ),
    field("make-iptables-util-chains", "/makeIPTablesUtilChains", Form::Switch, IDLE),
    field("manifest-url", "/staticPodURL", Form::Text, ABSENT),
    field("manifest-url-header", "/staticPodURLHeader", Form::With(headers), ABSENT),
    field("max-open-files", "/maxOpenFiles", Form::Int, "files that the kubelet may open"),
    field("max-pods", "/maxPods", Form::Int, "pods on this node"),
    field("memory-manager-policy", "/memoryManagerPolicy", Form::Text, ABSENT),
    field("minimum-image-ttl-duration", "/imageMinimumGCAge", Form::Span, "how long an unused image is kept at least"),
    field("node-status-max-images", "/nodeStatusMaxImages", Form::Int, "images in the node's status; -1 is all"),
    field(
        "node-status-update-frequency",
        "/nodeStatusUpdateFrequency",
        Form::Span,
        "how often the node's status is made",
    ),
    field("oom-score-adj", "/oomScoreAdj", Form::Int, "out-of-memory score of the kubelet"),
    field("pod-cidr", "/podCIDR", Form::Text, "range of pods' addresses without an API server"),
    field("pod-manifest-path", "/staticPodPath", Form::Text, "directory (or file) of static pods"),
    field("pod-max-pids", "/podPidsLimit", Form::Int, "processes in a pod"),
    field("pods-per-core", "/podsPerCore", Form::Int, "pods for each processor; 0 is no limit"),
    field("port", "/port", Form::Int, "port to serve on"),
    field("protect-kernel-defaults", "/protectKernelDefaults", Form::Switch, ABSENT),
    field("provider-id", "/providerID", Form::Text, "the cloud's name of this machine"),
    field("qos-reserved", "/qosReserved", Form::Map, ABSENT),
    field("read-only-port", "/readOnlyPort", Form::Int, "port without authentication; 0 is off"),
    field("register-node", "/registerNode", Form::Switch, "register the node"),
    field(
        "register-with-taints",
        "/registerWithTaints",
        Form::With(taints_of),
        "taints to register with: key=value:effect",
    ),
    field("registry-burst", "/registryBurst", Form::Int, "pulls at once"),
    field("registry-qps", "/registryPullQPS", Form::Int, "pulls in a second; 0 is no limit"),
    field("reserved-cpus", "/reservedSystemCPUs", Form::Text, ABSENT),
    field("reserved-memory", "/reservedMemory", Form::Array, ABSENT),
    field("resolv-conf", "/resolvConf", Form::Text, "the node's resolver configuration"),
    field("rotate-certificates", "/rotateCertificates", Form::Switch, IDLE),
    field("rotate-server-certificates", "/serverTLSBootstrap", Form::Switch, ABSENT),
    field("runonce", "/runOnce", Form::Switch, ABSENT),
    field(
        "runtime-request-timeout",
        "/runtimeRequestTimeout",
        Form::Span,
        "time of a call of the runtime, but for those that take long",
    ),
    field("seccomp-default", "/seccompDefault", Form::Switch, "the runtime's seccomp profile for pods that name none"),
    field("serialize-image-pulls", "/serializeImagePulls", Form::Switch, "pull one image at a time"),
    field("streaming-connection-idle-timeout", "/streamingConnectionIdleTimeout", Form::Span, IDLE),
    field("sync-frequency", "/syncFrequency", Form::Span, "how often a pod is looked at without cause"),
    field("system-cgroups", "/systemCgroups", Form::Text, IDLE),
    field("system-reserved", "/systemReserved", Form::Map, "resources kept for the system"),
    field("system-reserved-cgroup", "/systemReservedCgroup", Form::Text, ABSENT),
    field("tls-cert-file", "/tlsCertFile", Form::Text, "serving certificate"),
    field("tls-cipher-suites", "/tlsCipherSuites", Form::List, "cipher suites of TLS 1.2"),
    field("tls-min-version", "/tlsMinVersion", Form::Text, "lowest version of TLS"),
    field("tls-private-key-file", "/tlsPrivateKeyFile", Form::Text, "key of the serving certificate"),
    field("topology-manager-policy", "/topologyManagerPolicy", Form::Text, ABSENT),
    field("topology-manager-policy-options", "/topologyManagerPolicyOptions", Form::Map, ABSENT),
    field("topology-manager-scope", "/topologyManagerScope", Form::Text, IDLE),
    field("volume-plugin-dir", "/volumePluginDir", Form::Text, IDLE),
    field("volume-stats-agg-period", "/volumeStatsAggPeriod", Form::Span, IDLE),
];

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
    /// Are eviction thresholds left out of what the node offers?
    pub ignore_eviction: bool,
    /// What was given and changes nothing.
    pub idle: Vec<&'static str>,
}

impl Options {
    /// Reads the configuration file and puts the flags over it.
    ///
    /// # Errors
    /// When the file can't be read or a value makes no sense.
    pub fn from_flags(flags: &Flags) -> Result<Self, ConfigError> {
        let mut value = config::load(flags.path("config").as_deref(), flags.path("config-dir").as_deref())?;
        fields::overlay(FIELDS, flags, &mut value).map_err(ConfigError::Invalid)?;
        let config = Config::decode(value)?;
        config.validate()?;
        if let Some(name) = REFUSED.iter().find(|name| flags.given(name)) {
            return Err(ConfigError::Invalid(format!("--{name} is not supported by this kubelet")));
        }
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
            idle: config.idle(),
            ignore_eviction: flags.switch("experimental-allocatable-ignore-eviction"),
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

/// `name:value` by commas; a name may come again.
fn headers(flags: &Flags, name: &str) -> Result<Value, String> {
    let mut headers = BTreeMap::<_, Vec<_>>::new();
    for (name, value) in fields::pairs(flags, name, ':')? {
        headers.entry(name).or_default().push(value);
    }
    Ok(json!(headers))
}

fn taints_of(flags: &Flags, name: &str) -> Result<Value, String> {
    Ok(json!(taints(&flags.list(name))?))
}

/// `key=value:effect` or `key:effect`.
fn taints(list: &[String]) -> Result<Vec<Taint>, String> {
    let parse = |text: &String| {
        let (rest, effect) = text.rsplit_once(':')?;
        let (key, value) = match rest.split_once('=') {
            Some((key, value)) => (key, Some(value.to_owned())),
            None => (rest, None),
        };
        let known = matches!(effect, "NoSchedule" | "PreferNoSchedule" | "NoExecute");
        (known && !key.is_empty()).then(|| Taint { key: key.into(), value, effect: effect.into(), time_added: None })
    };
    list.iter().map(|text| parse(text).ok_or_else(|| format!("invalid taint spec: {text}"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::fields::Span;

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

    #[test]
    fn each_flag_of_a_field_finds_it_and_has_its_default() {
        let defaults = config::defaults();
        for field in FIELDS {
            assert!(defaults.pointer(field.at).is_some(), "--{} at {}", field.flag, field.at);
        }
        let flags = match f::parse(command(), std::iter::empty()) {
            Ok(flags) => flags,
            Err(_) => unreachable!("no flag is needed"),
        };
        for field in FIELDS.iter().filter(|field| matches!(field.form, Form::Text | Form::Int | Form::Span)) {
            assert_eq!(&field.value(&flags).unwrap(), defaults.pointer(field.at).unwrap(), "--{}", field.flag);
        }
    }

    #[test]
    fn maps_and_thresholds_of_flags_become_fields() {
        let options = options(&[
            "--eviction-soft=memory.available<1Gi",
            "--eviction-soft-grace-period=memory.available=1m30s",
            "--system-reserved=cpu=100m,memory=1Gi",
            "--allowed-unsafe-sysctls=net.core.*",
            "--enable-controller-attach-detach=false",
            "--authentication-token-webhook-cache-ttl=1m",
            "--feature-gates=APIServerIdentity=false,AllBeta=true",
        ])
        .unwrap();
        let config = options.config;
        assert_eq!(config.eviction_soft["memory.available"], "1Gi");
        assert_eq!(config.eviction_soft_grace_period["memory.available"], "1m30s");
        assert_eq!(config.system_reserved.len(), 2);
        assert_eq!(config.allowed_unsafe_sysctls, ["net.core.*"]);
        assert!(!config.enable_controller_attach_detach);
        assert_eq!(config.authentication.webhook.cache_ttl, Span::secs(60));
        assert_eq!((config.feature_gates["APIServerIdentity"], config.feature_gates["AllBeta"]), (false, true));
    }

    #[test]
    fn what_this_kubelet_can_not_keep_is_refused() {
        for flag in ["--cpu-manager-policy=static", "--lock-file=/l", "--qos-reserved=memory=50%", "--reserved-cpus=0"]
        {
            assert!(options(&[flag]).unwrap_err().contains("not supported by this kubelet"), "{flag}");
        }
        options(&["--cpu-manager-policy=none", "--memory-manager-policy=None"]).unwrap();
    }
}

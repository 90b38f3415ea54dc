//! The kubelet's configuration: KubeletConfiguration v1beta1 from a file, upstream's defaults, and flags over both.

use base::fields::{self, Span};
use base::section;
use k8s_openapi::api::core::v1::Taint;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

section! {
    /// How x509 client certificates are trusted.
    X509 {
        /// Bundle of authorities.
        #[serde(rename = "clientCAFile")]
        client_ca_file: String = String::new(),
    }
}

section! {
    /// Who asks the API server about tokens.
    TokenWebhook {
        /// Is it asked?
        enabled: bool = true,
        /// How long answers are kept.
        #[serde(rename = "cacheTTL")]
        cache_ttl: Span = Span::secs(120),
    }
}

section! {
    /// Requests without credentials.
    Anonymous {
        /// Do they count as `system:anonymous`?
        enabled: bool = false,
    }
}

section! {
    /// Who a client is.
    Authentication {
        /// By certificate.
        x509: X509 = X509::default(),
        /// By token.
        webhook: TokenWebhook = TokenWebhook::default(),
        /// By nothing.
        anonymous: Anonymous = Anonymous::default(),
    }
}

section! {
    /// How long answers about rights are kept.
    AccessWebhook {
        /// A yes.
        #[serde(rename = "cacheAuthorizedTTL")]
        cache_authorized_ttl: Span = Span::secs(300),
        /// A no.
        #[serde(rename = "cacheUnauthorizedTTL")]
        cache_unauthorized_ttl: Span = Span::secs(30),
    }
}

section! {
    /// What a client may do.
    Authorization {
        /// `AlwaysAllow` or `Webhook`.
        mode: String = "Webhook".into(),
        /// Asking the API server.
        webhook: AccessWebhook = AccessWebhook::default(),
    }
}

section! {
    /// Restarts of crashing containers.
    CrashLoopBackOff {
        /// The longest delay.
        max_container_restart_period: Span = Span::secs(300),
    }
}

section! {
    /// Use of swap.
    MemorySwap {
        /// `NoSwap` or `LimitedSwap`.
        swap_behavior: String = String::new(),
    }
}

section! {
    /// KubeletConfiguration v1beta1. Where the text says "Upstream", this kubelet has no part for the field: see
    /// [`ABSENT`] and [`IDLE`]. A field without a default is decided by others.
    Config {
        /// `kubelet.config.k8s.io/v1beta1`
        api_version: String = "kubelet.config.k8s.io/v1beta1".into(),
        /// `KubeletConfiguration`
        kind: String = "KubeletConfiguration".into(),
        /// Is the HTTPS server on?
        enable_server: bool = true,
        /// Directory (or file) of static pods.
        static_pod_path: String = String::new(),
        /// Directory of pods' logs.
        pod_logs_dir: String = "/var/log/pods".into(),
        /// How often a pod is looked at without cause.
        sync_frequency: Span = Span::secs(60),
        /// How often static pods are read without cause.
        file_check_frequency: Span = Span::secs(20),
        /// Upstream: how often static pods are fetched.
        http_check_frequency: Span = Span::secs(20),
        /// Upstream: where static pods are fetched from.
        #[serde(rename = "staticPodURL")]
        static_pod_url: String = String::new(),
        /// Upstream: headers for that.
        #[serde(rename = "staticPodURLHeader")]
        static_pod_url_header: BTreeMap<String, Vec<String>> = BTreeMap::new(),
        /// Address to serve on.
        address: String = "0.0.0.0".into(),
        /// Port to serve on.
        port: u16 = 10250,
        /// Port without authentication; 0 is off.
        read_only_port: u16 = 0,
        /// Serving certificate.
        tls_cert_file: String = String::new(),
        /// Its key.
        tls_private_key_file: String = String::new(),
        /// Cipher suites of TLS 1.2.
        tls_cipher_suites: Vec<String> = Vec::new(),
        /// Upstream: curves.
        tls_curve_preferences: Vec<i32> = Vec::new(),
        /// Lowest version of TLS.
        tls_min_version: String = String::new(),
        /// Is the client certificate renewed through the API?
        rotate_certificates: bool = false,
        /// Is the serving certificate asked for through the API?
        #[serde(rename = "serverTLSBootstrap")]
        server_tls_bootstrap: bool = false,
        /// Who a client is.
        authentication: Authentication = Authentication::default(),
        /// What a client may do.
        authorization: Authorization = Authorization::default(),
        /// Pulls in a second; 0 is no limit.
        #[serde(rename = "registryPullQPS")]
        registry_pull_qps: i32 = 5,
        /// Pulls at once.
        registry_burst: i32 = 10,
        /// Which images already here need no proof that the pod may use them.
        image_pull_credentials_verification_policy: String = "NeverVerifyPreloadedImages".into(),
        /// Upstream: images for that policy's list.
        preloaded_images_verification_allowlist: Vec<String> = Vec::new(),
        /// Events in a second.
        #[serde(rename = "eventRecordQPS")]
        event_record_qps: i32 = 50,
        /// Events at once.
        event_burst: i32 = 100,
        /// Are exec, logs and the like served?
        enable_debugging_handlers: bool = true,
        /// Upstream: profiling.
        enable_contention_profiling: bool = false,
        /// Port of the health endpoint; 0 is off.
        healthz_port: u16 = 10248,
        /// Address of the health endpoint.
        healthz_bind_address: String = "127.0.0.1".into(),
        /// Out-of-memory score of the kubelet itself.
        #[serde(rename = "oomScoreAdj")]
        oom_score_adj: i32 = -999,
        /// Domain of the cluster.
        cluster_domain: String = String::new(),
        /// Addresses of the cluster's DNS.
        #[serde(rename = "clusterDNS")]
        cluster_dns: Vec<String> = Vec::new(),
        /// How long a silent stream is kept.
        streaming_connection_idle_timeout: Span = Span::secs(4 * 3600),
        /// How often the node's status is made.
        node_status_update_frequency: Span = Span::secs(10),
        /// How often it is sent when nothing changed; none: 5m, or as often as it is made when that is given.
        node_status_report_frequency: Option<Span> = None,
        /// How long the node's lease is good for, in seconds.
        node_lease_duration_seconds: i32 = 40,
        /// How long an unused image is kept at least.
        #[serde(rename = "imageMinimumGCAge")]
        image_minimum_gc_age: Span = Span::secs(120),
        /// How long an unused image is kept at most; 0 is for ever.
        #[serde(rename = "imageMaximumGCAge")]
        image_maximum_gc_age: Span = Span::secs(0),
        /// Disk use in percent above which images are removed.
        #[serde(rename = "imageGCHighThresholdPercent")]
        image_gc_high_threshold_percent: i32 = 85,
        /// Disk use in percent down to which they are removed.
        #[serde(rename = "imageGCLowThresholdPercent")]
        image_gc_low_threshold_percent: i32 = 80,
        /// Upstream: how often disk use of volumes is counted.
        volume_stats_agg_period: Span = Span::secs(60),
        /// Upstream: group of the kubelet itself.
        kubelet_cgroups: String = String::new(),
        /// Upstream: group of system processes.
        system_cgroups: String = String::new(),
        /// Group above all pods.
        cgroup_root: String = String::new(),
        /// Is there a group for each class and pod?
        #[serde(rename = "cgroupsPerQOS")]
        cgroups_per_qos: bool = true,
        /// `cgroupfs` or `systemd`.
        cgroup_driver: String = "cgroupfs".into(),
        /// Upstream: exclusive processors.
        cpu_manager_policy: String = "none".into(),
        /// On version 2: does only the process at fault die when memory runs out?
        #[serde(rename = "singleProcessOOMKill")]
        single_process_oom_kill: Option<bool> = None,
        /// Upstream: options of the policy.
        cpu_manager_policy_options: BTreeMap<String, String> = BTreeMap::new(),
        /// Upstream: how often that is reconciled.
        cpu_manager_reconcile_period: Span = Span::secs(10),
        /// Upstream: memory nodes.
        memory_manager_policy: String = "None".into(),
        /// Upstream: topology.
        topology_manager_policy: String = "none".into(),
        /// Upstream: its scope.
        topology_manager_scope: String = "container".into(),
        /// Upstream: its options.
        topology_manager_policy_options: BTreeMap<String, String> = BTreeMap::new(),
        /// Upstream: memory kept for classes.
        qos_reserved: BTreeMap<String, String> = BTreeMap::new(),
        /// Upstream: time of a runtime call.
        runtime_request_timeout: Span = Span::secs(120),
        /// Upstream: unused since the runtime makes the network.
        hairpin_mode: String = "promiscuous-bridge".into(),
        /// Pods on this node at most.
        max_pods: i32 = 110,
        /// Range of pods' addresses without an API server.
        #[serde(rename = "podCIDR")]
        pod_cidr: String = String::new(),
        /// Processes in a pod at most; -1 is no limit of the pod's own.
        pod_pids_limit: i64 = -1,
        /// The node's resolver configuration.
        resolv_conf: String = "/etc/resolv.conf".into(),
        /// Upstream: removed there.
        run_once: bool = false,
        /// Are cpu limits enforced?
        #[serde(rename = "cpuCFSQuota")]
        cpu_cfs_quota: bool = true,
        /// The period of the quota.
        #[serde(rename = "cpuCFSQuotaPeriod")]
        cpu_cfs_quota_period: Span = Span(Duration::from_millis(100)),
        /// Images in the node's status at most; -1 is all.
        node_status_max_images: i32 = 50,
        /// Files that the kubelet may open.
        max_open_files: i64 = 1_000_000,
        /// Upstream: form of requests.
        content_type: String = "application/vnd.kubernetes.protobuf".into(),
        /// Upstream: requests in a second.
        #[serde(rename = "kubeAPIQPS")]
        kube_api_qps: i32 = 50,
        /// Upstream: requests at once.
        #[serde(rename = "kubeAPIBurst")]
        kube_api_burst: i32 = 100,
        /// Are images pulled one after the other? None: yes, unless more are allowed at once.
        serialize_image_pulls: Option<bool> = None,
        /// How many images are pulled at once.
        max_parallel_image_pulls: Option<u32> = None,
        /// Thresholds that evict pods at once.
        eviction_hard: Option<BTreeMap<String, String>> = None,
        /// Thresholds that evict pods after a while.
        eviction_soft: BTreeMap<String, String> = BTreeMap::new(),
        /// How long that while is.
        eviction_soft_grace_period: BTreeMap<String, String> = BTreeMap::new(),
        /// How long a pressure is shown after it ended.
        eviction_pressure_transition_period: Span = Span::secs(300),
        /// Grace of pods that are evicted softly.
        eviction_max_pod_grace_period: i32 = 0,
        /// What an eviction must free at least.
        eviction_minimum_reclaim: BTreeMap<String, String> = BTreeMap::new(),
        /// Are the default thresholds added to those that are given?
        merge_default_eviction_settings: bool = false,
        /// Pods for each processor at most; 0 is no limit.
        pods_per_core: i32 = 0,
        /// Does a controller attach volumes?
        enable_controller_attach_detach: bool = true,
        /// Upstream: refuses other kernel settings than its own.
        protect_kernel_defaults: bool = false,
        /// Upstream: rules for packets.
        #[serde(rename = "makeIPTablesUtilChains")]
        make_iptables_util_chains: bool = true,
        /// Upstream: removed there.
        iptables_masquerade_bit: i32 = 14,
        /// Upstream: removed there.
        iptables_drop_bit: i32 = 15,
        /// Features switched on or off.
        feature_gates: BTreeMap<String, bool> = BTreeMap::new(),
        /// Is swap a reason not to start?
        fail_swap_on: bool = true,
        /// Use of swap.
        memory_swap: MemorySwap = MemorySwap::default(),
        /// Size of a container's log before it is rotated.
        container_log_max_size: String = "10Mi".into(),
        /// Log files of a container.
        container_log_max_files: i32 = 5,
        /// Upstream: rotations at once.
        container_log_max_workers: i32 = 1,
        /// How often sizes of logs are looked at.
        container_log_monitor_interval: Span = Span::secs(10),
        /// How changes of ConfigMaps and Secrets are noticed; here always by watches.
        config_map_and_secret_change_detection_strategy: String = "Watch".into(),
        /// Kept for the system.
        system_reserved: BTreeMap<String, String> = BTreeMap::new(),
        /// Kept for the cluster's own parts.
        kube_reserved: BTreeMap<String, String> = BTreeMap::new(),
        /// Processors kept for the system.
        #[serde(rename = "reservedSystemCPUs")]
        reserved_system_cpus: String = String::new(),
        /// Upstream: metrics.
        show_hidden_metrics_for_version: String = String::new(),
        /// Upstream: group of the system.
        system_reserved_cgroup: String = String::new(),
        /// Upstream: group of the cluster's parts.
        kube_reserved_cgroup: String = String::new(),
        /// Where reservations are enforced: `pods`, or `none`.
        enforce_node_allocatable: Vec<String> = vec!["pods".into()],
        /// Kernel settings that pods may change although they reach beyond them.
        allowed_unsafe_sysctls: Vec<String> = Vec::new(),
        /// Upstream: volume plugins outside of the tree.
        volume_plugin_dir: String = "/usr/libexec/kubernetes/kubelet-plugins/volume/exec/".into(),
        /// The cloud's name of this machine.
        #[serde(rename = "providerID")]
        provider_id: String = String::new(),
        /// Upstream: notification of memory thresholds.
        kernel_memcg_notification: bool = false,
        /// Logging; `-v` and `--logging-format` on the command line have the say here.
        logging: Value = Value::Null,
        /// Is `/logs/` served?
        enable_system_log_handler: bool = true,
        /// Upstream: queries of the journal.
        enable_system_log_query: Option<bool> = None,
        /// How long the node's shutdown is held up for pods.
        shutdown_grace_period: Span = Span::secs(0),
        /// How much of it is for critical ones.
        shutdown_grace_period_critical_pods: Span = Span::secs(0),
        /// Upstream: by priority.
        shutdown_grace_period_by_pod_priority: Vec<Value> = Vec::new(),
        /// Restarts of crashing containers.
        crash_loop_back_off: CrashLoopBackOff = CrashLoopBackOff::default(),
        /// Upstream: memory kept on nodes.
        reserved_memory: Vec<Value> = Vec::new(),
        /// Upstream: profiling.
        enable_profiling_handler: bool = true,
        /// Upstream: flags of the log.
        enable_debug_flags_handler: bool = true,
        /// Do pods get the runtime's seccomp profile?
        seccomp_default: bool = false,
        /// Upstream: memory quality of service.
        memory_throttling_factor: Option<f64> = None,
        /// Upstream: memory quality of service.
        memory_reservation_policy: String = String::new(),
        /// Taints to register with.
        register_with_taints: Vec<Taint> = Vec::new(),
        /// Does the kubelet register its node?
        register_node: bool = true,
        /// Upstream: traces.
        tracing: Option<Value> = None,
        /// Is ephemeral storage a resource?
        local_storage_capacity_isolation: bool = true,
        /// The runtime's socket.
        container_runtime_endpoint: String = "unix:///run/containerd/containerd.sock".into(),
        /// The images' socket, when it is another.
        image_service_endpoint: String = String::new(),
        /// Is version 1 of control groups a reason not to start?
        #[serde(rename = "failCgroupV1")]
        fail_cgroup_v1: bool = true,
        /// Upstream: user namespaces.
        user_namespaces: Option<Value> = None,
    }
}

/// Fields that promise something to pods or to who runs the node, and that this kubelet can't keep: it refuses to start
/// with any other value than the default.
const ABSENT: &[&str] = &[
    "/staticPodURL",
    "/staticPodURLHeader",
    "/tlsCurvePreferences",
    "/serverTLSBootstrap",
    "/imagePullCredentialsVerificationPolicy",
    "/preloadedImagesVerificationAllowlist",
    "/cpuManagerPolicy",
    "/cpuManagerPolicyOptions",
    "/memoryManagerPolicy",
    "/reservedMemory",
    "/topologyManagerPolicy",
    "/topologyManagerPolicyOptions",
    "/qosReserved",
    "/reservedSystemCPUs",
    "/systemReservedCgroup",
    "/kubeReservedCgroup",
    "/protectKernelDefaults",
    "/memorySwap/swapBehavior",
    "/memoryReservationPolicy",
    "/enableSystemLogQuery",
    "/shutdownGracePeriod",
    "/shutdownGracePeriodCriticalPods",
    "/shutdownGracePeriodByPodPriority",
    "/tracing",
];

/// Fields that tune how upstream works, and that have nothing to tune here.
const IDLE: &[&str] = &[
    "/httpCheckFrequency",
    "/rotateCertificates",
    "/enableContentionProfiling",
    "/streamingConnectionIdleTimeout",
    "/volumeStatsAggPeriod",
    "/kubeletCgroups",
    "/systemCgroups",
    "/cpuManagerReconcilePeriod",
    "/topologyManagerScope",
    "/hairpinMode",
    "/contentType",
    "/kubeAPIQPS",
    "/kubeAPIBurst",
    "/makeIPTablesUtilChains",
    "/iptablesMasqueradeBit",
    "/iptablesDropBit",
    "/configMapAndSecretChangeDetectionStrategy",
    "/showHiddenMetricsForVersion",
    "/volumePluginDir",
    "/kernelMemcgNotification",
    "/enableProfilingHandler",
    "/enableDebugFlagsHandler",
    "/memoryThrottlingFactor",
    "/userNamespaces",
];

/// The defaults as JSON.
pub fn defaults() -> Value {
    json(&Config::default())
}

fn json(config: &Config) -> Value {
    // A structure of texts, numbers and lists always has a form in JSON.
    serde_json::to_value(config).unwrap_or_default()
}

/// Reads the configuration file, and over it the `.conf` files below a directory, in lexical order of their paths.
///
/// # Errors
/// When one can't be read, or is not a KubeletConfiguration.
pub fn load(file: Option<&Path>, drop_ins: Option<&Path>) -> Result<Value, ConfigError> {
    let mut config = match file {
        Some(file) => read(file)?,
        None => Value::Object(Default::default()),
    };
    for path in drop_ins.map(conf_files).transpose()?.into_iter().flatten() {
        api::patch::merge::apply(&mut config, read(&path)?);
    }
    Ok(config)
}

fn read(path: &Path) -> Result<Value, ConfigError> {
    let fault = |error: String| ConfigError::Read { path: path.display().to_string(), error };
    let text = std::fs::read_to_string(path).map_err(|error| fault(error.to_string()))?;
    parse(&text).map_err(fault)
}

/// The `.conf` files below a directory; a directory stands among the files by its own name.
fn conf_files(dir: &Path) -> Result<Vec<PathBuf>, ConfigError> {
    let fault = |error: std::io::Error| ConfigError::Read { path: dir.display().to_string(), error: error.to_string() };
    let entries = std::fs::read_dir(dir).map_err(fault)?;
    let mut paths = entries.map(|entry| entry.map(|e| e.path())).collect::<Result<Vec<_>, _>>().map_err(fault)?;
    paths.sort();
    let mut found = Vec::new();
    for path in paths {
        if path.is_dir() {
            found.extend(conf_files(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "conf") {
            found.push(path);
        }
    }
    Ok(found)
}

/// Parses YAML or JSON. Null stands for what is left out.
fn parse(text: &str) -> Result<Value, String> {
    let mut value: Value = serde_saphyr::from_str(text).map_err(|error| error.to_string())?;
    let word = |name: &str| value[name].as_str().unwrap_or_default().to_owned();
    match (word("apiVersion").as_str(), word("kind").as_str()) {
        ("kubelet.config.k8s.io/v1beta1", "KubeletConfiguration") => {}
        (version, kind) => {
            return Err(format!(
                "no kind {kind:?} is registered for version {version:?} in scheme of the kubelet's configuration"
            ));
        }
    }
    fields::drop_unset(&mut value, &["resolvConf"]);
    // A field of the wrong name is told with its file.
    serde_json::from_value::<Config>(value.clone()).map_err(|error| error.to_string())?;
    Ok(value)
}

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file can't be read.
    #[error("failed to load kubelet config file, path: {path}, error: {error}")]
    Read {
        /// The file.
        path: String,
        /// Why not.
        error: String,
    },
    /// The values don't make sense.
    #[error("failed to validate kubelet configuration, error: {0}")]
    Invalid(String),
}

impl Config {
    /// Decodes what [`load`] read and flags changed.
    ///
    /// # Errors
    /// Names the field that is unknown or of the wrong kind.
    pub fn decode(value: Value) -> Result<Self, ConfigError> {
        serde_json::from_value(value).map_err(|error| ConfigError::Invalid(error.to_string()))
    }

    /// Fields that differ from upstream's defaults and change nothing in this kubelet, for a warning at start.
    pub fn idle(&self) -> Vec<&'static str> {
        self.differing(IDLE)
    }

    fn differing(&self, pointers: &[&'static str]) -> Vec<&'static str> {
        fields::differing(&json(self), &defaults(), pointers)
    }

    /// Refuses what can't work, in upstream's words where it has them.
    ///
    /// # Errors
    /// Names the field.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let mut faults = Vec::new();
        let mut check = |good: bool, text: String| {
            if !good {
                faults.push(text);
            }
        };
        let percent = |value: i32| (0..=100).contains(&value);
        let (high, low) = (self.image_gc_high_threshold_percent, self.image_gc_low_threshold_percent);
        check(
            percent(high),
            format!(
                "imageGCHighThresholdPercent (--image-gc-high-threshold) {high} must be between 0 and 100, inclusive"
            ),
        );
        check(
            percent(low),
            format!("imageGCLowThresholdPercent (--image-gc-low-threshold) {low} must be between 0 and 100, inclusive"),
        );
        check(
            low < high,
            format!(
                "imageGCLowThresholdPercent (--image-gc-low-threshold) {low} must be less than imageGCHighThresholdPercent (--image-gc-high-threshold) {high}"
            ),
        );
        check(self.max_pods >= 0, format!("maxPods (--max-pods) {} must not be a negative number", self.max_pods));
        check(
            self.container_log_max_files > 1,
            format!(
                "containerLogMaxFiles (--container-log-max-files) {} must be greater than 1",
                self.container_log_max_files
            ),
        );
        check(
            matches!(self.cgroup_driver.as_str(), "cgroupfs" | "systemd"),
            format!("cgroupDriver {:?} must be cgroupfs or systemd", self.cgroup_driver),
        );
        check(
            matches!(self.authorization.mode.as_str(), "AlwaysAllow" | "Webhook"),
            format!("unknown authorization mode {}", self.authorization.mode),
        );
        check(self.node_lease_duration_seconds > 0, "nodeLeaseDurationSeconds must be greater than 0".into());
        let serial = self.serialize_image_pulls.unwrap_or_else(|| self.max_parallel_image_pulls.is_none_or(|n| n < 2));
        check(!serial || self.max_parallel_image_pulls.is_none_or(|n| n <= 1), "maxParallelImagePulls cannot be larger than 1 unless SerializeImagePulls (--serialize-image-pulls) set to false".into());
        check(
            !self.run_once,
            "runOnce (--runOnce) true, Runonce mode has been deprecated and should not be set".into(),
        );
        check(
            self.event_burst >= 0,
            format!("eventBurst (--event-burst) {} must not be a negative number", self.event_burst),
        );
        check(
            self.event_record_qps >= 0,
            format!("eventRecordQPS (--event-qps) {} must not be a negative number", self.event_record_qps),
        );
        check(
            self.max_open_files >= 0,
            format!("maxOpenFiles (--max-open-files) {} must not be a negative number", self.max_open_files),
        );
        for (name, on) in &self.feature_gates {
            if let Err(why) = base::features::check(name, *on) {
                check(false, why);
            }
        }
        for at in self.differing(ABSENT) {
            check(false, format!("{} is not supported by this kubelet", at.replace('/', ".")));
        }
        for place in &self.enforce_node_allocatable {
            check(
                matches!(place.as_str(), "pods" | "none" | ""),
                format!("enforceNodeAllocatable {place:?} is not supported by this kubelet"),
            );
        }
        for ip in &self.cluster_dns {
            check(ip.parse::<std::net::IpAddr>().is_ok(), format!("invalid IP for clusterDNS: {ip:?}"));
        }
        match faults.is_empty() {
            true => Ok(()),
            false => Err(ConfigError::Invalid(format!("invalid configuration: {}", faults.join(", ")))),
        }
    }

    /// How many images are pulled at once; `None` is no limit.
    pub fn parallel_pulls(&self) -> Option<usize> {
        let serial = self.serialize_image_pulls.unwrap_or_else(|| self.max_parallel_image_pulls.is_none_or(|n| n < 2));
        if serial { Some(1) } else { self.max_parallel_image_pulls.map(|n| n as usize) }
    }

    /// How often an unchanged node status is sent.
    pub fn report_frequency(&self) -> Duration {
        let update = self.node_status_update_frequency;
        let default = if update == Span::secs(10) { Span::secs(300) } else { update };
        self.node_status_report_frequency.unwrap_or(default).0
    }

    /// Thresholds that evict at once.
    pub fn eviction_hard(&self) -> BTreeMap<String, String> {
        let defaults = [
            ("memory.available", "100Mi"),
            ("nodefs.available", "10%"),
            ("nodefs.inodesFree", "5%"),
            ("imagefs.available", "15%"),
            ("imagefs.inodesFree", "5%"),
        ];
        let defaults = || defaults.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        match &self.eviction_hard {
            None => defaults().collect(),
            Some(given) if self.merge_default_eviction_settings => defaults().chain(given.clone()).collect(),
            Some(given) => given.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory that goes with its name.
    struct Dir(PathBuf);

    impl Drop for Dir {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn kubeadms_configuration_is_read() {
        let text = "
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication:
  anonymous: {enabled: false}
  webhook: {cacheTTL: 0s, enabled: true}
  x509: {clientCAFile: /etc/kubernetes/pki/ca.crt}
authorization: {mode: Webhook, webhook: {cacheAuthorizedTTL: 0s, cacheUnauthorizedTTL: 0s}}
cgroupDriver: systemd
clusterDNS: [10.96.0.10]
clusterDomain: cluster.local
containerRuntimeEndpoint: \"\"
cpuManagerReconcilePeriod: 0s
crashLoopBackOff: {}
evictionPressureTransitionPeriod: 0s
fileCheckFrequency: 0s
healthzBindAddress: 127.0.0.1
healthzPort: 10248
logging: {flushFrequency: 0, options: {json: {infoBufferSize: \"0\"}}, verbosity: 0}
memorySwap: {}
resolvConf: /run/systemd/resolve/resolv.conf
rotateCertificates: true
staticPodPath: /etc/kubernetes/manifests
evictionHard: {memory.available: 1Gi}
maxPods: null
";
        let config = Config::decode(parse(text).unwrap()).unwrap();
        assert_eq!(config.authentication.x509.client_ca_file, "/etc/kubernetes/pki/ca.crt");
        assert_eq!((config.max_pods, config.cgroup_driver.as_str()), (110, "systemd"));
        assert_eq!(config.eviction_hard().len(), 1);
        assert_eq!(config.parallel_pulls(), Some(1));
        config.validate().unwrap();
    }

    #[test]
    fn unknown_fields_and_wrong_values_are_refused_by_name() {
        let error = parse("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nnoSuch: 1\n");
        assert!(error.unwrap_err().contains("noSuch"));
        let config = Config { image_gc_low_threshold_percent: 90, ..Default::default() };
        assert!(config.validate().unwrap_err().to_string().contains("imageGCLowThresholdPercent"));
        assert!(parse("apiVersion: v1\nkind: Pod\n").is_err());
    }

    #[test]
    fn files_of_a_directory_go_over_the_file_in_order_of_their_names() {
        let dir = Dir(std::env::temp_dir().join(format!("kubelet-config-{}", uuid::Uuid::new_v4())));
        let write = |name: &str, body: &str| {
            let path = dir.0.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            let head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
            std::fs::write(path, format!("{head}{body}")).unwrap();
        };
        write("main.yaml", "maxPods: 1\nclusterDNS: [10.0.0.1, 10.0.0.2]\nevictionHard: {memory.available: 1Gi}\n");
        write("d/20-last.conf", "maxPods: 3\n");
        write("d/10/first.conf", "maxPods: 2\nclusterDNS: [10.0.0.3]\nevictionHard: {nodefs.available: 5%}\n");
        write("d/30.yaml", "maxPods: 4\n");
        let (file, drop_ins) = (dir.0.join("main.yaml"), dir.0.join("d"));
        let config = Config::decode(load(Some(&file), Some(&drop_ins)).unwrap()).unwrap();
        assert_eq!((config.max_pods, config.cluster_dns), (3, vec!["10.0.0.3".to_owned()]));
        assert_eq!(config.eviction_hard.unwrap().len(), 2);
        write("d/40.conf", "nope: 1\n");
        let error = load(Some(&file), Some(&drop_ins)).unwrap_err().to_string();
        assert!(error.contains("40.conf") && error.contains("nope"), "{error}");
        assert!(load(None, Some(&dir.0.join("missing"))).is_err());
    }

    #[test]
    fn what_this_kubelet_can_not_keep_is_refused_and_what_tunes_nothing_is_told() {
        let pointers = defaults();
        for at in ABSENT.iter().chain(IDLE) {
            assert!(pointers.pointer(at).is_some(), "{at} is no field");
        }
        let config = Config { cpu_manager_policy: "static".into(), ..Default::default() };
        let error = config.validate().unwrap_err().to_string();
        assert!(error.ends_with("cpuManagerPolicy is not supported by this kubelet"), "{error}");
        let config = Config { enforce_node_allocatable: vec!["system-reserved".into()], ..Default::default() };
        assert!(config.validate().is_err());
        let config = Config { rotate_certificates: true, ..Default::default() };
        config.validate().unwrap();
        assert_eq!(config.idle(), ["rotateCertificates"]);
    }
}

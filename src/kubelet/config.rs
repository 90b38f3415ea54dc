//! The kubelet's configuration: KubeletConfiguration v1beta1 from a file, upstream's defaults, and flags over both.

use k8s_openapi::api::core::v1::Taint;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

/// A duration as Go writes it: `1m30s`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span(pub Duration);

impl Span {
    /// Whole seconds.
    pub const fn secs(seconds: u64) -> Self {
        Self(Duration::from_secs(seconds))
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        let span = base::clock::parse_duration(&text);
        span.map(Self).ok_or_else(|| serde::de::Error::custom(format!("time: invalid duration {text:?}")))
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&base::clock::format_duration(self.0))
    }
}

/// Declares a structure of the configuration: fields with defaults, unknown fields refused.
macro_rules! section {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty = $default:expr,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
        #[serde(rename_all = "camelCase", default, deny_unknown_fields)]
        pub struct $name { $($(#[$field_doc])* pub $field: $type,)* }
        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $default,)* }
            }
        }
    };
}

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
    /// KubeletConfiguration v1beta1. Fields under `unused` in the order of upstream's are read and have no part to play
    /// here; those of `null` default mean that upstream decides by other fields.
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
        logging: serde_json::Value = serde_json::Value::Null,
        /// Is `/logs/` served?
        enable_system_log_handler: bool = true,
        /// Upstream: queries of the journal.
        enable_system_log_query: Option<bool> = None,
        /// How long the node's shutdown is held up for pods.
        shutdown_grace_period: Span = Span::secs(0),
        /// How much of it is for critical ones.
        shutdown_grace_period_critical_pods: Span = Span::secs(0),
        /// Upstream: by priority.
        shutdown_grace_period_by_pod_priority: Vec<serde_json::Value> = Vec::new(),
        /// Restarts of crashing containers.
        crash_loop_back_off: CrashLoopBackOff = CrashLoopBackOff::default(),
        /// Upstream: memory kept on nodes.
        reserved_memory: Vec<serde_json::Value> = Vec::new(),
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
        tracing: Option<serde_json::Value> = None,
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
        user_namespaces: Option<serde_json::Value> = None,
    }
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
    /// Reads the file.
    ///
    /// # Errors
    /// When it is not there, or not a KubeletConfiguration.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let fault = |error: String| ConfigError::Read { path: path.display().to_string(), error };
        let text = std::fs::read_to_string(path).map_err(|error| fault(error.to_string()))?;
        Self::parse(&text).map_err(fault)
    }

    /// Parses YAML or JSON. Null stands for what is left out.
    fn parse(text: &str) -> Result<Self, String> {
        let mut value: serde_json::Value = serde_saphyr::from_str(text).map_err(|error| error.to_string())?;
        drop_unset(&mut value);
        let config: Self = serde_json::from_value(value).map_err(|error| error.to_string())?;
        match (config.api_version.as_str(), config.kind.as_str()) {
            ("kubelet.config.k8s.io/v1beta1", "KubeletConfiguration") => Ok(config),
            (version, kind) => Err(format!(
                "no kind {kind:?} is registered for version {version:?} in scheme of the kubelet's configuration"
            )),
        }
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
        check(self.static_pod_url.is_empty(), "staticPodURL is not supported by this kubelet".into());
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

/// Null, no time and no text stand for what is left out, as in Go; only an empty `resolvConf` has a meaning.
fn drop_unset(value: &mut serde_json::Value) {
    use serde_json::Value;
    let unset = |value: &Value| value.is_null() || matches!(value.as_str(), Some("" | "0s"));
    match value {
        Value::Object(map) => {
            map.retain(|key, value| !unset(value) || (key == "resolvConf" && !value.is_null()));
            map.values_mut().for_each(drop_unset);
        }
        Value::Array(list) => list.iter_mut().for_each(drop_unset),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let config = Config::parse(text).unwrap();
        assert_eq!(config.authentication.x509.client_ca_file, "/etc/kubernetes/pki/ca.crt");
        assert_eq!((config.max_pods, config.cgroup_driver.as_str()), (110, "systemd"));
        assert_eq!(config.eviction_hard().len(), 1);
        assert_eq!(config.parallel_pulls(), Some(1));
        config.validate().unwrap();
    }

    #[test]
    fn unknown_fields_and_wrong_values_are_refused_by_name() {
        let error = Config::parse("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nnoSuch: 1\n");
        assert!(error.unwrap_err().contains("noSuch"));
        let config = Config { image_gc_low_threshold_percent: 90, ..Default::default() };
        assert!(config.validate().unwrap_err().to_string().contains("imageGCLowThresholdPercent"));
        assert!(Config::parse("apiVersion: v1\nkind: Pod\n").is_err());
    }
}

//! The command line of kube-controller-manager: upstream's flags and their checks.

use crate::table;
use base::flags::{self, Flags};
use clap::Arg;

/// The checked command line.
#[derive(Clone, Debug)]
pub struct Options {
    /// The flags as given.
    pub flags: Flags,
    /// Value of `--controllers`.
    pub controllers: Vec<String>,
}

/// The command line.
pub fn command() -> clap::Command {
    let about = "runs the controllers that move the cluster from its current state to the wanted one";
    flags::command("kube-controller-manager", about, all())
}

impl Options {
    /// Reads and checks the flags.
    ///
    /// # Errors
    /// What does not fit.
    pub fn read(flags: Flags) -> Result<Self, String> {
        let controllers = flags.list("controllers");
        let options = Self { flags, controllers };
        options.check()?;
        Ok(options)
    }

    fn check(&self) -> Result<(), String> {
        for entry in self.controllers.iter().filter(|entry| *entry != "*") {
            let name = entry.strip_prefix('-').unwrap_or(entry);
            if table::find(name).is_none() && !table::ABSENT.iter().any(|absent| absent.is(name)) {
                return Err(format!("{name:?} is not in the list of known controllers"));
            }
        }
        if self.flags.switch("allocate-node-cidrs") && self.flags.text("cluster-cidr").is_empty() {
            return Err("--cluster-cidr must be set when --allocate-node-cidrs is".into());
        }
        for list in [self.flags.list("cluster-cidr"), self.flags.list("service-cluster-ip-range")] {
            for range in list {
                range.parse::<ipnet::IpNet>().map_err(|_| format!("invalid CIDR address: {range}"))?;
            }
        }
        self.timing().validate().map_err(str::to_owned)
    }

    /// Warns of each flag that was given and has no effect.
    pub fn tell_of_what_has_no_effect(&self) {
        for (why, flag) in self.idle() {
            tracing::warn!("--{flag} has no effect: {why}");
        }
    }

    fn idle(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        let all = NO_EFFECT.iter().flat_map(|(why, flags)| flags.iter().map(|flag| (*why, *flag)));
        all.filter(|(_, flag)| self.flags.given(flag))
    }

    /// The leader election flags.
    pub fn timing(&self) -> client::leader::Timing {
        client::leader::Timing {
            lease: self.flags.duration("leader-elect-lease-duration"),
            renew: self.flags.duration("leader-elect-renew-deadline"),
            retry: self.flags.duration("leader-elect-retry-period"),
        }
    }

    /// How many workers a `--concurrent-…-syncs` flag asks for; one at least.
    pub fn workers(&self, flag: &str) -> usize {
        usize::try_from(self.flags.int(flag)).unwrap_or(0).max(1)
    }
}

fn all() -> Vec<Arg> {
    let shared = [
        flags::serving(10257),
        flags::delegating(),
        flags::leader_election("kube-controller-manager"),
        flags::metrics(),
        flags::emulation(),
    ];
    let own = [generic(), workers(), workloads(), nodes(), security(), storage()];
    shared.into_iter().chain(own).flatten().map(with_effect).collect()
}

/// The flag with a help that says when it has no effect.
fn with_effect(flag: Arg) -> Arg {
    let idle = NO_EFFECT.iter().find(|(_, flags)| flags.contains(&flag.get_id().as_str()));
    let Some((why, _)) = idle else { return flag };
    let help = flag.get_help().map(ToString::to_string).unwrap_or_default();
    flag.help(format!("{help}; has no effect: {why}"))
}

/// Flags that are taken and do nothing, by why.
const NO_EFFECT: &[(&str, &[&str])] = &[
    ("requests are JSON", &["kube-api-content-type"]),
    ("requests are limited by the server's flow control", &["kube-api-qps", "kube-api-burst"]),
    ("there is no profiling by HTTP", &["profiling", "contention-profiling"]),
    ("gates are at their defaults", &["feature-gates"]),
    ("upstream has none either", &["node-sync-period"]),
    (
        "there is no controller of a cloud",
        &[
            "cloud-provider",
            "cloud-config",
            "external-cloud-volume-plugin",
            "allow-untagged-cloud",
            "enable-leader-migration",
            "leader-migration-config",
        ],
    ),
    ("there is no service-lb-controller", &["cluster-name", "concurrent-service-syncs"]),
    ("there is no node-route-controller", &["configure-cloud-routes", "route-reconciliation-period"]),
    ("there is no cronjob-controller", &["concurrent-cron-job-syncs"]),
    ("there is no statefulset-controller", &["concurrent-statefulset-syncs"]),
    ("there is no device-taint-eviction-controller", &["concurrent-device-taint-eviction-syncs"]),
    ("there is no ephemeral-volume-controller", &["concurrent-ephemeralvolume-syncs"]),
    ("there is no resourceclaim-controller", &["concurrent-resourceclaim-syncs"]),
    (
        "there is no validatingadmissionpolicy-status-controller",
        &["concurrent-validating-admission-policy-status-syncs"],
    ),
    ("there is no resourcequota-controller", &["concurrent-resource-quota-syncs", "resource-quota-sync-period"]),
    (
        "there is no serviceaccount-token-controller",
        &["concurrent-serviceaccount-token-syncs", "service-account-private-key-file"],
    ),
    ("there is no legacy-serviceaccount-token-cleaner-controller", &["legacy-service-account-token-clean-up-period"]),
    (
        "there is no horizontal-pod-autoscaler-controller",
        &[
            "concurrent-horizontal-pod-autoscaler-syncs",
            "horizontal-pod-autoscaler-sync-period",
            "horizontal-pod-autoscaler-downscale-stabilization",
            "horizontal-pod-autoscaler-tolerance",
            "horizontal-pod-autoscaler-cpu-initialization-period",
            "horizontal-pod-autoscaler-initial-readiness-delay",
        ],
    ),
    (
        "there is no certificatesigningrequest-signing-controller",
        &[
            "cluster-signing-cert-file",
            "cluster-signing-key-file",
            "cluster-signing-kube-apiserver-client-cert-file",
            "cluster-signing-kube-apiserver-client-key-file",
            "cluster-signing-kubelet-client-cert-file",
            "cluster-signing-kubelet-client-key-file",
            "cluster-signing-kubelet-serving-cert-file",
            "cluster-signing-kubelet-serving-key-file",
            "cluster-signing-legacy-unknown-cert-file",
            "cluster-signing-legacy-unknown-key-file",
            "cluster-signing-duration",
        ],
    ),
    (
        "there is no persistentvolume-binder-controller",
        &[
            "pvclaimbinder-sync-period",
            "enable-dynamic-provisioning",
            "enable-hostpath-provisioner",
            "flex-volume-plugin-dir",
            "pv-recycler-pod-template-filepath-nfs",
            "pv-recycler-minimum-timeout-nfs",
            "pv-recycler-increment-timeout-nfs",
            "pv-recycler-pod-template-filepath-hostpath",
            "pv-recycler-minimum-timeout-hostpath",
            "pv-recycler-timeout-increment-hostpath",
        ],
    ),
    (
        "there is no persistentvolume-attach-detach-controller",
        &[
            "disable-attach-detach-reconcile-sync",
            "attach-detach-reconcile-sync-period",
            "disable-force-detach-on-timeout",
        ],
    ),
];

fn generic() -> Vec<Arg> {
    use flags::{duration, float, int, list, map, switch, text};
    vec![
        text("kubeconfig", "", "kubeconfig with the address of the API server and credentials"),
        text("master", "", "address of the API server; overrides the kubeconfig's"),
        list(
            "controllers",
            "*",
            "controllers to run: '*' all that are on by default, 'foo' this one, '-foo' not this one",
        ),
        switch("use-service-account-credentials", false, "each controller acts as a service account of its own"),
        duration("controller-start-interval", "0s", "interval between starting controllers"),
        duration("controller-shutdown-timeout", "10s", "how long controllers may take to end"),
        duration("min-resync-period", "12h0m0s", "all objects are looked at again after one to two of these"),
        text("kube-api-content-type", "application/vnd.kubernetes.protobuf", "content type of requests"),
        float("kube-api-qps", 20.0, "requests per second"),
        int("kube-api-burst", 30, "requests in a burst"),
        map("feature-gates", "key=bool pairs"),
        switch("profiling", true, "profiling by HTTP"),
        switch("contention-profiling", false, "profiling of locks, if profiling is on"),
        text("cluster-name", "kubernetes", "prefix of instances of this cluster"),
        text("cloud-provider", "", "cloud provider; empty or external"),
        text("cloud-config", "", "path of the cloud provider's configuration"),
        text("external-cloud-volume-plugin", "", "volume plugin of a cloud provider"),
        switch("allow-untagged-cloud", false, "whether instances without the cluster's tag are taken"),
        switch("configure-cloud-routes", true, "whether the cloud gets routes for the nodes' ranges"),
        duration("route-reconciliation-period", "10s", "period for reconciling routes of a cloud"),
        switch("enable-leader-migration", false, "whether leader migration is on"),
        text("leader-migration-config", "", "path of the leader migration configuration"),
    ]
}

fn workers() -> Vec<Arg> {
    const ALL: &[(&str, i64)] = &[
        ("concurrent-cron-job-syncs", 5),
        ("concurrent-daemonset-syncs", 2),
        ("concurrent-deployment-syncs", 5),
        ("concurrent-device-taint-eviction-syncs", 10),
        ("concurrent-endpoint-syncs", 5),
        ("concurrent-ephemeralvolume-syncs", 5),
        ("concurrent-gc-syncs", 20),
        ("concurrent-horizontal-pod-autoscaler-syncs", 5),
        ("concurrent-job-syncs", 5),
        ("concurrent-namespace-syncs", 10),
        ("concurrent-rc-syncs", 5),
        ("concurrent-replicaset-syncs", 5),
        ("concurrent-resource-quota-syncs", 5),
        ("concurrent-resourceclaim-syncs", 10),
        ("concurrent-service-endpoint-syncs", 5),
        ("concurrent-service-syncs", 1),
        ("concurrent-serviceaccount-token-syncs", 5),
        ("concurrent-statefulset-syncs", 5),
        ("concurrent-ttl-after-finished-syncs", 5),
        ("concurrent-validating-admission-policy-status-syncs", 5),
        ("mirroring-concurrent-service-endpoint-syncs", 5),
    ];
    ALL.iter()
        .map(|(name, default)| flags::int(name, *default, "objects of this kind that are looked at concurrently"))
        .collect()
}

fn workloads() -> Vec<Arg> {
    use flags::{duration, float, int, switch};
    vec![
        int(
            "terminated-pod-gc-threshold",
            12500,
            "terminated pods that may exist before some are deleted; 0 for any number",
        ),
        switch("enable-garbage-collector", true, "whether dependents of deleted owners are deleted"),
        duration("namespace-sync-period", "5m0s", "period for looking at all namespaces"),
        duration("resource-quota-sync-period", "5m0s", "period for counting the usage of all quotas"),
        int("max-endpoints-per-slice", 100, "endpoints in one EndpointSlice at most"),
        int("mirroring-max-endpoints-per-subset", 1000, "mirrored endpoints of a subset at most"),
        duration("endpoint-updates-batch-period", "0s", "how long changes of pods are gathered"),
        duration("endpointslice-updates-batch-period", "0s", "how long changes of pods are gathered"),
        duration("mirroring-endpointslice-updates-batch-period", "0s", "how long changes of Endpoints are gathered"),
        duration("horizontal-pod-autoscaler-sync-period", "15s", "period for looking at autoscalers"),
        duration(
            "horizontal-pod-autoscaler-downscale-stabilization",
            "5m0s",
            "how far back recommendations hold a scale-down",
        ),
        float("horizontal-pod-autoscaler-tolerance", 0.1, "change of the ratio that is needed to scale"),
        duration(
            "horizontal-pod-autoscaler-cpu-initialization-period",
            "5m0s",
            "time after a pod's start in which its CPU may be skipped",
        ),
        duration(
            "horizontal-pod-autoscaler-initial-readiness-delay",
            "30s",
            "time after a pod's start in which changes of readiness count as the first",
        ),
    ]
}

fn nodes() -> Vec<Arg> {
    use flags::{duration, float, int, switch, text};
    vec![
        switch("allocate-node-cidrs", false, "whether nodes get ranges of --cluster-cidr"),
        text("cluster-cidr", "", "ranges of the pods, by comma; used with --allocate-node-cidrs"),
        text("service-cluster-ip-range", "", "ranges of the Services; kept free of pods"),
        text("cidr-allocator-type", "RangeAllocator", "kind of the allocator of ranges"),
        int("node-cidr-mask-size", 0, "size of a node's range: 24 for IPv4 and 64 for IPv6"),
        int("node-cidr-mask-size-ipv4", 0, "size of a node's IPv4 range: 24"),
        int("node-cidr-mask-size-ipv6", 0, "size of a node's IPv6 range: 64"),
        duration("node-monitor-period", "5s", "period for looking at the nodes' state"),
        duration("node-monitor-grace-period", "50s", "how long a node may be silent before it counts as lost"),
        duration("node-startup-grace-period", "1m0s", "how long a node that starts may be silent"),
        duration("node-sync-period", "0s", "period for looking at the nodes of a cloud"),
        float("node-eviction-rate", 0.1, "nodes per second whose pods are evicted in a healthy zone"),
        float("secondary-node-eviction-rate", 0.01, "nodes per second whose pods are evicted in an unhealthy zone"),
        int("large-cluster-size-threshold", 50, "nodes above which an unhealthy zone still evicts"),
        float("unhealthy-zone-threshold", 0.55, "part of a zone's nodes, three at least, that make it unhealthy"),
    ]
}

fn security() -> Vec<Arg> {
    use flags::{duration, text};
    vec![
        text("root-ca-file", "", "authority that is published to pods"),
        text("service-account-private-key-file", "", "key that signs tokens in Secrets"),
        text("cluster-signing-cert-file", "", "authority that signs all certificates"),
        text("cluster-signing-key-file", "", "its key"),
        text(
            "cluster-signing-kube-apiserver-client-cert-file",
            "",
            "authority for kubernetes.io/kube-apiserver-client",
        ),
        text("cluster-signing-kube-apiserver-client-key-file", "", "its key"),
        text(
            "cluster-signing-kubelet-client-cert-file",
            "",
            "authority for kubernetes.io/kube-apiserver-client-kubelet",
        ),
        text("cluster-signing-kubelet-client-key-file", "", "its key"),
        text("cluster-signing-kubelet-serving-cert-file", "", "authority for kubernetes.io/kubelet-serving"),
        text("cluster-signing-kubelet-serving-key-file", "", "its key"),
        text("cluster-signing-legacy-unknown-cert-file", "", "authority for kubernetes.io/legacy-unknown"),
        text("cluster-signing-legacy-unknown-key-file", "", "its key"),
        duration("cluster-signing-duration", "8760h0m0s", "longest life of a signed certificate"),
        duration(
            "legacy-service-account-token-clean-up-period",
            "8760h0m0s",
            "unused time after which a token Secret is removed",
        ),
    ]
}

fn storage() -> Vec<Arg> {
    use flags::{duration, int, switch, text};
    vec![
        duration("pvclaimbinder-sync-period", "15s", "period for looking at volumes and claims"),
        switch("enable-dynamic-provisioning", true, "whether claims make external provisioners work"),
        switch("enable-hostpath-provisioner", false, "whether claims get directories of the host, for tests"),
        text(
            "flex-volume-plugin-dir",
            "/usr/libexec/kubernetes/kubelet-plugins/volume/exec/",
            "directory of flex volume plugins",
        ),
        text("pv-recycler-pod-template-filepath-nfs", "", "template of pods that recycle volumes"),
        int("pv-recycler-minimum-timeout-nfs", 300, "seconds that recycling may take at least"),
        int("pv-recycler-increment-timeout-nfs", 30, "seconds more for each Gi"),
        text("pv-recycler-pod-template-filepath-hostpath", "", "template of pods that recycle volumes"),
        int("pv-recycler-minimum-timeout-hostpath", 60, "seconds that recycling may take at least"),
        int("pv-recycler-timeout-increment-hostpath", 30, "seconds more for each Gi"),
        switch("disable-attach-detach-reconcile-sync", false, "no comparison of what is attached with the nodes"),
        duration("attach-detach-reconcile-sync-period", "1m0s", "period of that comparison"),
        switch("disable-force-detach-on-timeout", false, "no detaching by force from nodes that are gone"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsString;

    fn refusal(args: &[&str]) -> Option<String> {
        match flags::parse(command(), args.iter().map(OsString::from)) {
            Ok(flags) => Options::read(flags).err(),
            Err(flags::Exit::Refuse(why)) => Some(why),
            Err(flags::Exit::Print(_)) => panic!("nothing to print"),
        }
    }

    #[test]
    fn kubeadms_flags_are_taken() {
        let args = [
            "--allocate-node-cidrs=true",
            "--authentication-kubeconfig=/etc/kubernetes/controller-manager.conf",
            "--authorization-kubeconfig=/etc/kubernetes/controller-manager.conf",
            "--bind-address=127.0.0.1",
            "--client-ca-file=/etc/kubernetes/pki/ca.crt",
            "--cluster-cidr=10.244.0.0/16",
            "--cluster-name=kubernetes",
            "--cluster-signing-cert-file=/etc/kubernetes/pki/ca.crt",
            "--cluster-signing-key-file=/etc/kubernetes/pki/ca.key",
            "--controllers=*,bootstrapsigner,tokencleaner",
            "--kubeconfig=/etc/kubernetes/controller-manager.conf",
            "--leader-elect=true",
            "--requestheader-client-ca-file=/etc/kubernetes/pki/front-proxy-ca.crt",
            "--root-ca-file=/etc/kubernetes/pki/ca.crt",
            "--service-account-private-key-file=/etc/kubernetes/pki/sa.key",
            "--service-cluster-ip-range=10.96.0.0/12",
            "--use-service-account-credentials=true",
        ];
        assert_eq!(refusal(&args), None);
    }

    fn parsed(args: &[&str]) -> Options {
        let Ok(flags) = flags::parse(command(), args.iter().map(OsString::from)) else { panic!("should parse") };
        Options::read(flags).unwrap()
    }

    #[test]
    fn flags_without_effect_say_so_in_their_help_and_are_told_when_given() {
        let options = parsed(&["--concurrent-statefulset-syncs=7", "--concurrent-job-syncs=7"]);
        let idle: Vec<_> = options.idle().collect();
        assert_eq!(idle, [("there is no statefulset-controller", "concurrent-statefulset-syncs")]);
        let command = command();
        let help = |name: &str| {
            let flag = command.get_arguments().find(|flag| flag.get_id() == name);
            flag.unwrap_or_else(|| panic!("no flag {name}")).get_help().unwrap().to_string()
        };
        for (why, flags) in NO_EFFECT {
            flags.iter().for_each(|flag| assert!(help(flag).ends_with(why), "{flag}"));
            if let Some(controller) = why.strip_prefix("there is no ").filter(|name| name.ends_with("-controller")) {
                assert!(table::ABSENT.iter().any(|absent| absent.is(controller)), "{controller}");
            }
        }
        assert!(!help("concurrent-job-syncs").contains("no effect"));
    }

    #[test]
    fn bad_flags_are_refused_by_name() {
        assert_eq!(refusal(&["--nope"]).unwrap(), "unknown flag: --nope");
        assert_eq!(refusal(&["--controllers=*,-nope"]).unwrap(), "\"nope\" is not in the list of known controllers");
        assert_eq!(refusal(&["--cluster-cidr=x"]).unwrap(), "invalid CIDR address: x");
        assert!(refusal(&["--leader-elect-renew-deadline=20s"]).unwrap().contains("leaseDuration"));
    }
}

//! THE TABLE of controllers: name, account, older names, whether it runs by default, and what starts it.

use crate::context::Context;
use futures::future::BoxFuture;

/// One controller.
pub struct Row {
    /// Upstream's name.
    pub name: &'static str,
    /// The service account in kube-system that it acts as.
    pub account: &'static str,
    /// Names it had before.
    pub aliases: &'static [&'static str],
    /// Whether `*` means it.
    pub default: bool,
    /// Runs it until the context's end, or until it finds that it can't.
    pub start: fn(Context) -> BoxFuture<'static, Result<(), base::Fault>>,
}

macro_rules! row {
    ($name:literal, $account:literal, [$($alias:literal),*], $run:path $(, $off:ident)?) => {
        Row {
            name: $name,
            account: $account,
            aliases: &[$($alias),*],
            default: row!(@default $($off)?),
            start: |context| Box::pin(async { End::from($run(context).await).0 }),
        }
    };
    (@default) => { true };
    (@default off) => { false };
}

/// How a controller has ended; only some can fail.
struct End(Result<(), base::Fault>);

impl From<()> for End {
    fn from((): ()) -> Self {
        Self(Ok(()))
    }
}

impl From<Result<(), base::Fault>> for End {
    fn from(end: Result<(), base::Fault>) -> Self {
        Self(end)
    }
}

/// Every controller, in the order of their start.
pub const TABLE: &[Row] = &[
    row!("namespace-controller", "namespace-controller", ["namespace"], crate::namespace::run),
    row!("serviceaccount-controller", "service-account-controller", ["serviceaccount"], crate::serviceaccount::run),
    row!(
        "root-ca-certificate-publisher-controller",
        "root-ca-cert-publisher",
        ["root-ca-cert-publisher"],
        crate::rootca::run
    ),
    row!("endpoints-controller", "endpoint-controller", ["endpoint"], crate::network::run_endpoints),
    row!("endpointslice-controller", "endpointslice-controller", ["endpointslice"], crate::network::run_slices),
    row!(
        "endpointslice-mirroring-controller",
        "endpointslicemirroring-controller",
        ["endpointslicemirroring"],
        crate::network::run_mirroring
    ),
    row!("deployment-controller", "deployment-controller", ["deployment"], crate::deployment::run),
    row!("daemonset-controller", "daemon-set-controller", ["daemonset"], crate::daemonset::run),
    row!("job-controller", "job-controller", ["job"], crate::job::run),
    row!("ttl-after-finished-controller", "ttl-after-finished-controller", ["ttl-after-finished"], crate::job::run_ttl),
    row!("replicaset-controller", "replicaset-controller", ["replicaset"], crate::replicaset::run),
    row!(
        "replicationcontroller-controller",
        "replication-controller",
        ["replicationcontroller"],
        crate::replicaset::run_replication_controllers
    ),
    row!(
        "clusterrole-aggregation-controller",
        "clusterrole-aggregation-controller",
        ["clusterrole-aggregation"],
        crate::aggregation::run
    ),
    row!("token-cleaner-controller", "token-cleaner", ["tokencleaner"], crate::bootstrap::run_token_cleaner, off),
    row!("pod-garbage-collector-controller", "pod-garbage-collector", ["podgc"], crate::podgc::run),
    row!("node-lifecycle-controller", "node-controller", ["nodelifecycle"], crate::nodes::run_lifecycle),
    row!("taint-eviction-controller", "node-controller", [], crate::nodes::run_eviction),
    row!("node-ipam-controller", "node-controller", ["nodeipam"], crate::nodes::run_ipam),
    row!("ttl-controller", "ttl-controller", ["ttl"], crate::nodes::run_ttl),
    row!("garbage-collector-controller", "generic-garbage-collector", ["garbagecollector"], crate::gc::run),
];

/// A controller of upstream's that is not here: `--controllers` takes its names, and they start nothing.
pub struct Absent {
    /// Upstream's name.
    pub name: &'static str,
    /// Names it had before.
    pub aliases: &'static [&'static str],
    /// Whether upstream starts it with `*`, in a cluster without a cloud.
    pub default: bool,
}

impl Absent {
    /// Whether it has this name, old or new.
    pub fn is(&self, name: &str) -> bool {
        self.name == name || self.aliases.contains(&name)
    }
}

macro_rules! absent {
    ($($name:literal $([$($alias:literal),*])? $(, $off:ident)?;)*) => {
        &[$(Absent { name: $name, aliases: &[$($($alias),*)?], default: row!(@default $($off)?) }),*]
    };
}

/// Upstream's controllers that are not here yet.
pub const ABSENT: &[Absent] = absent! {
    "serviceaccount-token-controller" ["serviceaccount-token"];
    "resourcequota-controller" ["resourcequota"];
    "horizontal-pod-autoscaler-controller" ["horizontalpodautoscaling"];
    "disruption-controller" ["disruption"];
    "statefulset-controller" ["statefulset"];
    "cronjob-controller" ["cronjob"];
    "certificatesigningrequest-signing-controller" ["csrsigning"];
    "certificatesigningrequest-approving-controller" ["csrapproving"];
    "certificatesigningrequest-cleaner-controller" ["csrcleaner"];
    "podcertificaterequest-cleaner-controller";
    "bootstrap-signer-controller" ["bootstrapsigner"], off;
    "device-taint-eviction-controller";
    "persistentvolume-binder-controller" ["persistentvolume-binder"];
    "persistentvolume-attach-detach-controller" ["attachdetach"];
    "persistentvolume-expander-controller" ["persistentvolume-expander"];
    "persistentvolumeclaim-protection-controller" ["pvc-protection"];
    "persistentvolume-protection-controller" ["pv-protection"];
    "podgroup-protection-controller";
    "service-ca-certificate-publisher-controller" ["service-ca-cert-publisher"];
    "kube-apiserver-serving-clustertrustbundle-publisher-controller";
    "ephemeral-volume-controller" ["ephemeral-volume"];
    "storageversion-garbage-collector-controller" ["storage-version-gc"];
    "resourceclaim-controller" ["resource-claim-controller"];
    "resourcepoolstatusrequest-controller";
    "legacy-serviceaccount-token-cleaner-controller" ["legacy-service-account-token-cleaner"];
    "validatingadmissionpolicy-status-controller" ["validatingadmissionpolicy-status"];
    "volumeattributesclass-protection-controller";
    "service-cidr-controller";
    "storage-version-migrator-controller";
    "selinux-warning-controller", off;
    "service-lb-controller" ["service"], off;
    "node-route-controller" ["route"], off;
    "cloud-node-lifecycle-controller" ["cloud-node-lifecycle"], off;
};

/// What to tell about controllers that `--controllers` means and that are not here: those it names, and those that are
/// among all.
pub fn missing(controllers: &[String]) -> (Vec<&'static str>, Vec<&'static str>) {
    let named = |absent: &&Absent| controllers.iter().any(|entry| absent.is(entry));
    let refused =
        |absent: &Absent| controllers.iter().any(|entry| entry.strip_prefix('-').is_some_and(|name| absent.is(name)));
    let all = controllers.iter().any(|entry| entry == "*");
    let implied = |absent: &&Absent| all && absent.default && !named(absent) && !refused(absent);
    let names = |absent: &Absent| absent.name;
    (ABSENT.iter().filter(named).map(names).collect(), ABSENT.iter().filter(implied).map(names).collect())
}

/// The controller of this name, old or new.
pub fn find(name: &str) -> Option<&'static Row> {
    TABLE.iter().find(|row| row.name == name || row.aliases.contains(&name))
}

/// Whether a controller runs, by the value of `--controllers`.
pub fn enabled(row: &Row, controllers: &[String]) -> bool {
    let is = |entry: &str| entry == row.name || row.aliases.contains(&entry);
    for entry in controllers {
        if is(entry) {
            return true;
        }
        if entry.strip_prefix('-').is_some_and(is) {
            return false;
        }
    }
    row.default && controllers.iter().any(|entry| entry == "*")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique() {
        let here = TABLE.iter().flat_map(|row| row.aliases.iter().chain([&row.name]));
        let absent = ABSENT.iter().flat_map(|absent| absent.aliases.iter().chain([&absent.name]));
        let mut names: Vec<_> = here.chain(absent).collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
    }

    #[test]
    fn the_list_of_controllers_reads_as_upstreams() {
        let on = find("replicaset-controller").unwrap();
        let off = Row { default: false, ..*on };
        let enabled = |row: &Row, list: &[&str]| {
            super::enabled(row, &list.iter().map(|entry| (*entry).to_owned()).collect::<Vec<_>>())
        };
        assert!(enabled(on, &["*"]));
        assert!(!enabled(&off, &["*"]));
        assert!(enabled(&off, &["*", "replicaset"]));
        assert!(!enabled(on, &["*", "-replicaset-controller"]));
        assert!(!enabled(on, &["namespace-controller"]));
        assert!(enabled(on, &["replicaset-controller"]));
    }

    #[test]
    fn absent_controllers_that_are_asked_for_are_named() {
        let missing = |list: &[&str]| missing(&list.iter().map(|entry| (*entry).to_owned()).collect::<Vec<_>>());
        let (named, implied) = missing(&["*", "-cronjob", "bootstrapsigner", "tokencleaner"]);
        assert_eq!(named, ["bootstrap-signer-controller"]);
        assert!(implied.contains(&"statefulset-controller"));
        assert!(!implied.contains(&"cronjob-controller") && !implied.contains(&"service-lb-controller"));
        assert_eq!(missing(&["job-controller", "disruption"]), (vec!["disruption-controller"], vec![]));
    }
}

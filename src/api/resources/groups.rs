//! The API groups, in the order in which discovery lists them.

/// An API group.
#[derive(Debug)]
pub struct Group {
    /// Name, empty for core.
    pub name: &'static str,
    /// `groupPriorityMinimum` of its APIServices; 0 for the group of APIServices itself, which has none.
    pub priority: i32,
    /// Package that its types' OpenAPI names carry: `io.k8s.api.<package>.<version>.<Kind>`.
    pub package: &'static str,
    /// Versions in order of preference.
    pub versions: &'static [GroupVersion],
}

/// A version of a group.
#[derive(Debug)]
pub struct GroupVersion {
    /// `v1`, `v1beta1` …
    pub name: &'static str,
    /// `versionPriority` of its APIService.
    pub priority: i32,
    /// Served without `--runtime-config`.
    pub default: bool,
}

impl Group {
    /// The group of that name.
    pub fn find(name: &str) -> Option<&'static Group> {
        GROUPS.iter().find(|g| g.name == name)
    }

    /// `io.k8s.api.core.v1.Pod` for `v1` and `Pod`.
    pub(super) fn schema(&self, version: &str, kind: &str) -> String {
        match self.name {
            "apiextensions.k8s.io" => format!("io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.{version}.{kind}"),
            "apiregistration.k8s.io" => format!("io.k8s.kube-aggregator.pkg.apis.apiregistration.{version}.{kind}"),
            _ => format!("io.k8s.api.{}.{version}.{kind}", self.package),
        }
    }
}

const fn on(name: &'static str, priority: i32) -> GroupVersion {
    GroupVersion { name, priority, default: true }
}

const fn off(name: &'static str, priority: i32) -> GroupVersion {
    GroupVersion { name, priority, default: false }
}

const fn group(name: &'static str, package: &'static str, priority: i32, versions: &'static [GroupVersion]) -> Group {
    Group { name, priority, package, versions }
}

/// Core first, then as `/apis` lists them: by priority, then by name. Beta and alpha versions are off by default.
pub static GROUPS: &[Group] = &[
    group("", "core", 18000, &[on("v1", 1)]),
    group("apiregistration.k8s.io", "apiregistration", 0, &[on("v1", 0)]),
    group("apps", "apps", 17800, &[on("v1", 15)]),
    group("events.k8s.io", "events", 17750, &[on("v1", 15)]),
    group("authentication.k8s.io", "authentication", 17700, &[on("v1", 15)]),
    group("authorization.k8s.io", "authorization", 17600, &[on("v1", 15)]),
    group("autoscaling", "autoscaling", 17500, &[on("v2", 30), on("v1", 15)]),
    group("batch", "batch", 17400, &[on("v1", 15)]),
    group("certificates.k8s.io", "certificates", 17300, &[on("v1", 15), off("v1beta1", 9), off("v1alpha1", 1)]),
    group("networking.k8s.io", "networking", 17200, &[on("v1", 15), off("v1beta1", 9)]),
    group("policy", "policy", 17100, &[on("v1", 15)]),
    group("rbac.authorization.k8s.io", "rbac", 17000, &[on("v1", 15)]),
    group("storage.k8s.io", "storage", 16800, &[on("v1", 15), off("v1beta1", 9)]),
    group(
        "admissionregistration.k8s.io",
        "admissionregistration",
        16700,
        &[on("v1", 15), off("v1beta1", 12), off("v1alpha1", 9)],
    ),
    group("apiextensions.k8s.io", "apiextensions", 16700, &[on("v1", 15)]),
    group("scheduling.k8s.io", "scheduling", 16600, &[on("v1", 15), off("v1alpha2", 2)]),
    group("coordination.k8s.io", "coordination", 16500, &[on("v1", 15), off("v1beta1", 13), off("v1alpha2", 12)]),
    group("node.k8s.io", "node", 16300, &[on("v1", 15)]),
    group("discovery.k8s.io", "discovery", 16200, &[on("v1", 15)]),
    group(
        "resource.k8s.io",
        "resource",
        16200,
        &[on("v1", 21), off("v1beta2", 15), off("v1beta1", 9), off("v1alpha3", 1)],
    ),
    group("flowcontrol.apiserver.k8s.io", "flowcontrol", 16100, &[on("v1", 21)]),
    group("internal.apiserver.k8s.io", "apiserverinternal", 16000, &[off("v1alpha1", 9)]),
    group("storagemigration.k8s.io", "storagemigration", 15800, &[off("v1beta1", 9)]),
];

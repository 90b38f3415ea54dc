//! What a pod may hold that a new one may not, because it was stored so, or was allowed when it was stored
//! (`GetValidationOptionsFromPodSpecAndMeta`).

use super::{scheduling, security, spec};
use crate::Value;
use crate::field::{Errors, Path};
use crate::kinds::compute;
use crate::kinds::rules;
use crate::kinds::view::View;
use crate::meta::names;

/// Tolerances; all false for a new pod template.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// The object is a pod, not a template.
    pub is_pod: bool,
    /// A deletion cost that is no number.
    pub any_deletion_cost: bool,
    /// Values in affinity selectors that are no label values.
    pub any_selector_value: bool,
    /// Values in required node affinity that are no label values.
    pub any_node_affinity_value: bool,
    /// Huge pages that are no multiple of their size.
    pub any_huge_pages: bool,
    /// Selectors of spread constraints that are none.
    pub any_spread_selector: bool,
    /// Label keys of spread constraints by the older rule.
    pub old_spread_keys: bool,
    /// Token files outside of their volume.
    pub any_token_path: bool,
    /// Sysctls of the host's namespaces.
    pub host_sysctls: bool,
    /// `RestartContainer` for init containers that end.
    pub restart_init_containers: bool,
    /// The pod uses SELinux mount options, which are off.
    pub any_selinux_policy: bool,
    /// Tolerations compare numbers, which is off.
    pub comparing_tolerations: bool,
    /// Host network in a user namespace, which is off.
    pub host_network_without_host_users: bool,
    /// Devices in a user namespace.
    pub devices_without_host_users: bool,
}

impl Options {
    /// For a new pod.
    pub fn new_pod() -> Self {
        Self { is_pod: true, ..Self::default() }
    }

    /// For an update of a pod.
    pub fn pod(old: &Value) -> Self {
        Self { is_pod: true, ..Self::template(Some(old)) }
    }

    /// For a pod template and what it was; `metadata` and `spec` are those of pods.
    pub fn template(old: Option<&Value>) -> Self {
        let Some(old) = old.filter(|old| old.has("spec")) else { return Self::default() };
        let spec = old.at("spec");
        let selinux = spec.at("securityContext").has("seLinuxChangePolicy");
        Self {
            is_pod: false,
            any_deletion_cost: !spec::deletion_cost_is_valid(old.at("metadata").at("annotations")),
            any_selector_value: affinity_terms(spec).any(has_bad_selector),
            any_node_affinity_value: bad_node_affinity(spec),
            any_huge_pages: bad_huge_pages(spec),
            any_spread_selector: spec
                .items("topologySpreadConstraints")
                .iter()
                .any(|c| wrong(|out, path| scheduling::label_selector(out, c.at("labelSelector"), false, path))),
            old_spread_keys: spec
                .items("topologySpreadConstraints")
                .iter()
                .any(|c| wrong(|out, path| scheduling::label_keys(out, c, path))),
            any_token_path: bad_token_path(spec),
            host_sysctls: spec
                .at("securityContext")
                .items("sysctls")
                .iter()
                .any(|s| wrong(|out, path| security::host_sysctl(out, s.text("name"), spec, path))),
            restart_init_containers: spec.items("initContainers").iter().any(|c| {
                !compute::is_sidecar(c)
                    && c.items("resizePolicy").iter().any(|p| p.text("restartPolicy") == "RestartContainer")
            }),
            any_selinux_policy: selinux,
            comparing_tolerations: spec.items("tolerations").iter().any(|t| ["Lt", "Gt"].contains(&t.text("operator"))),
            host_network_without_host_users: own_users(spec) && spec.flag("hostNetwork"),
            devices_without_host_users: own_users(spec) && has_devices(spec),
        }
    }
}

fn wrong(check: impl FnOnce(&mut Errors, &Path)) -> bool {
    let mut out = Errors::new();
    check(&mut out, &Path::default());
    !out.is_empty()
}

fn own_users(spec: &Value) -> bool {
    spec.at("hostUsers").as_bool() == Some(false)
}

fn has_devices(spec: &Value) -> bool {
    super::defaults::CONTAINERS.iter().any(|list| spec.items(list).iter().any(|c| !c.items("volumeDevices").is_empty()))
}

/// All terms of pod affinity and anti-affinity.
fn affinity_terms(spec: &Value) -> impl Iterator<Item = &Value> {
    ["podAffinity", "podAntiAffinity"].into_iter().flat_map(|kind| {
        let affinity = spec.at("affinity").at(kind);
        let preferred = affinity.items("preferredDuringSchedulingIgnoredDuringExecution").iter();
        let required = affinity.items("requiredDuringSchedulingIgnoredDuringExecution").iter();
        required.chain(preferred.map(|term| term.at("podAffinityTerm")))
    })
}

fn has_bad_selector(term: &Value) -> bool {
    let selector = term.at("labelSelector");
    selector.items("matchExpressions").iter().flat_map(|e| e.texts("values")).any(|v| !names::label_value(v).is_empty())
}

fn bad_node_affinity(spec: &Value) -> bool {
    let required = spec.at("affinity").at("nodeAffinity").at("requiredDuringSchedulingIgnoredDuringExecution");
    let terms = required.items("nodeSelectorTerms").iter().flat_map(|term| term.items("matchExpressions"));
    terms.flat_map(|e| e.texts("values")).any(|v| !names::label_value(v).is_empty())
}

fn bad_huge_pages(spec: &Value) -> bool {
    let lists = super::defaults::CONTAINERS.iter().flat_map(|list| spec.items(list));
    lists
        .flat_map(|c| ["limits", "requests"].map(|l| c.at("resources").entries(l)))
        .flatten()
        .any(|(name, value)| compute::is_huge_page(name) && !compute::fits_huge_page(name, value))
}

fn bad_token_path(spec: &Value) -> bool {
    let sources = spec.items("volumes").iter().flat_map(|v| v.at("projected").items("sources"));
    sources
        .filter_map(|s| s.some("serviceAccountToken"))
        .any(|token| wrong(|out, path| rules::unreserved_path(out, token.text("path"), path)))
}

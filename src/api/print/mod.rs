//! Tables: the columns and cells that `kubectl get` shows, as upstream's server prints them.
//!
//! What a cell says may depend on the time of the request (ages), so cells are kept in a form from which the text is
//! made when it is asked for: an object is looked at once, however often it is shown.

mod columns;
mod core;
mod custom;
mod others;
mod pods;
mod read;
#[cfg(test)]
mod recorded;
mod workloads;

use std::borrow::Cow;
use std::sync::OnceLock;

use crate::Value;
use crate::resources::{Row, Text};

pub use custom::{CustomColumn, Path};
pub use pods::row_conditions;

/// A column of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// Heading.
    pub name: Text,
    /// `string`, `integer` …
    pub kind: Text,
    /// `name` for the column that names the object; else mostly empty.
    pub format: Text,
    /// Description.
    pub description: Text,
    /// Above 0: shown only by `-o wide`.
    pub priority: i32,
}

/// A cell.
#[derive(Debug, Clone, PartialEq)]
pub enum Cell {
    /// The same at all times.
    Is(Value),
    /// An age: what stands before it, since when (seconds since 1970), what stands after it.
    Since(Cow<'static, str>, i64, Cow<'static, str>),
}

impl Cell {
    /// The age of a time as RFC 3339 has it; `<unknown>` where there is none.
    pub fn age(time: &Value) -> Self {
        match time.as_str().and_then(seconds) {
            Some(at) => Cell::Since("".into(), at, "".into()),
            None => Cell::Is("<unknown>".into()),
        }
    }

    /// What the cell shows at a time, in seconds since 1970.
    pub fn at(&self, now: i64) -> Cow<'_, Value> {
        match self {
            Cell::Is(value) => Cow::Borrowed(value),
            Cell::Since(before, at, after) => Cow::Owned(format!("{before}{}{after}", duration(now - at)).into()),
        }
    }
}

/// Seconds since 1970 of a time in RFC 3339.
pub fn seconds(time: &str) -> Option<i64> {
    time.parse::<jiff::Timestamp>().ok().map(|time| time.as_second())
}

/// A duration in seconds as kubectl shows ages: two units at most, the second only while the first is small.
pub fn duration(seconds: i64) -> String {
    const MINUTE: i64 = 60;
    const HOUR: i64 = 60 * MINUTE;
    const DAY: i64 = 24 * HOUR;
    const YEAR: i64 = 365 * DAY;
    let two = |first: i64, unit: &str, second: i64, small: &str| match second {
        0 => format!("{first}{unit}"),
        _ => format!("{first}{unit}{second}{small}"),
    };
    match seconds {
        // A clock that is a little behind is no news.
        i64::MIN..=-2 => "<invalid>".into(),
        -1 => "0s".into(),
        0..120 => format!("{seconds}s"),
        120..600 => two(seconds / MINUTE, "m", seconds % MINUTE, "s"),
        600..10_800 => format!("{}m", seconds / MINUTE),
        10_800..28_800 => two(seconds / HOUR, "h", seconds / MINUTE % 60, "m"),
        28_800..172_800 => format!("{}h", seconds / HOUR),
        _ if seconds < 8 * DAY => two(seconds / DAY, "d", seconds / HOUR % 24, "h"),
        _ if seconds < 2 * YEAR => format!("{}d", seconds / DAY),
        _ if seconds < 8 * YEAR => two(seconds / YEAR, "y", seconds / DAY % 365, "d"),
        _ => format!("{}y", seconds / YEAR),
    }
}

/// How objects of a kind are printed.
struct Printer {
    group: &'static str,
    kind: &'static str,
    columns: fn() -> Vec<Column>,
    cells: fn(&Value) -> Vec<Cell>,
    /// The columns, once they were asked for: their descriptions come from large schemas.
    made: OnceLock<Vec<Column>>,
}

const fn printer(
    group: &'static str, kind: &'static str, columns: fn() -> Vec<Column>, cells: fn(&Value) -> Vec<Cell>,
) -> Printer {
    Printer { group, kind, columns, cells, made: OnceLock::new() }
}

/// The kinds with columns of their own; the others show name and time of creation.
static PRINTERS: [Printer; 64] = [
    printer("", "ComponentStatus", core::component_status_columns, core::component_status),
    printer("", "ConfigMap", core::config_map_columns, core::config_map),
    printer("", "Endpoints", core::endpoints_columns, core::endpoints),
    printer("", "Event", core::event_columns, core::event),
    printer("", "Namespace", core::namespace_columns, core::namespace),
    printer("", "Node", pods::node_columns, pods::node),
    printer("", "PersistentVolume", core::volume_columns, core::volume),
    printer("", "PersistentVolumeClaim", core::claim_columns, core::claim),
    printer("", "Pod", pods::pod_columns, pods::pod),
    printer("", "PodTemplate", pods::template_columns, pods::template),
    printer("", "ReplicationController", workloads::replication_controller_columns, workloads::replication_controller),
    printer("", "ResourceQuota", core::quota_columns, core::quota),
    printer("", "Secret", core::secret_columns, core::secret),
    printer("", "Service", core::service_columns, core::service),
    printer("", "ServiceAccount", core::bare_columns, core::bare),
    printer(ADMISSION, "MutatingAdmissionPolicy", others::mutating_policy_columns, others::mutating_policy),
    printer(ADMISSION, "MutatingAdmissionPolicyBinding", others::policy_binding_columns, others::policy_binding),
    printer(ADMISSION, "MutatingWebhookConfiguration", others::webhook_columns, others::webhooks),
    printer(ADMISSION, "ValidatingAdmissionPolicy", others::validating_policy_columns, others::validating_policy),
    printer(ADMISSION, "ValidatingAdmissionPolicyBinding", others::policy_binding_columns, others::policy_binding),
    printer(ADMISSION, "ValidatingWebhookConfiguration", others::webhook_columns, others::webhooks),
    printer("apiregistration.k8s.io", "APIService", others::api_service_columns, others::api_service),
    printer("apps", "ControllerRevision", workloads::controller_revision_columns, workloads::controller_revision),
    printer("apps", "DaemonSet", workloads::daemon_set_columns, workloads::daemon_set),
    printer("apps", "Deployment", workloads::deployment_columns, workloads::deployment),
    printer("apps", "ReplicaSet", workloads::replica_set_columns, workloads::replica_set),
    printer("apps", "StatefulSet", workloads::stateful_set_columns, workloads::stateful_set),
    printer("autoscaling", "HorizontalPodAutoscaler", workloads::autoscaler_columns, workloads::autoscaler),
    printer("autoscaling", "Scale", workloads::scale_columns, workloads::scale),
    printer("batch", "CronJob", workloads::cron_job_columns, workloads::cron_job),
    printer("batch", "Job", workloads::job_columns, workloads::job),
    printer(CERTIFICATES, "CertificateSigningRequest", others::signing_request_columns, others::signing_request),
    printer(CERTIFICATES, "ClusterTrustBundle", others::trust_bundle_columns, others::trust_bundle),
    printer(CERTIFICATES, "PodCertificateRequest", others::pod_certificate_columns, others::pod_certificate),
    printer("coordination.k8s.io", "Lease", others::lease_columns, others::lease),
    printer("coordination.k8s.io", "LeaseCandidate", others::lease_candidate_columns, others::lease_candidate),
    printer("discovery.k8s.io", "EndpointSlice", core::endpoint_slice_columns, core::endpoint_slice),
    printer("events.k8s.io", "Event", core::event_columns, core::event),
    printer(FLOW, "FlowSchema", others::flow_schema_columns, others::flow_schema),
    printer(FLOW, "PriorityLevelConfiguration", others::priority_level_columns, others::priority_level),
    printer("internal.apiserver.k8s.io", "StorageVersion", others::storage_version_columns, others::storage_version),
    printer(NETWORKING, "IPAddress", others::ip_address_columns, others::ip_address),
    printer(NETWORKING, "Ingress", others::ingress_columns, others::ingresses),
    printer(NETWORKING, "IngressClass", others::ingress_class_columns, others::ingress_class),
    printer(NETWORKING, "NetworkPolicy", others::network_policy_columns, others::network_policy),
    printer(NETWORKING, "ServiceCIDR", others::service_cidr_columns, others::service_cidr),
    printer("node.k8s.io", "RuntimeClass", others::runtime_class_columns, others::runtime_class),
    printer("policy", "PodDisruptionBudget", workloads::disruption_budget_columns, workloads::disruption_budget),
    printer(RBAC, "ClusterRoleBinding", others::cluster_role_binding_columns, others::binding),
    printer(RBAC, "RoleBinding", others::role_binding_columns, others::binding),
    printer("resource.k8s.io", "DeviceClass", core::bare_columns, core::bare),
    printer("resource.k8s.io", "DeviceTaintRule", others::device_taint_columns, others::device_taint),
    printer("resource.k8s.io", "ResourceClaim", others::resource_claim_columns, others::resource_claim),
    printer("resource.k8s.io", "ResourceClaimTemplate", core::bare_columns, core::bare),
    printer("resource.k8s.io", "ResourceSlice", others::resource_slice_columns, others::resource_slice),
    printer("scheduling.k8s.io", "PodGroup", others::pod_group_columns, others::pod_group),
    printer("scheduling.k8s.io", "PriorityClass", others::priority_class_columns, others::priority_class),
    printer("scheduling.k8s.io", "Workload", core::bare_columns, core::bare),
    printer(STORAGE, "CSIDriver", others::csi_driver_columns, others::csi_driver),
    printer(STORAGE, "CSINode", others::csi_node_columns, others::csi_node),
    printer(STORAGE, "StorageClass", others::storage_class_columns, others::storage_class),
    printer(STORAGE, "VolumeAttachment", others::attachment_columns, others::attachment),
    printer(STORAGE, "VolumeAttributesClass", others::attributes_class_columns, others::attributes_class),
    printer("storagemigration.k8s.io", "StorageVersionMigration", others::migration_columns, others::migration),
];

const ADMISSION: &str = "admissionregistration.k8s.io";
const CERTIFICATES: &str = "certificates.k8s.io";
const FLOW: &str = "flowcontrol.apiserver.k8s.io";
const NETWORKING: &str = "networking.k8s.io";
const RBAC: &str = "rbac.authorization.k8s.io";
const STORAGE: &str = "storage.k8s.io";

fn find(group: &str, kind: &str) -> Option<&'static Printer> {
    PRINTERS.iter().find(|p| (p.group, p.kind) == (group, kind))
}

impl Printer {
    fn columns(&'static self) -> &'static [Column] {
        self.made.get_or_init(self.columns)
    }
}

/// The columns of a resource's tables.
pub fn columns(row: &Row) -> Cow<'static, [Column]> {
    columns_of(&row.group, &row.kind)
}

/// The columns of tables of a kind: also one that is no resource, as Scale.
pub fn columns_of(group: &str, kind: &str) -> Cow<'static, [Column]> {
    match find(group, kind) {
        Some(printer) => Cow::Borrowed(printer.columns()),
        None => Cow::Owned(plain_columns()),
    }
}

/// The cells of an object, which is in the stored version.
pub fn cells(row: &Row, object: &Value) -> Vec<Cell> {
    cells_of(&row.group, &row.kind, object)
}

/// The cells of an object of a kind.
pub fn cells_of(group: &str, kind: &str, object: &Value) -> Vec<Cell> {
    match find(group, kind) {
        Some(printer) => (printer.cells)(object),
        None => plain_cells(object),
    }
}

/// The columns of a custom resource's tables: the name, then what its definition lists.
pub fn custom_columns(listed: &[CustomColumn]) -> Vec<Column> {
    [columns::name()].into_iter().chain(listed.iter().map(|c| c.column.clone())).collect()
}

/// The cells of a custom resource.
pub fn custom_cells(listed: &[CustomColumn], object: &Value) -> Vec<Cell> {
    [read::name(object)].into_iter().chain(listed.iter().map(|c| c.cell(object))).collect()
}

fn plain_columns() -> Vec<Column> {
    let mut created = columns::age();
    created.name = "Created At".into();
    created.kind = "date".into();
    vec![columns::name(), created]
}

fn plain_cells(object: &Value) -> Vec<Cell> {
    let metadata = &object["metadata"];
    let created = match metadata["creationTimestamp"].as_str() {
        Some(time) => time.to_string(),
        None => "0001-01-01T00:00:00Z".to_string(),
    };
    vec![Cell::Is(metadata["name"].clone()), Cell::Is(created.into())]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_as_kubectl_shows_them() {
        let want = [
            (-5, "<invalid>"),
            (-1, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (125, "2m5s"),
            (600, "10m"),
            (3 * 3600 - 1, "179m"),
            (3 * 3600, "3h"),
            (3 * 3600 + 60, "3h1m"),
            (8 * 3600, "8h"),
            (48 * 3600 - 1, "47h"),
            (48 * 3600, "2d"),
            (49 * 3600, "2d1h"),
            (8 * 86400, "8d"),
            (2 * 365 * 86400, "2y"),
            (2 * 365 * 86400 + 86400, "2y1d"),
            (8 * 365 * 86400, "8y"),
        ];
        for (seconds, text) in want {
            assert_eq!(duration(seconds), text, "{seconds}");
        }
    }
}

//! Everything else: networking, storage, RBAC, certificates, admission, flow control, coordination, devices, scheduling.

use k8s_openapi::api::certificates::{v1 as certificates, v1beta1 as certificates_beta};
use k8s_openapi::api::coordination::{v1 as coordination, v1alpha2 as coordination_alpha};
use k8s_openapi::api::flowcontrol::v1 as flow;
use k8s_openapi::api::networking::v1 as networking;
use k8s_openapi::api::rbac::v1 as rbac;
use k8s_openapi::api::resource::v1 as resource;
use k8s_openapi::api::scheduling::{v1 as scheduling, v1alpha2 as scheduling_alpha};
use k8s_openapi::api::storage::v1 as storage;

use super::columns::{self, doc, field, text};
use super::core::{ingress, undescribed};
use super::read::{age, at, count, filled, first_few, has, is, joined, labels, list, name, number, truth};
use super::{Cell, Column, duration, read};
use crate::Value;

pub(super) fn ingress_columns() -> Vec<Column> {
    vec![
        columns::name(),
        text("Class", "The name of the IngressClass resource that should be used for additional configuration"),
        text("Hosts", "Hosts that incoming requests are matched against before the ingress rule"),
        text("Address", "Address is a list containing ingress points for the load-balancer"),
        text("Ports", "Ports of TLS configurations that open"),
        columns::age(),
    ]
}

pub(super) fn ingresses(object: &Value) -> Vec<Cell> {
    vec![
        name(object),
        is(read::text_or(object, "/spec/ingressClassName", "<none>")),
        is(hosts(list(object, "/spec/rules"))),
        is(ingress(object)),
        is(if list(object, "/spec/tls").is_empty() { "80" } else { "80, 443" }),
        age(object),
    ]
}

/// Up to three hosts; rules count as more once three hosts are shown.
fn hosts(rules: &[Value]) -> String {
    let (mut shown, mut more) = (Vec::new(), false);
    for rule in rules {
        more |= shown.len() == 3;
        let host = read::text(rule, "/host");
        if !more && !host.is_empty() {
            shown.push(host);
        }
    }
    match shown.join(",") {
        _ if shown.is_empty() => "*".into(),
        shown if more => format!("{shown} + {} more...", rules.len() - 3),
        shown => shown,
    }
}

pub(super) fn ingress_class_columns() -> Vec<Column> {
    vec![
        columns::name(),
        text("Controller", "Controller that is responsible for handling this class"),
        text("Parameters", "A reference to a resource with additional parameters"),
        columns::age(),
    ]
}

fn name_with_default(object: &Value, annotations: &[&str]) -> Cell {
    let marked = annotations.iter().any(|a| object["metadata"]["annotations"][*a] == "true");
    is(format!("{}{}", read::text(object, "/metadata/name"), if marked { " (default)" } else { "" }))
}

pub(super) fn ingress_class(object: &Value) -> Vec<Cell> {
    let parameters = match at(object, "/spec/parameters") {
        Value::Null => "<none>".to_string(),
        to => {
            let group = to["apiGroup"].as_str().map(|g| format!(".{g}")).unwrap_or_default();
            format!("{}{group}/{}", read::text(to, "/kind"), read::text(to, "/name"))
        }
    };
    vec![
        name_with_default(object, &["ingressclass.kubernetes.io/is-default-class"]),
        is(read::text(object, "/spec/controller")),
        is(parameters),
        age(object),
    ]
}

pub(super) fn network_policy_columns() -> Vec<Column> {
    vec![columns::name(), field::<networking::NetworkPolicySpec>("Pod-Selector", "podSelector"), columns::age()]
}

pub(super) fn network_policy(object: &Value) -> Vec<Cell> {
    let selector = match at(object, "/spec/podSelector") {
        Value::Null => "<none>".into(),
        _ => read::selector(object, "/spec/podSelector"),
    };
    vec![name(object), is(selector), age(object)]
}

pub(super) fn service_cidr_columns() -> Vec<Column> {
    vec![columns::name(), field::<networking::ServiceCIDRSpec>("CIDRs", "cidrs"), columns::age()]
}

pub(super) fn service_cidr(object: &Value) -> Vec<Cell> {
    vec![name(object), is(joined(object, "/spec/cidrs")), age(object)]
}

pub(super) fn ip_address_columns() -> Vec<Column> {
    vec![columns::name(), field::<networking::IPAddressSpec>("ParentRef", "parentRef")]
}

/// Upstream gives one cell more than there are columns.
pub(super) fn ip_address(object: &Value) -> Vec<Cell> {
    let parent = match at(object, "/spec/parentRef") {
        Value::Null => "<none>".to_string(),
        parent => {
            let (group, resource) = (read::text(parent, "/group"), read::text(parent, "/resource"));
            let of = if group.is_empty() { resource.to_string() } else { format!("{resource}.{group}") };
            let namespace = read::text(parent, "/namespace");
            let namespace = if namespace.is_empty() { String::new() } else { format!("/{namespace}") };
            format!("{}{namespace}/{}", of.to_lowercase(), read::text(parent, "/name"))
        }
    };
    vec![name(object), is(parent), age(object)]
}

fn binding_columns(role: Column, what: &str) -> Vec<Column> {
    let of = |name: &'static str| text(name, format!("{name} in the {what}")).wide();
    vec![columns::name(), role, columns::age(), of("Users"), of("Groups"), of("ServiceAccounts")]
}

/// The words of the API's beta version, which upstream shows.
fn role(described: String) -> Column {
    text("Role", described.trim_end_matches(" This field is immutable."))
}

pub(super) fn role_binding_columns() -> Vec<Column> {
    binding_columns(role(doc::<rbac::RoleBinding>("roleRef")), "roleBinding")
}

pub(super) fn cluster_role_binding_columns() -> Vec<Column> {
    binding_columns(role(doc::<rbac::ClusterRoleBinding>("roleRef")), "clusterRoleBinding")
}

pub(super) fn binding(object: &Value) -> Vec<Cell> {
    let of = |kind: &str| {
        let subjects = list(object, "/subjects").iter().filter(|s| s["kind"] == kind);
        let shown = subjects.map(|s| match kind {
            "ServiceAccount" => format!("{}/{}", read::text(s, "/namespace"), read::text(s, "/name")),
            _ => read::text(s, "/name").to_string(),
        });
        is(shown.collect::<Vec<_>>().join(", "))
    };
    let role = format!("{}/{}", read::text(object, "/roleRef/kind"), read::text(object, "/roleRef/name"));
    vec![name(object), is(role), age(object), of("User"), of("Group"), of("ServiceAccount")]
}

/// The words of the API's beta version, which upstream shows.
const REQUESTED_SIGNER: &str = "Requested signer for the request. It is a qualified name in the form: `scope-hostname.io/name`. If \
    empty, it will be defaulted:\n 1. If it's a kubelet client certificate, it is assigned\n    \
    \"kubernetes.io/kube-apiserver-client-kubelet\".\n 2. If it's a kubelet serving certificate, it is \
    assigned\n    \"kubernetes.io/kubelet-serving\".\n 3. Otherwise, it is assigned \
    \"kubernetes.io/legacy-unknown\".\nDistribution of trust for signers happens out of band. You can \
    select on this field using `spec.signerName`.";

pub(super) fn signing_request_columns() -> Vec<Column> {
    let spec = |name: &'static str, of: &str| field::<certificates::CertificateSigningRequestSpec>(name, of);
    vec![
        columns::name(),
        columns::age(),
        text("SignerName", REQUESTED_SIGNER),
        text("Requestor", "Base64-encoded PKCS#10 CSR data"),
        spec("RequestedDuration", "expirationSeconds"),
        text("Condition", "Conditions applied to the request, such as approval or denial."),
    ]
}

pub(super) fn signing_request(object: &Value) -> Vec<Cell> {
    let wanted = at(object, "/spec/expirationSeconds").as_i64();
    vec![
        name(object),
        age(object),
        is(filled(object, "/spec/signerName", "<none>")),
        is(read::text(object, "/spec/username")),
        is(wanted.map_or("<none>".into(), duration)),
        is(signing_status(object)),
    ]
}

fn signing_status(object: &Value) -> String {
    let is = |kind: &str| list(object, "/status/conditions").iter().any(|c| c["type"] == kind);
    let mut status = match () {
        () if is("Denied") => "Denied",
        () if is("Approved") => "Approved",
        () => "Pending",
    }
    .to_string();
    if is("Failed") {
        status.push_str(",Failed");
    }
    if !read::text(object, "/status/certificate").is_empty() {
        status.push_str(",Issued");
    }
    status
}

pub(super) fn trust_bundle_columns() -> Vec<Column> {
    vec![columns::name(), field::<certificates_beta::ClusterTrustBundleSpec>("SignerName", "signerName")]
}

pub(super) fn trust_bundle(object: &Value) -> Vec<Cell> {
    vec![name(object), is(filled(object, "/spec/signerName", "<none>"))]
}

pub(super) fn pod_certificate_columns() -> Vec<Column> {
    let spec = |name: &'static str, of: &str| field::<certificates_beta::PodCertificateRequestSpec>(name, of);
    vec![
        columns::name(),
        spec("PodName", "podName"),
        spec("ServiceAccountName", "serviceAccountName"),
        spec("NodeName", "nodeName"),
        spec("SignerName", "signerName"),
        text("State", "Is the request Pending, Issued, Denied, or Failed?"),
        spec("UnverifiedUserAnnotations", "unverifiedUserAnnotations"),
    ]
}

pub(super) fn pod_certificate(object: &Value) -> Vec<Cell> {
    let states = list(object, "/status/conditions").iter().map(|c| read::text(c, "/type"));
    let state = states.filter(|s| matches!(*s, "Issued" | "Denied" | "Failed")).next_back().unwrap_or("Pending");
    let spec = |field: &str| is(read::text(object, &format!("/spec/{field}")));
    vec![
        name(object),
        spec("podName"),
        spec("serviceAccountName"),
        spec("nodeName"),
        spec("signerName"),
        is(state),
        is(labels(object, "/spec/unverifiedUserAnnotations")),
    ]
}

pub(super) fn webhook_columns() -> Vec<Column> {
    let about = "Webhooks indicates the number of webhooks registered in this configuration";
    vec![columns::name(), text("Webhooks", about).integer(), columns::age()]
}

pub(super) fn webhooks(object: &Value) -> Vec<Cell> {
    vec![name(object), is(count(object, "/webhooks")), age(object)]
}

fn policy_columns(name: &'static str, about: &'static str) -> Vec<Column> {
    vec![
        columns::name(),
        text(name, about).integer(),
        text("ParamKind", "ParamKind specifies the kind of resources used to parameterize this policy"),
        columns::age(),
    ]
}

pub(super) fn validating_policy_columns() -> Vec<Column> {
    let about = "Validations indicates the number of validation rules defined in this configuration";
    policy_columns("Validations", about)
}

pub(super) fn mutating_policy_columns() -> Vec<Column> {
    policy_columns("Mutations", "Mutation indicates the number of mutations rules defined in this configuration")
}

fn policy(object: &Value, rules: &str) -> Vec<Cell> {
    let kind = match at(object, "/spec/paramKind") {
        Value::Null => "<unset>".into(),
        kind => format!("{}/{}", read::text(kind, "/apiVersion"), read::text(kind, "/kind")),
    };
    vec![name(object), is(count(object, rules)), is(kind), age(object)]
}

pub(super) fn validating_policy(object: &Value) -> Vec<Cell> {
    policy(object, "/spec/validations")
}

pub(super) fn mutating_policy(object: &Value) -> Vec<Cell> {
    policy(object, "/spec/mutations")
}

pub(super) fn policy_binding_columns() -> Vec<Column> {
    vec![
        columns::name(),
        text("PolicyName", "PolicyName indicates the policy definition which the policy binding binded to"),
        text("ParamRef", "ParamRef indicates the param resource which sets the configuration param"),
        columns::age(),
    ]
}

pub(super) fn policy_binding(object: &Value) -> Vec<Cell> {
    let to = at(object, "/spec/paramRef");
    let parameters = match (read::text(to, "/name"), read::text(to, "/namespace")) {
        ("", _) if has(to, "/selector") => go_selector(&to["selector"]),
        ("", _) => "<unset>".into(),
        (name, "") => format!("*/{name}"),
        (name, namespace) => format!("{namespace}/{name}"),
    };
    vec![name(object), is(read::text(object, "/spec/policyName")), is(parameters), age(object)]
}

/// A label selector as Go's generated printer shows it.
fn go_selector(selector: &Value) -> String {
    let labels = at(selector, "/matchLabels").as_object().into_iter().flatten();
    let labels: String = labels.map(|(k, v)| format!("{k}: {},", v.as_str().unwrap_or_default())).collect();
    let expressions = list(selector, "/matchExpressions").iter();
    let expressions = expressions.map(|e| {
        let values: Vec<&str> = list(e, "/values").iter().filter_map(Value::as_str).collect();
        let (key, operator) = (read::text(e, "/key"), read::text(e, "/operator"));
        format!("LabelSelectorRequirement{{Key:{key},Operator:{operator},Values:[{}],}},", values.join(" "))
    });
    let expressions: String = expressions.collect();
    format!(
        "&LabelSelector{{MatchLabels:map[string]string{{{labels}}},MatchExpressions:[]LabelSelectorRequirement{{{expressions}}},}}"
    )
}

pub(super) fn flow_schema_columns() -> Vec<Column> {
    vec![
        columns::name(),
        field::<flow::PriorityLevelConfigurationReference>("PriorityLevel", "name"),
        field::<flow::FlowSchemaSpec>("MatchingPrecedence", "matchingPrecedence"),
        field::<flow::FlowSchemaSpec>("DistinguisherMethod", "distinguisherMethod"),
        columns::age(),
        text("MissingPL", "references a broken or non-existent PriorityLevelConfiguration"),
    ]
}

pub(super) fn flow_schema(object: &Value) -> Vec<Cell> {
    vec![
        name(object),
        is(read::text(object, "/spec/priorityLevelConfiguration/name")),
        is(number(object, "/spec/matchingPrecedence")),
        is(read::text_or(object, "/spec/distinguisherMethod/type", "<none>")),
        age(object),
        is(read::condition(object, "Dangling").unwrap_or("?")),
    ]
}

pub(super) fn priority_level_columns() -> Vec<Column> {
    let queuing = |name: &'static str, of: &str| field::<flow::QueuingConfiguration>(name, of);
    vec![
        columns::name(),
        field::<flow::PriorityLevelConfigurationSpec>("Type", "type"),
        field::<flow::LimitedPriorityLevelConfiguration>("NominalConcurrencyShares", "nominalConcurrencyShares"),
        queuing("Queues", "queues"),
        queuing("HandSize", "handSize"),
        queuing("QueueLengthLimit", "queueLengthLimit"),
        columns::age(),
    ]
}

pub(super) fn priority_level(object: &Value) -> Vec<Cell> {
    let limited = at(object, "/spec/limited");
    let queuing = at(limited, "/limitResponse/queuing");
    let of = |part: &Value, field: &str| match part {
        Value::Null => is("<none>"),
        part => is(part[field].as_i64().unwrap_or_default()),
    };
    vec![
        name(object),
        is(read::text(object, "/spec/type")),
        of(limited, "nominalConcurrencyShares"),
        of(queuing, "queues"),
        of(queuing, "handSize"),
        of(queuing, "queueLengthLimit"),
        age(object),
    ]
}

pub(super) fn lease_columns() -> Vec<Column> {
    vec![columns::name(), field::<coordination::LeaseSpec>("Holder", "holderIdentity"), columns::age()]
}

pub(super) fn lease(object: &Value) -> Vec<Cell> {
    vec![name(object), is(read::text(object, "/spec/holderIdentity")), age(object)]
}

pub(super) fn lease_candidate_columns() -> Vec<Column> {
    vec![
        columns::name(),
        field::<coordination_alpha::LeaseCandidateSpec>("LeaseName", "leaseName"),
        undescribed("BinaryVersion"),
        undescribed("EmulationVersion"),
        columns::age(),
    ]
}

pub(super) fn lease_candidate(object: &Value) -> Vec<Cell> {
    let spec = |field: &str| is(read::text(object, &format!("/spec/{field}")));
    vec![name(object), spec("leaseName"), spec("binaryVersion"), spec("emulationVersion"), age(object)]
}

pub(super) fn storage_class_columns() -> Vec<Column> {
    let class = |name: &'static str, of: &str| field::<storage::StorageClass>(name, of);
    vec![
        columns::name(),
        class("Provisioner", "provisioner"),
        class("ReclaimPolicy", "reclaimPolicy"),
        class("VolumeBindingMode", "volumeBindingMode"),
        class("AllowVolumeExpansion", "allowVolumeExpansion"),
        columns::age(),
    ]
}

pub(super) fn storage_class(object: &Value) -> Vec<Cell> {
    let marks = ["storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class"];
    vec![
        name_with_default(object, &marks),
        is(read::text(object, "/provisioner")),
        is(read::text_or(object, "/reclaimPolicy", "Delete")),
        is(read::text_or(object, "/volumeBindingMode", "Immediate")),
        is(truth(object, "/allowVolumeExpansion")),
        age(object),
    ]
}

pub(super) fn attributes_class_columns() -> Vec<Column> {
    vec![columns::name(), field::<storage::VolumeAttributesClass>("DriverName", "driverName"), columns::age()]
}

pub(super) fn attributes_class(object: &Value) -> Vec<Cell> {
    vec![name(object), is(read::text(object, "/driverName")), age(object)]
}

pub(super) fn attachment_columns() -> Vec<Column> {
    vec![
        columns::name(),
        field::<storage::VolumeAttachmentSpec>("Attacher", "attacher").named(),
        field::<storage::VolumeAttachmentSource>("PV", "persistentVolumeName"),
        field::<storage::VolumeAttachmentSpec>("Node", "nodeName"),
        field::<storage::VolumeAttachmentStatus>("Attached", "attached").boolean(),
        columns::age(),
    ]
}

pub(super) fn attachment(object: &Value) -> Vec<Cell> {
    vec![
        name(object),
        is(read::text(object, "/spec/attacher")),
        is(read::text(object, "/spec/source/persistentVolumeName")),
        is(read::text(object, "/spec/nodeName")),
        is(truth(object, "/status/attached")),
        age(object),
    ]
}

pub(super) fn csi_node_columns() -> Vec<Column> {
    let about = "Drivers indicates the number of CSI drivers registered on the node";
    vec![columns::name(), text("Drivers", about).integer(), columns::age()]
}

pub(super) fn csi_node(object: &Value) -> Vec<Cell> {
    vec![name(object), is(count(object, "/spec/drivers")), age(object)]
}

pub(super) fn csi_driver_columns() -> Vec<Column> {
    let spec = |name: &'static str, of: &str| field::<storage::CSIDriverSpec>(name, of);
    vec![
        columns::name(),
        spec("AttachRequired", "attachRequired").boolean(),
        spec("PodInfoOnMount", "podInfoOnMount").boolean(),
        spec("StorageCapacity", "storageCapacity").boolean(),
        spec("TokenRequests", "tokenRequests"),
        spec("RequiresRepublish", "requiresRepublish").boolean(),
        spec("Modes", "volumeLifecycleModes"),
        columns::age(),
    ]
}

pub(super) fn csi_driver(object: &Value) -> Vec<Cell> {
    let audiences: Vec<&str> = list(object, "/spec/tokenRequests").iter().map(|t| read::text(t, "/audience")).collect();
    let audiences = if has(object, "/spec/tokenRequests") { audiences.join(",") } else { "<unset>".into() };
    let modes = joined(object, "/spec/volumeLifecycleModes");
    vec![
        name(object),
        is(at(object, "/spec/attachRequired").as_bool().unwrap_or(true)),
        is(truth(object, "/spec/podInfoOnMount")),
        is(truth(object, "/spec/storageCapacity")),
        is(audiences),
        is(truth(object, "/spec/requiresRepublish")),
        is(if modes.is_empty() { "<none>".into() } else { modes }),
        age(object),
    ]
}

pub(super) fn priority_class_columns() -> Vec<Column> {
    let class = |name: &'static str, of: &str| field::<scheduling::PriorityClass>(name, of);
    vec![
        columns::name(),
        class("Value", "value").integer(),
        class("Global-Default", "globalDefault").boolean(),
        columns::age(),
        class("PreemptionPolicy", "preemptionPolicy"),
    ]
}

pub(super) fn priority_class(object: &Value) -> Vec<Cell> {
    vec![
        name(object),
        is(number(object, "/value")),
        is(truth(object, "/globalDefault")),
        age(object),
        is(read::text(object, "/preemptionPolicy")),
    ]
}

pub(super) fn runtime_class_columns() -> Vec<Column> {
    vec![columns::name(), undescribed("Handler"), columns::age()]
}

pub(super) fn runtime_class(object: &Value) -> Vec<Cell> {
    vec![name(object), is(read::text(object, "/handler")), age(object)]
}

pub(super) fn resource_claim_columns() -> Vec<Column> {
    let about = "A summary of the current state (allocated, pending, reserved, etc.).";
    vec![columns::name(), text("State", about), columns::age()]
}

pub(super) fn resource_claim(object: &Value) -> Vec<Cell> {
    let deleted = has(object, "/metadata/deletionTimestamp");
    let mut states = Vec::new();
    if deleted {
        states.push("deleted");
    }
    if has(object, "/status/allocation") {
        states.push("allocated");
        if !list(object, "/status/reservedFor").is_empty() {
            states.push("reserved");
        }
    } else if !deleted {
        states.push("pending");
    }
    vec![name(object), is(states.join(",")), age(object)]
}

pub(super) fn resource_slice_columns() -> Vec<Column> {
    vec![
        columns::name(),
        field::<resource::ResourceSliceSpec>("Node", "nodeName"),
        field::<resource::ResourceSliceSpec>("Driver", "driver"),
        field::<resource::ResourcePool>("Pool", "name"),
        columns::age(),
    ]
}

pub(super) fn resource_slice(object: &Value) -> Vec<Cell> {
    vec![
        name(object),
        is(read::text(object, "/spec/nodeName")),
        is(read::text(object, "/spec/driver")),
        is(read::text(object, "/spec/pool/name")),
        age(object),
    ]
}

pub(super) fn device_taint_columns() -> Vec<Column> {
    let taint = |name: &'static str, of: &str| field::<resource::DeviceTaint>(name, of);
    vec![
        columns::name(),
        taint("Key", "key"),
        taint("Value", "value"),
        taint("Effect", "effect"),
        taint("TimeAdded", "timeAdded"),
        columns::age(),
    ]
}

pub(super) fn device_taint(object: &Value) -> Vec<Cell> {
    let added = at(object, "/spec/taint/timeAdded");
    vec![
        name(object),
        is(read::text(object, "/spec/taint/key")),
        is(read::text(object, "/spec/taint/value")),
        is(read::text(object, "/spec/taint/effect")),
        if added.is_null() { is("") } else { Cell::age(added) },
        age(object),
    ]
}

pub(super) fn migration_columns() -> Vec<Column> {
    let mut first = columns::name();
    first.format = "".into();
    vec![first, text("Resource", "GroupResource to migrate"), text("Status", "Status of the migration")]
}

pub(super) fn migration(object: &Value) -> Vec<Cell> {
    let (group, plural) = (read::text(object, "/spec/resource/group"), read::text(object, "/spec/resource/resource"));
    let holding = list(object, "/status/conditions").iter().filter(|c| c["status"] == "True");
    let status = holding.map(|c| read::text(c, "/type")).filter(|t| matches!(*t, "Running" | "Failed" | "Succeeded"));
    vec![
        name(object),
        is(if group.is_empty() { plural.to_string() } else { format!("{plural}.{group}") }),
        is(status.last().unwrap_or("Unknown")),
    ]
}

pub(super) fn pod_group_columns() -> Vec<Column> {
    vec![
        columns::name(),
        field::<scheduling_alpha::PodGroupSpec>("Policy", "schedulingPolicy"),
        text("Workload", "Name of the referenced Workload object"),
        text("Status", "Status of the PodGroup"),
        columns::age(),
    ]
}

pub(super) fn pod_group(object: &Value) -> Vec<Cell> {
    let disrupted = list(object, "/status/conditions").iter().rfind(|c| c["type"] == "DisruptionTarget");
    let status = match (disrupted, read::condition(object, "PodGroupScheduled")) {
        (Some(condition), _) => read::text(condition, "/reason"),
        (None, Some("True")) => "Scheduled",
        (None, Some(_)) => "Unschedulable",
        (None, None) => "Pending",
    };
    vec![
        name(object),
        is(if has(object, "/spec/schedulingPolicy/gang") { "Gang" } else { "Basic" }),
        is(read::text_or(object, "/spec/podGroupTemplateRef/workload/workloadName", "<none>")),
        is(status),
        age(object),
    ]
}

pub(super) fn storage_version_columns() -> Vec<Column> {
    use k8s_openapi::api::apiserverinternal::v1alpha1::StorageVersionStatus;
    vec![
        columns::name(),
        field::<StorageVersionStatus>("CommonEncodingVersion", "commonEncodingVersion"),
        field::<StorageVersionStatus>("StorageVersions", "storageVersions"),
        columns::age(),
    ]
}

pub(super) fn storage_version(object: &Value) -> Vec<Cell> {
    let versions = list(object, "/status/storageVersions").iter();
    let one = |v: &Value| format!("{}={}", read::text(v, "/apiServerID"), read::text(v, "/encodingVersion"));
    let versions: Vec<String> = versions.map(one).collect();
    vec![
        name(object),
        is(read::text_or(object, "/status/commonEncodingVersion", "<unset>")),
        is(first_few(&versions, 3, "<unset>")),
        age(object),
    ]
}

pub(super) fn api_service_columns() -> Vec<Column> {
    vec![
        columns::name(),
        text("Service", "The reference to the service that hosts this API endpoint."),
        text("Available", "Whether this service is available."),
        columns::age(),
    ]
}

pub(super) fn api_service(object: &Value) -> Vec<Cell> {
    let service = match at(object, "/spec/service") {
        Value::Null => "Local".to_string(),
        service => format!("{}/{}", read::text(service, "/namespace"), read::text(service, "/name")),
    };
    let available = list(object, "/status/conditions").iter().find(|c| c["type"] == "Available");
    let available =
        available.map_or("Unknown".to_string(), |c| match (read::text(c, "/status"), read::text(c, "/reason")) {
            ("True", _) => "True".into(),
            (status, "") => status.into(),
            (status, reason) => format!("{status} ({reason})"),
        });
    vec![name(object), is(service), is(available), age(object)]
}

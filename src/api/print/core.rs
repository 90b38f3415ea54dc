//! Services, endpoints, events, configuration, volumes and quotas.

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::columns::{self, doc, field, text};
use super::read::{age, at, count, filled, first_few, has, is, joined, labels, list, name, number, quantity};
use super::{Cell, Column, read};
use crate::Value;

pub(super) fn service_columns() -> Vec<Column> {
    let spec = |name: &'static str, of: &str| field::<core::ServiceSpec>(name, of);
    vec![
        columns::name(),
        spec("Type", "type"),
        spec("Cluster-IP", "clusterIP"),
        spec("External-IP", "externalIPs"),
        spec("Port(s)", "ports"),
        columns::age(),
        spec("Selector", "selector").wide(),
    ]
}

pub(super) fn service(object: &Value) -> Vec<Cell> {
    let ports: Vec<String> = list(object, "/spec/ports").iter().map(service_port).collect();
    vec![
        name(object),
        is(read::text(object, "/spec/type")),
        is(read::text_or(object, "/spec/clusterIPs/0", "<none>")),
        is(external_address(object)),
        is(if ports.is_empty() { "<none>".into() } else { ports.join(",") }),
        age(object),
        is(labels(object, "/spec/selector")),
    ]
}

fn service_port(port: &Value) -> String {
    let (number, protocol) = (number(port, "/port"), read::text(port, "/protocol"));
    match port["nodePort"].as_i64().unwrap_or_default() {
        node if node > 0 => format!("{number}:{node}/{protocol}"),
        _ => format!("{number}/{protocol}"),
    }
}

fn external_address(object: &Value) -> String {
    let external = joined(object, "/spec/externalIPs");
    match read::text(object, "/spec/type") {
        "ClusterIP" | "NodePort" if external.is_empty() => "<none>".into(),
        "ClusterIP" | "NodePort" => external,
        "LoadBalancer" => match (ingress(object), external) {
            (ingress, external) if ingress.is_empty() && external.is_empty() => "<pending>".into(),
            (ingress, external) if ingress.is_empty() => external,
            (ingress, external) if external.is_empty() => ingress,
            (ingress, external) => format!("{ingress},{external}"),
        },
        "ExternalName" => read::text(object, "/spec/externalName").into(),
        _ => "<unknown>".into(),
    }
}

/// Addresses or names of a load balancer, sorted.
pub(super) fn ingress(object: &Value) -> String {
    let points = list(object, "/status/loadBalancer/ingress").iter();
    let points = points.map(|p| filled(p, "/ip", read::text(p, "/hostname"))).filter(|p| !p.is_empty());
    points.collect::<std::collections::BTreeSet<_>>().into_iter().collect::<Vec<_>>().join(",")
}

pub(super) fn endpoints_columns() -> Vec<Column> {
    vec![columns::name(), field::<core::Endpoints>("Endpoints", "subsets"), columns::age()]
}

pub(super) fn endpoints(object: &Value) -> Vec<Cell> {
    let mut all = Vec::new();
    for subset in list(object, "/subsets") {
        let addresses = || list(subset, "/addresses").iter().map(|a| read::text(a, "/ip"));
        let ports = list(subset, "/ports");
        if ports.is_empty() {
            all.extend(addresses().map(str::to_string));
        }
        for port in ports {
            let port = number(port, "/port");
            let with_port = |ip: &str| if ip.contains(':') { format!("[{ip}]:{port}") } else { format!("{ip}:{port}") };
            all.extend(addresses().map(with_port));
        }
    }
    let none = if list(object, "/subsets").is_empty() { "<none>" } else { "" };
    vec![name(object), is(first_few(&all, 3, none)), age(object)]
}

pub(super) fn endpoint_slice_columns() -> Vec<Column> {
    vec![
        columns::name(),
        field::<EndpointSlice>("AddressType", "addressType"),
        field::<EndpointSlice>("Ports", "ports"),
        field::<EndpointSlice>("Endpoints", "endpoints"),
        columns::age(),
    ]
}

pub(super) fn endpoint_slice(object: &Value) -> Vec<Cell> {
    let port = |port: &Value| match port["port"].as_i64() {
        Some(port) => port.to_string(),
        None => read::text_or(port, "/name", "*").to_string(),
    };
    let ports: Vec<String> = list(object, "/ports").iter().map(port).collect();
    let addresses = list(object, "/endpoints").iter().flat_map(|e| list(e, "/addresses"));
    let addresses: Vec<String> = addresses.filter_map(Value::as_str).map(str::to_string).collect();
    vec![
        name(object),
        is(read::text(object, "/addressType")),
        is(first_few(&ports, 3, "<unset>")),
        is(first_few(&addresses, 3, "<unset>")),
        age(object),
    ]
}

pub(super) fn event_columns() -> Vec<Column> {
    let event = |name: &'static str, of: &str| field::<core::Event>(name, of);
    vec![
        event("Last Seen", "lastTimestamp"),
        event("Type", "type"),
        event("Reason", "reason"),
        event("Object", "involvedObject"),
        field::<core::ObjectReference>("Subobject", "fieldPath").wide(),
        event("Source", "source").wide(),
        event("Message", "message"),
        event("First Seen", "firstTimestamp").wide(),
        event("Count", "count").wide(),
        columns::name().wide(),
    ]
}

/// Events of both groups: the newer names are looked for where the older are not there.
pub(super) fn event(object: &Value) -> Vec<Cell> {
    let either = |old: &str, new: &str| match at(object, old) {
        Value::Null => at(object, new),
        value => value,
    };
    let about = either("/involvedObject", "/regarding");
    let first = either("/firstTimestamp", "/deprecatedFirstTimestamp");
    let first = Cell::age(if first.is_null() { at(object, "/eventTime") } else { first });
    let last = either("/lastTimestamp", "/deprecatedLastTimestamp");
    let (last, times) = match at(object, "/series") {
        Value::Null => {
            let times = either("/count", "/deprecatedCount").as_i64().unwrap_or_default();
            (if last.is_null() { first.clone() } else { Cell::age(last) }, times.max(1))
        }
        series => (Cell::age(&series["lastObservedTime"]), number(series, "/count")),
    };
    let kind = read::text(about, "/kind").to_lowercase();
    let target = match read::text(about, "/name") {
        "" => kind,
        name => format!("{kind}/{name}"),
    };
    vec![
        last,
        is(read::text(object, "/type")),
        is(read::text(object, "/reason")),
        is(target),
        is(read::text(about, "/fieldPath")),
        is(event_source(object, either("/source", "/deprecatedSource"))),
        is(either("/message", "/note").as_str().unwrap_or_default().trim()),
        first,
        is(times),
        name(object),
    ]
}

fn event_source(object: &Value, source: &Value) -> String {
    let controller = filled(object, "/reportingComponent", read::text(object, "/reportingController"));
    let component = filled(source, "/component", controller);
    match filled(source, "/host", read::text(object, "/reportingInstance")) {
        "" => component.into(),
        instance => format!("{component}, {instance}"),
    }
}

pub(super) fn namespace_columns() -> Vec<Column> {
    vec![columns::name(), text("Status", "The status of the namespace"), columns::age()]
}

pub(super) fn namespace(object: &Value) -> Vec<Cell> {
    vec![name(object), is(read::text(object, "/status/phase")), age(object)]
}

pub(super) fn secret_columns() -> Vec<Column> {
    vec![columns::name(), field::<core::Secret>("Type", "type"), field::<core::Secret>("Data", "data"), columns::age()]
}

pub(super) fn secret(object: &Value) -> Vec<Cell> {
    vec![name(object), is(read::text(object, "/type")), is(count(object, "/data")), age(object)]
}

pub(super) fn config_map_columns() -> Vec<Column> {
    vec![columns::name(), field::<core::ConfigMap>("Data", "data"), columns::age()]
}

pub(super) fn config_map(object: &Value) -> Vec<Cell> {
    vec![name(object), is(count(object, "/data") + count(object, "/binaryData")), age(object)]
}

/// Kinds that show nothing but name and age.
pub(super) fn bare_columns() -> Vec<Column> {
    vec![columns::name(), columns::age()]
}

pub(super) fn bare(object: &Value) -> Vec<Cell> {
    vec![name(object), age(object)]
}

pub(super) fn volume_columns() -> Vec<Column> {
    let spec = |name: &'static str, of: &str| field::<core::PersistentVolumeSpec>(name, of);
    vec![
        columns::name(),
        spec("Capacity", "capacity"),
        spec("Access Modes", "accessModes"),
        spec("Reclaim Policy", "persistentVolumeReclaimPolicy"),
        field::<core::PersistentVolumeStatus>("Status", "phase"),
        spec("Claim", "claimRef"),
        text("StorageClass", "StorageClass of the pv"),
        text("VolumeAttributesClass", "VolumeAttributesClass of the pv"),
        field::<core::PersistentVolumeStatus>("Reason", "reason"),
        columns::age(),
        spec("VolumeMode", "volumeMode").wide(),
    ]
}

/// `Terminating` while an object is being deleted, else its phase.
fn phase(object: &Value) -> &str {
    if has(object, "/metadata/deletionTimestamp") { "Terminating" } else { read::text(object, "/status/phase") }
}

fn access_modes(object: &Value, pointer: &str) -> String {
    let modes = list(object, pointer);
    let known =
        [("ReadWriteOnce", "RWO"), ("ReadOnlyMany", "ROX"), ("ReadWriteMany", "RWX"), ("ReadWriteOncePod", "RWOP")];
    known
        .iter()
        .filter(|(mode, _)| modes.iter().any(|m| m == mode))
        .map(|(_, short)| *short)
        .collect::<Vec<_>>()
        .join(",")
}

fn storage_class(object: &Value) -> &str {
    let annotation = &object["metadata"]["annotations"]["volume.beta.kubernetes.io/storage-class"];
    annotation.as_str().unwrap_or_else(|| read::text(object, "/spec/storageClassName"))
}

pub(super) fn volume(object: &Value) -> Vec<Cell> {
    let claim = at(object, "/spec/claimRef");
    let claim = match claim {
        Value::Null => String::new(),
        claim => format!("{}/{}", read::text(claim, "/namespace"), read::text(claim, "/name")),
    };
    vec![
        name(object),
        is(quantity(at(object, "/spec/capacity/storage"))),
        is(access_modes(object, "/spec/accessModes")),
        is(read::text(object, "/spec/persistentVolumeReclaimPolicy")),
        is(phase(object)),
        is(claim),
        is(storage_class(object)),
        is(read::text_or(object, "/spec/volumeAttributesClassName", "<unset>")),
        is(read::text(object, "/status/reason")),
        age(object),
        is(read::text_or(object, "/spec/volumeMode", "<unset>")),
    ]
}

pub(super) fn claim_columns() -> Vec<Column> {
    let spec = |name: &'static str, of: &str| field::<core::PersistentVolumeClaimSpec>(name, of);
    let status = |name: &'static str, of: &str| field::<core::PersistentVolumeClaimStatus>(name, of);
    vec![
        columns::name(),
        status("Status", "phase"),
        spec("Volume", "volumeName"),
        status("Capacity", "capacity"),
        status("Access Modes", "accessModes"),
        text("StorageClass", "StorageClass of the pvc"),
        text("VolumeAttributesClass", "VolumeAttributesClass of the pvc"),
        columns::age(),
        spec("VolumeMode", "volumeMode").wide(),
    ]
}

pub(super) fn claim(object: &Value) -> Vec<Cell> {
    let bound = !read::text(object, "/spec/volumeName").is_empty();
    let of_bound = |shown: String| if bound { shown } else { String::new() };
    vec![
        name(object),
        is(phase(object)),
        is(read::text(object, "/spec/volumeName")),
        is(of_bound(quantity(at(object, "/status/capacity/storage")))),
        is(of_bound(access_modes(object, "/status/accessModes"))),
        is(storage_class(object)),
        is(read::text_or(object, "/spec/volumeAttributesClassName", "<unset>")),
        age(object),
        is(read::text_or(object, "/spec/volumeMode", "<unset>")),
    ]
}

pub(super) fn component_status_columns() -> Vec<Column> {
    vec![
        columns::name(),
        text("Status", "Status of the component conditions"),
        text("Message", "Message of the component conditions"),
        text("Error", "Error of the component conditions"),
    ]
}

pub(super) fn component_status(object: &Value) -> Vec<Cell> {
    let healthy = list(object, "/conditions").iter().find(|c| c["type"] == "Healthy");
    let (status, condition) = match healthy {
        Some(condition) if condition["status"] == "True" => ("Healthy", condition),
        Some(condition) => ("Unhealthy", condition),
        None => ("Unknown", &Value::Null),
    };
    vec![name(object), is(status), is(read::text(condition, "/message")), is(read::text(condition, "/error"))]
}

pub(super) fn quota_columns() -> Vec<Column> {
    vec![
        columns::name(),
        text("Request", "Request represents a minimum amount of cpu/memory that a container may consume."),
        text(
            "Limit",
            "Limits control the maximum amount of cpu/memory that a container may use independent of contention on the \
             node.",
        ),
        columns::age(),
    ]
}

pub(super) fn quota(object: &Value) -> Vec<Cell> {
    let hard = at(object, "/status/hard").as_object().into_iter().flatten();
    let (limits, requests): (Vec<_>, Vec<_>) = hard.partition(|(resource, _)| resource.starts_with("limits."));
    let shown = |resources: Vec<(&String, &Value)>| {
        let one = |(resource, hard): (&String, &Value)| {
            let used = quantity(&object["status"]["used"][resource]);
            format!("{resource}: {used}/{}", quantity(hard))
        };
        resources.into_iter().map(one).collect::<Vec<_>>().join(", ")
    };
    vec![name(object), is(shown(requests)), is(shown(limits)), age(object)]
}

/// Upstream asks for the documentation of fields that do not exist, which is empty.
pub(super) fn undescribed(name: &'static str) -> Column {
    text(name, doc::<ObjectMeta>(""))
}

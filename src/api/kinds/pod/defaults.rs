//! What is filled in of a pod or pod template (`pkg/apis/core/v1/defaults.go`), and what upstream's conversions between
//! the served and the internal form leave behind.

use serde_json::json;

use crate::Value;
use crate::kinds::compute::{self, Amounts};
use crate::kinds::image;
use crate::kinds::view::{View, fill, fill_pointer, items_mut, set, some_mut, structure, unset};
use crate::quantity::Quantity;

/// The lists of containers in a pod spec.
pub const CONTAINERS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];

/// Defaults of a pod.
pub fn pod(pod: &mut Value) {
    drop_old_annotations(pod);
    let spec = structure(pod, "spec");
    for list in ["containers", "initContainers"] {
        items_mut(spec, list).iter_mut().for_each(requests_from_limits);
    }
    pod_level_limits(spec);
    pod_level_requests(spec);
    fill_pointer(spec, "enableServiceLinks", true);
    if spec.flag("hostNetwork") {
        for list in ["containers", "initContainers"] {
            items_mut(spec, list).iter_mut().for_each(host_ports);
        }
    }
    pod_spec(spec);
    if spec.number("terminationGracePeriodSeconds") < 0 {
        set(spec, "terminationGracePeriodSeconds", 1);
    }
    status(pod);
}

/// Defaults of a pod template.
pub fn template(template: &mut Value) {
    drop_old_annotations(template);
    pod_spec(structure(template, "spec"));
}

/// Annotations that once held init containers are not kept.
fn drop_old_annotations(object: &mut Value) {
    let Some(annotations) = object.get_mut("metadata").and_then(|meta| meta.get_mut("annotations")) else { return };
    for stage in ["alpha", "beta"] {
        for what in ["init-containers", "init-container-statuses"] {
            unset(annotations, &format!("pod.{stage}.kubernetes.io/{what}"));
        }
    }
}

/// The one address and the list of addresses agree; where they do not, the one counts.
fn status(pod: &mut Value) {
    let Some(status) = some_mut(pod, "status") else { return };
    let one = status.text("podIP").to_string();
    let first = status.items("podIPs").first().map(|ip| ip.text("ip").to_string());
    match first {
        None if !one.is_empty() => set(status, "podIPs", json!([{"ip": one}])),
        Some(first) if one.is_empty() => set(status, "podIP", first),
        Some(first) if one != first => set(status, "podIPs", json!([{"ip": one}])),
        _ => {}
    }
    for list in ["initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"] {
        items_mut(status, list).iter_mut().for_each(allocated);
    }
    allocated(status);
}

fn allocated(status: &mut Value) {
    some_mut(status, "allocatedResources").into_iter().for_each(resource_list);
    some_mut(status, "resources").into_iter().for_each(resource_lists);
}

fn requests_from_limits(container: &mut Value) {
    let limits = container.at("resources").at("limits").clone();
    if limits.is_null() {
        return;
    }
    let requests = structure(structure(container, "resources"), "requests");
    for (name, value) in limits.as_object().into_iter().flatten() {
        fill_pointer(requests, name, value.clone());
    }
}

fn host_ports(container: &mut Value) {
    for port in items_mut(container, "ports") {
        let number = port.at("containerPort").clone();
        fill(port, "hostPort", number);
    }
}

fn list_of(amounts: Amounts) -> Value {
    amounts.into_iter().map(|(name, quantity)| (name, Value::from(quantity.to_string()))).collect()
}

/// A pod that states resources of its own, but no huge pages, has the limit on huge pages that its containers need.
fn pod_level_limits(spec: &mut Value) {
    let own = spec.at("resources");
    if own.entries("limits").next().is_none() && own.entries("requests").next().is_none() {
        return;
    }
    let (mut limits, requests) = (compute::amounts(own.at("limits")), compute::amounts(own.at("requests")));
    for (name, quantity) in compute::of_containers(spec, "limits") {
        if compute::is_huge_page(&name) && !requests.contains_key(&name) {
            limits.entry(name).or_insert(quantity);
        }
    }
    if !limits.is_empty() {
        set(structure(spec, "resources"), "limits", list_of(limits));
    }
}

/// A pod that states limits of its own requests what its containers do, and the limit of what they do not.
fn pod_level_requests(spec: &mut Value) {
    let own = spec.at("resources");
    let limits = compute::amounts(own.at("limits"));
    if limits.is_empty() {
        return;
    }
    let mut requests = compute::amounts(own.at("requests"));
    for (name, quantity) in compute::of_containers(spec, "requests") {
        if compute::is_pod_level(&name) && compute::may_overcommit(&name) {
            requests.entry(name).or_insert(quantity);
        }
    }
    for (name, quantity) in limits.into_iter().filter(|(name, _)| compute::is_pod_level(name)) {
        requests.entry(name).or_insert(quantity);
    }
    if !requests.is_empty() {
        set(structure(spec, "resources"), "requests", list_of(requests));
    }
}

/// Defaults of a pod spec, in a pod or in a template.
pub fn pod_spec(spec: &mut Value) {
    fill(spec, "dnsPolicy", "ClusterFirst");
    fill(spec, "restartPolicy", "Always");
    structure(spec, "securityContext");
    fill_pointer(spec, "terminationGracePeriodSeconds", 30);
    fill(spec, "schedulerName", "default-scheduler");
    service_account(spec);
    items_mut(spec, "volumes").iter_mut().for_each(volume);
    for list in CONTAINERS {
        items_mut(spec, list).iter_mut().for_each(container);
    }
    if let Some(overhead) = some_mut(spec, "overhead") {
        resource_list(overhead);
    }
    if let Some(resources) = some_mut(spec, "resources") {
        resource_lists(resources);
    }
}

/// The retired name of the field says the same as the new one.
fn service_account(spec: &mut Value) {
    let old = spec.text("serviceAccount").to_string();
    fill(spec, "serviceAccountName", old);
    let name = spec.text("serviceAccountName").to_string();
    if name.is_empty() {
        unset(spec, "serviceAccountName");
        unset(spec, "serviceAccount");
    } else {
        set(spec, "serviceAccount", name);
    }
}

fn pull_policy(image: &str) -> &'static str {
    if image::is_latest(image) { "Always" } else { "IfNotPresent" }
}

fn container(container: &mut Value) {
    let policy = pull_policy(container.text("image"));
    fill(container, "imagePullPolicy", policy);
    fill(container, "terminationMessagePath", "/dev/termination-log");
    fill(container, "terminationMessagePolicy", "File");
    for port in items_mut(container, "ports") {
        fill(port, "protocol", "TCP");
    }
    for variable in items_mut(container, "env") {
        let Some(source) = some_mut(variable, "valueFrom") else { continue };
        field_ref(source);
        if let Some(file) = some_mut(source, "fileKeyRef") {
            fill_pointer(file, "optional", false);
        }
    }
    resource_lists(structure(container, "resources"));
    for name in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(probe) = some_mut(container, name) {
            self::probe(probe);
        }
    }
    if let Some(lifecycle) = some_mut(container, "lifecycle") {
        for name in ["postStart", "preStop"] {
            some_mut(lifecycle, name).and_then(|hook| some_mut(hook, "httpGet")).into_iter().for_each(http_get);
        }
    }
}

fn probe(probe: &mut Value) {
    fill(probe, "timeoutSeconds", 1);
    fill(probe, "periodSeconds", 10);
    fill(probe, "successThreshold", 1);
    fill(probe, "failureThreshold", 3);
    some_mut(probe, "httpGet").into_iter().for_each(http_get);
    if let Some(grpc) = some_mut(probe, "grpc") {
        fill_pointer(grpc, "service", "");
    }
}

fn http_get(action: &mut Value) {
    fill(action, "path", "/");
    fill(action, "scheme", "HTTP");
}

fn field_ref(source: &mut Value) {
    if let Some(reference) = some_mut(source, "fieldRef") {
        fill(reference, "apiVersion", "v1");
    }
}

/// Quantities are rounded up to thousandths.
pub fn resource_list(list: &mut Value) {
    for value in list.as_object_mut().into_iter().flat_map(|map| map.values_mut()) {
        if let Ok(quantity) = Quantity::from_value(value) {
            let (rounded, exact) = quantity.round_up(-3);
            if !exact {
                *value = rounded.to_string().into();
            }
        }
    }
}

fn resource_lists(resources: &mut Value) {
    for name in ["limits", "requests"] {
        some_mut(resources, name).into_iter().for_each(resource_list);
    }
}

/// Plain fields of volume sources and what an empty one means.
const SOURCE_FIELDS: &[(&str, &str, &str)] = &[
    ("iscsi", "iscsiInterface", "default"),
    ("rbd", "pool", "rbd"),
    ("rbd", "user", "admin"),
    ("rbd", "keyring", "/etc/ceph/keyring"),
    ("scaleIO", "storageMode", "ThinProvisioned"),
    ("scaleIO", "fsType", "xfs"),
];

/// Defaults of the sources that volumes of pods and PersistentVolumes share.
pub fn volume_source(source: &mut Value) {
    for (name, field, value) in SOURCE_FIELDS {
        if let Some(source) = some_mut(source, name) {
            fill(source, field, *value);
        }
    }
    if let Some(host_path) = some_mut(source, "hostPath") {
        fill_pointer(host_path, "type", "");
    }
    if let Some(disk) = some_mut(source, "azureDisk") {
        fill_pointer(disk, "cachingMode", "ReadWrite");
        fill_pointer(disk, "fsType", "ext4");
        fill_pointer(disk, "readOnly", false);
        fill_pointer(disk, "kind", "Shared");
    }
}

fn volume(volume: &mut Value) {
    let has_source = volume.as_object().is_some_and(|map| map.iter().any(|(k, v)| k != "name" && !v.is_null()));
    if !has_source {
        set(volume, "emptyDir", json!({}));
    }
    volume_source(volume);
    for name in ["secret", "configMap", "downwardAPI", "projected"] {
        if let Some(source) = some_mut(volume, name) {
            fill_pointer(source, "defaultMode", 0o644);
        }
    }
    if let Some(source) = some_mut(volume, "downwardAPI") {
        items_mut(source, "items").iter_mut().for_each(field_ref);
    }
    if let Some(source) = some_mut(volume, "projected") {
        items_mut(source, "sources").iter_mut().for_each(projection);
    }
    if let Some(image) = some_mut(volume, "image") {
        let policy = pull_policy(image.text("reference"));
        fill(image, "pullPolicy", policy);
    }
    if let Some(claim) = some_mut(volume, "ephemeral").and_then(|e| some_mut(e, "volumeClaimTemplate")) {
        claim_spec(structure(claim, "spec"));
    }
}

fn projection(source: &mut Value) {
    if let Some(downward) = some_mut(source, "downwardAPI") {
        items_mut(downward, "items").iter_mut().for_each(field_ref);
    }
    if let Some(token) = some_mut(source, "serviceAccountToken") {
        fill_pointer(token, "expirationSeconds", 3600);
    }
}

/// Defaults of a claim's spec, in a PersistentVolumeClaim or in a template for one.
pub fn claim_spec(spec: &mut Value) {
    fill_pointer(spec, "volumeMode", "Filesystem");
    resource_lists(structure(spec, "resources"));
}

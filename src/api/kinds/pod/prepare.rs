//! What is reset and filled in of a pod before admission looks at it (`pkg/registry/core/pod/strategy.go`).

use serde_json::json;

use super::defaults::CONTAINERS;
use super::qos;
use super::security;
use super::spec::APP_ARMOR;
use crate::Value;
use crate::kinds::view::{View, copy, items_mut, set, some_mut, structure, unset};
use crate::meta;

/// A new pod: it is pending, whatever its maker says.
pub fn create(pod: &mut Value, now: i64) {
    let class = qos::class(pod.at("spec"));
    set(pod, "status", json!({"phase": "Pending", "qosClass": class}));
    if let Some(spec) = some_mut(pod, "spec") {
        drop_disabled(spec, None);
    }
    if !pod.at("spec").items("schedulingGates").is_empty() {
        let condition = json!({
            "type": "PodScheduled",
            "status": "False",
            "lastProbeTime": null,
            "lastTransitionTime": meta::timestamp(now),
            "reason": "SchedulingGated",
            "message": "Scheduling is blocked due to non-empty scheduling gates",
        });
        set(&mut pod["status"], "conditions", json!([condition]));
    }
    merge_label_keys(pod);
    app_armor_fields(pod);
}

/// Fields of features that are off; what an object had before it keeps.
pub fn drop_disabled(spec: &mut Value, old: Option<&Value>) {
    for field in ["clusterTrustBundle", "podCertificate"] {
        if !old.is_some_and(|old| projects(old, field)) {
            for volume in items_mut(spec, "volumes") {
                let Some(projected) = some_mut(volume, "projected") else { continue };
                items_mut(projected, "sources").iter_mut().for_each(|source| drop(unset(source, field)));
            }
        }
    }
    if !old.is_some_and(|old| old.has("schedulingGroup")) {
        unset(spec, "schedulingGroup");
    }
    let stops =
        |spec: &Value| CONTAINERS.iter().flat_map(|l| spec.items(l)).any(|c| c.at("lifecycle").has("stopSignal"));
    if !old.is_some_and(stops) {
        for list in CONTAINERS {
            items_mut(spec, list).iter_mut().for_each(drop_stop_signal);
        }
    }
}

fn projects(spec: &Value, field: &str) -> bool {
    spec.items("volumes").iter().any(|v| v.at("projected").items("sources").iter().any(|s| s.has(field)))
}

fn drop_stop_signal(container: &mut Value) {
    let Some(lifecycle) = some_mut(container, "lifecycle") else { return };
    let had = unset(lifecycle, "stopSignal").is_some_and(|signal| !signal.is_null());
    if had && !lifecycle.has("preStop") && !lifecycle.has("postStart") {
        unset(container, "lifecycle");
    }
}

/// Label keys of affinity terms and spread constraints become requirements with the pod's own values.
fn merge_label_keys(pod: &mut Value) {
    let labels = pod.at("metadata").at("labels").clone();
    let Some(spec) = some_mut(pod, "spec") else { return };
    if let Some(affinity) = some_mut(spec, "affinity") {
        for kind in ["podAffinity", "podAntiAffinity"] {
            let Some(affinity) = some_mut(affinity, kind) else { continue };
            for term in items_mut(affinity, "preferredDuringSchedulingIgnoredDuringExecution") {
                merge_keys(structure(term, "podAffinityTerm"), &labels);
            }
            for term in items_mut(affinity, "requiredDuringSchedulingIgnoredDuringExecution") {
                merge_keys(term, &labels);
            }
        }
    }
    for constraint in items_mut(spec, "topologySpreadConstraints") {
        merge_keys(constraint, &labels);
    }
}

fn merge_keys(term: &mut Value, labels: &Value) {
    let mut requirements = Vec::new();
    for (field, operator) in [("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn")] {
        for key in term.texts(field) {
            if let Some(value) = labels.some(key) {
                requirements.push(json!({"key": key, "operator": operator, "values": [value]}));
            }
        }
    }
    let Some(selector) = some_mut(term, "labelSelector").filter(|_| !requirements.is_empty()) else { return };
    let mut all = selector.items("matchExpressions").to_vec();
    all.extend(requirements);
    set(selector, "matchExpressions", all);
}

/// The profile that an AppArmor annotation stands for, if it is a valid one.
pub fn app_armor_of(annotation: &str) -> Option<Value> {
    let profile = match annotation {
        "runtime/default" => json!({"type": "RuntimeDefault"}),
        "unconfined" => json!({"type": "Unconfined"}),
        other => json!({"type": "Localhost", "localhostProfile": other.strip_prefix("localhost/")?}),
    };
    security::app_armor_is_valid(&profile).then_some(profile)
}

/// AppArmor annotations without a field become the field.
fn app_armor_fields(pod: &mut Value) {
    if pod.at("spec").at("os").text("name") == "windows" {
        return;
    }
    let annotations = pod.at("metadata").at("annotations").clone();
    let Some(spec) = some_mut(pod, "spec") else { return };
    let of_pod = spec.at("securityContext").at("appArmorProfile").clone();
    for list in CONTAINERS {
        for container in items_mut(spec, list) {
            let key = format!("{APP_ARMOR}{}", container.text("name"));
            let own = container.at("securityContext").has("appArmorProfile");
            let Some(profile) = annotations.at(&key).as_str().filter(|_| !own).and_then(app_armor_of) else { continue };
            if profile != of_pod {
                set(structure(container, "securityContext"), "appArmorProfile", profile);
            }
        }
    }
}

/// An update of the status keeps everything else but labels and annotations.
pub fn status(new: &mut Value, old: &Value) {
    copy(new, old, "spec");
    let meta = new.get_mut("metadata");
    if let Some(meta) = meta {
        unset(meta, "deletionTimestamp");
        copy(meta, old.at("metadata"), "deletionTimestamp");
        copy(meta, old.at("metadata"), "ownerReferences");
    }
    let old = old.at("status");
    let status = structure(new, "status");
    if status.text("qosClass").is_empty() {
        copy(status, old, "qosClass");
    }
    if status.number("observedGeneration") == 0 {
        copy(status, old, "observedGeneration");
    }
    keep_condition_generations(status, old);
    drop_status_of_disabled(status, old);
}

/// Conditions that state no generation keep that of the condition of the same type.
fn keep_condition_generations(status: &mut Value, old: &Value) {
    let mut used = vec![false; old.items("conditions").len()];
    for condition in items_mut(status, "conditions") {
        let same = old
            .items("conditions")
            .iter()
            .enumerate()
            .find(|(i, o)| !used[*i] && o.text("type") == condition.text("type"));
        let Some((i, before)) = same else { continue };
        used[i] = true;
        if condition.number("observedGeneration") == 0 {
            copy(condition, before, "observedGeneration");
        }
    }
}

fn drop_status_of_disabled(status: &mut Value, old: &Value) {
    if !old.has("nodeAllocatableResourceClaimStatuses") {
        unset(status, "nodeAllocatableResourceClaimStatuses");
    }
    const LISTS: [&str; 3] = ["containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"];
    let shows = |c: &Value| c.items("volumeMounts").iter().any(|m| m.has("volumeStatus"));
    if LISTS.iter().any(|list| old.items(list).iter().any(shows)) {
        return;
    }
    for list in LISTS {
        for container in items_mut(status, list) {
            for mount in items_mut(container, "volumeMounts") {
                unset(mount, "volumeStatus");
            }
        }
    }
}

/// An update of the ephemeral containers changes nothing else.
pub fn ephemeral_containers(new: &mut Value, old: &Value) {
    let list = new.at("spec").at("ephemeralContainers").clone();
    copy(new, old, "spec");
    copy(new, old, "status");
    meta::keep_all(new, old);
    let spec = structure(new, "spec");
    if list.is_null() {
        unset(spec, "ephemeralContainers");
    } else {
        set(spec, "ephemeralContainers", list);
    }
    drop_disabled(spec, Some(old.at("spec")));
}

/// A resize changes resources and nothing else. When the containers are others, validation shall say so.
pub fn resize(new: &mut Value, old: &Value) {
    const LISTS: [&str; 2] = ["containers", "initContainers"];
    if LISTS.iter().any(|list| new.at("spec").items(list).len() != old.at("spec").items(list).len()) {
        return;
    }
    let given = new.at("spec").clone();
    copy(new, old, "spec");
    copy(new, old, "status");
    meta::keep_all(new, old);
    let spec = structure(new, "spec");
    copy(spec, &given, "resources");
    for list in LISTS {
        let renamed = given.items(list).iter().zip(spec.items(list)).any(|(a, b)| a.text("name") != b.text("name"));
        if renamed {
            copy(spec, &given, list);
            continue;
        }
        for (container, given) in items_mut(spec, list).iter_mut().zip(given.items(list)) {
            copy(container, given, "resources");
            copy(container, given, "resizePolicy");
        }
    }
    drop_disabled(spec, Some(old.at("spec")));
}

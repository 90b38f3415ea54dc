//! How a pod may change: its spec, its ephemeral containers, its resources.

use std::collections::BTreeMap;

use serde_json::json;

use super::options::Options;
use super::spec::{APP_ARMOR, MIRROR};
use super::{containers, qos, scheduling, spec};
use crate::Value;
use crate::field::{Error, Errors, Path, quote};
use crate::kinds::compute::is_sidecar;
use crate::kinds::view::{View, copy, is_zero, items_mut, set, structure, unset};
use crate::kinds::{diff, internal, rules};
use crate::meta::check;

const UPDATABLE: &str = "`spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,\
                         `spec.tolerations` (only additions to existing tolerations),\
                         `spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";

/// Metadata, annotations and spec, as for a new pod.
fn whole(out: &mut Errors, new: &Value, options: &Options) {
    let rule = crate::meta::names::dns_subdomain;
    out.extend(check::validate(new, true, &rule));
    check::kube_finalizers(out, new);
    spec::pod(out, new, options);
}

/// An update of the pod itself.
pub fn pod(out: &mut Errors, new: &Value, old: &Value) {
    let options = Options::pod(old);
    whole(out, new, &options);
    annotations(out, new, old, &options);
    let path = Path::new("spec");
    let (new, old) = (new.at("spec"), old.at("spec"));
    for list in ["containers", "initContainers"] {
        if !images(out, new.items(list), old.items(list), &path.child(list)) {
            return;
        }
    }
    if !deadline(out, new, old, &path.child("activeDeadlineSeconds")) {
        return;
    }
    tolerations(out, new, old, &options, &path.child("tolerations"));
    gates(out, new, old, &path.child("schedulingGates"));
    if new != old {
        rest(out, new, old, &path);
    }
}

/// Annotations that may not change.
pub fn annotations(out: &mut Errors, new: &Value, old: &Value, options: &Options) {
    let path = Path::new("metadata").child("annotations");
    let (after, before) = (new.at("metadata").at("annotations"), old.at("metadata").at("annotations"));
    let mut forbid = |key: &str, what: &str| {
        if key.starts_with(APP_ARMOR) {
            out.push(Error::forbidden(&path.key(key), format!("may not {what} AppArmor annotations")));
        }
        if key == MIRROR {
            out.push(Error::forbidden(&path.key(key), format!("may not {what} mirror pod annotation")));
        }
    };
    let all = |annotations: &Value| annotations.as_object().cloned().unwrap_or_default();
    for (key, value) in all(before) {
        if after.get(&key) != Some(&value) {
            forbid(&key, "remove or update");
        }
    }
    for (key, _) in all(after) {
        if before.get(&key).is_none() {
            forbid(&key, "add");
        }
    }
    spec::annotations(out, new.at("metadata"), new.at("spec"), options, &path);
}

/// The containers are the same but for their images; false ends validation.
fn images(out: &mut Errors, new: &[Value], old: &[Value], path: &Path) -> bool {
    if new.len() != old.len() {
        out.push(Error::forbidden(path, "pod updates may not add or remove containers"));
        return false;
    }
    for (i, container) in new.iter().enumerate() {
        rules::required(out, container, "image", &path.index(i));
        containers::image_is_trimmed(out, container, &path.index(i));
    }
    true
}

fn deadline(out: &mut Errors, new: &Value, old: &Value, path: &Path) -> bool {
    let (after, before) = (new.int("activeDeadlineSeconds"), old.int("activeDeadlineSeconds"));
    match (after, before) {
        (Some(after), _) if !(0..=i64::from(i32::MAX)).contains(&after) => {
            rules::range(out, after, 0, i64::from(i32::MAX), path);
            false
        }
        (Some(after), Some(before)) if before < after => {
            out.push(Error::invalid(path, after, "must be less than or equal to previous value"));
            false
        }
        (None, Some(_)) => {
            let detail = "must not update from a positive integer to nil value";
            out.push(Error::invalid(path, Value::Null, detail));
            true
        }
        _ => true,
    }
}

fn tolerations(out: &mut Errors, new: &Value, old: &Value, options: &Options, path: &Path) {
    let list = new.items("tolerations");
    let without_time = |t: &Value| {
        let mut t = t.clone();
        unset(&mut t, "tolerationSeconds");
        t
    };
    let kept = |old: &Value| list.iter().any(|new| without_time(new) == without_time(old));
    if !old.items("tolerations").iter().all(kept) {
        let detail = "existing toleration can not be modified except its tolerationSeconds";
        return out.push(Error::forbidden(path, detail));
    }
    scheduling::tolerations(out, list, options, path);
}

fn gates(out: &mut Errors, new: &Value, old: &Value, path: &Path) {
    let before = old.items("schedulingGates");
    for (i, gate) in new.items("schedulingGates").iter().enumerate() {
        let name = gate.text("name");
        if !before.iter().any(|g| g.text("name") == name) {
            let detail = format!("only deletion is allowed, but found new scheduling gate '{name}'");
            out.push(Error::forbidden(&path.index(i).child("name"), detail));
        }
    }
}

/// Whatever else may not change.
fn rest(out: &mut Errors, new: &Value, old: &Value, path: &Path) {
    let mut munged = new.clone();
    for list in ["containers", "initContainers"] {
        for (container, before) in items_mut(&mut munged, list).iter_mut().zip(old.items(list)) {
            copy(container, before, "image");
        }
    }
    for field in ["activeDeadlineSeconds", "schedulingGates", "tolerations"] {
        copy(&mut munged, old, field);
    }
    let grace = "terminationGracePeriodSeconds";
    if old.int(grace).is_some_and(|seconds| seconds < 0) && munged.int(grace) == Some(1) {
        copy(&mut munged, old, grace);
    }
    if !old.items("schedulingGates").is_empty() {
        node_selector(out, &mut munged, old, &path.child("nodeSelector"));
        node_affinity(out, &mut munged, old, &path.child("affinity").child("nodeAffinity"));
    }
    if munged != *old {
        let lines = |spec: &Value| internal::show_lines("PodSpec", spec);
        let diff = diff::unified(&lines(old), &lines(&munged));
        let detail = format!("pod updates may not change fields other than {UPDATABLE}\n{diff}");
        out.push(Error::forbidden(path, detail));
    }
}

/// A gated pod's node selector may grow.
fn node_selector(out: &mut Errors, munged: &mut Value, old: &Value, path: &Path) {
    let (new, before) = (munged.at("nodeSelector"), old.at("nodeSelector"));
    if before.as_object().into_iter().flatten().any(|(key, value)| new.get(key) != Some(value)) {
        let detail = "only additions to spec.nodeSelector are allowed (no mutations or deletions)";
        out.push(Error::invalid(path, new.clone(), detail));
    }
    copy(munged, old, "nodeSelector");
}

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";

/// A gated pod's node affinity may become stricter.
fn node_affinity(out: &mut Errors, munged: &mut Value, old: &Value, path: &Path) {
    let new = munged.at("affinity").at("nodeAffinity").clone();
    let before = old.at("affinity").at("nodeAffinity");
    if new == *before {
        return;
    }
    if before.has(REQUIRED) {
        let path = path.child(REQUIRED).child("nodeSelectorTerms");
        let (after, before) =
            (new.at(REQUIRED).items("nodeSelectorTerms"), before.at(REQUIRED).items("nodeSelectorTerms"));
        if !before.is_empty() && before.len() != after.len() {
            let shown = internal::show("[]NodeSelectorTerm", &Value::from(after.to_vec()));
            let detail = "no additions/deletions to non-empty NodeSelectorTerms list are allowed";
            out.push(Error::invalid_shown(&path, shown, detail));
        } else {
            for (i, (after, before)) in after.iter().zip(before).enumerate() {
                if !only_adds(after, before) {
                    let shown = internal::show("NodeSelectorTerm", after);
                    let detail = "only additions are allowed (no mutations or deletions)";
                    out.push(Error::invalid_shown(&path.index(i), shown, detail));
                }
            }
        }
    }
    put_affinity_back(munged, old);
}

fn put_affinity_back(munged: &mut Value, old: &Value) {
    let before = old.at("affinity").at("nodeAffinity").clone();
    let now = munged.at("affinity");
    if now.is_null() && before.is_null() {
        return;
    }
    let alone = !now.has("podAffinity") && !now.has("podAntiAffinity");
    if !now.is_null() && !old.has("affinity") && alone {
        unset(munged, "affinity");
        return;
    }
    let affinity = structure(munged, "affinity");
    if before.is_null() {
        unset(affinity, "nodeAffinity");
    } else {
        set(affinity, "nodeAffinity", before);
    }
}

fn only_adds(new: &Value, old: &Value) -> bool {
    let lists = ["matchExpressions", "matchFields"];
    if lists.iter().all(|list| old.items(list).is_empty()) {
        return lists.iter().all(|list| new.items(list).is_empty());
    }
    lists.iter().all(|list| new.items(list).starts_with(old.items(list)))
}

/// An update of the ephemeral containers: more of them, none changed.
pub fn ephemeral_containers(out: &mut Errors, new: &Value, old: &Value) {
    let options = Options::pod(old);
    let before = out.0.len();
    whole(out, new, &options);
    annotations(out, new, old, &options);
    if old.at("metadata").at("annotations").has(MIRROR) {
        out.0.truncate(before);
        return only(out, "static pods do not support ephemeral containers");
    }
    let path = Path::new("spec").child("ephemeralContainers");
    let by_name: BTreeMap<&str, &Value> =
        new.at("spec").items("ephemeralContainers").iter().map(|c| (c.text("name"), c)).collect();
    for container in old.at("spec").items("ephemeralContainers") {
        let name = quote(container.text("name"));
        match by_name.get(container.text("name")) {
            None => {
                let detail = format!("existing ephemeral containers {name} may not be removed\n");
                out.push(Error::forbidden(&path, detail));
            }
            Some(now) if *now != container => {
                let lines = |c: &Value| internal::show_lines("EphemeralContainer", c);
                let diff = diff::unified(&lines(container), &lines(now));
                let detail = format!("existing ephemeral containers {name} may not be changed\n{diff}");
                out.push(Error::forbidden(&path, detail));
            }
            Some(_) => {}
        }
    }
}

/// The one error that stands for all.
fn only(out: &mut Errors, detail: &str) {
    out.0.clear();
    out.push(Error::forbidden(&Path::default(), detail));
}

/// A resize: cpu and memory of containers that can have them changed.
pub fn resize(out: &mut Errors, new: &Value, old: &Value) {
    whole(out, new, &Options::pod(old));
    if old.at("metadata").at("annotations").has(MIRROR) {
        return only(out, "static pods cannot be resized");
    }
    if old.at("spec").at("os").text("name") == "windows" {
        return only(out, "windows pods cannot be resized");
    }
    let path = Path::new("spec");
    let old_class = match old.at("status").text("qosClass") {
        "" => qos::class(old.at("spec")),
        class => class,
    };
    if old_class != qos::class(new.at("spec")) {
        let detail = "Pod QOS Class may not change as a result of resizing";
        out.push(Error::invalid(&path, new.at("status").text("qosClass"), detail));
    }
    if !node_can_resize(old) {
        out.push(Error::forbidden(&path, "Pod running on node without support for resize"));
    }
    let mut munged = new.at("spec").clone();
    pod_level(out, &mut munged, new, old, &path);
    if !old.at("status").items("nodeAllocatableResourceClaimStatuses").is_empty() {
        out.push(Error::forbidden(&path, "pods with node allocatable resource claims cannot be resized"));
    }
    let (new, old) = (new.at("spec"), old.at("spec"));
    if !same_containers(out, new, old, &path) {
        return;
    }
    for list in ["initContainers", "containers"] {
        for (i, (after, before)) in new.items(list).iter().zip(old.items(list)).enumerate() {
            let path = path.child(list).index(i).child("resources");
            none_removed(out, after.at("resources"), before.at("resources"), "resource", &path);
        }
    }
    only_compute(out, &mut munged, old, &path);
    if out.is_empty() && munged != *old {
        out.push(Error::forbidden(&path, "only cpu and memory resources are mutable"));
    }
}

/// A node that reports no resources of running containers is too old.
fn node_can_resize(pod: &Value) -> bool {
    let running = pod.at("status").items("containerStatuses").iter().find(|c| c.at("state").has("running"));
    running.is_none_or(|c| c.has("resources"))
}

fn pod_level(out: &mut Errors, munged: &mut Value, new: &Value, old: &Value, path: &Path) {
    let has_own = |pod: &Value| {
        ["requests", "limits"].iter().any(|list| pod.at("spec").at("resources").entries(list).next().is_some())
    };
    if !has_own(new) && !has_own(old) {
        return;
    }
    let (after, before) = (new.at("spec").at("resources"), old.at("spec").at("resources"));
    let resources_path = path.child("resources");
    if !before.is_null() && after.is_null() {
        return out.push(Error::forbidden(&resources_path, "pod-level resources cannot be removed"));
    }
    if !before.is_null() {
        none_removed(out, after, before, "pod-level resource", &resources_path);
    }
    let resources = structure(munged, "resources");
    keep_compute(resources, before);
    if before.is_null() && ["requests", "limits", "claims"].iter().all(|field| is_zero(resources.at(field))) {
        unset(munged, "resources");
    }
    if munged.at("resources") != before {
        let detail = "only cpu and memory resources are mutable at pod-level";
        out.push(Error::forbidden(path, detail));
    }
}

fn none_removed(out: &mut Errors, new: &Value, old: &Value, what: &str, path: &Path) {
    for list in ["requests", "limits"] {
        if old.entries(list).any(|(name, _)| !new.at(list).has(name)) {
            out.push(Error::forbidden(&path.child(list), format!("{what} {list} cannot be removed")));
        }
    }
}

fn same_containers(out: &mut Errors, new: &Value, old: &Value, path: &Path) -> bool {
    let before = out.0.len();
    for list in ["containers", "initContainers"] {
        let path = path.child(list);
        if new.items(list).len() != old.items(list).len() {
            out.push(Error::forbidden(&path, format!("{list} may not be added or removed on resize")));
            continue;
        }
        for (i, (after, before)) in new.items(list).iter().zip(old.items(list)).enumerate() {
            if after.text("name") != before.text("name") {
                let detail = format!("{list} may not be renamed or reordered on resize");
                out.push(Error::forbidden(&path.index(i).child("name"), detail));
            }
        }
    }
    out.0.len() == before
}

/// Puts cpu and memory back to what they were.
fn keep_compute(resources: &mut Value, old: &Value) {
    for list in ["limits", "requests"] {
        let before = old.at(list);
        if !resources.has(list) && before.is_null() {
            continue;
        }
        let amounts = structure(resources, list);
        for name in ["cpu", "memory"] {
            copy(amounts, before, name);
        }
        if is_zero(resources.at(list)) {
            unset(resources, list);
        }
    }
}

fn container_without_compute(container: &mut Value, old: &Value) {
    let given = container.at("resources").clone();
    let mut resources = json!({});
    copy(&mut resources, &given, "limits");
    copy(&mut resources, &given, "requests");
    keep_compute(&mut resources, old.at("resources"));
    set(container, "resources", resources);
}

fn only_compute(out: &mut Errors, munged: &mut Value, old: &Value, path: &Path) {
    for (container, before) in items_mut(munged, "containers").iter_mut().zip(old.items("containers")) {
        container_without_compute(container, before);
        if container != before {
            out.push(Error::forbidden(path, "only cpu and memory resources are mutable"));
        }
    }
    let list = "initContainers";
    for (i, (container, before)) in items_mut(munged, list).iter_mut().zip(old.items(list)).enumerate() {
        let path = path.child(list).index(i);
        let changed = container != before;
        container_without_compute(container, before);
        if container != before {
            let detail = "only cpu and memory resources for init or sidecar containers are mutable";
            out.push(Error::forbidden(&path, detail));
        }
        if changed && !is_sidecar(container) {
            let restarts =
                container.items("resizePolicy").iter().filter(|p| p.text("restartPolicy") == "RestartContainer");
            for _ in restarts {
                let detail = "non-sidecar init containers with a resize policy of RestartContainer cannot be resized";
                out.push(Error::forbidden(&path, detail));
            }
        }
    }
}

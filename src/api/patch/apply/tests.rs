//! Recorded answers of upstream replayed step by step, and the laws of ownership.

use std::collections::HashMap;
use std::path::Path;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::schema::builtin;

fn tracker<'a>(ty: &'a Type, api_version: &'a str, kind: &'a str, manager: &'a str) -> Tracker<'a> {
    let writer = Writer { manager, api_version, kind, subresource: "", now: "2026-01-01T00:00:00Z" };
    Tracker { facts: builtin(), ty, versions: &OneVersion, writer, reset: Reset::default() }
}

fn config_maps(manager: &str) -> Tracker<'_> {
    let ty = builtin().kind("", "v1", "ConfigMap").expect("ConfigMap is built in");
    tracker(ty, "v1", "ConfigMap", manager)
}

fn split_path(path: &str) -> (String, HashMap<String, String>) {
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let pairs = query.split('&').filter_map(|p| p.split_once('=')).map(|(k, v)| (k.to_string(), v.to_string()));
    (path.to_string(), pairs.collect())
}

/// The object's path and its subresource.
fn split_subresource(path: &str) -> (String, String) {
    for subresource in ["status", "scale", "resize", "ephemeralcontainers"] {
        if let Some(parent) = path.strip_suffix(&format!("/{subresource}")) {
            return (parent.to_string(), subresource.to_string());
        }
    }
    (path.to_string(), String::new())
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// managedFields without times, in one order.
fn comparable(object: &Value) -> Vec<String> {
    let list = managed_fields(object).and_then(Value::as_array).cloned().unwrap_or_default();
    let mut out: Vec<String> = list
        .into_iter()
        .map(|mut entry| {
            let timed = entry.as_object_mut().and_then(|e| e.remove("time")).is_some();
            format!("{entry} {timed}")
        })
        .collect();
    out.sort();
    out
}

const STATUS: &[&[&str]] = &[&["status"]];
const SPEC: &[&[&str]] = &[&["spec"]];
const SPEC_AND_LABELS: &[&[&str]] = &[&["spec"], &["metadata", "labels"]];
const NOTHING: &[&[&str]] = &[];

/// What upstream fills in only after it has noted who owns what.
const FILLED_IN: &[&[&str]] = &[
    &["status"],
    &["metadata", "finalizers"],
    &["spec", "clusterIP"],
    &["spec", "clusterIPs"],
    &["spec", "finalizers"],
    &["spec", "ipFamilies"],
    &["spec", "ipFamilyPolicy"],
    &["spec", "preemptionPolicy"],
    &["spec", "priority"],
    &["spec", "serviceAccount"],
    &["spec", "serviceAccountName"],
    &["spec", "tolerations"],
];

fn without_what_is_filled_in(new: &mut Value, sent: &Value) {
    for path in FILLED_IN {
        let pointer = format!("/{}", path.join("/"));
        if sent.pointer(&pointer).is_some() {
            continue;
        }
        let (name, parents) = path.split_last().expect("paths have names");
        let parent = parents.iter().try_fold(&mut *new, |at, name| at.get_mut(*name));
        parent.and_then(Value::as_object_mut).map(|parent| parent.remove(*name));
    }
}

struct Replay {
    known: HashMap<String, Value>,
    compared: usize,
    failures: Vec<String>,
}

impl Replay {
    fn step(&mut self, step: &Value) {
        let (Some(request), Some(expect)) = (step.get("http"), step.get("expect")) else { return };
        let (path, query) = split_path(text(request, "path"));
        let body = &expect["body"];
        let ignored = step["ignore"].as_array().into_iter().flatten();
        let narrowed = step.get("only").is_some()
            || ignored.filter_map(Value::as_str).any(|p| p.starts_with("/metadata/managedFields"));
        let method = text(request, "method").to_string();
        let (object_path, subresource) = split_subresource(&path);
        let stored = match (method.as_str(), body["metadata"]["name"].as_str()) {
            ("POST", Some(name)) => format!("{path}/{name}"),
            _ => object_path,
        };
        if !query.contains_key("dryRun") {
            self.write(&method, request, &query, &stored, &subresource, body, narrowed);
        }
        let changes = method != "GET" && !query.contains_key("dryRun");
        let partial = narrowed || subresource == "scale" || text(body, "kind").starts_with("Partial");
        if body["metadata"]["uid"].is_string() && !partial && !query.contains_key("dryRun") {
            self.known.insert(stored, body.clone());
        } else if changes && (partial || method == "DELETE") {
            self.known.insert(stored, Value::Null);
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn write(
        &mut self, method: &str, request: &Value, query: &HashMap<String, String>, stored: &str, subresource: &str,
        body: &Value, narrowed: bool,
    ) {
        let content = text(&request["headers"], "Content-Type");
        let apply = content == "application/apply-patch+yaml";
        if narrowed
            || matches!(subresource, "scale" | "resize" | "ephemeralcontainers")
            || !body.is_object()
            || !matches!(method, "POST" | "PUT" | "PATCH")
        {
            return;
        }
        let of = if apply && request["body"].is_object() { &request["body"] } else { body };
        let (api_version, kind) = (text(of, "apiVersion"), text(of, "kind"));
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let Some(ty) = builtin().kind(group, version, kind) else { return };
        let manager = query.get("fieldManager").map_or("golden", String::as_str);
        let mut tracker = tracker(ty, api_version, kind, manager);
        tracker.writer.subresource = subresource;
        let has_status = !matches!(kind, "ConfigMap" | "Secret" | "Event");
        tracker.reset.fields = match subresource {
            "status" if kind == "Deployment" => SPEC_AND_LABELS,
            "status" => SPEC,
            "" if has_status => STATUS,
            _ => NOTHING,
        };
        let old = self.known.get(stored);
        if old.is_some_and(Value::is_null) && method != "POST" {
            return;
        }
        if apply {
            let force = query.get("force").is_some_and(|f| f == "true");
            match (tracker.apply(old, &request["body"], force), text(body, "kind")) {
                (Err(status), "Status") => {
                    let got = (status.code as u64, status.message.clone());
                    let want = (body["code"].as_u64().unwrap_or_default(), text(body, "message").to_string());
                    self.check(request, &got, &want);
                }
                // Refused for another reason than ours.
                (Ok(_), "Status") => {}
                (Ok(object), _) => self.check(request, &comparable(&object), &comparable(body)),
                (Err(status), _) => self.failures.push(format!("{request}\n  refused: {status}")),
            }
        } else if managed_fields(body).is_some() && (method == "POST" || old.is_some()) {
            let mut new = body.clone();
            set_managed_fields(&mut new, managed_fields(&request["body"]).cloned());
            if method == "POST" {
                without_what_is_filled_in(&mut new, &request["body"]);
            }
            tracker.track_update(old.filter(|_| method != "POST"), &mut new);
            self.check(request, &comparable(&new), &comparable(body));
        }
    }

    fn check<T: PartialEq + std::fmt::Debug>(&mut self, request: &Value, got: &T, want: &T) {
        self.compared += 1;
        if got != want {
            self.failures.push(format!("{request}\n  got  {got:#?}\n  want {want:#?}"));
        }
    }
}

fn replay(area: &str, at_least: usize, known_to_differ: &[&str]) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/golden/scenarios").join(area);
    let Ok(files) = std::fs::read_dir(&folder) else {
        println!("skipped: no recorded answers at {}", folder.display());
        return;
    };
    let (mut compared, mut failures) = (0, Vec::new());
    for file in files.flatten() {
        let name = file.file_name().to_string_lossy().trim_end_matches(".json").to_string();
        let text = std::fs::read_to_string(file.path()).expect("a readable recording");
        let scenario: Value = serde_json::from_str(&text).expect("a recording is JSON");
        let mut replay = Replay { known: HashMap::new(), compared: 0, failures: Vec::new() };
        for step in scenario["steps"].as_array().into_iter().flatten() {
            replay.step(step);
        }
        compared += replay.compared;
        if !known_to_differ.contains(&name.as_str()) {
            failures.extend(replay.failures.into_iter().map(|f| format!("{name}: {f}")));
        }
    }
    println!("{compared} writes compared, {} differ", failures.len());
    assert!(failures.is_empty(), "{} of {compared}:\n{}", failures.len(), failures.join("\n"));
    assert!(compared >= at_least, "only {compared} writes compared");
}

#[test]
fn applies_are_answered_as_recorded() {
    replay("apply", 50, &[]);
}

#[test]
fn ownership_of_created_objects_is_as_recorded() {
    // A DaemonSet's annotation follows its generation after ownership is noted.
    replay("crud", 40, &["apps-v1-daemonsets"]);
}

#[test]
fn ownership_after_patches_is_as_recorded() {
    replay("patch", 20, &[]);
}

#[test]
fn ownership_of_metadata_is_as_recorded() {
    replay("metadata", 10, &[]);
}

#[test]
fn ownership_through_subresources_is_as_recorded() {
    replay("subresources", 10, &[]);
}

fn config(data: &[(String, String)]) -> Value {
    let data: Map = data.iter().map(|(k, v)| (k.clone(), v.clone().into())).collect();
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": data})
}

fn data() -> impl Strategy<Value = Vec<(String, String)>> {
    prop::collection::vec(("[a-e]", "[x-z]"), 1..5)
}

fn settled(mut object: Value) -> Value {
    object["metadata"]["uid"] = "u".into();
    if object["data"].as_object().is_none_or(Map::is_empty) {
        object.as_object_mut().map(|o| o.remove("data"));
    }
    object
}

proptest! {
    #[test]
    fn apply_is_idempotent(first in data(), second in data()) {
        let live = settled(config_maps("m").apply(None, &config(&first), false).unwrap());
        let once = settled(config_maps("m").apply(Some(&live), &config(&second), false).unwrap());
        let mut later = config_maps("m");
        later.writer.now = "2027-01-01T00:00:00Z";
        let twice = settled(later.apply(Some(&once), &config(&second), false).unwrap());
        prop_assert_eq!(once, twice);
    }

    #[test]
    fn what_is_applied_last_is_owned_and_there(first in data(), second in data()) {
        let live = settled(config_maps("m").apply(None, &config(&first), false).unwrap());
        let after = settled(config_maps("n").apply(Some(&live), &config(&second), true).unwrap());
        let entries = managed::decode(managed_fields(&after).cloned().unwrap(), true).unwrap();
        for (key, _) in &second {
            let entry = entries.iter().find(|e| e.manager() == "n").unwrap();
            prop_assert!(set::has(entry.fields(), &["data", key]));
        }
        // Whatever is there has an owner.
        for key in after["data"].as_object().unwrap().keys() {
            prop_assert!(entries.iter().any(|e| set::has(e.fields(), &["data", key])));
        }
    }

    #[test]
    fn independent_appliers_commute(a in prop::collection::vec(("a[0-9]", "[x-z]"), 1..5),
                                    b in prop::collection::vec(("b[0-9]", "[x-z]"), 1..5)) {
        let run = |first: (&str, &[(String, String)]), second: (&str, &[(String, String)])| {
            let live = settled(config_maps(first.0).apply(None, &config(first.1), false).unwrap());
            settled(config_maps(second.0).apply(Some(&live), &config(second.1), false).unwrap())
        };
        prop_assert_eq!(run(("m", &a), ("n", &b)), run(("n", &b), ("m", &a)));
    }

    #[test]
    fn an_update_owns_exactly_what_it_changes(first in data(), second in data()) {
        let live = settled(config_maps("m").apply(None, &config(&first), false).unwrap());
        let mut new = settled(config(&second));
        config_maps("u").track_update(Some(&live), &mut new);
        let entries = managed::decode(managed_fields(&new).cloned().unwrap_or_default(), true).unwrap();
        for (key, value) in new["data"].as_object().unwrap() {
            let owner = if live["data"].get(key) == Some(value) { "m" } else { "u" };
            let owners: Vec<&str> =
                entries.iter().filter(|e| set::has(e.fields(), &["data", key])).map(Entry::manager).collect();
            prop_assert_eq!(owners, vec![owner]);
        }
    }
}

#[test]
fn unknown_fields_are_refused_in_upstreams_words() {
    let config =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "bad", "namespace": "n"}, "x": 1});
    let status = config_maps("m").apply(None, &config, false).unwrap_err();
    let want = "failed to create typed patch object (n/bad; /v1, Kind=ConfigMap): .x: field not declared in schema";
    assert_eq!((status.code, status.message.as_str()), (500, want));
}

#[test]
fn kinds_and_managed_fields_of_configurations_are_checked() {
    let config = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}});
    let status = config_maps("m").apply(None, &config, false).unwrap_err();
    assert_eq!((status.code, status.message.as_str()), (400, "invalid object type: /v1, Kind=Pod"));
    let config = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "managedFields": []}});
    let status = config_maps("m").apply(None, &config, false).unwrap_err();
    assert_eq!((status.code, status.message.as_str()), (400, "metadata.managedFields must be nil"));
}

#[test]
fn repeated_keys_of_a_configuration_are_refused() {
    let ty = builtin().kind("", "v1", "Pod").unwrap();
    let config = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "dup", "namespace": "n"},
        "spec": {"containers": [{"name": "c", "image": "i"}, {"name": "c", "image": "j"}]}});
    let status = tracker(ty, "v1", "Pod", "m").apply(None, &config, false).unwrap_err();
    let want = "failed to create typed patch object (n/dup; /v1, Kind=Pod): .spec.containers: duplicate entries for key \
                [name=\"c\"]";
    assert_eq!(status.message, want);
}

#[test]
fn ownership_of_parts_of_what_became_atomic_becomes_ownership_of_the_whole() {
    let ty = builtin().kind("apps", "v1", "Deployment").unwrap();
    let mut owned = json!({"f:spec": {"f:selector": {"f:matchLabels": {".": {}, "f:a": {}}}, "f:replicas": {}}});
    check::reconcile(builtin(), Kind::root(ty), owned.as_object_mut().unwrap());
    assert_eq!(owned, json!({"f:spec": {"f:selector": {}, "f:replicas": {}}}));
}

#[test]
fn updates_that_change_only_times_are_none() {
    let entry = |time: &str, fields: Value| json!([{"manager": "m", "time": time, "fieldsV1": fields}]);
    let object = |time: &str, x: &str| json!({"metadata": {"managedFields": entry(time, json!({"f:x": {}}))}, "x": x});
    let old = object("2026-01-01T00:00:00Z", "1");
    let mut same = object("2026-01-01T00:00:09Z", "1");
    ignore_times(&mut same, &old);
    assert_eq!(same, old);
    let mut other = object("2026-01-01T00:00:09Z", "2");
    let want = other.clone();
    ignore_times(&mut other, &old);
    assert_eq!(other, want);
}

/// A pod of about 6 kB, as a kubelet and a few controllers leave it.
fn big_pod() -> Value {
    let env: Vec<Value> =
        (0..12).map(|i| json!({"name": format!("NAME_{i}"), "value": format!("value {i}")})).collect();
    let container = |name: &str| {
        json!({
            "name": name, "image": "registry.example.com/team/image:v1.2.3", "command": ["run", "--fast"], "env": env,
            "ports": [{"containerPort": 80, "protocol": "TCP", "name": "http"}], "imagePullPolicy": "IfNotPresent",
            "resources": {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "1", "memory": "1Gi"}},
            "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
            "volumeMounts": [{"name": "data", "mountPath": "/data"}, {"name": "token", "mountPath": "/token"}],
        })
    };
    let condition = |kind: &str| json!({"type": kind, "status": "True", "lastProbeTime": null, "lastTransitionTime": "2026-01-01T00:00:00Z"});
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": "web-5d4f8c7b9-x2x7k", "namespace": "default", "labels": {"app": "web", "pod-template-hash": "5d4f8c7b9"},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-5d4f8c7b9", "uid": "u-1",
                "controller": true, "blockOwnerDeletion": true}],
        },
        "spec": {
            "containers": [container("web"), container("sidecar")], "dnsPolicy": "ClusterFirst", "nodeName": "node-1",
            "restartPolicy": "Always", "schedulerName": "default-scheduler", "securityContext": {},
            "serviceAccountName": "default", "terminationGracePeriodSeconds": 30,
            "tolerations": [{"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}],
            "volumes": [{"name": "data", "emptyDir": {}}, {"name": "token", "secret": {"secretName": "t"}}],
        },
        "status": {
            "phase": "Running", "hostIP": "10.0.0.1", "podIP": "10.1.0.1", "podIPs": [{"ip": "10.1.0.1"}],
            "conditions": [condition("Initialized"), condition("Ready"), condition("ContainersReady"),
                condition("PodScheduled")],
        },
    })
}

/// Nanoseconds that this thread has run.
fn cpu_time() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|t| t.parse().ok()).unwrap_or_default()
}

/// Run with `--ignored --nocapture`; upstream needs a millisecond for the update.
#[test]
#[ignore = "a measurement"]
fn how_long_tracking_takes() {
    let ty = builtin().kind("", "v1", "Pod").unwrap();
    let create = tracker(ty, "v1", "Pod", "kube-controller-manager");
    let mut kubelet = tracker(ty, "v1", "Pod", "kubelet");
    kubelet.writer.subresource = "status";
    let mut pod = big_pod();
    let status = pod["status"].take();
    create.track_update(None, &mut pod);
    pod["metadata"]["uid"] = "u".into();
    let mut live = pod.clone();
    live["status"] = status;
    set_managed_fields(&mut live, managed_fields(&pod).cloned());
    kubelet.track_update(Some(&pod), &mut live);
    let mut next = live.clone();
    next["status"]["conditions"][1]["status"] = "False".into();
    next["status"]["podIP"] = "10.1.0.2".into();
    println!("{} bytes", live.to_string().len());
    let time = |run: &dyn Fn(&mut Value), from: &Value| {
        let start = cpu_time();
        (0..2000).for_each(|_| run(&mut from.clone()));
        (cpu_time() - start) / 2000
    };
    let measure = |name: &str, run: &dyn Fn(&mut Value), from: &Value| {
        println!("{name}: {} ns each", time(run, from).saturating_sub(time(&|_| {}, from)));
    };
    measure("create", &|pod| create.track_update(None, pod), &big_pod());
    measure("update", &|pod| kubelet.track_update(Some(&live), pod), &next);
    let config = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web-5d4f8c7b9-x2x7k"},
        "spec": {"containers": [{"name": "web", "image": "other"}]}});
    measure("apply", &|pod| drop(create.apply(Some(pod), &config, true)), &live);
    measure("copy", &|pod| drop(pod.clone()), &live);
    measure("compare", &|pod| assert!(*pod != live), &next);
    let root = Kind::root(ty);
    measure("diff", &|pod| drop(compare::compare(builtin(), root, &live, pod)), &next);
    let entries = managed::decode(managed_fields(&live).cloned().unwrap(), true).unwrap();
    measure("reconcile", &|_| kubelet.reconcile(&live, &mut entries.clone()), &Value::Null);
    measure("copy entries", &|_| drop(entries.clone()), &Value::Null);
}

//! The objects of the load: ConfigMaps of 1.6 kB, and pods that grow to 6 kB once a kubelet has told of them.

use serde_json::{Value, json};

/// Pods that are stored.
pub const PODS: usize = 10_000;
/// Namespaces that they are in.
pub const NAMESPACES: usize = 100;
/// Pods of a node.
pub const PER_NODE: usize = 30;
/// Pods that one label selects.
pub const LABELLED: usize = 100;

/// The namespace of a pod.
pub fn namespace(pod: usize) -> String {
    format!("load-{}", pod % NAMESPACES)
}

/// The node of a pod.
pub fn node(pod: usize) -> String {
    format!("node-{}", pod / PER_NODE)
}

/// A ConfigMap.
pub fn config_map(name: &str, salt: usize) -> Value {
    let text = format!("{salt:06} the quick brown fox jumps over the lazy dog. ").repeat(22);
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": {"app": "load"}},
        "data": {"settings.txt": text}})
}

/// A pod as a controller makes it, already on its node.
pub fn pod(name: &str, number: usize) -> Value {
    let variables: Vec<Value> =
        (0..8).map(|n| json!({"name": format!("SETTING_{n}"), "value": "some value of it"})).collect();
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": {"app": "load", "group": format!("group-{}", number % (PODS / LABELLED)), "pod-template-hash": "6d4b75cb6d"},
            "annotations": {"example.com/made-by": "bench", "example.com/purpose": "to be listed and watched"},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "load-6d4b75cb6d",
                "uid": "8f1ba3c2-5d0f-4f3a-9a52-0b7f3f2f7e11", "controller": true, "blockOwnerDeletion": true}],
        },
        "spec": {
            "nodeName": node(number),
            "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": 0,
            "containers": [{
                "name": "main",
                "image": "registry.example.com/load/main:v1.2.3",
                "env": variables,
                "ports": [{"name": "http", "containerPort": 8080}],
                "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"cpu": "1", "memory": "512Mi"}},
                "readinessProbe": {"httpGet": {"path": "/ready", "port": 8080}},
                "livenessProbe": {"httpGet": {"path": "/live", "port": 8080}, "initialDelaySeconds": 10},
                "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
            }],
            "volumes": [{"name": "scratch", "emptyDir": {}}],
        },
    })
}

/// What a kubelet tells of a running pod; `round` makes each telling another.
pub fn pod_status(number: usize, round: usize) -> Value {
    let ip = format!("10.{}.{}.{}", 1 + number / 65_536, number / 256 % 256, number % 256);
    let at = format!("2026-01-01T{:02}:{:02}:{:02}Z", round / 3600 % 24, round / 60 % 60, round % 60);
    let condition = |kind: &str| json!({"type": kind, "status": "True", "lastProbeTime": null, "lastTransitionTime": at, "observedGeneration": 1});
    let conditions: Vec<Value> =
        ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"].map(condition).into();
    json!({"status": {
        "phase": "Running",
        "conditions": conditions,
        "hostIP": "192.0.2.10", "hostIPs": [{"ip": "192.0.2.10"}],
        "podIP": ip, "podIPs": [{"ip": ip}],
        "startTime": "2026-01-01T00:00:00Z",
        "qosClass": "Burstable",
        "containerStatuses": [{
            "name": "main", "ready": true, "started": true, "restartCount": round,
            "state": {"running": {"startedAt": at}}, "lastState": {},
            "image": "registry.example.com/load/main:v1.2.3",
            "imageID": "registry.example.com/load/main@sha256:4bcff63911fcb4448bd4fdacec207030997caf25e9bea4045fa6c8c44de311d1",
            "containerID": "containerd://0e1a6e2f4e3d6a8f7c5b4a39281706f5e4d3c2b1a09f8e7d6c5b4a3928170615",
        }],
    }})
}

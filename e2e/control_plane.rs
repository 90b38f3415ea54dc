//! kubectl against etcd and the API server alone.

use e2e::{Cluster, missing};
use serde_json::json;

const NEEDS: [&str; 2] = ["kubectl", "etcd"];

#[test]
fn readiness_names_its_checks_and_version_says_who_it_is() {
    if missing(&NEEDS).is_some() {
        return;
    }
    let cluster = Cluster::control_plane(&[]);
    let ready = cluster.kubectl(&["get", "--raw=/readyz?verbose"]);
    assert!(ready.contains("[+]etcd ok"), "{ready}");
    assert!(ready.trim_end().ends_with("readyz check passed"), "{ready}");
    let version = cluster.kubectl(&["version", "-o", "json"]);
    let version: serde_json::Value = serde_json::from_str(&version).unwrap();
    assert_eq!(version["serverVersion"]["major"], "1");
    assert_eq!(version["serverVersion"]["minor"], "36");
    assert!(version["serverVersion"]["gitVersion"].as_str().unwrap().starts_with("v1.36.2+navarch."));
}

#[test]
fn verbose_kubectl_shows_the_request_and_its_latency() {
    if missing(&NEEDS).is_some() {
        return;
    }
    let cluster = Cluster::control_plane(&[]);
    let printed = cluster.try_kubectl(&["get", "pods", "-v=6"]);
    assert!(printed.ok, "{printed:?}");
    let line = regex::Regex::new(r#"GET.*https://127\.0\.0\.1:\d+/api/v1/namespaces/default/pods.*200.*\d"#).unwrap();
    assert!(printed.err.lines().any(|l| line.is_match(l)), "{}", printed.err);
}

#[test]
fn objects_are_created_changed_listed_and_deleted() {
    if missing(&NEEDS).is_some() {
        return;
    }
    let cluster = Cluster::control_plane(&[]);
    cluster.kubectl(&["create", "configmap", "settings", "--from-literal=color=red"]);
    cluster.kubectl(&["patch", "configmap", "settings", "--type=merge", "-p", r#"{"data":{"size":"xl"}}"#]);
    cluster.kubectl(&["label", "configmap", "settings", "tier=front"]);
    cluster.kubectl(&["annotate", "configmap", "settings", "note=hello"]);
    let object = cluster.object(&["configmap", "settings"]);
    assert_eq!(object["data"], json!({"color": "red", "size": "xl"}));
    assert_eq!(object["metadata"]["labels"], json!({"tier": "front"}));
    let listed = cluster.kubectl(&["get", "configmaps", "-l", "tier=front", "-o", "name"]);
    assert_eq!(listed.trim(), "configmap/settings");
    let table = cluster.kubectl(&["get", "configmap", "settings"]);
    let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["NAME", "DATA", "AGE"]);
    assert_eq!(lines[1][..2], ["settings", "2"]);
    cluster.kubectl(&["delete", "configmap", "settings"]);
    let gone = cluster.try_kubectl(&["get", "configmap", "settings"]);
    assert_eq!(gone.err.trim(), r#"Error from server (NotFound): configmaps "settings" not found"#);
}

const DEPLOYMENT: &str = r#"
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - {name: main, image: "localhost/web:1", ports: [{containerPort: 80}]}
"#;

#[test]
fn manifests_are_applied_client_side_and_server_side() {
    if missing(&NEEDS).is_some() {
        return;
    }
    let cluster = Cluster::control_plane(&[]);
    assert!(cluster.kubectl_with(&["apply", "-f", "-"], DEPLOYMENT).contains("deployment.apps/web created"));
    assert!(cluster.kubectl_with(&["apply", "-f", "-"], DEPLOYMENT).contains("deployment.apps/web unchanged"));
    let more = DEPLOYMENT.replace("replicas: 2", "replicas: 3");
    assert!(cluster.kubectl_with(&["apply", "-f", "-"], &more).contains("deployment.apps/web configured"));
    let before = cluster.object(&["deployment", "web"]);
    assert_eq!(before["spec"]["replicas"], 3);
    assert_eq!(before["spec"]["strategy"]["type"], "RollingUpdate");
    let args = ["apply", "--server-side", "--force-conflicts", "--field-manager=e2e", "-f", "-"];
    cluster.kubectl_with(&args, &more);
    let applied = cluster.kubectl(&["get", "deployment", "web", "-o", "json", "--show-managed-fields"]);
    let applied: serde_json::Value = serde_json::from_str(&applied).unwrap();
    let managers = applied["metadata"]["managedFields"].as_array().unwrap();
    assert!(managers.iter().any(|m| m["manager"] == "e2e" && m["operation"] == "Apply"), "{managers:?}");
    cluster.kubectl_with(&args, &more);
    let again = cluster.object(&["deployment", "web"]);
    assert_eq!(applied["metadata"]["resourceVersion"], again["metadata"]["resourceVersion"]);
}

#[test]
fn discovery_and_explain_serve_kubectl() {
    if missing(&NEEDS).is_some() {
        return;
    }
    let cluster = Cluster::control_plane(&[]);
    let resources = cluster.kubectl(&["api-resources", "-o", "name"]);
    for name in ["pods", "deployments.apps", "endpointslices.discovery.k8s.io", "leases.coordination.k8s.io"] {
        assert!(resources.lines().any(|l| l == name), "{name} is missing:\n{resources}");
    }
    let explained = cluster.kubectl(&["explain", "deployment.spec.strategy"]);
    assert!(explained.contains("rollingUpdate") && explained.contains("GROUP:"), "{explained}");
    assert!(cluster.kubectl(&["auth", "can-i", "create", "pods"]).contains("yes"));
    assert!(cluster.kubectl(&["auth", "whoami"]).contains("kubernetes-admin"));
}

#[test]
fn a_second_up_changes_nothing_and_data_survives_a_restart() {
    if missing(&NEEDS).is_some() {
        return;
    }
    let cluster = Cluster::control_plane(&[]);
    cluster.kubectl(&["create", "configmap", "kept"]);
    let uid = cluster.object(&["configmap", "kept"])["metadata"]["uid"].clone();
    cluster.navarch(&["up", "--control-plane-only"]);
    assert_eq!(cluster.object(&["configmap", "kept"])["metadata"]["uid"], uid);
    cluster.navarch(&["down", "--keep"]);
    cluster.navarch(&["up", "--control-plane-only"]);
    assert_eq!(cluster.object(&["configmap", "kept"])["metadata"]["uid"], uid);
}

#[test]
fn what_was_there_at_the_snapshot_is_there_after_the_restore() {
    if missing(&["kubectl", "etcd", "etcdctl"]).is_some() {
        return;
    }
    let cluster = Cluster::control_plane(&[]);
    cluster.kubectl(&["create", "configmap", "before"]);
    let file = cluster.dir().join("snapshot.db");
    let file = file.to_str().unwrap();
    cluster.navarch(&["etcd", "snapshot", "save", file]);
    cluster.kubectl(&["create", "configmap", "after"]);
    let seen: i64 = version_of(&cluster.object(&["configmaps"]));
    cluster.navarch(&["etcd", "snapshot", "restore", file]);
    cluster.kubectl(&["get", "configmap", "before"]);
    assert!(!cluster.try_kubectl(&["get", "configmap", "after"]).ok);
    cluster.kubectl(&["create", "configmap", "later"]);
    let now = version_of(&cluster.object(&["configmap", "later"]));
    assert!(now > seen, "revisions went back from {seen} to {now}: watchers would wait for ever");
}

fn version_of(object: &serde_json::Value) -> i64 {
    let versions =
        object["items"].as_array().map(|items| items.iter().collect::<Vec<_>>()).unwrap_or_else(|| vec![object]);
    versions.iter().filter_map(|o| o["metadata"]["resourceVersion"].as_str()?.parse().ok()).max().unwrap_or(0)
}

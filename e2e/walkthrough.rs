//! A whole cluster on this machine, from `up` to `down`, as a person walks through it: real containers, real etcd.

use e2e::{Cluster, Printed, missing};

const NEEDS: [&str; 7] = ["kubectl", "etcd", "etcdctl", "containerd", "runc", "nft", "ip"];

/// A shell image that `navarch up` makes and imports.
const BUSYBOX: &str = "localhost/busybox:debian";

#[test]
#[ignore = "logs and exec do not reach containers through the API server yet"]
fn a_cluster_comes_up_runs_pods_heals_and_goes_without_a_trace() {
    if missing(&NEEDS).is_some() {
        return;
    }
    if !e2e::is_root() {
        println!("skipped: a whole cluster takes root");
        return;
    }
    let cluster = Cluster::whole();
    control_plane_pods_are_listed(&cluster);
    a_pod_is_scheduled_and_started(&cluster);
    logs_and_exec_reach_it(&cluster);
    the_count_heals(&cluster);
    a_service_answers_by_address_and_name(&cluster);
    containers_live_on_without_the_control_plane(&cluster);
    drop(cluster);
    nothing_is_left();
}

fn control_plane_pods_are_listed(cluster: &Cluster) {
    let nodes = cluster.kubectl(&["get", "nodes", "-o", "jsonpath={.items[*].metadata.name}"]);
    let node = nodes.trim();
    for component in ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"] {
        let name = format!("{component}-{node}");
        let ready = "jsonpath={.status.phase} {.status.containerStatuses[0].ready}";
        cluster.until(&["get", "pod", "-n", "kube-system", &name, "-o", ready], |out| out == "Running true");
    }
    let described = cluster.kubectl(&["describe", "node", node]);
    for part in ["Capacity:", "Allocatable:", "Conditions:", "Lease:", "Non-terminated Pods:", "Allocated resources:"] {
        assert!(described.contains(part), "{part} is missing:\n{described}");
    }
}

fn a_pod_is_scheduled_and_started(cluster: &Cluster) {
    let image = format!("--image={BUSYBOX}");
    cluster.kubectl(&["run", "hello", &image, "--restart=Never", "--", "sh", "-c", "echo hello there; sleep 3600"]);
    cluster.until(&["get", "pod", "hello", "-o", "jsonpath={.status.phase}"], |out| out == "Running");
    let described = cluster.until(&["describe", "pod", "hello"], |out| out.contains("Started"));
    let events = &described[described.find("Events:").expect("describe shows events")..];
    for reason in ["Scheduled", "Pulled", "Created", "Started"] {
        assert!(events.contains(reason), "{reason} is missing:\n{events}");
    }
    assert!(events.contains("Successfully assigned default/hello to "), "{events}");
}

fn logs_and_exec_reach_it(cluster: &Cluster) {
    cluster.until(&["logs", "hello"], |out| out.trim() == "hello there");
    let out = cluster.kubectl(&[
        "exec",
        "hello",
        "--",
        "sh",
        "-c",
        "echo $((6*7)); ls /var/run/secrets/kubernetes.io/serviceaccount",
    ]);
    assert!(out.starts_with("42\n") && out.contains("token") && out.contains("ca.crt"), "{out}");
    let failed: Printed = cluster.try_kubectl(&["exec", "hello", "--", "false"]);
    assert!(!failed.ok && failed.err.contains("exit code 1"), "{failed:?}");
}

const WEB: &str = r#"
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: main
        image: localhost/busybox:debian
        command: [sh, -c, "hostname > /www/index.html; exec httpd -f -p 8080 -h /www"]
        ports: [{containerPort: 8080}]
        readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  selector: {app: web}
  ports: [{port: 80, targetPort: 8080}]
"#;

const READY: [&str; 5] = ["get", "deployment", "web", "-o", "jsonpath={.status.readyReplicas}"];

fn the_count_heals(cluster: &Cluster) {
    cluster.kubectl_with(&["create", "-f", "-"], WEB);
    cluster.until(&READY, |out| out == "3");
    let pods = cluster.kubectl(&["get", "pods", "-l", "app=web", "-o", "name"]);
    let first = pods.lines().next().expect("three pods are there");
    cluster.kubectl(&["delete", first, "--wait=false"]);
    cluster
        .until(&["get", "pods", "-l", "app=web", "-o", "name"], |out| !out.contains(first) && out.lines().count() == 3);
    cluster.until(&READY, |out| out == "3");
    cluster.kubectl(&["scale", "deployment", "web", "--replicas=2"]);
    cluster.until(&READY, |out| out == "2");
    // A process that dies is started again by the kubelet.
    let pods = cluster.kubectl(&["get", "pods", "-l", "app=web", "-o", "jsonpath={.items[0].metadata.name}"]);
    cluster.try_kubectl(&["exec", &pods, "--", "sh", "-c", "kill 1"]);
    let count = "jsonpath={.status.containerStatuses[0].restartCount}";
    cluster.until(&["get", "pod", &pods, "-o", count], |out| out == "1");
    cluster.until(&READY, |out| out == "2");
}

fn a_service_answers_by_address_and_name(cluster: &Cluster) {
    let ask = |url: &str| ["exec", "hello", "--", "wget", "-q", "-O-", "-T", "5", url].map(str::to_string);
    let ip = cluster.kubectl(&["get", "service", "web", "-o", "jsonpath={.spec.clusterIP}"]);
    for url in [format!("http://{ip}/"), "http://web.default.svc.cluster.local/".into(), "http://web/".into()] {
        let args = ask(&url);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        cluster.until(&args, |out| out.starts_with("web-"));
    }
}

fn containers_live_on_without_the_control_plane(cluster: &Cluster) {
    let id = "jsonpath={.status.containerStatuses[0].containerID}";
    let before = cluster.kubectl(&["get", "pod", "hello", "-o", id]);
    let manifest = cluster.dir().join("kubernetes/manifests/kube-apiserver.yaml");
    let aside = cluster.dir().join("kubernetes/kube-apiserver.yaml");
    std::fs::rename(&manifest, &aside).expect("the manifest is there");
    cluster.until_fails(&["get", "--raw=/readyz"]);
    std::fs::rename(&aside, &manifest).expect("the manifest goes back");
    cluster.until(&["get", "--raw=/readyz"], |out| out == "ok");
    assert_eq!(cluster.kubectl(&["get", "pod", "hello", "-o", id]), before, "the container was made anew");
}

fn nothing_is_left() {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    assert!(!mounts.contains("navarch-e2e-"), "{mounts}");
    let tables = std::process::Command::new("nft").args(["list", "tables"]).output().expect("nft runs");
    let tables = String::from_utf8_lossy(&tables.stdout).into_owned();
    assert!(!tables.contains("kube-proxy") && !tables.contains("navarch"), "{tables}");
    for tree in std::fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten() {
        assert!(!tree.path().join("navarch").exists(), "a cgroup is left in {}", tree.path().display());
    }
}

//! What a person looks at first: the node, the control plane's pods, readiness, a first pod.

use e2e::{Cluster, Steps};

use super::BUSYBOX;

pub fn walk(steps: &mut Steps, cluster: &Cluster) {
    steps.run("nodes are listed and described", || nodes_are_described(cluster));
    steps.run("cluster-info names the control plane and DNS", || cluster_info(cluster));
    steps.run("control plane pods run and are listed", || control_plane_pods_are_listed(cluster));
    steps.run("a pod is run, scheduled, pulled, created, started", || a_pod_is_scheduled_and_started(cluster));
    steps.run("-v=6 and -v=8 show requests", || verbose_requests(cluster));
    steps.run("readyz, livez, healthz, metrics, version", || health_and_version(cluster));
    steps.run("a pod's YAML is whole; managedFields on demand", || a_pod_as_yaml(cluster));
}

fn node(cluster: &Cluster) -> String {
    cluster.kubectl(&["get", "nodes", "-o", "jsonpath={.items[*].metadata.name}"]).trim().to_string()
}

/// A table's column, by its header.
fn column<'a>(table: &'a str, header: &str) -> &'a str {
    let mut lines = table.lines();
    let start = lines.next().and_then(|line| line.find(header)).expect("the table has that column");
    lines.next().and_then(|line| line[start..].split("  ").next()).expect("the table has a row").trim()
}

fn nodes_are_described(cluster: &Cluster) {
    let wide = cluster.kubectl(&["get", "nodes", "-o", "wide"]);
    assert_eq!(column(&wide, "STATUS"), "Ready", "{wide}");
    assert_eq!(column(&wide, "ROLES"), "control-plane", "{wide}");
    assert!(column(&wide, "VERSION").starts_with("v1.36.2"), "{wide}");
    assert!(column(&wide, "CONTAINER-RUNTIME").starts_with("containerd://"), "{wide}");
    for header in ["NAME", "AGE", "INTERNAL-IP", "EXTERNAL-IP", "OS-IMAGE", "KERNEL-VERSION"] {
        assert!(!column(&wide, header).is_empty(), "{header} is empty:\n{wide}");
    }
    // The table of pods and the events fill up while the node settles.
    let whole = |text: &str| {
        let non_terminated = text.split("Non-terminated Pods:").nth(1).unwrap_or_default();
        non_terminated.contains("kube-apiserver-") && text.contains("Starting kubelet.")
    };
    let described = cluster.until(&["describe", "node", &node(cluster)], whole);
    for part in [
        "Capacity:",
        "Allocatable:",
        "Conditions:",
        "Addresses:",
        "InternalIP:",
        "HolderIdentity:",
        "RenewTime:",
        "MemoryPressure",
        "DiskPressure",
        "PIDPressure",
        "KubeletReady",
        "Non-terminated Pods:",
        "Allocated resources:",
        "Events:",
    ] {
        assert!(described.contains(part), "{part} is missing:\n{described}");
    }
}

fn cluster_info(cluster: &Cluster) {
    let info = cluster.kubectl(&["cluster-info"]);
    assert!(info.contains("Kubernetes control plane") && info.contains("is running at"), "{info}");
    assert!(info.contains("CoreDNS") && info.contains("/services/kube-dns:dns/proxy"), "{info}");
}

fn control_plane_pods_are_listed(cluster: &Cluster) {
    let node = node(cluster);
    for component in ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"] {
        let name = format!("{component}-{node}");
        cluster.until(&["get", "pod", "-n", "kube-system", &name], |out| {
            column(out, "READY") == "1/1" && column(out, "STATUS") == "Running"
        });
        let pod = cluster.object(&["pod", "-n", "kube-system", &name]);
        assert!(pod["metadata"]["annotations"]["kubernetes.io/config.mirror"].is_string(), "{name} is no mirror pod");
        assert_eq!(pod["metadata"]["labels"]["component"], component);
        assert_eq!(pod["metadata"]["labels"]["tier"], "control-plane");
        assert_eq!(pod["spec"]["priorityClassName"], "system-node-critical");
        assert_eq!(pod["spec"]["hostNetwork"], true);
        let id = pod["status"]["containerStatuses"][0]["containerID"].as_str().unwrap_or_default().to_string();
        assert!(id.starts_with("containerd://"), "{name} runs in no container: {id}");
    }
    cluster.kubectl(&["rollout", "status", "-n", "kube-system", "daemonset/kube-proxy", "--timeout=60s"]);
    cluster.kubectl(&["rollout", "status", "-n", "kube-system", "deployment/kube-dns", "--timeout=60s"]);
    let all = cluster.kubectl(&["get", "pods", "-A"]);
    for name in ["etcd-", "kube-apiserver-", "kube-controller-manager-", "kube-scheduler-", "kube-proxy-", "kube-dns-"]
    {
        assert!(all.contains(&format!("kube-system   {name}")), "{name} is not listed:\n{all}");
    }
}

fn a_pod_is_scheduled_and_started(cluster: &Cluster) {
    let image = format!("--image={BUSYBOX}");
    let script = "mkdir -p /www; echo it is served > /www/index.html; httpd -p 8080 -h /www; echo hello there; \
                  echo a complaint >&2; while sleep 1; do echo tick; done";
    cluster.kubectl(&["run", "hello", &image, "--", "sh", "-c", script]);
    cluster.kubectl(&["wait", "--for=condition=Ready", "pod/hello", "--timeout=60s"]);
    let described = cluster.until(&["describe", "pod", "hello"], |out| out.contains("Started"));
    let events = &described[described.find("Events:").expect("describe shows events")..];
    let scheduled = format!("default-scheduler  Successfully assigned default/hello to {}", node(cluster));
    let mut last = 0;
    for part in ["Scheduled", scheduled.as_str(), "Pulled", "Created", "Started"] {
        let at = events.find(part).unwrap_or_else(|| panic!("{part} is missing:\n{events}"));
        assert!(at > last, "{part} comes too early:\n{events}");
        last = at;
    }
    assert!(events.contains(" kubelet "), "{events}");
}

fn verbose_requests(cluster: &Cluster) {
    for level in ["-v=6", "-v=8"] {
        let printed = cluster.try_kubectl(&["get", "pods", level]);
        assert!(printed.ok, "{printed:?}");
        let server = cluster.kubectl(&["config", "view", "-o", "jsonpath={.clusters[0].cluster.server}"]);
        assert!(server.starts_with("https://127.0.0.1:"), "{server}");
        let url = format!("{server}/api/v1/namespaces/default/pods");
        // 1.32 and later write fields, those before a sentence.
        assert!(printed.err.contains(&url), "{url} is not shown:\n{}", printed.err);
        assert!(printed.err.contains("200 OK"), "{}", printed.err);
        assert!(printed.err.contains("milliseconds"), "{}", printed.err);
    }
}

fn health_and_version(cluster: &Cluster) {
    for path in ["/readyz?verbose", "/livez?verbose", "/healthz?verbose"] {
        let shown = cluster.kubectl(&["get", "--raw", path]);
        assert!(shown.contains("[+]etcd ok") && shown.contains("[+]ping ok"), "{path}:\n{shown}");
    }
    let metrics = cluster.kubectl(&["get", "--raw", "/metrics"]);
    assert!(metrics.contains("apiserver_request_total{"), "no requests are counted");
    let version: serde_json::Value =
        serde_json::from_str(&cluster.kubectl(&["get", "--raw", "/version"])).expect("the version is JSON");
    assert_eq!((version["major"].as_str(), version["minor"].as_str()), (Some("1"), Some("36")), "{version}");
    let expected = format!("v1.36.2+navarch.{}", env!("CARGO_PKG_VERSION"));
    assert_eq!(version["gitVersion"], expected.as_str());
}

fn a_pod_as_yaml(cluster: &Cluster) {
    let yaml = cluster.kubectl(&["get", "pod", "hello", "-o", "yaml"]);
    for part in [
        "apiVersion: v1",
        "kind: Pod",
        "  labels:\n    run: hello",
        "  uid: ",
        "  resourceVersion: ",
        "dnsPolicy: ClusterFirst",
        "enableServiceLinks: true",
        "preemptionPolicy: PreemptLowerPriority",
        "schedulerName: default-scheduler",
        "terminationGracePeriodSeconds: 30",
        "key: node.kubernetes.io/not-ready",
        "serviceAccountName: default",
        "mountPath: /var/run/secrets/kubernetes.io/serviceaccount",
        "phase: Running",
        "qosClass: BestEffort",
        "type: PodScheduled",
        "type: ContainersReady",
        "started: true",
        "podIP: ",
        "hostIP: ",
        "startTime: ",
    ] {
        assert!(yaml.contains(part), "{part:?} is missing:\n{yaml}");
    }
    assert!(!yaml.contains("managedFields"), "{yaml}");
    let shown = cluster.kubectl(&["get", "pod", "hello", "-o", "yaml", "--show-managed-fields"]);
    for manager in ["manager: kubectl-run", "manager: kubelet", "subresource: status"] {
        assert!(shown.contains(manager), "{manager} is missing:\n{shown}");
    }
}

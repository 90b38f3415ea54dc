//! Deployments that heal, scale and roll; Services that spread; deletions that reach everything.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use e2e::{Cluster, Steps};

use super::BUSYBOX;

pub fn walk(steps: &mut Steps, cluster: &Cluster) {
    steps.run("a deployment is made; a deleted pod is replaced", || the_count_heals(cluster));
    steps.run("a killed process is started again and counted", || a_killed_process_restarts(cluster));
    steps.run("a service answers from host and pod, by address and name", || a_service_answers(cluster));
    steps.run("a port that no service has is refused at once", || a_foreign_port_is_refused(cluster));
    steps.run("a pod's port is the machine's", || a_host_port_answers(cluster));
    steps.run("endpoints follow readiness", || endpoints_follow_readiness(cluster));
    steps.run("scale, set image, rollout", || rollouts(cluster));
    steps.run("a deployment's pods go: background, foreground, orphan", || cascades(cluster));
    steps.run("a namespace goes with all that is in it", || a_namespace_goes(cluster));
}

/// A web server that says its own name; it is ready while it has a page.
pub const WEB: &str = r#"
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
"#;

pub const READY: [&str; 5] = ["get", "deployment", "web", "-o", "jsonpath={.status.readyReplicas}"];

/// Names of the pods that are `web`'s and not on their way out.
pub fn web_pods(cluster: &Cluster) -> Vec<String> {
    let pods = cluster.object(&["pods", "-l", "app=web"]);
    let items = pods["items"].as_array().cloned().unwrap_or_default();
    let staying = items.iter().filter(|pod| pod["metadata"]["deletionTimestamp"].is_null());
    staying.filter_map(|pod| pod["metadata"]["name"].as_str().map(str::to_string)).collect()
}

fn the_count_heals(cluster: &Cluster) {
    cluster.kubectl_with(&["create", "-f", "-"], WEB);
    cluster.until(&READY, |out| out == "3");
    let first = format!("pod/{}", web_pods(cluster)[0]);
    cluster.kubectl(&["delete", &first, "--wait=false"]);
    cluster.until(&["get", "pods", "-l", "app=web", "-o", "name"], |out| {
        !out.contains(&first) && out.lines().count() == 3
    });
    cluster.until(&READY, |out| out == "3");
}

fn a_killed_process_restarts(cluster: &Cluster) {
    let pod = web_pods(cluster).remove(0);
    let id = cluster.kubectl(&["get", "pod", &pod, "-o", "jsonpath={.status.containerStatuses[0].containerID}"]);
    super::outages::kill(cluster, id.trim_start_matches("containerd://"));
    let count = "jsonpath={.status.containerStatuses[0].restartCount}";
    cluster.until(&["get", "pod", &pod, "-o", count], |out| out == "1");
    cluster.until(&READY, |out| out == "3");
}

/// One request from this machine; `None` when nobody answers.
fn ask(address: &str) -> Option<String> {
    let address = address.parse().ok()?;
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(2)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    answer.lines().last().map(str::to_string)
}

fn a_service_answers(cluster: &Cluster) {
    cluster.kubectl(&["expose", "deployment", "web", "--port=80", "--target-port=8080"]);
    let ip = cluster.kubectl(&["get", "service", "web", "-o", "jsonpath={.spec.clusterIP}"]);
    for url in [format!("http://{ip}/"), "http://web.default.svc.cluster.local/".into(), "http://web/".into()] {
        let args = ["exec", "hello", "--", "wget", "-q", "-O-", &url];
        cluster.until(&args, |out| out.starts_with("web-"));
    }
    let pods: BTreeSet<String> = web_pods(cluster).into_iter().collect();
    // The chance that one of three is missed 60 times is that of 1 in 10^10.
    let answers: BTreeSet<String> = (0..60).filter_map(|_| ask(&format!("{ip}:80"))).collect();
    assert_eq!(answers, pods);
    let resolved = cluster.kubectl(&["exec", "hello", "--", "nslookup", "web.default.svc.cluster.local"]);
    assert!(resolved.contains(&ip), "{resolved}");
}

fn a_foreign_port_is_refused(cluster: &Cluster) {
    let ip = cluster.kubectl(&["get", "service", "web", "-o", "jsonpath={.spec.clusterIP}"]);
    let address = format!("{ip}:99").parse().expect("an address");
    let refused = TcpStream::connect_timeout(&address, Duration::from_secs(10)).expect_err("nobody serves there");
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
}

fn a_host_port_answers(cluster: &Cluster) {
    let port = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a free port").port();
    let overrides = format!(
        r#"{{"spec": {{"terminationGracePeriodSeconds": 1, "containers": [{{"name": "host-port", "image": "{BUSYBOX}",
            "command": ["sh", "-c", "echo it-is-me > /www/index.html; exec httpd -f -p 8080 -h /www"],
            "ports": [{{"containerPort": 8080, "hostPort": {port}}}]}}]}}}}"#
    );
    cluster.kubectl(&["run", "host-port", "--image", BUSYBOX, "--overrides", &overrides]);
    let own = cluster.kubectl(&["get", "nodes", "-o", "jsonpath={.items[0].status.addresses[0].address}"]);
    e2e::eventually(
        || format!("no answer at {own}:{port}"),
        || ask(&format!("{own}:{port}")).filter(|answer| answer == "it-is-me"),
    );
    cluster.kubectl(&["delete", "pod", "host-port"]);
}

fn endpoints_follow_readiness(cluster: &Cluster) {
    let pod = web_pods(cluster).remove(0);
    let ip = cluster.kubectl(&["get", "pod", &pod, "-o", "jsonpath={.status.podIP}"]);
    let addresses = ["get", "endpoints", "web", "-o", "jsonpath={.subsets[*].addresses[*].ip}"];
    cluster.until(&addresses, |out| out.contains(&ip));
    cluster.kubectl(&["exec", &pod, "--", "mv", "/www/index.html", "/www/aside.html"]);
    cluster.until(&addresses, |out| !out.split(' ').any(|address| address == ip));
    let ready = format!("jsonpath={{.items[0].endpoints[?(@.targetRef.name==\"{pod}\")].conditions.ready}}");
    let slices = ["get", "endpointslices", "-l", "kubernetes.io/service-name=web", "-o", &ready];
    cluster.until(&slices, |out| out == "false");
    cluster.kubectl(&["exec", &pod, "--", "mv", "/www/aside.html", "/www/index.html"]);
    cluster.until(&addresses, |out| out.split(' ').any(|address| address == ip));
    cluster.until(&slices, |out| out == "true");
}

fn rollouts(cluster: &Cluster) {
    cluster.kubectl(&["scale", "deployment", "web", "--replicas=2"]);
    cluster.kubectl(&["rollout", "status", "deployment/web", "--timeout=60s"]);
    cluster.until(&READY, |out| out == "2");
    cluster.kubectl(&["rollout", "pause", "deployment/web"]);
    cluster.kubectl(&["set", "image", "deployment/web", "main=localhost/busybox:nowhere"]);
    let updated = "jsonpath={.status.observedGeneration} {.metadata.generation} {.status.updatedReplicas}";
    // Paused: the controller has seen the change and made no pods of it.
    cluster.until(&["get", "deployment", "web", "-o", updated], |out| {
        let mut fields = out.split(' ');
        let seen = fields.next() == fields.next();
        seen && fields.next().unwrap_or_default().is_empty()
    });
    cluster.kubectl(&["rollout", "resume", "deployment/web"]);
    let waiting = "jsonpath={.items[*].status.containerStatuses[*].state.waiting.reason}";
    cluster.until(&["get", "pods", "-l", "app=web", "-o", waiting], |out| out.contains("ImagePull"));
    assert_ne!(cluster.kubectl(&READY), "0", "a bad image took the good pods");
    cluster.kubectl(&["rollout", "undo", "deployment/web"]);
    cluster.kubectl(&["rollout", "status", "deployment/web", "--timeout=60s"]);
    let image = ["get", "deployment", "web", "-o", "jsonpath={.spec.template.spec.containers[0].image}"];
    assert_eq!(cluster.kubectl(&image), BUSYBOX);
    let history = cluster.kubectl(&["rollout", "history", "deployment/web"]);
    assert!(history.contains("REVISION") && history.contains("\n2 ") && history.contains("\n3 "), "{history}");
    let before: BTreeSet<String> = web_pods(cluster).into_iter().collect();
    cluster.kubectl(&["rollout", "restart", "deployment/web"]);
    cluster.kubectl(&["rollout", "status", "deployment/web", "--timeout=60s"]);
    let after: BTreeSet<String> = web_pods(cluster).into_iter().collect();
    assert!(before.is_disjoint(&after), "{before:?} {after:?}");
}

fn cascades(cluster: &Cluster) {
    for (name, cascade) in [("back", "background"), ("front", "foreground"), ("parent", "orphan")] {
        let image = format!("--image={BUSYBOX}");
        let script = "trap exit TERM; while sleep 1; do :; done";
        cluster.kubectl(&["create", "deployment", name, &image, "--replicas=2", "--", "sh", "-c", script]);
        cluster.kubectl(&["rollout", "status", &format!("deployment/{name}"), "--timeout=60s"]);
        let deployment = format!("deployment/{name}");
        cluster.kubectl(&["delete", &deployment, &format!("--cascade={cascade}"), "--timeout=90s"]);
        let label = format!("app={name}");
        if cascade != "orphan" {
            cluster.until(&["get", "pods,replicasets", "-l", &label, "-o", "name"], str::is_empty);
            continue;
        }
        let owners = "jsonpath={.items[*].metadata.ownerReferences}";
        cluster.until(&["get", "replicasets", "-l", &label, "-o", owners], str::is_empty);
        let left = cluster.kubectl(&["get", "pods,replicasets", "-l", &label, "-o", "name"]);
        assert_eq!(left.lines().count(), 3, "{left}");
        cluster.kubectl(&["delete", "replicasets,pods", "-l", &label, "--now"]);
    }
}

fn a_namespace_goes(cluster: &Cluster) {
    cluster.kubectl(&["create", "namespace", "short"]);
    let image = format!("--image={BUSYBOX}");
    cluster.kubectl(&["create", "deployment", "in", "-n", "short", &image, "--", "sleep", "3600"]);
    cluster.kubectl(&["create", "configmap", "in", "-n", "short", "--from-literal=a=b"]);
    cluster.kubectl(&["rollout", "status", "-n", "short", "deployment/in", "--timeout=60s"]);
    let pods = cluster.kubectl(&["get", "pods", "-n", "short", "-o", "name"]);
    assert_eq!(pods.lines().count(), 1, "{pods}");
    cluster.kubectl(&["delete", "namespace", "short", "--timeout=90s"]);
    for kind in ["pods", "deployments", "configmaps", "secrets", "serviceaccounts", "events"] {
        assert_eq!(cluster.kubectl(&["get", kind, "-n", "short", "-o", "name"]), "", "{kind} are left");
    }
}

//! Parts of the control plane that stop and come back; a snapshot that brings back what was.

use std::path::PathBuf;
use std::process::Command;

use e2e::{Cluster, Printed, Steps};

use super::BUSYBOX;
use super::workloads::{READY, web_pods};

pub fn walk(steps: &mut Steps, cluster: &Cluster) {
    steps.run("without the API server containers live on and restart", || without_the_api_server(cluster));
    steps.run("without the controller-manager nothing is replaced", || without_the_controller_manager(cluster));
    steps.run("without etcd the server is not ready", || without_etcd(cluster));
    steps.run("what was there at the snapshot is there after the restore", || snapshot(cluster));
}

/// A static pod whose manifest is out of the kubelet's sight while this lives.
struct Aside {
    manifest: PathBuf,
    aside: PathBuf,
}

impl Aside {
    fn put(cluster: &Cluster, component: &str) -> Self {
        let manifest = cluster.dir().join(format!("kubernetes/manifests/{component}.yaml"));
        let aside = cluster.dir().join(format!("kubernetes/{component}.yaml"));
        std::fs::rename(&manifest, &aside).expect("the manifest is there");
        Self { manifest, aside }
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        std::fs::rename(&self.aside, &self.manifest).expect("the manifest goes back");
    }
}

fn ctr(cluster: &Cluster, args: &[&str]) -> Printed {
    let socket = cluster.dir().join("containerd/containerd.sock");
    let mut command = Command::new("ctr");
    command.arg("--address").arg(socket).args(["--namespace", "k8s.io"]).args(args);
    command.output().expect("ctr runs").into()
}

/// Containers of that name, running now: their ids.
fn running(cluster: &Cluster, name: &str) -> Vec<String> {
    let filter = format!("labels.\"io.kubernetes.container.name\"=={name}");
    let known = ctr(cluster, &["containers", "list", "-q", &filter]);
    let tasks = ctr(cluster, &["tasks", "list"]);
    let runs = |id: &str| tasks.out.lines().any(|line| line.starts_with(id) && line.contains("RUNNING"));
    known.out.lines().filter(|id| runs(id)).map(str::to_string).collect()
}

/// Kills a container's process behind the kubelet's back.
pub fn kill(cluster: &Cluster, id: &str) {
    let kill = ctr(cluster, &["tasks", "kill", "--signal", "SIGKILL", id]);
    assert!(kill.ok, "{kill:?}");
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    e2e::eventually(|| format!("{what}: never seen"), || holds().then_some(()));
}

fn without_the_api_server(cluster: &Cluster) {
    let image = format!("--image={BUSYBOX}");
    cluster.kubectl(&["run", "lasting", &image, "--", "sleep", "36000"]);
    cluster.kubectl(&["run", "killed", &image, "--", "sleep", "36000"]);
    cluster.kubectl(&["wait", "--for=condition=Ready", "pod/lasting", "pod/killed", "--timeout=60s"]);
    let (lasting, killed) = (running(cluster, "lasting"), running(cluster, "killed"));
    assert_eq!((lasting.len(), killed.len()), (1, 1));
    let away = Aside::put(cluster, "kube-apiserver");
    cluster.until_fails(&["get", "--raw=/readyz"]);
    assert_eq!(running(cluster, "lasting"), lasting);
    kill(cluster, &killed[0]);
    eventually("the kubelet starts a killed container again", || {
        let now = running(cluster, "killed");
        now.len() == 1 && now != killed
    });
    drop(away);
    cluster.until(&["get", "--raw=/readyz"], |out| out == "ok");
    assert_eq!(running(cluster, "lasting"), lasting, "the container was made anew");
    let count = "jsonpath={.status.containerStatuses[0].restartCount}";
    cluster.until(&["get", "pod", "killed", "-o", count], |out| out == "1");
    cluster.kubectl(&["scale", "deployment", "web", "--replicas=3"]);
    cluster.until(&READY, |out| out == "3");
}

fn without_the_controller_manager(cluster: &Cluster) {
    let away = Aside::put(cluster, "kube-controller-manager");
    eventually("the controller-manager ends", || running(cluster, "kube-controller-manager").is_empty());
    let pod = web_pods(cluster).remove(0);
    cluster.kubectl(&["delete", "pod", &pod, "--timeout=60s"]);
    assert_eq!(web_pods(cluster).len(), 2, "who replaced it?");
    drop(away);
    eventually("the controller-manager is back and replaces it", || web_pods(cluster).len() == 3);
    cluster.until(&READY, |out| out == "3");
}

fn without_etcd(cluster: &Cluster) {
    let away = Aside::put(cluster, "etcd");
    eventually("readyz tells that etcd is away", || {
        let printed = cluster.try_kubectl(&["get", "--raw=/readyz?verbose"]);
        !printed.ok && printed.err.contains("[-]etcd failed: reason withheld")
    });
    drop(away);
    cluster.until(&["get", "--raw=/readyz?verbose"], |out| out.contains("[+]etcd ok"));
    cluster.until(&["get", "pod", "lasting", "-o", "name"], |out| out == "pod/lasting\n");
}

fn snapshot(cluster: &Cluster) {
    cluster.kubectl(&["create", "configmap", "before", "--from-literal=a=b"]);
    let file = cluster.dir().join("snapshot.db").display().to_string();
    cluster.navarch(&["etcd", "snapshot", "save", &file]);
    cluster.kubectl(&["create", "configmap", "after", "--from-literal=a=b"]);
    cluster.kubectl(&["delete", "configmap", "before"]);
    let lasting = running(cluster, "lasting");
    cluster.navarch(&["etcd", "snapshot", "restore", &file]);
    cluster.until(&["get", "configmap", "before", "-o", "name"], |out| out == "configmap/before\n");
    let gone = cluster.try_kubectl(&["get", "configmap", "after"]);
    assert!(!gone.ok && gone.err.contains("NotFound"), "{gone:?}");
    assert_eq!(running(cluster, "lasting"), lasting, "the container was made anew");
    // Components recover by themselves: a change goes all the way.
    cluster.kubectl(&["scale", "deployment", "web", "--replicas=1"]);
    cluster.until(&READY, |out| out == "1");
    cluster.kubectl(&["scale", "deployment", "web", "--replicas=2"]);
    cluster.until(&READY, |out| out == "2");
}

//! A whole cluster on this machine, from `up` to `down`, as a person walks through it: real containers, real etcd.
//!
//! One cluster serves all steps, in this order; each leaves it as the next one needs it.

mod nodes;
mod outages;
mod streams;
mod verbs;
mod volumes;
mod workloads;

use e2e::{Cluster, Steps, missing};

const NEEDS: [&str; 9] = ["kubectl", "etcd", "etcdctl", "containerd", "ctr", "runc", "nft", "ip", "script"];

/// A shell image that `navarch up` makes and imports.
const BUSYBOX: &str = "localhost/busybox:debian";

#[test]
fn a_cluster_comes_up_runs_pods_heals_and_goes_without_a_trace() {
    if missing(&NEEDS).is_some() {
        return;
    }
    if !e2e::is_root() {
        println!("skipped: a whole cluster takes root");
        return;
    }
    let cluster = Cluster::whole();
    let borrowed = cluster.borrowed();
    let mut steps = Steps::default();
    nodes::walk(&mut steps, &cluster);
    streams::walk(&mut steps, &cluster);
    workloads::walk(&mut steps, &cluster);
    volumes::walk(&mut steps, &cluster);
    verbs::walk(&mut steps, &cluster);
    outages::walk(&mut steps, &cluster);
    steps.run("up: a second call finds everything there", || {
        assert!(cluster.navarch(&["up"]).contains("images are there"), "images were made anew");
    });
    drop(cluster);
    if !borrowed {
        steps.run("down: nothing is left", nothing_is_left);
    }
    steps.end();
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
    for process in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let line = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        assert!(!line.contains("/navarch-e2e-"), "a process is left: {line}");
    }
}

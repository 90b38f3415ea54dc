//! A whole cluster on this machine, from `up` to `down`, as a person walks through it: real containers, real etcd.
//!
//! One cluster serves all steps, in this order; each leaves it as the next one needs it.

mod nodes;
mod outages;
mod streams;
mod verbs;
mod volumes;
mod workloads;

use std::path::{Path, PathBuf};

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
    let before = Machine::look();
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
        steps.run("down: nothing is left", || nothing_is_left(&before));
    }
    steps.end();
}

/// What a cluster changes about the machine outside of its directory.
#[derive(Debug, PartialEq)]
struct Machine {
    tables: String,
    routes: String,
    links: Vec<String>,
    namespaces: Vec<String>,
    cgroups: Vec<PathBuf>,
    forwards: String,
    claim: bool,
}

impl Machine {
    fn look() -> Self {
        let said = |program: &str, args: &[&str]| {
            let output = std::process::Command::new(program).args(args).output().expect("the program runs");
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        Self {
            tables: said("nft", &["list", "tables"]),
            routes: said("ip", &["route"]),
            links: names("/sys/class/net"),
            namespaces: names("/run/netns"),
            cgroups: cgroups(),
            forwards: read("/proc/sys/net/ipv4/ip_forward") + &read("/proc/sys/net/ipv4/conf/all/route_localnet"),
            claim: Path::new("/run/navarch").exists(),
        }
    }
}

fn names(dir: &str) -> Vec<String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Our cgroups: one in each tree of version 1, and one in that of version 2.
fn cgroups() -> Vec<PathBuf> {
    let root = Path::new("/sys/fs/cgroup");
    let trees = names("/sys/fs/cgroup").into_iter().map(|name| root.join(name)).chain([root.to_owned()]);
    trees.map(|tree| tree.join("navarch")).filter(|path| path.exists()).collect()
}

fn nothing_is_left(before: &Machine) {
    assert_eq!(&Machine::look(), before);
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    assert!(!mounts.contains("navarch-e2e-"), "{mounts}");
    for process in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let line = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        assert!(!line.contains("/navarch-e2e-"), "a process is left: {line}");
    }
}

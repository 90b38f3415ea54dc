//! kubectl's verbs, one after the other.

use e2e::{Cluster, Printed, Steps};

use super::BUSYBOX;
use super::workloads::{READY, WEB};

pub fn walk(steps: &mut Steps, cluster: &Cluster) {
    steps.run("apply, diff, edit, server-side apply", || apply_diff_edit(cluster));
    steps.run("explain, api-resources, auth can-i", || explain_and_ask(cluster));
    steps.run("events, watch, jsonpath, sort-by", || watch_and_sort(cluster));
    steps.run("label, annotate, wait, delete", || label_wait_delete(cluster));
    steps.run("cordon, taint, drain", || cordon_taint_drain(cluster));
}

fn apply_diff_edit(cluster: &Cluster) {
    let applied = cluster.kubectl_with(&["apply", "-f", "-"], WEB);
    assert_eq!(applied, "deployment.apps/web configured\n");
    assert_eq!(cluster.kubectl_with(&["apply", "-f", "-"], WEB), "deployment.apps/web unchanged\n");
    cluster.until(&READY, |out| out == "3");
    let four = cluster.dir().join("four.yaml");
    std::fs::write(&four, WEB.replace("replicas: 3", "replicas: 4")).expect("a file is written");
    let four = four.display().to_string();
    let diff = cluster.try_kubectl(&["diff", "-f", &four]);
    assert!(!diff.ok && diff.out.contains("-  replicas: 3") && diff.out.contains("+  replicas: 4"), "{diff:?}");
    let mut edit = cluster.command(&["edit", "deployment", "web"]);
    let edited: Printed =
        edit.env("EDITOR", "sed -i s/replicas:.3/replicas:\\ 2/").output().expect("kubectl runs").into();
    assert!(edited.ok && edited.out.contains("deployment.apps/web edited"), "{edited:?}");
    cluster.until(&READY, |out| out == "2");
    let refused = cluster.try_kubectl(&["apply", "--server-side", "-f", &four]);
    assert!(!refused.ok && refused.err.contains("conflict"), "{refused:?}");
    assert!(refused.err.contains(".spec.replicas"), "{refused:?}");
    let forced = cluster.kubectl(&["apply", "--server-side", "--force-conflicts", "-f", &four]);
    assert_eq!(forced, "deployment.apps/web serverside-applied\n");
    cluster.until(&READY, |out| out == "4");
}

fn explain_and_ask(cluster: &Cluster) {
    let explained = cluster.kubectl(&["explain", "deployment.spec.strategy"]);
    for part in ["KIND:       Deployment", "FIELD: strategy <DeploymentStrategy>", "rollingUpdate", "Recreate"] {
        assert!(explained.contains(part), "{part} is missing:\n{explained}");
    }
    let resources = cluster.kubectl(&["api-resources"]);
    for part in ["deployments", "deploy", "apps/v1", "endpointslices", "priorityclasses", "pc"] {
        assert!(resources.contains(part), "{part} is missing:\n{resources}");
    }
    assert_eq!(cluster.kubectl(&["auth", "can-i", "create", "pods"]), "yes\n");
    let list = cluster.kubectl(&["auth", "can-i", "--list"]);
    assert!(list.contains("*.*") && list.contains("[*]"), "{list}");
    let other = cluster.try_kubectl(&["auth", "can-i", "create", "pods", "--as=nobody"]);
    assert!(!other.ok && other.out == "no\n", "{other:?}");
}

fn watch_and_sort(cluster: &Cluster) {
    for args in [&["events"][..], &["get", "events"]] {
        let events = cluster.kubectl(args);
        assert!(events.contains("pod/hello") || events.contains("Pod/hello"), "{events}");
        assert!(events.contains("Successfully assigned default/hello"), "{events}");
    }
    let watch = cluster.beside(&["get", "configmaps", "-w"]);
    watch.until(|shown| shown.contains("kube-root-ca.crt"));
    cluster.kubectl(&["create", "configmap", "seen", "--from-literal=a=b"]);
    watch.until(|shown| shown.contains("seen"));
    cluster.kubectl(&["delete", "configmap", "seen"]);
    let name = cluster.kubectl(&["get", "pod", "hello", "-o", "jsonpath={.metadata.name}"]);
    assert_eq!(name, "hello");
    let sorted = cluster.kubectl(&["get", "pods", "-A", "--sort-by=.metadata.name", "--no-headers"]);
    let names: Vec<&str> = sorted.lines().filter_map(|line| line.split_whitespace().nth(1)).collect();
    assert!(names.is_sorted() && names.len() > 6, "{sorted}");
}

fn label_wait_delete(cluster: &Cluster) {
    cluster.kubectl(&["label", "pod", "hello", "tier=front"]);
    assert_eq!(cluster.kubectl(&["get", "pods", "-l", "tier=front", "-o", "name"]), "pod/hello\n");
    cluster.kubectl(&["label", "pod", "hello", "tier-"]);
    cluster.kubectl(&["annotate", "pod", "hello", "note=seen"]);
    assert!(cluster.kubectl(&["describe", "pod", "hello"]).contains("note: seen"));
    let image = format!("--image={BUSYBOX}");
    cluster.kubectl(&["create", "job", "once", &image, "--", "echo", "done"]);
    cluster.kubectl(&["wait", "--for=condition=Complete", "job/once", "--timeout=60s"]);
    let table = cluster.kubectl(&["get", "job", "once"]);
    assert!(table.contains("COMPLETIONS") && table.contains("1/1"), "{table}");
    assert_eq!(cluster.kubectl(&["delete", "job", "once"]).trim(), "job.batch \"once\" deleted");
}

fn cordon_taint_drain(cluster: &Cluster) {
    let node = cluster.kubectl(&["get", "nodes", "-o", "jsonpath={.items[0].metadata.name}"]);
    cluster.kubectl(&["cordon", &node]);
    assert!(cluster.kubectl(&["get", "nodes"]).contains("Ready,SchedulingDisabled"));
    let image = format!("--image={BUSYBOX}");
    cluster.kubectl(&["run", "waits", &image, "--", "sleep", "3600"]);
    let unfit = "0/1 nodes are available: 1 node(s) were unschedulable.";
    cluster.until(&["describe", "pod", "waits"], |out| out.contains("FailedScheduling") && out.contains(unfit));
    cluster.kubectl(&["uncordon", &node]);
    cluster.kubectl(&["wait", "--for=condition=Ready", "pod/waits", "--timeout=60s"]);
    cluster.kubectl(&["taint", "nodes", &node, "walk=through:NoExecute"]);
    cluster.until_fails(&["get", "pod", "waits"]);
    cluster.kubectl(&["taint", "nodes", &node, "walk-"]);
    cluster.until(&READY, |out| out == "4");
    let drain = ["drain", &node, "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=90s"];
    let drained = cluster.kubectl(&drain);
    assert!(drained.contains("drained"), "{drained}");
    cluster.kubectl(&["uncordon", &node]);
    cluster.until(&READY, |out| out == "4");
    cluster.kubectl(&["rollout", "status", "-n", "kube-system", "deployment/kube-dns", "--timeout=60s"]);
}

//! Into containers and out of them: log, exec, attach, cp, port-forward, debug.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use e2e::{Cluster, Steps};

use super::BUSYBOX;

pub fn walk(steps: &mut Steps, cluster: &Cluster) {
    steps.run("logs, tail, since, timestamps, follow", || logs(cluster));
    steps.run("logs --previous", || logs_of_the_previous(cluster));
    steps.run("exec, with input, exit code, terminal", || exec(cluster));
    steps.run("attach and run -i", || attach(cluster));
    steps.run("cp, both ways", || copy(cluster));
    steps.run("port-forward", || port_forward(cluster));
    steps.run("debug with an ephemeral container", || debug(cluster));
    steps.run("proxy to a pod, a service, a node", || proxy(cluster));
}

fn logs(cluster: &Cluster) {
    let all = cluster.until(&["logs", "hello"], |out| out.contains("tick"));
    // Two pipes lead to the log: which of them is read first is the runtime's affair.
    for line in ["hello there\n", "a complaint\n"] {
        assert!(all.contains(line), "{line:?} is missing: {all}");
    }
    let tail = cluster.kubectl(&["logs", "hello", "--tail=1"]);
    assert_eq!(tail, "tick\n");
    let stamped = cluster.kubectl(&["logs", "hello", "--timestamps", "--tail=1"]);
    assert!(stamped.starts_with("20") && stamped.contains("Z tick"), "{stamped}");
    assert!(cluster.kubectl(&["logs", "hello", "--since=1h"]).contains("hello there"));
    cluster.until(&["logs", "hello", "--since=2s"], |out| !out.contains("hello there"));
    let follow = cluster.beside(&["logs", "-f", "hello", "--tail=1"]);
    follow.until(|shown| shown.matches("tick").count() >= 3);
    let printed = cluster.try_kubectl(&["logs", "hello", "-c", "nobody"]);
    assert!(!printed.ok && printed.err.contains("container nobody is not valid for pod hello"), "{printed:?}");
}

fn logs_of_the_previous(cluster: &Cluster) {
    let image = format!("--image={BUSYBOX}");
    cluster.kubectl(&["run", "fleeting", &image, "--", "sh", "-c", "echo I was here; sleep 1; exit 3"]);
    let count = "jsonpath={.status.containerStatuses[0].restartCount}";
    cluster.until(&["get", "pod", "fleeting", "-o", count], |out| !out.is_empty() && out != "0");
    let printed = cluster.until(&["logs", "fleeting", "--previous"], |out| !out.is_empty());
    assert_eq!(printed, "I was here\n");
    let code = "jsonpath={.status.containerStatuses[0].lastState.terminated.exitCode}";
    cluster.until(&["get", "pod", "fleeting", "-o", code], |out| out == "3");
    cluster.kubectl(&["delete", "pod", "fleeting", "--now"]);
}

fn exec(cluster: &Cluster) {
    let sum = "echo $((6*7)); ls /var/run/secrets/kubernetes.io/serviceaccount";
    let out = cluster.kubectl(&["exec", "hello", "--", "sh", "-c", sum]);
    assert!(out.starts_with("42\n") && out.contains("token") && out.contains("ca.crt"), "{out}");
    let failed = cluster.try_kubectl(&["exec", "hello", "--", "sh", "-c", "exit 7"]);
    assert!(!failed.ok && failed.err.contains("command terminated with exit code 7"), "{failed:?}");
    let echoed = cluster.kubectl_with(&["exec", "-i", "hello", "--", "tr", "a-z", "A-Z"], "shout\n");
    assert_eq!(echoed, "SHOUT\n");
    let split = cluster.try_kubectl(&["exec", "hello", "--", "sh", "-c", "echo out; echo err >&2"]);
    assert!(split.out == "out\n" && split.err.contains("err\n"), "{split:?}");
    let terminal = cluster.on_terminal("kubectl exec -it hello -- sh", "tty\nexit\n");
    assert!(terminal.contains("/dev/pts/0"), "{terminal}");
    // The older protocol, which kubectl before 1.31 speaks and newer ones on request.
    let mut spdy = cluster.command(&["exec", "hello", "--", "echo", "by SPDY"]);
    let spdy: e2e::Printed =
        spdy.env("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", "false").output().expect("kubectl runs").into();
    assert!(spdy.ok && spdy.out == "by SPDY\n", "{spdy:?}");
}

fn attach(cluster: &Cluster) {
    let attached = cluster.beside(&["attach", "hello"]);
    attached.until(|shown| shown.contains("tick"));
    drop(attached);
    let image = format!("--image={BUSYBOX}");
    let run =
        ["run", "parrot", "-i", "--rm", "--restart=Never", "--quiet", &image, "--", "sh", "-c", "read x; echo said $x"];
    let out = cluster.kubectl_with(&run, "polly\n");
    assert!(out.contains("said polly"), "{out}");
    let gone = cluster.try_kubectl(&["get", "pod", "parrot"]);
    assert!(!gone.ok && gone.err.contains("NotFound"), "{gone:?}");
}

fn copy(cluster: &Cluster) {
    let here = cluster.dir().join("copied");
    std::fs::write(&here, "carried over\n".repeat(20_000)).expect("a file is written");
    let here = here.display().to_string();
    cluster.kubectl(&["cp", &here, "hello:/tmp/copied"]);
    assert_eq!(cluster.kubectl(&["exec", "hello", "--", "wc", "-l", "/tmp/copied"]), "20000 /tmp/copied\n");
    let back = format!("{here}.back");
    cluster.kubectl(&["cp", "hello:/tmp/copied", &back]);
    let (sent, came) = (std::fs::read(&here).expect("it is there"), std::fs::read(&back).expect("it came back"));
    assert!(sent == came, "{} bytes came back of {}", came.len(), sent.len());
}

fn get(stream: &mut TcpStream) -> String {
    stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout can be set");
    stream.write_all(b"GET /index.html HTTP/1.0\r\n\r\n").expect("a request is sent");
    let mut answer = String::new();
    let _until_close = stream.read_to_string(&mut answer);
    answer
}

fn port_forward(cluster: &Cluster) {
    for websockets in ["true", "false"] {
        let mut command = cluster.command(&["port-forward", "pod/hello", ":8080", "--address=127.0.0.1"]);
        command.env("KUBECTL_PORT_FORWARD_WEBSOCKETS", websockets);
        let forward = e2e::Beside::start(command);
        let shown = forward.until(|shown| shown.contains("Forwarding from"));
        let address = shown.split_whitespace().find(|w| w.starts_with("127.0.0.1:")).expect("an address is shown");
        for _ in 0..3 {
            let mut stream = TcpStream::connect(address).expect("the port is open");
            let answer = get(&mut stream);
            assert!(answer.ends_with("it is served\n"), "{answer}\n{}", forward.shown());
        }
    }
}

fn debug(cluster: &Cluster) {
    let image = format!("--image={BUSYBOX}");
    let script = "echo from beside; sleep 600";
    cluster.kubectl(&["debug", "hello", &image, "-c", "looker", "--", "sh", "-c", script]);
    let running = "jsonpath={.status.ephemeralContainerStatuses[0].state.running.startedAt}";
    cluster.until(&["get", "pod", "hello", "-o", running], |out| !out.is_empty());
    cluster.until(&["logs", "hello", "-c", "looker"], |out| out == "from beside\n");
    let seen = cluster.kubectl(&["exec", "hello", "-c", "looker", "--", "wget", "-q", "-O-", "http://127.0.0.1:8080/"]);
    assert_eq!(seen, "it is served\n");
}

fn proxy(cluster: &Cluster) {
    let page = cluster.kubectl(&["get", "--raw", "/api/v1/namespaces/default/pods/hello:8080/proxy/index.html"]);
    assert_eq!(page, "it is served\n");
    cluster.kubectl(&["expose", "pod", "hello", "--port=80", "--target-port=8080"]);
    let path = "/api/v1/namespaces/default/services/hello:80/proxy/index.html";
    cluster.until(&["get", "--raw", path], |out| out == "it is served\n");
    cluster.kubectl(&["delete", "service", "hello"]);
    let nodes = cluster.kubectl(&["get", "nodes", "-o", "jsonpath={.items[*].metadata.name}"]);
    let path = format!("/api/v1/nodes/{}/proxy/stats/summary", nodes.trim());
    assert!(cluster.kubectl(&["get", "--raw", &path]).contains("\"nodeName\""));
}

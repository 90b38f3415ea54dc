//! The kubelet with a real containerd and runc, without an API server: static pods from manifest to removal.

mod world;

use kubelet::config::Config;
use kubelet::probes::http::{Target, get};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use world::{IMAGE, World};

#[test]
fn static_pods_live_from_manifest_to_removal() {
    world::inside("inner_static_pods");
}

#[test]
#[ignore = "runs inside the world that the outer test makes"]
fn inner_static_pods() {
    let Some(world) = World::enter() else { return };
    base::tls::install();
    base::logging::init(base::logging::Options { verbosity: 4, json: false });
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let node = Node::new(&world);
        volumes_environment_and_files(&node).await;
        crash_loops_and_restarts(&node).await;
        probes_and_hooks(&node).await;
        readiness_follows_the_start_at_once(&node).await;
        a_manifest_that_comes_back_while_its_pod_ends_runs_again(&node).await;
        sidecars_and_inits(&node).await;
        restart_leaves_containers_alone(&node).await;
        removal_leaves_nothing(&node).await;
    });
}

/// A kubelet under test.
struct Node<'a> {
    world: &'a World,
    manifests: PathBuf,
    running: std::cell::RefCell<Option<Running>>,
}

struct Running {
    stop: CancellationToken,
    task: JoinHandle<()>,
}

const PORT: u16 = 10250;

impl<'a> Node<'a> {
    fn new(world: &'a World) -> Self {
        let manifests = world.dir.join("manifests");
        fs::create_dir_all(&manifests).unwrap();
        let mut config = Config {
            static_pod_path: manifests.display().to_string(),
            container_runtime_endpoint: world.endpoint(),
            pod_logs_dir: world.dir.join("logs/pods").display().to_string(),
            fail_cgroup_v1: false,
            fail_swap_on: false,
            cgroup_root: format!("/{}", world.cgroup_root),
            cluster_dns: vec!["10.96.0.10".into()],
            cluster_domain: "cluster.local".into(),
            port: PORT,
            // The test's machine may be short of anything; that is not what is tested.
            eviction_hard: Some(Default::default()),
            ..Default::default()
        };
        config.authentication.anonymous.enabled = true;
        config.authentication.webhook.enabled = false;
        config.authorization.mode = "AlwaysAllow".into();
        config.crash_loop_back_off.max_container_restart_period = base::fields::Span::secs(1);
        fs::write(world.dir.join("config.json"), serde_json::to_string(&config).unwrap()).unwrap();
        let node = Self { world, manifests, running: Default::default() };
        node.start();
        node
    }

    fn start(&self) {
        let dir = &self.world.dir;
        let args = [
            format!("--config={}", dir.join("config.json").display()),
            format!("--root-dir={}", dir.join("kubelet").display()),
            "--hostname-override=node1".into(),
            "--node-ip=127.0.0.1".into(),
        ];
        let flags = base::flags::parse(kubelet::command(), args.map(Into::into)).unwrap();
        let stop = CancellationToken::new();
        let shutdown = stop.clone();
        let task = tokio::spawn(async move { kubelet::run(&flags, shutdown).await.unwrap() });
        *self.running.borrow_mut() = Some(Running { stop, task });
    }

    async fn stop(&self) {
        let Running { stop, task } = self.running.borrow_mut().take().unwrap();
        stop.cancel();
        task.await.unwrap();
    }

    fn put(&self, name: &str, spec: Value) {
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}}, "spec": spec});
        let path = self.manifests.join(format!("{name}.yaml"));
        fs::write(path.with_extension("new"), "").unwrap();
        fs::remove_file(path.with_extension("new")).unwrap();
        fs::write(path, pod.to_string()).unwrap();
    }

    fn remove(&self, name: &str) {
        fs::remove_file(self.manifests.join(format!("{name}.yaml"))).unwrap();
    }

    async fn ask(&self, path: &str) -> Option<(u16, String)> {
        let target = Target {
            https: true,
            host: "127.0.0.1".into(),
            port: PORT,
            path: path.into(),
            headers: Default::default(),
        };
        let answer = get(&target, Duration::from_secs(10)).await.ok()?;
        Some((answer.status, answer.body))
    }

    /// The pod as `/pods` shows it. Long lists would be cut: each pod is asked for by name.
    async fn pod(&self, name: &str) -> Value {
        let path = "/pods";
        let mut text = String::new();
        if let Ok(body) = whole(path).await {
            text = body;
        }
        let list: Value = serde_json::from_str(&text).unwrap_or_default();
        let items = list["items"].as_array().cloned().unwrap_or_default();
        items.into_iter().find(|pod| pod["metadata"]["name"] == format!("{name}-node1")).unwrap_or_default()
    }

    async fn until(&self, name: &str, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let pod = self.pod(name).await;
            if holds(&pod) {
                return pod;
            }
            if Instant::now() > end {
                panic!("gave up waiting until {name} {what}; it is {:#}\n{}", pod["status"], self.world.log());
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    async fn ready(&self, name: &str) -> Value {
        self.until(name, "is ready", |pod| condition(pod, "Ready") == "True").await
    }

    async fn gone(&self, name: &str) {
        self.until(name, "is gone", Value::is_null).await;
    }

    /// What a container has written.
    async fn log(&self, name: &str, container: &str, query: &str) -> String {
        let path = format!("/containerLogs/default/{name}-node1/{container}{query}");
        self.ask(&path).await.map(|(_, body)| body).unwrap_or_default()
    }

    /// Runs a command in a container.
    async fn run(&self, name: &str, container: &str, command: &str) -> String {
        let path = format!("/run/default/{name}-node1/{container}?cmd={}", command.replace(' ', "%20"));
        self.ask(&path).await.map(|(_, body)| body).unwrap_or_default()
    }
}

/// The whole body of an answer, however long it is.
async fn whole(path: &str) -> Result<String, kubelet_error::Error> {
    use http_body_util::{BodyExt, Empty};
    let config = rustls::ClientConfig::builder_with_provider(base::tls::provider())
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(std::sync::Arc::new(Any))
        .with_no_client_auth();
    let stream = tokio::net::TcpStream::connect(("127.0.0.1", PORT)).await?;
    let connector = tokio_rustls::TlsConnector::from(std::sync::Arc::new(config));
    let stream = connector.connect("localhost".try_into()?, stream).await?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(hyper_util::rt::TokioIo::new(stream)).await?;
    let running = tokio::spawn(connection);
    let request = http::Request::get(path).header("host", "localhost").body(Empty::<bytes::Bytes>::new())?;
    let body = sender.send_request(request).await?.into_body().collect().await?.to_bytes();
    running.abort();
    Ok(String::from_utf8(body.to_vec())?)
}

mod kubelet_error {
    pub type Error = Box<dyn std::error::Error + Send + Sync>;
}

#[derive(Debug)]
struct Any;

impl rustls::client::danger::ServerCertVerifier for Any {
    fn verify_server_cert(
        &self, _: &rustls_pki_types::CertificateDer<'_>, _: &[rustls_pki_types::CertificateDer<'_>],
        _: &rustls_pki_types::ServerName<'_>, _: &[u8], _: rustls_pki_types::UnixTime,
    ) -> Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
        Ok(rustls::client::danger::ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self, _: &[u8], _: &rustls_pki_types::CertificateDer<'_>, _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self, _: &[u8], _: &rustls_pki_types::CertificateDer<'_>, _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        base::tls::provider().signature_verification_algorithms.supported_schemes()
    }
}

fn condition(pod: &Value, kind: &str) -> String {
    let list = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let found = list.into_iter().find(|condition| condition["type"] == kind).unwrap_or_default();
    found["status"].as_str().unwrap_or_default().to_owned()
}

fn shell(script: &str) -> Value {
    json!({"name": "c", "image": IMAGE, "imagePullPolicy": "IfNotPresent", "command": ["sh", "-c", script]})
}

fn with(mut base: Value, more: Value) -> Value {
    for (key, value) in more.as_object().unwrap() {
        base[key] = value.clone();
    }
    base
}

const STAY: &str = "trap 'exit 0' TERM; while true; do sleep 0.1; done";

async fn volumes_environment_and_files(node: &Node<'_>) {
    let host = node.world.dir.join("host");
    fs::create_dir_all(&host).unwrap();
    let script = format!(
        "echo $GREETING $POD; cat /etc/hosts /etc/resolv.conf; hostname; echo kept > /disk/f; echo sub > /part/g; stat -c %a /memory; id -G; {STAY}"
    );
    let container = with(
        shell(&script),
        json!({
            "env": [{"name": "A", "value": "hi"}, {"name": "GREETING", "value": "$(A)-$(B)"},
                    {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
            "resources": {"requests": {"cpu": "100m"}, "limits": {"memory": "64Mi"}},
            "volumeMounts": [{"name": "disk", "mountPath": "/disk"}, {"name": "memory", "mountPath": "/memory"},
                {"name": "host", "mountPath": "/host"}, {"name": "disk", "mountPath": "/part", "subPath": "a/b"}]
        }),
    );
    node.put(
        "files",
        json!({"containers": [container], "hostname": "box", "securityContext": {"fsGroup": 1234},
            "hostAliases": [{"ip": "1.2.3.4", "hostnames": ["alias"]}],
            "volumes": [{"name": "disk"}, {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
                {"name": "host", "hostPath": {"path": host.join("made"), "type": "DirectoryOrCreate"}}]}),
    );
    let pod = node.ready("files").await;
    let status = &pod["status"];
    assert_eq!(status["phase"], "Running");
    assert_eq!(status["qosClass"], "Burstable");
    let ip = status["podIP"].as_str().unwrap();
    let text = node.log("files", "c", "").await;
    assert!(text.starts_with("hi-$(B) files-node1\n# Kubernetes-managed hosts file.\n"), "{text}");
    for line in [format!("{ip}\tbox\n"), "1.2.3.4\talias\n".into(), "nameserver 10.96.0.10\n".into(), "box\n".into()] {
        assert!(text.contains(&line), "{line:?} in {text}");
    }
    assert!(text.contains("search default.svc.cluster.local svc.cluster.local cluster.local"), "{text}");
    assert!(text.contains("2777\n"), "an emptyDir belongs to the pod's group: {text}");
    let uid = pod["metadata"]["uid"].as_str().unwrap();
    let dir = node.world.dir.join("kubelet/pods").join(uid);
    assert_eq!(fs::read_to_string(dir.join("volumes/kubernetes.io~empty-dir/disk/f")).unwrap(), "kept\n");
    assert_eq!(fs::read_to_string(dir.join("volumes/kubernetes.io~empty-dir/disk/a/b/g")).unwrap(), "sub\n");
    assert!(host.join("made").is_dir());
    assert_eq!(node.log("files", "c", "?tailLines=1&timestamps=true").await.len() > 31, true);
    let groups = node.world.cgroup_root.clone();
    let memory = Path::new("/sys/fs/cgroup/memory").join(&groups).join("kubepods/burstable").join(format!("pod{uid}"));
    if memory.exists() {
        let limit = fs::read_to_string(memory.join("memory.limit_in_bytes")).unwrap();
        assert_eq!(limit.trim(), (64 << 20).to_string());
    }
    assert_eq!(node.run("files", "c", "echo through").await, "through\n");
}

async fn crash_loops_and_restarts(node: &Node<'_>) {
    node.put(
        "crash",
        json!({"containers": [with(shell("echo last words > /dev/termination-log; exit 3"), json!({}))]}),
    );
    let pod = node
        .until("crash", "has crashed twice", |pod| {
            pod["status"]["containerStatuses"][0]["restartCount"].as_i64().is_some_and(|count| count >= 2)
        })
        .await;
    let last = &pod["status"]["containerStatuses"][0]["lastState"]["terminated"];
    assert_eq!((&last["exitCode"], &last["message"]), (&json!(3), &json!("last words\n")));
    node.until("crash", "waits", |pod| {
        pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"] == "CrashLoopBackOff"
    })
    .await;
    node.remove("crash");
    node.gone("crash").await;
}

async fn probes_and_hooks(node: &Node<'_>) {
    let script = format!("touch /tmp/live; {STAY}");
    let container = with(
        shell(&script),
        json!({
            "lifecycle": {"postStart": {"exec": {"command": ["touch", "/tmp/hooked"]}},
                          "preStop": {"exec": {"command": ["sh", "-c", "echo bye > /shared/bye"]}}},
            "livenessProbe": {"exec": {"command": ["test", "-e", "/tmp/live"]}, "periodSeconds": 1, "failureThreshold": 1},
            "readinessProbe": {"exec": {"command": ["test", "-e", "/tmp/hooked"]}, "periodSeconds": 1},
            "volumeMounts": [{"name": "shared", "mountPath": "/shared"}]
        }),
    );
    let shared = node.world.dir.join("shared");
    fs::create_dir_all(&shared).unwrap();
    node.put(
        "probed",
        json!({"containers": [container], "terminationGracePeriodSeconds": 5,
        "volumes": [{"name": "shared", "hostPath": {"path": shared}}]}),
    );
    node.ready("probed").await;
    node.run("probed", "c", "rm /tmp/live").await;
    node.run("probed", "c", "busybox rm /tmp/live").await;
    let restarted = node
        .until("probed", "is restarted by its liveness probe", |pod| {
            pod["status"]["containerStatuses"][0]["restartCount"] == 1
        })
        .await;
    assert!(restarted["status"]["containerStatuses"][0]["lastState"]["terminated"].is_object());
    node.ready("probed").await;
    // The liveness probe's restart has stopped the container once.
    assert_eq!(fs::read_to_string(shared.join("bye")).unwrap(), "bye\n", "preStop runs before the end");
    fs::remove_file(shared.join("bye")).unwrap();
    node.remove("probed");
    node.gone("probed").await;
    let said_bye = |_: &Value| fs::read_to_string(shared.join("bye")).is_ok_and(|text| text == "bye\n");
    node.until("probed", "has run preStop on its removal, too", said_bye).await;
}

/// The manifest is the same, so the pod is: it must not be taken for the one that is on its way out.
async fn a_manifest_that_comes_back_while_its_pod_ends_runs_again(node: &Node<'_>) {
    let slow = json!({"preStop": {"exec": {"command": ["sh", "-c", "busybox sleep 2"]}}});
    let spec =
        json!({"containers": [with(shell(STAY), json!({"lifecycle": slow}))], "terminationGracePeriodSeconds": 4});
    node.put("back", spec.clone());
    let id = |pod: &Value| pod["status"]["containerStatuses"][0]["containerID"].clone();
    let first = id(&node.ready("back").await);
    node.remove("back");
    node.gone("back").await;
    node.put("back", spec);
    node.until("back", "runs anew", |pod| pod["status"]["phase"] == "Running" && id(pod) != first).await;
    node.remove("back");
    node.gone("back").await;
}

/// Readiness is asked as soon as the startup probe has held, long before its period (which no wait here outlasts) ends.
async fn readiness_follows_the_start_at_once(node: &Node<'_>) {
    let ask = json!({"command": ["true"]});
    let container = with(
        shell(STAY),
        json!({"startupProbe": {"exec": ask, "periodSeconds": 1, "failureThreshold": 60, "initialDelaySeconds": 2},
               "readinessProbe": {"exec": ask, "periodSeconds": 3600}}),
    );
    node.put("slow-start", json!({"containers": [container], "terminationGracePeriodSeconds": 1}));
    node.ready("slow-start").await;
    node.remove("slow-start");
    node.gone("slow-start").await;
}

async fn sidecars_and_inits(node: &Node<'_>) {
    let init = |name: &str, script: &str, more: Value| with(with(shell(script), json!({"name": name})), more);
    node.put(
        "steps",
        json!({"restartPolicy": "Never", "terminationGracePeriodSeconds": 3,
            "initContainers": [
                init("side", &format!("echo side >> /w/order; {STAY}"), json!({"restartPolicy": "Always", "volumeMounts": [{"name": "w", "mountPath": "/w"}]})),
                init("first", "echo first >> /w/order", json!({"volumeMounts": [{"name": "w", "mountPath": "/w"}]})),
            ],
            "containers": [with(shell("echo main >> /w/order; cat /w/order"), json!({"volumeMounts": [{"name": "w", "mountPath": "/w"}]}))],
            "volumes": [{"name": "w", "emptyDir": {}}]}),
    );
    let pod = node.until("steps", "has ended", |pod| pod["status"]["phase"] == "Succeeded").await;
    assert_eq!(condition(&pod, "Initialized"), "True");
    assert_eq!(pod["status"]["initContainerStatuses"][1]["state"]["terminated"]["reason"], "Completed");
    assert_eq!(node.log("steps", "c", "").await, "side\nfirst\nmain\n");
    node.remove("steps");
    node.gone("steps").await;
}

async fn restart_leaves_containers_alone(node: &Node<'_>) {
    let before = node.pod("files").await["status"]["containerStatuses"][0].clone();
    node.stop().await;
    node.start();
    let after = node.ready("files").await["status"]["containerStatuses"][0].clone();
    assert_eq!(before["containerID"], after["containerID"]);
    assert_eq!(before["restartCount"], after["restartCount"]);
    // What changed while the kubelet was away is seen when it is back.
    node.stop().await;
    node.remove("files");
    node.start();
    node.until("files", "is gone", Value::is_null).await;
}

async fn removal_leaves_nothing(node: &Node<'_>) {
    let world = node.world;
    let root = world.dir.join("kubelet/pods");
    let empty = |dir: &Path| fs::read_dir(dir).map_or(true, |mut entries| entries.next().is_none());
    world_until(|| empty(&root)).await;
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(&root.display().to_string()), "{mounts}");
    let groups = Path::new("/sys/fs/cgroup/memory").join(&world.cgroup_root).join("kubepods");
    let left = || -> Vec<String> {
        let dirs = ["", "burstable", "besteffort"].map(|class| groups.join(class));
        let entries = dirs.iter().flat_map(|dir| fs::read_dir(dir).into_iter().flatten().flatten());
        entries.map(|e| e.file_name().to_string_lossy().into_owned()).filter(|name| name.starts_with("pod")).collect()
    };
    world_until(|| left().is_empty()).await;
    node.stop().await;
}

async fn world_until(holds: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < end, "leftovers of removed pods stay");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

//! A small world for a kubelet: namespaces of its own, a containerd, images made from files, a network.
//!
//! The outer test starts its own program again inside fresh net, mount and pid namespaces. When that ends, whatever ran
//! there is killed by the kernel and its mounts are gone; only control groups and the directory are left to remove.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The image of the sandboxes.
pub const PAUSE: &str = "test.invalid/pause:1";
/// The image of the containers: busybox.
pub const IMAGE: &str = "test.invalid/box:1";

const INSIDE: &str = "KUBELET_TEST_WORLD";

/// What is missing here to run containers, if anything is.
fn missing() -> Option<String> {
    if !nix::unistd::geteuid().is_root() {
        return Some("root".into());
    }
    let needed = [
        "/usr/bin/containerd",
        "/usr/bin/ctr",
        "/usr/sbin/runc",
        "/bin/busybox",
        "/usr/lib/cni/bridge",
        "/usr/bin/unshare",
        "/usr/bin/tar",
    ];
    needed.iter().find(|path| !Path::new(path).exists()).map(|path| (*path).to_owned())
}

/// Runs a test of this program in a world of its own, or says why it can't.
pub fn inside(test: &str) {
    if let Some(missing) = missing() {
        println!("SKIPPED: this test needs {missing}");
        return;
    }
    let dir = std::env::temp_dir().join(format!("kubelet-world-{}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    let root = format!("kubelet-test-{}", std::process::id());
    let _cleaner = Cleaner { dir: dir.clone(), root: root.clone() };
    let status = Command::new("unshare")
        .args(["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--"])
        .arg(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", test, "--nocapture", "--test-threads=1"])
        .env(INSIDE, format!("{}:{root}", dir.display()))
        .status()
        .unwrap();
    assert!(status.success(), "the test inside failed: {status}");
}

struct Cleaner {
    dir: PathBuf,
    root: String,
}

impl Drop for Cleaner {
    fn drop(&mut self) {
        let controllers = fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten();
        let mut tops: Vec<PathBuf> = controllers.map(|entry| entry.path().join(&self.root)).collect();
        tops.push(Path::new("/sys/fs/cgroup").join(&self.root));
        let end = Instant::now() + Duration::from_secs(10);
        while !tops.iter().all(|top| remove_groups(top)) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(50));
        }
        let _ = fs::remove_dir_all(&self.dir);
    }
}

fn remove_groups(top: &Path) -> bool {
    for entry in fs::read_dir(top).into_iter().flatten().flatten() {
        if entry.path().is_dir() {
            remove_groups(&entry.path());
        }
    }
    !top.exists() || fs::remove_dir(top).is_ok()
}

/// The inside of a world.
pub struct World {
    /// Directory for everything.
    pub dir: PathBuf,
    /// Name of the control group above all pods.
    pub cgroup_root: String,
    containerd: Child,
}

fn run(program: &str, args: &[&str]) {
    let out = Command::new(program).args(args).output().unwrap();
    assert!(out.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&out.stderr));
}

impl World {
    /// Makes the world; `None` when this is not running inside of one.
    pub fn enter() -> Option<Self> {
        let inside = std::env::var(INSIDE).ok()?;
        let (dir, cgroup_root) = inside.rsplit_once(':')?;
        let dir = PathBuf::from(dir);
        // Mounts of the kubelet must reach containerd and its containers, and nobody outside.
        run("mount", &["--make-rshared", "/"]);
        run("ip", &["link", "set", "lo", "up"]);
        run("mount", &["-t", "tmpfs", "tmpfs", "/run"]);
        fs::create_dir_all(dir.join("cni")).unwrap();
        fs::write(dir.join("cni/10-test.conflist"), network(&dir)).unwrap();
        fs::write(dir.join("containerd.toml"), containerd_config(&dir)).unwrap();
        let log = fs::File::create(dir.join("containerd.log")).unwrap();
        let containerd = Command::new("containerd")
            .arg("--config")
            .arg(dir.join("containerd.toml"))
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let world = Self { dir, cgroup_root: cgroup_root.to_owned(), containerd };
        world.until("containerd answers", || world.ctr(&["version"]));
        world.import(PAUSE, &["/bin/busybox", "sleep", "2000000000"]);
        world.import(IMAGE, &["/bin/sh"]);
        Some(world)
    }

    /// The runtime's endpoint.
    pub fn endpoint(&self) -> String {
        format!("unix://{}", self.dir.join("containerd.sock").display())
    }

    /// Runs containerd's own client; did it succeed?
    pub fn ctr(&self, args: &[&str]) -> bool {
        let socket = self.dir.join("containerd.sock");
        let mut command = Command::new("ctr");
        command.arg("--address").arg(socket).args(["--namespace", "k8s.io"]).args(args);
        command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    }

    /// Waits until something holds, for half a minute at most.
    pub fn until(&self, what: &str, holds: impl Fn() -> bool) {
        let end = Instant::now() + Duration::from_secs(30);
        while !holds() {
            assert!(Instant::now() < end, "gave up waiting until {what}\n{}", self.log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// The end of containerd's log.
    pub fn log(&self) -> String {
        let text = fs::read_to_string(self.dir.join("containerd.log")).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(15)..].join("\n")
    }

    /// Makes an image of busybox with a command and imports it.
    fn import(&self, name: &str, command: &[&str]) {
        let work = self.dir.join(format!("image-{}", name.replace(['/', ':'], "-")));
        let root = work.join("root");
        for dir in ["bin", "tmp", "etc", "proc", "sys", "dev"] {
            fs::create_dir_all(root.join(dir)).unwrap();
        }
        fs::copy("/bin/busybox", root.join("bin/busybox")).unwrap();
        fs::set_permissions(root.join("bin/busybox"), fs::Permissions::from_mode(0o755)).unwrap();
        for applet in [
            "sh", "sleep", "cat", "echo", "ls", "test", "true", "false", "nc", "httpd", "kill", "seq", "touch", "id",
            "hostname", "grep", "stat", "wget",
        ] {
            symlink("busybox", root.join("bin").join(applet)).unwrap();
        }
        let layer = work.join("layer.tar");
        run(
            "tar",
            &[
                "--numeric-owner",
                "--owner=0",
                "--group=0",
                "-C",
                &root.display().to_string(),
                "-cf",
                &layer.display().to_string(),
                ".",
            ],
        );
        let digest = format!("sha256:{:x}", DisplayHex(Sha256::digest(fs::read(&layer).unwrap()).to_vec()));
        let config = json!({
            "architecture": if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" }, "os": "linux",
            "config": {"Cmd": command, "Env": ["PATH=/bin"], "Labels": {"name": name}},
            "rootfs": {"type": "layers", "diff_ids": [digest]}
        });
        fs::write(work.join("config.json"), config.to_string()).unwrap();
        let manifest = json!([{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]);
        fs::write(work.join("manifest.json"), manifest.to_string()).unwrap();
        let archive = work.join("image.tar");
        run(
            "tar",
            &[
                "-C",
                &work.display().to_string(),
                "-cf",
                &archive.display().to_string(),
                "config.json",
                "manifest.json",
                "layer.tar",
            ],
        );
        assert!(self.ctr(&["images", "import", &archive.display().to_string()]), "{}", self.log());
    }
}

struct DisplayHex(Vec<u8>);

impl std::fmt::LowerHex for DisplayHex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // The namespaces' end kills the rest; containerd goes first so that it logs no errors about it.
        let _ = self.containerd.kill();
        let _ = self.containerd.wait();
    }
}

fn network(dir: &Path) -> String {
    let config: Value = json!({
        "cniVersion": "0.4.0", "name": "kubelet-test",
        "plugins": [
            {"type": "bridge", "bridge": "kt0", "isGateway": true, "ipMasq": false, "hairpinMode": true,
             "ipam": {"type": "host-local", "dataDir": dir.join("ipam"), "ranges": [[{"subnet": "10.199.0.0/24"}]],
                      "routes": [{"dst": "0.0.0.0/0"}]}}
        ]
    });
    config.to_string()
}

fn containerd_config(dir: &Path) -> String {
    format!(
        r#"version = 2
root = "{dir}/root"
state = "{dir}/state"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.internal.v1.opt"]
[grpc]
  address = "{dir}/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{dir}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
"#,
        dir = dir.display()
    )
}

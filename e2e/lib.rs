//! Tests that drive stock kubectl against a running cluster, one file per area.
//!
//! ```text
//!   tests.rs ─► one module per area ─► Cluster (started for the test, taken down with it) ─► kubectl, navarch
//! ```
//!
//! Contract: every test has a cluster of its own in a directory of its own, on ports that the system chose, and leaves
//! nothing behind, also when it fails. kubectl comes from the PATH; without it, or without etcd, a test says that it is
//! skipped. Nothing sleeps where it can wait for what it wants to see.

use std::cell::RefCell;
use std::io::Read;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;

/// How long something may take to happen.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Probes until something is seen, and returns it.
///
/// # Panics
/// When it is not seen in time; `what` says what was to be seen, and what was seen last.
pub fn eventually<T>(what: impl Fn() -> String, mut probe: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(seen) = probe() {
            return seen;
        }
        assert!(Instant::now() < end, "{}", what());
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Where the built programs are: beside the test, one folder up.
pub fn program(name: &str) -> PathBuf {
    let me = std::env::current_exe().expect("a test knows its own path");
    let folder = me.parent().and_then(Path::parent).expect("tests are built two folders below the target");
    folder.join(name)
}

/// True when a program is on the PATH.
pub fn have(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

/// What a test needs and the machine lacks, said on standard output; `None` when all is there.
pub fn missing(programs: &[&str]) -> Option<String> {
    let lacking: Vec<&str> = programs.iter().copied().filter(|p| !have(p)).collect();
    if lacking.is_empty() {
        return None;
    }
    let text = format!("skipped: {} not on the PATH", lacking.join(", "));
    println!("{text}");
    Some(text)
}

/// True when this runs as root.
pub fn is_root() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status.lines().any(|line| line.starts_with("Uid:") && line.split_whitespace().nth(2) == Some("0"))
}

/// A cluster of one test.
pub struct Cluster {
    dir: PathBuf,
    /// Started by somebody else, who also ends it.
    borrowed: bool,
}

/// What a command printed.
#[derive(Debug, Clone)]
pub struct Printed {
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
    /// It exited with 0.
    pub ok: bool,
}

impl From<Output> for Printed {
    fn from(output: Output) -> Self {
        Self {
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
            ok: output.status.success(),
        }
    }
}

fn fresh_dir() -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("navarch-e2e-{}-{number}", std::process::id()))
}

impl Cluster {
    /// etcd and the API server as plain processes; `more` are further flags of `navarch up`.
    pub fn control_plane(more: &[&str]) -> Self {
        let cluster = Self { dir: fresh_dir(), borrowed: false };
        let mut args = vec!["up", "--control-plane-only"];
        args.extend(more);
        cluster.navarch(&args);
        cluster
    }

    /// A whole cluster with containers. Takes root, and there can be one on a machine. With `NAVARCH_E2E_DIR` it is the
    /// one that is up in that directory, and stays up.
    pub fn whole() -> Self {
        if let Some(dir) = std::env::var_os("NAVARCH_E2E_DIR") {
            return Self { dir: dir.into(), borrowed: true };
        }
        let cluster = Self { dir: fresh_dir(), borrowed: false };
        println!("{}", cluster.navarch(&["up"]));
        cluster
    }

    /// True when the cluster was there before the test.
    pub fn borrowed(&self) -> bool {
        self.borrowed
    }

    /// Runs `navarch` on this cluster's directory.
    ///
    /// # Panics
    /// When it fails: with what it printed, and the ends of the logs.
    pub fn navarch(&self, args: &[&str]) -> String {
        let mut command = Command::new(program("navarch"));
        let printed: Printed = command.args(args).arg("--dir").arg(&self.dir).output().expect("navarch runs").into();
        assert!(printed.ok, "navarch {args:?}\n{}{}\n{}", printed.out, printed.err, self.logs());
        printed.out
    }

    /// The cluster's directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The ends of all logs.
    pub fn logs(&self) -> String {
        let mut text = String::new();
        for entry in std::fs::read_dir(self.dir.join("log")).into_iter().flatten().flatten() {
            let content = std::fs::read(entry.path()).unwrap_or_default();
            let content = String::from_utf8_lossy(&content);
            let lines: Vec<&str> = content.lines().collect();
            let end = lines[lines.len().saturating_sub(15)..].join("\n");
            text.push_str(&format!("== {}\n{end}\n", entry.path().display()));
        }
        text
    }

    /// kubectl, pointed at this cluster, not yet run.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new("kubectl");
        command.args(args);
        command.env("KUBECONFIG", self.dir.join("kubernetes/admin.conf"));
        // Discovery is cached by address; another test's cluster may have had the same.
        command.env("HOME", &self.dir).env("KUBECACHEDIR", self.dir.join("kubectl-cache"));
        command.stdin(Stdio::null());
        command
    }

    /// Runs kubectl, whatever comes of it.
    pub fn try_kubectl(&self, args: &[&str]) -> Printed {
        self.command(args).output().expect("kubectl runs").into()
    }

    /// Runs kubectl and returns its output.
    ///
    /// # Panics
    /// When it fails.
    pub fn kubectl(&self, args: &[&str]) -> String {
        let printed = self.try_kubectl(args);
        assert!(printed.ok, "kubectl {args:?}\n{}{}", printed.out, printed.err);
        printed.out
    }

    /// Runs kubectl with text on its standard input.
    ///
    /// # Panics
    /// When it fails.
    pub fn kubectl_with(&self, args: &[&str], input: &str) -> String {
        use std::io::Write;
        let mut command = self.command(args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("kubectl runs");
        child.stdin.take().expect("stdin is piped").write_all(input.as_bytes()).expect("kubectl reads");
        let printed: Printed = child.wait_with_output().expect("kubectl ends").into();
        assert!(printed.ok, "kubectl {args:?}\n{}{}", printed.out, printed.err);
        printed.out
    }

    /// Starts kubectl beside the test.
    ///
    /// # Panics
    /// When it can't be started.
    pub fn beside(&self, args: &[&str]) -> Beside {
        Beside::start(self.command(args))
    }

    /// Runs kubectl on a terminal, as a person does; returns what the terminal showed.
    ///
    /// # Panics
    /// When it fails.
    pub fn on_terminal(&self, line: &str, typed: &str) -> String {
        use std::io::Write;
        let mut command = self.command(&[]);
        let environment: Vec<_> = command.get_envs().map(|(k, v)| (k.to_owned(), v.map(ToOwned::to_owned))).collect();
        command = Command::new("script");
        command.args(["-qec", line, "/dev/null"]).env("TERM", "xterm");
        for (key, value) in environment {
            command.env(key, value.unwrap_or_default());
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("script runs");
        child.stdin.take().expect("stdin is piped").write_all(typed.as_bytes()).expect("the terminal reads");
        let printed: Printed = child.wait_with_output().expect("script ends").into();
        assert!(printed.ok, "{line}\n{}{}", printed.out, printed.err);
        printed.out
    }

    /// An object as JSON.
    ///
    /// # Panics
    /// When there is none.
    pub fn object(&self, args: &[&str]) -> Value {
        let mut all = vec!["get", "-o", "json"];
        all.extend(args);
        serde_json::from_str(&self.kubectl(&all)).expect("kubectl prints JSON")
    }

    /// Polls kubectl until it fails.
    ///
    /// # Panics
    /// When it does not in time.
    pub fn until_fails(&self, args: &[&str]) {
        let what = || format!("kubectl {args:?} never failed");
        eventually(what, || (!self.try_kubectl(args).ok).then_some(()));
    }

    /// Polls kubectl until its output satisfies a condition.
    ///
    /// # Panics
    /// When it does not in time; with what it printed last.
    pub fn until(&self, args: &[&str], holds: impl Fn(&str) -> bool) -> String {
        let last = RefCell::new(String::new());
        let what = || format!("kubectl {args:?} never showed it\n{}", last.borrow());
        eventually(what, || {
            let Printed { out, err, ok } = self.try_kubectl(args);
            *last.borrow_mut() = format!("{out}{err}");
            (ok && holds(&out)).then_some(out)
        })
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.logs());
        }
        if self.borrowed {
            return;
        }
        let down = Command::new(program("navarch")).arg("down").arg("--dir").arg(&self.dir).output();
        if !down.is_ok_and(|output| output.status.success()) {
            eprintln!("{} could not be taken down", self.dir.display());
        }
    }
}

/// A command that runs beside the test; it ends with this value.
pub struct Beside {
    child: Child,
    shown: Arc<Mutex<String>>,
}

impl Beside {
    /// Starts a command.
    ///
    /// # Panics
    /// When it can't be started.
    pub fn start(mut command: Command) -> Self {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the command starts");
        let shown = Arc::new(Mutex::new(String::new()));
        let out = child.stdout.take().expect("stdout is piped");
        let err = child.stderr.take().expect("stderr is piped");
        collect(out, shown.clone());
        collect(err, shown.clone());
        Self { child, shown }
    }

    /// What it has shown so far, on both outputs.
    pub fn shown(&self) -> String {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until what it has shown satisfies a condition.
    ///
    /// # Panics
    /// When it does not in time.
    pub fn until(&self, holds: impl Fn(&str) -> bool) -> String {
        let what = || format!("never shown:\n{}", self.shown());
        eventually(what, || Some(self.shown()).filter(|shown| holds(shown)))
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _reaped = self.child.wait();
    }
}

fn collect(mut from: impl Read + Send + 'static, into: Arc<Mutex<String>>) {
    std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            let text = String::from_utf8_lossy(&buffer[..count]);
            into.lock().unwrap_or_else(PoisonError::into_inner).push_str(&text);
        }
    });
}

/// Steps of one long test: each runs, also when an earlier one failed, and the failures are told together.
#[derive(Default)]
pub struct Steps {
    failed: Vec<String>,
    began: Option<Instant>,
}

impl Steps {
    /// Runs a step and says how long it took. `NAVARCH_E2E_STEPS` (words, separated by commas) picks those whose name has
    /// one of the words.
    pub fn run(&mut self, name: &str, step: impl FnOnce()) {
        let picked = std::env::var("NAVARCH_E2E_STEPS").unwrap_or_default();
        if !picked.is_empty() && !picked.split(',').any(|word| name.contains(word)) {
            return;
        }
        let began = Instant::now();
        let first = *self.began.get_or_insert(began);
        let good = catch_unwind(AssertUnwindSafe(step)).is_ok();
        let (at, took) = (first.elapsed().as_secs_f32(), began.elapsed().as_secs_f32());
        println!("[{at:6.1}s] {} {name} ({took:.1}s)", if good { "ok    " } else { "FAILED" });
        if !good {
            self.failed.push(name.to_string());
        }
    }

    /// Ends the test.
    ///
    /// # Panics
    /// When a step failed.
    pub fn end(self) {
        assert!(self.failed.is_empty(), "failed: {}", self.failed.join("; "));
    }
}

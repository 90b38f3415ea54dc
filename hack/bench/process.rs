//! Processes: those a bench starts, which end with their value, and what `/proc` says of any.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::Result;

/// Clock ticks per second in which the kernel tells CPU time: the same on every Linux.
const TICKS: f64 = 100.0;

/// A process that ends when this is dropped.
pub struct Process {
    child: Child,
    name: &'static str,
}

impl Process {
    /// Starts a command, its output going to a file.
    ///
    /// # Errors
    /// When it can't be started.
    pub fn start(name: &'static str, command: &mut Command, log: &Path) -> Result<Self> {
        let out = fs::OpenOptions::new().create(true).append(true).open(log)?;
        let child = command.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out).spawn();
        let child = child.map_err(|e| format!("starting {:?}: {e}", command.get_program()))?;
        Ok(Self { child, name })
    }

    /// Its number.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// An error when it ended by itself.
    ///
    /// # Errors
    /// When it did.
    pub fn check(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => Err(format!("{} ended: {status}", self.name).into()),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = kill(Pid::from_raw(self.child.id() as i32), Signal::SIGTERM);
        let end = Instant::now() + Duration::from_secs(3);
        while Instant::now() < end {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// User and system time of a process so far, ended threads included; in seconds, exact to a hundredth.
pub fn cpu(pid: u32) -> Option<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = stat[stat.rfind(')')? + 2..].split(' ').collect();
    let ticks = |i: usize| fields.get(i)?.parse::<f64>().ok();
    Some((ticks(11)? + ticks(12)?) / TICKS)
}

/// Time that the living threads of a process ran, in seconds, exact to the nanosecond.
pub fn cpu_of_threads(pid: u32) -> f64 {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return 0.0 };
    let of = |task: fs::DirEntry| {
        let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<f64>().ok()
    };
    tasks.flatten().filter_map(of).sum::<f64>() / 1e9
}

/// How often a process was put on a processor: each is a wake-up of one of its threads.
pub fn wakeups(pid: u32) -> f64 {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return 0.0 };
    let of = |task: fs::DirEntry| field(&task.path().join("status"), "voluntary_ctxt_switches:");
    tasks.flatten().filter_map(of).sum()
}

/// Memory of a process in MiB.
#[derive(Debug, Clone, Copy, Default)]
pub struct Memory {
    /// Resident, as `ps` says.
    pub resident: f64,
    /// Resident, what is shared with others counted in parts.
    pub proportional: f64,
    /// Of that, what is backed by no file: heap and stacks.
    pub anonymous: f64,
    /// The most that was resident so far.
    pub peak: f64,
}

/// What a process holds now; nothing when it is gone.
pub fn memory(pid: u32) -> Memory {
    let mib = |file: &str, name: &str| field(Path::new(&format!("/proc/{pid}/{file}")), name).unwrap_or(0.0) / 1024.0;
    Memory {
        resident: mib("status", "VmRSS:"),
        proportional: mib("smaps_rollup", "Pss:"),
        anonymous: mib("smaps_rollup", "Pss_Anon:"),
        peak: mib("status", "VmHWM:"),
    }
}

/// Number of threads.
pub fn threads(pid: u32) -> f64 {
    field(Path::new(&format!("/proc/{pid}/status")), "Threads:").unwrap_or(0.0)
}

/// The number after a name in a file of lines.
fn field(path: &Path, name: &str) -> Option<f64> {
    let text = fs::read_to_string(path).ok()?;
    text.lines().find_map(|l| l.strip_prefix(name))?.split_whitespace().next()?.parse().ok()
}

/// A running process as a cluster has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Its number.
    pub pid: u32,
    /// The component it is: `kube-apiserver` …
    pub name: String,
}

/// Components that are ours.
pub const OURS: &[&str] =
    &["kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "dns"];
/// Components that serve a cluster and are not ours.
const OTHERS: &[&str] = &["etcd", "containerd", "containerd-shim-runc-v2"];

/// Every process of a cluster: those that `dir/run` has on record, and those whose cgroup is below the cluster's own.
pub fn of_cluster(dir: &Path, cgroup: Option<&str>) -> Vec<Found> {
    let recorded: Vec<u32> =
        fs::read_dir(dir.join("run")).into_iter().flatten().flatten().filter_map(|e| recorded(&e.path())).collect();
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = all.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
    let mut found: Vec<Found> = numbers
        .filter(|pid| recorded.contains(pid) || cgroup.is_some_and(|c| within(*pid, c)) || mentions(*pid, dir))
        .filter_map(|pid| Some(Found { pid, name: name(pid)? }))
        .collect();
    found.sort_by(|a, b| (&a.name, a.pid).cmp(&(&b.name, b.pid)));
    found
}

fn recorded(path: &Path) -> Option<u32> {
    fs::read_to_string(path).ok()?.split(' ').next()?.parse().ok()
}

/// Is the process in this cgroup, in any of the machine's trees?
fn within(pid: u32, cgroup: &str) -> bool {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    text.lines().filter_map(|l| l.splitn(3, ':').nth(2)).any(|path| path.split('/').nth(1) == Some(cgroup))
}

fn words(pid: u32) -> Vec<String> {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    line.split(|b| *b == 0).map(|w| String::from_utf8_lossy(w).into_owned()).collect()
}

/// Shims name the socket of their containerd, which lies in the cluster's directory.
fn mentions(pid: u32, dir: &Path) -> bool {
    let dir = dir.display().to_string();
    words(pid).iter().skip(1).any(|w| w.contains(&dir)) && name(pid).is_some_and(|n| OTHERS.contains(&&*n))
}

/// Which component a process is: the program's name, or the first argument of `navarch`.
fn name(pid: u32) -> Option<String> {
    let words = words(pid);
    let base = |word: &String| word.rsplit('/').next().unwrap_or_default().to_string();
    let known = |name: &String| OURS.contains(&name.as_str()) || OTHERS.contains(&name.as_str());
    words.iter().take(2).map(base).find(known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_is_understood() {
        let me = std::process::id();
        let start = cpu_of_threads(me);
        let mut sum = 0u64;
        while cpu_of_threads(me) - start < 0.03 {
            sum = sum.wrapping_add(std::hint::black_box(1));
        }
        assert!(cpu(me).expect("this process runs") >= 0.02);
        let memory = memory(me);
        assert!(memory.resident > 1.0 && memory.peak >= memory.resident && memory.proportional > 0.0, "{memory:?}");
        assert!(threads(me) >= 1.0);
        assert_eq!(name(me), None);
    }
}

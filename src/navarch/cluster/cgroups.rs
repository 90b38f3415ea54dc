//! The cluster's own cgroup, below which the kubelet keeps all pods: version 1 (one tree per controller) and 2.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{Context, Error, Result, process};

/// Name of the cgroup.
pub const ROOT: &str = "navarch";

const BASE: &str = "/sys/fs/cgroup";

/// The trees of this machine: one for version 2, else one per controller.
fn trees() -> Vec<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let of = |line: &str| {
        let mut fields = line.split(' ').skip(1);
        let (path, kind) = (fields.next()?, fields.next()?);
        (path.starts_with(BASE) && kind.starts_with("cgroup")).then(|| PathBuf::from(path))
    };
    let mut paths: Vec<PathBuf> = mounts.lines().filter_map(of).collect();
    paths.sort();
    paths.dedup();
    paths
}

/// Makes the cgroup in every tree, with what a new one lacks.
///
/// # Errors
/// When a tree refuses.
pub fn ensure(name: &str) -> Result<()> {
    for tree in trees() {
        let path = tree.join(name);
        fs::create_dir_all(&path).context(format!("making the cgroup {}", path.display()))?;
        // A new cpuset of version 1 has no processors and no memory, and nothing can run in it.
        for file in ["cpuset.cpus", "cpuset.mems"] {
            inherit(&tree, &path, file)?;
        }
        delegate(&tree);
        delegate(&path);
    }
    Ok(())
}

fn inherit(from: &Path, to: &Path, file: &str) -> Result<()> {
    let is_v1 = !to.join("cgroup.controllers").exists();
    let empty = fs::read_to_string(to.join(file)).is_ok_and(|text| text.trim().is_empty());
    if !(is_v1 && empty) {
        return Ok(());
    }
    let text = fs::read_to_string(from.join(file)).context(format!("reading {file}"))?;
    fs::write(to.join(file), text).context(format!("writing {file} of {}", to.display()))
}

/// Version 2: hands all controllers on to the children. One that can't be handed on is one that is not used.
fn delegate(path: &Path) {
    let Ok(controllers) = fs::read_to_string(path.join("cgroup.controllers")) else { return };
    for controller in controllers.split_whitespace() {
        let _ = fs::write(path.join("cgroup.subtree_control"), format!("+{controller}"));
    }
}

/// Is there one of that name in some tree?
pub fn exists(name: &str) -> bool {
    trees().iter().any(|tree| tree.join(name).exists())
}

/// Processes that are in the cgroup or below it.
fn processes(path: &Path) -> Vec<Pid> {
    let own = fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default();
    let mut all: Vec<Pid> = own.lines().filter_map(|pid| pid.parse().ok()).map(Pid::from_raw).collect();
    let below = fs::read_dir(path).into_iter().flatten().flatten();
    all.extend(below.filter(|e| e.file_type().is_ok_and(|t| t.is_dir())).flat_map(|entry| processes(&entry.path())));
    all
}

/// Kills what is left of containers whose runtime lost them.
pub fn kill_all(name: &str) {
    let left = || trees().iter().flat_map(|tree| processes(&tree.join(name))).collect::<Vec<_>>();
    process::wait_until(Duration::from_secs(5), || {
        let left = left();
        // Gone by itself is fine, too.
        for pid in &left {
            let _ = kill(*pid, Signal::SIGKILL);
        }
        left.is_empty()
    });
}

/// Removes the cgroup and all below it.
///
/// # Errors
/// Names what still holds processes and stays.
pub fn remove(name: &str) -> Vec<Error> {
    trees().iter().flat_map(|tree| remove_tree(&tree.join(name))).collect()
}

fn remove_tree(path: &Path) -> Vec<Error> {
    let Ok(entries) = fs::read_dir(path) else { return Vec::new() };
    let below = entries.flatten().filter(|e| e.file_type().is_ok_and(|t| t.is_dir()));
    let mut left: Vec<Error> = below.flat_map(|entry| remove_tree(&entry.path())).collect();
    left.extend(fs::remove_dir(path).context(format!("removing the cgroup {}", path.display())).err());
    left
}

//! `navarch down`: ends a cluster and takes away all that it made, also when parts of it were killed before.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::mount::{MntFlags, umount2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::settings::Settings;
use super::{Context, Error, Layout, Progress, Result};
use super::{cgroups, control_plane, network, process, runtime, up};

/// Processes in the order in which they are stopped; others come first.
const STOPPED: [&str; 6] = [
    control_plane::SCHEDULER,
    control_plane::CONTROLLER_MANAGER,
    up::KUBELET,
    control_plane::APISERVER,
    control_plane::ETCD,
    runtime::NAME,
];

/// Ends the cluster and removes what it left on this machine.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Directory that holds all of the cluster's state.
    #[arg(long, default_value = "/var/lib/navarch")]
    pub dir: PathBuf,
    /// Keep the state directory (certificates, etcd's data), so that `up` brings the same cluster back.
    #[arg(long)]
    pub keep: bool,
}

/// Ends the cluster. What can't be taken away does not keep the rest.
///
/// # Errors
/// Names all that is left.
pub async fn run(args: Args) -> Result<()> {
    let layout = Layout::new(&args.dir).context("finding the state directory")?;
    let progress = Progress::start();
    let Some(settings) = Settings::load(&layout)? else {
        progress.step(format!("no cluster in {}", layout.root().display()));
        return Ok(());
    };
    let mut left = Vec::new();
    if !settings.control_plane_only {
        left.extend(whole(&layout, &progress).await);
    }
    let mut names = process::recorded(&layout);
    // Clients before servers: nobody waits for an answer that no longer comes.
    names.sort_by_key(|name| STOPPED.iter().position(|known| known == name));
    for name in names {
        process::stop(&layout, &name, Duration::from_secs(10));
    }
    progress.step("processes have ended");
    if !settings.control_plane_only {
        left.extend(leftovers(&layout, &settings));
    }
    if !left.is_empty() {
        let all: Vec<String> = left.iter().map(ToString::to_string).collect();
        let what = format!("taking away what is outside of {}, which stays", layout.root().display());
        return Err(Error::new(what, all.join("; ")));
    }
    if !settings.control_plane_only {
        release(&layout)?;
        progress.step("mounts, routes, rules and cgroups are gone");
    }
    if !args.keep {
        fs::remove_dir_all(layout.root()).context(format!("removing {}", layout.root().display()))?;
        progress.step(format!("{} is gone", layout.root().display()));
    }
    Ok(())
}

/// Pods first, while there is a runtime that knows how to take them down. Returns what it could not.
async fn whole(layout: &Layout, progress: &Progress) -> Vec<Error> {
    process::stop(layout, up::KUBELET, Duration::from_secs(20));
    progress.step("the kubelet has stopped");
    if !layout.path("containerd/config.toml").exists() {
        return Vec::new();
    }
    let removed = match runtime::start(layout).await {
        Ok(()) => runtime::remove_pods(layout).await,
        Err(error) => Err(error),
    };
    match removed {
        Ok((count, failed)) => {
            progress.step(format!("{count} pods are gone"));
            failed
        }
        Err(error) => vec![error],
    }
}

/// Another whole cluster may come up on this machine.
fn release(layout: &Layout) -> Result<()> {
    let ours = |holder: String| Path::new(&holder) == layout.root();
    match fs::read_to_string(up::CLAIM).map(ours) {
        Ok(true) => fs::remove_file(up::CLAIM).context("releasing the machine"),
        _ => Ok(()),
    }
}

/// Takes away what is outside of the state directory. Returns what it could not.
fn leftovers(layout: &Layout, settings: &Settings) -> Vec<Error> {
    kill_shims(layout);
    cgroups::kill_all(cgroups::ROOT);
    let mut left: Vec<Error> = unmount_below(layout.root()).err().into_iter().collect();
    left.extend(network::remove(&settings.pod_cidr.to_string(), &settings.before));
    left.extend(network::restore_kernel(&settings.before.kernel).err());
    left.extend(cgroups::remove(cgroups::ROOT));
    left
}

/// Kills shims of our containerd that outlived it.
fn kill_shims(layout: &Layout) {
    let socket = layout.containerd_socket().display().to_string();
    let Ok(entries) = fs::read_dir("/proc") else { return };
    for pid in entries.flatten().filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok()) {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words: Vec<&[u8]> = line.split(|b| *b == 0).collect();
        let is_shim = words[0].ends_with(b"containerd-shim-runc-v2");
        if is_shim && words.contains(&socket.as_bytes()) {
            // Gone by itself is fine, too.
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }
}

/// Mounts at and below a directory, the innermost first.
///
/// # Errors
/// When the mounts can't be read.
pub(super) fn mounts_below(root: &Path) -> Result<Vec<PathBuf>> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").context("reading the mounts")?;
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(4)).map(unescape);
    let mut ours: Vec<PathBuf> = points.map(PathBuf::from).filter(|p| p.starts_with(root)).collect();
    ours.sort_by_key(|p| std::cmp::Reverse(p.components().count()));
    Ok(ours)
}

/// Unmounts everything below a directory. One that stays may lead to what is not ours.
fn unmount_below(root: &Path) -> Result<()> {
    for point in mounts_below(root)? {
        umount2(&point, MntFlags::MNT_DETACH).context(format!("unmounting {}", point.display()))?;
    }
    Ok(())
}

/// Undoes the kernel's escapes of spaces and the like in mountinfo (`\040`).
fn unescape(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut i = 0;
    while i < bytes.len() {
        let octal = (bytes[i] == b'\\').then(|| text.get(i + 1..i + 4)).flatten();
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                out.push(byte);
                i += 4;
            }
            None => {
                out.push(bytes[i]);
                i += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_with_spaces_are_read_right() {
        assert_eq!(unescape(r"/a\040b/c"), "/a b/c");
        assert_eq!(unescape(r"/plain\x"), r"/plain\x");
    }
}

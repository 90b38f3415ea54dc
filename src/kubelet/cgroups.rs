//! Control groups of the node's pods: one for all pods, one for each class, one for each pod. Versions 1 and 2 of the
//! kernel's interface, and both drivers' names.
//!
//! ```text
//! <root>/kubepods                    what all pods may use together
//! <root>/kubepods/pod<uid>           a guaranteed pod
//! <root>/kubepods/burstable/pod<uid>
//! <root>/kubepods/besteffort/pod<uid>
//! ```

use crate::pods::qos::{self, Class, Side};
use crate::pods::{self};
use crate::runtime::resources::{self, Rules};
use k8s_openapi::api::core::v1::Pod;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Where the kernel shows control groups.
const MOUNT: &str = "/sys/fs/cgroup";
/// The controllers of version 1 in which pods have groups.
const CONTROLLERS: [&str; 10] =
    ["cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids", "hugetlb", "systemd"];

/// Who makes the runtime's groups, and hence what their names look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driver {
    /// Plain directories.
    Cgroupfs,
    /// systemd's slices.
    Systemd,
}

/// Numbers that a group is limited to; `None` leaves them as they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Weight of the group in cpu shares.
    pub shares: Option<i64>,
    /// Quota in microseconds; -1 is none.
    pub quota: Option<i64>,
    /// Period of the quota in microseconds.
    pub period: i64,
    /// Bytes of memory; -1 is no limit.
    pub memory: Option<i64>,
    /// Processes.
    pub pids: Option<i64>,
}

/// The groups of this node's pods.
#[derive(Clone, Debug)]
pub struct Cgroups {
    driver: Driver,
    unified: bool,
    root: Vec<String>,
    rules: Rules,
    pids: Option<i64>,
    /// The directories of the hierarchies: one on version 2, one for each controller on version 1.
    hierarchies: Vec<(String, PathBuf)>,
}

/// Is version 2 the one in use?
pub fn unified() -> bool {
    Path::new(MOUNT).join("cgroup.controllers").exists()
}

fn hierarchies(unified: bool) -> Vec<(String, PathBuf)> {
    if unified {
        return vec![(String::new(), MOUNT.into())];
    }
    let dir = |name: &str| Path::new(MOUNT).join(name);
    CONTROLLERS.iter().map(|name| ((*name).to_owned(), dir(name))).filter(|(_, dir)| dir.is_dir()).collect()
}

impl Cgroups {
    /// Groups below `root` (a path such as `/navarch`; empty is the top).
    pub fn new(driver: Driver, root: &str, rules: Rules, pids: Option<i64>) -> Self {
        let unified = unified();
        let root = root.split('/').filter(|part| !part.is_empty()).map(str::to_owned).collect();
        Self { driver, unified, root, rules, pids, hierarchies: hierarchies(unified) }
    }

    /// How limits are enforced.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    fn class_parts(&self, class: Class) -> Vec<String> {
        let mut parts = self.root.clone();
        parts.push("kubepods".into());
        match class {
            Class::Guaranteed => {}
            Class::Burstable => parts.push("burstable".into()),
            Class::BestEffort => parts.push("besteffort".into()),
        }
        parts
    }

    fn pod_parts(&self, pod: &Pod) -> Vec<String> {
        let mut parts = self.class_parts(qos::class(pod));
        parts.push(format!("pod{}", pods::uid(pod)));
        parts
    }

    /// The pod's group as the runtime takes it.
    pub fn parent_of(&self, pod: &Pod) -> String {
        let parts = self.pod_parts(pod);
        match self.driver {
            Driver::Cgroupfs => format!("/{}", parts.join("/")),
            Driver::Systemd => slice(&parts),
        }
    }

    /// The directory of a group below a hierarchy.
    fn below(&self, parts: &[String]) -> PathBuf {
        match self.driver {
            Driver::Cgroupfs => parts.iter().collect(),
            // Each slice lies in the slice that its name begins with.
            Driver::Systemd => (1..=parts.len()).map(|end| slice(&parts[..end])).collect(),
        }
    }

    fn dirs(&self, parts: &[String]) -> Vec<(String, PathBuf)> {
        let below = self.below(parts);
        self.hierarchies.iter().map(|(name, dir)| (name.clone(), dir.join(&below))).collect()
    }

    /// Makes the groups of all pods and of the classes. `allocatable`: cpu in thousandths and memory in bytes that all
    /// pods may use together, when that is enforced.
    pub fn set_up(&self, allocatable: Option<(i64, i64)>) -> io::Result<()> {
        self.make(&self.root)?;
        for class in [Class::Guaranteed, Class::Burstable, Class::BestEffort] {
            self.make(&self.class_parts(class))?;
        }
        if let Some((cpu, memory)) = allocatable {
            let limits =
                Limits { shares: Some(resources::milli_to_shares(cpu)), memory: Some(memory), ..Limits::default() };
            self.limit(&self.class_parts(Class::Guaranteed), limits)?;
        }
        self.set_class_shares(0)
    }

    /// Weighs the classes: pods without requests get the least, burstable ones what they request together.
    pub fn set_class_shares(&self, burstable_milli: i64) -> io::Result<()> {
        let weigh = |class, milli| {
            let limits = Limits { shares: Some(resources::milli_to_shares(milli)), ..Limits::default() };
            self.limit(&self.class_parts(class), limits)
        };
        weigh(Class::BestEffort, 0)?;
        weigh(Class::Burstable, burstable_milli)
    }

    /// Does the pod's group exist everywhere?
    pub fn exists(&self, pod: &Pod) -> bool {
        self.dirs(&self.pod_parts(pod)).iter().all(|(_, dir)| dir.is_dir())
    }

    /// Makes the pod's group with its limits.
    pub fn ensure(&self, pod: &Pod) -> io::Result<()> {
        let parts = self.pod_parts(pod);
        self.make(&parts)?;
        self.limit(&parts, self.limits_of(pod))
    }

    /// Brings the pod's group to the limits of the pod as it is now.
    pub fn update(&self, pod: &Pod) -> io::Result<()> {
        self.limit(&self.pod_parts(pod), self.limits_of(pod))
    }

    /// The pod's limits: sums of its containers', enforced only where every container has one.
    pub fn limits_of(&self, pod: &Pod) -> Limits {
        let requests = qos::totals(pod, Side::Requests, true);
        let limits = qos::totals(pod, Side::Limits, true);
        let all_limited = |name: &str| {
            let level = pods::spec(pod).resources.as_ref().and_then(|r| r.limits.as_ref());
            let has = |c: &k8s_openapi::api::core::v1::Container| {
                crate::units::milli_of(c.resources.as_ref().and_then(|r| r.limits.as_ref()), name)
                    .is_some_and(|v| v > 0)
            };
            level.is_some_and(|level| level.contains_key(name))
                || pods::apps(pod).iter().chain(pods::inits(pod)).all(has)
        };
        let limit = |name: &str| limits.get(name).copied().filter(|_| all_limited(name));
        let cpu = requests.get("cpu").copied().or(limit("cpu")).unwrap_or(0);
        Limits {
            shares: Some(resources::milli_to_shares(if qos::class(pod) == Class::BestEffort { 0 } else { cpu })),
            quota: limit("cpu")
                .filter(|_| self.rules.cpu_quota)
                .map(|milli| resources::milli_to_quota(milli, self.rules.cpu_period)),
            period: self.rules.cpu_period,
            memory: limit("memory").map(|milli| milli / 1000),
            pids: self.pids,
        }
    }

    fn make(&self, parts: &[String]) -> io::Result<()> {
        if self.driver == Driver::Systemd && !parts.is_empty() {
            start_slice(&slice(parts))?;
        }
        for (controller, root) in &self.hierarchies {
            let mut dir = root.clone();
            for part in self.below(parts).components() {
                let next = dir.join(part);
                if !next.is_dir() {
                    fs::create_dir(&next)?;
                }
                match controller.as_str() {
                    // A new group of version 1 has no processors and no memory until it is given some.
                    "cpuset" => inherit(&dir, &next, &["cpuset.cpus", "cpuset.mems"])?,
                    "" => delegate(&dir)?,
                    _ => {}
                }
                dir = next;
            }
            if controller.is_empty() {
                delegate(&dir)?;
            }
        }
        Ok(())
    }

    fn limit(&self, parts: &[String], limits: Limits) -> io::Result<()> {
        for (controller, dir) in self.dirs(parts) {
            for (file, value) in files_for(&controller, limits) {
                write(&dir.join(file), &value)?;
            }
        }
        Ok(())
    }

    /// Processes in the pod's group and below.
    fn processes(&self, dirs: &[(String, PathBuf)]) -> Vec<i32> {
        let mut found = Vec::new();
        let mut todo: Vec<PathBuf> = dirs.iter().map(|(_, dir)| dir.clone()).collect();
        while let Some(dir) = todo.pop() {
            if let Ok(text) = fs::read_to_string(dir.join("cgroup.procs")) {
                found.extend(text.lines().filter_map(|line| line.parse::<i32>().ok()));
            }
            todo.extend(children(&dir));
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Removes the pod's group in every class, killing what is left in it. False while something still dies.
    pub fn remove(&self, uid: &str) -> io::Result<bool> {
        let mut gone = true;
        for class in [Class::Guaranteed, Class::Burstable, Class::BestEffort] {
            let mut parts = self.class_parts(class);
            parts.push(format!("pod{uid}"));
            let dirs = self.dirs(&parts);
            if dirs.iter().all(|(_, dir)| !dir.exists()) {
                continue;
            }
            for pid in self.processes(&dirs) {
                // The process may have ended in the meantime.
                let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL);
            }
            for (_, dir) in &dirs {
                gone &= remove_tree(dir)?;
            }
        }
        Ok(gone)
    }

    /// UIDs of pods that have a group.
    pub fn pods(&self) -> Vec<String> {
        let mut found = Vec::new();
        for class in [Class::Guaranteed, Class::Burstable, Class::BestEffort] {
            for (_, dir) in self.dirs(&self.class_parts(class)) {
                for child in children(&dir) {
                    let name = child.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
                    found.extend(self.uid_of(&name));
                }
            }
        }
        found.sort();
        found.dedup();
        found
    }

    fn uid_of(&self, name: &str) -> Option<String> {
        match self.driver {
            Driver::Cgroupfs => name.strip_prefix("pod").map(str::to_owned),
            Driver::Systemd => {
                let name = name.strip_suffix(".slice")?;
                Some(name.rsplit_once("-pod")?.1.replace('_', "-"))
            }
        }
    }

    /// Usage of a group: cpu time in nanoseconds, memory and working set in bytes. `None` is all pods, or the pod.
    pub fn usage(&self, pod: Option<&Pod>) -> Usage {
        let parts = match pod {
            Some(pod) => self.pod_parts(pod),
            None => self.class_parts(Class::Guaranteed),
        };
        usage(self.unified, &self.below(&parts))
    }

    /// Usage of the whole machine.
    pub fn usage_of_machine(&self) -> Usage {
        usage(self.unified, Path::new(""))
    }
}

/// What a group used and uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Nanoseconds of cpu since the group was made.
    pub cpu: u64,
    /// Bytes of memory.
    pub memory: u64,
    /// Bytes that can't be given back at once.
    pub working_set: u64,
    /// Anonymous memory in bytes.
    pub rss: u64,
    /// Processes.
    pub pids: u64,
}

fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn field(path: &Path, name: &str) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

fn usage(unified: bool, below: &Path) -> Usage {
    let root = Path::new(MOUNT);
    if unified {
        let dir = root.join(below);
        let stat = dir.join("memory.stat");
        let memory = number(&dir.join("memory.current")).unwrap_or(0);
        return Usage {
            cpu: field(&dir.join("cpu.stat"), "usage_usec").unwrap_or(0) * 1000,
            memory,
            working_set: memory.saturating_sub(field(&stat, "inactive_file").unwrap_or(0)),
            rss: field(&stat, "anon").unwrap_or(0),
            pids: number(&dir.join("pids.current")).unwrap_or(0),
        };
    }
    let memory_dir = root.join("memory").join(below);
    let stat = memory_dir.join("memory.stat");
    let memory = number(&memory_dir.join("memory.usage_in_bytes")).unwrap_or(0);
    Usage {
        cpu: number(&root.join("cpuacct").join(below).join("cpuacct.usage")).unwrap_or(0),
        memory,
        working_set: memory.saturating_sub(field(&stat, "total_inactive_file").unwrap_or(0)),
        rss: field(&stat, "total_rss").unwrap_or(0),
        pids: number(&root.join("pids").join(below).join("pids.current")).unwrap_or(0),
    }
}

/// The files of a controller (empty: version 2) that carry the limits.
fn files_for(controller: &str, limits: Limits) -> Vec<(&'static str, String)> {
    let mut files = Vec::new();
    match controller {
        "cpu" => {
            files.extend(limits.shares.map(|shares| ("cpu.shares", shares.to_string())));
            if let Some(quota) = limits.quota {
                files.push(("cpu.cfs_period_us", limits.period.to_string()));
                files.push(("cpu.cfs_quota_us", quota.to_string()));
            }
        }
        "memory" => files.extend(limits.memory.map(|bytes| ("memory.limit_in_bytes", bytes.to_string()))),
        "pids" => files.extend(limits.pids.map(|pids| ("pids.max", pids.to_string()))),
        "" => {
            files.extend(limits.shares.map(|shares| ("cpu.weight", weight(shares).to_string())));
            if let Some(quota) = limits.quota {
                let quota = if quota < 0 { "max".into() } else { quota.to_string() };
                files.push(("cpu.max", format!("{quota} {}", limits.period)));
            }
            let or_max = |value: i64| if value < 0 { "max".into() } else { value.to_string() };
            files.extend(limits.memory.map(|bytes| ("memory.max", or_max(bytes))));
            files.extend(limits.pids.map(|pids| ("pids.max", pids.to_string())));
        }
        _ => {}
    }
    files
}

/// Shares (2 to 262144) as a weight of version 2 (1 to 10000), by runc's formula.
fn weight(shares: i64) -> i64 {
    let shares = shares.clamp(resources::MIN_SHARES, resources::MAX_SHARES);
    1 + (shares - 2) * 9999 / 262_142
}

/// `kubepods-burstable-pod1_2.slice`: dashes part levels, so that those within a name become underscores.
fn slice(parts: &[String]) -> String {
    let names: Vec<String> = parts.iter().map(|part| part.replace('-', "_")).collect();
    format!("{}.slice", names.join("-"))
}

fn start_slice(name: &str) -> io::Result<()> {
    let out = std::process::Command::new("systemctl").args(["start", name]).output()?;
    match out.status.success() {
        true => Ok(()),
        false => Err(io::Error::other(format!("can't start {name}: {}", String::from_utf8_lossy(&out.stderr).trim()))),
    }
}

fn write(path: &Path, value: &str) -> io::Result<()> {
    let fault =
        |error: io::Error| io::Error::new(error.kind(), format!("writing {value:?} to {}: {error}", path.display()));
    fs::write(path, value).map_err(fault)
}

fn inherit(parent: &Path, child: &Path, files: &[&str]) -> io::Result<()> {
    for file in files {
        let own = fs::read_to_string(child.join(file))?;
        if own.trim().is_empty() {
            let given = fs::read_to_string(parent.join(file))?;
            write(&child.join(file), given.trim())?;
        }
    }
    Ok(())
}

/// Hands all controllers that the group has on to its children.
fn delegate(dir: &Path) -> io::Result<()> {
    let available = fs::read_to_string(dir.join("cgroup.controllers"))?;
    let given = fs::read_to_string(dir.join("cgroup.subtree_control"))?;
    for controller in available.split_whitespace().filter(|c| !given.split_whitespace().any(|g| g == *c)) {
        // Some controllers can't be handed on everywhere (cpu with real-time processes about); others still can.
        if let Err(error) = write(&dir.join("cgroup.subtree_control"), &format!("+{controller}")) {
            tracing::debug!(%error, "a controller is not handed on");
        }
    }
    Ok(())
}

fn children(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path()).collect()
}

/// Removes a group and those below it; false while it is busy.
fn remove_tree(dir: &Path) -> io::Result<bool> {
    for child in children(dir) {
        if !remove_tree(&child)? {
            return Ok(false);
        }
    }
    match fs::remove_dir(dir) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(resources: serde_json::Value) -> Pod {
        serde_json::from_value(
            json!({"metadata": {"uid": "a-b"}, "spec": {"containers": [{"name": "c", "resources": resources}]}}),
        )
        .unwrap()
    }

    fn groups(driver: Driver) -> Cgroups {
        Cgroups::new(driver, "/nav", Rules::default(), None)
    }

    #[test]
    fn groups_are_named_as_each_driver_wants() {
        let burstable = pod(json!({"requests": {"cpu": "1"}}));
        assert_eq!(groups(Driver::Cgroupfs).parent_of(&burstable), "/nav/kubepods/burstable/poda-b");
        let systemd = groups(Driver::Systemd);
        assert_eq!(systemd.parent_of(&burstable), "nav-kubepods-burstable-poda_b.slice");
        assert_eq!(
            systemd.below(&systemd.pod_parts(&burstable)),
            Path::new("nav.slice/nav-kubepods.slice/nav-kubepods-burstable.slice/nav-kubepods-burstable-poda_b.slice")
        );
        assert_eq!(systemd.uid_of("nav-kubepods-burstable-poda_b.slice").unwrap(), "a-b");
        let guaranteed = pod(json!({"limits": {"cpu": "1", "memory": "1Gi"}}));
        assert_eq!(groups(Driver::Cgroupfs).parent_of(&guaranteed), "/nav/kubepods/poda-b");
    }

    #[test]
    fn limits_become_files_of_either_version() {
        let cgroups = groups(Driver::Cgroupfs);
        let limits = cgroups.limits_of(&pod(json!({"limits": {"cpu": "500m", "memory": "64Mi"}})));
        let text = |controller| {
            let list: Vec<String> = files_for(controller, limits).iter().map(|(f, v)| format!("{f}={v}")).collect();
            list.join(" ")
        };
        assert_eq!(text("cpu"), "cpu.shares=512 cpu.cfs_period_us=100000 cpu.cfs_quota_us=50000");
        assert_eq!(text("memory"), "memory.limit_in_bytes=67108864");
        assert_eq!(text(""), "cpu.weight=20 cpu.max=50000 100000 memory.max=67108864");
        assert_eq!(cgroups.limits_of(&pod(json!({}))).shares, Some(2));
    }
}

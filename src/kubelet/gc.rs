//! Removes ended containers, sandboxes without a purpose, and logs of pods that are gone.
//!
//! Of each container the last ended run is kept for its logs and its exit code, until its pod is gone.

use crate::runtime::cri::{Cri, Result, created};
use crate::runtime::labels;
use crate::runtime::state::State;
use crate::table::Table;
use crate::work::start::legacy_link;
use crate::work::worker::{Stage, Workers};
use k8s_cri::v1;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// What is kept.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// How long an ended container is kept at least.
    pub min_age: Duration,
    /// Ended runs kept of each container.
    pub per_container: usize,
    /// Ended containers kept on the node; `None` is no limit.
    pub total: Option<usize>,
}

/// The collector of ended containers.
pub struct ContainerGc {
    /// Calls to the runtime.
    pub cri: Cri,
    /// The pods there shall be.
    pub table: Arc<Table>,
    /// Their workers.
    pub workers: Arc<Workers>,
    /// Have all sources told what they have? Until then nobody knows which pods are gone.
    pub complete: Arc<AtomicBool>,
    /// Directory of pods' logs.
    pub log_root: PathBuf,
    /// What is kept.
    pub policy: Policy,
}

/// An ended container as the collector sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Dead {
    id: String,
    pod: String,
    name: String,
    created: i64,
}

/// Which of the ended containers go: all of pods that are gone, the older runs of each container, the oldest beyond
/// the node's limit.
fn doomed(mut dead: Vec<Dead>, gone: impl Fn(&str) -> bool, policy: Policy) -> Vec<Dead> {
    dead.sort_by_key(|d| std::cmp::Reverse(d.created));
    let mut kept: HashMap<(String, String), usize> = HashMap::new();
    let (mut out, mut left) = (Vec::new(), Vec::new());
    for one in dead {
        let count = kept.entry((one.pod.clone(), one.name.clone())).or_default();
        *count += 1;
        if gone(&one.pod) || *count > policy.per_container { out.push(one) } else { left.push(one) }
    }
    if let Some(total) = policy.total.filter(|total| left.len() > *total) {
        out.extend(left.drain(total..));
    }
    out
}

impl ContainerGc {
    /// Looks once.
    pub async fn run_once(&self) {
        if !self.complete.load(Ordering::Relaxed) {
            return tracing::debug!("ended containers stay until it is known which pods there are");
        }
        if let Err(error) = self.collect().await {
            tracing::warn!(%error, "container garbage collection failed");
        }
    }

    /// Is the pod gone from the sources, and is its worker done?
    fn gone(&self, uid: &str) -> bool {
        self.table.get(uid).is_none() && self.workers.stage(uid).is_none_or(|stage| stage == Stage::Finished)
    }

    async fn collect(&self) -> Result<()> {
        let containers = self.cri.containers(None).await?;
        let young = |container: &v1::Container| {
            let age = created(container).map(|at| jiff::Timestamp::now().duration_since(at));
            age.is_some_and(|age| age.unsigned_abs() < self.policy.min_age)
        };
        let label = |c: &v1::Container, key: &str| c.labels.get(key).cloned().unwrap_or_default();
        // One that is only made may be starting this very moment.
        let over = |c: &v1::Container| matches!(State::from_cri(c.state), State::Exited | State::Unknown);
        let dead = containers.iter().filter(|c| over(c) && !young(c)).map(|c| Dead {
            id: c.id.clone(),
            pod: label(c, labels::POD_UID),
            name: label(c, labels::CONTAINER_NAME),
            created: c.created_at,
        });
        let doomed = doomed(dead.collect(), |uid| self.gone(uid), self.policy);
        let ids: HashSet<String> = doomed.iter().map(|dead| dead.id.clone()).collect();
        for container in containers.iter().filter(|c| ids.contains(&c.id)) {
            // One that can't go holds up no other.
            if let Err(error) = self.remove_container(container).await {
                tracing::warn!(container = container.id, %error, "can't remove an ended container");
            }
        }
        self.sandboxes(&containers, &ids).await?;
        self.logs().await;
        Ok(())
    }

    async fn remove_container(&self, container: &v1::Container) -> Result<()> {
        let label = |key: &str| container.labels.get(key).map(String::as_str).unwrap_or_default();
        if State::from_cri(container.state) == State::Unknown {
            self.cri.stop_container(&container.id, 2).await?;
        }
        if let Ok(Some(status)) = self.cri.container_status(&container.id).await
            && !status.log_path.is_empty()
        {
            remove_log(Path::new(&status.log_path)).await;
        }
        let link = legacy_link(
            &self.log_root,
            label(labels::POD_NAME),
            label(labels::POD_NAMESPACE),
            label(labels::CONTAINER_NAME),
            &container.id,
        );
        remove_file(&link).await;
        self.cri.remove_container(&container.id).await
    }

    /// Sandboxes that hold no container: all of pods that are gone, and all but the newest of the others.
    async fn sandboxes(&self, containers: &[v1::Container], removed: &HashSet<String>) -> Result<()> {
        let in_use: HashSet<&str> = containers
            .iter()
            .filter(|container| !removed.contains(&container.id))
            .map(|container| container.pod_sandbox_id.as_str())
            .collect();
        let mut by_pod: HashMap<String, Vec<v1::PodSandbox>> = HashMap::new();
        for sandbox in self.cri.sandboxes(None).await? {
            let uid = sandbox.labels.get(labels::POD_UID).cloned().unwrap_or_default();
            by_pod.entry(uid).or_default().push(sandbox);
        }
        for (uid, mut sandboxes) in by_pod {
            sandboxes.sort_by_key(|sandbox| std::cmp::Reverse(sandbox.created_at));
            let keep = if self.gone(&uid) { 0 } else { 1 };
            for sandbox in sandboxes.into_iter().skip(keep) {
                let ready = sandbox.state == v1::PodSandboxState::SandboxReady as i32;
                if ready || in_use.contains(sandbox.id.as_str()) {
                    continue;
                }
                self.cri.stop_sandbox(&sandbox.id).await?;
                self.cri.remove_sandbox(&sandbox.id).await?;
            }
        }
        Ok(())
    }

    /// Log directories of pods that are gone, and links that lead nowhere.
    async fn logs(&self) {
        let uid_of = |name: &str| name.rsplit('_').next().unwrap_or_default().to_owned();
        for path in entries(&self.log_root).await {
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            let uid = uid_of(&name);
            if self.gone(&uid)
                && self.cri.containers(Some(&uid)).await.is_ok_and(|left| left.is_empty())
                && let Err(error) = tokio::fs::remove_dir_all(&path).await
            {
                tracing::warn!(path = %path.display(), %error, "can't remove the logs of a pod that is gone");
            }
        }
        let links = self.log_root.parent().unwrap_or(&self.log_root).join("containers");
        for link in entries(&links).await {
            if tokio::fs::metadata(&link).await.is_err() && tokio::fs::symlink_metadata(&link).await.is_ok() {
                remove_file(&link).await;
            }
        }
    }
}

async fn entries(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    // A directory that is not there has no entries.
    let Ok(mut list) = tokio::fs::read_dir(dir).await else { return found };
    while let Ok(Some(entry)) = list.next_entry().await {
        found.push(entry.path());
    }
    found
}

async fn remove_log(path: &Path) {
    for rotated in crate::logs::rotate::rotated(path).await.unwrap_or_default() {
        remove_file(&rotated).await;
    }
    remove_file(path).await;
}

async fn remove_file(path: &Path) {
    match tokio::fs::remove_file(path).await {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            tracing::warn!(path = %path.display(), %error, "can't remove a file");
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_run_of_each_container_is_kept_for_its_logs() {
        let dead = |id: &str, pod: &str, created| Dead { id: id.into(), pod: pod.into(), name: "c".into(), created };
        let all = || {
            vec![dead("a1", "a", 1), dead("a2", "a", 2), dead("a3", "a", 3), dead("b1", "b", 4), dead("g1", "gone", 5)]
        };
        let ids = |policy| {
            let mut ids: Vec<String> = doomed(all(), |pod| pod == "gone", policy).into_iter().map(|d| d.id).collect();
            ids.sort();
            ids
        };
        let policy = Policy { min_age: Duration::ZERO, per_container: 1, total: None };
        assert_eq!(ids(policy), ["a1", "a2", "g1"]);
        assert_eq!(ids(Policy { total: Some(1), ..policy }), ["a1", "a2", "a3", "g1"]);
    }
}

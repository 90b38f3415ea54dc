//! Ends of containers and sandboxes as the kernel tells them, by a descriptor of each one's first process (pidfd).
//!
//! ```text
//!   what runs, by the last listing ──► follow ──► a task for each process ──┐ it ended
//!                                        │                                 └──► wake: list the runtime now
//!                                        └──► all of it is watched? then listing can be rare
//! ```
//!
//! Contract: an end is told at most once and never lost: one that comes before it is watched shows in the answer of
//! [`Exits::follow`], which is false as long as something runs that is not watched.

use super::cri::Cri;
use crate::descriptor;
use futures::future::join_all;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;
use tokio_util::task::AbortOnDropHandle;

/// What is known to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A container.
    Container,
    /// A pod's sandbox.
    Sandbox,
}

/// The watch over what runs.
pub struct Exits {
    wake: Arc<Notify>,
    /// By id; none for what could not be watched.
    watched: HashMap<String, Option<AbortOnDropHandle<()>>>,
}

impl Exits {
    /// Watches nothing yet; `wake` is told of each end.
    pub fn new(wake: Arc<Notify>) -> Self {
        Self { wake, watched: HashMap::new() }
    }

    /// Watches exactly what runs now, by id; true when each of its ends will be told.
    pub async fn follow(&mut self, cri: &Cri, running: &HashMap<&str, Kind>) -> bool {
        self.watched.retain(|id, _| running.contains_key(&**id));
        let new = running.iter().filter(|(id, _)| !self.watched.contains_key(**id));
        // Side by side: a kubelet that starts anew asks for all there are, and nothing is decided meanwhile.
        let asked = new.map(|(id, kind)| async move { (id.to_string(), cri.process_of(*kind, id).await) });
        for (id, pid) in join_all(asked).await {
            let watch = pid.and_then(|pid| self.watch(pid));
            self.watched.insert(id, watch);
        }
        // What the kernel said has ended but the runtime still lists is not settled yet.
        self.watched.values().all(|task| task.as_ref().is_some_and(|task| !task.is_finished()))
    }

    fn watch(&self, pid: i32) -> Option<AbortOnDropHandle<()>> {
        let process = match open(pid) {
            Ok(process) => process,
            Err(error) => {
                tracing::debug!(pid, %error, "can't watch the end of a container");
                return None;
            }
        };
        let wake = self.wake.clone();
        Some(AbortOnDropHandle::new(tokio::spawn(async move {
            // An error, too, calls for a look at the runtime.
            if let Err(error) = process.readable().await {
                tracing::debug!(pid, %error, "watching the end of a container failed");
            }
            wake.notify_one();
        })))
    }
}

/// A descriptor that becomes readable when the process ends.
fn open(pid: i32) -> io::Result<AsyncFd<OwnedFd>> {
    let pid = Pid::from_raw(pid).ok_or_else(|| io::Error::other("no process"))?;
    descriptor::watch(pidfd_open(pid, PidfdFlags::NONBLOCK)?)
}

/// The first process of a container or a sandbox, in what runtimes tell when they are asked to be verbose.
pub(super) fn pid_in(info: &HashMap<String, String>) -> Option<i32> {
    let direct = info.get("pid").and_then(|pid| pid.parse().ok());
    let nested = || {
        let info: serde_json::Value = serde_json::from_str(info.get("info")?).ok()?;
        i32::try_from(info["pid"].as_i64()?).ok()
    };
    direct.or_else(nested).filter(|pid| *pid > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn the_process_is_found_in_what_runtimes_tell() {
        let info = |key: &str, text: &str| HashMap::from([(key.to_owned(), text.to_owned())]);
        assert_eq!(pid_in(&info("info", r#"{"sandboxID":"a","pid":812}"#)), Some(812));
        assert_eq!(pid_in(&info("pid", "812")), Some(812));
        for nothing in [info("info", r#"{"pid":0}"#), info("info", "{"), info("other", "812")] {
            assert_eq!(pid_in(&nothing), None);
        }
    }

    #[tokio::test]
    async fn the_end_of_a_process_wakes_whoever_lists() {
        let wake = Arc::new(Notify::new());
        let mut exits = Exits::new(wake.clone());
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let task = exits.watch(child.id() as i32).unwrap();
        exits.watched.insert("a".into(), Some(task));
        child.kill().unwrap();
        wake.notified().await;
        child.wait().unwrap();
        assert!(exits.watch(child.id() as i32).is_none(), "one that is gone can't be watched");
    }
}

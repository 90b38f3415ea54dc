//! One task per pod. It is told how the pod shall be, is woken when something about it changed, and takes its own time:
//! whatever is slow about one pod holds up no other.

use super::context::Context;
use super::sync::{Round, round};
use super::terminate::{self, Ending};
use crate::pods::{self, is_terminal};
use crate::status::containers::Reasons;
use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Notify, mpsc, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

/// How a pod shall be.
#[derive(Clone, Debug, Default)]
pub struct Wish {
    /// The pod; none for one that only the runtime still knows.
    pub pod: Option<Arc<Pod>>,
    /// It shall end like this, whatever its object says.
    pub end: Option<Ending>,
}

impl Wish {
    /// How it shall end, if it shall.
    fn ending(&self) -> Option<Ending> {
        let deleting = self.pod.as_ref().is_none_or(|pod| pods::is_deleting(pod) || is_terminal(pods::phase(pod)));
        match &self.end {
            Some(ending) => Some(ending.clone()),
            None => deleting.then(Ending::default),
        }
    }

    /// Seconds that an end would take at most, to see when one gets shorter.
    fn seconds(&self) -> Option<i64> {
        let own = self.pod.as_ref().and_then(|pod| pod.metadata.deletion_grace_period_seconds);
        let overridden = self.end.as_ref().and_then(|ending| ending.grace);
        match (own, overridden) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }
}

/// How far a worker is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// The pod runs or is being brought up.
    Running,
    /// It is being stopped.
    Stopping,
    /// Nothing of it runs; what it leaves is being removed.
    Stopped,
    /// It is gone from the node.
    Finished,
}

struct Handle {
    wish: watch::Sender<Wish>,
    wake: Arc<Notify>,
    stage: watch::Receiver<Stage>,
    _task: AbortOnDropHandle<()>,
}

/// The workers of all pods, by UID.
pub struct Workers {
    ctx: Arc<Context>,
    handles: Mutex<HashMap<String, Handle>>,
    finished: mpsc::UnboundedSender<String>,
}

impl Workers {
    /// Workers on a common ground. UIDs of pods that are gone from the node are sent to `finished`.
    pub fn new(ctx: Arc<Context>, finished: mpsc::UnboundedSender<String>) -> Self {
        Self { ctx, handles: Mutex::default(), finished }
    }

    /// Tells how a pod shall be; its worker is made when there is none.
    pub fn tell(&self, uid: &str, wish: Wish) {
        let mut handles = self.handles.lock();
        match handles.get(uid) {
            Some(handle) => drop(handle.wish.send_replace(wish)),
            None => drop(handles.insert(uid.to_owned(), self.spawn(uid, wish))),
        }
    }

    /// Tells of a newer version of a pod that has a worker; an end that was ordered stays ordered.
    pub fn tell_pod(&self, uid: &str, pod: &Arc<Pod>) {
        if let Some(handle) = self.handles.lock().get(uid) {
            handle.wish.send_modify(|wish| wish.pod = Some(pod.clone()));
        }
    }

    /// Ends a pod that has a worker, whatever its object says. The gentler of two ends is overridden.
    pub fn end(&self, uid: &str, ending: Ending) {
        if let Some(handle) = self.handles.lock().get(uid) {
            handle.wish.send_modify(|wish| {
                let before = wish.end.take();
                let eviction = before.as_ref().and_then(|end| end.eviction.clone()).or(ending.eviction.clone());
                let shorter = |a: Option<i64>, b: Option<i64>| match (a, b) {
                    (Some(a), Some(b)) => Some(a.min(b)),
                    (a, b) => a.or(b),
                };
                let grace = shorter(before.and_then(|end| end.grace), ending.grace);
                wish.end = Some(Ending { grace, eviction });
            });
        }
    }

    /// Something about the pod changed.
    pub fn wake(&self, uid: &str) {
        if let Some(handle) = self.handles.lock().get(uid) {
            handle.wake.notify_one();
        }
    }

    /// How far the pod's worker is; none when it has none.
    pub fn stage(&self, uid: &str) -> Option<Stage> {
        self.handles.lock().get(uid).map(|handle| *handle.stage.borrow())
    }

    /// UIDs of all pods that have a worker.
    pub fn uids(&self) -> Vec<String> {
        self.handles.lock().keys().cloned().collect()
    }

    /// Drops the worker of a pod that is gone.
    pub fn forget(&self, uid: &str) {
        self.handles.lock().remove(uid);
    }

    fn spawn(&self, uid: &str, wish: Wish) -> Handle {
        let (wish, wishes) = watch::channel(wish);
        let (stage_send, stage) = watch::channel(Stage::Running);
        let wake = Arc::new(Notify::new());
        let worker = Worker {
            ctx: self.ctx.clone(),
            uid: uid.to_owned(),
            wishes,
            wake: wake.clone(),
            stage: stage_send,
            reasons: Reasons::new(),
        };
        let (finished, uid) = (self.finished.clone(), uid.to_owned());
        let task = tokio::spawn(async move {
            worker.live().await;
            // The receiver is the kubelet itself.
            let _ = finished.send(uid);
        });
        Handle { wish, wake, stage, _task: AbortOnDropHandle::new(task) }
    }
}

struct Worker {
    ctx: Arc<Context>,
    uid: String,
    wishes: watch::Receiver<Wish>,
    wake: Arc<Notify>,
    stage: watch::Sender<Stage>,
    reasons: Reasons,
}

/// Delays after failures: upstream's worker waits ten seconds; the first tries come sooner here.
fn retry_delay(failures: u32) -> Duration {
    Duration::from_secs_f64((0.5 * f64::from(1u32 << failures.min(5))).min(10.0) * rand::random_range(1.0..1.2))
}

impl Worker {
    async fn live(mut self) {
        self.run().await;
        self.stage.send_replace(Stage::Stopping);
        self.stop().await;
        self.stage.send_replace(Stage::Stopped);
        self.clean().await;
        self.stage.send_replace(Stage::Finished);
    }

    fn wish(&mut self) -> Wish {
        self.wishes.borrow_and_update().clone()
    }

    /// Returns when the pod shall end.
    async fn run(&mut self) {
        let mut failures = 0;
        loop {
            let wish = self.wish();
            let Some(pod) = wish.pod.clone().filter(|_| wish.ending().is_none()) else { return };
            let pod = self.ctx.allocations.granted(&pod);
            let next = match self.guarded_round(&pod).await {
                Some(Round::Over) | None => return,
                Some(Round::Settled(at)) => {
                    failures = 0;
                    at
                }
                Some(Round::Failed) => {
                    failures += 1;
                    Instant::now() + retry_delay(failures)
                }
            };
            tokio::select! {
                // The sender lives as long as the handle, and that as long as this task.
                _ = self.wishes.changed() => {}
                () = self.wake.notified() => {}
                () = tokio::time::sleep_until(next.into()) => {}
            }
        }
    }

    /// A round that gives up its long waits when the pod shall end; `None` when it shall.
    async fn guarded_round(&mut self, pod: &Arc<Pod>) -> Option<Round> {
        let cancel = CancellationToken::new();
        let (ctx, mut wishes) = (self.ctx.clone(), self.wishes.clone());
        let round = round(&ctx, pod, &mut self.reasons, &cancel);
        tokio::pin!(round);
        let ends = async {
            // The sender is alive; an error would only end the wait early.
            let _ = wishes.wait_for(|wish| wish.ending().is_some()).await;
        };
        tokio::select! {
            done = &mut round => return Some(done),
            () = ends => cancel.cancel(),
        }
        round.await;
        None
    }

    async fn stop(&mut self) {
        let mut failures = 0;
        loop {
            let wish = self.wish();
            let ending = wish.ending().unwrap_or_default();
            let seconds = wish.seconds();
            let mut wishes = self.wishes.clone();
            // A second deletion, or a force deletion, may leave less time.
            let shorter = async move {
                let less = |wish: &Wish| match (wish.seconds(), seconds) {
                    (Some(new), Some(old)) => new < old,
                    (Some(_), None) => true,
                    (None, _) => false,
                };
                let _ = wishes.wait_for(less).await;
            };
            let stop = terminate::stop(&self.ctx, &self.uid, wish.pod.as_ref(), &ending, &self.reasons);
            tokio::select! {
                done = stop => match done {
                    Ok(()) => return,
                    Err(error) => {
                        tracing::warn!(uid = self.uid, error, "error stopping pod, trying again");
                        failures += 1;
                        tokio::time::sleep(retry_delay(failures)).await;
                    }
                },
                () = shorter => {}
            }
        }
    }

    async fn clean(&mut self) {
        let mut failures = 0;
        loop {
            let wish = self.wish();
            match terminate::clean(&self.ctx, &self.uid, wish.pod.as_ref()).await {
                Ok(()) => return,
                Err(error) => {
                    tracing::info!(uid = self.uid, error, "the pod's remains can't be removed yet");
                    failures += 1;
                    tokio::time::sleep(retry_delay(failures)).await;
                }
            }
        }
    }
}

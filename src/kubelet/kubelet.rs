//! The kubelet's one loop: what the sources, the runtime and the workers report, turned into wishes for workers.
//!
//! ```text
//! manifests ─┐                        ┌─► worker of pod a
//! API pods ──┼─► Kubelet (this loop) ─┼─► worker of pod b
//! runtime ───┘      ▲                 └─► …
//!                   └── finished pods ────┘
//! ```
//!
//! Nothing here waits for a pod: the loop only decides and hands on.

use crate::allocation::Verdict;
use crate::events::Level;
use crate::objects::Changes;
use crate::pods::admit::{self, Question, Refusal, admit};
use crate::pods::{self, full_name, is_mirror, is_static, is_terminal, qos};
use crate::runtime::exits::Exits;
use crate::runtime::labels;
use crate::runtime::state::{Glance, changed, glance};
use crate::status::conditions::condition;
use crate::status::manager::Life;
use crate::table::Table;
use crate::volumes::pod_dir;
use crate::work::context::Context;
use crate::work::terminate::Ending;
use crate::work::worker::{Stage, Wish, Workers};
use base::shutdown::Shutdown;
use client::{Change, Informer};
use k8s_openapi::api::core::v1::{Node, Pod, PodStatus};
use parking_lot::RwLock;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// When something was last seen whole; nothing before the first time.
pub type Listed = Arc<RwLock<Option<Instant>>>;

/// How often the runtime is listed.
const RELIST: Duration = Duration::from_secs(1);
/// The same while all that runs is watched and nothing has happened for as long.
const RELIST_QUIET: Duration = Duration::from_secs(10);
/// How often leftovers are looked for.
const HOUSEKEEPING: Duration = Duration::from_secs(2);
/// How often directories and groups are looked through although nothing is known to have changed.
const LOOK_ANYWAY: Duration = Duration::from_secs(60);

/// What others may ask of the kubelet.
#[derive(Debug)]
pub enum Request {
    /// End a pod.
    End(String, Ending),
}

/// The loop and what it decides on.
pub struct Kubelet {
    /// The workers' common ground.
    pub ctx: Arc<Context>,
    /// The pods there shall be.
    pub table: Arc<Table>,
    /// The workers.
    pub workers: Arc<Workers>,
    /// The node as it is known here.
    pub node: Arc<RwLock<Node>>,
    /// Kernel settings that are allowed although unsafe.
    pub unsafe_sysctls: Vec<String>,
    /// Pods of the API, when there is one.
    pub api: Option<Informer<Pod>>,
    glances: HashMap<String, Glance>,
    /// Pods that wait for others to end: static ones for another of their name, critical ones for room.
    waiting: Vec<Arc<Pod>>,
    manifests_read: bool,
    has_manifests: bool,
    /// Something has changed, or was left over, since leftovers were last looked for.
    unclean: bool,
    cleaned: Instant,
    /// When the runtime was last listed successfully.
    pub listed: Listed,
    /// Have all sources told what they have?
    pub complete: Arc<AtomicBool>,
    exits: Exits,
    /// Since when nothing has happened.
    quiet_since: Instant,
    /// Is every end of what runs told?
    settled: bool,
}

/// May a pod run here?
enum Answer {
    /// Yes.
    Admit,
    /// When these are gone.
    Preempt(Vec<Arc<Pod>>),
    /// No.
    Refuse(Refusal),
}

/// Where the loop hears from.
pub struct Inputs {
    /// The set of static pods.
    pub manifests: Option<mpsc::Receiver<Vec<Arc<Pod>>>>,
    /// Pods gone from the node.
    pub finished: mpsc::UnboundedReceiver<String>,
    /// Changed ConfigMaps and Secrets.
    pub objects: Changes,
    /// Wishes of others.
    pub requests: mpsc::Receiver<Request>,
}

impl Kubelet {
    /// A kubelet that has not looked at anything yet.
    pub fn new(
        ctx: Arc<Context>, table: Arc<Table>, workers: Arc<Workers>, node: Arc<RwLock<Node>>,
        api: Option<Informer<Pod>>, unsafe_sysctls: Vec<String>,
    ) -> Self {
        let exits = Exits::new(ctx.relist.clone());
        Self {
            ctx,
            table,
            workers,
            node,
            unsafe_sysctls,
            api,
            glances: HashMap::new(),
            waiting: Vec::new(),
            manifests_read: false,
            has_manifests: false,
            unclean: true,
            cleaned: Instant::now(),
            listed: Arc::default(),
            complete: Arc::default(),
            exits,
            quiet_since: Instant::now(),
            settled: false,
        }
    }

    /// Runs until the shutdown. Containers live on.
    pub async fn run(mut self, inputs: Inputs, shutdown: Shutdown) {
        let Inputs { manifests, mut finished, mut objects, mut requests } = inputs;
        self.has_manifests = manifests.is_some();
        let mut manifests = manifests;
        let (send, mut changes) = mpsc::unbounded_channel();
        if let Some(api) = &self.api {
            // The receiver is this loop.
            api.on_change(move |change| drop(send.send(change.clone())));
        }
        let mut relist = tokio::time::interval(RELIST);
        relist.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut housekeeping = tokio::time::interval(HOUSEKEEPING);
        housekeeping.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let ctx = self.ctx.clone();
        // The runtime is listed once before anything is decided: a kubelet that starts anew must know what runs.
        self.relist().await;
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                _ = relist.tick() => self.relist_in_turn().await,
                () = ctx.relist.notified() => {
                    self.stir();
                    self.relist().await;
                }
                _ = housekeeping.tick() => self.clean_up(),
                Some(pods) = next(&mut manifests) => self.manifests(pods),
                Some(change) = changes.recv() => self.api_change(change),
                Some(uid) = finished.recv() => self.finished(&uid),
                Some(request) = requests.recv() => self.request(request),
                uids = ctx.objects.next_change(&mut objects) => uids.iter().for_each(|uid| self.workers.wake(uid)),
            }
        }
    }

    fn request(&self, request: Request) {
        match request {
            Request::End(uid, ending) => self.workers.end(&uid, ending),
        }
    }

    /// Lists the runtime, unless nothing can have happened that would not have been told.
    async fn relist_in_turn(&mut self) {
        let listed = *self.listed.read();
        let quiet = self.settled && self.quiet_since.elapsed() > RELIST_QUIET;
        if !quiet || listed.is_none_or(|at| at.elapsed() >= RELIST_QUIET) {
            self.relist().await;
        }
    }

    /// Something has happened: leftovers may be there, and the runtime is busy.
    fn stir(&mut self) {
        self.unclean = true;
        self.quiet_since = Instant::now();
    }

    /// Lists the runtime and wakes the workers of pods that changed.
    async fn relist(&mut self) {
        let listed = tokio::try_join!(self.ctx.cri.sandboxes(None), self.ctx.cri.containers(None));
        let (sandboxes, containers) = match listed {
            Ok(lists) => lists,
            Err(error) => return tracing::debug!(%error, "can't list the runtime"),
        };
        let now = glance(sandboxes, containers);
        for uid in changed(&self.glances, &now) {
            self.stir();
            self.workers.wake(&uid);
        }
        self.glances = now;
        *self.listed.write() = Some(Instant::now());
        let running = self.glances.values().flat_map(Glance::up).collect();
        self.settled = self.exits.follow(&self.ctx.cri, &running).await;
        self.adopt_orphans();
        self.retry_waiting();
    }

    /// Have all sources told what they have?
    fn sources_ready(&self) -> bool {
        let manifests = !self.has_manifests || self.manifests_read;
        let ready = manifests && self.api.as_ref().is_none_or(Informer::has_synced);
        self.complete.store(ready, Ordering::Relaxed);
        ready
    }

    /// UIDs of the pods that the API has for this node, those included that this loop has yet to hear of.
    fn in_api(&self) -> HashSet<String> {
        let list = self.api.as_ref().map(Informer::list).unwrap_or_default();
        list.iter().map(|pod| pods::uid(pod).to_owned()).collect()
    }

    /// Pods that only the runtime still knows are ended. Those of manifests need no word of the API for that: it may be
    /// such a pod that brings the API back.
    fn adopt_orphans(&self) {
        let (ready, in_api) = (self.sources_ready(), self.in_api());
        for (uid, glance) in &self.glances {
            let told = ready || (glance.from_file && (self.manifests_read || !self.has_manifests));
            let wanted = self.table.get(uid).is_some() || in_api.contains(uid);
            if told && !wanted && glance.alive() && self.workers.stage(uid).is_none() {
                tracing::info!(
                    uid,
                    name = glance.name,
                    namespace = glance.namespace,
                    "ending a pod that is no longer wanted"
                );
                self.workers.tell(uid, Wish::default());
            }
        }
    }

    fn manifests(&mut self, pods: Vec<Arc<Pod>>) {
        self.manifests_read = true;
        let wanted: HashSet<&str> = pods.iter().map(|pod| pods::uid(pod)).collect();
        let gone: Vec<Arc<Pod>> =
            self.table.all().into_iter().filter(|pod| is_static(pod) && !wanted.contains(pods::uid(pod))).collect();
        self.waiting.retain(|pod| !is_static(pod) || wanted.contains(pods::uid(pod)));
        for pod in gone {
            self.stir();
            self.removed(&pod);
        }
        for pod in pods {
            let waits = self.waiting.iter().any(|other| pods::uid(other) == pods::uid(&pod));
            if self.table.get(pods::uid(&pod)).is_none() && !waits {
                self.stir();
                self.added(pod);
            }
        }
        // Only now: what runs of a pod that has just been added is its own.
        self.adopt_orphans();
        self.drop_stray_mirrors();
    }

    fn api_change(&mut self, change: Change<Pod>) {
        self.stir();
        match change {
            Change::Added(pod) => self.api_pod(pod),
            Change::Updated(old, new) if pods::uid(&old) != pods::uid(&new) => {
                self.api_removed(&old);
                self.api_pod(new);
            }
            Change::Updated(_, new) => self.api_pod(new),
            Change::Removed(pod) => self.api_removed(&pod),
        }
    }

    fn api_pod(&mut self, pod: Arc<Pod>) {
        if is_mirror(&pod) {
            return self.mirror(&pod);
        }
        self.ctx.statuses.seen_in_api(pods::uid(&pod), &pod);
        match self.table.put(&pod) {
            None => self.added(pod),
            Some(_) => self.updated(&pod),
        }
    }

    fn api_removed(&mut self, pod: &Arc<Pod>) {
        if !is_mirror(pod) {
            return self.removed(pod);
        }
        if let Some(mirrors) = &self.ctx.mirrors {
            mirrors.gone(pod);
        }
        if let Some(own) = self.table.static_of(pod) {
            self.workers.wake(pods::uid(&own));
        }
    }

    fn mirror(&self, mirror: &Arc<Pod>) {
        let Some(mirrors) = &self.ctx.mirrors else { return };
        mirrors.seen(mirror);
        match self.table.static_of(mirror) {
            Some(own) => {
                self.ctx.statuses.seen_in_api(pods::uid(&own), mirror);
                self.workers.wake(pods::uid(&own));
            }
            None => self.drop_stray_mirrors(),
        }
    }

    /// Mirrors of static pods that are no more.
    fn drop_stray_mirrors(&self) {
        if !self.sources_ready() {
            return;
        }
        let Some(mirrors) = &self.ctx.mirrors else { return };
        for mirror in mirrors.all() {
            let waits = self.waiting.iter().any(|pod| full_name(pod) == full_name(&mirror));
            if self.table.static_of(&mirror).is_none() && !waits {
                let ctx = self.ctx.clone();
                tokio::spawn(async move {
                    if let Some(mirrors) = &ctx.mirrors {
                        mirrors.delete(&mirror).await;
                    }
                });
            }
        }
    }

    /// A pod that is new here.
    fn added(&mut self, pod: Arc<Pod>) {
        if is_static(&pod) && (self.name_is_taken(&pod) || self.is_ending(&pod)) {
            // The old one of this name ends first, be it the same manifest that went and came back.
            self.waiting.push(pod);
            return;
        }
        self.table.put(&pod);
        let uid = pods::uid(&pod).to_owned();
        if !is_terminal(pods::phase(&pod)) && !pods::is_deleting(&pod) {
            match self.admit(&pod) {
                Answer::Admit => self.ctx.allocations.admit(&pod),
                Answer::Refuse(refusal) => return self.reject(&pod, refusal),
                Answer::Preempt(victims) => {
                    victims.iter().for_each(|victim| self.preempt(victim));
                    // It is asked about again when one of them is gone.
                    return self.waiting.push(pod);
                }
            }
        }
        self.workers.tell(&uid, Wish { pod: Some(pod), end: None });
    }

    /// Is the pod itself still on its way out?
    fn is_ending(&self, pod: &Pod) -> bool {
        self.workers.stage(pods::uid(pod)).is_some_and(|stage| stage != Stage::Finished)
    }

    /// Is another pod of the name still on the node?
    fn name_is_taken(&self, pod: &Pod) -> bool {
        let (name, uid) = (full_name(pod), pods::uid(pod));
        let by_worker = self.workers.uids().iter().any(|other| {
            let glance = self.glances.get(other).map(|g| format!("{}_{}", g.name, g.namespace));
            let known = self.table.get(other).map(|pod| full_name(&pod)).or(glance);
            other != uid
                && known.as_deref() == Some(name.as_str())
                && self.workers.stage(other) != Some(Stage::Finished)
        });
        let named = |glance: &Glance| format!("{}_{}", glance.name, glance.namespace) == name;
        by_worker || self.glances.iter().any(|(other, glance)| other != uid && named(glance) && glance.alive())
    }

    fn alive_others(&self, pod: &Pod) -> Vec<Arc<Pod>> {
        let ended = |other: &Arc<Pod>| {
            let uid = pods::uid(other);
            let status = self.ctx.statuses.get(uid).and_then(|status| status.phase).unwrap_or_default();
            is_terminal(pods::phase(other))
                || is_terminal(&status)
                || self.workers.stage(uid).is_none_or(|stage| stage >= Stage::Stopped)
        };
        let others = self.table.all().into_iter().filter(|other| pods::uid(other) != pods::uid(pod) && !ended(other));
        others.map(|other| self.ctx.allocations.granted(&other)).collect()
    }

    fn admit(&self, pod: &Arc<Pod>) -> Answer {
        // What already runs here has been let in before the kubelet restarted.
        if self.glances.contains_key(pods::uid(pod)) {
            return Answer::Admit;
        }
        let alive = self.alive_others(pod);
        let others: Vec<&Pod> = alive.iter().map(Arc::as_ref).collect();
        let node = self.node.read();
        match admit(&Question { pod, others: &others, node: &node, unsafe_sysctls: &self.unsafe_sysctls }) {
            admit::Verdict::Admit => Answer::Admit,
            admit::Verdict::Refuse(refusal) => Answer::Refuse(refusal),
            admit::Verdict::Preempt(victims) => {
                Answer::Preempt(victims.into_iter().map(|at| alive[at].clone()).collect())
            }
        }
    }

    /// Ends a pod whose place a critical one takes.
    fn preempt(&self, victim: &Arc<Pod>) {
        const REASON: &str = "Preempting";
        const MESSAGE: &str = "Preempted in order to admit critical pod";
        self.ctx.events.pod(victim, Level::Warning, REASON, MESSAGE);
        let why = "Pod was preempted by Kubelet to accommodate a critical pod.";
        let disruption = condition(victim, "DisruptionTarget", true, "TerminationByKubelet", why);
        self.ctx.statuses.disrupt(pods::uid(victim), disruption);
        self.workers.end(pods::uid(victim), Ending { grace: None, eviction: Some((REASON.into(), MESSAGE.into())) });
    }

    fn reject(&self, pod: &Arc<Pod>, refusal: Refusal) {
        self.ctx.events.pod(pod, Level::Warning, &refusal.reason, &refusal.message);
        let status = PodStatus {
            phase: Some("Failed".into()),
            reason: Some(refusal.reason),
            message: Some(format!("Pod was rejected: {}", refusal.message)),
            qos_class: Some(qos::class(pod).name().into()),
            ..Default::default()
        };
        // Nothing of it has ever been on the node: its object may go as soon as that is asked for.
        self.ctx.statuses.set(pod, status, Life::Finished);
    }

    fn updated(&self, pod: &Arc<Pod>) {
        let uid = pods::uid(pod);
        let others = self.alive_others(pod);
        let others: Vec<&Pod> = others.iter().map(Arc::as_ref).collect();
        let allocatable = self.ctx.allocatable.read().clone();
        let tell = |level, reason, text: String| self.ctx.events.pod(pod, level, reason, text);
        let was_pending = self.ctx.allocations.is_pending(uid);
        match self.ctx.allocations.consider(pod, &others, &allocatable) {
            Verdict::Same => {}
            Verdict::Granted => {
                let summary = crate::allocation::summary(pod, pod.metadata.generation.unwrap_or(0));
                tell(Level::Normal, "ResizeStarted", format!("Pod resize started: {summary}"));
            }
            Verdict::Deferred(text) if !was_pending => {
                tell(Level::Warning, "ResizeDeferred", format!("Pod resize Deferred: {text}"))
            }
            Verdict::Infeasible(text) if !was_pending => {
                tell(Level::Warning, "ResizeInfeasible", format!("Pod resize Infeasible: {text}"));
            }
            Verdict::Deferred(_) | Verdict::Infeasible(_) => {}
        }
        // A pod without a worker was rejected, and stays so.
        self.workers.tell_pod(uid, pod);
    }

    /// A pod that shall no longer be here.
    fn removed(&mut self, pod: &Arc<Pod>) {
        let uid = pods::uid(pod);
        self.table.remove(uid);
        self.waiting.retain(|other| pods::uid(other) != uid);
        match self.workers.stage(uid) {
            None => self.forget(uid),
            Some(Stage::Finished) => {
                self.workers.forget(uid);
                self.forget(uid);
            }
            Some(_) => self.workers.end(uid, Ending::default()),
        }
        self.drop_stray_mirrors();
    }

    fn forget(&self, uid: &str) {
        self.ctx.statuses.forget(uid);
    }

    /// A worker is through: nothing of its pod is left on the node.
    fn finished(&mut self, uid: &str) {
        self.stir();
        if self.table.get(uid).is_none() {
            self.workers.forget(uid);
            self.forget(uid);
        }
        // What was listed last is out of date.
        self.glances.remove(uid);
        self.retry_waiting();
        self.retry_resizes();
    }

    /// Pods whose name or room may have become free.
    fn retry_waiting(&mut self) {
        for pod in std::mem::take(&mut self.waiting) {
            // Its newest version; one that still has to wait goes back to the others.
            self.added(self.table.get(pods::uid(&pod)).unwrap_or(pod));
        }
    }

    /// Room has become free: wishes that had to wait are looked at again.
    fn retry_resizes(&self) {
        for pod in self.table.all() {
            if self.ctx.allocations.is_pending(pods::uid(&pod)) {
                self.updated(&pod);
            }
        }
    }

    /// Removes what belongs to no pod: directories, groups, statuses.
    fn clean_up(&mut self) {
        if !self.sources_ready() || self.listed.read().is_none() {
            return;
        }
        if self.unclean || self.cleaned.elapsed() > LOOK_ANYWAY {
            self.unclean = !self.remove_leftovers();
            self.cleaned = Instant::now();
        }
        if let Some(mirrors) = &self.ctx.mirrors {
            self.table.all().iter().filter(|pod| mirrors.lacks(pod)).for_each(|pod| self.workers.wake(pods::uid(pod)));
        }
        let mut keep: HashSet<String> = self.workers.uids().into_iter().collect();
        keep.extend(self.table.all().iter().map(|pod| pods::uid(pod).to_owned()));
        self.ctx.statuses.retain(&keep);
        self.ctx.backoff.lock().collect(jiff::Timestamp::now());
        let ids = self.glances.values().flat_map(|glance| glance.containers.keys().cloned()).collect();
        self.ctx.probes.retain_results(&ids);
    }

    /// Directories and groups of pods that are gone; false when some could not be removed.
    fn remove_leftovers(&self) -> bool {
        let in_api = self.in_api();
        let known = |uid: &String| {
            in_api.contains(uid)
                || self.table.get(uid).is_some()
                || self.workers.stage(uid).is_some()
                || self.glances.get(uid).is_some_and(|glance| glance.sandboxes.values().any(|ready| *ready))
        };
        let mut clean = true;
        let root = self.ctx.volumes.root();
        let dirs = std::fs::read_dir(root.join("pods")).into_iter().flatten().flatten();
        let uids = dirs.map(|entry| entry.file_name().to_string_lossy().into_owned());
        for uid in uids.filter(|uid| !known(uid)) {
            if let Err(error) = self.ctx.volumes.teardown(&uid) {
                clean = false;
                tracing::warn!(dir = %pod_dir(root, &uid).display(), %error, "can't remove the directory of a pod that is gone");
            }
        }
        let Some(groups) = &self.ctx.cgroups else { return clean };
        for uid in groups.pods().into_iter().filter(|uid| !known(uid)) {
            if let Err(error) = groups.remove(&uid) {
                clean = false;
                tracing::warn!(uid, %error, "can't remove the control groups of a pod that is gone");
            }
        }
        let burstable = self.table.all().into_iter().filter(|pod| qos::class(pod) == qos::Class::Burstable);
        let cpu: i64 =
            burstable.filter_map(|pod| qos::totals(&pod, qos::Side::Requests, true).get("cpu").copied()).sum();
        if let Err(error) = groups.set_class_shares(cpu) {
            clean = false;
            tracing::debug!(%error, "can't weigh the classes of pods");
        }
        clean
    }
}

async fn next<T>(receiver: &mut Option<mpsc::Receiver<T>>) -> Option<T> {
    match receiver {
        Some(receiver) => match receiver.recv().await {
            Some(item) => Some(item),
            // The sender is gone for good: nothing more will come from there.
            None => std::future::pending().await,
        },
        None => std::future::pending().await,
    }
}

/// The label of a pod's UID, for those that look at the runtime by themselves.
pub fn uid_label() -> &'static str {
    labels::POD_UID
}

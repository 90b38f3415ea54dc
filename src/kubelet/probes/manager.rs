//! Which probes run, and what they last said.

use super::ProbeKind;
use super::metrics::Metrics;
use super::worker::{Worker, spec};
use crate::events::Events;
use crate::pods::{self, Kind, is_sidecar};
use crate::runtime::cri::Cri;
use crate::runtime::plan::ProbeResults;
use crate::status::manager::StatusManager;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod};
use parking_lot::{Mutex, RwLock};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::Notify;
use tokio_util::task::AbortOnDropHandle;

/// Results by container id.
#[derive(Default)]
pub struct Results(RwLock<ProbeResults>);

impl Results {
    fn with<T>(&self, kind: ProbeKind, f: impl FnOnce(&mut HashMap<String, bool>) -> T) -> T {
        let mut results = self.0.write();
        f(match kind {
            ProbeKind::Liveness => &mut results.liveness,
            ProbeKind::Readiness => &mut results.readiness,
            ProbeKind::Startup => &mut results.startup,
        })
    }

    /// True when the result is another than before.
    fn set(&self, kind: ProbeKind, id: &str, result: bool) -> bool {
        self.with(kind, |map| map.insert(id.to_owned(), result) != Some(result))
    }

    pub(super) fn remove(&self, kind: ProbeKind, id: &str) {
        self.with(kind, |map| map.remove(id));
    }
}

/// What all probes share.
pub struct Shared {
    pub(super) cri: Cri,
    pub(super) events: Events,
    pub(super) statuses: Arc<StatusManager>,
    pub(super) results: Results,
    pub(super) metrics: Metrics,
    /// When the kubelet started, by both clocks.
    pub(super) started: Instant,
    pub(super) started_at: Timestamp,
    terminating: Mutex<HashSet<String>>,
    wake: Box<dyn Fn(&str) + Send + Sync>,
}

impl Shared {
    pub(super) fn set(&self, uid: &str, kind: ProbeKind, id: &str, result: bool) {
        if !self.results.set(kind, id, result) {
            return;
        }
        if kind == ProbeKind::Readiness {
            self.statuses.set_readiness(uid, id, result);
        }
        (self.wake)(uid);
    }

    pub(super) fn is_terminating(&self, uid: &str) -> bool {
        self.terminating.lock().contains(uid)
    }
}

/// Pod, container, kind.
type Key = (String, String, ProbeKind);

struct Running {
    poke: Arc<Notify>,
    task: AbortOnDropHandle<()>,
}

/// The probes of this node.
pub struct ProbeManager {
    shared: Arc<Shared>,
    running: Mutex<HashMap<Key, Running>>,
}

const KINDS: [ProbeKind; 3] = [ProbeKind::Startup, ProbeKind::Readiness, ProbeKind::Liveness];

impl ProbeManager {
    /// Probes through a runtime; `wake` is called with a pod's UID when a result of its changes.
    pub fn new(
        cri: Cri, events: Events, statuses: Arc<StatusManager>, wake: impl Fn(&str) + Send + Sync + 'static,
    ) -> Self {
        let shared = Shared {
            cri,
            events,
            statuses,
            results: Results::default(),
            metrics: Metrics::default(),
            started: Instant::now(),
            started_at: Timestamp::now(),
            terminating: Mutex::default(),
            wake: Box::new(wake),
        };
        Self { shared: Arc::new(shared), running: Mutex::default() }
    }

    /// When the kubelet started.
    pub fn started_at(&self) -> Timestamp {
        self.shared.started_at
    }

    /// How often probes said what, as Prometheus reads it.
    pub fn metrics(&self) -> String {
        self.shared.metrics.text()
    }

    /// What all probes last said.
    pub fn results(&self) -> ProbeResults {
        self.shared.results.0.read().clone()
    }

    /// Starts the pod's probes that do not run yet.
    pub fn add(&self, pod: &Arc<Pod>) {
        for (place, _) in pods::places(pod) {
            let Some(container) = pods::container_at(pod, place) else { continue };
            let probed = match place.kind {
                Kind::App => true,
                Kind::Init => is_sidecar(&container),
                Kind::Ephemeral => false,
            };
            for kind in KINDS.into_iter().filter(|_| probed) {
                if spec(&container, kind).is_some() {
                    self.start(pod, &container, kind, place.kind == Kind::Init);
                }
            }
        }
    }

    fn start(&self, pod: &Arc<Pod>, container: &Container, kind: ProbeKind, init: bool) {
        let key = (pods::uid(pod).to_owned(), container.name.clone(), kind);
        let mut running = self.running.lock();
        if running.get(&key).is_some_and(|running| !running.task.is_finished()) {
            return;
        }
        let worker = Worker::new(self.shared.clone(), pod.clone(), container.clone(), kind, init);
        let poke = Arc::new(Notify::new());
        let task = AbortOnDropHandle::new(tokio::spawn(worker.run(poke.clone())));
        running.insert(key, Running { poke, task });
    }

    /// Asks the pod's readiness probes at once: a container has just started.
    pub fn poke(&self, uid: &str) {
        for ((owner, _, kind), running) in self.running.lock().iter() {
            if owner == uid && *kind != ProbeKind::Liveness {
                running.poke.notify_one();
            }
        }
    }

    /// The pod is on its way out: nothing restarts its containers any more, but readiness is still told.
    pub fn stop_restarting(&self, uid: &str) {
        self.shared.terminating.lock().insert(uid.to_owned());
    }

    /// Stops all probes of a pod and forgets their results.
    pub fn remove(&self, uid: &str) {
        self.running.lock().retain(|(owner, _, _), _| owner != uid);
        self.shared.terminating.lock().remove(uid);
    }

    /// Forgets results of containers that are gone.
    pub fn retain_results(&self, ids: &HashSet<String>) {
        let mut results = self.shared.results.0.write();
        let results = &mut *results;
        for map in [&mut results.liveness, &mut results.readiness, &mut results.startup] {
            map.retain(|id, _| ids.contains(id));
        }
    }
}

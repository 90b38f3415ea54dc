//! The shell around the pure parts: informers feed the world and the queue, decisions become bindings, conditions and
//! events.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use base::shutdown::Shutdown;
use client::events::{EventKind, Record, reference};
use client::{Change, Informer, Informers, Recorder, Selection, retry};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::histogram::Histogram;
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::config::{Config, Profile};
use crate::cycle::{self, Unfit};
use crate::framework::Event;
use crate::preemption::{self, Candidate};
use crate::queue::{Queue, Waiting};
use crate::state::{PodInfo, Snapshot};

/// What informers write and cycles read.
struct Inner {
    world: Snapshot,
    queue: Queue,
    /// Pods that were decided and are not confirmed yet: UID and node.
    assumed: HashMap<String, String>,
}

struct Metrics {
    scheduled: Counter,
    unschedulable: Counter,
    errors: Counter,
    preemptions: Counter,
    duration: Histogram,
}

impl Metrics {
    fn new() -> Self {
        let registry = base::metrics::global();
        let buckets = base::metrics::exponential(0.0001, 2.0, 16);
        let attempts = |result: &str| {
            let name = format!("scheduler_schedule_attempts_{result}");
            registry.add(&name, "Number of attempts to schedule pods, by the result", Counter::default())
        };
        Self {
            scheduled: attempts("scheduled"),
            unschedulable: attempts("unschedulable"),
            errors: attempts("error"),
            preemptions: registry.add(
                "scheduler_preemption_attempts",
                "Total preemption attempts in the cluster till now",
                Counter::default(),
            ),
            duration: registry.add(
                "scheduler_scheduling_attempt_duration_seconds",
                "Scheduling attempt latency in seconds (scheduling algorithm + binding)",
                Histogram::new(buckets),
            ),
        }
    }
}

/// The scheduler.
pub struct Scheduler {
    config: Config,
    client: kube::Client,
    recorder: Recorder,
    inner: Mutex<Inner>,
    wake: Notify,
    pods: Informer<Pod>,
    nodes: Informer<Node>,
    namespaces: Informer<Namespace>,
    budgets: Informer<PodDisruptionBudget>,
    metrics: Metrics,
}

/// A decision on one pod.
enum Decision {
    Node(String),
    Unfit(Unfit, Option<Candidate>),
}

impl Scheduler {
    /// A scheduler over these informers, which feed it from now on.
    pub fn new(config: Config, client: kube::Client, informers: &Informers, recorder: Recorder) -> Arc<Self> {
        let scheduler = Arc::new(Self {
            inner: Mutex::new(Inner {
                world: Snapshot::default(),
                queue: Queue::new(config.pauses),
                assumed: HashMap::new(),
            }),
            config,
            client,
            recorder,
            wake: Notify::new(),
            // Pods that have ended take no room.
            pods: informers.select(&Selection::fields("status.phase!=Succeeded,status.phase!=Failed")),
            nodes: informers.of(),
            namespaces: informers.of(),
            budgets: informers.of(),
            metrics: Metrics::new(),
        });
        scheduler.listen();
        scheduler
    }

    fn listen(self: &Arc<Self>) {
        let weak = Arc::downgrade(self);
        self.pods.on_change(move |change| {
            if let Some(scheduler) = weak.upgrade() {
                scheduler.pod_changed(change);
            }
        });
        let weak = Arc::downgrade(self);
        self.nodes.on_change(move |change| {
            if let Some(scheduler) = weak.upgrade() {
                scheduler.node_changed(change);
            }
        });
        let weak = Arc::downgrade(self);
        self.namespaces.on_change(move |change| {
            if let Some(scheduler) = weak.upgrade() {
                scheduler.namespace_changed(change);
            }
        });
    }

    fn profile(&self, pod: &PodInfo) -> Option<&Profile> {
        let name = pod.spec().and_then(|s| s.scheduler_name.as_deref()).unwrap_or("default-scheduler");
        self.config.profiles.iter().find(|p| p.name == name)
    }

    /// Do any of the plugins that refused the pod think that the event helps?
    fn may_help(&self, pod: &PodInfo, plugins: &[&'static str], event: &Event) -> bool {
        let Some(profile) = self.profile(pod) else { return false };
        let refused = profile.plugins.iter().filter(|w| plugins.contains(&w.plugin.name()));
        refused.into_iter().any(|w| w.plugin.may_help(pod, event))
    }

    fn happened(&self, inner: &mut Inner, event: &Event) {
        inner.queue.happened(event, Instant::now(), &|pod, plugins, event| self.may_help(pod, plugins, event));
        self.wake.notify_one();
    }

    fn pod_changed(&self, change: &Change<Pod>) {
        let mut inner = self.inner.lock();
        if let Change::Updated(old, new) = change
            && old.metadata.uid != new.metadata.uid
        {
            self.pod_gone(&mut inner, &PodInfo::new(old.clone()));
        }
        let pod = Arc::new(PodInfo::new(change.object().clone()));
        match change {
            Change::Removed(_) => self.pod_gone(&mut inner, &pod),
            Change::Added(_) | Change::Updated(..) => self.pod_there(&mut inner, pod, change),
        }
    }

    fn pod_gone(&self, inner: &mut Inner, pod: &PodInfo) {
        inner.queue.remove(&pod.uid);
        let assumed = inner.assumed.remove(&pod.uid);
        if let Some(node) = pod.node().map(str::to_string).or(assumed) {
            inner.world.remove_pod(&node, &pod.uid);
            self.happened(inner, &Event::FreedPod(Arc::new(pod.clone())));
        }
    }

    fn pod_there(&self, inner: &mut Inner, pod: Arc<PodInfo>, change: &Change<Pod>) {
        let Some(node) = pod.node().map(str::to_string) else { return self.pod_waits(inner, pod) };
        inner.queue.remove(&pod.uid);
        if let Some(assumed) = inner.assumed.remove(&pod.uid)
            && assumed != node
        {
            inner.world.remove_pod(&assumed, &pod.uid);
        }
        inner.world.add_pod(&node, pod.clone());
        let shrunk = match change {
            Change::Updated(old, _) => PodInfo::new(old.clone()).requests != pod.requests,
            _ => false,
        };
        self.happened(inner, &if shrunk { Event::FreedPod(pod) } else { Event::AssignedPod(pod) });
    }

    fn pod_waits(&self, inner: &mut Inner, pod: Arc<PodInfo>) {
        let Some(profile) = self.profile(&pod) else { return };
        if pod.is_terminating() || inner.assumed.contains_key(&pod.uid) {
            return inner.queue.remove(&pod.uid);
        }
        let gated = profile.plugins.iter().any(|w| w.plugin.pre_enqueue(&pod).is_some());
        let may_help = |pod: &PodInfo, plugins: &[&'static str], event: &Event| self.may_help(pod, plugins, event);
        inner.queue.put(pod, gated, Instant::now(), &may_help);
        self.wake.notify_one();
    }

    fn node_changed(&self, change: &Change<Node>) {
        let mut inner = self.inner.lock();
        match change {
            Change::Removed(node) => inner.world.remove_node(node.metadata.name.as_deref().unwrap_or_default()),
            Change::Added(node) => {
                inner.world.set_node(node.clone());
                self.happened(&mut inner, &Event::Node(None, node.clone()));
            }
            Change::Updated(old, node) => {
                inner.world.set_node(node.clone());
                if node_matters(old, node) {
                    self.happened(&mut inner, &Event::Node(Some(old.clone()), node.clone()));
                }
            }
        }
    }

    fn namespace_changed(&self, change: &Change<Namespace>) {
        let mut inner = self.inner.lock();
        let namespace = change.object();
        let name = namespace.metadata.name.as_deref().unwrap_or_default();
        match change {
            Change::Removed(_) => inner.world.remove_namespace(name),
            _ => inner.world.set_namespace(name, namespace.metadata.labels.clone().unwrap_or_default()),
        }
        self.happened(&mut inner, &Event::Namespace);
    }

    /// Returns once everything is known.
    pub async fn synced(&self) {
        self.nodes.synced().await;
        self.namespaces.synced().await;
        self.budgets.synced().await;
        self.pods.synced().await;
    }

    /// Decides on pods until the shutdown.
    pub async fn run(self: &Arc<Self>, shutdown: &Shutdown) {
        let mut start = 0;
        while let Some(waiting) = base::shutdown::unless(shutdown, self.next()).await {
            start += 1;
            self.attempt(waiting, start);
            // Many pods may wait; the informers' tasks must get their turn between them.
            tokio::task::yield_now().await;
        }
    }

    /// Waits for a pod to try.
    async fn next(&self) -> Waiting {
        loop {
            let (waiting, wake) = {
                let mut inner = self.inner.lock();
                (inner.queue.pop(Instant::now()), inner.queue.next_wake())
            };
            if let Some(waiting) = waiting {
                return waiting;
            }
            match wake {
                Some(at) => {
                    let _ = tokio::time::timeout_at(at.into(), self.wake.notified()).await;
                }
                None => self.wake.notified().await,
            }
        }
    }

    fn attempt(self: &Arc<Self>, waiting: Waiting, start: usize) {
        let began = Instant::now();
        let Some(profile) = self.profile(&waiting.pod) else {
            return self.inner.lock().queue.done();
        };
        let decision = self.decide(profile, &waiting.pod, start);
        match decision {
            Decision::Node(node) => {
                self.assume(&waiting.pod, &node);
                let scheduler = self.clone();
                tokio::spawn(async move { scheduler.bind(waiting, node, began).await });
            }
            Decision::Unfit(unfit, candidate) => {
                self.metrics.unschedulable.inc();
                let plugins = unfit.plugins();
                let pod = waiting.pod.clone();
                self.give_back(waiting, plugins);
                let scheduler = self.clone();
                tokio::spawn(async move { scheduler.report_unfit(pod, unfit, candidate).await });
            }
        }
    }

    fn give_back(&self, waiting: Waiting, plugins: Vec<&'static str>) {
        let may_help = |pod: &PodInfo, plugins: &[&'static str], event: &Event| self.may_help(pod, plugins, event);
        self.inner.lock().queue.failed(waiting, plugins, Instant::now(), &may_help);
        self.wake.notify_one();
    }

    fn decide(&self, profile: &Profile, pod: &PodInfo, start: usize) -> Decision {
        let world = self.world_for(pod);
        let pick = |n: usize| rand::random_range(0..n);
        let mut unfit = match cycle::schedule(&profile.plugins, pod, &world, self.config.percentage, start, pick) {
            Ok(node) => return Decision::Node(node),
            Err(unfit) => unfit,
        };
        // Without nodes there is nobody to make room.
        if !profile.preempts || unfit.nodes == 0 {
            return Decision::Unfit(unfit, None);
        }
        self.metrics.preemptions.inc();
        match preemption::preempt(&profile.plugins, pod, &world, &unfit, &self.budgets.list()) {
            Ok(candidate) => Decision::Unfit(unfit, Some(candidate)),
            Err(why) => {
                unfit.preemption = format!("no new claims to deallocate, preemption: {why}");
                Decision::Unfit(unfit, None)
            }
        }
    }

    /// The world as a pod must see it: with those that others made room for, when they are as important.
    fn world_for(&self, pod: &PodInfo) -> Snapshot {
        let inner = self.inner.lock();
        let mut world = inner.world.clone();
        for other in inner.queue.nominated().filter(|o| o.uid != pod.uid && o.priority >= pod.priority) {
            if let Some(node) = other.nominated().filter(|n| world.node(n).is_some()).map(str::to_string) {
                world.add_pod(&node, other.clone());
            }
        }
        world
    }

    fn assume(&self, pod: &Arc<PodInfo>, node: &str) {
        let mut inner = self.inner.lock();
        inner.world.add_pod(node, pod.clone());
        inner.assumed.insert(pod.uid.clone(), node.to_string());
    }

    async fn bind(&self, waiting: Waiting, node: String, began: Instant) {
        let pod = &waiting.pod;
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &pod.key.namespace);
        let binding = json!({
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": pod.key.name, "namespace": pod.key.namespace, "uid": pod.uid},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        });
        let outcome: kube::Result<Value> =
            api.create_subresource("binding", &pod.key.name, &PostParams::default(), &binding).await;
        match outcome {
            Ok(_) => {
                self.inner.lock().queue.done();
                self.metrics.scheduled.inc();
                self.metrics.duration.observe(began.elapsed().as_secs_f64());
                let message = format!("Successfully assigned {}/{} to {node}", pod.key.namespace, pod.key.name);
                self.tell(pod, EventKind::Normal, "Scheduled", "Binding", message);
            }
            Err(error) => self.unbound(waiting, &node, &error).await,
        }
    }

    async fn unbound(&self, waiting: Waiting, node: &str, error: &kube::Error) {
        self.metrics.errors.inc();
        {
            let mut inner = self.inner.lock();
            // Unless the API server has said meanwhile that it is bound after all.
            if inner.assumed.remove(&waiting.pod.uid).is_some() {
                inner.world.remove_pod(node, &waiting.pod.uid);
            }
            if retry::is_not_found(error) {
                return inner.queue.done();
            }
        }
        tracing::warn!(pod = %waiting.pod.key, node, %error, "binding failed");
        let pod = waiting.pod.clone();
        let still_waits = self.pods.get(&pod.key).is_some_and(|p| PodInfo::new(p).node().is_none());
        if !still_waits {
            return self.inner.lock().queue.done();
        }
        self.give_back(waiting, Vec::new());
        let message = format!("running Bind plugin \"DefaultBinder\": {}", retry::message(error));
        self.tell(&pod, EventKind::Warning, "FailedScheduling", "Scheduling", message.clone());
        self.set_condition(&pod, "SchedulerError", &message, None).await;
    }

    async fn report_unfit(&self, pod: Arc<PodInfo>, unfit: Unfit, candidate: Option<Candidate>) {
        let message = unfit.message();
        self.tell(&pod, EventKind::Warning, "FailedScheduling", "Scheduling", message.clone());
        let nominated = candidate.as_ref().map(|c| c.node.clone());
        if let Some(candidate) = candidate {
            self.evict(&pod, &candidate).await;
        }
        self.set_condition(&pod, "Unschedulable", &message, nominated.as_deref()).await;
    }

    async fn evict(&self, pod: &PodInfo, candidate: &Candidate) {
        for victim in &candidate.victims {
            if let Err(error) = self.evict_one(pod, victim).await {
                tracing::warn!(victim = %victim.key, %error, "preemption failed");
                continue;
            }
            let message = format!("Preempted by pod {} on node {}", pod.uid, candidate.node);
            self.tell(victim, EventKind::Normal, "Preempted", "Preempting", message);
        }
    }

    async fn evict_one(&self, pod: &PodInfo, victim: &PodInfo) -> kube::Result<()> {
        if victim.is_terminating() {
            return Ok(());
        }
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &victim.key.namespace);
        let scheduler = pod.spec().and_then(|s| s.scheduler_name.clone()).unwrap_or_default();
        let condition = json!({
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "PreemptionByScheduler",
            "message": format!("{scheduler}: preempting to accommodate a higher priority pod"),
            "lastTransitionTime": client::now(),
        });
        let patch = json!({"metadata": {"uid": victim.uid}, "status": {"conditions": [condition]}});
        let patched = api.patch_status(&victim.key.name, &PatchParams::default(), &Patch::Strategic(patch)).await;
        retry::ignore_not_found(patched)?;
        let preconditions = Preconditions { uid: Some(victim.uid.clone()), resource_version: None };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        retry::ignore_not_found(api.delete(&victim.key.name, &params).await).map(drop)
    }

    /// Notes in the pod why it waits, when that is news.
    async fn set_condition(&self, pod: &PodInfo, reason: &str, message: &str, nominated: Option<&str>) {
        let conditions = pod.pod.status.as_ref().and_then(|s| s.conditions.as_deref()).unwrap_or_default();
        let old = conditions.iter().find(|c| c.type_ == "PodScheduled");
        let same = old.is_some_and(|c| {
            c.status == "False" && c.reason.as_deref() == Some(reason) && c.message.as_deref() == Some(message)
        });
        if same && nominated == pod.nominated() {
            return;
        }
        let since = old.filter(|c| c.status == "False").and_then(|c| c.last_transition_time.clone());
        let condition = json!({
            "type": "PodScheduled",
            "status": "False",
            "reason": reason,
            "message": message,
            "lastProbeTime": null,
            "lastTransitionTime": since.unwrap_or_else(client::now),
            "observedGeneration": pod.pod.metadata.generation,
        });
        let mut status = json!({"conditions": [condition]});
        if nominated != pod.nominated() {
            status["nominatedNodeName"] = json!(nominated);
        }
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &pod.key.namespace);
        let patch = json!({"metadata": {"uid": pod.uid}, "status": status});
        let patched = api.patch_status(&pod.key.name, &PatchParams::default(), &Patch::Strategic(patch)).await;
        if let Err(error) = retry::ignore_not_found(patched) {
            tracing::warn!(pod = %pod.key, %error, "the pod's condition could not be written");
        }
    }

    fn tell(&self, pod: &PodInfo, kind: EventKind, reason: &str, action: &str, message: String) {
        self.recorder.send(Record {
            about: reference(pod.pod.as_ref()),
            related: None,
            kind,
            reason: reason.into(),
            action: action.into(),
            message: shorten(message),
            annotations: Vec::new(),
        });
    }
}

/// Events take 1 KiB (events.k8s.io's note).
fn shorten(mut message: String) -> String {
    const MOST: usize = 1024;
    if message.len() > MOST {
        let mut end = MOST - 4;
        while !message.is_char_boundary(end) {
            end -= 1;
        }
        message.truncate(end);
        message.push_str(" ...");
    }
    message
}

/// A node's heartbeats change nothing for pods.
fn node_matters(old: &Node, new: &Node) -> bool {
    let of = |node: &Node| {
        let status = node.status.clone().unwrap_or_default();
        (node.metadata.labels.clone(), node.spec.clone(), status.allocatable, status.images.map(|i| i.len()))
    };
    of(old) != of(new)
}

//! Registers the node and keeps its status: looked at every ten seconds, told when it says something new, and every
//! five minutes otherwise.

use super::machine::{Disk, Machine};
use super::patch::patch;
use super::status::{Damper, Facts, Pressure, Settings, changes, differs, object, status};
use crate::events::Level;
use crate::work::context::Context;
use base::shutdown::{Shutdown, unless};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, NodeStatus};
use kube::api::{Api, Patch, PatchParams, PostParams};
use parking_lot::{Mutex, RwLock};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// The runtime counts as gone when it has not been listed for this long.
const RUNTIME_SILENT: Duration = Duration::from_secs(180);

/// What the API has as the node's status, by its watch and by its answers. Others write there too: the lifecycle
/// controller does when the node was cut off, and that must be put right as soon as the node is back.
pub type Seen = Arc<RwLock<Option<NodeStatus>>>;

/// The keeper of the node's object.
pub struct Agent {
    /// The workers' common ground.
    pub ctx: Arc<Context>,
    /// What goes into the object.
    pub settings: Settings,
    /// The node as it is known here.
    pub node: Arc<RwLock<Node>>,
    /// The status that the API has of it, by what was last heard.
    pub seen: Seen,
    /// Facts that change: what the node presses for.
    pub pressure: Arc<RwLock<Pressure>>,
    /// When the runtime was last listed.
    pub listed: Arc<RwLock<Option<Instant>>>,
    /// The directory whose disk pods use.
    pub root: PathBuf,
    /// How often the status is made.
    pub update: Duration,
    /// How often it is told when nothing changed.
    pub report: Duration,
    /// How long a pressure stays shown.
    pub hold: SignedDuration,
    /// Wakes the agent when something about the node changed.
    pub wake: Arc<Notify>,
    /// Does it register the node, or only keep its status?
    pub register: bool,
    /// What the machine is.
    pub machine: Machine,
    /// When each pressure was last seen.
    pub damper: Mutex<Damper>,
    /// The pods' address range that the runtime was last told.
    pub pod_cidr: Mutex<String>,
}

impl Agent {
    /// Looks at the runtime once; its health goes to the workers.
    async fn runtime_facts(&self) -> (Vec<String>, Facts) {
        let mut facts = Facts::default();
        let mut troubles = Vec::new();
        let silent = self.listed.read().is_none_or(|at| at.elapsed() > RUNTIME_SILENT);
        match self.ctx.cri.status().await {
            Ok(answer) => {
                let mut health = crate::work::context::RuntimeHealth::default();
                for condition in answer.status.map(|status| status.conditions).unwrap_or_default() {
                    let why = format!("{} reason:{} message:{}", condition.r#type, condition.reason, condition.message);
                    match condition.r#type.as_str() {
                        "RuntimeReady" if !condition.status => {
                            health.runtime =
                                Some(format!("container runtime status check may not have completed yet: {why}"))
                        }
                        "NetworkReady" if !condition.status => {
                            health.network = Some(format!(
                                "container runtime network not ready: NetworkReady=false reason:{} message:{}",
                                condition.reason, condition.message
                            ));
                        }
                        _ => {}
                    }
                }
                facts.handlers = answer
                    .runtime_handlers
                    .into_iter()
                    .map(|handler| {
                        let features = handler.features.unwrap_or_default();
                        // Pods with user namespaces are refused, whatever the runtime could do.
                        (handler.name, features.recursive_read_only_mounts, false)
                    })
                    .collect();
                facts.groups_policy = answer.features.map(|features| features.supplemental_groups_policy);
                troubles.extend(health.runtime.clone());
                troubles.extend(health.network.clone());
                *self.ctx.health.write() = health;
            }
            Err(error) => {
                let text = format!("container runtime is down: {}", error.with_code());
                self.ctx.health.write().runtime = Some(text.clone());
                troubles.push(text);
            }
        }
        if silent && troubles.is_empty() {
            troubles.push("PLEG is not healthy: the runtime has not been listed for too long".into());
        }
        (troubles, facts)
    }

    /// Everything that the status is made from.
    pub async fn facts(&self) -> Facts {
        let (troubles, mut facts) = self.runtime_facts().await;
        facts.troubles = troubles;
        facts.machine = self.machine.clone();
        facts.disk = Disk::of(&self.root).unwrap_or_default();
        facts.addresses = self.ctx.host_ips.read().clone();
        facts.pressure = self.damper.lock().damp(*self.pressure.read(), self.hold, Timestamp::now());
        facts.runtime = match self.ctx.cri.version().await {
            Ok(version) => format!("{}://{}", version.runtime_name, version.runtime_version),
            Err(_) => format!("{}://Unknown", self.ctx.runtime_name),
        };
        if let Ok(images) = self.ctx.cri.list_images().await {
            let names = |image: &k8s_cri::v1::Image| [image.repo_digests.clone(), image.repo_tags.clone()].concat();
            facts.images = images.iter().map(|image| (names(image), image.size as i64)).collect();
        }
        facts
    }

    /// The node as the facts make it, over what the API has.
    fn make(&self, facts: &Facts, old: &NodeStatus) -> NodeStatus {
        let new = status(&self.settings, facts, old, Timestamp::now());
        *self.ctx.allocatable.write() = new.allocatable.clone().unwrap_or_default();
        let mut node = self.node.write();
        if node.metadata.name.is_none() {
            *node = object(&self.settings);
        }
        node.status = Some(new.clone());
        new
    }

    /// Makes the node known here, before there is an API server.
    pub async fn prepare(&self) {
        let facts = self.facts().await;
        self.make(&facts, &NodeStatus::default());
    }

    /// Runs until the shutdown.
    pub async fn run(self, shutdown: Shutdown) {
        let Some(client) = self.ctx.client.clone() else { return self.run_alone(shutdown).await };
        let api: Api<Node> = Api::all(client);
        let mut failures: u32 = 0;
        loop {
            match self.connect(&api).await {
                Ok(node) => {
                    self.heard(node);
                    break;
                }
                Err(error) => {
                    failures += 1;
                    let error = client::retry::message(&error);
                    tracing::warn!(node = self.settings.name, error, "unable to register node with API server");
                    let wait =
                        Duration::from_millis(100).saturating_mul(1 << failures.min(6)).min(Duration::from_secs(7));
                    if unless(&shutdown, tokio::time::sleep(wait)).await.is_none() {
                        return;
                    }
                }
            }
        }
        let mut told = None;
        loop {
            self.tell_cidr().await;
            if let Err(error) = self.update_once(&api, &mut told).await {
                let error = client::retry::message(&error);
                tracing::warn!(error, "error updating node status, will retry");
                told = None;
            }
            // A node that is not ready yet is looked at often: it shall be ready as soon as it can.
            let ready = self.ctx.health.read().runtime.is_none() && self.ctx.health.read().network.is_none();
            let wait = if ready { self.update } else { self.update.min(Duration::from_secs(1)) };
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(wait) => {}
                () = self.wake.notified() => {}
            }
        }
    }

    async fn run_alone(&self, shutdown: Shutdown) {
        loop {
            let facts = self.facts().await;
            self.make(&facts, &NodeStatus::default());
            if unless(&shutdown, tokio::time::sleep(self.update)).await.is_none() {
                return;
            }
        }
    }

    /// Registers the node, or finds it registered and brings its labels up to date.
    async fn connect(&self, api: &Api<Node>) -> kube::Result<Node> {
        let facts = self.facts().await;
        let mut wanted = object(&self.settings);
        wanted.status = Some(self.make(&facts, &NodeStatus::default()));
        if !self.register {
            let node = api.get(&self.settings.name).await?;
            self.registered(&node);
            return Ok(node);
        }
        match api.create(&PostParams::default(), &wanted).await {
            Ok(node) => {
                tracing::info!(node = self.settings.name, "successfully registered node");
                self.tell(&NodeStatus::default(), wanted.status.as_ref().unwrap_or(&NodeStatus::default()));
                self.registered(&node);
                Ok(node)
            }
            Err(error) if client::retry::is_already_exists(&error) => {
                let node = self.reconcile(api, &wanted).await?;
                tracing::info!(node = self.settings.name, "node was previously registered");
                self.registered(&node);
                Ok(node)
            }
            Err(error) => Err(error),
        }
    }

    fn registered(&self, node: &Node) {
        if let (Some(mirrors), Some(uid)) = (&self.ctx.mirrors, &node.metadata.uid) {
            mirrors.node_registered(uid);
        }
    }

    /// Labels and annotations that the kubelet owns, on a node that is there already.
    async fn reconcile(&self, api: &Api<Node>, wanted: &Node) -> kube::Result<Node> {
        let node = api.get(&self.settings.name).await?;
        let labels = wanted.metadata.labels.clone().unwrap_or_default();
        let current = node.metadata.labels.clone().unwrap_or_default();
        let annotations = wanted.metadata.annotations.clone().unwrap_or_default();
        let noted = node.metadata.annotations.clone().unwrap_or_default();
        let same = labels.iter().all(|(key, value)| current.get(key) == Some(value))
            && annotations.iter().all(|(key, value)| noted.get(key) == Some(value));
        if same {
            return Ok(node);
        }
        let body = serde_json::json!({"metadata": {"labels": labels, "annotations": annotations}});
        api.patch(&self.settings.name, &PatchParams::default(), &Patch::Strategic(body)).await
    }

    fn tell(&self, old: &NodeStatus, new: &NodeStatus) {
        let name = &self.settings.name;
        for event in changes(old, new) {
            self.ctx.events.node(name, Level::Normal, &event, format!("Node {name} status is now: {event}"));
        }
    }

    /// Keeps what the API answered.
    fn heard(&self, node: Node) {
        *self.seen.write() = Some(node.status.clone().unwrap_or_default());
        *self.node.write() = node;
    }

    /// Makes the status, and tells it when the API has another or it is time. `told` is when it was told last; without,
    /// after a failure or at first, the API is asked what it has.
    async fn update_once(&self, api: &Api<Node>, told: &mut Option<Instant>) -> kube::Result<()> {
        let facts = self.facts().await;
        if told.is_none() || self.seen.read().is_none() {
            self.heard(api.get(&self.settings.name).await?);
        }
        let old = self.seen.read().clone().unwrap_or_default();
        let new = self.make(&facts, &old);
        let due = told.is_none_or(|at| at.elapsed() >= self.report);
        if !due && !differs(&old, &new) {
            return Ok(());
        }
        self.tell(&old, &new);
        if let Some(body) = patch(&old, &new) {
            self.heard(api.patch_status(&self.settings.name, &PatchParams::default(), &Patch::Strategic(body)).await?);
        }
        *told = Some(Instant::now());
        Ok(())
    }

    /// Tells the runtime the pods' address range once it is known.
    async fn tell_cidr(&self) {
        let cidr = self.node.read().spec.as_ref().and_then(|spec| spec.pod_cidr.clone()).unwrap_or_default();
        if cidr.is_empty() || *self.pod_cidr.lock() == cidr {
            return;
        }
        match self.ctx.cri.set_pod_cidr(&cidr).await {
            Ok(()) => *self.pod_cidr.lock() = cidr,
            Err(error) => tracing::debug!(cidr, %error, "the runtime does not take the pods' address range"),
        }
    }
}

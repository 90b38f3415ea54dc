//! The shell: follows the metadata of all resources, and acts on live objects.

use super::absent::Absent;
use super::classify::{self, Owner, Verdict, judge};
use super::graph::{FOREGROUND, Graph, Id, Item, ORPHAN, Resource, Uid};
use crate::context::{Context, Fault, Outcome};
use client::discovery::{Discoverer, Discovery, Served};
use client::events::EventKind;
use client::informer::AnyInformer;
use client::{Queue, Recorder, retry};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Api;
use kube::api::{DeleteParams, DynamicObject, PartialObjectMeta, Patch, PatchParams, Preconditions};
use parking_lot::{Mutex, RwLock};
use serde_json::Value;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Between two looks at what the server serves.
const REDISCOVER: Duration = Duration::from_secs(30);
/// How long the first lists may take.
const FIRST_VIEW: Duration = Duration::from_secs(30);

pub(crate) async fn run(context: Context) {
    if !context.options.flags.switch("enable-garbage-collector") {
        return;
    }
    let collector = Arc::new(Collector {
        recorder: context.recorder("garbage-collector-controller"),
        context: context.clone(),
        discoverer: Discoverer::new(context.client.clone()),
        graph: Mutex::default(),
        queue: Queue::default(),
        watched: Mutex::default(),
        served: RwLock::default(),
        absent: Mutex::default(),
    });
    if !collector.begin().await {
        return;
    }
    let workers = context.options.workers("concurrent-gc-syncs");
    let follow = collector.follow_discovery();
    let work = context.serve(&collector.queue, workers, |item| collector.work(item));
    futures::join!(follow, work);
}

/// A resource that is watched.
struct Watched {
    number: Resource,
    informer: Arc<dyn AnyInformer>,
}

struct Collector {
    context: Context,
    recorder: Recorder,
    discoverer: Discoverer,
    graph: Mutex<Graph>,
    queue: Queue<Item>,
    /// By group and plural.
    watched: Mutex<HashMap<(String, String), Watched>>,
    served: RwLock<Catalogue>,
    absent: Mutex<Absent>,
}

/// What the server serves, by number and by discovery.
#[derive(Default)]
struct Catalogue {
    by_number: HashMap<Resource, Served>,
    discovery: Arc<Discovery>,
}

impl Collector {
    /// Waits for the first view of the cluster, for a while for a complete one: what can't be listed must not hold up the
    /// rest for ever. Every owner is asked for before anything is deleted. Whether there is a view before the end.
    async fn begin(self: &Arc<Self>) -> bool {
        // The other controllers have started meanwhile, and the watches of their informers are shared.
        while !self.discover().await {
            if self.context.stop.run_until_cancelled(tokio::time::sleep(Duration::from_secs(1))).await.is_none() {
                return false;
            }
        }
        let synced = tokio::time::timeout(FIRST_VIEW, self.synced());
        match self.context.stop.run_until_cancelled(synced).await {
            None => return false,
            Some(Ok(())) => tracing::info!("all that can be collected is watched"),
            Some(Err(_)) => tracing::warn!("not all that can be collected could be listed, going on without"),
        }
        let wakes = self.graph.lock().complete();
        self.wake(wakes);
        true
    }

    async fn synced(&self) {
        let informers: Vec<_> = self.watched.lock().values().map(|watched| watched.informer.clone()).collect();
        futures::future::join_all(informers.iter().map(|informer| informer.synced())).await;
    }

    /// Asks what is served, and watches it. Whether there was an answer.
    async fn discover(self: &Arc<Self>) -> bool {
        match self.context.stop.run_until_cancelled(self.discoverer.get()).await {
            Some(Ok(discovery)) if discovery.resources.is_empty() => {
                tracing::warn!("the server names no resources, what is watched stays as it is");
                return false;
            }
            Some(Ok(discovery)) => self.watch(discovery),
            Some(Err(error)) => {
                tracing::warn!(%error, "can't discover what to collect");
                return false;
            }
            None => return false,
        }
        true
    }

    async fn follow_discovery(self: &Arc<Self>) {
        while self.context.stop.run_until_cancelled(tokio::time::sleep(REDISCOVER)).await.is_some() {
            self.discover().await;
        }
    }

    /// Watches what can be collected, and stops watching what is no longer served.
    fn watch(self: &Arc<Self>, discovery: Arc<Discovery>) {
        if Arc::ptr_eq(&discovery, &self.served.read().discovery) {
            return;
        }
        let mut watched = self.watched.lock();
        let collectable =
            |served: &&Served| served.can(&["delete", "list", "watch"]) && served.resource.plural != "events";
        let mut wanted = HashSet::new();
        for served in discovery.resources.iter().filter(collectable) {
            let name = (served.resource.group.clone(), served.resource.plural.clone());
            wanted.insert(name.clone());
            if !watched.contains_key(&name) {
                watched.insert(name, self.watch_one(served));
            }
        }
        let gone: Vec<_> = watched
            .iter()
            .filter(|(name, _)| !wanted.contains(*name) && !discovery.is_stale(&name.0))
            .map(|(name, _)| name.clone())
            .collect();
        for name in gone {
            if let Some(old) = watched.remove(&name) {
                self.context.informers.forget_metadata(&name.0, &name.1);
                self.graph.lock().drop_resource(old.number);
                self.served.write().by_number.remove(&old.number);
            }
        }
        self.served.write().discovery = discovery;
    }

    fn watch_one(self: &Arc<Self>, served: &Served) -> Watched {
        static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        self.served.write().by_number.insert(number, served.clone());
        let informer = self.context.informers.metadata(&served.resource);
        let collector = Arc::downgrade(self);
        informer.on_metadata(Box::new(move |old, new| {
            if let Some(collector) = collector.upgrade() {
                collector.changed(number, old, new);
            }
        }));
        Watched { number, informer }
    }

    fn changed(&self, resource: Resource, old: Option<&ObjectMeta>, new: Option<&ObjectMeta>) {
        let wakes = self.graph.lock().apply(resource, old, new);
        self.wake(wakes);
    }

    fn wake(&self, wakes: Vec<Item>) {
        wakes.into_iter().for_each(|item| self.queue.add(item));
    }

    /// Tells about an object whose owner lives in another namespace.
    fn report(&self, child: &Id, owner: Uid) {
        let Some(served) = self.served_as(child.resource) else { return };
        let resource = served.resource;
        let watched = self.watched.lock();
        let known =
            watched.get(&(resource.group, resource.plural)).and_then(|watched| watched.informer.metadata(&child.key));
        let Some(meta) = known.filter(|meta| Uid::of_meta(meta) == child.uid) else { return };
        let Some(message) = classify::misplaced(&meta, owner) else { return };
        let about = ObjectReference {
            api_version: Some(resource.api_version),
            kind: Some(resource.kind),
            namespace: meta.namespace,
            name: meta.name,
            uid: meta.uid,
            ..Default::default()
        };
        self.recorder.record(&about, EventKind::Warning, "OwnerRefInvalidNamespace", message);
    }

    fn served_as(&self, resource: Resource) -> Option<Served> {
        self.served.read().by_number.get(&resource).cloned()
    }

    async fn work(&self, item: Item) -> Outcome {
        match item {
            Item::Check(id) if self.graph.lock().is_waiting(id.uid) => self.foreground(&id).await,
            Item::Check(id) => self.check(&id).await,
            Item::Foreground(id) => self.foreground(&id).await,
            Item::Orphan(id) => self.orphan(&id).await,
            Item::Report(child, owner) => {
                self.report(&child, owner);
                Ok(())
            }
        }?;
        Ok(None)
    }

    /// The live metadata of an object; nothing when it is gone, or another one has its name.
    async fn live(&self, id: &Id) -> Result<Option<(Served, ObjectMeta)>, Fault> {
        let Some(served) = self.served_as(id.resource) else { return Ok(None) };
        let found = self.metadata_api(&served, &id.key.namespace).get_opt(&id.key.name).await?;
        let found = found.map(|object| object.metadata).filter(|meta| Uid::of_meta(meta) == id.uid);
        Ok(found.map(|meta| (served, meta)))
    }

    fn metadata_api(&self, served: &Served, namespace: &str) -> Api<PartialObjectMeta<DynamicObject>> {
        scoped(self.context.client.clone(), served, namespace)
    }

    async fn check(&self, id: &Id) -> Result<(), Fault> {
        let Some((served, meta)) = self.live(id).await? else { return Ok(()) };
        if meta.deletion_timestamp.is_some() {
            return Ok(());
        }
        let mut owners = Vec::new();
        for reference in meta.owner_references.iter().flatten() {
            match self.owner_state(&id.key.namespace, reference).await? {
                Some(state) => owners.push(state),
                None => {
                    // A cluster-scoped object can't have a namespaced owner; nobody can say which one is meant.
                    tracing::debug!(object = %id.key, owner = reference.name, "owner of a cluster-scoped object is namespaced");
                    return Ok(());
                }
            }
        }
        let (has_dependents, dependents_wait) = {
            let graph = self.graph.lock();
            let dependents = graph.dependents_of(id.uid);
            (!dependents.is_empty(), dependents.iter().any(|dependent| graph.is_waiting(dependent.uid)))
        };
        match judge(&meta, &owners, has_dependents, dependents_wait) {
            Verdict::Keep => Ok(()),
            Verdict::Unlink(patch) => self.patch(&served, id, patch).await,
            Verdict::Unblock(patch) => {
                self.patch(&served, id, patch).await?;
                // Read again: the patch has changed the version.
                let Some((served, meta)) = self.live(id).await? else { return Ok(()) };
                self.delete(&served, id, &meta, kube::api::PropagationPolicy::Foreground).await
            }
            Verdict::Delete(policy) => self.delete(&served, id, &meta, policy).await,
        }
    }

    /// What became of an owner; nothing when the reference can't be followed from this namespace.
    async fn owner_state(&self, namespace: &str, reference: &OwnerReference) -> Result<Option<Owner>, Fault> {
        let group = reference.api_version.rsplit_once('/').map_or("", |(group, _)| group);
        let discovery = self.served.read().discovery.clone();
        let Some(served) = discovery.of_kind(group, &reference.kind) else {
            let kind = &reference.kind;
            return Err(Fault::Unusable(format!("unable to get REST mapping for {}/{kind}.", reference.api_version)));
        };
        if served.namespaced && namespace.is_empty() {
            return Ok(None);
        }
        let namespace = if served.namespaced { namespace } else { "" };
        let known = (namespace.to_owned(), format!("{group}/{}/{}/{}", reference.kind, reference.name, reference.uid));
        if self.absent.lock().has(&known, Instant::now()) {
            return Ok(Some(Owner::Dangling));
        }
        let owner = self.metadata_api(served, namespace).get_opt(&reference.name).await?.map(|object| object.metadata);
        let Some(owner) = owner.filter(|owner| owner.uid.as_deref() == Some(reference.uid.as_str())) else {
            self.absent.lock().add(known, Instant::now());
            return Ok(Some(Owner::Dangling));
        };
        let waits = owner.deletion_timestamp.is_some()
            && owner.finalizers.iter().flatten().any(|finalizer| finalizer == FOREGROUND);
        Ok(Some(if waits { Owner::Waiting } else { Owner::Solid }))
    }

    async fn patch(&self, served: &Served, id: &Id, patch: Value) -> Result<(), Fault> {
        let api = self.metadata_api(served, &id.key.namespace);
        let done = api.patch(&id.key.name, &PatchParams::default(), &Patch::Merge(patch)).await;
        retry::ignore_not_found(done)?;
        Ok(())
    }

    async fn delete(
        &self, served: &Served, id: &Id, meta: &ObjectMeta, policy: kube::api::PropagationPolicy,
    ) -> Result<(), Fault> {
        let api: Api<DynamicObject> = scoped(self.context.client.clone(), served, &id.key.namespace);
        let preconditions = Preconditions { uid: meta.uid.clone(), resource_version: meta.resource_version.clone() };
        let params = DeleteParams {
            propagation_policy: Some(policy),
            preconditions: Some(preconditions),
            ..DeleteParams::default()
        };
        retry::ignore_not_found(api.delete(&id.key.name, &params).await)?;
        Ok(())
    }

    /// Lets an owner go once nothing that blocks it is left.
    async fn foreground(&self, id: &Id) -> Result<(), Fault> {
        let (blocking, waiting): (Vec<Id>, HashSet<Uid>) = {
            let graph = self.graph.lock();
            let blocking = graph.blocking(id.uid);
            let waiting = blocking.iter().map(|id| id.uid).filter(|uid| graph.is_waiting(*uid)).collect();
            (blocking, waiting)
        };
        if !blocking.is_empty() {
            for dependent in blocking.into_iter().filter(|dependent| !waiting.contains(&dependent.uid)) {
                self.queue.add(Item::Check(dependent));
            }
            return Ok(());
        }
        self.remove_finalizer(id, FOREGROUND).await
    }

    async fn remove_finalizer(&self, id: &Id, finalizer: &str) -> Result<(), Fault> {
        let Some((served, meta)) = self.live(id).await? else { return Ok(()) };
        match classify::without_finalizer(&meta, finalizer) {
            Some(patch) => self.patch(&served, id, patch).await,
            None => Ok(()),
        }
    }

    /// Takes a dying owner off its dependents, then lets it go.
    async fn orphan(&self, id: &Id) -> Result<(), Fault> {
        let Some((_, meta)) = self.live(id).await? else { return Ok(()) };
        let has = |finalizer: &str| meta.finalizers.iter().flatten().any(|known| known == finalizer);
        if meta.deletion_timestamp.is_none() || !has(ORPHAN) {
            return Ok(());
        }
        let uid = meta.uid.unwrap_or_default();
        let dependents = self.graph.lock().dependents_of(id.uid);
        let strips = dependents.iter().map(|dependent| self.strip(dependent, &uid));
        let faults = futures::future::join_all(strips).await.into_iter().filter_map(Result::err).collect();
        Fault::all(faults)?;
        self.remove_finalizer(id, ORPHAN).await
    }

    async fn strip(&self, dependent: &Id, owner: &str) -> Result<(), Fault> {
        let Some((served, meta)) = self.live(dependent).await? else { return Ok(()) };
        match classify::without_owner(&meta, owner) {
            Some(patch) => self.patch(&served, dependent, patch).await,
            None => Ok(()),
        }
    }
}

fn scoped<K>(client: kube::Client, served: &Served, namespace: &str) -> Api<K>
where
    K: kube::Resource<DynamicType = kube::api::ApiResource, Scope = kube::core::DynamicResourceScope>,
{
    match namespace {
        "" => Api::all_with(client, &served.resource),
        namespace => Api::namespaced_with(client, namespace, &served.resource),
    }
}

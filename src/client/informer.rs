//! Shared informers: one watch per kind and selection, a local copy of its objects, and wake-ups.
//!
//! ```text
//!   watch ──► store (sorted by key, indexed) ──► handlers, in order, one at a time ──► queues
//! ```
//!
//! Objects are read through the informer, never from the event: by key, namespace, or an index such as the controller's
//! UID. Managed fields are dropped as objects arrive.

use crate::connect::{Connection, WatchSlot};
use futures::StreamExt;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, ApiResource, DynamicObject, PartialObjectMeta};
use kube::core::NamespaceScope;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch_objects};
use parking_lot::{Mutex, RwLock};
use serde::de::DeserializeOwned;
use std::any::{Any, TypeId};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::{self, Debug};
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

/// Names an object within its kind; cluster-scoped ones have an empty namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Empty for cluster-scoped objects.
    pub namespace: String,
    /// The object's name.
    pub name: String,
}

impl Key {
    /// The key of `namespace/name`.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }

    /// The key of an object with this metadata.
    pub fn of(meta: &ObjectMeta) -> Self {
        Self::new(meta.namespace.clone().unwrap_or_default(), meta.name.clone().unwrap_or_default())
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.namespace.as_str() {
            "" => f.write_str(&self.name),
            namespace => write!(f, "{namespace}/{}", self.name),
        }
    }
}

/// What an informer can hold.
pub trait Object: kube::Resource + Clone + Debug + DeserializeOwned + Send + Sync + 'static {}
impl<K: kube::Resource + Clone + Debug + DeserializeOwned + Send + Sync + 'static> Object for K {}

/// The metadata of an object of any kind.
pub type Metadata = PartialObjectMeta<DynamicObject>;

/// How an object changed in the local copy. After a gap in the watch several changes may be seen as one.
#[derive(Clone, Debug)]
pub enum Change<K> {
    /// It is new here.
    Added(Arc<K>),
    /// From the first to the second.
    Updated(Arc<K>, Arc<K>),
    /// Its last known state.
    Removed(Arc<K>),
}

impl<K> Change<K> {
    /// The object as it is now, or was at last.
    pub fn object(&self) -> &Arc<K> {
        match self {
            Self::Added(object) | Self::Updated(_, object) | Self::Removed(object) => object,
        }
    }

    /// The states before and after, for wake-ups that follow both.
    pub fn both(&self) -> impl Iterator<Item = &Arc<K>> {
        let (old, new) = match self {
            Self::Added(new) => (None, Some(new)),
            Self::Updated(old, new) => (Some(old), Some(new)),
            Self::Removed(old) => (Some(old), None),
        };
        old.into_iter().chain(new)
    }
}

/// Which objects of a kind are watched.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Selection {
    /// A label selector.
    pub labels: Option<String>,
    /// A field selector.
    pub fields: Option<String>,
}

impl Selection {
    /// Those that a field selector takes.
    pub fn fields(fields: impl Into<String>) -> Self {
        Self { fields: Some(fields.into()), labels: None }
    }

    /// Those that a label selector takes.
    pub fn labels(labels: impl Into<String>) -> Self {
        Self { labels: Some(labels.into()), fields: None }
    }

    /// The objects of this name.
    pub fn named(name: &str) -> Self {
        Self::fields(format!("metadata.name={name}"))
    }

    fn config(&self) -> watcher::Config {
        watcher::Config {
            label_selector: self.labels.clone(),
            field_selector: self.fields.clone(),
            ..watcher::Config::default()
        }
    }
}

/// The values under which an index finds an object.
pub type IndexFn<K> = fn(&K) -> Vec<String>;

type Handler<K> = Box<dyn Fn(&Change<K>) + Send + Sync>;

/// A live local copy of the objects of one kind. Clones share it; the watch ends with the last of them (those that
/// [`Informers`] hands out live as long as it does).
pub struct Informer<K> {
    shared: Arc<Shared<K>>,
    _stop: Arc<DropGuard>,
}

impl<K> Clone for Informer<K> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone(), _stop: self._stop.clone() }
    }
}

struct Shared<K> {
    store: RwLock<Store<K>>,
    /// Locked over each change of the store and the calls that tell of it, so that every handler sees every change once.
    handlers: Mutex<Vec<Handler<K>>>,
    synced: watch::Sender<bool>,
    /// The highest resourceVersion seen in an event.
    seen: AtomicU64,
}

struct Store<K> {
    objects: BTreeMap<Key, Arc<K>>,
    indexes: Vec<Index<K>>,
}

struct Index<K> {
    name: &'static str,
    values: IndexFn<K>,
    keys: HashMap<String, BTreeSet<Key>>,
}

impl<K> Index<K> {
    fn change(&mut self, key: &Key, old: Option<&K>, new: Option<&K>) {
        let before = old.map(self.values).unwrap_or_default();
        let after = new.map(self.values).unwrap_or_default();
        if before == after {
            return;
        }
        for value in before {
            if let Some(keys) = self.keys.get_mut(&value) {
                keys.remove(key);
                if keys.is_empty() {
                    self.keys.remove(&value);
                }
            }
        }
        for value in after {
            self.keys.entry(value).or_default().insert(key.clone());
        }
    }
}

impl<K: kube::Resource> Store<K> {
    fn put(&mut self, object: Arc<K>) -> Option<Change<K>> {
        let key = Key::of(object.meta());
        let old = self.objects.insert(key.clone(), object.clone());
        for index in &mut self.indexes {
            index.change(&key, old.as_deref(), Some(&object));
        }
        match old {
            None => Some(Change::Added(object)),
            Some(old) if same_version(old.meta(), object.meta()) => None,
            Some(old) => Some(Change::Updated(old, object)),
        }
    }

    fn remove(&mut self, key: &Key) -> Option<Arc<K>> {
        let old = self.objects.remove(key)?;
        for index in &mut self.indexes {
            index.change(key, Some(&old), None);
        }
        Some(old)
    }

    /// Makes the store hold exactly `fresh`.
    fn replace(&mut self, fresh: Vec<Arc<K>>) -> Vec<Change<K>> {
        let kept: BTreeSet<Key> = fresh.iter().map(|object| Key::of(object.meta())).collect();
        let gone: Vec<Key> = self.objects.keys().filter(|key| !kept.contains(key)).cloned().collect();
        let mut changes: Vec<_> = gone.iter().filter_map(|key| self.remove(key)).map(Change::Removed).collect();
        changes.extend(fresh.into_iter().filter_map(|object| self.put(object)));
        changes
    }
}

fn version(meta: &ObjectMeta) -> u64 {
    meta.resource_version.as_deref().and_then(|version| version.parse().ok()).unwrap_or(0)
}

fn same_version(a: &ObjectMeta, b: &ObjectMeta) -> bool {
    a.resource_version == b.resource_version && a.uid == b.uid
}

impl<K> Shared<K> {
    fn new() -> Self {
        Self {
            store: RwLock::new(Store { objects: BTreeMap::new(), indexes: Vec::new() }),
            handlers: Mutex::new(Vec::new()),
            synced: watch::Sender::new(false),
            seen: AtomicU64::new(0),
        }
    }
}

impl<K: kube::Resource> Shared<K> {
    fn note(&self, object: &K) {
        self.seen.fetch_max(version(object.meta()), Ordering::AcqRel);
    }

    /// Changes the store and tells all handlers, in the order of the changes.
    fn commit(&self, change: impl FnOnce(&mut Store<K>) -> Vec<Change<K>>) {
        let handlers = self.handlers.lock();
        let changes = change(&mut self.store.write());
        for change in &changes {
            for handler in handlers.iter() {
                handler(change);
            }
        }
    }
}

/// The state of following a watch: `step` is the whole protocol.
struct Follower<K> {
    shared: Arc<Shared<K>>,
    /// Objects of the list that is being read.
    fresh: Vec<Arc<K>>,
}

impl<K: kube::Resource> Follower<K> {
    fn step(&mut self, event: Event<K>) {
        match event {
            Event::Init => self.fresh.clear(),
            Event::InitApply(object) => self.fresh.push(trim(object)),
            Event::InitDone => {
                let fresh = std::mem::take(&mut self.fresh);
                fresh.iter().for_each(|object| self.shared.note(object));
                self.shared.commit(|store| store.replace(fresh));
                self.shared.synced.send_replace(true);
            }
            Event::Apply(object) => {
                self.shared.note(&object);
                self.shared.commit(|store| store.put(trim(object)).into_iter().collect());
            }
            Event::Delete(object) => {
                self.shared.note(&object);
                let last = trim(object);
                let key = Key::of(last.meta());
                self.shared.commit(|store| store.remove(&key).map(|_| Change::Removed(last)).into_iter().collect());
            }
        }
    }
}

fn trim<K: kube::Resource>(mut object: K) -> Arc<K> {
    object.meta_mut().managed_fields = None;
    Arc::new(object)
}

impl<K: Object> Informer<K> {
    /// Starts a watch of its own; most callers want [`Informers`]. The connection's `slot` is held as long as the watch.
    pub fn start(api: Api<K>, selection: &Selection, slot: WatchSlot) -> Self {
        let resource = api.resource_url().to_owned();
        Self::follow(watch_objects(api, selection.config()), resource, slot)
    }

    fn follow(
        events: impl futures::Stream<Item = watcher::Result<Event<K>>> + Send + 'static, resource: String,
        slot: impl Send + 'static,
    ) -> Self {
        let shared = Arc::new(Shared::new());
        let stop = CancellationToken::new();
        let follower = Follower { shared: shared.clone(), fresh: Vec::new() };
        tokio::spawn(stop.child_token().run_until_cancelled_owned(run(events, follower, resource, slot)));
        Self { shared, _stop: Arc::new(stop.drop_guard()) }
    }

    /// An informer without a watch that holds these objects, for tests.
    pub fn fixed(objects: impl IntoIterator<Item = K>) -> Self {
        let shared = Arc::new(Shared::<K>::new());
        let objects: Vec<Arc<K>> = objects.into_iter().map(Arc::new).collect();
        objects.iter().for_each(|object| shared.note(object.as_ref()));
        shared.commit(|store| store.replace(objects));
        shared.synced.send_replace(true);
        Self { shared, _stop: Arc::new(CancellationToken::new().drop_guard()) }
    }
}

async fn run<K: kube::Resource>(
    events: impl futures::Stream<Item = watcher::Result<Event<K>>>, mut follower: Follower<K>, resource: String,
    _slot: impl Send,
) {
    let mut events = std::pin::pin!(events.default_backoff());
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => follower.step(event),
            Err(error) => tracing::warn!(%resource, %error, "watch failed, will try again"),
        }
    }
}

impl<K: kube::Resource> Informer<K> {
    /// Calls `handler` for each change from now on, and once with `Added` for each object that is already here. Calls
    /// come one at a time and in order; they must be short, and must not register handlers.
    pub fn on_change(&self, handler: impl Fn(&Change<K>) + Send + Sync + 'static) {
        let mut handlers = self.shared.handlers.lock();
        let known: Vec<_> = self.shared.store.read().objects.values().cloned().collect();
        for object in known {
            handler(&Change::Added(object));
        }
        handlers.push(Box::new(handler));
    }

    /// Returns once the first list is here and its handlers have run.
    pub async fn synced(&self) {
        let mut synced = self.shared.synced.subscribe();
        // The sender lives as long as this informer, so the wait can't fail.
        let _ = synced.wait_for(|synced| *synced).await;
    }

    /// Whether the first list is here.
    pub fn has_synced(&self) -> bool {
        *self.shared.synced.borrow()
    }

    /// Whether a write that the server answered with this resourceVersion shows here, or is already history.
    pub fn has_seen(&self, resource_version: &str) -> bool {
        resource_version.parse().is_ok_and(|version: u64| self.shared.seen.load(Ordering::Acquire) >= version)
    }

    /// The object with this key.
    pub fn get(&self, key: &Key) -> Option<Arc<K>> {
        self.shared.store.read().objects.get(key).cloned()
    }

    /// The object `namespace/name`; the namespace is empty for cluster-scoped ones.
    pub fn find(&self, namespace: &str, name: &str) -> Option<Arc<K>> {
        self.get(&Key::new(namespace, name))
    }

    /// All objects, sorted by key.
    pub fn list(&self) -> Vec<Arc<K>> {
        self.shared.store.read().objects.values().cloned().collect()
    }

    /// All keys, sorted.
    pub fn keys(&self) -> Vec<Key> {
        self.shared.store.read().objects.keys().cloned().collect()
    }

    /// How many objects there are.
    pub fn len(&self) -> usize {
        self.shared.store.read().objects.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The objects of one namespace, sorted by name.
    pub fn in_namespace(&self, namespace: &str) -> Vec<Arc<K>> {
        let store = self.shared.store.read();
        let from = store.objects.range(Key::new(namespace, "")..);
        from.take_while(|(key, _)| key.namespace == namespace).map(|(_, object)| object.clone()).collect()
    }

    /// Keeps an index from now on. A name stands for one function; asking twice changes nothing.
    pub fn add_index(&self, name: &'static str, values: IndexFn<K>) {
        let mut store = self.shared.store.write();
        if store.indexes.iter().any(|index| index.name == name) {
            return;
        }
        let mut index = Index { name, values, keys: HashMap::new() };
        for (key, object) in &store.objects {
            index.change(key, None, Some(object));
        }
        store.indexes.push(index);
    }

    /// The objects that an index has under this value, sorted by key.
    ///
    /// # Panics
    /// Without an [`Informer::add_index`] of this name.
    pub fn by_index(&self, name: &str, value: &str) -> Vec<Arc<K>> {
        let store = self.shared.store.read();
        let index = store.indexes.iter().find(|index| index.name == name).expect("the index was added");
        let keys = index.keys.get(value).into_iter().flatten();
        keys.filter_map(|key| store.objects.get(key).cloned()).collect()
    }

    /// Keeps an index by the controller's UID, for [`Informer::controlled_by`].
    pub fn index_controllers(&self) {
        self.add_index("controller", controller_uid::<K>);
    }

    /// The objects whose controller has this UID. Needs [`Informer::index_controllers`].
    pub fn controlled_by(&self, uid: &str) -> Vec<Arc<K>> {
        self.by_index("controller", uid)
    }
}

fn controller_uid<K: kube::Resource>(object: &K) -> Vec<String> {
    crate::owner::controller_of(object.meta()).map(|owner| owner.uid.clone()).into_iter().collect()
}

impl Informer<Pod> {
    /// Keeps an index by node, for [`Informer::on_node`].
    pub fn index_nodes(&self) {
        self.add_index("node", |pod| pod.spec.iter().filter_map(|spec| spec.node_name.clone()).collect());
    }

    /// The pods that are bound to a node. Needs [`Informer::index_nodes`].
    pub fn on_node(&self, node: &str) -> Vec<Arc<Pod>> {
        self.by_index("node", node)
    }
}

/// Any informer, seen as metadata.
pub trait AnyInformer: Send + Sync {
    /// As [`Informer::on_change`]; the arguments are the metadata before and after.
    fn on_metadata(&self, handler: Box<dyn Fn(Option<&ObjectMeta>, Option<&ObjectMeta>) + Send + Sync>);
    /// As [`Informer::synced`].
    fn synced(&self) -> BoxFuture<'_, ()>;
    /// As [`Informer::keys`].
    fn keys(&self) -> Vec<Key>;
    /// A copy of the metadata of one object.
    fn metadata(&self, key: &Key) -> Option<ObjectMeta>;
}

impl<K: kube::Resource + Send + Sync + 'static> AnyInformer for Informer<K> {
    fn on_metadata(&self, handler: Box<dyn Fn(Option<&ObjectMeta>, Option<&ObjectMeta>) + Send + Sync>) {
        self.on_change(move |change| match change {
            Change::Added(new) => handler(None, Some(new.meta())),
            Change::Updated(old, new) => handler(Some(old.meta()), Some(new.meta())),
            Change::Removed(old) => handler(Some(old.meta()), None),
        });
    }

    fn synced(&self) -> BoxFuture<'_, ()> {
        Box::pin(Informer::synced(self))
    }

    fn keys(&self) -> Vec<Key> {
        Informer::keys(self)
    }

    fn metadata(&self, key: &Key) -> Option<ObjectMeta> {
        self.get(key).map(|object| object.meta().clone())
    }
}

/// The informers of one component: one watch per kind and selection, whoever asks for it.
#[derive(Clone)]
pub struct Informers {
    connection: Connection,
    registry: Arc<Mutex<Registry>>,
}

#[derive(Default)]
struct Registry {
    /// By type, namespace (empty for all) and selection.
    typed: HashMap<(TypeId, String, Selection), Box<dyn Any + Send>>,
    /// Those that hold all objects of a resource, by group and plural.
    whole: HashMap<(String, String), Arc<dyn AnyInformer>>,
    all: Vec<Arc<dyn AnyInformer>>,
}

impl Registry {
    fn typed<K: Object>(
        &mut self, namespace: &str, selection: &Selection, start: impl FnOnce() -> Informer<K>,
    ) -> (Informer<K>, bool) {
        let id = (TypeId::of::<K>(), namespace.to_owned(), selection.clone());
        if let Some(known) = self.typed.get(&id).and_then(|known| known.downcast_ref::<Informer<K>>()) {
            return (known.clone(), false);
        }
        let informer = start();
        self.typed.insert(id, Box::new(informer.clone()));
        self.all.push(Arc::new(informer.clone()));
        (informer, true)
    }
}

impl Informers {
    /// No informers yet; each watch starts when it is first asked for and ends with this registry and its clones.
    pub fn new(connection: &Connection) -> Self {
        Self { connection: connection.clone(), registry: Arc::default() }
    }

    /// All objects of a kind.
    pub fn of<K: Object + kube::Resource<DynamicType = ()>>(&self) -> Informer<K> {
        let everything = Selection::default();
        let mut registry = self.registry.lock();
        let (informer, new) = registry.typed("", &everything, || self.start(Api::all, &everything));
        if new {
            let name = (K::group(&()).into_owned(), K::plural(&()).into_owned());
            registry.whole.insert(name, Arc::new(informer.clone()));
        }
        informer
    }

    /// Some objects of a kind, in all namespaces.
    pub fn select<K: Object + kube::Resource<DynamicType = ()>>(&self, selection: &Selection) -> Informer<K> {
        if *selection == Selection::default() {
            return self.of();
        }
        self.registry.lock().typed("", selection, || self.start(Api::all, selection)).0
    }

    /// Some objects of a kind, in one namespace.
    pub fn select_in<K>(&self, namespace: &str, selection: &Selection) -> Informer<K>
    where
        K: Object + kube::Resource<DynamicType = (), Scope: NamespaceScope>,
    {
        let api = |client| Api::all(client).constrain(namespace);
        self.registry.lock().typed(namespace, selection, || self.start(api, selection)).0
    }

    fn start<K: Object>(&self, api: impl FnOnce(kube::Client) -> Api<K>, selection: &Selection) -> Informer<K> {
        let slot = self.connection.watch_slot();
        Informer::start(api(slot.client()), selection, slot)
    }

    /// The metadata of all objects of a resource: from a typed informer if one is running, else from a watch of
    /// metadata alone.
    pub fn metadata(&self, resource: &ApiResource) -> Arc<dyn AnyInformer> {
        let mut registry = self.registry.lock();
        let name = (resource.group.clone(), resource.plural.clone());
        let connection = &self.connection;
        registry.whole.entry(name).or_insert_with(|| Arc::new(metadata_informer(connection, resource))).clone()
    }

    /// Ends a watch of metadata that [`Informers::metadata`] began, once nobody else holds it.
    pub fn forget_metadata(&self, group: &str, plural: &str) {
        self.registry.lock().whole.remove(&(group.to_owned(), plural.to_owned()));
    }

    /// Returns once all typed informers asked for so far are in sync.
    pub async fn synced(&self) {
        let all = self.registry.lock().all.clone();
        for informer in all {
            informer.synced().await;
        }
    }
}

fn metadata_informer(connection: &Connection, resource: &ApiResource) -> Informer<Metadata> {
    let slot = connection.watch_slot();
    Informer::start(Api::all_with(slot.client(), resource), &Selection::default(), slot)
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::{ConfigMap, PodSpec};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

    fn object(namespace: &str, name: &str, version: u32) -> ConfigMap {
        let metadata = ObjectMeta {
            namespace: Some(namespace.into()),
            name: Some(name.into()),
            resource_version: Some(version.to_string()),
            managed_fields: Some(Vec::new()),
            ..Default::default()
        };
        ConfigMap { metadata, ..Default::default() }
    }

    fn follower() -> (Informer<ConfigMap>, Follower<ConfigMap>, Arc<Mutex<Vec<String>>>) {
        let informer = Informer::<ConfigMap>::fixed([]);
        informer.shared.synced.send_replace(false);
        let seen = Arc::new(Mutex::new(Vec::new()));
        let log = seen.clone();
        informer.on_change(move |change| {
            let version = |object: &ConfigMap| {
                format!("{}@{}", Key::of(&object.metadata), object.metadata.resource_version.clone().unwrap())
            };
            log.lock().push(match change {
                Change::Added(new) => format!("+{}", version(new)),
                Change::Updated(old, new) => format!("{}>{}", version(old), version(new)),
                Change::Removed(old) => format!("-{}", version(old)),
            });
        });
        (informer.clone(), Follower { shared: informer.shared, fresh: Vec::new() }, seen)
    }

    fn list(follower: &mut Follower<ConfigMap>, objects: Vec<ConfigMap>) {
        follower.step(Event::Init);
        objects.into_iter().for_each(|object| follower.step(Event::InitApply(object)));
        follower.step(Event::InitDone);
    }

    #[test]
    fn a_relist_tells_only_what_changed() {
        let (informer, mut follower, seen) = follower();
        list(&mut follower, vec![object("a", "x", 1), object("a", "y", 2), object("b", "z", 3)]);
        assert!(informer.has_synced());
        seen.lock().clear();
        list(&mut follower, vec![object("a", "x", 1), object("a", "y", 5), object("c", "w", 6)]);
        assert_eq!(*seen.lock(), ["-b/z@3", "a/y@2>a/y@5", "+c/w@6"]);
    }

    #[test]
    fn changes_arrive_in_order_and_the_store_follows() {
        let (informer, mut follower, seen) = follower();
        list(&mut follower, vec![]);
        follower.step(Event::Apply(object("a", "x", 1)));
        follower.step(Event::Apply(object("a", "x", 1)));
        follower.step(Event::Apply(object("a", "x", 2)));
        follower.step(Event::Delete(object("a", "x", 3)));
        follower.step(Event::Delete(object("a", "x", 3)));
        assert_eq!(*seen.lock(), ["+a/x@1", "a/x@1>a/x@2", "-a/x@3"]);
        assert!(informer.is_empty());
    }

    #[test]
    fn a_late_handler_hears_of_what_is_there() {
        let informer = Informer::fixed([object("a", "x", 1)]);
        let seen = Arc::new(Mutex::new(0));
        let count = seen.clone();
        informer.on_change(move |change| {
            assert!(matches!(change, Change::Added(_)));
            *count.lock() += 1;
        });
        assert_eq!(*seen.lock(), 1);
    }

    #[test]
    fn namespaces_are_ranges_and_do_not_touch_their_neighbours() {
        let informer = Informer::fixed([object("a", "x", 1), object("a-b", "x", 2), object("b", "x", 3)]);
        assert_eq!(informer.in_namespace("a").len(), 1);
        assert_eq!(informer.in_namespace("none").len(), 0);
        assert_eq!(informer.find("a-b", "x").unwrap().metadata.resource_version.as_deref(), Some("2"));
    }

    #[test]
    fn managed_fields_are_not_kept() {
        let (informer, mut follower, _) = follower();
        list(&mut follower, vec![object("a", "x", 1)]);
        assert_eq!(informer.find("a", "x").unwrap().metadata.managed_fields, None);
    }

    #[test]
    fn the_controller_index_follows_adoption_and_release() {
        let (informer, mut follower, _) = follower();
        informer.index_controllers();
        let owner = OwnerReference { uid: "u".into(), controller: Some(true), ..Default::default() };
        let mut owned = object("a", "x", 2);
        owned.metadata.owner_references = Some(vec![owner]);
        list(&mut follower, vec![object("a", "x", 1), object("a", "y", 1)]);
        assert!(informer.controlled_by("u").is_empty());
        follower.step(Event::Apply(owned));
        assert_eq!(informer.controlled_by("u").len(), 1);
        follower.step(Event::Apply(object("a", "x", 3)));
        assert!(informer.controlled_by("u").is_empty());
    }

    #[test]
    fn pods_are_found_by_node() {
        let pod = |name: &str, node: Option<&str>| Pod {
            metadata: ObjectMeta { name: Some(name.into()), namespace: Some("a".into()), ..Default::default() },
            spec: Some(PodSpec { node_name: node.map(str::to_owned), ..Default::default() }),
            ..Default::default()
        };
        let informer = Informer::fixed([pod("x", Some("n1")), pod("y", None), pod("z", Some("n2"))]);
        informer.index_nodes();
        assert_eq!(informer.on_node("n1").len(), 1);
        assert_eq!(informer.on_node("n3").len(), 0);
    }
}

//! Objects of the API that pods refer to: ConfigMaps and Secrets (watched one by one while a pod needs them), tokens,
//! services, volumes behind claims.

use crate::pods;
use crate::volumes::payload::{TokenWish, references};
use client::informer::Object;
use client::{Connection, Informer, Informers, Key, Selection};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{
    ConfigMap, PersistentVolume, PersistentVolumeClaim, Pod, Secret, Service, ServiceAccount,
};
use kube::api::{Api, PostParams};
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use tokio::sync::mpsc;

/// Objects of one kind, each watched while some pod refers to it.
struct Watched<K> {
    connection: Option<Connection>,
    slots: Mutex<HashMap<Key, Informer<K>>>,
    changed: mpsc::UnboundedSender<Key>,
}

impl<K> Watched<K>
where
    K: Object + kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
{
    fn new(connection: Option<Connection>, changed: mpsc::UnboundedSender<Key>) -> Self {
        Self { connection, slots: Mutex::default(), changed }
    }

    /// The object as last shown; asked for directly while the watch has shown nothing yet.
    async fn get(&self, namespace: &str, name: &str) -> Result<Option<K>, String> {
        let key = Key::new(namespace, name);
        let slot = self.slots.lock().get(&key).filter(|informer| informer.has_synced()).cloned();
        if let Some(informer) = slot {
            return Ok(informer.get(&key).map(|object| K::clone(&object)));
        }
        let client = self.connection.as_ref().ok_or("no kubeClient defined")?.client();
        Api::<K>::namespaced(client, namespace).get_opt(name).await.map_err(|error| words(&error))
    }

    /// Watches exactly the objects in `wanted`.
    fn keep(&self, wanted: &HashSet<Key>) {
        let Some(connection) = &self.connection else { return };
        let mut slots = self.slots.lock();
        slots.retain(|key, _| wanted.contains(key));
        for key in wanted.iter().filter(|key| !key.name.is_empty()) {
            if slots.contains_key(key) {
                continue;
            }
            let slot = connection.watch_slot();
            let api = Api::namespaced(slot.client(), &key.namespace);
            let informer = Informer::start(api, &Selection::named(&key.name), slot);
            let (changed, key) = (self.changed.clone(), key.clone());
            slots.insert(key.clone(), informer.clone());
            informer.on_change(move |_| {
                // The receiver lives as long as the kubelet.
                let _ = changed.send(key.clone());
            });
        }
    }
}

/// An API error as clients show it: the server's own message.
pub fn words(error: &kube::Error) -> String {
    client::retry::message(error)
}

struct Token {
    text: String,
    expires: Timestamp,
    refresh: Timestamp,
}

/// Which pod's token: its UID and the wish.
type TokenKey = (String, TokenWish);

/// The objects that pods refer to.
pub struct Objects {
    client: Option<kube::Client>,
    config_maps: Watched<ConfigMap>,
    secrets: Watched<Secret>,
    tokens: Mutex<HashMap<TokenKey, Token>>,
    referrers: Mutex<HashMap<String, References>>,
    services: Option<Informer<Service>>,
}

#[derive(Default, Clone)]
struct References {
    namespace: String,
    config_maps: BTreeSet<String>,
    secrets: BTreeSet<String>,
}

/// Tells which object changed.
pub struct Changes {
    config_maps: mpsc::UnboundedReceiver<Key>,
    secrets: mpsc::UnboundedReceiver<Key>,
}

impl Objects {
    /// Objects from the API behind `connection`; without one, nothing is found.
    pub fn new(connection: Option<Connection>) -> (Arc<Self>, Changes) {
        let (map_changed, config_maps) = mpsc::unbounded_channel();
        let (secret_changed, secrets) = mpsc::unbounded_channel();
        let objects = Self {
            client: connection.as_ref().map(Connection::client),
            services: connection.as_ref().map(|connection| Informers::new(connection).of::<Service>()),
            config_maps: Watched::new(connection.clone(), map_changed),
            secrets: Watched::new(connection, secret_changed),
            tokens: Mutex::default(),
            referrers: Mutex::default(),
        };
        (Arc::new(objects), Changes { config_maps, secrets })
    }

    /// Is there an API server at all?
    pub fn connected(&self) -> bool {
        self.client.is_some()
    }

    /// A ConfigMap, or `None` when there is none of the name.
    pub async fn config_map(&self, namespace: &str, name: &str) -> Result<Option<ConfigMap>, String> {
        self.config_maps.get(namespace, name).await
    }

    /// A Secret, or `None` when there is none of the name.
    pub async fn secret(&self, namespace: &str, name: &str) -> Result<Option<Secret>, String> {
        self.secrets.get(namespace, name).await
    }

    /// The services; none without an API server. The first list is waited for a little: a pod that starts right after
    /// the kubelet shall see them.
    pub async fn services(&self) -> Result<Vec<Arc<Service>>, String> {
        let Some(services) = &self.services else { return Ok(Vec::new()) };
        match tokio::time::timeout(std::time::Duration::from_secs(10), services.synced()).await {
            Ok(()) => Ok(services.list()),
            Err(_) => Err("services have not yet been read at least once, cannot construct envvars".into()),
        }
    }

    /// The services as far as they are known now.
    pub fn services_now(&self) -> Vec<Arc<Service>> {
        self.services.as_ref().map(Informer::list).unwrap_or_default()
    }

    /// Takes note of what a pod refers to, so that it is watched.
    pub fn register(&self, pod: &Pod) {
        let found = of_pod(pod);
        let mut referrers = self.referrers.lock();
        referrers.insert(pods::uid(pod).to_owned(), found);
        self.rewatch(&referrers);
    }

    /// Forgets a pod's references and tokens.
    pub fn unregister(&self, uid: &str) {
        self.tokens.lock().retain(|(owner, _), _| owner != uid);
        let mut referrers = self.referrers.lock();
        if referrers.remove(uid).is_some() {
            self.rewatch(&referrers);
        }
    }

    fn rewatch(&self, referrers: &HashMap<String, References>) {
        if self.client.is_none() {
            return;
        }
        let keys = |pick: fn(&References) -> &BTreeSet<String>| -> HashSet<Key> {
            let of_one = |r: &References| -> Vec<Key> {
                pick(r).iter().map(|name| Key::new(r.namespace.clone(), name.clone())).collect()
            };
            referrers.values().flat_map(of_one).collect()
        };
        self.config_maps.keep(&keys(|r| &r.config_maps));
        self.secrets.keep(&keys(|r| &r.secrets));
    }

    /// Pods that refer to the changed object.
    fn referring(&self, key: &Key, secret: bool) -> Vec<String> {
        let names =
            |r: &References| if secret { r.secrets.contains(&key.name) } else { r.config_maps.contains(&key.name) };
        let referrers = self.referrers.lock();
        referrers.iter().filter(|(_, r)| r.namespace == key.namespace && names(r)).map(|(uid, _)| uid.clone()).collect()
    }

    /// The UIDs of the pods that the next change concerns.
    pub async fn next_change(&self, changes: &mut Changes) -> Vec<String> {
        tokio::select! {
            Some(key) = changes.config_maps.recv() => self.referring(&key, false),
            Some(key) = changes.secrets.recv() => self.referring(&key, true),
            else => std::future::pending().await,
        }
    }

    /// A token of the pod's service account, kept until four fifths of its life (at most a day) have passed.
    pub async fn token(&self, pod: &Pod, wish: &TokenWish) -> Result<String, String> {
        let key = (pods::uid(pod).to_owned(), wish.clone());
        let now = Timestamp::now();
        if let Some(token) = self.tokens.lock().get(&key).filter(|token| now < token.refresh) {
            return Ok(token.text.clone());
        }
        match self.request_token(pod, wish).await {
            Ok(token) => {
                let text = token.text.clone();
                self.tokens.lock().insert(key, token);
                Ok(text)
            }
            // The old one serves while it lives: a server that is away for a while takes no pod down.
            Err(error) => match self.tokens.lock().get(&key).filter(|token| now < token.expires) {
                Some(token) => Ok(token.text.clone()),
                None => Err(error),
            },
        }
    }

    async fn request_token(&self, pod: &Pod, wish: &TokenWish) -> Result<Token, String> {
        let client = self.client.clone().ok_or("cannot use TokenManager when kubelet is in standalone mode")?;
        let account = pods::spec(pod).service_account_name.clone().unwrap_or_default();
        let request = TokenRequest {
            spec: Some(TokenRequestSpec {
                audiences: Some([wish.audience.clone()].into_iter().filter(|a| !a.is_empty()).collect()),
                expiration_seconds: Some(wish.seconds),
                bound_object_ref: Some(BoundObjectReference {
                    api_version: Some("v1".into()),
                    kind: Some("Pod".into()),
                    name: pod.metadata.name.clone(),
                    uid: pod.metadata.uid.clone(),
                }),
            }),
            ..Default::default()
        };
        let api: Api<ServiceAccount> = Api::namespaced(client, pods::namespace(pod));
        let answer = api.create_token_request(&account, &PostParams::default(), &request).await;
        let answer = answer.map_err(|error| format!("failed to fetch token: {}", words(&error)))?;
        let status = answer.status.ok_or("failed to fetch token: the answer has no status")?;
        let parts = status.token.zip(status.expiration_timestamp);
        let (text, expires) = parts.ok_or("failed to fetch token: the answer has no token")?;
        let (now, expires) = (Timestamp::now(), expires.0);
        let life = expires.duration_since(now);
        // A little chance keeps the pods of a node from asking all at once.
        let jitter = SignedDuration::from_secs(rand::random_range(0..10));
        let refresh = now + (life * 4 / 5).min(SignedDuration::from_hours(24)) - jitter;
        Ok(Token { text, expires, refresh })
    }

    /// When the first of the pod's tokens wants to be replaced.
    pub fn next_token_refresh(&self, uid: &str) -> Option<Timestamp> {
        self.tokens.lock().iter().filter(|((owner, _), _)| owner == uid).map(|(_, token)| token.refresh).min()
    }

    /// The volume that a claim is bound to.
    pub async fn bound_volume(&self, namespace: &str, claim: &str) -> Result<PersistentVolume, String> {
        let client = self.client.clone().ok_or("no kubeClient defined")?;
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), namespace);
        let found = claims.get(claim).await.map_err(|error| words(&error))?;
        let bound = found.status.and_then(|s| s.phase).as_deref() == Some("Bound");
        let name = found.spec.and_then(|spec| spec.volume_name).filter(|name| bound && !name.is_empty());
        let name = name.ok_or_else(|| format!("PVC {namespace}/{claim} is not bound"))?;
        Api::<PersistentVolume>::all(client).get(&name).await.map_err(|error| words(&error))
    }
}

/// Everything in a pod's namespace that the pod refers to.
fn of_pod(pod: &Pod) -> References {
    let mut found = References { namespace: pods::namespace(pod).to_owned(), ..Default::default() };
    for (place, _) in pods::places(pod) {
        if let Some(container) = pods::container_at(pod, place) {
            let (maps, secrets) = crate::pods::env::references(&container);
            found.config_maps.extend(maps);
            found.secrets.extend(secrets);
        }
    }
    let spec = pods::spec(pod);
    for volume in spec.volumes.as_deref().unwrap_or_default() {
        let needs = references(volume);
        found.config_maps.extend(needs.config_maps);
        found.secrets.extend(needs.secrets);
    }
    found.secrets.extend(spec.image_pull_secrets.iter().flatten().map(|secret| secret.name.clone()));
    found
}

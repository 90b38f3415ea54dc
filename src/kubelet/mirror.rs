//! Mirror pods: the API's copies of static pods, so that they can be seen there.

use crate::pods::{self, CONFIG_HASH, CONFIG_MIRROR, full_name, is_deleting, is_static};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{Api, DeleteParams, PostParams, Preconditions};
use parking_lot::RwLock;
use std::collections::HashMap;
use std::sync::Arc;

/// Makes and removes mirror pods.
pub struct Mirrors {
    client: kube::Client,
    node: String,
    node_uid: RwLock<Option<String>>,
    known: RwLock<HashMap<String, Arc<Pod>>>,
}

impl Mirrors {
    /// Mirrors through a client.
    pub fn new(client: kube::Client, node: String) -> Self {
        Self { client, node, node_uid: RwLock::default(), known: RwLock::default() }
    }

    /// The node has been registered under this UID, which owns its mirrors.
    pub fn node_registered(&self, uid: &str) {
        *self.node_uid.write() = Some(uid.to_owned());
    }

    /// Should the static pod have a mirror by now, and has none?
    pub fn lacks(&self, pod: &Pod) -> bool {
        is_static(pod) && self.node_uid.read().is_some() && self.of(pod).is_none()
    }

    /// The API has this mirror.
    pub fn seen(&self, pod: &Arc<Pod>) {
        self.known.write().insert(full_name(pod), pod.clone());
    }

    /// The API no longer has it.
    pub fn gone(&self, pod: &Pod) {
        let mut known = self.known.write();
        if known.get(&full_name(pod)).is_some_and(|mirror| pods::uid(mirror) == pods::uid(pod)) {
            known.remove(&full_name(pod));
        }
    }

    /// The mirror of a static pod, as the API has it.
    pub fn of(&self, pod: &Pod) -> Option<Arc<Pod>> {
        self.known.read().get(&full_name(pod)).cloned()
    }

    /// All mirrors that the API has.
    pub fn all(&self) -> Vec<Arc<Pod>> {
        self.known.read().values().cloned().collect()
    }

    fn api(&self, pod: &Pod) -> Api<Pod> {
        Api::namespaced(self.client.clone(), pods::namespace(pod))
    }

    /// Makes the mirror of a static pod when there is none, and a new one when it mirrors something else.
    pub async fn reconcile(&self, pod: &Pod) {
        if !is_static(pod) {
            return;
        }
        let hash = pods::annotation(pod, CONFIG_HASH).unwrap_or_default();
        match self.of(pod) {
            Some(mirror) if !is_deleting(&mirror) && pods::annotation(&mirror, CONFIG_MIRROR) == Some(hash) => return,
            Some(mirror) => self.delete(&mirror).await,
            None => {}
        }
        // The node's UID is what makes a pod a mirror of this node and not of another of its name.
        let Some(node_uid) = self.node_uid.read().clone() else { return };
        let mirror = self.make(pod, hash, node_uid);
        match self.api(pod).create(&PostParams::default(), &mirror).await {
            Ok(made) => self.seen(&Arc::new(made)),
            Err(error) if client::retry::is_already_exists(&error) => {}
            Err(error) => {
                let error = crate::objects::words(&error);
                tracing::warn!(pod = pods::describe(pod), error, "failed creating a mirror pod");
            }
        }
    }

    fn make(&self, pod: &Pod, hash: &str, node_uid: String) -> Pod {
        let mut mirror = pod.clone();
        mirror.status = None;
        let meta = &mut mirror.metadata;
        meta.uid = None;
        meta.annotations.get_or_insert_default().insert(CONFIG_MIRROR.into(), hash.into());
        meta.owner_references = Some(vec![OwnerReference {
            api_version: "v1".into(),
            kind: "Node".into(),
            name: self.node.clone(),
            uid: node_uid,
            controller: Some(true),
            block_owner_deletion: None,
        }]);
        mirror
    }

    /// Removes a mirror at once; what it mirrors has no part in it.
    pub async fn delete(&self, mirror: &Pod) {
        let preconditions = Preconditions { uid: mirror.metadata.uid.clone(), resource_version: None };
        let params = DeleteParams::default().grace_period(0).preconditions(preconditions);
        match self.api(mirror).delete(pods::name(mirror), &params).await {
            Ok(_) => self.gone(mirror),
            Err(error) if client::retry::is_not_found(&error) => self.gone(mirror),
            Err(error) => {
                let error = crate::objects::words(&error);
                tracing::warn!(pod = pods::describe(mirror), error, "failed deleting a mirror pod");
            }
        }
    }
}

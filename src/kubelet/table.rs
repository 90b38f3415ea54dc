//! The pods that this node shall have, as the sources say: static ones and the API's.

use crate::pods::{self, full_name, is_static};
use k8s_openapi::api::core::v1::Pod;
use parking_lot::RwLock;
use std::collections::HashMap;
use std::sync::Arc;

/// The pods of this node by UID; mirrors are kept elsewhere.
#[derive(Default)]
pub struct Table {
    pods: RwLock<HashMap<String, Arc<Pod>>>,
}

impl Table {
    /// A pod by UID.
    pub fn get(&self, uid: &str) -> Option<Arc<Pod>> {
        self.pods.read().get(uid).cloned()
    }

    /// A pod by namespace and name; by UID as well when that is given.
    pub fn find(&self, namespace: &str, name: &str, uid: Option<&str>) -> Option<Arc<Pod>> {
        let pods = self.pods.read();
        let fits = |pod: &&Arc<Pod>| {
            pods::namespace(pod) == namespace && pods::name(pod) == name && uid.is_none_or(|uid| pods::uid(pod) == uid)
        };
        pods.values().find(fits).cloned()
    }

    /// The static pod that a mirror stands for.
    pub fn static_of(&self, mirror: &Pod) -> Option<Arc<Pod>> {
        let name = full_name(mirror);
        self.pods.read().values().find(|pod| is_static(pod) && full_name(pod) == name).cloned()
    }

    /// All pods.
    pub fn all(&self) -> Vec<Arc<Pod>> {
        self.pods.read().values().cloned().collect()
    }

    /// Adds or replaces a pod; what was there before.
    pub fn put(&self, pod: &Arc<Pod>) -> Option<Arc<Pod>> {
        self.pods.write().insert(pods::uid(pod).to_owned(), pod.clone())
    }

    /// Removes a pod.
    pub fn remove(&self, uid: &str) -> Option<Arc<Pod>> {
        self.pods.write().remove(uid)
    }
}

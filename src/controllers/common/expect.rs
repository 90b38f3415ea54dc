//! Writes that the informers do not show yet. A controller that counts objects must not count again before it sees what
//! it has just made or deleted.

use client::{Informer, Key};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::time::Duration;
use tokio::time::Instant;

/// After this long the writes are taken for seen: the informer may have missed what was made and deleted in a gap.
const PATIENCE: Duration = Duration::from_secs(5 * 60);

/// The unseen writes of each owner.
#[derive(Default)]
pub struct Expectations {
    pending: Mutex<HashMap<Key, Pending>>,
}

struct Pending {
    since: Instant,
    /// resourceVersions of what was made or changed.
    made: Vec<String>,
    /// What was deleted: key and UID.
    deleted: Vec<(Key, String)>,
}

impl Expectations {
    fn change(&self, owner: &Key, change: impl FnOnce(&mut Pending)) {
        let mut pending = self.pending.lock();
        let fresh = || Pending { since: Instant::now(), made: Vec::new(), deleted: Vec::new() };
        let entry = pending.entry(owner.clone()).or_insert_with(fresh);
        entry.since = Instant::now();
        change(entry);
    }

    /// Notes what the server answered to a creation or change.
    pub fn made(&self, owner: &Key, answer: &ObjectMeta) {
        self.change(owner, |pending| pending.made.extend(answer.resource_version.clone()));
    }

    /// Notes that an object was deleted.
    pub fn deleted(&self, owner: &Key, object: &ObjectMeta) {
        let entry = (Key::of(object), object.uid.clone().unwrap_or_default());
        self.change(owner, |pending| pending.deleted.push(entry));
    }

    /// Whether the informer shows all of the owner's writes.
    pub fn seen<K: kube::Resource>(&self, owner: &Key, informer: &Informer<K>) -> bool {
        let mut all = self.pending.lock();
        let Some(pending) = all.get_mut(owner) else { return true };
        pending.made.retain(|version| !informer.has_seen(version));
        pending.deleted.retain(|(key, uid)| is_alive(informer, key, uid));
        let seen = (pending.made.is_empty() && pending.deleted.is_empty()) || pending.since.elapsed() > PATIENCE;
        if seen {
            all.remove(owner);
        }
        seen
    }

    /// Drops what is known of an owner that is gone.
    pub fn forget(&self, owner: &Key) {
        self.pending.lock().remove(owner);
    }
}

fn is_alive<K: kube::Resource>(informer: &Informer<K>, key: &Key, uid: &str) -> bool {
    informer
        .get(key)
        .is_some_and(|object| object.meta().uid.as_deref() == Some(uid) && object.meta().deletion_timestamp.is_none())
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::Pod;

    fn pod(name: &str, uid: &str, version: &str) -> Pod {
        let metadata = ObjectMeta {
            name: Some(name.into()),
            uid: Some(uid.into()),
            resource_version: Some(version.into()),
            ..Default::default()
        };
        Pod { metadata, ..Default::default() }
    }

    #[test]
    fn a_deletion_is_seen_when_the_object_is_gone_or_another() {
        let (expect, owner) = (Expectations::default(), Key::new("a", "web"));
        assert!(expect.seen(&owner, &Informer::<Pod>::fixed([])));
        expect.deleted(&owner, &pod("x", "1", "5").metadata);
        assert!(!expect.seen(&owner, &Informer::fixed([pod("x", "1", "5")])));
        assert!(expect.seen(&owner, &Informer::fixed([pod("x", "2", "7")])));
    }

    #[test]
    fn a_creation_is_seen_when_the_informer_is_past_it() {
        let (expect, owner) = (Expectations::default(), Key::new("a", "web"));
        expect.made(&owner, &pod("x", "1", "12").metadata);
        assert!(!expect.seen(&owner, &Informer::fixed([pod("y", "2", "11")])));
        assert!(expect.seen(&owner, &Informer::fixed([pod("y", "2", "12")])));
    }
}

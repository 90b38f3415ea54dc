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

    /// How much longer to wait for the informer to show all of the owner's writes; nothing when it does, or has not in time.
    /// Its changes wake the owner, but the last one may never come: whoever waits must come back by then.
    pub fn unseen<K: kube::Resource>(&self, owner: &Key, informer: &Informer<K>) -> Option<Duration> {
        self.unseen_at(owner, informer, Instant::now())
    }

    fn unseen_at<K: kube::Resource>(&self, owner: &Key, informer: &Informer<K>, now: Instant) -> Option<Duration> {
        let mut all = self.pending.lock();
        let pending = all.get_mut(owner)?;
        pending.made.retain(|version| !informer.has_seen(version));
        pending.deleted.retain(|(key, uid)| is_alive(informer, key, uid));
        let left = PATIENCE.checked_sub(now.saturating_duration_since(pending.since)).filter(|left| !left.is_zero());
        let seen = pending.made.is_empty() && pending.deleted.is_empty();
        if seen || left.is_none() {
            all.remove(owner);
            return None;
        }
        left
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
        assert_eq!(expect.unseen(&owner, &Informer::<Pod>::fixed([])), None);
        expect.deleted(&owner, &pod("x", "1", "5").metadata);
        assert!(expect.unseen(&owner, &Informer::fixed([pod("x", "1", "5")])).is_some());
        assert_eq!(expect.unseen(&owner, &Informer::fixed([pod("x", "2", "7")])), None);
    }

    #[test]
    fn a_creation_is_seen_when_the_informer_is_past_it() {
        let (expect, owner) = (Expectations::default(), Key::new("a", "web"));
        expect.made(&owner, &pod("x", "1", "12").metadata);
        assert!(expect.unseen(&owner, &Informer::fixed([pod("y", "2", "11")])).is_some());
        assert_eq!(expect.unseen(&owner, &Informer::fixed([pod("y", "2", "12")])), None);
    }

    #[test]
    fn who_waits_for_a_revision_that_never_comes_is_woken_when_the_patience_ends() {
        let (expect, owner) = (Expectations::default(), Key::new("a", "web"));
        // Such as after a snapshot was restored, and revisions are counted again from an earlier one.
        expect.made(&owner, &pod("x", "1", "9000").metadata);
        let (informer, now) = (Informer::fixed([pod("y", "2", "11")]), Instant::now());
        let wait = expect.unseen_at(&owner, &informer, now).unwrap();
        assert!(wait <= PATIENCE);
        assert_eq!(expect.unseen_at(&owner, &informer, now + wait), None);
        assert_eq!(expect.unseen_at(&owner, &informer, now), None, "it is not waited for again");
    }
}

//! Who owns whom, by the informers. Knows every object's UID, and links only where there are owners.

use client::Key;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// The finalizer of foreground deletion.
pub(super) const FOREGROUND: &str = "foregroundDeletion";
/// The finalizer of orphaning.
pub(super) const ORPHAN: &str = "orphan";

/// A UID in 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Uid(u128);

impl Uid {
    /// UUIDs as they are; of anything else a hash.
    pub(super) fn of(text: &str) -> Self {
        let digits: String = text.chars().filter(|c| *c != '-').collect();
        if digits.len() == 32
            && let Ok(number) = u128::from_str_radix(&digits, 16)
        {
            return Self(number);
        }
        let mut hash: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
        for byte in text.bytes() {
            hash = (hash ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b);
        }
        Self(hash)
    }

    pub(super) fn of_meta(meta: &ObjectMeta) -> Self {
        Self::of(meta.uid.as_deref().unwrap_or_default())
    }
}

/// A resource, by its number in the shell's list.
pub(super) type Resource = u32;

/// One object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Id {
    pub(super) resource: Resource,
    pub(super) key: Key,
    pub(super) uid: Uid,
}

/// Something to look into.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Item {
    /// Are the owners of this object still there?
    Check(Id),
    /// May this one go, now that its dependents do?
    Foreground(Id),
    /// Set the dependents of this one free, then let it go.
    Orphan(Id),
    /// The owner of this object with that UID lives in another namespace.
    Report(Id, Uid),
}

#[derive(Debug)]
struct Child {
    id: Id,
    /// Each owner, and whether it waits for this object.
    owners: Vec<(Uid, bool)>,
}

#[derive(Debug)]
struct Place {
    resource: Resource,
    namespace: Arc<str>,
}

/// The graph.
#[derive(Debug, Default)]
pub(super) struct Graph {
    known: HashMap<Uid, Place>,
    namespaces: HashMap<String, Arc<str>>,
    children: HashMap<Uid, Child>,
    dependents: HashMap<Uid, BTreeSet<Uid>>,
    /// Those that wait for their dependents' deletion.
    waiting: HashMap<Uid, Id>,
    orphaning: HashMap<Uid, Id>,
    /// Whether all informers have shown all: only then a missing owner means something.
    complete: bool,
}

impl Graph {
    /// Takes in a change of one object.
    pub(super) fn apply(
        &mut self, resource: Resource, old: Option<&ObjectMeta>, new: Option<&ObjectMeta>,
    ) -> Vec<Item> {
        let mut wakes = Vec::new();
        // Under one name there may be another object now.
        if let Some(old) = old
            && new.is_none_or(|new| new.uid != old.uid)
        {
            self.remove(Uid::of_meta(old), &mut wakes);
        }
        if let Some(new) = new {
            self.put(resource, new, &mut wakes);
        }
        if self.complete { wakes } else { Vec::new() }
    }

    fn put(&mut self, resource: Resource, meta: &ObjectMeta, wakes: &mut Vec<Item>) {
        let id = Id { resource, key: Key::of(meta), uid: Uid::of_meta(meta) };
        let namespace = self.intern(&id.key.namespace);
        if self.known.insert(id.uid, Place { resource, namespace }).is_none() {
            for child in self.dependents_of(id.uid).iter().filter(|child| self.is_misplaced(child, id.uid)) {
                wakes.extend(misplaced(child, id.uid));
            }
        }
        self.link(&id, meta.owner_references.as_deref().unwrap_or_default(), wakes);
        if meta.deletion_timestamp.is_some() {
            let has = |finalizer: &str| meta.finalizers.iter().flatten().any(|known| known == finalizer);
            self.deleting(id, has(FOREGROUND), has(ORPHAN), wakes);
        }
    }

    fn intern(&mut self, namespace: &str) -> Arc<str> {
        match self.namespaces.get(namespace) {
            Some(known) => known.clone(),
            None => {
                let new: Arc<str> = namespace.into();
                self.namespaces.insert(namespace.to_owned(), new.clone());
                new
            }
        }
    }

    fn link(&mut self, id: &Id, references: &[OwnerReference], wakes: &mut Vec<Item>) {
        let owners: Vec<(Uid, bool)> = references
            .iter()
            .map(|reference| (Uid::of(&reference.uid), reference.block_owner_deletion == Some(true)))
            .collect();
        let old = match self.children.remove(&id.uid) {
            Some(child) => child.owners,
            None => Vec::new(),
        };
        for (owner, blocked) in &old {
            let now = owners.iter().find(|(known, _)| known == owner);
            if now.is_none() {
                self.unlink(*owner, id.uid);
            }
            if *blocked && now.is_none_or(|(_, blocks)| !blocks) {
                self.unblock(*owner, wakes);
            }
        }
        for (owner, _) in &owners {
            self.dependents.entry(*owner).or_default().insert(id.uid);
            if !old.iter().any(|(known, _)| known == owner) {
                self.check_new_owner(id, *owner, wakes);
            }
        }
        if !owners.is_empty() {
            self.children.insert(id.uid, Child { id: id.clone(), owners });
        }
    }

    fn check_new_owner(&self, id: &Id, owner: Uid, wakes: &mut Vec<Item>) {
        if self.is_misplaced(id, owner) {
            wakes.extend(misplaced(id, owner));
        } else if !self.known.contains_key(&owner) || self.waiting.contains_key(&owner) {
            wakes.push(Item::Check(id.clone()));
        }
    }

    /// Whether the owner is known to live in a namespace, and not in this object's.
    fn is_misplaced(&self, child: &Id, owner: Uid) -> bool {
        let place = self.known.get(&owner);
        place.is_some_and(|place| !place.namespace.is_empty() && *place.namespace != *child.key.namespace)
    }

    fn unlink(&mut self, owner: Uid, child: Uid) {
        if let Some(dependents) = self.dependents.get_mut(&owner) {
            dependents.remove(&child);
            if dependents.is_empty() {
                self.dependents.remove(&owner);
            }
        }
    }

    fn unblock(&self, owner: Uid, wakes: &mut Vec<Item>) {
        wakes.extend(self.waiting.get(&owner).cloned().map(Item::Foreground));
    }

    fn deleting(&mut self, id: Id, foreground: bool, orphan: bool, wakes: &mut Vec<Item>) {
        if orphan && self.orphaning.insert(id.uid, id.clone()).is_none() {
            wakes.push(Item::Orphan(id.clone()));
        }
        if !orphan {
            self.orphaning.remove(&id.uid);
        }
        if !foreground {
            self.waiting.remove(&id.uid);
        } else if self.waiting.insert(id.uid, id.clone()).is_none() {
            wakes.extend(self.dependents_of(id.uid).into_iter().map(Item::Check));
            wakes.push(Item::Foreground(id));
        }
    }

    fn remove(&mut self, uid: Uid, wakes: &mut Vec<Item>) {
        self.known.remove(&uid);
        self.waiting.remove(&uid);
        self.orphaning.remove(&uid);
        if let Some(child) = self.children.remove(&uid) {
            for (owner, _) in child.owners {
                self.unlink(owner, uid);
                self.unblock(owner, wakes);
            }
        }
        wakes.extend(self.dependents_of(uid).into_iter().map(Item::Check));
    }

    /// Drops all objects of a resource that is no longer served; nothing follows from that.
    pub(super) fn drop_resource(&mut self, resource: Resource) {
        let gone: Vec<Uid> =
            self.known.iter().filter(|(_, place)| place.resource == resource).map(|(uid, _)| *uid).collect();
        for uid in gone {
            self.remove(uid, &mut Vec::new());
        }
    }

    /// From now on changes wake; returns what there was to do before.
    pub(super) fn complete(&mut self) -> Vec<Item> {
        self.complete = true;
        let mut items = Vec::new();
        for child in self.children.values() {
            let owners = child.owners.iter().map(|(owner, _)| *owner);
            owners.for_each(|owner| self.check_new_owner(&child.id, owner, &mut items));
        }
        items.extend(self.waiting.values().cloned().map(Item::Foreground));
        items.extend(self.orphaning.values().cloned().map(Item::Orphan));
        items
    }

    /// The objects that have this one as an owner.
    pub(super) fn dependents_of(&self, owner: Uid) -> Vec<Id> {
        let dependents = self.dependents.get(&owner).into_iter().flatten();
        dependents.filter_map(|uid| self.children.get(uid)).map(|child| child.id.clone()).collect()
    }

    /// Those of them that hold up its foreground deletion.
    pub(super) fn blocking(&self, owner: Uid) -> Vec<Id> {
        let dependents = self.dependents.get(&owner).into_iter().flatten().filter_map(|uid| self.children.get(uid));
        let blocks = |child: &&Child| child.owners.contains(&(owner, true));
        dependents.filter(blocks).map(|child| child.id.clone()).collect()
    }

    /// Whether the object waits for its dependents' deletion.
    pub(super) fn is_waiting(&self, uid: Uid) -> bool {
        self.waiting.contains_key(&uid)
    }
}

fn misplaced(child: &Id, owner: Uid) -> [Item; 2] {
    [Item::Report(child.clone(), owner), Item::Check(child.clone())]
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    fn meta(name: &str, owners: &[(&str, bool)]) -> ObjectMeta {
        let reference = |(uid, blocks): &(&str, bool)| OwnerReference {
            uid: (*uid).into(),
            name: (*uid).into(),
            block_owner_deletion: Some(*blocks),
            ..Default::default()
        };
        ObjectMeta {
            namespace: Some("a".into()),
            name: Some(name.into()),
            uid: Some(name.into()),
            owner_references: Some(owners.iter().map(reference).collect()),
            ..Default::default()
        }
    }

    fn deleted(meta: &ObjectMeta, finalizers: &[&str]) -> ObjectMeta {
        ObjectMeta {
            deletion_timestamp: Some(Time(jiff::Timestamp::UNIX_EPOCH)),
            finalizers: Some(finalizers.iter().map(|text| (*text).to_owned()).collect()),
            ..meta.clone()
        }
    }

    fn told(wakes: &[Item]) -> Vec<String> {
        let mut told: Vec<_> = wakes
            .iter()
            .map(|item| match item {
                Item::Check(id) => format!("check {}", id.key.name),
                Item::Foreground(id) => format!("foreground {}", id.key.name),
                Item::Orphan(id) => format!("orphan {}", id.key.name),
                Item::Report(id, _) => format!("report {}", id.key.name),
            })
            .collect();
        told.sort();
        told
    }

    fn graph(metas: &[&ObjectMeta]) -> Graph {
        let mut graph = Graph::default();
        for meta in metas {
            assert_eq!(graph.apply(0, None, Some(meta)), Vec::new());
        }
        graph
    }

    #[test]
    fn a_deleted_owner_wakes_its_dependents() {
        let (owner, child) = (meta("rs", &[]), meta("pod", &[("rs", true)]));
        let mut graph = graph(&[&owner, &child]);
        assert!(graph.complete().is_empty());
        assert_eq!(told(&graph.apply(0, Some(&owner), None)), ["check pod"]);
    }

    #[test]
    fn objects_whose_owner_was_never_seen_are_checked() {
        let mut graph = graph(&[&meta("pod", &[("gone", true)])]);
        assert_eq!(told(&graph.complete()), ["check pod"]);
        assert_eq!(told(&graph.apply(0, None, Some(&meta("late", &[("gone", false)])))), ["check late"]);
    }

    #[test]
    fn a_foreground_deletion_ends_with_the_last_blocking_dependent() {
        let owner = meta("rs", &[]);
        let (blocking, loose) = (meta("pod", &[("rs", true)]), meta("other", &[("rs", false)]));
        let mut graph = graph(&[&owner, &blocking, &loose]);
        graph.complete();
        let dying = deleted(&owner, &[FOREGROUND]);
        let wakes = graph.apply(0, Some(&owner), Some(&dying));
        assert_eq!(told(&wakes), ["check other", "check pod", "foreground rs"]);
        assert_eq!(graph.blocking(Uid::of("rs")).len(), 1);
        assert!(graph.apply(0, Some(&dying), Some(&dying)).is_empty(), "once is enough");
        assert_eq!(told(&graph.apply(0, Some(&blocking), None)), ["foreground rs"]);
        assert!(graph.blocking(Uid::of("rs")).is_empty());
    }

    #[test]
    fn a_dependent_that_stops_blocking_lets_its_owner_go() {
        let (owner, child) = (meta("rs", &[]), meta("pod", &[("rs", true)]));
        let dying = deleted(&owner, &[FOREGROUND]);
        let mut graph = graph(&[&dying, &child]);
        assert_eq!(told(&graph.complete()), ["check pod", "foreground rs"]);
        let wakes = graph.apply(0, Some(&child), Some(&meta("pod", &[("rs", false)])));
        assert_eq!(told(&wakes), ["foreground rs"]);
    }

    #[test]
    fn orphaning_is_asked_for_once() {
        let owner = meta("rs", &[]);
        let mut graph = graph(&[&owner, &meta("pod", &[("rs", true)])]);
        graph.complete();
        let dying = deleted(&owner, &[ORPHAN]);
        assert_eq!(told(&graph.apply(0, Some(&owner), Some(&dying))), ["orphan rs"]);
        assert!(graph.apply(0, Some(&dying), Some(&dying)).is_empty());
    }

    #[test]
    fn an_owner_in_another_namespace_is_reported_and_the_child_checked() {
        let owner = ObjectMeta { namespace: Some("b".into()), ..meta("rs", &[]) };
        let mut graph = graph(&[&owner]);
        graph.complete();
        let wakes = graph.apply(0, None, Some(&meta("pod", &[("rs", false)])));
        assert_eq!(told(&wakes), ["check pod", "report pod"]);
        let cluster = ObjectMeta { namespace: None, ..meta("node", &[]) };
        graph.apply(1, None, Some(&cluster));
        assert!(graph.apply(0, None, Some(&meta("lease", &[("node", false)]))).is_empty());
    }

    #[test]
    fn an_owner_that_shows_up_in_another_namespace_after_its_child_is_reported_too() {
        let (child, owner) =
            (meta("pod", &[("rs", false)]), ObjectMeta { namespace: Some("b".into()), ..meta("rs", &[]) });
        let mut early = graph(&[&child]);
        early.complete();
        assert_eq!(told(&early.apply(0, None, Some(&owner))), ["check pod", "report pod"]);
        assert!(early.apply(0, Some(&owner), Some(&owner)).is_empty(), "once is enough");
        assert_eq!(told(&graph(&[&child, &owner]).complete()), ["check pod", "report pod"]);
    }

    #[test]
    fn a_cluster_scoped_child_of_a_namespaced_owner_is_reported() {
        let mut graph = graph(&[&meta("rs", &[])]);
        graph.complete();
        let child = ObjectMeta { namespace: None, ..meta("node", &[("rs", false)]) };
        assert_eq!(told(&graph.apply(1, None, Some(&child))), ["check node", "report node"]);
    }

    #[test]
    fn another_object_under_the_same_name_is_another() {
        let (old, child) = (meta("rs", &[]), meta("pod", &[("rs", true)]));
        let new = ObjectMeta { uid: Some("rs2".into()), ..old.clone() };
        let mut graph = graph(&[&old, &child]);
        graph.complete();
        assert_eq!(told(&graph.apply(0, Some(&old), Some(&new))), ["check pod"]);
    }

    #[test]
    fn a_resource_that_is_no_longer_served_wakes_nothing() {
        let (owner, child) = (meta("cr", &[]), meta("pod", &[("cr", true)]));
        let mut graph = Graph::default();
        graph.apply(7, None, Some(&owner));
        graph.apply(0, None, Some(&child));
        graph.complete();
        graph.drop_resource(7);
        assert!(!graph.known.contains_key(&Uid::of("cr")));
        assert_eq!(graph.children.len(), 1);
    }

    #[test]
    fn uuids_are_kept_exactly() {
        let text = "0a1b2c3d-0000-4000-8000-00000000000f";
        assert_eq!(Uid::of(text).0, 0x0a1b2c3d_0000_4000_8000_00000000000f);
        assert_ne!(Uid::of("x"), Uid::of("y"));
    }
}

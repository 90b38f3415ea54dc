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
}

/// An owner that is not where the object's reference says.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Misplaced {
    pub(super) child: Id,
    pub(super) reference: OwnerReference,
}

/// What a change wakes.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Wakes {
    pub(super) items: Vec<Item>,
    pub(super) misplaced: Vec<Misplaced>,
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
    pub(super) fn apply(&mut self, resource: Resource, old: Option<&ObjectMeta>, new: Option<&ObjectMeta>) -> Wakes {
        let mut wakes = Wakes::default();
        // Under one name there may be another object now.
        if let Some(old) = old
            && new.is_none_or(|new| new.uid != old.uid)
        {
            self.remove(Uid::of_meta(old), &mut wakes);
        }
        if let Some(new) = new {
            self.put(resource, new, &mut wakes);
        }
        if self.complete { wakes } else { Wakes::default() }
    }

    fn put(&mut self, resource: Resource, meta: &ObjectMeta, wakes: &mut Wakes) {
        let id = Id { resource, key: Key::of(meta), uid: Uid::of_meta(meta) };
        let namespace = self.intern(&id.key.namespace);
        self.known.insert(id.uid, Place { resource, namespace });
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

    fn link(&mut self, id: &Id, references: &[OwnerReference], wakes: &mut Wakes) {
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
        for ((owner, _), reference) in owners.iter().zip(references) {
            self.dependents.entry(*owner).or_default().insert(id.uid);
            if !old.iter().any(|(known, _)| known == owner) {
                self.check_new_owner(id, *owner, reference, wakes);
            }
        }
        if !owners.is_empty() {
            self.children.insert(id.uid, Child { id: id.clone(), owners });
        }
    }

    fn check_new_owner(&self, id: &Id, owner: Uid, reference: &OwnerReference, wakes: &mut Wakes) {
        let Some(place) = self.known.get(&owner) else {
            wakes.items.push(Item::Check(id.clone()));
            return;
        };
        if !place.namespace.is_empty() && *place.namespace != *id.key.namespace {
            wakes.misplaced.push(Misplaced { child: id.clone(), reference: reference.clone() });
            wakes.items.push(Item::Check(id.clone()));
        } else if self.waiting.contains_key(&owner) {
            wakes.items.push(Item::Check(id.clone()));
        }
    }

    fn unlink(&mut self, owner: Uid, child: Uid) {
        if let Some(dependents) = self.dependents.get_mut(&owner) {
            dependents.remove(&child);
            if dependents.is_empty() {
                self.dependents.remove(&owner);
            }
        }
    }

    fn unblock(&self, owner: Uid, wakes: &mut Wakes) {
        wakes.items.extend(self.waiting.get(&owner).cloned().map(Item::Foreground));
    }

    fn deleting(&mut self, id: Id, foreground: bool, orphan: bool, wakes: &mut Wakes) {
        if orphan && self.orphaning.insert(id.uid, id.clone()).is_none() {
            wakes.items.push(Item::Orphan(id.clone()));
        }
        if !orphan {
            self.orphaning.remove(&id.uid);
        }
        if !foreground {
            self.waiting.remove(&id.uid);
        } else if self.waiting.insert(id.uid, id.clone()).is_none() {
            wakes.items.extend(self.dependents_of(id.uid).into_iter().map(Item::Check));
            wakes.items.push(Item::Foreground(id));
        }
    }

    fn remove(&mut self, uid: Uid, wakes: &mut Wakes) {
        self.known.remove(&uid);
        self.waiting.remove(&uid);
        self.orphaning.remove(&uid);
        if let Some(child) = self.children.remove(&uid) {
            for (owner, _) in child.owners {
                self.unlink(owner, uid);
                self.unblock(owner, wakes);
            }
        }
        wakes.items.extend(self.dependents_of(uid).into_iter().map(Item::Check));
    }

    /// Drops all objects of a resource that is no longer served; nothing follows from that.
    pub(super) fn drop_resource(&mut self, resource: Resource) {
        let gone: Vec<Uid> =
            self.known.iter().filter(|(_, place)| place.resource == resource).map(|(uid, _)| *uid).collect();
        for uid in gone {
            self.remove(uid, &mut Wakes::default());
        }
    }

    /// From now on changes wake; returns what there was to do before.
    pub(super) fn complete(&mut self) -> Vec<Item> {
        self.complete = true;
        let lost = |child: &&Child| child.owners.iter().any(|(owner, _)| !self.known.contains_key(owner));
        let held = |child: &&Child| child.owners.iter().any(|(owner, _)| self.waiting.contains_key(owner));
        let misplaced = |child: &&Child| {
            child.owners.iter().any(|(owner, _)| {
                self.known
                    .get(owner)
                    .is_some_and(|place| !place.namespace.is_empty() && *place.namespace != *child.id.key.namespace)
            })
        };
        let children = self.children.values().filter(|child| lost(child) || held(child) || misplaced(child));
        let mut items: Vec<Item> = children.map(|child| Item::Check(child.id.clone())).collect();
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
            })
            .collect();
        told.sort();
        told
    }

    fn graph(metas: &[&ObjectMeta]) -> Graph {
        let mut graph = Graph::default();
        for meta in metas {
            assert_eq!(graph.apply(0, None, Some(meta)), Wakes::default());
        }
        graph
    }

    #[test]
    fn a_deleted_owner_wakes_its_dependents() {
        let (owner, child) = (meta("rs", &[]), meta("pod", &[("rs", true)]));
        let mut graph = graph(&[&owner, &child]);
        assert!(graph.complete().is_empty());
        assert_eq!(told(&graph.apply(0, Some(&owner), None).items), ["check pod"]);
    }

    #[test]
    fn objects_whose_owner_was_never_seen_are_checked() {
        let mut graph = graph(&[&meta("pod", &[("gone", true)])]);
        assert_eq!(told(&graph.complete()), ["check pod"]);
        assert_eq!(told(&graph.apply(0, None, Some(&meta("late", &[("gone", false)]))).items), ["check late"]);
    }

    #[test]
    fn a_foreground_deletion_ends_with_the_last_blocking_dependent() {
        let owner = meta("rs", &[]);
        let (blocking, loose) = (meta("pod", &[("rs", true)]), meta("other", &[("rs", false)]));
        let mut graph = graph(&[&owner, &blocking, &loose]);
        graph.complete();
        let dying = deleted(&owner, &[FOREGROUND]);
        let wakes = graph.apply(0, Some(&owner), Some(&dying));
        assert_eq!(told(&wakes.items), ["check other", "check pod", "foreground rs"]);
        assert_eq!(graph.blocking(Uid::of("rs")).len(), 1);
        assert!(graph.apply(0, Some(&dying), Some(&dying)).items.is_empty(), "once is enough");
        assert_eq!(told(&graph.apply(0, Some(&blocking), None).items), ["foreground rs"]);
        assert!(graph.blocking(Uid::of("rs")).is_empty());
    }

    #[test]
    fn a_dependent_that_stops_blocking_lets_its_owner_go() {
        let (owner, child) = (meta("rs", &[]), meta("pod", &[("rs", true)]));
        let dying = deleted(&owner, &[FOREGROUND]);
        let mut graph = graph(&[&dying, &child]);
        assert_eq!(told(&graph.complete()), ["check pod", "foreground rs"]);
        let wakes = graph.apply(0, Some(&child), Some(&meta("pod", &[("rs", false)])));
        assert_eq!(told(&wakes.items), ["foreground rs"]);
    }

    #[test]
    fn orphaning_is_asked_for_once() {
        let owner = meta("rs", &[]);
        let mut graph = graph(&[&owner, &meta("pod", &[("rs", true)])]);
        graph.complete();
        let dying = deleted(&owner, &[ORPHAN]);
        assert_eq!(told(&graph.apply(0, Some(&owner), Some(&dying)).items), ["orphan rs"]);
        assert!(graph.apply(0, Some(&dying), Some(&dying)).items.is_empty());
    }

    #[test]
    fn an_owner_in_another_namespace_is_reported_and_the_child_checked() {
        let owner = ObjectMeta { namespace: Some("b".into()), ..meta("rs", &[]) };
        let mut graph = graph(&[&owner]);
        graph.complete();
        let wakes = graph.apply(0, None, Some(&meta("pod", &[("rs", false)])));
        assert_eq!(told(&wakes.items), ["check pod"]);
        assert_eq!(wakes.misplaced.len(), 1);
        let cluster = ObjectMeta { namespace: None, ..meta("node", &[]) };
        graph.apply(1, None, Some(&cluster));
        assert!(graph.apply(0, None, Some(&meta("lease", &[("node", false)]))).items.is_empty());
    }

    #[test]
    fn another_object_under_the_same_name_is_another() {
        let (old, child) = (meta("rs", &[]), meta("pod", &[("rs", true)]));
        let new = ObjectMeta { uid: Some("rs2".into()), ..old.clone() };
        let mut graph = graph(&[&old, &child]);
        graph.complete();
        assert_eq!(told(&graph.apply(0, Some(&old), Some(&new)).items), ["check pod"]);
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

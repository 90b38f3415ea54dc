//! What to do about an object, once its owners have been looked at.

use super::graph::{FOREGROUND, ORPHAN, Uid};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::PropagationPolicy;
use serde_json::{Value, json};

/// What became of an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// It is there.
    Solid,
    /// It is gone.
    Dangling,
    /// It is being deleted and waits for its dependents.
    Waiting,
}

/// What to do.
#[derive(Debug, PartialEq)]
pub(super) enum Verdict {
    /// Nothing: it has an owner, or none was ever said.
    Keep,
    /// Take the references to owners that are gone off it; the others hold it.
    Unlink(Value),
    /// Let its owners go on without waiting for it, then delete it: it waits for dependents of its own.
    Unblock(Value),
    /// Delete it.
    Delete(PropagationPolicy),
}

/// Judges an object by the states of its owners, in the order of its references. `dependents_wait` says that it has
/// dependents which themselves wait for theirs: a circle may hide there.
pub(super) fn judge(meta: &ObjectMeta, owners: &[Owner], has_dependents: bool, dependents_wait: bool) -> Verdict {
    let references = meta.owner_references.as_deref().unwrap_or_default();
    if references.is_empty() {
        return Verdict::Keep;
    }
    let is = |state: Owner| owners.contains(&state);
    if is(Owner::Solid) {
        if !is(Owner::Dangling) && !is(Owner::Waiting) {
            return Verdict::Keep;
        }
        let solid = references.iter().zip(owners).filter(|(_, owner)| **owner == Owner::Solid);
        return Verdict::Unlink(replace(meta, solid.map(|(reference, _)| reference.clone()).collect()));
    }
    if is(Owner::Waiting) && has_dependents {
        if dependents_wait && references.iter().any(|reference| reference.block_owner_deletion == Some(true)) {
            let free =
                |reference: &OwnerReference| OwnerReference { block_owner_deletion: Some(false), ..reference.clone() };
            return Verdict::Unblock(replace(meta, references.iter().map(free).collect()));
        }
        return Verdict::Delete(PropagationPolicy::Foreground);
    }
    let has = |finalizer: &str| meta.finalizers.iter().flatten().any(|known| known == finalizer);
    Verdict::Delete(if has(ORPHAN) {
        PropagationPolicy::Orphan
    } else if has(FOREGROUND) {
        PropagationPolicy::Foreground
    } else {
        PropagationPolicy::Background
    })
}

/// What to tell about an object whose owner of this UID lives in another namespace; nothing when it has no such owner.
pub(super) fn misplaced(meta: &ObjectMeta, owner: Uid) -> Option<String> {
    let reference = meta.owner_references.iter().flatten().find(|reference| Uid::of(&reference.uid) == owner)?;
    let OwnerReference { api_version, kind, name, uid, .. } = reference;
    let namespace = meta.namespace.as_deref().unwrap_or_default();
    Some(format!(
        "ownerRef [{api_version}/{kind}, namespace: {namespace}, name: {name}, uid: {uid}] does not exist in namespace \
         {namespace:?}"
    ))
}

/// The merge patch that gives an object these owners, if it is still as it was read.
pub(super) fn replace(meta: &ObjectMeta, owners: Vec<OwnerReference>) -> Value {
    json!({"metadata": {
        "resourceVersion": meta.resource_version,
        "uid": meta.uid,
        "ownerReferences": owners,
    }})
}

/// The merge patch that takes an owner off an object; none when it is not there.
pub(super) fn without_owner(meta: &ObjectMeta, uid: &str) -> Option<Value> {
    let references = meta.owner_references.as_deref().unwrap_or_default();
    let left: Vec<_> = references.iter().filter(|reference| reference.uid != uid).cloned().collect();
    (left.len() < references.len()).then(|| replace(meta, left))
}

/// The merge patch that takes a finalizer off an object; none when it is not there.
pub(super) fn without_finalizer(meta: &ObjectMeta, finalizer: &str) -> Option<Value> {
    let finalizers = meta.finalizers.as_deref().unwrap_or_default();
    let left: Vec<_> = finalizers.iter().filter(|known| *known != finalizer).collect();
    (left.len() < finalizers.len()).then(|| {
        json!({"metadata": {
            "resourceVersion": meta.resource_version,
            "uid": meta.uid,
            "finalizers": left,
        }})
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta(owners: &[&str], finalizers: &[&str]) -> ObjectMeta {
        let reference =
            |uid: &&str| OwnerReference { uid: (*uid).into(), block_owner_deletion: Some(true), ..Default::default() };
        ObjectMeta {
            uid: Some("me".into()),
            resource_version: Some("5".into()),
            owner_references: Some(owners.iter().map(reference).collect()),
            finalizers: Some(finalizers.iter().map(|text| (*text).to_owned()).collect()),
            ..Default::default()
        }
    }

    #[test]
    fn one_solid_owner_keeps_an_object() {
        let meta = meta(&["a", "b"], &[]);
        assert_eq!(judge(&meta, &[Owner::Solid, Owner::Solid], false, false), Verdict::Keep);
        let Verdict::Unlink(patch) = judge(&meta, &[Owner::Dangling, Owner::Solid], false, false) else { panic!() };
        assert_eq!(patch["metadata"]["ownerReferences"].as_array().unwrap().len(), 1);
        assert_eq!(patch["metadata"]["ownerReferences"][0]["uid"], "b");
    }

    #[test]
    fn without_owners_it_is_deleted_as_its_finalizers_say() {
        let delete = |finalizers: &[&str]| judge(&meta(&["a"], finalizers), &[Owner::Dangling], true, false);
        assert_eq!(delete(&[]), Verdict::Delete(PropagationPolicy::Background));
        assert_eq!(delete(&[ORPHAN]), Verdict::Delete(PropagationPolicy::Orphan));
        assert_eq!(delete(&[FOREGROUND]), Verdict::Delete(PropagationPolicy::Foreground));
    }

    #[test]
    fn what_a_waiting_owner_waits_for_goes_in_the_foreground_too() {
        let meta = meta(&["a"], &[]);
        let judge = |has, wait| judge(&meta, &[Owner::Waiting], has, wait);
        assert_eq!(judge(false, false), Verdict::Delete(PropagationPolicy::Background));
        assert_eq!(judge(true, false), Verdict::Delete(PropagationPolicy::Foreground));
        let Verdict::Unblock(patch) = judge(true, true) else { panic!("a circle must be opened") };
        assert_eq!(patch["metadata"]["ownerReferences"][0]["blockOwnerDeletion"], false);
    }

    #[test]
    fn patches_name_the_version_they_were_made_from() {
        let patch = without_owner(&meta(&["a", "b"], &[]), "a").unwrap();
        assert_eq!(patch["metadata"]["resourceVersion"], "5");
        assert_eq!(without_owner(&meta(&["a"], &[]), "z"), None);
        let patch = without_finalizer(&meta(&[], &[ORPHAN, "x"]), ORPHAN).unwrap();
        assert_eq!(patch["metadata"]["finalizers"], json!(["x"]));
    }

    #[test]
    fn a_misplaced_owner_is_named() {
        let mut meta = meta(&["a"], &[]);
        meta.namespace = Some("x".into());
        let reference = &mut meta.owner_references.as_mut().unwrap()[0];
        (reference.api_version, reference.kind, reference.name) = ("apps/v1".into(), "ReplicaSet".into(), "web".into());
        let told = "ownerRef [apps/v1/ReplicaSet, namespace: x, name: web, uid: a] does not exist in namespace \"x\"";
        assert_eq!(misplaced(&meta, Uid::of("a")).as_deref(), Some(told));
        assert_eq!(misplaced(&meta, Uid::of("b")), None);
    }
}

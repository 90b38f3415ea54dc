//! Adoption and release: a controller takes orphans that its selector takes, and lets go of what it no longer takes.

use crate::common::pods::{names, selects};
use crate::context::{Context, Fault};
use api::selector::LabelSelector;
use client::{owner, retry};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::{Patch, PatchParams};
use kube::core::NamespaceScope;
use serde_json::{Value, json};
use std::sync::Arc;

/// What a controller makes of the objects of its namespace.
#[derive(Debug)]
pub struct Claim<K> {
    /// Its own.
    pub mine: Vec<Arc<K>>,
    /// Orphans to take.
    pub adopt: Vec<Arc<K>>,
    /// Its own that the selector no longer takes.
    pub release: Vec<Arc<K>>,
}

/// Sorts objects by what an owner must do about them. An owner that is being deleted neither adopts nor releases.
pub fn sort<K: kube::Resource>(
    objects: impl IntoIterator<Item = Arc<K>>, owner: &ObjectMeta, selector: &LabelSelector,
) -> Claim<K> {
    let mut claim = Claim { mine: Vec::new(), adopt: Vec::new(), release: Vec::new() };
    let uid = owner.uid.as_deref().unwrap_or_default();
    let deleting = owner.deletion_timestamp.is_some();
    for object in objects {
        let taken = selects(selector, object.meta());
        match owner::controller_of(object.meta()) {
            Some(reference) if reference.uid != uid => {}
            Some(_) if taken => claim.mine.push(object),
            Some(_) if !deleting => claim.release.push(object),
            None if taken && !deleting && object.meta().deletion_timestamp.is_none() => claim.adopt.push(object),
            _ => {}
        }
    }
    claim
}

/// The strategic merge patch that makes `owner` the controller of an object.
pub fn adoption(owner: &OwnerReference, uid: &str, finalizers: &[&str]) -> Value {
    let mut metadata = json!({"uid": uid, "ownerReferences": [owner]});
    if !finalizers.is_empty() {
        metadata["finalizers"] = json!(finalizers);
    }
    json!({"metadata": metadata})
}

/// The strategic merge patch that takes owners and finalizers from an object.
pub fn releasing(owners: &[&str], uid: &str, finalizers: &[&str]) -> Value {
    let references: Vec<_> = owners.iter().map(|owner| json!({"$patch": "delete", "uid": owner})).collect();
    let mut metadata = json!({"uid": uid, "ownerReferences": references});
    if !finalizers.is_empty() {
        metadata["$deleteFromPrimitiveList/finalizers"] = json!(finalizers);
    }
    json!({"metadata": metadata})
}

/// Carries out a claim and returns all that is the owner's then. Before the first adoption the owner is read anew: one
/// that was deleted, or deleted and made again, must not adopt.
///
/// # Errors
/// When the owner is not what it was, or a patch is refused for another reason than that the object is gone.
pub async fn carry_out<O, K>(
    context: &Context, claim: Claim<K>, owner: &O, finalizers: &[&str],
) -> Result<Vec<Arc<K>>, Fault>
where
    O: kube::Resource<DynamicType = (), Scope: NamespaceScope> + Clone + serde::de::DeserializeOwned + std::fmt::Debug,
    K: kube::Resource<DynamicType = (), Scope: NamespaceScope> + Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    let Claim { mut mine, adopt, release } = claim;
    let uid = owner.meta().uid.as_deref().unwrap_or_default();
    let mut faults = Vec::new();
    if !adopt.is_empty() {
        still_there(context, owner).await?;
        let reference = owner::controller_ref(owner);
        for object in adopt {
            let object_uid = object.meta().uid.clone().unwrap_or_default();
            match patch(context, object.meta(), adoption(&reference, &object_uid, finalizers)).await {
                Ok(adopted) => mine.push(Arc::new(adopted)),
                Err(error) if retry::is_not_found(&error) => {}
                Err(error) => faults.push(error.into()),
            }
        }
    }
    for object in release {
        let object_uid = object.meta().uid.clone().unwrap_or_default();
        match patch::<K>(context, object.meta(), releasing(&[uid], &object_uid, finalizers)).await {
            Ok(_) => {}
            // Gone, or made again under this name: nothing of ours.
            Err(error) if retry::is_not_found(&error) || retry::is_invalid(&error) => {}
            Err(error) => faults.push(error.into()),
        }
    }
    Fault::all(faults)?;
    Ok(mine)
}

async fn patch<K>(context: &Context, meta: &ObjectMeta, patch: Value) -> kube::Result<K>
where
    K: kube::Resource<DynamicType = (), Scope: NamespaceScope> + Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    let (namespace, name) = names(meta);
    context.within::<K>(namespace).patch(name, &PatchParams::default(), &Patch::Strategic(patch)).await
}

async fn still_there<O>(context: &Context, owner: &O) -> Result<(), Fault>
where
    O: kube::Resource<DynamicType = (), Scope: NamespaceScope> + Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    let (namespace, name) = names(owner.meta());
    let live = context.within::<O>(namespace).get(name).await?;
    if live.meta().uid != owner.meta().uid {
        return Err(Fault::Unusable(format!("original {namespace}/{name} is gone: another one has its name")));
    }
    if live.meta().deletion_timestamp.is_some() {
        return Err(Fault::Unusable(format!("{namespace}/{name} has just been deleted")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::Pod;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    fn pod(name: &str, app: &str, controller: Option<&str>, deleted: bool) -> Arc<Pod> {
        let owner = |uid: &str| OwnerReference { uid: uid.into(), controller: Some(true), ..Default::default() };
        let metadata = ObjectMeta {
            name: Some(name.into()),
            labels: Some([("app".into(), app.into())].into()),
            owner_references: controller.map(|uid| vec![owner(uid)]),
            deletion_timestamp: deleted.then(|| Time(jiff::Timestamp::UNIX_EPOCH)),
            ..Default::default()
        };
        Arc::new(Pod { metadata, ..Default::default() })
    }

    fn owner(deleting: bool) -> ObjectMeta {
        ObjectMeta {
            uid: Some("me".into()),
            deletion_timestamp: deleting.then(|| Time(jiff::Timestamp::UNIX_EPOCH)),
            ..Default::default()
        }
    }

    fn names_of(pods: &[Arc<Pod>]) -> Vec<&str> {
        pods.iter().map(|pod| pod.metadata.name.as_deref().unwrap()).collect()
    }

    fn world() -> Vec<Arc<Pod>> {
        vec![
            pod("mine", "web", Some("me"), false),
            pod("lost", "db", Some("me"), false),
            pod("orphan", "web", None, false),
            pod("dying-orphan", "web", None, true),
            pod("stranger", "web", Some("other"), false),
            pod("else", "db", None, false),
        ]
    }

    #[test]
    fn orphans_are_adopted_and_strays_released() {
        let selector = LabelSelector::from_pairs([("app", "web")]);
        let claim = sort(world(), &owner(false), &selector);
        assert_eq!(names_of(&claim.mine), ["mine"]);
        assert_eq!(names_of(&claim.adopt), ["orphan"]);
        assert_eq!(names_of(&claim.release), ["lost"]);
    }

    #[test]
    fn a_dying_owner_neither_adopts_nor_releases() {
        let claim = sort(world(), &owner(true), &LabelSelector::from_pairs([("app", "web")]));
        assert_eq!(names_of(&claim.mine), ["mine"]);
        assert!(claim.adopt.is_empty() && claim.release.is_empty());
    }
}

//! Owner references: who controls an object, and how a controller signs what it makes.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Resource;

/// The reference to the object's controller, if it has one.
pub fn controller_of(meta: &ObjectMeta) -> Option<&OwnerReference> {
    meta.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))
}

/// Whether the object's controller is the one with this UID.
pub fn is_controlled_by(meta: &ObjectMeta, uid: &str) -> bool {
    controller_of(meta).is_some_and(|owner| owner.uid == uid)
}

/// The reference a controller puts on the objects it makes: controller and blocking the owner's foreground deletion.
pub fn controller_ref<K: Resource<DynamicType = ()>>(owner: &K) -> OwnerReference {
    OwnerReference {
        api_version: K::api_version(&()).into_owned(),
        kind: K::kind(&()).into_owned(),
        name: owner.meta().name.clone().unwrap_or_default(),
        uid: owner.meta().uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::apps::v1::ReplicaSet;

    #[test]
    fn a_made_object_points_at_its_controller() {
        let owner = ReplicaSet {
            metadata: ObjectMeta { name: Some("web".into()), uid: Some("u1".into()), ..Default::default() },
            ..Default::default()
        };
        let reference = controller_ref(&owner);
        assert_eq!((reference.api_version.as_str(), reference.kind.as_str()), ("apps/v1", "ReplicaSet"));
        let plain = OwnerReference { controller: None, uid: "u0".into(), ..Default::default() };
        let meta = ObjectMeta { owner_references: Some(vec![plain, reference]), ..Default::default() };
        assert!(is_controlled_by(&meta, "u1"));
        assert!(!is_controlled_by(&meta, "u0"));
    }
}

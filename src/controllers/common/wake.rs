//! What wakes an owner of other objects.

use super::pods;
use crate::context::Fault;
use api::selector::LabelSelector;
use client::informer::Object;
use client::{Informer, Key, Queue, owner};

/// An object wakes its controller, if that is a `K`; an orphan wakes all that may adopt it.
pub fn by_dependents<K, D>(
    queue: &Queue<Key>, owners: &Informer<K>, dependents: &Informer<D>,
    selector: fn(&K) -> Result<LabelSelector, Fault>,
) where
    K: Object + kube::Resource<DynamicType = ()>,
    D: Object + kube::Resource<DynamicType = ()>,
{
    let (queue, owners) = (queue.clone(), owners.clone());
    dependents.on_change(move |change| {
        for meta in change.both().map(|object| object.meta()) {
            let namespace = meta.namespace.clone().unwrap_or_default();
            match owner::controller_of(meta) {
                Some(owner) if owner.kind == K::kind(&()) => queue.add(Key::new(namespace, owner.name.clone())),
                Some(_) => {}
                None if meta.deletion_timestamp.is_some() => {}
                None => {
                    let takes = |owner: &K| {
                        selector(owner).is_ok_and(|selector| !selector.is_empty() && pods::selects(&selector, meta))
                    };
                    let adopters = owners.in_namespace(&namespace).into_iter().filter(|owner| takes(owner));
                    adopters.for_each(|owner| queue.add(Key::of(owner.meta())));
                }
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;
    use k8s_openapi::api::apps::v1::ReplicaSet;
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::{Value, json};

    fn woken_by(extra: Value) -> Vec<String> {
        let set = |name: &str, app: &str| -> ReplicaSet {
            let selector = json!({"matchLabels": {"app": app}});
            serde_json::from_value(
                json!({"metadata": {"namespace": "a", "name": name}, "spec": {"selector": selector}}),
            )
            .unwrap()
        };
        let mut meta = json!({"namespace": "a", "name": "p", "labels": {"app": "web"}});
        for (key, value) in extra.as_object().unwrap() {
            meta[key] = value.clone();
        }
        let pod: Pod = serde_json::from_value(json!({"metadata": meta})).unwrap();
        let (queue, sets) = (Queue::default(), Informer::fixed([set("x", "web"), set("y", "web"), set("z", "db")]));
        by_dependents(&queue, &sets, &Informer::fixed([pod]), |set| {
            Ok(LabelSelector::from_typed(set.spec.as_ref().map(|spec| &spec.selector))?)
        });
        std::iter::from_fn(|| queue.get().now_or_never().flatten()).map(|key| key.name).collect()
    }

    #[test]
    fn an_object_wakes_its_controller_and_an_orphan_all_that_may_adopt_it() {
        let owned = |kind: &str| json!({"ownerReferences": [{"apiVersion": "apps/v1", "kind": kind, "name": "z", "uid": "z", "controller": true}]});
        assert_eq!(woken_by(owned("ReplicaSet")), ["z"]);
        assert!(woken_by(owned("Job")).is_empty());
        assert_eq!(woken_by(json!({})), ["x", "y"]);
        assert!(woken_by(json!({"deletionTimestamp": "1970-01-01T00:00:00Z"})).is_empty(), "it is going");
    }
}

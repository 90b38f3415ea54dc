//! ControllerRevisions: the templates that a DaemonSet or StatefulSet has had.

use crate::common::hash;
use client::owner;
use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The label with the hash of a revision, on it and on its pods.
pub const HASH: &str = "controller-revision-hash";

/// What a revision holds: a patch that puts the template back.
pub fn data(template: &PodTemplateSpec) -> Value {
    let mut template = json!(template);
    template["$patch"] = json!("replace");
    json!({"spec": {"template": template}})
}

/// The hash of a revision.
pub fn hash_of(revision: &ControllerRevision) -> &str {
    revision.metadata.labels.as_ref().and_then(|labels| labels.get(HASH)).map(String::as_str).unwrap_or_default()
}

/// The revision of the current template among known ones, the newest if there are several.
pub fn find(known: &[Arc<ControllerRevision>], data: &Value) -> Option<Arc<ControllerRevision>> {
    let equal = known.iter().filter(|revision| revision.data.as_ref().is_some_and(|known| known.0 == *data));
    equal.max_by_key(|revision| revision.revision).cloned()
}

/// The number of a new revision.
pub fn next(known: &[Arc<ControllerRevision>]) -> i64 {
    known.iter().map(|revision| revision.revision).max().unwrap_or(0) + 1
}

/// A new revision of `owner`.
pub fn make<K: kube::Resource<DynamicType = ()>>(
    owner: &K, data: Value, labels: BTreeMap<String, String>, number: i64, collisions: Option<i32>,
) -> ControllerRevision {
    let hash = hash::of(&data, collisions);
    let mut labels = labels;
    labels.insert(HASH.into(), hash.clone());
    let meta = owner.meta();
    ControllerRevision {
        metadata: ObjectMeta {
            name: Some(format!("{}-{hash}", meta.name.as_deref().unwrap_or_default())),
            namespace: meta.namespace.clone(),
            labels: Some(labels),
            annotations: meta.annotations.clone(),
            owner_references: Some(vec![owner::controller_ref(owner)]),
            ..Default::default()
        },
        data: Some(RawExtension(data)),
        revision: number,
    }
}

/// The old revisions beyond the limit, oldest first; those that pods have count, but stay.
pub fn surplus(
    known: &[Arc<ControllerRevision>], current: &str, in_use: impl Fn(&str) -> bool, limit: usize,
) -> Vec<Arc<ControllerRevision>> {
    let mut old: Vec<_> = known.iter().filter(|revision| hash_of(revision) != current).cloned().collect();
    let count = old.len().saturating_sub(limit);
    old.retain(|revision| !in_use(hash_of(revision)));
    old.sort_by_key(|revision| revision.revision);
    old.truncate(count);
    old
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn revisions_that_pods_have_count_against_the_limit_but_stay() {
        let revision = |hash: &str, number: i64| {
            let labels = Some([(HASH.to_owned(), hash.to_owned())].into());
            let metadata = ObjectMeta { labels, ..Default::default() };
            Arc::new(ControllerRevision { metadata, revision: number, data: None })
        };
        let known = [revision("c", 3), revision("a", 1), revision("now", 4), revision("b", 2)];
        let surplus = |limit| -> Vec<_> {
            surplus(&known, "now", |hash| hash == "c", limit).iter().map(|revision| revision.revision).collect()
        };
        assert_eq!((surplus(0), surplus(1), surplus(2), surplus(3)), (vec![1, 2], vec![1, 2], vec![1], vec![]));
    }
}

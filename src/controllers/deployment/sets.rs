//! Reading and writing the ReplicaSets of a Deployment: which is new, what revision it has, how many pods it should keep.

use crate::common::hash;
use client::owner;
use k8s_openapi::api::apps::v1::{Deployment, DeploymentSpec, ReplicaSet, ReplicaSetSpec};
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use std::collections::BTreeMap;

pub(super) const HASH: &str = "pod-template-hash";
pub(super) const REVISION: &str = "deployment.kubernetes.io/revision";
const HISTORY: &str = "deployment.kubernetes.io/revision-history";
const DESIRED: &str = "deployment.kubernetes.io/desired-replicas";
const MAX: &str = "deployment.kubernetes.io/max-replicas";
/// Bytes of the list of former revisions.
const HISTORY_LENGTH: usize = 2000;
/// Annotations of the Deployment that its sets don't take over.
const OWN: &[&str] = &[
    "kubectl.kubernetes.io/last-applied-configuration",
    REVISION,
    HISTORY,
    DESIRED,
    MAX,
    "deprecated.deployment.rollback.to",
];

pub(super) fn spec(deployment: &Deployment) -> &DeploymentSpec {
    static EMPTY: std::sync::LazyLock<DeploymentSpec> = std::sync::LazyLock::new(DeploymentSpec::default);
    deployment.spec.as_ref().unwrap_or(&EMPTY)
}

pub(super) fn wanted(deployment: &Deployment) -> i32 {
    spec(deployment).replicas.unwrap_or(1)
}

pub(super) fn is_rolling(deployment: &Deployment) -> bool {
    spec(deployment).strategy.as_ref().and_then(|strategy| strategy.type_.as_deref()) != Some("Recreate")
}

/// The most pods above the wanted number.
pub(super) fn max_surge(deployment: &Deployment) -> i32 {
    if is_rolling(deployment) { fenceposts(deployment).0 } else { 0 }
}

/// The most pods that may be unavailable.
pub(super) fn max_unavailable(deployment: &Deployment) -> i32 {
    if !is_rolling(deployment) || wanted(deployment) == 0 {
        return 0;
    }
    fenceposts(deployment).1.min(wanted(deployment))
}

/// Surge rounds up and unavailability down; where both come to nothing one pod may be unavailable, else no rollout would
/// ever move.
fn fenceposts(deployment: &Deployment) -> (i32, i32) {
    let rolling = spec(deployment).strategy.as_ref().and_then(|strategy| strategy.rolling_update.as_ref());
    let total = wanted(deployment);
    let surge = scaled(rolling.and_then(|rolling| rolling.max_surge.as_ref()), total, true);
    let unavailable = scaled(rolling.and_then(|rolling| rolling.max_unavailable.as_ref()), total, false);
    if surge == 0 && unavailable == 0 { (0, 1) } else { (surge, unavailable) }
}

/// A number, or a percentage of `total`.
pub(crate) fn scaled(value: Option<&IntOrString>, total: i32, up: bool) -> i32 {
    match value {
        None => 0,
        Some(IntOrString::Int(value)) => *value,
        Some(IntOrString::String(text)) => {
            let Some(percent) = text.strip_suffix('%').and_then(|digits| digits.parse::<i64>().ok()) else { return 0 };
            let product = percent * i64::from(total);
            let part = if up { (product + 99).div_euclid(100) } else { product.div_euclid(100) };
            i32::try_from(part).unwrap_or(i32::MAX)
        }
    }
}

pub(super) fn replicas(set: &ReplicaSet) -> i32 {
    set.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1)
}

pub(super) fn set_replicas(set: &mut ReplicaSet, replicas: i32) {
    set.spec.get_or_insert_default().replicas = Some(replicas);
}

pub(super) fn available(set: &ReplicaSet) -> i32 {
    set.status.as_ref().and_then(|status| status.available_replicas).unwrap_or(0)
}

pub(super) fn actual(set: &ReplicaSet) -> i32 {
    set.status.as_ref().map_or(0, |status| status.replicas)
}

pub(super) fn total<'a>(sets: impl IntoIterator<Item = &'a ReplicaSet>, count: impl Fn(&ReplicaSet) -> i32) -> i32 {
    sets.into_iter().map(count).sum()
}

pub(super) fn name(meta: &ObjectMeta) -> &str {
    meta.name.as_deref().unwrap_or_default()
}

pub(super) fn annotation<'a>(meta: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    meta.annotations.as_ref()?.get(key).map(String::as_str)
}

fn number(meta: &ObjectMeta, key: &str) -> Option<i32> {
    annotation(meta, key)?.parse().ok()
}

/// The number of replicas that the Deployment had when it last scaled this set.
pub(super) fn desired(set: &ReplicaSet) -> Option<i32> {
    number(&set.metadata, DESIRED)
}

/// Its limit with surge at that time.
pub(super) fn limit(set: &ReplicaSet) -> Option<i32> {
    number(&set.metadata, MAX)
}

pub(super) fn revision(meta: &ObjectMeta) -> i64 {
    annotation(meta, REVISION).and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// Whether a set's template is the Deployment's, but for the hash label.
pub(super) fn is_new(deployment: &Deployment, set: &ReplicaSet) -> bool {
    let mut template = set.spec.as_ref().and_then(|spec| spec.template.clone()).unwrap_or_default();
    strip_hash(&mut template);
    let mut wanted = template_of(deployment);
    strip_hash(&mut wanted);
    template == wanted
}

fn template_of(deployment: &Deployment) -> PodTemplateSpec {
    spec(deployment).template.clone()
}

fn strip_hash(template: &mut PodTemplateSpec) {
    let meta = template.metadata.get_or_insert_default();
    if let Some(labels) = &mut meta.labels {
        labels.remove(HASH);
    }
    meta.labels = meta.labels.take().filter(|labels| !labels.is_empty());
    meta.annotations = meta.annotations.take().filter(|annotations| !annotations.is_empty());
    meta.creation_timestamp = None;
}

/// The set to create for the Deployment's template.
pub(super) fn make(deployment: &Deployment, revision: i64) -> ReplicaSet {
    let spec = spec(deployment);
    let mut template = template_of(deployment);
    let collisions = deployment.status.as_ref().and_then(|status| status.collision_count);
    let hash = hash::of(&template, collisions);
    let labels = template.metadata.get_or_insert_default().labels.get_or_insert_default();
    labels.insert(HASH.into(), hash.clone());
    let labels = labels.clone();
    let mut selector = spec.selector.clone();
    selector.match_labels.get_or_insert_default().insert(HASH.into(), hash.clone());
    let mut set = ReplicaSet {
        metadata: ObjectMeta {
            name: Some(format!("{}-{hash}", name(&deployment.metadata))),
            namespace: deployment.metadata.namespace.clone(),
            labels: Some(labels),
            owner_references: Some(vec![owner::controller_ref(deployment)]),
            ..Default::default()
        },
        spec: Some(ReplicaSetSpec {
            replicas: Some(0),
            min_ready_seconds: spec.min_ready_seconds,
            selector,
            template: Some(template),
        }),
        status: None,
    };
    annotate(deployment, &mut set, revision);
    set
}

/// Brings a set's annotations up to the Deployment's and its revision up to `revision`; whether anything has changed.
pub(super) fn annotate(deployment: &Deployment, set: &mut ReplicaSet, revision: i64) -> bool {
    let before = set.metadata.annotations.clone();
    let annotations = set.metadata.annotations.get_or_insert_default();
    for (key, value) in deployment.metadata.annotations.iter().flatten() {
        if !OWN.contains(&key.as_str()) {
            annotations.insert(key.clone(), value.clone());
        }
    }
    let old = annotations.get(REVISION).cloned();
    let parsed = old.as_deref().map_or(Some(0), |old| old.parse::<i64>().ok());
    if let Some(number) = parsed
        && number < revision
    {
        annotations.insert(REVISION.into(), revision.to_string());
        if let Some(old) = old {
            remember(annotations, &old);
        }
    }
    set.metadata.annotations != before
}

/// Adds a former revision to the list of them, dropping the oldest where it gets too long.
fn remember(annotations: &mut BTreeMap<String, String>, old: &str) {
    let known = annotations.get(HISTORY).map(String::as_str).unwrap_or_default();
    let mut revisions: Vec<&str> = known.split(',').filter(|text| !text.is_empty()).collect();
    revisions.push(old);
    while revisions.len() > 1 && revisions.iter().map(|text| text.len() + 1).sum::<usize>() > HISTORY_LENGTH {
        revisions.remove(0);
    }
    let list = revisions.join(",");
    annotations.insert(HISTORY.into(), list);
}

/// Notes on a set what the Deployment wants now; whether anything has changed.
pub(super) fn note_size(deployment: &Deployment, set: &mut ReplicaSet) -> bool {
    let before = set.metadata.annotations.clone();
    let annotations = set.metadata.annotations.get_or_insert_default();
    annotations.insert(DESIRED.into(), wanted(deployment).to_string());
    annotations.insert(MAX.into(), (wanted(deployment) + max_surge(deployment)).to_string());
    set.metadata.annotations != before
}

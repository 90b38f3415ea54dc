//! The status of a Deployment and its conditions.

use super::sets::{actual, available, max_unavailable, name, replicas, spec, total, wanted};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::apps::v1::{Deployment, DeploymentCondition, DeploymentStatus, ReplicaSet};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use std::time::Duration;

pub(super) const PROGRESSING: &str = "Progressing";
const AVAILABLE: &str = "Available";
const REPLICA_FAILURE: &str = "ReplicaFailure";
pub(super) const TIMED_OUT: &str = "ProgressDeadlineExceeded";
const NEW_SET_AVAILABLE: &str = "NewReplicaSetAvailable";
pub(super) const PAUSED: &str = "DeploymentPaused";

pub(super) fn find<'a>(status: &'a DeploymentStatus, kind: &str) -> Option<&'a DeploymentCondition> {
    status.conditions.iter().flatten().find(|condition| condition.type_ == kind)
}

pub(super) fn remove(status: &mut DeploymentStatus, kind: &str) {
    if let Some(conditions) = &mut status.conditions {
        conditions.retain(|condition| condition.type_ != kind);
    }
}

/// Sets a condition, unless its status and reason are there already; the time of transition stays while the status does.
pub(super) fn set(status: &mut DeploymentStatus, mut condition: DeploymentCondition) {
    if let Some(known) = find(status, &condition.type_) {
        if known.status == condition.status && known.reason == condition.reason {
            return;
        }
        if known.status == condition.status {
            condition.last_transition_time = known.last_transition_time.clone();
        }
    }
    remove(status, &condition.type_);
    status.conditions.get_or_insert_default().push(condition);
}

pub(super) fn condition(
    kind: &str, status: &str, reason: &str, message: String, now: Timestamp,
) -> DeploymentCondition {
    let time = Timestamp::from_second(now.as_second()).ok().map(Time);
    DeploymentCondition {
        type_: kind.into(),
        status: status.into(),
        reason: Some(reason.into()),
        message: Some(message),
        last_update_time: time.clone(),
        last_transition_time: time,
    }
}

pub(super) fn has_deadline(deployment: &Deployment) -> bool {
    spec(deployment).progress_deadline_seconds.is_some_and(|seconds| seconds != i32::MAX)
}

/// Whether all pods are new, there and available.
pub(super) fn is_complete(deployment: &Deployment, status: &DeploymentStatus) -> bool {
    let wanted = Some(wanted(deployment));
    let or_zero = |count: Option<i32>| Some(count.unwrap_or(0));
    or_zero(status.updated_replicas) == wanted
        && or_zero(status.replicas) == wanted
        && or_zero(status.available_replicas) == wanted
        && status.observed_generation >= deployment.metadata.generation
}

fn is_progressing(old: &DeploymentStatus, new: &DeploymentStatus) -> bool {
    let n = |count: Option<i32>| count.unwrap_or(0);
    let outdated = |status: &DeploymentStatus| n(status.replicas) - n(status.updated_replicas);
    n(new.updated_replicas) > n(old.updated_replicas)
        || outdated(new) < outdated(old)
        || n(new.ready_replicas) > n(old.ready_replicas)
        || n(new.available_replicas) > n(old.available_replicas)
}

fn deadline(deployment: &Deployment, progressing: &DeploymentCondition) -> Option<Timestamp> {
    let from = progressing.last_update_time.as_ref()?.0;
    let seconds = spec(deployment).progress_deadline_seconds?;
    from.checked_add(SignedDuration::from_secs(i64::from(seconds))).ok()
}

fn has_timed_out(deployment: &Deployment, status: &DeploymentStatus, now: Timestamp) -> bool {
    let Some(progressing) = find(status, PROGRESSING).filter(|_| has_deadline(deployment)) else { return false };
    match progressing.reason.as_deref() {
        Some(NEW_SET_AVAILABLE) => false,
        Some(TIMED_OUT) => true,
        _ => deadline(deployment, progressing).is_some_and(|deadline| deadline < now),
    }
}

/// Counts and availability.
pub(super) fn counts(
    deployment: &Deployment, all: &[&ReplicaSet], new: Option<&ReplicaSet>, now: Timestamp,
) -> DeploymentStatus {
    let available = total(all.iter().copied(), available);
    let sum = |count: &dyn Fn(&ReplicaSet) -> Option<i32>| total(all.iter().copied(), |set| count(set).unwrap_or(0));
    let old = deployment.status.clone().unwrap_or_default();
    let mut status = DeploymentStatus {
        observed_generation: deployment.metadata.generation,
        replicas: Some(total(all.iter().copied(), actual)),
        updated_replicas: Some(new.map_or(0, actual)),
        ready_replicas: Some(sum(&|set| set.status.as_ref()?.ready_replicas)),
        available_replicas: Some(available),
        unavailable_replicas: Some((total(all.iter().copied(), replicas) - available).max(0)),
        terminating_replicas: Some(sum(&|set| set.status.as_ref()?.terminating_replicas)),
        collision_count: old.collision_count,
        conditions: old.conditions,
    };
    let enough = available >= wanted(deployment) - max_unavailable(deployment);
    set(
        &mut status,
        match enough {
            true => condition(
                AVAILABLE,
                "True",
                "MinimumReplicasAvailable",
                "Deployment has minimum availability.".into(),
                now,
            ),
            false => condition(
                AVAILABLE,
                "False",
                "MinimumReplicasUnavailable",
                "Deployment does not have minimum availability.".into(),
                now,
            ),
        },
    );
    status
}

/// Counts, and how the rollout is coming along.
pub(super) fn rollout(
    deployment: &Deployment, all: &[&ReplicaSet], new: Option<&ReplicaSet>, now: Timestamp,
) -> DeploymentStatus {
    let mut status = counts(deployment, all, new, now);
    if !has_deadline(deployment) {
        remove(&mut status, PROGRESSING);
    }
    let old = deployment.status.clone().unwrap_or_default();
    let current = find(&old, PROGRESSING).cloned();
    let was_complete = status.replicas == status.updated_replicas
        && current.as_ref().is_some_and(|current| current.reason.as_deref() == Some(NEW_SET_AVAILABLE));
    if has_deadline(deployment) && !was_complete {
        let who = match new {
            Some(new) => format!("ReplicaSet {:?}", name(&new.metadata)),
            None => format!("Deployment {:?}", name(&deployment.metadata)),
        };
        if is_complete(deployment, &status) {
            let message = format!("{who} has successfully progressed.");
            set(&mut status, condition(PROGRESSING, "True", NEW_SET_AVAILABLE, message, now));
        } else if is_progressing(&old, &status) {
            let message = format!("{who} is progressing.");
            let mut condition = condition(PROGRESSING, "True", "ReplicaSetUpdated", message, now);
            // Also when nothing but the time of the update changes: the deadline counts from there.
            if let Some(current) = current.filter(|current| current.status == "True") {
                condition.last_transition_time = current.last_transition_time;
            }
            remove(&mut status, PROGRESSING);
            set(&mut status, condition);
        } else if has_timed_out(deployment, &status, now) {
            let message = format!("{who} has timed out progressing.");
            set(&mut status, condition(PROGRESSING, "False", TIMED_OUT, message, now));
        }
    }
    match failure(all, new) {
        Some(condition) => set(&mut status, condition),
        None => remove(&mut status, REPLICA_FAILURE),
    }
    status
}

/// Why a set could not make or delete pods, the new one's reason first.
fn failure(all: &[&ReplicaSet], new: Option<&ReplicaSet>) -> Option<DeploymentCondition> {
    new.into_iter().chain(all.iter().copied()).find_map(|set| {
        let conditions = set.status.as_ref()?.conditions.as_ref()?;
        let failure = conditions.iter().find(|condition| condition.type_ == REPLICA_FAILURE)?;
        Some(DeploymentCondition {
            type_: REPLICA_FAILURE.into(),
            status: failure.status.clone(),
            reason: failure.reason.clone(),
            message: failure.message.clone(),
            last_update_time: failure.last_transition_time.clone(),
            last_transition_time: failure.last_transition_time.clone(),
        })
    })
}

/// When to look whether the deadline has passed.
pub(super) fn next_check(deployment: &Deployment, status: &DeploymentStatus, now: Timestamp) -> Option<Duration> {
    let progressing = find(status, PROGRESSING).filter(|_| has_deadline(deployment))?;
    let reason = progressing.reason.as_deref();
    if is_complete(deployment, status) || reason == Some(TIMED_OUT) || spec(deployment).paused == Some(true) {
        return None;
    }
    let left = deadline(deployment, progressing)?.duration_since(now) + SignedDuration::from_secs(1);
    Some(Duration::try_from(left).unwrap_or_default().max(Duration::from_secs(1)))
}

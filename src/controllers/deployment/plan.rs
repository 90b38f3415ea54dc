//! The pure part: what to do about a Deployment's sets now. One call is one step; the next follows when the sets have
//! changed.

use super::sets::{
    self, actual, annotate, annotation, available, desired, is_new, is_rolling, limit, make, max_surge,
    max_unavailable, name, note_size, replicas, revision, scaled, set_replicas, spec, total, wanted,
};
use super::status::{self, PAUSED, PROGRESSING, TIMED_OUT, condition};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{Deployment, DeploymentStatus, ReplicaSet};
use std::sync::Arc;
use std::time::Duration;

/// A write of a ReplicaSet.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Command {
    /// Make the set of the current template.
    Create(ReplicaSet),
    /// Write a set; when it was scaled, from how many to how many pods.
    Replace(ReplicaSet, Option<(i32, i32)>),
    /// Remove a set that is no longer needed for rollbacks.
    Delete(ReplicaSet),
}

/// One step.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Plan {
    pub(super) commands: Vec<Command>,
    /// The Deployment with its status and revision as they are to be.
    pub(super) deployment: Deployment,
    /// When to come back if nothing happens.
    pub(super) again: Option<Duration>,
}

/// The next step. `pods_left` says whether pods of other sets than the new one still run.
pub(super) fn plan(deployment: &Deployment, sets: &[Arc<ReplicaSet>], pods_left: bool, now: Timestamp) -> Plan {
    let mut step = Step::new(deployment, sets, now);
    let status = step.run(pods_left);
    step.deployment.status = Some(status);
    let again =
        status::next_check(&step.deployment, step.deployment.status.as_ref().unwrap_or(&Default::default()), now);
    Plan { commands: step.commands, deployment: step.deployment, again }
}

/// What a set could not be created for becomes a condition.
pub(super) fn creation_failed(
    deployment: &Deployment, set: &ReplicaSet, why: &str, now: Timestamp,
) -> (Deployment, String) {
    let mut deployment = deployment.clone();
    let message = format!("Failed to create new replica set {:?}: {why}", name(&set.metadata));
    if status::has_deadline(&deployment) {
        let condition = condition(PROGRESSING, "False", "FailedCreateReplicaSet", message.clone(), now);
        status::set(deployment.status.get_or_insert_default(), condition);
    }
    (deployment, message)
}

struct Step {
    deployment: Deployment,
    new: Option<ReplicaSet>,
    /// Oldest first.
    old: Vec<ReplicaSet>,
    commands: Vec<Command>,
    now: Timestamp,
}

impl Step {
    fn new(deployment: &Deployment, sets: &[Arc<ReplicaSet>], now: Timestamp) -> Self {
        let mut old: Vec<ReplicaSet> = sets.iter().map(|set| ReplicaSet::clone(set)).collect();
        old.sort_by_key(|set| (set.metadata.creation_timestamp.clone(), set.metadata.name.clone()));
        let new = old.iter().position(|set| is_new(deployment, set)).map(|at| old.remove(at));
        Self { deployment: deployment.clone(), new, old, commands: Vec::new(), now }
    }

    fn run(&mut self, pods_left: bool) -> DeploymentStatus {
        if self.deployment.metadata.deletion_timestamp.is_some() {
            return self.counts();
        }
        self.note_pause();
        self.sync_revision();
        if spec(&self.deployment).paused == Some(true) {
            self.scale();
            self.clean_up();
            return self.counts();
        }
        if self.is_scaling() {
            self.scale();
            return self.counts();
        }
        let moved = if is_rolling(&self.deployment) { self.roll() } else { self.recreate(pods_left) };
        let complete = self.deployment.status.as_ref().is_some_and(|now| status::is_complete(&self.deployment, now));
        if !moved && complete {
            self.clean_up();
        }
        let (all, new) = (self.all(), self.new.as_ref());
        status::rollout(&self.deployment, &all, new, self.now)
    }

    fn all(&self) -> Vec<&ReplicaSet> {
        self.old.iter().chain(&self.new).collect()
    }

    fn active(&self) -> Vec<&ReplicaSet> {
        self.all().into_iter().filter(|set| replicas(set) > 0).collect()
    }

    fn counts(&self) -> DeploymentStatus {
        status::counts(&self.deployment, &self.all(), self.new.as_ref(), self.now)
    }

    fn set_condition(&mut self, status: &str, reason: &str, message: String) {
        let condition = condition(PROGRESSING, status, reason, message, self.now);
        status::set(self.deployment.status.get_or_insert_default(), condition);
    }

    /// Pausing stops the clock of the deadline, resuming starts it.
    fn note_pause(&mut self) {
        if !status::has_deadline(&self.deployment) {
            return;
        }
        let current = self.deployment.status.as_ref().and_then(|status| status::find(status, PROGRESSING));
        let reason = current.and_then(|current| current.reason.clone());
        let noted = reason.as_deref() == Some(PAUSED);
        match spec(&self.deployment).paused == Some(true) {
            _ if reason.as_deref() == Some(TIMED_OUT) => {}
            true if !noted => self.set_condition("Unknown", PAUSED, "Deployment is paused".into()),
            false if noted => self.set_condition("Unknown", "DeploymentResumed", "Deployment is resumed".into()),
            _ => {}
        }
    }

    fn next_revision(&self) -> i64 {
        self.old.iter().map(|set| revision(&set.metadata)).max().unwrap_or(0) + 1
    }

    /// The new set has the highest revision, and the Deployment the new set's.
    fn sync_revision(&mut self) {
        let next = self.next_revision();
        let min_ready = spec(&self.deployment).min_ready_seconds;
        let Some(new) = &mut self.new else { return };
        let annotated = annotate(&self.deployment, new, next);
        let spec = new.spec.get_or_insert_default();
        let readied = spec.min_ready_seconds.unwrap_or(0) != min_ready.unwrap_or(0);
        spec.min_ready_seconds = min_ready;
        if annotated || readied {
            self.commands.push(Command::Replace(new.clone(), None));
        }
        let (found, revision) =
            (name(&new.metadata).to_owned(), annotation(&new.metadata, sets::REVISION).map(str::to_owned));
        if let Some(revision) = revision {
            self.set_revision(revision);
        }
        let known = self.deployment.status.as_ref().and_then(|status| status::find(status, PROGRESSING)).is_some();
        if status::has_deadline(&self.deployment) && !known {
            self.set_condition("True", "FoundNewReplicaSet", format!("Found new replica set {found:?}"));
        }
    }

    fn set_revision(&mut self, revision: String) {
        self.deployment.metadata.annotations.get_or_insert_default().insert(sets::REVISION.into(), revision);
    }

    fn is_scaling(&self) -> bool {
        let wanted = wanted(&self.deployment);
        self.active().into_iter().any(|set| desired(set).is_some_and(|desired| desired != wanted))
    }

    /// Writes a set's size and what the Deployment wants; whether anything changes.
    fn resize(&mut self, set: Which, to: i32) -> bool {
        let deployment = self.deployment.clone();
        let set = match set {
            Which::New => self.new.as_mut(),
            Which::Old(at) => self.old.get_mut(at),
        };
        let Some(set) = set else { return false };
        let from = replicas(set);
        let noted = note_size(&deployment, set);
        if from == to && !noted {
            return false;
        }
        set_replicas(set, to);
        let scaled = (from != to).then_some((from, to));
        let written = set.clone();
        // A set that is written twice in one step is written once, as it is at last.
        let same = |command: &Command| matches!(command, Command::Replace(other, None) if other.metadata.name == written.metadata.name);
        self.commands.retain(|command| !same(command));
        self.commands.push(Command::Replace(written, scaled));
        from != to
    }

    /// Spreads the wanted number over the active sets in proportion to their sizes.
    fn scale(&mut self) {
        let wanted = wanted(&self.deployment);
        if let Some(only) = self.active_or_latest() {
            let size = self.size(only);
            if size != Some(wanted) {
                self.resize(only, wanted);
            }
            return;
        }
        if self.is_saturated() {
            for at in 0..self.old.len() {
                if replicas(&self.old[at]) > 0 {
                    self.resize(Which::Old(at), 0);
                }
            }
            return;
        }
        if is_rolling(&self.deployment) {
            for (set, size) in self.proportions() {
                self.resize(set, size);
            }
        }
    }

    fn size(&self, which: Which) -> Option<i32> {
        match which {
            Which::New => self.new.as_ref().map(replicas),
            Which::Old(at) => self.old.get(at).map(replicas),
        }
    }

    /// The only active set; or, where none is, the new one, or the youngest.
    fn active_or_latest(&self) -> Option<Which> {
        let active: Vec<Which> = self.which().filter(|which| self.size(*which).is_some_and(|size| size > 0)).collect();
        match active.as_slice() {
            [] => self.which().last(),
            [only] => Some(*only),
            _ => None,
        }
    }

    /// All sets, oldest first, the new one at the end.
    fn which(&self) -> impl Iterator<Item = Which> + use<> {
        let new = self.new.is_some().then_some(Which::New);
        (0..self.old.len()).map(Which::Old).chain(new)
    }

    fn is_saturated(&self) -> bool {
        let wanted = wanted(&self.deployment);
        self.new
            .as_ref()
            .is_some_and(|new| desired(new) == Some(wanted) && replicas(new) == wanted && available(new) == wanted)
    }

    fn proportions(&self) -> Vec<(Which, i32)> {
        let wanted = wanted(&self.deployment);
        let allowed = if wanted > 0 { wanted + max_surge(&self.deployment) } else { 0 };
        let add = allowed - total(self.active(), replicas);
        let get = |which: &Which| match which {
            Which::New => self.new.as_ref(),
            Which::Old(at) => self.old.get(*at),
        };
        let mut sets: Vec<(Which, &ReplicaSet)> =
            self.which().filter_map(|which| Some((which, get(&which)?))).filter(|(_, set)| replicas(set) > 0).collect();
        // The biggest first; among equals the newest grows first and the oldest shrinks first.
        if add > 0 {
            sets.reverse();
        }
        sets.sort_by_key(|(_, set)| std::cmp::Reverse(replicas(set)));
        let mut added = 0;
        let mut sizes: Vec<(Which, i32)> = Vec::new();
        for (which, set) in sets {
            let share = self.share(set, add, added);
            added += share;
            sizes.push((which, replicas(set) + share));
        }
        if let Some((_, first)) = sizes.first_mut() {
            *first = (*first + add - added).max(0);
        }
        sizes
    }

    fn share(&self, set: &ReplicaSet, add: i32, added: i32) -> i32 {
        if add == 0 || add == added {
            return 0;
        }
        let (fraction, left) = (self.fraction(set), add - added);
        if add > 0 { fraction.min(left) } else { fraction.max(left) }
    }

    /// How much a set grows when the Deployment goes from its former to its present limit.
    fn fraction(&self, set: &ReplicaSet) -> i32 {
        if wanted(&self.deployment) == 0 {
            return -replicas(set);
        }
        let max = wanted(&self.deployment) + max_surge(&self.deployment);
        let before = limit(set).filter(|limit| *limit != 0);
        let before = before.or_else(|| self.deployment.status.as_ref()?.replicas).unwrap_or(0);
        if before == 0 {
            return 0;
        }
        let size = f64::from(replicas(set)) * f64::from(max) / f64::from(before);
        size.round() as i32 - replicas(set)
    }

    /// Makes the new set, sized as the strategy allows.
    fn create(&mut self) {
        let revision = self.next_revision();
        let mut set = make(&self.deployment, revision);
        let size = self.new_size(0);
        set_replicas(&mut set, size);
        note_size(&self.deployment, &mut set);
        self.set_revision(revision.to_string());
        if status::has_deadline(&self.deployment) {
            let message = format!("Created new replica set {:?}", name(&set.metadata));
            self.set_condition("True", "NewReplicaSetCreated", message);
        }
        self.commands.push(Command::Create(set.clone()));
        self.new = Some(set);
    }

    /// How many pods the new set may have, when it has `size`.
    fn new_size(&self, size: i32) -> i32 {
        let wanted = wanted(&self.deployment);
        if !is_rolling(&self.deployment) {
            return wanted;
        }
        let rolling = spec(&self.deployment).strategy.as_ref().and_then(|strategy| strategy.rolling_update.as_ref());
        let surge = scaled(rolling.and_then(|rolling| rolling.max_surge.as_ref()), wanted, true);
        let room = wanted + surge - total(self.all(), replicas);
        if room <= 0 { size } else { size + room.min(wanted - size) }
    }

    /// One step of a rolling update; whether sets were scaled.
    fn roll(&mut self) -> bool {
        if self.new.is_none() {
            self.create();
            return true;
        }
        self.grow_new() || self.shrink_old()
    }

    fn grow_new(&mut self) -> bool {
        let (wanted, size) = (wanted(&self.deployment), self.size(Which::New).unwrap_or(0));
        let to = match size.cmp(&wanted) {
            std::cmp::Ordering::Equal => return false,
            std::cmp::Ordering::Greater => wanted,
            std::cmp::Ordering::Less => self.new_size(size),
        };
        self.resize(Which::New, to)
    }

    fn shrink_old(&mut self) -> bool {
        if total(&self.old, replicas) == 0 {
            return false;
        }
        let least = wanted(&self.deployment) - max_unavailable(&self.deployment);
        let unavailable = self.new.as_ref().map_or(0, |new| replicas(new) - available(new));
        let room = total(self.all(), replicas) - least - unavailable;
        if room <= 0 {
            return false;
        }
        let unhealthy = self.shrink_each(room, |set| replicas(set) - available(set));
        let spare = total(self.all(), available) - least;
        let healthy = spare > 0 && self.shrink_each(spare, replicas);
        unhealthy || healthy
    }

    /// Takes `most` pods from the old sets, oldest first, from each as many as `may` says.
    fn shrink_each(&mut self, most: i32, may: impl Fn(&ReplicaSet) -> i32) -> bool {
        let mut left = most;
        for at in 0..self.old.len() {
            let (size, take) = (replicas(&self.old[at]), may(&self.old[at]).clamp(0, left.max(0)));
            if size > 0 && take > 0 {
                self.resize(Which::Old(at), size - take.min(size));
                left -= take.min(size);
            }
        }
        left < most
    }

    /// One step of a recreation: the old go first, wholly.
    fn recreate(&mut self, pods_left: bool) -> bool {
        let mut moved = false;
        for at in 0..self.old.len() {
            moved |= replicas(&self.old[at]) > 0 && self.resize(Which::Old(at), 0);
        }
        if moved || pods_left || total(&self.old, actual) > 0 {
            return true;
        }
        if self.new.is_none() {
            self.create();
            return true;
        }
        self.resize(Which::New, wanted(&self.deployment))
    }

    /// Removes the oldest sets beyond the history's limit, those that are idle.
    fn clean_up(&mut self) {
        let Some(keep) = spec(&self.deployment).revision_history_limit.filter(|limit| *limit != i32::MAX) else {
            return;
        };
        let mut alive: Vec<_> = self.old.iter().filter(|set| set.metadata.deletion_timestamp.is_none()).collect();
        alive.sort_by_key(|set| revision(&set.metadata));
        let surplus = alive.len().saturating_sub(usize::try_from(keep).unwrap_or(0));
        let idle = |set: &&&ReplicaSet| {
            let observed = set.status.as_ref().and_then(|status| status.observed_generation);
            actual(set) == 0 && replicas(set) == 0 && set.metadata.generation <= observed
        };
        let doomed: Vec<_> = alive[..surplus].iter().filter(idle).map(|set| Command::Delete((*set).clone())).collect();
        self.commands.extend(doomed);
    }
}

/// One of a Deployment's sets.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Which {
    New,
    Old(usize),
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;

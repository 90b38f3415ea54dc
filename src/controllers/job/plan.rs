//! The pure part: counts, conditions, and the pods to make and delete.

use super::backoff::{self, Failures};
use super::indexes::Indexes;
use super::policy::{self, Ruling};
use crate::common::{pods, ranks};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::{Job, JobCondition, JobSpec, JobStatus, UncountedTerminatedPods};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{OwnerReference, Time};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

pub(super) const FINALIZER: &str = "batch.kubernetes.io/job-tracking";
pub(super) const INDEX: &str = "batch.kubernetes.io/job-completion-index";
/// How often an index has failed before this pod: failures that count, and those that the failure policy ignores.
pub(super) const FAILED_BEFORE: &str = "batch.kubernetes.io/job-index-failure-count";
pub(super) const IGNORED_BEFORE: &str = "batch.kubernetes.io/job-index-ignored-failure-count";
/// Pods made or deleted in one run at most.
const BURST: usize = 500;
/// UIDs in the status at most.
const UNCOUNTED: usize = 500;
const SUCCESS: &str = "SuccessCriteriaMet";
const FAILURE: &str = "FailureTarget";

/// One step.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Plan {
    pub(super) create: Vec<NewPod>,
    pub(super) delete: Vec<Arc<Pod>>,
    /// Whether the deleted are set free first, so that they don't count as failed. Otherwise the status takes them for
    /// gone, and must not be written before they are.
    pub(super) uncounted_deletion: bool,
    /// Pods to take the finalizer off, once the status is written.
    pub(super) finalize: Vec<Arc<Pod>>,
    pub(super) status: JobStatus,
    /// Events: whether a warning, reason, message.
    pub(super) events: Vec<(bool, String, String)>,
    pub(super) again: Option<Duration>,
    /// What to remember once the status is written.
    pub(super) failures: Failures,
}

/// A pod to make.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct NewPod {
    /// Its completion index, in indexed Jobs.
    pub(super) index: Option<i32>,
    /// How often the index has failed, where that has a limit.
    pub(super) before: Option<Before>,
}

/// Failures of an index before a pod: those that count, and those that are ignored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Before {
    pub(super) counted: i32,
    pub(super) ignored: i32,
}

impl Before {
    fn of(pod: &Pod) -> Self {
        let number = |key: &str| {
            let text = pod.metadata.annotations.as_ref().and_then(|annotations| annotations.get(key));
            text.and_then(|text| text.parse().ok()).filter(|number: &i32| *number >= 0).unwrap_or(0)
        };
        Self { counted: number(FAILED_BEFORE), ignored: number(IGNORED_BEFORE) }
    }

    fn total(self) -> i32 {
        self.counted.saturating_add(self.ignored)
    }
}

/// How the Job ends: the condition that announces it.
struct Ending {
    kind: &'static str,
    reason: String,
    message: String,
}

impl Ending {
    fn new(kind: &'static str, reason: &str, message: &str) -> Self {
        Self { kind, reason: reason.into(), message: message.into() }
    }

    /// The end that an earlier step has announced.
    fn announced(status: &JobStatus, kind: &'static str) -> Option<Self> {
        let mut conditions = status.conditions.iter().flatten();
        let found = conditions.find(|condition| condition.type_ == kind && condition.status == "True")?;
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        Some(Self { kind, reason: text(&found.reason), message: text(&found.message) })
    }
}

pub(super) fn spec(job: &Job) -> JobSpec {
    job.spec.clone().unwrap_or_default()
}

pub(super) fn is_finished(job: &Job) -> bool {
    let ended =
        |status: &JobStatus| ["Complete", "Failed"].iter().any(|kind| Ending::announced(status, kind).is_some());
    job.status.as_ref().is_some_and(ended)
}

/// Whether another controller looks after the Job.
pub(super) fn is_managed_elsewhere(job: &Job) -> bool {
    let manager = job.spec.as_ref().and_then(|spec| spec.managed_by.as_deref());
    manager.is_some_and(|manager| manager != "kubernetes.io/job-controller")
}

/// Whether an owner is a Job.
pub(super) fn is_job(owner: &OwnerReference) -> bool {
    owner.kind == "Job" && owner.api_version == "batch/v1"
}

fn is_indexed(spec: &JobSpec) -> bool {
    spec.completion_mode.as_deref() == Some("Indexed")
}

pub(super) fn has_finalizer(pod: &Pod) -> bool {
    pod.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == FINALIZER)
}

fn index(pod: &Pod) -> Option<i32> {
    pod.metadata.annotations.as_ref()?.get(INDEX)?.parse().ok().filter(|index| *index >= 0)
}

fn uid(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap_or_default()
}

/// Being deleted, and not at its end yet.
fn is_leaving(pod: &Pod) -> bool {
    pods::is_terminating(pod) && !pods::is_terminal(pod)
}

fn count(n: usize) -> i32 {
    i32::try_from(n).unwrap_or(i32::MAX)
}

/// The next step. The pods must be as the last step left them.
pub(super) fn plan(job: &Job, pods: &[Arc<Pod>], failures: &Failures, now: Timestamp) -> Plan {
    let mut step = Step::new(job, pods, now);
    step.settle_counts();
    step.look_at_the_ended(failures);
    let active: Vec<_> = pods.iter().filter(|pod| pods::is_active(pod)).cloned().collect();
    let mut ending = step.ending();
    let mut left = 0;
    if ending.is_some() {
        step.plan.delete.clone_from(&active);
    } else {
        step.come_back_for_the_deadline();
        left = active.len();
        let managed = job.metadata.deletion_timestamp.is_none();
        if managed {
            left = step.manage(&active);
        }
        ending = step.complete(left);
        if managed && ending.is_none() {
            step.note_suspension();
        }
    }
    step.count_the_ended(ending.as_ref());
    step.count_the_living(left, &active);
    if let Some(ending) = ending {
        step.end(ending);
    }
    step.plan
}

struct Step<'a> {
    job: &'a Job,
    spec: JobSpec,
    pods: &'a [Arc<Pod>],
    now: Timestamp,
    plan: Plan,
    /// Pods that have succeeded, or failed so that it counts; counted or not.
    succeeded: i32,
    failed: i32,
    /// Indexes that had succeeded before, and all that have.
    known: Indexes,
    done: Indexes,
    /// Indexes that have failed for good, where each has a limit.
    lost: Option<Indexes>,
    /// The last failed pod of each index that waits to be replaced: it is kept until then, as it knows the failures.
    awaiting: BTreeMap<i32, Arc<Pod>>,
}

impl<'a> Step<'a> {
    fn new(job: &'a Job, pods: &'a [Arc<Pod>], now: Timestamp) -> Self {
        let (spec, mut status) = (spec(job), job.status.clone().unwrap_or_default());
        let limit = spec.completions.unwrap_or(0);
        let read = |text: Option<&String>| Indexes::parse(text.map_or("", String::as_str), limit);
        let known = read(status.completed_indexes.as_ref().filter(|_| is_indexed(&spec)));
        let lost = per_index(&spec).map(|_| read(status.failed_indexes.as_ref()));
        if status.start_time.is_none() && spec.suspend != Some(true) {
            status.start_time = seconds(now);
        }
        let plan = Plan { status, ..Plan::default() };
        let (done, awaiting) = (known.clone(), BTreeMap::new());
        Self { job, spec, pods, now, plan, succeeded: 0, failed: 0, known, done, lost, awaiting }
    }

    fn is_suspended(&self) -> bool {
        self.spec.suspend == Some(true)
    }

    /// Whether pods that are being deleted are replaced only once they have failed.
    fn replaces_only_failed(&self) -> bool {
        self.spec.pod_replacement_policy.as_deref() == Some("Failed") || self.spec.pod_failure_policy.is_some()
    }

    /// Whether a pod counts as failed: one that is deleted before its end does, unless only failed ones are replaced.
    fn is_failed(&self, pod: &Pod) -> bool {
        match pods::phase(pod) {
            "Failed" => true,
            "Succeeded" => false,
            _ => pods::is_terminating(pod) && !self.replaces_only_failed(),
        }
    }

    fn ruling(&self, pod: &Pod) -> Option<Ruling<'_>> {
        policy::ruling(self.spec.pod_failure_policy.as_ref(), pod)
    }

    /// Whether the failure policy lets a failed pod count.
    fn counts(&self, pod: &Pod) -> bool {
        self.ruling(pod).is_none_or(|ruling| ruling.action != "Ignore")
    }

    /// The completion index of a pod, if the Job has it.
    fn index(&self, pod: &Pod) -> Option<i32> {
        index(pod).filter(|index| Some(*index) < self.spec.completions)
    }

    /// Whether a pod's end means something: in indexed Jobs only with an index.
    fn is_valid(&self, pod: &Pod) -> bool {
        !is_indexed(&self.spec) || self.index(pod).is_some()
    }

    /// Uncounted pods that have lost their finalizer become counts.
    fn settle_counts(&mut self) {
        let held: BTreeSet<&str> = self.pods.iter().filter(|pod| has_finalizer(pod)).map(|pod| uid(pod)).collect();
        let status = &mut self.plan.status;
        let uncounted = status.uncounted_terminated_pods.get_or_insert_default();
        let settle = |uids: &mut Option<Vec<String>>, total: &mut Option<i32>| {
            let Some(list) = uids else { return };
            let before = list.len();
            list.retain(|uid| held.contains(uid.as_str()));
            let gone = count(before - list.len());
            if gone > 0 {
                *total = Some(total.unwrap_or(0) + gone);
            }
            if list.is_empty() {
                *uids = None;
            }
        };
        settle(&mut uncounted.succeeded, &mut status.succeeded);
        settle(&mut uncounted.failed, &mut status.failed);
    }

    /// UIDs of those that have ended and are not counted yet: succeeded, failed.
    fn uncounted(&self) -> (&[String], &[String]) {
        let uncounted = self.plan.status.uncounted_terminated_pods.as_ref();
        let succeeded = uncounted.and_then(|all| all.succeeded.as_deref());
        let failed = uncounted.and_then(|all| all.failed.as_deref());
        (succeeded.unwrap_or_default(), failed.unwrap_or_default())
    }

    /// Sums up what has ended, whether it is counted yet or not.
    fn look_at_the_ended(&mut self, before: &Failures) {
        let held: Vec<_> = self.pods.iter().filter(|pod| has_finalizer(pod) && self.is_valid(pod)).collect();
        let (counted, failed_before) = self.uncounted();
        let is_new = |list: &[String], pod: &Pod| !list.iter().any(|known| known == uid(pod));
        let succeeded = held.iter().filter(|pod| pods::phase(pod) == "Succeeded" && is_new(counted, pod));
        let succeeded: Vec<_> = succeeded.copied().collect();
        let failed = held.iter().filter(|pod| self.is_failed(pod) && is_new(failed_before, pod));
        let failed: Vec<_> = failed.copied().collect();
        let ends = |pods: &[&Arc<Pod>]| pods.iter().map(|pod| backoff::ended_at(pod)).collect();
        let failures = before.after(ends(&succeeded), ends(&failed));
        let counting = failed.iter().filter(|pod| self.counts(pod)).count();
        let total_failed = self.plan.status.failed.unwrap_or(0) + count(failed_before.len() + counting);
        let total_succeeded = self.plan.status.succeeded.unwrap_or(0) + count(counted.len() + succeeded.len());
        (self.plan.failures, self.failed, self.succeeded) = (failures, total_failed, total_succeeded);
        if is_indexed(&self.spec) {
            self.look_at_indexes(&held);
        }
    }

    fn look_at_indexes(&mut self, held: &[&Arc<Pod>]) {
        let ended = held.iter().filter(|pod| pods::phase(pod) == "Succeeded");
        self.done = self.known.union(&ended.filter_map(|pod| self.index(pod)).collect());
        self.succeeded = self.done.len();
        if let Some(lost) = &self.lost {
            let more = held.iter().filter(|pod| self.loses_its_index(pod)).filter_map(|pod| self.index(pod));
            // The API takes no index as both.
            self.lost = Some(lost.union(&more.filter(|index| !self.done.contains(*index)).collect()));
            self.awaiting = self.awaiting_replacement(held);
        }
    }

    /// Whether a pod is the last that its index may have.
    fn loses_its_index(&self, pod: &Pod) -> bool {
        let Some(limit) = per_index(&self.spec).filter(|_| self.is_failed(pod)) else { return false };
        match self.ruling(pod).map(|ruling| ruling.action) {
            Some("FailIndex") => true,
            Some("Ignore") => false,
            _ => Before::of(pod).counted >= limit,
        }
    }

    fn awaiting_replacement(&self, held: &[&Arc<Pod>]) -> BTreeMap<i32, Arc<Pod>> {
        let active: Indexes =
            self.pods.iter().filter(|pod| pods::is_active(pod)).filter_map(|pod| index(pod)).collect();
        let settled = |index| self.done.contains(index) || self.is_lost(index) || active.contains(index);
        let rank = |pod: &Pod| (Before::of(pod).total(), backoff::ended_at(pod));
        let mut last: BTreeMap<i32, Arc<Pod>> = BTreeMap::new();
        for pod in held.iter().filter(|pod| self.is_failed(pod)) {
            let Some(index) = self.index(pod).filter(|index| !settled(*index)) else { continue };
            if last.get(&index).is_none_or(|other| rank(other) <= rank(pod)) {
                last.insert(index, (*pod).clone());
            }
        }
        last
    }

    fn is_lost(&self, index: i32) -> bool {
        self.lost.as_ref().is_some_and(|lost| lost.contains(index))
    }

    /// Whether and how the Job ends, completions aside: as was announced, or by failing, or by its success policy.
    fn ending(&self) -> Option<Ending> {
        let announced = |kind| Ending::announced(&self.plan.status, kind);
        let fails = |(reason, message): (&str, String)| Ending { kind: FAILURE, reason: reason.into(), message };
        announced(SUCCESS)
            .or_else(|| announced(FAILURE))
            .or_else(|| self.failure().map(fails))
            .or_else(|| self.success_by_policy())
    }

    /// Why the Job fails: reason and message.
    fn failure(&self) -> Option<(&'static str, String)> {
        let failed = self.pods.iter().filter(|pod| self.is_failed(pod));
        let mut rulings = failed.filter_map(|pod| self.ruling(pod));
        if let Some(ruling) = rulings.find(|ruling| ruling.action == "FailJob") {
            return Some(("PodFailurePolicy", ruling.why));
        }
        let limit = self.spec.backoff_limit.unwrap_or(6);
        if self.failed > limit || self.restarts_exceed(limit) {
            return Some(("BackoffLimitExceeded", "Job has reached the specified backoff limit".into()));
        }
        if self.deadline_left().is_some_and(|left| left <= SignedDuration::ZERO) {
            return Some(("DeadlineExceeded", "Job was active longer than specified deadline".into()));
        }
        let lost = self.lost.as_ref()?.len();
        if self.spec.max_failed_indexes.is_some_and(|most| lost > most) {
            let message = "Job has exceeded the specified maximal number of failed indexes";
            return Some(("MaxFailedIndexesExceeded", message.into()));
        }
        let all = lost > 0 && lost + self.done.len() >= self.spec.completions.unwrap_or(0);
        all.then(|| ("FailedIndexes", "Job has failed indexes".into()))
    }

    fn success_by_policy(&self) -> Option<Ending> {
        let completions = self.spec.completions.filter(|_| is_indexed(&self.spec))?;
        let told = policy::success(self.spec.success_policy.as_ref(), completions, &self.done)?;
        Some(Ending::new(SUCCESS, "SuccessPolicy", &told))
    }

    /// Success by completions, with so many active pods left. Without a number of them one success and no active pod will do.
    fn complete(&self, left: usize) -> Option<Ending> {
        let enough = self.spec.completions.unwrap_or(1);
        (self.succeeded >= enough && left == 0)
            .then(|| Ending::new(SUCCESS, "CompletionsReached", "Reached expected number of succeeded pods"))
    }

    /// Containers that are restarted in place count too.
    fn restarts_exceed(&self, limit: i32) -> bool {
        let policy = self.spec.template.spec.as_ref().and_then(|spec| spec.restart_policy.as_deref());
        if policy != Some("OnFailure") {
            return false;
        }
        let living = self.pods.iter().filter(|pod| matches!(pods::phase(pod), "Running" | "Pending"));
        let sum = |statuses: Option<&Vec<ContainerStatus>>| -> i32 {
            statuses.into_iter().flatten().map(|status| status.restart_count).sum()
        };
        let restarts: i32 = living
            .filter_map(|pod| pod.status.as_ref())
            .map(|status| sum(status.container_statuses.as_ref()) + sum(status.init_container_statuses.as_ref()))
            .sum();
        if limit == 0 { restarts > 0 } else { restarts >= limit }
    }

    fn deadline_left(&self) -> Option<SignedDuration> {
        if self.is_suspended() {
            return None;
        }
        let start = self.plan.status.start_time.as_ref()?.0;
        let limit = SignedDuration::from_secs(self.spec.active_deadline_seconds?);
        Some(limit - self.now.duration_since(start))
    }

    fn come_back_for_the_deadline(&mut self) {
        if let Some(left) = self.deadline_left().and_then(|left| Duration::try_from(left).ok()) {
            self.come_back(left);
        }
    }

    fn come_back(&mut self, wait: Duration) {
        self.plan.again = Some(self.plan.again.map_or(wait, |again| again.min(wait)));
    }

    /// Sets a condition, in its place if it is there. Whether that changed anything; going from nothing to false does not.
    fn condition(&mut self, kind: &str, status: &str, reason: &str, message: &str) -> bool {
        let fresh = JobCondition {
            type_: kind.into(),
            status: status.into(),
            reason: Some(reason.into()),
            message: Some(message.into()),
            last_probe_time: seconds(self.now),
            last_transition_time: seconds(self.now),
        };
        let same = |old: &JobCondition| {
            (&old.status, &old.reason, &old.message) == (&fresh.status, &fresh.reason, &fresh.message)
        };
        let conditions = self.plan.status.conditions.get_or_insert_default();
        match conditions.iter_mut().find(|condition| condition.type_ == kind) {
            Some(old) if same(old) => return false,
            Some(old) => *old = fresh,
            None if status == "False" => return false,
            None => conditions.push(fresh),
        }
        true
    }

    fn note_suspension(&mut self) {
        let suspended = self.is_suspended();
        let (status, reason, message, event) = match suspended {
            true => ("True", "JobSuspended", "Job suspended", "Suspended"),
            false => ("False", "JobResumed", "Job resumed", "Resumed"),
        };
        if self.condition("Suspended", status, reason, message) {
            self.plan.status.start_time = if suspended { None } else { seconds(self.now) };
            self.plan.events.push((false, event.into(), message.into()));
        }
    }

    /// Brings the number of active pods up or down. Returns how many there are then.
    fn manage(&mut self, active: &[Arc<Pod>]) -> usize {
        let wanted = if self.is_suspended() { 0 } else { self.wanted(active.len()) };
        let doomed = self.doomed(active, active.len().saturating_sub(wanted));
        if !doomed.is_empty() || self.is_suspended() {
            let left = active.len() - doomed.len();
            (self.plan.delete, self.plan.uncounted_deletion) = (doomed, true);
            return left;
        }
        let leaving = if self.replaces_only_failed() { self.leaving().count() } else { 0 };
        let missing = wanted.saturating_sub(active.len() + leaving).min(BURST);
        if missing > 0 {
            self.plan.create = self.new_pods(active, missing);
        }
        active.len() + self.plan.create.len()
    }

    /// How many pods should be active.
    fn wanted(&self, active: usize) -> usize {
        let parallelism = usize::try_from(self.spec.parallelism.unwrap_or(1)).unwrap_or(0);
        match self.spec.completions {
            None if self.succeeded > 0 => active,
            None => parallelism,
            Some(completions) => usize::try_from(completions - self.succeeded).unwrap_or(0).min(parallelism),
        }
    }

    fn leaving(&self) -> impl Iterator<Item = &'a Arc<Pod>> {
        self.pods.iter().filter(|pod| is_leaving(pod))
    }

    /// Active pods that must go: those without an index of their own, and as many more as there are too many.
    fn doomed(&self, active: &[Arc<Pod>], surplus: usize) -> Vec<Arc<Pod>> {
        if surplus == 0 && !is_indexed(&self.spec) {
            return Vec::new();
        }
        let mut ranked = active.to_vec();
        ranks::sort(&mut ranked, |_| 0, self.now);
        let mut doomed = Vec::new();
        if is_indexed(&self.spec) {
            // The one that would go last keeps the index.
            let mut taken = BTreeSet::new();
            let keeps = |pod: &Arc<Pod>| self.index(pod).is_some_and(|index| taken.insert(index));
            let (mut kept, dropped): (Vec<_>, Vec<_>) = ranked.into_iter().rev().partition(keeps);
            kept.reverse();
            (ranked, doomed) = (kept, dropped);
        }
        let more = surplus.saturating_sub(doomed.len());
        doomed.extend(ranked.into_iter().take(more));
        if !self.is_suspended() {
            doomed.truncate(BURST);
        }
        doomed
    }

    /// So many pods as may be made now.
    fn new_pods(&mut self, active: &[Arc<Pod>], missing: usize) -> Vec<NewPod> {
        if self.lost.is_some() {
            return self.new_pods_by_index(active, missing);
        }
        if let Some(wait) = self.plan.failures.left(self.now) {
            self.come_back(wait);
            return Vec::new();
        }
        match is_indexed(&self.spec) {
            true => {
                let indexes = self.free_indexes(active, missing).into_iter();
                indexes.map(|index| NewPod { index: Some(index), before: None }).collect()
            }
            false => vec![NewPod::default(); missing],
        }
    }

    /// Where each index has a limit, each also waits for itself.
    fn new_pods_by_index(&mut self, active: &[Arc<Pod>], missing: usize) -> Vec<NewPod> {
        let mut now = Vec::new();
        for index in self.free_indexes(active, missing) {
            let last = self.awaiting.get(&index).cloned();
            let wait = last.as_ref().and_then(|pod| {
                let failures = u32::try_from(Before::of(pod).total()).unwrap_or(0).saturating_add(1);
                backoff::left(failures, backoff::ended_at(pod), self.now)
            });
            match wait {
                Some(wait) => self.come_back(wait),
                None => now.push(NewPod { index: Some(index), before: Some(self.before_next(last.as_deref())) }),
            }
        }
        now
    }

    /// The failures that the replacement of a pod starts with.
    fn before_next(&self, replaced: Option<&Pod>) -> Before {
        let Some(pod) = replaced else { return Before::default() };
        let before = Before::of(pod);
        match self.counts(pod) {
            true => Before { counted: before.counted.saturating_add(1), ..before },
            false => Before { ignored: before.ignored.saturating_add(1), ..before },
        }
    }

    /// The first indexes that need a pod.
    fn free_indexes(&self, active: &[Arc<Pod>], most: usize) -> Vec<i32> {
        let mut taken = self.done.union(&active.iter().filter_map(|pod| index(pod)).collect());
        if self.replaces_only_failed() {
            taken = taken.union(&self.leaving().filter_map(|pod| index(pod)).collect());
        }
        if let Some(lost) = &self.lost {
            taken = taken.union(lost);
        }
        taken.missing(self.spec.completions.unwrap_or(0)).take(most).collect()
    }

    /// Notes pods that have ended in the status, and lets them go.
    fn count_the_ended(&mut self, ending: Option<&Ending>) {
        let fails = ending.is_some_and(|ending| ending.kind == FAILURE);
        let (succeeded, failed) = self.uncounted();
        let (mut succeeded, mut failed) = (succeeded.to_vec(), failed.to_vec());
        let (mut finalize, mut indexes) = (Vec::new(), 0);
        for pod in self.pods.iter().filter(|pod| has_finalizer(pod) && self.may_go(pod, ending.is_some())) {
            if succeeded.len() + failed.len() + indexes >= UNCOUNTED {
                break;
            }
            finalize.push(pod.clone());
            let uid = uid(pod).to_owned();
            if failed.contains(&uid) {
                continue;
            }
            if pods::phase(pod) == "Succeeded" {
                match is_indexed(&self.spec) {
                    true => indexes += usize::from(self.index(pod).is_some_and(|index| !self.known.contains(index))),
                    false if !succeeded.contains(&uid) => succeeded.push(uid),
                    false => {}
                }
            } else if (fails || self.is_failed(pod)) && self.is_valid(pod) && self.counts(pod) {
                failed.push(uid);
            }
        }
        let list = |list: Vec<String>| Some(list).filter(|list| !list.is_empty());
        let status = &mut self.plan.status;
        self.plan.finalize = finalize;
        status.uncounted_terminated_pods =
            Some(UncountedTerminatedPods { succeeded: list(succeeded), failed: list(failed) });
        if is_indexed(&self.spec) {
            status.completed_indexes = Some(self.done.to_string()).filter(|text| !text.is_empty());
            status.succeeded = Some(self.done.len()).filter(|count| *count > 0);
            status.failed_indexes = self.lost.as_ref().map(Indexes::to_string);
        }
    }

    /// Whether a pod may lose its finalizer: at its end, or with the Job's. A failed one stays while its replacement has yet
    /// to learn from it how often the index has failed.
    fn may_go(&self, pod: &Pod, ending: bool) -> bool {
        let awaits =
            || index(pod).and_then(|index| self.awaiting.get(&index)).is_some_and(|last| uid(last) == uid(pod));
        ending
            || self.job.metadata.deletion_timestamp.is_some()
            || pods::phase(pod) == "Succeeded"
            || (self.is_failed(pod) && !awaits())
    }

    fn count_the_living(&mut self, left: usize, active: &[Arc<Pod>]) {
        let deleted = |pod: &Arc<Pod>| self.plan.delete.iter().any(|other| Arc::ptr_eq(other, pod));
        let ready = active.iter().filter(|pod| pods::is_ready(pod) && !deleted(pod)).count();
        let leaving = self.leaving().count() + self.plan.delete.len();
        let status = &mut self.plan.status;
        status.active = Some(count(left)).filter(|count| *count > 0);
        status.ready = Some(count(ready));
        status.terminating = Some(count(leaving));
    }

    /// Announces the end, and makes it final once all pods have come to rest and are counted.
    fn end(&mut self, ending: Ending) {
        let Ending { kind, reason, message } = ending;
        if Ending::announced(&self.plan.status, kind).is_none() {
            self.condition(kind, "True", &reason, &message);
        }
        let (succeeded, failed) = self.uncounted();
        let counted = self.plan.finalize.is_empty() && succeeded.is_empty() && failed.is_empty();
        if !counted || self.plan.status.terminating != Some(0) {
            return;
        }
        if kind == FAILURE {
            self.condition("Failed", "True", &reason, &message);
            self.plan.events.push((true, reason, message));
            return;
        }
        self.condition("Complete", "True", &reason, &message);
        self.plan.status.completion_time = seconds(self.now);
        if self.spec.completions.is_some_and(|wanted| self.succeeded > wanted) {
            let message = "Too many succeeded pods running after completion count reached";
            self.plan.events.push((true, "TooManySucceededPods".into(), message.into()));
        }
        self.plan.events.push((false, "Completed".into(), "Job completed".into()));
    }
}

/// How often each index may fail, where that is limited.
fn per_index(spec: &JobSpec) -> Option<i32> {
    spec.backoff_limit_per_index.filter(|_| is_indexed(spec))
}

fn seconds(now: Timestamp) -> Option<Time> {
    Timestamp::from_second(now.as_second()).ok().map(Time)
}

//! The pure part: counts, conditions, and the pods to make and delete.

use crate::common::{pods, ranks};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::{Job, JobCondition, JobSpec, JobStatus, UncountedTerminatedPods};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

pub(super) const FINALIZER: &str = "batch.kubernetes.io/job-tracking";
pub(super) const INDEX: &str = "batch.kubernetes.io/job-completion-index";
/// Pods made or deleted in one run at most.
const BURST: usize = 500;
/// UIDs in the status at most.
const UNCOUNTED: usize = 500;
const BACKOFF: Duration = Duration::from_secs(10);
const LONGEST_BACKOFF: Duration = Duration::from_secs(600);

/// One step.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Plan {
    /// A pod for each: its completion index, in indexed Jobs.
    pub(super) create: Vec<Option<i32>>,
    pub(super) delete: Vec<Arc<Pod>>,
    /// Whether the deleted are set free first, so that they don't count as failed.
    pub(super) uncounted_deletion: bool,
    /// Pods to take the finalizer off, once the status is written.
    pub(super) finalize: Vec<Arc<Pod>>,
    pub(super) status: JobStatus,
    /// Events: whether a warning, reason, message.
    pub(super) events: Vec<(bool, String, String)>,
    pub(super) again: Option<Duration>,
}

pub(super) fn spec(job: &Job) -> JobSpec {
    job.spec.clone().unwrap_or_default()
}

pub(super) fn has(status: &JobStatus, kind: &str) -> bool {
    let mut conditions = status.conditions.iter().flatten();
    conditions.any(|condition| condition.type_ == kind && condition.status == "True")
}

pub(super) fn is_finished(job: &Job) -> bool {
    job.status.as_ref().is_some_and(|status| has(status, "Complete") || has(status, "Failed"))
}

pub(super) fn is_indexed(spec: &JobSpec) -> bool {
    spec.completion_mode.as_deref() == Some("Indexed")
}

fn has_finalizer(pod: &Pod) -> bool {
    pod.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == FINALIZER)
}

fn index(pod: &Pod) -> Option<i32> {
    pod.metadata.annotations.as_ref()?.get(INDEX)?.parse().ok().filter(|index| *index >= 0)
}

fn uid(pod: &Pod) -> String {
    pod.metadata.uid.clone().unwrap_or_default()
}

/// Whether a pod counts as failed: one that is deleted before its end does, unless only failed ones are replaced.
fn is_failed(pod: &Pod, spec: &JobSpec) -> bool {
    let only_failed = spec.pod_replacement_policy.as_deref() == Some("Failed") || spec.pod_failure_policy.is_some();
    match pods::phase(pod) {
        "Failed" => true,
        "Succeeded" => false,
        _ => !only_failed && pods::is_terminating(pod),
    }
}

/// The next step. `settled` says that the pods are as the last step left them.
pub(super) fn plan(job: &Job, pods: &[Arc<Pod>], settled: bool, now: Timestamp) -> Plan {
    Step::new(job, pods, now).run(settled)
}

struct Step<'a> {
    job: &'a Job,
    spec: JobSpec,
    pods: &'a [Arc<Pod>],
    now: Timestamp,
    plan: Plan,
    /// Indexes that have succeeded.
    done: BTreeSet<i32>,
}

impl<'a> Step<'a> {
    fn new(job: &'a Job, pods: &'a [Arc<Pod>], now: Timestamp) -> Self {
        let status = job.status.clone().unwrap_or_default();
        let done = parse_indexes(status.completed_indexes.as_deref().unwrap_or_default());
        Self { job, spec: spec(job), pods, now, plan: Plan { status, ..Plan::default() }, done }
    }

    fn time(&self) -> Option<Time> {
        Timestamp::from_second(self.now.as_second()).ok().map(Time)
    }

    fn run(mut self, settled: bool) -> Plan {
        let suspended = self.spec.suspend == Some(true);
        if self.plan.status.start_time.is_none() && !suspended {
            self.plan.status.start_time = self.time();
        }
        self.settle_counts();
        let last_failure = self.count_new();
        let active: Vec<_> = self.pods.iter().filter(|pod| pods::is_active(pod)).cloned().collect();
        let ending = has(&self.plan.status, "FailureTarget") || has(&self.plan.status, "SuccessCriteriaMet");
        if !ending && let Some((reason, message)) = self.failure() {
            self.condition("FailureTarget", &reason, &message);
        }
        let mut left = active.len();
        if has(&self.plan.status, "FailureTarget") || has(&self.plan.status, "SuccessCriteriaMet") {
            self.plan.delete.clone_from(&active);
            left = 0;
        } else {
            if settled && self.job.metadata.deletion_timestamp.is_none() {
                left = self.manage(&active, last_failure);
                self.note_suspension(suspended);
            }
            let succeeded = self.succeeded();
            let complete = match self.spec.completions {
                None => succeeded > 0 && left == 0,
                Some(completions) => succeeded >= completions && left == 0,
            };
            if complete && !suspended {
                self.condition("SuccessCriteriaMet", "CompletionsReached", "Reached expected number of succeeded pods");
            }
        }
        self.finish(left, &active);
        self.deadline(suspended);
        self.plan
    }

    /// Uncounted pods that have lost their finalizer become counts.
    fn settle_counts(&mut self) {
        let held: BTreeSet<String> = self.pods.iter().filter(|pod| has_finalizer(pod)).map(|pod| uid(pod)).collect();
        let status = &mut self.plan.status;
        let uncounted = status.uncounted_terminated_pods.get_or_insert_default();
        let settle = |uids: &mut Option<Vec<String>>, count: &mut Option<i32>| {
            let Some(list) = uids else { return };
            let before = list.len();
            list.retain(|uid| held.contains(uid));
            let gone = i32::try_from(before - list.len()).unwrap_or(0);
            if gone > 0 {
                *count = Some(count.unwrap_or(0) + gone);
            }
            if list.is_empty() {
                *uids = None;
            }
        };
        settle(&mut uncounted.succeeded, &mut status.succeeded);
        settle(&mut uncounted.failed, &mut status.failed);
    }

    /// Notes pods that have ended. Returns the number of failures and the time of the last one.
    fn count_new(&mut self) -> Option<Timestamp> {
        let indexed = is_indexed(&self.spec);
        let ending = has(&self.plan.status, "FailureTarget") || self.job.metadata.deletion_timestamp.is_some();
        let mut last_failure = None;
        let mut known = self.plan.status.uncounted_terminated_pods.clone().unwrap_or_default();
        let (mut succeeded, mut failed) =
            (known.succeeded.take().unwrap_or_default(), known.failed.take().unwrap_or_default());
        for pod in self.pods {
            let is_failed = is_failed(pod, &self.spec);
            if is_failed {
                last_failure = last_failure.max(Some(ended_at(pod).unwrap_or(self.now)));
            }
            let ended = pods::phase(pod) == "Succeeded" || is_failed || (ending && pods::is_terminating(pod));
            if !has_finalizer(pod) || !ended || succeeded.len() + failed.len() >= UNCOUNTED {
                continue;
            }
            self.plan.finalize.push(pod.clone());
            let uid = uid(pod);
            if pods::phase(pod) == "Succeeded" {
                match index(pod) {
                    Some(index) if indexed && Some(index) < self.spec.completions => drop(self.done.insert(index)),
                    _ if indexed => {}
                    _ if !succeeded.contains(&uid) => succeeded.push(uid),
                    _ => {}
                }
            } else if !failed.contains(&uid) && self.counts(pod) {
                failed.push(uid);
            }
        }
        let list = |list: Vec<String>| Some(list).filter(|list| !list.is_empty());
        self.plan.status.uncounted_terminated_pods =
            Some(UncountedTerminatedPods { succeeded: list(succeeded), failed: list(failed) });
        if indexed {
            self.plan.status.completed_indexes = Some(format_indexes(&self.done)).filter(|text| !text.is_empty());
            self.plan.status.succeeded = i32::try_from(self.done.len()).ok().filter(|count| *count > 0);
        }
        last_failure
    }

    /// Whether the failure policy lets a failed pod count.
    fn counts(&self, pod: &Pod) -> bool {
        self.policy_action(pod).is_none_or(|(action, _)| action != "Ignore")
    }

    /// The first rule of the failure policy that a failed pod matches: its action, and what to tell.
    fn policy_action(&self, pod: &Pod) -> Option<(String, String)> {
        let policy = self.spec.pod_failure_policy.as_ref()?;
        let (namespace, name) = pods::names(&pod.metadata);
        for (at, rule) in policy.rules.iter().enumerate() {
            if let Some(exit) = &rule.on_exit_codes {
                let status = pod.status.as_ref();
                let containers = status.iter().flat_map(|status| status.container_statuses.iter().flatten());
                let inits = status.iter().flat_map(|status| status.init_container_statuses.iter().flatten());
                let hit = containers.chain(inits).find(|container| {
                    let named = exit.container_name.as_ref().is_none_or(|name| *name == container.name);
                    let code = container.state.as_ref().and_then(|state| Some(state.terminated.as_ref()?.exit_code));
                    named
                        && code.is_some_and(|code| code != 0 && exit.values.contains(&code) == (exit.operator == "In"))
                });
                if let Some(container) = hit {
                    let code = container.state.as_ref().and_then(|state| Some(state.terminated.as_ref()?.exit_code));
                    let message = format!(
                        "Container {} for pod {namespace}/{name} failed with exit code {} matching {} rule at index {at}",
                        container.name,
                        code.unwrap_or_default(),
                        rule.action
                    );
                    return Some((rule.action.clone(), message));
                }
            }
            for pattern in rule.on_pod_conditions.iter().flatten() {
                let wanted = pattern.status.as_deref().unwrap_or("True");
                if pods::condition(pod, &pattern.type_).is_some_and(|condition| condition.status == wanted) {
                    let message = format!(
                        "Pod {namespace}/{name} has condition {} matching {} rule at index {at}",
                        pattern.type_, rule.action
                    );
                    return Some((rule.action.clone(), message));
                }
            }
        }
        None
    }

    fn uncounted(&self, failed: bool) -> i32 {
        let uncounted = self.plan.status.uncounted_terminated_pods.as_ref();
        let list = uncounted.and_then(|all| if failed { all.failed.as_ref() } else { all.succeeded.as_ref() });
        i32::try_from(list.map_or(0, Vec::len)).unwrap_or(i32::MAX)
    }

    fn succeeded(&self) -> i32 {
        match is_indexed(&self.spec) {
            true => i32::try_from(self.done.len()).unwrap_or(i32::MAX),
            false => self.plan.status.succeeded.unwrap_or(0) + self.uncounted(false),
        }
    }

    fn failed(&self) -> i32 {
        self.plan.status.failed.unwrap_or(0) + self.uncounted(true)
    }

    /// Why the Job has failed.
    fn failure(&self) -> Option<(String, String)> {
        let failing = self.pods.iter().filter(|pod| is_failed(pod, &self.spec));
        let ruled = failing.filter_map(|pod| self.policy_action(pod)).find(|(action, _)| action == "FailJob");
        if let Some((_, message)) = ruled {
            return Some(("PodFailurePolicy".into(), message));
        }
        let limit = self.spec.backoff_limit.unwrap_or(6);
        if self.failed() > limit || self.restarts_exceed(limit) {
            let message = "Job has reached the specified backoff limit";
            return Some(("BackoffLimitExceeded".into(), message.into()));
        }
        if self.deadline_left().is_some_and(|left| left <= SignedDuration::ZERO) {
            let message = "Job was active longer than specified deadline";
            return Some(("DeadlineExceeded".into(), message.into()));
        }
        None
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
        if self.spec.suspend == Some(true) {
            return None;
        }
        let start = self.plan.status.start_time.as_ref()?.0;
        let limit = SignedDuration::from_secs(self.spec.active_deadline_seconds?);
        Some(limit - self.now.duration_since(start))
    }

    fn deadline(&mut self, suspended: bool) {
        let finished = has(&self.plan.status, "Complete") || has(&self.plan.status, "Failed");
        if suspended || finished {
            return;
        }
        if let Some(left) = self.deadline_left().and_then(|left| Duration::try_from(left).ok()) {
            self.plan.again = Some(self.plan.again.map_or(left, |again| again.min(left)));
        }
    }

    fn condition(&mut self, kind: &str, reason: &str, message: &str) {
        let condition = JobCondition {
            type_: kind.into(),
            status: "True".into(),
            reason: Some(reason.into()),
            message: Some(message.into()),
            last_probe_time: self.time(),
            last_transition_time: self.time(),
        };
        self.plan.status.conditions.get_or_insert_default().push(condition);
    }

    fn note_suspension(&mut self, suspended: bool) {
        let time = self.time();
        let conditions = self.plan.status.conditions.get_or_insert_default();
        let at = conditions.iter().position(|condition| condition.type_ == "Suspended");
        let (status, reason, message, event) = match suspended {
            true => ("True", "JobSuspended", "Job suspended", "Suspended"),
            false => ("False", "JobResumed", "Job resumed", "Resumed"),
        };
        match at {
            None if !suspended => return,
            Some(at) if conditions[at].status == status => return,
            Some(at) => drop(conditions.remove(at)),
            None => {}
        }
        conditions.push(JobCondition {
            type_: "Suspended".into(),
            status: status.into(),
            reason: Some(reason.into()),
            message: Some(message.into()),
            last_probe_time: time.clone(),
            last_transition_time: time.clone(),
        });
        self.plan.status.start_time = if suspended { None } else { time };
        self.plan.events.push((false, event.into(), message.into()));
    }

    /// Brings the number of active pods up or down. Returns how many there are then.
    fn manage(&mut self, active: &[Arc<Pod>], last_failure: Option<Timestamp>) -> usize {
        if self.spec.suspend == Some(true) {
            self.plan.delete = active.to_vec();
            self.plan.uncounted_deletion = true;
            return 0;
        }
        let parallelism = usize::try_from(self.spec.parallelism.unwrap_or(1)).unwrap_or(0);
        let wanted = match self.spec.completions {
            None if self.succeeded() > 0 => active.len(),
            None => parallelism,
            Some(completions) => usize::try_from(completions - self.succeeded()).unwrap_or(0).min(parallelism),
        };
        let mut doomed = self.duplicates(active);
        let surplus = active.len().saturating_sub(wanted);
        if doomed.len() < surplus {
            let mut rest: Vec<_> =
                active.iter().filter(|pod| !doomed.iter().any(|other| Arc::ptr_eq(other, pod))).cloned().collect();
            ranks::sort(&mut rest, |_| 0, self.now);
            let missing = surplus - doomed.len();
            doomed.extend(rest.into_iter().take(missing));
        }
        doomed.truncate(BURST);
        if !doomed.is_empty() {
            let left = active.len() - doomed.len();
            self.plan.delete = doomed;
            self.plan.uncounted_deletion = true;
            return left;
        }
        let terminating = match self.spec.pod_replacement_policy.as_deref() {
            Some("Failed") => self.pods.iter().filter(|pod| is_leaving(pod)).count(),
            _ => 0,
        };
        let missing = wanted.saturating_sub(active.len() + terminating).min(BURST);
        if missing == 0 {
            return active.len();
        }
        if let Some(wait) = self.backoff(last_failure) {
            self.plan.again = Some(wait);
            return active.len();
        }
        self.plan.create = if is_indexed(&self.spec) {
            self.free_indexes(active).take(missing).map(Some).collect()
        } else {
            vec![None; missing]
        };
        active.len() + self.plan.create.len()
    }

    /// Of several active pods with one index, and of indexes that are done or too high, all but one go.
    fn duplicates(&self, active: &[Arc<Pod>]) -> Vec<Arc<Pod>> {
        if !is_indexed(&self.spec) {
            return Vec::new();
        }
        let mut seen = self.done.clone();
        let fits = |index: i32| Some(index) < self.spec.completions;
        active
            .iter()
            .filter(|pod| !index(pod).is_some_and(|index| fits(index) && seen.insert(index)))
            .cloned()
            .collect()
    }

    fn free_indexes(&self, active: &[Arc<Pod>]) -> impl Iterator<Item = i32> {
        let mut taken = self.done.clone();
        taken.extend(active.iter().filter_map(|pod| index(pod)));
        if self.spec.pod_replacement_policy.as_deref() == Some("Failed") {
            taken.extend(self.pods.iter().filter(|pod| is_leaving(pod)).filter_map(|pod| index(pod)));
        }
        (0..self.spec.completions.unwrap_or(0)).filter(move |index| !taken.contains(index))
    }

    /// How long to wait since the last failure: ten seconds, twice as long for each more, six minutes at most.
    fn backoff(&self, last_failure: Option<Timestamp>) -> Option<Duration> {
        let failures = u32::try_from(self.failed()).ok().filter(|failures| *failures > 0)?;
        let wait = BACKOFF.checked_mul(1 << (failures - 1).min(10)).unwrap_or(LONGEST_BACKOFF).min(LONGEST_BACKOFF);
        let passed = Duration::try_from(self.now.duration_since(last_failure?)).unwrap_or_default();
        wait.checked_sub(passed).filter(|left| !left.is_zero())
    }

    /// Counts of the living, and the final condition once all pods have come to rest and are counted.
    fn finish(&mut self, left: usize, active: &[Arc<Pod>]) {
        let deleted = |pod: &Arc<Pod>| self.plan.delete.iter().any(|other| Arc::ptr_eq(other, pod));
        let ready = active.iter().filter(|pod| pods::is_ready(pod) && !deleted(pod)).count();
        let leaving = self.pods.iter().filter(|pod| is_leaving(pod)).count() + self.plan.delete.len();
        let count = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);
        self.plan.status.active = Some(count(left)).filter(|count| *count > 0);
        self.plan.status.ready = Some(count(ready));
        self.plan.status.terminating = Some(count(leaving));
        let counted = self.plan.finalize.is_empty() && self.uncounted(true) + self.uncounted(false) == 0;
        if !counted || left > 0 || leaving > 0 {
            return;
        }
        let source = ["FailureTarget", "SuccessCriteriaMet"].into_iter().find(|kind| has(&self.plan.status, kind));
        let Some(source) = source else { return };
        let conditions = self.plan.status.conditions.iter().flatten();
        let found = conditions.into_iter().find(|condition| condition.type_ == source).cloned();
        let found = found.unwrap_or_default();
        let (reason, message) = (found.reason.unwrap_or_default(), found.message.unwrap_or_default());
        if source == "FailureTarget" {
            self.condition("Failed", &reason, &message);
            self.plan.events.push((true, reason, message));
        } else {
            self.condition("Complete", &reason, &message);
            self.plan.status.completion_time = self.time();
            self.plan.events.push((false, "Completed".into(), "Job completed".into()));
        }
    }
}

/// Being deleted, and not at its end yet.
fn is_leaving(pod: &Pod) -> bool {
    pods::is_terminating(pod) && !pods::is_terminal(pod)
}

fn ended_at(pod: &Pod) -> Option<Timestamp> {
    let statuses = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
    let ends = statuses.filter_map(|status| status.state.as_ref()?.terminated.as_ref()?.finished_at.as_ref());
    let deleted = pod.metadata.deletion_timestamp.as_ref();
    ends.map(|time| time.0).max().or_else(|| deleted.map(|time| time.0))
}

/// Reads `0-2,5`.
fn parse_indexes(text: &str) -> BTreeSet<i32> {
    let mut indexes = BTreeSet::new();
    for part in text.split(',') {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(from), Ok(to)) = (from.parse::<i32>(), to.parse::<i32>()) {
            indexes.extend(from..=to);
        }
    }
    indexes
}

/// Writes `0-2,5`; two neighbours are written apart.
fn format_indexes(indexes: &BTreeSet<i32>) -> String {
    let mut runs: Vec<(i32, i32)> = Vec::new();
    for index in indexes {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == *index => *last = *index,
            _ => runs.push((*index, *index)),
        }
    }
    let text = |(from, to): &(i32, i32)| match to - from {
        0 => from.to_string(),
        1 => format!("{from},{to}"),
        _ => format!("{from}-{to}"),
    };
    runs.iter().map(text).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn now() -> Timestamp {
        Timestamp::from_second(10_000).unwrap()
    }

    fn job(extra: Value, status: Value) -> Job {
        let mut spec =
            json!({"parallelism": 1, "completions": 1, "backoffLimit": 6, "template": {"spec": {"containers": []}}});
        for (key, value) in extra.as_object().unwrap() {
            spec[key] = value.clone();
        }
        serde_json::from_value(json!({"metadata": {"name": "j", "uid": "j"}, "spec": spec, "status": status})).unwrap()
    }

    fn pod(name: &str, phase: &str, finalizer: bool, index: Option<i32>) -> Arc<Pod> {
        let finalizers: Vec<_> = finalizer.then_some(FINALIZER).into_iter().collect();
        let mut pod =
            json!({"metadata": {"name": name, "uid": name, "finalizers": finalizers}, "status": {"phase": phase}});
        if let Some(index) = index {
            pod["metadata"]["annotations"] = json!({INDEX: index.to_string()});
        }
        Arc::new(serde_json::from_value(pod).unwrap())
    }

    fn after(job: &Job, plan: &Plan) -> Job {
        Job { status: Some(plan.status.clone()), ..job.clone() }
    }

    fn kinds(plan: &Plan) -> Vec<&str> {
        plan.status.conditions.iter().flatten().map(|condition| condition.type_.as_str()).collect()
    }

    #[test]
    fn a_pod_is_counted_exactly_once() {
        let fresh = job(json!({"completions": 2}), json!({}));
        let first = plan(&fresh, &[], true, now());
        assert_eq!(first.create, [None]);
        let noted = plan(&after(&fresh, &first), &[pod("p", "Succeeded", true, None)], true, now());
        assert_eq!((noted.finalize.len(), noted.status.succeeded), (1, None));
        let again = plan(&after(&fresh, &noted), &[pod("p", "Succeeded", true, None)], true, now());
        assert_eq!(again.status.uncounted_terminated_pods, noted.status.uncounted_terminated_pods);
        let counted = plan(&after(&fresh, &noted), &[pod("p", "Succeeded", false, None)], true, now());
        assert_eq!((counted.status.succeeded, counted.finalize.len()), (Some(1), 0));
        let same = plan(&after(&fresh, &counted), &[pod("p", "Succeeded", false, None)], true, now());
        assert_eq!(same.status.succeeded, Some(1));
    }

    #[test]
    fn a_job_completes_when_its_last_pod_is_counted() {
        let job = job(json!({}), json!({"startTime": "1970-01-01T00:00:00Z"}));
        let noted = plan(&job, &[pod("p", "Succeeded", true, None)], true, now());
        assert_eq!(kinds(&noted), ["SuccessCriteriaMet"]);
        let done = plan(&after(&job, &noted), &[pod("p", "Succeeded", false, None)], true, now());
        assert_eq!(kinds(&done), ["SuccessCriteriaMet", "Complete"]);
        assert_eq!(done.events, [(false, "Completed".into(), "Job completed".into())]);
        assert!(done.status.completion_time.is_some());
    }

    #[test]
    fn beyond_the_backoff_limit_a_job_fails_and_its_pods_go() {
        let job = job(json!({"backoffLimit": 0, "parallelism": 2, "completions": 2}), json!({}));
        let pods = [pod("p", "Failed", true, None), pod("q", "Running", true, None)];
        let noted = plan(&job, &pods, true, now());
        assert_eq!(kinds(&noted), ["FailureTarget"]);
        assert_eq!(noted.delete.len(), 1);
        let done = plan(&after(&job, &noted), &[pod("p", "Failed", false, None)], true, now());
        assert_eq!(kinds(&done), ["FailureTarget", "Failed"]);
        assert_eq!(done.events[0].1, "BackoffLimitExceeded");
    }

    #[test]
    fn a_failed_pod_is_replaced_after_a_pause() {
        let job = job(json!({}), json!({}));
        let mut failed = Pod::clone(&pod("p", "Failed", true, None));
        failed.status.as_mut().unwrap().container_statuses = serde_json::from_value(json!([{"name": "c", "image": "",
            "imageID": "", "ready": false, "restartCount": 0,
            "state": {"terminated": {"exitCode": 1, "finishedAt": "1970-01-01T02:46:36Z"}}}]))
        .unwrap();
        let waiting = plan(&job, &[Arc::new(failed.clone())], true, now());
        assert!(waiting.create.is_empty());
        assert_eq!(waiting.again, Some(Duration::from_secs(6)));
        assert_eq!(plan(&job, &[Arc::new(failed)], true, now() + Duration::from_secs(7)).create.len(), 1);
    }

    #[test]
    fn indexes_are_completed_one_by_one() {
        let job = job(
            json!({"completions": 4, "parallelism": 3, "completionMode": "Indexed"}),
            json!({"completedIndexes": "1"}),
        );
        let step = plan(&job, &[pod("p", "Running", true, Some(0))], true, now());
        assert_eq!(step.create, [Some(2), Some(3)]);
        let pods = [
            pod("p", "Succeeded", true, Some(0)),
            pod("q", "Running", true, Some(2)),
            pod("r", "Running", true, Some(2)),
        ];
        let step = plan(&job, &pods, true, now());
        assert_eq!(step.status.completed_indexes.as_deref(), Some("0,1"));
        assert_eq!(step.delete.len(), 1, "of two pods with one index one goes");
        assert_eq!(format_indexes(&parse_indexes("0-3,5,7,8")), "0-3,5,7,8");
    }

    #[test]
    fn a_suspended_job_has_no_pods_and_says_so() {
        let job = job(json!({"suspend": true}), json!({"startTime": "1970-01-01T00:00:00Z"}));
        let step = plan(&job, &[pod("p", "Running", true, None)], true, now());
        assert_eq!((step.delete.len(), step.uncounted_deletion), (1, true));
        assert_eq!(kinds(&step), ["Suspended"]);
        assert_eq!(step.status.start_time, None);
        let mut resumed = after(&job, &step);
        resumed.spec.as_mut().unwrap().suspend = Some(false);
        let step = plan(&resumed, &[], true, now());
        assert_eq!(step.create.len(), 1);
        assert_eq!(step.events[0].1, "Resumed");
    }

    #[test]
    fn a_job_over_its_deadline_fails() {
        let job = job(json!({"activeDeadlineSeconds": 60}), json!({"startTime": "1970-01-01T02:46:00Z"}));
        assert_eq!(plan(&job, &[], true, now()).again, Some(Duration::from_secs(20)));
        let late = plan(&job, &[pod("p", "Running", true, None)], true, now() + Duration::from_secs(20));
        assert_eq!(kinds(&late), ["FailureTarget"]);
    }

    #[test]
    fn the_failure_policy_ignores_or_fails() {
        let policy = |action: &str| {
            let rule = json!({"action": action, "onExitCodes": {"operator": "In", "values": [42]}});
            job(json!({"podFailurePolicy": {"rules": [rule]}}), json!({}))
        };
        let mut failed = Pod::clone(&pod("p", "Failed", true, None));
        failed.status.as_mut().unwrap().container_statuses = serde_json::from_value(json!([{"name": "c", "image": "",
            "imageID": "", "ready": false, "restartCount": 0, "state": {"terminated": {"exitCode": 42}}}]))
        .unwrap();
        let pods = [Arc::new(failed)];
        let ignored = plan(&policy("Ignore"), &pods, true, now());
        assert_eq!(ignored.status.uncounted_terminated_pods, Some(UncountedTerminatedPods::default()));
        assert_eq!(ignored.finalize.len(), 1);
        assert_eq!(kinds(&plan(&policy("FailJob"), &pods, true, now())), ["FailureTarget"]);
    }
}

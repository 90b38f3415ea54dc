use super::backoff::Failures;
use super::plan::{FAILED_BEFORE, FINALIZER, INDEX, NewPod, Plan};
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::{Job, UncountedTerminatedPods};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

fn plan(job: &Job, pods: &[Arc<Pod>], now: Timestamp) -> Plan {
    super::plan::plan(job, pods, &Failures::default(), now)
}

fn any(count: usize) -> Vec<NewPod> {
    vec![NewPod::default(); count]
}

fn indexes(plan: &Plan) -> Vec<i32> {
    plan.create.iter().filter_map(|new| new.index).collect()
}

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
    let first = plan(&fresh, &[], now());
    assert_eq!(first.create, any(1));
    let noted = plan(&after(&fresh, &first), &[pod("p", "Succeeded", true, None)], now());
    assert_eq!((noted.finalize.len(), noted.status.succeeded), (1, None));
    let again = plan(&after(&fresh, &noted), &[pod("p", "Succeeded", true, None)], now());
    assert_eq!(again.status.uncounted_terminated_pods, noted.status.uncounted_terminated_pods);
    let counted = plan(&after(&fresh, &noted), &[pod("p", "Succeeded", false, None)], now());
    assert_eq!((counted.status.succeeded, counted.finalize.len()), (Some(1), 0));
    let same = plan(&after(&fresh, &counted), &[pod("p", "Succeeded", false, None)], now());
    assert_eq!(same.status.succeeded, Some(1));
}

#[test]
fn a_job_completes_when_its_last_pod_is_counted() {
    let job = job(json!({}), json!({"startTime": "1970-01-01T00:00:00Z"}));
    let noted = plan(&job, &[pod("p", "Succeeded", true, None)], now());
    assert_eq!(kinds(&noted), ["SuccessCriteriaMet"]);
    let done = plan(&after(&job, &noted), &[pod("p", "Succeeded", false, None)], now());
    assert_eq!(kinds(&done), ["SuccessCriteriaMet", "Complete"]);
    assert_eq!(done.events, [(false, "Completed".into(), "Job completed".into())]);
    assert!(done.status.completion_time.is_some());
}

#[test]
fn beyond_the_backoff_limit_a_job_fails_and_its_pods_go() {
    let job = job(json!({"backoffLimit": 0, "parallelism": 2, "completions": 2}), json!({}));
    let pods = [pod("p", "Failed", true, None), pod("q", "Running", true, None)];
    let noted = plan(&job, &pods, now());
    assert_eq!(kinds(&noted), ["FailureTarget"]);
    assert_eq!(noted.delete.len(), 1);
    let done = plan(&after(&job, &noted), &[pod("p", "Failed", false, None)], now());
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
    let waiting = plan(&job, &[Arc::new(failed.clone())], now());
    assert!(waiting.create.is_empty());
    assert_eq!(waiting.again, Some(Duration::from_secs(6)));
    assert_eq!(plan(&job, &[Arc::new(failed)], now() + Duration::from_secs(7)).create.len(), 1);
}

#[test]
fn indexes_are_completed_one_by_one() {
    let job =
        job(json!({"completions": 4, "parallelism": 3, "completionMode": "Indexed"}), json!({"completedIndexes": "1"}));
    let step = plan(&job, &[pod("p", "Running", true, Some(0))], now());
    assert_eq!(indexes(&step), [2, 3]);
    let pods =
        [pod("p", "Succeeded", true, Some(0)), pod("q", "Running", true, Some(2)), pod("r", "Running", true, Some(2))];
    let step = plan(&job, &pods, now());
    assert_eq!(step.status.completed_indexes.as_deref(), Some("0,1"));
    assert_eq!(step.delete.len(), 1, "of two pods with one index one goes");
}

#[test]
fn a_suspended_job_has_no_pods_and_says_so() {
    let job = job(json!({"suspend": true}), json!({"startTime": "1970-01-01T00:00:00Z"}));
    let step = plan(&job, &[pod("p", "Running", true, None)], now());
    assert_eq!((step.delete.len(), step.uncounted_deletion), (1, true));
    assert_eq!(kinds(&step), ["Suspended"]);
    assert_eq!(step.status.start_time, None);
    let mut resumed = after(&job, &step);
    resumed.spec.as_mut().unwrap().suspend = Some(false);
    let step = plan(&resumed, &[], now());
    assert_eq!(step.create.len(), 1);
    assert_eq!(step.events[0].1, "Resumed");
}

#[test]
fn a_job_over_its_deadline_fails() {
    let job = job(json!({"activeDeadlineSeconds": 60}), json!({"startTime": "1970-01-01T02:46:00Z"}));
    assert_eq!(plan(&job, &[], now()).again, Some(Duration::from_secs(20)));
    let late = plan(&job, &[pod("p", "Running", true, None)], now() + Duration::from_secs(20));
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
    let ignored = plan(&policy("Ignore"), &pods, now());
    assert_eq!(ignored.status.uncounted_terminated_pods, Some(UncountedTerminatedPods::default()));
    assert_eq!(ignored.finalize.len(), 1);
    assert_eq!(kinds(&plan(&policy("FailJob"), &pods, now())), ["FailureTarget"]);
}

/// A failed pod of an index that had failed so often before.
fn failed_at(name: &str, index: i32, before: i32, code: i32) -> Arc<Pod> {
    let mut pod = Pod::clone(&pod(name, "Failed", true, Some(index)));
    pod.metadata.annotations.get_or_insert_default().insert(FAILED_BEFORE.into(), before.to_string());
    pod.status.as_mut().unwrap().container_statuses = serde_json::from_value(json!([{"name": "c", "image": "",
        "imageID": "", "ready": false, "restartCount": 0,
        "state": {"terminated": {"exitCode": code, "finishedAt": "1970-01-01T00:00:00Z"}}}]))
    .unwrap();
    Arc::new(pod)
}

fn terminating(pod: &Pod) -> Arc<Pod> {
    let mut pod = pod.clone();
    pod.metadata.deletion_timestamp = serde_json::from_value(json!("1970-01-01T02:46:40Z")).unwrap();
    Arc::new(pod)
}

fn by_index(extra: Value) -> Value {
    let mut spec = json!({"completionMode": "Indexed", "completions": 3, "parallelism": 3,
        "backoffLimit": i32::MAX, "backoffLimitPerIndex": 1});
    for (key, value) in extra.as_object().unwrap() {
        spec[key] = value.clone();
    }
    spec
}

#[test]
fn an_index_that_has_failed_too_often_is_given_up_and_then_the_job() {
    let job = job(by_index(json!({})), json!({}));
    let pods = [failed_at("p", 0, 1, 1), failed_at("q", 1, 0, 1), pod("r", "Running", true, Some(2))];
    let step = plan(&job, &pods, now());
    assert_eq!(step.status.failed_indexes.as_deref(), Some("0"));
    assert_eq!(indexes(&step), [1], "the other one may fail once more");
    assert_eq!(step.create[0].before.unwrap().counted, 1);
    assert_eq!(step.finalize.len(), 1, "the failed pod of index 1 is kept until its replacement is there");
    let pods = [pod("r", "Succeeded", true, Some(2)), failed_at("s", 1, 1, 1)];
    let step = plan(&after(&job, &step), &pods, now());
    assert_eq!(step.status.failed_indexes.as_deref(), Some("0,1"));
    assert_eq!(step.status.completed_indexes.as_deref(), Some("2"));
    let end = plan(&after(&job, &step), &[], now());
    assert_eq!(kinds(&end), ["FailureTarget", "Failed"]);
    assert_eq!(end.events, [(true, "FailedIndexes".into(), "Job has failed indexes".into())]);
}

#[test]
fn each_index_waits_for_itself() {
    let job = job(by_index(json!({"backoffLimitPerIndex": 5})), json!({}));
    let step = plan(&job, &[failed_at("p", 0, 2, 1)], Timestamp::from_second(30).unwrap());
    assert_eq!(indexes(&step), [1, 2]);
    assert_eq!(step.again, Some(Duration::from_secs(10)), "forty seconds after the third failure");
}

#[test]
fn too_many_failed_indexes_fail_the_job() {
    let job = job(by_index(json!({"completions": 9, "maxFailedIndexes": 1})), json!({"failedIndexes": "4"}));
    assert!(kinds(&plan(&job, &[failed_at("p", 0, 0, 1)], now())).is_empty());
    let step = plan(&job, &[failed_at("p", 0, 1, 1), pod("q", "Running", true, Some(1))], now());
    assert_eq!(kinds(&step), ["FailureTarget"]);
    assert_eq!(step.status.conditions.unwrap()[0].reason.as_deref(), Some("MaxFailedIndexesExceeded"));
    assert_eq!(step.delete.len(), 1);
}

#[test]
fn the_failure_policy_may_give_up_an_index_at_once_or_not_count_against_it() {
    let rule = |action: &str, code: i32| json!({"action": action, "onExitCodes": {"operator": "In", "values": [code]}});
    let rules = json!({"podFailurePolicy": {"rules": [rule("FailIndex", 3), rule("Ignore", 4)]}});
    let job = job(by_index(rules), json!({}));
    let step = plan(&job, &[failed_at("p", 0, 0, 3), failed_at("q", 1, 1, 4)], now());
    assert_eq!(step.status.failed_indexes.as_deref(), Some("0"));
    let retried = step.create.iter().find(|new| new.index == Some(1)).unwrap();
    assert_eq!((retried.before.unwrap().counted, retried.before.unwrap().ignored), (1, 1));
}

#[test]
fn a_success_policy_ends_the_job_early_and_what_still_runs_does_not_count_as_failed() {
    let policy = json!({"completionMode": "Indexed", "completions": 3, "parallelism": 3,
        "successPolicy": {"rules": [{"succeededIndexes": "0"}]}});
    let job = job(policy, json!({}));
    let pods = [pod("p", "Succeeded", true, Some(0)), pod("q", "Running", true, Some(1))];
    let step = plan(&job, &pods, now());
    assert_eq!(kinds(&step), ["SuccessCriteriaMet"]);
    assert_eq!(step.status.conditions.as_ref().unwrap()[0].reason.as_deref(), Some("SuccessPolicy"));
    assert_eq!((step.delete.len(), step.finalize.len(), step.status.terminating), (1, 2, Some(1)));
    let going = Pod::clone(&terminating(&pod("q", "Running", false, Some(1))));
    let waits = plan(&after(&job, &step), &[Arc::new(going)], now());
    assert_eq!(kinds(&waits), ["SuccessCriteriaMet"], "until the last pod is gone");
    let end = plan(&after(&job, &waits), &[], now());
    assert_eq!(kinds(&end), ["SuccessCriteriaMet", "Complete"]);
    assert_eq!((end.status.succeeded, end.status.failed), (Some(1), None));
}

#[test]
fn what_a_failed_job_still_runs_counts_as_failed() {
    let job = job(json!({"backoffLimit": 0, "parallelism": 2, "completions": 2}), json!({}));
    let pods = [pod("p", "Failed", true, None), pod("q", "Running", true, None)];
    let step = plan(&job, &pods, now());
    assert_eq!(step.status.uncounted_terminated_pods.as_ref().unwrap().failed.as_ref().unwrap().len(), 2);
    let end = plan(&after(&job, &step), &[], now());
    assert_eq!((end.status.failed, kinds(&end)), (Some(2), vec!["FailureTarget", "Failed"]));
}

#[test]
fn a_pod_that_is_being_deleted_is_replaced_at_once_or_only_once_it_has_failed() {
    let going = [terminating(&pod("p", "Running", true, None))];
    let replaced = |policy: &str| plan(&job(json!({"podReplacementPolicy": policy}), json!({})), &going, now());
    let at_once = plan(
        &job(json!({"podReplacementPolicy": "TerminatingOrFailed"}), json!({})),
        &going,
        now() + Duration::from_secs(11),
    );
    assert_eq!((at_once.create.len(), at_once.finalize.len(), at_once.status.terminating), (1, 1, Some(1)));
    let later = replaced("Failed");
    assert_eq!((later.create.len(), later.finalize.len(), later.status.terminating), (0, 0, Some(1)));
    let by_policy = json!({"podFailurePolicy": {"rules": []}});
    assert_eq!(plan(&job(by_policy, json!({})), &going, now()).create.len(), 0);
}

#[test]
fn a_job_that_is_being_deleted_lets_its_pods_go_and_makes_none() {
    let mut job = job(json!({"parallelism": 2, "completions": 2}), json!({}));
    job.metadata.deletion_timestamp = serde_json::from_value(json!("1970-01-01T02:46:40Z")).unwrap();
    let step = plan(&job, &[pod("p", "Running", true, None)], now());
    assert_eq!((step.create.len(), step.delete.len(), step.finalize.len()), (0, 0, 1));
    assert_eq!(step.status.uncounted_terminated_pods, Some(UncountedTerminatedPods::default()));
}

#[test]
fn a_suspended_job_that_has_enough_successes_is_complete() {
    let job = job(json!({"suspend": true}), json!({"succeeded": 1}));
    assert_eq!(kinds(&plan(&job, &[], now())), ["SuccessCriteriaMet", "Complete"]);
}

#[test]
fn of_two_pods_with_one_index_the_better_one_stays_and_indexes_beyond_the_last_go() {
    let job = job(json!({"completionMode": "Indexed", "completions": 2, "parallelism": 2}), json!({}));
    let pods = [
        pod("new", "Pending", true, Some(0)),
        pod("old", "Running", true, Some(0)),
        pod("far", "Running", true, Some(2)),
    ];
    let mut doomed: Vec<_> =
        plan(&job, &pods, now()).delete.iter().map(|pod| pod.metadata.name.clone().unwrap()).collect();
    doomed.sort();
    assert_eq!(doomed, ["far", "new"]);
}

#[test]
fn a_resumed_job_changes_its_condition_in_place() {
    let conditions = json!([{"type": "Suspended", "status": "True", "reason": "JobSuspended", "message": "Job suspended"},
        {"type": "Mine", "status": "True"}]);
    let step = plan(&job(json!({}), json!({"conditions": conditions})), &[], now());
    assert_eq!(kinds(&step), ["Suspended", "Mine"]);
    assert_eq!(step.status.start_time.unwrap().0, now());
}

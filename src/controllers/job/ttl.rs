//! ttl-after-finished-controller: deletes finished Jobs when their time is over.

use crate::context::{Context, Outcome};
use client::{Key, Queue, retry};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::Job;
use kube::api::{DeleteParams, Preconditions};
use std::time::Duration;

pub(crate) async fn run(context: Context) {
    let jobs = context.informer::<Job>();
    let queue = Queue::<Key>::default();
    let wake = queue.clone();
    jobs.on_change(move |change| {
        if left(change.object(), Timestamp::now()).is_some() {
            wake.add(Key::of(&change.object().metadata));
        }
    });
    jobs.synced().await;
    let workers = context.options.workers("concurrent-ttl-after-finished-syncs");
    context.serve(&queue, workers, |key| reconcile(&context, key)).await;
}

/// How long a finished Job has left; nothing when it stays.
fn left(job: &Job, now: Timestamp) -> Option<Duration> {
    let seconds = job.spec.as_ref()?.ttl_seconds_after_finished?;
    if job.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let conditions = job.status.as_ref()?.conditions.as_ref()?;
    let end = conditions
        .iter()
        .find(|condition| matches!(condition.type_.as_str(), "Complete" | "Failed") && condition.status == "True")?;
    let since = now.duration_since(end.last_transition_time.as_ref()?.0);
    Some(Duration::try_from(SignedDuration::from_secs(i64::from(seconds)) - since).unwrap_or_default())
}

async fn reconcile(context: &Context, key: Key) -> Outcome {
    let api = context.within::<Job>(&key.namespace);
    // Read anew: the time may have been changed.
    let Some(job) = api.get_opt(&key.name).await? else { return Ok(None) };
    let Some(left) = left(&job, Timestamp::now()) else { return Ok(None) };
    if !left.is_zero() {
        return Ok(Some(left));
    }
    let preconditions = Preconditions { uid: job.metadata.uid, resource_version: None };
    let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::foreground() };
    retry::ignore_not_found(api.delete(&key.name, &params).await)?;
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_finished_jobs_with_a_time_to_live_expire() {
        let now = Timestamp::from_second(100).unwrap();
        let job = |spec: serde_json::Value, kind: &str| -> Job {
            let condition = json!({"type": kind, "status": "True", "lastTransitionTime": "1970-01-01T00:01:30Z"});
            serde_json::from_value(json!({"spec": spec, "status": {"conditions": [condition]}})).unwrap()
        };
        let spec = |ttl: i32| json!({"ttlSecondsAfterFinished": ttl, "template": {}});
        assert_eq!(left(&job(spec(30), "Complete"), now), Some(Duration::from_secs(20)));
        assert_eq!(left(&job(spec(5), "Failed"), now), Some(Duration::ZERO));
        assert_eq!(left(&job(spec(5), "Suspended"), now), None);
        assert_eq!(left(&job(json!({"template": {}}), "Complete"), now), None);
    }
}

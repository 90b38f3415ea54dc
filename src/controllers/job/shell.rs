//! The shell of job-controller.

use super::backoff::Failures;
use super::plan::{self, FAILED_BEFORE, FINALIZER, IGNORED_BEFORE, INDEX, NewPod, Plan};
use crate::common::claim;
use crate::common::expect::Expectations;
use crate::common::pods::{self, PodControl, names, slow_start};
use crate::common::wake;
use crate::context::{Context, Fault, Outcome};
use api::selector::LabelSelector;
use client::events::EventKind;
use client::{Informer, Key, Queue, Recorder, owner, retry};
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::{Job, JobStatus};
use k8s_openapi::api::core::v1::{EnvVar, EnvVarSource, ObjectFieldSelector, Pod, PodSpec};
use kube::api::{Patch, PatchParams, PostParams};
use parking_lot::Mutex;
use serde_json::json;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

pub(crate) async fn run(context: Context) {
    let recorder = context.recorder("job-controller");
    let shell = Shell {
        jobs: context.informer(),
        pods: context.informer(),
        control: PodControl::new(&context, &recorder),
        recorder,
        expect: Expectations::default(),
        failures: Mutex::default(),
        context: context.clone(),
    };
    let (queue, orphans) = (Queue::<Key>::default(), Queue::<Key>::default());
    let wake = queue.clone();
    shell.jobs.on_change(move |change| wake.add(Key::of(&change.object().metadata)));
    wake::by_dependents(&queue, &shell.jobs, &shell.pods, selector);
    let wake = orphans.clone();
    shell.pods.on_change(move |change| {
        let pod = change.object();
        if plan::has_finalizer(pod) && owner::controller_of(&pod.metadata).is_none() {
            wake.add(Key::of(&pod.metadata));
        }
    });
    shell.jobs.synced().await;
    shell.pods.synced().await;
    context.resync_keys(&shell.jobs, &queue);
    let workers = context.options.workers("concurrent-job-syncs");
    let jobs = context.serve(&queue, workers, |key| shell.reconcile(key));
    let orphans = context.serve(&orphans, workers, |key| shell.free_orphan(key));
    futures::join!(jobs, orphans);
}

fn selector(job: &Job) -> Result<LabelSelector, Fault> {
    Ok(LabelSelector::from_typed(job.spec.as_ref().and_then(|spec| spec.selector.as_ref()))?)
}

struct Shell {
    context: Context,
    jobs: Informer<Job>,
    pods: Informer<Pod>,
    control: PodControl,
    recorder: Recorder,
    expect: Expectations,
    /// The failures of each Job since its last success.
    failures: Mutex<HashMap<Key, Failures>>,
}

impl Shell {
    async fn reconcile(&self, key: Key) -> Outcome {
        let Some(job) = self.jobs.get(&key) else {
            self.forget(&key);
            return self.free_pods_of(&key, None).await;
        };
        if plan::is_managed_elsewhere(&job) {
            return Ok(None);
        }
        if plan::is_finished(&job) {
            self.forget(&key);
            return self.free_pods_of(&key, job.metadata.uid.as_deref()).await;
        }
        // The status must not be written from an old one, nor from pods that are not as the last step left them: counts
        // would be lost, or pods made twice.
        if let Some(wait) = self.unseen(&key) {
            return Ok(Some(wait));
        }
        let claim = claim::sort(self.pods.in_namespace(&key.namespace), &job.metadata, &selector(&job)?);
        let mine = claim::carry_out(&self.context, claim, job.as_ref(), &[FINALIZER]).await?;
        let failures = self.failures.lock().get(&key).cloned().unwrap_or_default();
        let mut plan = plan::plan(&job, &mine, &failures, Timestamp::now());
        let (made, faults) = self.create(&key, &job, &plan).await;
        let deleted = self.delete(&key, &job, &plan).await;
        if !plan.uncounted_deletion && !deleted.is_empty() {
            return Err(Fault::Several(deleted));
        }
        if made < plan.create.len() {
            let active = plan.status.active.unwrap_or(0) - i32::try_from(plan.create.len() - made).unwrap_or(0);
            plan.status.active = Some(active).filter(|active| *active > 0);
        }
        self.write_status(&key, &job, &plan.status).await?;
        self.failures.lock().insert(key.clone(), plan.failures.clone());
        for (warning, reason, message) in &plan.events {
            let kind = if *warning { EventKind::Warning } else { EventKind::Normal };
            self.recorder.record(&client::events::reference(job.as_ref()), kind, reason, message.clone());
        }
        let freed = futures::future::join_all(plan.finalize.iter().map(|pod| self.count(&key, pod))).await;
        let freed = freed.into_iter().filter_map(Result::err);
        Fault::all(faults.into_iter().chain(deleted).chain(freed).collect())?;
        Ok(plan.again)
    }

    fn unseen(&self, key: &Key) -> Option<Duration> {
        let status = self.expect.unseen(&status_key(key), &self.jobs);
        status.into_iter().chain(self.expect.unseen(key, &self.pods)).max()
    }

    fn forget(&self, key: &Key) {
        self.expect.forget(key);
        self.expect.forget(&status_key(key));
        self.failures.lock().remove(key);
    }

    async fn create(&self, key: &Key, job: &Job, plan: &Plan) -> (usize, Vec<Fault>) {
        let (made, mut faults) = slow_start(plan.create.len(), |at| {
            let pod = make_pod(job, plan.create[at]);
            async move { self.control.create(&key.namespace, &pod, job).await }
        })
        .await;
        made.iter().for_each(|pod| self.expect.made(key, &pod.metadata));
        let going =
            |fault: &Fault| matches!(fault, Fault::Api(error) if retry::has_cause(error, "NamespaceTerminating"));
        faults.retain(|fault| !going(fault));
        (made.len(), faults)
    }

    async fn delete(&self, key: &Key, job: &Job, plan: &Plan) -> Vec<Fault> {
        let deletions = plan.delete.iter().map(|pod| async {
            if plan.uncounted_deletion {
                self.free(pod).await?;
            }
            self.control.delete(pod, job).await?;
            self.expect.deleted(key, &pod.metadata);
            Ok(())
        });
        futures::future::join_all(deletions).await.into_iter().filter_map(Result::err).collect()
    }

    /// Takes the finalizer off a pod that is counted. It must be seen without it before the next step.
    async fn count(&self, key: &Key, pod: &Pod) -> Result<(), Fault> {
        if let Some(free) = self.free(pod).await? {
            self.expect.made(key, &free.metadata);
        }
        Ok(())
    }

    /// Takes the finalizer off a pod; nothing when that is gone.
    async fn free(&self, pod: &Pod) -> Result<Option<Pod>, Fault> {
        let (namespace, name) = names(&pod.metadata);
        let patch = json!({"metadata": {
            "uid": pod.metadata.uid,
            "$deleteFromPrimitiveList/finalizers": [FINALIZER],
        }});
        let api = self.context.within::<Pod>(namespace);
        match api.patch(name, &PatchParams::default(), &Patch::Strategic(patch)).await {
            Ok(free) => Ok(Some(free)),
            Err(error) if retry::is_not_found(&error) || retry::is_conflict(&error) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The pods of a Job that is gone or finished must not be held by its finalizer. `uid` is that of the finished one.
    async fn free_pods_of(&self, key: &Key, uid: Option<&str>) -> Outcome {
        let held = |pod: &Arc<Pod>| {
            let owner = owner::controller_of(&pod.metadata).filter(|owner| plan::is_job(owner));
            owner.is_some_and(|owner| owner.name == key.name && uid.is_none_or(|uid| owner.uid == uid))
                && plan::has_finalizer(pod)
        };
        let pods: Vec<_> = self.pods.in_namespace(&key.namespace).into_iter().filter(held).collect();
        if pods.is_empty() {
            return Ok(None);
        }
        // Pods may be seen before the Job is that they were made for.
        if uid.is_none() && self.context.within::<Job>(&key.namespace).get_opt(&key.name).await?.is_some() {
            return Ok(None);
        }
        let freed = futures::future::join_all(pods.iter().map(|pod| self.free(pod))).await;
        Fault::all(freed.into_iter().filter_map(Result::err).collect())?;
        Ok(None)
    }

    /// A pod that nobody controls is not counted either.
    async fn free_orphan(&self, key: Key) -> Outcome {
        let orphan = |pod: &Arc<Pod>| plan::has_finalizer(pod) && owner::controller_of(&pod.metadata).is_none();
        if let Some(pod) = self.pods.get(&key).filter(orphan) {
            self.free(&pod).await?;
        }
        Ok(None)
    }

    async fn write_status(&self, key: &Key, job: &Job, status: &JobStatus) -> Result<(), Fault> {
        if job.status.as_ref() == Some(status) {
            return Ok(());
        }
        let updated = Job { status: Some(status.clone()), ..job.clone() };
        let api = self.context.within::<Job>(&key.namespace);
        let written = api.replace_status(&key.name, &PostParams::default(), &updated).await;
        if let Some(written) = retry::ignore_not_found(written)? {
            self.expect.made(&status_key(key), &written.metadata);
        }
        Ok(())
    }
}

/// Expectations about the Job itself stand under a name that no Job can have.
fn status_key(key: &Key) -> Key {
    Key::new(key.namespace.clone(), format!("{}/status", key.name))
}

fn make_pod(job: &Job, new: NewPod) -> Pod {
    let spec = plan::spec(job);
    let mut pod = pods::from_template(&spec.template, &owner::controller_ref(job));
    let finalizers = pod.metadata.finalizers.get_or_insert_default();
    if !finalizers.iter().any(|finalizer| finalizer == FINALIZER) {
        finalizers.push(FINALIZER.into());
    }
    let Some(index) = new.index else { return pod };
    let name = job.metadata.name.clone().unwrap_or_default();
    pod.metadata.generate_name = Some(indexed_prefix(&name, index));
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert(INDEX.into(), index.to_string());
    if let Some(before) = new.before {
        annotations.insert(FAILED_BEFORE.into(), before.counted.to_string());
        if before.ignored > 0 {
            annotations.insert(IGNORED_BEFORE.into(), before.ignored.to_string());
        }
    }
    pod.metadata.labels.get_or_insert_default().insert(INDEX.into(), index.to_string());
    let own: &mut PodSpec = pod.spec.get_or_insert_default();
    own.hostname = Some(format!("{name}-{index}"));
    let variable = EnvVar {
        name: "JOB_COMPLETION_INDEX".into(),
        value: None,
        value_from: Some(EnvVarSource {
            field_ref: Some(ObjectFieldSelector {
                field_path: format!("metadata.labels['{INDEX}']"),
                api_version: None,
            }),
            ..Default::default()
        }),
    };
    let inits = own.init_containers.iter_mut().flatten();
    for container in inits.chain(own.containers.iter_mut()) {
        let env = container.env.get_or_insert_default();
        if !env.iter().any(|known| known.name == variable.name) {
            env.push(variable.clone());
        }
    }
    pod
}

/// `job-index-`, of which the server must not cut the index off.
fn indexed_prefix(job: &str, index: i32) -> String {
    const LONGEST: usize = 58;
    let end = format!("-{index}-");
    format!("{}{end}", &job[..job.len().min(LONGEST - end.len())])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_of_jobs_leave_room_for_the_index() {
        assert_eq!(indexed_prefix("j", 12), "j-12-");
        let long = indexed_prefix(&"j".repeat(63), 12);
        assert_eq!((long.len(), long.ends_with("j-12-")), (58, true));
    }

    #[test]
    fn a_replacement_knows_how_often_its_index_has_failed() {
        let job: Job = serde_json::from_value(json!({"metadata": {"name": "j", "uid": "u"},
            "spec": {"completionMode": "Indexed", "template": {"spec": {"containers": [{"name": "c"}]}}}}))
        .unwrap();
        let before = Some(plan::Before { counted: 2, ignored: 0 });
        let pod = make_pod(&job, NewPod { index: Some(3), before });
        let annotations = pod.metadata.annotations.unwrap();
        assert_eq!(annotations[FAILED_BEFORE], "2");
        assert!(!annotations.contains_key(IGNORED_BEFORE));
        assert_eq!(pod.spec.unwrap().hostname.as_deref(), Some("j-3"));
    }
}

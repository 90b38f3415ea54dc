//! The shell of job-controller.

use super::plan::{self, FINALIZER, INDEX, Plan, is_finished, is_indexed};
use crate::common::claim;
use crate::common::expect::Expectations;
use crate::common::pods::{self, PodControl, names, slow_start};
use crate::context::{Context, Fault, Outcome};
use api::selector::LabelSelector;
use client::events::EventKind;
use client::{Informer, Key, Queue, Recorder, owner, retry};
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::{Job, JobStatus};
use k8s_openapi::api::core::v1::{EnvVar, EnvVarSource, ObjectFieldSelector, Pod, PodSpec};
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;
use std::sync::Arc;

pub(crate) async fn run(context: Context) {
    let recorder = context.recorder("job-controller");
    let shell = Shell {
        jobs: context.informer(),
        pods: context.informer(),
        control: PodControl::new(&context, &recorder),
        recorder,
        expect: Expectations::default(),
        context: context.clone(),
    };
    let queue = Queue::<Key>::default();
    let wake = queue.clone();
    shell.jobs.on_change(move |change| wake.add(Key::of(&change.object().metadata)));
    let (wake, jobs) = (queue.clone(), shell.jobs.clone());
    shell.pods.on_change(move |change| {
        for pod in change.both() {
            let namespace = pod.metadata.namespace.clone().unwrap_or_default();
            match owner::controller_of(&pod.metadata) {
                Some(owner) if owner.kind == "Job" => wake.add(Key::new(namespace, owner.name.clone())),
                Some(_) => {}
                None => {
                    let takes = |job: &Arc<Job>| {
                        let selector = LabelSelector::from_typed(plan::spec(job).selector.as_ref());
                        selector.is_ok_and(|selector| !selector.is_empty() && pods::selects(&selector, &pod.metadata))
                    };
                    let adopters = jobs.in_namespace(&namespace).into_iter().filter(takes);
                    adopters.for_each(|job| wake.add(Key::of(&job.metadata)));
                }
            }
        }
    });
    shell.jobs.synced().await;
    shell.pods.synced().await;
    context.resync_keys(&shell.jobs, &queue);
    let workers = context.options.workers("concurrent-job-syncs");
    context.serve(&queue, workers, |key| shell.reconcile(key)).await;
}

struct Shell {
    context: Context,
    jobs: Informer<Job>,
    pods: Informer<Pod>,
    control: PodControl,
    recorder: Recorder,
    expect: Expectations,
}

impl Shell {
    async fn reconcile(&self, key: Key) -> Outcome {
        let Some(job) = self.jobs.get(&key) else {
            self.expect.forget(&key);
            return self.free_orphans(&key).await;
        };
        let managed = plan::spec(&job).managed_by;
        if managed.is_some_and(|manager| manager != "kubernetes.io/job-controller") || is_finished(&job) {
            return Ok(None);
        }
        // The status must not be written from an old one: counts would be lost.
        if !self.expect.seen(&status_key(&key), &self.jobs) {
            return Ok(None);
        }
        let selector = LabelSelector::from_typed(plan::spec(&job).selector.as_ref())?;
        let settled = self.expect.seen(&key, &self.pods);
        let claim = claim::sort(self.pods.in_namespace(&key.namespace), &job.metadata, &selector);
        let mine = claim::carry_out(&self.context, claim, job.as_ref(), &[FINALIZER]).await?;
        let mut plan = plan::plan(&job, &mine, settled, Timestamp::now());
        let (made, faults) = self.create(&key, &job, &plan).await;
        let deleted = self.delete(&key, &job, &plan).await;
        if made < plan.create.len() {
            let active = plan.status.active.unwrap_or(0) - i32::try_from(plan.create.len() - made).unwrap_or(0);
            plan.status.active = Some(active).filter(|active| *active > 0);
        }
        self.write_status(&key, &job, &plan.status).await?;
        for (warning, reason, message) in &plan.events {
            let kind = if *warning { EventKind::Warning } else { EventKind::Normal };
            self.recorder.record(&client::events::reference(job.as_ref()), kind, reason, message.clone());
        }
        let freed = futures::future::join_all(plan.finalize.iter().map(|pod| self.free(pod))).await;
        let freed = freed.into_iter().filter_map(Result::err);
        Fault::all(faults.into_iter().chain(deleted).chain(freed).collect())?;
        Ok(plan.again)
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

    /// Takes the finalizer off a pod.
    async fn free(&self, pod: &Pod) -> Result<(), Fault> {
        let (namespace, name) = names(&pod.metadata);
        let patch = json!({"metadata": {
            "uid": pod.metadata.uid,
            "$deleteFromPrimitiveList/finalizers": [FINALIZER],
        }});
        let api = self.context.within::<Pod>(namespace);
        match api.patch(name, &PatchParams::default(), &Patch::Strategic(patch)).await {
            Err(error) if !retry::is_not_found(&error) && !retry::is_conflict(&error) => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// The pods of a Job that is gone must not be held by its finalizer.
    async fn free_orphans(&self, key: &Key) -> Outcome {
        let held = |pod: &Arc<Pod>| {
            let owner = owner::controller_of(&pod.metadata);
            owner.is_some_and(|owner| owner.kind == "Job" && owner.name == key.name)
                && pod.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == FINALIZER)
        };
        let pods: Vec<_> = self.pods.in_namespace(&key.namespace).into_iter().filter(held).collect();
        if pods.is_empty() || self.context.within::<Job>(&key.namespace).get_opt(&key.name).await?.is_some() {
            return Ok(None);
        }
        let freed = futures::future::join_all(pods.iter().map(|pod| self.free(pod))).await;
        Fault::all(freed.into_iter().filter_map(Result::err).collect())?;
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

fn make_pod(job: &Job, index: Option<i32>) -> Pod {
    let spec = plan::spec(job);
    let mut pod = pods::from_template(&spec.template, &owner::controller_ref(job));
    let finalizers = pod.metadata.finalizers.get_or_insert_default();
    if !finalizers.iter().any(|finalizer| finalizer == FINALIZER) {
        finalizers.push(FINALIZER.into());
    }
    let Some(index) = index.filter(|_| is_indexed(&spec)) else { return pod };
    let name = job.metadata.name.clone().unwrap_or_default();
    pod.metadata.generate_name = Some(format!("{name}-{index}-"));
    pod.metadata.annotations.get_or_insert_default().insert(INDEX.into(), index.to_string());
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

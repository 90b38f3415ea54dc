//! Keeps the status of every pod on this node and brings it to the API: only what changed, and once the pod is gone
//! for good, the deletion of its object.

use super::conditions::{self, OWNED};
use super::generate::find;
use super::patch::patch;
use crate::pods::{self, is_mirror, is_static, is_terminal};
use jiff::{Timestamp, Unit};
use k8s_openapi::api::core::v1::{
    ContainerState, ContainerStateTerminated, ContainerStatus, Pod, PodCondition, PodStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Api, DeleteParams, Patch, PatchParams, Preconditions};
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tracing::{debug, warn};

/// How far the pod is on its way out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Life {
    /// Its containers run, or may run: the API must not see a terminal phase yet.
    MayRun,
    /// Nothing of it runs any more.
    Stopped,
    /// Its volumes and control groups are gone as well: its object may go.
    Finished,
}

struct Entry {
    pod: Arc<Pod>,
    status: PodStatus,
    life: Life,
    /// What the API holds: its version and status, once known.
    api: Option<ApiSide>,
    dirty: bool,
}

struct ApiSide {
    pod: Arc<Pod>,
    version: u64,
}

/// The keeper of statuses.
#[derive(Default)]
pub struct StatusManager {
    entries: Mutex<HashMap<String, Entry>>,
    /// Something is to be sent.
    wake: Notify,
}

fn version_of(pod: &Pod) -> u64 {
    pod.metadata.resource_version.as_deref().and_then(|version| version.parse().ok()).unwrap_or(0)
}

impl StatusManager {
    /// The status of a pod as the kubelet last made it.
    pub fn get(&self, uid: &str) -> Option<PodStatus> {
        self.entries.lock().get(uid).map(|entry| entry.status.clone())
    }

    /// Looks at the status of a pod without a copy of all of it.
    pub fn read<R>(&self, uid: &str, look: impl FnOnce(&PodStatus) -> R) -> Option<R> {
        self.entries.lock().get(uid).map(|entry| look(&entry.status))
    }

    /// Takes a new status; the API hears of it when something changed.
    pub fn set(&self, pod: &Arc<Pod>, status: PodStatus, life: Life) {
        self.store(pod, status, life, false);
    }

    fn store(&self, pod: &Arc<Pod>, mut status: PodStatus, life: Life, force: bool) {
        let mut entries = self.entries.lock();
        let uid = pods::uid(pod).to_owned();
        let known = entries.get(&uid);
        let before = known.map(|entry| &entry.status).or(pod.status.as_ref()).cloned().unwrap_or_default();
        keep_times(&mut status, &before);
        normalize(pod, &mut status);
        let life = known.map_or(life, |entry| entry.life.max(life));
        let unchanged = known.is_some_and(|entry| entry.status == status && entry.life == life);
        if unchanged && !force {
            return;
        }
        let api = entries.remove(&uid).and_then(|entry| entry.api);
        entries.insert(uid, Entry { pod: pod.clone(), status, life, api, dirty: true });
        self.wake.notify_one();
    }

    /// Notes the readiness of a container at once, without waiting for the pod's worker.
    pub fn set_readiness(&self, uid: &str, container_id: &str, ready: bool) {
        let Some((pod, mut status, life)) = self.parts(uid) else { return };
        let all = status.init_container_statuses.iter_mut().chain(status.container_statuses.iter_mut()).flatten();
        let id_of = |status: &ContainerStatus| status.container_id.clone().unwrap_or_default();
        let mut changed = false;
        for container in all.filter(|status| id_of(status).ends_with(container_id)) {
            changed |= container.ready != ready;
            container.ready = ready;
        }
        if changed {
            refresh_ready(&pod, &mut status);
            self.set(&pod, status, life);
        }
    }

    /// Notes why a pod is about to be disrupted; told together with its end.
    pub fn disrupt(&self, uid: &str, condition: PodCondition) {
        let Some((pod, mut status, life)) = self.parts(uid) else { return };
        let list = status.conditions.get_or_insert_default();
        list.retain(|known| known.type_ != condition.type_);
        list.push(condition);
        self.set(&pod, status, life);
    }

    fn parts(&self, uid: &str) -> Option<(Arc<Pod>, PodStatus, Life)> {
        let entries = self.entries.lock();
        let entry = entries.get(uid)?;
        Some((entry.pod.clone(), entry.status.clone(), entry.life))
    }

    /// The last word on a pod: whatever has not ended counts as ended, and the phase becomes terminal.
    pub fn terminate(&self, pod: &Arc<Pod>) {
        let mut status = self.get(pods::uid(pod)).or_else(|| pod.status.clone()).unwrap_or_default();
        if has_initialized(pod, &status) {
            status.container_statuses.iter_mut().flatten().for_each(end);
        }
        let started = status.init_container_statuses.as_deref().map_or(0, started_inits);
        status.init_container_statuses.iter_mut().flatten().take(started).for_each(end);
        if !is_static(pod) && !is_terminal(status.phase.as_deref().unwrap_or_default()) {
            status.phase = Some("Failed".into());
        }
        self.store(pod, status, Life::Finished, true);
    }

    /// Takes note of the API's side of a pod. `uid` is the UID on this node: a mirror's static pod.
    pub fn seen_in_api(&self, uid: &str, pod: &Arc<Pod>) {
        let mut entries = self.entries.lock();
        let Some(entry) = entries.get_mut(uid) else { return };
        let version = version_of(pod);
        if entry.api.as_ref().is_some_and(|api| api.version >= version && pods::uid(&api.pod) == pods::uid(pod)) {
            return;
        }
        entry.api = Some(ApiSide { pod: pod.clone(), version });
        if !is_static(&entry.pod) {
            entry.pod = pod.clone();
        }
        if wanted(entry).is_some() || may_delete(entry) {
            entry.dirty = true;
            self.wake.notify_one();
        }
    }

    /// Forgets pods that are not in `keep`.
    pub fn retain(&self, keep: &HashSet<String>) {
        self.entries.lock().retain(|uid, _| keep.contains(uid));
    }

    /// Forgets a pod.
    pub fn forget(&self, uid: &str) {
        self.entries.lock().remove(uid);
    }

    /// Everything that the API has not heard of.
    fn take_dirty(&self) -> Vec<String> {
        let mut entries = self.entries.lock();
        entries.iter_mut().filter_map(|(uid, entry)| std::mem::take(&mut entry.dirty).then(|| uid.clone())).collect()
    }

    fn mark(&self, uid: &str) {
        if let Some(entry) = self.entries.lock().get_mut(uid) {
            entry.dirty = true;
        }
    }

    /// Sends what changed, as it changes, and again every ten seconds what could not be sent.
    pub async fn run(self: Arc<Self>, client: kube::Client) {
        let mut retry = tokio::time::interval(Duration::from_secs(10));
        loop {
            tokio::select! {
                () = self.wake.notified() => {}
                _ = retry.tick() => {}
            }
            use futures::StreamExt;
            let sends = self.take_dirty().into_iter().map(|uid| self.send(client.clone(), uid));
            futures::stream::iter(sends).buffer_unordered(16).collect::<Vec<()>>().await;
        }
    }

    async fn send(&self, client: kube::Client, uid: String) {
        match self.try_send(client, &uid).await {
            Ok(()) => {}
            Err(kube::Error::Api(status)) if status.code == 404 => {
                debug!(uid, "the pod is not in the API; its status is kept until the kubelet drops the pod");
            }
            Err(error) => {
                warn!(uid, %error, "can't update the status of a pod; trying again");
                self.mark(&uid);
            }
        }
    }

    async fn try_send(&self, client: kube::Client, uid: &str) -> kube::Result<()> {
        let Some((api_pod, body)) = ({
            let entries = self.entries.lock();
            entries.get(uid).and_then(|entry| Some((api_side(entry)?, wanted(entry))))
        }) else {
            // A static pod without its mirror: the mirror's arrival brings us back.
            return Ok(());
        };
        let api: Api<Pod> = Api::namespaced(client, pods::namespace(&api_pod));
        let name = pods::name(&api_pod);
        if let Some(body) = body {
            let answer = api.patch_status(name, &PatchParams::default(), &Patch::Strategic(body)).await?;
            self.note_answer(uid, answer);
        }
        let deletable = {
            let entries = self.entries.lock();
            entries.get(uid).filter(|entry| may_delete(entry)).and_then(api_side)
        };
        let Some(api_pod) = deletable else { return Ok(()) };
        let preconditions = Preconditions { uid: api_pod.metadata.uid.clone(), resource_version: None };
        let params = DeleteParams::default().grace_period(0).preconditions(preconditions);
        match api.delete(name, &params).await {
            Ok(_) => Ok(()),
            // Gone, or another pod has the name: both are what was wanted.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn note_answer(&self, uid: &str, answer: Pod) {
        let mut entries = self.entries.lock();
        let Some(entry) = entries.get_mut(uid) else { return };
        let version = version_of(&answer);
        if entry.api.as_ref().is_none_or(|api| api.version <= version) {
            entry.api = Some(ApiSide { pod: Arc::new(answer), version });
        }
    }
}

fn api_side(entry: &Entry) -> Option<Arc<Pod>> {
    match &entry.api {
        Some(api) => Some(api.pod.clone()),
        None => (!is_static(&entry.pod)).then(|| entry.pod.clone()),
    }
}

/// The patch that brings the API's status to ours.
fn wanted(entry: &Entry) -> Option<serde_json::Value> {
    let api = api_side(entry)?;
    let current = api.status.clone().unwrap_or_default();
    let mut merged = merge(&api, &current, entry.status.clone(), entry.life == Life::MayRun);
    if is_static(&entry.pod) {
        // Generations belong to the mirror.
        merged.observed_generation = api.metadata.generation.or(current.observed_generation);
        for condition in merged.conditions.iter_mut().flatten() {
            condition.observed_generation = api.metadata.generation.filter(|generation| *generation != 0);
        }
    }
    patch(pods::uid(&api), &current, &merged)
}

fn may_delete(entry: &Entry) -> bool {
    entry.life == Life::Finished
        && api_side(entry)
            .is_some_and(|api| pods::is_deleting(&api) && !is_mirror(&api) && is_terminal(pods::phase(&api)))
}

/// Our status over the API's: conditions of others stay, and a terminal phase waits until nothing runs.
pub fn merge(api: &Pod, current: &PodStatus, mut new: PodStatus, may_run: bool) -> PodStatus {
    let phase = |status: &PodStatus| status.phase.clone().unwrap_or_default();
    let ends = !is_terminal(&phase(current)) && is_terminal(&phase(&new));
    let owned = |condition: &PodCondition| OWNED.contains(&condition.type_.as_str());
    let mut list: Vec<PodCondition> = current.conditions.iter().flatten().filter(|c| !owned(c)).cloned().collect();
    let disruption = find(new.conditions.as_ref(), "DisruptionTarget").cloned();
    list.extend(new.conditions.take().into_iter().flatten().filter(owned));
    // The kubelet's own disruption is told only together with the end that it explains.
    if let Some(mut disruption) = disruption.filter(|_| ends && !may_run) {
        let same = |c: &PodCondition| c.type_ == disruption.type_ && c.status == disruption.status;
        if !list.iter().any(same) {
            disruption.last_transition_time = Some(now());
        }
        list.retain(|condition| condition.type_ != "DisruptionTarget");
        list.push(disruption);
    }
    new.conditions = Some(list);
    if ends && may_run {
        new.phase = current.phase.clone();
        new.reason = current.reason.clone();
        new.message = current.message.clone();
    }
    if is_terminal(&phase(&new)) {
        end_ready_conditions(api, &mut new);
    }
    // Fields of others.
    new.resource_claim_statuses = current.resource_claim_statuses.clone();
    new.extended_resource_claim_status = current.extended_resource_claim_status.clone();
    new.node_allocatable_resource_claim_statuses = current.node_allocatable_resource_claim_statuses.clone();
    new.nominated_node_name = current.nominated_node_name.clone();
    new.resize = current.resize.clone();
    new
}

fn end_ready_conditions(api: &Pod, status: &mut PodStatus) {
    let reason = if status.phase.as_deref() == Some("Failed") { "PodFailed" } else { "PodCompleted" };
    for condition in status.conditions.iter_mut().flatten() {
        if matches!(condition.type_.as_str(), "Ready" | "ContainersReady") && condition.status == "True" {
            *condition = conditions::condition(api, &condition.type_.clone(), false, reason, "");
            condition.last_transition_time = Some(now());
        }
    }
}

fn refresh_ready(pod: &Pod, status: &mut PodStatus) {
    let phase = status.phase.clone().unwrap_or_default();
    let old = status.conditions.clone().unwrap_or_default();
    let all: Vec<&ContainerStatus> =
        status.init_container_statuses.iter().chain(status.container_statuses.iter()).flatten().collect();
    let fresh = [conditions::ready(pod, &all, &phase, &old), conditions::containers_ready(pod, &all, &phase)];
    for new in fresh {
        for condition in status.conditions.iter_mut().flatten().filter(|c| c.type_ == new.type_) {
            *condition = new.clone();
        }
    }
}

fn now() -> Time {
    Time(seconds(Timestamp::now()))
}

fn seconds(time: Timestamp) -> Timestamp {
    time.round(jiff::TimestampRound::new().smallest(Unit::Second).mode(jiff::RoundMode::Floor)).unwrap_or(time)
}

/// A condition that keeps its status keeps the time of its last change; the start time never changes.
fn keep_times(status: &mut PodStatus, before: &PodStatus) {
    for condition in status.conditions.iter_mut().flatten() {
        let old = find(before.conditions.as_ref(), &condition.type_).filter(|old| old.status == condition.status);
        match old.and_then(|old| old.last_transition_time.clone()) {
            Some(time) => condition.last_transition_time = Some(time),
            None if condition.last_transition_time.is_none() => condition.last_transition_time = Some(now()),
            None => {}
        }
    }
    status.start_time = before.start_time.clone().or(status.start_time.take()).or_else(|| Some(now()));
    status.observed_generation = status.observed_generation.max(before.observed_generation);
}

/// Times in whole seconds, as the API keeps them, and termination messages cut to their share of 12 KiB.
fn normalize(pod: &Pod, status: &mut PodStatus) {
    let most = 12 * 1024 / pods::places(pod).count().max(1);
    let floor = |time: &mut Option<Time>| {
        if let Some(time) = time {
            time.0 = seconds(time.0);
        }
    };
    floor(&mut status.start_time);
    for condition in status.conditions.iter_mut().flatten() {
        floor(&mut condition.last_probe_time);
        floor(&mut condition.last_transition_time);
    }
    let states = |status: &mut ContainerStatus| [status.state.take(), status.last_state.take()];
    let lists =
        [&mut status.container_statuses, &mut status.init_container_statuses, &mut status.ephemeral_container_statuses];
    for container in lists.into_iter().flatten().flatten() {
        let mut both = states(container);
        for state in both.iter_mut().flatten() {
            if let Some(running) = &mut state.running {
                floor(&mut running.started_at);
            }
            if let Some(terminated) = &mut state.terminated {
                floor(&mut terminated.started_at);
                floor(&mut terminated.finished_at);
                cut(&mut terminated.message, most);
            }
        }
        [container.state, container.last_state] = both;
    }
}

fn cut(text: &mut Option<String>, most: usize) {
    if let Some(text) = text.as_mut().filter(|text| text.len() > most) {
        let end = (0..=most).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(end);
    }
}

fn end(status: &mut ContainerStatus) {
    if status.state.as_ref().is_some_and(|state| state.terminated.is_some()) {
        return;
    }
    let terminated = ContainerStateTerminated {
        reason: Some("ContainerStatusUnknown".into()),
        message: Some("The container could not be located when the pod was terminated".into()),
        exit_code: 137,
        ..Default::default()
    };
    status.state = Some(ContainerState { terminated: Some(terminated), ..Default::default() });
}

fn has_started(status: &ContainerStatus) -> bool {
    let ran = |state: &Option<ContainerState>| {
        state.as_ref().is_some_and(|state| state.running.is_some() || state.terminated.is_some())
    };
    status.restart_count > 0 || ran(&status.state) || ran(&status.last_state)
}

/// Did the pod get past its init containers?
fn has_initialized(pod: &Pod, status: &PodStatus) -> bool {
    if status.container_statuses.iter().flatten().any(has_started) {
        return true;
    }
    let inits = status.init_container_statuses.as_deref().unwrap_or_default();
    if pods::inits(pod).is_empty() {
        return true;
    }
    let done = |status: &ContainerStatus| {
        status.state.as_ref().and_then(|state| state.terminated.as_ref()).is_some_and(|t| t.exit_code == 0)
            || status.started == Some(true)
    };
    inits.len() == pods::inits(pod).len() && inits.last().is_some_and(done)
}

/// How many init containers have certainly run: up to the last that shows it, itself excluded while it is the last.
fn started_inits(statuses: &[ContainerStatus]) -> usize {
    statuses.iter().rposition(has_started).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(status: serde_json::Value) -> Arc<Pod> {
        let value = json!({"metadata": {"name": "p", "namespace": "n", "uid": "u", "resourceVersion": "5"},
            "spec": {"containers": [{"name": "a"}]}, "status": status});
        Arc::new(serde_json::from_value(value).unwrap())
    }

    fn status(value: serde_json::Value) -> PodStatus {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn unchanged_status_is_not_written() {
        let manager = StatusManager::default();
        let pod = pod(json!({}));
        let one = || status(json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}));
        manager.set(&pod, one(), Life::MayRun);
        assert_eq!(manager.take_dirty(), ["u"]);
        manager.set(&pod, one(), Life::MayRun);
        assert!(manager.take_dirty().is_empty());
    }

    #[test]
    fn a_terminal_phase_waits_until_nothing_runs_and_foreign_conditions_stay() {
        let current = json!({"phase": "Running", "conditions": [{"type": "x/y", "status": "True"}]});
        let api = pod(current.clone());
        let new = || {
            status(json!({"phase": "Failed", "reason": "Evicted", "conditions": [
            {"type": "Ready", "status": "True"}, {"type": "DisruptionTarget", "status": "True"}]}))
        };
        let kinds = |status: &PodStatus| -> Vec<String> {
            status.conditions.iter().flatten().map(|c| format!("{}={}", c.type_, c.status)).collect()
        };
        let running = merge(&api, &status(current.clone()), new(), true);
        assert_eq!((running.phase.as_deref(), running.reason.as_deref()), (Some("Running"), None));
        assert_eq!(kinds(&running), ["x/y=True", "Ready=True"]);
        let stopped = merge(&api, &status(current), new(), false);
        assert_eq!(stopped.phase.as_deref(), Some("Failed"));
        assert_eq!(kinds(&stopped), ["x/y=True", "Ready=False", "DisruptionTarget=True"]);
    }

    #[test]
    fn disruption_target_survives_later_statuses() {
        let current =
            json!({"phase": "Failed", "conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "r"}]});
        let merged = merge(&pod(current.clone()), &status(current), status(json!({"phase": "Failed"})), false);
        assert_eq!(find(merged.conditions.as_ref(), "DisruptionTarget").unwrap().reason.as_deref(), Some("r"));
    }

    #[test]
    fn the_end_of_a_pod_leaves_no_container_running() {
        let manager = StatusManager::default();
        let running = json!({"phase": "Running", "containerStatuses": [{"name": "a", "image": "", "imageID": "",
            "ready": true, "restartCount": 0, "state": {"running": {}}}]});
        let pod = pod(running);
        manager.terminate(&pod);
        let status = manager.get("u").unwrap();
        assert_eq!(status.phase.as_deref(), Some("Failed"));
        let state = status.container_statuses.unwrap()[0].state.clone().unwrap();
        assert_eq!(state.terminated.unwrap().exit_code, 137);
    }

    #[test]
    fn the_object_goes_only_after_the_api_knows_the_end() {
        let entry = |life, phase: &str, deleting: bool| {
            let mut value =
                json!({"metadata": {"name": "p", "uid": "u"}, "spec": {"containers": []}, "status": {"phase": phase}});
            if deleting {
                value["metadata"]["deletionTimestamp"] = json!("2024-01-01T00:00:00Z");
            }
            let pod: Arc<Pod> = Arc::new(serde_json::from_value(value).unwrap());
            Entry { pod, status: PodStatus::default(), life, api: None, dirty: false }
        };
        assert!(may_delete(&entry(Life::Finished, "Failed", true)));
        assert!(!may_delete(&entry(Life::Finished, "Running", true)));
        assert!(!may_delete(&entry(Life::Stopped, "Failed", true)));
        assert!(!may_delete(&entry(Life::Finished, "Failed", false)));
    }
}

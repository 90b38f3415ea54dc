//! One round of work on a pod that shall run.

use super::context::Context;
use super::kill;
use super::start::{self, Parts};
use crate::events::Level;
use crate::images::StartError;
use crate::pods::{self, Kind, Place, is_sidecar, is_terminal};
use crate::runtime::plan::{Action, View, Why, plan};
use crate::runtime::state::{PodState, Sandbox, State};
use crate::status::containers::Reasons;
use crate::status::generate::restarts_all;
use crate::status::manager::Life;
use crate::volumes::{Ready, pod_dir};
use base::clock::format_duration;
use jiff::Timestamp;
use k8s_cri::v1;
use k8s_openapi::api::core::v1::{Pod, PodStatus, Secret};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// When a pod is looked at again after something was done to it.
const SOON: Duration = Duration::from_millis(300);

/// How a round ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Round {
    /// The pod is over; it is to be taken down.
    Over,
    /// All is as it shall be, until then.
    Settled(Instant),
    /// Something failed; again soon.
    Failed,
}

/// One round: look, tell, make ready, act, tell again.
pub async fn round(ctx: &Context, pod: &Arc<Pod>, reasons: &mut Reasons, cancel: &CancellationToken) -> Round {
    match try_round(ctx, pod, reasons, cancel).await {
        Ok(round) => round,
        Err(error) => {
            tracing::warn!(pod = pods::describe(pod), error, "error syncing pod, skipping");
            Round::Failed
        }
    }
}

async fn try_round(
    ctx: &Context, pod: &Arc<Pod>, reasons: &mut Reasons, cancel: &CancellationToken,
) -> Result<Round, String> {
    let uid = pods::uid(pod);
    let state = observe(ctx, uid).await?;
    settle_resize(ctx, pod, &state);
    let status = ctx.status(pod, &state, reasons, false, None);
    let over = is_terminal(status.phase.as_deref().unwrap_or_default());
    let (before, now) = (ctx.statuses.read(uid, started).unwrap_or_default(), started(&status));
    ctx.statuses.set(pod, status, Life::MayRun);
    if over {
        return Ok(Round::Over);
    }
    if now > before {
        // A startup probe has held: readiness is asked for now, not at the end of its period.
        ctx.probes.poke(uid);
    }
    if let Some(why) = deadline_passed(ctx, pod) {
        ctx.events.pod(pod, Level::Normal, "DeadlineExceeded", why);
        let text = "Pod was active on the node longer than the specified deadline";
        let status = ctx.status(pod, &state, reasons, false, Some(("DeadlineExceeded", text)));
        ctx.statuses.set(pod, status, Life::MayRun);
        return Ok(Round::Over);
    }
    check_network(ctx, pod)?;
    ctx.objects.register(pod);
    if let Some(groups) = &ctx.cgroups
        && !groups.exists(pod)
    {
        groups.ensure(pod).map_err(|error| {
            let text = format!("unable to ensure pod container exists: {error}");
            ctx.events.pod(pod, Level::Warning, "FailedCreatePodContainer", &text);
            text
        })?;
    }
    if let Some(mirrors) = &ctx.mirrors {
        mirrors.reconcile(pod).await;
        if let Some(mirror) = mirrors.of(pod).filter(|_| pods::is_static(pod)) {
            ctx.statuses.seen_in_api(uid, &mirror);
        }
    }
    let dir = pod_dir(ctx.volumes.root(), uid);
    std::fs::create_dir_all(dir.join("volumes")).map_err(|error| {
        ctx.events.pod(pod, Level::Warning, "Failed", format!("error making pod data directories: {error}"));
        error.to_string()
    })?;
    let volumes = volumes(ctx, pod, &state).await?;
    let pull_secrets = ctx.pull_secrets(pod).await;
    ctx.probes.add(pod);

    let actions = actions(ctx, pod, &state);
    let acted = actions.iter().any(|action| !matches!(action, Action::BackOff { .. }));
    let shown = reasons.clone();
    let mut run = Run { ctx, pod, reasons, cancel, volumes: &volumes, pull_secrets: &pull_secrets };
    let wake = run.all(&state, actions).await;
    if acted || shown != *run.reasons {
        // What was just done shows at once, not only when the runtime is listed again.
        let after = observe(ctx, uid).await?;
        settle_resize(ctx, pod, &after);
        ctx.statuses.set(pod, ctx.status(pod, &after, reasons, false, None), Life::MayRun);
        ctx.probes.poke(uid);
        ctx.relist.notify_one();
    }
    Ok(match wake {
        Wake::Failed => Round::Failed,
        Wake::Again => Round::Settled(Instant::now()),
        // What was just started may already have ended: short steps follow each other without the next listing.
        Wake::At(at) if acted => Round::Settled(next(ctx, pod, at).min(Instant::now() + SOON)),
        Wake::At(at) => Round::Settled(next(ctx, pod, at)),
    })
}

/// How many containers have started.
fn started(status: &PodStatus) -> usize {
    let all = status.init_container_statuses.iter().chain(&status.container_statuses).flatten();
    all.filter(|container| container.started == Some(true)).count()
}

async fn observe(ctx: &Context, uid: &str) -> Result<PodState, String> {
    ctx.cri.observe(uid).await.map_err(|error| error.with_code())
}

fn check_network(ctx: &Context, pod: &Pod) -> Result<(), String> {
    match &ctx.health.read().network {
        Some(why) if !pods::host_network(pod) => {
            let text = format!("network is not ready: {why}");
            ctx.events.pod(pod, Level::Warning, "NetworkNotReady", &text);
            Err(text)
        }
        _ => Ok(()),
    }
}

/// A pod that has run for as long as it may.
fn deadline_passed(ctx: &Context, pod: &Pod) -> Option<String> {
    let at = deadline(ctx, pod)?;
    (Timestamp::now() >= at).then(|| "Pod was active on the node longer than the specified deadline".into())
}

fn deadline(ctx: &Context, pod: &Pod) -> Option<Timestamp> {
    let seconds = pods::spec(pod).active_deadline_seconds?;
    let status = ctx.statuses.get(pods::uid(pod))?;
    Some(status.start_time?.0 + jiff::SignedDuration::from_secs(seconds))
}

/// When to look again: the given time, a token's renewal, the deadline, or the usual interval.
fn next(ctx: &Context, pod: &Pod, at: Option<Timestamp>) -> Instant {
    let now = Timestamp::now();
    let usual = ctx.resync.mul_f64(rand::random_range(1.0..1.5));
    let until = |at: Timestamp| Duration::try_from(at.duration_since(now)).unwrap_or(Duration::ZERO);
    let others = [at, ctx.volumes.next_refresh(pod), deadline(ctx, pod)];
    let soonest = others.into_iter().flatten().map(until).min().unwrap_or(usual);
    Instant::now() + soonest.min(usual)
}

/// Volumes are made before anything runs; a failure is told for each volume.
async fn volumes(ctx: &Context, pod: &Pod, state: &PodState) -> Result<HashMap<String, Ready>, String> {
    let around = ctx.surroundings(pod, state.ips());
    ctx.volumes.setup(pod, &around).await.map_err(|error| {
        for (name, why) in &error.0 {
            let text = format!("MountVolume.SetUp failed for volume {name:?} : {why}");
            ctx.events.pod(pod, Level::Warning, "FailedMount", text);
        }
        error.to_string()
    })
}

fn actions(ctx: &Context, pod: &Pod, state: &PodState) -> Vec<Action> {
    let old = ctx.statuses.get(pods::uid(pod)).unwrap_or_default();
    let cleaned = pods::inits(pod).iter().chain(pods::apps(pod)).all(|c| state.latest(&c.name).is_none());
    plan(&View {
        pod,
        state,
        probes: &ctx.probes.results(),
        backoff: &ctx.backoff.lock(),
        actuated: &ctx.allocations.actuated_of(pods::uid(pod)),
        restart_all: !cleaned && restarts_all(pod, state, &old),
        now: Timestamp::now(),
    })
}

/// When the plan wants to be made again.
enum Wake {
    At(Option<Timestamp>),
    Again,
    Failed,
}

/// Carries a plan out.
struct Run<'a> {
    ctx: &'a Context,
    pod: &'a Arc<Pod>,
    reasons: &'a mut Reasons,
    cancel: &'a CancellationToken,
    volumes: &'a HashMap<String, Ready>,
    pull_secrets: &'a [Secret],
}

impl Run<'_> {
    /// Stops a container. When the pod shall end meanwhile, it is stopped with what time the end leaves.
    async fn kill(&self, id: &str, name: &str, message: &str, why: Why) -> Result<(), String> {
        let stopped = kill::container(self.ctx, self.pod, id, name, message, why, None);
        self.cancel.run_until_cancelled(stopped).await.unwrap_or(Ok(()))
    }

    async fn all(&mut self, state: &PodState, actions: Vec<Action>) -> Wake {
        let (mut wake, mut failed, mut again) = (None, false, false);
        let mut sandbox = state.sandboxes.first().filter(|sandbox| sandbox.ready).cloned();
        if actions.iter().any(|a| matches!(a, Action::Start(Place { kind: Kind::Init, .. }))) {
            self.prune_inits(state).await;
        }
        let ends = actions.as_slice() == [Action::KillPod];
        for action in actions {
            if self.cancel.is_cancelled() {
                break;
            }
            let done = match action {
                Action::KillPod => self.kill_pod(state, ends).await,
                Action::PurgeInits => self.remove_runs(state, |kind| kind == Kind::Init).await,
                Action::CreateSandbox { attempt } => match self.create_sandbox(attempt).await {
                    Ok(made) => {
                        sandbox = Some(made);
                        self.tell_sandbox().await
                    }
                    Err(error) => Err(error),
                },
                Action::Kill { id, name, message, why } => self.kill(&id, &name, &message, why).await,
                Action::Reset { id, name, running } => {
                    again = true;
                    self.reset(&id, &name, running).await
                }
                Action::Resize { place, id } => self.resize(place, &id).await,
                Action::BackOff { place, until, delay } => {
                    self.back_off(place, delay);
                    wake = Some(wake.map_or(until, |at: Timestamp| at.min(until)));
                    if self.blocks(place) {
                        break;
                    }
                    Ok(())
                }
                Action::Start(place) => match &sandbox {
                    Some(sandbox) => {
                        let started = self.start(state, sandbox, place).await;
                        failed |= started.is_err();
                        if started.is_err() && self.blocks(place) {
                            break;
                        }
                        Ok(())
                    }
                    None => Err("there is no sandbox to start in".into()),
                },
            };
            if let Err(error) = done {
                tracing::warn!(pod = pods::describe(self.pod), error, "a step of the pod's plan failed");
                return Wake::Failed;
            }
        }
        match (failed, again) {
            (true, _) => Wake::Failed,
            (_, true) => Wake::Again,
            _ => Wake::At(wake),
        }
    }

    /// A failed init container holds up all that comes after it; a failed sidecar does not.
    fn blocks(&self, place: Place) -> bool {
        place.kind == Kind::Init && pods::inits(self.pod).get(place.index).is_none_or(|c| !is_sidecar(c))
    }

    async fn kill_pod(&self, state: &PodState, ends: bool) -> Result<(), String> {
        if !ends && !state.sandboxes.is_empty() {
            let text = "Pod sandbox changed, it will be killed and re-created.";
            self.ctx.events.pod(self.pod, Level::Normal, "SandboxChanged", text);
        }
        kill::pod(self.ctx, Some(self.pod), state, None).await
    }

    async fn remove_runs(&self, state: &PodState, which: impl Fn(Kind) -> bool) -> Result<(), String> {
        for run in &state.containers {
            if pods::place_of(self.pod, &run.name).is_some_and(|place| which(place.kind)) {
                self.ctx.cri.remove_container(&run.id).await.map_err(|error| error.with_code())?;
            }
        }
        Ok(())
    }

    /// Of each init container only the last run is kept.
    async fn prune_inits(&self, state: &PodState) {
        for container in pods::inits(self.pod) {
            let ended = |state: State| matches!(state, State::Exited | State::Unknown);
            let runs = state.containers.iter().filter(|run| run.name == container.name && ended(run.state));
            for run in runs.skip(1) {
                if let Err(error) = self.ctx.cri.remove_container(&run.id).await {
                    tracing::warn!(pod = pods::describe(self.pod), %error, "can't remove an old init container");
                }
            }
        }
    }

    async fn reset(&self, id: &str, name: &str, running: bool) -> Result<(), String> {
        if running {
            let text = format!("Container {name} is killed because all containers start over");
            self.kill(id, name, &text, Why::Other).await?;
        }
        self.ctx.cri.remove_container(id).await.map_err(|error| error.with_code())
    }

    async fn create_sandbox(&self, attempt: u32) -> Result<Sandbox, String> {
        let refused = |text: &str| {
            let text = format!("Failed to create pod sandbox: {text}");
            self.ctx.events.pod(self.pod, Level::Warning, "FailedCreatePodSandBox", text);
        };
        let handler = self.ctx.runtime_handler(self.pod).await.inspect_err(|error| refused(error))?;
        let config = self.ctx.sandbox_config(self.pod, attempt).inspect_err(|error| refused(error))?;
        let logs = config.log_directory.clone();
        std::fs::create_dir_all(&logs)
            .map_err(|error| format!("create pod log directory {logs}: {error}"))
            .inspect_err(|error| refused(error))?;
        let id = self.ctx.cri.run_sandbox(config, &handler).await.map_err(|error| {
            let text = error.with_code();
            refused(&text);
            text
        })?;
        match self.ctx.cri.sandbox_status(&id).await {
            Ok(Some(status)) => Ok(Sandbox::from_cri(status)),
            Ok(None) => Err("pod sandbox status is nil".into()),
            Err(error) => {
                let text = format!("Unable to get pod sandbox status: {}", error.with_code());
                self.ctx.events.pod(self.pod, Level::Warning, "FailedPodSandBoxStatus", &text);
                Err(text)
            }
        }
    }

    /// The network is there: that shows before images are pulled, which may take long.
    async fn tell_sandbox(&self) -> Result<(), String> {
        let state = observe(self.ctx, pods::uid(self.pod)).await?;
        self.ctx.statuses.set(self.pod, self.ctx.status(self.pod, &state, self.reasons, false, None), Life::MayRun);
        Ok(())
    }

    async fn start(&mut self, state: &PodState, sandbox: &Sandbox, place: Place) -> Result<(), ()> {
        let name = pods::container_at(self.pod, place).map(|c| c.name).unwrap_or_default();
        let config: v1::PodSandboxConfig = match self.ctx.sandbox_config(self.pod, sandbox.attempt) {
            Ok(config) => config,
            Err(error) => {
                tracing::warn!(pod = pods::describe(self.pod), error, "can't make the sandbox's configuration");
                return Err(());
            }
        };
        let host_ips = self.ctx.surroundings(self.pod, &sandbox.ips).pod_ips;
        let parts = Parts {
            pod: self.pod,
            state,
            sandbox: &sandbox.id,
            sandbox_config: &config,
            pod_ips: &host_ips,
            volumes: self.volumes,
            pull_secrets: self.pull_secrets,
            cancel: self.cancel,
        };
        match start::start(self.ctx, &parts, place).await {
            Ok(()) => {
                self.reasons.remove(&name);
                Ok(())
            }
            Err(StartError { reason, message }) => {
                tracing::info!(
                    pod = pods::describe(self.pod),
                    container = name,
                    reason,
                    message,
                    "container not started"
                );
                self.reasons.insert(name, (reason.into(), message));
                Err(())
            }
        }
    }

    fn back_off(&mut self, place: Place, delay: jiff::SignedDuration) {
        let Some(container) = pods::container_at(self.pod, place) else { return };
        let (name, pod) = (&container.name, pods::describe(self.pod));
        let text = format!("Back-off restarting failed container {name} in pod {pod}");
        self.ctx.events.container(self.pod, name, Level::Warning, "BackOff", text);
        let delay = format_duration(delay.unsigned_abs());
        let message = format!("back-off {delay} restarting failed container={name} pod={pod}");
        self.reasons.insert(name.clone(), ("CrashLoopBackOff".into(), message));
    }

    /// Brings a running container and its pod's group to the granted resources.
    async fn resize(&self, place: Place, id: &str) -> Result<(), String> {
        let Some(container) = pods::container_at(self.pod, place) else { return Ok(()) };
        let linux = crate::runtime::resources::of_container(&self.ctx.rules, self.pod, &container);
        // The group of the pod is widened before its containers, and narrowed after them; setting it twice does both.
        let group = || match &self.ctx.cgroups {
            Some(groups) => groups.update(self.pod).map_err(|error| error.to_string()),
            None => Ok(()),
        };
        let widened = group();
        let updated = self.ctx.cri.update_resources(id, linux).await.map_err(|error| error.with_code());
        if let Err(error) = updated {
            self.ctx.allocations.failed(pods::uid(self.pod), &error);
            return Err(error);
        }
        widened.or_else(|_| group())?;
        let resources = container.resources.clone().unwrap_or_default();
        self.ctx.allocations.actuated(pods::uid(self.pod), &container.name, resources);
        Ok(())
    }
}

/// Notes whether what was granted is in force.
fn settle_resize(ctx: &Context, pod: &Arc<Pod>, state: &PodState) {
    if let Some(text) = ctx.allocations.settle(pod, state) {
        ctx.events.pod(pod, Level::Normal, "ResizeCompleted", text);
    }
}

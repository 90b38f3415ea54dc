//! Stopping containers: hooks inside the grace period, sidecars after the rest, and never less than two seconds.

use super::context::Context;
use crate::events::Level;
use crate::hooks;
use crate::pods::{self, is_sidecar};
use crate::runtime::labels::Notes;
use crate::runtime::plan::Why;
use crate::runtime::state::{PodState, State};
use futures::future::join_all;
use k8s_openapi::api::core::v1::{Container, Lifecycle, Pod, Probe};
use std::collections::HashMap;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// A container gets at least this long, so that it is not killed at once.
const LEAST_GRACE: i64 = 2;

/// Seconds that a container gets, before hooks.
fn grace(pod: &Pod, container: &Container, why: Why) -> i64 {
    if let Some(asked) = pod.metadata.deletion_grace_period_seconds {
        return asked;
    }
    let of = |probe: &Option<Probe>| probe.as_ref().and_then(|probe| probe.termination_grace_period_seconds);
    let own = match why {
        Why::Startup => of(&container.startup_probe),
        Why::Liveness => of(&container.liveness_probe),
        Why::PostStart | Why::Other => None,
    };
    own.or(pods::spec(pod).termination_grace_period_seconds).unwrap_or(LEAST_GRACE)
}

/// Who must end before whom: sidecars wait for the app containers and for the sidecars after them.
struct Order {
    ended: HashMap<String, watch::Sender<bool>>,
    waits_for: HashMap<String, Vec<watch::Receiver<bool>>>,
}

impl Order {
    fn new(pod: &Pod, running: &[&str]) -> Self {
        let mut ended = HashMap::new();
        let mut waits_for: HashMap<String, Vec<watch::Receiver<bool>>> = HashMap::new();
        let mut add = |name: &str| {
            let (send, receive) = watch::channel(!running.contains(&name));
            ended.insert(name.to_owned(), send);
            receive
        };
        let mains: Vec<_> = pods::apps(pod).iter().map(|container| add(&container.name)).collect();
        let mut later: Option<watch::Receiver<bool>> = None;
        for sidecar in pods::inits(pod).iter().rev().filter(|container| is_sidecar(container)) {
            let own = add(&sidecar.name);
            waits_for.insert(sidecar.name.clone(), mains.iter().cloned().chain(later.take()).collect());
            later = Some(own);
        }
        Self { ended, waits_for }
    }

    /// Waits for the container's turn, at most so long.
    async fn turn(&self, name: &str, most: Duration) {
        let Some(others) = self.waits_for.get(name) else { return };
        let all = join_all(others.iter().cloned().map(|mut other| async move {
            // A sender that is gone belongs to a container that is gone.
            let _ = other.wait_for(|ended| *ended).await;
        }));
        // When the time is up the container ends all the same.
        let _ = tokio::time::timeout(most, all).await;
    }

    fn done(&self, name: &str) {
        if let Some(ended) = self.ended.get(name) {
            ended.send_replace(true);
        }
    }
}

/// What is known of a container that shall stop: from its pod, or from its own annotations.
struct Target {
    pod: Pod,
    container: Container,
}

async fn target(ctx: &Context, pod: Option<&Pod>, id: &str, name: &str) -> Result<Target, String> {
    if let Some(pod) = pod {
        let place = pods::place_of(pod, name).and_then(|place| pods::container_at(pod, place));
        if let Some(container) = place {
            return Ok(Target { pod: pod.clone(), container });
        }
    }
    let status = ctx.cri.container_status(id).await.map_err(|error| error.with_code())?;
    let status = status.ok_or_else(|| format!("container {id} is gone"))?;
    let notes = Notes::read(&status.annotations);
    let label = |key: &str| status.labels.get(key).cloned();
    let mut restored = pod.cloned().unwrap_or_default();
    restored.metadata.name = label(crate::runtime::labels::POD_NAME);
    restored.metadata.namespace = label(crate::runtime::labels::POD_NAMESPACE);
    restored.metadata.uid = label(crate::runtime::labels::POD_UID);
    restored.metadata.deletion_grace_period_seconds =
        restored.metadata.deletion_grace_period_seconds.or(notes.deletion_grace);
    let spec = restored.spec.get_or_insert_default();
    spec.termination_grace_period_seconds = spec.termination_grace_period_seconds.or(notes.termination_grace);
    let container = Container {
        name: name.to_owned(),
        ports: notes.ports,
        lifecycle: notes.pre_stop.map(|hook| Lifecycle { pre_stop: Some(hook), ..Default::default() }),
        ..Default::default()
    };
    Ok(Target { pod: restored, container })
}

/// Stops one container. `message` is what the event says; `only` overrides the grace period.
pub async fn container(
    ctx: &Context, pod: &Pod, id: &str, name: &str, message: &str, why: Why, only: Option<i64>,
) -> Result<(), String> {
    stop(ctx, Some(pod), id, name, message, why, only, None).await
}

#[allow(clippy::too_many_arguments)] // one place joins all that decides on a stop
async fn stop(
    ctx: &Context, pod: Option<&Pod>, id: &str, name: &str, message: &str, why: Why, only: Option<i64>,
    order: Option<&Order>,
) -> Result<(), String> {
    let Target { pod, container } = target(ctx, pod, id, name).await?;
    let text = if message.is_empty() { format!("Stopping container {name}") } else { message.to_owned() };
    ctx.events.container(&pod, name, Level::Normal, "Killing", text);
    let mut left = only.unwrap_or_else(|| grace(&pod, &container, why));
    let hook = container.lifecycle.as_ref().and_then(|lifecycle| lifecycle.pre_stop.as_ref());
    if let Some(hook) = hook.filter(|_| left > 0) {
        let start = Instant::now();
        let budget = Duration::from_secs(left as u64);
        match tokio::time::timeout(budget, hooks::run(&ctx.cri, &ctx.events, &pod, &container, id, hook)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(pod = pods::describe(&pod), container = name, error, "preStop hook failed");
                // The error is not told: it may hold what only the pod's owner should see.
                ctx.events.container(&pod, name, Level::Warning, "FailedPreStopHook", "PreStopHook failed");
            }
            Err(_) => {
                tracing::info!(pod = pods::describe(&pod), container = name, "preStop hook outlasted the grace period")
            }
        }
        left -= start.elapsed().as_secs() as i64;
    }
    if let Some(order) = order.filter(|_| left > 0) {
        let start = Instant::now();
        order.turn(name, Duration::from_secs(left as u64)).await;
        left -= start.elapsed().as_secs() as i64;
    }
    let stopped = ctx.cri.stop_container(id, left.max(LEAST_GRACE)).await.map_err(|error| error.with_code());
    if let Some(order) = order {
        order.done(name);
    }
    stopped
}

/// Stops all running containers of a pod side by side, and then its sandboxes.
pub async fn pod(ctx: &Context, pod: Option<&Pod>, state: &PodState, only: Option<i64>) -> Result<(), String> {
    let running: Vec<_> =
        state.containers.iter().filter(|c| matches!(c.state, State::Running | State::Unknown)).collect();
    let names: Vec<&str> = running.iter().map(|container| container.name.as_str()).collect();
    let order = pod.filter(|pod| pods::has_sidecar(pod)).map(|pod| Order::new(pod, &names));
    let order = order.as_ref();
    let stops = running.iter().map(|c| stop(ctx, pod, &c.id, &c.name, "", Why::Other, only, order));
    let mut failed: Vec<String> = join_all(stops).await.into_iter().filter_map(Result::err).collect();
    for sandbox in &state.sandboxes {
        if let Err(error) = ctx.cri.stop_sandbox(&sandbox.id).await {
            failed.push(error.with_code());
        }
    }
    match failed.is_empty() {
        true => Ok(()),
        false => Err(failed.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn sample() -> Pod {
        serde_json::from_value(json!({"spec": {"terminationGracePeriodSeconds": 30,
            "initContainers": [{"name": "s1", "restartPolicy": "Always"}, {"name": "s2", "restartPolicy": "Always"}],
            "containers": [{"name": "a", "livenessProbe": {"terminationGracePeriodSeconds": 5}}]}}))
        .unwrap()
    }

    #[test]
    fn the_grace_period_is_the_deletions_the_probes_or_the_pods() {
        let mut pod = sample();
        let of = |pod: &Pod, why| grace(pod, &pods::apps(pod)[0], why);
        assert_eq!(of(&pod, Why::Other), 30);
        assert_eq!(of(&pod, Why::Liveness), 5);
        assert_eq!(of(&pod, Why::Startup), 30);
        pod.metadata.deletion_grace_period_seconds = Some(1);
        assert_eq!(of(&pod, Why::Liveness), 1);
    }

    #[tokio::test]
    async fn sidecars_end_after_the_app_and_the_later_one_first() {
        let order = Order::new(&sample(), &["a", "s1", "s2"]);
        let short = Duration::from_millis(20);
        let turned = async |name: &str| {
            let others = order.waits_for.get(name).cloned().unwrap_or_default();
            order.turn(name, short).await;
            others.iter().all(|other| *other.borrow())
        };
        assert!(turned("a").await);
        assert!(!turned("s2").await);
        order.done("a");
        assert!(turned("s2").await);
        assert!(!turned("s1").await);
        order.done("s2");
        assert!(turned("s1").await);
    }
}

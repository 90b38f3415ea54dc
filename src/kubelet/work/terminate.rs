//! Taking a pod down: its containers stop within their grace, its volumes and groups go, and the last status is told.

use super::context::Context;
use super::kill;
use crate::events::Level;
use crate::pods;
use crate::status::containers::Reasons;
use crate::status::manager::Life;
use k8s_openapi::api::core::v1::Pod;
use std::sync::Arc;

/// How a pod shall end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ending {
    /// Overrides the grace period.
    pub grace: Option<i64>,
    /// Makes the pod fail: reason and message.
    pub eviction: Option<(String, String)>,
}

/// Stops everything of a pod. `pod` is missing for one that only the runtime still knows.
pub async fn stop(
    ctx: &Context, uid: &str, pod: Option<&Arc<Pod>>, ending: &Ending, reasons: &Reasons,
) -> Result<(), String> {
    let eviction = ending.eviction.as_ref().map(|(reason, message)| (reason.as_str(), message.as_str()));
    let state = ctx.cri.observe(uid).await.map_err(|error| error.with_code())?;
    if let Some(pod) = pod {
        ctx.statuses.set(pod, ctx.status(pod, &state, reasons, false, eviction), Life::MayRun);
    }
    ctx.probes.stop_restarting(uid);
    if let Err(error) = kill::pod(ctx, pod.map(Arc::as_ref), &state, ending.grace).await {
        if let Some(pod) = pod {
            ctx.events.pod(pod, Level::Warning, "FailedKillPod", format!("error killing pod: {error}"));
        }
        return Err(error);
    }
    ctx.probes.remove(uid);
    let after = ctx.cri.observe(uid).await.map_err(|error| error.with_code())?;
    if after.any_running() {
        return Err("containers still run after they were stopped".into());
    }
    if let Some(pod) = pod {
        ctx.statuses.set(pod, ctx.status(pod, &after, reasons, true, eviction), Life::Stopped);
    }
    Ok(())
}

/// Removes what a stopped pod leaves on the node, logs and ended containers excepted. Err: not yet.
pub async fn clean(ctx: &Context, uid: &str, pod: Option<&Arc<Pod>>) -> Result<(), String> {
    ctx.volumes.teardown(uid).map_err(|error| format!("can't remove the pod's volumes: {error}"))?;
    ctx.objects.unregister(uid);
    if let Some(groups) = &ctx.cgroups
        && !groups.remove(uid).map_err(|error| format!("can't remove the pod's control groups: {error}"))?
    {
        return Err("the pod's control groups are still in use".into());
    }
    ctx.images.forget(uid);
    ctx.backoff.lock().forget(&format!("{uid}/"));
    ctx.allocations.forget(uid);
    if let Some(pod) = pod {
        ctx.statuses.terminate(pod);
        tracing::debug!(pod = pods::describe(pod), "pod has ended");
    }
    Ok(())
}

//! Life-cycle hooks: what runs after a container's start and before its stop.

use crate::events::{Events, Level};
use crate::pods;
use crate::probes::http::{Fault, Target, get};
use crate::runtime::cri::Cri;
use http::header;
use k8s_openapi::api::core::v1::{Container, LifecycleHandler, Pod};
use std::time::Duration;

/// Hooks have no time limit of their own: a grace period or the pod's end cuts them short.
const LONG: Duration = Duration::from_secs(24 * 3600);

/// Runs a hook in or against a container. The error is for the container's status, not for events: it may tell secrets.
pub async fn run(
    cri: &Cri, events: &Events, pod: &Pod, container: &Container, id: &str, hook: &LifecycleHandler,
) -> Result<(), String> {
    let what = format!("for Container {:?} in Pod {:?} failed", container.name, pods::describe(pod));
    if let Some(exec) = &hook.exec {
        let command = exec.command.clone().unwrap_or_default();
        let failed = |error: &str, output: &str| {
            format!("Exec lifecycle hook ([{}]) {what} - error: {error}, message: {output:?}", command.join(" "))
        };
        return match cri.exec_sync(id, &command, Duration::ZERO).await {
            Ok(answer) if answer.exit_code == 0 => Ok(()),
            Ok(answer) => {
                let mut output = answer.stdout;
                output.extend(answer.stderr);
                let error = format!("command '{}' exited with {}", command.join(" "), answer.exit_code);
                Err(failed(&error, &String::from_utf8_lossy(&output)))
            }
            Err(error) => Err(failed(&error.with_code(), "")),
        };
    }
    if let Some(action) = &hook.http_get {
        let pod_ip = pod_ip(cri, pod).await;
        let target = pod_ip.and_then(|ip| Target::of(action, container, &ip, "lifecycle"));
        let result = match target {
            Ok(target) => http(events, pod, target).await,
            Err(error) => Err(error),
        };
        let path = action.path.as_deref().unwrap_or_default();
        return result.map_err(|error| format!("HTTP lifecycle hook ({path}) {what} - error: {error}"));
    }
    if let Some(sleep) = &hook.sleep {
        tokio::time::sleep(Duration::from_secs(sleep.seconds.max(0) as u64)).await;
        return Ok(());
    }
    Err(format!("Cannot run handler: invalid handler: {hook:?}"))
}

async fn pod_ip(cri: &Cri, pod: &Pod) -> Result<String, String> {
    let state = cri
        .observe(pods::uid(pod))
        .await
        .map_err(|error| format!("unable to get pod status, event handlers may be invalid: {}", error.with_code()))?;
    if let Some(ip) = state.ips().first() {
        return Ok(ip.clone());
    }
    // On the node's network the pod has the node's address.
    let status = pod.status.as_ref().and_then(|status| status.host_ip.clone());
    status.filter(|_| pods::host_network(pod)).ok_or_else(|| "failed to find networking container".into())
}

/// Any answer will do, whatever its status. A hook for HTTPS that meets plain HTTP is sent again in the clear.
async fn http(events: &Events, pod: &Pod, mut target: Target) -> Result<(), String> {
    match get(&target, LONG).await {
        Ok(_) => Ok(()),
        Err(Fault::Other(error)) => Err(format!("Get {:?}: {error}", target.url())),
        Err(Fault::PlainHttp) => {
            target.https = false;
            target.headers.remove(header::AUTHORIZATION);
            let host = crate::probes::dial::join(&target.host, target.port);
            match get(&target, LONG).await {
                Ok(_) => {
                    let text =
                        format!("request to HTTPS lifecycle hook {host} got HTTP response, retry with HTTP succeeded");
                    events.pod(pod, Level::Warning, "LifecycleHTTPFallback", text);
                    Ok(())
                }
                Err(_) => Err(format!("Get \"https://{host}\": http: server gave HTTP response to HTTPS client")),
            }
        }
    }
}

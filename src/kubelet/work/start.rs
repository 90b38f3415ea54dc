//! Starting a container: image, environment, mounts, create, start, hook.

use super::context::Context;
use super::{kill, mounts};
use crate::events::Level;
use crate::hooks;
use crate::images::StartError;
use crate::pods::env::{self, Sources};
use crate::pods::{self, Kind, Place};
use crate::runtime::plan::{Why, backoff_key};
use crate::runtime::security::ImageUser;
use crate::runtime::spec::{self, ContainerParts, log_path, pod_log_dir, restart_count_from_logs};
use crate::runtime::state::{PodState, State};
use crate::volumes::Ready;
use jiff::Timestamp;
use k8s_cri::v1;
use k8s_openapi::api::core::v1::{Container, Pod, Secret};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// What the containers of a pod are started with.
pub struct Parts<'a> {
    /// The pod.
    pub pod: &'a Arc<Pod>,
    /// What the runtime held before.
    pub state: &'a PodState,
    /// The sandbox to start in.
    pub sandbox: &'a str,
    /// Its configuration.
    pub sandbox_config: &'a v1::PodSandboxConfig,
    /// The pod's addresses.
    pub pod_ips: &'a [String],
    /// The pod's volumes.
    pub volumes: &'a HashMap<String, Ready>,
    /// Secrets for pulling.
    pub pull_secrets: &'a [Secret],
    /// Set when the pod shall end: long waits are given up then.
    pub cancel: &'a CancellationToken,
}

/// Starts a container. Every failure has been told as an event when this returns.
pub async fn start(ctx: &Context, parts: &Parts<'_>, place: Place) -> Result<(), StartError> {
    let Some(container) = pods::container_at(parts.pod, place) else {
        return Err(StartError::new("CreateContainerConfigError", "the container is no longer in the spec"));
    };
    count_crash(ctx, parts, &container);
    let tell = |text: String| ctx.events.container(parts.pod, &container.name, Level::Warning, "Failed", text);
    let ensured = ctx.images.ensure(parts.pod, &container, parts.pull_secrets, parts.sandbox_config);
    let image = match parts.cancel.run_until_cancelled(ensured).await {
        Some(Ok(image)) => image,
        Some(Err(error)) => {
            tell(format!("Error: {}", error.reason));
            return Err(error);
        }
        None => return Err(StartError::new("ContainerCreating", "the pod is ending")),
    };
    let config = configure(ctx, parts, place, &container, image).await.map_err(|message| {
        tell(format!("Error: {message}"));
        StartError::new("CreateContainerConfigError", message)
    })?;
    let log = Path::new(&parts.sandbox_config.log_directory).join(&config.log_path);
    let resources = container.resources.clone().unwrap_or_default();
    ctx.allocations.actuated(pods::uid(parts.pod), &container.name, resources);
    let id = ctx.cri.create_container(parts.sandbox, config, parts.sandbox_config.clone()).await.map_err(|error| {
        tell(format!("Error: {error}"));
        StartError::new("CreateContainerError", error.to_string())
    })?;
    ctx.events.container(parts.pod, &container.name, Level::Normal, "Created", "Container created");
    ctx.cri.start_container(&id).await.map_err(|error| {
        tell(format!("Error: {}", error.to_string().replace(&id, &container.name)));
        StartError::new("RunContainerError", error.to_string())
    })?;
    ctx.events.container(parts.pod, &container.name, Level::Normal, "Started", "Container started");
    link_log(ctx, parts.pod, &container.name, &id, &log);
    post_start(ctx, parts, &container, &id).await
}

/// A start after an end is a step of the crash loop.
fn count_crash(ctx: &Context, parts: &Parts<'_>, container: &Container) {
    let ended = parts.state.containers.iter().find(|run| run.name == container.name && run.state == State::Exited);
    if let Some(run) = ended {
        let key = backoff_key(parts.pod, container);
        ctx.backoff.lock().step(&key, run.finished.unwrap_or(run.created), Timestamp::now());
    }
}

async fn post_start(ctx: &Context, parts: &Parts<'_>, container: &Container, id: &str) -> Result<(), StartError> {
    let Some(hook) = container.lifecycle.as_ref().and_then(|lifecycle| lifecycle.post_start.as_ref()) else {
        return Ok(());
    };
    let hook = hooks::run(&ctx.cri, &ctx.events, parts.pod, container, id, hook);
    let Some(Err(message)) = parts.cancel.run_until_cancelled(hook).await else { return Ok(()) };
    ctx.events.container(parts.pod, &container.name, Level::Warning, "FailedPostStartHook", "PostStartHook failed");
    let killed =
        kill::container(ctx, parts.pod, id, &container.name, "FailedPostStartHook", Why::PostStart, None).await;
    if let Err(error) = killed {
        tracing::warn!(
            pod = pods::describe(parts.pod),
            container = container.name,
            error,
            "can't kill after a failed hook"
        );
    }
    Err(StartError::new("PostStartHookError", message))
}

/// How often the container ran before: from the runtime, else from the log files it left.
fn restart_count(parts: &Parts<'_>, container: &Container, logs: &Path) -> i32 {
    if let Some(run) = parts.state.latest(&container.name) {
        return run.restart_count + 1;
    }
    let entries = std::fs::read_dir(logs.join(&container.name)).into_iter().flatten().flatten();
    restart_count_from_logs(entries.map(|entry| entry.file_name().to_string_lossy().into_owned()))
}

async fn configure(
    ctx: &Context, parts: &Parts<'_>, place: Place, container: &Container, image: String,
) -> Result<v1::ContainerConfig, String> {
    let pod = parts.pod;
    let logs = pod_log_dir(&ctx.log_root, pod);
    let restart_count = restart_count(parts, container, &logs);
    let target = match place.kind {
        Kind::Ephemeral => target(parts, place)?,
        _ => None,
    };
    let env = environment(ctx, parts, container).await?;
    let wanted = mounts::Parts { volumes: parts.volumes, env: &env, pod_ips: parts.pod_ips };
    let mounts = mounts::all(ctx, pod, container, &wanted)?;
    let found = ctx.cri.image(&image).await.map_err(|error| error.to_string())?;
    let image_user = match found {
        Some(found) => match (found.uid, found.username) {
            (Some(uid), _) => ImageUser::Id(uid.value),
            (None, name) if !name.is_empty() => ImageUser::Name(name),
            _ => ImageUser::Id(0),
        },
        None => ImageUser::Id(0),
    };
    let dir = logs.join(&container.name);
    std::fs::create_dir_all(&dir)
        .map_err(|error| format!("create container log directory for container {} failed: {error}", container.name))?;
    spec::container(
        pod,
        container,
        ContainerParts {
            place,
            restart_count,
            image_ref: image,
            image_user,
            env,
            mounts,
            target,
            security: &ctx.security,
            rules: &ctx.rules,
        },
    )
}

/// The container whose processes an ephemeral one shares.
fn target(parts: &Parts<'_>, place: Place) -> Result<Option<String>, String> {
    let name = pods::ephemerals(parts.pod).get(place.index).and_then(|c| c.target_container_name.as_deref());
    let Some(name) = name.filter(|name| !name.is_empty()) else { return Ok(None) };
    match parts.state.latest(name) {
        Some(run) => Ok(Some(run.id.clone())),
        None => Err(format!("unable to find target container {name}")),
    }
}

async fn environment(ctx: &Context, parts: &Parts<'_>, container: &Container) -> Result<Vec<(String, String)>, String> {
    let pod = parts.pod;
    let namespace = pods::namespace(pod);
    let (maps, secrets) = env::references(container);
    let (mut config_maps, mut secret_map) = (HashMap::new(), HashMap::new());
    // Without an API server the maps stay empty, and the environment says what is missing.
    if ctx.objects.connected() {
        for name in maps {
            let found = ctx.objects.config_map(namespace, &name).await?;
            config_maps.insert(name, found);
        }
        for name in secrets {
            let found = ctx.objects.secret(namespace, &name).await?;
            secret_map.insert(name, found);
        }
    }
    let services = match pods::is_static(pod) {
        // A static pod may be what the API server needs to come up.
        true => ctx.objects.services_now(),
        false => ctx.objects.services().await?,
    };
    let volumes: HashMap<String, PathBuf> =
        parts.volumes.iter().map(|(name, ready)| (name.clone(), ready.path.clone())).collect();
    let around = ctx.surroundings(pod, parts.pod_ips);
    let sources = Sources {
        config_maps: &config_maps,
        secrets: &secret_map,
        services: &services,
        around: &around,
        volumes: &volumes,
    };
    env::environment(pod, container, &sources)
}

/// Links the log under its old name, where log shippers look for it.
fn link_log(ctx: &Context, pod: &Pod, container: &str, id: &str, log: &Path) {
    let link = legacy_link(&ctx.log_root, pods::name(pod), pods::namespace(pod), container, id);
    let Some(dir) = link.parent() else { return };
    let made = std::fs::create_dir_all(dir).and_then(|()| std::os::unix::fs::symlink(log, &link));
    if let Err(error) = made {
        tracing::warn!(link = %link.display(), %error, "can't link a container's log");
    }
}

/// `<logs>/containers/<pod>_<namespace>_<container>-<id>.log`, cut where a file's name would be too long.
pub fn legacy_link(log_root: &Path, pod: &str, namespace: &str, container: &str, id: &str) -> PathBuf {
    let dir = log_root.parent().unwrap_or(log_root).join("containers");
    let most = 255 - ".log".len();
    let mut name = format!("{pod}_{namespace}_{container}-{id}");
    let end = (0..=most.min(name.len())).rev().find(|at| name.is_char_boundary(*at)).unwrap_or(0);
    name.truncate(end);
    dir.join(format!("{name}.log"))
}

/// The log of a run, for those that only know its count.
pub fn log_of(log_root: &Path, pod: &Pod, container: &str, restart_count: i32) -> PathBuf {
    pod_log_dir(log_root, pod).join(log_path(container, restart_count))
}

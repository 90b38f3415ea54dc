//! Calls to the container runtime: CRI v1 over a unix socket.

use super::exits::{Kind, pid_in};
use super::labels;
use super::state::{Container, PodState, Sandbox, State, time};
use hyper_util::rt::TokioIo;
use k8s_cri::v1::{self, image_service_client::ImageServiceClient, runtime_service_client::RuntimeServiceClient};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Code, Request, Status};

/// Answers of the runtime are at most this long, as upstream has it.
const MAX_MESSAGE: usize = 16 << 20;

/// A runtime's refusal or failure; it reads as the runtime's own message.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{}", .0.message())]
pub struct CriError(pub Status);

impl From<Status> for CriError {
    fn from(status: Status) -> Self {
        Self(status)
    }
}

impl CriError {
    /// The thing asked about is not there.
    pub fn not_found(&self) -> bool {
        self.0.code() == Code::NotFound
    }

    /// The runtime does not know the call.
    pub fn unimplemented(&self) -> bool {
        self.0.code() == Code::Unimplemented || self.0.message().contains("not implemented")
    }

    /// In the form in which upstream's messages show a runtime's error.
    pub fn with_code(&self) -> String {
        format!("rpc error: code = {:?} desc = {}", self.0.code(), self.0.message())
    }
}

/// What the runtime answers, or why not.
pub type Result<T> = std::result::Result<T, CriError>;

/// A client of both of the runtime's services. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Cri {
    runtime: RuntimeServiceClient<Channel>,
    images: ImageServiceClient<Channel>,
    /// A call that is not known to take long is given up after this.
    timeout: Duration,
}

/// A request that is given up after `timeout`.
fn within<T>(message: T, timeout: Duration) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(timeout);
    request
}

fn channel(endpoint: &str) -> std::result::Result<Channel, String> {
    let path = endpoint.strip_prefix("unix://").unwrap_or(endpoint);
    if !path.starts_with('/') {
        return Err(format!("the runtime's endpoint {endpoint:?} is no unix socket"));
    }
    let path = Path::new(path).to_owned();
    // The URI is only a form: the connector goes to the socket whatever it says.
    let endpoint = Endpoint::try_from("http://runtime.invalid").map_err(|e| e.to_string())?;
    Ok(endpoint.connect_with_connector_lazy(tower::service_fn(move |_: Uri| {
        let path = path.clone();
        async move { UnixStream::connect(path).await.map(TokioIo::new) }
    })))
}

impl Cri {
    /// Clients for the runtime's and the images' endpoints (`unix:///…`). Connections are made on first use and again
    /// after they broke. A call that is not known to take long is given up after `timeout`.
    pub fn new(runtime: &str, images: &str, timeout: Duration) -> std::result::Result<Self, String> {
        let limits = |channel| RuntimeServiceClient::new(channel).max_decoding_message_size(MAX_MESSAGE);
        Ok(Self {
            runtime: limits(channel(runtime)?),
            images: ImageServiceClient::new(channel(images)?).max_decoding_message_size(MAX_MESSAGE),
            timeout,
        })
    }

    fn ask<T>(&self, message: T) -> Request<T> {
        within(message, self.timeout)
    }

    fn runtime(&self) -> RuntimeServiceClient<Channel> {
        self.runtime.clone()
    }

    fn images(&self) -> ImageServiceClient<Channel> {
        self.images.clone()
    }

    /// Name and version of the runtime.
    pub async fn version(&self) -> Result<v1::VersionResponse> {
        let request = within(v1::VersionRequest { version: "0.1.0".into() }, Duration::from_secs(10));
        Ok(self.runtime().version(request).await?.into_inner())
    }

    /// Conditions and features of the runtime.
    pub async fn status(&self) -> Result<v1::StatusResponse> {
        let request = within(v1::StatusRequest { verbose: false }, Duration::from_secs(10));
        Ok(self.runtime().status(request).await?.into_inner())
    }

    /// The control group driver that the runtime says it uses, when it says so.
    pub async fn cgroup_driver(&self) -> Result<Option<v1::CgroupDriver>> {
        match self.runtime().runtime_config(self.ask(v1::RuntimeConfigRequest {})).await {
            Ok(answer) => {
                let linux = answer.into_inner().linux;
                Ok(linux.and_then(|linux| v1::CgroupDriver::try_from(linux.cgroup_driver).ok()))
            }
            Err(status) if status.code() == Code::Unimplemented => Ok(None),
            Err(status) => Err(status.into()),
        }
    }

    /// Tells the runtime the pods' address range.
    pub async fn set_pod_cidr(&self, pod_cidr: &str) -> Result<()> {
        let network_config = Some(v1::NetworkConfig { pod_cidr: pod_cidr.into() });
        let runtime_config = Some(v1::RuntimeConfig { network_config });
        self.runtime().update_runtime_config(self.ask(v1::UpdateRuntimeConfigRequest { runtime_config })).await?;
        Ok(())
    }

    /// All sandboxes, or those of one pod.
    pub async fn sandboxes(&self, uid: Option<&str>) -> Result<Vec<v1::PodSandbox>> {
        let filter = uid.map(|uid| v1::PodSandboxFilter { label_selector: uid_label(uid), ..Default::default() });
        Ok(self.runtime().list_pod_sandbox(self.ask(v1::ListPodSandboxRequest { filter })).await?.into_inner().items)
    }

    /// All containers, or those of one pod.
    pub async fn containers(&self, uid: Option<&str>) -> Result<Vec<v1::Container>> {
        let filter = uid.map(|uid| v1::ContainerFilter { label_selector: uid_label(uid), ..Default::default() });
        Ok(self
            .runtime()
            .list_containers(self.ask(v1::ListContainersRequest { filter }))
            .await?
            .into_inner()
            .containers)
    }

    /// Status of a container, or `None` when it is gone.
    pub async fn container_status(&self, id: &str) -> Result<Option<v1::ContainerStatus>> {
        let request = v1::ContainerStatusRequest { container_id: id.into(), verbose: false };
        match self.runtime().container_status(self.ask(request)).await {
            Ok(answer) => Ok(answer.into_inner().status),
            Err(status) if status.code() == Code::NotFound => Ok(None),
            Err(status) => Err(status.into()),
        }
    }

    /// Status of a sandbox, or `None` when it is gone.
    pub async fn sandbox_status(&self, id: &str) -> Result<Option<v1::PodSandboxStatus>> {
        let request = v1::PodSandboxStatusRequest { pod_sandbox_id: id.into(), verbose: false };
        match self.runtime().pod_sandbox_status(self.ask(request)).await {
            Ok(answer) => Ok(answer.into_inner().status),
            Err(status) if status.code() == Code::NotFound => Ok(None),
            Err(status) => Err(status.into()),
        }
    }

    /// The first process of a container or a sandbox, where the runtime tells it.
    pub async fn process_of(&self, kind: Kind, id: &str) -> Option<i32> {
        let mut runtime = self.runtime();
        let answer = match kind {
            Kind::Container => {
                let request = v1::ContainerStatusRequest { container_id: id.into(), verbose: true };
                runtime.container_status(self.ask(request)).await.map(|answer| answer.into_inner().info)
            }
            Kind::Sandbox => {
                let request = v1::PodSandboxStatusRequest { pod_sandbox_id: id.into(), verbose: true };
                runtime.pod_sandbox_status(self.ask(request)).await.map(|answer| answer.into_inner().info)
            }
        };
        // One that is gone meanwhile has none, like one whose runtime does not tell.
        pid_in(&answer.ok()?)
    }

    /// Everything that the runtime holds of one pod, newest first, termination messages included.
    pub async fn observe(&self, uid: &str) -> Result<PodState> {
        let (sandboxes, containers) = tokio::try_join!(self.sandboxes(Some(uid)), self.containers(Some(uid)))?;
        let mut state = PodState::default();
        for listed in sandboxes {
            if let Some(status) = self.sandbox_status(&listed.id).await? {
                state.sandboxes.push(Sandbox::from_cri(status));
            }
        }
        for listed in containers {
            if let Some(status) = self.container_status(&listed.id).await? {
                state.containers.push(container_with_message(status, listed.pod_sandbox_id).await);
            }
        }
        state.sandboxes.sort_by_key(|sandbox| std::cmp::Reverse(sandbox.created));
        state.containers.sort_by_key(|container| std::cmp::Reverse(container.created));
        Ok(state)
    }

    /// Makes and starts a sandbox; its id.
    pub async fn run_sandbox(&self, config: v1::PodSandboxConfig, runtime_handler: &str) -> Result<String> {
        let request = v1::RunPodSandboxRequest { config: Some(config), runtime_handler: runtime_handler.into() };
        // Networks can be slow to come up: upstream doubles its time for this one.
        let request = within(request, self.timeout * 2);
        Ok(self.runtime().run_pod_sandbox(request).await?.into_inner().pod_sandbox_id)
    }

    /// Stops a sandbox; one that is gone counts as stopped.
    pub async fn stop_sandbox(&self, id: &str) -> Result<()> {
        let request = v1::StopPodSandboxRequest { pod_sandbox_id: id.into() };
        gone_is_fine(self.runtime().stop_pod_sandbox(self.ask(request)).await)
    }

    /// Removes a sandbox.
    pub async fn remove_sandbox(&self, id: &str) -> Result<()> {
        let request = v1::RemovePodSandboxRequest { pod_sandbox_id: id.into() };
        gone_is_fine(self.runtime().remove_pod_sandbox(self.ask(request)).await)
    }

    /// Makes a container in a sandbox; its id.
    pub async fn create_container(
        &self, sandbox: &str, config: v1::ContainerConfig, sandbox_config: v1::PodSandboxConfig,
    ) -> Result<String> {
        let request = v1::CreateContainerRequest {
            pod_sandbox_id: sandbox.into(),
            config: Some(config),
            sandbox_config: Some(sandbox_config),
        };
        Ok(self.runtime().create_container(self.ask(request)).await?.into_inner().container_id)
    }

    /// Starts a container.
    pub async fn start_container(&self, id: &str) -> Result<()> {
        self.runtime().start_container(self.ask(v1::StartContainerRequest { container_id: id.into() })).await?;
        Ok(())
    }

    /// Asks a container to stop, and kills it after `grace` seconds; one that is gone counts as stopped.
    pub async fn stop_container(&self, id: &str, grace: i64) -> Result<()> {
        let request = v1::StopContainerRequest { container_id: id.into(), timeout: grace };
        let timeout = self.timeout + Duration::from_secs(grace.max(0) as u64);
        gone_is_fine(self.runtime().stop_container(within(request, timeout)).await)
    }

    /// Removes a container.
    pub async fn remove_container(&self, id: &str) -> Result<()> {
        gone_is_fine(
            self.runtime().remove_container(self.ask(v1::RemoveContainerRequest { container_id: id.into() })).await,
        )
    }

    /// Brings a running container to other resources.
    pub async fn update_resources(&self, id: &str, resources: v1::LinuxContainerResources) -> Result<()> {
        let request = v1::UpdateContainerResourcesRequest {
            container_id: id.into(),
            linux: Some(resources),
            ..Default::default()
        };
        self.runtime().update_container_resources(self.ask(request)).await?;
        Ok(())
    }

    /// Lets a container write to a new log file after the old one was moved.
    pub async fn reopen_log(&self, id: &str) -> Result<()> {
        self.runtime()
            .reopen_container_log(self.ask(v1::ReopenContainerLogRequest { container_id: id.into() }))
            .await?;
        Ok(())
    }

    /// Runs a command in a container and waits for it; zero means no time limit.
    pub async fn exec_sync(&self, id: &str, command: &[String], timeout: Duration) -> Result<v1::ExecSyncResponse> {
        let seconds = timeout.as_secs_f64().ceil() as i64;
        let message = v1::ExecSyncRequest { container_id: id.into(), cmd: command.to_vec(), timeout: seconds };
        // The runtime keeps the command's time; ours only guards against a runtime that hangs.
        let request = match timeout.is_zero() {
            true => Request::new(message),
            false => within(message, timeout + self.timeout),
        };
        Ok(self.runtime().exec_sync(request).await?.into_inner())
    }

    /// The address at which the runtime serves an exec.
    pub async fn exec(&self, request: v1::ExecRequest) -> Result<String> {
        Ok(self.runtime().exec(self.ask(request)).await?.into_inner().url)
    }

    /// The address at which the runtime serves an attach.
    pub async fn attach(&self, request: v1::AttachRequest) -> Result<String> {
        Ok(self.runtime().attach(self.ask(request)).await?.into_inner().url)
    }

    /// The address at which the runtime serves a port-forward.
    pub async fn port_forward(&self, sandbox: &str, ports: Vec<i32>) -> Result<String> {
        let request = v1::PortForwardRequest { pod_sandbox_id: sandbox.into(), port: ports };
        Ok(self.runtime().port_forward(self.ask(request)).await?.into_inner().url)
    }

    /// Usage of all containers.
    pub async fn container_stats(&self) -> Result<Vec<v1::ContainerStats>> {
        let request = v1::ListContainerStatsRequest { filter: None };
        Ok(self.runtime().list_container_stats(self.ask(request)).await?.into_inner().stats)
    }

    /// All images.
    pub async fn list_images(&self) -> Result<Vec<v1::Image>> {
        Ok(self.images().list_images(self.ask(v1::ListImagesRequest { filter: None })).await?.into_inner().images)
    }

    /// An image by name, id or digest; `None` when it is not there.
    pub async fn image(&self, image: &str) -> Result<Option<v1::Image>> {
        let spec = v1::ImageSpec { image: image.into(), ..Default::default() };
        let request = v1::ImageStatusRequest { image: Some(spec), verbose: false };
        Ok(self.images().image_status(self.ask(request)).await?.into_inner().image)
    }

    /// Pulls an image; its reference. There is no time limit: the runtime watches over progress.
    pub async fn pull(
        &self, image: &str, auth: Option<v1::AuthConfig>, sandbox: Option<v1::PodSandboxConfig>,
    ) -> Result<String> {
        let spec = v1::ImageSpec { image: image.into(), user_specified_image: image.into(), ..Default::default() };
        let request = v1::PullImageRequest { image: Some(spec), auth, sandbox_config: sandbox };
        Ok(self.images().pull_image(Request::new(request)).await?.into_inner().image_ref)
    }

    /// Removes an image.
    pub async fn remove_image(&self, image: &str) -> Result<()> {
        let spec = v1::ImageSpec { image: image.into(), ..Default::default() };
        gone_is_fine(self.images().remove_image(self.ask(v1::RemoveImageRequest { image: Some(spec) })).await)
    }

    /// The file systems that hold images.
    pub async fn image_fs(&self) -> Result<Vec<v1::FilesystemUsage>> {
        Ok(self.images().image_fs_info(self.ask(v1::ImageFsInfoRequest {})).await?.into_inner().image_filesystems)
    }

    /// The directory whose file system holds the images, where the runtime tells it.
    pub async fn image_root(&self) -> Result<Option<PathBuf>> {
        let first = self.image_fs().await?.into_iter().next();
        Ok(first.and_then(|usage| usage.fs_id).map(|id| id.mountpoint.into()))
    }
}

fn uid_label(uid: &str) -> HashMap<String, String> {
    HashMap::from([(labels::POD_UID.to_owned(), uid.to_owned())])
}

fn gone_is_fine<T>(answer: std::result::Result<T, Status>) -> Result<()> {
    match answer {
        Ok(_) => Ok(()),
        Err(status) if status.code() == Code::NotFound => Ok(()),
        Err(status) => Err(status.into()),
    }
}

/// Most of a termination message that is kept.
const MAX_MESSAGE_FILE: usize = 4096;
/// Most of a log's end that serves as the message.
const MAX_MESSAGE_LOG: usize = 2048;
/// Most lines of it.
const MAX_MESSAGE_LINES: usize = 80;

/// The container, with the message it left behind when it ended.
async fn container_with_message(status: v1::ContainerStatus, sandbox: String) -> Container {
    let notes = labels::Notes::read(&status.annotations);
    let file = status
        .mounts
        .iter()
        .find(|mount| !notes.termination_path.is_empty() && mount.container_path == notes.termination_path)
        .map(|mount| mount.host_path.clone());
    let mut container = Container::from_cri(status, sandbox);
    if container.state != State::Exited {
        return container;
    }
    let left = match file {
        Some(file) => match read_end(Path::new(&file), MAX_MESSAGE_FILE).await {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => format!("Error on reading termination log {file}: {error}"),
        },
        None => String::new(),
    };
    let wants_log = notes.termination_policy == "FallbackToLogsOnError"
        && container.exit_code != 0
        && container.reason != "ContainerCannotRun";
    let left = match left.is_empty() && wants_log {
        true => crate::logs::read::last_lines(Path::new(&container.log_path), MAX_MESSAGE_LINES, MAX_MESSAGE_LOG).await,
        false => left,
    };
    if !left.is_empty() {
        container.message = match container.message.is_empty() {
            true => left,
            false => format!("{}: {left}", container.message),
        };
    }
    container
}

/// The last bytes of a file.
async fn read_end(path: &Path, most: usize) -> std::io::Result<Vec<u8>> {
    use tokio::io::{AsyncReadExt, AsyncSeekExt};
    let mut file = tokio::fs::File::open(path).await?;
    let length = file.metadata().await?.len();
    file.seek(std::io::SeekFrom::Start(length.saturating_sub(most as u64))).await?;
    let mut bytes = Vec::new();
    file.take(most as u64).read_to_end(&mut bytes).await?;
    Ok(bytes)
}

/// When a listed container was made.
pub fn created(container: &v1::Container) -> Option<jiff::Timestamp> {
    time(container.created_at)
}

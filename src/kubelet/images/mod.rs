//! Images of containers: pulled when they are missing or when the policy says so, never more at once than allowed, and
//! never blocking any other pod.

pub mod gc;
pub mod guarded;
pub mod keyring;
pub mod name;

use crate::backoff::Backoff;
use crate::events::{Events, Level};
use crate::pods;
use crate::runtime::cri::{Cri, CriError};
use base::clock::format_duration;
use guarded::Guarded;
use jiff::Timestamp;
use k8s_cri::v1;
use k8s_openapi::api::core::v1::{Container, Pod, Secret};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

/// Why a container can't be started: the reason its status shows, and the message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}: {message}")]
pub struct StartError {
    /// One word.
    pub reason: &'static str,
    /// More words.
    pub message: String,
}

impl StartError {
    /// From a reason and a message.
    pub fn new(reason: &'static str, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }
}

/// Brings images to the node.
pub struct Images {
    cri: Cri,
    events: Events,
    backoff: Mutex<Backoff>,
    /// What the last pull said, by the backoff's key.
    last_error: Mutex<HashMap<String, String>>,
    permits: Option<Arc<Semaphore>>,
    pace: Pace,
    guarded: Guarded,
}

/// A bucket of pulls: so many at once, so many in a second.
struct Pace {
    per_second: f64,
    burst: f64,
    state: Mutex<(f64, Instant)>,
}

impl Pace {
    fn new(per_second: i32, burst: i32) -> Self {
        let burst = f64::from(burst.max(1));
        Self { per_second: f64::from(per_second), burst, state: Mutex::new((burst, Instant::now())) }
    }

    fn take(&self) -> bool {
        if self.per_second <= 0.0 {
            return true;
        }
        let mut state = self.state.lock();
        let now = Instant::now();
        let tokens = (state.0 + now.duration_since(state.1).as_secs_f64() * self.per_second).min(self.burst);
        let allowed = tokens >= 1.0;
        *state = (if allowed { tokens - 1.0 } else { tokens }, now);
        allowed
    }
}

/// How often images may be pulled.
#[derive(Clone, Copy, Debug)]
pub struct Pulling {
    /// At once; `None` is no limit.
    pub parallel: Option<usize>,
    /// In a second; 0 is no limit.
    pub per_second: i32,
    /// In a burst.
    pub burst: i32,
}

impl Images {
    /// Images through a runtime.
    pub fn new(cri: Cri, events: Events, pulling: Pulling, guarded: Guarded) -> Self {
        Self {
            cri,
            events,
            backoff: Mutex::new(Backoff::image_pull()),
            last_error: Mutex::default(),
            permits: pulling.parallel.map(|n| Arc::new(Semaphore::new(n.max(1)))),
            pace: Pace::new(pulling.per_second, pulling.burst),
            guarded,
        }
    }

    /// The image of a container, by reference; pulled when need be. Events tell about it.
    pub async fn ensure(
        &self, pod: &Pod, container: &Container, secrets: &[Secret], sandbox: &v1::PodSandboxConfig,
    ) -> Result<String, StartError> {
        let requested = container.image.as_deref().unwrap_or_default();
        let tell = |level, reason: &str, text: &str| self.events.container(pod, &container.name, level, reason, text);
        let image = name::with_default_tag(requested).map_err(|error| {
            let text = format!("Failed to apply default image tag {requested:?}: {error}");
            tell(Level::Warning, "InspectFailed", &text);
            StartError::new("InvalidImageName", text)
        })?;
        let policy = container.image_pull_policy.as_deref().unwrap_or_default();
        let policy = if policy.is_empty() { name::default_policy(&image) } else { policy };
        if policy != "Always" {
            let present = self.cri.image(&image).await.map_err(|error| {
                let text = format!("Failed to inspect image {:?}: {}", "", error.with_code());
                tell(Level::Warning, "InspectFailed", &text);
                StartError::new("ImageInspectError", text)
            })?;
            match present {
                Some(found) if self.guarded.may_use(&found.id, &keyring::lookup(secrets, &image)) => {
                    let text = format!(
                        "Container image {requested:?} already present on machine and can be accessed by the pod"
                    );
                    tell(Level::Normal, "Pulled", &text);
                    return Ok(found.id);
                }
                _ if policy == "Never" => {
                    let text = format!("Container image {requested:?} is not present with pull policy of Never");
                    tell(Level::Warning, "ErrImageNeverPull", &text);
                    return Err(StartError::new("ErrImageNeverPull", text));
                }
                _ => {}
            }
        }
        self.pull(pod, container, &image, secrets, sandbox).await
    }

    async fn pull(
        &self, pod: &Pod, container: &Container, image: &str, secrets: &[Secret], sandbox: &v1::PodSandboxConfig,
    ) -> Result<String, StartError> {
        let tell = |level, reason: &str, text: &str| self.events.container(pod, &container.name, level, reason, text);
        let key = format!("{}/{image}", pods::uid(pod));
        if self.backoff.lock().waits(&key, Timestamp::now()).is_some() {
            let text = format!("Back-off pulling image {image:?}");
            tell(Level::Normal, "BackOff", &text);
            let text = match self.last_error.lock().get(&key) {
                Some(last) => format!("{text}: {last}"),
                None => text,
            };
            return Err(StartError::new("ImagePullBackOff", text));
        }
        self.last_error.lock().remove(&key);
        tell(Level::Normal, "Pulling", &format!("Pulling image {image:?}"));
        let asked = Instant::now();
        let credentials = keyring::lookup(secrets, image);
        let (took, pulled) = match &self.permits {
            Some(permits) => {
                let _permit = permits.acquire().await;
                self.timed_pull(image, &credentials, sandbox).await
            }
            None => self.timed_pull(image, &credentials, sandbox).await,
        };
        match pulled {
            Ok((reference, size)) => {
                let text = format!(
                    "Successfully pulled image {image:?} in {} ({} including waiting). Image size: {size} bytes.",
                    in_millis(took),
                    in_millis(asked.elapsed())
                );
                tell(Level::Normal, "Pulled", &text);
                self.backoff.lock().collect(Timestamp::now());
                self.guarded.pulled(&reference, &credentials);
                Ok(reference)
            }
            Err(error) => {
                tell(Level::Warning, "Failed", &format!("Failed to pull image {image:?}: {error}"));
                let now = Timestamp::now();
                self.backoff.lock().step(&key, now, now);
                let refused = refusal(image, &error);
                self.last_error.lock().insert(key, format!("{}: {}", refused.reason, refused.message));
                Err(refused)
            }
        }
    }

    /// Tries every credential in turn; the size is asked for afterwards.
    async fn timed_pull(
        &self, image: &str, credentials: &[v1::AuthConfig], sandbox: &v1::PodSandboxConfig,
    ) -> (Duration, Result<(String, u64), String>) {
        let start = Instant::now();
        if !self.pace.take() {
            return (start.elapsed(), Err("pull QPS exceeded".into()));
        }
        let anonymous = credentials.is_empty().then_some(None);
        let tries = credentials.iter().cloned().map(Some).chain(anonymous);
        let mut last: Option<CriError> = None;
        for auth in tries {
            match self.cri.pull(image, auth, Some(sandbox.clone())).await {
                Ok(reference) => {
                    let size = self.cri.image(&reference).await.ok().flatten().map_or(0, |image| image.size);
                    return (start.elapsed(), Ok((reference, size)));
                }
                Err(error) => last = Some(error),
            }
        }
        (start.elapsed(), Err(last.map_or_else(String::new, |error| error.with_code())))
    }

    /// Forgets a pod's delays.
    pub fn forget(&self, uid: &str) {
        let prefix = format!("{uid}/");
        self.backoff.lock().forget(&prefix);
        self.last_error.lock().retain(|key, _| !key.starts_with(&prefix));
    }
}

/// Whole milliseconds, in Go's words.
fn in_millis(duration: Duration) -> String {
    format_duration(Duration::from_millis(duration.as_millis() as u64))
}

/// The reason and message of a failed pull.
fn refusal(image: &str, error: &str) -> StartError {
    for (prefix, reason, why) in [
        ("RegistryUnavailable", "RegistryUnavailable", "the registry is unavailable"),
        ("SignatureValidationFailed", "SignatureValidationFailed", "the signature validation failed"),
    ] {
        if let Some(rest) = error.strip_prefix(prefix) {
            return StartError::new(reason, format!("image pull failed for {image} because {why}{rest}"));
        }
    }
    StartError::new("ErrImagePull", error)
}

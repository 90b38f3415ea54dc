//! The event recorder: never blocks, never fails its caller, and says the same thing only once.
//!
//! ```text
//!   record() ──bounded channel──► one task: correlate ──► create, or patch the one before
//! ```
//!
//! Two dialects, as upstream's components have them: core/v1 with counts ([`core`]: controller-manager, kubelet) and
//! events.k8s.io/v1 with series ([`series`]: scheduler, kube-proxy).

mod core;
mod series;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Resource;
use std::fmt;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::queue::Bucket;

/// Events that wait to be written; more are dropped.
const QUEUED: usize = 1000;
/// Attempts to write one event when the server can't be reached.
const ATTEMPTS: usize = 12;
/// Between two attempts.
const PAUSE: Duration = Duration::from_secs(10);

/// The two types of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventKind {
    /// Information.
    Normal,
    /// Something may be wrong.
    Warning,
}

impl fmt::Display for EventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        })
    }
}

/// One thing to tell about an object.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// The object.
    pub about: ObjectReference,
    /// A second object that has a part in it (events.k8s.io only).
    pub related: Option<ObjectReference>,
    /// Normal or Warning.
    pub kind: EventKind,
    /// One word in CamelCase.
    pub reason: String,
    /// What was done (events.k8s.io only).
    pub action: String,
    /// For people.
    pub message: String,
    /// Annotations of the event (core/v1 only).
    pub annotations: Vec<(String, String)>,
}

/// Sends events under one component's name. Clones share the queue.
#[derive(Clone)]
pub struct Recorder {
    queue: mpsc::Sender<Record>,
}

impl Recorder {
    /// Writes core/v1 events whose source is `component`, on `host` if that is not empty.
    pub fn core(client: kube::Client, component: &str, host: &str) -> Self {
        Self::start(client, component, host, None)
    }

    /// As [`Recorder::core`], but at most `burst` events at once, and then so many in a second.
    pub fn paced(client: kube::Client, component: &str, host: &str, burst: f64, per_second: f64) -> Self {
        Self::start(client, component, host, Some(Bucket::new(burst, per_second, Instant::now())))
    }

    fn start(client: kube::Client, component: &str, host: &str, pace: Option<Bucket>) -> Self {
        let (queue, records) = mpsc::channel(QUEUED);
        tokio::spawn(core::serve(client, component.to_owned(), host.to_owned(), records, pace));
        Self { queue }
    }

    /// Writes events.k8s.io/v1 events whose reporting controller is `controller`.
    pub fn series(client: kube::Client, controller: &str) -> Self {
        let (queue, records) = mpsc::channel(QUEUED);
        tokio::spawn(series::serve(client, controller.to_owned(), records));
        Self { queue }
    }

    /// Tells one thing about an object.
    pub fn record(&self, about: &ObjectReference, kind: EventKind, reason: &str, message: impl Into<String>) {
        self.send(Record {
            about: about.clone(),
            related: None,
            kind,
            reason: reason.to_owned(),
            action: String::new(),
            message: message.into(),
            annotations: Vec::new(),
        });
    }

    /// [`Recorder::record`] of a Normal event about a typed object.
    pub fn normal<K: Resource<DynamicType = ()>>(&self, about: &K, reason: &str, message: impl Into<String>) {
        self.record(&reference(about), EventKind::Normal, reason, message);
    }

    /// [`Recorder::record`] of a Warning event about a typed object.
    pub fn warning<K: Resource<DynamicType = ()>>(&self, about: &K, reason: &str, message: impl Into<String>) {
        self.record(&reference(about), EventKind::Warning, reason, message);
    }

    /// Sends a full record; it is dropped, with a line in the log, when too many wait.
    pub fn send(&self, record: Record) {
        if let Err(error) = self.queue.try_send(record) {
            tracing::error!(%error, "unable to record event");
        }
    }
}

/// A reference to an object as events carry it.
pub fn reference<K: Resource<DynamicType = ()>>(object: &K) -> ObjectReference {
    let meta = object.meta();
    ObjectReference {
        api_version: Some(K::api_version(&()).into_owned()),
        kind: Some(K::kind(&()).into_owned()),
        namespace: meta.namespace.clone(),
        name: meta.name.clone(),
        uid: meta.uid.clone(),
        resource_version: meta.resource_version.clone(),
        field_path: None,
    }
}

/// Where an event about this object lives.
fn namespace_of(about: &ObjectReference) -> String {
    about.namespace.clone().filter(|namespace| !namespace.is_empty()).unwrap_or_else(|| "default".into())
}

/// A name that is unique per object and nanosecond; a UUID where the object's name can't be part of one.
fn event_name(about: &ObjectReference, now: jiff::Timestamp) -> String {
    let name = format!("{}.{:x}", about.name.as_deref().unwrap_or_default(), now.as_nanosecond());
    if is_subdomain(&name) { name } else { uuid::Uuid::new_v4().to_string() }
}

fn is_subdomain(name: &str) -> bool {
    let label = |label: &str| {
        let inner = label.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
        inner && !label.is_empty() && !label.starts_with('-') && !label.ends_with('-')
    };
    name.len() <= 253 && name.split('.').all(label)
}

/// Whether the server refused, so that trying again is of no use.
fn is_refusal(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(_) | kube::Error::SerdeError(_) | kube::Error::BuildRequest(_))
}

/// Waits before the next attempt, with some jitter, so that not all clients come back at once.
async fn pause(first: bool) {
    let share = if first { rand::random_range(0.0..1.0) } else { rand::random_range(1.0..1.25) };
    tokio::time::sleep(PAUSE.mul_f64(share)).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_odd_name_gives_a_uuid() {
        let about = |name: &str| ObjectReference { name: Some(name.into()), ..Default::default() };
        let now = jiff::Timestamp::from_nanosecond(0x17a).unwrap();
        assert_eq!(event_name(&about("web-1"), now), "web-1.17a");
        assert_eq!(event_name(&about("system:node"), now).len(), 36);
    }
}

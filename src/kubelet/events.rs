//! Events: what the kubelet tells users about pods and the node.

use crate::pods;
use k8s_openapi::api::core::v1::{ObjectReference, Pod};
use std::fmt::Display;
use std::sync::Arc;

/// How serious an event is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// As it should be.
    Normal,
    /// Something is wrong.
    Warning,
}

impl Level {
    /// The API's name.
    pub fn name(self) -> &'static str {
        match self {
            Level::Normal => "Normal",
            Level::Warning => "Warning",
        }
    }
}

/// Takes events and never blocks.
pub trait Recorder: Send + Sync {
    /// Notes an event about an object.
    fn event(&self, about: ObjectReference, level: Level, reason: &str, message: String);
}

/// A recorder for a kubelet without an API server: events are logged.
pub struct LogRecorder;

impl Recorder for LogRecorder {
    fn event(&self, about: ObjectReference, level: Level, reason: &str, message: String) {
        let name = about.name.unwrap_or_default();
        tracing::info!(name, level = level.name(), reason, message, "event");
    }
}

/// The recorder with the kubelet's usual subjects.
#[derive(Clone)]
pub struct Events(Arc<dyn Recorder>);

impl Events {
    /// Events through a recorder.
    pub fn new(recorder: Arc<dyn Recorder>) -> Self {
        Self(recorder)
    }

    /// About a pod.
    pub fn pod(&self, pod: &Pod, level: Level, reason: &str, message: impl Display) {
        self.0.event(pods::reference(pod), level, reason, message.to_string());
    }

    /// About one of its containers.
    pub fn container(&self, pod: &Pod, container: &str, level: Level, reason: &str, message: impl Display) {
        self.0.event(pods::container_reference(pod, container), level, reason, message.to_string());
    }

    /// About the node. Nodes have no namespace; their events go to `default`, with the name as UID as upstream has it.
    pub fn node(&self, node: &str, level: Level, reason: &str, message: impl Display) {
        let about = ObjectReference {
            kind: Some("Node".into()),
            name: Some(node.into()),
            uid: Some(node.into()),
            ..Default::default()
        };
        self.0.event(about, level, reason, message.to_string());
    }
}

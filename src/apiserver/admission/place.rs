//! NamespaceLifecycle: nothing is made in a namespace that is missing or going; three namespaces may not be deleted.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use api::Value;
use api::status::Status;
use parking_lot::Mutex;

use super::{Operation, Plugin, Review};
use crate::registry::{internal, object};

const IMMORTAL: [&str; 3] = ["default", "kube-public", "kube-system"];

/// How long a namespace whose deletion this server has seen is looked up in the store, and not in the cache.
const DOUBT: Duration = Duration::from_secs(30);

/// The plugin.
#[derive(Default)]
pub struct NamespaceLifecycle {
    deleted: Mutex<HashMap<String, Instant>>,
}

impl NamespaceLifecycle {
    fn note_deletion(&self, name: &str) {
        let mut deleted = self.deleted.lock();
        deleted.retain(|_, since| since.elapsed() < DOUBT);
        deleted.insert(name.to_string(), Instant::now());
    }

    fn doubtful(&self, name: &str) -> bool {
        self.deleted.lock().get(name).is_some_and(|since| since.elapsed() < DOUBT)
    }

    /// The phase of a namespace.
    async fn phase(&self, review: &Review<'_>) -> Result<String, Status> {
        let phase = |namespace: &Value| object::text(namespace, &["status", "phase"]).to_string();
        if let Some(found) = review.find_settled("", "namespaces", "", review.namespace).await {
            let phase = phase(&*found.entry.value()?);
            if phase == "Terminating" || !self.doubtful(review.namespace) {
                return Ok(phase);
            }
        }
        let Some(row) = review.row_of("", "namespaces") else { return Err(Status::internal("no resource namespaces")) };
        match internal::get(review.api, &row, "", review.namespace).await {
            Ok(namespace) => Ok(phase(&namespace)),
            Err(status) if status.code == 404 => Err(status),
            Err(status) => Err(Status::internal(status)),
        }
    }
}

#[async_trait::async_trait]
impl Plugin for NamespaceLifecycle {
    fn name(&self) -> &'static str {
        "NamespaceLifecycle"
    }

    fn handles(&self, review: &Review<'_>) -> bool {
        review.operation != Operation::Connect && (!review.namespace.is_empty() || review.row.plural == "namespaces")
    }

    async fn mutate(&self, review: &Review<'_>, object: &mut Value) -> Result<(), Status> {
        if review.row.group.is_empty() && review.row.plural == "namespaces" {
            if review.operation != Operation::Delete {
                return Ok(());
            }
            if IMMORTAL.contains(&review.name) {
                return Err(review.forbidden(object, "this namespace may not be deleted"));
            }
            self.note_deletion(review.name);
            return Ok(());
        }
        let access_review = review.row.plural == "localsubjectaccessreviews";
        if review.operation == Operation::Delete || review.namespace.is_empty() || access_review {
            return Ok(());
        }
        let phase = self.phase(review).await?;
        if review.operation == Operation::Create && phase == "Terminating" {
            return Err(terminating(review, object));
        }
        Ok(())
    }
}

fn terminating(review: &Review<'_>, object: &Value) -> Status {
    let namespace = review.namespace;
    let why = format!("unable to create new content in namespace {namespace} because it is being terminated");
    let cause = format!("namespace {namespace} is being terminated");
    review.forbidden(object, why).cause("NamespaceTerminating", cause, "metadata.namespace")
}

//! TaintNodesByCondition: a new node takes no pods until somebody has seen that it is ready.

use api::Value;
use api::status::Status;
use serde_json::json;

use super::{Operation, Plugin, Review, items};

const NOT_READY: &str = "node.kubernetes.io/not-ready";

/// The plugin.
pub struct TaintNodesByCondition;

#[async_trait::async_trait]
impl Plugin for TaintNodesByCondition {
    fn name(&self) -> &'static str {
        "TaintNodesByCondition"
    }

    fn handles(&self, review: &Review<'_>) -> bool {
        review.is("", "nodes") && review.operation == Operation::Create
    }

    async fn mutate(&self, _review: &Review<'_>, node: &mut Value) -> Result<(), Status> {
        let taints = items(node, &["spec"], "taints");
        let there = taints.iter().any(|t| t["key"] == NOT_READY && t["effect"] == "NoSchedule");
        if !there {
            taints.push(json!({"key": NOT_READY, "effect": "NoSchedule"}));
        }
        Ok(())
    }
}

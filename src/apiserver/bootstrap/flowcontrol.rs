//! The default flow schemas and priority levels.

use std::sync::Arc;

use api::Value;
use api::status::Status;
use futures::future::try_join_all;
use serde_json::json;

use super::{Wanted, row};
use crate::Api;
use crate::registry::internal;

const GROUP: &str = "flowcontrol.apiserver.k8s.io";
const AUTOUPDATE: &str = "apf.kubernetes.io/autoupdate-spec";

/// Makes and mends them.
///
/// # Errors
/// The first that can't be written.
pub async fn ensure(api: &Arc<Api>) -> Result<(), Status> {
    let kept = api::kinds::flowcontrol::defaults();
    let wanted = |plural: &'static str, item: &Value| Wanted {
        group: GROUP,
        plural,
        namespace: String::new(),
        object: json!({
            "metadata": {"name": item["name"], "annotations": {AUTOUPDATE: "true"}},
            "spec": item["spec"],
        }),
    };
    let items = |plural: &str| kept[plural].as_array().cloned().unwrap_or_default();
    let levels = items("prioritylevelconfigurations");
    let schemas = items("flowschemas");
    let all = levels.iter().map(|i| wanted("prioritylevelconfigurations", i));
    let all = all.chain(schemas.iter().map(|i| wanted("flowschemas", i)));
    try_join_all(all.map(|w| super::ensure(api, w, &amend))).await?;
    try_join_all(schemas.iter().map(|s| judge(api, s))).await.map(|_| ())
}

/// The object with our spec, when it follows ours and differs.
fn amend(there: &Value, wanted: &Value) -> Option<Value> {
    if there["metadata"]["annotations"][AUTOUPDATE] != "true" || there["spec"] == wanted["spec"] {
        return None;
    }
    let mut amended = there.clone();
    amended["spec"] = wanted["spec"].clone();
    Some(amended)
}

/// Says in a schema's status that its priority level is there.
async fn judge(api: &Arc<Api>, schema: &Value) -> Result<(), Status> {
    let row = row(api, GROUP, "flowschemas")?;
    let name = schema["name"].as_str().unwrap_or_default();
    let level = schema["spec"]["priorityLevelConfiguration"]["name"].as_str().unwrap_or_default();
    let judged = |object: &Value| object["status"]["conditions"].as_array().is_some_and(|c| !c.is_empty());
    if super::cached(api, &row, "", name).as_ref().is_some_and(judged) {
        return Ok(());
    }
    let message =
        format!("This FlowSchema references the PriorityLevelConfiguration object named {level:?} and it exists");
    let condition = json!({
        "type": "Dangling", "status": "False", "reason": "Found", "message": message,
        "lastTransitionTime": base::clock::now_rfc3339(),
    });
    let change = move |mut now: Value| {
        now["status"]["conditions"] = json!([condition]);
        Ok(now)
    };
    internal::update(api, &row, "", name, "status", &change).await.map(|_| ())
}

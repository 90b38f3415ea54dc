//! `pods/eviction`: a deletion that respects PodDisruptionBudgets.

use std::sync::Arc;

use api::Value;
use api::resources::Row;
use api::selector::LabelSelector;
use api::status::{Of, Status};
use serde_json::json;

use super::{Creation, Metadata, conditions, created, set_condition, track, with_kind};
use crate::Api;
use crate::admission::Operation;
use crate::registry::delete::Delete;
use crate::registry::engine::{self, Write};
use crate::registry::input::Expected;
use crate::registry::options::DeleteOptions;
use crate::registry::{facts, internal, object};
use crate::request::{Answer, Request};

const KIND: (&str, &str, &str) = ("policy", "v1", "Eviction");

/// How often a budget or a pod that others change at the same time is tried again.
const ATTEMPTS: usize = 20;

/// Evictions that the budget's controller has not confirmed yet.
const MAX_DISRUPTED: usize = 2000;

/// Answers `POST` to `pods/{name}/eviction`.
///
/// # Errors
/// 429 while the budget allows no disruption, 500 when the pod has two budgets, and what a deletion gives.
pub async fn create(api: &Arc<Api>, row: &Arc<Row>, req: &mut Request) -> Result<Answer, Status> {
    let (group, version, kind) = KIND;
    let also = &["policy/v1beta1"];
    let expected = Expected { facts: facts(row), group, version, kind, internal_group: group, also };
    let Creation { accept, options, object } = Creation::read(row, req, &expected, Metadata::Wiped)?;
    with_kind(api, row, req, &options, KIND, async |w| evict(&w, object).await).await?;
    created(api, row, req, &accept)
}

async fn evict(w: &Write<'_>, mut eviction: Value) -> Result<(), Status> {
    track(w, None, &mut eviction);
    engine::mutate(w, Operation::Create, w.name, None, &mut eviction).await?;
    if object::name(&eviction) != w.name {
        return Err(Status::bad_request("name in URL does not match name in Eviction object"));
    }
    let options = delete_options(w, &eviction)?;
    engine::validate(w, Operation::Create, w.name, None, &eviction).await?;
    let Some(pod) = evict_past_budgets(w, &options).await? else { return Ok(()) };
    let budgets = budgets_of(w, &pod).await?;
    let [budget] = budgets.as_slice() else {
        if budgets.is_empty() {
            return delete(w, &options, None).await;
        }
        let why = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
        return Err(Status::new(500, "", why));
    };
    if !is_ready(&pod) && may_go_unready(budget) {
        return delete_unready(w, &options, &pod, budget).await;
    }
    take_from(w, budget, options.dry_run).await?;
    delete(w, &options, None).await
}

/// The options of the deletion: those of the eviction, in which a dry run of the request counts too.
fn delete_options(w: &Write<'_>, eviction: &Value) -> Result<DeleteOptions, Status> {
    let mut object = eviction.get("deleteOptions").filter(|o| !o.is_null()).cloned().unwrap_or_else(|| json!({}));
    let own = object::list(&object, &["dryRun"]).to_vec();
    let asked = object::list(&w.options.object, &["dryRun"]).to_vec();
    if !own.is_empty() && !asked.is_empty() && own != asked {
        let show = |list: &[Value]| {
            let texts: Vec<&str> = list.iter().filter_map(Value::as_str).collect();
            format!("[{}]", texts.join(" "))
        };
        let (asked, own) = (show(&asked), show(&own));
        let why = format!("Non-matching dry-run options in request and content: {asked} and {own}");
        return Err(Status::new(500, "", why));
    }
    if own.is_empty() && !asked.is_empty() {
        object["dryRun"] = asked.into();
    }
    DeleteOptions::from_object(object)
}

/// Deletes a pod that no budget protects any more; gives the pod back when its budgets must be asked.
async fn evict_past_budgets(w: &Write<'_>, options: &DeleteOptions) -> Result<Option<Value>, Status> {
    let attempts = if options.preconditions.resource_version.is_some() { 1 } else { ATTEMPTS };
    for attempt in 1.. {
        let pod = internal::get(w.api, w.row, w.namespace, w.name).await?;
        if !ignores_budgets(&pod) {
            return Ok(Some(pod));
        }
        // A pod that is over can't come back; one that is pending may have started meanwhile.
        let version = (!is_over(&pod)).then(|| object::meta_text(&pod, "resourceVersion"));
        match delete(w, options, version).await {
            Err(status) if status.reason == "Conflict" && attempt < attempts => pause().await,
            result => return result.map(|()| None),
        }
    }
    unreachable!("the loop ends with a result")
}

async fn pause() {
    tokio::time::sleep(std::time::Duration::from_millis(rand::random_range(10..50))).await;
}

fn is_over(pod: &Value) -> bool {
    matches!(object::text(pod, &["status", "phase"]), "Succeeded" | "Failed") || object::deleting(pod)
}

fn ignores_budgets(pod: &Value) -> bool {
    is_over(pod) || object::text(pod, &["status", "phase"]) == "Pending"
}

fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    object::list(object, &["status", "conditions"]).iter().find(|c| object::text(c, &["type"]) == kind)
}

fn is_ready(pod: &Value) -> bool {
    condition(pod, "Ready").is_some_and(|c| object::text(c, &["status"]) == "True")
}

fn number(object: &Value, path: &[&str]) -> i64 {
    object::at(object, path).and_then(Value::as_i64).unwrap_or_default()
}

/// An unready pod may go when the budget says always, or when enough others are healthy.
fn may_go_unready(budget: &Value) -> bool {
    let (healthy, desired) =
        (number(budget, &["status", "currentHealthy"]), number(budget, &["status", "desiredHealthy"]));
    object::text(budget, &["spec", "unhealthyPodEvictionPolicy"]) == "AlwaysAllow"
        || (healthy >= desired && desired > 0)
}

async fn delete_unready(w: &Write<'_>, options: &DeleteOptions, pod: &Value, budget: &Value) -> Result<(), Status> {
    let version = object::meta_text(pod, "resourceVersion");
    match delete(w, options, Some(version)).await {
        // It has changed, so it may be ready now: the client has to ask again.
        Err(status) if status.reason == "Conflict" && options.preconditions.resource_version.is_none() => {
            Err(still_processed(object::name(budget)))
        }
        result => result,
    }
}

async fn budgets_of(w: &Write<'_>, pod: &Value) -> Result<Vec<Value>, Status> {
    let row = budget_row(w.api)?;
    let all = internal::list_now(w.api, &row, w.namespace).await?;
    let selects = |budget: &Value| match object::at(budget, &["spec", "selector"]) {
        Some(selector) => LabelSelector::from_object(selector).is_ok_and(|s| s.matches_object(pod)),
        None => false,
    };
    Ok(all.into_iter().filter(selects).collect())
}

fn budget_row(api: &Arc<Api>) -> Result<Arc<Row>, Status> {
    let row = api.resources.find("policy", "poddisruptionbudgets");
    row.ok_or_else(|| Status::internal("no resource poddisruptionbudgets"))
}

/// Takes one disruption from a budget.
async fn take_from(w: &Write<'_>, budget: &Value, dry_run: bool) -> Result<(), Status> {
    let row = budget_row(w.api)?;
    let name = object::name(budget);
    if dry_run {
        return disrupt(&mut budget.clone(), w.name, object::now());
    }
    let pod = w.name;
    let w = Write { row: &row, name, ..*w };
    engine::modify(&w, &|budget: &mut Value| disrupt(budget, pod, object::now())).await.map(|_| ())
}

fn too_many(retry: u32) -> Status {
    let text = "Cannot evict pod as it would violate the pod's disruption budget.";
    let status = Status::new(429, "TooManyRequests", text);
    if retry == 0 { status } else { status.retry_after(retry) }
}

fn still_processed(budget: &str) -> Status {
    let why = format!("The disruption budget {budget} is still being processed by the server.");
    too_many(10).cause("DisruptionBudget", why, "")
}

/// Counts the eviction of a pod in a budget, where the budget allows it.
fn disrupt(budget: &mut Value, pod: &str, now: i64) -> Result<(), Status> {
    let name = object::name(budget).to_string();
    let of = Of { group: "policy", name: "poddisruptionbudget" };
    if number(budget, &["status", "observedGeneration"]) < object::generation(budget) {
        return Err(still_processed(&name));
    }
    let allowed = number(budget, &["status", "disruptionsAllowed"]);
    if allowed < 0 {
        return Err(Status::forbidden(of, &name, "pdb disruptions allowed is negative"));
    }
    let disrupted = object::at(budget, &["status", "disruptedPods"]).and_then(Value::as_object);
    if disrupted.is_some_and(|pods| pods.len() > MAX_DISRUPTED) {
        let why = "DisruptedPods map too big - too many evictions not confirmed by PDB controller";
        return Err(Status::forbidden(of, &name, why));
    }
    if allowed == 0 {
        return Err(too_many(0).cause("DisruptionBudget", why_not(budget, &name), ""));
    }
    object::fields(budget, &["status"]).insert("disruptionsAllowed".into(), (allowed - 1).into());
    if allowed == 1 {
        note_exhausted(budget, now);
    }
    object::fields(budget, &["status", "disruptedPods"]).insert(pod.into(), object::time(now).into());
    Ok(())
}

fn why_not(budget: &Value, name: &str) -> String {
    let condition = condition(budget, "DisruptionAllowed").filter(|c| object::text(c, &["status"]) == "False");
    let text = |field: &str| condition.map_or("", |c| object::text(c, &[field]));
    let (reason, message) = (text("reason"), text("message"));
    let (healthy, desired) =
        (number(budget, &["status", "currentHealthy"]), number(budget, &["status", "desiredHealthy"]));
    if !message.is_empty() && reason == "SyncFailed" {
        return format!(
            "The disruption budget {name} does not allow evicting pods currently because it failed sync: {message}"
        );
    }
    if healthy <= desired {
        return format!("The disruption budget {name} needs {desired} healthy pods and has {healthy} currently");
    }
    if !message.is_empty() {
        return format!("The disruption budget {name} does not allow evicting pods currently ({reason}): {message}");
    }
    format!("The disruption budget {name} does not allow evicting pods currently")
}

/// The condition of a budget that has nothing left.
fn note_exhausted(budget: &mut Value, now: i64) {
    let observed = number(budget, &["status", "observedGeneration"]);
    let mut condition = json!({
        "type": "DisruptionAllowed",
        "status": "False",
        "observedGeneration": observed,
        "lastTransitionTime": object::time(now),
        "reason": "InsufficientPods",
        "message": "",
    });
    let list = conditions(budget);
    match list.iter_mut().find(|c| c["type"] == "DisruptionAllowed") {
        Some(old) => {
            if old["status"] == condition["status"] {
                condition["lastTransitionTime"] = old["lastTransitionTime"].take();
            }
            *old = condition;
        }
        None => list.push(condition),
    }
}

/// Marks the pod as a target of disruption, then deletes it; a resourceVersion makes sure that it is as it was seen.
async fn delete(w: &Write<'_>, options: &DeleteOptions, version: Option<&str>) -> Result<(), Status> {
    let mut options = options.clone();
    if options.preconditions.resource_version.is_none() {
        options.preconditions.resource_version = version.map(str::to_string);
    }
    if !options.dry_run {
        let preconditions = options.preconditions.clone();
        let mark = |pod: &mut Value| {
            crate::registry::delete::check(&preconditions, pod, Of { group: "", name: "Pod" })?;
            let condition = json!({
                "type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI",
                "message": "Eviction API: evicting",
            });
            set_condition(conditions(pod), condition, object::now());
            Ok(())
        };
        let marked = engine::modify(w, &mark).await?.object;
        if options.preconditions.resource_version.is_some() {
            let version = object::meta_text(&marked, "resourceVersion").to_string();
            options.preconditions.resource_version = Some(version);
        }
    }
    let delete = Delete {
        api: w.api,
        row: w.row,
        version: w.version,
        namespace: w.namespace,
        name: w.name,
        user: w.user,
        options: &options,
        reviewed: true,
        warnings: w.warnings,
    };
    delete.run().await.map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(status: Value) -> Value {
        json!({"metadata": {"name": "b", "generation": 1}, "spec": {}, "status": status})
    }

    #[test]
    fn a_budget_that_nobody_has_looked_at_answers_later() {
        let status = disrupt(&mut budget(json!({})), "p", 1000).unwrap_err();
        assert_eq!((status.code, status.reason), (429, "TooManyRequests"));
        let details = status.details.unwrap();
        assert_eq!(details.retry_after_seconds, 10);
        assert_eq!(details.causes[0].message, "The disruption budget b is still being processed by the server.");
    }

    #[test]
    fn a_budget_without_disruptions_says_how_many_pods_it_needs() {
        let status =
            json!({"observedGeneration": 1, "disruptionsAllowed": 0, "currentHealthy": 1, "desiredHealthy": 1});
        let status = disrupt(&mut budget(status), "p", 1000).unwrap_err();
        let details = status.details.unwrap();
        assert_eq!(details.causes[0].message, "The disruption budget b needs 1 healthy pods and has 1 currently");
        assert_eq!(details.retry_after_seconds, 0);
    }

    #[test]
    fn the_last_disruption_is_counted_and_the_condition_turns() {
        let mut budget = budget(json!({"observedGeneration": 1, "disruptionsAllowed": 1}));
        disrupt(&mut budget, "p", 1000).unwrap();
        assert_eq!(budget["status"]["disruptionsAllowed"], 0);
        assert_eq!(budget["status"]["disruptedPods"]["p"], object::time(1000));
        assert_eq!(budget["status"]["conditions"][0]["reason"], "InsufficientPods");
    }
}

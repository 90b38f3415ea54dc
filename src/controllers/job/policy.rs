//! The policies of a Job: what a failed pod means, and which indexes are enough for success.

use super::indexes::Indexes;
use crate::common::pods;
use k8s_openapi::api::batch::v1::{PodFailurePolicy, PodFailurePolicyOnExitCodesRequirement, SuccessPolicy};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};

/// What the first rule that takes a failed pod says.
#[derive(Debug, PartialEq)]
pub(super) struct Ruling<'a> {
    /// `Ignore`, `Count`, `FailIndex` or `FailJob`.
    pub(super) action: &'a str,
    /// Why, for people.
    pub(super) why: String,
}

/// The first rule of the policy that takes a failed pod.
pub(super) fn ruling<'a>(policy: Option<&'a PodFailurePolicy>, pod: &Pod) -> Option<Ruling<'a>> {
    let (namespace, name) = pods::names(&pod.metadata);
    let rules = policy?.rules.iter().enumerate();
    rules.into_iter().find_map(|(at, rule)| {
        let action = rule.action.as_str();
        let matching = format!("matching {action} rule at index {at}");
        let why = if let Some(exit) = &rule.on_exit_codes {
            let (container, code) = exited(pod, exit)?;
            format!("Container {container} for pod {namespace}/{name} failed with exit code {code} {matching}")
        } else {
            let conditions = pod.status.as_ref()?.conditions.as_ref()?;
            let patterns = rule.on_pod_conditions.as_deref().unwrap_or_default();
            let hit = conditions.iter().find(|condition| {
                patterns.iter().any(|pattern| {
                    pattern.type_ == condition.type_ && pattern.status.as_deref().unwrap_or("True") == condition.status
                })
            })?;
            format!("Pod {namespace}/{name} has condition {} {matching}", hit.type_)
        };
        Some(Ruling { action, why })
    })
}

/// The first container whose failure is one of those: its name and exit code.
fn exited<'a>(pod: &'a Pod, wanted: &PodFailurePolicyOnExitCodesRequirement) -> Option<(&'a str, i32)> {
    let status = pod.status.as_ref()?;
    let all = status.container_statuses.iter().chain(&status.init_container_statuses).flatten();
    let failed = all.filter_map(|container| Some((container.name.as_str(), exit_code(container)?)));
    let mut hits = failed.filter(|(name, code)| {
        let codes = match wanted.operator.as_str() {
            "In" => wanted.values.contains(code),
            "NotIn" => !wanted.values.contains(code),
            _ => false,
        };
        *code != 0 && codes && wanted.container_name.as_deref().is_none_or(|wanted| wanted == *name)
    });
    hits.next()
}

fn exit_code(container: &ContainerStatus) -> Option<i32> {
    Some(container.state.as_ref()?.terminated.as_ref()?.exit_code)
}

/// What to tell when the indexes that are done are enough.
pub(super) fn success(policy: Option<&SuccessPolicy>, completions: i32, done: &Indexes) -> Option<String> {
    let rules = policy.filter(|_| !done.is_empty())?.rules.iter();
    let at = rules.into_iter().position(|rule| match (&rule.succeeded_indexes, rule.succeeded_count) {
        (Some(wanted), count) => {
            let wanted = Indexes::parse(wanted, completions);
            let reached = wanted.common(done);
            !wanted.is_empty() && (reached == wanted.len() || count.is_some_and(|count| reached >= count))
        }
        (None, Some(count)) => done.len() >= count,
        (None, None) => false,
    })?;
    Some(format!("Matched rules at index {at}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn failed(code: i32, condition: &str) -> Pod {
        let container = json!({"name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"terminated": {"exitCode": code}}});
        serde_json::from_value(json!({"metadata": {"namespace": "a", "name": "p"}, "status": {"phase": "Failed",
            "containerStatuses": [container], "conditions": [{"type": condition, "status": "True"}]}}))
        .unwrap()
    }

    fn policy(rules: Value) -> PodFailurePolicy {
        serde_json::from_value(json!({"rules": rules})).unwrap()
    }

    #[test]
    fn the_first_rule_that_takes_a_failed_pod_decides() {
        let rules = policy(json!([
            {"action": "FailIndex", "onExitCodes": {"operator": "In", "values": [3]}},
            {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
            {"action": "FailJob", "onExitCodes": {"operator": "NotIn", "values": [4], "containerName": "c"}},
        ]));
        let ruled = |code, condition| ruling(Some(&rules), &failed(code, condition));
        assert_eq!(ruled(3, "DisruptionTarget").unwrap().action, "FailIndex");
        let told = ruled(5, "DisruptionTarget").unwrap();
        assert_eq!(
            (told.action, told.why.as_str()),
            ("Ignore", "Pod a/p has condition DisruptionTarget matching Ignore rule at index 1")
        );
        let told = ruled(5, "Ready").unwrap();
        assert_eq!(told.why, "Container c for pod a/p failed with exit code 5 matching FailJob rule at index 2");
        assert_eq!(ruled(4, "Ready"), None);
        assert_eq!(ruled(0, "Ready"), None, "a container that succeeded matches nothing");
    }

    #[test]
    fn enough_indexes_are_a_success() {
        let policy: SuccessPolicy = serde_json::from_value(json!({"rules": [
            {"succeededIndexes": "0,2-3"}, {"succeededIndexes": "4-9", "succeededCount": 2}, {"succeededCount": 6},
        ]}))
        .unwrap();
        let success = |done: &str| success(Some(&policy), 20, &Indexes::parse(done, 20));
        assert_eq!(success("0,2"), None);
        assert_eq!(success("0-3").as_deref(), Some("Matched rules at index 0"));
        assert_eq!(success("5,7").as_deref(), Some("Matched rules at index 1"));
        assert_eq!(success("1,10-14").as_deref(), Some("Matched rules at index 2"));
        assert_eq!(success(""), None);
    }
}

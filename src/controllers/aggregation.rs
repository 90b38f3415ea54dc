//! clusterrole-aggregation-controller: roles that gather the rules of others, chosen by labels.

use crate::common::pods::selects;
use crate::context::{Context, Fault, Outcome};
use api::selector::LabelSelector;
use client::{Informer, Key, Queue, retry};
use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule};
use kube::api::{Patch, PatchParams};
use serde_json::json;
use std::sync::Arc;

pub(crate) async fn run(context: Context) {
    let roles = context.informer::<ClusterRole>();
    let queue = Queue::<Key>::default();
    let (wake, all) = (queue.clone(), roles.clone());
    roles.on_change(move |change| {
        wake.add(Key::of(&change.object().metadata));
        // Any role may be part of any aggregate.
        let aggregates = all.list().into_iter().filter(|role| role.aggregation_rule.is_some());
        aggregates.for_each(|role| wake.add(Key::of(&role.metadata)));
    });
    roles.synced().await;
    context.resync_keys(&roles, &queue);
    context.serve(&queue, 5, |key| reconcile(&context, &roles, key)).await;
}

/// The rules that an aggregate must have; nothing when it has them, or is none.
fn plan(role: &ClusterRole, all: &[Arc<ClusterRole>]) -> Result<Option<Vec<PolicyRule>>, Fault> {
    let Some(aggregation) = &role.aggregation_rule else { return Ok(None) };
    let mut rules: Vec<PolicyRule> = Vec::new();
    for selector in aggregation.cluster_role_selectors.iter().flatten() {
        let selector = LabelSelector::from_typed(Some(selector))?;
        for other in all {
            if other.metadata.name == role.metadata.name || !selects(&selector, &other.metadata) {
                continue;
            }
            for rule in other.rules.iter().flatten() {
                if !rules.contains(rule) {
                    rules.push(rule.clone());
                }
            }
        }
    }
    Ok(Some(rules).filter(|rules| role.rules.as_deref().unwrap_or_default() != rules.as_slice()))
}

async fn reconcile(context: &Context, roles: &Informer<ClusterRole>, key: Key) -> Outcome {
    let Some(role) = roles.get(&key) else { return Ok(None) };
    let Some(rules) = plan(&role, &roles.list())? else { return Ok(None) };
    let patch = json!({"metadata": {"uid": role.metadata.uid}, "rules": rules});
    let api = context.all::<ClusterRole>();
    retry::ignore_not_found(api.patch(&key.name, &PatchParams::default(), &Patch::Merge(patch)).await)?;
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn role(name: &str, labels: Value, verbs: &[&str], aggregates: Option<Value>) -> Arc<ClusterRole> {
        let rules: Vec<_> =
            verbs.iter().map(|verb| json!({"apiGroups": [""], "resources": ["pods"], "verbs": [verb]})).collect();
        let rule = aggregates.map(|labels| json!({"clusterRoleSelectors": [{"matchLabels": labels}]}));
        let role = json!({"metadata": {"name": name, "labels": labels}, "rules": rules, "aggregationRule": rule});
        Arc::new(serde_json::from_value(role).unwrap())
    }

    #[test]
    fn an_aggregate_has_the_rules_of_all_it_selects_once() {
        let all = [
            role("a", json!({"to": "view"}), &["get", "list"], None),
            role("b", json!({"to": "view"}), &["list", "watch"], None),
            role("c", json!({"to": "edit"}), &["update"], None),
        ];
        let view = role("view", json!({}), &[], Some(json!({"to": "view"})));
        let rules = plan(&view, &all).unwrap().unwrap();
        let verbs: Vec<_> = rules.iter().map(|rule| rule.verbs[0].as_str()).collect();
        assert_eq!(verbs, ["get", "list", "watch"]);
        let done = ClusterRole { rules: Some(rules), ..ClusterRole::clone(&view) };
        assert_eq!(plan(&done, &all).unwrap(), None);
        assert_eq!(plan(&all[0], &all).unwrap(), None);
    }
}

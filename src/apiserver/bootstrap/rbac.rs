//! The bootstrap roles and bindings: names, rules and subjects as upstream's, kept in `rbac.json`.
//!
//! A role that is there gets the rules it lacks, a binding the subjects, unless it says that it wants none of that
//! (`rbac.authorization.kubernetes.io/autoupdate: "false"`); what is more than ours stays.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use api::Value;
use api::status::Status;
use futures::future::try_join_all;
use serde::Deserialize;
use serde_json::json;

use super::Wanted;
use crate::Api;
use crate::authz::rbac::{Rule, uncovered};

const GROUP: &str = "rbac.authorization.k8s.io";
const AUTOUPDATE: &str = "rbac.authorization.kubernetes.io/autoupdate";

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Policy {
    cluster_roles: Vec<Role>,
    cluster_role_bindings: Vec<Binding>,
    roles: Vec<Role>,
    role_bindings: Vec<Binding>,
}

#[derive(Deserialize)]
struct Role {
    name: String,
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    rules: Option<Vec<Rule>>,
    aggregate: Option<Vec<BTreeMap<String, String>>>,
}

#[derive(Deserialize)]
struct Binding {
    name: String,
    #[serde(default)]
    namespace: String,
    role: String,
    #[serde(default = "cluster_role")]
    kind: String,
    subjects: Vec<Subject>,
}

#[derive(Deserialize)]
struct Subject {
    kind: String,
    name: String,
    #[serde(default)]
    namespace: String,
}

fn cluster_role() -> String {
    "ClusterRole".into()
}

static POLICY: LazyLock<Policy> =
    LazyLock::new(|| serde_json::from_str(include_str!("rbac.json")).expect("rbac.json is part of the program"));

/// What every kubelet may do, beside what is related to its pods.
pub fn node_rules() -> Vec<Rule> {
    let role = POLICY.cluster_roles.iter().find(|r| r.name == "system:node");
    role.and_then(|r| r.rules.clone()).unwrap_or_default()
}

fn metadata(name: &str, labels: &BTreeMap<String, String>) -> Value {
    let mut all = BTreeMap::from([("kubernetes.io/bootstrapping".to_string(), "rbac-defaults".to_string())]);
    all.extend(labels.clone());
    json!({"name": name, "labels": all, "annotations": {AUTOUPDATE: "true"}})
}

impl Role {
    fn wanted(&self) -> Wanted {
        let mut object = json!({"metadata": metadata(&self.name, &self.labels), "rules": self.rules});
        if let Some(labels) = &self.aggregate {
            let selectors: Vec<Value> = labels.iter().map(|l| json!({"matchLabels": l})).collect();
            object["aggregationRule"] = json!({"clusterRoleSelectors": selectors});
        }
        let plural = if self.namespace.is_empty() { "clusterroles" } else { "roles" };
        Wanted { group: GROUP, plural, namespace: self.namespace.clone(), object }
    }
}

impl Binding {
    fn wanted(&self) -> Wanted {
        let object = json!({
            "metadata": metadata(&self.name, &BTreeMap::new()),
            "roleRef": {"apiGroup": GROUP, "kind": self.kind, "name": self.role},
            "subjects": self.subjects.iter().map(Subject::value).collect::<Vec<_>>(),
        });
        let plural = if self.namespace.is_empty() { "clusterrolebindings" } else { "rolebindings" };
        Wanted { group: GROUP, plural, namespace: self.namespace.clone(), object }
    }
}

impl Subject {
    fn value(&self) -> Value {
        match self.kind.as_str() {
            "ServiceAccount" => json!({"kind": self.kind, "name": self.name, "namespace": self.namespace}),
            _ => json!({"kind": self.kind, "name": self.name, "apiGroup": GROUP}),
        }
    }
}

/// Which of the roles and bindings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Those of the cluster.
    Cluster,
    /// Those in namespaces, which must be there.
    Namespaced,
}

/// Makes and mends the roles and bindings of a scope.
///
/// # Errors
/// The first that can't be written.
pub async fn ensure(api: &Arc<Api>, scope: Scope) -> Result<(), Status> {
    let (roles, bindings) = match scope {
        Scope::Cluster => (&POLICY.cluster_roles, &POLICY.cluster_role_bindings),
        Scope::Namespaced => (&POLICY.roles, &POLICY.role_bindings),
    };
    let roles = try_join_all(roles.iter().map(|role| super::ensure(api, role.wanted(), &amend_role)));
    let bindings = try_join_all(bindings.iter().map(|binding| super::ensure(api, binding.wanted(), &amend_binding)));
    futures::try_join!(roles, bindings).map(|_| ())
}

fn protected(there: &Value) -> bool {
    there["metadata"]["annotations"][AUTOUPDATE] == "false"
}

/// The role with the rules, labels and aggregation it lacks; `None` when it lacks nothing.
fn amend_role(there: &Value, wanted: &Value) -> Option<Value> {
    if protected(there) {
        return None;
    }
    let rules = |v: &Value| Option::<Vec<Rule>>::deserialize(&v["rules"]).ok().flatten().unwrap_or_default();
    let mut amended = with_metadata(there, wanted);
    if !wanted["aggregationRule"].is_null() {
        // The rules of such a role are a controller's to fill in.
        amended["aggregationRule"] = wanted["aggregationRule"].clone();
    } else {
        let (held, ours) = (rules(there), rules(wanted));
        let lacking: Vec<Rule> =
            ours.into_iter().filter(|r| !uncovered(&held, std::slice::from_ref(r)).is_empty()).collect();
        if !lacking.is_empty() {
            let all: Vec<Rule> = held.into_iter().chain(lacking).collect();
            amended["rules"] = serde_json::to_value(all).unwrap_or_default();
        }
    }
    (amended != *there).then_some(amended)
}

fn amend_binding(there: &Value, wanted: &Value) -> Option<Value> {
    if protected(there) || there["roleRef"] != wanted["roleRef"] {
        // A binding to another role is somebody's own; a role reference can't be changed anyway.
        return None;
    }
    let mut amended = with_metadata(there, wanted);
    let mut subjects = there["subjects"].as_array().cloned().unwrap_or_default();
    let lacking: Vec<Value> =
        wanted["subjects"].as_array().into_iter().flatten().filter(|s| !subjects.contains(s)).cloned().collect();
    if !lacking.is_empty() {
        subjects.extend(lacking);
        amended["subjects"] = subjects.into();
    }
    (amended != *there).then_some(amended)
}

fn with_metadata(there: &Value, wanted: &Value) -> Value {
    let mut amended = there.clone();
    for field in ["labels", "annotations"] {
        for (key, value) in wanted["metadata"][field].as_object().into_iter().flatten() {
            if amended["metadata"][field][key].is_null() {
                amended["metadata"][field][key] = value.clone();
            }
        }
    }
    amended
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_policy_is_read_and_complete() {
        assert_eq!(POLICY.cluster_roles.len(), 69);
        assert!(POLICY.cluster_role_bindings.iter().all(|b| POLICY.cluster_roles.iter().any(|r| r.name == b.role)));
        assert!(POLICY.role_bindings.iter().all(|b| POLICY.roles.iter().any(|r| r.name == b.role)));
        assert!(!node_rules().is_empty());
    }

    #[test]
    fn a_role_gets_what_it_lacks_and_keeps_what_is_more() {
        let wanted = Role {
            name: "r".into(),
            namespace: String::new(),
            labels: BTreeMap::new(),
            rules: serde_json::from_value(json!([{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]))
                .expect("rules"),
            aggregate: None,
        }
        .wanted()
        .object;
        assert_eq!(amend_role(&wanted, &wanted), None);
        let mut more = wanted.clone();
        more["rules"] = json!([{"verbs": ["*"], "apiGroups": [""], "resources": ["*"]}]);
        assert_eq!(amend_role(&more, &wanted), None);
        let mut less = wanted.clone();
        less["rules"] = json!([{"verbs": ["list"], "apiGroups": [""], "resources": ["pods"]}]);
        assert_eq!(amend_role(&less, &wanted).expect("amended")["rules"].as_array().map(Vec::len), Some(2));
        less["metadata"]["annotations"][AUTOUPDATE] = "false".into();
        assert_eq!(amend_role(&less, &wanted), None);
    }
}

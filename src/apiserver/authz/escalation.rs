//! Nobody hands out rights that he does not have: checks on roles and bindings as they are written.
//!
//! Allowed are members of `system:masters`, those who may `escalate` the role or `bind` it, and changes of what only
//! the garbage collector needs.

use std::collections::{BTreeMap, BTreeSet};

use api::Value;
use api::status::Status;
use async_trait::async_trait;

use super::rbac::{Rule, uncovered};
use super::{Attributes, Decision};
use crate::registry::engine::Write;
use crate::registry::hooks::{Hooks, Undo};
use crate::registry::object;

const GROUP: &str = "rbac.authorization.k8s.io";

/// Hooks of Roles and ClusterRoles.
pub struct Roles;

/// Hooks of RoleBindings and ClusterRoleBindings.
pub struct Bindings;

#[async_trait]
impl Hooks for Roles {
    async fn begin_create(&self, w: &Write<'_>, new: &mut Value) -> Result<Undo, Status> {
        check_role(w, new)?;
        Ok(Undo::nothing())
    }

    async fn begin_update(&self, w: &Write<'_>, new: &mut Value, live: &Value) -> Result<Undo, Status> {
        if !only_collected(new, live) {
            check_role(w, new)?;
        }
        Ok(Undo::nothing())
    }
}

#[async_trait]
impl Hooks for Bindings {
    async fn begin_create(&self, w: &Write<'_>, new: &mut Value) -> Result<Undo, Status> {
        check_binding(w, new)?;
        Ok(Undo::nothing())
    }

    async fn begin_update(&self, w: &Write<'_>, new: &mut Value, live: &Value) -> Result<Undo, Status> {
        let same = new.get("subjects") == live.get("subjects") && new.get("roleRef") == live.get("roleRef");
        if !(same || only_collected(new, live)) {
            check_binding(w, new)?;
        }
        Ok(Undo::nothing())
    }
}

/// True when a change is about owners and finalizers alone.
fn only_collected(new: &Value, live: &Value) -> bool {
    let rest = |object: &Value| {
        let mut object = object.clone();
        for field in ["ownerReferences", "finalizers", "managedFields"] {
            object::unset_meta(&mut object, field);
        }
        object
    };
    rest(new) == rest(live)
}

/// True where RBAC does not decide who may do what, or the user is above it.
fn exempt(w: &Write<'_>) -> bool {
    !w.api.authorizer.uses_rbac() || w.user.groups.iter().any(|g| g == "system:masters")
}

fn may(w: &Write<'_>, verb: &str, resource: &str, namespace: &str, name: &str) -> bool {
    let asked = Attributes {
        verb,
        is_resource: true,
        namespace,
        group: GROUP,
        version: "*",
        resource,
        name,
        ..Attributes::default()
    };
    matches!(w.api.authorizer.authorize(w.user, &asked), Decision::Allow(_))
}

fn check_role(w: &Write<'_>, role: &Value) -> Result<(), Status> {
    let name = object::name(role);
    if exempt(w) || may(w, "escalate", &w.row.plural, w.namespace, name) {
        return Ok(());
    }
    let refuse = |why: &str| Status::forbidden(w.row.group_resource(), name, why);
    let rules: Vec<Rule> = serde_json::from_value(role.get("rules").cloned().unwrap_or_default()).unwrap_or_default();
    confirm(w, w.namespace, &rules).map_err(|why| refuse(&why))?;
    let gathers = object::at(role, &["aggregationRule"]).is_some();
    if gathers && confirm(w, w.namespace, &everything()).is_err() {
        return Err(refuse("must have cluster-admin privileges to use an aggregationRule"));
    }
    Ok(())
}

fn everything() -> [Rule; 2] {
    let all = || vec!["*".to_string()];
    [
        Rule { verbs: all(), api_groups: all(), resources: all(), ..Rule::default() },
        Rule { verbs: all(), non_resource_urls: all(), ..Rule::default() },
    ]
}

fn check_binding(w: &Write<'_>, binding: &Value) -> Result<(), Status> {
    if exempt(w) {
        return Ok(());
    }
    let reference = |field: &str| object::text(binding, &["roleRef", field]);
    let name = reference("name");
    let (resource, namespace) =
        if reference("kind") == "ClusterRole" { ("clusterroles", "") } else { ("roles", w.namespace) };
    // The right to bind a ClusterRole in a namespace is asked for in that namespace.
    if may(w, "bind", resource, w.namespace, name) {
        return Ok(());
    }
    let of = w.row.group_resource();
    let rules = w.api.authorizer.rbac().role(namespace, name).map_err(|_| Status::not_found(of, name))?;
    confirm(w, w.namespace, &rules).map_err(|why| Status::forbidden(of, object::name(binding), why))
}

/// Checks that the user has all of these rights.
fn confirm(w: &Write<'_>, namespace: &str, wanted: &[Rule]) -> Result<(), String> {
    let (held, errors) = w.api.authorizer.rbac().rules_for(w.user, namespace);
    let missing = uncovered(&held, wanted);
    if missing.is_empty() {
        return Ok(());
    }
    let groups: Vec<String> = w.user.groups.iter().map(|g| api::field::quote(g)).collect();
    let mut text = format!(
        "user {} (groups=[{}]) is attempting to grant RBAC permissions not currently held:\n{}",
        api::field::quote(&w.user.name),
        groups.join(" "),
        describe(&missing)
    );
    if !errors.is_empty() {
        text.push_str(&format!("; resolution errors: [{}]", errors.join(", ")));
    }
    Err(text)
}

/// Rules of one right each as lines, sorted; verbs on the same thing share a line.
fn describe(rules: &[Rule]) -> String {
    let mut lines: BTreeSet<String> = BTreeSet::new();
    let mut same: BTreeMap<(Vec<String>, Vec<String>, Vec<String>), Rule> = BTreeMap::new();
    for rule in rules {
        if !rule.non_resource_urls.is_empty() {
            lines.insert(line(rule));
            continue;
        }
        let key = (rule.api_groups.clone(), rule.resources.clone(), rule.resource_names.clone());
        match same.get_mut(&key) {
            Some(known) => known.verbs.extend(rule.verbs.iter().cloned()),
            None => drop(same.insert(key, rule.clone())),
        }
    }
    lines.extend(same.values().map(line));
    lines.into_iter().collect::<Vec<_>>().join("\n")
}

fn line(rule: &Rule) -> String {
    let parts = [
        ("APIGroups", &rule.api_groups),
        ("Resources", &rule.resources),
        ("NonResourceURLs", &rule.non_resource_urls),
        ("ResourceNames", &rule.resource_names),
        ("Verbs", &rule.verbs),
    ];
    let shown = parts.iter().filter(|(_, list)| !list.is_empty()).map(|(name, list)| {
        let quoted: Vec<String> = list.iter().map(|s| api::field::quote(s)).collect();
        format!("{name}:[{}]", quoted.join(" "))
    });
    format!("{{{}}}", shown.collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn right(group: &str, resource: &str, verb: &str) -> Rule {
        let one = |s: &str| vec![s.to_string()];
        Rule { verbs: one(verb), api_groups: one(group), resources: one(resource), ..Rule::default() }
    }

    #[test]
    fn missing_rights_are_listed_by_resource() {
        let missing = [right("", "pods", "get"), right("", "events", "create"), right("", "pods", "list")];
        let want = "{APIGroups:[\"\"], Resources:[\"events\"], Verbs:[\"create\"]}\n\
                    {APIGroups:[\"\"], Resources:[\"pods\"], Verbs:[\"get\" \"list\"]}";
        assert_eq!(describe(&missing), want);
    }
}

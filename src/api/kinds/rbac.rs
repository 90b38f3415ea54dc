//! Roles and their bindings.

use crate::Value;
use crate::field::{Error, Errors, Path};
use crate::kinds::rules;
use crate::kinds::view::{View, fill, items_mut, structure};
use crate::meta::check::{self, push_all};
use crate::meta::{self, names};
use crate::resources::{Context, Scope, Strategy};

const GROUP: &str = "rbac.authorization.k8s.io";

/// Roles and ClusterRoles.
pub struct Role(pub Scope);

/// RoleBindings and ClusterRoleBindings.
pub struct Binding(pub Scope);

/// Metadata as of a new object, which these kinds look at first also on update.
fn whole(new: &Value, scope: Scope) -> Errors {
    let mut out = meta::validate(new, scope == Scope::Namespaced, &names::path_segment);
    check::kube_finalizers(&mut out, new);
    out
}

impl Strategy for Role {
    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        names::path_segment(name, prefix)
    }

    fn validate_create(&self, _cx: &Context<'_>, new: &Value) -> Errors {
        let mut out = Errors::new();
        role(&mut out, new, self.0, false);
        out
    }

    fn validate_update(&self, _cx: &Context<'_>, new: &Value, old: &Value) -> Errors {
        let mut out = whole(new, self.0);
        let selectors = old.at("aggregationRule").items("clusterRoleSelectors");
        role(&mut out, new, self.0, selectors.iter().any(check::selector_has_bad_value));
        out
    }
}

fn role(out: &mut Errors, new: &Value, scope: Scope, any_value: bool) {
    for (i, rule) in new.items("rules").iter().enumerate() {
        policy_rule(out, rule, scope, &Path::new("rules").index(i));
    }
    let Some(aggregation) = new.some("aggregationRule") else { return };
    let path = Path::new("aggregationRule").child("clusterRoleSelectors");
    if aggregation.items("clusterRoleSelectors").is_empty() {
        let detail = "at least one clusterRoleSelector required if aggregationRule is non-nil";
        out.push(Error::required(&path, detail));
    }
    for (i, selector) in aggregation.items("clusterRoleSelectors").iter().enumerate() {
        check::selector(out, selector, check::SelectorOptions { any_value }, &path.index(i));
    }
}

fn policy_rule(out: &mut Errors, rule: &Value, scope: Scope, path: &Path) {
    if rule.items("verbs").is_empty() {
        out.push(Error::required(&path.child("verbs"), "verbs must contain at least one value"));
    }
    let urls = rule.items("nonResourceURLs");
    if !urls.is_empty() {
        let mut refuse = |detail: &str| out.push(Error::invalid(&path.child("nonResourceURLs"), urls.to_vec(), detail));
        if scope == Scope::Namespaced {
            refuse("namespaced rules cannot apply to non-resource URLs");
        }
        if ["apiGroups", "resources", "resourceNames"].iter().any(|field| !rule.items(field).is_empty()) {
            refuse("rules cannot apply to both regular resources and non-resource URLs");
        }
        return;
    }
    for (field, detail) in [
        ("apiGroups", "resource rules must supply at least one api group"),
        ("resources", "resource rules must supply at least one resource"),
    ] {
        if rule.items(field).is_empty() {
            out.push(Error::required(&path.child(field), detail));
        }
    }
}

impl Strategy for Binding {
    fn default(&self, object: &mut Value) {
        fill(structure(object, "roleRef"), "apiGroup", GROUP);
        for subject in items_mut(object, "subjects") {
            if ["User", "Group"].contains(&subject.text("kind")) {
                fill(subject, "apiGroup", GROUP);
            }
        }
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        names::path_segment(name, prefix)
    }

    fn validate_create(&self, _cx: &Context<'_>, new: &Value) -> Errors {
        let mut out = Errors::new();
        binding(&mut out, new, self.0);
        out
    }

    fn validate_update(&self, _cx: &Context<'_>, new: &Value, old: &Value) -> Errors {
        let mut out = whole(new, self.0);
        binding(&mut out, new, self.0);
        if new.at("roleRef") != old.at("roleRef") {
            let shown = crate::kinds::internal::show("RoleRef", new.at("roleRef"));
            out.push(Error::invalid_shown(&Path::new("roleRef"), shown, "cannot change roleRef"));
        }
        out
    }
}

fn binding(out: &mut Errors, new: &Value, scope: Scope) {
    let (role, path) = (new.at("roleRef"), Path::new("roleRef"));
    rules::supported(out, role.text("apiGroup"), &[GROUP], &path.child("apiGroup"));
    let kinds: &[&str] = if scope == Scope::Namespaced { &["Role", "ClusterRole"] } else { &["ClusterRole"] };
    rules::supported(out, role.text("kind"), kinds, &path.child("kind"));
    match role.text("name") {
        "" => out.push(Error::required(&path.child("name"), "")),
        name => push_all(out, &path.child("name"), name, names::path_segment(name, false)),
    }
    for (i, one) in new.items("subjects").iter().enumerate() {
        subject(out, one, scope, &Path::new("subjects").index(i));
    }
}

fn subject(out: &mut Errors, subject: &Value, scope: Scope, path: &Path) {
    let (name, group) = (subject.text("name"), subject.text("apiGroup"));
    let group_path = path.child("apiGroup");
    rules::required(out, subject, "name", path);
    match subject.text("kind") {
        "ServiceAccount" => {
            if !name.is_empty() {
                rules::dns_subdomain(out, name, &path.child("name"));
            }
            rules::supported(out, group, &[""], &group_path);
            if scope == Scope::Cluster {
                rules::required(out, subject, "namespace", path);
            }
        }
        "User" | "Group" => rules::supported(out, group, &[GROUP], &group_path),
        other => rules::supported(out, other, &["ServiceAccount", "User", "Group"], &path.child("kind")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn cx() -> Context<'static> {
        Context {
            namespace: "ns",
            subresource: "",
            now: 0,
            user: crate::resources::Requester { name: "", uid: "", groups: &[], extra: None },
        }
    }

    fn texts(errors: Errors) -> Vec<String> {
        errors.into_iter().map(|e| e.to_string()).collect()
    }

    #[test]
    fn rules_need_verbs_groups_and_resources() {
        let role = json!({"rules": [{}, {"verbs": ["get"], "nonResourceURLs": ["/x"]}]});
        assert_eq!(
            texts(Role(Scope::Namespaced).validate_create(&cx(), &role)),
            [
                "rules[0].verbs: Required value: verbs must contain at least one value",
                "rules[0].apiGroups: Required value: resource rules must supply at least one api group",
                "rules[0].resources: Required value: resource rules must supply at least one resource",
                "rules[1].nonResourceURLs: Invalid value: [\"/x\"]: namespaced rules cannot apply to non-resource URLs",
            ]
        );
        assert!(Role(Scope::Cluster).validate_name("system:aggregate-to-admin", false).is_empty());
    }

    #[test]
    fn bindings_default_their_groups_and_keep_their_role() {
        let mut binding =
            json!({"roleRef": {"kind": "Role", "name": "r"}, "subjects": [{"kind": "User", "name": "u"}]});
        Binding(Scope::Namespaced).default(&mut binding);
        assert_eq!(binding["roleRef"]["apiGroup"], GROUP);
        assert_eq!(binding["subjects"][0]["apiGroup"], GROUP);
        assert!(Binding(Scope::Namespaced).validate_create(&cx(), &binding).is_empty());
        let mut other = binding.clone();
        other["roleRef"]["name"] = json!("s");
        let errors = texts(Binding(Scope::Namespaced).validate_update(&cx(), &other, &binding));
        assert!(errors.last().is_some_and(|e| e.ends_with("cannot change roleRef")), "{errors:?}");
    }
}

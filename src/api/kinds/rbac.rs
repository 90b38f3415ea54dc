//! Roles and their bindings, and the names of API services, which all may be any segment of a path.

use crate::Value;
use crate::field::{Error, Errors, Path};
use crate::kinds::view::{View, fill, items_mut, structure};
use crate::meta::check::push_all;
use crate::meta::names;
use crate::resources::{Context, Scope, Strategy};

const GROUP: &str = "rbac.authorization.k8s.io";

/// Roles and ClusterRoles.
pub struct Role(pub Scope);

/// RoleBindings and ClusterRoleBindings.
pub struct Binding(pub Scope);

fn rule(out: &mut Errors, rule: &Value, scope: Scope, path: &Path) {
    if rule.items("verbs").is_empty() {
        out.push(Error::required(&path.child("verbs"), "verbs must contain at least one value"));
    }
    let empty = |field: &str| rule.items(field).is_empty();
    if !empty("nonResourceURLs") {
        let (at, urls) = (path.child("nonResourceURLs"), rule.at("nonResourceURLs"));
        if scope == Scope::Namespaced {
            out.push(Error::invalid(&at, urls.clone(), "namespaced rules cannot apply to non-resource URLs"));
        }
        if !(empty("apiGroups") && empty("resources") && empty("resourceNames")) {
            let why = "rules cannot apply to both regular resources and non-resource URLs";
            out.push(Error::invalid(&at, urls.clone(), why));
        }
        return;
    }
    if empty("apiGroups") {
        out.push(Error::required(&path.child("apiGroups"), "resource rules must supply at least one api group"));
    }
    if empty("resources") {
        out.push(Error::required(&path.child("resources"), "resource rules must supply at least one resource"));
    }
}

fn aggregation(out: &mut Errors, role: &Value) {
    let Some(aggregation) = role.some("aggregationRule") else { return };
    let path = Path::new("aggregationRule").child("clusterRoleSelectors");
    if aggregation.items("clusterRoleSelectors").is_empty() {
        let why = "at least one clusterRoleSelector required if aggregationRule is non-nil";
        out.push(Error::required(&path, why));
    }
    for (i, selector) in aggregation.items("clusterRoleSelectors").iter().enumerate() {
        if crate::selector::LabelSelector::from_object(selector).is_err() {
            out.push(Error::invalid(&path.index(i), selector.clone(), "invalid label selector."));
        }
    }
}

impl Strategy for Role {
    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        names::path_segment(name, prefix)
    }

    fn validate_create(&self, _cx: &Context<'_>, new: &Value) -> Errors {
        let mut out = Errors::new();
        for (i, each) in new.items("rules").iter().enumerate() {
            rule(&mut out, each, self.0, &Path::new("rules").index(i));
        }
        if self.0 == Scope::Cluster {
            aggregation(&mut out, new);
        }
        out
    }

    fn validate_update(&self, cx: &Context<'_>, new: &Value, _old: &Value) -> Errors {
        self.validate_create(cx, new)
    }
}

impl Binding {
    fn kinds(&self) -> &'static [&'static str] {
        match self.0 {
            Scope::Namespaced => &["Role", "ClusterRole"],
            Scope::Cluster => &["ClusterRole"],
        }
    }

    fn role(&self, out: &mut Errors, role: &Value) {
        let path = Path::new("roleRef");
        if role.text("apiGroup") != GROUP {
            out.push(Error::not_supported(&path.child("apiGroup"), role.text("apiGroup"), &[GROUP]));
        }
        if !self.kinds().contains(&role.text("kind")) {
            out.push(Error::not_supported(&path.child("kind"), role.text("kind"), self.kinds()));
        }
        match role.text("name") {
            "" => out.push(Error::required(&path.child("name"), "")),
            name => push_all(out, &path.child("name"), name, names::path_segment(name, false)),
        }
    }

    fn subject(&self, out: &mut Errors, subject: &Value, path: &Path) {
        let (name, group) = (subject.text("name"), subject.text("apiGroup"));
        if name.is_empty() {
            out.push(Error::required(&path.child("name"), ""));
        }
        match subject.text("kind") {
            "ServiceAccount" => {
                if !name.is_empty() {
                    push_all(out, &path.child("name"), name, names::dns_subdomain(name, false));
                }
                if !group.is_empty() {
                    out.push(Error::not_supported(&path.child("apiGroup"), group, &[""]));
                }
                if self.0 == Scope::Cluster && subject.text("namespace").is_empty() {
                    out.push(Error::required(&path.child("namespace"), ""));
                }
            }
            "User" | "Group" if group == GROUP => {}
            "User" | "Group" => out.push(Error::not_supported(&path.child("apiGroup"), group, &[GROUP])),
            other => {
                let allowed = ["ServiceAccount", "User", "Group"];
                out.push(Error::not_supported(&path.child("kind"), other, &allowed));
            }
        }
    }
}

impl Strategy for Binding {
    fn default(&self, object: &mut Value) {
        fill(structure(object, "roleRef"), "apiGroup", GROUP);
        for subject in items_mut(object, "subjects") {
            if matches!(subject.text("kind"), "User" | "Group") {
                fill(subject, "apiGroup", GROUP);
            }
        }
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        names::path_segment(name, prefix)
    }

    fn validate_create(&self, _cx: &Context<'_>, new: &Value) -> Errors {
        let mut out = Errors::new();
        self.role(&mut out, new.at("roleRef"));
        for (i, subject) in new.items("subjects").iter().enumerate() {
            self.subject(&mut out, subject, &Path::new("subjects").index(i));
        }
        out
    }

    fn validate_update(&self, cx: &Context<'_>, new: &Value, old: &Value) -> Errors {
        let mut out = self.validate_create(cx, new);
        if new.at("roleRef") != old.at("roleRef") {
            out.push(Error::invalid(&Path::new("roleRef"), new.at("roleRef").clone(), "cannot change roleRef"));
        }
        out
    }
}

/// API services; their names hold a dot and may end in one (`v1.`).
pub struct ApiService;

impl Strategy for ApiService {
    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        names::path_segment(name, prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn cx() -> Context<'static> {
        Context { namespace: "ns", subresource: "", now: 0, user: "" }
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
        assert!(errors[0].ends_with("cannot change roleRef"), "{errors:?}");
    }
}

//! Who may do what: modes in the order of `--authorization-mode`; the first that has an opinion decides.
//!
//! Members of `system:masters` may do everything, whatever the modes say.

pub mod escalation;
pub mod node;
pub mod rbac;

use std::sync::Arc;

use api::status::{Of, Status};

use crate::lookup::Lookup;
use crate::request::{Info, User};

/// What is asked for, as authorizers see it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Attributes<'a> {
    /// `get`, `list` … or a method in lower case for what is no resource.
    pub verb: &'a str,
    /// About a resource; else about a path.
    pub is_resource: bool,
    /// Namespace, empty for none or all.
    pub namespace: &'a str,
    /// API group.
    pub group: &'a str,
    /// Version.
    pub version: &'a str,
    /// Plural.
    pub resource: &'a str,
    /// Subresource.
    pub subresource: &'a str,
    /// Name, empty where there is none.
    pub name: &'a str,
    /// Path of what is no resource.
    pub path: &'a str,
    /// The unparsed field selector of a list, watch or deletecollection.
    pub field_selector: &'a str,
}

impl<'a> Attributes<'a> {
    /// Of a request.
    pub fn of(info: &'a Info, query: &'a [(String, String)]) -> Self {
        let selects = matches!(info.verb.as_str(), "list" | "watch" | "deletecollection");
        let selector = query.iter().find(|(k, _)| selects && k == "fieldSelector");
        Self {
            verb: &info.verb,
            is_resource: info.is_resource,
            namespace: &info.namespace,
            group: &info.group,
            version: &info.version,
            resource: &info.resource,
            subresource: &info.subresource,
            name: &info.name,
            path: &info.path,
            field_selector: selector.map_or("", |(_, v)| v.as_str()),
        }
    }
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Yes, and why.
    Allow(String),
    /// No, whatever others say.
    Deny(String),
    /// Not mine to say; why may be empty.
    NoOpinion(String),
}

/// A way to decide.
enum Mode {
    AlwaysAllow,
    AlwaysDeny,
    Node(node::Node),
    Rbac(Arc<rbac::Rbac>),
}

/// Decides.
pub struct Authorizer {
    modes: Vec<Mode>,
    rbac: Arc<rbac::Rbac>,
}

impl Authorizer {
    /// The modes by their names.
    ///
    /// # Errors
    /// When a name is not known.
    pub fn new(modes: &[String], lookup: &Lookup) -> Result<Self, String> {
        let rbac = Arc::new(rbac::Rbac::new(lookup.clone()));
        let mode = |name: &String| match name.as_str() {
            "AlwaysAllow" => Ok(Mode::AlwaysAllow),
            "AlwaysDeny" => Ok(Mode::AlwaysDeny),
            "Node" => Ok(Mode::Node(node::Node::new(lookup.clone()))),
            "RBAC" => Ok(Mode::Rbac(rbac.clone())),
            other => Err(format!("authorization-mode {other:?} is not a valid mode")),
        };
        Ok(Self { modes: modes.iter().map(mode).collect::<Result<_, _>>()?, rbac })
    }

    /// May this user do that?
    pub fn authorize(&self, user: &User, asked: &Attributes<'_>) -> Decision {
        if user.groups.iter().any(|g| g == "system:masters") {
            return Decision::Allow(String::new());
        }
        let mut reasons = Vec::new();
        for mode in &self.modes {
            let decision = match mode {
                Mode::AlwaysAllow => Decision::Allow(String::new()),
                Mode::AlwaysDeny => Decision::NoOpinion("Everything is forbidden.".to_string()),
                Mode::Node(node) => node.authorize(user, asked),
                Mode::Rbac(rbac) => rbac.authorize(user, asked),
            };
            match decision {
                Decision::NoOpinion(reason) if reason.is_empty() => {}
                Decision::NoOpinion(reason) => reasons.push(reason),
                decided => return decided,
            }
        }
        Decision::NoOpinion(reasons.join("\n"))
    }

    /// Lets the request pass.
    ///
    /// # Errors
    /// 403 in upstream's words.
    pub fn check(&self, user: &User, asked: &Attributes<'_>) -> Result<(), Status> {
        match self.authorize(user, asked) {
            Decision::Allow(_) => Ok(()),
            Decision::Deny(reason) | Decision::NoOpinion(reason) => Err(forbidden(user, asked, &reason)),
        }
    }

    /// Bindings and roles, for rules reviews and for those who hand out rights.
    pub fn rbac(&self) -> &rbac::Rbac {
        &self.rbac
    }

    /// True when `--authorization-mode` names RBAC.
    pub fn uses_rbac(&self) -> bool {
        self.modes.iter().any(|m| matches!(m, Mode::Rbac(_)))
    }
}

/// The 403 of a request that nobody allowed.
pub fn forbidden(user: &User, asked: &Attributes<'_>, reason: &str) -> Status {
    let mut text = message(user, asked);
    if !reason.is_empty() {
        text = format!("{text}: {reason}");
    }
    Status::forbidden(Of { group: asked.group, name: asked.resource }, asked.name, text)
}

fn message(user: &User, asked: &Attributes<'_>) -> String {
    let quote = api::field::quote;
    let (name, verb) = (quote(&user.name), asked.verb);
    let text = if !asked.is_resource {
        format!("User {name} cannot {verb} path {}", quote(asked.path))
    } else {
        let resource = match asked.subresource {
            "" => quote(asked.resource),
            sub => quote(&format!("{}/{sub}", asked.resource)),
        };
        let scope = match asked.namespace {
            "" => "at the cluster scope".to_string(),
            namespace => format!("in the namespace {}", quote(namespace)),
        };
        format!("User {name} cannot {verb} resource {resource} in API group {} {scope}", quote(asked.group))
    };
    // Go's filter against markup in error texts that a browser might show.
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_have_upstreams_words() {
        let user = User { name: "ann".into(), ..User::default() };
        let pods = Attributes {
            verb: "get",
            is_resource: true,
            namespace: "ns",
            resource: "pods",
            subresource: "log",
            name: "p",
            ..Attributes::default()
        };
        assert_eq!(
            forbidden(&user, &pods, "").message,
            "pods \"p\" is forbidden: User \"ann\" cannot get resource \"pods/log\" in API group \"\" in the namespace \"ns\""
        );
        let path = Attributes { verb: "get", path: "/metrics", ..Attributes::default() };
        let status = forbidden(&user, &path, "");
        assert_eq!(status.message, "forbidden: User \"ann\" cannot get path \"/metrics\"");
        let nodes = Attributes { verb: "list", is_resource: true, resource: "nodes", ..Attributes::default() };
        assert_eq!(
            forbidden(&user, &nodes, "why").message,
            "nodes is forbidden: User \"ann\" cannot list resource \"nodes\" in API group \"\" at the cluster scope: why"
        );
    }
}

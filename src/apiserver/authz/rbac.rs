//! Roles and bindings, indexed by subject, so that a check looks only at bindings that name the user or one of its
//! groups.
//!
//! The index follows the cache without a task of its own: a check that finds the cache at a newer revision compares the
//! four persistent maps (roles and bindings) with those it was made from, which costs nothing when they are the same,
//! and works in what differs.

use std::sync::Arc;

use api::Value;
use api::status::Status;
use imbl::HashMap;
use imbl::ordmap::DiffItem;
use parking_lot::{Mutex, RwLock};
use serde::{Deserialize, Serialize};
use store::cache::{Cached, Snapshot};

use super::{Attributes, Decision};
use crate::entry::Entry;
use crate::lookup::Lookup;
use crate::request::User;

const GROUP: &str = "rbac.authorization.k8s.io";

/// A rule of a role.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Rule {
    /// Verbs, `*` for all.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    pub verbs: Vec<String>,
    /// API groups, `*` for all.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    pub api_groups: Vec<String>,
    /// Resources, with subresources behind a slash.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    pub resources: Vec<String>,
    /// Names; empty for all.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    pub resource_names: Vec<String>,
    /// Paths, with `*` at their end.
    #[serde(rename = "nonResourceURLs", deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    pub non_resource_urls: Vec<String>,
}

fn nullable<'de, D: serde::Deserializer<'de>>(d: D) -> Result<Vec<String>, D::Error> {
    Ok(Option::deserialize(d)?.unwrap_or_default())
}

fn has(list: &[String], wanted: &str) -> bool {
    list.iter().any(|l| l == "*" || l == wanted)
}

impl Rule {
    /// Does the rule allow this?
    pub fn allows(&self, asked: &Attributes<'_>) -> bool {
        match asked.is_resource {
            true => {
                has(&self.verbs, asked.verb)
                    && has(&self.api_groups, asked.group)
                    && self.names_resource(asked.resource, asked.subresource)
                    && (self.resource_names.is_empty() || self.resource_names.iter().any(|n| n == asked.name))
            }
            false => has(&self.verbs, asked.verb) && self.non_resource_urls.iter().any(|u| covers_path(u, asked.path)),
        }
    }

    fn names_resource(&self, resource: &str, subresource: &str) -> bool {
        self.resources.iter().any(|rule| {
            rule == "*"
                || match (rule.split_once('/'), subresource) {
                    (None, "") => rule == resource,
                    (Some(("*", sub)), wanted) => sub == wanted && !wanted.is_empty(),
                    (Some((res, sub)), wanted) => res == resource && sub == wanted,
                    (None, _) => false,
                }
        })
    }
}

/// Does the path pattern of a rule (`/api/*`) cover a path (or another pattern)?
fn covers_path(pattern: &str, path: &str) -> bool {
    pattern == "*"
        || pattern == path
        || pattern.strip_suffix('*').is_some_and(|p| path.starts_with(p.trim_end_matches('*')))
}

/// A binding that names somebody.
#[derive(Debug)]
struct Binding {
    /// Empty for ClusterRoleBindings.
    namespace: Arc<str>,
    name: Arc<str>,
    /// `/name` of a ClusterRole, `namespace/name` of a Role.
    role: Arc<str>,
    subjects: Vec<Subject>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Subject {
    /// A group; else a user, which a service account is as well.
    group: bool,
    name: Arc<str>,
}

type Bindings = HashMap<Arc<str>, Vec<Arc<Binding>>>;

/// Bindings of one scope by whom they name.
#[derive(Debug, Clone, Default)]
struct Scope {
    users: Bindings,
    groups: Bindings,
}

impl Scope {
    fn side(&mut self, subject: &Subject) -> &mut Bindings {
        if subject.group { &mut self.groups } else { &mut self.users }
    }

    fn add(&mut self, binding: &Arc<Binding>) {
        for subject in &binding.subjects {
            let list = self.side(subject).entry(subject.name.clone()).or_default();
            if !list.iter().any(|b| Arc::ptr_eq(b, binding)) {
                let at = list.partition_point(|b| b.name < binding.name);
                list.insert(at, binding.clone());
            }
        }
    }

    fn remove(&mut self, binding: &Binding) {
        for subject in &binding.subjects {
            let side = self.side(subject);
            let Some(list) = side.get_mut(&subject.name) else { continue };
            list.retain(|b| b.name != binding.name);
            if list.is_empty() {
                side.remove(&subject.name);
            }
        }
    }

    fn of<'s>(&'s self, user: &'s User) -> impl Iterator<Item = (&'s Arc<Binding>, Who<'s>)> {
        let mine = self.users.get(user.name.as_str()).into_iter().flatten();
        let mine = mine.map(|b| (b, Who { group: false, name: &user.name }));
        let ours = user.groups.iter().filter_map(|g| self.groups.get(g.as_str()).map(|list| (g, list)));
        mine.chain(ours.flat_map(|(g, list)| list.iter().map(move |b| (b, Who { group: true, name: g }))))
    }
}

/// As whom a binding names the user.
#[derive(Debug, Clone, Copy)]
struct Who<'a> {
    group: bool,
    name: &'a str,
}

impl std::fmt::Display for Who<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match super::super::authn::service_account::split_username(self.name).filter(|_| !self.group) {
            Some((namespace, name)) => write!(f, "ServiceAccount {:?}", format!("{name}/{namespace}")),
            None => write!(f, "{} {:?}", if self.group { "Group" } else { "User" }, self.name),
        }
    }
}

#[derive(Clone, Default)]
struct Index {
    roles: HashMap<Arc<str>, Arc<[Rule]>>,
    cluster: Scope,
    namespaces: HashMap<Arc<str>, Scope>,
    bindings: HashMap<Arc<str>, Arc<Binding>>,
}

impl Index {
    fn scope(&mut self, namespace: &Arc<str>) -> &mut Scope {
        match namespace.is_empty() {
            true => &mut self.cluster,
            false => self.namespaces.entry(namespace.clone()).or_default(),
        }
    }

    fn set_role(&mut self, key: &Arc<str>, entry: Option<&Entry>) {
        let key = role_key(key);
        match entry {
            None => drop(self.roles.remove(&key)),
            Some(entry) => drop(self.roles.insert(key, rules(entry).into())),
        }
    }

    fn set_binding(&mut self, key: &Arc<str>, entry: Option<&Entry>) {
        if let Some(old) = self.bindings.remove(key) {
            self.scope(&old.namespace).remove(&old);
        }
        if let Some(binding) = entry.and_then(binding) {
            let binding = Arc::new(binding);
            self.scope(&binding.namespace).add(&binding);
            self.bindings.insert(key.clone(), binding);
        }
    }

    /// Every rule that applies to a user in a namespace, cluster-wide ones first, or the roles that are not there.
    fn visit<'i>(
        &'i self, user: &'i User, namespace: &str,
        mut each: impl FnMut(&'i Binding, Who<'i>, Result<&'i Rule, String>) -> bool,
    ) {
        let local = self.namespaces.get(namespace).filter(|_| !namespace.is_empty());
        for scope in std::iter::once(&self.cluster).chain(local) {
            for (binding, who) in scope.of(user) {
                match self.roles.get(&binding.role) {
                    None => {
                        if !each(binding, who, Err(missing(&binding.role))) {
                            return;
                        }
                    }
                    Some(rules) => {
                        for rule in rules.iter() {
                            if !each(binding, who, Ok(rule)) {
                                return;
                            }
                        }
                    }
                }
            }
        }
    }
}

fn missing(role: &str) -> String {
    match role.strip_prefix('/') {
        Some(name) => format!("clusterrole.{GROUP} {name:?} not found"),
        None => format!("role.{GROUP} {:?} not found", role.split_once('/').map_or(role, |(_, n)| n)),
    }
}

/// `/registry/roles/ns/name` → `ns/name`, `/registry/clusterroles/name` → `/name`.
fn role_key(key: &Arc<str>) -> Arc<str> {
    match key.split_once("/clusterroles/") {
        Some((_, name)) => format!("/{name}").into(),
        None => key.split_once("/roles/").map_or("", |(_, rest)| rest).into(),
    }
}

fn rules(entry: &Entry) -> Vec<Rule> {
    let parsed = entry.parse().map_err(|e| e.message);
    let rules = parsed.and_then(|v| {
        Option::<Vec<Rule>>::deserialize(v.get("rules").unwrap_or(&Value::Null)).map_err(|e| e.to_string())
    });
    rules.map(Option::unwrap_or_default).unwrap_or_else(|why| {
        tracing::error!(role = entry.name(), %why, "role can't be read; it grants nothing");
        Vec::new()
    })
}

fn binding(entry: &Entry) -> Option<Binding> {
    let value = match entry.parse() {
        Ok(value) => value,
        Err(why) => {
            tracing::error!(binding = entry.name(), %why, "binding can't be read; it grants nothing");
            return None;
        }
    };
    let namespace = entry.namespace();
    let role = value["roleRef"]["name"].as_str()?;
    let role = match value["roleRef"]["kind"].as_str()? {
        "ClusterRole" => format!("/{role}"),
        "Role" => format!("{namespace}/{role}"),
        _ => return None,
    };
    let subjects = value["subjects"].as_array().map(|s| s.iter().filter_map(|s| subject(s, namespace)).collect());
    Some(Binding {
        namespace: namespace.into(),
        name: entry.name().into(),
        role: role.into(),
        subjects: subjects.unwrap_or_default(),
    })
}

fn subject(value: &Value, binding_namespace: &str) -> Option<Subject> {
    let name = value["name"].as_str()?;
    match value["kind"].as_str()? {
        "User" => Some(Subject { group: false, name: name.into() }),
        "Group" => Some(Subject { group: true, name: name.into() }),
        "ServiceAccount" => {
            let namespace = value["namespace"].as_str().filter(|n| !n.is_empty()).unwrap_or(binding_namespace);
            let user = format!("system:serviceaccount:{namespace}:{name}");
            (!namespace.is_empty()).then(|| Subject { group: false, name: user.into() })
        }
        _ => None,
    }
}

/// The four resources that rights come from; roles before bindings.
const RESOURCES: [&str; 4] = ["clusterroles", "roles", "clusterrolebindings", "rolebindings"];

type Entries = imbl::OrdMap<Arc<str>, Arc<Cached<Entry>>>;

#[derive(Default)]
struct Seen {
    maps: [Entries; 4],
}

/// Rights by roles and bindings.
pub struct Rbac {
    lookup: Lookup,
    prefixes: std::sync::OnceLock<[String; 4]>,
    current: RwLock<(store::Revision, Arc<Index>)>,
    seen: Mutex<Seen>,
}

impl Rbac {
    /// Over what the cache has.
    pub fn new(lookup: Lookup) -> Self {
        Self {
            lookup,
            prefixes: std::sync::OnceLock::new(),
            current: RwLock::new((-1, Arc::default())),
            seen: Mutex::default(),
        }
    }

    fn prefixes(&self) -> &[String; 4] {
        self.prefixes.get_or_init(|| RESOURCES.map(|r| self.lookup.prefix(GROUP, r).unwrap_or_default()))
    }

    /// The index, no older than the cache.
    fn index(&self) -> Arc<Index> {
        let revision = self.lookup.cache().revision();
        {
            let current = self.current.read();
            if current.0 == revision {
                return current.1.clone();
            }
        }
        let mut seen = self.seen.lock();
        let mut index: Option<Index> = None;
        for (i, prefix) in self.prefixes().iter().enumerate() {
            let Snapshot { entries, .. } = self.lookup.cache().snapshot(prefix);
            if entries.ptr_eq(&seen.maps[i]) {
                continue;
            }
            let index = index.get_or_insert_with(|| (*self.current.read().1).clone());
            work_in(index, i, &seen.maps[i], &entries);
            seen.maps[i] = entries;
        }
        let mut current = self.current.write();
        if let Some(index) = index {
            current.1 = Arc::new(index);
        }
        current.0 = revision;
        current.1.clone()
    }

    /// May this user do that, by any binding?
    pub fn authorize(&self, user: &User, asked: &Attributes<'_>) -> Decision {
        let index = self.index();
        let mut errors = Vec::new();
        let mut allowed = None;
        index.visit(user, asked.namespace, |binding, who, rule| match rule {
            Err(why) => {
                errors.push(why);
                true
            }
            Ok(rule) if rule.allows(asked) => {
                allowed = Some(reason(binding, who));
                false
            }
            Ok(_) => true,
        });
        match allowed {
            Some(reason) => Decision::Allow(reason),
            None if errors.is_empty() => Decision::NoOpinion(String::new()),
            None => Decision::NoOpinion(format!("RBAC: {}", aggregate(&errors))),
        }
    }

    /// Every rule that applies to a user in a namespace (empty: cluster-wide only), and which roles are missing.
    pub fn rules_for(&self, user: &User, namespace: &str) -> (Vec<Rule>, Vec<String>) {
        let index = self.index();
        let (mut rules, mut errors) = (Vec::new(), Vec::new());
        index.visit(user, namespace, |_, _, rule| {
            match rule {
                Ok(rule) => rules.push(rule.clone()),
                Err(why) => errors.push(why),
            }
            true
        });
        (rules, errors)
    }

    /// The rules of a role; those of a ClusterRole when `namespace` is empty.
    ///
    /// # Errors
    /// 404 when there is no such role.
    pub fn role(&self, namespace: &str, name: &str) -> Result<Arc<[Rule]>, Status> {
        let of = api::status::Of { group: GROUP, name: if namespace.is_empty() { "clusterroles" } else { "roles" } };
        let found = self.index().roles.get(format!("{namespace}/{name}").as_str()).cloned();
        found.ok_or_else(|| Status::not_found(of, name))
    }
}

fn aggregate(errors: &[String]) -> String {
    match errors {
        [one] => one.clone(),
        many => format!("[{}]", many.join(", ")),
    }
}

fn reason(binding: &Binding, who: Who<'_>) -> String {
    let (kind, binding_name) = match binding.namespace.is_empty() {
        true => ("ClusterRoleBinding", binding.name.to_string()),
        false => ("RoleBinding", format!("{}/{}", binding.name, binding.namespace)),
    };
    let (role_kind, role) = match binding.role.split_once('/') {
        Some(("", role)) => ("ClusterRole", role),
        Some((_, role)) => ("Role", role),
        None => ("Role", &*binding.role),
    };
    format!("RBAC: allowed by {kind} {binding_name:?} of {role_kind} {role:?} to {who}")
}

fn work_in(index: &mut Index, resource: usize, old: &Entries, new: &Entries) {
    for change in old.diff(new) {
        let (key, entry) = match change {
            DiffItem::Add(key, cached) => (key, Some(cached)),
            DiffItem::Update { new: (key, cached), .. } => (key, Some(cached)),
            DiffItem::Remove(key, _) => (key, None),
        };
        let entry = entry.map(|cached| &cached.entry);
        if resource < 2 { index.set_role(key, entry) } else { index.set_binding(key, entry) }
    }
}

/// The parts of `wanted` that no rule of `held` covers, each as a rule of one verb, group and resource: what somebody
/// would hand out without having it.
pub fn uncovered(held: &[Rule], wanted: &[Rule]) -> Vec<Rule> {
    let parts = wanted.iter().flat_map(break_down);
    parts.filter(|part| !held.iter().any(|rule| covers(rule, part))).collect()
}

/// A rule as rules of one verb, one group, one resource, one name (or path) each.
fn break_down(rule: &Rule) -> Vec<Rule> {
    let mut parts = Vec::new();
    for group in &rule.api_groups {
        for resource in &rule.resources {
            for verb in &rule.verbs {
                let one = Rule {
                    verbs: vec![verb.clone()],
                    api_groups: vec![group.clone()],
                    resources: vec![resource.clone()],
                    ..Rule::default()
                };
                match rule.resource_names.is_empty() {
                    true => parts.push(one),
                    false => parts.extend(
                        rule.resource_names.iter().map(|n| Rule { resource_names: vec![n.clone()], ..one.clone() }),
                    ),
                }
            }
        }
    }
    for url in &rule.non_resource_urls {
        for verb in &rule.verbs {
            let (verbs, non_resource_urls) = (vec![verb.clone()], vec![url.clone()]);
            parts.push(Rule { verbs, non_resource_urls, ..Rule::default() });
        }
    }
    parts
}

/// Does one rule cover a part as [`break_down`] makes them?
fn covers(rule: &Rule, part: &Rule) -> bool {
    let all = |have: &[String], want: &[String]| want.iter().all(|w| has(have, w));
    let resource = |want: &String| {
        rule.resources.iter().any(|r| {
            r == "*"
                || r == want
                || matches!((r.split_once('/'), want.split_once('/')), (Some(("*", a)), Some((_, b))) if a == b)
        })
    };
    let path = |want: &String| rule.non_resource_urls.iter().any(|u| covers_path(u, want));
    all(&rule.verbs, &part.verbs)
        && all(&rule.api_groups, &part.api_groups)
        && part.resources.iter().all(resource)
        && (rule.resource_names.is_empty()
            || !part.resource_names.is_empty() && part.resource_names.iter().all(|n| rule.resource_names.contains(n)))
        && part.non_resource_urls.iter().all(path)
        && (part.resources.is_empty() || !rule.resources.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(verbs: &[&str], groups: &[&str], resources: &[&str], names: &[&str]) -> Rule {
        let own = |l: &[&str]| l.iter().map(|s| s.to_string()).collect();
        Rule {
            verbs: own(verbs),
            api_groups: own(groups),
            resources: own(resources),
            resource_names: own(names),
            non_resource_urls: Vec::new(),
        }
    }

    fn asked<'a>(verb: &'a str, group: &'a str, resource: &'a str, sub: &'a str, name: &'a str) -> Attributes<'a> {
        Attributes { verb, is_resource: true, group, resource, subresource: sub, name, ..Attributes::default() }
    }

    #[test]
    fn rules_match_as_upstreams() {
        let all = rule(&["*"], &["*"], &["*"], &[]);
        assert!(all.allows(&asked("get", "apps", "deployments", "scale", "x")));
        let pods = rule(&["get"], &[""], &["pods"], &[]);
        assert!(pods.allows(&asked("get", "", "pods", "", "x")));
        assert!(!pods.allows(&asked("get", "", "pods", "log", "x")));
        let any_scale = rule(&["get"], &["*"], &["*/scale"], &[]);
        assert!(any_scale.allows(&asked("get", "apps", "deployments", "scale", "x")));
        assert!(!any_scale.allows(&asked("get", "apps", "deployments", "", "x")));
        let named = rule(&["get", "list"], &[""], &["configmaps"], &["a"]);
        assert!(named.allows(&asked("list", "", "configmaps", "", "a")));
        assert!(!named.allows(&asked("list", "", "configmaps", "", "")));
        let urls = Rule { verbs: vec!["get".into()], non_resource_urls: vec!["/api/*".into()], ..Rule::default() };
        assert!(urls.allows(&Attributes { verb: "get", path: "/api/v1", ..Attributes::default() }));
        assert!(!urls.allows(&Attributes { verb: "get", path: "/api", ..Attributes::default() }));
    }

    #[test]
    fn what_is_not_held_is_told_part_by_part() {
        let held = [rule(&["get", "list"], &[""], &["pods"], &[])];
        let wanted = [rule(&["get", "delete"], &[""], &["pods", "secrets"], &[])];
        let missing: Vec<_> =
            uncovered(&held, &wanted).into_iter().map(|r| format!("{} {}", r.verbs[0], r.resources[0])).collect();
        assert_eq!(missing, ["delete pods", "get secrets", "delete secrets"]);
        assert!(uncovered(&[rule(&["*"], &["*"], &["*"], &[])], &wanted).is_empty());
    }
}

//! What a kubelet may do: what its node's pods need, and nothing of other nodes.
//!
//! Whether an object is needed is found out by looking at the pods of the namespace that run on the node, in the cache,
//! at the moment of the request: kubelets ask for a Secret once when a pod starts, so no graph is kept up to date.

use std::sync::Arc;

use api::Value;
use store::cache::Cached;

use super::rbac::Rule;
use super::{Attributes, Decision};
use crate::entry::Entry;
use crate::lookup::Lookup;
use crate::request::User;

/// Decides for nodes.
pub struct Node {
    lookup: Lookup,
    rules: Vec<Rule>,
}

/// What is related to a node through its pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Secret,
    ConfigMap,
    Claim,
    Volume,
    ResourceClaim,
    Attachment,
    ServiceAccount,
    Pod,
    Slice,
}

/// The node whose user this is: `system:node:<name>` in `system:nodes`. Outer `None`: no node at all.
fn identity(user: &User) -> Option<Option<&str>> {
    let name = user.name.strip_prefix("system:node:")?;
    user.groups.iter().any(|g| g == "system:nodes").then(|| Some(name).filter(|n| !n.is_empty()))
}

fn no(why: impl Into<String>) -> Decision {
    Decision::NoOpinion(why.into())
}

fn yes() -> Decision {
    Decision::Allow(String::new())
}

impl Node {
    /// Over what the cache has.
    pub fn new(lookup: Lookup) -> Self {
        Self { lookup, rules: crate::bootstrap::rbac::node_rules() }
    }

    /// May this node do that?
    pub fn authorize(&self, user: &User, asked: &Attributes<'_>) -> Decision {
        match identity(user) {
            None => no(""),
            Some(None) => no(format!("unknown node for user {:?}", user.name)),
            Some(Some(node)) => self.decide(node, asked),
        }
    }

    fn decide(&self, node: &str, a: &Attributes<'_>) -> Decision {
        if !a.is_resource {
            return self.by_rules(a);
        }
        match (a.group, a.resource) {
            ("", "secrets") => self.read(node, Kind::Secret, a),
            ("", "configmaps") => self.read(node, Kind::ConfigMap, a),
            ("", "persistentvolumeclaims") if a.subresource == "status" => match a.verb {
                "update" | "patch" => self.related(node, Kind::Claim, a),
                _ => no("can only get/update/patch this type"),
            },
            ("", "persistentvolumeclaims") => self.get(node, Kind::Claim, a),
            ("", "persistentvolumes") => self.get(node, Kind::Volume, a),
            ("resource.k8s.io", "resourceclaims") => self.get(node, Kind::ResourceClaim, a),
            ("storage.k8s.io", "volumeattachments") => self.get(node, Kind::Attachment, a),
            ("", "serviceaccounts") => self.service_account(node, a),
            ("coordination.k8s.io", "leases") => lease(node, a),
            ("storage.k8s.io", "csinodes") => csi_node(node, a),
            ("resource.k8s.io", "resourceslices") => self.slice(node, a),
            ("", "nodes") => own_node(node, a),
            ("", "pods") => self.pod(node, a),
            _ => self.by_rules(a),
        }
    }

    fn by_rules(&self, a: &Attributes<'_>) -> Decision {
        if self.rules.iter().any(|r| r.allows(a)) { yes() } else { no("") }
    }

    fn get(&self, node: &str, kind: Kind, a: &Attributes<'_>) -> Decision {
        match (a.verb, a.subresource) {
            ("get", "") => self.related(node, kind, a),
            ("get", _) => no("cannot get subresource"),
            _ => no("can only get individual resources of this type"),
        }
    }

    fn read(&self, node: &str, kind: Kind, a: &Attributes<'_>) -> Decision {
        match (a.verb, a.subresource, a.namespace) {
            ("get" | "list" | "watch", "", "") => no("can only read namespaced object of this type"),
            ("get" | "list" | "watch", "", _) => self.related(node, kind, a),
            ("get" | "list" | "watch", ..) => no("cannot read subresource"),
            _ => no("can only read resources of this type"),
        }
    }

    fn service_account(&self, node: &str, a: &Attributes<'_>) -> Decision {
        match (a.verb, a.subresource) {
            ("get", "") => self.read(node, Kind::ServiceAccount, a),
            ("create", _) if a.name.is_empty() => no("can only create tokens for individual service accounts"),
            ("create", "token") => self.related(node, Kind::ServiceAccount, a),
            ("create", _) => no("can only create token subresource of serviceaccount"),
            _ => no("can only create tokens for individual service accounts"),
        }
    }

    fn slice(&self, node: &str, a: &Attributes<'_>) -> Decision {
        if !a.subresource.is_empty() {
            return no("cannot authorize ResourceSlice subresources");
        }
        match a.verb {
            "create" => yes(),
            "get" | "update" | "patch" | "delete" => self.related(node, Kind::Slice, a),
            "watch" | "list" | "deletecollection" if selects(a.field_selector, "spec.nodeName", node) => yes(),
            "watch" | "list" | "deletecollection" => {
                no("can only list/watch/deletecollection resourceslices with nodeName field selector")
            }
            _ => no(
                "only the following verbs are allowed for a ResourceSlice: get, watch, list, create, update, patch, delete, deletecollection",
            ),
        }
    }

    fn pod(&self, node: &str, a: &Attributes<'_>) -> Decision {
        match (a.subresource, a.verb) {
            ("", "get") => self.get(node, Kind::Pod, a),
            ("", "list" | "watch") if selects(a.field_selector, "spec.nodeName", node) => yes(),
            ("", "list" | "watch") if !a.name.is_empty() => self.related(node, Kind::Pod, a),
            ("", "list" | "watch") => no("can only list/watch pods with spec.nodeName field selector"),
            // Only mirror pods, which admission sees to.
            ("", "create" | "delete") | ("status", "update" | "patch") | ("eviction", "create") => yes(),
            _ => no(""),
        }
    }

    fn related(&self, node: &str, kind: Kind, a: &Attributes<'_>) -> Decision {
        if a.name.is_empty() {
            return no("No Object name found");
        }
        if self.is_related(node, kind, a.namespace, a.name) {
            return yes();
        }
        no(format!("no relationship found between node '{node}' and this object"))
    }

    fn is_related(&self, node: &str, kind: Kind, namespace: &str, name: &str) -> bool {
        let on_node = |group, plural, namespace, field: &[&str]| {
            let found = self.lookup.get(group, plural, namespace, name);
            found.and_then(|f| f.entry.value().ok()).is_some_and(|v| at(&v, field) == node)
        };
        match kind {
            Kind::Pod => on_node("", "pods", namespace, &["spec", "nodeName"]),
            Kind::Slice => on_node("resource.k8s.io", "resourceslices", "", &["spec", "nodeName"]),
            Kind::Attachment => on_node("storage.k8s.io", "volumeattachments", "", &["spec", "nodeName"]),
            Kind::Volume => {
                self.claim_of_volume(name).is_some_and(|(ns, claim)| self.pods_use(node, Kind::Claim, &ns, &claim))
            }
            Kind::Secret => {
                self.pods_use(node, kind, namespace, name) || self.volumes_use_secret(node, namespace, name)
            }
            _ => self.pods_use(node, kind, namespace, name),
        }
    }

    /// Does a pod of that namespace on that node refer to the object?
    fn pods_use(&self, node: &str, kind: Kind, namespace: &str, name: &str) -> bool {
        let Some(prefix) = self.lookup.prefix("", "pods") else { return false };
        let from: Arc<str> = format!("{prefix}{namespace}/").into();
        let on_node = self.lookup.cache().snapshot(&prefix).by_field("spec.nodeName", node).unwrap_or_default();
        let here = on_node.range(from.clone()..).take_while(|(key, _)| key.starts_with(&*from));
        let mut pods = here.map(|(_, pod)| pod);
        pods.any(|pod| refers(pod, kind, name))
    }

    fn claim_of_volume(&self, volume: &str) -> Option<(String, String)> {
        let value = self.lookup.get("", "persistentvolumes", "", volume)?.entry.value().ok()?;
        let claim = &value["spec"]["claimRef"];
        Some((claim["namespace"].as_str()?.to_string(), claim["name"].as_str()?.to_string()))
    }

    /// Is the Secret one that a volume of a pod on that node names (CSI and the like)?
    fn volumes_use_secret(&self, node: &str, namespace: &str, name: &str) -> bool {
        let Some(prefix) = self.lookup.prefix("", "persistentvolumes") else { return false };
        let volumes = self.lookup.cache().snapshot(&prefix).entries;
        volumes.values().filter_map(|v| v.entry.value().ok()).any(|v| {
            let claim = &v["spec"]["claimRef"];
            let (ns, claim) = (claim["namespace"].as_str().unwrap_or(""), claim["name"].as_str().unwrap_or(""));
            volume_secrets(&v["spec"], ns).contains(&(namespace.to_string(), name.to_string()))
                && self.pods_use(node, Kind::Claim, ns, claim)
        })
    }
}

fn at<'v>(value: &'v Value, path: &[&str]) -> &'v str {
    path.iter().fold(value, |v, key| &v[*key]).as_str().unwrap_or("")
}

/// Namespace and name of the Secrets that a PersistentVolume's source names.
fn volume_secrets(spec: &Value, claim_namespace: &str) -> Vec<(String, String)> {
    let mut secrets = Vec::new();
    let mut take = |reference: &Value, name_key: &str, namespace_key: &str| {
        if let Some(name) = reference[name_key].as_str().filter(|n| !n.is_empty()) {
            let namespace = reference[namespace_key].as_str().filter(|n| !n.is_empty()).unwrap_or(claim_namespace);
            secrets.push((namespace.to_string(), name.to_string()));
        }
    };
    for source in ["cephfs", "cinder", "flexVolume", "rbd", "scaleIO", "iscsi", "storageos"] {
        take(&spec[source]["secretRef"], "name", "namespace");
    }
    take(&spec["azureFile"], "secretName", "secretNamespace");
    for key in [
        "controllerPublishSecretRef",
        "nodePublishSecretRef",
        "nodeStageSecretRef",
        "controllerExpandSecretRef",
        "nodeExpandSecretRef",
    ] {
        // Secrets of the controller's side are none of the node's business.
        if !key.starts_with("controller") {
            take(&spec["csi"][key], "name", "namespace");
        }
    }
    secrets
}

/// Does a pod refer to the object of that kind and name?
fn refers(pod: &Cached<Entry>, kind: Kind, name: &str) -> bool {
    let Ok(pod) = pod.entry.parse() else { return false };
    // A mirror pod is the node's own word: it must open no doors.
    if pod["metadata"]["annotations"]["kubernetes.io/config.mirror"].is_string() {
        return false;
    }
    let spec = &pod["spec"];
    match kind {
        Kind::ServiceAccount => spec["serviceAccountName"] == name,
        Kind::Secret => secrets(spec).contains(&name),
        Kind::ConfigMap => config_maps(spec).contains(&name),
        Kind::Claim => {
            let pod_name = at(&pod, &["metadata", "name"]);
            items(&spec["volumes"]).any(|v| {
                v["persistentVolumeClaim"]["claimName"] == name
                    || v["ephemeral"].is_object() && format!("{pod_name}-{}", at(v, &["name"])) == name
            })
        }
        Kind::ResourceClaim => {
            let status = &pod["status"];
            items(&spec["resourceClaims"]).any(|c| c["resourceClaimName"] == name)
                || items(&status["resourceClaimStatuses"]).any(|c| c["resourceClaimName"] == name)
                || status["extendedResourceClaimStatus"]["resourceClaimName"] == name
        }
        _ => false,
    }
}

fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

fn containers(spec: &Value) -> impl Iterator<Item = &Value> {
    ["initContainers", "containers", "ephemeralContainers"].into_iter().flat_map(|key| items(&spec[key]))
}

fn secrets(spec: &Value) -> Vec<&str> {
    let mut names: Vec<&Value> = items(&spec["imagePullSecrets"]).map(|s| &s["name"]).collect();
    for container in containers(spec) {
        names.extend(items(&container["env"]).map(|e| &e["valueFrom"]["secretKeyRef"]["name"]));
        names.extend(items(&container["envFrom"]).map(|e| &e["secretRef"]["name"]));
    }
    for volume in items(&spec["volumes"]) {
        names.push(&volume["secret"]["secretName"]);
        names.push(&volume["azureFile"]["secretName"]);
        names.push(&volume["csi"]["nodePublishSecretRef"]["name"]);
        for source in ["cephfs", "cinder", "flexVolume", "rbd", "scaleIO", "iscsi", "storageos"] {
            names.push(&volume[source]["secretRef"]["name"]);
        }
        names.extend(items(&volume["projected"]["sources"]).map(|s| &s["secret"]["name"]));
    }
    names.into_iter().filter_map(Value::as_str).collect()
}

fn config_maps(spec: &Value) -> Vec<&str> {
    let mut names: Vec<&Value> = Vec::new();
    for container in containers(spec) {
        names.extend(items(&container["env"]).map(|e| &e["valueFrom"]["configMapKeyRef"]["name"]));
        names.extend(items(&container["envFrom"]).map(|e| &e["configMapRef"]["name"]));
    }
    for volume in items(&spec["volumes"]) {
        names.push(&volume["configMap"]["name"]);
        names.extend(items(&volume["projected"]["sources"]).map(|s| &s["configMap"]["name"]));
    }
    names.into_iter().filter_map(Value::as_str).collect()
}

/// Does a field selector demand that the field has this value?
fn selects(selector: &str, field: &str, value: &str) -> bool {
    let terms = selector.split(',').filter_map(|t| t.split_once("==").or_else(|| t.split_once('=')));
    let mut terms = terms.filter(|(key, _)| !key.ends_with('!'));
    terms.any(|(k, v)| k == field && v == value)
}

const OWN: [&str; 5] = ["get", "create", "update", "patch", "delete"];

fn lease(node: &str, a: &Attributes<'_>) -> Decision {
    match a.verb {
        verb if !OWN.contains(&verb) => no("can only get, create, update, patch, or delete a node lease"),
        _ if a.namespace != "kube-node-lease" => {
            no("can only access leases in the \"kube-node-lease\" system namespace")
        }
        "create" => yes(),
        _ if a.name != node => no("can only access node lease with the same name as the requesting node"),
        _ => yes(),
    }
}

fn csi_node(node: &str, a: &Attributes<'_>) -> Decision {
    match a.verb {
        verb if !OWN.contains(&verb) => no("can only get, create, update, patch, or delete a CSINode"),
        _ if !a.subresource.is_empty() => no("cannot authorize CSINode subresources"),
        "create" => yes(),
        _ if a.name != node => no("can only access CSINode with the same name as the requesting node"),
        _ => yes(),
    }
}

fn own_node(node: &str, a: &Attributes<'_>) -> Decision {
    match (a.subresource, a.verb) {
        ("", "create" | "update" | "patch") | ("status", "update" | "patch") => yes(),
        ("", "get" | "list" | "watch") => match a.name {
            name if name == node => yes(),
            "" => no(format!("node '{node}' cannot read all nodes, only its own Node object")),
            other => no(format!("node '{node}' cannot read '{other}', only its own Node object")),
        },
        _ => no(""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_members_of_system_nodes_are_nodes() {
        let user = |name: &str, group: &str| User { name: name.into(), groups: vec![group.into()], ..User::default() };
        assert_eq!(identity(&user("system:node:n", "system:nodes")), Some(Some("n")));
        assert_eq!(identity(&user("system:node:", "system:nodes")), Some(None));
        assert_eq!(identity(&user("system:node:n", "other")), None);
        assert_eq!(identity(&user("ann", "system:nodes")), None);
    }

    #[test]
    fn a_lease_is_its_own_nodes_alone() {
        let a =
            |verb, namespace, name| Attributes { verb, namespace, name, is_resource: true, ..Attributes::default() };
        assert_eq!(lease("n", &a("update", "kube-node-lease", "n")), yes());
        assert_eq!(lease("n", &a("create", "kube-node-lease", "")), yes());
        assert_ne!(lease("n", &a("update", "kube-node-lease", "m")), yes());
        assert_ne!(lease("n", &a("update", "default", "n")), yes());
        assert_ne!(lease("n", &a("list", "kube-node-lease", "")), yes());
    }

    #[test]
    fn a_pods_secrets_are_found_everywhere() {
        let spec = serde_json::json!({
            "imagePullSecrets": [{"name": "a"}],
            "containers": [{"env": [{"name": "x", "valueFrom": {"secretKeyRef": {"name": "b"}}}]}],
            "ephemeralContainers": [{"envFrom": [{"secretRef": {"name": "c"}}]}],
            "volumes": [{"secret": {"secretName": "d"}}, {"projected": {"sources": [{"secret": {"name": "e"}}]}}],
        });
        assert_eq!(secrets(&spec).len(), 5);
    }

    #[test]
    fn selectors_must_demand_the_field() {
        assert!(selects("spec.nodeName=n", "spec.nodeName", "n"));
        assert!(selects("a=b,spec.nodeName==n", "spec.nodeName", "n"));
        assert!(!selects("spec.nodeName!=n", "spec.nodeName", "n"));
    }
}

//! NodeRestriction: a kubelet changes its own node, and the pods that are bound to it, and nothing else.

use api::Value;
use api::status::Status;

use super::{Operation, Plugin, Review};
use crate::authz::{Attributes, Decision};
use crate::registry::object;

const MIRROR: &str = "kubernetes.io/config.mirror";

/// The plugin.
pub struct NodeRestriction;

/// A refusal: a reason, or a Status of its own.
enum Refusal {
    Why(String),
    Status(Status),
}

impl From<Status> for Refusal {
    fn from(status: Status) -> Self {
        Refusal::Status(status)
    }
}

type Verdict = Result<(), Refusal>;

fn refuse<T>(why: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal::Why(why.into()))
}

#[async_trait::async_trait]
impl Plugin for NodeRestriction {
    fn name(&self) -> &'static str {
        "NodeRestriction"
    }

    fn handles(&self, review: &Review<'_>) -> bool {
        review.operation != Operation::Connect
            && review.user.name.starts_with("system:node:")
            && review.user.groups.iter().any(|g| g == "system:nodes")
    }

    async fn mutate(&self, review: &Review<'_>, object: &mut Value) -> Result<(), Status> {
        let node = review.user.name.strip_prefix("system:node:").unwrap_or_default();
        if node.is_empty() {
            let why = format!("could not determine node from user \"{}\"", review.user.name);
            return Err(review.forbidden(object, why));
        }
        match check(review, node, object).await {
            Ok(()) => Ok(()),
            Err(Refusal::Why(why)) => Err(review.forbidden(object, why)),
            Err(Refusal::Status(status)) => Err(status),
        }
    }
}

async fn check(review: &Review<'_>, node: &str, new: &Value) -> Verdict {
    let resource = (&*review.row.group, &*review.row.plural, review.subresource);
    match resource {
        ("", "pods", "") => check_pod(review, node, new).await,
        ("", "pods", "status") => check_pod_status(review, node, new),
        ("", "pods", "eviction") => check_eviction(review, node, new).await,
        ("", "pods", other) => {
            refuse(format!("unexpected pod subresource \"{other}\", only 'status' and 'eviction' are allowed"))
        }
        ("", "nodes", _) => check_node(review, node, new),
        ("", "persistentvolumeclaims", "status") => check_claim(review, node, new),
        ("", "persistentvolumeclaims", _) => refuse("may only update PVC status"),
        ("", "serviceaccounts", "token") => check_token(review, node, new).await,
        ("coordination.k8s.io", "leases", _) => check_lease(review, node, new),
        ("storage.k8s.io", "csinodes", _) => {
            check_name(review, node, new, "can only access CSINode with the same name as the requesting node")
        }
        ("resource.k8s.io", "resourceslices", _) => check_slice(review, node, new),
        ("certificates.k8s.io", "certificatesigningrequests", _) => check_request(review, node, new),
        _ => Ok(()),
    }
}

/// A pod as the cache has it.
async fn pod(review: &Review<'_>, name: &str) -> Result<std::sync::Arc<Value>, Refusal> {
    match review.find_settled("", "pods", review.namespace, name).await {
        Some(cached) => Ok(cached.entry.value()?),
        None => Err(Status::not_found(api::status::Of { group: "", name: "pods" }, name).into()),
    }
}

fn node_of(pod: &Value) -> &str {
    object::text(pod, &["spec", "nodeName"])
}

async fn check_pod(review: &Review<'_>, node: &str, new: &Value) -> Verdict {
    match review.operation {
        Operation::Create => check_mirror(review, node, new).await,
        Operation::Delete => {
            let pod = pod(review, review.name).await?;
            if node_of(&pod) != node {
                return refuse(format!("node \"{node}\" can only delete pods with spec.nodeName set to itself"));
            }
            Ok(())
        }
        other => refuse(format!(
            "unexpected operation \"{}\", node \"{node}\" can only create and delete mirror pods",
            other.name()
        )),
    }
}

async fn check_mirror(review: &Review<'_>, node: &str, new: &Value) -> Verdict {
    if object::annotation(new, MIRROR).is_none() {
        return refuse(format!(
            "pod does not have \"{MIRROR}\" annotation, node \"{node}\" can only create mirror pods"
        ));
    }
    if node_of(new) != node {
        return refuse(format!("node \"{node}\" can only create pods with spec.nodeName set to itself"));
    }
    let owners = object::list(new, &["metadata", "ownerReferences"]);
    let [owner] = owners else {
        let which = if owners.is_empty() { "an" } else { "a single" };
        return refuse(format!("node \"{node}\" can only create pods with {which} owner reference set to itself"));
    };
    let text = |field: &str| object::text(owner, &[field]);
    if text("apiVersion") != "v1" || text("kind") != "Node" || text("name") != node {
        return refuse(format!("node \"{node}\" can only create pods with an owner reference set to itself"));
    }
    if owner["controller"] != true {
        return refuse(format!("node \"{node}\" can only create pods with a controller owner reference set to itself"));
    }
    if owner["blockOwnerDeletion"] == true {
        return refuse(format!("node \"{node}\" must not set blockOwnerDeletion on an owner reference"));
    }
    let Some(cached) = review.find_settled("", "nodes", "", node).await else {
        return Err(Status::not_found(api::status::Of { group: "", name: "nodes" }, node).into());
    };
    let (uid, own) = (text("uid"), cached.entry.uid());
    if uid != own {
        return refuse(format!("node {node} UID mismatch: expected {uid} got {own}"));
    }
    match referenced(new) {
        Some(what) => refuse(format!("node \"{node}\" can not create pods that reference {what}")),
        None => Ok(()),
    }
}

/// The first kind of API objects that a pod refers to.
fn referenced(pod: &Value) -> Option<&'static str> {
    if !object::text(pod, &["spec", "serviceAccountName"]).is_empty() {
        return Some("serviceaccounts");
    }
    let containers =
        ["containers", "initContainers", "ephemeralContainers"].iter().flat_map(|f| object::list(pod, &["spec", f]));
    let from = |container: &Value, one: &str, all: &str| {
        let env = object::list(container, &["env"]).iter();
        let whole = object::list(container, &["envFrom"]).iter();
        env.map(|e| object::at(e, &["valueFrom", one])).chain(whole.map(|e| object::at(e, &[all]))).any(|r| r.is_some())
    };
    let volumes = object::list(pod, &["spec", "volumes"]);
    let has = |kind: &str| volumes.iter().any(|volume| object::at(volume, &[kind]).is_some());
    let projects = |kind: &str| {
        let sources = volumes.iter().flat_map(|volume| object::list(volume, &["projected", "sources"]));
        sources.into_iter().any(|source| object::at(source, &[kind]).is_some())
    };
    let containers: Vec<&Value> = containers.collect();
    let in_containers = |one: &str, all: &str| containers.iter().any(|c| from(c, one, all));
    let pull = !object::list(pod, &["spec", "imagePullSecrets"]).is_empty();
    if pull || in_containers("secretKeyRef", "secretRef") || has("secret") || projects("secret") {
        return Some("secrets");
    }
    if in_containers("configMapKeyRef", "configMapRef") || has("configMap") || projects("configMap") {
        return Some("configmaps");
    }
    if !object::list(pod, &["spec", "resourceClaims"]).is_empty() {
        return Some("resourceclaims");
    }
    volumes.iter().find_map(referenced_by_volume)
}

fn referenced_by_volume(volume: &Value) -> Option<&'static str> {
    const KINDS: [(&str, &str); 4] = [
        ("csi", "csidrivers (via CSI volumes)"),
        ("glusterfs", "endpoints (via glusterFS volumes)"),
        ("persistentVolumeClaim", "persistentvolumeclaims"),
        ("ephemeral", "persistentvolumeclaims (via ephemeral volumes)"),
    ];
    const SOURCES: [(&str, &str); 3] = [
        ("serviceAccountToken", "serviceaccounts (via projected volumes)"),
        ("clusterTrustBundle", "clustertrustbundles"),
        ("podCertificate", "podcertificates"),
    ];
    let found = |object: &Value, kinds: &[(&str, &'static str)]| {
        kinds.iter().find(|(kind, _)| object::at(object, &[kind]).is_some()).map(|(_, what)| *what)
    };
    let sources = object::list(volume, &["projected", "sources"]).iter();
    found(volume, &KINDS).or_else(|| sources.into_iter().find_map(|source| found(source, &SOURCES)))
}

fn check_pod_status(review: &Review<'_>, node: &str, new: &Value) -> Verdict {
    let (Operation::Update, Some(old)) = (review.operation, review.old) else {
        return refuse(format!("unexpected operation \"{}\"", review.operation.name()));
    };
    if node_of(old) != node {
        return refuse(format!("node \"{node}\" can only update pod status for pods with spec.nodeName set to itself"));
    }
    let labels = |pod: &Value| object::meta(pod, "labels").and_then(Value::as_object).cloned().unwrap_or_default();
    if labels(old) != labels(new) {
        return refuse(format!("node \"{node}\" cannot update labels through pod status"));
    }
    if object::list(old, &["status", "resourceClaimStatuses"])
        != object::list(new, &["status", "resourceClaimStatuses"])
    {
        return refuse(format!("node \"{node}\" cannot update resource claim statues"));
    }
    let extended = |pod: &Value| object::at(pod, &["status", "extendedResourceClaimStatus"]).cloned();
    if extended(old) != extended(new) {
        return refuse(format!("node \"{node}\" cannot update extended resource claim status"));
    }
    Ok(())
}

async fn check_eviction(review: &Review<'_>, node: &str, new: &Value) -> Verdict {
    if review.operation != Operation::Create {
        return refuse(format!("unexpected operation {}", review.operation.name()));
    }
    let name = if review.name.is_empty() { object::name(new) } else { review.name };
    if name.is_empty() {
        return refuse("could not determine pod from request data");
    }
    let pod = pod(review, name).await?;
    if node_of(&pod) != node {
        return refuse(format!("node {node} can only evict pods with spec.nodeName set to itself"));
    }
    Ok(())
}

fn check_node(review: &Review<'_>, node: &str, new: &Value) -> Verdict {
    if review.name != node {
        let other = review.name;
        return refuse(format!("node \"{node}\" is not allowed to modify node \"{other}\""));
    }
    match (review.operation, review.old) {
        (Operation::Create, _) => {
            if object::at(new, &["spec", "configSource"]).is_some() {
                return refuse(format!("node \"{node}\" is not allowed to create pods with a non-nil configSource"));
            }
            let labels = forbidden_labels(new, &Value::Null);
            if !labels.is_empty() {
                let labels = labels.join(", ");
                return refuse(format!("node \"{node}\" is not allowed to set the following labels: {labels}"));
            }
            Ok(())
        }
        (Operation::Update, Some(old)) => check_node_update(node, new, old),
        _ => Ok(()),
    }
}

fn check_node_update(node: &str, new: &Value, old: &Value) -> Verdict {
    let source = |node: &Value| object::at(node, &["spec", "configSource"]).cloned();
    if source(new).is_some() && source(new) != source(old) {
        return refuse(format!("node \"{node}\" is not allowed to update configSource to a new non-nil configSource"));
    }
    if object::list(new, &["spec", "taints"]) != object::list(old, &["spec", "taints"]) {
        return refuse(format!("node \"{node}\" is not allowed to modify taints"));
    }
    let owners = ["metadata", "ownerReferences"];
    if object::list(new, &owners) != object::list(old, &owners) {
        return refuse(format!("node \"{node}\" is not allowed to modify ownerReferences"));
    }
    let labels = forbidden_labels(new, old);
    if !labels.is_empty() {
        return refuse(format!("is not allowed to modify labels: {}", labels.join(", ")));
    }
    Ok(())
}

/// Labels that differ and that a kubelet may not set: those for isolation, and Kubernetes' own but for a few.
fn forbidden_labels(new: &Value, old: &Value) -> Vec<String> {
    let labels = |node: &Value| object::meta(node, "labels").and_then(Value::as_object).cloned().unwrap_or_default();
    let (new, old) = (labels(new), labels(old));
    let mut keys: Vec<String> = new.keys().chain(old.keys()).filter(|k| new.get(*k) != old.get(*k)).cloned().collect();
    keys.retain(|key| forbidden_label(key));
    keys.sort();
    keys.dedup();
    keys
}

fn within(namespace: &str, parent: &str) -> bool {
    namespace == parent || namespace.strip_suffix(parent).is_some_and(|rest| rest.ends_with('.'))
}

fn forbidden_label(key: &str) -> bool {
    let namespace = key.split_once('/').map_or("", |(namespace, _)| namespace);
    if within(namespace, "node-restriction.kubernetes.io") {
        return true;
    }
    let kubernetes = within(namespace, "kubernetes.io") || within(namespace, "k8s.io");
    kubernetes && !kubelet_label(key, namespace)
}

fn kubelet_label(key: &str, namespace: &str) -> bool {
    const LABELS: [&str; 11] = [
        "kubernetes.io/hostname",
        "topology.kubernetes.io/zone",
        "topology.kubernetes.io/region",
        "failure-domain.beta.kubernetes.io/zone",
        "failure-domain.beta.kubernetes.io/region",
        "beta.kubernetes.io/instance-type",
        "node.kubernetes.io/instance-type",
        "kubernetes.io/os",
        "kubernetes.io/arch",
        "beta.kubernetes.io/os",
        "beta.kubernetes.io/arch",
    ];
    LABELS.contains(&key) || within(namespace, "kubelet.kubernetes.io") || within(namespace, "node.kubernetes.io")
}

fn check_claim(review: &Review<'_>, node: &str, new: &Value) -> Verdict {
    let (Operation::Update, Some(old)) = (review.operation, review.old) else {
        return refuse(format!("unexpected operation \"{}\"", review.operation.name()));
    };
    let rest = |claim: &Value| {
        let mut claim = claim.clone();
        for field in ["resourceVersion", "managedFields"] {
            object::unset_meta(&mut claim, field);
        }
        if let Some(status) = claim.get_mut("status").and_then(Value::as_object_mut) {
            for field in ["capacity", "conditions", "allocatedResourceStatuses", "allocatedResources"] {
                status.remove(field);
            }
        }
        claim
    };
    if rest(old) != rest(new) {
        return refuse(format!(
            "node \"{node}\" is not allowed to update fields other than status.quantity and status.conditions"
        ));
    }
    Ok(())
}

async fn check_token(review: &Review<'_>, node: &str, new: &Value) -> Verdict {
    if review.operation != Operation::Create {
        return Ok(());
    }
    let reference = object::at(new, &["spec", "boundObjectRef"]).unwrap_or(&Value::Null);
    let text = |field: &str| object::text(reference, &[field]);
    if text("apiVersion") != "v1" || text("kind") != "Pod" || text("name").is_empty() {
        return refuse("node requested token not bound to a pod");
    }
    let uid = text("uid");
    if uid.is_empty() {
        return refuse("node requested token with a pod binding without a uid");
    }
    let pod = pod(review, text("name")).await?;
    if uid != object::uid(&pod) {
        return refuse(format!(
            "the UID in the bound object reference ({uid}) does not match the UID in record. The object might have \
             been deleted and then recreated"
        ));
    }
    if node_of(&pod) != node {
        return refuse("node requested token bound to a pod scheduled on a different node");
    }
    check_audience(review, &pod, new)
}

/// A kubelet asks for tokens only for the audiences that its pods name, unless it is allowed more.
fn check_audience(review: &Review<'_>, pod: &Value, request: &Value) -> Verdict {
    let audience = match object::list(request, &["spec", "audiences"]) {
        [] => "",
        [one] => one.as_str().unwrap_or_default(),
        _ => return refuse("node may only request 0 or 1 audiences"),
    };
    if names_audience(review, pod, audience) {
        return Ok(());
    }
    let asked = Attributes {
        verb: "request-serviceaccounts-token-audience",
        is_resource: true,
        namespace: review.namespace,
        version: "v1",
        resource: audience,
        name: review.name,
        ..Attributes::default()
    };
    if matches!(review.api.authorizer.authorize(review.user, &asked), Decision::Allow(_)) {
        return Ok(());
    }
    let user = &review.user.name;
    refuse(format!(
        "audience \"{audience}\" not found in pod spec volume, {user} is not authorized to request tokens for this \
         audience"
    ))
}

fn names_audience(review: &Review<'_>, pod: &Value, audience: &str) -> bool {
    object::list(pod, &["spec", "volumes"]).iter().any(|volume| {
        let mut sources = object::list(volume, &["projected", "sources"]).iter();
        let projected = sources.any(|source| {
            let token = object::at(source, &["serviceAccountToken"]);
            token.is_some_and(|token| object::text(token, &["audience"]) == audience)
        });
        projected || driver(review, pod, volume).is_some_and(|name| driver_names(review, &name, audience))
    })
}

/// The CSI driver of a volume; volume types of old are served by drivers too.
fn driver(review: &Review<'_>, pod: &Value, volume: &Value) -> Option<String> {
    let claim = object::text(volume, &["persistentVolumeClaim", "claimName"]);
    if !claim.is_empty() {
        return driver_of_claim(review, claim);
    }
    if object::at(volume, &["ephemeral"]).is_some() {
        let name = format!("{}-{}", object::name(pod), object::text(volume, &["name"]));
        return driver_of_claim(review, &name);
    }
    driver_of_source(volume)
}

fn driver_of_claim(review: &Review<'_>, name: &str) -> Option<String> {
    let claim = review.find("", "persistentvolumeclaims", review.namespace, name)?.entry.value().ok()?;
    let volume = review.find("", "persistentvolumes", "", object::text(&claim, &["spec", "volumeName"]))?;
    driver_of_source(volume.entry.value().ok()?.get("spec")?)
}

fn driver_of_source(source: &Value) -> Option<String> {
    const MIGRATED: [(&str, &str); 7] = [
        ("awsElasticBlockStore", "ebs.csi.aws.com"),
        ("gcePersistentDisk", "pd.csi.storage.gke.io"),
        ("azureDisk", "disk.csi.azure.com"),
        ("azureFile", "file.csi.azure.com"),
        ("cinder", "cinder.csi.openstack.org"),
        ("vsphereVolume", "csi.vsphere.vmware.com"),
        ("portworxVolume", "pxd.portworx.com"),
    ];
    let own = object::text(source, &["csi", "driver"]);
    if !own.is_empty() {
        return Some(own.to_string());
    }
    MIGRATED.iter().find(|(kind, _)| object::at(source, &[kind]).is_some()).map(|(_, driver)| driver.to_string())
}

fn driver_names(review: &Review<'_>, driver: &str, audience: &str) -> bool {
    let Some(cached) = review.find("storage.k8s.io", "csidrivers", "", driver) else { return false };
    let Ok(driver) = cached.entry.value() else { return false };
    object::list(&driver, &["spec", "tokenRequests"]).iter().any(|t| object::text(t, &["audience"]) == audience)
}

fn check_lease(review: &Review<'_>, node: &str, new: &Value) -> Verdict {
    if review.namespace != "kube-node-lease" {
        return refuse("can only access leases in the \"kube-node-lease\" system namespace");
    }
    check_name(review, node, new, "can only access node lease with the same name as the requesting node")
}

fn check_name(review: &Review<'_>, node: &str, new: &Value, why: &str) -> Verdict {
    let name = if review.operation == Operation::Create { object::name(new) } else { review.name };
    if name == node { Ok(()) } else { refuse(why) }
}

fn check_slice(review: &Review<'_>, node: &str, new: &Value) -> Verdict {
    let (slice, verb) = match (review.operation, review.old) {
        (Operation::Create, _) => (new, "create"),
        (Operation::Delete, Some(old)) => (old, "delete"),
        _ => return Ok(()),
    };
    if node_of(slice) == node {
        return Ok(());
    }
    refuse(format!("can only {verb} ResourceSlice with the same NodeName as the requesting node"))
}

fn check_request(review: &Review<'_>, node: &str, new: &Value) -> Verdict {
    let signer = object::text(new, &["spec", "signerName"]);
    let kubelets = ["kubernetes.io/kubelet-serving", "kubernetes.io/kube-apiserver-client-kubelet"];
    if review.operation != Operation::Create || !kubelets.contains(&signer) {
        return Ok(());
    }
    let names = super::certificates::common_names(object::text(new, &["spec", "request"]));
    match names {
        Err(why) => refuse(format!("unable to parse csr: {why}")),
        Ok(names) if names.last().map(String::as_str) == Some(review.user.name.as_str()) => Ok(()),
        Ok(_) => refuse(format!("can only create a node CSR with CN=system:node:{node}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn kubelets_may_not_set_labels_that_isolate_nodes() {
        let node = |labels: Value| json!({"metadata": {"labels": labels}});
        let new = node(json!({
            "kubernetes.io/hostname": "n", "a": "b", "node-restriction.kubernetes.io/x": "1",
            "node-role.kubernetes.io/control-plane": "", "node.kubernetes.io/y": "1", "example.com/z": "1",
        }));
        let want = ["node-restriction.kubernetes.io/x", "node-role.kubernetes.io/control-plane"];
        assert_eq!(forbidden_labels(&new, &Value::Null), want);
        assert!(forbidden_labels(&new, &new).is_empty());
    }

    #[test]
    fn mirror_pods_refer_to_nothing() {
        let pod = |volume: Value| json!({"spec": {"volumes": [volume], "containers": [{"name": "c"}]}});
        assert_eq!(referenced(&pod(json!({"name": "v", "hostPath": {"path": "/"}}))), None);
        assert_eq!(referenced(&pod(json!({"name": "v", "configMap": {"name": "c"}}))), Some("configmaps"));
    }
}

//! ServiceAccount: every pod runs as an account, whose token it finds in a projected volume.

use std::sync::Arc;
use std::time::Duration;

use api::Value;
use api::status::Status;
use serde_json::json;

use super::{Operation, Plugin, Review, items};
use crate::registry::object;

const MOUNT_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const VOLUME: &str = "kube-api-access";
const MIRROR: &str = "kubernetes.io/config.mirror";
const ENFORCE: &str = "kubernetes.io/enforce-mountable-secrets";

/// Life of a pod's token in seconds: an hour, and the seven by which the issuer knows that nobody asked for it.
const EXPIRATION: i64 = 3607;

/// The plugin.
pub struct ServiceAccount;

#[async_trait::async_trait]
impl Plugin for ServiceAccount {
    fn name(&self) -> &'static str {
        "ServiceAccount"
    }

    fn handles(&self, review: &Review<'_>) -> bool {
        (review.is("", "pods") && review.operation == Operation::Create)
            || (review.is_sub("", "pods", "ephemeralcontainers") && review.operation == Operation::Update)
    }

    async fn mutate(&self, review: &Review<'_>, pod: &mut Value) -> Result<(), Status> {
        if review.operation != Operation::Create {
            return Ok(());
        }
        if object::annotation(pod, MIRROR).is_none() {
            self.give_account(review, pod).await?;
        }
        self.validate(review, pod).await
    }

    async fn validate(&self, review: &Review<'_>, pod: &Value) -> Result<(), Status> {
        if object::annotation(pod, MIRROR).is_some() && review.operation == Operation::Create {
            return check_mirror(review, pod);
        }
        let name = object::text(pod, &["spec", "serviceAccountName"]);
        if name.is_empty() {
            let (namespace, pod_name) = (review.namespace, object::name(pod));
            let why = format!("no service account specified for pod {namespace}/{pod_name}");
            return Err(review.forbidden(pod, why));
        }
        let account = find_account(review, pod, name).await?;
        if !enforces(&account) {
            return Ok(());
        }
        let refused = match review.operation {
            Operation::Create => unreferenced(&account, pod),
            // Upstream forgets to make this one a refusal by name: it goes out as a plain error.
            _ => match unreferenced_ephemeral(&account, pod) {
                Some(why) => return Err(Status::new(500, "", why)),
                None => None,
            },
        };
        match refused {
            Some(why) => Err(review.forbidden(pod, why)),
            None => Ok(()),
        }
    }
}

impl ServiceAccount {
    async fn give_account(&self, review: &Review<'_>, pod: &mut Value) -> Result<(), Status> {
        let spec = object::fields(pod, &["spec"]);
        if spec.get("serviceAccountName").and_then(Value::as_str).is_none_or(str::is_empty) {
            spec.insert("serviceAccountName".into(), "default".into());
        }
        let name = object::text(pod, &["spec", "serviceAccountName"]).to_string();
        // The older name of the field is kept in step: clients and the kubelet read either.
        object::fields(pod, &["spec"]).insert("serviceAccount".into(), name.clone().into());
        let account = find_account(review, pod, &name).await?;
        if mounts_token(&account, pod) {
            mount_token(pod);
        }
        let secrets = object::list(&account, &["imagePullSecrets"]);
        if object::list(pod, &["spec", "imagePullSecrets"]).is_empty() && !secrets.is_empty() {
            object::fields(pod, &["spec"]).insert("imagePullSecrets".into(), secrets.to_vec().into());
        }
        Ok(())
    }
}

/// An account. The default one of a new namespace is on its way, so it is waited for.
async fn find_account(review: &Review<'_>, pod: &Value, name: &str) -> Result<Arc<Value>, Status> {
    let attempts = if name == "default" { 10 } else { 1 };
    let pause = Duration::from_millis(rand::random_range(100..200));
    for attempt in 0..attempts {
        if attempt > 0 {
            tokio::time::sleep(pause).await;
        }
        if let Some(found) = review.find_settled("", "serviceaccounts", review.namespace, name).await {
            return found.entry.value();
        }
    }
    let namespace = review.namespace;
    let why = format!("error looking up service account {namespace}/{name}: serviceaccount \"{name}\" not found");
    Err(review.forbidden(pod, why))
}

fn mounts_token(account: &Value, pod: &Value) -> bool {
    let said = |object: Option<&Value>| object.and_then(Value::as_bool);
    said(object::at(pod, &["spec", "automountServiceAccountToken"]))
        .or_else(|| said(object::at(account, &["automountServiceAccountToken"])))
        .unwrap_or(true)
}

/// Adds the volume with token, certificate and namespace, and mounts it where nothing is mounted there yet.
fn mount_token(pod: &mut Value) {
    let volumes = object::list(pod, &["spec", "volumes"]);
    let own = volumes.iter().map(|v| object::text(v, &["name"])).find(|name| name.starts_with("kube-api-access-"));
    let (name, has_volume) = match own {
        Some(name) => (name.to_string(), true),
        None => (api::meta::generate_name(&format!("{VOLUME}-"), rand::random()), false),
    };
    let mut mounted = false;
    for field in ["initContainers", "containers"] {
        let list = pod.get_mut("spec").and_then(|s| s.get_mut(field)).and_then(Value::as_array_mut);
        for container in list.into_iter().flatten() {
            let mounts = object::list(container, &["volumeMounts"]);
            if mounts.iter().any(|m| object::text(m, &["mountPath"]) == MOUNT_PATH) {
                continue;
            }
            let mount = json!({"name": name, "readOnly": true, "mountPath": MOUNT_PATH});
            items(container, &[], "volumeMounts").push(mount);
            mounted = true;
        }
    }
    if mounted && !has_volume {
        items(pod, &["spec"], "volumes").push(volume(&name));
    }
}

fn volume(name: &str) -> Value {
    let field = json!({"apiVersion": "v1", "fieldPath": "metadata.namespace"});
    json!({
        "name": name,
        "projected": {
            "defaultMode": 420,
            "sources": [
                {"serviceAccountToken": {"expirationSeconds": EXPIRATION, "path": "token"}},
                {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
                {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": field}]}},
            ],
        },
    })
}

fn check_mirror(review: &Review<'_>, pod: &Value) -> Result<(), Status> {
    if !object::text(pod, &["spec", "serviceAccountName"]).is_empty() {
        return Err(review.forbidden(pod, "a mirror pod may not reference service accounts"));
    }
    if names_secrets(pod) {
        return Err(review.forbidden(pod, "a mirror pod may not reference secrets"));
    }
    let sources =
        object::list(pod, &["spec", "volumes"]).iter().flat_map(|v| object::list(v, &["projected", "sources"]));
    if sources.into_iter().any(|source| object::at(source, &["serviceAccountToken"]).is_some()) {
        return Err(review.forbidden(pod, "a mirror pod may not use ServiceAccountToken volume projections"));
    }
    Ok(())
}

/// True when a pod refers to a secret anywhere: pull secrets, environments, volumes of every kind that can.
fn names_secrets(pod: &Value) -> bool {
    if !object::list(pod, &["spec", "imagePullSecrets"]).is_empty() {
        return true;
    }
    let fields = ["containers", "initContainers", "ephemeralContainers"];
    let mut containers = fields.iter().flat_map(|field| object::list(pod, &["spec", field]));
    if containers.any(|c| !secrets_of(c).is_empty()) {
        return true;
    }
    object::list(pod, &["spec", "volumes"]).iter().any(|volume| {
        let projected = object::list(volume, &["projected", "sources"]);
        let refers = ["azureFile", "cephfs", "cinder", "flexVolume", "rbd", "scaleIO", "iscsi", "storageos", "csi"];
        object::at(volume, &["secret"]).is_some()
            || projected.iter().any(|source| object::at(source, &["secret"]).is_some())
            || refers.iter().any(|kind| refers_to_secret(volume.get(*kind)))
    })
}

fn refers_to_secret(source: Option<&Value>) -> bool {
    let Some(source) = source else { return false };
    ["secretRef", "secretName", "nodePublishSecretRef"].iter().any(|f| source.get(*f).is_some_and(|v| !v.is_null()))
}

fn enforces(account: &Value) -> bool {
    matches!(object::annotation(account, ENFORCE), Some("1" | "t" | "T" | "true" | "TRUE" | "True"))
}

/// Secrets that a container's environment takes values from: the variable (empty for whole secrets) and the secret.
fn secrets_of(container: &Value) -> Vec<(&str, &str)> {
    let variables = object::list(container, &["env"]).iter().filter_map(|env| {
        let reference = object::at(env, &["valueFrom", "secretKeyRef"])?;
        Some((object::text(env, &["name"]), object::text(reference, &["name"])))
    });
    let whole = object::list(container, &["envFrom"]).iter().filter_map(|from| {
        let reference = object::at(from, &["secretRef"])?;
        Some(("", object::text(reference, &["name"])))
    });
    variables.chain(whole).collect()
}

fn names<'a>(account: &'a Value, field: &str) -> Vec<&'a str> {
    object::list(account, &[field]).iter().map(|s| object::text(s, &["name"])).collect()
}

fn unreferenced_in(account: &Value, pod: &Value, field: &str, word: &str) -> Option<String> {
    let (mountable, owner) = (names(account, "secrets"), object::name(account));
    for container in object::list(pod, &["spec", field]) {
        let name = object::text(container, &["name"]);
        let foreign = secrets_of(container).into_iter().find(|(_, secret)| !mountable.contains(secret));
        let Some((variable, secret)) = foreign else { continue };
        let how = if variable.is_empty() { "envFrom".to_string() } else { format!("envVar {variable}") };
        return Some(format!(
            "{word} {name} with {how} referencing secret.secretName=\"{secret}\" is not allowed because service \
             account {owner} does not reference that secret"
        ));
    }
    None
}

/// Why an account that lists its secrets does not let a pod have others.
fn unreferenced(account: &Value, pod: &Value) -> Option<String> {
    let (mountable, owner) = (names(account, "secrets"), object::name(account));
    let volumes = object::list(pod, &["spec", "volumes"]).iter();
    let foreign = volumes
        .filter_map(|volume| object::at(volume, &["secret"]))
        .map(|source| object::text(source, &["secretName"]))
        .find(|secret| !mountable.contains(secret));
    if let Some(secret) = foreign {
        return Some(format!(
            "volume with secret.secretName=\"{secret}\" is not allowed because service account {owner} does not \
             reference that secret"
        ));
    }
    let found = unreferenced_in(account, pod, "initContainers", "init container")
        .or_else(|| unreferenced_in(account, pod, "containers", "container"));
    found.or_else(|| {
        let pull = names(account, "imagePullSecrets");
        let used = object::list(pod, &["spec", "imagePullSecrets"]).iter().map(|s| object::text(s, &["name"]));
        let (i, name) = used.enumerate().find(|(_, name)| !pull.contains(name))?;
        Some(format!(
            "imagePullSecrets[{i}].name=\"{name}\" is not allowed because service account {owner} does not reference \
             that imagePullSecret"
        ))
    })
}

fn unreferenced_ephemeral(account: &Value, pod: &Value) -> Option<String> {
    unreferenced_in(account, pod, "ephemeralContainers", "ephemeral container")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_is_a_projected_volume_mounted_where_nothing_is() {
        let mut pod = json!({"spec": {"containers": [
            {"name": "a"}, {"name": "b", "volumeMounts": [{"name": "own", "mountPath": MOUNT_PATH}]},
        ]}});
        mount_token(&mut pod);
        let name = pod["spec"]["volumes"][0]["name"].as_str().unwrap().to_string();
        assert!(name.starts_with("kube-api-access-") && name.len() == "kube-api-access-".len() + 5, "{name}");
        assert_eq!(pod["spec"]["containers"][0]["volumeMounts"][0]["name"], name.as_str());
        assert_eq!(pod["spec"]["containers"][1]["volumeMounts"].as_array().unwrap().len(), 1);
    }

    #[test]
    fn the_pod_decides_before_the_account() {
        let pod = |mount: Value| json!({"spec": {"automountServiceAccountToken": mount}});
        let account = json!({"automountServiceAccountToken": false});
        assert!(mounts_token(&account, &pod(true.into())));
        assert!(!mounts_token(&account, &pod(Value::Null)));
        assert!(mounts_token(&json!({}), &pod(Value::Null)));
    }

    #[test]
    fn secrets_that_an_account_does_not_list_are_refused() {
        let account = json!({"metadata": {"name": "strict"}, "secrets": [{"name": "yes"}]});
        let env = json!([{"name": "A", "valueFrom": {"secretKeyRef": {"name": "no", "key": "k"}}}]);
        let pod = json!({"spec": {"containers": [{"name": "c", "env": env}]}});
        let text = "container c with envVar A referencing secret.secretName=\"no\" is not allowed because service \
                    account strict does not reference that secret";
        assert_eq!(unreferenced(&account, &pod).as_deref(), Some(text));
    }
}

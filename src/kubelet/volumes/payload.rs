//! The files of ConfigMap, Secret, downward API and projected volumes. Pure.

use crate::pods::downward::{self, Surroundings};
use crate::pods::{self};
use crate::runtime::security::effective;
use k8s_openapi::api::core::v1::{
    ConfigMap, DownwardAPIVolumeFile, KeyToPath, Pod, Secret, ServiceAccountTokenProjection, Volume, VolumeProjection,
};
use std::collections::{BTreeMap, HashMap};

/// One file of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Its bytes.
    pub data: Vec<u8>,
    /// Its mode.
    pub mode: u32,
    /// Its owner, when that is not root.
    pub user: Option<u32>,
}

/// Files by path below the volume.
pub type Payload = BTreeMap<String, File>;

/// An object, or that there is none.
pub type Found<T> = Option<T>;

/// Objects that a volume shows, by name, and tokens by their path.
#[derive(Debug, Default)]
pub struct Gather {
    /// ConfigMaps.
    pub config_maps: HashMap<String, Found<ConfigMap>>,
    /// Secrets.
    pub secrets: HashMap<String, Found<Secret>>,
    /// Tokens.
    pub tokens: HashMap<String, String>,
}

/// A wish for a token of the pod's service account.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TokenWish {
    /// Whom it is for; empty means the API server.
    pub audience: String,
    /// How long it shall live, in seconds.
    pub seconds: i64,
}

/// What must be fetched for a volume.
#[derive(Debug, Default)]
pub struct References {
    /// ConfigMaps by name.
    pub config_maps: Vec<String>,
    /// Secrets by name.
    pub secrets: Vec<String>,
    /// Tokens by path.
    pub tokens: Vec<(String, TokenWish)>,
}

fn projections(volume: &Volume) -> &[VolumeProjection] {
    volume.projected.as_ref().and_then(|projected| projected.sources.as_deref()).unwrap_or_default()
}

/// What a volume refers to.
pub fn references(volume: &Volume) -> References {
    let mut needs = References::default();
    needs.config_maps.extend(volume.config_map.as_ref().map(|map| map.name.clone()));
    needs.secrets.extend(volume.secret.as_ref().and_then(|secret| secret.secret_name.clone()));
    for source in projections(volume) {
        needs.config_maps.extend(source.config_map.as_ref().map(|map| map.name.clone()));
        needs.secrets.extend(source.secret.as_ref().map(|secret| secret.name.clone()));
        needs.tokens.extend(source.service_account_token.as_ref().map(|token| (token.path.clone(), wish(token))));
    }
    needs
}

fn wish(token: &ServiceAccountTokenProjection) -> TokenWish {
    TokenWish {
        audience: token.audience.clone().unwrap_or_default(),
        seconds: token.expiration_seconds.unwrap_or(3600),
    }
}

/// The files of a volume.
pub fn build(pod: &Pod, volume: &Volume, mode: u32, from: &Gather, around: &Surroundings) -> Result<Payload, String> {
    if let Some(map) = &volume.config_map {
        config_map(pod, &map.name, map.items.as_deref(), map.optional, mode, from)
    } else if let Some(secret) = &volume.secret {
        let name = secret.secret_name.as_deref().unwrap_or_default();
        secret_files(pod, name, secret.items.as_deref(), secret.optional, mode, from)
    } else if let Some(downward) = &volume.downward_api {
        downward_files(pod, downward.items.as_deref(), mode, around)
    } else {
        projected(pod, volume, mode, from, around)
    }
}

fn projected(pod: &Pod, volume: &Volume, mode: u32, from: &Gather, around: &Surroundings) -> Result<Payload, String> {
    let (mut files, mut errors) = (Payload::new(), Vec::new());
    for source in projections(volume) {
        let part = if let Some(map) = &source.config_map {
            config_map(pod, &map.name, map.items.as_deref(), map.optional, mode, from)
        } else if let Some(secret) = &source.secret {
            secret_files(pod, &secret.name, secret.items.as_deref(), secret.optional, mode, from)
        } else if let Some(downward) = &source.downward_api {
            downward_files(pod, downward.items.as_deref(), mode, around)
        } else if let Some(token) = &source.service_account_token {
            token_file(pod, token, mode, from)
        } else {
            Err("this kubelet has no support for cluster trust bundles and pod certificates".into())
        };
        match part {
            Ok(part) => files.extend(part),
            Err(error) => errors.push(error),
        }
    }
    match errors.as_slice() {
        [] => Ok(files),
        [one] => Err(one.clone()),
        many => Err(format!("[{}]", many.join(", "))),
    }
}

fn token_file(pod: &Pod, token: &ServiceAccountTokenProjection, mode: u32, from: &Gather) -> Result<Payload, String> {
    let text = from.tokens.get(&token.path).ok_or_else(|| format!("no token for {:?}", token.path))?;
    let user = common_user(pod);
    let fs_group = pods::spec(pod).security_context.as_ref().and_then(|context| context.fs_group);
    // With an owner or a group of its own the token is theirs alone; the group's right is added with the ownership.
    let mode = if user.is_some() || fs_group.is_some() { 0o600 } else { mode };
    Ok(Payload::from([(token.path.clone(), File { data: text.clone().into_bytes(), mode, user })]))
}

/// The user that all containers run as, when it is one and the same.
fn common_user(pod: &Pod) -> Option<u32> {
    let mut users = pods::places(pod)
        .filter_map(|(place, _)| pods::container_at(pod, place))
        .map(|container| effective(pod, &container).run_as_user);
    let first = users.next()??;
    users.all(|user| user == Some(first)).then_some(first as u32)
}

fn object<'a, T>(
    all: &'a HashMap<String, Found<T>>, name: &str, optional: Option<bool>, kind: &str,
) -> Result<Option<&'a T>, String> {
    match all.get(name).and_then(Option::as_ref) {
        Some(object) => Ok(Some(object)),
        None if optional == Some(true) => Ok(None),
        None => Err(format!("{kind} {name:?} not found")),
    }
}

fn config_map(
    _pod: &Pod, name: &str, items: Option<&[KeyToPath]>, optional: Option<bool>, mode: u32, from: &Gather,
) -> Result<Payload, String> {
    let Some(map) = object(&from.config_maps, name, optional, "configmap")? else { return Ok(Payload::new()) };
    let mut data: BTreeMap<&str, Vec<u8>> = BTreeMap::new();
    for (key, text) in map.data.iter().flatten() {
        data.insert(key, text.clone().into_bytes());
    }
    for (key, bytes) in map.binary_data.iter().flatten() {
        data.insert(key, bytes.0.clone());
    }
    select(data, items, optional, mode, "configmap references non-existent config key")
}

fn secret_files(
    _pod: &Pod, name: &str, items: Option<&[KeyToPath]>, optional: Option<bool>, mode: u32, from: &Gather,
) -> Result<Payload, String> {
    let Some(secret) = object(&from.secrets, name, optional, "secret")? else { return Ok(Payload::new()) };
    let data = secret.data.iter().flatten().map(|(key, bytes)| (key.as_str(), bytes.0.clone())).collect();
    select(data, items, optional, mode, "references non-existent secret key")
}

/// All keys, or those that are asked for under the paths they are asked for.
fn select(
    data: BTreeMap<&str, Vec<u8>>, items: Option<&[KeyToPath]>, optional: Option<bool>, mode: u32, missing: &str,
) -> Result<Payload, String> {
    let items = items.unwrap_or_default();
    if items.is_empty() {
        let file = |data| File { data, mode, user: None };
        return Ok(data.into_iter().map(|(key, data)| (key.to_owned(), file(data))).collect());
    }
    let mut files = Payload::new();
    for item in items {
        match data.get(item.key.as_str()) {
            Some(bytes) => {
                let mode = item.mode.map_or(mode, |mode| mode as u32);
                files.insert(item.path.clone(), File { data: bytes.clone(), mode, user: None });
            }
            None if optional == Some(true) => {}
            None => return Err(format!("{missing}: {}", item.key)),
        }
    }
    Ok(files)
}

fn downward_files(
    pod: &Pod, items: Option<&[DownwardAPIVolumeFile]>, mode: u32, around: &Surroundings,
) -> Result<Payload, String> {
    let mut files = Payload::new();
    for item in items.unwrap_or_default() {
        let text = if let Some(field) = &item.field_ref {
            downward::field(pod, &field.field_path, around)?
        } else if let Some(selector) = &item.resource_field_ref {
            let name = selector.container_name.as_deref().unwrap_or_default();
            let container = pods::place_of(pod, name).and_then(|place| pods::container_at(pod, place));
            let container = container.ok_or_else(|| format!("container {name} not found"))?;
            downward::resource(pod, &container, selector, around)?
        } else {
            continue;
        };
        let mode = item.mode.map_or(mode, |mode| mode as u32);
        files.insert(item.path.clone(), File { data: text.into_bytes(), mode, user: None });
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod() -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "n", "labels": {"a": "b"}},
            "spec": {"securityContext": {"runAsUser": 7}, "containers": [{"name": "c"}]}}))
        .unwrap()
    }

    fn volume(value: serde_json::Value) -> Volume {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_projected_volume_holds_the_files_of_all_its_sources() {
        let mut from = Gather::default();
        let map = json!({"metadata": {}, "data": {"ca.crt": "CA"}});
        from.config_maps.insert("ca".into(), Some(serde_json::from_value(map).unwrap()));
        from.tokens.insert("token".into(), "t0k3n".into());
        let volume = volume(json!({"name": "v", "projected": {"sources": [
            {"serviceAccountToken": {"path": "token"}},
            {"configMap": {"name": "ca", "items": [{"key": "ca.crt", "path": "x/ca.crt", "mode": 256}]}},
            {"secret": {"name": "none", "optional": true}},
            {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}}]}}));
        let files = build(&pod(), &volume, 0o644, &from, &Surroundings::default()).unwrap();
        let file = |data: &str, mode, user| File { data: data.into(), mode, user };
        let expected = [
            ("namespace".to_owned(), file("n", 0o644, None)),
            ("token".to_owned(), file("t0k3n", 0o600, Some(7))),
            ("x/ca.crt".to_owned(), file("CA", 0o400, None)),
        ];
        assert_eq!(files, Payload::from(expected));
    }

    #[test]
    fn what_is_missing_is_named_in_upstreams_words() {
        let mut from = Gather::default();
        from.config_maps.insert("no".into(), None);
        let run = |value| build(&pod(), &volume(value), 0o644, &from, &Surroundings::default()).unwrap_err();
        assert_eq!(run(json!({"name": "v", "configMap": {"name": "no"}})), "configmap \"no\" not found");
    }
}

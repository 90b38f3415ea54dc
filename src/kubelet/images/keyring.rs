//! Credentials for registries, from the pod's pull secrets.

use super::name::parse;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use k8s_cri::v1::AuthConfig;
use k8s_openapi::api::core::v1::Secret;
use serde::Deserialize;
use std::collections::BTreeMap;

#[derive(Deserialize)]
struct DockerConfig {
    #[serde(default)]
    auths: BTreeMap<String, Entry>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Entry {
    username: String,
    password: String,
    auth: String,
    identitytoken: String,
    registrytoken: String,
}

/// Credentials that fit the image, the most specific ones first.
pub fn lookup(secrets: &[Secret], image: &str) -> Vec<AuthConfig> {
    let Ok(name) = parse(image) else { return Vec::new() };
    let target = format!("{}/{}", name.registry, name.path);
    let mut found: Vec<(usize, AuthConfig)> = Vec::new();
    for (server, entry) in secrets.iter().flat_map(entries) {
        let pattern = pattern_of(&server);
        if matches(&pattern, &target) {
            found.push((pattern.len(), auth_of(&server, entry)));
        }
    }
    found.sort_by_key(|(length, _)| std::cmp::Reverse(*length));
    found.into_iter().map(|(_, auth)| auth).collect()
}

/// What tells two credentials apart, without being one.
pub fn fingerprint(auth: &AuthConfig) -> String {
    use sha2::{Digest, Sha256};
    let mut hash = Sha256::new();
    for part in [&auth.username, &auth.password, &auth.auth, &auth.identity_token, &auth.registry_token] {
        hash.update(part.as_bytes());
        hash.update([0]);
    }
    STANDARD.encode(hash.finalize())
}

fn entries(secret: &Secret) -> Vec<(String, Entry)> {
    let data = |key: &str| secret.data.as_ref().and_then(|data| data.get(key)).map(|bytes| bytes.0.as_slice());
    let parsed = match secret.type_.as_deref() {
        Some("kubernetes.io/dockerconfigjson") => {
            data(".dockerconfigjson").map(|bytes| serde_json::from_slice::<DockerConfig>(bytes).map(|c| c.auths))
        }
        Some("kubernetes.io/dockercfg") => data(".dockercfg").map(serde_json::from_slice),
        _ => None,
    };
    match parsed {
        Some(Ok(auths)) => auths.into_iter().collect(),
        Some(Err(error)) => {
            tracing::warn!(secret = secret.metadata.name, %error, "a pull secret can't be read");
            Vec::new()
        }
        None => Vec::new(),
    }
}

/// `https://index.docker.io/v1/` is `docker.io`; schemes and API versions don't count.
fn pattern_of(server: &str) -> String {
    let bare = server.trim_start_matches("https://").trim_start_matches("http://");
    let bare = bare.trim_end_matches('/');
    let bare = bare.strip_suffix("/v1").or_else(|| bare.strip_suffix("/v2")).unwrap_or(bare);
    match bare.split_once('/') {
        Some(("index.docker.io", path)) => format!("docker.io/{path}"),
        None if bare == "index.docker.io" => "docker.io".into(),
        _ => bare.into(),
    }
}

/// Does `registry[/path prefix]`, where parts of the host may be `*`, cover the image?
fn matches(pattern: &str, target: &str) -> bool {
    let (host, path) = pattern.split_once('/').unwrap_or((pattern, ""));
    let (target_host, target_path) = target.split_once('/').unwrap_or((target, ""));
    let (a, b): (Vec<&str>, Vec<&str>) = (host.split('.').collect(), target_host.split('.').collect());
    let part = |(p, t): (&&str, &&str)| match p.split_once('*') {
        Some((head, tail)) => t.len() >= head.len() + tail.len() && t.starts_with(head) && t.ends_with(tail),
        None => p == t,
    };
    a.len() == b.len() && a.iter().zip(&b).all(part) && target_path.starts_with(path)
}

fn auth_of(server: &str, entry: Entry) -> AuthConfig {
    let decoded = STANDARD.decode(entry.auth.trim()).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    let (username, password) = match decoded.as_deref().and_then(|text| text.split_once(':')) {
        Some((user, password)) if entry.username.is_empty() => (user.to_owned(), password.to_owned()),
        _ => (entry.username, entry.password),
    };
    AuthConfig {
        username,
        password,
        server_address: server.into(),
        identity_token: entry.identitytoken,
        registry_token: entry.registrytoken,
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_most_specific_credentials_come_first() {
        let config = json!({"auths": {
            "https://index.docker.io/v1/": {"auth": STANDARD.encode("hub:x")},
            "reg.example": {"username": "wide", "password": "x"},
            "reg.example/team": {"username": "narrow", "password": "x"},
            "*.corp.example": {"username": "star", "password": "x"}}});
        let secret: Secret = serde_json::from_value(json!({"type": "kubernetes.io/dockerconfigjson",
            "metadata": {"name": "s"}, "data": {".dockerconfigjson": STANDARD.encode(config.to_string())}}))
        .unwrap();
        let users = |image: &str| -> Vec<String> {
            lookup(std::slice::from_ref(&secret), image).into_iter().map(|auth| auth.username).collect()
        };
        assert_eq!(users("reg.example/team/app:1"), ["narrow", "wide"]);
        assert_eq!(users("reg.example/other"), ["wide"]);
        assert_eq!(users("busybox"), ["hub"]);
        assert_eq!(users("a.corp.example/x"), ["star"]);
        assert!(users("elsewhere.example/x").is_empty());
    }
}

//! Talking to the new cluster: waiting for it, and applying objects to it.

use std::path::Path;
use std::time::Duration;

use kube::api::{Api, DynamicObject, Patch, PatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Client, Config};
use serde_json::Value;

use super::{Context, Error, Result};

/// A client from a kubeconfig file.
///
/// # Errors
/// When the file is missing or makes no sense.
pub async fn client(kubeconfig: &Path) -> Result<Client> {
    let what = format!("reading {}", kubeconfig.display());
    let config = Kubeconfig::read_from(kubeconfig).context(&what)?;
    let config = Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await.context(&what)?;
    Client::try_from(config).context(&what)
}

/// Waits until a path answers 200.
///
/// # Errors
/// When it does not in time; what it said last is the reason.
pub async fn wait_ready(client: &Client, path: &str, patience: Duration) -> Result<()> {
    let mut last = String::from("no answer");
    let end = tokio::time::Instant::now() + patience;
    while tokio::time::Instant::now() < end {
        let request = http::Request::get(path).body(Vec::new()).context("asking")?;
        match client.request_text(request).await {
            Ok(_) => return Ok(()),
            Err(error) => last = error.to_string(),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Err(Error::new(format!("waiting for {path}"), last))
}

fn resource(object: &Value) -> Result<(ApiResource, bool)> {
    let text = |name: &str| object[name].as_str().unwrap_or_default();
    let (group, version) = text("apiVersion").split_once('/').unwrap_or(("", text("apiVersion")));
    let row = api::resources::builtin().iter().find(|row| row.group == group && row.kind == text("kind"));
    let row = row.ok_or_else(|| Error::new("applying an object", format!("nobody knows the kind {}", text("kind"))))?;
    let gvk = GroupVersionKind::gvk(group, version, text("kind"));
    Ok((ApiResource::from_gvk_with_plural(&gvk, &row.plural), row.scope == api::resources::Scope::Namespaced))
}

/// How long a server may be away while objects are applied: that of a new manifest takes over from the old one.
const TAKE_OVER: Duration = Duration::from_secs(60);

/// Applies an object, server-side, as the manager `navarch`. Tried again while nobody answers.
///
/// # Errors
/// When the server refuses, or nobody answers for a minute.
pub async fn apply(client: &Client, object: &Value) -> Result<()> {
    let (resource, namespaced) = resource(object)?;
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let namespace = object["metadata"]["namespace"].as_str().unwrap_or("default");
    let api: Api<DynamicObject> = match namespaced {
        true => Api::namespaced_with(client.clone(), namespace, &resource),
        false => Api::all_with(client.clone(), &resource),
    };
    let params = PatchParams::apply("navarch").force();
    let what = format!("applying {} {name}", resource.kind);
    let end = tokio::time::Instant::now() + TAKE_OVER;
    loop {
        match api.patch(name, &params, &Patch::Apply(object)).await {
            Ok(_) => return Ok(()),
            Err(error @ kube::Error::Api(_)) => return Err(Error::new(what, error)),
            Err(error) if tokio::time::Instant::now() > end => return Err(Error::new(what, error)),
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

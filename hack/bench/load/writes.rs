//! Writes, 16 at a time: each object through its whole life.

use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http::Method;
use serde_json::json;

use super::Row;
use super::client::Call;
use super::data;
use super::measure::{Cost, Volume};
use super::reads::row;
use super::rig::{Rig, requests};
use crate::Result;

/// Objects that go through each measure.
const COUNT: usize = 2000;
/// Clients at once.
const CLIENTS: usize = 16;

/// The rows. They stand in the order of an object's life: each needs what the one before it left.
pub fn rows() -> Vec<Row> {
    vec![
        row!("create a ConfigMap, 16 clients", Some(0.3), |rig| write(rig, Kind::ConfigMap, Verb::Create)),
        row!("update a ConfigMap, 16 clients", Some(0.4), |rig| write(rig, Kind::ConfigMap, Verb::Update)),
        row!("merge patch of a ConfigMap, 16 clients", Some(0.4), |rig| write(rig, Kind::ConfigMap, Verb::Patch)),
        row!("apply of a ConfigMap, 16 clients", Some(0.6), |rig| write(rig, Kind::ConfigMap, Verb::Apply)),
        row!("delete a ConfigMap, 16 clients", Some(0.3), |rig| write(rig, Kind::ConfigMap, Verb::Delete)),
        row!("create a pod, 16 clients", Some(0.5), |rig| write(rig, Kind::Pod, Verb::Create)),
        row!("update a pod, 16 clients", Some(0.6), |rig| write(rig, Kind::Pod, Verb::Update)),
        row!("merge patch of a pod, 16 clients", Some(0.6), |rig| write(rig, Kind::Pod, Verb::Patch)),
        row!("apply of a pod, 16 clients", Some(1.0), |rig| write(rig, Kind::Pod, Verb::Apply)),
        row!("delete a pod, 16 clients", Some(0.4), |rig| write(rig, Kind::Pod, Verb::Delete)),
    ]
}

#[derive(Clone, Copy)]
enum Kind {
    ConfigMap,
    Pod,
}

#[derive(Clone, Copy)]
enum Verb {
    Create,
    Update,
    Patch,
    Apply,
    Delete,
}

/// Lets several rounds follow each other: each has objects of its own.
static LIFE: AtomicUsize = AtomicUsize::new(0);

fn object(kind: Kind, name: &str, number: usize, salt: usize) -> serde_json::Value {
    match kind {
        Kind::ConfigMap => data::config_map(name, salt),
        Kind::Pod => {
            let mut pod = data::pod(name, number);
            pod["metadata"]["annotations"]["example.com/salt"] = salt.to_string().into();
            pod
        }
    }
}

/// The objects as they are stored, each with another annotation: what a controller sends back.
async fn changed(rig: &Rig, path: impl Fn(usize) -> String) -> Result<Vec<Bytes>> {
    let mut all = Vec::with_capacity(COUNT);
    for number in 0..COUNT {
        let mut object: serde_json::Value = serde_json::from_slice(&rig.client.body(&Call::get(path(number))).await?)?;
        object["metadata"]["annotations"]["example.com/salt"] = "1".into();
        all.push(object.to_string().into());
    }
    Ok(all)
}

async fn write(rig: &Rig, kind: Kind, verb: Verb) -> Result<Cost> {
    if matches!(verb, Verb::Create) {
        LIFE.fetch_add(1, Ordering::Relaxed);
    }
    let life = LIFE.load(Ordering::Relaxed);
    let plural = match kind {
        Kind::ConfigMap => "configmaps",
        Kind::Pod => "pods",
    };
    let all = move |number: usize| format!("/api/v1/namespaces/{}/{plural}", data::namespace(number));
    let changed = match verb {
        Verb::Update => changed(rig, |number| format!("{}/life-{life}-{number}", all(number))).await?,
        _ => Vec::new(),
    };
    let call = move |number: usize| {
        let name = format!("life-{life}-{number}");
        let all = all(number);
        let one = format!("{all}/{name}");
        match verb {
            Verb::Create => Call::send(Method::POST, all, object(kind, &name, number, 0).to_string()),
            Verb::Update => Call::send(Method::PUT, one, changed[number].clone()),
            Verb::Patch => {
                let patch = json!({"metadata": {"annotations": {"example.com/patched": number.to_string()}}});
                Call::send(Method::PATCH, one, patch.to_string()).of_type("application/merge-patch+json")
            }
            Verb::Apply => {
                let body = object(kind, &name, number, 2).to_string();
                Call::send(Method::PATCH, format!("{one}?fieldManager=applier&force=true"), body)
                    .of_type("application/apply-patch+yaml")
            }
            Verb::Delete => Call::send(Method::DELETE, one, ""),
        }
    };
    Ok(requests(rig, Volume::count(CLIENTS, COUNT), call).await)
}

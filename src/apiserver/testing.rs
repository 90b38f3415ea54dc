//! A server without HTTP for tests: the memory store under the real cache, every resource, all admission plugins.

use std::sync::Arc;

use crate::entry::{self, Decoder};
use crate::lookup::Lookup;
use crate::registry::Resources;
use crate::request::{Answer, Request};
use crate::{Api, Settings, admission, allocation, authn, authz};
use api::Value;
use api::resources::Row;
use bytes::Bytes;
use http_body_util::BodyExt;
use serde_json::json;
use store::{Expect, Revision};

/// Settings as kubeadm has them.
pub fn settings() -> Settings {
    Settings {
        etcd_prefix: "/registry".into(),
        event_ttl: 3600,
        min_request_timeout: std::time::Duration::from_secs(1800),
        service_ranges: vec!["10.96.0.0/16".parse().expect("a range")],
        node_ports: (30000, 32767),
        admission: admission::known().iter().filter(|(_, on)| *on).map(|(name, _)| *name).collect(),
        allow_privileged: true,
    }
}

/// A server with nothing in it.
pub async fn empty() -> Arc<Api> {
    let settings = settings();
    let rows = api::resources::builtin().iter().map(|row| {
        let key = (row.group.clone(), row.plural.clone());
        (key, Arc::new(row.clone()))
    });
    let resources = Arc::new(Resources::new(rows.collect()));
    let store: Arc<dyn store::Store> = Arc::new(store::memory::Memory::new());
    let decoder = Decoder::new(&settings.etcd_prefix, resources.clone());
    let cache = store::cache::Cache::start(store.clone(), "/registry/", decoder).await.expect("an empty cache");
    let lookup = Lookup::new(cache.clone(), resources.clone(), &settings.etcd_prefix);
    let authenticator = authn::Authenticator {
        clients: None,
        front_proxy: None,
        tokens: Vec::new(),
        audiences: Vec::new(),
        anonymous: true,
    };
    Arc::new(Api {
        store,
        cache,
        resources,
        authenticator: Arc::new(authenticator),
        authorizer: Arc::new(authz::Authorizer::new(&["AlwaysAllow".into()], &lookup).expect("a mode")),
        admission: admission::Chain::new(&settings),
        services: allocation::Services::new(&settings),
        tokens: None,
        settings,
    })
}

/// A server with the namespace `ns` in it.
pub async fn server() -> Arc<Api> {
    let api = empty().await;
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ns"}});
    create(&api, "", "namespaces", "", namespace).await;
    api
}

/// A row of the table.
pub fn row(api: &Arc<Api>, group: &str, plural: &str) -> Arc<Row> {
    api.resources.find(group, plural).expect("a built-in resource")
}

/// Creates an object that must be accepted.
pub async fn create(api: &Arc<Api>, group: &str, plural: &str, namespace: &str, object: Value) -> Value {
    let row = row(api, group, plural);
    crate::registry::internal::create(api, &row, namespace, object).await.expect("a valid object")
}

/// Stores an object of a built-in resource, whatever stands there.
pub async fn put(api: &Api, plural: &str, object: Value) -> Revision {
    let metadata = &object["metadata"];
    let text = |name: &str| metadata[name].as_str().unwrap_or_default().to_string();
    let group = object["apiVersion"].as_str().and_then(|v| v.split_once('/')).map_or("", |(group, _)| group);
    let row = api.resources.find(group, plural).expect("a resource");
    let key = entry::key(&api.settings.etcd_prefix, &row, &text("namespace"), &text("name"));
    // As the server writes: kind and apiVersion first.
    let mut rest = object.clone();
    let members = rest.as_object_mut().expect("an object");
    let (kind, version) = (members.remove("kind").expect("a kind"), members.remove("apiVersion").expect("a version"));
    let value = format!("{{\"kind\":{kind},\"apiVersion\":{version},{}", &rest.to_string()[1..]);
    let found = api.store.get(&key).await.expect("memory").0;
    let expect = found.map_or(Expect::Absent, |kv| Expect::At(kv.mod_revision));
    let revision = api.store.put(&key, Bytes::from(value), expect, 0).await.expect("memory");
    api.cache.wait(revision).await.expect("the cache follows");
    revision
}

/// A request as the chain hands it on, from `GET /api/v1/namespaces/x/pods/name?query`.
pub fn request(api: &Api, method: &str, path: &str) -> Request {
    let (bare, query) = path.split_once('?').unwrap_or((path, ""));
    let mut req = Request::of(method, bare);
    let decode = |text: &str| text.replace("%3D", "=").replace("%2C", ",").replace('+', " ");
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    req.query = pairs
        .map(|pair| pair.split_once('=').map_or((decode(pair), String::new()), |(k, v)| (decode(k), decode(v))))
        .collect();
    let mut parts = bare.trim_matches('/').split('/');
    let info = &mut req.info;
    info.is_resource = true;
    info.api_prefix = parts.next().unwrap_or_default().into();
    if info.api_prefix == "apis" {
        info.group = parts.next().unwrap_or_default().into();
    }
    info.version = parts.next().unwrap_or_default().into();
    let mut rest: Vec<&str> = parts.collect();
    if let ["namespaces", namespace, _, ..] = rest.as_slice() {
        info.namespace = namespace.to_string();
        rest.drain(..2);
    }
    info.resource = rest.first().copied().unwrap_or_default().into();
    info.name = rest.get(1).copied().unwrap_or_default().into();
    let watch = req.query.iter().any(|(k, v)| k == "watch" && v != "false" && v != "0");
    req.info.verb = match (method, &*req.info.name, watch) {
        ("GET", "", true) => "watch",
        ("GET", "", false) => "list",
        ("GET", ..) => "get",
        _ => "other",
    }
    .into();
    assert!(api.resources.find(&req.info.group, &req.info.resource).is_some(), "{path}");
    req
}

/// The body of an answer that ends.
pub async fn body(answer: Answer) -> Bytes {
    answer.into_body().collect().await.expect("a body").to_bytes()
}

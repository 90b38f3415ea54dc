//! A server without HTTP for tests: the memory store under the real cache, every resource, all admission plugins.

use std::sync::Arc;

use crate::entry::Decoder;
use crate::lookup::Lookup;
use crate::registry::Resources;
use crate::{Api, Settings, admission, allocation, authn, authz};
use api::Value;
use api::resources::Row;
use serde_json::json;

/// Settings as kubeadm has them.
pub fn settings() -> Settings {
    Settings {
        etcd_prefix: "/registry".into(),
        event_ttl: 3600,
        service_ranges: vec!["10.96.0.0/16".parse().expect("a range")],
        node_ports: (30000, 32767),
        admission: admission::known().iter().filter(|(_, on)| *on).map(|(name, _)| *name).collect(),
        allow_privileged: true,
    }
}

/// A server with the namespace `ns` in it.
pub async fn server() -> Arc<Api> {
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
    let api = Arc::new(Api {
        store,
        cache,
        resources,
        authenticator: Arc::new(authenticator),
        authorizer: Arc::new(authz::Authorizer::new(&["AlwaysAllow".into()], &lookup).expect("a mode")),
        admission: admission::Chain::new(&settings),
        services: allocation::Services::new(&settings),
        tokens: None,
        settings,
    });
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

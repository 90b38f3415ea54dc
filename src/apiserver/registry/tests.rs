//! The engine over the memory store: what every resource has in common.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use api::Value;
use api::status::Status;
use parking_lot::Mutex;
use serde_json::json;

use super::delete::{Delete, Deleted};
use super::options::DeleteOptions;
use super::{internal, object};
use crate::Api;
use crate::testing::{create, row, server};

fn config_map(name: &str, data: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data})
}

async fn update(api: &Arc<Api>, name: &str, change: impl Fn(&mut Value) + Send + Sync) -> Result<Value, Status> {
    let change = |mut object: Value| {
        change(&mut object);
        Ok(object)
    };
    internal::update(api, &row(api, "", "configmaps"), "ns", name, "", &change).await
}

async fn delete(api: &Arc<Api>, plural: &str, name: &str, options: Value) -> Result<Deleted, Status> {
    let options = DeleteOptions::from_object(options).unwrap();
    let (row, warnings) = (row(api, "", plural), Mutex::new(Vec::new()));
    let namespace = if plural == "namespaces" { "" } else { "ns" };
    let delete = Delete {
        api,
        row: &row,
        version: "v1",
        namespace,
        name,
        user: internal::user(),
        options: &options,
        reviewed: false,
        warnings: &warnings,
    };
    delete.run().await
}

#[tokio::test]
async fn a_new_object_has_uid_time_and_revision() {
    let api = server().await;
    let made = create(&api, "", "configmaps", "ns", config_map("a", json!({"k": "v"}))).await;
    assert_eq!(object::namespace(&made), "ns");
    assert_eq!(object::uid(&made).len(), 36);
    assert!(object::seconds(object::meta_text(&made, "creationTimestamp")).is_some());
    let read = internal::get(&api, &row(&api, "", "configmaps"), "ns", "a").await.unwrap();
    assert_eq!(read, made);
    let again =
        internal::create(&api, &row(&api, "", "configmaps"), "ns", config_map("a", json!({}))).await.unwrap_err();
    assert_eq!((again.code, again.message.as_str()), (409, "configmaps \"a\" already exists"));
}

#[tokio::test]
async fn an_update_that_changes_nothing_writes_nothing() {
    let api = server().await;
    let made = create(&api, "", "configmaps", "ns", config_map("a", json!({"k": "v"}))).await;
    let before = api.store.revision().await.unwrap();
    let same = update(&api, "a", |_| {}).await.unwrap();
    assert_eq!(object::meta_text(&same, "resourceVersion"), object::meta_text(&made, "resourceVersion"));
    assert_eq!(api.store.revision().await.unwrap(), before);
    let changed = update(&api, "a", |o| o["data"]["k"] = "w".into()).await.unwrap();
    assert_ne!(object::meta_text(&changed, "resourceVersion"), object::meta_text(&made, "resourceVersion"));
}

#[tokio::test]
async fn a_stale_guess_costs_one_more_round_and_loses_nothing() {
    let api = server().await;
    create(&api, "", "configmaps", "ns", config_map("a", json!({}))).await;
    let rounds = AtomicUsize::new(0);
    let writes = (0..10).map(|i| {
        let (api, rounds) = (api.clone(), &rounds);
        async move {
            update(&api, "a", |o| {
                rounds.fetch_add(1, Ordering::Relaxed);
                o["data"][format!("k{i}")] = "v".into();
            })
            .await
        }
    });
    futures::future::try_join_all(writes).await.unwrap();
    let read = internal::get(&api, &row(&api, "", "configmaps"), "ns", "a").await.unwrap();
    assert_eq!(read["data"].as_object().unwrap().len(), 10);
    assert!(rounds.load(Ordering::Relaxed) >= 10);
}

#[tokio::test]
async fn a_named_version_must_be_the_current_one() {
    let api = server().await;
    let made = create(&api, "", "configmaps", "ns", config_map("a", json!({}))).await;
    let version = object::meta_text(&made, "resourceVersion").to_string();
    update(&api, "a", |o| o["data"]["k"] = "v".into()).await.unwrap();
    let status = update(&api, "a", |o| object::set_meta(o, "resourceVersion", version.clone())).await.unwrap_err();
    let text = "Operation cannot be fulfilled on configmaps \"a\": the object has been modified; please apply your \
                changes to the latest version and try again";
    assert_eq!((status.code, status.message.as_str()), (409, text));
}

#[tokio::test]
async fn generated_names_are_free_ones() {
    let api = server().await;
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "a-"}});
    let made = create(&api, "", "configmaps", "ns", object).await;
    assert!(object::name(&made).starts_with("a-") && object::name(&made).len() == 7, "{}", object::name(&made));
}

#[tokio::test]
async fn finalizers_hold_an_object_until_the_last_is_taken_away() {
    let api = server().await;
    let mut object = config_map("a", json!({}));
    object["metadata"]["finalizers"] = json!(["example.com/f"]);
    create(&api, "", "configmaps", "ns", object).await;
    let Deleted { object, gone } = delete(&api, "configmaps", "a", json!({})).await.unwrap();
    assert!(!gone && object::deleting(&object) && object::grace(&object) == Some(0));
    let revision = api.store.revision().await.unwrap();
    delete(&api, "configmaps", "a", json!({})).await.unwrap();
    assert_eq!(api.store.revision().await.unwrap(), revision, "a second delete changes nothing");
    let status =
        update(&api, "a", |o| object::set_meta(o, "finalizers", json!(["example.com/f", "example.com/g"]))).await;
    assert_eq!(status.unwrap_err().code, 422);
    update(&api, "a", |o| object::unset_meta(o, "finalizers")).await.unwrap();
    let status = internal::get(&api, &row(&api, "", "configmaps"), "ns", "a").await.unwrap_err();
    assert_eq!(status.code, 404);
}

#[tokio::test]
async fn a_delete_checks_uid_and_version() {
    let api = server().await;
    let made = create(&api, "", "configmaps", "ns", config_map("a", json!({}))).await;
    let status = delete(&api, "configmaps", "a", json!({"preconditions": {"uid": "x"}})).await.err().unwrap();
    let text = format!(
        "Operation cannot be fulfilled on ConfigMap \"a\": the UID in the precondition (x) does not match the UID in \
         record ({}). The object might have been deleted and then recreated",
        object::uid(&made)
    );
    assert_eq!((status.code, status.message), (409, text));
    let options = json!({"preconditions": {"resourceVersion": object::meta_text(&made, "resourceVersion")}});
    assert!(delete(&api, "configmaps", "a", options).await.unwrap().gone);
}

#[tokio::test]
async fn nothing_is_made_in_a_namespace_that_is_going_or_missing() {
    let api = server().await;
    create(&api, "", "configmaps", "ns", config_map("a", json!({}))).await;
    let namespaces = row(&api, "", "namespaces");
    let keep = |mut namespace: Value| {
        namespace["spec"]["finalizers"] = json!(["kubernetes"]);
        Ok(namespace)
    };
    internal::update(&api, &namespaces, "", "ns", "", &keep).await.unwrap();
    let Deleted { object, gone } = delete(&api, "namespaces", "ns", json!({})).await.unwrap();
    assert!(!gone);
    assert_eq!(object["status"]["phase"], "Terminating");
    let maps = row(&api, "", "configmaps");
    let status = internal::create(&api, &maps, "ns", config_map("b", json!({}))).await.unwrap_err();
    let text =
        "configmaps \"b\" is forbidden: unable to create new content in namespace ns because it is being terminated";
    assert_eq!((status.code, status.message.as_str()), (403, text));
    assert_eq!(status.details.unwrap().causes[0].reason, "NamespaceTerminating");
    let status = internal::create(&api, &maps, "none", config_map("b", json!({}))).await.unwrap_err();
    assert_eq!((status.code, status.message.as_str()), (404, "namespaces \"none\" not found"));
}

#[tokio::test]
async fn a_service_takes_an_address_and_gives_it_back() {
    let api = server().await;
    let service = |ip: &str| {
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"},
            "spec": {"type": "NodePort", "clusterIP": ip, "ports": [{"name": "a", "port": 80, "protocol": "TCP", "targetPort": 80}]},
        })
    };
    let made = create(&api, "", "services", "ns", service("10.96.7.7")).await;
    assert_eq!(made["spec"]["clusterIPs"], json!(["10.96.7.7"]));
    let node_port = made["spec"]["ports"][0]["nodePort"].as_i64().unwrap();
    assert!((30000..=32767).contains(&node_port), "{node_port}");
    let addresses = row(&api, "networking.k8s.io", "ipaddresses");
    let taken = internal::get(&api, &addresses, "", "10.96.7.7").await.unwrap();
    assert_eq!(taken["spec"]["parentRef"]["name"], "s");
    let mut other = service("10.96.7.7");
    other["metadata"]["name"] = "t".into();
    let services = row(&api, "", "services");
    let status = internal::create(&api, &services, "ns", other).await.unwrap_err();
    let text = "Service \"t\" is invalid: spec.clusterIPs: Invalid value: [\"10.96.7.7\"]: failed to allocate IP \
                10.96.7.7: provided IP is already allocated";
    assert_eq!((status.code, status.message.as_str()), (422, text));
    internal::delete(&api, &services, "ns", "s").await.unwrap();
    assert_eq!(internal::get(&api, &addresses, "", "10.96.7.7").await.unwrap_err().code, 404);
    create(&api, "", "services", "ns", service("10.96.7.7")).await;
}

#[tokio::test]
async fn repair_finds_what_was_never_noted() {
    let api = server().await;
    crate::allocation::Services::repair(&api).await.unwrap();
    let cidr = internal::get(&api, &row(&api, "networking.k8s.io", "servicecidrs"), "", "kubernetes").await.unwrap();
    assert_eq!(cidr["spec"]["cidrs"], json!(["10.96.0.0/16"]));
    assert_eq!(cidr["status"]["conditions"][0]["status"], "True");
    let service = json!({
        "kind": "Service", "apiVersion": "v1", "metadata": {"name": "old", "namespace": "ns", "uid": "u"},
        "spec": {"type": "ClusterIP", "clusterIP": "10.96.1.1", "clusterIPs": ["10.96.1.1"]},
    });
    let key = "/registry/services/specs/ns/old";
    let revision = api.store.put(key, service.to_string().into(), store::Expect::Absent, 0).await.unwrap();
    api.cache.wait(revision).await.unwrap();
    crate::allocation::Services::repair(&api).await.unwrap();
    let addresses = row(&api, "networking.k8s.io", "ipaddresses");
    assert!(internal::get(&api, &addresses, "", "10.96.1.1").await.is_ok());
}

#[tokio::test]
async fn a_quota_is_charged_and_refuses_what_is_too_much() {
    let api = server().await;
    let quota = json!({
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"},
        "spec": {"hard": {"configmaps": "1"}},
    });
    create(&api, "", "resourcequotas", "ns", quota).await;
    let maps = row(&api, "", "configmaps");
    let unknown = internal::create(&api, &maps, "ns", config_map("a", json!({}))).await;
    // Without a status nothing is bounded yet.
    assert!(unknown.is_ok());
    let quotas = row(&api, "", "resourcequotas");
    let know = |mut quota: Value| {
        quota["status"] = json!({"hard": {"configmaps": "2"}, "used": {"configmaps": "1"}});
        Ok(quota)
    };
    internal::update(&api, &quotas, "ns", "q", "status", &know).await.unwrap();
    create(&api, "", "configmaps", "ns", config_map("b", json!({}))).await;
    let status = internal::create(&api, &maps, "ns", config_map("c", json!({}))).await.unwrap_err();
    let text = "configmaps \"c\" is forbidden: exceeded quota: q, requested: configmaps=1, used: configmaps=2, \
                limited: configmaps=2";
    assert_eq!((status.code, status.message.as_str()), (403, text));
}

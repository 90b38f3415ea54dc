//! This server's place in the endpoints of the `kubernetes` Service: each server that lives keeps a key with a short
//! life in etcd, and whoever looks writes the addresses of all that live into Endpoints and EndpointSlice.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use api::Value;
use api::status::Status;
use serde_json::json;
use store::Expect;

use super::{Wanted, cached, ensure, row};
use crate::server::Server;

/// Seconds that a server's key lives; it is renewed every ten.
const LIFE: i64 = 15;

fn unavailable(e: store::Error) -> Status {
    Status::internal(e)
}

fn lease_key(server: &Server) -> String {
    format!("{}/masterleases/{}", server.options.settings.etcd_prefix, server.options.advertise)
}

/// Renews our key and brings the endpoints up to date.
///
/// # Errors
/// When the store or the registry refuses.
pub async fn reconcile(server: &Arc<Server>) -> Result<(), Status> {
    let own = server.options.advertise;
    match server.options.endpoint_reconciler.as_str() {
        "none" => Ok(()),
        // Every server adds itself and takes nobody away.
        "master-count" => {
            let mut all = recorded(server)?;
            all.insert(own);
            publish(server, all).await
        }
        _ => {
            renew(server).await?;
            publish(server, alive(server).await?).await
        }
    }
}

async fn renew(server: &Server) -> Result<(), Status> {
    let key = lease_key(server);
    let value = json!({
        "kind": "Endpoints", "apiVersion": "v1", "metadata": {"generation": base::clock::unix()},
        "subsets": [{"addresses": [{"ip": server.options.advertise}]}],
    });
    let bytes = bytes::Bytes::from(value.to_string());
    for _ in 0..3 {
        let (there, _) = server.api.store.get(&key).await.map_err(unavailable)?;
        let expect = there.map_or(Expect::Absent, |kv| Expect::At(kv.mod_revision));
        match server.api.store.put(&key, bytes.clone(), expect, LIFE).await {
            Ok(_) => return Ok(()),
            // The old key expired in between.
            Err(store::Error::Conflict(_)) => {}
            Err(e) => return Err(unavailable(e)),
        }
    }
    Err(Status::internal("the server's key in etcd changes too fast"))
}

/// Addresses of all servers whose keys live.
async fn alive(server: &Server) -> Result<BTreeSet<IpAddr>, Status> {
    let prefix = format!("{}/masterleases/", server.options.settings.etcd_prefix);
    let page = server.api.store.list(&prefix, "", 0, 0).await.map_err(unavailable)?;
    Ok(page.items.iter().filter_map(|kv| kv.key.strip_prefix(prefix.as_str())?.parse().ok()).collect())
}

/// Addresses in the Endpoints as they are.
fn recorded(server: &Server) -> Result<BTreeSet<IpAddr>, Status> {
    let row = row(&server.api, "", "endpoints")?;
    let there = cached(&server.api, &row, "default", "kubernetes").unwrap_or_default();
    let subsets = there["subsets"].as_array().into_iter().flatten();
    let addresses = subsets.flat_map(|s| s["addresses"].as_array().into_iter().flatten());
    Ok(addresses.filter_map(|a| a["ip"].as_str()?.parse().ok()).collect())
}

async fn publish(server: &Arc<Server>, servers: BTreeSet<IpAddr>) -> Result<(), Status> {
    let port = json!({"name": "https", "port": server.options.listen.port(), "protocol": "TCP"});
    let addresses: Vec<Value> = servers.iter().map(|ip| json!({"ip": ip})).collect();
    let subsets = if addresses.is_empty() { json!([]) } else { json!([{"addresses": addresses, "ports": [port]}]) };
    let labels = json!({"endpointslice.kubernetes.io/skip-mirror": "true"});
    let metadata = json!({"name": "kubernetes", "namespace": "default", "labels": labels});
    let object = json!({"metadata": metadata, "subsets": subsets});
    let wanted = Wanted { group: "", plural: "endpoints", namespace: "default".into(), object };
    ensure(&server.api, wanted, &|there, wanted| amend(there, wanted, &["subsets"])).await?;
    let family = if server.options.advertise.is_ipv4() { "IPv4" } else { "IPv6" };
    let endpoints: Vec<Value> = servers
        .iter()
        .filter(|ip| ip.is_ipv4() == server.options.advertise.is_ipv4())
        .map(|ip| json!({"addresses": [ip], "conditions": {"ready": true}}))
        .collect();
    let metadata = json!({
        "name": "kubernetes", "namespace": "default", "labels": {"kubernetes.io/service-name": "kubernetes"},
    });
    let object = json!({"metadata": metadata, "addressType": family, "endpoints": endpoints, "ports": [port]});
    let wanted = Wanted { group: "discovery.k8s.io", plural: "endpointslices", namespace: "default".into(), object };
    ensure(&server.api, wanted, &|there, wanted| amend(there, wanted, &["endpoints", "ports"])).await
}

fn amend(there: &Value, wanted: &Value, fields: &[&str]) -> Option<Value> {
    let empty = |v: &Value| v.is_null() || v.as_array().is_some_and(Vec::is_empty);
    let same = |f: &str| there[f] == wanted[f] || empty(&there[f]) && empty(&wanted[f]);
    if fields.iter().all(|f| same(f)) {
        return None;
    }
    let mut amended = there.clone();
    for field in fields {
        amended[*field] = wanted[*field].clone();
    }
    Some(amended)
}

/// Takes this server out of the endpoints.
pub async fn leave(server: &Arc<Server>) {
    let own = server.options.advertise;
    let left = match server.options.endpoint_reconciler.as_str() {
        "none" => return,
        "master-count" => recorded(server),
        _ => {
            let key = lease_key(server);
            if let Ok((Some(kv), _)) = server.api.store.get(&key).await {
                // What fails here expires by itself.
                let _ = server.api.store.delete(&key, kv.mod_revision).await;
            }
            alive(server).await
        }
    };
    let outcome = match left {
        Ok(mut servers) => {
            servers.remove(&own);
            publish(server, servers).await
        }
        Err(e) => Err(e),
    };
    if let Err(why) = outcome {
        tracing::warn!(%why, "can't leave the endpoints of the kubernetes Service");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_that_say_the_same_are_left_alone() {
        let one = json!({"subsets": [{"addresses": [{"ip": "10.0.0.1"}]}]});
        assert_eq!(amend(&one, &one, &["subsets"]), None);
        assert_eq!(amend(&json!({}), &json!({"subsets": []}), &["subsets"]), None);
        assert!(amend(&one, &json!({"subsets": []}), &["subsets"]).is_some());
    }
}

//! Objects that are there from the start: namespaces, priority classes, the `kubernetes` Service, APIServices, what
//! extension servers read.

use std::sync::Arc;

use api::Value;
use api::resources::GROUPS;
use api::status::Status;
use futures::future::try_join_all;
use serde_json::json;

use super::{Wanted, cached, ensure, row};
use crate::Api;
use crate::registry::internal;
use crate::server::Server;

/// The four namespaces that always are.
pub fn namespaces() -> Vec<Wanted> {
    let names = ["kube-system", "kube-public", "kube-node-lease", "default"];
    let wanted = |name: &str| Wanted {
        group: "",
        plural: "namespaces",
        namespace: String::new(),
        object: json!({"metadata": {"name": name}}),
    };
    names.into_iter().map(wanted).collect()
}

/// The two classes of pods that the cluster can't do without.
pub fn priority_classes() -> Vec<Wanted> {
    let class = |name: &str, value: i64, description: &str| Wanted {
        group: "scheduling.k8s.io",
        plural: "priorityclasses",
        namespace: String::new(),
        object: json!({"metadata": {"name": name}, "value": value, "description": description}),
    };
    vec![
        class(
            "system-node-critical",
            2_000_001_000,
            "Used for system critical pods that must not be moved from their current node.",
        ),
        class(
            "system-cluster-critical",
            2_000_000_000,
            "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary.",
        ),
    ]
}

/// The Service by which pods reach this server, and this server's place in its endpoints.
///
/// # Errors
/// When it can't be written.
pub async fn kubernetes_service(server: &Arc<Server>) -> Result<(), Status> {
    let options = &server.options;
    let Some(range) = options.settings.service_ranges.first() else { return Ok(()) };
    let mut port = json!({"name": "https", "protocol": "TCP", "port": 443, "targetPort": options.listen.port()});
    let mut spec = json!({
        "clusterIP": first(range).to_string(),
        "sessionAffinity": "None",
        "ipFamilyPolicy": "SingleStack",
        "type": "ClusterIP",
    });
    if options.kubernetes_node_port != 0 {
        port["nodePort"] = options.kubernetes_node_port.into();
        spec["type"] = "NodePort".into();
    }
    spec["ports"] = json!([port]);
    let labels = json!({"component": "apiserver", "provider": "kubernetes"});
    let object = json!({"metadata": {"name": "kubernetes", "namespace": "default", "labels": labels}, "spec": spec});
    let wanted = Wanted { group: "", plural: "services", namespace: "default".into(), object };
    ensure(&server.api, wanted, &amend_service).await?;
    super::endpoints::reconcile(server).await
}

/// The Service with our ports and type; the rest is left as it is.
fn amend_service(there: &Value, wanted: &Value) -> Option<Value> {
    let same = |field: &str| there["spec"][field] == wanted["spec"][field];
    let ports_same = match wanted["spec"]["type"].as_str() {
        // A node port that was allocated before stays out of it.
        Some("ClusterIP") => same("ports"),
        _ => same("ports") && same("type"),
    };
    if ports_same {
        return None;
    }
    let mut amended = there.clone();
    for field in ["ports", "type"] {
        amended["spec"][field] = wanted["spec"][field].clone();
    }
    Some(amended)
}

/// The first address of a range that a Service may have.
fn first(range: &ipnet::IpNet) -> std::net::IpAddr {
    match range.network() {
        std::net::IpAddr::V4(a) => std::net::Ipv4Addr::from(u32::from(a) + 1).into(),
        std::net::IpAddr::V6(a) => std::net::Ipv6Addr::from(u128::from(a) + 1).into(),
    }
}

/// What extension servers need to know in order to authenticate requests that we pass on.
///
/// # Errors
/// When it can't be written.
pub async fn authentication(server: &Arc<Server>) -> Result<(), Status> {
    let authenticator = &server.api.authenticator;
    let mut data = serde_json::Map::new();
    if let Some(clients) = &authenticator.clients {
        data.insert("client-ca-file".into(), clients.pem().into());
    }
    if let Some(proxy) = &authenticator.front_proxy {
        let list = |names: &[String]| Value::from(serde_json::to_string(names).unwrap_or_default());
        data.insert("requestheader-client-ca-file".into(), proxy.authorities.pem().into());
        data.insert("requestheader-allowed-names".into(), list(&proxy.allowed_names));
        data.insert("requestheader-extra-headers-prefix".into(), list(&proxy.extra_prefixes));
        data.insert("requestheader-group-headers".into(), list(&proxy.group_headers));
        data.insert("requestheader-username-headers".into(), list(&proxy.username_headers));
        if !proxy.uid_headers.is_empty() {
            data.insert("requestheader-uid-headers".into(), list(&proxy.uid_headers));
        }
    }
    let metadata = json!({"name": "extension-apiserver-authentication", "namespace": "kube-system"});
    let object = json!({"metadata": metadata, "data": data});
    let wanted = Wanted { group: "", plural: "configmaps", namespace: "kube-system".into(), object };
    ensure(&server.api, wanted, &amend_authentication).await
}

fn amend_authentication(there: &Value, wanted: &Value) -> Option<Value> {
    let mut amended = there.clone();
    for (key, value) in wanted["data"].as_object().into_iter().flatten() {
        let ours = value.as_str().unwrap_or_default();
        let held = there["data"][key].as_str().unwrap_or_default();
        // Other servers' authorities stay, for as long as they run side by side.
        let bundle = key.ends_with("ca-file");
        if held != ours && !(bundle && held.contains(ours)) {
            amended["data"][key] = if bundle { format!("{held}{ours}").into() } else { ours.into() };
        }
    }
    (amended != *there).then_some(amended)
}

/// Since when the use of tokens in Secrets is tracked.
///
/// # Errors
/// When it can't be written.
pub async fn token_tracking(api: &Arc<Api>) -> Result<(), Status> {
    let metadata = json!({"name": "kube-apiserver-legacy-service-account-token-tracking", "namespace": "kube-system"});
    let today = &base::clock::now_rfc3339()[..10];
    let object = json!({"metadata": metadata, "data": {"since": today}});
    let wanted = Wanted { group: "", plural: "configmaps", namespace: "kube-system".into(), object };
    ensure(api, wanted, &|_, _| None).await
}

/// One APIService per version of a group that this server serves itself.
///
/// # Errors
/// The first that can't be written.
pub async fn api_services(api: &Arc<Api>) -> Result<(), Status> {
    let table = api.resources.snapshot();
    let mut local = Vec::new();
    for group in GROUPS {
        for version in group.versions {
            let served = table.values().any(|r| r.group == group.name && r.version(version.name).is_some());
            if served && group.name != "apiregistration.k8s.io" {
                local.push((group, version));
            }
        }
    }
    try_join_all(local.into_iter().map(|(g, v)| api_service(api, g.name, v.name, g.priority, v.priority)))
        .await
        .map(|_| ())
}

async fn api_service(api: &Arc<Api>, group: &str, version: &str, minimum: i32, priority: i32) -> Result<(), Status> {
    let name = format!("{version}.{group}");
    let mut spec = json!({"version": version, "groupPriorityMinimum": minimum, "versionPriority": priority});
    if !group.is_empty() {
        spec["group"] = group.into();
    }
    let object = json!({
        "metadata": {"name": name, "labels": {"kube-aggregator.kubernetes.io/automanaged": "onstart"}},
        "spec": spec,
    });
    let wanted = Wanted { group: "apiregistration.k8s.io", plural: "apiservices", namespace: String::new(), object };
    ensure(api, wanted, &|_, _| None).await?;
    available(api, &name).await
}

/// Says in a local APIService's status that it is available.
async fn available(api: &Arc<Api>, name: &str) -> Result<(), Status> {
    let row = row(api, "apiregistration.k8s.io", "apiservices")?;
    let judged = |object: &Value| object["status"]["conditions"].as_array().is_some_and(|c| !c.is_empty());
    if cached(api, &row, "", name).as_ref().is_some_and(judged) {
        return Ok(());
    }
    let condition = json!({
        "type": "Available", "status": "True", "reason": "Local",
        "message": "Local APIServices are always available",
        "lastTransitionTime": base::clock::now_rfc3339(),
    });
    let change = move |mut now: Value| {
        now["status"]["conditions"] = json!([condition]);
        Ok(now)
    };
    internal::update(api, &row, "", name, "status", &change).await.map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_service_has_the_first_address() {
        assert_eq!(first(&"10.96.0.0/16".parse().expect("range")).to_string(), "10.96.0.1");
        assert_eq!(first(&"fd00::/108".parse().expect("range")).to_string(), "fd00::1");
    }

    #[test]
    fn authorities_of_other_servers_stay() {
        let there = json!({"data": {"client-ca-file": "A", "requestheader-allowed-names": "[]"}});
        let wanted = json!({"data": {"client-ca-file": "B", "requestheader-allowed-names": "[\"x\"]"}});
        let amended = amend_authentication(&there, &wanted).expect("amended");
        assert_eq!(amended["data"]["client-ca-file"], "AB");
        assert_eq!(amended["data"]["requestheader-allowed-names"], "[\"x\"]");
        assert_eq!(amend_authentication(&amended, &wanted), None);
    }
}

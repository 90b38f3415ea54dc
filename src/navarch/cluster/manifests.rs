//! The manifests of `manifests/`, filled in.

use serde_json::Value;

use super::{Context, Error, Result};

/// Static pods, in the order in which they can start.
pub const STATIC: [(&str, &str); 4] = [
    ("etcd", include_str!("../../../manifests/static/etcd.yaml")),
    ("kube-apiserver", include_str!("../../../manifests/static/kube-apiserver.yaml")),
    ("kube-controller-manager", include_str!("../../../manifests/static/kube-controller-manager.yaml")),
    ("kube-scheduler", include_str!("../../../manifests/static/kube-scheduler.yaml")),
];

/// What is applied once the API server answers.
pub const ADDONS: [(&str, &str); 3] = [
    ("access", include_str!("../../../manifests/addons/access.yaml")),
    ("kube-proxy", include_str!("../../../manifests/addons/kube-proxy.yaml")),
    ("dns", include_str!("../../../manifests/addons/dns.yaml")),
];

/// Fills `{{name}}` placeholders.
///
/// # Errors
/// When one has no value: a manifest with a hole must not reach a cluster.
pub fn fill(template: &str, values: &[(&str, String)]) -> Result<String> {
    let mut text = template.to_string();
    for (name, value) in values {
        text = text.replace(&format!("{{{{{name}}}}}"), value);
    }
    match text.find("{{") {
        None => Ok(text),
        Some(at) => Err(Error::new("filling a manifest", text[at..].chars().take(40).collect::<String>())),
    }
}

/// The objects of a YAML file with several documents.
///
/// # Errors
/// When a document is no YAML.
pub fn objects(yaml: &str) -> Result<Vec<Value>> {
    let documents = yaml.split("\n---\n").filter(|d| !d.trim().is_empty());
    documents.map(|d| serde_saphyr::from_str(d).context("reading a manifest")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_manifest_fills_and_parses() {
        let names = [
            "advertise",
            "etcd_port",
            "etcd_peer_port",
            "etcd_metrics_port",
            "etcd_image",
            "etcd_dir",
            "node",
            "pki",
            "port",
            "image",
            "domain",
            "service_cidr",
            "pod_cidr",
            "conf",
            "controller_manager_port",
            "scheduler_port",
            "server",
            "proxy_health_port",
            "proxy_metrics_port",
            "dns_ip",
            "image_digest",
            "etcd_image_digest",
        ];
        let values: Vec<(&str, String)> = names.iter().map(|n| (*n, "1".to_string())).collect();
        for (name, template) in STATIC.iter().chain(&ADDONS) {
            let objects = objects(&fill(template, &values).unwrap()).unwrap();
            assert!(objects.iter().all(|o| o["kind"].is_string()), "{name}");
        }
        assert!(fill("{{nobody}}", &values).is_err());
    }
}

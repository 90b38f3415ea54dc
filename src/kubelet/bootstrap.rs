//! The first client certificate: asked for with a bootstrap kubeconfig, approved by the cluster, written beside a
//! kubeconfig that uses it.

use base::Fault;
use client::Connection;
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec};
use kube::api::{Api, ObjectMeta, PostParams};
use kube::config::Kubeconfig;
use rcgen::{CertificateParams, DnType, KeyPair};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

/// Writes a file that only its owner may read.
///
/// # Errors
/// As the system says.
pub fn write_secret(path: &Path, text: &str) -> std::io::Result<()> {
    let mut file = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())
}

/// Asks for a certificate of the node with `first` and writes `kubeconfig`.
///
/// # Errors
/// When the request is denied, or can't be made.
pub async fn bootstrap(first: &Path, kubeconfig: &Path, cert_dir: &Path, node: &str) -> Result<(), Fault> {
    tracing::info!(bootstrap = %first.display(), "asking for a client certificate");
    let connection = Connection::open(Some(first), "kubelet").await?;
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::OrganizationName, "system:nodes");
    params.distinguished_name.push(DnType::CommonName, format!("system:node:{node}"));
    let request = params.serialize_request(&key)?.pem()?;
    let certificate = sign(&connection, request).await?;
    std::fs::create_dir_all(cert_dir)?;
    let pem = cert_dir.join("kubelet-client-current.pem");
    write_secret(&pem, &format!("{certificate}{}", key.serialize_pem()))?;
    write_kubeconfig(first, kubeconfig, &pem)?;
    Ok(())
}

async fn sign(connection: &Connection, request: String) -> Result<String, Fault> {
    let api: Api<CertificateSigningRequest> = Api::all(connection.client());
    let body = CertificateSigningRequest {
        metadata: ObjectMeta { generate_name: Some("csr-".into()), ..Default::default() },
        spec: CertificateSigningRequestSpec {
            request: ByteString(request.into_bytes()),
            signer_name: "kubernetes.io/kube-apiserver-client-kubelet".into(),
            usages: Some(vec!["digital signature".into(), "client auth".into()]),
            ..Default::default()
        },
        status: None,
    };
    let made = api.create(&PostParams::default(), &body).await?;
    let name = made.metadata.name.unwrap_or_default();
    let end = Timestamp::now() + jiff::SignedDuration::from_mins(15);
    while Timestamp::now() < end {
        let status = api.get(&name).await?.status.unwrap_or_default();
        if let Some(certificate) = status.certificate {
            return Ok(String::from_utf8(certificate.0)?);
        }
        let refused = status.conditions.iter().flatten().find(|c| matches!(c.type_.as_str(), "Denied" | "Failed"));
        if let Some(refused) = refused {
            let why = refused.message.clone().unwrap_or_default();
            return Err(format!("certificate signing request {name} is {}: {why}", refused.type_.to_lowercase()).into());
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    Err(format!("certificate signing request {name} was not approved in time").into())
}

/// The bootstrap kubeconfig with the new certificate in the place of its credentials.
fn write_kubeconfig(first: &Path, kubeconfig: &Path, pem: &Path) -> Result<(), Fault> {
    let source = Kubeconfig::read_from(first)?;
    let current = source.current_context.clone().unwrap_or_default();
    let context = source.contexts.iter().find(|context| context.name == current).or(source.contexts.first());
    let cluster = context.and_then(|context| context.context.clone()).map(|context| context.cluster);
    let cluster = source.clusters.iter().find(|c| Some(&c.name) == cluster.as_ref()).or(source.clusters.first());
    let cluster = cluster.ok_or("the bootstrap kubeconfig names no cluster")?;
    let value = serde_json::json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "default-context",
        "clusters": [{"name": "default-cluster", "cluster": cluster.cluster}],
        "contexts": [{"name": "default-context", "context": {"cluster": "default-cluster", "user": "default-auth"}}],
        "users": [{"name": "default-auth", "user": {"client-certificate": pem, "client-key": pem}}],
    });
    write_secret(kubeconfig, &serde_saphyr::to_string(&value)?)?;
    Ok(())
}

//! Kubeconfigs with everything inside, so that each is one file to copy.

use std::fs;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::pki::{self, Names, Pair};
use super::{Context, Layout, Result};

/// A kubeconfig for one user at one server.
pub fn document(server: &str, ca: &str, user: &str, pair: &Pair) -> Value {
    let context = format!("{user}@navarch");
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "navarch", "cluster": {
            "server": server,
            "certificate-authority-data": STANDARD.encode(ca),
        }}],
        "users": [{"name": user, "user": {
            "client-certificate-data": STANDARD.encode(&pair.certificate),
            "client-key-data": STANDARD.encode(&pair.key),
        }}],
        "contexts": [{"name": context, "context": {"cluster": "navarch", "user": user}}],
        "current-context": context,
        "preferences": {},
    })
}

fn write(layout: &Layout, subject: &pki::Subject, server: &str, names: &Names) -> Result<()> {
    let ca = fs::read_to_string(layout.pki().join("ca.crt")).context("reading ca.crt")?;
    let pair = pki::client(layout, subject, names)?;
    let user = match subject.name.as_str() {
        "admin" => "kubernetes-admin",
        other => other,
    };
    let yaml = serde_saphyr::to_string(&document(server, &ca, user, &pair)).context("writing a kubeconfig")?;
    pki::write_secret(&layout.kubeconfig(&subject.name), &yaml)
}

/// Writes the kubeconfigs of the table that are missing, name another server, or end soon; all of them with `anew`.
///
/// # Errors
/// When a file can't be read or written.
pub fn ensure(layout: &Layout, server: &str, names: &Names, anew: bool) -> Result<()> {
    let stale = |subject: &&pki::Subject| anew || !is_good(layout, &subject.name, server);
    pki::subjects().iter().filter(stale).try_for_each(|subject| write(layout, subject, server, names))
}

fn is_good(layout: &Layout, name: &str, server: &str) -> bool {
    let Ok(text) = fs::read_to_string(layout.kubeconfig(name)) else { return false };
    let Ok(config) = serde_saphyr::from_str::<Value>(&text) else { return false };
    let ca = fs::read_to_string(layout.pki().join("ca.crt")).unwrap_or_default();
    let certificate = config.pointer("/users/0/user/client-certificate-data").and_then(Value::as_str);
    let pem = certificate.and_then(|c| STANDARD.decode(c).ok()).and_then(|b| String::from_utf8(b).ok());
    let ends = pem.and_then(|p| pki::expiry(&p).ok());
    config.pointer("/clusters/0/cluster/server").and_then(Value::as_str) == Some(server)
        && config.pointer("/clusters/0/cluster/certificate-authority-data").and_then(Value::as_str)
            == Some(STANDARD.encode(ca).as_str())
        && ends.is_some_and(|e| e > time::OffsetDateTime::now_utc() + time::Duration::days(30))
}

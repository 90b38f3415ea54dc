//! ConfigMaps, Secrets and ServiceAccounts.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;

use crate::Value;
use crate::field::{Error, Errors, Path};
use crate::kinds::rules::{self, decoded_len};
use crate::kinds::view::{View, copy, fill, fill_pointer, items_mut, set, structure, unset};
use crate::meta::check::{self, push_all};
use crate::meta::names;
use crate::resources::{Context, Strategy};

/// Most bytes that the values of a ConfigMap or Secret may have together.
const MAX_SIZE: usize = 1024 * 1024;

fn whole(out: &mut Errors, new: &Value) {
    rules::whole_metadata(out, new, true, &names::dns_subdomain);
}

/// What an object marked as immutable may not change.
fn immutable(out: &mut Errors, new: &Value, old: &Value, fields: &[&str]) {
    if !old.flag("immutable") {
        return;
    }
    let detail = "field is immutable when `immutable` is set";
    if !new.flag("immutable") {
        out.push(Error::forbidden(&Path::new("immutable"), detail));
    }
    for field in fields {
        if !new.entries(field).eq(old.entries(field)) {
            out.push(Error::forbidden(&Path::new(field), detail));
        }
    }
}

/// ConfigMaps.
pub struct ConfigMap;

impl Strategy for ConfigMap {
    fn validate_create(&self, _cx: &Context<'_>, new: &Value) -> Errors {
        let mut out = Errors::new();
        config_map(&mut out, new);
        out
    }

    fn validate_update(&self, _cx: &Context<'_>, new: &Value, old: &Value) -> Errors {
        let mut out = Errors::new();
        immutable(&mut out, new, old, &["data", "binaryData"]);
        whole(&mut out, new);
        config_map(&mut out, new);
        out
    }
}

fn config_map(out: &mut Errors, new: &Value) {
    let mut size = 0;
    for (key, value) in new.pairs("data") {
        let path = Path::new("data").key(key);
        push_all(out, &path, key, names::config_key(key));
        if new.at("binaryData").has(key) {
            out.push(Error::invalid(&path, key, "duplicate of key present in binaryData"));
        }
        size += value.len();
    }
    for (key, value) in new.pairs("binaryData") {
        push_all(out, &Path::new("binaryData").key(key), key, names::config_key(key));
        size += decoded_len(value);
    }
    if size > MAX_SIZE {
        // Upstream's path without a name.
        out.push(Error::too_long(&Path::new("[]"), MAX_SIZE));
    }
}

/// Secrets.
pub struct Secret;

impl Strategy for Secret {
    /// Texts given as such become data.
    fn default(&self, object: &mut Value) {
        fill(object, "type", "Opaque");
        let Some(texts) = unset(object, "stringData") else { return };
        for (key, text) in texts.as_object().into_iter().flatten() {
            let data = STANDARD.encode(text.as_str().unwrap_or_default());
            set(structure(object, "data"), key, data);
        }
    }

    fn prepare_update(&self, _cx: &Context<'_>, new: &mut Value, old: &Value) {
        if new.text("type").is_empty() {
            copy(new, old, "type");
        }
    }

    fn validate_create(&self, _cx: &Context<'_>, new: &Value) -> Errors {
        let mut out = Errors::new();
        secret(&mut out, new);
        out
    }

    fn validate_update(&self, _cx: &Context<'_>, new: &Value, old: &Value) -> Errors {
        let mut out = Errors::new();
        check::immutable(&mut out, new.at("type"), old.at("type"), &Path::new("type"));
        immutable(&mut out, new, old, &["data"]);
        whole(&mut out, new);
        secret(&mut out, new);
        out
    }

    fn warnings(&self, _cx: &Context<'_>, new: &Value, _old: Option<&Value>) -> Vec<String> {
        if new.text("type") != "kubernetes.io/tls" {
            return Vec::new();
        }
        let data = new.at("data");
        let certificate = pem_fault(data.text("tls.crt"), "certificate", |kind| kind == "CERTIFICATE");
        certificate
            .or_else(|| pem_fault(data.text("tls.key"), "key", |kind| kind.ends_with("PRIVATE KEY")))
            .into_iter()
            .collect()
    }
}

fn secret(out: &mut Errors, new: &Value) {
    let (data, path) = (new.at("data"), Path::new("data"));
    let mut size = 0;
    for (key, value) in new.pairs("data") {
        push_all(out, &path.key(key), key, names::config_key(key));
        size += decoded_len(value);
    }
    if size > MAX_SIZE {
        out.push(Error::too_long(&path, MAX_SIZE));
    }
    let mut required = |keys: &[&str]| {
        for key in keys {
            out.push(Error::required(&path.key(key), ""));
        }
    };
    match new.text("type") {
        "kubernetes.io/service-account-token" => {
            let key = "kubernetes.io/service-account.name";
            if new.at("metadata").at("annotations").text(key).is_empty() {
                out.push(Error::required(&Path::new("metadata").child("annotations").key(key), ""));
            }
        }
        "kubernetes.io/dockercfg" => docker_config(out, data, ".dockercfg", &path),
        "kubernetes.io/dockerconfigjson" => docker_config(out, data, ".dockerconfigjson", &path),
        "kubernetes.io/basic-auth" if !data.has("username") && !data.has("password") => {
            required(&["username", "password"]);
        }
        "kubernetes.io/ssh-auth" if data.text("ssh-privatekey").is_empty() => required(&["ssh-privatekey"]),
        "kubernetes.io/tls" => {
            for key in ["tls.crt", "tls.key"].iter().filter(|key| !data.has(key)) {
                required(&[key]);
            }
        }
        _ => {}
    }
}

fn docker_config(out: &mut Errors, data: &Value, key: &str, path: &Path) {
    let Some(text) = data.at(key).as_str() else { return out.push(Error::required(&path.key(key), "")) };
    let bytes = STANDARD.decode(text).unwrap_or_default();
    let wrong = match crate::codec::json::parse(&bytes) {
        Ok((Value::Object(_) | Value::Null, _)) => return,
        Ok((other, _)) => {
            let kind = match other {
                Value::String(_) => "string",
                Value::Number(_) => "number",
                Value::Bool(_) => "bool",
                _ => "array",
            };
            format!("json: cannot unmarshal {kind} into Go value of type map[string]interface {{}}")
        }
        Err(status) => status.message,
    };
    out.push(Error::invalid(&path.key(key), "<secret contents redacted>", wrong));
}

/// What is wrong with PEM data, as Go's TLS library says it; only the outermost form is looked at.
fn pem_fault(base64: &str, what: &str, wanted: fn(&str) -> bool) -> Option<String> {
    let bytes = STANDARD.decode(base64).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let kinds: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("-----BEGIN ")?.strip_suffix("-----"))
        .filter(|kind| text.contains(&format!("-----END {kind}-----")))
        .collect();
    if kinds.iter().any(|kind| wanted(kind)) {
        return None;
    }
    Some(match kinds.as_slice() {
        [] => format!("tls: failed to find any PEM data in {what} input"),
        [kind] if what == "certificate" && kind.ends_with("PRIVATE KEY") => {
            "tls: failed to find certificate PEM data in certificate input, but did find a private key; PEM inputs may \
             have been switched"
                .into()
        }
        ["CERTIFICATE"] if what == "key" => {
            "tls: found a certificate rather than a key in the PEM for the private key".into()
        }
        kinds if what == "certificate" => format!(
            "tls: failed to find \"CERTIFICATE\" PEM block in certificate input after skipping PEM blocks of the \
             following types: [{}]",
            kinds.join(" ")
        ),
        kinds => format!(
            "tls: failed to find PEM block with type ending in \"PRIVATE KEY\" in key input after skipping PEM blocks of \
             the following types: [{}]",
            kinds.join(" ")
        ),
    })
}

/// ServiceAccounts.
pub struct ServiceAccount;

/// Says that pods may mount only the Secrets that the account names.
const MOUNTABLE: &str = "kubernetes.io/enforce-mountable-secrets";

impl Strategy for ServiceAccount {
    fn prepare_create(&self, _cx: &Context<'_>, new: &mut Value) {
        names_only(new);
    }

    fn prepare_update(&self, _cx: &Context<'_>, new: &mut Value, _old: &Value) {
        names_only(new);
    }

    fn validate_update(&self, _cx: &Context<'_>, new: &Value, _old: &Value) -> Errors {
        let mut out = Errors::new();
        whole(&mut out, new);
        out
    }

    fn warnings(&self, _cx: &Context<'_>, new: &Value, old: Option<&Value>) -> Vec<String> {
        let has = |object: &Value| object.at("metadata").at("annotations").has(MOUNTABLE);
        if !has(new) || old.is_some_and(has) {
            return Vec::new();
        }
        vec![format!(
            "metadata.annotations[{MOUNTABLE}]: deprecated in v1.32+; prefer separate namespaces to isolate access to \
             mounted secrets"
        )]
    }
}

/// References to Secrets are names.
fn names_only(account: &mut Value) {
    for secret in items_mut(account, "secrets") {
        let mut kept = json!({});
        copy(&mut kept, secret, "name");
        fill_pointer(&mut kept, "name", "");
        if kept.text("name").is_empty() {
            unset(&mut kept, "name");
        }
        *secret = kept;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn texts_become_data() {
        let mut object = json!({"stringData": {"a": "x"}, "data": {"b": "eQ=="}});
        Secret.default(&mut object);
        assert_eq!(object, json!({"type": "Opaque", "data": {"a": "eA==", "b": "eQ=="}}));
    }
}

//! Tokens with which a new node introduces itself: `id.secret`, kept in a Secret of kube-system.

use api::Value;
use base64::Engine as _;

use super::{Known, Tokens, same_secret};
use crate::lookup::Lookup;
use crate::request::User;

/// Bootstrap tokens, as the cache has them.
pub struct BootstrapTokens(pub Lookup);

impl Tokens for BootstrapTokens {
    fn known(&self, token: &str, _: &[String]) -> Result<Option<Known>, String> {
        let Some((id, secret)) = token.split_once('.').filter(|(id, secret)| well_formed(id, secret)) else {
            return Ok(None);
        };
        let Some(found) = self.0.get("", "secrets", "kube-system", &format!("bootstrap-token-{id}")) else {
            return Ok(None);
        };
        let object = found.entry.value().map_err(|e| e.to_string())?;
        Ok(check(&object, id, secret, base::clock::unix()).map(|user| Known { user, audiences: Vec::new() }))
    }
}

fn well_formed(id: &str, secret: &str) -> bool {
    let fits =
        |text: &str, len| text.len() == len && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    fits(id, 6) && fits(secret, 16)
}

/// The user of a bootstrap token's Secret, when the Secret says that the token is good.
fn check(object: &Value, id: &str, secret: &str, now: i64) -> Option<User> {
    let data = |key: &str| {
        let encoded = object["data"][key].as_str()?;
        String::from_utf8(base64::engine::general_purpose::STANDARD.decode(encoded).ok()?).ok()
    };
    let good = object["type"] == "bootstrap.kubernetes.io/token"
        && !object["metadata"]["deletionTimestamp"].is_string()
        && data("token-id")? == id
        && same_secret(data("token-secret")?.as_bytes(), secret.as_bytes())
        && data("usage-bootstrap-authentication").as_deref() == Some("true")
        && data("expiration").is_none_or(|until| is_after(&until, now));
    if !good {
        return None;
    }
    let mut groups = vec!["system:bootstrappers".to_string()];
    for group in data("auth-extra-groups").unwrap_or_default().split(',').map(str::trim).filter(|g| !g.is_empty()) {
        if !group.starts_with("system:bootstrappers:") {
            return None;
        }
        groups.push(group.to_string());
    }
    Some(User { name: format!("system:bootstrap:{id}"), groups, ..User::default() })
}

/// A time that can't be read counts as over.
fn is_after(text: &str, now: i64) -> bool {
    text.parse::<jiff::Timestamp>().is_ok_and(|t| t.as_second() > now)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(change: &[(&str, &str)]) -> Value {
        let mut data = serde_json::Map::new();
        let base = [
            ("token-id", "abcdef"),
            ("token-secret", "0123456789abcdef"),
            ("usage-bootstrap-authentication", "true"),
            ("auth-extra-groups", "system:bootstrappers:x"),
        ];
        for (key, value) in base.iter().chain(change) {
            data.insert(key.to_string(), base64::engine::general_purpose::STANDARD.encode(value).into());
        }
        serde_json::json!({"type": "bootstrap.kubernetes.io/token", "metadata": {}, "data": data})
    }

    #[test]
    fn a_secret_decides_whether_its_token_is_good() {
        let user = check(&secret(&[]), "abcdef", "0123456789abcdef", 0).expect("good");
        assert_eq!(user.name, "system:bootstrap:abcdef");
        assert_eq!(user.groups, ["system:bootstrappers", "system:bootstrappers:x"]);
        for wrong in [
            [("usage-bootstrap-authentication", "false")],
            [("token-secret", "0000000000000000")],
            [("expiration", "1969-01-01T00:00:00Z")],
            [("expiration", "soon")],
            [("auth-extra-groups", "system:masters")],
        ] {
            assert_eq!(check(&secret(&wrong), "abcdef", "0123456789abcdef", 0), None, "{wrong:?}");
        }
    }
}

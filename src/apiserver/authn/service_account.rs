//! Service-account tokens: signed by us, bound to objects that must still be there.
//!
//! A signature is checked once per token and remembered; that the objects are there is checked on every request, which
//! costs a look into the cache.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;
use serde::Deserialize;

use super::keys::Verifier;
use super::{CREDENTIAL_ID, Known, Tokens};
use crate::lookup::Lookup;
use crate::request::User;

/// Issuer of the tokens that controllers once kept in Secrets.
const LEGACY_ISSUER: &str = "kubernetes/serviceaccount";
/// How long after its deletion an object still vouches for a token.
const LEEWAY: i64 = 60;
/// Remembered tokens; when there are more, all are forgotten.
const REMEMBERED: usize = 4096;

/// Knows service-account tokens.
pub struct ServiceAccounts {
    /// Accepted issuers.
    pub issuers: Vec<String>,
    /// Audiences that a token must have one of when its reader names none.
    pub audiences: Vec<String>,
    /// Keys.
    pub keys: Vec<Verifier>,
    /// Where the objects are.
    pub lookup: Lookup,
    /// Check that the objects are there (`--service-account-lookup`).
    pub check_objects: bool,
    verified: Mutex<HashMap<String, Arc<Claims>>>,
}

/// Claims of a token.
#[derive(Debug, Clone, Default, Deserialize)]
struct Claims {
    #[serde(default)]
    iss: String,
    #[serde(default)]
    sub: String,
    #[serde(default)]
    aud: Audience,
    exp: Option<i64>,
    nbf: Option<i64>,
    iat: Option<i64>,
    #[serde(default)]
    jti: String,
    #[serde(rename = "kubernetes.io")]
    bound: Option<Bound>,
    #[serde(rename = "kubernetes.io/serviceaccount/namespace", default)]
    legacy_namespace: String,
    #[serde(rename = "kubernetes.io/serviceaccount/service-account.name", default)]
    legacy_name: String,
    #[serde(rename = "kubernetes.io/serviceaccount/service-account.uid", default)]
    legacy_uid: String,
    #[serde(rename = "kubernetes.io/serviceaccount/secret.name", default)]
    legacy_secret: String,
}

/// `aud`: one or several.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
enum Audience {
    One(String),
    Many(Vec<String>),
}

impl Default for Audience {
    fn default() -> Self {
        Audience::Many(Vec::new())
    }
}

impl Audience {
    fn names(&self) -> &[String] {
        match self {
            Audience::One(name) => std::slice::from_ref(name),
            Audience::Many(names) => names,
        }
    }
}

/// What a token is bound to.
#[derive(Debug, Clone, Default, Deserialize)]
struct Bound {
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    serviceaccount: Ref,
    pod: Option<Ref>,
    secret: Option<Ref>,
    node: Option<Ref>,
}

#[derive(Debug, Clone, Default, Deserialize)]
struct Ref {
    #[serde(default)]
    name: String,
    #[serde(default)]
    uid: String,
}

impl ServiceAccounts {
    /// With nothing remembered yet.
    pub fn new(
        issuers: Vec<String>, audiences: Vec<String>, keys: Vec<Verifier>, lookup: Lookup, check_objects: bool,
    ) -> Self {
        Self { issuers, audiences, keys, lookup, check_objects, verified: Mutex::default() }
    }

    /// The claims of a token with a good signature.
    fn verify(&self, token: &str) -> Result<Arc<Claims>, String> {
        if let Some(claims) = self.verified.lock().get(token) {
            return Ok(claims.clone());
        }
        let header = jsonwebtoken::decode_header(token).map_err(|e| e.to_string())?;
        let (named, others): (Vec<_>, Vec<_>) =
            self.keys.iter().filter(|k| k.algorithm == header.alg).partition(|k| Some(&k.id) == header.kid.as_ref());
        let claims = named.into_iter().chain(others).find_map(|key| {
            let mut rules = jsonwebtoken::Validation::new(key.algorithm);
            // Times and audiences are judged below, in upstream's words, on every request.
            rules.validate_exp = false;
            rules.validate_aud = false;
            rules.required_spec_claims.clear();
            jsonwebtoken::decode::<Claims>(token, &key.key, &rules).ok()
        });
        let claims = Arc::new(claims.ok_or("token has an invalid signature")?.claims);
        let mut verified = self.verified.lock();
        if verified.len() >= REMEMBERED {
            verified.clear();
        }
        verified.insert(token.to_string(), claims.clone());
        Ok(claims)
    }

    fn judge_bound(&self, claims: &Claims, bound: &Bound, now: i64) -> Result<User, String> {
        in_time(claims, now)?;
        let Bound { namespace, serviceaccount, pod, secret, node } = bound;
        if self.check_objects {
            self.alive("serviceaccounts", namespace, serviceaccount, now)?;
            for (plural, object) in [("secrets", secret), ("pods", pod)] {
                if let Some(object) = object {
                    self.alive(plural, namespace, object, now)?;
                }
            }
            // The node of a pod's token is only told, it need not be there.
            if let (Some(node), None) = (node, pod) {
                self.alive("nodes", "", node, now)?;
            }
        }
        let mut extra = BTreeMap::new();
        let mut tell = |key: &str, value: &str| {
            if !value.is_empty() {
                extra.insert(key.to_string(), vec![value.to_string()]);
            }
        };
        if let Some(pod) = pod {
            tell("authentication.kubernetes.io/pod-name", &pod.name);
            tell("authentication.kubernetes.io/pod-uid", &pod.uid);
        }
        if let Some(node) = node {
            tell("authentication.kubernetes.io/node-name", &node.name);
            tell("authentication.kubernetes.io/node-uid", &node.uid);
        }
        if !claims.jti.is_empty() {
            tell(CREDENTIAL_ID, &format!("JTI={}", claims.jti));
        }
        Ok(User { extra, ..user(namespace, &serviceaccount.name, &serviceaccount.uid) })
    }

    /// Is the object of a reference there, the same one, and not deleted for long?
    fn alive(&self, plural: &str, namespace: &str, object: &Ref, now: i64) -> Result<(), String> {
        let gone = || format!("service account token has been invalidated: {plural} {:?}", object.name);
        let found = self.lookup.get("", plural, namespace, &object.name).ok_or_else(gone)?;
        if found.entry.uid() != object.uid {
            let held = found.entry.uid();
            return Err(format!("{plural} UID ({held}) does not match claim ({})", object.uid));
        }
        if found.entry.terminating() {
            let value = found.entry.value().map_err(|e| e.to_string())?;
            let deleted = value["metadata"]["deletionTimestamp"].as_str().and_then(|t| t.parse().ok());
            if deleted.is_none_or(|t: jiff::Timestamp| t.as_second() < now - LEEWAY) {
                return Err(gone());
            }
        }
        Ok(())
    }

    /// A token without end that a Secret holds.
    fn judge_legacy(&self, claims: &Claims, token: &str) -> Result<User, String> {
        let Claims { legacy_namespace: ns, legacy_name: name, legacy_uid: uid, legacy_secret: secret, .. } = claims;
        if ns.is_empty() || name.is_empty() || uid.is_empty() || secret.is_empty() {
            return Err("claims of a legacy token are not complete".into());
        }
        if claims.sub != format!("system:serviceaccount:{ns}:{name}") {
            return Err("sub claim is not the service account's".into());
        }
        if self.check_objects {
            let found = self.lookup.get("", "secrets", ns, secret).ok_or("token has been invalidated")?;
            let value = found.entry.value().map_err(|e| e.to_string())?;
            use base64::Engine as _;
            let held = value["data"]["token"].as_str().unwrap_or_default();
            let held = base64::engine::general_purpose::STANDARD.decode(held).unwrap_or_default();
            if !super::same_secret(&held, token.as_bytes()) {
                return Err("token does not match server's copy".into());
            }
            let account = Ref { name: name.clone(), uid: uid.clone() };
            self.alive("serviceaccounts", ns, &account, base::clock::unix())?;
        }
        Ok(user(ns, name, uid))
    }
}

fn in_time(claims: &Claims, now: i64) -> Result<(), String> {
    match (claims.exp, claims.nbf, claims.iat) {
        (Some(exp), ..) if exp < now => Err("service account token has expired".into()),
        (_, Some(nbf), _) if nbf > now => Err("service account token is not valid yet".into()),
        (.., Some(iat)) if iat > now => Err("service account token is issued in the future".into()),
        _ => Ok(()),
    }
}

/// The user that a service account is.
pub fn user(namespace: &str, name: &str, uid: &str) -> User {
    User {
        name: format!("system:serviceaccount:{namespace}:{name}"),
        uid: uid.to_string(),
        groups: vec!["system:serviceaccounts".to_string(), format!("system:serviceaccounts:{namespace}")],
        extra: BTreeMap::new(),
    }
}

/// Namespace and name of the service account that a user's name is.
pub fn split_username(name: &str) -> Option<(&str, &str)> {
    name.strip_prefix("system:serviceaccount:")?.split_once(':').filter(|(_, n)| !n.contains(':'))
}

/// The issuer of a token, unverified: to tell whether it is one of ours at all.
fn issuer(token: &str) -> Option<String> {
    use base64::Engine as _;
    let mut parts = token.split('.');
    let (_, body, _) = (parts.next()?, parts.next()?, parts.next()?);
    let body = base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(body).ok()?;
    #[derive(Deserialize)]
    struct Issuer {
        iss: String,
    }
    serde_json::from_slice::<Issuer>(&body).ok().map(|c| c.iss)
}

impl Tokens for ServiceAccounts {
    fn known(&self, token: &str, audiences: &[String]) -> Result<Option<Known>, String> {
        let Some(issuer) = issuer(token) else { return Ok(None) };
        if issuer != LEGACY_ISSUER && !self.issuers.contains(&issuer) {
            return Ok(None);
        }
        let claims = self.verify(token)?;
        // Legacy tokens have no audience: they are for this server.
        let held = if claims.iss == LEGACY_ISSUER { &self.audiences } else { claims.aud.names() };
        let wanted = if audiences.is_empty() { &self.audiences } else { audiences };
        let common: Vec<String> = wanted.iter().filter(|a| held.contains(a)).cloned().collect();
        if common.is_empty() {
            return Err(format!("token audiences {held:?} is invalid for the target audiences {wanted:?}"));
        }
        let user = match &claims.bound {
            Some(bound) => self.judge_bound(&claims, bound, base::clock::unix())?,
            None if claims.iss == LEGACY_ISSUER => self.judge_legacy(&claims, token)?,
            None => return Err("service account token has no kubernetes.io claim".into()),
        };
        Ok(Some(Known { user, audiences: common }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_judged_in_upstreams_words() {
        let at = |exp, nbf| in_time(&Claims { exp: Some(exp), nbf: Some(nbf), ..Claims::default() }, 100);
        assert_eq!(at(101, 99), Ok(()));
        assert_eq!(at(99, 0), Err("service account token has expired".into()));
        assert_eq!(at(200, 150), Err("service account token is not valid yet".into()));
    }

    #[test]
    fn user_names_of_service_accounts_split() {
        assert_eq!(split_username("system:serviceaccount:a:b"), Some(("a", "b")));
        assert_eq!(split_username("system:serviceaccount:a:b:c"), None);
        assert_eq!(split_username("ann"), None);
    }
}

//! Who asks. One ordered list of ways to say so; the first that knows the request answers.
//!
//! ```text
//!   front proxy's headers (its certificate must be of its own CA)
//!   client certificate    (CN is the name, O are the groups)
//!   bearer token          (static file, service account, bootstrap)
//!   anonymous             (only when nothing above was tried and failed)
//! ```
//!
//! A verdict on a client certificate holds for its whole connection and is made once.

pub mod bootstrap_token;
pub mod keys;
pub mod service_account;
pub mod static_token;

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use base::server::Peer;
use base::tls::Authorities;
use http::HeaderMap;
use rustls_pki_types::CertificateDer;
use sha2::Digest as _;

use crate::request::User;

/// Key of the extra value that says which credential was used.
pub const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";
/// Group of everybody who is known.
pub const AUTHENTICATED: &str = "system:authenticated";
/// Group of everybody who is not.
pub const UNAUTHENTICATED: &str = "system:unauthenticated";
/// Name of everybody who is not known.
pub const ANONYMOUS: &str = "system:anonymous";

/// Headers and certificates by which a front proxy says for whom it speaks.
#[derive(Debug, Clone)]
pub struct FrontProxy {
    /// Whose certificates are trusted.
    pub authorities: Arc<Authorities>,
    /// Common names of the proxy; empty allows every name.
    pub allowed_names: Vec<String>,
    /// Headers with the name.
    pub username_headers: Vec<String>,
    /// Headers with the UID.
    pub uid_headers: Vec<String>,
    /// Headers with groups.
    pub group_headers: Vec<String>,
    /// Prefixes of headers with extra values.
    pub extra_prefixes: Vec<String>,
}

/// What knows a bearer token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Known {
    /// Whose it is.
    pub user: User,
    /// Audiences of the request that the token is good for; empty when the token has none of its own.
    pub audiences: Vec<String>,
}

/// A way to know bearer tokens.
pub trait Tokens: Send + Sync {
    /// Whose token is this, for one of these audiences? `None` when it is none of this kind.
    ///
    /// # Errors
    /// Why a token of this kind is not good.
    fn known(&self, token: &str, audiences: &[String]) -> Result<Option<Known>, String>;
}

/// Decides who asks.
pub struct Authenticator {
    /// Authorities of client certificates.
    pub clients: Option<Arc<Authorities>>,
    /// The front proxy.
    pub front_proxy: Option<FrontProxy>,
    /// Ways to know bearer tokens, in order.
    pub tokens: Vec<Box<dyn Tokens>>,
    /// Audiences of this server.
    pub audiences: Vec<String>,
    /// Strangers may ask, too.
    pub anonymous: bool,
}

/// What is known of a connection's client certificate, made on the first request that asks.
#[derive(Default)]
pub struct Verdicts {
    client: OnceLock<Result<(Arc<User>, i64), String>>,
    proxy: OnceLock<Result<(), String>>,
}

impl Authenticator {
    /// Who asks.
    ///
    /// # Errors
    /// Why that is not known; for the log, the client learns nothing.
    pub fn authenticate(&self, peer: &Peer, verdicts: &Verdicts, headers: &HeaderMap) -> Result<Arc<User>, String> {
        let mut refused = Vec::new();
        match self.by_front_proxy(peer, verdicts, headers) {
            Ok(Some(user)) => return Ok(user),
            Ok(None) => {}
            Err(why) => refused.push(why),
        }
        match self.by_certificate(peer, verdicts) {
            Ok(Some(user)) => return Ok(user),
            Ok(None) => {}
            Err(why) => refused.push(why),
        }
        if let Some(token) = bearer(headers) {
            match self.by_token(token, &self.audiences) {
                Ok(Some(known)) => return Ok(Arc::new(with_authenticated(known.user))),
                Ok(None) => refused.push("invalid bearer token".into()),
                Err(why) => refused.push(why),
            }
        }
        if !refused.is_empty() {
            return Err(refused.join(", "));
        }
        if self.anonymous { Ok(anonymous()) } else { Err("no credentials, and anonymous requests are off".into()) }
    }

    /// Who has this token; for TokenReview as well.
    ///
    /// # Errors
    /// Why a token that somebody recognized is not good.
    pub fn by_token(&self, token: &str, audiences: &[String]) -> Result<Option<Known>, String> {
        let mut refused = Vec::new();
        for tokens in &self.tokens {
            match tokens.known(token, audiences) {
                Ok(Some(known)) => return Ok(Some(known)),
                Ok(None) => {}
                Err(why) => refused.push(why),
            }
        }
        if refused.is_empty() { Ok(None) } else { Err(refused.join(", ")) }
    }

    fn by_certificate(&self, peer: &Peer, verdicts: &Verdicts) -> Result<Option<Arc<User>>, String> {
        let Some(authorities) = &self.clients else { return Ok(None) };
        if peer.certificates.is_empty() {
            return Ok(None);
        }
        let verdict = verdicts.client.get_or_init(|| judge(authorities, &peer.certificates));
        let (user, until) = verdict.as_ref().map_err(Clone::clone)?;
        if *until < base::clock::unix() {
            return Err("client certificate has expired".into());
        }
        Ok(Some(user.clone()))
    }

    fn by_front_proxy(
        &self, peer: &Peer, verdicts: &Verdicts, headers: &HeaderMap,
    ) -> Result<Option<Arc<User>>, String> {
        let Some(proxy) = &self.front_proxy else { return Ok(None) };
        let Some(name) = proxy.username_headers.iter().find_map(|h| text(headers, h)) else { return Ok(None) };
        if peer.certificates.is_empty() {
            return Ok(None);
        }
        verdicts.proxy.get_or_init(|| proxy.judge(&peer.certificates)).clone()?;
        let user = User {
            name: name.to_string(),
            uid: proxy.uid_headers.iter().find_map(|h| text(headers, h)).unwrap_or_default().to_string(),
            groups: proxy.group_headers.iter().flat_map(|h| texts(headers, h)).collect(),
            extra: extra(headers, &proxy.extra_prefixes),
        };
        Ok(Some(Arc::new(with_authenticated(user))))
    }

    /// Takes away what says who asks, so that nobody further in sees or forwards it.
    pub fn strip(&self, headers: &mut HeaderMap) {
        headers.remove(http::header::AUTHORIZATION);
        for name in ["x-remote-user", "x-remote-uid", "x-remote-group"] {
            headers.remove(name);
        }
        let mut prefixes = vec!["x-remote-extra-".to_string()];
        if let Some(proxy) = &self.front_proxy {
            for name in proxy.username_headers.iter().chain(&proxy.uid_headers).chain(&proxy.group_headers) {
                headers.remove(name.to_ascii_lowercase());
            }
            prefixes.extend(proxy.extra_prefixes.iter().map(|p| p.to_ascii_lowercase()));
        }
        remove_prefixed(headers, &prefixes);
    }
}

fn remove_prefixed(headers: &mut HeaderMap, prefixes: &[String]) {
    let extra = |name: &http::HeaderName| prefixes.iter().any(|p| name.as_str().starts_with(p.as_str()));
    if headers.keys().any(extra) {
        let gone: Vec<_> = headers.keys().filter(|n| extra(n)).cloned().collect();
        for name in gone {
            headers.remove(name);
        }
    }
}

impl FrontProxy {
    /// May the holder of this certificate speak for others?
    fn judge(&self, chain: &[CertificateDer<'static>]) -> Result<(), String> {
        self.authorities.verify_client(chain).map_err(|e| format!("front proxy's certificate: {e}"))?;
        let name = base::tls::subject(&chain[0])?.common_name;
        match self.allowed_names.is_empty() || self.allowed_names.contains(&name) {
            true => Ok(()),
            false => Err(format!("x509: subject with cn={name} is not in the allowed list")),
        }
    }
}

/// The user that a client certificate names, and until when.
fn judge(authorities: &Authorities, chain: &[CertificateDer<'static>]) -> Result<(Arc<User>, i64), String> {
    authorities.verify_client(chain).map_err(|e| format!("client certificate: {e}"))?;
    let subject = base::tls::subject(&chain[0])?;
    if subject.common_name.is_empty() {
        // Trusted, but nobody in particular.
        return Err("client certificate without a common name".into());
    }
    let id: String = sha2::Sha256::digest(&chain[0]).iter().map(|b| format!("{b:02x}")).collect();
    let user = User {
        name: subject.common_name,
        uid: String::new(),
        groups: subject.organizations,
        extra: BTreeMap::from([(CREDENTIAL_ID.to_string(), vec![format!("X509SHA256={id}")])]),
    };
    Ok((Arc::new(with_authenticated(user)), subject.not_after))
}

/// Everybody who is known is in `system:authenticated`.
pub fn with_authenticated(mut user: User) -> User {
    let has = |group: &str| user.groups.iter().any(|g| g == group);
    if user.name != ANONYMOUS && !has(AUTHENTICATED) && !has(UNAUTHENTICATED) {
        user.groups.push(AUTHENTICATED.to_string());
    }
    user
}

fn anonymous() -> Arc<User> {
    static USER: std::sync::LazyLock<Arc<User>> = std::sync::LazyLock::new(|| {
        Arc::new(User { name: ANONYMOUS.to_string(), groups: vec![UNAUTHENTICATED.to_string()], ..User::default() })
    });
    USER.clone()
}

/// The bearer token of a request: of the Authorization header, or of the websocket subprotocol that browsers can set.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    base::health::bearer(headers)
}

/// The token that a websocket client hides in a subprotocol (`base64url.bearer.authorization.k8s.io.<token>`).
pub fn websocket_bearer(headers: &HeaderMap) -> Option<String> {
    use base64::Engine as _;
    const PREFIX: &str = "base64url.bearer.authorization.k8s.io.";
    let protocols = headers.get_all(http::header::SEC_WEBSOCKET_PROTOCOL).iter().filter_map(|v| v.to_str().ok());
    let encoded = protocols.flat_map(|v| v.split(',')).find_map(|p| p.trim().strip_prefix(PREFIX))?;
    let token = base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(encoded.trim_end_matches('=')).ok()?;
    String::from_utf8(token).ok()
}

/// The first value of a header, when it is not empty.
fn text<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name)?.to_str().ok().filter(|v| !v.is_empty())
}

fn texts(headers: &HeaderMap, name: &str) -> Vec<String> {
    let values = headers.get_all(name).iter();
    values.filter_map(|v| v.to_str().ok()).filter(|v| !v.is_empty()).map(str::to_string).collect()
}

/// Values of headers that start with one of the prefixes, by the rest of their name in lower case.
pub fn extra(headers: &HeaderMap, prefixes: &[String]) -> BTreeMap<String, Vec<String>> {
    let mut extra: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, value) in headers {
        for prefix in prefixes {
            let Some(key) = name.as_str().strip_prefix(prefix.to_ascii_lowercase().as_str()) else { continue };
            let key = base::health::unescape(key, false).unwrap_or_else(|| key.to_string());
            if let Ok(value) = value.to_str() {
                extra.entry(key).or_default().push(value.to_string());
            }
        }
    }
    extra
}

/// Compares secrets in a time that does not tell where they differ.
pub fn same_secret(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0u8, |d, (x, y)| d | (x ^ y)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extra_headers_are_lowered_and_unescaped() {
        let mut headers = HeaderMap::new();
        headers.insert("x-remote-extra-example.com%2fscope", "a".parse().expect("value"));
        let got = extra(&headers, &["X-Remote-Extra-".into()]);
        assert_eq!(got, BTreeMap::from([("example.com/scope".to_string(), vec!["a".to_string()])]));
    }

    #[test]
    fn known_users_are_authenticated_and_strangers_are_not() {
        let named = |name: &str| with_authenticated(User { name: name.into(), ..User::default() }).groups;
        assert_eq!(named("a"), [AUTHENTICATED]);
        assert!(named(ANONYMOUS).is_empty());
        assert_eq!(anonymous().groups, [UNAUTHENTICATED]);
    }

    #[test]
    fn a_websocket_client_may_hide_its_token_in_a_subprotocol() {
        let mut headers = HeaderMap::new();
        let value = "base64url.bearer.authorization.k8s.io.YWJj, base64.binary.k8s.io";
        headers.insert("sec-websocket-protocol", value.parse().expect("value"));
        assert_eq!(websocket_bearer(&headers).as_deref(), Some("abc"));
    }
}

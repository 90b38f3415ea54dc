//! Who asks, and may they: client certificates, tokens by TokenReview, and rights by SubjectAccessReview on the node's
//! subresources.

use super::{Answer, text};
use crate::config::{Authentication, Authorization};
use base::server::Peer;
use base::tls::Authorities;
use http::{Request, StatusCode};
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::api::{Api, PostParams};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A user.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct User {
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
    /// Groups.
    pub groups: Vec<String>,
    /// More.
    pub extra: BTreeMap<String, Vec<String>>,
}

/// Answers that hold for a while.
struct Cache<K, V> {
    entries: Mutex<HashMap<K, (V, Instant)>>,
}

/// Answers kept at most.
const MOST: usize = 4096;

impl<K: Hash + Eq, V: Clone> Cache<K, V> {
    fn new() -> Self {
        Self { entries: Mutex::default() }
    }

    fn get(&self, key: &K) -> Option<V> {
        let entries = self.entries.lock();
        let (value, until) = entries.get(key)?;
        (Instant::now() < *until).then(|| value.clone())
    }

    fn put(&self, key: K, value: V, life: Duration) {
        let mut entries = self.entries.lock();
        let now = Instant::now();
        if entries.len() >= MOST {
            entries.retain(|_, (_, until)| now < *until);
        }
        if entries.len() < MOST {
            entries.insert(key, (value, now + life));
        }
    }
}

/// The gate before all else.
pub struct Guard {
    /// The node's name.
    node: String,
    client: Option<kube::Client>,
    authorities: Option<Arc<Authorities>>,
    authentication: Authentication,
    authorization: Authorization,
    tokens: Cache<String, Option<User>>,
    access: Cache<(User, String, String), bool>,
}

/// What a path is about, on the node: its subresources, the finest first.
fn subresources(path: &str) -> Vec<&'static str> {
    let below = |prefix: &str| path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    let fine = [("/pods", "pods"), ("/runningpods", "pods"), ("/healthz", "healthz"), ("/configz", "configz")];
    let own = [
        ("/stats", "stats"),
        ("/metrics", "metrics"),
        ("/logs", "log"),
        ("/checkpoint", "checkpoint"),
        ("/statusz", "statusz"),
        ("/flagz", "configz"),
    ];
    let find = |list: &[(&str, &'static str)]| list.iter().find(|(prefix, _)| below(prefix)).map(|(_, name)| *name);
    find(&fine).into_iter().chain([find(&own).unwrap_or("proxy")]).collect()
}

fn verb(method: &http::Method) -> &'static str {
    match method.as_str() {
        "POST" => "create",
        "GET" => "get",
        "PUT" => "update",
        "PATCH" => "patch",
        "DELETE" => "delete",
        _ => "",
    }
}

/// Name and groups of a certificate's subject.
fn user_of(certificate: &[u8]) -> Option<User> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
    let text = |attribute: &x509_parser::x509::AttributeTypeAndValue<'_>| attribute.as_str().ok().map(str::to_owned);
    let name = parsed.subject().iter_common_name().next().and_then(text)?;
    let groups = parsed.subject().iter_organization().filter_map(text).collect();
    Some(User { name, groups, ..Default::default() })
}

impl Guard {
    /// A guard that asks the API server behind `client`.
    pub fn new(
        node: String, client: Option<kube::Client>, authorities: Option<Arc<Authorities>>,
        authentication: Authentication, authorization: Authorization,
    ) -> Self {
        Self { node, client, authorities, authentication, authorization, tokens: Cache::new(), access: Cache::new() }
    }

    /// Lets the request pass, or answers it.
    pub async fn admit<B>(&self, peer: &Peer, request: &Request<B>) -> Result<(), Answer> {
        let user = match self.authenticate(peer, base::health::bearer(request.headers())).await {
            Some(mut user) => {
                let all =
                    if user.name == "system:anonymous" { "system:unauthenticated" } else { "system:authenticated" };
                if !user.groups.iter().any(|group| group == all) {
                    user.groups.push(all.into());
                }
                user
            }
            None => return Err(text(StatusCode::UNAUTHORIZED, "Unauthorized")),
        };
        if self.authorization.mode == "AlwaysAllow" {
            return Ok(());
        }
        let verb = verb(request.method());
        let subresources = subresources(request.uri().path());
        let mut fault = None;
        for subresource in &subresources {
            match self.allowed(&user, verb, subresource).await {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(error) => fault = Some(error),
            }
        }
        let list = subresources.join(" ");
        if let Some(error) = fault {
            tracing::warn!(user = user.name, verb, subresources = list, error, "authorization failed");
            let body = format!(
                "Authorization error (user={}, verb={verb}, resource=nodes, subresource(s)=[{list}])",
                user.name
            );
            return Err(text(StatusCode::INTERNAL_SERVER_ERROR, body));
        }
        let body = format!("Forbidden (user={}, verb={verb}, resource=nodes, subresource(s)=[{list}])\n", user.name);
        Err(text(StatusCode::FORBIDDEN, body))
    }

    async fn authenticate(&self, peer: &Peer, bearer: Option<&str>) -> Option<User> {
        if let (Some(authorities), Some(first)) = (&self.authorities, peer.certificates.first())
            && authorities.verify_client(&peer.certificates).is_ok()
            && let Some(user) = user_of(first)
        {
            return Some(user);
        }
        if let Some(token) = bearer.filter(|_| self.authentication.webhook.enabled) {
            // A token that is refused is no reason to count as nobody.
            return self.review(token).await;
        }
        let anonymous = || User { name: "system:anonymous".into(), ..Default::default() };
        self.authentication.anonymous.enabled.then(anonymous)
    }

    async fn review(&self, token: &str) -> Option<User> {
        if let Some(known) = self.tokens.get(&token.to_owned()) {
            return known;
        }
        let api: Api<TokenReview> = Api::all(self.client.clone()?);
        let spec = TokenReviewSpec { token: token.into(), ..Default::default() };
        let answer = match api.create(&PostParams::default(), &TokenReview { spec, ..Default::default() }).await {
            Ok(answer) => answer.status.unwrap_or_default(),
            Err(error) => {
                tracing::warn!(error = client::retry::message(&error), "can't ask about a token");
                return None;
            }
        };
        let user = answer.user.filter(|_| answer.authenticated == Some(true)).map(|user| User {
            name: user.username.unwrap_or_default(),
            uid: user.uid.unwrap_or_default(),
            groups: user.groups.unwrap_or_default(),
            extra: user.extra.unwrap_or_default(),
        });
        self.tokens.put(token.to_owned(), user.clone(), self.authentication.webhook.cache_ttl.0);
        user
    }

    async fn allowed(&self, user: &User, verb: &str, subresource: &str) -> Result<bool, String> {
        let key = (user.clone(), verb.to_owned(), subresource.to_owned());
        if let Some(known) = self.access.get(&key) {
            return Ok(known);
        }
        let client = self.client.clone().ok_or("no API server to ask")?;
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: Some(user.name.clone()),
                uid: Some(user.uid.clone()).filter(|uid| !uid.is_empty()),
                groups: Some(user.groups.clone()),
                extra: Some(user.extra.clone()).filter(|extra| !extra.is_empty()),
                resource_attributes: Some(ResourceAttributes {
                    verb: Some(verb.into()),
                    version: Some("v1".into()),
                    resource: Some("nodes".into()),
                    subresource: Some(subresource.into()),
                    name: Some(self.node.clone()),
                    ..Default::default()
                }),
                ..Default::default()
            },
            ..Default::default()
        };
        let api: Api<SubjectAccessReview> = Api::all(client);
        let answer = api.create(&PostParams::default(), &review).await.map_err(|e| client::retry::message(&e))?;
        let allowed = answer.status.is_some_and(|status| status.allowed);
        let lives = &self.authorization.webhook;
        let life = if allowed { lives.cache_authorized_ttl.0 } else { lives.cache_unauthorized_ttl.0 };
        self.access.put(key, allowed, life);
        Ok(allowed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_map_to_subresources_of_the_node() {
        assert_eq!(subresources("/pods"), ["pods", "proxy"]);
        assert_eq!(subresources("/podsx"), ["proxy"]);
        assert_eq!(subresources("/healthz/ping"), ["healthz", "proxy"]);
        assert_eq!(subresources("/stats/summary"), ["stats"]);
        assert_eq!(subresources("/metrics/resource"), ["metrics"]);
        assert_eq!(subresources("/logs/x"), ["log"]);
        assert_eq!(subresources("/exec/n/p/c"), ["proxy"]);
    }

    #[test]
    fn a_certificates_subject_is_the_user() {
        let mut params = rcgen::CertificateParams::default();
        params.distinguished_name.push(rcgen::DnType::CommonName, "kube-apiserver-kubelet-client");
        params.distinguished_name.push(rcgen::DnType::OrganizationName, "system:masters");
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        let user = user_of(certificate.der()).unwrap();
        assert_eq!(
            (user.name.as_str(), user.groups),
            ("kube-apiserver-kubelet-client", vec!["system:masters".to_owned()])
        );
    }
}

//! Who may read a component's `/metrics` and the like: the API server is asked who a client is (TokenReview) and what it
//! may (SubjectAccessReview), and its answers are kept for ten seconds.

use crate::Connection;
use base::health::{Asked, Gate};
use base::tls::Authorities;
use http::StatusCode;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use k8s_openapi::api::authorization::v1::{NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::api::{Api, PostParams};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

const KEPT: Duration = Duration::from_secs(10);
/// Answers that are kept at most.
const CACHED: usize = 1024;

/// Asks the API server. Without a client to ask with, everybody is anonymous and only members of system:masters, known by
/// their certificate, may do anything.
pub struct Delegated {
    client: Option<kube::Client>,
    authorities: Option<Arc<Authorities>>,
    tokens: Mutex<HashMap<String, (Instant, User)>>,
    answers: Mutex<HashMap<(User, String, String), (Instant, bool)>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct User {
    name: String,
    groups: Vec<String>,
}

impl User {
    fn anonymous() -> Self {
        Self { name: "system:anonymous".into(), groups: vec!["system:unauthenticated".into()] }
    }
}

impl Delegated {
    /// `connection` is that of `--authentication-kubeconfig`, `authorities` those of `--client-ca-file`.
    pub fn new(connection: Option<&Connection>, authorities: Option<Arc<Authorities>>) -> Arc<Self> {
        let client = connection.map(Connection::client);
        Arc::new(Self { client, authorities, tokens: Mutex::default(), answers: Mutex::default() })
    }

    async fn user(&self, asked: &Asked<'_>) -> Result<User, (StatusCode, String)> {
        if let Some(user) = self.by_certificate(asked) {
            return Ok(user);
        }
        let (Some(token), Some(client)) = (asked.bearer, &self.client) else { return Ok(User::anonymous()) };
        if let Some(user) = fresh(&self.tokens.lock(), &token.to_owned()) {
            return Ok(user);
        }
        let user = review_token(client, token).await.map_err(unavailable)?;
        let user = user.ok_or((StatusCode::UNAUTHORIZED, "Unauthorized".to_owned()))?;
        keep(&mut self.tokens.lock(), token.to_owned(), user.clone());
        Ok(user)
    }

    fn by_certificate(&self, asked: &Asked<'_>) -> Option<User> {
        let end = asked.certificates.first()?;
        self.authorities.as_ref()?.verify_client(asked.certificates).ok()?;
        let subject = base::tls::subject(end).ok()?;
        let mut groups = subject.organizations;
        groups.push("system:authenticated".into());
        Some(User { name: subject.common_name, groups })
    }

    async fn may(&self, user: &User, asked: &Asked<'_>) -> kube::Result<bool> {
        if user.groups.iter().any(|group| group == "system:masters") {
            return Ok(true);
        }
        let Some(client) = &self.client else { return Ok(false) };
        let key = (user.clone(), asked.verb.clone(), asked.path.to_owned());
        if let Some(answer) = fresh(&self.answers.lock(), &key) {
            return Ok(answer);
        }
        let answer = review_access(client, user, asked).await?;
        keep(&mut self.answers.lock(), key, answer);
        Ok(answer)
    }
}

#[async_trait::async_trait]
impl Gate for Delegated {
    async fn admit(&self, asked: &Asked<'_>) -> Result<(), (StatusCode, String)> {
        let user = self.user(asked).await?;
        if self.may(&user, asked).await.map_err(unavailable)? {
            return Ok(());
        }
        let text = format!("forbidden: User {:?} cannot {} path {:?}", user.name, asked.verb, asked.path);
        Err((StatusCode::FORBIDDEN, text))
    }
}

fn unavailable(error: kube::Error) -> (StatusCode, String) {
    tracing::warn!(%error, "the API server does not answer for a client");
    (StatusCode::INTERNAL_SERVER_ERROR, "Internal Server Error".into())
}

fn fresh<K: Eq + std::hash::Hash, V: Clone>(cache: &HashMap<K, (Instant, V)>, key: &K) -> Option<V> {
    cache.get(key).filter(|(at, _)| at.elapsed() < KEPT).map(|(_, value)| value.clone())
}

fn keep<K: Eq + std::hash::Hash, V>(cache: &mut HashMap<K, (Instant, V)>, key: K, value: V) {
    if cache.len() >= CACHED {
        cache.retain(|_, (at, _)| at.elapsed() < KEPT);
    }
    if cache.len() < CACHED {
        cache.insert(key, (Instant::now(), value));
    }
}

async fn review_token(client: &kube::Client, token: &str) -> kube::Result<Option<User>> {
    let reviews: Api<TokenReview> = Api::all(client.clone());
    let spec = TokenReviewSpec { token: token.to_owned(), ..Default::default() };
    let review = TokenReview { spec, ..Default::default() };
    let status = reviews.create(&PostParams::default(), &review).await?.status.unwrap_or_default();
    let user = status.user.filter(|_| status.authenticated == Some(true));
    Ok(user.map(|user| User { name: user.username.unwrap_or_default(), groups: user.groups.unwrap_or_default() }))
}

async fn review_access(client: &kube::Client, user: &User, asked: &Asked<'_>) -> kube::Result<bool> {
    let reviews: Api<SubjectAccessReview> = Api::all(client.clone());
    let attributes = NonResourceAttributes { path: Some(asked.path.to_owned()), verb: Some(asked.verb.clone()) };
    let spec = SubjectAccessReviewSpec {
        user: Some(user.name.clone()),
        groups: Some(user.groups.clone()),
        non_resource_attributes: Some(attributes),
        ..Default::default()
    };
    let review = SubjectAccessReview { spec, ..Default::default() };
    let status = reviews.create(&PostParams::default(), &review).await?.status;
    Ok(status.is_some_and(|status| status.allowed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn without_an_api_server_to_ask_nobody_comes_in() {
        let gate = Delegated::new(None, None);
        let asked = Asked { verb: "get".into(), path: "/metrics", bearer: Some("x"), certificates: &[] };
        let (code, text) = gate.admit(&asked).await.unwrap_err();
        assert_eq!(code, StatusCode::FORBIDDEN);
        assert_eq!(text, "forbidden: User \"system:anonymous\" cannot get path \"/metrics\"");
    }
}

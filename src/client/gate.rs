//! Who may read a component's `/metrics` and the like: the API server is asked who a client is (TokenReview) and what it
//! may (SubjectAccessReview), and its answers are kept for ten seconds. Some paths (health) are open to everybody.

use crate::{Connection, Informer, Informers, Selection};
use api::field::quote;
use api::status::Status;
use base::health::{Asked, Gate, Refusal};
use base::tls::Authorities;
use http::StatusCode;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use k8s_openapi::api::authorization::v1::{NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, PostParams};
use parking_lot::{Mutex, RwLock};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

const KEPT: Duration = Duration::from_secs(10);
/// Answers that are kept at most.
const CACHED: usize = 1024;

/// Whom and what to ask.
#[derive(Default)]
pub struct Settings {
    /// The connection of `--authentication-kubeconfig`. Without it no token is known.
    pub authentication: Option<Connection>,
    /// The connection of `--authorization-kubeconfig`. Without it only members of system:masters may do anything.
    pub authorization: Option<Connection>,
    /// The bundle of `--client-ca-file`.
    pub authorities: Option<Arc<Authorities>>,
    /// Without such a file: take the one that the API server publishes.
    pub look_up: bool,
    /// Paths that are open to everybody; a `*` at the end stands for whatever follows.
    pub open: Vec<String>,
}

/// Asks the API server.
pub struct Delegated {
    authentication: Option<kube::Client>,
    authorization: Option<kube::Client>,
    authorities: Arc<RwLock<Option<Arc<Authorities>>>>,
    /// Keeps them as they are published.
    _published: Option<Informer<ConfigMap>>,
    open: Vec<String>,
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
    /// A gate with these settings.
    pub fn new(settings: Settings) -> Arc<Self> {
        let Settings { authentication, authorization, authorities, look_up, open } = settings;
        let held = Arc::new(RwLock::new(authorities));
        let asked = authentication.as_ref().filter(|_| look_up && held.read().is_none());
        let published = asked.map(|connection| follow_published(connection, held.clone()));
        Arc::new(Self {
            authentication: authentication.as_ref().map(Connection::client),
            authorization: authorization.as_ref().map(Connection::client),
            authorities: held,
            _published: published,
            open,
            tokens: Mutex::default(),
            answers: Mutex::default(),
        })
    }

    async fn user(&self, asked: &Asked<'_>) -> Result<User, Refusal> {
        if let Some(user) = self.by_certificate(asked) {
            return Ok(user);
        }
        let (Some(token), Some(client)) = (asked.bearer, &self.authentication) else { return Ok(User::anonymous()) };
        if let Some(user) = fresh(&self.tokens.lock(), &token.to_owned()) {
            return Ok(user);
        }
        let user = review_token(client, token).await.map_err(unavailable)?;
        let user = user.ok_or_else(|| refusal(&Status::unauthorized()))?;
        keep(&mut self.tokens.lock(), token.to_owned(), user.clone());
        Ok(user)
    }

    fn by_certificate(&self, asked: &Asked<'_>) -> Option<User> {
        let end = asked.certificates.first()?;
        self.authorities.read().as_ref()?.verify_client(asked.certificates).ok()?;
        let subject = base::tls::subject(end).ok()?;
        let mut groups = subject.organizations;
        groups.push("system:authenticated".into());
        Some(User { name: subject.common_name, groups })
    }

    async fn may(&self, user: &User, asked: &Asked<'_>) -> kube::Result<bool> {
        if self.is_open(asked.path) || user.groups.iter().any(|group| group == "system:masters") {
            return Ok(true);
        }
        let Some(client) = &self.authorization else { return Ok(false) };
        let key = (user.clone(), asked.verb.clone(), asked.path.to_owned());
        if let Some(answer) = fresh(&self.answers.lock(), &key) {
            return Ok(answer);
        }
        let answer = review_access(client, user, asked).await?;
        keep(&mut self.answers.lock(), key, answer);
        Ok(answer)
    }

    fn is_open(&self, path: &str) -> bool {
        let path = path.trim_start_matches('/');
        self.open.iter().map(|pattern| pattern.trim_start_matches('/')).any(|pattern| match pattern.strip_suffix('*') {
            Some(start) => path.starts_with(start),
            None => path == pattern,
        })
    }
}

/// Follows the bundle that the API server publishes for those who authenticate its clients.
fn follow_published(connection: &Connection, held: Arc<RwLock<Option<Arc<Authorities>>>>) -> Informer<ConfigMap> {
    let selection = Selection::named("extension-apiserver-authentication");
    let published = Informers::new(connection).select_in::<ConfigMap>("kube-system", &selection);
    published.on_change(move |change| {
        let data = change.object().data.as_ref();
        let Some(pem) = data.and_then(|data| data.get("client-ca-file")) else { return };
        match Authorities::parse(pem.as_bytes()) {
            Ok(authorities) => *held.write() = Some(authorities),
            Err(why) => tracing::error!(%why, "the published client authorities can't be used"),
        }
    });
    published
}

#[async_trait::async_trait]
impl Gate for Delegated {
    async fn admit(&self, asked: &Asked<'_>) -> Result<(), Refusal> {
        let user = self.user(asked).await?;
        if self.may(&user, asked).await.map_err(unavailable)? {
            return Ok(());
        }
        let text = format!("forbidden: User {} cannot {} path {}", quote(&user.name), asked.verb, quote(asked.path));
        Err(refusal(&Status::new(403, "Forbidden", text)))
    }
}

fn refusal(status: &Status) -> Refusal {
    let code = StatusCode::from_u16(status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    Refusal { code, content_type: "application/json", text: format!("{}\n", status.to_value()) }
}

fn unavailable(error: kube::Error) -> Refusal {
    tracing::warn!(%error, "the API server does not answer for a client");
    refusal(&Status::new(500, "InternalError", "Internal Server Error"))
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

    fn get(path: &str) -> Asked<'_> {
        Asked { verb: "get".into(), path, bearer: Some("x"), certificates: &[] }
    }

    #[tokio::test]
    async fn without_an_api_server_to_ask_nobody_comes_in() {
        let gate = Delegated::new(Settings::default());
        let refused = gate.admit(&get("/metrics")).await.unwrap_err();
        assert_eq!(refused.code, StatusCode::FORBIDDEN);
        let said: serde_json::Value = serde_json::from_str(&refused.text).unwrap();
        assert_eq!(said["message"], "forbidden: User \"system:anonymous\" cannot get path \"/metrics\"");
    }

    #[tokio::test]
    async fn open_paths_are_whole_or_end_in_a_star() {
        let open = vec!["/healthz".into(), "/open/*".into()];
        let gate = Delegated::new(Settings { open, ..Settings::default() });
        for (path, admitted) in [("/healthz", true), ("/healthz/log", false), ("/open/x/y", true), ("/opened", false)] {
            assert_eq!(gate.admit(&get(path)).await.is_ok(), admitted, "{path}");
        }
    }
}

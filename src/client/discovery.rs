//! What the server serves: each resource once, in its preferred version.

use http::{HeaderValue, StatusCode, header};
use kube::api::ApiResource;
use kube::client::{Body, Client};
use kube::core::discovery::v2::{ACCEPT_AGGREGATED_DISCOVERY_V2, APIGroupDiscoveryList, APIResourceDiscovery};
use std::sync::Arc;

/// A resource and what can be done with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Served {
    /// Group, version, kind and plural.
    pub resource: ApiResource,
    /// Whether its objects live in namespaces.
    pub namespaced: bool,
    /// Such as `list` and `deletecollection`.
    pub verbs: Vec<String>,
    /// Such as `status` and `scale`.
    pub subresources: Vec<String>,
}

impl Served {
    /// Whether all these verbs are there.
    pub fn can(&self, verbs: &[&str]) -> bool {
        verbs.iter().all(|verb| self.verbs.iter().any(|known| known == verb))
    }
}

/// The outcome of a discovery.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Discovery {
    /// Each group's resources, in the first version that has them.
    pub resources: Vec<Served>,
    /// Group versions whose server does not answer, such as a dead aggregated API.
    pub stale: Vec<String>,
}

impl Discovery {
    /// The resource of a kind, in any served version of the group.
    pub fn of_kind(&self, group: &str, kind: &str) -> Option<&Served> {
        self.resources.iter().find(|served| served.resource.group == group && served.resource.kind == kind)
    }

    /// Whether part of a group could not be discovered.
    pub fn is_stale(&self, group: &str) -> bool {
        self.stale.iter().any(|stale| stale.split_once('/').is_some_and(|(of, _)| of == group))
    }
}

/// Asks the server what it serves.
///
/// # Errors
/// When it does not answer; groups of dead aggregated servers are only noted.
pub async fn discover(client: &Client) -> kube::Result<Discovery> {
    Discoverer::new(client.clone()).get().await.map(|found| (*found).clone())
}

/// Asks again and again, cheaply: the server only says that nothing has changed, when that is so.
pub struct Discoverer {
    client: Client,
    known: tokio::sync::Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// Entity tag and answer of `/api` and of `/apis`.
    answers: [Option<(HeaderValue, APIGroupDiscoveryList)>; 2],
    found: Arc<Discovery>,
}

impl Discoverer {
    /// Has not asked yet.
    pub fn new(client: Client) -> Self {
        Self { client, known: tokio::sync::Mutex::default() }
    }

    /// What the server serves now; the same `Arc` as before when nothing has changed.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn get(&self) -> kube::Result<Arc<Discovery>> {
        let mut known = self.known.lock().await;
        let mut lists = Vec::new();
        let mut changed = false;
        for (at, path) in ["/api", "/apis"].into_iter().enumerate() {
            match self.ask(path, known.answers[at].as_ref().map(|(tag, _)| tag)).await? {
                None => lists.extend(known.answers[at].as_ref().map(|(_, list)| list.clone())),
                Some((tag, list)) => {
                    changed = true;
                    known.answers[at] = tag.map(|tag| (tag, list.clone()));
                    lists.push(list);
                }
            }
        }
        if changed {
            let mut found = Discovery::default();
            lists.into_iter().for_each(|list| add(&mut found, list));
            if found != *known.found {
                known.found = Arc::new(found);
            }
        }
        Ok(known.found.clone())
    }

    async fn ask(
        &self, path: &str, tag: Option<&HeaderValue>,
    ) -> kube::Result<Option<(Option<HeaderValue>, APIGroupDiscoveryList)>> {
        let mut request = http::Request::get(path).header(header::ACCEPT, ACCEPT_AGGREGATED_DISCOVERY_V2);
        if let Some(tag) = tag {
            request = request.header(header::IF_NONE_MATCH, tag);
        }
        let request = request.body(Body::empty()).map_err(kube::Error::HttpError)?;
        let response = self.client.send(request).await?;
        if response.status() == StatusCode::NOT_MODIFIED {
            return Ok(None);
        }
        let (status, tag) = (response.status(), response.headers().get(header::ETAG).cloned());
        let body = response.into_body().collect_bytes().await?;
        if !status.is_success() {
            let failure = serde_json::from_slice::<kube::core::Status>(&body).unwrap_or_else(|_| {
                let text = String::from_utf8_lossy(&body).trim().to_owned();
                kube::core::Status::failure(&text, status.canonical_reason().unwrap_or_default())
                    .with_code(status.as_u16())
            });
            return Err(kube::Error::Api(failure.boxed()));
        }
        let list = serde_json::from_slice(&body).map_err(kube::Error::SerdeError)?;
        Ok(Some((tag, list)))
    }
}

fn add(found: &mut Discovery, list: APIGroupDiscoveryList) {
    for group in list.items {
        let name = group.metadata.and_then(|meta| meta.name).unwrap_or_default();
        for version in group.versions {
            let number = version.version.unwrap_or_default();
            if version.freshness.as_deref() == Some("Stale") {
                found.stale.push(format!("{name}/{number}"));
            }
            let served = version.resources.into_iter().filter_map(|resource| served(&name, &number, resource));
            for served in served {
                let known = |other: &Served| {
                    other.resource.group == served.resource.group && other.resource.plural == served.resource.plural
                };
                if !found.resources.iter().any(known) {
                    found.resources.push(served);
                }
            }
        }
    }
}

fn served(group: &str, version: &str, found: APIResourceDiscovery) -> Option<Served> {
    let kind = found.response_kind?.kind?;
    let api_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    Some(Served {
        resource: ApiResource {
            group: group.to_owned(),
            version: version.to_owned(),
            api_version,
            kind,
            plural: found.resource?,
        },
        namespaced: found.scope.as_deref() == Some("Namespaced"),
        verbs: found.verbs,
        subresources: found.subresources.into_iter().filter_map(|sub| sub.subresource).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn each_resource_is_taken_in_the_first_version_that_has_it() {
        let resource = |name: &str, kind: &str| {
            json!({"resource": name, "scope": "Namespaced", "verbs": ["list"],
                "responseKind": {"group": "", "version": "", "kind": kind}})
        };
        let list = json!({"items": [{"metadata": {"name": "x.io"}, "versions": [
            {"version": "v1", "resources": [resource("as", "A")]},
            {"version": "v1beta1", "resources": [resource("as", "A"), resource("bs", "B")], "freshness": "Stale"},
        ]}]});
        let mut found = Discovery::default();
        add(&mut found, serde_json::from_value(list).unwrap());
        let seen: Vec<_> =
            found.resources.iter().map(|r| (r.resource.plural.as_str(), r.resource.version.as_str())).collect();
        assert_eq!(seen, [("as", "v1"), ("bs", "v1beta1")]);
        assert!(found.is_stale("x.io"));
        assert_eq!(found.of_kind("x.io", "B").unwrap().resource.api_version, "x.io/v1beta1");
    }
}

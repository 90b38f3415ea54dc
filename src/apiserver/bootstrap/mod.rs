//! What must be there from the start: namespaces, the bootstrap roles, priority classes, flow control, the `kubernetes`
//! Service and so on. Each group of objects is a hook behind `/readyz`; within one all objects are made at the same
//! time, and what the cache already has is left alone, so that a second start writes nothing.

pub mod endpoints;
pub mod flowcontrol;
pub mod identity;
pub mod objects;
pub mod rbac;

use std::sync::Arc;
use std::time::Duration;

use api::Value;
use api::resources::Row;
use api::status::Status;
use base::backoff::{Backoff, Policy};
use base::shutdown::{self, Shutdown};
use futures::FutureExt as _;
use futures::future::try_join_all;

use crate::Api;
use crate::registry::internal;
use crate::server::Server;

/// An object to be made.
pub struct Wanted {
    /// API group.
    pub group: &'static str,
    /// Plural.
    pub plural: &'static str,
    /// Namespace, empty for cluster-scoped objects.
    pub namespace: String,
    /// The object, without apiVersion and kind.
    pub object: Value,
}

impl Wanted {
    fn name(&self) -> &str {
        self.object["metadata"]["name"].as_str().unwrap_or_default()
    }
}

/// The row of a built-in resource; 404 when `--runtime-config` switched it off.
///
/// # Errors
/// When it is not served.
pub fn row(api: &Api, group: &str, plural: &str) -> Result<Arc<Row>, Status> {
    let of = api::status::Of { group, name: plural };
    api.resources.find(group, plural).ok_or_else(|| Status::not_found(of, ""))
}

/// The object as the cache has it.
fn cached(api: &Api, row: &Row, namespace: &str, name: &str) -> Option<Value> {
    let key = crate::entry::key(&api.settings.etcd_prefix, row, namespace, name);
    api.cache.get(&key).and_then(|c| c.entry.parse().ok())
}

/// Makes an object unless it is there; `amend` says what an object that is there lacks, if anything.
async fn ensure(
    api: &Arc<Api>, wanted: Wanted, amend: &(dyn Fn(&Value, &Value) -> Option<Value> + Send + Sync),
) -> Result<(), Status> {
    let row = row(api, wanted.group, wanted.plural)?;
    let mut object = wanted.object.clone();
    object["apiVersion"] = row.stored_api_version().into();
    object["kind"] = row.kind.to_string().into();
    let there = match cached(api, &row, &wanted.namespace, wanted.name()) {
        Some(there) => there,
        None => match internal::create(api, &row, &wanted.namespace, object.clone()).await {
            Ok(_) => return Ok(()),
            // Another server was faster.
            Err(e) if e.reason == "AlreadyExists" => internal::get(api, &row, &wanted.namespace, wanted.name()).await?,
            Err(e) => return Err(e),
        },
    };
    if amend(&there, &object).is_none() {
        return Ok(());
    }
    let change = |now: Value| Ok(amend(&now, &object).unwrap_or(now));
    internal::update(api, &row, &wanted.namespace, wanted.name(), "", &change).await.map(|_| ())
}

/// Makes all of these objects at the same time, unless they are there.
async fn ensure_all(api: &Arc<Api>, wanted: Vec<Wanted>) -> Result<(), Status> {
    try_join_all(wanted.into_iter().map(|w| ensure(api, w, &|_, _| None))).await.map(|_| ())
}

/// How long leaving the endpoints may hold up the end of the process.
const FAREWELL: Duration = Duration::from_secs(3);

/// Hooks that [`run`] marks as done.
pub const PENDING: &[&str] = &[
    "start-system-namespaces-controller",
    "start-cluster-authentication-info-controller",
    "start-kube-apiserver-identity-lease-controller",
    "start-legacy-token-tracking-controller",
    "rbac/bootstrap-roles",
    "scheduling/bootstrap-system-priority-classes",
    "priority-and-fairness-config-producer",
    "bootstrap-controller",
    "start-kubernetes-service-cidr-controller",
    "start-service-ip-repair-controllers",
    "kube-apiserver-autoregistration",
    "autoregister-completion",
];

/// Makes everything, marks each hook when its objects are there, tries again what failed, and keeps all of it up until
/// the shutdown.
pub async fn run(server: Arc<Server>, shutdown: Shutdown) {
    let api = &server.api;
    let done = |hook: &str| server.health.hooks.done(hook);
    let namespaces = async {
        hook(&shutdown, "namespaces", || ensure_all(api, objects::namespaces())).await;
        done("start-system-namespaces-controller");
    };
    let namespaces = namespaces.shared();
    let service = async {
        namespaces.clone().await;
        hook(&shutdown, "service CIDRs", || crate::allocation::Services::repair(api)).await;
        done("start-kubernetes-service-cidr-controller");
        hook(&shutdown, "the kubernetes Service", || objects::kubernetes_service(&server)).await;
        done("bootstrap-controller");
        done("start-service-ip-repair-controllers");
    };
    let authentication = async {
        namespaces.clone().await;
        hook(&shutdown, "authentication's ConfigMap", || objects::authentication(&server)).await;
        done("start-cluster-authentication-info-controller");
        hook(&shutdown, "token tracking", || objects::token_tracking(api)).await;
        done("start-legacy-token-tracking-controller");
    };
    let identity = async {
        namespaces.clone().await;
        hook(&shutdown, "identity", || identity::renew(api)).await;
        done("start-kube-apiserver-identity-lease-controller");
    };
    let roles = async {
        let in_namespaces = async {
            namespaces.clone().await;
            hook(&shutdown, "roles", || rbac::ensure(api, rbac::Scope::Namespaced)).await;
        };
        futures::join!(in_namespaces, hook(&shutdown, "cluster roles", || rbac::ensure(api, rbac::Scope::Cluster)));
        done("rbac/bootstrap-roles");
    };
    let priorities = async {
        hook(&shutdown, "priority classes", || ensure_all(api, objects::priority_classes())).await;
        done("scheduling/bootstrap-system-priority-classes");
    };
    let flow_control = async {
        hook(&shutdown, "flow control", || flowcontrol::ensure(api)).await;
        done("priority-and-fairness-config-producer");
    };
    let services = async {
        hook(&shutdown, "API services", || objects::api_services(api)).await;
        done("kube-apiserver-autoregistration");
        done("autoregister-completion");
    };
    // What takes several steps, one after the other, goes first.
    futures::join!(service, authentication, identity, flow_control, services, priorities, roles);
    keep(&server, &shutdown).await;
}

/// Runs a step until it succeeds or the server ends.
async fn hook<F: Future<Output = Result<(), Status>>>(shutdown: &Shutdown, what: &str, step: impl Fn() -> F) {
    let mut backoff = Backoff::new(Policy::doubling(Duration::from_millis(50), Duration::from_secs(5)));
    while let Err(why) = step().await {
        tracing::warn!(%why, "can't make {what} yet");
        if shutdown::unless(shutdown, tokio::time::sleep(backoff.failed())).await.is_none() {
            return;
        }
    }
}

/// What goes on while the server runs: its identity, its place in the endpoints, and what others may have deleted.
async fn keep(server: &Arc<Server>, shutdown: &Shutdown) {
    let api = &server.api;
    let mut often = tokio::time::interval(Duration::from_secs(10));
    let mut rarely = tokio::time::interval(Duration::from_secs(60));
    let mut seldom = tokio::time::interval(Duration::from_secs(180));
    (often.tick().await, rarely.tick().await, seldom.tick().await);
    loop {
        let outcome = tokio::select! {
            () = shutdown.cancelled() => break,
            _ = often.tick() => futures::future::join(identity::renew(api), endpoints::reconcile(server)).await,
            _ = rarely.tick() => futures::future::join(ensure_all(api, objects::namespaces()), objects::kubernetes_service(server)).await,
            _ = seldom.tick() => futures::future::join(crate::allocation::Services::repair(api), identity::collect(api)).await,
        };
        for why in [outcome.0.err(), outcome.1.err()].into_iter().flatten() {
            tracing::warn!(%why, "the cluster's own objects can't be kept up");
        }
    }
    // What stays behind when etcd does not answer expires by itself.
    if tokio::time::timeout(FAREWELL, endpoints::leave(server)).await.is_err() {
        tracing::warn!("the endpoints of the kubernetes Service could not be left in time");
    }
}

//! The server's metrics, under upstream's names.

use std::time::Duration;

use base::metrics::{Counter, Family, Gauge, Histogram};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::MetricConstructor;

use crate::info;
use crate::request::Info;

/// Labels of a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Of {
    verb: &'static str,
    group: String,
    version: String,
    resource: String,
    subresource: String,
    scope: &'static str,
    component: &'static str,
}

/// Labels of an answer.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Answered {
    code: u16,
    verb: &'static str,
    group: String,
    version: String,
    resource: String,
    subresource: String,
    scope: &'static str,
    component: &'static str,
    dry_run: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Result_ {
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Username {
    username: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Operation {
    operation: &'static str,
}

/// Makes histograms with upstream's bounds.
#[derive(Clone)]
struct Bounds(&'static [f64]);

impl MetricConstructor<Histogram> for Bounds {
    fn new_metric(&self) -> Histogram {
        Histogram::new(self.0.iter().copied())
    }
}

const SECONDS: &[f64] = &[
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0,
    45.0, 60.0,
];
const ETCD_SECONDS: &[f64] = &[
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0,
    45.0, 60.0,
];

/// The metrics.
pub struct Metrics {
    requests: Family<Answered, Counter>,
    durations: Family<Of, Histogram, Bounds>,
    authentications: Family<Result_, Counter>,
    users: Family<Username, Counter>,
    etcd: Family<Operation, Histogram, Bounds>,
    etcd_requests: Family<Operation, Counter>,
    etcd_errors: Family<Operation, Counter>,
    /// Watches that run.
    pub long_running: Gauge,
}

impl Metrics {
    /// Registered with the process.
    pub fn new() -> Self {
        let registry = base::metrics::global();
        Self {
            requests: registry.add(
                "apiserver_request",
                "Counter of apiserver requests broken out for each verb, dry run value, group, version, resource, scope, component, and HTTP response code.",
                Family::default(),
            ),
            durations: registry.add(
                "apiserver_request_duration_seconds",
                "Response latency distribution in seconds for each verb, group, version, resource, subresource, scope and component.",
                Family::new_with_constructor(Bounds(SECONDS)),
            ),
            authentications: registry.add(
                "authentication_attempts",
                "Counter of authenticated attempts.",
                Family::default(),
            ),
            users: registry.add(
                "authenticated_user_requests",
                "Counter of authenticated requests broken out by username.",
                Family::default(),
            ),
            etcd: registry.add(
                "etcd_request_duration_seconds",
                "Etcd request latency in seconds for each operation.",
                Family::new_with_constructor(Bounds(ETCD_SECONDS)),
            ),
            etcd_requests: registry.add(
                "etcd_requests",
                "Etcd request counts for each operation.",
                Family::default(),
            ),
            etcd_errors: registry.add(
                "etcd_request_errors",
                "Etcd failed request counts for each operation.",
                Family::default(),
            ),
            long_running: registry.add(
                "apiserver_longrunning_requests",
                "Gauge of all active long-running apiserver requests.",
                Gauge::default(),
            ),
        }
    }

    /// Notes an answer.
    pub fn observe(&self, info: &Info, code: u16, took: Duration) {
        let (verb, scope) = (verb(info), scope(info));
        let (group, version) = (info.group.clone(), info.version.clone());
        let (resource, subresource) = (info.resource.clone(), info.subresource.clone());
        let component = "apiserver";
        if !info::long_running(info) {
            let of = Of {
                verb,
                group: group.clone(),
                version: version.clone(),
                resource: resource.clone(),
                subresource: subresource.clone(),
                scope,
                component,
            };
            self.durations.get_or_create(&of).observe(took.as_secs_f64());
        }
        let answered = Answered { code, verb, group, version, resource, subresource, scope, component, dry_run: "" };
        self.requests.get_or_create(&answered).inc();
    }

    /// Notes who asked, or that nobody knows.
    pub fn authenticated(&self, user: Option<&str>) {
        let result = if user.is_some() { "success" } else { "failure" };
        self.authentications.get_or_create(&Result_ { result }).inc();
        if let Some(user) = user {
            // As upstream, names of other users are not told apart: there may be many.
            let username = match user {
                "admin" => "admin",
                "system:apiserver" => "system:apiserver",
                "system:kube-controller-manager" => "system:kube-controller-manager",
                "system:kube-scheduler" => "system:kube-scheduler",
                _ => "other",
            };
            self.users.get_or_create(&Username { username }).inc();
        }
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl store::etcd::Observer for Metrics {
    fn request(&self, operation: &'static str, _key: &str, took: Duration, failed: bool) {
        let labels = Operation { operation };
        self.etcd.get_or_create(&labels).observe(took.as_secs_f64());
        self.etcd_requests.get_or_create(&labels).inc();
        if failed {
            self.etcd_errors.get_or_create(&labels).inc();
        }
    }
}

/// The verb as upstream's metrics have it.
fn verb(info: &Info) -> &'static str {
    match info.verb.as_str() {
        "get" if !info.is_resource => "GET",
        "get" => "GET",
        "list" => "LIST",
        "watch" => "WATCH",
        "create" | "post" => "POST",
        "update" | "put" => "PUT",
        "patch" => "PATCH",
        "delete" => "DELETE",
        "deletecollection" => "DELETECOLLECTION",
        "head" => "HEAD",
        _ => "other",
    }
}

fn scope(info: &Info) -> &'static str {
    match (info.is_resource, info.name.is_empty(), info.namespace.is_empty()) {
        (false, ..) => "",
        (true, false, _) => "resource",
        (true, true, false) => "namespace",
        (true, true, true) => "cluster",
    }
}

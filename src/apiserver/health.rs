//! `/healthz`, `/livez`, `/readyz`: upstream's checks by name and in order. Those that stand for work of upstream's
//! start-up which we do otherwise hold as soon as ours is done.

use std::sync::Arc;
use std::time::{Duration, Instant};

use base::health::{Check, Checks, Flag, check, not_ending};
use base::shutdown::Shutdown;
use tokio::sync::Mutex;

/// The three endpoints.
pub struct Health {
    /// Behind `/healthz`.
    pub healthz: Checks,
    /// Behind `/livez`.
    pub livez: Checks,
    /// Behind `/readyz`.
    pub readyz: Checks,
    /// Flags of the hooks that run after the start.
    pub hooks: Hooks,
}

/// A hook's flag each: set when its work is done.
#[derive(Clone)]
pub struct Hooks(Arc<Vec<(&'static str, Flag)>>);

/// Hooks in upstream's order. What is not said to be done by [`Hooks::done`] is started along with the server.
const HOOKS: &[&str] = &[
    "poststarthook/start-apiserver-admission-initializer",
    "poststarthook/generic-apiserver-start-informers",
    "poststarthook/priority-and-fairness-config-consumer",
    "poststarthook/priority-and-fairness-filter",
    "poststarthook/storage-object-count-tracker-hook",
    "poststarthook/start-apiextensions-informers",
    "poststarthook/start-apiextensions-controllers",
    "poststarthook/crd-informer-synced",
    "poststarthook/start-system-namespaces-controller",
    "poststarthook/peer-endpoint-reconciler-controller",
    "poststarthook/start-cluster-authentication-info-controller",
    "poststarthook/start-kube-apiserver-identity-lease-controller",
    "poststarthook/start-kube-apiserver-identity-lease-garbage-collector",
    "poststarthook/storage-readiness",
    "poststarthook/start-legacy-token-tracking-controller",
    "poststarthook/start-service-ip-repair-controllers",
    "poststarthook/rbac/bootstrap-roles",
    "poststarthook/scheduling/bootstrap-system-priority-classes",
    "poststarthook/priority-and-fairness-config-producer",
    "poststarthook/bootstrap-controller",
    "poststarthook/start-kubernetes-service-cidr-controller",
    "poststarthook/aggregator-reload-proxy-client-cert",
    "poststarthook/start-kube-aggregator-informers",
    "poststarthook/apiservice-status-local-available-controller",
    "poststarthook/apiservice-status-remote-available-controller",
    "poststarthook/apiservice-registration-controller",
    "poststarthook/apiservice-wait-for-first-sync",
    "poststarthook/apiservice-discovery-controller",
    "poststarthook/kube-apiserver-autoregistration",
    "autoregister-completion",
    "poststarthook/apiservice-openapi-controller",
    "poststarthook/apiservice-openapiv3-controller",
];

impl Hooks {
    fn new() -> Self {
        Self(Arc::new(HOOKS.iter().map(|name| (*name, Flag::new("not finished"))).collect()))
    }

    /// A hook's work is done.
    ///
    /// # Panics
    /// When there is no such hook.
    pub fn done(&self, name: &str) {
        let hook = self.0.iter().find(|(n, _)| n.strip_prefix("poststarthook/").unwrap_or(n) == name);
        hook.unwrap_or_else(|| panic!("no hook {name:?}")).1.set(true);
    }

    /// Marks as done all but those named.
    pub fn done_except(&self, pending: &[&str]) {
        for (name, flag) in self.0.iter() {
            if !pending.contains(&name.strip_prefix("poststarthook/").unwrap_or(name)) {
                flag.set(true);
            }
        }
    }
}

impl Health {
    /// Checks over a store; `readyz` fails from `draining` on, `livez` holds through the grace period whatever the
    /// hooks do.
    pub fn new(
        store: &Arc<dyn store::Store>, (live_timeout, ready_timeout): (Duration, Duration), grace: Duration,
        draining: &Shutdown,
    ) -> Self {
        let hooks = Hooks::new();
        let etcd_lives = etcd(store, live_timeout);
        // With one patience for both, one question to etcd answers both.
        let etcd_ready = if ready_timeout == live_timeout { etcd_lives.clone() } else { etcd(store, ready_timeout) };
        let fine = || check(|| std::future::ready(Ok(())));
        let started = Instant::now();
        let with_hooks = |checks: Checks, grace: Duration| {
            hooks.0.iter().fold(checks, |checks, (name, flag)| {
                let flag = flag.clone();
                checks.with(
                    name,
                    check(move || {
                        let holds = flag.holds() || started.elapsed() < grace;
                        std::future::ready(if holds { Ok(()) } else { Err("not finished".into()) })
                    }),
                )
            })
        };
        let alive = || Checks::new().with("log", fine()).with("loopback-serving-certificate", fine());
        let ready = Checks::new().with("log", fine()).with("etcd", etcd_lives.clone());
        let ready = ready.with("etcd-readiness", etcd_ready).with("informer-sync", fine());
        Self {
            healthz: with_hooks(alive().with("etcd", etcd_lives.clone()), Duration::ZERO),
            livez: with_hooks(alive().with("etcd", etcd_lives), grace),
            readyz: with_hooks(ready, Duration::ZERO).with("shutdown", not_ending(draining)),
            hooks,
        }
    }
}

/// Does etcd answer within `timeout`? It is asked at most once in half that time, as upstream does.
fn etcd(store: &Arc<dyn store::Store>, timeout: Duration) -> Check {
    let store = store.clone();
    let ask = check(move || {
        let store = store.clone();
        async move {
            match tokio::time::timeout(timeout, store.revision()).await {
                Ok(answer) => answer.map(|_| ()).map_err(|e| format!("error getting data from etcd: {e}")),
                Err(_) => Err("error getting data from etcd: context deadline exceeded".to_string()),
            }
        }
    });
    at_most_every(timeout / 2, ask)
}

/// The check, made no more often than `every`: whoever asks sooner, or meanwhile, gets the last answer.
fn at_most_every(every: Duration, ask: Check) -> Check {
    let last: Arc<Mutex<Option<(Instant, Result<(), String>)>>> = Arc::default();
    check(move || {
        let (ask, last) = (ask.clone(), last.clone());
        async move {
            let mut last = last.lock().await;
            if let Some((at, answer)) = &*last
                && at.elapsed() < every
            {
                return answer.clone();
            }
            let asked = Instant::now();
            let answer = ask().await;
            *last = Some((asked, answer.clone()));
            answer
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn whoever_asks_again_too_soon_gets_the_last_answer() {
        let asked = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let counter = asked.clone();
        let count = check(move || {
            let n = counter.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            std::future::ready(if n == 0 { Err("not yet".to_string()) } else { Ok(()) })
        });
        let (rare, always) =
            (at_most_every(Duration::from_secs(3600), count.clone()), at_most_every(Duration::ZERO, count));
        assert_eq!(futures::join!(rare(), rare()), (Err("not yet".into()), Err("not yet".into())));
        assert_eq!(asked.load(std::sync::atomic::Ordering::Relaxed), 1);
        assert_eq!((always().await, always().await), (Ok(()), Ok(())));
        assert_eq!(asked.load(std::sync::atomic::Ordering::Relaxed), 3);
    }

    #[test]
    fn names_and_order_are_upstreams() {
        let store: Arc<dyn store::Store> = Arc::new(store::memory::Memory::new());
        let seconds = Duration::from_secs(1);
        let health = Health::new(&store, (seconds, seconds), Duration::ZERO, &Shutdown::new());
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/k8s-1.36/health-checks.txt");
        let Ok(text) = std::fs::read_to_string(&path) else {
            println!("skipped: {} is not there", path.display());
            return;
        };
        for (endpoint, checks) in [("readyz", &health.readyz), ("livez", &health.livez), ("healthz", &health.healthz)] {
            let section = text.split("== ").find(|s| s.starts_with(endpoint)).expect("section");
            let names: Vec<&str> = section.lines().skip(1).filter(|l| !l.is_empty()).collect();
            assert_eq!(checks.names().collect::<Vec<_>>(), names, "{endpoint}");
        }
    }
}

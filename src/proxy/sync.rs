//! The loop: woken by informers, it reads them, computes rules and brings the kernel there.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::shutdown::Shutdown;
use client::{Informer, Key};
use ipnet::IpNet;
use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use tokio::sync::Notify;

use crate::config::Config;
use crate::health::HealthPorts;
use crate::kernel;
use crate::model::{self, Family, Place, Port};
use crate::rules::{self, Options};
use crate::ruleset::{self, Ruleset};

/// Time before a transaction that the kernel refused is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// Upstream's names.
struct Metrics {
    duration: Histogram,
    failures: Counter,
    last: Gauge,
}

impl Metrics {
    fn new() -> Self {
        let registry = base::metrics::global();
        let buckets = base::metrics::exponential(0.001, 2.0, 15);
        let add = |name: &str, help: &str| registry.add(name, help, Gauge::<i64>::default());
        Self {
            duration: registry.add(
                "kubeproxy_sync_proxy_rules_duration_seconds",
                "SyncProxyRules latency in seconds",
                Histogram::new(buckets),
            ),
            failures: registry.add(
                "kubeproxy_sync_proxy_rules_nftables_sync_failures",
                "Cumulative proxy nftables sync failures",
                Counter::default(),
            ),
            last: add(
                "kubeproxy_sync_proxy_rules_last_timestamp_seconds",
                "The last time proxy rules were successfully synced",
            ),
        }
    }
}

/// What the kernel holds of a family, as far as we know.
#[derive(Default)]
struct Applied {
    rules: Option<Ruleset>,
    ports: Vec<Port>,
}

/// When rules were asked for and when the kernel had them.
#[derive(Debug, Clone, Copy, Default)]
pub struct Progress {
    /// The oldest change that the kernel does not have yet.
    pub pending_since: Option<Instant>,
    /// The last time the kernel had everything.
    pub synced: Option<Instant>,
}

/// Keeps the kernel in step.
pub struct Syncer {
    config: Config,
    services: Informer<Service>,
    slices: Informer<EndpointSlice>,
    nodes: Informer<Node>,
    wake: Notify,
    progress: Mutex<Progress>,
    applied: tokio::sync::Mutex<HashMap<Family, Applied>>,
    health_ports: HealthPorts,
    metrics: Metrics,
}

impl Syncer {
    /// A syncer over these informers; it wakes up at their changes.
    pub fn new(
        config: Config, services: Informer<Service>, slices: Informer<EndpointSlice>, nodes: Informer<Node>,
    ) -> Arc<Self> {
        let syncer = Arc::new(Self {
            config,
            services,
            slices,
            nodes,
            wake: Notify::new(),
            progress: Mutex::default(),
            applied: tokio::sync::Mutex::default(),
            health_ports: HealthPorts::default(),
            metrics: Metrics::new(),
        });
        let wake = |syncer: &Arc<Self>| {
            let weak = Arc::downgrade(syncer);
            move || {
                if let Some(syncer) = weak.upgrade() {
                    syncer.changed();
                }
            }
        };
        let (a, b, c) = (wake(&syncer), wake(&syncer), wake(&syncer));
        syncer.services.on_change(move |_| a());
        syncer.slices.on_change(move |_| b());
        syncer.nodes.on_change(move |_| c());
        syncer
    }

    fn changed(&self) {
        self.progress.lock().pending_since.get_or_insert_with(Instant::now);
        self.wake.notify_one();
    }

    /// How far the kernel is behind.
    pub fn progress(&self) -> Progress {
        *self.progress.lock()
    }

    /// This node, when the API server knows it.
    pub fn node(&self) -> Option<Arc<Node>> {
        self.nodes.get(&Key::new("", self.config.node.as_str()))
    }

    /// Runs until the shutdown. The rules stay: traffic flows on while the proxy restarts.
    pub async fn run(&self, shutdown: &Shutdown) {
        let synced = async {
            self.services.synced().await;
            self.slices.synced().await;
            self.nodes.synced().await;
        };
        if base::shutdown::unless(shutdown, synced).await.is_none() {
            return;
        }
        self.changed();
        while base::shutdown::unless(shutdown, self.turn()).await.is_some() {}
    }

    async fn turn(&self) {
        // An occasional full turn mends what somebody else did to the rules.
        let full = tokio::time::timeout(self.config.sync_period, self.wake.notified()).await.is_err();
        if !full {
            // Changes come in bunches; those of a few milliseconds share one transaction.
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let began = Instant::now();
        let pending = self.progress.lock().pending_since.take();
        match self.sync(full).await {
            Ok(()) => {
                self.progress.lock().synced = Some(Instant::now());
                self.metrics.last.set(jiff::Timestamp::now().as_second());
                self.metrics.duration.observe(began.elapsed().as_secs_f64());
                tokio::time::sleep(self.config.min_sync_period.saturating_sub(began.elapsed())).await;
            }
            Err(error) => {
                tracing::error!(%error, "the kernel did not take the rules");
                self.metrics.failures.inc();
                let mut progress = self.progress.lock();
                progress.pending_since = pending.or(progress.pending_since).or(Some(began));
                drop(progress);
                tokio::time::sleep(RETRY).await;
                self.wake.notify_one();
            }
        }
    }

    async fn sync(&self, full: bool) -> Result<(), kernel::Error> {
        let place = self.place();
        let options = self.options(&place);
        let mut applied = self.applied.lock().await;
        let mut all = Vec::new();
        for family in [Family::V4, Family::V6] {
            let ports = self.ports(family, &place);
            let state = applied.entry(family).or_default();
            // A machine without the family's services need not have its table.
            if ports.is_empty() && state.rules.is_none() && family == Family::V6 {
                continue;
            }
            self.bring(family, state, ports, &options, full).await?;
            all.extend(state.ports.iter().cloned());
        }
        self.health_ports.set(&all, &place).await;
        Ok(())
    }

    async fn bring(
        &self, family: Family, state: &mut Applied, ports: Vec<Port>, options: &Options, full: bool,
    ) -> Result<(), kernel::Error> {
        let wanted = rules::compute(family, &ports, options);
        let table = rules::table(family);
        let change = ruleset::transaction(table, state.rules.as_ref(), &wanted);
        let changed = change.is_some();
        let mut script = change.unwrap_or_default();
        // What starts from nothing has just replaced everything.
        if full && state.rules.is_some() {
            script += &ruleset::restore(table, &wanted);
        }
        if !script.is_empty() {
            // Unless this succeeds nobody knows what the kernel holds, and the next transaction starts from nothing.
            state.rules = None;
            kernel::run(&script).await?;
        }
        if changed {
            tracing::info!(?family, ports = ports.len(), "rules are in place");
        }
        state.rules = Some(wanted);
        for flow in kernel::stale_flows(&state.ports, &ports, &options.place) {
            kernel::forget(&flow, family).await;
        }
        state.ports = ports;
        Ok(())
    }

    fn place(&self) -> Place {
        let labels = self.node().and_then(|n| n.metadata.labels.clone()).unwrap_or_default();
        let zone = labels.get("topology.kubernetes.io/zone").cloned().unwrap_or_default();
        Place { node: self.config.node.clone(), zone }
    }

    fn options(&self, place: &Place) -> Options {
        let node = self.node();
        Options {
            place: place.clone(),
            cluster_cidr: self.config.cluster_cidr,
            masquerade_all: self.config.masquerade_all,
            masquerade_bit: self.config.masquerade_bit,
            node_port_ips: node_port_ips(&self.config.node_port_addresses, node.as_deref()),
            service_cidrs: Vec::new(),
        }
    }

    fn ports(&self, family: Family, place: &Place) -> Vec<Port> {
        let slices = self.slices.list();
        let mut by_service: HashMap<(&str, &str), Vec<&EndpointSlice>> = HashMap::new();
        for slice in &slices {
            let labels = slice.metadata.labels.as_ref();
            let service = labels.and_then(|l| l.get("kubernetes.io/service-name"));
            if let (Some(service), Some(namespace)) = (service, &slice.metadata.namespace) {
                by_service.entry((namespace, service)).or_default().push(slice);
            }
        }
        let mut services = self.services.list();
        services
            .sort_by(|a, b| (&a.metadata.namespace, &a.metadata.name).cmp(&(&b.metadata.namespace, &b.metadata.name)));
        let of = |service: &Arc<Service>| {
            let name = service.metadata.name.as_deref().unwrap_or_default();
            let key = (service.metadata.namespace.as_deref().unwrap_or_default(), name);
            model::ports(service, by_service.get(&key).map_or(&[][..], Vec::as_slice), family, place)
        };
        services.iter().flat_map(of).collect()
    }
}

/// Addresses that node ports are open on: the node's own, or those in the networks that were named.
fn node_port_ips(networks: &[String], node: Option<&Node>) -> Vec<IpAddr> {
    let networks: Vec<IpNet> = networks.iter().filter_map(|n| n.parse().ok()).collect();
    if networks.is_empty() {
        let addresses = node.and_then(|n| n.status.as_ref()?.addresses.clone()).unwrap_or_default();
        let own = addresses.into_iter().filter(|a| a.type_ == "InternalIP");
        return own.filter_map(|a| a.address.parse().ok()).collect();
    }
    let local = nix::ifaddrs::getifaddrs().into_iter().flatten().filter_map(|i| {
        let storage = i.address?;
        let v4 = storage.as_sockaddr_in().map(|a| IpAddr::V4(a.ip()));
        v4.or_else(|| storage.as_sockaddr_in6().map(|a| IpAddr::V6(a.ip())))
    });
    let mut ips: Vec<IpAddr> = local.filter(|ip| networks.iter().any(|n| n.contains(ip))).collect();
    ips.sort();
    ips.dedup();
    ips
}

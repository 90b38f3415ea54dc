//! The loop: woken by informers, it reads them, computes rules and brings the kernel there.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::metrics::{self, Counter, Gauge, Histogram};
use base::shutdown::Shutdown;
use client::{Informer, Key};
use ipnet::IpNet;
use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use prometheus_client::encoding::EncodeLabelSet;
use tokio::sync::Notify;

use crate::flags::{LocalMode, NodePorts, Settings};
use crate::flows::{self, Targets};
use crate::health::{self, HealthPorts, Vitals};
use crate::kernel;
use crate::model::{self, Family, Place, Port};
use crate::rules::{self, Local, Options};
use crate::ruleset::{self, Ruleset};

/// Time before what the kernel refused is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// How long a node may take to get its range of pod addresses, where traffic of pods is told by it.
const RANGE: Duration = Duration::from_secs(300);

/// Both families, in order.
pub const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

/// The node has no range of pod addresses.
#[derive(Debug, thiserror::Error)]
#[error("timeout waiting for PodCIDR allocation on node {0:?}")]
pub struct NoRange(String);

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Of {
    ip_family: &'static str,
}

impl Of {
    fn family(family: Family) -> Self {
        Self { ip_family: family.name() }
    }
}

type Labelled<M, C = fn() -> M> = metrics::Family<Of, M, C>;

/// Upstream's names.
struct Metrics {
    duration: Labelled<Histogram>,
    failures: Labelled<Counter>,
    last: Labelled<Gauge>,
    queued: Labelled<Gauge>,
    flows_duration: Labelled<Histogram>,
    flows_deleted: Labelled<Counter>,
}

impl Metrics {
    fn new() -> Self {
        let registry = metrics::global();
        let seconds: fn() -> Histogram = || Histogram::new(metrics::exponential(0.001, 2.0, 15));
        let histogram = |name: &str, help: &str| registry.add(name, help, Labelled::new_with_constructor(seconds));
        let counter = |name: &str, help: &str| registry.add(name, help, Labelled::default());
        let gauge = |name: &str, help: &str| registry.add(name, help, Labelled::default());
        Self {
            duration: histogram("kubeproxy_sync_proxy_rules_duration_seconds", "SyncProxyRules latency in seconds"),
            failures: counter(
                "kubeproxy_sync_proxy_rules_nftables_sync_failures",
                "Cumulative proxy nftables sync failures",
            ),
            last: gauge(
                "kubeproxy_sync_proxy_rules_last_timestamp_seconds",
                "The last time proxy rules were successfully synced",
            ),
            queued: gauge(
                "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds",
                "The last time a sync of proxy rules was queued",
            ),
            flows_duration: histogram(
                "kubeproxy_conntrack_reconciler_sync_duration_seconds",
                "ReconcileConntrackFlowsLatency latency in seconds",
            ),
            flows_deleted: counter(
                "kubeproxy_conntrack_reconciler_deleted_entries",
                "Cumulative conntrack flows deleted by conntrack reconciler",
            ),
        }
    }
}

/// What the kernel holds of a family, as far as we know.
#[derive(Default)]
struct Applied {
    rules: Option<Ruleset>,
    /// Where UDP flows lead; none before the first time and after a failure.
    flows: Option<Targets>,
}

/// What the rules are made from.
pub struct Sources {
    /// Services.
    pub services: Informer<Service>,
    /// Their endpoints.
    pub slices: Informer<EndpointSlice>,
    /// This node.
    pub nodes: Informer<Node>,
    /// Ranges of services' addresses.
    pub ranges: Informer<ServiceCIDR>,
}

/// Keeps the kernel in step.
pub struct Syncer {
    settings: Settings,
    sources: Sources,
    wake: Notify,
    vitals: Arc<Vitals>,
    applied: tokio::sync::Mutex<HashMap<Family, Applied>>,
    health_ports: HealthPorts,
    metrics: Metrics,
}

impl Syncer {
    /// A syncer over these informers; it wakes up at their changes.
    pub fn new(settings: Settings, sources: Sources) -> Arc<Self> {
        let vitals = Arc::new(Vitals::new(settings.backend.sync_period * 2));
        let syncer = Arc::new(Self {
            settings,
            sources,
            wake: Notify::new(),
            health_ports: HealthPorts::new(vitals.clone()),
            vitals,
            applied: tokio::sync::Mutex::default(),
            metrics: Metrics::new(),
        });
        let wake = || {
            let weak = Arc::downgrade(&syncer);
            move || {
                if let Some(syncer) = weak.upgrade() {
                    syncer.changed();
                }
            }
        };
        let (services, slices, nodes, ranges) = (wake(), wake(), wake(), wake());
        syncer.sources.services.on_change(move |_| services());
        syncer.sources.slices.on_change(move |_| slices());
        syncer.sources.nodes.on_change(move |_| nodes());
        syncer.sources.ranges.on_change(move |_| ranges());
        syncer
    }

    fn changed(&self) {
        self.vitals.queued(&FAMILIES);
        for family in FAMILIES {
            self.metrics.queued.get_or_create(&Of::family(family)).set(base::clock::unix());
        }
        self.wake.notify_one();
    }

    /// How far the kernel is behind.
    pub fn vitals(&self) -> &Vitals {
        &self.vitals
    }

    /// This node, when the API server knows it.
    pub fn node(&self) -> Option<Arc<Node>> {
        self.sources.nodes.get(&Key::new("", self.settings.node.as_str()))
    }

    /// Runs until the shutdown. The rules stay: traffic flows on while the proxy restarts.
    ///
    /// # Errors
    /// When the node never gets the range of pod addresses that it needs.
    pub async fn run(&self, shutdown: &Shutdown) -> Result<(), NoRange> {
        let Sources { services, slices, nodes, .. } = &self.sources;
        // Ranges are only for what nobody has, and an older API server does not know them: they may come later.
        let synced = async {
            services.synced().await;
            slices.synced().await;
            nodes.synced().await;
            self.range().await
        };
        match base::shutdown::unless(shutdown, synced).await {
            None => return Ok(()),
            Some(outcome) => outcome?,
        }
        self.changed();
        while base::shutdown::unless(shutdown, self.turn()).await.is_some() {}
        Ok(())
    }

    /// Waits until the node has its range of pod addresses, where that is needed.
    async fn range(&self) -> Result<(), NoRange> {
        let wait = async {
            while self.settings.local == LocalMode::Node && pod_ranges(self.node().as_deref()).is_empty() {
                self.wake.notified().await;
            }
        };
        let waited = tokio::time::timeout(RANGE, wait).await;
        waited.map_err(|_| NoRange(self.settings.node.clone()))
    }

    async fn turn(&self) {
        // An occasional full turn mends what somebody else did to the rules.
        let full = tokio::time::timeout(self.settings.backend.sync_period, self.wake.notified()).await.is_err();
        if !full {
            // Changes come in bunches; those of a few milliseconds share one transaction.
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let began = Instant::now();
        if self.sync(full).await {
            tokio::time::sleep(self.settings.backend.min_sync_period.saturating_sub(began.elapsed())).await;
        } else {
            tokio::time::sleep(RETRY).await;
            self.wake.notify_one();
        }
    }

    /// True when the kernel has everything.
    async fn sync(&self, full: bool) -> bool {
        let place = self.place();
        let options = self.options(&place);
        let mut applied = self.applied.lock().await;
        let mut answers = HashMap::new();
        let mut well = true;
        for family in FAMILIES {
            let ports = self.ports(family, &place);
            let addresses = listening(family, &options);
            answers.extend(health::answers(&ports, &addresses));
            let state = applied.entry(family).or_default();
            // A machine without the family's services need not have its table.
            if ports.is_empty() && state.rules.is_none() && family == Family::V6 {
                self.vitals.updated(family);
                continue;
            }
            well &= self.bring(family, state, &ports, &options, full).await;
            self.forget_flows(family, state, &ports).await;
        }
        self.health_ports.set(answers);
        well
    }

    /// Brings the kernel's rules of a family up to date, and says whether it has them.
    async fn bring(&self, family: Family, state: &mut Applied, ports: &[Port], options: &Options, full: bool) -> bool {
        let began = Instant::now();
        let outcome = apply(family, state, ports, options, full).await;
        let label = Of::family(family);
        self.metrics.duration.get_or_create(&label).observe(began.elapsed().as_secs_f64());
        match outcome {
            Ok(changed) => {
                self.vitals.updated(family);
                self.metrics.last.get_or_create(&label).set(base::clock::unix());
                if changed {
                    tracing::info!(?family, ports = ports.len(), "rules are in place");
                }
                true
            }
            Err(error) => {
                tracing::error!(%error, ?family, "the kernel did not take the rules");
                self.vitals.queued(&[family]);
                self.metrics.failures.get_or_create(&label).inc();
                false
            }
        }
    }

    /// Forgets flows that lead to endpoints which are gone, when endpoints changed or it failed in the last turn.
    async fn forget_flows(&self, family: Family, state: &mut Applied, ports: &[Port]) {
        let targets = Targets::of(ports);
        if state.flows.as_ref() == Some(&targets) {
            return;
        }
        let began = Instant::now();
        let outcome = flows::reconcile(family, targets.clone()).await;
        let label = Of::family(family);
        self.metrics.flows_duration.get_or_create(&label).observe(began.elapsed().as_secs_f64());
        match outcome {
            Ok(count) => {
                self.metrics.flows_deleted.get_or_create(&label).inc_by(count as u64);
                state.flows = Some(targets);
            }
            Err(error) => {
                tracing::error!(%error, ?family, "UDP flows may stay with endpoints that are gone");
                state.flows = None;
            }
        }
    }

    fn place(&self) -> Place {
        let labels = self.node().and_then(|n| n.metadata.labels.clone()).unwrap_or_default();
        let zone = labels.get("topology.kubernetes.io/zone").cloned().unwrap_or_default();
        Place { node: self.settings.node.clone(), zone }
    }

    fn options(&self, place: &Place) -> Options {
        let node = self.node();
        let node_ips = node_ips(node.as_deref(), self.settings.address);
        let ranges = self.sources.ranges.list();
        let ranges = ranges.iter().flat_map(|range| range.spec.iter().flat_map(|spec| spec.cidrs.iter().flatten()));
        let mut service_cidrs: Vec<IpNet> = ranges.filter_map(|text| text.parse().ok()).collect();
        service_cidrs.sort();
        service_cidrs.dedup();
        Options {
            place: place.clone(),
            local: match &self.settings.local {
                LocalMode::Told(local) => local.clone(),
                LocalMode::Node => Local::Networks(pod_ranges(node.as_deref())),
            },
            masquerade_all: self.settings.backend.masquerade_all,
            masquerade_bit: self.settings.backend.masquerade_bit,
            node_port_ips: node_port_ips(&self.settings.node_ports, &node_ips, local_addresses),
            node_ips: node_ips.into_values().collect(),
            service_cidrs,
        }
    }

    fn ports(&self, family: Family, place: &Place) -> Vec<Port> {
        let slices = self.sources.slices.list();
        let mut by_service: HashMap<(&str, &str), Vec<&EndpointSlice>> = HashMap::new();
        for slice in &slices {
            let labels = slice.metadata.labels.as_ref();
            let service = labels.and_then(|l| l.get("kubernetes.io/service-name"));
            if let (Some(service), Some(namespace)) = (service, &slice.metadata.namespace) {
                by_service.entry((namespace, service)).or_default().push(slice);
            }
        }
        let mut services = self.sources.services.list();
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

/// Brings the kernel's rules up to date, and says whether there was something to change.
async fn apply(
    family: Family, state: &mut Applied, ports: &[Port], options: &Options, full: bool,
) -> Result<bool, kernel::Error> {
    let wanted = rules::compute(family, ports, options);
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
    state.rules = Some(wanted);
    Ok(changed)
}

/// The node's range of pod addresses, of each family.
fn pod_ranges(node: Option<&Node>) -> Vec<IpNet> {
    let spec = node.and_then(|node| node.spec.as_ref());
    let texts = spec.into_iter().flat_map(|spec| spec.pod_cidrs.iter().flatten());
    texts.filter_map(|text| text.parse().ok()).map(|range: IpNet| range.trunc()).collect()
}

/// The node's address of each family: what was configured, or what the API server knows, internal ones first.
fn node_ips(node: Option<&Node>, configured: Option<IpAddr>) -> BTreeMap<Family, IpAddr> {
    let known = node.and_then(|node| node.status.as_ref()?.addresses.as_deref()).unwrap_or_default();
    let of = |kind: &'static str| known.iter().filter(move |a| a.type_ == kind).filter_map(|a| a.address.parse().ok());
    let mut ips = BTreeMap::new();
    for ip in configured.into_iter().chain(of("InternalIP")).chain(of("ExternalIP")) {
        ips.entry(Family::of(ip)).or_insert(ip);
    }
    ips
}

/// Addresses on which node ports are open, but for families that have them on all.
fn node_port_ips(
    node_ports: &NodePorts, node_ips: &BTreeMap<Family, IpAddr>, local: impl Fn() -> Vec<IpAddr>,
) -> BTreeMap<Family, Vec<IpAddr>> {
    let networks = match node_ports {
        // Until the node's address is known they are open nowhere.
        NodePorts::Primary if node_ips.is_empty() => return FAMILIES.map(|family| (family, Vec::new())).into(),
        NodePorts::Primary => {
            let own = node_ips.iter().filter(|(_, ip)| !ip.is_loopback());
            return own.map(|(family, ip)| (*family, vec![*ip])).collect();
        }
        NodePorts::In(networks) => networks,
    };
    let limited = FAMILIES.into_iter().filter(|family| {
        let mut own = networks.iter().filter(|network| Family::of(network.addr()) == *family).peekable();
        own.peek().is_some() && own.all(|network| network.prefix_len() > 0)
    });
    let limited: Vec<Family> = limited.collect();
    if limited.is_empty() {
        return BTreeMap::new();
    }
    let local = local();
    let open = |family: Family| {
        let ours = local.iter().filter(|ip| Family::of(**ip) == family && !ip.is_loopback());
        ours.filter(|ip| networks.iter().any(|network| network.contains(*ip))).copied().collect()
    };
    limited.into_iter().map(|family| (family, open(family))).collect()
}

/// Addresses of this machine.
fn local_addresses() -> Vec<IpAddr> {
    let interfaces = match nix::ifaddrs::getifaddrs() {
        Ok(interfaces) => interfaces,
        Err(error) => {
            tracing::error!(%error, "addresses of this machine can't be read, so node ports are open on none");
            return Vec::new();
        }
    };
    let addresses = interfaces.filter_map(|interface| {
        let storage = interface.address?;
        let v4 = storage.as_sockaddr_in().map(|a| IpAddr::V4(a.ip()));
        v4.or_else(|| storage.as_sockaddr_in6().map(|a| IpAddr::V6(a.ip())))
    });
    let mut addresses: Vec<IpAddr> = addresses.collect();
    addresses.sort();
    addresses.dedup();
    addresses
}

/// Addresses that health-check node ports of a family are served at.
fn listening(family: Family, options: &Options) -> Vec<IpAddr> {
    match (options.node_port_ips.get(&family), family) {
        (Some(ips), _) => ips.clone(),
        (None, Family::V4) => vec![Ipv4Addr::UNSPECIFIED.into()],
        (None, Family::V6) => vec![Ipv6Addr::UNSPECIFIED.into()],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn node() -> Node {
        serde_json::from_value(json!({
            "metadata": {"name": "n"},
            "spec": {"podCIDR": "10.244.3.0/24", "podCIDRs": ["10.244.3.0/24", "fd00:3::/64"]},
            "status": {"addresses": [
                {"type": "ExternalIP", "address": "203.0.113.5"},
                {"type": "InternalIP", "address": "192.0.2.5"},
                {"type": "InternalIP", "address": "192.0.2.6"},
                {"type": "ExternalIP", "address": "2001:db8::5"},
            ]},
        }))
        .unwrap()
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_node_has_one_address_of_each_family_and_what_was_configured_is_first() {
        let known = node_ips(Some(&node()), None);
        assert_eq!(known, BTreeMap::from([(Family::V4, ip("192.0.2.5")), (Family::V6, ip("2001:db8::5"))]));
        assert_eq!(node_ips(Some(&node()), Some(ip("192.0.2.9")))[&Family::V4], ip("192.0.2.9"));
        assert_eq!(pod_ranges(Some(&node())), ["10.244.3.0/24".parse().unwrap(), "fd00:3::/64".parse().unwrap()]);
    }

    #[test]
    fn node_ports_are_open_where_the_configuration_says_and_a_family_it_does_not_name_has_them_everywhere() {
        let here = || vec![ip("127.0.0.1"), ip("192.0.2.5"), ip("198.51.100.5"), ip("2001:db8::5")];
        let open = |node_ports: NodePorts, known: &[(Family, &str)]| {
            let known = known.iter().map(|(family, text)| (*family, ip(text))).collect();
            node_port_ips(&node_ports, &known, here)
        };
        let within = |texts: &[&str]| NodePorts::In(texts.iter().map(|text| text.parse().unwrap()).collect());
        let v4 = BTreeMap::from([(Family::V4, vec![ip("192.0.2.5")])]);
        assert_eq!(open(NodePorts::Primary, &[(Family::V4, "192.0.2.5")]), v4);
        assert_eq!(open(within(&["192.0.2.0/24", "127.0.0.0/8"]), &[]), v4, "never on the loopback");
        assert_eq!(open(within(&["192.0.2.0/24", "0.0.0.0/0"]), &[]), BTreeMap::new());
        assert_eq!(open(within(&[]), &[]), BTreeMap::new());
        assert_eq!(open(within(&["192.0.2.0/24", "2001:db8::/64"]), &[]).len(), 2);
        let nowhere = BTreeMap::from([(Family::V4, vec![]), (Family::V6, vec![])]);
        assert_eq!(open(NodePorts::Primary, &[]), nowhere, "before the node is known");
    }
}

//! The pure part of node-lifecycle-controller: who is silent for too long, how whole zones fare, and whose pods are evicted
//! how fast. Ages count by this process's own clock, from when it saw a change, so that jumps of clocks evict nobody.

use super::taints::{NO_EXECUTE, NOT_READY, Swap, UNREACHABLE, condition, has};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, NodeCondition, NodeStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, Time};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// What the flags say.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    pub(super) grace: Duration,
    pub(super) startup_grace: Duration,
    /// Nodes per second.
    pub(super) rate: f64,
    pub(super) secondary_rate: f64,
    pub(super) large_cluster: usize,
    pub(super) unhealthy_zone: f64,
}

/// What to do.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Command {
    /// Tell about a node that has come or gone: reason, message.
    Tell(String, Option<String>, &'static str, String),
    /// Write a node's status: it has not been heard of.
    Status(Node),
    /// Change a node's taints.
    Taint(Arc<Node>, Swap),
    /// The node was ready and is no more: so are its pods. Whether that is news, or has failed before.
    PodsNotReady(String, bool),
}

impl Command {
    /// The node it is about.
    pub(super) fn node(&self) -> &str {
        match self {
            Self::Tell(name, ..) | Self::PodsNotReady(name, _) => name,
            Self::Status(node) => name(node),
            Self::Taint(node, _) => name(node),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Zone {
    Initial,
    Normal,
    Partial,
    Full,
}

/// What is known of one node.
#[derive(Clone, Debug)]
struct Health {
    ready: Option<NodeCondition>,
    renewed: Option<MicroTime>,
    heard: Instant,
}

/// Nodes that wait for eviction, and how often one may be taken.
#[derive(Debug)]
struct Evictions {
    waiting: VecDeque<String>,
    /// Nodes per second.
    rate: f64,
    next: Option<Instant>,
}

impl Evictions {
    fn new(rate: f64) -> Self {
        Self { waiting: VecDeque::new(), rate, next: None }
    }

    fn take(&mut self, now: Instant) -> Option<String> {
        if self.rate <= 0.0 || self.next.is_some_and(|next| next > now) {
            return None;
        }
        let node = self.waiting.pop_front()?;
        self.next = Some(now + Duration::from_secs_f64(1.0 / self.rate));
        Some(node)
    }

    fn add(&mut self, node: &str) {
        if !self.waiting.iter().any(|known| known == node) {
            self.waiting.push_back(node.to_owned());
        }
    }
}

/// The state between two looks.
#[derive(Debug)]
pub(super) struct Monitor {
    settings: Settings,
    known: BTreeMap<String, Option<String>>,
    health: HashMap<String, Health>,
    zones: BTreeMap<String, Zone>,
    evictions: BTreeMap<String, Evictions>,
    /// Nodes whose pods could not all be marked.
    unmarked: BTreeSet<String>,
}

impl Monitor {
    pub(super) fn new(settings: Settings) -> Self {
        Self {
            settings,
            known: BTreeMap::new(),
            health: HashMap::new(),
            zones: BTreeMap::new(),
            evictions: BTreeMap::new(),
            unmarked: BTreeSet::new(),
        }
    }

    /// Notes that not all pods of a node could be marked as not ready: that is tried again with the next look.
    pub(super) fn mark_again(&mut self, node: &str) {
        self.unmarked.insert(node.to_owned());
    }

    /// Looks at all nodes and their leases.
    pub(super) fn look(
        &mut self, nodes: &[Arc<Node>], lease: impl Fn(&str) -> Option<Arc<Lease>>, now: Instant, wall: Time,
    ) -> Vec<Command> {
        let mut commands = self.register(nodes);
        let mut ready_by_zone: BTreeMap<String, Vec<bool>> = BTreeMap::new();
        for node in nodes {
            let name = name(node);
            let before = condition(node, "Ready").map(|ready| ready.status.clone());
            let silent = self.hear(node, lease(name).as_deref(), now);
            let updated = if silent { unheard(node, &wall) } else { None };
            let node = match &updated {
                Some(updated) => {
                    commands.push(Command::Status(updated.clone()));
                    if let Some(health) = self.health.get_mut(name) {
                        health.ready = condition(updated, "Ready").cloned();
                    }
                    Arc::new(updated.clone())
                }
                None => node.clone(),
            };
            let ready = condition(&node, "Ready").cloned();
            let is_ready = ready.as_ref().is_some_and(|ready| ready.status == "True");
            if !is_excluded(&node) {
                ready_by_zone.entry(zone(&node)).or_default().push(is_ready);
            }
            if let Some(ready) = ready {
                commands.extend(self.evict_or_not(&node, &ready.status));
                let news = before.as_deref() == Some("True") && ready.status != "True";
                if self.unmarked.remove(name) && before.as_deref() != Some("True") || news {
                    commands.push(Command::PodsNotReady(name.to_owned(), news));
                }
            }
        }
        commands.extend(self.disrupt(&ready_by_zone, nodes, now));
        commands.extend(self.evict(nodes, now));
        commands
    }

    /// When a node that waits for its eviction may have its turn.
    pub(super) fn next_eviction(&self, now: Instant) -> Option<Duration> {
        let waiting = self.evictions.values().filter(|zone| !zone.waiting.is_empty() && zone.rate > 0.0);
        waiting.map(|zone| zone.next.map_or(Duration::ZERO, |next| next.saturating_duration_since(now))).min()
    }

    fn register(&mut self, nodes: &[Arc<Node>]) -> Vec<Command> {
        let mut commands = Vec::new();
        let tell = |name: &str, uid: &Option<String>, reason: &'static str, text: String| {
            Command::Tell(name.to_owned(), uid.clone(), reason, format!("Node {name} event: {text}"))
        };
        let present: BTreeMap<&str, &Arc<Node>> = nodes.iter().map(|node| (name(node), node)).collect();
        for (name, node) in &present {
            if !self.known.contains_key(*name) {
                self.known.insert((*name).to_owned(), node.metadata.uid.clone());
                let text = format!("Registered Node {name} in Controller");
                commands.push(tell(name, &node.metadata.uid, "RegisteredNode", text));
                let swap = Swap::reachable(node);
                if !swap.is_empty() {
                    commands.push(Command::Taint((*node).clone(), swap));
                }
            }
        }
        self.known.retain(|name, uid| {
            let stays = present.contains_key(name.as_str());
            if !stays {
                let text = format!("Removing Node {name} from Controller");
                commands.push(tell(name, uid, "RemovingNode", text));
            }
            stays
        });
        self.health.retain(|name, _| present.contains_key(name.as_str()));
        self.unmarked.retain(|name| present.contains_key(name.as_str()));
        for zone in nodes.iter().map(|node| zone(node)) {
            let rate = self.settings.rate;
            self.evictions.entry(zone).or_insert_with(|| Evictions::new(rate));
        }
        commands
    }

    /// Notes signs of life. Whether there was none for too long.
    fn hear(&mut self, node: &Node, lease: Option<&Lease>, now: Instant) -> bool {
        let ready = condition(node, "Ready").cloned();
        let grace = if ready.is_some() { self.settings.grace } else { self.settings.startup_grace };
        let health = self.health.entry(name(node).to_owned()).or_insert_with(|| Health {
            ready: ready.clone(),
            renewed: None,
            heard: now,
        });
        let beat = |ready: &Option<NodeCondition>| ready.as_ref().map(|ready| ready.last_heartbeat_time.clone());
        if health.ready.is_some() != ready.is_some() || beat(&health.ready) != beat(&ready) {
            health.heard = now;
        }
        health.ready = ready;
        let renewed = lease.and_then(|lease| lease.spec.as_ref()?.renew_time.clone());
        if renewed > health.renewed {
            health.renewed = renewed;
            health.heard = now;
        }
        now > health.heard + grace
    }

    fn evict_or_not(&mut self, node: &Arc<Node>, ready: &str) -> Option<Command> {
        let (add, remove) = match ready {
            "False" => (NOT_READY, UNREACHABLE),
            "Unknown" => (UNREACHABLE, NOT_READY),
            _ => {
                for zone in self.evictions.values_mut() {
                    zone.waiting.retain(|known| known != name(node));
                }
                let swap = Swap::reachable(node);
                return (!swap.is_empty()).then(|| Command::Taint(node.clone(), swap));
            }
        };
        if has(node, remove, NO_EXECUTE) {
            return Some(Command::Taint(node.clone(), Swap::evicting(node, add, remove)));
        }
        if !has(node, add, NO_EXECUTE) {
            self.evictions.entry(zone(node)).or_insert_with(|| Evictions::new(0.0)).add(name(node));
        }
        None
    }

    fn state(&self, ready: &[bool]) -> Zone {
        let down = ready.iter().filter(|ready| !**ready).count();
        if down == ready.len() && down > 0 {
            return Zone::Full;
        }
        let part = down as f64 / ready.len().max(1) as f64;
        if down > 2 && part >= self.settings.unhealthy_zone { Zone::Partial } else { Zone::Normal }
    }

    fn rate(&self, zone: Zone, size: usize) -> f64 {
        match zone {
            Zone::Partial if size > self.settings.large_cluster => self.settings.secondary_rate,
            Zone::Partial => 0.0,
            _ => self.settings.rate,
        }
    }

    /// When all zones are down it is more likely this controller that is cut off: then nothing is evicted.
    fn disrupt(
        &mut self, ready_by_zone: &BTreeMap<String, Vec<bool>>, nodes: &[Arc<Node>], now: Instant,
    ) -> Vec<Command> {
        let new: BTreeMap<String, Zone> =
            ready_by_zone.iter().map(|(zone, ready)| (zone.clone(), self.state(ready))).collect();
        self.zones.retain(|zone, _| new.contains_key(zone));
        for zone in new.keys() {
            self.zones.entry(zone.clone()).or_insert(Zone::Initial);
        }
        let all_down = new.values().all(|state| *state == Zone::Full);
        let all_were_down = self.zones.values().all(|state| *state == Zone::Full);
        if all_down && all_were_down {
            return Vec::new();
        }
        if all_down {
            self.zones.values_mut().for_each(|state| *state = Zone::Full);
            self.evictions.values_mut().for_each(|zone| zone.rate = 0.0);
            let swaps = nodes.iter().map(|node| (node.clone(), Swap::reachable(node)));
            return swaps.filter(|(_, swap)| !swap.is_empty()).map(|(node, swap)| Command::Taint(node, swap)).collect();
        }
        if all_were_down {
            // Those that were silent while we were cut off get their time again.
            self.health.values_mut().for_each(|health| health.heard = now);
        }
        for (zone, state) in new {
            if all_were_down || self.zones.get(&zone) != Some(&state) {
                let rate = self.rate(state, ready_by_zone[&zone].len());
                self.evictions.entry(zone.clone()).or_insert_with(|| Evictions::new(rate)).rate = rate;
                self.zones.insert(zone, state);
            }
        }
        Vec::new()
    }

    fn evict(&mut self, nodes: &[Arc<Node>], now: Instant) -> Vec<Command> {
        let mut commands = Vec::new();
        for zone in self.evictions.values_mut() {
            while let Some(taken) = zone.take(now) {
                let node = nodes.iter().find(|node| name(node) == taken);
                let status = node.and_then(|node| Some((node, condition(node, "Ready")?.status.as_str())));
                let (node, add, remove) = match status {
                    Some((node, "False")) => (node, NOT_READY, UNREACHABLE),
                    Some((node, "Unknown")) => (node, UNREACHABLE, NOT_READY),
                    // Its status is written in this very look; it has its turn in the next.
                    Some((_, "True")) => {
                        zone.add(&taken);
                        zone.next = None;
                        break;
                    }
                    _ => continue,
                };
                commands.push(Command::Taint(node.clone(), Swap::evicting(node, add, remove)));
            }
        }
        commands
    }
}

fn name(node: &Node) -> &str {
    node.metadata.name.as_deref().unwrap_or_default()
}

fn label<'a>(node: &'a Node, key: &str) -> Option<&'a str> {
    node.metadata.labels.as_ref()?.get(key).map(String::as_str)
}

fn zone(node: &Node) -> String {
    let region = label(node, "topology.kubernetes.io/region").unwrap_or_default();
    let zone = label(node, "topology.kubernetes.io/zone").unwrap_or_default();
    if region.is_empty() && zone.is_empty() { String::new() } else { format!("{region}:\0:{zone}") }
}

fn is_excluded(node: &Node) -> bool {
    label(node, "node.kubernetes.io/exclude-disruption").is_some()
}

/// The node with the conditions of one that is not heard of; nothing when its readiness is unknown already.
fn unheard(node: &Node, wall: &Time) -> Option<Node> {
    let mut updated = node.clone();
    let created = node.metadata.creation_timestamp.clone();
    let status: &mut NodeStatus = updated.status.get_or_insert_default();
    let conditions = status.conditions.get_or_insert_default();
    for kind in ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"] {
        match conditions.iter_mut().find(|condition| condition.type_ == kind) {
            None => conditions.push(NodeCondition {
                type_: kind.into(),
                status: "Unknown".into(),
                reason: Some("NodeStatusNeverUpdated".into()),
                message: Some("Kubelet never posted node status.".into()),
                last_heartbeat_time: created.clone(),
                last_transition_time: Some(wall.clone()),
            }),
            Some(condition) if condition.status != "Unknown" => {
                condition.status = "Unknown".into();
                condition.reason = Some("NodeStatusUnknown".into());
                condition.message = Some("Kubelet stopped posting node status.".into());
                condition.last_transition_time = Some(wall.clone());
            }
            Some(_) => {}
        }
    }
    (condition(&updated, "Ready") != condition(node, "Ready")).then_some(updated)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const SETTINGS: Settings = Settings {
        grace: Duration::from_secs(50),
        startup_grace: Duration::from_secs(60),
        rate: 0.1,
        secondary_rate: 0.01,
        large_cluster: 50,
        unhealthy_zone: 0.55,
    };

    fn wall() -> Time {
        Time(jiff::Timestamp::UNIX_EPOCH)
    }

    fn node(name: &str, ready: &str) -> Arc<Node> {
        let conditions = json!([{"type": "Ready", "status": ready, "lastHeartbeatTime": "2020-01-01T00:00:00Z"}]);
        let node = json!({"metadata": {"name": name, "uid": name}, "status": {"conditions": conditions}});
        Arc::new(serde_json::from_value(node).unwrap())
    }

    fn told(commands: &[Command]) -> Vec<String> {
        let tell = |command: &Command| match command {
            Command::Tell(name, _, reason, _) => format!("{reason} {name}"),
            Command::Status(node) => format!("unheard {}", name(node)),
            Command::Taint(node, swap) => {
                let add = swap.add.iter().map(|taint| format!(" +{}", taint.key.rsplit('/').next().unwrap()));
                let remove = swap.remove.iter().map(|taint| format!(" -{}", taint.key.rsplit('/').next().unwrap()));
                format!("{}{}", name(node), add.chain(remove).collect::<String>())
            }
            Command::PodsNotReady(name, news) => format!("pods of {name}{}", if *news { "" } else { " again" }),
        };
        commands.iter().map(tell).collect()
    }

    struct Run {
        monitor: Monitor,
        start: Instant,
    }

    impl Run {
        fn new() -> Self {
            Self { monitor: Monitor::new(SETTINGS), start: Instant::now() }
        }

        fn look(&mut self, seconds: u64, nodes: &[Arc<Node>]) -> Vec<String> {
            told(&self.monitor.look(nodes, |_| None, self.start + Duration::from_secs(seconds), wall()))
        }
    }

    #[test]
    fn nodes_are_registered_and_removed() {
        let mut run = Run::new();
        assert_eq!(run.look(0, &[node("a", "True")]), ["RegisteredNode a"]);
        assert!(run.look(5, &[node("a", "True")]).is_empty());
        assert_eq!(run.look(10, &[]), ["RemovingNode a"]);
    }

    #[test]
    fn a_silent_node_becomes_unknown_after_its_grace_and_its_pods_unready() {
        let mut run = Run::new();
        let nodes = [node("a", "True")];
        run.look(0, &nodes);
        assert!(run.look(50, &nodes).is_empty());
        let commands = run.monitor.look(&nodes, |_| None, run.start + Duration::from_secs(51), wall());
        assert_eq!(told(&commands), ["unheard a", "pods of a"]);
        let Command::Status(updated) = &commands[0] else { panic!() };
        let ready = condition(updated, "Ready").unwrap();
        assert_eq!((ready.status.as_str(), ready.reason.as_deref()), ("Unknown", Some("NodeStatusUnknown")));
        assert_eq!(condition(updated, "DiskPressure").unwrap().reason.as_deref(), Some("NodeStatusNeverUpdated"));
    }

    #[test]
    fn a_renewed_lease_is_a_sign_of_life() {
        let mut run = Run::new();
        let nodes = [node("a", "True")];
        run.look(0, &nodes);
        let lease: Lease =
            serde_json::from_value(json!({"spec": {"renewTime": "2020-01-01T00:00:40.000000Z"}})).unwrap();
        let lease = Arc::new(lease);
        let at = run.start + Duration::from_secs(40);
        run.monitor.look(&nodes, |_| Some(lease.clone()), at, wall());
        let later = run.start + Duration::from_secs(89);
        assert!(run.monitor.look(&nodes, |_| Some(lease.clone()), later, wall()).is_empty());
        let late = run.start + Duration::from_secs(91);
        assert_eq!(told(&run.monitor.look(&nodes, |_| Some(lease.clone()), late, wall())).len(), 2);
    }

    #[test]
    fn a_clock_jump_evicts_nobody() {
        let mut run = Run::new();
        let nodes = [node("a", "True"), node("b", "True")];
        run.look(0, &nodes);
        let far = Time(jiff::Timestamp::from_second(4_000_000_000).unwrap());
        assert!(run.monitor.look(&nodes, |_| None, run.start + Duration::from_secs(5), far).is_empty());
    }

    #[test]
    fn with_one_healthy_node_the_other_is_tainted_at_once() {
        let mut run = Run::new();
        run.look(0, &[node("a", "True"), node("b", "True")]);
        assert_eq!(run.look(5, &[node("a", "False"), node("b", "True")]), ["a +not-ready"]);
    }

    #[test]
    fn nodes_of_a_healthy_zone_are_evicted_one_in_ten_seconds() {
        let mut run = Run::new();
        let names = ["a", "b", "c", "d", "e", "f"];
        let nodes = |down: usize| -> Vec<_> {
            names.iter().enumerate().map(|(n, name)| node(name, if n < down { "False" } else { "True" })).collect()
        };
        run.look(0, &nodes(0));
        assert_eq!(run.look(5, &nodes(2)), ["a +not-ready"]);
        assert_eq!(run.monitor.next_eviction(run.start + Duration::from_secs(6)), Some(Duration::from_secs(9)));
        assert!(run.look(14, &nodes(2)).is_empty());
        assert_eq!(run.look(15, &nodes(2)), ["b +not-ready"]);
    }

    #[test]
    fn with_all_nodes_down_nothing_is_evicted() {
        let mut run = Run::new();
        run.look(0, &[node("a", "True")]);
        assert!(run.look(5, &[node("a", "False")]).is_empty());
        assert!(run.look(40, &[node("a", "False")]).is_empty());
    }

    #[test]
    fn a_small_zone_with_most_nodes_down_evicts_nothing_more() {
        let mut run = Run::new();
        let names = ["a", "b", "c", "d", "e"];
        let nodes = |down: usize| -> Vec<_> {
            names.iter().enumerate().map(|(n, name)| node(name, if n < down { "False" } else { "True" })).collect()
        };
        run.look(0, &nodes(0));
        assert!(run.look(5, &nodes(3)).is_empty(), "partial disruption");
        assert_eq!(run.look(30, &nodes(1)), ["a +not-ready"]);
    }

    #[test]
    fn a_node_that_is_well_again_loses_its_taint() {
        let mut run = Run::new();
        run.look(0, &[node("a", "True")]);
        let mut tainted = Node::clone(&node("a", "True"));
        tainted.spec = serde_json::from_value(json!({"taints": [{"key": NOT_READY, "effect": "NoExecute"}]})).unwrap();
        assert_eq!(run.look(5, &[Arc::new(tainted)]), ["a -not-ready"]);
    }

    #[test]
    fn pods_that_could_not_be_marked_are_marked_with_the_next_look_unless_the_node_is_well_again() {
        let mut run = Run::new();
        run.look(0, &[node("a", "True")]);
        assert_eq!(run.look(51, &[node("a", "True")]), ["unheard a", "pods of a"]);
        run.monitor.mark_again("a");
        assert_eq!(run.look(56, &[node("a", "Unknown")]), ["pods of a again"]);
        assert!(run.look(61, &[node("a", "Unknown")]).is_empty());
        let mut well = Run::new();
        well.look(0, &[node("a", "True")]);
        well.monitor.mark_again("a");
        assert!(well.look(5, &[node("a", "True")]).is_empty());
        assert!(well.look(10, &[node("a", "False")]).is_empty(), "what failed once is forgotten");
    }
}

//! InterPodAffinity: pods that must, must not, or would rather be near other pods.

use std::collections::HashMap;
use std::sync::Arc;

use crate::framework::{Cycle, Event, MAX_SCORE, Plugin, Refusal};
use crate::state::{NodeInfo, PodInfo, Snapshot, Term};

/// Weight of other pods' demands to be near, when nodes are compared.
const DEMAND_WEIGHT: i64 = 1;

/// The plugin.
pub struct InterPod;

/// A place of a topology: its key and value, as `zone=a`.
type Place<'a> = (&'a str, &'a str);

struct InterPodCycle<'a> {
    pod: &'a PodInfo,
    /// Places where pods are that refuse to be near this one.
    refused: HashMap<Place<'a>, i64>,
    /// Places with pods that this one refuses to be near.
    avoided: HashMap<Place<'a>, i64>,
    /// Places with pods that match all of this one's demands.
    wanted: HashMap<Place<'a>, i64>,
    /// How much places are liked.
    liked: HashMap<Place<'a>, i64>,
    /// The pod satisfies its own demands, so the first of a group finds a place.
    matches_itself: bool,
}

fn place<'a>(node: &'a NodeInfo, key: &'a str) -> Option<Place<'a>> {
    node.labels().get(key).map(|value| (key, value.as_str()))
}

fn at(places: &HashMap<Place<'_>, i64>, node: &NodeInfo, key: &str) -> i64 {
    place(node, key).and_then(|p| places.get(&p)).copied().unwrap_or(0)
}

fn matches(term: &Term, pod: &PodInfo, world: &Snapshot) -> bool {
    term.matches(pod, world.namespace(&pod.key.namespace))
}

impl<'a> InterPodCycle<'a> {
    fn new(pod: &'a PodInfo, world: &'a Snapshot) -> Self {
        let own = &pod.affinities;
        let matches_itself = !own.required.is_empty() && own.required.iter().all(|t| matches(t, pod, world));
        let mut cycle = Self {
            pod,
            refused: HashMap::new(),
            avoided: HashMap::new(),
            wanted: HashMap::new(),
            liked: HashMap::new(),
            matches_itself,
        };
        for node in world.nodes() {
            for other in node.pods.values().filter(|o| !(own.is_empty() && o.affinities.is_empty())) {
                cycle.look_at(node, other, world);
            }
        }
        cycle
    }

    fn look_at(&mut self, node: &'a NodeInfo, other: &'a PodInfo, world: &'a Snapshot) {
        let (pod, own) = (self.pod, &self.pod.affinities);
        for term in other.affinities.anti.iter().filter(|t| matches(t, pod, world)) {
            add(&mut self.refused, node, term, 1);
        }
        for term in own.anti.iter().filter(|t| matches(t, other, world)) {
            add(&mut self.avoided, node, term, 1);
        }
        if !own.required.is_empty() && own.required.iter().all(|t| matches(t, other, world)) {
            own.required.iter().for_each(|term| add(&mut self.wanted, node, term, 1));
        }
        let mine = own.preferred.iter().map(|t| (t, other, i64::from(t.weight)));
        let mine_not = own.anti_preferred.iter().map(|t| (t, other, -i64::from(t.weight)));
        let theirs = other.affinities.preferred.iter().map(|t| (t, pod, i64::from(t.weight)));
        let theirs_not = other.affinities.anti_preferred.iter().map(|t| (t, pod, -i64::from(t.weight)));
        let demanded = other.affinities.required.iter().map(|t| (t, pod, DEMAND_WEIGHT));
        for (term, subject, weight) in mine.chain(mine_not).chain(theirs).chain(theirs_not).chain(demanded) {
            if matches(term, subject, world) {
                add(&mut self.liked, node, term, weight);
            }
        }
    }

    fn near_enough(&self, node: &NodeInfo) -> bool {
        let required = &self.pod.affinities.required;
        if required.iter().any(|t| place(node, &t.topology_key).is_none()) {
            return false;
        }
        required.iter().all(|t| at(&self.wanted, node, &t.topology_key) > 0)
            || (self.wanted.is_empty() && self.matches_itself)
    }
}

fn add<'a>(places: &mut HashMap<Place<'a>, i64>, node: &'a NodeInfo, term: &'a Term, weight: i64) {
    if let Some(place) = place(node, &term.topology_key) {
        *places.entry(place).or_default() += weight;
    }
}

impl Cycle for InterPodCycle<'_> {
    fn filter(&self, node: &NodeInfo) -> Result<(), Refusal> {
        if !self.near_enough(node) {
            return Err(Refusal::unresolvable("node(s) didn't match pod affinity rules"));
        }
        if self.pod.affinities.anti.iter().any(|t| at(&self.avoided, node, &t.topology_key) > 0) {
            return Err(Refusal::new("node(s) didn't match pod anti-affinity rules"));
        }
        let refused =
            node.labels().iter().any(|(k, v)| self.refused.get(&(k.as_str(), v.as_str())).is_some_and(|n| *n > 0));
        match refused {
            true => Err(Refusal::new("node(s) didn't satisfy existing pods anti-affinity rules")),
            false => Ok(()),
        }
    }

    fn score(&self, node: &NodeInfo) -> i64 {
        node.labels().iter().filter_map(|(k, v)| self.liked.get(&(k.as_str(), v.as_str()))).sum()
    }

    fn normalize(&self, _nodes: &[Arc<NodeInfo>], scores: &mut [i64]) {
        let (min, max) = (scores.iter().min().copied().unwrap_or(0), scores.iter().max().copied().unwrap_or(0));
        for score in scores.iter_mut() {
            *score = if max == min { 0 } else { MAX_SCORE * (*score - min) / (max - min) };
        }
    }
}

impl Plugin for InterPod {
    fn name(&self) -> &'static str {
        "InterPodAffinity"
    }

    fn cycle<'a>(&'a self, pod: &'a PodInfo, world: &'a Snapshot) -> Result<Option<Box<dyn Cycle + 'a>>, Refusal> {
        let matters =
            !pod.affinities.is_empty() || world.nodes().any(|n| n.pods.values().any(|p| !p.affinities.is_empty()));
        Ok(matters.then(|| Box::new(InterPodCycle::new(pod, world)) as Box<dyn Cycle>))
    }

    fn may_help(&self, pod: &PodInfo, event: &Event) -> bool {
        match event {
            Event::AssignedPod(_) => !pod.affinities.required.is_empty(),
            Event::FreedPod(_) | Event::Node(..) | Event::Namespace | Event::Itself => true,
            Event::Storage => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugins::fixtures::*;
    use serde_json::{Value, json};

    fn near(kind: &str, app: &str) -> Value {
        let term = json!([{"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": "zone"}]);
        json!({"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": term}}})
    }

    fn two_zones() -> Snapshot {
        let mut world = world(&[node("n", json!({"zone": "a"})), node("o", json!({"zone": "b"}))]);
        world.add_pod("n", labelled("db", json!({"app": "db"}), json!({})));
        world
    }

    #[test]
    fn demands_to_be_near_and_away_are_met() {
        let world = two_zones();
        let follower = labelled("p", json!({}), near("podAffinity", "db"));
        assert!(filter(&InterPod, &follower, &world, "n").is_ok());
        let refusal = filter(&InterPod, &follower, &world, "o").unwrap_err();
        assert_eq!(refusal, Refusal::unresolvable("node(s) didn't match pod affinity rules"));
        let loner = labelled("p", json!({}), near("podAntiAffinity", "db"));
        let refusal = filter(&InterPod, &loner, &world, "n").unwrap_err();
        assert_eq!(refusal, Refusal::new("node(s) didn't match pod anti-affinity rules"));
        assert!(filter(&InterPod, &loner, &world, "o").is_ok());
    }

    #[test]
    fn pods_that_are_there_can_refuse_a_newcomer() {
        let mut world = two_zones();
        world.add_pod("o", labelled("loner", json!({}), near("podAntiAffinity", "web")));
        let web = labelled("p", json!({"app": "web"}), json!({}));
        let refusal = filter(&InterPod, &web, &world, "o").unwrap_err();
        assert_eq!(refusal.reasons, ["node(s) didn't satisfy existing pods anti-affinity rules"]);
        assert!(filter(&InterPod, &web, &world, "n").is_ok());
    }

    #[test]
    fn the_first_of_a_group_finds_a_place() {
        let world = two_zones();
        let first = labelled("p", json!({"app": "group"}), near("podAffinity", "group"));
        assert!(filter(&InterPod, &first, &world, "o").is_ok());
    }
}

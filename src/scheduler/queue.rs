//! Pods that wait for a node: those to try now, those that pause after a failure, and those that wait for something to
//! happen. Pure: the time is an argument.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::framework::Event;
use crate::state::PodInfo;

/// A pod that nothing woke is tried again after this long.
const LEFTOVER: Duration = Duration::from_secs(5 * 60);

/// A pod in the queue.
#[derive(Debug, Clone)]
pub struct Waiting {
    /// The pod.
    pub pod: Arc<PodInfo>,
    /// Failed attempts so far.
    pub attempts: u32,
    /// Plugins that refused it last.
    pub plugins: Vec<&'static str>,
    /// Since when it is in the queue.
    since: Instant,
    /// When the last attempt failed.
    failed: Instant,
    /// The number of the last event before it was taken out.
    taken_at: u64,
}

impl Waiting {
    fn new(pod: Arc<PodInfo>, now: Instant) -> Self {
        Self { pod, attempts: 0, plugins: Vec::new(), since: now, failed: now, taken_at: 0 }
    }

    /// More important ones first, among equals those that wait longer.
    fn rank(&self) -> Rank {
        (Reverse(self.pod.priority), self.since, self.pod.uid.clone())
    }
}

type Rank = (Reverse<i32>, Instant, String);

/// Pauses between attempts: upstream's 1 s, doubled by each failure up to 10 s.
#[derive(Debug, Clone, Copy)]
pub struct Pauses {
    /// After the first failure.
    pub initial: Duration,
    /// At most.
    pub max: Duration,
}

impl Default for Pauses {
    fn default() -> Self {
        Self { initial: Duration::from_secs(1), max: Duration::from_secs(10) }
    }
}

/// The queue.
#[derive(Debug, Default)]
pub struct Queue {
    pauses: Pauses,
    active: BTreeMap<Rank, Waiting>,
    pausing: HashMap<String, Waiting>,
    idle: HashMap<String, Waiting>,
    /// Kept out by a plugin before any attempt, by UID.
    gated: HashMap<String, Waiting>,
    /// What happened while pods are being tried, numbered.
    recent: Vec<(u64, Event)>,
    events: u64,
    trying: usize,
}

/// Says whether an event may help a pod that these plugins refused.
pub type MayHelp<'a> = &'a dyn Fn(&PodInfo, &[&'static str], &Event) -> bool;

impl Queue {
    /// An empty queue.
    pub fn new(pauses: Pauses) -> Self {
        Self { pauses, ..Self::default() }
    }

    fn take(&mut self, uid: &str) -> Option<Waiting> {
        let rank = self.active.iter().find(|(_, w)| w.pod.uid == uid).map(|(rank, _)| rank.clone());
        let active = rank.and_then(|rank| self.active.remove(&rank));
        active.or_else(|| self.pausing.remove(uid)).or_else(|| self.idle.remove(uid)).or_else(|| self.gated.remove(uid))
    }

    fn activate(&mut self, waiting: Waiting) {
        self.active.insert(waiting.rank(), waiting);
    }

    /// Puts a pod in, or its new version; `gated` says that a plugin keeps it out for now. A change of a pod that waits
    /// for something to happen may be just that.
    pub fn put(&mut self, pod: Arc<PodInfo>, gated: bool, now: Instant, may_help: MayHelp<'_>) {
        let known = self.take(&pod.uid);
        let was_idle = known.as_ref().is_some_and(|w| !w.plugins.is_empty());
        let mut waiting = known.unwrap_or_else(|| Waiting::new(pod.clone(), now));
        waiting.pod = pod;
        if gated {
            self.gated.insert(waiting.pod.uid.clone(), waiting);
        } else if was_idle && !may_help(&waiting.pod, &waiting.plugins, &Event::Itself) {
            self.idle.insert(waiting.pod.uid.clone(), waiting);
        } else if was_idle {
            self.pause(waiting, now);
        } else {
            self.activate(waiting);
        }
    }

    /// Takes a pod out for good.
    pub fn remove(&mut self, uid: &str) {
        self.take(uid);
    }

    /// The next pod to try.
    pub fn pop(&mut self, now: Instant) -> Option<Waiting> {
        self.tick(now);
        let (_, mut waiting) = self.active.pop_first()?;
        waiting.taken_at = self.events;
        self.trying += 1;
        Some(waiting)
    }

    /// An attempt ended well, or the pod is gone.
    pub fn done(&mut self) {
        self.trying = self.trying.saturating_sub(1);
        if self.trying == 0 {
            self.recent.clear();
        }
    }

    /// An attempt failed, refused by these plugins; none means that something else went wrong and that it is worth trying
    /// again soon.
    pub fn failed(&mut self, mut waiting: Waiting, plugins: Vec<&'static str>, now: Instant, may_help: MayHelp<'_>) {
        waiting.attempts += 1;
        waiting.failed = now;
        waiting.plugins = plugins;
        let missed = self.recent.iter().filter(|(number, _)| *number > waiting.taken_at);
        let helped = missed.into_iter().any(|(_, event)| may_help(&waiting.pod, &waiting.plugins, event));
        self.done();
        if waiting.plugins.is_empty() || helped {
            self.pause(waiting, now);
        } else {
            self.idle.insert(waiting.pod.uid.clone(), waiting);
        }
    }

    fn pause_of(&self, waiting: &Waiting) -> Duration {
        if waiting.attempts == 0 {
            return Duration::ZERO;
        }
        let doubled = self.pauses.initial.saturating_mul(1 << (waiting.attempts - 1).min(16));
        doubled.min(self.pauses.max)
    }

    fn pause(&mut self, waiting: Waiting, now: Instant) {
        if waiting.failed + self.pause_of(&waiting) <= now {
            self.activate(waiting);
        } else {
            self.pausing.insert(waiting.pod.uid.clone(), waiting);
        }
    }

    /// Something happened: those it may help are tried again, after their pause.
    pub fn happened(&mut self, event: &Event, now: Instant, may_help: MayHelp<'_>) {
        self.events += 1;
        if self.trying > 0 {
            self.recent.push((self.events, event.clone()));
        }
        let helped = |w: &Waiting| may_help(&w.pod, &w.plugins, event);
        let uids: Vec<String> = self.idle.values().filter(|w| helped(w)).map(|w| w.pod.uid.clone()).collect();
        for uid in uids {
            if let Some(waiting) = self.idle.remove(&uid) {
                self.pause(waiting, now);
            }
        }
    }

    /// Wakes those whose time has come.
    fn tick(&mut self, now: Instant) {
        let over: Vec<String> = self
            .pausing
            .values()
            .filter(|w| w.failed + self.pause_of(w) <= now)
            .chain(self.idle.values().filter(|w| w.failed + LEFTOVER <= now))
            .map(|w| w.pod.uid.clone())
            .collect();
        for uid in over {
            if let Some(waiting) = self.pausing.remove(&uid).or_else(|| self.idle.remove(&uid)) {
                self.activate(waiting);
            }
        }
    }

    /// When somebody's time comes next.
    pub fn next_wake(&self) -> Option<Instant> {
        let pauses = self.pausing.values().map(|w| w.failed + self.pause_of(w));
        pauses.chain(self.idle.values().map(|w| w.failed + LEFTOVER)).min()
    }

    /// Pods with a nominated node, wherever they wait.
    pub fn nominated(&self) -> impl Iterator<Item = &Arc<PodInfo>> {
        let all = self.active.values().chain(self.pausing.values()).chain(self.idle.values());
        all.map(|w| &w.pod).filter(|p| p.nominated().is_some())
    }

    /// How many are to be tried, pause, wait for something, and are kept out.
    pub fn sizes(&self) -> [usize; 4] {
        [self.active.len(), self.pausing.len(), self.idle.len(), self.gated.len()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugins::fixtures::pod;
    use serde_json::json;

    fn yes(_: &PodInfo, _: &[&'static str], _: &Event) -> bool {
        true
    }

    fn no(_: &PodInfo, _: &[&'static str], _: &Event) -> bool {
        false
    }

    fn ranked(name: &str, priority: i32) -> Arc<PodInfo> {
        pod(name, json!({"priority": priority}))
    }

    #[test]
    fn the_important_go_first_and_then_those_that_wait_longer() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        for (i, (name, priority)) in [("a", 0), ("b", 5), ("c", 0)].into_iter().enumerate() {
            queue.put(ranked(name, priority), false, now + Duration::from_millis(i as u64), &yes);
        }
        let order: Vec<String> = std::iter::from_fn(|| queue.pop(now)).map(|w| w.pod.key.name.clone()).collect();
        assert_eq!(order, ["b", "a", "c"]);
    }

    #[test]
    fn a_refused_pod_waits_for_what_may_help_and_then_for_its_pause() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.put(ranked("a", 0), false, now, &yes);
        let waiting = queue.pop(now).unwrap();
        queue.failed(waiting, vec!["NodeResourcesFit"], now, &no);
        assert!(queue.pop(now + Duration::from_secs(60)).is_none());
        queue.happened(&Event::Namespace, now, &no);
        assert_eq!(queue.sizes(), [0, 0, 1, 0]);
        queue.happened(&Event::Namespace, now, &yes);
        assert_eq!(queue.sizes(), [0, 1, 0, 0]);
        assert_eq!(queue.next_wake(), Some(now + Duration::from_secs(1)));
        assert!(queue.pop(now).is_none());
        assert!(queue.pop(now + Duration::from_secs(1)).is_some());
    }

    #[test]
    fn what_happens_during_an_attempt_is_not_missed() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.put(ranked("a", 0), false, now, &yes);
        let waiting = queue.pop(now).unwrap();
        queue.happened(&Event::Namespace, now, &yes);
        queue.failed(waiting, vec!["NodeResourcesFit"], now, &yes);
        assert_eq!(queue.sizes(), [0, 1, 0, 0]);
    }

    #[test]
    fn pauses_double_to_a_limit_and_leftovers_are_tried_after_five_minutes() {
        let (mut queue, mut now) = (Queue::default(), Instant::now());
        queue.put(ranked("a", 0), false, now, &yes);
        for pause in [1, 2, 4, 8, 10, 10] {
            let waiting = queue.pop(now).unwrap();
            queue.failed(waiting, Vec::new(), now, &no);
            assert_eq!(queue.next_wake(), Some(now + Duration::from_secs(pause)));
            now += Duration::from_secs(pause);
        }
        let waiting = queue.pop(now).unwrap();
        queue.failed(waiting, vec!["NodeName"], now, &no);
        assert!(queue.pop(now + LEFTOVER).is_some());
    }
}

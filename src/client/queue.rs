//! The work queue: a key that is added many times runs once, never in two workers at a time, and again if it was added
//! while it ran. Failed keys come back after an exponential delay (5 ms doubling to 1000 s), all keys together no faster
//! than ten per second with a burst of a hundred, as client-go's default controller limiter has it.

use base::backoff::Policy;
use parking_lot::Mutex;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet, VecDeque};
use std::fmt::Debug;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// How the delay of a failing key grows. Retries of all keys share a bucket of 100 that refills by 10 a second beside.
pub const RETRIES: Policy =
    Policy { first: Duration::from_millis(5), factor: 2.0, cap: Duration::from_secs(1000), jitter: 0.0 };

/// A shared queue of keys. Clones are the same queue.
pub struct Queue<T> {
    shared: Arc<Shared<T>>,
}

struct Shared<T> {
    state: Mutex<State<T>>,
    wake: Notify,
    retries: Policy,
}

struct State<T> {
    ready: VecDeque<T>,
    /// Keys that must run: those in `ready`, and those added while they run.
    dirty: HashSet<T>,
    running: HashSet<T>,
    /// Earliest due time of each waiting key; an entry of `due` that disagrees is stale.
    waiting: HashMap<T, Instant>,
    due: BinaryHeap<Reverse<Due<T>>>,
    sequence: u64,
    failures: HashMap<T, u32>,
    bucket: Bucket,
    closed: bool,
}

struct Due<T> {
    at: Instant,
    sequence: u64,
    key: T,
}

impl<T> PartialEq for Due<T> {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.sequence) == (other.at, other.sequence)
    }
}
impl<T> Eq for Due<T> {}
impl<T> PartialOrd for Due<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl<T> Ord for Due<T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.sequence).cmp(&(other.at, other.sequence))
    }
}

/// A token bucket that lends: each taker learns how long to wait for its token.
#[derive(Debug)]
pub(crate) struct Bucket {
    tokens: f64,
    burst: f64,
    per_second: f64,
    filled: Instant,
}

impl Bucket {
    pub(crate) fn new(burst: f64, per_second: f64, now: Instant) -> Self {
        Self { tokens: burst, burst, per_second, filled: now }
    }

    fn fill(&mut self, now: Instant) {
        let gained = now.saturating_duration_since(self.filled).as_secs_f64() * self.per_second;
        self.tokens = (self.tokens + gained).min(self.burst);
        self.filled = now;
    }

    /// Takes a token; how long until there is one.
    pub(crate) fn reserve(&mut self, now: Instant) -> Duration {
        self.fill(now);
        self.tokens -= 1.0;
        if self.tokens >= 0.0 { Duration::ZERO } else { Duration::from_secs_f64(-self.tokens / self.per_second) }
    }

    /// Takes a token if there is one.
    pub(crate) fn try_take(&mut self, now: Instant) -> bool {
        self.fill(now);
        if self.tokens < 1.0 {
            return false;
        }
        self.tokens -= 1.0;
        true
    }
}

impl<T> Clone for Queue<T> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone() }
    }
}

impl<T: Clone + Eq + Hash + Debug> Default for Queue<T> {
    fn default() -> Self {
        Self::new(RETRIES)
    }
}

impl<T: Clone + Eq + Hash + Debug> Queue<T> {
    /// An empty queue.
    pub fn new(retries: Policy) -> Self {
        let state = Mutex::new(State::new(Instant::now()));
        Self { shared: Arc::new(Shared { state, wake: Notify::new(), retries }) }
    }

    /// Asks for a run of this key as soon as a worker is free.
    pub fn add(&self, key: T) {
        let mut state = self.shared.state.lock();
        if state.add(key) {
            self.shared.wake.notify_one();
        }
    }

    /// Asks for a run of this key after `delay`, or earlier if that was asked before.
    pub fn add_after(&self, key: T, delay: Duration) {
        if delay.is_zero() {
            return self.add(key);
        }
        let mut state = self.shared.state.lock();
        if state.add_at(key, Instant::now() + delay) {
            self.shared.wake.notify_one();
        }
    }

    /// Asks for another run of a key that failed, later each time.
    pub fn add_rate_limited(&self, key: T) {
        let delay = self.shared.state.lock().failed(&key, &self.shared.retries, Instant::now());
        self.add_after(key, delay);
    }

    /// How often the key failed since it was last forgotten.
    pub fn failures(&self, key: &T) -> u32 {
        self.shared.state.lock().failures.get(key).copied().unwrap_or(0)
    }

    /// Ends a key's series of failures.
    pub fn forget(&self, key: &T) {
        self.shared.state.lock().failures.remove(key);
    }

    /// Keys that are ready to run.
    pub fn len(&self) -> usize {
        self.shared.state.lock().ready.len()
    }

    /// Whether no key is ready to run.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The next key, which the caller must give back with [`Queue::done`]; `None` once the queue is closed and drained.
    pub async fn get(&self) -> Option<T> {
        loop {
            let woken = self.shared.wake.notified();
            let next = {
                let mut state = self.shared.state.lock();
                state.promote(Instant::now());
                if let Some(key) = state.ready.pop_front() {
                    state.dirty.remove(&key);
                    state.running.insert(key.clone());
                    if !state.ready.is_empty() || state.next_due().is_some() {
                        self.shared.wake.notify_one();
                    }
                    return Some(key);
                }
                if state.closed {
                    self.shared.wake.notify_one();
                    return None;
                }
                state.next_due()
            };
            match next {
                None => woken.await,
                Some(at) => {
                    tokio::select! {
                        () = woken => {}
                        () = tokio::time::sleep_until(at) => {}
                    }
                }
            }
        }
    }

    /// Ends the run of a key; if it was added meanwhile, it is ready again.
    pub fn done(&self, key: &T) {
        let mut state = self.shared.state.lock();
        state.running.remove(key);
        if state.dirty.contains(key) {
            state.ready.push_back(key.clone());
            self.shared.wake.notify_one();
        }
    }

    /// Takes no more keys, and ends the workers when those that are ready have run.
    pub fn close(&self) {
        let mut state = self.shared.state.lock();
        state.closed = true;
        state.waiting.clear();
        state.due.clear();
        self.shared.wake.notify_one();
    }

    /// Serves the queue with so many workers until it is closed. A run that fails comes back rate limited, one that
    /// succeeds is forgotten and comes back after the time it asked for.
    pub async fn serve<F, Fut, E>(&self, workers: usize, name: &'static str, run: F)
    where
        F: Fn(T) -> Fut,
        Fut: Future<Output = Result<Option<Duration>, E>>,
        E: std::fmt::Display,
    {
        let worker = || async {
            while let Some(key) = self.get().await {
                match run(key.clone()).await {
                    Ok(again) => {
                        self.forget(&key);
                        if let Some(delay) = again {
                            self.add_after(key.clone(), delay);
                        }
                    }
                    Err(error) => {
                        tracing::warn!(controller = name, ?key, %error, "run failed, will try again");
                        self.add_rate_limited(key.clone());
                    }
                }
                self.done(&key);
            }
        };
        futures::future::join_all((0..workers.max(1)).map(|_| worker())).await;
    }
}

impl<T: Clone + Eq + Hash> State<T> {
    fn new(now: Instant) -> Self {
        Self {
            ready: VecDeque::new(),
            dirty: HashSet::new(),
            running: HashSet::new(),
            waiting: HashMap::new(),
            due: BinaryHeap::new(),
            sequence: 0,
            failures: HashMap::new(),
            bucket: Bucket::new(100.0, 10.0, now),
            closed: false,
        }
    }

    /// Counts a failure; returns how long the key must wait.
    fn failed(&mut self, key: &T, retries: &Policy, now: Instant) -> Duration {
        let failures = self.failures.entry(key.clone()).or_default();
        *failures = failures.saturating_add(1);
        let own = retries.wait(*failures);
        own.max(self.bucket.reserve(now))
    }

    /// Whether a worker has to be woken.
    fn add(&mut self, key: T) -> bool {
        if self.closed || !self.dirty.insert(key.clone()) || self.running.contains(&key) {
            return false;
        }
        self.ready.push_back(key);
        true
    }

    /// Whether the earliest due time has changed.
    fn add_at(&mut self, key: T, at: Instant) -> bool {
        if self.closed || self.waiting.get(&key).is_some_and(|known| *known <= at) {
            return false;
        }
        let first = self.next_due();
        self.waiting.insert(key.clone(), at);
        self.sequence += 1;
        self.due.push(Reverse(Due { at, sequence: self.sequence, key }));
        first.is_none_or(|first| at < first)
    }

    fn next_due(&self) -> Option<Instant> {
        self.due.peek().map(|Reverse(due)| due.at)
    }

    fn promote(&mut self, now: Instant) {
        while self.next_due().is_some_and(|at| at <= now) {
            let Some(Reverse(due)) = self.due.pop() else { return };
            if self.waiting.get(&due.key) == Some(&due.at) {
                self.waiting.remove(&due.key);
                self.add(due.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    #[tokio::test]
    async fn a_key_added_twice_runs_once() {
        let queue = Queue::default();
        queue.add("a");
        queue.add("a");
        queue.add("b");
        assert_eq!(queue.get().await, Some("a"));
        assert_eq!(queue.get().await, Some("b"));
        assert!(queue.get().now_or_never().is_none());
    }

    #[tokio::test]
    async fn a_key_added_while_it_runs_runs_again_afterwards() {
        let queue = Queue::default();
        queue.add("a");
        let key = queue.get().await.unwrap();
        queue.add("a");
        assert!(queue.get().now_or_never().is_none(), "never in two workers at a time");
        queue.done(&key);
        assert_eq!(queue.get().await, Some("a"));
        queue.done(&"a");
        assert!(queue.get().now_or_never().is_none());
    }

    #[test]
    fn the_earlier_of_two_delays_holds() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut state = State::new(start);
        assert!(state.add_at("a", at(50)));
        assert!(state.add_at("a", at(10)), "the sleeper must wake earlier");
        assert!(!state.add_at("a", at(20)));
        state.promote(at(9));
        assert!(state.ready.is_empty());
        state.promote(at(10));
        assert_eq!(state.ready, ["a"]);
        state.ready.clear();
        state.dirty.clear();
        state.promote(at(100));
        assert!(state.ready.is_empty(), "the later one is void");
    }

    #[test]
    fn failures_double_the_delay_until_forgotten() {
        let now = Instant::now();
        let mut state = State::new(now);
        let waits: Vec<_> = (0..4).map(|_| state.failed(&"a", &RETRIES, now).as_millis()).collect();
        assert_eq!(waits, [5, 10, 20, 40]);
        state.failures.remove("a");
        assert_eq!(state.failed(&"a", &RETRIES, now).as_millis(), 5);
    }

    #[test]
    fn many_failing_keys_share_a_bucket() {
        let now = Instant::now();
        let mut state = State::new(now);
        let waits: Vec<_> = (0..102).map(|key| state.failed(&key, &RETRIES, now).as_millis()).collect();
        assert!(waits[..100].iter().all(|wait| *wait == 5));
        assert_eq!(waits[100..], [100, 200]);
    }

    #[test]
    fn the_delay_is_capped() {
        assert_eq!(RETRIES.wait(40), Duration::from_secs(1000));
        assert_eq!(RETRIES.wait(4000), Duration::from_secs(1000));
    }

    #[tokio::test]
    async fn closing_drains_and_ends_all_workers() {
        let queue = Queue::default();
        for key in 0..10 {
            queue.add(key);
        }
        queue.add_after(99, Duration::from_secs(1));
        queue.close();
        queue.add(11);
        let ran = Mutex::new(Vec::new());
        queue
            .serve(3, "test", |key| {
                ran.lock().push(key);
                async { Ok::<_, String>(None) }
            })
            .await;
        ran.lock().sort_unstable();
        assert_eq!(*ran.lock(), (0..10).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn several_sleeping_workers_all_get_delayed_keys() {
        let queue: Queue<u32> = Queue::default();
        let ran = Mutex::new(Vec::new());
        let work = queue.serve(4, "test", |key| {
            ran.lock().push(key);
            async { Ok::<_, String>(None) }
        });
        let feed = async {
            for key in 0..20 {
                queue.add_after(key, Duration::from_millis(u64::from(key % 5) * 100 + 1));
            }
            tokio::time::sleep(Duration::from_millis(600)).await;
            queue.close();
        };
        futures::join!(work, feed);
        assert_eq!(ran.lock().len(), 20);
    }
}

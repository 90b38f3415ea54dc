//! Exponential delays per key, as data: when a container may start again, when an image may be pulled again.
//!
//! Nothing here reads a clock. A key that has been quiet for twice the longest delay starts afresh.

use jiff::{SignedDuration, Timestamp};
use std::collections::HashMap;

/// Delay and time of the last step of one key.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Entry {
    delay: SignedDuration,
    updated: Timestamp,
}

/// Delays of all keys.
#[derive(Clone, Debug)]
pub struct Backoff {
    first: SignedDuration,
    longest: SignedDuration,
    /// After this much quiet a key starts afresh.
    forget: SignedDuration,
    entries: HashMap<String, Entry>,
}

impl Backoff {
    /// Delays from `first`, doubling up to `longest`; forgotten after twice `forget_base` of quiet.
    pub fn new(first: SignedDuration, longest: SignedDuration, forget_base: SignedDuration) -> Self {
        Self { first, longest, forget: forget_base * 2, entries: HashMap::new() }
    }

    /// Crash loops: 10 s doubling to `longest` (300 s by default), reset after 10 minutes.
    pub fn crash_loop(longest: SignedDuration) -> Self {
        let first = SignedDuration::from_secs(10).min(longest);
        Self::new(first, longest, SignedDuration::from_secs(300))
    }

    /// Image pulls: 10 s doubling to 300 s.
    pub fn image_pull() -> Self {
        Self::crash_loop(SignedDuration::from_secs(300))
    }

    fn live(&self, key: &str, event: Timestamp) -> Option<Entry> {
        let entry = *self.entries.get(key)?;
        (event.duration_since(entry.updated) <= self.forget).then_some(entry)
    }

    /// The delay now in force for `key`.
    pub fn delay(&self, key: &str) -> SignedDuration {
        self.entries.get(key).map_or(SignedDuration::ZERO, |entry| entry.delay)
    }

    /// Until when `key` must wait after `event`, when that is later than `now`.
    pub fn waits_since(&self, key: &str, event: Timestamp, now: Timestamp) -> Option<Timestamp> {
        let until = event + self.live(key, event)?.delay;
        (now < until).then_some(until)
    }

    /// Until when `key` must wait after its own last step.
    pub fn waits(&self, key: &str, now: Timestamp) -> Option<Timestamp> {
        let entry = self.live(key, now)?;
        let until = entry.updated + entry.delay;
        (now < until).then_some(until)
    }

    /// Takes a step: the next delay of `key` is doubled, or starts afresh.
    pub fn step(&mut self, key: &str, event: Timestamp, now: Timestamp) {
        let delay = match self.live(key, event) {
            Some(entry) => (entry.delay * 2).min(self.longest),
            None => self.first,
        };
        self.entries.insert(key.into(), Entry { delay, updated: now });
    }

    /// Drops what has been quiet for long.
    pub fn collect(&mut self, now: Timestamp) {
        let forget = self.forget;
        self.entries.retain(|_, entry| now.duration_since(entry.updated) <= forget);
    }

    /// Forgets `key` and everything under it (`key/…`).
    pub fn forget(&mut self, prefix: &str) {
        self.entries.retain(|key, _| !key.starts_with(prefix));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + second).unwrap()
    }

    #[test]
    fn crash_loops_wait_10_seconds_doubling_to_300_and_reset_after_ten_minutes() {
        let mut backoff = Backoff::crash_loop(SignedDuration::from_secs(300));
        assert_eq!(backoff.waits_since("c", at(0), at(0)), None, "the first restart is at once");
        let mut now = 0;
        for expected in [10, 20, 40, 80, 160, 300, 300] {
            backoff.step("c", at(now), at(now));
            assert_eq!(backoff.waits_since("c", at(now), at(now)), Some(at(now + expected)));
            assert_eq!(backoff.waits_since("c", at(now), at(now + expected)), None);
            now += expected;
        }
        assert_eq!(backoff.waits_since("c", at(now + 601), at(now + 601)), None);
        backoff.step("c", at(now + 601), at(now + 601));
        assert_eq!(backoff.delay("c"), SignedDuration::from_secs(10));
    }
}

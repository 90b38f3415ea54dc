//! Waiting longer after each failure.

use std::time::Duration;

use rand::RngExt as _;

/// How long to wait.
#[derive(Debug, Clone, Copy)]
pub struct Policy {
    /// First wait.
    pub first: Duration,
    /// Each wait is this many times the one before.
    pub factor: f64,
    /// No wait is longer.
    pub cap: Duration,
    /// Part of the wait that is added at random: with 0.1 a wait of one second lasts 1.0 to 1.1 seconds.
    pub jitter: f64,
}

impl Policy {
    /// A policy that doubles from `first` to `cap` with a tenth of jitter.
    pub const fn doubling(first: Duration, cap: Duration) -> Self {
        Self { first, factor: 2.0, cap, jitter: 0.1 }
    }

    /// The wait after `failures` failures in a row, without jitter.
    pub fn wait(&self, failures: u32) -> Duration {
        let grown = self.first.as_secs_f64() * self.factor.powi(failures.saturating_sub(1).min(64) as i32);
        Duration::from_secs_f64(grown.min(self.cap.as_secs_f64()))
    }
}

/// Counts failures and says how long to wait.
#[derive(Debug, Clone)]
pub struct Backoff {
    policy: Policy,
    failures: u32,
}

impl Backoff {
    /// Without failures yet.
    pub const fn new(policy: Policy) -> Self {
        Self { policy, failures: 0 }
    }

    /// Notes a failure; the time to wait before the next attempt.
    pub fn failed(&mut self) -> Duration {
        self.failures = self.failures.saturating_add(1);
        jittered(self.policy.wait(self.failures), self.policy.jitter)
    }

    /// Notes a success: the next failure starts from the beginning.
    pub fn succeeded(&mut self) {
        self.failures = 0;
    }

    /// Failures in a row.
    pub fn failures(&self) -> u32 {
        self.failures
    }
}

/// Adds up to `part` of a duration to it.
pub fn jittered(d: Duration, part: f64) -> Duration {
    d + d.mul_f64(part.max(0.0) * rand::rng().random::<f64>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_the_cap_and_start_again_after_success() {
        let policy = Policy { jitter: 0.0, ..Policy::doubling(Duration::from_secs(1), Duration::from_secs(5)) };
        let mut backoff = Backoff::new(policy);
        let waits: Vec<u64> = (0..5).map(|_| backoff.failed().as_secs()).collect();
        assert_eq!(waits, [1, 2, 4, 5, 5]);
        backoff.succeeded();
        assert_eq!(backoff.failed().as_secs(), 1);
    }
}

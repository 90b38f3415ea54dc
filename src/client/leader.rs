//! Leader election by a Lease, as client-go does it: the holder renews; others take over when the lease has not changed
//! for its whole duration by their own clock, so that clocks need not agree.
//!
//! [`Ballot`] is the pure part: from what was read and when, it says what to write.

use crate::Recorder;
use crate::events::EventKind;
use crate::retry;
use base::health::Check;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{Api, ObjectMeta, PostParams};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// How long a lease holds and how it is kept.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// How long others wait after the last renewal.
    pub lease: Duration,
    /// How long the holder tries to renew before it gives up.
    pub renew: Duration,
    /// Between two attempts.
    pub retry: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self { lease: Duration::from_secs(15), renew: Duration::from_secs(10), retry: Duration::from_secs(2) }
    }
}

impl Timing {
    /// Checks the order that client-go demands.
    ///
    /// # Errors
    /// The rule that is broken.
    pub fn validate(&self) -> Result<(), &'static str> {
        const JITTER: f64 = 1.2;
        if self.lease <= self.renew {
            return Err("leaseDuration must be greater than renewDeadline");
        }
        if self.renew <= self.retry.mul_f64(JITTER) {
            return Err("renewDeadline must be greater than retryPeriod*JitterFactor");
        }
        if self.retry.is_zero() {
            return Err("retryPeriod must be greater than zero");
        }
        Ok(())
    }
}

/// What to do about the lease.
#[derive(Clone, Debug, PartialEq)]
pub enum Move {
    /// There is none: make it.
    Create(LeaseSpec),
    /// It is ours or free: write it.
    Update(LeaseSpec),
    /// Another one holds it.
    Wait,
}

/// What one candidate knows.
#[derive(Clone, Debug)]
pub struct Ballot {
    identity: String,
    timing: Timing,
    observed: LeaseSpec,
    observed_at: Instant,
}

impl Ballot {
    /// A candidate that has seen nothing yet.
    pub fn new(identity: impl Into<String>, timing: Timing, now: Instant) -> Self {
        Self { identity: identity.into(), timing, observed: LeaseSpec::default(), observed_at: now }
    }

    /// Whether this candidate holds the lease, as far as it knows.
    pub fn leads(&self) -> bool {
        self.holder() == self.identity
    }

    /// Who holds the lease, as far as this candidate knows.
    pub fn holder(&self) -> &str {
        self.observed.holder_identity.as_deref().unwrap_or_default()
    }

    /// Notes what the lease says; its age counts from the last change, by this clock.
    pub fn observe(&mut self, spec: &LeaseSpec, now: Instant) {
        if *spec != self.observed {
            self.observed = spec.clone();
            self.observed_at = now;
        }
    }

    fn expired(&self, now: Instant) -> bool {
        let seconds = self.observed.lease_duration_seconds.unwrap_or_default();
        now >= self.observed_at + Duration::from_secs(u64::try_from(seconds).unwrap_or_default())
    }

    /// What to write, given the lease as it is (`None` when there is none), which was observed before.
    pub fn decide(&self, current: Option<&LeaseSpec>, now: Instant, wall: Timestamp) -> Move {
        let Some(current) = current else { return Move::Create(self.claim(wall, wall, 0)) };
        let transitions = current.lease_transitions.unwrap_or_default();
        if current.holder_identity.as_deref() == Some(self.identity.as_str()) {
            let since = current.acquire_time.as_ref().map_or(wall, |time| time.0);
            return Move::Update(self.claim(since, wall, transitions));
        }
        let held = current.holder_identity.as_deref().is_some_and(|holder| !holder.is_empty());
        if held && !self.expired(now) {
            return Move::Wait;
        }
        Move::Update(self.claim(wall, wall, transitions + 1))
    }

    fn claim(&self, acquired: Timestamp, renewed: Timestamp, transitions: i32) -> LeaseSpec {
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: i32::try_from(self.timing.lease.as_secs()).ok(),
            acquire_time: Some(micro(acquired)),
            renew_time: Some(micro(renewed)),
            lease_transitions: Some(transitions),
            ..Default::default()
        }
    }

    /// What a holder that goes leaves behind: nobody's lease, for a second.
    pub fn release(&self, wall: Timestamp) -> LeaseSpec {
        LeaseSpec {
            holder_identity: Some(String::new()),
            lease_duration_seconds: Some(1),
            acquire_time: Some(micro(wall)),
            renew_time: Some(micro(wall)),
            lease_transitions: self.observed.lease_transitions,
            ..Default::default()
        }
    }
}

fn micro(time: Timestamp) -> MicroTime {
    MicroTime(Timestamp::from_microsecond(time.as_microsecond()).unwrap_or(time))
}

/// The lease could not be renewed in time, so another one may lead.
#[derive(Debug, thiserror::Error)]
#[error("leaderelection lost")]
pub struct Lost;

/// How long after the end of an unrenewed lease its holder still counts as healthy.
const TOLERATED: Duration = Duration::from_secs(20);

/// Tells the health endpoints of a candidate who holds the lease but does not renew it: it should have given up, and
/// hangs. One who waits for the lead is healthy.
#[derive(Clone, Debug, Default)]
pub struct Watchdog(Arc<Mutex<Option<Held>>>);

#[derive(Debug)]
struct Held {
    lease: String,
    renewed: Instant,
    duration: Duration,
}

impl Watchdog {
    /// The check that upstream calls `leaderElection`.
    pub fn check(&self) -> Check {
        let dog = self.clone();
        base::health::check(move || std::future::ready(dog.judge(Instant::now())))
    }

    fn judge(&self, now: Instant) -> Result<(), String> {
        match &*self.0.lock() {
            Some(held) if now.duration_since(held.renewed) > held.duration + TOLERATED => {
                Err(format!("failed election to renew leadership on lease {}", held.lease))
            }
            _ => Ok(()),
        }
    }

    fn renewed(&self, lease: &str, duration: Duration, now: Instant) {
        *self.0.lock() = Some(Held { lease: lease.to_owned(), renewed: now, duration });
    }

    fn ended(&self) {
        *self.0.lock() = None;
    }
}

/// A candidacy for one Lease.
pub struct Election {
    leases: Api<Lease>,
    namespace: String,
    name: String,
    timing: Timing,
    ballot: Ballot,
    lease: Option<Lease>,
    recorder: Option<Recorder>,
    watchdog: Watchdog,
}

impl Election {
    /// A candidate named after the host and a fresh UUID. With a recorder, gaining and losing the lead become events.
    pub fn new(
        client: kube::Client, namespace: &str, name: &str, timing: Timing, recorder: Option<Recorder>,
        watchdog: Watchdog,
    ) -> Self {
        let identity = format!("{}_{}", crate::hostname(), uuid::Uuid::new_v4());
        Self {
            leases: Api::namespaced(client, namespace),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            timing,
            ballot: Ballot::new(identity, timing, Instant::now()),
            lease: None,
            recorder,
            watchdog,
        }
    }

    /// Waits for the lead, then runs `work` with a token that is cancelled when the lead is lost or `stop` is. The
    /// lease is released once the work has ended.
    ///
    /// # Errors
    /// [`Lost`] when the lease was lost; the process should end, since its work was cut off.
    pub async fn lead<F, Fut>(mut self, stop: CancellationToken, work: F) -> Result<(), Lost>
    where
        F: FnOnce(CancellationToken) -> Fut,
        Fut: Future<Output = ()>,
    {
        if stop.run_until_cancelled(self.acquire()).await.is_none() {
            return Ok(());
        }
        tracing::info!(lease = %format!("{}/{}", self.namespace, self.name), "successfully acquired lease");
        self.record("became leader");
        let term = stop.child_token();
        let mut work = std::pin::pin!(work(term.clone()));
        let lost = tokio::select! {
            () = &mut work => false,
            () = self.renew(&term) => !stop.is_cancelled(),
        };
        term.cancel();
        if lost {
            self.watchdog.ended();
            self.record("stopped leading");
            return Err(Lost);
        }
        tokio::select! {
            () = &mut work => {}
            () = tokio::time::sleep(self.timing.renew) => {}
        }
        self.watchdog.ended();
        self.release().await;
        Ok(())
    }

    async fn acquire(&mut self) {
        while !self.attempt().await {
            tokio::time::sleep(self.timing.retry.mul_f64(1.0 + rand::random_range(0.0..1.2))).await;
        }
    }

    /// Renews until `term` ends or the deadline passes without a success.
    async fn renew(&mut self, term: &CancellationToken) {
        let mut renewed = Instant::now();
        loop {
            if term.run_until_cancelled(tokio::time::sleep(self.timing.retry)).await.is_none() {
                return;
            }
            let deadline = renewed + self.timing.renew;
            match tokio::time::timeout_at(deadline, self.attempt()).await {
                Ok(true) => renewed = Instant::now(),
                Ok(false) if Instant::now() < deadline => {}
                _ => {
                    tracing::error!(lease = %format!("{}/{}", self.namespace, self.name), "failed to renew lease in time");
                    return;
                }
            }
        }
    }

    /// One try to get or keep the lease.
    async fn attempt(&mut self) -> bool {
        if self.ballot.leads()
            && let Some(lease) = self.lease.clone()
            && self.write(Some(lease)).await.is_ok()
        {
            return true;
        }
        let current = match self.leases.get_opt(&self.name).await {
            Ok(current) => current,
            Err(error) => {
                tracing::warn!(%error, "error retrieving lease");
                return false;
            }
        };
        match self.write(current).await {
            Ok(written) => written,
            Err(error) if retry::is_conflict(&error) || retry::is_already_exists(&error) => false,
            Err(error) => {
                tracing::warn!(%error, "failed to update lease");
                false
            }
        }
    }

    async fn write(&mut self, current: Option<Lease>) -> kube::Result<bool> {
        let now = Instant::now();
        let spec = current.as_ref().map(|lease| lease.spec.clone().unwrap_or_default());
        if let Some(spec) = &spec {
            self.ballot.observe(spec, now);
        }
        let written = match self.ballot.decide(spec.as_ref(), now, Timestamp::now()) {
            Move::Wait => return Ok(false),
            Move::Create(spec) => {
                let metadata = ObjectMeta {
                    name: Some(self.name.clone()),
                    namespace: Some(self.namespace.clone()),
                    ..Default::default()
                };
                let lease = Lease { metadata, spec: Some(spec) };
                self.leases.create(&PostParams::default(), &lease).await?
            }
            Move::Update(spec) => {
                let lease = Lease { spec: Some(spec), ..current.unwrap_or_default() };
                self.leases.replace(&self.name, &PostParams::default(), &lease).await?
            }
        };
        let now = Instant::now();
        self.ballot.observe(&written.spec.clone().unwrap_or_default(), now);
        self.watchdog.renewed(&self.name, self.timing.lease, now);
        self.lease = Some(written);
        Ok(true)
    }

    async fn release(&mut self) {
        let Some(mut lease) = self.lease.take() else { return };
        lease.spec = Some(self.ballot.release(Timestamp::now()));
        let params = PostParams::default();
        let write = self.leases.replace(&self.name, &params, &lease);
        match tokio::time::timeout(self.timing.renew, write).await {
            Ok(Ok(_)) => self.record("stopped leading"),
            Ok(Err(error)) => tracing::warn!(%error, "failed to release lease"),
            Err(_) => tracing::warn!("failed to release lease in time"),
        }
    }

    fn record(&self, what: &str) {
        let Some(recorder) = &self.recorder else { return };
        let about = ObjectReference {
            api_version: Some("coordination.k8s.io/v1".into()),
            kind: Some("Lease".into()),
            namespace: Some(self.namespace.clone()),
            name: Some(self.name.clone()),
            ..Default::default()
        };
        let message = format!("{} {what}", self.ballot.identity);
        recorder.record(&about, EventKind::Normal, "LeaderElection", message);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WALL: Timestamp = Timestamp::UNIX_EPOCH;

    #[test]
    fn a_holder_that_does_not_renew_is_unhealthy_and_one_who_waits_is_not() {
        let (dog, start) = (Watchdog::default(), Instant::now());
        let lease = Duration::from_secs(15);
        assert_eq!(dog.judge(start), Ok(()));
        dog.renewed("kube-scheduler", lease, start);
        assert_eq!(dog.judge(start + lease + TOLERATED), Ok(()));
        let late = start + lease + TOLERATED + Duration::from_millis(1);
        let why = "failed election to renew leadership on lease kube-scheduler";
        assert_eq!(dog.judge(late), Err(why.to_owned()));
        dog.ended();
        assert_eq!(dog.judge(late), Ok(()));
    }

    fn held_by(identity: &str, renewed: i64) -> LeaseSpec {
        LeaseSpec {
            holder_identity: Some(identity.into()),
            lease_duration_seconds: Some(15),
            acquire_time: Some(MicroTime(WALL)),
            renew_time: Some(MicroTime(Timestamp::from_second(renewed).unwrap())),
            lease_transitions: Some(3),
            ..Default::default()
        }
    }

    #[test]
    fn a_missing_lease_is_created_with_no_transition() {
        let now = Instant::now();
        let ballot = Ballot::new("me", Timing::default(), now);
        let Move::Create(spec) = ballot.decide(None, now, WALL) else { panic!("should create") };
        assert_eq!(spec.holder_identity.as_deref(), Some("me"));
        assert_eq!((spec.lease_duration_seconds, spec.lease_transitions), (Some(15), Some(0)));
        assert_eq!(spec.acquire_time, spec.renew_time);
    }

    #[test]
    fn another_ones_lease_is_taken_only_after_it_stood_still_for_its_duration() {
        let start = Instant::now();
        let mut ballot = Ballot::new("me", Timing::default(), start);
        let lease = held_by("other", 0);
        ballot.observe(&lease, start);
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(ballot.decide(Some(&lease), at(14), WALL), Move::Wait);
        let renewed = held_by("other", 1);
        ballot.observe(&renewed, at(14));
        assert_eq!(ballot.decide(Some(&renewed), at(28), WALL), Move::Wait);
        let Move::Update(spec) = ballot.decide(Some(&renewed), at(29), WALL) else { panic!("should take over") };
        assert_eq!(spec.lease_transitions, Some(4));
    }

    #[test]
    fn a_skewed_clock_takes_no_lease() {
        let now = Instant::now();
        let mut ballot = Ballot::new("me", Timing::default(), now);
        let lease = held_by("other", 0);
        ballot.observe(&lease, now);
        let far_future = Timestamp::from_second(1_000_000_000).unwrap();
        assert_eq!(ballot.decide(Some(&lease), now, far_future), Move::Wait);
    }

    #[test]
    fn renewing_keeps_the_time_of_acquisition() {
        let now = Instant::now();
        let mut ballot = Ballot::new("me", Timing::default(), now);
        let lease = held_by("me", 5);
        ballot.observe(&lease, now);
        let wall = Timestamp::from_second(7).unwrap();
        let Move::Update(spec) = ballot.decide(Some(&lease), now, wall) else { panic!("should renew") };
        assert_eq!(spec.acquire_time, Some(MicroTime(WALL)));
        assert_eq!(spec.renew_time, Some(MicroTime(wall)));
        assert_eq!(spec.lease_transitions, Some(3));
    }

    #[test]
    fn a_released_lease_is_free_at_once() {
        let now = Instant::now();
        let mut ballot = Ballot::new("me", Timing::default(), now);
        let mut other = Ballot::new("other", Timing::default(), now);
        other.observe(&held_by("other", 0), now);
        let released = other.release(WALL);
        assert_eq!(released.lease_transitions, Some(3));
        ballot.observe(&released, now);
        assert!(matches!(ballot.decide(Some(&released), now, WALL), Move::Update(_)));
    }

    #[test]
    fn timings_out_of_order_are_refused() {
        assert!(Timing::default().validate().is_ok());
        let timing = Timing { renew: Duration::from_secs(15), ..Timing::default() };
        assert!(timing.validate().is_err());
    }
}

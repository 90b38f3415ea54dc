//! How long a failed pod stays before it is replaced. What rejects pods, such as a full node, would otherwise be fed new ones
//! without a pause.

use base::backoff::{Backoff, Policy};
use k8s_openapi::api::apps::v1::DaemonSet;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::time::Duration;
use tokio::time::Instant;

const POLICY: Policy =
    Policy { first: Duration::from_secs(1), factor: 2.0, cap: Duration::from_secs(15 * 60), jitter: 0.0 };
/// After this long without a failure a node starts anew.
const FORGET: Duration = Duration::from_secs(2 * 15 * 60);

/// UID of the set, the generation its status is of, and the node: another template is tried at once.
type Place = (String, i64, String);

/// The failures of daemon pods on each node.
#[derive(Default)]
pub(super) struct Failures(Mutex<HashMap<Place, Entry>>);

struct Entry {
    backoff: Backoff,
    wait: Duration,
    since: Instant,
}

fn place(set: &DaemonSet, node: &str) -> Place {
    let generation = set.status.as_ref().and_then(|status| status.observed_generation);
    (set.metadata.uid.clone().unwrap_or_default(), generation.unwrap_or(0), node.to_owned())
}

impl Failures {
    /// How long until a failed pod of this set may be replaced on this node; nothing when at once.
    pub(super) fn left(&self, set: &DaemonSet, node: &str, now: Instant) -> Option<Duration> {
        let all = self.0.lock();
        let entry = all.get(&place(set, node))?;
        entry.wait.checked_sub(now.saturating_duration_since(entry.since)).filter(|left| !left.is_zero())
    }

    /// Notes that one is being replaced.
    pub(super) fn note(&self, set: &DaemonSet, node: &str, now: Instant) {
        let mut all = self.0.lock();
        all.retain(|_, entry| now.saturating_duration_since(entry.since) <= FORGET);
        let fresh = || Entry { backoff: Backoff::new(POLICY), wait: Duration::ZERO, since: now };
        let entry = all.entry(place(set, node)).or_insert_with(fresh);
        entry.wait = entry.backoff.failed();
        entry.since = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failure_on_a_node_doubles_the_wait_there_until_the_template_changes() {
        let (failures, now) = (Failures::default(), Instant::now());
        let mut set = DaemonSet::default();
        let wait = |set: &DaemonSet, node: &str| failures.left(set, node, now).map(|left| left.as_secs());
        assert_eq!(wait(&set, "a"), None);
        failures.note(&set, "a", now);
        failures.note(&set, "a", now);
        assert_eq!((wait(&set, "a"), wait(&set, "b")), (Some(2), None));
        assert_eq!(failures.left(&set, "a", now + Duration::from_secs(2)), None);
        set.status.get_or_insert_default().observed_generation = Some(2);
        assert_eq!(wait(&set, "a"), None);
    }

    #[test]
    fn failures_of_long_ago_are_forgotten() {
        let (failures, set, now) = (Failures::default(), DaemonSet::default(), Instant::now());
        (0..9).for_each(|_| failures.note(&set, "a", now));
        let later = now + FORGET + Duration::from_secs(1);
        failures.note(&set, "a", later);
        assert_eq!(failures.left(&set, "a", later), Some(Duration::from_secs(1)));
    }
}

//! Owners that are known to be gone, so that the many dependents of one do not each ask for it.

use std::collections::HashMap;
use std::time::Duration;
use tokio::time::Instant;

/// Entries at most.
const MOST: usize = 500;
/// An entry is trusted for so long: what is gone comes back, with its UID, when a snapshot is restored.
const LIFE: Duration = Duration::from_secs(30);

/// An owner as it is referred to: its namespace, empty for cluster-scoped ones, and what stands in the reference.
pub(super) type Reference = (String, String);

/// The owners, and when they were asked for.
#[derive(Debug, Default)]
pub(super) struct Absent(HashMap<Reference, Instant>);

impl Absent {
    /// Whether an owner was just found gone.
    pub(super) fn has(&self, owner: &Reference, now: Instant) -> bool {
        self.0.get(owner).is_some_and(|asked| now.saturating_duration_since(*asked) < LIFE)
    }

    /// Notes that an owner is gone.
    pub(super) fn add(&mut self, owner: Reference, now: Instant) {
        if self.0.len() >= MOST {
            self.0.retain(|_, asked| now.saturating_duration_since(*asked) < LIFE);
        }
        if self.0.len() >= MOST {
            self.0.clear();
        }
        self.0.insert(owner, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(number: usize) -> Reference {
        ("a".into(), format!("apps/ReplicaSet/web/{number}"))
    }

    #[test]
    fn an_owner_that_was_gone_is_asked_for_again_after_a_while() {
        let (mut absent, now) = (Absent::default(), Instant::now());
        absent.add(owner(1), now);
        assert!(absent.has(&owner(1), now + LIFE / 2));
        assert!(!absent.has(&owner(1), now + LIFE));
        assert!(!absent.has(&owner(2), now));
    }

    #[test]
    fn no_more_than_some_are_remembered() {
        let (mut absent, now) = (Absent::default(), Instant::now());
        (0..MOST).for_each(|number| absent.add(owner(number), now));
        absent.add(owner(MOST), now + LIFE / 2);
        assert_eq!(absent.0.len(), 1);
    }
}

//! One resource in the cache: its entries, the log of what changed, and those who watch it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};

use super::watchers::{Cursor, Watchers};
use super::{Cached, Entries, Event, Indexed, Interest, Snapshot};
use crate::{Error, Result, Revision};

/// What a log may always hold, in bytes of entries that only the log still holds.
const LOG_BASE: usize = 8 << 20;
/// Events are worth more memory than that while they are young: upstream's figure.
const LOG_YOUNG: Duration = Duration::from_secs(75);
/// Young events may hold this part of what the resource itself holds.
const LOG_SHARE: usize = 4;
/// And there are never more than this: upstream's figure.
const LOG_EVENTS: usize = 100 * 1024;
/// What an event weighs beside its entries.
const EVENT_WEIGHT: usize = 128;
/// Rebuilt states that are kept for the next page of the same list.
const REBUILT: usize = 4;

/// Entries by the value of an indexed field.
pub(super) type Index<E> = imbl::HashMap<Arc<str>, Entries<E>>;

pub(super) struct Resource<E> {
    state: RwLock<State<E>>,
    /// Locked before `state` where both are: a watcher joins between two changes, never in the middle of one.
    watchers: Arc<Mutex<Watchers<E>>>,
    /// Older states, newest last.
    rebuilt: Mutex<VecDeque<(Revision, Entries<E>)>>,
}

struct State<E> {
    entries: Entries<E>,
    indexes: Vec<(&'static str, Index<E>)>,
    /// Bytes that the entries hold.
    weight: usize,
    log: Log<E>,
}

struct Log<E> {
    events: VecDeque<(Instant, Arc<Event<E>>)>,
    /// Every event after this revision is in the log.
    floor: Revision,
    /// Revision of the newest event, or of the state the log began with.
    last: Revision,
    weight: usize,
}

/// A change that was decoded: the new entry, or the key that was deleted.
pub(super) enum Applied<E> {
    Put(Arc<Cached<E>>),
    Deleted(Arc<str>, Revision),
}

impl<E: Indexed> Resource<E> {
    pub(super) fn new(indexes: &'static [&'static str], at: Revision) -> Self {
        let indexes = indexes.iter().map(|field| (*field, Index::new())).collect();
        let log = Log { events: VecDeque::new(), floor: at, last: at, weight: 0 };
        Self {
            state: RwLock::new(State { entries: Entries::new(), indexes, weight: 0, log }),
            watchers: Arc::new(Mutex::new(Watchers::new())),
            rebuilt: Mutex::new(VecDeque::new()),
        }
    }

    pub(super) fn get(&self, key: &str) -> Option<Arc<Cached<E>>> {
        self.state.read().entries.get(key).cloned()
    }

    pub(super) fn len(&self) -> usize {
        self.state.read().entries.len()
    }

    /// The state now. `reached` was read before: everything up to it is applied, and so is everything up to the
    /// newest event here, so this is the state at the newer of the two.
    pub(super) fn snapshot(&self, reached: Revision) -> Snapshot<E> {
        let state = self.state.read();
        Snapshot {
            revision: reached.max(state.log.last),
            entries: state.entries.clone(),
            indexes: state.indexes.clone(),
        }
    }

    /// The state at an older revision: the state now, and the log played backwards. The next page of the same list
    /// finds it made.
    pub(super) fn at(&self, revision: Revision) -> Result<Snapshot<E>> {
        let found = self.rebuilt.lock().iter().find(|(at, _)| *at == revision).map(|(_, entries)| entries.clone());
        let (mut entries, undo) = {
            let state = self.state.read();
            if revision < state.log.floor {
                return Err(Error::Compacted { oldest: state.log.floor });
            }
            match found {
                Some(entries) => (entries, Vec::new()),
                None => (state.entries.clone(), state.log.after(revision)),
            }
        };
        for event in undo.iter().rev() {
            match &event.before {
                Some(before) => entries.insert(before.key.clone(), before.clone()),
                None => entries.remove(event.key()),
            };
        }
        if !undo.is_empty() {
            let mut rebuilt = self.rebuilt.lock();
            rebuilt.push_back((revision, entries.clone()));
            while rebuilt.len() > REBUILT {
                rebuilt.pop_front();
            }
        }
        Ok(Snapshot { revision, entries, indexes: Vec::new() })
    }

    /// Replaces everything: after a list, when events are missing. Watchers are told to list again.
    pub(super) fn replace(&self, entries: Vec<Arc<Cached<E>>>, at: Revision) {
        let mut watchers = self.watchers.lock();
        let mut state = self.state.write();
        watchers.cut_all(at);
        let indexes = state.indexes.iter().map(|(field, _)| (*field, Index::new())).collect();
        let log = Log { events: VecDeque::new(), floor: at, last: at, weight: 0 };
        *state = State { entries: Entries::new(), indexes, weight: 0, log };
        for cached in entries {
            state.put(cached);
        }
        self.rebuilt.lock().clear();
    }

    /// Applies changes in order and hands them to the watchers that want them.
    pub(super) fn apply(&self, changes: Vec<Applied<E>>) {
        let mut watchers = self.watchers.lock();
        let events = self.record(changes);
        watchers.hand_out(&events);
    }

    fn record(&self, changes: Vec<Applied<E>>) -> Vec<Arc<Event<E>>> {
        let mut events = Vec::with_capacity(changes.len());
        let mut evicted = Vec::new();
        let floor = {
            let mut state = self.state.write();
            for change in changes {
                let event = match change {
                    Applied::Put(now) => {
                        let before = state.put(now.clone());
                        Event { revision: now.revision, now: Some(now), before }
                    }
                    // A key that is deleted is there, or its event was seen already.
                    Applied::Deleted(key, revision) => match state.remove(&key) {
                        Some(before) => Event { revision, now: None, before: Some(before) },
                        None => continue,
                    },
                };
                let event = Arc::new(event);
                state.record(event.clone(), &mut evicted);
                events.push(event);
            }
            state.log.floor
        };
        // Old entries are freed outside of the lock, and with them the states that were made of them.
        drop(evicted);
        self.rebuilt.lock().retain(|(at, _)| *at >= floor);
        events
    }

    /// A cursor after a revision.
    pub(super) fn watch(
        &self, interest: Interest, after: Revision, reached: tokio::sync::watch::Receiver<Revision>,
    ) -> Result<Cursor<E>> {
        let mut watchers = self.watchers.lock();
        let backlog = {
            let state = self.state.read();
            if after < state.log.floor {
                return Err(Error::Compacted { oldest: state.log.floor });
            }
            state.log.after(after)
        };
        let indexes: Vec<&'static str> = self.state.read().indexes.iter().map(|(field, _)| *field).collect();
        let slot = watchers.join(interest, after, &indexes, &backlog);
        Ok(Cursor::new(slot, Arc::downgrade(&self.watchers), reached, after))
    }
}

impl<E: Indexed> State<E> {
    fn put(&mut self, now: Arc<Cached<E>>) -> Option<Arc<Cached<E>>> {
        self.weight += now.entry.weight();
        let before = self.entries.insert(now.key.clone(), now.clone());
        if let Some(before) = &before {
            self.weight -= before.entry.weight();
        }
        for (field, index) in &mut self.indexes {
            let old = before.as_ref().and_then(|b| b.entry.index(field));
            let new = now.entry.index(field);
            if old != new {
                unindex(index, old, &now.key);
            }
            if let Some(new) = new {
                match index.get_mut(new) {
                    Some(entries) => {
                        entries.insert(now.key.clone(), now.clone());
                    }
                    None => {
                        index.insert(new.into(), Entries::unit(now.key.clone(), now.clone()));
                    }
                }
            }
        }
        before
    }

    fn remove(&mut self, key: &str) -> Option<Arc<Cached<E>>> {
        let before = self.entries.remove(key)?;
        self.weight -= before.entry.weight();
        for (field, index) in &mut self.indexes {
            unindex(index, before.entry.index(field), key);
        }
        Some(before)
    }

    /// Adds an event to the log and takes out those that it has no room for.
    fn record(&mut self, event: Arc<Event<E>>, evicted: &mut Vec<Arc<Event<E>>>) {
        let now = Instant::now();
        self.log.last = event.revision;
        self.log.weight += weight(&event);
        self.log.events.push_back((now, event));
        let most = LOG_BASE.max(self.weight / LOG_SHARE);
        while self.log.is_over(now, most) {
            let Some((_, event)) = self.log.events.pop_front() else { break };
            self.log.floor = event.revision;
            self.log.weight -= weight(&event);
            evicted.push(event);
        }
    }
}

impl<E> Log<E> {
    fn is_over(&self, now: Instant, most: usize) -> bool {
        let young = self.events.front().is_some_and(|(at, _)| now.duration_since(*at) < LOG_YOUNG);
        self.events.len() > LOG_EVENTS || self.weight > if young { most } else { LOG_BASE }
    }

    /// Events after a revision, in order.
    fn after(&self, revision: Revision) -> Vec<Arc<Event<E>>> {
        let start = self.events.partition_point(|(_, event)| event.revision <= revision);
        self.events.range(start..).map(|(_, event)| event.clone()).collect()
    }
}

/// What the log alone holds of an event: the entry that was replaced or deleted.
fn weight<E: Indexed>(event: &Event<E>) -> usize {
    EVENT_WEIGHT + event.before.as_ref().map_or(0, |before| before.entry.weight())
}

fn unindex<E>(index: &mut Index<E>, value: Option<&str>, key: &str) {
    let Some(value) = value else { return };
    let Some(entries) = index.get_mut(value) else { return };
    entries.remove(key);
    if entries.is_empty() {
        index.remove(value);
    }
}

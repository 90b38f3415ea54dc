//! Those who watch a resource: an index that finds them by what they want to see, and a bounded queue for each.
//!
//! An event costs one push per watcher that wants it, and nothing for the others. Who does not empty the queue is cut
//! off: nobody's slowness costs memory or delays others.

use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

use super::{Event, Indexed, Interest};
use crate::{Error, Result, Revision};

/// Events that may wait for one watcher.
const QUEUE: usize = 4096;

/// Which events a watcher is found by: the narrowest its interest allows.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Place {
    All,
    Prefix(Box<str>),
    Key(Box<str>),
    Field(&'static str, Box<str>),
}

/// Watchers by place.
pub(super) struct Watchers<E> {
    all: Places<E>,
    prefixes: HashMap<Box<str>, Places<E>>,
    keys: HashMap<Box<str>, Places<E>>,
    fields: HashMap<&'static str, HashMap<Box<str>, Places<E>>>,
    next: u64,
}

type Places<E> = HashMap<u64, Arc<Slot<E>>>;

/// A watcher as the cache sees it.
pub(super) struct Slot<E> {
    id: u64,
    place: Place,
    interest: Interest,
    /// Events up to here are not wanted.
    after: Revision,
    queue: Mutex<Queue<E>>,
}

struct Queue<E> {
    events: VecDeque<Arc<Event<E>>>,
    waker: Option<Waker>,
    /// Why there will be no more events: the oldest revision that can be watched from.
    cut: Option<Revision>,
}

impl<E: Indexed> Watchers<E> {
    pub(super) fn new() -> Self {
        Self { all: HashMap::new(), prefixes: HashMap::new(), keys: HashMap::new(), fields: HashMap::new(), next: 0 }
    }

    /// Adds a watcher that begins with what it wants of the backlog.
    pub(super) fn join(
        &mut self, interest: Interest, after: Revision, indexes: &[&'static str], backlog: &[Arc<Event<E>>],
    ) -> Arc<Slot<E>> {
        self.next += 1;
        let place = place(&interest, indexes);
        let queue = Queue { events: VecDeque::new(), waker: None, cut: None };
        let slot = Arc::new(Slot { id: self.next, place, interest, after, queue: Mutex::new(queue) });
        // The backlog is in the log anyway: what waits of it is not bounded again.
        slot.queue.lock().events.extend(backlog.iter().filter(|event| slot.wants(event)).cloned());
        self.places(&slot.place).insert(slot.id, slot.clone());
        slot
    }

    fn places(&mut self, place: &Place) -> &mut Places<E> {
        match place {
            Place::All => &mut self.all,
            Place::Prefix(prefix) => self.prefixes.entry(prefix.clone()).or_default(),
            Place::Key(key) => self.keys.entry(key.clone()).or_default(),
            Place::Field(field, value) => self.fields.entry(field).or_default().entry(value.clone()).or_default(),
        }
    }

    fn leave(&mut self, slot: &Slot<E>) {
        self.places(&slot.place).remove(&slot.id);
        match &slot.place {
            Place::All => {}
            Place::Prefix(prefix) => drop_empty(&mut self.prefixes, prefix),
            Place::Key(key) => drop_empty(&mut self.keys, key),
            Place::Field(field, value) => {
                if let Some(values) = self.fields.get_mut(field) {
                    drop_empty(values, value);
                }
            }
        }
    }

    /// Hands events to those who want them.
    pub(super) fn hand_out(&mut self, events: &[Arc<Event<E>>]) {
        let mut cut = Vec::new();
        for event in events {
            hand_to(&self.all, event, &mut cut);
            let key = event.key();
            if !self.prefixes.is_empty()
                && let Some(slots) = key.rfind('/').and_then(|slash| self.prefixes.get(&key[..=slash]))
            {
                hand_to(slots, event, &mut cut);
            }
            if let Some(slots) = self.keys.get(key) {
                hand_to(slots, event, &mut cut);
            }
            for (field, values) in &self.fields {
                let now = event.now.as_ref().and_then(|c| c.entry.index(field));
                let before = event.before.as_ref().and_then(|c| c.entry.index(field)).filter(|b| Some(*b) != now);
                for slots in [now, before].into_iter().flatten().filter_map(|value| values.get(value)) {
                    hand_to(slots, event, &mut cut);
                }
            }
        }
        for slot in cut {
            self.leave(&slot);
        }
    }

    /// Tells everybody to list again.
    pub(super) fn cut_all(&mut self, oldest: Revision) {
        let places = std::iter::once(&self.all)
            .chain(self.prefixes.values())
            .chain(self.keys.values())
            .chain(self.fields.values().flat_map(HashMap::values));
        for slot in places.flat_map(HashMap::values) {
            slot.cut(oldest);
        }
        *self = Self { next: self.next, ..Self::new() };
    }
}

fn drop_empty<E>(map: &mut HashMap<Box<str>, Places<E>>, key: &str) {
    if map.get(key).is_some_and(HashMap::is_empty) {
        map.remove(key);
    }
}

/// The narrowest place: a key, else an indexed field, else a whole directory of keys, else everything.
fn place(interest: &Interest, indexes: &[&'static str]) -> Place {
    if let Some(key) = &interest.key {
        return Place::Key(key.as_str().into());
    }
    match &interest.field {
        Some((field, value)) if indexes.contains(field) => return Place::Field(field, value.as_str().into()),
        _ => {}
    }
    if interest.prefix.ends_with('/') && interest.prefix != interest.resource {
        return Place::Prefix(interest.prefix.as_str().into());
    }
    Place::All
}

fn hand_to<E: Indexed>(slots: &Places<E>, event: &Arc<Event<E>>, cut: &mut Vec<Arc<Slot<E>>>) {
    for slot in slots.values().filter(|slot| slot.wants(event)) {
        if !slot.push(event) {
            cut.push(slot.clone());
        }
    }
}

impl<E: Indexed> Slot<E> {
    fn wants(&self, event: &Event<E>) -> bool {
        let has = |field: &str, value: &str| {
            let sides = [&event.now, &event.before];
            sides.into_iter().flatten().any(|cached| cached.entry.index(field) == Some(value))
        };
        let key = event.key();
        event.revision > self.after
            && self.interest.key.as_ref().is_none_or(|wanted| wanted == key)
            && (self.interest.prefix.is_empty() || key.starts_with(&self.interest.prefix))
            && self.interest.field.as_ref().is_none_or(|(field, value)| has(field, value))
    }
}

impl<E> Slot<E> {
    /// False when the queue is full and the watcher was cut off.
    fn push(&self, event: &Arc<Event<E>>) -> bool {
        let mut queue = self.queue.lock();
        if queue.events.len() >= QUEUE {
            drop(queue);
            self.cut(event.revision);
            return false;
        }
        queue.events.push_back(event.clone());
        let waker = queue.waker.take();
        drop(queue);
        if let Some(waker) = waker {
            waker.wake();
        }
        true
    }

    fn cut(&self, oldest: Revision) {
        let mut queue = self.queue.lock();
        queue.events = VecDeque::new();
        queue.cut = Some(oldest);
        if let Some(waker) = queue.waker.take() {
            waker.wake();
        }
    }
}

/// A watcher's place in the log. Bounded: one that falls too far behind is cut off and told so.
pub struct Cursor<E: Indexed> {
    slot: Arc<Slot<E>>,
    watchers: Weak<Mutex<Watchers<E>>>,
    reached: tokio::sync::watch::Receiver<Revision>,
    /// Where it began: it has seen everything up to there by definition.
    after: Revision,
}

impl<E: Indexed> Cursor<E> {
    pub(super) fn new(
        slot: Arc<Slot<E>>, watchers: Weak<Mutex<Watchers<E>>>, reached: tokio::sync::watch::Receiver<Revision>,
        after: Revision,
    ) -> Self {
        Self { slot, watchers, reached, after }
    }

    /// The next events, all that are ready, in order; waits when there are none.
    ///
    /// # Errors
    /// `Compacted` when this watcher fell behind, or the cache lost events, and its client must list again.
    pub async fn next(&mut self) -> Result<Vec<Arc<Event<E>>>> {
        poll_fn(|cx| self.poll(cx)).await
    }

    /// As [`Cursor::next`], for streams.
    ///
    /// # Errors
    /// As [`Cursor::next`].
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Vec<Arc<Event<E>>>>> {
        let mut queue = self.slot.queue.lock();
        if let Some(oldest) = queue.cut {
            return Poll::Ready(Err(Error::Compacted { oldest }));
        }
        if queue.events.is_empty() {
            // An idle watcher holds no buffer.
            queue.events = VecDeque::new();
            match &queue.waker {
                Some(waker) if waker.will_wake(cx.waker()) => {}
                _ => queue.waker = Some(cx.waker().clone()),
            }
            return Poll::Pending;
        }
        Poll::Ready(Ok(queue.events.drain(..).collect()))
    }

    /// The revision up to which this cursor has given everything it is interested in: what a bookmark may carry.
    pub fn progress(&self) -> Revision {
        // Read first: what was handed out up to here is in the queue by now, or was taken out of it.
        let reached = *self.reached.borrow();
        let queue = self.slot.queue.lock();
        match queue.events.front() {
            Some(event) => (event.revision - 1).min(reached).max(self.after),
            None => reached.max(self.after),
        }
    }
}

impl<E: Indexed> Drop for Cursor<E> {
    fn drop(&mut self) {
        if let Some(watchers) = self.watchers.upgrade() {
            watchers.lock().leave(&self.slot);
        }
    }
}

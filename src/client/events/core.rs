//! core/v1 events, by client-go's rules: equal ones become a count on the first; more than ten similar ones in ten
//! minutes are combined; a source may send 25 about an object at once, and one more every five minutes.

use super::{ATTEMPTS, Record, event_name, is_refusal, namespace_of, pause};
use crate::queue::Bucket;
use crate::retry;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Event, EventSource};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use tokio::sync::mpsc;
use tokio::time::Instant;

const CACHED: usize = 4096;
const SIMILAR: usize = 10;
const SIMILAR_WITHIN: SignedDuration = SignedDuration::from_secs(600);
const BURST: f64 = 25.0;
const PER_SECOND: f64 = 1.0 / 300.0;

/// Writes the events that come, at most at the pace of a bucket where there is one.
pub(super) async fn serve(
    client: kube::Client, component: String, host: String, mut records: mpsc::Receiver<Record>,
    mut pace: Option<Bucket>,
) {
    let mut correlator = Correlator::new(component, host);
    while let Some(record) = records.recv().await {
        let Some(write) = correlator.observe(record, Timestamp::now(), Instant::now()) else { continue };
        if let Some(pace) = &mut pace {
            tokio::time::sleep(pace.reserve(Instant::now())).await;
        }
        if let Some(event) = write_out(&client, &write).await {
            correlator.recorded(&write.key, &event);
        }
    }
}

async fn write_out(client: &kube::Client, write: &Write) -> Option<Event> {
    for attempt in 0..ATTEMPTS {
        match try_write(client, write).await {
            Ok(event) => return Some(event),
            Err(error) if is_refusal(&error) => {
                if !retry::is_already_exists(&error) {
                    tracing::debug!(%error, "server rejected event");
                }
                return None;
            }
            Err(error) => {
                tracing::warn!(%error, "unable to write event, may try again");
                pause(attempt == 0).await;
            }
        }
    }
    None
}

async fn try_write(client: &kube::Client, write: &Write) -> kube::Result<Event> {
    let namespace = write.event.metadata.namespace.as_deref().unwrap_or_default();
    let events: Api<Event> = Api::namespaced(client.clone(), namespace);
    if let Some(patch) = &write.patch {
        let name = write.event.metadata.name.as_deref().unwrap_or_default();
        match events.patch(name, &PatchParams::default(), &Patch::Strategic(patch)).await {
            Err(error) if retry::is_not_found(&error) => {}
            other => return other,
        }
    }
    events.create(&PostParams::default(), &write.event).await
}

/// A map that forgets its oldest half when it is full.
struct Bounded<K, V> {
    entries: HashMap<K, (u64, V)>,
    clock: u64,
}

impl<K: Eq + Hash + Clone, V> Bounded<K, V> {
    fn new() -> Self {
        Self { entries: HashMap::new(), clock: 0 }
    }

    fn get_or(&mut self, key: &K, default: impl FnOnce() -> V) -> &mut V {
        if self.entries.len() >= CACHED && !self.entries.contains_key(key) {
            let mut ages: Vec<u64> = self.entries.values().map(|(age, _)| *age).collect();
            ages.sort_unstable();
            let middle = ages[ages.len() / 2];
            self.entries.retain(|_, (age, _)| *age >= middle);
        }
        self.clock += 1;
        let entry = self.entries.entry(key.clone()).or_insert_with(|| (0, default()));
        entry.0 = self.clock;
        &mut entry.1
    }
}

/// The event to write: a patch of it if it was written before.
#[derive(Debug, PartialEq)]
struct Write {
    key: String,
    event: Event,
    patch: Option<Value>,
}

struct Similar {
    messages: HashSet<String>,
    last: Timestamp,
}

struct Seen {
    count: i32,
    first: Option<Time>,
    name: Option<String>,
}

struct Correlator {
    component: String,
    host: String,
    similar: Bounded<String, Similar>,
    seen: Bounded<String, Seen>,
    spam: Bounded<String, Bucket>,
}

impl Correlator {
    fn new(component: String, host: String) -> Self {
        let (similar, seen, spam) = (Bounded::new(), Bounded::new(), Bounded::new());
        Self { component, host, similar, seen, spam }
    }

    /// What to write for a record; nothing when its source says too much about this object.
    fn observe(&mut self, record: Record, now: Timestamp, instant: Instant) -> Option<Write> {
        let spam_key = object_key(&record);
        let (key, message) = self.combine(&record, now);
        let mut event = self.event(&record, message, now);
        let seen = self.seen.get_or(&key, || Seen { count: 0, first: None, name: None });
        seen.count += 1;
        if seen.count > 1 {
            event.metadata.name = seen.name.clone();
            event.first_timestamp = seen.first.clone();
            event.count = Some(seen.count);
        } else {
            seen.name = event.metadata.name.clone();
            seen.first = event.first_timestamp.clone();
        }
        let patch = (seen.count > 1)
            .then(|| json!({"count": event.count, "lastTimestamp": event.last_timestamp, "message": event.message}));
        let bucket = self.spam.get_or(&spam_key, || Bucket::new(BURST, PER_SECOND, instant));
        bucket.try_take(instant).then_some(Write { key, event, patch })
    }

    /// The key under which a record counts, and its message; from the tenth similar one on they share a key.
    fn combine(&mut self, record: &Record, now: Timestamp) -> (String, String) {
        let group = format!("{}|{}", object_key(record), record.reason);
        let fresh = || Similar { messages: HashSet::new(), last: now };
        let similar = self.similar.get_or(&group, fresh);
        if now.duration_since(similar.last) > SIMILAR_WITHIN {
            similar.messages.clear();
        }
        similar.messages.insert(record.message.clone());
        similar.last = now;
        if similar.messages.len() < SIMILAR {
            return (format!("{group}|{}", record.message), record.message.clone());
        }
        similar.messages.remove(&record.message);
        (group, format!("(combined from similar events): {}", record.message))
    }

    fn event(&self, record: &Record, message: String, now: Timestamp) -> Event {
        let time = Timestamp::from_second(now.as_second()).ok().map(Time);
        let annotations = (!record.annotations.is_empty()).then(|| record.annotations.iter().cloned().collect());
        Event {
            metadata: ObjectMeta {
                name: Some(event_name(&record.about, now)),
                namespace: Some(namespace_of(&record.about)),
                annotations,
                ..Default::default()
            },
            involved_object: record.about.clone(),
            reason: Some(record.reason.clone()),
            message: Some(message),
            source: Some(EventSource {
                component: Some(self.component.clone()),
                host: Some(self.host.clone()).filter(|host| !host.is_empty()),
            }),
            first_timestamp: time.clone(),
            last_timestamp: time,
            count: Some(1),
            type_: Some(record.kind.to_string()),
            reporting_component: Some(self.component.clone()),
            reporting_instance: Some(self.host.clone()),
            ..Default::default()
        }
    }

    /// Notes what the server has stored.
    fn recorded(&mut self, key: &String, event: &Event) {
        let seen = self.seen.get_or(key, || Seen { count: 0, first: None, name: None });
        seen.count = event.count.unwrap_or(1);
        seen.first = event.first_timestamp.clone();
        seen.name = event.metadata.name.clone();
    }
}

/// All that tells objects and types of events apart.
fn object_key(record: &Record) -> String {
    let about = &record.about;
    let parts = [&about.kind, &about.namespace, &about.name, &about.uid, &about.api_version, &about.field_path];
    let parts: Vec<&str> = parts.iter().map(|part| part.as_deref().unwrap_or_default()).collect();
    format!("{}|{}", parts.join("|"), record.kind)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::EventKind;
    use k8s_openapi::api::core::v1::ObjectReference;
    use std::time::Duration;

    fn record(name: &str, message: &str) -> Record {
        Record {
            about: ObjectReference { name: Some(name.into()), namespace: Some("a".into()), ..Default::default() },
            related: None,
            kind: EventKind::Normal,
            reason: "Pulled".into(),
            action: String::new(),
            message: message.into(),
            annotations: Vec::new(),
        }
    }

    struct Run {
        correlator: Correlator,
        wall: Timestamp,
        instant: Instant,
    }

    impl Run {
        fn new() -> Self {
            let correlator = Correlator::new("kubelet".into(), "n1".into());
            Self { correlator, wall: Timestamp::from_second(1000).unwrap(), instant: Instant::now() }
        }

        fn see(&mut self, name: &str, message: &str) -> Option<Write> {
            let write = self.correlator.observe(record(name, message), self.wall, self.instant)?;
            self.correlator.recorded(&write.key, &write.event);
            Some(write)
        }

        fn pass(&mut self, seconds: u64) {
            self.wall += Duration::from_secs(seconds);
            self.instant += Duration::from_secs(seconds);
        }
    }

    #[test]
    fn the_same_event_becomes_a_count_on_the_first() {
        let mut run = Run::new();
        let first = run.see("x", "hello").unwrap();
        assert_eq!(first.patch, None);
        run.pass(5);
        let second = run.see("x", "hello").unwrap();
        assert_eq!(second.event.metadata.name, first.event.metadata.name);
        assert_eq!(second.event.first_timestamp, first.event.first_timestamp);
        let patch = json!({"count": 2, "lastTimestamp": "1970-01-01T00:16:45Z", "message": "hello"});
        assert_eq!(second.patch, Some(patch));
    }

    #[test]
    fn other_objects_and_messages_are_events_of_their_own() {
        let mut run = Run::new();
        run.see("x", "hello");
        assert_eq!(run.see("y", "hello").unwrap().patch, None);
        assert_eq!(run.see("x", "bye").unwrap().patch, None);
    }

    #[test]
    fn the_tenth_similar_event_is_combined() {
        let mut run = Run::new();
        for n in 0..9 {
            assert_eq!(run.see("x", &format!("m{n}")).unwrap().event.message.unwrap(), format!("m{n}"));
        }
        let tenth = run.see("x", "m9").unwrap();
        assert_eq!(tenth.event.message.as_deref(), Some("(combined from similar events): m9"));
        assert_eq!(tenth.patch, None);
        let next = run.see("x", "m10").unwrap();
        assert_eq!(next.patch.unwrap()["count"], 2);
        run.pass(601);
        assert_eq!(run.see("x", "m11").unwrap().event.message.as_deref(), Some("m11"));
    }

    #[test]
    fn a_source_that_says_too_much_about_an_object_is_cut() {
        let mut run = Run::new();
        for _ in 0..25 {
            assert!(run.see("x", "hello").is_some());
        }
        assert!(run.see("x", "hello").is_none());
        assert!(run.see("y", "hello").is_some());
        run.pass(300);
        assert!(run.see("x", "hello").is_some());
        assert!(run.see("x", "hello").is_none());
    }

    #[test]
    fn a_full_cache_forgets_the_oldest() {
        let mut bounded = Bounded::new();
        for key in 0..CACHED + 1 {
            *bounded.get_or(&key, || 0) += 1;
        }
        assert!(bounded.entries.len() <= CACHED / 2 + 1);
        assert_eq!(*bounded.get_or(&CACHED, || 0), 1);
        assert_eq!(*bounded.get_or(&0, || 7), 7);
    }
}

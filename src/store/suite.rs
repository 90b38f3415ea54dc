//! What every store must do: run against memory, etcd, and the cache over both.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};

use crate::cache::{Cache, CacheStore, Decode, Indexed, Raw};
use crate::etcd::{Etcd, Options};
use crate::memory::Memory;
use crate::testing::Server;
use crate::{Change, Changes, Error, Expect, KeyValue, Result, Revision, Store};

/// A store and, where it has one, the server below it.
pub(crate) struct Subject {
    pub(crate) store: Arc<dyn Store>,
    _server: Option<Server>,
}

/// Entries that are the values themselves; indexed by their first byte.
pub(crate) struct AsStored;

#[derive(Debug)]
pub(crate) struct Stored {
    pub(crate) value: Bytes,
}

impl Decode for AsStored {
    type Entry = Stored;

    fn resource<'k>(&self, key: &'k str) -> Option<&'k str> {
        let rest = key.strip_prefix("/registry/")?;
        let end = rest.find('/')?;
        Some(&key[.."/registry/".len() + end + 1])
    }

    fn indexes(&self, _resource: &str) -> &'static [&'static str] {
        &["first"]
    }

    fn decode(&self, kv: &KeyValue) -> Stored {
        Stored { value: kv.value.clone() }
    }
}

impl Indexed for Stored {
    fn index(&self, field: &str) -> Option<&str> {
        (field == "first").then(|| std::str::from_utf8(self.value.get(..1)?).ok()).flatten()
    }

    fn weight(&self) -> usize {
        self.value.len()
    }

    fn same(&self, other: &Self) -> bool {
        self.value == other.value
    }
}

impl Raw for Stored {
    fn value(&self) -> &Bytes {
        &self.value
    }
}

async fn memory() -> Option<Subject> {
    Some(Subject { store: Arc::new(Memory::new()), _server: None })
}

async fn etcd() -> Option<Subject> {
    let server = Server::start()?;
    let options = Options { endpoints: vec![server.url()], ..Options::default() };
    let store = Etcd::connect(options).await.expect("a client");
    Some(Subject { store, _server: Some(server) })
}

async fn cached(below: Option<Subject>) -> Option<Subject> {
    let Subject { store, _server } = below?;
    let cache = Cache::start(store, "/registry/", AsStored).await.expect("a cache");
    Some(Subject { store: Arc::new(CacheStore(cache)), _server })
}

async fn cache_over_memory() -> Option<Subject> {
    cached(memory().await).await
}

async fn cache_over_etcd() -> Option<Subject> {
    cached(etcd().await).await
}

macro_rules! suite {
    ($($behaviour:ident),* $(,)?) => {
        suite!(@ memory: $($behaviour),*);
        suite!(@ etcd: $($behaviour),*);
        suite!(@ cache_over_memory: $($behaviour),*);
        suite!(@ cache_over_etcd: $($behaviour),*);
    };
    (@ $subject:ident: $($behaviour:ident),*) => {
        mod $subject {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $behaviour() {
                    if let Some(subject) = super::$subject().await {
                        super::$behaviour(&*subject.store).await;
                    }
                }
            )*
        }
    };
}

suite!(
    a_value_is_read_as_it_was_written,
    a_write_that_expects_something_else_is_refused_and_told_what_is_there,
    a_deletion_gives_what_was_deleted,
    lists_are_pages_in_key_order,
    older_states_stay_readable_until_they_are_compacted,
    the_future_is_refused,
    a_watch_gives_every_change_in_order,
    a_watch_sees_only_its_prefix,
    a_watch_from_a_compacted_revision_ends_with_an_error,
    a_watch_from_the_future_is_silent_until_then,
    a_key_with_a_time_to_live_goes_away,
    too_large_a_value_is_refused,
    concurrent_writers_lose_no_update,
    random_operations_have_the_answers_of_memory,
);

const POD: &str = "/registry/pods/default/web";

fn text(value: &Bytes) -> &str {
    std::str::from_utf8(value).expect("text")
}

fn conflict(result: Result<impl std::fmt::Debug>) -> Option<KeyValue> {
    match result {
        Err(Error::Conflict(found)) => found,
        other => panic!("a conflict expected, got {other:?}"),
    }
}

/// The next `count` changes.
async fn changes(stream: &mut Changes, count: usize) -> Vec<Change> {
    let mut seen = Vec::new();
    while seen.len() < count {
        let next = tokio::time::timeout(Duration::from_secs(20), stream.next()).await;
        seen.extend(next.expect("a change in time").expect("the stream goes on").expect("changes"));
    }
    seen
}

async fn a_value_is_read_as_it_was_written(store: &dyn Store) {
    let (missing, start) = store.get(POD).await.expect("a read");
    assert_eq!(missing, None);
    let first = store.put(POD, "one".into(), Expect::Absent, 0).await.expect("a create");
    assert_eq!(first, start + 1, "each write makes one revision");
    let (kv, at) = store.get(POD).await.expect("a read");
    let kv = kv.expect("the key is there");
    assert_eq!((text(&kv.value), kv.mod_revision, kv.create_revision, at), ("one", first, first, first));
    let second = store.put(POD, "two".into(), Expect::At(first), 0).await.expect("an update");
    let (kv, _) = store.get(POD).await.expect("a read");
    let kv = kv.expect("the key is there");
    assert_eq!((text(&kv.value), kv.mod_revision, kv.create_revision), ("two", second, first));
    assert_eq!(store.revision().await.expect("the revision"), second);
}

async fn a_write_that_expects_something_else_is_refused_and_told_what_is_there(store: &dyn Store) {
    assert_eq!(conflict(store.put(POD, "x".into(), Expect::At(7), 0).await), None);
    let first = store.put(POD, "one".into(), Expect::Absent, 0).await.expect("a create");
    let found = conflict(store.put(POD, "x".into(), Expect::Absent, 0).await).expect("what is there");
    assert_eq!((text(&found.value), found.mod_revision), ("one", first));
    let found = conflict(store.put(POD, "x".into(), Expect::At(first - 1), 0).await).expect("what is there");
    assert_eq!(found.mod_revision, first);
    let found = conflict(store.delete(POD, first - 1).await).expect("what is there");
    assert_eq!(found.mod_revision, first);
    assert_eq!(conflict(store.delete("/registry/pods/default/none", 3).await), None);
    assert_eq!(store.revision().await.expect("the revision"), first, "refused writes make no revision");
}

async fn a_deletion_gives_what_was_deleted(store: &dyn Store) {
    let first = store.put(POD, "one".into(), Expect::Absent, 0).await.expect("a create");
    let (deleted, revision) = store.delete(POD, first).await.expect("a deletion");
    assert_eq!((text(&deleted.value), deleted.mod_revision, revision), ("one", first, first + 1));
    assert_eq!(store.get(POD).await.expect("a read"), (None, revision));
    let again = store.put(POD, "two".into(), Expect::Absent, 0).await.expect("a create");
    let (kv, _) = store.get(POD).await.expect("a read");
    assert_eq!(kv.expect("the key is there").create_revision, again, "a new key, not the old one");
}

async fn lists_are_pages_in_key_order(store: &dyn Store) {
    for name in ["b", "a", "c", "d"] {
        store.put(&format!("/registry/pods/x/{name}"), name.into(), Expect::Absent, 0).await.expect("a create");
    }
    store.put("/registry/pods/xy/e", "e".into(), Expect::Absent, 0).await.expect("a create");
    let last = store.put("/registry/podtemplates/x/f", "f".into(), Expect::Absent, 0).await.expect("a create");

    let names = |items: &[KeyValue]| items.iter().map(|kv| text(&kv.value).to_string()).collect::<String>();
    let all = store.list("/registry/pods/", "", 0, 0).await.expect("a list");
    assert_eq!((names(&all.items), all.more, all.count, all.revision), ("abcde".into(), false, 5, last));
    let part = store.list("/registry/pods/x/", "", 0, 0).await.expect("a list");
    assert_eq!(names(&part.items), "abcd", "a prefix with its slash keeps namespaces apart");
    let page = store.list("/registry/pods/x/", "", 3, 0).await.expect("a page");
    assert_eq!((names(&page.items), page.more, page.count), ("abc".into(), true, 4));
    let page = store.list("/registry/pods/x/", "/registry/pods/x/c\0", 3, page.revision).await.expect("a page");
    assert_eq!((names(&page.items), page.more, page.count), ("d".into(), false, 1));
    let none = store.list("/registry/nothing/", "", 3, 0).await.expect("a list");
    assert_eq!((none.items.len(), none.more, none.count, none.revision), (0, false, 0, last));
}

async fn older_states_stay_readable_until_they_are_compacted(store: &dyn Store) {
    let first = store.put(POD, "one".into(), Expect::Absent, 0).await.expect("a create");
    let second = store.put(POD, "two".into(), Expect::At(first), 0).await.expect("an update");
    let (_, third) = store.delete(POD, second).await.expect("a deletion");
    store.put("/registry/pods/default/other", "x".into(), Expect::Absent, 0).await.expect("a create");
    // The state that a cache alone still has is no less right than the one that everybody has.
    store.revision().await.expect("the revision");
    for (at, value) in [(first, Some("one")), (second, Some("two")), (third, None)] {
        let page = store.list("/registry/pods/", "", 0, at).await.expect("an older state");
        assert_eq!(page.items.first().map(|kv| text(&kv.value)), value, "at {at}");
        assert_eq!(page.revision, at);
    }
    store.compact(third).await.expect("a compaction");
    let gone = store.list("/compacted/", "", 0, second).await;
    assert!(matches!(gone, Err(Error::Compacted { .. })), "{gone:?}");
    assert!(store.list("/compacted/", "", 0, third).await.is_ok(), "the compacted revision itself is still there");
    let twice = store.compact(second).await;
    assert!(matches!(twice, Err(Error::Compacted { .. })), "{twice:?}");
}

async fn the_future_is_refused(store: &dyn Store) {
    let now = store.put(POD, "one".into(), Expect::Absent, 0).await.expect("a create");
    match store.list("/registry/pods/", "", 0, now + 1000).await {
        Err(Error::Future { wanted, current }) => assert_eq!((wanted, current), (now + 1000, now)),
        other => panic!("{other:?}"),
    }
    let compaction = store.compact(now + 1000).await;
    assert!(matches!(compaction, Err(Error::Future { .. })), "{compaction:?}");
}

async fn a_watch_gives_every_change_in_order(store: &dyn Store) {
    let before = store.put(POD, "zero".into(), Expect::Absent, 0).await.expect("a create");
    let mut now = store.watch("/registry/pods/", 0).await.expect("a watch");
    let first = store.put(POD, "one".into(), Expect::At(before), 0).await.expect("an update");
    let (_, second) = store.delete(POD, first).await.expect("a deletion");
    let third = store.put(POD, "two".into(), Expect::Absent, 0).await.expect("a create");
    let want = [(Some("one".into()), before, first), (None, 0, second), (Some("two".into()), third, third)];
    let shape = |change: &Change| (change.value.clone(), change.create_revision, change.revision);
    let seen = changes(&mut now, 3).await;
    assert_eq!(seen.iter().map(shape).collect::<Vec<_>>(), want);
    assert!(seen.iter().all(|change| &*change.key == POD));

    let mut late = store.watch("/registry/pods/", first).await.expect("a watch from the past");
    assert_eq!(changes(&mut late, 2).await.iter().map(shape).collect::<Vec<_>>(), want[1..]);
}

async fn a_watch_sees_only_its_prefix(store: &dyn Store) {
    let mut one = store.watch("/registry/pods/a/", 0).await.expect("a watch");
    let mut all = store.watch("", 0).await.expect("a watch of everything");
    for key in ["/registry/pods/ab/x", "/registry/nodes/a", "/elsewhere", "/registry/pods/a/x"] {
        store.put(key, key.into(), Expect::Absent, 0).await.expect("a create");
    }
    assert_eq!(&*changes(&mut one, 1).await[0].key, "/registry/pods/a/x");
    assert_eq!(changes(&mut all, 4).await.len(), 4);
}

async fn a_watch_from_a_compacted_revision_ends_with_an_error(store: &dyn Store) {
    let mut revision = store.put("/compacted/x", "0".into(), Expect::Absent, 0).await.expect("a create");
    let first = revision;
    for round in 1..5 {
        let value = Bytes::from(round.to_string());
        revision = store.put("/compacted/x", value, Expect::At(revision), 0).await.expect("an update");
    }
    store.compact(revision).await.expect("a compaction");
    let outcome = match store.watch("/compacted/", first).await {
        Ok(mut stream) => stream.next().await.expect("an error before the end").map(|_| ()),
        Err(error) => Err(error),
    };
    match outcome {
        Err(Error::Compacted { oldest }) => assert_eq!(oldest, revision),
        other => panic!("{other:?}"),
    }
    let mut stream = store.watch("/compacted/", revision - 1).await.expect("a watch of what is left");
    assert_eq!(changes(&mut stream, 1).await[0].revision, revision);
}

async fn a_watch_from_the_future_is_silent_until_then(store: &dyn Store) {
    let now = store.put(POD, "0".into(), Expect::Absent, 0).await.expect("a create");
    let mut stream = store.watch("/registry/pods/", now + 2).await.expect("a watch");
    let mut revision = now;
    for round in 1..=3 {
        revision = store.put(POD, round.to_string().into(), Expect::At(revision), 0).await.expect("an update");
    }
    let seen = changes(&mut stream, 1).await;
    assert_eq!(seen.iter().map(|c| c.revision).collect::<Vec<_>>(), [now + 3]);
}

async fn a_key_with_a_time_to_live_goes_away(store: &dyn Store) {
    let mut stream = store.watch("/registry/events/", 0).await.expect("a watch");
    let kept = store.put("/registry/events/a/kept", "x".into(), Expect::Absent, 1).await.expect("a create");
    store.put("/registry/events/a/gone", "x".into(), Expect::Absent, 1).await.expect("a create");
    store.put("/registry/events/a/kept", "y".into(), Expect::At(kept), 0).await.expect("an update without a TTL");
    let seen = changes(&mut stream, 4).await;
    assert_eq!((&*seen[3].key, &seen[3].value), ("/registry/events/a/gone", &None));
    let left = store.list("/registry/events/", "", 0, 0).await.expect("a list");
    assert_eq!(left.items.len(), 1, "a write without a TTL takes the key off its lease");
}

async fn too_large_a_value_is_refused(store: &dyn Store) {
    for size in [1600 * 1024, 3 * 1024 * 1024] {
        let value = Bytes::from(vec![b'x'; size]);
        let refused = store.put(POD, value, Expect::Absent, 0).await;
        assert!(matches!(refused, Err(Error::TooLarge)), "{size}: {refused:?}");
    }
    let value = Bytes::from(vec![b'x'; 1400 * 1024]);
    store.put(POD, value, Expect::Absent, 0).await.expect("what is just not too large");
    assert_eq!(store.list("/registry/pods/", "", 0, 0).await.expect("a list").items[0].value.len(), 1400 * 1024);
}

async fn concurrent_writers_lose_no_update(store: &dyn Store) {
    const WRITERS: usize = 8;
    const ROUNDS: usize = 25;
    let start = store.put(POD, "0".into(), Expect::Absent, 0).await.expect("a create");
    let mut stream = store.watch("/registry/pods/", start).await.expect("a watch");
    let increment = async || {
        let mut revisions = Vec::new();
        for _ in 0..ROUNDS {
            let (kv, _) = store.get(POD).await.expect("a read");
            let mut kv = kv.expect("the key is there");
            let done = loop {
                let next: usize = text(&kv.value).parse::<usize>().expect("a number") + 1;
                match store.put(POD, next.to_string().into(), Expect::At(kv.mod_revision), 0).await {
                    Ok(revision) => break revision,
                    Err(Error::Conflict(Some(found))) => kv = found,
                    Err(error) => panic!("{error}"),
                }
            };
            revisions.push(done);
        }
        revisions
    };
    let revisions = futures::future::join_all((0..WRITERS).map(|_| increment())).await.concat();
    assert_eq!(revisions.iter().collect::<HashSet<_>>().len(), WRITERS * ROUNDS, "each write has its own revision");
    let seen = changes(&mut stream, WRITERS * ROUNDS).await;
    let values: Vec<usize> =
        seen.iter().map(|c| text(c.value.as_ref().expect("a value")).parse().expect("a number")).collect();
    assert_eq!(values, (1..=WRITERS * ROUNDS).collect::<Vec<_>>(), "the watch saw each, in order");
}

/// The same operations on this store and on one in memory: answers and revisions are equal.
async fn random_operations_have_the_answers_of_memory(store: &dyn Store) {
    let seed = rand::random();
    println!("seed {seed}");
    let mut rng = rand::rngs::StdRng::seed_from_u64(seed);
    let model = Memory::new();
    let keys: Vec<String> = (0..6).map(|n| format!("/registry/pods/n{}/p{}", n % 2, n)).collect();
    let mut known: Vec<Revision> = vec![1];
    for step in 0..300 {
        let key = keys.choose(&mut rng).expect("a key");
        let revision = *known.choose(&mut rng).expect("a revision");
        let current = model.get(key).await.expect("memory").0.map(|kv| kv.mod_revision);
        let guess = if rng.random_bool(0.8) { current.unwrap_or(revision) } else { revision };
        let (here, there) = match rng.random_range(0..6) {
            0 | 1 => {
                let expect = if current.is_none() { Expect::Absent } else { Expect::At(guess) };
                let value = Bytes::from(step.to_string());
                let here = store.put(key, value.clone(), expect, 0).await;
                let there = model.put(key, value, expect, 0).await;
                known.extend(there.iter().copied());
                (format!("{here:?}"), format!("{there:?}"))
            }
            2 => {
                let (here, there) = (store.delete(key, guess).await, model.delete(key, guess).await);
                known.extend(there.iter().map(|(_, revision)| *revision));
                (format!("{here:?}"), format!("{there:?}"))
            }
            3 => (format!("{:?}", store.get(key).await), format!("{:?}", model.get(key).await)),
            4 => {
                let limit = rng.random_range(0..4);
                let here = store.list("/registry/pods/n1/", "", limit, 0).await;
                (format!("{here:?}"), format!("{:?}", model.list("/registry/pods/n1/", "", limit, 0).await))
            }
            _ => {
                let here = store.list("/registry/pods/", key, 2, revision).await;
                (format!("{here:?}"), format!("{:?}", model.list("/registry/pods/", key, 2, revision).await))
            }
        };
        assert_eq!(here, there, "seed {seed}, step {step}, {key}");
    }
    let end = model.revision().await.expect("memory");
    let from = known[known.len() / 2];
    let mut here = store.watch("/registry/pods/", from).await.expect("a watch");
    let mut there = model.watch("/registry/pods/", from).await.expect("a watch");
    let count = usize::try_from(end - from).expect("a count");
    assert_eq!(changes(&mut here, count).await, changes(&mut there, count).await, "seed {seed}, from {from}");
}

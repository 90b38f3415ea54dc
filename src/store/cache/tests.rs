//! What the cache adds to a store: snapshots, its log, watchers, consistent reads, and recovery.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::PollNext;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use tokio::sync::Notify;

use super::{Cache, CacheStore, Cursor, Event, Interest, differences};
use crate::etcd::{Etcd, Options};
use crate::memory::Memory;
use crate::suite::{AsStored, Stored};
use crate::testing::Server;
use crate::{Changes, Error, Expect, KeyValue, Page, Result, Revision, Store};

const PODS: &str = "/registry/pods/";
const ROOT: &str = "/registry/";

type Pods = Arc<Cache<AsStored>>;

/// A store in memory whose questions can be counted and held, and whose watches can be broken.
#[derive(Default)]
struct Odd {
    below: Memory,
    questions: AtomicUsize,
    hold: Option<Notify>,
    breaks: Mutex<Vec<tokio::sync::mpsc::UnboundedSender<Result<Vec<crate::Change>>>>>,
}

#[async_trait]
impl Store for Odd {
    async fn get(&self, key: &str) -> Result<(Option<KeyValue>, Revision)> {
        self.below.get(key).await
    }
    async fn list(&self, prefix: &str, from: &str, limit: usize, at: Revision) -> Result<Page> {
        self.below.list(prefix, from, limit, at).await
    }
    async fn put(&self, key: &str, value: Bytes, expect: Expect, ttl: i64) -> Result<Revision> {
        self.below.put(key, value, expect, ttl).await
    }
    async fn delete(&self, key: &str, expect: Revision) -> Result<(KeyValue, Revision)> {
        self.below.delete(key, expect).await
    }
    async fn watch(&self, prefix: &str, after: Revision) -> Result<Changes> {
        let (sender, receiver) = tokio::sync::mpsc::unbounded_channel();
        self.breaks.lock().expect("no panic under the lock").push(sender);
        let broken = tokio_stream::wrappers::UnboundedReceiverStream::new(receiver);
        let below = self.below.watch(prefix, after).await?;
        let merged = futures::stream::select_with_strategy(broken, below, |_: &mut ()| PollNext::Left);
        Ok(Box::pin(merged))
    }
    async fn revision(&self) -> Result<Revision> {
        self.questions.fetch_add(1, Ordering::SeqCst);
        if let Some(hold) = &self.hold {
            hold.notified().await;
        }
        self.below.revision().await
    }
    async fn compact(&self, before: Revision) -> Result<()> {
        self.below.compact(before).await
    }
}

async fn over(store: Arc<dyn Store>) -> Pods {
    Cache::start(store, ROOT, AsStored).await.expect("a cache")
}

/// Writes whatever stands there.
async fn put(store: &dyn Store, key: &str, value: impl Into<Bytes>) -> Revision {
    let value = value.into();
    let mut expect = Expect::Absent;
    loop {
        match store.put(key, value.clone(), expect, 0).await {
            Ok(revision) => return revision,
            Err(Error::Conflict(found)) => expect = found.map_or(Expect::Absent, |kv| Expect::At(kv.mod_revision)),
            Err(error) => panic!("{error}"),
        }
    }
}

async fn delete(store: &dyn Store, key: &str) -> Option<Revision> {
    let (found, _) = store.get(key).await.expect("a read");
    Some(store.delete(key, found?.mod_revision).await.expect("a deletion").1)
}

fn pods(prefix: &str) -> Interest {
    Interest { resource: PODS.into(), prefix: prefix.into(), ..Interest::default() }
}

async fn take(cursor: &mut Cursor<Stored>, count: usize) -> Vec<Arc<Event<Stored>>> {
    let mut seen = Vec::new();
    while seen.len() < count {
        let next = tokio::time::timeout(Duration::from_secs(20), cursor.next()).await;
        seen.extend(next.expect("events in time").expect("not cut off"));
    }
    seen
}

fn shape(event: &Event<Stored>) -> (Revision, String, Option<Bytes>, Option<Bytes>) {
    let value = |side: &Option<Arc<super::Cached<Stored>>>| side.as_ref().map(|c| c.entry.value.clone());
    (event.revision, event.key().to_string(), value(&event.before), value(&event.now))
}

#[tokio::test]
async fn a_snapshot_stays_as_it_is_while_the_cache_moves_on() {
    let store = Arc::new(Memory::new());
    put(&*store, "/registry/pods/a/x", "1").await;
    let cache = over(store.clone()).await;
    let held = cache.snapshot(PODS);
    put(&*store, "/registry/pods/a/x", "2").await;
    put(&*store, "/registry/pods/a/y", "1").await;
    let now = cache.refresh().await.expect("a refresh");
    assert_eq!((held.entries.len(), &held.entries["/registry/pods/a/x"].entry.value[..]), (1, &b"1"[..]));
    let fresh = cache.snapshot(PODS);
    assert_eq!((fresh.entries.len(), fresh.revision), (2, now));
    assert_eq!(cache.get("/registry/pods/a/x").expect("there").entry.value, "2");
}

#[tokio::test]
async fn the_revision_of_a_snapshot_is_the_stores_not_that_of_its_newest_item() {
    let store = Arc::new(Memory::new());
    put(&*store, "/registry/pods/a/x", "1").await;
    let cache = over(store.clone()).await;
    let last = put(&*store, "/registry/nodes/n", "1").await;
    cache.refresh().await.expect("a refresh");
    assert_eq!(cache.snapshot(PODS).revision, last);
    assert_eq!(cache.snapshot("/registry/nothing/").revision, last);
}

#[tokio::test]
async fn one_question_serves_all_who_wait_and_no_one_who_came_later() {
    let store = Arc::new(Odd { hold: Some(Notify::new()), ..Odd::default() });
    let cache = over(store.clone()).await;
    let ask = |cache: &Pods| {
        let cache = cache.clone();
        tokio::spawn(async move { cache.refresh().await })
    };
    let questions = |count: usize| {
        let store = store.clone();
        async move {
            while store.questions.load(Ordering::SeqCst) < count {
                tokio::task::yield_now().await;
            }
        }
    };
    let first = ask(&cache);
    questions(1).await;
    let later: Vec<_> = (0..100).map(|_| ask(&cache)).collect();
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    let hold = store.hold.as_ref().expect("a hold");
    hold.notify_one();
    first.await.expect("no panic").expect("the first is answered");
    assert!(later.iter().all(|task| !task.is_finished()), "an answer that was asked for before is not theirs");
    let written = put(&store.below, "/registry/pods/a/x", "1").await;
    questions(2).await;
    hold.notify_one();
    for task in later {
        assert_eq!(task.await.expect("no panic").expect("an answer"), written);
    }
    assert_eq!(store.questions.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn every_older_state_in_the_log_can_be_had_again() {
    let store = Arc::new(Memory::new());
    let cache = over(store.clone()).await;
    let mut rng = rand::rngs::StdRng::seed_from_u64(7);
    for step in 0..200 {
        let key = format!("/registry/pods/a/{}", rng.random_range(0..9));
        if rng.random_bool(0.3) {
            delete(&*store, &key).await;
        } else {
            put(&*store, &key, step.to_string()).await;
        }
    }
    let end = cache.refresh().await.expect("a refresh");
    for at in 1..=end {
        let want = store.list(PODS, "", 0, at).await.expect("memory has it").items;
        let state = cache.snapshot_at(PODS, at).expect("the log has it");
        let got: Vec<_> = state.entries.iter().map(|(key, c)| (key.clone(), c.revision)).collect();
        assert_eq!(got, want.into_iter().map(|kv| (kv.key, kv.mod_revision)).collect::<Vec<_>>(), "at {at}");
    }
    assert!(matches!(cache.snapshot_at(PODS, end + 1), Err(Error::Future { .. })));
}

#[tokio::test]
async fn each_watcher_gets_what_it_wants_whatever_it_is_found_by() {
    let store = Arc::new(Memory::new());
    let cache = over(store.clone()).await;
    let mut rng = rand::rngs::StdRng::seed_from_u64(11);
    let values = ["a", "b", "c"];
    let mut watchers = Vec::new();
    let mut all = cache.watch(pods(""), 0).expect("a watch");
    let start = cache.revision();
    for step in 0..400 {
        if step % 20 == 0 {
            let interest = match rng.random_range(0..5) {
                0 => pods(""),
                1 => pods(PODS),
                2 => pods("/registry/pods/n1/"),
                3 => Interest { key: Some("/registry/pods/n0/3".into()), ..pods("") },
                _ => {
                    let value = values.choose(&mut rng).expect("a value").to_string();
                    let prefix = ["", "/registry/pods/n0/"].choose(&mut rng).expect("a prefix");
                    Interest { field: Some(("first", value)), ..pods(prefix) }
                }
            };
            let now = cache.refresh().await.expect("a refresh");
            let after = if rng.random_bool(0.5) { now } else { rng.random_range(start..=now) };
            watchers.push((interest.clone(), after, cache.watch(interest, after).expect("a watch")));
        }
        let key = format!("/registry/pods/n{}/{}", rng.random_range(0..2), rng.random_range(0..6));
        if rng.random_bool(0.25) {
            delete(&*store, &key).await;
        } else {
            put(&*store, &key, format!("{}{step}", values.choose(&mut rng).expect("a value"))).await;
        }
    }
    let end = cache.refresh().await.expect("a refresh");
    let events = take(&mut all, usize::try_from(end - start).expect("a count")).await;
    for (interest, after, mut cursor) in watchers {
        let first = |side: &Option<Bytes>, value: &str| side.as_ref().is_some_and(|v| v.starts_with(value.as_bytes()));
        let want: Vec<_> = events
            .iter()
            .map(|event| shape(event))
            .filter(|(revision, key, before, now)| {
                *revision > after
                    && key.starts_with(&interest.prefix)
                    && interest.key.as_ref().is_none_or(|k| k == key)
                    && interest.field.as_ref().is_none_or(|(_, v)| first(before, v) || first(now, v))
            })
            .collect();
        let got: Vec<_> = take(&mut cursor, want.len()).await.iter().map(|event| shape(event)).collect();
        assert_eq!(got, want, "{interest:?} after {after}");
        assert_eq!(cursor.progress(), end, "and it knows that there is nothing more");
    }
}

#[tokio::test]
async fn indexed_entries_are_found_without_looking_at_others() {
    let store = Arc::new(Memory::new());
    let cache = over(store.clone()).await;
    let by_scan = |first: &str| {
        let snapshot = cache.snapshot(PODS);
        let fits = |value: &Bytes| value.starts_with(first.as_bytes());
        snapshot.entries.iter().filter(|(_, c)| fits(&c.entry.value)).map(|(k, _)| k.clone()).collect::<Vec<_>>()
    };
    let mut rng = rand::rngs::StdRng::seed_from_u64(13);
    for step in 0..300 {
        let key = format!("/registry/pods/a/{}", rng.random_range(0..20));
        if rng.random_bool(0.3) {
            delete(&*store, &key).await;
        } else {
            put(&*store, &key, format!("{}{step}", ["a", "b", "c"].choose(&mut rng).expect("a value"))).await;
        }
        cache.refresh().await.expect("a refresh");
        for first in ["a", "b", "z"] {
            let found = cache.snapshot(PODS).by_field("first", first).expect("the field is indexed");
            assert_eq!(found.keys().cloned().collect::<Vec<_>>(), by_scan(first));
        }
    }
    assert!(cache.snapshot(PODS).by_field("second", "a").is_none());
}

#[tokio::test]
async fn a_watcher_that_lags_is_cut_off_and_the_others_are_not() {
    let store = Arc::new(Memory::new());
    let cache = over(store.clone()).await;
    let mut slow = cache.watch(pods(""), 0).expect("a watch");
    let mut quick = cache.watch(pods(""), 0).expect("a watch");
    let mut elsewhere = cache.watch(pods("/registry/pods/b/"), 0).expect("a watch");
    let mut seen = 0;
    for step in 0..5000 {
        put(&*store, "/registry/pods/a/x", step.to_string()).await;
        if step % 500 == 0 {
            cache.refresh().await.expect("a refresh");
            seen += quick.next().await.expect("the quick one goes on").len();
        }
    }
    let end = put(&*store, "/registry/pods/b/y", "1").await;
    cache.refresh().await.expect("a refresh");
    assert!(matches!(slow.next().await, Err(Error::Compacted { .. })), "cut off rather than given a gap");
    assert!(matches!(slow.next().await, Err(Error::Compacted { .. })), "and it stays so");
    seen += take(&mut quick, 5001 - seen).await.len();
    assert_eq!(seen, 5001);
    assert_eq!(take(&mut elsewhere, 1).await[0].revision, end, "what it did not want cost it nothing");
}

#[tokio::test]
async fn progress_never_promises_what_was_not_given() {
    let store = Arc::new(Memory::new());
    let cache = over(store.clone()).await;
    let mut cursor = cache.watch(pods(""), 0).expect("a watch");
    let start = cursor.progress();
    let first = put(&*store, "/registry/pods/a/x", "1").await;
    put(&*store, "/registry/pods/a/x", "2").await;
    let end = put(&*store, "/registry/nodes/n", "1").await;
    cache.refresh().await.expect("a refresh");
    assert_eq!((start, cursor.progress()), (first - 1, first - 1));
    take(&mut cursor, 2).await;
    assert_eq!(cursor.progress(), end, "what others do counts, too");
    let future = cache.watch(pods(""), end + 5).expect("a watch");
    assert_eq!(future.progress(), end + 5, "and nobody is sent back");
}

#[tokio::test]
async fn the_log_is_bounded_by_what_it_holds() {
    let store = Arc::new(Memory::new());
    let cache = over(store.clone()).await;
    let start = cache.revision();
    let large = Bytes::from(vec![b'a'; 1 << 20]);
    for _ in 0..12 {
        put(&*store, "/registry/pods/a/x", large.clone()).await;
    }
    let end = cache.refresh().await.expect("a refresh");
    let lost = cache.watch(pods(""), start).err();
    let Some(Error::Compacted { oldest }) = lost else { panic!("{lost:?}") };
    assert!(oldest > start && oldest < end, "{oldest}");
    assert!(cache.watch(pods(""), oldest).is_ok());
    assert!(matches!(cache.snapshot_at(PODS, start), Err(Error::Compacted { .. })));
    assert!(cache.snapshot_at(PODS, oldest).is_ok());
    assert!(cache.watch(Interest { resource: "/registry/nodes/".into(), ..Interest::default() }, start).is_ok());
}

#[tokio::test]
async fn a_broken_watch_is_made_good_by_a_list_and_watchers_are_told() {
    let store = Arc::new(Odd::default());
    put(&store.below, "/registry/pods/a/gone", "1").await;
    let cache = over(store.clone()).await;
    let mut cursor = cache.watch(pods(""), 0).expect("a watch");
    let before = cache.revision();
    let broken = std::mem::take(&mut *store.breaks.lock().expect("no panic under the lock"));
    // The break comes first; what is written now is learned by listing.
    for sender in broken {
        sender.send(Err(Error::Compacted { oldest: 9 })).expect("the cache listens");
    }
    delete(&store.below, "/registry/pods/a/gone").await;
    put(&store.below, "/registry/pods/a/new", "1").await;
    assert!(matches!(cursor.next().await, Err(Error::Compacted { .. })));
    let end = cache.refresh().await.expect("a refresh");
    assert_eq!(cache.snapshot(PODS).entries.keys().map(|k| &**k).collect::<Vec<_>>(), ["/registry/pods/a/new"]);
    assert!(matches!(cache.watch(pods(""), before), Err(Error::Compacted { .. })));
    assert_eq!(differences(&cache, ROOT).await.expect("a check"), []);
    let mut again = cache.watch(pods(""), end).expect("a watch");
    put(&store.below, "/registry/pods/a/new", "2").await;
    assert_eq!(take(&mut again, 1).await.len(), 1);
}

#[tokio::test]
async fn the_checker_sees_what_differs() {
    let store = Arc::new(Memory::new());
    put(&*store, "/registry/pods/a/x", "1").await;
    put(&*store, "/registry/pods/a/y", "1").await;
    let cache = over(store.clone()).await;
    assert_eq!(differences(&cache, ROOT).await.expect("a check"), []);
    // A change that the store never made.
    let forged = cache.decode(&KeyValue {
        key: "/registry/pods/a/x".into(),
        value: "2".into(),
        mod_revision: 2,
        create_revision: 2,
    });
    let resource = cache.existing(PODS).expect("pods are there");
    resource.apply(vec![super::resource::Applied::Put(forged)]);
    let found = differences(&cache, ROOT).await.expect("a check");
    assert_eq!(
        found.iter().map(|d| (d.key.as_str(), d.store, d.cache)).collect::<Vec<_>>(),
        [("/registry/pods/a/x", Some(2), Some(2))]
    );
}

/// One operation of a history: when it ran, on which key, and the revision it wrote or saw.
#[derive(Debug, Clone, Copy)]
struct Operation {
    start: Instant,
    end: Instant,
    key: usize,
    revision: Revision,
    write: bool,
}

/// Versioned registers are linearizable when revisions never go backwards in real time: what ended before something
/// else began has the smaller revision (equal, where the later one is a read).
fn check_history(history: &[Operation], keys: usize) {
    for key in 0..keys {
        let mut by_end: Vec<_> = history.iter().filter(|op| op.key == key).collect();
        let mut by_start = by_end.clone();
        by_end.sort_by_key(|op| op.end);
        by_start.sort_by_key(|op| op.start);
        let (mut ended, mut newest) = (by_end.into_iter().peekable(), 0);
        for op in by_start {
            while let Some(done) = ended.next_if(|done| done.end < op.start) {
                newest = newest.max(done.revision);
            }
            let right = if op.write { op.revision > newest } else { op.revision >= newest };
            assert!(right, "{op:?} began after revision {newest} was known");
        }
    }
}

async fn write_until(store: Arc<dyn Store>, until: Instant, keys: usize, seed: u64) -> Vec<Operation> {
    let mut rng = rand::rngs::StdRng::seed_from_u64(seed);
    let mut done = Vec::new();
    while Instant::now() < until {
        let key = rng.random_range(0..keys);
        let path = format!("/registry/pods/a/{key}");
        let Ok((found, _)) = store.get(&path).await else { continue };
        let expect = found.map_or(Expect::Absent, |kv| Expect::At(kv.mod_revision));
        let start = Instant::now();
        // Lost races and unknown outcomes say nothing about what was seen.
        if let Ok(revision) = store.put(&path, "x".into(), expect, 0).await {
            done.push(Operation { start, end: Instant::now(), key, revision, write: true });
        }
    }
    done
}

async fn read_until(store: Arc<dyn Store>, until: Instant, keys: usize, seed: u64) -> Vec<Operation> {
    let mut rng = rand::rngs::StdRng::seed_from_u64(seed);
    let mut done = Vec::new();
    while Instant::now() < until {
        let key = rng.random_range(0..keys);
        let start = Instant::now();
        if let Ok((found, _)) = store.get(&format!("/registry/pods/a/{key}")).await {
            let revision = found.map_or(0, |kv| kv.mod_revision);
            done.push(Operation { start, end: Instant::now(), key, revision, write: false });
        }
    }
    done
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn reads_are_linearizable_while_etcd_is_paused_and_restarted() {
    const KEYS: usize = 3;
    let Some(mut server) = Server::start() else { return };
    let options = Options { endpoints: vec![server.url()], ..Options::default() };
    let etcd = Etcd::connect(options).await.expect("a client");
    // Two servers over one etcd: a write through one must be read through the other.
    let stores: Vec<Arc<dyn Store>> = {
        let (one, two) = (over(etcd.clone()).await, over(etcd.clone()).await);
        vec![Arc::new(CacheStore(one)), Arc::new(CacheStore(two))]
    };
    let until = Instant::now() + Duration::from_secs(5);
    let mut tasks = Vec::new();
    for n in 0..8 {
        let store = stores[n % 2].clone();
        tasks.push(match n % 4 {
            0 | 1 => tokio::spawn(write_until(store, until, KEYS, n as u64)),
            _ => tokio::spawn(read_until(store, until, KEYS, n as u64)),
        });
    }
    let server = tokio::task::spawn_blocking(move || {
        std::thread::sleep(Duration::from_millis(1000));
        server.pause(true);
        std::thread::sleep(Duration::from_millis(300));
        server.pause(false);
        std::thread::sleep(Duration::from_millis(1000));
        server.restart();
        server
    });
    let _server = server.await.expect("etcd comes back");
    let mut history = Vec::new();
    for task in tasks {
        history.extend(task.await.expect("no panic"));
    }
    println!("{} operations", history.len());
    assert!(history.iter().filter(|op| op.write).count() > 20, "writers got through");
    check_history(&history, KEYS);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_etcd_that_restarts_under_load_loses_no_event() {
    let Some(mut server) = Server::start() else { return };
    let options = Options { endpoints: vec![server.url()], ..Options::default() };
    let etcd = Etcd::connect(options).await.expect("a client");
    let cache = over(etcd.clone()).await;
    let mut cursor = cache.watch(pods(""), 0).expect("a watch");
    let until = Instant::now() + Duration::from_secs(3);
    let writers: Vec<_> = (0..4).map(|n| tokio::spawn(write_until(etcd.clone(), until, 5, n))).collect();
    let server = tokio::task::spawn_blocking(move || {
        for _ in 0..2 {
            std::thread::sleep(Duration::from_millis(500));
            server.restart();
        }
        server
    });
    let _server = server.await.expect("etcd comes back");
    let mut written = Vec::new();
    for writer in writers {
        written.extend(writer.await.expect("no panic").into_iter().map(|op| op.revision));
    }
    let end = cache.refresh().await.expect("a refresh");
    let mut seen = Vec::new();
    while cursor.progress() < end {
        seen.extend(cursor.next().await.expect("not cut off").iter().map(|event| event.revision));
    }
    assert!(seen.is_sorted_by(|a, b| a < b), "in order, none twice");
    let count = usize::try_from(end - seen[0]).expect("a count") + 1;
    assert_eq!(seen.len(), count, "every revision is an event");
    assert!(written.iter().all(|revision| seen.contains(revision)), "all that was acknowledged was seen");
    assert_eq!(differences(&cache, ROOT).await.expect("a check"), []);
}

/// Not a test but a measure: `cargo nextest run --release -p store --run-ignored all load_time --no-capture`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measure"]
async fn load_time_of_ten_thousand_pods() {
    let Some(server) = Server::start() else { return };
    let options = Options { endpoints: vec![server.url()], ..Options::default() };
    let etcd = Etcd::connect(options.clone()).await.expect("a client");
    let value = Bytes::from(vec![b'x'; 6000]);
    let write = |n: usize| {
        let (etcd, value) = (etcd.clone(), value.clone());
        async move { etcd.put(&format!("/registry/pods/ns{}/pod-{n}", n % 100), value, Expect::Absent, 0).await }
    };
    use futures::StreamExt;
    let mut writes = futures::stream::iter(0..10_000).map(write).buffer_unordered(64);
    while let Some(written) = writes.next().await {
        written.expect("a write");
    }
    for _ in 0..5 {
        let start = Instant::now();
        let cache = over(Etcd::connect(options.clone()).await.expect("a client")).await;
        println!("{} entries in {:?}", cache.snapshot(PODS).entries.len(), start.elapsed());
    }
}

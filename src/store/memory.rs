//! A store in memory: for tests, with the same answers as etcd.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use imbl::OrdMap;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;

use crate::{Change, Changes, Error, Expect, KeyValue, Page, Result, Revision, Store};

/// etcd's default limit on a request: larger values are refused.
const MAX_REQUEST: usize = 1536 * 1024;

type Keys = OrdMap<Arc<str>, KeyValue>;

/// A store in memory. Keeps every state since the last compaction; made for tests, not for long lives.
#[derive(Clone)]
pub struct Memory(Arc<Mutex<State>>);

struct State {
    revision: Revision,
    compacted: Revision,
    /// The keys as they were at each revision.
    states: BTreeMap<Revision, Keys>,
    /// What each revision changed.
    changes: BTreeMap<Revision, Change>,
    watchers: Vec<Watcher>,
}

struct Watcher {
    prefix: String,
    after: Revision,
    to: mpsc::UnboundedSender<Result<Vec<Change>>>,
}

impl Default for Memory {
    fn default() -> Self {
        Self::new()
    }
}

impl Memory {
    /// An empty store, at revision 1 as a new etcd.
    pub fn new() -> Self {
        let states = BTreeMap::from([(1, Keys::new())]);
        let state = State { revision: 1, compacted: 0, states, changes: BTreeMap::new(), watchers: Vec::new() };
        Self(Arc::new(Mutex::new(state)))
    }
}

impl State {
    fn now(&self) -> &Keys {
        &self.states[&self.revision]
    }

    fn at(&self, at: Revision) -> Result<&Keys> {
        match at {
            0 => Ok(self.now()),
            _ if at > self.revision => Err(Error::Future { wanted: at, current: self.revision }),
            _ if at < self.compacted => Err(Error::Compacted { oldest: self.compacted }),
            _ => Ok(&self.states[&at]),
        }
    }

    fn expect(&self, key: &str, expect: Expect) -> Result<Option<KeyValue>> {
        let found = self.now().get(key).cloned();
        let fits = match (&found, expect) {
            (None, Expect::Absent) => true,
            (Some(kv), Expect::At(revision)) => kv.mod_revision == revision,
            _ => false,
        };
        if fits { Ok(found) } else { Err(Error::Conflict(found)) }
    }

    fn write(&mut self, key: Arc<str>, new: Option<KeyValue>) -> Revision {
        let mut keys = self.now().clone();
        let change = match new {
            Some(kv) => {
                let (value, create_revision) = (Some(kv.value.clone()), kv.create_revision);
                keys.insert(key.clone(), kv);
                Change { key, value, create_revision, revision: self.revision + 1 }
            }
            None => {
                keys.remove(&*key);
                Change { key, value: None, create_revision: 0, revision: self.revision + 1 }
            }
        };
        self.revision += 1;
        self.states.insert(self.revision, keys);
        self.changes.insert(self.revision, change.clone());
        self.watchers.retain(|w| {
            let wanted = change.key.starts_with(&w.prefix) && change.revision > w.after;
            if wanted { w.to.send(Ok(vec![change.clone()])).is_ok() } else { !w.to.is_closed() }
        });
        self.revision
    }
}

/// Deletes a key when its time is up, unless it was written again or the store is gone.
fn expire(store: Weak<Mutex<State>>, key: Arc<str>, written: Revision, ttl: i64) {
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_secs(ttl.unsigned_abs())).await;
        let Some(store) = store.upgrade() else { return };
        let mut state = store.lock();
        if state.now().get(&key).is_some_and(|kv| kv.mod_revision == written) {
            state.write(key, None);
        }
    });
}

#[async_trait]
impl Store for Memory {
    async fn get(&self, key: &str) -> Result<(Option<KeyValue>, Revision)> {
        let state = self.0.lock();
        Ok((state.now().get(key).cloned(), state.revision))
    }

    async fn list(&self, prefix: &str, from: &str, limit: usize, at: Revision) -> Result<Page> {
        let state = self.0.lock();
        let keys = state.at(at)?;
        let start = if from > prefix { from } else { prefix };
        let mut items = Vec::new();
        let mut count = 0;
        for (_, kv) in keys
            .range::<_, str>((Bound::Included(start), Bound::Unbounded))
            .take_while(|(key, _)| key.starts_with(prefix))
        {
            count += 1;
            if limit == 0 || items.len() < limit {
                items.push(kv.clone());
            }
        }
        let revision = if at == 0 { state.revision } else { at };
        Ok(Page { more: count > items.len(), items, revision, count })
    }

    async fn put(&self, key: &str, value: Bytes, expect: Expect, ttl: i64) -> Result<Revision> {
        if value.len() + key.len() > MAX_REQUEST {
            return Err(Error::TooLarge);
        }
        let mut state = self.0.lock();
        let found = state.expect(key, expect)?;
        let key: Arc<str> = key.into();
        let mod_revision = state.revision + 1;
        let create_revision = found.map_or(mod_revision, |kv| kv.create_revision);
        let revision =
            state.write(key.clone(), Some(KeyValue { key: key.clone(), value, mod_revision, create_revision }));
        if ttl > 0 {
            expire(Arc::downgrade(&self.0), key, revision, ttl);
        }
        Ok(revision)
    }

    async fn delete(&self, key: &str, expect: Revision) -> Result<(KeyValue, Revision)> {
        let mut state = self.0.lock();
        match state.expect(key, Expect::At(expect))? {
            Some(found) => {
                let revision = state.write(found.key.clone(), None);
                Ok((found, revision))
            }
            None => Err(Error::Conflict(None)),
        }
    }

    async fn watch(&self, prefix: &str, after: Revision) -> Result<Changes> {
        let mut state = self.0.lock();
        let (to, from) = mpsc::unbounded_channel();
        let after = if after == 0 { state.revision } else { after };
        if after + 1 < state.compacted {
            return Err(Error::Compacted { oldest: state.compacted });
        }
        for (_, change) in state.changes.range(after + 1..).filter(|(_, c)| c.key.starts_with(prefix)) {
            // The receiver is held right here: this can't fail.
            let _ = to.send(Ok(vec![change.clone()]));
        }
        state.watchers.push(Watcher { prefix: prefix.to_string(), after, to });
        Ok(UnboundedReceiverStream::new(from).boxed())
    }

    async fn revision(&self) -> Result<Revision> {
        Ok(self.0.lock().revision)
    }

    async fn compact(&self, before: Revision) -> Result<()> {
        let mut state = self.0.lock();
        if before > state.revision {
            return Err(Error::Future { wanted: before, current: state.revision });
        }
        if before <= state.compacted {
            return Err(Error::Compacted { oldest: state.compacted });
        }
        state.compacted = before;
        state.states = state.states.split_off(&before);
        state.changes = state.changes.split_off(&before);
        Ok(())
    }
}

//! The cache is a store itself, where entries keep their values: callers can't tell it from the one below, which is
//! what the conformance suite shows.

use std::ops::Bound;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;

use super::{Cache, Cached, Cursor, Decode, Entries, Event, Indexed, Interest};
use crate::{Change, Changes, Error, Expect, KeyValue, Page, Result, Revision, Store};

/// An entry that still has the value it was made of.
pub trait Raw {
    /// The value as it is stored.
    fn value(&self) -> &Bytes;
}

/// A cache that is used as a store.
pub struct CacheStore<D: Decode>(pub Arc<Cache<D>>);

fn key_value<E: Raw>(cached: &Cached<E>) -> KeyValue {
    KeyValue {
        key: cached.key.clone(),
        value: cached.entry.value().clone(),
        mod_revision: cached.revision,
        create_revision: cached.created,
    }
}

fn page<E: Raw>(entries: &Entries<E>, revision: Revision, prefix: &str, from: &str, limit: usize) -> Page {
    let start = if from > prefix { from } else { prefix };
    let mut page = Page { revision, ..Page::default() };
    for (_, cached) in entries
        .range::<_, str>((Bound::Included(start), Bound::Unbounded))
        .take_while(|(key, _)| key.starts_with(prefix))
    {
        page.count += 1;
        if limit == 0 || page.items.len() < limit {
            page.items.push(key_value(cached));
        }
    }
    page.more = page.count > page.items.len();
    page
}

#[async_trait]
impl<D: Decode> Store for CacheStore<D>
where
    D::Entry: Raw,
{
    async fn get(&self, key: &str) -> Result<(Option<KeyValue>, Revision)> {
        if self.0.decode.resource(key).is_none() {
            return self.0.store.get(key).await;
        }
        let revision = self.0.refresh().await?;
        Ok((self.0.get(key).map(|cached| key_value(&cached)), revision))
    }

    async fn list(&self, prefix: &str, from: &str, limit: usize, at: Revision) -> Result<Page> {
        let Some(resource) = self.0.decode.resource(prefix) else {
            return self.0.store.list(prefix, from, limit, at).await;
        };
        let snapshot = match at {
            0 => {
                self.0.refresh().await?;
                Ok(self.0.snapshot(resource))
            }
            _ => self.0.snapshot_at(resource, at),
        };
        match snapshot {
            Ok(snapshot) => Ok(page(&snapshot.entries, snapshot.revision, prefix, from, limit)),
            Err(_) => self.0.store.list(prefix, from, limit, at).await,
        }
    }

    async fn put(&self, key: &str, value: Bytes, expect: Expect, ttl: i64) -> Result<Revision> {
        self.0.store.put(key, value, expect, ttl).await
    }

    async fn delete(&self, key: &str, expect: Revision) -> Result<(KeyValue, Revision)> {
        self.0.store.delete(key, expect).await
    }

    async fn watch(&self, prefix: &str, after: Revision) -> Result<Changes> {
        let Some(resource) = self.0.decode.resource(prefix) else {
            return self.0.store.watch(prefix, after).await;
        };
        // From now on means after all that was acknowledged before.
        let after = if after == 0 { self.0.refresh().await? } else { after };
        let interest = Interest { resource: resource.to_string(), prefix: prefix.to_string(), ..Interest::default() };
        match self.0.watch(interest, after) {
            Ok(cursor) => Ok(stream(cursor)),
            // What the log has forgotten the store may still know.
            Err(Error::Compacted { .. }) => self.0.store.watch(prefix, after).await,
            Err(error) => Err(error),
        }
    }

    async fn revision(&self) -> Result<Revision> {
        self.0.store.revision().await
    }

    async fn compact(&self, before: Revision) -> Result<()> {
        self.0.store.compact(before).await
    }
}

fn stream<E: Raw + Indexed + Send + Sync + 'static>(cursor: Cursor<E>) -> Changes {
    let step = |cursor: Option<Cursor<E>>| async move {
        let mut cursor = cursor?;
        match cursor.next().await {
            Ok(events) => Some((Ok(events.iter().map(|event| change(event)).collect()), Some(cursor))),
            Err(error) => Some((Err(error), None)),
        }
    };
    futures::stream::unfold(Some(cursor), step).boxed()
}

fn change<E: Raw>(event: &Event<E>) -> Change {
    Change {
        key: event.key().into(),
        value: event.now.as_ref().map(|now| now.entry.value().clone()),
        create_revision: event.now.as_ref().map_or(0, |now| now.created),
        revision: event.revision,
    }
}

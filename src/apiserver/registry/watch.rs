//! Watches and streaming lists, for all resources.
//!
//! ```text
//!   state ──► ADDED … ──► bookmark that says so ──► cursor ──► ADDED, MODIFIED, DELETED … ──► bookmarks by the minute
//! ```
//!
//! A watch that begins with what is there holds a snapshot (a pointer) until the client has read it, and takes its
//! place in the log only then. What waits for a client is bounded by the cursor; who falls behind is cut off.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use api::resources::{Row, Scope};
use api::status::Status;
use bytes::Bytes;
use futures::{FutureExt, Stream};
use http::header::CONTENT_TYPE;
use http::{HeaderValue, StatusCode};
use store::Revision;
use store::cache::{Cached, Cursor, Entries, Event, Interest, Snapshot};
use tokio::time::{Instant, Sleep};

use super::frame::Frames;
use super::list_options::{ListOptions, parse_version};
use super::output::{self, Include, Media, Shape};
use super::read::{Filter, range, wait};
use crate::Api;
use crate::entry::{self, Entry};
use crate::request::{Answer, Body, Request};

/// When things happen in a watch: upstream's figures.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    /// Bookmarks come this often.
    pub(super) bookmarks: Duration,
    /// And so long before the end of the watch, so that the next begins where this one ended.
    pub(super) last: Duration,
    /// A watch that says nothing ends after this and up to twice as long: `--min-request-timeout`.
    pub(super) life: Duration,
}

const PACE: Pace =
    Pace { bookmarks: Duration::from_secs(60), last: Duration::from_secs(2), life: Duration::from_secs(1800) };
/// Longer than anything lives, and still a time that can be reckoned with.
const FOREVER: Duration = Duration::from_secs(10 * 365 * 86_400);
/// Bytes that are made at a time.
const CHUNK: usize = 32 * 1024;

/// Answers a watch: `GET` of a collection with `watch` in its query, and the legacy paths below `/watch/`, whose name
/// (when they have one) stands in `req.info.name`.
///
/// # Errors
/// Whatever upstream answers before the stream begins.
pub async fn watch(api: &Arc<Api>, row: &Arc<Row>, req: &mut Request) -> Result<Answer, Status> {
    watch_at(api, row, req, Pace { life: api.settings.min_request_timeout, ..PACE }).await
}

pub(super) async fn watch_at(api: &Arc<Api>, row: &Arc<Row>, req: &mut Request, pace: Pace) -> Result<Answer, Status> {
    // Upstream looks for any encoding first, and for one that has a stream only when the watch is about to begin.
    let accept = output::negotiate(row, req)?;
    let options = ListOptions::read(row, req)?;
    let version = parse_version(&options.resource_version).map_err(|why| Status::new(500, "", why))?;
    let include = match accept.shape {
        Shape::Table(_) => Include::read(req)?,
        _ => Include::Metadata,
    };
    let accept = output::negotiate_watch(row, req)?;
    let deadline = Instant::now() + lifetime(&options, pace.life);
    let frames = Frames::new(row.clone(), req.info.version.clone(), accept, include);
    let mut watch = Watch::new(api.clone(), row, req, options, frames, (pace, deadline));
    watch.begin(version).await;
    let mut answer = Answer::new(Body::Stream(Box::pin(watch)));
    *answer.status_mut() = StatusCode::OK;
    let media = match accept.media {
        Media::Protobuf => "application/vnd.kubernetes.protobuf;stream=watch",
        other => other.name(),
    };
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media));
    Ok(answer)
}

fn lifetime(options: &ListOptions, least: Duration) -> Duration {
    match options.timeout.and_then(|seconds| u64::try_from(seconds).ok()).filter(|seconds| *seconds > 0) {
        Some(seconds) => Duration::from_secs(seconds).min(FOREVER),
        None if least.is_zero() => FOREVER,
        None => least.mul_f64(1.0 + rand::random::<f64>()),
    }
}

/// A watch as a stream of chunks.
struct Watch {
    api: Arc<Api>,
    interest: Interest,
    prefix: String,
    options: ListOptions,
    frames: Frames,
    phase: Phase,
    pace: Pace,
    /// When the stream ends.
    deadline: Instant,
    /// When the next bookmark is due, or the stream ends.
    timer: Pin<Box<Sleep>>,
}

enum Phase {
    /// Sends what is there.
    Initial(Initial),
    /// Follows the log.
    Following(Cursor<Entry>),
    /// Sends one failure, then ends.
    Failed(Status),
    /// At its end.
    Ended,
}

/// A state that is being sent.
struct Initial {
    entries: Entries<Entry>,
    revision: Revision,
    /// The next key.
    from: String,
}

impl Watch {
    fn new(
        api: Arc<Api>, row: &Row, req: &Request, options: ListOptions, frames: Frames,
        (pace, deadline): (Pace, Instant),
    ) -> Self {
        let resource = entry::resource_prefix(&api.settings.etcd_prefix, row);
        let namespaced = row.scope == Scope::Namespaced;
        let pinned = options.fields.exact("metadata.namespace").unwrap_or_default();
        let namespace = match &*req.info.namespace {
            _ if !namespaced => "",
            "" => pinned,
            namespace => namespace,
        };
        let prefix = if namespace.is_empty() { resource.clone() } else { format!("{resource}{namespace}/") };
        let name = options.fields.exact("metadata.name").filter(|_| !namespaced || !namespace.is_empty());
        let indexed = |field: &&str| options.fields.exact(field).is_some();
        let field = row.selectable.iter().copied().find(indexed);
        let field = field.and_then(|f| Some((f, options.fields.exact(f)?.to_string())));
        let interest = Interest {
            prefix: prefix.clone(),
            key: name.map(|name| format!("{prefix}{name}")),
            field: field.filter(|(f, _)| entry::is_indexed(row, f)),
            resource,
        };
        let timer = Box::pin(tokio::time::sleep_until(deadline));
        Self { api, interest, prefix, options, frames, phase: Phase::Ended, pace, deadline, timer }
    }

    /// Finds the place where the watch begins. What goes wrong from here on is an event.
    async fn begin(&mut self, version: u64) {
        self.phase = match self.first(version).await {
            Ok(phase) => phase,
            Err(status) => Phase::Failed(status),
        };
        self.wind();
    }

    async fn first(&mut self, version: u64) -> Result<Phase, Status> {
        let wanted = Revision::try_from(version).unwrap_or(Revision::MAX);
        let cache = &self.api.cache;
        let store = |error: store::Error| Status::new(500, "InternalError", error.to_string());
        match (self.options.initial_events, &*self.options.resource_version) {
            (Some(true), "") => {
                cache.refresh().await.map_err(store)?;
            }
            (Some(true), _) => wait(&self.api, version).await?,
            (Some(false), "") => {
                let now = cache.refresh().await.map_err(store)?;
                return self.follow(now);
            }
            (Some(false), _) if wanted == 0 => return self.follow(cache.revision()),
            (None, _) if wanted == 0 => {}
            _ => return self.follow(wanted),
        }
        let snapshot = cache.snapshot(&self.interest.resource);
        Ok(Phase::Initial(self.initial(snapshot)))
    }

    fn initial(&self, snapshot: Snapshot<Entry>) -> Initial {
        let by_field = self.interest.field.as_ref().and_then(|(field, value)| snapshot.by_field(field, value));
        let entries = match &self.interest.key {
            Some(key) => snapshot.entries.get(&**key).map(|c| Entries::unit(c.key.clone(), c.clone())),
            None => None,
        };
        let single = self.interest.key.as_ref().map(|_| entries.unwrap_or_default());
        Initial {
            revision: snapshot.revision,
            entries: single.or(by_field).unwrap_or(snapshot.entries),
            from: self.prefix.clone(),
        }
    }

    /// Takes a place in the log.
    fn follow(&self, after: Revision) -> Result<Phase, Status> {
        match self.api.cache.watch(self.interest.clone(), after.max(1)) {
            Ok(cursor) => Ok(Phase::Following(cursor)),
            Err(store::Error::Compacted { oldest }) => {
                Err(Status::expired(format!("too old resource version: {after} ({oldest})")))
            }
            Err(error) => Err(Status::new(500, "InternalError", error.to_string())),
        }
    }

    /// Sets the timer to the next bookmark or the end.
    fn wind(&mut self) {
        let now = Instant::now();
        let mut next = self.deadline;
        if self.options.bookmarks {
            next = next.min(now + self.pace.bookmarks);
            if let Some(last) = self.deadline.checked_sub(self.pace.last).filter(|last| *last > now) {
                next = next.min(last);
            }
        }
        self.timer.as_mut().reset(next);
    }

    /// The next part of what was there when the watch began.
    fn send_initial(&mut self) -> Result<Vec<u8>, Status> {
        let Phase::Initial(initial) = &mut self.phase else { return Ok(Vec::new()) };
        let filter = Filter::new(&self.options);
        let mut out = Vec::with_capacity(4096);
        let mut last = None;
        for (key, cached) in range(&initial.entries, &self.prefix, &initial.from) {
            if out.len() >= CHUNK {
                break;
            }
            last = Some(key.clone());
            if filter.matches(&cached.entry) {
                self.frames.event("ADDED", &cached.entry, None, &mut out)?;
            }
        }
        if let Some(last) = last {
            initial.from = format!("{last}\0");
            return Ok(out);
        }
        let revision = initial.revision;
        if self.options.initial_events == Some(true) && self.options.bookmarks {
            self.frames.bookmark(revision, true, &mut out)?;
        }
        self.phase = self.follow(revision)?;
        Ok(out)
    }

    /// Changes as this watcher sees them: an object that enters or leaves the selection appears or goes.
    fn send_events(&mut self, events: Vec<Arc<Event<Entry>>>) -> Result<Vec<u8>, Status> {
        let filter = Filter::new(&self.options);
        let mut out = Vec::with_capacity(events.len().min(8) * 1024);
        for event in events {
            let shown = |side: &Option<Arc<Cached<Entry>>>| side.clone().filter(|c| filter.matches(&c.entry));
            match (shown(&event.before), shown(&event.now)) {
                (None, Some(now)) => self.frames.event("ADDED", &now.entry, None, &mut out)?,
                (Some(_), Some(now)) => self.frames.event("MODIFIED", &now.entry, None, &mut out)?,
                (Some(before), None) => {
                    self.frames.event("DELETED", &before.entry, Some(event.revision), &mut out)?;
                }
                (None, None) => {}
            }
        }
        Ok(out)
    }

    fn send_bookmark(&mut self) -> Result<Vec<u8>, Status> {
        let mut out = Vec::new();
        if let Phase::Following(cursor) = &self.phase
            && self.options.bookmarks
        {
            let revision = cursor.progress();
            self.frames.bookmark(revision, false, &mut out)?;
        }
        Ok(out)
    }

    /// What is ready to be sent; `None` at the end.
    fn step(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Vec<u8>, Status>>> {
        if self.timer.poll_unpin(cx).is_ready() {
            if Instant::now() >= self.deadline {
                return Poll::Ready(None);
            }
            self.wind();
            // Registers the timer that was just set.
            if self.timer.poll_unpin(cx).is_ready() {
                cx.waker().wake_by_ref();
            }
            return Poll::Ready(Some(self.send_bookmark()));
        }
        match &mut self.phase {
            Phase::Initial(_) => Poll::Ready(Some(self.send_initial())),
            Phase::Following(cursor) => match cursor.poll(cx) {
                Poll::Pending => Poll::Pending,
                Poll::Ready(Ok(events)) => Poll::Ready(Some(self.send_events(events))),
                // Too slow, or events are missing: the client watches again, or lists again if it must.
                Poll::Ready(Err(_)) => Poll::Ready(None),
            },
            Phase::Failed(status) => {
                let status = status.clone();
                Poll::Ready(Some(Err(status)))
            }
            Phase::Ended => Poll::Ready(None),
        }
    }
}

impl Stream for Watch {
    type Item = Result<Bytes, std::io::Error>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let watch = self.get_mut();
        loop {
            let out = match watch.step(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) => {
                    watch.phase = Phase::Ended;
                    return Poll::Ready(None);
                }
                Poll::Ready(Some(Ok(out))) => out,
                Poll::Ready(Some(Err(status))) => {
                    watch.phase = Phase::Ended;
                    let mut out = Vec::new();
                    watch.frames.error(&status, &mut out);
                    out
                }
            };
            if !out.is_empty() {
                return Poll::Ready(Some(Ok(out.into())));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watch_that_says_nothing_ends_within_an_hour() {
        let life = |timeout| lifetime(&ListOptions { timeout, ..ListOptions::default() }, PACE.life).as_secs();
        for _ in 0..100 {
            assert!((1800..=3600).contains(&life(None)));
        }
        assert!((1800..=3600).contains(&life(Some(0))) && (1800..=3600).contains(&life(Some(-5))));
        assert_eq!((life(Some(7)), life(Some(i64::MAX))), (7, 10 * 365 * 86_400));
        let endless = lifetime(&ListOptions::default(), Duration::ZERO);
        assert_eq!(endless, FOREVER, "--min-request-timeout=0 sets no end");
    }
}

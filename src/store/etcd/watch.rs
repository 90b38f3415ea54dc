//! Watches that outlive connections: opened again where they stopped, without a gap and without a repetition.

use std::time::Duration;

use etcd_client::proto::PbEvent;
use etcd_client::{GetOptions, KvClient, WatchClient, WatchOptions, WatchResponse, WatchStream};
use futures::StreamExt;

use super::error::classify;
use super::{header_revision, range_end};
use crate::{Change, Changes, Error, Result, Revision};

/// How long etcd may take to attach a watch.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// A watch and its place.
struct Watch {
    client: WatchClient,
    kv: KvClient,
    prefix: String,
    /// Revision of the last change that was handed on (or of the state at which the watch began).
    seen: Revision,
    stream: Option<WatchStream>,
    /// Events of an answer that came in several fragments: a revision must not be torn apart.
    parts: Vec<PbEvent>,
    /// `seen` came from this store rather than from a caller, who may well ask for the future.
    resumes: bool,
    ended: bool,
}

pub(super) async fn open(client: WatchClient, kv: KvClient, prefix: &str, after: Revision) -> Result<Changes> {
    let client = client.max_decoding_message_size(usize::MAX);
    let prefix = prefix.to_string();
    let (stream, parts) = (None, Vec::new());
    let mut watch = Watch { client, kv, prefix, seen: after, stream, parts, resumes: after == 0, ended: false };
    watch.attach().await?;
    Ok(futures::stream::unfold(watch, |mut watch| async move { watch.next().await.map(|item| (item, watch)) }).boxed())
}

impl Watch {
    /// The next changes; `None` after an error was given.
    async fn next(&mut self) -> Option<Result<Vec<Change>>> {
        let mut pause = PAUSE.0;
        while !self.ended {
            match self.step().await {
                Ok(changes) if changes.is_empty() => pause = PAUSE.0,
                Ok(changes) => return Some(Ok(changes)),
                Err(Error::Unavailable(text)) => {
                    tracing::warn!(prefix = self.prefix, seen = self.seen, "etcd: watch broke, resuming: {text}");
                    (self.stream, self.parts) = (None, Vec::new());
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(PAUSE.1);
                }
                Err(error) => {
                    self.ended = true;
                    return Some(Err(error));
                }
            }
        }
        None
    }

    async fn step(&mut self) -> Result<Vec<Change>> {
        let Some(stream) = &mut self.stream else {
            self.attach().await?;
            return Ok(Vec::new());
        };
        let response = stream.message().await.map_err(|e| Error::from(classify(e)))?;
        let Some(response) = response else {
            return Err(Error::Unavailable("the server ended the stream".into()));
        };
        refusal(&response)?;
        self.parts.extend(response.0.events);
        if response.0.fragment {
            return Ok(Vec::new());
        }
        let changes: Vec<Change> = std::mem::take(&mut self.parts).into_iter().filter_map(change).collect();
        if let Some(last) = changes.last() {
            self.seen = last.revision;
            self.resumes = true;
        }
        Ok(changes)
    }

    /// Opens the stream and waits until etcd says that the watch is attached.
    async fn attach(&mut self) -> Result<()> {
        match tokio::time::timeout(PATIENCE, self.try_attach()).await {
            Ok(result) => result,
            Err(_) => Err(Error::Unavailable("watch: no answer".into())),
        }
    }

    async fn try_attach(&mut self) -> Result<()> {
        let mut options = WatchOptions::new().with_range(range_end(&self.prefix)).with_fragment();
        if self.seen > 0 {
            options = options.with_start_revision(self.seen + 1);
        }
        let start = if self.prefix.is_empty() { "\0" } else { &self.prefix };
        let opened = self.client.watch(start, Some(options)).await;
        let mut stream = opened.map_err(|e| Error::from(classify(e)))?;
        loop {
            let response = stream.message().await.map_err(|e| Error::from(classify(e)))?;
            let Some(response) = response else {
                return Err(Error::Unavailable("the server ended the stream".into()));
            };
            refusal(&response)?;
            if response.created() {
                let at = header_revision(&response.0.header);
                self.check_time(at).await?;
                self.stream = Some(stream);
                return Ok(());
            }
        }
    }

    /// A store that was restored from a backup may stand before what was already seen: nothing can be resumed then. A
    /// member that merely lags looks the same, so the cluster is asked.
    async fn check_time(&mut self, at: Revision) -> Result<()> {
        if self.seen == 0 {
            self.seen = at;
        }
        if at >= self.seen || !self.resumes {
            return Ok(());
        }
        let options = GetOptions::new().with_count_only();
        let answer = self.kv.get("\0", Some(options)).await.map_err(|e| Error::from(classify(e)))?;
        let current = header_revision(&answer.0.header);
        if current < self.seen {
            tracing::warn!(seen = self.seen, current, "etcd: the store went back in time");
            return Err(Error::Compacted { oldest: current });
        }
        Ok(())
    }
}

/// Why a response ends its watch, if it does.
fn refusal(response: &WatchResponse) -> Result<()> {
    match response.compact_revision() {
        0 if response.canceled() => Err(Error::Unavailable(response.cancel_reason().to_string())),
        0 => Ok(()),
        oldest => Err(Error::Compacted { oldest }),
    }
}

fn change(event: PbEvent) -> Option<Change> {
    let deleted = event.r#type != 0;
    let kv = event.kv?;
    Some(Change {
        key: String::from_utf8_lossy(&kv.key).into(),
        value: (!deleted).then(|| kv.value.into()),
        create_revision: kv.create_revision,
        revision: kv.mod_revision,
    })
}

//! The real store: an etcd cluster, version 3.4 or newer.
//!
//! One HTTP/2 channel carries everything: requests are pipelined on it, and it connects again by itself. Reads are
//! repeated while etcd can't be reached, within the patience below; writes only where it is certain that etcd never
//! saw them.

mod compact;
mod error;
mod lease;
mod watch;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use etcd_client::proto::{PbKeyValue, PbResponseHeader, PbTxnOpResponse};
use etcd_client::{
    Channel, Client, Compare, CompareOp, ConnectOptions, DeleteOptions, GetOptions, KvClient, PutOptions, Txn, TxnOp,
    TxnResponse,
};
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

use crate::{Changes, Error, Expect, KeyValue, Page, Result, Revision, Store};
use error::{Failure, classify};

/// How long an operation may take, repetitions included. etcd itself gives up on a proposal after about seven seconds.
const PATIENCE: Duration = Duration::from_secs(10);
/// First pause before a repetition; doubles up to the second, which is short: an etcd that starts beside us is ready
/// within a second, and must not be waited for much longer than that takes.
const PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(160));
/// Upstream's figures for a channel to etcd.
const KEEPALIVE: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(10));
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);

/// How to reach etcd: upstream's `--etcd-*` flags.
#[derive(Clone, Default)]
pub struct Options {
    /// `http://host:port` or `https://host:port`, one or more.
    pub endpoints: Vec<String>,
    /// PEM file with the CA of etcd's certificates.
    pub ca: Option<PathBuf>,
    /// PEM files with our certificate and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// Between two compactions (`--etcd-compaction-interval`, five minutes); zero never compacts.
    pub compaction: Duration,
    /// Told of every request, for metrics.
    pub observer: Option<Arc<dyn Observer>>,
}

/// Told of every request.
pub trait Observer: Send + Sync {
    /// A request ended: `get`, `list`, `create`, `update`, `delete`, `compact`, `revision`; below which prefix or key;
    /// how long it took; and whether it failed (a conflict is no failure).
    fn request(&self, operation: &'static str, key: &str, took: Duration, failed: bool);
}

/// A client of etcd.
pub struct Etcd {
    client: Client,
    kv: KvClient,
    leases: lease::Leases,
    observer: Option<Arc<dyn Observer>>,
    /// Ends the compactor with this client.
    _compactor: Option<tokio_util::task::AbortOnDropHandle<()>>,
}

impl Etcd {
    /// A client; connects as needed, so an etcd that is not up yet is no error.
    ///
    /// # Errors
    /// When the options make no sense or a file can't be read.
    pub async fn connect(options: Options) -> Result<Arc<Self>> {
        let channel = channel(&options)?;
        // A member that lost its leader must fail requests and watches, not let them hang.
        let settings = ConnectOptions::new().with_require_leader(true);
        let client = Client::from_channel(Channel::Tonic(channel), Some(settings)).await.map_err(error::unavailable)?;
        let kv = client.kv_client().max_decoding_message_size(usize::MAX);
        let compactor = (!options.compaction.is_zero()).then(|| {
            let task = compact::run(kv.clone(), options.compaction, options.observer.clone());
            tokio_util::task::AbortOnDropHandle::new(tokio::spawn(task))
        });
        let leases = lease::Leases::new(client.lease_client());
        Ok(Arc::new(Self { client, kv, leases, observer: options.observer, _compactor: compactor }))
    }

    /// Runs an operation within [`PATIENCE`], again where that is safe, and tells the observer.
    async fn run<T, F>(
        &self, operation: &'static str, key: &str, safe: Again, call: impl Fn(KvClient) -> F,
    ) -> Result<T>
    where
        F: Future<Output = std::result::Result<T, etcd_client::Error>>,
    {
        let start = Instant::now();
        let attempts = async {
            let mut pause = PAUSE.0;
            loop {
                let failure = match call(self.kv.clone()).await {
                    Ok(done) => return Ok(done),
                    Err(error) => classify(error),
                };
                match failure {
                    Failure::Unsent(_) => {}
                    Failure::Unavailable(_) if safe == Again::Always => {}
                    other => return Err(other),
                }
                tracing::debug!(operation, key, "etcd: {failure:?}, trying again");
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(PAUSE.1);
            }
        };
        let result = match tokio::time::timeout(PATIENCE, attempts).await {
            Ok(result) => result,
            Err(_) => Err(Failure::Unavailable(format!("{operation}: no answer in {} s", PATIENCE.as_secs()))),
        };
        if let Some(observer) = &self.observer {
            observer.request(operation, key, start.elapsed(), result.is_err());
        }
        match result {
            Ok(done) => Ok(done),
            Err(Failure::Future(wanted)) => {
                let current = Box::pin(self.revision()).await.unwrap_or(0);
                Err(Error::Future { wanted, current })
            }
            Err(failure) => Err(failure.into()),
        }
    }

    async fn transaction(&self, operation: &'static str, key: &str, txn: Txn) -> Result<TxnResponse> {
        let call = |mut kv: KvClient| {
            let txn = txn.clone();
            async move { kv.txn(txn).await }
        };
        self.run(operation, key, Again::Unsent, call).await
    }
}

/// When an operation may be repeated after it failed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Again {
    /// It changes nothing.
    Always,
    /// Only when etcd never saw it.
    Unsent,
}

fn channel(options: &Options) -> Result<tonic::transport::Channel> {
    let tls = tls(options)?;
    let mut endpoints = Vec::new();
    for url in &options.endpoints {
        let url = if url.contains("://") { url.clone() } else { format!("http://{url}") };
        let bad = |e: &dyn std::fmt::Display| Error::Unavailable(format!("etcd endpoint {url}: {e}"));
        let mut endpoint = Endpoint::from_shared(url.clone())
            .map_err(|e| bad(&e))?
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(KEEPALIVE.0)
            .keep_alive_timeout(KEEPALIVE.1)
            .buffer_size(4096);
        if url.starts_with("https://") {
            endpoint = endpoint.tls_config(tls.clone()).map_err(|e| bad(&e))?;
        }
        endpoints.push(endpoint);
    }
    match endpoints.as_slice() {
        [] => Err(Error::Unavailable("no etcd endpoint given".into())),
        [only] => Ok(only.connect_lazy()),
        _ => Ok(tonic::transport::Channel::balance_list(endpoints.into_iter())),
    }
}

fn tls(options: &Options) -> Result<ClientTlsConfig> {
    let mut tls = ClientTlsConfig::new();
    if let Some(ca) = &options.ca {
        tls = tls.ca_certificate(Certificate::from_pem(read(ca)?));
    }
    if let Some((cert, key)) = &options.identity {
        tls = tls.identity(Identity::from_pem(read(cert)?, read(key)?));
    }
    Ok(tls)
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|e| Error::Unavailable(format!("{}: {e}", path.display())))
}

/// The first key after all that start with `prefix`, as etcd wants range ends; `\0` means no end.
fn range_end(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    while let Some(last) = end.pop() {
        if last < 0xff {
            end.push(last + 1);
            return end;
        }
    }
    vec![0]
}

fn key_value(kv: PbKeyValue) -> KeyValue {
    KeyValue {
        key: String::from_utf8_lossy(&kv.key).into(),
        value: Bytes::from(kv.value),
        mod_revision: kv.mod_revision,
        create_revision: kv.create_revision,
    }
}

fn header_revision(header: &Option<PbResponseHeader>) -> Revision {
    header.as_ref().map_or(0, |h| h.revision)
}

/// The state of a key that a failed transaction read.
fn found(response: TxnResponse) -> Option<KeyValue> {
    response.0.responses.into_iter().find_map(|op| match op.response {
        Some(PbTxnOpResponse::ResponseRange(mut range)) => range.kvs.pop().map(key_value),
        _ => None,
    })
}

fn guard(key: &str, expect: Expect) -> Compare {
    let revision = match expect {
        Expect::Absent => 0,
        Expect::At(revision) => revision,
    };
    Compare::mod_revision(key, CompareOp::Equal, revision)
}

#[async_trait]
impl Store for Etcd {
    async fn get(&self, key: &str) -> Result<(Option<KeyValue>, Revision)> {
        let read = |mut kv: KvClient| async move { kv.get(key, None).await };
        let mut response = self.run("get", key, Again::Always, read).await?;
        Ok((response.0.kvs.pop().map(key_value), header_revision(&response.0.header)))
    }

    async fn list(&self, prefix: &str, from: &str, limit: usize, at: Revision) -> Result<Page> {
        let start = if from > prefix { from } else { prefix };
        let start = if start.is_empty() { "\0" } else { start };
        let options = GetOptions::new()
            .with_range(range_end(prefix))
            .with_limit(i64::try_from(limit).unwrap_or(0))
            .with_revision(at);
        let read = |mut kv: KvClient| {
            let options = options.clone();
            async move { kv.get(start, Some(options)).await }
        };
        let response = match self.run("list", prefix, Again::Always, read).await {
            Err(Error::Future { current, .. }) => return Err(Error::Future { wanted: at, current }),
            other => other?.0,
        };
        let revision = if at == 0 { header_revision(&response.header) } else { at };
        let count = usize::try_from(response.count).unwrap_or(0);
        Ok(Page { items: response.kvs.into_iter().map(key_value).collect(), revision, more: response.more, count })
    }

    async fn put(&self, key: &str, value: Bytes, expect: Expect, ttl: i64) -> Result<Revision> {
        let operation = if expect == Expect::Absent { "create" } else { "update" };
        // A lease can run out between its grant and its use: then, once, a new one.
        for last in [false, true] {
            let lease = if ttl > 0 { self.leases.get(ttl).await? } else { 0 };
            let options = PutOptions::new().with_lease(lease);
            let txn = Txn::new()
                .when([guard(key, expect)])
                .and_then([TxnOp::put(key, value.as_ref(), Some(options))])
                .or_else([TxnOp::get(key, None)]);
            match self.transaction(operation, key, txn).await {
                Err(Error::Unavailable(text)) if error::is_lease_gone(&text) && !last => self.leases.forget(lease),
                Err(error) => return Err(error),
                Ok(response) if response.succeeded() => return Ok(header_revision(&response.0.header)),
                Ok(response) => return Err(Error::Conflict(found(response))),
            }
        }
        Err(Error::Unavailable("leases run out faster than they are granted".into()))
    }

    async fn delete(&self, key: &str, expect: Revision) -> Result<(KeyValue, Revision)> {
        let txn = Txn::new()
            .when([guard(key, Expect::At(expect))])
            .and_then([TxnOp::delete(key, Some(DeleteOptions::new().with_prev_key()))])
            .or_else([TxnOp::get(key, None)]);
        let response = self.transaction("delete", key, txn).await?;
        if !response.succeeded() {
            return Err(Error::Conflict(found(response)));
        }
        let revision = header_revision(&response.0.header);
        let deleted = response.0.responses.into_iter().find_map(|op| match op.response {
            Some(PbTxnOpResponse::ResponseDeleteRange(mut range)) => range.prev_kvs.pop().map(key_value),
            _ => None,
        });
        // The guard held, so there was something; `expect` 0 would guard for absence, which nobody may ask for.
        deleted.map(|kv| (kv, revision)).ok_or(Error::Conflict(None))
    }

    async fn watch(&self, prefix: &str, after: Revision) -> Result<Changes> {
        watch::open(self.client.watch_client(), self.kv.clone(), prefix, after).await
    }

    async fn revision(&self) -> Result<Revision> {
        let ask = |mut kv: KvClient| async move { kv.get("\0", Some(GetOptions::new().with_count_only())).await };
        let response = self.run("revision", "", Again::Always, ask).await?;
        Ok(header_revision(&response.0.header))
    }

    async fn compact(&self, before: Revision) -> Result<()> {
        let call = |mut kv: KvClient| async move { kv.compact(before, None).await };
        self.run("compact", "", Again::Always, call).await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_ends_after_its_prefix() {
        assert_eq!(range_end("/registry/pods/"), b"/registry/pods0");
        assert_eq!(range_end(""), [0]);
    }

    #[tokio::test]
    async fn options_without_endpoint_or_with_missing_files_are_refused() {
        assert!(Etcd::connect(Options::default()).await.is_err());
        let options = Options {
            endpoints: vec!["https://127.0.0.1:1".into()],
            ca: Some("/nonexistent/ca.crt".into()),
            ..Options::default()
        };
        let error = Etcd::connect(options).await.err().expect("a missing CA file is an error").to_string();
        assert!(error.contains("/nonexistent/ca.crt"), "{error}");
    }
}

//! Compaction, as upstream's API server asks for it: every five minutes what is older than five minutes is forgotten.
//!
//! Several servers, ours and upstream's, share one key whose version counts the rounds: who finds the version it
//! expects writes the key and compacts this round; who does not learns the version for the next.

use std::sync::Arc;
use std::time::{Duration, Instant};

use etcd_client::proto::PbTxnOpResponse;
use etcd_client::{Compare, CompareOp, KvClient, Txn, TxnOp};

use super::{Observer, header_revision};
use crate::Revision;

/// Upstream's key, outside of the prefix.
const KEY: &str = "compact_rev_key";

/// What a round left for the next.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Round {
    /// Version of the key.
    version: i64,
    /// Revision at the time: what the next round compacts to. 0 on start, when nothing is known to be old.
    revision: Revision,
}

/// Compacts for ever.
pub(super) async fn run(mut kv: KvClient, interval: Duration, observer: Option<Arc<dyn Observer>>) {
    let mut round = Round::default();
    loop {
        tokio::time::sleep(interval).await;
        let start = Instant::now();
        let result = turn(&mut kv, round).await;
        if let Some(observer) = &observer {
            observer.request("compact", KEY, start.elapsed(), result.is_err());
        }
        match result {
            Ok(next) => round = next,
            Err(error) => tracing::warn!("etcd: compaction failed, will try again: {error}"),
        }
    }
}

async fn turn(kv: &mut KvClient, round: Round) -> Result<Round, etcd_client::Error> {
    let txn = Txn::new()
        .when([Compare::version(KEY, CompareOp::Equal, round.version)])
        .and_then([TxnOp::put(KEY, round.revision.to_string(), None)])
        .or_else([TxnOp::get(KEY, None)]);
    let response = kv.txn(txn).await?;
    let revision = header_revision(&response.0.header);
    if !response.succeeded() {
        let version = response.0.responses.into_iter().find_map(|op| match op.response {
            Some(PbTxnOpResponse::ResponseRange(range)) => range.kvs.first().map(|kv| kv.version),
            _ => None,
        });
        return Ok(Round { version: version.unwrap_or(0), revision });
    }
    if round.revision > 0 {
        kv.compact(round.revision, None).await?;
        tracing::debug!(revision = round.revision, "etcd: compacted");
    }
    Ok(Round { version: round.version + 1, revision })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::etcd::{Etcd, Options};
    use crate::{Error, Expect, Store};

    #[tokio::test]
    async fn two_compactors_share_the_rounds() {
        let Some(server) = crate::testing::Server::start() else { return };
        let options = Options { endpoints: vec![server.url()], ..Options::default() };
        let etcd = Etcd::connect(options).await.expect("a client");
        let (mut one, mut two) = (etcd.kv.clone(), etcd.kv.clone());
        let first = etcd.put("/a", "1".into(), Expect::Absent, 0).await.expect("a write");

        let mut round_one = turn(&mut one, Round::default()).await.expect("first round");
        let mut round_two = turn(&mut two, Round::default()).await.expect("first round of the other");
        assert_eq!((round_one.version, round_two.version), (1, 1), "the second only learned the version");
        let second = etcd.put("/a", "2".into(), Expect::At(first), 0).await.expect("a write");

        round_two = turn(&mut two, round_two).await.expect("second round");
        assert_eq!(round_two.version, 2, "whoever comes first compacts");
        round_one = turn(&mut one, round_one).await.expect("second round of the other");
        assert_eq!(round_one.version, 2);
        let old = etcd.list("/", "", 0, first - 1).await;
        assert!(matches!(old, Err(Error::Compacted { .. })), "what was before the last round is gone: {old:?}");
        assert!(etcd.list("/", "", 0, second).await.is_ok(), "what is newer is not");
    }
}

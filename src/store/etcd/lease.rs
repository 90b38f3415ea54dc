//! Leases for keys with a time to live, shared by many keys: a lease per key would weigh more in etcd than the key.
//!
//! As upstream: a lease lives a little longer than its keys ask for (5% of the TTL, a minute at most), and serves all
//! who ask for the same TTL in that margin, up to a thousand keys.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use etcd_client::LeaseClient;

use super::error::unavailable;
use crate::{Error, Result};

const KEYS_PER_LEASE: usize = 1000;
const MARGIN_MAX: i64 = 60;
const PATIENCE: Duration = Duration::from_secs(5);

pub(super) struct Leases {
    client: LeaseClient,
    /// The newest lease by TTL. Held while one is granted, so that those who come meanwhile share it.
    newest: tokio::sync::Mutex<HashMap<i64, Lease>>,
}

struct Lease {
    id: i64,
    until: Instant,
    keys: usize,
}

impl Leases {
    pub(super) fn new(client: LeaseClient) -> Self {
        Self { client, newest: tokio::sync::Mutex::new(HashMap::new()) }
    }

    /// A lease that lives at least `ttl` seconds from now.
    pub(super) async fn get(&self, ttl: i64) -> Result<i64> {
        let mut newest = self.newest.lock().await;
        let now = Instant::now();
        newest.retain(|_, lease| lease.until > now && lease.keys < KEYS_PER_LEASE);
        if let Some(lease) = newest.get_mut(&ttl) {
            lease.keys += 1;
            return Ok(lease.id);
        }
        let margin = (ttl / 20).min(MARGIN_MAX);
        let id = self.grant(ttl + margin).await?;
        newest.insert(ttl, Lease { id, until: now + Duration::from_secs(margin.unsigned_abs()), keys: 1 });
        Ok(id)
    }

    async fn grant(&self, ttl: i64) -> Result<i64> {
        let mut client = self.client.clone();
        match tokio::time::timeout(PATIENCE, client.grant(ttl, None)).await {
            Ok(granted) => Ok(granted.map_err(unavailable)?.id()),
            Err(_) => Err(Error::Unavailable("lease grant: no answer".into())),
        }
    }

    /// Hands this lease out no more.
    pub(super) fn forget(&self, id: i64) {
        if let Ok(mut newest) = self.newest.try_lock() {
            newest.retain(|_, lease| lease.id != id);
        }
    }
}

//! The node's lease: a sign of life every quarter of its duration.

use base::shutdown::{Shutdown, unless};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference};
use kube::api::{Api, PostParams};
use std::time::Duration;

const NAMESPACE: &str = "kube-node-lease";

/// Renews the lease until the shutdown.
pub struct LeaseKeeper {
    /// Way to the API server.
    pub client: kube::Client,
    /// The node's name.
    pub node: String,
    /// How long the lease is good for, in seconds.
    pub seconds: i32,
}

impl LeaseKeeper {
    /// Runs until the shutdown.
    pub async fn run(self, shutdown: Shutdown) {
        let every = Duration::from_secs_f64(f64::from(self.seconds) / 4.0);
        let mut last: Option<Lease> = None;
        let mut failures: u32 = 0;
        loop {
            let wait = match self.renew(last.take()).await {
                Ok(lease) => {
                    last = Some(lease);
                    failures = 0;
                    every.mul_f64(rand::random_range(1.0..1.04))
                }
                Err(error) => {
                    failures += 1;
                    let error = client::retry::message(&error);
                    tracing::warn!(error, "can't renew the node's lease");
                    Duration::from_millis(200).saturating_mul(1 << failures.min(6)).min(every)
                }
            };
            if unless(&shutdown, tokio::time::sleep(wait)).await.is_none() {
                return;
            }
        }
    }

    /// Replaces the lease as it was last seen; looks it up, or makes it, when there is none or it has changed.
    async fn renew(&self, last: Option<Lease>) -> kube::Result<Lease> {
        let api: Api<Lease> = Api::namespaced(self.client.clone(), NAMESPACE);
        if let Some(mut lease) = last {
            self.stamp(&mut lease);
            match api.replace(&self.node, &PostParams::default(), &lease).await {
                Err(error) if client::retry::is_conflict(&error) || client::retry::is_not_found(&error) => {}
                done => return done,
            }
        }
        match api.get_opt(&self.node).await? {
            Some(mut lease) => {
                self.stamp(&mut lease);
                if lease.metadata.owner_references.is_none() {
                    lease.metadata.owner_references = self.owner().await?;
                }
                api.replace(&self.node, &PostParams::default(), &lease).await
            }
            None => {
                let metadata = ObjectMeta {
                    name: Some(self.node.clone()),
                    namespace: Some(NAMESPACE.into()),
                    owner_references: self.owner().await?,
                    ..Default::default()
                };
                let mut lease = Lease { metadata, spec: None };
                self.stamp(&mut lease);
                api.create(&PostParams::default(), &lease).await
            }
        }
    }

    fn stamp(&self, lease: &mut Lease) {
        let spec = lease.spec.get_or_insert_with(LeaseSpec::default);
        spec.holder_identity = Some(self.node.clone());
        spec.lease_duration_seconds = Some(self.seconds);
        spec.renew_time = Some(MicroTime(Timestamp::now()));
    }

    async fn owner(&self) -> kube::Result<Option<Vec<OwnerReference>>> {
        let node = Api::<Node>::all(self.client.clone()).get_opt(&self.node).await?;
        Ok(node.and_then(|node| node.metadata.uid).map(|uid| {
            vec![OwnerReference {
                api_version: "v1".into(),
                kind: "Node".into(),
                name: self.node.clone(),
                uid,
                ..Default::default()
            }]
        }))
    }
}

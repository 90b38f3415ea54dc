//! ClusterIPs and node ports: who has which.

use crate::{Api, Settings};
use api::status::Status;
use std::sync::Arc;

/// The allocators of Services.
pub struct Services {}

impl Services {
    /// Allocators for the ranges of the settings.
    pub fn new(_settings: &Settings) -> Self {
        Self {}
    }

    /// Makes the default ServiceCIDR where it is missing and records what Services hold but nobody noted; run at
    /// start, before the server is ready, and every few minutes.
    ///
    /// # Errors
    /// When the store does not answer.
    pub async fn repair(_api: &Arc<Api>) -> Result<(), Status> {
        todo!()
    }
}

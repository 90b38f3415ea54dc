//! What all requests share beside the registry's state, and the door they come in by.

use std::sync::Arc;

use base::server::{Handler, Peer};
use base::shutdown::Shutdown;
use hyper::body::Incoming;

use crate::Api;
use crate::authn::Verdicts;
use crate::chain::{self, Connection};
use crate::cors::Cors;
use crate::discovery::Discovery;
use crate::endpoints::oidc::Oidc;
use crate::flow::Flow;
use crate::health::Health;
use crate::metrics::Metrics;
use crate::options::Options;
use crate::request::{Answer, Body};
use crate::streams::Streams;

/// The API server.
pub struct Server {
    /// State of the registry.
    pub api: Arc<Api>,
    /// What the command line said.
    pub options: Options,
    /// How many requests run at a time.
    pub flow: Flow,
    /// Metrics.
    pub metrics: Arc<Metrics>,
    /// Health checks.
    pub health: Health,
    /// Discovery documents.
    pub discovery: Discovery,
    /// Documents by which others verify our tokens.
    pub oidc: Oidc,
    /// Which pages of other origins may ask.
    pub cors: Cors,
    /// The way to kubelets.
    pub streams: Streams,
    /// Cancelled when streams have to end.
    pub ending: Shutdown,
}

/// [`Server`] as a handler of connections.
pub struct Door(pub Arc<Server>);

impl Handler for Door {
    type Connection = Connection;
    type Body = Body;

    fn connected(&self, peer: Peer) -> Connection {
        Connection { peer, verdicts: Verdicts::default() }
    }

    async fn call(&self, connection: Arc<Connection>, request: http::Request<Incoming>) -> Answer {
        chain::serve(&self.0, &connection, request).await
    }
}

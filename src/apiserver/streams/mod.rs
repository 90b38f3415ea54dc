//! Streams between clients and kubelets (log, exec, attach, portforward), and requests that are passed on (proxy).
//!
//! ```text
//!  query ─► options ─► admission (CONNECT) ─► locate: pod → node → kubelet ─┬─► log:     bytes, as they come
//!                                                                          ├─► upgrade: connections, byte for byte
//!                                                                          ├─► exec:    websocket v5 ⇄ SPDY
//!                                                                          └─► proxy:   any request, links rewritten
//! ```
//!
//! A connection that was upgraded leaves the server's hands: a task of its own serves it, until either side ends it or
//! the server's streams end.

mod exec;
mod forward;
mod locate;
mod log;
mod metrics;
mod options;
mod proxy;
pub mod spdy;
mod upgrade;
mod websocket;
mod wire;
mod words;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use api::Value;
use api::resources::Row;
use api::status::Status;
use base::Fault;
use base::server::Peer;
use base::shutdown::Shutdown;

use crate::Api;
use crate::admission::{Operation, Review};
use crate::authz::Attributes;
use crate::request::{Answer, Request};
use metrics::Metrics;
use options::Remote;
use wire::Wire;

/// What streams need beside the registry.
pub struct Streams {
    wire: Arc<Wire>,
    metrics: Arc<Metrics>,
    /// Cancelled when streams have to end.
    ending: Shutdown,
}

impl Streams {
    /// As the `--kubelet-*` flags say; streams end with `ending`.
    ///
    /// # Errors
    /// When a certificate can't be read.
    pub fn new(options: &crate::options::Kubelet, shutdown: &Shutdown, ending: Shutdown) -> Result<Self, Fault> {
        Ok(Self { wire: Arc::new(Wire::new(options, shutdown)?), metrics: Arc::new(Metrics::register()), ending })
    }

    /// Serves a connection that has left the server's hands, until it or the streams end.
    fn run(&self, work: impl Future<Output = ()> + Send + 'static) {
        let ending = self.ending.clone();
        tokio::spawn(async move { base::shutdown::unless(&ending, work).await });
    }
}

/// A request on its way to a kubelet, a pod or a node.
struct Call<'a> {
    streams: &'a Streams,
    api: &'a Arc<Api>,
    peer: &'a Peer,
    row: &'a Arc<Row>,
    req: &'a mut Request,
}

/// Answers a request to one of the subresources `attach`, `exec`, `log`, `portforward`, `proxy`. The dispatcher has
/// checked that the row has it with that verb. A proxied body is in `unread`, an upgrade in `upgrade`.
///
/// # Errors
/// Whatever upstream answers.
pub async fn serve(
    streams: &Streams, api: &Arc<Api>, peer: &Peer, row: &Arc<Row>, req: &mut Request,
) -> Result<Answer, Status> {
    let call = Call { streams, api, peer, row, req };
    let subresource = call.req.info.subresource.clone();
    match subresource.as_str() {
        "log" => log::serve(call).await,
        "exec" => remote(call, "exec", "PodExecOptions").await,
        "attach" => remote(call, "attach", "PodAttachOptions").await,
        "portforward" => port_forward(call).await,
        _ => proxy::serve(call).await,
    }
}

async fn remote(call: Call<'_>, verb: &str, kind: &str) -> Result<Answer, Status> {
    call.no_dry_run()?;
    let options = Remote::read(&call.req.query);
    call.admit(kind, options.object(kind)).await?;
    call.may_create()?;
    let (backend, websockets) = call.remote(verb, &options).await?;
    call.streams.metrics.routed(verb, websockets);
    match websocket::wants_v5(&call.req.headers) && !websockets {
        true => exec::translate(call, backend, options),
        false => upgrade::pass(call, &backend).await,
    }
}

async fn port_forward(call: Call<'_>) -> Result<Answer, Status> {
    call.no_dry_run()?;
    let ports = options::ports(&call.req.query).map_err(Status::bad_request)?;
    let kind = "PodPortForwardOptions";
    call.admit(kind, serde_json::json!({"kind": kind, "apiVersion": "v1", "ports": ports})).await?;
    call.may_create()?;
    let (backend, websockets) = call.port_forward(&ports).await?;
    let metrics = call.streams.metrics.clone();
    metrics.routed("portforward", websockets);
    match websocket::wants_tunnel(&call.req.headers) && !websockets {
        true => {
            let outcome = upgrade::tunnel(call, &backend).await;
            metrics.tunnelled(outcome.as_ref().map_or_else(|status| status.code, |answer| answer.status().as_u16()));
            outcome
        }
        false => upgrade::pass(call, &backend).await,
    }
}

impl Call<'_> {
    fn no_dry_run(&self) -> Result<(), Status> {
        match self.req.param("dryRun") {
            Some(_) => Err(Status::bad_request("dryRun is not supported")),
            None => Ok(()),
        }
    }

    /// Lets admission see the connection; the object is its options.
    async fn admit(&self, kind: &str, mut object: Value) -> Result<(), Status> {
        let (warnings, options) = (parking_lot::Mutex::default(), Value::Null);
        let info = &self.req.info;
        let review = Review {
            api: self.api,
            row: self.row,
            version: &info.version,
            kind: ("", "v1", kind),
            namespace: &info.namespace,
            name: &info.name,
            subresource: &info.subresource,
            operation: Operation::Connect,
            user: &self.req.user,
            dry_run: false,
            options: &options,
            old: None,
            warnings: &warnings,
        };
        self.api.admission.mutate(&review, &mut object).await?;
        self.api.admission.validate(&review, &object).await
    }

    /// A websocket comes as a GET, but what it does needs the right to create (AuthorizePodWebsocketUpgradeCreatePermission,
    /// kubernetes/kubernetes#134577).
    fn may_create(&self) -> Result<(), Status> {
        let info = &self.req.info;
        if info.verb == "create" {
            return Ok(());
        }
        let asked = Attributes { verb: "create", ..Attributes::of(info, &self.req.query) };
        match self.api.authorizer.authorize(&self.req.user, &asked) {
            crate::authz::Decision::Allow(_) => Ok(()),
            // Upstream says only the reason here, which mostly is none.
            crate::authz::Decision::Deny(reason) | crate::authz::Decision::NoOpinion(reason) => {
                Err(Status::forbidden(self.row.group_resource(), &info.name, reason))
            }
        }
    }
}

//! Streams between clients and kubelets: log, exec, attach, portforward, proxy.

use std::sync::Arc;

use api::resources::Row;
use api::status::Status;

use crate::Api;
use crate::request::{Answer, Request};

/// Answers a request to one of the subresources `attach`, `exec`, `log`, `portforward`, `proxy`. The dispatcher has
/// checked that the row has it with that verb. A proxied body is in `unread`, an upgrade in `upgrade`.
///
/// # Errors
/// Whatever upstream answers.
pub async fn serve(_api: &Arc<Api>, _row: &Arc<Row>, _req: &mut Request) -> Result<Answer, Status> {
    Err(Status::internal("streams are not served yet"))
}

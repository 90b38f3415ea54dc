//! Answers that are no objects: text, small JSON documents, and failures.

use api::status::Status;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};

use crate::request::{Answer, Body};

/// Why a request gets no answer of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// As a Status object, in the encoding the client accepts.
    Status(Status),
    /// As plain text.
    Text(u16, String),
}

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        Failure::Status(status)
    }
}

impl Failure {
    /// The status code.
    pub fn code(&self) -> u16 {
        match self {
            Failure::Status(status) => status.code,
            Failure::Text(code, _) => *code,
        }
    }

    /// The answer.
    pub fn answer(&self, headers: &HeaderMap) -> Answer {
        match self {
            Failure::Status(status) => {
                let mut answer = crate::registry::output::failure(headers, status);
                if let Some(seconds) = status.details.as_ref().map(|d| d.retry_after_seconds).filter(|s| *s > 0) {
                    answer.headers_mut().insert(header::RETRY_AFTER, seconds.into());
                }
                answer
            }
            Failure::Text(code, text) => {
                let code = StatusCode::from_u16(*code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
                plain(code, text.clone())
            }
        }
    }
}

/// A path that nobody serves.
pub fn page_not_found() -> Failure {
    Failure::Text(404, "404 page not found\n".into())
}

fn bare(code: u16, reason: &'static str, message: &str) -> Failure {
    let mut status = Status::new(code, reason, message);
    status.details = Some(Box::default());
    Failure::Status(status)
}

/// A path below a group that is served, which leads to no resource.
pub fn resource_not_found() -> Failure {
    bare(404, "NotFound", "the server could not find the requested resource")
}

/// A path that has no such method.
pub fn method_not_allowed() -> Failure {
    bare(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
}

/// A path that has nothing in a form the client accepts.
pub fn not_acceptable(available: &str) -> Failure {
    bare(406, "NotAcceptable", &format!("406: Not Acceptable\n\nAvailable representations: {available}"))
}

/// Plain text.
pub fn plain(code: StatusCode, text: impl Into<String>) -> Answer {
    let mut answer = typed("text/plain; charset=utf-8", text.into());
    *answer.status_mut() = code;
    answer.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    answer
}

/// A body of that content type.
pub fn typed(content_type: &'static str, body: impl Into<Vec<u8>>) -> Answer {
    let mut answer = Answer::new(Body::from(body.into()));
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    answer
}

/// A JSON document.
pub fn json(value: &api::Value) -> Answer {
    typed("application/json", value.to_string())
}

/// Lets GET and HEAD through.
///
/// # Errors
/// 405 for other methods.
pub fn only_get(method: &Method) -> Result<(), Failure> {
    if matches!(*method, Method::GET | Method::HEAD) { Ok(()) } else { Err(method_not_allowed()) }
}

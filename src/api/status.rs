//! `Status`, the body of every answer that is not an object: one constructor per failure, in upstream's words.
//!
//! Source of reasons and texts: apimachinery `api/errors` (the field's public contract) and the API reference of
//! `meta/v1.Status`.

use serde::{Deserialize, Serialize};

/// One cause of a failure: the field at fault and why.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cause {
    /// Machine-readable cause, for example `FieldValueInvalid`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Human-readable text.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Path of the field, as in `spec.containers[0].name`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub field: String,
}

/// What the failure is about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Details {
    /// Name of the object.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// API group of the resource.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub group: String,
    /// The resource (`pods`) or, for validation failures, the kind (`Pod`).
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// UID of the object.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// Causes, in upstream's order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<Cause>,
    /// Seconds the client should wait before it tries again; also sent as `Retry-After`.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub retry_after_seconds: u32,
}

fn is_zero(n: &u32) -> bool {
    *n == 0
}

/// A `meta/v1` Status: the error type of the API layer and of everything the API server answers with.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Status {
    /// HTTP status code; 0 in the answer to a deletion, which names none.
    pub code: u16,
    /// Machine-readable reason; empty where upstream sends none.
    pub reason: &'static str,
    /// Human-readable text.
    pub message: String,
    /// What it is about.
    pub details: Option<Box<Details>>,
    /// `metadata.continue`: the fresh token of an expired list (410).
    pub continue_token: Option<String>,
}

/// The resource (or kind) a constructor speaks about: group and name, printed as `pods` or `deployments.apps`.
#[derive(Clone, Copy, Debug)]
pub struct Of<'a> {
    /// API group, empty for core.
    pub group: &'a str,
    /// Resource or kind name.
    pub name: &'a str,
}

impl std::fmt::Display for Of<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.group {
            "" => f.write_str(self.name),
            group => write!(f, "{}.{}", self.name, group),
        }
    }
}

impl Status {
    /// A Status with a code, a reason and a text, and nothing else.
    pub fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into(), details: None, continue_token: None }
    }

    fn about(mut self, of: Of<'_>, name: &str) -> Self {
        let details = self.details.get_or_insert_default();
        details.group = of.group.into();
        details.kind = of.name.into();
        details.name = name.into();
        self
    }

    /// Adds a cause.
    pub fn cause(mut self, reason: &str, message: impl Into<String>, field: impl Into<String>) -> Self {
        let cause = Cause { reason: reason.into(), message: message.into(), field: field.into() };
        self.details.get_or_insert_default().causes.push(cause);
        self
    }

    /// Asks the client to come back after so many seconds.
    pub fn retry_after(mut self, seconds: u32) -> Self {
        self.details.get_or_insert_default().retry_after_seconds = seconds;
        self
    }

    /// 404: no object of that name.
    pub fn not_found(of: Of<'_>, name: &str) -> Self {
        Self::new(404, "NotFound", format!("{of} {} not found", crate::field::quote(name))).about(of, name)
    }

    /// 409: an object of that name is there already.
    pub fn already_exists(of: Of<'_>, name: &str) -> Self {
        Self::new(409, "AlreadyExists", format!("{of} \"{name}\" already exists")).about(of, name)
    }

    /// 409: the write lost a race or failed a precondition.
    pub fn conflict(of: Of<'_>, name: &str, why: impl std::fmt::Display) -> Self {
        Self::new(409, "Conflict", format!("Operation cannot be fulfilled on {of} \"{name}\": {why}")).about(of, name)
    }

    /// 403: authorization or admission refused.
    pub fn forbidden(of: Of<'_>, name: &str, why: impl std::fmt::Display) -> Self {
        let message = match (of.name, name) {
            ("", _) => format!("forbidden: {why}"),
            (_, "") => format!("{of} is forbidden: {why}"),
            _ => format!("{of} \"{name}\" is forbidden: {why}"),
        };
        Self::new(403, "Forbidden", message).about(of, name)
    }

    /// 422: the object breaks rules; one cause per error. `of.name` is the kind here, as upstream has it.
    pub fn invalid(of: Of<'_>, name: &str, errors: crate::field::Errors) -> Self {
        let message = match errors.aggregate() {
            Some(text) => format!("{of} \"{name}\" is invalid: {text}"),
            None => format!("{of} \"{name}\" is invalid"),
        };
        let mut status = Self::new(422, "Invalid", message).about(of, name);
        let causes =
            errors.into_iter().map(|e| Cause { reason: e.kind.reason().into(), message: e.body(), field: e.field });
        status.details.get_or_insert_default().causes = causes.collect();
        status
    }

    /// 400: the request makes no sense.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    /// 401: nobody knows who is asking.
    pub fn unauthorized() -> Self {
        Self::new(401, "Unauthorized", "Unauthorized")
    }

    /// 410: the asked revision is compacted away.
    pub fn expired(message: impl Into<String>) -> Self {
        Self::new(410, "Expired", message)
    }

    /// 500: a fault on our side.
    pub fn internal(why: impl std::fmt::Display) -> Self {
        let message = format!("Internal error occurred: {why}");
        Self::new(500, "InternalError", message).cause("", why.to_string(), "")
    }

    /// The Status as the object that goes over the wire.
    pub fn to_value(&self) -> crate::Value {
        let mut metadata = crate::Map::new();
        if let Some(token) = &self.continue_token {
            metadata.insert("continue".into(), token.clone().into());
        }
        let mut status = crate::Map::new();
        status.insert("kind".into(), "Status".into());
        status.insert("apiVersion".into(), "v1".into());
        status.insert("metadata".into(), metadata.into());
        status.insert("status".into(), if self.code < 400 { "Success" } else { "Failure" }.into());
        if !self.message.is_empty() {
            status.insert("message".into(), self.message.clone().into());
        }
        if !self.reason.is_empty() {
            status.insert("reason".into(), self.reason.into());
        }
        if let Some(details) = &self.details {
            status.insert("details".into(), serde_json::to_value(details).unwrap_or_default());
        }
        if self.code != 0 {
            status.insert("code".into(), self.code.into());
        }
        status.into()
    }
}

//! `serviceaccounts/token`: TokenRequest. Claims are made here; keys are the issuer's.

use api::Value;
use api::status::Status;

/// Who signs service-account tokens.
pub trait Issuer: Send + Sync {
    /// `iss` of the tokens.
    fn issuer(&self) -> &str;

    /// Audiences of a token whose request names none: those of the API server.
    fn audiences(&self) -> &[String];

    /// The longest life of a token in seconds; 0 when there is no bound.
    fn max_expiration(&self) -> i64;

    /// Seconds by which the life of a token that a pod asks for (3607) is extended; 0 when that is off.
    fn extension(&self) -> i64;

    /// Signs claims.
    ///
    /// # Errors
    /// 500 when the key does not sign.
    fn sign(&self, claims: &Value) -> Result<String, Status>;
}

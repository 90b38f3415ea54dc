//! The documents by which others verify service-account tokens: discovery and the key set.

use http::Method;
use serde_json::json;

use crate::authn::keys::Verifier;
use crate::request::Answer;
use crate::respond::{Failure, only_get, page_not_found, typed};

/// The documents, as bytes; none where no issuer is a URL.
pub struct Oidc {
    configuration: Option<String>,
    keys: String,
}

impl Oidc {
    /// For an issuer and its keys; `jwks_uri` is where the keys are served.
    pub fn new(issuer: &str, jwks_uri: &str, keys: &[Verifier]) -> Self {
        let mut algorithms: Vec<String> = keys.iter().map(|k| format!("{:?}", k.algorithm)).collect();
        algorithms.sort();
        algorithms.dedup();
        let configuration = json!({
            "issuer": issuer,
            "jwks_uri": jwks_uri,
            "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": algorithms,
        });
        let keys: Vec<_> = keys.iter().map(|k| k.jwk.clone()).collect();
        Self {
            configuration: issuer.starts_with("https://").then(|| configuration.to_string()),
            keys: json!({ "keys": keys }).to_string(),
        }
    }

    /// Answers `/.well-known/openid-configuration`.
    ///
    /// # Errors
    /// 404 when the issuer is no URL, 405.
    pub fn configuration(&self, method: &Method) -> Result<Answer, Failure> {
        only_get(method)?;
        let document = self.configuration.as_ref().ok_or_else(page_not_found)?;
        Ok(cached(typed("application/json", document.clone())))
    }

    /// Answers `/openid/v1/jwks`.
    ///
    /// # Errors
    /// 404 when the issuer is no URL, 405.
    pub fn keys(&self, method: &Method) -> Result<Answer, Failure> {
        only_get(method)?;
        self.configuration.as_ref().ok_or_else(page_not_found)?;
        Ok(cached(typed("application/jwk-set+json", self.keys.clone())))
    }
}

fn cached(mut answer: Answer) -> Answer {
    let value = http::HeaderValue::from_static("public, max-age=3600");
    answer.headers_mut().insert(http::header::CACHE_CONTROL, value);
    answer
}

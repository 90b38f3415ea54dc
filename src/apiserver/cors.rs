//! Which pages of other origins may ask this server from a browser (`--cors-allowed-origins`).

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use regex::Regex;

use crate::request::{Answer, Body};

/// Patterns of origins; without any nobody may.
pub struct Cors(Vec<Regex>);

const METHODS: &str = "POST, GET, OPTIONS, PUT, DELETE, PATCH";
const HEADERS: &str =
    "Content-Type, Content-Length, Accept-Encoding, X-CSRF-Token, Authorization, X-Requested-With, If-Modified-Since";
const MARKS: [(HeaderName, &str); 4] = [
    (header::ACCESS_CONTROL_ALLOW_METHODS, METHODS),
    (header::ACCESS_CONTROL_ALLOW_HEADERS, HEADERS),
    (header::ACCESS_CONTROL_EXPOSE_HEADERS, "Date"),
    (header::ACCESS_CONTROL_ALLOW_CREDENTIALS, "true"),
];

impl Cors {
    /// From the flag's patterns.
    ///
    /// # Errors
    /// When one is no regular expression.
    pub fn new(patterns: &[String]) -> Result<Self, String> {
        let compiled = patterns.iter().map(|p| Regex::new(p).map_err(|e| format!("cors-allowed-origins: {e}")));
        Ok(Self(compiled.collect::<Result<_, _>>()?))
    }

    /// The origin of a request, when it may ask.
    pub fn allowed(&self, headers: &HeaderMap) -> Option<HeaderValue> {
        if self.0.is_empty() {
            return None;
        }
        let origin = headers.get(header::ORIGIN)?;
        let text = origin.to_str().ok()?;
        self.0.iter().any(|p| p.is_match(text)).then(|| origin.clone())
    }

    /// Answers a browser that asks whether it may ask.
    pub fn preflight(&self, origin: Option<HeaderValue>) -> Answer {
        let mut answer = Answer::new(Body::empty());
        *answer.status_mut() = StatusCode::NO_CONTENT;
        self.mark(&mut answer, origin);
        answer
    }

    /// Tells the browser that it may read the answer.
    pub fn mark(&self, answer: &mut Answer, origin: Option<HeaderValue>) {
        let Some(origin) = origin else { return };
        answer.headers_mut().insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        for (name, value) in MARKS {
            answer.headers_mut().insert(name, HeaderValue::from_static(value));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_listed_origins_may_ask() {
        let cors = Cors::new(&["^https://ok\\.example$".to_string()]).expect("patterns");
        let from = |origin: &str| HeaderMap::from_iter([(header::ORIGIN, origin.parse().expect("value"))]);
        assert!(cors.allowed(&from("https://ok.example")).is_some());
        assert!(cors.allowed(&from("https://bad.example")).is_none());
        let answer = cors.preflight(cors.allowed(&from("https://ok.example")));
        assert_eq!(answer.headers()[header::ACCESS_CONTROL_ALLOW_ORIGIN], "https://ok.example");
        assert!(Cors::new(&["(".to_string()]).is_err());
    }
}

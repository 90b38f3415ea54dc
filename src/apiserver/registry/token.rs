//! Continue tokens, in upstream's format: where a list goes on, and at which revision.

use base64::Engine as _;
use base64::alphabet::URL_SAFE;
use base64::engine::general_purpose::{GeneralPurpose, NO_PAD, URL_SAFE_NO_PAD};
use serde::{Deserialize, Serialize};
use store::Revision;

/// Go's decoder does not look at the bits that are left over at the end.
const LENIENT: GeneralPurpose = GeneralPurpose::new(&URL_SAFE, NO_PAD.with_decode_allow_trailing_bits(true));

const VERSION: &str = "meta.k8s.io/v1";

/// A place in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    /// Revision of the first page; negative asks for the newest, which makes the list inconsistent.
    pub revision: Revision,
    /// First key of the next page, relative to the list's prefix.
    pub start: String,
}

#[derive(Serialize, Deserialize)]
struct Wire {
    #[serde(default)]
    v: String,
    #[serde(default)]
    rv: i64,
    #[serde(default)]
    start: String,
}

impl Token {
    /// The text that clients get.
    pub fn encode(&self) -> String {
        let wire = Wire { v: VERSION.into(), rv: self.revision, start: self.start.clone() };
        let json = serde_json::to_value(&wire).unwrap_or_default();
        // Go writes the field order of its struct and escapes the NUL as six characters; so does serde_json.
        let text = format!("{{\"v\":{},\"rv\":{},\"start\":{}}}", json["v"], json["rv"], json["start"]);
        URL_SAFE_NO_PAD.encode(text)
    }

    /// Reads what a client sent back.
    ///
    /// # Errors
    /// Upstream's text.
    pub fn decode(text: &str) -> Result<Self, String> {
        let invalid = |why: &dyn std::fmt::Display| format!("continue key is not valid: {why}");
        let bytes = LENIENT.decode(text).map_err(|e| invalid(&base64_error(text, &e)))?;
        if let Some(why) = not_json(&bytes) {
            return Err(invalid(&why));
        }
        let wire: Wire = serde_json::from_slice(&bytes).map_err(|e| invalid(&e))?;
        match (&*wire.v, wire.rv, &*wire.start) {
            (VERSION, 0, _) => Err(invalid(&"incorrect encoded start resourceVersion (version meta.k8s.io/v1)")),
            (VERSION, _, "") => Err(invalid(&"encoded start key empty (version meta.k8s.io/v1)")),
            (VERSION, revision, start) if is_clean(start) => {
                Ok(Self { revision, start: start.trim_start_matches('/').into() })
            }
            (VERSION, _, start) => Err(invalid(&start)),
            (other, ..) => {
                Err(format!("continue key is not valid: server does not recognize this encoded version {other}"))
            }
        }
    }
}

/// What Go's decoder says of bytes that don't begin as JSON does.
fn not_json(bytes: &[u8]) -> Option<String> {
    let first = *bytes.iter().find(|b| !b.is_ascii_whitespace())?;
    if matches!(first, b'{' | b'[' | b'"' | b'-' | b'0'..=b'9' | b't' | b'f' | b'n') {
        return None;
    }
    // Go looks at one byte and prints it as the character of that number.
    let shown = match first {
        b'\'' => "'\\''".to_string(),
        0x20..=0x7e => format!("'{}'", char::from(first)),
        0x80..=0x9f | 0xad => format!("'\\u{first:04x}'"),
        0xa0..=0xff => format!("'{}'", char::from(first)),
        other => format!("'\\x{other:02x}'"),
    };
    Some(format!("invalid character {shown} looking for beginning of value"))
}

fn base64_error(text: &str, error: &base64::DecodeError) -> String {
    let at = match error {
        base64::DecodeError::InvalidByte(at, _) => *at,
        _ => text.len() - text.len() % 4,
    };
    format!("illegal base64 data at input byte {at}")
}

/// No path that could lead out of the list's own part: what Go's `path.Clean` leaves as it is.
fn is_clean(start: &str) -> bool {
    let path = start.strip_prefix('/').unwrap_or(start);
    path.split('/').all(|part| !matches!(part, "" | "." | ".."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_upstreams() {
        let token = Token { revision: 7, start: "c1\0".into() };
        let text = r#"{"v":"meta.k8s.io/v1","rv":7,"start":"c1\u0000"}"#;
        assert_eq!(URL_SAFE_NO_PAD.decode(token.encode()).expect("base64"), text.as_bytes());
        assert_eq!(Token::decode(&token.encode()), Ok(token));
    }

    #[test]
    fn bad_tokens_are_refused_in_upstreams_words() {
        let of = |json: &str| Token::decode(&URL_SAFE_NO_PAD.encode(json)).expect_err("refused");
        let garbage = Token::decode("garbage").expect_err("refused");
        assert_eq!(garbage, "continue key is not valid: invalid character '\\u0081' looking for beginning of value");
        let abc = Token::decode("abc").expect_err("refused");
        assert_eq!(abc, "continue key is not valid: invalid character 'i' looking for beginning of value");
        let empty = of(r#"{"v":"meta.k8s.io/v1","rv":-1}"#);
        assert_eq!(empty, "continue key is not valid: encoded start key empty (version meta.k8s.io/v1)");
        assert!(of(r#"{"v":"v9","rv":1,"start":"a"}"#).contains("does not recognize this encoded version v9"));
        for start in ["../secrets/x", "a/../../b", "a//b", "a/./b", "/"] {
            let refused = of(&format!(r#"{{"v":"meta.k8s.io/v1","rv":1,"start":"{start}"}}"#));
            assert_eq!(refused, format!("continue key is not valid: {start}"));
        }
    }
}

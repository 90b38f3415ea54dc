//! What went wrong on the way to a backend, in the words of Go's network libraries: clients print them, and people
//! search for them.

use std::io;

/// An error of a socket.
pub fn io(error: &io::Error) -> String {
    if let Some(tls) = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        return self::tls(tls);
    }
    match (error.raw_os_error(), error.kind()) {
        (Some(code), _) => errno(code),
        (None, io::ErrorKind::TimedOut) => "i/o timeout".into(),
        (None, io::ErrorKind::UnexpectedEof) => "EOF".into(),
        (None, _) => error.to_string(),
    }
}

/// The C library's text, without capital and number.
fn errno(code: i32) -> String {
    let text = io::Error::from_raw_os_error(code).to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    let mut chars = text.chars();
    chars.next().map(|first| first.to_lowercase().chain(chars).collect()).unwrap_or_default()
}

/// A handshake that failed.
pub fn tls(error: &rustls::Error) -> String {
    use rustls::{CertificateError as Why, Error};
    let certificate = |why: &Why| match why {
        Why::UnknownIssuer => "certificate signed by unknown authority".to_string(),
        Why::Expired | Why::ExpiredContext { .. } | Why::NotValidYet | Why::NotValidYetContext { .. } => {
            "certificate has expired or is not yet valid".to_string()
        }
        Why::NotValidForName => "certificate is not valid for the name that was asked for".to_string(),
        Why::NotValidForNameContext { expected, presented } => {
            let names: Vec<&str> = presented.iter().map(|name| bare(name)).collect();
            format!("certificate is valid for {}, not {}", names.join(", "), expected.to_str())
        }
        other => other.to_string(),
    };
    match error {
        Error::InvalidCertificate(why) => format!("tls: failed to verify certificate: x509: {}", certificate(why)),
        Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType) => {
            "tls: first record does not look like a TLS handshake".into()
        }
        Error::AlertReceived(alert) => format!("remote error: tls: {alert:?}"),
        other => format!("tls: {other}"),
    }
}

/// `DnsName("x")` as webpki shows names: the name alone.
fn bare(name: &str) -> &str {
    name.split_once("(\"").and_then(|(_, rest)| rest.split_once('"')).map_or(name, |(name, _)| name)
}

/// A request that got no answer.
pub fn http(error: &hyper::Error) -> String {
    let source = std::error::Error::source(error).and_then(|s| s.downcast_ref::<io::Error>());
    match source {
        Some(source) => io(source),
        None if error.is_incomplete_message() || error.is_canceled() || error.is_closed() => "EOF".into(),
        None if error.is_parse() => format!("malformed HTTP response: {error}"),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_sockets_read_as_go_has_them() {
        assert_eq!(io(&io::Error::from_raw_os_error(libc_codes::ECONNREFUSED)), "connection refused");
        assert_eq!(io(&io::Error::from_raw_os_error(libc_codes::EHOSTUNREACH)), "no route to host");
        assert_eq!(io(&io::ErrorKind::UnexpectedEof.into()), "EOF");
        let unknown = rustls::Error::InvalidCertificate(rustls::CertificateError::UnknownIssuer);
        let text = "tls: failed to verify certificate: x509: certificate signed by unknown authority";
        assert_eq!(io(&io::Error::other(unknown)), text);
    }

    /// Linux's numbers.
    mod libc_codes {
        pub const ECONNREFUSED: i32 = 111;
        pub const EHOSTUNREACH: i32 = 113;
    }
}

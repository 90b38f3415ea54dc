//! Ports: the usual ones where they are free, others where nobody insists.

use std::net::{IpAddr, Ipv4Addr, TcpListener};

use super::{Error, Result};

/// True when nobody listens there, on any address.
pub fn is_free(port: u16) -> bool {
    TcpListener::bind((IpAddr::V4(Ipv4Addr::UNSPECIFIED), port)).is_ok()
}

/// A port that the system picks.
///
/// # Errors
/// When there is none.
pub fn any() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).map_err(|e| Error::new("finding a free port", e))?;
    Ok(listener.local_addr().map_err(|e| Error::new("finding a free port", e))?.port())
}

/// Refuses ports that are held by somebody else.
///
/// # Errors
/// Names the first that is taken.
pub fn free(ports: &[(&str, u16)]) -> Result<()> {
    match ports.iter().find(|(_, port)| !is_free(*port)) {
        None => Ok(()),
        Some((what, port)) => Err(Error::new(format!("port {port} for {what}"), "something else listens there now")),
    }
}

/// The port for `what`: the one asked for, which must be free; else the usual one; else any. 0 asks for any.
///
/// # Errors
/// When the one asked for is taken.
pub fn choose(what: &str, asked: Option<u16>, usual: u16) -> Result<u16> {
    match asked {
        Some(0) => any(),
        Some(port) if is_free(port) => Ok(port),
        Some(port) => {
            Err(Error::new(format!("port {port} for {what}"), "something else listens there; name another or 0"))
        }
        None if is_free(usual) => Ok(usual),
        None => any(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taken_port_is_refused_when_asked_for_and_avoided_when_not() {
        let held = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        let port = held.local_addr().unwrap().port();
        assert!(choose("x", Some(port), 1).unwrap_err().to_string().contains(&port.to_string()));
        assert_ne!(choose("x", None, port).unwrap(), port);
    }
}

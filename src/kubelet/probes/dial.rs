//! Connections of probes and hooks, and their failures in the words of Go's network library.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::{TcpSocket, TcpStream};

/// `host:port`, with brackets around IPv6.
pub fn join(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// The reason of an error of the system, as Go prints it.
fn reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "connection refused".into(),
        io::ErrorKind::ConnectionReset => "connection reset by peer".into(),
        io::ErrorKind::HostUnreachable => "no route to host".into(),
        io::ErrorKind::NetworkUnreachable => "network is unreachable".into(),
        io::ErrorKind::TimedOut => "connection timed out".into(),
        _ => error.to_string(),
    }
}

async fn resolve(host: &str, port: u16) -> io::Result<SocketAddr> {
    // No host is this one, as in Go.
    let host = if host.is_empty() { "127.0.0.1" } else { host };
    match host.parse() {
        Ok(ip) => Ok(SocketAddr::new(ip, port)),
        Err(_) => tokio::net::lookup_host((host, port))
            .await?
            .next()
            .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "no such host")),
    }
}

async fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    let stream = socket.connect(address).await?;
    // Probes come often: their sockets must not pile up in TIME_WAIT.
    let reset = socket2_linger(&stream);
    if let Err(error) = reset {
        tracing::debug!(%error, "can't set the linger time of a probe's socket");
    }
    Ok(stream)
}

fn socket2_linger(stream: &TcpStream) -> io::Result<()> {
    stream.set_zero_linger()
}

/// Connects, or says why not in the words of Go's dialer.
pub async fn dial(host: &str, port: u16, timeout: Duration) -> Result<TcpStream, String> {
    let target = join(host, port);
    let attempt = async {
        let address = resolve(host, port).await.map_err(|error| format!("dial tcp: lookup {host}: {error}"))?;
        connect(address).await.map_err(|error| format!("dial tcp {target}: connect: {}", reason(&error)))
    };
    match tokio::time::timeout(timeout, attempt).await {
        Ok(result) => result,
        Err(_) => Err(format!("dial tcp {target}: i/o timeout")),
    }
}

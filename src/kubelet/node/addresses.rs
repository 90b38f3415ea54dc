//! The node's own addresses.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs, UdpSocket};

/// The address to tell, when none was given: the node's name as an address, what its name resolves to, or the one that
/// packets to the world leave from.
pub fn detect(node: &str) -> Result<IpAddr, String> {
    if let Ok(ip) = node.parse() {
        return Ok(ip);
    }
    let resolved = (node, 0).to_socket_addrs().into_iter().flatten().map(|address| address.ip());
    let mut good: Vec<IpAddr> = resolved.filter(usable).collect();
    good.sort_by_key(|ip| ip.is_ipv6());
    if let Some(ip) = good.first() {
        return Ok(*ip);
    }
    outgoing().map_err(|error| format!("can't get ip address of node {node}. error: {error}"))
}

fn usable(ip: &IpAddr) -> bool {
    let link_local = match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    !ip.is_loopback() && !ip.is_unspecified() && !ip.is_multicast() && !link_local
}

/// The source address of packets to the default gateway's side. Nothing is sent.
fn outgoing() -> std::io::Result<IpAddr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.connect(SocketAddr::from((Ipv4Addr::new(198, 51, 100, 1), 9)))?;
    Ok(socket.local_addr()?.ip())
}

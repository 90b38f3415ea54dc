//! UDP flows that the kernel tracks: it keeps each on the endpoint that it first had, or on none, until the flow is
//! forgotten. TCP flows end by themselves.
//!
//! ```text
//!   netlink: list ─► stale (pure): leads to a service, but to none of its endpoints ─► netlink: delete
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{
    self, AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, setsockopt, sockopt,
};
use nix::sys::time::TimeVal;

use crate::model::{Family, Port};

/// The kernel's tracking could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel refused.
    #[error("conntrack: {0}")]
    Refused(#[from] Errno),
    /// It changed what it was listing, so that some may be missing.
    #[error("conntrack: the list is not whole")]
    Partial,
    /// It said something else than it should.
    #[error("conntrack: a message of the kernel can't be read")]
    Garbled,
    /// The thread that asked it is gone.
    #[error("conntrack: {0}")]
    Thread(#[from] tokio::task::JoinError),
}

/// A UDP flow.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Flow {
    /// Where the client sent it.
    to: SocketAddr,
    /// Who answers it.
    answers: SocketAddr,
    /// The attributes that name it to the kernel, as they came.
    name: Vec<u8>,
}

/// Where flows of UDP services may lead: the serving endpoints by the address, or the node port, of the service. A
/// service without endpoints is left out; its flows lead nowhere, and to nowhere better.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Targets {
    by_address: BTreeMap<SocketAddr, BTreeSet<SocketAddr>>,
    by_node_port: BTreeMap<u16, BTreeSet<SocketAddr>>,
}

impl Targets {
    /// The targets of these ports. Changes of policies and hints leave flows alone, as they do for TCP.
    pub fn of(ports: &[Port]) -> Self {
        let mut targets = Self::default();
        for port in ports.iter().filter(|port| port.protocol == "udp") {
            let serving = port.endpoints.iter().filter(|e| e.serving).map(|e| SocketAddr::new(e.ip, e.port));
            let endpoints: BTreeSet<SocketAddr> = serving.collect();
            if endpoints.is_empty() {
                continue;
            }
            for ip in port.cluster_ips.iter().chain(&port.external_ips).chain(&port.balancer_ips) {
                targets.by_address.insert(SocketAddr::new(*ip, port.port), endpoints.clone());
            }
            if port.node_port != 0 {
                targets.by_node_port.insert(port.node_port, endpoints);
            }
        }
        targets
    }

    fn stale(&self, flow: &Flow) -> bool {
        let wrong = |endpoints: &BTreeSet<SocketAddr>| !endpoints.contains(&flow.answers);
        self.by_address.get(&flow.to).is_some_and(wrong) || self.by_node_port.get(&flow.to.port()).is_some_and(wrong)
    }
}

/// Makes the kernel forget the flows of a family that lead to a service but to none of its endpoints. Says how many
/// they were.
///
/// # Errors
/// When the kernel can't be asked, or refuses.
pub async fn reconcile(family: Family, targets: Targets) -> Result<usize, Error> {
    if targets == Targets::default() {
        return Ok(0);
    }
    // The kernel answers from the calling thread.
    tokio::task::spawn_blocking(move || Tracking::open()?.forget(family, &targets)).await?
}

/// A request of netlink's: its kind in the subsystem of tracking, its flags.
type Kind = (u16, u16);

const LIST: Kind = (0x101, NLM_REQUEST | 0x300);
const DELETE: Kind = (0x102, NLM_REQUEST | 0x4);
const NLM_REQUEST: u16 = 1;
const NLM_INTERRUPTED: u16 = 0x10;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const UDP: u8 = 17;

/// Attributes of a flow: the direction of the client's packets, that of answers, its number and its zone.
const ORIGINAL: u16 = 1;
const REPLY: u16 = 2;
const ID: u16 = 12;
const ZONE: u16 = 18;

struct Tracking {
    socket: OwnedFd,
}

impl Tracking {
    fn open() -> Result<Self, Error> {
        let protocol = SockProtocol::NetlinkNetFilter;
        let socket = socket::socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)?;
        // The kernel answers at once, if it does.
        setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::new(10, 0))?;
        Ok(Self { socket })
    }

    fn forget(&self, family: Family, targets: &Targets) -> Result<usize, Error> {
        let (flows, whole) = self.list(family)?;
        let mut count = 0;
        for flow in flows.iter().filter(|flow| targets.stale(flow)) {
            tracing::debug!(to = %flow.to, answers = %flow.answers, "forgetting a flow");
            count += usize::from(self.delete(family, flow)?);
        }
        if whole { Ok(count) } else { Err(Error::Partial) }
    }

    /// The UDP flows, and whether these are all.
    fn list(&self, family: Family) -> Result<(Vec<Flow>, bool), Error> {
        self.send(&message(LIST, family, &[]))?;
        let (mut flows, mut whole) = (Vec::new(), true);
        loop {
            for message in messages(&self.receive()?) {
                let (kind, flags, body) = message?;
                whole &= flags & NLM_INTERRUPTED == 0;
                match kind {
                    NLMSG_DONE => return Ok((flows, whole)),
                    NLMSG_ERROR => refusal(body)?,
                    _ => flows.extend(body.get(4..).and_then(flow)),
                }
            }
        }
    }

    /// Deletes a flow, if it is still there.
    fn delete(&self, family: Family, flow: &Flow) -> Result<bool, Error> {
        self.send(&message(DELETE, family, &flow.name))?;
        for message in messages(&self.receive()?) {
            let (kind, _, body) = message?;
            if kind == NLMSG_ERROR {
                return match refusal(body) {
                    Ok(()) => Ok(true),
                    Err(Error::Refused(Errno::ENOENT)) => Ok(false),
                    Err(error) => Err(error),
                };
            }
        }
        Err(Error::Garbled)
    }

    fn send(&self, message: &[u8]) -> Result<(), Error> {
        socket::sendto(self.socket.as_raw_fd(), message, &NetlinkAddr::new(0, 0), MsgFlags::empty())?;
        Ok(())
    }

    fn receive(&self) -> Result<Vec<u8>, Error> {
        let mut buffer = vec![0; 1 << 16];
        let length = socket::recv(self.socket.as_raw_fd(), &mut buffer, MsgFlags::empty())?;
        buffer.truncate(length);
        Ok(buffer)
    }
}

/// A request with these attributes.
fn message((kind, flags): Kind, family: Family, attributes: &[u8]) -> Vec<u8> {
    let family = if family == Family::V4 { nix::libc::AF_INET } else { nix::libc::AF_INET6 };
    let length = 20 + attributes.len() as u32;
    let mut out = Vec::with_capacity(length as usize);
    out.extend(length.to_ne_bytes());
    out.extend(kind.to_ne_bytes());
    out.extend(flags.to_ne_bytes());
    // Numbers of the request and of the port, which nobody else has on this socket; then the family, version 0.
    out.extend([0; 8]);
    out.extend([family as u8, 0, 0, 0]);
    out.extend(attributes);
    out
}

/// The messages of a datagram: kind, flags, body.
fn messages(mut datagram: &[u8]) -> impl Iterator<Item = Result<(u16, u16, &[u8]), Error>> {
    std::iter::from_fn(move || {
        if datagram.is_empty() {
            return None;
        }
        let parsed = (|| {
            let length = u32::from_ne_bytes(datagram.get(..4)?.try_into().ok()?) as usize;
            let (kind, flags) = (number(datagram, 4)?, number(datagram, 6)?);
            let body = datagram.get(16..length)?;
            datagram = datagram.get(length.next_multiple_of(4)..).unwrap_or_default();
            Some((kind, flags, body))
        })();
        if parsed.is_none() {
            datagram = &[];
        }
        Some(parsed.ok_or(Error::Garbled))
    })
}

fn number(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

/// What an error message says; zero is that all is well.
fn refusal(body: &[u8]) -> Result<(), Error> {
    let code = body.get(..4).and_then(|code| code.try_into().ok()).map(i32::from_ne_bytes).ok_or(Error::Garbled)?;
    if code == 0 { Ok(()) } else { Err(Errno::from_raw(-code).into()) }
}

/// Attributes: kind without flags, value, and all of it as it came.
fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8], &[u8])> {
    std::iter::from_fn(move || {
        let (length, kind) = (usize::from(number(bytes, 0)?), number(bytes, 2)?);
        let value = bytes.get(4..length)?;
        let padded = length.next_multiple_of(4).min(bytes.len());
        let whole = &bytes[..padded];
        bytes = &bytes[padded..];
        Some((kind & 0x3fff, value, whole))
    })
}

fn attribute(bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    attributes(bytes).find(|(kind, ..)| *kind == wanted).map(|(_, value, _)| value)
}

/// Source and destination of a direction, when it is one of UDP.
fn ends(tuple: &[u8]) -> Option<(SocketAddr, SocketAddr)> {
    let (addresses, protocol) = (attribute(tuple, 1)?, attribute(tuple, 2)?);
    if attribute(protocol, 1)? != [UDP] {
        return None;
    }
    let ip = |v4: u16, v6: u16| match attribute(addresses, v4) {
        Some(value) => Some(IpAddr::from(<[u8; 4]>::try_from(value).ok()?)),
        None => Some(IpAddr::from(<[u8; 16]>::try_from(attribute(addresses, v6)?).ok()?)),
    };
    let port = |kind: u16| Some(u16::from_be_bytes(attribute(protocol, kind)?.try_into().ok()?));
    Some((SocketAddr::new(ip(1, 3)?, port(2)?), SocketAddr::new(ip(2, 4)?, port(3)?)))
}

/// The UDP flow that these attributes are of.
fn flow(bytes: &[u8]) -> Option<Flow> {
    let (_, to) = ends(attribute(bytes, ORIGINAL)?)?;
    let (answers, _) = ends(attribute(bytes, REPLY)?)?;
    let naming = attributes(bytes).filter(|(kind, ..)| [ORIGINAL, ID, ZONE].contains(kind));
    Some(Flow { to, answers, name: naming.flat_map(|(.., whole)| whole.iter().copied()).collect() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::tests::alone;
    use std::net::UdpSocket;
    use std::process::Command;

    fn port(endpoints: &[&str]) -> Port {
        let template = Port::test("udp").endpoints.remove(0);
        let endpoint = |address: &&str| {
            let address: SocketAddr = address.parse().unwrap();
            crate::model::Endpoint { ip: address.ip(), port: address.port(), ..template.clone() }
        };
        let endpoints = endpoints.iter().map(endpoint).collect();
        Port {
            cluster_ips: vec!["10.96.0.10".parse().unwrap()],
            port: 53,
            node_port: 30_053,
            endpoints,
            ..Port::test("udp")
        }
    }

    #[test]
    fn flows_to_a_service_that_lead_to_none_of_its_endpoints_are_stale() {
        let targets = Targets::of(&[port(&["10.0.0.1:53", "10.0.0.2:53"])]);
        let stale = |to: &str, answers: &str| {
            targets.stale(&Flow { to: to.parse().unwrap(), answers: answers.parse().unwrap(), name: vec![] })
        };
        assert!(!stale("10.96.0.10:53", "10.0.0.1:53"));
        assert!(stale("10.96.0.10:53", "10.0.0.3:53"), "its endpoint is gone");
        assert!(stale("10.96.0.10:53", "10.96.0.10:53"), "it leads nowhere since there was no endpoint");
        assert!(stale("192.0.2.1:30053", "10.0.0.3:53"), "by node port");
        assert!(!stale("10.96.0.11:53", "10.0.0.3:53"), "not one of ours");
        assert_eq!(Targets::of(&[port(&[])]), Targets::default());
    }

    #[test]
    fn garbled_messages_are_errors_and_not_panics() {
        let whole = message(LIST, Family::V4, &[]);
        assert_eq!(messages(&whole).filter(Result::is_ok).count(), 1);
        for length in 1..whole.len() {
            assert!(messages(&whole[..length]).next().unwrap().is_err());
        }
        assert!(flow(&[9, 0, 1, 0, 1]).is_none());
        assert!(matches!(refusal(&(-1i32).to_ne_bytes()), Err(Error::Refused(Errno::EPERM))));
    }

    #[test]
    fn the_kernel_forgets_flows_whose_endpoint_is_gone_and_keeps_the_others() {
        alone(|| {
            let server = UdpSocket::bind("127.0.0.1:0").unwrap();
            let endpoint = server.local_addr().unwrap();
            let rules = format!(
                "add table ip t\nadd chain ip t out {{ type nat hook output priority -100 ; }}\n\
                 add rule ip t out ip daddr 10.96.0.10 udp dport 53 dnat to {endpoint}\n"
            );
            let route = Command::new("ip").args(["route", "add", "10.96.0.0/16", "dev", "lo"]).status().unwrap();
            assert!(route.success());
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(crate::kernel::run(&rules)).unwrap();
            let client = UdpSocket::bind("127.0.0.1:0").unwrap();
            client.send_to(b"?", "10.96.0.10:53").unwrap();
            server.recv(&mut [0; 8]).unwrap();

            let tracking = Tracking::open().unwrap();
            let kept = Targets::of(&[port(&[&endpoint.to_string()])]);
            assert_eq!(tracking.forget(Family::V4, &kept).unwrap(), 0);
            assert!(tracking.list(Family::V4).unwrap().0.iter().any(|flow| flow.answers == endpoint));
            let moved = Targets::of(&[port(&["127.0.0.9:53"])]);
            assert_eq!(tracking.forget(Family::V4, &moved).unwrap(), 1);
            assert_eq!(tracking.forget(Family::V4, &moved).unwrap(), 0);
            assert_eq!(tracking.forget(Family::V6, &moved).unwrap(), 0);
        });
    }
}

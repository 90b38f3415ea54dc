//! Names of the world outside: asked of the resolvers that this machine or pod was given.
//!
//! ```text
//!   question ─► one of so many slots ─► a resolver that is not known to be dead, any of them ─► the next one …
//!                  └─ none: refused          └─ fails: asked twice a second until it answers again
//! ```
//! This is what CoreDNS's `forward . /etc/resolv.conf { max_concurrent 1000 }` does, with its times.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use hickory_proto::op::{Edns, Message, Query};
use hickory_proto::rr::{Name, RecordType};
use rand::seq::SliceRandom as _;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::metrics::Metrics;

/// How long one resolver is waited for.
const PATIENCE: Duration = Duration::from_secs(2);

/// How long all of them are, for one question.
const DEADLINE: Duration = Duration::from_secs(5);

/// Questions at a time; more are refused.
const SLOTS: usize = 1000;

/// So many failures without a success, and a resolver is not asked before others.
const DEAD: u32 = 2;

/// Time between two looks at a resolver that failed, and how long each lasts.
const LOOK: Duration = Duration::from_millis(500);
const GLANCE: Duration = Duration::from_secs(1);

/// What an answer over UDP may measure without being cut on its way.
const PAYLOAD: u16 = 1232;

/// Why nobody answered.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is nobody to ask.
    #[error("no resolver is configured")]
    Nobody,
    /// Too many are being asked.
    #[error("concurrent queries exceeded maximum {SLOTS}")]
    Busy,
    /// A resolver could not be reached.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// A resolver took too long.
    #[error("no answer in time")]
    Late,
    /// A message could not be read or written.
    #[error("{0}")]
    Message(String),
}

/// The resolvers.
pub struct Forwarder {
    resolvers: Vec<Arc<Resolver>>,
    slots: Semaphore,
    patience: Duration,
    metrics: Arc<Metrics>,
}

struct Resolver {
    address: SocketAddr,
    /// Failures since the last success.
    fails: AtomicU32,
    /// Somebody looks whether it is back.
    watched: AtomicBool,
}

impl Forwarder {
    /// The resolvers of a resolv.conf, but for what is served by this process itself: asking oneself never ends.
    ///
    /// # Errors
    /// When the file can't be read.
    pub fn from_resolv_conf(path: &Path, own: SocketAddr, metrics: Arc<Metrics>) -> std::io::Result<Self> {
        let text = std::fs::read_to_string(path)?;
        let (ours, others): (Vec<_>, Vec<_>) = parse(&text).into_iter().partition(|r| is_own(*r, own));
        if !ours.is_empty() {
            tracing::warn!(?ours, ?path, "these resolvers would be this server itself, and are left out");
        }
        if others.is_empty() {
            tracing::warn!(?path, "there is no resolver, so names outside of the cluster are not found");
        }
        Ok(Self::new(others, metrics))
    }

    /// These resolvers.
    pub fn new(resolvers: Vec<SocketAddr>, metrics: Arc<Metrics>) -> Self {
        let resolver =
            |address| Arc::new(Resolver { address, fails: AtomicU32::new(0), watched: AtomicBool::new(false) });
        let resolvers = resolvers.into_iter().map(resolver).collect();
        Self { resolvers, slots: Semaphore::new(SLOTS), patience: PATIENCE, metrics }
    }

    /// Asks one resolver after the other until one answers, each twice at most: a datagram may be lost.
    ///
    /// # Errors
    /// The last resolver's failure.
    pub async fn ask(&self, query: &Query, recursion: bool) -> Result<Message, Error> {
        let Ok(_slot) = self.slots.try_acquire() else {
            self.metrics.rejected.inc();
            return Err(Error::Busy);
        };
        let end = Instant::now() + DEADLINE;
        let mut last = Error::Nobody;
        let order = self.order();
        for resolver in order.iter().chain(&order) {
            let began = Instant::now();
            let asked = timeout_at(end, ask_one(resolver.address, query, recursion, self.patience));
            match asked.await.unwrap_or(Err(Error::Late)) {
                Ok(answer) => {
                    resolver.fails.store(0, Ordering::Relaxed);
                    let code = answer.metadata.response_code;
                    self.metrics.answered(resolver.address, code, began.elapsed());
                    return Ok(answer);
                }
                Err(error) => last = error,
            }
            self.failed(resolver);
            if Instant::now() >= end {
                break;
            }
        }
        Err(last)
    }

    /// The resolvers in the order in which they are asked: any of those that live. When all seem dead, it may be
    /// that looking at them is what fails.
    fn order(&self) -> Vec<Arc<Resolver>> {
        let lives = |resolver: &&Arc<Resolver>| resolver.fails.load(Ordering::Relaxed) < DEAD;
        let mut order: Vec<_> = self.resolvers.iter().filter(lives).cloned().collect();
        if order.is_empty() && !self.resolvers.is_empty() {
            self.metrics.broken.inc();
            order = self.resolvers.clone();
        }
        order.shuffle(&mut rand::rng());
        order
    }

    /// Notes a failure, and looks after the resolver until it is back.
    fn failed(&self, resolver: &Arc<Resolver>) {
        resolver.fails.fetch_add(1, Ordering::Relaxed);
        if resolver.watched.swap(true, Ordering::AcqRel) {
            return;
        }
        let (resolver, metrics) = (Arc::downgrade(resolver), self.metrics.clone());
        tokio::spawn(async move {
            loop {
                sleep(LOOK).await;
                let Some(resolver) = resolver.upgrade() else { return };
                let root = Query::query(Name::root(), RecordType::NS);
                if ask_one(resolver.address, &root, true, GLANCE).await.is_ok() {
                    resolver.fails.store(0, Ordering::Relaxed);
                    resolver.watched.store(false, Ordering::Release);
                    return;
                }
                metrics.looked_in_vain(resolver.address);
            }
        });
    }
}

/// Whether who listens at `own` is asked at this address.
fn is_own(resolver: SocketAddr, own: SocketAddr) -> bool {
    let everywhere = own.ip().is_unspecified() && (resolver.ip().is_loopback() || resolver.ip().is_unspecified());
    resolver == own || (everywhere && resolver.port() == own.port())
}

fn parse(text: &str) -> Vec<SocketAddr> {
    let address = |line: &str| {
        let rest = line.trim().strip_prefix("nameserver")?;
        let ip: IpAddr = rest.trim().parse().ok()?;
        Some(SocketAddr::new(ip, 53))
    };
    text.lines().filter_map(address).collect()
}

async fn ask_one(resolver: SocketAddr, query: &Query, recursion: bool, patience: Duration) -> Result<Message, Error> {
    let mut message = Message::query();
    message.metadata.id = rand::random();
    message.metadata.recursion_desired = recursion;
    message.add_query(query.clone());
    let mut edns = Edns::new();
    edns.set_max_payload(PAYLOAD);
    message.set_edns(edns);
    let bytes = message.to_vec().map_err(|e| Error::Message(e.to_string()))?;
    let answer = within(patience, udp(resolver, &bytes, &message)).await?;
    if answer.metadata.truncation { within(patience, tcp(resolver, &bytes, &message)).await } else { Ok(answer) }
}

async fn within(patience: Duration, asking: impl Future<Output = Result<Message, Error>>) -> Result<Message, Error> {
    timeout(patience, asking).await.unwrap_or(Err(Error::Late))
}

fn read(bytes: &[u8]) -> Result<Message, Error> {
    Message::from_vec(bytes).map_err(|e| Error::Message(e.to_string()))
}

/// An answer to another question is a stray or a forgery. A resolver that can't read a question may leave it out.
fn answers(answer: &Message, question: &Message) -> bool {
    answer.metadata.id == question.metadata.id && (answer.queries.is_empty() || answer.queries == question.queries)
}

async fn udp(resolver: SocketAddr, bytes: &[u8], question: &Message) -> Result<Message, Error> {
    let any: SocketAddr = if resolver.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0u16; 8], 0).into() };
    let socket = UdpSocket::bind(any).await?;
    socket.connect(resolver).await?;
    socket.send(bytes).await?;
    let mut buffer = vec![0; 4096];
    loop {
        let length = socket.recv(&mut buffer).await?;
        match read(&buffer[..length]) {
            Ok(answer) if answers(&answer, question) => return Ok(answer),
            _ => {}
        }
    }
}

async fn tcp(resolver: SocketAddr, bytes: &[u8], question: &Message) -> Result<Message, Error> {
    let mut stream = TcpStream::connect(resolver).await?;
    let length = u16::try_from(bytes.len()).map_err(|e| Error::Message(e.to_string()))?;
    stream.write_all(&[&length.to_be_bytes(), bytes].concat()).await?;
    let length = stream.read_u16().await?;
    let mut buffer = vec![0; length.into()];
    stream.read_exact(&mut buffer).await?;
    let answer = read(&buffer)?;
    if answers(&answer, question) { Ok(answer) } else { Err(Error::Message("it answers something else".into())) }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Answers each datagram with no more than its question.
    pub(crate) async fn echo() -> SocketAddr {
        let live = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = live.local_addr().unwrap();
        tokio::spawn(async move {
            let mut buffer = [0; 512];
            loop {
                let (length, from) = live.recv_from(&mut buffer).await.unwrap();
                let answer = Message::from_vec(&buffer[..length]).unwrap().into_response();
                live.send_to(&answer.to_vec().unwrap(), from).await.unwrap();
            }
        });
        address
    }

    fn query() -> Query {
        Query::query(Name::from_ascii("example.org.").unwrap(), RecordType::A)
    }

    fn forwarder(resolvers: Vec<SocketAddr>) -> Forwarder {
        Forwarder { patience: Duration::from_millis(50), ..Forwarder::new(resolvers, Arc::new(Metrics::new())) }
    }

    #[test]
    fn resolv_conf_names_resolvers() {
        let found = parse("# x\nsearch a\nnameserver 192.0.2.53\n nameserver\t2001:db8::1\noptions ndots:5\n");
        assert_eq!(found, ["192.0.2.53:53".parse().unwrap(), "[2001:db8::1]:53".parse().unwrap()]);
    }

    #[test]
    fn a_resolver_that_is_this_server_is_left_out() {
        let own = |resolver: &str, own: &str| is_own(resolver.parse().unwrap(), own.parse().unwrap());
        assert!(own("127.0.0.53:53", "0.0.0.0:53") && own("[::1]:53", "[::]:53") && own("10.0.0.1:53", "10.0.0.1:53"));
        assert!(!own("127.0.0.53:53", "0.0.0.0:1053") && !own("192.0.2.1:53", "0.0.0.0:53"));
        assert!(!own("127.0.0.53:53", "10.0.0.1:53"));
    }

    #[tokio::test]
    async fn the_next_resolver_is_asked_when_one_is_silent_or_refuses() {
        let silent = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let gone = UdpSocket::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let forwarder = forwarder(vec![silent.local_addr().unwrap(), gone, echo().await]);
        for _ in 0..4 {
            let answer = forwarder.ask(&query(), true).await.unwrap();
            assert_eq!(answer.queries, [query()]);
        }
    }

    #[tokio::test]
    async fn a_dead_resolver_is_passed_over_until_all_are_dead() {
        let forwarder = forwarder(vec!["192.0.2.1:53".parse().unwrap(), "192.0.2.2:53".parse().unwrap()]);
        assert_eq!(forwarder.order().len(), 2);
        forwarder.resolvers[0].fails.store(DEAD, Ordering::Relaxed);
        let order = forwarder.order();
        assert_eq!((order.len(), order[0].address.ip().to_string()), (1, "192.0.2.2".into()));
        forwarder.resolvers[1].fails.store(DEAD, Ordering::Relaxed);
        assert_eq!(forwarder.order().len(), 2);
    }

    #[tokio::test]
    async fn a_resolver_that_answers_again_is_asked_again() {
        let forwarder = forwarder(vec![echo().await]);
        let resolver = &forwarder.resolvers[0];
        forwarder.failed(resolver);
        forwarder.failed(resolver);
        let back = async {
            while resolver.watched.load(Ordering::Acquire) {
                tokio::task::yield_now().await;
            }
        };
        timeout(Duration::from_secs(10), back).await.unwrap();
        assert_eq!(resolver.fails.load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn more_questions_than_there_are_slots_for_are_refused() {
        let forwarder = forwarder(vec![echo().await]);
        let all = forwarder.slots.acquire_many(SLOTS as u32).await.unwrap();
        assert!(matches!(forwarder.ask(&query(), true).await, Err(Error::Busy)));
        drop(all);
        forwarder.ask(&query(), true).await.unwrap();
        assert!(matches!(self::forwarder(vec![]).ask(&query(), true).await, Err(Error::Nobody)));
    }
}

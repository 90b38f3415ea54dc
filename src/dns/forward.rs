//! Names of the world outside: asked of the resolvers that this machine or pod was given.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use hickory_proto::op::{Message, Query};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};

/// How long one resolver is waited for.
const PATIENCE: Duration = Duration::from_secs(2);

/// Why nobody answered.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is nobody to ask.
    #[error("no resolver is configured")]
    Nobody,
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

/// The resolvers, in the order in which they are asked.
#[derive(Debug, Clone, Default)]
pub struct Forwarder {
    resolvers: Vec<SocketAddr>,
}

impl Forwarder {
    /// The resolvers of a resolv.conf. `own` is left out: asking oneself never ends.
    pub fn from_resolv_conf(path: &Path, own: &[IpAddr]) -> std::io::Result<Self> {
        let text = std::fs::read_to_string(path)?;
        Ok(Self { resolvers: parse(&text).into_iter().filter(|r| !own.contains(&r.ip())).collect() })
    }

    /// These resolvers.
    pub fn new(resolvers: Vec<SocketAddr>) -> Self {
        Self { resolvers }
    }

    /// Asks one resolver after the other until one answers.
    ///
    /// # Errors
    /// The last resolver's failure.
    pub async fn ask(&self, query: &Query, recursion: bool) -> Result<Message, Error> {
        let mut last = Error::Nobody;
        for resolver in &self.resolvers {
            match ask_one(*resolver, query, recursion).await {
                Ok(answer) => return Ok(answer),
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

fn parse(text: &str) -> Vec<SocketAddr> {
    let address = |line: &str| {
        let rest = line.trim().strip_prefix("nameserver")?;
        let ip: IpAddr = rest.trim().parse().ok()?;
        Some(SocketAddr::new(ip, 53))
    };
    text.lines().filter_map(address).collect()
}

async fn ask_one(resolver: SocketAddr, query: &Query, recursion: bool) -> Result<Message, Error> {
    let mut message = Message::query();
    message.metadata.id = rand::random();
    message.metadata.recursion_desired = recursion;
    message.add_query(query.clone());
    let bytes = message.to_vec().map_err(|e| Error::Message(e.to_string()))?;
    let id = message.metadata.id;
    let answer = within(udp(resolver, &bytes, id)).await?;
    if answer.metadata.truncation { within(tcp(resolver, &bytes)).await } else { Ok(answer) }
}

async fn within(asking: impl Future<Output = Result<Message, Error>>) -> Result<Message, Error> {
    tokio::time::timeout(PATIENCE, asking).await.unwrap_or(Err(Error::Late))
}

fn read(bytes: &[u8]) -> Result<Message, Error> {
    Message::from_vec(bytes).map_err(|e| Error::Message(e.to_string()))
}

async fn udp(resolver: SocketAddr, question: &[u8], id: u16) -> Result<Message, Error> {
    let any: SocketAddr = if resolver.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0u16; 8], 0).into() };
    let socket = UdpSocket::bind(any).await?;
    socket.connect(resolver).await?;
    socket.send(question).await?;
    let mut buffer = vec![0; 4096];
    loop {
        let length = socket.recv(&mut buffer).await?;
        // An answer to another question is a stray or a forgery.
        match read(&buffer[..length]) {
            Ok(answer) if answer.metadata.id == id => return Ok(answer),
            _ => {}
        }
    }
}

async fn tcp(resolver: SocketAddr, question: &[u8]) -> Result<Message, Error> {
    let mut stream = TcpStream::connect(resolver).await?;
    let length = u16::try_from(question.len()).map_err(|e| Error::Message(e.to_string()))?;
    stream.write_all(&[&length.to_be_bytes(), question].concat()).await?;
    let length = stream.read_u16().await?;
    let mut buffer = vec![0; length.into()];
    stream.read_exact(&mut buffer).await?;
    read(&buffer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hickory_proto::rr::{Name, RecordType};

    #[test]
    fn resolv_conf_names_resolvers() {
        let found = parse("# x\nsearch a\nnameserver 192.0.2.53\n nameserver\t2001:db8::1\noptions ndots:5\n");
        assert_eq!(found, ["192.0.2.53:53".parse().unwrap(), "[2001:db8::1]:53".parse().unwrap()]);
    }

    #[tokio::test]
    async fn the_next_resolver_is_asked_when_one_refuses() {
        let dead = UdpSocket::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let live = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = live.local_addr().unwrap();
        tokio::spawn(async move {
            let mut buffer = [0; 512];
            let (length, from) = live.recv_from(&mut buffer).await.unwrap();
            let answer = Message::from_vec(&buffer[..length]).unwrap().into_response();
            live.send_to(&answer.to_vec().unwrap(), from).await.unwrap();
        });
        let query = Query::query(Name::from_ascii("example.org.").unwrap(), RecordType::A);
        let answer = Forwarder::new(vec![dead, address]).ask(&query, true).await.unwrap();
        assert_eq!(answer.queries[0].name(), query.name());
    }
}

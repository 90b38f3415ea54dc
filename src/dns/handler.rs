//! From a request to its answer: the cluster's names by the zone, the others by the cache and the resolvers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use base::shutdown::Shutdown;
use hickory_proto::op::{Edns, Header, Message, Metadata, OpCode, Query, ResponseCode};
use hickory_proto::rr::{DNSClass, Name, Record, RecordType};
use hickory_server::net::runtime::Time;
use hickory_server::net::xfer::Protocol;
use hickory_server::server::{Request, RequestHandler, ResponseHandler, ResponseInfo};
use hickory_server::zone_handler::MessageResponseBuilder;
use rand::seq::SliceRandom as _;

use crate::cache::{Cache, Kind};
use crate::forward::{self, Forwarder};
use crate::metrics::Metrics;
use crate::zone::{Answer, Zone};

/// Answers requests.
pub struct Handler {
    zone: Arc<Zone>,
    outside: Arc<Outside>,
    /// A name that nobody else asks for: when it comes back here, a resolver asks this server.
    probe: Name,
    looped: Shutdown,
    metrics: Arc<Metrics>,
}

/// Names that are not the cluster's.
struct Outside {
    forwarder: Forwarder,
    cache: Cache,
    metrics: Arc<Metrics>,
}

/// An answer's parts.
#[derive(Default)]
struct Reply {
    code: Option<ResponseCode>,
    /// Who has the answer, as CoreDNS's metrics name it; it is the authority, when it is the cluster's part.
    by: &'static str,
    answers: Vec<Record>,
    authorities: Vec<Record>,
    additionals: Vec<Record>,
}

const CLUSTER: &str = "kubernetes";

impl Reply {
    fn refusal(code: ResponseCode) -> Self {
        Self { code: Some(code), ..Self::default() }
    }

    fn from(answer: Message, by: &'static str) -> Self {
        Self {
            code: Some(answer.metadata.response_code),
            by,
            answers: answer.answers,
            authorities: answer.authorities,
            additionals: answer.additionals,
        }
    }
}

impl Handler {
    /// A handler over these parts.
    pub fn new(zone: Arc<Zone>, forwarder: Forwarder, metrics: Arc<Metrics>) -> Self {
        let label = || rand::random::<u64>().to_string();
        let probe = Name::from_ascii(format!("{}.{}.", label(), label())).unwrap_or_default();
        let outside = Arc::new(Outside { forwarder, cache: Cache::default(), metrics: metrics.clone() });
        Self { zone, outside, probe, looped: Shutdown::new(), metrics }
    }

    /// Cancelled when a resolver asks this server.
    pub fn looped(&self) -> Shutdown {
        self.looped.clone()
    }

    /// Asks the resolvers for a name that nobody else asks for, once they answer anything at all.
    pub fn probe(&self) -> impl Future<Output = ()> + Send + 'static {
        let (outside, query) = (self.outside.clone(), Query::query(self.probe.clone(), RecordType::HINFO));
        async move {
            // What they say does not matter, and that they say nothing is told when somebody asks them.
            if let Err(error) = outside.forwarder.ask(&query, true).await {
                tracing::debug!(%error, "no resolver answered at the start");
            }
        }
    }

    async fn answer(&self, request: &Request) -> Reply {
        if request.metadata.op_code != OpCode::Query {
            return Reply::refusal(ResponseCode::NotImp);
        }
        let Ok(info) = request.request_info() else { return Reply::refusal(ResponseCode::FormErr) };
        if request.edns.as_ref().is_some_and(|edns| edns.version() > 0) {
            return Reply::refusal(ResponseCode::BADVERS);
        }
        let query = info.query.original();
        if query.query_class() != DNSClass::IN {
            return Reply::refusal(ResponseCode::Refused);
        }
        if query.query_type() == RecordType::HINFO && *query.name() == self.probe {
            self.looped.cancel();
            return Reply::refusal(ResponseCode::ServFail);
        }
        let mut reply = self.reply(query.name(), query.query_type(), request.metadata.recursion_desired).await;
        spread(&mut reply.answers);
        reply
    }

    async fn reply(&self, name: &Name, kind: RecordType, recursion: bool) -> Reply {
        match self.zone.lookup(name, kind) {
            Answer::Found { answers, additionals } => {
                let authorities = if answers.is_empty() { vec![self.zone.soa()] } else { Vec::new() };
                Reply { code: None, by: CLUSTER, answers, authorities, additionals }
            }
            Answer::NoName => {
                let code = Some(ResponseCode::NXDomain);
                Reply { code, by: CLUSTER, authorities: vec![self.zone.soa()], ..Reply::default() }
            }
            Answer::External(record, target) => self.external(record, &target, kind, recursion).await,
            Answer::Elsewhere => self.outside.reply(name, kind, recursion).await,
        }
    }

    /// The alias, with what it leads to where that can be had.
    async fn external(&self, record: Record, target: &Name, kind: RecordType, recursion: bool) -> Reply {
        let mut reply = Reply { by: CLUSTER, answers: vec![record], ..Reply::default() };
        if !matches!(kind, RecordType::A | RecordType::AAAA) {
            return reply;
        }
        let found = match self.zone.lookup(target, kind) {
            Answer::Found { answers, .. } => answers,
            Answer::Elsewhere => self.outside.reply(target, kind, recursion).await.answers,
            // Aliases of aliases inside the cluster are the asker's to follow, so that none runs in a circle here.
            Answer::NoName | Answer::External(..) => Vec::new(),
        };
        reply.answers.extend(found);
        reply
    }
}

impl Outside {
    async fn reply(&self, name: &Name, kind: RecordType, recursion: bool) -> Reply {
        let known = self.cache.get(name, kind, Instant::now());
        self.metrics.cached(known.as_ref().map(|(kind, _)| *kind));
        if let Some((_, answer)) = known {
            return Reply::from(answer, "cache");
        }
        match self.forwarder.ask(&Query::query(name.clone(), kind), recursion).await {
            Ok(answer) => {
                self.cache.put(name, kind, &answer, Instant::now());
                for kind in [Kind::Success, Kind::Denial] {
                    self.metrics.keeps(kind, self.cache.len(kind));
                }
                Reply::from(answer, "forward")
            }
            // As CoreDNS answers; a line for each of them would be one more load.
            Err(error @ forward::Error::Busy) => {
                tracing::debug!(%name, %kind, %error, "refused");
                Reply { by: "forward", ..Reply::refusal(ResponseCode::Refused) }
            }
            Err(error) => {
                tracing::warn!(%name, %kind, %error, "no resolver answered");
                Reply { by: "forward", ..Reply::refusal(ResponseCode::ServFail) }
            }
        }
    }
}

/// Addresses in any order, behind the aliases that lead to them: many clients take the first.
fn spread(answers: &mut [Record]) {
    let is_address = |record: &Record| matches!(record.record_type(), RecordType::A | RecordType::AAAA);
    let first = answers.iter().position(is_address).unwrap_or(answers.len());
    if answers[first..].iter().all(is_address) {
        answers[first..].shuffle(&mut rand::rng());
    }
}

/// What is said about EDNS to one who speaks it: how much he may be sent, and none of his options.
fn edns(asked: &Edns, code: ResponseCode) -> Edns {
    let mut edns = Edns::new();
    edns.set_max_payload(asked.max_payload());
    edns.set_dnssec_ok(asked.flags().dnssec_ok);
    edns.set_rcode_high(code.high());
    edns
}

fn failed(request: &Request) -> ResponseInfo {
    let mut metadata = Metadata::response_from_request(&request.metadata);
    metadata.response_code = ResponseCode::ServFail;
    ResponseInfo::from(Header { metadata, counts: Default::default() })
}

#[async_trait::async_trait]
impl RequestHandler for Handler {
    async fn handle_request<R: ResponseHandler, T: Time>(&self, request: &Request, mut handle: R) -> ResponseInfo {
        let began = Instant::now();
        let kind = request.request_info().ok().map(|info| info.query.original().query_type());
        let from: SocketAddr = request.src();
        self.metrics.asked(from, if request.protocol() == Protocol::Udp { "udp" } else { "tcp" }, kind);
        let reply = self.answer(request).await;
        let mut metadata = Metadata::response_from_request(&request.metadata);
        metadata.recursion_available = true;
        metadata.authoritative = reply.by == CLUSTER;
        metadata.response_code = reply.code.unwrap_or(ResponseCode::NoError);
        let none: [&Record; 0] = [];
        let edns = request.edns.as_ref().map(|asked| edns(asked, metadata.response_code));
        let mut builder = MessageResponseBuilder::from_message_request(request);
        if let Some(edns) = &edns {
            builder.edns(edns);
        }
        let response = builder.build(metadata, &reply.answers, &reply.authorities, none, &reply.additionals);
        let code = metadata.response_code;
        let sent = handle.send_response(response).await;
        self.metrics.replied(code, reply.by, began.elapsed());
        sent.unwrap_or_else(|error| {
            tracing::debug!(%error, "the answer could not be sent");
            failed(request)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forward::tests::echo;
    use crate::zone::tests::zone;
    use hickory_server::server::Server;
    use std::time::Duration;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream, UdpSocket};

    /// A server on the loopback that asks these resolvers, until it is dropped.
    async fn serve(resolvers: Vec<SocketAddr>) -> (SocketAddr, Server<Handler>, Shutdown) {
        let metrics = Arc::new(Metrics::new());
        let handler = Handler::new(Arc::new(zone()), Forwarder::new(resolvers, metrics.clone()), metrics);
        let (looped, probe) = (handler.looped(), handler.probe());
        let mut server = Server::new(handler);
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap();
        server.register_socket(socket);
        server.register_listener(TcpListener::bind(address).await.unwrap(), Duration::from_secs(5), 64);
        tokio::spawn(probe);
        (address, server, looped)
    }

    fn question(name: &str, kind: RecordType) -> Message {
        let mut message = Message::query();
        message.metadata.id = 7;
        message.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
        message
    }

    async fn udp(server: SocketAddr, question: &Message) -> Message {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        socket.send_to(&question.to_vec().unwrap(), server).await.unwrap();
        let mut buffer = [0; 4096];
        let length = socket.recv(&mut buffer).await.unwrap();
        Message::from_vec(&buffer[..length]).unwrap()
    }

    async fn tcp(server: SocketAddr, question: &Message) -> Message {
        let bytes = question.to_vec().unwrap();
        let mut stream = TcpStream::connect(server).await.unwrap();
        stream.write_u16(bytes.len() as u16).await.unwrap();
        stream.write_all(&bytes).await.unwrap();
        let mut buffer = vec![0; stream.read_u16().await.unwrap().into()];
        stream.read_exact(&mut buffer).await.unwrap();
        Message::from_vec(&buffer).unwrap()
    }

    #[tokio::test]
    async fn large_answers_are_cut_unless_the_asker_takes_them_or_comes_by_tcp() {
        let (server, _running, _) = serve(vec![]).await;
        let mut question = question("many.ns.svc.cluster.local.", RecordType::A);
        let cut = udp(server, &question).await;
        assert!(cut.metadata.truncation && cut.answers.len() < 100 && cut.edns.is_none());
        let whole = tcp(server, &question).await;
        assert_eq!((whole.metadata.truncation, whole.answers.len(), whole.metadata.authoritative), (false, 100, true));
        let mut edns = Edns::new();
        edns.set_max_payload(4096);
        question.set_edns(edns);
        let whole = udp(server, &question).await;
        assert_eq!((whole.metadata.truncation, whole.answers.len()), (false, 100));
        assert_eq!(whole.edns.map(|edns| edns.max_payload()), Some(4096));
    }

    #[tokio::test]
    async fn what_is_no_question_about_the_internet_is_refused() {
        let (server, _running, _) = serve(vec![]).await;
        let code = |answer: Message| answer.metadata.response_code;
        let mut chaos = question("version.bind.", RecordType::TXT);
        chaos.queries[0].set_query_class(DNSClass::CH);
        assert_eq!(code(udp(server, &chaos).await), ResponseCode::Refused);
        let mut update = question("web.ns.svc.cluster.local.", RecordType::A);
        update.metadata.op_code = OpCode::Notify;
        assert_eq!(code(udp(server, &update).await), ResponseCode::NotImp);
        let mut new = question("web.ns.svc.cluster.local.", RecordType::A);
        let mut edns = Edns::new();
        edns.set_version(1);
        new.set_edns(edns);
        let answer = udp(server, &new).await;
        assert_eq!(answer.edns.map(|edns| (edns.version(), edns.rcode_high())), Some((0, 1)));
        let outside = question("example.org.", RecordType::A);
        assert_eq!(code(udp(server, &outside).await), ResponseCode::ServFail, "there is no resolver");
    }

    #[tokio::test]
    async fn a_resolver_that_asks_this_server_is_found_out() {
        let (inner, _inner_running, inner_looped) = serve(vec![echo().await]).await;
        let (_outer, _outer_running, outer_looped) = serve(vec![inner]).await;
        // The echo answers the probe of both, and nobody sees his own.
        udp(inner, &question("example.org.", RecordType::A)).await;
        assert!(!inner_looped.is_cancelled() && !outer_looped.is_cancelled());

        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let own = socket.local_addr().unwrap();
        let metrics = Arc::new(Metrics::new());
        let handler = Handler::new(Arc::new(zone()), Forwarder::new(vec![own], metrics.clone()), metrics);
        let (looped, probe) = (handler.looped(), handler.probe());
        let mut server = Server::new(handler);
        server.register_socket(socket);
        probe.await;
        assert!(looped.is_cancelled());
    }

    #[tokio::test]
    async fn an_answer_from_outside_is_asked_for_once() {
        use hickory_proto::rr::{RData, rdata::A};
        let once = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let name = Name::from_ascii("once.example.").unwrap();
        let metrics = Arc::new(Metrics::new());
        let forwarder = Forwarder::new(vec![once.local_addr().unwrap()], metrics.clone());
        let handler = Handler::new(Arc::new(zone()), forwarder, metrics);
        let resolver = async {
            let mut buffer = [0; 512];
            let (length, from) = once.recv_from(&mut buffer).await.unwrap();
            let mut answer = Message::from_vec(&buffer[..length]).unwrap().into_response();
            answer.add_answer(Record::from_rdata(name.clone(), 60, RData::A(A::new(192, 0, 2, 1))));
            once.send_to(&answer.to_vec().unwrap(), from).await.unwrap();
        };
        let (first, ()) = tokio::join!(handler.reply(&name, RecordType::A, true), resolver);
        let second = handler.reply(&name, RecordType::A, true).await;
        assert_eq!((first.by, second.by), ("forward", "cache"));
        assert_eq!(first.answers[0].data, second.answers[0].data);
        assert!(second.answers[0].ttl <= 30);
    }

    #[test]
    fn addresses_are_spread_behind_their_alias() {
        use hickory_proto::rr::RData;
        use hickory_proto::rr::rdata::{A, CNAME};
        let name = Name::from_ascii("a.example.").unwrap();
        let record = |data| Record::from_rdata(name.clone(), 5, data);
        let sorted: Vec<Record> = std::iter::once(record(RData::CNAME(CNAME(name.clone()))))
            .chain((0..32).map(|i| record(RData::A(A::new(10, 0, 0, i)))))
            .collect();
        let mut answers = sorted.clone();
        spread(&mut answers);
        assert_eq!(answers[0], sorted[0]);
        assert_ne!(answers, sorted);
        answers[1..].sort_by_key(|record| record.data.to_string().parse::<std::net::Ipv4Addr>().unwrap());
        assert_eq!(answers, sorted);
    }
}

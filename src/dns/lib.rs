//! Cluster DNS: names of services and pods from the API server, all other names from the resolvers outside.
//!
//! ```text
//!   question ─► zone (informers: Services, EndpointSlices, Namespaces) ─► answer
//!          └─► not ours ─► forward ─► resolvers of /etc/resolv.conf
//!   /health on 8080, /ready on 8181 once everything is known, /metrics on 9153
//! ```
//!
//! Contract: an answer is a pure function of the question and what the informers hold at that moment; nothing is cached, so a
//! change is seen by the next question. While the API server is away, names live on.

pub mod forward;
pub mod zone;

use base::component::{self, Threads};
use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::flags::{self, Flags};
use base::health::{Checks, Endpoints, Flag};
use base::server::{self, Limits};
use base::shutdown::Shutdown;
use client::{Connection, Informers};
use hickory_proto::op::{Metadata, ResponseCode};
use hickory_proto::rr::{Name, Record, RecordType};
use hickory_server::net::NetError;
use hickory_server::net::runtime::Time;
use hickory_server::server::{Request, RequestHandler, ResponseHandler, ResponseInfo, Server};
use hickory_server::zone_handler::MessageResponseBuilder;
use k8s_openapi::api::core::v1::{Namespace, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::histogram::Histogram;

use forward::Forwarder;
use zone::{Answer, Zone};

/// How long a TCP connection may be silent.
const TCP_IDLE: Duration = Duration::from_secs(10);

/// Why DNS ended.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Connect(#[from] client::ConnectError),
    #[error("can't listen at {0}: {1}")]
    Listen(SocketAddr, std::io::Error),
    #[error("{0}: {1}")]
    Read(String, std::io::Error),
    #[error("invalid cluster domain {0:?}")]
    Domain(String),
    #[error("{0}")]
    Io(#[from] std::io::Error),
    #[error("serving: {0}")]
    Serve(#[from] NetError),
}

fn command() -> clap::Command {
    let flags = [
        flags::text("kubeconfig", "", "path of the kubeconfig; the in-cluster one when empty"),
        flags::text("cluster-domain", "cluster.local", "the cluster's domain"),
        flags::ip("bind-address", "0.0.0.0", "address to serve on"),
        flags::int("port", 53, "port of DNS, by UDP and TCP"),
        flags::int("health-port", 8080, "port of /health"),
        flags::int("ready-port", 8181, "port of /ready"),
        flags::int("metrics-port", 9153, "port of /metrics"),
        flags::text("resolv-conf", "/etc/resolv.conf", "file with the resolvers for names outside the cluster"),
    ];
    flags::command("dns", "Answers names of services and pods.", flags)
}

/// Runs cluster DNS with these arguments, the first of which is its name.
pub fn main(args: Vec<OsString>) -> ExitCode {
    component::main(command(), args, Threads::PerProcessor, |flags, shutdown| async move {
        Ok(run(&flags, &shutdown).await?)
    })
}

fn address(flags: &Flags, port: &str) -> SocketAddr {
    let ip = flags.ip("bind-address").unwrap_or(IpAddr::from([0, 0, 0, 0]));
    SocketAddr::new(ip, u16::try_from(flags.int(port)).unwrap_or(0))
}

fn domain(text: &str) -> Result<Name, Error> {
    let mut name = Name::from_ascii(text).map_err(|_| Error::Domain(text.into()))?.to_lowercase();
    name.set_fqdn(true);
    Ok(name)
}

async fn run(flags: &Flags, shutdown: &Shutdown) -> Result<(), Error> {
    let connection = Connection::open(flags.path("kubeconfig").as_deref(), "dns").await?;
    let informers = Informers::new(&connection);
    let zone = Arc::new(Zone::new(
        domain(flags.text("cluster-domain"))?,
        informers.of::<Service>(),
        informers.of::<EndpointSlice>(),
        informers.of::<Namespace>(),
    ));
    let listen = address(flags, "port");
    let resolv = flags.text("resolv-conf");
    let forwarder = Forwarder::from_resolv_conf(Path::new(resolv), &[listen.ip(), IpAddr::from([127, 0, 0, 1])])
        .map_err(|e| Error::Read(resolv.into(), e))?;
    let ready = serve_health(flags, shutdown)?;
    if base::shutdown::unless(shutdown, zone.synced()).await.is_none() {
        return Ok(());
    }
    let mut server = Server::new(Handler { zone, forwarder, metrics: Metrics::new() });
    server.register_socket(tokio::net::UdpSocket::bind(listen).await.map_err(|e| Error::Listen(listen, e))?);
    let listener = server::listen(listen, false).map_err(|e| Error::Listen(listen, e))?;
    server.register_listener(listener, TCP_IDLE, 1024);
    ready.set(true);
    tracing::info!(%listen, "answering");
    tokio::select! {
        () = shutdown.cancelled() => server.shutdown_gracefully().await?,
        result = server.block_until_done() => result?,
    }
    Ok(())
}

/// Serves health, readiness and metrics, each on its own port as CoreDNS does. Ready is what the returned flag says.
fn serve_health(flags: &Flags, shutdown: &Shutdown) -> Result<Flag, Error> {
    let ready = Flag::new("not everything is known yet");
    let check = ready.clone();
    let start = |port: &str, endpoints: Endpoints| -> Result<(), Error> {
        let at = address(flags, port);
        let listener = server::listen(at, false).map_err(|e| Error::Listen(at, e))?;
        tokio::spawn(server::serve(listener, None, Limits::default(), Arc::new(endpoints), shutdown.clone()));
        Ok(())
    };
    let plain = |checks: Checks| Endpoints {
        healthz: Checks::new(),
        livez: Checks::new(),
        readyz: checks,
        component: "dns",
        ..Endpoints::default()
    };
    start("health-port", Endpoints { extra: Some(path_check("/health", None)), ..plain(Checks::new()) })?;
    let checks = Checks::new().with("informers", check.check());
    start("ready-port", Endpoints { extra: Some(path_check("/ready", Some(check))), ..plain(checks) })?;
    start("metrics-port", Endpoints { metrics: true, ..plain(Checks::new()) })?;
    Ok(ready)
}

/// Answers one path with OK, or with 503 while a flag does not hold.
fn path_check(path: &'static str, flag: Option<Flag>) -> base::health::Extra {
    use http_body_util::Full;
    Arc::new(move |request| {
        let holds = flag.as_ref().is_none_or(Flag::holds);
        Box::pin(async move {
            if request.uri().path() != path {
                return Err(request);
            }
            let mut response =
                http::Response::new(Full::new(bytes::Bytes::from_static(if holds { b"OK" } else { b"" })));
            *response.status_mut() = if holds { http::StatusCode::OK } else { http::StatusCode::SERVICE_UNAVAILABLE };
            Ok(response)
        })
    })
}

/// CoreDNS's names, without their labels.
struct Metrics {
    requests: Counter,
    failures: Counter,
    duration: Histogram,
}

impl Metrics {
    fn new() -> Self {
        let registry = base::metrics::global();
        Self {
            requests: registry.add("coredns_dns_requests", "Counter of DNS requests made", Counter::default()),
            failures: registry.add(
                "coredns_forward_failures",
                "Counter of questions that no resolver answered",
                Counter::default(),
            ),
            duration: registry.add(
                "coredns_dns_request_duration_seconds",
                "Histogram of the time (in seconds) each request took",
                Histogram::new(base::metrics::exponential(0.00025, 2.0, 16)),
            ),
        }
    }
}

struct Handler {
    zone: Arc<Zone>,
    forwarder: Forwarder,
    metrics: Metrics,
}

/// An answer's parts.
#[derive(Default)]
struct Reply {
    code: Option<ResponseCode>,
    ours: bool,
    answers: Vec<Record>,
    authorities: Vec<Record>,
    additionals: Vec<Record>,
}

impl Handler {
    async fn reply(&self, name: &Name, kind: RecordType, recursion: bool) -> Reply {
        match self.zone.lookup(name, kind) {
            Answer::Found { answers, additionals } => {
                let authorities = if answers.is_empty() { vec![self.zone.soa()] } else { Vec::new() };
                Reply { code: None, ours: true, answers, authorities, additionals }
            }
            Answer::NoName => {
                let code = Some(ResponseCode::NXDomain);
                Reply { code, ours: true, authorities: vec![self.zone.soa()], ..Reply::default() }
            }
            Answer::External(record, target) => self.external(record, &target, kind, recursion).await,
            Answer::Elsewhere => self.forward(name, kind, recursion).await,
        }
    }

    /// The alias, with what it leads to where that can be had.
    async fn external(&self, record: Record, target: &Name, kind: RecordType, recursion: bool) -> Reply {
        let mut reply = Reply { ours: true, answers: vec![record], ..Reply::default() };
        if !matches!(kind, RecordType::A | RecordType::AAAA) {
            return reply;
        }
        let found = match self.zone.lookup(target, kind) {
            Answer::Found { answers, .. } => answers,
            Answer::Elsewhere => self.forward(target, kind, recursion).await.answers,
            // Aliases of aliases inside the cluster are the asker's to follow, so that none runs in a circle here.
            Answer::NoName | Answer::External(..) => Vec::new(),
        };
        reply.answers.extend(found);
        reply
    }

    async fn forward(&self, name: &Name, kind: RecordType, recursion: bool) -> Reply {
        let query = hickory_proto::op::Query::query(name.clone(), kind);
        match self.forwarder.ask(&query, recursion).await {
            Ok(answer) => Reply {
                code: Some(answer.metadata.response_code),
                ours: false,
                answers: answer.answers,
                authorities: answer.authorities,
                additionals: answer.additionals,
            },
            Err(error) => {
                tracing::warn!(%name, %kind, %error, "no resolver answered");
                self.metrics.failures.inc();
                Reply { code: Some(ResponseCode::ServFail), ..Reply::default() }
            }
        }
    }
}

#[async_trait::async_trait]
impl RequestHandler for Handler {
    async fn handle_request<R: ResponseHandler, T: Time>(&self, request: &Request, mut handle: R) -> ResponseInfo {
        let began = Instant::now();
        self.metrics.requests.inc();
        let mut metadata = Metadata::response_from_request(&request.metadata);
        metadata.recursion_available = true;
        let reply = match request.request_info() {
            Ok(info) => {
                let query = info.query.original();
                self.reply(query.name(), query.query_type(), request.metadata.recursion_desired).await
            }
            Err(_) => Reply { code: Some(ResponseCode::FormErr), ..Reply::default() },
        };
        metadata.authoritative = reply.ours;
        metadata.response_code = reply.code.unwrap_or(ResponseCode::NoError);
        let none: [&Record; 0] = [];
        let mut builder = MessageResponseBuilder::from_message_request(request);
        if let Some(edns) = &request.edns {
            builder.edns(edns);
        }
        let response = builder.build(metadata, &reply.answers, &reply.authorities, none, &reply.additionals);
        let sent = handle.send_response(response).await;
        self.metrics.duration.observe(began.elapsed().as_secs_f64());
        match sent {
            Ok(info) => info,
            Err(error) => {
                tracing::debug!(%error, "the answer could not be sent");
                let mut failed = Metadata::response_from_request(&request.metadata);
                failed.response_code = ResponseCode::ServFail;
                ResponseInfo::from(hickory_proto::op::Header { metadata: failed, counts: Default::default() })
            }
        }
    }
}

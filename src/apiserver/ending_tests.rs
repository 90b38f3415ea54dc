//! The end of the server: what clients see between the signal and the last byte.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use base::flags;
use base::shutdown::Shutdown;
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use crate::options::{Options, command};

const PATIENCE: Duration = Duration::from_secs(60);

type Sent = BoxBody<Bytes, Infallible>;

/// A folder with the keys and tokens of a server; it goes away with the value.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let folder = Self(std::env::temp_dir().join(format!("navarch-ending-{}", uuid::Uuid::new_v4())));
        std::fs::create_dir_all(&folder.0).expect("a temporary directory");
        let key = rcgen::KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, rcgen::RsaKeySize::_2048).expect("a key");
        let files = [
            ("sa.key", key.serialize_pem()),
            ("sa.pub", key.public_key_pem()),
            ("tokens", "secret,admin,1,system:masters\n".to_string()),
        ];
        files.iter().for_each(|(name, text)| std::fs::write(folder.0.join(name), text).expect("a file"));
        folder
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(why) = std::fs::remove_dir_all(&self.0) {
            println!("{}: {why}", self.0.display());
        }
    }
}

fn options(etcd: &str, folder: &Path, port: u16, more: &[&str]) -> Options {
    let file = |flag: &str, name: &str| format!("--{flag}={}", folder.join(name).display());
    let mut args = vec![
        format!("--etcd-servers={etcd}"),
        format!("--secure-port={port}"),
        "--bind-address=127.0.0.1".into(),
        "--endpoint-reconciler-type=none".into(),
        "--authorization-mode=RBAC".into(),
        "--service-account-issuer=https://kubernetes.default.svc".into(),
        file("cert-dir", ""),
        file("service-account-key-file", "sa.pub"),
        file("service-account-signing-key-file", "sa.key"),
        file("token-auth-file", "tokens"),
    ];
    args.extend(more.iter().map(|flag| (*flag).to_string()));
    let flags = flags::parse(command(), args.into_iter().map(Into::into)).expect("flags");
    Options::read(&flags).expect("options")
}

/// A client's connection, of either version of HTTP.
enum Client {
    One(hyper::client::conn::http1::SendRequest<Sent>),
    Two(hyper::client::conn::http2::SendRequest<Sent>),
}

impl Client {
    async fn connect(port: u16, alpn: &str) -> Option<Self> {
        let stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.ok()?;
        let tls = base::tls::insecure_client(None, &[alpn]).expect("a configuration");
        let name = rustls_pki_types::ServerName::try_from("localhost").expect("a name");
        let stream = TokioIo::new(tokio_rustls::TlsConnector::from(tls).connect(name, stream).await.ok()?);
        if alpn == "h2" {
            let executor = TokioExecutor::new();
            let (sender, connection) = hyper::client::conn::http2::handshake(executor, stream).await.ok()?;
            tokio::spawn(connection);
            return Some(Self::Two(sender));
        }
        let (sender, connection) = hyper::client::conn::http1::handshake(stream).await.ok()?;
        tokio::spawn(connection);
        Some(Self::One(sender))
    }

    async fn send(&mut self, method: &str, path: &str, body: Sent) -> hyper::Result<Response<Incoming>> {
        let request = Request::builder().method(method).uri(format!("https://localhost{path}"));
        let request = request.header("Host", "localhost").header("Authorization", "Bearer secret");
        let request = request.header("Content-Type", "application/json").body(body).expect("a request");
        match self {
            Self::One(sender) => {
                // What came before may not be put away yet.
                sender.ready().await?;
                sender.send_request(request).await
            }
            Self::Two(sender) => {
                sender.ready().await?;
                sender.send_request(request).await
            }
        }
    }

    async fn get(&mut self, path: &str) -> hyper::Result<(StatusCode, String)> {
        let answer = self.send("GET", path, Full::default().boxed()).await?;
        let status = answer.status();
        let body = answer.into_body().collect().await?.to_bytes();
        Ok((status, String::from_utf8_lossy(&body).into_owned()))
    }
}

async fn within<T>(what: &str, work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.unwrap_or_else(|_| panic!("waited too long: {what}"))
}

/// Connects until the server is ready.
async fn ready(port: u16, alpn: &str) -> Client {
    let attempts = async {
        loop {
            if let Some(mut client) = Client::connect(port, alpn).await
                && client.get("/readyz").await.is_ok_and(|(status, _)| status == 200)
            {
                return client;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    within("ready", attempts).await
}

const WATCH: &str = "/api/v1/namespaces/default/configmaps?watch=true&resourceVersion=0";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_is_announced_watches_end_and_what_runs_is_finished() {
    let Some(etcd) = store::testing::Server::start() else { return };
    base::tls::install();
    let (folder, port, shutdown) = (Folder::new(), store::testing::free_port(), Shutdown::new());
    let options = options(&etcd.url(), &folder.0, port, &["--shutdown-delay-duration=2s"]);
    let server = tokio::spawn(crate::run::run(options, shutdown.clone()));
    let mut two = ready(port, "h2").await;
    let mut one = ready(port, "http/1.1").await;
    let mut other = ready(port, "http/1.1").await;
    let empty = || Full::default().boxed();
    let watch_two = within("a watch", two.send("GET", WATCH, empty())).await.expect("a watch by HTTP/2");
    let watch_one = within("a watch", one.send("GET", WATCH, empty())).await.expect("a watch by HTTP/1.1");
    assert_eq!((watch_one.status(), watch_two.status()), (StatusCode::OK, StatusCode::OK));

    // A write whose body is not there yet.
    let (body, pieces) = mpsc::channel::<Result<Frame<Bytes>, Infallible>>(2);
    let piece = |text: &'static str| Ok(Frame::data(Bytes::from_static(text.as_bytes())));
    body.send(piece(r#"{"kind":"ConfigMap","apiVersion":"v1","#)).await.expect("a listener");
    let writing = async {
        let path = "/api/v1/namespaces/default/configmaps";
        two.send("POST", path, StreamBody::new(ReceiverStream::new(pieces)).boxed()).await
    };
    let mut writing = Box::pin(writing);
    assert!(futures::poll!(&mut writing).is_pending());

    let told = Instant::now();
    shutdown.cancel();
    let (status, text) = within("readyz", other.get("/readyz")).await.expect("served through the delay");
    assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
    assert!(text.contains("[-]shutdown failed: reason withheld\n"), "{text}");
    assert!(text.contains("[+]etcd ok\n"), "{text}");
    assert_eq!(within("livez", other.get("/livez")).await.expect("served").0, StatusCode::OK);
    let newcomer = within("a connection", Client::connect(port, "h2")).await;
    assert!(newcomer.is_some(), "the socket stays open through the delay");
    drop(newcomer);

    let (one, two) = (watch_one.into_body().collect(), watch_two.into_body().collect());
    let ended = within("the end of the watches", async { tokio::join!(one, two) }).await;
    assert!(ended.0.is_ok() && ended.1.is_ok(), "watches end in order, not torn: {ended:?}");
    assert!(told.elapsed() >= Duration::from_secs(2), "not before the delay is over");
    assert!(Client::connect(port, "h2").await.is_none(), "nobody comes in any more");

    body.send(piece(r#""metadata":{"name":"late"}}"#)).await.expect("a listener");
    drop(body);
    let written = within("the write", writing).await.expect("what runs is finished");
    assert_eq!(written.status(), StatusCode::CREATED);
    within("the body", written.into_body().collect()).await.expect("all of it");
    within("the end", server).await.expect("no panic").expect("a clean end");
}

//! Streams end to end: a client, the functions of this module behind a socket, and a kubelet that speaks TLS, chunked
//! logs and SPDY.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;

use base::server::{Handler, Limits, Peer};
use base::shutdown::Shutdown;
use bytes::Bytes;
use futures::{SinkExt as _, StreamExt as _};
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Frame as BodyFrame, Incoming};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;

use super::locate::{Backend, Location, Trust};
use super::spdy::frame::{Decoder, Encoder, Frame};
use super::{Call, Streams, proxy, serve};
use crate::authz::Authorizer;
use crate::lookup::Lookup;
use crate::request::{Answer, Request};
use crate::respond::Failure;
use crate::{Api, info, testing};

/// What the kubelet was asked for, and what it says next on logs.
struct Kubelet {
    asked: mpsc::UnboundedSender<http::request::Parts>,
    lines: tokio::sync::Mutex<mpsc::UnboundedReceiver<&'static str>>,
}

type KubeletBody = UnsyncBoxBody<Bytes, Infallible>;

fn text(status: u16, text: &str) -> Response<KubeletBody> {
    let mut answer = Response::new(Full::new(Bytes::from(text.to_string())).boxed_unsync());
    *answer.status_mut() = StatusCode::from_u16(status).expect("a code");
    answer
}

impl Handler for Kubelet {
    type Connection = ();
    type Body = KubeletBody;

    fn connected(&self, _: Peer) {}

    async fn call(&self, _: Arc<()>, mut request: http::Request<Incoming>) -> Response<KubeletBody> {
        let upgrade = hyper::upgrade::on(&mut request);
        let (parts, body) = request.into_parts();
        let path = parts.uri.path().to_string();
        self.asked.send(parts).expect("the test listens");
        let mut answer = text(200, "");
        match path.as_str() {
            "/containerLogs/ns/p/c" => {
                let (sender, lines) = mpsc::unbounded_channel();
                let mut source = self.lines.lock().await;
                while let Some(line) = source.recv().await {
                    sender.send(line).expect("kept");
                    if !line.ends_with("...\n") {
                        break;
                    }
                }
                drop(sender);
                let lines = tokio_stream::wrappers::UnboundedReceiverStream::new(lines);
                let frames = lines.map(|line| Ok(BodyFrame::data(Bytes::from(line))));
                return Response::new(StreamBody::new(frames).boxed_unsync());
            }
            "/containerLogs/ns/p/gone" => return text(400, "container is waiting to start"),
            "/exec/ns/p/c" => drop(tokio::spawn(async move { command(upgrade.await.expect("upgraded")).await })),
            "/portForward/ns/p" => drop(tokio::spawn(async move {
                let (mut read, mut write) = tokio::io::split(TokioIo::new(upgrade.await.expect("upgraded")));
                tokio::io::copy(&mut read, &mut write).await
            })),
            "/echo" => {
                let bytes = body.collect().await.expect("a body").to_bytes();
                answer = Response::new(Full::new(bytes).boxed_unsync());
                answer.headers_mut().insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
                return answer;
            }
            "/moved" => {
                answer = text(302, "");
                answer.headers_mut().insert(header::LOCATION, HeaderValue::from_static("/elsewhere/"));
                return answer;
            }
            "/" => {
                answer = text(200, "<a href=\"/x\">");
                answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
                return answer;
            }
            _ => return text(404, "pod does not exist"),
        }
        *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        answer.headers_mut().insert(header::UPGRADE, HeaderValue::from_static("SPDY/3.1"));
        let protocol = if path.starts_with("/exec") { "v4.channel.k8s.io" } else { "portforward.k8s.io" };
        answer.headers_mut().insert("x-stream-protocol-version", HeaderValue::from_static(protocol));
        answer
    }
}

/// A command that repeats its input, and exits with 3 when that ends.
async fn command(io: hyper::upgrade::Upgraded) {
    let (mut read, mut write) = tokio::io::split(TokioIo::new(io));
    let (mut decoder, mut encoder) = (Decoder::default(), Encoder::default());
    let mut streams = BTreeMap::new();
    while let Some(frame) = decoder.read(&mut read).await.expect("a frame") {
        let answers = match frame {
            Frame::SynStream { stream, headers, .. } => {
                streams.insert(headers[0].1.clone(), stream);
                vec![Frame::SynReply { stream, fin: false, headers: Vec::new() }]
            }
            Frame::Data { stream, fin, data } if streams.get("stdin") == Some(&stream) => {
                let mut answers = vec![Frame::Data { stream: streams["stdout"], fin, data }];
                if fin {
                    let status = json!({"status": "Failure", "reason": "NonZeroExitCode", "message": "x",
                        "details": {"causes": [{"reason": "ExitCode", "message": "3"}]}});
                    let data = Bytes::from(status.to_string());
                    answers.push(Frame::Data { stream: streams["error"], fin: true, data });
                    answers.push(Frame::GoAway { last: 0, status: 0 });
                }
                answers
            }
            _ => Vec::new(),
        };
        for answer in answers {
            let (head, data) = encoder.encode(&answer);
            write.write_all(&[head, data].concat()).await.expect("written");
        }
    }
}

/// The API server's side: no chain, all else.
struct Front {
    api: Arc<Api>,
    streams: Streams,
    kubelet: u16,
}

impl Front {
    /// The kubelet as what `pods/a/proxy` leads to, and a port where nobody is for `pods/b/proxy`: real targets must
    /// not be on this machine.
    fn backend(&self, request: &Request) -> Option<Backend> {
        let port = match request.info.name.as_str() {
            "a" => self.kubelet,
            "b" => 1,
            _ => return None,
        };
        let location = Location {
            https: true,
            host: "127.0.0.1".into(),
            port: port.to_string(),
            path: request.info.path.split_once("/proxy").expect("a proxy").1.to_string(),
            query: request.uri.query().unwrap_or_default().to_string(),
        };
        Some(Backend { location, trust: Trust::Stranger })
    }
}

impl Handler for Front {
    type Connection = Peer;
    type Body = crate::request::Body;

    fn connected(&self, peer: Peer) -> Peer {
        peer
    }

    async fn call(&self, peer: Arc<Peer>, mut request: http::Request<Incoming>) -> Answer {
        let upgrade = Some(hyper::upgrade::on(&mut request));
        let (parts, body) = request.into_parts();
        let query = base::health::parse_query(parts.uri.query().unwrap_or_default());
        let info = info::parse(&parts.method, parts.uri.path(), &query).expect("a path");
        let row = self.api.resources.find("", &info.resource).expect("a resource");
        let path = parts.uri.path().to_string();
        let mut request = Request {
            info,
            method: parts.method,
            uri: parts.uri,
            query,
            headers: parts.headers,
            unread: Some(body),
            upgrade,
            ..Request::of("GET", &path)
        };
        let outcome = match self.backend(&request) {
            Some(backend) => {
                let call = Call { streams: &self.streams, api: &self.api, peer: &peer, row: &row, req: &mut request };
                proxy::pass(call, backend).await
            }
            None => serve(&self.streams, &self.api, &peer, &row, &mut request).await,
        };
        outcome.unwrap_or_else(|status| Failure::Status(status).answer(&request.headers))
    }
}

/// Everything; what runs ends with it.
struct World {
    address: std::net::SocketAddr,
    api: Arc<Api>,
    asked: mpsc::UnboundedReceiver<http::request::Parts>,
    lines: mpsc::UnboundedSender<&'static str>,
    ending: Shutdown,
}

impl Drop for World {
    fn drop(&mut self) {
        self.ending.cancel();
    }
}

async fn listen() -> (tokio::net::TcpListener, std::net::SocketAddr) {
    let listener = base::server::listen("127.0.0.1:0".parse().expect("an address"), false).expect("a port");
    let address = listener.local_addr().expect("an address");
    (listener, address)
}

fn limits() -> Limits {
    Limits { drain: std::time::Duration::ZERO, ..Limits::default() }
}

impl World {
    async fn new() -> Self {
        Self::of(testing::server().await).await
    }

    async fn of(api: Arc<Api>) -> Self {
        let ending = Shutdown::new();
        let (asked_sender, asked) = mpsc::unbounded_channel();
        let (lines, lines_receiver) = mpsc::unbounded_channel();
        let (listener, kubelet) = listen().await;
        let identity = base::tls::Identity::self_signed(&["localhost".into()]).expect("made");
        let tls = base::tls::server(identity, None, &base::tls::Policy::default()).expect("a configuration");
        let handler = Kubelet { asked: asked_sender, lines: tokio::sync::Mutex::new(lines_receiver) };
        tokio::spawn(base::server::serve(listener, Some(tls), limits(), Arc::new(handler), ending.clone()));
        let options = crate::options::Kubelet { address_types: vec!["InternalIP".into()], ..Default::default() };
        let streams = Streams::new(&options, &ending, ending.clone()).expect("no files");
        let (listener, address) = listen().await;
        let front = Front { api: api.clone(), streams, kubelet: kubelet.port() };
        tokio::spawn(base::server::serve(listener, None, limits(), Arc::new(front), ending.clone()));
        let world = Self { address, api, asked, lines, ending };
        world.populate(kubelet.port()).await;
        world
    }

    async fn populate(&self, port: u16) {
        let node = json!({"kind": "Node", "apiVersion": "v1", "metadata": {"name": "n"}, "status": {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}}}});
        testing::put(&self.api, "nodes", node).await;
        let containers = json!([{"name": "c", "image": "i"}, {"name": "gone", "image": "i"}]);
        for (name, node) in [("p", "n"), ("pending", ""), ("lost", "none")] {
            let pod = json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": name, "namespace": "ns"},
                "spec": {"nodeName": node, "containers": containers}});
            testing::put(&self.api, "pods", pod).await;
        }
    }

    async fn get(&self, path: &str) -> Response<Incoming> {
        self.send("GET", path, "").await
    }

    async fn send(&self, method: &str, path: &str, body: &'static str) -> Response<Incoming> {
        let stream = TcpStream::connect(self.address).await.expect("connected");
        let connected = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = connected.expect("connected");
        tokio::spawn(connection);
        let request = http::Request::builder().method(method).uri(path).header("host", "api.example:6443");
        sender.send_request(request.body(Full::new(Bytes::from(body))).expect("a request")).await.expect("an answer")
    }

    async fn status(&self, method: &str, path: &str) -> (u16, String) {
        let response = self.send(method, path, "").await;
        let bytes = response.into_body().collect().await.expect("a body").to_bytes();
        let status: Value = serde_json::from_slice(&bytes).expect("a Status");
        (status["code"].as_u64().expect("a code") as u16, status["message"].as_str().expect("a message").to_string())
    }

    async fn websocket(
        &self, path: &str, protocol: &'static str,
    ) -> (tokio_tungstenite::WebSocketStream<TcpStream>, Option<String>) {
        let mut request = format!("ws://{}{path}", self.address).into_client_request().expect("a request");
        request.headers_mut().insert(header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(protocol));
        let stream = TcpStream::connect(self.address).await.expect("connected");
        let (socket, response) = tokio_tungstenite::client_async(request, stream).await.expect("a websocket");
        let chosen = response.headers().get(header::SEC_WEBSOCKET_PROTOCOL);
        (socket, chosen.map(|v| v.to_str().expect("text").to_string()))
    }
}

async fn next(socket: &mut tokio_tungstenite::WebSocketStream<TcpStream>) -> Option<Bytes> {
    match socket.next().await?.expect("a message") {
        Message::Binary(bytes) => Some(bytes),
        Message::Close(frame) => {
            assert_eq!(u16::from(frame.expect("a reason").code), 1000);
            None
        }
        other => panic!("unexpected {other:?}"),
    }
}

#[tokio::test]
async fn a_followed_log_comes_piece_by_piece() {
    let mut world = World::new().await;
    world.lines.send("one\n").expect("taken");
    let response = world.get("/api/v1/namespaces/ns/pods/p/log?container=c&follow=true&tailLines=5").await;
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], "text/plain");
    let asked = world.asked.recv().await.expect("asked");
    assert_eq!(asked.uri.to_string(), "/containerLogs/ns/p/c?follow=true&tailLines=5");
    let mut body = response.into_body().into_data_stream();
    assert_eq!(body.next().await.expect("a piece").expect("bytes"), "one\n");
    assert!(body.next().await.is_none());
}

#[tokio::test]
async fn logs_that_can_not_be_had_say_why() {
    let world = World::new().await;
    let log = |pod: &str, query: &str| format!("/api/v1/namespaces/ns/pods/{pod}/log{query}");
    let choose = "a container name must be specified for pod p, choose one of: [c gone]";
    assert_eq!(world.status("GET", &log("p", "")).await, (400, choose.into()));
    let invalid = "container x is not valid for pod p";
    assert_eq!(world.status("GET", &log("p", "?container=x")).await, (400, invalid.into()));
    let waiting = "container is waiting to start";
    assert_eq!(world.status("GET", &log("p", "?container=gone")).await, (400, waiting.into()));
    assert_eq!(world.status("GET", &log("none", "")).await, (404, "pods \"none\" not found".into()));
    let lost = "pods \"none\" not found";
    assert_eq!(world.status("GET", &log("lost", "?container=c")).await, (404, lost.into()));
    assert_eq!(world.get(&log("pending", "?container=c")).await.status(), 204);
}

#[tokio::test]
async fn a_log_over_a_websocket_comes_in_messages() {
    let world = World::new().await;
    world.lines.send("one\n").expect("taken");
    let (mut socket, chosen) = world.websocket("/api/v1/namespaces/ns/pods/p/log?container=c", "binary.k8s.io").await;
    assert_eq!(chosen.as_deref(), Some("binary.k8s.io"));
    assert_eq!(next(&mut socket).await.expect("a first message"), "");
    assert_eq!(next(&mut socket).await.expect("a piece"), "one\n");
    assert_eq!(next(&mut socket).await, None);
}

const EXEC: &str = "/api/v1/namespaces/ns/pods/p/exec?container=c&command=cat&stdin=true&stdout=true&stderr=true";

#[tokio::test]
async fn a_command_over_websocket_v5_ends_with_its_exit_code() {
    let mut world = World::new().await;
    let (mut socket, chosen) = world.websocket(EXEC, "v5.channel.k8s.io").await;
    assert_eq!(chosen.as_deref(), Some("v5.channel.k8s.io"));
    assert_eq!(next(&mut socket).await.expect("a first message").as_ref(), [1]);
    socket.send(Message::Binary(Bytes::from_static(b"\x00hello"))).await.expect("sent");
    assert_eq!(next(&mut socket).await.expect("output"), "\u{1}hello");
    socket.send(Message::Binary(Bytes::from_static(&[255, 0]))).await.expect("sent");
    let status = next(&mut socket).await.expect("a status");
    assert_eq!(status[0], 3);
    let status: Value = serde_json::from_slice(&status[1..]).expect("a Status");
    assert_eq!(status["details"]["causes"][0]["message"], "3");
    assert_eq!(next(&mut socket).await, None);
    let asked = world.asked.recv().await.expect("asked");
    assert_eq!(asked.method, "POST");
    assert_eq!(asked.uri.to_string(), "/exec/ns/p/c?command=cat&error=1&input=1&output=1");
}

#[tokio::test]
async fn a_kubelet_that_can_not_be_reached_is_told_on_the_error_channel() {
    let world = World::new().await;
    let node = json!({"kind": "Node", "apiVersion": "v1", "metadata": {"name": "n"}, "status": {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": 1}}}});
    testing::put(&world.api, "nodes", node).await;
    let (mut socket, _) = world.websocket(EXEC, "v5.channel.k8s.io").await;
    next(&mut socket).await.expect("a first message");
    let status = next(&mut socket).await.expect("a status");
    let status: Value = serde_json::from_slice(&status[1..]).expect("a Status");
    let url = "https://127.0.0.1:1/exec/ns/p/c?command=cat&error=1&input=1&output=1";
    let why = "dial tcp 127.0.0.1:1: connect: connection refused";
    let text = format!("Internal error occurred: error sending request: Post {url:?}: {why}");
    assert_eq!(status["message"], text);
}

/// As old clients: their SPDY goes through as it is.
#[tokio::test]
async fn a_command_over_spdy_is_handed_through() {
    let mut world = World::new().await;
    let mut stream = TcpStream::connect(world.address).await.expect("connected");
    let head = format!(
        "POST {EXEC} HTTP/1.1\r\nHost: api.example\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\
         X-Stream-Protocol-Version: v4.channel.k8s.io\r\nContent-Length: 0\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.expect("sent");
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        answer.push(stream.read_u8().await.expect("an answer"));
    }
    let answer = String::from_utf8(answer).expect("text").to_lowercase();
    assert!(answer.starts_with("http/1.1 101 ") && answer.contains("v4.channel.k8s.io"), "{answer}");
    let connection = super::spdy::connection::Connection::start(stream);
    let open = async |kind| connection.open(&[("streamtype", kind)]).await.expect("opened");
    let ((_, mut error), (stdin, _), (_, mut stdout)) =
        (open("error").await, open("stdin").await, open("stdout").await);
    stdin.send(Bytes::from_static(b"hello")).await.expect("sent");
    assert_eq!(stdout.next().await.expect("output"), "hello");
    stdin.finish().await.expect("sent");
    let status: Value = serde_json::from_slice(&error.next().await.expect("a status")).expect("a Status");
    assert_eq!(status["reason"], "NonZeroExitCode");
    let asked = world.asked.recv().await.expect("asked");
    assert_eq!(asked.headers["host"], "api.example");
    assert_eq!(asked.headers["x-forwarded-for"], "127.0.0.1");
}

#[tokio::test]
async fn a_port_forward_comes_out_of_its_websocket() {
    let mut world = World::new().await;
    let path = "/api/v1/namespaces/ns/pods/p/portforward";
    let (mut socket, chosen) = world.websocket(path, "SPDY/3.1+portforward.k8s.io").await;
    assert_eq!(chosen.as_deref(), Some("SPDY/3.1+portforward.k8s.io"));
    let asked = world.asked.recv().await.expect("asked");
    assert_eq!((asked.method.as_str(), asked.headers["upgrade"].as_bytes()), ("POST", &b"SPDY/3.1"[..]));
    assert_eq!(asked.headers["x-stream-protocol-version"], "portforward.k8s.io");
    assert!(!asked.headers.contains_key("sec-websocket-key"));
    socket.send(Message::Binary(Bytes::from_static(b"any bytes"))).await.expect("sent");
    assert_eq!(next(&mut socket).await.expect("an echo"), "any bytes");
    socket.close(None).await.expect("closed");
}

#[tokio::test]
async fn commands_without_an_upgrade_or_a_node_are_refused() {
    let world = World::new().await;
    assert_eq!(world.status("POST", EXEC).await, (400, "Upgrade request required".into()));
    let pending = "/api/v1/namespaces/ns/pods/pending/exec?container=c";
    assert_eq!(world.status("POST", pending).await, (400, "pod pending does not have a host assigned".into()));
    let dry = "/api/v1/namespaces/ns/pods/p/exec?container=c&dryRun=All";
    assert_eq!(world.status("POST", dry).await, (400, "dryRun is not supported".into()));
}

#[tokio::test]
async fn open_streams_end_with_the_server() {
    let world = World::new().await;
    let (mut socket, _) = world.websocket(EXEC, "v5.channel.k8s.io").await;
    next(&mut socket).await.expect("a first message");
    world.ending.cancel();
    let end = tokio::time::timeout(std::time::Duration::from_secs(5), socket.next()).await.expect("an end");
    assert!(!matches!(end, Some(Ok(Message::Binary(_)))));
}

/// A node at an address that is not ours alone: what is behind `nodes/proxy` and `pods/proxy` must not be local.
#[tokio::test]
async fn requests_to_this_machine_are_not_passed_on() {
    let world = World::new().await;
    let refused = (400, "address not allowed".to_string());
    assert_eq!(world.status("GET", "/api/v1/nodes/n/proxy/pods").await, refused);
    assert_eq!(world.status("GET", "/api/v1/namespaces/ns/pods/p/proxy/x").await, refused);
    let missing = (404, "services \"s\" not found".to_string());
    assert_eq!(world.status("GET", "/api/v1/namespaces/ns/services/s/proxy/x").await, missing);
    let none = (404, "nodes \"none\" not found".to_string());
    assert_eq!(world.status("GET", "/api/v1/nodes/none/proxy/pods").await, none);
    let odd = (400, "invalid pod request \"ftp:p:1\"".to_string());
    assert_eq!(world.status("GET", "/api/v1/namespaces/ns/pods/ftp:p:1/proxy/x").await, odd);
}

#[tokio::test]
async fn a_service_without_ready_endpoints_is_unavailable() {
    let world = World::new().await;
    let endpoints = |subsets: Value| json!({"kind": "Endpoints", "apiVersion": "v1", "metadata": {"name": "s", "namespace": "ns"}, "subsets": subsets});
    testing::put(&world.api, "endpoints", endpoints(json!([]))).await;
    let path = "/api/v1/namespaces/ns/services/s:web/proxy/x";
    assert_eq!(world.status("GET", path).await, (503, "no endpoints available for service \"s\"".into()));
    // An address that is no pod's is not reached.
    let address = json!([{"addresses": [{"ip": "127.0.0.1"}], "ports": [{"name": "web", "port": 1}]}]);
    testing::put(&world.api, "endpoints", endpoints(address)).await;
    assert_eq!(world.status("GET", path).await, (503, "no endpoints available for service \"s:web\"".into()));
}

#[tokio::test]
async fn a_proxied_request_keeps_method_query_and_body() {
    let mut world = World::new().await;
    let path = "/api/v1/namespaces/ns/pods/a/proxy/echo?x=1%2F2&y";
    let response = world.send("PATCH", path, "hello").await;
    assert_eq!(response.status(), 200);
    assert!(!response.headers().contains_key("access-control-allow-origin"));
    assert_eq!(response.into_body().collect().await.expect("a body").to_bytes(), "hello");
    let asked = world.asked.recv().await.expect("asked");
    assert_eq!((asked.method.as_str(), asked.uri.to_string().as_str()), ("PATCH", "/echo?x=1%2F2&y"));
    let header = |name: &str| asked.headers[name].to_str().expect("text");
    assert_eq!(header("x-forwarded-uri"), "/api/v1/namespaces/ns/pods/a/proxy/echo");
    assert_eq!((header("x-forwarded-for"), header("host")), ("127.0.0.1", "api.example:6443"));
}

#[tokio::test]
async fn redirects_and_links_lead_back_through_the_proxy() {
    let world = World::new().await;
    let moved = world.get("/api/v1/namespaces/ns/pods/a/proxy/moved").await;
    assert_eq!(moved.status(), 302);
    assert_eq!(moved.headers()["location"], "/api/v1/namespaces/ns/pods/a/proxy/elsewhere/");
    let page = world.get("/api/v1/namespaces/ns/pods/a/proxy/").await;
    let page = page.into_body().collect().await.expect("a body").to_bytes();
    assert_eq!(page, "<a href=\"/api/v1/namespaces/ns/pods/a/proxy/x\">");
    let root = world.get("/api/v1/namespaces/ns/pods/a/proxy?q=1").await;
    assert_eq!(root.status(), 301);
    assert_eq!(root.headers()["location"], "/api/v1/namespaces/ns/pods/a/proxy/?q=1");
    let nobody = "error trying to reach service: dial tcp 127.0.0.1:1: connect: connection refused";
    assert_eq!(world.status("GET", "/api/v1/namespaces/ns/pods/b/proxy/x").await, (503, nobody.into()));
}

/// kubernetes/kubernetes#134577: reading a pod is not the right to run commands in it.
#[tokio::test]
async fn a_websocket_needs_the_right_to_create() {
    let mut api = testing::server().await;
    let lookup = Lookup::new(api.cache.clone(), api.resources.clone(), "/registry");
    let authorizer = Authorizer::new(&["AlwaysDeny".into()], &lookup).expect("a mode");
    Arc::get_mut(&mut api).expect("nobody else has it").authorizer = Arc::new(authorizer);
    let world = World::of(api).await;
    for subresource in ["exec", "attach", "portforward"] {
        let path = format!("/api/v1/namespaces/ns/pods/p/{subresource}?container=c&command=x&stdout=true");
        let refused = (403, "pods \"p\" is forbidden: Everything is forbidden.".to_string());
        assert_eq!(world.status("GET", &path).await, refused);
        // A POST was authorized as what it is.
        assert_eq!(world.status("POST", &path).await, (400, "Upgrade request required".into()));
    }
}

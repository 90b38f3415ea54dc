//! Streams into containers: exec, attach, port-forward. The runtime serves them; the kubelet finds the container, asks
//! the runtime for an address, and joins the two connections without looking into them.

use super::{Answer, Query, Server, param, text};
use crate::pods;
use crate::runtime::state::State;
use axum::body::Body;
use base::Fault;
use bytes::Bytes;
use http::{Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::TokioIo;
use k8s_cri::v1;
use k8s_openapi::api::core::v1::Pod;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;

/// Which streams are wanted.
struct Streams {
    stdin: bool,
    stdout: bool,
    stderr: bool,
    tty: bool,
}

fn streams(query: &Query) -> Result<Streams, Answer> {
    // The kubelet's own names, and those of the API.
    let on = |names: [&str; 2]| {
        names.iter().filter_map(|name| param(query, name)).any(|value| matches!(value, "1" | "true"))
    };
    let tty = on(["tty", "tty"]);
    let streams = Streams {
        stdin: on(["input", "stdin"]),
        stdout: on(["output", "stdout"]),
        // A terminal has one output.
        stderr: on(["error", "stderr"]) && !tty,
        tty,
    };
    match streams.stdin || streams.stdout || streams.stderr {
        true => Ok(streams),
        false => Err(text(StatusCode::BAD_REQUEST, "you must specify at least 1 of stdin, stdout, stderr")),
    }
}

fn refused(error: &crate::runtime::cri::CriError) -> Answer {
    let status = match error.0.code() {
        tonic::Code::NotFound => StatusCode::NOT_FOUND,
        tonic::Code::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    text(status, error.to_string())
}

impl Server {
    /// The pod and the id of the running container of the name.
    async fn running(
        &self, namespace: &str, name: &str, uid: Option<&str>, container: &str,
    ) -> Result<(Arc<Pod>, String), Answer> {
        let pod = self.pod(namespace, name, uid);
        let pod = pod.ok_or_else(|| text(StatusCode::NOT_FOUND, "pod does not exist"))?;
        let state = self.ctx.cri.observe(pods::uid(&pod)).await.map_err(|error| refused(&error))?;
        let running = state.containers.iter().find(|c| c.name == container && c.state == State::Running);
        match running {
            Some(run) => Ok((pod, run.id.clone())),
            None => Err(text(StatusCode::INTERNAL_SERVER_ERROR, format!("container not found ({container:?})"))),
        }
    }

    pub(super) async fn exec(
        &self, request: Request<Body>, query: &Query, namespace: &str, name: &str, uid: Option<&str>, container: &str,
    ) -> Answer {
        let streams = match streams(query) {
            Ok(streams) => streams,
            Err(answer) => return answer,
        };
        let id = match self.running(namespace, name, uid, container).await {
            Ok((_, id)) => id,
            Err(answer) => return answer,
        };
        let command = query.0.iter().filter(|(key, _)| key == "command").map(|(_, value)| value.clone()).collect();
        let Streams { stdin, stdout, stderr, tty } = streams;
        let asked = v1::ExecRequest { container_id: id, cmd: command, tty, stdin, stdout, stderr };
        match self.ctx.cri.exec(asked).await {
            Ok(url) => join(request, &url).await,
            Err(error) => refused(&error),
        }
    }

    pub(super) async fn attach(
        &self, request: Request<Body>, query: &Query, namespace: &str, name: &str, uid: Option<&str>, container: &str,
    ) -> Answer {
        let streams = match streams(query) {
            Ok(streams) => streams,
            Err(answer) => return answer,
        };
        let (pod, id) = match self.running(namespace, name, uid, container).await {
            Ok(found) => found,
            Err(answer) => return answer,
        };
        // Whether there is a terminal is the container's matter, not the client's.
        let place = pods::place_of(&pod, container).and_then(|place| pods::container_at(&pod, place));
        let tty = place.and_then(|container| container.tty).unwrap_or(streams.tty);
        let Streams { stdin, stdout, stderr, .. } = streams;
        let asked = v1::AttachRequest { container_id: id, stdin, tty, stdout, stderr: stderr && !tty };
        match self.ctx.cri.attach(asked).await {
            Ok(url) => join(request, &url).await,
            Err(error) => refused(&error),
        }
    }

    pub(super) async fn port_forward(
        &self, request: Request<Body>, query: &Query, namespace: &str, name: &str, uid: Option<&str>,
    ) -> Answer {
        let Some(pod) = self.pod(namespace, name, uid) else {
            return text(StatusCode::NOT_FOUND, "pod does not exist");
        };
        let state = match self.ctx.cri.observe(pods::uid(&pod)).await {
            Ok(state) => state,
            Err(error) => return refused(&error),
        };
        let Some(sandbox) = state.sandboxes.first() else {
            let what = format!("failed to find sandboxID for pod {}", pods::describe(&pod));
            return text(StatusCode::INTERNAL_SERVER_ERROR, what);
        };
        let asked = query.0.iter().filter(|(key, _)| key == "port" || key == "ports").flat_map(|(_, v)| v.split(','));
        let ports = asked.map(|port| port.parse::<u16>().map(i32::from)).collect::<Result<Vec<i32>, _>>();
        let Ok(ports) = ports else {
            return text(StatusCode::BAD_REQUEST, "unable to parse a port of the query");
        };
        match self.ctx.cri.port_forward(&sandbox.id, ports).await {
            Ok(url) => join(request, &url).await,
            Err(error) => refused(&error),
        }
    }

    /// Runs a command and answers with what it wrote.
    pub(super) async fn run(
        &self, query: &Query, namespace: &str, name: &str, uid: Option<&str>, container: &str,
    ) -> Answer {
        let id = match self.running(namespace, name, uid, container).await {
            Ok((_, id)) => id,
            Err(answer) => return answer,
        };
        let command: Vec<String> = param(query, "cmd").unwrap_or_default().split(' ').map(str::to_owned).collect();
        match self.ctx.cri.exec_sync(&id, &command, Duration::ZERO).await {
            Ok(done) if done.exit_code == 0 => {
                let mut output = done.stdout;
                output.extend(done.stderr);
                super::typed(StatusCode::OK, "application/json", output)
            }
            Ok(done) => {
                let error = format!("command '{}' exited with {}", command.join(" "), done.exit_code);
                text(StatusCode::INTERNAL_SERVER_ERROR, error)
            }
            Err(error) => refused(&error),
        }
    }
}

/// Joins the client's connection with the runtime's, once both have been upgraded.
///
/// An answer of the runtime's that is no upgrade goes to the client as it is, and the connection ends with it: nothing
/// may be sent past it (CVE-2018-1002105).
async fn join(request: Request<Body>, url: &str) -> Answer {
    if !request.headers().contains_key(header::UPGRADE) {
        return text(StatusCode::BAD_REQUEST, "Upgrade request required");
    }
    match try_join(request, url).await {
        Ok(answer) => answer,
        Err(error) => {
            tracing::warn!(%error, "error while proxying request");
            text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
        }
    }
}

async fn try_join(mut request: Request<Body>, url: &str) -> Result<Answer, Fault> {
    let uri: Uri = url.parse()?;
    let authority = uri.authority().ok_or("the runtime's address has no host")?.clone();
    let target = uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
    let stream = TcpStream::connect(authority.as_str()).await?;
    stream.set_nodelay(true)?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection.with_upgrades());
    let mut onward = Request::builder().method(request.method().clone()).uri(target).body(Empty::<Bytes>::new())?;
    for (name, value) in request.headers() {
        // Who asks is settled here; the runtime is not told.
        if *name != header::AUTHORIZATION && *name != header::HOST && *name != header::CONTENT_LENGTH {
            onward.headers_mut().append(name.clone(), value.clone());
        }
    }
    onward.headers_mut().insert(header::HOST, authority.as_str().parse()?);
    let mut response = sender.send_request(onward).await?;
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        let (mut parts, body) = response.into_parts();
        parts.headers.remove(header::LOCATION);
        parts.headers.insert(header::CONNECTION, http::HeaderValue::from_static("close"));
        let body = body.collect().await?.to_bytes();
        let mut answer = super::typed(parts.status, "text/plain; charset=utf-8", body);
        if parts.status.is_redirection() || parts.status.is_success() {
            *answer.status_mut() = StatusCode::BAD_GATEWAY;
        }
        return Ok(answer);
    }
    let mut answer = Response::new(Body::empty());
    *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    *answer.headers_mut() = response.headers().clone();
    let theirs = hyper::upgrade::on(&mut response);
    let ours = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        match tokio::try_join!(ours, theirs) {
            // Either side may go away in the middle: that is how streams end.
            Ok((ours, theirs)) => base::relay::join(TokioIo::new(ours), TokioIo::new(theirs)).await,
            Err(error) => tracing::debug!(%error, "a stream into a container was not upgraded"),
        }
    });
    Ok(answer)
}

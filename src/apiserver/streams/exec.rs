//! Remote commands over websockets whose channels end one by one (`v5.channel.k8s.io`), translated to SPDY for the
//! kubelet and its runtime, which know no more than SPDY and older websockets.
//!
//! ```text
//!  websocket channel 0 stdin ──────►  SPDY stream stdin          255 0 ends it
//!                    1 stdout ◄─────              stdout
//!                    2 stderr ◄─────              stderr
//!                    3 a Status ◄── what the ──── error          comes last, also on success
//!                    4 sizes ──────►              resize
//! ```
//!
//! The websocket is there before the kubelet is asked: failures are told on channel 3.

use api::status::Status;
use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Empty;
use hyper::body::Incoming as ResponseBody;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};

use super::locate::Backend;
use super::options::Remote;
use super::spdy::connection::{Connection, Incoming, Outgoing};
use super::upgrade::{STREAM_PROTOCOL, taken, text};
use super::websocket::{self, Inbox, Outbox, Said, Socket, V5};
use super::wire::{self, Wire};
use super::{Call, forward};
use crate::request::Answer;

const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const ERROR: u8 = 3;
const RESIZE: u8 = 4;

/// What we speak over SPDY, best first.
const PROTOCOLS: [&str; 5] = [V5, "v4.channel.k8s.io", "v3.channel.k8s.io", "v2.channel.k8s.io", "channel.k8s.io"];

/// Translates between the client's websocket and the kubelet's SPDY.
///
/// # Errors
/// 500 where the connection can't be taken over.
pub fn translate(mut call: Call<'_>, backend: Backend, options: Remote) -> Result<Answer, Status> {
    let answer = match websocket::accept(&call.req.headers, V5) {
        Ok(answer) => answer,
        Err(refusal) => {
            call.streams.metrics.translated(refusal.status().as_u16());
            return Ok(refusal);
        }
    };
    let (client, wire, metrics) = (taken(&mut call)?, call.streams.wire.clone(), call.streams.metrics.clone());
    call.streams.run(async move {
        let code = session(client, &wire, &backend, &options).await;
        metrics.translated(code);
    });
    Ok(answer)
}

/// Serves the websocket to its end; the outcome as a code.
async fn session(client: OnUpgrade, wire: &Wire, backend: &Backend, options: &Remote) -> u16 {
    let (outbox, mut inbox) = match Socket::open(client).await {
        Ok(socket) => socket.split(),
        Err(error) => {
            tracing::debug!(%error, "a websocket was not opened");
            return 400;
        }
    };
    let verdict = relay(wire, backend, options, &outbox, &mut inbox).await;
    // A command that ran, with whatever exit code, is a success of ours.
    let code = verdict.as_ref().and_then(|verdict| verdict["code"].as_u64()).unwrap_or(200) as u16;
    if let Some(verdict) = verdict {
        // An error says that the client is gone, and nobody wants to know.
        let _ = outbox.channel(ERROR, verdict.to_string().as_bytes()).await;
    }
    outbox.close(&mut inbox).await;
    code
}

/// Runs the command; the verdict is the Status for channel 3, or nothing when the client has left.
async fn relay(wire: &Wire, backend: &Backend, options: &Remote, outbox: &Outbox, inbox: &mut Inbox) -> Option<Value> {
    let connected = connect(wire, backend).await;
    // The client learns by an empty message that we are there. kubectl before 1.33 complains about messages that come
    // before it has made its streams, so it gets this moment.
    let first = if options.stdout {
        STDOUT
    } else if options.stderr {
        STDERR
    } else {
        ERROR
    };
    outbox.channel(first, &[]).await.ok()?;
    let (connection, protocol) = match connected {
        Ok(connected) => connected,
        Err(refusal) => return Some(refusal),
    };
    let streams = match Streams::open(&connection, options).await {
        Ok(streams) => streams,
        Err(error) => return Some(internal(&error.to_string())),
    };
    let Streams { mut error, stdin, stdout, stderr, resize } = streams;
    let output = async {
        tokio::join!(copy(stdout, STDOUT, outbox), copy(stderr, STDERR, outbox));
        verdict(&mut error, &protocol).await
    };
    let verdict = tokio::select! {
        biased;
        verdict = output => Some(verdict),
        () = feed(inbox, stdin, resize) => None,
    };
    connection.close().await;
    verdict
}

/// Connects to the kubelet and agrees on a protocol.
async fn connect(wire: &Wire, backend: &Backend) -> Result<(Connection, String), Value> {
    let location = &backend.location;
    let unsent = |why: String| internal(&format!("error sending request: Post {:?}: {why}", location.to_string()));
    let stream = wire.connect(backend).await.map_err(unsent)?;
    let mut request = Request::new(Empty::<Bytes>::new());
    *request.method_mut() = Method::POST;
    *request.uri_mut() = forward::uri(location).map_err(|status| status.to_value())?;
    let headers = request.headers_mut();
    if let Ok(host) = HeaderValue::from_str(&location.authority()) {
        headers.insert(header::HOST, host);
    }
    headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static("SPDY/3.1"));
    for protocol in PROTOCOLS {
        headers.append(STREAM_PROTOCOL.clone(), HeaderValue::from_static(protocol));
    }
    let response = wire::exchange(stream, request).await.map_err(unsent)?;
    if response.status().is_redirection() && response.headers().contains_key(header::LOCATION) {
        return Err(unsent("redirect not allowed".into()));
    }
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Err(refusal(response).await);
    }
    let protocol =
        response.headers().get(&STREAM_PROTOCOL).and_then(|v| v.to_str().ok()).unwrap_or_default().to_string();
    let io = hyper::upgrade::on(response).await.map_err(|e| internal(&e.to_string()))?;
    Ok((Connection::start(TokioIo::new(io)), protocol))
}

/// Why the kubelet did not upgrade: a Status, or a text.
async fn refusal(response: Response<ResponseBody>) -> Value {
    let text = text(response).await;
    match serde_json::from_str::<Value>(&text) {
        Ok(status) if status["kind"] == "Status" => status,
        _ => internal(&format!("unable to upgrade connection: {}", text.trim())),
    }
}

struct Streams {
    error: Incoming,
    stdin: Option<Outgoing>,
    stdout: Option<Incoming>,
    stderr: Option<Incoming>,
    resize: Option<Outgoing>,
}

impl Streams {
    /// Opens all streams at once. Nothing may be sent on one before its reply is here: it would be thrown away.
    async fn open(connection: &Connection, options: &Remote) -> std::io::Result<Self> {
        let open = async |wanted: bool, kind: &str| match wanted {
            true => connection.open(&[("streamtype", kind)]).await.map(Some),
            false => Ok(None),
        };
        let (error, stdin, stdout, stderr, resize) = tokio::try_join!(
            connection.open(&[("streamtype", "error")]),
            open(options.stdin, "stdin"),
            open(options.stdout, "stdout"),
            open(options.stderr && !options.tty, "stderr"),
            open(options.tty, "resize"),
        )?;
        Ok(Self {
            error: error.1,
            stdin: stdin.map(|(out, _)| out),
            stdout: stdout.map(|(_, data)| data),
            stderr: stderr.map(|(_, data)| data),
            resize: resize.map(|(out, _)| out),
        })
    }
}

/// Brings what a stream gives to a channel, to the stream's end, whether the client still listens or not.
async fn copy(from: Option<Incoming>, channel: u8, outbox: &Outbox) {
    let Some(mut from) = from else { return };
    while let Some(data) = from.next().await {
        // An error says that the client is gone, which ends everything in a moment.
        let _ = outbox.channel(channel, &data).await;
    }
}

/// Brings the client's input and sizes to their streams, until it leaves.
async fn feed(inbox: &mut Inbox, mut stdin: Option<Outgoing>, resize: Option<Outgoing>) {
    while let Some(said) = inbox.channel().await {
        // Errors say that the command is over, which ends everything in a moment.
        match (said, &stdin, &resize) {
            (Said::Data(STDIN, data), Some(stdin), _) => drop(stdin.send(data).await),
            (Said::Data(RESIZE, data), _, Some(resize)) => drop(resize.send(data).await),
            (Said::End(STDIN), Some(out), _) => {
                drop(out.finish().await);
                stdin = None;
            }
            // Upstream ends the connection when a channel that can't be is ended.
            (Said::End(channel), ..) if channel > RESIZE => return,
            _ => {}
        }
    }
}

/// What the error stream says, as the Status of channel 3.
async fn verdict(error: &mut Incoming, protocol: &str) -> Value {
    let mut message = Vec::new();
    while let Some(data) = error.next().await {
        message.extend_from_slice(&data);
    }
    match message.as_slice() {
        [] if error.ended_well() => success(),
        // Silence of a connection that broke is no success: half a file may have come.
        [] => internal("error reading from error stream: unexpected EOF"),
        message if matches!(protocol, V5 | "v4.channel.k8s.io") => judged(message),
        message => internal(&format!("error executing remote command: {}", String::from_utf8_lossy(message))),
    }
}

fn success() -> Value {
    json!({"metadata": {}, "status": "Success"})
}

fn internal(why: &str) -> Value {
    let mut status = Status::internal(why).to_value();
    if let Some(fields) = status.as_object_mut() {
        // As upstream writes it here: a Status that is no object of its own.
        fields.remove("kind");
        fields.remove("apiVersion");
    }
    status
}

/// The kubelet's Status read as upstream's client reads it, and said again as upstream's server says it.
fn judged(message: &[u8]) -> Value {
    let shown = String::from_utf8_lossy(message);
    let status: Value = match serde_json::from_slice(message) {
        Ok(status) => status,
        Err(error) => return internal(&format!("error stream protocol error: {error} in {shown:?}")),
    };
    match (status["status"].as_str(), status["reason"].as_str()) {
        (Some("Success"), _) => success(),
        (Some("Failure"), Some("NonZeroExitCode")) => exit_code(&status),
        (Some("Failure"), _) => internal(status["message"].as_str().unwrap_or_default()),
        _ => internal("error stream protocol error: unknown error"),
    }
}

fn exit_code(status: &Value) -> Value {
    let Some(details) = status["details"].as_object() else {
        return internal("error stream protocol error: details must be set");
    };
    let causes = details.get("causes").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let Some(cause) = causes.iter().find(|cause| cause["reason"] == "ExitCode") else {
        return internal("error stream protocol error: no ExitCode cause given");
    };
    let text = cause["message"].as_str().unwrap_or_default();
    let Ok(code) = text.parse::<u8>() else {
        return internal(&format!("error stream protocol error: invalid exit code value {text:?}"));
    };
    let message = format!("command terminated with non-zero exit code: command terminated with exit code {code}");
    json!({
        "metadata": {}, "status": "Failure", "message": message, "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "ExitCode", "message": code.to_string()}]},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_and_failures_are_said_again_as_upstream_does() {
        assert_eq!(judged(br#"{"metadata":{},"status":"Success"}"#), success());
        let failed = judged(
            br#"{"metadata":{},"status":"Failure","message":"command terminated with non-zero exit code: x",
                "reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"3"}]}}"#,
        );
        assert_eq!(
            failed["message"],
            "command terminated with non-zero exit code: command terminated with exit code 3"
        );
        assert_eq!(failed["details"]["causes"][0]["message"], "3");
        let other = judged(br#"{"status":"Failure","message":"no such file"}"#);
        assert_eq!((&other["message"], &other["code"]), (&json!("Internal error occurred: no such file"), &json!(500)));
        assert_eq!(other.get("kind"), None);
        let odd = judged(br#"{"status":"Failure","reason":"NonZeroExitCode","details":{"causes":[]}}"#);
        let text = "Internal error occurred: error stream protocol error: no ExitCode cause given";
        assert_eq!(odd["message"], text);
    }
}

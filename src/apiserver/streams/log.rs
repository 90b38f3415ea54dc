//! `pods/log`: what the kubelet reads, handed on piece by piece.

use api::status::Status;
use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::BoxStream;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::Empty;
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;

use super::locate::Backend;
use super::options::Log;
use super::upgrade::{taken, text};
use super::websocket::{self, Gone, Outbox, Socket};
use super::{Call, forward, wire};
use crate::registry::output;
use crate::request::{Answer, Body};
use crate::respond::typed;

/// Answers a request for a log.
///
/// # Errors
/// 400, 404 and 422 in upstream's words; what the kubelet answers, as upstream maps it.
pub async fn serve(call: Call<'_>) -> Result<Answer, Status> {
    output::negotiate(call.row, call.req)?;
    let options = Log::read(&call.req.query).map_err(Status::bad_request)?;
    call.streams.metrics.log(options.insecure);
    options.validate(&call.req.info.name)?;
    let Some(backend) = call.log(&options).await? else {
        // No node has it: there is nothing to read, and nobody to ask.
        let mut answer = Answer::new(Body::empty());
        *answer.status_mut() = StatusCode::NO_CONTENT;
        return Ok(answer);
    };
    let response = fetch(&call, &backend).await?;
    let pieces = forward::tolerant(response.into_body());
    if websocket::is_websocket(&call.req.headers) {
        return over_websocket(call, pieces);
    }
    let mut answer = typed("text/plain", Vec::new());
    *answer.body_mut() = Body::Stream(pieces.map(Ok).boxed());
    Ok(answer)
}

async fn fetch(call: &Call<'_>, backend: &Backend) -> Result<Response<Incoming>, Status> {
    let location = &backend.location;
    let failed = |why: String| {
        if why.contains("x509:") {
            call.streams.metrics.unverified.inc();
        }
        Status::new(500, "", format!("Get {:?}: {why}", location.to_string()))
    };
    let stream = call.streams.wire.connect(backend).await.map_err(failed)?;
    let mut request = Request::new(Empty::<Bytes>::new());
    *request.uri_mut() = forward::uri(location)?;
    if let Ok(host) = HeaderValue::from_str(&location.authority()) {
        request.headers_mut().insert(header::HOST, host);
    }
    let response = wire::exchange(stream, request).await.map_err(failed)?;
    match response.status().as_u16() {
        200..=206 => Ok(response),
        300..=399 if response.headers().contains_key(header::LOCATION) => Err(failed("redirects forbidden".into())),
        code => Err(refused(code, &text(response).await, &call.req.info.name)),
    }
}

/// What a kubelet's refusal is for the client.
fn refused(code: u16, text: &str, pod: &str) -> Status {
    let about = |reason: &'static str, message: &str| {
        let of = api::status::Of { group: "", name: "pods/log" };
        let mut status = Status::not_found(of, pod);
        (status.code, status.reason) = (code, reason);
        status.message = format!("{message} ( pods/log {pod})");
        status
    };
    match code {
        500 => Status::internal(text),
        400 => Status::bad_request(text),
        401 => about("Unauthorized", "the server has asked for the client to provide credentials"),
        403 => about("Forbidden", text),
        404 => about("NotFound", "the server could not find the requested resource"),
        405 => about("MethodNotAllowed", "the server does not allow this method on the requested resource"),
        409 => about("Conflict", "the server reported a conflict"),
        422 => about("Invalid", "the server rejected our request due to an error in our request"),
        429 => {
            about("TooManyRequests", "the server has received too many requests and has asked us to try again later")
        }
        503 => about("ServiceUnavailable", "the server is currently unable to handle the request"),
        504 => about(
            "Timeout",
            "the server was unable to return a response in the time allotted, but may still be processing the request",
        ),
        code if code > 500 => {
            let shown = api::field::quote(text);
            let text = format!("an error on the server ({shown}) has prevented the request from succeeding");
            about("InternalError", &text)
        }
        code => {
            let text = format!("the server responded with the status code {code} but did not return more information");
            about("", &text)
        }
    }
}

/// Sends the log as messages of a websocket: bytes, or text in base64.
fn over_websocket(mut call: Call<'_>, pieces: BoxStream<'static, Bytes>) -> Result<Answer, Status> {
    const BINARY: &str = "binary.k8s.io";
    const BASE64: &str = "base64.binary.k8s.io";
    let wanted = websocket::protocols(&call.req.headers);
    let known = |p: &&&str| matches!(**p, BINARY | BASE64);
    let chosen = match (wanted.is_empty(), wanted.iter().find(known)) {
        (true, _) => "",
        (false, Some(protocol)) => *protocol,
        (false, None) => {
            let mut answer = Answer::new(Body::empty());
            *answer.status_mut() = StatusCode::FORBIDDEN;
            return Ok(answer);
        }
    };
    let text = chosen == BASE64;
    let answer = match websocket::accept(&call.req.headers, chosen) {
        Ok(answer) => answer,
        Err(refusal) => return Ok(refusal),
    };
    let client = taken(&mut call)?;
    call.streams.run(messages(client, pieces, text));
    Ok(answer)
}

async fn messages(client: OnUpgrade, mut pieces: BoxStream<'static, Bytes>, text: bool) {
    let (outbox, mut inbox) = match Socket::open(client).await {
        Ok(socket) => socket.split(),
        Err(error) => return tracing::debug!(%error, "a websocket was not opened"),
    };
    async fn send(outbox: &Outbox, piece: Bytes, text: bool) -> Result<(), Gone> {
        if text { outbox.base64(&piece).await } else { outbox.bytes(piece).await }
    }
    let copy = async {
        // The first message is empty: the client learns that we are there.
        send(&outbox, Bytes::new(), text).await?;
        while let Some(piece) = pieces.next().await {
            send(&outbox, piece, text).await?;
        }
        Ok::<(), Gone>(())
    };
    // What the client says is of no interest, but that it leaves is.
    let left = async { while inbox.bytes().await.is_some() {} };
    tokio::select! {
        // An error says that the client is gone.
        _ = copy => {}
        () = left => {}
    }
    outbox.close(&mut inbox).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_of_the_kubelet_are_mapped_as_upstream_maps_them() {
        let seen = |code| {
            let status = refused(code, "why", "p");
            (status.code, status.reason, status.message)
        };
        assert_eq!(seen(400), (400, "BadRequest", "why".into()));
        assert_eq!(seen(500), (500, "InternalError", "Internal error occurred: why".into()));
        let text = "the server could not find the requested resource ( pods/log p)";
        assert_eq!(seen(404), (404, "NotFound", text.into()));
        let text = "an error on the server (\"why\") has prevented the request from succeeding ( pods/log p)";
        assert_eq!(seen(502), (502, "InternalError", text.into()));
        assert_eq!(refused(404, "", "p").details.expect("details").kind, "pods/log");
    }
}

//! Websockets as a server: the handshake, and messages that carry numbered channels or plain bytes.

use base64::Engine as _;
use bytes::{BufMut as _, Bytes, BytesMut};
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt as _, StreamExt as _};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role};

use crate::request::{Answer, Body};
use crate::respond::plain;

/// Remote commands with an end for each channel.
pub const V5: &str = "v5.channel.k8s.io";
/// SPDY inside of websocket messages; behind it stands the protocol that SPDY carries.
pub const TUNNEL: &str = "SPDY/3.1+";
/// The first byte of a message that ends a channel; the second is the channel.
const CLOSE: u8 = 255;
/// How long the client may take to answer our goodbye.
const GOODBYE: Duration = Duration::from_secs(2);

/// True when a header's list has a word, in any case.
fn lists(headers: &HeaderMap, name: header::HeaderName, word: &str) -> bool {
    headers.get_all(name).iter().filter_map(|v| v.to_str().ok()).any(|v| v.to_ascii_lowercase().contains(word))
}

/// True for requests that want another protocol on their connection.
pub fn is_upgrade(headers: &HeaderMap) -> bool {
    lists(headers, header::CONNECTION, "upgrade")
}

/// True for requests that want a websocket.
pub fn is_websocket(headers: &HeaderMap) -> bool {
    let upgrade = headers.get(header::UPGRADE).and_then(|v| v.to_str().ok());
    is_upgrade(headers) && upgrade.is_some_and(|v| v.eq_ignore_ascii_case("websocket"))
}

/// The protocols that a websocket may carry, best first.
pub fn protocols(headers: &HeaderMap) -> Vec<&str> {
    let lists = headers.get_all(header::SEC_WEBSOCKET_PROTOCOL).iter().filter_map(|v| v.to_str().ok());
    lists.flat_map(|list| list.split(',')).map(str::trim).filter(|p| !p.is_empty()).collect()
}

/// True when the client wants channels that end one by one.
pub fn wants_v5(headers: &HeaderMap) -> bool {
    is_websocket(headers) && protocols(headers).contains(&V5)
}

/// True when the client wants SPDY inside of a websocket.
pub fn wants_tunnel(headers: &HeaderMap) -> bool {
    let tunnel = |p: &&str| p.starts_with(TUNNEL) && p.ends_with(".k8s.io");
    is_websocket(headers) && protocols(headers).iter().any(tunnel)
}

/// The answer that turns a request into a websocket with that protocol (none where it is empty).
///
/// # Errors
/// The answer to a handshake that is malformed.
pub fn accept(headers: &HeaderMap, protocol: &str) -> Result<Answer, Answer> {
    let bad = |text: &str| plain(StatusCode::BAD_REQUEST, format!("{text}\n"));
    if headers.get(header::SEC_WEBSOCKET_VERSION).is_none_or(|version| version != "13") {
        let mut answer = bad("missing or bad WebSocket Version");
        answer.headers_mut().insert(header::SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13"));
        return Err(answer);
    }
    let key = headers.get(header::SEC_WEBSOCKET_KEY).filter(|key| !key.is_empty());
    let key = key.ok_or_else(|| bad("mismatch challenge/response"))?;
    let mut answer = Answer::new(Body::empty());
    *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let out = answer.headers_mut();
    out.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    out.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    let accept = HeaderValue::from_str(&derive_accept_key(key.as_bytes())).map_err(|_| bad("bad key"))?;
    out.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
    if !protocol.is_empty() {
        let protocol = HeaderValue::from_str(protocol).map_err(|_| bad("bad protocol"))?;
        out.insert(header::SEC_WEBSOCKET_PROTOCOL, protocol);
    }
    Ok(answer)
}

/// A websocket whose handshake is done.
pub struct Socket(WebSocketStream<TokioIo<Upgraded>>);

type Sink = SplitSink<WebSocketStream<TokioIo<Upgraded>>, Message>;

impl Socket {
    /// Waits until the answer went out and the connection is ours.
    ///
    /// # Errors
    /// When the connection ended before.
    pub async fn open(upgrade: OnUpgrade) -> hyper::Result<Self> {
        let io = TokioIo::new(upgrade.await?);
        Ok(Self(WebSocketStream::from_raw_socket(io, Role::Server, None).await))
    }

    /// Both directions.
    pub fn split(self) -> (Outbox, Inbox) {
        let (sink, source) = self.0.split();
        let (sender, messages) = mpsc::channel(16);
        let writer = tokio::spawn(write(sink, messages));
        (Outbox { sender, writer }, Inbox(source))
    }
}

/// Writes messages, and says goodbye when there are no more.
async fn write(mut sink: Sink, mut messages: mpsc::Receiver<Message>) {
    while let Some(message) = messages.recv().await {
        if sink.send(message).await.is_err() {
            return;
        }
    }
    let goodbye = Message::Close(Some(CloseFrame { code: CloseCode::Normal, reason: "".into() }));
    // An error says that the client is gone already.
    let _ = sink.send(goodbye).await;
}

/// Messages to the client.
pub struct Outbox {
    sender: mpsc::Sender<Message>,
    writer: JoinHandle<()>,
}

/// The client is gone.
#[derive(Debug)]
pub struct Gone;

impl Outbox {
    /// Sends bytes on a channel.
    ///
    /// # Errors
    /// When the client is gone.
    pub async fn channel(&self, channel: u8, data: &[u8]) -> Result<(), Gone> {
        let mut message = BytesMut::with_capacity(data.len() + 1);
        message.put_u8(channel);
        message.put_slice(data);
        self.send(Message::Binary(message.freeze())).await
    }

    /// Sends bytes as they are.
    ///
    /// # Errors
    /// When the client is gone.
    pub async fn bytes(&self, data: Bytes) -> Result<(), Gone> {
        self.send(Message::Binary(data)).await
    }

    /// Sends bytes as text, in base64.
    ///
    /// # Errors
    /// When the client is gone.
    pub async fn base64(&self, data: &[u8]) -> Result<(), Gone> {
        self.send(Message::Text(base64::engine::general_purpose::STANDARD.encode(data).into())).await
    }

    async fn send(&self, message: Message) -> Result<(), Gone> {
        self.sender.send(message).await.map_err(|_| Gone)
    }

    /// Sends what is left, says goodbye and waits a moment for the client's.
    pub async fn close(self, inbox: &mut Inbox) {
        let Self { sender, writer } = self;
        drop(sender);
        let goodbye = async {
            // The writer does not panic; if it did, there is nothing left to say.
            let _ = writer.await;
            while !matches!(inbox.0.next().await, None | Some(Err(_) | Ok(Message::Close(_)))) {}
        };
        // A client that does not answer is left alone.
        let _ = tokio::time::timeout(GOODBYE, goodbye).await;
    }
}

/// Messages from the client.
pub struct Inbox(SplitStream<WebSocketStream<TokioIo<Upgraded>>>);

/// What a client of channels says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Said {
    /// Bytes on a channel.
    Data(u8, Bytes),
    /// No more follows on a channel.
    End(u8),
}

/// Reads a message of channels; nothing for an empty one.
///
/// # Errors
/// When an end names no channel: upstream ends the connection.
fn said(message: Bytes) -> Result<Option<Said>, Gone> {
    match message.as_ref() {
        [] => Ok(None),
        [CLOSE, channel] => Ok(Some(Said::End(*channel))),
        [CLOSE, ..] => Err(Gone),
        [channel, ..] => Ok(Some(Said::Data(*channel, message.slice(1..)))),
    }
}

impl Inbox {
    /// What the client says next; nothing when it is gone or says what makes no sense.
    pub async fn channel(&mut self) -> Option<Said> {
        loop {
            if let Some(said) = said(self.bytes().await?).ok()? {
                return Some(said);
            }
        }
    }

    /// The next message's bytes; nothing when the client is gone.
    pub async fn bytes(&mut self) -> Option<Bytes> {
        loop {
            match self.0.next().await?.ok()? {
                Message::Binary(bytes) => return Some(bytes),
                Message::Text(text) => return Some(text.into()),
                Message::Close(_) => return None,
                Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &'static str)| {
            (header::HeaderName::from_static(name), HeaderValue::from_static(value))
        };
        pairs.iter().map(pair).collect()
    }

    #[test]
    fn protocols_tell_what_the_client_wants() {
        let websocket = |protocol| {
            headers(&[
                ("connection", "keep-alive, Upgrade"),
                ("upgrade", "WebSocket"),
                ("sec-websocket-protocol", protocol),
            ])
        };
        assert!(wants_v5(&websocket("v4.channel.k8s.io, v5.channel.k8s.io")));
        assert!(!wants_v5(&websocket("v4.channel.k8s.io")));
        assert!(wants_tunnel(&websocket("SPDY/3.1+portforward.k8s.io")));
        assert!(!wants_tunnel(&websocket("portforward.k8s.io")));
        assert!(!is_websocket(&headers(&[("connection", "Upgrade"), ("upgrade", "SPDY/3.1")])));
        assert!(!is_upgrade(&headers(&[("upgrade", "websocket")])));
    }

    #[test]
    fn the_handshake_is_that_of_the_rfc() {
        let request = headers(&[("sec-websocket-version", "13"), ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")]);
        let answer = accept(&request, V5).ok().expect("accepted");
        assert_eq!(answer.headers()[header::SEC_WEBSOCKET_ACCEPT], "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        assert_eq!(answer.headers()[header::SEC_WEBSOCKET_PROTOCOL], V5);
        assert_eq!(accept(&headers(&[]), V5).err().expect("refused").status(), 400);
    }

    #[test]
    fn messages_carry_channels_and_their_ends() {
        let read = |bytes: &'static [u8]| said(Bytes::from_static(bytes));
        assert_eq!(read(b"\x00abc").expect("data"), Some(Said::Data(0, Bytes::from_static(b"abc"))));
        assert_eq!(read(&[255, 0]).expect("an end"), Some(Said::End(0)));
        assert_eq!(read(&[]).expect("nothing"), None);
        assert!(read(&[255]).is_err());
    }
}

//! Streams over one connection: one task reads, one writes. Streams have no windows (nobody here sends window updates):
//! a stream that is not read holds up the others of its connection, and through TCP the other end.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use super::frame::{Decoder, Encoder, Frame, REFUSED};

/// Frames that wait in a queue before their sender does.
const QUEUE: usize = 16;
/// How long a stream may wait for its reply.
const REPLY: Duration = Duration::from_secs(30);
/// Between pings, so that nobody between us takes the connection for idle.
const PING: Duration = Duration::from_secs(5);
/// How long a goodbye may take.
const GOODBYE: Duration = Duration::from_secs(1);

/// A connection, seen from the client. Dropped, it is cut off; see [`Connection::close`].
#[derive(Debug)]
pub struct Connection {
    shared: Arc<Shared>,
    out: mpsc::Sender<Frame>,
    reader: JoinHandle<()>,
    writer: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct Shared {
    next: AtomicU32,
    streams: Mutex<HashMap<u32, State>>,
    /// The other end said goodbye: what ends then did not break.
    goodbye: AtomicBool,
}

#[derive(Debug)]
struct State {
    replied: Option<oneshot::Sender<()>>,
    /// Bytes, then nothing for an end that was told.
    data: mpsc::Sender<Option<Bytes>>,
}

/// What a stream's other end sends.
#[derive(Debug)]
pub struct Incoming {
    data: mpsc::Receiver<Option<Bytes>>,
    shared: Arc<Shared>,
    told: bool,
}

/// What is sent to a stream's other end.
#[derive(Debug)]
pub struct Outgoing {
    stream: u32,
    out: mpsc::Sender<Frame>,
}

impl Incoming {
    /// The next bytes; `None` when the other end sends no more.
    pub async fn next(&mut self) -> Option<Bytes> {
        if self.told {
            return None;
        }
        let next = self.data.recv().await;
        self.told = matches!(next, Some(None));
        next.flatten()
    }

    /// True after an end that the other side meant, and that is not that of a broken connection.
    pub fn ended_well(&self) -> bool {
        self.told || self.shared.goodbye.load(Ordering::Acquire)
    }
}

impl Outgoing {
    /// Sends bytes.
    ///
    /// # Errors
    /// When the connection is gone.
    pub async fn send(&self, data: Bytes) -> io::Result<()> {
        self.frame(false, data).await
    }

    /// Says that no more follows.
    ///
    /// # Errors
    /// When the connection is gone.
    pub async fn finish(&self) -> io::Result<()> {
        self.frame(true, Bytes::new()).await
    }

    async fn frame(&self, fin: bool, data: Bytes) -> io::Result<()> {
        let frame = Frame::Data { stream: self.stream, fin, data };
        self.out.send(frame).await.map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

impl Connection {
    /// Takes over a connection that was upgraded.
    pub fn start(io: impl AsyncRead + AsyncWrite + Send + 'static) -> Self {
        let (read, write) = tokio::io::split(io);
        let (out, frames) = mpsc::channel(QUEUE);
        let shared = Arc::new(Shared { next: AtomicU32::new(1), ..Shared::default() });
        let reader = tokio::spawn(read_all(read, shared.clone(), out.clone()));
        let writer = tokio::spawn(write_all(write, frames));
        Self { shared, out, reader, writer }
    }

    /// Opens a stream and waits until the other end has taken it.
    ///
    /// # Errors
    /// When it is refused, or no reply comes in time.
    pub async fn open(&self, headers: &[(&str, &str)]) -> io::Result<(Outgoing, Incoming)> {
        let stream = self.shared.next.fetch_add(2, Ordering::Relaxed);
        let (replied, reply) = oneshot::channel();
        let (sender, data) = mpsc::channel(QUEUE);
        self.shared.streams.lock().insert(stream, State { replied: Some(replied), data: sender });
        let headers = headers.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
        let broken = || io::Error::from(io::ErrorKind::BrokenPipe);
        self.out.send(Frame::SynStream { stream, fin: false, headers }).await.map_err(|_| broken())?;
        match tokio::time::timeout(REPLY, reply).await {
            Ok(Ok(())) => {
                let shared = self.shared.clone();
                Ok((Outgoing { stream, out: self.out.clone() }, Incoming { data, shared, told: false }))
            }
            Ok(Err(_)) => Err(io::Error::new(io::ErrorKind::ConnectionReset, "Stream reset")),
            Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "Timeout occurred")),
        }
    }

    /// Says goodbye and ends.
    pub async fn close(mut self) {
        let goodbye = Frame::GoAway { last: 0, status: 0 };
        let work = async {
            // Errors say that the other end is gone already.
            let _ = self.out.send(goodbye).await;
            let _ = (&mut self.writer).await;
        };
        let _ = tokio::time::timeout(GOODBYE, work).await;
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.reader.abort();
        self.writer.abort();
    }
}

async fn write_all(mut to: impl AsyncWrite + Unpin, mut frames: mpsc::Receiver<Frame>) {
    let mut encoder = Encoder::default();
    let mut pings = tokio::time::interval_at(tokio::time::Instant::now() + PING, PING);
    let mut ping = 1;
    loop {
        let frame = tokio::select! {
            frame = frames.recv() => match frame {
                Some(frame) => frame,
                None => return,
            },
            _ = pings.tick() => {
                ping += 2;
                Frame::Ping(ping)
            }
        };
        let last = matches!(frame, Frame::GoAway { .. });
        let (head, data) = encoder.encode(&frame);
        let sent = async {
            to.write_all(&head).await?;
            to.write_all(&data).await?;
            to.flush().await?;
            if last { to.shutdown().await } else { Ok(()) }
        };
        if sent.await.is_err() || last {
            return;
        }
    }
}

async fn read_all(from: impl AsyncRead + Unpin, shared: Arc<Shared>, out: mpsc::Sender<Frame>) {
    let mut from = BufReader::with_capacity(64 << 10, from);
    let mut decoder = Decoder::default();
    loop {
        match decoder.read(&mut from).await {
            Ok(Some(frame)) => {
                if handle(frame, &shared, &out).await.is_err() {
                    break;
                }
            }
            Ok(None) => break,
            Err(error) => {
                tracing::debug!(%error, "a SPDY connection broke");
                break;
            }
        }
    }
    shared.streams.lock().clear();
}

/// Nothing more is to be read: the writer is gone, or the other end has said goodbye.
struct Gone;

async fn handle(frame: Frame, shared: &Shared, out: &mpsc::Sender<Frame>) -> Result<(), Gone> {
    match frame {
        Frame::Data { stream, fin, data } => {
            let sender = shared.streams.lock().get(&stream).map(|state| state.data.clone());
            if let Some(sender) = sender.filter(|_| !data.is_empty()) {
                // An error says that nobody reads it any more: what comes is thrown away.
                let _ = sender.send(Some(data)).await;
            }
            finish(shared, stream, fin).await;
        }
        Frame::SynReply { stream, fin, .. } => {
            let replied = shared.streams.lock().get_mut(&stream).and_then(|state| state.replied.take());
            if let Some(replied) = replied {
                // An error says that the opener has given up.
                let _ = replied.send(());
            }
            finish(shared, stream, fin).await;
        }
        Frame::Headers { stream, fin, .. } => finish(shared, stream, fin).await,
        Frame::Reset { stream, .. } => finish(shared, stream, true).await,
        Frame::GoAway { .. } => {
            shared.goodbye.store(true, Ordering::Release);
            return Err(Gone);
        }
        Frame::SynStream { stream, .. } => {
            out.send(Frame::Reset { stream, status: REFUSED }).await.map_err(|_| Gone)?;
        }
        // Odd ones are answers to ours.
        Frame::Ping(number) if number % 2 == 0 => out.send(Frame::Ping(number)).await.map_err(|_| Gone)?,
        Frame::Ping(_) | Frame::Other => {}
    }
    Ok(())
}

/// The other end sends no more on a stream.
async fn finish(shared: &Shared, stream: u32, fin: bool) {
    let state = if fin { shared.streams.lock().remove(&stream) } else { None };
    if let Some(state) = state {
        let _ = state.data.send(None).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn streams_carry_bytes_both_ways_until_their_end() {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let server = tokio::spawn(async move {
            let (read, mut write) = tokio::io::split(theirs);
            let (mut read, mut decoder, mut encoder) = (BufReader::new(read), Decoder::default(), Encoder::default());
            let mut seen = Vec::new();
            while let Some(frame) = decoder.read(&mut read).await.expect("a frame") {
                let answers = match &frame {
                    Frame::SynStream { stream, .. } => {
                        vec![Frame::Ping(2), Frame::SynReply { stream: *stream, fin: false, headers: Vec::new() }]
                    }
                    Frame::Data { .. } => vec![frame.clone()],
                    _ => Vec::new(),
                };
                for answer in answers {
                    let (head, data) = encoder.encode(&answer);
                    write.write_all(&[head, data].concat()).await.expect("written");
                }
                seen.push(frame);
            }
            seen
        });
        let connection = Connection::start(ours);
        let (out, mut data) = connection.open(&[("streamType", "stdin")]).await.expect("opened");
        out.send(Bytes::from_static(b"hello")).await.expect("sent");
        out.finish().await.expect("sent");
        assert_eq!(data.next().await.as_deref(), Some(&b"hello"[..]));
        assert_eq!(data.next().await, None);
        assert!(data.ended_well());
        connection.close().await;
        let seen = server.await.expect("served");
        assert!(seen.contains(&Frame::Ping(2)), "pings are sent back: {seen:?}");
        assert!(matches!(seen.last(), Some(Frame::GoAway { .. })));
    }

    #[tokio::test]
    async fn a_refused_stream_and_a_broken_connection_are_told_apart() {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let connection = Connection::start(ours);
        let server = tokio::spawn(async move {
            let (read, mut write) = tokio::io::split(theirs);
            let (mut read, mut decoder, mut encoder) = (BufReader::new(read), Decoder::default(), Encoder::default());
            for answer in [
                Frame::Reset { stream: 1, status: REFUSED },
                Frame::SynReply { stream: 3, fin: false, headers: Vec::new() },
            ] {
                decoder.read(&mut read).await.expect("a frame");
                write.write_all(&encoder.encode(&answer).0).await.expect("written");
            }
        });
        assert_eq!(connection.open(&[]).await.expect_err("refused").to_string(), "Stream reset");
        let (_, mut data) = connection.open(&[]).await.expect("taken");
        server.await.expect("served");
        assert_eq!(data.next().await, None);
        assert!(!data.ended_well());
    }
}

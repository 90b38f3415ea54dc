//! Frames of SPDY/3.1.

use std::io;

use bytes::{BufMut as _, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _};

use super::headers::{Headers, Reader, Writer};

/// Longest control frame that is read.
const CONTROL_LIMIT: usize = 1 << 20;
/// The other end does not want the stream.
pub const REFUSED: u32 = 3;

const FIN: u8 = 1;

/// A frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// Data of a stream; `fin` says that no more follows.
    Data {
        /// Which stream.
        stream: u32,
        /// The last frame of its direction.
        fin: bool,
        /// Bytes.
        data: Bytes,
    },
    /// A new stream.
    SynStream {
        /// Which stream: odd ones are the client's.
        stream: u32,
        /// Nothing else follows in this direction.
        fin: bool,
        /// Its headers.
        headers: Headers,
    },
    /// A stream was taken.
    SynReply {
        /// Which stream.
        stream: u32,
        /// Nothing else follows in this direction.
        fin: bool,
        /// Headers.
        headers: Headers,
    },
    /// A stream ends at once, in both directions.
    Reset {
        /// Which stream.
        stream: u32,
        /// Why.
        status: u32,
    },
    /// To be sent back by the other end.
    Ping(u32),
    /// No new streams are taken.
    GoAway {
        /// The last stream that was taken.
        last: u32,
        /// Why; 0 is a friendly end.
        status: u32,
    },
    /// More headers of a stream.
    Headers {
        /// Which stream.
        stream: u32,
        /// Nothing else follows in this direction.
        fin: bool,
        /// Headers.
        headers: Headers,
    },
    /// Settings, windows and what else changes nothing here.
    Other,
}

/// Turns frames into bytes. Their order counts: headers are one compressed stream.
#[derive(Debug, Default)]
pub struct Encoder(Writer);

fn control(kind: u16, flags: u8, payload: &[&[u8]]) -> Bytes {
    let length: usize = payload.iter().map(|p| p.len()).sum();
    let mut out = BytesMut::with_capacity(length + 8);
    out.put_u16(0x8003);
    out.put_u16(kind);
    out.put_u32(u32::from(flags) << 24 | length as u32);
    payload.iter().for_each(|part| out.put_slice(part));
    out.freeze()
}

impl Encoder {
    /// The head of a frame and, for data, the bytes that follow it.
    pub fn encode(&mut self, frame: &Frame) -> (Bytes, Bytes) {
        let fin = |fin: &bool| if *fin { FIN } else { 0 };
        let id = |id: &u32| id.to_be_bytes();
        let whole = match frame {
            Frame::Data { stream, fin: last, data } => {
                let mut head = BytesMut::with_capacity(8);
                head.put_u32(*stream);
                head.put_u32(u32::from(fin(last)) << 24 | data.len() as u32);
                return (head.freeze(), data.clone());
            }
            // After the stream come the one it belongs to (none), its priority and a slot for a certificate.
            Frame::SynStream { stream, fin: last, headers } => {
                control(1, fin(last), &[&id(stream), &[0; 6], &self.0.block(headers)])
            }
            Frame::SynReply { stream, fin: last, headers } => {
                control(2, fin(last), &[&id(stream), &self.0.block(headers)])
            }
            Frame::Reset { stream, status } => control(3, 0, &[&id(stream), &id(status)]),
            Frame::Ping(number) => control(6, 0, &[&id(number)]),
            Frame::GoAway { last, status } => control(7, 0, &[&id(last), &id(status)]),
            Frame::Headers { stream, fin: last, headers } => {
                control(8, fin(last), &[&id(stream), &self.0.block(headers)])
            }
            Frame::Other => Bytes::new(),
        };
        (whole, Bytes::new())
    }
}

/// Turns bytes into frames.
#[derive(Debug, Default)]
pub struct Decoder(Reader);

fn bad(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("SPDY frame: {why}"))
}

impl Decoder {
    /// The next frame; `None` at the end of the connection.
    ///
    /// # Errors
    /// When the connection breaks or what comes is no SPDY/3.
    pub async fn read(&mut self, from: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<Frame>> {
        let mut head = [0; 8];
        if from.read(&mut head[..1]).await? == 0 {
            return Ok(None);
        }
        from.read_exact(&mut head[1..]).await?;
        let [first, second] = [&head[..4], &head[4..]].map(|part| part.iter().fold(0, |n, b| n << 8 | u32::from(*b)));
        let (flags, length) = ((second >> 24) as u8, (second & 0x00ff_ffff) as usize);
        let control = first >> 31 == 1;
        if control && length > CONTROL_LIMIT {
            return Err(bad("too long"));
        }
        let mut payload = BytesMut::zeroed(length);
        from.read_exact(&mut payload).await?;
        let payload = payload.freeze();
        if !control {
            return Ok(Some(Frame::Data { stream: first, fin: flags & FIN != 0, data: payload }));
        }
        if first >> 16 & 0x7fff != 3 {
            return Err(bad("another version"));
        }
        self.control(first as u16, flags & FIN != 0, &payload).map(Some)
    }

    fn control(&mut self, kind: u16, fin: bool, payload: &[u8]) -> io::Result<Frame> {
        let number = |at: usize| -> io::Result<u32> {
            let bytes = payload.get(at..at + 4).and_then(|b| b.try_into().ok()).ok_or_else(|| bad("too short"))?;
            Ok(u32::from_be_bytes(bytes))
        };
        let stream = || Ok::<u32, io::Error>(number(0)? & 0x7fff_ffff);
        let mut headers = |at: usize| self.0.block(payload.get(at..).ok_or_else(|| bad("too short"))?);
        Ok(match kind {
            1 => Frame::SynStream { stream: stream()?, fin, headers: headers(10)? },
            2 => Frame::SynReply { stream: stream()?, fin, headers: headers(4)? },
            3 => Frame::Reset { stream: stream()?, status: number(4)? },
            6 => Frame::Ping(number(0)?),
            7 => Frame::GoAway { last: stream()?, status: number(4)? },
            8 => Frame::Headers { stream: stream()?, fin, headers: headers(4)? },
            _ => Frame::Other,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn frames_come_back_as_they_went() {
        let headers = vec![("streamtype".to_string(), "stdin".to_string())];
        let frames = [
            Frame::SynStream { stream: 1, fin: false, headers: headers.clone() },
            Frame::SynReply { stream: 1, fin: false, headers: Vec::new() },
            Frame::Headers { stream: 1, fin: true, headers },
            Frame::Data { stream: 1, fin: false, data: Bytes::from_static(b"hello") },
            Frame::Data { stream: 1, fin: true, data: Bytes::new() },
            Frame::Reset { stream: 3, status: REFUSED },
            Frame::Ping(2),
            Frame::GoAway { last: 0, status: 0 },
        ];
        let mut encoder = Encoder::default();
        let mut wire = Vec::new();
        for frame in &frames {
            let (head, data) = encoder.encode(frame);
            wire.extend_from_slice(&head);
            wire.extend_from_slice(&data);
        }
        let (mut decoder, mut from) = (Decoder::default(), wire.as_slice());
        for frame in frames {
            assert_eq!(decoder.read(&mut from).await.expect("read"), Some(frame));
        }
        assert_eq!(decoder.read(&mut from).await.expect("the end"), None);
    }

    #[test]
    fn the_bytes_of_a_frame_are_those_of_the_protocol() {
        let mut encoder = Encoder::default();
        assert_eq!(encoder.encode(&Frame::Ping(1)).0.as_ref(), [0x80, 3, 0, 6, 0, 0, 0, 4, 0, 0, 0, 1]);
        let data = Frame::Data { stream: 5, fin: true, data: Bytes::from_static(b"x") };
        assert_eq!(encoder.encode(&data).0.as_ref(), [0, 0, 0, 5, 1, 0, 0, 1]);
    }

    #[tokio::test]
    async fn what_is_no_spdy_is_refused() {
        assert!(Decoder::default().read(&mut &b"HTTP/1.1 200 OK\r\n"[..]).await.is_err());
        assert!(Decoder::default().read(&mut &[0x80, 2, 0, 6, 0, 0, 0, 4, 0, 0, 0, 1][..]).await.is_err());
        assert!(Decoder::default().read(&mut &[0x80, 3, 0, 6, 0][..]).await.is_err());
    }
}

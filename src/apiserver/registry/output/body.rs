//! Bodies: indented for people, compressed where that pays.

use std::io::Write;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use futures::StreamExt;
use http::header::{CONTENT_ENCODING, VARY};
use http::{HeaderMap, HeaderValue, StatusCode};

use super::{Accept, Content};
use crate::request::Body;

/// Answers larger than this are compressed when the client takes it: upstream's threshold.
const GZIP_ABOVE: usize = 128 * 1024;
/// Upstream's level, the fastest.
const GZIP_LEVEL: u32 = 1;
/// Bytes that are made at a time.
pub(super) const CHUNK: usize = 64 * 1024;
/// Lists with more items are made as they are sent.
pub(super) const LAZY: usize = 100;

/// The body of pieces that are all there, and whether it is compressed.
pub(super) fn compress(accept: &Accept, code: StatusCode, content: Content) -> (Body, bool) {
    let length: usize = content.iter().map(Bytes::len).sum();
    if !accept.gzip || code != StatusCode::OK || length <= GZIP_ABOVE {
        return (Body::Pieces(content), false);
    }
    (gzip(content.into_iter().map(Ok)), true)
}

/// The body of pieces that are made one by one, which are many: compressed where that is taken.
pub(super) fn stream(
    accept: Accept, chunks: impl Iterator<Item = std::io::Result<Bytes>> + Send + 'static,
) -> (Body, bool) {
    if accept.gzip {
        return (gzip(chunks), true);
    }
    (Body::Stream(futures::stream::iter(chunks).boxed()), false)
}

/// Says that a body is compressed.
pub(super) fn mark(headers: &mut HeaderMap) {
    headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    headers.append(VARY, HeaderValue::from_static("Accept-Encoding"));
}

fn gzip(chunks: impl Iterator<Item = std::io::Result<Bytes>> + Send + 'static) -> Body {
    let mut chunks = chunks;
    let mut encoder = Some(GzEncoder::new(Vec::with_capacity(CHUNK), Compression::new(GZIP_LEVEL)));
    let compressed = std::iter::from_fn(move || {
        let mut gz = encoder.take()?;
        loop {
            let written = match chunks.next() {
                None => return Some(gz.finish().map(Bytes::from)),
                Some(chunk) => chunk.and_then(|chunk| gz.write_all(&chunk)),
            };
            if let Err(error) = written {
                return Some(Err(error));
            }
            if gz.get_ref().len() >= CHUNK / 4 {
                let out = std::mem::take(gz.get_mut());
                encoder = Some(gz);
                return Some(Ok(Bytes::from(out)));
            }
        }
    });
    // A task that compresses gives way to others between chunks.
    let yielding = futures::stream::iter(compressed).then(|chunk| async {
        tokio::task::yield_now().await;
        chunk
    });
    Body::Stream(yielding.boxed())
}

/// JSON as Go indents it: two spaces, empty objects and lists closed up.
pub(super) fn indent(content: &Content) -> Vec<u8> {
    let mut out = Vec::new();
    let (mut depth, mut quoted, mut escaped, mut opened) = (0usize, false, false, false);
    let line = |out: &mut Vec<u8>, depth: usize| {
        out.push(b'\n');
        out.extend(std::iter::repeat_n(b' ', 2 * depth));
    };
    for &byte in content.iter().flat_map(|piece| piece.iter()) {
        if quoted {
            out.push(byte);
            quoted = escaped || byte != b'"';
            escaped = !escaped && byte == b'\\';
            continue;
        }
        if byte.is_ascii_whitespace() {
            continue;
        }
        let closes = matches!(byte, b'}' | b']');
        if opened && !closes {
            line(&mut out, depth);
        }
        if closes {
            depth = depth.saturating_sub(1);
            if !opened {
                line(&mut out, depth);
            }
        }
        opened = false;
        out.push(byte);
        match byte {
            b'{' | b'[' => (depth, opened) = (depth + 1, true),
            b',' => line(&mut out, depth),
            b':' => out.push(b' '),
            b'"' => quoted = true,
            _ => {}
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn json_is_indented_as_go_does() {
        let json = r#"{"a":{},"b":[],"c":[1,"x{\"}",{"d":null}],"e":true}"#;
        let want = "{\n  \"a\": {},\n  \"b\": [],\n  \"c\": [\n    1,\n    \"x{\\\"}\",\n    {\n      \"d\": null\n    \
                    }\n  ],\n  \"e\": true\n}";
        let pieces = Content::from([Bytes::from(&json[..9]), Bytes::from(&json[9..])]);
        assert_eq!(String::from_utf8(indent(&pieces)).expect("text"), want);
    }

    #[tokio::test]
    async fn only_what_is_large_is_compressed_and_it_comes_out_whole() {
        let accept =
            Accept { media: super::super::Media::Json, shape: super::super::Shape::Whole, pretty: false, gzip: true };
        let (_, gzip) = compress(&accept, StatusCode::OK, Content::from([Bytes::from(vec![b'x'; GZIP_ABOVE])]));
        assert!(!gzip);
        let text: Vec<u8> = (0..900_000u32).flat_map(|n| n.to_string().into_bytes()).collect();
        let pieces: Content = text.chunks(6000).map(Bytes::copy_from_slice).collect();
        let (body, gzip) = compress(&accept, StatusCode::OK, pieces);
        assert!(gzip);
        let packed = http_body_util::BodyExt::collect(body).await.expect("a body").to_bytes();
        assert!(packed.len() < text.len());
        let mut out = Vec::new();
        flate2::read::GzDecoder::new(&packed[..]).read_to_end(&mut out).expect("gzip");
        assert_eq!(out, text);
    }
}

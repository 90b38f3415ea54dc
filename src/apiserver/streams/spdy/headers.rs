//! Header blocks: `count (length name length value)*`, all blocks of one direction being one zlib stream that begins
//! with a dictionary known to both ends.
//!
//! What we write is stored, not compressed: blocks are tens of bytes, and any reader takes them.

use std::io;
use std::sync::LazyLock;

use flate2::{Decompress, FlushDecompress, Status};

/// Names and values of a block. Several values of one name are separated by NUL.
pub type Headers = Vec<(String, String)>;

/// Largest block that is read, after decompression.
const LIMIT: usize = 256 << 10;

/// The dictionary's words, each of which stands there with its length in front.
const WORDS: &str = "options head post put delete trace accept accept-charset accept-encoding accept-language \
    accept-ranges age allow authorization cache-control connection content-base content-encoding content-language \
    content-length content-location content-md5 content-range content-type date etag expect expires from host if-match \
    if-modified-since if-none-match if-range if-unmodified-since last-modified location max-forwards pragma \
    proxy-authenticate proxy-authorization range referer retry-after server te trailer transfer-encoding upgrade \
    user-agent vary via warning www-authenticate method get status 200_OK version HTTP/1.1 url public set-cookie \
    keep-alive origin";

/// What follows the words, without lengths.
const REST: &str = "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505\
    203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized403 Forbidden\
    404 Not Found500 Internal Server Error501 Not Implemented503 Service UnavailableJan Feb Mar Apr May Jun Jul Aug \
    Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMTchunked,text/html,image/png,image/jpg,image/gif,\
    application/xml,application/xhtml+xml,text/plain,text/javascript,publicprivatemax-age=gzip,deflate,sdch\
    charset=utf-8charset=iso-8859-1,utf-,*,enq=0.";

static DICTIONARY: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut bytes = Vec::with_capacity(1423);
    for word in WORDS.split_whitespace() {
        let word = word.replace('_', " ");
        put(&mut bytes, word.as_bytes());
    }
    bytes.extend_from_slice(REST.as_bytes());
    bytes
});

fn put(out: &mut Vec<u8>, text: &[u8]) {
    out.extend_from_slice(&(text.len() as u32).to_be_bytes());
    out.extend_from_slice(text);
}

/// The checksum by which a zlib stream names its dictionary.
fn adler32(bytes: &[u8]) -> u32 {
    let (a, b) = bytes.iter().fold((1u32, 0u32), |(a, b), byte| {
        let a = (a + u32::from(*byte)) % 65521;
        (a, (b + a) % 65521)
    });
    b << 16 | a
}

/// A deflate block that holds its bytes as they are, and is not the last one.
fn stored(out: &mut Vec<u8>, bytes: &[u8]) {
    let length = bytes.len() as u16;
    out.push(0);
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(&(!length).to_le_bytes());
    out.extend_from_slice(bytes);
}

/// Writes the blocks of one direction.
#[derive(Debug, Default)]
pub struct Writer {
    begun: bool,
}

impl Writer {
    /// A block as it goes over the wire.
    pub fn block(&mut self, headers: &[(String, String)]) -> Vec<u8> {
        let mut plain = (headers.len() as u32).to_be_bytes().to_vec();
        for (name, value) in headers {
            put(&mut plain, name.to_ascii_lowercase().as_bytes());
            put(&mut plain, value.as_bytes());
        }
        let mut out = Vec::with_capacity(plain.len() + 16);
        if !std::mem::replace(&mut self.begun, true) {
            // zlib's header: deflate with a 32 KiB window, a dictionary follows.
            out.extend_from_slice(&[0x78, 0xbb]);
            out.extend_from_slice(&adler32(&DICTIONARY).to_be_bytes());
        }
        for chunk in plain.chunks(usize::from(u16::MAX)) {
            stored(&mut out, chunk);
        }
        // An empty block: readers hand out what they have when they see it.
        stored(&mut out, &[]);
        out
    }
}

/// Reads the blocks of one direction.
#[derive(Debug, Default)]
pub struct Reader {
    inflate: Option<Decompress>,
}

fn bad(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("SPDY header block: {why}"))
}

impl Reader {
    /// Names and values of a block that came over the wire.
    ///
    /// # Errors
    /// When it is malformed or too large; the connection is of no use then.
    pub fn block(&mut self, bytes: &[u8]) -> io::Result<Headers> {
        let (inflate, bytes) = match &mut self.inflate {
            Some(inflate) => (inflate, bytes),
            None => {
                let rest = after_zlib_header(bytes)?;
                (self.inflate.insert(primed()?), rest)
            }
        };
        parse(&inflated(inflate, bytes)?)
    }
}

/// What follows zlib's header, whose checksum must be that of our dictionary.
fn after_zlib_header(bytes: &[u8]) -> io::Result<&[u8]> {
    let (header, rest) = bytes.split_first_chunk::<2>().ok_or_else(|| bad("too short"))?;
    if header[0] & 0x0f != 8 || u16::from_be_bytes(*header) % 31 != 0 {
        return Err(bad("no zlib stream"));
    }
    if header[1] & 0x20 == 0 {
        return Ok(rest);
    }
    let (id, rest) = rest.split_first_chunk::<4>().ok_or_else(|| bad("too short"))?;
    if u32::from_be_bytes(*id) == adler32(&DICTIONARY) { Ok(rest) } else { Err(bad("another dictionary")) }
}

/// A raw inflater that has the dictionary behind it: it was made to read it first, as a stored block.
fn primed() -> io::Result<Decompress> {
    let mut inflate = Decompress::new(false);
    let mut block = Vec::with_capacity(DICTIONARY.len() + 5);
    stored(&mut block, &DICTIONARY);
    let seen = inflated(&mut inflate, &block)?;
    if seen == *DICTIONARY { Ok(inflate) } else { Err(bad("the dictionary was not taken")) }
}

fn inflated(inflate: &mut Decompress, mut bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut out = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        let (read, written) = (inflate.total_in(), inflate.total_out());
        let status = inflate.decompress(bytes, &mut chunk, FlushDecompress::Sync).map_err(|_| bad("malformed"))?;
        let (read, written) = ((inflate.total_in() - read) as usize, (inflate.total_out() - written) as usize);
        out.extend_from_slice(&chunk[..written]);
        bytes = &bytes[read..];
        if out.len() > LIMIT {
            return Err(bad("too large"));
        }
        if status == Status::StreamEnd || (bytes.is_empty() && written < chunk.len()) || (read == 0 && written == 0) {
            return Ok(out);
        }
    }
}

fn parse(mut bytes: &[u8]) -> io::Result<Headers> {
    let number = |bytes: &mut &[u8]| -> io::Result<usize> {
        let (number, rest) = bytes.split_first_chunk::<4>().ok_or_else(|| bad("too short"))?;
        *bytes = rest;
        Ok(u32::from_be_bytes(*number) as usize)
    };
    let text = |bytes: &mut &[u8]| -> io::Result<String> {
        let length = number(bytes)?;
        let (text, rest) = bytes.split_at_checked(length).ok_or_else(|| bad("too short"))?;
        *bytes = rest;
        Ok(String::from_utf8_lossy(text).into_owned())
    };
    let count = number(&mut bytes)?;
    let mut headers = Headers::new();
    for _ in 0..count {
        headers.push((text(&mut bytes)?, text(&mut bytes)?));
    }
    Ok(headers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::{Compress, Compression, FlushCompress};

    fn pairs(list: &[(&str, &str)]) -> Headers {
        list.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect()
    }

    #[test]
    fn the_dictionary_is_that_of_spdy_3() {
        assert_eq!((DICTIONARY.len(), adler32(&DICTIONARY)), (1423, 0xe3c6_a7c2));
    }

    #[test]
    fn what_is_written_can_be_read() {
        let (mut writer, mut reader) = (Writer::default(), Reader::default());
        for headers in [pairs(&[("streamtype", "error")]), pairs(&[]), pairs(&[("a", "b"), ("port", "80")])] {
            assert_eq!(reader.block(&writer.block(&headers)).expect("read"), headers);
        }
    }

    /// A stream as Go writes it: compressed against the dictionary, flushed after each block.
    #[test]
    fn compressed_blocks_that_refer_to_the_dictionary_are_read() {
        let mut deflate = Compress::new(Compression::best(), false);
        let mut prime = Vec::with_capacity(8192);
        deflate.compress_vec(&DICTIONARY, &mut prime, FlushCompress::Sync).expect("primed");
        let mut block = |headers: &Headers, first: bool| {
            let mut plain = (headers.len() as u32).to_be_bytes().to_vec();
            headers.iter().for_each(|(k, v)| {
                put(&mut plain, k.as_bytes());
                put(&mut plain, v.as_bytes());
            });
            let mut out = Vec::with_capacity(8192);
            deflate.compress_vec(&plain, &mut out, FlushCompress::Sync).expect("compressed");
            if first {
                let header = [&[0x78, 0xbb][..], &adler32(&DICTIONARY).to_be_bytes()].concat();
                out.splice(0..0, header);
            }
            (out, plain.len())
        };
        let headers = pairs(&[("content-type", "text/html,image/png"), ("transfer-encoding", "chunked")]);
        let ((first, plain), (second, _)) = (block(&headers, true), block(&headers, false));
        assert!(first.len() < plain, "the dictionary is used");
        let mut reader = Reader::default();
        assert_eq!(reader.block(&first).expect("first"), headers);
        assert_eq!(reader.block(&second).expect("second"), headers);
    }

    #[test]
    fn malformed_blocks_are_refused() {
        assert!(Reader::default().block(&[]).is_err());
        assert!(Reader::default().block(b"hello").is_err());
        assert!(Reader::default().block(&[0x78, 0xbb, 0, 0, 0, 0, 1]).is_err());
        let mut cut = Writer::default().block(&pairs(&[("a", "b")]));
        cut.truncate(15);
        assert!(Reader::default().block(&cut).is_err());
    }
}

//! Protobuf's wire format: tags, varints, length-delimited fields.

/// A field on the wire.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Wire<'a> {
    Varint(u64),
    Fixed64(u64),
    Bytes(&'a [u8]),
    Fixed32,
}

impl Wire<'_> {
    fn kind(&self) -> u8 {
        match self {
            Wire::Varint(_) => 0,
            Wire::Fixed64(_) => 1,
            Wire::Bytes(_) => 2,
            Wire::Fixed32 => 5,
        }
    }

    /// The error for a field of another wire type than its message has.
    pub(crate) fn unlike<T>(&self, field: &str) -> Result<T, String> {
        Err(format!("proto: wrong wireType = {} for field {field}", self.kind()))
    }
}

const EOF: &str = "unexpected EOF";

/// Fields of a message one after the other; an error ends it. `message` is for errors.
pub(crate) struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// The next field's number and content; groups, which nobody writes any more, are passed over.
    pub(crate) fn next(&mut self, message: &str) -> Result<Option<(u32, Wire<'a>)>, String> {
        loop {
            if self.rest.is_empty() {
                return Ok(None);
            }
            let tag = self.varint()?;
            let number = (tag >> 3) as i32;
            if tag & 7 == 4 {
                return Err(format!("proto: {message}: wiretype end group for non-group"));
            }
            if number <= 0 {
                return Err(format!("proto: {message}: illegal tag {number} (wire type {tag})"));
            }
            if tag & 7 == 3 {
                self.skip_group()?;
                continue;
            }
            return Ok(Some((number as u32, self.content(tag)?)));
        }
    }

    fn content(&mut self, tag: u64) -> Result<Wire<'a>, String> {
        Ok(match tag & 7 {
            0 => Wire::Varint(self.varint()?),
            1 => Wire::Fixed64(u64::from_le_bytes(self.take(8)?.try_into().map_err(|_| EOF)?)),
            2 => {
                let length = self.varint()?;
                if i64::try_from(length).is_err() {
                    return Err("proto: negative length found during unmarshaling".into());
                }
                Wire::Bytes(self.take(length as usize)?)
            }
            5 => {
                self.take(4)?;
                Wire::Fixed32
            }
            other => return Err(format!("proto: illegal wireType {other}")),
        })
    }

    fn skip_group(&mut self) -> Result<(), String> {
        let mut depth = 1;
        while depth > 0 {
            let tag = self.varint()?;
            match tag & 7 {
                3 => depth += 1,
                4 => depth -= 1,
                _ => drop(self.content(tag)?),
            }
        }
        Ok(())
    }

    fn take(&mut self, n: usize) -> Result<&'a [u8], String> {
        if n > self.rest.len() {
            return Err(EOF.into());
        }
        let (taken, rest) = self.rest.split_at(n);
        self.rest = rest;
        Ok(taken)
    }

    pub(crate) fn varint(&mut self) -> Result<u64, String> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.rest.split_first().ok_or(EOF)?;
            self.rest = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err("proto: integer overflow".into())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }
}

pub(crate) fn push_varint(mut n: u64, out: &mut Vec<u8>) {
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

fn tag(number: u32, kind: u8, out: &mut Vec<u8>) {
    push_varint(u64::from(number) << 3 | u64::from(kind), out);
}

/// A varint field; negative numbers take ten bytes.
pub(crate) fn varint(number: u32, n: i64, out: &mut Vec<u8>) {
    tag(number, 0, out);
    push_varint(n as u64, out);
}

/// A floating-point field.
pub(crate) fn double(number: u32, n: f64, out: &mut Vec<u8>) {
    tag(number, 1, out);
    out.extend_from_slice(&n.to_le_bytes());
}

/// A text or bytes field.
pub(crate) fn bytes(number: u32, content: &[u8], out: &mut Vec<u8>) {
    tag(number, 2, out);
    push_varint(content.len() as u64, out);
    out.extend_from_slice(content);
}

/// A message field. Its length is known only when it is written: one byte is kept for it, and a longer length moves
/// the body, which is rare and then small.
pub(crate) fn nested(number: u32, out: &mut Vec<u8>, body: impl FnOnce(&mut Vec<u8>)) {
    tag(number, 2, out);
    let start = out.len();
    out.push(0);
    body(out);
    let length = out.len() - start - 1;
    if length < 0x80 {
        out[start] = length as u8;
        return;
    }
    let mut varint = Vec::with_capacity(5);
    push_varint(length as u64, &mut varint);
    let extra = varint.len() - 1;
    out.resize(out.len() + extra, 0);
    out.copy_within(start + 1..start + 1 + length, start + 1 + extra);
    out[start..start + varint.len()].copy_from_slice(&varint);
}

//! A reader of JSON text, value by value, with the words of Go's scanner for what is not JSON.

use std::borrow::Cow;

/// How deep a document may nest. Go's limit is 10,000; recursion over values (cloning, comparing, merging, dropping)
/// must fit a thread's stack everywhere, and no real object comes near this.
pub const MAX_DEPTH: usize = 500;

/// A syntax error's text.
pub type Result<T> = std::result::Result<T, String>;

pub(super) struct Reader<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { text, at: 0, depth: 0 }
    }

    fn byte(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn space(&mut self) {
        while let Some(b' ' | b'\t' | b'\r' | b'\n') = self.byte() {
            self.at += 1;
        }
    }

    /// The error for the byte at hand, or for the end of the text.
    fn unexpected<T>(&self, context: &str) -> Result<T> {
        match self.text[self.at..].chars().next() {
            None => Err("unexpected end of JSON input".into()),
            Some(c) => Err(format!("invalid character {} {context}", quote_char(c))),
        }
    }

    /// First byte of the next value: one of `{["tfn-` or a digit.
    pub(super) fn peek(&mut self) -> Result<u8> {
        self.space();
        match self.byte() {
            Some(b @ (b'{' | b'[' | b'"' | b't' | b'f' | b'n' | b'-' | b'0'..=b'9')) => Ok(b),
            _ => self.unexpected("looking for beginning of value"),
        }
    }

    fn deeper(&mut self) -> Result<()> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return self.unexpected("exceeded max depth");
        }
        self.at += 1;
        Ok(())
    }

    /// Enters the list at hand. Then [`Reader::item`] says whether another item follows.
    pub(super) fn begin_list(&mut self) -> Result<()> {
        self.deeper()
    }

    /// True when an item stands next; false when the list ended. `first` starts true and belongs to one list.
    pub(super) fn item(&mut self, first: &mut bool) -> Result<bool> {
        self.space();
        if self.byte() == Some(b']') {
            self.leave();
            return Ok(false);
        }
        if !std::mem::take(first) {
            if self.byte() != Some(b',') {
                return self.unexpected("after array element");
            }
            self.at += 1;
        }
        self.peek()?;
        Ok(true)
    }

    fn leave(&mut self) {
        self.at += 1;
        self.depth -= 1;
    }

    /// Enters the object at hand. Then [`Reader::key`] gives its keys.
    pub(super) fn begin_object(&mut self) -> Result<()> {
        self.deeper()
    }

    /// The next key, its colon consumed; `None` when the object ended. `first` starts true and belongs to one object.
    pub(super) fn key(&mut self, first: &mut bool) -> Result<Option<Cow<'a, str>>> {
        self.space();
        if self.byte() == Some(b'}') {
            self.leave();
            return Ok(None);
        }
        if !std::mem::take(first) {
            if self.byte() != Some(b',') {
                return self.unexpected("after object key:value pair");
            }
            self.at += 1;
            self.space();
        }
        if self.byte() != Some(b'"') {
            return self.unexpected("looking for beginning of object key string");
        }
        let key = self.string()?;
        self.space();
        if self.byte() != Some(b':') {
            return self.unexpected("after object key");
        }
        self.at += 1;
        Ok(Some(key))
    }

    /// The string at hand.
    pub(super) fn string(&mut self) -> Result<Cow<'a, str>> {
        self.at += 1;
        let start = self.at;
        let bytes = self.text.as_bytes();
        while let Some(&b) = bytes.get(self.at) {
            match b {
                b'"' => {
                    let text = &self.text[start..self.at];
                    self.at += 1;
                    return Ok(Cow::Borrowed(text));
                }
                b'\\' => return self.escaped(start).map(Cow::Owned),
                0..0x20 => return self.unexpected("in string literal"),
                _ => self.at += 1,
            }
        }
        self.unexpected("")
    }

    /// The rest of a string with escapes in it, of which `start..self.at` is plain.
    fn escaped(&mut self, start: usize) -> Result<String> {
        let mut out = self.text[start..self.at].to_string();
        loop {
            let plain = self.at;
            while self.byte().is_some_and(|b| b != b'"' && b != b'\\' && b >= 0x20) {
                self.at += 1;
            }
            out.push_str(&self.text[plain..self.at]);
            match self.byte() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(out);
                }
                Some(b'\\') => {
                    self.at += 1;
                    let c = self.escape()?;
                    out.push(c);
                }
                _ => return self.unexpected("in string literal"),
            }
        }
    }

    fn escape(&mut self) -> Result<char> {
        let c = match self.byte() {
            Some(c @ (b'"' | b'\\' | b'/')) => char::from(c),
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => {
                self.at += 1;
                return self.unicode();
            }
            _ => return self.unexpected("in string escape code"),
        };
        self.at += 1;
        Ok(c)
    }

    /// `XXXX` after `\u`, with a low surrogate's escape after a high one; a lone surrogate is U+FFFD.
    fn unicode(&mut self) -> Result<char> {
        let high = self.hex()?;
        if let Some(c) = char::from_u32(high) {
            return Ok(c);
        }
        let before = self.at;
        if high < 0xdc00 && self.text.as_bytes()[self.at..].starts_with(b"\\u") {
            self.at += 2;
            let low = self.hex()?;
            if (0xdc00..0xe000).contains(&low) {
                let c = char::from_u32(0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00));
                return Ok(c.unwrap_or(char::REPLACEMENT_CHARACTER));
            }
            self.at = before;
        }
        Ok(char::REPLACEMENT_CHARACTER)
    }

    fn hex(&mut self) -> Result<u32> {
        let mut n = 0;
        for _ in 0..4 {
            let Some(digit) = self.byte().and_then(|b| char::from(b).to_digit(16)) else {
                return self.unexpected("in \\u hexadecimal character escape");
            };
            n = n * 16 + digit;
            self.at += 1;
        }
        Ok(n)
    }

    /// The number at hand, as it is written.
    pub(super) fn number(&mut self) -> Result<&'a str> {
        let start = self.at;
        if self.byte() == Some(b'-') {
            self.at += 1;
        }
        match self.byte() {
            Some(b'0') => self.at += 1,
            Some(b'1'..=b'9') => self.digits(),
            _ => return self.unexpected("in numeric literal"),
        }
        if self.byte() == Some(b'.') {
            self.at += 1;
            if !self.byte().is_some_and(|b| b.is_ascii_digit()) {
                return self.unexpected("after decimal point in numeric literal");
            }
            self.digits();
        }
        if let Some(b'e' | b'E') = self.byte() {
            self.at += 1;
            if let Some(b'+' | b'-') = self.byte() {
                self.at += 1;
            }
            if !self.byte().is_some_and(|b| b.is_ascii_digit()) {
                return self.unexpected("in exponent of numeric literal");
            }
            self.digits();
        }
        Ok(&self.text[start..self.at])
    }

    fn digits(&mut self) {
        while self.byte().is_some_and(|b| b.is_ascii_digit()) {
            self.at += 1;
        }
    }

    /// Consumes `null`, `true` or `false`, the one that the byte at hand begins.
    pub(super) fn word(&mut self) -> Result<&'static str> {
        let word = match self.byte() {
            Some(b't') => "true",
            Some(b'f') => "false",
            _ => "null",
        };
        for expected in word.bytes() {
            if self.byte() != Some(expected) {
                return self.unexpected(&format!("in literal {word} (expecting '{}')", char::from(expected)));
            }
            self.at += 1;
        }
        Ok(word)
    }

    /// Passes over a value and gives its text.
    pub(super) fn skip(&mut self) -> Result<&'a str> {
        let first = self.peek()?;
        let start = self.at;
        match first {
            b'{' => {
                self.begin_object()?;
                let mut first = true;
                while self.key(&mut first)?.is_some() {
                    self.skip()?;
                }
            }
            b'[' => {
                self.begin_list()?;
                let mut first = true;
                while self.item(&mut first)? {
                    self.skip()?;
                }
            }
            b'"' => drop(self.string()?),
            b't' | b'f' | b'n' => drop(self.word()?),
            _ => drop(self.number()?),
        }
        Ok(&self.text[start..self.at])
    }

    /// Makes sure that nothing follows the top-level value.
    pub(super) fn end(&mut self) -> Result<()> {
        self.space();
        match self.byte() {
            None => Ok(()),
            Some(_) => self.unexpected("after top-level value"),
        }
    }
}

/// Go's quoted character: of what is printed as it is, in escapes else.
fn quote_char(c: char) -> String {
    match c {
        '\'' => r"'\''".into(),
        '"' => "'\"'".into(),
        c => {
            let quoted = crate::field::quote(c.encode_utf8(&mut [0; 4]));
            format!("'{}'", &quoted[1..quoted.len() - 1])
        }
    }
}

/// The text of a body: bytes that are not UTF-8 become U+FFFD one by one, as in Go's strings.
pub(super) fn text(bytes: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(bytes) {
        Ok(text) => Cow::Borrowed(text),
        Err(_) => {
            let mut out = String::with_capacity(bytes.len() + 16);
            let mut rest = bytes;
            while !rest.is_empty() {
                let good = match std::str::from_utf8(rest) {
                    Ok(text) => text.len(),
                    Err(e) => e.valid_up_to(),
                };
                out.push_str(std::str::from_utf8(&rest[..good]).unwrap_or_default());
                rest = &rest[good..];
                if !rest.is_empty() {
                    out.push(char::REPLACEMENT_CHARACTER);
                    rest = &rest[1..];
                }
            }
            Cow::Owned(out)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        let mut reader = Reader::new(text);
        reader.skip().and_then(|_| reader.end()).unwrap_err()
    }

    #[test]
    fn what_is_not_json_is_refused_in_gos_words() {
        for (text, words) in [
            ("", "unexpected end of JSON input"),
            ("{", "unexpected end of JSON input"),
            ("{\"a", "unexpected end of JSON input"),
            ("x", "invalid character 'x' looking for beginning of value"),
            ("\0", "invalid character '\\x00' looking for beginning of value"),
            ("'a'", "invalid character '\\'' looking for beginning of value"),
            ("{}}", "invalid character '}' after top-level value"),
            ("{} t", "invalid character 't' after top-level value"),
            ("{a", "invalid character 'a' looking for beginning of object key string"),
            ("{\"a\":1,}", "invalid character '}' looking for beginning of object key string"),
            ("{\"a\"}", "invalid character '}' after object key"),
            ("{\"a\":1 2", "invalid character '2' after object key:value pair"),
            ("[1 2", "invalid character '2' after array element"),
            ("[1,]", "invalid character ']' looking for beginning of value"),
            ("nope", "invalid character 'o' in literal null (expecting 'u')"),
            ("trux", "invalid character 'x' in literal true (expecting 'e')"),
            ("-x", "invalid character 'x' in numeric literal"),
            ("1.x", "invalid character 'x' after decimal point in numeric literal"),
            ("1ex", "invalid character 'x' in exponent of numeric literal"),
            ("01", "invalid character '1' after top-level value"),
            ("\"\\x\"", "invalid character 'x' in string escape code"),
            ("\"\\u12x4\"", "invalid character 'x' in \\u hexadecimal character escape"),
            ("\"a\nb\"", "invalid character '\\n' in string literal"),
        ] {
            assert_eq!(error(text), words, "{text}");
        }
    }

    #[test]
    fn depth_is_bounded() {
        let deep = |n: usize| "[".repeat(n) + &"]".repeat(n);
        assert!(Reader::new(&deep(MAX_DEPTH)).skip().is_ok());
        assert_eq!(error(&deep(100_000)), "invalid character '[' exceeded max depth");
    }

    #[test]
    fn escapes_and_surrogates_are_read_as_go_reads_them() {
        let read = |text: &str| Reader::new(text).string().unwrap().into_owned();
        assert_eq!(read(r#""a\n\u0041\ud83d\ude00""#), "a\nA\u{1f600}");
        assert_eq!(read(r#""\ud800x\udc00\ud800\u0041""#), "\u{fffd}x\u{fffd}\u{fffd}A");
        assert_eq!(text(b"a\xe2\x82b"), "a\u{fffd}\u{fffd}b");
    }
}

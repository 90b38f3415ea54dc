//! Walks over JSON without making anything: where members begin and end. Only as strict as it must be to find its
//! way; what is found is parsed by others.

use std::ops::Range;

/// Containers within containers; deeper ones are no objects of ours.
const DEPTH: u32 = 128;

/// Why bytes are no object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Fault {
    #[error("unexpected end of JSON input")]
    End,
    #[error("invalid JSON at offset {0}")]
    At(usize),
}

type Result<T> = std::result::Result<T, Fault>;

/// A member of an object: places of the quoted key and of the value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Member {
    pub(super) key: Range<usize>,
    pub(super) value: Range<usize>,
}

impl Member {
    /// The key without its quotes; escapes are left as they are, and then it equals no key that is looked for.
    pub(super) fn name<'j>(&self, json: &'j [u8]) -> &'j [u8] {
        &json[self.key.start + 1..self.key.end - 1]
    }

    /// Key and value with what is between them.
    pub(super) fn whole(&self) -> Range<usize> {
        self.key.start..self.value.end
    }
}

/// Members of the object at `at`, in their order.
pub(super) fn members(json: &[u8], at: Range<usize>) -> Result<Vec<Member>> {
    let mut walk = Walk { json, at: at.start };
    let mut found = Vec::with_capacity(16);
    walk.expect(b'{')?;
    if walk.next_is(b'}')? {
        return Ok(found);
    }
    loop {
        let key = walk.value()?;
        if json[key.start] != b'"' {
            return Err(Fault::At(key.start));
        }
        walk.expect(b':')?;
        let value = walk.value()?;
        found.push(Member { key, value });
        if walk.next_is(b'}')? {
            return Ok(found);
        }
        walk.expect(b',')?;
    }
}

/// Items of the array at `at`.
pub(super) fn items(json: &[u8], at: Range<usize>) -> Result<Vec<Range<usize>>> {
    let mut walk = Walk { json, at: at.start };
    let mut found = Vec::new();
    walk.expect(b'[')?;
    if walk.next_is(b']')? {
        return Ok(found);
    }
    loop {
        found.push(walk.value()?);
        if walk.next_is(b']')? {
            return Ok(found);
        }
        walk.expect(b',')?;
    }
}

/// The place of the one value of a text that holds nothing else.
pub(super) fn document(json: &[u8]) -> Result<Range<usize>> {
    let mut walk = Walk { json, at: 0 };
    let value = walk.value()?;
    walk.space();
    if walk.at < json.len() { Err(Fault::At(walk.at)) } else { Ok(value) }
}

struct Walk<'j> {
    json: &'j [u8],
    at: usize,
}

impl Walk<'_> {
    fn space(&mut self) {
        while let Some(b' ' | b'\t' | b'\r' | b'\n') = self.json.get(self.at) {
            self.at += 1;
        }
    }

    fn peek(&mut self) -> Result<u8> {
        self.space();
        self.json.get(self.at).copied().ok_or(Fault::End)
    }

    fn expect(&mut self, byte: u8) -> Result<()> {
        if self.peek()? != byte {
            return Err(Fault::At(self.at));
        }
        self.at += 1;
        Ok(())
    }

    /// Takes the byte if it is the next.
    fn next_is(&mut self, byte: u8) -> Result<bool> {
        let is = self.peek()? == byte;
        self.at += usize::from(is);
        Ok(is)
    }

    /// Steps over a value and returns its place.
    fn value(&mut self) -> Result<Range<usize>> {
        let first = self.peek()?;
        let start = self.at;
        match first {
            b'"' => self.string()?,
            b'{' | b'[' => self.container()?,
            b'-' | b'0'..=b'9' | b't' | b'f' | b'n' => self.scalar(),
            _ => return Err(Fault::At(start)),
        }
        Ok(start..self.at)
    }

    fn scalar(&mut self) {
        while let Some(b'-' | b'+' | b'.' | b'0'..=b'9' | b'a'..=b'z' | b'E') = self.json.get(self.at) {
            self.at += 1;
        }
    }

    fn string(&mut self) -> Result<()> {
        let mut at = self.at + 1;
        loop {
            match self.json.get(at) {
                Some(b'"') => break,
                Some(b'\\') => at += 2,
                Some(_) => at += 1,
                None => return Err(Fault::End),
            }
        }
        self.at = at + 1;
        Ok(())
    }

    /// Steps over an object or array: strings are skipped, braces and brackets must pair.
    fn container(&mut self) -> Result<()> {
        // One bit per open container, the innermost lowest: 1 is an object.
        let (mut kinds, mut depth) = (0u128, 0u32);
        loop {
            match self.json.get(self.at).copied() {
                Some(b'"') => {
                    self.string()?;
                    continue;
                }
                Some(open @ (b'{' | b'[')) => {
                    if depth == DEPTH {
                        return Err(Fault::At(self.at));
                    }
                    kinds = kinds << 1 | u128::from(open == b'{');
                    depth += 1;
                }
                Some(close @ (b'}' | b']')) => {
                    if kinds & 1 != u128::from(close == b'}') {
                        return Err(Fault::At(self.at));
                    }
                    kinds >>= 1;
                    depth -= 1;
                    if depth == 0 {
                        self.at += 1;
                        return Ok(());
                    }
                }
                Some(_) => {}
                None => return Err(Fault::End),
            }
            self.at += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(json: &str) -> Result<Vec<String>> {
        let found = members(json.as_bytes(), document(json.as_bytes())?)?;
        let text = |range: Range<usize>| json[range].to_string();
        Ok(found.into_iter().map(|m| text(m.whole())).collect())
    }

    #[test]
    fn members_are_found_whatever_they_hold() {
        let json = r#" { "a" : "}\"{" , "b":[1,{"c":"]"}], "d":{},"e":-1.5e+3,"f":null } "#;
        let want = [r#""a" : "}\"{""#, r#""b":[1,{"c":"]"}]"#, r#""d":{}"#, r#""e":-1.5e+3"#, r#""f":null"#];
        assert_eq!(names(json).expect("an object"), want);
        assert_eq!(names("{}").expect("an object"), [""; 0]);
        let array = b"[1, \"a,b\" ,[2,3],{}]";
        let texts: Vec<_> = items(array, 0..array.len()).expect("items").into_iter().map(|r| &array[r]).collect();
        assert_eq!(texts, [&b"1"[..], b"\"a,b\"", b"[2,3]", b"{}"]);
    }

    #[test]
    fn torn_or_foreign_bytes_are_refused() {
        for bad in
            ["", "{", "{\"a\"", "{\"a\":", "{\"a\":1", "{\"a\":1}}", "{\"a\":[}", "{a:1}", "{1:2}", "{\"a\":\"", "x"]
        {
            assert!(names(bad).is_err(), "{bad}");
        }
        let deep = format!("{{\"a\":{}{}}}", "[".repeat(200), "]".repeat(200));
        assert!(names(&deep).is_err());
    }

    proptest::proptest! {
        #[test]
        fn every_object_is_walked_as_a_parser_would(value in proptest::collection::btree_map(".{0,8}", ".{0,8}", 0..6)) {
            let json = serde_json::to_string(&value).expect("JSON");
            let found = members(json.as_bytes(), 0..json.len()).expect("an object");
            let parsed = found.iter().map(|m| {
                let text = |range: &Range<usize>| serde_json::from_str::<String>(&json[range.clone()]).expect("text");
                (text(&m.key), text(&m.value))
            });
            proptest::prop_assert_eq!(parsed.collect::<std::collections::BTreeMap<_, _>>(), value);
        }
    }
}

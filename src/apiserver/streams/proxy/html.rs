//! Finds links in a page. Pure.
//!
//! Only what is rewritten changes; the rest of the page stays as it is, byte for byte, also where it is malformed.

/// Attributes that hold links, by element.
fn attributes(element: &str) -> &'static [&'static str] {
    match element {
        "a" | "area" | "base" | "link" => &["href"],
        "applet" => &["codebase"],
        "audio" | "embed" | "script" | "source" => &["src"],
        "blockquote" | "del" | "ins" | "q" => &["cite"],
        "body" => &["background"],
        "button" => &["formaction"],
        "command" => &["icon"],
        "form" => &["action"],
        "frame" | "iframe" => &["longdesc", "src"],
        "head" => &["profile"],
        "html" => &["manifest"],
        "img" => &["longdesc", "src", "usemap"],
        "input" => &["src", "usemap", "formaction"],
        "object" => &["classid", "codebase", "data", "usemap"],
        "video" => &["poster", "src"],
        _ => &[],
    }
}

/// Elements whose content is text, whatever it looks like.
const RAW: [&str; 10] =
    ["iframe", "noembed", "noframes", "noscript", "plaintext", "script", "style", "textarea", "title", "xmp"];

/// An attribute's name and value, as ranges of the page. The value's range includes its quotes.
struct Attribute {
    name: String,
    value: std::ops::Range<usize>,
}

/// Rewrites the links of a page; `link` gives the new one, or nothing.
pub fn rewrite(page: &[u8], mut link: impl FnMut(&str) -> Option<String>) -> Vec<u8> {
    let mut out = Vec::with_capacity(page.len() + 256);
    let mut at = 0;
    while let Some(open) = find(page, at, b"<") {
        let rest = &page[open..];
        let end = match rest.get(1) {
            Some(b'!') if rest.starts_with(b"<!--") => find(page, open + 4, b"-->").map(|end| end + 3),
            Some(b'!' | b'?' | b'/') => find(page, open, b">").map(|end| end + 1),
            Some(letter) if letter.is_ascii_alphabetic() => {
                let Some((name, found, end)) = tag(page, open + 1) else { break };
                replace(&mut out, page, &mut at, &name, &found, &mut link);
                Some(skip_raw(page, end, &name))
            }
            _ => Some(open + 1),
        };
        let end = end.unwrap_or(page.len());
        out.extend_from_slice(&page[at..end]);
        at = end;
    }
    out.extend_from_slice(&page[at..]);
    out
}

fn find(page: &[u8], from: usize, what: &[u8]) -> Option<usize> {
    let found = page.get(from..)?.windows(what.len()).position(|window| window == what)?;
    Some(from + found)
}

/// Reads a start tag after its `<`: name, attributes, and where it ends; nothing when the page ends before.
fn tag(page: &[u8], from: usize) -> Option<(String, Vec<Attribute>, usize)> {
    let until = |from: usize, stops: &[u8]| -> Option<usize> {
        let found = page.get(from..)?.iter().position(|b| stops.contains(b))?;
        Some(from + found)
    };
    let past = |from: usize, skipped: &[u8]| -> Option<usize> {
        let found = page.get(from..)?.iter().position(|b| !skipped.contains(b))?;
        Some(from + found)
    };
    let lower = |range: std::ops::Range<usize>| String::from_utf8_lossy(&page[range]).to_ascii_lowercase();
    const SPACE: &[u8] = b" \n\r\t\x0c";
    let end = until(from, b" \n\r\t\x0c/>")?;
    let name = lower(from..end);
    let (mut at, mut found) = (end, Vec::new());
    loop {
        at = past(at, b" \n\r\t\x0c/")?;
        if page[at] == b'>' {
            return Some((name, found, at + 1));
        }
        let end = until(at + 1, b" \n\r\t\x0c/=>")?;
        let attribute = lower(at..end);
        at = past(end, SPACE)?;
        if page[at] != b'=' {
            continue;
        }
        let start = past(at + 1, SPACE)?;
        at = match page[start] {
            quote @ (b'"' | b'\'') => until(start + 1, &[quote])? + 1,
            b'>' => start,
            _ => until(start, b" \n\r\t\x0c>")?,
        };
        found.push(Attribute { name: attribute, value: start..at });
    }
}

/// Writes the page up to the last link of a tag, with the links replaced.
fn replace(
    out: &mut Vec<u8>, page: &[u8], at: &mut usize, element: &str, found: &[Attribute],
    link: &mut impl FnMut(&str) -> Option<String>,
) {
    let wanted = attributes(element);
    for attribute in found.iter().filter(|a| wanted.contains(&a.name.as_str())) {
        let text = String::from_utf8_lossy(&page[attribute.value.clone()]);
        let bare = text.trim_matches(if text.starts_with('\'') { '\'' } else { '"' });
        if let Some(new) = link(&decode(bare)) {
            out.extend_from_slice(&page[*at..attribute.value.start]);
            out.extend_from_slice(format!("\"{}\"", encode(&new)).as_bytes());
            *at = attribute.value.end;
        }
    }
}

/// Where the content of an element of text ends; for others where it begins.
fn skip_raw(page: &[u8], from: usize, element: &str) -> usize {
    if !RAW.contains(&element) {
        return from;
    }
    let mut at = from;
    while let Some(end) = find(page, at, b"</") {
        let name = page.get(end + 2..end + 2 + element.len());
        if name.is_some_and(|name| name.eq_ignore_ascii_case(element.as_bytes())) {
            return end;
        }
        at = end + 2;
    }
    page.len()
}

/// The characters that URLs in attributes are written with.
const ENTITIES: [(&str, &str); 8] = [
    ("&lt;", "<"),
    ("&gt;", ">"),
    ("&quot;", "\""),
    ("&#34;", "\""),
    ("&#39;", "'"),
    ("&apos;", "'"),
    ("&#38;", "&"),
    // Last, so that nothing is decoded twice.
    ("&amp;", "&"),
];

fn decode(text: &str) -> String {
    let decoded = |text: String, (entity, plain): &(&str, &str)| text.replace(entity, plain);
    ENTITIES.iter().fold(text.to_string(), decoded)
}

fn encode(text: &str) -> String {
    let pairs = [('&', "&amp;"), ('<', "&lt;"), ('>', "&gt;"), ('"', "&#34;"), ('\'', "&#39;")];
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match pairs.iter().find(|(plain, _)| *plain == c) {
            Some((_, entity)) => out.push_str(entity),
            None => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rewritten(page: &str) -> String {
        let link = |url: &str| url.starts_with('/').then(|| format!("/p{url}"));
        String::from_utf8(rewrite(page.as_bytes(), link)).expect("text")
    }

    #[test]
    fn links_are_found_where_they_stand() {
        for (page, expected) in [
            (
                r#"<pre><a href="kubelet.log">k</a><a href="/google.log">/g</a></pre>"#,
                r#"<pre><a href="kubelet.log">k</a><a href="/p/google.log">/g</a></pre>"#,
            ),
            (r#"<img alt="/x" src='/i.jpg'/>"#, r#"<img alt="/x" src="/p/i.jpg"/>"#),
            ("<IMG SRC=/i.jpg usemap = /m>", "<IMG SRC=\"/p/i.jpg\" usemap = \"/p/m\">"),
            (r#"<a href="/a?b=1&amp;c=2">"#, r#"<a href="/p/a?b=1&amp;c=2">"#),
            (r#"<div href="/a">"#, r#"<div href="/a">"#),
        ] {
            assert_eq!(rewritten(page), expected);
        }
    }

    #[test]
    fn text_and_comments_stay_as_they_are() {
        for page in [
            r#"<script>var a = '<a href="/x">';</script><p>"#,
            r#"<!-- <a href="/x"> --><!doctype html><?x <a ?>"#,
            r#"1 < 2 <a"#,
            r#"<a href="/never closed"#,
            "<textarea><a href=\"/x\">",
        ] {
            assert_eq!(rewritten(page), page);
        }
        let page = r#"<script src="/s.js"></script><a href="/a">"#;
        assert_eq!(rewritten(page), r#"<script src="/p/s.js"></script><a href="/p/a">"#);
    }
}

//! Links that a backend gives, as links through the proxy. Pure.

use crate::streams::locate::escape;

/// What stays as it is in a path, beside letters and digits.
pub const PATH: &[u8] = b"$&+,/:;=@-_.~";

/// Where links stand and where they shall lead.
pub struct Links<'a> {
    /// Path of the proxy, before the backend's own path.
    pub prefix: &'a str,
    /// Host and port of the backend.
    pub backend: &'a str,
    /// Host and port that the client asked.
    pub host: &'a str,
}

/// A URL's parts as text; the path is decoded.
struct Url<'a> {
    scheme: &'a str,
    host: Option<&'a str>,
    path: String,
    /// Query and fragment with their marks.
    rest: &'a str,
}

/// Takes a URL apart; nothing when it is none.
fn parse(text: &str) -> Option<Url<'_>> {
    if text.bytes().any(|b| b < 0x20 || b == 0x7f) {
        return None;
    }
    let end = text.find(['?', '#']).unwrap_or(text.len());
    let (front, rest) = text.split_at(end);
    let is_scheme = |s: &str| {
        s.starts_with(|c: char| c.is_ascii_alphabetic())
            && s.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b))
    };
    let (scheme, front) = match front.split_once(':') {
        Some((scheme, after)) if is_scheme(scheme) => (scheme, after),
        // A colon in the first segment of what has no scheme.
        Some((before, _)) if !before.contains('/') => return None,
        _ => ("", front),
    };
    let (host, path) = match front.strip_prefix("//") {
        Some(after) => {
            let (host, path) = after.split_at(after.find('/').unwrap_or(after.len()));
            (Some(host), path)
        }
        None => (None, front),
    };
    Some(Url { scheme, host, path: base::health::unescape(path, false)?, rest })
}

impl Links<'_> {
    /// The URL through the proxy; nothing when it stays as it is.
    ///
    /// It is rewritten when it leads to the backend's own host (or the one the client asked) by an absolute path that
    /// does not lead through the proxy yet.
    pub fn rewrite(&self, text: &str) -> Option<String> {
        let url = parse(text)?;
        let host = url.host.unwrap_or_default();
        let elsewhere = !host.is_empty() && host != self.backend && host != self.host;
        if elsewhere || !url.path.starts_with('/') {
            return None;
        }
        let mut out = String::new();
        // A host that the client knows stays; the backend's own is of no use to it.
        if !host.is_empty() && host == self.host {
            if !url.scheme.is_empty() {
                out.push_str(&format!("{}:", url.scheme));
            }
            out.push_str(&format!("//{host}"));
        }
        let path = match url.path.starts_with(self.prefix) {
            true => url.path,
            false => join(&[self.prefix, &url.path]),
        };
        out.push_str(&escape(&path, PATH));
        out.push_str(url.rest);
        Some(out)
    }
}

/// Joins paths and cleans the result: no `.`, `..` and doubled slashes; a slash at the end stays.
pub fn join(parts: &[&str]) -> String {
    let parts: Vec<&str> = parts.iter().copied().filter(|part| !part.is_empty()).collect();
    let whole = parts.join("/");
    let mut kept: Vec<&str> = Vec::new();
    for segment in whole.split('/') {
        match segment {
            "" | "." => {}
            ".." => drop(kept.pop()),
            segment => kept.push(segment),
        }
    }
    let mut out = if whole.starts_with('/') { format!("/{}", kept.join("/")) } else { kept.join("/") };
    if whole.ends_with('/') && !out.ends_with('/') {
        out.push('/');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const PREFIX: &str = "/proxy/node/node1:10250";

    fn rewritten(text: &str) -> Option<String> {
        Links { prefix: PREFIX, backend: "mynode.com", host: "10.0.0.1:8001" }.rewrite(text)
    }

    #[test]
    fn absolute_paths_and_the_own_host_lead_through_the_proxy() {
        for (link, expected) in [
            ("kubelet.log", None),
            ("/google.log", Some("/proxy/node/node1:10250/google.log")),
            ("/google.log/", Some("/proxy/node/node1:10250/google.log/")),
            ("/a?b=c#d", Some("/proxy/node/node1:10250/a?b=c#d")),
            ("http://google.com/kubernetes.js", None),
            ("http://mynode.com/redirected/target/", Some("/proxy/node/node1:10250/redirected/target/")),
            (
                "http://10.0.0.1:8001/redirected/target/",
                Some("http://10.0.0.1:8001/proxy/node/node1:10250/redirected/target/"),
            ),
            ("/proxy/node/node1:10250/google.log", Some("/proxy/node/node1:10250/google.log")),
            (
                "/redirected/%00<script>alert(1)</script>/",
                Some("/proxy/node/node1:10250/redirected/%00%3Cscript%3Ealert%281%29%3C/script%3E/"),
            ),
            ("mailto:a@b", None),
            ("#top", None),
            ("/bad%zz", None),
        ] {
            assert_eq!(rewritten(link).as_deref(), expected, "{link}");
        }
    }

    #[test]
    fn paths_are_joined_and_cleaned() {
        assert_eq!(join(&["", ""]), "");
        assert_eq!(join(&["/a/", "/b/"]), "/a/b/");
        assert_eq!(join(&["/a", "../../b"]), "/b");
        assert_eq!(join(&["/a", "/"]), "/a/");
    }
}

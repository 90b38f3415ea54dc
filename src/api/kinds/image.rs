//! The tag of an image's name, which decides how it is pulled by default.

use std::sync::LazyLock;

use regex::Regex;

/// A reference: an optional host, a path of lower case, a tag, a digest (distribution/reference).
static REFERENCE: LazyLock<Regex> = LazyLock::new(|| {
    let part = "(?:[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9])";
    let host = format!(r"(?:{part}(?:\.{part})*|\[(?:[a-fA-F0-9:]+)\])(?::[0-9]+)?");
    let path = "[a-z0-9]+(?:(?:[._]|__|[-]+)[a-z0-9]+)*";
    let tag = r"[\w][\w.-]{0,127}";
    let digest = "[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,}";
    Regex::new(&format!("^((?:{host}/)?{path}(?:/{path})*)(?::({tag}))?(?:@({digest}))?$")).expect("a constant pattern")
});

/// True when the name stands for `latest`: by that tag, or by no tag and no digest. A name that can't be read does not.
pub fn is_latest(image: &str) -> bool {
    let bare_digest = image.len() == 64 && image.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    let Some(found) = REFERENCE.captures(image).filter(|_| !bare_digest) else { return false };
    let name = &found[1];
    // What precedes the first slash is a host only if it looks like one; else it is part of the path, in lower case.
    let host_like = |s: &str| s.contains(['.', ':']) || s == "localhost" || s.to_lowercase() != s;
    let path = match name.split_once('/') {
        Some((host, rest)) if host_like(host) => rest,
        _ => name,
    };
    if name.len() > 255 || path.bytes().any(|b| b.is_ascii_uppercase() || b == b':') {
        return false;
    }
    match (found.get(2), found.get(3)) {
        (Some(tag), _) => tag.as_str() == "latest",
        (None, digest) => digest.is_none(),
    }
}

#[cfg(test)]
mod tests {
    use super::is_latest;

    #[test]
    fn tags() {
        for latest in ["nginx", "nginx:latest", "a.b:5000/c/d", "localhost/x:latest", "k8s.gcr.io/pause"] {
            assert!(is_latest(latest), "{latest}");
        }
        let digest = format!("nginx@sha256:{}", "a".repeat(64));
        for other in
            ["nginx:1", "a.b:5000/c:2", &digest, &format!("x:latest@{}", "bad"), "Nginx", " nginx", "", "a:b:c"]
        {
            assert!(!is_latest(other), "{other}");
        }
        assert!(is_latest(&format!("nginx:latest@sha256:{}", "a".repeat(64))));
    }
}

//! Names of images: `[registry/]path[:tag][@digest]`.

use regex::Regex;
use std::sync::LazyLock;

static FORM: LazyLock<Regex> = LazyLock::new(|| {
    let part = "[a-z0-9]+(?:(?:\\.|_|__|-+)[a-z0-9]+)*";
    let host_part = "(?:[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9])";
    let host = format!("(?:{host_part}(?:\\.{host_part})*|\\[[a-fA-F0-9:]+\\])(?::[0-9]+)?");
    let form = format!(
        "^(?:{host}/)?{part}(?:/{part})*(?::[\\w][\\w.-]{{0,127}})?(?:@[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{{32,}})?$"
    );
    Regex::new(&form).expect("the form of image names is a regular expression")
});

/// The parts of an image's name: registry, path and the rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name<'a> {
    /// `docker.io` when none is given.
    pub registry: &'a str,
    /// Path in the registry.
    pub path: String,
    /// The tag.
    pub tag: Option<&'a str>,
    /// The digest.
    pub digest: Option<&'a str>,
}

/// Takes a name apart.
pub fn parse(image: &str) -> Result<Name<'_>, String> {
    let fault = |why: &str| format!("couldn't parse image name {image:?}: invalid reference format{why}");
    if !FORM.is_match(image) {
        let bare = image.split(['@', ':']).next().unwrap_or_default();
        let lower = image.to_lowercase();
        return Err(match FORM.is_match(&lower) && bare.chars().any(char::is_uppercase) {
            true => {
                let path = if bare.contains('/') { bare.to_owned() } else { format!("library/{bare}") };
                fault(&format!(": repository name ({path}) must be lowercase"))
            }
            false => fault(""),
        });
    }
    let (rest, digest) = match image.split_once('@') {
        Some((rest, digest)) => (rest, Some(digest)),
        None => (image, None),
    };
    let (rest, tag) = match rest.rsplit_once(':') {
        Some((head, tag)) if !tag.contains('/') => (head, Some(tag)),
        _ => (rest, None),
    };
    let is_host = |first: &str| first.contains(['.', ':']) || first == "localhost";
    let (registry, path) = match rest.split_once('/') {
        Some((first, path)) if is_host(first) => (first, path.to_owned()),
        Some(_) => ("docker.io", rest.to_owned()),
        None => ("docker.io", format!("library/{rest}")),
    };
    Ok(Name { registry, path, tag, digest })
}

/// The name with `:latest` when it has neither tag nor digest.
pub fn with_default_tag(image: &str) -> Result<String, String> {
    let name = parse(image)?;
    Ok(match (name.tag, name.digest) {
        (None, None) => format!("{image}:latest"),
        _ => image.to_owned(),
    })
}

/// The policy of a container that names none.
pub fn default_policy(image: &str) -> &'static str {
    match parse(image) {
        Ok(Name { tag: Some("latest"), digest: None, .. }) => "Always",
        _ => "IfNotPresent",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_taken_apart() {
        let name = parse("localhost:5000/a/b:1").unwrap();
        assert_eq!((name.registry, name.path.as_str(), name.tag), ("localhost:5000", "a/b", Some("1")));
        assert_eq!(parse("busybox").unwrap().path, "library/busybox");
        assert_eq!(with_default_tag("busybox").unwrap(), "busybox:latest");
        let digest = format!("busybox@sha256:{}", "a".repeat(64));
        assert_eq!(with_default_tag(&digest).unwrap(), digest);
        assert_eq!(default_policy("a:latest"), "Always");
        assert_eq!(default_policy("a:1"), "IfNotPresent");
    }

    #[test]
    fn what_is_no_name_is_refused_in_upstreams_words() {
        assert_eq!(
            with_default_tag("Busybox").unwrap_err(),
            "couldn't parse image name \"Busybox\": invalid reference format: repository name (library/Busybox) must be lowercase"
        );
        assert_eq!(with_default_tag("a b").unwrap_err(), "couldn't parse image name \"a b\": invalid reference format");
    }
}

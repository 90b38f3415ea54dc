//! What a path and a method ask for: upstream's RequestInfo. Pure.

use http::Method;

use crate::request::Info;

/// Reads a request's path (decoded), method and query.
///
/// # Errors
/// The text of a 500 when a `/watch/` or `/proxy/` path ends there.
pub fn parse(method: &Method, path: &str, query: &[(String, String)]) -> Result<Info, String> {
    let mut info = Info { verb: method.as_str().to_ascii_lowercase(), path: path.to_string(), ..Info::default() };
    let all: Vec<&str> = split(path);
    let (prefix, rest) = match all.as_slice() {
        ["api", rest @ ..] if rest.len() >= 2 => ("api", rest),
        ["apis", group, rest @ ..] if rest.len() >= 2 => {
            info.group = (*group).to_string();
            ("apis", rest)
        }
        _ => return Ok(info),
    };
    info.is_resource = true;
    info.api_prefix = prefix.to_string();
    info.version = rest[0].to_string();
    let parts = verb(&mut info, method, &rest[1..])?;
    let parts = namespace(&mut info, parts);
    info.resource = parts.first().unwrap_or(&"").to_string();
    info.name = parts.get(1).unwrap_or(&"").to_string();
    if info.verb != "proxy" {
        info.subresource = parts.get(2).unwrap_or(&"").to_string();
    }
    info.parts = parts.iter().map(|p| p.to_string()).collect();
    collection(&mut info, query);
    Ok(info)
}

/// Segments of a path; empty ones in the middle stay.
pub fn split(path: &str) -> Vec<&str> {
    let path = path.trim_matches('/');
    if path.is_empty() { Vec::new() } else { path.split('/').collect() }
}

/// The verb: of the legacy prefix where there is one, else of the method. Gives what follows.
fn verb<'a>(info: &mut Info, method: &Method, parts: &'a [&'a str]) -> Result<&'a [&'a str], String> {
    if let special @ ("proxy" | "watch") = parts[0] {
        if parts.len() < 2 {
            return Err(format!("unable to determine kind and namespace from url, {}", info.path));
        }
        info.verb = special.to_string();
        return Ok(&parts[1..]);
    }
    let verb = match *method {
        Method::POST => "create",
        Method::GET | Method::HEAD => "get",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "",
    };
    info.verb = verb.to_string();
    Ok(parts)
}

/// The namespace, and the parts below it. `namespaces/x/status` and `namespaces/x/finalize` are of the namespace itself.
fn namespace<'a>(info: &mut Info, parts: &'a [&'a str]) -> &'a [&'a str] {
    let ["namespaces", name, rest @ ..] = parts else { return parts };
    info.namespace = (*name).to_string();
    match rest.first() {
        Some(&"status" | &"finalize") | None => parts,
        Some(_) => rest,
    }
}

/// Without a name a get is a list or a watch, and a delete a deletecollection.
fn collection(info: &mut Info, query: &[(String, String)]) {
    if !info.name.is_empty() {
        return;
    }
    match info.verb.as_str() {
        "get" => {
            let first = |key: &str| query.iter().find(|(k, _)| k == key).map(|(_, v)| v.as_str());
            info.verb = if first("watch").is_some_and(is_true) { "watch" } else { "list" }.to_string();
            if let Some(name) = first("fieldSelector").and_then(exact_name) {
                info.name = name;
            }
        }
        "delete" => info.verb = "deletecollection".to_string(),
        _ => {}
    }
}

/// A boolean parameter: anything but `false` and `0` is true, a bare one (`?watch`) too.
pub fn is_true(value: &str) -> bool {
    !matches!(value.to_ascii_lowercase().as_str(), "false" | "0")
}

/// The name that a field selector pins down (`metadata.name=x`), when it could be one.
fn exact_name(selector: &str) -> Option<String> {
    if selector.contains('\\') {
        // An escaped comma or equals sign: no name has those.
        return None;
    }
    let terms = selector.split(',').map(|t| t.split_once("==").or_else(|| t.split_once('=')));
    let mut named = terms.flatten().filter(|(key, _)| *key == "metadata.name").map(|(_, value)| value);
    named.next().filter(|name| !name.is_empty() && invalid_segment(name).is_none()).map(str::to_string)
}

/// Why a text can't be a segment of a path.
pub fn invalid_segment(name: &str) -> Option<String> {
    match name {
        "." | ".." => return Some(format!("may not be '{name}'")),
        _ => {}
    }
    let bad: Vec<String> =
        ["/", "%"].iter().filter(|c| name.contains(**c)).map(|c| format!("may not contain '{c}'")).collect();
    (!bad.is_empty()).then(|| bad.join(";"))
}

/// True for requests that run as long as their client likes: no deadline, not counted as in flight.
pub fn long_running(info: &Info) -> bool {
    info.is_resource
        && (matches!(info.verb.as_str(), "watch" | "proxy")
            || matches!(info.subresource.as_str(), "attach" | "exec" | "proxy" | "log" | "portforward"))
        || !info.is_resource && info.path.starts_with("/debug/pprof/")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(method: &str, url: &str) -> Info {
        let (path, query) = url.split_once('?').unwrap_or((url, ""));
        parse(&method.parse().expect("method"), path, &base::health::parse_query(query)).expect("parsed")
    }

    /// verb, group, version, namespace, resource, subresource, name
    fn tuple(i: &Info) -> [&str; 7] {
        [&i.verb, &i.group, &i.version, &i.namespace, &i.resource, &i.subresource, &i.name].map(String::as_str)
    }

    #[test]
    fn paths_are_read_as_upstreams_request_info() {
        for (method, url, expected) in [
            ("GET", "/api/v1/namespaces", ["list", "", "v1", "", "namespaces", "", ""]),
            ("GET", "/api/v1/namespaces/other", ["get", "", "v1", "other", "namespaces", "", "other"]),
            ("GET", "/api/v1/namespaces/other/pods", ["list", "", "v1", "other", "pods", "", ""]),
            ("GET", "/api/v1/namespaces/other/pods/foo", ["get", "", "v1", "other", "pods", "", "foo"]),
            ("HEAD", "/api/v1/namespaces/other/pods/foo", ["get", "", "v1", "other", "pods", "", "foo"]),
            ("GET", "/api/v1/pods?watch=true", ["watch", "", "v1", "", "pods", "", ""]),
            ("GET", "/api/v1/pods?watch", ["watch", "", "v1", "", "pods", "", ""]),
            ("GET", "/api/v1/pods?watch=0", ["list", "", "v1", "", "pods", "", ""]),
            ("GET", "/api/v1/watch/namespaces/other/pods", ["watch", "", "v1", "other", "pods", "", ""]),
            ("PUT", "/api/v1/namespaces/x/finalize", ["update", "", "v1", "x", "namespaces", "finalize", "x"]),
            ("PATCH", "/api/v1/namespaces/x/status", ["patch", "", "v1", "x", "namespaces", "status", "x"]),
            ("GET", "/api/v1/nodes/n/proxy/a/b", ["get", "", "v1", "", "nodes", "proxy", "n"]),
            (
                "DELETE",
                "/apis/apps/v1/namespaces/x/deployments",
                ["deletecollection", "apps", "v1", "x", "deployments", "", ""],
            ),
            ("POST", "/apis/apps/v1/namespaces/x/deployments", ["create", "apps", "v1", "x", "deployments", "", ""]),
            ("GET", "/api/v1/namespaces//configmaps", ["list", "", "v1", "", "configmaps", "", ""]),
            (
                "GET",
                "/api/v1/namespaces/x/secrets?fieldSelector=metadata.name%3Dfoo&watch=1",
                ["watch", "", "v1", "x", "secrets", "", "foo"],
            ),
        ] {
            let got = info(method, url);
            assert!(got.is_resource, "{url}");
            assert_eq!(tuple(&got), expected, "{method} {url}");
        }
    }

    #[test]
    fn short_paths_are_no_resources() {
        for url in
            ["/", "/api", "/api/v1", "/apis/apps", "/apis/apps/v1", "/apis/apps/v1/", "/version", "/healthz/etcd"]
        {
            let got = info("GET", url);
            assert!(!got.is_resource, "{url}");
            assert_eq!(got.verb, "get");
        }
        assert!(parse(&Method::GET, "/api/v1/watch", &[]).is_err());
    }

    #[test]
    fn names_that_would_leave_their_place_are_told_apart() {
        assert_eq!(invalid_segment("..").as_deref(), Some("may not be '..'"));
        assert_eq!(invalid_segment("a/b").as_deref(), Some("may not contain '/'"));
        assert_eq!(invalid_segment("a"), None);
    }
}

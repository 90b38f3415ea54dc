//! `/openapi/v2` and `/openapi/v3`: documents made from the table when they are first asked for, and kept as bytes until
//! the table changes.

use std::collections::BTreeMap;

use api::openapi::{self, Api};
use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use parking_lot::Mutex;
use sha2::Digest as _;

use crate::discovery::Documents;
use crate::request::{Answer, Body, Request};
use crate::respond::{Failure, json, plain, typed};
use crate::server::Server;

const JSON: &str = "application/json";

/// Documents that were asked for, by name, each with its ETag.
#[derive(Default)]
pub struct Kept(Mutex<BTreeMap<String, (Bytes, String)>>);

impl Kept {
    /// The document of that name, made by `make` the first time.
    fn get(&self, name: &str, make: impl FnOnce() -> Option<Vec<u8>>) -> Option<(Bytes, String)> {
        let mut kept = self.0.lock();
        if let Some(found) = kept.get(name) {
            return Some(found.clone());
        }
        let bytes = Bytes::from(make()?);
        let etag = hex(&sha2::Sha512::digest(&bytes));
        kept.insert(name.to_string(), (bytes.clone(), etag.clone()));
        Some((bytes, etag))
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02X}")).collect()
}

/// Answers a path below `/openapi`; `None` where there is none.
///
/// # Errors
/// 406 when no form of the document is accepted.
pub fn serve(server: &Server, request: &Request, segments: &[&str]) -> Option<Result<Answer, Failure>> {
    let documents = server.discovery.documents();
    let bare = !request.info.path.ends_with('/');
    Some(match segments {
        ["v2"] if bare => v2(&documents, request),
        ["v3"] if bare => Ok(index(&documents)),
        ["v3", name @ ..] if bare => v3(&documents, request, &name.join("/")),
        ["v3"] => Ok(nothing()),
        _ => return None,
    })
}

/// Runs with what is served now.
fn with_api<T>(documents: &Documents, run: impl FnOnce(Api<'_>) -> T) -> T {
    let groups = documents.groups();
    run(Api { groups: &groups, custom: &|_| None })
}

fn accept(request: &Request) -> &str {
    request.headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

/// Is JSON or the given protobuf form wanted? `None` for neither.
fn wants_protobuf(accept: &str, protobuf: &str) -> Option<bool> {
    if accept.trim().is_empty() {
        return Some(false);
    }
    accept.split(',').find_map(|clause| {
        let media = clause.split(';').next().unwrap_or_default().trim().to_ascii_lowercase().replace('@', ".");
        match media.as_str() {
            JSON | "*/*" | "application/*" => Some(false),
            media if media == protobuf => Some(true),
            _ => None,
        }
    })
}

fn v2(documents: &Documents, request: &Request) -> Result<Answer, Failure> {
    let Some(protobuf) = wants_protobuf(accept(request), openapi::V2_PROTOBUF) else {
        return Ok(refused());
    };
    let (name, content_type) = if protobuf { ("v2 protobuf", openapi::V2_PROTOBUF) } else { ("v2", JSON) };
    let make = || with_api(documents, |api| if protobuf { openapi::v2_protobuf(api) } else { openapi::v2(api) });
    Ok(match documents.openapi.get(name, || Some(make())) {
        Some(document) => answer(request, document, content_type),
        None => nothing(),
    })
}

fn index(documents: &Documents) -> Answer {
    let names = with_api(documents, openapi::v3_names);
    let hashed = names.into_iter().map(|name| {
        let hash = served_hash(documents, &name);
        (name, hash)
    });
    let mut answer = json(&openapi::v3_index(hashed));
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    answer
}

/// A hash of what a document is made of: the version of the program and the rows that it shows. Making the documents
/// themselves to hash them would cost far more than it is worth.
fn served_hash(documents: &Documents, name: &str) -> String {
    let mut hash = sha2::Sha512::new();
    hash.update(env!("CARGO_PKG_VERSION"));
    hash.update(name);
    for group in documents.groups() {
        for version in &group.versions {
            for row in &version.rows {
                hash.update(format!("{}/{}/{} ", group.name, version.name, row.plural));
            }
        }
    }
    hex(&hash.finalize())
}

fn v3(documents: &Documents, request: &Request, name: &str) -> Result<Answer, Failure> {
    let Some(document) = documents.openapi.get(name, || with_api(documents, |api| openapi::v3(api, name))) else {
        return Ok(nothing());
    };
    if wants_protobuf(accept(request), JSON).is_none() {
        return Ok(refused());
    }
    let current = served_hash(documents, name);
    if request.param("hash").is_some_and(|hash| hash != current) {
        let mut moved = typed(JSON, Vec::new());
        *moved.status_mut() = StatusCode::MOVED_PERMANENTLY;
        if let Ok(url) = HeaderValue::from_str(&format!("/openapi/v3/{name}?hash={current}")) {
            moved.headers_mut().insert(header::LOCATION, url);
        }
        return Ok(moved);
    }
    let mut answer = answer(request, document, JSON);
    if request.param("hash").is_some() {
        answer.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("public, immutable"));
    }
    Ok(answer)
}

fn answer(request: &Request, (bytes, etag): (Bytes, String), content_type: &'static str) -> Answer {
    let etag = format!("\"{etag}\"");
    let known = request.headers.get(header::IF_NONE_MATCH).and_then(|v| v.to_str().ok()) == Some(etag.as_str());
    let mut answer = if known { nothing() } else { Answer::new(Body::Pieces([bytes].into())) };
    if known {
        *answer.status_mut() = StatusCode::NOT_MODIFIED;
    }
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(header::VARY, HeaderValue::from_static("Accept-Encoding, Accept"));
    headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    if let Ok(etag) = HeaderValue::from_str(&etag) {
        headers.insert(header::ETAG, etag);
    }
    answer
}

/// 406 without a body.
fn refused() -> Answer {
    let mut answer = nothing();
    *answer.status_mut() = StatusCode::NOT_ACCEPTABLE;
    answer
}

/// 404 without a body.
fn nothing() -> Answer {
    let mut answer = plain(StatusCode::NOT_FOUND, "");
    answer.headers_mut().remove(header::CONTENT_TYPE);
    answer
}

//! Content negotiation, as upstream's two layers do it: the router looks at media types alone, the handler at their
//! parameters too.

use api::resources::Row;
use api::status::Status;
use http::HeaderMap;
use http::header::{ACCEPT, ACCEPT_ENCODING, USER_AGENT};

use crate::entry::is_typed;
use crate::request::Request;

/// An encoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Media {
    /// `application/json`
    Json,
    /// `application/yaml`
    Yaml,
    /// `application/vnd.kubernetes.protobuf`
    Protobuf,
}

impl Media {
    const ALL: [Media; 3] = [Media::Json, Media::Yaml, Media::Protobuf];

    /// The media type.
    pub fn name(self) -> &'static str {
        match self {
            Media::Json => "application/json",
            Media::Yaml => "application/yaml",
            Media::Protobuf => "application/vnd.kubernetes.protobuf",
        }
    }

    fn subtype(self) -> &'static str {
        self.name().trim_start_matches("application/")
    }
}

/// What becomes of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// It stays what it is.
    Whole,
    /// `as=Table`
    Table(Meta),
    /// `as=PartialObjectMetadata`
    Metadata(Meta),
    /// `as=PartialObjectMetadataList`
    MetadataList(Meta),
}

/// Version of the group `meta.k8s.io`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Meta {
    /// `v1`
    V1,
    /// `v1beta1`
    V1Beta1,
}

impl Meta {
    /// `meta.k8s.io/v1`
    pub fn api_version(self) -> &'static str {
        match self {
            Meta::V1 => "meta.k8s.io/v1",
            Meta::V1Beta1 => "meta.k8s.io/v1beta1",
        }
    }
}

/// What the client wants to get back. Upstream negotiates before it does anything else: so must every handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Accept {
    /// Encoding.
    pub media: Media,
    /// Shape.
    pub shape: Shape,
    /// JSON is indented.
    pub pretty: bool,
    /// Large answers may be compressed.
    pub gzip: bool,
}

/// Where an answer goes, which decides what there is to choose from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Typed,
    Custom,
    /// Failures: never in another shape.
    Failure,
}

/// Reads the Accept header (or its absence) for an answer of this resource that is no watch.
///
/// # Errors
/// 406 with upstream's list of what there is.
pub fn negotiate(row: &Row, req: &Request) -> Result<Accept, Status> {
    let place = if is_typed(row) { Place::Typed } else { Place::Custom };
    route(place, req)?;
    let found = choose(place, &req.headers).ok_or_else(|| not_acceptable(place, ""))?;
    Ok(found.finish(&req.headers, req.param("pretty")))
}

/// As [`negotiate`], for a watch: YAML has no stream.
///
/// # Errors
/// 406 with upstream's list of what there is.
pub fn negotiate_watch(row: &Row, req: &Request) -> Result<Accept, Status> {
    let place = if is_typed(row) { Place::Typed } else { Place::Custom };
    let accept = negotiate(row, req)?;
    if accept.media == Media::Yaml { Err(not_acceptable(place, ";stream=watch")) } else { Ok(accept) }
}

/// What a failure is written in; `None` when nothing fits, and then it is plain JSON, indented.
pub(super) fn for_failure(headers: &HeaderMap) -> Option<Accept> {
    Some(choose(Place::Failure, headers)?.finish(headers, None))
}

fn offered(place: Place) -> impl Iterator<Item = Media> {
    Media::ALL.into_iter().filter(move |media| place != Place::Custom || *media != Media::Protobuf)
}

fn list(place: Place, suffix: &str) -> Vec<String> {
    let streams = |media: &Media| suffix.is_empty() || *media != Media::Yaml;
    offered(place).filter(streams).map(|media| format!("{}{suffix}", media.name())).collect()
}

fn not_acceptable(place: Place, suffix: &str) -> Status {
    let message = format!("only the following media types are accepted: {}", list(place, suffix).join(", "));
    Status::new(406, "NotAcceptable", message)
}

/// The router: one of the media types must be asked for by its full name.
fn route(place: Place, req: &Request) -> Result<(), Status> {
    let Some(header) = text(&req.headers) else { return Ok(()) };
    let fits = |part: &str| {
        let media = part.split(';').next().unwrap_or_default().trim_matches([' ', '\t']);
        media == "*/*" || offered(place).any(|offer| offer.name() == media)
    };
    if header.split(',').any(fits) {
        return Ok(());
    }
    let mut all = list(place, "");
    if matches!(&*req.info.verb, "list" | "watch") {
        all.extend(list(place, ";stream=watch"));
    }
    let message = format!("406: Not Acceptable\n\nAvailable representations: {}", all.join(", "));
    let mut status = Status::new(406, "NotAcceptable", message);
    status.details = Some(Box::default());
    Err(status)
}

/// All Accept headers as one would be; none and empty are the same.
fn text(headers: &HeaderMap) -> Option<&str> {
    headers.get(ACCEPT)?.to_str().ok().filter(|text| !text.is_empty())
}

/// A part of an Accept header.
#[derive(Debug, PartialEq)]
struct Clause<'h> {
    kind: &'h str,
    subtype: &'h str,
    quality: f64,
    parameters: Vec<(&'h str, &'h str)>,
}

/// The clauses, best first; what is no clause is left out.
fn clauses(header: &str) -> Vec<Clause<'_>> {
    let mut found: Vec<Clause<'_>> = header.split(',').filter_map(clause).collect();
    let rank = |c: &Clause<'_>| (c.kind == "*", c.subtype == "*");
    found.sort_by(|a, b| b.quality.total_cmp(&a.quality).then_with(|| rank(a).cmp(&rank(b))));
    found
}

fn clause(part: &str) -> Option<Clause<'_>> {
    let mut parts = part.split(';');
    let media = parts.next()?.trim();
    let (kind, subtype) = match media.split_once('/') {
        Some((_, subtype)) if subtype.contains('/') => return None,
        Some((kind, subtype)) => (kind.trim(), subtype.trim()),
        None if media == "*" => ("*", "*"),
        None => return None,
    };
    let mut clause = Clause { kind, subtype, quality: 1.0, parameters: Vec::new() };
    for parameter in parts {
        match parameter.split_once('=') {
            Some((_, value)) if value.is_empty() || value.contains('=') => {}
            Some((name, value)) if name.trim() == "q" => clause.quality = value.parse().unwrap_or(0.0),
            Some((name, value)) => clause.parameters.push((name.trim(), value.trim())),
            None => {}
        }
    }
    Some(clause)
}

/// What a clause asks for beside the encoding.
#[derive(Debug, Clone, Copy)]
struct Found {
    media: Media,
    shape: Shape,
    pretty: bool,
}

impl Found {
    fn finish(self, headers: &HeaderMap, pretty: Option<&str>) -> Accept {
        let pretty = self.pretty || wants_pretty(headers, pretty);
        Accept { media: self.media, shape: self.shape, pretty, gzip: wants_gzip(headers) }
    }
}

fn choose(place: Place, headers: &HeaderMap) -> Option<Found> {
    let Some(header) = text(headers) else {
        return Some(Found { media: Media::Json, shape: Shape::Whole, pretty: false });
    };
    for clause in clauses(header) {
        for media in Media::ALL {
            let fits = match (clause.kind, clause.subtype) {
                ("*", "*") | ("application", "*") => true,
                (kind, subtype) => kind == "application" && subtype == media.subtype(),
            };
            if let Some(found) = fits.then(|| accept(place, media, &clause.parameters)).flatten() {
                return Some(found);
            }
        }
    }
    None
}

/// What the parameters of a clause make of an encoding; `None` when they are not to be had.
fn accept(place: Place, media: Media, parameters: &[(&str, &str)]) -> Option<Found> {
    let (mut kind, mut group, mut version) = (None, "", "");
    let mut pretty = false;
    for (name, value) in parameters {
        match *name {
            "as" => kind = Some(*value),
            "g" => (group, kind) = (value, kind.or(Some(""))),
            "v" => (version, kind) = (value, kind.or(Some(""))),
            "stream" if !value.is_empty() && (media == Media::Yaml || *value != "watch") => return None,
            // The only server version is v1; failures know none.
            "sv" if !value.is_empty() && (place == Place::Failure || *value != "v1") => return None,
            "pretty" => pretty = *value == "1",
            _ => {}
        }
    }
    let shape = match kind {
        None => {
            return offered(place).any(|m| m == media).then_some(Found { media, shape: Shape::Whole, pretty });
        }
        Some(kind) => shape(place, media, kind, group, version)?,
    };
    Some(Found { media, shape, pretty })
}

fn shape(place: Place, media: Media, kind: &str, group: &str, version: &str) -> Option<Shape> {
    let meta = match (group, version) {
        ("meta.k8s.io", "v1") => Meta::V1,
        ("meta.k8s.io", "v1beta1") => Meta::V1Beta1,
        _ => return None,
    };
    match kind {
        _ if place == Place::Failure => None,
        "Table" if media != Media::Protobuf => Some(Shape::Table(meta)),
        "PartialObjectMetadata" => Some(Shape::Metadata(meta)),
        "PartialObjectMetadataList" => Some(Shape::MetadataList(meta)),
        _ => None,
    }
}

/// Indented for people: by the parameter, or by what the client calls itself.
fn wants_pretty(headers: &HeaderMap, parameter: Option<&str>) -> bool {
    match parameter {
        Some(text) if !text.is_empty() => matches!(text, "1" | "t" | "T" | "TRUE" | "true" | "True"),
        _ => {
            let agent = headers.get(USER_AGENT).and_then(|v| v.to_str().ok()).unwrap_or_default();
            ["curl", "Wget", "Mozilla/5.0"].iter().any(|human| agent.starts_with(human))
        }
    }
}

fn wants_gzip(headers: &HeaderMap) -> bool {
    let encodings = headers.get(ACCEPT_ENCODING).and_then(|v| v.to_str().ok()).unwrap_or_default();
    encodings.split(',').any(|encoding| encoding.trim() == "gzip")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(accept: &str) -> Result<Accept, Status> {
        let mut req = Request::of("GET", "/api/v1/namespaces/x/configmaps/a");
        req.info.verb = "get".into();
        req.headers.insert(ACCEPT, accept.parse().expect("a header"));
        negotiate(api::resources::find("", "configmaps").expect("a row"), &req)
    }

    fn media(accept: &str) -> Media {
        asked(accept).unwrap_or_else(|e| panic!("{accept}: {e}")).media
    }

    #[test]
    fn quality_decides_and_then_the_order() {
        assert_eq!(media("application/json;q=0.1,application/yaml;q=0.9"), Media::Yaml);
        assert_eq!(media("application/yaml;q=0.1,application/json;q=0.9"), Media::Json);
        assert_eq!(media("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"), Media::Json);
        assert_eq!(media("application/vnd.kubernetes.protobuf,application/json"), Media::Protobuf);
        assert_eq!(media("*/*"), Media::Json);
        assert_eq!(media(""), Media::Json);
    }

    #[test]
    fn shapes_are_taken_where_they_are_to_be_had() {
        let kubectl = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;\
                       g=meta.k8s.io,application/json";
        assert_eq!(asked(kubectl).expect("a table").shape, Shape::Table(Meta::V1));
        let protobuf = "application/vnd.kubernetes.protobuf;as=Table;v=v1;g=meta.k8s.io";
        assert!(asked(protobuf).is_err(), "tables have no protobuf form");
        assert_eq!(media(&format!("{protobuf},application/json")), Media::Json, "the next clause is taken");
        let metadata = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;v=v1;g=meta.k8s.io";
        assert_eq!(asked(metadata).expect("metadata").shape, Shape::Metadata(Meta::V1));
        for bad in ["as=Nothing;v=v1;g=meta.k8s.io", "as=Table;v=v2;g=meta.k8s.io", "as=Table;v=v1;g=other", "as=Table"]
        {
            let refused = asked(&format!("application/json;{bad}")).expect_err(bad);
            assert!(refused.message.starts_with("only the following media types"), "{bad}: {}", refused.message);
        }
    }

    #[test]
    fn the_router_knows_full_names_only() {
        for bad in ["text/plain", "application/*", "garbage", ";;;", "application/cbor"] {
            let refused = asked(bad).expect_err(bad);
            assert!(refused.message.starts_with("406: Not Acceptable\n\nAvailable"), "{bad}: {}", refused.message);
            assert!(!refused.message.contains("stream"), "{bad}");
        }
    }

    #[test]
    fn a_stream_of_something_else_is_refused_and_yaml_has_none() {
        let row = api::resources::find("", "configmaps").expect("a row");
        let mut req = Request::of("GET", "/api/v1/configmaps");
        req.info.verb = "watch".into();
        let mut of = |accept: &str| {
            req.headers.insert(ACCEPT, accept.parse().expect("a header"));
            negotiate_watch(row, &req).map_err(|e| e.message)
        };
        assert_eq!(of("application/json;stream=watch").expect("JSON").media, Media::Json);
        let yaml = of("application/yaml").expect_err("no stream");
        assert!(yaml.ends_with("application/json;stream=watch, application/vnd.kubernetes.protobuf;stream=watch"));
        assert!(of("application/json;stream=other").expect_err("no such stream").ends_with("kubernetes.protobuf"));
        assert!(of("text/plain").expect_err("no such type").contains(", application/json;stream=watch"));
    }

    #[test]
    fn people_get_indented_answers() {
        let with = |agent: &str, parameter: Option<&str>| {
            let mut headers = HeaderMap::new();
            headers.insert(USER_AGENT, agent.parse().expect("a header"));
            wants_pretty(&headers, parameter)
        };
        assert!(with("curl/8.0", None) && !with("kubectl/v1.36.0", None));
        assert!(with("kubectl", Some("true")) && !with("curl/8.0", Some("0")));
    }
}

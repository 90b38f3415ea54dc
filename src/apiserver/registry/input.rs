//! Bodies of requests: which encoding, which kind, which fields nobody knows.

use api::Value;
use api::codec::json::Strictness;
use api::codec::{json, proto, yaml};
use api::schema::{Facts, Type};
use api::status::Status;

use super::options::Validation;
use super::{object, warn};
use crate::request::Request;

/// The kind of object that a request expects in its body.
#[derive(Clone, Copy, Debug)]
pub struct Expected<'a> {
    /// Facts that hold the type.
    pub facts: &'a Facts,
    /// API group, empty for core.
    pub group: &'a str,
    /// Version.
    pub version: &'a str,
    /// Kind.
    pub kind: &'a str,
    /// The group in which upstream holds such objects internally (that of the stored form).
    pub internal_group: &'a str,
    /// Other `apiVersion`s that are taken for the same.
    pub also: &'a [&'a str],
}

impl Expected<'_> {
    /// `v1` or `apps/v1`.
    pub fn api_version(&self) -> String {
        join(self.group, self.version)
    }
}

fn join(group: &str, version: &str) -> String {
    if group.is_empty() { version.to_string() } else { format!("{group}/{version}") }
}

/// How a body is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// JSON, also when nothing is said.
    Json,
    /// YAML.
    Yaml,
    /// Kubernetes' protobuf.
    Protobuf,
}

/// The encoding that the Content-Type header names.
///
/// # Errors
/// 415 when it is none of those.
pub fn encoding(req: &Request) -> Result<Encoding, Status> {
    let header = req.headers.get(http::header::CONTENT_TYPE).map_or("", |h| h.to_str().unwrap_or("?"));
    match media_type(header).as_str() {
        "" | "application/json" => Ok(Encoding::Json),
        "application/yaml" => Ok(Encoding::Yaml),
        "application/vnd.kubernetes.protobuf" => Ok(Encoding::Protobuf),
        _ => Err(Status::new(
            415,
            "UnsupportedMediaType",
            "the body of the request was in an unknown format - accepted media types include: application/json, \
             application/yaml, application/vnd.kubernetes.protobuf",
        )),
    }
}

/// A media type without its parameters, in lower case.
pub fn media_type(header: &str) -> String {
    header.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

/// Decodes the body of a create or update into a normalized object of the expected kind. What the fields' validation
/// has to say goes into the request's warnings.
///
/// # Errors
/// 400 and 415 in upstream's words.
pub fn decode(req: &mut Request, expected: &Expected<'_>, validation: Validation) -> Result<Value, Status> {
    let encoding = encoding(req)?;
    let body = req.body.clone();
    let decoded = match encoding {
        Encoding::Protobuf => decode_protobuf(&body, expected),
        Encoding::Json => decode_json(&body, expected),
        Encoding::Yaml => decode_yaml(&body, expected),
    };
    let Decoded { mut object, api_version, noted } = decoded.map_err(|e| e.status(expected.kind, &body))?;
    if !noted.problems.is_empty() {
        match validation {
            Validation::Ignore => {}
            Validation::Warn => noted.problems.iter().flat_map(|p| lines(p)).for_each(|p| warn(&mut req.warnings, p)),
            Validation::Strict => {
                let (_, version) = api_version.rsplit_once('/').unwrap_or(("", &api_version));
                let why = strict_error(&noted);
                return Err(Status::bad_request(format!(
                    "{} in version \"{version}\" cannot be handled as a {}: {why}",
                    expected.kind, expected.kind
                )));
            }
        }
    }
    if api_version != expected.api_version() && !expected.also.contains(&api_version.as_str()) {
        return Err(Status::bad_request(format!(
            "the API version in the data ({api_version}) does not match the expected API version ({})",
            expected.api_version()
        )));
    }
    object["apiVersion"] = expected.api_version().into();
    object["kind"] = expected.kind.into();
    Ok(object)
}

/// What a strict decoder says of what it noticed.
pub fn strict_error(noted: &Strictness) -> String {
    format!("strict decoding error: {}", noted.problems.join(", "))
}

/// The warnings that one problem makes: YAML reports several in one text.
pub fn lines(problem: &str) -> impl Iterator<Item = String> + '_ {
    let rest = problem
        .strip_prefix("yaml: unmarshal errors:\n")
        .or_else(|| problem.strip_prefix("error converting YAML to JSON: yaml: unmarshal errors:\n"));
    rest.unwrap_or(problem).split('\n').map(|line| line.trim().to_string())
}

struct Decoded {
    object: Value,
    api_version: String,
    noted: Strictness,
}

/// Why a body is no such object.
enum Failure {
    /// The kind could not even be read.
    Unrecognized(String),
    /// It says that it is of this version and kind, but.
    Misfit { version: String, kind: String, why: String },
}

impl Failure {
    fn status(self, expected: &str, body: &[u8]) -> Status {
        Status::bad_request(match self {
            Failure::Unrecognized(why) => {
                let summary = summary(body);
                format!("the object provided is unrecognized (must be of type {expected}): {why} ({summary})")
            }
            Failure::Misfit { version, kind, why } => {
                format!("{kind} in version \"{version}\" cannot be handled as a {expected}: {why}")
            }
        })
    }
}

/// The beginning of a body, as text where it looks like JSON, else in hexadecimal.
fn summary(body: &[u8]) -> String {
    let (head, more) = if body.len() > 30 { (&body[..30], " ...") } else { (body, "") };
    match body.first() {
        None => "<empty>".into(),
        Some(b'{') => format!("{}{more}", String::from_utf8_lossy(head)),
        Some(_) => format!("{}{more}", head.iter().map(|b| format!("{b:02x}")).collect::<String>()),
    }
}

fn split(api_version: &str) -> Result<(&str, &str), String> {
    match api_version.matches('/').count() {
        0 => Ok(("", api_version)),
        1 => Ok(api_version.split_once('/').unwrap_or_default()),
        _ => Err(format!("unexpected GroupVersion string: {api_version}")),
    }
}

/// Group, version and kind of a body, with what it does not say taken from what is expected.
struct Gvk {
    group: String,
    version: String,
    kind: String,
}

impl Gvk {
    fn read(body: &[u8], expected: &Expected<'_>) -> Result<Self, Failure> {
        let meta = json::type_meta(body).map_err(|e| Failure::Unrecognized(e.message))?;
        Self::of(&meta.api_version, &meta.kind, expected)
    }

    fn of(api_version: &str, kind: &str, expected: &Expected<'_>) -> Result<Self, Failure> {
        let (group, version) = split(api_version).map_err(Failure::Unrecognized)?;
        let (group, version, kind) = with_defaults(group, version, kind, expected);
        Ok(Self { group, version, kind })
    }

    fn misfit(&self, why: String) -> Failure {
        Failure::Misfit { version: self.version.clone(), kind: self.kind.clone(), why }
    }

    /// The type of that kind.
    fn find<'a>(&self, expected: &Expected<'a>) -> Result<&'a Type, Failure> {
        let Gvk { group, version, kind } = self;
        let same = kind == expected.kind && expected.also.contains(&join(group, version).as_str());
        let (group, version) = if same { (expected.group, expected.version) } else { (&**group, &**version) };
        let found = expected.facts.kind(group, version, kind);
        found.ok_or_else(|| self.misfit(not_registered(group, version, kind, "pkg/api/legacyscheme/scheme.go:30")))
    }

    /// Makes the outcome, where the kind is the expected one.
    fn outcome(self, expected: &Expected<'_>, object: Value, noted: Strictness) -> Result<Decoded, Failure> {
        fits(expected, &self.group, &self.version, &self.kind).map_err(|why| self.misfit(why))?;
        Ok(Decoded { object, api_version: join(&self.group, &self.version), noted })
    }
}

fn decode_json(body: &[u8], expected: &Expected<'_>) -> Result<Decoded, Failure> {
    let gvk = Gvk::read(body, expected)?;
    let (object, noted) = json::decode(expected.facts, gvk.find(expected)?, body).map_err(|e| gvk.misfit(e.message))?;
    gvk.outcome(expected, object, noted)
}

/// YAML becomes JSON first; what stands there twice in the YAML is noticed before anything else.
fn decode_yaml(body: &[u8], expected: &Expected<'_>) -> Result<Decoded, Failure> {
    let (value, mut noted) = yaml::parse(body).map_err(|e| Failure::Unrecognized(e.message))?;
    let mut text = Vec::with_capacity(body.len());
    json::encode_any(&value, &mut text);
    let gvk = Gvk::read(&text, expected)?;
    let (object, more) = json::decode(expected.facts, gvk.find(expected)?, &text).map_err(|e| gvk.misfit(e.message))?;
    noted.problems.extend(more.problems);
    gvk.outcome(expected, object, noted)
}

fn with_defaults(group: &str, version: &str, kind: &str, expected: &Expected<'_>) -> (String, String, String) {
    let kind = if kind.is_empty() { expected.kind } else { kind };
    let (group, version) = match (group, version) {
        ("", "") => (expected.group, expected.version),
        (group, "") if group == expected.group => (group, expected.version),
        found => found,
    };
    (group.to_string(), version.to_string(), kind.to_string())
}

/// What upstream says of a kind that its table of kinds does not have.
pub fn not_registered(group: &str, version: &str, kind: &str, scheme: &str) -> String {
    format!("no kind \"{kind}\" is registered for version \"{}\" in scheme \"{scheme}\"", join(group, version))
}

/// An object of another kind (or of the same kind in a group with other internals) can't be converted.
fn fits(expected: &Expected<'_>, group: &str, version: &str, kind: &str) -> Result<(), String> {
    let same_internals = group == expected.group
        || group == expected.internal_group
        || (expected.kind == "Event" && matches!(group, "" | "events.k8s.io"));
    if kind == expected.kind && same_internals {
        return Ok(());
    }
    let package = package(expected.internal_group);
    let wanted = expected.kind;
    Err(format!("converting ({version}.{kind}) to ({package}.{wanted}): unknown conversion"))
}

/// Go's name for the package of a group's internal types.
pub fn package(group: &str) -> &str {
    match group {
        "" => "core",
        group => group.split('.').next().unwrap_or_default(),
    }
}

fn decode_protobuf(body: &[u8], expected: &Expected<'_>) -> Result<Decoded, Failure> {
    let unknown = proto::open(body).map_err(|e| Failure::Unrecognized(e.message))?;
    let gvk = Gvk::of(&unknown.api_version, &unknown.kind, expected)?;
    let object = proto::decode(expected.facts, gvk.find(expected)?, unknown.raw).map_err(|e| gvk.misfit(e.message))?;
    gvk.outcome(expected, object, Strictness::default())
}

/// Decodes the body of a delete: DeleteOptions of any group, unknown fields dropped.
///
/// # Errors
/// 400 and 415 in upstream's words.
pub fn delete_options(req: &Request, facts: &Facts) -> Result<Value, Status> {
    let bad = |status: Status| Status::bad_request(status.message);
    let ty = facts
        .get("io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions")
        .ok_or_else(|| Status::internal("no facts about DeleteOptions"))?;
    match encoding(req)? {
        Encoding::Json => read_options(facts, ty, &req.body),
        Encoding::Yaml => {
            let (value, _) = yaml::parse(&req.body).map_err(bad)?;
            let mut text = Vec::new();
            json::encode_any(&value, &mut text);
            read_options(facts, ty, &text)
        }
        Encoding::Protobuf => {
            let unknown = proto::open(&req.body).map_err(bad)?;
            check_options_kind(&unknown.api_version, &unknown.kind)?;
            proto::decode(facts, ty, unknown.raw).map_err(bad)
        }
    }
}

fn read_options(facts: &Facts, ty: &Type, body: &[u8]) -> Result<Value, Status> {
    let bad = |status: Status| Status::bad_request(status.message);
    let meta = json::type_meta(body).map_err(bad)?;
    check_options_kind(&meta.api_version, &meta.kind)?;
    json::decode(facts, ty, body).map(|(value, _)| value).map_err(bad)
}

fn check_options_kind(api_version: &str, kind: &str) -> Result<(), Status> {
    let (group, version) = split(api_version).map_err(Status::bad_request)?;
    if matches!(kind, "" | "DeleteOptions") {
        return Ok(());
    }
    let scheme = "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme/register.go:27";
    Err(Status::bad_request(not_registered(group, version, kind, scheme)))
}

/// Checks that the object's name is the path's.
///
/// # Errors
/// 400 when they differ or the object has none.
pub fn check_name(value: &Value, name: &str) -> Result<(), Status> {
    match object::name(value) {
        "" => Err(Status::bad_request(format!(
            "the name of the object ({name} based on URL) was undeterminable: name must be provided"
        ))),
        own if own != name => Err(Status::bad_request(format!(
            "the name of the object ({own}) does not match the name on the URL ({name})"
        ))),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_summed_up_as_text_only_when_it_looks_like_json() {
        assert_eq!(summary(b""), "<empty>");
        assert_eq!(summary(b"{"), "{");
        assert_eq!(summary(b"[]"), "5b5d");
        assert_eq!(
            summary(b"{\"apiVersion\": \"a/b/c\", \"kind\": \"x\"}"),
            "{\"apiVersion\": \"a/b/c\", \"kind\" ..."
        );
    }

    #[test]
    fn yaml_problems_become_one_warning_each() {
        let lines: Vec<String> =
            lines("yaml: unmarshal errors:\n  line 4: key \"a\" already set in map\n  line 5: x").collect();
        assert_eq!(lines, ["line 4: key \"a\" already set in map", "line 5: x"]);
    }
}

//! Bodies of requests: which encoding, which kind, which fields nobody knows.

use api::codec::json::Strictness;
use api::codec::{json, proto, yaml};
use api::schema::{Facts, Type};
use api::status::Status;
use api::{Map, Value};

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
        Encoding::Json => json::parse(&body)
            .map_err(|e| format!("couldn't get version/kind; json parse error: {}", e.message))
            .map_err(Failure::Unrecognized)
            .and_then(|(value, noted)| decode_tree(value, noted, expected)),
        Encoding::Yaml => yaml::parse(&body)
            .map_err(|e| Failure::Unrecognized(e.message))
            .and_then(|(value, noted)| decode_tree(value, noted, expected)),
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

/// Go's name for the type of a JSON value.
fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Reads `apiVersion` and `kind` as upstream does: in any case of letters.
fn type_of(value: &Value) -> Result<(String, String), String> {
    let refuse = |why: String| format!("couldn't get version/kind; json parse error: json: cannot unmarshal {why}");
    let map = match value {
        Value::Null => return Ok((String::new(), String::new())),
        Value::Object(map) => map,
        other => {
            return Err(refuse(format!(
                "{} into Go value of type struct {{ APIVersion string \"json:\\\"apiVersion,omitempty\\\"\"; Kind string \"json:\\\"kind,omitempty\\\"\" }}",
                go_type(other)
            )));
        }
    };
    let find = |name: &str| {
        let found = map.get(name).or_else(|| map.iter().find(|(k, _)| k.eq_ignore_ascii_case(name)).map(|(_, v)| v));
        match found {
            None | Some(Value::Null) => Ok(String::new()),
            Some(Value::String(text)) => Ok(text.clone()),
            Some(other) => Err(refuse(format!("{} into Go struct field .{name} of type string", go_type(other)))),
        }
    };
    Ok((find("apiVersion")?, find("kind")?))
}

fn split(api_version: &str) -> Result<(&str, &str), String> {
    match api_version.matches('/').count() {
        0 => Ok(("", api_version)),
        1 => Ok(api_version.split_once('/').unwrap_or_default()),
        _ => Err(format!("unexpected GroupVersion string: {api_version}")),
    }
}

fn decode_tree(mut value: Value, mut noted: Strictness, expected: &Expected<'_>) -> Result<Decoded, Failure> {
    let (api_version, kind) = type_of(&value).map_err(Failure::Unrecognized)?;
    let (group, version) = split(&api_version).map_err(Failure::Unrecognized)?;
    let (group, version, kind) = with_defaults(group, version, &kind, expected);
    if value.is_null() {
        value = Value::Object(Map::new());
    }
    let ty = find_type(expected, &group, &version, &kind)?;
    let misfit = |why: String| Failure::Misfit { version: version.clone(), kind: kind.clone(), why };
    json::normalize(expected.facts, ty, &mut value, &mut noted).map_err(|e| misfit(e.message))?;
    fits(expected, &group, &version, &kind).map_err(misfit)?;
    Ok(Decoded { object: value, api_version: join(&group, &version), noted })
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

fn find_type<'a>(expected: &Expected<'a>, group: &str, version: &str, kind: &str) -> Result<&'a Type, Failure> {
    let same = kind == expected.kind && expected.also.contains(&join(group, version).as_str());
    let (group, version) = if same { (expected.group, expected.version) } else { (group, version) };
    expected.facts.kind(group, version, kind).ok_or_else(|| Failure::Misfit {
        version: version.to_string(),
        kind: kind.to_string(),
        why: not_registered(group, version, kind, "pkg/api/legacyscheme/scheme.go:30"),
    })
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
    let (group, version) = split(&unknown.api_version).map_err(Failure::Unrecognized)?;
    let (group, version, kind) = with_defaults(group, version, &unknown.kind, expected);
    let ty = find_type(expected, &group, &version, &kind)?;
    let misfit = |why: String| Failure::Misfit { version: version.clone(), kind: kind.clone(), why };
    let object = proto::decode(expected.facts, ty, unknown.raw).map_err(|e| misfit(e.message))?;
    fits(expected, &group, &version, &kind).map_err(misfit)?;
    Ok(Decoded { object, api_version: join(&group, &version), noted: Strictness::default() })
}

/// Decodes the body of a delete: DeleteOptions of any group, unknown fields dropped.
///
/// # Errors
/// 400 and 415 in upstream's words.
pub fn delete_options(req: &Request, facts: &Facts) -> Result<Value, Status> {
    let encoding = encoding(req)?;
    let bad = |why: String| Status::bad_request(why);
    let (value, protobuf) = match encoding {
        Encoding::Json => {
            let parsed = json::parse(&req.body)
                .map_err(|e| bad(format!("couldn't get version/kind; json parse error: {}", e.message)))?;
            (parsed.0, None)
        }
        Encoding::Yaml => (yaml::parse(&req.body).map_err(|e| bad(e.message))?.0, None),
        Encoding::Protobuf => {
            let unknown = proto::open(&req.body).map_err(|e| bad(e.message))?;
            let head = Map::from_iter([
                ("apiVersion".into(), unknown.api_version.clone().into()),
                ("kind".into(), unknown.kind.clone().into()),
            ]);
            (head.into(), Some(unknown))
        }
    };
    let (api_version, kind) = type_of(&value).map_err(bad)?;
    let (group, version) = split(&api_version).map_err(bad)?;
    if !matches!(kind.as_str(), "" | "DeleteOptions") {
        let scheme = "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme/register.go:27";
        return Err(bad(not_registered(group, version, &kind, scheme)));
    }
    let ty = facts
        .get("io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions")
        .ok_or_else(|| Status::internal("no facts about DeleteOptions"))?;
    match protobuf {
        Some(unknown) => proto::decode(facts, ty, unknown.raw).map_err(|e| bad(e.message)),
        None => {
            let mut value = if value.is_null() { Value::Object(Map::new()) } else { value };
            json::normalize(facts, ty, &mut value, &mut Strictness::default()).map_err(|e| bad(e.message))?;
            Ok(value)
        }
    }
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
    fn kinds_are_read_in_any_case_of_letters() {
        let value = serde_json::json!({"APIVERSION": "v1", "KIND": "ConfigMap"});
        assert_eq!(type_of(&value).unwrap(), ("v1".to_string(), "ConfigMap".to_string()));
    }

    #[test]
    fn yaml_problems_become_one_warning_each() {
        let lines: Vec<String> =
            lines("yaml: unmarshal errors:\n  line 4: key \"a\" already set in map\n  line 5: x").collect();
        assert_eq!(lines, ["line 4: key \"a\" already set in map", "line 5: x"]);
    }
}

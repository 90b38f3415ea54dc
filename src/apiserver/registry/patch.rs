//! Patch and apply, for all resources.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::codec::json::Strictness;
use api::codec::{json, yaml};
use api::field::{Error, Errors, Path};
use api::resources::Row;
use api::schema::Type;
use api::status::{Of, Status};
use api::{Map, Value, patch};
use serde_json::value::RawValue;

use super::engine::{self, Edited, Terms, Write};
use super::input::{check_name, lines, media_type, not_registered, package, strict_error};
use super::options::{Kind, Options, Validation};
use super::{api_version, facts, object, output, write};
use crate::Api;
use crate::request::{Answer, Request};

/// A kind of patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// RFC 6902.
    Json,
    /// RFC 7386.
    Merge,
    /// Strategic merge patch.
    Strategic,
    /// Server-side apply.
    Apply,
}

/// The kind of patch that the Content-Type header names.
///
/// # Errors
/// 415 when it is none that the resource has.
pub fn method(req: &Request) -> Result<Method, Status> {
    let header = req.headers.get(http::header::CONTENT_TYPE).map_or("", |h| h.to_str().unwrap_or("?"));
    match media_type(header).as_str() {
        "application/json-patch+json" => Ok(Method::Json),
        "application/merge-patch+json" => Ok(Method::Merge),
        "application/strategic-merge-patch+json" => Ok(Method::Strategic),
        "application/apply-patch+yaml" => Ok(Method::Apply),
        _ => {
            let mut status = Status::new(415, "UnsupportedMediaType", "415: Unsupported Media Type");
            status.details = Some(Box::default());
            Err(status)
        }
    }
}

/// Answers `PATCH` to an object or to a subresource that has the object's own kind; the content type says which kind of
/// patch it is.
///
/// # Errors
/// Whatever upstream answers.
pub async fn patch(api: &Arc<Api>, row: &Arc<Row>, req: &mut Request) -> Result<Answer, Status> {
    let method = method(req)?;
    let accept = output::negotiate(row, req)?;
    let options = Options::read(req, Kind::Patch(method == Method::Apply))?;
    let body = req.body.clone();
    let terms = Terms { create: method == Method::Apply && req.info.subresource.is_empty(), uid: None };
    let written = write::with(api, row, req, &options, async |w| {
        let version = row.version(w.version);
        let ty = version
            .and_then(|v| facts(row).get(&v.schema))
            .ok_or_else(|| Status::internal(format!("no facts about {}", row.kind)))?;
        let target = Target {
            ty,
            api_version: api_version(&row.group, w.version),
            kind: row.kind.to_string(),
            internal_group: row.stored_group.to_string(),
        };
        let reset = patch::apply::Reset::of(row, w.subresource);
        let patcher = Patcher { w: &w, method, body: &body, target: &target, reset };
        engine::update(&w, terms, &|live: Option<&Value>| patcher.edit(live)).await
    })
    .await?;
    write::answer(api, row, req, &accept, written)
}

/// What a patch is applied to.
pub struct Target<'a> {
    /// The type of the object in the version of the request.
    pub ty: &'a Type,
    /// Its `apiVersion`.
    pub api_version: String,
    /// Its kind.
    pub kind: String,
    /// The group in which upstream holds such objects internally.
    pub internal_group: String,
}

/// A patch as an edit.
pub struct Patcher<'a> {
    /// The write it belongs to.
    pub w: &'a Write<'a>,
    /// Kind of patch.
    pub method: Method,
    /// The patch.
    pub body: &'a [u8],
    /// What it is applied to.
    pub target: &'a Target<'a>,
    /// Fields that may not be owned through this (sub)resource.
    pub reset: patch::apply::Reset<'a>,
}

impl Patcher<'_> {
    /// Applies the patch and checks that the object is still the one of the path.
    ///
    /// # Errors
    /// Whatever upstream answers.
    pub fn edit(&self, live: Option<&Value>) -> Result<Edited, Status> {
        let mut object = match (live, self.method) {
            (_, Method::Apply) => self.apply(live)?,
            (Some(live), Method::Json) => self.json(live)?,
            (Some(live), Method::Merge) => self.merge(live)?,
            (Some(live), Method::Strategic) => self.strategic(live)?,
            (None, _) => return Err(Status::not_found(self.w.row.group_resource(), self.w.name)),
        };
        let uid = object::uid(&object);
        if live.is_none() && !uid.is_empty() {
            let why =
                format!("uid mismatch: the provided object specified uid {uid}, and no existing object was found");
            return Err(Status::conflict(self.w.row.group_resource(), self.w.name, why));
        }
        api::meta::match_namespace(&mut object, self.w.namespace)?;
        check_name(&object, self.w.name)?;
        Ok(Edited { object, tracked: self.method == Method::Apply })
    }

    fn strict(&self) -> bool {
        self.w.options.validation != Validation::Ignore
    }

    fn json(&self, live: &Value) -> Result<Value, Status> {
        let mut noted = Strictness::default();
        if self.strict() {
            noted = json::parse(self.body).map(|(patch, noted)| json_patch_problems(&patch, noted)).unwrap_or_default();
        }
        let patched = patch::json::apply(live, self.body, self.strict())?;
        self.accept(live, patched, noted)
    }

    fn merge(&self, live: &Value) -> Result<Value, Status> {
        let bad = |why: &str| Status::bad_request(why);
        let (patch, noted) = json::parse(self.body).map_err(|e| {
            if self.strict() { bad(&format!("error decoding patch: {}", e.message)) } else { bad("Invalid JSON Patch") }
        })?;
        match &patch {
            Value::Object(_) => {}
            Value::Null => return Err(bad("Invalid JSON Patch")),
            _ if !self.strict() => return Err(bad("Invalid JSON Patch")),
            other => return Err(bad(&format!("error decoding patch: {}", no_map(other)))),
        }
        let mut patched = live.clone();
        patch::merge::apply(&mut patched, patch);
        self.accept(live, patched, noted)
    }

    /// Decodes the outcome of a JSON or merge patch as a body would be decoded.
    fn accept(&self, live: &Value, mut patched: Value, mut noted: Strictness) -> Result<Value, Status> {
        let text = |patched: &Value| patched_text(&self.encoded(live), patched);
        let refuse = |patched: &Value, why: String| Err(invalid_patch(text(patched), why));
        let shown = patched.clone();
        if !patched.is_object() {
            let why = format!("couldn't get version/kind; json parse error: {}", no_map(&patched));
            return refuse(&shown, why);
        }
        if let Some(why) = self.foreign(&mut patched, &mut noted) {
            return refuse(&shown, why);
        }
        let (object, more) = match json::redecode(facts(self.w.row), self.target.ty, &patched) {
            Ok(decoded) => decoded,
            Err(e) => return refuse(&shown, e.message),
        };
        noted.problems.extend(more.problems);
        self.report(noted, || text(&shown))?;
        let mut object = object;
        object["apiVersion"] = self.target.api_version.as_str().into();
        object["kind"] = self.target.kind.as_str().into();
        if shown.pointer("/metadata/managedFields").and_then(Value::as_array).is_some_and(Vec::is_empty) {
            // An empty list says that nobody owns anything.
            object::set_meta(&mut object, "managedFields", Vec::<Value>::new());
        }
        Ok(object)
    }

    /// What upstream's decoder makes of an object whose type the patch has changed. Without a version it decodes the
    /// internal form, which has no JSON names: every field is unknown.
    fn foreign(&self, patched: &mut Value, noted: &mut Strictness) -> Option<String> {
        let (version, kind) = (object::text(patched, &["apiVersion"]), object::text(patched, &["kind"]));
        if version.is_empty() {
            let fields = patched.as_object().into_iter().flat_map(Map::keys);
            let unknown = fields.filter(|k| !matches!(k.as_str(), "apiVersion" | "kind"));
            noted.problems.extend(unknown.map(|k| format!("unknown field \"{k}\"")));
            *patched = Value::Object(Map::new());
            return None;
        }
        if version == self.target.api_version && (kind == self.target.kind || kind.is_empty()) {
            return None;
        }
        let (group, number) = version.split_once('/').unwrap_or(("", version));
        let Some(ty) = facts(self.w.row).kind(group, number, kind) else {
            return Some(not_registered(group, number, kind, "pkg/api/legacyscheme/scheme.go:30"));
        };
        let decoded = json::redecode(facts(self.w.row), ty, patched);
        let package = package(&self.target.internal_group);
        let wanted = &self.target.kind;
        Some(match decoded {
            Err(e) => e.message,
            Ok(_) => format!("converting ({number}.{kind}) to ({package}.{wanted}): unknown conversion"),
        })
    }

    /// Turns what was noticed into warnings or, where the client wants that, into a refusal.
    fn report(&self, noted: Strictness, shown: impl Fn() -> String) -> Result<(), Status> {
        match self.w.options.validation {
            _ if noted.problems.is_empty() => Ok(()),
            Validation::Ignore => Ok(()),
            Validation::Warn => {
                noted.problems.iter().flat_map(|p| lines(p)).for_each(|line| self.w.warn(line));
                Ok(())
            }
            Validation::Strict => Err(invalid_patch(shown(), strict_error(&noted))),
        }
    }

    fn encoded(&self, live: &Value) -> String {
        let mut out = Vec::new();
        json::encode(facts(self.w.row), self.target.ty, live, &mut out);
        String::from_utf8(out).unwrap_or_default()
    }

    fn strategic(&self, live: &Value) -> Result<Value, Status> {
        let bad = |why: String| Status::bad_request(why);
        let (patch, mut noted) = json::parse(self.body).map_err(|e| bad(e.message))?;
        let patch = match patch {
            Value::Object(_) => patch,
            Value::Null => Value::Object(Map::new()),
            other => return Err(bad(no_map(&other))),
        };
        let mut patched = patch::strategic::apply(facts(self.w.row), self.target.ty, live, &patch)?;
        if let Err(e) = json::normalize(facts(self.w.row), self.target.ty, &mut patched, &mut noted) {
            return Err(invalid_patch(go_map(&patch), e.message));
        }
        self.report(noted, || go_map(&patch))?;
        Ok(patched)
    }

    fn apply(&self, live: Option<&Value>) -> Result<Value, Status> {
        let (config, noted) = yaml::parse(self.body)
            .map_err(|e| Status::bad_request(format!("error decoding YAML: {}", yaml_json(&e.message))))?;
        let now = object::time(object::now());
        let facts = facts(self.w.row);
        let tracker = patch::apply::Tracker {
            facts,
            ty: self.target.ty,
            versions: &patch::apply::RowVersions { row: self.w.row, facts },
            writer: patch::apply::Writer {
                manager: self.w.manager,
                api_version: &self.target.api_version,
                kind: &self.target.kind,
                subresource: self.w.subresource,
                now: &now,
            },
            reset: self.reset,
        };
        let mut merged = tracker.apply(live, &config, self.w.options.force.unwrap_or_default())?;
        // What is merged is a tree as the configuration has it, not yet an object as the decoder leaves it.
        json::normalize(facts, self.target.ty, &mut merged, &mut Strictness::default()).map_err(|e| {
            let name = format!("{}/{}", self.w.namespace, self.w.name);
            let (group, version) = self.target.api_version.split_once('/').unwrap_or(("", &self.target.api_version));
            let gvk = format!("{group}/{version}, Kind={}", self.target.kind);
            let why = &e.message;
            Status::new(500, "", format!("failed to convert new object ({name}; {gvk}) to proper version: {why}"))
        })?;
        if self.strict() && !noted.problems.is_empty() {
            let why = noted.problems.join("\n");
            if self.w.options.validation == Validation::Strict {
                return Err(Status::bad_request(format!("error strict decoding YAML: {why}")));
            }
            lines(&why).for_each(|line| self.w.warn(line));
        }
        Ok(merged)
    }
}

/// YAML is read through JSON by upstream, which says so.
fn yaml_json(why: &str) -> String {
    if why.starts_with("yaml:") { format!("error converting YAML to JSON: {why}") } else { why.to_string() }
}

fn no_map(value: &Value) -> String {
    let found = match value {
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        _ => "array",
    };
    format!("json: cannot unmarshal {found} into Go value of type map[string]interface {{}}")
}

/// What a strict reader of a JSON patch notices: members that stand there twice or that no operation has.
fn json_patch_problems(patch: &Value, noted: Strictness) -> Strictness {
    let mut problems: Vec<String> = noted.problems.iter().map(|p| format!("json patch {p}")).collect();
    for (i, operation) in patch.as_array().into_iter().flatten().enumerate() {
        let members = operation.as_object().into_iter().flat_map(Map::keys);
        let unknown = members.filter(|k| !matches!(k.as_str(), "op" | "path" | "from" | "value"));
        problems.extend(unknown.map(|k| format!("json patch unknown field \"[{i}].{k}\"")));
    }
    Strictness { problems }
}

fn invalid_patch(shown: String, why: String) -> Status {
    let errors = Errors(vec![Error::invalid(&Path::new("patch"), shown, why)]);
    Status::invalid(Of { group: "", name: "" }, "", errors)
}

/// Go's `%+v` of a decoded JSON value.
fn go_map(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".into(),
        Value::String(s) => s.clone(),
        Value::Array(items) => format!("[{}]", items.iter().map(go_map).collect::<Vec<_>>().join(" ")),
        Value::Object(map) => {
            let fields: Vec<String> = map.iter().map(|(k, v)| format!("{k}:{}", go_map(v))).collect();
            format!("map[{}]", fields.join(" "))
        }
        other => other.to_string(),
    }
}

/// A patched object as upstream's patch library prints it: what the patch touched with sorted keys, the rest as it was.
fn patched_text(live: &str, patched: &Value) -> String {
    let mut out = String::new();
    write_patched(Some(live), patched, &mut out);
    out
}

fn write_patched(live: Option<&str>, patched: &Value, out: &mut String) {
    let before = live.and_then(|text| serde_json::from_str::<Value>(text).ok());
    match (live, &before, patched) {
        (Some(text), Some(before), now) if before == now => out.push_str(text),
        (Some(text), Some(Value::Object(_)), Value::Object(map)) => {
            let raw: BTreeMap<String, &RawValue> = serde_json::from_str(text).unwrap_or_default();
            out.push('{');
            for (i, (key, value)) in map.iter().enumerate() {
                let separator = if i == 0 { "" } else { "," };
                out.push_str(separator);
                out.push_str(&Value::from(key.as_str()).to_string());
                out.push(':');
                write_patched(raw.get(key).map(|r| r.get()), value, out);
            }
            out.push('}');
        }
        (Some(text), Some(Value::Array(_)), Value::Array(items)) => {
            let raw: Vec<&RawValue> = serde_json::from_str(text).unwrap_or_default();
            out.push('[');
            for (i, value) in items.iter().enumerate() {
                out.push_str(if i == 0 { "" } else { "," });
                write_patched(raw.get(i).map(|r| r.get()), value, out);
            }
            out.push(']');
        }
        _ => out.push_str(&patched.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_a_patch_did_not_touch_is_printed_as_it_was() {
        let live = r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"uid":"u","name":"a"},"data":{"b":"1"}}"#;
        let patched =
            json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "a", "uid": "u"}, "data": []});
        let want = r#"{"apiVersion":"v1","data":[],"kind":"ConfigMap","metadata":{"uid":"u","name":"a"}}"#;
        assert_eq!(patched_text(live, &patched), want);
    }

    #[test]
    fn a_strategic_patch_is_shown_as_go_prints_maps() {
        assert_eq!(go_map(&json!({"unknown": 1, "metadata": {"nope": 1}})), "map[metadata:map[nope:1] unknown:1]");
        assert_eq!(go_map(&json!({"spec": []})), "map[spec:[]]");
    }

    #[test]
    fn a_json_patch_with_members_that_nobody_knows_is_noticed() {
        let patch = json!([{"op": "add", "path": "/a", "value": 1, "extra": 1}]);
        let noted = Strictness { problems: vec!["duplicate field \"[0].op\"".into()] };
        let want = ["json patch duplicate field \"[0].op\"", "json patch unknown field \"[0].extra\""];
        assert_eq!(json_patch_problems(&patch, noted).problems, want);
    }
}

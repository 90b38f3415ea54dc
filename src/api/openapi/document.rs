//! The documents as JSON, written piece by piece.

use std::collections::BTreeMap;

use base64::Engine as _;
use serde_json::json;

use super::paths::{Content, Operation, Parameter, Path, Place, for_group, for_version, other};
use super::schemas::{Schemas, closure, meta};
use super::texts::Texts;
use super::{Api, Flavor};
use crate::codec::json::encode_any;
use crate::schema::builtin;
use crate::{Map, Value};

const TITLE: &str = "Kubernetes";
const VERSION: &str = "unversioned";

/// The pieces of the v2 document.
pub(super) struct V2<'a> {
    pub(super) schemas: Schemas<'a>,
    /// Names of all definitions, sorted.
    pub(super) names: Vec<String>,
    pub(super) paths: Vec<Path>,
    /// Shared parameters, by the name under which they are referred to.
    pub(super) parameters: BTreeMap<String, Value>,
}

impl<'a> V2<'a> {
    pub(super) fn new(api: Api<'a>) -> Self {
        let facts = builtin();
        let texts = Texts::of(facts.types().filter(|ty| ty.object).map(|ty| &*ty.name));
        let mut paths = other();
        for group in api.groups {
            paths.extend(for_group(group));
            for version in &group.versions {
                paths.extend(for_version(facts, &texts, group, version));
            }
        }
        paths.push(super::paths::groups());
        paths.sort_by(|a, b| a.path.cmp(&b.path));
        let names = closure(api, paths.iter().flat_map(Path::types)).into_iter().collect();
        let mut parameters = BTreeMap::new();
        for parameter in paths.iter().flat_map(Path::parameters).filter(|p| p.is_shared()) {
            let value = parameter_v2(parameter);
            parameters.entry(shared_name(&value)).or_insert(value);
        }
        for body in ["DeleteOptions", "Patch"].map(|kind| body_parameter(&meta(kind), kind == "Patch")) {
            parameters.insert(shared_name(&body), body);
        }
        let schemas = Schemas { facts, api, flavor: Flavor::V2, texts, home: Default::default() };
        Self { schemas, names, paths, parameters }
    }

    pub(super) fn security_definitions() -> Value {
        json!({"BearerToken": token_security()})
    }

    pub(super) fn info() -> Value {
        json!({"title": TITLE, "version": VERSION})
    }
}

fn token_security() -> Value {
    json!({"description": "Bearer Token authentication", "in": "header", "name": "authorization", "type": "apiKey"})
}

pub(super) fn v2(api: Api<'_>) -> Vec<u8> {
    let document = V2::new(api);
    let mut out = Vec::with_capacity(4 << 20);
    out.extend_from_slice(b"{\"swagger\":\"2.0\",\"info\":");
    encode_any(&V2::info(), &mut out);
    out.extend_from_slice(b",\"paths\":{");
    entries(&mut out, document.paths.iter().map(|path| (path.path.as_str(), path_v2(path))));
    out.extend_from_slice(b"},\"definitions\":{");
    entries(&mut out, document.names.iter().map(|name| (name.as_str(), document.schemas.definition(name))));
    out.extend_from_slice(b"},\"parameters\":{");
    entries(&mut out, document.parameters.iter().map(|(name, value)| (name.as_str(), value.clone())));
    out.extend_from_slice(b"},\"securityDefinitions\":");
    encode_any(&V2::security_definitions(), &mut out);
    out.extend_from_slice(b",\"security\":[{\"BearerToken\":[]}]}");
    out.shrink_to_fit();
    out
}

/// Writes the entries of an object one by one.
fn entries<'a>(out: &mut Vec<u8>, entries: impl Iterator<Item = (&'a str, Value)>) {
    for (i, (name, value)) in entries.enumerate() {
        if i > 0 {
            out.push(b',');
        }
        encode_any(&name.into(), out);
        out.push(b':');
        encode_any(&value, out);
    }
}

/// A shared parameter's name: its own and a hash of all that it says.
fn shared_name(parameter: &Value) -> String {
    let mut text = Vec::new();
    encode_any(parameter, &mut text);
    let hash = text
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| hash.wrapping_mul(0x0100_0000_01b3) ^ u64::from(*byte));
    let hash = base64::engine::general_purpose::URL_SAFE.encode(&hash.to_be_bytes()[..6]);
    format!("{}-{hash}", parameter["name"].as_str().unwrap_or_default())
}

fn body_parameter(schema: &str, required: bool) -> Value {
    let mut body = json!({"in": "body", "name": "body", "schema": {"$ref": Flavor::V2.reference(schema)}});
    if required {
        body["required"] = true.into();
    }
    body
}

fn parameter_v2(parameter: &Parameter) -> Value {
    let mut value = json!({
        "description": parameter.text, "in": parameter.place.name(), "name": parameter.name, "type": parameter.kind,
        "uniqueItems": true,
    });
    if parameter.place == Place::Path {
        value["required"] = true.into();
    }
    value
}

/// A parameter, or the reference to a shared one.
fn parameter_or_reference(parameter: &Parameter) -> Value {
    let value = parameter_v2(parameter);
    if parameter.is_shared() { json!({"$ref": format!("#/parameters/{}", shared_name(&value))}) } else { value }
}

pub(super) fn path_v2(path: &Path) -> Value {
    let mut item = Map::new();
    if !path.common.is_empty() {
        let common: Vec<Value> = path.common.iter().map(parameter_or_reference).collect();
        item.insert("parameters".into(), common.into());
    }
    for operation in &path.operations {
        item.insert(operation.method.into(), operation_v2(operation));
    }
    item.into()
}

fn operation_v2(operation: &Operation) -> Value {
    let mut value = operation_head(operation);
    value["schemes"] = json!(["https"]);
    if !operation.consumes.is_empty() {
        value["consumes"] = json!(operation.consumes);
    }
    if !operation.produces.is_empty() {
        value["produces"] = json!(operation.produces);
    }
    let mut parameters = Vec::new();
    if let Some(body) = &operation.body {
        let parameter = body_parameter(&body.schema, body.required);
        let shared = body.schema.starts_with("io.k8s.apimachinery");
        parameters.push(if shared {
            json!({"$ref": format!("#/parameters/{}", shared_name(&parameter))})
        } else {
            parameter
        });
    }
    parameters.extend(operation.parameters.iter().map(parameter_or_reference));
    if !parameters.is_empty() {
        value["parameters"] = parameters.into();
    }
    let mut responses = Map::new();
    for (code, text, content) in &operation.responses {
        let mut response = json!({"description": text});
        if let Some(schema) = content_schema(content, Flavor::V2) {
            response["schema"] = schema;
        }
        responses.insert(code.to_string(), response);
    }
    value["responses"] = responses.into();
    value
}

fn operation_head(operation: &Operation) -> Value {
    let mut value = json!({"operationId": operation.id, "tags": [operation.tag], "description": operation.text});
    if let Some(action) = operation.action {
        let (group, version, kind) = &operation.gvk;
        value["x-kubernetes-action"] = action.into();
        value["x-kubernetes-group-version-kind"] = json!({"group": group, "kind": kind, "version": version});
    }
    value
}

fn content_schema(content: &Content, flavor: Flavor) -> Option<Value> {
    match content {
        Content::Nothing => None,
        Content::Text => Some(json!({"type": "string"})),
        Content::Type(name) => Some(json!({"$ref": flavor.reference(name)})),
    }
}

pub(super) fn v3_names(api: Api<'_>) -> Vec<String> {
    let mut names: Vec<String> =
        [".well-known/openid-configuration", "api", "apis", "openid/v1/jwks", "version"].map(String::from).into();
    for group in api.groups {
        let base = match &*group.name {
            "" => "api".to_string(),
            name => format!("apis/{name}"),
        };
        names.extend(group.versions.iter().map(|version| format!("{base}/{}", version.name)));
        if !group.name.is_empty() {
            names.push(base);
        }
    }
    names.sort();
    names
}

pub(super) fn v3(api: Api<'_>, name: &str) -> Option<Vec<u8>> {
    let facts = builtin();
    let parts: Vec<&str> = name.split('/').collect();
    let find = |group: &str| api.groups.iter().find(|g| g.name == group);
    let home = match parts[..] {
        ["api", version] => Some(("", version)),
        ["apis", group, version] => Some((group, version)),
        _ => None,
    };
    let (mut paths, mut texts) = (Vec::new(), Texts::of(std::iter::empty()));
    match (home, &parts[..]) {
        (Some((group, version)), _) => {
            let group = find(group)?;
            let version = group.versions.iter().find(|v| v.name == version)?;
            let roots = version.rows.iter().filter_map(|row| row.version(&version.name)).map(|v| v.schema.to_string());
            let names = closure(
                api,
                roots.chain(
                    [
                        "io.k8s.api.autoscaling.v1.Scale",
                        "io.k8s.api.policy.v1.Eviction",
                        "io.k8s.api.authentication.v1.TokenRequest",
                    ]
                    .map(String::from),
                ),
            );
            texts = Texts::of(names.iter().map(String::as_str));
            paths.extend(for_version(facts, &texts, group, version));
        }
        (None, ["apis", group]) => paths.extend(for_group(find(group)?)),
        (None, ["api"]) => paths.extend(for_group(find("")?)),
        (None, ["apis"]) => paths.push(super::paths::groups()),
        _ => paths.extend(other().into_iter().filter(|path| path.path.trim_matches('/') == name)),
    }
    if paths.is_empty() {
        return None;
    }
    paths.sort_by(|a, b| a.path.cmp(&b.path));
    let names = closure(api, paths.iter().flat_map(Path::types));
    let (group, version) = home.unwrap_or_default();
    let schemas = Schemas { facts, api, flavor: Flavor::V3, texts, home: (group.into(), version.into()) };
    let mut out = Vec::with_capacity(64 << 10);
    out.extend_from_slice(b"{\"openapi\":\"3.0.0\",\"info\":");
    encode_any(&V2::info(), &mut out);
    out.extend_from_slice(b",\"paths\":{");
    entries(&mut out, paths.iter().map(|path| (path.path.as_str(), path_v3(path))));
    out.extend_from_slice(b"},\"components\":{");
    if !names.is_empty() {
        out.extend_from_slice(b"\"schemas\":{");
        entries(&mut out, names.iter().map(|name| (name.as_str(), schemas.definition(name))));
        out.extend_from_slice(b"},");
    }
    out.extend_from_slice(b"\"securitySchemes\":");
    encode_any(&json!({"BearerToken": token_security()}), &mut out);
    out.extend_from_slice(b"}}");
    out.shrink_to_fit();
    Some(out)
}

fn path_v3(path: &Path) -> Value {
    let mut item = Map::new();
    if !path.common.is_empty() {
        let common: Vec<Value> = path.common.iter().map(parameter_v3).collect();
        item.insert("parameters".into(), common.into());
    }
    for operation in &path.operations {
        item.insert(operation.method.into(), operation_v3(operation));
    }
    item.into()
}

fn parameter_v3(parameter: &Parameter) -> Value {
    let mut value = json!({
        "description": parameter.text, "in": parameter.place.name(), "name": parameter.name,
        "schema": {"type": parameter.kind, "uniqueItems": true},
    });
    if parameter.place == Place::Path {
        value["required"] = true.into();
    }
    value
}

fn operation_v3(operation: &Operation) -> Value {
    let mut value = operation_head(operation);
    if !operation.parameters.is_empty() {
        value["parameters"] = operation.parameters.iter().map(parameter_v3).collect();
    }
    let content = |types: &[&str], schema: &Value| -> Value {
        types.iter().map(|media| (media.to_string(), json!({"schema": schema}))).collect::<Map>().into()
    };
    if let Some(body) = &operation.body {
        let schema = json!({"$ref": Flavor::V3.reference(&body.schema)});
        let mut request = json!({"content": content(operation.consumes, &schema)});
        if body.required {
            request["required"] = true.into();
        }
        value["requestBody"] = request;
    }
    let mut responses = Map::new();
    for (code, text, of) in &operation.responses {
        let mut response = json!({"description": text});
        if let Some(schema) = content_schema(of, Flavor::V3) {
            response["content"] = content(&operation.produces, &schema);
        }
        responses.insert(code.to_string(), response);
    }
    value["responses"] = responses.into();
    value
}

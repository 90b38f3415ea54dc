//! Definitions of types: from the facts, from a custom resource's schema, and of the few types that are no structures.

use std::collections::BTreeSet;

use serde_json::json;

use super::texts::{Texts, describe};
use super::{Api, Flavor};
use crate::schema::{Facts, Field, ListType, Shape, Type, builtin};
use crate::{Map, Value};

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";
const APIEXTENSIONS: &str = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1";

/// OpenAPI name of `meta/v1` types.
pub(super) fn meta(kind: &str) -> String {
    format!("{META}.{kind}")
}

/// Makes definitions for one document.
pub(super) struct Schemas<'a> {
    pub(super) facts: &'static Facts,
    pub(super) api: Api<'a>,
    pub(super) flavor: Flavor,
    pub(super) texts: Texts,
    /// Group and version of the document; empty in v2, which holds all.
    pub(super) home: (String, String),
}

/// The names of these types and of all that they hold, sorted.
pub(super) fn closure(api: Api<'_>, roots: impl Iterator<Item = String>) -> BTreeSet<String> {
    let facts = builtin();
    let mut found = BTreeSet::new();
    let mut open: Vec<String> = roots.collect();
    while let Some(name) = open.pop() {
        if found.contains(&name) {
            continue;
        }
        if let Some(ty) = facts.get(&name) {
            ty.fields.iter().for_each(|field| references(facts, ty, &field.shape, &mut open));
        } else if let Some(item) = custom_list_item(api, &name) {
            open.push(item);
            open.push(meta("ListMeta"));
        } else if (api.custom)(&name).is_some() {
            open.push(meta("ObjectMeta"));
        }
        found.insert(name);
    }
    found
}

/// The item of a custom resource's list, whose name is that of the item and `List`.
fn custom_list_item(api: Api<'_>, name: &str) -> Option<String> {
    let item = name.strip_suffix("List")?;
    (api.custom)(name).is_none().then_some(())?;
    (api.custom)(item).map(|_| item.to_string())
}

fn references(facts: &Facts, ty: &Type, shape: &Shape, out: &mut Vec<String>) {
    match shape {
        Shape::List(item, _) | Shape::Map(item) => references(facts, ty, item, out),
        Shape::SchemaOr(_, id) => {
            out.push(facts.at(*id).name.to_string());
            out.extend(reference(facts, ty, shape));
        }
        shape => out.extend(reference(facts, ty, shape)),
    }
}

/// The definition that a shape refers to, unless it is described in place.
fn reference(facts: &Facts, ty: &Type, shape: &Shape) -> Option<String> {
    use crate::schema::SchemaOr::{Array, Bool, Strings};
    Some(match shape {
        Shape::Struct(id) => facts.at(*id).name.to_string(),
        Shape::Time => meta("Time"),
        Shape::MicroTime => meta("MicroTime"),
        Shape::FieldsV1 => meta("FieldsV1"),
        Shape::Quantity => "io.k8s.apimachinery.pkg.api.resource.Quantity".into(),
        Shape::IntOrString => "io.k8s.apimachinery.pkg.util.intstr.IntOrString".into(),
        Shape::Raw => "io.k8s.apimachinery.pkg.runtime.RawExtension".into(),
        Shape::Json if ty.name.starts_with(APIEXTENSIONS) => format!("{APIEXTENSIONS}.JSON"),
        Shape::SchemaOr(Array, _) => format!("{APIEXTENSIONS}.JSONSchemaPropsOrArray"),
        Shape::SchemaOr(Bool, _) => format!("{APIEXTENSIONS}.JSONSchemaPropsOrBool"),
        Shape::SchemaOr(Strings, _) => format!("{APIEXTENSIONS}.JSONSchemaPropsOrStringArray"),
        _ => return None,
    })
}

impl Schemas<'_> {
    /// The definition of that name.
    pub(super) fn definition(&self, name: &str) -> Value {
        if let Some(ty) = self.facts.get(name) {
            return self.structure(ty);
        }
        if let Some(custom) = (self.api.custom)(name) {
            return if self.flavor == Flavor::V2 { to_v2(custom) } else { custom };
        }
        if let Some(item) = custom_list_item(self.api, name) {
            return self.custom_list(&item);
        }
        self.special(name)
    }

    /// Types that are written as something simpler than a structure.
    fn special(&self, name: &str) -> Value {
        let mut body = match (name.rsplit('.').next().unwrap_or_default(), self.flavor) {
            ("Quantity", Flavor::V3) => json!({"oneOf": [{"type": "string"}, {"type": "number"}]}),
            ("Quantity", Flavor::V2) => json!({"type": "string"}),
            ("IntOrString", Flavor::V3) => {
                json!({"format": "int-or-string", "oneOf": [{"type": "integer"}, {"type": "string"}]})
            }
            ("IntOrString", Flavor::V2) => json!({"format": "int-or-string", "type": "string"}),
            ("Time" | "MicroTime", _) => json!({"format": "date-time", "type": "string"}),
            (kind, _) if kind.starts_with("JSON") => json!({}),
            _ => json!({"type": "object"}),
        };
        if let Value::Object(map) = &mut body {
            describe(map, self.texts.of_type(name));
        }
        body
    }

    fn structure(&self, ty: &Type) -> Value {
        let mut body = Map::new();
        match self.texts.of_type(&ty.name) {
            Some(text) => describe(&mut body, Some(text)),
            None if ty.field("items").is_some() => {
                let item = ty.short_name().trim_end_matches("List");
                describe(&mut body, Some(&format!("A list of {item} objects.")));
            }
            None => {}
        }
        body.insert("type".into(), "object".into());
        let mut properties = Map::new();
        for field in &ty.fields {
            properties.insert(field.name.to_string(), self.property(ty, field));
        }
        if !properties.is_empty() {
            body.insert("properties".into(), properties.into());
        }
        let required: Vec<&str> = ty.fields.iter().filter(|f| f.required).map(|f| &*f.name).collect();
        if !required.is_empty() {
            body.insert("required".into(), required.into());
        }
        if ty.atomic {
            body.insert("x-kubernetes-map-type".into(), "atomic".into());
        }
        if let Some(unions) = &ty.unions {
            body.insert("x-kubernetes-unions".into(), (**unions).clone());
        }
        let kinds = self.kinds(ty);
        if !kinds.is_empty() {
            body.insert("x-kubernetes-group-version-kind".into(), kinds.into());
        }
        body.into()
    }

    /// Groups, versions and kinds of a type. Options of deletions and events of watches have every version's.
    fn kinds(&self, ty: &Type) -> Vec<Value> {
        let gvk = |group: &str, version: &str, kind: &str| json!({"group": group, "kind": kind, "version": version});
        let kind = ty.short_name();
        if ty.name.starts_with(META) && matches!(kind, "DeleteOptions" | "WatchEvent") {
            if self.flavor == Flavor::V2 {
                return self.facts.scheme().iter().map(|(group, version)| gvk(group, version, kind)).collect();
            }
            let mut homes = vec![("", "v1"), (&self.home.0, &self.home.1)];
            homes.retain(|(_, version)| !version.is_empty());
            homes.sort_unstable();
            homes.dedup();
            return homes.iter().map(|(group, version)| gvk(group, version, kind)).collect();
        }
        ty.kinds.iter().map(|k| gvk(&k.group, &k.version, &k.kind)).collect()
    }

    fn property(&self, ty: &Type, field: &Field) -> Value {
        let mut body = self.shape(ty, &field.shape, field);
        let mut text = self.texts.of_field(&ty.name, &field.name).unwrap_or_default().to_string();
        if let (Some(values), Shape::String) = (&field.values, &field.shape) {
            let list: Vec<String> = values.iter().map(|value| format!(" - `\"{value}\"`")).collect();
            text.push_str(&format!("\n\nPossible enum values:\n{}", list.join("\n")));
        }
        describe(&mut body, Some(&text));
        if self.flavor == Flavor::V3
            && let Some(default) = default(field)
        {
            body.insert("default".into(), default);
        }
        extensions(field, &mut body);
        // In v3 nothing may stand beside a reference.
        if self.flavor == Flavor::V3
            && body.len() > 1
            && let Some(reference) = body.remove("$ref")
        {
            body.insert("allOf".into(), json!([{"$ref": reference}]));
        }
        body.into()
    }

    fn shape(&self, ty: &Type, shape: &Shape, field: &Field) -> Map {
        let value = match shape {
            Shape::Bool => json!({"type": "boolean"}),
            Shape::Int32 => json!({"format": "int32", "type": "integer"}),
            Shape::Int64 => json!({"format": "int64", "type": "integer"}),
            Shape::Double => json!({"format": "double", "type": "number"}),
            Shape::Bytes => json!({"format": "byte", "type": "string"}),
            Shape::List(item, _) => json!({"items": self.shape(ty, item, field), "type": "array"}),
            Shape::Map(value) => json!({"additionalProperties": self.shape(ty, value, field), "type": "object"}),
            Shape::String => match &field.values {
                Some(values) => json!({"enum": values, "type": "string"}),
                None => json!({"type": "string"}),
            },
            other => match reference(self.facts, ty, other) {
                Some(name) => json!({"$ref": self.flavor.reference(&name)}),
                None => json!({}),
            },
        };
        if let Value::Object(map) = value { map } else { Map::new() }
    }

    /// The list of a custom resource.
    fn custom_list(&self, item: &str) -> Value {
        let kind = item.rsplit('.').next().unwrap_or_default();
        let schema = (self.api.custom)(item).unwrap_or_default();
        let kinds = schema.get("x-kubernetes-group-version-kind").cloned().unwrap_or_else(|| json!([]));
        let mut kinds = kinds;
        for gvk in kinds.as_array_mut().into_iter().flatten() {
            gvk["kind"] = format!("{kind}List").into();
        }
        let text = |field| self.texts.of_field(&meta("Status"), field).unwrap_or_default();
        let metadata = self.flavor.reference(&meta("ListMeta"));
        let metadata_text = "Metadata of the list.";
        json!({
            "description": format!("A list of {kind} objects."),
            "type": "object",
            "required": ["items"],
            "properties": {
                "apiVersion": {"description": text("apiVersion"), "type": "string"},
                "kind": {"description": text("kind"), "type": "string"},
                "items": {"description": "The objects.", "type": "array", "items": {"$ref": self.flavor.reference(item)}},
                "metadata": if self.flavor == Flavor::V3 {
                    json!({"allOf": [{"$ref": metadata}], "description": metadata_text})
                } else {
                    json!({"$ref": metadata, "description": metadata_text})
                },
            },
            "x-kubernetes-group-version-kind": kinds,
        })
    }
}

/// The default that v3 states: the field's own, else the zero value of what is neither a pointer nor left out.
fn default(field: &Field) -> Option<Value> {
    if let Some(default) = &field.default {
        return Some((**default).clone());
    }
    match field.shape {
        _ if field.pointer => None,
        Shape::Struct(_) => Some(json!({})),
        _ if field.omit_empty => None,
        Shape::String => Some("".into()),
        Shape::Bool => Some(false.into()),
        Shape::Int32 | Shape::Int64 => Some(0.into()),
        _ => None,
    }
}

fn extensions(field: &Field, body: &mut Map) {
    let mut add = |name: &str, value: Value| drop(body.insert(format!("x-kubernetes-{name}"), value));
    if let (Shape::List(_, list), true) = (&field.shape, field.list_stated) {
        match list {
            ListType::Atomic => add("list-type", "atomic".into()),
            ListType::Set => add("list-type", "set".into()),
            ListType::Map(keys) => {
                add("list-type", "map".into());
                add("list-map-keys", keys.iter().map(|key| Value::from(&**key)).collect());
            }
        }
    }
    if matches!(field.shape, Shape::Bytes) && field.list_stated {
        add("list-type", "atomic".into());
    }
    if let Some(atomic) = field.map_atomic {
        add("map-type", if atomic { "atomic" } else { "granular" }.into());
    }
    if !field.patch_merge_key.is_empty() {
        add("patch-merge-key", (&*field.patch_merge_key).into());
    }
    let strategies =
        [(field.patch_merge, "merge"), (field.patch_replace, "replace"), (field.patch_retain_keys, "retainKeys")];
    let strategies: Vec<&str> = strategies.iter().filter(|(set, _)| *set).map(|(_, name)| *name).collect();
    if !strategies.is_empty() {
        add("patch-strategy", strategies.join(",").into());
    }
}

/// A v3 schema in v2's words: what v2 cannot say is left out, references are v2's.
fn to_v2(schema: Value) -> Value {
    let Value::Object(map) = schema else { return schema };
    if map.get("x-kubernetes-preserve-unknown-fields") == Some(&true.into()) {
        // v2 has no free-form objects with fields; clients would refuse what they don't know.
        let kept = ["description", "type", "x-kubernetes-preserve-unknown-fields", "x-kubernetes-group-version-kind"];
        return map.into_iter().filter(|(key, _)| kept.contains(&key.as_str())).collect();
    }
    let mut out = Map::new();
    for (key, value) in map {
        match (key.as_str(), value) {
            ("oneOf" | "anyOf" | "not" | "nullable" | "default", _) => {}
            ("allOf", value) => {
                if let Some(reference) = value.get(0).and_then(|first| first.get("$ref")) {
                    out.insert("$ref".into(), v2_reference(reference));
                }
            }
            ("$ref", value) => drop(out.insert(key, v2_reference(&value))),
            ("properties", Value::Object(properties)) => {
                let properties: Map = properties.into_iter().map(|(name, schema)| (name, to_v2(schema))).collect();
                out.insert(key, properties.into());
            }
            ("items" | "additionalProperties", value) => drop(out.insert(key, to_v2(value))),
            (_, value) => drop(out.insert(key, value)),
        }
    }
    if out.get("x-kubernetes-int-or-string") == Some(&true.into()) {
        out.remove("type");
    }
    out.into()
}

fn v2_reference(reference: &Value) -> Value {
    reference.as_str().unwrap_or_default().replace("#/components/schemas/", "#/definitions/").into()
}

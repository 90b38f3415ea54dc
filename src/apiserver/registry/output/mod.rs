//! Objects, lists and failures on their way out, in the form the client asked for: JSON, YAML, protobuf, as
//! themselves, as a Table or as metadata alone.
//!
//! ```text
//!  entry ──► view (as kept, or converted) ──► shape (whole, table, metadata) ──► encoding ──► indented, compressed
//! ```
//!
//! The straight line is an entry in the version of the request, whole, as JSON: its bytes go out as they are.

mod accept;
mod body;
mod table;
mod view;
mod wire;

use std::collections::VecDeque;
use std::sync::Arc;

use api::codec::{json, proto, yaml};
use api::resources::{Row, api_version};
use api::schema::{Facts, Type};
use api::status::Status;
use api::{Map, Value};
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, StatusCode};
use store::cache::Cached;

use crate::Api;
use crate::entry::{Entry, is_typed};
use crate::registry::facts;
use crate::request::{Answer, Body, Request};

pub use accept::{Accept, Media, Meta, Shape, negotiate, negotiate_watch};
pub(super) use table::{Include, Table};
pub(super) use view::View;
pub(super) use wire::{event as event_message, seal};

/// What the forms of objects in one answer have in common.
pub(super) struct Target<'a> {
    pub(super) row: &'a Row,
    pub(super) facts: &'static Facts,
    /// Group and version of the request.
    pub(super) group: &'a str,
    pub(super) version: &'a str,
    pub(super) api_version: String,
    pub(super) typed: bool,
}

impl<'a> Target<'a> {
    pub(super) fn new(row: &'a Row, version: &'a str) -> Self {
        Self {
            row,
            facts: facts(row),
            group: &row.group,
            version,
            api_version: api_version(&row.group, version),
            typed: is_typed(row),
        }
    }

    /// The type of the row's objects in the version of the request.
    pub(super) fn ty(&self) -> Option<&'static Type> {
        self.facts.get(&self.row.version(self.version)?.schema)
    }

    /// The type of an object by what it says of itself.
    fn type_of(&self, object: &Value) -> Option<&'static Type> {
        let text = |name: &str| object[name].as_str().unwrap_or_default();
        let (group, version) = text("apiVersion").rsplit_once('/').unwrap_or(("", text("apiVersion")));
        self.facts.kind(group, version, text("kind"))
    }

    /// Go's name of the kind, which is in some errors.
    fn go_type(&self, list: bool) -> String {
        let suffix = if list { "List" } else { "" };
        if !self.typed {
            return format!("*unstructured.Unstructured{suffix}");
        }
        let package = match self.row.stored_group.split('.').next().unwrap_or_default() {
            "" => "core",
            "internal" => "apiserverinternal",
            package => package,
        };
        format!("*{package}.{}{suffix}", self.row.kind)
    }
}

/// Answers an object from the cache.
///
/// # Errors
/// 500 when it can't be said in the version of the request.
pub fn entry(
    _api: &Api, row: &Row, req: &Request, accept: &Accept, code: StatusCode, object: &Arc<Cached<Entry>>,
) -> Result<Answer, Status> {
    let target = Target::new(row, &req.info.version);
    let view = View::of(&target, &object.entry)?;
    let content = match accept.shape {
        Shape::Whole if accept.media == Media::Protobuf => whole_protobuf(&target, &view)?,
        Shape::Whole => view.object(&target)?,
        Shape::Metadata(meta) if accept.media == Media::Protobuf => metadata_protobuf(&view, meta)?,
        Shape::Metadata(meta) => view.partial(&target, meta)?,
        Shape::MetadataList(_) => return Err(not_a_list(&target)),
        Shape::Table(meta) => {
            let table = Table::new(&target, meta, Include::read(req)?);
            let cells = view.cells(&target)?;
            let list = ListMeta { revision: object.revision, ..ListMeta::default() };
            table.one(&target, &list, &view, &cells)?
        }
    };
    finish(accept, code, content)
}

/// Answers an object that was just written: the bytes as they were stored, under their new revision.
///
/// # Errors
/// As [`entry`].
pub fn stored(
    api: &Api, row: &Row, req: &Request, accept: &Accept, code: StatusCode, kv: &store::KeyValue,
) -> Result<Answer, Status> {
    entry(api, row, req, accept, code, &api.cache.decode(kv))
}

/// Answers an object that is not stored: of a dry run (in the stored version), or of a kind of its own (Scale,
/// TokenRequest, a Status of success, reviews), said by its `apiVersion` and `kind`.
///
/// # Errors
/// As [`entry`].
pub fn object(
    _api: &Api, row: &Row, req: &Request, accept: &Accept, code: StatusCode, object: Value,
) -> Result<Answer, Status> {
    let target = Target::new(row, &req.info.version);
    if object["kind"] == "Status" && object["apiVersion"] == "v1" {
        return finish(accept, code, tree(&target, accept.media, object)?);
    }
    let own = object["kind"] == *row.kind && object["apiVersion"] == row.stored_api_version();
    let (group, kind) = group_kind(&object);
    let columns = if own { api::print::columns(row) } else { api::print::columns_of(&group, &kind) };
    let printed = matches!(accept.shape, Shape::Table(_)).then(|| match own {
        true => api::print::cells(row, &object),
        false => api::print::cells_of(&group, &kind, &object),
    });
    let revision = crate::registry::object::meta_text(&object, "resourceVersion").parse().unwrap_or_default();
    let view = if own { View::converted(&target, object)? } else { View::Made(object) };
    let content = match accept.shape {
        Shape::Whole => match view {
            View::Made(object) => tree(&target, accept.media, object)?,
            kept => kept.object(&target)?,
        },
        Shape::Metadata(meta) if accept.media == Media::Protobuf => metadata_protobuf(&view, meta)?,
        Shape::Metadata(meta) => view.partial(&target, meta)?,
        Shape::MetadataList(_) => return Err(not_a_list(&target)),
        Shape::Table(meta) => {
            let table = Table::with_columns(&columns, meta, Include::read(req)?);
            let list = ListMeta { revision, ..ListMeta::default() };
            table.one(&target, &list, &view, &printed.unwrap_or_default())?
        }
    };
    finish(accept, code, content)
}

/// Group and kind of an object, as it says itself.
fn group_kind(object: &Value) -> (String, String) {
    let text = |name: &str| object[name].as_str().unwrap_or_default();
    let (group, _) = text("apiVersion").rsplit_once('/').unwrap_or_default();
    (group.to_string(), text("kind").to_string())
}

/// `metadata` of a list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListMeta {
    /// resourceVersion.
    pub revision: store::Revision,
    /// Token for the next page, empty on the last.
    pub token: String,
    /// Items that follow, where that is known.
    pub remaining: Option<i64>,
}

impl ListMeta {
    fn value(&self, typed: bool) -> Map {
        let mut map = Map::new();
        if self.revision > 0 {
            map.insert("resourceVersion".into(), self.revision.to_string().into());
        }
        if !self.token.is_empty() || !typed {
            map.insert("continue".into(), self.token.clone().into());
        }
        if let Some(remaining) = self.remaining {
            map.insert("remainingItemCount".into(), remaining.into());
        }
        map
    }

    /// In the order of upstream's struct, or for custom resources of sorted keys.
    fn json(&self, typed: bool) -> String {
        let map = self.value(typed);
        if !typed {
            return Value::Object(map).to_string();
        }
        let order = ["resourceVersion", "continue", "remainingItemCount"];
        let member = |name: &&str| map.get(*name).map(|value| format!("\"{name}\":{value}"));
        format!("{{{}}}", order.iter().filter_map(member).collect::<Vec<_>>().join(","))
    }
}

/// Answers a list.
///
/// # Errors
/// As [`entry`]; one object that can't be decoded fails the whole list.
pub fn list(
    _api: &Api, row: &Row, req: &Request, accept: &Accept, meta: ListMeta, items: Vec<Arc<Cached<Entry>>>,
) -> Result<Answer, Status> {
    let target = Target::new(row, &req.info.version);
    for item in &items {
        item.entry.sound()?;
    }
    match accept.shape {
        Shape::Whole if accept.media == Media::Protobuf => {
            let kind = (&*target.api_version, &*row.list_kind);
            finish(accept, StatusCode::OK, list_protobuf(&target, kind, &meta, &items, |view| view.protobuf(&target))?)
        }
        Shape::Whole => finish(accept, StatusCode::OK, whole_list(&target, &meta, &items)?),
        Shape::MetadataList(version) if accept.media == Media::Protobuf => {
            let kind = (version.api_version(), "PartialObjectMetadataList");
            finish(
                accept,
                StatusCode::OK,
                list_protobuf(&target, kind, &meta, &items, |view| view.metadata_protobuf())?,
            )
        }
        Shape::MetadataList(version) => finish(accept, StatusCode::OK, metadata_list(&target, version, &meta, &items)?),
        Shape::Metadata(_) => Err(not_an_object(&target)),
        Shape::Table(version) => {
            let table = Table::new(&target, version, Include::read(req)?);
            let (row, request) = (row.clone(), req.info.version.clone());
            if accept.media == Media::Json && !accept.pretty && items.len() > body::LAZY {
                return Ok(typed(accept, StatusCode::OK, table.stream(row, request, *accept, &meta, items)));
            }
            finish(accept, StatusCode::OK, table.list(&target, &meta, &items)?)
        }
    }
}

/// Answers a list of objects that are not stored, in the version of the request.
///
/// # Errors
/// As [`entry`].
pub fn made_list(row: &Row, req: &Request, accept: &Accept, items: Vec<Value>) -> Result<Answer, Status> {
    let target = Target::new(row, &req.info.version);
    let content = match accept.shape {
        Shape::Table(version) => {
            Table::new(&target, version, Include::read(req)?).made(&target, &ListMeta::default(), items)?
        }
        Shape::MetadataList(version) if accept.media != Media::Protobuf => {
            let items = items.into_iter().map(|item| {
                let Value::Object(mut item) = item else { return Value::Null };
                item.insert("kind".into(), "PartialObjectMetadata".into());
                item.insert("apiVersion".into(), version.api_version().into());
                item.retain(|name, _| matches!(name.as_str(), "kind" | "apiVersion" | "metadata"));
                Value::Object(item)
            });
            let kind = "PartialObjectMetadataList";
            let list = serde_json::json!({"kind": kind, "apiVersion": version.api_version(), "metadata": {},
                "items": items.collect::<Vec<_>>()});
            tree(&target, accept.media, list)?
        }
        Shape::Metadata(_) | Shape::MetadataList(_) => return Err(not_an_object(&target)),
        Shape::Whole => {
            let api_version = row.stored_api_version();
            let list =
                serde_json::json!({"kind": &*row.list_kind, "apiVersion": api_version, "metadata": {}, "items": items});
            tree(&target, accept.media, list)?
        }
    };
    finish(accept, StatusCode::OK, content)
}

/// Answers a failure (or a success that has no object but a Status), in the encoding the client accepts.
pub fn failure(headers: &HeaderMap, status: &Status) -> Answer {
    let code = StatusCode::from_u16(status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let accept = accept::for_failure(headers);
    let plain = Accept { media: Media::Json, shape: Shape::Whole, pretty: true, gzip: false };
    let accept = accept.unwrap_or(plain);
    let content = status_content(accept.media, status);
    finish(&accept, code, content).unwrap_or_else(|error| {
        tracing::error!("a failure could not be written: {error}");
        let mut answer = Answer::new(Body::from(Bytes::from(error.message)));
        *answer.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
        answer
    })
}

/// A Status as JSON.
pub(super) fn status_json(status: &Status) -> Vec<u8> {
    let facts = api::schema::builtin();
    let mut out = Vec::new();
    match facts.kind("", "v1", "Status") {
        Some(ty) => json::encode(facts, ty, &status.to_value(), &mut out),
        None => json::encode_any(&status.to_value(), &mut out),
    }
    out
}

/// A Status as protobuf, in its envelope.
pub(super) fn status_protobuf(status: &Status) -> Vec<u8> {
    let facts = api::schema::builtin();
    let mut out = Vec::new();
    if let Some(ty) = facts.kind("", "v1", "Status") {
        proto::seal(facts, ty, &status.to_value(), &mut out);
    }
    out
}

fn status_content(media: Media, status: &Status) -> Content {
    match media {
        Media::Protobuf => Content::from([status_protobuf(status).into()]),
        _ => Content::from([status_json(status).into()]),
    }
}

/// Pieces of an answer: JSON (which may become YAML), or protobuf as it is.
pub(in crate::registry) type Content = VecDeque<Bytes>;

fn finish(accept: &Accept, code: StatusCode, mut content: Content) -> Result<Answer, Status> {
    match accept.media {
        Media::Protobuf => {}
        Media::Yaml => {
            let joined: Vec<u8> = content.iter().flat_map(|piece| piece.iter().copied()).collect();
            let value: Value = serde_json::from_slice(&joined).map_err(Status::internal)?;
            content = Content::from([yaml::encode(&value).into()]);
        }
        Media::Json if accept.pretty => content = Content::from([body::indent(&content).into()]),
        Media::Json => content.push_back(Bytes::from_static(b"\n")),
    }
    Ok(typed(accept, code, body::compress(accept, code, content)))
}

fn typed(accept: &Accept, code: StatusCode, (body, gzip): (Body, bool)) -> Answer {
    let mut answer = Answer::new(body);
    *answer.status_mut() = code;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(accept.media.name()));
    if gzip {
        body::mark(answer.headers_mut());
    }
    answer
}

/// An object of any kind that upstream has.
fn tree(target: &Target<'_>, media: Media, object: Value) -> Result<Content, Status> {
    let mut out = Vec::new();
    match (target.type_of(&object), media) {
        (Some(ty), Media::Protobuf) => proto::seal(target.facts, ty, &object, &mut out),
        (None, Media::Protobuf) => return Err(Status::internal(format!("no type for {}", object["kind"]))),
        (Some(ty), _) if !ty.custom => json::encode(target.facts, ty, &object, &mut out),
        _ => json::encode_any(&object, &mut out),
    }
    Ok(Content::from([out.into()]))
}

fn whole_protobuf(target: &Target<'_>, view: &View<'_>) -> Result<Content, Status> {
    let message = view.protobuf(target)?;
    Ok(Content::from([seal(&target.api_version, &target.row.kind, &message).into()]))
}

fn metadata_protobuf(view: &View<'_>, meta: Meta) -> Result<Content, Status> {
    let message = view.metadata_protobuf()?;
    Ok(Content::from([seal(meta.api_version(), "PartialObjectMetadata", &message).into()]))
}

/// The list around bytes that are shared.
fn whole_list(target: &Target<'_>, meta: &ListMeta, items: &[Arc<Cached<Entry>>]) -> Result<Content, Status> {
    let (kind, api_version) = (Value::from(&*target.row.list_kind), Value::from(&*target.api_version));
    let meta = meta.json(target.typed);
    let (open, close) = match target.typed {
        true => {
            (format!("{{\"kind\":{kind},\"apiVersion\":{api_version},\"metadata\":{meta},\"items\":["), "]}".into())
        }
        false => {
            (format!("{{\"apiVersion\":{api_version},\"items\":["), format!("],\"kind\":{kind},\"metadata\":{meta}}}"))
        }
    };
    let mut content = Content::with_capacity(items.len() + 3);
    content.push_back(open.into());
    for (n, item) in items.iter().enumerate() {
        let item = View::of(target, &item.entry)?.item(target)?;
        content.push_back(if n == 0 { item.slice(1..) } else { item });
    }
    content.push_back(close.into());
    Ok(content)
}

fn metadata_list(
    target: &Target<'_>, version: Meta, meta: &ListMeta, items: &[Arc<Cached<Entry>>],
) -> Result<Content, Status> {
    let api_version = version.api_version();
    let open = format!(
        "{{\"kind\":\"PartialObjectMetadataList\",\"apiVersion\":\"{api_version}\",\"metadata\":{},\"items\":[",
        meta.json(true)
    );
    let first = Bytes::from(view::partial_open(version));
    let next = Bytes::from(format!("}},{}", view::partial_open(version)));
    let mut content = Content::with_capacity(2 * items.len() + 3);
    content.push_back(open.into());
    for (n, item) in items.iter().enumerate() {
        content.push_back(if n == 0 { first.clone() } else { next.clone() });
        content.push_back(View::of(target, &item.entry)?.metadata(target)?);
    }
    content.push_back(Bytes::from_static(if items.is_empty() { b"]}" } else { b"}]}" }));
    Ok(content)
}

/// A list message: every list has its metadata in field 1 and its items in field 2.
fn list_protobuf(
    target: &Target<'_>, kind: (&str, &str), meta: &ListMeta, items: &[Arc<Cached<Entry>>],
    message: impl Fn(&View<'_>) -> Result<Bytes, Status>,
) -> Result<Content, Status> {
    let mut parts = Vec::with_capacity(2 * items.len() + 2);
    let mut head = Vec::new();
    wire::field(1, &wire::list_meta(meta), &mut head);
    parts.push(Bytes::from(head));
    for item in items {
        let message = message(&View::of(target, &item.entry)?)?;
        let mut open = Vec::with_capacity(4);
        wire::open(2, message.len(), &mut open);
        parts.push(open.into());
        parts.push(message);
    }
    let length = parts.iter().map(Bytes::len).sum();
    let mut content = Content::with_capacity(parts.len() + 2);
    content.push_back(wire::envelope_open(kind.0, kind.1, length).into());
    content.extend(parts);
    content.push_back(Bytes::from_static(wire::ENVELOPE_CLOSE));
    Ok(content)
}

fn not_a_list(target: &Target<'_>) -> Status {
    let message = format!(
        "you requested PartialObjectMetadataList, but the requested object is not a list ({})",
        target.go_type(false)
    );
    Status::new(406, "NotAcceptable", message)
}

fn not_an_object(target: &Target<'_>) -> Status {
    let message =
        format!("you requested PartialObjectMetadata, but the requested object is a list ({})", target.go_type(true));
    Status::new(406, "NotAcceptable", message)
}

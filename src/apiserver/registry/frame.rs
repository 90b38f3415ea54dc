//! Events of a watch as bytes: lines of JSON, or frames of protobuf.

use std::sync::Arc;

use api::resources::Row;
use api::status::Status;
use api::{Map, Value};
use store::Revision;

use super::output::{
    Accept, Content, Include, ListMeta, Media, Shape, Table, Target, View, event_message, seal, status_json,
    status_protobuf,
};
use crate::entry::Entry;

/// Marks the bookmark after the initial events.
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

/// Makes the frames of one watch.
pub(super) struct Frames {
    row: Arc<Row>,
    version: String,
    /// `apiVersion` of objects in the version of the request.
    api_version: String,
    accept: Accept,
    table: Option<Table>,
}

impl Frames {
    pub(super) fn new(row: Arc<Row>, version: String, mut accept: Accept, include: Include) -> Self {
        if let Shape::MetadataList(_) = accept.shape {
            // An object can't become a list, so upstream sends it as it is.
            accept.shape = Shape::Whole;
        }
        let table = match accept.shape {
            Shape::Table(meta) => Some(Table::new(&Target::new(&row, &version), meta, include)),
            _ => None,
        };
        let api_version = api::resources::api_version(&row.group, &version);
        Self { row, version, api_version, accept, table }
    }

    /// An event of an object; with a revision, the object shows that one instead of its own.
    ///
    /// # Errors
    /// 500 when the object can't be decoded or said in the version of the request.
    pub(super) fn event(
        &mut self, kind: &str, entry: &Entry, revision: Option<Revision>, out: &mut Vec<u8>,
    ) -> Result<(), Status> {
        let as_kept = self.accept.shape == Shape::Whole && self.accept.media == Media::Json;
        if as_kept && entry.api_version() == self.api_version && *entry.head().kind == *self.row.kind {
            entry.sound()?;
            kept(kind, entry, revision, out);
            return Ok(());
        }
        let row = self.row.clone();
        let version = std::mem::take(&mut self.version);
        let target = Target::new(&row, &version);
        let result = self.write(&target, kind, entry, revision, out);
        self.version = version;
        result
    }

    fn write(
        &mut self, target: &Target<'_>, kind: &str, entry: &Entry, revision: Option<Revision>, out: &mut Vec<u8>,
    ) -> Result<(), Status> {
        let view = View::of(target, entry)?;
        let view = match revision {
            Some(revision) => View::Made(at(view.tree()?, revision)),
            None => view,
        };
        self.shaped(target, kind, &view, out)
    }

    fn shaped(&mut self, target: &Target<'_>, kind: &str, view: &View<'_>, out: &mut Vec<u8>) -> Result<(), Status> {
        let content = match (self.accept.shape, self.accept.media) {
            (Shape::Whole | Shape::MetadataList(_), Media::Protobuf) => {
                vec![seal(&target.api_version, &target.row.kind, &view.protobuf(target)?).into()]
            }
            (Shape::Metadata(meta), Media::Protobuf) => {
                vec![seal(meta.api_version(), "PartialObjectMetadata", &view.metadata_protobuf()?).into()]
            }
            (Shape::Whole | Shape::MetadataList(_), _) => view.object(target)?.into(),
            (Shape::Metadata(meta), _) => view.partial(target, meta)?.into(),
            (Shape::Table(_), _) => self.table(target, view)?.into(),
        };
        match self.accept.media {
            Media::Protobuf => event_message(kind, &content.concat(), out),
            _ => line(kind, &content, out),
        }
        Ok(())
    }

    fn table(&mut self, target: &Target<'_>, view: &View<'_>) -> Result<Content, Status> {
        let Some(table) = &mut self.table else { return Err(Status::internal("no table was asked for")) };
        table.at(jiff::Timestamp::now().as_second());
        let metadata = view.metadata(target)?;
        let metadata: Value = serde_json::from_slice(&metadata).map_err(Status::internal)?;
        let revision = metadata["resourceVersion"].as_str().and_then(|text| text.parse().ok()).unwrap_or(0);
        let list = ListMeta { revision, ..ListMeta::default() };
        let content = table.one(target, &list, view, &view.cells(target)?)?;
        table.forget_columns();
        Ok(content)
    }

    /// A bookmark: an empty object of the kind with a revision.
    ///
    /// # Errors
    /// Never, but for faults of ours.
    pub(super) fn bookmark(&mut self, revision: Revision, initial: bool, out: &mut Vec<u8>) -> Result<(), Status> {
        let row = self.row.clone();
        let version = std::mem::take(&mut self.version);
        let target = Target::new(&row, &version);
        let mut object = Map::new();
        let mut metadata = Map::from_iter([("resourceVersion".to_string(), revision.to_string().into())]);
        if initial {
            let annotations = Map::from_iter([(INITIAL_EVENTS_END.to_string(), "true".into())]);
            metadata.insert("annotations".into(), annotations.into());
        }
        object.insert("kind".into(), (&*row.kind).into());
        object.insert("apiVersion".into(), (&*target.api_version).into());
        object.insert("metadata".into(), metadata.into());
        let result = self.shaped(&target, "BOOKMARK", &View::Made(object.into()), out);
        self.version = version;
        result
    }

    /// The event that ends a watch which failed.
    pub(super) fn error(&self, status: &Status, out: &mut Vec<u8>) {
        match self.accept.media {
            Media::Protobuf => event_message("ERROR", &status_protobuf(status), out),
            _ => line("ERROR", &[status_json(status).into()], out),
        }
    }
}

/// The straight line: what all watchers of the object share, after a head.
fn kept(kind: &str, entry: &Entry, revision: Option<Revision>, out: &mut Vec<u8>) {
    open(kind, out);
    out.extend_from_slice(&entry.head().open);
    match revision {
        None => out.extend_from_slice(entry.event_rest()),
        Some(revision) => {
            let (before, after) = entry.event_halves();
            out.extend_from_slice(before);
            out.extend_from_slice(itoa::Buffer::new().format(revision).as_bytes());
            out.extend_from_slice(after);
        }
    }
}

fn open(kind: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"type\":\"");
    out.extend_from_slice(kind.as_bytes());
    out.extend_from_slice(b"\",\"object\":");
}

fn line(kind: &str, content: &[bytes::Bytes], out: &mut Vec<u8>) {
    open(kind, out);
    content.iter().for_each(|piece| out.extend_from_slice(piece));
    out.extend_from_slice(b"}\n");
}

fn at(mut object: Value, revision: Revision) -> Value {
    object["metadata"]["resourceVersion"] = revision.to_string().into();
    object
}

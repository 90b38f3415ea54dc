//! Tables: what `kubectl get` shows, printed here.

use std::sync::Arc;

use api::Value;
use api::print::{Cell, Column};
use api::resources::Row;
use api::status::Status;
use bytes::Bytes;
use store::cache::Cached;

use super::view::partial_open;
use super::{Accept, Content, ListMeta, Meta, Target, View, body};
use crate::entry::Entry;
use crate::request::{Body, Request};

/// What a row shows of its object beside the cells: `includeObject`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::registry) enum Include {
    None,
    Metadata,
    Object,
}

impl Include {
    /// Reads the parameter.
    ///
    /// # Errors
    /// 400 for any other value.
    pub(in crate::registry) fn read(req: &Request) -> Result<Self, Status> {
        match req.param("includeObject").unwrap_or_default() {
            "" | "Metadata" => Ok(Include::Metadata),
            "Object" => Ok(Include::Object),
            "None" => Ok(Include::None),
            other => Err(Status::bad_request(format!(
                "Unable to convert to Table as requested: includeObject: Invalid value: {}: must be 'Metadata', \
                 'Object', 'None', or empty",
                api::field::quote(other)
            ))),
        }
    }
}

/// A table in the making.
#[derive(Debug, Clone)]
pub(in crate::registry) struct Table {
    meta: Meta,
    include: Include,
    columns: Bytes,
    /// Ages are relative to this.
    now: i64,
}

impl Table {
    pub(in crate::registry) fn new(target: &Target<'_>, meta: Meta, include: Include) -> Self {
        Self::with_columns(&api::print::columns(target.row), meta, include)
    }

    /// A table of a kind that is not the row's.
    pub(super) fn with_columns(columns: &[Column], meta: Meta, include: Include) -> Self {
        let columns: Vec<String> = columns.iter().map(column).collect();
        let columns = Bytes::from(format!("[{}]", columns.join(",")));
        Self { meta, include, columns, now: jiff::Timestamp::now().as_second() }
    }

    /// Sets the time that ages are relative to.
    pub(in crate::registry) fn at(&mut self, now: i64) {
        self.now = now;
    }

    /// The next tables of a watch have no columns: the client knows them from the first.
    pub(in crate::registry) fn forget_columns(&mut self) {
        self.columns = Bytes::from_static(b"null");
    }

    /// A table of one object, as JSON.
    pub(in crate::registry) fn one(
        &self, target: &Target<'_>, list: &ListMeta, view: &View<'_>, cells: &[Cell],
    ) -> Result<Content, Status> {
        let mut out = self.open(list);
        self.row(target, view, cells, &mut out)?;
        out.extend_from_slice(b"]}");
        Ok(Content::from([out.into()]))
    }

    /// A table of a list, as JSON.
    pub(super) fn list(
        &self, target: &Target<'_>, list: &ListMeta, items: &[Arc<Cached<Entry>>],
    ) -> Result<Content, Status> {
        let mut out = self.open(list);
        self.rows(target, items, &mut out)?;
        out.extend_from_slice(b"]}");
        Ok(Content::from([out.into()]))
    }

    /// A table of objects that are not stored, as JSON.
    pub(super) fn made(&self, target: &Target<'_>, list: &ListMeta, items: Vec<Value>) -> Result<Content, Status> {
        let mut out = self.open(list);
        for (n, item) in items.into_iter().enumerate() {
            if n > 0 {
                out.push(b',');
            }
            let cells = api::print::cells(target.row, &item);
            self.row(target, &View::Made(item), &cells, &mut out)?;
        }
        out.extend_from_slice(b"]}");
        Ok(Content::from([out.into()]))
    }

    /// A large table, made as it is sent.
    pub(super) fn stream(
        self, row: Row, version: String, accept: Accept, list: &ListMeta, items: Vec<Arc<Cached<Entry>>>,
    ) -> (Body, bool) {
        let mut open = Some(self.open(list));
        let mut items = items.into_iter().peekable();
        let mut ended = false;
        let chunks = std::iter::from_fn(move || {
            if ended {
                return None;
            }
            let target = Target::new(&row, &version);
            let mut out = Vec::with_capacity(body::CHUNK + 8192);
            let first = open.take();
            let mut comma = first.is_none();
            out.extend(first.unwrap_or_default());
            while out.len() < body::CHUNK
                && let Some(item) = items.next()
            {
                if comma {
                    out.push(b',');
                }
                comma = true;
                if let Err(status) = self.rows(&target, std::slice::from_ref(&item), &mut out) {
                    ended = true;
                    return Some(Err(std::io::Error::other(status.message)));
                }
            }
            if items.peek().is_none() {
                ended = true;
                out.extend_from_slice(b"]}\n");
            }
            Some(Ok(Bytes::from(out)))
        });
        body::stream(accept, chunks)
    }

    fn open(&self, list: &ListMeta) -> Vec<u8> {
        let (api_version, meta) = (self.meta.api_version(), list.json(true));
        let mut out =
            format!("{{\"kind\":\"Table\",\"apiVersion\":\"{api_version}\",\"metadata\":{meta},\"columnDefinitions\":")
                .into_bytes();
        out.extend_from_slice(&self.columns);
        out.extend_from_slice(b",\"rows\":[");
        out
    }

    fn rows(&self, target: &Target<'_>, items: &[Arc<Cached<Entry>>], out: &mut Vec<u8>) -> Result<(), Status> {
        for (n, item) in items.iter().enumerate() {
            if n > 0 {
                out.push(b',');
            }
            let view = View::of(target, &item.entry)?;
            let cells = view.cells(target)?;
            self.row(target, &view, &cells, out)?;
        }
        Ok(())
    }

    fn row(&self, target: &Target<'_>, view: &View<'_>, cells: &[Cell], out: &mut Vec<u8>) -> Result<(), Status> {
        out.extend_from_slice(b"{\"cells\":[");
        for (n, cell) in cells.iter().enumerate() {
            if n > 0 {
                out.push(b',');
            }
            api::codec::json::encode_any(&cell.at(self.now), out);
        }
        out.push(b']');
        if let Some(conditions) = view.conditions(target) {
            out.extend_from_slice(b",\"conditions\":");
            api::codec::json::encode_any(&conditions, out);
        }
        out.extend_from_slice(b",\"object\":");
        match self.include {
            Include::None => out.extend_from_slice(b"null"),
            Include::Object => view.object(target)?.iter().for_each(|piece| out.extend_from_slice(piece)),
            Include::Metadata => {
                out.extend_from_slice(partial_open(self.meta).as_bytes());
                out.extend_from_slice(&view.metadata(target)?);
                out.push(b'}');
            }
        }
        out.push(b'}');
        Ok(())
    }
}

fn column(column: &Column) -> String {
    let Column { name, kind, format, description, priority } = column;
    let mut out = Vec::new();
    for (key, text) in [("name", name), ("type", kind), ("format", format), ("description", description)] {
        out.push(if out.is_empty() { b'{' } else { b',' });
        out.extend_from_slice(format!("\"{key}\":").as_bytes());
        api::codec::json::encode_any(&Value::from(&**text), &mut out);
    }
    format!("{},\"priority\":{priority}}}", String::from_utf8_lossy(&out))
}

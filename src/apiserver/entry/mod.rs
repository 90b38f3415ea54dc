//! What the cache keeps of an object: its bytes with the resourceVersion spliced in, and what readers ask of it
//! (labels, selectable fields, owners), taken out once.
//!
//! ```text
//!  stored:  {"kind":"Pod","apiVersion":"v1","metadata":{"name":"web","uid":"…"},"spec":{…}}
//!  kept:  ,{                                "metadata":{"name":"web","uid":"…","resourceVersion":"7"},"spec":{…}}}⏎
//!         └ LIST: shared as it stands, the last two bytes less                                                   │
//!           GET, WATCH: after a head that all objects of the kind share ─────────────────────────────────────────┘
//! ```
//!
//! Items of upstream's typed lists have neither kind nor apiVersion, those of custom resources do: there the head is
//! but a brace. Names, labels and fields are places in the one buffer, so an entry is little more than its bytes.

mod decoder;
mod forms;
mod scan;
#[cfg(test)]
mod tests;

use std::sync::{Arc, OnceLock};

use api::Value;
use api::resources::Row;
use api::selector::Labelled;
use api::status::Status;
use bytes::Bytes;

pub use decoder::Decoder;
pub(crate) use decoder::{is_indexed, is_typed};
use forms::Forms;

/// Bytes before an object's members: what separates it from the item before it in a list, and its brace.
const LEAD: usize = 2;
/// Bytes after an object: the brace of a watch event and its newline.
const TAIL: usize = 2;

/// A cached object.
#[derive(Debug)]
pub struct Entry {
    /// `,{` members `}` and `}⏎`.
    buffer: Bytes,
    head: Arc<Head>,
    name: Span,
    namespace: Span,
    uid: Span,
    revision: Span,
    metadata: Span,
    labels: Box<[(Span, Span)]>,
    /// In the order of the row's selectable fields.
    fields: Box<[Span]>,
    owners: Box<[Span]>,
    terminating: bool,
    /// Texts that do not stand in the buffer as they are, because of escapes or because they are made.
    extra: Box<[Box<str>]>,
    /// Why the stored value could not be decoded.
    fault: Option<Box<str>>,
    forms: OnceLock<Box<Forms>>,
}

/// What objects of one kind and version share.
#[derive(Debug, PartialEq, Eq)]
pub struct Head {
    /// `{"kind":"Pod","apiVersion":"v1",`, or `{` where objects hold both themselves.
    pub open: Bytes,
    /// Kind.
    pub kind: Box<str>,
    /// `apiVersion`.
    pub api_version: Box<str>,
    /// The object is of a type that upstream has in Go: items of lists have no kind and apiVersion.
    pub typed: bool,
    /// Selectable fields of the row.
    fields: &'static [&'static str],
}

/// A place in the buffer, or (with a start beyond any buffer) a text elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Span {
    start: u32,
    len: u32,
}

impl Span {
    /// `start` of spans whose `len` is an index into the extra texts.
    const EXTRA: u32 = u32::MAX;
    /// `start` of spans whose `len` is an index into the texts that everybody knows.
    const KNOWN: u32 = u32::MAX - 1;
    const TEXTS: [&'static str; 4] = ["", "false", "true", "0"];
    const EMPTY: Span = Span { start: Self::KNOWN, len: 0 };

    fn known(text: &str) -> Option<Self> {
        let at = Self::TEXTS.iter().position(|known| *known == text)?;
        Some(Self { start: Self::KNOWN, len: at as u32 })
    }

    fn range(self) -> std::ops::Range<usize> {
        self.start as usize..(self.start + self.len) as usize
    }
}

impl Entry {
    /// Namespace, empty for cluster-scoped objects.
    pub fn namespace(&self) -> &str {
        self.text(self.namespace)
    }

    /// Name.
    pub fn name(&self) -> &str {
        self.text(self.name)
    }

    /// UID.
    pub fn uid(&self) -> &str {
        self.text(self.uid)
    }

    /// The value of a label.
    pub fn label(&self, key: &str) -> Option<&str> {
        let (_, value) = self.labels.iter().find(|(k, _)| self.bytes(*k) == key.as_bytes())?;
        Some(self.text(*value))
    }

    /// All labels, in the order of the bytes.
    pub fn labels(&self) -> impl Iterator<Item = (&str, &str)> {
        self.labels.iter().map(|(key, value)| (self.text(*key), self.text(*value)))
    }

    /// The value of a selectable field, `metadata.name` and `metadata.namespace` included; `None` when the row does
    /// not list it.
    pub fn field(&self, name: &str) -> Option<&str> {
        match name {
            "metadata.name" => Some(self.name()),
            "metadata.namespace" => Some(self.namespace()),
            _ => {
                let at = self.head.fields.iter().position(|field| *field == name)?;
                self.fields.get(at).map(|span| self.text(*span))
            }
        }
    }

    /// UIDs of the owners.
    pub fn owners(&self) -> impl Iterator<Item = &str> {
        self.owners.iter().map(|span| self.text(*span))
    }

    /// `metadata.deletionTimestamp` is set.
    pub fn terminating(&self) -> bool {
        self.terminating
    }

    /// `apiVersion` of the stored form.
    pub fn api_version(&self) -> &str {
        &self.head.api_version
    }

    /// What this object shares with others of its kind.
    pub fn head(&self) -> &Arc<Head> {
        &self.head
    }

    /// Refuses an object whose stored value could not be decoded.
    ///
    /// # Errors
    /// 500 with what is wrong.
    pub fn sound(&self) -> Result<(), Status> {
        match &self.fault {
            None => Ok(()),
            Some(fault) => Err(Status::new(500, "", fault.to_string())),
        }
    }

    /// The object in two pieces, to be sent one after the other.
    pub fn object(&self) -> [Bytes; 2] {
        [self.head.open.clone(), self.buffer.slice(LEAD..self.buffer.len() - TAIL)]
    }

    /// The object as an item of a list, with the comma before it.
    pub fn item(&self) -> Bytes {
        self.buffer.slice(..self.buffer.len() - TAIL)
    }

    /// Members of the object after its head, its closing brace, one more for the event around it, and a newline.
    pub fn event_rest(&self) -> &[u8] {
        &self.buffer[LEAD..]
    }

    /// As [`Entry::event_rest`], in two halves between which another resourceVersion is to be put: a deletion has the
    /// object as it was and the revision of the deletion.
    pub fn event_halves(&self) -> (&[u8], &[u8]) {
        let revision = self.revision.range();
        (&self.buffer[LEAD..revision.start], &self.buffer[revision.end..])
    }

    /// The value of `metadata`, braces included.
    pub fn metadata(&self) -> Bytes {
        self.buffer.slice(self.metadata.range())
    }

    /// As [`Entry::metadata`], in two halves between which another resourceVersion is to be put.
    pub fn metadata_halves(&self) -> (&[u8], &[u8]) {
        let (all, revision) = (self.metadata.range(), self.revision.range());
        (&self.buffer[all.start..revision.start], &self.buffer[revision.end..all.end])
    }

    /// The object as JSON in the stored version, with its resourceVersion; copied.
    ///
    /// # Errors
    /// 500 when the stored value could not be decoded.
    pub fn json(&self) -> Result<Bytes, Status> {
        self.sound()?;
        Ok(Bytes::from(self.object().concat()))
    }

    /// The object as a tree, in the stored version, with its resourceVersion; made anew with each call.
    ///
    /// # Errors
    /// 500 when the stored value could not be decoded.
    pub fn parse(&self) -> Result<Value, Status> {
        self.sound()?;
        // From its brace on, this is an object without kind and apiVersion.
        let members = &self.buffer[LEAD - 1..self.buffer.len() - TAIL];
        let mut value: Value = serde_json::from_slice(members).map_err(Status::internal)?;
        if self.head.typed {
            value["kind"] = (&*self.head.kind).into();
            value["apiVersion"] = (&*self.head.api_version).into();
        }
        Ok(value)
    }

    fn text(&self, span: Span) -> &str {
        match span.start {
            Span::EXTRA => self.extra.get(span.len as usize).map_or("", |text| text),
            Span::KNOWN => Span::TEXTS.get(span.len as usize).copied().unwrap_or_default(),
            _ => std::str::from_utf8(&self.buffer[span.range()]).unwrap_or_default(),
        }
    }

    fn bytes(&self, span: Span) -> &[u8] {
        match span.start {
            Span::EXTRA | Span::KNOWN => self.text(span).as_bytes(),
            _ => &self.buffer[span.range()],
        }
    }
}

impl Labelled for Entry {
    fn label(&self, key: &str) -> Option<&str> {
        Entry::label(self, key)
    }
}

impl store::cache::Indexed for Entry {
    fn index(&self, field: &str) -> Option<&str> {
        self.field(field)
    }

    fn weight(&self) -> usize {
        self.buffer.len() + size_of::<Self>() + 16 * self.labels.len() + 8 * (self.fields.len() + self.owners.len())
    }

    fn same(&self, other: &Self) -> bool {
        self.buffer == other.buffer && self.head == other.head && self.fault == other.fault
    }
}

/// `/registry/pods/` : below which the objects of a resource are stored.
pub fn resource_prefix(etcd_prefix: &str, row: &Row) -> String {
    format!("{etcd_prefix}/{}/", row.storage)
}

/// `/registry/pods/default/web` (or `/registry/nodes/n1`): where an object is stored.
pub fn key(etcd_prefix: &str, row: &Row, namespace: &str, name: &str) -> String {
    match namespace {
        "" => format!("{etcd_prefix}/{}/{name}", row.storage),
        _ => format!("{etcd_prefix}/{}/{namespace}/{name}", row.storage),
    }
}

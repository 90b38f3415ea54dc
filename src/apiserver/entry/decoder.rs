//! Stored bytes to entries.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use api::codec::{json, proto};
use api::resources::{Row, Text};
use api::schema::Facts;
use api::{Map, Value};
use bytes::Bytes;
use parking_lot::RwLock;
use store::KeyValue;
use store::cache::Decode;

use super::scan::{self, Member};
use super::{Entry, Head, LEAD, Span, TAIL};
use crate::registry::{Resources, facts};

/// Fields by which objects are found without looking at all of them, by storage: upstream's indexers.
const INDEXED: &[(&str, &[&str])] = &[("pods", &["spec.nodeName"])];
/// First bytes of values that upstream encrypted.
const ENCRYPTED: &[u8] = b"k8s:enc:";
/// Members of typed metadata after which upstream writes the resourceVersion.
const BEFORE_REVISION: [&[u8]; 5] = [b"name", b"generateName", b"namespace", b"selfLink", b"uid"];

type Table = Arc<BTreeMap<(Text, Text), Arc<Row>>>;

/// Makes entries.
pub struct Decoder {
    /// `/registry/`.
    root: String,
    resources: Arc<Resources>,
    /// What is known of each storage prefix, and the table it was taken from.
    kinds: RwLock<(Option<Table>, HashMap<Box<str>, Arc<Kind>>)>,
}

/// What the decoder knows of a resource.
struct Kind {
    /// `None` for data of a custom resource whose definition is not there (yet).
    row: Option<Arc<Row>>,
    paths: Paths,
    /// Heads by apiVersion and kind.
    heads: RwLock<Vec<Arc<Head>>>,
}

/// Paths of selectable fields as a tree.
#[derive(Debug, Default)]
struct Paths {
    leaf: bool,
    below: Vec<(&'static str, Paths)>,
}

impl Paths {
    fn of(fields: &[&'static str]) -> Self {
        let mut root = Self::default();
        for field in fields {
            let mut at = &mut root;
            for part in field.split('.') {
                let next = match at.below.iter().position(|(name, _)| *name == part) {
                    Some(next) => next,
                    None => {
                        at.below.push((part, Self::default()));
                        at.below.len() - 1
                    }
                };
                at = &mut at.below[next].1;
            }
            at.leaf = true;
        }
        root
    }

    fn get(&self, name: &[u8]) -> Option<(&'static str, &Paths)> {
        self.below.iter().find(|(known, _)| known.as_bytes() == name).map(|(known, paths)| (*known, paths))
    }
}

impl Decoder {
    /// A decoder of what is stored below `etcd_prefix` (`/registry`), by the rows of that table.
    pub fn new(etcd_prefix: &str, resources: Arc<Resources>) -> Self {
        Self { root: format!("{etcd_prefix}/"), resources, kinds: RwLock::default() }
    }

    /// What is known of the resource of a key; learned anew when the table has changed.
    fn kind(&self, key: &str) -> Arc<Kind> {
        let prefix = self.resource(key).unwrap_or(&self.root);
        let table = self.resources.snapshot();
        {
            let kinds = self.kinds.read();
            let same = kinds.0.as_ref().is_some_and(|known| Arc::ptr_eq(known, &table));
            if let Some(kind) = kinds.1.get(prefix).filter(|_| same) {
                return kind.clone();
            }
        }
        let mut kinds = self.kinds.write();
        if !kinds.0.as_ref().is_some_and(|known| Arc::ptr_eq(known, &table)) {
            kinds.1.clear();
            kinds.0 = Some(table.clone());
        }
        let storage = prefix.strip_prefix(&*self.root).unwrap_or_default().trim_end_matches('/');
        kinds.1.entry(prefix.into()).or_insert_with(|| Arc::new(Kind::new(row(&table, storage)))).clone()
    }
}

/// The row of a storage path; of two that share it (events), the one whose group is stored.
fn row(table: &Table, storage: &str) -> Option<Arc<Row>> {
    let mut rows = table.values().filter(|row| row.is_stored() && row.storage == storage);
    let first = rows.next()?;
    Some(
        rows.find(|row| row.group == row.stored_group)
            .filter(|_| first.group != first.stored_group)
            .unwrap_or(first)
            .clone(),
    )
}

impl Kind {
    fn new(row: Option<Arc<Row>>) -> Self {
        let paths = Paths::of(row.as_ref().map_or(&[], |row| row.selectable));
        Self { row, paths, heads: RwLock::default() }
    }

    fn fields(&self) -> &'static [&'static str] {
        self.row.as_ref().map_or(&[], |row| row.selectable)
    }

    /// The head of objects of that apiVersion and kind.
    fn head(&self, api_version: &str, kind: &str) -> Arc<Head> {
        let same = |head: &&Arc<Head>| *head.api_version == *api_version && *head.kind == *kind;
        if let Some(head) = self.heads.read().iter().find(same) {
            return head.clone();
        }
        let typed = self.row.as_ref().is_some_and(|row| is_typed(row));
        let open = if typed {
            let (kind, api_version) = (Value::from(kind), Value::from(api_version));
            format!("{{\"kind\":{kind},\"apiVersion\":{api_version},")
        } else {
            "{".to_string()
        };
        let head = Arc::new(Head {
            open: Bytes::from(open),
            kind: kind.into(),
            api_version: api_version.into(),
            typed,
            fields: self.fields(),
        });
        self.heads.write().push(head.clone());
        head
    }
}

/// True when objects of the row can be found by that field without looking at all of them.
pub(crate) fn is_indexed(row: &Row, field: &str) -> bool {
    INDEXED.iter().any(|(storage, fields)| *storage == row.storage && fields.contains(&field))
}

/// True for kinds that upstream has in Go, false for custom resources.
pub(crate) fn is_typed(row: &Row) -> bool {
    row.versions.iter().any(|version| facts(row).get(&version.schema).is_some_and(|ty| !ty.custom))
}

impl Decode for Decoder {
    type Entry = Entry;

    /// By form alone, so that custom resources are cached before their definitions are known: a first part with a dot
    /// is a group and its second the resource; so are Services' two storages.
    fn resource<'k>(&self, key: &'k str) -> Option<&'k str> {
        let rest = key.strip_prefix(&*self.root)?;
        let mut end = rest.find('/')?;
        if rest[..end].contains('.') || &rest[..end] == "services" {
            end += 1 + rest[end + 1..].find('/')?;
        }
        Some(&key[..self.root.len() + end + 1])
    }

    fn indexes(&self, resource: &str) -> &'static [&'static str] {
        let storage = resource.strip_prefix(&*self.root).unwrap_or_default().trim_end_matches('/');
        INDEXED.iter().find(|(name, _)| *name == storage).map_or(&[], |(_, fields)| fields)
    }

    fn decode(&self, kv: &KeyValue) -> Entry {
        let kind = self.kind(&kv.key);
        match entry(&kind, kv) {
            Ok(entry) => entry,
            Err(fault) => {
                faulty(&kind, &kv.key, format!("unable to decode an event from the store at {}: {fault}", kv.key))
            }
        }
    }
}

fn entry(kind: &Kind, kv: &KeyValue) -> Result<Entry, String> {
    if kv.value.starts_with(ENCRYPTED) {
        return Err("the value is encrypted, and no key for it is configured".into());
    }
    if kv.value.starts_with(proto::MAGIC) {
        return build(kind, &from_protobuf(kind, &kv.value)?, kv.mod_revision);
    }
    build(kind, &kv.value, kv.mod_revision)
}

/// A value that upstream wrote, as canonical JSON.
fn from_protobuf(kind: &Kind, value: &[u8]) -> Result<Vec<u8>, String> {
    let unknown = proto::open(value).map_err(|e| e.message)?;
    let facts: &'static Facts = kind.row.as_ref().map_or_else(api::schema::builtin, |row| facts(row));
    let (group, version) = unknown.api_version.rsplit_once('/').unwrap_or(("", &unknown.api_version));
    let ty = facts.kind(group, version, &unknown.kind);
    let ty = ty.ok_or_else(|| format!("no kind {:?} is registered for {}", unknown.kind, unknown.api_version))?;
    let mut object = proto::decode(facts, ty, unknown.raw).map_err(|e| e.message)?;
    object["kind"] = unknown.kind.as_str().into();
    object["apiVersion"] = unknown.api_version.as_str().into();
    if let Some(row) = kind.row.as_ref().filter(|row| row.stored_api_version() == unknown.api_version) {
        row.strategy.default(&mut object);
    }
    let mut out = Vec::new();
    json::encode(facts, ty, &object, &mut out);
    Ok(out)
}

/// An entry for what can't be decoded: found under the name that its key says, and refused when it is read.
fn faulty(kind: &Kind, key: &str, fault: String) -> Entry {
    let mut parts = key.rsplit('/');
    let name = parts.next().unwrap_or_default();
    let namespaced = kind.row.as_ref().is_some_and(|row| row.scope == api::resources::Scope::Namespaced);
    let namespace = if namespaced { parts.next().unwrap_or_default() } else { "" };
    Entry {
        buffer: Bytes::from_static(b",{}}\n"),
        head: kind.head("", ""),
        name: Span { start: Span::EXTRA, len: 0 },
        namespace: Span { start: Span::EXTRA, len: 1 },
        uid: Span::EMPTY,
        revision: Span { start: LEAD as u32, len: 0 },
        metadata: Span { start: LEAD as u32, len: 0 },
        labels: Box::default(),
        fields: kind.fields().iter().map(|_| Span::EMPTY).collect(),
        owners: Box::default(),
        terminating: false,
        extra: Box::new([name.into(), namespace.into()]),
        fault: Some(fault.into()),
        forms: OnceLock::new(),
    }
}

/// Writes the buffer of an entry and remembers where each part of the source went.
struct Builder<'s> {
    source: &'s [u8],
    buffer: Vec<u8>,
    /// Start and end in the source, and by how much it moved.
    moved: Vec<(usize, usize, isize)>,
    extra: Vec<Box<str>>,
}

impl<'s> Builder<'s> {
    fn copy(&mut self, range: Range<usize>) {
        self.moved.push((range.start, range.end, self.buffer.len() as isize - range.start as isize));
        self.buffer.extend_from_slice(&self.source[range]);
    }

    /// Where a place of the source is in the buffer.
    fn place(&self, range: Range<usize>) -> Span {
        let part = self.moved.iter().find(|(start, end, _)| *start <= range.start && range.end <= *end);
        match part {
            Some((_, _, by)) => Span { start: (range.start as isize + by) as u32, len: range.len() as u32 },
            None => Span::EMPTY,
        }
    }

    fn keep(&mut self, text: String) -> Span {
        if let Some(known) = Span::known(&text) {
            return known;
        }
        self.extra.push(text.into());
        Span { start: Span::EXTRA, len: self.extra.len() as u32 - 1 }
    }

    /// The text of a JSON string of the source.
    fn text(&mut self, value: Range<usize>) -> Span {
        let quoted = &self.source[value.clone()];
        match quoted {
            [b'"', inner @ .., b'"'] if !inner.contains(&b'\\') => self.place(value.start + 1..value.end - 1),
            _ => {
                let text = serde_json::from_slice::<String>(quoted).unwrap_or_default();
                self.keep(text)
            }
        }
    }
}

fn build(kind: &Kind, source: &[u8], revision: i64) -> Result<Entry, String> {
    std::str::from_utf8(source).map_err(|e| e.to_string())?;
    let fault = |fault: scan::Fault| fault.to_string();
    let top = scan::members(source, scan::document(source).map_err(fault)?).map_err(fault)?;
    let member = |name: &str| top.iter().find(|m| m.name(source) == name.as_bytes());
    let string = |m: Option<&Member>| m.and_then(|m| serde_json::from_slice::<String>(&source[m.value.clone()]).ok());
    let (api_version, name) = (string(member("apiVersion")), string(member("kind")));
    let (Some(api_version), Some(name)) = (api_version, name) else {
        return Err("Object 'Kind' or 'apiVersion' is missing".into());
    };
    let head = kind.head(&api_version, &name);
    let metadata = member("metadata").ok_or("the object has no metadata")?.clone();
    let inner = scan::members(source, metadata.value.clone()).map_err(fault)?;

    let mut builder = Builder {
        source,
        buffer: Vec::with_capacity(source.len() + 48),
        moved: Vec::with_capacity(8),
        extra: Vec::new(),
    };
    builder.buffer.extend_from_slice(b",{");
    let (mut at_metadata, mut at_revision) = (Span::EMPTY, Span::EMPTY);
    let kept = |m: &&Member| !(head.typed && matches!(m.name(source), b"kind" | b"apiVersion"));
    for (n, part) in top.iter().filter(kept).enumerate() {
        if n > 0 {
            builder.buffer.push(b',');
        }
        if part.key != metadata.key {
            builder.copy(part.whole());
            continue;
        }
        builder.copy(part.key.clone());
        builder.buffer.push(b':');
        let start = builder.buffer.len();
        at_revision = splice(&mut builder, &inner, head.typed, revision);
        at_metadata = Span { start: start as u32, len: (builder.buffer.len() - start) as u32 };
    }
    builder.buffer.extend_from_slice(b"}}\n");
    debug_assert_eq!(TAIL, 2);

    let found = |name: &str| inner.iter().find(|m| m.name(source) == name.as_bytes()).map(|m| m.value.clone());
    let mut text = |name: &str| found(name).map_or(Span::EMPTY, |value| builder.text(value));
    let (name, namespace, uid) = (text("name"), text("namespace"), text("uid"));
    let terminating = found("deletionTimestamp").is_some_and(|value| &source[value] != b"null");
    let labels = labels(&mut builder, found("labels"))?;
    let owners = owners(&mut builder, found("ownerReferences"))?;
    let fields = fields(&mut builder, kind, &top)?;
    let Builder { buffer, extra, .. } = builder;
    Ok(Entry {
        // To its exact size, for a very long life.
        buffer: Bytes::from(buffer.into_boxed_slice()),
        head,
        name,
        namespace,
        uid,
        revision: at_revision,
        metadata: at_metadata,
        labels,
        fields,
        owners,
        terminating,
        extra: extra.into(),
        fault: None,
        forms: OnceLock::new(),
    })
}

/// Writes the metadata with the resourceVersion where upstream has it; returns its place (without quotes).
fn splice(builder: &mut Builder<'_>, members: &[Member], typed: bool, revision: i64) -> Span {
    let source = builder.source;
    let others: Vec<&Member> = members.iter().filter(|m| m.name(source) != b"resourceVersion").collect();
    let first_after = |m: &&Member| match typed {
        true => !BEFORE_REVISION.contains(&m.name(source)),
        false => m.name(source) > &b"resourceVersion"[..],
    };
    let at = others.iter().position(first_after).unwrap_or(others.len());
    builder.buffer.push(b'{');
    copy_run(builder, &others[..at]);
    if at > 0 {
        builder.buffer.push(b',');
    }
    builder.buffer.extend_from_slice(b"\"resourceVersion\":\"");
    let start = builder.buffer.len();
    builder.buffer.extend_from_slice(itoa::Buffer::new().format(revision).as_bytes());
    let span = Span { start: start as u32, len: (builder.buffer.len() - start) as u32 };
    builder.buffer.push(b'"');
    if at < others.len() {
        builder.buffer.push(b',');
    }
    copy_run(builder, &others[at..]);
    builder.buffer.push(b'}');
    span
}

/// Copies members with commas between them; those that stand together in the source go as one.
fn copy_run(builder: &mut Builder<'_>, members: &[&Member]) {
    let mut rest = members;
    while let [first, ..] = rest {
        let adjacent = |pair: &[&Member]| builder.source[pair[0].value.end..pair[1].key.start] == *b",";
        let run = 1 + rest.windows(2).take_while(|pair| adjacent(pair)).count();
        builder.copy(first.key.start..rest[run - 1].value.end);
        rest = &rest[run..];
        if !rest.is_empty() {
            builder.buffer.push(b',');
        }
    }
}

fn labels(builder: &mut Builder<'_>, at: Option<Range<usize>>) -> Result<Box<[(Span, Span)]>, String> {
    let Some(at) = at.filter(|at| builder.source[at.start] == b'{') else { return Ok(Box::default()) };
    let members = scan::members(builder.source, at).map_err(|fault| fault.to_string())?;
    Ok(members.into_iter().map(|m| (builder.text(m.key), builder.text(m.value))).collect())
}

fn owners(builder: &mut Builder<'_>, at: Option<Range<usize>>) -> Result<Box<[Span]>, String> {
    let fault = |fault: scan::Fault| fault.to_string();
    let Some(at) = at.filter(|at| builder.source[at.start] == b'[') else { return Ok(Box::default()) };
    let mut owners = Vec::new();
    for item in scan::items(builder.source, at).map_err(fault)? {
        let members = scan::members(builder.source, item).map_err(fault)?;
        if let Some(uid) = members.into_iter().find(|m| m.name(builder.source) == b"uid") {
            owners.push(builder.text(uid.value));
        }
    }
    Ok(owners.into())
}

/// The selectable fields: a tree of those alone is given to the strategy, which knows how absent ones print.
fn fields(builder: &mut Builder<'_>, kind: &Kind, top: &[Member]) -> Result<Box<[Span]>, String> {
    let Some(row) = kind.row.as_ref().filter(|row| !row.selectable.is_empty()) else { return Ok(Box::default()) };
    let mut places = Vec::new();
    let tree = pick(builder.source, top, &kind.paths, &mut places)?;
    let tree = Value::Object(tree);
    let mut fields = Vec::with_capacity(row.selectable.len());
    for field in row.selectable {
        let text = row.strategy.selectable(&tree, field);
        let place = places.iter().find(|place| builder.source[(*place).clone()] == *text.as_bytes());
        fields.push(match place {
            Some(place) if !text.is_empty() => builder.place(place.clone()),
            _ => builder.keep(text),
        });
    }
    Ok(fields.into())
}

/// The part of an object that the paths name; `places` gets the text of each string or number in it.
fn pick(source: &[u8], members: &[Member], paths: &Paths, places: &mut Vec<Range<usize>>) -> Result<Map, String> {
    let mut out = Map::new();
    for member in members {
        let Some((name, below)) = paths.get(member.name(source)) else { continue };
        let value = member.value.clone();
        if below.leaf {
            let parsed = serde_json::from_slice(&source[value.clone()]).map_err(|e| e.to_string())?;
            match &parsed {
                Value::String(_) => places.push(value.start + 1..value.end - 1),
                Value::Number(_) => places.push(value),
                _ => {}
            }
            out.insert(name.to_string(), parsed);
        } else if source[value.start] == b'{' {
            let inner = scan::members(source, value).map_err(|fault| fault.to_string())?;
            out.insert(name.to_string(), Value::Object(pick(source, &inner, below, places)?));
        }
    }
    Ok(out)
}

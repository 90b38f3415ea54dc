//! Get and list, for all resources: bytes from the cache, never a tree of values.
//!
//! Which state a read shows, by its resourceVersion:
//!
//! | | unset | 0 | a revision |
//! |---|---|---|---|
//! | get | the newest | any | that or newer |
//! | list | the newest | any, without pages | that or newer; exactly that with a limit or `Exact` |
//! | list with a token | exactly the token's (older ones from the store) | the same | refused |
//!
//! "The newest" is linearizable: the store is asked for its revision, and the cache waited for.

use std::ops::Bound;
use std::sync::Arc;

use api::resources::{Row, Scope};
use api::status::Status;
use http::StatusCode;
use store::Revision;
use store::cache::{Cached, Entries, Snapshot};

use super::failure;
use super::list_options::{ListOptions, Match, parse_version, too_large};
use super::output::{self, ListMeta};
use super::token::Token;
use crate::Api;
use crate::entry::{self, Entry};
use crate::request::{Answer, Request};

/// Answers `GET` of an object. (`?watch=true` changes nothing here, as upstream.)
///
/// # Errors
/// Whatever upstream answers.
pub async fn get(api: &Arc<Api>, row: &Arc<Row>, req: &mut Request) -> Result<Answer, Status> {
    let accept = output::negotiate(row, req)?;
    if req.param("export").is_some_and(|value| value != "false" && value != "0") {
        return Err(Status::bad_request("the export parameter, deprecated since v1.14, is no longer supported"));
    }
    fresh_for_get(api, row, req).await?;
    let info = &req.info;
    let key = entry::key(&api.settings.etcd_prefix, row, &info.namespace, &info.name);
    let found = api.cache.get(&key).ok_or_else(|| Status::not_found(row.group_resource(), &info.name))?;
    output::entry(api, row, req, &accept, StatusCode::OK, &found)
}

async fn fresh_for_get(api: &Api, row: &Row, req: &Request) -> Result<(), Status> {
    match req.param("resourceVersion").unwrap_or_default() {
        "" => refresh(api, row, &req.info.name, "get").await,
        text => {
            let wanted = parse_version(text).map_err(|message| Status::new(500, "", message))?;
            wait(api, wanted).await
        }
    }
}

async fn refresh(api: &Api, row: &Row, name: &str, verb: &str) -> Result<(), Status> {
    api.cache.refresh().await.map(|_| ()).map_err(|error| failure(error, row, name, verb))
}

/// Waits until the cache has reached a revision that a client names.
pub(super) async fn wait(api: &Api, wanted: u64) -> Result<(), Status> {
    let revision = Revision::try_from(wanted).unwrap_or(Revision::MAX);
    api.cache.wait(revision).await.map_err(|_| too_large(wanted, api.cache.revision()))
}

/// Answers `GET` of a collection that is no watch.
///
/// # Errors
/// Whatever upstream answers.
pub async fn list(api: &Arc<Api>, row: &Arc<Row>, req: &mut Request) -> Result<Answer, Status> {
    let accept = output::negotiate(row, req)?;
    let (meta, items) = select(api, row, req).await?;
    output::list(api, row, req, &accept, meta, items)
}

/// The objects that a request's query selects, with the list's metadata: what `list` answers and deletecollection
/// deletes.
///
/// # Errors
/// Whatever upstream's list answers.
pub async fn select(
    api: &Arc<Api>, row: &Arc<Row>, req: &Request,
) -> Result<(ListMeta, Vec<Arc<Cached<Entry>>>), Status> {
    let options = ListOptions::read(row, req)?;
    let list = List::new(api, row, req, &options)?;
    let state = list.state().await?;
    Ok(list.page(&state))
}

/// A list that is being made.
struct List<'a> {
    api: &'a Api,
    row: &'a Row,
    options: &'a ListOptions,
    resource: String,
    /// Keys of the list begin with this: the resource's, or those of a namespace.
    prefix: String,
    /// First key, from the token; empty for the beginning.
    from: String,
    token: Option<Token>,
}

impl<'a> List<'a> {
    fn new(api: &'a Api, row: &'a Row, req: &Request, options: &'a ListOptions) -> Result<Self, Status> {
        let resource = entry::resource_prefix(&api.settings.etcd_prefix, row);
        let prefix = match &*req.info.namespace {
            "" => resource.clone(),
            namespace => format!("{resource}{namespace}/"),
        };
        let token = match &*options.token {
            "" => None,
            text => {
                let invalid = |why| Status::bad_request(format!("invalid continue token: {why}"));
                Some(Token::decode(text).map_err(invalid)?)
            }
        };
        if token.is_some() && !matches!(&*options.resource_version, "" | "0") {
            return Err(Status::bad_request("specifying resource version is not allowed when using continue"));
        }
        let from = token.as_ref().map(|token| format!("{prefix}{}", token.start)).unwrap_or_default();
        Ok(Self { api, row, options, resource, prefix, from, token })
    }

    /// The state that the list shows.
    async fn state(&self) -> Result<Snapshot<Entry>, Status> {
        match &self.token {
            Some(token) if token.revision > 0 => return self.exactly(token.revision.unsigned_abs()).await,
            Some(_) => return self.newest().await,
            None => {}
        }
        let text = &*self.options.resource_version;
        let wanted =
            parse_version(text).map_err(|why| Status::bad_request(format!("invalid resource version: {why}")))?;
        match self.options.version_match {
            Some(Match::Exact) => self.exactly(wanted).await,
            None if wanted > 0 && self.options.limit > 0 => self.exactly(wanted).await,
            None if text.is_empty() => self.newest().await,
            _ => {
                wait(self.api, wanted).await?;
                Ok(self.api.cache.snapshot(&self.resource))
            }
        }
    }

    async fn newest(&self) -> Result<Snapshot<Entry>, Status> {
        refresh(self.api, self.row, "", "list").await?;
        Ok(self.api.cache.snapshot(&self.resource))
    }

    /// The state at a revision: from the cache's log, else from the store.
    async fn exactly(&self, wanted: u64) -> Result<Snapshot<Entry>, Status> {
        wait(self.api, wanted).await?;
        let revision = Revision::try_from(wanted).unwrap_or(Revision::MAX);
        match self.api.cache.snapshot_at(&self.resource, revision) {
            Ok(snapshot) => Ok(snapshot),
            Err(store::Error::Compacted { .. }) => self.from_store(revision).await,
            Err(error) => Err(failure(error, self.row, "", "list")),
        }
    }

    /// What the cache has forgotten the store may still have.
    async fn from_store(&self, revision: Revision) -> Result<Snapshot<Entry>, Status> {
        let mut entries = Entries::new();
        let mut from = self.from.clone();
        // Where nothing is filtered, a page needs no more than its items and to know that more follow.
        let enough = if self.options.selects_all() { self.limit() } else { 0 };
        loop {
            let page = self.api.store.list(&self.prefix, &from, PAGE.max(enough), revision).await;
            let page = match page {
                Ok(page) => page,
                Err(store::Error::Compacted { .. }) => return Err(self.expired()),
                Err(error) => return Err(failure(error, self.row, "", "list")),
            };
            if let Some(last) = page.items.last() {
                from = format!("{}\0", last.key);
            }
            for kv in &page.items {
                entries.insert(kv.key.clone(), self.api.cache.decode(kv));
            }
            if !page.more {
                return Ok(Snapshot::of(revision, entries));
            }
        }
    }

    /// A revision that nobody has any more. A token leads on from a newer state, for those who can bear that.
    fn expired(&self) -> Status {
        if self.token.is_none() {
            return Status::expired("The resourceVersion for the provided list is too old.");
        }
        let mut status = Status::expired(
            "The provided continue parameter is too old to display a consistent list result. You can start a new list \
             without the continue parameter, or use the continue token in this response to retrieve the remainder of \
             the results. Continuing with the provided token results in an inconsistent list - objects that were \
             created, modified, or deleted between the time the first chunk was returned and now may show up in the \
             list.",
        );
        let start = self.from.strip_prefix(&self.prefix).unwrap_or_default().to_string();
        status.continue_token = Some(Token { revision: -1, start }.encode());
        status
    }

    /// Items per page; a list of any state has no pages.
    fn limit(&self) -> usize {
        if self.options.resource_version == "0" { 0 } else { self.options.limit }
    }

    /// What is selected of a state.
    fn page(&self, state: &Snapshot<Entry>) -> (ListMeta, Vec<Arc<Cached<Entry>>>) {
        let mut meta = ListMeta { revision: state.revision, ..ListMeta::default() };
        let filter = Filter::new(self.options);
        if let Some(name) = self.options.fields.exact("metadata.name").filter(|_| self.token.is_none())
            && let Some(key) = self.single_key(name)
        {
            let found = state.entries.get(&*key).filter(|cached| filter.matches(&cached.entry));
            return (meta, found.cloned().into_iter().collect());
        }
        let limit = self.limit();
        if limit == 0
            && let Some(found) = self.by_index(state, &filter)
        {
            return (meta, found);
        }
        let mut items = Vec::new();
        let mut rest = range(&state.entries, &self.prefix, &self.from);
        while let Some((_, cached)) = rest.next() {
            if filter.matches(&cached.entry) {
                items.push(cached.clone());
            }
            if limit > 0 && items.len() >= limit {
                self.more(&mut meta, cached, rest);
                break;
            }
        }
        (meta, items)
    }

    /// The page is full: what says that and how it goes on, if it does.
    fn more<'e>(
        &self, meta: &mut ListMeta, last: &Cached<Entry>,
        mut rest: impl Iterator<Item = (&'e Arc<str>, &'e Arc<Cached<Entry>>)>,
    ) {
        if rest.next().is_none() {
            return;
        }
        let start = format!("{}\0", last.key.strip_prefix(&*self.prefix).unwrap_or_default());
        meta.token = Token { revision: meta.revision, start }.encode();
        if self.options.selects_all() {
            meta.remaining = i64::try_from(1 + rest.count()).ok();
        }
    }

    /// The one key that a name can have; a name without a namespace can have many.
    fn single_key(&self, name: &str) -> Option<String> {
        let namespaced = self.row.scope == Scope::Namespaced;
        let namespace = self.options.fields.exact("metadata.namespace");
        if !namespaced || self.prefix != self.resource {
            return Some(format!("{}{name}", self.prefix));
        }
        namespace.map(|namespace| format!("{}{namespace}/{name}", self.prefix))
    }

    /// By an indexed field, or by the namespace that a selector names.
    fn by_index(&self, state: &Snapshot<Entry>, filter: &Filter<'_>) -> Option<Vec<Arc<Cached<Entry>>>> {
        let pinned = self.options.fields.terms().iter().filter(|term| !term.negated);
        let found = pinned.clone().find_map(|term| state.by_field(&term.field, &term.value));
        let (entries, prefix) = match (found, self.options.fields.exact("metadata.namespace")) {
            (Some(entries), _) => (entries, self.prefix.clone()),
            (None, Some(namespace)) if self.row.scope == Scope::Namespaced => {
                let narrow = format!("{}{namespace}/", self.resource);
                (state.entries.clone(), if self.prefix == self.resource { narrow } else { self.prefix.clone() })
            }
            _ => return None,
        };
        let all = range(&entries, &prefix, &self.from);
        Some(all.filter(|(_, cached)| filter.matches(&cached.entry)).map(|(_, cached)| cached.clone()).collect())
    }
}

/// Items read from the store at a time.
const PAGE: usize = 500;

/// Entries below a prefix, from a key on.
pub(super) fn range<'e>(
    entries: &'e Entries<Entry>, prefix: &'e str, from: &str,
) -> impl Iterator<Item = (&'e Arc<str>, &'e Arc<Cached<Entry>>)> {
    let start = if from > prefix { from } else { prefix };
    let bounds = (Bound::Included(start), Bound::Unbounded);
    entries.range::<_, str>(bounds).take_while(move |(key, _)| key.starts_with(prefix))
}

/// What selectors let through.
pub(super) struct Filter<'o> {
    options: &'o ListOptions,
    all: bool,
}

impl<'o> Filter<'o> {
    pub(super) fn new(options: &'o ListOptions) -> Self {
        Self { options, all: options.selects_all() }
    }

    pub(super) fn matches(&self, entry: &Entry) -> bool {
        if self.all {
            return true;
        }
        let value = |field: &str| entry.field(field).unwrap_or_default().into();
        self.options.labels.matches(entry) && self.options.fields.matches(value)
    }
}

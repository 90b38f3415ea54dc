//! Paths and operations, row by row.

use std::borrow::Cow;

use super::schemas::meta;
use super::texts::Texts;
use crate::discovery::{Group, Version};
use crate::resources::{self, Row, Scope, Subresource, api_version};
use crate::schema::{Facts, Shape, Type};

/// A path with what can be done there.
pub(super) struct Path {
    pub(super) path: String,
    /// Parameters that all operations share.
    pub(super) common: Vec<Parameter>,
    pub(super) operations: Vec<Operation>,
}

/// What can be done at a path with one method.
pub(super) struct Operation {
    pub(super) method: &'static str,
    pub(super) id: String,
    pub(super) text: String,
    pub(super) tag: String,
    /// `x-kubernetes-action`; what is no resource has none.
    pub(super) action: Option<&'static str>,
    pub(super) gvk: (String, String, String),
    pub(super) parameters: Vec<Parameter>,
    pub(super) body: Option<Body>,
    pub(super) consumes: &'static [&'static str],
    pub(super) produces: Vec<&'static str>,
    pub(super) responses: Vec<(u16, &'static str, Content)>,
}

/// A request's body.
pub(super) struct Body {
    pub(super) schema: String,
    pub(super) required: bool,
}

/// What a response holds.
pub(super) enum Content {
    Nothing,
    Text,
    Type(String),
}

/// Where a parameter stands.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    Path,
    Query,
}

impl Place {
    pub(super) fn name(self) -> &'static str {
        match self {
            Place::Query => "query",
            Place::Path => "path",
        }
    }
}

/// A parameter.
#[derive(Clone, PartialEq)]
pub(super) struct Parameter {
    pub(super) name: Cow<'static, str>,
    pub(super) place: Place,
    pub(super) kind: &'static str,
    pub(super) text: String,
}

impl Parameter {
    fn query(name: &'static str, kind: &'static str, text: impl Into<String>) -> Self {
        Self { name: name.into(), place: Place::Query, kind, text: text.into() }
    }

    fn path(name: &'static str, text: impl Into<String>) -> Self {
        Self { name: name.into(), place: Place::Path, kind: "string", text: text.into() }
    }

    /// Stands among v2's shared parameters. Old kubectls look for `dryRun` and `fieldValidation` in the operation
    /// itself, and `name` says the kind.
    pub(super) fn is_shared(&self) -> bool {
        !matches!(&*self.name, "name" | "dryRun" | "fieldValidation")
    }
}

impl Path {
    fn new(path: String, operations: Vec<Operation>) -> Self {
        let mut path = Self { path, common: Vec::new(), operations };
        path.hoist();
        path
    }

    /// Moves to the path what all its operations take.
    fn hoist(&mut self) {
        for operation in &mut self.operations {
            operation.parameters.sort_by(|a, b| (&a.name, a.place).cmp(&(&b.name, b.place)));
        }
        let Some((first, rest)) = self.operations.split_first() else { return };
        let everywhere = |p: &&Parameter| rest.iter().all(|operation| operation.parameters.contains(p));
        self.common = first.parameters.iter().filter(everywhere).cloned().collect();
        for operation in &mut self.operations {
            operation.parameters.retain(|p| !self.common.contains(p));
        }
    }

    /// Names of the types that are spoken of.
    pub(super) fn types(&self) -> impl Iterator<Item = String> {
        self.operations.iter().flat_map(|operation| {
            let responses = operation.responses.iter().filter_map(|(_, _, content)| match content {
                Content::Type(name) => Some(name.clone()),
                _ => None,
            });
            operation.body.iter().map(|body| body.schema.clone()).chain(responses)
        })
    }

    pub(super) fn parameters(&self) -> impl Iterator<Item = &Parameter> {
        self.common.iter().chain(self.operations.iter().flat_map(|operation| &operation.parameters))
    }
}

const ANY: &[&str] = &["*/*"];
const SERVED: &[&str] = &["application/json", "application/yaml", "application/vnd.kubernetes.protobuf"];
const CUSTOM: &[&str] = &["application/json", "application/yaml"];
const PATCHES: &[&str] = &[
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
];
const CUSTOM_PATCHES: &[&str] =
    &["application/json-patch+json", "application/merge-patch+json", "application/apply-patch+yaml"];
const STREAMS: &[&str] = &["application/json;stream=watch", "application/vnd.kubernetes.protobuf;stream=watch"];
const CUSTOM_STREAMS: &[&str] = &["application/json;stream=watch"];

/// `rbac.authorization.k8s.io` as `RbacAuthorization` or, for tags, `rbacAuthorization`.
fn group_name(group: &str, capital: bool) -> String {
    let group = if group.is_empty() { "core" } else { group };
    let parts = group.strip_suffix(".k8s.io").unwrap_or(group).split(['.', '-']);
    parts.enumerate().map(|(i, part)| if i > 0 || capital { title(part) } else { part.to_string() }).collect()
}

fn title(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map(|first| first.to_uppercase().chain(chars).collect()).unwrap_or_default()
}

fn plain(id: String, text: &str, tag: String, media: &'static [&'static str], kind: &str) -> Operation {
    Operation {
        method: "get",
        id,
        text: text.into(),
        tag,
        action: None,
        gvk: Default::default(),
        parameters: Vec::new(),
        body: None,
        consumes: media,
        produces: media.to_vec(),
        responses: vec![(200, "OK", Content::Type(kind.into())), (401, "Unauthorized", Content::Nothing)],
    }
}

/// Paths that belong to no group.
pub(super) fn other() -> Vec<Path> {
    let json = &["application/json"];
    let info = "io.k8s.apimachinery.pkg.version.Info";
    let text = "get the version information for this server";
    let version = plain("getCodeVersion".into(), text, "version".into(), json, info);
    let words = |id: &str, text: &str, tag: &str, media: &'static str| Operation {
        consumes: &[],
        produces: vec![media],
        responses: vec![(200, "OK", Content::Text), (401, "Unauthorized", Content::Nothing)],
        ..plain(id.into(), text, tag.into(), json, "")
    };
    let issuer = words(
        "getServiceAccountIssuerOpenIDConfiguration",
        "get service account issuer OpenID configuration, also known as the 'OIDC discovery doc'",
        "WellKnown",
        "application/json",
    );
    let keys = words(
        "getServiceAccountIssuerOpenIDKeyset",
        "get service account issuer OpenID JSON Web Key Set (contains public token verification keys)",
        "openid",
        "application/jwk-set+json",
    );
    vec![
        Path::new("/version/".into(), vec![version]),
        Path::new("/.well-known/openid-configuration/".into(), vec![issuer]),
        Path::new("/openid/v1/jwks/".into(), vec![keys]),
    ]
}

/// `/apis/`.
pub(super) fn groups() -> Path {
    let operation =
        plain("getAPIVersions".into(), "get available API versions", "apis".into(), SERVED, &meta("APIGroupList"));
    Path::new("/apis/".into(), vec![operation])
}

/// The path of a group itself.
pub(super) fn for_group(group: &Group<'_>) -> Option<Path> {
    let tag = group_name(&group.name, false);
    Some(if group.name.is_empty() {
        let operation =
            plain("getCoreAPIVersions".into(), "get available API versions", tag, SERVED, &meta("APIVersions"));
        Path::new("/api/".into(), vec![operation])
    } else if is_custom(&group.name) {
        return None;
    } else {
        let id = format!("get{}APIGroup", group_name(&group.name, true));
        let operation = plain(id, "get information of a group", tag, SERVED, &meta("APIGroup"));
        Path::new(format!("/apis/{}/", group.name), vec![operation])
    })
}

fn is_custom(group: &str) -> bool {
    resources::Group::find(group).is_none()
}

/// The paths of a group's version.
pub(super) fn for_version(facts: &Facts, texts: &Texts, group: &Group<'_>, version: &Version<'_>) -> Vec<Path> {
    let root = if group.name.is_empty() { "/api" } else { "/apis" };
    let base = format!("{root}/{}", api_version(&group.name, &version.name));
    let custom = is_custom(&group.name);
    let prefix = group_name(&group.name, true) + &title(&version.name);
    let tag = format!("{}_{}", group_name(&group.name, false), version.name);
    let mut paths = Vec::new();
    if !custom {
        let id = format!("get{prefix}APIResources");
        let operation = plain(id, "get available resources", tag.clone(), SERVED, &meta("APIResourceList"));
        paths.push(Path::new(format!("{base}/"), vec![operation]));
    }
    for row in &version.rows {
        let Some(of) = row.version(&version.name) else { continue };
        let gvk = (group.name.to_string(), version.name.to_string(), row.kind.to_string());
        let maker =
            Maker { facts, texts, row, base: &base, prefix: &prefix, tag: &tag, custom, gvk, schema: &of.schema };
        maker.run(&mut paths);
    }
    paths
}

/// Makes the paths of one row.
struct Maker<'a> {
    facts: &'a Facts,
    texts: &'a Texts,
    row: &'a Row,
    base: &'a str,
    /// `AppsV1`.
    prefix: &'a str,
    tag: &'a str,
    custom: bool,
    gvk: (String, String, String),
    /// Name of the kind's type.
    schema: &'a str,
}

impl Maker<'_> {
    fn run(&self, paths: &mut Vec<Path>) {
        let plural = &self.row.plural;
        let (within, word) = self.scope();
        let collection = format!("{}{within}/{plural}", self.base);
        let item = format!("{collection}/{{name}}");
        self.add(paths, collection, self.collection(word));
        self.add(paths, item.clone(), self.item(word));
        if !within.is_empty() && self.has("list") {
            let id = format!("list{}{}ForAllNamespaces", self.prefix, self.row.kind);
            let mut list = self.list(id);
            list.parameters.retain(|p| p.name != "namespace");
            self.add(paths, format!("{}/{plural}", self.base), vec![list]);
        }
        if self.has("watch") && !self.custom {
            self.watches(paths, within, word);
        }
        for sub in &self.row.subresources {
            self.subresource(paths, sub, &format!("{item}/{}", sub.name), word);
        }
    }

    fn add(&self, paths: &mut Vec<Path>, path: String, operations: Vec<Operation>) {
        if !operations.is_empty() {
            paths.push(Path::new(path, operations));
        }
    }

    fn has(&self, verb: &str) -> bool {
        self.row.verbs.iter().any(|v| v == verb)
    }

    /// What stands before the plural in the path, and in operation ids.
    fn scope(&self) -> (&'static str, &'static str) {
        match self.row.scope {
            Scope::Namespaced => ("/namespaces/{namespace}", "Namespaced"),
            Scope::Cluster => ("", ""),
        }
    }

    fn namespace(&self) -> Option<Parameter> {
        let text = "object name and auth scope, such as for teams and projects";
        (self.row.scope == Scope::Namespaced).then(|| Parameter::path("namespace", text))
    }

    fn name(&self, kind: &str) -> Parameter {
        Parameter::path("name", format!("name of the {kind}"))
    }

    fn operation(&self, method: &'static str, action: &'static str, id: String, text: String) -> Operation {
        let mut parameters = vec![pretty()];
        parameters.extend(self.namespace());
        Operation {
            method,
            id,
            text,
            tag: self.tag.into(),
            action: Some(action),
            gvk: self.gvk.clone(),
            parameters,
            body: None,
            consumes: ANY,
            produces: if self.custom { CUSTOM.into() } else { SERVED.into() },
            responses: Vec::new(),
        }
    }

    fn list_schema(&self) -> String {
        match self.schema.rsplit_once('.') {
            Some((package, _)) => format!("{package}.{}", self.row.list_kind),
            None => self.row.list_kind.to_string(),
        }
    }

    fn list(&self, id: String) -> Operation {
        let watch = if self.has("watch") { "list or watch" } else { "list" };
        let mut list = self.operation("get", "list", id, format!("{watch} objects of kind {}", self.row.kind));
        list.parameters.extend(list_parameters());
        list.produces.extend(if self.custom { CUSTOM_STREAMS } else { STREAMS });
        list.responses = ok(&[200], &self.list_schema());
        list
    }

    fn collection(&self, word: &str) -> Vec<Operation> {
        let (prefix, kind) = (self.prefix, &self.row.kind);
        let mut operations = Vec::new();
        if self.has("list") {
            operations.push(self.list(format!("list{prefix}{word}{kind}")));
        }
        if self.has("create") {
            operations.push(self.create(
                format!("create{prefix}{word}{kind}"),
                format!("create{}", article(kind)),
                self.schema,
            ));
        }
        if self.has("deletecollection") {
            let id = format!("delete{prefix}Collection{word}{kind}");
            let mut delete = self.operation("delete", "deletecollection", id, format!("delete collection of {kind}"));
            delete
                .parameters
                .extend(list_parameters().filter(|p| !matches!(&*p.name, "allowWatchBookmarks" | "watch")));
            delete.parameters.extend(self.delete_parameters());
            delete.body = Some(Body { schema: meta("DeleteOptions"), required: false });
            delete.responses = ok(&[200], &meta("Status"));
            operations.push(delete);
        }
        operations
    }

    fn create(&self, id: String, text: String, schema: &str) -> Operation {
        let mut create = self.operation("post", "post", id, text);
        create.parameters.extend(self.write_parameters(false));
        create.body = Some(Body { schema: schema.into(), required: true });
        create.responses = ok(&[200, 201, 202], schema);
        create
    }

    fn item(&self, word: &str) -> Vec<Operation> {
        let (prefix, kind) = (self.prefix, &self.row.kind);
        let mut operations =
            self.reads_and_writes(&self.row.verbs, &format!("{prefix}{word}{kind}"), "", self.schema, &self.gvk);
        if self.has("delete") {
            let id = format!("delete{prefix}{word}{kind}");
            let mut delete = self.operation("delete", "delete", id, format!("delete{}", article(kind)));
            delete.parameters.push(self.name(kind));
            delete.parameters.extend(self.delete_parameters());
            delete.body = Some(Body { schema: meta("DeleteOptions"), required: false });
            // Namespaces answer with the object only while it waits for its finalizers, which is not documented.
            let with_object = self.row.answers_deleted && self.row.kind != "Namespace";
            let answer = if with_object { self.schema.to_string() } else { meta("Status") };
            delete.responses = ok(&[200, 202], &answer);
            operations.push(delete);
        }
        operations
    }

    /// Get, put and patch of an object or a part of it.
    fn reads_and_writes(
        &self, verbs: &[resources::Text], suffix: &str, part: &str, schema: &str, gvk: &(String, String, String),
    ) -> Vec<Operation> {
        let kind = &self.row.kind;
        let what =
            if part.is_empty() { format!("the specified {kind}") } else { format!("{part} of the specified {kind}") };
        let make = |method, action, verb: &str, words: &str| {
            let mut operation = self.operation(method, action, format!("{verb}{suffix}"), format!("{words} {what}"));
            operation.gvk = gvk.clone();
            operation.parameters.push(self.name(&gvk.2));
            operation
        };
        let has = |verb: &str| verbs.iter().any(|v| v == verb);
        let mut operations = Vec::new();
        if has("get") {
            let mut get = make("get", "get", "read", "read");
            get.responses = ok(&[200], schema);
            operations.push(get);
        }
        if has("update") {
            let mut put = make("put", "put", "replace", "replace");
            put.parameters.extend(self.write_parameters(false));
            put.body = Some(Body { schema: schema.into(), required: true });
            put.responses = ok(&[200, 201], schema);
            operations.push(put);
        }
        if has("patch") {
            let mut patch = make("patch", "patch", "patch", "partially update");
            patch.parameters.extend(self.write_parameters(true));
            patch.body = Some(Body { schema: meta("Patch"), required: true });
            patch.consumes = if self.custom { CUSTOM_PATCHES } else { PATCHES };
            patch.responses = ok(&[200, 201], schema);
            operations.push(patch);
        }
        operations
    }

    /// The old paths for watches.
    fn watches(&self, paths: &mut Vec<Path>, within: &str, word: &str) {
        const INSTEAD: &str = "deprecated: use the 'watch' parameter with a list operation instead";
        let (prefix, kind, plural) = (self.prefix, &self.row.kind, &self.row.plural);
        let watch = |action, id: String, text: String| {
            let mut watch = self.operation("get", action, id, text);
            watch.parameters.extend(list_parameters());
            watch.produces.extend(STREAMS);
            watch.responses = ok(&[200], &meta("WatchEvent"));
            watch
        };
        let list_text = format!("watch individual changes to a list of {kind}. {INSTEAD}.");
        if self.has("list") {
            let list = watch("watchlist", format!("watch{prefix}{word}{kind}List"), list_text.clone());
            self.add(paths, format!("{}/watch{within}/{plural}", self.base), vec![list]);
            if !within.is_empty() {
                let mut all = watch("watchlist", format!("watch{prefix}{kind}ListForAllNamespaces"), list_text);
                all.parameters.retain(|p| p.name != "namespace");
                self.add(paths, format!("{}/watch/{plural}", self.base), vec![all]);
            }
        }
        let text = format!(
            "watch changes to an object of kind {kind}. {INSTEAD}, filtered to a single item with the 'fieldSelector' parameter."
        );
        let mut one = watch("watch", format!("watch{prefix}{word}{kind}"), text);
        one.parameters.push(self.name(kind));
        self.add(paths, format!("{}/watch{within}/{plural}/{{name}}", self.base), vec![one]);
    }

    fn subresource(&self, paths: &mut Vec<Path>, sub: &Subresource, path: &str, word: &str) {
        let (group, version, kind) = &sub.gvk;
        let gvk = match &**version {
            "" => (self.gvk.0.clone(), self.gvk.1.clone(), kind.to_string()),
            version => (group.to_string(), version.to_string(), kind.to_string()),
        };
        let suffix = format!("{word}{}{}", self.row.kind, title(&sub.name));
        if let Some(options) = self.facts.kind(&gvk.0, &gvk.1, &gvk.2).filter(|_| kind.ends_with("Options")) {
            return self.connects(paths, sub, path, &suffix, &gvk, options);
        }
        let schema = match self.facts.kind(&gvk.0, &gvk.1, &gvk.2) {
            Some(ty) => ty.name.to_string(),
            None => self.schema.to_string(),
        };
        let mut operations =
            self.reads_and_writes(&sub.verbs, &format!("{}{suffix}", self.prefix), &sub.name, &schema, &gvk);
        if sub.verbs.iter().any(|verb| verb == "create") {
            let text = format!("create {} of{}", sub.name, article(&self.row.kind));
            let mut create = self.create(format!("create{}{suffix}", self.prefix), text, &schema);
            create.parameters.push(self.name(&gvk.2));
            create.gvk = gvk.clone();
            operations.push(create);
        }
        let options = format!("{}{}Options", self.row.kind, title(&sub.name));
        if let Some(options) = self.facts.kind(&self.gvk.0, &self.gvk.1, &options) {
            for operation in &mut operations {
                operation.parameters.extend(self.option_parameters(options));
                operation.produces.insert(0, "text/plain");
                operation.responses[0].2 = Content::Text;
            }
        }
        self.add(paths, path.to_string(), operations);
    }

    /// Subresources that hand the connection on.
    fn connects(
        &self, paths: &mut Vec<Path>, sub: &Subresource, path: &str, suffix: &str, gvk: &(String, String, String),
        options: &Type,
    ) {
        let has = |verb: &str| sub.verbs.iter().any(|v| v == verb);
        let mut methods = Vec::new();
        for (verb, method) in
            [("get", "get"), ("update", "put"), ("create", "post"), ("delete", "delete"), ("patch", "patch")]
        {
            if has(verb) {
                methods.push(method);
            }
        }
        let passes_paths = options.field("path").is_some();
        if passes_paths {
            methods.extend(["options", "head"]);
        }
        for with_path in [false, true] {
            if with_path && !passes_paths {
                continue;
            }
            let operations = methods.iter().map(|&method| {
                let end = if with_path { "WithPath" } else { "" };
                let id = format!("connect{}{}{suffix}{end}", self.prefix, title(method));
                let text = format!("connect {} requests to {} of {}", method.to_uppercase(), sub.name, self.row.kind);
                let mut operation = self.operation(method, "connect", id, text);
                operation.parameters.retain(|p| p.name != "pretty");
                operation.parameters.push(self.name(&gvk.2));
                operation.parameters.extend(self.option_parameters(options));
                if with_path {
                    operation.parameters.push(Parameter::path("path", "path to the resource"));
                }
                operation.gvk = gvk.clone();
                operation.produces = ANY.into();
                operation.responses = vec![(200, "OK", Content::Text), (401, "Unauthorized", Content::Nothing)];
                operation
            });
            let path = if with_path { format!("{path}/{{path}}") } else { path.to_string() };
            self.add(paths, path, operations.collect());
        }
    }

    /// The fields of an options type as query parameters.
    fn option_parameters(&self, options: &Type) -> Vec<Parameter> {
        let kind = |shape: &Shape| match shape {
            Shape::String => Some("string"),
            Shape::Bool => Some("boolean"),
            Shape::Int32 | Shape::Int64 => Some("integer"),
            _ => None,
        };
        let mut parameters = Vec::new();
        for field in options.fields.iter().filter(|field| field.number > 0) {
            let shape = if let Shape::List(item, _) = &field.shape { item } else { &field.shape };
            let text = self.texts.of_field(&options.name, &field.name).unwrap_or_default();
            if let Some(kind) = kind(shape) {
                let name = Cow::Owned(field.name.to_string());
                parameters.push(Parameter { name, place: Place::Query, kind, text: text.into() });
            }
        }
        parameters
    }

    fn delete_parameters(&self) -> impl Iterator<Item = Parameter> {
        [
            ("dryRun", "string"),
            ("gracePeriodSeconds", "integer"),
            ("ignoreStoreReadErrorWithClusterBreakingPotential", "boolean"),
            ("orphanDependents", "boolean"),
            ("propagationPolicy", "string"),
        ]
        .into_iter()
        .map(|(name, kind)| Parameter::query(name, kind, self.texts.of_delete_option(name)))
    }

    fn write_parameters(&self, patch: bool) -> Vec<Parameter> {
        let mut parameters = vec![
            Parameter::query("dryRun", "string", self.texts.of_delete_option("dryRun")),
            Parameter::query(
                "fieldManager",
                "string",
                match patch {
                    true => {
                        "Name of who makes the change, at most 128 printable characters; server-side apply requires it."
                    }
                    false => "Name of who makes the change, at most 128 printable characters.",
                },
            ),
            Parameter::query(
                "fieldValidation",
                "string",
                "What happens to unknown and duplicate fields of the body: Ignore drops them, Warn (the default) also \
                 answers with a warning for each, Strict refuses the request.",
            ),
        ];
        if patch {
            let text = "Server-side apply takes over fields that others own instead of failing with a conflict; other \
                        kinds of patches must not set it.";
            parameters.push(Parameter::query("force", "boolean", text));
        }
        parameters
    }
}

fn ok(codes: &[u16], schema: &str) -> Vec<(u16, &'static str, Content)> {
    let text = |code: u16| match code {
        200 => "OK",
        201 => "Created",
        _ => "Accepted",
    };
    let mut responses: Vec<_> = codes.iter().map(|&code| (code, text(code), Content::Type(schema.into()))).collect();
    responses.push((401, "Unauthorized", Content::Nothing));
    responses
}

/// The kind with its article and a space before: ` a Pod`, ` an Event`, ` Endpoints`.
fn article(kind: &str) -> String {
    let plural = kind.ends_with('s') && !kind.ends_with("ss");
    match kind.chars().next().map(|c| c.to_ascii_lowercase()) {
        _ if plural => format!(" {kind}"),
        Some('a' | 'e' | 'i' | 'o' | 'u') => format!(" an {kind}"),
        _ => format!(" a {kind}"),
    }
}

fn pretty() -> Parameter {
    let text = "If 'true', the output is laid out over several lines. It is so by default for browsers, curl and wget.";
    Parameter::query("pretty", "string", text)
}

fn list_parameters() -> impl Iterator<Item = Parameter> {
    [
        (
            "allowWatchBookmarks",
            "boolean",
            "Lets a watch send bookmarks: events that carry a resourceVersion and nothing else.",
        ),
        ("continue", "string", "Token from an earlier answer that was cut off by `limit`; goes on where that ended."),
        ("fieldSelector", "string", "Restricts the answer to objects with these values of fields."),
        ("labelSelector", "string", "Restricts the answer to objects with these labels."),
        ("limit", "integer", "At most so many objects; when there are more, the answer carries a `continue` token."),
        (
            "resourceVersion",
            "string",
            "The version that the answer must at least, or exactly, show; see `resourceVersionMatch`.",
        ),
        ("resourceVersionMatch", "string", "How `resourceVersion` is meant: Exact or NotOlderThan."),
        (
            "sendInitialEvents",
            "boolean",
            "Lets a watch begin with an event for every object there is, followed by a bookmark.",
        ),
        ("shardSelector", "string", "Restricts the answer to a range of hashes of the objects' identities (alpha)."),
        ("timeoutSeconds", "integer", "Ends the call after so many seconds."),
        ("watch", "boolean", "Answers with a stream of changes instead of a list."),
    ]
    .into_iter()
    .map(|(name, kind, text)| Parameter::query(name, kind, text))
}

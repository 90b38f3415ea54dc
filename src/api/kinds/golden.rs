//! Replays recorded requests through the pure functions alone: decode, default, prepare, check. What a server adds
//! (allocation, admission but for a little of it, storage) is left out of the comparison, so that defaulting and
//! validation are judged without one.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::view::{View, set, structure, unset};
use crate::codec::json::{Strictness, decode, normalize};
use crate::meta;
use crate::resources::{self, Context, Row, Scope};
use crate::schema;
use crate::status::Status;

const NAMESPACE: &str = "golden-ns";

/// Areas whose recorded answers these functions alone explain.
const AREAS: &[&str] = &["defaults", "validation", "metadata", "crud", "subresources", "deletion"];

fn scenarios() -> Option<PathBuf> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/golden/scenarios");
    if !path.is_dir() {
        println!("skipped: no recorded scenarios beside this checkout");
        return None;
    }
    Some(path)
}

/// What a request is about.
struct Target {
    row: &'static Row,
    version: String,
    namespace: String,
    name: String,
    subresource: String,
    dry_run: bool,
}

fn target(path: &str) -> Option<Target> {
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let mut parts = path.trim_matches('/').split('/');
    let group = match parts.next()? {
        "api" => "",
        "apis" => parts.next()?,
        _ => return None,
    };
    let version = parts.next()?.to_string();
    let mut rest: Vec<&str> = parts.collect();
    let mut namespace = String::new();
    if rest.len() > 2 && rest[0] == "namespaces" && !["status", "finalize"].contains(&rest[2]) {
        namespace = rest[1].into();
        rest.drain(..2);
    }
    let at = |i: usize| rest.get(i).map(|s| s.to_string()).unwrap_or_default();
    let row = resources::find(group, rest.first()?)?;
    row.version(&version)?;
    Some(Target { row, version, namespace, name: at(1), subresource: at(2), dry_run: query.contains("dryRun") })
}

/// Fills in the names that scenarios leave open.
fn expand(value: &Value) -> Value {
    let text = value.to_string().replace("$NS", NAMESPACE);
    let mut out = String::new();
    let mut rest = text.as_str();
    while let Some(at) = rest.find("${") {
        out.push_str(&rest[..at]);
        let (body, after) = rest[at + 2..].split_once('}').unwrap_or_default();
        match body.split_once(':').map(|(what, n)| (what, n.parse::<usize>())) {
            Some((what, Ok(n))) => out.push_str(&what.repeat(n)),
            _ => out.push_str(body),
        }
        rest = after;
    }
    out.push_str(rest);
    serde_json::from_str(&out).expect("still JSON")
}

/// What the plugins that are always on do to pods.
fn admit(row: &Row, object: &mut Value, create: bool) {
    if row.plural != "pods" {
        return;
    }
    let mirror = object.at("metadata").at("annotations").has(super::pod::spec::MIRROR);
    let spec = structure(object, "spec");
    if create && spec.text("serviceAccountName").is_empty() && !mirror {
        set(spec, "serviceAccountName", "default");
    }
    super::view::fill_pointer(spec, "priority", 0);
    super::view::fill_pointer(spec, "preemptionPolicy", "PreemptLowerPriority");
    let mut tolerations = spec.items("tolerations").to_vec();
    for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
        let tolerated = |t: &Value| {
            (t.text("key") == key || (t.text("key").is_empty() && t.text("operator") == "Exists"))
                && ["", "NoExecute"].contains(&t.text("effect"))
        };
        if !tolerations.iter().any(tolerated) {
            tolerations
                .push(json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}));
        }
    }
    set(spec, "tolerations", tolerations);
}

/// A server made of nothing but the functions under test.
#[derive(Default)]
struct Server {
    objects: BTreeMap<(String, String, String), Value>,
}

type Answer = Result<(Value, Vec<String>), Status>;

impl Server {
    fn schema(target: &Target) -> &'static schema::Type {
        let version = target.row.version(&target.version).expect("checked");
        schema::builtin().get(&version.schema).expect("every row has its type")
    }

    fn to_stored(target: &Target, mut object: Value) -> Result<Value, Status> {
        let row = target.row;
        if target.version != row.stored || row.group != row.stored_group {
            row.strategy.convert(&mut object, &row.stored_group, &row.stored)?;
        }
        Ok(object)
    }

    fn shown(target: &Target, object: &Value) -> Result<Value, Status> {
        let (row, mut object) = (target.row, object.clone());
        if target.version != row.stored || row.group != row.stored_group {
            row.strategy.convert(&mut object, &row.group, &target.version)?;
        }
        normalize(schema::builtin(), Self::schema(target), &mut object, &mut Strictness::default())?;
        Ok(object)
    }

    fn decode(target: &Target, body: &Value) -> Result<(Value, Vec<String>), Status> {
        let bytes = serde_json::to_vec(body).expect("JSON");
        let (object, noted) = decode(schema::builtin(), Self::schema(target), &bytes)?;
        let object = Self::to_stored(target, object)?;
        Ok((object, noted.problems))
    }

    fn key(target: &Target, name: &str) -> (String, String, String) {
        (target.row.storage.to_string(), target.namespace.clone(), name.to_string())
    }

    fn create(&mut self, target: &Target, body: &Value) -> Answer {
        let (mut object, mut warnings) = Self::decode(target, body)?;
        let row = target.row;
        let cx = context(target);
        row.strategy.default(&mut object);
        let namespace = if row.scope == Scope::Cluster { "" } else { target.namespace.as_str() };
        meta::match_namespace(&mut object, namespace)?;
        admit(row, &mut object, true);
        row.strategy.default(&mut object);
        meta::fill_system_fields(&mut object, "2020-01-01T00:00:00Z", "11111111-1111-1111-1111-111111111111");
        if meta::text(&object, "name").is_empty() && !meta::text(&object, "generateName").is_empty() {
            let name = meta::generate_name(meta::text(&object, "generateName"), 7);
            meta::of(&mut object).insert("name".into(), name.into());
        }
        if row.strategy.has_generation() {
            meta::first_generation(&mut object);
        }
        row.strategy.prepare_create(&cx, &mut object);
        row.check_create(&cx, &object)?;
        warnings.extend(row.strategy.warnings(&cx, &object, None));
        warnings.extend(row.deprecation(&target.version, false));
        meta::of(&mut object).insert("resourceVersion".into(), "1".into());
        let shown = Self::shown(target, &object)?;
        if !target.dry_run {
            self.objects.insert(Self::key(target, meta::text(&object, "name")), object);
        }
        Ok((shown, warnings))
    }

    fn update(&mut self, target: &Target, object: Value, mut warnings: Vec<String>, old: Value) -> Answer {
        let row = target.row;
        let cx = context(target);
        let mut new = object;
        row.strategy.default(&mut new);
        if target.subresource.is_empty() {
            admit(row, &mut new, false);
            row.strategy.default(&mut new);
        }
        let namespace = if row.scope == Scope::Cluster { "" } else { target.namespace.as_str() };
        meta::match_namespace(&mut new, namespace)?;
        if meta::text(&new, "resourceVersion").is_empty() {
            meta::of(&mut new).insert("resourceVersion".into(), "1".into());
        }
        meta::keep_system_fields(&mut new, &old);
        row.strategy.prepare_update(&cx, &mut new, &old);
        if row.strategy.has_generation()
            && target.subresource != "status"
            && row.strategy.changes_generation(&new, &old)
        {
            meta::next_generation(&mut new, &old);
        }
        row.check_update(&cx, &new, &old)?;
        warnings.extend(row.strategy.warnings(&cx, &new, Some(&old)));
        warnings.extend(row.deprecation(&target.version, false));
        let shown = Self::shown(target, &new)?;
        if !target.dry_run {
            self.objects.insert(Self::key(target, &target.name), new);
        }
        Ok((shown, warnings))
    }

    /// Takes what a step left behind as it was recorded, where these functions can't answer it.
    fn adopt(&mut self, target: &Target, step: &Value) {
        let body = step.at("expect").at("body");
        if !body.at("metadata").has("name") || body.text("kind") != target.row.kind {
            return;
        }
        let text = body
            .to_string()
            .replace("<time>", "2020-01-01T00:00:00Z")
            .replace("<microtime>", "2020-01-01T00:00:00.000000Z");
        let Ok(body) = serde_json::from_str::<Value>(&text) else { return };
        let name = body.at("metadata").text("name").to_string();
        let Ok((mut object, _)) = Self::decode(target, &body) else { return };
        for field in ["creationTimestamp", "uid", "resourceVersion"] {
            if let Some(old) = self.objects.get(&Self::key(target, &name)) {
                super::view::copy(structure(&mut object, "metadata"), old.at("metadata"), field);
            }
        }
        self.objects.insert(Self::key(target, &name), object);
    }

    /// The answer, if these functions can give one.
    fn answer(&mut self, target: &Target, http: &Value) -> Option<Answer> {
        let body = http.at("body");
        let own = target.row.subresource(&target.subresource).is_none_or(|s| s.gvk.2 == target.row.kind);
        if !target.row.is_stored() || !own || !body.is_object() && !body.is_array() {
            return None;
        }
        if http.text("method") == "POST" {
            return (target.name.is_empty()).then(|| self.create(target, body));
        }
        let old = self.objects.get(&Self::key(target, &target.name)).cloned()?;
        if http.text("method") == "PUT" {
            return Some(
                Self::decode(target, body).and_then(|(new, warnings)| self.update(target, new, warnings, old)),
            );
        }
        let kind = http.at("headers").text("Content-Type").to_string();
        let new = Self::shown(target, &old).and_then(|shown| patched(target, &kind, &shown, body));
        match new {
            Ok(None) => None,
            Ok(Some(new)) => Some(Self::decode(target, &new).and_then(|(new, w)| self.update(target, new, w, old))),
            Err(status) => Some(Err(status)),
        }
    }
}

fn context(target: &Target) -> Context<'_> {
    Context {
        namespace: &target.namespace,
        subresource: &target.subresource,
        now: 1_577_836_800,
        user: resources::Requester { name: "golden-admin", ..Default::default() },
    }
}

/// The object after a patch; nothing for kinds of patches that are not known here.
fn patched(_target: &Target, kind: &str, live: &Value, patch: &Value) -> Result<Option<Value>, Status> {
    match kind {
        "application/merge-patch+json" => {
            let mut new = live.clone();
            merge(&mut new, patch);
            Ok(Some(new))
        }
        _ => Ok(None),
    }
}

fn merge(into: &mut Value, patch: &Value) {
    let Some(fields) = patch.as_object() else {
        *into = patch.clone();
        return;
    };
    if !into.is_object() {
        *into = json!({});
    }
    for (key, value) in fields {
        if value.is_null() {
            unset(into, key);
        } else {
            if !into.has(key) {
                set(into, key, json!({}));
            }
            merge(&mut into[key.as_str()], value);
        }
    }
}

/// Values that differ from run to run, or come from elsewhere.
fn open(value: &Value) -> bool {
    value.as_str().is_some_and(|s| s.starts_with('<') && s.ends_with('>'))
}

fn compare(path: &str, want: &Value, got: &Value, out: &mut Vec<String>) {
    if open(want) || want == got {
        return;
    }
    match (want, got) {
        (Value::Object(a), Value::Object(b)) => {
            let keys: std::collections::BTreeSet<&String> = a.keys().chain(b.keys()).collect();
            for key in keys {
                if path == ".metadata"
                    && ["managedFields", "uid", "resourceVersion", "creationTimestamp"].contains(&key.as_str())
                {
                    continue;
                }
                compare(
                    &format!("{path}.{key}"),
                    a.get(key).unwrap_or(&Value::Null),
                    b.get(key).unwrap_or(&Value::Null),
                    out,
                );
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (i, (a, b)) in a.iter().zip(b).enumerate() {
                compare(&format!("{path}[{i}]"), a, b, out);
            }
        }
        _ => out.push(format!("{path}: want {want}, got {got}")),
    }
}

fn warnings_of(expect: &Value) -> Vec<String> {
    let texts = expect.texts("warnings").map(|w| w.strip_prefix("299 - ").unwrap_or(w).to_string());
    let mut out: Vec<String> = texts.map(|t| serde_json::from_str(&t).unwrap_or(t)).collect();
    out.sort();
    out
}

/// Without what the step does not compare.
fn without(body: &Value, step: &Value) -> Value {
    let mut body = body.clone();
    for pointer in step.texts("ignore") {
        let Some((parent, field)) = pointer.rsplit_once('/') else { continue };
        if let Some(parent) = body.pointer_mut(parent) {
            unset(parent, field);
        }
    }
    body
}

/// What differs in a step; nothing when the step is not for these functions.
fn step(server: &mut Server, one: &Value) -> Option<Vec<String>> {
    let (http, expect) = (one.at("http"), one.at("expect"));
    let target = target(http.text("path"))?;
    let status = expect.number("status");
    if http.text("method") == "DELETE" && status == 200 && !target.dry_run {
        server.objects.remove(&Server::key(&target, &target.name));
    }
    if !["POST", "PUT", "PATCH"].contains(&http.text("method")) || ![200, 201, 422].contains(&status) {
        return None;
    }
    let Some(mut answer) = server.answer(&target, http) else {
        server.adopt(&target, one);
        return None;
    };
    let mut out = Vec::new();
    let mut compare_all = |got: &Value| match one.items("only") {
        [] => compare("", &without(expect.at("body"), one), &without(got, one), &mut out),
        only => {
            for pointer in only.iter().filter_map(Value::as_str) {
                let want = expect.at("body").at(pointer);
                compare(pointer, want, got.pointer(pointer).unwrap_or(&Value::Null), &mut out);
            }
        }
    };
    match (&mut answer, status) {
        (Ok((got, warnings)), 200 | 201) => {
            compare_all(got);
            warnings.sort();
            let want = warnings_of(expect);
            if *warnings != want {
                out.push(format!("warnings: want {want:?}, got {warnings:?}"));
            }
        }
        (Err(got), 422) => compare_all(&got.to_value()),
        (Ok(_), _) => out.push(format!("want 422 {}, got an object", expect.at("body").text("message"))),
        (Err(got), _) => out.push(format!("want {status}, got {} {}", got.code, got.message)),
    }
    Some(out)
}

/// Steps checked, and the faults.
fn replay(areas: &[&str]) -> Option<(usize, Vec<String>)> {
    let root = scenarios()?;
    let (mut count, mut faults) = (0, Vec::new());
    for area in areas {
        let mut files: Vec<_> = std::fs::read_dir(root.join(area)).ok()?.flatten().map(|f| f.path()).collect();
        files.sort();
        for file in files {
            let text = std::fs::read(&file).expect("a scenario can be read");
            let scenario = expand(&serde_json::from_slice(&text).expect("a scenario is JSON"));
            let mut server = Server::default();
            for (i, one) in scenario.items("setup").iter().chain(scenario.items("steps")).enumerate() {
                let Some(wrong) = step(&mut server, one) else { continue };
                count += 1;
                if !wrong.is_empty() {
                    let http = one.at("http");
                    let name = file.file_stem().unwrap_or_default().to_string_lossy();
                    let what = format!("{area}/{name} #{i} {} {}", http.text("method"), http.text("path"));
                    faults.push(format!("{what}\n    {}", wrong.join("\n    ")));
                }
            }
        }
    }
    Some((count, faults))
}

#[test]
fn recorded_writes() {
    let only = std::env::var("GOLDEN_AREA").ok();
    let areas: Vec<&str> = only.as_deref().map_or(AREAS.to_vec(), |area| area.split(',').collect());
    let Some((count, faults)) = replay(&areas) else { return };
    println!("{} of {count} recorded writes are answered as upstream does", count - faults.len());
    for fault in &faults {
        println!("{fault}");
    }
}

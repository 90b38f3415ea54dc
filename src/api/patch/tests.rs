//! Recorded answers to patches, replayed: what a patch makes of the object that upstream showed before must be what it
//! showed after, but for what writing sets (versions, times, owners).

use std::collections::HashMap;
use std::path::Path;

use super::{json, merge, strategic};
use crate::Value;
use crate::codec::json::redecode;
use crate::schema::builtin;

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// The part that a write through this path may change, without what the server sets on every write.
fn settled(mut object: Value, path: &str) -> Value {
    if path.ends_with("/status") {
        return object["status"].take();
    }
    if let Some(object) = object.as_object_mut() {
        for name in ["status", "kind", "apiVersion"] {
            object.remove(name);
        }
    }
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        for name in ["managedFields", "resourceVersion", "generation", "uid", "creationTimestamp", "namespace"] {
            metadata.remove(name);
        }
    }
    object
}

/// True when the recorded object is the patched one, maybe with defaults filled in.
fn agree(patched: &Value, recorded: &Value) -> bool {
    match (patched, recorded) {
        (Value::Object(a), Value::Object(b)) => a.iter().all(|(k, v)| b.get(k).is_some_and(|w| agree(v, w))),
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(v, w)| agree(v, w)),
        // A port that is yet to be defaulted.
        (Value::Number(n), _) if n.as_i64() == Some(0) => true,
        (a, b) => a == b,
    }
}

struct Replay {
    known: HashMap<String, Value>,
    compared: usize,
    failures: Vec<String>,
}

impl Replay {
    fn step(&mut self, step: &Value) {
        let (Some(request), Some(expect)) = (step.get("http"), step.get("expect")) else { return };
        let full = text(request, "path");
        let (path, query) = full.split_once('?').unwrap_or((full, ""));
        let body = &expect["body"];
        let known = match (text(request, "method"), body["metadata"]["name"].as_str()) {
            ("POST", Some(name)) => format!("{path}/{name}"),
            _ => path.to_string(),
        };
        let narrowed = step.get("only").is_some();
        if let (Some(live), false) = (self.known.get(&known), narrowed) {
            if !live.is_null() && text(request, "method") == "PATCH" {
                self.compare(request, &live.clone(), body);
            }
        }
        if query.contains("dryRun") {
            return;
        }
        let changes = text(request, "method") != "GET";
        if body["metadata"]["uid"].is_string() && !narrowed {
            self.known.insert(known, body.clone());
        } else if changes && (narrowed || text(request, "method") == "DELETE") {
            self.known.insert(known, Value::Null);
        }
    }

    fn compare(&mut self, request: &Value, live: &Value, body: &Value) {
        let (api_version, kind) = (text(live, "apiVersion"), text(live, "kind"));
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let Some(ty) = builtin().kind(group, version, kind) else { return };
        let patch = &request["body"];
        let patched = match text(&request["headers"], "Content-Type") {
            "application/json-patch+json" => {
                let sent = patch.as_str().map_or_else(|| patch.to_string(), str::to_string);
                json::apply(live, sent.as_bytes(), !text(request, "path").contains("fieldValidation=Ignore"))
            }
            "application/merge-patch+json" if patch.is_object() => {
                let mut merged = live.clone();
                merge::apply(&mut merged, patch.clone());
                Ok(merged)
            }
            "application/strategic-merge-patch+json" if patch.is_object() => {
                strategic::apply(builtin(), ty, live, patch)
            }
            _ => return,
        };
        self.compared += 1;
        let refused = text(body, "kind") == "Status";
        match patched {
            Err(status) if (u64::from(status.code), status.message.as_str()) == answer(body) => {}
            Err(status) => self.failures.push(format!("{request}\n  got {status}\n  want {body}")),
            // Refused later, by decoding or validation.
            Ok(_) if refused => {}
            Ok(object) => {
                let path = text(request, "path");
                let path = path.split_once('?').map_or(path, |(path, _)| path);
                let part = |object: &Value| redecode(builtin(), ty, object).map(|(object, _)| settled(object, path));
                let (got, want) = (part(&object), part(body));
                if !matches!((&got, &want), (Ok(got), Ok(want)) if agree(got, want)) {
                    self.failures.push(format!("{request}\n  got {got:?}\n  want {want:?}"));
                }
            }
        }
    }
}

fn answer(body: &Value) -> (u64, &str) {
    (body["code"].as_u64().unwrap_or_default(), text(body, "message"))
}

fn replay(area: &str, at_least: usize, may_differ: &[&str]) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/golden/scenarios").join(area);
    let Ok(files) = std::fs::read_dir(&folder) else {
        println!("skipped: no recorded answers at {}", folder.display());
        return;
    };
    let (mut compared, mut failures) = (0, Vec::new());
    for file in files.flatten() {
        let recording = std::fs::read_to_string(file.path()).expect("a readable recording");
        let recording = recording.replace("<time>", "2026-01-01T00:00:00Z");
        let scenario: Value = serde_json::from_str(&recording).expect("a recording is JSON");
        let mut replay = Replay { known: HashMap::new(), compared: 0, failures: Vec::new() };
        for step in scenario["steps"].as_array().into_iter().flatten() {
            replay.step(step);
        }
        compared += replay.compared;
        let name = file.file_name().to_string_lossy().trim_end_matches(".json").to_string();
        if !may_differ.contains(&name.as_str()) {
            failures.extend(replay.failures.into_iter().map(|f| format!("{name}: {f}")));
        }
    }
    println!("{compared} patches compared");
    assert!(failures.is_empty(), "{} of {compared}:\n{}", failures.len(), failures.join("\n"));
    assert!(compared >= at_least, "only {compared} patches compared");
}

#[test]
fn patches_change_objects_as_recorded() {
    replay("patch", 50, &[]);
}

#[test]
fn patches_of_every_kind_change_objects_as_recorded() {
    // What controllers race for was not recorded.
    let racing = ["flowcontrol.apiserver.k8s.io-v1-flowschemas", "apiregistration.k8s.io-v1-apiservices"];
    replay("crud", 50, &racing);
}

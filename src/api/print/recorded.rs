//! Tables that upstream answered, compared with ours for the objects that it showed before.

use std::collections::HashMap;
use std::path::Path;

use super::{Cell, cells_of, columns_of};
use crate::Value;

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// `group`, `kind` by the name of the recording: `apps-v1-deployments`.
struct Kinds(HashMap<String, (String, String)>);

impl Kinds {
    fn note(&mut self, resource: &str, object: &Value) {
        let api_version = text(object, "apiVersion");
        let group = api_version.split_once('/').map_or("", |(group, _)| group);
        self.0.entry(resource.to_string()).or_insert_with(|| (group.to_string(), text(object, "kind").to_string()));
    }
}

/// The path without the object's name, and that name.
fn split(path: &str) -> (&str, &str) {
    path.split_once('?').map_or(path, |(path, _)| path).rsplit_once('/').unwrap_or((path, ""))
}

struct Check {
    kinds: Kinds,
    known: HashMap<String, Value>,
    compared: usize,
    failures: Vec<String>,
}

impl Check {
    fn step(&mut self, step: &Value) {
        let (Some(request), Some(expect)) = (step.get("http"), step.get("expect")) else { return };
        let (path, body) = (text(request, "path"), &expect["body"]);
        let kind = text(body, "kind");
        if kind == "Table" {
            // What controllers race for is left out of some recordings.
            let partial = step.get("ignore").is_some() || step.get("only").is_some();
            if !partial {
                self.table(path, body);
            }
            return;
        }
        let whole = body["metadata"]["uid"].is_string() && !kind.starts_with("Partial");
        if !whole || path.contains("dryRun") {
            return;
        }
        let collection = match text(request, "method") {
            "POST" => path.split_once('?').map_or(path, |(path, _)| path),
            _ => split(path).0,
        };
        self.kinds.note(collection, body);
        self.known.insert(format!("{collection}/{}", text(&body["metadata"], "name")), body.clone());
    }

    fn table(&mut self, path: &str, body: &Value) {
        let path = path.split_once('?').map_or(path, |(path, _)| path);
        let collection = if self.kinds.0.contains_key(path) { path } else { split(path).0 };
        let Some((group, kind)) = self.kinds.0.get(collection).cloned() else { return };
        if let Some(columns) = body["columnDefinitions"].as_array() {
            self.compared += 1;
            let ours: Vec<Value> = columns_of(&group, &kind).iter().map(as_json).collect();
            if *columns != ours {
                let ours = Value::from(ours);
                self.failures.push(format!("{kind}:\n  got  {ours}\n  want {}", body["columnDefinitions"]));
            }
        }
        for row in body["rows"].as_array().into_iter().flatten() {
            let name = text(&row["object"]["metadata"], "name");
            let Some(object) = self.known.get(&format!("{collection}/{name}")) else { continue };
            let cells: Vec<Value> = cells_of(&group, &kind, object).iter().map(shown).collect();
            self.compared += 1;
            if !same(&cells, row["cells"].as_array().map(Vec::as_slice).unwrap_or_default()) {
                self.failures.push(format!("{kind}:\n  got  {}\n  want {}", Value::from(cells), row["cells"]));
            }
        }
    }
}

fn as_json(column: &super::Column) -> Value {
    serde_json::json!({
        "name": column.name, "type": column.kind, "format": column.format, "description": column.description,
        "priority": column.priority,
    })
}

fn shown(cell: &Cell) -> Value {
    match cell {
        Cell::Is(value) => value.clone(),
        Cell::Since(before, _, after) => format!("{before}<age>{after}").into(),
    }
}

/// Times in recordings are placeholders, which our cells can't read.
fn same(ours: &[Value], recorded: &[Value]) -> bool {
    let equal = |a: &Value, b: &Value| a == b || a == "<unknown>" && b == "<age>" || b == "<age>";
    ours.len() == recorded.len() && ours.iter().zip(recorded).all(|(a, b)| equal(a, b))
}

#[test]
fn tables_are_as_recorded() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/golden/scenarios/crud");
    let Ok(files) = std::fs::read_dir(&folder) else {
        println!("skipped: no recorded answers at {}", folder.display());
        return;
    };
    let (mut compared, mut failures) = (0, Vec::new());
    for file in files.flatten() {
        let recording = std::fs::read_to_string(file.path()).expect("a readable recording");
        let scenario: Value = serde_json::from_str(&recording).expect("a recording is JSON");
        let mut check =
            Check { kinds: Kinds(HashMap::new()), known: HashMap::new(), compared: 0, failures: Vec::new() };
        for step in scenario["steps"].as_array().into_iter().flatten() {
            check.step(step);
        }
        compared += check.compared;
        failures.extend(check.failures);
    }
    println!("{compared} tables and rows compared");
    assert!(failures.is_empty(), "{} of {compared}:\n{}", failures.len(), failures.join("\n"));
    assert!(compared >= 100, "only {compared} compared");
}

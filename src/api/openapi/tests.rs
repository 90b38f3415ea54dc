use std::path::PathBuf;

use super::*;
use crate::codec::json::parse;
use crate::discovery::groups;
use crate::resources;

fn shared(path: &str) -> Option<Value> {
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/k8s-1.36/openapi").join(path);
    let Ok(text) = std::fs::read(&file) else {
        println!("skipped: {} is not there", file.display());
        return None;
    };
    Some(parse(&text).expect("a published document").0)
}

fn everything<T>(run: impl FnOnce(Api<'_>) -> T) -> T {
    let groups = groups(resources::builtin().iter(), |_, _| true);
    run(Api { groups: &groups, custom: &|_| None })
}

/// Where two documents differ, apart from what is meant to.
fn differences(path: &str, ours: &Value, theirs: &Value, out: &mut Vec<String>) {
    match (ours, theirs) {
        (Value::Object(a), Value::Object(b)) => {
            for key in a.keys().chain(b.keys().filter(|key| !a.contains_key(*key))) {
                let below = format!("{path}/{}", key.replace('/', "~"));
                match (a.get(key), b.get(key)) {
                    // Published documents have no enumerations; a server lists them.
                    (Some(_), None) if key == "enum" => {}
                    // Our own words (see the module).
                    _ if key == "description" => {}
                    (None, Some(_)) if key.contains("cbor") => {}
                    (Some(a), Some(b)) => differences(&below, a, b, out),
                    (Some(a), None) => out.push(format!("{below}: only ours: {}", short(a))),
                    (None, Some(b)) => out.push(format!("{below}: only theirs: {}", short(b))),
                    (None, None) => {}
                }
            }
        }
        (Value::Array(a), Value::Array(b)) => {
            let b: Vec<&Value> = b.iter().filter(|v| v.as_str().is_none_or(|text| !text.contains("cbor"))).collect();
            if a.len() != b.len() {
                out.push(format!("{path}: {} is not {}", short(ours), short(theirs)));
                return;
            }
            for (i, (a, b)) in a.iter().zip(b).enumerate() {
                differences(&format!("{path}/{i}"), a, b, out);
            }
        }
        // The names of shared parameters hash their descriptions.
        (Value::String(a), Value::String(b)) if a.starts_with("#/parameters/") => {
            if a.split('-').next() != b.split('-').next() {
                out.push(format!("{path}: {a} is not {b}"));
            }
        }
        (a, b) if a == b => {}
        (a, b) => out.push(format!("{path}: {} is not {}", short(a), short(b))),
    }
}

fn short(value: &Value) -> String {
    value.to_string().chars().take(120).collect()
}

fn verdict(faults: &[String]) {
    let shown: Vec<&str> = faults.iter().take(40).map(String::as_str).collect();
    assert!(faults.is_empty(), "{} differences:\n{}", faults.len(), shown.join("\n"));
}

/// Paths that upstream documents and nobody serves here.
const ABSENT: [&str; 2] = ["/logs/", "/logs/{logpath}"];

#[test]
fn the_v2_document_is_as_published() {
    let Some(mut theirs) = shared("swagger.json") else { return };
    let mut ours = parse(&everything(v2)).expect("JSON").0;
    for path in ABSENT {
        theirs["paths"].as_object_mut().unwrap().remove(path);
    }
    ours.as_object_mut().unwrap().remove("parameters");
    theirs.as_object_mut().unwrap().remove("parameters");
    let mut faults = Vec::new();
    differences("", &ours, &theirs, &mut faults);
    verdict(&faults);
}

#[test]
fn the_v3_documents_are_as_published() {
    let mut faults = Vec::new();
    for name in everything(v3_names) {
        let Some(theirs) = shared(&format!("v3/{}_openapi.json", name.replace('/', "__"))) else { continue };
        let ours = parse(&everything(|api| v3(api, &name)).expect(&name)).expect("JSON").0;
        differences(&name, &ours, &theirs, &mut faults);
    }
    verdict(&faults);
}

#[test]
fn built_in_types_are_described() {
    let document = parse(&everything(|api| v3(api, "api/v1")).expect("core")).expect("JSON").0;
    let schemas = &document["components"]["schemas"];
    let port = &schemas["io.k8s.api.core.v1.ContainerPort"];
    assert_eq!(port["description"], "ContainerPort represents a network port in a single container.");
    let protocol = &port["properties"]["protocol"];
    assert_eq!(protocol["enum"], serde_json::json!(["SCTP", "TCP", "UDP"]));
    assert_eq!(protocol["default"], "TCP");
    assert!(protocol["description"].as_str().unwrap().starts_with("Protocol for port."));
    assert!(everything(|api| v3(api, "apis/nothing/v1")).is_none());
    assert!(everything(|api| v3(api, "apis/apps/v9")).is_none());
}

#[test]
fn the_protobuf_form_holds_every_definition_and_path() {
    let document = everything(v2_protobuf);
    let json = parse(&everything(v2)).expect("JSON").0;
    let mut counts = [0; 2];
    let mut fields = crate::codec::proto::wire::Fields::new(&document);
    while let Some((number, wire)) = fields.next("Document").expect("protobuf") {
        let crate::codec::proto::wire::Wire::Bytes(bytes) = wire else { continue };
        if let 8 | 9 = number {
            let mut inner = crate::codec::proto::wire::Fields::new(bytes);
            while inner.next("Named").expect("protobuf").is_some() {
                counts[number as usize - 8] += 1;
            }
        }
    }
    let len = |name: &str| json[name].as_object().unwrap().len();
    assert_eq!(counts, [len("paths"), len("definitions")]);
}

#[test]
fn custom_resources_have_definitions_and_paths() {
    let mut row = resources::find("", "configmaps").expect("a row").clone();
    row.group = "example.com".into();
    (row.kind, row.list_kind, row.plural) = ("Foo".into(), "FooList".into(), "foos".into());
    row.versions.truncate(1);
    row.versions[0].schema = "com.example.v1.Foo".into();
    let groups = groups(std::iter::once(&row), |_, _| true);
    let schema = serde_json::json!({"type": "object", "properties": {"spec": {"type": "object", "nullable": true}},
        "x-kubernetes-group-version-kind": [{"group": "example.com", "kind": "Foo", "version": "v1"}]});
    let api = Api { groups: &groups, custom: &|name| (name == "com.example.v1.Foo").then(|| schema.clone()) };
    let document = parse(&v3(api, "apis/example.com/v1").expect("a document")).expect("JSON").0;
    let schemas = document["components"]["schemas"].as_object().unwrap();
    assert_eq!(schemas["com.example.v1.Foo"], schema);
    assert_eq!(schemas["com.example.v1.FooList"]["x-kubernetes-group-version-kind"][0]["kind"], "FooList");
    let paths = document["paths"].as_object().unwrap();
    let names: Vec<&str> = paths.keys().map(String::as_str).collect();
    assert_eq!(
        names,
        [
            "/apis/example.com/v1/foos",
            "/apis/example.com/v1/namespaces/{namespace}/foos",
            "/apis/example.com/v1/namespaces/{namespace}/foos/{name}",
        ]
    );
    let id = &paths["/apis/example.com/v1/namespaces/{namespace}/foos/{name}"]["patch"]["operationId"];
    assert_eq!(id, "patchExampleComV1NamespacedFoo");
    let document = parse(&v2(api)).expect("JSON").0;
    assert_eq!(
        document["definitions"]["com.example.v1.Foo"]["properties"]["spec"],
        serde_json::json!({"type": "object"})
    );
}

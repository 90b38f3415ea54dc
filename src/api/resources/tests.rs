use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;

use super::*;

fn document(name: &str) -> Option<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/k8s-1.36/discovery").join(name);
    let Ok(text) = std::fs::read(path) else {
        println!("skipped: no recorded discovery documents beside this checkout");
        return None;
    };
    Some(serde_json::from_slice(&text).expect("a discovery document is JSON"))
}

fn texts(value: &Value) -> Vec<&str> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

#[test]
fn plurals_and_kinds_are_unique_within_a_group() {
    let mut seen = BTreeSet::new();
    for row in builtin() {
        assert!(seen.insert((row.group.clone(), row.plural.clone())), "{} twice", row.plural);
        assert!(seen.insert((row.group.clone(), row.kind.clone())), "{} twice", row.kind);
        assert!(find(&row.group, &row.plural).is_some());
    }
}

#[test]
fn beta_and_alpha_versions_are_off_by_default() {
    for group in GROUPS {
        for version in group.versions {
            assert_eq!(version.default, !version.name.contains("alpha") && !version.name.contains("beta"));
        }
    }
}

#[test]
fn groups_and_versions_are_those_of_discovery() {
    let Some(apis) = document("apis.json") else { return };
    let theirs: Vec<(&str, Vec<&str>)> = apis["groups"]
        .as_array()
        .unwrap()
        .iter()
        .map(|g| {
            let versions = g["versions"].as_array().unwrap().iter().map(|v| v["version"].as_str().unwrap());
            (g["name"].as_str().unwrap(), versions.collect())
        })
        .collect();
    let ours: Vec<(&str, Vec<&str>)> =
        GROUPS[1..].iter().map(|g| (g.name, g.versions.iter().map(|v| v.name).collect())).collect();
    assert_eq!(ours, theirs);
}

/// The entries of `APIResourceList` that a row makes for a version.
fn entries(row: &Row) -> Vec<(String, Vec<String>)> {
    let mut out = vec![(row.plural.to_string(), describe(&row.kind, ("", ""), row, &row.singular, &row.verbs))];
    out[0].1.extend([
        format!("short {}", row.short_names.join(",")),
        format!("categories {}", row.categories.join(",")),
        format!("hash {}", row.storage_version_hash()),
    ]);
    for sub in &row.subresources {
        let (group, version, kind) = &sub.gvk;
        out.push((format!("{}/{}", row.plural, sub.name), describe(kind, (group, version), row, "", &sub.verbs)));
    }
    out
}

fn describe(kind: &str, gv: (&str, &str), row: &Row, singular: &str, verbs: &[Text]) -> Vec<String> {
    vec![
        format!("kind {}/{} {kind}", gv.0, gv.1),
        format!("namespaced {}", row.scope == Scope::Namespaced),
        format!("singular {singular}"),
        format!("verbs {}", verbs.join(",")),
    ]
}

fn recorded(resource: &Value) -> (String, Vec<String>) {
    let text = |name: &str| resource[name].as_str().unwrap_or_default();
    let mut out = vec![
        format!("kind {}/{} {}", text("group"), text("version"), text("kind")),
        format!("namespaced {}", resource["namespaced"]),
        format!("singular {}", text("singularName")),
        format!("verbs {}", texts(&resource["verbs"]).join(",")),
    ];
    if !text("name").contains('/') {
        out.extend([
            format!("short {}", texts(&resource["shortNames"]).join(",")),
            format!("categories {}", texts(&resource["categories"]).join(",")),
            format!("hash {}", text("storageVersionHash")),
        ]);
    }
    (text("name").to_string(), out)
}

#[test]
fn every_row_is_as_discovery_lists_it() {
    for group in GROUPS {
        for version in group.versions {
            let name = match group.name {
                "" => format!("api__{}.json", version.name),
                name => format!("apis__{name}__{}.json", version.name),
            };
            let Some(list) = document(&name) else { return };
            let theirs: Vec<_> = list["resources"].as_array().unwrap().iter().map(recorded).collect();
            let rows = builtin().iter().filter(|r| r.group == group.name && r.version(version.name).is_some());
            let ours: Vec<_> = rows.flat_map(entries).collect();
            assert_eq!(ours, theirs, "{}/{}", group.name, version.name);
        }
    }
}

#[test]
fn selectors_may_name_only_known_fields() {
    let pods = find("", "pods").unwrap();
    assert_eq!(pods.field_label("v1", "spec.nodeName"), Ok("spec.nodeName"));
    assert_eq!(pods.field_label("v1", "spec.x").unwrap_err(), "field label not supported: spec.x");
    let nodes = find("", "nodes").unwrap();
    assert!(nodes.field_label("v1", "metadata.namespace").is_err());
    let configs = find("", "configmaps").unwrap();
    assert_eq!(
        configs.field_label("v1", "data").unwrap_err(),
        "\"data\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\""
    );
}

#[test]
fn endpoints_warn_of_their_replacement() {
    let row = find("", "endpoints").unwrap();
    assert_eq!(
        row.deprecation("v1", true).unwrap(),
        "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice"
    );
}

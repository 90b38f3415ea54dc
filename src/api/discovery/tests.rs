use std::path::Path;

use super::*;
use crate::codec::json as codec;
use crate::schema::builtin;

fn recorded(path: &str) -> Option<Value> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared").join(path);
    let Ok(text) = std::fs::read(&file) else {
        println!("skipped: {} is not there", file.display());
        return None;
    };
    Some(codec::parse(&text).expect("recorded JSON").0)
}

fn by_default(row: &Row, version: &str) -> bool {
    row.version(version).is_some_and(|version| version.default)
}

/// Answers of one recorded scenario, by path; those with an `only` are left out.
fn answers(scenario: &str) -> Vec<(String, Value)> {
    let Some(scenario) = recorded(&format!("golden/scenarios/discovery/{scenario}.json")) else { return Vec::new() };
    let steps = scenario["steps"].as_array().expect("steps");
    let steps = steps.iter().filter(|step| step.get("only").is_none() && step["expect"]["status"] == 200);
    steps.map(|s| (s["http"]["path"].as_str().unwrap_or_default().into(), s["expect"]["body"].clone())).collect()
}

/// What a document is once it has gone over the wire.
fn sent(kind: &str, document: &Value) -> Value {
    let facts = builtin();
    let ty = facts.get(&format!("io.k8s.apimachinery.pkg.apis.meta.v1.{kind}")).expect("a type");
    let mut text = Vec::new();
    codec::encode(facts, ty, document, &mut text);
    codec::parse(&text).expect("JSON").0
}

#[test]
fn groups_and_resources_are_as_recorded() {
    let groups = groups(resources::builtin().iter(), by_default);
    let mut compared = 0;
    for name in ["apps-v1", "autoscaling-v1", "policy-v1", "rbac.authorization.k8s.io-v1", "events.k8s.io-v1"] {
        for (path, body) in answers(&format!("group-{name}")) {
            let parts: Vec<&str> = path.split('/').collect();
            let of = groups.iter().find(|g| g.name == parts[2]).expect("a group");
            let ours = match parts.get(3) {
                None => sent("APIGroup", &group(of)),
                Some(version) => {
                    let version = of.versions.iter().find(|v| v.name == *version).expect("a version");
                    sent("APIResourceList", &resource_list(&of.name, version))
                }
            };
            assert_eq!(ours, body, "{path}");
            compared += 1;
        }
    }
    println!("{compared} answers compared");
}

#[test]
fn every_version_is_as_discovery_lists_it() {
    let groups = groups(resources::builtin().iter(), |_, _| true);
    if let Some(body) = recorded("k8s-1.36/discovery/apis.json") {
        assert_eq!(sent("APIGroupList", &group_list(&groups)), body);
    }
    if let Some(body) = recorded("k8s-1.36/discovery/api.json") {
        assert_eq!(sent("APIVersions", &api_versions("10.10.10.10:8050")), body);
    }
    for group in &groups {
        for version in &group.versions {
            let file = match &*group.name {
                "" => "api__v1".to_string(),
                name => format!("apis__{name}__{}", version.name),
            };
            let Some(body) = recorded(&format!("k8s-1.36/discovery/{file}.json")) else { return };
            let ours = sent("APIResourceList", &resource_list(&group.name, version));
            // Only one version of a resource is stored, and the table knows the one of a server with all versions on.
            let without_hash = |mut list: Value| {
                for entry in list["resources"].as_array_mut().into_iter().flatten() {
                    entry.as_object_mut().map(|entry| entry.remove("storageVersionHash"));
                }
                list
            };
            assert_eq!(without_hash(ours), without_hash(body), "{file}");
        }
    }
}

#[test]
fn aggregated_discovery_and_its_etag_are_as_recorded() {
    let groups = groups(resources::builtin().iter(), by_default);
    let (core, rest): (Vec<_>, Vec<_>) = groups.into_iter().partition(|g| g.name.is_empty());
    let core = aggregated(&core);
    for (path, body) in answers("aggregated").into_iter().filter(|(_, body)| body["kind"] == "APIGroupDiscoveryList") {
        match path.as_str() {
            "/api" => assert_eq!(core, body),
            _ => assert_eq!(aggregated(&rest), body),
        }
    }
    assert_eq!(
        etag(&core),
        "4D7E1BED90B364BC86049DD9E636494980AEF65B7F8CFAA267616FA062B514A8A3CC2C2851CC9337B8D28B4C80960E2353DE5E0B152E87CC223E02EA3C5C37AC"
    );
}

#[test]
fn versions_of_custom_groups_are_ordered_by_stability_and_age() {
    let mut names = vec!["v1alpha1", "foo", "v2beta1", "v1", "v10", "v2", "v1beta2", "bar", "v01"];
    names.sort_by(|a, b| compare_versions(a, b));
    assert_eq!(names, ["v10", "v2", "v1", "v2beta1", "v1beta2", "v1alpha1", "bar", "foo", "v01"]);
}

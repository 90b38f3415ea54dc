//! Every kind against upstream's own files: an object with every field set, as JSON, YAML and protobuf.

use std::path::{Path, PathBuf};

use super::{json, proto, yaml};
use crate::Value;
use crate::schema::builtin;

/// Kinds in the files that are not here, by reason.
fn skipped(group: &str, version: &str, kind: &str) -> Option<&'static str> {
    match (group, version, kind) {
        ("extensions", ..) | ("apps", "v1beta1" | "v1beta2", _) => Some("gone since 1.16"),
        ("batch" | "discovery.k8s.io" | "events.k8s.io" | "policy" | "node.k8s.io", "v1alpha1" | "v1beta1", _)
        | ("rbac.authorization.k8s.io", "v1alpha1" | "v1beta1", _)
        | ("flowcontrol.apiserver.k8s.io", "v1beta1" | "v1beta2" | "v1beta3", _)
        | ("scheduling.k8s.io", "v1beta1", _)
        | ("storage.k8s.io", "v1alpha1", _) => Some("no longer served"),
        ("authentication.k8s.io", "v1beta1", "SelfSubjectReview")
        | ("authorization.k8s.io", "v1beta1", _)
        | ("certificates.k8s.io", "v1beta1", "CertificateSigningRequest")
        | ("networking.k8s.io", "v1beta1", "Ingress" | "IngressClass")
        | ("coordination.k8s.io", "v1beta1", "Lease")
        | ("storage.k8s.io", "v1beta1", _) => Some("no longer served in this version"),
        ("apidiscovery.k8s.io", "v2beta1", _) => Some("gone since 1.35"),
        _ => None,
    }
}

fn files() -> Option<Vec<PathBuf>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/k8s-1.36/roundtrip");
    let Ok(entries) = std::fs::read_dir(&folder) else {
        println!("skipped: {} is not there", folder.display());
        return None;
    };
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "json"));
    files.sort();
    Some(files)
}

/// Group, version and kind of a file's name; kinds are capitalised, versions begin with `v` and a digit.
fn names(file: &Path) -> (String, String, String) {
    let stem = file.file_stem().and_then(|stem| stem.to_str()).expect("a name");
    let (rest, kind) = stem.rsplit_once('.').expect("a kind");
    let (group, version) = rest.rsplit_once('.').expect("a version");
    let group = if group == "core" { "" } else { group };
    (group.into(), version.into(), kind.into())
}

#[test]
fn every_kind_decodes_from_all_forms_to_the_same_and_encodes_to_the_same_bytes() {
    let Some(files) = files() else { return };
    let facts = builtin();
    let (mut done, mut skips, mut faults) = (0, Vec::new(), Vec::new());
    for file in files {
        let (group, version, kind) = names(&file);
        let name = format!("{group}/{version} {kind}");
        let Some(ty) = facts.kind(&group, &version, &kind) else {
            match skipped(&group, &version, &kind) {
                Some(why) => skips.push(format!("{name}: {why}")),
                None => faults.push(format!("{name}: no such type")),
            }
            continue;
        };
        let read = |extension| std::fs::read(file.with_extension(extension)).expect("a file");
        let (as_json, as_yaml, as_proto) = (read("json"), read("yaml"), read("pb"));

        let (value, noted) = json::decode(facts, ty, &as_json).expect(&name);
        if !noted.problems.is_empty() {
            faults.push(format!("{name}: {:?}", noted.problems));
        }
        let mut compact = Vec::new();
        json::encode(facts, ty, &value, &mut compact);
        let mut pretty = Vec::new();
        json::indent(&compact, &mut pretty);
        compare(&mut faults, &name, "JSON", &String::from_utf8_lossy(&pretty), &String::from_utf8_lossy(&as_json));

        let mut normalized = value.clone();
        json::normalize(facts, ty, &mut normalized, &mut json::Strictness::default()).expect(&name);
        compare_values(&mut faults, &name, "normalized", &normalized, &value);

        let opened = proto::open(&as_proto).expect(&name);
        let mut from_proto = proto::decode(facts, ty, opened.raw).expect(&name);
        // A WatchEvent has neither.
        if !opened.kind.is_empty() {
            from_proto["apiVersion"] = opened.api_version.clone().into();
            from_proto["kind"] = opened.kind.clone().into();
        }
        compare_values(&mut faults, &name, "from protobuf", &from_proto, &value);
        let mut sealed = Vec::new();
        proto::seal(facts, ty, &value, &mut sealed);
        if sealed != as_proto {
            let at = sealed.iter().zip(&as_proto).position(|(a, b)| a != b).unwrap_or(sealed.len().min(as_proto.len()));
            faults.push(format!("{name}: protobuf differs at byte {at} of {}", as_proto.len()));
        }
        let mut settled = value.clone();
        proto::settle(facts, ty, &mut settled);
        compare_values(&mut faults, &name, "settled", &settled, &value);

        match yaml::parse(&as_yaml) {
            Ok((tree, _)) => match json::redecode(facts, ty, &tree) {
                Ok((from_yaml, _)) => compare_values(&mut faults, &name, "from YAML", &from_yaml, &normalized),
                Err(status) => faults.push(format!("{name}: YAML: {status}")),
            },
            Err(status) => faults.push(format!("{name}: YAML: {status}")),
        }
        let text = String::from_utf8_lossy(&yaml::encode(&normalized)).into_owned();
        compare(&mut faults, &name, "YAML", &text, &String::from_utf8_lossy(&as_yaml));
        done += 1;
    }
    println!("{done} kinds; skipped:\n  {}", skips.join("\n  "));
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
    assert!(done > 100, "only {done} kinds");
}

fn compare(faults: &mut Vec<String>, name: &str, what: &str, have: &str, want: &str) {
    if have != want {
        let line = have.lines().zip(want.lines()).position(|(a, b)| a != b).unwrap_or_default();
        let at = |text: &str| text.lines().nth(line).unwrap_or_default().trim().to_string();
        faults.push(format!("{name}: {what}, line {}: {:?} is not {:?}", line + 1, at(have), at(want)));
    }
}

fn compare_values(faults: &mut Vec<String>, name: &str, what: &str, have: &Value, want: &Value) {
    let [have, want] = [have, want].map(|value| serde_json::to_string_pretty(value).expect("JSON"));
    compare(faults, name, what, &have, &want);
}

#[test]
#[ignore = "prints times"]
fn speed() {
    let Some(files) = files() else { return };
    let file = files.iter().find(|file| file.ends_with("core.v1.Pod.json")).expect("a pod");
    let (facts, ty) = (builtin(), builtin().kind("", "v1", "Pod").expect("Pod"));
    let text = std::fs::read(file).expect("a file");
    let value = json::decode(facts, ty, &text).expect("a pod").0;
    let mut compact = Vec::new();
    json::encode(facts, ty, &value, &mut compact);
    let time = |what: &str, run: &dyn Fn()| {
        let start = std::time::Instant::now();
        (0..1000).for_each(|_| run());
        println!("{what}: {:?}", start.elapsed() / 1000);
    };
    println!("{} bytes", compact.len());
    time("decode", &|| drop(json::decode(facts, ty, &compact).expect("a pod")));
    time("parse", &|| drop(json::parse(&compact).expect("a pod")));
    time("serde_json", &|| drop(serde_json::from_slice::<Value>(&compact).expect("a pod")));
    time("clone", &|| drop(value.clone()));
    time("clone and normalize", &|| {
        json::normalize(facts, ty, &mut value.clone(), &mut json::Strictness::default()).expect("a pod");
    });
    time("encode", &|| {
        let mut out = Vec::with_capacity(compact.len());
        json::encode(facts, ty, &value, &mut out);
    });
    time("serde_json encode", &|| drop(serde_json::to_vec(&value).expect("a pod")));
    let mut sealed = Vec::new();
    proto::seal(facts, ty, &value, &mut sealed);
    time("seal", &|| proto::seal(facts, ty, &value, &mut Vec::new()));
    time("protobuf decode", &|| {
        drop(proto::decode(facts, ty, proto::open(&sealed).expect("a pod").raw).expect("a pod"))
    });
}

//! Ownership through the `scale` subresource: the owners of the parent's replicas are the owners of `spec.replicas` of the
//! Scale, and the other way round.

use super::managed::{self, Entry};
use super::set::{self, Set};
use crate::Value;

const SCALE_VERSION: &str = "autoscaling/v1";
const REPLICAS: &[&str] = &["spec", "replicas"];

/// Where the replicas stand in each version of the parent: `("apps/v1", ["spec", "replicas"])`.
pub type ReplicasPaths<'a> = &'a [(&'a str, &'a [&'a str])];

fn path_in<'a>(paths: ReplicasPaths<'a>, api_version: &str) -> Option<&'a [&'a str]> {
    paths.iter().find(|(version, _)| *version == api_version).map(|(_, path)| *path)
}

fn one(path: &[&str]) -> Set {
    set::of_names(&[path])
}

/// The managedFields of a Scale, from those of its parent.
pub fn scale_to_subresource(parent: &Value, paths: ReplicasPaths<'_>) -> Option<Value> {
    let mut out = Vec::new();
    for mut entry in managed::decode(parent.clone(), true).ok()? {
        if path_in(paths, entry.api_version()).is_some_and(|path| set::has(entry.fields(), path)) {
            *entry.fields_mut() = one(REPLICAS);
            entry.set_api_version(SCALE_VERSION);
            out.push(entry);
        }
    }
    managed::encode(out)
}

/// The managedFields of the parent after those of its Scale changed to `scale`; `api_version` is the parent's. Entries
/// that come through the Scale have no time of their own, and an updater's entry of the parent is never the one that the
/// Scale shows, since their versions differ.
pub fn scale_to_parent(parent: &Value, scale: &Value, api_version: &str, paths: ReplicasPaths<'_>) -> Option<Value> {
    let parent = managed::decode(parent.clone(), true).ok()?;
    let mut of_scale = managed::decode(scale.clone(), true).ok()?;
    let mut out: Vec<Entry> = Vec::new();
    for mut entry in parent.iter().cloned() {
        let Some(path) = path_in(paths, entry.api_version()) else { continue };
        if set::has(entry.fields(), path) {
            match of_scale.iter().position(|e| e.is(entry.identity())) {
                Some(at) => drop(of_scale.remove(at)),
                None => set::subtract(entry.fields_mut(), &one(path)),
            }
        }
        if !entry.fields().is_empty() {
            out.push(entry);
        }
    }
    let path = path_in(paths, api_version).unwrap_or(REPLICAS);
    for mut entry in of_scale {
        if set::has(entry.fields(), REPLICAS) {
            let before = parent.iter().find(|e| e.is(entry.identity())).map_or("", Entry::time);
            entry.set_time(before);
            out.retain(|e| !e.is(entry.identity()));
            *entry.fields_mut() = one(path);
            entry.set_api_version(api_version);
            out.push(entry);
        }
    }
    managed::encode(out)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const PATHS: ReplicasPaths<'static> = &[("apps/v1", &["spec", "replicas"])];

    fn entry(manager: &str, operation: &str, fields: Value) -> Value {
        json!({"manager": manager, "operation": operation, "apiVersion": "apps/v1", "time": "2026-01-01T00:00:00Z",
            "fieldsType": "FieldsV1", "fieldsV1": fields})
    }

    #[test]
    fn an_updater_of_the_scale_gets_an_entry_of_its_own() {
        let parent = json!([entry("golden", "Update", json!({"f:spec": {"f:replicas": {}, "f:selector": {}}}))]);
        let mut scale = scale_to_subresource(&parent, PATHS).expect("owners");
        assert_eq!(scale[0]["apiVersion"], SCALE_VERSION);
        scale[0]["subresource"] = "scale".into();
        let after = scale_to_parent(&parent, &scale, "apps/v1", PATHS).expect("owners");
        let of = |subresource: &str| {
            let all = after.as_array().expect("a list");
            all.iter().find(|e| e["subresource"].as_str().unwrap_or_default() == subresource).expect("an entry").clone()
        };
        assert_eq!(of("")["fieldsV1"], json!({"f:spec": {"f:selector": {}}}));
        let want = json!({
            "manager": "golden", "operation": "Update", "apiVersion": "apps/v1", "fieldsType": "FieldsV1",
            "fieldsV1": {"f:spec": {"f:replicas": {}}}, "subresource": "scale",
        });
        assert_eq!(of("scale"), want);
    }

    #[test]
    fn an_applier_keeps_its_share() {
        let parent = json!([entry("m", "Apply", json!({"f:spec": {"f:replicas": {}}}))]);
        let scale = scale_to_subresource(&parent, PATHS).expect("owners");
        assert_eq!(scale_to_parent(&parent, &scale, "apps/v1", PATHS), Some(parent));
    }
}

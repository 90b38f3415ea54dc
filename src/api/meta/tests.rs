use serde_json::json;

use super::*;
use crate::field::Path;

fn valid(name: &str, prefix: bool) -> bool {
    dns_subdomain(name, prefix).is_empty()
}

#[test]
fn subdomains() {
    for good in ["a", "0", "a.b", "a-b.c", &"x".repeat(253)] {
        assert!(valid(good, false), "{good}");
    }
    for bad in ["", "A", "a_b", "-a", "a-", "a..b", ".a", "a.", "a b", "ä", "a.-b", &"x".repeat(254)] {
        assert!(!valid(bad, false), "{bad}");
    }
    assert!(valid("a-", true));
    assert_eq!(dns_subdomain(&"x".repeat(254), false), ["must be no more than 253 characters"]);
}

#[test]
fn a_label_with_dots_is_told_so() {
    assert_eq!(names::label("a.b"), ["must not contain dots"]);
}

#[test]
fn path_segments_refuse_what_breaks_paths() {
    assert_eq!(names::path_segment("..", false), ["may not be '..'"]);
    assert!(names::path_segment("..", true).is_empty());
    assert_eq!(names::path_segment("a/b%", false), ["may not contain '/'", "may not contain '%'"]);
    assert!(names::path_segment("system:x y", false).is_empty());
}

#[test]
fn label_keys_and_values() {
    for good in ["a", "A_b.c-9", "example.com/x", &format!("{}/b", "a".repeat(253))] {
        assert!(label_key(good).is_empty(), "{good}");
    }
    assert_eq!(label_key("/a"), ["prefix part must be non-empty"]);
    assert_eq!(label_key(&"x".repeat(64)), ["name part must be no more than 63 bytes"]);
    assert!(label_key("a/b/c")[0].starts_with("a valid label key must consist"));
    assert!(label_value("").is_empty());
    assert!(!label_value("v.").is_empty());
}

#[test]
fn generated_names_stay_within_63_bytes() {
    let name = generate_name(&"x".repeat(100), u64::MAX);
    assert_eq!(name.len(), 63);
    assert!(name.bytes().skip(58).all(|b| SUFFIX.contains(&b)));
    assert_ne!(suffix(1), suffix(2));
}

#[test]
fn the_namespace_is_that_of_the_request() {
    let mut object = json!({"metadata": {"name": "a"}});
    match_namespace(&mut object, "ns").unwrap();
    assert_eq!(text(&object, "namespace"), "ns");
    assert_eq!(match_namespace(&mut object, "other").unwrap_err().code, 400);
    match_namespace(&mut object, "").unwrap();
    assert_eq!(text(&object, "namespace"), "");
}

#[test]
fn updates_keep_what_the_system_owns() {
    let old = json!({"metadata": {"uid": "u", "generation": 3, "creationTimestamp": "2020-01-01T00:00:00Z"}});
    let mut new = json!({"metadata": {"generation": 9, "creationTimestamp": null, "selfLink": "/s"}});
    keep_system_fields(&mut new, &old);
    assert_eq!(new, old);
    let mut other = json!({"metadata": {"uid": "v"}});
    keep_system_fields(&mut other, &old);
    assert_eq!(text(&other, "uid"), "v");
}

#[test]
fn a_deletion_can_not_be_smuggled_in() {
    let old = json!({"metadata": {"name": "a", "resourceVersion": "1"}});
    let new = json!({"metadata": {"name": "a", "resourceVersion": "1", "deletionTimestamp": "2001-01-01T00:00:00Z",
                                  "deletionGracePeriodSeconds": 5}});
    assert_eq!(
        validate_update(&new, &old).aggregate().unwrap(),
        "[metadata.deletionTimestamp: Invalid value: \"2001-01-01T00:00:00Z\": field is immutable, \
         metadata.deletionGracePeriodSeconds: Invalid value: 5: field is immutable]"
    );
}

#[test]
fn no_finalizer_joins_an_object_that_goes() {
    let old = json!({"metadata": {"resourceVersion": "1", "deletionTimestamp": "2001-01-01T00:00:00Z",
                                  "finalizers": ["a/b"]}});
    let mut new = old.clone();
    new["metadata"]["finalizers"] = json!(["z/z", "a/b", "c/d"]);
    assert_eq!(
        validate_update(&new, &old).aggregate().unwrap(),
        "metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted, found new \
         finalizers []string{\"c/d\", \"z/z\"}"
    );
}

#[test]
fn only_one_owner_controls() {
    let owner = |name: &str| json!({"apiVersion": "v1", "kind": "Pod", "name": name, "uid": "u", "controller": true});
    let mut out = crate::field::Errors::new();
    check::owners(&mut out, &[owner("a"), owner("b")], &Path::new("metadata").child("ownerReferences"));
    assert_eq!(
        out.aggregate().unwrap(),
        "metadata.ownerReferences: Invalid value: [{\"apiVersion\":\"v1\",\"kind\":\"Pod\",\"name\":\"a\",\"uid\":\"u\",\
         \"controller\":true},{\"apiVersion\":\"v1\",\"kind\":\"Pod\",\"name\":\"b\",\"uid\":\"u\",\"controller\":true}]: \
         Only one reference can have Controller set to true. Found \"true\" in references for Pod/a and Pod/b"
    );
}

#[test]
fn differences_outside_some_fields() {
    let old = json!({"metadata": {"a": 1}, "spec": 1});
    assert!(!differs_outside(&json!({"metadata": {}, "spec": 1}), &old, &["metadata"]));
    assert!(differs_outside(&json!({"metadata": {}}), &old, &["metadata"]));
}

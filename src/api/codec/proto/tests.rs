use serde_json::json;

use super::*;
use crate::codec::json as text;
use crate::schema::builtin;

fn ty(group: &str, kind: &str) -> &'static Type {
    builtin().kind(group, "v1", kind).expect(kind)
}

/// Encodes a normalized object, decodes the bytes and gives both.
fn there_and_back(group: &str, kind: &str, value: &Value) -> (Vec<u8>, Value) {
    let mut bytes = Vec::new();
    encode(builtin(), ty(group, kind), value, &mut bytes);
    let back = decode(builtin(), ty(group, kind), &bytes).expect(kind);
    (bytes, back)
}

fn normal(group: &str, kind: &str, mut value: Value) -> Value {
    text::normalize(builtin(), ty(group, kind), &mut value, &mut text::Strictness::default()).expect(kind);
    value
}

#[test]
fn the_envelope_holds_the_object_in_field_2_and_no_content_type() {
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}});
    let mut out = Vec::new();
    seal(builtin(), ty("", "ConfigMap"), &map, &mut out);
    assert!(out.starts_with(b"k8s\0\x0a\x0f\x0a\x02v1\x12\x09ConfigMap\x12"));
    assert!(out.ends_with(b"\x1a\0\x22\0"));
    let opened = open(&out).unwrap();
    assert_eq!((opened.api_version.as_str(), opened.kind.as_str()), ("v1", "ConfigMap"));
    let back = decode(builtin(), ty("", "ConfigMap"), opened.raw).unwrap();
    assert_eq!(back, json!({"metadata": {"name": "a"}}));
}

#[test]
fn what_is_no_envelope_is_refused_in_upstreams_words() {
    let error = |bytes: &[u8]| open(bytes).unwrap_err().message;
    assert_eq!(error(b""), "empty data");
    assert_eq!(
        error(b"{\"a\":1}"),
        "provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]"
    );
    assert_eq!(error(b"k8s\0"), "empty body");
    assert_eq!(error(b"k8s\0\x12\x7fabc"), "unexpected EOF");
    let torn = decode(builtin(), ty("", "Pod"), b"\x0a\x05ab").unwrap_err();
    assert_eq!((torn.code, torn.message.as_str()), (400, "unexpected EOF"));
    assert_eq!(
        decode(builtin(), ty("", "Pod"), b"\x08\x01").unwrap_err().message,
        "proto: wrong wireType = 0 for field metadata"
    );
}

#[test]
fn a_missing_message_stays_missing_and_an_empty_one_empty() {
    let pod = json!({"spec": {"containers": [{"name": "c"}], "securityContext": {}}});
    let (bytes, back) = there_and_back("", "Pod", &normal("", "Pod", pod));
    assert_eq!(back["spec"]["securityContext"], json!({}));
    assert_eq!(back["spec"].get("affinity"), None);
    assert!(bytes.starts_with(b"\x0a\x10\x0a\0\x12\0"), "metadata's zero texts are written: {bytes:?}");
}

#[test]
fn inlined_messages_are_written_even_when_empty() {
    let pod = json!({"spec": {"volumes": [{"name": "a"}, {"name": "b", "secret": {"secretName": "s"}}],
        "containers": [{"name": "c", "livenessProbe": {"httpGet": {"port": "http"}}}],
        "ephemeralContainers": [{"name": "e", "targetContainerName": "c"}]}});
    let pod = normal("", "Pod", pod);
    let (bytes, back) = there_and_back("", "Pod", &pod);
    assert_eq!(back, pod);
    assert!(bytes.windows(7).any(|w| w == b"\x0a\x05\x0a\x01a\x12\0"), "volume a with its empty source: {bytes:?}");
}

#[test]
fn special_values_survive() {
    let secret = normal(
        "",
        "Secret",
        json!({"data": {"a": "AAEC", "b": ""}, "metadata": {
        "creationTimestamp": "2020-01-01T00:00:00Z",
        "managedFields": [{"manager": "m", "fieldsV1": {"f:data": {".": {}}}}]}}),
    );
    assert_eq!(there_and_back("", "Secret", &secret).1, secret);
    let service = normal("", "Service", json!({"spec": {"ports": [{"port": 80, "targetPort": "http"}, {"port": -1}]}}));
    assert_eq!(there_and_back("", "Service", &service).1, service);
    let event = normal("", "Event", json!({"eventTime": "2020-01-01T00:00:00.123456Z", "count": 3}));
    assert_eq!(there_and_back("", "Event", &event).1, event);
    let review = json!({"spec": {"user": "u", "extra": {"a": ["1", "2"], "b": []}}});
    let review = normal("authorization.k8s.io", "SubjectAccessReview", review);
    assert_eq!(there_and_back("authorization.k8s.io", "SubjectAccessReview", &review).1, review);
    let definition = json!({"spec": {"versions": [{"schema": {"openAPIV3Schema": {
        "additionalProperties": true, "items": {"type": "string"}, "default": [1, "a"],
        "properties": {"a": {"additionalProperties": {"type": "object"}}}, "dependencies": {"b": ["c"]}}}}]}});
    let definition = normal("apiextensions.k8s.io", "CustomResourceDefinition", definition);
    assert_eq!(there_and_back("apiextensions.k8s.io", "CustomResourceDefinition", &definition).1, definition);
    let policy = json!({"webhooks": [{"name": "w", "rules": [{"operations": ["CREATE"], "apiGroups": ["a"],
        "resources": ["r"], "scope": "*"}]}]});
    let policy = normal("admissionregistration.k8s.io", "ValidatingWebhookConfiguration", policy);
    assert_eq!(there_and_back("admissionregistration.k8s.io", "ValidatingWebhookConfiguration", &policy).1, policy);
}

#[test]
fn settling_does_what_a_trip_through_protobuf_does() {
    let role = json!({"metadata": {"labels": {}, "annotations": {"a": "b"}}, "rules": []});
    let mut role = normal("rbac.authorization.k8s.io", "ClusterRole", role);
    assert_eq!(role["rules"], json!([]));
    settle(builtin(), ty("rbac.authorization.k8s.io", "ClusterRole"), &mut role);
    assert_eq!(role, json!({"metadata": {"annotations": {"a": "b"}}, "rules": null}));
    assert_eq!(there_and_back("rbac.authorization.k8s.io", "ClusterRole", &role).1, role);

    let mut secret = normal("", "Secret", json!({"data": {"a": null}}));
    settle(builtin(), ty("", "Secret"), &mut secret);
    assert_eq!(secret, json!({"metadata": {}, "data": {"a": ""}}));
}

#[test]
fn unknown_fields_and_groups_are_passed_over() {
    let mut bytes = vec![0x9b, 0x06, 0x08, 0x01, 0x9c, 0x06]; // group 99 with a varint in it
    bytes.extend_from_slice(b"\xa2\x06\x01x"); // text 100
    bytes.extend_from_slice(b"\x0a\x03\x0a\x01n");
    assert_eq!(decode(builtin(), ty("", "ConfigMap"), &bytes).unwrap(), json!({"metadata": {"name": "n"}}));
}

#[test]
fn watch_events_wrap_sealed_objects() {
    let mut object = Vec::new();
    seal(builtin(), ty("", "ConfigMap"), &json!({"apiVersion": "v1", "kind": "ConfigMap"}), &mut object);
    let mut out = Vec::new();
    watch_event("ADDED", &object, &mut out);
    let event = decode(builtin(), ty("", "WatchEvent"), &out).unwrap();
    assert_eq!(event["type"], "ADDED");
    assert_eq!(event["object"]["kind"], "ConfigMap");
}

#[test]
fn fields_of_a_message_are_found() {
    let raw = [0x0a, 1, 7, 0x12, 2, b'a', b'b', 0x1a, 3, 1, 2, 3];
    assert_eq!(field(&raw, 3), Ok(&[1, 2, 3][..]));
    assert_eq!(field(&raw, 4), Ok(&[][..]));
    assert!(field(&raw[..11], 3).is_err(), "cut off");
}

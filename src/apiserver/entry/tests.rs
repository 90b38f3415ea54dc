use std::collections::BTreeMap;

use serde_json::json;
use store::KeyValue;
use store::cache::{Decode, Indexed};

use super::*;
use crate::registry::Resources;

fn decoder() -> Decoder {
    let rows = api::resources::builtin().iter();
    let rows = rows.map(|row| ((row.group.clone(), row.plural.clone()), Arc::new(row.clone()))).collect();
    Decoder::new("/registry", Arc::new(Resources::new(rows)))
}

fn kv(key: &str, value: impl Into<Vec<u8>>) -> KeyValue {
    KeyValue { key: key.into(), value: Bytes::from(value.into()), mod_revision: 42, create_revision: 7 }
}

const POD: &str = concat!(
    r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"web","namespace":"default","uid":"u-1","generation":3,"#,
    r#""labels":{"app":"web","weird":"a\"b"},"ownerReferences":[{"kind":"ReplicaSet","uid":"o-1"},{"uid":"o-2"}]},"#,
    r#""spec":{"nodeName":"n1","containers":[{"name":"c}"}]},"status":{"phase":"Running"}}"#
);

fn pod() -> Entry {
    decoder().decode(&kv("/registry/pods/default/web", POD))
}

#[test]
fn the_resource_version_stands_where_upstream_writes_it() {
    let want = POD.replace(r#""uid":"u-1","#, r#""uid":"u-1","resourceVersion":"42","#);
    assert_eq!(pod().json().expect("sound"), want);
    let bare = decoder().decode(&kv("/registry/nodes/n", r#"{"kind":"Node","apiVersion":"v1","metadata":{}}"#));
    let want = r#"{"kind":"Node","apiVersion":"v1","metadata":{"resourceVersion":"42"}}"#;
    assert_eq!(bare.json().expect("sound"), want);
    let stale = r#"{"kind":"Node","apiVersion":"v1","metadata":{"resourceVersion":"1","creationTimestamp":null}}"#;
    let want = r#"{"kind":"Node","apiVersion":"v1","metadata":{"resourceVersion":"42","creationTimestamp":null}}"#;
    assert_eq!(decoder().decode(&kv("/registry/minions/n", stale)).json().expect("sound"), want);
}

#[test]
fn what_readers_ask_is_taken_out_once() {
    let pod = pod();
    assert_eq!((pod.name(), pod.namespace(), pod.uid(), pod.api_version()), ("web", "default", "u-1", "v1"));
    assert_eq!(pod.labels().collect::<Vec<_>>(), [("app", "web"), ("weird", "a\"b")]);
    assert_eq!((pod.label("weird"), pod.label("none")), (Some("a\"b"), None));
    assert_eq!(pod.owners().collect::<Vec<_>>(), ["o-1", "o-2"]);
    assert_eq!(pod.field("spec.nodeName"), Some("n1"));
    assert_eq!((pod.field("status.phase"), pod.field("status.podIP")), (Some("Running"), Some("")));
    assert_eq!((pod.field("metadata.name"), pod.field("spec.containers")), (Some("web"), None));
    assert!(!pod.terminating());
    let dying = POD.replace(r#""generation":3"#, r#""deletionTimestamp":"2026-01-01T00:00:00Z""#);
    assert!(decoder().decode(&kv("/registry/pods/default/web", dying)).terminating());
}

#[test]
fn items_events_and_metadata_are_slices_of_the_one_buffer() {
    let pod = pod();
    let whole = pod.json().expect("sound");
    let whole = std::str::from_utf8(&whole).expect("text");
    let (head, rest) = whole.split_at(r#"{"kind":"Pod","apiVersion":"v1","#.len());
    assert_eq!(pod.object(), [head.as_bytes(), rest.as_bytes()]);
    assert_eq!(pod.item(), format!(",{{{rest}"));
    assert_eq!(pod.event_rest(), format!("{rest}}}\n").as_bytes());
    let (before, after) = pod.event_halves();
    assert_eq!([before, b"99", after].concat(), format!("{rest}}}\n").replace("\"42\"", "\"99\"").as_bytes());
    let object: Value = serde_json::from_str(whole).expect("JSON");
    assert_eq!(serde_json::from_slice::<Value>(&pod.metadata()).expect("JSON"), object["metadata"]);
    let (before, after) = pod.metadata_halves();
    let metadata: Value = serde_json::from_slice(&[before, b"99", after].concat()).expect("JSON");
    assert_eq!(metadata["resourceVersion"], "99");
    assert_eq!(pod.parse().expect("sound"), object);
}

#[test]
fn custom_resources_keep_kind_and_version_in_lists() {
    let stored = r#"{"apiVersion":"a.example.com/v1","kind":"Thing","metadata":{"name":"t","uid":"u"},"spec":1}"#;
    let thing = decoder().decode(&kv("/registry/a.example.com/things/ns/t", stored));
    let want = stored.replace(r#""uid":"u""#, r#""resourceVersion":"42","uid":"u""#);
    assert_eq!(thing.json().expect("sound"), want, "in the order of sorted keys");
    assert_eq!(thing.item(), format!(",{want}"));
    assert_eq!((thing.api_version(), thing.name()), ("a.example.com/v1", "t"));
    assert_eq!(thing.parse().expect("sound"), serde_json::from_str::<Value>(&want).expect("JSON"));
}

#[test]
fn an_undecodable_value_is_an_entry_that_says_so() {
    for bad in ["", "garbage", "k8s:enc:aescbc:v1:x", "{\"kind\":\"Pod\"}", "{\"kind\":\"Pod\",\"apiVersion\":\"v1\","]
    {
        let entry = decoder().decode(&kv("/registry/pods/default/web", bad));
        assert_eq!((entry.name(), entry.namespace()), ("web", "default"), "{bad}");
        let refused = entry.json().expect_err("refused");
        assert_eq!(refused.code, 500, "{bad}");
        assert!(refused.message.contains("/registry/pods/default/web"), "{bad}: {}", refused.message);
        assert!(entry.parse().is_err() && entry.value().is_err());
    }
}

#[test]
fn keys_fall_to_resources_by_their_form() {
    let decoder = decoder();
    let of = |key: &'static str| decoder.resource(key);
    assert_eq!(of("/registry/pods/default/web"), Some("/registry/pods/"));
    assert_eq!(of("/registry/pods/"), Some("/registry/pods/"));
    assert_eq!(of("/registry/minions/n1"), Some("/registry/minions/"));
    assert_eq!(of("/registry/services/specs/default/web"), Some("/registry/services/specs/"));
    assert_eq!(of("/registry/a.example.com/things/ns/t"), Some("/registry/a.example.com/things/"));
    assert_eq!((of("/registry/health"), of("/elsewhere/pods/x"), of("compact_rev_key")), (None, None, None));
    for row in api::resources::builtin().iter().filter(|row| row.is_stored()) {
        let key = key("/registry", row, "ns", "name");
        assert_eq!(decoder.resource(&key), Some(&*resource_prefix("/registry", row)), "{}", row.plural);
    }
}

#[test]
fn absent_fields_print_as_the_kind_says() {
    let table: BTreeMap<_, _> = api::resources::builtin().iter().map(|r| (r.plural.as_ref(), r)).collect();
    for row in table.values().filter(|row| row.is_stored() && row.group == row.stored_group) {
        let object = json!({
            "kind": row.kind, "apiVersion": row.stored_api_version(), "metadata": {"name": "x"}
        });
        let entry = decoder().decode(&kv(&key("/registry", row, "", "x"), object.to_string()));
        for field in row.selectable {
            assert_eq!(entry.field(field), Some(&*row.strategy.selectable(&object, field)), "{} {field}", row.plural);
        }
    }
}

#[test]
fn equal_bytes_are_the_same_and_others_are_not() {
    assert!(pod().same(&pod()));
    let other = decoder().decode(&kv("/registry/pods/default/web", POD.replace("n1", "n2")));
    assert!(!pod().same(&other));
}

#[test]
fn a_tree_is_made_once_and_shared() {
    let pod = pod();
    let (one, two) = (pod.value().expect("sound"), pod.value().expect("sound"));
    assert!(Arc::ptr_eq(&one, &two));
    let typed = pod.typed::<k8s_openapi::api::core::v1::Pod>().expect("a Pod");
    assert_eq!(typed.metadata.name.as_deref(), Some("web"));
    assert!(Arc::ptr_eq(&typed, &pod.typed().expect("a Pod")));
}

#[test]
fn what_upstream_wrote_as_protobuf_is_the_same_object() {
    let facts = api::schema::builtin();
    let object = json!({
        "kind": "ConfigMap", "apiVersion": "v1", "data": {"a": "1"},
        "metadata": {"name": "c", "namespace": "default", "uid": "u-1", "labels": {"app": "web"}}
    });
    let mut value = Vec::new();
    let ty = facts.kind("", "v1", "ConfigMap").expect("a type");
    api::codec::proto::seal(facts, ty, &object, &mut value);
    let entry = decoder().decode(&kv("/registry/configmaps/default/c", value));
    assert_eq!((entry.name(), entry.uid(), entry.label("app")), ("c", "u-1", Some("web")));
    let parsed = entry.parse().expect("sound");
    assert_eq!((&parsed["data"], &parsed["metadata"]["resourceVersion"]), (&json!({"a": "1"}), &json!("42")));
    assert_eq!((entry.api_version(), &parsed["kind"]), ("v1", &json!("ConfigMap")));
}

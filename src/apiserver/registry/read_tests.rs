//! Get, list and watch as clients see them, over a store in memory.

use std::sync::Arc;
use std::time::Duration;

use api::status::Status;
use futures::StreamExt;
use http::HeaderValue;
use http::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE};
use serde_json::{Value, json};
use store::Expect;

use super::{read, watch};
use crate::Api;
use crate::request::{Answer, Body};
use crate::testing::{body, empty as api, put, request};

const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";

fn config(namespace: &str, name: &str, labels: Value) -> Value {
    json!({
        "kind": "ConfigMap", "apiVersion": "v1",
        "metadata": {"name": name, "namespace": namespace, "uid": format!("u-{name}"), "labels": labels},
        "data": {"a": "1"}
    })
}

async fn ask(api: &Arc<Api>, path: &str, accept: &str) -> Result<Answer, Status> {
    let mut req = request(api, "GET", path);
    if !accept.is_empty() {
        req.headers.insert(ACCEPT, accept.parse().expect("a header"));
    }
    let row = api.resources.find(&req.info.group, &req.info.resource).expect("a row");
    match &*req.info.verb {
        "get" => read::get(api, &row, &mut req).await,
        "watch" => watch::watch(api, &row, &mut req).await,
        _ => read::list(api, &row, &mut req).await,
    }
}

async fn text(api: &Arc<Api>, path: &str) -> String {
    let answer = ask(api, path, "").await.unwrap_or_else(|e| panic!("{path}: {e:?}"));
    String::from_utf8(body(answer).await.to_vec()).expect("text")
}

async fn json_of(api: &Arc<Api>, path: &str) -> Value {
    serde_json::from_str(&text(api, path).await).expect("JSON")
}

async fn refused(api: &Arc<Api>, path: &str) -> Status {
    match ask(api, path, "").await {
        Err(status) => status,
        Ok(_) => panic!("{path} is answered"),
    }
}

fn names(list: &Value) -> Vec<&str> {
    let items = list["items"].as_array().expect("items");
    items.iter().map(|item| item["metadata"]["name"].as_str().expect("a name")).collect()
}

const MAPS: &str = "/api/v1/namespaces/x/configmaps";

async fn five() -> Arc<Api> {
    let api = api().await;
    for (name, odd) in [("c0", "0"), ("c1", "1"), ("c2", "0"), ("c3", "1"), ("c4", "0")] {
        put(&api, "configmaps", config("x", name, json!({"odd": odd}))).await;
    }
    put(&api, "configmaps", config("y", "z", json!({}))).await;
    api
}

#[tokio::test]
async fn an_object_is_its_stored_bytes_with_a_revision() {
    let api = five().await;
    let want = "{\"kind\":\"ConfigMap\",\"apiVersion\":\"v1\",\"data\":{\"a\":\"1\"},\"metadata\":{\"labels\":{\"odd\":\
                \"0\"},\"name\":\"c0\",\"namespace\":\"x\",\"resourceVersion\":\"2\",\"uid\":\"u-c0\"}}\n";
    let got: Value = serde_json::from_str(&text(&api, &format!("{MAPS}/c0")).await).expect("JSON");
    assert_eq!(got, serde_json::from_str::<Value>(want).expect("JSON"));
    assert!(text(&api, &format!("{MAPS}/c0")).await.starts_with("{\"kind\":\"ConfigMap\",\"apiVersion\":\"v1\","));
    let missing = refused(&api, &format!("{MAPS}/none")).await;
    assert_eq!((missing.code, &*missing.message), (404, "configmaps \"none\" not found"));
}

#[tokio::test]
async fn a_revision_that_is_not_there_yet_is_waited_for_and_then_refused() {
    let api = five().await;
    let paths = [format!("{MAPS}/c0?"), format!("{MAPS}?"), format!("{MAPS}?resourceVersionMatch=Exact&")];
    let api = &api;
    let asked =
        paths.map(|path| async move { refused(api, &format!("{path}resourceVersion=4611686018427387904")).await });
    for status in futures::future::join_all(asked).await {
        assert_eq!((status.code, status.reason), (504, "Timeout"));
        assert_eq!(status.message, "Timeout: Too large resource version: 4611686018427387904, current: 7");
        let details = status.details.expect("details");
        assert_eq!((&*details.causes[0].reason, details.retry_after_seconds), ("ResourceVersionTooLarge", 1));
    }
}

#[tokio::test]
async fn a_malformed_revision_is_500_for_get_and_400_for_list() {
    let api = five().await;
    let get = refused(&api, &format!("{MAPS}/c0?resourceVersion=abc")).await;
    assert_eq!((get.code, get.reason), (500, ""));
    let list = refused(&api, &format!("{MAPS}?resourceVersion=-1")).await;
    assert_eq!((list.code, list.reason), (400, "BadRequest"));
    assert!(list.message.starts_with("invalid resource version: resourceVersion: Invalid value: \"-1\""));
}

#[tokio::test]
async fn a_list_has_the_stores_revision_and_items_without_kind() {
    let api = five().await;
    let last = put(&api, "nodes", json!({"kind": "Node", "apiVersion": "v1", "metadata": {"name": "n"}})).await;
    let list = json_of(&api, MAPS).await;
    assert_eq!((&list["kind"], &list["apiVersion"]), (&json!("ConfigMapList"), &json!("v1")));
    assert_eq!(list["metadata"], json!({"resourceVersion": last.to_string()}));
    assert_eq!(names(&list), ["c0", "c1", "c2", "c3", "c4"]);
    assert!(list["items"][0].get("kind").is_none());
    let empty = text(&api, "/api/v1/namespaces/x/secrets").await;
    let want = format!(
        "{{\"kind\":\"SecretList\",\"apiVersion\":\"v1\",\"metadata\":{{\"resourceVersion\":\"{last}\"}},\"items\":[]}}\n"
    );
    assert_eq!(empty, want);
    assert_eq!(names(&json_of(&api, "/api/v1/configmaps").await).len(), 6);
}

#[tokio::test]
async fn pages_are_of_one_state_whatever_is_written_meanwhile() {
    let api = five().await;
    let first = json_of(&api, &format!("{MAPS}?limit=2")).await;
    assert_eq!((names(&first), &first["metadata"]["remainingItemCount"]), (vec!["c0", "c1"], &json!(3)));
    put(&api, "configmaps", config("x", "c3b", json!({}))).await;
    let revision = first["metadata"]["resourceVersion"].as_str().expect("a revision").to_string();
    let mut all = Vec::new();
    let mut page = first;
    loop {
        all.extend(names(&page).into_iter().map(str::to_string));
        assert_eq!(page["metadata"]["resourceVersion"], *revision);
        let Some(token) = page["metadata"]["continue"].as_str() else { break };
        let path = format!("{MAPS}?limit=2&continue={token}");
        page = json_of(&api, &path).await;
    }
    assert_eq!(all, ["c0", "c1", "c2", "c3", "c4"]);
    assert!(page["metadata"].get("remainingItemCount").is_none(), "not on the last page");
    let selected = json_of(&api, &format!("{MAPS}?limit=1&labelSelector=odd%3D1")).await;
    assert_eq!(names(&selected), ["c1"]);
    assert!(selected["metadata"].get("remainingItemCount").is_none(), "not with a selector");
    assert!(selected["metadata"]["continue"].is_string());
    let whole = json_of(&api, &format!("{MAPS}?limit=6")).await;
    assert_eq!((names(&whole).len(), whole["metadata"].get("continue")), (6, None));
    let any = json_of(&api, &format!("{MAPS}?limit=1&resourceVersion=0")).await;
    assert_eq!(names(&any).len(), 6, "a list of any state has no pages");
}

#[tokio::test]
async fn an_expired_token_comes_with_one_that_leads_on() {
    let api = five().await;
    let first = json_of(&api, &format!("{MAPS}?limit=2")).await;
    let token = first["metadata"]["continue"].as_str().expect("a token");
    // Pushes the state out of the cache's log, then out of the store.
    let large = "x".repeat(1 << 20);
    let mut last = 0;
    for _ in 0..12 {
        let mut object = config("y", "large", json!({}));
        object["data"]["a"] = large.clone().into();
        last = put(&api, "configmaps", object).await;
    }
    let page = json_of(&api, &format!("{MAPS}?limit=2&continue={token}")).await;
    assert_eq!(names(&page), ["c2", "c3"], "the store still had it");
    api.store.compact(last).await.expect("a compaction");
    put(&api, "configmaps", config("x", "c9", json!({}))).await;
    let expired = refused(&api, &format!("{MAPS}?limit=2&continue={token}")).await;
    assert_eq!((expired.code, expired.reason), (410, "Expired"));
    let fresh = expired.continue_token.expect("a fresh token");
    let rest = json_of(&api, &format!("{MAPS}?continue={fresh}")).await;
    assert_eq!(names(&rest), ["c2", "c3", "c4", "c9"], "the rest, as it is now");
    let exact = refused(&api, &format!("{MAPS}?resourceVersion=3&resourceVersionMatch=Exact")).await;
    assert_eq!((exact.code, exact.continue_token), (410, None));
}

#[tokio::test]
async fn an_older_state_can_be_asked_for_exactly() {
    let api = five().await;
    let exact = json_of(&api, &format!("{MAPS}?resourceVersion=3&resourceVersionMatch=Exact")).await;
    assert_eq!((names(&exact), &exact["metadata"]["resourceVersion"]), (vec!["c0", "c1"], &json!("3")));
    let limited = json_of(&api, &format!("{MAPS}?resourceVersion=4&limit=2")).await;
    assert_eq!((names(&limited), &limited["metadata"]["remainingItemCount"]), (vec!["c0", "c1"], &json!(1)));
    let newer = json_of(&api, &format!("{MAPS}?resourceVersion=3&resourceVersionMatch=NotOlderThan")).await;
    assert_eq!(names(&newer).len(), 5);
    let both = refused(&api, &format!("{MAPS}?continue=abc&resourceVersion=3")).await;
    assert_eq!(both.code, 400);
}

#[tokio::test]
async fn selectors_choose() {
    let api = five().await;
    for (query, want) in [
        ("labelSelector=odd%3D1", vec!["c1", "c3"]),
        ("labelSelector=odd%3D0&fieldSelector=metadata.name!%3Dc2", vec!["c0", "c4"]),
        ("fieldSelector=metadata.name%3Dc3", vec!["c3"]),
        ("fieldSelector=metadata.name%3Dc3,metadata.name%3Dc4", vec![]),
        ("fieldSelector=metadata.namespace%3Dother", vec![]),
        ("fieldSelector=metadata.namespace%3Dx,metadata.name%3Dc1", vec!["c1"]),
        ("fieldSelector=metadata.name%3D", vec![]),
    ] {
        assert_eq!(names(&json_of(&api, &format!("{MAPS}?{query}")).await), want, "{query}");
    }
    let all = json_of(&api, "/api/v1/configmaps?fieldSelector=metadata.namespace%3Dy").await;
    assert_eq!(names(&all), ["z"]);
    let unknown = refused(&api, &format!("{MAPS}?fieldSelector=data.a%3D1")).await;
    let want = "\"data.a\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\"";
    assert_eq!((unknown.code, &*unknown.message), (400, want));
}

fn pod(name: &str, node: &str, phase: &str) -> Value {
    json!({
        "kind": "Pod", "apiVersion": "v1", "metadata": {"name": name, "namespace": "x"},
        "spec": {"nodeName": node}, "status": {"phase": phase}
    })
}

#[tokio::test]
async fn pods_of_a_node_are_found_by_index() {
    let api = api().await;
    for n in 0..20 {
        put(&api, "pods", pod(&format!("p{n:02}"), &format!("n{}", n % 4), "Running")).await;
    }
    put(&api, "pods", pod("p00", "n1", "Pending")).await;
    let of = async |query: &str| {
        let list = json_of(&api, &format!("/api/v1/pods?fieldSelector={query}")).await;
        names(&list).into_iter().map(str::to_string).collect::<Vec<_>>()
    };
    assert_eq!(of("spec.nodeName%3Dn1").await, ["p00", "p01", "p05", "p09", "p13", "p17"]);
    assert_eq!(of("spec.nodeName%3Dn1,status.phase%3DPending").await, ["p00"]);
    assert_eq!(of("spec.nodeName%3Dnone").await, [""; 0]);
}

#[tokio::test]
async fn one_undecodable_object_fails_lists_and_nothing_else() {
    let api = five().await;
    api.store.put("/registry/configmaps/y/bad", "garbage".into(), Expect::Absent, 0).await.expect("memory");
    assert_eq!(refused(&api, "/api/v1/configmaps").await.code, 500);
    assert_eq!(refused(&api, "/api/v1/namespaces/y/configmaps/bad").await.code, 500);
    assert_eq!(names(&json_of(&api, MAPS).await).len(), 5, "another namespace is whole");
    assert!(text(&api, "/api/v1/namespaces/y/configmaps/z").await.contains("\"z\""));
}

#[tokio::test]
async fn tables_and_metadata_are_shapes_of_the_same_list() {
    let api = five().await;
    let shaped = async |path: &str, accept: &str| {
        let answer = ask(&api, path, accept).await.unwrap_or_else(|e| panic!("{path}: {e:?}"));
        assert_eq!(answer.headers()[CONTENT_TYPE], "application/json");
        serde_json::from_slice::<Value>(&body(answer).await).expect("JSON")
    };
    let table = shaped(&format!("{MAPS}?limit=2"), TABLE).await;
    assert_eq!((&table["kind"], &table["apiVersion"]), (&json!("Table"), &json!("meta.k8s.io/v1")));
    assert_eq!(table["metadata"]["remainingItemCount"], 3);
    assert_eq!(table["columnDefinitions"][0]["name"], "Name");
    let row = &table["rows"][1];
    assert_eq!(row["cells"][0], "c1");
    assert_eq!(row["object"]["kind"], "PartialObjectMetadata");
    assert_eq!(row["object"]["metadata"]["uid"], "u-c1");
    let none = shaped(&format!("{MAPS}/c0?includeObject=None"), TABLE).await;
    assert_eq!((&none["rows"][0]["object"], &none["metadata"]["resourceVersion"]), (&Value::Null, &json!("2")));
    let whole = shaped(&format!("{MAPS}/c0?includeObject=Object"), TABLE).await;
    assert_eq!(whole["rows"][0]["object"]["kind"], "ConfigMap");

    let metadata = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";
    let list = shaped(MAPS, metadata).await;
    assert_eq!((&list["kind"], names(&list).len()), (&json!("PartialObjectMetadataList"), 5));
    assert_eq!(list["items"][4]["apiVersion"], "meta.k8s.io/v1");
    assert!(list["items"][4].get("data").is_none());
    let empty = shaped("/api/v1/secrets", metadata).await;
    assert_eq!(empty["items"], json!([]));
    let refusal = ask(&api, &format!("{MAPS}/c0"), metadata).await.err().expect("refused");
    assert!(refusal.message.ends_with("is not a list (*core.ConfigMap)"), "{}", refusal.message);
    let bogus = ask(&api, &format!("{MAPS}?includeObject=Bogus"), TABLE).await.err().expect("refused");
    assert_eq!(bogus.code, 400);
}

#[tokio::test]
async fn a_large_table_is_whole_though_it_is_made_as_it_is_sent() {
    let api = api().await;
    for n in 0..400 {
        put(&api, "configmaps", config("x", &format!("c{n:03}"), json!({"n": "x".repeat(60)}))).await;
    }
    let answer = ask(&api, MAPS, TABLE).await.unwrap_or_else(|e| panic!("{e:?}"));
    assert!(matches!(answer.body(), Body::Stream(_)));
    let table: Value = serde_json::from_slice(&body(answer).await).expect("JSON");
    let rows: Vec<_> = table["rows"].as_array().expect("rows").iter().map(|r| r["cells"][0].clone()).collect();
    assert_eq!(rows, (0..400).map(|n| json!(format!("c{n:03}"))).collect::<Vec<_>>());
}

#[tokio::test]
async fn large_answers_are_compressed_for_those_who_take_it() {
    let api = api().await;
    for n in 0..50 {
        let mut object = config("x", &format!("c{n:03}"), json!({}));
        object["data"]["a"] = "lorem ipsum ".repeat(400).into();
        put(&api, "configmaps", object).await;
    }
    let plain = text(&api, MAPS).await;
    let mut req = request(&api, "GET", MAPS);
    req.headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("gzip"));
    let row = api.resources.find("", "configmaps").expect("a row");
    let answer = read::list(&api, &row, &mut req).await.expect("a list");
    assert_eq!(answer.headers()[CONTENT_ENCODING], "gzip");
    let packed = body(answer).await;
    let mut unpacked = String::new();
    std::io::Read::read_to_string(&mut flate2::read::GzDecoder::new(&packed[..]), &mut unpacked).expect("gzip");
    assert_eq!(unpacked, plain);
}

/// A watch that is being read.
struct Watcher {
    body: http_body_util::BodyStream<Body>,
    text: String,
}

impl Watcher {
    async fn open(api: &Arc<Api>, path: &str, accept: &str) -> Self {
        Self::of(ask(api, path, accept).await.unwrap_or_else(|e| panic!("{path}: {e:?}")))
    }

    fn of(answer: Answer) -> Self {
        Self { body: http_body_util::BodyStream::new(answer.into_body()), text: String::new() }
    }

    /// The next event; `None` at the end of the stream.
    async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some((line, rest)) = self.text.split_once('\n') {
                let event = serde_json::from_str(line).expect("an event");
                self.text = rest.to_string();
                return Some(event);
            }
            let frame = self.body.next().await?.expect("a frame");
            let data = frame.into_data().expect("data");
            self.text.push_str(std::str::from_utf8(&data).expect("text"));
        }
    }

    /// Type, name and revision of the next events.
    async fn take(&mut self, count: usize) -> Vec<(String, String, String)> {
        let mut seen = Vec::new();
        for _ in 0..count {
            let event = self.next().await.expect("an event");
            let text = |value: &Value| value.as_str().unwrap_or_default().to_string();
            let metadata = &event["object"]["metadata"];
            seen.push((text(&event["type"]), text(&metadata["name"]), text(&metadata["resourceVersion"])));
        }
        seen
    }
}

fn seen(kind: &str, name: &str, revision: impl ToString) -> (String, String, String) {
    (kind.into(), name.into(), revision.to_string())
}

async fn remove(api: &Api, key: &str) -> i64 {
    let revision = api.store.get(key).await.expect("memory").0.expect("there").mod_revision;
    let (_, revision) = api.store.delete(key, revision).await.expect("memory");
    revision
}

#[tokio::test]
async fn a_streaming_list_is_all_that_is_there_and_a_bookmark_that_says_so() {
    let api = five().await;
    let query = "watch=true&sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan";
    let mut watcher = Watcher::open(&api, &format!("{MAPS}?{query}"), "").await;
    let names = ["c0", "c1", "c2", "c3", "c4"];
    let want: Vec<_> = names.iter().zip(2..).map(|(name, revision)| seen("ADDED", name, revision)).collect();
    assert_eq!(watcher.take(5).await, want);
    let bookmark = watcher.next().await.expect("a bookmark");
    let want = json!({"type": "BOOKMARK", "object": {
        "kind": "ConfigMap", "apiVersion": "v1",
        "metadata": {"resourceVersion": "7", "annotations": {"k8s.io/initial-events-end": "true"}}
    }});
    assert_eq!(bookmark, want);
    let next = put(&api, "configmaps", config("x", "new", json!({}))).await;
    assert_eq!(watcher.take(1).await, [seen("ADDED", "new", next)]);

    let mut empty = Watcher::open(&api, &format!("/api/v1/secrets?{query}"), "").await;
    assert_eq!(empty.next().await.expect("a bookmark")["type"], "BOOKMARK");
    let without = "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&timeoutSeconds=1";
    let mut plain = Watcher::open(&api, &format!("{MAPS}?{without}"), "").await;
    assert_eq!(plain.take(6).await.len(), 6);
    assert_eq!(plain.next().await, None, "no bookmark for those who did not ask");
}

#[tokio::test]
async fn objects_that_leave_a_selector_are_deleted_for_that_watcher() {
    let api = api().await;
    let mut labels = Watcher::open(&api, &format!("{MAPS}?watch=true&labelSelector=in"), "").await;
    put(&api, "configmaps", config("x", "a", json!({}))).await;
    let entered = put(&api, "configmaps", config("x", "a", json!({"in": "1"}))).await;
    let changed = put(&api, "configmaps", config("x", "a", json!({"in": "2"}))).await;
    let left = put(&api, "configmaps", config("x", "a", json!({}))).await;
    put(&api, "configmaps", config("x", "a", json!({"out": "1"}))).await;
    let back = put(&api, "configmaps", config("x", "a", json!({"in": "1"}))).await;
    let gone = remove(&api, "/registry/configmaps/x/a").await;
    assert_eq!(labels.take(2).await, [seen("ADDED", "a", entered), seen("MODIFIED", "a", changed)]);
    let event = labels.next().await.expect("an event");
    assert_eq!(
        (&event["type"], &event["object"]["metadata"]["resourceVersion"]),
        (&json!("DELETED"), &json!(left.to_string()))
    );
    assert_eq!(event["object"]["metadata"]["labels"], json!({"in": "2"}), "with the old content");
    assert_eq!(labels.take(2).await, [seen("ADDED", "a", back), seen("DELETED", "a", gone)]);

    let mut node = Watcher::open(&api, "/api/v1/pods?watch=true&fieldSelector=spec.nodeName%3Dn1", "").await;
    put(&api, "pods", pod("p", "", "Pending")).await;
    let bound = put(&api, "pods", pod("p", "n1", "Pending")).await;
    put(&api, "pods", pod("other", "n2", "Pending")).await;
    let running = put(&api, "pods", pod("p", "n1", "Running")).await;
    assert_eq!(node.take(2).await, [seen("ADDED", "p", bound), seen("MODIFIED", "p", running)]);
}

#[tokio::test]
async fn a_watch_from_a_revision_gives_what_came_after_it() {
    let api = five().await;
    let mut all = Watcher::open(&api, &format!("{MAPS}?watch=true&resourceVersion=3"), "").await;
    let want: Vec<_> = ["c2", "c3", "c4"].iter().zip(4..).map(|(name, rv)| seen("ADDED", name, rv)).collect();
    assert_eq!(all.take(3).await, want);
    let one = format!("{MAPS}?watch=true&resourceVersion=3&fieldSelector=metadata.name%3Dc3");
    let mut one = Watcher::open(&api, &one, "").await;
    assert_eq!(one.take(1).await, [seen("ADDED", "c3", 5)]);
    let mut everywhere = Watcher::open(&api, "/api/v1/configmaps?watch=true&resourceVersion=6", "").await;
    assert_eq!(everywhere.take(1).await, [seen("ADDED", "z", 7)]);
}

#[tokio::test]
async fn what_cannot_be_watched_from_is_an_event_or_silence_or_an_error() {
    let api = five().await;
    let malformed = refused(&api, &format!("{MAPS}?watch=true&resourceVersion=1.5")).await;
    assert_eq!((malformed.code, malformed.reason), (500, ""));
    let far = "resourceVersion=4611686018427387904";
    let mut silent = Watcher::open(&api, &format!("{MAPS}?watch=true&timeoutSeconds=1&{far}"), "").await;
    put(&api, "configmaps", config("x", "new", json!({}))).await;
    assert_eq!(silent.next().await, None, "nothing until then");
    let initial = "sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan";
    let mut large = Watcher::open(&api, &format!("{MAPS}?watch=true&{far}&{initial}"), "").await;
    let event = large.next().await.expect("an event");
    assert_eq!((&event["type"], &event["object"]["code"]), (&json!("ERROR"), &json!(504)));
    assert_eq!(large.next().await, None);

    let big = "x".repeat(1 << 20);
    for _ in 0..12 {
        let mut object = config("y", "large", json!({}));
        object["data"]["a"] = big.clone().into();
        put(&api, "configmaps", object).await;
    }
    let mut expired = Watcher::open(&api, &format!("{MAPS}?watch=true&resourceVersion=2"), "").await;
    let event = expired.next().await.expect("an event");
    assert_eq!((&event["object"]["code"], &event["object"]["reason"]), (&json!(410), &json!("Expired")));
    assert!(event["object"]["message"].as_str().expect("text").starts_with("too old resource version: 2 ("));
    assert_eq!(expired.next().await, None);
}

#[tokio::test]
async fn bookmarks_come_regularly_and_before_the_end() {
    let api = five().await;
    let path = format!("{MAPS}?watch=true&resourceVersion=7&allowWatchBookmarks=true&timeoutSeconds=1");
    let millis = Duration::from_millis;
    let pace = watch::Pace { bookmarks: millis(350), last: millis(100), life: millis(1000) };
    let row = api.resources.find("", "configmaps").expect("a row");
    let start = tokio::time::Instant::now();
    let answer = watch::watch_at(&api, &row, &mut request(&api, "GET", &path), pace).await.expect("a watch");
    let mut watcher = Watcher::of(answer);
    let elsewhere = put(&api, "configmaps", config("y", "other", json!({}))).await;
    let mut at = Vec::new();
    while let Some(event) = watcher.next().await {
        assert_eq!(event["type"], "BOOKMARK");
        let revision = event["object"]["metadata"]["resourceVersion"].clone();
        assert_eq!(revision, json!(elsewhere.to_string()), "the current revision, which others move");
        assert!(event["object"]["metadata"].get("annotations").is_none());
        at.push(start.elapsed());
    }
    assert_eq!(at.len(), 3, "{at:?}");
    assert!(at[0] >= millis(350) && at[1] >= millis(700) && at[2] >= millis(900), "{at:?}");
    assert!(start.elapsed() >= millis(1000));
}

#[tokio::test]
async fn a_watch_has_the_shape_that_was_asked_for() {
    let api = five().await;
    let mut table = Watcher::open(&api, &format!("{MAPS}?watch=true&resourceVersion=5"), TABLE).await;
    let first = table.next().await.expect("an event");
    assert_eq!(first["object"]["columnDefinitions"][0]["name"], "Name");
    assert_eq!(first["object"]["rows"][0]["cells"][0], "c4");
    put(&api, "configmaps", config("x", "c5", json!({}))).await;
    let second = table.next().await.expect("an event");
    assert_eq!((&second["object"]["columnDefinitions"], &second["object"]["kind"]), (&Value::Null, &json!("Table")));
    let gone = remove(&api, "/registry/configmaps/x/c5").await;
    let third = table.next().await.expect("an event");
    assert_eq!(third["object"]["rows"][0]["object"]["metadata"]["resourceVersion"], gone.to_string());

    let metadata = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io";
    let mut partial = Watcher::open(&api, &format!("{MAPS}?watch=true&resourceVersion=5"), metadata).await;
    let event = partial.next().await.expect("an event");
    assert_eq!(event["object"]["kind"], "PartialObjectMetadata");
    assert!(event["object"].get("data").is_none());
}

#[tokio::test]
async fn a_client_that_does_not_read_is_cut_off_without_a_gap() {
    let api = api().await;
    let first = put(&api, "configmaps", config("x", "a", json!({}))).await;
    let mut watcher = Watcher::open(&api, &format!("{MAPS}?watch=true&resourceVersion={first}"), "").await;
    // Attached, but not read.
    let mut last = first;
    for _ in 0..6000 {
        last = put(&api, "configmaps", config("x", "a", json!({}))).await;
    }
    let mut expected = first;
    while let Some(event) = watcher.next().await {
        expected += 1;
        let got = event["object"]["metadata"]["resourceVersion"].as_str().expect("a revision").to_string();
        assert_eq!(got, expected.to_string(), "no gap inside the stream");
    }
    assert!(expected < last, "it was ended");
}

#[tokio::test]
async fn timeout_seconds_end_a_watch() {
    let api = five().await;
    let start = tokio::time::Instant::now();
    let mut watcher = Watcher::open(&api, &format!("{MAPS}?watch=true&timeoutSeconds=1&resourceVersion=7"), "").await;
    assert_eq!(watcher.next().await, None);
    assert!(start.elapsed() >= Duration::from_secs(1));
}

#[tokio::test]
async fn a_list_through_another_group_is_converted() {
    let api = api().await;
    let event = json!({
        "kind": "Event", "apiVersion": "v1", "metadata": {"name": "e", "namespace": "x"},
        "involvedObject": {"kind": "Pod", "name": "p"}, "reason": "r", "type": "Normal"
    });
    put(&api, "events", event).await;
    let core = json_of(&api, "/api/v1/namespaces/x/events/e").await;
    assert_eq!(core["apiVersion"], "v1");
    let list = json_of(&api, "/apis/events.k8s.io/v1/namespaces/x/events").await;
    assert_eq!((&list["apiVersion"], names(&list)), (&json!("events.k8s.io/v1"), vec!["e"]));
    let one = json_of(&api, "/apis/events.k8s.io/v1/namespaces/x/events/e").await;
    assert_eq!(one["apiVersion"], "events.k8s.io/v1");
}

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// The object in an envelope.
fn opened(bytes: &[u8]) -> Value {
    let facts = api::schema::builtin();
    let unknown = api::codec::proto::open(bytes).expect("an envelope");
    let (group, version) = unknown.api_version.rsplit_once('/').unwrap_or(("", &unknown.api_version));
    let ty = facts.kind(group, version, &unknown.kind).unwrap_or_else(|| panic!("{}", unknown.kind));
    let mut object = api::codec::proto::decode(facts, ty, unknown.raw).expect("a message");
    object["kind"] = unknown.kind.as_str().into();
    object
}

#[tokio::test]
async fn protobuf_holds_what_json_does() {
    let api = five().await;
    let protobuf = async |path: &str| {
        let answer = ask(&api, path, PROTOBUF).await.unwrap_or_else(|e| panic!("{path}: {e:?}"));
        assert_eq!(answer.headers()[CONTENT_TYPE], PROTOBUF);
        opened(&body(answer).await)
    };
    let one = protobuf(&format!("{MAPS}/c1")).await;
    assert_eq!((&one["kind"], &one["data"]), (&json!("ConfigMap"), &json!({"a": "1"})));
    assert_eq!((&one["metadata"]["uid"], &one["metadata"]["resourceVersion"]), (&json!("u-c1"), &json!("3")));
    let list = protobuf(&format!("{MAPS}?limit=3")).await;
    assert_eq!((&list["kind"], names(&list)), (&json!("ConfigMapList"), vec!["c0", "c1", "c2"]));
    assert_eq!(
        (&list["metadata"]["resourceVersion"], &list["metadata"]["remainingItemCount"]),
        (&json!("7"), &json!(2))
    );
    assert!(list["metadata"]["continue"].is_string());
}

#[tokio::test]
async fn a_protobuf_watch_is_frames_with_their_length() {
    let api = five().await;
    let path = format!("{MAPS}?watch=true&resourceVersion=5&timeoutSeconds=1");
    let answer = ask(&api, &path, PROTOBUF).await.unwrap_or_else(|e| panic!("{e:?}"));
    assert_eq!(answer.headers()[CONTENT_TYPE], format!("{PROTOBUF};stream=watch"));
    let bytes = body(answer).await;
    let length = u32::from_be_bytes(bytes[..4].try_into().expect("four bytes")) as usize;
    assert_eq!(bytes.len(), 4 + length, "one frame");
    assert_eq!(&bytes[4..11], b"\x0a\x05ADDED");
    let start = bytes.windows(4).position(|four| four == api::codec::proto::MAGIC).expect("an envelope");
    assert_eq!(opened(&bytes[start..])["metadata"]["name"], "c4");
}

#[tokio::test]
async fn yaml_is_the_same_object() {
    let api = five().await;
    let answer = ask(&api, &format!("{MAPS}/c0"), "application/yaml").await.unwrap_or_else(|e| panic!("{e:?}"));
    assert_eq!(answer.headers()[CONTENT_TYPE], "application/yaml");
    let yaml = body(answer).await;
    let text = std::str::from_utf8(&yaml).expect("text");
    assert!(text.starts_with("apiVersion: v1\ndata:\n  a: \"1\"\nkind: ConfigMap\nmetadata:\n"), "{text}");
    let failed = ask(&api, &format!("{MAPS}/none"), "application/yaml").await.err().expect("refused");
    let mut headers = http::HeaderMap::new();
    headers.insert(ACCEPT, HeaderValue::from_static("application/yaml"));
    let answer = super::output::failure(&headers, &failed);
    assert_eq!(
        (answer.status().as_u16(), &answer.headers()[CONTENT_TYPE]),
        (404, &HeaderValue::from_static("application/yaml"))
    );
    assert!(body(answer).await.starts_with(b"apiVersion: v1\ncode: 404\n"));
}

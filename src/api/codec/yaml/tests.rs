use serde_json::json;

use super::*;

fn read(text: &str) -> Value {
    let (value, noted) = parse(text.as_bytes()).expect(text);
    assert!(noted.problems.is_empty(), "{noted:?}");
    value
}

fn error(text: &str) -> String {
    parse(text.as_bytes()).expect_err(text).message
}

fn written(value: Value) -> String {
    let text = String::from_utf8(encode(&value)).unwrap();
    assert_eq!(read(&text), value, "{text}");
    text
}

#[test]
fn scalars_mean_what_yaml_1_1_says() {
    assert_eq!(
        read(
            "{a: yes, b: no, c: on, d: y, e: ~, f: , g: 0x10, h: 010, i: 1_000, j: 1e3, k: '5', l: !!str 1, m: 0b11, n: -5}"
        ),
        json!({"a": true, "b": false, "c": true, "d": true, "e": null, "f": null, "g": 16, "h": 8, "i": 1000,
            "j": 1000, "k": "5", "l": "1", "m": 3, "false": -5})
    );
    assert_eq!(
        read("a: 2008-01-01T01:01:01Z\nb: 1:30\nc: 08"),
        json!({"a": "2008-01-01T01:01:01Z", "b": "1:30", "c": 8})
    );
    assert_eq!(read("1: a\n1.5: b\ntrue: c"), json!({"1": "a", "1.5": "b", "true": "c"}));
    assert_eq!(read("!!binary YQ=="), json!("a"));
    assert_eq!(read(""), Value::Null);
    assert_eq!(read("just text"), json!("just text"));
}

#[test]
fn aliases_and_merges_are_followed() {
    let (value, noted) = parse(b"a: &x {b: 1, c: 2}\nd: *x\ne:\n  b: 0\n  <<: *x\n  c: 3").unwrap();
    assert_eq!(value, json!({"a": {"b": 1, "c": 2}, "d": {"b": 1, "c": 2}, "e": {"b": 1, "c": 3}}));
    assert_eq!(noted.problems.len(), 1, "what a merge brings twice is noted too");
    assert_eq!(error("a: *x"), "yaml: unknown anchor 'x' referenced");
    assert_eq!(error("a: &x [*x]"), "yaml: anchor 'x' value contains itself");
    assert_eq!(error("<<: 1"), "yaml: map merge requires map or sequence of maps as the value");
}

#[test]
fn bombs_are_refused_soon() {
    let mut bomb = String::from("a0: &a0 [x,x,x,x,x,x,x,x,x]\n");
    for i in 1..12 {
        let below = vec![format!("*a{}", i - 1); 9].join(",");
        bomb.push_str(&format!("a{i}: &a{i} [{below}]\n"));
    }
    assert_eq!(error(&bomb), "yaml: document contains excessive aliasing");
    assert!(error(&"[".repeat(100_000)).contains("exceeded max depth"));
    let mut nested = String::new();
    for i in 0..2000 {
        nested.push_str(&format!("{}a:\n", " ".repeat(i)));
    }
    assert!(error(&nested).contains("exceeded max depth"));
}

#[test]
fn repeated_keys_are_noted_with_the_line_of_their_value() {
    let text = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: y6\ndata:\n  k: \"v\"\n  multi: |\n    one\n    two\ndata:\n  dup: \"1\"\n  dup: \"2\"\n";
    let (value, noted) = parse(text.as_bytes()).unwrap();
    assert_eq!(value["data"], json!({"dup": "2"}));
    assert_eq!(
        noted.problems,
        [
            "yaml: unmarshal errors:\n  line 12: key \"dup\" already set in map\n  line 11: key \"data\" already set in map"
        ]
    );
    let warnings: Vec<&str> = noted.warnings().collect();
    assert_eq!(warnings, ["line 12: key \"dup\" already set in map", "line 11: key \"data\" already set in map"]);
}

#[test]
fn what_is_not_yaml_is_refused_in_libyamls_words() {
    assert_eq!(error("a: ["), "yaml: line 1: did not find expected node content");
    assert_eq!(error("\tx"), "yaml: found character that cannot start any token");
    assert_eq!(error("a: [1"), "yaml: line 1: did not find expected ',' or ']'");
    assert_eq!(error("a: b: c"), "yaml: mapping values are not allowed in this context");
    assert_eq!(error("a: 1\nb: \"x"), "yaml: line 2: found unexpected end of stream");
    assert_eq!(error("a\u{1}"), "yaml: control characters are not allowed");
    assert_eq!(error("!!int x"), "yaml: cannot decode !!str `x` as a !!int");
}

#[test]
fn only_the_first_document_is_read() {
    assert_eq!(read("a: 1\n---\nb: 2\n"), json!({"a": 1}));
}

#[test]
fn texts_are_quoted_where_they_would_mean_something_else() {
    assert_eq!(
        written(json!({"a": "yes", "b": "5", "c": "", "d": "- x", "e": "a: b", "f": "it's", "g": "#x", "h": "a #b",
            "i": "tab\there", "j": "é", "k": "😀", "l": "1:30", "m": "null", "n": " a", "o": "@x", "p": "a\"b", "q": "2020-01-01",
            "r": "<<", "s": "{}", "t": "x:y", "u": "-x", "v": "\u{a0}"})),
        "a: \"yes\"\nb: \"5\"\nc: \"\"\nd: '- x'\ne: 'a: b'\nf: it's\ng: '#x'\nh: 'a #b'\ni: \"tab\\there\"\nj: é\n\
         k: \"\\U0001F600\"\nl: \"1:30\"\nm: \"null\"\n\"n\": ' a'\no: '@x'\np: a\"b\nq: \"2020-01-01\"\nr: \"<<\"\ns: '{}'\nt: x:y\nu: -x\nv: \u{a0}\n"
    );
}

#[test]
fn layout_is_libyamls() {
    assert_eq!(
        written(
            json!({"a": [], "b": {}, "c": [1, {"x": [true], "y": null}, [2, [3]]], "d": "one\ntwo\n", "e": "one\n\n two",
            "f": "x\n\n", "a10": 1, "a2": 1.5})
        ),
        "a: []\na2: 1.5\na10: 1\nb: {}\nc:\n- 1\n- x:\n  - true\n  \"y\": null\n- - 2\n  - - 3\nd: |\n  one\n  two\ne: |-\n  one\n\n   two\nf: |+\n  x\n\n"
    );
    assert_eq!(written(json!([])), "[]\n");
    assert_eq!(written(json!("a")), "a\n");
}

#[test]
fn long_texts_are_folded() {
    let words = "word ".repeat(30);
    let text = written(json!({"a": words.trim(), "b": format!("x: {}", words.trim())}));
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].len() > 80 && lines[0].len() < 90 && lines[1].starts_with("  word"), "{text}");
    assert!(text.contains("\nb: 'x: word"), "{text}");
}

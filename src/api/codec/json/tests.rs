use super::*;
use crate::schema::builtin;

fn ty(kind: &str) -> &'static Type {
    let (group, version, kind) = match kind.split('/').collect::<Vec<_>>()[..] {
        [kind] => ("", "v1", kind),
        [group, kind] => (group, "v1", kind),
        _ => panic!("{kind}"),
    };
    builtin().kind(group, version, kind).expect(kind)
}

fn decoded(kind: &str, text: &str) -> (String, Vec<String>) {
    let (value, noted) = decode(builtin(), ty(kind), text.as_bytes()).expect(text);
    let mut out = Vec::new();
    encode(builtin(), ty(kind), &value, &mut out);
    let mut again = value.clone();
    normalize(builtin(), ty(kind), &mut again, &mut Strictness::default()).expect(text);
    assert_eq!(again, value, "a decoded object is normalized");
    (String::from_utf8(out).unwrap(), noted.problems)
}

fn error(kind: &str, text: &str) -> String {
    decode(builtin(), ty(kind), text.as_bytes()).expect_err(text).message
}

#[test]
fn fields_come_in_upstreams_order_with_go_s_zero_values() {
    let text = r#"{"spec":{"containers":[{"name":"c","image":"","command":[]}],"hostNetwork":false,"tolerations":null},
        "metadata":{"name":"x","labels":{}},"apiVersion":"v1","kind":"Pod"}"#;
    let expect = r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"x"},"spec":{"containers":[{"name":"c","resources":{}}]},"status":{}}"#;
    assert_eq!(decoded("Pod", text), (expect.into(), vec![]));
    assert_eq!(decoded("Pod", r#"{"spec":{}}"#).0, r#"{"metadata":{},"spec":{"containers":null},"status":{}}"#);
    assert_eq!(
        decoded("Service", r#"{"spec":{"ports":[{"port":0,"targetPort":null}],"selector":{"a":null}}}"#).0,
        r#"{"metadata":{},"spec":{"ports":[{"port":0,"targetPort":0}],"selector":{"a":""}},"status":{"loadBalancer":{}}}"#
    );
    assert_eq!(decoded("apps/ControllerRevision", "{}").0, r#"{"metadata":{},"data":null,"revision":0}"#);
    assert_eq!(
        decoded("Event", "null").0,
        r#"{"metadata":{},"involvedObject":{},"source":{},"firstTimestamp":null,"lastTimestamp":null,"eventTime":null,"reportingComponent":"","reportingInstance":""}"#
    );
    assert_eq!(
        decoded("apps/Deployment", r#"{"spec":{"replicas":0}}"#).0,
        r#"{"metadata":{},"spec":{"replicas":0,"selector":null,"template":{"metadata":{},"spec":{"containers":null}},"strategy":{}},"status":{}}"#
    );
}

#[test]
fn unknown_and_duplicate_fields_are_noted_in_the_text_s_order() {
    let text = r#"{"z":1,"metadata":{"name":"x","nope":{"a":1},"labels":{"a":"1","a":"2"}},"data":{"k":"1","k":"2"},"a":0,"data":{"c":"3"}}"#;
    let (out, noted) = decoded("ConfigMap", text);
    assert_eq!(
        noted,
        [
            "unknown field \"z\"",
            "unknown field \"metadata.nope\"",
            "duplicate field \"metadata.labels.a\"",
            "duplicate field \"data.k\"",
            "unknown field \"a\"",
            "duplicate field \"data\""
        ]
    );
    assert_eq!(out, r#"{"metadata":{"name":"x","labels":{"a":"2"}},"data":{"c":"3","k":"2"}}"#);
    let pod = r#"{"spec":{"containers":[{"env":[{"valu":1}]},{"resourcess":1}]}}"#;
    assert_eq!(
        decoded("Pod", pod).1,
        ["unknown field \"spec.containers[0].env[0].valu\"", "unknown field \"spec.containers[1].resourcess\""]
    );
    assert_eq!(decoded("ConfigMap", r#"{"METADATA":{}}"#).1, ["unknown field \"METADATA\""]);
}

#[test]
fn wrong_types_are_refused_in_gos_words() {
    for (kind, text, words) in [
        ("ConfigMap", r#"{"metadata":"x"}"#, "string into Go struct field ConfigMap.metadata of type v1.ObjectMeta"),
        ("ConfigMap", r#"{"data":{"a":1}}"#, "number into Go struct field ConfigMap.data of type string"),
        ("ConfigMap", r#"{"data":[]}"#, "array into Go struct field ConfigMap.data of type map[string]string"),
        (
            "Pod",
            r#"{"spec":{"containers":{}}}"#,
            "object into Go struct field PodSpec.spec.containers of type []v1.Container",
        ),
        (
            "Pod",
            r#"{"spec":{"containers":[{"ports":[{"containerPort":"80"}]}]}}"#,
            "string into Go struct field ContainerPort.spec.containers.ports.containerPort of type int32",
        ),
        (
            "Pod",
            r#"{"spec":{"terminationGracePeriodSeconds":1.5}}"#,
            "number 1.5 into Go struct field PodSpec.spec.terminationGracePeriodSeconds of type int64",
        ),
        (
            "apps/Deployment",
            r#"{"spec":{"replicas":1.0}}"#,
            "number 1.0 into Go struct field DeploymentSpec.spec.replicas of type int32",
        ),
        (
            "Pod",
            r#"{"spec":{"restartPolicy":5}}"#,
            "number into Go struct field PodSpec.spec.restartPolicy of type v1.RestartPolicy",
        ),
        (
            "Service",
            r#"{"spec":{"ports":[{"targetPort":1.5}]}}"#,
            "number 1.5 into Go struct field ServicePort.spec.ports.targetPort of type int32",
        ),
        ("Pod", "[]", "array into Go value of type v1.Pod"),
        (
            "Pod",
            r#"{"metadata":{"creationTimestamp":5}}"#,
            "number into Go struct field ObjectMeta.metadata.creationTimestamp of type string",
        ),
    ] {
        assert_eq!(error(kind, text), format!("json: cannot unmarshal {words}"), "{text}");
    }
    assert_eq!(error("ConfigMap", r#"{"binaryData":{"a":"***"}}"#), "illegal base64 data at input byte 0");
    assert!(
        error("Pod", r#"{"spec":{"containers":[{"resources":{"limits":{"cpu":"abc"}}}]}}"#)
            .starts_with("quantities must")
    );
}

#[test]
fn the_first_wrong_type_is_reported_unless_something_worse_follows() {
    assert!(error("ConfigMap", r#"{"data":1,"metadata":2}"#).contains("ConfigMap.data"));
    assert_eq!(error("ConfigMap", r#"{"data":1}x"#), "invalid character 'x' after top-level value");
    let refused = r#"{"data":1,"metadata":{"creationTimestamp":"yesterday"}}"#;
    assert!(error("ConfigMap", refused).starts_with("parsing time \"yesterday\""));
    assert_eq!(error("ConfigMap", &format!("{refused},")), "invalid character ',' after top-level value");
}

#[test]
fn leaves_become_canonical() {
    let text = r#"{"metadata":{"creationTimestamp":"2020-01-01T02:00:00+02:00"},
        "spec":{"containers":[{"name":"c","resources":{"limits":{"cpu":0.5,"memory":"1024Mi"}}}]}}"#;
    let out = decoded("Pod", text).0;
    assert!(out.contains(r#""creationTimestamp":"2020-01-01T00:00:00Z""#), "{out}");
    assert!(out.contains(r#""limits":{"cpu":"500m","memory":"1Gi"}"#), "{out}");
    assert_eq!(
        decoded("Secret", r#"{"data":{"a":"YR==","b":[97,98],"c":null}}"#).0,
        r#"{"metadata":{},"data":{"a":"YQ==","b":"YWI=","c":null}}"#
    );
}

#[test]
fn schemas_of_definitions_keep_booleans_lists_and_free_values() {
    let text = r#"{"spec":{"versions":[{"name":"v1","schema":{"openAPIV3Schema":{"type":"object","additionalProperties":false,
        "properties":{"a":{"items":{"type":"string","bogus":1},"default":{"z":1,"a":[]},"enum":[1,"a",null]}}}}}]}}"#;
    let (out, noted) = decoded("apiextensions.k8s.io/CustomResourceDefinition", text);
    assert!(out.contains(r#""openAPIV3Schema":{"type":"object","properties":{"a":{"default":{"a":[],"z":1},"enum":[1,"a",null],"items":{"type":"string"}}},"additionalProperties":false}"#), "{out}");
    assert!(noted.is_empty(), "upstream notes nothing within a schema's alternative: {noted:?}");
}

#[test]
fn strings_are_escaped_as_go_escapes_them() {
    let mut out = Vec::new();
    encode_any(&"<a&b>\u{2028}\u{2029}\"\\\n\r\t\u{8}\u{c}\u{1}\u{7f}é".into(), &mut out);
    assert_eq!(
        String::from_utf8(out).unwrap(),
        "\"\\u003ca\\u0026b\\u003e\\u2028\\u2029\\\"\\\\\\n\\r\\t\\b\\f\\u0001\u{7f}é\""
    );
}

#[test]
fn numbers_are_written_as_go_writes_them() {
    let through = |text: &str| {
        let (value, _) = parse(text.as_bytes()).unwrap();
        let mut out = Vec::new();
        encode_any(&value, &mut out);
        String::from_utf8(out).unwrap()
    };
    for (text, expect) in [
        ("1.0", "1"),
        ("1e3", "1000"),
        ("0.5", "0.5"),
        ("1e21", "1e+21"),
        ("1e-7", "1e-7"),
        ("123456789012345678", "123456789012345678"),
        ("99999999999999999999", "100000000000000000000"),
        ("-0.0", "-0"),
        ("9223372036854775807", "9223372036854775807"),
    ] {
        assert_eq!(through(text), expect, "{text}");
    }
}

#[test]
fn trees_are_refused_in_the_words_of_upstreams_converter() {
    let error = |kind, text: &str| {
        let (mut value, _) = parse(text.as_bytes()).unwrap();
        normalize(builtin(), ty(kind), &mut value, &mut Strictness::default()).expect_err(text).message
    };
    assert_eq!(error("apps/Deployment", r#"{"spec":{"replicas":"x"}}"#), "unrecognized type: int32");
    assert_eq!(error("apps/Deployment", r#"{"spec":{"replicas":1.5}}"#), "cannot convert float64 to int32");
    assert_eq!(error("Pod", r#"{"spec":{"containers":{}}}"#), "cannot restore slice from map");
    assert_eq!(error("Pod", r#"{"spec":[]}"#), "cannot restore struct from: slice");
    assert_eq!(error("ConfigMap", r#"{"data":[]}"#), "cannot restore map from slice");
    assert_eq!(error("ConfigMap", r#"{"data":{"a":1}}"#), "cannot convert int64 to string");
}

#[test]
fn version_and_kind_are_found_or_refused() {
    let meta = type_meta(br#"{"APIVERSION":"v1","kind":"Pod","x":[{}]}"#).unwrap();
    assert_eq!((meta.api_version.as_str(), meta.kind.as_str()), ("v1", "Pod"));
    let error = |text: &str| type_meta(text.as_bytes()).unwrap_err().message;
    assert_eq!(error(""), "couldn't get version/kind; json parse error: unexpected end of JSON input");
    assert_eq!(
        error("[]"),
        "couldn't get version/kind; json parse error: json: cannot unmarshal array into Go value of type struct { APIVersion string \"json:\\\"apiVersion,omitempty\\\"\"; Kind string \"json:\\\"kind,omitempty\\\"\" }"
    );
    assert!(
        error(r#"{"kind":5}"#).ends_with("json: cannot unmarshal number into Go struct field .kind of type string")
    );
    assert_eq!(type_meta(b"null").unwrap(), TypeMeta::default());
}

//! Object metadata: names, labels, annotations, owner references, finalizers, generated names.

use std::sync::LazyLock;

use regex::Regex;

const LABEL_KEY: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";
const LABEL_VALUE: &str = "(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?";
const SUBDOMAIN: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*";

fn whole(pattern: &str) -> Regex {
    Regex::new(&format!("^(?:{pattern})$")).expect("a constant pattern")
}

/// Upstream's text for a string that does not match a pattern.
pub fn regex_text(rule: &str, pattern: &str, examples: &[&str]) -> String {
    if examples.is_empty() {
        return format!("{rule} (regex used for validation is '{pattern}')");
    }
    let examples: Vec<String> = examples.iter().map(|e| format!("'{e}', ")).collect();
    format!("{rule} (e.g. {}regex used for validation is '{pattern}')", examples.join(" or "))
}

/// Upstream's text for a string of more than `max` bytes.
pub fn too_long_text(max: usize) -> String {
    format!("must be no more than {max} bytes")
}

/// Checks a DNS-1123 subdomain (at most 253 characters); `prefix` says that the name is a `generateName`, whose
/// trailing dash is allowed. Returns upstream's texts.
pub fn dns_subdomain(name: &str, prefix: bool) -> Vec<String> {
    static PATTERN: LazyLock<Regex> = LazyLock::new(|| whole(SUBDOMAIN));
    let name = mask_prefix(name, prefix);
    let mut out = Vec::new();
    if name.len() > 253 {
        out.push(too_long_text(253));
    }
    if !PATTERN.is_match(&name) {
        let rule = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and \
                    must start and end with an alphanumeric character";
        out.push(regex_text(rule, SUBDOMAIN, &["example.com"]));
    }
    out
}

/// A generated name gets more characters, so a dash at the end of its prefix is not the end of the name.
fn mask_prefix(name: &str, prefix: bool) -> std::borrow::Cow<'_, str> {
    match name.strip_suffix('-') {
        Some(stem) if prefix && !stem.is_empty() => format!("{stem}a").into(),
        _ => name.into(),
    }
}

/// Checks a label or annotation key: an optional DNS subdomain and a slash, then a name. Returns upstream's texts.
pub fn label_key(key: &str) -> Vec<String> {
    static PATTERN: LazyLock<Regex> = LazyLock::new(|| whole(LABEL_KEY));
    let rule = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric \
                character";
    let examples = ["MyName", "my.name", "123-abc"];
    let mut out = Vec::new();
    let parts: Vec<&str> = key.split('/').collect();
    let name = match parts.as_slice() {
        [name] => name,
        ["", name] => {
            out.push("prefix part must be non-empty".into());
            name
        }
        [prefix, name] => {
            out.extend(dns_subdomain(prefix, false).into_iter().map(|text| format!("prefix part {text}")));
            name
        }
        _ => {
            let text = regex_text(rule, LABEL_KEY, &examples);
            let tail = "with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')";
            return vec![format!("a valid label key {text} {tail}")];
        }
    };
    if name.is_empty() {
        out.push("name part must be non-empty".into());
    } else if name.len() > 63 {
        out.push(format!("name part {}", too_long_text(63)));
    }
    if !PATTERN.is_match(name) {
        out.push(format!("name part {}", regex_text(rule, LABEL_KEY, &examples)));
    }
    out
}

/// Checks a label's value. Returns upstream's texts.
pub fn label_value(value: &str) -> Vec<String> {
    static PATTERN: LazyLock<Regex> = LazyLock::new(|| whole(LABEL_VALUE));
    let mut out = Vec::new();
    if value.len() > 63 {
        out.push(too_long_text(63));
    }
    if !PATTERN.is_match(value) {
        let rule = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and \
                    must start and end with an alphanumeric character";
        out.push(regex_text(rule, LABEL_VALUE, &["MyValue", "my_value", "12345"]));
    }
    out
}

/// True when two objects differ in any field but those named.
pub fn differs_outside(new: &crate::Value, old: &crate::Value, but: &[&str]) -> bool {
    let (Some(new), Some(old)) = (new.as_object(), old.as_object()) else { return new != old };
    let differs =
        |a: &crate::Map, b: &crate::Map| a.iter().any(|(k, v)| !but.contains(&k.as_str()) && b.get(k) != Some(v));
    differs(new, old) || differs(old, new)
}

/// All that is wrong with the metadata of an object, in upstream's order and words (`ValidateObjectMeta`); `name` is
/// the strategy's check of a name or, with true, of a `generateName`.
pub fn validate(
    _object: &crate::Value, _namespaced: bool, _name: &dyn Fn(&str, bool) -> Vec<String>,
) -> crate::field::Errors {
    todo!()
}

/// All that an update may not change in the metadata of an object (`ValidateObjectMetaUpdate`).
pub fn validate_update(_new: &crate::Value, _old: &crate::Value) -> crate::field::Errors {
    todo!()
}

//! Rules for names and other short texts. Every function returns upstream's texts of what is wrong, and nothing when
//! all is well (apimachinery `util/validation` and `api/validate/content`).

const LABEL: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";
const SUBDOMAIN: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*";
const LABEL_KEY: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";
const LABEL_VALUE: &str = "(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?";

/// Texts of what is wrong.
pub type Wrong = Vec<String>;

/// Upstream's text for a string that does not match a pattern.
pub fn regex_text(rule: &str, pattern: &str, examples: &[&str]) -> String {
    if examples.is_empty() {
        return format!("{rule} (regex used for validation is '{pattern}')");
    }
    let examples: Vec<String> = examples.iter().map(|e| format!("'{e}', ")).collect();
    format!("{rule} (e.g. {}regex used for validation is '{pattern}')", examples.join(" or "))
}

/// Upstream's text for a name of more than `max` bytes.
pub fn too_long_text(max: usize) -> String {
    format!("must be no more than {max} characters")
}

/// Upstream's text for a part of a label of more than `max` bytes.
fn too_many_bytes(max: usize) -> String {
    format!("must be no more than {max} bytes")
}

/// Upstream's text for a number out of its range.
pub fn range_text(low: i64, high: i64) -> String {
    format!("must be between {low} and {high}, inclusive")
}

fn one(ok: bool, text: impl FnOnce() -> String) -> Wrong {
    if ok { Vec::new() } else { vec![text()] }
}

/// Every byte is in `inside`, the first and the last in `edge`, and there is at least one.
fn shaped(s: &str, edge: fn(u8) -> bool, inside: fn(u8) -> bool) -> bool {
    match s.as_bytes() {
        [] => false,
        [only] => edge(*only),
        [first, middle @ .., last] => edge(*first) && edge(*last) && middle.iter().all(|&b| inside(b)),
    }
}

fn lower(b: u8) -> bool {
    b.is_ascii_lowercase() || b.is_ascii_digit()
}

fn lower_dash(b: u8) -> bool {
    lower(b) || b == b'-'
}

fn alphanumeric(b: u8) -> bool {
    b.is_ascii_alphanumeric()
}

fn word(b: u8) -> bool {
    alphanumeric(b) || b"-_.".contains(&b)
}

fn is_label(s: &str) -> bool {
    shaped(s, lower, lower_dash)
}

fn is_subdomain(s: &str) -> bool {
    s.split('.').all(is_label)
}

/// A generated name gets more characters, so a dash at the end of its prefix is not the end of the name. Upstream puts
/// an `a` in the place of the last two characters.
fn mask(name: &str, prefix: bool) -> std::borrow::Cow<'_, str> {
    if !prefix || name.len() < 2 || !name.ends_with('-') {
        return name.into();
    }
    let mut stem = name.to_string();
    stem.pop();
    stem.pop();
    stem.push('a');
    stem.into()
}

/// An object's name that is a DNS-1123 subdomain (at most 253 characters); `prefix` says that it is a `generateName`.
pub fn dns_subdomain(name: &str, prefix: bool) -> Wrong {
    subdomain(&mask(name, prefix))
}

/// An object's name that is a DNS-1123 label (at most 63 characters).
pub fn dns_label(name: &str, prefix: bool) -> Wrong {
    label(&mask(name, prefix))
}

/// An object's name that may be anything that can stand in a path.
pub fn path_segment(name: &str, prefix: bool) -> Wrong {
    if !prefix && (name == "." || name == "..") {
        return vec![format!("may not be '{name}'")];
    }
    ["/", "%"].iter().filter(|c| name.contains(**c)).map(|c| format!("may not contain '{c}'")).collect()
}

/// A DNS-1123 subdomain.
pub fn subdomain(value: &str) -> Wrong {
    subdomain_with(value, too_long_text)
}

fn subdomain_with(value: &str, too_long: fn(usize) -> String) -> Wrong {
    let mut out = one(value.len() <= 253, || too_long(253));
    if !is_subdomain(value) {
        let rule = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and \
                    must start and end with an alphanumeric character";
        out.push(regex_text(rule, SUBDOMAIN, &["example.com"]));
    }
    out
}

/// A DNS-1123 subdomain in which underscores are allowed, as in DNS search paths.
pub fn subdomain_underscore(value: &str) -> Wrong {
    const PART: &str = "_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?";
    let part = |s: &str| shaped(s.strip_prefix('_').unwrap_or(s), lower, |b| lower_dash(b) || b == b'_');
    let mut out = one(value.len() <= 253, || too_long_text(253));
    if !value.split('.').all(part) {
        let rule = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '_', '-' or \
                    '.', and must start and end with an alphanumeric character";
        out.push(regex_text(rule, &format!("{PART}(\\.{PART})*"), &["example.com"]));
    }
    out
}

/// `*.` and a DNS-1123 subdomain.
pub fn wildcard_subdomain(value: &str) -> Wrong {
    let mut out = one(value.len() <= 253, || too_long_text(253));
    if !value.strip_prefix("*.").is_some_and(is_subdomain) {
        let rule = "a wildcard DNS-1123 subdomain must start with '*.', followed by a valid DNS subdomain, which must \
                    consist of lower case alphanumeric characters, '-' or '.' and end with an alphanumeric character";
        out.push(regex_text(rule, &format!("\\*\\.{SUBDOMAIN}"), &["*.example.com"]));
    }
    out
}

/// A DNS-1123 label.
pub fn label(value: &str) -> Wrong {
    let mut out = one(value.len() <= 63, || too_long_text(63));
    if is_label(value) {
        return out;
    }
    if is_subdomain(value) {
        out.push("must not contain dots".into());
    } else {
        let rule = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must \
                    start and end with an alphanumeric character";
        out.push(regex_text(rule, LABEL, &["my-name", "123-abc"]));
    }
    out
}

/// A DNS-1035 label.
pub fn label_1035(value: &str) -> Wrong {
    let mut out = one(value.len() <= 63, || too_long_text(63));
    if !is_label(value) || !value.as_bytes()[0].is_ascii_lowercase() {
        let rule = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an \
                    alphabetic character, and end with an alphanumeric character";
        out.push(regex_text(rule, "[a-z]([-a-z0-9]*[a-z0-9])?", &["my-name", "abc-123"]));
    }
    out
}

/// A label or annotation key: an optional DNS subdomain and a slash, then a name.
pub fn label_key(key: &str) -> Wrong {
    let rule = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric \
                character";
    let pattern = || regex_text(rule, LABEL_KEY, &["MyName", "my.name", "123-abc"]);
    let mut out = Vec::new();
    let name = match key.split_once('/') {
        None => key,
        Some((_, name)) if name.contains('/') => {
            let tail = "with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')";
            return vec![format!("a valid label key {} {tail}", pattern())];
        }
        Some(("", name)) => {
            out.push("prefix part must be non-empty".into());
            name
        }
        Some((prefix, name)) => {
            out.extend(subdomain_with(prefix, too_many_bytes).into_iter().map(|text| format!("prefix part {text}")));
            name
        }
    };
    if name.is_empty() {
        out.push("name part must be non-empty".into());
    } else if name.len() > 63 {
        out.push(format!("name part {}", too_many_bytes(63)));
    }
    if !shaped(name, alphanumeric, word) {
        out.push(format!("name part {}", pattern()));
    }
    out
}

/// A label's value.
pub fn label_value(value: &str) -> Wrong {
    let mut out = one(value.len() <= 63, || too_many_bytes(63));
    if !value.is_empty() && !shaped(value, alphanumeric, word) {
        let rule = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and \
                    must start and end with an alphanumeric character";
        out.push(regex_text(rule, LABEL_VALUE, &["MyValue", "my_value", "12345"]));
    }
    out
}

/// A C identifier.
pub fn c_identifier(value: &str) -> Wrong {
    let ok = !value.is_empty()
        && !value.as_bytes()[0].is_ascii_digit()
        && value.bytes().all(|b| alphanumeric(b) || b == b'_');
    one(ok, || {
        let rule = "a valid C identifier must start with alphabetic character or '_', followed by a string of \
                    alphanumeric characters or '_'";
        regex_text(rule, "[A-Za-z_][A-Za-z0-9_]*", &["my_name", "MY_NAME", "MyName"])
    })
}

/// A port number.
pub fn port(value: i64) -> Wrong {
    in_range(value, 1, 65535)
}

/// A number between two others, both included.
pub fn in_range(value: i64, low: i64, high: i64) -> Wrong {
    one((low..=high).contains(&value), || range_text(low, high))
}

/// A user or group number.
pub fn user_id(value: i64) -> Wrong {
    in_range(value, 0, i64::from(i32::MAX))
}

/// The name of a port (IANA service name).
pub fn port_name(value: &str) -> Wrong {
    let mut out = one(value.len() <= 15, || too_long_text(15));
    let mut unless = |ok: bool, text: &str| {
        if !ok {
            out.push(text.into());
        }
    };
    unless(
        !value.is_empty() && value.bytes().all(lower_dash),
        "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)",
    );
    unless(value.bytes().any(|b| b.is_ascii_lowercase()), "must contain at least one letter (a-z)");
    unless(!value.contains("--"), "must not contain consecutive hyphens");
    unless(!value.starts_with('-') && !value.ends_with('-'), "must not begin or end with a hyphen");
    out
}

/// `25%`.
pub fn percent(value: &str) -> Wrong {
    let ok = value.strip_suffix('%').is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()));
    one(ok, || {
        let rule = "a valid percent string must be a numeric string followed by an ending '%'";
        regex_text(rule, "[0-9]+%", &["1%", "93%"])
    })
}

/// The name of an HTTP header.
pub fn http_header(value: &str) -> Wrong {
    let ok = !value.is_empty() && value.bytes().all(|b| alphanumeric(b) || b == b'-');
    one(ok, || {
        let rule = "a valid HTTP header must consist of alphanumeric characters or '-'";
        regex_text(rule, "[-A-Za-z0-9]+", &["X-Header-Name"])
    })
}

/// The name of an environment variable: printable ASCII without `=`.
pub fn env_name(value: &str) -> Wrong {
    let mut out = one(!value.is_empty(), || "environment variable name must be non-empty".into());
    if !value.bytes().all(|b| (b' '..=b'~').contains(&b) && b != b'=') {
        let rule = "a valid environment variable name must consist only of printable ASCII characters other than '='";
        out.push(rule.into());
    }
    out
}

/// The key of a ConfigMap or Secret.
pub fn config_key(value: &str) -> Wrong {
    let mut out = one(value.len() <= 253, || too_long_text(253));
    if value.is_empty() || !value.bytes().all(word) {
        let rule = "a valid config key must consist of alphanumeric characters, '-', '_' or '.'";
        out.push(regex_text(rule, "[-._a-zA-Z0-9]+", &["key.name", "KEY_NAME", "key-name"]));
    }
    match value {
        "." | ".." => out.push(format!("must not be '{value}'")),
        _ if value.starts_with("..") => out.push("must not start with '..'".into()),
        _ => {}
    }
    out
}

/// The reason of a condition.
pub fn condition_reason(value: &str) -> Wrong {
    let inside = |b: u8| alphanumeric(b) || b"_,:".contains(&b);
    let last = |b: u8| alphanumeric(b) || b == b'_';
    let ok = match value.as_bytes() {
        [] => false,
        [first, rest @ ..] => {
            first.is_ascii_alphabetic() && rest.iter().all(|&b| inside(b)) && rest.last().is_none_or(|&b| last(b))
        }
    };
    one(ok, || {
        let rule = "a condition reason must start with alphabetic character, optionally followed by a string of \
                    alphanumeric characters or '_,:', and must end with an alphanumeric character or '_'";
        let examples = ["my_name", "MY_NAME", "MyName", "ReasonA,ReasonB", "ReasonA:ReasonB"];
        regex_text(rule, "[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?", &examples)
    })
}

/// A path of an HTTP URL.
pub fn http_path(value: &str) -> Wrong {
    let ok = !value.is_empty() && value.bytes().all(|b| alphanumeric(b) || b"/-._~%!$&'()*+,;=:".contains(&b));
    one(ok, || regex_text("Invalid path", "[A-Za-z0-9/\\-._~%!$&'()*+,;=:]+", &[]))
}

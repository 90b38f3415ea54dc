//! What a plain scalar means.

use std::sync::LazyLock;

use regex::Regex;

/// A scalar's meaning.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Meaning {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Float(f64),
    /// Text that looks like a date; it stays text.
    Timestamp,
    Merge,
    Text,
}

/// The meaning of an untagged plain scalar.
pub(super) fn resolve(text: &str) -> Meaning {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Meaning::Null,
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
            return Meaning::Bool(true);
        }
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            return Meaning::Bool(false);
        }
        ".nan" | ".NaN" | ".NAN" => return Meaning::Float(f64::NAN),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => return Meaning::Float(f64::INFINITY),
        "-.inf" | "-.Inf" | "-.INF" => return Meaning::Float(f64::NEG_INFINITY),
        "<<" => return Meaning::Merge,
        _ => {}
    }
    match text.as_bytes()[0] {
        b'.' => go_float(text).map_or(Meaning::Text, Meaning::Float),
        b'+' | b'-' | b'0'..=b'9' => number(text),
        _ => Meaning::Text,
    }
}

fn number(text: &str) -> Meaning {
    static FLOAT: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$").expect("a constant expression")
    });
    if is_timestamp(text) {
        return Meaning::Timestamp;
    }
    let plain = text.replace('_', "");
    if let Some(number) = integer(&plain) {
        return number;
    }
    if FLOAT.is_match(&plain)
        && let Ok(float) = plain.parse()
    {
        return Meaning::Float(float);
    }
    Meaning::Text
}

/// An integer whose base its prefix tells: `0x`, `0b`, `0o` or a leading zero.
fn integer(text: &str) -> Option<Meaning> {
    let (sign, digits) = match text.as_bytes().first()? {
        b'-' => (Some('-'), &text[1..]),
        b'+' => (Some('+'), &text[1..]),
        _ => (None, text),
    };
    let prefix = digits.get(..2).map(str::to_ascii_lowercase);
    let (base, digits) = match prefix.as_deref() {
        Some("0x") => (16, &digits[2..]),
        Some("0b") => (2, &digits[2..]),
        Some("0o") => (8, &digits[2..]),
        _ if digits.len() > 1 && digits.starts_with('0') => (8, &digits[1..]),
        _ => (10, digits),
    };
    if digits.is_empty() || !digits.chars().all(|c| c.is_digit(base)) {
        return None;
    }
    let magnitude = u64::from_str_radix(digits, base).ok()?;
    if sign == Some('-') {
        return if magnitude <= 1 << 63 { Some(Meaning::Int((magnitude as i64).wrapping_neg())) } else { None };
    }
    match i64::try_from(magnitude) {
        Ok(n) => Some(Meaning::Int(n)),
        Err(_) if sign.is_none() => Some(Meaning::Uint(magnitude)),
        Err(_) => None,
    }
}

/// A float that begins with a point.
fn go_float(text: &str) -> Option<f64> {
    let fits = text.bytes().all(|b| b.is_ascii_digit() || b"+-.eE".contains(&b));
    text.parse().ok().filter(|_| fits)
}

/// `2001-12-14`, `2001-12-14t21:59:43.1Z`, `2001-12-14 21:59:43`.
fn is_timestamp(text: &str) -> bool {
    static TIMESTAMP: LazyLock<Regex> = LazyLock::new(|| {
        let time = r"[0-9]{1,2}:[0-9]{1,2}:[0-9]{1,2}(\.[0-9]+)?";
        let pattern =
            format!(r"^[0-9]{{4}}-([0-9]{{1,2}})-([0-9]{{1,2}})([Tt]{time}(Z|[-+][0-9]{{2}}:[0-9]{{2}})| {time})?$");
        Regex::new(&pattern).expect("a constant expression")
    });
    if text.len() < 8 || text.as_bytes()[4] != b'-' {
        return false;
    }
    let Some(parts) = TIMESTAMP.captures(text) else { return false };
    let in_range = |i: usize, max: u32| parts[i].parse::<u32>().is_ok_and(|n| (1..=max).contains(&n));
    in_range(1, 12) && in_range(2, 31)
}

/// `1:30`: a number of base 60 for other parsers, which must be quoted.
pub(super) fn is_base_60(text: &str) -> bool {
    static BASE_60: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r"^[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?$").expect("a constant expression")
    });
    text.contains(':') && BASE_60.is_match(text)
}

/// Go's shortest `%g`, as float keys and values are written.
pub(super) fn go_g(exponential: &str, plain: &str, shortest: usize) -> String {
    let (digits, exponent) = exponential.split_once('e').unwrap_or((exponential, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if (-4..shortest as i32).contains(&exponent) {
        return plain.to_string();
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

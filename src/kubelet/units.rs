//! Amounts: what a `Quantity` is worth in thousandths and in whole units.
//!
//! Source of the forms: the API reference's "Quantity" (binary and decimal suffixes, exponents).

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use std::collections::BTreeMap;

/// Named amounts, as in `resources.requests`.
pub type ResourceList = BTreeMap<String, Quantity>;

/// Thousandths of a unit, rounded up; `None` when the text is no quantity.
pub fn parse_milli(text: &str) -> Option<i128> {
    let text = text.trim();
    let split = text.find(|c: char| !matches!(c, '0'..='9' | '.' | '+' | '-')).unwrap_or(text.len());
    let (number, suffix) = text.split_at(split);
    let negative = number.starts_with('-');
    let number = number.trim_start_matches(['+', '-']);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let digits: i128 = format!("{whole}{fraction}").parse().ok()?;
    let (multiplier, exponent) = scale(suffix)?;
    // value × 1000 = digits × multiplier × 10^(exponent - fraction digits + 3)
    let power = exponent - fraction.len() as i32 + 3;
    let scaled = digits.checked_mul(multiplier)?;
    let milli = match power {
        0.. => scaled.checked_mul(10i128.checked_pow(power as u32)?)?,
        _ => {
            let by = 10i128.checked_pow((-power) as u32)?;
            scaled / by + i128::from(scaled % by != 0)
        }
    };
    Some(if negative { -milli } else { milli })
}

/// Multiplier and power of ten of a suffix.
fn scale(suffix: &str) -> Option<(i128, i32)> {
    Some(match suffix {
        "" => (1, 0),
        "n" => (1, -9),
        "u" => (1, -6),
        "m" => (1, -3),
        "k" => (1, 3),
        "M" => (1, 6),
        "G" => (1, 9),
        "T" => (1, 12),
        "P" => (1, 15),
        "E" => (1, 18),
        "Ki" => (1 << 10, 0),
        "Mi" => (1 << 20, 0),
        "Gi" => (1 << 30, 0),
        "Ti" => (1 << 40, 0),
        "Pi" => (1 << 50, 0),
        "Ei" => (1 << 60, 0),
        _ => (1, suffix.strip_prefix(['e', 'E'])?.parse().ok()?),
    })
}

/// Thousandths of the quantity; 0 when it can't be read.
pub fn milli(quantity: &Quantity) -> i64 {
    parse_milli(&quantity.0).unwrap_or(0).clamp(i64::MIN.into(), i64::MAX.into()) as i64
}

/// Whole units of the quantity, rounded up; 0 when it can't be read.
pub fn value(quantity: &Quantity) -> i64 {
    let milli = parse_milli(&quantity.0).unwrap_or(0);
    let whole = milli.div_euclid(1000) + i128::from(milli.rem_euclid(1000) != 0);
    whole.clamp(i64::MIN.into(), i64::MAX.into()) as i64
}

/// Thousandths of `name` in `list`, when it is there.
pub fn milli_of(list: Option<&ResourceList>, name: &str) -> Option<i64> {
    list?.get(name).map(milli)
}

/// Whole units of `name` in `list`, when it is there.
pub fn value_of(list: Option<&ResourceList>, name: &str) -> Option<i64> {
    list?.get(name).map(value)
}

/// A decimal quantity from thousandths: `1500` is `1500m`, `2000` is `2`.
pub fn from_milli(milli: i64) -> Quantity {
    Quantity(if milli % 1000 == 0 { (milli / 1000).to_string() } else { format!("{milli}m") })
}

/// A binary quantity from bytes, with the largest suffix that divides it: `1073741824` is `1Gi`.
pub fn from_bytes(bytes: i64) -> Quantity {
    let suffixes = ["", "Ki", "Mi", "Gi", "Ti", "Pi"];
    let (mut left, mut step) = (bytes, 0);
    while left != 0 && left % 1024 == 0 && step + 1 < suffixes.len() {
        left /= 1024;
        step += 1;
    }
    Quantity(format!("{left}{}", suffixes[step]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read_in_every_form() {
        for (text, milli) in [
            ("1", 1000),
            ("100m", 100),
            ("0.5", 500),
            ("1.5Gi", 1_610_612_736_000),
            ("1e3", 1_000_000),
            ("2E2", 200_000),
            ("1n", 1),
            ("64Mi", 67_108_864_000),
            ("1E", 1_000_000_000_000_000_000_000),
        ] {
            assert_eq!(parse_milli(text), Some(milli), "{text}");
        }
        assert_eq!(parse_milli("abc"), None);
        assert_eq!(value(&Quantity("100m".into())), 1);
        assert_eq!(from_milli(1500).0, "1500m");
        assert_eq!(from_bytes(1 << 30).0, "1Gi");
        assert_eq!(from_bytes(1000).0, "1000");
    }
}

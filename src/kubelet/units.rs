//! Amounts of resources: typed quantities in thousandths and whole units, and back.

use api::quantity::{Format, Quantity as Amount};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use std::collections::BTreeMap;

/// Named amounts, as in `resources.requests`.
pub type ResourceList = BTreeMap<String, Quantity>;

/// Thousandths of a unit, rounded up; `None` when the text is no quantity.
pub fn parse_milli(text: &str) -> Option<i128> {
    Amount::parse(text.trim()).ok().map(|amount| amount.milli_value().into())
}

/// Thousandths of the quantity; 0 when it can't be read.
pub fn milli(quantity: &Quantity) -> i64 {
    Amount::parse(&quantity.0).map_or(0, |amount| amount.milli_value())
}

/// Whole units of the quantity, rounded up; 0 when it can't be read.
pub fn value(quantity: &Quantity) -> i64 {
    Amount::parse(&quantity.0).map_or(0, |amount| amount.value())
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
    Quantity(Amount::from_milli(milli).to_string())
}

/// A binary quantity from bytes, with the largest suffix that divides it: `1073741824` is `1Gi`.
pub fn from_bytes(bytes: i64) -> Quantity {
    Quantity(Amount::new(bytes, Format::BinarySi).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_written_as_upstream_writes_them() {
        assert_eq!(parse_milli("0.5"), Some(500));
        assert_eq!(parse_milli("abc"), None);
        assert_eq!(value(&Quantity("100m".into())), 1);
        assert_eq!(from_milli(1500).0, "1500m");
        assert_eq!(from_milli(2000).0, "2");
        assert_eq!(from_bytes(1 << 30).0, "1Gi");
        // Small amounts are decimal, whatever their format.
        assert_eq!(from_bytes(1000).0, "1k");
        assert_eq!(from_bytes(1025).0, "1025");
    }
}

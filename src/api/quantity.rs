//! Resource quantities: exact decimal and binary numbers with suffixes (apimachinery `api/resource`).
//!
//! A [`Quantity`] is `mantissa × 10^scale` and the format in which it was written. Parsing never loses anything down to
//! a billionth; what is finer is rounded away from zero, as upstream does.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;

use crate::Value;

/// Why a text is no quantity, in upstream's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// It has a character that no quantity has.
    #[error("quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'")]
    Format,
    /// Its digits make no number, or more than 38 of them are significant.
    #[error("unable to parse numeric part of quantity")]
    Numeric,
    /// Its suffix is unknown.
    #[error("unable to parse quantity's suffix")]
    Suffix,
}

/// How a quantity is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Format {
    /// `12M`: powers of 1000.
    #[default]
    DecimalSi,
    /// `12Mi`: powers of 1024.
    BinarySi,
    /// `12e6`.
    DecimalExponent,
}

/// An exact number. `==` and `<` compare what it is worth, not how it is written.
#[derive(Clone, Copy, Debug, Default)]
pub struct Quantity {
    mantissa: i128,
    scale: i32,
    format: Format,
}

const NANO: i32 = -9;

impl Quantity {
    /// Nothing.
    pub const ZERO: Quantity = Quantity { mantissa: 0, scale: 0, format: Format::DecimalSi };

    /// A whole number.
    pub fn new(value: i64, format: Format) -> Self {
        Self { mantissa: value.into(), scale: 0, format }
    }

    /// So many thousandths, in decimal notation.
    pub fn from_milli(value: i64) -> Self {
        Self { mantissa: value.into(), scale: -3, format: Format::DecimalSi }
    }

    /// Parses a text.
    ///
    /// # Errors
    /// In upstream's words; see [`Error`].
    pub fn parse(text: &str) -> Result<Self, Error> {
        Parsed::new(text).map(|p| p.quantity)
    }

    /// The quantity in a JSON value: a text (spaces around it don't matter), a number, or null for zero.
    ///
    /// # Errors
    /// As [`Quantity::parse`]; other types of values have the wrong format.
    pub fn from_value(value: &Value) -> Result<Self, Error> {
        match value {
            Value::Null => Ok(Self::ZERO),
            Value::String(s) => Self::parse(s.trim()),
            Value::Number(n) => Self::parse(&n.to_string()),
            _ => Err(Error::Format),
        }
    }

    /// How it is written.
    pub fn format(&self) -> Format {
        self.format
    }

    /// The same number, written otherwise.
    pub fn with_format(self, format: Format) -> Self {
        Self { format, ..self }
    }

    /// Zero.
    pub fn is_zero(&self) -> bool {
        self.mantissa == 0
    }

    /// -1, 0 or 1.
    pub fn sign(&self) -> i32 {
        self.mantissa.signum() as i32
    }

    /// The number as a whole number, rounded away from zero; the nearest bound where an i64 can't hold it.
    pub fn value(&self) -> i64 {
        self.scaled(0)
    }

    /// The number of thousandths, rounded away from zero; the nearest bound where an i64 can't hold it.
    pub fn milli_value(&self) -> i64 {
        self.scaled(-3)
    }

    /// The number in units of `10^scale`, rounded away from zero; the nearest bound where an i64 can't hold it.
    pub fn scaled(&self, scale: i32) -> i64 {
        let wide = rescale(self.mantissa, self.scale, scale).map(|(n, _)| n);
        match wide {
            Some(n) => n.clamp(i64::MIN.into(), i64::MAX.into()) as i64,
            None if self.mantissa < 0 => i64::MIN,
            None => i64::MAX,
        }
    }

    /// The whole number, where it is one and an i64 holds it.
    pub fn as_i64(&self) -> Option<i64> {
        let (n, exact) = rescale(self.mantissa, self.scale, 0)?;
        if exact { i64::try_from(n).ok() } else { None }
    }

    /// The nearest floating point number.
    pub fn as_f64(&self) -> f64 {
        self.mantissa as f64 * 10f64.powi(self.scale)
    }

    /// The number rounded away from zero to a multiple of `10^scale`, and whether nothing was rounded.
    pub fn round_up(self, scale: i32) -> (Self, bool) {
        if self.scale >= scale {
            return (self, true);
        }
        match rescale(self.mantissa, self.scale, scale) {
            Some((mantissa, exact)) => (Self { mantissa, scale, ..self }, exact),
            None => (self, true),
        }
    }

    /// The number times a whole number.
    pub fn times(self, n: i64) -> Self {
        Self { mantissa: self.mantissa.saturating_mul(n.into()), ..self }
    }

    /// Puts two numbers on one scale: the finer one, or a coarser one when that does not fit 128 bits.
    fn aligned(self, other: Self) -> (i128, i128, i32) {
        let (a, b) = (self.trimmed(), other.trimmed());
        let mut scale = a.scale.min(b.scale);
        if a.is_zero() {
            scale = b.scale;
        } else if b.is_zero() {
            scale = a.scale;
        }
        loop {
            let both = (rescale(a.mantissa, a.scale, scale), rescale(b.mantissa, b.scale, scale));
            match both {
                (Some((x, _)), Some((y, _))) if x.checked_add(y).is_some() && x.checked_sub(y).is_some() => {
                    return (x, y, scale);
                }
                _ => scale += 1,
            }
        }
    }

    /// Without trailing zeros, so that scales are comparable.
    fn trimmed(mut self) -> Self {
        if self.mantissa == 0 {
            self.scale = 0;
        }
        while self.mantissa != 0 && self.mantissa % 10 == 0 {
            self.mantissa /= 10;
            self.scale += 1;
        }
        self
    }

    fn sum(self, other: Self, subtract: bool) -> Self {
        let format = if self.is_zero() { other.format } else { self.format };
        let (x, y, scale) =
            if self.scale == other.scale { (self.mantissa, other.mantissa, self.scale) } else { self.aligned(other) };
        let mantissa = if subtract { x.saturating_sub(y) } else { x.saturating_add(y) };
        Self { mantissa, scale, format }
    }

    /// The canonical form's digits and suffix.
    fn canonical_parts(&self) -> (i128, Cow<'static, str>) {
        if self.is_zero() {
            return (0, Cow::Borrowed(""));
        }
        if self.format == Format::BinarySi
            && let Some(n) = self.whole_binary()
        {
            let (n, times) = remove_factors(n, 1024);
            return (n, Cow::Borrowed(BINARY.get(times as usize).copied().unwrap_or("")));
        }
        let (mut n, times) = remove_factors(self.mantissa, 10);
        let mut exponent = self.scale.saturating_add(times);
        while exponent % 3 != 0 {
            n = n.saturating_mul(10);
            exponent -= 1;
        }
        let suffix = match self.format {
            Format::DecimalExponent if exponent == 0 => "".into(),
            Format::DecimalExponent => format!("e{exponent}").into(),
            _ => DECIMAL.iter().find(|d| d.1 == exponent).map_or("", |d| d.0).into(),
        };
        (n, suffix)
    }

    /// The number where binary notation can say it: whole, and at least 1024.
    fn whole_binary(&self) -> Option<i128> {
        match rescale(self.mantissa, self.scale, 0)? {
            (n, true) if !(-1024 < n && n < 1024) => Some(n),
            _ => None,
        }
    }
}

/// Suffixes of powers of 1024.
const BINARY: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];

/// Suffixes of powers of ten.
const DECIMAL: [(&str, i32); 10] =
    [("n", -9), ("u", -6), ("m", -3), ("", 0), ("k", 3), ("M", 6), ("G", 9), ("T", 12), ("P", 15), ("E", 18)];

/// `mantissa × 10^from` in units of `10^to`, rounded away from zero, and whether that was exact; `None` when it does not
/// fit 128 bits.
fn rescale(mantissa: i128, from: i32, to: i32) -> Option<(i128, bool)> {
    if from == to || mantissa == 0 {
        return Some((mantissa, true));
    }
    let distance = u32::try_from((i64::from(from) - i64::from(to)).unsigned_abs()).ok()?;
    let power = 10i128.checked_pow(distance);
    if from > to {
        return Some((mantissa.checked_mul(power?)?, true));
    }
    // A divisor beyond 128 bits is larger than any mantissa.
    let Some(power) = power else { return Some((mantissa.signum(), false)) };
    let (whole, rest) = (mantissa / power, mantissa % power);
    Some(if rest == 0 { (whole, true) } else { (whole + mantissa.signum(), false) })
}

fn remove_factors(mut n: i128, factor: i128) -> (i128, i32) {
    let mut times = 0;
    while n != 0 && n % factor == 0 {
        n /= factor;
        times += 1;
    }
    (n, times)
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        if self.scale == other.scale || self.sign() != other.sign() {
            return match self.sign().cmp(&other.sign()) {
                Ordering::Equal => self.mantissa.cmp(&other.mantissa),
                by_sign => by_sign,
            };
        }
        let (a, b) = (self.trimmed(), other.trimmed());
        let scale = a.scale.min(b.scale);
        let wide = |q: &Self| rescale(q.mantissa, q.scale, scale).map(|(n, _)| n);
        match (wide(&a), wide(&b)) {
            (Some(x), Some(y)) => x.cmp(&y),
            // The one that does not fit is the larger one by far.
            (None, _) => self.sign().cmp(&0),
            (_, None) => 0.cmp(&self.sign()),
        }
    }
}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Quantity {}

impl std::ops::Add for Quantity {
    type Output = Self;
    /// The sum; zero takes the other's format.
    fn add(self, other: Self) -> Self {
        self.sum(other, false)
    }
}

impl std::ops::AddAssign for Quantity {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl std::ops::Sub for Quantity {
    type Output = Self;
    /// The difference; zero takes the other's format.
    fn sub(self, other: Self) -> Self {
        self.sum(other, true)
    }
}

impl std::ops::SubAssign for Quantity {
    fn sub_assign(&mut self, other: Self) {
        *self = *self - other;
    }
}

impl std::ops::Neg for Quantity {
    type Output = Self;
    fn neg(self) -> Self {
        Self { mantissa: -self.mantissa, ..self }
    }
}

impl std::iter::Sum for Quantity {
    fn sum<I: Iterator<Item = Self>>(items: I) -> Self {
        items.fold(Self::ZERO, |a, b| a + b)
    }
}

impl std::str::FromStr for Quantity {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self, Error> {
        Self::parse(text)
    }
}

/// The canonical form: no fraction, the largest suffix that leaves a whole number.
impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (digits, suffix) = self.canonical_parts();
        write!(f, "{digits}{suffix}")
    }
}

/// What upstream stores for a text that a client sent. Forms that upstream remembers as they were written (`1.500`,
/// `+5Gi`) stay; everything else becomes canonical.
///
/// # Errors
/// As [`Quantity::parse`].
pub fn canonical(text: &str) -> Result<Cow<'_, str>, Error> {
    let trimmed = text.trim();
    let parsed = Parsed::new(trimmed)?;
    if parsed.kept {
        return Ok(Cow::Borrowed(trimmed));
    }
    let canonical = parsed.quantity.to_string();
    Ok(if canonical == trimmed { Cow::Borrowed(trimmed) } else { Cow::Owned(canonical) })
}

/// A text taken apart.
struct Parsed {
    quantity: Quantity,
    /// Upstream keeps the text instead of its canonical form.
    kept: bool,
}

impl Parsed {
    fn new(text: &str) -> Result<Self, Error> {
        if text.is_empty() {
            return Err(Error::Format);
        }
        let parts = Parts::split(text)?;
        let (base, exponent, format) = interpret(parts.suffix).ok_or(Error::Suffix)?;
        let (mantissa, fraction) = parts.mantissa()?;
        let mut quantity = match base {
            Base::Ten => Quantity { mantissa, scale: exponent.saturating_sub(fraction), format },
            Base::Two => {
                let mantissa = mantissa.checked_mul(1 << exponent).ok_or(Error::Numeric)?;
                Quantity { mantissa, scale: -fraction, format }
            }
        };
        let quick = parts.is_quick(base, exponent, quantity.mantissa);
        if quantity.scale < NANO {
            quantity = quantity.round_up(NANO).0;
        }
        if format == Format::BinarySi {
            quantity = bounded_binary(quantity);
        }
        if parts.negative {
            quantity = -quantity;
        }
        let kept = quick && parts.is_kept(base, exponent, mantissa);
        Ok(Self { quantity, kept })
    }
}

/// Binary quantities end at 2^63-1, and those below one are decimal.
fn bounded_binary(quantity: Quantity) -> Quantity {
    let max = Quantity::new(i64::MAX, Format::BinarySi);
    if quantity > max {
        return max;
    }
    let small = !quantity.is_zero() && quantity < Quantity::new(1, Format::BinarySi);
    if small { quantity.with_format(Format::DecimalSi) } else { quantity }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Base {
    Two,
    Ten,
}

fn interpret(suffix: &str) -> Option<(Base, i32, Format)> {
    if let Some(&(_, exponent)) = DECIMAL.iter().find(|d| d.0 == suffix) {
        return Some((Base::Ten, exponent, Format::DecimalSi));
    }
    if let Some(i) = BINARY.iter().position(|b| *b == suffix) {
        return Some((Base::Two, i as i32 * 10, Format::BinarySi));
    }
    let exponent: i64 = suffix.strip_prefix(['e', 'E']).filter(|rest| !rest.is_empty())?.parse().ok()?;
    // Upstream keeps 32 bits of the exponent.
    Some((Base::Ten, exponent as i32, Format::DecimalExponent))
}

/// The parts of a text, without the sign and without leading zeros.
struct Parts<'a> {
    negative: bool,
    whole: &'a str,
    fraction: &'a str,
    suffix: &'a str,
}

impl<'a> Parts<'a> {
    fn split(text: &'a str) -> Result<Self, Error> {
        let negative = text.starts_with('-');
        let rest = text.strip_prefix(['-', '+']).unwrap_or(text);
        let rest = rest.trim_start_matches('0');
        let (whole, rest) = rest.split_at(digits(rest));
        let (fraction, suffix) = match rest.strip_prefix('.') {
            Some(rest) => rest.split_at(digits(rest)),
            None => ("", rest),
        };
        let letters = suffix.trim_start_matches(|c| "eEinumkKMGTP".contains(c));
        let exponent = letters.strip_prefix(['-', '+']).unwrap_or(letters);
        if digits(exponent) != exponent.len() {
            return Err(Error::Format);
        }
        Ok(Self { negative, whole: if whole.is_empty() { "0" } else { whole }, fraction, suffix })
    }

    /// All digits as one number, without the sign, and how many of them stand behind the point.
    fn mantissa(&self) -> Result<(i128, i32), Error> {
        let room = 37usize.saturating_sub(self.whole.len()).min(self.fraction.len());
        let (near, far) = self.fraction.split_at(room);
        let mut mantissa: i128 = 0;
        for digit in self.whole.bytes().chain(near.bytes()) {
            let next = mantissa.checked_mul(10).and_then(|m| m.checked_add((digit - b'0').into()));
            mantissa = next.ok_or(Error::Numeric)?;
        }
        // What follows is rounded up to a billionth anyway, so it only matters that it is not nothing.
        mantissa += i128::from(far.bytes().any(|d| d != b'0'));
        Ok((mantissa, room as i32))
    }

    /// Upstream's quick path, the only one that may keep a text: few digits, and a product that fits 64 bits.
    fn is_quick(&self, base: Base, exponent: i32, product: i128) -> bool {
        let length = self.whole.len() as i32;
        let fraction = self.fraction.len() as i32;
        let (precision, scale) = match base {
            Base::Ten => (18 - length - fraction, exponent.saturating_sub(fraction)),
            Base::Two if fraction == 0 => (15 - length - exponent * 3 / 10 - 1, 0),
            Base::Two => (-1, 0),
        };
        precision >= 0 && scale >= NANO && i64::try_from(product).is_ok()
    }

    /// The text passes for canonical in upstream's eyes.
    fn is_kept(&self, base: Base, exponent: i32, value: i128) -> bool {
        match base {
            Base::Two => value & 7 != 0,
            Base::Ten => {
                let scale = exponent.saturating_sub(self.fraction.len() as i32);
                let zeros = if self.fraction.len() >= 3 {
                    self.fraction.ends_with("000")
                } else {
                    format!("{}{}", self.whole, self.fraction).ends_with("000")
                };
                scale % 3 == 0 && !zeros && !self.whole.starts_with('0')
            }
        }
    }
}

fn digits(text: &str) -> usize {
    text.bytes().take_while(u8::is_ascii_digit).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn canon(text: &str) -> String {
        canonical(text).map(Cow::into_owned).unwrap_or_else(|e| e.to_string())
    }

    #[test]
    fn stores_what_upstream_stores() {
        for (text, want) in [
            ("0", "0"),
            ("1000m", "1"),
            ("0.5", "500m"),
            ("1.5", "1500m"),
            ("1024Mi", "1Gi"),
            ("1Gi", "1Gi"),
            ("1.5Gi", "1536Mi"),
            ("1000", "1k"),
            ("100", "100"),
            ("1500", "1500"),
            ("1e3", "1e3"),
            ("1000e3", "1e6"),
            ("1E", "1E"),
            ("1E3", "1E3"),
            ("0.1n", "1n"),
            ("1500Ki", "1500Ki"),
            ("512Ki", "512Ki"),
            ("1Ki", "1Ki"),
            ("0.5Ki", "512"),
            ("0.5Mi", "512Ki"),
            ("100Ei", "9223372036854775807"),
            ("-1000m", "-1"),
            ("-0.5", "-500m"),
            ("+5", "+5"),
            ("1.500", "1.500"),
            ("123456789012345678901234", "123456789012345678901234"),
            ("0.001Ki", "1024m"),
            ("00.5", "500m"),
            ("12.5k", "12500"),
            ("4000000Ki", "4000000Ki"),
        ] {
            assert_eq!(canon(text), want, "{text}");
        }
    }

    #[test]
    fn refuses_in_upstreams_words() {
        let format = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";
        for text in ["", "1 000", "1GiB", "abc", "1.2.3", "1,5"] {
            assert_eq!(canon(text), format, "{text}");
        }
        for text in ["1mi", "1ki", "1e", "1K", "1i", "1mm", "1kG", "--1"] {
            assert_eq!(canon(text), "unable to parse quantity's suffix", "{text}");
        }
    }

    fn q(text: &str) -> Quantity {
        Quantity::parse(text).unwrap()
    }

    #[test]
    fn rounds_away_from_zero() {
        assert_eq!(q("1500m").value(), 2);
        assert_eq!(q("1001u").milli_value(), 2);
        assert_eq!(q("-1500m").value(), -2);
        assert_eq!(q("2Gi").value(), 2 << 30);
        assert_eq!(q("1e30").value(), i64::MAX);
        assert_eq!(q("0.0001").milli_value(), 1);
    }

    #[test]
    fn sums_keep_the_format_of_the_first_that_is_not_zero() {
        assert_eq!((q("0") + q("1Gi")).to_string(), "1Gi");
        assert_eq!((q("1Gi") + q("1024Mi")).to_string(), "2Gi");
        assert_eq!((q("100m") + q("900m")).to_string(), "1");
        assert_eq!((q("1") - q("1500m")).to_string(), "-500m");
        assert_eq!((q("1Gi") + q("1")).to_string(), "1073741825");
    }

    #[test]
    fn compares_by_worth() {
        assert_eq!(q("1"), q("1000m"));
        assert!(q("1G") < q("1Gi"));
        assert!(q("1e1000000") > q("1Ei"));
        assert!(q("-1e1000000") < q("1n"));
        assert_eq!(q("0").cmp(&q("0Gi")), Ordering::Equal);
    }

    proptest! {
        #[test]
        fn canonical_form_is_worth_the_same_and_stable(
            n in -1_000_000_000_000i64..1_000_000_000_000,
            suffix in prop::sample::select(vec!["", "n", "u", "m", "k", "M", "G", "Ki", "Mi", "Gi", "e3", "e-2"]),
        ) {
            let first = q(&format!("{n}{suffix}"));
            let text = first.to_string();
            prop_assert_eq!(first, q(&text));
            prop_assert_eq!(q(&text).to_string(), text);
        }

        #[test]
        fn sums_and_differences_cancel(a in any::<i32>(), b in any::<i32>(), s in -9i32..9, t in -9i32..9) {
            let a = Quantity { mantissa: a.into(), scale: s, format: Format::DecimalSi };
            let b = Quantity { mantissa: b.into(), scale: t, format: Format::DecimalSi };
            prop_assert_eq!(a + b - b, a);
            prop_assert_eq!(a.cmp(&b), (a - b).cmp(&Quantity::ZERO));
        }
    }
}

//! Times, durations and base64 as Go reads and writes them, with Go's words for what can't be read.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

/// Seconds from 1970 back to the start of the year 1, Go's zero time.
pub const ZERO_SECONDS: i64 = -62_135_596_800;

const SECONDS: &str = "2006-01-02T15:04:05Z07:00";
const MICROS: &str = "2006-01-02T15:04:05.000000Z07:00";

/// A moment: seconds since 1970 and nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// Seconds since 1970.
    pub seconds: i64,
    /// Nanoseconds within the second.
    pub nanos: u32,
}

impl Moment {
    /// Go's zero time, which is written as null.
    pub fn is_zero(self) -> bool {
        self.seconds == ZERO_SECONDS && self.nanos == 0
    }

    /// RFC 3339 in UTC, with six digits of the second's fraction or none.
    pub fn text(self, micro: bool) -> String {
        let (days, rest) = (self.seconds.div_euclid(86_400), self.seconds.rem_euclid(86_400));
        let (year, month, day) = civil(days);
        let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
        if micro {
            let micros = self.nanos / 1000;
            format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z")
        } else {
            format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
        }
    }
}

/// Reads RFC 3339; `micro` demands six digits of the second's fraction.
///
/// # Errors
/// Go's words for the first part that does not fit.
pub fn time(text: &str, micro: bool) -> Result<Moment, String> {
    let mut clock = Clock { layout: if micro { MICROS } else { SECONDS }, text, rest: text };
    clock.parse(micro)
}

/// The canonical form of a time; borrowed when it is the text given; `None` for Go's zero time.
///
/// # Errors
/// As [`time`].
pub fn canonical_time(text: &str, micro: bool) -> Result<Option<Cow<'_, str>>, String> {
    let moment = time(text, micro)?;
    if moment.is_zero() {
        return Ok(None);
    }
    let canonical = text.ends_with('Z') && text.len() == if micro { 27 } else { 20 };
    Ok(Some(if canonical { Cow::Borrowed(text) } else { Cow::Owned(moment.text(micro)) }))
}

struct Clock<'a> {
    layout: &'static str,
    text: &'a str,
    rest: &'a str,
}

impl Clock<'_> {
    fn parse(&mut self, micro: bool) -> Result<Moment, String> {
        let year = self.number("2006", 4, true)?;
        self.literal("-")?;
        let month = self.ranged("01", true, 1, 12, "month")?;
        self.literal("-")?;
        let day = self.number("02", 2, true)?;
        self.literal("T")?;
        let hour = self.ranged("15", false, 0, 23, "hour")?;
        self.literal(":")?;
        let minute = self.ranged("04", true, 0, 59, "minute")?;
        self.literal(":")?;
        let second = self.ranged("05", true, 0, 59, "second")?;
        let nanos = self.fraction(micro)?;
        let offset = self.zone()?;
        if !self.rest.is_empty() {
            return Err(self.message(&format!("extra text: {}", quote(self.rest))));
        }
        if day < 1 || day > days_in(year, month) {
            return Err(self.message("day out of range"));
        }
        let seconds = days_from_civil(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second - offset;
        Ok(Moment { seconds, nanos })
    }

    fn bad(&self, element: &str, at: &str) -> String {
        let [text, layout, at, element] = [self.text, self.layout, at, element].map(quote);
        format!("parsing time {text} as {layout}: cannot parse {at} as {element}")
    }

    fn message(&self, message: &str) -> String {
        format!("parsing time {}: {message}", quote(self.text))
    }

    fn literal(&mut self, literal: &str) -> Result<(), String> {
        match self.rest.strip_prefix(literal) {
            Some(rest) => {
                self.rest = rest;
                Ok(())
            }
            None => Err(self.bad(literal, self.rest)),
        }
    }

    /// A number of `digits` digits, or of one when it need not be full.
    fn number(&mut self, element: &str, digits: usize, fixed: bool) -> Result<i64, String> {
        let have = self.rest.bytes().take(digits).take_while(u8::is_ascii_digit).count();
        if have == 0 || (fixed && have < digits) {
            return Err(self.bad(element, self.rest));
        }
        let (number, rest) = self.rest.split_at(have);
        self.rest = rest;
        Ok(number.bytes().fold(0, |n, digit| n * 10 + i64::from(digit - b'0')))
    }

    fn ranged(&mut self, element: &str, fixed: bool, min: i64, max: i64, name: &str) -> Result<i64, String> {
        let number = self.number(element, 2, fixed)?;
        if (min..=max).contains(&number) { Ok(number) } else { Err(self.message(&format!("{name} out of range"))) }
    }

    /// Nanoseconds: six digits when the layout asks for them, any number of digits or none when it does not.
    fn fraction(&mut self, micro: bool) -> Result<u32, String> {
        let bytes = self.rest.as_bytes();
        let starts = bytes.first().is_some_and(|&b| b == b'.' || b == b',');
        let digits = bytes.iter().skip(1).take_while(|b| b.is_ascii_digit()).count();
        let digits = match micro {
            true if starts && digits >= 6 => 6,
            true => return Err(self.bad(".000000", self.rest)),
            false if starts && digits > 0 => digits,
            false => return Ok(0),
        };
        let nanos = bytes[1..=digits].iter().chain([b'0'; 9].iter()).take(9);
        let nanos = nanos.fold(0, |n, digit| n * 10 + u32::from(digit - b'0'));
        self.rest = &self.rest[digits + 1..];
        Ok(nanos)
    }

    /// Seconds east of UTC.
    fn zone(&mut self) -> Result<i64, String> {
        if let Some(rest) = self.rest.strip_prefix('Z') {
            self.rest = rest;
            return Ok(0);
        }
        let bad = || self.bad("Z07:00", self.rest);
        let zone = self.rest.as_bytes().get(..6).ok_or_else(bad)?;
        let two = |a: u8, b: u8| {
            (a.is_ascii_digit() && b.is_ascii_digit()).then(|| i64::from(a - b'0') * 10 + i64::from(b - b'0'))
        };
        let (hours, minutes) = two(zone[1], zone[2]).zip(two(zone[4], zone[5])).ok_or_else(bad)?;
        if zone[3] != b':' || (zone[0] != b'+' && zone[0] != b'-') {
            return Err(bad());
        }
        if hours > 24 {
            return Err(self.message("time zone offset hour out of range"));
        }
        if minutes > 60 {
            return Err(self.message("time zone offset minute out of range"));
        }
        let seconds = (hours * 60 + minutes) * 60;
        let seconds = if zone[0] == b'-' { -seconds } else { seconds };
        self.rest = &self.rest[6..];
        Ok(seconds)
    }
}

fn quote(text: &str) -> String {
    crate::field::quote(text)
}

fn leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

fn days_in(year: i64, month: i64) -> i64 {
    match month {
        2 if leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days since 1970 of a date in the Gregorian calendar (counted in years that start in March, as leap days then end
/// them).
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + i64::from(month <= 2), month, day)
}

/// Standard base64 with padding, whose last bits may be anything, as Go reads it.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_allow_trailing_bits(true)
        .with_decode_padding_mode(DecodePaddingMode::RequireCanonical),
);

/// Decodes base64; line breaks in it don't matter.
///
/// # Errors
/// Go's words with the position of the first byte that does not fit.
pub fn base64_decode(text: &str) -> Result<Vec<u8>, String> {
    let clean: Cow<'_, str> = match text.contains(['\r', '\n']) {
        true => text.replace(['\r', '\n'], "").into(),
        false => text.into(),
    };
    BASE64.decode(&*clean).map_err(|_| format!("illegal base64 data at input byte {}", base64_fault(text.as_bytes())))
}

/// Encodes base64.
pub fn base64_encode(bytes: &[u8]) -> String {
    BASE64.encode(bytes)
}

/// Where Go's decoder stops in a text that is not base64: groups of four, the last of which may be padded.
fn base64_fault(text: &[u8]) -> usize {
    let is_break = |b: u8| b == b'\r' || b == b'\n';
    let next = |mut at: usize| {
        while at < text.len() && is_break(text[at]) {
            at += 1;
        }
        at
    };
    let mut at = 0;
    loop {
        let mut have = 0;
        while have < 4 {
            at = next(at);
            let Some(&byte) = text.get(at) else { return at - have };
            if byte == b'=' {
                if have < 2 {
                    return at;
                }
                at = next(at + 1);
                if have == 2 {
                    match text.get(at) {
                        None => return text.len(),
                        Some(b'=') => at = next(at + 1),
                        Some(_) => return at,
                    }
                }
                return at;
            }
            if !(byte.is_ascii_alphanumeric() || byte == b'+' || byte == b'/') {
                return at;
            }
            (at, have) = (at + 1, have + 1);
        }
    }
}

/// Reads a Go duration (`1h30m`, `-1.5s`, `0`), in nanoseconds.
///
/// # Errors
/// Go's words.
pub fn duration(text: &str) -> Result<i64, String> {
    let invalid = || format!("time: invalid duration {}", quote(text));
    let (negative, mut rest) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    if rest == "0" {
        return Ok(0);
    }
    if rest.is_empty() {
        return Err(invalid());
    }
    let mut total: u64 = 0;
    while !rest.is_empty() {
        let whole_end = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (whole, mut after) = rest.split_at(whole_end);
        let mut fraction = "";
        if let Some(tail) = after.strip_prefix('.') {
            let end = tail.bytes().take_while(u8::is_ascii_digit).count();
            (fraction, after) = tail.split_at(end);
        }
        if whole.is_empty() && fraction.is_empty() {
            return Err(invalid());
        }
        let unit_end = after.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(after.len());
        let (unit, next) = after.split_at(unit_end);
        if unit.is_empty() {
            return Err(format!("time: missing unit in duration {}", quote(text)));
        }
        let scale: u64 = match unit {
            "ns" => 1,
            "us" | "µs" | "μs" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            _ => return Err(format!("time: unknown unit {} in duration {}", quote(unit), quote(text))),
        };
        let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().map_err(|_| invalid())? };
        let mut part = whole.checked_mul(scale).ok_or_else(invalid)?;
        if !fraction.is_empty() {
            let fraction: f64 = format!("0.{fraction}").parse().map_err(|_| invalid())?;
            part += (fraction * scale as f64) as u64;
        }
        total = total.checked_add(part).filter(|&t| t <= 1 << 63).ok_or_else(invalid)?;
        rest = next;
    }
    match negative {
        true => Ok((total as i64).wrapping_neg()),
        false => i64::try_from(total).map_err(|_| invalid()),
    }
}

/// Writes a duration of nanoseconds as Go does: `1h30m0s`, `1.5s`, `100ms`, `0s`.
pub fn duration_text(nanos: i64) -> String {
    if nanos == 0 {
        return "0s".into();
    }
    let sign = if nanos < 0 { "-" } else { "" };
    let n = nanos.unsigned_abs();
    let with_fraction = |n: u64, scale: u64, digits: usize| {
        let fraction = format!("{:0digits$}", n % scale);
        let fraction = fraction.trim_end_matches('0');
        if fraction.is_empty() { format!("{}", n / scale) } else { format!("{}.{fraction}", n / scale) }
    };
    if n < 1_000 {
        return format!("{sign}{n}ns");
    }
    if n < 1_000_000 {
        return format!("{sign}{}µs", with_fraction(n, 1_000, 3));
    }
    if n < 1_000_000_000 {
        return format!("{sign}{}ms", with_fraction(n, 1_000_000, 6));
    }
    let (minutes, rest) = (n / 60_000_000_000, n % 60_000_000_000);
    let seconds = with_fraction(rest, 1_000_000_000, 9);
    match (minutes / 60, minutes % 60) {
        (0, 0) => format!("{sign}{seconds}s"),
        (0, m) => format!("{sign}{m}m{seconds}s"),
        (h, m) => format!("{sign}{h}h{m}m{seconds}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_become_utc_seconds() {
        let canonical = |t| canonical_time(t, false).unwrap().unwrap().into_owned();
        assert_eq!(canonical("2020-01-01T02:00:00+02:00"), "2020-01-01T00:00:00Z");
        assert_eq!(canonical("2020-02-29T23:59:59.999Z"), "2020-02-29T23:59:59Z");
        assert_eq!(canonical("1969-12-31T23:59:59Z"), "1969-12-31T23:59:59Z");
        assert_eq!(canonical_time("0001-01-01T00:00:00Z", false), Ok(None));
        let micro = canonical_time("2020-01-01T00:00:00.123456-01:00", true).unwrap().unwrap();
        assert_eq!(micro, "2020-01-01T01:00:00.123456Z");
    }

    #[test]
    fn times_that_cannot_be_read_have_gos_words() {
        let error = |t| time(t, false).unwrap_err();
        let layout = "\"2006-01-02T15:04:05Z07:00\"";
        assert_eq!(
            error("yesterday"),
            format!("parsing time \"yesterday\" as {layout}: cannot parse \"yesterday\" as \"2006\"")
        );
        assert_eq!(error(""), format!("parsing time \"\" as {layout}: cannot parse \"\" as \"2006\""));
        assert_eq!(error("2020-01-01"), format!("parsing time \"2020-01-01\" as {layout}: cannot parse \"\" as \"T\""));
        assert_eq!(error("2020-13-01T00:00:00Z"), "parsing time \"2020-13-01T00:00:00Z\": month out of range");
        assert_eq!(error("2021-02-29T00:00:00Z"), "parsing time \"2021-02-29T00:00:00Z\": day out of range");
        assert_eq!(
            error("2020-01-01T00:00:00"),
            format!("parsing time \"2020-01-01T00:00:00\" as {layout}: cannot parse \"\" as \"Z07:00\"")
        );
        assert_eq!(error("2020-01-01T00:00:00Zx"), "parsing time \"2020-01-01T00:00:00Zx\": extra text: \"x\"");
        assert!(time("2020-01-01T00:00:00Z", true).unwrap_err().ends_with("cannot parse \"Z\" as \".000000\""));
    }

    #[test]
    fn base64_faults_are_where_go_finds_them() {
        let error = |t| base64_decode(t).unwrap_err();
        assert_eq!(error("***"), "illegal base64 data at input byte 0");
        assert_eq!(error("not base64"), "illegal base64 data at input byte 3");
        assert_eq!(error("abc"), "illegal base64 data at input byte 0");
        assert_eq!(error("YWJj*"), "illegal base64 data at input byte 4");
        assert_eq!(error("YQ="), "illegal base64 data at input byte 3");
        assert_eq!(base64_decode("YW\nJj").unwrap(), b"abc");
        assert_eq!(base64_decode("YR==").unwrap(), b"a");
    }

    #[test]
    fn durations_are_gos() {
        for (text, nanos, canonical) in [
            ("1h30m", 5_400_000_000_000, "1h30m0s"),
            ("1.5s", 1_500_000_000, "1.5s"),
            ("100ms", 100_000_000, "100ms"),
            ("-2m", -120_000_000_000, "-2m0s"),
            ("0", 0, "0s"),
            ("90s", 90_000_000_000, "1m30s"),
        ] {
            assert_eq!(duration(text), Ok(nanos));
            assert_eq!(duration_text(nanos), canonical);
        }
        assert_eq!(duration("5").unwrap_err(), "time: missing unit in duration \"5\"");
        assert_eq!(duration("5x").unwrap_err(), "time: unknown unit \"x\" in duration \"5x\"");
        assert_eq!(duration("").unwrap_err(), "time: invalid duration \"\"");
    }
}

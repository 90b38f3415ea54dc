//! Time: what the clock says, as the API writes it, and Go's durations.

use std::time::Duration;

use jiff::Timestamp;

/// Seconds since 1970.
pub fn unix() -> i64 {
    Timestamp::now().as_second()
}

/// Now as the API's `Time`: RFC 3339 in seconds, UTC.
pub fn now_rfc3339() -> String {
    rfc3339(unix())
}

/// Seconds since 1970 as the API's `Time`.
pub fn rfc3339(seconds: i64) -> String {
    Timestamp::from_second(seconds).unwrap_or(Timestamp::UNIX_EPOCH).strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Now as the API's `MicroTime`: RFC 3339 with six digits, UTC.
pub fn now_micro() -> String {
    Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string()
}

/// Reads a duration as Go writes it: `1h30m`, `1.5s`, `300ms`, `-2m`, `0`. Negative ones give `None`.
pub fn parse_duration(text: &str) -> Option<Duration> {
    let text = text.strip_prefix('+').unwrap_or(text);
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let mut rest = text;
    let mut nanos = 0f64;
    while !rest.is_empty() {
        let end = rest.find(|c: char| c != '.' && !c.is_ascii_digit())?;
        let number: f64 = rest[..end].parse().ok()?;
        rest = &rest[end..];
        let unit_end = rest.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(rest.len());
        nanos += number * unit_nanos(&rest[..unit_end])?;
        rest = &rest[unit_end..];
    }
    (!text.is_empty()).then(|| Duration::from_nanos(nanos.round() as u64))
}

fn unit_nanos(unit: &str) -> Option<f64> {
    Some(match unit {
        "ns" => 1.0,
        "us" | "µs" | "μs" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        "m" => 60e9,
        "h" => 3600e9,
        _ => return None,
    })
}

/// Writes a duration as Go does: `1h30m0s`, `1.5s`, `300ms`, `0s`.
pub fn format_duration(d: Duration) -> String {
    let nanos = d.as_nanos();
    if nanos == 0 {
        return "0s".into();
    }
    if nanos < 1_000_000_000 {
        let (unit, suffix) = match nanos {
            n if n < 1_000 => (1, "ns"),
            n if n < 1_000_000 => (1_000, "µs"),
            _ => (1_000_000, "ms"),
        };
        return format!("{}{suffix}", decimal(nanos, unit));
    }
    let seconds = d.as_secs();
    let (h, m) = (seconds / 3600, seconds / 60 % 60);
    let s = decimal(nanos % 60_000_000_000, 1_000_000_000);
    match (h, m) {
        (0, 0) => format!("{s}s"),
        (0, m) => format!("{m}m{s}s"),
        (h, m) => format!("{h}h{m}m{s}s"),
    }
}

/// `n / unit` with as many decimals as it takes.
fn decimal(n: u128, unit: u128) -> String {
    let (whole, part) = (n / unit, n % unit);
    if part == 0 {
        return whole.to_string();
    }
    let digits = unit.ilog10() as usize;
    let fraction = format!("{part:0digits$}");
    format!("{whole}.{}", fraction.trim_end_matches('0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_and_write_as_go_does() {
        for (text, seconds) in [("1h30m", 5400.0), ("1.5s", 1.5), ("300ms", 0.3), ("0", 0.0), ("1m0s", 60.0)] {
            assert_eq!(parse_duration(text), Some(Duration::from_secs_f64(seconds)), "{text}");
        }
        for wrong in ["", "1", "x", "1x", "-1s"] {
            assert_eq!(parse_duration(wrong), None, "{wrong}");
        }
        for (seconds, text) in [(5400.0, "1h30m0s"), (1.5, "1.5s"), (0.3, "300ms"), (0.0, "0s"), (60.0, "1m0s")] {
            assert_eq!(format_duration(Duration::from_secs_f64(seconds)), text);
        }
    }

    #[test]
    fn times_have_the_apis_form() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00Z");
        assert_eq!(now_micro().len(), "2006-01-02T15:04:05.000000Z".len());
    }
}

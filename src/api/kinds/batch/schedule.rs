//! Schedules of CronJobs: five fields, or a name such as `@hourly`. The grammar and its words are those of the
//! robfig/cron library, which upstream uses.

use crate::field::quote;

/// When something runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// At all times that fit all fields.
    Fields(Fields),
    /// At that distance, in seconds.
    Every(u64),
}

/// One bit for each value that fits; the highest bit says that a field was a star.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fields {
    /// 0 to 59.
    pub minute: u64,
    /// 0 to 23.
    pub hour: u64,
    /// 1 to 31.
    pub day: u64,
    /// 1 to 12.
    pub month: u64,
    /// 0 to 6, Sunday first.
    pub weekday: u64,
}

/// Set in a field that was a star: then of day and weekday only the other one counts.
pub const STAR: u64 = 1 << 63;

struct Bounds {
    low: u32,
    high: u32,
    names: &'static [&'static str],
}

const MINUTE: Bounds = Bounds { low: 0, high: 59, names: &[] };
const HOUR: Bounds = Bounds { low: 0, high: 23, names: &[] };
const DAY: Bounds = Bounds { low: 1, high: 31, names: &[] };
const MONTH: Bounds = Bounds {
    low: 1,
    high: 12,
    names: &["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"],
};
const WEEKDAY: Bounds = Bounds { low: 0, high: 6, names: &["sun", "mon", "tue", "wed", "thu", "fri", "sat"] };

impl Schedule {
    /// Reads a schedule. A time zone before it (`TZ=Europe/Berlin 0 0 * * *`) is passed over here.
    ///
    /// # Errors
    /// The library's words on what is wrong.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("empty spec string".into());
        }
        let mut text = text;
        if text.starts_with("TZ=") || text.starts_with("CRON_TZ=") {
            let end = text.find(' ').ok_or("panic: runtime error: slice bounds out of range")?;
            text = text[end..].trim();
        }
        if text.starts_with('@') {
            return descriptor(text);
        }
        let fields: Vec<&str> = text.split_whitespace().collect();
        let [minute, hour, day, month, weekday] = fields.as_slice() else {
            return Err(format!("expected exactly 5 fields, found {}: [{}]", fields.len(), fields.join(" ")));
        };
        Ok(Self::Fields(Fields {
            minute: field(minute, &MINUTE)?,
            hour: field(hour, &HOUR)?,
            day: field(day, &DAY)?,
            month: field(month, &MONTH)?,
            weekday: field(weekday, &WEEKDAY)?,
        }))
    }
}

fn descriptor(text: &str) -> Result<Schedule, String> {
    let fields = match text {
        "@yearly" | "@annually" => "0 0 1 1 *",
        "@monthly" => "0 0 1 * *",
        "@weekly" => "0 0 * * 0",
        "@daily" | "@midnight" => "0 0 * * *",
        "@hourly" => "0 * * * *",
        _ => {
            let Some(duration) = text.strip_prefix("@every ") else {
                return Err(format!("unrecognized descriptor: {text}"));
            };
            let seconds = go_duration(duration).ok_or_else(|| {
                format!("failed to parse duration {text}: time: invalid duration {}", quote(duration))
            })?;
            return Ok(Schedule::Every(seconds.max(1)));
        }
    };
    Schedule::parse(fields)
}

/// Whole seconds of a Go duration (`1h30m`).
fn go_duration(text: &str) -> Option<u64> {
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    let mut seconds = 0.0;
    if rest == "0" {
        return Some(0);
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').filter(|n| *n > 0)?;
        let number: f64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let unit = rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len());
        seconds += number
            * match &rest[..unit] {
                "h" => 3600.0,
                "m" => 60.0,
                "s" => 1.0,
                "ms" => 1e-3,
                "us" | "µs" | "μs" => 1e-6,
                "ns" => 1e-9,
                _ => return None,
            };
        rest = &rest[unit..];
    }
    (!text.is_empty()).then_some(seconds as u64)
}

fn field(text: &str, bounds: &Bounds) -> Result<u64, String> {
    text.split(',').filter(|part| !part.is_empty()).try_fold(0, |bits, part| Ok(bits | range(part, bounds)?))
}

fn range(text: &str, bounds: &Bounds) -> Result<u64, String> {
    let parts: Vec<&str> = text.split('/').collect();
    let ends: Vec<&str> = parts[0].split('-').collect();
    let single = ends.len() == 1;
    let mut star = 0;
    let (low, mut high) = if ends[0] == "*" || ends[0] == "?" {
        star = STAR;
        (bounds.low, bounds.high)
    } else {
        let low = number_or_name(ends[0], bounds)?;
        match ends.as_slice() {
            [_] => (low, low),
            [_, high] => (low, number_or_name(high, bounds)?),
            _ => return Err(format!("too many hyphens: {text}")),
        }
    };
    let step = match parts.as_slice() {
        [_] => 1,
        [_, step] => {
            let step = number(step)?;
            if single {
                high = bounds.high;
            }
            if step > 1 {
                star = 0;
            }
            step
        }
        _ => return Err(format!("too many slashes: {text}")),
    };
    if low < bounds.low {
        return Err(format!("beginning of range ({low}) below minimum ({}): {text}", bounds.low));
    }
    if high > bounds.high {
        return Err(format!("end of range ({high}) above maximum ({}): {text}", bounds.high));
    }
    if low > high {
        return Err(format!("beginning of range ({low}) beyond end of range ({high}): {text}"));
    }
    if step == 0 {
        return Err(format!("step of range should be a positive number: {text}"));
    }
    Ok((low..=high).step_by(step as usize).fold(star, |bits, n| bits | 1 << n))
}

fn number_or_name(text: &str, bounds: &Bounds) -> Result<u32, String> {
    let lower = text.to_lowercase();
    match bounds.names.iter().position(|name| *name == lower) {
        Some(at) => Ok(bounds.low + at as u32),
        None => number(text),
    }
}

fn number(text: &str) -> Result<u32, String> {
    let n: i64 = text.parse().map_err(|_| {
        let why = format!("strconv.Atoi: parsing {}: invalid syntax", quote(text));
        format!("failed to parse int from {text}: {why}")
    })?;
    u32::try_from(n).map_err(|_| format!("negative number ({n}) not allowed: {text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(text: &str) -> String {
        Schedule::parse(text).unwrap_err()
    }

    #[test]
    fn schedules() {
        let Schedule::Fields(fields) = Schedule::parse("*/15 0-2 1,15 jan MON-fri").unwrap() else { panic!() };
        assert_eq!(fields.minute, 1 | 1 << 15 | 1 << 30 | 1 << 45);
        assert_eq!(fields.hour, 0b111);
        assert_eq!(fields.month, 0b10);
        assert_eq!(fields.weekday, 0b111110);
        assert_eq!(Schedule::parse("@hourly"), Schedule::parse("0 * * * *"));
        assert_eq!(Schedule::parse("@every 1h30m"), Ok(Schedule::Every(5400)));
    }

    #[test]
    fn what_is_wrong_with_schedules() {
        assert_eq!(wrong("x"), "expected exactly 5 fields, found 1: [x]");
        assert_eq!(wrong("60 * * * *"), "end of range (60) above maximum (59): 60");
        assert_eq!(wrong("* * 0 * *"), "beginning of range (0) below minimum (1): 0");
        assert_eq!(wrong("a * * * *"), "failed to parse int from a: strconv.Atoi: parsing \"a\": invalid syntax");
        assert_eq!(wrong("*/0 * * * *"), "step of range should be a positive number: */0");
        assert_eq!(wrong("@never"), "unrecognized descriptor: @never");
    }
}

//! Tables: the columns and cells that `kubectl get` shows, as upstream's server prints them.
//!
//! What a cell says may depend on the time of the request (ages), so cells are kept in a form from which the text is
//! made when it is asked for: an object is looked at once, however often it is shown.

use std::borrow::Cow;

use crate::Value;
use crate::resources::{Row, Text};

/// A column of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// Heading.
    pub name: Text,
    /// `string`, `integer` …
    pub kind: Text,
    /// `name` for the column that names the object; else mostly empty.
    pub format: Text,
    /// Description.
    pub description: Text,
    /// Above 0: shown only by `-o wide`.
    pub priority: i32,
}

/// A cell.
#[derive(Debug, Clone, PartialEq)]
pub enum Cell {
    /// The same at all times.
    Is(Value),
    /// An age: what stands before it, since when (seconds since 1970), what stands after it.
    Since(Cow<'static, str>, i64, Cow<'static, str>),
}

impl Cell {
    /// The age of a time as RFC 3339 has it; `<unknown>` where there is none.
    pub fn age(time: &Value) -> Self {
        match time.as_str().and_then(seconds) {
            Some(at) => Cell::Since("".into(), at, "".into()),
            None => Cell::Is("<unknown>".into()),
        }
    }

    /// What the cell shows at a time, in seconds since 1970.
    pub fn at(&self, now: i64) -> Cow<'_, Value> {
        match self {
            Cell::Is(value) => Cow::Borrowed(value),
            Cell::Since(before, at, after) => Cow::Owned(format!("{before}{}{after}", duration(now - at)).into()),
        }
    }
}

/// Seconds since 1970 of a time in RFC 3339.
pub fn seconds(time: &str) -> Option<i64> {
    time.parse::<jiff::Timestamp>().ok().map(|time| time.as_second())
}

/// A duration in seconds as kubectl shows ages: two units at most, the second only while the first is small.
pub fn duration(seconds: i64) -> String {
    const MINUTE: i64 = 60;
    const HOUR: i64 = 60 * MINUTE;
    const DAY: i64 = 24 * HOUR;
    const YEAR: i64 = 365 * DAY;
    let two = |first: i64, unit: &str, second: i64, small: &str| match second {
        0 => format!("{first}{unit}"),
        _ => format!("{first}{unit}{second}{small}"),
    };
    match seconds {
        // A clock that is a little behind is no news.
        i64::MIN..=-2 => "<invalid>".into(),
        -1 => "0s".into(),
        0..120 => format!("{seconds}s"),
        120..600 => two(seconds / MINUTE, "m", seconds % MINUTE, "s"),
        600..10_800 => format!("{}m", seconds / MINUTE),
        10_800..28_800 => two(seconds / HOUR, "h", seconds / MINUTE % 60, "m"),
        28_800..172_800 => format!("{}h", seconds / HOUR),
        _ if seconds < 8 * DAY => two(seconds / DAY, "d", seconds / HOUR % 24, "h"),
        _ if seconds < 2 * YEAR => format!("{}d", seconds / DAY),
        _ if seconds < 8 * YEAR => two(seconds / YEAR, "y", seconds / DAY % 365, "d"),
        _ => format!("{}y", seconds / YEAR),
    }
}

/// How objects of a kind are printed.
pub struct Printer {
    /// The columns.
    pub columns: &'static [Column],
    /// The cells of an object in the stored version.
    pub cells: fn(&Value) -> Vec<Cell>,
}

/// The columns of a resource's tables.
pub fn columns(row: &Row) -> Cow<'static, [Column]> {
    match printer(row) {
        Some(printer) => Cow::Borrowed(printer.columns),
        None => Cow::Owned(plain_columns()),
    }
}

/// The cells of an object, which is in the stored version.
pub fn cells(row: &Row, object: &Value) -> Vec<Cell> {
    match printer(row) {
        Some(printer) => (printer.cells)(object),
        None => plain_cells(object),
    }
}

/// The printer of a kind; the others show name and time of creation.
fn printer(_row: &Row) -> Option<&'static Printer> {
    None
}

const NAME: &str = "Name must be unique within a namespace. Is required when creating resources, although some \
                    resources may allow a client to request the generation of an appropriate name automatically. Name \
                    is primarily intended for creation idempotence and configuration definition. Cannot be updated. \
                    More info: https://kubernetes.io/docs/concepts/overview/working-with-objects/names#names";
const CREATED: &str = "CreationTimestamp is a timestamp representing the server time when this object was created. It \
                       is not guaranteed to be set in happens-before order across separate operations. Clients may \
                       not set this value. It is represented in RFC3339 form and is in UTC.\n\nPopulated by the \
                       system. Read-only. Null for lists. More info: \
                       https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata";

fn plain_columns() -> Vec<Column> {
    let column = |name: &'static str, kind: &'static str, format: &'static str, description: &'static str| Column {
        name: name.into(),
        kind: kind.into(),
        format: format.into(),
        description: description.into(),
        priority: 0,
    };
    vec![column("Name", "string", "name", NAME), column("Created At", "date", "", CREATED)]
}

fn plain_cells(object: &Value) -> Vec<Cell> {
    let metadata = &object["metadata"];
    let created = match metadata["creationTimestamp"].as_str() {
        Some(time) => time.to_string(),
        None => "0001-01-01T00:00:00Z".to_string(),
    };
    vec![Cell::Is(metadata["name"].clone()), Cell::Is(created.into())]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_as_kubectl_shows_them() {
        let want = [
            (-5, "<invalid>"),
            (-1, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (125, "2m5s"),
            (600, "10m"),
            (3 * 3600 - 1, "179m"),
            (3 * 3600, "3h"),
            (3 * 3600 + 60, "3h1m"),
            (8 * 3600, "8h"),
            (48 * 3600 - 1, "47h"),
            (48 * 3600, "2d"),
            (49 * 3600, "2d1h"),
            (8 * 86400, "8d"),
            (2 * 365 * 86400, "2y"),
            (2 * 365 * 86400 + 86400, "2y1d"),
            (8 * 365 * 86400, "8y"),
        ];
        for (seconds, text) in want {
            assert_eq!(duration(seconds), text, "{seconds}");
        }
    }
}

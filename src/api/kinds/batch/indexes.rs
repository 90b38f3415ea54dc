//! Sets of indexes as texts: `1,3-5,7`.

use crate::field::quote;

/// The number of indexes in a text, which are all below `completions` and increase.
///
/// # Errors
/// Upstream's words on what is wrong.
pub fn count(text: &str, completions: i64) -> Result<i64, String> {
    let (mut last, mut total) = (None, 0);
    for interval in text.split(',').filter(|_| !text.is_empty()) {
        let (x, y) = parse(interval, completions)?;
        if let Some(last) = last.filter(|last| *last >= x) {
            return Err(format!("non-increasing order, previous: {last}, current: {x}"));
        }
        total += y - x + 1;
        last = Some(y);
    }
    Ok(total)
}

fn parse(interval: &str, completions: i64) -> Result<(i64, i64), String> {
    let parts: Vec<&str> = interval.split('-').collect();
    if parts.len() > 2 {
        return Err(format!(
            "the fragment {} violates the requirement that an index interval can have at most two parts separated by '-'",
            quote(interval)
        ));
    }
    let number = |text: &str| -> Result<i64, String> {
        let n: i64 =
            text.parse().map_err(|_| format!("cannot convert string to integer for index: {}", quote(text)))?;
        if n >= completions { Err(format!("too large index: {}", quote(text))) } else { Ok(n) }
    };
    let x = number(parts[0])?;
    let Some(y) = parts.get(1) else { return Ok((x, x)) };
    let y = number(y)?;
    if x >= y {
        return Err(format!("non-increasing order, previous: {x}, current: {y}"));
    }
    Ok((x, y))
}

/// The first index that is in both texts; intervals that can't be read are passed over.
pub fn overlap(a: &str, b: &str, completions: i64) -> Option<i64> {
    let all = |text: &str| -> Vec<(i64, i64)> { text.split(',').filter_map(|i| parse(i, completions).ok()).collect() };
    let (a, b) = (all(a), all(b));
    let (mut i, mut j) = (0, 0);
    while let (Some(&(ax, ay)), Some(&(bx, by))) = (a.get(i), b.get(j)) {
        if ax <= by && bx <= ay {
            return Some(ax.max(bx));
        }
        if ax <= bx { i += 1 } else { j += 1 }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_indexes() {
        assert_eq!(count("", 5), Ok(0));
        assert_eq!(count("0,2-4", 5), Ok(4));
        assert_eq!(count("2,1", 5).unwrap_err(), "non-increasing order, previous: 2, current: 1");
        assert_eq!(count("5", 5).unwrap_err(), "too large index: \"5\"");
        assert!(count("1-2-3", 5).unwrap_err().starts_with("the fragment"));
        assert_eq!(overlap("0,2-4", "1,4", 5), Some(4));
        assert_eq!(overlap("0,2", "1,3", 5), None);
    }
}

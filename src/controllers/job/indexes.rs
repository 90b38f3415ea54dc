//! Sets of completion indexes. They may have many members, and are kept as the ranges that the API writes: `0-2,5`.

use std::fmt;

/// Ranges, first to last: sorted, and never two that touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Indexes(Vec<(i32, i32)>);

impl Indexes {
    /// Reads `0-2,5`, as far as it lies below `limit`. What can't be read is left out.
    pub(super) fn parse(text: &str, limit: i32) -> Self {
        let range = |part: &str| -> Option<(i32, i32)> {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (first.parse::<i32>().ok()?, last.parse::<i32>().ok()?);
            (first <= last.min(limit - 1)).then(|| (first, last.min(limit - 1)))
        };
        Self::of(text.split(',').filter_map(range).collect())
    }

    fn of(mut ranges: Vec<(i32, i32)>) -> Self {
        ranges.sort_unstable();
        let mut joined: Vec<(i32, i32)> = Vec::new();
        for (first, last) in ranges {
            match joined.last_mut() {
                Some((_, end)) if first <= end.saturating_add(1) => *end = last.max(*end),
                _ => joined.push((first, last)),
            }
        }
        Self(joined)
    }

    /// Those that are here or there.
    pub(super) fn union(&self, other: &Self) -> Self {
        Self::of(self.0.iter().chain(&other.0).copied().collect())
    }

    pub(super) fn contains(&self, index: i32) -> bool {
        let at = self.0.partition_point(|(_, last)| *last < index);
        self.0.get(at).is_some_and(|(first, _)| *first <= index)
    }

    pub(super) fn len(&self) -> i32 {
        let total: i64 = self.0.iter().map(|(first, last)| i64::from(*last) - i64::from(*first) + 1).sum();
        i32::try_from(total).unwrap_or(i32::MAX)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many are here and there.
    pub(super) fn common(&self, other: &Self) -> i32 {
        self.len().saturating_add(other.len()).saturating_sub(self.union(other).len())
    }

    /// Those below `limit` that are not here, in order.
    pub(super) fn missing(&self, limit: i32) -> impl Iterator<Item = i32> {
        let starts = std::iter::once(0).chain(self.0.iter().map(|(_, last)| last.saturating_add(1)));
        let ends = self.0.iter().map(|(first, _)| *first).chain([limit]);
        starts.zip(ends).flat_map(move |(start, end)| start..end.min(limit))
    }
}

impl FromIterator<i32> for Indexes {
    fn from_iter<I: IntoIterator<Item = i32>>(indexes: I) -> Self {
        Self::of(indexes.into_iter().map(|index| (index, index)).collect())
    }
}

/// Two neighbours are written apart: `0,1`.
impl fmt::Display for Indexes {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (first, last)) in self.0.iter().enumerate() {
            if at > 0 {
                out.write_str(",")?;
            }
            match last - first {
                0 => write!(out, "{first}")?,
                1 => write!(out, "{first},{last}")?,
                _ => write!(out, "{first}-{last}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Indexes {
        Indexes::parse(text, 100)
    }

    #[test]
    fn ranges_are_read_and_written_as_the_api_has_them() {
        assert_eq!(read("0-3,5,7,8").to_string(), "0-3,5,7,8");
        assert_eq!(read("0,1,2").to_string(), "0-2");
        assert_eq!(Indexes::parse("1-7,9", 5).to_string(), "1-4", "a Job that has shrunk forgets the rest");
        assert_eq!(read("x,3-,4").to_string(), "4");
        assert!(read("").is_empty());
    }

    #[test]
    fn a_set_of_millions_is_asked_without_counting_them() {
        let most = Indexes::parse("0-1999999990", i32::MAX);
        assert_eq!(most.len(), 1_999_999_991);
        assert_eq!(most.missing(i32::MAX).next(), Some(1_999_999_991));
        assert!(most.contains(77) && !most.contains(1_999_999_991));
    }

    #[test]
    fn sets_are_joined_and_compared() {
        let (a, b) = (read("0-4,8"), read("3-6"));
        assert_eq!(a.union(&b).to_string(), "0-6,8");
        assert_eq!(a.common(&b), 2);
        assert_eq!(a.missing(11).collect::<Vec<_>>(), [5, 6, 7, 9, 10]);
        assert_eq!([3, 1, 2, 1].into_iter().collect::<Indexes>().to_string(), "1-3");
    }
}

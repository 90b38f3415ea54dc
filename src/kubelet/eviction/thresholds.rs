//! When a node is short of something: what the configuration says, and how long it has been so.

use crate::config::Config;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// What is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Signal {
    /// `memory.available`
    Memory,
    /// `nodefs.available`
    Disk,
    /// `nodefs.inodesFree`
    Inodes,
    /// `imagefs.available`
    ImageDisk,
    /// `imagefs.inodesFree`
    ImageInodes,
    /// `pid.available`
    Pids,
}

impl Signal {
    fn parse(name: &str) -> Result<Self, String> {
        Ok(match name {
            "memory.available" => Signal::Memory,
            "nodefs.available" => Signal::Disk,
            "nodefs.inodesFree" => Signal::Inodes,
            "imagefs.available" => Signal::ImageDisk,
            "imagefs.inodesFree" => Signal::ImageInodes,
            "pid.available" => Signal::Pids,
            _ => return Err(format!("unsupported eviction signal {name}")),
        })
    }

    /// The resource as messages name it.
    pub fn resource(self) -> &'static str {
        match self {
            Signal::Memory => "memory",
            Signal::Disk | Signal::ImageDisk => "ephemeral-storage",
            Signal::Inodes | Signal::ImageInodes => "inodes",
            Signal::Pids => "pids",
        }
    }
}

/// An amount, or a part of a whole.
#[derive(Clone, Debug, PartialEq)]
pub enum Least {
    /// So much.
    Amount(i64),
    /// So many hundredths of the whole.
    Percent(f64),
}

impl Least {
    fn parse(text: &str) -> Option<Self> {
        let least = match text.strip_suffix('%') {
            Some(percent) => Least::Percent(percent.parse().ok().filter(|percent| (0.0..=100.0).contains(percent))?),
            None => Least::Amount(api::quantity::Quantity::parse(text).ok().map(|amount| amount.value())?),
        };
        Some(least).filter(|least| !matches!(least, Least::Amount(..0)))
    }

    /// In units, given the whole.
    pub fn of(&self, whole: u64) -> u64 {
        match self {
            Least::Amount(amount) => (*amount).max(0) as u64,
            Least::Percent(percent) => (whole as f64 * percent / 100.0) as u64,
        }
    }

    fn is_zero(&self) -> bool {
        matches!(self, Least::Amount(0)) || matches!(self, Least::Percent(percent) if *percent == 0.0)
    }
}

/// How little of something is too little.
#[derive(Clone, Debug, PartialEq)]
pub struct Threshold {
    /// Of what.
    pub signal: Signal,
    /// How little.
    pub least: Least,
    /// How long a soft threshold must be passed before it evicts; `None` is a hard one.
    pub grace: Option<Duration>,
    /// What is freed beyond the threshold before it counts as kept again.
    pub reclaim: Option<Least>,
}

/// The thresholds of the configuration, hard ones first. A threshold of nothing is none.
///
/// # Errors
/// Names the signal or the text that makes no sense.
pub fn thresholds(config: &Config) -> Result<Vec<Threshold>, String> {
    let least =
        |name: &str, text: &str| Least::parse(text).ok_or_else(|| format!("invalid eviction threshold {name}<{text}"));
    let mut found = Vec::new();
    for (name, text) in config.eviction_hard() {
        found.push(Threshold {
            signal: Signal::parse(&name)?,
            least: least(&name, &text)?,
            grace: None,
            reclaim: None,
        });
    }
    for (name, text) in &config.eviction_soft {
        let grace = config.eviction_soft_grace_period.get(name);
        let grace =
            grace.ok_or_else(|| format!("grace period must be specified for the soft eviction threshold {name}"))?;
        let grace = base::clock::parse_duration(grace).ok_or_else(|| format!("time: invalid duration {grace:?}"))?;
        let signal = Signal::parse(name)?;
        found.push(Threshold { signal, least: least(name, text)?, grace: Some(grace), reclaim: None });
    }
    for name in config.eviction_soft_grace_period.keys() {
        Signal::parse(name)?;
    }
    for (name, text) in &config.eviction_minimum_reclaim {
        let (signal, amount) = (Signal::parse(name)?, least(name, text)?);
        found.iter_mut().filter(|t| t.signal == signal).for_each(|t| t.reclaim = Some(amount.clone()));
    }
    found.retain(|threshold| !threshold.least.is_zero());
    Ok(found)
}

/// What there is and what is left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stock {
    /// All of it.
    pub whole: u64,
    /// What nobody uses.
    pub left: u64,
}

/// A threshold that is passed, with its numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Shortage {
    /// Of what.
    pub signal: Signal,
    /// How much there should be.
    pub threshold: u64,
    /// How much there is.
    pub left: u64,
    /// Is it a soft threshold's?
    pub soft: bool,
}

/// What is short now.
#[derive(Debug, Default, PartialEq)]
pub struct Look {
    /// What the node's conditions tell: also soft thresholds that were passed a moment ago.
    pub short: Vec<Shortage>,
    /// What pods must go for.
    pub due: Vec<Shortage>,
}

/// Remembers since when thresholds are passed.
#[derive(Debug, Default)]
pub struct Memory {
    since: BTreeMap<(Signal, bool), Instant>,
}

impl Memory {
    /// What is short, given what is left. A threshold that was passed before is kept again only with its reclaim.
    pub fn look(&mut self, now: Instant, stock: &BTreeMap<Signal, Stock>, thresholds: &[Threshold]) -> Look {
        let mut look = Look::default();
        let mut passed = BTreeSet::new();
        for threshold in thresholds {
            let Some(stock) = stock.get(&threshold.signal).filter(|stock| stock.whole > 0) else { continue };
            let key = (threshold.signal, threshold.grace.is_some());
            let least = threshold.least.of(stock.whole);
            let held = self.since.contains_key(&key);
            let more = threshold.reclaim.as_ref().filter(|_| held).map_or(0, |reclaim| reclaim.of(stock.whole));
            if stock.left >= least.saturating_add(more) {
                continue;
            }
            passed.insert(key);
            let short = Shortage { signal: key.0, threshold: least, left: stock.left, soft: key.1 };
            let since = *self.since.entry(key).or_insert(now);
            if now.duration_since(since) >= threshold.grace.unwrap_or_default() {
                look.due.push(short.clone());
            }
            look.short.push(short);
        }
        self.since.retain(|key, _| passed.contains(key));
        look
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn config(hard: &[(&str, &str)]) -> Config {
        Config { eviction_hard: Some(map(hard)), ..Default::default() }
    }

    fn left(signal: Signal, whole: u64, left: u64) -> BTreeMap<Signal, Stock> {
        BTreeMap::from([(signal, Stock { whole, left })])
    }

    #[test]
    fn thresholds_are_amounts_or_parts_of_the_whole() {
        let limits = thresholds(&config(&[("memory.available", "100Mi"), ("nodefs.available", "10%")])).unwrap();
        let mut stock = left(Signal::Memory, 1 << 30, 50 << 20);
        stock.extend(left(Signal::Disk, 1000, 100));
        let look = Memory::default().look(Instant::now(), &stock, &limits);
        let short = Shortage { signal: Signal::Memory, threshold: 100 << 20, left: 50 << 20, soft: false };
        assert_eq!(look, Look { short: vec![short.clone()], due: vec![short] });
    }

    #[test]
    fn what_makes_no_sense_is_refused_by_name_and_nothing_is_no_threshold() {
        assert_eq!(thresholds(&config(&[("nope", "1")])).unwrap_err(), "unsupported eviction signal nope");
        assert!(thresholds(&config(&[("memory.available", "101%")])).is_err());
        assert!(thresholds(&config(&[("memory.available", "-1")])).is_err());
        assert_eq!(thresholds(&config(&[("memory.available", "0%"), ("pid.available", "0")])).unwrap(), []);
        let soft = Config { eviction_soft: map(&[("pid.available", "10")]), ..config(&[]) };
        let error = thresholds(&soft).unwrap_err();
        assert_eq!(error, "grace period must be specified for the soft eviction threshold pid.available");
    }

    #[test]
    fn a_soft_threshold_evicts_after_its_grace_and_shows_pressure_at_once() {
        let soft = Config {
            eviction_soft: map(&[("pid.available", "10")]),
            eviction_soft_grace_period: map(&[("pid.available", "1m")]),
            ..config(&[])
        };
        let limits = thresholds(&soft).unwrap();
        let (mut memory, start) = (Memory::default(), Instant::now());
        let mut at = |seconds, pids| {
            let look = memory.look(start + Duration::from_secs(seconds), &left(Signal::Pids, 100, pids), &limits);
            (look.short.len(), look.due.len())
        };
        assert_eq!(at(0, 9), (1, 0));
        assert_eq!(at(59, 9), (1, 0));
        assert_eq!(at(60, 9), (1, 1));
        assert_eq!(at(70, 10), (0, 0));
        assert_eq!(at(80, 9), (1, 0), "the time starts anew");
    }

    #[test]
    fn what_was_short_is_kept_again_only_with_its_reclaim() {
        let config =
            Config { eviction_minimum_reclaim: map(&[("pid.available", "5")]), ..config(&[("pid.available", "10")]) };
        let limits = thresholds(&config).unwrap();
        let mut memory = Memory::default();
        let mut due = |pids| memory.look(Instant::now(), &left(Signal::Pids, 100, pids), &limits).due.len();
        assert_eq!([due(12), due(9), due(12), due(15), due(12)], [0, 1, 1, 0, 0]);
    }
}

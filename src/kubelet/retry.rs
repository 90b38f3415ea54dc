//! Waiting before another try.

use std::time::Duration;

/// 0.2 s, doubling to 10 s, each with up to a fifth of chance.
pub fn delays() -> impl Iterator<Item = Duration> + Send {
    let base = std::iter::successors(Some(0.2f64), |delay| Some((delay * 2.0).min(10.0)));
    base.map(|delay| Duration::from_secs_f64(delay * (1.0 + rand::random_range(0.0..0.2))))
}

//! A figure: samples of one measure, and what they are held against.

use serde_json::json;

/// Samples of a measure.
#[derive(Debug, Clone, PartialEq)]
pub struct Figure {
    /// What was measured, in a few words.
    pub measure: String,
    /// Unit of the samples.
    pub unit: &'static str,
    /// The samples.
    pub samples: Vec<f64>,
    /// What is promised: not more than this.
    pub goal: Option<f64>,
    /// How it was taken.
    pub how: String,
}

impl Figure {
    /// A figure without a promise.
    pub fn new(measure: impl Into<String>, unit: &'static str, samples: Vec<f64>, how: impl Into<String>) -> Self {
        Self { measure: measure.into(), unit, samples, goal: None, how: how.into() }
    }

    /// With what is promised.
    #[must_use]
    pub fn at_most(mut self, goal: f64) -> Self {
        self.goal = Some(goal);
        self
    }

    /// Smallest, median, largest.
    fn spread(&self) -> [f64; 3] {
        let mut sorted = self.samples.clone();
        sorted.sort_by(f64::total_cmp);
        match sorted.as_slice() {
            [] => [f64::NAN; 3],
            all => [all[0], median(all), all[all.len() - 1]],
        }
    }

    /// For people.
    pub fn line(&self, bench: &str) -> String {
        let [least, middle, most] = self.spread();
        let unit = self.unit;
        let value = match self.samples.len() {
            1 => format!("{} {unit}", short(middle)),
            n => format!("{} / {} / {} {unit} (min / median / max of {n})", short(least), short(middle), short(most)),
        };
        let verdict = self.goal.map_or_else(String::new, |goal| {
            let word = if middle <= goal { "holds" } else { "MISSED" };
            format!("; promised at most {} {unit}: {word}", short(goal))
        });
        format!("{bench:<14} {}: {value}{verdict}\n{:<14}   {}", self.measure, "", self.how)
    }

    /// For programs.
    pub fn json(&self, bench: &str) -> String {
        let [min, median, max] = self.spread();
        let Self { measure, unit, samples, goal, how } = self;
        json!({"bench": bench, "measure": measure, "unit": unit, "min": min, "median": median, "max": max,
            "samples": samples, "goal": goal, "how": how})
        .to_string()
    }
}

fn median(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[middle] } else { f64::midpoint(sorted[middle - 1], sorted[middle]) }
}

/// Three digits that count.
fn short(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 0.1 || v == 0.0 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_is_held_against_its_median() {
        let figure = Figure::new("x", "ms", vec![3.0, 1.0, 200.0], "by hand").at_most(3.0);
        assert!(
            figure
                .line("b")
                .contains("1.00 / 3.00 / 200 ms (min / median / max of 3); promised at most 3.00 ms: holds")
        );
        assert_eq!(median(&[1.0, 2.0]), 1.5);
        assert!(Figure::new("x", "ms", vec![4.0], "").at_most(3.0).line("b").contains("MISSED"));
    }
}

//! The numbers of one step, by name. Owns the rule that only finite numbers are kept; knows no sink.

use std::collections::BTreeMap;

/// Names and finite numbers, sorted by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metrics {
    values: BTreeMap<String, f64>,
    skipped: usize,
}

impl Metrics {
    /// The name under which every sink gets the number of values that were not finite, where there were any.
    pub const SKIPPED: &'static str = "monitor/skipped_non_finite";

    /// No metrics.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets a metric. NaN and infinities are left out and counted.
    pub fn set(&mut self, name: impl Into<String>, value: f64) {
        if value.is_finite() {
            self.values.insert(name.into(), value);
        } else {
            self.skipped += 1;
            self.values.insert(Self::SKIPPED.into(), self.skipped as f64);
        }
    }

    /// A metric's value.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.values.get(name).copied()
    }

    /// Takes over all of `other`; its values win, counts of skipped values add up.
    pub fn extend(&mut self, other: Metrics) {
        let skipped = self.skipped + other.skipped;
        self.values.extend(other.values);
        self.skipped = skipped;
        if skipped > 0 {
            self.values.insert(Self::SKIPPED.into(), skipped as f64);
        }
    }

    /// All metrics in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, f64)> {
        self.values.iter().map(|(name, value)| (name.as_str(), *value))
    }

    /// How many values were not finite.
    pub fn skipped(&self) -> usize {
        self.skipped
    }

    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }
}

impl<N: Into<String>> FromIterator<(N, f64)> for Metrics {
    fn from_iter<I: IntoIterator<Item = (N, f64)>>(values: I) -> Self {
        let mut out = Metrics::new();
        for (name, value) in values {
            out.set(name, value);
        }
        out
    }
}

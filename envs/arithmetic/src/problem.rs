//! A problem with its answer. Owns which split it belongs to; must not know how it was made.

use prl_env::Rng;
use prl_numbers::Rational;

/// One problem in so many is kept for the eval split.
const EVAL_SHARE: u64 = 8;

/// What the answer counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Things, or nothing.
    Plain,
    /// Percent: a percent sign after it changes nothing.
    Percent,
}

/// A problem.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    /// `calculation` or `story`.
    pub kind: &'static str,
    /// What is asked.
    pub question: String,
    /// The only right answer; a decimal that ends.
    pub answer: Rational,
    /// What it counts.
    pub unit: Unit,
    /// Lines such as `3 * 4 = 12`, the last of which ends in the answer.
    pub working: Vec<String>,
    /// What makes it this problem and no other, apart from words and order.
    pub identity: Vec<u64>,
}

impl Problem {
    /// Whether it is kept for the eval split.
    pub fn in_eval(&self) -> bool {
        Rng::from_parts(&self.identity).next_u64().is_multiple_of(EVAL_SHARE)
    }
}

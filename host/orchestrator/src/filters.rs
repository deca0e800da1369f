//! Rollout filters: what they detect and how a slot of them is applied. Knows nothing of batches.

use crate::{Filter, FilterKind};
use prl_types::{Rollout, Sample};

impl FilterKind {
    /// The name in metrics and records.
    pub fn name(&self) -> &'static str {
        match self {
            FilterKind::Gibberish { .. } => "gibberish",
            FilterKind::Repetition { .. } => "repetition",
            FilterKind::ZeroAdvantage => "zero_advantage",
        }
    }

    fn detects(&self, rollout: &Rollout, vocab_size: usize) -> bool {
        match *self {
            FilterKind::Gibberish { token_id_threshold, logprob_offset } => {
                let floor = -(vocab_size.max(1) as f64).ln() - logprob_offset;
                rollout.samples.iter().any(|s| {
                    sampled(s).any(|i| s.token_ids()[i] > token_id_threshold && f64::from(s.logprobs()[i]) < floor)
                })
            }
            FilterKind::Repetition { window, prob_threshold } => {
                let bound = prob_threshold.ln();
                rollout.samples.iter().any(|s| {
                    let mut run = 0;
                    sampled(s).any(|i| {
                        run = if f64::from(s.logprobs()[i]) > bound { run + 1 } else { 0 };
                        run >= window.max(1)
                    })
                })
            }
            FilterKind::ZeroAdvantage => {
                let mut streams = rollout.streams.iter().filter_map(|s| s.advantages.as_ref()).peekable();
                streams.peek().is_some() && streams.flatten().all(|a| *a == 0.0)
            }
        }
    }
}

/// Applies a slot of filters in order. Monitors only add their name; the first enforced match takes the rollout out and
/// ends the search. Gives the name of the one that did.
pub(crate) fn apply(filters: &[Filter], rollout: &mut Rollout, vocab_size: usize) -> Option<&'static str> {
    for filter in filters {
        if filter.kind.detects(rollout, vocab_size) {
            flag(rollout, filter.kind.name());
            if filter.enforce {
                rollout.is_filtered = true;
                return Some(filter.kind.name());
            }
        }
    }
    None
}

/// Adds a filter's name once.
pub(crate) fn flag(rollout: &mut Rollout, name: &str) {
    if !rollout.filters.iter().any(|f| f == name) {
        rollout.filters.push(name.to_owned());
    }
}

fn sampled(sample: &Sample) -> impl Iterator<Item = usize> + '_ {
    sample.mask().iter().enumerate().filter(|(_, m)| **m).map(|(i, _)| i)
}

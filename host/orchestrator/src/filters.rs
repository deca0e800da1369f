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

#[cfg(test)]
mod tests {
    use super::*;
    use prl_types::{FinishReason, GroupId, PolicyVersion, RolloutId, Sampled, Task};
    use std::sync::Arc;

    const VOCAB: usize = 1000;

    /// A rollout of samples; of each turn ids with log-probabilities, and a token of the environment's behind it.
    fn rollout(samples: &[&[&[(u32, f32)]]]) -> Rollout {
        let task = Task {
            env: "e".into(),
            split: "train".into(),
            index: 0,
            seed: 0,
            key: "k".into(),
            prompt: Vec::new(),
            tools: Vec::new(),
            answer: None,
            payload: Default::default(),
            max_turns: None,
            tags: Vec::new(),
        };
        let mut rollout = Rollout::new(RolloutId { group: GroupId(0), member: 0 }, Arc::new(task), PolicyVersion(0));
        for turns in samples {
            // Neither of these would pass a filter if it had been sampled.
            let mut sample = Sample::from_prompt(&[999_999], Vec::new(), 1.0);
            for turn in *turns {
                let (ids, logprobs) = turn.iter().copied().unzip();
                let v = PolicyVersion(0);
                let turn = Sampled::from_engine(ids, logprobs, (v, v), FinishReason::Length);
                sample.push_sampled(&turn.expect("finite"));
                sample.push_context(&[999_999], &[]);
            }
            rollout.samples.push(sample);
        }
        rollout
    }

    #[test]
    fn gibberish_is_a_rare_token_that_was_unlikely() {
        let kind = FilterKind::Gibberish { token_id_threshold: 500, logprob_offset: 2.0 };
        let floor = -(VOCAB as f32).ln() - 2.0;
        let found = |id, logprob| kind.detects(&rollout(&[&[&[(1, -0.1)], &[(id, logprob)]]]), VOCAB);
        assert!(found(501, floor - 0.01));
        // Both are needed, and neither bound is inside.
        assert!(!found(501, floor + 0.01) && !found(500, floor - 0.01) && !found(500, -0.1));
        assert!(!kind.detects(&rollout(&[]), VOCAB));
        // In any branch.
        assert!(kind.detects(&rollout(&[&[&[(1, -0.1)]], &[&[(600, -30.0)]]]), VOCAB));
    }

    #[test]
    fn repetition_is_a_run_of_tokens_that_were_certain() {
        let kind = FilterKind::Repetition { window: 3, prob_threshold: 0.5 };
        let (sure, unsure) = ((7, 0.6f32.ln()), (7, 0.5f32.ln()));
        let found = |samples: &[&[&[(u32, f32)]]]| kind.detects(&rollout(samples), VOCAB);
        assert!(found(&[&[&[unsure, sure, sure, sure]]]));
        assert!(!found(&[&[&[sure, sure, unsure, sure, sure]]]), "a run is interrupted");
        assert!(!found(&[&[&[unsure; 9]]]), "the bound is outside");
        // Sampled tokens follow each other over what the environment said, but not into another branch.
        assert!(found(&[&[&[sure, sure], &[sure]]]));
        assert!(!found(&[&[&[sure, sure]], &[&[sure]]]));
        let none = FilterKind::Repetition { window: 0, prob_threshold: 0.5 };
        assert!(!none.detects(&rollout(&[&[&[unsure]]]), VOCAB), "a window of 0 counts as one token");
    }

    #[test]
    fn monitors_name_and_the_first_enforced_match_takes_out() {
        let gibberish = FilterKind::Gibberish { token_id_threshold: 5, logprob_offset: 0.0 };
        let repetition = FilterKind::Repetition { window: 1, prob_threshold: 0.5 };
        let both = || rollout(&[&[&[(600, -30.0), (7, -0.1)]]]);
        let filters = |enforce: [bool; 2]| {
            [
                Filter { kind: gibberish.clone(), enforce: enforce[0] },
                Filter { kind: repetition.clone(), enforce: enforce[1] },
            ]
        };
        for (enforce, taken, names) in [
            ([false, false], None, &["gibberish", "repetition"][..]),
            ([false, true], Some("repetition"), &["gibberish", "repetition"]),
            ([true, true], Some("gibberish"), &["gibberish"]),
        ] {
            let mut rollout = both();
            assert_eq!(apply(&filters(enforce), &mut rollout, VOCAB), taken);
            assert_eq!(rollout.filters, names);
            assert_eq!(rollout.is_filtered, taken.is_some());
        }
    }
}

//! How large a batch is, in rollouts or in tokens, and how many more rollouts one needs. Pure arithmetic over what waits
//! for a batch; knows nothing of groups.

use crate::Settings;
use prl_types::Rollout;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Tokens of some rollouts that could train.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lengths {
    /// Their tokens, prompts included.
    pub tokens: u64,
    /// How many they are.
    pub rollouts: u64,
}

/// What a batch is cut by.
#[derive(Clone, Copy, Debug)]
enum Unit {
    Rollouts(usize),
    Tokens(usize),
}

/// The size of batches, with what is known of the length of rollouts.
#[derive(Clone, Debug)]
pub(crate) struct Size {
    unit: Unit,
    seq_len: usize,
    /// Of the last batch that had any.
    before: Lengths,
    /// Since it was cut.
    now: Lengths,
}

impl Size {
    pub(crate) fn new(settings: &Settings) -> Self {
        let unit = settings.token_batch_size.map_or(Unit::Rollouts(settings.batch_size), Unit::Tokens);
        let before = settings.resume.as_ref().map(|state| state.totals.lengths).unwrap_or_default();
        Size { unit, seq_len: settings.seq_len.max(1), before, now: Lengths::default() }
    }

    /// Counts a rollout that could train.
    pub(crate) fn add(&mut self, rollout: &Rollout) {
        self.now.tokens += rollout.total_tokens() as u64;
        self.now.rollouts += 1;
    }

    /// Begins the counts of the next batch, and gives what it starts from.
    pub(crate) fn cut(&mut self) -> Lengths {
        if self.now.rollouts > 0 {
            self.before = std::mem::take(&mut self.now);
        }
        self.before
    }

    /// Mean tokens of a rollout; as many as it may have where nothing is known.
    fn mean(&self) -> f64 {
        let (tokens, rollouts) = (self.before.tokens + self.now.tokens, self.before.rollouts + self.now.rollouts);
        if rollouts == 0 { self.seq_len as f64 } else { (tokens as f64 / rollouts as f64).max(1.0) }
    }

    /// Rollouts of a batch as far as settings tell: in tokens the fewest that can make one.
    pub(crate) fn rollouts(&self) -> usize {
        match self.unit {
            Unit::Rollouts(rollouts) => rollouts,
            Unit::Tokens(tokens) => tokens.div_ceil(self.seq_len),
        }
    }

    /// Rollouts of a batch, by the mean length.
    pub(crate) fn typical(&self) -> usize {
        match self.unit {
            Unit::Rollouts(rollouts) => rollouts,
            Unit::Tokens(tokens) => (tokens as f64 / self.mean()).ceil() as usize,
        }
    }

    /// Whether the waiting rollouts make a batch.
    pub(crate) fn is_reached(&self, pending: &VecDeque<Rollout>) -> bool {
        let (have, want) = self.filled(pending);
        have >= want
    }

    /// How much of a batch waits and how much it takes, in rollouts or tokens.
    pub(crate) fn filled(&self, pending: &VecDeque<Rollout>) -> (usize, usize) {
        match self.unit {
            Unit::Rollouts(rollouts) => (pending.len(), rollouts),
            Unit::Tokens(tokens) => (pending.iter().map(Rollout::total_tokens).sum(), tokens),
        }
    }

    /// How many of the waiting rollouts, from the first, make the batch: all of them where they are too few.
    pub(crate) fn take(&self, pending: &VecDeque<Rollout>) -> usize {
        match self.unit {
            Unit::Rollouts(rollouts) => rollouts.min(pending.len()),
            Unit::Tokens(tokens) => {
                let mut sum = 0;
                let short = pending.iter().take_while(|rollout| {
                    let wanted = sum < tokens;
                    sum += rollout.total_tokens();
                    wanted
                });
                short.count()
            }
        }
    }

    /// Rollouts that are still to be sampled for a batch, as far as can be told; 0 only where none is.
    pub(crate) fn missing(&self, pending: &VecDeque<Rollout>) -> usize {
        let (have, want) = self.filled(pending);
        let short = want.saturating_sub(have);
        match self.unit {
            Unit::Rollouts(_) => short,
            Unit::Tokens(_) => (short as f64 / self.mean()).ceil() as usize,
        }
    }

    /// Whether `batches` batches take more than what waits and the `coming` rollouts under way.
    pub(crate) fn wants(&self, batches: u64, pending: &VecDeque<Rollout>, coming: usize) -> bool {
        let (have, want) = self.filled(pending);
        match self.unit {
            Unit::Rollouts(_) => ((have + coming) as u64) < batches.saturating_mul(want as u64),
            Unit::Tokens(_) => have as f64 + coming as f64 * self.mean() < batches as f64 * want as f64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prl_types::{GroupId, PolicyVersion, RolloutId, Sample, Task};
    use std::sync::Arc;

    fn pending(lengths: &[usize]) -> VecDeque<Rollout> {
        let task = Arc::new(Task {
            env: "a".into(),
            split: "train".into(),
            index: 0,
            seed: 0,
            key: String::new(),
            prompt: vec![],
            tools: vec![],
            answer: None,
            payload: Default::default(),
            max_turns: None,
            tags: vec![],
        });
        let rollout = |n: &usize| Rollout {
            samples: vec![Sample::from_prompt(&vec![7; *n], vec![], 1.0)],
            ..Rollout::new(RolloutId { group: GroupId(0), member: 0 }, task.clone(), PolicyVersion(0))
        };
        lengths.iter().map(rollout).collect()
    }

    fn tokens(budget: usize) -> Size {
        Size::new(&Settings { token_batch_size: Some(budget), seq_len: 100, ..Settings::default() })
    }

    #[test]
    fn a_batch_of_tokens_takes_whole_rollouts_until_it_is_full() {
        let size = tokens(250);
        let waiting = pending(&[100, 90, 60, 10, 80]);
        assert_eq!((size.take(&waiting), size.is_reached(&waiting), size.missing(&waiting)), (3, true, 0));
        let waiting = pending(&[100, 90, 59]);
        assert_eq!((size.take(&waiting), size.is_reached(&waiting), size.missing(&waiting)), (3, false, 1));
        assert_eq!((size.rollouts(), size.typical()), (3, 3));
    }

    #[test]
    fn what_is_missing_follows_the_length_of_this_batch_and_the_one_before() {
        let mut size = tokens(250);
        assert_eq!(size.missing(&pending(&[])), 3);
        pending(&[10, 30]).iter().for_each(|rollout| size.add(rollout));
        assert_eq!((size.missing(&pending(&[10, 30])), size.typical()), (11, 13));
        assert_eq!(size.cut(), Lengths { tokens: 40, rollouts: 2 });
        assert_eq!(size.missing(&pending(&[])), 13);
        assert!(size.wants(1, &pending(&[]), 12) && !size.wants(1, &pending(&[]), 13));
        // A batch from which nothing could train tells nothing.
        assert_eq!(size.cut(), Lengths { tokens: 40, rollouts: 2 });
        let resume = Some(crate::Progress { lengths: size.cut(), ..crate::Progress::default() }.into());
        let again = Size::new(&Settings { token_batch_size: Some(250), resume, ..Settings::default() });
        assert_eq!(again.missing(&pending(&[])), 13);
    }

    #[test]
    fn a_batch_of_rollouts_counts_them() {
        let size = Size::new(&Settings { batch_size: 4, ..Settings::default() });
        let waiting = pending(&[1, 1, 1]);
        assert_eq!((size.take(&waiting), size.missing(&waiting), size.filled(&waiting)), (3, 1, (3, 4)));
        assert!(size.wants(2, &waiting, 4) && !size.wants(2, &waiting, 5));
    }
}

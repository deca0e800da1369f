//! Penalties on tokens that were there before. Owns the counts and what they do to logits; must not know where tokens come
//! from.

use crate::SamplingParams;
use prl_types::TokenId;
use std::collections::HashMap;

/// How often each token of a request was sampled; those of the prompt are there too where they count.
pub(crate) struct Seen {
    counts: HashMap<TokenId, u32>,
}

impl Seen {
    /// Before anything is sampled; `None` where nothing is penalised.
    pub fn new(sampling: &SamplingParams, prompt: &[TokenId]) -> Option<Self> {
        let prompt = if sampling.repetition_penalty == 1.0 { &[] } else { prompt };
        sampling.penalises().then(|| Seen { counts: prompt.iter().map(|id| (*id, 0)).collect() })
    }

    /// A token was sampled.
    pub fn push(&mut self, id: TokenId) {
        *self.counts.entry(id).or_insert(0) += 1;
    }

    /// Changes the logits.
    pub fn apply(&self, sampling: &SamplingParams, logits: &mut [f32]) {
        let repetition = sampling.repetition_penalty;
        // Each token's own, so that the order does not matter.
        for (id, count) in &self.counts {
            let Some(logit) = logits.get_mut(*id as usize) else { continue };
            let repeated = if *logit > 0.0 { *logit / repetition } else { *logit * repetition };
            let present = if *count > 0 { sampling.presence_penalty } else { 0.0 };
            *logit = repeated - sampling.frequency_penalty * *count as f32 - present;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_penalty_counts_what_it_should() {
        let logits = |sampling: SamplingParams| {
            let Some(mut seen) = Seen::new(&sampling, &[0, 1, 99]) else { return vec![] };
            [1, 1, 2, 3].into_iter().for_each(|id| seen.push(id));
            let mut logits = vec![2.0, 2.0, -2.0, f32::NEG_INFINITY, 2.0];
            seen.apply(&sampling, &mut logits);
            logits
        };
        const NEVER: f32 = f32::NEG_INFINITY;
        let plain = SamplingParams::default();
        assert!(logits(plain.clone()).is_empty());
        let frequency = SamplingParams { frequency_penalty: 0.5, ..plain.clone() };
        assert_eq!(logits(frequency), [2.0, 1.0, -2.5, NEVER, 2.0]);
        let presence = SamplingParams { presence_penalty: -0.5, ..plain.clone() };
        assert_eq!(logits(presence), [2.0, 2.5, -1.5, NEVER, 2.0]);
        let repetition = SamplingParams { repetition_penalty: 2.0, ..plain };
        assert_eq!(logits(repetition.clone()), [1.0, 1.0, -4.0, NEVER, 2.0]);
        let all = SamplingParams { frequency_penalty: 1.0, presence_penalty: 0.25, ..repetition };
        assert_eq!(logits(all), [1.0, -1.25, -5.25, NEVER, 2.0]);
    }
}

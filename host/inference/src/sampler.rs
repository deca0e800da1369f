//! Draws one token from one row of logits.
//!
//! Owns temperature, min-p, top-k and top-p, in the order and with the tie rules of vLLM. A pure function of the row,
//! the parameters and one uniform number; must not know about requests, caches or the model.

use crate::InferenceError;
use prl_types::TokenId;
use std::ops::RangeInclusive;

/// Logits per block of [`draw_from_all`].
const BLOCK: usize = 256;

/// What a repetition penalty may be: no logit overflows.
const REPETITION: RangeInclusive<f32> = 0.01..=100.0;

/// How the tokens of one request are drawn. `Default` is the plain softmax at temperature 1.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// Divides the logits; 0 takes the most likely token (and reports log-probabilities at temperature 1).
    pub temperature: f32,
    /// Keeps the `k` most likely tokens, and those tied with the last of them; `None` keeps all.
    pub top_k: Option<usize>,
    /// Keeps the fewest most likely tokens whose probabilities sum to at least this; 1 keeps all.
    pub top_p: f32,
    /// Drops tokens less likely than this fraction of the most likely one; 0 keeps all.
    pub min_p: f32,
    /// Bound on sampled tokens; `None` leaves the context limit as the only bound. With 0 only the prompt is scored.
    pub max_tokens: Option<usize>,
    /// Until so many tokens are sampled, stop token ids are not drawn and stop strings do not end the request.
    pub min_tokens: usize,
    /// Added to the logits of these tokens before anything is drawn; log-probabilities stay the model's own.
    pub logit_bias: Vec<(TokenId, f32)>,
    /// Taken from a token's logit once for each time that it was sampled; −2 to 2.
    pub frequency_penalty: f32,
    /// Taken from a token's logit if it was sampled; −2 to 2.
    pub presence_penalty: f32,
    /// Divides the logit of a token that is in the prompt or was sampled where it is above 0, and multiplies it where it
    /// is below; 1 changes nothing. It comes after the bias and before the other penalties.
    pub repetition_penalty: f32,
    /// How many of the likeliest tokens are told beside each sampled one; `None` tells none, and no rank.
    pub logprobs: Option<usize>,
    /// The same for the tokens of the prompt, whose keys and values are then computed anew.
    pub prompt_logprobs: Option<usize>,
    /// Ends the request when drawn; the drawn token is kept as the last of the ids.
    pub stop_token_ids: Vec<TokenId>,
    /// Ends the request when the decoded text of the sampled tokens contains one of these.
    pub stop: Vec<String>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        SamplingParams {
            temperature: 1.0,
            top_k: None,
            top_p: 1.0,
            min_p: 0.0,
            max_tokens: None,
            min_tokens: 0,
            logit_bias: Vec::new(),
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            repetition_penalty: 1.0,
            logprobs: None,
            prompt_logprobs: None,
            stop_token_ids: Vec::new(),
            stop: Vec::new(),
        }
    }
}

impl SamplingParams {
    /// The temperature at which log-probabilities are reported: the sampling temperature, or 1 for greedy decoding.
    /// A trainer that is to reproduce the log-probabilities must use this one.
    pub fn logprob_temperature(&self) -> f32 {
        if self.temperature == 0.0 { 1.0 } else { self.temperature }
    }

    /// Checks the ranges.
    ///
    /// # Errors
    /// [`InferenceError::InvalidSampling`] naming the first parameter that is out of range.
    pub fn validate(&self) -> Result<(), InferenceError> {
        let invalid = |name, value: String, want| Err(InferenceError::InvalidSampling { name, value, want });
        if !self.temperature.is_finite() || self.temperature < 0.0 {
            return invalid("temperature", self.temperature.to_string(), "a finite number of at least 0");
        }
        if self.temperature > 0.0 && !self.temperature.recip().is_finite() {
            return invalid("temperature", self.temperature.to_string(), "0 (greedy) or a normal positive number");
        }
        if self.top_k == Some(0) {
            return invalid("top_k", "0".into(), "at least 1, or nothing to keep all tokens");
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return invalid("top_p", self.top_p.to_string(), "above 0 and at most 1");
        }
        if !(0.0..=1.0).contains(&self.min_p) {
            return invalid("min_p", self.min_p.to_string(), "between 0 and 1");
        }
        if self.max_tokens == Some(0) && self.prompt_logprobs.is_none() {
            return invalid("max_tokens", "0".into(), "at least 1, or 0 with prompt_logprobs");
        }
        if self.max_tokens.is_some_and(|most| most < self.min_tokens) {
            return invalid("min_tokens", self.min_tokens.to_string(), "at most max_tokens");
        }
        if let Some((id, bias)) = self.logit_bias.iter().find(|(_, bias)| !bias.is_finite()) {
            return invalid("logit_bias", format!("{bias} for token {id}"), "a finite number");
        }
        for (name, value) in
            [("frequency_penalty", self.frequency_penalty), ("presence_penalty", self.presence_penalty)]
        {
            if !(-2.0..=2.0).contains(&value) {
                return invalid(name, value.to_string(), "between -2 and 2");
            }
        }
        if !REPETITION.contains(&self.repetition_penalty) {
            return invalid("repetition_penalty", self.repetition_penalty.to_string(), "between 0.01 and 100");
        }
        if self.stop.iter().any(String::is_empty) {
            return invalid("stop", "\"\"".into(), "strings that are not empty");
        }
        Ok(())
    }

    /// Whether what came before changes what is likely.
    pub(crate) fn penalises(&self) -> bool {
        self.frequency_penalty != 0.0 || self.presence_penalty != 0.0 || self.repetition_penalty != 1.0
    }

    pub(crate) fn keeps_all(&self) -> bool {
        self.top_k.is_none() && self.top_p >= 1.0 && self.min_p <= 0.0
    }
}

/// Draws a token. `uniform` lies in `[0, 1)`; greedy decoding ignores it.
///
/// Order: temperature, min-p, top-k, top-p; top-p counts the probabilities renormalised over what the former two kept.
/// Equal logits are ordered by id, the lower first.
///
/// # Errors
/// [`InferenceError::NonFiniteLogits`] for a row that holds NaN or +∞, or nothing above −∞.
pub fn draw(logits: &[f32], params: &SamplingParams, uniform: f64) -> Result<TokenId, InferenceError> {
    let (argmax, max) = checked_max(logits)?;
    if params.temperature == 0.0 {
        return Ok(argmax);
    }
    let inv_temp = params.temperature.recip();
    let weight = |x: f32| ((x - max) * inv_temp).exp();
    if params.keeps_all() {
        return Ok(draw_from_all(logits, weight, uniform).unwrap_or(argmax));
    }
    let kept = keep(logits, params, weight);
    let total: f64 = kept.iter().map(|(_, w)| f64::from(*w)).sum();
    Ok(pick(kept.into_iter(), total * uniform).unwrap_or(argmax))
}

/// Inverse transform over the whole row. Sums of blocks come first, so that weights are computed once, and again only
/// in the block that is drawn from.
fn draw_from_all(logits: &[f32], weight: impl Fn(f32) -> f32, uniform: f64) -> Option<TokenId> {
    let sums: Vec<f64> = logits.chunks(BLOCK).map(|block| block.iter().map(|x| f64::from(weight(*x))).sum()).collect();
    let mut target = sums.iter().sum::<f64>() * uniform;
    let mut at = sums.iter().rposition(|sum| *sum > 0.0)?;
    for (i, sum) in sums[..at].iter().enumerate() {
        if target < *sum {
            at = i;
            break;
        }
        target -= sum;
    }
    let block = logits.chunks(BLOCK).nth(at)?;
    let first = (at * BLOCK) as TokenId;
    pick(block.iter().enumerate().map(|(i, x)| (first + i as TokenId, weight(*x))), target)
}

/// The tokens that survive the filters, with their unnormalised weights.
fn keep(logits: &[f32], params: &SamplingParams, weight: impl Fn(f32) -> f32) -> Vec<(TokenId, f32)> {
    let mut kept: Vec<(TokenId, f32)> = logits
        .iter()
        .enumerate()
        .map(|(id, x)| (id as TokenId, weight(*x)))
        .filter(|(_, w)| *w > 0.0 && *w >= params.min_p)
        .collect();
    let by_weight = |a: &(TokenId, f32), b: &(TokenId, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
    if let Some(k) = params.top_k.filter(|k| *k < kept.len()) {
        let last = kept.select_nth_unstable_by(k - 1, by_weight).1.1;
        kept.retain(|(_, w)| *w >= last);
    }
    kept.sort_unstable_by(by_weight);
    if params.top_p < 1.0 {
        let total: f64 = kept.iter().map(|(_, w)| f64::from(*w)).sum();
        let (mut sum, mut len) = (0.0f64, 0usize);
        while len < kept.len() && (len == 0 || sum < f64::from(params.top_p) * total) {
            sum += f64::from(kept[len].1);
            len += 1;
        }
        kept.truncate(len);
    }
    kept
}

/// The first candidate at which the running sum passes `target`, else the last one with any weight.
fn pick(candidates: impl Iterator<Item = (TokenId, f32)>, target: f64) -> Option<TokenId> {
    let (mut sum, mut last) = (0.0f64, None);
    for (id, w) in candidates {
        if w > 0.0 {
            sum += f64::from(w);
            last = Some(id);
            if sum > target {
                break;
            }
        }
    }
    last
}

fn checked_max(logits: &[f32]) -> Result<(TokenId, f32), InferenceError> {
    let (mut at, mut max) = (0usize, f32::NEG_INFINITY);
    for (id, x) in logits.iter().enumerate() {
        if x.is_nan() || *x == f32::INFINITY {
            return Err(InferenceError::NonFiniteLogits { token: id as TokenId, value: *x });
        }
        if *x > max {
            (at, max) = (id, *x);
        }
    }
    if max == f32::NEG_INFINITY {
        return Err(InferenceError::NonFiniteLogits { token: 0, value: max });
    }
    Ok((at as TokenId, max))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chi2::assert_follows;
    use proptest::prelude::*;
    use rand_chacha::ChaCha8Rng;
    use rand_chacha::rand_core::{Rng, SeedableRng};

    const ROW: [f32; 6] = [1.0, 3.0, -2.0, 3.0, 0.5, 2.0];

    fn ids(params: &SamplingParams, logits: &[f32]) -> Vec<TokenId> {
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let inv = params.temperature.recip();
        let mut ids: Vec<TokenId> =
            keep(logits, params, |x| ((x - max) * inv).exp()).into_iter().map(|(id, _)| id).collect();
        ids.sort_unstable();
        ids
    }

    fn softmax(logits: &[f32], temperature: f32) -> Vec<f64> {
        let w: Vec<f64> = logits.iter().map(|x| (f64::from(*x) / f64::from(temperature)).exp()).collect();
        let total: f64 = w.iter().sum();
        w.into_iter().map(|x| x / total).collect()
    }

    #[test]
    fn greedy_takes_the_first_of_equals() {
        let params = SamplingParams { temperature: 0.0, ..Default::default() };
        assert_eq!(draw(&ROW, &params, 0.999).unwrap(), 1);
    }

    #[test]
    fn top_k_keeps_ties_with_the_last_kept() {
        assert_eq!(ids(&SamplingParams { top_k: Some(1), ..Default::default() }, &ROW), [1, 3]);
        assert_eq!(ids(&SamplingParams { top_k: Some(3), ..Default::default() }, &ROW), [1, 3, 5]);
        assert_eq!(ids(&SamplingParams { top_k: Some(99), ..Default::default() }, &ROW).len(), 6);
    }

    #[test]
    fn min_p_is_relative_to_the_most_likely() {
        // e^{2-3} = 0.368, e^{1-3} = 0.135, e^{0.5-3} = 0.082
        assert_eq!(ids(&SamplingParams { min_p: 0.2, ..Default::default() }, &ROW), [1, 3, 5]);
        assert_eq!(ids(&SamplingParams { min_p: 0.1, ..Default::default() }, &ROW), [0, 1, 3, 5]);
        assert_eq!(ids(&SamplingParams { min_p: 1.0, ..Default::default() }, &ROW), [1, 3]);
    }

    #[test]
    fn top_p_counts_after_the_others_and_keeps_at_least_one() {
        let row = [0.5f32.ln(), 0.3f32.ln(), 0.2f32.ln()];
        assert_eq!(ids(&SamplingParams { top_p: 1e-6, ..Default::default() }, &row), [0]);
        assert_eq!(ids(&SamplingParams { top_p: 0.49, ..Default::default() }, &row), [0]);
        assert_eq!(ids(&SamplingParams { top_p: 0.51, ..Default::default() }, &row), [0, 1]);
        assert_eq!(ids(&SamplingParams { top_p: 0.81, ..Default::default() }, &row), [0, 1, 2]);
        // Renormalised over the two that top-k kept, 0.5 becomes 0.625.
        assert_eq!(ids(&SamplingParams { top_p: 0.6, top_k: Some(2), ..Default::default() }, &row), [0]);
    }

    #[test]
    fn bad_rows_and_parameters_are_typed_errors() {
        let params = SamplingParams::default();
        assert!(matches!(draw(&[0.0, f32::NAN], &params, 0.5), Err(InferenceError::NonFiniteLogits { token: 1, .. })));
        assert!(draw(&[f32::NEG_INFINITY], &params, 0.5).is_err());
        for bad in [
            SamplingParams { temperature: -1.0, ..Default::default() },
            SamplingParams { temperature: f32::NAN, ..Default::default() },
            SamplingParams { temperature: 1e-45, ..Default::default() },
            SamplingParams { top_k: Some(0), ..Default::default() },
            SamplingParams { top_p: 0.0, ..Default::default() },
            SamplingParams { top_p: f32::NAN, ..Default::default() },
            SamplingParams { min_p: 1.5, ..Default::default() },
            SamplingParams { max_tokens: Some(0), ..Default::default() },
            SamplingParams { stop: vec![String::new()], ..Default::default() },
        ] {
            assert!(bad.validate().is_err(), "{bad:?}");
        }
    }

    /// 200,000 draws against the exact probabilities.
    fn holds(params: &SamplingParams, exact: &[f64]) {
        const DRAWS: usize = 200_000;
        let mut rng = ChaCha8Rng::seed_from_u64(7);
        let mut seen = vec![0usize; exact.len()];
        for _ in 0..DRAWS {
            let u = (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
            seen[draw(&ROW, params, u).unwrap() as usize] += 1;
        }
        assert_follows(&seen, exact, &format!("{params:?}"));
    }

    #[test]
    fn draws_follow_the_exact_distribution() {
        for temperature in [0.5, 1.0, 1.7] {
            let exact = softmax(&ROW, temperature);
            holds(&SamplingParams { temperature, ..Default::default() }, &exact);
            for params in [
                SamplingParams { temperature, top_k: Some(3), ..Default::default() },
                SamplingParams { temperature, top_p: 0.8, ..Default::default() },
                SamplingParams { temperature, min_p: 0.3, ..Default::default() },
                SamplingParams { temperature, min_p: 0.05, top_k: Some(4), top_p: 0.9, ..Default::default() },
            ] {
                let kept = ids(&params, &ROW);
                let total: f64 = kept.iter().map(|id| exact[*id as usize]).sum();
                let cut: Vec<f64> = (0..ROW.len())
                    .map(|i| if kept.contains(&(i as TokenId)) { exact[i] / total } else { 0.0 })
                    .collect();
                holds(&params, &cut);
            }
        }
    }

    /// In blocks or in one run: the same inverse transform.
    #[test]
    fn large_rows_draw_from_the_right_block() {
        let logits: Vec<f32> = (0..1000).map(|i| ((i * 7919) % 613) as f32 / 100.0).collect();
        let probs = softmax(&logits, 1.0);
        let mut cumulative = 0.0;
        for (id, p) in probs.iter().enumerate() {
            let u = cumulative + p / 2.0;
            assert_eq!(draw(&logits, &SamplingParams::default(), u).unwrap(), id as TokenId);
            cumulative += p;
        }
        let mut sparse = vec![f32::NEG_INFINITY; 1000];
        sparse[300] = 0.0;
        sparse[700] = 0.0;
        for (u, want) in [(0.0, 300), (0.4999, 300), (0.5, 700), (1.0 - f64::EPSILON / 2.0, 700)] {
            assert_eq!(draw(&sparse, &SamplingParams::default(), u).unwrap(), want);
        }
    }

    proptest! {
        /// Against the definitions, spelled out one after the other in f64.
        #[test]
        fn filters_equal_their_definitions(
            logits in prop::collection::vec(-8i32..8, 1..24),
            k in 1usize..26, p in 0.01f32..1.0, m in 0.0f32..1.0, t in 0.25f32..2.0,
        ) {
            let logits: Vec<f32> = logits.into_iter().map(|x| x as f32 * 0.75).collect();
            let params = SamplingParams { temperature: t, top_k: Some(k), top_p: p, min_p: m, ..Default::default() };
            let probs = softmax(&logits, t);
            let best = probs.iter().copied().fold(0.0, f64::max);
            let mut set: Vec<usize> = (0..probs.len()).filter(|i| probs[*i] / best >= f64::from(m) - 1e-6).collect();
            set.sort_by(|a, b| probs[*b].total_cmp(&probs[*a]).then(a.cmp(b)));
            if k < set.len() {
                let last = logits[set[k - 1]];
                set.retain(|i| logits[*i] >= last);
            }
            let total: f64 = set.iter().map(|i| probs[*i]).sum();
            let mut sum = 0.0;
            let mut want = Vec::new();
            for i in set {
                // Too close to call in f32: not a test of the semantics.
                prop_assume!((sum / total - f64::from(p)).abs() > 1e-5);
                if !want.is_empty() && sum / total >= f64::from(p) {
                    break;
                }
                sum += probs[i];
                want.push(i as TokenId);
            }
            prop_assume!(probs.iter().all(|q| (q / best - f64::from(m)).abs() > 1e-5));
            want.sort_unstable();
            prop_assert_eq!(ids(&params, &logits), want);
            for u in [0.0, 0.3, 0.999_999] {
                prop_assert!(ids(&params, &logits).contains(&draw(&logits, &params, u).unwrap()));
            }
        }
    }
}

//! Tokens of a loss as somebody writes them down. Owns the keys of a batch's JSON and what is there where one is left out;
//! must not know a formula.

use super::input::{Flag, check_cover, check_len, f32s};
use prl_types::LossBatch;
use serde::Deserialize;
use std::ops::Range;

/// A batch's JSON. Lists have one entry a token. Every entry is a token with something before it: a loss counts it where its
/// weight is not 0.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tokens {
    /// Log-probability under the weights being trained. Required.
    pub trainer_logprobs: Vec<f64>,
    /// Log-probability when drawn. Required but for `ce`.
    pub inference_logprobs: Option<Vec<f64>>,
    /// Log-probability under the reference. Required for `ref_kl`.
    pub ref_logprobs: Option<Vec<f64>>,
    /// Advantages. Required but for `ce` and `ref_kl`.
    pub advantages: Option<Vec<f64>>,
    /// 1 where the model sampled the token; 1 by default.
    pub mask: Option<Vec<Flag>>,
    /// Weight in the component; by default 1 where the mask is 1.
    pub weights: Option<Vec<f64>>,
    /// Entropy of the distribution a token was predicted from; 0 by default.
    pub entropies: Option<Vec<f64>>,
    /// Vocabulary indices; 0 by default.
    pub token_ids: Option<Vec<u32>>,
    /// Lengths of the sequences the tokens fall into; by default one sequence.
    pub sequence_lengths: Option<Vec<usize>>,
    /// Sampling temperature of each sequence; 1 by default.
    pub temperatures: Option<Vec<f64>>,
    /// Members of the whole step; by default those that are here.
    pub normalizer: Option<u64>,
}

/// The same as columns, checked.
#[derive(Clone, Debug, Default, PartialEq)]
#[allow(missing_docs)] // as the keys
pub struct Columns {
    pub trainer_logprobs: Vec<f32>,
    pub inference_logprobs: Option<Vec<f32>>,
    pub ref_logprobs: Option<Vec<f32>>,
    pub advantages: Option<Vec<f32>>,
    pub mask: Vec<bool>,
    pub weights: Vec<f32>,
    pub entropies: Vec<f32>,
    pub token_ids: Vec<u32>,
    /// Where each sequence begins, and the number of tokens last.
    pub starts: Vec<u64>,
    pub temperatures: Vec<f32>,
    pub normalizer: Option<u64>,
}

impl Tokens {
    /// The columns.
    ///
    /// # Errors
    /// What does not fit together.
    pub fn columns(&self) -> Result<Columns, String> {
        let n = self.trainer_logprobs.len();
        if n == 0 {
            return Err("`trainer_logprobs` is missing or empty".into());
        }
        let list = |name: &str, values: &Option<Vec<f64>>| {
            let Some(values) = values else { return Ok(None) };
            check_len(name, values.len(), n, "tokens")?;
            f32s(name, values).map(Some)
        };
        let mask: Vec<bool> = self.mask.as_ref().map_or_else(|| vec![true; n], |m| m.iter().map(|f| f.0).collect());
        check_len("mask", mask.len(), n, "tokens")?;
        let token_ids = self.token_ids.clone().unwrap_or_else(|| vec![0; n]);
        check_len("token_ids", token_ids.len(), n, "tokens")?;
        let lengths = self.sequence_lengths.clone().unwrap_or_else(|| vec![n]);
        check_cover("sequence_lengths", &lengths, n)?;
        if lengths.contains(&0) {
            return Err("`sequence_lengths` has a 0; a sequence has at least one token".into());
        }
        let temperatures = self.temperatures.clone().unwrap_or_else(|| vec![1.0; lengths.len()]);
        check_len("temperatures", temperatures.len(), lengths.len(), "sequences")?;
        if self.normalizer == Some(0) {
            return Err("`normalizer` is 0; a step has at least one member".into());
        }
        let ones = || mask.iter().map(|sampled| f32::from(u8::from(*sampled))).collect();
        let starts = lengths.iter().scan(0, |end, len| {
            *end += *len as u64;
            Some(*end)
        });
        Ok(Columns {
            trainer_logprobs: f32s("trainer_logprobs", &self.trainer_logprobs)?,
            inference_logprobs: list("inference_logprobs", &self.inference_logprobs)?,
            ref_logprobs: list("ref_logprobs", &self.ref_logprobs)?,
            advantages: list("advantages", &self.advantages)?,
            weights: list("weights", &self.weights)?.unwrap_or_else(ones),
            entropies: list("entropies", &self.entropies)?.unwrap_or_else(|| vec![0.0; n]),
            token_ids,
            starts: std::iter::once(0).chain(starts).collect(),
            temperatures: f32s("temperatures", &temperatures)?,
            normalizer: self.normalizer,
            mask,
        })
    }
}

impl Columns {
    /// The tokens of each sequence.
    pub fn sequences(&self) -> impl Iterator<Item = Range<usize>> {
        self.starts.windows(2).map(|pair| pair[0] as usize..pair[1] as usize)
    }

    /// Some of the tokens, as one sequence.
    pub fn part(&self, tokens: Range<usize>) -> Self {
        let some = |list: &Option<Vec<f32>>| list.as_ref().map(|list| list[tokens.clone()].to_vec());
        Columns {
            trainer_logprobs: self.trainer_logprobs[tokens.clone()].to_vec(),
            inference_logprobs: some(&self.inference_logprobs),
            ref_logprobs: some(&self.ref_logprobs),
            advantages: some(&self.advantages),
            mask: self.mask[tokens.clone()].to_vec(),
            weights: self.weights[tokens.clone()].to_vec(),
            entropies: self.entropies[tokens.clone()].to_vec(),
            token_ids: self.token_ids[tokens.clone()].to_vec(),
            starts: vec![0, tokens.len() as u64],
            temperatures: vec![1.0],
            normalizer: self.normalizer,
        }
    }

    /// Calls `with` the batch a plug-in's loss gets. `weights` count where the mask is true, as in a run.
    ///
    /// # Errors
    /// A list that such a loss needs is missing.
    pub fn with_batch<T>(&self, with: impl FnOnce(&LossBatch) -> T) -> Result<T, String> {
        let needed = |name: &str| format!("`{name}` is missing; the loss of a plug-in gets it");
        let weights: Vec<f32> = self.weights.iter().zip(&self.mask).map(|(w, m)| if *m { *w } else { 0.0 }).collect();
        let mask: Vec<u8> = self.mask.iter().map(|m| u8::from(*m)).collect();
        let given = self.inference_logprobs.as_ref().ok_or_else(|| needed("inference_logprobs"))?;
        let sampling: Vec<f32> = given.iter().zip(&self.mask).map(|(lp, m)| if *m { *lp } else { 0.0 }).collect();
        let versions = vec![0; self.temperatures.len()];
        let members = weights.iter().filter(|w| **w != 0.0).count() as u64;
        Ok(with(&LossBatch {
            step: 0,
            part: 0,
            normalizer: self.normalizer.unwrap_or(members).max(1) as f64,
            starts: &self.starts,
            temperatures: &self.temperatures,
            oldest: &versions,
            newest: &versions,
            token_ids: &self.token_ids,
            mask: &mask,
            trainer_logprobs: &self.trainer_logprobs,
            sampling_logprobs: &sampling,
            ref_logprobs: self.ref_logprobs.as_deref(),
            advantages: self.advantages.as_ref().ok_or_else(|| needed("advantages"))?,
            weights: &weights,
            entropy: &self.entropies,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn columns(tokens: Value) -> Result<Columns, String> {
        serde_json::from_value::<Tokens>(tokens).map_err(|e| e.to_string())?.columns()
    }

    #[test]
    fn what_is_left_out_has_a_meaning() {
        let made = columns(json!({"trainer_logprobs": [-1, -2, -3], "mask": [1, 0, 1], "sequence_lengths": [1, 2]}));
        let made = made.unwrap();
        assert_eq!((made.weights.as_slice(), made.starts.as_slice()), (&[1.0, 0.0, 1.0][..], &[0, 1, 3][..]));
        assert_eq!(made.sequences().collect::<Vec<_>>(), [0..1, 1..3]);
        assert_eq!(made.temperatures, [1.0, 1.0]);
    }

    #[test]
    fn a_batch_counts_its_members() {
        let made = columns(json!({"trainer_logprobs": [-1, -2], "inference_logprobs": [-1, -2], "advantages": [1, 1],
                                  "mask": [0, 1], "weights": [1, 2]}));
        let seen = made.unwrap().with_batch(|b| (b.weights.to_vec(), b.sampling_logprobs.to_vec(), b.normalizer));
        assert_eq!(seen.unwrap(), (vec![0.0, 2.0], vec![0.0, -2.0], 1.0));
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let error = |tokens| columns(tokens).unwrap_err();
        assert!(error(json!({})).contains("`trainer_logprobs` is missing"));
        let short = json!({"trainer_logprobs": [-1, -2], "advantages": [1]});
        assert_eq!(error(short), "`advantages` has 1 entries for 2 tokens");
        let lengths = json!({"trainer_logprobs": [-1, -2], "sequence_lengths": [1]});
        assert_eq!(error(lengths), "`sequence_lengths` adds up to 1 of 2 tokens");
        assert!(error(json!({"trainer_logprobs": [-1], "normalizer": 0})).contains("`normalizer` is 0"));
        assert!(error(json!({"trainer_logprobs": [-1], "logprobs": []})).contains("unknown field `logprobs`"));
    }
}

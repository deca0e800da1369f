//! A packed micro-batch as a custom loss sees it, and what such a loss answers.

use crate::{Metric, Step, TokenId};

/// Whole samples of one step, packed one after another. Lists of tokens have one entry a token of the pack, lists of
/// samples one a sample. Members of the loss are the tokens with a weight other than 0.
#[derive(Clone, Copy, Debug)]
pub struct LossBatch<'a> {
    /// The step it belongs to.
    pub step: Step,
    /// Its place among the micro-batches of the step, from 0.
    pub part: u64,
    /// Members in the whole step, at least 1.
    pub normalizer: f64,
    /// Where each sample begins, and the number of tokens last.
    pub starts: &'a [u64],
    /// Sampling temperature of each sample.
    pub temperatures: &'a [f32],
    /// Oldest weights that drew a token of each sample.
    pub oldest: &'a [u64],
    /// Newest such weights.
    pub newest: &'a [u64],
    /// Vocabulary indices.
    pub token_ids: &'a [TokenId],
    /// 1 where the model sampled the token, else 0.
    pub mask: &'a [u8],
    /// Log-probability under the weights being trained.
    pub trainer_logprobs: &'a [f32],
    /// Log-probability when drawn; 0 where the mask is 0.
    pub sampling_logprobs: &'a [f32],
    /// Log-probability under the reference, NaN on tokens of samples without one; `None` when no sample has one.
    pub ref_logprobs: Option<&'a [f32]>,
    /// Advantages; 0 where there are none.
    pub advantages: &'a [f32],
    /// Weight of each token in the loss.
    pub weights: &'a [f32],
    /// Entropy of the distribution each token was predicted from, nats.
    pub entropy: &'a [f32],
}

/// What a custom loss says of one micro-batch. All values are finite, and gradients of tokens that are no members are 0.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LossGradient {
    /// The micro-batch's addend to the step's loss, denominators included.
    pub loss: f64,
    /// ∂loss/∂logprob of each token.
    pub dlogprob: Vec<f32>,
    /// ∂loss/∂entropy of each token; `None` from a loss without entropies.
    pub dentropy: Option<Vec<f32>>,
    /// Loss of each token without denominators.
    pub token_losses: Vec<f32>,
    /// Numbers for the run's metrics; names may repeat.
    pub metrics: Vec<Metric>,
    /// Wall-clock seconds inside the loss.
    pub seconds: f64,
}

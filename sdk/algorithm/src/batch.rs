//! A packed micro-batch as a custom loss sees it, and the place of what it gives. Owns typed, borrowed views of both; must
//! not copy token columns or know any formula.

use crate::columns::{Columns, known, part};
use crate::{Error, Host};
use prl_abi::ids::col;
use std::ops::{Deref, Range};

/// A packed micro-batch of whole samples. Lists of tokens have one entry a token, sample after sample.
pub struct Batch<'a> {
    normalizer: f64,
    token_start: &'a [u64],
    temperature: &'a [f32],
    version_min: &'a [u64],
    version_max: &'a [u64],
    token_id: &'a [u32],
    mask: &'a [u8],
    trainer_logprob: &'a [f32],
    sampling_logprob: &'a [f32],
    ref_logprob: Option<&'a [f32]>,
    advantage: &'a [f32],
    rl_weight: &'a [f32],
    entropy: Option<&'a [f32]>,
}

impl<'a> Batch<'a> {
    /// Reads a batch as the host passes it.
    ///
    /// # Safety
    /// `raw` and everything it points at follow `prl.h` and stay unchanged for `'a`.
    pub(crate) unsafe fn from_raw(raw: &'a prl_abi::Batch) -> Result<Self, Error> {
        // SAFETY: by the contract of this function.
        let c = unsafe { Columns::from_raw(raw.columns, raw.n_columns) }?;
        let (samples, tokens) = (raw.n_samples, raw.n_tokens);
        Ok(Batch {
            normalizer: raw.normalizer,
            token_start: c.get(col::TOKEN_START, samples + 1)?,
            temperature: c.get(col::TEMPERATURE, samples)?,
            version_min: c.get(col::VERSION_MIN, samples)?,
            version_max: c.get(col::VERSION_MAX, samples)?,
            token_id: c.get(col::TOKEN_ID, tokens)?,
            mask: c.get(col::MASK, tokens)?,
            trainer_logprob: c.get(col::TRAINER_LOGPROB, tokens)?,
            sampling_logprob: c.get(col::SAMPLING_LOGPROB, tokens)?,
            ref_logprob: c.optional(col::REF_LOGPROB, tokens)?,
            advantage: c.get(col::ADVANTAGE, tokens)?,
            rl_weight: c.get(col::RL_WEIGHT, tokens)?,
            entropy: c.optional(col::ENTROPY, tokens)?,
        })
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.token_id.len()
    }

    /// Whether there are no tokens; the host never passes such a batch.
    pub fn is_empty(&self) -> bool {
        self.token_id.is_empty()
    }

    /// Members in the whole step, over all its micro-batches; at least 1. What a mean over the step's tokens divides by.
    pub fn normalizer(&self) -> f64 {
        self.normalizer
    }

    /// The samples, in the order of their tokens.
    pub fn samples(&self) -> impl ExactSizeIterator<Item = BatchSample<'_, 'a>> {
        (0..self.temperature.len()).map(|index| BatchSample { batch: self, index })
    }

    /// Vocabulary indices, prompt and completion.
    pub fn token_ids(&self) -> &'a [u32] {
        self.token_id
    }

    /// 1 where the model sampled the token, else 0.
    pub fn mask(&self) -> &'a [u8] {
        self.mask
    }

    /// Log-probability under the weights being trained, at the sampling temperature.
    pub fn trainer_logprobs(&self) -> &'a [f32] {
        self.trainer_logprob
    }

    /// Log-probability when drawn, at the sampling temperature; 0 where the mask is 0.
    pub fn sampling_logprobs(&self) -> &'a [f32] {
        self.sampling_logprob
    }

    /// Log-probability under the reference, NaN on the tokens of samples without one; `None` when no sample has one.
    pub fn ref_logprobs(&self) -> Option<&'a [f32]> {
        self.ref_logprob
    }

    /// Advantages; 0 where none were written.
    pub fn advantages(&self) -> &'a [f32] {
        self.advantage
    }

    /// Weight of each token in the loss; members are the tokens where it is not 0.
    pub fn rl_weights(&self) -> &'a [f32] {
        self.rl_weight
    }

    /// Entropy of the distribution that each token was predicted from, nats; `None` without
    /// [`crate::Algorithm::ENTROPY`].
    pub fn entropy(&self) -> Option<&'a [f32]> {
        self.entropy
    }
}

/// One sample of a batch. Lists have one entry for each of its tokens.
#[derive(Clone, Copy)]
pub struct BatchSample<'b, 'a> {
    batch: &'b Batch<'a>,
    index: usize,
}

impl<'a> BatchSample<'_, 'a> {
    /// Its place in the batch.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Which of the batch's tokens are its own.
    pub fn tokens(&self) -> Range<usize> {
        part(self.batch.token_start, self.index)
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.tokens().len()
    }

    /// Whether there are no tokens.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// See [`Batch::token_ids`].
    pub fn token_ids(&self) -> &'a [u32] {
        &self.batch.token_id[self.tokens()]
    }

    /// See [`Batch::mask`].
    pub fn mask(&self) -> &'a [u8] {
        &self.batch.mask[self.tokens()]
    }

    /// See [`Batch::trainer_logprobs`].
    pub fn trainer_logprobs(&self) -> &'a [f32] {
        &self.batch.trainer_logprob[self.tokens()]
    }

    /// See [`Batch::sampling_logprobs`].
    pub fn sampling_logprobs(&self) -> &'a [f32] {
        &self.batch.sampling_logprob[self.tokens()]
    }

    /// Log-probability under the reference; `None` when this sample has none.
    pub fn ref_logprobs(&self) -> Option<&'a [f32]> {
        known(&self.batch.ref_logprob?[self.tokens()])
    }

    /// See [`Batch::advantages`].
    pub fn advantages(&self) -> &'a [f32] {
        &self.batch.advantage[self.tokens()]
    }

    /// See [`Batch::rl_weights`].
    pub fn rl_weights(&self) -> &'a [f32] {
        &self.batch.rl_weight[self.tokens()]
    }

    /// See [`Batch::entropy`].
    pub fn entropy(&self) -> Option<&'a [f32]> {
        Some(&self.batch.entropy?[self.tokens()])
    }

    /// The sampling temperature.
    pub fn temperature(&self) -> f32 {
        self.batch.temperature[self.index]
    }

    /// Oldest and newest weights that drew one of its tokens.
    pub fn versions(&self) -> (u64, u64) {
        (self.batch.version_min[self.index], self.batch.version_max[self.index])
    }
}

/// Where a custom loss puts what it computed. Lists have one entry a token of the batch and start as zeros; those of
/// tokens that are no members are set back to 0 by the host.
pub struct Loss<'a> {
    host: &'a Host,
    value: &'a mut f64,
    d_logprob: &'a mut [f32],
    d_entropy: Option<&'a mut [f32]>,
    token_loss: &'a mut [f32],
}

impl<'a> Loss<'a> {
    /// # Safety
    /// `raw` follows `prl.h`: its arrays have `tokens` elements that nothing else uses for `'a`.
    pub(crate) unsafe fn from_raw(raw: &'a mut prl_abi::Loss, tokens: usize, host: &'a Host) -> Result<Self, Error> {
        if tokens > 0 && (raw.d_logprob.is_null() || raw.token_loss.is_null()) {
            return Err("the host gave no place for the gradient".into());
        }
        // SAFETY: by the contract of this function; null only where the list is empty.
        let list = |ptr: *mut f32| match tokens {
            0 => Default::default(),
            _ => unsafe { std::slice::from_raw_parts_mut(ptr, tokens) },
        };
        Ok(Loss {
            host,
            value: &mut raw.loss,
            d_logprob: list(raw.d_logprob),
            d_entropy: (!raw.d_entropy.is_null()).then(|| list(raw.d_entropy)),
            token_loss: list(raw.token_loss),
        })
    }

    /// Adds to the micro-batch's addend of the step's loss: a number with all its denominators.
    pub fn add(&mut self, loss: f64) {
        *self.value += loss;
    }

    /// ∂loss/∂logprob of each token.
    pub fn d_logprob(&mut self) -> &mut [f32] {
        self.d_logprob
    }

    /// ∂loss/∂entropy of each token; `None` without [`crate::Algorithm::ENTROPY`].
    pub fn d_entropy(&mut self) -> Option<&mut [f32]> {
        self.d_entropy.as_deref_mut()
    }

    /// Loss of each member without denominators, for the spread in the run's metrics; may stay 0.
    pub fn token_loss(&mut self) -> &mut [f32] {
        self.token_loss
    }
}

/// Log lines, metrics and random numbers.
impl Deref for Loss<'_> {
    type Target = Host;

    fn deref(&self) -> &Host {
        self.host
    }
}

//! What inference and the trainer see of a model: [`Snapshot`] to sample from, [`Learner`] to train. Owns their terms
//! and the shift between tokens and the rows that predict them; must not know losses, sampling or optimisers.

use crate::{Decoder, ModelConfig, ModelError, fast, reference};
use burn::optim::GradientsParams;
use prl_types::TokenId;
use std::sync::Arc;

/// Which implementation computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernels {
    /// The kernels of prl-kernels on the CPU: a token's value depends on its document's prefix only, bit for bit.
    Fast,
    /// Plain burn operations on any device. Slow, easy to check, and what the fast one is held against.
    Reference,
}

/// An immutable copy of the policy's weights, cheap to make and to share between threads.
pub trait Snapshot: Send + Sync {
    /// The model's shape.
    fn config(&self) -> &ModelConfig;

    /// An empty key/value cache for one sequence of this model.
    fn new_cache(&self) -> Cache;

    /// Runs each item's `ids` behind what its cache holds and leaves them in the cache. Returns the logits of the last
    /// token of every item that wants them, `[items that want logits, vocab]` row-major, items in order.
    ///
    /// # Errors
    /// An item without ids, an id outside the vocabulary, a cache of another model or implementation, a failing device.
    fn extend(&self, batch: &mut [Extend<'_>]) -> Result<Vec<f32>, ModelError>;

    /// log softmax(logits / temperature)[id] of one row of logits, computed exactly as [`Learner::forward`] does, so
    /// that sampler and trainer agree to the bit. Temperature 0 counts as 1.
    fn logprob(&self, logits: &[f32], id: TokenId, temperature: f32) -> f32;
}

/// One sequence's part of a call of [`Snapshot::extend`].
pub struct Extend<'a> {
    /// What came before.
    pub cache: &'a mut Cache,
    /// The new tokens, at least one.
    pub ids: &'a [TokenId],
    /// Whether the logits of the last of them are wanted.
    pub want_logits: bool,
}

/// Keys and values of one sequence. A clone is a fork: both continue from the same prefix without touching each other.
#[derive(Clone)]
pub struct Cache(pub(crate) CacheKind);

#[derive(Clone)]
pub(crate) enum CacheKind {
    Fast(fast::Kv),
    Reference(reference::Kv),
}

impl Cache {
    /// Tokens held.
    pub fn len(&self) -> usize {
        match &self.0 {
            CacheKind::Fast(kv) => kv.len(),
            CacheKind::Reference(kv) => kv.len(),
        }
    }

    /// Whether no token is held.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Whole documents one after another. Each token sees its own document's prefix only; positions restart at 0.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Packed {
    /// The tokens of all documents.
    pub ids: Vec<TokenId>,
    /// Tokens of each document; they sum up to the number of tokens.
    pub doc_lens: Vec<usize>,
    /// The temperature each token was drawn at; 0 (greedy) counts as 1. That of a document's first token is unused.
    pub temperatures: Vec<f32>,
}

/// Per token, in the order of [`Packed::ids`]: facts about the distribution the token was drawn from, at its
/// temperature, in nats. A document's first token has no prefix: it counts as drawn uniformly (-ln V, ln V).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenStats {
    /// log p(token | its document before it).
    pub logprobs: Vec<f32>,
    /// Entropy of that distribution.
    pub entropy: Vec<f32>,
}

/// Row t of the hidden states predicts token t + 1: labels and temperatures moved to the rows that predict them.
/// Rows at the end of a document predict nothing; they carry label 0 and get gradient 0.
pub(crate) struct Rows {
    pub labels: Vec<TokenId>,
    pub inv_temp: Vec<f32>,
    predicts: Vec<bool>,
}

impl Rows {
    fn new(batch: &Packed) -> Rows {
        let n = batch.ids.len();
        let mut rows = Rows { labels: vec![0; n], inv_temp: vec![1.0; n], predicts: vec![false; n] };
        let mut start = 0;
        for len in &batch.doc_lens {
            for t in start..start + len - 1 {
                rows.labels[t] = batch.ids[t + 1];
                rows.inv_temp[t] = inverse(batch.temperatures[t + 1]);
                rows.predicts[t] = true;
            }
            start += len;
        }
        rows
    }

    /// Per row → per token, with `first` for the tokens nothing predicts.
    fn to_tokens(&self, rows: &[f32], first: f32) -> Vec<f32> {
        let mut out = vec![first; rows.len()];
        for t in 0..rows.len() {
            if self.predicts[t] {
                out[t + 1] = rows[t];
            }
        }
        out
    }

    /// Per token → per row, 0 where a row predicts nothing.
    fn to_rows(&self, tokens: &[f32]) -> Vec<f32> {
        (0..tokens.len()).map(|t| if self.predicts[t] { tokens[t + 1] } else { 0.0 }).collect()
    }
}

/// 1 / temperature, the factor on logits; 0 counts as 1.
pub(crate) fn inverse(temperature: f32) -> f32 {
    if temperature == 0.0 { 1.0 } else { 1.0 / temperature }
}

/// A forward and backward pass and the gradients it adds up. All lists are per row.
pub(crate) trait Passes: Send {
    /// Logprob and entropy of each row's label.
    fn forward(&mut self, decoder: &Decoder, batch: &Packed, rows: &Rows) -> Result<(Vec<f32>, Vec<f32>), ModelError>;
    /// Adds the gradient of Σ dlogprob·logprob + Σ dentropy·entropy of the last forward.
    fn backward(
        &mut self,
        decoder: &Decoder,
        rows: &Rows,
        dlogprob: Vec<f32>,
        dentropy: Option<Vec<f32>>,
    ) -> Result<(), ModelError>;
    /// L2 norm over all parameters.
    fn norm(&self) -> Result<f64, ModelError>;
    /// Multiplies all gradients.
    fn scale(&mut self, factor: f32);
    /// Share of entries that are exactly 0.
    fn zero_ratio(&self) -> Result<f64, ModelError>;
    /// Sets all gradients to 0.
    fn zero(&mut self);
    /// Hands the gradients out and sets them to 0.
    fn take(&mut self, decoder: &Decoder) -> GradientsParams;
}

/// The model being trained: parameters, and gradients that add up over backward passes until they are used.
pub struct Learner {
    decoder: Decoder,
    kernels: Kernels,
    passes: Box<dyn Passes>,
    last: Option<Rows>,
}

impl Learner {
    /// Takes over a model on whatever device it is. `head_chunk` is how many rows of logits exist at a time.
    ///
    /// # Errors
    /// The fast kernels and a device other than the CPU.
    pub fn new(decoder: Decoder, kernels: Kernels, head_chunk: usize) -> Result<Learner, ModelError> {
        let head_chunk = head_chunk.max(1);
        let passes: Box<dyn Passes> = match kernels {
            Kernels::Fast => Box::new(fast::FastPasses::new(&decoder, head_chunk)?),
            Kernels::Reference => Box::new(reference::ReferencePasses::new(head_chunk)),
        };
        Ok(Learner { decoder, kernels, passes, last: None })
    }

    /// Logprob and entropy of every token.
    ///
    /// # Errors
    /// Lists that do not fit together, ids outside the vocabulary, a failing device.
    pub fn forward(&mut self, batch: &Packed) -> Result<TokenStats, ModelError> {
        self.last = None;
        check(batch, self.decoder.config())?;
        let rows = Rows::new(batch);
        let (logprobs, entropy) = self.passes.forward(&self.decoder, batch, &rows)?;
        let uniform = (self.decoder.config().vocab_size as f32).ln();
        let stats =
            TokenStats { logprobs: rows.to_tokens(&logprobs, -uniform), entropy: rows.to_tokens(&entropy, uniform) };
        self.last = Some(rows);
        Ok(stats)
    }

    /// Adds the gradient of Σ_t dlogprob_t · logprob_t + dentropy_t · entropy_t over the tokens of the last forward
    /// pass, which it uses up. Entries of first tokens are ignored.
    ///
    /// # Errors
    /// No forward pass before it, lists of another length, a failing device.
    pub fn backward(&mut self, dlogprob: &[f32], dentropy: Option<&[f32]>) -> Result<(), ModelError> {
        let Some(rows) = self.last.take() else {
            return Err(ModelError::Input("backward needs a forward pass before it".into()));
        };
        let want = rows.labels.len();
        for (name, len) in [("dlogprob", dlogprob.len()), ("dentropy", dentropy.map_or(want, <[f32]>::len))] {
            if len != want {
                return Err(ModelError::Input(format!("`{name}` has {len} entries for {want} tokens")));
            }
        }
        let dlogprob = rows.to_rows(dlogprob);
        let dentropy = dentropy.map(|d| rows.to_rows(d));
        self.passes.backward(&self.decoder, &rows, dlogprob, dentropy)
    }

    /// L2 norm of all gradients, summed in f64 in a fixed order.
    ///
    /// # Errors
    /// The device failed.
    pub fn grad_norm(&self) -> Result<f64, ModelError> {
        self.passes.norm()
    }

    /// Multiplies all gradients by `factor`.
    pub fn scale_grads(&mut self, factor: f32) {
        self.passes.scale(factor);
    }

    /// Sets all gradients to 0.
    pub fn zero_grads(&mut self) {
        self.passes.zero();
    }

    /// Share of gradient entries that are exactly 0.
    ///
    /// # Errors
    /// The device failed.
    pub fn zero_grad_ratio(&self) -> Result<f64, ModelError> {
        self.passes.zero_ratio()
    }

    /// Lets `step` make the next weights out of the present ones and the gradients, which are 0 afterwards; every
    /// parameter has one. Snapshots keep the weights they were taken of.
    pub fn update(&mut self, step: impl FnOnce(Decoder, GradientsParams) -> Decoder) {
        use burn::module::Module;
        self.last = None;
        let grads = self.passes.take(&self.decoder);
        // burn's optimisers want parameters that are leaves of a graph; ours never are.
        self.decoder = step(self.decoder.clone().train(), grads).valid();
    }

    /// The present weights, to sample from.
    ///
    /// # Errors
    /// As for [`Decoder::snapshot`].
    pub fn snapshot(&self) -> Result<Arc<dyn Snapshot>, ModelError> {
        self.decoder.snapshot(self.kernels)
    }

    /// The present weights as a module.
    pub fn decoder(&self) -> &Decoder {
        &self.decoder
    }
}

impl Decoder {
    /// These weights, to sample from. No copy.
    ///
    /// # Errors
    /// The fast kernels and a device other than the CPU.
    pub fn snapshot(&self, kernels: Kernels) -> Result<Arc<dyn Snapshot>, ModelError> {
        Ok(match kernels {
            Kernels::Fast => Arc::new(fast::FastSnapshot::new(self)?),
            Kernels::Reference => Arc::new(reference::ReferenceSnapshot::new(self)),
        })
    }
}

fn check(batch: &Packed, config: &ModelConfig) -> Result<(), ModelError> {
    let error = |text: String| Err(ModelError::Input(text));
    let tokens = batch.ids.len();
    if tokens == 0 {
        return error("no tokens".into());
    }
    if batch.doc_lens.iter().sum::<usize>() != tokens || batch.doc_lens.contains(&0) {
        return error(format!("document lengths {:?} do not cover {tokens} tokens", batch.doc_lens));
    }
    if batch.temperatures.len() != tokens {
        return error(format!("{} temperatures for {tokens} tokens", batch.temperatures.len()));
    }
    if let Some(t) = batch.temperatures.iter().find(|t| !(t.is_finite() && **t >= 0.0)) {
        return error(format!("temperature {t}"));
    }
    check_ids(&batch.ids, config)
}

pub(crate) fn check_ids(ids: &[TokenId], config: &ModelConfig) -> Result<(), ModelError> {
    match ids.iter().find(|id| **id as usize >= config.vocab_size) {
        Some(id) => {
            Err(ModelError::Input(format!("token id {id} is outside the model's vocabulary of {}", config.vocab_size)))
        }
        None => Ok(()),
    }
}

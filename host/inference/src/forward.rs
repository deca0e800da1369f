//! What the scheduler asks of a model.
//!
//! Owns the seam that lets the scheduler be tested with a model made of a hash. Must not know requests.

use prl_kernels::Meter;
use prl_model::{Adapter, Answer, Cache, Extend, Snapshot, Want};
use prl_types::TokenId;
use std::sync::Arc;

/// One sequence's share of a step.
pub(crate) struct Work<'a, C> {
    /// What the sequence has been through; grows by `ids`.
    pub cache: &'a mut C,
    /// The tokens to add.
    pub ids: &'a [TokenId],
    /// What is wanted of the token after the last of `ids`.
    pub want: Want,
    /// What is added to the weights for it.
    pub adapter: Option<&'a Adapter>,
}

/// Keys and values of one sequence; a clone is a fork.
pub(crate) trait Cached: Clone + Send {
    /// Forgets all tokens from `len` on.
    fn truncate(&mut self, len: usize);

    /// Bytes that `more` tokens would take.
    fn growth(&self, more: usize) -> usize;
}

/// Immutable weights with a forward.
pub(crate) trait Forward: Send + Sync + 'static {
    /// Keys and values of one sequence.
    type Cache: Cached;

    /// Entries in a row of logits.
    fn vocab_size(&self) -> usize;

    /// The cache of an empty sequence, which counts its bytes on `meter`.
    fn new_cache(&self, meter: &Meter) -> Self::Cache;

    /// Extends every sequence of the batch; returns what is wanted, in the order of the batch.
    fn extend(&self, batch: &mut [Work<'_, Self::Cache>]) -> Result<Vec<Answer>, String>;

    /// Log-probability of `token` over the full row at `temperature`, reduced exactly as the trainer's head does.
    fn logprob(&self, logits: &[f32], token: TokenId, temperature: f32) -> f32;
}

impl Cached for Cache {
    fn truncate(&mut self, len: usize) {
        Cache::truncate(self, len);
    }

    fn growth(&self, more: usize) -> usize {
        Cache::growth(self, more)
    }
}

impl Forward for Arc<dyn Snapshot> {
    type Cache = Cache;

    fn vocab_size(&self) -> usize {
        self.config().vocab_size
    }

    fn new_cache(&self, meter: &Meter) -> Cache {
        Snapshot::new_cache(self.as_ref(), meter)
    }

    fn extend(&self, batch: &mut [Work<'_, Cache>]) -> Result<Vec<Answer>, String> {
        let mut batch: Vec<Extend<'_>> = batch
            .iter_mut()
            .map(|w| Extend { cache: &mut *w.cache, ids: w.ids, want: w.want, adapter: w.adapter })
            .collect();
        Snapshot::extend(self.as_ref(), &mut batch).map_err(|e| e.to_string())
    }

    fn logprob(&self, logits: &[f32], token: TokenId, temperature: f32) -> f32 {
        Snapshot::logprob(self.as_ref(), logits, token, temperature)
    }
}

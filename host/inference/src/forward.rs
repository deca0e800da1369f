//! What the scheduler asks of a model.
//!
//! Owns the seam that lets the scheduler be tested with a model made of a hash. Must not know requests.

use prl_model::{Cache, Extend, Snapshot};
use prl_types::TokenId;
use std::sync::Arc;

/// One sequence's share of a step.
pub(crate) struct Work<'a, C> {
    /// What the sequence has been through; grows by `ids`.
    pub cache: &'a mut C,
    /// The tokens to add.
    pub ids: &'a [TokenId],
    /// Whether the logits after the last of `ids` are wanted.
    pub want_logits: bool,
}

/// Immutable weights with a forward.
pub(crate) trait Forward: Send + Sync + 'static {
    /// Keys and values of one sequence; a clone is a fork.
    type Cache: Clone + Send;

    /// Entries in a row of logits.
    fn vocab_size(&self) -> usize;

    /// The cache of an empty sequence.
    fn new_cache(&self) -> Self::Cache;

    /// Extends every sequence of the batch; returns `[wanted, vocab]` logits, row-major, in the order of the batch.
    fn extend(&self, batch: &mut [Work<'_, Self::Cache>]) -> Result<Vec<f32>, String>;

    /// Log-probability of `token` over the full row at `temperature`, reduced exactly as the trainer's head does.
    fn logprob(&self, logits: &[f32], token: TokenId, temperature: f32) -> f32;
}

impl Forward for Arc<dyn Snapshot> {
    type Cache = Cache;

    fn vocab_size(&self) -> usize {
        self.config().vocab_size
    }

    fn new_cache(&self) -> Cache {
        Snapshot::new_cache(self.as_ref())
    }

    fn extend(&self, batch: &mut [Work<'_, Cache>]) -> Result<Vec<f32>, String> {
        let mut batch: Vec<Extend<'_>> =
            batch.iter_mut().map(|w| Extend { cache: &mut *w.cache, ids: w.ids, want_logits: w.want_logits }).collect();
        Snapshot::extend(self.as_ref(), &mut batch).map_err(|e| e.to_string())
    }

    fn logprob(&self, logits: &[f32], token: TokenId, temperature: f32) -> f32 {
        Snapshot::logprob(self.as_ref(), logits, token, temperature)
    }
}

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
    /// The answer of the step begun before whose token is the one of `ids`.
    pub follows: Option<usize>,
    /// What is wanted of the token after the last of `ids`.
    pub want: Want<'a>,
    /// What is added to the weights for it.
    pub adapter: Option<&'a Adapter>,
}

/// Waits for the answers of a step that was begun.
pub(crate) type Answers = Box<dyn FnOnce() -> Result<Vec<Answer>, String> + Send>;

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

    /// Whether steps begin before the answers of the one before are there, and what is wanted is answered as wanted.
    fn runs_ahead(&self) -> bool {
        false
    }

    /// Begins what [`Forward::extend`] does.
    fn begin(&self, batch: &mut [Work<'_, Self::Cache>]) -> Result<Answers, String> {
        let answers = self.extend(batch)?;
        Ok(Box::new(|| Ok(answers)))
    }

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
        Snapshot::extend(self.as_ref(), &mut parts(batch)).map_err(|e| e.to_string())
    }

    fn runs_ahead(&self) -> bool {
        Snapshot::runs_ahead(self.as_ref())
    }

    fn begin(&self, batch: &mut [Work<'_, Cache>]) -> Result<Answers, String> {
        let follows: Vec<_> = batch.iter().map(|w| w.follows).collect();
        let underway = Snapshot::begin(self.as_ref(), &mut parts(batch), &follows).map_err(|e| e.to_string())?;
        Ok(Box::new(|| underway.finish().map_err(|e| e.to_string())))
    }

    fn logprob(&self, logits: &[f32], token: TokenId, temperature: f32) -> f32 {
        Snapshot::logprob(self.as_ref(), logits, token, temperature)
    }
}

fn parts<'a>(batch: &'a mut [Work<'_, Cache>]) -> Vec<Extend<'a>> {
    batch.iter_mut().map(|w| Extend { cache: &mut *w.cache, ids: w.ids, want: w.want, adapter: w.adapter }).collect()
}

//! What inference sees of a model: [`Snapshot`] to sample from, [`Cache`] for a sequence, and what it may ask for. Owns
//! these terms; must not know requests or training.

use crate::{Adapter, Communicator, Decoder, Kernels, ModelConfig, ModelError, Receiver, Trained, fast, reference};
use prl_kernels::Meter;
use prl_types::TokenId;
use std::sync::Arc;

/// An immutable copy of the policy's weights, cheap to make and to share between threads.
pub trait Snapshot: Send + Sync {
    /// The model's shape.
    fn config(&self) -> &ModelConfig;

    /// An empty key/value cache for one sequence of this model, which counts what it takes on `meter`.
    fn new_cache(&self, meter: &Meter) -> Cache;

    /// Whether items may have adapters; not where the weights have one themselves.
    fn takes_adapters(&self) -> bool {
        false
    }

    /// Runs each item's `ids` behind what its cache holds and leaves them in the cache. Returns what the items that want
    /// something want of the token that follows, in order.
    ///
    /// # Errors
    /// An item without ids, an id outside the vocabulary, a cache of another model or implementation, an adapter where none
    /// is taken, a failing device.
    fn extend(&self, batch: &mut [Extend<'_>]) -> Result<Vec<Answer>, ModelError>;

    /// Whether [`Snapshot::begin`] returns before the answers are there and takes `follows`, and everything that may be wanted is
    /// answered as wanted: tokens are drawn under filters, and scores given.
    fn runs_ahead(&self) -> bool {
        false
    }

    /// Begins what [`Snapshot::extend`] does. Where `follows[n]` names an answer of the step begun before, item n's one token
    /// is the one drawn there, whatever its `ids` say. Of two steps under way the first one is waited for first.
    ///
    /// # Errors
    /// As [`Snapshot::extend`]; an item that follows where none can or what is no drawn token.
    fn begin(&self, batch: &mut [Extend<'_>], follows: &[Option<usize>]) -> Result<Box<dyn Underway>, ModelError> {
        match follows.iter().any(Option::is_some) {
            true => Err(ModelError::Input("a sequence that goes on before its token is known".into())),
            false => Ok(Box::new(Done(self.extend(batch)?))),
        }
    }

    /// log softmax(logits / temperature)[id] of one row of logits, computed exactly as [`Learner::forward`] does on
    /// the CPU, so that sampler and trainer agree to the bit there. Temperature 0 counts as 1.
    fn logprob(&self, logits: &[f32], id: TokenId, temperature: f32) -> f32;

    /// Sends these weights to all others of a communicator, who [await](Receiver::receive) them under a number.
    ///
    /// # Errors
    /// Others do not come in time; weights that are not on a GPU.
    fn send(&self, _: &Communicator, _number: u64) -> Result<(), ModelError> {
        Err(ModelError::Input("only weights on a GPU go over NCCL".into()))
    }

    /// For the weights that follow these; none where they cannot come over a communicator.
    fn receiver(&self) -> Option<Arc<dyn Receiver>> {
        None
    }
}

/// A step that was begun.
pub trait Underway: Send {
    /// Waits for what [`Snapshot::extend`] would have returned.
    ///
    /// # Errors
    /// A failing device.
    fn finish(self: Box<Self>) -> Result<Vec<Answer>, ModelError>;
}

/// A step that was done at once.
struct Done(Vec<Answer>);

impl Underway for Done {
    fn finish(self: Box<Self>) -> Result<Vec<Answer>, ModelError> {
        Ok(self.0)
    }
}

/// One sequence's part of a call of [`Snapshot::extend`].
pub struct Extend<'a> {
    /// What came before.
    pub cache: &'a mut Cache,
    /// The new tokens, at least one.
    pub ids: &'a [TokenId],
    /// What is wanted of the token that follows.
    pub want: Want<'a>,
    /// What is added to the weights for it.
    pub adapter: Option<&'a Adapter>,
}

/// What an item wants of the distribution of the token that follows its last one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Want<'a> {
    /// Nothing.
    Nothing,
    /// Its logits.
    Logits,
    /// The logits after every one of its tokens.
    AllLogits,
    /// A token drawn from it; an implementation that does not draw answers with the logits.
    Token(Draw),
    /// How likely a label is after every one of its tokens; asked of those only that answer it.
    Scores {
        /// As many as tokens.
        labels: &'a [TokenId],
        /// Divides the logits; 0 counts as 1.
        temperature: f32,
        /// How many of the likeliest tokens are told beside each label.
        most: usize,
    },
}

/// How a token is drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Draw {
    /// Divides the logits; 0 takes the most likely token.
    pub temperature: f32,
    /// The token at which the running sum of probabilities of what is kept passes this number of [0, 1), in order of ids.
    pub uniform: f64,
    /// Keeps so many of the most likely tokens, and those as likely as the last of them.
    pub top_k: Option<usize>,
    /// Of what is left keeps the fewest most likely tokens that sum to this; an implementation may keep all that are as likely
    /// as the last of them.
    pub top_p: f32,
    /// Before those two drops tokens less likely than this fraction of the most likely one.
    pub min_p: f32,
}

/// The answer to a [`Want`].
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// `[vocab]`, or `[tokens, vocab]` where all were wanted.
    Logits(Vec<f32>),
    /// A drawn token, and its log-probability as [`Snapshot::logprob`] defines it; NaN where the logits were not sound.
    Token(TokenId, f32),
    /// Of each token.
    Scores(Vec<Score>),
}

/// How likely a label is.
#[derive(Clone, Debug, PartialEq)]
pub struct Score {
    /// As [`Snapshot::logprob`] defines it; NaN where the logits were not sound.
    pub logprob: f32,
    /// Its place by likelihood, from 1.
    pub rank: u32,
    /// The likeliest tokens and their log-probabilities, equals in order of ids.
    pub top: Vec<(TokenId, f32)>,
}

impl Want<'_> {
    /// After how many of an item's last tokens logits are wanted.
    pub(crate) fn logits(self, tokens: usize) -> usize {
        match self {
            Want::Nothing => 0,
            Want::Logits | Want::Token(_) => 1,
            Want::AllLogits | Want::Scores { .. } => tokens,
        }
    }
}

/// Rows of logits as answers, of so many rows each.
pub(crate) fn answers(mut logits: &[f32], vocab: usize, rows: impl Iterator<Item = usize>) -> Vec<Answer> {
    let take = |rows: usize| {
        let (own, rest) = logits.split_at(rows * vocab);
        logits = rest;
        Answer::Logits(own.to_vec())
    };
    rows.filter(|rows| *rows > 0).map(take).collect()
}

/// Keys and values of one sequence. A clone is a fork: both continue from the same prefix without touching each other.
#[derive(Clone)]
pub struct Cache(pub(crate) CacheKind);

#[derive(Clone)]
pub(crate) enum CacheKind {
    Fast(fast::Kv),
    Reference(reference::Kv),
    #[cfg(feature = "cuda")]
    Half(prl_kernels::cuda::decoder::Cache<prl_kernels::cuda::bf16>),
    #[cfg(feature = "cuda")]
    Full(prl_kernels::cuda::decoder::Cache<f32>),
}

impl Cache {
    /// Tokens held.
    pub fn len(&self) -> usize {
        match &self.0 {
            CacheKind::Fast(kv) => kv.len(),
            CacheKind::Reference(kv) => kv.len(),
            #[cfg(feature = "cuda")]
            CacheKind::Half(kv) => kv.len(),
            #[cfg(feature = "cuda")]
            CacheKind::Full(kv) => kv.len(),
        }
    }

    /// Whether no token is held.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Forgets all tokens from `len` on.
    pub fn truncate(&mut self, len: usize) {
        match &mut self.0 {
            CacheKind::Fast(kv) => kv.cache.truncate(len),
            CacheKind::Reference(kv) => kv.truncate(len),
            #[cfg(feature = "cuda")]
            CacheKind::Half(kv) => kv.truncate(len),
            #[cfg(feature = "cuda")]
            CacheKind::Full(kv) => kv.truncate(len),
        }
    }

    /// Bytes that `more` tokens would take.
    pub fn growth(&self, more: usize) -> usize {
        match &self.0 {
            CacheKind::Fast(kv) => kv.cache.growth(more),
            CacheKind::Reference(kv) => kv.growth(more),
            #[cfg(feature = "cuda")]
            CacheKind::Half(kv) => kv.growth(more),
            #[cfg(feature = "cuda")]
            CacheKind::Full(kv) => kv.growth(more),
        }
    }
}

impl Decoder {
    /// These weights, to sample from. No copy.
    ///
    /// # Errors
    /// The fast kernels and a device other than the CPU.
    pub fn snapshot(&self, kernels: Kernels) -> Result<Arc<dyn Snapshot>, ModelError> {
        Trained::whole(self.clone()).snapshot(kernels)
    }
}

/// For implementations that take no adapters.
pub(crate) fn check_no_adapter(adapter: Option<&Adapter>) -> Result<(), ModelError> {
    match adapter {
        Some(_) => Err(ModelError::Input("adapters are not supported here".into())),
        None => Ok(()),
    }
}

pub(crate) fn check_ids(ids: &[TokenId], config: &ModelConfig) -> Result<(), ModelError> {
    match ids.iter().find(|id| **id as usize >= config.vocab_size) {
        Some(id) => {
            Err(ModelError::Input(format!("token id {id} is outside the model's vocabulary of {}", config.vocab_size)))
        }
        None => Ok(()),
    }
}

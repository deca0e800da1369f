//! What callers ask of the engine and what they get, piece by piece. Owns these types; must not know how requests are
//! scheduled.

use crate::prefix::Salt;
use crate::{Decode, Guide, InferenceError, SamplingParams};
use prl_model::Adapter;
use prl_types::{FinishReason, PolicyVersion, TokenId};
use std::sync::Arc;

/// Whose request it is. While requests of both wait, the two take turns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Class {
    /// Rollouts to train on, and everything else.
    #[default]
    Train,
    /// Evaluation.
    Eval,
}

/// What to sample.
#[derive(Clone)]
pub struct Request {
    /// The ids to continue.
    pub prompt: Arc<[TokenId]>,
    /// How.
    pub sampling: SamplingParams,
    /// Seeds this request's own random stream.
    pub seed: u64,
    /// Whether others with the same prompt come with it or after it, such as the rest of its group: keeps what the prompt
    /// leaves in the cache as soon as it is there, not only once the request is done.
    pub shared: bool,
    /// Whether a longer prompt that begins with this one and what was sampled may come, such as the next turn's: keeps keys
    /// and values of both when the request is done.
    pub goes_on: bool,
    /// Keys and values are shared between requests of the same salt only.
    pub cache_salt: Option<Arc<str>>,
    /// What is added to the weights for it.
    pub adapter: Option<Arc<Adapter>>,
    /// What its text must be; `None` leaves it free.
    pub guide: Option<Guide>,
    /// Whether each token is told as it is drawn; else all are at the end, which costs callers and engine less.
    pub streams: bool,
    /// Whose it is.
    pub class: Class,
    /// Needed when `sampling.stop` is not empty.
    pub decode: Option<Decode>,
}

impl Request {
    /// A request of its own, which a next turn may follow: nothing shared ahead, no decoder.
    pub fn new(prompt: impl Into<Arc<[TokenId]>>, sampling: SamplingParams, seed: u64) -> Self {
        let (class, cache_salt) = (Class::Train, None);
        let (prompt, adapter) = (prompt.into(), None);
        let (guide, decode) = (None, None);
        let (shared, goes_on, streams) = (false, true, true);
        Request { prompt, sampling, seed, shared, goes_on, cache_salt, adapter, guide, streams, class, decode }
    }

    /// What its keys and values depend on besides tokens and weights.
    pub(crate) fn salt(&self) -> Salt {
        (self.cache_salt.clone(), self.adapter.as_ref().map(|adapter| adapter.id()))
    }
}

/// What comes of a request, in this order: its prompt, its tokens, its end.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The prompt is through the model.
    Prompt(PromptDone),
    /// A token was drawn.
    Token(Drawn),
    /// Nothing more comes.
    End(Result<FinishReason, InferenceError>),
}

/// A prompt that is through the model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PromptDone {
    /// Tokens whose keys and values were there already.
    pub cached_tokens: usize,
    /// Of every token but the first, if [`SamplingParams::prompt_logprobs`] asks for them.
    pub logprobs: Vec<Scored>,
}

/// A token that was drawn.
#[derive(Clone, Debug, PartialEq)]
pub struct Drawn {
    /// It, its log-probability, and those of the most likely tokens.
    pub scored: Scored,
    /// Policy version of the weights that drew it.
    pub version: PolicyVersion,
}

/// A token with log-probabilities over the full vocabulary, before any filter, at
/// [`SamplingParams::logprob_temperature`].
#[derive(Clone, Debug, PartialEq)]
pub struct Scored {
    /// The token.
    pub id: TokenId,
    /// Its log-probability.
    pub logprob: f32,
    /// Its place among all by likelihood, from 1, where others were asked for; else 0.
    pub rank: u32,
    /// The most likely tokens and their log-probabilities, the likeliest first, as many as were asked for.
    pub top: Vec<(TokenId, f32)>,
}

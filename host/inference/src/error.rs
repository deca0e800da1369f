//! What can go wrong between a request and its sampled tokens.

use prl_types::TokenId;

/// Errors of the engine.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum InferenceError {
    /// The prompt leaves no room to sample in the context.
    #[error(
        "the prompt has {prompt_tokens} tokens but the context holds {max_model_len}, one of them to be sampled; \
         shorten the prompt or raise `inference.model.max_model_len`"
    )]
    Overlong {
        /// Tokens in the prompt.
        prompt_tokens: usize,
        /// The context limit.
        max_model_len: usize,
    },
    /// A prompt without tokens.
    #[error("the prompt is empty; sampling needs at least one token to start from")]
    EmptyPrompt,
    /// A prompt token outside the model's vocabulary.
    #[error(
        "prompt token {index} is {token}, outside the model's vocabulary of {vocab_size}; check that the tokenizer belongs to the model"
    )]
    UnknownToken {
        /// Where in the prompt.
        index: usize,
        /// The id.
        token: TokenId,
        /// The model's vocabulary size.
        vocab_size: usize,
    },
    /// A sampling parameter out of range.
    #[error("sampling parameter `{name}` is {value}; it must be {want}")]
    InvalidSampling {
        /// Which.
        name: &'static str,
        /// What was given.
        value: String,
        /// What is allowed.
        want: &'static str,
    },
    /// A grammar that text cannot be bound to.
    #[error("the grammar cannot be used: {reason}")]
    BadGrammar {
        /// Why, in the words of whoever reads it.
        reason: String,
    },
    /// A grammar that was of no use any more on the way.
    #[error("the grammar leads nowhere after {tokens} tokens: {reason}")]
    Astray {
        /// Sampled tokens.
        tokens: usize,
        /// Why.
        reason: String,
    },
    /// An engine setting out of range.
    #[error("engine setting `{name}` must be at least 1")]
    InvalidConfig {
        /// Which.
        name: &'static str,
    },
    /// A request with an adapter, where the weights take none.
    #[error("adapters are not supported with the kernels `reference`")]
    NoAdapters,
    /// More requests wait than are let in.
    #[error("{waiting} requests wait already; try again later")]
    Busy {
        /// So many.
        waiting: usize,
    },
    /// A request needs more memory for keys and values than there is, although no other one runs.
    #[error("the request does not fit into the {budget} bytes for keys and values")]
    CacheFull {
        /// The bound.
        budget: usize,
    },
    /// The memory for keys and values does not hold one sequence of full length.
    #[error(
        "keys and values of one sequence of {max_model_len} tokens take {needed} bytes, but there are {budget}; give more \
         memory, or lower `inference.model.max_model_len`"
    )]
    CacheTooSmall {
        /// The bound.
        budget: usize,
        /// What a sequence takes.
        needed: usize,
        /// Its length.
        max_model_len: usize,
    },
    /// The model produced a logit that is not a number, or infinite.
    #[error("the model's logit of token {token} is {value}; its weights have probably diverged")]
    NonFiniteLogits {
        /// The vocabulary entry.
        token: TokenId,
        /// What it was.
        value: f32,
    },
    /// The model failed or the engine's thread panicked; the engine serves no more requests.
    #[error("the inference engine failed: {message}")]
    Failed {
        /// The model's error, or the panic's message.
        message: String,
    },
    /// The engine was shut down before the request was done.
    #[error("the inference engine was shut down before the request was done")]
    Shutdown,
}

//! The vocabulary of the data plane: messages, tasks, rollouts, samples, streams, batches.
//!
//! Owns plain data and its invariants. Must not know how anything is computed: no tensors, no files, no threads.

mod batch;
mod env;
mod ids;
mod loss;
mod message;
mod rollout;
mod sample;
mod stats;

pub use batch::{Batch, BatchItem};
pub use env::{EnvTurn, RolloutContext, SamplingHints, Stop};
pub use ids::{GroupId, PolicyVersion, RolloutId, Step, TokenId};
pub use loss::{LossBatch, LossGradient};
pub use message::{Message, Role, ToolCall, ToolDef};
pub use rollout::{
    Branch, ErrorKind, Eval, Metric, RewardComponent, Rollout, RolloutError, Score, Task, Timing, Truncation, Turn,
    check_value,
};
pub use sample::{FinishReason, RoleSpan, Sample, SampleError, Sampled, Streams};
pub use stats::{Summary, masked_mean};

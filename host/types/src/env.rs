//! What an environment is told and says in a rollout. Owns the terms; must not know how they reach the host or what is
//! done with them.

use crate::{Message, Metric, ToolDef};
use serde::{Deserialize, Serialize};

/// What a rollout is told about itself; its seed is all the randomness it may use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RolloutContext {
    /// Unique in the run.
    pub id: String,
    /// Seed of this rollout.
    pub seed: u64,
    /// Its place in the group, from 0.
    pub member: u32,
    /// Rollouts in the group.
    pub group_size: u32,
    /// Trainer step of the sampling policy.
    pub step: u64,
    /// Whether it is an evaluation.
    pub eval: bool,
}

/// The environment's word that a rollout is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stop {
    /// Cut off by the environment's own limit rather than ended (success and failure alike).
    pub truncated: bool,
    /// Such as `answered`.
    pub reason: String,
}

/// How an environment would like the next turn to be sampled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SamplingHints {
    /// Most tokens, where the run's own limit is not lower.
    pub max_tokens: Option<u32>,
    /// Texts that end the turn, beside the run's.
    pub stop: Vec<String>,
}

/// What an environment says after `start` or `step`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EnvTurn {
    /// Appended to the conversation before the next sampled turn.
    pub messages: Vec<Message>,
    /// Dense credit for the turn just taken; added to the rollout's reward.
    pub reward: Option<f64>,
    /// Set when the rollout is over.
    pub stop: Option<Stop>,
    /// Replaces the offered tools from the next sampled turn on.
    pub tools: Option<Vec<ToolDef>>,
    /// Numbers without reward, added up over turns by name.
    pub metrics: Vec<Metric>,
    /// For the next sampled turn only.
    pub sampling: SamplingHints,
}

//! Groups and batches as JSON. Owns the format of recorded data; must not know what is done with it.

use crate::Role;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The rollouts of one task.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RecordedGroup {
    /// Number of the group in its run.
    pub group_id: u64,
    /// The environment's name in the run.
    pub env: String,
    /// Identity of the task across runs.
    pub task_key: String,
    /// The task's own data.
    pub payload: Value,
    /// The reference answer; null when there is none.
    pub answer: Value,
    /// Those that ended without an error.
    pub rollouts: Vec<RecordedRollout>,
}

/// One rollout.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RecordedRollout {
    /// Place among all members of the group; by default its place in the list.
    pub member: Option<u32>,
    /// Total reward.
    pub reward: f64,
    /// Whether it was cut off.
    pub truncated: bool,
    /// Version of the weights when its group started.
    pub policy_version: u64,
    /// Why it ended.
    pub stop_condition: String,
    /// From the environment's scoring; null when there is nothing.
    pub score_info: Value,
    /// The lines of the rubric.
    pub components: Vec<RecordedComponent>,
    /// Numbers that carry no reward.
    pub metrics: Vec<RecordedMetric>,
    /// The sampled turns.
    pub turns: Vec<RecordedTurn>,
    /// One per branch of the conversation.
    pub samples: Vec<RecordedSample>,
}

impl Default for RecordedRollout {
    fn default() -> Self {
        RecordedRollout {
            member: None,
            reward: 0.0,
            truncated: false,
            policy_version: 0,
            stop_condition: "done".into(),
            score_info: Value::Null,
            components: Vec::new(),
            metrics: Vec::new(),
            turns: Vec::new(),
            samples: Vec::new(),
        }
    }
}

/// A line of the rubric.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)] // see `crate::Component`
pub struct RecordedComponent {
    pub name: String,
    pub value: f64,
    pub weight: f64,
}

/// A named number.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)] // see `crate::Metric`
pub struct RecordedMetric {
    pub name: String,
    pub value: f64,
}

/// A sampled turn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordedTurn {
    /// Sampled tokens.
    pub tokens: u64,
    /// The environment's credit for this turn.
    #[serde(default)]
    pub reward: Option<f64>,
}

/// A run of tokens that came from one message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Span {
    /// First token.
    pub start: usize,
    /// Number of tokens.
    pub len: usize,
    /// The message's role.
    pub role: Role,
    /// Whether they are the message's own text rather than the template's scaffold.
    pub is_content: bool,
}

/// One branch of a rollout. Lists have one entry a token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RecordedSample {
    /// Vocabulary indices.
    pub token_ids: Vec<u32>,
    /// True where the model sampled the token.
    pub mask: Vec<bool>,
    /// Log-probability when drawn; 0 where the mask is false.
    pub logprobs: Vec<f32>,
    /// Sampling temperature.
    pub temperature: f32,
    /// Oldest and newest weights that drew a token.
    pub versions: [u64; 2],
    /// Roles; left out: sampled tokens are the assistant's, others the user's, all content.
    pub spans: Option<Vec<Span>>,
    /// Log-probability under the reference.
    pub ref_logprobs: Option<Vec<f32>>,
}

impl Default for RecordedSample {
    fn default() -> Self {
        RecordedSample {
            token_ids: Vec::new(),
            mask: Vec::new(),
            logprobs: Vec::new(),
            temperature: 1.0,
            versions: [0, 0],
            spans: None,
            ref_logprobs: None,
        }
    }
}

/// A packed micro-batch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordedBatch {
    /// Members in the whole step; left out: those of this batch.
    #[serde(default)]
    pub normalizer: Option<f64>,
    /// The samples.
    pub samples: Vec<RecordedBatchSample>,
}

/// One sample of a batch. Lists have one entry a token.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordedBatchSample {
    /// Vocabulary indices; left out: 0.
    #[serde(default)]
    pub token_ids: Option<Vec<u32>>,
    /// True where the model sampled the token.
    pub mask: Vec<bool>,
    /// Log-probability under the weights being trained.
    pub trainer_logprobs: Vec<f32>,
    /// Log-probability when drawn.
    pub sampling_logprobs: Vec<f32>,
    /// Advantages.
    pub advantages: Vec<f32>,
    /// Weights in the rl component; left out: 1 on sampled tokens but the first, 0 elsewhere.
    #[serde(default)]
    pub rl_weights: Option<Vec<f32>>,
    /// Log-probability under the reference.
    #[serde(default)]
    pub ref_logprobs: Option<Vec<f32>>,
    /// Entropies, nats; left out: 0.
    #[serde(default)]
    pub entropy: Option<Vec<f32>>,
    /// Sampling temperature; left out: 1.
    #[serde(default)]
    pub temperature: Option<f32>,
    /// Oldest and newest weights that drew a token.
    #[serde(default)]
    pub versions: [u64; 2],
}

//! Tasks, rollouts and what the environment says about them.

use crate::{Message, PolicyVersion, RolloutId, Sample, Streams, ToolDef};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::sync::Arc;

/// A task: plain data made by an environment, enough to start any number of rollouts anywhere.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Task {
    /// The environment's name in the run (not its file).
    pub env: String,
    /// `train` or `eval`, or another split of the environment.
    pub split: String,
    /// Index within the split.
    pub index: u64,
    /// Seed the task was made from.
    pub seed: u64,
    /// Identity across runs.
    pub key: String,
    /// The conversation before the first sampled turn.
    pub prompt: Vec<Message>,
    /// Tools offered to the model.
    pub tools: Vec<ToolDef>,
    /// Reference answer; never shown to the model.
    pub answer: Option<Value>,
    /// What the environment needs to rebuild the rollout.
    pub payload: Value,
    /// The environment's own bound on turns.
    pub max_turns: Option<u32>,
    /// Free labels.
    pub tags: Vec<String>,
}

/// A named number.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Metric {
    /// Name.
    pub name: String,
    /// Value, finite.
    pub value: f64,
}

impl Metric {
    /// Adds `more` to `sums` by name.
    pub fn add_all(sums: &mut Vec<Metric>, more: &[Metric]) {
        for metric in more {
            match sums.iter_mut().find(|known| known.name == metric.name) {
                Some(known) => known.value += metric.value,
                None => sums.push(metric.clone()),
            }
        }
    }
}

/// One line of the rubric.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RewardComponent {
    /// Name.
    pub name: String,
    /// Value, finite.
    pub value: f64,
    /// Weight in the total.
    pub weight: f64,
}

/// What an environment's `score` gave.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Score {
    /// The rubric's lines.
    pub components: Vec<RewardComponent>,
    /// Numbers that carry no reward.
    pub metrics: Vec<Metric>,
    /// Free-form explanation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub info: Option<Value>,
}

impl Score {
    /// Σ value·weight, in f64.
    pub fn total(&self) -> f64 {
        self.components.iter().map(|c| c.value * c.weight).sum()
    }

    /// A rollout's reward: Σ value·weight plus the rewards of its turns.
    pub fn reward(&self, turns: &[Turn]) -> f64 {
        self.total() + turns.iter().filter_map(|turn| turn.reward).sum::<f64>()
    }

    /// Takes in what turns counted, but for names that the score has itself.
    pub fn take_counted(&mut self, counted: Vec<Metric>) {
        for metric in counted {
            if !self.metrics.iter().any(|known| known.name == metric.name) {
                self.metrics.push(metric);
            }
        }
    }
}

/// Largest magnitude of a reward, component or metric; anything beyond would drown every other number it is averaged
/// with.
const MAX_VALUE: f64 = 1e9;

/// Checks a number that an environment gave; `what` names it.
///
/// # Errors
/// It is not finite or too large.
pub fn check_value(what: &str, value: f64) -> Result<(), String> {
    if value.is_finite() && value.abs() <= MAX_VALUE {
        return Ok(());
    }
    Err(format!("{what} is {value:e}; values must be finite and at most {MAX_VALUE:e} in magnitude"))
}

/// Whose fault an error was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ErrorKind {
    /// The environment: a trap, a typed error, a limit, an invalid value.
    EnvError,
    /// The inference engine.
    ProviderError,
    /// The prompt does not fit the context.
    OverlongPromptError,
    /// Dropped by the host, for example as too old.
    Cancelled,
    /// Ended without a sampled token.
    EmptyTrajectory,
}

/// Why a rollout gave nothing to train on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RolloutError {
    /// Whose fault.
    pub kind: ErrorKind,
    /// What happened.
    pub message: String,
}

/// Who cut a rollout off, and why.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Truncation {
    /// For example `max_turns`, `context`, `max_completion_tokens`.
    pub reason: String,
}

/// Wall-clock seconds of a rollout's phases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Timing {
    /// Environment start.
    pub setup: f64,
    /// Sampling and environment steps.
    pub generation: f64,
    /// Of `generation`: in the model.
    pub model: f64,
    /// Scoring.
    pub scoring: f64,
    /// All of it.
    pub total: f64,
}

/// One sampled assistant turn as text, for records and algorithms.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Turn {
    /// What the model said, parsed.
    pub message: Message,
    /// Sampled tokens.
    pub tokens: usize,
    /// Dense credit from the environment for this turn.
    pub reward: Option<f64>,
    /// What the environment answered.
    pub replies: Vec<Message>,
}

/// A path through a rollout's messages that was sampled as one growing sequence of tokens: the prompt of its first turn is
/// the whole conversation before that turn, and each further turn follows the tokens before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Branch {
    /// Its first turn, from 0.
    pub first: usize,
    /// Turns on it; the next branch begins after them.
    pub turns: usize,
    /// Tokens of the sample made of it, prompt included.
    pub tokens: usize,
    /// Whether the algorithm gave any of its tokens a weight in the loss: it trains where the rollout is effective.
    pub trained: bool,
    /// Mean advantage of its sampled tokens; nothing where the algorithm gave none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advantage: Option<f64>,
}

/// One attempt at a task, finished or failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rollout {
    /// Which.
    pub id: RolloutId,
    /// How often it was started before, and failed; not written where that is 0.
    #[serde(default, skip_serializing_if = "is_first")]
    pub attempt: u32,
    /// The task.
    pub task: Arc<Task>,
    /// Sampled turns.
    pub turns: Vec<Turn>,
    /// How the turns lie on branches, in the order of `samples`; none in logs of older versions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub branches: Vec<Branch>,
    /// Training samples: one per branch.
    #[serde(skip)]
    pub samples: Vec<Sample>,
    /// What the algorithm wrote, one per sample; empty before scoring.
    #[serde(skip)]
    pub streams: Vec<Streams>,
    /// Total reward: Σ weight·component plus per-turn rewards.
    pub reward: f64,
    /// The environment's rubric and metrics.
    pub score: Score,
    /// Set when the rollout failed; such a rollout never trains.
    pub error: Option<RolloutError>,
    /// Set when it was cut off.
    pub truncation: Option<Truncation>,
    /// The environment's or the host's word for the end.
    pub stop_condition: String,
    /// Names of the filters that flagged it.
    pub filters: Vec<String>,
    /// Whether an enforced filter took it out of training.
    pub is_filtered: bool,
    /// Policy version visible when its group started.
    pub policy_version: PolicyVersion,
    /// Where the time went.
    pub timing: Timing,
}

fn is_first(attempt: &u32) -> bool {
    *attempt == 0
}

impl Rollout {
    /// A record with nothing in it yet.
    pub fn new(id: RolloutId, task: Arc<Task>, policy_version: PolicyVersion) -> Self {
        Rollout {
            id,
            attempt: 0,
            task,
            turns: Vec::new(),
            branches: Vec::new(),
            samples: Vec::new(),
            streams: Vec::new(),
            reward: 0.0,
            score: Score::default(),
            error: None,
            truncation: None,
            stop_condition: String::new(),
            filters: Vec::new(),
            is_filtered: false,
            policy_version,
            timing: Timing::default(),
        }
    }

    /// Marks it as failed.
    pub fn fail(&mut self, error: RolloutError) {
        self.stop_condition = "error".into();
        self.error = Some(error);
    }

    /// The whole conversation: the prompt, what the environment opened with, and every turn with its replies.
    pub fn conversation<'a>(&self, opening: impl IntoIterator<Item = &'a Message>) -> Vec<Message> {
        let mut messages = self.task.prompt.clone();
        messages.extend(opening.into_iter().cloned());
        for turn in &self.turns {
            messages.push(turn.message.clone());
            messages.extend(turn.replies.iter().cloned());
        }
        messages
    }

    /// Sampled tokens over all samples.
    pub fn output_tokens(&self) -> usize {
        self.samples.iter().map(Sample::output_tokens).sum()
    }

    /// All tokens over all samples.
    pub fn total_tokens(&self) -> usize {
        self.samples.iter().map(Sample::len).sum()
    }

    /// No error and not filtered.
    pub fn is_effective(&self) -> bool {
        self.error.is_none() && !self.is_filtered
    }
}

/// The result of one evaluation of one environment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Eval {
    /// The environment's name.
    pub env: String,
    /// Step after which it ran (0 = before training).
    pub step: u64,
    /// Policy version that was evaluated.
    pub policy_version: PolicyVersion,
    /// Rollouts per example.
    pub group_size: u32,
    /// All rollouts.
    pub rollouts: Vec<Rollout>,
    /// Wall-clock seconds.
    pub seconds: f64,
}

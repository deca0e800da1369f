//! What a run hands out about itself: where it stands, what a step did, how it ended.

use crate::size::Lengths;
use prl_types::Step;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How far a run has come after a step. A run that goes on from this alone samples anew what a [`State`](crate::State) holds
/// beside it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Progress {
    /// The last step whose batch is included.
    pub step: Step,
    /// Id of the first group that had not been opened.
    pub next_group: u64,
    /// Tasks that each training environment had given before `next_group`, by name.
    pub tasks_taken: BTreeMap<String, u64>,
    /// Tokens shipped to the trainer.
    pub total_tokens: u64,
    /// Rollouts shipped to the trainer.
    pub total_rollouts: u64,
    /// Tasks of these rollouts.
    pub total_tasks: u64,
    /// States of the algorithms that have one, by training environment: what [`Algorithm::state`](crate::Algorithm::state)
    /// gave after the last group that was scored.
    #[serde(default)]
    pub algorithms: BTreeMap<String, String>,
    /// Lengths of the rollouts of the last batch, from which one of tokens is planned.
    #[serde(default)]
    pub lengths: Lengths,
    /// Latest mean reward of each task, by index, of the training environments with difficulty pools.
    #[serde(default)]
    pub rewards: BTreeMap<String, BTreeMap<u64, f64>>,
}

/// Which rollouts are started first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Those of training.
    PreferTrain,
    /// Those of an evaluation; none of training.
    PreferEval,
}

/// Where a run stands between two steps.
#[derive(Clone, Debug, PartialEq)]
pub struct Status {
    /// The step that is sampled for.
    pub step: Step,
    /// What is started first.
    pub mode: Mode,
    /// Training rollouts under way.
    pub inflight_train: usize,
    /// Evaluation rollouts under way.
    pub inflight_eval: usize,
    /// What waits for a batch, in rollouts, or in tokens with `token_batch_size`.
    pub waiting: usize,
    /// What a batch takes, in the same unit.
    pub batch: usize,
    /// `dispatcher/…`; counts are since the start of the process.
    pub metrics: BTreeMap<String, f64>,
}

/// One environment's part of a step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EnvShare {
    /// The environment.
    pub env: String,
    /// Its share of the step's rollouts.
    pub ratio: f64,
    /// Mean reward of rollouts without an error.
    pub reward: f64,
    /// Mean number of turns.
    pub turns: f64,
    /// Mean number of branches.
    pub branches: f64,
    /// Share of failed rollouts.
    pub error_rate: f64,
    /// Share of truncated rollouts.
    pub truncation_rate: f64,
    /// Rollouts that train.
    pub trainable: usize,
    /// Rollouts in the batch before the post-batch filters.
    pub batch: usize,
    /// Versions between the policy of the oldest trained token and the newest one before the step.
    pub max_off_policy: u64,
}

/// A trained step.
#[derive(Clone, Debug, PartialEq)]
pub struct StepReport {
    /// The step; its result is the policy version of the same number.
    pub step: Step,
    /// Seconds since the previous report.
    pub seconds: f64,
    /// The orchestrator's metrics by full name.
    pub metrics: BTreeMap<String, f64>,
    /// The trainer's metrics by full name.
    pub train: BTreeMap<String, f64>,
    /// Over all rollouts handled for this step.
    pub all: EnvShare,
    /// The same for each environment; empty where there is only one.
    pub envs: Vec<EnvShare>,
}

/// How a run ended without an error.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Whether it was stopped before its last step.
    pub stopped: bool,
    /// State after the last trained step.
    pub progress: Progress,
}

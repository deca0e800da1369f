//! Why a run ends early. Knows no exit codes; the binary maps them.

use crate::Purpose;
use prl_types::{GroupId, Step};

/// The reasons for which [`run`](crate::run) gives up.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    /// A setting that cannot work; found before anything runs.
    #[error("`{key}`: {reason}")]
    Settings {
        /// Which setting.
        key: String,
        /// What is wrong and how to fix it.
        reason: String,
    },
    /// The environment failed for every rollout of its first group, before the model said a word.
    #[error("environment `{env}` failed on its first task, before the first turn: {message}")]
    EnvFailedAtStart {
        /// What it is there for.
        purpose: Purpose,
        /// The environment.
        env: String,
        /// The environment's own words.
        message: String,
    },
    /// Too many batches in a row had nothing to train on.
    #[error("step {step}: {batches} batches in a row had nothing to train on; {reason}")]
    NothingToTrain {
        /// The step that could not be filled.
        step: Step,
        /// How many, counted in batches.
        batches: usize,
        /// Where the rollouts went.
        reason: String,
    },
    /// Most of the recent rollouts failed.
    #[error(
        "step {step}: {errors} of the last {window} rollouts of environment `{env}` failed, above `max_error_rate` = {limit}; \
         most frequent: {reason}"
    )]
    ErrorRate {
        /// The environment.
        env: String,
        /// The step being sampled.
        step: Step,
        /// Failed rollouts in the window.
        errors: usize,
        /// Size of the window.
        window: usize,
        /// The limit as a share.
        limit: f64,
        /// The most frequent error and its count.
        reason: String,
    },
    /// The algorithm failed or gave invalid streams.
    #[error("scoring of group {} with the algorithm of environment `{env}` failed: {message}", group.0)]
    Algorithm {
        /// The environment whose algorithm it was.
        env: String,
        /// The group.
        group: GroupId,
        /// What the algorithm or its validation said.
        message: String,
    },
    /// The engine refused a new policy version.
    #[error("policy version {version} could not be made visible: {message}")]
    Policy {
        /// The version.
        version: u64,
        /// What the engine said.
        message: String,
    },
    /// The engine has ended; nothing can be sampled any more.
    #[error("{message}")]
    PolicyEnded {
        /// What ended it.
        message: String,
    },
    /// Training failed.
    #[error("training step {step} failed: {message}")]
    Trainer {
        /// The step.
        step: Step,
        /// What the trainer said.
        message: String,
    },
    /// A task of this process panicked: a bug.
    #[error("a worker of the orchestrator panicked: {0}")]
    Panic(String),
}

impl Error {
    pub(crate) fn settings(key: impl Into<String>, reason: impl Into<String>) -> Self {
        Error::Settings { key: key.into(), reason: reason.into() }
    }
}

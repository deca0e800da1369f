//! The orchestrator's options and their checks. Plain values; where they come from is not its business.

use crate::{Curriculum, Error, State};
use std::collections::BTreeSet;
use std::time::Duration;

/// How tokens are drawn.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// 0 is greedy (evaluation only).
    pub temperature: f32,
    /// Nucleus; 1 is off.
    pub top_p: f32,
    /// Most likely tokens kept; `None` is off.
    pub top_k: Option<u32>,
    /// Least probability relative to the most likely token; 0 is off.
    pub min_p: f32,
    /// Most tokens a turn; `None` is up to the context.
    pub max_completion_tokens: Option<usize>,
    /// Texts that end a turn.
    pub stop: Vec<String>,
}

impl Default for Sampling {
    fn default() -> Self {
        Sampling {
            temperature: 1.0,
            top_p: 1.0,
            top_k: None,
            min_p: 0.0,
            max_completion_tokens: None,
            stop: Vec::new(),
        }
    }
}

/// What a filter looks for. Names as in the configuration.
#[derive(Clone, Debug, PartialEq)]
pub enum FilterKind {
    /// `gibberish`: a sampled token with id > `token_id_threshold` and logprob < −ln(vocab) − `logprob_offset`.
    Gibberish {
        /// Rare tokens have ids above it.
        token_id_threshold: u32,
        /// Margin below a uniform draw.
        logprob_offset: f64,
    },
    /// `repetition`: `window` consecutive sampled tokens with probability above `prob_threshold`.
    Repetition {
        /// Tokens in a row.
        window: usize,
        /// Probability.
        prob_threshold: f64,
    },
    /// `zero_advantage`: advantages are there and all are 0.
    ZeroAdvantage,
}

/// A filter and whether it acts.
#[derive(Clone, Debug, PartialEq)]
pub struct Filter {
    /// What it looks for.
    pub kind: FilterKind,
    /// Takes flagged rollouts out of training; otherwise they are only counted.
    pub enforce: bool,
}

/// One training environment.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainEnv {
    /// Its name in the run; unique.
    pub name: String,
    /// Split tasks come from.
    pub split: String,
    /// Relative share of groups.
    pub ratio: f64,
    /// Rollouts of a task.
    pub group_size: u32,
    /// How it is sampled.
    pub sampling: Sampling,
    /// The host's bound on turns.
    pub max_turns: Option<u32>,
    /// Wall clock of a rollout before it is cut off and scored.
    pub timeout: Option<Duration>,
    /// How its tasks are chosen.
    pub curriculum: Curriculum,
}

/// One evaluation environment.
#[derive(Clone, Debug, PartialEq)]
pub struct EvalEnv {
    /// Its name in the run; unique among evaluation environments.
    pub name: String,
    /// Split tasks come from.
    pub split: String,
    /// The first so many tasks; `None` is all.
    pub num_examples: Option<u64>,
    /// Rollouts of a task.
    pub group_size: u32,
    /// Steps between evaluations.
    pub interval: u64,
    /// How it is sampled.
    pub sampling: Sampling,
    /// The host's bound on turns.
    pub max_turns: Option<u32>,
    /// Wall clock of a rollout before it is cut off and scored.
    pub timeout: Option<Duration>,
}

/// Options of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// All randomness comes from it.
    pub seed: u64,
    /// Last step; `None` runs until stopped.
    pub max_steps: Option<u64>,
    /// Rollouts a step.
    pub batch_size: usize,
    /// Tokens a step instead: whole rollouts until there are at least so many. Needs `max_inflight_rollouts`.
    pub token_batch_size: Option<usize>,
    /// Rollouts under way at once; `None` is `max(group_size, batch_size * oversampling_factor)`.
    pub max_inflight_rollouts: Option<usize>,
    /// See `max_inflight_rollouts`.
    pub oversampling_factor: f64,
    /// Most tokens of a rollout's context, prompt included.
    pub seq_len: usize,
    /// Rollouts that may start in a minute, evaluations included; at once as many, then evenly.
    pub tasks_per_minute: Option<u32>,
    /// How often a rollout that fails in its environment or engine is started again, with the same seed.
    pub max_retries: u32,
    /// Time between two calls of [`Observer::status`](crate::Observer::status); none at all without.
    pub status_interval: Option<Duration>,
    /// Steps that sampling may run ahead of training; 0 is synchronous.
    pub max_async_level: u64,
    /// Oldest policy that may train: batch n trains no token older than version n − 1 − this.
    pub max_off_policy_steps: u64,
    /// Results independent of timing; see the crate's documentation.
    pub deterministic: bool,
    /// Applied when a group is scored; a dropped rollout is replaced by sampling more.
    pub pre_batch_filters: Vec<Filter>,
    /// Applied when a batch is cut; a dropped rollout is not replaced.
    pub post_batch_filters: Vec<Filter>,
    /// Tokens in the vocabulary.
    pub vocab_size: usize,
    /// Batches in a row without anything to train after which the run ends.
    pub max_empty_batches: usize,
    /// Share of failed rollouts (environment or engine), among the last `max(32, 2 * batch_size)` of one environment,
    /// above which the run ends.
    pub max_error_rate: f64,
    /// How long a stop waits for the training step that is under way.
    pub stop_grace: Duration,
    /// Which steps' checkpoints hold a [`State`]; `None` is none.
    pub checkpoints: Option<Due>,
    /// How long a stop waits for what a checkpoint that is due still lacks.
    pub checkpoint_grace: Duration,
    /// Training environments, at least one.
    pub train: Vec<TrainEnv>,
    /// Evaluation environments.
    pub eval: Vec<EvalEnv>,
    /// Leaves out the evaluation before training.
    pub skip_first_eval: bool,
    /// Where to go on.
    pub resume: Option<State>,
    /// Evaluation environments that had been evaluated with the version that is gone on from.
    pub evaluated: BTreeSet<String>,
}

/// Which steps are saved: the last, and those that `interval` divides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Due {
    /// Steps between two.
    pub interval: Option<u64>,
}

impl Due {
    /// Whether `step` is one of them, in a run up to `last`.
    pub fn includes(self, step: u64, last: Option<u64>) -> bool {
        last == Some(step) || self.interval.is_some_and(|interval| step.is_multiple_of(interval))
    }
}

impl Default for Settings {
    /// The documented defaults, with no environment.
    fn default() -> Self {
        let filters = |enforce| {
            vec![
                Filter {
                    kind: FilterKind::Gibberish { token_id_threshold: 100_000, logprob_offset: 2.0 },
                    enforce: false,
                },
                Filter { kind: FilterKind::Repetition { window: 3000, prob_threshold: 0.99 }, enforce: false },
                Filter { kind: FilterKind::ZeroAdvantage, enforce },
            ]
        };
        Settings {
            seed: 0,
            max_steps: None,
            batch_size: 128,
            token_batch_size: None,
            max_inflight_rollouts: None,
            oversampling_factor: 1.0,
            seq_len: 2048,
            tasks_per_minute: None,
            max_retries: 0,
            status_interval: None,
            max_async_level: 1,
            max_off_policy_steps: 8,
            deterministic: true,
            pre_batch_filters: filters(false),
            post_batch_filters: filters(true),
            vocab_size: 0,
            max_empty_batches: 10,
            max_error_rate: 0.9,
            stop_grace: Duration::from_millis(500),
            checkpoints: None,
            checkpoint_grace: Duration::from_secs(30),
            train: Vec::new(),
            eval: Vec::new(),
            skip_first_eval: false,
            resume: None,
            evaluated: BTreeSet::new(),
        }
    }
}

impl Settings {
    /// Rollouts that may be under way at once.
    pub fn max_inflight(&self) -> usize {
        let sizes = self.train.iter().map(|e| e.group_size).chain(self.eval.iter().map(|e| e.group_size));
        let largest = sizes.max().unwrap_or(1) as usize;
        let wanted = (self.batch_size as f64 * self.oversampling_factor) as usize;
        self.max_inflight_rollouts.unwrap_or(wanted.max(largest)).max(1)
    }

    pub(crate) fn start_step(&self) -> u64 {
        self.resume.as_ref().map_or(0, |state| state.progress.step)
    }

    pub(crate) fn validate(&self) -> Result<(), Error> {
        let bad = |key: &str, reason: String| Err(Error::settings(key, reason));
        if self.batch_size == 0 {
            return bad("batch_size", "must be at least 1".into());
        }
        if self.seq_len < 2 {
            return bad("seq_len", format!("is {}; one prompt token and one sampled token need 2", self.seq_len));
        }
        if !(self.oversampling_factor.is_finite() && self.oversampling_factor > 0.0) {
            return bad("oversampling_factor", format!("is {}; must be above 0", self.oversampling_factor));
        }
        if self.max_inflight_rollouts == Some(0) {
            return bad("max_inflight_rollouts", "must be at least 1".into());
        }
        if self.token_batch_size == Some(0) {
            return bad("token_batch_size", "must be at least 1".into());
        }
        if self.token_batch_size.is_some() && self.max_inflight_rollouts.is_none() {
            let reason = "is missing: `token_batch_size` does not say how many rollouts may be under way";
            return bad("max_inflight_rollouts", reason.into());
        }
        if self.tasks_per_minute == Some(0) {
            return bad("tasks_per_minute", "must be at least 1".into());
        }
        if self.max_off_policy_steps < self.max_async_level {
            return bad(
                "max_off_policy_steps",
                format!(
                    "is {}, but `max_async_level` = {} makes every batch that old; raise the first or lower the second",
                    self.max_off_policy_steps, self.max_async_level
                ),
            );
        }
        if !(0.0..=1.0).contains(&self.max_error_rate) {
            return bad("max_error_rate", format!("is {}; must be between 0 and 1", self.max_error_rate));
        }
        if self.max_empty_batches == 0 {
            return bad("max_empty_batches", "must be at least 1".into());
        }
        if self.train.is_empty() {
            return bad("train.env", "is empty; name at least one environment".into());
        }
        for (i, env) in self.train.iter().enumerate() {
            let key = |field: &str| format!("train.env.{}.{field}", env.name);
            if self.train[..i].iter().any(|other| other.name == env.name) {
                return bad(&key("name"), "is used twice; names must be unique".into());
            }
            if !(env.ratio.is_finite() && env.ratio > 0.0) {
                return bad(&key("ratio"), format!("is {}; must be above 0", env.ratio));
            }
            if env.group_size == 0 {
                return bad(&key("group_size"), "must be at least 1".into());
            }
            if env.sampling.temperature <= 0.0 {
                return bad(
                    &key("sampling.temperature"),
                    "is 0, which makes all rollouts of a group equal; must be above 0 in training".into(),
                );
            }
            check_sampling(&key("sampling"), &env.sampling)?;
            env.curriculum.validate().map_err(|(part, e)| Error::settings(key(&format!("curriculum.{part}")), e))?;
        }
        for (i, env) in self.eval.iter().enumerate() {
            let key = |field: &str| format!("eval.env.{}.{field}", env.name);
            if self.eval[..i].iter().any(|other| other.name == env.name) {
                return bad(&key("name"), "is used twice; names must be unique".into());
            }
            if env.group_size == 0 {
                return bad(&key("group_size"), "must be at least 1".into());
            }
            if env.interval == 0 {
                return bad(&key("interval"), "must be at least 1".into());
            }
            check_sampling(&key("sampling"), &env.sampling)?;
        }
        Ok(())
    }
}

fn check_sampling(key: &str, sampling: &Sampling) -> Result<(), Error> {
    if !sampling.temperature.is_finite() || sampling.temperature < 0.0 {
        return Err(Error::settings(format!("{key}.temperature"), format!("is {}", sampling.temperature)));
    }
    if sampling.temperature > 0.0 && !sampling.temperature.recip().is_finite() {
        let reason = format!("is {}, too close to 0; use 0 for greedy decoding", sampling.temperature);
        return Err(Error::settings(format!("{key}.temperature"), reason));
    }
    if sampling.stop.iter().any(String::is_empty) {
        return Err(Error::settings(format!("{key}.stop"), "holds an empty text, which would end every turn at once"));
    }
    if sampling.max_completion_tokens == Some(0) {
        return Err(Error::settings(format!("{key}.max_completion_tokens"), "must be at least 1"));
    }
    Ok(())
}

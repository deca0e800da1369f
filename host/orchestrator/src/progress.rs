//! What a run hands out about itself: where it stands, what a step did, how it ended, and the console lines of these.

use prl_types::{Eval, Step};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// The orchestrator's state after a step, enough to go on from it; see the crate's documentation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Progress {
    /// The last step whose batch is included.
    pub step: Step,
    /// Id of the first group that no batch up to `step` has used.
    pub next_group: u64,
    /// Tasks that each training environment had given before `next_group`, by name.
    pub tasks_taken: BTreeMap<String, u64>,
    /// Tokens shipped to the trainer.
    pub total_tokens: u64,
    /// Rollouts shipped to the trainer.
    pub total_rollouts: u64,
    /// Tasks of these rollouts.
    pub total_tasks: u64,
}

/// One environment's part of a step.
#[derive(Clone, Debug, PartialEq)]
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
}

/// A trained step. `Display` is its console line.
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
    /// Rollouts that trained.
    pub trainable: usize,
    /// Rollouts in the batch before the post-batch filters.
    pub batch: usize,
    /// Versions between the policy of the oldest trained token and the newest one before this step.
    pub max_off_policy: u64,
}

impl fmt::Display for StepReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Step {} | {} | Reward {:.4} | Trainable {}/{} ({:.1}%) | Turns {:.1} | Branches {:.1} | Max Off-Policy {} | \
             Error {:.1}% | Truncation {:.1}%",
            self.step,
            duration(self.seconds),
            self.all.reward,
            self.trainable,
            self.batch,
            100.0 * self.trainable as f64 / self.batch.max(1) as f64,
            self.all.turns,
            self.all.branches,
            self.max_off_policy,
            100.0 * self.all.error_rate,
            100.0 * self.all.truncation_rate,
        )?;
        for env in &self.envs {
            write!(
                f,
                "\n╰─ {} | Ratio {:.1}% | Reward {:.4} | Turns {:.1} | Branches {:.1} | Error {:.1}% | Truncation {:.1}%",
                env.env,
                100.0 * env.ratio,
                env.reward,
                env.turns,
                env.branches,
                100.0 * env.error_rate,
                100.0 * env.truncation_rate,
            )?;
        }
        Ok(())
    }
}

/// The console line of an evaluation.
pub fn eval_line(eval: &Eval) -> String {
    let share = crate::metrics::share(&eval.env, 1.0, &eval.rollouts.iter().map(Into::into).collect::<Vec<_>>());
    format!(
        "Evaluated {} (Step {}) | Policy {} | {} | Reward {:.4} | Turns {:.1} | Branches {:.1} | Error {:.1}% | \
         Truncation {:.1}%",
        eval.env,
        eval.step,
        eval.policy_version,
        duration(eval.seconds),
        share.reward,
        share.turns,
        share.branches,
        100.0 * share.error_rate,
        100.0 * share.truncation_rate,
    )
}

/// `532ms`, `12.3s`, `3m 4s`, `1h 5m`, `1d 2h`.
fn duration(seconds: f64) -> String {
    let whole = seconds.max(0.0).round() as u64;
    match seconds {
        s if s < 1.0 => format!("{}ms", (s.max(0.0) * 1000.0).round()),
        s if s < 60.0 => format!("{s:.1}s"),
        _ if whole < 3600 => format!("{}m {}s", whole / 60, whole % 60),
        _ if whole < 86400 => format!("{}h {}m", whole / 3600, whole % 3600 / 60),
        _ => format!("{}d {}h", whole / 86400, whole % 86400 / 3600),
    }
}

/// How a run ended without an error.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Whether it was stopped before its last step.
    pub stopped: bool,
    /// State after the last trained step.
    pub progress: Progress,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_short() {
        let texts = [0.532, 12.34, 184.0, 3900.0, 93600.0].map(duration);
        assert_eq!(texts, ["532ms", "12.3s", "3m 4s", "1h 5m", "1d 2h"]);
    }
}

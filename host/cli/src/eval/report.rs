//! The numbers of an evaluation. Owns avg@k, pass@k and the table of samples; an empty selection gives 0, never NaN.

use super::{Attempt, Eval, Tasks};
use crate::table::{short, table};
use prl_orchestrator::pass_at_k;
use prl_types::{Rollout, Summary};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Everything told, as `--json` prints it.
#[derive(Serialize)]
pub struct Report {
    environment: String,
    version: String,
    sha256: String,
    /// The address at which it ran outside the sandbox.
    unsandboxed: Option<String>,
    args: serde_json::Value,
    split: String,
    model: String,
    base_url: Option<String>,
    seed: u64,
    examples: u64,
    /// How many tasks were asked for; there may be fewer.
    examples_asked: u64,
    rollouts_per_example: u32,
    /// Mean reward of the rollouts that did not fail, a task counting as much as any other.
    avg: f64,
    /// Its standard error over tasks.
    avg_stderr: f64,
    /// The reward from which on a rollout has passed.
    pass_reward: f64,
    /// `pass@k` by k, over the tasks with at least k rollouts that did not fail.
    pass: BTreeMap<u32, f64>,
    rollouts: usize,
    errors: usize,
    truncated: usize,
    turns: f64,
    completion_tokens: f64,
    /// Mean of each reward component and metric.
    means: BTreeMap<String, f64>,
    seconds: f64,
}

impl Report {
    /// Sums results up.
    pub fn new(asked: &Eval, tasks: &Tasks, results: &[Attempt], seconds: f64) -> Self {
        let info = tasks.pool.info();
        let good: Vec<&Rollout> = results.iter().map(|a| &a.rollout).filter(|r| r.error.is_none()).collect();
        let mut examples: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
        let mut values: BTreeMap<String, Vec<f64>> = BTreeMap::new();
        for rollout in &good {
            examples.entry(rollout.task.index).or_default().push(rollout.reward);
            let lines = rollout.score.components.iter().map(|line| (&line.name, line.value));
            for (name, value) in lines.chain(rollout.score.metrics.iter().map(|m| (&m.name, m.value))) {
                values.entry(name.clone()).or_default().push(value);
            }
        }
        let (avg, avg_stderr) = average(examples.values());
        let mean = |of: &dyn Fn(&Rollout) -> f64| Summary::of(good.iter().map(|r| of(r))).mean;
        Report {
            environment: info.name.clone(),
            version: info.version.clone(),
            sha256: tasks.opened.file.sha256().to_owned(),
            unsandboxed: tasks.opened.file.unsandboxed().map(str::to_owned),
            args: tasks.opened.args.clone(),
            split: tasks.split.clone(),
            model: asked.model.clone(),
            base_url: asked.base_url.clone(),
            seed: asked.seed,
            examples: tasks.count,
            examples_asked: asked.num_examples,
            rollouts_per_example: asked.rollouts_per_example,
            avg,
            avg_stderr,
            pass_reward: asked.pass_reward,
            pass: passes(examples.values(), asked.rollouts_per_example, asked.pass_reward),
            rollouts: results.len(),
            errors: results.len() - good.len(),
            truncated: good.iter().filter(|r| r.truncation.is_some()).count(),
            turns: mean(&|r| r.turns.len() as f64),
            completion_tokens: mean(&|r| r.turns.iter().map(|turn| turn.tokens as f64).sum()),
            means: values.into_iter().map(|(name, values)| (name, Summary::of(values).mean)).collect(),
            seconds,
        }
    }

    /// As text, with the first `rows` results.
    pub fn render(&self, results: &[Attempt], rows: usize) -> String {
        let k = self.rollouts_per_example;
        let at = self.base_url.as_deref().map(|url| format!(" at {url}")).unwrap_or_default();
        let mut text = format!("{} {} on {}{at}\n", self.environment, self.version, self.model);
        let all = match self.examples < self.examples_asked {
            true => format!(" (all of it; {} were asked for)", self.examples_asked),
            false => String::new(),
        };
        let of = format!("{} of split {}{all}", self.examples, self.split);
        let mut facts = vec![
            ("tasks".to_owned(), format!("{of}, {k} rollouts each, in {:.1} s", self.seconds)),
            (format!("avg@{k}"), format!("{:.4} ± {:.4}", self.avg, self.avg_stderr)),
        ];
        let passed = |value: f64| format!("{value:.4} (reward of at least {})", self.pass_reward);
        facts.extend(self.pass.iter().map(|(k, value)| (format!("pass@{k}"), passed(*value))));
        facts.extend(self.means.iter().map(|(name, mean)| (format!("mean {name}"), format!("{mean:.4}"))));
        facts.push(("turns".into(), format!("{:.2} a rollout", self.turns)));
        facts.push(("tokens".into(), format!("{:.1} sampled a rollout", self.completion_tokens)));
        let told = format!("{}, of which truncated {}, failed {}", self.rollouts, self.truncated, self.errors);
        facts.push(("rollouts".into(), told));
        let wide = facts.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        for (name, value) in facts {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "  {name:<wide$}  {value}");
        }
        if rows > 0 && !results.is_empty() {
            let rows: Vec<Vec<String>> = results.iter().take(rows).map(|attempt| row(&attempt.rollout)).collect();
            let heading = ["TASK", "TRY", "REWARD", "TURNS", "TOKENS", "END", "LAST ANSWER", "REFERENCE"];
            let _ = write!(text, "\n{}", table(&heading, &rows));
        }
        text
    }
}

fn row(rollout: &Rollout) -> Vec<String> {
    let (end, answer) = match &rollout.error {
        Some(error) => ("error".to_owned(), short(&error.message, 60)),
        None => {
            let said = rollout.turns.last().map_or("", |turn| turn.message.content.as_str());
            (rollout.stop_condition.clone(), short(said, 60))
        }
    };
    let reference = rollout.task.answer.as_ref().map(|answer| match answer.as_str() {
        Some(text) => short(text, 40),
        None => short(&answer.to_string(), 40),
    });
    vec![
        rollout.task.key.clone(),
        rollout.id.member.to_string(),
        format!("{:.3}", rollout.reward),
        rollout.turns.len().to_string(),
        rollout.turns.iter().map(|turn| turn.tokens).sum::<usize>().to_string(),
        end,
        answer,
        reference.unwrap_or_default(),
    ]
}

/// Mean over tasks of a task's mean reward, and its standard error.
fn average<'a>(examples: impl Iterator<Item = &'a Vec<f64>>) -> (f64, f64) {
    let means = Summary::of(examples.map(|rewards| Summary::of(rewards.iter().copied()).mean));
    let n = means.count as f64;
    let stderr = if means.count > 1 { means.std / (n - 1.0).sqrt() } else { 0.0 };
    (means.mean, stderr)
}

/// Chance that one of k attempts passes, for k = 1, 2, 4, … up to `most`: the unbiased estimate out of n attempts each.
fn passes<'a>(examples: impl Iterator<Item = &'a Vec<f64>> + Clone, most: u32, pass_reward: f64) -> BTreeMap<u32, f64> {
    let powers = std::iter::successors(Some(1u32), |k| k.checked_mul(2)).take_while(|k| *k < most).chain([most]);
    let mut out = BTreeMap::new();
    for k in powers {
        let able = examples.clone().filter(|rewards| rewards.len() >= k as usize);
        let chances = able.map(|rewards| {
            let passed = rewards.iter().filter(|reward| **reward >= pass_reward).count();
            pass_at_k(rewards.len() as u64, passed as u64, u64::from(k))
        });
        let chances = Summary::of(chances);
        if chances.count > 0 {
            out.insert(k, chances.mean);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn averages_and_passes_are_the_closed_forms() {
        let examples = [vec![1.0, 0.0, 0.0, 1.0], vec![0.0; 4], vec![1.0]];
        let (avg, stderr) = average(examples.iter());
        assert!((avg - 0.5).abs() < 1e-12);
        // Sample deviation of 0.5, 0, 1 is 0.5.
        assert!((stderr - 0.5 / 3f64.sqrt()).abs() < 1e-12);
        let pass = passes(examples.iter(), 3, 1.0);
        assert_eq!(pass.keys().copied().collect::<Vec<_>>(), [1, 2, 3]);
        assert!((pass[&1] - 0.5).abs() < 1e-12);
        // 1 − C(2,2)/C(4,2) = 5/6 and 0, over the two tasks with enough attempts.
        assert!((pass[&2] - 5.0 / 12.0).abs() < 1e-12);
        assert_eq!(average([].iter()), (0.0, 0.0));
        assert!(passes([].iter(), 2, 1.0).is_empty());
    }
}

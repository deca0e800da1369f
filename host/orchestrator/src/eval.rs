//! Evaluation: when it is due, in which order its tasks run, and the closed forms of its scores.

use crate::EvalEnv;
use crate::metrics::{Facts, describe};
use prl_types::{Eval, PolicyVersion, Rollout, Step};
use std::collections::{BTreeMap, VecDeque};

/// The evaluation after one step, over all environments that are due.
pub(crate) struct EvalRun {
    pub step: Step,
    /// Groups that are not complete yet.
    pub remaining: usize,
    queue: VecDeque<(usize, u64)>,
    started: Option<(PolicyVersion, f64)>,
    rollouts: BTreeMap<usize, Vec<Rollout>>,
}

impl EvalRun {
    /// `counts[i]` tasks of environment `envs[i]`.
    pub(crate) fn new(step: Step, envs: Vec<usize>, counts: &[u64]) -> Self {
        let queue: VecDeque<_> = order(&envs, counts).into();
        let rollouts = envs.into_iter().map(|env| (env, Vec::new())).collect();
        EvalRun { step, remaining: queue.len(), queue, started: None, rollouts }
    }

    /// The next (environment, task) to open, with the policy version and time of now.
    pub(crate) fn next(&mut self, version: PolicyVersion, now: f64) -> Option<(usize, u64)> {
        let next = self.queue.pop_front()?;
        self.started.get_or_insert((version, now));
        Some(next)
    }

    /// Tasks that were not opened yet.
    pub(crate) fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Takes a complete group in.
    pub(crate) fn take(&mut self, env: usize, rollouts: impl Iterator<Item = Rollout>) {
        self.remaining -= 1;
        self.rollouts.entry(env).or_default().extend(rollouts);
    }

    /// The results, one an environment, rollouts in (task, member) order.
    pub(crate) fn finish(self, envs: &[EvalEnv], now: f64) -> Vec<Eval> {
        let (version, started) = self.started.unwrap_or((PolicyVersion(self.step), now));
        let results = self.rollouts.into_iter().map(|(env, mut rollouts)| {
            rollouts.sort_by_key(|r| r.id);
            Eval {
                env: envs[env].name.clone(),
                step: self.step,
                policy_version: version,
                group_size: envs[env].group_size,
                rollouts,
                seconds: now - started,
            }
        });
        results.collect()
    }

    /// The rollouts so far of a run that is given up.
    pub(crate) fn into_rollouts(self) -> impl Iterator<Item = Rollout> {
        self.rollouts.into_values().flatten()
    }
}

/// Environments due after `step`, where the run started at step `start` and ends with `last`.
pub(crate) fn due(envs: &[EvalEnv], step: u64, start: u64, last: Option<u64>, skip_first: bool) -> Vec<usize> {
    (0..envs.len())
        .filter(|i| match step {
            0 => !skip_first && start == 0,
            _ => step.is_multiple_of(envs[*i].interval) || Some(step) == last,
        })
        .collect()
}

/// (environment, task) pairs, round robin over environments; `counts[i]` tasks for `envs[i]`.
pub(crate) fn order(envs: &[usize], counts: &[u64]) -> Vec<(usize, u64)> {
    let longest = counts.iter().copied().max().unwrap_or(0);
    (0..longest)
        .flat_map(|index| envs.iter().zip(counts).filter(move |(_, n)| index < **n).map(move |(env, _)| (*env, index)))
        .collect()
}

/// `1 − C(n−c, k) / C(n, k)`: chance that one of k of the n attempts, c of which are right, is right.
pub fn pass_at_k(n: u64, c: u64, k: u64) -> f64 {
    1.0 - ratio_of_choices(n - c, n, k)
}

/// `C(c, k) / C(n, k)`: chance that all k are right.
pub(crate) fn pass_hat_k(n: u64, c: u64, k: u64) -> f64 {
    ratio_of_choices(c, n, k)
}

/// C(a, k) / C(n, k) for a ≤ n, as a product so that nothing overflows.
fn ratio_of_choices(a: u64, n: u64, k: u64) -> f64 {
    if a < k {
        return 0.0;
    }
    (0..k).map(|i| (a - i) as f64 / (n - i) as f64).product()
}

/// `eval/<env>/…`.
pub(crate) fn metrics(eval: &Eval) -> BTreeMap<String, f64> {
    let mut out = BTreeMap::new();
    let prefix = format!("eval/{}", eval.env);
    let k = eval.group_size;
    let effective: Vec<&Rollout> = eval.rollouts.iter().filter(|r| r.error.is_none()).collect();
    for (subset, rollouts) in [("all", eval.rollouts.iter().collect::<Vec<_>>()), ("effective", effective.clone())] {
        let facts: Vec<Facts> = rollouts.into_iter().map(Facts::from).collect();
        describe(&mut out, &format!("{prefix}/{subset}"), &facts.iter().collect::<Vec<_>>(), subset == "all");
        let mean =
            if facts.is_empty() { 0.0 } else { facts.iter().map(|f| f.reward).sum::<f64>() / facts.len() as f64 };
        out.insert(format!("{prefix}/{subset}/avg@{k}"), mean);
        if subset == "effective" {
            out.insert(format!("{prefix}/avg@{k}"), mean);
        }
    }
    let mut examples: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    for rollout in &effective {
        let (n, c) = examples.entry(rollout.task.index).or_default();
        *n += 1;
        *c += u64::from(rollout.reward == 1.0);
    }
    if !effective.is_empty() && effective.iter().all(|r| r.reward == 0.0 || r.reward == 1.0) {
        let powers = std::iter::successors(Some(1u64), |k| Some(k * 2)).take_while(|p| *p <= u64::from(k));
        for power in powers {
            let able: Vec<_> = examples.values().filter(|(n, _)| *n >= power).collect();
            if able.is_empty() {
                continue;
            }
            let mean = |f: fn(u64, u64, u64) -> f64| {
                able.iter().map(|(n, c)| f(*n, *c, power)).sum::<f64>() / able.len() as f64
            };
            for (name, value) in [("pass@", mean(pass_at_k)), ("pass^", mean(pass_hat_k))] {
                out.insert(format!("{prefix}/effective/{name}{power}"), value);
                out.insert(format!("{prefix}/{name}{power}"), value);
            }
        }
    }
    out.insert(format!("{prefix}/rollouts/retried"), eval.rollouts.iter().map(|r| f64::from(r.attempt)).sum());
    out.insert(format!("{prefix}/policy_version"), eval.policy_version.0 as f64);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(interval: u64) -> EvalEnv {
        EvalEnv {
            name: "e".into(),
            split: "eval".into(),
            num_examples: None,
            group_size: 1,
            interval,
            sampling: crate::Sampling::default(),
            max_turns: None,
            timeout: None,
        }
    }

    #[test]
    fn closed_forms() {
        assert_eq!(pass_at_k(4, 2, 1), 0.5);
        assert!((pass_at_k(4, 2, 2) - 5.0 / 6.0).abs() < 1e-12);
        assert!((pass_hat_k(4, 2, 2) - 1.0 / 6.0).abs() < 1e-12);
        assert_eq!((pass_at_k(4, 1, 4), pass_hat_k(4, 3, 4), pass_hat_k(4, 4, 4)), (1.0, 0.0, 1.0));
        assert_eq!((pass_at_k(8, 0, 8), pass_hat_k(8, 0, 1)), (0.0, 0.0));
    }

    #[test]
    fn due_at_the_start_on_the_interval_and_at_the_end() {
        let envs = [env(2), env(3)];
        let at = |step, start, skip| due(&envs, step, start, Some(7), skip);
        assert_eq!(at(0, 0, false), [0, 1]);
        assert!(at(0, 0, true).is_empty() && at(1, 0, false).is_empty());
        assert_eq!((at(2, 0, true), at(3, 0, true), at(6, 0, true)), (vec![0], vec![1], vec![0, 1]));
        assert_eq!(at(7, 0, true), [0, 1]);
        assert_eq!(at(4, 4, true), [0]);
    }

    #[test]
    fn environments_take_turns() {
        assert_eq!(order(&[1, 4], &[1, 3]), [(1, 0), (4, 0), (4, 1), (4, 2)]);
    }
}

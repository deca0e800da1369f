//! Names and values of the orchestrator's metrics. Pure arithmetic over facts of rollouts; an empty selection gives 0,
//! never NaN.
//!
//! `train/{agg,<env>}/{all,effective}/…` are the names of the code this follows; `reward/{all,<env>}/mean`,
//! `seq_len/…`, `num_turns/…`, `is_truncated/…`, `empty_rollouts/…` and `errored_rollouts/…` are its documented aliases,
//! over the rollouts of `all` that did not fail.

use crate::EnvShare;
use crate::rollout::{CONTEXT, MAX_COMPLETION_TOKENS};
use prl_types::{ErrorKind, GroupId, Rollout, Streams, Summary, Timing};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// What metrics need of a rollout.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Facts {
    pub env: String,
    pub attempt: u32,
    pub group: GroupId,
    pub reward: f64,
    pub total_tokens: usize,
    pub output_tokens: usize,
    turns: usize,
    branches: usize,
    timing: Timing,
    rewards: Vec<(String, f64)>,
    metrics: Vec<(String, f64)>,
    truncation: Option<String>,
    pub error: Option<ErrorKind>,
    pub filtered: bool,
    pub filters: Vec<String>,
    stop: String,
    trainable: bool,
}

impl From<&Rollout> for Facts {
    fn from(r: &Rollout) -> Self {
        Facts {
            env: r.task.env.clone(),
            attempt: r.attempt,
            group: r.id.group,
            reward: r.reward,
            total_tokens: r.total_tokens(),
            output_tokens: r.output_tokens(),
            turns: r.turns.len(),
            branches: r.samples.len(),
            timing: r.timing,
            rewards: r.score.components.iter().map(|c| (c.name.clone(), c.value)).collect(),
            metrics: r.score.metrics.iter().map(|m| (m.name.clone(), m.value)).collect(),
            truncation: r.truncation.as_ref().map(|t| t.reason.clone()),
            error: r.error.as_ref().map(|e| e.kind),
            filtered: r.is_filtered,
            filters: r.filters.clone(),
            stop: r.stop_condition.clone(),
            trainable: is_trainable(r),
        }
    }
}

impl Facts {
    /// Takes in what filters have made of the rollout since.
    pub(crate) fn filtered_as(&mut self, rollout: &Rollout) {
        self.filtered = rollout.is_filtered;
        self.filters.clone_from(&rollout.filters);
        self.trainable = is_trainable(rollout);
    }

    fn generation_truncated(&self) -> bool {
        matches!(self.truncation.as_deref(), Some(MAX_COMPLETION_TOKENS | CONTEXT))
    }
}

/// No error, not filtered, and some token has a live weight (and advantage, where it needs one).
pub(crate) fn is_trainable(rollout: &Rollout) -> bool {
    rollout.is_effective() && rollout.streams.iter().any(is_live)
}

/// Whether some token of a sample has a live weight (and advantage, where it needs one).
pub(crate) fn is_live(streams: &Streams) -> bool {
    let live = |stream: &Option<Vec<f32>>| stream.as_ref().is_some_and(|v| v.iter().any(|x| *x != 0.0));
    let rl = match (&streams.advantages, &streams.rl_weights) {
        (Some(a), Some(w)) => a.iter().zip(w).any(|(a, w)| *a != 0.0 && *w != 0.0),
        (a, None) => live(a),
        (None, Some(_)) => false,
    };
    rl || live(&streams.ce_weights) || live(&streams.ref_kl_weights)
}

/// The most frequent of some texts, with its count.
pub(crate) fn most_frequent(counts: &BTreeMap<String, usize>) -> Option<(&str, usize)> {
    counts.iter().max_by_key(|(_, n)| **n).map(|(text, n)| (text.as_str(), *n))
}

fn fraction(facts: &[&Facts], pick: impl Fn(&Facts) -> bool) -> f64 {
    if facts.is_empty() {
        return 0.0;
    }
    facts.iter().filter(|f| pick(f)).count() as f64 / facts.len() as f64
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    Summary::of(values).mean
}

/// All metrics of one subset under `prefix`; `errors` adds those that only make sense with failed rollouts.
pub(crate) fn describe(out: &mut BTreeMap<String, f64>, prefix: &str, facts: &[&Facts], errors: bool) {
    let mut spread = |name: &str, values: Vec<f64>| {
        let s = Summary::of(values);
        for (stat, value) in [("mean", s.mean), ("max", s.max), ("min", s.min), ("p10", s.p10), ("p90", s.p90)] {
            out.insert(format!("{prefix}/{name}/{stat}"), value);
        }
    };
    let numbers: [(&str, fn(&Facts) -> f64); 12] = [
        ("num_total_tokens", |f| f.total_tokens as f64),
        ("num_input_tokens", |f| (f.total_tokens - f.output_tokens) as f64),
        ("num_output_tokens", |f| f.output_tokens as f64),
        ("num_turns", |f| f.turns as f64),
        ("num_branches", |f| f.branches as f64),
        ("reward", |f| f.reward),
        ("timing/setup", |f| f.timing.setup),
        ("timing/generation", |f| f.timing.generation),
        ("timing/generation/model", |f| f.timing.model),
        ("timing/generation/harness", |f| (f.timing.generation - f.timing.model).max(0.0)),
        ("timing/scoring", |f| f.timing.scoring),
        ("timing/total", |f| f.timing.total),
    ];
    for (name, value) in numbers {
        spread(name, facts.iter().map(|f| value(f)).collect());
    }
    for (kind, list) in
        [("metrics", (|f| &f.metrics) as fn(&Facts) -> &Vec<(String, f64)>), ("rewards", |f| &f.rewards)]
    {
        let mut by_name: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
        for (name, value) in facts.iter().flat_map(|f| list(f)) {
            by_name.entry(name).or_default().push(*value);
        }
        for (name, values) in by_name {
            spread(&format!("{kind}/{name}"), values);
        }
    }
    let shares: [(&str, fn(&Facts) -> bool); 5] = [
        ("is_truncated/mean", |f| f.truncation.is_some()),
        ("is_completed/mean", |f| f.error.is_none()),
        ("is_trainable/mean", |f| f.trainable),
        ("is_filtered/mean", |f| f.filtered),
        ("stop_condition/generation_truncated", |f| f.generation_truncated()),
    ];
    for (name, pick) in shares {
        out.insert(format!("{prefix}/{name}"), fraction(facts, pick));
    }
    for name in facts.iter().flat_map(|f| &f.filters).collect::<BTreeSet<_>>() {
        out.insert(format!("{prefix}/filters/{name}/mean"), fraction(facts, |f| f.filters.contains(name)));
    }
    for stop in facts.iter().map(|f| &f.stop).collect::<BTreeSet<_>>() {
        out.insert(format!("{prefix}/stop_condition/{stop}"), fraction(facts, |f| f.stop == *stop));
    }
    if errors {
        out.insert(format!("{prefix}/has_error/mean"), fraction(facts, |f| f.error.is_some()));
        for kind in facts.iter().filter_map(|f| f.error) {
            *out.entry(format!("{prefix}/error/{kind:?}")).or_default() += 1.0;
        }
    }
    let mut groups: BTreeMap<GroupId, Vec<f64>> = BTreeMap::new();
    for fact in facts.iter().filter(|f| f.error.is_none()) {
        groups.entry(fact.group).or_default().push(fact.reward);
    }
    let solved = |pick: fn(&[f64]) -> bool| {
        if groups.is_empty() { 0.0 } else { groups.values().filter(|g| pick(g)).count() as f64 / groups.len() as f64 }
    };
    let (none, all) = (solved(|g| g.iter().all(|r| *r == 0.0)), solved(|g| g.iter().all(|r| *r == 1.0)));
    out.insert(format!("{prefix}/solved_none"), none);
    out.insert(format!("{prefix}/solved_all"), all);
    out.insert(format!("{prefix}/solved_some"), if groups.is_empty() { 0.0 } else { (1.0 - none - all).max(0.0) });
}

/// Numbers of a console line; those of the batch are added where it is cut.
pub(crate) fn share(env: &str, ratio: f64, all: &[&Facts]) -> EnvShare {
    let ok: Vec<&Facts> = all.iter().copied().filter(|f| f.error.is_none()).collect();
    EnvShare {
        env: env.to_owned(),
        ratio,
        reward: mean(ok.iter().map(|f| f.reward)),
        turns: mean(ok.iter().map(|f| f.turns as f64)),
        branches: mean(ok.iter().map(|f| f.branches as f64)),
        error_rate: fraction(all, |f| f.error.is_some()),
        truncation_rate: fraction(&ok, |f| f.truncation.is_some()),
        trainable: 0,
        batch: 0,
        max_off_policy: 0,
    }
}

/// Metrics of a batch: `all` is what was handled for it, `effective` what trains.
pub(crate) fn batch(envs: &[String], all: &[&Facts], effective: &[&Facts]) -> BTreeMap<String, f64> {
    let mut out = BTreeMap::new();
    for (subset, facts) in [("all", all), ("effective", effective)] {
        let errors = subset == "all";
        describe(&mut out, &format!("train/agg/{subset}"), facts, errors);
        for env in envs {
            let own: Vec<&Facts> = facts.iter().copied().filter(|f| f.env == *env).collect();
            if !own.is_empty() {
                describe(&mut out, &format!("train/{env}/{subset}"), &own, errors);
            }
        }
    }
    for env in envs {
        let share = fraction(effective, |f| f.env == *env);
        out.insert(format!("batch/{env}"), share);
    }
    aliases(&mut out, "all", all);
    for env in envs.iter().filter(|e| *e != "all") {
        let own: Vec<&Facts> = all.iter().copied().filter(|f| f.env == *env).collect();
        if !own.is_empty() {
            aliases(&mut out, env, &own);
        }
    }
    out
}

fn aliases(out: &mut BTreeMap<String, f64>, who: &str, facts: &[&Facts]) {
    let ok: Vec<&Facts> = facts.iter().copied().filter(|f| f.error.is_none()).collect();
    let numbers: [(&str, fn(&Facts) -> f64); 3] =
        [("reward", |f| f.reward), ("seq_len", |f| f.total_tokens as f64), ("num_turns", |f| f.turns as f64)];
    for (name, value) in numbers {
        let s = Summary::of(ok.iter().map(|f| value(f)));
        for (stat, value) in [("mean", s.mean), ("max", s.max), ("min", s.min)] {
            out.insert(format!("{name}/{who}/{stat}"), value);
        }
    }
    out.insert(format!("is_truncated/{who}/mean"), fraction(&ok, |f| f.truncation.is_some()));
    let empty = |f: &Facts| f.error == Some(ErrorKind::EmptyTrajectory);
    out.insert(format!("empty_rollouts/{who}/mean"), fraction(facts, empty));
    out.insert(format!("errored_rollouts/{who}/mean"), fraction(facts, |f| f.error.is_some()));
}

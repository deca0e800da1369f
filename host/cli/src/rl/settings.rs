//! The orchestrator's settings out of the configuration. Owns the translation of names, nothing else.

use crate::environments;
use prl_config::{EvalSampling, Gate, RlConfig, TrainSampling};
use prl_model::{Device, ModelConfig};
use prl_orchestrator::{
    AdvantageRange, Curriculum, DifficultyPool, Due, EvalEnv, Filter, FilterKind, Sampling, Settings, State, TrainEnv,
};
use std::collections::BTreeSet;
use std::time::Duration;

/// How long a stop waits for the training step that is under way; what is over is given up.
const STOP_GRACE: Duration = Duration::from_secs(3);

/// Rollouts that may be under way at once.
pub fn inflight(config: &RlConfig) -> usize {
    let orchestrator = &config.orchestrator;
    let eval = orchestrator.eval.iter().flat_map(|e| e.env.iter().map(|e| e.group_size)).max().unwrap_or(1);
    orchestrator.inflight_rollouts().max(eval)
}

/// All of the settings. `context` is the engine's limit, tokens; `resume` is where to go on, and which evaluation environments
/// were evaluated there.
pub fn settings(
    config: &RlConfig,
    model: &ModelConfig,
    context: usize,
    device: Device,
    resume: Option<(State, BTreeSet<String>)>,
) -> Settings {
    let (resume, evaluated) = resume.unzip();
    let saved = config.trainer.ckpt.as_ref().filter(|ckpt| !ckpt.weights_only);
    let orchestrator = &config.orchestrator;
    let train = orchestrator.train.env.iter().map(|env| TrainEnv {
        name: env.name.clone(),
        split: env.split.clone(),
        ratio: env.ratio,
        group_size: env.group_size as u32,
        sampling: train_sampling(&env.sampling),
        max_turns: env.max_turns,
        timeout: env.timeout.rollout.map(environments::seconds),
        curriculum: curriculum(&env.curriculum),
    });
    let eval = orchestrator.eval.iter().flat_map(|e| &e.env).map(|env| EvalEnv {
        name: env.name.clone(),
        split: env.split.clone(),
        num_examples: u64::try_from(env.num_examples).ok(),
        group_size: env.group_size as u32,
        interval: env.interval,
        sampling: eval_sampling(&env.sampling),
        max_turns: env.max_turns,
        timeout: env.timeout.rollout.map(environments::seconds),
    });
    Settings {
        seed: config.seed,
        max_steps: orchestrator.max_steps,
        batch_size: orchestrator.rollouts_per_step().unwrap_or(1),
        token_batch_size: orchestrator.token_batch_size,
        tasks_per_minute: orchestrator.tasks_per_minute,
        max_retries: orchestrator.max_retries,
        status_interval: Some(environments::seconds(orchestrator.log.interval)),
        max_inflight_rollouts: Some(inflight(config)),
        seq_len: orchestrator.seq_len.min(context),
        max_async_level: orchestrator.max_async_level,
        max_error_rate: orchestrator.max_error_rate,
        max_off_policy_steps: orchestrator.max_off_policy_steps,
        deterministic: config.deterministic.unwrap_or(device == Device::Cpu),
        pre_batch_filters: orchestrator.pre_batch_filters.iter().map(filter).collect(),
        post_batch_filters: orchestrator.post_batch_filters.iter().map(filter).collect(),
        vocab_size: model.vocab_size,
        train: train.collect(),
        eval: eval.collect(),
        skip_first_eval: orchestrator.eval.as_ref().is_some_and(|e| e.skip_first_step),
        resume,
        evaluated: evaluated.unwrap_or_default(),
        checkpoints: saved.map(|ckpt| Due { interval: ckpt.interval }),
        stop_grace: STOP_GRACE,
        ..Settings::default()
    }
}

/// The parts are in order: the configuration was checked.
fn curriculum(curriculum: &prl_config::Curriculum) -> Curriculum {
    let pools = curriculum.pools().unwrap_or_default().into_iter().map(|(name, pool)| DifficultyPool {
        name,
        threshold: pool.threshold,
        weight: pool.weight,
    });
    let gates = curriculum.gates().unwrap_or_default().into_iter().map(|(name, gate)| {
        let Gate::AdvantageRange { reject_min, reject_max } = gate;
        AdvantageRange { name, reject_min, reject_max }
    });
    Curriculum { pools: pools.collect(), gates: gates.collect() }
}

fn filter(filter: &prl_config::Filter) -> Filter {
    match filter {
        prl_config::Filter::Gibberish(f) => Filter {
            kind: FilterKind::Gibberish {
                // A threshold below 0 makes every token rare.
                token_id_threshold: u32::try_from(f.token_id_threshold.max(0)).unwrap_or(u32::MAX),
                logprob_offset: f.logprob_offset,
            },
            enforce: f.enforce,
        },
        prl_config::Filter::Repetition(f) => Filter {
            kind: FilterKind::Repetition { window: f.window, prob_threshold: f.prob_threshold },
            enforce: f.enforce,
        },
        prl_config::Filter::ZeroAdvantage(f) => Filter { kind: FilterKind::ZeroAdvantage, enforce: f.enforce },
    }
}

fn top_k(k: i64) -> Option<u32> {
    u32::try_from(k).ok().filter(|k| *k > 0)
}

fn train_sampling(sampling: &TrainSampling) -> Sampling {
    let extra = &sampling.extra_body;
    Sampling {
        temperature: sampling.temperature as f32,
        top_p: extra.top_p as f32,
        top_k: top_k(extra.top_k),
        min_p: extra.min_p as f32,
        max_completion_tokens: sampling.max_completion_tokens,
        stop: extra.stop.clone(),
    }
}

fn eval_sampling(sampling: &EvalSampling) -> Sampling {
    let extra = &sampling.extra_body;
    Sampling {
        temperature: sampling.temperature.unwrap_or(1.0) as f32,
        top_p: sampling.top_p.unwrap_or(extra.top_p) as f32,
        top_k: top_k(sampling.top_k.unwrap_or(extra.top_k)),
        min_p: sampling.min_p.unwrap_or(extra.min_p) as f32,
        max_completion_tokens: sampling.max_completion_tokens,
        stop: extra.stop.clone(),
    }
}

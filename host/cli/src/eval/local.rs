//! A model's folder through the engine and the orchestrator's own evaluation: a run that ends before its first step. Owns
//! the assembly; everything in it is what `prl rl` uses.

use super::{Attempt, Eval, Outcome, Tasks, counts};
use crate::assets;
use crate::compute::Compute;
use crate::failure::Failure;
use crate::ports::policy::{EnginePolicy, Snapshots};
use crate::ports::renderer::ModelRenderer;
use crate::ports::tape::Tapes;
use crate::signals;
use futures::FutureExt;
use futures::future::BoxFuture;
use prl_config::Kernels;
use prl_inference::{Decode, Engine};
use prl_model::Bits;
use prl_orchestrator::{
    Algorithm, Deps, EvalEnv, Observer, Purpose, Sampling, Scored, Settings, State, StepReport, TrainDeps, TrainEnv,
    TrainReport, Trainer,
};
use prl_types::{Batch, PolicyVersion, Rollout, Step};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

/// Samples the model's rollouts.
pub async fn run(asked: &Eval, tasks: &Tasks) -> Result<Outcome, Failure> {
    let dir = model_dir(&asked.model)?;
    let mut compute = Compute::open(asked.device, Kernels::Fast, Bits::default())?;
    let decoder = assets::decoder(&dir, None, compute.home())?;
    let rendering = prl_config::Renderer::default();
    let renderer = assets::renderer(&dir, None, &rendering, &decoder)?;
    let made_for = decoder.config().max_position_embeddings;
    let vocab_size = decoder.config().vocab_size;
    let context = asked.max_model_len.map_or(made_for, |len| len as usize);
    if context > made_for {
        return Err(Failure::input(format_args!(
            "`--max-model-len` is {context}, but the model was made for {made_for} tokens"
        )));
    }
    let snapshot = compute.sampler(decoder, context)?.snapshot().map_err(Failure::run)?;
    let tokens = crate::inference::batched_tokens(None, compute.on_gpu());
    let limits = crate::inference::limits(asked.max_concurrent as usize, context, tokens, None);
    let engine = Engine::start(snapshot, PolicyVersion(0), limits).map_err(Failure::input)?;
    let decoded = renderer.clone();
    let decode: Decode = Arc::new(move |ids| decoded.decode(ids).unwrap_or_default());
    let tapes = Tapes::default();
    let env = tapes.env(tasks.pool.clone(), tasks.opened.args.clone(), BTreeMap::new());
    let seen = Arc::new(Seen { tapes, attempts: Mutex::default() });
    let stop = signals::listen().map_err(Failure::run)?;
    let deps = Deps {
        policy: Arc::new(EnginePolicy { engine: engine.handle(), snapshots: Snapshots::default(), decode }),
        renderer: Arc::new(ModelRenderer::new(renderer, &rendering)),
        trainer: Arc::new(NoTraining),
        observer: seen.clone(),
        train: vec![TrainDeps { env: env.clone(), algorithm: Arc::new(NoTraining), source: None, reference: None }],
        eval: vec![env],
        stop: stop.receiver.clone(),
    };
    let outcome = prl_orchestrator::run(settings(asked, tasks, context, vocab_size), deps).await;
    let outcome = outcome.map_err(|error| match error {
        prl_orchestrator::Error::Settings { .. } | prl_orchestrator::Error::EnvFailedAtStart { .. } => {
            Failure::input(error)
        }
        _ => Failure::run(error),
    })?;
    let mut results = std::mem::take(&mut *seen.attempts.lock().unwrap_or_else(PoisonError::into_inner));
    results.retain(|attempt| counts(&attempt.rollout));
    results.sort_by_key(|attempt| attempt.rollout.id);
    let interrupted = outcome.stopped.then(|| stop.exit_code().unwrap_or(130));
    Ok(Outcome { results, interrupted })
}

fn model_dir(name: &str) -> Result<PathBuf, Failure> {
    prl_model::resolve(name, &assets::hub()).map_err(|error| Failure::input(format_args!("`--model`: {error}")))
}

/// No step is trained: after the evaluation of version 0 the run is over.
fn settings(asked: &Eval, tasks: &Tasks, context: usize, vocab_size: usize) -> Settings {
    let name = tasks.pool.name().to_owned();
    let sampling = Sampling {
        temperature: asked.temperature.unwrap_or(1.0) as f32,
        max_completion_tokens: asked.max_tokens.map(|tokens| tokens as usize),
        ..Sampling::default()
    };
    let train = TrainEnv {
        name: name.clone(),
        split: tasks.split.clone(),
        ratio: 1.0,
        group_size: 1,
        sampling: Sampling::default(),
        max_turns: None,
        timeout: None,
        curriculum: Default::default(),
    };
    let eval = EvalEnv {
        name,
        split: tasks.split.clone(),
        num_examples: Some(tasks.count),
        group_size: asked.rollouts_per_example,
        interval: 1,
        sampling,
        max_turns: asked.max_turns,
        timeout: None,
    };
    Settings {
        seed: asked.seed,
        max_steps: Some(0),
        max_inflight_rollouts: Some(asked.max_concurrent as usize),
        seq_len: context,
        vocab_size,
        train: vec![train],
        eval: vec![eval],
        ..Settings::default()
    }
}

/// Collects what is reported.
struct Seen {
    tapes: Tapes,
    attempts: Mutex<Vec<Attempt>>,
}

impl Observer for Seen {
    fn rollout(&self, purpose: Purpose, _: Step, rollout: &Rollout) {
        let replay = self.tapes.take(purpose, rollout);
        let attempt = Attempt { rollout: rollout.clone(), replay };
        self.attempts.lock().unwrap_or_else(PoisonError::into_inner).push(attempt);
    }

    fn batch(&self, _: Step, _: &[&Rollout]) {}

    fn step(&self, _: &StepReport) {}

    fn eval(&self, _: &prl_types::Eval, _: &BTreeMap<String, f64>) {}
}

/// Stands where a run trains; asked to, it ends the run.
struct NoTraining;

const NO_TRAINING: &str = "an evaluation does not train";

impl Algorithm for NoTraining {
    fn score_group(&self, _: Step, _: &[&Rollout]) -> Result<Scored, String> {
        Err(NO_TRAINING.into())
    }
}

impl Trainer for NoTraining {
    fn train(&self, _: Arc<Batch>) -> BoxFuture<'_, Result<TrainReport, String>> {
        async { Err(NO_TRAINING.to_owned()) }.boxed()
    }

    fn keep(&self, _: State) {}
}

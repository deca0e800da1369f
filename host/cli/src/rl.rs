//! `prl rl`: checks everything, assembles trainer, engine, environments and algorithm, and runs the orchestrator.

mod settings;

use crate::assets;
use crate::checkpoint::{self, Plan};
use crate::command::wants_help;
use crate::failure::{Failure, input, run as running};
use crate::logging::{self, Place};
use crate::ports::algorithm::PluginAlgorithm;
use crate::ports::env::PoolEnv;
use crate::ports::observer::Recorder;
use crate::ports::policy::{EnginePolicy, Snapshots};
use crate::ports::renderer::ModelRenderer;
use crate::ports::trainer::LocalTrainer;
use crate::signals;
use prl_algorithm::{Hook, Plugin, Registry, Search};
use prl_config::{EnvHost, Loaded, RlConfig};
use prl_environment::{Pool, Sandbox};
use prl_inference::{Decode, Engine, EngineConfig};
use prl_model::{Decoder, Device, Kernels, Learner};
use prl_monitor::{Logs, Progress};
use prl_orchestrator::{Deps, Env, TrainDeps};
use prl_render::Renderer;
use prl_store::RunDir;
use prl_trainer::{Trainer, TrainerParts};
use prl_types::PolicyVersion;
use std::path::PathBuf;
use std::sync::Arc;

/// Runs the command; the code is the process's.
pub fn run(words: &[String]) -> Result<u8, Failure> {
    if wants_help(words) {
        println!("{}", prl_config::help_rl());
        return Ok(0);
    }
    let loaded = prl_config::load_rl(words).map_err(Failure::input)?;
    let config = &loaded.config;
    let place = Place::check(&config.output_dir, config.clean_output_dir, config.trainer.ckpt.as_ref())?;
    if config.dry_run {
        return logging::dry_run(&config.output_dir, &loaded.dump(), &loaded.explain());
    }
    let logs = logging::install(
        config.orchestrator.log.level,
        config.orchestrator.log.json_logging,
        prl_monitor::LogFile::Orchestrator,
    )?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(running("runtime"))?;
    let result = runtime.block_on(async {
        let parts = Parts::load(&loaded).await?;
        train(&loaded, parts, place.create()?, logs).await
    });
    // A training step that a stop gave up must not keep the process alive.
    runtime.shutdown_background();
    result
}

/// Everything from outside, opened and checked before the run directory is touched.
struct Parts {
    device: Device,
    kernels: Kernels,
    model_dir: PathBuf,
    decoder: Decoder,
    renderer: Arc<Renderer>,
    plugin: Plugin,
    train: Vec<Pool>,
    eval: Vec<Pool>,
}

impl Parts {
    async fn load(loaded: &Loaded<RlConfig>) -> Result<Self, Failure> {
        let config = &loaded.config;
        let orchestrator = &config.orchestrator;
        let (device, kernels) = assets::device(config.device, config.kernels)?;

        let plugins = config.plugin.iter().enumerate();
        let plugins = plugins.map(|(i, path)| loaded.path_of(&format!("plugin.{i}"), path)).collect();
        let binary = std::env::current_exe().map_err(running("the path of this binary"))?;
        let search = Search::new(plugins, std::env::var_os("PRL_PLUGIN_PATH").as_deref(), &binary);
        let registry = Registry::discover(&search).map_err(Failure::input)?;
        let plugin = registry.open(&orchestrator.algo.kind).map_err(input("`orchestrator.algo.type`"))?;
        create(&plugin, config)?;
        if config.trainer.ckpt.is_some() && plugin.metadata().hooks.contains(&Hook::State) {
            return Err(Failure::input(format_args!(
                "`orchestrator.algo.type`: `{}` has a state, which checkpoints do not hold yet; run it without `[ckpt]`",
                plugin.metadata().name
            )));
        }

        let model_dir = assets::model_dir(loaded, "trainer.model.name", &config.trainer.model.name)?;
        let random = config.trainer.model.debug.random_init.then_some(config.seed);
        let decoder = assets::decoder(&model_dir, random, device)?;
        let tokenizer = match &orchestrator.tokenizer.name {
            Some(name) if *name != config.trainer.model.name => {
                assets::model_dir(loaded, "orchestrator.tokenizer.name", name)?
            }
            _ => model_dir.clone(),
        };
        let renderer = assets::renderer(&tokenizer, orchestrator.tokenizer.chat_template.clone(), &decoder)?;
        let made_for = decoder.config().max_position_embeddings;
        if let Some(len) = config.inference.model.max_model_len.filter(|len| *len > made_for) {
            return Err(Failure::input(format_args!(
                "`inference.model.max_model_len` = {len}, but the model was made for {made_for} tokens"
            )));
        }

        let sandbox = assets::sandbox()?;
        let inflight = settings::inflight(config);
        let train_hosts = orchestrator.train.env.iter().map(|e| e.host());
        let train = pools(&sandbox, loaded, "train", train_hosts, inflight).await?;
        let eval_hosts = orchestrator.eval.iter().flat_map(|e| e.env.iter().map(|e| e.host()));
        let eval = pools(&sandbox, loaded, "eval", eval_hosts, inflight).await?;
        Ok(Parts { device, kernels, model_dir, decoder, renderer, plugin, train, eval })
    }
}

fn create(plugin: &Plugin, config: &RlConfig) -> Result<prl_algorithm::Algorithm, Failure> {
    let options = serde_json::Value::Object(config.orchestrator.algo.config.clone());
    plugin.create(&options, config.seed).map_err(input("`[orchestrator.algo]`"))
}

async fn pools(
    sandbox: &Sandbox,
    loaded: &Loaded<RlConfig>,
    split: &'static str,
    hosts: impl Iterator<Item = EnvHost>,
    inflight: usize,
) -> Result<Vec<Pool>, Failure> {
    let mut pools = Vec::new();
    for (i, host) in hosts.enumerate() {
        let key = format!("orchestrator.{split}.env.{i}");
        let log = logging::env_sink(split, &host.name);
        let pool = assets::environment(sandbox, loaded, &key, &host, inflight, log).await?;
        // One task of the split shows an environment that cannot even start before anything is written.
        pool.task(split, 0, loaded.config.seed).await.map_err(input(format_args!("`{key}`")))?;
        pools.push(pool);
    }
    Ok(pools)
}

async fn train(loaded: &Loaded<RlConfig>, parts: Parts, dir: RunDir, logs: Logs) -> Result<u8, Failure> {
    let config = &loaded.config;
    let ckpt = config.trainer.ckpt.as_ref();
    let resume = match ckpt.and_then(|c| c.resume_step) {
        Some(step) => Some(dir.checkpoints().resolve(step).map_err(input("`ckpt.resume_step`"))?),
        None => None,
    };
    if let Some((step, _)) = &resume {
        dir.set_aside_after(*step).map_err(Failure::run)?;
    }
    logs.set_dir(&dir.logs()).map_err(Failure::run)?;
    logging::write_configs(&dir, &loaded.dump())?;
    let dir = Arc::new(dir);

    let decoder = match &resume {
        Some((_, path)) => {
            // Two models at once may be more than the machine holds.
            drop(parts.decoder);
            assets::decoder(&path.join(checkpoint::TRAINER), None, parts.device)?
        }
        None => parts.decoder,
    };
    let chunk = config.trainer.model.fused_lm_head_token_chunk_size;
    let model_config = decoder.config().clone();
    let learner = Learner::new(decoder, parts.kernels, chunk).map_err(Failure::input)?;
    let snapshot = learner.snapshot().map_err(Failure::run)?;
    let trainer_parts = TrainerParts {
        loss: config.trainer.loss.clone(),
        optim: config.trainer.optim.clone(),
        scheduler: config.trainer.scheduler.clone(),
        max_steps: config.trainer.max_steps,
        seq_len: config.trainer.model.seq_len,
        peak_flops: None,
    };
    let mut trainer = Trainer::new(learner, trainer_parts).map_err(Failure::input)?;
    let mut progress = None;
    let mut start = PolicyVersion(0);
    if let Some((step, path)) = &resume {
        trainer.load_state(&path.join(checkpoint::TRAINER)).map_err(input("`ckpt.resume_step`"))?;
        progress = Some(checkpoint::orchestrator_progress(path).map_err(input("`ckpt.resume_step`"))?);
        start = PolicyVersion(*step);
        tracing::info!(target: "prl_trainer", "Resuming after step {step} from {}", path.display());
    }

    let made_for = model_config.max_position_embeddings;
    let max_len = config.inference.model.max_model_len.unwrap_or(made_for);
    let engine_config = EngineConfig::new(config.inference.max_num_seqs, max_len);
    let engine = Engine::start(snapshot, start, engine_config).map_err(Failure::input)?;
    let decoded = parts.renderer.clone();
    let decode: Decode = Arc::new(move |ids| decoded.decode(ids).unwrap_or_default());
    let snapshots = Snapshots::default();
    let policy = EnginePolicy { engine: engine.handle(), snapshots: snapshots.clone(), decode };
    let plan = ckpt.map(|c| Plan::new(c, config.trainer.max_steps, &parts.model_dir));
    let saves = plan.is_some();

    let monitor = logging::monitor(&dir, config.orchestrator.wandb.as_ref(), loaded)?;
    let bar = config.orchestrator.max_steps.map(|total| Progress::start(&logs, "Training", total));
    let recorder = Arc::new(Recorder::new(monitor, dir.rollouts(), bar));

    let mut train_deps = Vec::new();
    for pool in parts.train {
        let algorithm = Arc::new(PluginAlgorithm::new(create(&parts.plugin, config)?));
        train_deps.push(TrainDeps { env: Arc::new(PoolEnv(pool)), algorithm });
    }
    let stop = signals::listen().map_err(running("signal handlers"))?;
    let deps = Deps {
        policy: Arc::new(policy),
        renderer: Arc::new(ModelRenderer::new(parts.renderer)),
        trainer: Arc::new(LocalTrainer::new(trainer, snapshots, dir.clone(), plan)),
        observer: recorder.clone(),
        train: train_deps,
        eval: parts.eval.into_iter().map(|pool| Arc::new(PoolEnv(pool)) as Arc<dyn Env>).collect(),
        stop: stop.receiver.clone(),
    };
    let settings = settings::settings(config, &model_config, max_len, parts.device, progress);
    tracing::info!(
        target: "prl_orchestrator",
        "Model {} | {} | device {} | algorithm {} | output {}",
        parts.model_dir.display(), logging::shape(&model_config), parts.device, config.orchestrator.algo.kind,
        dir.root().display()
    );
    let result = prl_orchestrator::run(settings, deps).await;

    let code = match &result {
        Ok(outcome) if outcome.stopped => stop.exit_code().unwrap_or(130),
        Ok(_) => 0,
        Err(_) => 1,
    };
    recorder.finish(i32::from(code));
    let outcome = result.map_err(|error| failure(&error))?;
    if outcome.stopped {
        let again = logging::how_to_go_on(&dir, saves);
        tracing::warn!(target: "prl_orchestrator", "Stopped after step {}. {again}", outcome.progress.step);
    } else {
        tracing::info!(target: "prl_orchestrator", success = true, "RL training finished after step {}", outcome.progress.step);
    }
    Ok(code)
}

/// What could not have worked from the start is bad input; the rest failed during the run.
fn failure(error: &prl_orchestrator::Error) -> Failure {
    match error {
        prl_orchestrator::Error::Settings { .. } | prl_orchestrator::Error::EnvFailedAtStart { .. } => {
            Failure::input(error)
        }
        _ => Failure::run(error),
    }
}

//! `prl rl`: checks everything, assembles trainer, engine, environments and algorithm, and runs the orchestrator.

mod algorithms;
mod sampler;
mod settings;

use crate::algo::open::registry;
use crate::assets;
use crate::budget;
use crate::checkpoint::{self, Plan};
use crate::command::wants_help;
use crate::companions::Companions;
use crate::compute::Compute;
use crate::control::{Control, Reach};
use crate::environments;
use crate::failure::{Failure, input, run as running};
use crate::logging::{self, Place, Resumed};
use crate::lora;
use crate::ports::loss::{self, PluginLoss};
use crate::ports::observer::Recorder;
use crate::ports::renderer::ModelRenderer;
use crate::ports::servers::Servers;
use crate::ports::tape::Tapes;
use crate::ports::trainer::{LocalTrainer, Saves};
use crate::saver::Saver;
use crate::signals;
use algorithms::Algorithms;
use prl_config::{EnvHost, InferenceConfig, Loaded, RlConfig, WeightBroadcast};
use prl_environment::{Pool, Sandbox};
use prl_inference::{Decode, Engine, EngineConfig};
use prl_model::{Bits, Decoder, LoraPlan};
use prl_monitor::{LogFile, Logs, Progress, env_server_log};
use prl_orchestrator::{Deps, Env, Purpose, Settings, State};
use prl_render::Renderer;
use prl_store::Marks;
use prl_trainer::{CustomLoss, Trainer, TrainerParts};
use prl_types::PolicyVersion;
use sampler::Sampler;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

/// Runs the command; the code is the process's.
pub fn run(words: &[String]) -> Result<u8, Failure> {
    if wants_help(words) {
        return logging::print(&prl_config::help_rl());
    }
    let loaded = prl_config::load_rl(words).map_err(Failure::input)?;
    let config = &loaded.config;
    let place = Place::check(&config.output_dir, config.clean_output_dir, config.trainer.ckpt.as_ref())?;
    if config.dry_run {
        custom_loss(&loaded)?;
        return logging::dry_run(&config.output_dir, &loaded.dump(), &loaded.explain());
    }
    let logs = logging::install(
        config.orchestrator.log.level,
        config.orchestrator.log.json_logging,
        prl_monitor::LogFile::Orchestrator,
    )?;
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.enable_all().max_blocking_threads(prl_environment::MAX_BLOCKING).build();
    let runtime = runtime.map_err(running("runtime"))?;
    let result = runtime.block_on(async {
        let parts = Parts::load(&loaded).await?;
        train(&loaded, parts, place, logs).await
    });
    // A training step that a stop gave up must not keep the process alive.
    runtime.shutdown_background();
    result
}

/// Everything from outside, opened and checked before the run directory is touched.
struct Parts {
    compute: Compute,
    companions: Companions,
    decoder: Decoder,
    lora: Option<LoraPlan>,
    renderer: Arc<Renderer>,
    algorithms: Algorithms,
    /// Where the policy is sampled, if not here.
    servers: Option<Arc<Servers>>,
    loss: Option<PluginLoss>,
    train: Vec<Pool>,
    eval: Vec<Pool>,
}

impl Parts {
    async fn load(loaded: &Loaded<RlConfig>) -> Result<Self, Failure> {
        let config = &loaded.config;
        let orchestrator = &config.orchestrator;
        let compute = Compute::open(
            config.device,
            config.kernels,
            Bits { deterministic: config.deterministic == Some(true), exact: config.exact },
        )?;
        compute.check_optim("trainer.optim", &config.trainer.optim)?;

        let mut algorithms = Algorithms::open(&registry(plugin_files(loaded))?, config)?;
        let loss = custom_loss(loaded)?;
        if let Some(loss) = &loss {
            loss.check_references(algorithms.about().map(|about| (about.name.as_str(), about.reference)))?;
        }

        let model_dir = assets::model_dir(loaded, "trainer.model.name", &config.trainer.model.name)?;
        let random = config.trainer.model.debug.random_init.then_some(config.seed);
        let moments = budget::remembered(&config.trainer.optim);
        let lora = lora::plan("trainer.", &config.trainer.model, &compute, &model_dir)?;
        budget::check_training(&model_dir, |shape| {
            let trained = lora.as_ref().map(|plan| lora::parameters(plan, shape));
            budget::Load { gpu: compute.on_gpu(), moments, trained, ..budget::Load::default() }
        })?;
        let decoder = assets::decoder(&model_dir, random, compute.home())?;
        let model = (config.trainer.model.name.as_str(), model_dir.as_path());
        let companions = Companions::open(loaded, ("orchestrator.tokenizer", &orchestrator.tokenizer), model)?;
        let renderer = assets::renderer(
            companions.tokenizer(),
            orchestrator.tokenizer.chat_template.clone(),
            &orchestrator.renderer,
            &decoder,
        )?;
        let made_for = decoder.config().max_position_embeddings;
        if let Some(len) = config.inference.model.max_model_len.filter(|len| *len > made_for) {
            return Err(Failure::input(format_args!(
                "`inference.model.max_model_len` = {len}, but the model was made for {made_for} tokens"
            )));
        }

        algorithms.connect(config, &renderer).await?;
        let servers = match &orchestrator.model.client {
            Some(client) => {
                let named = orchestrator.model.lora.as_ref().and_then(|lora| lora.name.clone());
                let own = |plan: &LoraPlan| format!("r{}-a{}", plan.rank(), plan.options().alpha);
                let adapter = lora.as_ref().map(|plan| named.unwrap_or_else(|| own(plan)));
                let servers = Servers::connect(client, &orchestrator.model.name, adapter).await?;
                match &config.weight_broadcast {
                    WeightBroadcast::Filesystem(_) if servers.adapter() => servers.check_adapters().await?,
                    // Weights from scratch are in no folder yet.
                    WeightBroadcast::Filesystem(_) if random.is_none() => {
                        servers.check_update(&std::path::absolute(&model_dir).map_err(Failure::input)?).await?;
                    }
                    // They show it when they join the communicator.
                    WeightBroadcast::Filesystem(_) | WeightBroadcast::Nccl(_) => {}
                }
                Some(Arc::new(servers))
            }
            None => None,
        };
        let sandbox = environments::sandbox()?;
        let context = context(config, made_for, servers.as_deref());
        let train_hosts = orchestrator.train.env.iter().map(|e| e.host());
        let train = pools(&sandbox, loaded, "train", train_hosts, (&renderer, context)).await?;
        let eval_hosts = orchestrator.eval.iter().flat_map(|e| e.env.iter().map(|e| e.host()));
        let eval = pools(&sandbox, loaded, "eval", eval_hosts, (&renderer, context)).await?;
        Ok(Parts { compute, companions, decoder, lora, renderer, algorithms, servers, loss, train, eval })
    }
}

/// Tokens of prompt and answer together.
fn context(config: &RlConfig, made_for: usize, servers: Option<&Servers>) -> usize {
    let served = servers.map_or(usize::MAX, Servers::context);
    config.inference.model.max_model_len.unwrap_or(made_for).min(served)
}

/// The files of `--plugin`.
fn plugin_files(loaded: &Loaded<RlConfig>) -> Vec<PathBuf> {
    let plugins = loaded.config.plugin.iter().enumerate();
    plugins.map(|(i, path)| loaded.path_of(&format!("plugin.{i}"), path)).collect()
}

/// The loss of a plug-in, where the run asks for one.
fn custom_loss(loaded: &Loaded<RlConfig>) -> Result<Option<PluginLoss>, Failure> {
    let config = &loaded.config;
    PluginLoss::open(("trainer.loss", &config.trainer.loss), || registry(plugin_files(loaded)), config.seed)
}

async fn pools(
    sandbox: &Sandbox,
    loaded: &Loaded<RlConfig>,
    split: &'static str,
    hosts: impl Iterator<Item = EnvHost>,
    (renderer, context): (&Renderer, usize),
) -> Result<Vec<Pool>, Failure> {
    let inflight = settings::inflight(&loaded.config);
    let mut pools = Vec::new();
    for (i, host) in hosts.enumerate() {
        let key = format!("orchestrator.{split}.env.{i}");
        let log = logging::env_sink(split, &host.name);
        let pool = environments::environment(sandbox, loaded, &key, &host, inflight, log).await?;
        // One task of the split shows an environment that cannot even start, and a prompt that cannot be rendered.
        let task = pool.task(&host.split, 0, loaded.config.seed).await.map_err(input(format_args!("`{key}`")))?;
        let prompt = renderer.render_ids(&task.prompt, &task.tools, true).map_err(input(format_args!("`{key}`")))?;
        let room = loaded.config.orchestrator.seq_len.min(context);
        if prompt.ids.len() >= room {
            return Err(Failure::input(format_args!(
                "`{key}`: the first prompt has {} tokens, which leaves no room to answer in a context of {room} \
                 (`orchestrator.seq_len`, or what the model was made for)",
                prompt.ids.len()
            )));
        }
        pools.push(pool);
    }
    Ok(pools)
}

/// The environments, with what passes them taken down.
fn taped(tapes: &Tapes, pools: &[Pool], hosts: impl Iterator<Item = EnvHost>) -> Vec<Arc<dyn Env>> {
    let one = |(pool, host): (&Pool, EnvHost)| {
        let weights = environments::weights(&host);
        tapes.env(pool.clone(), serde_json::Value::Object(host.args), weights)
    };
    pools.iter().zip(hosts).map(one).collect()
}

/// A model ready to train and to be sampled from, and the settings checked against it.
struct Ready {
    trainer: Trainer,
    sampler: Sampler,
    settings: Settings,
    resumed: Option<Resumed>,
}

impl Ready {
    /// Everything that can still turn out to be bad input, before the run directory is touched.
    fn new(
        config: &RlConfig,
        ((decoder, lora), loss): ((Decoder, Option<LoraPlan>), Option<PluginLoss>),
        compute: &mut Compute,
        resume: Option<Resume>,
        servers: Option<Arc<Servers>>,
    ) -> Result<Self, Failure> {
        let (resumed, begin) = match resume {
            Some(Resume { at, state, evaluated }) => (Some(at), Some((state, evaluated))),
            None => (None, None),
        };
        let decoder = match &resumed {
            Some((_, path)) => checkpoint::decoder(path, decoder, lora.is_some(), compute.home())?,
            None => decoder,
        };
        let shape = decoder.config().clone();
        let (model, precision) = (&config.trainer.model, config.trainer.matmul_precision);
        let train = (model, precision, compute.pass_tokens(model.seq_len));
        let from = resumed.as_ref().map(|(_, path)| path.as_path());
        let learner = lora::learner(compute, (decoder, lora, config.seed), train, from)?;
        let parts = TrainerParts {
            loss: config.trainer.loss.clone(),
            optim: config.trainer.optim.clone(),
            scheduler: config.trainer.scheduler.clone(),
            max_steps: config.trainer.max_steps,
            seq_len: config.trainer.model.seq_len,
            peak_flops: assets::peak_flops(compute.device),
        };
        let mut trainer = loss::trainer(learner, parts, loss)?;
        if let Some((_, path)) = &resumed {
            let skip = checkpoint::skips(config.trainer.ckpt.as_ref());
            trainer.load_state(&path.join(checkpoint::TRAINER), skip).map_err(input("`ckpt.resume_step`"))?;
            checkpoint::check_trainer(version(resumed.as_ref()).0, trainer.progress().step)?;
        }
        let max_len = context(config, shape.max_position_embeddings, servers.as_deref());
        let settings = settings::settings(config, &shape, max_len, compute.device, begin);
        let sampler = match servers {
            Some(servers) => Sampler::There { servers, broadcaster: None },
            None => {
                let snapshot = trainer.learner().snapshot().map_err(Failure::input)?;
                let limits = limits(&config.inference, max_len, compute.on_gpu());
                let engine = Engine::start(snapshot, version(resumed.as_ref()), limits).map_err(Failure::input)?;
                Sampler::Here(engine)
            }
        };
        Ok(Ready { trainer, sampler, settings, resumed })
    }
}

/// Where a run goes on.
struct Resume {
    at: Resumed,
    state: State,
    /// Evaluation environments whose evaluation with the version of this step is on record.
    evaluated: BTreeSet<String>,
}

/// The policy that the run begins with.
fn version(resumed: Option<&Resumed>) -> PolicyVersion {
    PolicyVersion(resumed.map_or(0, |(step, _)| *step))
}

fn limits(config: &InferenceConfig, context: usize, on_gpu: bool) -> EngineConfig {
    let tokens = crate::inference::batched_tokens(config.max_num_batched_tokens, on_gpu);
    let limits = crate::inference::limits(config.max_num_seqs, context, tokens, config.enable_prefix_caching);
    EngineConfig { cache_bytes: config.kv_cache_gb.map_or(usize::MAX, crate::inference::cache_gb), ..limits }
}

async fn train(loaded: &Loaded<RlConfig>, mut parts: Parts, place: Place, logs: Logs) -> Result<u8, Failure> {
    let config = &loaded.config;
    let ckpt = config.trainer.ckpt.as_ref();
    let (early, resumed) = place.resume()?.map_or((None, None), |(dir, from)| (Some(dir), from));
    let (resumed, marks) = match (&early, resumed) {
        (Some(dir), Some(at)) => {
            let (mut state, marks) = checkpoint::orchestrator((at.0, &at.1)).map_err(input("`ckpt.resume_step`"))?;
            if let Some(last) = config.trainer.max_steps.filter(|last| *last < at.0) {
                return Err(Failure::input(format_args!(
                    "`ckpt.resume_step`: the checkpoint is of step {}, and `max_steps` is {last}: raise it, or name an earlier step",
                    at.0
                )));
            }
            if config.orchestrator.ckpt.as_ref().is_some_and(|ckpt| ckpt.skip_progress) {
                state.forget_totals();
            }
            (Some(Resume { evaluated: dir.evaluated(at.0), state, at }), marks)
        }
        _ => (None, Marks::default()),
    };
    let loss = parts.loss.as_ref().map(|loss| (loss.name().to_owned(), loss.wanted()));
    let mut ready =
        Ready::new(config, ((parts.decoder, parts.lora), parts.loss), &mut parts.compute, resumed, parts.servers)?;
    if let WeightBroadcast::Nccl(nccl) = &config.weight_broadcast {
        ready.sampler.join(&parts.compute, ready.trainer.learner().config(), nccl).await?;
    }
    let tapes = Tapes::default();
    let train = taped(&tapes, &parts.train, config.orchestrator.train.env.iter().map(|env| env.host()));
    let eval = config.orchestrator.eval.iter().flat_map(|eval| eval.env.iter().map(|env| env.host()));
    let eval = taped(&tapes, &parts.eval, eval);
    prl_orchestrator::check(&ready.settings, &train, &eval).map_err(|error| failure(&error))?;
    let stop = signals::listen().map_err(running("signal handlers"))?;

    let states = ready.settings.resume.as_ref().map(|state| state.algorithms());
    let instances = parts.algorithms.instances(config, states)?;
    let dir = place.begin(early, ready.resumed.as_ref().map(|(step, _)| (*step, marks)), &logs, &loaded.dump())?;
    let dir = Arc::new(dir);
    tracing::info!(
        target: "prl_orchestrator",
        "{} | algorithm {} | output {}",
        parts.compute.says(&parts.companions.model, ready.trainer.learner().config()), parts.algorithms.names(),
        dir.root().display()
    );
    assets::tell_renderer(&parts.renderer, &config.orchestrator.renderer, "orchestrator.renderer");
    logging::outside(parts.train.iter().chain(&parts.eval));
    for (split, pools) in [("train", &parts.train), ("eval", &parts.eval)] {
        pools.iter().for_each(|pool| logging::env_server(split, pool));
    }

    logging::nothing_saved(ckpt, config.trainer.max_steps);

    let monitor = logging::monitor(&dir, config.orchestrator.wandb.as_ref(), loaded)?;
    let bar = config.orchestrator.max_steps.map(|total| Progress::start(&logs, "Training", total));
    let recorder = Arc::new(Recorder::new(monitor, &dir, tapes, bar, version(ready.resumed.as_ref()).0));
    let decoded = parts.renderer.clone();
    let decode: Decode = Arc::new(move |ids| decoded.decode(ids).unwrap_or_default());
    let begins = (version(ready.resumed.as_ref()), ready.trainer.learner());
    let (policy, handover) =
        ready.sampler.policy(decode, &dir, &parts.companions, begins, config.orchestrator.max_async_level).await?;
    let saves = ckpt.map(|ckpt| {
        let plan = Plan::new(ckpt, config.trainer.max_steps, &parts.companions);
        let saver = Saver::start(plan.clone(), &dir).map_err(Failure::run)?;
        Ok(Saves { plan, saver, recorder: recorder.clone(), parts: Mutex::default() })
    });
    let trainer = Arc::new(LocalTrainer::new(ready.trainer, handover, saves.transpose()?));
    let control = Reach {
        step: recorder.step(),
        max_steps: config.orchestrator.max_steps,
        algorithms: instances.iter().map(|one| (one.env.clone(), one.real.clone())).collect(),
        loss,
        stop: stop.clone(),
    };
    let control = Control::start(dir.root(), control);
    let deps = Deps {
        policy,
        renderer: Arc::new(ModelRenderer::new(parts.renderer.clone(), &config.orchestrator.renderer)),
        trainer: trainer.clone(),
        observer: recorder.clone(),
        train: train
            .into_iter()
            .zip(instances)
            .map(|(env, instance)| instance.deps(env, ready.sampler.scores(), parts.renderer.clone()))
            .collect(),
        eval,
        stop: stop.receiver.clone(),
    };
    let result = prl_orchestrator::run(ready.settings, deps).await;
    drop(control);

    ready.sampler.report();
    let (log, stopped) = match result {
        Ok(outcome)
            if !outcome.stopped
                && let Err(reason) = trainer.check() =>
        {
            (LogFile::Trainer.name().to_owned(), Err(Failure::run(reason)))
        }
        Ok(outcome) => (LogFile::Orchestrator.name().to_owned(), Ok((outcome.stopped, outcome.progress.step))),
        Err(error) => (culprit(&error), Err(failure(&error))),
    };
    let (unsaved, unrecorded) = (trainer.finish(), recorder.lost());
    let end = logging::End { dir: &dir, ckpt, unsaved, unrecorded, log, what: "RL" };
    let code = end.code(&stopped, &stop);
    recorder.finish(i32::from(code));
    end.report(stopped, code)
}

/// The log file of the part that failed, below `logs/`.
fn culprit(error: &prl_orchestrator::Error) -> String {
    use prl_orchestrator::Error;
    match error {
        Error::Trainer { .. } => LogFile::Trainer.name().into(),
        Error::Policy { .. } | Error::PolicyEnded { .. } => LogFile::Inference.name().into(),
        Error::EnvFailedAtStart { purpose: Purpose::Eval, env, .. } => env_server_log("eval", env),
        Error::EnvFailedAtStart { env, .. } => env_server_log("train", env),
        // Rollouts that failed, whoever's fault that was, are told in the orchestrator's.
        _ => LogFile::Orchestrator.name().into(),
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use prl_orchestrator::Error;

    #[test]
    fn the_log_of_the_part_that_failed_is_named() {
        let (env, message) = ("a/b".to_owned(), "x".to_owned());
        let start = |purpose| Error::EnvFailedAtStart { purpose, env: env.clone(), message: message.clone() };
        for (error, log) in [
            (Error::Trainer { step: 1, message: message.clone() }, "trainer.log"),
            (Error::PolicyEnded { message: message.clone() }, "inference.log"),
            (Error::Policy { version: 1, message: message.clone() }, "inference.log"),
            (start(Purpose::Train), "envs/train/a_b/env_server.log"),
            (start(Purpose::Eval), "envs/eval/a_b/env_server.log"),
            (Error::Panic(message.clone()), "orchestrator.log"),
        ] {
            assert_eq!(culprit(&error), log);
        }
    }
}

//! `prl sft`: checks everything, opens model and data, and trains.

mod data;
mod files;

use crate::assets;
use crate::bench::{self, Measured, Output};
use crate::budget::{self, Load};
use crate::checkpoint;
use crate::command::wants_help;
use crate::companions::Companions;
use crate::compute::Compute;
use crate::failure::{Failure, input, run as running};
use crate::job::{Job, Settings};
use crate::logging::{self, Place};
use crate::lora;
use crate::machine;
use crate::signals::{self, Stop};
use data::{Data, Texts};
use prl_config::{Loaded, SftConfig, SftData};
use prl_model::{Bits, Decoder, LoraPlan, ModelConfig};
use prl_monitor::{Logs, SftLine, ValidationLine};
use prl_render::Renderer;
use prl_store::Marks;
use prl_trainer::{Mixture, SftParts, SftTrainer, StepMetrics, TrainerError, ValidationPasses};
use prl_types::Step;
use std::path::Path;
use std::sync::Arc;
use tokio::runtime::Runtime;

/// Runs the command; the code is the process's.
pub fn run(words: &[String]) -> Result<u8, Failure> {
    if wants_help(words) {
        return logging::print(&prl_config::help_sft());
    }
    let loaded = prl_config::load_sft(words).map_err(Failure::input)?;
    let config = &loaded.config;
    // A measurement writes no run directory.
    let (output, place) = match &config.bench {
        Some(bench) => (Output::check(bench, &loaded)?, None),
        None => (None, Some(Place::check(&config.output_dir, config.clean_output_dir, config.ckpt.as_ref())?)),
    };
    if config.dry_run {
        return logging::dry_run(&config.output_dir, &loaded.dump(), &loaded.explain());
    }
    let logs = logging::install(config.log.level, config.log.json_logging, prl_monitor::LogFile::Trainer)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(running("runtime"))?;
    let parts = Parts::load(&loaded, &runtime)?;
    let Some(place) = place else { return measure(&loaded, parts, output.as_ref()) };
    let _on_it = runtime.enter();
    let stop = runtime.block_on(async { signals::listen() }).map_err(running("signal handlers"))?;
    train(&loaded, parts, &place, &logs, &stop)
}

/// Everything from outside, opened and checked before the run directory is touched.
struct Parts {
    compute: Compute,
    companions: Companions,
    decoder: Decoder,
    lora: Option<LoraPlan>,
    renderer: Option<Arc<Renderer>>,
    data: Data,
    val: Option<Mixture>,
}

impl Parts {
    fn load(loaded: &Loaded<SftConfig>, runtime: &Runtime) -> Result<Self, Failure> {
        let config = &loaded.config;
        let compute =
            Compute::open(config.device, config.kernels, Bits { deterministic: config.deterministic, exact: false })?;
        compute.check_optim("optim", &config.optim)?;
        let model_dir = assets::model_dir(loaded, "model.name", &config.model.name)?;
        let lora = lora::plan("", &config.model, &compute, &model_dir)?;
        budget::check_training(&model_dir, |shape| load(config, compute.on_gpu(), (lora.as_ref(), shape)))?;
        let random = config.model.debug.random_init.then_some(config.seed);
        let decoder = assets::decoder(&model_dir, random, compute.home())?;
        let tokenizer = ("tokenizer", &config.tokenizer);
        let companions = Companions::open(loaded, tokenizer, (config.model.name.as_str(), &model_dir))?;
        let texts = Texts::new(loaded, &model_dir, &decoder);
        let data = Data::open(&texts, "data", &config.data, runtime)?;
        let val = match &config.val {
            Some(val) => Some(Data::open(&texts, "val.data", &val.data, runtime)?.once("val.data")?),
            None => None,
        };
        let renderer = texts.into_renderer();
        Ok(Parts { compute, companions, decoder, lora, renderer, data, val })
    }
}

/// What a step takes at least. Made-up documents fill their rows; of others one that does not fit begins the next row, so
/// that of two rows one is more than half full. Per token of a batch: an id and whether it counts.
fn load(config: &SftConfig, gpu: bool, (plan, shape): (Option<&LoraPlan>, &ModelConfig)) -> Load {
    let part = if matches!(config.data, SftData::Fake(_)) { 1 } else { 2 };
    let row = config.data.seq_len() / part;
    let batch = config.data.batch_size() as u128 * row as u128 * 5;
    let moments = budget::remembered(&config.optim);
    let trained = plan.map(|plan| lora::parameters(plan, shape));
    Load { gpu, pass: row.saturating_mul(config.data.micro_batch_size()), batch, moments, trained }
}

/// A trainer of `decoder` on the configured data, from where the checkpoint `resume` is.
fn trainer(
    config: &SftConfig,
    (decoder, lora): (Decoder, Option<LoraPlan>),
    compute: &mut Compute,
    data: Data,
    resume: Option<&Path>,
) -> Result<SftTrainer, Failure> {
    // A measurement does not validate.
    let validated = config.val.as_ref().filter(|_| config.bench.is_none()).map_or(&config.data, |val| &val.data);
    let validation = ValidationPasses { seq_len: validated.seq_len(), rows: validated.micro_batch_size() };
    let tokens = config.data.seq_len() * config.data.micro_batch_size();
    let tokens = tokens.max(validation.seq_len * validation.rows);
    let train = (&config.model, config.matmul_precision, tokens);
    let learner = lora::learner(compute, (decoder, lora, config.seed), train, resume)?;
    let parts = SftParts {
        optim: config.optim.clone(),
        scheduler: config.scheduler.clone(),
        max_steps: config.max_steps,
        seq_len: config.data.seq_len(),
        batch_size: config.data.batch_size(),
        micro_batch_size: config.data.micro_batch_size(),
        validation,
        peak_flops: assets::peak_flops(compute.device),
    };
    SftTrainer::new(learner, parts, data.into_documents(&config.data)?).map_err(Failure::input)
}

fn measure(loaded: &Loaded<SftConfig>, mut parts: Parts, output: Option<&Output>) -> Result<u8, Failure> {
    let config = &loaded.config;
    let Some(steps) = config.max_steps else { return Err(Failure::input("`bench` needs `max_steps`")) };
    let mut trainer = trainer(config, (parts.decoder, parts.lora), &mut parts.compute, parts.data, None)?;
    let total_memory = machine::total_memory_gib(parts.compute.device);
    tracing::info!(target: "prl_trainer", "{}", parts.compute.says(&parts.companions.model, trainer.learner().config()));
    bench::run((output, loaded, &parts.compute), steps, || {
        let outcome = trainer.train_step().map_err(Failure::run)?;
        let Some(outcome) = outcome else { return Err(Failure::input("`data` ends before the measurement")) };
        let step = trainer.progress().step;
        let line = line(step, &outcome.metrics, total_memory).to_string();
        Ok(Measured { step, update: outcome.update, metrics: outcome.metrics, line })
    })
}

fn train(loaded: &Loaded<SftConfig>, mut parts: Parts, place: &Place, logs: &Logs, stop: &Stop) -> Result<u8, Failure> {
    let config = &loaded.config;
    let (early, resume) = place.resume()?.map_or((None, None), |(dir, from)| (Some(dir), from));
    let decoder = match &resume {
        Some((step, path)) if checkpoint::is_of_rl(path) => {
            return Err(Failure::input(format_args!(
                "`ckpt.resume_step`: the checkpoint of step {step} is of `prl rl`; start a run of its own from the weights of \
                 that step, with `model.name` = `{}`",
                checkpoint::weights_beside(path, *step).display()
            )));
        }
        Some((_, path)) => checkpoint::decoder(path, parts.decoder, parts.lora.is_some(), parts.compute.home())?,
        None => parts.decoder,
    };
    let from = resume.as_ref().map(|(_, path)| path.as_path());
    let mut trainer = trainer(config, (decoder, parts.lora), &mut parts.compute, parts.data, from)?;
    if let Some((step, path)) = &resume {
        trainer
            .load_state(&path.join(checkpoint::TRAINER), checkpoint::skips(config.ckpt.as_ref()))
            .map_err(input("`ckpt.resume_step`"))?;
        checkpoint::check_trainer(*step, trainer.progress().step)?;
    }

    let dir = place.begin(early, resume.as_ref().map(|(step, _)| (*step, Marks::default())), logs, &loaded.dump())?;
    tracing::info!(
        target: "prl_trainer",
        "{} | output {}",
        parts.compute.says(&parts.companions.model, trainer.learner().config()), dir.root().display()
    );
    logging::nothing_saved(config.ckpt.as_ref(), config.max_steps);
    if let Some(renderer) = &parts.renderer {
        assets::tell_renderer(renderer, &config.renderer, "renderer");
    }
    let settings =
        Settings { ckpt: config.ckpt.as_ref(), max_steps: config.max_steps, wandb: config.wandb.as_ref(), what: "SFT" };
    // A stop may have come between the checkpoint and the validation of its step.
    let validated = resume.as_ref().map(|(step, _)| *step).filter(|step| dir.validated(*step));
    let mut run = Run {
        job: Job::new(dir, logs, loaded, settings, &parts.companions, resume.as_ref(), stop)?,
        val: parts.val.map(|data| Validation {
            data,
            interval: config.val.as_ref().map_or(1, |v| v.interval),
            done: validated,
        }),
        total_memory_gib: machine::total_memory_gib(parts.compute.device),
    };
    let asked = stop.receiver.clone();
    trainer.stop_when(move || *asked.borrow());
    let eval_on_start = config.val.as_ref().is_some_and(|v| v.eval_on_start);
    let stopped = run.steps(&mut trainer, eval_on_start, stop);
    run.job.end(stopped, trainer.progress().step, stop)
}

/// What is validated on, and when.
struct Validation {
    data: Mixture,
    /// Steps between.
    interval: u64,
    /// The step it was last done after.
    done: Option<Step>,
}

struct Run<'a> {
    job: Job<'a>,
    val: Option<Validation>,
    /// Of the device.
    total_memory_gib: f64,
}

impl Run<'_> {
    /// Trains to the last step, the end of the data or a stop; true for a stop.
    fn steps(&mut self, trainer: &mut SftTrainer, eval_on_start: bool, stop: &Stop) -> Result<bool, Failure> {
        let begins = trainer.progress().step;
        let due = if begins == 0 { eval_on_start } else { self.is_validated(begins) };
        if due && self.validate(trainer, begins)? {
            return Ok(true);
        }
        let mut epoch = trainer.epoch();
        while self.job.goes_on(trainer.progress().step) {
            if *stop.receiver.borrow() {
                return Ok(true);
            }
            let outcome = match trainer.train_step() {
                Err(TrainerError::Stopped) => return Ok(true),
                outcome => outcome.map_err(Failure::run)?,
            };
            let Some(outcome) = outcome else {
                tracing::info!(target: "prl_trainer", "The data has ended after step {}", trainer.progress().step);
                break;
            };
            let step = trainer.progress().step;
            if let Some(left_out) = outcome.metrics.get("loss/nan_count").filter(|n| **n > 0.0) {
                let what = "micro-batches have a loss that is not finite; the step goes without them";
                tracing::warn!(target: "prl_trainer", "step {step}: {left_out} {what}");
            }
            let line = line(step, &outcome.metrics, self.total_memory_gib);
            let metrics = outcome.metrics.clone();
            self.job.record(step, outcome.update, line, outcome.metrics)?;
            for ended in epoch..trainer.epoch() {
                tracing::info!(target: "prl_trainer", "Epoch {ended} has ended with step {step}{}", shares(&metrics));
            }
            epoch = trainer.epoch();
            // Before the validation, which may be long or stopped.
            if self.job.is_due(step) {
                self.job.save(step, trainer.learner().weights(), trainer.state());
            }
            self.job.advance(step);
            if self.is_validated(step) && self.validate(trainer, step)? {
                return Ok(true);
            }
        }
        self.validate(trainer, trainer.progress().step)
    }

    /// Whether a validation follows a step, be it the last or not.
    fn is_validated(&self, step: Step) -> bool {
        self.val.as_ref().is_some_and(|val| step.is_multiple_of(val.interval))
    }

    /// Validates after `step`, unless that is done; true for a stop.
    fn validate(&mut self, trainer: &mut SftTrainer, step: Step) -> Result<bool, Failure> {
        let Some(val) = self.val.as_mut().filter(|val| val.done != Some(step)) else { return Ok(false) };
        let metrics = match trainer.validate(&mut val.data) {
            Err(TrainerError::Stopped) => return Ok(true),
            metrics => metrics.map_err(Failure::run)?,
        };
        val.done = Some(step);
        let left_out = metrics.get("val/nan_count").copied().unwrap_or_default();
        if left_out > 0.0 {
            let what = "documents of the validation have a loss that is not finite; `val/loss` goes without them";
            tracing::warn!(target: "prl_trainer", "step {step}: {left_out} {what}");
        }
        let line = ValidationLine { step, loss: metrics.get("val/loss").copied().unwrap_or(f64::NAN) };
        tracing::info!(target: "prl_trainer", success = line.loss.is_finite(), "{line}");
        self.job.log(step, metrics);
        Ok(false)
    }
}

/// The realised mixture of the steps so far, for people; nothing where there is one source.
fn shares(metrics: &StepMetrics) -> String {
    let names = metrics.keys().filter_map(|key| key.strip_prefix("progress/")?.strip_suffix("/ratio_samples"));
    names.fold(String::new(), |told, name| {
        let of =
            |what: &str| 100.0 * metrics.get(&format!("progress/{name}/ratio_{what}")).copied().unwrap_or_default();
        format!("{told} | {name} {:.1}% of samples, {:.1}% of tokens", of("samples"), of("tokens"))
    })
}

fn line(step: Step, metrics: &StepMetrics, total_memory_gib: f64) -> SftLine {
    let value = |name: &str| metrics.get(name).copied().unwrap_or(0.0);
    SftLine {
        step,
        seconds: value("time/step"),
        loss: metrics.get("loss/mean").copied().unwrap_or(f64::NAN),
        grad_norm: metrics.get("optim/grad_norm").copied().unwrap_or(f64::NAN),
        lr: value("optim/lr"),
        throughput: value("perf/throughput"),
        mfu: metrics.get("perf/mfu").copied(),
        peak_memory_gib: value("perf/peak_memory"),
        total_memory_gib,
    }
}

//! `prl trainer`: the trainer of reinforcement learning alone, on made-up batches.

use crate::algo::open::registry;
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
use crate::ports::loss::{self, PluginLoss};
use crate::ports::observer::trainer_line;
use crate::signals::{self, Stop};
use prl_config::{FakeBatches, Loaded, TrainerRun};
use prl_model::{Bits, Decoder, LoraPlan};
use prl_monitor::Logs;
use prl_store::Marks;
use prl_trainer::{StepOutcome, Trainer, TrainerError, TrainerParts, fake_batch};
use std::path::{Path, PathBuf};

/// Runs the command; the code is the process's.
pub fn run(words: &[String]) -> Result<u8, Failure> {
    if wants_help(words) {
        return logging::print(&prl_config::help_trainer());
    }
    let loaded = prl_config::load_trainer(words).map_err(Failure::input)?;
    let config = &loaded.config;
    // A measurement writes no run directory.
    let (output, place) = match &config.bench {
        Some(bench) => (Output::check(bench, &loaded)?, None),
        None => (None, Some(Place::check(&config.output_dir, config.clean_output_dir, config.ckpt.as_ref())?)),
    };
    if config.dry_run {
        custom_loss(config)?;
        return logging::dry_run(&config.output_dir, &loaded.dump(), &loaded.explain());
    }
    let logs = logging::install(config.log.level, config.log.json_logging, prl_monitor::LogFile::Trainer)?;
    let parts = Parts::load(&loaded)?;
    match place {
        None => measure(&loaded, parts, output.as_ref()),
        Some(place) => {
            let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
            let runtime = runtime.map_err(running("runtime"))?;
            let _on_it = runtime.enter();
            let stop = runtime.block_on(async { signals::listen() }).map_err(running("signal handlers"))?;
            train(&loaded, parts, &place, &logs, &stop)
        }
    }
}

/// Everything from outside, opened and checked before the run directory is touched.
struct Parts {
    compute: Compute,
    model_dir: PathBuf,
    decoder: Decoder,
    lora: Option<LoraPlan>,
    loss: Option<PluginLoss>,
    fake: FakeBatches,
}

/// The loss of a plug-in, where the configuration asks for one.
fn custom_loss(config: &TrainerRun) -> Result<Option<PluginLoss>, Failure> {
    PluginLoss::open(("loss", &config.loss), || registry(Vec::new()), config.seed)
}

impl Parts {
    fn load(loaded: &Loaded<TrainerRun>) -> Result<Self, Failure> {
        let config = &loaded.config;
        let fake = config.data.fake.clone().ok_or_else(|| Failure::input("`data.fake` is missing"))?;
        let compute =
            Compute::open(config.device, config.kernels, Bits { deterministic: config.deterministic, exact: false })?;
        compute.check_optim("optim", &config.optim)?;
        let loss = custom_loss(config)?;
        let model_dir = assets::model_dir(loaded, "model.name", &config.model.name)?;
        // Made-up rows are as long as they may be. Per token: an id, a log-probability and an advantage.
        let batch = fake.batch_size as u128 * config.model.seq_len as u128 * 12;
        let moments = budget::remembered(&config.optim);
        let lora = lora::plan("", &config.model, &compute, &model_dir)?;
        let (gpu, pass) = (compute.on_gpu(), config.model.seq_len);
        budget::check_training(&model_dir, |shape| {
            let trained = lora.as_ref().map(|plan| lora::parameters(plan, shape));
            Load { gpu, pass, batch, moments, trained }
        })?;
        let random = config.model.debug.random_init.then_some(config.seed);
        let decoder = assets::decoder(&model_dir, random, compute.home())?;
        Ok(Parts { compute, model_dir, decoder, lora, loss, fake })
    }
}

/// A trainer and the batches it is fed with.
struct Feed<'a> {
    trainer: Trainer,
    fake: FakeBatches,
    config: &'a TrainerRun,
}

impl<'a> Feed<'a> {
    fn new(
        config: &'a TrainerRun,
        (decoder, lora): (Decoder, Option<LoraPlan>),
        (loss, fake): (Option<PluginLoss>, FakeBatches),
        compute: &mut Compute,
        resume: Option<&Path>,
    ) -> Result<Self, Failure> {
        let train = (&config.model, config.matmul_precision, compute.pass_tokens(config.model.seq_len));
        let learner = lora::learner(compute, (decoder, lora, config.seed), train, resume)?;
        let settings = TrainerParts {
            loss: config.loss.clone(),
            optim: config.optim.clone(),
            scheduler: config.scheduler.clone(),
            max_steps: config.max_steps,
            seq_len: config.model.seq_len,
            peak_flops: assets::peak_flops(compute.device),
        };
        let trainer = loss::trainer(learner, settings, loss)?;
        Ok(Feed { trainer, fake, config })
    }

    /// `None` where a stop was asked for before the step was done.
    fn step(&mut self) -> Result<Option<StepOutcome>, Failure> {
        let (seq_len, seed) = (self.config.model.seq_len, self.config.seed);
        let vocab_size = self.trainer.learner().config().vocab_size;
        let step = self.trainer.progress().step + 1;
        let batch = fake_batch(&self.fake, seq_len, vocab_size, seed, step).map_err(Failure::run)?;
        match self.trainer.train_step(&batch) {
            Err(TrainerError::Stopped) => Ok(None),
            outcome => outcome.map(Some).map_err(Failure::run),
        }
    }
}

fn measure(loaded: &Loaded<TrainerRun>, mut parts: Parts, output: Option<&Output>) -> Result<u8, Failure> {
    let config = &loaded.config;
    let Some(steps) = config.max_steps else { return Err(Failure::input("`bench` needs `max_steps`")) };
    let (model, on) = ((parts.decoder, parts.lora), (parts.loss, parts.fake));
    let mut feed = Feed::new(config, model, on, &mut parts.compute, None)?;
    tracing::info!(
        target: "prl_trainer",
        "{} | made-up batches", parts.compute.says(&parts.model_dir, feed.trainer.learner().config())
    );
    bench::run((output, loaded, &parts.compute), steps, || {
        let Some(outcome) = feed.step()? else { return Err(Failure::run("stopped")) };
        let step = feed.trainer.progress().step;
        let line = trainer_line(step, &outcome.metrics).to_string();
        Ok(Measured { step, update: outcome.update, metrics: outcome.metrics, line })
    })
}

fn train(
    loaded: &Loaded<TrainerRun>,
    mut parts: Parts,
    place: &Place,
    logs: &Logs,
    stop: &Stop,
) -> Result<u8, Failure> {
    let config = &loaded.config;
    let (early, resume) = place.resume()?.map_or((None, None), |(dir, from)| (Some(dir), from));
    if let Some((_, path)) = &resume {
        parts.decoder = checkpoint::decoder(path, parts.decoder, parts.lora.is_some(), parts.compute.home())?;
    }
    let (model, on) = ((parts.decoder, parts.lora), (parts.loss, parts.fake));
    let from = resume.as_ref().map(|(_, path)| path.as_path());
    let mut feed = Feed::new(config, model, on, &mut parts.compute, from)?;
    if let Some((step, path)) = &resume {
        let skip = checkpoint::skips(config.ckpt.as_ref());
        feed.trainer.load_state(&path.join(checkpoint::TRAINER), skip).map_err(input("`ckpt.resume_step`"))?;
        checkpoint::check_trainer(*step, feed.trainer.progress().step)?;
    }

    let dir = place.begin(early, resume.as_ref().map(|(step, _)| (*step, Marks::default())), logs, &loaded.dump())?;
    tracing::info!(
        target: "prl_trainer",
        "{} | made-up batches | output {}",
        parts.compute.says(&parts.model_dir, feed.trainer.learner().config()), dir.root().display()
    );
    let settings = Settings {
        ckpt: config.ckpt.as_ref(),
        max_steps: config.max_steps,
        wandb: config.wandb.as_ref(),
        what: "Fake-data",
    };
    let companions = Companions::of_model(&parts.model_dir);
    let mut job = Job::new(dir, logs, loaded, settings, &companions, resume.as_ref(), stop)?;
    let asked = stop.receiver.clone();
    feed.trainer.stop_when(move || *asked.borrow());
    let stopped = steps(&mut job, &mut feed, stop);
    job.end(stopped, feed.trainer.progress().step, stop)
}

/// Trains to the last step or a stop; true for a stop.
fn steps(job: &mut Job<'_>, feed: &mut Feed<'_>, stop: &Stop) -> Result<bool, Failure> {
    while job.goes_on(feed.trainer.progress().step) {
        if *stop.receiver.borrow() {
            return Ok(true);
        }
        let Some(outcome) = feed.step()? else { return Ok(true) };
        let step = feed.trainer.progress().step;
        let line = trainer_line(step, &outcome.metrics);
        job.record(step, outcome.update, line, outcome.metrics)?;
        if job.is_due(step) {
            job.save(step, feed.trainer.learner().weights(), feed.trainer.state());
        }
        job.advance(step);
    }
    Ok(false)
}

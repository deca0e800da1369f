//! `prl trainer`: the trainer of reinforcement learning alone, on made-up batches.

use crate::assets;
use crate::bench;
use crate::checkpoint::{self, Plan};
use crate::command::wants_help;
use crate::compute::Compute;
use crate::divergence::Divergence;
use crate::failure::{Failure, input, run as running};
use crate::logging::{self, Place};
use crate::machine;
use crate::ports::observer::trainer_line;
use crate::signals::{self, Stop};
use prl_config::{FakeBatches, Loaded, TrainerRun};
use prl_model::Decoder;
use prl_monitor::{Logs, Metrics, Monitor, Progress};
use prl_store::RunDir;
use prl_trainer::{StepOutcome, Trainer, TrainerParts, fake_batch};
use prl_types::Step;
use std::path::PathBuf;

/// Runs the command; the code is the process's.
pub fn run(words: &[String]) -> Result<u8, Failure> {
    if wants_help(words) {
        return logging::print(&prl_config::help_trainer());
    }
    let loaded = prl_config::load_trainer(words).map_err(Failure::input)?;
    let config = &loaded.config;
    // A measurement writes no run directory.
    let place = match &config.bench {
        Some(bench) => bench::check(bench).map(|()| None)?,
        None => Some(Place::check(&config.output_dir, config.clean_output_dir, config.ckpt.as_ref())?),
    };
    if config.dry_run {
        return logging::dry_run(&config.output_dir, &loaded.dump(), &loaded.explain());
    }
    let logs = logging::install(config.log.level, config.log.json_logging, prl_monitor::LogFile::Trainer)?;
    let parts = Parts::load(&loaded)?;
    match place {
        None => measure(&loaded, parts),
        Some(place) => {
            let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
            let runtime = runtime.map_err(running("runtime"))?;
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
    fake: FakeBatches,
}

impl Parts {
    fn load(loaded: &Loaded<TrainerRun>) -> Result<Self, Failure> {
        let config = &loaded.config;
        let fake = config.data.fake.clone().ok_or_else(|| Failure::input("`data.fake` is missing"))?;
        let compute = Compute::open(config.device, config.kernels)?;
        let model_dir = assets::model_dir(loaded, "model.name", &config.model.name)?;
        let random = config.model.debug.random_init.then_some(config.seed);
        let decoder = assets::decoder(&model_dir, random, compute.home())?;
        Ok(Parts { compute, model_dir, decoder, fake })
    }
}

/// A trainer and the batches it is fed with.
struct Feed<'a> {
    trainer: Trainer,
    fake: FakeBatches,
    config: &'a TrainerRun,
}

impl<'a> Feed<'a> {
    fn new(config: &'a TrainerRun, parts: Parts) -> Result<Self, Failure> {
        let learner = parts.compute.learner(parts.decoder, &config.model, config.matmul_precision)?;
        let settings = TrainerParts {
            loss: config.loss.clone(),
            optim: config.optim.clone(),
            scheduler: config.scheduler.clone(),
            max_steps: config.max_steps,
            seq_len: config.model.seq_len,
            peak_flops: assets::peak_flops(parts.compute.device),
        };
        let trainer = Trainer::new(learner, settings).map_err(Failure::input)?;
        Ok(Feed { trainer, fake: parts.fake, config })
    }

    fn step(&mut self) -> Result<StepOutcome, Failure> {
        let (seq_len, seed) = (self.config.model.seq_len, self.config.seed);
        let vocab_size = self.trainer.learner().config().vocab_size;
        let step = self.trainer.progress().step + 1;
        let batch = fake_batch(&self.fake, seq_len, vocab_size, seed, step).map_err(Failure::run)?;
        self.trainer.train_step(&batch).map_err(Failure::run)
    }
}

fn measure(loaded: &Loaded<TrainerRun>, parts: Parts) -> Result<u8, Failure> {
    let config = &loaded.config;
    let (Some(bench), Some(steps)) = (&config.bench, config.max_steps) else {
        return Err(Failure::input("`bench` needs `max_steps`"));
    };
    let total_memory = machine::total_memory_gib(parts.compute.device);
    let mut feed = Feed::new(config, parts)?;
    bench::run((bench, loaded), steps, total_memory, || {
        let metrics = feed.step()?.metrics;
        let line = trainer_line(feed.trainer.progress().step, &metrics).to_string();
        Ok((metrics, line))
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
    // A resumed run changes nothing by taking its directory; a fresh one may clean it, so that comes after all checks.
    let early = if place.resumes() { Some(place.create()?) } else { None };
    let resume = match (&early, config.ckpt.as_ref().and_then(|c| c.resume_step)) {
        (Some(dir), Some(step)) => Some(dir.checkpoints().resolve(step).map_err(input("`ckpt.resume_step`"))?),
        _ => None,
    };
    if let Some((_, path)) = &resume {
        parts.decoder = checkpoint::decoder(path, parts.decoder, parts.compute.home())?;
    }
    let (device, kernels, model_dir) = (parts.compute.device, parts.compute.kernels, parts.model_dir.clone());
    let mut feed = Feed::new(config, parts)?;
    if let Some((_, path)) = &resume {
        feed.trainer.load_state(&path.join(checkpoint::TRAINER)).map_err(input("`ckpt.resume_step`"))?;
    }

    let dir = place.begin(early, resume.as_ref().map(|(step, _)| *step), logs, &loaded.dump())?;
    tracing::info!(
        target: "prl_trainer",
        "Model {} | {} | device {device} | {} kernels | made-up batches | output {}",
        model_dir.display(), logging::shape(feed.trainer.learner().config()), logging::kernels(kernels),
        dir.root().display()
    );
    if let Some((step, path)) = &resume {
        tracing::info!(target: "prl_trainer", "Resuming after step {step} from {}", path.display());
    }
    let mut job = Job {
        plan: config.ckpt.as_ref().map(|c| Plan::new(c, config.max_steps, &model_dir)),
        monitor: logging::monitor(&dir, config.wandb.as_ref(), loaded)?,
        bar: config.max_steps.map(|total| Progress::start(logs, "Training", total)),
        unsaved: None,
        dir,
    };
    let result = job.steps(&mut feed, stop);
    job.bar = None;
    let stopped = result.map(|stopped| (stopped, feed.trainer.progress().step));
    let end = logging::End { dir: &job.dir, saves: job.plan.is_some(), unsaved: job.unsaved.take(), what: "Fake-data" };
    let code = end.code(&stopped, stop);
    job.monitor.finish(i32::from(code));
    end.report(stopped, code)
}

struct Job {
    plan: Option<Plan>,
    monitor: Monitor,
    bar: Option<Progress>,
    /// Why the newest checkpoint that was due is not there.
    unsaved: Option<String>,
    dir: RunDir,
}

impl Job {
    /// Trains to the last step or a stop; true for a stop.
    fn steps(&mut self, feed: &mut Feed<'_>, stop: &Stop) -> Result<bool, Failure> {
        let mut divergence = Divergence::default();
        while feed.config.max_steps.is_none_or(|last| feed.trainer.progress().step < last) {
            if *stop.receiver.borrow() {
                return Ok(true);
            }
            let outcome = feed.step()?;
            let step = feed.trainer.progress().step;
            let noted = divergence.note(step, outcome.update, "optim.lr");
            noted.map_err(|reason| Failure::run(format_args!("step {step}: {reason}")))?;
            tracing::info!(target: "prl_trainer", success = true, "{}", trainer_line(step, &outcome.metrics));
            self.monitor.log(step, outcome.metrics.into_iter().collect::<Metrics>());
            self.save(&mut feed.trainer, step);
            if let Some(bar) = &mut self.bar {
                bar.set(step);
            }
        }
        Ok(false)
    }

    fn save(&mut self, trainer: &mut Trainer, step: Step) {
        let Some(plan) = self.plan.as_ref().filter(|plan| plan.is_due(step)) else { return };
        let decoder = trainer.learner().decoder();
        self.unsaved = plan.save(&self.dir, step, decoder, |dir| trainer.save_state(dir), None);
    }
}

//! What `prl sft` and `prl trainer` do around their steps: the run directory, saving, recording, `prl ctl`, and the end. Owns
//! the order of these; must not know what a step trains on.

use crate::checkpoint::{Plan, Saved};
use crate::companions::Companions;
use crate::control::{Control, Reach};
use crate::divergence::Divergence;
use crate::failure::Failure;
use crate::logging::{self, Resumed};
use crate::saver::Saver;
use crate::signals::Stop;
use prl_config::{Loaded, TrainerCkpt, Wandb};
use prl_model::{ModelError, Trained};
use prl_monitor::{LogFile, Logs, Monitor, Progress};
use prl_store::RunDir;
use prl_trainer::{StepMetrics, TrainerError, TrainerState, Update};
use prl_types::Step;
use serde::Serialize;
use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What of the configuration a job goes by.
pub struct Settings<'a> {
    /// What is saved; nothing without it.
    pub ckpt: Option<&'a TrainerCkpt>,
    /// The last step.
    pub max_steps: Option<u64>,
    /// Weights & Biases.
    pub wandb: Option<&'a Wandb>,
    /// `SFT` or `Fake-data`.
    pub what: &'static str,
}

/// A run that trains.
pub struct Job<'a> {
    settings: Settings<'a>,
    saves: Option<(Plan, Saver)>,
    monitor: Monitor,
    bar: Option<Progress>,
    divergence: Divergence,
    /// The newest step that was reported.
    step: Arc<AtomicU64>,
    control: Option<Control>,
    dir: RunDir,
}

impl<'a> Job<'a> {
    /// Begins in `dir`, on a runtime. `companions` are put beside saved weights.
    pub fn new<C: Serialize>(
        dir: RunDir,
        logs: &Logs,
        loaded: &Loaded<C>,
        settings: Settings<'a>,
        companions: &Companions,
        resumed: Option<&Resumed>,
        stop: &Stop,
    ) -> Result<Self, Failure> {
        if let Some((step, _)) = resumed {
            logging::nothing_left(*step, settings.max_steps);
        }
        let saves = settings.ckpt.map(|ckpt| {
            let plan = Plan::new(ckpt, settings.max_steps, companions);
            Ok((plan.clone(), Saver::start(plan, &dir).map_err(Failure::run)?))
        });
        let step = Arc::new(AtomicU64::new(resumed.map_or(0, |(step, _)| *step)));
        let reach = Reach {
            step: step.clone(),
            max_steps: settings.max_steps,
            algorithms: Vec::new(),
            loss: None,
            stop: stop.clone(),
        };
        Ok(Job {
            control: Control::start(dir.root(), reach),
            step,
            saves: saves.transpose()?,
            monitor: logging::monitor(&dir, settings.wandb, loaded)?,
            bar: settings.max_steps.map(|total| Progress::start(logs, "Training", total)),
            divergence: Divergence::default(),
            settings,
            dir,
        })
    }

    /// Whether a step comes after this one.
    pub fn goes_on(&self, step: Step) -> bool {
        self.settings.max_steps.is_none_or(|last| step < last)
    }

    /// Tells a step and records it.
    ///
    /// # Errors
    /// Training has diverged.
    pub fn record(
        &mut self,
        step: Step,
        update: Update,
        line: impl Display,
        mut metrics: StepMetrics,
    ) -> Result<(), Failure> {
        let noted = self.divergence.note(step, update, "optim.lr");
        noted.map_err(|reason| Failure::run(format_args!("step {step}: {reason}")))?;
        tracing::info!(target: "prl_trainer", success = update != Update::NotFinite, "{line}");
        if let Some((_, saver)) = &self.saves {
            saver.put_lost(&mut metrics);
        }
        self.step.store(step, Ordering::Relaxed);
        self.log(step, metrics);
        Ok(())
    }

    /// Records numbers beside a step's own.
    pub fn log(&mut self, step: Step, metrics: StepMetrics) {
        self.monitor.log(step, metrics.into_iter().collect());
    }

    /// Whether the step is to be saved.
    pub fn is_due(&self, step: Step) -> bool {
        self.saves.as_ref().is_some_and(|(plan, _)| plan.is_due(step))
    }

    /// Has a step saved while the next is under way.
    pub fn save(
        &mut self,
        step: Step,
        weights: Result<Trained, ModelError>,
        state: Result<TrainerState, TrainerError>,
    ) {
        if let Some((_, saver)) = &self.saves {
            saver.save(Saved::new(step, weights, state));
        }
    }

    /// Moves the bar.
    pub fn advance(&mut self, step: Step) {
        if let Some(bar) = &mut self.bar {
            bar.set(step);
        }
    }

    /// Ends the run after `step`: `stopped` says whether a stop was asked for. The code is the process's.
    pub fn end(mut self, stopped: Result<bool, Failure>, step: Step, stop: &Stop) -> Result<u8, Failure> {
        self.bar = None;
        self.control = None;
        let stopped = match stopped {
            Ok(false) => self.divergence.check().map(|()| (false, step)).map_err(Failure::run),
            stopped => stopped.map(|stopped| (stopped, step)),
        };
        let end = logging::End {
            dir: &self.dir,
            ckpt: self.settings.ckpt,
            unsaved: self.saves.as_ref().and_then(|(_, saver)| saver.finish()),
            unrecorded: self.monitor.lost(),
            log: LogFile::Trainer.name().to_owned(),
            what: self.settings.what,
        };
        let code = end.code(&stopped, stop);
        self.monitor.finish(i32::from(code));
        end.report(stopped, code)
    }
}

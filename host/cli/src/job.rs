//! What `prl sft` and `prl trainer` do around their steps: the run directory, saving, recording, and the end. Owns the order of
//! these; must not know what a step trains on.

use crate::checkpoint::Plan;
use crate::divergence::Divergence;
use crate::failure::Failure;
use crate::logging::{self, Resumed};
use crate::signals::Stop;
use prl_config::{Loaded, TrainerCkpt, Wandb};
use prl_model::{Decoder, ModelError};
use prl_monitor::{Logs, Monitor, Progress};
use prl_store::RunDir;
use prl_trainer::{StepMetrics, TrainerError, Update};
use prl_types::Step;
use serde::Serialize;
use std::fmt::Display;
use std::path::Path;

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
    plan: Option<Plan>,
    monitor: Monitor,
    bar: Option<Progress>,
    /// Why the newest checkpoint that was due is not there.
    unsaved: Option<String>,
    divergence: Divergence,
    dir: RunDir,
}

impl<'a> Job<'a> {
    /// Begins in `dir`. `companions` is the folder that saved weights get their tokenizer from.
    pub fn new<C: Serialize>(
        dir: RunDir,
        logs: &Logs,
        loaded: &Loaded<C>,
        settings: Settings<'a>,
        companions: &Path,
        resumed: Option<&Resumed>,
    ) -> Result<Self, Failure> {
        if let Some((step, path)) = resumed {
            tracing::info!(target: "prl_trainer", "Resuming after step {step} from {}", path.display());
            logging::nothing_left(*step, settings.max_steps);
        }
        Ok(Job {
            plan: settings.ckpt.map(|c| Plan::new(c, settings.max_steps, companions)),
            monitor: logging::monitor(&dir, settings.wandb, loaded)?,
            bar: settings.max_steps.map(|total| Progress::start(logs, "Training", total)),
            unsaved: None,
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
        metrics: StepMetrics,
    ) -> Result<(), Failure> {
        let noted = self.divergence.note(step, update, "optim.lr");
        noted.map_err(|reason| Failure::run(format_args!("step {step}: {reason}")))?;
        tracing::info!(target: "prl_trainer", success = true, "{line}");
        self.log(step, metrics);
        Ok(())
    }

    /// Records numbers beside a step's own.
    pub fn log(&mut self, step: Step, metrics: StepMetrics) {
        self.monitor.log(step, metrics.into_iter().collect());
    }

    /// Whether the step is to be saved.
    pub fn is_due(&self, step: Step) -> bool {
        self.plan.as_ref().is_some_and(|plan| plan.is_due(step))
    }

    /// Saves a step.
    pub fn save(
        &mut self,
        step: Step,
        decoder: Result<Decoder, ModelError>,
        state: impl FnOnce(&Path) -> Result<(), TrainerError>,
    ) {
        if let Some(plan) = &self.plan {
            self.unsaved = plan.save(&self.dir, step, decoder, state, None);
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
        let stopped = stopped.map(|stopped| (stopped, step));
        let end = logging::End {
            dir: &self.dir,
            ckpt: self.settings.ckpt,
            unsaved: self.unsaved,
            unrecorded: self.monitor.lost(),
            what: self.settings.what,
        };
        let code = end.code(&stopped, stop);
        self.monitor.finish(i32::from(code));
        end.report(stopped, code)
    }
}

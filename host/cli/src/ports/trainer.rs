//! The trainer on its own thread as the orchestrator's. Owns the hand-over of new weights and what a checkpoint gets of the
//! trainer.

use crate::checkpoint::{Plan, Saved};
use crate::divergence::Divergence;
use crate::ports::observer::Recorder;
use crate::ports::policy::Snapshots;
use crate::ports::servers::Broadcast;
use crate::saver::Saver;
use futures::FutureExt;
use futures::future::BoxFuture;
use prl_model::Learner;
use prl_orchestrator::{State, TrainReport};
use prl_trainer::Trainer;
use prl_types::{Batch, PolicyVersion, Step};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// Trains, publishes the new weights, saves.
pub struct LocalTrainer {
    inner: Arc<Inner>,
}

struct Inner {
    trainer: Mutex<Trainer>,
    handover: Handover,
    saves: Option<Saves>,
    /// Set when a stop no longer waits for the step that is under way: it must leave no trace then.
    given_up: AtomicBool,
    /// When the previous step was done.
    idle_since: Mutex<Instant>,
    divergence: Mutex<Divergence>,
}

/// What is saved, and by whom.
pub struct Saves {
    /// Which steps.
    pub plan: Plan,
    /// The thread that writes them.
    pub saver: Saver,
    /// Knows which records belong to a step.
    pub recorder: Arc<Recorder>,
    /// The trainer's parts of steps whose other part is still to come.
    pub parts: Mutex<BTreeMap<Step, Saved>>,
}

/// How new weights get to whoever samples from them.
pub enum Handover {
    /// In this process.
    Here(Snapshots),
    /// Through a folder.
    Folder(Broadcast),
}

impl Handover {
    /// Hands `version` on.
    pub fn publish(&self, version: PolicyVersion, learner: &Learner) -> Result<(), String> {
        match self {
            Handover::Here(snapshots) => {
                snapshots.publish(version, learner.snapshot().map_err(|e| e.to_string())?);
                Ok(())
            }
            Handover::Folder(broadcast) => broadcast.write(version, learner),
        }
    }
}

impl Saves {
    /// Weights alone are saved at once; what a run goes on from waits for the orchestrator's part.
    fn take(&self, part: Saved) {
        match self.plan.weights_only {
            true => self.saver.save(part),
            false => drop(self.parts.lock().unwrap_or_else(PoisonError::into_inner).insert(part.step, part)),
        }
    }
}

/// Tells the thread of a training step that nobody waits for it any more.
struct Waiting(Arc<Inner>, bool);

impl Drop for Waiting {
    fn drop(&mut self) {
        if !self.1 {
            self.0.given_up.store(true, Ordering::SeqCst);
        }
    }
}

impl LocalTrainer {
    /// `saves` is absent when nothing is saved.
    pub fn new(trainer: Trainer, handover: Handover, saves: Option<Saves>) -> Self {
        let inner = Inner {
            trainer: Mutex::new(trainer),
            handover,
            saves,
            given_up: AtomicBool::new(false),
            idle_since: Mutex::new(Instant::now()),
            divergence: Mutex::default(),
        };
        LocalTrainer { inner: Arc::new(inner) }
    }

    /// Whether the steps so far came to anything.
    ///
    /// # Errors
    /// Each was left out.
    pub fn check(&self) -> Result<(), String> {
        self.inner.divergence.lock().unwrap_or_else(PoisonError::into_inner).check()
    }

    /// Waits until all checkpoints are written. Says why the newest that was due is not there, if it is not.
    pub fn finish(&self) -> Option<String> {
        self.inner.saves.as_ref().and_then(|saves| saves.saver.finish())
    }
}

impl Inner {
    fn train(&self, batch: &Batch) -> Result<TrainReport, String> {
        let mut trainer = self.trainer.lock().unwrap_or_else(PoisonError::into_inner);
        let mut idle_since = self.idle_since.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = idle_since.elapsed().as_secs_f64();
        let outcome = trainer.train_step(batch).map_err(|e| e.to_string())?;
        let mut divergence = self.divergence.lock().unwrap_or_else(PoisonError::into_inner);
        divergence.note(batch.step, outcome.update, "trainer.optim.lr")?;
        let mut metrics = outcome.metrics;
        if let Some(seconds) = metrics.get("time/step").copied() {
            metrics.insert("time/train".into(), seconds);
        }
        metrics.insert("time/wait_for_batch".into(), waited);
        if self.given_up.load(Ordering::SeqCst) {
            return Err("nobody waits for the step any more".into());
        }
        let started = Instant::now();
        self.handover.publish(PolicyVersion(batch.step), trainer.learner())?;
        metrics.insert("time/broadcast_weights".into(), started.elapsed().as_secs_f64());
        if let Some(saves) = &self.saves {
            if saves.plan.is_due(batch.step) && !self.given_up.load(Ordering::SeqCst) {
                let started = Instant::now();
                let part = Saved::new(batch.step, trainer.learner().weights(), trainer.state());
                if self.given_up.load(Ordering::SeqCst) {
                    return Err("nobody waits for the step any more".into());
                }
                saves.take(part);
                metrics.insert("time/save_ckpt".into(), started.elapsed().as_secs_f64());
            }
            saves.saver.put_lost(&mut metrics);
        }
        *idle_since = Instant::now();
        Ok(TrainReport { metrics })
    }
}

impl prl_orchestrator::Trainer for LocalTrainer {
    fn keep(&self, state: State) {
        let Some(saves) = &self.inner.saves else { return };
        let step = state.progress().step;
        let part = saves.parts.lock().unwrap_or_else(PoisonError::into_inner).remove(&step);
        if let Some(part) = part {
            let trainer = part.trainer;
            let saved = match saves.recorder.marks(step) {
                Ok(marks) => Saved { step, trainer, orchestrator: Some((state, marks)) },
                // Without them a run that goes on would take for lost what is on record.
                Err(error) => Saved { step, trainer: trainer.and(Err(error)), orchestrator: None },
            };
            saves.saver.save(saved);
        }
    }

    fn train(&self, batch: Arc<Batch>) -> BoxFuture<'_, Result<TrainReport, String>> {
        let inner = self.inner.clone();
        async move {
            let mut waiting = Waiting(inner.clone(), false);
            let work = tokio::task::spawn_blocking(move || inner.train(&batch));
            let result = work.await;
            waiting.1 = true;
            result.map_err(|e| format!("the trainer's thread failed: {e}"))?
        }
        .boxed()
    }
}

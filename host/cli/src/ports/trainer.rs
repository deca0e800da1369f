//! The trainer on its own thread as the orchestrator's. Owns the hand-over of new weights and the moment of saving.

use crate::checkpoint::Plan;
use crate::divergence::Divergence;
use crate::ports::policy::Snapshots;
use crate::ports::servers::Broadcast;
use futures::FutureExt;
use futures::future::BoxFuture;
use prl_model::Learner;
use prl_orchestrator::{Progress, TrainReport};
use prl_store::RunDir;
use prl_trainer::Trainer;
use prl_types::{Batch, PolicyVersion};
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
    run: Arc<RunDir>,
    plan: Option<Plan>,
    /// Set when a stop no longer waits for the step that is under way: it must leave no trace then.
    given_up: AtomicBool,
    /// Why the newest checkpoint that was due is not there.
    unsaved: Mutex<Option<String>>,
    /// When the previous step was done.
    idle_since: Mutex<Instant>,
    divergence: Mutex<Divergence>,
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
    /// `plan` is absent when nothing is saved.
    pub fn new(trainer: Trainer, handover: Handover, run: Arc<RunDir>, plan: Option<Plan>) -> Self {
        let inner = Inner {
            trainer: Mutex::new(trainer),
            handover,
            run,
            plan,
            given_up: AtomicBool::new(false),
            unsaved: Mutex::new(None),
            idle_since: Mutex::new(Instant::now()),
            divergence: Mutex::default(),
        };
        LocalTrainer { inner: Arc::new(inner) }
    }

    /// Why the newest checkpoint that was due could not be written.
    pub fn unsaved(&self) -> Option<String> {
        self.inner.unsaved.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Inner {
    fn train(&self, batch: &Batch, progress: &Progress) -> Result<TrainReport, String> {
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
        if let Some(plan) = self.plan.as_ref().filter(|p| p.is_due(batch.step) && !self.given_up.load(Ordering::SeqCst))
        {
            let started = Instant::now();
            let decoder = trainer.learner().decoder();
            let save = |dir: &std::path::Path| trainer.save_state(dir);
            let unsaved = plan.save(&self.run, batch.step, decoder, save, Some(progress));
            *self.unsaved.lock().unwrap_or_else(PoisonError::into_inner) = unsaved;
            metrics.insert("time/save_ckpt".into(), started.elapsed().as_secs_f64());
        }
        *idle_since = Instant::now();
        Ok(TrainReport { metrics })
    }
}

impl prl_orchestrator::Trainer for LocalTrainer {
    fn train(&self, batch: Batch, progress: Progress) -> BoxFuture<'_, Result<TrainReport, String>> {
        let inner = self.inner.clone();
        async move {
            let mut waiting = Waiting(inner.clone(), false);
            let work = tokio::task::spawn_blocking(move || inner.train(&batch, &progress));
            let result = work.await;
            waiting.1 = true;
            result.map_err(|e| format!("the trainer's thread failed: {e}"))?
        }
        .boxed()
    }
}

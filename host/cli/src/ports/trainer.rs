//! The trainer on its own thread as the orchestrator's. Owns the hand-over of new weights and the moment of saving.

use crate::checkpoint::Plan;
use crate::ports::policy::Snapshots;
use futures::FutureExt;
use futures::future::BoxFuture;
use prl_orchestrator::{Progress, TrainReport};
use prl_store::RunDir;
use prl_trainer::{Trainer, Update};
use prl_types::{Batch, PolicyVersion};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// Trains, publishes the new weights, saves.
pub struct LocalTrainer {
    inner: Arc<Inner>,
}

struct Inner {
    trainer: Mutex<Trainer>,
    snapshots: Snapshots,
    run: Arc<RunDir>,
    plan: Option<Plan>,
}

impl LocalTrainer {
    /// `plan` is absent when nothing is saved.
    pub fn new(trainer: Trainer, snapshots: Snapshots, run: Arc<RunDir>, plan: Option<Plan>) -> Self {
        LocalTrainer { inner: Arc::new(Inner { trainer: Mutex::new(trainer), snapshots, run, plan }) }
    }
}

impl Inner {
    fn train(&self, batch: &Batch, progress: &Progress) -> Result<TrainReport, String> {
        let mut trainer = self.trainer.lock().unwrap_or_else(PoisonError::into_inner);
        let outcome = trainer.train_step(batch).map_err(|e| e.to_string())?;
        match outcome.update {
            Update::Applied => {}
            Update::NothingTrainable => {
                tracing::warn!(target: "prl_trainer", "step {}: no token of the batch trains; the weights stay", batch.step);
            }
            Update::NotFinite => {
                tracing::warn!(target: "prl_trainer", "step {}: loss or gradient is not finite; the weights stay", batch.step);
            }
        }
        let mut metrics = outcome.metrics;
        if let Some(seconds) = metrics.get("time/step").copied() {
            metrics.insert("time/train".into(), seconds);
        }
        let started = Instant::now();
        let snapshot = trainer.learner().snapshot().map_err(|e| e.to_string())?;
        self.snapshots.publish(PolicyVersion(batch.step), snapshot);
        metrics.insert("time/broadcast_weights".into(), started.elapsed().as_secs_f64());
        if let Some(plan) = self.plan.as_ref().filter(|plan| plan.is_due(batch.step)) {
            let started = Instant::now();
            let save = |dir: &std::path::Path| trainer.save_state(dir).map_err(|e| e.to_string());
            match plan.save(&self.run, batch.step, trainer.learner().decoder(), save, Some(progress)) {
                Ok(()) => tracing::info!(target: "prl_trainer", "Saved checkpoint of step {}", batch.step),
                // A full disk must not cost the run; an earlier checkpoint is still there.
                Err(error) => {
                    tracing::error!(target: "prl_trainer", "checkpoint of step {} failed: {error}", batch.step)
                }
            }
            metrics.insert("time/save_ckpt".into(), started.elapsed().as_secs_f64());
        }
        Ok(TrainReport { metrics })
    }
}

impl prl_orchestrator::Trainer for LocalTrainer {
    fn train(&self, batch: Batch, progress: Progress) -> BoxFuture<'_, Result<TrainReport, String>> {
        let inner = self.inner.clone();
        async move {
            let work = tokio::task::spawn_blocking(move || inner.train(&batch, &progress));
            work.await.map_err(|e| format!("the trainer's thread failed: {e}"))?
        }
        .boxed()
    }
}

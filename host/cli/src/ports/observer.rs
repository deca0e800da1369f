//! Records what the orchestrator reports: rollouts, metrics, console lines. Owns which record goes where.

use crate::env::record;
use crate::ports::tape::Tapes;
use prl_monitor::{
    EnvLine, EvalLine, Jsonl, Metrics, Monitor, OrchestratorLine, PipelineLine, Progress, Sink, TrainerLine,
};
use prl_orchestrator::{EnvShare, Observer, Purpose, Status, StepReport};
use prl_store::{Marks, RolloutLog, RunDir, Split, StoreError, Subset};
use prl_types::{Eval, Rollout, Step, Summary};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// The run's recorder.
pub struct Recorder(Mutex<Inner>);

struct Inner {
    monitor: Option<Monitor>,
    rollouts: RolloutLog,
    /// Where what is under way is written, until that fails; opened by the first of it.
    status: Option<PathBuf>,
    open_status: Option<Jsonl>,
    tapes: Tapes,
    bar: Option<Progress>,
    step: Arc<AtomicU64>,
    failed: bool,
    /// What was on record when the state of a step was taken.
    marks: BTreeMap<Step, Result<Marks, String>>,
}

impl Recorder {
    /// What is recorded goes into `dir`, metrics through `monitor`. `tapes` hold what the log keeps beside the rollouts;
    /// `bar` counts steps; `done` were done before.
    pub fn new(monitor: Monitor, dir: &RunDir, tapes: Tapes, bar: Option<Progress>, done: Step) -> Self {
        Recorder(Mutex::new(Inner {
            monitor: Some(monitor),
            rollouts: dir.rollouts(),
            status: Some(dir.status()),
            open_status: None,
            tapes,
            bar,
            step: Arc::new(AtomicU64::new(done)),
            failed: false,
            marks: BTreeMap::new(),
        }))
    }

    /// The newest step that was reported.
    pub fn step(&self) -> Arc<AtomicU64> {
        self.lock().step.clone()
    }

    /// Flushes everything. Nothing is recorded afterwards.
    pub fn finish(&self, exit_code: i32) {
        let mut inner = self.lock();
        let result = inner.rollouts.flush();
        inner.note(result);
        inner.bar = None;
        if let Some(monitor) = inner.monitor.take() {
            monitor.finish(exit_code);
        }
    }

    /// Why metrics were lost, if some were.
    pub fn lost(&self) -> Option<String> {
        self.lock().monitor.as_ref().and_then(Monitor::lost)
    }

    /// What was on record when the state of `step` was taken.
    ///
    /// # Errors
    /// That could not be said then.
    pub fn marks(&self, step: Step) -> Result<Marks, String> {
        self.lock().marks.remove(&step).unwrap_or_else(|| Err(format!("nobody asked when step {step} was there")))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// A rollout log that cannot be written warns once; the run goes on.
    fn note(&mut self, result: Result<(), StoreError>) {
        if let Err(error) = result
            && !std::mem::replace(&mut self.failed, true)
        {
            tracing::warn!(target: "prl_orchestrator", "rollouts are not recorded from here on: {error}");
        }
    }

    /// Appends to `status.jsonl`, which depends on the clock: `metrics.jsonl` does not. Where that fails, it warns once.
    fn log_status(&mut self, status: &Status) {
        let Some(path) = &self.status else { return };
        let mut metrics = Metrics::new();
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        metrics.set("time", time.as_secs_f64());
        status.metrics.iter().for_each(|(name, value)| metrics.set(name, *value));
        let written = match self.open_status.take().map_or_else(|| Jsonl::open(path), Ok) {
            Ok(mut file) => file.log(status.step, &metrics).map(|()| self.open_status = Some(file)),
            Err(error) => Err(error),
        };
        if let Err(error) = written {
            tracing::warn!(target: "prl_orchestrator", "what is under way is not recorded from here on: {error}");
            self.status = None;
        }
    }

    fn log(&mut self, step: Step, maps: &[&BTreeMap<String, f64>]) {
        let mut metrics = Metrics::new();
        for (name, value) in maps.iter().flat_map(|map| map.iter()) {
            metrics.set(name, *value);
        }
        if let Some(monitor) = &mut self.monitor {
            monitor.log(step, metrics);
        }
    }
}

fn split(purpose: Purpose) -> Split {
    match purpose {
        Purpose::Train => Split::Train,
        Purpose::Eval => Split::Eval,
    }
}

impl Observer for Recorder {
    fn rollout(&self, purpose: Purpose, step: Step, rollout: &Rollout) {
        let mut inner = self.lock();
        let line = match inner.tapes.take(purpose, rollout) {
            Some(replay) => replay.line(rollout),
            None => record::bare(rollout),
        };
        let mut result = inner.rollouts.append(step, split(purpose), Subset::All, &line);
        if result.is_ok() && purpose == Purpose::Eval && rollout.is_effective() {
            result = inner.rollouts.append(step, Split::Eval, Subset::Effective, rollout);
        }
        inner.note(result);
    }

    fn batch(&self, step: Step, effective: &[&Rollout]) {
        let mut inner = self.lock();
        for rollout in effective {
            let result = inner.rollouts.append(step, Split::Train, Subset::Effective, rollout);
            inner.note(result);
        }
    }

    fn mark(&self, step: Step) {
        let mut inner = self.lock();
        let marks = inner.rollouts.marks(step).map_err(|error| error.to_string());
        inner.marks.insert(step, marks);
    }

    fn step(&self, report: &StepReport) {
        tracing::info!(target: "prl_trainer", success = true, "{}", trainer_line(report.step, &report.train));
        tracing::info!(target: "prl_orchestrator", success = true, "{}", orchestrator_line(report));
        let mut inner = self.lock();
        inner.step.store(report.step, Ordering::Relaxed);
        // Later maps win: `time/step` is the whole step's, not the trainer's part of it.
        inner.log(report.step, &[&report.train, &report.metrics]);
        let result = inner.rollouts.end_step(report.step);
        inner.note(result);
        if let Some(bar) = &mut inner.bar {
            bar.set(report.step);
        }
    }

    fn status(&self, status: &Status) {
        let Status { step, waiting, batch, inflight_train: train, inflight_eval: eval, .. } = *status;
        tracing::info!(target: "prl_orchestrator", "{}", PipelineLine { step, waiting, batch, train, eval });
        self.lock().log_status(status);
    }

    fn eval(&self, eval: &Eval, metrics: &BTreeMap<String, f64>) {
        tracing::info!(target: "prl_orchestrator", success = true, "{}", eval_line(eval));
        let mut inner = self.lock();
        inner.log(eval.step, &[metrics]);
        let result = inner.rollouts.flush();
        inner.note(result);
    }
}

/// The console line of a training step out of its metrics.
pub fn trainer_line(step: Step, metrics: &BTreeMap<String, f64>) -> TrainerLine {
    let get = |name: &str| metrics.get(name).copied();
    // Adding 0 turns -0 into 0.
    let value = |name: &str| get(name).unwrap_or(0.0) + 0.0;
    TrainerLine {
        step,
        seconds: value("time/step"),
        loss: get("loss/mean").unwrap_or(f64::NAN) + 0.0,
        entropy: value("entropy/all/mean"),
        mismatch_kl: value("mismatch_kl/all/mean"),
        grad_norm: get("optim/grad_norm").unwrap_or(f64::NAN) + 0.0,
        lr: value("optim/lr"),
        throughput: value("perf/throughput"),
        mfu: get("perf/mfu"),
        peak_memory_gib: value("perf/peak_memory"),
        max_vio: None,
        routing_confidence: None,
    }
}

fn env_line(share: &EnvShare) -> EnvLine {
    EnvLine {
        env: share.env.clone(),
        ratio: share.ratio,
        reward: share.reward,
        trainable: share.trainable,
        rollouts: share.batch,
        turns: share.turns,
        branches: share.branches,
        max_off_policy: share.max_off_policy,
        error: share.error_rate,
        truncation: share.truncation_rate,
    }
}

fn orchestrator_line(report: &StepReport) -> OrchestratorLine {
    OrchestratorLine {
        step: report.step,
        seconds: report.seconds,
        all: env_line(&report.all),
        envs: report.envs.iter().map(env_line).collect(),
    }
}

fn eval_line(eval: &Eval) -> EvalLine {
    let share =
        |of: &dyn Fn(&Rollout) -> bool| Summary::of(eval.rollouts.iter().map(|r| f64::from(u8::from(of(r))))).mean;
    let good = || eval.rollouts.iter().filter(|r| r.error.is_none());
    EvalLine {
        env: eval.env.clone(),
        step: eval.step,
        policy_version: eval.policy_version.0,
        seconds: eval.seconds,
        reward: Summary::of(good().map(|r| r.reward)).mean,
        turns: Summary::of(good().map(|r| r.turns.len() as f64)).mean,
        branches: Summary::of(good().map(|r| r.samples.len() as f64)).mean,
        error: share(&|r| r.error.is_some()),
        truncation: share(&|r| r.truncation.is_some()),
    }
}

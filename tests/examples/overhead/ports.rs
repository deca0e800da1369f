//! What is plugged into the orchestrator in place of the product's parts: a model that has its answers, a trainer that only packs,
//! and a log that is cleared. Owns what these do instead; must not know what is measured.

use crate::{Meter, Outcome};
use futures::FutureExt;
use futures::future::BoxFuture;
use prl_algorithm::Plugin;
use prl_orchestrator::{
    Algorithm, Observer, Policy, PolicyError, Purpose, SampleRequest, Scored, State, StepReport, TrainReport, Trainer,
};
use prl_store::{RolloutLog, Split, StoreError, Subset};
use prl_types::{Batch, Eval, FinishReason, PolicyVersion, Rollout, Sampled, Step, TokenId};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A model that has its answers ready: one of two of different reward, by the turn's seed, so that groups have advantages.
pub struct Answers {
    said: [Vec<TokenId>; 2],
    stop: TokenId,
    version: AtomicU64,
}

impl Answers {
    /// In the ids of a model.
    pub fn new(renderer: &prl_render::Renderer) -> Outcome<Self> {
        let stop = *renderer.stop_token_ids().first().ok_or("the model has no stop token")?;
        let ids =
            |text: &str| -> Outcome<Vec<TokenId>> { Ok([renderer.tokenizer().encode(text)?, vec![stop]].concat()) };
        let said = [ids("<reversed_text>eno owt</reversed_text>")?, ids("one two three")?];
        Ok(Answers { said, stop, version: AtomicU64::new(0) })
    }
}

impl Policy for Answers {
    fn sample(&self, request: SampleRequest) -> BoxFuture<'_, Result<Sampled, PolicyError>> {
        let ids = self.said[(request.seed % 2) as usize].clone();
        let version = PolicyVersion(self.version.load(Ordering::Relaxed));
        let logprobs = vec![-1.0; ids.len()];
        let sampled = Sampled::from_engine(ids, logprobs, (version, version), FinishReason::StopToken(self.stop));
        futures::future::ready(sampled.map_err(|e| PolicyError::Engine(e.to_string()))).boxed()
    }

    fn set_policy(&self, version: PolicyVersion) -> BoxFuture<'_, Result<(), String>> {
        self.version.store(version.0, Ordering::Relaxed);
        futures::future::ready(Ok(())).boxed()
    }
}

/// An instance of a plug-in.
pub struct Plugged(Mutex<prl_algorithm::Algorithm>);

impl Plugged {
    /// The product's `grpo`, which cargo builds beside this program.
    pub fn grpo() -> Outcome<Self> {
        let program = std::env::current_exe()?;
        let folder = program.parent().and_then(Path::parent).ok_or("the program lies in no folder")?;
        let plugin = Plugin::load(&folder.join("deps/libgrpo.so"))?;
        Ok(Plugged(Mutex::new(plugin.create(&serde_json::json!({}), 0)?)))
    }
}

impl Algorithm for Plugged {
    fn score_group(&self, _: Step, group: &[&Rollout]) -> Result<Scored, String> {
        let mut algorithm = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let scored = algorithm.score_whole_group(group).map_err(|e| e.to_string())?;
        let kept = scored.streams.into_iter().zip(scored.dropped);
        let streams = kept.map(|(streams, dropped)| dropped.is_none().then_some(streams)).collect();
        Ok(Scored { streams, metrics: scored.metrics })
    }
}

/// Packs a batch, which is all the training there is.
pub struct Packer;

impl Trainer for Packer {
    fn train(&self, batch: Arc<Batch>) -> BoxFuture<'_, Result<TrainReport, String>> {
        let lens: Vec<usize> = batch.items.iter().map(|item| item.sample.len()).collect();
        let bins = prl_trainer::pack(&lens, crate::SEQ_LEN);
        let metrics = BTreeMap::from([("batch/bins".to_owned(), bins.len() as f64)]);
        futures::future::ready(Ok(TrainReport { metrics })).boxed()
    }

    fn keep(&self, _: State) {}
}

/// The rollout log, of which the files of a step are removed when it is done, and the measurement at that moment.
pub struct Log(Mutex<Inner>);

struct Inner {
    log: RolloutLog,
    root: PathBuf,
    rollouts: u64,
    meter: Meter,
    /// What went wrong first.
    failed: Option<String>,
}

impl Inner {
    fn check(&mut self, result: Result<(), impl ToString>) {
        if let Err(error) = result {
            self.failed.get_or_insert(error.to_string());
        }
    }
}

impl Log {
    /// Written into `root`.
    pub fn new(root: &Path, meter: Meter) -> Self {
        let (log, root) = (RolloutLog::of(root), root.to_owned());
        Log(Mutex::new(Inner { log, root, rollouts: 0, meter, failed: None }))
    }

    /// Says what was measured; whether memory stayed within its limit.
    pub fn tell(&self) -> Outcome<bool> {
        let inner = self.lock();
        match &inner.failed {
            Some(error) => Err(error.as_str().into()),
            None => inner.meter.tell(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Observer for Log {
    fn rollout(&self, _: Purpose, step: Step, rollout: &Rollout) {
        let mut inner = self.lock();
        inner.rollouts += u64::from(rollout.error.is_none());
        let result = inner.log.append(step, Split::Train, Subset::All, rollout);
        inner.check(result);
    }

    fn batch(&self, step: Step, effective: &[&Rollout]) {
        let mut inner = self.lock();
        let mut append = |rollout| inner.log.append(step, Split::Train, Subset::Effective, rollout);
        let result: Result<(), StoreError> = effective.iter().try_for_each(|rollout| append(*rollout));
        inner.check(result);
    }

    fn step(&self, report: &StepReport) {
        let mut inner = self.lock();
        let result = inner.log.end_step(report.step);
        inner.check(result);
        let folder = inner.root.join("rollouts").join(format!("step_{}", report.step));
        inner.check(std::fs::remove_dir_all(folder));
        let rollouts = inner.rollouts;
        let result = inner.meter.note(rollouts);
        inner.check(result);
    }

    fn eval(&self, _: &Eval, _: &BTreeMap<String, f64>) {}
}

//! What is plugged into the orchestrator: the product's own parts by thin adapters, but for the model and the trainer. Owns
//! what these two do instead; must not know what is measured.

use crate::{Meter, Outcome};
use futures::FutureExt;
use futures::future::BoxFuture;
use prl_algorithm::Plugin;
use prl_environment::{Completion, EnvError, Finish, Pool, RolloutContext};
use prl_orchestrator::{
    Algorithm, Env, Observer, OpenRequest, Policy, PolicyError, Purpose, Rendered, Renderer, SampleRequest, Scored,
    Session, State, StepInput, StepReport, TrainReport, Trainer,
};
use prl_store::{RolloutLog, Split, StoreError, Subset};
use prl_types::{
    Batch, EnvTurn, Eval, FinishReason, Message, PolicyVersion, Role, Rollout, Sampled, Score, Step, Task, TokenId,
    ToolDef,
};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A pool of instances.
pub struct PoolEnv(pub Pool);

fn text(error: EnvError) -> String {
    error.to_string()
}

impl Env for PoolEnv {
    fn split_size(&self, split: &str) -> Result<Option<u64>, String> {
        let found = self.0.info().split(split);
        found.map(|split| split.size).ok_or_else(|| format!("there is no split `{split}`"))
    }

    fn task<'a>(&'a self, split: &'a str, index: u64, seed: u64) -> BoxFuture<'a, Result<Task, String>> {
        async move { self.0.task(split, index, seed).await.map_err(text) }.boxed()
    }

    fn open(&self, task: Arc<Task>, request: OpenRequest) -> BoxFuture<'_, Result<Box<dyn Session>, String>> {
        let context = RolloutContext {
            id: request.id.to_string(),
            seed: request.seed,
            member: request.id.member,
            group_size: request.group_size,
            step: request.step,
            eval: request.purpose == Purpose::Eval,
        };
        async move {
            let session = self.0.open(&task, context).await.map_err(text)?;
            Ok(Box::new(PoolSession(Some(session))) as Box<dyn Session>)
        }
        .boxed()
    }

    fn multi_turn(&self) -> bool {
        self.0.info().features.multi_turn
    }
}

struct PoolSession(Option<prl_environment::Session>);

impl PoolSession {
    fn live(&mut self) -> Result<&mut prl_environment::Session, String> {
        self.0.as_mut().ok_or_else(|| "the rollout is already scored".to_owned())
    }
}

impl Session for PoolSession {
    fn start(&mut self) -> BoxFuture<'_, Result<EnvTurn, String>> {
        async move { self.live()?.start().await.map_err(text) }.boxed()
    }

    fn step(&mut self, input: StepInput) -> BoxFuture<'_, Result<EnvTurn, String>> {
        async move {
            let finish = Finish::new(&input.finish, &input.message).ok_or("an aborted turn is no turn")?;
            let said = Completion {
                finish,
                tokens: input.tokens as u32,
                context_left: u32::try_from(input.context_left).ok(),
                turns_left: Some(input.turns_left),
                message: input.message,
            };
            self.live()?.step(said).await.map_err(text)
        }
        .boxed()
    }

    fn score(&mut self, truncated: Option<String>) -> BoxFuture<'_, Result<Score, String>> {
        async move {
            let session = self.0.take().ok_or("the rollout is already scored")?;
            session.score(truncated.as_deref()).await.map_err(text)
        }
        .boxed()
    }
}

/// The renderer of a model folder.
pub struct Words {
    inner: Arc<prl_render::Renderer>,
    stops: Arc<[TokenId]>,
}

impl Words {
    /// Wraps it.
    pub fn new(inner: Arc<prl_render::Renderer>) -> Self {
        Words { stops: inner.stop_token_ids().into(), inner }
    }
}

fn rendered(r: prl_render::Rendered) -> Rendered {
    Rendered { ids: r.ids, spans: r.spans }
}

impl Renderer for Words {
    fn render(&self, messages: &[Message], tools: &[ToolDef]) -> Result<Rendered, String> {
        self.inner.render_ids(messages, tools, true).map(rendered).map_err(|e| e.to_string())
    }

    fn bridge(&self, previous: &[TokenId], replies: &[Message], _: &[ToolDef]) -> Result<Option<Rendered>, String> {
        let bridge = self.inner.bridge_to_next_turn(previous, replies).map_err(|e| e.to_string())?;
        Ok(bridge.map(rendered))
    }

    fn answer(
        &self,
        messages: &[Message],
        tools: &[ToolDef],
        message: &Message,
        cut: bool,
    ) -> Result<Vec<TokenId>, String> {
        self.inner.answer_ids(messages, tools, message, cut).map_err(|e| e.to_string())
    }

    fn parse(&self, sampled: &Sampled) -> Message {
        self.inner.parse_sampled(sampled).unwrap_or_else(|_| Message::text(Role::Assistant, ""))
    }

    fn stop_token_ids(&self) -> Arc<[TokenId]> {
        self.stops.clone()
    }
}

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

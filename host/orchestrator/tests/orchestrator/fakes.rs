//! Fakes whose results depend on their inputs and the visible policy only, while their delays come from a seed of their
//! own: whatever differs between two schedule seeds was caused by timing.

use futures::FutureExt;
use futures::future::BoxFuture;
use prl_orchestrator::*;
use prl_types::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

pub const STOP: TokenId = 3;

pub fn mix(words: &[u64]) -> u64 {
    words.iter().fold(0x9e37_79b9_7f4a_7c15, |h, w| {
        let x = (h ^ w).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (x ^ (x >> 29)).wrapping_mul(0x94d0_49bb_1331_11eb) ^ (x >> 32)
    })
}

/// Random delays in milliseconds, 0 with a maximum of 0.
pub struct Delays {
    state: AtomicU64,
    pub max_ms: u64,
}

impl Delays {
    pub async fn pause(&self) {
        if self.max_ms > 0 {
            let x = mix(&[self.state.fetch_add(1, SeqCst)]);
            // Heavy tail: one in eight is eight times as slow.
            let scale = if x.is_multiple_of(8) { 8 } else { 1 };
            tokio::time::sleep(Duration::from_millis((x >> 8) % self.max_ms * scale)).await;
        }
    }
}

/// What the world looks like to one test.
pub struct World {
    pub delays: Delays,
    pub visible: AtomicU64,
    pub trained: AtomicU64,
    pub live: AtomicUsize,
    pub max_live: AtomicUsize,
    /// Seeds of every start of a rollout.
    pub opened: Mutex<BTreeMap<(Purpose, Step, String, RolloutId), Vec<u64>>>,
    /// When rollouts were started, and for what.
    pub starts: Mutex<Vec<(Instant, Purpose)>>,
    pub status: Mutex<Vec<Status>>,
    began: Instant,
    pub log: Mutex<Log>,
    /// Stop texts that turns were sampled with.
    pub stops: Mutex<BTreeSet<Vec<String>>>,
    pub script: Script,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    Task,
    Open,
    Step,
    Score,
    Reward(f64),
    Engine,
    Hang,
    Empty,
    /// The engine's end.
    Dead,
}

/// Knobs of the fakes.
#[derive(Clone)]
pub struct Script {
    pub turns: u64,
    pub bridge: bool,
    /// Sequences that a bridged conversation cannot be shown to extend.
    pub breaks: Arc<dyn Fn(&[TokenId]) -> bool + Send + Sync>,
    /// Stands before every task's prompt.
    pub system: Option<String>,
    pub min_group: usize,
    pub group_scoring: bool,
    pub size: Option<u64>,
    pub fault: Arc<dyn Fn(&Task, Option<&OpenRequest>) -> Option<Fault> + Send + Sync>,
    pub reward: Arc<dyn Fn(&str, &OpenRequest) -> f64 + Send + Sync>,
    pub replies: Arc<dyn Fn(u64) -> String + Send + Sync>,
    pub hints: SamplingHints,
    pub sampled_tokens: usize,
    pub train_fails_at: Step,
    /// Starts of a rollout that its fault strikes.
    pub strikes: usize,
    /// Of each second of the run, how many milliseconds the engine pauses.
    pub pause_ms: u64,
    /// Longest training step, beyond the other delays.
    pub train_ms: u64,
    pub source: Option<Arc<dyn Source>>,
    pub reference: Option<Arc<dyn Reference>>,
}

impl Default for Script {
    fn default() -> Self {
        Script {
            turns: 1,
            bridge: true,
            breaks: Arc::new(|_| false),
            system: None,
            min_group: 2,
            group_scoring: false,
            size: Some(50),
            fault: Arc::new(|_, _| None),
            reward: Arc::new(|text, _| (text.bytes().map(u64::from).sum::<u64>() % 3) as f64 / 2.0),
            replies: Arc::new(|turn| format!("reply {turn}")),
            hints: SamplingHints::default(),
            sampled_tokens: 6,
            train_fails_at: 0,
            strikes: usize::MAX,
            pause_ms: 0,
            train_ms: 0,
            source: None,
            reference: None,
        }
    }
}

#[derive(Default)]
pub struct Log {
    pub rollouts: Vec<(Purpose, Step, Rollout)>,
    pub batches: Vec<(Step, Vec<RolloutId>)>,
    pub steps: Vec<StepReport>,
    pub evals: Vec<(Eval, BTreeMap<String, f64>)>,
    pub order: Vec<String>,
    pub trained: Vec<Arc<Batch>>,
    /// States as their text, with the numbers of rollouts and batches that had been recorded when they were taken.
    pub kept: Vec<String>,
    pub marks: BTreeMap<Step, (usize, usize)>,
    pub stalls: Vec<String>,
    pub policies: Vec<u64>,
}

/// Metrics that no clock has a part in.
pub fn timeless(metrics: &BTreeMap<String, f64>) -> String {
    metrics.iter().filter(|(k, _)| !k.contains("tim")).map(|(k, v)| format!("{k}={v} ")).collect()
}

impl Log {
    /// Everything that must not depend on timing, as text.
    pub fn fingerprint(&self) -> String {
        let mut out = String::new();
        for purpose in [Purpose::Eval, Purpose::Train] {
            for (_, step, r) in self.rollouts.iter().filter(|(p, ..)| *p == purpose) {
                let ids: Vec<_> = r.samples.iter().map(|s| (s.token_ids(), s.versions())).collect();
                let line = (step, r.id, &r.task.key, r.reward, &r.error, &r.filters, ids, r.policy_version);
                out += &format!("{purpose:?} {line:?}\n");
            }
        }
        for (step, ids) in &self.batches {
            out += &format!("batch {step} {ids:?}\n");
        }
        for batch in &self.trained {
            out += &format!("train {batch:?}\n");
        }
        out += &format!("{:?} {:?}\n", self.order, self.policies);
        for report in &self.steps {
            out += &format!("step {} {}{}\n", report.step, timeless(&report.metrics), timeless(&report.train));
        }
        for (eval, metrics) in &self.evals {
            out += &format!("eval {} {} {} {}\n", eval.env, eval.step, eval.policy_version, timeless(metrics));
        }
        out
    }

    pub fn ids(&self, purpose: Purpose) -> Vec<RolloutId> {
        self.rollouts.iter().filter(|(p, ..)| *p == purpose).map(|(_, _, r)| r.id).collect()
    }

    /// (step, oldest, newest version of any trained token) of the batches that have one.
    pub fn versions(&self) -> Vec<(Step, u64, u64)> {
        let of = |batch: &Arc<Batch>| {
            let all = batch.items.iter().filter_map(|i| i.sample.versions());
            let (lo, hi): (Vec<_>, Vec<_>) = all.map(|(a, b)| (a.0, b.0)).unzip();
            Some((batch.step, lo.into_iter().min()?, hi.into_iter().max()?))
        };
        self.trained.iter().filter_map(of).collect()
    }
}

impl World {
    pub fn new(schedule: u64, max_ms: u64, script: Script) -> Arc<Self> {
        Arc::new(World {
            delays: Delays { state: AtomicU64::new(mix(&[schedule])), max_ms },
            visible: AtomicU64::new(0),
            trained: AtomicU64::new(0),
            live: AtomicUsize::new(0),
            max_live: AtomicUsize::new(0),
            opened: Mutex::default(),
            starts: Mutex::default(),
            status: Mutex::default(),
            began: Instant::now(),
            log: Mutex::default(),
            stops: Mutex::default(),
            script,
        })
    }

    pub fn deps(self: &Arc<Self>, settings: &Settings) -> (Deps, watch::Sender<bool>) {
        let (stop, listener) = watch::channel(false);
        let start = settings.resume.as_ref().map_or(0, |state| state.progress().step);
        self.visible.store(start, SeqCst);
        self.trained.store(start, SeqCst);
        let env = |name: &str| Arc::new(FakeEnv { world: self.clone(), name: name.to_owned() }) as Arc<dyn Env>;
        let algorithm = Arc::new(FakeAlgorithm(self.clone()));
        let train = |name: &str| TrainDeps {
            env: env(name),
            algorithm: algorithm.clone(),
            source: self.script.source.clone(),
            reference: self.script.reference.clone(),
        };
        let deps = Deps {
            policy: Arc::new(FakePolicy(self.clone())),
            renderer: Arc::new(FakeRenderer(self.clone())),
            trainer: Arc::new(FakeTrainer(self.clone())),
            observer: Arc::new(FakeObserver(self.clone())),
            train: settings.train.iter().map(|e| train(&e.name)).collect(),
            eval: settings.eval.iter().map(|e| env(&e.name)).collect(),
            stop: listener,
        };
        (deps, stop)
    }

    /// Every started rollout is reported exactly once, and what was never opened is reported as failed.
    pub fn check_accounting(&self) {
        let opened = self.opened.lock().unwrap();
        let mut reported = BTreeSet::new();
        for (purpose, step, r) in &self.log.lock().unwrap().rollouts {
            let eval_step = if *purpose == Purpose::Eval { *step } else { 0 };
            let id = (*purpose, eval_step, r.task.env.clone(), r.id);
            match opened.get(&id) {
                Some(seeds) => {
                    let starts = seeds.len() as u32;
                    let cancelled = r.error.as_ref().is_some_and(|error| error.kind == ErrorKind::Cancelled);
                    // A failed one may be cancelled before it starts again.
                    assert!(starts == r.attempt + 1 || cancelled && starts == r.attempt, "{starts} starts of {}", r.id);
                    assert!(seeds.iter().all(|seed| *seed == seeds[0]), "rollout {} has several seeds", r.id);
                }
                None => assert!(r.error.is_some() && r.attempt == 0, "rollout {} came from nowhere", r.id),
            }
            assert!(reported.insert(id), "rollout {} was reported twice", r.id);
        }
        let lost: Vec<_> = opened.keys().filter(|id| !reported.contains(*id)).collect();
        assert!(lost.is_empty(), "never reported: {lost:?}");
        assert_eq!(self.live.load(SeqCst), 0);
    }

    pub fn opened(&self) -> usize {
        self.opened.lock().unwrap().len()
    }

    pub async fn run(self: &Arc<Self>, settings: Settings) -> Result<Outcome, Error> {
        let (deps, _stop) = self.deps(&settings);
        run(settings, deps).await
    }
}

/// Runs on a paused clock.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(future)
}

pub fn train_env(name: &str, group_size: u32) -> TrainEnv {
    TrainEnv {
        name: name.into(),
        split: "train".into(),
        ratio: 1.0,
        group_size,
        sampling: Sampling::default(),
        max_turns: None,
        timeout: None,
        curriculum: Curriculum::default(),
    }
}

pub fn eval_env(name: &str, interval: u64) -> EvalEnv {
    EvalEnv {
        name: name.into(),
        split: "eval".into(),
        num_examples: Some(3),
        group_size: 2,
        interval,
        sampling: Sampling::default(),
        max_turns: None,
        timeout: None,
    }
}

pub fn settings(steps: u64, batch_size: usize, group_size: u32) -> Settings {
    Settings {
        seed: 42,
        max_steps: Some(steps),
        batch_size,
        seq_len: 256,
        vocab_size: 100,
        train: vec![train_env("a", group_size)],
        ..Settings::default()
    }
}

struct FakePolicy(Arc<World>);

impl Policy for FakePolicy {
    fn sample(&self, request: SampleRequest) -> BoxFuture<'_, Result<Sampled, PolicyError>> {
        async move {
            let world = &self.0;
            world.stops.lock().unwrap().insert(request.sampling.stop.clone());
            let first = world.visible.load(SeqCst);
            world.delays.pause().await;
            let at = world.began.elapsed().as_millis() as u64 % 1000;
            if at < world.script.pause_ms {
                tokio::time::sleep(Duration::from_millis(world.script.pause_ms - at)).await;
            }
            let last = world.visible.load(SeqCst);
            let marker = request.prompt.iter().rev().find(|t| **t >= 5000).copied();
            match marker {
                Some(5001) => return Err(PolicyError::Engine("out of blocks".into())),
                Some(5002) => std::future::pending::<()>().await,
                Some(5004) => return Err(PolicyError::Ended("panic in the engine's thread: kernel exploded".into())),
                _ => {}
            }
            let n = world.script.sampled_tokens;
            let x = mix(&[request.seed, first, last, request.prompt.len() as u64]);
            let mut ids: Vec<TokenId> = (0..n as u64).map(|i| 10 + (mix(&[x, i]) % 80) as u32).collect();
            ids.push(STOP);
            let cut = ids.len() > request.max_tokens;
            ids.truncate(request.max_tokens);
            if marker == Some(5003) {
                ids.clear();
            }
            let logprobs = ids.iter().map(|t| -(*t as f32) / 100.0).collect();
            let finish = if cut { FinishReason::Length } else { FinishReason::StopToken(STOP) };
            let versions = (PolicyVersion(first), PolicyVersion(last));
            Ok(Sampled::from_engine(ids, logprobs, versions, finish).unwrap())
        }
        .boxed()
    }

    fn set_policy(&self, version: PolicyVersion) -> BoxFuture<'_, Result<(), String>> {
        async move {
            assert!(version.0 <= self.0.trained.load(SeqCst), "{version} is not trained yet");
            self.0.delays.pause().await;
            assert!(version.0 > self.0.visible.swap(version.0, SeqCst));
            self.0.log.lock().unwrap().policies.push(version.0);
            Ok(())
        }
        .boxed()
    }
}

struct FakeEnv {
    world: Arc<World>,
    name: String,
}

impl Env for FakeEnv {
    fn split_size(&self, split: &str) -> Result<Option<u64>, String> {
        match split {
            "train" | "eval" => Ok(self.world.script.size),
            other => Err(format!("no split `{other}`")),
        }
    }

    fn task<'a>(&'a self, split: &'a str, index: u64, seed: u64) -> BoxFuture<'a, Result<Task, String>> {
        async move {
            self.world.delays.pause().await;
            let system = self.world.script.system.iter().map(|text| Message::text(Role::System, text));
            let task = Task {
                env: self.name.clone(),
                split: split.into(),
                index,
                seed,
                key: format!("{}/{split}/{index}/{seed:x}", self.name),
                prompt: system.chain([Message::text(Role::User, format!("task {index}"))]).collect(),
                tools: vec![],
                answer: None,
                payload: Default::default(),
                max_turns: None,
                tags: vec![],
            };
            match (self.world.script.fault)(&task, None) {
                Some(Fault::Task) => Err("the word list is missing".into()),
                _ => Ok(task),
            }
        }
        .boxed()
    }

    fn open(&self, task: Arc<Task>, request: OpenRequest) -> BoxFuture<'_, Result<Box<dyn Session>, String>> {
        async move {
            let world = self.world.clone();
            let live = world.live.fetch_add(1, SeqCst) + 1;
            world.max_live.fetch_max(live, SeqCst);
            let eval_step = if request.purpose == Purpose::Eval { request.step } else { 0 };
            let attempt = {
                let mut opened = world.opened.lock().unwrap();
                let seeds = opened.entry((request.purpose, eval_step, self.name.clone(), request.id)).or_default();
                seeds.push(request.seed);
                seeds.len()
            };
            world.starts.lock().unwrap().push((Instant::now(), request.purpose));
            let fault = (world.script.fault)(&task, Some(&request)).filter(|_| attempt <= world.script.strikes);
            let session = FakeSession { world, request, fault, turn: 0, text: String::new() };
            session.world.delays.pause().await;
            if fault == Some(Fault::Open) {
                return Err("trap: unreachable".into());
            }
            Ok(Box::new(session) as Box<dyn Session>)
        }
        .boxed()
    }

    fn group_scoring(&self) -> bool {
        self.world.script.group_scoring
    }

    fn score_group<'a>(
        &'a self,
        _: &'a Task,
        members: &'a [&'a Finished],
    ) -> BoxFuture<'a, Result<Vec<Score>, String>> {
        async move { Ok((0..members.len()).map(|rank| score(rank as f64)).collect()) }.boxed()
    }
}

fn score(value: f64) -> Score {
    Score { components: vec![RewardComponent { name: "main".into(), value, weight: 1.0 }], ..Score::default() }
}

struct FakeSession {
    world: Arc<World>,
    request: OpenRequest,
    fault: Option<Fault>,
    turn: u64,
    text: String,
}

impl Drop for FakeSession {
    fn drop(&mut self) {
        self.world.live.fetch_sub(1, SeqCst);
    }
}

impl Session for FakeSession {
    fn start(&mut self) -> BoxFuture<'_, Result<EnvTurn, String>> {
        let marker = match self.fault {
            Some(Fault::Engine) => "\u{1389}",
            Some(Fault::Hang) => "\u{138a}",
            Some(Fault::Empty) => "\u{138b}",
            Some(Fault::Dead) => "\u{138c}",
            _ => "go",
        };
        let messages = vec![Message::text(Role::User, marker)];
        async move { Ok(EnvTurn { messages, ..EnvTurn::default() }) }.boxed()
    }

    fn step(&mut self, input: StepInput) -> BoxFuture<'_, Result<EnvTurn, String>> {
        async move {
            self.world.delays.pause().await;
            if self.fault == Some(Fault::Step) {
                return Err("trap: index out of bounds".into());
            }
            self.turn += 1;
            self.text += &input.message.content;
            if self.turn >= self.world.script.turns {
                let stop = Some(Stop { truncated: false, reason: "solved".into() });
                return Ok(EnvTurn { stop, ..EnvTurn::default() });
            }
            let messages = vec![Message::text(Role::User, (self.world.script.replies)(self.turn))];
            let metrics = vec![Metric { name: "replies".into(), value: 1.0 }];
            let sampling = self.world.script.hints.clone();
            Ok(EnvTurn { messages, reward: Some(0.25), metrics, sampling, ..EnvTurn::default() })
        }
        .boxed()
    }

    fn score(&mut self, _: Option<String>) -> BoxFuture<'_, Result<Score, String>> {
        async move {
            self.world.delays.pause().await;
            match self.fault {
                Some(Fault::Score) => Err("trap: division by zero".into()),
                Some(Fault::Reward(value)) => Ok(score(value)),
                _ => Ok(score((self.world.script.reward)(&self.text, &self.request))),
            }
        }
        .boxed()
    }
}

struct FakeRenderer(Arc<World>);

pub fn tokens(messages: &[Message]) -> Rendered {
    let mut ids = Vec::new();
    let mut spans = Vec::new();
    for message in messages {
        spans.push(RoleSpan {
            start: ids.len(),
            len: 1 + message.content.chars().count(),
            role: message.role,
            is_content: true,
        });
        ids.push(1000 + message.role as u32);
        ids.extend(message.content.chars().map(u32::from));
    }
    ids.push(2000);
    Rendered { ids, spans }
}

impl Renderer for FakeRenderer {
    fn render(&self, messages: &[Message], _: &[ToolDef]) -> Result<Rendered, String> {
        Ok(tokens(messages))
    }

    fn bridge(&self, previous: &[TokenId], replies: &[Message], _: &[ToolDef]) -> Result<Option<Rendered>, String> {
        let script = &self.0.script;
        Ok((script.bridge && !(script.breaks)(previous)).then(|| tokens(replies)))
    }

    fn answer(&self, _: &[Message], _: &[ToolDef], message: &Message, cut: bool) -> Result<Vec<TokenId>, String> {
        let end = (!cut).then_some(STOP);
        Ok(message.content.chars().map(u32::from).chain(end).collect())
    }

    fn parse(&self, sampled: &Sampled, _: &[ToolDef]) -> Message {
        let text: Vec<String> = sampled.ids().iter().filter(|t| **t != STOP).map(u32::to_string).collect();
        Message::text(Role::Assistant, text.join(" "))
    }

    fn stop_token_ids(&self) -> Arc<[TokenId]> {
        [STOP].into()
    }
}

struct FakeAlgorithm(Arc<World>);

impl Algorithm for FakeAlgorithm {
    fn min_group(&self) -> usize {
        self.0.script.min_group
    }

    fn score_group(&self, _: Step, group: &[&Rollout]) -> Result<Scored, String> {
        assert!(group.len() >= self.0.script.min_group && group.iter().all(|r| r.error.is_none()));
        let mean = group.iter().map(|r| r.reward).sum::<f64>() / group.len() as f64;
        let streams = |r: &&Rollout| {
            let of = |(i, s): (usize, &Sample)| Streams {
                advantages: Some(vec![(r.reward - mean) as f32; s.len()]),
                ..r.streams.get(i).cloned().unwrap_or_default()
            };
            Some(r.samples.iter().enumerate().map(of).collect())
        };
        let metrics = vec![Metric { name: "baseline".into(), value: mean }];
        Ok(Scored { streams: group.iter().map(streams).collect(), metrics })
    }
}

struct FakeTrainer(Arc<World>);

impl Trainer for FakeTrainer {
    fn keep(&self, state: State) {
        assert!(
            state.progress().step <= self.0.log.lock().unwrap().steps.last().unwrap().step,
            "kept before it is reported"
        );
        self.0.log.lock().unwrap().kept.push(serde_json::to_string(&state).unwrap());
    }

    fn train(&self, batch: Arc<Batch>) -> BoxFuture<'_, Result<TrainReport, String>> {
        async move {
            let step = batch.step;
            assert_eq!(step, self.0.trained.load(SeqCst) + 1, "steps are trained one after another");
            self.0.delays.pause().await;
            if self.0.script.train_ms > 0 {
                tokio::time::sleep(Duration::from_millis(mix(&[step]) % self.0.script.train_ms)).await;
            }
            if step == self.0.script.train_fails_at {
                return Err("device lost".into());
            }
            let tokens: usize = batch.items.iter().map(|i| i.sample.len()).sum();
            self.0.log.lock().unwrap().trained.push(batch);
            self.0.trained.store(step, SeqCst);
            Ok(TrainReport { metrics: BTreeMap::from([("loss/mean".to_owned(), tokens as f64)]) })
        }
        .boxed()
    }
}

struct FakeObserver(Arc<World>);

impl Observer for FakeObserver {
    fn rollout(&self, purpose: Purpose, step: Step, rollout: &Rollout) {
        self.0.log.lock().unwrap().rollouts.push((purpose, step, rollout.clone()));
    }

    fn batch(&self, step: Step, effective: &[&Rollout]) {
        self.0.log.lock().unwrap().batches.push((step, effective.iter().map(|r| r.id).collect()));
    }

    fn stalled(&self, waits: &str) {
        self.0.log.lock().unwrap().stalls.push(waits.to_owned());
    }

    fn mark(&self, step: Step) {
        let mut log = self.0.log.lock().unwrap();
        let recorded = (log.rollouts.len(), log.batches.len());
        log.marks.insert(step, recorded);
    }

    fn step(&self, report: &StepReport) {
        let mut log = self.0.log.lock().unwrap();
        log.order.push(format!("step {}", report.step));
        log.steps.push(report.clone());
    }

    fn eval(&self, eval: &Eval, metrics: &BTreeMap<String, f64>) {
        let mut log = self.0.log.lock().unwrap();
        log.order.push(format!("eval {} {}", eval.env, eval.step));
        log.evals.push((eval.clone(), metrics.clone()));
    }

    fn status(&self, status: &Status) {
        self.0.status.lock().unwrap().push(status.clone());
    }
}

/// A state out of its text.
pub fn state(text: &str) -> State {
    serde_json::from_str(text).unwrap()
}

/// Batches of rollouts, and of samples as they were trained.
pub type Line = (Vec<(Step, Vec<RolloutId>)>, Vec<Arc<Batch>>);

/// A run that dies again and again and goes on from its newest state, in worlds with delays of up to `max_ms`. Gives the
/// batches of the line that survives.
///
/// # Errors
/// What ended a life that was not cut off.
pub fn dying(seed: u64, s: &Settings, max_ms: u64, script: impl Fn() -> Script) -> Result<Line, Error> {
    let (mut batches, mut trained) = Line::default();
    let mut resume: Option<State> = None;
    for life in 0..1000 {
        let settings = Settings { resume: resume.clone(), ..s.clone() };
        // Later lives are longer, so that a run which makes little progress in a short one comes to its end.
        let patience = Duration::from_millis(20 + mix(&[seed, life, 1]) % (1200 + 100 * life * life));
        let (ended, world) = block_on(async {
            let world = World::new(mix(&[seed, life]), max_ms, script());
            let (deps, _stop) = world.deps(&settings);
            (tokio::time::timeout(patience, run(settings, deps)).await, world)
        });
        let log = world.log.lock().unwrap();
        let newest = log.kept.last().map(|text| state(text));
        let (whole, step) = match (ended, &newest) {
            (Ok(ended), _) => (ended.map(|_| true)?, u64::MAX),
            (Err(_), Some(state)) => (false, state.progress().step),
            (Err(_), None) => continue,
        };
        let until = if whole { log.batches.len() } else { log.marks[&step].1 };
        batches.extend_from_slice(&log.batches[..until]);
        trained.extend(log.trained.iter().filter(|batch| batch.step <= step).cloned());
        if whole {
            return Ok((batches, trained));
        }
        resume = newest;
    }
    panic!("seed {seed}: it never came to its end");
}

//! What the orchestrator needs from the rest of the product, as traits. Implementations live with whoever assembles a
//! run; nothing here names a crate, a file or a device.

use crate::{State, Status, StepReport};
use futures::future::BoxFuture;
use prl_types::{
    Batch, EnvTurn, Eval, FinishReason, Message, Metric, PolicyVersion, RoleSpan, Rollout, RolloutId, Sampled, Score,
    Step, Streams, Task, TokenId, ToolDef,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::watch;

use crate::Sampling;

/// What a rollout is for. Evaluation is dispatched first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Purpose {
    /// Measures the policy; never trains.
    Eval,
    /// Feeds the trainer.
    Train,
}

/// One turn to sample.
#[derive(Clone, Debug)]
pub struct SampleRequest {
    /// All tokens before the turn.
    pub prompt: Arc<[TokenId]>,
    /// How to draw.
    pub sampling: Sampling,
    /// Most tokens to draw, at least 1; already bounded by the context.
    pub max_tokens: usize,
    /// Tokens that end the turn.
    pub stop_token_ids: Arc<[TokenId]>,
    /// Seed of this turn: a function of run seed, group, member and turn.
    pub seed: u64,
    /// Whether others have the same prompt: on the first turn of a group's members.
    pub shared_prompt: bool,
    /// Whether a longer prompt that begins with this one and its answer may follow.
    pub goes_on: bool,
    /// Whether it is for an evaluation.
    pub eval: bool,
}

/// Why a turn was not sampled.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PolicyError {
    /// The prompt leaves no room in the context.
    #[error("the prompt of {prompt} tokens does not fit the context of {limit}")]
    Overlong {
        /// Tokens of the prompt.
        prompt: usize,
        /// Context length.
        limit: usize,
    },
    /// The engine dropped the request.
    #[error("the engine cancelled the request")]
    Cancelled,
    /// The engine failed.
    #[error("{0}")]
    Engine(String),
    /// The engine is no more, for this reason: nothing can be sampled from now on, and the run ends.
    #[error("{0}")]
    Ended(String),
}

/// The inference engine.
pub trait Policy: Send + Sync {
    /// Samples one turn. Dropping the future cancels it, as far as whoever samples can be reached.
    fn sample(&self, request: SampleRequest) -> BoxFuture<'_, Result<Sampled, PolicyError>>;

    /// Makes `version` visible to sampling, between two decode steps; requests that are under way go on with it.
    /// Called with growing versions, each trained before. With `max_async_level` = L the newest trained version may
    /// be up to L ahead of `version`, so that many snapshots must be kept.
    fn set_policy(&self, version: PolicyVersion) -> BoxFuture<'_, Result<(), String>>;
}

/// A turn to ask of a model outside the run.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// The conversation so far.
    pub messages: &'a [Message],
    /// What the model may call.
    pub tools: &'a [ToolDef],
    /// How to draw.
    pub sampling: &'a Sampling,
    /// Most tokens of the answer, at least 1.
    pub max_tokens: usize,
    /// Seed of this turn.
    pub seed: u64,
}

/// What a model outside the run answered.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// The assistant's message.
    pub message: Message,
    /// Whether it was cut off by the token limit.
    pub cut: bool,
}

/// A model outside the run that rollouts come from instead of the policy, such as a teacher's.
pub trait Source: Send + Sync {
    /// Asks for one turn.
    fn answer<'a>(&'a self, question: Question<'a>) -> BoxFuture<'a, Result<Answer, String>>;
}

/// A model whose log-probabilities of the sampled tokens an algorithm wants.
pub trait Reference: Send + Sync {
    /// For each sample of a finished rollout the log-probability of each token given those before it, 0 for the first;
    /// `None` for a sample whose are not wanted.
    fn logprobs<'a>(&'a self, rollout: &'a Rollout) -> BoxFuture<'a, Result<Vec<Option<Vec<f32>>>, String>>;
}

/// How a rollout is to be opened.
#[derive(Clone, Debug)]
pub struct OpenRequest {
    /// Train or eval.
    pub purpose: Purpose,
    /// The rollout; `id.member` is its place in the group.
    pub id: RolloutId,
    /// Rollouts in the group.
    pub group_size: u32,
    /// Seed for all the environment's randomness in this rollout.
    pub seed: u64,
    /// The step that the rollout is sampled for.
    pub step: Step,
}

/// One sampled turn, for the environment.
#[derive(Clone, Debug)]
pub struct StepInput {
    /// The parsed turn.
    pub message: Message,
    /// Why sampling stopped.
    pub finish: FinishReason,
    /// Sampled tokens.
    pub tokens: usize,
    /// Tokens left before the host cuts the rollout off.
    pub context_left: usize,
    /// Turns left before the host cuts the rollout off.
    pub turns_left: u32,
}

/// A finished rollout with what its environment said before the first turn, which [`Rollout`] does not hold.
#[derive(Clone, Debug)]
pub struct Finished {
    /// The rollout.
    pub rollout: Rollout,
    /// Messages of the environment's `start`, between the task's prompt and the first turn.
    pub opening: Vec<Message>,
    /// What it was opened with.
    pub request: OpenRequest,
    /// Why there is no policy any more, where that is how it failed.
    pub ended: Option<String>,
}

/// One configured environment. Errors are texts for people and cost one rollout.
pub trait Env: Send + Sync {
    /// Number of tasks of a split, `None` for an unbounded one.
    ///
    /// # Errors
    /// The split does not exist.
    fn split_size(&self, split: &str) -> Result<Option<u64>, String>;

    /// Makes a task. The same arguments always give the same task.
    fn task<'a>(&'a self, split: &'a str, index: u64, seed: u64) -> BoxFuture<'a, Result<Task, String>>;

    /// Opens a rollout of a task.
    fn open(&self, task: Arc<Task>, request: OpenRequest) -> BoxFuture<'_, Result<Box<dyn Session>, String>>;

    /// Whether rollouts may have more than one turn.
    fn multi_turn(&self) -> bool {
        true
    }

    /// Whether [`Env::score_group`] replaces the single scores.
    fn group_scoring(&self) -> bool {
        false
    }

    /// Scores the members of a group that did not fail, in their order: training and evaluation alike. Called only with
    /// [`Env::group_scoring`].
    fn score_group<'a>(
        &'a self,
        _task: &'a Task,
        _members: &'a [&'a Finished],
    ) -> BoxFuture<'a, Result<Vec<Score>, String>> {
        Box::pin(async { Err("this environment has no group scoring".to_owned()) })
    }
}

/// One rollout inside an environment. Dropping it frees its state.
pub trait Session: Send {
    /// Before the first turn.
    fn start(&mut self) -> BoxFuture<'_, Result<EnvTurn, String>>;
    /// After each sampled turn, cut-off ones included.
    fn step(&mut self, input: StepInput) -> BoxFuture<'_, Result<EnvTurn, String>>;
    /// At the end; `truncated` says why the rollout was cut off, if it was.
    fn score(&mut self, truncated: Option<String>) -> BoxFuture<'_, Result<Score, String>>;
}

/// Token ids with the messages they came from.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rendered {
    /// The ids.
    pub ids: Vec<TokenId>,
    /// Spans count from the first of `ids`.
    pub spans: Vec<RoleSpan>,
}

/// Messages to tokens and back.
pub trait Renderer: Send + Sync {
    /// The whole conversation, ready for the next assistant turn. The same conversation always gives the same ids: members
    /// of a group share a rendering.
    ///
    /// # Errors
    /// The template cannot render these messages.
    fn render(&self, messages: &[Message], tools: &[ToolDef]) -> Result<Rendered, String>;

    /// Only the tokens to append to `previous` (prompt and sampled ids so far) so that `replies` follow and the next
    /// assistant turn can start. `Ok(None)` when it cannot be proved that this extends `previous` verbatim: the
    /// conversation is then rendered anew as another sample.
    ///
    /// # Errors
    /// The template cannot render these messages.
    fn bridge(&self, previous: &[TokenId], replies: &[Message], tools: &[ToolDef]) -> Result<Option<Rendered>, String>;

    /// The ids of an assistant's `message` behind the rendering of `messages`: what a model would have sampled, with the
    /// token that ends the turn, or without it if the message was `cut` off.
    ///
    /// # Errors
    /// The template cannot render the message, or not as an extension of its prompt.
    fn answer(
        &self,
        messages: &[Message],
        tools: &[ToolDef],
        message: &Message,
        cut: bool,
    ) -> Result<Vec<TokenId>, String>;

    /// The assistant message of a sampled turn, to which `tools` were offered, without the stop string that ended it.
    fn parse(&self, sampled: &Sampled, tools: &[ToolDef]) -> Message;

    /// Tokens that end a turn.
    fn stop_token_ids(&self) -> Arc<[TokenId]>;
}

/// What an algorithm made of a group.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scored {
    /// For each rollout the streams of each of its samples, or `None` for one that shall not train.
    pub streams: Vec<Option<Vec<Streams>>>,
    /// Its own numbers; those of a step's groups are averaged by name into `algo/<name>`. Finite.
    pub metrics: Vec<Metric>,
}

/// Turns rewards into per-token streams. Called by one thread at a time, off the asynchronous ones, group after group.
pub trait Algorithm: Send + Sync {
    /// Fewest valid rollouts a group needs; 2 where advantages are relative to the group.
    fn min_group(&self) -> usize {
        1
    }

    /// Scores a group: its members without an error, in order; at least [`Algorithm::min_group`]. `step` is the one whose
    /// batch is being filled.
    ///
    /// # Errors
    /// Ends the run.
    fn score_group(&self, step: Step, group: &[&Rollout]) -> Result<Scored, String>;

    /// What a checkpoint must hold of it, after the last group that it scored; nothing for one without a state.
    ///
    /// # Errors
    /// Ends the run.
    fn state(&self) -> Result<Option<String>, String> {
        Ok(None)
    }
}

/// What a training step reports.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TrainReport {
    /// Metrics by full name; none may be NaN or infinite.
    pub metrics: BTreeMap<String, f64>,
}

/// The trainer. Steps are called one after another; step n yields policy version n.
pub trait Trainer: Send + Sync {
    /// Trains on one batch. A step of which a checkpoint is due leaves behind what that needs of the trainer.
    ///
    /// # Errors
    /// Ends the run.
    fn train(&self, batch: Arc<Batch>) -> BoxFuture<'_, Result<TrainReport, String>>;

    /// Completes the checkpoint of a step that was trained, some steps later as it may be; must return quickly. `state` is
    /// the orchestrator's part. Called in the order of steps, with [`Settings::checkpoints`](crate::Settings::checkpoints).
    fn keep(&self, state: State);
}

/// Records what happens. Called from one task, in a deterministic order per kind; must return quickly.
pub trait Observer: Send + Sync {
    /// Every dispatched rollout, exactly once, with streams and the filters that apply before batching.
    fn rollout(&self, purpose: Purpose, step: Step, rollout: &Rollout);
    /// The rollouts of a batch that train, in order.
    fn batch(&self, step: Step, effective: &[&Rollout]);
    /// The state after `step` has been taken now: what was recorded so far belongs to it, what comes does not.
    fn mark(&self, _step: Step) {}
    /// No step has come to its end for long; `waits` says what everything under way waits for.
    fn stalled(&self, waits: &str) {
        tracing::warn!("{waits}");
    }
    /// A step is trained. Steps come in order, a step's evaluation between it and the next.
    fn step(&self, report: &StepReport);
    /// An environment's evaluation is complete.
    fn eval(&self, eval: &Eval, metrics: &BTreeMap<String, f64>);
    /// Every `status_interval`.
    fn status(&self, _status: &Status) {}
}

/// Environment and algorithm of one training environment.
#[derive(Clone)]
pub struct TrainDeps {
    /// The environment.
    pub env: Arc<dyn Env>,
    /// Its algorithm.
    pub algorithm: Arc<dyn Algorithm>,
    /// Where its rollouts come from, if not from the policy.
    pub source: Option<Arc<dyn Source>>,
    /// The model whose log-probabilities its algorithm wants: they are in [`Rollout::streams`] when it scores.
    pub reference: Option<Arc<dyn Reference>>,
}

/// Everything outside the orchestrator.
#[derive(Clone)]
pub struct Deps {
    /// The engine.
    pub policy: Arc<dyn Policy>,
    /// The renderer.
    pub renderer: Arc<dyn Renderer>,
    /// The trainer.
    pub trainer: Arc<dyn Trainer>,
    /// The recorder.
    pub observer: Arc<dyn Observer>,
    /// In the order of `Settings::train`.
    pub train: Vec<TrainDeps>,
    /// In the order of `Settings::eval`.
    pub eval: Vec<Arc<dyn Env>>,
    /// Set to true to stop the run; a dropped sender never stops it.
    pub stop: watch::Receiver<bool>,
}

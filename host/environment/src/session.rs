//! One rollout as its caller sees it. Owns the rollout's deadline and its replay; must not know how completions are
//! made.

use crate::bindings::wit;
use crate::convert;
use crate::instance::Instance;
use crate::pool::{Isolation, Seat, Shared};
use crate::{EnvError, EnvInfo, Failure};
use prl_types::{Message, Metric, Score, Task, ToolDef};
use serde_json::Value;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;
use wasmtime::component::ResourceAny;

/// What a rollout is told about itself; its seed is all the randomness it may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RolloutContext {
    /// Unique in the run.
    pub id: String,
    /// Seed of this rollout.
    pub seed: u64,
    /// Its place in the group, from 0.
    pub member: u32,
    /// Rollouts in the group.
    pub group_size: u32,
    /// Trainer step of the sampling policy.
    pub step: u64,
    /// Whether it is an evaluation.
    pub eval: bool,
}

/// Why sampling of a turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// A stop token or stop string.
    Stop,
    /// The token limit.
    Length,
    /// It asked for tools.
    ToolCalls,
    /// Cancelled.
    Aborted,
}

impl Finish {
    /// From the engine's reason: a turn that stopped by itself with tool calls ended for them.
    pub fn new(reason: &prl_types::FinishReason, message: &Message) -> Self {
        match reason {
            prl_types::FinishReason::StopToken(_) | prl_types::FinishReason::StopString(_) => {
                if message.tool_calls.is_empty() { Finish::Stop } else { Finish::ToolCalls }
            }
            prl_types::FinishReason::Length => Finish::Length,
            prl_types::FinishReason::Aborted => Finish::Aborted,
        }
    }
}

/// The environment's wish to end the rollout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stop {
    /// A limit of its own, rather than an end (success and failure alike).
    pub truncated: bool,
    /// Such as `answered`.
    pub reason: String,
}

/// What the environment says back. Checked: finite numbers, known names.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EnvTurn {
    /// To be appended before the next sample.
    pub messages: Vec<Message>,
    /// Dense credit for the turn just taken.
    pub reward: Option<f64>,
    /// Set: sample no more.
    pub stop: Option<Stop>,
    /// Replaces the offered tools from the next sample on.
    pub tools: Option<Vec<ToolDef>>,
    /// Numbers without reward.
    pub metrics: Vec<Metric>,
    /// Hints for the next sample (`max_tokens`, `stop`, …).
    pub sampling: Option<Value>,
}

/// A live rollout. Call `start` once, then `step` for each assistant turn, then `score`. Dropping it frees its place
/// in the pool and its state in the guest. Dropping the future of a call in its middle ends the rollout.
pub struct Session {
    shared: Arc<Shared>,
    seat: Arc<Seat>,
    rollout: Arc<Rollout>,
    /// Its handle, and the generation of the instance that holds it.
    handle: Option<(ResourceAny, u64)>,
    /// Calls to repeat in a new instance; kept only where that can happen.
    history: Vec<Call>,
    deadline: Instant,
    _place: OwnedSemaphorePermit,
}

struct Rollout {
    task: wit::Task,
    context: wit::RolloutContext,
}

#[derive(Clone)]
enum Call {
    Open,
    Start,
    Step(Arc<wit::Completion>),
    Score(Option<Arc<str>>),
}

enum Answer {
    Opened,
    Turn(EnvTurn),
    Score(Score),
}

impl Call {
    fn name(&self) -> &'static str {
        match self {
            Call::Open => "open",
            Call::Start => "start",
            Call::Step(_) => "step",
            Call::Score(_) => "score",
        }
    }

    /// Makes the call; `open` fills in the handle.
    async fn make(
        &self,
        instance: &mut Instance,
        info: &EnvInfo,
        rollout: &Rollout,
        handle: &mut Option<ResourceAny>,
        limit: Duration,
    ) -> Result<Answer, EnvError> {
        let id = rollout.context.id.as_str();
        let open = match (self, *handle) {
            (Call::Open, _) | (_, None) => {
                let open = instance.open(&rollout.task, &rollout.context, limit).await?;
                *handle = Some(open);
                open
            }
            (_, Some(open)) => open,
        };
        match self {
            Call::Open => Ok(Answer::Opened),
            Call::Start => instance.start(info, id, open, limit).await.map(Answer::Turn),
            Call::Step(completion) => instance.step(info, id, open, completion, limit).await.map(Answer::Turn),
            Call::Score(truncated) => {
                instance.score(info, id, open, truncated.as_deref(), limit).await.map(Answer::Score)
            }
        }
    }
}

impl Session {
    pub(crate) async fn open(
        shared: Arc<Shared>,
        seat: Arc<Seat>,
        task: &Task,
        context: RolloutContext,
        place: OwnedSemaphorePermit,
    ) -> Result<Self, EnvError> {
        shared.enter();
        let mut session = Session {
            rollout: Arc::new(Rollout { task: convert::task_to(task), context: convert::context_to(&context) }),
            seat,
            handle: None,
            history: Vec::new(),
            deadline: Instant::now() + shared.limits.rollout_timeout,
            shared,
            _place: place,
        };
        session.call(Call::Open).await?;
        Ok(session)
    }

    /// The worker that serves it.
    pub fn worker(&self) -> usize {
        self.seat.worker
    }

    /// What is left of the rollout's wall clock.
    pub fn time_left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// What to add to the conversation before the first sample.
    ///
    /// # Errors
    /// A failure of the guest or an invalid answer; the rollout is over.
    pub async fn start(&mut self) -> Result<EnvTurn, EnvError> {
        self.turn(Call::Start).await
    }

    /// Hands over one assistant turn. `tokens` were sampled for it, `context_left` are left before the host cuts the
    /// rollout off.
    ///
    /// # Errors
    /// A failure of the guest or an invalid answer; the rollout is over.
    pub async fn step(
        &mut self,
        message: &Message,
        finish: Finish,
        tokens: u32,
        context_left: Option<u32>,
    ) -> Result<EnvTurn, EnvError> {
        self.turn(Call::Step(Arc::new(convert::completion_to(message, finish, tokens, context_left)))).await
    }

    /// The final rubric. `truncated` says why the host cut the rollout off, if it did.
    ///
    /// # Errors
    /// A failure of the guest or an invalid score: never a zero reward.
    pub async fn score(mut self, truncated: Option<&str>) -> Result<Score, EnvError> {
        match self.call(Call::Score(truncated.map(Arc::from))).await? {
            Answer::Score(score) => Ok(score),
            Answer::Opened | Answer::Turn(_) => Ok(Score::default()),
        }
    }

    async fn turn(&mut self, call: Call) -> Result<EnvTurn, EnvError> {
        match self.call(call).await? {
            Answer::Turn(turn) => Ok(turn),
            Answer::Opened | Answer::Score(_) => Ok(EnvTurn::default()),
        }
    }

    async fn call(&mut self, call: Call) -> Result<Answer, EnvError> {
        let (shared, name) = (self.shared.clone(), call.name());
        let error = |failure| shared.identity(self.seat.worker).error(name, failure);
        let limits = &shared.limits;
        let left = self.time_left();
        if left.is_zero() {
            return Err(error(Failure::RolloutTimeout { limit: limits.rollout_timeout }));
        }
        let is_open = matches!(call, Call::Open);
        let held = self.handle.take();
        if held.is_none() && !is_open {
            return Err(error(Failure::Over));
        }
        let may_replay = shared.isolation == Isolation::Worker && shared.file.info().features.deterministic;
        let history = if may_replay { self.history.clone() } else { Vec::new() };
        let (file, rollout, limit) = (shared.file.clone(), self.rollout.clone(), limits.call_timeout.min(left));
        let (counted, identity, made) = (shared.clone(), shared.identity(self.seat.worker), call.clone());
        let done = shared.on_seat(&self.seat, name, move |instance, generation| {
            Box::pin(async move {
                let info = file.info();
                let mut handle = match held {
                    Some((handle, of)) if of == generation => Some(handle),
                    None => None,
                    Some(_) if !may_replay => return Err(identity.error(name, Failure::Lost)),
                    Some(_) => {
                        let mut handle = None;
                        for past in &history {
                            past.make(instance, info, &rollout, &mut handle, limit).await?;
                        }
                        counted.counters.replayed.fetch_add(1, Ordering::Relaxed);
                        handle
                    }
                };
                let answer = made.make(instance, info, &rollout, &mut handle, limit).await?;
                Ok((answer, handle.map(|handle| (handle, generation))))
            })
        });
        match done.await {
            Ok((answer, handle)) => {
                self.handle = handle;
                if may_replay {
                    self.history.push(call);
                }
                Ok(answer)
            }
            Err(mut failed) => {
                // The time that ran out was the rollout's, not the call's.
                if limit < limits.call_timeout && matches!(failed.failure, Failure::CallTimeout { .. }) {
                    failed.failure = Failure::RolloutTimeout { limit: limits.rollout_timeout };
                }
                Err(failed)
            }
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.shared.leave();
        if let (Isolation::Worker, Some((handle, generation))) = (self.shared.isolation, self.handle.take()) {
            let (rollout, limit) = (self.rollout.clone(), self.shared.limits.call_timeout);
            self.shared.on_seat_later(&self.seat, generation, move |instance| {
                Box::pin(async move { instance.close(&rollout.context.id, handle, limit).await })
            });
        }
    }
}

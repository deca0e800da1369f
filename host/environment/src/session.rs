//! One rollout as its caller sees it. Owns the rollout's deadline and its replay; must not know how completions are
//! made.

use crate::instance::{Deadline, Instance};
use crate::pool::{Isolation, Seat, Shared};
use crate::state::Caller;
use crate::tape::Tape;
use crate::turn::Completion;
use crate::{EnvError, EnvInfo, Failure};
use prl_types::{EnvTurn, RolloutContext, Score, Task};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;
use wasmtime::component::ResourceAny;

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
    /// How many there have been.
    calls: u64,
    deadline: Instant,
    _place: OwnedSemaphorePermit,
}

struct Rollout {
    task: Task,
    context: RolloutContext,
    id: Arc<str>,
    tape: Tape,
}

impl Rollout {
    fn caller(&self, ordinal: u64, tape: Tape) -> Caller {
        Caller { rollout: Some(self.id.clone()), seed: self.context.seed, ordinal, tape }
    }
}

#[derive(Clone)]
enum Call {
    Open,
    Start,
    Step(Arc<Completion>),
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
        caller: Caller,
        handle: &mut Option<ResourceAny>,
        deadline: Deadline,
    ) -> Result<Answer, EnvError> {
        let open = match (self, *handle) {
            (Call::Open, _) | (_, None) => {
                let open = instance.open(&rollout.task, &rollout.context, &caller, deadline).await?;
                *handle = Some(open);
                open
            }
            (_, Some(open)) => open,
        };
        match self {
            Call::Open => Ok(Answer::Opened),
            Call::Start => instance.start(info, open, &caller, deadline).await.map(Answer::Turn),
            Call::Step(said) => instance.step(info, open, said, &caller, deadline).await.map(Answer::Turn),
            Call::Score(truncated) => {
                instance.score(info, open, truncated.as_deref(), &caller, deadline).await.map(Answer::Score)
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
        tape: Tape,
        place: OwnedSemaphorePermit,
    ) -> Result<Self, EnvError> {
        shared.enter();
        let id = Arc::from(context.id.as_str());
        let mut session = Session {
            rollout: Arc::new(Rollout { task: task.clone(), context, id, tape }),
            seat,
            handle: None,
            history: Vec::new(),
            calls: 0,
            deadline: Instant::now() + shared.limits().rollout_timeout,
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

    /// Hands over one assistant turn.
    ///
    /// # Errors
    /// A failure of the guest or an invalid answer; the rollout is over.
    pub async fn step(&mut self, said: Completion) -> Result<EnvTurn, EnvError> {
        self.turn(Call::Step(Arc::new(said))).await
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

    /// Frees the rollout's state in the guest, if that is still alive.
    fn release(&self, held: Option<(ResourceAny, u64)>) {
        // Where an instance ends with its rollout, so does all that it holds, unless that is at a server.
        let outlives = self.shared.isolation == Isolation::Worker || self.shared.file.unsandboxed().is_some();
        if let (true, Some((handle, generation))) = (outlives, held) {
            let (caller, deadline) =
                (self.rollout.caller(self.calls, Tape::default()), Deadline::of_call(self.shared.limits()));
            self.shared.on_seat_later(&self.seat, generation, move |instance| {
                Box::pin(async move { instance.close(handle, &caller, deadline).await })
            });
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
        let limits = shared.limits();
        let left = self.time_left();
        if left.is_zero() {
            return Err(error(Failure::RolloutTimeout { limit: limits.rollout_timeout }));
        }
        let is_open = matches!(call, Call::Open);
        let held = self.handle.take();
        if held.is_none() && !is_open {
            return Err(error(Failure::Over));
        }
        let may_replay = shared.isolation == Isolation::Worker && shared.info().features.deterministic;
        let history = if may_replay { self.history.clone() } else { Vec::new() };
        let deadline = Deadline { call: limits.call_timeout, rollout: Some((self.deadline, limits.rollout_timeout)) };
        let (rollout, ordinal) = (self.rollout.clone(), self.calls);
        self.calls += 1;
        let (counted, identity, made) = (shared.clone(), shared.identity(self.seat.worker), call.clone());
        let tape = if is_open { self.rollout.tape.clone() } else { Tape::default() };
        let done = shared.on_seat(&self.seat, name, tape, move |instance, generation| {
            Box::pin(async move {
                let info = counted.info();
                let mut handle = match held {
                    Some((handle, of)) if of == generation => Some(handle),
                    None => None,
                    Some(_) if !may_replay => return Err(identity.error(name, Failure::Lost)),
                    Some(_) => {
                        let mut handle = None;
                        for (past, ordinal) in history.iter().zip(0..) {
                            // What it asks a second time is not the rollout's.
                            let caller = rollout.caller(ordinal, Tape::default());
                            past.make(instance, info, &rollout, caller, &mut handle, deadline).await?;
                        }
                        counted.counters.replayed.fetch_add(1, Ordering::Relaxed);
                        handle
                    }
                };
                let caller = rollout.caller(ordinal, rollout.tape.clone());
                let answer = made.make(instance, info, &rollout, caller, &mut handle, deadline).await?;
                Ok((answer, handle.map(|handle| (handle, generation))))
            })
        });
        let (answer, handle) = match done.await {
            Ok(done) => done,
            Err(error) => {
                self.release(held);
                return Err(error);
            }
        };
        self.handle = handle;
        if may_replay {
            self.history.push(call);
        }
        Ok(answer)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.shared.leave();
        let held = self.handle.take();
        self.release(held);
    }
}

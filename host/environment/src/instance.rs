//! One live instance and every call of the contract. Owns deadlines and the reading of traps; must not know pools,
//! sessions or replay.

use crate::contract::Guest;
use crate::file::Linked;
use crate::limits::MemoryCap;
use crate::state::{Caller, State, Waits};
use crate::tape::{SETUP, Tape};
use crate::{Completion, EnvError, EnvInfo, Failure, GroupMember, Limits, LogSink, RolloutContext, Services, check};
use prl_types::{EnvTurn, Score, Task};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};
use wasmtime::component::ResourceAny;
use wasmtime::{PoolConcurrencyLimitError, Store, Trap};

/// Whose instance it is, for errors.
#[derive(Clone, Debug)]
pub struct Identity {
    pub env: Arc<str>,
    pub worker: usize,
}

impl Identity {
    pub fn error(&self, call: &'static str, failure: Failure) -> EnvError {
        EnvError { env: self.env.to_string(), worker: self.worker, call, failure }
    }
}

/// What a call may take.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    /// Of the guest's own time.
    pub call: Duration,
    /// When the rollout's time is over, and how much that was.
    pub rollout: Option<(Instant, Duration)>,
}

impl Deadline {
    /// For a call outside any rollout.
    pub fn of_call(limits: &Limits) -> Self {
        Deadline { call: limits.call_timeout, rollout: None }
    }
}

/// Ticks of the engines' clock within which a call does not give way, counted from its begin. Without a deadline of its own a
/// store gives way at its first instruction, and its call goes on on another thread.
const TICKS: u64 = 1;

/// How often a call that waits for a service is looked at once its own time is over.
const LOOK: Duration = Duration::from_millis(5);

/// The end of `call`, or of its time. Waiting for services does not count as the call's own.
async fn within<T>(deadline: Deadline, waits: &Waits, call: impl Future<Output = T>) -> Result<T, Failure> {
    let start = Instant::now();
    let mut call = pin!(call);
    let mut until = start + deadline.call;
    loop {
        let end = deadline.rollout.map_or(until, |(end, _)| end.min(until));
        if let Ok(answer) = timeout_at(end, &mut call).await {
            return Ok(answer);
        }
        let now = Instant::now();
        match deadline.rollout {
            Some((end, limit)) if now >= end => return Err(Failure::RolloutTimeout { limit }),
            _ => {}
        }
        let own = start + deadline.call + waits.so_far();
        if now >= own {
            return Err(Failure::CallTimeout { limit: deadline.call });
        }
        until = own.max(now + LOOK);
    }
}

/// An instance in its own store.
pub struct Instance {
    store: Store<State>,
    guest: Guest,
    identity: Identity,
    waits: Arc<Waits>,
    /// What it asked of services while it was set up.
    setup: Tape,
    output_bytes: u64,
    fuel: Option<u64>,
    /// False once it was stopped in the middle of a call: it may not be entered again.
    alive: bool,
}

/// How the system says that it has no addresses or mappings left (ENOMEM).
const NO_MEMORY: &str = "(os error 12)";

/// Why an engine made no instance.
enum Refused {
    /// It has no room; another may have.
    Full(String),
    Failed(Failure),
}

/// The call that errors of [`Instance::new`] name. [`Failure::Invalid`] in it means shapes that do not fit.
pub const INSTANTIATE: &str = "instantiate";

/// Makes a call of the contract and reads what became of it: `call!(self, "name", caller, deadline, |store, guest| …)`.
macro_rules! call {
    ($self:ident, $name:literal, $caller:expr, $deadline:expr, |$store:ident, $guest:ident| $work:expr) => {{
        $self.begin($name, $caller)?;
        let called = {
            let ($store, $guest) = (&mut $self.store, &$self.guest);
            within($deadline, &$self.waits, $work).await
        };
        $self.end($name, called)?
    }};
}

impl Instance {
    /// Instantiates the component, its initialisers included.
    pub async fn new(
        linked: &[Linked],
        limits: &Limits,
        identity: Identity,
        log: LogSink,
        services: Services,
        setup: Tape,
    ) -> Result<Self, EnvError> {
        let mut failed = Failure::Invalid("there is no engine".into());
        for linked in linked {
            match Self::on(linked, limits, &identity, log.clone(), services.clone(), &setup).await {
                Ok(instance) => return Ok(instance),
                Err(Refused::Failed(failure)) => return Err(identity.error(INSTANTIATE, failure)),
                Err(Refused::Full(reason)) => failed = Failure::NoRoom { reason },
            }
        }
        Err(identity.error(INSTANTIATE, failed))
    }

    async fn on(
        linked: &Linked,
        limits: &Limits,
        identity: &Identity,
        log: LogSink,
        services: Services,
        setup: &Tape,
    ) -> Result<Self, Refused> {
        let mut store = Store::new(&linked.engine, State::new(limits, identity.worker, log, services));
        store.limiter(|state| &mut state.limiter);
        store.set_hostcall_fuel(usize::try_from(limits.output_bytes).unwrap_or(usize::MAX));
        store.epoch_deadline_async_yield_and_update(TICKS);
        store.set_epoch_deadline(TICKS);
        if let Some(fuel) = limits.fuel {
            store.set_fuel(fuel).map_err(|error| Refused::Failed(Failure::Invalid(one_line(&error))))?;
        }
        store.data_mut().begin(SETUP, &Caller { tape: setup.clone(), ..Caller::default() });
        let waits = store.data().waits.clone();
        let made = within(Deadline::of_call(limits), &waits, linked.pre.instantiate(&mut store)).await;
        let said = store.data_mut().end();
        let failure = match made {
            Ok(Ok(guest)) => {
                let (output_bytes, fuel) = (limits.output_bytes, limits.fuel);
                let (identity, setup) = (identity.clone(), setup.clone());
                return Ok(Instance { store, guest, identity, waits, setup, output_bytes, fuel, alive: true });
            }
            Ok(Err(error)) if error.is::<PoolConcurrencyLimitError>() => return Err(Refused::Full(one_line(&error))),
            Ok(Err(error)) if error.is::<Trap>() || error.is::<MemoryCap>() => {
                trapped(&error, said, limits.output_bytes, limits.fuel)
            }
            // The engine's error for this has no public type.
            Ok(Err(error)) if one_line(&error).contains(NO_MEMORY) => Failure::NoRoom { reason: one_line(&error) },
            Ok(Err(error)) => Failure::Invalid(one_line(&error)),
            Err(failure) => failure,
        };
        Err(Refused::Failed(failure))
    }

    pub fn is_alive(&self) -> bool {
        self.alive
    }

    fn begin(&mut self, call: &'static str, caller: &Caller) -> Result<(), EnvError> {
        self.store.data_mut().begin(call, caller);
        self.store.set_epoch_deadline(TICKS);
        match self.fuel.map_or(Ok(()), |fuel| self.store.set_fuel(fuel)) {
            Ok(()) => Ok(()),
            Err(error) => Err(self.identity.error(call, Failure::Invalid(one_line(&error)))),
        }
    }

    fn end<T>(&mut self, call: &'static str, called: Result<wasmtime::Result<T>, Failure>) -> Result<T, EnvError> {
        let said = self.store.data_mut().end();
        let failure = match called {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(error)) => trapped(&error, said, self.output_bytes, self.fuel),
            Err(failure) => failure,
        };
        self.alive = false;
        Err(self.identity.error(call, failure))
    }

    /// The guest's own error, or its answer if that passes `check`.
    fn accept<T>(
        &self,
        call: &'static str,
        answer: Result<T, Failure>,
        check: impl FnOnce(&T) -> Result<(), String>,
    ) -> Result<T, EnvError> {
        let checked = answer.and_then(|value| match check(&value) {
            Ok(()) => Ok(value),
            Err(reason) => Err(Failure::Invalid(reason)),
        });
        checked.map_err(|failure| self.identity.error(call, failure))
    }

    /// Not yet checked.
    pub async fn describe(&mut self, deadline: Deadline) -> Result<EnvInfo, EnvError> {
        let caller = Caller::default();
        let info = call!(self, "describe", &caller, deadline, |store, guest| guest.describe(store));
        info.map_err(|reason| self.identity.error("describe", Failure::Invalid(reason)))
    }

    pub async fn configure(&mut self, args: &str, deadline: Deadline) -> Result<(), EnvError> {
        let caller = Caller { tape: self.setup.clone(), ..Caller::default() };
        let done = call!(self, "configure", &caller, deadline, |store, guest| guest.configure(store, args));
        self.accept("configure", done, |()| Ok(()))
    }

    pub async fn task(
        &mut self,
        info: &EnvInfo,
        asked: (&str, u64, u64),
        deadline: Deadline,
    ) -> Result<Task, EnvError> {
        let caller = Caller { seed: asked.2, ordinal: asked.1, ..Caller::default() };
        let env = self.identity.env.clone();
        let task = call!(self, "get-task", &caller, deadline, |store, guest| guest.task(store, &env, asked));
        self.accept("get-task", task, |task| check::task(info, asked, task))
    }

    pub async fn open(
        &mut self,
        task: &Task,
        context: &RolloutContext,
        caller: &Caller,
        deadline: Deadline,
    ) -> Result<ResourceAny, EnvError> {
        caller.tape.precede(&self.setup);
        let handle = call!(self, "open", caller, deadline, |store, guest| guest.open(store, task, context));
        self.accept("open", handle, |_| Ok(()))
    }

    pub async fn start(
        &mut self,
        info: &EnvInfo,
        rollout: ResourceAny,
        caller: &Caller,
        deadline: Deadline,
    ) -> Result<EnvTurn, EnvError> {
        let turn = call!(self, "start", caller, deadline, |store, guest| guest.start(store, rollout));
        self.accept("start", turn, |turn| check::turn(info, check::Said::Start, turn))
    }

    pub async fn step(
        &mut self,
        info: &EnvInfo,
        rollout: ResourceAny,
        said: &Completion,
        caller: &Caller,
        deadline: Deadline,
    ) -> Result<EnvTurn, EnvError> {
        let turn = call!(self, "step", caller, deadline, |store, guest| guest.step(store, rollout, said));
        self.accept("step", turn, |turn| check::turn(info, check::Said::Turn(&said.message), turn))
    }

    pub async fn score(
        &mut self,
        info: &EnvInfo,
        rollout: ResourceAny,
        truncated: Option<&str>,
        caller: &Caller,
        deadline: Deadline,
    ) -> Result<Score, EnvError> {
        let score = call!(self, "score", caller, deadline, |store, guest| guest.score(store, rollout, truncated));
        let score = score.and_then(|score| check::score(info, score).map_err(Failure::Invalid));
        self.accept("score", score, |_| Ok(()))
    }

    pub async fn score_group(
        &mut self,
        info: &EnvInfo,
        task: &Task,
        members: &[GroupMember],
        tape: Tape,
        deadline: Deadline,
    ) -> Result<Vec<Score>, EnvError> {
        tape.precede(&self.setup);
        let caller = Caller { seed: task.seed, tape, ..Caller::default() };
        let scores =
            call!(self, "score-group", &caller, deadline, |store, guest| guest.score_group(store, task, members));
        let scores = scores.and_then(|scores| {
            let checked: Result<Vec<Score>, String> =
                scores.into_iter().map(|score| check::score(info, score)).collect();
            checked.map_err(Failure::Invalid)
        });
        self.accept("score-group", scores, |scores| {
            if scores.len() == members.len() {
                return Ok(());
            }
            Err(format!("{} scores for {} members", scores.len(), members.len()))
        })
    }

    /// Frees a rollout's state in the guest.
    pub async fn close(&mut self, rollout: ResourceAny, caller: &Caller, deadline: Deadline) -> Result<(), EnvError> {
        call!(self, "close", caller, deadline, |store, _guest| rollout.resource_drop_async(store));
        Ok(())
    }
}

/// What stopped a guest.
fn trapped(error: &wasmtime::Error, said: Option<String>, limit_bytes: u64, fuel: Option<u64>) -> Failure {
    if let Some(cap) = error.downcast_ref::<MemoryCap>() {
        return Failure::OutOfMemory { wanted_bytes: cap.wanted_bytes, limit_bytes: cap.limit_bytes };
    }
    if let Some(trap) = error.downcast_ref::<Trap>() {
        return match (trap, fuel) {
            (Trap::OutOfFuel, Some(limit)) => Failure::OutOfFuel { limit },
            _ => Failure::Trap { reason: trap.to_string(), said },
        };
    }
    // The engine's error for this has no public type; its text is held by a test.
    let reason = error.root_cause().to_string();
    if reason.contains("fuel allocated for hostcalls") {
        return Failure::TooMuchData { limit_bytes };
    }
    Failure::Trap { reason, said }
}

/// An engine's error with its causes.
pub fn one_line(error: &wasmtime::Error) -> String {
    format!("{error:#}").split_whitespace().collect::<Vec<_>>().join(" ")
}

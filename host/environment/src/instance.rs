//! One live instance and every call of the contract. Owns deadlines and the reading of traps; must not know pools,
//! sessions or replay.

use crate::bindings::{PureEnv, PureEnvPre, wit, wit_types};
use crate::convert;
use crate::limits::MemoryCap;
use crate::log::State;
use crate::{EnvError, EnvInfo, EnvTurn, Failure, Limits, LogSink};
use prl_types::{Score, Task};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::error::Elapsed;
use tokio::time::timeout;
use wasmtime::component::ResourceAny;
use wasmtime::{Engine, Store, Trap};

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

/// An instance in its own store.
pub struct Instance {
    store: Store<State>,
    bindings: PureEnv,
    identity: Identity,
    output_bytes: u64,
    /// False once it was stopped in the middle of a call: it may not be entered again.
    alive: bool,
}

/// The call that errors of [`Instance::new`] name. [`Failure::Invalid`] in it means shapes that do not fit.
pub const INSTANTIATE: &str = "instantiate";

type Called<T> = Result<wasmtime::Result<T>, Elapsed>;

impl Instance {
    /// Instantiates the component, its initialisers included.
    pub async fn new(
        engine: &Engine,
        pre: &PureEnvPre<State>,
        limits: &Limits,
        identity: Identity,
        log: LogSink,
    ) -> Result<Self, EnvError> {
        let mut store = Store::new(engine, State::new(limits, identity.worker, log));
        store.limiter(|state| &mut state.limiter);
        store.set_hostcall_fuel(usize::try_from(limits.output_bytes).unwrap_or(usize::MAX));
        store.epoch_deadline_async_yield_and_update(1);
        let made = timeout(limits.call_timeout, pre.instantiate_async(&mut store)).await;
        let said = store.data_mut().end();
        match made {
            Ok(Ok(bindings)) => {
                Ok(Instance { store, bindings, identity, output_bytes: limits.output_bytes, alive: true })
            }
            Ok(Err(error)) if error.is::<Trap>() || error.is::<MemoryCap>() => {
                Err(identity.error(INSTANTIATE, trapped(&error, said, limits.output_bytes)))
            }
            Ok(Err(error)) => Err(identity.error(INSTANTIATE, Failure::Invalid(one_line(&error)))),
            Err(_) => Err(identity.error(INSTANTIATE, Failure::CallTimeout { limit: limits.call_timeout })),
        }
    }

    pub fn is_alive(&self) -> bool {
        self.alive
    }

    /// Ends a call: reads what became of it.
    fn finish<T>(&mut self, call: &'static str, limit: Duration, called: Called<T>) -> Result<T, EnvError> {
        let said = self.store.data_mut().end();
        let failure = match called {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(error)) => trapped(&error, said, self.output_bytes),
            Err(_) => Failure::CallTimeout { limit },
        };
        self.alive = false;
        Err(self.identity.error(call, failure))
    }

    /// The same for a call that may answer with an error.
    fn finish_result<T>(
        &mut self,
        call: &'static str,
        limit: Duration,
        called: Called<Result<T, wit_types::Error>>,
    ) -> Result<T, EnvError> {
        self.finish(call, limit, called)?.map_err(|error| self.identity.error(call, convert::guest_error(error)))
    }

    fn check<T>(&self, call: &'static str, checked: Result<T, String>) -> Result<T, EnvError> {
        checked.map_err(|reason| self.identity.error(call, Failure::Invalid(reason)))
    }

    pub async fn describe(&mut self, limit: Duration) -> Result<EnvInfo, EnvError> {
        self.store.data_mut().begin(None);
        let guest = self.bindings.prl_env_environment();
        let called = timeout(limit, guest.call_describe(&mut self.store)).await;
        let info = self.finish("describe", limit, called)?;
        self.check("describe", EnvInfo::from_wit(info))
    }

    pub async fn configure(&mut self, args: &str, limit: Duration) -> Result<(), EnvError> {
        self.store.data_mut().begin(None);
        let args = args.to_owned();
        let guest = self.bindings.prl_env_environment();
        let called = timeout(limit, guest.call_configure(&mut self.store, &args)).await;
        self.finish_result("configure", limit, called)
    }

    pub async fn task(&mut self, split: &str, index: u64, seed: u64, limit: Duration) -> Result<Task, EnvError> {
        self.store.data_mut().begin(None);
        let guest = self.bindings.prl_env_environment();
        let called = timeout(limit, guest.call_get_task(&mut self.store, split, index, seed)).await;
        let task = self.finish_result("get-task", limit, called)?;
        self.check("get-task", convert::task(&self.identity.env, (split, index, seed), task))
    }

    pub async fn open(
        &mut self,
        task: &wit::Task,
        context: &wit::RolloutContext,
        limit: Duration,
    ) -> Result<ResourceAny, EnvError> {
        self.store.data_mut().begin(Some(&context.id));
        let guest = self.bindings.prl_env_environment().rollout();
        let called = timeout(limit, guest.call_open(&mut self.store, task, context)).await;
        self.finish_result("open", limit, called)
    }

    pub async fn start(
        &mut self,
        info: &EnvInfo,
        id: &str,
        rollout: ResourceAny,
        limit: Duration,
    ) -> Result<EnvTurn, EnvError> {
        self.store.data_mut().begin(Some(id));
        let guest = self.bindings.prl_env_environment().rollout();
        let called = timeout(limit, guest.call_start(&mut self.store, rollout)).await;
        let turn = self.finish_result("start", limit, called)?;
        self.check("start", convert::turn(info, turn))
    }

    pub async fn step(
        &mut self,
        info: &EnvInfo,
        id: &str,
        rollout: ResourceAny,
        completion: &wit::Completion,
        limit: Duration,
    ) -> Result<EnvTurn, EnvError> {
        self.store.data_mut().begin(Some(id));
        let guest = self.bindings.prl_env_environment().rollout();
        let called = timeout(limit, guest.call_step(&mut self.store, rollout, completion)).await;
        let turn = self.finish_result("step", limit, called)?;
        self.check("step", convert::turn(info, turn))
    }

    pub async fn score(
        &mut self,
        info: &EnvInfo,
        id: &str,
        rollout: ResourceAny,
        truncated: Option<&str>,
        limit: Duration,
    ) -> Result<Score, EnvError> {
        self.store.data_mut().begin(Some(id));
        let guest = self.bindings.prl_env_environment().rollout();
        let called = timeout(limit, guest.call_score(&mut self.store, rollout, truncated)).await;
        let score = self.finish_result("score", limit, called)?;
        self.check("score", convert::score(info, score))
    }

    pub async fn score_group(
        &mut self,
        info: &EnvInfo,
        task: &wit::Task,
        members: &[wit::Finished],
        limit: Duration,
    ) -> Result<Vec<Score>, EnvError> {
        self.store.data_mut().begin(None);
        let guest = self.bindings.prl_env_environment();
        let called = timeout(limit, guest.call_score_group(&mut self.store, task, members)).await;
        let scores = self.finish_result("score-group", limit, called)?;
        if scores.len() != members.len() {
            let reason = format!("{} scores for {} members", scores.len(), members.len());
            return self.check("score-group", Err(reason));
        }
        let scores = scores.into_iter().map(|score| convert::score(info, score)).collect();
        self.check("score-group", scores)
    }

    /// Frees a rollout's state in the guest.
    pub async fn close(&mut self, id: &str, rollout: ResourceAny, limit: Duration) -> Result<(), EnvError> {
        self.store.data_mut().begin(Some(id));
        let called = timeout(limit, rollout.resource_drop_async(&mut self.store)).await;
        self.finish("close", limit, called)
    }
}

/// What stopped a guest.
fn trapped(error: &wasmtime::Error, said: Option<String>, limit_bytes: u64) -> Failure {
    if let Some(cap) = error.downcast_ref::<MemoryCap>() {
        return Failure::OutOfMemory { wanted_bytes: cap.wanted_bytes, limit_bytes: cap.limit_bytes };
    }
    if let Some(trap) = error.downcast_ref::<Trap>() {
        return Failure::Trap { reason: trap.to_string(), said };
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

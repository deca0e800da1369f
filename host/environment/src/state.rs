//! What an instance's store carries from call to call. Owns the time a guest spends waiting for services; must not know
//! what a call means.

use crate::limits::Limiter;
use crate::log::Log;
use crate::tape::Tape;
use crate::wasi::Wasi;
use crate::{Limits, LogSink, Services};
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// On whose behalf a call is made.
#[derive(Clone, Debug, Default)]
pub struct Caller {
    /// The rollout's id, if it is one's.
    pub rollout: Option<Arc<str>>,
    /// Seed of the rollout or task.
    pub seed: u64,
    /// The how manyth call of the rollout it is.
    pub ordinal: u64,
    /// Where its requests of services go.
    pub tape: Tape,
}

/// The contents of a store.
pub struct State {
    pub limiter: Limiter,
    pub log: Log,
    pub wasi: Wasi,
    pub services: Services,
    pub tape: Tape,
    pub output_bytes: u64,
    pub waits: Arc<Waits>,
    /// The call, and the how manyth of its rollout it is.
    call: (&'static str, u64),
}

impl State {
    pub fn new(limits: &Limits, worker: usize, log: LogSink, services: Services) -> Self {
        State {
            limiter: Limiter::new(limits),
            log: Log::new(limits, worker, log),
            wasi: Wasi::default(),
            services,
            tape: Tape::default(),
            output_bytes: limits.output_bytes,
            waits: Arc::default(),
            call: ("", 0),
        }
    }

    /// Begins a call.
    pub fn begin(&mut self, call: &'static str, caller: &Caller) {
        self.tape = caller.tape.clone();
        self.call = (call, caller.ordinal);
        self.log.begin(caller.rollout.clone());
        self.wasi.begin(caller.seed, caller.ordinal);
        self.waits.reset();
    }

    /// Ends the call; gives the last error line it wrote.
    pub fn end(&mut self) -> Option<String> {
        self.wasi.flush(&mut self.log);
        self.log.end()
    }

    /// The current call's name; turns count from 0, after `open` and `start`.
    pub fn call(&self) -> String {
        match self.call {
            ("step", ordinal) => format!("step {}", ordinal.saturating_sub(2)),
            (call, _) => call.to_owned(),
        }
    }

    /// Waits for `work`, off the guest's own time.
    pub async fn wait<T>(&self, work: impl Future<Output = T>) -> T {
        let _waiting = self.waits.enter();
        work.await
    }
}

/// How long the current call has waited for services.
#[derive(Debug, Default)]
pub struct Waits(Mutex<(Duration, Option<Instant>)>);

impl Waits {
    fn reset(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = (Duration::ZERO, None);
    }

    fn enter(self: &Arc<Self>) -> Waiting {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).1 = Some(Instant::now());
        Waiting(self.clone())
    }

    /// The wait under way included.
    pub fn so_far(&self) -> Duration {
        let (past, since) = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        past + since.map_or(Duration::ZERO, |since| since.elapsed())
    }
}

struct Waiting(Arc<Waits>);

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut held = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(since) = held.1.take() {
            held.0 += since.elapsed();
        }
    }
}

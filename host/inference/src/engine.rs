//! The engine's thread and its handle.
//!
//! Owns the thread, the way requests and weights reach it, and what callers get when it ends, however it ends. Must not
//! know how requests are batched.

use crate::live::Job;
use crate::scheduler::Scheduler;
use crate::{Drawn, Event, InferenceError, Request, SamplingParams, Stats};
use prl_kernels::Meter;
use prl_model::Snapshot;
use prl_types::{PolicyVersion, Sampled, TokenId};
use std::any::Any;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::oneshot;

/// Limits of an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineConfig {
    /// Requests that run at a time; further ones wait in order of arrival.
    pub max_batch: usize,
    /// Requests that wait; further ones fail with [`InferenceError::Busy`].
    pub max_waiting: usize,
    /// Tokens of prompt and completion together.
    pub max_model_len: usize,
    /// Prompt tokens taken through the model in one step, beside the decoding sequences.
    pub prefill_tokens: usize,
    /// Sequences whose keys and values are kept for those that begin like them; 0 keeps none.
    pub kept_prefixes: usize,
    /// Bytes that keys and values may take.
    pub cache_bytes: usize,
}

impl EngineConfig {
    /// Limits with the defaults for the rest: 2,048 prompt tokens a step, two kept sequences for each that runs, and no
    /// bound on memory and waiting requests.
    pub fn new(max_batch: usize, max_model_len: usize) -> Self {
        EngineConfig {
            max_batch,
            max_waiting: usize::MAX,
            max_model_len,
            prefill_tokens: 2048,
            kept_prefixes: max_batch.saturating_mul(2),
            cache_bytes: usize::MAX,
        }
    }

    fn validate(&self, snapshot: &dyn Snapshot) -> Result<(), InferenceError> {
        for (name, value) in [
            ("max_batch", self.max_batch),
            ("max_waiting", self.max_waiting),
            ("max_model_len", self.max_model_len),
            ("prefill_tokens", self.prefill_tokens),
        ] {
            if value == 0 {
                return Err(InferenceError::InvalidConfig { name });
            }
        }
        let needed = snapshot.new_cache(&Meter::default()).growth(self.max_model_len);
        match needed <= self.cache_bytes {
            true => Ok(()),
            false => Err(InferenceError::CacheTooSmall {
                budget: self.cache_bytes,
                needed,
                max_model_len: self.max_model_len,
            }),
        }
    }
}

enum Command {
    Generate(Box<Job>),
    Update(Arc<dyn Snapshot>, PolicyVersion),
    Pause(bool),
    Ping(oneshot::Sender<()>),
    Shutdown,
}

/// Sends requests and weights to an engine. Cheap to clone; outlives the engine harmlessly.
#[derive(Clone)]
pub struct Handle {
    commands: Sender<Command>,
    ending: Arc<OnceLock<InferenceError>>,
    stats: Arc<Mutex<Stats>>,
    max_model_len: usize,
    vocab_size: usize,
    takes_adapters: bool,
}

/// An engine on a thread of its own. Dropping it shuts it down.
pub struct Engine {
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

impl Engine {
    /// Starts the thread with the weights of `snapshot`.
    ///
    /// # Errors
    /// [`InferenceError::InvalidConfig`] for a limit of 0, [`InferenceError::CacheTooSmall`] where memory does not hold one
    /// sequence of full length, [`InferenceError::Failed`] when the system gives no thread.
    pub fn start(
        snapshot: Arc<dyn Snapshot>,
        version: PolicyVersion,
        config: EngineConfig,
    ) -> Result<Self, InferenceError> {
        config.validate(snapshot.as_ref())?;
        let (commands, inbox) = channel();
        let handle = Handle {
            commands,
            ending: Arc::default(),
            stats: Arc::default(),
            max_model_len: config.max_model_len,
            vocab_size: snapshot.config().vocab_size,
            takes_adapters: snapshot.takes_adapters(),
        };
        let ending = handle.ending.clone();
        let scheduler = Scheduler::new(snapshot, version, config, handle.stats.clone());
        let thread = std::thread::Builder::new()
            .name("prl-engine".into())
            .spawn(move || serve(scheduler, inbox, &ending))
            .map_err(|e| InferenceError::Failed { message: format!("cannot start the engine's thread: {e}") })?;
        Ok(Engine { handle, thread: Some(thread) })
    }

    /// A handle for requests and updates.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Ends the thread after the step it is in and waits for it. Pending requests get [`InferenceError::Shutdown`].
    pub fn shutdown(self) {
        drop(self);
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // A thread that has ended already has no inbox, and has said why in `ending`.
        let _ = self.handle.commands.send(Command::Shutdown);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Handle {
    /// Queues a request, at once and not at the first poll; the future gives its tokens. Dropping the future cancels
    /// the request.
    ///
    /// # Errors
    /// As the end of [`Handle::submit`]'s events.
    pub fn generate(&self, request: Request) -> impl Future<Output = Result<Sampled, InferenceError>> + Send + use<> {
        let mut events = self.submit(Request { streams: false, ..request });
        async move {
            let (mut ids, mut logprobs) = (Vec::new(), Vec::new());
            let mut versions: Option<(PolicyVersion, PolicyVersion)> = None;
            loop {
                match events.next().await {
                    Event::Prompt(_) => {}
                    Event::Token(Drawn { scored, version: v }) => {
                        ids.push(scored.id);
                        logprobs.push(scored.logprob);
                        versions = Some(versions.map_or((v, v), |(a, b)| (a.min(v), b.max(v))));
                    }
                    Event::End(outcome) => {
                        let versions = versions.unwrap_or_default();
                        return Sampled::from_engine(ids, logprobs, versions, outcome?)
                            .map_err(|e| InferenceError::Failed { message: e.to_string() });
                    }
                }
            }
        }
    }

    /// Log-probability of each of `ids` given those before it, 0 for the first, under the weights of the moment, over the
    /// full vocabulary and at `temperature`. Dropping the future cancels it.
    ///
    /// # Errors
    /// As the end of [`Handle::submit`]'s events.
    pub fn score(
        &self,
        ids: Arc<[TokenId]>,
        temperature: f32,
    ) -> impl Future<Output = Result<Vec<f32>, InferenceError>> + Send + use<> {
        let (prompt_logprobs, max_tokens) = (Some(0), Some(0));
        let sampling = SamplingParams { temperature, prompt_logprobs, max_tokens, ..SamplingParams::default() };
        let mut events = self.submit(Request { goes_on: false, ..Request::new(ids, sampling, 0) });
        async move {
            match events.next().await {
                Event::Prompt(done) => {
                    let rest = done.logprobs.iter().map(|scored| scored.logprob);
                    Ok(std::iter::once(0.0).chain(rest).collect())
                }
                Event::End(Err(error)) => Err(error),
                Event::Token(_) | Event::End(Ok(_)) => {
                    Err(InferenceError::Failed { message: "a prompt's log-probabilities are missing".into() })
                }
            }
        }
    }

    /// Queues a request; its events come as they happen. Dropping them cancels it.
    ///
    /// They end with one of [`InferenceError::Overlong`], [`InferenceError::EmptyPrompt`],
    /// [`InferenceError::UnknownToken`], [`InferenceError::InvalidSampling`] and [`InferenceError::NoAdapters`] for a bad request;
    /// [`InferenceError::Busy`] and [`InferenceError::CacheFull`] under load; [`InferenceError::NonFiniteLogits`] for
    /// broken weights; [`InferenceError::Failed`] or [`InferenceError::Shutdown`] when the engine has ended.
    pub fn submit(&self, request: Request) -> Events {
        let (events, inbox) = unbounded_channel();
        let (ending, mut refused) = (self.ending.clone(), None);
        match self.check(&request) {
            // A failed send drops the other end, which is read as the engine's end.
            Ok(()) => drop(self.commands.send(Command::Generate(Box::new(Job { request, events })))),
            Err(error) => refused = Some(error),
        }
        Events { inbox, ending, refused }
    }

    /// Stops sampling after the step under way, or goes on. Requests are taken meanwhile, and keep what they have.
    ///
    /// # Errors
    /// When the engine has ended.
    pub fn pause(&self, paused: bool) -> Result<(), InferenceError> {
        self.commands.send(Command::Pause(paused)).map_err(|_| ended(&self.ending))
    }

    /// Changes the weights between two steps. Requests made after this call see the new weights only; running ones go
    /// on with the new weights and their old keys and values.
    ///
    /// # Errors
    /// When the engine has ended.
    pub fn update(&self, snapshot: Arc<dyn Snapshot>, version: PolicyVersion) -> Result<(), InferenceError> {
        self.commands.send(Command::Update(snapshot, version)).map_err(|_| ended(&self.ending))
    }

    /// Waits until the engine's thread has done all that was asked of it before, but for requests: answered between two
    /// steps, so that a thread that hangs in a step does not answer.
    ///
    /// # Errors
    /// When the engine has ended.
    pub fn ping(&self) -> impl Future<Output = Result<(), InferenceError>> + Send + use<> {
        let (answer, answered) = oneshot::channel();
        let ending = self.ending.clone();
        // A failed send drops the other end, which is read as the engine's end.
        drop(self.commands.send(Command::Ping(answer)));
        async move { answered.await.map_err(|_| ended(&ending)) }
    }

    /// Why the engine has ended; `None` while it lives.
    pub fn ended(&self) -> Option<InferenceError> {
        self.ending.get().cloned()
    }

    /// Tokens of prompt and completion together that a request may have.
    pub fn max_model_len(&self) -> usize {
        self.max_model_len
    }

    /// Entries in the model's vocabulary.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// Counters and load as of the last step.
    pub fn stats(&self) -> Stats {
        *self.stats.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn check(&self, request: &Request) -> Result<(), InferenceError> {
        request.sampling.validate()?;
        if !request.sampling.stop.is_empty() && request.decode.is_none() {
            return Err(InferenceError::InvalidSampling {
                name: "stop",
                value: format!("{:?}", request.sampling.stop),
                want: "empty where the request has no decoder",
            });
        }
        if let Some(guide) = request.guide.as_ref().filter(|guide| guide.vocab_size() != self.vocab_size) {
            return Err(InferenceError::InvalidSampling {
                name: "guide",
                value: format!("for a vocabulary of {}", guide.vocab_size()),
                want: "made for the model's vocabulary",
            });
        }
        if request.adapter.is_some() && !self.takes_adapters {
            return Err(InferenceError::NoAdapters);
        }
        let prompt = &request.prompt;
        if prompt.is_empty() {
            return Err(InferenceError::EmptyPrompt);
        }
        let drawn = usize::from(request.sampling.max_tokens != Some(0));
        if prompt.len() + drawn > self.max_model_len {
            return Err(InferenceError::Overlong { prompt_tokens: prompt.len(), max_model_len: self.max_model_len });
        }
        match prompt.iter().position(|id| *id as usize >= self.vocab_size) {
            Some(index) => {
                Err(InferenceError::UnknownToken { index, token: prompt[index], vocab_size: self.vocab_size })
            }
            None => Ok(()),
        }
    }
}

/// What comes of a request.
pub struct Events {
    inbox: UnboundedReceiver<Event>,
    ending: Arc<OnceLock<InferenceError>>,
    refused: Option<InferenceError>,
}

impl Events {
    /// The next event. After [`Event::End`] there is none, and this says that the engine has ended.
    pub async fn next(&mut self) -> Event {
        if let Some(error) = self.refused.take() {
            return Event::End(Err(error));
        }
        self.inbox.recv().await.unwrap_or_else(|| Event::End(Err(ended(&self.ending))))
    }
}

fn ended(ending: &OnceLock<InferenceError>) -> InferenceError {
    ending.get().cloned().unwrap_or(InferenceError::Shutdown)
}

/// The thread: applies commands between steps until told to stop or the model fails. What ended it is written down
/// before any pending request is dropped.
fn serve(mut scheduler: Scheduler<Arc<dyn Snapshot>>, inbox: Receiver<Command>, ending: &OnceLock<InferenceError>) {
    let end = loop {
        let first = if scheduler.is_idle() {
            match inbox.recv() {
                Ok(command) => Some(command),
                Err(_) => break InferenceError::Shutdown,
            }
        } else {
            None
        };
        let (mut stop, mut failed) = (false, None);
        for command in first.into_iter().chain(inbox.try_iter()) {
            match command {
                Command::Generate(job) => scheduler.submit(*job),
                Command::Pause(paused) => failed = guarded(|| scheduler.pause(paused)).err().or(failed),
                Command::Update(snapshot, version) => {
                    failed = guarded(|| scheduler.update(snapshot, version)).err().or(failed);
                }
                // Whoever asked may have gone away.
                Command::Ping(answer) => drop(answer.send(())),
                Command::Shutdown => stop = true,
            }
        }
        if let Some(message) = failed {
            break InferenceError::Failed { message };
        }
        if stop {
            break InferenceError::Shutdown;
        }
        if scheduler.is_idle() {
            scheduler.drop_cancelled();
            continue;
        }
        if let Err(message) = guarded(|| scheduler.step()) {
            break InferenceError::Failed { message };
        }
    };
    if let InferenceError::Failed { message } = &end {
        tracing::error!("inference engine failed: {message}");
    }
    // The thread is the only writer.
    let _ = ending.set(end);
    drop(inbox);
    drop(scheduler);
}

/// A panic as an error. After either the scheduler is dropped, so no broken state is used again.
fn guarded(part: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    catch_unwind(AssertUnwindSafe(part)).unwrap_or_else(|panic| Err(panic_message(panic.as_ref())))
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("panic in the engine's thread: {}", text.unwrap_or("(no message)"))
}

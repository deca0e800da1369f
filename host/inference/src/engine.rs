//! The engine's thread and its handle.
//!
//! Owns the thread, the way requests and weights reach it, and what callers get when it ends, however it ends. Must not
//! know how requests are batched.

use crate::scheduler::{Job, Scheduler};
use crate::{Decode, InferenceError, SamplingParams, Stats};
use prl_model::Snapshot;
use prl_types::{PolicyVersion, Sampled, TokenId};
use std::any::Any;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;
use tokio::sync::oneshot;

/// Limits of an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineConfig {
    /// Requests that run at a time; further ones wait in order of arrival.
    pub max_batch: usize,
    /// Tokens of prompt and completion together.
    pub max_model_len: usize,
    /// Prompt tokens taken through the model in one step, beside the decoding sequences.
    pub prefill_tokens: usize,
    /// Prefilled prompts kept for later members of their group; 0 keeps none.
    pub shared_prompts: usize,
}

impl EngineConfig {
    /// Limits with the defaults for the rest: 2,048 prompt tokens a step, 16 kept prompts.
    pub fn new(max_batch: usize, max_model_len: usize) -> Self {
        EngineConfig { max_batch, max_model_len, prefill_tokens: 2048, shared_prompts: 16 }
    }

    fn validate(&self) -> Result<(), InferenceError> {
        for (name, value) in [
            ("max_batch", self.max_batch),
            ("max_model_len", self.max_model_len),
            ("prefill_tokens", self.prefill_tokens),
        ] {
            if value == 0 {
                return Err(InferenceError::InvalidConfig { name });
            }
        }
        Ok(())
    }
}

/// What to sample.
#[derive(Clone)]
pub struct Request {
    /// The ids to continue.
    pub prompt: Arc<[TokenId]>,
    /// How.
    pub sampling: SamplingParams,
    /// Seeds this request's own random stream.
    pub seed: u64,
    /// Requests with the same key and the same prompt share one prefill; for example the group's id.
    pub prefix_key: Option<u64>,
    /// Needed when `sampling.stop` is not empty.
    pub decode: Option<Decode>,
}

impl Request {
    /// A request of its own: no shared prefix, no decoder.
    pub fn new(prompt: impl Into<Arc<[TokenId]>>, sampling: SamplingParams, seed: u64) -> Self {
        Request { prompt: prompt.into(), sampling, seed, prefix_key: None, decode: None }
    }
}

enum Command {
    Generate(Job),
    Update(Arc<dyn Snapshot>, PolicyVersion),
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
    /// [`InferenceError::InvalidConfig`] for a limit of 0, [`InferenceError::Failed`] when the system gives no thread.
    pub fn start(
        snapshot: Arc<dyn Snapshot>,
        version: PolicyVersion,
        config: EngineConfig,
    ) -> Result<Self, InferenceError> {
        config.validate()?;
        let (commands, inbox) = channel();
        let handle = Handle {
            commands,
            ending: Arc::default(),
            stats: Arc::default(),
            max_model_len: config.max_model_len,
            vocab_size: snapshot.config().vocab_size,
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
    /// [`InferenceError::Overlong`], [`InferenceError::EmptyPrompt`], [`InferenceError::UnknownToken`] and
    /// [`InferenceError::InvalidSampling`] for a bad request; [`InferenceError::NonFiniteLogits`] for broken weights;
    /// [`InferenceError::Failed`] or [`InferenceError::Shutdown`] when the engine has ended.
    pub fn generate(&self, request: Request) -> impl Future<Output = Result<Sampled, InferenceError>> + Send + use<> {
        let queued = self.check(&request).map(|()| {
            let (reply, answer) = oneshot::channel();
            // A failed send drops the reply, which the future reads as the engine's end.
            let _ = self.commands.send(Command::Generate(Job { request, reply }));
            answer
        });
        let ending = self.ending.clone();
        async move { queued?.await.unwrap_or_else(|_| Err(ended(&ending))) }
    }

    /// Changes the weights between two steps. Requests made after this call see the new weights only; running ones go
    /// on with the new weights and their old keys and values.
    ///
    /// # Errors
    /// When the engine has ended.
    pub fn update(&self, snapshot: Arc<dyn Snapshot>, version: PolicyVersion) -> Result<(), InferenceError> {
        self.commands.send(Command::Update(snapshot, version)).map_err(|_| ended(&self.ending))
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
        let prompt = &request.prompt;
        if prompt.is_empty() {
            return Err(InferenceError::EmptyPrompt);
        }
        if prompt.len() >= self.max_model_len {
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
        let mut stop = false;
        for command in first.into_iter().chain(inbox.try_iter()) {
            match command {
                Command::Generate(job) => scheduler.submit(job),
                Command::Update(snapshot, version) => scheduler.update(snapshot, version),
                Command::Shutdown => stop = true,
            }
        }
        if stop {
            break InferenceError::Shutdown;
        }
        // After a panic the scheduler is dropped, so no broken state is used again.
        match catch_unwind(AssertUnwindSafe(|| scheduler.step())) {
            Ok(Ok(())) => {}
            Ok(Err(message)) => break InferenceError::Failed { message },
            Err(panic) => break InferenceError::Failed { message: panic_message(panic.as_ref()) },
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

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("panic in the engine's thread: {}", text.unwrap_or("(no message)"))
}
